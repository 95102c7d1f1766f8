//! Stage two: the arguments against the tool's schema, compiled when the catalog was merged.

use bridgehead_schema::Validator;
use bridgehead_upstream::{Tool, Upstream};
use bridgehead_wire::Code;
use serde_json::{Value, json};

use super::Call;
use crate::catalog::{Registered, Route, Target};
use crate::error::CallError;
use crate::queue::Queue;

/// A call that may go on: who runs it, and the arguments where somebody takes them decoded.
pub(super) enum Checked<'c> {
    Native(&'c Registered, Value),
    Upstream(&'c Upstream, &'c Tool, &'c Queue),
}

/// Whether the call may go on. A tool that goes nowhere is a refusal like any other, so that it is audited
/// like any other.
pub(super) fn check<'c>(call: &'c Call<'_>) -> Result<Checked<'c>, CallError> {
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
    match &route.target {
        Target::Native(native) => {
            Ok(Checked::Native(native, fitting_arguments(call, route, &native.validator)?))
        }
        Target::Upstream { upstream, tool, queue } => {
            if let Some(validator) = &tool.validator {
                fitting_arguments(call, route, validator)?;
            }
            Ok(Checked::Upstream(upstream, tool, queue))
        }
    }
}

fn fitting_arguments(call: &Call<'_>, route: &Route, validator: &Validator) -> Result<Value, CallError> {
    let arguments: Value = call.arguments.decode().map_err(|error| {
        // An object all right, but with a number or a depth that nobody can compute with.
        refuse(route, &json!([{"path": "", "schemaPath": "", "message": error.to_string()}]))
    })?;
    match validator.check(&arguments) {
        Ok(()) => Ok(arguments),
        Err(issues) => Err(refuse(route, &json!(issues))),
    }
}

fn refuse(route: &Route, issues: &Value) -> CallError {
    CallError::new(
        Code::InvalidParams,
        format!("the arguments do not fit the schema of tool `{}`", route.name),
    )
    .with_details(&json!({"issues": issues}))
}
