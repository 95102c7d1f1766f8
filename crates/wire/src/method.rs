//! The methods of both eras in one table: who has them, how they are recorded, which members their parameters have.
//!
//! A new method is a new row. The compiler then names every place that must decide about it, because methods are matched
//! without a rest.

use std::fmt;

use crate::{Era, key};

/// Which eras have a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eras {
    /// Both.
    Both,
    /// Revisions with `initialize`.
    Legacy,
    /// 2026-07-28 and what follows.
    Modern,
}

impl Eras {
    /// Whether an era is among them.
    pub const fn has(self, era: Era) -> bool {
        matches!((self, era), (Self::Both, _) | (Self::Legacy, Era::Legacy) | (Self::Modern, Era::Modern))
    }
}

/// Whether a request of a client leaves its pair of audit events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    /// Always.
    Always,
    /// Where the operator asks for it.
    OnDemand,
    /// Never: it concerns no server, or is no request of a client.
    Never,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal $eras:ident $recording:ident [$($member:literal),*],)*) => {
        /// A JSON-RPC method, known or not.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Method {
            $($(#[$doc])* $variant,)*
            /// Any other name.
            Other(Box<str>),
        }

        impl Method {
            /// All that are known, in the order of the table.
            pub const KNOWN: &'static [Self] = &[$(Self::$variant),*];

            /// Its name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(name) => name,
                }
            }

            /// Its name, if it is known.
            pub const fn known(&self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($name),)*
                    Self::Other(_) => None,
                }
            }

            /// Which eras have it. One that nobody knows is refused in both alike.
            pub const fn eras(&self) -> Eras {
                match self {
                    $(Self::$variant => Eras::$eras,)*
                    Self::Other(_) => Eras::Both,
                }
            }

            /// Whether it is recorded.
            pub const fn recording(&self) -> Recording {
                match self {
                    $(Self::$variant => Recording::$recording,)*
                    Self::Other(_) => Recording::Never,
                }
            }

            /// The members that its `params` have by the protocol, of whichever revision.
            pub const fn params(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[key::META, $($member),*],)*
                    Self::Other(_) => &[key::META],
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
    Initialize = "initialize" Legacy Never ["protocolVersion", "capabilities", "clientInfo"],
    /// Legacy sign of life.
    Ping = "ping" Legacy Never [],
    /// What a modern server is and can do.
    Discover = "server/discover" Modern Never [],
    /// The tools.
    ToolsList = "tools/list" Both OnDemand ["cursor"],
    /// One tool invocation.
    ToolsCall = "tools/call" Both Always ["name", "arguments", "task", "inputResponses", "requestState"],
    /// The prompts.
    PromptsList = "prompts/list" Both OnDemand ["cursor"],
    /// One prompt.
    PromptsGet = "prompts/get" Both Always ["name", "arguments", "inputResponses", "requestState"],
    /// The resources.
    ResourcesList = "resources/list" Both OnDemand ["cursor"],
    /// One resource.
    ResourcesRead = "resources/read" Both Always ["uri", "inputResponses", "requestState"],
    /// The patterns of resources that no list can hold.
    TemplatesList = "resources/templates/list" Both OnDemand ["cursor"],
    /// What an argument might be.
    Complete = "completion/complete" Both OnDemand ["ref", "argument", "context"],
    /// Legacy: which log lines are wanted from now on.
    SetLevel = "logging/setLevel" Legacy OnDemand ["level"],
    /// Legacy: changes of a resource are to be told.
    Subscribe = "resources/subscribe" Legacy Always ["uri"],
    /// Legacy: and no longer.
    Unsubscribe = "resources/unsubscribe" Legacy OnDemand ["uri"],
    /// Modern: changes are to be told for as long as this request is open.
    Listen = "subscriptions/listen" Modern Always ["notifications"],
    /// How a task is doing (an extension).
    TasksGet = "tasks/get" Modern OnDemand ["taskId"],
    /// Answers for a task (an extension).
    TasksUpdate = "tasks/update" Modern Always ["taskId", "inputResponses"],
    /// Nobody wants the task any more (an extension).
    TasksCancel = "tasks/cancel" Modern Always ["taskId"],
    /// A legacy server's question to its client's model.
    CreateMessage = "sampling/createMessage" Both Never ["messages", "modelPreferences", "systemPrompt", "includeContext", "temperature", "maxTokens", "stopSequences", "metadata", "tools", "toolChoice", "task"],
    /// A legacy server's question to its client's user.
    Elicit = "elicitation/create" Both Never ["mode", "message", "requestedSchema", "url", "elicitationId", "task"],
    /// A legacy server's question for its client's folders.
    RootsList = "roots/list" Both Never [],
    /// The end of the legacy handshake.
    Initialized = "notifications/initialized" Legacy Never [],
    /// The sender no longer wants an answer.
    Cancelled = "notifications/cancelled" Both Never ["requestId", "reason"],
    /// Legacy: a client's folders are others now.
    RootsListChanged = "notifications/roots/list_changed" Legacy Never [],
    /// How far a request has come.
    Progress = "notifications/progress" Both Never ["progressToken", "progress", "total", "message"],
    /// A log line.
    LogMessage = "notifications/message" Both Never ["level", "logger", "data"],
    /// The user has finished what a URL asked for; 2025-11-25 only.
    ElicitationComplete = "notifications/elicitation/complete" Legacy Never ["elicitationId"],
    /// The set of tools is another one.
    ToolsListChanged = "notifications/tools/list_changed" Both Never [],
    /// The set of prompts is another one.
    PromptsListChanged = "notifications/prompts/list_changed" Both Never [],
    /// The set of resources is another one.
    ResourcesListChanged = "notifications/resources/list_changed" Both Never [],
    /// A resource reads otherwise now.
    ResourceUpdated = "notifications/resources/updated" Both Never ["uri"],
    /// How a task is doing now (an extension).
    TaskChanged = "notifications/tasks" Modern Never ["taskId"],
    /// Modern: what of a `subscriptions/listen` is honoured.
    Acknowledged = "notifications/subscriptions/acknowledged" Modern Never ["notifications"],
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

    #[test]
    fn every_method_knows_its_members() {
        assert!(Method::ToolsCall.params().contains(&"arguments"));
        assert_eq!(Method::Ping.params(), ["_meta"]);
        assert_eq!(Method::from("something/else").params(), ["_meta"]);
    }
}
