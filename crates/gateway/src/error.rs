//! Our own errors: the stable codes, and what each becomes on the wire.

use std::fmt;

use bridgehead_audit::CorrelationId;
use bridgehead_wire::{RpcError, code};
use serde_json::{Value, json};

/// Where the pages about the codes stand.
const PAGES: &str = "docs/errors";

/// A stable code. Each has a page in `docs/errors` with cause and cure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The arguments do not fit the tool's schema.
    InvalidParams,
    /// A Rust tool failed or panicked.
    HandlerError,
    /// No tool of that name is offered.
    ProviderToolUnknown,
    /// The server did not answer in time.
    ProviderTimeout,
    /// The server ended during the call.
    ProviderCrashed,
    /// The server is not serving now.
    ProviderUnavailable,
    /// The call's time ended while the server was restarting.
    RestartInProgress,
    /// The server never came up.
    ProviderInitFailed,
    /// The server's answer is not usable.
    ProviderInvalidOutput,
    /// The server cannot be confined as asked.
    SandboxUnavailable,
    /// The server is gone and will not be restarted.
    RestartFailed,
    /// The call could not be recorded, so it was not made.
    AuditEnterFailed,
    /// The arguments do not fit, said by the provider adapter when it is called directly.
    ProviderInvalidInput,
}

/// How a failed call looks to an MCP client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A tool result with `isError`, which the model gets to see.
    ToolResult,
    /// A JSON-RPC error with this code.
    Rpc(i64),
    /// Never sent to a client.
    Internal,
}

/// One row of the table.
struct Rule {
    name: &'static str,
    retryable: bool,
    shape: Shape,
}

impl Code {
    /// All codes, in the order of the table.
    pub const ALL: [Self; 13] = [
        Self::InvalidParams,
        Self::HandlerError,
        Self::ProviderToolUnknown,
        Self::ProviderTimeout,
        Self::ProviderCrashed,
        Self::ProviderUnavailable,
        Self::RestartInProgress,
        Self::ProviderInitFailed,
        Self::ProviderInvalidOutput,
        Self::SandboxUnavailable,
        Self::RestartFailed,
        Self::AuditEnterFailed,
        Self::ProviderInvalidInput,
    ];

    /// The whole table, in one place.
    const fn rule(self) -> Rule {
        const fn rule(name: &'static str, retryable: bool, shape: Shape) -> Rule {
            Rule { name, retryable, shape }
        }
        const INTERNAL: Shape = Shape::Rpc(code::INTERNAL_ERROR);
        match self {
            Self::InvalidParams => rule("INVALID_PARAMS", false, Shape::ToolResult),
            Self::HandlerError => rule("HANDLER_ERROR", false, Shape::ToolResult),
            Self::ProviderToolUnknown => {
                rule("PROVIDER_TOOL_UNKNOWN", false, Shape::Rpc(code::INVALID_PARAMS))
            }
            Self::ProviderTimeout => rule("PROVIDER_TIMEOUT", true, INTERNAL),
            Self::ProviderCrashed => rule("PROVIDER_CRASHED", true, INTERNAL),
            Self::ProviderUnavailable => rule("PROVIDER_UNAVAILABLE", true, INTERNAL),
            Self::RestartInProgress => rule("mcp_restart_in_progress", true, INTERNAL),
            Self::ProviderInitFailed => rule("PROVIDER_INIT_FAILED", false, INTERNAL),
            Self::ProviderInvalidOutput => rule("PROVIDER_INVALID_OUTPUT", false, INTERNAL),
            Self::SandboxUnavailable => rule("SANDBOX_UNAVAILABLE", false, INTERNAL),
            Self::RestartFailed => rule("mcp_restart_failed", false, INTERNAL),
            Self::AuditEnterFailed => rule("AUDIT_ENTER_FAILED", false, INTERNAL),
            Self::ProviderInvalidInput => rule("PROVIDER_INVALID_INPUT", false, Shape::Internal),
        }
    }

    /// Its name, as clients, logs and records show it.
    pub const fn as_str(self) -> &'static str {
        self.rule().name
    }

    /// Whether the same call may succeed later.
    pub const fn retryable(self) -> bool {
        self.rule().retryable
    }

    /// What it becomes on the wire.
    pub const fn shape(self) -> Shape {
        self.rule().shape
    }

    /// The page that tells cause and cure.
    pub fn page(self) -> String {
        format!("{PAGES}/{}.md", self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

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
}

impl CallError {
    /// A failure before the tool could run.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), may_have_run: false, details: None }
    }

    /// A failure after the call was handed over.
    #[must_use]
    pub fn after_sending(self) -> Self {
        Self { may_have_run: true, ..self }
    }

    /// The same with details.
    #[must_use]
    pub fn with_details(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }

    /// `{ok: false, error}` for a client that gets it as a tool result; the hint stands in the details.
    pub fn envelope(&self) -> Value {
        let mut details = match &self.details {
            Some(Value::Object(details)) => Value::Object(details.clone()),
            Some(other) => json!({"value": other}),
            None => json!({}),
        };
        details["hint"] = json!(self.hint());
        json!({"ok": false, "error": {"code": self.code.as_str(), "message": self.message, "details": details}})
    }

    fn hint(&self) -> String {
        format!("see {}", self.code.page())
    }

    /// The JSON-RPC error for a client that gets it as one.
    pub fn to_rpc(
        &self,
        rpc_code: i64,
        server: Option<&str>,
        tool: &str,
        correlation: CorrelationId,
    ) -> RpcError {
        let mut data = json!({
            "source": "gateway",
            "code": self.code.as_str(),
            "retryable": self.code.retryable(),
            "server": server,
            "tool": tool,
            "correlationId": correlation.to_string(),
            "mayHaveRun": self.may_have_run,
            "hint": self.hint(),
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

    /// ERR-1: the table as the requirements print it.
    #[test]
    fn the_table() {
        let rows: Vec<_> = Code::ALL.map(|code| (code.as_str(), code.retryable(), code.shape())).to_vec();
        let internal = Shape::Rpc(-32603);
        assert_eq!(
            rows,
            [
                ("INVALID_PARAMS", false, Shape::ToolResult),
                ("HANDLER_ERROR", false, Shape::ToolResult),
                ("PROVIDER_TOOL_UNKNOWN", false, Shape::Rpc(-32602)),
                ("PROVIDER_TIMEOUT", true, internal),
                ("PROVIDER_CRASHED", true, internal),
                ("PROVIDER_UNAVAILABLE", true, internal),
                ("mcp_restart_in_progress", true, internal),
                ("PROVIDER_INIT_FAILED", false, internal),
                ("PROVIDER_INVALID_OUTPUT", false, internal),
                ("SANDBOX_UNAVAILABLE", false, internal),
                ("mcp_restart_failed", false, internal),
                ("AUDIT_ENTER_FAILED", false, internal),
                ("PROVIDER_INVALID_INPUT", false, Shape::Internal),
            ]
        );
    }

    /// ERR-1: what our own JSON-RPC errors carry.
    #[test]
    fn an_error_answers_what_whose_again_and_what_now() {
        let correlation = CorrelationId::mint();
        let error = CallError::new(Code::ProviderCrashed, "gone").after_sending();
        let rpc = error.to_rpc(-32603, Some("files"), "files__read", correlation);
        let body: Value = rpc.body().decode().unwrap();
        assert_eq!(
            body,
            json!({"code": -32603, "message": "gone", "data": {
                "source": "gateway", "code": "PROVIDER_CRASHED", "retryable": true, "server": "files",
                "tool": "files__read", "correlationId": correlation.to_string(), "mayHaveRun": true,
                "hint": "see docs/errors/PROVIDER_CRASHED.md",
            }})
        );
    }

    /// ERR-2: every code has a page, and the hint points there.
    #[test]
    fn every_code_has_its_page() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for code in Code::ALL {
            let page = std::fs::read_to_string(root.join(code.page())).unwrap_or_default();
            for part in ["## Cause", "## Cure"] {
                assert!(page.contains(part), "{} lacks {part}", code.page());
            }
        }
    }
}
