//! Carries one request of any surface to a server, and its answer back: a tool, a prompt, a resource.
//!
//! This is what all surfaces share: the queue, starting the server if necessary, the clocks, progress,
//! questions to the client, and the code for each failure. What happens before and after is up to the
//! surface. Dropping the future cancels the request.

use std::pin::pin;
use std::time::Duration;

use bridgehead_config::{Isolation, ResourceUris, Roots, ServerConfig};
use bridgehead_events::{Line, Signals, WaitEnd};
use bridgehead_schema::HeaderParameter;
use bridgehead_upstream::{CrashReason, FailureStage, Lease, LeaseOwner, Unavailable, Upstream};
use bridgehead_wire::{Code, Era, Method, Raw, RpcError, Spliced, code};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{Instrument, debug, debug_span};

use super::conversation::{Clocks, Conversation, Progress};
use crate::dialogue::questions::in_time;
use crate::dialogue::rounds::Stop;
use crate::error::GatewayError;
use crate::gate::{Call, Place, made_way};
use crate::relay::queue::{NoPermit, Queue, QueueSlot, Wait};
use crate::relay::rewrite::{Input, Reply, Rewrite};
use crate::relay::uris::result_outward;

/// How a request ended, if it was not dropped.
pub(crate) enum Outcome {
    /// A result, of an upstream or of a Rust tool.
    Result(Raw, Reply),
    /// A result that the gateway made, as the client gets it.
    Prepared(Spliced),
    /// The upstream's own JSON-RPC error, passed on.
    Relayed(RpcError),
    /// A failure of the gateway.
    Failed(GatewayError),
}

impl Outcome {
    /// Why a call that needs a complete result has none.
    pub(crate) fn failure(self) -> GatewayError {
        match self {
            Self::Failed(error) => error,
            Self::Result(..) | Self::Prepared(_) | Self::Relayed(_) => {
                let message = "the tool gave no result, but asks for more";
                GatewayError::new(Code::ProviderInvalidOutput, message).after_sending()
            }
        }
    }
}

impl From<GatewayError> for Outcome {
    fn from(error: GatewayError) -> Self {
        Self::Failed(error)
    }
}

/// One request for a server.
pub(crate) struct RelayedRequest<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) target: RelayTarget<'a>,
}

/// What a request is about, on both sides.
pub(crate) struct RelayTarget<'a> {
    /// The word for it in messages: `tool`, `prompt`, ….
    pub(crate) kind: &'static str,
    /// The name that the client used.
    pub(crate) offered: &'a str,
    /// The name that the server knows it by.
    pub(crate) own: &'a str,
    /// The member of the params that must change for the server.
    pub(crate) rewrite: Option<Rewrite>,
    /// Arguments that are also sent as headers.
    pub(crate) headers: &'a [HeaderParameter],
    /// Whether repeating the request does no more than sending it once.
    pub(crate) repeatable: bool,
}

/// How often a call is sent at most if its server is lost.
pub(super) const MAX_SENDS: usize = 3;

impl RelayedRequest<'_> {
    /// Sends the request, and sends it again if its server was lost and the retry policy allows it. `waited`
    /// gets the time spent in the queue, if any, even if the wait is abandoned.
    pub(crate) async fn run(
        &self,
        upstream: &Upstream,
        queue: &Queue,
        signals: &Signals,
        waited: impl FnOnce(Duration),
    ) -> Result<Outcome, GatewayError> {
        let limits = upstream.config();
        let began = Instant::now();
        let mut last = self.call.began + limits.clocks().total;
        if let Some(most) = execution(limits, self) {
            last = last.min(began + most);
        }
        let (principal, places) = (self.call.caller.principal.id(), &self.call.places);
        let permit = match queue.try_enter(principal) {
            Some(permit) => permit,
            None => {
                let mut wait = Wait::new(signals, Line::Queue, began, waited);
                // Boxed: inline, the wait would make the future of every call larger.
                let slot = Box::pin(queue.enter(principal, last.min(began + limits.clocks().silent)));
                let slot = slot.instrument(debug_span!("queue")).await;
                wait.end = slot.as_ref().map_or_else(NoPermit::end, |_| WaitEnd::Turn);
                drop(wait);
                slot.map_err(|error| {
                    let message = format!("server `{}` cannot be called now: {error}", upstream.name());
                    GatewayError::new(Code::ProviderUnavailable, message)
                })?
            }
        };
        let mut slot = QueueSlot::new(queue, (principal, places), permit);
        let own = self.call.caller.session.uses(upstream, self.call.caller.era(), principal);
        let own = own.map_err(|error| unavailable(upstream, &error))?;
        let upstream = own.as_ref().unwrap_or(upstream);
        // A tool call may have a process of its own; every other request goes to the shared one.
        let alone = limits.isolation == Isolation::Call && self.call.request.method == Method::ToolsCall;
        let abilities = self.call.caller.abilities();
        let lease = if own.is_none() && !alone && abilities.answers_any() {
            let mut whose = self.call.caller.session.remembered_by(self.call.caller.era());
            let asked = Instant::now();
            if self.call.caller.era() == Era::Modern && upstream.wants_roots(abilities) {
                let asking = Box::pin(self.ask_roots(limits.clocks().question));
                let mut clocks = Clocks { last: &mut last, slot: &mut slot, places, lease: None };
                match clocks.pause_clocks(asking).await {
                    Ok(Ok(keeper)) => whose = Some(keeper),
                    Ok(Err(stop)) => return self.stopped(upstream.name().as_ref(), stop),
                    Err(_evicted) => {
                        return Err(GatewayError { may_have_run: false, ..self.made_way() });
                    }
                }
            }
            // Boxed, like everything rare: otherwise the future of every call would be as large as the
            // largest of them.
            let deadline = last.min(began + asked.elapsed() + limits.clocks().silent);
            let lease = upstream.lease(principal, abilities, whose, deadline);
            let lease = Box::pin(lease).await.map_err(|error| unavailable(upstream, &error))?;
            lease.map(|lease| places.hold(lease))
        } else {
            None
        };
        let lease = lease.as_ref().and_then(Place::get);
        let upstream = lease.map_or(upstream, Lease::upstream);
        let mut sends = Sends::default();
        let mut progress = Progress::default();
        let server = upstream;
        let relayed = alone && server.is_relayed();
        loop {
            let deadline = last.min(Instant::now() + limits.clocks().silent);
            // A relay of one call finds its server where the supervisor keeps it.
            let up = match relayed {
                true => Some(Box::pin(server.acquire(deadline)).await),
                false => None,
            };
            let _up = up.transpose().map_err(|error| unavailable(server, &error))?;
            // The process is killed when this is dropped, with or without an answer.
            let one_shot = alone.then(|| upstream.one_shot(self.target.own)).transpose();
            let one_shot = one_shot.map_err(|error| unavailable(upstream, &error))?;
            let upstream = one_shot.as_deref().unwrap_or(upstream);
            let ready = pin!(upstream.acquire(deadline)).instrument(debug_span!("acquire")).await;
            let again = sends.count();
            // A process that ended before it was ready has run nothing; the next one may succeed.
            if alone && again && matches!(&ready, Err(Unavailable::Failed(_))) {
                if relayed {
                    Box::pin(server.confirm()).await;
                }
                continue;
            }
            let ready = ready.map_err(|error| {
                upstream.suspect_behind();
                unavailable(upstream, &error)
            })?;
            let mut conversation = Conversation {
                relayed: self,
                upstream,
                ready: &ready,
                clocks: Clocks {
                    last: &mut last,
                    slot: &mut slot,
                    places,
                    lease: lease.and_then(Lease::seat),
                },
                progress: &mut progress,
            };
            let sending = pin!(conversation.hold());
            match sending.instrument(debug_span!("send", attempt = sends.0)).await {
                Err(lost)
                    if lost.code == Code::ProviderCrashed && again && self.may_repeat(upstream, &lost) =>
                {
                    debug!(correlationId = %self.call.correlation, name = self.target.offered, "the server was lost; the request is sent again");
                    if relayed {
                        Box::pin(server.confirm()).await;
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Asks the client for its roots, before the call goes to the lease that is kept for these roots.
    async fn ask_roots(&self, patience: Duration) -> Result<LeaseOwner, Stop> {
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
        let roots = Roots::answered(answer.as_str())
            .ok_or_else(|| Stop::Unusable("the client's answer to it is not a list of roots".into()))?;
        Ok(LeaseOwner::Roots { principal: self.call.caller.principal.shared(), roots })
    }

    /// An outcome that has no code in the client's revision, as text for the model that called.
    pub(super) fn as_text(&self, message: &str, data: Option<Raw>) -> Result<Outcome, GatewayError> {
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

    /// The error of a request that waited for its client while others waited for its place.
    pub(super) fn made_way(&self) -> GatewayError {
        made_way(self.target.kind, self.target.offered)
    }

    /// The outcome of a request whose server asked and got no answer.
    pub(super) fn stopped(&self, server: &str, stop: Stop) -> Result<Outcome, GatewayError> {
        match stop {
            Stop::Evicted(_) => Err(self.made_way()),
            Stop::Unusable(reason) => {
                let message = format!("server `{server}`: {reason}");
                Err(GatewayError::new(Code::ProviderInvalidOutput, message).after_sending())
            }
            Stop::Unanswered(method, error) => {
                let message = format!(
                    "server `{server}` asked the client for `{method}`, which failed: {}",
                    error.message()
                );
                self.as_text(&message, None)
            }
        }
    }

    /// Whether a call whose server was lost may be sent again.
    fn may_repeat(&self, upstream: &Upstream, lost: &GatewayError) -> bool {
        // A call that met a limit would meet it again.
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
    /// Counts one more; returns whether another may follow.
    fn count(&mut self) -> bool {
        self.0 += 1;
        self.0 < MAX_SENDS
    }
}

/// POOL-5, POOL-10: looks after a server that kept a call waiting too long. A session's own process is restarted; any other
/// server is probed.
pub(crate) fn overdue(upstream: &Upstream) {
    if !restart_own(upstream) {
        upstream.suspect();
    }
}

/// Restarts a session's own process; returns whether it is one.
pub(crate) fn restart_own(upstream: &Upstream) -> bool {
    upstream.config().isolation == Isolation::Session && upstream.is_process() && upstream.restart()
}

/// An outcome with resource URIs in the form that clients know.
pub(crate) fn addressed(uris: ResourceUris, server: &str, outcome: Outcome) -> Result<Outcome, GatewayError> {
    match outcome {
        Outcome::Result(result, _) if uris == ResourceUris::Rewrite => {
            read(result_outward(server, &result), Input::Task)
        }
        outcome => Ok(outcome),
    }
}

/// Parses a result as far as the gateway needs it.
pub(crate) fn read(result: Raw, input: Input) -> Result<Outcome, GatewayError> {
    match Reply::read(&result, input) {
        Ok(read) => Ok(Outcome::Result(result, read)),
        Err(reason) => Err(GatewayError::new(Code::ProviderInvalidOutput, reason).after_sending()),
    }
}

fn unavailable(upstream: &Upstream, error: &Unavailable) -> GatewayError {
    let code = match error {
        Unavailable::StillRestarting(_) => Code::RestartInProgress,
        Unavailable::Down { .. }
        | Unavailable::StillStarting(_)
        | Unavailable::Stopped
        | Unavailable::AllLeased(_)
        | Unavailable::AllOwned(_) => Code::ProviderUnavailable,
        Unavailable::Failed(failure) if failure.stage == FailureStage::Sandbox => Code::SandboxUnavailable,
        // The process was for this call only; the next one may start.
        Unavailable::Failed(_) if upstream.is_one_shot() => Code::ProviderUnavailable,
        Unavailable::Failed(_) | Unavailable::Removed => Code::RestartFailed,
    };
    let failed = GatewayError::new(code, format!("server `{}` cannot be called: {error}", upstream.name()));
    match code {
        Code::SandboxUnavailable => failed.with_details(&sandbox_setup()),
        _ => failed,
    }
}

/// The details of an error about a server that could not be confined.
pub(crate) fn sandbox_setup() -> Value {
    json!({"reason": CrashReason::SandboxSetup.as_str()})
}

/// How long a call may run: the tool's limit, or else its server's.
fn execution(server: &ServerConfig, relayed: &RelayedRequest<'_>) -> Option<Duration> {
    match relayed.call.request.method == Method::ToolsCall {
        true => server.limits_of(relayed.target.own).execution,
        false => server.limits.execution,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRG-6: a request is sent at most three times.
    #[test]
    fn sends_are_counted() {
        let mut sends = Sends::default();
        assert_eq!([sends.count(), sends.count(), sends.count(), sends.count()], [true, true, false, false]);
        assert_eq!(sends.0, 4);
    }
}
