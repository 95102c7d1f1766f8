//! One connection, one call: the client for programs that want a tool of one server without a gateway.
//!
//! A bridge connects, calls and closes. It retries where that may help, with pauses that double; the caller says
//! whether a tool may run twice. A lost connection is made again for the next attempt. Supervising servers, sharing
//! them and merging their tools is not done here.

mod attempts;
mod error;
mod operations;
mod timeout;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{CorrelationId, SystemClock};
use bridgehead_config::{
    GatewaySettings, Launch, Remote, RemoteTransport, Retry, Secret, ServerConfig, ServerName, Url,
};
use bridgehead_events::{Bus, Signal, Signals};
use bridgehead_wire::{Object, Raw};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Dispatch;

pub use crate::link::LinkError;
#[doc(inline)]
pub use crate::link::negotiate::Peer as ServerPeer;
pub use crate::server::crash::{Crash, CrashReason};
pub use attempts::{BACKOFF_BASE, DEFAULT_ATTEMPTS, Sleep};
pub use error::{BridgeError, Cause};
pub use operations::{Operation, OperationSpec, operations};
pub use timeout::{DEFAULT_TIMEOUT_MS, InvalidTimeout, TIMEOUT_VARIABLE, resolve_timeout_ms};

use crate::catalog::{ListError, Lists, Tool, list_tools};
use crate::link::call::ToolCall;
use crate::link::negotiate::{Offer, Opening, Peer, negotiate};
use crate::link::{Link, Purpose};
use crate::server::given::own_environment;
use crate::server::record::ServerRecords;
use crate::transport::{self, ConnectError};

/// The largest accepted answer, unless the options say otherwise.
const LARGEST_MESSAGE: usize = 16 << 20;
/// How many bytes an in-memory transport buffers before its writer has to wait.
const MEMORY: usize = 64 * 1024;

/// Both directions of a connection, one message per line.
pub trait MessageStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> MessageStream for S {}

/// A connection being made.
type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn MessageStream>>> + Send>>;

/// Makes the connection in place of streamable HTTP. It is called again whenever the connection was lost.
#[derive(Clone)]
pub struct TransportFactory(Arc<dyn Fn(&str) -> Connecting + Send + Sync>);

impl TransportFactory {
    /// A factory from a function of the URL.
    pub fn new<S, F>(connect: impl Fn(&str) -> F + Send + Sync + 'static) -> Self
    where
        S: MessageStream,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        Self(Arc::new(move |url| {
            let connecting = connect(url);
            Box::pin(async {
                let stream: Box<dyn MessageStream> = Box::new(connecting.await?);
                Ok(stream)
            })
        }))
    }
}

impl fmt::Debug for TransportFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransportFactory")
    }
}

/// BRG-7: the two ends of an in-memory connection, one for a client, one for a server in the same process.
pub fn memory_transport() -> (DuplexStream, DuplexStream) {
    tokio::io::duplex(MEMORY)
}

/// How to connect. Everything has a default.
///
/// ```
/// # use bridgehead_upstream::bridge::ConnectOptions;
/// let options = ConnectOptions::default().timeout_ms(5_000).header("X-Team", "tools");
/// # assert_eq!(options.timeout_ms, Some(5_000));
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[must_use]
pub struct ConnectOptions {
    /// How long the handshake may take, and each attempt of a call that has no timeout of its own, in milliseconds; overrides
    /// the variable.
    pub timeout_ms: Option<u64>,
    /// The variables that [`TIMEOUT_VARIABLE`] is looked up in and that a started program may need. If `None`,
    /// connecting reads that variable and those that every program gets ([`bridgehead_process::INHERITED`]), such as
    /// `PATH`, and no others from the process's own environment. An invalid timeout makes connecting fail.
    pub environment: Option<BTreeMap<String, String>>,
    /// Sent with every request over HTTP.
    pub headers: BTreeMap<String, Secret>,
    /// Makes the connection in place of streamable HTTP.
    pub factory: Option<TransportFactory>,
    /// The largest accepted answer, in bytes; 16 MB by default.
    pub limit: Option<usize>,
    /// Where each retry is logged, in place of the caller's subscriber.
    pub logger: Option<Dispatch>,
}

impl ConnectOptions {
    /// Limits the handshake, and each attempt of a call that has no timeout of its own.
    pub fn timeout_ms(self, limit: impl Into<Option<u64>>) -> Self {
        Self { timeout_ms: limit.into(), ..self }
    }

    /// Uses these variables instead of the process's own.
    pub fn environment(self, variables: BTreeMap<String, String>) -> Self {
        Self { environment: Some(variables), ..self }
    }

    /// Sends a header with every request over HTTP. Its value is never shown.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), Secret::new(value));
        self
    }

    /// Makes the connection by a factory.
    pub fn factory(self, factory: TransportFactory) -> Self {
        Self { factory: Some(factory), ..self }
    }

    /// Accepts answers of at most this many bytes.
    pub fn limit(self, bytes: usize) -> Self {
        Self { limit: Some(bytes), ..self }
    }

    /// Logs each retry there.
    pub fn logger(self, logger: impl Into<Option<Dispatch>>) -> Self {
        Self { logger: logger.into(), ..self }
    }
}

/// How a call is attempted. Everything has a default.
///
/// ```
/// # use bridgehead_upstream::bridge::AttemptOptions;
/// let once = AttemptOptions::default().timeout_ms(5_000).max_attempts(1);
/// # assert_eq!(once.max_attempts, 1);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use]
pub struct AttemptOptions {
    /// How long each attempt may take, in milliseconds; overrides the variable and the timeout of the connection.
    pub timeout_ms: Option<u64>,
    /// The most attempts.
    pub max_attempts: u32,
    /// The pause after the first attempt; it doubles after each further attempt.
    pub backoff: Duration,
    /// Whether a failed attempt is retried.
    pub retry: Retry,
    /// Waits between attempts.
    pub sleep: Sleep,
    /// The id of the call, which is also sent to the server; if absent, each call gets a new one.
    pub correlation: Option<CorrelationId>,
}

impl Default for AttemptOptions {
    fn default() -> Self {
        Self {
            timeout_ms: None,
            max_attempts: DEFAULT_ATTEMPTS,
            backoff: BACKOFF_BASE,
            retry: Retry::Always,
            sleep: Sleep::default(),
            correlation: None,
        }
    }
}

impl AttemptOptions {
    /// Limits each attempt.
    pub fn timeout_ms(self, limit: impl Into<Option<u64>>) -> Self {
        Self { timeout_ms: limit.into(), ..self }
    }

    /// Makes at most this many attempts.
    pub fn max_attempts(self, attempts: u32) -> Self {
        Self { max_attempts: attempts, ..self }
    }

    /// Pauses this long after the first attempt, and twice as long after each further one.
    pub fn backoff(self, pause: Duration) -> Self {
        Self { backoff: pause, ..self }
    }

    /// Decides whether a failed attempt is retried.
    pub fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// Waits between attempts by `sleep`, for tests that do not want to wait.
    pub fn sleep(self, sleep: Sleep) -> Self {
        Self { sleep, ..self }
    }

    /// Gives the call this id.
    pub fn correlation(self, id: CorrelationId) -> Self {
        Self { correlation: Some(id), ..self }
    }
}

/// A connection to one server. Clones share it.
#[derive(Debug, Clone)]
pub struct Bridge(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    url: String,
    endpoint: Endpoint,
    options: ConnectOptions,
    /// The variables of the options, or those that the process had when the bridge was made.
    environment: BTreeMap<String, String>,
    signals: Signals,
    state: Mutex<BridgeState>,
}

#[derive(Debug)]
enum BridgeState {
    Open(Live),
    /// The connection is lost; the next attempt makes a new one.
    Lost,
    Closed,
}

/// The other end of the connection.
#[derive(Debug)]
enum Endpoint {
    Server(Box<ServerConfig>),
    Factory(TransportFactory),
}

/// An open connection, and the tasks that drive it. Dropping it disconnects from the server.
#[derive(Debug)]
struct Live {
    client: Client,
    tasks: TaskTracker,
    stop: DropGuard,
}

/// A list of tools, in the server's order.
type Tools = Arc<[Arc<Tool>]>;

/// A client of the server: the link, and what was negotiated.
#[derive(Debug, Clone)]
pub struct Client {
    /// The link, for other crates of this workspace.
    #[doc(hidden)]
    pub link: Link,
    /// The other side.
    pub peer: Peer,
    /// The server's tools, once they were needed.
    tools: Arc<Mutex<Option<Tools>>>,
}

/// Connects to the server at `url`: over streamable HTTP, or over a WebSocket if the scheme says so, unless the
/// options bring a factory.
pub async fn connect_to_server(url: &str, options: ConnectOptions) -> Result<Bridge, BridgeError> {
    let endpoint = match &options.factory {
        Some(factory) => Endpoint::Factory(factory.clone()),
        None => {
            let remote: Url = url.parse().map_err(|error| {
                let reason = format!("the address is not valid: {error}");
                BridgeError::new("connecting", 1, Cause::Connect { reason, retryable: false })
            })?;
            let transport =
                if remote.is_web_socket() { RemoteTransport::WebSocket } else { RemoteTransport::Http };
            let remote = Remote { transport, headers: options.headers.clone(), ..Remote::new(remote) };
            Endpoint::Server(Box::new(server(Launch::Remote(remote))))
        }
    };
    open(url.to_owned(), endpoint, options).await
}

/// Connects to any endpoint that a configuration can name: a program to run, or a server over any transport.
pub async fn connect_to_endpoint(endpoint: Launch, options: ConnectOptions) -> Result<Bridge, BridgeError> {
    let url = match &endpoint {
        Launch::Stdio(stdio) => format!("stdio:{}", stdio.command),
        Launch::Remote(remote) => remote.url.expose(),
        Launch::Unusable { .. } => String::new(),
    };
    open(url, Endpoint::Server(Box::new(server(endpoint))), options).await
}

async fn open(url: String, endpoint: Endpoint, mut options: ConnectOptions) -> Result<Bridge, BridgeError> {
    let signals = Signals::new(Bus::new(Arc::new(SystemClock::default())), options.logger.clone());
    let environment = options.environment.take().unwrap_or_else(|| {
        let mut own = match &endpoint {
            Endpoint::Server(server) => own_environment([&**server]),
            Endpoint::Factory(_) => BTreeMap::new(),
        };
        own.extend(std::env::var(TIMEOUT_VARIABLE).ok().map(|value| (TIMEOUT_VARIABLE.to_owned(), value)));
        own
    });
    let state = Mutex::new(BridgeState::Lost);
    let shared = Shared { url, endpoint, options, environment, signals, state };
    let bridge = Bridge(Arc::new(shared));
    bridge.client().await.map(|_| bridge)
}

fn server(launch: Launch) -> ServerConfig {
    ServerConfig::new(ServerName::adapt("bridge"), launch, &GatewaySettings::default())
}

/// Calls a tool and returns its result unchanged; a result with `isError` counts as an answer. Retries as the
/// options say.
pub async fn call_tool(
    bridge: &Bridge,
    name: &str,
    arguments: &Value,
    options: &AttemptOptions,
) -> Result<Raw, BridgeError> {
    let failed = |attempts, cause| BridgeError::new(format!("tool `{name}`"), attempts, cause);
    let explicit = options.timeout_ms.or(bridge.0.options.timeout_ms);
    let timeout =
        timeout::resolve(&bridge.0.environment, explicit).map_err(|error| failed(0, Cause::Timing(error)))?;
    let correlation = options.correlation.unwrap_or_else(CorrelationId::mint);
    let (mut attempts, mut may_have_run) = (0, false);
    loop {
        attempts += 1;
        let lost = match bridge.attempt(name, arguments, timeout, correlation).await {
            Ok(result) => return Ok(result),
            Err(lost) => lost,
        };
        may_have_run |= lost.may_have_run;
        let mut again = lost.cause.retryable() && attempts < options.max_attempts.max(1);
        if again && !options.retry.permits(lost.may_have_run, false) {
            // Only here does it matter whether the tool may run twice.
            again = options.retry == Retry::Safe && bridge.may_run_twice(name, timeout).await;
        }
        if !again {
            return Err(BridgeError { may_have_run, ..failed(attempts, lost.cause) });
        }
        let pause = attempts::pause(attempts, options.backoff);
        let (tool, attempt, cause) = (name, attempts, &lost.cause);
        bridge.0.signals.emit(&Signal::Retry { correlation, tool, attempt, pause, cause });
        options.sleep.for_a(pause).await;
    }
}

/// An attempt that failed.
struct LostAttempt {
    cause: Cause,
    may_have_run: bool,
}

impl Bridge {
    /// The address that the bridge connects to.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Counts what happens to its calls: the retries, and the casts of results.
    pub fn signals(&self) -> &Signals {
        &self.0.signals
    }

    /// The current client; reconnects if the connection was lost.
    pub async fn client(&self) -> Result<Client, BridgeError> {
        let failed = |cause| BridgeError::new(format!("connecting to {}", shown(&self.0.url)), 1, cause);
        self.live_client().await.map_err(failed)
    }

    /// Closes the connection and returns once it is closed. A second call does nothing.
    pub async fn close(&self) {
        let before = std::mem::replace(&mut *self.0.state.lock().await, BridgeState::Closed);
        if let BridgeState::Open(live) = before {
            live.close().await;
        }
    }

    async fn live_client(&self) -> Result<Client, Cause> {
        let mut state = self.0.state.lock().await;
        match &*state {
            BridgeState::Closed => return Err(Cause::Closed),
            BridgeState::Open(live) if live.client.link.ended().is_none() => return Ok(live.client.clone()),
            BridgeState::Open(_) | BridgeState::Lost => {}
        }
        *state = BridgeState::Lost;
        let live = connect(&self.0).await?;
        let client = live.client.clone();
        *state = BridgeState::Open(live);
        Ok(client)
    }

    async fn attempt(
        &self,
        name: &str,
        arguments: &Value,
        timeout: Duration,
        correlation: CorrelationId,
    ) -> Result<Raw, LostAttempt> {
        let before = |cause| LostAttempt { cause, may_have_run: false };
        let client = self.live_client().await.map_err(before)?;
        let mut exchange = client.link.open(Purpose::Ordinary);
        let answered = {
            let asking = async {
                // Only a peer that mirrors headers needs more of the tool than its name.
                let tool = if client.link.mirrors_headers() { client.tool(name).await } else { None };
                let headers = tool.as_ref().map_or(&[][..], |tool| &tool.headers);
                let call = ToolCall { name, arguments, correlation };
                exchange.call_tool(client.peer.revision.era(), call, headers).await
            };
            tokio::time::timeout(timeout, asking).await
        };
        let cause = match answered {
            Ok(Ok(Ok(result))) => return Ok(result),
            Ok(Ok(Err(error))) => Cause::Rpc(error),
            Ok(Err(error)) => Cause::Link(error),
            // The server itself may have asked us to wait.
            Err(_) => exchange.put_off().map_or(Cause::Timeout(timeout), Cause::Link),
        };
        Err(LostAttempt { cause, may_have_run: exchange.was_sent() })
    }

    /// Whether the tool declares that running it twice does no harm. A server that does not say so in time declares nothing.
    async fn may_run_twice(&self, name: &str, timeout: Duration) -> bool {
        let asking = async {
            let client = self.live_client().await.ok()?;
            client.tool(name).await
        };
        let tool = tokio::time::timeout(timeout, asking).await.ok().flatten();
        tool.is_some_and(|tool| tool.read_only || tool.idempotent)
    }
}

impl Client {
    fn new(link: Link, peer: Peer) -> Self {
        Self { link, peer, tools: Arc::default() }
    }

    /// The name that the server gives itself.
    fn server_name(&self) -> Option<String> {
        let info = Object::parse(self.peer.server_info.as_ref()?).ok()?;
        info.get("name")?.to_text().filter(|name| !name.is_empty())
    }

    /// A tool as last listed; lists again if the server has said that its list changed.
    async fn tool(&self, name: &str) -> Option<Arc<Tool>> {
        let mut known = self.tools.lock().await;
        let tools = match known.clone().filter(|_| !self.link.take_changed(Lists::TOOLS)) {
            Some(tools) => tools,
            None => self.list_into(&mut known).await.ok()?,
        };
        tools.iter().find(|tool| tool.name == name).map(Arc::clone)
    }

    /// What the server offers now.
    async fn list(&self) -> Result<Tools, ListError> {
        let mut known = self.tools.lock().await;
        self.link.take_changed(Lists::TOOLS);
        self.list_into(&mut known).await
    }

    async fn list_into(&self, known: &mut Option<Tools>) -> Result<Tools, ListError> {
        *known = None;
        let (tools, _) = list_tools(&self.link, &self.peer).await?;
        Ok(Arc::clone(known.insert(tools.into())))
    }
}

impl Live {
    async fn close(self) {
        drop(self.stop);
        self.tasks.wait().await;
    }
}

async fn connect(shared: &Shared) -> Result<Live, Cause> {
    let Shared { url, endpoint, options, environment, .. } = shared;
    let timeout = timeout::resolve(environment, options.timeout_ms).map_err(Cause::Timing)?;
    let limit = options.limit.unwrap_or(LARGEST_MESSAGE);
    let connecting = async {
        match endpoint {
            Endpoint::Server(server) => reach(server, environment, limit).await,
            Endpoint::Factory(factory) => {
                let stream = (factory.0)(url).await;
                let unreachable =
                    |error: io::Error| Cause::Connect { reason: error.to_string(), retryable: true };
                let stream = stream.map_err(unreachable)?;
                over(&shown(url), stream, limit).await
            }
        }
    };
    tokio::time::timeout(timeout, connecting).await.unwrap_or(Err(Cause::Timeout(timeout)))
}

async fn reach(
    server: &ServerConfig,
    environment: &BTreeMap<String, String>,
    limit: usize,
) -> Result<Live, Cause> {
    let record = ServerRecords::default().of(server.name.as_ref());
    // A bridge has one server, so it never waits for another start.
    let turn = Semaphore::new(1);
    let connecting = transport::connect(server, environment, limit, None, &record, Offer::Nothing, &turn);
    let (mut connection, peer) = connecting.await?;
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let client = Client::new(connection.link.clone(), peer);
    let stopped = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = connection.ended() => {}
            () = stopped.cancelled() => {}
        }
        connection.stop().await;
    });
    tasks.close();
    Ok(Live { client, tasks, stop: stop.drop_guard() })
}

async fn over(name: &str, stream: Box<dyn MessageStream>, limit: usize) -> Result<Live, Cause> {
    let (reader, writer) = tokio::io::split(stream);
    let (link, read, write) = Link::over(name, reader, writer, limit);
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let (ending, stopped) = (link.clone(), stop.clone());
    let stop = stop.drop_guard();
    tasks.spawn(async move {
        let writing = async {
            write.await;
            // The read side may still deliver after writing has failed.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = read => {}
            () = writing => {}
            () = stopped.cancelled() => {}
        }
        ending.end(LinkError::Closed("the connection was closed".into()));
    });
    tasks.close();
    let peer = negotiate(&link, Opening::Probe, Offer::Nothing).await.map_err(ConnectError::from)?;
    Ok(Live { client: Client::new(link, peer), tasks, stop })
}

/// An address without the parts that may be secret: credentials and the query.
fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}
