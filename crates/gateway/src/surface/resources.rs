//! `resources/read`: from the Rust handler of a resource, from the server that lists it, or else from each that
//! may have it, one after the other.

use std::sync::Arc;

use bridgehead_wire::{Era, Object, Raw, RpcError, Spliced, code};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{Keep, named, said};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::native::{self, BoundHandler, NativeResource, Refused, ResourceContents};
use crate::catalog::{Catalog, ResourceOwner};
use crate::gate::{Call, CallRecord, Gate, Subject};
use crate::gateway::Gateway;
use crate::life::waiting::Holder;
use crate::relay::request::{Outcome, RelayTarget, RelayedRequest, read};
use crate::relay::rewrite::{Input, Rewrite};

/// What a client is told of a resource that nobody has for it.
pub(crate) const NO_SUCH_RESOURCE: &str = "no server has this resource";

/// One resource, by the URI that the client used.
struct WantedResource<'a> {
    uri: Arc<str>,
    /// The URI that its server knows it by.
    own: String,
    owner: ResourceOwner,
    request: &'a ClientRequest,
    /// Why nobody has it, if somebody has it for others.
    denied: Option<String>,
}

impl Gateway {
    pub(crate) async fn read_resource(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let uri = named(&request.params, "uri", "resource")?;
        let call = Call::new(caller, request, progress);
        let own = self.inner().catalog.load().own_uri(&uri).to_owned();
        let principal = &caller.principal;
        let inner = self.inner();
        let find = || inner.resource_owner(principal, &uri);
        let is_policed = inner.views.authorizer().is_some();
        let mut owner = find();
        if is_policed {
            // Denied or not listed: both wait alike for the servers that are starting.
            let known = |view: &Catalog| view.known_owner(&uri);
            if inner.view(principal).known_owner(&uri).is_none() {
                Box::pin(self.wait_for(principal, Holder::Any, known)).await;
                owner = find();
            }
        } else if owner.is_nobody() {
            let find = |_: &Catalog| Some(find()).filter(|owner| !owner.is_nobody());
            owner =
                Box::pin(self.wait_for(principal, Holder::Any, find)).await.unwrap_or(ResourceOwner::NOBODY);
        } else if matches!(&owner, ResourceOwner::Servers(servers) if servers.len() > 1) {
            self.wait_for_servers().await;
            owner = find();
        }
        let denied = if owner.is_nobody() { inner.why_unreadable(principal, &uri) } else { None };
        let is_listed = !is_policed || inner.view(principal).resources.get(&uri).is_some();
        let wanted = WantedResource { uri: uri.into(), own, owner, request, denied };
        let gate = &inner.gate;
        let outcome = gate.pass(&call, &wanted).await;
        match outcome {
            Outcome::Relayed(error) => Err(resource_error(error, caller.era(), &wanted.uri, is_listed)),
            outcome => gate.tell(&call, ("resource", &wanted.uri), outcome, Keep::Moment),
        }
    }
}

/// The handler of a Rust resource, ready to run; `None` if servers are to be asked.
type Checked = Option<(Arc<NativeResource>, BoundHandler<Option<ResourceContents>>)>;

impl Subject for WantedResource<'_> {
    type Checked = Checked;

    fn name(&self) -> &Arc<str> {
        &self.uri
    }

    fn server(&self) -> Option<&Arc<str>> {
        match &self.owner {
            ResourceOwner::Servers(servers) if servers.len() == 1 => servers.first().map(|only| &only.server),
            ResourceOwner::Servers(_) | ResourceOwner::Native(_) => None,
        }
    }

    fn denied(&self) -> Option<&str> {
        self.denied.as_deref()
    }

    fn arguments(&self) -> Bytes {
        said(self.request)
    }

    async fn check(&self, gate: &Gate, call: &Call<'_>) -> Result<Checked, Outcome> {
        let native = match &self.owner {
            ResourceOwner::Servers(servers) if servers.is_empty() => {
                return Err(no_such_resource(call, &self.uri));
            }
            ResourceOwner::Servers(_) => return Ok(None),
            ResourceOwner::Native(native) => native,
        };
        match native.read(&self.uri) {
            Ok(bound) => Ok(Some((Arc::clone(native), bound))),
            // The template matches, but its values are not those of a resource.
            Err(Refused::Unreadable(_)) => Err(no_such_resource(call, &self.uri)),
            Err(refused) => {
                Err(Outcome::Failed(refused.into_error(native.named(&self.uri), gate.debug_errors)))
            }
        }
    }

    async fn dispatch(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        checked: Checked,
        record: &mut CallRecord,
    ) -> Outcome {
        if let Some((native, bound)) = checked {
            return match native::run(gate, call, native.named(&self.uri), bound).await {
                Ok(Some(contents)) => {
                    read(native.result(&self.uri, contents), Input::Refused).unwrap_or_else(Outcome::Failed)
                }
                Ok(None) => no_such_resource(call, &self.uri),
                Err(error) => Outcome::Failed(error),
            };
        }
        let ResourceOwner::Servers(servers) = &self.owner else { return no_such_resource(call, &self.uri) };
        let changed = *self.own != *self.uri;
        let target = RelayTarget {
            kind: "resource",
            offered: &self.uri,
            own: &self.own,
            rewrite: changed.then(|| Rewrite { member: "uri", value: Raw::string(&self.own).into() }),
            headers: &[],
            repeatable: true,
        };
        let relayed = RelayedRequest { call, target };
        let several = servers.len() > 1;
        let mut failed = None;
        for owner in servers {
            match gate.relay(&relayed, owner, record).await {
                // No server has listed this resource, so a refusal only means that this server does not have
                // it.
                Outcome::Relayed(_) if several => {}
                outcome @ Outcome::Failed(_) if several => failed = Some(outcome),
                outcome => return outcome,
            }
        }
        failed.unwrap_or_else(|| no_such_resource(call, &self.uri))
    }
}

fn no_such_resource(call: &Call<'_>, uri: &str) -> Outcome {
    Outcome::Relayed(resource_not_found(call.caller.era(), NO_SUCH_RESOURCE, None, uri))
}

/// A server's error about a resource, converted to the client's era. Unless the resource is listed, "not found" has the
/// gateway's words, which a resource that the client may not read gets too.
fn resource_error(error: RpcError, era: Era, uri: &str, is_listed: bool) -> RpcError {
    let data = error.data();
    let names_uri = data
        .as_ref()
        .and_then(|data| Object::parse(data).ok())
        .and_then(|data| data.get("uri"))
        .is_some_and(|uri| uri.to_text().is_some());
    let not_found =
        error.code() == code::RESOURCE_NOT_FOUND || error.code() == code::INVALID_PARAMS && names_uri;
    match (not_found, is_listed) {
        (true, true) => resource_not_found(era, &error.message(), data.as_ref(), uri),
        (true, false) => resource_not_found(era, NO_SUCH_RESOURCE, None, uri),
        (false, _) => error,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// ERA-4: "not found" has its own code in each era and always names the URI; other errors pass unchanged.
    #[test]
    fn errors_about_resources() {
        #[track_caller]
        fn check(code: i64, data: Option<Value>, era: Era, expected: &Value) {
            let error = match data {
                Some(data) => RpcError::with_data(code, "x", &data),
                None => RpcError::new(code, "x"),
            };
            let body: Value = resource_error(error, era, "a://b", true).body().decode().unwrap();
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
        let unlisted = RpcError::with_data(-32002, "x", &json!({"uri": "c", "n": 1}));
        let told: Value = resource_error(unlisted, Era::Legacy, "a://b", false).body().decode().unwrap();
        assert_eq!(told, json!({"code": -32002, "message": NO_SUCH_RESOURCE, "data": {"uri": "a://b"}}));
    }
}
