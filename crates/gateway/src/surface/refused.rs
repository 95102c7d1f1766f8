//! A request that is refused before its subject is looked up, but still recorded.

use std::sync::Arc;

use bridgehead_wire::Method;
use bytes::Bytes;

use super::said;
use crate::caller::ClientRequest;
use crate::error::GatewayError;
use crate::gate::{Call, CallRecord, Gate, Subject};
use crate::relay::request::Outcome;

/// What it names, and why it is refused.
pub(crate) struct RefusedRequest<'a> {
    name: Arc<str>,
    request: &'a ClientRequest,
    why: GatewayError,
    /// Why it does not exist for the principal, if that is why it is refused.
    denied: Option<String>,
}

impl<'a> RefusedRequest<'a> {
    pub(crate) fn new(request: &'a ClientRequest, why: GatewayError) -> Self {
        let member = |name| request.params.get(name).and_then(|value| value.to_text());
        let name = ["name", "uri", "taskId"].into_iter().find_map(member).unwrap_or_default();
        Self { name: name.into(), request, why, denied: None }
    }

    /// The same for something that exists for others.
    pub(crate) fn denied(request: &'a ClientRequest, why: GatewayError, denied: String) -> Self {
        Self { denied: Some(denied), ..Self::new(request, why) }
    }
}

impl Subject for RefusedRequest<'_> {
    type Checked = std::convert::Infallible;

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn server(&self) -> Option<&Arc<str>> {
        None
    }

    fn denied(&self) -> Option<&str> {
        self.denied.as_deref()
    }

    fn arguments(&self) -> Bytes {
        if self.request.method != Method::ToolsCall {
            return said(self.request);
        }
        let arguments = self.request.params.get("arguments");
        arguments.map_or(Bytes::from_static(b"{}"), |arguments| arguments.bytes().clone())
    }

    async fn check(&self, _gate: &Gate, _call: &Call<'_>) -> Result<Self::Checked, Outcome> {
        Err(Outcome::Failed(self.why.clone()))
    }

    async fn dispatch(
        &self,
        _gate: &Gate,
        _call: &Call<'_>,
        never: Self::Checked,
        _record: &mut CallRecord,
    ) -> Outcome {
        match never {}
    }
}
