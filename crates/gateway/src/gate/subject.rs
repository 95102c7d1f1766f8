//! What a request is about, as the stages of the gate see it.

use std::sync::Arc;

use bytes::Bytes;

use super::{Call, CallRecord, Gate, Limits};
use crate::catalog::ToolLock;
use crate::error::GatewayError;
use crate::relay::request::Outcome;

/// A tool, a prompt, a resource, a list, a subscription: each says what the stages do with it.
pub(crate) trait Subject: Sync {
    /// What `check` hands to `dispatch`.
    type Checked: Send;

    /// The name that the client used.
    fn name(&self) -> &Arc<str>;

    /// The name that its server knows it by, for a tool or a prompt that exists.
    fn own_name(&self) -> Option<&str> {
        None
    }

    /// The server that it belongs to, if that is known.
    fn server(&self) -> Option<&Arc<str>>;

    /// What the client said besides the name, as the record keeps it: a JSON text.
    fn arguments(&self) -> Bytes;

    /// Why it does not exist for the principal, although it exists.
    fn denied(&self) -> Option<&str> {
        None
    }

    /// Whether this request may be made, if that depends on its arguments. What a principal may not use at
    /// all is not in its view, and so is not found.
    fn authorize(&self, _gate: &Gate, _call: &Call<'_>) -> Result<(), GatewayError> {
        Ok(())
    }

    /// The lock and the limits of waiting for it, if requests take turns.
    fn lock(&self, _gate: &Gate) -> Option<(&ToolLock, Limits)> {
        None
    }

    /// Whether the request may continue; the error is its outcome if it may not.
    fn check(
        &self,
        gate: &Gate,
        call: &Call<'_>,
    ) -> impl Future<Output = Result<Self::Checked, Outcome>> + Send;

    /// Does what was asked.
    fn dispatch(
        &self,
        gate: &Gate,
        call: &Call<'_>,
        checked: Self::Checked,
        record: &mut CallRecord,
    ) -> impl Future<Output = Outcome> + Send;
}
