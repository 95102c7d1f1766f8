//! A single server as a provider of tools, for agents that bring their own loop: initialise, execute, look at
//! its health, terminate.
//!
//! The same supervisor as behind the gateway keeps the connection, with a policy of its own: after ten vain
//! attempts it is given up, and only a new `init` brings it back. A call never waits for a reconnect: while there
//! is no connection it fails at once, and says that it may be repeated.
//!
//! A call has one budget of time, which runs from `execute` on and pays for all of it: the start of its process, the
//! sending and the answer. Whatever it waits for when the budget ends, that end is `PROVIDER_TIMEOUT`.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{
    Confinement, GatewaySettings, Isolation, Launch, Limits, Server, ServerName, ToolOverride,
};
use bridgehead_events::{Bus, ExecutionEnded, ExecutionOutcome, Signal, Signals};
use bridgehead_schema::{Effort, Envelope, Flat, Origin};
use bridgehead_wire::{Code, Object, Raw, code};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::catalog::{Listing, OutputError, Tool};
use crate::link::call::ToolCall;
use crate::link::{LinkError, Purpose};
use crate::server::policy::{Delays, RestartPolicy};
use crate::server::record::ServerRecords;
use crate::server::{FailureStage, Ready, Surroundings, Unavailable, Upstream, UpstreamState};
use crate::sharing::registry::Registry;

/// How many processes of a provider are started at the same time.
const STARTS: usize = 4;
/// A call that may take longer than this, a year, may take as long as it likes.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The answer to something asked of a provider, on its way.
pub type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something that offers tools to an agent.
pub trait ProviderAdapter: Send + Sync {
    /// Connects and reads what is offered. Whatever was there before is terminated first.
    fn init(&self, config: ProviderConfig) -> ProviderFuture<'_, Result<(), ProviderError>>;

    /// Runs one tool.
    fn execute<'a>(
        &'a self,
        invocation: &'a Invocation,
        correlation: CorrelationId,
    ) -> ProviderFuture<'a, Result<Execution, ProviderError>>;

    /// How it is.
    fn health(&self) -> Health;

    /// Ends everything and returns when nothing is left. A second time does nothing.
    fn terminate(&self) -> ProviderFuture<'_, ()>;
}

/// How a provider is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Connected.
    Healthy,
    /// Not connected, and being reconnected.
    Degraded,
    /// Given up, or never initialised; left only by `init`.
    Unavailable,
}

/// What a provider is made of. Everything but the endpoint has a default.
#[derive(Debug, Clone)]
pub struct ProviderConfig {
    /// What its tools are called after: `{namespace}__{tool}`.
    pub namespace: ServerName,
    /// The program to run, or where the server is and how it is spoken to.
    pub endpoint: Launch,
    /// How long a call may take, the start of its process included. The lesser of this and `limits.execution` counts.
    pub timeout: Duration,
    /// How often it is tried to reconnect before it is given up; each outage has as many attempts.
    pub max_retries: u32,
    /// The pause before the first of these; each later one is twice as long, up to 30 s. It begins anew once a
    /// connection has held for a minute.
    pub reconnect_backoff: Duration,
    /// The variables from which a program gets the few that every program needs.
    pub environment: BTreeMap<String, String>,
    /// The largest answer that is taken, in bytes.
    pub limit: usize,
    /// Who shares a process. With [`Isolation::Call`] a server that is reached instead of run is called from another
    /// process of this program, which has to have called `bridgehead::main_if_asked`; without it such a server is refused.
    pub isolation: Isolation,
    /// What processes and calls may use. Of a server that is reached and not called from a process of its own, only
    /// `execution` and `output` can be limited.
    pub limits: Limits,
    /// What calls of single tools may use instead, by the names that the server gives them; where these say nothing, as
    /// `limits` says. Where calls share a process, only `execution` can be limited for one of them.
    pub tool_limits: BTreeMap<String, Limits>,
    /// What they may reach; everything, if absent.
    pub confinement: Option<Confinement>,
}

impl ProviderConfig {
    /// The defaults for an endpoint: 30 s a call, ten attempts to reconnect, the first after 1 s; every call of a
    /// program's tool in a process of its own, with 256 MB and the other limits of such a call.
    pub fn new(namespace: ServerName, endpoint: Launch) -> Self {
        Self {
            namespace,
            endpoint,
            timeout: Duration::from_millis(30_000),
            max_retries: 10,
            reconnect_backoff: Duration::from_millis(1_000),
            environment: BTreeMap::new(),
            limit: GatewaySettings::default().max_message_bytes,
            isolation: Isolation::Call,
            limits: Limits::OF_A_CALL,
            tool_limits: BTreeMap::new(),
            confinement: None,
        }
    }

    /// Calls that share a process share its limits: one of a single tool would silently not be kept.
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
pub struct Invocation {
    /// The tool, as `{namespace}__{tool}`.
    pub tool: String,
    /// Its arguments.
    pub arguments: Value,
    /// How long it may take, if not as long as the configuration's `timeout`; `limits.execution` counts in any case.
    pub timeout: Option<Duration>,
}

/// One call that was answered, also where the tool calls its answer an error.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The tool, as it was called.
    pub tool: String,
    /// The result as it came.
    pub result: Raw,
    /// How long it took.
    pub duration: Duration,
    /// The id that was given.
    pub correlation: CorrelationId,
    /// The server.
    pub namespace: ServerName,
}

impl Execution {
    /// The result as data and what is known about it. It was checked, so there is nothing to cast.
    pub fn envelope(&self) -> Envelope {
        let origin = Origin {
            server: self.namespace.to_string(),
            tool: self.tool.clone(),
            correlation_id: self.correlation.to_string(),
            latency: self.duration,
        };
        // It was read as an object before.
        Envelope::new(&self.result.decode().unwrap_or_default(), origin)
    }

    /// The result as agents take it: one text, and the rest beside it.
    pub fn flat(&self) -> Flat {
        self.envelope().flat()
    }
}

/// Why a provider did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
pub struct ProviderError {
    /// Which failure it is; it knows whether a repetition may help.
    pub code: Code,
    /// What happened, in words, without secrets.
    pub message: String,
}

impl ProviderError {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Whether the same may succeed later.
    pub fn retryable(&self) -> bool {
        self.code.retryable()
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
    /// A provider that tells `bus` of its life and its calls. Connects nothing yet.
    pub fn new(bus: Bus) -> Self {
        Self { signals: Signals::new(bus, None), active: Mutex::new(None) }
    }

    /// Where what happens to it is counted and told.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// What it offers, under the names to call it by, with the definitions as the server wrote them. From memory;
    /// nothing while it was never connected.
    pub fn tools(&self) -> Vec<(String, Raw)> {
        let Some((namespace, known)) = self.known() else { return Vec::new() };
        let named = |tool: &Arc<Tool>| (exposed(&namespace, &tool.name), tool.definition.clone());
        known.tools.iter().map(named).collect()
    }

    /// The input schema of a tool, by the name to call it by; none for a tool that it does not offer. From memory, like
    /// [`Self::tools`].
    pub fn tool_schema(&self, name: &str) -> Option<Raw> {
        let (namespace, known) = self.known()?;
        let tool = known.tools.iter().find(|tool| is_named(name, &namespace, &tool.name))?;
        Object::parse(&tool.definition).ok()?.get("inputSchema")
    }

    /// What it offers, or offered when it was last connected.
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
        let server = Server {
            jitter: false,
            isolation: config.isolation,
            limits: config.limits,
            tools: config.tool_limits.into_iter().map(|(tool, limits)| (tool, limited(limits))).collect(),
            confinement: config.confinement,
            ..Server::new(config.namespace.clone(), config.endpoint, &GatewaySettings::default())
        };
        let policy = RestartPolicy {
            delays: Delays::Doubling { first: config.reconnect_backoff, most: Duration::from_secs(30) },
            attempts: Some(config.max_retries),
            ..RestartPolicy::ADAPTER
        };
        let surroundings = Surroundings {
            environment: Arc::new(config.environment),
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
                // Two at once: the one that came first goes.
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

/// The time that one call has, for all that it does.
#[derive(Clone, Copy)]
struct Budget {
    limit: Duration,
    ends: Instant,
    /// What set it.
    setting: &'static str,
}

impl Budget {
    /// The lesser of what the caller gives and what any call may run.
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

    /// The error of a call whose budget ended while its server still had to do `what` for `tool`.
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

/// Says how one call ended, exactly once: also that its caller dropped it.
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

    /// How long it took.
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
        let message = "the provider is not initialised; call `init` first";
        return Err(ProviderError::new(Code::ProviderUnavailable, message));
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
            // Killed when it is dropped, answer or not.
            let alone = upstream.one_shot(&tool.name).map_err(|error| refused(namespace, &error))?;
            let ready = alone.acquire(budget.ends).await.map_err(|error| match budget.is_spent() {
                true => budget.exceeded(namespace, "had no process ready for", &tool.name),
                false => refused(namespace, &error),
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

/// The connection, or at once why there is none.
fn connected(upstream: &Upstream) -> Result<Arc<Ready>, ProviderError> {
    let reason = match upstream.state() {
        UpstreamState::Ready(ready) => return Ok(ready),
        UpstreamState::Restarting(outage) => format!("it is being reconnected: {}", outage.reason),
        UpstreamState::Failed(failure) => format!("it was given up; call `init` again: {}", failure.reason),
        UpstreamState::Starting { .. } | UpstreamState::Asleep(_) => "it is being started".to_owned(),
        UpstreamState::Stopped => "it was terminated".to_owned(),
    };
    let message = format!("server `{}` is not connected: {reason}", upstream.name());
    Err(ProviderError::new(Code::ProviderUnavailable, message))
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
            let code = match error.code() {
                code::INVALID_PARAMS => Code::ProviderInvalidInput,
                code::INTERNAL_ERROR => Code::ProviderUnavailable,
                _ => Code::ProviderInvalidOutput,
            };
            (code, format!("refused tool `{name}`: {} (code {})", error.message(), error.code()))
        }
        Ok(Err(error)) => {
            let message = match &error {
                LinkError::Crashed(_) | LinkError::Closed(_) => {
                    // Over HTTP nothing else tells that the server is gone.
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

/// What a tool promises of its structured answers, it has to keep.
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

/// Whether `name` is the exposed name of `tool`; compared as a whole, never taken apart.
fn is_named(name: &str, namespace: &ServerName, tool: &str) -> bool {
    let rest = name.strip_prefix(namespace.as_ref() as &str);
    rest.and_then(|rest| rest.strip_prefix("__")) == Some(tool)
}

#[cfg(test)]
mod tests;
