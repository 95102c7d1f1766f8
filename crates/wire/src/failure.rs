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
    /// The arguments do not fit; the provider adapter reports this when it is called directly.
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
            | Self::ProviderInvalidInput => None,
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
            ]
        );
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
