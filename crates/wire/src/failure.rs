//! Our own failures: the stable codes, and what each becomes on the wire.
//!
//! One table for all crates; the gateway decides how a failure is reported to a client.

use std::fmt;

use crate::code;

/// A stable code. Each has a page with cause and cure in `docs/errors`, which is built into the program.
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
    /// The call timed out while the server was restarting.
    RestartInProgress,
    /// The server did not start.
    ProviderInitFailed,
    /// The server's answer is not usable.
    ProviderInvalidOutput,
    /// The server cannot be confined as asked.
    SandboxUnavailable,
    /// The server is gone and will not be restarted.
    RestartFailed,
    /// The call could not be recorded, so it was not made.
    AuditEnterFailed,
    /// The arguments do not fit; a program gets this from the provider adapter, or if the server itself says so.
    ProviderInvalidInput,
    /// The program that made the call has cancelled it.
    Cancelled,
    /// The caller has made too many requests in too little time.
    RateLimited,
    /// The caller has spent its budget of the day.
    BudgetExhausted,
    /// The caller may use the tool, but its token lacks a scope.
    InsufficientScope,
    /// A rule denies this to the caller. Only the record says so: to the caller it does not exist.
    Denied,
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

/// Who has to change something so that a failed call succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The caller: the name or the arguments of the call are wrong.
    Caller,
    /// The server, or the Rust tool that was called.
    Server,
    /// The gateway: its configuration, its machine, or its record.
    Gateway,
}

/// One row of the table.
struct Rule {
    name: &'static str,
    retryable: bool,
    fault: Fault,
    shape: Shape,
}

impl Code {
    /// All codes, in the order of the table.
    pub const ALL: [Self; 18] = [
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
        Self::Cancelled,
        Self::RateLimited,
        Self::BudgetExhausted,
        Self::InsufficientScope,
        Self::Denied,
    ];

    /// The whole table, in one place.
    const fn rule(self) -> Rule {
        use Fault::{Caller, Gateway, Server};
        const fn rule(name: &'static str, retryable: bool, fault: Fault, shape: Shape) -> Rule {
            Rule { name, retryable, fault, shape }
        }
        const INTERNAL: Shape = Shape::Rpc(code::INTERNAL_ERROR);
        match self {
            Self::InvalidParams => rule("INVALID_PARAMS", false, Caller, Shape::ToolResult),
            Self::HandlerError => rule("HANDLER_ERROR", false, Server, Shape::ToolResult),
            Self::ProviderToolUnknown => {
                rule("PROVIDER_TOOL_UNKNOWN", false, Caller, Shape::Rpc(code::INVALID_PARAMS))
            }
            Self::ProviderTimeout => rule("PROVIDER_TIMEOUT", true, Server, INTERNAL),
            Self::ProviderCrashed => rule("PROVIDER_CRASHED", true, Server, INTERNAL),
            Self::ProviderUnavailable => rule("PROVIDER_UNAVAILABLE", true, Server, INTERNAL),
            Self::RestartInProgress => rule("mcp_restart_in_progress", true, Server, INTERNAL),
            Self::ProviderInitFailed => rule("PROVIDER_INIT_FAILED", false, Server, INTERNAL),
            Self::ProviderInvalidOutput => rule("PROVIDER_INVALID_OUTPUT", false, Server, INTERNAL),
            Self::SandboxUnavailable => rule("SANDBOX_UNAVAILABLE", false, Gateway, INTERNAL),
            Self::RestartFailed => rule("mcp_restart_failed", false, Server, INTERNAL),
            Self::AuditEnterFailed => rule("AUDIT_ENTER_FAILED", false, Gateway, INTERNAL),
            Self::ProviderInvalidInput => rule("PROVIDER_INVALID_INPUT", false, Caller, Shape::Internal),
            Self::Cancelled => rule("cancelled", false, Caller, Shape::Internal),
            Self::RateLimited => rule("RATE_LIMITED", true, Caller, INTERNAL),
            Self::BudgetExhausted => rule("BUDGET_EXHAUSTED", true, Caller, INTERNAL),
            Self::InsufficientScope => rule("INSUFFICIENT_SCOPE", false, Caller, INTERNAL),
            Self::Denied => rule("DENIED", false, Caller, Shape::Internal),
        }
    }

    /// The code under which a program gets a server's own JSON-RPC error.
    pub const fn of_server_error(rpc_code: i64) -> Self {
        match rpc_code {
            code::INVALID_PARAMS => Self::ProviderInvalidInput,
            code::INTERNAL_ERROR => Self::ProviderUnavailable,
            _ => Self::ProviderInvalidOutput,
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

    /// Whose fault it is.
    pub const fn fault(self) -> Fault {
        self.rule().fault
    }

    /// What it becomes on the wire.
    pub const fn shape(self) -> Shape {
        self.rule().shape
    }

    /// The section of the troubleshooting page about this kind of failure, where there is one.
    pub const fn section(self) -> Option<&'static str> {
        match self {
            Self::ProviderInitFailed | Self::SandboxUnavailable => Some("a-server-does-not-start"),
            Self::ProviderToolUnknown => Some("a-tool-is-not-found"),
            Self::ProviderTimeout => Some("a-call-times-out"),
            Self::ProviderCrashed | Self::RestartInProgress => Some("a-server-restarts-again-and-again"),
            Self::ProviderUnavailable | Self::RestartFailed => Some("calls-fail-at-once"),
            Self::InvalidParams
            | Self::HandlerError
            | Self::ProviderInvalidOutput
            | Self::AuditEnterFailed
            | Self::ProviderInvalidInput
            | Self::Cancelled
            | Self::RateLimited
            | Self::BudgetExhausted
            | Self::InsufficientScope
            | Self::Denied => None,
        }
    }

    /// Where to read more; the program alone is enough.
    pub fn hint(self) -> String {
        format!("`bridgehead explain {}` tells cause and cure", self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
                ("cancelled", false, Shape::Internal),
                ("RATE_LIMITED", true, internal),
                ("BUDGET_EXHAUSTED", true, internal),
                ("INSUFFICIENT_SCOPE", false, internal),
                ("DENIED", false, Shape::Internal),
            ]
        );
    }

    /// ERR-1: the caller is at fault for what it sent, the gateway for what it cannot enforce or record, and the server for
    /// the rest.
    #[test]
    fn whose_fault_it_is() {
        let of = |fault| -> Vec<_> {
            Code::ALL.iter().filter(|code| code.fault() == fault).map(|code| code.as_str()).collect()
        };
        assert_eq!(
            of(Fault::Caller),
            [
                "INVALID_PARAMS",
                "PROVIDER_TOOL_UNKNOWN",
                "PROVIDER_INVALID_INPUT",
                "cancelled",
                "RATE_LIMITED",
                "BUDGET_EXHAUSTED",
                "INSUFFICIENT_SCOPE",
                "DENIED",
            ]
        );
        assert_eq!(of(Fault::Gateway), ["SANDBOX_UNAVAILABLE", "AUDIT_ENTER_FAILED"]);
        assert_eq!(of(Fault::Server).len(), Code::ALL.len() - 10);
    }

    /// QA-4: every class of failure has its section, and every section that a code or a message names exists.
    #[test]
    fn every_section_is_there() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/troubleshooting.md");
        let page = std::fs::read_to_string(page).unwrap();
        let named = Code::ALL.map(|code| (code.as_str(), code.section()));
        let expected = [
            ("INVALID_PARAMS", None),
            ("HANDLER_ERROR", None),
            ("PROVIDER_TOOL_UNKNOWN", Some("a-tool-is-not-found")),
            ("PROVIDER_TIMEOUT", Some("a-call-times-out")),
            ("PROVIDER_CRASHED", Some("a-server-restarts-again-and-again")),
            ("PROVIDER_UNAVAILABLE", Some("calls-fail-at-once")),
            ("mcp_restart_in_progress", Some("a-server-restarts-again-and-again")),
            ("PROVIDER_INIT_FAILED", Some("a-server-does-not-start")),
            ("PROVIDER_INVALID_OUTPUT", None),
            ("SANDBOX_UNAVAILABLE", Some("a-server-does-not-start")),
            ("mcp_restart_failed", Some("calls-fail-at-once")),
            ("AUDIT_ENTER_FAILED", None),
            ("PROVIDER_INVALID_INPUT", None),
            ("cancelled", None),
            ("RATE_LIMITED", None),
            ("BUDGET_EXHAUSTED", None),
            ("INSUFFICIENT_SCOPE", None),
            ("DENIED", None),
        ];
        assert_eq!(named, expected);
        let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
        let sections: Vec<String> = headings.map(|text| text.to_lowercase().replace(' ', "-")).collect();
        // The last two are named by the binary and by the process crate.
        let elsewhere = ["the-gateway-itself-does-not-start-in-time", "something-is-left-behind"];
        for section in Code::ALL.iter().filter_map(|code| code.section()).chain(elsewhere) {
            assert!(sections.iter().any(|known| known == section), "no section {section}");
        }
    }

    /// ERR-2: every code has a page, and the hint points there.
    #[test]
    fn every_code_has_its_page() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        for code in Code::ALL {
            let page = std::fs::read_to_string(folder.join(format!("{code}.md"))).unwrap_or_default();
            for part in ["## Cause", "## Cure"] {
                assert!(page.contains(part), "{code} lacks {part}");
            }
            assert!(code.hint().contains(&format!("bridgehead explain {code}`")), "{}", code.hint());
        }
    }
}
