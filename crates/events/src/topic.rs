//! The topics of events. The list is closed: no other topic is ever published.

use std::fmt;

/// The topic of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A server's tools are known for the first time.
    ToolsDiscovered,
    /// A server's tools were listed again.
    ToolsRefreshed,
    /// A call ended with a result.
    ToolCompleted,
    /// A call ended without a result.
    ToolFailed,
    /// A request other than a call ended with a result.
    RequestCompleted,
    /// A request other than a call ended without a result.
    RequestFailed,
    /// A link was lost.
    Disconnected,
    /// A lost link is back.
    Reconnected,
    /// A lost link will not be tried again.
    ReconnectExhausted,
    /// An initialisation began.
    InitStarted,
    /// An initialisation ended.
    InitFinished,
    /// A server's health was probed.
    Probe,
    /// A restart is scheduled.
    Restart,
    /// A server's process is gone.
    ProcessExited,
    /// A checkpoint of the audit record was made.
    AuditCheckpoint,
}

impl Topic {
    /// All topics, in the order of their declaration.
    pub const ALL: [Self; 15] = [
        Self::ToolsDiscovered,
        Self::ToolsRefreshed,
        Self::ToolCompleted,
        Self::ToolFailed,
        Self::RequestCompleted,
        Self::RequestFailed,
        Self::Disconnected,
        Self::Reconnected,
        Self::ReconnectExhausted,
        Self::InitStarted,
        Self::InitFinished,
        Self::Probe,
        Self::Restart,
        Self::ProcessExited,
        Self::AuditCheckpoint,
    ];

    /// Its name, as subscribers see and filter it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ToolsDiscovered => "provider.mcp.tools.discovered",
            Self::ToolsRefreshed => "provider.mcp.tools.refreshed",
            Self::ToolCompleted => "provider.mcp.tool.completed",
            Self::ToolFailed => "provider.mcp.tool.failed",
            Self::RequestCompleted => "provider.mcp.request.completed",
            Self::RequestFailed => "provider.mcp.request.failed",
            Self::Disconnected => "provider.mcp.disconnected",
            Self::Reconnected => "provider.mcp.reconnected",
            Self::ReconnectExhausted => "provider.mcp.reconnect.exhausted",
            Self::InitStarted => "provider.mcp.init.started",
            Self::InitFinished => "provider.mcp.init.finished",
            Self::Probe => "provider.mcp.probe",
            Self::Restart => "provider.mcp.restart",
            Self::ProcessExited => "provider.mcp.process.exited",
            Self::AuditCheckpoint => "audit.checkpoint",
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
