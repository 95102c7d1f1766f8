//! The relay as a helper process: one remote server, on stdin and stdout.

use std::io::Write;

use bridgehead_upstream::relay::{self, Task};

/// Runs as the relay and does not return, if this process was started as one. Otherwise remembers that this program can be.
pub(super) fn main_if_asked() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == relay::VERB)
        && let Some(told) = std::env::var_os(relay::VARIABLE)
    {
        let (status, reason) = match relay::told(&told.to_string_lossy()) {
            Some(task) => be_relay(task),
            None => (1, Some(format!("{} does not name a server to reach", relay::VARIABLE))),
        };
        if let Some(reason) = reason {
            // The gateway that started this relay reads its stderr; a failed write is ignored.
            let _ = writeln!(std::io::stderr(), "{reason}");
        }
        std::process::exit(status);
    }
    if let Ok(program) = std::env::current_exe() {
        relay::use_relay(program);
    }
}

/// Relays until the input ends or the server is lost. Returns the exit status, and why it is not 0.
fn be_relay(task: Task) -> (i32, Option<String>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return (1, Some(format!("cannot start the runtime of a relay: {error}"))),
    };
    let ended = runtime.block_on(relay::carry::carry(task, tokio::io::stdin(), tokio::io::stdout()));
    // A read of stdin may still wait, and would be waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => (0, None),
        Err(lost) => (lost.kind.status(), Some(lost.to_string())),
    }
}
