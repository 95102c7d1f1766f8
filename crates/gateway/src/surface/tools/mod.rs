//! Calls of tools, built-in or on a server: check the arguments, run the tool, check the result against its
//! output schema.

pub(crate) mod direct;
mod dispatch;
mod output;
mod validate;

use std::pin::pin;
use std::sync::Arc;

use bridgehead_upstream::Upstream;
use bridgehead_wire::{Code, Raw, RpcError, Shape, Spliced, code};
use bytes::Bytes;
use serde_json::{Value, json};
use tracing::Instrument;
use tracing::field::Empty;

use super::Keep;
use crate::access::{Action, Principal, Scopes};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::native::BoundHandler;
use crate::catalog::view::Condition;
use crate::catalog::{Catalog, Route, Target, ToolLock};
use crate::error::GatewayError;
use crate::gate::{Call, CallRecord, Gate, Limits, Subject, TimeLimit};
use crate::gateway::Gateway;
use crate::life::waiting::Holder;
use crate::relay::request::Outcome;
use crate::relay::rewrite::{Input, Reply};
use crate::relay::trace::Trace;

/// One tool, by the name that the client used.
pub(crate) struct CalledTool {
    name: Arc<str>,
    /// The route, or why there is none.
    route: Result<Arc<Route>, GatewayError>,
    arguments: Raw,
    /// What the call must meet, although the tool exists.
    condition: Option<Condition>,
    /// Why there is no route, if the tool exists for others.
    denied: Option<String>,
}

/// What a name stands for in the view of a principal.
struct FoundTool {
    /// The route, or why there is none.
    route: Result<Arc<Route>, GatewayError>,
    condition: Option<Condition>,
    denied: Option<String>,
}

impl FoundTool {
    const fn refused(why: GatewayError) -> Self {
        Self { route: Err(why), condition: None, denied: None }
    }
}

impl Gateway {
    pub(crate) async fn call_tool(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let Some(name) = request.params.text("name") else {
            return Err(RpcError::new(code::INVALID_PARAMS, "`params.name` must be the name of a tool"));
        };
        let found = self.find_tool(&caller.principal, &name, None).await;
        let mut call = Call::new(caller, request, progress);
        let span = span_of(&call, &name);
        call.trace = Trace::of(&span, &request.meta, call.correlation);
        let arguments = request.params.get("arguments").unwrap_or(Raw::literal("{}"));
        let tool = CalledTool::of(&name, found, arguments);
        // Pinned where it is made, as around every large instrumented future: `instrument` moves its future
        // twice.
        let outcome = pin!(self.inner().gate.pass(&call, &tool)).instrument(span).await;
        let outcome = match outcome {
            Outcome::Result(result, reply) if reply.is_task() => {
                self.inner().offer_task(caller, tool.route.as_deref().ok(), &result)
            }
            outcome => outcome,
        };
        tool.answer(&self.inner().gate, &call, outcome)
    }

    /// Looks a name up in the view of a principal. While servers are starting, an unknown name waits for them, and one from a
    /// saved list waits for its server: the call is decided and checked by what the server lists now.
    async fn find_tool(&self, principal: &Principal, name: &str, time: Option<&TimeLimit>) -> FoundTool {
        let find = |view: &Catalog| {
            let route = view.route(name).filter(|route| !route.is_provisional())?;
            Some((Arc::clone(route), view.condition(name).cloned()))
        };
        let mut found = find(&self.inner().view(principal));
        if found.is_none() {
            // A client may know the name from an earlier list while the server is still starting.
            let saved = self.inner().view(principal).route(name).cloned();
            let server = saved.as_deref().and_then(Route::upstream);
            // A server that sleeps on its saved list wakes.
            let _awake = server.and_then(Upstream::hold);
            let holder = server.map_or(Holder::Named(name), Holder::Known);
            let waiting = Box::pin(self.wait_for(principal, holder, find));
            found = match time {
                Some(time) => Box::pin(time.within(waiting)).await.flatten(),
                None => waiting.await,
            };
        }
        match found {
            Some((route, condition)) => FoundTool { route: Ok(route), condition, denied: None },
            None => {
                let inner = self.inner();
                let unknown = inner.why_unknown(principal, "tool", name);
                let late = time.filter(|time| time.is_spent());
                let unknown = late.map_or_else(|| unknown.clone(), |time| time.ended_with(name, &unknown));
                let denied = inner.why_denied(principal, Action::Call, |whole| {
                    whole.route(name).map(|route| route.thing())
                });
                FoundTool { route: Err(unknown), condition: None, denied }
            }
        }
    }
}

/// Whether a principal has all scopes that a call of a tool needs. The error lists those that every request needs, too: a client
/// asks for what it is told, and gets no more than that.
pub(crate) fn has_scopes(principal: &Principal, needed: &Scopes, tool: &str) -> Result<(), GatewayError> {
    let has = |needed: &Arc<str>| principal.scopes().any(|scope| *scope == **needed);
    if needed.iter().all(has) {
        return Ok(());
    }
    let message =
        format!("tool `{tool}` needs scopes that the credential does not have: `{}`", needed.join(" "));
    let tool_only = needed.iter().filter(|needed| !principal.required_scopes().any(|known| known == *needed));
    let all: Scopes = principal.required_scopes().chain(tool_only).cloned().collect();
    Err(GatewayError::new(Code::InsufficientScope, message).needing(all))
}

/// The span of a call.
fn span_of(call: &Call<'_>, tool: &str) -> tracing::Span {
    tracing::debug_span!(
        "call", correlationId = %call.correlation, tool = %tool, principal = %call.caller.principal,
        traceId = Empty, spanId = Empty, parentSpanId = Empty,
    )
}

impl CalledTool {
    #[inline]
    fn of(name: &str, found: FoundTool, arguments: Raw) -> Self {
        let FoundTool { route, condition, denied } = found;
        let name = route.as_ref().map_or_else(|_| name.into(), |route| Arc::clone(&route.name));
        Self { name, route, arguments, condition, denied }
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
                let clocks = upstream.config().clocks();
                Limits { silent: clocks.silent, total: clocks.total }
            }
            _ => gate.limits,
        }
    }

    /// Whether the call meets the condition of its tool.
    #[cold]
    fn meets(&self, condition: &Condition, gate: &Gate, principal: &Principal) -> Result<(), GatewayError> {
        match condition {
            Condition::Scopes(needed) => has_scopes(principal, needed, &self.name),
            Condition::ByArguments => {
                let asked = gate.authorizer.as_ref().zip(self.route.as_ref().ok());
                let allowed = asked.is_some_and(|(authorizer, route)| {
                    authorizer.allows_call(principal, route.thing(), &self.arguments)
                });
                let message = || format!("tool `{}` may not be called with these arguments", self.name);
                if allowed { Ok(()) } else { Err(GatewayError::new(Code::InvalidParams, message())) }
            }
        }
    }

    /// The server that the call goes to.
    fn routed_server(&self) -> Option<&Arc<str>> {
        self.route.as_ref().ok().and_then(|route| route.server.as_ref())
    }
}

impl Subject for CalledTool {
    /// The route, and the handler of a Rust tool, ready to run.
    type Checked = (Arc<Route>, Option<BoundHandler<Value>>);

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn own_name(&self) -> Option<&str> {
        self.route.as_ref().ok().map(|route| route.thing().name)
    }

    fn server(&self) -> Option<&Arc<str>> {
        match &self.route {
            Ok(route) => route.server.as_ref(),
            Err(error) => error.server.as_ref(),
        }
    }

    #[inline]
    fn arguments(&self) -> Bytes {
        self.arguments.bytes().clone()
    }

    #[inline]
    fn denied(&self) -> Option<&str> {
        self.denied.as_deref()
    }

    #[inline]
    fn authorize(&self, gate: &Gate, call: &Call<'_>) -> Result<(), GatewayError> {
        match &self.condition {
            None => Ok(()),
            Some(condition) => self.meets(condition, gate, &call.caller.principal),
        }
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
        (route, bound): Self::Checked,
        record: &mut CallRecord,
    ) -> Outcome {
        dispatch::run(gate, call, self, (&route.target, bound), record).await
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

#[cfg(test)]
mod tests {
    use bridgehead_call::CorrelationId;

    use super::*;
    use crate::error::missing_scope;

    /// ACC-3 (case 16): the error of a missing scope names what every request and what the call needs, each once.
    #[test]
    fn all_needed_scopes_are_named_at_once() {
        #[track_caller]
        fn check(principal: &Principal, expected: Option<&str>) {
            let needed: Scopes = ["use".into(), "write".into()].into();
            let error = has_scopes(principal, &needed, "t").err();
            let told = error.map(|error| error.to_rpc(-32603, None, ("tool", "t"), CorrelationId::mint()));
            assert_eq!(told.as_ref().and_then(missing_scope).as_deref(), expected);
        }
        let ada = || Principal::named("ada");
        check(&ada().with_scopes(["write", "use", "more"]), None);
        check(&ada().with_scopes(["write"]), Some("use write"));
        check(&ada().with_scopes(["see", "use"]).requiring(["see", "use"]), Some("see use write"));
    }
}
