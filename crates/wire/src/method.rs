//! The method names of both eras, in one place.

use std::fmt;

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A JSON-RPC method, known or not.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Method {
            $($(#[$doc])* $variant,)*
            /// Any other name.
            Other(Box<str>),
        }

        impl Method {
            /// Its name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(name) => name,
                }
            }
        }

        impl From<&str> for Method {
            fn from(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}

methods! {
    /// Opens a legacy session.
    Initialize = "initialize",
    /// Legacy sign of life.
    Ping = "ping",
    /// What a modern server is and can do.
    Discover = "server/discover",
    /// The tools.
    ToolsList = "tools/list",
    /// One tool invocation.
    ToolsCall = "tools/call",
    /// The prompts.
    PromptsList = "prompts/list",
    /// One prompt.
    PromptsGet = "prompts/get",
    /// The resources.
    ResourcesList = "resources/list",
    /// One resource.
    ResourcesRead = "resources/read",
    /// A legacy server's question to its client's model.
    CreateMessage = "sampling/createMessage",
    /// A legacy server's question to its client's user.
    Elicit = "elicitation/create",
    /// A legacy server's question for its client's folders.
    RootsList = "roots/list",
    /// The end of the legacy handshake.
    Initialized = "notifications/initialized",
    /// The sender no longer wants an answer.
    Cancelled = "notifications/cancelled",
    /// How far a request has come.
    Progress = "notifications/progress",
    /// A log line.
    LogMessage = "notifications/message",
    /// The user has finished what a URL asked for; 2025-11-25 only.
    ElicitationComplete = "notifications/elicitation/complete",
    /// The set of tools is another one.
    ToolsListChanged = "notifications/tools/list_changed",
}

impl Method {
    /// Whether a modern server may answer it with a question to the client.
    pub const fn may_ask(&self) -> bool {
        matches!(self, Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["initialize", "tools/call", "notifications/cancelled", "something/else"] {
            assert_eq!(Method::from(name).as_str(), name);
        }
        assert_eq!(Method::from("tools/call"), Method::ToolsCall);
    }
}
