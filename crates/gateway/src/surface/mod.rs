//! Prompts, resources and completion: found in the catalog, asked of their server, told in the client's era.
//!
//! None of them passes the gate, which is for calls of tools; what an errand does holds for all of them.

pub(crate) mod tasks;

use std::sync::Arc;

use bridgehead_audit::CorrelationId;
use bridgehead_schema::{Effort, Unfit, without_schema};
use bridgehead_upstream::Features;
use bridgehead_wire::{Era, Method, Object, Raw, RpcError, Shape, Spliced, code, key};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::Catalog;
use crate::catalog::items::{Merged, Owner};
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::relay::request::{Outcome, RelayedRequest, Subject, addressed};
use crate::relay::rewrite::{Input, Rewrite};

/// Whether a method is there if servers have these features.
pub(crate) const fn is_served(method: &Method, features: Features) -> bool {
    match method {
        Method::Discover | Method::ToolsList | Method::ToolsCall => true,
        Method::PromptsList | Method::PromptsGet => features.prompts,
        Method::ResourcesList | Method::TemplatesList | Method::ResourcesRead => features.resources,
        Method::Complete => features.completions,
        Method::Subscribe | Method::Unsubscribe => features.subscribe,
        Method::SetLevel => features.logging,
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => features.tasks,
        Method::Listen => true,
        _ => false,
    }
}

/// The capabilities that we declare to clients of an era where servers have these features. Our lists change with the
/// servers, whatever they say of theirs. Of extensions there are those that we can relay.
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

/// The correlation id that came with a request, or a new one.
pub(crate) fn correlation(request: &ClientRequest) -> CorrelationId {
    request.meta.correlation_id.as_deref().and_then(CorrelationId::parse).unwrap_or_else(CorrelationId::mint)
}

/// The text of a member of the params, which must be there once.
pub(crate) fn named(params: &Object, member: &'static str, what: &str) -> Result<String, RpcError> {
    if params.repeats(member) {
        let message = format!("`{member}` stands more than once");
        return Err(RpcError::new(code::INVALID_PARAMS, &message));
    }
    params.get(member).and_then(|name| name.to_text()).ok_or_else(|| {
        RpcError::new(code::INVALID_PARAMS, &format!("`{member}` must be the {member} of a {what}"))
    })
}

impl Gateway {
    pub(crate) async fn list_merged(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        merged: fn(&Catalog) -> &Arc<Merged>,
    ) -> Result<Spliced, RpcError> {
        let cursor = self.cursor(request).await?;
        let catalog = self.inner().catalog.load();
        merged(&catalog).list(caller.revision, cursor.as_deref()).ok_or_else(foreign_cursor)
    }

    pub(crate) async fn get_prompt(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let name = named(&request.params, "name", "prompt")?;
        if let Some(arguments) = request.params.get("arguments")
            && let Err(Unfit::Issues(issues)) = without_schema(arguments.as_str(), Effort::Full)
        {
            let message = "two arguments have the same name";
            return Err(RpcError::with_data(code::INVALID_PARAMS, message, &json!({"issues": issues})));
        }
        let correlation = correlation(request);
        let mut entry = self.inner().catalog.load().prompts.get(&name).cloned();
        if entry.is_none() {
            entry = Box::pin(self.wait_for(Some(&name), |catalog| catalog.prompts.get(&name).cloned())).await;
        }
        let Some(entry) = entry else {
            return Err(self.inner().why_unknown("prompt", &name).told("prompt", None, &name, correlation));
        };
        let own = entry.item.name.as_str();
        let relayed = RelayedRequest {
            caller,
            request,
            subject: Subject {
                kind: "prompt",
                offered: &entry.name,
                own,
                rewrite: (*entry.name != *own).then(|| Rewrite::name(own)),
                headers: &[],
                repeatable: true,
            },
            began: Instant::now(),
            correlation,
            progress: progress.as_ref(),
            trace: None,
        };
        let outcome = self.carry(&relayed, &entry.owner).await;
        self.tell(&relayed, &entry.owner, outcome, Keep::Never)
    }

    pub(crate) async fn read_resource(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let uri = named(&request.params, "uri", "resource")?;
        let own = self.inner().catalog.load().own_uri(&uri).to_owned();
        let relayed = RelayedRequest {
            caller,
            request,
            subject: Subject {
                kind: "resource",
                offered: &uri,
                own: &own,
                rewrite: (own != uri).then(|| Rewrite { member: "uri", value: Raw::string(&own).into() }),
                headers: &[],
                repeatable: true,
            },
            began: Instant::now(),
            correlation: correlation(request),
            progress: progress.as_ref(),
            trace: None,
        };
        let mut owners = self.inner().catalog.load().owners(&uri);
        if owners.is_empty() {
            let find = |catalog: &Catalog| Some(catalog.owners(&uri)).filter(|owners| !owners.is_empty());
            owners = Box::pin(self.wait_for(None, find)).await.unwrap_or_default();
        } else if owners.len() > 1 {
            self.wait_for_servers().await;
            owners = self.inner().catalog.load().owners(&uri);
        }
        let asked = owners.len();
        let mut failed = None;
        for owner in owners {
            let outcome = self.carry(&relayed, &owner).await;
            match outcome {
                // Nobody said that it has this one, so a refusal only means that it is not there.
                Outcome::Relayed(_) if asked > 1 => {}
                Outcome::Failed(_) if asked > 1 => failed = Some((outcome, owner)),
                outcome => return self.tell(&relayed, &owner, outcome, Keep::Moment),
            }
        }
        match failed {
            Some((outcome, owner)) => self.tell(&relayed, &owner, outcome, Keep::Moment),
            None => Err(resource_not_found(caller.era(), "no server has this resource", None, &uri)),
        }
    }

    pub(crate) async fn complete(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let refused = || {
            let message = "`ref` must be a `ref/prompt` with a name or a `ref/resource` with a uri";
            RpcError::new(code::INVALID_PARAMS, message)
        };
        let reference =
            request.params.get("ref").and_then(|raw| Object::parse(&raw).ok()).ok_or_else(refused)?;
        if let Some(why) = reference.ambiguous(&["type", "name", "uri"]) {
            return Err(RpcError::new(code::INVALID_PARAMS, &format!("`ref`: {why}")));
        }
        let kind = reference.get("type").and_then(|kind| kind.to_text());
        let catalog = self.inner().catalog.load_full();
        let correlation = correlation(request);
        let (kind, offered, own, owner, rewrite) = match kind.as_deref() {
            Some("ref/prompt") => {
                let name = named(&reference, "name", "prompt")?;
                let Some(entry) = catalog.prompts.get(&name) else {
                    let why = self.inner().why_unknown("prompt", &name);
                    return Err(why.told("prompt", None, &name, correlation));
                };
                let mut edit = reference.edit();
                edit.set("name", Raw::string(&entry.item.name));
                let rewrite = (*entry.name != *entry.item.name)
                    .then(|| Rewrite { member: "ref", value: edit.finish() });
                ("prompt", name, entry.item.name.clone(), entry.owner.clone(), rewrite)
            }
            Some("ref/resource") => {
                let uri = named(&reference, "uri", "resource")?;
                let exact = catalog.templates.get(&uri).map(|entry| entry.owner.clone());
                let owner = exact.or_else(|| {
                    let mut owners = catalog.owners(&uri).into_iter();
                    owners.find(|owner| owner.features.completions)
                });
                let Some(owner) = owner else {
                    let message = "no server has this resource or template";
                    return Err(RpcError::with_data(code::INVALID_PARAMS, message, &json!({"uri": uri})));
                };
                let own = catalog.own_uri(&uri).to_owned();
                let mut edit = reference.edit();
                edit.set("uri", Raw::string(&own));
                let rewrite = (own != uri).then(|| Rewrite { member: "ref", value: edit.finish() });
                ("resource", uri, own, owner, rewrite)
            }
            _ => return Err(refused()),
        };
        let relayed = RelayedRequest {
            caller,
            request,
            subject: Subject { kind, offered: &offered, own: &own, rewrite, headers: &[], repeatable: true },
            began: Instant::now(),
            correlation,
            progress: progress.as_ref(),
            trace: None,
        };
        if !owner.features.completions {
            // Another server has suggestions; that this one has none is no error.
            let none = Raw::literal(r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#);
            let outcome = crate::relay::request::read(none, Input::Refused).unwrap_or_else(Outcome::Failed);
            return self.tell(&relayed, &owner, outcome, Keep::Never);
        }
        let outcome = self.carry(&relayed, &owner).await;
        self.tell(&relayed, &owner, outcome, Keep::Never)
    }

    pub(crate) async fn carry(&self, relayed: &RelayedRequest<'_>, owner: &Owner) -> Outcome {
        let outcome = relayed.run(&owner.upstream, &owner.queue, |_| ()).await;
        let uris = self.inner().settings.resource_uris;
        let outcome = outcome.and_then(|outcome| addressed(uris, &owner.server, outcome));
        outcome.unwrap_or_else(|error| {
            tracing::debug!(correlationId = %relayed.correlation, kind = relayed.subject.kind, server = %owner.server, code = %error.code, %error, "request failed");
            Outcome::Failed(error)
        })
    }

    /// What the client gets.
    pub(crate) fn tell(
        &self,
        relayed: &RelayedRequest<'_>,
        owner: &Owner,
        outcome: Outcome,
        keep: Keep,
    ) -> Result<Spliced, RpcError> {
        let (era, subject) = (relayed.caller.era(), &relayed.subject);
        match outcome {
            Outcome::Result(_, reply) => {
                let info = &self.inner().gate.server_info;
                Ok(match keep {
                    Keep::Never => reply.finish(relayed.caller.revision, info, relayed.correlation),
                    Keep::Moment => reply.finish_kept(relayed.caller.revision, info, relayed.correlation),
                })
            }
            Outcome::Relayed(error) if relayed.request.method == Method::ResourcesRead => {
                Err(resource_error(error, era, subject.offered))
            }
            Outcome::Relayed(error) => Err(error),
            Outcome::Failed(error) => {
                Err(error.told(subject.kind, Some(&owner.server), subject.offered, relayed.correlation))
            }
        }
    }
}

/// Whether the client is told how long it may keep a result.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
    /// There is no such word for it.
    Never,
    /// It is: as the server says, or not at all.
    Moment,
}

/// The error for a cursor of another list.
pub(crate) fn foreign_cursor() -> RpcError {
    RpcError::new(code::INVALID_PARAMS, "the cursor is not one of this list; start without one")
}

/// A server's error about a resource, as the client's era has it.
fn resource_error(error: RpcError, era: Era, uri: &str) -> RpcError {
    let data = error.data();
    let names_uri = data
        .as_ref()
        .and_then(|data| Object::parse(data).ok())
        .and_then(|data| data.get("uri"))
        .is_some_and(|uri| uri.to_text().is_some());
    let not_found =
        error.code() == code::RESOURCE_NOT_FOUND || error.code() == code::INVALID_PARAMS && names_uri;
    match not_found {
        true => resource_not_found(era, &error.message(), data.as_ref(), uri),
        false => error,
    }
}

pub(crate) fn resource_not_found(era: Era, message: &str, data: Option<&Raw>, uri: &str) -> RpcError {
    let code = match era {
        Era::Legacy => code::RESOURCE_NOT_FOUND,
        Era::Modern => code::INVALID_PARAMS,
    };
    let mut data = match data.and_then(|data| data.decode::<Value>().ok()) {
        Some(Value::Object(data)) => Value::Object(data),
        _ => json!({}),
    };
    if !data["uri"].is_string() {
        data["uri"] = json!(uri);
    }
    RpcError::with_data(code, message, &data)
}

impl CallError {
    /// As a JSON-RPC error, whatever a failed call of a tool would be.
    fn told(
        &self,
        kind: &'static str,
        server: Option<&str>,
        name: &str,
        correlation: CorrelationId,
    ) -> RpcError {
        let code = match self.code.shape() {
            Shape::Rpc(code) => code,
            Shape::ToolResult | Shape::Internal => code::INTERNAL_ERROR,
        };
        self.to_rpc(code, server, (kind, name), correlation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ERA-4: "not found" has a code of each era, and the URI is always told; other errors pass.
    #[test]
    fn errors_about_resources() {
        #[track_caller]
        fn check(code: i64, data: Option<Value>, era: Era, expected: &Value) {
            let error = match data {
                Some(data) => RpcError::with_data(code, "x", &data),
                None => RpcError::new(code, "x"),
            };
            let body: Value = resource_error(error, era, "a://b").body().decode().unwrap();
            assert_eq!(&body, expected);
        }
        let with = |code: i64, data: Value| json!({"code": code, "message": "x", "data": data});
        check(-32002, None, Era::Modern, &with(-32602, json!({"uri": "a://b"})));
        check(
            -32002,
            Some(json!({"uri": "c", "n": 1})),
            Era::Modern,
            &with(-32602, json!({"uri": "c", "n": 1})),
        );
        check(-32602, Some(json!({"uri": "c"})), Era::Legacy, &with(-32002, json!({"uri": "c"})));
        check(-32002, Some(json!([1])), Era::Legacy, &with(-32002, json!({"uri": "a://b"})));
        check(-32602, None, Era::Legacy, &json!({"code": -32602, "message": "x"}));
        check(-32603, Some(json!({"uri": "c"})), Era::Legacy, &with(-32603, json!({"uri": "c"})));
    }

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
