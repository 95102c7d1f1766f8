//! Stage four: the tool runs, here or on its server.

use bridgehead_config::Retry;
use bridgehead_upstream::{Event, LinkError, Purpose, Ready, Tool, Unavailable, Upstream};
use bridgehead_wire::{Era, Method, Raw, RpcError, code};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::validate::Checked;
use super::{Call, Chain, Outcome, envelope_result};
use crate::catalog::Registered;
use crate::error::{CallError, Code};
use crate::native::ToolContext;
use crate::relay::{ToolResult, params_for, progress_for};

pub(super) async fn run(chain: &Chain, call: &Call<'_>, checked: Checked<'_>) -> Outcome {
    let outcome = match checked {
        Checked::Native(native, arguments) => run_native(chain, call, native, arguments).await,
        Checked::Upstream(upstream, tool) => run_upstream(call, upstream, tool).await,
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
    tool_result(envelope_result(&json!({"ok": true, "data": data}), false, true))
}

/// How often a call is sent at the most when its server is lost under it.
const MOST_SENDS: usize = 3;

/// Sends the call, and sends it again where its server was lost and running it twice is no question.
async fn run_upstream(call: &Call<'_>, upstream: &Upstream, tool: &Tool) -> Result<Outcome, CallError> {
    let limits = upstream.config();
    let last = Instant::now() + limits.max_total;
    let mut sends = 0;
    let mut progress = Progress { call, last: None };
    loop {
        let deadline = last.min(Instant::now() + limits.request_timeout);
        let ready = upstream.acquire(deadline).await.map_err(|error| unavailable(upstream, &error))?;
        sends += 1;
        match send(call, upstream, &ready, tool, last, &mut progress).await {
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

async fn send(
    call: &Call<'_>,
    upstream: &Upstream,
    ready: &Ready,
    tool: &Tool,
    last: Instant,
    progress: &mut Progress<'_>,
) -> Result<Outcome, CallError> {
    let server = upstream.name();
    let mut exchange = ready.link.open(Purpose::Ordinary);
    let wants_progress = call.progress.is_some() && call.ask.meta.progress_token.is_some();
    let params = params_for(
        &call.ask.params,
        &call.ask.meta,
        (*tool.name != *call.tool).then_some(tool.name.as_str()),
        ready.peer.revision.era(),
        wants_progress.then(|| exchange.id()),
    );
    exchange.send(&Method::ToolsCall, &params).await;
    loop {
        let deadline = last.min(Instant::now() + upstream.config().request_timeout);
        let Ok(event) = tokio::time::timeout_at(deadline, exchange.next()).await else {
            // Leaving drops the exchange, which tells the server; whether it is well is looked into.
            upstream.suspect();
            let message = format!(
                "server `{server}` did not answer tool `{}` in time (tool failed: timeout)",
                tool.name
            );
            return Err(CallError::new(Code::ProviderTimeout, message).after_sending());
        };
        match event {
            Event::Progress(params) => progress.forward(&params),
            Event::Answer(Ok(result)) => {
                return tool_result(result).map_err(|error| CallError {
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
                if error.code() == code::MISSING_CLIENT_CAPABILITY && call.caller.era() == Era::Legacy =>
            {
                let data = error.data().and_then(|data| data.decode().ok()).unwrap_or(Value::Null);
                return Ok(Outcome::Relayed(RpcError::with_data(
                    code::INVALID_PARAMS,
                    &error.message(),
                    &data,
                )));
            }
            Event::Answer(Err(error)) => return Ok(Outcome::Relayed(error)),
            Event::Lost(error @ LinkError::TooLarge { .. }) => {
                let message = format!("server `{server}`: {error}");
                return Err(CallError::new(Code::ProviderInvalidOutput, message).after_sending());
            }
            Event::Lost(LinkError::Closed(reason)) => {
                let message = format!("server `{server}` was lost during the call: {reason}");
                let error = CallError::new(Code::ProviderCrashed, message);
                return Err(if exchange.was_sent() { error.after_sending() } else { error });
            }
        }
    }
}

fn tool_result(result: Raw) -> Result<Outcome, CallError> {
    match ToolResult::read(&result) {
        Ok(read) => Ok(Outcome::Result(result, read)),
        Err(reason) => Err(CallError::new(Code::ProviderInvalidOutput, reason).after_sending()),
    }
}

fn unavailable(upstream: &Upstream, error: &Unavailable) -> CallError {
    let code = match error {
        Unavailable::StillRestarting(_) => Code::RestartInProgress,
        Unavailable::Down { .. } | Unavailable::Stopped => Code::ProviderUnavailable,
        Unavailable::Failed(_) => Code::RestartFailed,
    };
    CallError::new(code, format!("server `{}` cannot be called: {error}", upstream.name()))
}
