//! Calls by the program that embeds the gateway: a function call instead of a message, and a typed error instead of a
//! JSON-RPC one.
//!
//! Such a call passes the same gate as every other. The program is asked during its call, like a legacy client, and is not
//! remembered between calls, like a modern one. What must stay true: the result is the server's, byte for byte; dropping the
//! future cancels the call; a call that [`Gateway::cancel_call`] ends is recorded as cancelled, and one whose `timeout` ends is
//! recorded as failed.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_upstream::Tool;
use bridgehead_wire::{
    Code, Fault, Method, Object, Raw, RequestMeta, Revision, RpcError, Traceparent, key, too_deep,
};
use futures_util::FutureExt;
use serde_json::Value;
use tracing::Instrument;

use super::{CalledTool, FoundTool, span_of};
use crate::access::Principal;
use crate::caller::{Caller, ClientRequest, ClientTransport, ProgressSink};
use crate::catalog::Target;
use crate::dialogue::questioner::{Answers, Questioner};
use crate::error::GatewayError;
use crate::gate::{Call, TimeLimit};
use crate::gateway::Gateway;
use crate::life::CancelReason;
use crate::life::session::Session;
use crate::relay::request::Outcome;
use crate::relay::trace::Trace;

/// How many mistakes in the arguments the text of an error names.
const SHOWN_ISSUES: usize = 3;

/// A tool call by the embedding program.
#[derive(Debug)]
pub struct DirectCall {
    /// On whose behalf it is made.
    pub principal: Principal,
    /// What it belongs to: processes that are not shared, and its end. An ended session is refused.
    pub session: Session,
    /// The offered name of the tool.
    pub tool: String,
    /// The arguments: an object.
    pub arguments: Raw,
    /// Its id in the record, the events and the logs; the server gets it too.
    pub correlation: CorrelationId,
    /// The trace that it belongs to, and what tracing systems add to it.
    pub trace: Option<(Traceparent, Option<String>)>,
    /// How long it may take, whatever it waits for, except for the program's own answers.
    pub timeout: Option<Duration>,
    /// Where its progress goes.
    pub progress: Option<ProgressSink>,
    /// What the server may ask the program meanwhile; nothing, if absent.
    pub answers: Option<Answers>,
}

/// The answer of a tool, also one that the tool marks as an error.
#[derive(Debug, Clone)]
pub struct DirectResult {
    /// The result, as the server wrote it.
    pub result: Raw,
    /// Whether the tool marks it as an error.
    pub is_error: bool,
    /// The server; `None` for a Rust tool.
    pub server: Option<Arc<str>>,
    /// The tool as its server describes it; `None` for a Rust tool.
    pub tool: Option<Arc<Tool>>,
}

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolError(Box<Failed>);

#[derive(Debug, Clone, PartialEq)]
struct Failed {
    error: GatewayError,
    tool: Arc<str>,
    correlation: CorrelationId,
    rpc: Option<RpcError>,
}

impl ToolError {
    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.error.code
    }

    /// Who has to act.
    pub fn fault(&self) -> Fault {
        self.0.error.fault()
    }

    /// Whether the same call may succeed later. If [`ToolError::may_have_run`] says so, the tool would then run twice.
    pub fn retryable(&self) -> bool {
        self.0.error.retryable()
    }

    /// Whether the tool may have done its work, all or some of it.
    pub fn may_have_run(&self) -> bool {
        self.0.error.may_have_run
    }

    /// What happened, for people, without secrets.
    pub fn message(&self) -> &str {
        &self.0.error.message
    }

    /// Where to read about the cause and the cure.
    pub fn hint(&self) -> String {
        self.code().hint()
    }

    /// Details for programs, such as `issues` with each mistake in the arguments.
    pub fn details(&self) -> Option<&Value> {
        self.0.error.details.as_ref()
    }

    /// When the same call may succeed, if a limit refused it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.error.retry_after()
    }

    /// The server that was called; `None` for a Rust tool and for a name that no server offers.
    pub fn server(&self) -> Option<&str> {
        self.0.error.server.as_deref()
    }

    /// The tool, by the name that was called.
    pub fn tool(&self) -> &str {
        &self.0.tool
    }

    /// The id of the call.
    pub fn correlation(&self) -> CorrelationId {
        self.0.correlation
    }

    /// The server's own JSON-RPC error, if it answered with one.
    pub fn rpc(&self) -> Option<&RpcError> {
        self.0.rpc.as_ref()
    }
}

impl std::fmt::Display for ToolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code(), self.message())?;
        write_issues(f, self.details())?;
        write!(f, " ({})", self.hint())
    }
}

/// The first mistakes in the arguments, each with its place.
fn write_issues(f: &mut std::fmt::Formatter<'_>, details: Option<&Value>) -> std::fmt::Result {
    let issues = details.and_then(|details| details["issues"].as_array()).map_or(&[][..], Vec::as_slice);
    for issue in issues.iter().take(SHOWN_ISSUES) {
        let text = |name: &str| issue[name].as_str().unwrap_or_default();
        match text("path") {
            "" => write!(f, "; {}", text("message"))?,
            path => write!(f, "; {path}: {}", text("message"))?,
        }
    }
    match issues.len().saturating_sub(SHOWN_ISSUES) {
        0 => Ok(()),
        more => write!(f, "; and {more} more"),
    }
}

impl std::error::Error for ToolError {}

impl Gateway {
    /// Calls a tool for the embedding program. Dropping the future cancels the call: the server is told.
    ///
    /// # Errors
    /// If there is no result. A result that the tool marks as an error is a result.
    #[doc(hidden)]
    pub async fn call_direct(&self, asked: DirectCall) -> Result<DirectResult, ToolError> {
        let (session, correlation) = (asked.session.clone(), asked.correlation);
        let tool: Arc<str> = asked.tool.as_str().into();
        // Watched before the session is looked at, so that a session that ends now either cancels this call or refuses it.
        let mut watched = self.inner().gate.cancels.watch_id(session.number(), &tool, correlation);
        let failed = |error| ToolError(Box::new(Failed { error, tool, correlation, rpc: None }));
        let mut running = pin!(AssertUnwindSafe(self.run_direct(asked)).catch_unwind());
        let ended = poll_fn(|context| {
            if let Some(reason) = watched.cancelled() {
                return Poll::Ready(Err(reason));
            }
            match running.as_mut().poll(context) {
                Poll::Ready(outcome) => Poll::Ready(Ok(outcome)),
                Poll::Pending => {
                    watched.wait(context).map_or(Poll::Pending, |reason| Poll::Ready(Err(reason)))
                }
            }
        });
        match ended.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => {
                Err(failed(self.panicked_while(Method::ToolsCall.as_str(), correlation, &*panic)))
            }
            // Returning drops the call, which records it as cancelled and tells the server.
            Err(_) if session.is_ended() => Err(failed(closed().after_sending())),
            Err(_) => {
                let message = "the program has cancelled the call";
                Err(failed(GatewayError::new(Code::Cancelled, message).after_sending()))
            }
        }
    }

    /// Cancels the running calls with this id in the session: the server is told, and each call ends with the code
    /// `cancelled`. Returns whether there was any.
    pub fn cancel_call(&self, session: &Session, id: CorrelationId) -> bool {
        self.inner().gate.cancels.cancel_id(session.number(), id, CancelReason::Client)
    }

    /// Ends a session of the embedding program: its servers stop, and its direct calls end, now and later, with
    /// `PROVIDER_UNAVAILABLE`.
    pub fn end_direct(&self, session: &Session) {
        session.end();
        self.inner().gate.cancels.cancel_session(session.number(), CancelReason::Client);
    }

    async fn run_direct(&self, asked: DirectCall) -> Result<DirectResult, ToolError> {
        let DirectCall {
            principal,
            session,
            tool,
            arguments,
            correlation,
            trace,
            timeout,
            progress,
            answers,
        } = asked;
        let time = timeout.map(|limit| Arc::new(TimeLimit::new(limit)));
        let questioner = answers.map(|answers| Questioner::function(answers, time.clone()));
        let (revision, transport) = (Revision::MODERN, ClientTransport::Library);
        let caller = Caller { principal, revision, transport, session, questioner };
        let request = request(&tool, &arguments, trace, progress.is_some());
        let found = if caller.session.is_ended() {
            FoundTool::refused(closed())
        } else if too_deep(arguments.bytes()) {
            let message = format!("the arguments of tool `{tool}` nest too deeply");
            FoundTool::refused(GatewayError::new(Code::InvalidParams, message))
        } else {
            self.find_tool(&caller.principal, &tool, time.as_deref()).await
        };
        // A call that has no route fails in the gate without waiting, and its error says more than that its time is over.
        let time = time.filter(|_| found.route.is_ok());
        let mut call = Call { time, ..Call::begin(&caller, &request, correlation, progress) };
        let span = span_of(&call, &tool);
        call.trace = Trace::of(&span, &request.meta, correlation);
        let called = CalledTool::of(&tool, found, arguments);
        let outcome = pin!(self.inner().gate.pass(&call, &called)).instrument(span).await;
        called.direct(correlation, outcome)
    }
}

impl CalledTool {
    /// What the embedding program gets for its call.
    fn direct(self, correlation: CorrelationId, outcome: Outcome) -> Result<DirectResult, ToolError> {
        let (error, rpc) = match outcome {
            Outcome::Result(result, reply) if reply.complete().is_some() => {
                let tool = match self.route.as_ref().map(|route| &route.target) {
                    Ok(Target::Upstream { tool, .. }) => Some(Arc::clone(tool)),
                    Ok(Target::Native(_)) | Err(_) => None,
                };
                let server = self.routed_server().cloned();
                return Ok(DirectResult { result, is_error: reply.is_error, server, tool });
            }
            Outcome::Relayed(rpc) => {
                let (code, server) = (Code::of_server_error(rpc.code()), self.routed_server());
                let server = server.map_or("the gateway", |server| server);
                let message = format!(
                    "server `{server}` refused tool `{}`: {} (code {})",
                    self.name,
                    rpc.message(),
                    rpc.code()
                );
                (GatewayError::new(code, message).after_sending(), Some(rpc))
            }
            other => (other.failure(), None),
        };
        let server = self.routed_server().or(error.server.as_ref()).cloned();
        let error = GatewayError { server, ..error };
        Err(ToolError(Box::new(Failed { error, tool: self.name, correlation, rpc })))
    }
}

/// The request that a client would have sent.
fn request(
    tool: &str,
    arguments: &Raw,
    trace: Option<(Traceparent, Option<String>)>,
    progress: bool,
) -> ClientRequest {
    let members = Object::empty();
    let mut edit = members.edit();
    edit.set("name", Raw::string(tool)).set("arguments", arguments.clone());
    if let Some((parent, state)) = trace {
        let mut meta = members.edit();
        meta.set(key::TRACEPARENT, Raw::string(&parent.to_string()));
        if let Some(state) = state {
            meta.set(key::TRACESTATE, Raw::string(&state));
        }
        edit.set(key::META, meta.finish());
    }
    // What was just written is an object with a readable `_meta`.
    let params = Object::parse(&edit.finish().to_raw()).unwrap_or_else(|_| Object::empty());
    let mut meta = RequestMeta::read(Some(&params)).unwrap_or_else(|_| RequestMeta::empty());
    meta.progress_token = progress.then(|| Raw::literal("1"));
    ClientRequest { method: Method::ToolsCall, params, meta, id: None }
}

/// The error of a call whose session has ended.
fn closed() -> GatewayError {
    let message = "the tools were closed by the program that opened them; start new `Tools`";
    GatewayError::new(Code::ProviderUnavailable, message).ended_by_caller()
}
