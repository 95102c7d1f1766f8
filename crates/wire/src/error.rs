//! One JSON-RPC error as the bytes that go on the wire.

use std::time::Duration;

use serde::Serialize;

use crate::{Code, Raw, code};

/// A JSON-RPC error object: ours, or an upstream's passed on byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("JSON-RPC error {code}")]
pub struct RpcError {
    code: i64,
    body: Raw,
    /// Boxed, because most errors have none.
    failure: Option<Box<Failure>>,
}

/// A failure of the gateway itself, as far as an answer shows it outside the error's body. An upstream's error never has
/// one, whatever its body says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// When the same request may succeed.
    pub retry_after: Option<Duration>,
    /// The limit that refused the request.
    pub quota: Option<Quota>,
}

/// How much a limit allows, and how much of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The kind of limit: one word.
    pub name: &'static str,
    /// How much it allows.
    pub count: u64,
    /// In how much time.
    pub window: Duration,
    /// How much is left.
    pub left: u64,
    /// When there is more.
    pub more_after: Duration,
}

#[derive(Serialize)]
struct Body<'a> {
    code: i64,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a serde_json::Value>,
}

impl RpcError {
    /// An error of our own.
    pub fn new(code: i64, message: &str) -> Self {
        Self { code, body: Raw::encode(&Body { code, message, data: None }), failure: None }
    }

    /// An error of our own with `data`.
    pub fn with_data(code: i64, message: &str, data: &serde_json::Value) -> Self {
        Self { code, body: Raw::encode(&Body { code, message, data: Some(data) }), failure: None }
    }

    /// An upstream's error object as it came. A body without a readable integer code is treated as an
    /// internal error of that upstream, still passed on unchanged.
    pub fn relayed(body: Raw) -> Self {
        #[derive(serde::Deserialize)]
        struct Code {
            code: i64,
        }
        let code = body.decode::<Code>().map_or(code::INTERNAL_ERROR, |body| body.code);
        Self { code, body, failure: None }
    }

    /// Says which failure of the gateway the error tells of.
    #[must_use]
    pub fn of_failure(self, failure: Failure) -> Self {
        Self { failure: Some(Box::new(failure)), ..self }
    }

    /// The failure of the gateway that it tells of; none for an upstream's error.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// The code.
    pub const fn code(&self) -> i64 {
        self.code
    }

    /// The whole error object.
    pub const fn body(&self) -> &Raw {
        &self.body
    }

    /// The message, if the body has one.
    pub fn message(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Text {
            message: String,
        }
        self.body.decode::<Text>().map(|body| body.message).unwrap_or_default()
    }

    /// The `data` member, if the body has one.
    pub fn data(&self) -> Option<Raw> {
        crate::Object::parse(&self.body).ok()?.get("data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_errors_are_built_and_foreign_ones_kept() {
        let own = RpcError::with_data(code::INVALID_PARAMS, "no", &serde_json::json!({"a": 1}));
        assert_eq!(own.body().as_str(), r#"{"code":-32602,"message":"no","data":{"a":1}}"#);
        let text = r#"{ "message":"x", "code": 7, "vendor":1.50 }"#;
        let foreign = RpcError::relayed(Raw::parse(text).unwrap());
        assert_eq!((foreign.code(), foreign.body().as_str()), (7, text));
        assert_eq!(RpcError::relayed(Raw::literal("{}")).code(), code::INTERNAL_ERROR);
        assert_eq!(own.data().unwrap().as_str(), r#"{"a":1}"#);
        assert_eq!((own.failure(), foreign.failure()), (None, None));
        let failure = Failure { code: Code::RateLimited, retry_after: None, quota: None };
        assert_eq!(own.of_failure(failure).failure(), Some(&failure));
    }
}
