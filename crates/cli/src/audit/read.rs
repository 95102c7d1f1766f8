//! Implements `audit list`, `show` and `export`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use bridgehead::audit::{
    Archive, ReadError, RecordedCall, Row, StoredSegment, read_calls, read_segment, write_line,
};
use bridgehead_gateway::Code;
use bridgehead_wire::visible_text;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::exit::Exit;
use crate::output::{self, one_line};
use crate::table;

/// The columns of a page and of CSV: the members of the JSON form, without arguments and results.
const COLUMNS: [&str; 23] = [
    "time",
    "correlationId",
    "principal",
    "client",
    "server",
    "method",
    "subject",
    "tool",
    "era",
    "transport",
    "validated",
    "outcome",
    "code",
    "durationMs",
    "queuedMs",
    "bytesIn",
    "bytesOut",
    "argumentsDigest",
    "resultDigest",
    "message",
    "segment",
    "seq",
    "exitSeq",
];

/// How a call may have ended.
const OUTCOMES: [&str; 7] = ["result", "toolError", "error", DENIED, "cancelled", "interrupted", OPEN];
/// The outcome of a call that has not ended.
const OPEN: &str = "open";
/// The errors of what the rules do not allow.
const DENIED: &str = "denied";

/// Filters that choose calls.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Calls that began at this time or later: 2026-11-15T12:00:00Z, or how long ago, such as 90m or 24h
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<jiff::Timestamp>,
    /// Calls that began before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<jiff::Timestamp>,
    /// Calls of this tool, by the name clients use
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Requests of this method, such as prompts/get
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Calls to this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Calls of this principal, such as the name of a key
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Calls of this client program, with or without its version
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    /// Calls that ended like this: result, toolError, error, denied (an error, by the rules), cancelled, interrupted or open
    #[arg(long, value_name = "OUTCOME", value_parser = OUTCOMES, hide_possible_values = true)]
    outcome: Option<String>,
    /// Calls whose correlation id is this or begins with it
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

impl Which {
    /// Whether a call is chosen.
    pub(super) fn matches(&self, call: &RecordedCall) -> bool {
        let same = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        let in_time = || match call.first.time.parse::<jiff::Timestamp>() {
            Ok(time) => {
                self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time < until)
            }
            Err(_) => true,
        };
        same(&self.tool, &call.first.tool)
            && same(&self.method, call.method())
            && same(&self.server, call.first.server.as_deref().unwrap_or_default())
            && same(&self.principal, call.first.principal.as_deref().unwrap_or_default())
            && self.client.as_deref().is_none_or(|wanted| is_client(call.first.client.as_deref(), wanted))
            && self.outcome.as_deref().is_none_or(|outcome| ended(call, outcome))
            && self.id.as_deref().is_none_or(|id| begins_with(&call.first.correlation_id, id))
            && in_time()
    }
}

/// Whether the client program is the wanted one: by its name, whatever its version, or by both.
fn is_client(client: Option<&str>, wanted: &str) -> bool {
    let client = client.unwrap_or_default();
    client == wanted || program(client) == wanted
}

/// The name of a client program, without the version that the record has behind it.
pub(super) fn program(client: &str) -> &str {
    client.rsplit_once(' ').map_or(client, |(name, _)| name)
}

/// Whether a call ended like this.
fn ended(call: &RecordedCall, outcome: &str) -> bool {
    let code = || call.exit().and_then(|row| row.code.as_deref());
    match outcome {
        DENIED => code() == Some(Code::Denied.as_str()),
        outcome => call.outcome() == outcome,
    }
}

fn moment(text: &str) -> Result<jiff::Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let ago: jiff::SignedDuration = text
        .parse()
        .map_err(|_| "write a time such as 2026-11-15T12:00:00Z, or a duration such as 90m".to_owned())?;
    jiff::Timestamp::now().checked_sub(ago.abs()).map_err(|error| error.to_string())
}

/// List calls, the newest last
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bridgehead audit list --since 1h --outcome error\n  bridgehead audit list --method tools/call --json"
)]
pub(crate) struct List {
    #[command(flatten)]
    which: Which,
    /// Show only the newest N calls; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

/// Show everything that is recorded about a call
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  bridgehead audit show 0199d0a5-6f2b-7c3e-8d4f-0123456789ab")]
pub(crate) struct Show {
    /// The call's correlation id, or a unique beginning of it
    id: String,
}

/// What an export looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Whole segments, one record per line; can be verified
    Jsonl,
    /// One call per line, for spreadsheets; cannot be verified
    Csv,
}

/// Write the record to a file that others can check
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  bridgehead audit export --output record.jsonl\n  bridgehead audit export --format csv > calls.csv"
)]
pub(crate) struct Export {
    #[command(flatten)]
    which: Which,
    /// Format: jsonl (whole segments, can be verified) or csv (one call per line, cannot be verified)
    #[arg(long, default_value = "jsonl", hide_possible_values = true)]
    format: Format,
    /// Only this segment; may be repeated
    #[arg(long, value_name = "NAME")]
    segment: Vec<String>,
    /// File to write, instead of stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn list(list: &List, archive: &Archive, json: bool) -> Result<Exit, String> {
    let mut newest = Newest { limit: list.limit, calls: Vec::new() };
    each(&readable(archive)?, |call| {
        if list.which.matches(&call) {
            newest.push(call);
        }
        Ok(())
    })?;
    let calls = newest.sorted();
    if json {
        let lines = calls.iter().filter_map(|call| serde_json::to_string(call).ok());
        return Ok(output::json_lines(lines, Exit::Success));
    }
    if calls.is_empty() {
        output::talk(&format!("no matching calls in {}", archive.folder().display()));
        return Ok(Exit::Success);
    }
    Ok(output::data(&output::table(&rows(&calls, table::stdout_width())), Exit::Success))
}

/// A terminal of this width has room for all columns of the list.
const WIDE: usize = 110;

/// The table of calls. A narrow terminal gets the minute of the time, the beginning of the id, which `audit show` takes, and the
/// clients without their versions.
fn rows(calls: &[RecordedCall], width: Option<usize>) -> Vec<Vec<String>> {
    let narrow = width.is_some_and(|width| width < WIDE);
    let head = match narrow {
        false => ["TIME", "TOOL", "OUTCOME", "MS", "PRINCIPAL", "CLIENT", "CORRELATION ID"].as_slice(),
        true => ["ID", "TIME", "TOOL", "END", "BY"].as_slice(),
    };
    let cells = calls.iter().map(|call| {
        let (exit, first) = (call.exit(), &call.first);
        let outcome = exit.and_then(|row| row.code.as_deref()).unwrap_or(call.outcome());
        let took = exit.and_then(|row| row.duration_ms).map_or_else(|| "-".to_owned(), |ms| ms.to_string());
        let (principal, client) = (first.principal.as_deref(), first.client.as_deref());
        let (tool, outcome) = (one_line(&asked(first), 64), one_line(outcome, 40));
        if narrow {
            let by = [principal, client.map(program)].into_iter().flatten().collect::<Vec<_>>().join(" ");
            let minute = first.time.get(5..16).unwrap_or(&first.time).replacen('T', " ", 1);
            // The millisecond that the id was made in.
            let id = first.correlation_id.get(..13).unwrap_or(&first.correlation_id).to_owned();
            return vec![id, minute, tool, outcome, one_line(&by, 40)];
        }
        let (principal, client) = (principal.unwrap_or("-"), client.unwrap_or("-"));
        let (principal, client) = (one_line(principal, 30), one_line(client, 40));
        vec![first.time.clone(), tool, outcome, took, principal, client, first.correlation_id.clone()]
    });
    std::iter::once(head.iter().map(ToString::to_string).collect()).chain(cells).collect()
}

/// The request in a few words: a tool by its name, any other request by its method and subject.
pub(super) fn asked(first: &Row) -> String {
    match &first.method {
        None => first.tool.clone(),
        Some(method) => {
            format!("{method} {}", first.subject.as_deref().unwrap_or_default()).trim_end().to_owned()
        }
    }
}

/// The newest calls of all gateways. Calls arrive gateway by gateway, ordered by their end.
struct Newest {
    /// How many to keep; 0 keeps all.
    limit: usize,
    calls: Vec<RecordedCall>,
}

impl Newest {
    fn push(&mut self, call: RecordedCall) {
        self.calls.push(call);
        if self.limit > 0 && self.calls.len() > self.limit.saturating_mul(2) + 1024 {
            self.trim();
        }
    }

    fn trim(&mut self) {
        self.calls.sort_by(|one, other| {
            (&one.first.time, one.first.seq).cmp(&(&other.first.time, other.first.seq))
        });
        if self.limit > 0 && self.calls.len() > self.limit {
            self.calls.drain(..self.calls.len() - self.limit);
        }
    }

    fn sorted(mut self) -> Vec<RecordedCall> {
        self.trim();
        self.calls
    }
}

fn begins_with(id: &str, beginning: &str) -> bool {
    id.get(..beginning.len()).is_some_and(|start| start.eq_ignore_ascii_case(beginning))
}

/// How many matching ids an error lists.
const MOST_IDS: usize = 10;

/// The one correlation id with this beginning.
///
/// # Errors
/// If no id matches, or several do; then the error lists them.
pub(super) fn whole_id(
    archive: &Archive,
    segments: &[StoredSegment],
    beginning: &str,
) -> Result<String, String> {
    let mut ids = BTreeSet::new();
    each(segments, |call| {
        if begins_with(&call.first.correlation_id, beginning) {
            ids.insert(call.first.correlation_id);
        }
        Ok(())
    })?;
    if ids.len() > 1 {
        let shown: Vec<&str> = ids.iter().take(MOST_IDS).map(String::as_str).collect();
        let more = ids.len().saturating_sub(MOST_IDS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let several = output::counted(ids.len() as u64, "call");
        let shown = shown.join(", ");
        return Err(format!("{several} begin with {beginning}; give more of the id, one of: {shown}{more}"));
    }
    ids.pop_first().ok_or_else(|| format!("there is no call {beginning} in {}", archive.folder().display()))
}

pub(super) fn show(show: &Show, archive: &Archive, json: bool) -> Result<Exit, String> {
    let mut texts = Vec::new();
    let segments = readable(archive)?;
    let id = whole_id(archive, &segments, &show.id)?;
    each(&segments, |call| {
        if call.first.correlation_id == id {
            let value = serde_json::to_value(&call).unwrap_or_default();
            texts.push(if json { value.to_string() } else { page(&value) });
        }
        Ok(())
    })?;
    Ok(match json {
        true => output::json_lines(texts, Exit::Success),
        false => output::data(&texts.join("\n"), Exit::Success),
    })
}

/// All members, one per line.
fn page(call: &Value) -> String {
    let rows: Vec<Vec<String>> = COLUMNS
        .iter()
        .chain(&["arguments", "result"])
        .filter(|column| !call[**column].is_null())
        .map(|column| vec![(*column).to_owned(), one_line(&plain(&call[*column]), 100_000)])
        .collect();
    output::table(&rows)
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(super) fn export(export: &Export, archive: &Archive) -> Result<Exit, String> {
    let mut segments = archive.segments().map_err(|error| error.to_string())?;
    if !export.segment.is_empty() {
        segments.retain(|segment| export.segment.iter().any(|name| name == segment.name()));
    }
    if segments.is_empty() {
        return Err(format!("there is no such segment in {}", archive.folder().display()));
    }
    let written = match &export.output {
        Some(path) => {
            let file =
                File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            write_to(export, &segments, &mut BufWriter::new(file))
        }
        None => write_to(export, &segments, &mut output::raw_stdout()),
    };
    match written {
        Ok(()) => Ok(Exit::Success),
        Err(ReadError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Success),
        Err(error) => Err(error.to_string()),
    }
}

fn write_to(export: &Export, segments: &[StoredSegment], out: &mut impl Write) -> Result<(), ReadError> {
    match export.format {
        Format::Jsonl => {
            for segment in segments {
                read_segment(segment, |record| Ok(write_line(record, out)?))?;
            }
        }
        Format::Csv => {
            writeln!(out, "{}", COLUMNS.join(","))?;
            read_calls(segments, |call| {
                if export.which.matches(&call) {
                    let value = serde_json::to_value(&call).unwrap_or_default();
                    let cells: Vec<String> =
                        COLUMNS.iter().map(|column| cell(&plain(&value[*column]))).collect();
                    writeln!(out, "{}", cells.join(","))?;
                }
                Ok(())
            })?;
        }
    }
    Ok(out.flush()?)
}

/// A cell of CSV. Names come from clients, so a text that a spreadsheet would take for a formula gets a leading quote, and
/// characters that change how others are shown are written out.
fn cell(text: &str) -> String {
    let text = &*visible_text(text);
    let text =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// The readable segments. Each unreadable one causes a warning and is left out.
///
/// # Errors
/// If the store does not answer.
pub(super) fn readable(archive: &Archive) -> Result<Vec<StoredSegment>, String> {
    let mut segments = archive.segments().map_err(|error| error.to_string())?;
    segments.retain(|segment| {
        let read = read_segment(segment, |_| Ok(()));
        if let Err(error) = &read {
            output::talk(&format!("warning: {error}"));
        }
        read.is_ok()
    });
    Ok(segments)
}

pub(super) fn each(
    segments: &[StoredSegment],
    take: impl FnMut(RecordedCall) -> Result<(), ReadError>,
) -> Result<(), String> {
    read_calls(segments, take).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bridgehead::audit::{
        About, AuditSink, Call, Clock, CorrelationId, Enter, MemoryStore, StoreOptions, StoreSink,
        SystemClock,
    };

    use super::*;

    /// GATE-2: a tool is shown by its name, any other request by its method and subject.
    #[test]
    fn how_a_request_is_shown() {
        #[track_caller]
        fn check(members: &str, expected: &str) {
            let row = format!(r#"{{"seq":1,"kind":"enter","time":"t","correlationId":"c",{members}}}"#);
            assert_eq!(asked(&serde_json::from_str(&row).unwrap()), expected);
        }
        check(r#""tool":"say""#, "say");
        check(r#""tool":"","method":"prompts/get","subject":"plan""#, "prompts/get plan");
        check(r#""tool":"","method":"tools/list""#, "tools/list");
    }

    /// GATE-5: the verbs read any store. Here the calls are in memory, and the folder holds only the journal.
    #[test]
    fn verbs_read_any_store() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::default());
        let options = StoreOptions { store: Some(store.clone()), ..StoreOptions::new(folder.path()) };
        let sink = StoreSink::open(options).unwrap();
        let call = Call {
            tool: "say".into(),
            server: None,
            principal: "ada".into(),
            correlation: CorrelationId::mint(),
            era: bridgehead::Era::Modern,
            transport: "http",
            about: About::default(),
        };
        let id = call.correlation.to_string();
        let enter = Enter::new(call, "{}".into(), true, SystemClock::default().now());
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(sink.enter(&enter)).unwrap();
        let archive = Archive::new(store, folder.path());
        let read = || {
            let segments = readable(&archive).unwrap();
            let found = whole_id(&archive, &segments, &id[..35]).unwrap();
            let mut outcomes = Vec::new();
            each(&segments, |call| {
                outcomes.push(call.outcome().to_owned());
                Ok(())
            })
            .unwrap();
            (found, outcomes)
        };
        assert_eq!(read(), (id.clone(), vec!["open".to_owned()]), "from the journal");
        sink.close();
        assert_eq!(read(), (id.clone(), vec!["interrupted".to_owned()]), "from the store");
        assert!(bridgehead::audit::segments(folder.path()).is_empty());
        assert!(whole_id(&archive, &readable(&archive).unwrap(), "no").unwrap_err().contains("no call no"));
    }

    #[test]
    fn times_are_moments_or_durations_ago() {
        assert_eq!(moment("2026-11-15T12:00:00Z").unwrap().to_string(), "2026-11-15T12:00:00Z");
        let ago = jiff::Timestamp::now().duration_since(moment("90m").unwrap()).as_secs();
        assert!((5_399..5_410).contains(&ago), "{ago}");
        assert!(moment("yesterday").is_err());
    }

    #[test]
    fn cells_are_neither_formulas_nor_columns() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            assert_eq!(cell(text), expected);
        }
        check("plain", "plain");
        check("a,\"b\"", "\"a,\"\"b\"\"\"");
        check("=1+1", "'=1+1");
        check("two\nlines", "\"two\nlines\"");
        check("a\u{202e}b", "a\\u202eb");
    }
}
