//! The last step of stage four, for servers where it is wanted: whether a result keeps what its tool promises.

use std::sync::atomic::Ordering;

use bridgehead_upstream::Tool;
use bridgehead_wire::Code;
use tracing::warn;

use super::{Call, Chain, Outcome};
use crate::error::CallError;

/// The error that an outcome is where promises are enforced; told and counted in any case. A question is no result
/// yet, and what a tool calls an error has promised nothing.
pub(super) fn broken_promise(
    chain: &Chain,
    call: &Call<'_>,
    tool: &Tool,
    outcome: &Outcome,
) -> Option<CallError> {
    let Outcome::Result(_, result) = outcome else { return None };
    let why = tool.check_output(result.complete()?).err()?;
    chain.counters.invalid_outputs.fetch_add(1, Ordering::Relaxed);
    warn!(correlationId = %call.correlation, tool = %call.tool, server = call.server(), %why, "a result does not fit its output schema");
    let message = format!("the result of tool `{}` does not fit its output schema: {why}", call.tool);
    Some(CallError::new(Code::ProviderInvalidOutput, message).after_sending())
}
