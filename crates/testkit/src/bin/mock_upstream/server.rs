//! Decides the era of each message and answers everything except tool calls.
//!
//! A request is modern if it carries the envelope, legacy after `initialize`. A mock of one
//! era refuses what belongs to the other as a real server of that era would.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use bridgehead_testkit::{Era, Initialize, MODERN_REVISION, Probe, Reply, Script, Tool};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::message::{Message, Params};
use crate::output::Output;
use crate::tools::Call;

/// The mock, shared by the reading thread and the threads that wait.
pub(crate) struct Server {
    pub(crate) script: Script,
    /// Where unprompted messages go.
    pub(crate) output: Output,
    initialized: AtomicBool,
    pub(crate) tools: Mutex<Vec<Tool>>,
    /// The parameters of the last call to a tool that does not report them.
    pub(crate) last_call: Mutex<Option<String>>,
    pub(crate) cancelled: Mutex<Vec<String>>,
    /// The ids of open `subscriptions/listen` requests, and where their messages go.
    pub(crate) listens: Mutex<Vec<(String, Output)>>,
    pub(crate) next_question: AtomicU64,
    /// The senders that wait for answers to our questions, by question id.
    pub(crate) questions: Mutex<HashMap<String, Sender<String>>>,
}

impl Server {
    pub(crate) fn new(mut script: Script) -> Self {
        let output = match script.carrier {
            None => Output::standard(std::mem::take(&mut script.noise)),
            Some(_) => Output::listeners(),
        };
        Self {
            output,
            tools: Mutex::new(std::mem::take(&mut script.tools)),
            script,
            initialized: AtomicBool::new(false),
            last_call: Mutex::new(None),
            cancelled: Mutex::new(Vec::new()),
            listens: Mutex::new(Vec::new()),
            next_question: AtomicU64::new(0),
            questions: Mutex::new(HashMap::new()),
        }
    }

    /// Handles one message from the client; its answer goes to `out`.
    pub(crate) fn receive(self: &Arc<Self>, line: &[u8], out: &Output) {
        let Ok(message) = serde_json::from_slice::<Message<'_>>(line) else {
            out.error("null", -32700, "parse error", None);
            return;
        };
        match (message.id, message.method.as_deref()) {
            (Some(id), Some(method)) => self.request(out, id.get(), method, &message),
            (None, Some(method)) => self.notification(out, method, &message),
            (Some(id), None) => self.answer(id.get(), &message),
            (None, None) => out.error("null", -32600, "invalid request", None),
        }
    }

    fn notification(&self, out: &Output, method: &str, message: &Message<'_>) {
        match method {
            "notifications/initialized" => {
                for line in &self.script.after_initialized {
                    out.line(line.as_str());
                }
            }
            "notifications/cancelled" => {
                if let Ok(Params { request_id: Some(id), .. }) = message.params() {
                    self.cancel(id.get());
                }
            }
            _ => {}
        }
    }

    /// Marks the request as cancelled.
    pub(crate) fn cancel(&self, id: &str) {
        self.listens.lock().retain(|(listen, _)| listen != id);
        self.cancelled.lock().push(id.to_owned());
    }

    fn answer(&self, id: &str, message: &Message<'_>) {
        let Some(asker) = self.questions.lock().remove(id) else {
            return;
        };
        let text = match (message.result, message.error) {
            (Some(result), _) => format!(r#"{{"result":{result}}}"#),
            (None, Some(error)) => format!(r#"{{"error":{error}}}"#),
            (None, None) => "{}".to_owned(),
        };
        let _ = asker.send(text);
    }

    fn request(self: &Arc<Self>, out: &Output, id: &str, method: &str, message: &Message<'_>) {
        let Ok(params) = message.params() else {
            out.error(id, -32602, "params cannot be read", None);
            return;
        };
        if method == "server/discover" {
            self.probe(out, id, &params);
            return;
        }
        let claimed = params.meta.as_ref().and_then(|meta| meta.protocol_version.as_deref());
        let modern = match self.script.era {
            Era::Modern => true,
            Era::Legacy => false,
            Era::Both => claimed.is_some(),
        };
        if method == "initialize" {
            if modern {
                self.unsupported(out, id, params.protocol_version.as_deref());
            } else {
                self.initialize(out, id, &params);
            }
            return;
        }
        if modern {
            if !self.envelope_is_complete(out, id, &params) {
                return;
            }
        } else if !self.initialized.load(Ordering::SeqCst) && method != "ping" {
            out.error(id, -32600, "the server is not initialized", None);
            return;
        }
        let about = params.name.as_deref().or(params.uri.as_deref()).or(params.cursor.as_deref());
        let fits = |reply: &&Reply| {
            reply.method == method && reply.about.as_deref().is_none_or(|wanted| about == Some(wanted))
        };
        if let Some(reply) = self.script.replies.iter().rev().find(fits) {
            return match &reply.outcome {
                Ok(result) => {
                    let params = message.params.map_or("{}", |raw| raw.get());
                    out.result(id, &result.as_str().replace("$PARAMS", params));
                }
                Err(error) => {
                    let data = error.data.as_ref().map(|data| data.as_str());
                    out.error(id, error.code, &error.message, data);
                }
            };
        }
        match method {
            "ping" if !modern => out.result(id, "{}"),
            "tools/list" => self.list(out, id, modern, params.cursor.as_deref()),
            "tools/call" => {
                Call::new(self, out, id, modern, &params, message.params.map(|raw| raw.get())).run();
            }
            "subscriptions/listen" if modern => self.listen(out, id, message.params.map(|raw| raw.get())),
            _ => out.error(id, -32601, "method not found", None),
        }
    }

    fn probe(self: &Arc<Self>, out: &Output, id: &str, params: &Params<'_>) {
        match &self.script.on_probe {
            Probe::ByEra => self.discover(out, id, params),
            Probe::Silent => {}
            Probe::Error(error) => {
                let data = error.data.as_ref().map(|data| data.as_str());
                out.error(id, error.code, &error.message, data);
            }
            Probe::Exit { status } => std::process::exit(*status),
            Probe::Late { ms } => {
                let complete = self.discovery(params);
                let (server, out) = (Arc::clone(self), out.clone());
                let id = id.to_owned();
                later(*ms, move || server.finish_discovery(&out, &id, complete));
            }
            Probe::ForeignId => {
                out.error(r#""server-error""#, -32600, "bad request", None);
            }
            Probe::Unsupported { supported } => {
                let data = json!({"supported": supported, "requested": MODERN_REVISION});
                let message = "unsupported protocol version";
                out.error(id, -32022, message, Some(&data.to_string()));
            }
            Probe::Garbage => out.line("what is this: server/discover?"),
        }
    }

    fn discover(&self, out: &Output, id: &str, params: &Params<'_>) {
        self.finish_discovery(out, id, self.discovery(params));
    }

    /// The outcome of the probe: modern with a complete envelope, or the fault in it.
    fn discovery(&self, params: &Params<'_>) -> Discovery {
        if self.script.era == Era::Legacy {
            return Discovery::Unknown;
        }
        match envelope(params) {
            Envelope::Complete => Discovery::Result,
            Envelope::Missing => Discovery::Incomplete,
            Envelope::Unsupported(version) => Discovery::Unsupported(version),
        }
    }

    fn finish_discovery(&self, out: &Output, id: &str, discovery: Discovery) {
        match discovery {
            Discovery::Unknown => out.error(id, -32601, "method not found", None),
            Discovery::Incomplete => self.refuse_envelope(out, id),
            Discovery::Unsupported(version) => self.unsupported(out, id, Some(&version)),
            Discovery::Result => {
                let mut result = json!({
                    "resultType": "complete",
                    "supportedVersions": [MODERN_REVISION],
                    "capabilities": self.capabilities(),
                    "ttlMs": 0,
                    "cacheScope": "public",
                    "_meta": self.result_meta(),
                });
                if let Some(instructions) = &self.script.instructions {
                    result["instructions"] = instructions.as_str().into();
                }
                out.result(id, &result.to_string());
            }
        }
    }

    fn envelope_is_complete(&self, out: &Output, id: &str, params: &Params<'_>) -> bool {
        match envelope(params) {
            Envelope::Complete => return true,
            Envelope::Missing => self.refuse_envelope(out, id),
            Envelope::Unsupported(version) => self.unsupported(out, id, Some(&version)),
        }
        false
    }

    fn refuse_envelope(&self, out: &Output, id: &str) {
        let message = "params._meta lacks the protocol version or the client capabilities";
        out.error(id, -32602, message, None);
    }

    fn unsupported(&self, out: &Output, id: &str, requested: Option<&str>) {
        let data = json!({"supported": [MODERN_REVISION], "requested": requested});
        let message = format!("unsupported protocol version, this server speaks {MODERN_REVISION}");
        out.error(id, -32022, &message, Some(&data.to_string()));
    }

    fn initialize(&self, out: &Output, id: &str, params: &Params<'_>) {
        match &self.script.initialize {
            Initialize::Silent => return,
            Initialize::Exit { status } => std::process::exit(*status),
            Initialize::Error(error) => {
                let data = error.data.as_ref().map(|data| data.as_str());
                out.error(id, error.code, &error.message, data);
                return;
            }
            Initialize::Answer if params.protocol_version.is_none() => {
                let message = "initialize lacks protocolVersion";
                out.error(id, -32602, message, None);
                return;
            }
            Initialize::Answer => {}
        }
        for line in &self.script.before_initialize_result {
            out.line(line.as_str());
        }
        let mut result = json!({
            "protocolVersion": self.script.revision,
            "capabilities": self.capabilities(),
            "serverInfo": self.server_info(),
        });
        if let Some(instructions) = &self.script.instructions {
            result["instructions"] = instructions.as_str().into();
        }
        self.initialized.store(true, Ordering::SeqCst);
        out.result(id, &result.to_string());
    }

    fn list(self: &Arc<Self>, out: &Output, id: &str, modern: bool, cursor: Option<&str>) {
        if let Some(error) = &self.script.list_error {
            let data = error.data.as_ref().map(|data| data.as_str());
            out.error(id, error.code, &error.message, data);
            return;
        }
        let page = match cursor.map(|cursor| cursor.strip_prefix("page-")) {
            None => Some(0),
            Some(number) => number.and_then(|number| number.parse().ok()),
        };
        let Some(page) = page else {
            out.error(id, -32602, "invalid cursor", None);
            return;
        };
        if self.script.list_delay_ms == 0 {
            self.finish_list(out, id, modern, page);
        } else {
            let (server, out) = (Arc::clone(self), out.clone());
            let id = id.to_owned();
            later(self.script.list_delay_ms, move || {
                server.finish_list(&out, &id, modern, page);
            });
        }
    }

    fn finish_list(&self, out: &Output, id: &str, modern: bool, page: usize) {
        let tools = self.tools.lock();
        let pages = self.script.pages.max(1);
        let size = tools.len().div_ceil(pages).max(1);
        let listings: Vec<String> =
            tools.iter().skip(page.saturating_mul(size)).take(size).map(Tool::listing).collect();
        drop(tools);
        let mut result = format!(r#"{{"tools":[{}]"#, listings.join(","));
        if self.script.endless_pages || page + 1 < pages {
            result += &format!(r#","nextCursor":"page-{}""#, page + 1);
        }
        if modern {
            result += r#","resultType":"complete","ttlMs":0,"cacheScope":"public""#;
            result += &format!(r#","_meta":{}"#, self.result_meta());
        }
        out.result(id, &(result + "}"));
    }

    fn listen(&self, out: &Output, id: &str, params: Option<&str>) {
        self.listens.lock().push((id.to_owned(), out.clone()));
        let params: Value = params.and_then(|params| serde_json::from_str(params).ok()).unwrap_or_default();
        let meta = subscription_meta(id);
        let wanted = &params["notifications"];
        out.notify(
            "notifications/subscriptions/acknowledged",
            &format!(r#"{{{meta},"notifications":{wanted}}}"#),
        );
    }

    /// Announces a change of the tools to every listener.
    pub(crate) fn announce_change(&self) {
        self.announce("notifications/tools/list_changed", "{}");
    }

    /// Sends a notification to every listener, unprompted.
    pub(crate) fn announce(&self, method: &str, params: &str) {
        for (id, out) in self.listens.lock().iter() {
            let rest = params.trim_start().trim_start_matches('{').trim_start();
            let comma = if rest.starts_with('}') { "" } else { "," };
            out.notify(method, &format!("{{{}{comma}{rest}", subscription_meta(id)));
        }
        if self.initialized.load(Ordering::SeqCst) {
            self.output.notify(method, params);
        }
    }

    fn capabilities(&self) -> Value {
        let declared = self.script.capabilities.as_ref();
        let declared = declared.and_then(|text| serde_json::from_str(text.as_str()).ok());
        declared.unwrap_or_else(|| json!({"tools": {"listChanged": true}}))
    }

    /// The `_meta` of a modern result.
    pub(crate) fn result_meta(&self) -> Value {
        json!({"io.modelcontextprotocol/serverInfo": self.server_info()})
    }

    fn server_info(&self) -> Value {
        json!({"name": self.script.server_name, "version": self.script.server_version})
    }
}

enum Discovery {
    Result,
    Unknown,
    Incomplete,
    Unsupported(String),
}

enum Envelope {
    Complete,
    Missing,
    Unsupported(String),
}

fn envelope(params: &Params<'_>) -> Envelope {
    let Some(meta) = &params.meta else {
        return Envelope::Missing;
    };
    match (&meta.protocol_version, meta.client_capabilities) {
        (Some(version), Some(capabilities)) if capabilities.get().starts_with('{') => {
            if version == MODERN_REVISION {
                Envelope::Complete
            } else {
                Envelope::Unsupported(version.clone().into_owned())
            }
        }
        _ => Envelope::Missing,
    }
}

fn subscription_meta(id: &str) -> String {
    format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#)
}

/// Runs an action on its own thread after a pause.
pub(crate) fn later(ms: u64, action: impl FnOnce() + Send + 'static) {
    aside(move || {
        std::thread::sleep(Duration::from_millis(ms));
        action();
    });
}

/// Runs an action on its own thread.
pub(crate) fn aside(action: impl FnOnce() + Send + 'static) {
    // Small stacks, because a test may have a thousand calls waiting.
    let spawned = std::thread::Builder::new().stack_size(256 * 1024).spawn(action);
    if spawned.is_err() {
        std::process::exit(70);
    }
}
