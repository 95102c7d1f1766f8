//! Runs the scripted behaviour of a tool when it is called.
//!
//! A behaviour that waits, or writes more than a pipe holds, runs on its own thread: the reading thread must always be
//! free for the next message. Everything else is answered at once and in order.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use bridgehead_testkit::{Behaviour, Crash, ProgressFault, SCRIPT_VARIABLE};
use serde_json::{Value, json};

use crate::message::Params;
use crate::output::Output;
use crate::server::{Server, aside};

/// One call, owned, so that it can move to another thread.
pub(crate) struct Call {
    server: Arc<Server>,
    output: Output,
    id: String,
    modern: bool,
    name: String,
    arguments: String,
    progress_token: Option<String>,
    /// The capabilities that the client declared with the call.
    capabilities: Value,
    /// Whether the call brings answers or state from an earlier round.
    retries: bool,
    /// The number after the last dash of the state that the call brings.
    round: usize,
    params: Option<String>,
}

impl Call {
    pub(crate) fn new(
        server: &Arc<Server>,
        output: &Output,
        id: &str,
        modern: bool,
        params: &Params<'_>,
        raw_params: Option<&str>,
    ) -> Self {
        Self {
            server: Arc::clone(server),
            output: output.clone(),
            id: id.to_owned(),
            modern,
            name: params.name.as_deref().unwrap_or_default().to_owned(),
            arguments: params.arguments.map_or_else(|| "{}".to_owned(), |raw| raw.get().to_owned()),
            progress_token: params
                .meta
                .as_ref()
                .and_then(|meta| meta.progress_token)
                .map(|token| token.get().to_owned()),
            capabilities: params
                .meta
                .as_ref()
                .and_then(|meta| meta.client_capabilities)
                .and_then(|raw| serde_json::from_str(raw.get()).ok())
                .unwrap_or_default(),
            retries: params.input_responses.is_some() || params.request_state.is_some(),
            round: params
                .request_state
                .and_then(|state| state.get().trim_matches('"').rsplit('-').next()?.parse().ok())
                .unwrap_or_default(),
            params: raw_params.map(str::to_owned),
        }
    }

    /// Starts the call, and completes it if nothing in it waits.
    pub(crate) fn run(self) {
        let behaviour = self
            .server
            .tools
            .lock()
            .iter()
            .find(|tool| tool.name() == self.name)
            .map(|tool| tool.behaviour().clone());
        let Some(behaviour) = behaviour else {
            let message = format!("unknown tool: {}", self.name);
            self.output.error(&self.id, -32602, &message, None);
            return;
        };
        if !matches!(behaviour, Behaviour::Received) {
            self.server.last_call.lock().clone_from(&self.params);
        }
        if waits(&behaviour) {
            aside(move || self.play(&behaviour));
        } else {
            self.play(&behaviour);
        }
    }

    fn play(&self, behaviour: &Behaviour) {
        let output = &self.output;
        match behaviour {
            Behaviour::Echo => self.echo(&self.id),
            Behaviour::Text(text) => self.text(text, None, false),
            Behaviour::RawResult(result) => output.result(&self.id, result.as_str()),
            Behaviour::RawLine(line) => output.line(&line.replace("$ID", &self.id)),
            Behaviour::Error(error) => {
                let data = error.data.as_ref().map(|data| data.as_str());
                output.error(&self.id, error.code, &error.message, data);
            }
            Behaviour::IsError(text) => self.text(text, None, true),
            Behaviour::Delay { ms, then } => {
                std::thread::sleep(Duration::from_millis(*ms));
                self.play(then);
            }
            Behaviour::Progress { steps, every_ms, fault, then } => {
                self.progress(*steps, *every_ms, *fault, then);
            }
            Behaviour::Crash(Crash::Abort) => std::process::abort(),
            Behaviour::Crash(Crash::Exit { status }) => std::process::exit(*status),
            Behaviour::CrashOnce { marker } => {
                if std::fs::File::create_new(marker).is_ok() {
                    std::process::exit(1);
                }
                self.echo(&self.id);
            }
            Behaviour::Hang | Behaviour::HangUntilCancelled => {}
            Behaviour::Garbage(line) => output.line(line),
            Behaviour::Flood { megabytes } => {
                self.text(&"x".repeat(megabytes * 1024 * 1024), None, false);
            }
            Behaviour::FloodRequests { method } => flood(method),
            Behaviour::WrongId => {
                self.echo(r#""nobody-asked-with-this""#);
                self.echo(&self.id);
            }
            Behaviour::DoubleAnswer => {
                self.echo(&self.id);
                self.echo(&self.id);
            }
            Behaviour::Tell { method, params, aside, then } => {
                if *aside {
                    self.server.announce(method, params.as_str());
                } else {
                    output.notify(method, params.as_str());
                }
                self.play(then);
            }
            Behaviour::Ask { method, params } => {
                let params = params.as_ref().map(|params| params.as_str());
                if let Some(answer) = self.ask(method, params) {
                    self.text(&answer, Some(&answer), false);
                }
            }
            Behaviour::AskInRounds(rounds) => {
                let mut answers = Vec::new();
                for round in rounds {
                    let asked: Vec<_> = round
                        .iter()
                        .map(|(method, params)| self.put(method, Some(params.as_str())))
                        .collect();
                    for answer in asked {
                        let Ok(answer) = answer.recv() else { return };
                        answers.push(answer);
                    }
                }
                let answers = format!(r#"{{"answers":[{}]}}"#, answers.join(","));
                self.text(&answers, Some(&answers), false);
            }
            Behaviour::InputRounds(rounds) => match rounds.get(self.round) {
                Some(result) => output.result(&self.id, result.as_str()),
                None => self.text(self.params.as_deref().unwrap_or_default(), None, false),
            },
            Behaviour::InputRequired(_) if self.retries => {
                self.text(self.params.as_deref().unwrap_or_default(), None, false);
            }
            Behaviour::InputRequired(result) => output.result(&self.id, result.as_str()),
            Behaviour::Needs { capability, then } if self.capabilities[capability].is_object() => {
                self.play(then);
            }
            Behaviour::Needs { capability, .. } => {
                let data = json!({"requiredCapabilities": {capability: {}}}).to_string();
                output.error(&self.id, -32021, "the client lacks a capability", Some(&data));
            }
            Behaviour::Environment { values } => self.value(&environment(values)),
            Behaviour::Arguments => self.value(&json!({
                "args": std::env::args().skip(1).collect::<Vec<_>>(),
                "cwd": std::env::current_dir().ok(),
            })),
            Behaviour::ProcessId => self.value(&json!({"pid": std::process::id()})),
            Behaviour::ReportCancelled => {
                let ids = self.server.cancelled.lock().join(",");
                let text = format!(r#"{{"cancelled":[{ids}]}}"#);
                self.text(&text, Some(&text), false);
            }
            Behaviour::Received => {
                let params = self.server.last_call.lock().clone();
                let params = params.unwrap_or_else(|| "null".to_owned());
                self.text(&params, None, false);
            }
            Behaviour::AddTool(tool) => {
                let mut tools = self.server.tools.lock();
                tools.retain(|known| known.name() != tool.name());
                tools.push(tool.as_ref().clone());
                drop(tools);
                self.server.announce_change();
                self.text("added", None, false);
            }
            Behaviour::RemoveTool(name) => {
                self.server.tools.lock().retain(|known| known.name() != name);
                self.server.announce_change();
                self.text("removed", None, false);
            }
            Behaviour::Shell { script, then } => {
                shell(script);
                self.play(then);
            }
            Behaviour::CloseOutput => {
                if let Ok(nowhere) = std::fs::File::open("/dev/null") {
                    let _ = rustix::stdio::dup2_stdout(nowhere);
                }
            }
            Behaviour::Grandchild => match grandchild() {
                Ok(pid) => self.value(&json!({"pid": pid})),
                Err(error) => self.text(&error.to_string(), None, true),
            },
        }
    }

    fn echo(&self, id: &str) {
        let result = self.result(&self.arguments, Some(&self.arguments), false);
        self.output.result(id, &result);
    }

    fn value(&self, value: &Value) {
        let text = value.to_string();
        self.text(&text, Some(&text), false);
    }

    fn text(&self, text: &str, structured: Option<&str>, is_error: bool) {
        let result = self.result(text, structured, is_error);
        self.output.result(&self.id, &result);
    }

    fn result(&self, text: &str, structured: Option<&str>, is_error: bool) -> String {
        let mut result = format!(r#"{{"content":[{{"type":"text","text":{}}}]"#, Value::from(text));
        if let Some(structured) = structured {
            result += &format!(r#","structuredContent":{structured}"#);
        }
        result += &format!(r#","isError":{is_error}"#);
        if self.modern {
            let meta = self.server.result_meta();
            result += &format!(r#","resultType":"complete","_meta":{meta}"#);
        }
        result + "}"
    }

    fn progress(&self, steps: u64, every_ms: u64, fault: ProgressFault, then: &Behaviour) {
        let report = |step: u64| {
            let token = match (&self.progress_token, fault) {
                (None, _) => return,
                (Some(_), ProgressFault::UnknownToken) => r#""nobody-gave-this""#,
                (Some(token), _) => token,
            };
            let done = if fault == ProgressFault::NotIncreasing { 1 } else { step };
            self.output.notify(
                "notifications/progress",
                &format!(
                    r#"{{"progressToken":{token},"progress":{done},"total":{steps},"message":"step {step}"}}"#
                ),
            );
        };
        for step in 1..=steps {
            std::thread::sleep(Duration::from_millis(every_ms));
            report(step);
        }
        self.play(then);
        if fault == ProgressFault::AfterFinal {
            report(steps + 1);
        }
    }

    fn ask(&self, method: &str, params: Option<&str>) -> Option<String> {
        self.put(method, params).recv().ok()
    }

    fn put(&self, method: &str, params: Option<&str>) -> mpsc::Receiver<String> {
        // Counted from 0, as clients count theirs, so that the two id spaces overlap.
        let id = self.server.next_question.fetch_add(1, Ordering::SeqCst);
        let (sender, receiver) = mpsc::channel();
        self.server.questions.lock().insert(id.to_string(), sender);
        let params = params.map_or_else(String::new, |params| format!(r#","params":{params}"#));
        self.output.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"{params}}}"#));
        receiver
    }
}

fn waits(behaviour: &Behaviour) -> bool {
    match behaviour {
        Behaviour::Delay { .. }
        | Behaviour::Progress { .. }
        | Behaviour::Flood { .. }
        | Behaviour::Shell { .. }
        | Behaviour::Ask { .. }
        | Behaviour::AskInRounds(_) => true,
        Behaviour::Needs { then, .. } | Behaviour::Tell { then, .. } => waits(then),
        _ => false,
    }
}

/// Writes requests until the reader stops taking them, on the thread that reads.
fn flood(method: &str) {
    let mut out = std::io::stdout().lock();
    let lines: String = (0..1000)
        .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":\"flood-{id}\",\"method\":\"{method}\"}}\n"))
        .collect();
    while out.write_all(lines.as_bytes()).is_ok() {}
}

/// Runs a script to its end and ignores how it ends.
#[expect(clippy::disallowed_methods, reason = "a mock server may start programs")]
fn shell(script: &str) {
    let _ = std::process::Command::new("sh").arg("-c").arg(script).stdin(Stdio::null()).status();
}

fn environment(told: &[String]) -> Value {
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .map(|(name, value)| {
            let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .collect();
    let values: BTreeMap<&String, &String> =
        variables.iter().filter(|(name, _)| told.contains(name)).collect();
    json!({"names": variables.keys().collect::<Vec<_>>(), "values": values})
}

/// Starts a copy of this program that ignores the end of its input.
///
/// It keeps this program's standard output open, as the forgotten children of real servers
/// do.
#[expect(
    clippy::disallowed_methods,
    reason = "a mock server may start programs, and this one is meant to be forgotten"
)]
fn grandchild() -> std::io::Result<u32> {
    let child = std::process::Command::new(std::env::current_exe()?)
        .env(SCRIPT_VARIABLE, r#"{"ignore_eof":true}"#)
        .stdin(Stdio::null())
        .spawn()?;
    Ok(child.id())
}
