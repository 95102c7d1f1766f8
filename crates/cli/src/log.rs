//! Log lines go to stderr only, or to the file of a detached gateway, and every line passes the redactor. Text from servers, tools and clients stays within its
//! line and cannot control the terminal.
//!
//! Lines are never coloured. The redactor recognizes a secret by the name in front of it, and colour codes between name
//! and value would hide the name.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use bridgehead::config::{Environment, LogLevel};
use bridgehead_wire::{Redactor, visible_line};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::join::detached::LogFile;
use super::screen;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// What logs how a server starts, fails and is restarted.
const SUPERVISOR: &str = "bridgehead_upstream::server::supervisor";

/// Whether the user wants to see nothing.
static OFF: AtomicBool = AtomicBool::new(false);

/// Whether the user wants to see nothing: the level is `off`.
pub(crate) fn is_off() -> bool {
    OFF.load(Ordering::Relaxed)
}

/// Sends log lines to stderr from now on. The first of these sets the level: the option, `BRIDGEHEAD_LOG`, `RUST_LOG`,
/// the verb's usual level.
pub(crate) fn install(
    option: Option<LogLevel>,
    environment: &Environment,
    usual: LogLevel,
    format: LogFormat,
) {
    OFF.store(option.or(environment.log) == Some(LogLevel::Off), Ordering::Relaxed);
    let _ = OPTIONS.set((option, format));
    let directives = match (option.or(environment.log), environment.variable("RUST_LOG")) {
        (None, Some(directives)) if !directives.is_empty() => directives.to_owned(),
        (Some(level), _) => directives(level),
        // These verbs tell themselves what becomes of the servers that they start.
        (None, _) if usual == LogLevel::Warn => format!("warn,{SUPERVISOR}=off"),
        (None, _) => directives(usual),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(directives))
        .with_ansi(false)
        .with_writer(Redacted);
    // An error means that a subscriber is already installed; then it receives the lines.
    let _ = match format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// The options of the command line.
static OPTIONS: OnceLock<(Option<LogLevel>, LogFormat)> = OnceLock::new();

/// The options of the command line, for another process of this program.
pub(crate) fn options() -> Vec<String> {
    let (level, format) = OPTIONS.get().copied().unwrap_or((None, LogFormat::Text));
    let level = level.map(|level| ["--log-level".to_owned(), level.to_string()]);
    let format = (format == LogFormat::Json).then(|| ["--log-format", "json"].map(str::to_owned));
    level.into_iter().chain(format).flatten().collect()
}

/// Where lines go instead of stderr.
static FILE: OnceLock<Mutex<LogFile>> = OnceLock::new();

/// Sends log lines to a file instead of stderr.
pub(crate) fn to_file(file: LogFile) {
    drop(FILE.set(Mutex::new(file)));
}

/// Shows our own lines at `level`, and only warnings and errors of libraries.
fn directives(level: LogLevel) -> String {
    match level {
        LogLevel::Off | LogLevel::Error | LogLevel::Warn => level.to_string(),
        LogLevel::Info | LogLevel::Debug | LogLevel::Trace => format!("warn,bridgehead={level}"),
    }
}

/// The line without secrets, and with control characters escaped. A line of JSON stays equivalent JSON.
fn presentable(line: &str) -> String {
    let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
    format!("{}{end}", visible_line(&Redactor::default().text(line)))
}

/// Writes each line to stderr without its secrets, above live lines.
#[derive(Debug, Clone, Copy)]
struct Redacted;

impl Write for Redacted {
    /// The formatter hands over whole lines, never parts. If nobody reads stderr any more, the line is lost without an
    /// error: the formatter would try to report an error on stderr again.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = presentable(&text);
        match FILE.get() {
            Some(file) => drop(file.lock().unwrap_or_else(PoisonError::into_inner).write(text.as_bytes())),
            None => screen::print(&text),
        }
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

    /// WIRE-3: in either format a log line stays one line and cannot control a terminal, whatever text it quotes.
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
