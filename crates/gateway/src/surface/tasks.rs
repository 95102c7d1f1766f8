//! Tasks, an extension of the modern era: a call may be answered with a task, which its client polls by id.
//!
//! The client's id is the server's own id, sealed together with the names of server and tool for the client's
//! principal. The id tells where a later request goes and is useless to other principals, and to one that may
//! no longer call the tool; the gateway stores nothing.
//! What the server says about the task passes unchanged except for the id. That includes unprompted
//! notifications, which go to the listens that follow the task.

use std::sync::Arc;

use bridgehead_config::ResourceUris;
use bridgehead_upstream::{Origin, Watch};
use bridgehead_wire::{Code, Era, Object, Raw, RpcError, Spliced, code};
use bytes::Bytes;

use super::{Keep, named, said};
use crate::access::{Action, Decision, Principal, Thing};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::Route;
use crate::catalog::items::Owner;
use crate::dialogue::park::Parks;
use crate::dialogue::seal;
use crate::error::GatewayError;
use crate::feeds::TaskOrigin;
use crate::gate::{Call, CallRecord, Gate, Subject};
use crate::gateway::{Gateway, Inner};
use crate::relay::request::{Outcome, RelayTarget, RelayedRequest, read};
use crate::relay::rewrite::{Input, Rewrite};
use crate::relay::uris::result_outward;

/// The member that names a task.
const ID: &str = "taskId";

/// One task, by the id that the client knows it by.
struct WantedTask<'a> {
    offered: Arc<str>,
    /// The owner of the task, and the server's id of it.
    found: Option<(Owner, String)>,
    request: &'a ClientRequest,
    /// Why it is not found, if it was its principal's before.
    denied: Option<String>,
}

impl Gateway {
    /// Relays a request about a task to its server: get, update or cancel.
    pub(crate) async fn ask_task(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let offered = named(&request.params, ID, "task")?;
        let (inner, principal) = (self.inner(), &caller.principal);
        let opened = inner.parks.open_task(principal.as_str(), &offered);
        let denied = opened.as_ref().and_then(|task| inner.why_no_task(principal, &task.server, &task.tool));
        let found = opened.filter(|_| denied.is_none()).and_then(|task| {
            let owner = inner.catalog.load().owner(&task.server)?;
            Some((owner, task.own))
        });
        let wanted = WantedTask { offered: offered.into(), found, request, denied };
        let call = Call::new(caller, request, progress);
        let gate = &self.inner().gate;
        let outcome = gate.pass(&call, &wanted).await;
        gate.tell(&call, ("task", &wanted.offered), outcome, Keep::Never)
    }
}

impl Subject for WantedTask<'_> {
    type Checked = (Owner, String);

    fn name(&self) -> &Arc<str> {
        &self.offered
    }

    fn server(&self) -> Option<&Arc<str>> {
        self.found.as_ref().map(|(owner, _)| &owner.server)
    }

    fn denied(&self) -> Option<&str> {
        self.denied.as_deref()
    }

    fn arguments(&self) -> Bytes {
        said(self.request)
    }

    async fn check(&self, _gate: &Gate, _call: &Call<'_>) -> Result<(Owner, String), Outcome> {
        let unknown = || Outcome::Relayed(RpcError::new(code::INVALID_PARAMS, "no such task"));
        self.found.clone().ok_or_else(unknown)
    }

    async fn dispatch(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        (owner, own): (Owner, String),
        record: &mut CallRecord,
    ) -> Outcome {
        let target = RelayTarget {
            kind: "task",
            offered: &self.offered,
            own: &own,
            rewrite: Some(Rewrite { member: ID, value: Raw::string(&own).into() }),
            headers: &[],
            repeatable: true,
        };
        match gate.relay(&RelayedRequest { call, target }, &owner, record).await {
            Outcome::Result(result, _) => {
                let told = outward(&result, &self.offered, gate.uris, &owner.server);
                read(told, Input::Refused).unwrap_or_else(Outcome::Failed)
            }
            outcome => outcome,
        }
    }
}

impl Gateway {
    /// Has the server of a task report its changes; `None` if the task is not this client's, or the server
    /// does not support tasks.
    pub(crate) fn watch_task(&self, caller: &Caller, offered: &str) -> Option<(TaskOrigin, String, Watch)> {
        let task = self.inner().parks.open_task(caller.principal.as_str(), offered)?;
        if self.inner().why_no_task(&caller.principal, &task.server, &task.tool).is_some() {
            return None;
        }
        let OpenedTask { server, tool, own } = task;
        let owner = self.inner().catalog.load().owner(&server).filter(|owner| owner.features.tasks)?;
        let process = caller.session.uses(&owner.upstream, Era::Modern, caller.principal.id()).ok()?;
        let session = process.is_some().then(|| caller.session.number());
        let watch = process.as_ref().unwrap_or(&owner.upstream).watch_task(&own);
        Some((TaskOrigin { server, session, own }, tool, watch))
    }
}

impl Inner {
    /// Why a task does not exist for its principal any more: the principal may not call the tool now. A tool that its server
    /// has stopped to offer is decided by its name: what it was besides is not known.
    pub(crate) fn why_no_task(&self, principal: &Principal, server: &str, tool: &str) -> Option<String> {
        if self.view(principal).tool_of(server, tool).is_some() {
            return None;
        }
        let authorizer = self.views.authorizer()?;
        let whole = self.catalog.load();
        let by_name = Thing { server: Some(server), name: tool, read_only: false };
        let thing = whole.tool_of(server, tool).map_or(by_name, |route| route.thing());
        let denied = authorizer.decide(principal, Action::Call, thing) == Decision::Deny;
        denied.then(|| authorizer.why_denied(principal, Action::Call, thing))
    }

    /// The same for a task that was followed before its server was replaced.
    pub(crate) fn watch_task_again(&self, owner: &TaskOrigin) -> Option<Watch> {
        if owner.session.is_some() {
            // Its process ended with the server that was replaced.
            return None;
        }
        let found = self.catalog.load().owner(&owner.server).filter(|owner| owner.features.tasks)?;
        Some(found.upstream.watch_task(&owner.own))
    }

    /// Reports a task's change to its followers.
    pub(crate) fn task_changed(&self, origin: Origin<'_>, params: &Raw) {
        let own = Object::parse(params).ok().and_then(|task| task.get(ID)?.to_text());
        let Some(own) = own else { return };
        let owner = TaskOrigin { server: origin.server.to_owned(), session: origin.session, own };
        let uris = self.settings.resource_uris;
        self.feeds.task_changed(&owner, |offered| outward(params, offered, uris, origin.server).detached());
    }

    /// The outcome of a call that became a task, under a sealed id that identifies the task later.
    pub(crate) fn offer_task(&self, caller: &Caller, route: Option<&Route>, result: &Raw) -> Outcome {
        let own = Object::parse(result).ok().and_then(|task| task.get(ID)?.to_text());
        let sealed = own.zip(route).and_then(|(own, route)| {
            let Thing { server, name, .. } = route.thing();
            self.parks.seal_task(caller.principal.as_str(), server?, name, &own)
        });
        let Some(sealed) = sealed else {
            let message = "the server answered with a task that has no id";
            return Outcome::Failed(GatewayError::new(Code::ProviderInvalidOutput, message).after_sending());
        };
        let told = outward(result, &sealed, ResourceUris::Keep, "");
        read(told, Input::Task).unwrap_or_else(Outcome::Failed)
    }
}

impl Parks {
    fn seal_task(&self, principal: &str, server: &str, tool: &str, own: &str) -> Option<String> {
        // The length comes first, because a tool's name and an id may hold anything.
        let content = format!("{server}\n{}\n{tool}{own}", tool.len());
        self.seal().close(content.as_bytes(), &about(principal))
    }

    fn open_task(&self, principal: &str, offered: &str) -> Option<OpenedTask> {
        let content = String::from_utf8(self.seal().open(offered, &about(principal))?).ok()?;
        let (server, rest) = content.split_once('\n')?;
        let (length, rest) = rest.split_once('\n')?;
        let (tool, own) = rest.split_at_checked(length.parse().ok()?)?;
        Some(OpenedTask { server: server.to_owned(), tool: tool.to_owned(), own: own.to_owned() })
    }
}

/// What the sealed id of a task says.
struct OpenedTask {
    server: String,
    /// The tool whose call became the task, by the server's name of it.
    tool: String,
    /// The server's id of the task.
    own: String,
}

fn about(principal: &str) -> seal::SealedFor {
    seal::SealedFor::of(principal, "tasks", &Object::empty())
}

/// What a server says about a task, with the id that its client knows; resource URIs in the result as clients
/// see them.
fn outward(task: &Raw, offered: &str, uris: ResourceUris, server: &str) -> Raw {
    let Ok(object) = Object::parse(task) else { return task.clone() };
    let mut edit = object.edit();
    if object.get(ID).is_some() {
        edit.set(ID, Raw::string(offered));
    }
    if let Some(result) = object.get("result").filter(|_| uris == ResourceUris::Rewrite) {
        edit.set("result", result_outward(server, &result));
    }
    edit.finish().to_raw()
}
