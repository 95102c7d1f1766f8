//! A call that the gateway failed: a stable code, a message, and what the client sees of them.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_wire::{Code, Failure, Fault, Object, Quota, Raw, Redactor, RpcError};
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
    /// What the client learns of the limit that refused it. Boxed, because hardly any error has it.
    pub limit: Option<Box<OverLimit>>,
    /// Whether the caller has ended what the call needs, so that no later call can succeed.
    pub(crate) ended: bool,
}

/// What a client learns of a limit that refused its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverLimit {
    /// When the same call may succeed.
    pub retry_after: Duration,
    /// The limit, if it is one of an amount per time.
    pub quota: Option<Quota>,
}

impl GatewayError {
    /// A failure before the tool could run. The message may quote a server or a tool, so secrets are
    /// redacted.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = Redactor::default().text(&message.into()).into_owned();
        Self {
            code,
            message,
            may_have_run: false,
            details: None,
            server: None,
            scopes: None,
            limit: None,
            ended: false,
        }
    }

    /// Marks a failure after the call was sent.
    #[must_use]
    pub fn after_sending(self) -> Self {
        Self { may_have_run: true, ..self }
    }

    /// Marks a failure of a caller that has itself ended what the call needs: no later call succeeds.
    #[must_use]
    pub(crate) fn ended_by_caller(self) -> Self {
        Self { ended: true, ..self }
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

    /// Says when the same call may succeed, and which limit of an amount per time refused it.
    #[must_use]
    pub fn over_limit(self, retry_after: Duration, quota: Option<Quota>) -> Self {
        Self { limit: Some(Box::new(OverLimit { retry_after, quota })), ..self }
    }

    /// When the same call may succeed, if a limit refused it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.limit.as_ref().map(|limit| limit.retry_after)
    }

    /// Whose fault it is.
    pub const fn fault(&self) -> Fault {
        if self.ended { Fault::Caller } else { self.code.fault() }
    }

    /// Whether the same call may succeed later.
    pub const fn retryable(&self) -> bool {
        self.code.retryable() && !self.ended
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
        let retry_after = self.retry_after();
        if let Some(wait) = retry_after {
            data["retryAfterMs"] = json!(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        }
        let quota = self.limit.as_ref().and_then(|limit| limit.quota);
        let failure = Failure { code: self.code, retry_after, quota };
        RpcError::with_data(rpc_code, &self.message, &data).of_failure(failure)
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

    /// ACC-3: the scopes that a call needs can be read from its error, and only from the gateway's own.
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

    /// ACC-5: an error of a limit says when to try again, in its body and beside it.
    #[test]
    fn an_error_says_when_to_try_again() {
        let wait = Duration::from_millis(1500);
        let error = GatewayError::new(Code::RateLimited, "too many").over_limit(wait, None);
        let rpc = error.to_rpc(-32603, None, ("tool", "say"), CorrelationId::mint());
        let body: Value = rpc.body().decode().unwrap();
        assert_eq!((&body["code"], &body["data"]["code"]), (&json!(-32603), &json!("RATE_LIMITED")));
        assert_eq!((&body["data"]["retryAfterMs"], &body["data"]["retryable"]), (&json!(1500), &json!(true)));
        let failure = rpc.failure().unwrap();
        assert_eq!((failure.code, failure.retry_after), (Code::RateLimited, Some(wait)));
    }
}
