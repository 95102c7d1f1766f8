//! Log lines: to stderr only, and none leaves without passing the redactor. What servers, tools and clients say in one
//! stays in that one line and draws nothing on a terminal.
//!
//! They are never coloured. The redactor judges a value by the name in front of it, and colour codes
//! between the two would hide the name from it.

use std::io::{self, Write};

use bridgehead::config::{Environment, LogLevel};
use bridgehead_wire::{Redactor, visible_line};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Sends log lines to stderr from here on. What is said first wins: the option, `BRIDGEHEAD_LOG`, `RUST_LOG`,
/// the verb's usual level.
pub(crate) fn install(
    option: Option<LogLevel>,
    environment: &Environment,
    usual: LogLevel,
    format: LogFormat,
) {
    let directives = match (option.or(environment.log), environment.variable("RUST_LOG")) {
        (None, Some(directives)) if !directives.is_empty() => directives.to_owned(),
        (level, _) => directives(level.unwrap_or(usual)),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(directives))
        .with_ansi(false)
        .with_writer(Redacted);
    // An error means that a subscriber is there already; then lines go where it sends them.
    let _ = match format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// Our own lines at `level`, those of the libraries only where something is wrong.
fn directives(level: LogLevel) -> String {
    match level {
        LogLevel::Off | LogLevel::Error | LogLevel::Warn => level.to_string(),
        LogLevel::Info | LogLevel::Debug | LogLevel::Trace => format!("warn,bridgehead={level}"),
    }
}

/// A line as it may leave: without secrets, then without what is more than text. In JSON that is the same JSON.
fn presentable(line: &str) -> String {
    let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
    format!("{}{end}", visible_line(&Redactor::default().text(line)))
}

/// Writes each line to stderr without its secrets.
#[derive(Debug, Clone, Copy)]
struct Redacted;

impl Write for Redacted {
    /// The formatter hands over whole lines, never parts of one. A stderr that nobody reads any more costs
    /// us the line and nothing else: told of the failure, the formatter would try to report it there.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let _ = io::stderr().lock().write_all(presentable(&text).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Redacted {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WIRE-3: whatever a line quotes, it is one line, and nothing in it acts on a terminal; in either format.
    #[test]
    fn a_line_is_one_line() {
        #[track_caller]
        fn check(line: &str, expected: &str) {
            assert_eq!(presentable(line), expected);
        }
        check("INFO ready server=a\n", "INFO ready server=a\n");
        check(
            "WARN tool=x\nERROR forged \x1b[2J\u{9b}1m\n",
            "WARN tool=x\\nERROR forged \\u001b[2J\\u009b1m\n",
        );
        check("{\"message\":\"\u{202e}x\"}\n", "{\"message\":\"\\u202ex\"}\n");
        check("no end", "no end");
    }
}
