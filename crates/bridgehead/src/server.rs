//! Builds and starts a server.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bridgehead_call::{AuditSink, Clock};
#[cfg(feature = "config-files")]
use bridgehead_config::Config;
#[cfg(feature = "http")]
use bridgehead_config::ListenerAuth;
use bridgehead_config::{GatewaySettings, HttpSettings, Mode, ServerConfig, ServerName};
#[cfg(feature = "http")]
use bridgehead_front::{Authenticator, BindError, Token, TokenError};
use bridgehead_gateway::{
    Authorizer, Gateway, Limiter, LineSink, NativePrompt, NativeResource, NativeTool, Options, RegisterError,
    Registry,
};
use bridgehead_upstream::credentials::CredentialSource;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::instrument::WithSubscriber;
use tracing::{Dispatch, info};

#[cfg(feature = "access")]
use crate::access::Access;
use crate::control::{self, Control};
use crate::endpoint::{Exposed, check_endpoint};
use crate::handlers;
use crate::running::Running;
use crate::transport::{Connected, SignIn, Transport};

/// What a [`Server`] is built from. Everything has a default.
#[derive(Debug)]
#[must_use]
pub struct ServerOptions {
    gateway: Options,
    transports: Vec<Transport>,
    logger: Option<Dispatch>,
    handlers: bool,
    control: Option<Control>,
    sign_in: Option<SignIn>,
    listening: Option<TcpListener>,
    #[cfg(feature = "access")]
    access: Option<Access>,
    /// What the configuration says about access: rules, limits, who is admitted.
    #[cfg(feature = "config-files")]
    restricts: [bool; 3],
}

impl Default for ServerOptions {
    fn default() -> Self {
        let gateway = Options { version: env!("CARGO_PKG_VERSION").to_owned(), ..Options::default() };
        Self {
            gateway,
            transports: Vec::new(),
            logger: None,
            handlers: true,
            control: None,
            sign_in: None,
            listening: None,
            #[cfg(feature = "access")]
            access: None,
            #[cfg(feature = "config-files")]
            restricts: [false; 3],
        }
    }
}

impl ServerOptions {
    /// Takes the settings of a configuration and adds its servers. Its `[http]` part takes effect through
    /// [`Transport::Http`]. What its `audit.redact` describes is hidden in the whole process. If it says who may call what, the start fails unless `ServerOptions::access` applies that, or an
    /// authorizer, a limiter and a sign-in of the program replace it.
    #[cfg(feature = "config-files")]
    pub fn configured(mut self, config: &Config) -> Self {
        self.gateway.settings = config.gateway.clone();
        self.gateway.servers.extend_from_slice(&config.servers);
        crate::hide(config);
        let admits = config.auth.asks_for_credentials() || config.auth.proxy.is_some();
        let here = [!config.policy.is_empty(), !config.limits.is_empty(), admits];
        self.restricts.iter_mut().zip(here).for_each(|(restricts, here)| *restricts |= here);
        self
    }

    /// Takes the gateway's settings.
    pub fn settings(mut self, settings: GatewaySettings) -> Self {
        self.gateway.settings = settings;
        self
    }

    /// Adds a server whose tools are offered.
    pub fn upstream(mut self, server: ServerConfig) -> Self {
        self.gateway.servers.push(server);
        self
    }

    /// The environment from which servers get the few variables that every program needs. By default the start reads those
    /// variables, and those that the servers' `inherit_env` name, from the process's own environment.
    pub fn environment(mut self, variables: BTreeMap<String, String>) -> Self {
        self.gateway.environment = Some(variables);
        self
    }

    /// Adds a transport. Without any, the server uses stdin and stdout.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transports.push(transport);
        self
    }

    /// Adds a Rust tool.
    pub fn register(mut self, tool: NativeTool) -> Self {
        self.gateway.tools.push(tool);
        self
    }

    /// Adds a Rust prompt.
    pub fn register_prompt(mut self, prompt: NativePrompt) -> Self {
        self.gateway.prompts.push(prompt);
        self
    }

    /// Adds a Rust resource or resource template.
    pub fn register_resource(mut self, resource: NativeResource) -> Self {
        self.gateway.resources.push(resource);
        self
    }

    /// Where calls are recorded; nowhere by default.
    pub fn audit(mut self, sink: Arc<dyn AuditSink>) -> Self {
        self.gateway.audit = sink;
        self
    }

    /// Methods to record besides those that are always recorded, by name, such as `tools/list`.
    pub fn also_recorded(mut self, methods: Vec<&'static str>) -> Self {
        self.gateway.also_recorded = methods;
        self
    }

    /// Decides which principal may use what; by default all may use everything.
    pub fn authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.gateway.authorizer = Some(authorizer);
        self
    }

    /// Limits how much each principal may do; by default only the servers' own limits apply.
    pub fn limiter(mut self, limiter: Arc<dyn Limiter>) -> Self {
        self.gateway.limiter = Some(limiter);
        self
    }

    /// Decides who may call over HTTP, what each may use and how much. It replaces the authorizer, the limiter and the sign-in.
    #[cfg(feature = "access")]
    pub fn access(mut self, access: Access) -> Self {
        self.gateway.authorizer = Some(access.authorizer());
        self.gateway.limiter = Some(access.limiter());
        self.access = Some(access.clone());
        self.sign_in(move |settings, auth, token| access.authenticator(settings, auth, token))
    }

    /// Makes the authenticator of each HTTP listener from the settings, from what the listener itself says about credentials,
    /// and from the token, if one is configured. By default the token admits its holders or, without one, the local user is
    /// admitted.
    #[cfg(feature = "http")]
    pub fn sign_in(
        mut self,
        make: impl Fn(&HttpSettings, Option<ListenerAuth>, Option<Token>) -> io::Result<Box<dyn Authenticator>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.sign_in = Some(SignIn(Box::new(make)));
        self
    }

    /// Serves the first HTTP transport on a socket that listens already, instead of on its `listen`: for a service manager that
    /// passes sockets, which keeps the port over restarts. Its address takes the place of `listen` in every check, so put it
    /// into the settings, too.
    #[cfg(feature = "http")]
    pub fn listening(mut self, socket: TcpListener) -> Self {
        self.listening = Some(socket);
        self
    }

    /// Chooses the credentials for remote servers; by default their configured headers.
    pub fn credentials(mut self, source: CredentialSource) -> Self {
        self.gateway.credentials = Some(source);
        self
    }

    /// The registry that shares running upstreams; by default one for all servers of this process.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.gateway.registry = registry;
        self
    }

    /// The clock; the machine's by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.gateway.clock = clock;
        self
    }

    /// When this process started, by the clock's monotonic reading; the time of building by default.
    pub fn boot(mut self, boot: Duration) -> Self {
        self.gateway.boot = Some(boot);
        self
    }

    /// The version to show; this crate's by default.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.gateway.version = version.into();
        self
    }

    /// What is offered; everything by default.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.gateway.settings.mode = mode;
        self
    }

    /// How long connecting the transports may take; 30 seconds by default.
    pub fn startup_timeout(mut self, limit: Duration) -> Self {
        self.gateway.settings.startup_timeout = limit;
        self
    }

    /// Receives the server's log lines about its start and end, failures of the audit sink, and panics while a request is
    /// answered. By default they go to the subscriber of the task that starts the server. Other lines, about single
    /// upstreams and calls, come from separate tasks and always go to the process's subscriber.
    pub fn logger(mut self, logger: Dispatch) -> Self {
        self.gateway.logger = Some(logger.clone());
        self.logger = Some(logger);
        self
    }

    /// Whether the start installs process-wide panic and signal handling; yes by default. Without it, signals keep their
    /// current handling, and [`Running::wait`] waits only for the transports.
    pub fn process_handlers(mut self, install: bool) -> Self {
        self.handlers = install;
        self
    }

    /// Opens a control socket, so that `bridgehead status` and similar commands find this server; none by default. A socket
    /// that cannot be created is only a warning.
    #[cfg(feature = "http")]
    pub fn control(mut self, control: Control) -> Self {
        self.control = Some(control);
        self
    }

    /// Passes every line that an upstream writes to stderr, and every line about it, to `sink`.
    pub fn log_lines(mut self, sink: LineSink) -> Self {
        self.gateway.log_lines = Some(sink);
        self
    }

    /// The first endpoint that a confined server could call. In mode `minimal` no server runs, so there is none.
    fn exposed(&self) -> Option<Exposed> {
        let none_runs = self.gateway.settings.mode == Mode::Minimal;
        let http = self.transports.iter().filter(|_| !none_runs).filter_map(Transport::http_settings);
        #[cfg(feature = "access")]
        let asks = self.access.as_ref().is_some_and(Access::asks_for_credentials);
        #[cfg(not(feature = "access"))]
        let asks = false;
        http.map(|settings: &HttpSettings| check_endpoint(&self.gateway.servers, settings, asks))
            .find_map(Result::err)
    }

    /// The first part of the configuration that restricts callers and that nothing would apply.
    #[cfg(feature = "config-files")]
    fn without_effect(&self) -> Option<&'static str> {
        let admits =
            self.sign_in.is_some() || !self.transports.iter().any(|one| one.http_settings().is_some());
        let applied = [self.gateway.authorizer.is_some(), self.gateway.limiter.is_some(), admits];
        let parts = ["[[policy]]", "[[limits.rules]]", "[auth]"];
        let mut parts = parts.into_iter().zip(self.restricts.into_iter().zip(applied));
        parts.find(|(_, (said, applied))| *said && !applied).map(|(part, _)| part)
    }

    #[cfg(not(feature = "config-files"))]
    fn without_effect(&self) -> Option<&'static str> {
        None
    }

    /// Builds the server. Connects, installs and reads nothing.
    pub fn build(mut self) -> Result<Server, RegisterError> {
        if self.transports.is_empty() {
            self.transports.push(Transport::Stdio);
        }
        let (exposed, without_effect) = (self.exposed(), self.without_effect());
        let mut names = HashSet::new();
        let twice = self.gateway.servers.iter().find(|server| !names.insert(&server.name));
        let twice = twice.map(|server| server.name.clone());
        Ok(Server {
            exposed,
            without_effect,
            twice,
            settings: self.gateway.settings.clone(),
            version: self.gateway.version.clone(),
            gateway: Gateway::new(self.gateway)?,
            transports: Mutex::new(Some((self.transports, self.listening))),
            logger: self.logger,
            handlers: self.handlers,
            control: self.control,
            sign_in: self.sign_in,
            #[cfg(feature = "access")]
            access: self.access,
            connected: Arc::new(AtomicBool::new(false)),
        })
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The transports were not connected in time.
    #[error(
        "no client could be served within {} ms; raise `gateway.startup_timeout_ms` or \
         BRIDGEHEAD_STARTUP_TIMEOUT_MS if that is too short \
         (`bridgehead explain the-gateway-itself-does-not-start-in-time`)",
        .0.as_millis()
    )]
    Timeout(Duration),
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {error}; {}", cure(error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// There is no usable bearer token.
    #[cfg(feature = "http")]
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The authenticator of an HTTP listener could not be made.
    #[error("nobody could sign in: {0}")]
    SignIn(io::Error),
    /// A listener of `[http.listeners]` cannot serve.
    #[cfg(feature = "http")]
    #[error(transparent)]
    Listener(BindError),
    /// A confined server could call the gateway over HTTP.
    #[error(transparent)]
    Exposed(Exposed),
    /// The configuration says who may call what, and nothing would apply it.
    #[error(
        "the configuration has `{0}`, which would have no effect; apply it with `ServerOptions::access` (feature `access`), or \
         pass an authorizer, a limiter and a sign-in"
    )]
    WithoutEffect(&'static str),
    /// Two servers have the same name.
    #[error("there are two servers named `{0}`; give each server its own name")]
    DuplicateServer(ServerName),
    /// A transport could not be connected.
    #[error("cannot connect the transport: {0}")]
    Connect(io::Error),
    /// The signal handlers could not be installed.
    #[error("cannot handle signals: {0}")]
    Handlers(io::Error),
    /// A server can start only once.
    #[error("this server was started before; build another one")]
    AlreadyStarted,
}

#[cfg(feature = "http")]
impl From<BindError> for StartError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Address { address, error } => Self::Listen { address, error },
            BindError::Token(error) => Self::Token(error),
            BindError::SignIn(error) => Self::SignIn(error),
            other => Self::Listener(other),
        }
    }
}

fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "end the program that holds it, or choose another port with `--listen`",
        io::ErrorKind::PermissionDenied => "choose a port above 1023 with `--listen`",
        _ => "choose an address of this machine with `--listen`",
    }
}

/// A gateway with its transports, not yet running.
pub struct Server {
    /// Why it must not start.
    exposed: Option<Exposed>,
    /// The part of the configuration that nothing would apply, for which it must not start either.
    without_effect: Option<&'static str>,
    /// The name that two of its servers have, for which it must not start either.
    twice: Option<ServerName>,
    gateway: Gateway,
    settings: GatewaySettings,
    version: String,
    /// With the socket that listens already, if there is one.
    transports: Mutex<Option<(Vec<Transport>, Option<TcpListener>)>>,
    logger: Option<Dispatch>,
    handlers: bool,
    control: Option<Control>,
    sign_in: Option<SignIn>,
    #[cfg(feature = "access")]
    access: Option<Access>,
    connected: Arc<AtomicBool>,
}

impl Server {
    /// Options that all have defaults.
    pub fn builder() -> ServerOptions {
        ServerOptions::default()
    }

    /// The version it shows.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What it offers.
    pub fn mode(&self) -> Mode {
        self.settings.mode
    }

    /// Whether clients can reach it.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// The gateway behind the transports.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Offers another Rust tool from now on, before the start or while it runs. Clients are notified that the list has
    /// changed.
    ///
    /// # Errors
    /// If the tool cannot be registered. Then nothing changes.
    pub fn register(&self, tool: NativeTool) -> Result<(), RegisterError> {
        self.gateway.register(tool)
    }

    /// Offers another Rust prompt from now on. Clients are notified that the list has changed.
    ///
    /// # Errors
    /// If the prompt cannot be registered. Then nothing changes.
    pub fn register_prompt(&self, prompt: NativePrompt) -> Result<(), RegisterError> {
        self.gateway.register_prompt(prompt)
    }

    /// Offers another Rust resource or resource template from now on. Clients are notified that the list has changed.
    ///
    /// # Errors
    /// If the resource cannot be registered. Then nothing changes.
    pub fn register_resource(&self, resource: NativeResource) -> Result<(), RegisterError> {
        self.gateway.register_resource(resource)
    }

    /// Connects the transports, then starts the upstreams in the background, so that clients get answers immediately.
    ///
    /// The future is boxed, so that the code of the whole server is compiled here, and not again in the program.
    pub fn start(&self) -> BoxFuture<'_, Result<Running, StartError>> {
        let starting = self.start_here();
        match &self.logger {
            Some(logger) => Box::pin(starting.with_subscriber(logger.clone())),
            None => Box::pin(starting),
        }
    }

    async fn start_here(&self) -> Result<Running, StartError> {
        if let Some(exposed) = &self.exposed {
            return Err(StartError::Exposed(exposed.clone()));
        }
        if let Some(part) = self.without_effect {
            return Err(StartError::WithoutEffect(part));
        }
        if let Some(name) = &self.twice {
            return Err(StartError::DuplicateServer(name.clone()));
        }
        let (transports, mut listening) = self.transports.lock().take().ok_or(StartError::AlreadyStarted)?;
        let signals =
            if self.handlers { Some(handlers::install().map_err(StartError::Handlers)?) } else { None };
        info!(mode = %self.mode(), version = self.version, "starting");
        let connecting = async {
            let mut connected = Vec::with_capacity(transports.len());
            for transport in transports {
                connected.push(transport.connect(self.sign_in.as_ref(), &mut listening).await?);
            }
            Ok::<_, StartError>(connected)
        };
        let limit = self.settings.startup_timeout;
        let connected =
            tokio::time::timeout(limit, connecting).await.map_err(|_| StartError::Timeout(limit))??;

        self.gateway.start();
        let shutdown = CancellationToken::new();
        let addresses: Vec<SocketAddr> = connected.iter().flat_map(Connected::addresses).collect();
        let listeners = connected.iter().flat_map(Connected::places).collect();
        self.gateway.set_addresses(connected.iter().flat_map(Connected::told).collect());
        #[cfg(feature = "access")]
        let operators = self.access.as_ref().map(Access::operators).unwrap_or_default();
        #[cfg(not(feature = "access"))]
        let operators = control::Operators::default();
        let (api, control) = control::open(
            self.control.as_ref(),
            &self.gateway,
            &addresses,
            &self.version,
            operators,
            self.settings.max_message_bytes,
            &shutdown,
        );
        #[cfg(feature = "access")]
        let background = self.access.as_ref().map(|access| access.background(&self.gateway));
        let mut fronts = JoinSet::new();
        for front in connected {
            let limit = self.settings.max_message_bytes;
            // An embedding program gets threads only if it asks for them.
            let threads = self.settings.threads.map_or(1, NonZeroUsize::get);
            let serving = front.serve(self.gateway.clone(), api.clone(), limit, threads, shutdown.clone());
            fronts.spawn(serving.with_current_subscriber());
        }
        self.connected.store(true, Ordering::Release);
        info!("ready");
        Ok(Running {
            gateway: self.gateway.clone(),
            fronts,
            shutdown,
            signals,
            addresses,
            listeners,
            control,
            #[cfg(feature = "access")]
            background: background.flatten(),
            connected: Arc::clone(&self.connected),
            logger: self.logger.clone(),
        })
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("version", &self.version)
            .field("mode", &self.mode())
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cure fits the reason. Tested by error kind, because a test that runs as root cannot cause all of them.
    #[test]
    fn an_address_that_cannot_be_used_comes_with_its_cure() {
        #[track_caller]
        fn check(kind: io::ErrorKind, expected: &str) {
            assert!(cure(&kind.into()).contains(expected), "{kind}: {}", cure(&kind.into()));
        }
        check(io::ErrorKind::AddrInUse, "end the program that holds it");
        check(io::ErrorKind::PermissionDenied, "above 1023");
        check(io::ErrorKind::AddrNotAvailable, "an address of this machine");
    }
}
