//! One conversation with a server about a request: the request is sent, events arrive, and the answer is the
//! last one.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bridgehead_call::{Evicted, Seat};
use bridgehead_upstream::{Event, Exchange, LinkError, Mirror, Purpose, Ready, Upstream};
use bridgehead_wire::{Code, Era, Level, Method, Raw, Revision, RpcError, code, notification};
use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::cell::{Answered, Cell, InRounds, Legacy, Modern, Parking};
use super::queue::QueueSlot;
use super::request::{MAX_SENDS, Outcome, RelayedRequest, overdue, read};
use super::rewrite::{Hop, log_for, params_for, progress_for, takes_levels};
use crate::dialogue::questions::{Questions, undeclared};
use crate::dialogue::rounds::{Next, Rounds, visit};
use crate::error::GatewayError;
use crate::gate::{Places, evicted};

/// How long the call waits for a server to accept the wanted log level.
const LEVEL_TIMEOUT: Duration = Duration::from_secs(2);

/// The deadline of a call, its slot in the queue, and what else it holds that others may wait for.
pub(super) struct Clocks<'c, 'q> {
    /// The deadline of the whole call.
    pub(super) last: &'c mut Instant,
    pub(super) slot: &'c mut QueueSlot<'q>,
    pub(super) places: &'c Places,
    pub(super) lease: Option<Seat>,
}

impl Clocks<'_, '_> {
    /// PIPE-9: no clock of the call runs while its client is asked, and its slot is free for other calls. Its lock and its
    /// lease rest: if a call of another principal waits for them, this one may have to make way.
    pub(super) async fn pause_clocks<T>(&mut self, asking: impl Future<Output = T>) -> Result<T, Evicted> {
        let began = Instant::now();
        self.slot.pause();
        let mut resting = [self.places.lock.get(), self.lease.as_ref()].map(|seat| seat.map(Seat::rest));
        let [lock, lease] = &mut resting;
        let answer = tokio::select! {
            biased;
            answer = asking => answer,
            evicted = evicted(lock) => return Err(evicted),
            evicted = evicted(lease) => return Err(evicted),
        };
        drop(resting);
        self.slot.go_on();
        *self.last += began.elapsed();
        Ok(answer)
    }
}

/// The request, the server and the state of one conversation.
pub(super) struct Conversation<'c, 'q> {
    pub(super) relayed: &'c RelayedRequest<'c>,
    pub(super) upstream: &'c Upstream,
    pub(super) ready: &'c Ready,
    pub(super) clocks: Clocks<'c, 'q>,
    pub(super) progress: &'c mut Progress,
}

impl Conversation<'_, '_> {
    /// Sends the request and waits for its answer, in the way of the two sides' eras.
    pub(super) async fn hold(&mut self) -> Result<Outcome, GatewayError> {
        let (call, config) = (self.relayed.call, self.upstream.config());
        let roots = config.roots.as_ref();
        match (call.caller.is_asked_in_call(), self.ready.peer.revision.era()) {
            (false, Era::Modern) => self.converse(Modern::new(call.request, self.ready, roots)).await,
            (true, Era::Legacy) => self.converse(Legacy).await,
            (false, Era::Legacy) => self.converse(Parking).await,
            (true, Era::Modern) => {
                let patience = config.clocks().question;
                self.converse(InRounds { roots, patience, rounds: Rounds::default() }).await
            }
        }
    }

    async fn converse(&mut self, mut cell: impl Cell) -> Result<Outcome, GatewayError> {
        let Self { relayed, upstream, ready, .. } = *self;
        let (caller, request) = (relayed.call.caller, relayed.call.request);
        if let Some(refusal) = cell.refuses(request) {
            return Ok(Outcome::Relayed(refusal));
        }
        let level = relayed.call.progress.as_ref().and_then(|_| caller.log_level(request));
        if let Some(level) = level.filter(|_| takes_levels(ready.peer.revision.era(), ready.tools.features)) {
            // A late or missing answer only costs log lines.
            let _ = tokio::time::timeout(LEVEL_TIMEOUT, Box::pin(ready.link.want_level(level))).await;
        }
        let patience = upstream.config().clocks().question;
        let mut questions = Questions::default();
        let mut visits = 0;
        let mut exchange = self.begin(&cell, level, None).await;
        cell.sent(caller, upstream, ready).await;
        loop {
            let event = if questions.is_open() {
                match self.clocks.pause_clocks(Box::pin(questions.next(&mut exchange))).await {
                    Ok(Some(event)) => event,
                    Ok(None) => continue,
                    Err(_evicted) => return Err(relayed.made_way()),
                }
            } else {
                let deadline = (*self.clocks.last).min(Instant::now() + upstream.config().clocks().silent);
                match tokio::time::timeout_at(deadline, exchange.next()).await {
                    Ok(event) => event,
                    Err(_) => return Err(self.timed_out()),
                }
            };
            if event.is_last() {
                relayed.call.reached(exchange.sends());
            }
            match event {
                Event::Progress(params) => self.progress.forward(relayed, &params),
                Event::Log(params) => self.log(level, &params),
                Event::Acknowledged => {}
                Event::Asked(asked) if !caller.abilities().covers(&asked.method, asked.params.as_ref()) => {
                    return Ok(Outcome::Relayed(undeclared(&asked.method, asked.params.as_ref())));
                }
                Event::Asked(asked) => questions.put(&asked, caller, &mut exchange, patience),
                Event::Withdrawn(id) => questions.withdraw(&id),
                Event::Answer(Ok(result)) => match self.answered(&mut cell, result).await? {
                    Step::Done(outcome) => return Ok(outcome),
                    Step::Again(next) => exchange = self.begin(&cell, level, next.as_ref()).await,
                },
                Event::Answer(Err(error)) => match self.refused(error, &mut visits, patience).await? {
                    Step::Done(outcome) => return Ok(outcome),
                    Step::Again(next) => exchange = self.begin(&cell, level, next.as_ref()).await,
                },
                Event::Lost(lost) => return Err(self.lost(&lost, exchange.was_sent())),
            }
        }
    }

    /// Sends the request, or sends it again with what a round adds.
    async fn begin<'e>(&self, cell: &impl Cell, level: Option<Level>, next: Option<&Next>) -> Sent<'e>
    where
        Self: 'e,
    {
        let Self { relayed, upstream, ready, .. } = self;
        let RelayedRequest { call, target } = relayed;
        let exchange = ready.link.open_for(Purpose::Ordinary, cell.abilities(call.caller));
        let mut exchange = Sent { exchange, places: &call.places, grace: upstream.config().clocks().cancel };
        if level.is_some() {
            exchange.want_logs();
        }
        let wants_progress = call.progress.is_some() && call.request.meta.progress_token.is_some();
        let hop = Hop {
            caller: call.caller,
            server: ready.peer.revision.era(),
            progress_token: wants_progress.then(|| exchange.id()),
            correlation: call.correlation,
            trace: call.trace,
            log_level: level,
            tasks: ready.tools.features.tasks,
            roots: upstream.config().roots.is_some(),
        };
        let params = params_for(&call.request.params, &call.request.meta, target.rewrite.as_ref(), hop);
        let params = match next {
            Some(next) => next.params(&params),
            None => cell.params(call.request, params),
        };
        let mirror =
            Mirror { name: Some(target.own), parameters: target.headers, params: Some(&call.request.params) };
        if let Some(time) = &call.time {
            time.sent_to(upstream);
        }
        exchange.send_mirrored(&call.request.method, &params, mirror).await;
        exchange
    }

    /// Handles a result.
    async fn answered(&mut self, cell: &mut impl Cell, result: Raw) -> Result<Step, GatewayError> {
        let relayed = self.relayed;
        let server = self.upstream.name();
        let outcome = read(result, cell.input()).map_err(|error| GatewayError {
            message: format!("server `{server}`: {}", error.message),
            ..error
        })?;
        let asks = match &outcome {
            Outcome::Result(_, reply) => reply.asks(),
            _ => None,
        };
        let Some(asks) = asks else {
            cell.done(relayed.call.caller);
            return Ok(Step::Done(outcome));
        };
        match cell.asked(asks, relayed.call.caller, relayed.call.request, &mut self.clocks).await {
            Ok(Answered::PassOn) => Ok(Step::Done(outcome)),
            Ok(Answered::Rest(rest)) => read(rest, cell.input()).map(Step::Done),
            Ok(Answered::Again(next)) => {
                if let Some(pause) = next.pause {
                    tokio::time::sleep(pause).await;
                }
                Ok(Step::Again(Some(next)))
            }
            Err(stop) => relayed.stopped(server.as_ref(), stop).map(Step::Done),
        }
    }

    /// Handles an error of the server.
    async fn refused(
        &mut self,
        error: RpcError,
        visits: &mut usize,
        patience: Duration,
    ) -> Result<Step, GatewayError> {
        let caller = self.relayed.call.caller;
        match error.code() {
            // These two are about the gateway's own request to the server; a client would take them for its
            // own.
            code::HEADER_MISMATCH | code::UNSUPPORTED_PROTOCOL_VERSION => {
                let server = self.upstream.name();
                let message = format!("server `{server}` refused the gateway's request: {}", error.message());
                Err(GatewayError::new(Code::ProviderUnavailable, message))
            }
            // The server has not run the call: the user has to open a page first.
            code::URL_ELICITATION_REQUIRED if caller.revision != Revision::V2025_11_25 => {
                *visits += 1;
                let agreed = match caller.era() {
                    Era::Modern if *visits <= MAX_SENDS => {
                        let visited = self.clocks.pause_clocks(Box::pin(visit(&error, caller, patience)));
                        visited.await.map_err(|_evicted| self.relayed.made_way())?
                    }
                    _ => Ok(false),
                };
                match agreed {
                    Ok(true) => Ok(Step::Again(None)),
                    Ok(false) => self.relayed.as_text(&error.message(), error.data()).map(Step::Done),
                    Err(error) => Ok(Step::Done(Outcome::Relayed(error))),
                }
            }
            // Earlier revisions do not have this code; the message and the data still say what was missing.
            code::MISSING_CLIENT_CAPABILITY if caller.era() == Era::Legacy => {
                let data = error.data().and_then(|data| data.decode().ok()).unwrap_or(Value::Null);
                let told = RpcError::with_data(code::INVALID_PARAMS, &error.message(), &data);
                Ok(Step::Done(Outcome::Relayed(told)))
            }
            _ => Ok(Step::Done(Outcome::Relayed(error))),
        }
    }

    /// Returning drops the exchange, which notifies the server. The server is then probed, or restarted if it
    /// is this session's own.
    fn timed_out(&self) -> GatewayError {
        overdue(self.upstream);
        let (server, target) = (self.upstream.name(), &self.relayed.target);
        let message = format!(
            "server `{server}` did not answer {kind} `{}` in time ({kind} failed: timeout)",
            target.own,
            kind = target.kind,
        );
        GatewayError::new(Code::ProviderTimeout, message).after_sending()
    }

    /// The error for a request whose exchange was lost.
    fn lost(&self, lost: &LinkError, was_sent: bool) -> GatewayError {
        let server = self.upstream.name();
        if self.upstream.made_way() {
            let message = format!(
                "the process of server `{server}` for this session made way for a session of another principal; try again"
            );
            let error = GatewayError::new(Code::ProviderUnavailable, message);
            return if was_sent { error.after_sending() } else { error };
        }
        let error = |message| GatewayError::new(lost.code(), message);
        let error = match lost {
            LinkError::TooLarge { .. } | LinkError::Unusable(_) => {
                return error(format!("server `{server}`: {lost}")).after_sending();
            }
            LinkError::Refused { reason, .. } => {
                // Probe the server: it may refuse every client.
                self.upstream.suspect();
                error(format!("server `{server}` did not take the call: {reason}"))
            }
            LinkError::Closed(_) => {
                // If this was the link to a call's own relay, a probe tells whether the server is gone for everyone.
                self.upstream.suspect_behind();
                error(format!("server `{server}` was lost during the call: {lost}"))
            }
            LinkError::Crashed(crash) => {
                let details = json!({
                    "reason": crash.reason.as_str(),
                    "status": crash.status,
                    "stderr": crash.stderr,
                    "killed": crash.killed,
                });
                error(format!("server `{server}` was lost during the call: {lost}")).with_details(&details)
            }
        };
        if was_sent { error.after_sending() } else { error }
    }

    /// Sends the client a log line of its request.
    fn log(&self, wanted: Option<Level>, params: &Raw) {
        // If names are not rewritten, there is only one server.
        let several = self.relayed.target.rewrite.is_some();
        let (Some(sink), Some(wanted)) = (&self.relayed.call.progress, wanted) else { return };
        let server = self.upstream.name();
        let Some((level, params)) = log_for(params, several.then_some(server.as_ref())) else { return };
        if level >= wanted {
            let mut out = BytesMut::new();
            notification(&mut out, Method::LogMessage.as_str(), Some(&params.into()));
            sink.send(out.freeze());
        }
    }
}

/// An exchange of a call. If it is dropped before its answer, the request is cancelled, and what the call holds waits for the
/// end of it.
struct Sent<'c> {
    exchange: Exchange,
    places: &'c Places,
    grace: Duration,
}

impl Deref for Sent<'_> {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.exchange
    }
}

impl DerefMut for Sent<'_> {
    fn deref_mut(&mut self) -> &mut Exchange {
        &mut self.exchange
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.places.abandon(&mut self.exchange, self.grace);
    }
}

/// What comes after an answer.
enum Step {
    Done(Outcome),
    /// The request is sent again, with what a round adds.
    Again(Option<Next>),
}

/// The progress that the client has seen. A call that is sent again starts over; its client must not see
/// progress go backwards.
#[derive(Default)]
pub(super) struct Progress {
    last: Option<f64>,
}

impl Progress {
    fn forward(&mut self, relayed: &RelayedRequest<'_>, params: &Raw) {
        #[derive(serde::Deserialize)]
        struct Reached {
            progress: f64,
        }
        let call = relayed.call;
        let (Some(sink), Some(first)) = (&call.progress, &call.request.meta.progress_token) else { return };
        let Some(token) = sink.token(first) else { return };
        let Ok(Reached { progress }) = params.decode() else { return };
        if self.last.is_some_and(|last| progress <= last) {
            return;
        }
        self.last = Some(progress);
        let told = progress_for(params, &token, call.caller.revision).is_some_and(|told| sink.send(told));
        if !told {
            debug!(correlationId = %call.correlation, "the client does not read its progress; a notification was dropped");
        }
    }
}
