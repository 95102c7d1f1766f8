//! One event: its time, its server, the call that it belongs to, and what happened.
//!
//! Fields are private and there are no setters, because all subscribers share an event. A value that follows
//! from another (the count from the names, `ok` from the error) is serialized but not stored, so the two
//! cannot disagree.

use std::borrow::Cow;
use std::sync::Arc;

use bridgehead_call::CorrelationId;
use jiff::Timestamp;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::{Excerpt, Topic};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    time: Timestamp,
    correlation: CorrelationId,
    server: Option<Arc<str>>,
    detail: Detail,
}

impl Event {
    /// Records that `detail` happened at `time`.
    ///
    /// `correlation` is the id of the call that it belongs to. For an event of a server it is the id of the
    /// initialisation or restart that caused it, or of the call that noticed it. `server` is `None` if no
    /// server is concerned, for example in a call of a built-in tool.
    #[must_use]
    pub fn new(
        time: Timestamp,
        correlation: CorrelationId,
        server: Option<Arc<str>>,
        detail: Detail,
    ) -> Self {
        Self { time, correlation, server, detail }
    }

    /// Its topic.
    #[must_use]
    pub fn topic(&self) -> Topic {
        self.detail.topic()
    }

    /// When it happened, in UTC.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// The call, initialisation or restart it belongs to.
    #[must_use]
    pub fn correlation(&self) -> CorrelationId {
        self.correlation
    }

    /// The server it concerns.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// What happened.
    #[must_use]
    pub fn detail(&self) -> &Detail {
        &self.detail
    }
}

/// What happened, with the fields of its topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// A server's tools are known for the first time.
    ToolsDiscovered {
        /// The names of all tools.
        names: Vec<Arc<str>>,
    },
    /// A server's tools were listed again.
    ToolsRefreshed {
        /// Tools that it did not have before.
        added: Vec<Arc<str>>,
        /// Tools that it no longer has.
        removed: Vec<Arc<str>>,
        /// How many tools it still has.
        unchanged: usize,
    },
    /// A request ended with a result.
    Completed {
        /// What it was about.
        about: Asked,
        /// Who asked; `None` for a call of a provider.
        by: Option<AskedBy>,
        /// How the result begins.
        summary: Excerpt,
        /// How long it took, in whole milliseconds.
        duration_ms: u64,
    },
    /// A request ended without a result.
    Failed {
        /// What it was about.
        about: Asked,
        /// Who asked; `None` for a call of a provider.
        by: Option<AskedBy>,
        /// The stable error code.
        code: Cow<'static, str>,
        /// Whether the same request may succeed later.
        retryable: bool,
        /// What went wrong, in words.
        message: Excerpt,
    },
    /// The link to a server was lost.
    Disconnected,
    /// The lost link is back.
    Reconnected,
    /// The lost link will not be tried again.
    ReconnectExhausted,
    /// An initialisation began.
    InitStarted,
    /// An initialisation ended.
    InitFinished {
        /// How it ended.
        outcome: InitOutcome,
        /// How many tools the server has; zero unless it is ready.
        tools: usize,
        /// How long it took, in whole milliseconds.
        duration_ms: u64,
        /// Why the server is not ready.
        error: Option<Excerpt>,
    },
    /// A server's health was probed; it is well unless there is an error.
    Probe {
        /// The request that probed it.
        kind: ProbeKind,
        /// How long the answer took, in whole milliseconds.
        duration_ms: u64,
        /// Why the probe failed.
        error: Option<Excerpt>,
    },
    /// A restart is scheduled.
    Restart {
        /// The number of this restart since the server was last well, from 1.
        attempt: u32,
        /// The delay before it, in milliseconds.
        delay_ms: u64,
        /// Why it restarts.
        reason: Excerpt,
    },
    /// A server's process is gone.
    ProcessExited {
        /// Its process id.
        pid: u32,
        /// How it ended: its exit status or the signal.
        status: String,
        /// Why it ended, as far as known.
        reason: Excerpt,
    },
    /// A checkpoint of the audit record was made: kept elsewhere, it later shows that nothing before it was
    /// changed.
    AuditCheckpoint {
        /// The segment of the record.
        segment: String,
        /// How many rows it has.
        count: u64,
        /// The root over them, in hexadecimal.
        root: String,
        /// The head after the last of them, in hexadecimal.
        head: String,
        /// Whether the segment is sealed, so that no row follows.
        sealed: bool,
    },
}

impl Detail {
    /// The topic it belongs to.
    #[must_use]
    pub const fn topic(&self) -> Topic {
        match self {
            Self::ToolsDiscovered { .. } => Topic::ToolsDiscovered,
            Self::ToolsRefreshed { .. } => Topic::ToolsRefreshed,
            Self::Completed { about: Asked::Tool(_), .. } => Topic::ToolCompleted,
            Self::Completed { about: Asked::Method(..), .. } => Topic::RequestCompleted,
            Self::Failed { about: Asked::Tool(_), .. } => Topic::ToolFailed,
            Self::Failed { about: Asked::Method(..), .. } => Topic::RequestFailed,
            Self::Disconnected => Topic::Disconnected,
            Self::Reconnected => Topic::Reconnected,
            Self::ReconnectExhausted => Topic::ReconnectExhausted,
            Self::InitStarted => Topic::InitStarted,
            Self::InitFinished { .. } => Topic::InitFinished,
            Self::Probe { .. } => Topic::Probe,
            Self::Restart { .. } => Topic::Restart,
            Self::ProcessExited { .. } => Topic::ProcessExited,
            Self::AuditCheckpoint { .. } => Topic::AuditCheckpoint,
        }
    }
}

/// What a client asked for, by the name that it used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A call of this tool.
    Tool(Arc<str>),
    /// This method of the protocol, about this prompt, resource or task; the name is empty for a list.
    Method(&'static str, Arc<str>),
}

/// Who made a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedBy {
    /// On whose behalf.
    pub principal: Arc<str>,
    /// The client program, without secrets; `None` if it did not say.
    pub client: Option<Excerpt>,
}

/// How an initialisation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitOutcome {
    /// The server is ready.
    Ready,
    /// The server could not be started.
    Failed,
    /// It is no longer needed: the server was removed, or the gateway stops.
    Cancelled,
}

impl InitOutcome {
    /// Its name in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The request that probes a server's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    /// `ping`.
    Ping,
    /// `tools/list`.
    ListTools,
    /// `server/discover`.
    Discover,
}

impl ProbeKind {
    /// Its name in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::ListTools => "list_tools",
            Self::Discover => "discover",
        }
    }
}

/// Writes one flat object: first the common keys, which are always present (`server` may be null), then those
/// of the topic.
///
/// Times have three decimals, so that they line up and sort as text.
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("topic", self.topic().as_str())?;
        object.serialize_entry("time", &format_args!("{:.3}", self.time))?;
        object.serialize_entry("correlationId", &format_args!("{}", self.correlation))?;
        object.serialize_entry("server", &self.server)?;
        match &self.detail {
            Detail::ToolsDiscovered { names } => {
                object.serialize_entry("count", &names.len())?;
                object.serialize_entry("names", names)?;
            }
            Detail::ToolsRefreshed { added, removed, unchanged } => {
                object.serialize_entry("added", added)?;
                object.serialize_entry("removed", removed)?;
                object.serialize_entry("unchanged", unchanged)?;
            }
            Detail::Completed { about, by, summary, duration_ms } => {
                asked(&mut object, about, by.as_ref())?;
                object.serialize_entry("summary", summary)?;
                object.serialize_entry("durationMs", duration_ms)?;
            }
            Detail::Failed { about, by, code, retryable, message } => {
                asked(&mut object, about, by.as_ref())?;
                object.serialize_entry("code", code)?;
                object.serialize_entry("retryable", retryable)?;
                object.serialize_entry("message", message)?;
            }
            Detail::Disconnected | Detail::Reconnected | Detail::ReconnectExhausted | Detail::InitStarted => {
            }
            Detail::InitFinished { outcome, tools, duration_ms, error } => {
                object.serialize_entry("outcome", outcome.as_str())?;
                object.serialize_entry("tools", tools)?;
                object.serialize_entry("durationMs", duration_ms)?;
                object.serialize_entry("error", error)?;
            }
            Detail::Probe { kind, duration_ms, error } => {
                object.serialize_entry("ok", &error.is_none())?;
                object.serialize_entry("kind", kind.as_str())?;
                object.serialize_entry("durationMs", duration_ms)?;
                object.serialize_entry("error", error)?;
            }
            Detail::Restart { attempt, delay_ms, reason } => {
                object.serialize_entry("attempt", attempt)?;
                object.serialize_entry("delayMs", delay_ms)?;
                object.serialize_entry("reason", reason)?;
            }
            Detail::ProcessExited { pid, status, reason } => {
                object.serialize_entry("pid", pid)?;
                object.serialize_entry("status", status)?;
                object.serialize_entry("reason", reason)?;
            }
            Detail::AuditCheckpoint { segment, count, root, head, sealed } => {
                object.serialize_entry("segment", segment)?;
                object.serialize_entry("count", count)?;
                object.serialize_entry("root", root)?;
                object.serialize_entry("head", head)?;
                object.serialize_entry("sealed", sealed)?;
            }
        }
        object.end()
    }
}

/// Writes what was asked for, under the keys of its topic, and who asked.
fn asked<M: SerializeMap>(object: &mut M, about: &Asked, by: Option<&AskedBy>) -> Result<(), M::Error> {
    match about {
        Asked::Tool(tool) => object.serialize_entry("tool", tool)?,
        Asked::Method(method, subject) => {
            object.serialize_entry("method", method)?;
            object.serialize_entry("subject", subject)?;
        }
    }
    object.serialize_entry("principal", &by.map(|by| &by.principal))?;
    object.serialize_entry("client", &by.and_then(|by| by.client.as_ref()))
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::Redactor;

    use super::*;

    const ID: &str = "0199d0a5-6f2b-7c3e-8d4f-0123456789ab";

    fn event(server: Option<&str>, detail: Detail) -> Event {
        let time = "2026-11-15T12:00:00.0125Z".parse().unwrap();
        Event::new(time, CorrelationId::parse(ID).unwrap(), server.map(Into::into), detail)
    }

    fn excerpt(text: &str) -> Excerpt {
        Excerpt::new(&Redactor::default(), text)
    }

    /// BUS-1, BUS-2: every topic is written with the common keys, including the correlation id, and its own.
    #[test]
    fn every_topic_is_written_with_its_keys() {
        #[track_caller]
        fn check(detail: Detail, topic: &str, own: &str) {
            let event = event(Some("files"), detail);
            assert_eq!((event.topic().as_str(), event.correlation().to_string().as_str()), (topic, ID));
            let expected = format!(
                r#"{{"topic":"{topic}","time":"2026-11-15T12:00:00.012Z","correlationId":"{ID}","server":"files"{own}}}"#
            );
            assert_eq!(serde_json::to_string(&event).unwrap(), expected);
        }
        check(
            Detail::ToolsDiscovered { names: vec!["a".into(), "b".into()] },
            "provider.mcp.tools.discovered",
            r#","count":2,"names":["a","b"]"#,
        );
        check(
            Detail::ToolsRefreshed { added: vec!["c".into()], removed: vec![], unchanged: 2 },
            "provider.mcp.tools.refreshed",
            r#","added":["c"],"removed":[],"unchanged":2"#,
        );
        check(
            Detail::Completed {
                about: Asked::Tool("files__read".into()),
                by: Some(AskedBy { principal: "ada".into(), client: Some(excerpt("an-ide 1.0")) }),
                summary: excerpt("token=x"),
                duration_ms: 7,
            },
            "provider.mcp.tool.completed",
            r#","tool":"files__read","principal":"ada","client":"an-ide 1.0","summary":"token=[redacted]","durationMs":7"#,
        );
        check(
            Detail::Failed {
                about: Asked::Tool("files__read".into()),
                by: Some(AskedBy { principal: "ada".into(), client: None }),
                code: Cow::Borrowed("PROVIDER_TIMEOUT"),
                retryable: true,
                message: excerpt("no answer"),
            },
            "provider.mcp.tool.failed",
            r#","tool":"files__read","principal":"ada","client":null,"code":"PROVIDER_TIMEOUT","retryable":true,"message":"no answer""#,
        );
        let prompt = || Asked::Method("prompts/get", "files__plan".into());
        check(
            Detail::Completed { about: prompt(), by: None, summary: excerpt("p"), duration_ms: 7 },
            "provider.mcp.request.completed",
            r#","method":"prompts/get","subject":"files__plan","principal":null,"client":null,"summary":"p","durationMs":7"#,
        );
        check(
            Detail::Failed {
                about: prompt(),
                by: None,
                code: Cow::Borrowed("-7"),
                retryable: false,
                message: excerpt("no"),
            },
            "provider.mcp.request.failed",
            r#","method":"prompts/get","subject":"files__plan","principal":null,"client":null,"code":"-7","retryable":false,"message":"no""#,
        );
        check(Detail::Disconnected, "provider.mcp.disconnected", "");
        check(Detail::Reconnected, "provider.mcp.reconnected", "");
        check(Detail::ReconnectExhausted, "provider.mcp.reconnect.exhausted", "");
        check(Detail::InitStarted, "provider.mcp.init.started", "");
        check(
            Detail::InitFinished { outcome: InitOutcome::Ready, tools: 3, duration_ms: 40, error: None },
            "provider.mcp.init.finished",
            r#","outcome":"ready","tools":3,"durationMs":40,"error":null"#,
        );
        check(
            Detail::Probe { kind: ProbeKind::ListTools, duration_ms: 3_000, error: Some(excerpt("late")) },
            "provider.mcp.probe",
            r#","ok":false,"kind":"list_tools","durationMs":3000,"error":"late""#,
        );
        check(
            Detail::Restart { attempt: 2, delay_ms: 1_000, reason: excerpt("it ended") },
            "provider.mcp.restart",
            r#","attempt":2,"delayMs":1000,"reason":"it ended""#,
        );
        check(
            Detail::ProcessExited {
                pid: 17,
                status: "signal 9 (SIGKILL)".to_owned(),
                reason: excerpt("stopped"),
            },
            "provider.mcp.process.exited",
            r#","pid":17,"status":"signal 9 (SIGKILL)","reason":"stopped""#,
        );
        check(
            Detail::AuditCheckpoint {
                segment: "a.0001".to_owned(),
                count: 2,
                root: "0f".to_owned(),
                head: "f0".to_owned(),
                sealed: true,
            },
            "audit.checkpoint",
            r#","segment":"a.0001","count":2,"root":"0f","head":"f0","sealed":true"#,
        );
    }

    /// BUS-1: the list of topics names each once.
    #[test]
    fn the_list_of_topics_has_no_double() {
        let names: std::collections::BTreeSet<&str> = Topic::ALL.map(Topic::as_str).into();
        assert_eq!(names.len(), Topic::ALL.len());
        assert!(names.iter().all(|name| name.starts_with("provider.mcp.") || name.starts_with("audit.")));
    }

    /// BUS-1: the common keys are present also if no server is concerned, and a good probe is `ok`.
    #[test]
    fn keys_without_a_value_are_null() {
        let detail = Detail::Probe { kind: ProbeKind::Ping, duration_ms: 0, error: None };
        let written = serde_json::to_value(event(None, detail)).unwrap();
        assert_eq!(
            (&written["server"], &written["error"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
        assert!(written.as_object().unwrap().contains_key("server"));
        assert_eq!(written["ok"], true);
    }
}
