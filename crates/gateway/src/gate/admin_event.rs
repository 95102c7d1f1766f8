//! The pair of audit events of something that is not a client's request: what an operator did, a sign-in that failed, a reload.
//!
//! Such an event names a method of its own and a subject, so that readers of the record find it like any other row. It counts as
//! no call: neither limits nor the counters of calls see it.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bridgehead_call::{About, AuditError, Call as AuditCall, CorrelationId, Enter, Exit, Outcome as Ending};
use bridgehead_wire::Era;
use bytes::Bytes;
use serde_json::Value;

use super::record::{enter_failed, recorded, sink_panicked, write_exit};
use crate::access::Principal;
use crate::gateway::Gateway;

/// The methods of events that are not requests of a client.
pub mod admin {
    /// An operator restarts a server; the subject is its name.
    pub const RESTART: &str = "operator/restart";
    /// An operator opens the stream of events; the subject is the server, if there is one.
    pub const EVENTS: &str = "operator/events";
    /// An operator follows the lines of a server; the subject is its name.
    pub const LOGS: &str = "operator/logs";
    /// Sign-ins failed; the subject is the address.
    pub const SIGN_IN_FAILED: &str = "auth/failed";
    /// The configuration was read again.
    pub const RELOAD: &str = "configuration/reload";
}

/// Something that is recorded although no client requested it.
#[derive(Debug, Clone, Copy)]
pub struct AdminEvent<'a> {
    /// Who did it.
    pub principal: &'a Principal,
    /// How it came in: `http` or `control`; `gateway` for what the gateway does by itself.
    pub transport: &'static str,
    /// What was done; see [`admin`].
    pub method: &'static str,
    /// To what.
    pub subject: &'a str,
    /// With which details. Secrets are redacted.
    pub arguments: &'a Value,
}

impl Gateway {
    /// Records an event around `act`, which says how it went. As with a call, nothing is done if the enter event cannot be
    /// recorded.
    ///
    /// # Errors
    /// If the enter event was not recorded.
    pub async fn record_event(
        &self,
        event: AdminEvent<'_>,
        act: impl FnOnce() -> Result<Value, String>,
    ) -> Result<Result<Value, String>, AuditError> {
        let gate = &self.inner().gate;
        let (audit, signals) = (&gate.audit, &gate.signals);
        let call = AuditCall {
            tool: Arc::default(),
            server: None,
            principal: event.principal.shared(),
            correlation: CorrelationId::mint(),
            era: Era::Modern,
            transport: event.transport,
            about: About::of(Some(event.method), event.subject.into()),
        };
        let entered = gate.clock.now();
        let arguments = Bytes::from(event.arguments.to_string());
        let enter = Enter::new(call.clone(), arguments, true, entered);
        let entering = catch_unwind(AssertUnwindSafe(|| audit.enter(&enter)))
            .map_err(|panic| sink_panicked(signals, &*panic));
        let ticket = match entering {
            Ok(mut entering) => recorded(signals, &mut entering).await,
            Err(error) => Err(error),
        };
        let ticket = ticket.inspect_err(|error| enter_failed(signals, &call, error, false))?;
        let outcome = act();
        let ending = match &outcome {
            Ok(result) => Ending::Result { body: Bytes::from(result.to_string()), is_error: false },
            Err(message) => {
                Ending::Error { code: Cow::Borrowed("FAILED"), message: message.clone(), details: None }
            }
        };
        let exit = Exit::new(&call, entered, gate.clock.now(), ending);
        write_exit(&**audit, signals, (ticket, &call), exit);
        Ok(outcome)
    }
}
