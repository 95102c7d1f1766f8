//! A single server as a provider of tools, for agents that bring their own loop: initialise, execute, check its
//! health, terminate.
//!
//! The gateway's supervisor keeps the connection, with its own restart policy: after ten failed attempts the server
//! is given up, and only a new `init` brings it back. A call never waits for a reconnect: without a connection it
//! fails at once with an error that says it may be retried.
//!
//! A call has one time budget, which starts at `execute` and covers the start of its process, the sending and the
//! answer. When the budget ends, the call fails with `PROVIDER_TIMEOUT`, whatever it is waiting for.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{
    Confinement, GatewaySettings, Isolation, Launch, Limits, ServerConfig, ServerName, ToolOverride,
};
use bridgehead_events::{Bus, ExecutionEnded, ExecutionOutcome, Signal, Signals};
use bridgehead_schema::{Effort, Envelope, Flat, ResultOrigin};
use bridgehead_wire::{Code, Fault, Object, Raw};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::catalog::{Listing, OutputError, Tool};
use crate::link::call::ToolCall;
use crate::link::{LinkError, Purpose};
use crate::server::given::own_environment;
use crate::server::policy::{Delays, RestartPolicy};
use crate::server::record::ServerRecords;
use crate::server::{FailureStage, Ready, Surroundings, Unavailable, Upstream, UpstreamState};
use crate::sharing::registry::Registry;

/// The most processes of a provider that start at the same time.
const STARTS: usize = 4;
/// A year: a longer timeout is cut to this.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A pending answer of a provider.
pub type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something that offers tools to an agent.
pub trait ProviderAdapter: Send + Sync {
    /// Connects and reads the lists. A previous connection is terminated first.
    fn init(&self, config: ProviderConfig) -> ProviderFuture<'_, Result<(), ProviderError>>;

    /// Runs one tool.
    fn execute<'a>(
        &'a self,
        invocation: &'a Invocation,
        correlation: CorrelationId,
    ) -> ProviderFuture<'a, Result<Execution, ProviderError>>;

    /// Its health.
    fn health(&self) -> Health;

    /// Ends everything and returns when nothing is left. A second call does nothing.
    fn terminate(&self) -> ProviderFuture<'_, ()>;
}

/// The health of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Connected.
    Healthy,
    /// Not connected, and being reconnected.
    Degraded,
    /// Given up, or never initialised; left only by `init`.
    Unavailable,
}

/// The configuration of a provider. Everything but the endpoint has a default.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use]
pub struct ProviderConfig {
    /// The prefix of its tool names: `{namespace}__{tool}`.
    pub namespace: ServerName,
    /// The program to run, or the address and transport of the server.
    pub endpoint: Launch,
    /// How long a call may take, including the start of its process. The shorter of this and `limits.execution`
    /// counts.
    pub timeout: Duration,
    /// The most attempts to reconnect before the server is given up; each outage starts a new count.
    pub max_retries: u32,
    /// The pause before the first attempt; it doubles each time, up to 30 s. It starts over once a connection has
    /// lasted a minute.
    pub reconnect_backoff: Duration,
    /// The environment from which a program gets the few variables that every program needs; the process's own, read by
    /// `init`, if `None`.
    pub environment: Option<BTreeMap<String, String>>,
    /// The largest accepted answer, in bytes.
    pub limit: usize,
    /// Who shares a process. With [`Isolation::Call`] a remote server is called from another process of this
    /// program, which must have called `bridgehead::main_if_asked`; otherwise the server is refused.
    pub isolation: Isolation,
    /// What processes and calls may use. For a remote server without a process of its own, only `execution` and
    /// `output` can be limited.
    pub limits: Limits,
    /// Limits for single tools, by the server's names for them; an absent value falls back to `limits`. If calls
    /// share a process, only `execution` can be limited per tool.
    pub tool_limits: BTreeMap<String, Limits>,
    /// What processes may reach; everything, if absent.
    pub confinement: Option<Confinement>,
}

impl ProviderConfig {
    /// The defaults for an endpoint: 30 s per call, ten attempts to reconnect, the first after 1 s. Every call of a
    /// program's tool runs in its own process, with 256 MB and the other limits of such a call.
    pub fn new(namespace: ServerName, endpoint: Launch) -> Self {
        Self {
            namespace,
            endpoint,
            timeout: Duration::from_millis(30_000),
            max_retries: 10,
            reconnect_backoff: Duration::from_millis(1_000),
            environment: None,
            limit: GatewaySettings::default().max_message_bytes,
            isolation: Isolation::Call,
            limits: Limits::OF_A_CALL,
            tool_limits: BTreeMap::new(),
            confinement: None,
        }
    }

    /// Limits how long a call may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Gives the server up after this many failed attempts to reconnect.
    pub fn max_retries(self, attempts: u32) -> Self {
        Self { max_retries: attempts, ..self }
    }

    /// Pauses this long before the first attempt to reconnect.
    pub fn reconnect_backoff(self, pause: Duration) -> Self {
        Self { reconnect_backoff: pause, ..self }
    }

    /// Uses these variables instead of the process's own.
    pub fn environment(self, variables: BTreeMap<String, String>) -> Self {
        Self { environment: Some(variables), ..self }
    }

    /// Accepts answers of at most this many bytes.
    pub fn limit(self, bytes: usize) -> Self {
        Self { limit: bytes, ..self }
    }

    /// Decides who shares a process.
    pub fn isolation(self, isolation: Isolation) -> Self {
        Self { isolation, ..self }
    }

    /// Limits what processes and calls may use.
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Limits single tools, by the server's names for them.
    pub fn tool_limits(self, limits: BTreeMap<String, Limits>) -> Self {
        Self { tool_limits: limits, ..self }
    }

    /// Confines what processes may reach.
    pub fn confinement(self, confinement: Confinement) -> Self {
        Self { confinement: Some(confinement), ..self }
    }

    /// Calls that share a process share its limits, so limits of a single tool would silently not apply.
    fn check(&self) -> Result<(), ProviderError> {
        let of_processes = |limits: &Limits| Limits { execution: None, ..*limits };
        let mut unkept = self.tool_limits.iter().filter(|(_, own)| of_processes(own) != Limits::default());
        match unkept.next() {
            Some((tool, _)) if self.isolation != Isolation::Call => {
                let message = format!(
                    "`tool_limits` of tool `{tool}` limits more than `execution`, but calls of server `{}` share a process; \
                     limit the whole server, or set `isolation` to `Isolation::Call`",
                    self.namespace
                );
                Err(ProviderError::new(Code::ProviderInitFailed, message))
            }
            _ => Ok(()),
        }
    }
}

/// One call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Invocation {
    /// The tool, as `{namespace}__{tool}`.
    pub tool: String,
    /// Its arguments.
    pub arguments: Value,
    /// How long it may take, in place of the configuration's `timeout`; `limits.execution` applies in any case.
    pub timeout: Option<Duration>,
}

impl Invocation {
    /// A call of the tool `{namespace}__{tool}`.
    pub fn new(tool: impl Into<String>, arguments: Value) -> Self {
        Self { tool: tool.into(), arguments, timeout: None }
    }

    /// Limits how long it may take.
    #[must_use]
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self { timeout: timeout.into(), ..self }
    }
}

/// One answered call, including one that the tool marks as an error.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Execution {
    /// The tool's name, as it was called.
    pub tool: String,
    /// The result, unchanged.
    pub result: Raw,
    /// How long it took.
    pub duration: Duration,
    /// The id that the caller gave.
    pub correlation: CorrelationId,
    /// The server.
    pub namespace: ServerName,
}

impl Execution {
    /// The answer of a provider of another kind: the tool as it was called, and its unchanged result.
    pub fn new(
        (namespace, tool): (ServerName, impl Into<String>),
        result: Raw,
        duration: Duration,
        correlation: CorrelationId,
    ) -> Self {
        Self { tool: tool.into(), result, duration, correlation, namespace }
    }

    /// The result as data with its metadata. It was checked, so there is nothing to cast.
    pub fn envelope(&self) -> Envelope {
        let origin = ResultOrigin {
            server: self.namespace.to_string(),
            tool: self.tool.clone(),
            correlation_id: self.correlation.to_string(),
            latency: self.duration,
        };
        // It was parsed as an object before.
        Envelope::new(&self.result.decode().unwrap_or_default(), origin)
    }

    /// The result in the form agents use: one text, and the rest beside it.
    pub fn flat(&self) -> Flat {
        self.envelope().flat()
    }
}

/// Why a provider could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
#[non_exhaustive]
pub struct ProviderError {
    /// The kind of failure. Whether a retry may help, [`ProviderError::retryable`] knows best.
    pub code: Code,
    /// What happened, as text without secrets.
    pub message: String,
    retryable: bool,
    fault: Fault,
}

impl ProviderError {
    /// A failure of this kind. The message must not contain secrets.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: code.retryable(), fault: code.fault() }
    }

    /// A failure that no repetition ends, only `init`.
    fn until_init(message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::new(Code::ProviderUnavailable, message) }
    }

    /// The failure of a call before `init` or after `terminate`.
    fn not_initialised() -> Self {
        let message = "the provider is not initialised; call `init` first";
        Self { fault: Fault::Caller, ..Self::until_init(message) }
    }

    /// Whether a retry may succeed later.
    pub const fn retryable(&self) -> bool {
        self.retryable
    }

    /// Whose fault it is.
    pub const fn fault(&self) -> Fault {
        self.fault
    }

    /// Where to read about cause and cure.
    pub fn hint(&self) -> String {
        self.code.hint()
    }
}

/// An MCP server as a provider.
pub struct McpProvider {
    signals: Signals,
    active: Mutex<Option<Active>>,
}

#[derive(Clone)]
struct Active {
    upstream: Upstream,
    timeout: Duration,
}

impl fmt::Debug for McpProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpProvider").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl McpProvider {
    /// A provider that reports its life and its calls on `bus`. Does not connect yet.
    pub fn new(bus: Bus) -> Self {
        Self { signals: Signals::new(bus, None), active: Mutex::new(None) }
    }

    /// Counts and reports what happens to it.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Its tools, under the names to call them by, with the definitions as the server wrote them. Read from memory;
    /// empty until it was first connected.
    pub fn tools(&self) -> Vec<(String, Raw)> {
        let Some((namespace, known)) = self.known() else { return Vec::new() };
        let named = |tool: &Arc<Tool>| (exposed(&namespace, &tool.name), tool.definition.clone());
        known.tools.iter().map(named).collect()
    }

    /// The input schema of a tool, by the name to call it by; `None` if it offers no such tool. Read from memory,
    /// like [`Self::tools`].
    pub fn tool_schema(&self, name: &str) -> Option<Raw> {
        let (namespace, known) = self.known()?;
        let tool = known.tools.iter().find(|tool| is_named(name, &namespace, &tool.name))?;
        Object::parse(&tool.definition).ok()?.get("inputSchema")
    }

    /// What it offers, or offered when last connected.
    fn known(&self) -> Option<(ServerName, Arc<Listing>)> {
        let upstream = self.active.lock().as_ref()?.upstream.clone();
        let listing = match upstream.state() {
            UpstreamState::Ready(ready) => Arc::clone(&ready.tools),
            UpstreamState::Restarting(outage) => outage.last.clone()?,
            _ => return None,
        };
        Some((upstream.name().clone(), listing))
    }

    async fn start(&self, config: ProviderConfig) -> Result<(), ProviderError> {
        self.end().await;
        config.check()?;
        let server = ServerConfig {
            jitter: false,
            isolation: config.isolation,
            limits: config.limits,
            tools: config.tool_limits.into_iter().map(|(tool, limits)| (tool, limited(limits))).collect(),
            confinement: config.confinement,
            ..ServerConfig::new(config.namespace.clone(), config.endpoint, &GatewaySettings::default())
        };
        let policy = RestartPolicy {
            delays: Delays::Doubling { first: config.reconnect_backoff, most: Duration::from_secs(30) },
            attempts: Some(config.max_retries),
            ..RestartPolicy::ADAPTER
        };
        let environment = config.environment.unwrap_or_else(|| own_environment([&server]));
        let surroundings = Surroundings {
            environment: Arc::new(environment),
            limit: config.limit,
            credentials: None,
            changed: Arc::new(Notify::new()),
            notices: None,
            warm_up: Arc::new(Semaphore::new(STARTS)),
            signals: self.signals.clone(),
            records: ServerRecords::default(),
            shelf: None,
            policy,
        };
        let upstream = Registry::new().attach(server, surroundings);
        upstream.settled().await;
        let reason = match upstream.state() {
            UpstreamState::Ready(_) => {
                let before = self.active.lock().replace(Active { upstream, timeout: config.timeout });
                // Two `init` calls at once: the earlier one is stopped.
                if let Some(before) = before {
                    before.upstream.stop().await;
                }
                return Ok(());
            }
            UpstreamState::Restarting(outage) => outage.reason.clone(),
            UpstreamState::Failed(failure) => failure.reason.clone(),
            UpstreamState::Starting { .. } | UpstreamState::Asleep(_) | UpstreamState::Stopped => {
                "it was stopped".to_owned()
            }
        };
        let sandbox = matches!(upstream.state(), UpstreamState::Failed(failure) if failure.stage == FailureStage::Sandbox);
        upstream.stop().await;
        let message = format!("server `{}` did not come up: {reason}", config.namespace);
        let code = if sandbox { Code::SandboxUnavailable } else { Code::ProviderInitFailed };
        Err(ProviderError::new(code, message))
    }

    async fn run(
        &self,
        invocation: &Invocation,
        correlation: CorrelationId,
    ) -> Result<Execution, ProviderError> {
        let began = Instant::now();
        let active = self.active.lock().clone();
        let end = End::new(&self.signals, active.as_ref(), invocation, (correlation, began));
        let outcome = call(active, began, invocation, correlation).await;
        let duration = end.tell(outcome.as_ref().map(|(_, result)| result));
        let tool = invocation.tool.clone();
        outcome.map(|(namespace, result)| Execution { tool, result, duration, correlation, namespace })
    }

    async fn end(&self) {
        let active = self.active.lock().take();
        if let Some(active) = active {
            active.upstream.stop().await;
        }
    }
}

impl ProviderAdapter for McpProvider {
    fn init(&self, config: ProviderConfig) -> ProviderFuture<'_, Result<(), ProviderError>> {
        Box::pin(self.start(config))
    }

    fn execute<'a>(
        &'a self,
        invocation: &'a Invocation,
        correlation: CorrelationId,
    ) -> ProviderFuture<'a, Result<Execution, ProviderError>> {
        Box::pin(self.run(invocation, correlation))
    }

    fn health(&self) -> Health {
        match self.active.lock().as_ref().map(|active| active.upstream.state()) {
            Some(UpstreamState::Ready(_)) => Health::Healthy,
            Some(
                UpstreamState::Starting { .. } | UpstreamState::Restarting(_) | UpstreamState::Asleep(_),
            ) => Health::Degraded,
            Some(UpstreamState::Failed(_) | UpstreamState::Stopped) | None => Health::Unavailable,
        }
    }

    fn terminate(&self) -> ProviderFuture<'_, ()> {
        Box::pin(self.end())
    }
}

/// The time that one call has for everything.
#[derive(Clone, Copy)]
struct Budget {
    limit: Duration,
    ends: Instant,
    /// The setting that gave the limit.
    setting: &'static str,
}

impl Budget {
    /// The shorter of the caller's timeout and the execution limit.
    fn new(began: Instant, timeout: Duration, execution: Option<Duration>) -> Self {
        let (limit, setting) = match execution {
            Some(execution) if execution < timeout => (execution, "limits.execution"),
            _ => (timeout, "timeout"),
        };
        Self { limit, ends: began + limit.min(LONGEST), setting }
    }

    fn is_spent(&self) -> bool {
        Instant::now() >= self.ends
    }

    /// The error of a call whose budget ended before its server did `what` for `tool`.
    fn exceeded(&self, namespace: &ServerName, what: &str, tool: &str) -> ProviderError {
        let (limit, setting) = (self.limit.as_millis(), self.setting);
        let message = format!(
            "server `{namespace}` {what} tool `{tool}` within {limit} ms, its `{setting}` (tool failed: timeout)"
        );
        ProviderError::new(Code::ProviderTimeout, message)
    }
}

fn limited(limits: Limits) -> ToolOverride {
    ToolOverride { limits, ..ToolOverride::default() }
}

/// Reports how a call ended, exactly once, including that its caller dropped it.
struct End<'a> {
    signals: &'a Signals,
    server: Option<Arc<str>>,
    tool: &'a str,
    correlation: CorrelationId,
    began: Instant,
    told: bool,
}

impl<'a> End<'a> {
    fn new(
        signals: &'a Signals,
        active: Option<&Active>,
        invocation: &'a Invocation,
        (correlation, began): (CorrelationId, Instant),
    ) -> Self {
        let server = active.map(|active| Arc::from(active.upstream.name().as_ref()));
        Self { signals, server, tool: &invocation.tool, correlation, began, told: false }
    }

    /// Returns how long the call took.
    fn tell(mut self, outcome: Result<&Raw, &ProviderError>) -> Duration {
        self.told = true;
        self.emit(match outcome {
            Ok(result) => ExecutionOutcome::Result(result.as_str()),
            Err(error) => ExecutionOutcome::Failed {
                code: error.code.as_str(),
                retryable: error.retryable(),
                message: &error.message,
            },
        })
    }

    fn emit(&self, outcome: ExecutionOutcome<'_>) -> Duration {
        let took = self.began.elapsed();
        self.signals.emit(&Signal::ExecutionEnded(ExecutionEnded {
            correlation: self.correlation,
            server: self.server.as_ref(),
            tool: self.tool,
            outcome,
            took,
        }));
        took
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.emit(ExecutionOutcome::Cancelled);
        }
    }
}

async fn call(
    active: Option<Active>,
    began: Instant,
    invocation: &Invocation,
    correlation: CorrelationId,
) -> Result<(ServerName, Raw), ProviderError> {
    let Invocation { tool: name, arguments, timeout } = invocation;
    let Some(Active { upstream, timeout: usual }) = active else {
        return Err(ProviderError::not_initialised());
    };
    let namespace = upstream.name();
    let ready = connected(&upstream)?;
    let known = ready.tools.tools.iter().find(|tool| is_named(name, namespace, &tool.name));
    let Some(tool) = known else {
        let message = format!("server `{namespace}` offers no tool `{name}`");
        return Err(ProviderError::new(Code::ProviderToolUnknown, message));
    };
    if let Some(validator) = &tool.validator
        && let Err(issues) = validator.check_arguments(arguments)
    {
        let message = format!("the arguments do not fit the schema of tool `{name}`: {}", json!(issues));
        return Err(ProviderError::new(Code::ProviderInvalidInput, message));
    }
    let execution = upstream.config().limits_of(&tool.name).execution;
    let budget = Budget::new(began, timeout.unwrap_or(usual), execution);
    let result = match upstream.config().isolation {
        Isolation::Call => {
            // Killed when dropped, with or without an answer.
            let alone = upstream.one_shot(&tool.name).map_err(|error| refused(namespace, &error))?;
            let ready = alone.acquire(budget.ends).await.map_err(|error| {
                alone.suspect_behind();
                match budget.is_spent() {
                    true => budget.exceeded(namespace, "had no process ready for", &tool.name),
                    false => refused(namespace, &error),
                }
            })?;
            ask(&alone, &ready, tool, arguments, (budget, correlation)).await?
        }
        Isolation::Shared | Isolation::Session => {
            ask(&upstream, &ready, tool, arguments, (budget, correlation)).await?
        }
    };
    fits_output(name, tool, &result)?;
    Ok((namespace.clone(), result))
}

/// The connection, or at once the reason why there is none.
fn connected(upstream: &Upstream) -> Result<Arc<Ready>, ProviderError> {
    let refused = |reason: &str| format!("server `{}` is not connected: {reason}", upstream.name());
    let soon = |reason: &str| ProviderError::new(Code::ProviderUnavailable, refused(reason));
    Err(match upstream.state() {
        UpstreamState::Ready(ready) => return Ok(ready),
        UpstreamState::Restarting(outage) => soon(&format!("it is being reconnected: {}", outage.reason)),
        UpstreamState::Starting { .. } | UpstreamState::Asleep(_) => soon("it is being started"),
        UpstreamState::Failed(failure) => {
            let reason = format!("it was given up; call `init` again: {}", failure.reason);
            ProviderError::until_init(refused(&reason))
        }
        UpstreamState::Stopped => ProviderError::until_init(refused("it was terminated; call `init` again")),
    })
}

/// Why there is no process for a call.
fn refused(namespace: &ServerName, error: &Unavailable) -> ProviderError {
    let code = match error {
        Unavailable::Failed(failure) if failure.stage == FailureStage::Sandbox => Code::SandboxUnavailable,
        _ => Code::ProviderUnavailable,
    };
    ProviderError::new(code, format!("server `{namespace}` has no process for the call: {error}"))
}

async fn ask(
    upstream: &Upstream,
    ready: &Ready,
    tool: &Tool,
    arguments: &Value,
    (budget, correlation): (Budget, CorrelationId),
) -> Result<Raw, ProviderError> {
    let (namespace, name) = (upstream.name(), &tool.name);
    let call = ToolCall { name, arguments, correlation };
    let mut exchange = ready.link.open(Purpose::Ordinary);
    let asking = exchange.call_tool(ready.peer.revision.era(), call, &tool.headers);
    let (code, message) = match tokio::time::timeout_at(budget.ends, asking).await {
        Ok(Ok(Ok(result))) => return Ok(result),
        Ok(Ok(Err(error))) => {
            let code = Code::of_server_error(error.code());
            (code, format!("refused tool `{name}`: {} (code {})", error.message(), error.code()))
        }
        Ok(Err(error)) => {
            let message = match &error {
                LinkError::Crashed(_) | LinkError::Closed(_) => {
                    // Over HTTP nothing else reports that the server is gone.
                    upstream.suspect();
                    let reason = match &error {
                        LinkError::Crashed(crash) => format!(" ({})", crash.reason.as_str()),
                        _ => String::new(),
                    };
                    format!("was lost during the call{reason}: {error}")
                }
                LinkError::Refused { .. } => format!("turned the call away: {error}"),
                LinkError::Unusable(_) | LinkError::TooLarge { .. } => error.to_string(),
            };
            (error.code(), message)
        }
        Err(_) => {
            upstream.suspect();
            return Err(budget.exceeded(namespace, "did not answer", name));
        }
    };
    Err(ProviderError::new(code, format!("server `{namespace}` {message}")))
}

/// A structured result must match the tool's output schema.
fn fits_output(name: &str, tool: &Tool, result: &Raw) -> Result<(), ProviderError> {
    let members = Object::parse(result).map_err(|_| OutputError::Broken("it is not an object".to_owned()));
    members.and_then(|members| tool.check_output(&members, Effort::Full)).map_err(|why| {
        let message = format!("the result of tool `{name}` does not fit its output schema: {why}");
        ProviderError::new(Code::ProviderInvalidOutput, message)
    })
}

fn exposed(namespace: &ServerName, tool: &str) -> String {
    format!("{namespace}__{tool}")
}

/// Whether `name` is the exposed name of `tool`. The names are compared as a whole, never split.
fn is_named(name: &str, namespace: &ServerName, tool: &str) -> bool {
    let rest = name.strip_prefix(namespace.as_ref() as &str);
    rest.and_then(|rest| rest.strip_prefix("__")) == Some(tool)
}

#[cfg(test)]
mod tests;
