//! An MCP server on standard input and output, or on a loopback port, that does what its script says, right or wrong.
//!
//! The script ([`bridgehead_testkit::Script`]) comes in the variable `MOCK_SCRIPT` or as the first argument. One thread
//! reads; anything that waits runs on its own thread, so calls run concurrently. Everything else is answered in the
//! order it came. The process ends with its standard input, or a minute later if the script says so.

mod carrier;
mod message;
mod output;
mod server;
mod tools;
mod transcript;

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_testkit::{SCRIPT_VARIABLE, Script};

use crate::server::Server;
use crate::transcript::Transcript;

/// How long a process that ignores the end of its input keeps running.
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
    let transcript = match script.transcript.as_deref().map(Transcript::open).transpose() {
        Ok(transcript) => transcript.unwrap_or_default(),
        Err(error) => {
            complain(&format!("the transcript cannot be opened: {error}"));
            return ExitCode::from(2);
        }
    };
    transcript.note(format!("--- started {}", std::process::id()).as_bytes());
    let server = Arc::new(Server::new(script));
    if let Some(carrier) = server.script.carrier {
        let Err(error) = carrier::serve(&server, carrier, &transcript);
        complain(&format!("cannot serve: {error}"));
        return ExitCode::from(1);
    }

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
            transcript.note(line);
            server.receive(line, &server.output);
        }
    }
    transcript.note(format!("--- eof {}", std::process::id()).as_bytes());

    if ignore_eof {
        std::thread::sleep(LONGEST_AFTERLIFE);
    }
    ExitCode::SUCCESS
}

fn complain(line: &str) {
    // A closed standard error must not end the process.
    let _ = writeln!(std::io::stderr(), "{line}");
}
