//! One request carried to a server and its answer back, whatever it is about: a tool, a prompt, a resource.
//!
//! What all surfaces share is here: the queue, the server that may have to come up first, the clocks, progress,
//! questions back to the client, and what each way to fail is called. What a surface does before and after is its
//! own; dropping the future cancels the request.

use std::pin::pin;
use std::time::Duration;

use bridgehead_config::{Isolation, ResourceUris, Roots, Server};
use bridgehead_events::{Line, Signals, WaitEnd};
use bridgehead_schema::HeaderParameter;
use bridgehead_upstream::{CrashReason, FailureStage, Keeper, Lease, Unavailable, Upstream};
use bridgehead_wire::{Code, Era, Method, Raw, RpcError, Spliced, code};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{Instrument, debug, debug_span};

use super::conversation::{Clocks, Conversation, Progress};
use crate::dialogue::questions::in_time;
use crate::dialogue::rounds::Stop;
use crate::error::CallError;
use crate::gate::Call;
use crate::relay::queue::{NoPermit, Queue, QueueSlot, Wait};
use crate::relay::rewrite::{Input, Reply, Rewrite};
use crate::relay::uris::result_outward;

/// How a request ended, if it was not dropped.
pub(crate) enum Outcome {
    /// A result, of an upstream or of a Rust tool.
    Result(Raw, Reply),
    /// A result of our own, as the client gets it.
    Prepared(Spliced),
    /// The upstream's own JSON-RPC error, passed on.
    Relayed(RpcError),
    /// Our own failure.
    Failed(CallError),
}

/// One request for a server.
pub(crate) struct RelayedRequest<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) target: RelayTarget<'a>,
}

/// What a request is about, on both sides.
pub(crate) struct RelayTarget<'a> {
    /// What it is called in messages.
    pub(crate) kind: &'static str,
    /// The name that the client used.
    pub(crate) offered: &'a str,
    /// The name that the server knows it by.
    pub(crate) own: &'a str,
    /// What in the params must become another for the server.
    pub(crate) rewrite: Option<Rewrite>,
    /// Arguments that travel as headers too.
    pub(crate) headers: &'a [HeaderParameter],
    /// Whether asking twice does no more than asking once.
    pub(crate) repeatable: bool,
}

/// How often a call is sent at the most when its server is lost under it.
pub(super) const MOST_SENDS: usize = 3;

impl RelayedRequest<'_> {
    /// Sends the request, and sends it again where its server was lost and doing it twice is no question. `waited` is
    /// told how long the wait in the queue was, if there was one, also when it is given up halfway.
    pub(crate) async fn run(
        &self,
        upstream: &Upstream,
        queue: &Queue,
        signals: &Signals,
        waited: impl FnOnce(Duration),
    ) -> Result<Outcome, CallError> {
        let limits = upstream.config();
        let began = Instant::now();
        let mut last = self.call.began + limits.max_total;
        if let Some(most) = execution(limits, self) {
            last = last.min(began + most);
        }
        let permit = match queue.try_enter() {
            Some(permit) => permit,
            None => {
                let mut wait = Wait::new(signals, Line::Queue, began, waited);
                let slot = queue.enter(last.min(began + limits.request_timeout));
                let slot = slot.instrument(debug_span!("queue")).await;
                wait.end = slot.as_ref().map_or_else(NoPermit::end, |_| WaitEnd::Turn);
                drop(wait);
                slot.map_err(|error| {
                    let message = format!("server `{}` cannot be called now: {error}", upstream.name());
                    CallError::new(Code::ProviderUnavailable, message)
                })?
            }
        };
        let mut slot = QueueSlot::new(queue, permit);
        let own = self.call.caller.session.uses(upstream, self.call.caller.era());
        let own = own.map_err(|error| unavailable(upstream, &error))?;
        let upstream = own.as_ref().unwrap_or(upstream);
        // A tool may have a process for each call; whatever else there is to ask is asked of the one that all share.
        let alone = limits.isolation == Isolation::Call && self.call.request.method == Method::ToolsCall;
        let abilities = self.call.caller.abilities();
        let lease = if own.is_none() && !alone && abilities.answers_any() {
            let mut whose = self.call.caller.session.remembered_by(self.call.caller.era());
            let asked = Instant::now();
            if self.call.caller.era() == Era::Modern && upstream.wants_roots(abilities) {
                let asking = Box::pin(self.ask_roots(limits.question_timeout));
                match (Clocks { last: &mut last, slot: &mut slot }).stand_still(asking).await {
                    Ok(keeper) => whose = Some(keeper),
                    Err(stop) => return self.stopped(upstream.name().as_ref(), stop),
                }
            }
            // Boxed, like all that is rare: the future of every call would be as large as the largest of them.
            let deadline = last.min(began + asked.elapsed() + limits.request_timeout);
            let lease = upstream.lease(abilities, whose, deadline);
            Box::pin(lease).await.map_err(|error| unavailable(upstream, &error))?
        } else {
            None
        };
        let upstream = lease.as_ref().map_or(upstream, Lease::upstream);
        let mut sends = Sends::default();
        let mut progress = Progress::default();
        loop {
            let deadline = last.min(Instant::now() + limits.request_timeout);
            // Killed when it is dropped, answer or not.
            let one_shot = alone.then(|| upstream.one_shot(self.target.own)).transpose();
            let one_shot = one_shot.map_err(|error| unavailable(upstream, &error))?;
            let upstream = one_shot.as_deref().unwrap_or(upstream);
            let ready = pin!(upstream.acquire(deadline)).instrument(debug_span!("acquire")).await;
            let again = sends.count();
            // One that ended before it served has run nothing; the next may do better.
            if alone && again && matches!(&ready, Err(Unavailable::Failed(_))) {
                continue;
            }
            let ready = ready.map_err(|error| unavailable(upstream, &error))?;
            let mut conversation = Conversation {
                relayed: self,
                upstream,
                ready: &ready,
                clocks: Clocks { last: &mut last, slot: &mut slot },
                progress: &mut progress,
            };
            let sending = pin!(conversation.hold());
            match sending.instrument(debug_span!("send", attempt = sends.0)).await {
                Err(lost)
                    if lost.code == Code::ProviderCrashed && again && self.may_repeat(upstream, &lost) =>
                {
                    debug!(correlationId = %self.call.correlation, name = self.target.offered, "the server was lost; the request is sent again");
                }
                outcome => return outcome,
            }
        }
    }

    /// Asks the client for its roots, before its call is sent to whoever is kept for these.
    async fn ask_roots(&self, patience: Duration) -> Result<Keeper, Stop> {
        let method = Method::RootsList;
        let Some(questioner) = &self.call.caller.questioner else {
            return Err(Stop::Unusable("it asks for roots, which this client did not declare".into()));
        };
        debug!(correlationId = %self.call.correlation, "the client is asked for its roots first");
        let asked = questioner.ask(&method, &Raw::literal("{}").into(), patience);
        let answer = match in_time(&method, asked, patience).await {
            Ok(answer) => answer,
            Err(error) => return Err(Stop::Unanswered(method, error)),
        };
        let roots = Roots::answered(answer.as_str()).ok_or_else(|| {
            Stop::Unusable("its client answered with something that is no list of roots".into())
        })?;
        Ok(Keeper::Roots { principal: self.call.caller.principal.shared(), roots })
    }

    /// An outcome that the client's revision has no code for, said to the model that called.
    pub(super) fn in_words(&self, message: &str, data: Option<Raw>) -> Result<Outcome, CallError> {
        if self.call.request.method != Method::ToolsCall {
            return Ok(Outcome::Relayed(RpcError::new(code::INTERNAL_ERROR, message)));
        }
        let more = data.map(|data| format!("\n{}", data.as_str())).unwrap_or_default();
        let text = format!("{message}{more}");
        read(
            Raw::encode(&json!({"content": [{"type": "text", "text": text}], "isError": true})),
            Input::Refused,
        )
    }

    /// How a request ends whose server asked and got no answer.
    pub(super) fn stopped(&self, server: &str, stop: Stop) -> Result<Outcome, CallError> {
        match stop {
            Stop::Unusable(reason) => {
                let message = format!("server `{server}`: {reason}");
                Err(CallError::new(Code::ProviderInvalidOutput, message).after_sending())
            }
            Stop::Unanswered(method, error) => {
                let message = format!(
                    "server `{server}` asked the client for `{method}`, which failed: {}",
                    error.message()
                );
                self.in_words(&message, None)
            }
        }
    }

    /// Whether a call whose server was lost may be sent again.
    fn may_repeat(&self, upstream: &Upstream, lost: &CallError) -> bool {
        // Whoever met a limit meets it again.
        let limit =
            |details: &Value| details["reason"].as_str().is_some_and(|reason| reason.ends_with("_limit"));
        if lost.details.as_ref().is_some_and(limit) {
            return false;
        }
        upstream.config().retry.permits(lost.may_have_run, self.target.repeatable)
    }
}

/// How often a request has been sent.
#[derive(Default)]
struct Sends(usize);

impl Sends {
    /// Counts one more; says whether there may be another after it.
    fn count(&mut self) -> bool {
        self.0 += 1;
        self.0 < MOST_SENDS
    }
}

/// POOL-10: a process that one session has for itself is started anew when it kept a call waiting for too long.
pub(crate) fn restart_own(upstream: &Upstream) -> bool {
    upstream.config().isolation == Isolation::Session && upstream.is_process() && upstream.restart()
}

/// An outcome whose resources are addressed as clients know them.
pub(crate) fn addressed(uris: ResourceUris, server: &str, outcome: Outcome) -> Result<Outcome, CallError> {
    match outcome {
        Outcome::Result(result, _) if uris == ResourceUris::Rewrite => {
            read(result_outward(server, &result), Input::Task)
        }
        outcome => Ok(outcome),
    }
}

/// Reads a result as far as we must.
pub(crate) fn read(result: Raw, input: Input) -> Result<Outcome, CallError> {
    match Reply::read(&result, input) {
        Ok(read) => Ok(Outcome::Result(result, read)),
        Err(reason) => Err(CallError::new(Code::ProviderInvalidOutput, reason).after_sending()),
    }
}

fn unavailable(upstream: &Upstream, error: &Unavailable) -> CallError {
    let code = match error {
        Unavailable::StillRestarting(_) => Code::RestartInProgress,
        Unavailable::Down { .. }
        | Unavailable::StillStarting(_)
        | Unavailable::Stopped
        | Unavailable::AllLeased(_) => Code::ProviderUnavailable,
        Unavailable::Failed(failure) if failure.stage == FailureStage::Sandbox => Code::SandboxUnavailable,
        // It was to serve this call only; another may come up.
        Unavailable::Failed(_) if upstream.config().isolation == Isolation::Call => Code::ProviderUnavailable,
        Unavailable::Failed(_) | Unavailable::Removed => Code::RestartFailed,
    };
    let failed = CallError::new(code, format!("server `{}` cannot be called: {error}", upstream.name()));
    match code {
        Code::SandboxUnavailable => failed.with_details(&sandbox_setup()),
        _ => failed,
    }
}

/// What a program is told of a server that could not be confined.
pub(crate) fn sandbox_setup() -> Value {
    json!({"reason": CrashReason::SandboxSetup.as_str()})
}

/// How long a call may run: as its tool says, or else its server.
fn execution(server: &Server, relayed: &RelayedRequest<'_>) -> Option<Duration> {
    match relayed.call.request.method == Method::ToolsCall {
        true => server.limits_of(relayed.target.own).execution,
        false => server.limits.execution,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRG-6: a request is sent three times at the most.
    #[test]
    fn sends_are_counted() {
        let mut sends = Sends::default();
        assert_eq!([sends.count(), sends.count(), sends.count(), sends.count()], [true, true, false, false]);
        assert_eq!(sends.0, 4);
    }
}
