//! One request carried to a server and its answer back, whatever it is about: a tool, a prompt, a resource.
//!
//! What all surfaces share is here: the queue, the server that may have to come up first, the clocks, progress,
//! questions back to the client, and what each way to fail is called. What a surface does before and after is its
//! own; dropping the future cancels the request.

use std::pin::pin;
use std::time::Duration;

use bridgehead_config::{Isolation, ResourceUris, Retry, Roots, Server};
use bridgehead_schema::HeaderParameter;
use bridgehead_upstream::{
    CrashReason, Event, Exchange, FailureStage, Keeper, Lease, LinkError, Mirror, Purpose, Ready,
    Unavailable, Upstream,
};
use bridgehead_wire::{
    Abilities, Code, Era, Level, Method, Object, Raw, Revision, RpcError, Spliced, code, notification,
};
use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{Instrument, debug, debug_span};

use crate::dialogue::park::not_valid;
use crate::dialogue::questions::{Questions, in_time, undeclared};
use crate::dialogue::rounds::{Configured, Next, Rounds, Stop, visit};
use crate::error::CallError;
use crate::gate::Call;
use crate::relay::queue::{Queue, QueueSlot, Wait};
use crate::relay::rewrite::{
    Hop, Input, Reply, Rewrite, declares_tasks, log_for, params_for, progress_for, takes_levels,
};
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
const MOST_SENDS: usize = 3;
/// How long a server may take to be told which log lines are wanted.
const LEVEL_TIMEOUT: Duration = Duration::from_secs(2);

impl RelayedRequest<'_> {
    /// Sends the request, and sends it again where its server was lost and doing it twice is no question. `waited` is
    /// told how long the wait in the queue was, if there was one, also when it is given up halfway.
    pub(crate) async fn run(
        &self,
        upstream: &Upstream,
        queue: &Queue,
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
                let waiting = Wait::new(began, waited);
                let slot = queue.enter(last.min(began + limits.request_timeout));
                let slot = slot.instrument(debug_span!("queue")).await;
                drop(waiting);
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
                // PIPE-9: no clock of the call runs while its client is asked.
                slot.pause();
                let roots = Box::pin(self.ask_roots(limits.question_timeout)).await;
                slot.go_on();
                last += asked.elapsed();
                match roots {
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
        let mut progress = Progress { relayed: self, last: None };
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
            let sending = pin!(self.send(upstream, &ready, &mut last, &mut slot, &mut progress));
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

    /// Sends the request, or sends it again with what a round adds.
    async fn begin(
        &self,
        exchange: &mut Exchange,
        ready: &Ready,
        cell: Cell,
        roots: Option<&Roots>,
        next: Option<&Next>,
    ) {
        let Self { target, .. } = self;
        let level = self.call.progress.as_ref().and_then(|_| self.call.caller.log_level(self.call.request));
        if level.is_some() {
            exchange.want_logs();
        }
        let wants_progress = self.call.progress.is_some() && self.call.request.meta.progress_token.is_some();
        let hop = Hop {
            caller: self.call.caller,
            server: ready.peer.revision.era(),
            progress_token: wants_progress.then(|| exchange.id()),
            correlation: self.call.correlation,
            trace: self.call.trace,
            log_level: level,
            tasks: ready.tools.features.tasks,
            roots: roots.is_some(),
        };
        let mut params =
            params_for(&self.call.request.params, &self.call.request.meta, target.rewrite.as_ref(), hop);
        if let Some(next) = next {
            params = next.params(&params);
        } else if cell == Cell::PARKING && self.call.request.params.get("inputResponses").is_some() {
            params = without_answers(&params);
        }
        let mirror = Mirror {
            name: Some(target.own),
            parameters: target.headers,
            params: Some(&self.call.request.params),
        };
        exchange.send_mirrored(&self.call.request.method, &params, mirror).await;
    }

    /// An outcome that the client's revision has no code for, said to the model that called.
    fn in_words(&self, message: &str, data: Option<Raw>) -> Result<Outcome, CallError> {
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
    fn stopped(&self, server: &str, stop: Stop) -> Result<Outcome, CallError> {
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

    /// Whether the client can follow a call that becomes a task.
    fn takes_tasks(&self) -> bool {
        let declared = self.call.request.meta.client_capabilities.as_ref();
        self.call.request.method == Method::ToolsCall && declared.is_some_and(declares_tasks)
    }

    /// Tells the client a log line of its request.
    fn log(&self, wanted: Option<Level>, server: &str, params: &Raw) {
        // Where names are the server's own there is only one.
        let several = self.target.rewrite.is_some();
        let (Some(sink), Some(wanted)) = (&self.call.progress, wanted) else { return };
        let Some((level, params)) = log_for(params, several.then_some(server)) else { return };
        if level >= wanted {
            let mut out = BytesMut::new();
            notification(&mut out, Method::LogMessage.as_str(), Some(&params.into()));
            sink.send(out.freeze());
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
        match upstream.config().retry {
            Retry::Always => true,
            Retry::Safe => !lost.may_have_run || self.target.repeatable,
            Retry::Never => false,
        }
    }

    /// Sends the call and waits for its answer until `last`, which moves on while the client is asked something.
    async fn send(
        &self,
        upstream: &Upstream,
        ready: &Ready,
        last: &mut Instant,
        slot: &mut QueueSlot<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Outcome, CallError> {
        let Self { target, .. } = self;
        let server = upstream.name();
        let cell = Cell { client: self.call.caller.era(), server: ready.peer.revision.era() };
        let abilities = match cell {
            Cell::LEGACY => self.call.caller.abilities(),
            // What its client did not declare ends the call of a modern client.
            Cell::PARKING => self.call.caller.abilities().hearing_all(),
            Cell::MODERN | Cell::ROUNDS => Abilities::NONE,
        };
        // No server of this era gave it away, and whatever we gave was taken up before.
        if cell == Cell::PARKING && self.call.request.params.get("requestState").is_some() {
            return Ok(Outcome::Relayed(not_valid()));
        }
        let level = self.call.progress.as_ref().and_then(|_| self.call.caller.log_level(self.call.request));
        if let Some(level) = level.filter(|_| takes_levels(cell.server, ready.tools.features)) {
            // Answered late or not at all it only costs lines.
            let _ = tokio::time::timeout(LEVEL_TIMEOUT, Box::pin(ready.link.want_level(level))).await;
        }
        let mut exchange = ready.link.open_for(Purpose::Ordinary, abilities);
        let mut questions = Questions::default();
        let mut rounds = Rounds::default();
        let mut visits = 0;
        let mut next: Option<Next> = None;
        let patience = upstream.config().question_timeout;
        let roots = upstream.config().roots.as_ref();
        self.begin(&mut exchange, ready, cell, roots, next.as_ref()).await;
        if cell == Cell::LEGACY
            && upstream.is_session()
            && self.call.caller.session.take_roots_changed(upstream)
        {
            Box::pin(ready.link.notify(&Method::RootsListChanged, None)).await;
        }
        loop {
            let now = Instant::now();
            let deadline = (*last).min(now + upstream.config().request_timeout);
            let event = if questions.is_open() {
                // PIPE-9: no clock of the call runs while its client is asked.
                slot.pause();
                let event = questions.next(&mut exchange).await;
                slot.go_on();
                *last += now.elapsed();
                let Some(event) = event else { continue };
                Ok(event)
            } else {
                tokio::time::timeout_at(deadline, exchange.next()).await
            };
            let Ok(event) = event else {
                // Leaving drops the exchange, which tells the server; whether it is well is looked into, unless
                // only this client would miss what it does now.
                if !restart_own(upstream) {
                    upstream.suspect();
                }
                let message = format!(
                    "server `{server}` did not answer {kind} `{}` in time ({kind} failed: timeout)",
                    target.own,
                    kind = target.kind,
                );
                return Err(CallError::new(Code::ProviderTimeout, message).after_sending());
            };
            match event {
                Event::Progress(params) => progress.forward(&params),
                Event::Log(params) => self.log(level, server.as_ref(), &params),
                Event::Acknowledged => {}
                Event::Asked(asked)
                    if !self.call.caller.abilities().covers(&asked.method, asked.params.as_ref()) =>
                {
                    return Ok(Outcome::Relayed(undeclared(&asked.method, asked.params.as_ref())));
                }
                Event::Asked(asked) => questions.put(&asked, self.call.caller, &mut exchange, patience),
                Event::Withdrawn(id) => questions.withdraw(&id),
                Event::Answer(Ok(result)) => {
                    let input = match cell {
                        Cell::MODERN if ready.tools.features.tasks && self.takes_tasks() => Input::Task,
                        Cell::MODERN | Cell::ROUNDS => Input::Relayed,
                        _ => Input::Refused,
                    };
                    let outcome = read(result, input).map_err(|error| CallError {
                        message: format!("server `{server}`: {}", error.message),
                        ..error
                    })?;
                    let asks = match &outcome {
                        Outcome::Result(_, reply) if cell == Cell::ROUNDS || roots.is_some() => reply.asks(),
                        _ => None,
                    };
                    let Some(asks) = asks else {
                        rounds.done(self.call.caller);
                        return Ok(outcome);
                    };
                    let round = match roots.filter(|_| cell == Cell::MODERN) {
                        Some(roots) => {
                            let given = self.call.request.params.get("inputResponses");
                            match rounds.configured(asks, roots, given.as_ref()) {
                                Ok(Configured::Nothing) => return Ok(outcome),
                                Ok(Configured::Rest(rest)) => return read(rest, input),
                                Ok(Configured::Next(round)) => Ok(round),
                                Err(stop) => Err(stop),
                            }
                        }
                        None => {
                            // PIPE-9 again: the server waits for nothing meanwhile.
                            slot.pause();
                            let round =
                                Box::pin(rounds.answer(asks, self.call.caller, roots, patience)).await;
                            slot.go_on();
                            *last += now.elapsed();
                            round
                        }
                    };
                    let round = match round {
                        Ok(round) => next.insert(round),
                        Err(stop) => return self.stopped(server.as_ref(), stop),
                    };
                    if let Some(pause) = round.pause {
                        tokio::time::sleep(pause).await;
                    }
                    exchange = ready.link.open_for(Purpose::Ordinary, abilities);
                    self.begin(&mut exchange, ready, cell, roots, next.as_ref()).await;
                }
                // These two are about our own request to the server; a client would take them for its own.
                Event::Answer(Err(error))
                    if matches!(error.code(), code::HEADER_MISMATCH | code::UNSUPPORTED_PROTOCOL_VERSION) =>
                {
                    let message =
                        format!("server `{server}` refused the gateway's request: {}", error.message());
                    return Err(CallError::new(Code::ProviderUnavailable, message));
                }
                // The server has not run it: the user has to go somewhere first.
                Event::Answer(Err(error))
                    if error.code() == code::URL_ELICITATION_REQUIRED
                        && self.call.caller.revision != Revision::V2025_11_25 =>
                {
                    visits += 1;
                    slot.pause();
                    let agreed = match cell.client {
                        Era::Modern if visits <= MOST_SENDS => {
                            Box::pin(visit(&error, self.call.caller, patience)).await
                        }
                        _ => Ok(false),
                    };
                    slot.go_on();
                    *last += now.elapsed();
                    match agreed {
                        Ok(true) => {
                            exchange = ready.link.open_for(Purpose::Ordinary, abilities);
                            self.begin(&mut exchange, ready, cell, roots, None).await;
                        }
                        Ok(false) => return self.in_words(&error.message(), error.data()),
                        Err(error) => return Ok(Outcome::Relayed(error)),
                    }
                }
                // A code that earlier revisions do not have; the words and the data still tell what was missing.
                Event::Answer(Err(error))
                    if error.code() == code::MISSING_CLIENT_CAPABILITY && cell.client == Era::Legacy =>
                {
                    let data = error.data().and_then(|data| data.decode().ok()).unwrap_or(Value::Null);
                    return Ok(Outcome::Relayed(RpcError::with_data(
                        code::INVALID_PARAMS,
                        &error.message(),
                        &data,
                    )));
                }
                Event::Answer(Err(error)) => return Ok(Outcome::Relayed(error)),
                Event::Lost(error @ (LinkError::TooLarge { .. } | LinkError::Unusable(_))) => {
                    let message = format!("server `{server}`: {error}");
                    return Err(CallError::new(Code::ProviderInvalidOutput, message).after_sending());
                }
                Event::Lost(LinkError::Refused { reason, .. }) => {
                    // Whether it turns everybody away is looked into.
                    upstream.suspect();
                    let message = format!("server `{server}` did not take the call: {reason}");
                    let error = CallError::new(Code::ProviderUnavailable, message);
                    return Err(if exchange.was_sent() { error.after_sending() } else { error });
                }
                Event::Lost(lost @ (LinkError::Closed(_) | LinkError::Crashed(_))) => {
                    let message = format!("server `{server}` was lost during the call: {lost}");
                    let mut error = CallError::new(Code::ProviderCrashed, message);
                    if let LinkError::Crashed(crash) = lost {
                        error = error.with_details(&json!({
                            "reason": crash.reason.as_str(),
                            "status": crash.status,
                            "stderr": crash.stderr,
                            "killed": crash.killed,
                        }));
                    }
                    return Err(if exchange.was_sent() { error.after_sending() } else { error });
                }
            }
        }
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

/// The eras of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    client: Era,
    server: Era,
}

impl Cell {
    const MODERN: Self = Self { client: Era::Modern, server: Era::Modern };
    const LEGACY: Self = Self { client: Era::Legacy, server: Era::Legacy };
    /// The server asks by its result, and the client is asked during its call.
    const ROUNDS: Self = Self { client: Era::Legacy, server: Era::Modern };
    /// The server asks during the call, and the client by its result.
    const PARKING: Self = Self { client: Era::Modern, server: Era::Legacy };
}

/// What the client has been told of a call's progress. A call that is sent again begins anew; its client
/// must not see it go backwards.
struct Progress<'c> {
    relayed: &'c RelayedRequest<'c>,
    last: Option<f64>,
}

impl Progress<'_> {
    fn forward(&mut self, params: &Raw) {
        #[derive(serde::Deserialize)]
        struct Reached {
            progress: f64,
        }
        let Self { relayed, last } = self;
        let (Some(sink), Some(first)) = (&relayed.call.progress, &relayed.call.request.meta.progress_token)
        else {
            return;
        };
        let Some(token) = sink.token(first) else { return };
        let Ok(Reached { progress }) = params.decode() else { return };
        if last.is_some_and(|last| progress <= last) {
            return;
        }
        *last = Some(progress);
        let told =
            progress_for(params, &token, relayed.call.caller.revision).is_some_and(|told| sink.send(told));
        if !told {
            debug!(correlationId = %relayed.call.correlation, "the client does not read its progress; one was dropped");
        }
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
    let of_tool = || server.tools.get(relayed.target.own).and_then(|tool| tool.limits.execution);
    let tool = (relayed.call.request.method == Method::ToolsCall).then(of_tool).flatten();
    tool.or(server.limits.execution)
}

/// The params for a server that never asked.
fn without_answers(params: &Spliced) -> Spliced {
    let Ok(object) = Object::parse(&params.to_raw()) else { return params.clone() };
    let mut edit = object.edit();
    edit.remove("inputResponses");
    edit.finish()
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
