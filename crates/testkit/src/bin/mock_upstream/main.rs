//! An MCP server on standard input and output that does what its script says, right or wrong.
//!
//! The script ([`bridgehead_testkit::Script`]) comes in the variable `MOCK_SCRIPT` or as the
//! first argument. One thread reads; whatever waits does so on a thread of its own, so calls
//! run side by side. What does not wait is answered in the order it came. The process ends
//! with its standard input, and where a script forbids that, a minute later.

mod message;
mod output;
mod server;
mod tools;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_testkit::{SCRIPT_VARIABLE, Script};

use crate::server::Server;

/// How long a process that ignores the end of its input lives on.
const LONGEST_AFTERLIFE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let Some(text) = std::env::var(SCRIPT_VARIABLE).ok().or_else(|| std::env::args().nth(1)) else {
        complain("no script: set MOCK_SCRIPT or give it as the first argument");
        return ExitCode::from(2);
    };
    let script: Script = match serde_json::from_str(&text) {
        Ok(script) => script,
        Err(error) => {
            complain(&format!("the script cannot be read: {error}"));
            return ExitCode::from(2);
        }
    };

    for line in &script.stderr {
        complain(line);
    }
    let ignore_eof = script.ignore_eof;
    let mut transcript = match script.transcript.as_deref().map(open).transpose() {
        Ok(transcript) => transcript,
        Err(error) => {
            complain(&format!("the transcript cannot be opened: {error}"));
            return ExitCode::from(2);
        }
    };
    let mut note = |line: &[u8]| {
        if let Some(file) = &mut transcript {
            // One write per line: several processes may append to the same file.
            let _ = file.write_all(&[line, b"\n"].concat());
        }
    };
    note(format!("--- started {}", std::process::id()).as_bytes());

    let server = Arc::new(Server::new(script));
    server.output.litter();
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let line = line.trim_ascii();
        if !line.is_empty() {
            note(line);
            server.receive(line);
        }
    }
    note(format!("--- eof {}", std::process::id()).as_bytes());

    if ignore_eof {
        std::thread::sleep(LONGEST_AFTERLIFE);
    }
    ExitCode::SUCCESS
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn complain(line: &str) {
    // A closed standard error is no reason to end.
    let _ = writeln!(std::io::stderr(), "{line}");
}
