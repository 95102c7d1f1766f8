//! A program on the other end of two pipes, spoken to in lines.
//!
//! Its standard error goes to a file, which needs no reader and never fills up. The program
//! is killed when the client is dropped.

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
    /// The part of a line that came before a wait ended.
    partial: Vec<u8>,
    errors: TempPath,
    next_id: u64,
    aside: VecDeque<Value>,
}

impl StdioClient {
    /// Starts a program with the environment of the test plus these variables.
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

    /// Starts a mock upstream, to speak to it without anything in between.
    pub fn start_mock(mock: &Mock) -> Self {
        Self::start(&mock.command().0, &[], mock.env())
    }

    /// Its process id; none once it was waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends one message.
    pub async fn send(&mut self, message: Value) {
        self.send_bytes(format!("{message}\n").as_bytes()).await;
    }

    /// Sends bytes as they are; a line end is the caller's to add.
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

    /// The next line, without its end; none when the output has ended.
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

    /// Sends a request under a new id and gives its whole answer. What comes before it is
    /// kept for [`StdioClient::take_aside`].
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.start_request(method, params).await;
        self.answer_to(id).await
    }

    /// Sends a request under a new id, which it gives back, and does not wait.
    pub async fn start_request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        id
    }

    /// The answer to a request that was started, also if it came already.
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

    /// Goes through the legacy handshake and gives the answer to `initialize`.
    pub async fn initialize(&mut self) -> Value {
        let answer = self.request("initialize", super::legacy_handshake()).await;
        self.notify("notifications/initialized", json!({})).await;
        answer
    }

    /// All messages that came while waiting for answers, in order.
    pub fn take_aside(&mut self) -> Vec<Value> {
        self.aside.drain(..).collect()
    }

    /// What the program wrote on standard error so far.
    pub fn stderr(&self) -> String {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Ends the program's input.
    pub fn close_stdin(&mut self) {
        self.input = None;
    }

    /// Kills the program, which it cannot refuse. [`StdioClient::wait`] then tells its end.
    pub fn kill(&mut self) {
        self.child.start_kill().expect("a program that can be killed");
    }

    /// Waits for the program's end.
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
