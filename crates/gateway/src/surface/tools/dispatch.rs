//! Runs the tool, in this process or on its server.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bridgehead_config::Output;
use bridgehead_upstream::{Tool, Upstream};
use bridgehead_wire::{Code, RpcError, code};
use serde_json::{Value, json};
use tracing::debug;

use super::output::broken_promise;
use super::{CalledTool, envelope_result};
use crate::catalog::Target;
use crate::catalog::native::{self, BoundHandler, RegisteredTool};
use crate::error::GatewayError;
use crate::gate::{Call, CallRecord, Gate, Watched};
use crate::life::CancelReason;
use crate::relay::queue::Queue;
use crate::relay::request::{Outcome, RelayTarget, RelayedRequest, addressed, read};
use crate::relay::rewrite::{Input, Rewrite};

pub(super) async fn run(
    gate: &Gate,
    call: &Call<'_>,
    called: &CalledTool,
    (target, bound): (&Target, Option<BoundHandler<Value>>),
    record: &mut CallRecord,
) -> Outcome {
    let outcome = match (target, bound) {
        // Boxed, so that the future of a relayed call is no larger for it.
        (Target::Native(native), bound) => Box::pin(run_native(gate, call, called, (native, bound))).await,
        (Target::Upstream { upstream, tool, queue }, _) => {
            run_upstream(gate, call, called, (upstream, tool, queue), record).await
        }
    };
    outcome.unwrap_or_else(|error| {
        debug!(correlationId = %call.correlation, tool = %called.name, code = %error.code, %error, "call failed");
        Outcome::Failed(error)
    })
}

async fn run_native(
    gate: &Gate,
    call: &Call<'_>,
    called: &CalledTool,
    (native, bound): (&RegisteredTool, Option<BoundHandler<Value>>),
) -> Result<Outcome, GatewayError> {
    // The check has read the arguments of every Rust tool.
    let unread = || GatewayError::new(Code::HandlerError, "its arguments were not read");
    let bound = bound.ok_or_else(unread)?;
    if let Some(time) = &call.time {
        time.begun();
    }
    let watched = gate.cancels.watch(call.caller.session.number(), &called.name, call.correlation);
    let running = pin!(async {
        let data = native::run(gate, call, native.tool.named(), bound).await?;
        read(envelope_result(&json!({"ok": true, "data": data}), false, true), Input::Refused)
    });
    unless_cancelled(watched, running, |reason| given_up(None, &called.name, reason)).await
}

async fn run_upstream(
    gate: &Gate,
    call: &Call<'_>,
    called: &CalledTool,
    (upstream, tool, queue): (&Upstream, &Arc<Tool>, &Queue),
    record: &mut CallRecord,
) -> Result<Outcome, GatewayError> {
    let relayed = RelayedRequest {
        call,
        target: RelayTarget {
            kind: "tool",
            offered: &called.name,
            own: &tool.name,
            rewrite: (*tool.name != *called.name).then(|| Rewrite::name(&tool.name)),
            headers: &tool.headers,
            repeatable: tool.read_only || tool.idempotent,
        },
    };
    let watched = gate.cancels.watch(call.caller.session.number(), &called.name, call.correlation);
    let running = pin!(relayed.run(upstream, queue, &gate.signals, |queued| record.waited(queued)));
    let given_up = |reason| given_up(Some(upstream), &tool.name, reason);
    let outcome = unless_cancelled(watched, running, given_up).await?;
    let outcome = addressed(gate.uris, upstream.name().as_ref(), outcome)?;
    match upstream.config().output {
        Output::Off => Ok(outcome),
        Output::Report => {
            let _told = broken_promise(gate, call, called, tool, &outcome).await;
            Ok(outcome)
        }
        Output::Enforce => broken_promise(gate, call, called, tool, &outcome).await.map_or(Ok(outcome), Err),
    }
}

/// Races a call with its cancellation from outside. Resolving drops the call, which cancels it wherever it runs. Polled by
/// hand, because an outcome is large: `select!` would move it twice more.
fn unless_cancelled<R: Future<Output = Result<Outcome, GatewayError>>>(
    mut watched: Watched<'_>,
    mut running: Pin<&mut R>,
    given_up: impl Fn(CancelReason) -> R::Output,
) -> impl Future<Output = R::Output> {
    poll_fn(move |context| {
        if let Some(reason) = watched.cancelled() {
            return Poll::Ready(given_up(reason));
        }
        let outcome = running.as_mut().poll(context);
        let late = if outcome.is_pending() { watched.wait(context) } else { None };
        late.map_or(outcome, |reason| Poll::Ready(given_up(reason)))
    })
}

/// The end of a call that was cancelled from outside, not by its client.
fn given_up(upstream: Option<&Upstream>, tool: &str, reason: CancelReason) -> Result<Outcome, GatewayError> {
    let tool = match upstream.map(Upstream::name) {
        Some(server) => format!("tool `{tool}` of server `{server}`"),
        None => format!("tool `{tool}`"),
    };
    match reason {
        CancelReason::Timeout => {
            let message = format!("{tool} did not answer in time (tool failed: timeout)");
            Err(GatewayError::new(Code::ProviderTimeout, message).after_sending())
        }
        CancelReason::Client => {
            let message = format!("the call of {tool} was cancelled");
            Ok(Outcome::Relayed(RpcError::new(code::INTERNAL_ERROR, &message)))
        }
    }
}
