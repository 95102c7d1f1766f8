//! What a mock upstream is told to do: one JSON document, everything optional.
//!
//! These are the written form only. [`Mock`](crate::Mock) composes them, and the binary
//! `mock-upstream` acts on them. A key that is not known is refused, so a stale binary or
//! a typing slip fails the test at once instead of changing what it proves.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The variable that carries the script to the mock.
pub const SCRIPT_VARIABLE: &str = "MOCK_SCRIPT";

/// The modern revision that the mock speaks.
pub const MODERN_REVISION: &str = "2026-07-28";

/// The revision that a legacy handshake answers unless told otherwise.
pub const LEGACY_REVISION: &str = "2025-11-25";

/// Text that goes out as it stands, so that key order, number text and spacing survive.
///
/// Written in a script either as a string holding the text or as plain JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Verbatim(String);

/// Which of the two protocol eras a mock speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// Only requests that carry the envelope in `_meta`.
    Modern,
    /// Only after an `initialize` handshake.
    Legacy,
    /// Decided per message.
    #[default]
    Both,
}

/// How `server/discover` is treated.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// A result from a modern mock, method not found from a legacy one.
    #[default]
    ByEra,
    /// No answer at all.
    Silent,
    /// This error.
    Error(RpcError),
    /// The process ends.
    Exit {
        /// Its exit status.
        status: i32,
    },
    /// The answer of [`Probe::ByEra`], late.
    Late {
        /// How late, in milliseconds.
        ms: u64,
    },
    /// An error under the id `"server-error"`, which nobody used.
    ForeignId,
    /// Unsupported protocol version (-32022), on every probe.
    Unsupported {
        /// What `data.supported` names.
        supported: Vec<String>,
    },
    /// A line that is not JSON, and no answer.
    Garbage,
}

/// How `initialize` is treated by a mock of the legacy era.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initialize {
    /// With a result.
    #[default]
    Answer,
    /// With this error.
    Error(RpcError),
    /// Not at all.
    Silent,
    /// The process ends.
    Exit {
        /// Its exit status.
        status: i32,
    },
}

/// A JSON-RPC error to answer with.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// The data, verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Verbatim>,
}

/// One tool of a mock.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) input_schema: Option<Verbatim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output_schema: Option<Verbatim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) annotations: Option<Verbatim>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) extra: Vec<(String, Verbatim)>,
    #[serde(default)]
    pub(crate) behaviour: Behaviour,
}

/// What a tool does when it is called.
///
/// Cancellation is only recorded. A delayed tool answers even when it was cancelled, so
/// that a test can see what becomes of an answer nobody waits for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behaviour {
    /// Gives the arguments back, as text and as structured content, byte for byte.
    #[default]
    Echo,
    /// Answers with this text.
    Text(String),
    /// Answers with this result, byte for byte, nothing added.
    RawResult(Verbatim),
    /// Writes this line; `$ID` in it stands for the id of the request.
    RawLine(String),
    /// Answers with a JSON-RPC error.
    Error(RpcError),
    /// Answers with a tool error (`isError`) of this text.
    IsError(String),
    /// Waits, then goes on.
    Delay {
        /// How long, in milliseconds.
        ms: u64,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Reports progress, if the request asked for it, then goes on.
    Progress {
        /// How many notifications.
        steps: u64,
        /// The pause before each, in milliseconds.
        #[serde(default)]
        every_ms: u64,
        /// What is wrong with them.
        #[serde(default)]
        fault: ProgressFault,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// The process dies without an answer.
    Crash(Crash),
    /// Never answers.
    Hang,
    /// Never answers, but writes this line, which should not be JSON.
    Garbage(String),
    /// Answers with one line of about this many megabytes.
    Flood {
        /// Megabytes of text in the result.
        megabytes: usize,
    },
    /// Sends the client one request after the other, as fast as they are taken, and reads nothing any more.
    FloodRequests {
        /// The method of the requests.
        method: String,
    },
    /// Echoes under an id that nobody asked with, then under the right one.
    WrongId,
    /// Echoes twice.
    DoubleAnswer,
    /// Sends the client a request and answers with what came back.
    Ask {
        /// The method of that request.
        method: String,
        /// Its parameters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        params: Option<Verbatim>,
    },
    /// Sends the client all requests of a round at once, each as a method and its parameters, round after round, and
    /// answers with what came back, in the order it was asked.
    AskInRounds(Vec<Vec<(String, Verbatim)>>),
    /// Answers with one of these results, byte for byte: the first, or the one whose number stands behind the last
    /// dash of the request's `requestState`; a request that brings a number beyond them is told its parameters.
    InputRounds(Vec<Verbatim>),
    /// Answers with this result, byte for byte, as long as the request brings neither `inputResponses` nor a
    /// `requestState`; one that does is told its parameters, byte for byte.
    InputRequired(Verbatim),
    /// Refuses a modern client that does not declare this capability (-32021), then goes on.
    Needs {
        /// The capability's name.
        capability: String,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Names every variable of its environment, and the values of those listed.
    #[serde(rename = "env")]
    Environment {
        /// The variables whose value is told.
        #[serde(default)]
        values: Vec<String>,
    },
    /// Tells its command-line arguments and its working directory.
    #[serde(rename = "args")]
    Arguments,
    /// Tells its process id.
    #[serde(rename = "pid")]
    ProcessId,
    /// Never answers; named apart from [`Behaviour::Hang`] to say that a test will cancel.
    HangUntilCancelled,
    /// Tells the request ids of all cancellations so far, in order.
    ReportCancelled,
    /// Tells the parameters of the previous `tools/call`, byte for byte.
    Received,
    /// Adds a tool (or replaces one of that name) and says that the list has changed.
    AddTool(Box<Tool>),
    /// Ends the process the first time, and answers from then on; `marker` is the file that remembers.
    CrashOnce {
        /// Made by the first call.
        marker: PathBuf,
    },
    /// Sends a notification, on the stream of the call or, `aside`, where a server says things of its own accord: to
    /// every open `subscriptions/listen` in the modern era. Then goes on.
    Tell {
        /// The method of the notification.
        method: String,
        /// Its parameters, an object.
        params: Verbatim,
        /// Whether it has nothing to do with the call.
        #[serde(default)]
        aside: bool,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Starts a process of its own that outlives it, for a minute, and tells its id.
    Grandchild,
    /// Runs this with `sh`, which writes to the mock's own standard output and error, waits for its end, then goes on.
    Shell {
        /// The script; its `$PPID` is the mock.
        script: String,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Closes its standard output, goes on running, and never answers.
    CloseOutput,
}

/// What a mock answers to a method other than those it knows by itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// The method.
    pub method: String,
    /// The `name`, `uri` or `cursor` in the params that it is for; any, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The result, or the error. `$PARAMS` in a result stands for the params as they came.
    pub outcome: Result<Verbatim, RpcError>,
}

/// What is wrong with the progress of a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressFault {
    /// Nothing.
    #[default]
    None,
    /// One more follows after the final answer.
    AfterFinal,
    /// All report the same number.
    NotIncreasing,
    /// They carry a token that nobody gave.
    UnknownToken,
}

/// How a mock dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crash {
    /// By a signal.
    Abort,
    /// With this exit status.
    Exit {
        /// The status.
        status: i32,
    },
}

/// How a mock is reached, if not by its standard input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// Streamable HTTP, at any path.
    Http,
    /// HTTP+SSE, at `/sse`.
    Sse,
    /// A WebSocket, at any path.
    WebSocket,
}

/// The whole script.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// The era spoken.
    pub era: Era,
    /// The revision that a legacy handshake answers, known or not.
    pub revision: String,
    /// The instructions of the server.
    pub instructions: Option<String>,
    /// The name it gives itself.
    pub server_name: String,
    /// The version it gives itself.
    pub server_version: String,
    /// How `server/discover` is treated.
    pub on_probe: Probe,
    /// How `initialize` is treated.
    pub initialize: Initialize,
    /// Lines written before the initialize result.
    pub before_initialize_result: Vec<Verbatim>,
    /// Lines written when `notifications/initialized` came.
    pub after_initialized: Vec<Verbatim>,
    /// Lines written on standard output at start, then one of them after every message.
    pub noise: Vec<String>,
    /// Lines written on standard error at start.
    pub stderr: Vec<String>,
    /// The capabilities it declares, if not just tools whose list may change.
    pub capabilities: Option<Verbatim>,
    /// What it answers to other methods.
    pub replies: Vec<Reply>,
    /// The tools.
    pub tools: Vec<Tool>,
    /// Over how many pages `tools/list` is split; 0 and 1 mean one.
    pub pages: usize,
    /// The list never ends: every page names a next one.
    pub endless_pages: bool,
    /// `tools/list` answers with this error.
    pub list_error: Option<RpcError>,
    /// `tools/list` answers this late.
    pub list_delay_ms: u64,
    /// The end of standard input does not end the process; a minute later it ends anyway.
    pub ignore_eof: bool,
    /// A file to which every line received is appended. A process opens its part with
    /// `--- started PID` and closes it, when standard input ends, with `--- eof PID`.
    pub transcript: Option<PathBuf>,
    /// How it is reached, if not by standard input and output.
    pub carrier: Option<Carrier>,
    /// The port of loopback to listen on; any, if 0.
    pub port: u16,
}

impl Verbatim {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Verbatim {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Verbatim {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Value> for Verbatim {
    fn from(value: Value) -> Self {
        Self(value.to_string())
    }
}

impl<'de> Deserialize<'de> for Verbatim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        if raw.get().starts_with('"') {
            serde_json::from_str(raw.get()).map(Self).map_err(serde::de::Error::custom)
        } else {
            Ok(Self(raw.get().to_owned()))
        }
    }
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Adds data.
    #[must_use]
    pub fn data(mut self, data: impl Into<Verbatim>) -> Self {
        self.data = Some(data.into());
        self
    }
}

impl Tool {
    /// A tool that does as told, with the schema `{"type":"object"}`.
    pub fn new(name: impl Into<String>, behaviour: Behaviour) -> Self {
        Self {
            name: name.into(),
            description: None,
            input_schema: None,
            output_schema: None,
            annotations: None,
            extra: Vec::new(),
            behaviour,
        }
    }

    /// Sets the description.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Sets the input schema.
    #[must_use]
    pub fn input_schema(mut self, schema: impl Into<Verbatim>) -> Self {
        self.input_schema = Some(schema.into());
        self
    }

    /// Sets the output schema.
    #[must_use]
    pub fn output_schema(mut self, schema: impl Into<Verbatim>) -> Self {
        self.output_schema = Some(schema.into());
        self
    }

    /// Sets the annotations.
    #[must_use]
    pub fn annotations(mut self, annotations: impl Into<Verbatim>) -> Self {
        self.annotations = Some(annotations.into());
        self
    }

    /// Adds a field of any name to the listed tool.
    #[must_use]
    pub fn extra(mut self, key: impl Into<String>, value: impl Into<Verbatim>) -> Self {
        self.extra.push((key.into(), value.into()));
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    pub fn behaviour(&self) -> &Behaviour {
        &self.behaviour
    }

    /// The tool as `tools/list` shows it, fields in a fixed order, schemas verbatim.
    pub fn listing(&self) -> String {
        let mut text = format!("{{\"name\":{}", Value::from(self.name.as_str()));
        if let Some(description) = &self.description {
            text += &format!(",\"description\":{}", Value::from(description.as_str()));
        }
        let schema = self.input_schema.as_ref().map_or(r#"{"type":"object"}"#, Verbatim::as_str);
        text += &format!(",\"inputSchema\":{schema}");
        if let Some(schema) = &self.output_schema {
            text += &format!(",\"outputSchema\":{}", schema.as_str());
        }
        if let Some(annotations) = &self.annotations {
            text += &format!(",\"annotations\":{}", annotations.as_str());
        }
        for (key, value) in &self.extra {
            text += &format!(",{}:{}", Value::from(key.as_str()), value.as_str());
        }
        text + "}"
    }
}

impl Behaviour {
    /// Answers with this result, byte for byte.
    pub fn raw_result(text: impl Into<Verbatim>) -> Self {
        Self::RawResult(text.into())
    }

    /// Answers with this error.
    pub fn error(code: i64, message: impl Into<String>) -> Self {
        Self::Error(RpcError::new(code, message))
    }

    /// Does the same, `ms` milliseconds later.
    #[must_use]
    pub fn after(self, ms: u64) -> Self {
        Self::Delay { ms, then: Box::new(self) }
    }

    /// Does the same after `steps` notifications of progress, sent without a pause.
    #[must_use]
    pub fn with_progress(self, steps: u64) -> Self {
        self.with_odd_progress(steps, 0, ProgressFault::None)
    }

    /// Does the same after `steps` notifications of progress with something wrong.
    #[must_use]
    pub fn with_odd_progress(self, steps: u64, every_ms: u64, fault: ProgressFault) -> Self {
        Self::Progress { steps, every_ms, fault, then: Box::new(self) }
    }

    /// Does the same for clients that declare this capability.
    #[must_use]
    pub fn needing(self, capability: impl Into<String>) -> Self {
        Self::Needs { capability: capability.into(), then: Box::new(self) }
    }

    /// Sends a notification on the stream of the call, then goes on.
    #[must_use]
    pub fn tell(method: impl Into<String>, params: impl Into<Verbatim>, then: Self) -> Self {
        Self::Tell { method: method.into(), params: params.into(), aside: false, then: Box::new(then) }
    }

    /// Sends a notification of its own accord, then goes on.
    #[must_use]
    pub fn tell_aside(method: impl Into<String>, params: impl Into<Verbatim>, then: Self) -> Self {
        Self::Tell { method: method.into(), params: params.into(), aside: true, then: Box::new(then) }
    }

    /// Sends the client a request and answers with what came back.
    pub fn ask(method: impl Into<String>, params: impl Into<Verbatim>) -> Self {
        Self::Ask { method: method.into(), params: Some(params.into()) }
    }
}

impl Default for Script {
    fn default() -> Self {
        Self {
            era: Era::Both,
            revision: LEGACY_REVISION.to_owned(),
            instructions: None,
            server_name: "mock-upstream".to_owned(),
            server_version: "1.0.0".to_owned(),
            on_probe: Probe::ByEra,
            initialize: Initialize::Answer,
            before_initialize_result: Vec::new(),
            after_initialized: Vec::new(),
            noise: Vec::new(),
            stderr: Vec::new(),
            capabilities: None,
            replies: Vec::new(),
            tools: Vec::new(),
            pages: 1,
            endless_pages: false,
            list_error: None,
            list_delay_ms: 0,
            ignore_eof: false,
            transcript: None,
            carrier: None,
            port: 0,
        }
    }
}
