//! Process-wide handling of panics and of the signals that ask for shutdown.
//!
//! Starting a server installs it, building one does not. It is installed once, however many servers start. The panic hook
//! writes one error line, never to stdout, which may belong to the protocol; the hook itself ends nothing.
//!
//! A panic inside a tool handler or an audit sink becomes that call's error. Any other panic while a request is handled
//! answers that request with an error. If this handling is installed, such a panic, or one in a front's own task, ends the
//! server as [`RunError::Panicked`](crate::RunError::Panicked). A panic in the surrounding program is left to that program.

use std::io;
use std::sync::Once;

use tokio::signal::unix::{self, SignalKind};

/// A signal that asks for shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGINT: a person pressed Ctrl-C.
    Interrupt,
    /// SIGTERM: a process manager asks for shutdown.
    Terminate,
}

impl StopSignal {
    /// Its number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Interrupt => 2,
            Self::Terminate => 15,
        }
    }
}

/// Receives the signals.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    /// The next signal.
    pub(crate) async fn next(&mut self) -> StopSignal {
        // Neither ever returns `None`: that would mean that the runtime, and so this task, is gone.
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
        }
    }
}

/// Installs both kinds of handling. The runtime keeps one handler per signal for the whole process, so a second call only
/// adds a listener.
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
            // No subscriber takes our lines, so the previous hook reports the panic.
            before(panic);
        }
    }));
}
