//! `completion/complete`: asks the server of a prompt or a resource to complete an argument. Rust prompts and
//! resources complete nothing. A value is shown only to who may read a resource that it makes.

use std::sync::Arc;

use bridgehead_wire::{Object, Raw, RpcError, Spliced, code};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::{Keep, named, said, told};
use crate::access::{Action, Decide, Decision, Thing};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::ResourceOwner;
use crate::catalog::items::{Entry, ItemTarget, Owner};
use crate::catalog::template::expanded;
use crate::gate::{Call, CallRecord, Gate, Subject};
use crate::gateway::{Gateway, Inner};
use crate::relay::request::{Outcome, RelayTarget, RelayedRequest, read};
use crate::relay::rewrite::{Input, Rewrite};

/// What is completed, and the server that does it.
#[derive(Clone)]
struct Completed {
    kind: &'static str,
    own: String,
    /// `None` for a prompt or resource of this program.
    owner: Option<Owner>,
    /// The reference as the server knows it, if it differs.
    rewrite: Option<Spliced>,
}

/// One argument of a prompt or a resource, by the name or URI that the client used.
struct WantedCompletion<'a> {
    name: Arc<str>,
    found: Result<Completed, RpcError>,
    request: &'a ClientRequest,
    /// Why it is not found, if it exists for others.
    denied: Option<String>,
}

impl Gateway {
    pub(crate) async fn complete(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let call = Call::new(caller, request, progress);
        let reference = Reference::read(request)?;
        let found = self.inner().completed(&call, &reference);
        let kind = found.as_ref().map_or("completion", |found| found.kind);
        let denied = if found.is_err() { self.inner().why_not_completed(caller, &reference) } else { None };
        let wanted = WantedCompletion { name: reference.name.into(), found, request, denied };
        let gate = &self.inner().gate;
        let outcome = gate.pass(&call, &wanted).await;
        gate.tell(&call, (kind, &wanted.name), outcome, Keep::Never)
    }
}

/// The `ref` of a request.
struct Reference {
    object: Object,
    is_prompt: bool,
    /// The name of the prompt, or the URI.
    name: String,
}

impl Reference {
    fn read(request: &ClientRequest) -> Result<Self, RpcError> {
        let refused = || {
            let message = "`ref` must be a `ref/prompt` with a name or a `ref/resource` with a uri";
            RpcError::new(code::INVALID_PARAMS, message)
        };
        let object =
            request.params.get("ref").and_then(|raw| Object::parse(&raw).ok()).ok_or_else(refused)?;
        if let Some(why) = object.ambiguous(&["type", "name", "uri"]) {
            return Err(RpcError::new(code::INVALID_PARAMS, &format!("`ref`: {why}")));
        }
        match object.get("type").and_then(|kind| kind.to_text()).as_deref() {
            Some("ref/prompt") => {
                Ok(Self { name: named(&object, "name", "prompt")?, is_prompt: true, object })
            }
            Some("ref/resource") => {
                Ok(Self { name: named(&object, "uri", "resource")?, is_prompt: false, object })
            }
            _ => Err(refused()),
        }
    }
}

impl Inner {
    fn why_not_completed(&self, caller: &Caller, reference: &Reference) -> Option<String> {
        let (principal, name) = (&caller.principal, &reference.name);
        if reference.is_prompt {
            return self.why_denied(principal, Action::Get, |whole| {
                whole.prompts.get(name).map(|entry| entry.thing())
            });
        }
        let template = self.why_denied(principal, Action::ReadSome, |whole| {
            whole.templates.get(name).map(|entry| entry.thing())
        });
        template.or_else(|| self.why_unreadable(principal, name))
    }

    fn completed(&self, call: &Call<'_>, reference: &Reference) -> Result<Completed, RpcError> {
        let Reference { object, is_prompt, name } = reference;
        let principal = &call.caller.principal;
        let catalog = self.view(principal);
        if *is_prompt {
            let Some(entry) = catalog.prompts.get(name) else {
                return Err(told(&self.why_unknown(principal, "prompt", name), "prompt", name, call));
            };
            let own = entry.own().to_owned();
            let rewrite = (*entry.name != *own).then(|| {
                let mut edit = object.edit();
                edit.set("name", Raw::string(&own));
                edit.finish()
            });
            return Ok(Completed { kind: "prompt", own, owner: server_of(entry), rewrite });
        }
        let owner = match catalog.templates.get(name) {
            Some(entry) => server_of(entry),
            None => match self.resource_owner(principal, name) {
                ResourceOwner::Native(_) => None,
                ResourceOwner::Servers(servers) => {
                    let Some(owner) = servers.into_iter().find(|owner| owner.features.completions) else {
                        let message = "no server has this resource or template";
                        return Err(RpcError::with_data(
                            code::INVALID_PARAMS,
                            message,
                            &json!({"uri": name}),
                        ));
                    };
                    Some(owner)
                }
            },
        };
        let own = catalog.own_uri(name).to_owned();
        let rewrite = (own != *name).then(|| {
            let mut edit = object.edit();
            edit.set("uri", Raw::string(&own));
            edit.finish()
        });
        Ok(Completed { kind: "resource", own, owner, rewrite })
    }
}

fn server_of<N>(entry: &Entry<N>) -> Option<Owner> {
    match &entry.target {
        ItemTarget::Native(_) => None,
        ItemTarget::Server { owner, .. } => Some(owner.clone()),
    }
}

impl Subject for WantedCompletion<'_> {
    type Checked = Completed;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn server(&self) -> Option<&Arc<str>> {
        self.found.as_ref().ok().and_then(|found| found.owner.as_ref()).map(|owner| &owner.server)
    }

    fn denied(&self) -> Option<&str> {
        self.denied.as_deref()
    }

    fn arguments(&self) -> Bytes {
        said(self.request)
    }

    async fn check(&self, _gate: &Gate, _call: &Call<'_>) -> Result<Completed, Outcome> {
        self.found.clone().map_err(Outcome::Relayed)
    }

    async fn dispatch(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        found: Completed,
        record: &mut CallRecord,
    ) -> Outcome {
        let Some(owner) = found.owner.filter(|owner| owner.features.completions) else {
            // Another server supports completion; that this one does not is no error.
            let none = Raw::literal(r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#);
            return read(none, Input::Refused).unwrap_or_else(Outcome::Failed);
        };
        let target = RelayTarget {
            kind: found.kind,
            offered: &self.name,
            own: &found.own,
            rewrite: found.rewrite.map(|value| Rewrite { member: "ref", value }),
            headers: &[],
            repeatable: true,
        };
        let outcome = gate.relay(&RelayedRequest { call, target }, &owner, record).await;
        match &gate.authorizer {
            Some(authorizer) if found.kind == "resource" => {
                let decide = authorizer.decide_for(&call.caller.principal);
                let completing = Completing::read(self.request);
                admitted(outcome, |value| {
                    completing.as_ref().is_some_and(|completing| {
                        completing.may_read(&*decide, (&*owner.server, &found.own), value)
                    })
                })
            }
            _ => outcome,
        }
    }
}

/// The argument of a template that is completed, and the values of others.
struct Completing {
    name: String,
    others: Vec<(String, String)>,
}

impl Completing {
    fn read(request: &ClientRequest) -> Option<Self> {
        let name = Object::parse(&request.params.get("argument")?).ok()?.text("name")?.into_owned();
        let known = request.params.get("context").and_then(|context| Object::parse(&context).ok());
        let known = known.and_then(|context| Object::parse(&context.get("arguments")?).ok());
        let known = known.as_ref().map(|arguments| arguments.members().collect()).unwrap_or_default();
        let known: Vec<(String, Raw)> = known;
        let others = known.into_iter().filter(|(other, _)| *other != name);
        Some(Self {
            others: others.filter_map(|(other, value)| Some((other, value.to_text()?))).collect(),
            name,
        })
    }

    /// Whether some resource of the template with this value may be read. The rules are asked about URIs, so a value that
    /// makes none is not shown.
    fn may_read(&self, decide: &Decide<'_>, (server, template): (&str, &str), value: &str) -> bool {
        let others = self.others.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        // A value of a variable that the template does not have cannot matter.
        let others = others.filter(|other| expanded(template, &[*other]).is_some());
        let values: Vec<_> = others.chain([(self.name.as_str(), value)]).collect();
        let Some(uri) = expanded(template, &values) else { return false };
        let action = if uri.contains('{') { Action::ReadSome } else { Action::Read };
        decide(action, Thing { server: Some(server), name: &uri, read_only: true }) != Decision::Deny
    }
}

/// A completion without the values that its principal may not know. If one is missing, nothing tells how many there were.
fn admitted(outcome: Outcome, may_know: impl Fn(&str) -> bool) -> Outcome {
    #[derive(Deserialize)]
    struct Answer {
        completion: Values,
    }
    #[derive(Deserialize)]
    struct Values {
        values: Vec<String>,
    }
    let Outcome::Result(result, reply) = outcome else { return outcome };
    let all = result.decode::<Answer>().map(|answer| answer.completion.values).unwrap_or_default();
    let known: Vec<&String> = all.iter().filter(|value| may_know(value)).collect();
    if !all.is_empty() && known.len() == all.len() {
        return Outcome::Result(result, reply);
    }
    let known = Raw::encode(&json!({"completion": {"values": known}}));
    read(known, Input::Refused).unwrap_or_else(Outcome::Failed)
}
