//! Log lines: to stderr only, and none leaves without passing the redactor.
//!
//! They are never coloured. The redactor judges a value by the name in front of it, and colour codes
//! between the two would hide the name from it.

use std::io::{self, Write};

use bridgehead::config::{Environment, LogLevel};
use bridgehead_wire::Redactor;
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

/// Writes each line to stderr without its secrets.
#[derive(Debug, Clone, Copy)]
struct Redacted;

impl Write for Redacted {
    /// The formatter hands over whole lines, never parts of one. A stderr that nobody reads any more costs
    /// us the line and nothing else: told of the failure, the formatter would try to report it there.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let _ = io::stderr().lock().write_all(Redactor::default().text(&text).as_bytes());
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
