//! `prompts/get`.

use std::sync::Arc;

use bridgehead_schema::{Effort, Unfit, without_schema};
use bridgehead_wire::{Raw, RpcError, Spliced, code};
use bytes::Bytes;
use serde_json::json;

use super::{Keep, named};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::items::Entry;
use crate::error::CallError;
use crate::gate::{Call, CallRecord, Gate, Subject};
use crate::gateway::Gateway;
use crate::relay::request::{Outcome, RelayTarget, RelayedRequest};
use crate::relay::rewrite::Rewrite;

/// One prompt, by the name that the client used.
struct WantedPrompt {
    name: Arc<str>,
    /// The entry, or why there is none.
    entry: Result<Arc<Entry>, CallError>,
    arguments: Option<Raw>,
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
            entry = Box::pin(
                self.wait_for(&caller.principal, Some(&name), |catalog| catalog.prompts.get(&name).cloned()),
            )
            .await;
        }
        let wanted = WantedPrompt {
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
    type Checked = Arc<Entry>;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn server(&self) -> Option<&Arc<str>> {
        match &self.entry {
            Ok(entry) => Some(&entry.owner.server),
            Err(error) => error.server.as_ref(),
        }
    }

    fn arguments(&self) -> Bytes {
        self.arguments.as_ref().map_or(Bytes::from_static(b"{}"), |arguments| arguments.bytes().clone())
    }

    /// Arguments are checked by the server, except for duplicate names: it is unclear which one the server
    /// takes.
    async fn check(&self, _gate: &Gate, _call: &Call<'_>) -> Result<Arc<Entry>, Outcome> {
        if let Some(arguments) = &self.arguments
            && let Err(Unfit::Issues(issues)) = without_schema(arguments.as_str(), Effort::Full)
        {
            let message = "two arguments have the same name";
            let error = RpcError::with_data(code::INVALID_PARAMS, message, &json!({"issues": issues}));
            return Err(Outcome::Relayed(error));
        }
        self.entry.clone().map_err(Outcome::Failed)
    }

    async fn dispatch(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        entry: Arc<Entry>,
        record: &mut CallRecord,
    ) -> Outcome {
        let own = entry.item.name.as_str();
        let target = RelayTarget {
            kind: "prompt",
            offered: &entry.name,
            own,
            rewrite: (*entry.name != *own).then(|| Rewrite::name(own)),
            headers: &[],
            repeatable: true,
        };
        gate.relay(&RelayedRequest { call, target }, &entry.owner, record).await
    }
}
