//! A call that the gateway failed: a stable code, a message, and what the client sees of them.

use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_wire::{Code, Fault, Object, Raw, Redactor, RpcError};
use serde_json::{Value, json};

use crate::access::Scopes;

/// Why the gateway refused or failed a call; a limiter refuses with it too.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct GatewayError {
    /// The stable code.
    pub code: Code,
    /// What happened, for people, without secrets.
    pub message: String,
    /// Whether the tool may have done its work anyway.
    pub may_have_run: bool,
    /// Details for programs.
    pub details: Option<Value>,
    /// The server at fault, if no route names it.
    pub server: Option<Arc<str>>,
    /// All scopes that the call needs, if one is missing.
    pub scopes: Option<Scopes>,
}

impl GatewayError {
    /// A failure before the tool could run. The message may quote a server or a tool, so secrets are
    /// redacted.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = Redactor::default().text(&message.into()).into_owned();
        Self { code, message, may_have_run: false, details: None, server: None, scopes: None }
    }

    /// Marks a failure after the call was sent.
    #[must_use]
    pub fn after_sending(self) -> Self {
        Self { may_have_run: true, ..self }
    }

    /// Names the server at fault, if nothing else does.
    #[must_use]
    pub fn of_server(self, server: &str) -> Self {
        Self { server: Some(server.into()), ..self }
    }

    /// Adds details, with secrets redacted.
    #[must_use]
    pub fn with_details(self, details: &Value) -> Self {
        let details = Redactor::default().raw(&Raw::encode(details)).decode().ok();
        Self { details, ..self }
    }

    /// Names all scopes that the call needs.
    #[must_use]
    pub fn needing(self, scopes: Scopes) -> Self {
        Self { scopes: Some(scopes), ..self }
    }

    /// Whose fault it is.
    pub const fn fault(&self) -> Fault {
        self.code.fault()
    }

    /// Whether the same call may succeed later.
    pub const fn retryable(&self) -> bool {
        self.code.retryable()
    }

    /// Where to read about cause and cure.
    pub fn hint(&self) -> String {
        self.code.hint()
    }

    /// `{ok: false, error}` for a client that gets the failure as a tool result; the hint is in the details.
    pub fn envelope(&self) -> Value {
        let mut details = match &self.details {
            Some(Value::Object(details)) => Value::Object(details.clone()),
            Some(other) => json!({"value": other}),
            None => json!({}),
        };
        details["hint"] = json!(self.hint());
        json!({"ok": false, "error": {"code": self.code.as_str(), "message": self.message, "details": details}})
    }

    /// The JSON-RPC error for a client that gets the failure as one; `kind` is the kind of subject: `tool`,
    /// `prompt`.
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
            "retryable": self.retryable(),
            "server": server.or(self.server.as_deref()),
            kind: name,
            "correlationId": correlation.to_string(),
            "mayHaveRun": self.may_have_run,
            "hint": self.hint(),
        });
        if let Some(details) = &self.details {
            data["details"] = details.clone();
        }
        if let Some(scopes) = &self.scopes {
            data["scope"] = json!(scopes.join(" "));
        }
        RpcError::with_data(rpc_code, &self.message, &data)
    }
}

/// The scopes that a call needs, separated by spaces, if the gateway refused it because one is missing.
pub fn missing_scope(error: &RpcError) -> Option<String> {
    let data = Object::parse(&error.data()?).ok()?;
    let is = |name: &str, value: &str| {
        data.get(name).is_some_and(|found| found.to_text().as_deref() == Some(value))
    };
    if !(is("source", "gateway") && is("code", Code::InsufficientScope.as_str())) {
        return None;
    }
    data.get("scope")?.to_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ERR-1: what the gateway's own JSON-RPC errors carry.
    #[test]
    fn an_error_answers_what_whose_again_and_what_now() {
        let correlation = CorrelationId::mint();
        let error = GatewayError::new(Code::ProviderCrashed, "gone").after_sending();
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

    /// ACC-4: the scopes that a call needs can be read from its error, and only from the gateway's own.
    #[test]
    fn an_error_names_the_missing_scopes() {
        let scopes: Scopes = ["repo:read".into(), "repo:write".into()].into();
        let error = GatewayError::new(Code::InsufficientScope, "no").needing(scopes);
        let rpc = error.to_rpc(-32603, Some("git"), ("tool", "push"), CorrelationId::mint());
        let body: Value = rpc.body().decode().unwrap();
        assert_eq!(body["data"]["scope"], "repo:read repo:write");
        assert_eq!(missing_scope(&rpc).as_deref(), Some("repo:read repo:write"));
        let other = GatewayError::new(Code::ProviderCrashed, "gone");
        assert_eq!(missing_scope(&other.to_rpc(-32603, None, ("tool", "push"), CorrelationId::mint())), None);
        let foreign = json!({"source": "server", "code": "INSUFFICIENT_SCOPE", "scope": "x"});
        assert_eq!(missing_scope(&RpcError::with_data(-32603, "no", &foreign)), None);
        assert_eq!(missing_scope(&RpcError::new(-32603, "no")), None);
    }
}
