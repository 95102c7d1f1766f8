//! What is remembered of each server: its log lines, its processes, and its last start and end.
//!
//! Records are kept by name, apart from the servers, so they outlive restarts. Everything is bounded; a follower
//! that is too slow learns how many lines it missed. Lines arrive already free of control characters and secrets.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bridgehead_call::{Clock, SystemClock};
use bridgehead_events::{Detail, InitOutcome, ServerSignal};
use bridgehead_process::ProcessView;
use bridgehead_wire::Redactor;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::ser::{Serialize, SerializeMap, Serializer};
use tokio::sync::Notify;

/// How many lines of a server are kept, and how many bytes of them.
const KEPT_LINES: usize = 2_000;
const KEPT_BYTES: usize = 256 * 1024;
/// How many lines on standard output that are not messages are kept per process.
const KEPT_NOISE: u32 = 20;
/// How many lines of standard error explain why a server ended.
const LAST_WORDS: usize = 10;

/// Who wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineSource {
    /// The server, on its standard error.
    Stderr,
    /// The server, on its standard output, where only messages belong.
    Stdout,
    /// The gateway, about the server.
    Gateway,
}

impl LineSource {
    /// The name shown to people and programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stderr => "stderr",
            Self::Stdout => "stdout",
            Self::Gateway => "gateway",
        }
    }
}

/// One line of or about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The time it arrived.
    pub time: Timestamp,
    /// The server.
    pub server: Arc<str>,
    /// Who wrote it.
    pub source: LineSource,
    /// Its text.
    pub text: Box<str>,
}

impl fmt::Display for LogLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, server, source, text } = self;
        write!(formatter, "{time:.3} mcp:{server} {}: {text}", source.as_str())
    }
}

impl Serialize for LogLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(5))?;
        object.serialize_entry("time", &format_args!("{:.3}", self.time))?;
        object.serialize_entry("server", &*self.server)?;
        object.serialize_entry("label", &format_args!("mcp:{}", self.server))?;
        object.serialize_entry("source", self.source.as_str())?;
        object.serialize_entry("text", &*self.text)?;
        object.end()
    }
}

/// Receives every line as it arrives. It must not block.
#[derive(Clone)]
pub struct LineSink(Arc<dyn Fn(&LogLine) + Send + Sync>);

impl LineSink {
    /// Passes every line to `show`.
    pub fn new(show: impl Fn(&LogLine) + Send + Sync + 'static) -> Self {
        Self(Arc::new(show))
    }
}

impl fmt::Debug for LineSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LineSink")
    }
}

/// The records of all servers of a gateway, by name. Clones share them.
#[derive(Clone)]
pub struct ServerRecords {
    clock: Arc<dyn Clock>,
    sink: Option<LineSink>,
    all: Arc<Mutex<BTreeMap<Arc<str>, ServerRecord>>>,
}

impl Default for ServerRecords {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock::default()), None)
    }
}

impl fmt::Debug for ServerRecords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Records").field("servers", &self.all.lock().len()).finish_non_exhaustive()
    }
}

impl ServerRecords {
    /// An empty set. Times come from `clock`; every line also goes to `sink`.
    pub fn new(clock: Arc<dyn Clock>, sink: Option<LineSink>) -> Self {
        Self { clock, sink, all: Arc::default() }
    }

    /// The record of a server; a new one if there is none yet.
    pub fn of(&self, server: &str) -> ServerRecord {
        let mut all = self.all.lock();
        if let Some(record) = all.get(server) {
            return record.clone();
        }
        let name: Arc<str> = server.into();
        let record = ServerRecord(Arc::new(Shared {
            server: Arc::clone(&name),
            clock: Arc::clone(&self.clock),
            sink: self.sink.clone(),
            redactor: Redactor::default(),
            kept: Mutex::default(),
            more: Notify::new(),
        }));
        all.insert(name, record.clone());
        record
    }

    /// Forgets a server that is no longer configured.
    pub fn forget(&self, server: &str) {
        self.all.lock().remove(server);
    }
}

/// The record of one server. Clones share it.
#[derive(Clone)]
pub struct ServerRecord(Arc<Shared>);

struct Shared {
    server: Arc<str>,
    clock: Arc<dyn Clock>,
    sink: Option<LineSink>,
    redactor: Redactor,
    kept: Mutex<Kept>,
    /// Notified of every line.
    more: Notify,
}

#[derive(Default)]
struct Kept {
    lines: VecDeque<Arc<LogLine>>,
    bytes: usize,
    /// The total number of lines so far.
    seen: u64,
    processes: Vec<ProcessView>,
    noise: Noise,
    facts: Facts,
}

/// The lines on standard output that were not messages, of the last started process.
#[derive(Default)]
struct Noise {
    lines: u32,
    first: Option<Box<str>>,
}

/// The history of a server, beyond its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether one of its processes ever ran.
    pub ran: bool,
    /// How often it was restarted.
    pub restarts: u32,
    /// The last completed start.
    pub last_init: Option<Initialisation>,
    /// When and how its process last ended.
    pub last_exit: Option<(Timestamp, String)>,
    /// The last error and its time.
    pub last_error: Option<(Timestamp, String)>,
    /// Problems of its tools that do not keep it from serving.
    pub findings: Vec<String>,
}

/// The result of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialisation {
    /// When it ended.
    pub time: Timestamp,
    /// The outcome.
    pub outcome: InitOutcome,
    /// How many tools the server has.
    pub tools: usize,
    /// How long it took, in whole milliseconds.
    pub duration_ms: u64,
    /// Why it failed.
    pub error: Option<String>,
}

/// What a follower gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    /// A line.
    Line(Arc<LogLine>),
    /// This many lines were dropped before the follower read them.
    Missed(u64),
}

impl fmt::Debug for ServerRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Record").field("server", &self.0.server).finish_non_exhaustive()
    }
}

impl ServerRecord {
    /// Keeps a line, with secrets redacted.
    pub fn line(&self, source: LineSource, text: &str) {
        let line = Arc::new(LogLine {
            time: self.0.clock.wall(),
            server: Arc::clone(&self.0.server),
            source,
            text: self.0.redactor.text(text).into(),
        });
        let mut kept = self.0.kept.lock();
        kept.bytes += line.text.len();
        kept.seen += 1;
        kept.lines.push_back(Arc::clone(&line));
        while kept.lines.len() > KEPT_LINES || kept.bytes > KEPT_BYTES {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.text.len();
        }
        drop(kept);
        self.0.more.notify_waiters();
        if let Some(LineSink(show)) = &self.0.sink {
            show(&line);
        }
    }

    /// The last lines, at most `most`, oldest first.
    pub fn tail(&self, most: usize) -> Vec<Arc<LogLine>> {
        let kept = self.0.kept.lock();
        kept.lines.iter().skip(kept.lines.len().saturating_sub(most)).cloned().collect()
    }

    /// Follows the lines as they arrive, starting with the last `most` kept ones.
    pub fn follow(&self, most: usize) -> Follower {
        let kept = self.0.kept.lock();
        let back = u64::try_from(most.min(kept.lines.len())).unwrap_or_default();
        Follower { record: self.clone(), next: kept.seen - back }
    }

    /// Its history.
    #[doc(hidden)]
    pub fn facts(&self) -> Facts {
        self.0.kept.lock().facts.clone()
    }

    /// Its current processes.
    #[doc(hidden)]
    pub fn processes(&self) -> Vec<ProcessView> {
        self.0.kept.lock().processes.clone()
    }

    /// The last lines on its standard error, oldest first.
    pub fn last_words(&self) -> Vec<String> {
        let kept = self.0.kept.lock();
        let stderr = kept.lines.iter().rev().filter(|line| line.source == LineSource::Stderr);
        let mut words: Vec<String> = stderr.take(LAST_WORDS).map(|line| line.text.to_string()).collect();
        words.reverse();
        words
    }

    /// The first line of the current process on standard output that is not a message.
    pub fn noise(&self) -> Option<String> {
        self.0.kept.lock().noise.first.as_ref().map(ToString::to_string)
    }

    /// Counts a process until the guard is dropped.
    pub(crate) fn began(&self, process: ProcessView) -> Counted {
        let mut kept = self.0.kept.lock();
        kept.processes.push(process);
        kept.facts.ran = true;
        kept.noise = Noise::default();
        Counted { record: self.clone(), pid: process.pid() }
    }

    /// Takes a line on standard output that is not a message.
    pub(crate) fn noisy(&self, line: &str) {
        let mut kept = self.0.kept.lock();
        kept.noise.lines = kept.noise.lines.saturating_add(1);
        if kept.noise.first.is_none() {
            kept.noise.first = Some(self.0.redactor.text(line).into());
        }
        let shown = kept.noise.lines <= KEPT_NOISE;
        drop(kept);
        if shown {
            self.line(LineSource::Stdout, line);
        }
    }

    /// Records a signal about the server.
    pub(crate) fn hear(&self, signal: &ServerSignal<'_>) {
        if let Some(detail) = signal.detail() {
            self.note(&detail);
        }
        if let Some(reason) = signal.loss() {
            self.lost(reason);
        }
    }

    /// Records that the server was lost.
    fn lost(&self, reason: &str) {
        let time = self.0.clock.wall();
        let reason = self.0.redactor.text(reason).into_owned();
        self.0.kept.lock().facts.last_error = Some((time, reason));
    }

    /// Records the problems of its latest tool list.
    pub(crate) fn found(&self, findings: Vec<String>) {
        for finding in &findings {
            self.line(LineSource::Gateway, finding);
        }
        self.0.kept.lock().facts.findings = findings;
    }

    /// Records an event about the server.
    fn note(&self, detail: &Detail) {
        let time = self.0.clock.wall();
        {
            let facts = &mut self.0.kept.lock().facts;
            match detail {
                Detail::InitFinished { outcome, tools, duration_ms, error } => {
                    let error = error.as_ref().map(ToString::to_string);
                    if let Some(error) = &error {
                        facts.last_error = Some((time, error.clone()));
                    }
                    facts.last_init = Some(Initialisation {
                        time,
                        outcome: *outcome,
                        tools: *tools,
                        duration_ms: *duration_ms,
                        error,
                    });
                }
                Detail::Restart { .. } => facts.restarts = facts.restarts.saturating_add(1),
                Detail::Probe { error: Some(error), .. } => {
                    facts.last_error = Some((time, error.to_string()));
                }
                _ => {}
            }
        }
        if let Some(text) = told(detail) {
            self.line(LineSource::Gateway, &text);
        }
    }
}

/// An event as a log line; `None` for events that only programs need.
fn told(detail: &Detail) -> Option<String> {
    Some(match detail {
        Detail::InitStarted => "is being started".to_owned(),
        Detail::InitFinished { outcome: InitOutcome::Ready, tools, duration_ms, .. } => {
            let plural = if *tools == 1 { "" } else { "s" };
            format!("serves {tools} tool{plural}, after {duration_ms} ms")
        }
        Detail::InitFinished { outcome, error, .. } => match error {
            Some(error) => format!("did not come up: {error}"),
            None => format!("did not come up: {}", outcome.as_str()),
        },
        Detail::ToolsRefreshed { added, removed, unchanged } if !added.is_empty() || !removed.is_empty() => {
            format!(
                "changed its tools: {} added, {} removed, {unchanged} unchanged",
                added.len(),
                removed.len()
            )
        }
        Detail::Disconnected => "is disconnected".to_owned(),
        Detail::Reconnected => "is back".to_owned(),
        Detail::ReconnectExhausted => "will not be started again".to_owned(),
        Detail::Probe { error: Some(error), .. } => format!("is unhealthy: {error}"),
        Detail::Restart { attempt, delay_ms, reason } => {
            format!("is started again in {delay_ms} ms (attempt {attempt}): {reason}")
        }
        Detail::ProcessExited { pid, status, .. } => format!("its process {pid} ended with {status}"),
        _ => return None,
    })
}

/// A process that counts as one of a server's own.
#[derive(Debug)]
pub(crate) struct Counted {
    record: ServerRecord,
    pid: u32,
}

impl Counted {
    /// The process ended with this status.
    pub(crate) fn exited(self, status: &str) {
        let time = self.record.0.clock.wall();
        self.record.0.kept.lock().facts.last_exit = Some((time, status.to_owned()));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut kept = self.record.0.kept.lock();
        if let Some(at) = kept.processes.iter().position(|process| process.pid() == self.pid) {
            kept.processes.remove(at);
        }
    }
}

/// Reads the lines of a server one by one.
#[derive(Debug)]
pub struct Follower {
    record: ServerRecord,
    /// The number of the next line, counted from the very first.
    next: u64,
}

impl Follower {
    /// The next line, or how many lines are missing before it. Cancel safe.
    pub async fn next(&mut self) -> Followed {
        loop {
            let record = self.record.clone();
            let more = record.0.more.notified();
            tokio::pin!(more);
            // From here on no notification is missed.
            more.as_mut().enable();
            if let Some(followed) = self.take() {
                return followed;
            }
            more.await;
        }
    }

    /// The next line, if there is one.
    fn take(&mut self) -> Option<Followed> {
        let kept = self.record.0.kept.lock();
        let oldest = kept.seen - u64::try_from(kept.lines.len()).unwrap_or_default();
        if self.next < oldest {
            let missed = oldest - self.next;
            self.next = oldest;
            return Some(Followed::Missed(missed));
        }
        let line = kept.lines.get(usize::try_from(self.next - oldest).ok()?)?;
        self.next += 1;
        Some(Followed::Line(Arc::clone(line)))
    }
}

#[cfg(test)]
mod tests;
