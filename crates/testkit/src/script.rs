//! The script of a mock upstream: one JSON document in which everything is optional.
//!
//! These types are only the written form. [`Mock`](crate::Mock) composes them, and the binary `mock-upstream` acts on
//! them. An unknown key is refused, so a stale binary or a typo fails the test at once instead of changing what it
//! proves.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The variable that carries the script to the mock.
pub const SCRIPT_VARIABLE: &str = "MOCK_SCRIPT";

/// The modern revision that the mock speaks.
pub const MODERN_REVISION: &str = "2026-07-28";

/// The revision that a legacy handshake answers by default.
pub const LEGACY_REVISION: &str = "2025-11-25";

/// Text that is written unchanged, so that key order, number text and spacing survive.
///
/// In a script it is either a string holding the text or plain JSON.
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

/// The response to `server/discover`.
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
    /// An error under the id `"server-error"`, which no request used.
    ForeignId,
    /// Unsupported protocol version (-32022), on every probe.
    Unsupported {
        /// The content of `data.supported`.
        supported: Vec<String>,
    },
    /// A line that is not JSON, and no answer.
    Garbage,
}

/// The response of a legacy mock to `initialize`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initialize {
    /// A result.
    #[default]
    Answer,
    /// This error.
    Error(RpcError),
    /// No answer.
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
/// Cancellation is only recorded. A delayed tool answers even after it was cancelled, so that a test can see what
/// happens to an answer that is no longer awaited.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behaviour {
    /// Returns the arguments, as text and as structured content, byte for byte.
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
    /// Waits, then continues.
    Delay {
        /// How long, in milliseconds.
        ms: u64,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Reports progress, if the request asked for it, then continues.
    Progress {
        /// How many notifications.
        steps: u64,
        /// The pause before each, in milliseconds.
        #[serde(default)]
        every_ms: u64,
        /// What is wrong with the notifications.
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
    /// Sends the client one request after the other, as fast as the client takes them, and stops reading.
    FloodRequests {
        /// The method of the requests.
        method: String,
    },
    /// Echoes under an id that no request used, then under the right one.
    WrongId,
    /// Echoes twice.
    DoubleAnswer,
    /// Sends the client a request and answers with its response.
    Ask {
        /// The method of that request.
        method: String,
        /// Its parameters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        params: Option<Verbatim>,
    },
    /// Sends the client all requests of a round at once, each as a method and its parameters, one round after the
    /// other. Answers with the responses, in the order of the requests.
    AskInRounds(Vec<Vec<(String, Verbatim)>>),
    /// Answers with one of these results, byte for byte: the first, or the one whose number follows the last dash of
    /// the request's `requestState`. A request with a higher number gets its own parameters back.
    InputRounds(Vec<Verbatim>),
    /// Answers with this result, byte for byte, as long as the request brings neither `inputResponses` nor a
    /// `requestState`. A request that brings either gets its own parameters back, byte for byte.
    InputRequired(Verbatim),
    /// Refuses a modern client that does not declare this capability (-32021); otherwise continues.
    Needs {
        /// The capability's name.
        capability: String,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Returns the names of all its environment variables, and the values of those listed.
    #[serde(rename = "env")]
    Environment {
        /// The variables whose value is returned.
        #[serde(default)]
        values: Vec<String>,
    },
    /// Returns its command-line arguments and its working directory.
    #[serde(rename = "args")]
    Arguments,
    /// Returns its process id.
    #[serde(rename = "pid")]
    ProcessId,
    /// Never answers; separate from [`Behaviour::Hang`] to show that a test will cancel.
    HangUntilCancelled,
    /// Returns the request ids of all cancellations so far, in order.
    ReportCancelled,
    /// Returns the parameters of the previous `tools/call`, byte for byte.
    Received,
    /// Adds a tool (or replaces one of that name) and announces the changed list.
    AddTool(Box<Tool>),
    /// Stops to offer the tool of this name and announces the changed list.
    RemoveTool(String),
    /// Ends the process at the first call, and answers from then on; the file `marker` remembers that.
    CrashOnce {
        /// Created by the first call.
        marker: PathBuf,
    },
    /// Sends a notification, then continues. It goes to the stream of the call or, with `aside`, to where a server
    /// sends unprompted messages: every open `subscriptions/listen` in the modern era.
    Tell {
        /// The method of the notification.
        method: String,
        /// Its parameters, an object.
        params: Verbatim,
        /// Whether it is unrelated to the call.
        #[serde(default)]
        aside: bool,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Starts a child process that outlives the mock by a minute, and returns its id.
    Grandchild,
    /// Runs this with `sh`, which writes to the mock's own standard output and error; waits for its end, then
    /// continues.
    Shell {
        /// The script; its `$PPID` is the mock.
        script: String,
        /// What follows.
        then: Box<Behaviour>,
    },
    /// Closes its standard output, keeps running, and never answers.
    CloseOutput,
}

/// The mock's answer to a method that it does not know by itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// The method.
    pub method: String,
    /// The `name`, `uri` or `cursor` in the params that it applies to; any, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The result, or the error. `$PARAMS` in a result stands for the params as received.
    pub outcome: Result<Verbatim, RpcError>,
}

/// What is wrong with the progress of a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressFault {
    /// Nothing.
    #[default]
    None,
    /// One more report follows the final answer.
    AfterFinal,
    /// All reports have the same number.
    NotIncreasing,
    /// The reports carry an unknown token.
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

/// How a mock is reached, if not over standard input and output.
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
    /// The revision in the legacy handshake's answer, known or not.
    pub revision: String,
    /// The instructions of the server.
    pub instructions: Option<String>,
    /// The name it reports.
    pub server_name: String,
    /// The version it reports.
    pub server_version: String,
    /// The response to `server/discover`.
    pub on_probe: Probe,
    /// The response to `initialize`.
    pub initialize: Initialize,
    /// Lines written before the initialize result.
    pub before_initialize_result: Vec<Verbatim>,
    /// Lines written after `notifications/initialized` arrives.
    pub after_initialized: Vec<Verbatim>,
    /// Lines written on standard output at start, then one of them after every message.
    pub noise: Vec<String>,
    /// Lines written on standard error at start.
    pub stderr: Vec<String>,
    /// The capabilities it declares; by default tools with `listChanged`.
    pub capabilities: Option<Verbatim>,
    /// Its answers to other methods.
    pub replies: Vec<Reply>,
    /// The tools.
    pub tools: Vec<Tool>,
    /// The number of pages of `tools/list`; 0 and 1 mean one.
    pub pages: usize,
    /// Makes the list endless: every page names a next one.
    pub endless_pages: bool,
    /// The error that `tools/list` answers with.
    pub list_error: Option<RpcError>,
    /// The delay of `tools/list` in milliseconds.
    pub list_delay_ms: u64,
    /// Keeps the process running after the end of standard input, for a minute.
    pub ignore_eof: bool,
    /// A file to which every line received is appended. A process opens its part with
    /// `--- started PID` and closes it, when standard input ends, with `--- eof PID`.
    pub transcript: Option<PathBuf>,
    /// How it is reached, if not over standard input and output.
    pub carrier: Option<Carrier>,
    /// The loopback port to listen on; 0 picks a free one.
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
    /// A tool with this behaviour and the schema `{"type":"object"}`.
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

    /// Its behaviour.
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

    /// Does the same after `steps` progress notifications, sent without a pause.
    #[must_use]
    pub fn with_progress(self, steps: u64) -> Self {
        self.with_odd_progress(steps, 0, ProgressFault::None)
    }

    /// Does the same after `steps` progress notifications with a fault.
    #[must_use]
    pub fn with_odd_progress(self, steps: u64, every_ms: u64, fault: ProgressFault) -> Self {
        Self::Progress { steps, every_ms, fault, then: Box::new(self) }
    }

    /// Does the same for clients that declare this capability.
    #[must_use]
    pub fn needing(self, capability: impl Into<String>) -> Self {
        Self::Needs { capability: capability.into(), then: Box::new(self) }
    }

    /// Sends a notification on the stream of the call, then continues.
    #[must_use]
    pub fn tell(method: impl Into<String>, params: impl Into<Verbatim>, then: Self) -> Self {
        Self::Tell { method: method.into(), params: params.into(), aside: false, then: Box::new(then) }
    }

    /// Sends an unprompted notification, then continues.
    #[must_use]
    pub fn tell_aside(method: impl Into<String>, params: impl Into<Verbatim>, then: Self) -> Self {
        Self::Tell { method: method.into(), params: params.into(), aside: true, then: Box::new(then) }
    }

    /// Sends the client a request and answers with its response.
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
