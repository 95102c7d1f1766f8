//! Prints for people and for programs.
//!
//! A reader that closes the pipe (`bridgehead tools | head -1`) is not a failure: writing just stops.
//!
//! Invariant: text from others (names, descriptions, results, errors) cannot control a person's terminal. Everything that
//! the command line prints passes one of the functions here, and each of them escapes control characters. JSON of our own has
//! them as escapes of JSON. What servers send as data (results and definitions, in a pipe) stays unchanged, byte for byte.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bridgehead::config::{ConfigError, Diagnostic, Severity};
use bridgehead_wire::{Raw, visible_line, visible_text};
use serde_json::{Value, json};

use super::exit::Exit;
use super::{screen, table};

/// Writes text for people to stdout. Returns `exit`, or failure if writing failed for any reason but a closed pipe.
pub(crate) fn data(text: &str, exit: Exit) -> Exit {
    write(&visible_text(text), exit)
}

/// Writes data to stdout, unchanged if a program reads it.
pub(crate) fn raw_data(text: &str, exit: Exit) -> Exit {
    write(&for_reader(text, io::stdout().is_terminal()), exit)
}

/// The data, escaped only for a terminal.
fn for_reader(text: &str, terminal: bool) -> Cow<'_, str> {
    if terminal { visible_text(text) } else { Cow::Borrowed(text) }
}

/// stdout for data that is too large to hold in memory. For a terminal, it writes line by line and escapes control
/// characters.
pub(crate) fn raw_stdout() -> Box<dyn Write> {
    match io::stdout().is_terminal() {
        true => Box::new(io::LineWriter::new(Visible)),
        false => Box::new(io::BufWriter::new(io::stdout().lock())),
    }
}

/// Writes whole lines to a terminal, with control characters escaped.
struct Visible;

impl Write for Visible {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        io::stdout().lock().write_all(visible_text(&String::from_utf8_lossy(lines)).as_bytes())?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }
}

fn write(text: &str, exit: Exit) -> Exit {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| match text.ends_with('\n') {
        true => out.flush(),
        false => out.write_all(b"\n").and_then(|()| out.flush()),
    });
    done(written, exit)
}

/// Writes bytes to stdout, which must not be a terminal: nothing is escaped or added.
pub(crate) fn raw_bytes(bytes: &[u8], exit: Exit) -> Exit {
    let mut out = io::stdout().lock();
    done(out.write_all(bytes).and_then(|()| out.flush()), exit)
}

fn done(written: io::Result<()>, exit: Exit) -> Exit {
    match written {
        Ok(()) => exit,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit,
        Err(error) => {
            talk(&format!("error: cannot write the output: {error}"));
            Exit::Failure
        }
    }
}

/// Writes one line of a stream to stdout; returns whether the reader still accepts more.
pub(crate) fn stream(line: &str) -> bool {
    let mut out = io::stdout().lock();
    let line = for_reader(line, out.is_terminal());
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Writes indented JSON to stdout.
pub(crate) fn json_data(value: &Value, exit: Exit) -> Exit {
    // An escape of a character is the same JSON.
    write(&visible_text(&format!("{value:#}")), exit)
}

/// Writes JSON to stdout, one value per line.
pub(crate) fn json_lines(values: impl IntoIterator<Item = String>, exit: Exit) -> Exit {
    let lines: Vec<String> = values.into_iter().map(|value| visible_line(&value).into_owned()).collect();
    if lines.is_empty() { exit } else { write(&lines.join("\n"), exit) }
}

/// Writes named lists, and the servers that could not add to them, as one JSON object. Each entry stays byte for byte as it came.
pub(crate) fn lists(lists: &[(&str, &[Raw])], failed: &Value, exit: Exit) -> Exit {
    let each = lists.iter().map(|(name, entries)| {
        let entries: Vec<&str> = entries.iter().map(Raw::as_str).collect();
        format!("\"{name}\":[\n{}\n],", entries.join(",\n"))
    });
    raw_data(&format!("{{{}\"failed\":{failed}}}", each.collect::<String>()), exit)
}

/// Reports an invalid command line.
pub(crate) fn wrong(reason: &str) -> Exit {
    talk(&format!("error: {reason}"));
    Exit::Usage
}

/// Reports why a command did nothing, for programs too.
pub(crate) fn failed(reason: &str, exit: Exit, as_json: bool) -> Exit {
    talk(&format!("error: {reason}"));
    match as_json {
        true => json_data(&json!({"ok": false, "error": reason}), exit),
        false => exit,
    }
}

/// Asks for a line on stderr; the answer is typed behind it.
pub(crate) fn prompt(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(visible_line(text).as_bytes()).and_then(|()| out.flush());
}

/// Writes a message to stderr. Only its first line starts at the left margin. All further lines, ours or those of a quoted
/// message, are indented, so that quoted text cannot look like a message of its own.
pub(crate) fn talk(text: &str) {
    say(&match talks_json() {
        true => visible_line(&as_json(text).to_string()).into_owned(),
        false => indented(&visible_text(text)),
    });
}

/// Writes to stderr what another process of this program has written there: a text for people, or lines of JSON.
pub(crate) fn relay(text: &str) {
    let lines = text.lines().map(visible_line);
    match talks_json() {
        true => lines.for_each(|line| say(&line)),
        false => say(&lines.collect::<Vec<_>>().join("\n")),
    }
}

fn indented(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (number, line) in text.lines().enumerate() {
        if number > 0 {
            out.push('\n');
            if !line.is_empty() && !line.starts_with([' ', '\t']) {
                out.push_str("  ");
            }
        }
        out.push_str(line);
    }
    out
}

/// Whether stderr carries only lines of JSON.
static TALKS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on all messages are JSON, one object per line, like the log.
pub(crate) fn talk_json() {
    TALKS_JSON.store(true, Ordering::Relaxed);
}

/// Whether messages are JSON.
pub(crate) fn talks_json() -> bool {
    TALKS_JSON.load(Ordering::Relaxed)
}

/// Writes a message to stderr like [`talk`]. Programs also get its parts, those that are not null, as members.
pub(crate) fn talk_with(text: &str, parts: &Value) {
    if !talks_json() {
        return talk(text);
    }
    let mut told = as_json(text);
    for (name, value) in parts.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        told[name] = value.clone();
    }
    say(&visible_line(&told.to_string()));
}

/// Writes a message to stderr.
fn say(message: &str) {
    if is_new(&mut SAID.lock().unwrap_or_else(PoisonError::into_inner), message) {
        screen::print(&format!("{message}\n"));
    }
}

/// What was said already, while each message is said only once.
static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
/// How many messages are remembered.
const MOST_SAID: usize = 64;

/// Says each message only once, as long as this is on.
pub(crate) fn only_once(on: bool) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    *said = on.then(|| said.take().unwrap_or_default());
}

/// Whether a message was not said yet. The time of a message in JSON does not count.
fn is_new(said: &mut Option<HashSet<String>>, message: &str) -> bool {
    let Some(said) = said else { return true };
    if said.len() >= MOST_SAID {
        said.clear();
    }
    let mut told: Value = serde_json::from_str(message).unwrap_or_default();
    said.insert(match told.as_object_mut() {
        Some(members) => {
            members.remove("timestamp");
            told.to_string()
        }
        None => message.to_owned(),
    })
}

/// The message in the log's JSON form; its first word becomes the level.
fn as_json(line: &str) -> Value {
    let levels = [("error: ", "ERROR"), ("warning: ", "WARN"), ("hint: ", "INFO"), ("note: ", "INFO")];
    let found = levels.iter().find_map(|(word, level)| Some((*level, line.strip_prefix(word)?)));
    let (level, message) = found.unwrap_or(("INFO", line));
    json!({"timestamp": now(), "level": level, "message": message, "target": "bridgehead"})
}

fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// Whether stderr takes colours.
fn styled() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

/// Shows diagnostics with their carets. The renderer escapes text from files; only its own colours reach the terminal.
pub(crate) fn show(all: &[Diagnostic]) {
    if !talks_json() {
        return all.iter().for_each(|diagnostic| say(&format!("{}\n", diagnostic.render(styled()))));
    }
    for mut told in diagnostics(all) {
        told["level"] = json!(if told["severity"] == "error" { "ERROR" } else { "WARN" });
        told["timestamp"] = json!(now());
        say(&visible_line(&told.to_string()));
    }
}

/// Diagnostics for another process of this program, with the text that people see; as many as fit into `limit` bytes.
pub(crate) fn told(all: &[Diagnostic], limit: usize) -> Vec<Value> {
    let mut left = limit;
    let each = diagnostics(all).into_iter().zip(all).map(|(mut told, one)| {
        told["text"] = json!(one.render(false));
        told
    });
    let fits = |told: &Value| {
        let rest = left.checked_sub(told.to_string().len());
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    each.take_while(fits).collect()
}

/// Shows a warning that another process of this program has told.
pub(crate) fn show_told(told: &Value) {
    let mut told = told.as_object().cloned().unwrap_or_default();
    let (text, message) =
        (told.remove("text").unwrap_or_default(), told.remove("message").unwrap_or_default());
    match talks_json() {
        true => talk_with(&format!("warning: {}", message.as_str().unwrap_or_default()), &told.into()),
        false => relay(&format!("{}\n\n", text.as_str().unwrap_or_default())),
    }
}

/// Reports a wrong configuration: to people on stderr, to programs on stdout.
pub(crate) fn configuration_error(error: &ConfigError, as_json: bool) -> Exit {
    if as_json {
        let report = json!({"ok": false, "diagnostics": diagnostics(&error.0)});
        return json_data(&report, Exit::Configuration);
    }
    show(&error.0);
    Exit::Configuration
}

/// Diagnostics for programs.
pub(crate) fn diagnostics(all: &[Diagnostic]) -> Vec<Value> {
    all.iter()
        .map(|diagnostic| {
            let position = diagnostic.position();
            json!({
                "severity": match diagnostic.severity {
                    Severity::Error => "error",
                    Severity::Warning => "warning",
                },
                "message": diagnostic.message,
                "help": diagnostic.help,
                "file": diagnostic.file().map(|path| path.display().to_string()),
                "line": position.map(|(line, _)| line),
                "column": position.map(|(_, column)| column),
            })
        })
        .collect()
}

/// A table for stdout: as wide as the terminal at most, whole in a pipe.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    table::text(rows, table::stdout_width())
}

/// A table for stderr.
pub(crate) fn talk_table(rows: &[Vec<String>]) -> String {
    table::text(rows, table::stderr_width())
}

/// How many characters of a description a table on a terminal shows.
const DESCRIPTION: usize = 200;

/// A description for a table: on a terminal its beginning, in a pipe all of it, always on one line.
pub(crate) fn summary(text: &str) -> String {
    one_line(text, if table::stdout_width().is_some() { DESCRIPTION } else { usize::MAX })
}

/// A time of the gateway for people: with a space between day and hour.
pub(crate) fn time(told: &str) -> String {
    told.replacen('T', " ", 1)
}

/// "1 row", "2 rows".
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Text of a peer on one line, with control characters escaped, at most `limit` characters long.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut line = visible_line(&line).into_owned();
    if line.chars().count() > limit {
        line = line.chars().take(limit.saturating_sub(1)).chain(['…']).collect();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WIRE-3: no function here lets text of others control a terminal; data for programs stays unchanged.
    #[test]
    fn a_peers_text_cannot_draw_on_the_terminal() {
        assert_eq!(one_line("a\n  b\x1b[2Jc", 80), "a b\\u001b[2Jc");
        assert_eq!(for_reader("\u{9b}2J\r\n", false), "\u{9b}2J\r\n");
        assert_eq!(for_reader("\u{9b}2J\r\n", true), "\\u009b2J\r\n");
        assert_eq!(indented("error: a\nerror: b\n  c\n\nd"), "error: a\n  error: b\n  c\n\n  d");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }

    /// WIRE-3: characters that act are escapes in our JSON, which stays the same value.
    #[test]
    fn json_has_escapes() {
        let value = json!({"tool": "a\u{2028}b\u{202e}c\u{85}\u{e0001}\u{1b}é"});
        let line = visible_line(&value.to_string()).into_owned();
        assert_eq!(line, r#"{"tool":"a\u2028b\u202ec\u0085\udb40\udc01\u001bé"}"#);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
        let pretty = format!("{value:#}");
        assert_eq!(serde_json::from_str::<Value>(&visible_text(&pretty)).unwrap(), value);
    }

    /// JOIN-4: what is told to another process has the text for people, and is bounded.
    #[test]
    fn what_is_told_is_bounded() {
        let all = ["one", "two"].map(Diagnostic::error);
        let both = told(&all, 1000);
        assert_eq!((&both[1]["message"], &both[1]["text"]), (&json!("two"), &json!("error: two")));
        let size = both[0].to_string().len();
        assert_eq!(
            [0, size - 1, size, 2 * size - 1, 2 * size].map(|limit| told(&all, limit).len()),
            [0, 0, 1, 1, 2]
        );
    }

    /// JOIN-4: what was said already is recognised, also in JSON with another time, and what is remembered is bounded.
    #[test]
    fn a_message_that_was_said_already() {
        assert!(is_new(&mut None, "a") && is_new(&mut None, "a"));
        let mut said = Some(HashSet::new());
        let json = |time: &str, message: &str| json!({"timestamp": time, "message": message}).to_string();
        for message in ["a", "b", &json("1", "a"), &json("1", "b"), "1"] {
            assert!(is_new(&mut said, message), "{message}");
        }
        for message in ["a", &json("2", "a"), "1"] {
            assert!(!is_new(&mut said, message), "{message}");
        }
        for number in 0..2 * MOST_SAID {
            assert!(is_new(&mut said, &format!("number {number}")));
            assert!(said.as_ref().is_some_and(|said| said.len() <= MOST_SAID));
        }
    }
}
