//! The methods of both eras in one table: who has them, how they are recorded, which members their parameters have.
//!
//! A new method is a new row. The compiler then names every place that must decide about it: [`ClientMethod`],
//! [`ServerMethod`] and [`Note`] are matched exhaustively.

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

/// Whether a client request leaves a call record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    /// Always.
    Always,
    /// Where the operator asks for it.
    OnDemand,
    /// Never: it concerns no server, or is not a client request.
    Never,
}

macro_rules! methods {
    (
        requests { $($(#[$asked_doc:meta])* $asked:ident = $asked_name:literal $asked_eras:ident $recording:ident
            $named:ident $(($subject:literal))? [$($asked_member:literal),*],)* }
        questions { $($(#[$back_doc:meta])* $back:ident = $back_name:literal $back_eras:ident
            [$($back_member:literal),*],)* }
        notes { $($(#[$note_doc:meta])* $note:ident = $note_name:literal $note_eras:ident
            [$($note_member:literal),*],)* }
    ) => {
        /// A JSON-RPC method, known or not.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Method {
            $($(#[$asked_doc])* $asked,)*
            $($(#[$back_doc])* $back,)*
            $($(#[$note_doc])* $note,)*
            /// Any other name.
            Other(Box<str>),
        }

        /// Requests of clients to servers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ClientMethod {
            $($(#[$asked_doc])* $asked,)*
        }

        /// Questions of servers to clients.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ServerMethod {
            $($(#[$back_doc])* $back,)*
        }

        /// Notifications of either side.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Note {
            $($(#[$note_doc])* $note,)*
        }

        impl Method {
            /// Its name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    Self::Other(name) => name,
                    known => known.known().unwrap_or_default(),
                }
            }

            /// Its name, if it is known.
            pub const fn known(&self) -> Option<&'static str> {
                Some(match self {
                    $(Self::$asked => $asked_name,)*
                    $(Self::$back => $back_name,)*
                    $(Self::$note => $note_name,)*
                    Self::Other(_) => return None,
                })
            }

            /// Which of the requests of clients it is, if it is one.
            pub const fn of_client(&self) -> Option<ClientMethod> {
                match self {
                    $(Self::$asked => Some(ClientMethod::$asked),)*
                    _ => None,
                }
            }

            /// Which of the questions of servers it is, if it is one.
            pub const fn of_server(&self) -> Option<ServerMethod> {
                match self {
                    $(Self::$back => Some(ServerMethod::$back),)*
                    _ => None,
                }
            }

            /// Which of the notifications it is, if it is one.
            pub const fn note(&self) -> Option<Note> {
                match self {
                    $(Self::$note => Some(Note::$note),)*
                    _ => None,
                }
            }

            /// Which eras have it. An unknown method is refused in both.
            pub const fn eras(&self) -> Eras {
                match self {
                    $(Self::$asked => Eras::$asked_eras,)*
                    $(Self::$back => Eras::$back_eras,)*
                    $(Self::$note => Eras::$note_eras,)*
                    Self::Other(_) => Eras::Both,
                }
            }

            /// Whether a client request leaves a call record.
            pub const fn recording(&self) -> Recording {
                match self {
                    $(Self::$asked => Recording::$recording,)*
                    _ => Recording::Never,
                }
            }

            /// The member of `params` that names what a request is about, as `Mcp-Name` mirrors it.
            pub const fn named_by(&self) -> Option<&'static str> {
                match self {
                    $(Self::$asked => $named $(($subject))?,)*
                    _ => None,
                }
            }

            /// The members that the protocol defines for its `params`, in any revision.
            pub const fn params(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$asked => &[key::META, $($asked_member),*],)*
                    $(Self::$back => &[key::META, $($back_member),*],)*
                    $(Self::$note => &[key::META, $($note_member),*],)*
                    Self::Other(_) => &[key::META],
                }
            }
        }

        impl From<&str> for Method {
            fn from(name: &str) -> Self {
                match name {
                    $($asked_name => Self::$asked,)*
                    $($back_name => Self::$back,)*
                    $($note_name => Self::$note,)*
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}

methods! {
    requests {
        /// Opens a legacy session.
        Initialize = "initialize" Legacy Never None ["protocolVersion", "capabilities", "clientInfo"],
        /// Legacy: checks that the peer is alive.
        Ping = "ping" Legacy Never None [],
        /// What a modern server is and can do.
        Discover = "server/discover" Modern Never None [],
        /// The tools.
        ToolsList = "tools/list" Both OnDemand None ["cursor"],
        /// One tool invocation.
        ToolsCall = "tools/call" Both Always Some("name") ["name", "arguments", "task", "inputResponses", "requestState"],
        /// The prompts.
        PromptsList = "prompts/list" Both OnDemand None ["cursor"],
        /// One prompt.
        PromptsGet = "prompts/get" Both Always Some("name") ["name", "arguments", "inputResponses", "requestState"],
        /// The resources.
        ResourcesList = "resources/list" Both OnDemand None ["cursor"],
        /// One resource.
        ResourcesRead = "resources/read" Both Always Some("uri") ["uri", "inputResponses", "requestState"],
        /// The URI templates of resources that cannot all be listed.
        TemplatesList = "resources/templates/list" Both OnDemand None ["cursor"],
        /// Suggestions for the value of an argument.
        Complete = "completion/complete" Both OnDemand None ["ref", "argument", "context"],
        /// Legacy: which log lines are wanted from now on.
        SetLevel = "logging/setLevel" Legacy OnDemand None ["level"],
        /// Legacy: asks for notifications when a resource changes.
        Subscribe = "resources/subscribe" Legacy Always None ["uri"],
        /// Legacy: ends such a subscription.
        Unsubscribe = "resources/unsubscribe" Legacy OnDemand None ["uri"],
        /// Modern: asks for notifications of changes for as long as this request is open.
        Listen = "subscriptions/listen" Modern Always None ["notifications"],
        /// The state of a task (an extension).
        TasksGet = "tasks/get" Modern OnDemand Some("taskId") ["taskId"],
        /// Answers to the questions of a task (an extension).
        TasksUpdate = "tasks/update" Modern Always Some("taskId") ["taskId", "inputResponses"],
        /// Cancels a task (an extension).
        TasksCancel = "tasks/cancel" Modern Always Some("taskId") ["taskId"],
    }
    questions {
        /// A legacy server's question to its client's model.
        CreateMessage = "sampling/createMessage" Both ["messages", "modelPreferences", "systemPrompt", "includeContext", "temperature", "maxTokens", "stopSequences", "metadata", "tools", "toolChoice", "task"],
        /// A legacy server's question to its client's user.
        Elicit = "elicitation/create" Both ["mode", "message", "requestedSchema", "url", "elicitationId", "task"],
        /// A legacy server's question for its client's folders.
        RootsList = "roots/list" Both [],
    }
    notes {
        /// The end of the legacy handshake.
        Initialized = "notifications/initialized" Legacy [],
        /// The sender no longer wants an answer.
        Cancelled = "notifications/cancelled" Both ["requestId", "reason"],
        /// Legacy: the client's folders have changed.
        RootsListChanged = "notifications/roots/list_changed" Legacy [],
        /// How far a request has come.
        Progress = "notifications/progress" Both ["progressToken", "progress", "total", "message"],
        /// A log line.
        LogMessage = "notifications/message" Both ["level", "logger", "data"],
        /// The user has finished what a URL asked for; 2025-11-25 only.
        ElicitationComplete = "notifications/elicitation/complete" Legacy ["elicitationId"],
        /// The list of tools has changed.
        ToolsListChanged = "notifications/tools/list_changed" Both [],
        /// The list of prompts has changed.
        PromptsListChanged = "notifications/prompts/list_changed" Both [],
        /// The list of resources has changed.
        ResourcesListChanged = "notifications/resources/list_changed" Both [],
        /// The content of a resource has changed.
        ResourceUpdated = "notifications/resources/updated" Both ["uri"],
        /// The state of a task has changed (an extension).
        TaskChanged = "notifications/tasks" Modern ["taskId"],
        /// Modern: which part of a `subscriptions/listen` is honoured.
        Acknowledged = "notifications/subscriptions/acknowledged" Modern ["notifications"],
    }
}

impl Method {
    /// Whether a modern server may answer it with a question to the client.
    pub const fn may_ask(&self) -> bool {
        matches!(self, Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead)
    }
}

/// The notifications of clients that have an effect here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientNote {
    /// Its legacy handshake is over.
    Initialized,
    /// It no longer wants an answer.
    Cancelled,
    /// Its folders have changed.
    RootsListChanged,
}

impl Note {
    /// What it means when a client sends it; `None` for one that only servers send.
    pub const fn of_client(self) -> Option<ClientNote> {
        match self {
            Self::Initialized => Some(ClientNote::Initialized),
            Self::Cancelled => Some(ClientNote::Cancelled),
            Self::RootsListChanged => Some(ClientNote::RootsListChanged),
            Self::Progress
            | Self::LogMessage
            | Self::ElicitationComplete
            | Self::ToolsListChanged
            | Self::PromptsListChanged
            | Self::ResourcesListChanged
            | Self::ResourceUpdated
            | Self::TaskChanged
            | Self::Acknowledged => None,
        }
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

    /// GATE-8: a method is a request, a question, a note or unknown, and of one or both eras.
    #[test]
    fn every_method_has_one_role() {
        #[track_caller]
        fn check(name: &str, roles: [bool; 3], (legacy, modern): (bool, bool), recording: Recording) {
            let method = Method::from(name);
            let found = [method.of_client().is_some(), method.of_server().is_some(), method.note().is_some()];
            assert_eq!(found, roles, "{name}");
            let eras = method.eras();
            assert_eq!((eras.has(Era::Legacy), eras.has(Era::Modern)), (legacy, modern), "{name}");
            assert_eq!(method.recording(), recording, "{name}");
            assert_eq!(method.known(), roles.contains(&true).then_some(name));
        }
        let (request, question, note) = ([true, false, false], [false, true, false], [false, false, true]);
        let (both, old, new) = ((true, true), (true, false), (false, true));
        check("initialize", request, old, Recording::Never);
        check("ping", request, old, Recording::Never);
        check("server/discover", request, new, Recording::Never);
        for recorded in ["tools/call", "prompts/get", "resources/read"] {
            check(recorded, request, both, Recording::Always);
        }
        for list in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
            check(list, request, both, Recording::OnDemand);
        }
        check("completion/complete", request, both, Recording::OnDemand);
        check("logging/setLevel", request, old, Recording::OnDemand);
        check("resources/subscribe", request, old, Recording::Always);
        check("resources/unsubscribe", request, old, Recording::OnDemand);
        check("subscriptions/listen", request, new, Recording::Always);
        check("tasks/get", request, new, Recording::OnDemand);
        check("tasks/update", request, new, Recording::Always);
        check("tasks/cancel", request, new, Recording::Always);
        check("elicitation/create", question, both, Recording::Never);
        check("notifications/initialized", note, old, Recording::Never);
        check("notifications/progress", note, both, Recording::Never);
        check("notifications/tasks", note, new, Recording::Never);
        check("something/else", [false; 3], both, Recording::Never);
    }

    /// The member that names what a request is about is the one that the protocol mirrors in a header.
    #[test]
    fn what_a_request_is_named_by() {
        for (method, member) in [
            (Method::ToolsCall, Some("name")),
            (Method::PromptsGet, Some("name")),
            (Method::ResourcesRead, Some("uri")),
            (Method::TasksGet, Some("taskId")),
            (Method::TasksUpdate, Some("taskId")),
            (Method::TasksCancel, Some("taskId")),
            (Method::Subscribe, None),
            (Method::ToolsList, None),
            (Method::RootsList, None),
        ] {
            assert_eq!(method.named_by(), member, "{method}");
        }
    }

    #[test]
    fn every_method_knows_its_members() {
        assert!(Method::ToolsCall.params().contains(&"arguments"));
        assert_eq!(Method::Ping.params(), ["_meta"]);
        assert_eq!(Method::from("something/else").params(), ["_meta"]);
    }
}
