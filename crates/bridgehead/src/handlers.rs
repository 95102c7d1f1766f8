//! Process-wide handling of panics and of the signals that ask for an end.
//!
//! Installed by a server's start, never by building one, and once however often it is asked for. The panic
//! hook writes one error line and never to stdout, which may belong to the protocol; it ends nothing. A
//! panic inside a tool handler or an audit sink becomes that call's error. Any other on the way of a request answers
//! that request and, where this handling is installed, ends the server as
//! [`RunError::Panicked`](crate::RunError::Panicked), as does one in a front's own task; one in the program around it is
//! the program's.

use std::io;
use std::sync::Once;

use tokio::signal::unix::{self, SignalKind};

/// A signal that asks for an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: a person pressed Ctrl-C.
    Interrupt,
    /// SIGTERM: a supervisor wants us to go.
    Terminate,
}

impl Signal {
    /// Its number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Interrupt => 2,
            Self::Terminate => 15,
        }
    }
}

/// The signals as they come in.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        // Neither ever gives `None`: that would mean that the runtime is gone, and with it whoever waits here.
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

/// Installs both kinds of handling; the runtime keeps one handler per signal for the whole process, so a
/// second call only listens too.
pub(crate) fn install() -> io::Result<Signals> {
    static HOOK: Once = Once::new();
    HOOK.call_once(hook_panics);
    Ok(Signals {
        interrupt: unix::signal(SignalKind::interrupt())?,
        terminate: unix::signal(SignalKind::terminate())?,
    })
}

fn hook_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        bridgehead_gateway::panics::note_backtrace();
        if tracing::enabled!(tracing::Level::ERROR) {
            let words = panic.payload_as_str().unwrap_or("no message");
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let thread = std::thread::current();
            tracing::error!(place, thread = thread.name().unwrap_or("unnamed"), "panic: {words}");
        } else {
            // Nobody listens to our lines; better the default words on stderr than silence.
            before(panic);
        }
    }));
}
