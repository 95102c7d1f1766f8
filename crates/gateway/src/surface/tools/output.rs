//! Checks results against the tool's output schema, for servers where the configuration asks for it.

use std::sync::Arc;

use bridgehead_events::Signal;
use bridgehead_schema::Effort;
use bridgehead_upstream::{OutputError, Tool};
use bridgehead_wire::{Code, Object};

use super::CalledTool;
use crate::error::GatewayError;
use crate::gate::{Call, Gate, Subject};
use crate::relay::request::Outcome;

/// The error for a result that does not fit its schema; signalled even if the error is not enforced. A
/// question is not a result yet, and a result with `isError` need not fit.
pub(super) async fn broken_promise(
    gate: &Gate,
    call: &Call<'_>,
    called: &CalledTool,
    tool: &Arc<Tool>,
    outcome: &Outcome,
) -> Option<GatewayError> {
    let Outcome::Result(_, result) = outcome else { return None };
    let result = result.complete()?;
    let why = match tool.check_output(result, Effort::Brief) {
        Ok(()) => return None,
        Err(OutputError::Broken(why)) => why,
        Err(OutputError::TooSlow) => {
            Box::pin(check_apart(gate, call, called, Arc::clone(tool), result.clone())).await.err()?
        }
    };
    gate.signals.emit(&Signal::OutputInvalid {
        correlation: call.correlation,
        tool: &called.name,
        server: called.server().map(|server| &**server),
        why: &why,
    });
    let message = format!("the result of tool `{}` does not fit its output schema: {why}", called.name);
    Some(GatewayError::new(Code::ProviderInvalidOutput, message).after_sending())
}

async fn check_apart(
    gate: &Gate,
    call: &Call<'_>,
    called: &CalledTool,
    tool: Arc<Tool>,
    result: Object,
) -> Result<(), String> {
    let checked = gate
        .apart(call, (&called.name, called.limits(gate)), move || tool.check_output(&result, Effort::Full))
        .await;
    checked.map_err(|error| error.message)?.map_err(|error| error.to_string())
}
