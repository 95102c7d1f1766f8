//! What the gateway answers by itself, from prepared data: lists, log levels, subscriptions.

use std::sync::Arc;

use bridgehead_wire::{ClientMethod, RpcError, Spliced};
use bytes::Bytes;

use super::{Keep, foreign_cursor, not_offered, said};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::Catalog;
use crate::catalog::items::Merged;
use crate::catalog::native::NativeItem;
use crate::gate::{Call, CallRecord, Gate, Subject};
use crate::gateway::Gateway;
use crate::relay::request::Outcome;

/// A request that the gateway answers without asking a server.
struct OwnAnswer<'a> {
    gateway: &'a Gateway,
    request: &'a ClientRequest,
    /// The resource that it names, if it does.
    uri: Arc<str>,
}

impl Gateway {
    pub(crate) async fn answer_itself(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let uri = request.params.get("uri").and_then(|uri| uri.to_text()).unwrap_or_default();
        let call = Call::new(caller, request, progress);
        let gate = &self.inner().gate;
        let outcome = gate.pass(&call, &OwnAnswer { gateway: self, request, uri: uri.into() }).await;
        gate.tell(&call, ("method", request.method.as_str()), outcome, Keep::Never)
    }

    async fn list(
        &self,
        call: &Call<'_>,
        page: impl FnOnce(&Catalog, Option<&str>) -> Option<Spliced>,
    ) -> Result<Spliced, RpcError> {
        let cursor = self.cursor(call.request).await?;
        page(&self.inner().view(&call.caller.principal), cursor.as_deref()).ok_or_else(foreign_cursor)
    }

    async fn list_items<N: NativeItem>(
        &self,
        call: &Call<'_>,
        items: fn(&Catalog) -> &Arc<Merged<N>>,
    ) -> Result<Spliced, RpcError> {
        let revision = call.caller.revision;
        self.list(call, move |catalog, cursor| items(catalog).list(revision, cursor)).await
    }

    /// The cursor of a list request. A request without one waits for starting servers.
    async fn cursor(&self, request: &ClientRequest) -> Result<Option<String>, RpcError> {
        match request.params.get("cursor").filter(|cursor| !cursor.is_null()) {
            Some(cursor) => cursor.to_text().map(Some).ok_or_else(foreign_cursor),
            None => {
                self.wait_for_servers().await;
                Ok(None)
            }
        }
    }
}

impl OwnAnswer<'_> {
    async fn answer(&self, call: &Call<'_>, record: &mut CallRecord) -> Result<Spliced, RpcError> {
        let Self { gateway, request, .. } = self;
        let revision = call.caller.revision;
        match request.method.of_client() {
            Some(ClientMethod::ToolsList) => {
                gateway.list(call, move |catalog, cursor| catalog.list(revision, cursor)).await
            }
            Some(ClientMethod::PromptsList) => gateway.list_items(call, |catalog| &catalog.prompts).await,
            Some(ClientMethod::ResourcesList) => gateway.list_items(call, |catalog| &catalog.resources).await,
            Some(ClientMethod::TemplatesList) => gateway.list_items(call, |catalog| &catalog.templates).await,
            Some(ClientMethod::SetLevel) => gateway.set_level(call.caller, request).await,
            Some(ClientMethod::Subscribe) => gateway.subscribe(call.caller, request, record).await,
            Some(ClientMethod::Unsubscribe) => gateway.unsubscribe(call.caller, request),
            Some(ClientMethod::Listen) => gateway.listen(call.caller, request, call.progress.clone()).await,
            // These are answered elsewhere.
            Some(
                ClientMethod::Initialize
                | ClientMethod::Ping
                | ClientMethod::Discover
                | ClientMethod::ToolsCall
                | ClientMethod::PromptsGet
                | ClientMethod::ResourcesRead
                | ClientMethod::Complete
                | ClientMethod::TasksGet
                | ClientMethod::TasksUpdate
                | ClientMethod::TasksCancel,
            )
            | None => Err(not_offered(&request.method)),
        }
    }
}

impl Subject for OwnAnswer<'_> {
    type Checked = ();

    fn name(&self) -> &Arc<str> {
        &self.uri
    }

    fn server(&self) -> Option<&Arc<str>> {
        None
    }

    fn arguments(&self) -> Bytes {
        said(self.request)
    }

    async fn check(&self, _gate: &Gate, _call: &Call<'_>) -> Result<(), Outcome> {
        Ok(())
    }

    async fn dispatch(&self, _gate: &Gate, call: &Call<'_>, (): (), record: &mut CallRecord) -> Outcome {
        self.answer(call, record).await.map_or_else(Outcome::Relayed, Outcome::Prepared)
    }
}
