//! Writing to people and programs.
//!
//! A reader that has gone (`bridgehead tools | head -1`) is no failure: whoever writes stops quietly.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use bridgehead::config::{ConfigError, Diagnostic, Severity};
use serde_json::{Value, json};

use super::exit::Exit;

/// Writes data to stdout. Gives the exit code to end with: `exit`, or failure if the data could not be
/// delivered to a reader that still wants it.
pub(crate) fn data(text: &str, exit: Exit) -> Exit {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| match text.ends_with('\n') {
        true => out.flush(),
        false => out.write_all(b"\n").and_then(|()| out.flush()),
    });
    match written {
        Ok(()) => exit,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit,
        Err(error) => {
            talk(&format!("error: cannot write the output: {error}"));
            Exit::Failure
        }
    }
}

/// Writes one line of many to stdout; says whether the reader still wants more.
pub(crate) fn stream(line: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// The same for JSON, indented.
pub(crate) fn json_data(value: &Value, exit: Exit) -> Exit {
    data(&format!("{value:#}"), exit)
}

/// Whether stderr has lines of JSON and nothing else.
static TALKS_JSON: AtomicBool = AtomicBool::new(false);

/// From here on all talk is JSON, one object a line, like the log.
pub(crate) fn talk_json() {
    TALKS_JSON.store(true, Ordering::Relaxed);
}

/// Writes a line to stderr. There is nowhere to report a failure to.
pub(crate) fn talk(line: &str) {
    let line = match TALKS_JSON.load(Ordering::Relaxed) {
        true => as_json(line).to_string(),
        false => line.to_owned(),
    };
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Talk as the log would have it: the word that it begins with is its level.
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

/// Shows diagnostics with their carets.
pub(crate) fn show(all: &[Diagnostic]) {
    if !TALKS_JSON.load(Ordering::Relaxed) {
        return all.iter().for_each(|diagnostic| talk(&format!("{}\n", diagnostic.render(styled()))));
    }
    for mut told in diagnostics(all) {
        told["level"] = json!(if told["severity"] == "error" { "ERROR" } else { "WARN" });
        told["timestamp"] = json!(now());
        let _ = writeln!(io::stderr().lock(), "{told}");
    }
}

/// Tells what is wrong with the configuration: to people on stderr, to programs on stdout.
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

/// Lines of columns, each as wide as its widest entry; the last one runs free.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// "1 row", "2 rows".
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Text of a peer on one line, without control characters, no longer than `limit` characters.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.retain(|character| !character.is_control());
    if line.chars().count() > limit {
        line = line.chars().take(limit.saturating_sub(1)).chain(['…']).collect();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(table(&[row(&["a", "bb", "c"]), row(&["aaa", "b", ""])]), "a    bb  c\naaa  b\n");
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn a_peers_text_cannot_draw_on_the_terminal() {
        assert_eq!(one_line("a\n  b\x1b[2Jc", 80), "a b[2Jc");
        assert_eq!(one_line("abcdef", 4), "abc…");
    }
}
