//! What a handler knows of its call, and how it talks to the call's client while it runs.
//!
//! Everything here works for clients of both eras and in the handlers of tools, prompts and resources. A legacy
//! client is asked during its request. A modern client gets the question as its result, and the handler's future
//! goes on when the client comes back with the answer: no handler runs twice for one call.
//!
//! What must stay true: a call that has ended sends its client nothing more, whoever still holds its context. The
//! call's clocks stand still while its client is asked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_wire::{Level, Method, Raw, Revision, notification};
use bytes::BytesMut;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::access::Principal;
use crate::caller::ProgressSink;
use crate::dialogue::questioner::Questioner;
use crate::dialogue::questions::MOST;
use crate::gate::{Call, Gate, Limits};
use crate::relay::rewrite::progress_for;

/// What the handler of a tool, a prompt or a resource knows of its call, and how it talks to the client: it may
/// report progress, write log lines, and ask questions. Clones share one call.
///
/// ```
/// use bridgehead_gateway::{NativeTool, ToolContext};
/// use serde_json::{Value, json};
///
/// let tool = NativeTool::new(
///     "index",
///     "Reads all files.",
///     json!({"type": "object"}),
///     |_: Value, cx: ToolContext| async move {
///         for file in 1..=3 {
///             cx.progress(f64::from(file), Some(3.0), Some("reading"));
///         }
///         Ok(json!({"files": 3, "asked by": cx.principal.as_str()}))
///     },
/// );
/// # drop(tool);
/// ```
#[derive(Clone)]
pub struct ToolContext {
    /// The call's correlation id.
    pub correlation: CorrelationId,
    /// Who calls.
    pub principal: Principal,
    pub(super) call: Arc<RunningCall>,
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("correlation", &self.correlation)
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

impl ToolContext {
    pub(super) fn new(gate: &Gate, call: &Call<'_>, name: &str) -> Self {
        let request = call.request;
        let sink = call.progress.as_ref();
        let running = RunningCall {
            name: name.to_owned(),
            correlation: call.correlation,
            revision: call.caller.revision,
            progress: sink.cloned().zip(request.meta.progress_token.as_ref().map(Raw::detached)),
            log: sink.cloned().zip(call.caller.log_level(request)),
            questioner: call.caller.questioner.clone(),
            patience: gate.question_timeout,
            began: call.began,
            state: Mutex::new(CallState {
                ended: false,
                progress: None,
                heard: Instant::now(),
                asking: 0,
                asking_since: call.began,
                asked: Duration::ZERO,
                visits: Vec::new(),
            }),
            answered: Notify::new(),
            asks: Notify::new(),
            ended: CancellationToken::new(),
        };
        Self {
            correlation: call.correlation,
            principal: call.caller.principal.clone(),
            call: Arc::new(running),
        }
    }

    /// Reports how far the call has come: `done` of `total`, if the total is known, with a message for people.
    ///
    /// The client gets it under its own token, in the order of these calls, and before the answer. A client that
    /// wants no progress gets none. Values that do not exceed the last one are dropped, because the protocol wants
    /// progress to increase; a client that does not read loses progress too. In every case the report counts as a
    /// sign of life: it restarts the clock of `request_timeout_ms`.
    ///
    /// It never waits, so it can be called from any thread.
    pub fn progress(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        self.call.report(done, total, message);
    }

    /// Sends the client a log line, if it asked for lines of this level. `data` is a text or any other value.
    ///
    /// The line is for the client only: the gateway does not log it. A client that does not read loses lines.
    pub fn log(&self, level: Level, data: impl Serialize) {
        self.call.log(level, &data);
    }

    /// Resolves when the call has ended: it was cancelled, it took too long, or its handler has returned.
    ///
    /// Cancelling a call drops the handler's future, so a handler needs no code for it: what the future holds is
    /// dropped with it. Use this for work that goes on elsewhere, such as a task of its own or another thread.
    ///
    /// ```
    /// # use bridgehead_gateway::{NativeTool, ToolContext};
    /// # use serde_json::{Value, json};
    /// let tool = NativeTool::new("search", "", json!({"type": "object"}), |_: Value, cx: ToolContext| async move {
    ///     let worker = tokio::task::spawn_blocking(move || {
    ///         let mut looked = 0_u32;
    ///         // A thread cannot be dropped: it has to look.
    ///         while looked < 1_000 && !cx.is_cancelled() {
    ///             looked += 1;
    ///             cx.progress(f64::from(looked), Some(1_000.0), None);
    ///         }
    ///         looked
    ///     });
    ///     Ok(json!({"looked": worker.await.map_err(|error| error.to_string())?}))
    /// });
    /// # drop(tool);
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.call.ended.clone().cancelled_owned()
    }

    /// Whether the call has ended, for code that cannot wait for [`cancelled`](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.call.ended.is_cancelled()
    }
}

/// A call while its handler runs.
pub(super) struct RunningCall {
    /// The tool, prompt or resource, as log lines name it.
    name: String,
    correlation: CorrelationId,
    pub(super) revision: Revision,
    /// Where progress goes, with the client's token.
    progress: Option<(ProgressSink, Raw)>,
    /// Where log lines go, with the lowest level that the client wants.
    log: Option<(ProgressSink, Level)>,
    pub(super) questioner: Option<Questioner>,
    /// How long the client has to answer a question.
    pub(super) patience: Duration,
    began: Instant,
    state: Mutex<CallState>,
    /// Wakes the clocks when the last open question is over.
    answered: Notify,
    /// Wakes the run when the first question is put.
    asks: Notify,
    pub(super) ended: CancellationToken,
}

struct CallState {
    ended: bool,
    /// The last progress that was reported.
    progress: Option<f64>,
    /// When the handler last gave a sign of life.
    heard: Instant,
    /// How many questions are open at the client.
    asking: usize,
    /// Since when, if there is one.
    asking_since: Instant,
    /// How long the client was asked before that.
    asked: Duration,
    /// The pages that the user agreed to open, by the ids that the client knows.
    visits: Vec<String>,
}

impl RunningCall {
    fn report(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        // Held until the notification is sent, so that two threads cannot reverse their order.
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        state.heard = Instant::now();
        if !done.is_finite() || state.progress.is_some_and(|last| done <= last) {
            return;
        }
        state.progress = Some(done);
        let Some((sink, first)) = &self.progress else { return };
        let Some(token) = sink.token(first) else { return };
        let mut params = json!({"progress": done});
        if let Some(total) = total.filter(|total| total.is_finite()) {
            params["total"] = json!(total);
        }
        if let Some(message) = message {
            params["message"] = json!(message);
        }
        let told = progress_for(&Raw::encode(&params), &token, self.revision);
        if !told.is_some_and(|told| sink.send(told)) {
            debug!(correlationId = %self.correlation, "the client does not read its progress; a notification was dropped");
        }
    }

    fn log(&self, level: Level, data: &impl Serialize) {
        let Some((sink, wanted)) = &self.log else { return };
        let state = self.state.lock();
        if state.ended || level < *wanted {
            return;
        }
        let params = Raw::encode(&json!({
            "level": level.as_str(),
            "logger": self.name,
            "data": serde_json::to_value(data).unwrap_or_default(),
        }));
        let mut line = BytesMut::new();
        notification(&mut line, Method::LogMessage.as_str(), Some(&params.into()));
        sink.send(line.freeze());
    }

    /// The time at which the call is over; `None` while its client is asked.
    pub(super) fn deadline(&self, limits: Limits) -> Option<Instant> {
        let state = self.state.lock();
        let (silent, total) = (state.heard + limits.silent, self.began + limits.total + state.asked);
        (state.asking == 0).then(|| silent.min(total))
    }

    /// Resolves when the client is no longer asked. May resolve too early.
    pub(super) async fn answered(&self) {
        self.answered.notified().await;
    }

    /// Resolves when the client is asked. May resolve too early.
    pub(super) async fn asks(&self) {
        self.asks.notified().await;
    }

    /// Stops the clocks until the guard is dropped, unless the call has ended or asks too much already.
    pub(super) fn begin_asking(self: &Arc<Self>) -> Result<Asking, NotNow> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(NotNow::Ended);
        }
        if state.asking >= MOST {
            return Err(NotNow::TooMany);
        }
        if state.asking == 0 {
            state.asking_since = Instant::now();
            self.asks.notify_one();
        }
        state.asking += 1;
        drop(state);
        Ok(Asking(Arc::clone(self)))
    }

    /// Remembers a page that the user agreed to open.
    pub(super) fn visits(&self, id: String) {
        self.state.lock().visits.push(id);
    }

    /// Tells the client that the pages it was sent to are done, when the handler has returned.
    pub(super) fn done(&self) {
        let Some(questioner) = &self.questioner else { return };
        let visits = std::mem::take(&mut self.state.lock().visits);
        for id in visits {
            let params = Raw::encode(&json!({"elicitationId": id}));
            questioner.tell(&Method::ElicitationComplete, &params.into());
        }
    }

    /// Ends the call for everyone who still holds its context.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.ended.cancel();
    }
}

/// Why nothing can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotNow {
    Ended,
    TooMany,
}

/// A question that is open. The clocks go on when the last one is dropped.
pub(super) struct Asking(Arc<RunningCall>);

impl Drop for Asking {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.asking -= 1;
        if state.asking == 0 {
            let (now, since) = (Instant::now(), state.asking_since);
            state.asked += now - since;
            state.heard = now;
            drop(state);
            self.0.answered.notify_one();
        }
    }
}
