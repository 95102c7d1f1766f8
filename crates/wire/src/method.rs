//! The methods of both eras and the members of their parameters, in one place.

use std::fmt;

use crate::key;

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal [$($member:literal),*],)*) => {
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
    Initialize = "initialize" ["protocolVersion", "capabilities", "clientInfo"],
    /// Legacy sign of life.
    Ping = "ping" [],
    /// What a modern server is and can do.
    Discover = "server/discover" [],
    /// The tools.
    ToolsList = "tools/list" ["cursor"],
    /// One tool invocation.
    ToolsCall = "tools/call" ["name", "arguments", "task", "inputResponses", "requestState"],
    /// The prompts.
    PromptsList = "prompts/list" ["cursor"],
    /// One prompt.
    PromptsGet = "prompts/get" ["name", "arguments", "inputResponses", "requestState"],
    /// The resources.
    ResourcesList = "resources/list" ["cursor"],
    /// One resource.
    ResourcesRead = "resources/read" ["uri", "inputResponses", "requestState"],
    /// The patterns of resources that no list can hold.
    TemplatesList = "resources/templates/list" ["cursor"],
    /// What an argument might be.
    Complete = "completion/complete" ["ref", "argument", "context"],
    /// Legacy: which log lines are wanted from now on.
    SetLevel = "logging/setLevel" ["level"],
    /// Legacy: changes of a resource are to be told.
    Subscribe = "resources/subscribe" ["uri"],
    /// Legacy: and no longer.
    Unsubscribe = "resources/unsubscribe" ["uri"],
    /// Modern: changes are to be told for as long as this request is open.
    Listen = "subscriptions/listen" ["notifications"],
    /// How a task is doing (an extension).
    TasksGet = "tasks/get" ["taskId"],
    /// Answers for a task (an extension).
    TasksUpdate = "tasks/update" ["taskId", "inputResponses"],
    /// Nobody wants the task any more (an extension).
    TasksCancel = "tasks/cancel" ["taskId"],
    /// A legacy server's question to its client's model.
    CreateMessage = "sampling/createMessage" ["messages", "modelPreferences", "systemPrompt", "includeContext", "temperature", "maxTokens", "stopSequences", "metadata", "tools", "toolChoice", "task"],
    /// A legacy server's question to its client's user.
    Elicit = "elicitation/create" ["mode", "message", "requestedSchema", "url", "elicitationId", "task"],
    /// A legacy server's question for its client's folders.
    RootsList = "roots/list" [],
    /// The end of the legacy handshake.
    Initialized = "notifications/initialized" [],
    /// The sender no longer wants an answer.
    Cancelled = "notifications/cancelled" ["requestId", "reason"],
    /// Legacy: a client's folders are others now.
    RootsListChanged = "notifications/roots/list_changed" [],
    /// How far a request has come.
    Progress = "notifications/progress" ["progressToken", "progress", "total", "message"],
    /// A log line.
    LogMessage = "notifications/message" ["level", "logger", "data"],
    /// The user has finished what a URL asked for; 2025-11-25 only.
    ElicitationComplete = "notifications/elicitation/complete" ["elicitationId"],
    /// The set of tools is another one.
    ToolsListChanged = "notifications/tools/list_changed" [],
    /// The set of prompts is another one.
    PromptsListChanged = "notifications/prompts/list_changed" [],
    /// The set of resources is another one.
    ResourcesListChanged = "notifications/resources/list_changed" [],
    /// A resource reads otherwise now.
    ResourceUpdated = "notifications/resources/updated" ["uri"],
    /// How a task is doing now (an extension).
    TaskChanged = "notifications/tasks" ["taskId"],
    /// Modern: what of a `subscriptions/listen` is honoured.
    Acknowledged = "notifications/subscriptions/acknowledged" ["notifications"],
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
