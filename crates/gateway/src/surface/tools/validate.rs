//! Checks the arguments against the tool's schema, and has a Rust handler read them.
//!
//! A check that takes more than a few milliseconds runs on a thread of its own, and only a few of these run
//! at once, because the serving threads have other calls. The schema counts the work beforehand.

use std::sync::Arc;

use bridgehead_schema::{Effort, Issue, Unfit, without_schema};
use bridgehead_wire::{Code, Raw};
use serde_json::{Value, json};

use super::CalledTool;
use crate::catalog::native::BoundHandler;
use crate::catalog::{Route, Target};
use crate::error::GatewayError;
use crate::gate::{Call, Gate};

/// Whether the call may continue, and the handler of a Rust tool with its arguments. A call without a route is
/// refused here, so that it is audited like any other refusal.
pub(super) async fn check(
    gate: &Gate,
    call: &Call<'_>,
    called: &CalledTool,
) -> Result<(Arc<Route>, Option<BoundHandler<Value>>), GatewayError> {
    let route = called.route.as_ref().map_err(Clone::clone)?;
    if let Some(mode) = route.excluded_by {
        let message = format!("tool `{}` is not available in mode `{mode}`", called.name);
        return Err(GatewayError::new(Code::ProviderToolUnknown, message));
    }
    if !called.arguments.is_object() {
        return Err(refuse(
            route,
            &json!([{"path": "", "schemaPath": "/type", "message": "the arguments must be an object"}]),
        ));
    }
    let arguments = match read(route, &called.arguments, Effort::Brief) {
        Ok(arguments) => arguments,
        Err(Unfit::Issues(issues)) => return Err(refuse(route, &json!(issues))),
        Err(Unfit::TooSlow) => Box::pin(read_apart(gate, call, called, route)).await?,
    };
    let bound = match &route.target {
        Target::Native(native) => Some(native.tool.read(arguments, gate.debug_errors)?),
        Target::Upstream { .. } => None,
    };
    Ok((Arc::clone(route), bound))
}

/// The arguments, if they fit.
fn read(route: &Route, arguments: &Raw, effort: Effort) -> Result<Value, Unfit> {
    let validator = match &route.target {
        Target::Native(native) => Some(&native.validator),
        Target::Upstream { tool, .. } => tool.validator.as_ref(),
    };
    match validator {
        Some(validator) => validator.read(arguments.as_str(), effort),
        None => without_schema(arguments.as_str(), effort).map(|()| Value::Null),
    }
}

async fn read_apart(
    gate: &Gate,
    call: &Call<'_>,
    called: &CalledTool,
    route: &Arc<Route>,
) -> Result<Value, GatewayError> {
    let (checked, arguments) = (Arc::clone(route), called.arguments.clone());
    let outcome = gate
        .apart(call, (&called.name, called.limits(gate)), move || read(&checked, &arguments, Effort::Full))
        .await?;
    outcome.map_err(|unfit| refuse(route, &json!(issues(unfit))))
}

/// A full effort always yields issues.
fn issues(unfit: Unfit) -> Vec<Issue> {
    if let Unfit::Issues(issues) = unfit { issues } else { Vec::new() }
}

fn refuse(route: &Route, issues: &Value) -> GatewayError {
    GatewayError::new(
        Code::InvalidParams,
        format!("the arguments do not fit the schema of tool `{}`", route.name),
    )
    .with_details(&json!({"issues": issues}))
}

#[cfg(test)]
mod tests {
    use bridgehead_config::Mode;

    use super::*;
    use crate::catalog::native::{NativeTool, Natives};

    /// PIPE-3: arguments that fit are passed to the handler; others are refused with the place and the
    /// reason, and so are duplicate names.
    #[test]
    fn arguments_by_schema() {
        #[track_caller]
        fn check(arguments: &'static str, expected: &Result<Value, (&str, &str)>) {
            let schema =
                json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
            let tool = NativeTool::new("t", "", schema, |_, _| std::future::pending());
            let mut natives = Natives::default();
            natives.add_tool(tool, Mode::Full).unwrap();
            let route = crate::catalog::tests::of_native(&natives);
            for effort in [Effort::Brief, Effort::Full] {
                let read = read(&route, &Raw::literal(arguments), effort);
                let read = read.map_err(|unfit| {
                    let issues = json!(issues(unfit));
                    (issues[0]["path"].clone(), issues[0]["schemaPath"].clone())
                });
                let expected = expected.clone().map_err(|(path, schema)| (json!(path), json!(schema)));
                assert_eq!(read, expected, "{arguments}");
            }
        }
        check(r#"{"n":1,"m":[true]}"#, &Ok(json!({"n": 1, "m": [true]})));
        check("{}", &Err(("", "/required")));
        check(r#"{"n":"1"}"#, &Err(("/n", "/properties/n/type")));
    }
}
