//! The surfaces, one file each: what a request is about, which checks it needs, what answers it, and how the
//! answer is presented. The gate (`gate/`) defines the order of these steps.

pub(crate) mod completion;
pub(crate) mod own;
pub(crate) mod prompts;
pub(crate) mod refused;
pub(crate) mod resources;
pub(crate) mod tasks;
pub(crate) mod tools;

use bridgehead_upstream::Features;
use bridgehead_wire::{ClientMethod, Code, Era, Method, Object, Raw, RpcError, Shape, Spliced, code, key};
use bytes::Bytes;
use serde_json::{Value, json};
use tracing::debug;

use crate::caller::ClientRequest;
use crate::catalog::items::Owner;
use crate::error::GatewayError;
use crate::gate::{Call, CallRecord, Gate};
use crate::relay::request::{Outcome, RelayedRequest, addressed};

/// Whether a method is served, given the features of the servers.
pub(crate) const fn is_served(method: &Method, features: Features) -> bool {
    match method.of_client() {
        Some(
            ClientMethod::Discover | ClientMethod::ToolsList | ClientMethod::ToolsCall | ClientMethod::Listen,
        ) => true,
        Some(ClientMethod::PromptsList | ClientMethod::PromptsGet) => features.prompts,
        Some(ClientMethod::ResourcesList | ClientMethod::TemplatesList | ClientMethod::ResourcesRead) => {
            features.resources
        }
        Some(ClientMethod::Complete) => features.completions,
        Some(ClientMethod::Subscribe | ClientMethod::Unsubscribe) => features.subscribe,
        Some(ClientMethod::SetLevel) => features.logging,
        Some(ClientMethod::TasksGet | ClientMethod::TasksUpdate | ClientMethod::TasksCancel) => {
            features.tasks
        }
        // The front answers these two.
        Some(ClientMethod::Initialize | ClientMethod::Ping) | None => false,
    }
}

/// The capabilities that the gateway declares to clients of an era, given the features of the servers. The
/// gateway's lists change with the servers, so `listChanged` is always declared. Extensions are declared if
/// the gateway can relay them.
pub(crate) fn capabilities(features: Features, experimental: Option<&Raw>, era: Era) -> Value {
    let mut capabilities = json!({"tools": {"listChanged": true}});
    if features.prompts {
        capabilities["prompts"] = json!({"listChanged": true});
    }
    if features.resources {
        capabilities["resources"] = json!({"listChanged": true});
        if features.subscribe {
            capabilities["resources"]["subscribe"] = json!(true);
        }
    }
    if features.logging {
        capabilities["logging"] = json!({});
    }
    if features.completions {
        capabilities["completions"] = json!({});
    }
    if let Some(experimental) = experimental.and_then(|raw| raw.decode::<Value>().ok()) {
        capabilities["experimental"] = experimental;
    }
    if era == Era::Modern {
        for (has, name) in [(features.tasks, key::TASKS), (features.ui, key::UI)] {
            if has {
                capabilities["extensions"][name] = json!({});
            }
        }
    }
    capabilities
}

/// The text of a member of the params, which must occur exactly once.
pub(crate) fn named(params: &Object, member: &'static str, what: &str) -> Result<String, RpcError> {
    if params.repeats(member) {
        let message = format!("`{member}` appears more than once");
        return Err(RpcError::new(code::INVALID_PARAMS, &message));
    }
    params.get(member).and_then(|name| name.to_text()).ok_or_else(|| {
        RpcError::new(code::INVALID_PARAMS, &format!("`{member}` must be the {member} of a {what}"))
    })
}

/// The params without `_meta`, as the record keeps them.
fn said(request: &ClientRequest) -> Bytes {
    let mut edit = request.params.edit();
    edit.remove(key::META);
    edit.finish().to_raw().bytes().clone()
}

/// Whether the client is told how long it may cache a result.
#[derive(Clone, Copy)]
enum Keep {
    /// The result has no such member.
    Never,
    /// The client is told: what the server says, or else not to cache it.
    Moment,
}

impl Gate {
    /// Carries a request to its server; a failure names the server.
    async fn relay(&self, relayed: &RelayedRequest<'_>, owner: &Owner, record: &mut CallRecord) -> Outcome {
        let outcome =
            relayed.run(&owner.upstream, &owner.queue, &self.signals, |queued| record.waited(queued)).await;
        let outcome = outcome.and_then(|outcome| addressed(self.uris, &owner.server, outcome));
        outcome.unwrap_or_else(|error| {
            debug!(correlationId = %relayed.call.correlation, kind = relayed.target.kind, server = %owner.server, code = %error.code, %error, "request failed");
            Outcome::Failed(error.of_server(&owner.server))
        })
    }

    /// The client's answer for anything but a tool: a failure is always a JSON-RPC error.
    fn tell(
        &self,
        call: &Call<'_>,
        (kind, name): (&'static str, &str),
        outcome: Outcome,
        keep: Keep,
    ) -> Result<Spliced, RpcError> {
        let (revision, info) = (call.caller.revision, &self.server_info);
        match outcome {
            Outcome::Result(_, reply) => Ok(match keep {
                Keep::Never => reply.finish(revision, info, call.correlation),
                Keep::Moment => reply.finish_kept(revision, info, call.correlation),
            }),
            Outcome::Prepared(result) => Ok(result),
            Outcome::Relayed(error) => Err(error),
            Outcome::Failed(error) => Err(told(&error, kind, name, call)),
        }
    }
}

/// A failure as a JSON-RPC error, even if a tool call would get it as a tool result.
fn told(error: &GatewayError, kind: &'static str, name: &str, call: &Call<'_>) -> RpcError {
    error.to_rpc(rpc_code(error), None, (kind, name), call.correlation)
}

/// The code of JSON-RPC for a failure.
pub(crate) fn rpc_code(error: &GatewayError) -> i64 {
    match error.code.shape() {
        Shape::Rpc(code) => code,
        Shape::ToolResult if error.code == Code::InvalidParams => code::INVALID_PARAMS,
        Shape::ToolResult | Shape::Internal => code::INTERNAL_ERROR,
    }
}

/// The error for a cursor of another list.
pub(crate) fn foreign_cursor() -> RpcError {
    RpcError::new(code::INVALID_PARAMS, "the cursor does not belong to this list; start without one")
}

/// The error for a method that is not served to this client.
pub(crate) fn not_offered(method: &Method) -> RpcError {
    RpcError::new(code::METHOD_NOT_FOUND, &format!("method `{method}` is not offered"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is declared is served, and nothing else.
    #[test]
    fn declared_and_served() {
        let none = Features::default();
        let all = Features { prompts: true, resources: true, completions: true, ..none };
        let declared = |features| capabilities(features, None, Era::Modern);
        assert_eq!(declared(none), json!({"tools": {"listChanged": true}}));
        assert_eq!(declared(all)["prompts"], json!({"listChanged": true}));
        assert_eq!(declared(all)["completions"], json!({}));
        let extended = Features { tasks: true, ui: true, ..none };
        let extensions = json!({"io.modelcontextprotocol/tasks": {}, "io.modelcontextprotocol/ui": {}});
        assert_eq!(declared(extended)["extensions"], extensions);
        let legacy = capabilities(extended, Some(&Raw::literal(r#"{"x":{}}"#)), Era::Legacy);
        assert_eq!(legacy, json!({"tools": {"listChanged": true}, "experimental": {"x": {}}}));
        for method in [Method::PromptsGet, Method::ResourcesRead, Method::TemplatesList, Method::Complete] {
            assert!(is_served(&method, all) && !is_served(&method, none), "{method}");
        }
        assert!(is_served(&Method::ToolsCall, none) && !is_served(&Method::Initialize, all));
    }
}
