//! `prompts/get`: from the server of a prompt, or from its Rust handler.

use std::sync::Arc;

use bridgehead_schema::{Effort, Unfit, without_schema};
use bridgehead_wire::{Raw, RpcError, Spliced, code};
use bytes::Bytes;
use serde_json::json;

use super::{Keep, named};
use crate::access::Action;
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::items::{Entry, ItemTarget, Owner};
use crate::catalog::native::{self, BoundHandler, NativePrompt, PromptMessage};
use crate::error::GatewayError;
use crate::gate::{Call, CallRecord, Gate, Subject};
use crate::gateway::Gateway;
use crate::life::waiting::Holder;
use crate::relay::request::{Outcome, RelayTarget, RelayedRequest, read};
use crate::relay::rewrite::{Input, Rewrite};

/// One prompt, by the name that the client used.
struct WantedPrompt {
    name: Arc<str>,
    /// The entry, or why there is none.
    entry: Result<Arc<Entry<NativePrompt>>, GatewayError>,
    arguments: Option<Raw>,
    /// Why there is no entry, if the prompt exists for others.
    denied: Option<String>,
}

/// What is left to do once the request is checked.
enum Checked {
    /// Run the handler.
    Native(Arc<NativePrompt>, BoundHandler<Vec<PromptMessage>>),
    /// Ask the server.
    Server(Arc<Entry<NativePrompt>>, Owner),
}

impl Gateway {
    pub(crate) async fn get_prompt(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let name = named(&request.params, "name", "prompt")?;
        let mut entry = self.inner().view(&caller.principal).prompts.get(&name).cloned();
        if entry.is_none() {
            entry = Box::pin(self.wait_for(&caller.principal, Holder::Named(&name), |catalog| {
                catalog.prompts.get(&name).cloned()
            }))
            .await;
        }
        let inner = self.inner();
        let denied = match &entry {
            Some(_) => None,
            None => inner.why_denied(&caller.principal, Action::Get, |whole| {
                whole.prompts.get(&name).map(|entry| entry.thing())
            }),
        };
        let wanted = WantedPrompt {
            denied,
            entry: entry.ok_or_else(|| self.inner().why_unknown(&caller.principal, "prompt", &name)),
            name: name.into(),
            arguments: request.params.get("arguments"),
        };
        let call = Call::new(caller, request, progress);
        let gate = &self.inner().gate;
        let outcome = gate.pass(&call, &wanted).await;
        gate.tell(&call, ("prompt", &wanted.name), outcome, Keep::Never)
    }
}

impl Subject for WantedPrompt {
    type Checked = Checked;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn own_name(&self) -> Option<&str> {
        self.entry.as_ref().ok().map(|entry| entry.own())
    }

    fn server(&self) -> Option<&Arc<str>> {
        match &self.entry {
            Ok(entry) => entry.server(),
            Err(error) => error.server.as_ref(),
        }
    }

    fn denied(&self) -> Option<&str> {
        self.denied.as_deref()
    }

    fn arguments(&self) -> Bytes {
        self.arguments.as_ref().map_or(Bytes::from_static(b"{}"), |arguments| arguments.bytes().clone())
    }

    /// Arguments are checked by the server, except for duplicate names: it is unclear which one the server
    /// takes. A Rust handler's are read here.
    async fn check(&self, gate: &Gate, _call: &Call<'_>) -> Result<Checked, Outcome> {
        if let Some(arguments) = &self.arguments
            && let Err(Unfit::Issues(issues)) = without_schema(arguments.as_str(), Effort::Full)
        {
            let message = "two arguments have the same name";
            let error = RpcError::with_data(code::INVALID_PARAMS, message, &json!({"issues": issues}));
            return Err(Outcome::Relayed(error));
        }
        let entry = self.entry.as_ref().map_err(|error| Outcome::Failed(error.clone()))?;
        match &entry.target {
            ItemTarget::Server { owner, .. } => Ok(Checked::Server(Arc::clone(entry), owner.clone())),
            ItemTarget::Native(prompt) => {
                let bound = prompt.read(self.arguments.as_ref(), gate.debug_errors);
                Ok(Checked::Native(Arc::clone(prompt), bound.map_err(Outcome::Failed)?))
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
        let (entry, owner) = match checked {
            Checked::Server(entry, owner) => (entry, owner),
            Checked::Native(prompt, bound) => {
                let messages = native::run(gate, call, prompt.named(), bound).await;
                let result = messages.and_then(|messages| read(prompt.result(&messages), Input::Refused));
                return result.unwrap_or_else(Outcome::Failed);
            }
        };
        let own = entry.own();
        let target = RelayTarget {
            kind: "prompt",
            offered: &entry.name,
            own,
            rewrite: (*entry.name != *own).then(|| Rewrite::name(own)),
            headers: &[],
            repeatable: true,
        };
        gate.relay(&RelayedRequest { call, target }, &owner, record).await
    }
}
