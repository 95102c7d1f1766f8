//! A call that failed in our name: one of the stable codes, with words, and what a client gets to see of it.

use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_wire::{Code, Raw, Redactor, RpcError};
use serde_json::{Value, json};

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// Which failure it is.
    pub code: Code,
    /// What happened, in words, without secrets.
    pub message: String,
    /// Whether the tool may have done its work all the same.
    pub may_have_run: bool,
    /// More for programs.
    pub details: Option<Value>,
    /// The server that is to blame, where no route leads to it that would name it.
    pub server: Option<Arc<str>>,
}

impl CallError {
    /// A failure before the tool could run. The words may quote a server or a tool, so secrets are taken out of them.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = Redactor::default().text(&message.into()).into_owned();
        Self { code, message, may_have_run: false, details: None, server: None }
    }

    /// A failure after the call was handed over.
    #[must_use]
    pub fn after_sending(self) -> Self {
        Self { may_have_run: true, ..self }
    }

    /// A failure of a server that nothing else names.
    #[must_use]
    pub fn of_server(self, server: &str) -> Self {
        Self { server: Some(server.into()), ..self }
    }

    /// The same with details, without their secrets.
    #[must_use]
    pub fn with_details(self, details: &Value) -> Self {
        let details = Redactor::default().raw(&Raw::encode(details)).decode().ok();
        Self { details, ..self }
    }

    /// `{ok: false, error}` for a client that gets it as a tool result; the hint stands in the details.
    pub fn envelope(&self) -> Value {
        let mut details = match &self.details {
            Some(Value::Object(details)) => Value::Object(details.clone()),
            Some(other) => json!({"value": other}),
            None => json!({}),
        };
        details["hint"] = json!(self.code.hint());
        json!({"ok": false, "error": {"code": self.code.as_str(), "message": self.message, "details": details}})
    }

    /// The JSON-RPC error for a client that gets it as one; `kind` is what the call was about: a tool, a prompt.
    pub fn to_rpc(
        &self,
        rpc_code: i64,
        server: Option<&str>,
        (kind, name): (&'static str, &str),
        correlation: CorrelationId,
    ) -> RpcError {
        let mut data = json!({
            "source": "gateway",
            "code": self.code.as_str(),
            "retryable": self.code.retryable(),
            "server": server.or(self.server.as_deref()),
            kind: name,
            "correlationId": correlation.to_string(),
            "mayHaveRun": self.may_have_run,
            "hint": self.code.hint(),
        });
        if let Some(details) = &self.details {
            data["details"] = details.clone();
        }
        RpcError::with_data(rpc_code, &self.message, &data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ERR-1: what our own JSON-RPC errors carry.
    #[test]
    fn an_error_answers_what_whose_again_and_what_now() {
        let correlation = CorrelationId::mint();
        let error = CallError::new(Code::ProviderCrashed, "gone").after_sending();
        let rpc = error.to_rpc(-32603, Some("files"), ("tool", "files__read"), correlation);
        let body: Value = rpc.body().decode().unwrap();
        assert_eq!(
            body,
            json!({"code": -32603, "message": "gone", "data": {
                "source": "gateway", "code": "PROVIDER_CRASHED", "retryable": true, "server": "files",
                "tool": "files__read", "correlationId": correlation.to_string(), "mayHaveRun": true,
                "hint": "`bridgehead explain PROVIDER_CRASHED` tells cause and cure",
            }})
        );
    }
}
