//! Stage four: the tool runs, here or on its server.

use bridgehead_config::{Isolation, Retry};
use bridgehead_upstream::{Event, LinkError, Mirror, Purpose, Ready, Tool, Unavailable, Upstream};
use bridgehead_wire::{Abilities, Code, Era, Method, Raw, RpcError, code};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::record::Record;
use super::validate::Checked;
use super::{Call, Chain, Outcome, envelope_result};
use crate::catalog::Registered;
use crate::error::CallError;
use crate::native::ToolContext;
use crate::questions::Questions;
use crate::queue::Queue;
use crate::relay::{Input, ToolResult, params_for, progress_for};

pub(super) async fn run(
    chain: &Chain,
    call: &Call<'_>,
    checked: Checked<'_>,
    record: &mut Record,
) -> Outcome {
    let outcome = match checked {
        Checked::Native(native, arguments) => run_native(chain, call, native, arguments).await,
        Checked::Upstream(upstream, tool, queue) => run_upstream(call, upstream, tool, queue, record).await,
    };
    outcome.unwrap_or_else(|error| {
        debug!(correlationId = %call.correlation, tool = %call.tool, code = %error.code, %error, "call failed");
        Outcome::Failed(error)
    })
}

async fn run_native(
    chain: &Chain,
    call: &Call<'_>,
    native: &Registered,
    arguments: Value,
) -> Result<Outcome, CallError> {
    let context = ToolContext { correlation: call.correlation, principal: call.caller.principal.clone() };
    let data = native.tool.run(arguments, context, chain.debug_errors).await?;
    tool_result(envelope_result(&json!({"ok": true, "data": data}), false, true), Input::Refused)
}

/// How often a call is sent at the most when its server is lost under it.
const MOST_SENDS: usize = 3;

/// Sends the call, and sends it again where its server was lost and running it twice is no question.
async fn run_upstream(
    call: &Call<'_>,
    upstream: &Upstream,
    tool: &Tool,
    queue: &Queue,
    record: &mut Record,
) -> Result<Outcome, CallError> {
    let limits = upstream.config();
    let began = Instant::now();
    let mut last = began + limits.max_total;
    let _place = match queue.try_enter() {
        Some(place) => place,
        None => {
            let turn = queue.enter(last.min(began + limits.request_timeout)).await;
            record.waited(began.elapsed());
            turn.map_err(|error| {
                let message = format!("server `{}` cannot be called now: {error}", upstream.name());
                CallError::new(Code::ProviderUnavailable, message)
            })?
        }
    };
    let own = call.caller.session.uses(upstream, call.caller.era());
    let own = own.map_err(|error| unavailable(upstream, &error))?;
    let upstream = own.as_ref().unwrap_or(upstream);
    let mut sends = 0;
    let mut progress = Progress { call, last: None };
    loop {
        let deadline = last.min(Instant::now() + limits.request_timeout);
        let ready = upstream.acquire(deadline).await.map_err(|error| unavailable(upstream, &error))?;
        sends += 1;
        match send(call, upstream, &ready, tool, &mut last, &mut progress).await {
            Err(lost)
                if lost.code == Code::ProviderCrashed
                    && sends < MOST_SENDS
                    && may_repeat(upstream, tool, &lost) =>
            {
                debug!(correlationId = %call.correlation, tool = %call.tool, "the server was lost; the call is sent again");
            }
            outcome => return outcome,
        }
    }
}

/// What the client has been told of a call's progress. A call that is sent again begins anew; its client
/// must not see it go backwards.
struct Progress<'c> {
    call: &'c Call<'c>,
    last: Option<f64>,
}

impl Progress<'_> {
    fn forward(&mut self, params: &Raw) {
        #[derive(serde::Deserialize)]
        struct Reached {
            progress: f64,
        }
        let Self { call, last } = self;
        let (Some(sink), Some(token)) = (&call.progress, &call.ask.meta.progress_token) else { return };
        let Ok(Reached { progress }) = params.decode() else { return };
        if last.is_some_and(|last| progress <= last) {
            return;
        }
        *last = Some(progress);
        let told = progress_for(params, token, call.caller.revision).is_some_and(|told| sink.send(told));
        if !told {
            debug!(correlationId = %call.correlation, "the client does not read its progress; one was dropped");
        }
    }
}

/// Whether a call whose server was lost may be sent again.
fn may_repeat(upstream: &Upstream, tool: &Tool, lost: &CallError) -> bool {
    match upstream.config().retry {
        Retry::Always => true,
        Retry::Safe => !lost.may_have_run || tool.read_only || tool.idempotent,
        Retry::Never => false,
    }
}

/// Sends the call and waits for its answer until `last`, which moves on while the client is asked something.
async fn send(
    call: &Call<'_>,
    upstream: &Upstream,
    ready: &Ready,
    tool: &Tool,
    last: &mut Instant,
    progress: &mut Progress<'_>,
) -> Result<Outcome, CallError> {
    let server = upstream.name();
    let (client, peer) = (call.caller.era(), ready.peer.revision.era());
    let abilities = if peer == Era::Legacy { call.caller.abilities() } else { Abilities::NONE };
    let mut exchange = ready.link.open_for(Purpose::Ordinary, abilities);
    let mut questions = Questions::default();
    let wants_progress = call.progress.is_some() && call.ask.meta.progress_token.is_some();
    let params = params_for(
        &call.ask.params,
        &call.ask.meta,
        (*tool.name != *call.tool).then_some(tool.name.as_str()),
        client,
        peer,
        wants_progress.then(|| exchange.id()),
    );
    let mirror = Mirror { name: Some(&tool.name), parameters: &tool.headers, params: Some(&call.ask.params) };
    exchange.send_mirrored(&Method::ToolsCall, &params, mirror).await;
    loop {
        let now = Instant::now();
        let deadline = (*last).min(now + upstream.config().request_timeout);
        let event = if questions.is_open() {
            // PIPE-9: no clock of the call runs while its client is asked.
            let event = questions.next(&mut exchange).await;
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
                "server `{server}` did not answer tool `{}` in time (tool failed: timeout)",
                tool.name
            );
            return Err(CallError::new(Code::ProviderTimeout, message).after_sending());
        };
        match event {
            Event::Progress(params) => progress.forward(&params),
            Event::Asked(asked) => questions.put(&asked, call.caller, &mut exchange),
            Event::Withdrawn(id) => questions.withdraw(&id),
            Event::Answer(Ok(result)) => {
                let input = match (client, peer) {
                    (Era::Modern, Era::Modern) => Input::Relayed,
                    _ => Input::Refused,
                };
                return tool_result(result, input).map_err(|error| CallError {
                    message: format!("server `{server}`: {}", error.message),
                    ..error
                });
            }
            // These two are about our own request to the server; a client would take them for its own.
            Event::Answer(Err(error))
                if matches!(error.code(), code::HEADER_MISMATCH | code::UNSUPPORTED_PROTOCOL_VERSION) =>
            {
                let message = format!("server `{server}` refused the gateway's request: {}", error.message());
                return Err(CallError::new(Code::ProviderUnavailable, message));
            }
            // A code that earlier revisions do not have; the words and the data still tell what was missing.
            Event::Answer(Err(error))
                if error.code() == code::MISSING_CLIENT_CAPABILITY && client == Era::Legacy =>
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
            Event::Lost(LinkError::Closed(reason)) => {
                let message = format!("server `{server}` was lost during the call: {reason}");
                let error = CallError::new(Code::ProviderCrashed, message);
                return Err(if exchange.was_sent() { error.after_sending() } else { error });
            }
        }
    }
}

/// POOL-10: a process that one session has for itself is started anew when it kept a call waiting for too long.
pub(crate) fn restart_own(upstream: &Upstream) -> bool {
    upstream.config().isolation == Isolation::Session && upstream.is_process() && upstream.restart()
}

fn tool_result(result: Raw, input: Input) -> Result<Outcome, CallError> {
    match ToolResult::read(&result, input) {
        Ok(read) => Ok(Outcome::Result(result, read)),
        Err(reason) => Err(CallError::new(Code::ProviderInvalidOutput, reason).after_sending()),
    }
}

fn unavailable(upstream: &Upstream, error: &Unavailable) -> CallError {
    let code = match error {
        Unavailable::StillRestarting(_) => Code::RestartInProgress,
        Unavailable::Down { .. } | Unavailable::Stopped => Code::ProviderUnavailable,
        Unavailable::Failed(_) | Unavailable::Removed => Code::RestartFailed,
    };
    CallError::new(code, format!("server `{}` cannot be called: {error}", upstream.name()))
}
