//! A program behind two pipes, with one message per line.
//!
//! Its standard error goes to a file, which needs no reader and never fills up. Dropping the client kills the program.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempPath};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{PATIENCE, patiently};
use crate::mock::Mock;

/// A started program and the pipes to it.
#[derive(Debug)]
pub struct StdioClient {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The part of a line that arrived before a wait timed out.
    partial: Vec<u8>,
    errors: TempPath,
    next_id: u64,
    aside: VecDeque<Value>,
}

impl StdioClient {
    /// Starts a program with the test's environment plus these variables.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests from outside start the program under test as a user does"
    )]
    pub fn start<N: AsRef<str>, V: AsRef<str>>(
        program: &Path,
        arguments: &[&str],
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let errors = NamedTempFile::new().expect("a temporary file");
        let mut command = Command::new(program);
        command.args(arguments);
        for (name, value) in variables {
            command.env(name.as_ref(), value.as_ref());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.reopen().expect("a second handle on a temporary file"))
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("a piped output")),
            partial: Vec::new(),
            child,
            errors: errors.into_temp_path(),
            next_id: 1,
            aside: VecDeque::new(),
        }
    }

    /// Starts a mock upstream, to talk to it directly.
    pub fn start_mock(mock: &Mock) -> Self {
        Self::start(&mock.command().0, &[], mock.env())
    }

    /// The process id; `None` once the program was waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends one message.
    pub async fn send(&mut self, message: Value) {
        self.send_bytes(format!("{message}\n").as_bytes()).await;
    }

    /// Sends raw bytes; the caller adds the line end.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("an input that is still open");
        let sent = patiently("sending", async {
            input.write_all(bytes).await?;
            input.flush().await
        });
        if let Err(error) = sent.await {
            panic!("cannot send: {error}\n{}", self.stderr());
        }
    }

    /// The next line, without its line end; `None` when the output has ended.
    pub async fn recv_line(&mut self) -> Option<String> {
        match self.line_within(PATIENCE).await {
            Ok(line) => line,
            Err(()) => panic!("no line within {PATIENCE:?}\n{}", self.stderr()),
        }
    }

    /// The next message.
    pub async fn recv(&mut self) -> Value {
        match self.recv_line().await {
            Some(line) => self.parse(&line),
            None => panic!("the output has ended\n{}", self.stderr()),
        }
    }

    /// The next message, if one comes in time.
    pub async fn recv_within(&mut self, time: Duration) -> Option<Value> {
        let line = self.line_within(time).await.ok()??;
        Some(self.parse(&line))
    }

    /// Sends a request under a new id and returns its whole answer. Keeps earlier messages for
    /// [`StdioClient::take_aside`].
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.start_request(method, params).await;
        self.answer_to(id).await
    }

    /// Sends a request under a new id and returns the id without waiting.
    pub async fn start_request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        id
    }

    /// The answer to a started request, even if it has already arrived.
    pub async fn answer_to(&mut self, id: u64) -> Value {
        let answers = |message: &Value| message["id"] == id && message.get("method").is_none();
        if let Some(at) = self.aside.iter().position(answers) {
            return self.aside.remove(at).expect("a message at this place");
        }
        loop {
            let message = self.recv().await;
            if answers(&message) {
                return message;
            }
            self.aside.push_back(message);
        }
    }

    /// Sends a notification.
    pub async fn notify(&mut self, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Performs the legacy handshake and returns the answer to `initialize`.
    pub async fn initialize(&mut self) -> Value {
        let answer = self.request("initialize", super::legacy_handshake()).await;
        self.notify("notifications/initialized", json!({})).await;
        answer
    }

    /// All messages that arrived while waiting for answers, in order.
    pub fn take_aside(&mut self) -> Vec<Value> {
        self.aside.drain(..).collect()
    }

    /// The program's standard error so far.
    pub fn stderr(&self) -> String {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Closes the program's input.
    pub fn close_stdin(&mut self) {
        self.input = None;
    }

    /// Kills the program with SIGKILL. [`StdioClient::wait`] then returns its status.
    pub fn kill(&mut self) {
        self.child.start_kill().expect("a program that can be killed");
    }

    /// Waits for the program to end.
    pub async fn wait(&mut self) -> ExitStatus {
        let status = patiently("the end of the program", self.child.wait()).await;
        status.expect("a status of the program")
    }

    async fn line_within(&mut self, time: Duration) -> Result<Option<String>, ()> {
        let read = self.output.read_until(b'\n', &mut self.partial);
        tokio::time::timeout(time, read).await.map_err(drop)?.expect("a readable output");
        let mut line = std::mem::take(&mut self.partial);
        if line.pop_if(|byte| *byte == b'\n').is_none() && line.is_empty() {
            return Ok(None);
        }
        Ok(Some(String::from_utf8(line).expect("lines in UTF-8")))
    }

    fn parse(&self, line: &str) -> Value {
        serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {line}\n{}", self.stderr()))
    }
}
