//! Calls of tools, built-in or on a server: check the arguments, run the tool, check the result against its
//! output schema.

mod dispatch;
mod output;
mod validate;

use std::pin::pin;
use std::sync::Arc;

use bridgehead_wire::{Code, Raw, RpcError, Shape, Spliced, code};
use bytes::Bytes;
use serde_json::{Value, json};
use tracing::Instrument;
use tracing::field::Empty;

use super::Keep;
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::{Catalog, Route, Target, ToolLock};
use crate::error::CallError;
use crate::gate::{Call, CallRecord, Gate, Limits, Subject};
use crate::gateway::Gateway;
use crate::relay::request::Outcome;
use crate::relay::rewrite::{Input, Reply};
use crate::relay::trace::Trace;

/// One tool, by the name that the client used.
pub(crate) struct CalledTool {
    name: Arc<str>,
    /// The route, or why there is none.
    route: Result<Arc<Route>, CallError>,
    arguments: Raw,
    /// Whether the authorizer decides about this call by its arguments.
    by_arguments: bool,
}

impl Gateway {
    pub(crate) async fn call_tool(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let Some(name) = request.params.get("name").and_then(|name| name.to_text()) else {
            return Err(RpcError::new(code::INVALID_PARAMS, "`params.name` must be the name of a tool"));
        };
        let find = |view: &Catalog| Some((Arc::clone(view.route(&name)?), view.asks_about(&name)));
        let mut found = find(&self.inner().view(&caller.principal));
        if found.is_none() {
            // A client may know the name from an earlier list while the server is still starting.
            found = Box::pin(self.wait_for(&caller.principal, Some(&name), find)).await;
        }
        let (route, by_arguments) = match found {
            Some((route, by_arguments)) => (Ok(route), by_arguments),
            None => (Err(self.inner().why_unknown(&caller.principal, "tool", &name)), false),
        };
        let mut call = Call::new(caller, request, progress);
        let span = tracing::debug_span!(
            "call", correlationId = %call.correlation, tool = %name, principal = %caller.principal,
            traceId = Empty, spanId = Empty, parentSpanId = Empty,
        );
        call.trace = Trace::of(&span, &request.meta, call.correlation);
        let tool = CalledTool::new(&name, route, request, by_arguments);
        // Pinned where it is made, as around every large instrumented future: `instrument` moves its future
        // twice.
        let outcome = pin!(self.inner().gate.pass(&call, &tool)).instrument(span).await;
        let outcome = match outcome {
            Outcome::Result(result, reply) if reply.is_task() => {
                self.inner().offer_task(caller, tool.server(), &result)
            }
            outcome => outcome,
        };
        tool.answer(&self.inner().gate, &call, outcome)
    }
}

impl CalledTool {
    fn new(
        name: &str,
        route: Result<Arc<Route>, CallError>,
        request: &ClientRequest,
        by_arguments: bool,
    ) -> Self {
        Self {
            by_arguments,
            name: route.as_ref().map_or_else(|_| name.into(), |route| Arc::clone(&route.name)),
            route,
            arguments: request.params.get("arguments").unwrap_or(Raw::literal("{}")),
        }
    }

    /// What the client gets for its call.
    fn answer(&self, gate: &Gate, call: &Call<'_>, outcome: Outcome) -> Result<Spliced, RpcError> {
        let revision = call.caller.revision;
        match outcome {
            Outcome::Failed(error) => match error.code.shape() {
                Shape::Rpc(code) => {
                    let server = self.routed_server().map(|server| &**server);
                    Err(error.to_rpc(code, server, ("tool", &self.name), call.correlation))
                }
                Shape::ToolResult | Shape::Internal => {
                    let structured = self.routed_server().is_none();
                    let result = envelope_result(&error.envelope(), true, structured);
                    let marked = Reply::read(&result, Input::Refused)
                        .map(|result| result.finish(revision, &gate.server_info, call.correlation));
                    Ok(marked.unwrap_or_else(|_| result.into()))
                }
            },
            outcome => gate.tell(call, ("tool", &self.name), outcome, Keep::Never),
        }
    }

    fn limits(&self, gate: &Gate) -> Limits {
        match self.route.as_ref().map(|route| &route.target) {
            Ok(Target::Upstream { upstream, .. }) => {
                let limits = upstream.config();
                Limits { silent: limits.request_timeout, total: limits.max_total }
            }
            _ => gate.limits,
        }
    }

    /// The server that the call goes to.
    fn routed_server(&self) -> Option<&Arc<str>> {
        self.route.as_ref().ok().and_then(|route| route.server.as_ref())
    }
}

impl Subject for CalledTool {
    /// The route, and the arguments, decoded for a tool that takes them so.
    type Checked = (Arc<Route>, Value);

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn server(&self) -> Option<&Arc<str>> {
        match &self.route {
            Ok(route) => route.server.as_ref(),
            Err(error) => error.server.as_ref(),
        }
    }

    fn arguments(&self) -> Bytes {
        self.arguments.bytes().clone()
    }

    fn authorize(&self, gate: &Gate, call: &Call<'_>) -> Result<(), CallError> {
        let (true, Some(authorizer), Ok(route)) = (self.by_arguments, &gate.authorizer, &self.route) else {
            return Ok(());
        };
        if authorizer.allows_call(&call.caller.principal, route.thing(), &self.arguments) {
            return Ok(());
        }
        let message = format!("tool `{}` may not be called with these arguments", self.name);
        Err(CallError::new(Code::InvalidParams, message))
    }

    fn lock(&self, gate: &Gate) -> Option<(&ToolLock, Limits)> {
        let lock = self.route.as_ref().ok()?.lock.as_ref()?;
        Some((lock, self.limits(gate)))
    }

    async fn check(&self, gate: &Gate, call: &Call<'_>) -> Result<Self::Checked, Outcome> {
        validate::check(gate, call, self).await.map_err(Outcome::Failed)
    }

    async fn dispatch(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        (route, arguments): Self::Checked,
        record: &mut CallRecord,
    ) -> Outcome {
        dispatch::run(gate, call, self, (&route.target, arguments), record).await
    }
}

/// ENV-1: the envelope as text and, for the gateway's own tools, also as structured content with the same
/// JSON.
fn envelope_result(envelope: &Value, is_error: bool, structured: bool) -> Raw {
    let text = envelope.to_string();
    let mut result = json!({"content": [{"type": "text", "text": text}], "isError": is_error});
    if structured {
        result["structuredContent"] = envelope.clone();
    }
    Raw::encode(&result)
}
