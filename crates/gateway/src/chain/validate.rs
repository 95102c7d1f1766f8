//! Stage two: the arguments against the tool's schema, compiled when the catalog was merged.

use serde_json::{Value, json};

use super::Call;
use crate::catalog::{Route, Target};
use crate::error::{CallError, Code};

/// Arguments that passed: decoded where somebody needed them decoded.
pub(super) enum Checked {
    Decoded(Value),
    Untouched,
}

/// Whether the call may go on. A tool that goes nowhere is a refusal like any other, so that it is audited
/// like any other.
pub(super) fn check(call: &Call<'_>) -> Result<Checked, CallError> {
    let route = call.route.as_ref().map_err(Clone::clone)?;
    if let Some(mode) = route.excluded_by {
        let message = format!("tool `{}` is not available in mode `{mode}`", call.tool);
        return Err(CallError::new(Code::ProviderToolUnknown, message));
    }
    if !call.arguments.is_object() {
        return Err(refuse(
            route,
            &json!([{"path": "", "schemaPath": "/type", "message": "the arguments must be an object"}]),
        ));
    }
    let native = matches!(route.target, Target::Native(_));
    let Some(validator) = route.validator() else { return Ok(Checked::Untouched) };
    let arguments: Value = match call.arguments.decode() {
        Ok(arguments) => arguments,
        Err(error) => {
            return Err(refuse(
                route,
                &json!([{"path": "", "schemaPath": "", "message": error.to_string()}]),
            ));
        }
    };
    match validator.check(&arguments) {
        Ok(()) if native => Ok(Checked::Decoded(arguments)),
        Ok(()) => Ok(Checked::Untouched),
        Err(issues) => Err(refuse(route, &json!(issues))),
    }
}

fn refuse(route: &Route, issues: &Value) -> CallError {
    CallError::new(
        Code::InvalidParams,
        format!("the arguments do not fit the schema of tool `{}`", route.name),
    )
    .with_details(json!({"issues": issues}))
}
