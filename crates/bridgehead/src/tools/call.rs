//! One call: what may be said about it beforehand, and the future of its result.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::Roots;
use bridgehead_gateway::{DirectCall, Elicitation, Gateway, Principal, ProgressSink, Session, ToolError};
use bridgehead_wire::{Object, Raw, Traceparent};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::question::{ElicitationRequest, Handlers, SamplingRefused, SamplingRequest, SamplingResult};
use super::result::ToolResult;

/// How a call is made. Everything has a default, and the options of one call can be cloned for another.
///
/// ```
/// use bridgehead::tools::CallOptions;
/// use bridgehead::{CorrelationId, Elicitation, Traceparent};
/// use std::time::Duration;
///
/// let (told, mut progress) = tokio::sync::mpsc::channel(16);
/// let options = CallOptions::default()
///     .timeout(Duration::from_secs(60))
///     .correlation(CorrelationId::mint())
///     .trace(Traceparent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap())
///     .progress(told)
///     .roots(["file:///home/me/project"])
///     .on_elicitation(|asked| async move {
///         println!("the server asks: {}", asked.message);
///         Elicitation::Declined
///     });
/// # assert!(progress.try_recv().is_err());
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct CallOptions {
    timeout: Option<Duration>,
    correlation: Option<CorrelationId>,
    trace: Option<(Traceparent, Option<String>)>,
    progress: Option<mpsc::Sender<Progress>>,
    handlers: Handlers,
}

impl CallOptions {
    /// How long the call may take, whatever it waits for: a lock, a queue, a server that starts, the answer. The time stands
    /// still while a handler of this program answers a question. A call whose time is over fails with `PROVIDER_TIMEOUT`, and
    /// its server is told and looked after, as when the configured time is over: a process that these tools have for themselves
    /// (`isolation = "session"`) is restarted, any other server is probed. The limits of the configuration apply in any case.
    pub fn timeout(self, limit: Duration) -> Self {
        Self { timeout: Some(limit), ..self }
    }

    /// The id of the call in the record, the events and the logs, which the server gets too. By default each call gets a new
    /// one.
    pub fn correlation(self, id: CorrelationId) -> Self {
        Self { correlation: Some(id), ..self }
    }

    /// The place in a trace that the call continues.
    pub fn trace(self, parent: Traceparent) -> Self {
        Self { trace: Some((parent, None)), ..self }
    }

    /// The place in a trace that the call continues, and what tracing systems add to it (`tracestate`).
    pub fn trace_with_state(self, parent: Traceparent, state: impl Into<String>) -> Self {
        Self { trace: Some((parent, Some(state.into()))), ..self }
    }

    /// Where the server's progress goes, in its order, before the result. While the channel is full, progress is dropped; the
    /// call never waits for its reader.
    pub fn progress(self, to: mpsc::Sender<Progress>) -> Self {
        Self { progress: Some(to), ..self }
    }

    /// The URIs of the folders that the server may work in, for a server that asks for them (`roots/list`). Roots in the
    /// configuration of a server win over these.
    pub fn roots(mut self, uris: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.handlers.roots = Some(Roots::of(uris.into_iter().map(Into::into)));
        self
    }

    /// Answers what the server asks the user during the call. Without this, the server is told that it cannot ask.
    pub fn on_elicitation<F, R>(mut self, answer: F) -> Self
    where
        F: Fn(ElicitationRequest) -> R + Send + Sync + 'static,
        R: Future<Output = Elicitation<Value>> + Send + 'static,
    {
        self.handlers.elicitation = Some(Arc::new(move |asked| Box::pin(answer(asked))));
        self
    }

    /// Answers what the server asks the model during the call. Without this, the server is told that it cannot ask.
    pub fn on_sampling<F, R>(mut self, answer: F) -> Self
    where
        F: Fn(SamplingRequest) -> R + Send + Sync + 'static,
        R: Future<Output = Result<SamplingResult, SamplingRefused>> + Send + 'static,
    {
        self.handlers.sampling = Some(Arc::new(move |asked| Box::pin(answer(asked))));
        self
    }

    pub(super) fn into_call(
        self,
        tool: &str,
        arguments: Raw,
        principal: Principal,
        session: Session,
    ) -> DirectCall {
        let correlation = self.correlation.unwrap_or_else(CorrelationId::mint);
        DirectCall {
            principal,
            session,
            answers: self.handlers.answers(tool, correlation),
            tool: tool.to_owned(),
            arguments,
            correlation,
            trace: self.trace,
            timeout: self.timeout,
            progress: self.progress.map(|to| ProgressSink::function(move |note| tell(&to, &note))),
        }
    }
}

/// What a server reports about a call that it works on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// How far it is; this number only grows.
    pub progress: f64,
    /// What the number grows to, if that is known.
    pub total: Option<f64>,
    /// What it does at the moment, for people.
    pub message: Option<String>,
    /// The params of the notification, with everything that the server wrote.
    pub params: Raw,
}

/// Passes on a notification; returns whether there was room.
fn tell(to: &mpsc::Sender<Progress>, notification: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Told {
        progress: f64,
        total: Option<f64>,
        message: Option<String>,
    }
    let params =
        Raw::parse(notification.clone()).ok().and_then(|note| Object::parse(&note).ok()?.get("params"));
    let Some(params) = params else { return true };
    let Ok(Told { progress, total, message }) = params.decode() else { return true };
    // Detached, because a slow reader would otherwise hold the whole buffer that it arrived in.
    to.try_send(Progress { progress, total, message, params: params.detached() }).is_ok()
}

/// A call: a future of its result. The call begins when this is first polled; dropping it cancels the call, and the server is
/// told.
#[must_use = "a call begins when it is first polled"]
pub struct ToolCall {
    id: CorrelationId,
    running: BoxFuture<'static, Result<ToolResult, ToolError>>,
}

impl ToolCall {
    pub(super) fn new(gateway: &Gateway, call: DirectCall) -> Self {
        let (id, gateway) = (call.correlation, gateway.clone());
        let running = Box::pin(async move {
            let (began, name) = (Instant::now(), Arc::from(call.tool.as_str()));
            let answer = gateway.call_direct(call).await?;
            let (latency, signals) = (began.elapsed(), gateway.signals().clone());
            Ok(ToolResult { answer, name, correlation: id, latency, signals })
        });
        Self { id, running }
    }

    /// The id of the call, by which [`Tools::cancel`](super::Tools::cancel) finds it.
    pub fn id(&self) -> CorrelationId {
        self.id
    }
}

impl Future for ToolCall {
    type Output = Result<ToolResult, ToolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.running.as_mut().poll(context)
    }
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall").field("id", &self.id).finish_non_exhaustive()
    }
}
