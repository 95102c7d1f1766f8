//! How a server's process ended, for people and for programs.

use std::fmt;

use bridgehead_process::{Breach, Exit};

use crate::link::LinkError;

/// How a server's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The reason, as a code.
    pub reason: CrashReason,
    /// The same as text.
    pub status: String,
    /// The end of its error output, without secrets and control characters.
    pub stderr: String,
    /// How many processes of its tree had to be killed: those that outlived it, or the whole tree when it was
    /// ended.
    pub killed: u32,
}

/// Why a server's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashReason {
    /// It exited with a status.
    Exit,
    /// A signal ended it.
    Signal,
    /// Its tree used more memory than its limit, or died close to it.
    MemoryLimit,
    /// Its tree had more processes than its limit.
    ProcessLimit,
    /// It used more processor time than its limit.
    CpuLimit,
    /// It closed its output but kept running, or wrote a malformed answer.
    Protocol,
    /// It stopped answering, or did not read while answers to its own requests piled up, and was ended for that.
    PeerTimeout,
    /// Its answer, or the rest of its output that was not messages, was larger than its limit.
    OutputLimit,
    /// It could not be limited or confined as asked.
    SandboxSetup,
}

impl CrashReason {
    /// The code that programs read.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Signal => "signal",
            Self::MemoryLimit => "memory_limit",
            Self::ProcessLimit => "process_limit",
            Self::CpuLimit => "cpu_limit",
            Self::Protocol => "protocol",
            Self::PeerTimeout => "peer_timeout",
            Self::OutputLimit => "output_limit",
            Self::SandboxSetup => "sandbox_setup",
        }
    }

    /// Whether the same call would reach the same limit again.
    #[must_use]
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::MemoryLimit | Self::ProcessLimit | Self::CpuLimit | Self::OutputLimit)
    }
}

/// Why a process that would keep running is ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// It closed its output.
    #[error("the server closed its output")]
    Closed,
    /// It stopped answering.
    #[error("the server did not answer another call or the probe after it, and is restarted")]
    Hangs,
    /// It sent requests but did not read the answers; this many bytes of answers are waiting.
    #[error(
        "the server was ended: it sends requests and does not read the answers; {0} bytes of them are waiting"
    )]
    Unread(usize),
    /// This many bytes arrived that were not messages.
    #[error("the server was ended: {0} bytes on its standard output were not messages")]
    Noise(u64),
    /// Its answer was larger than the limit.
    #[error("the server was ended: {0}")]
    TooLarge(LinkError),
    /// It wrote a malformed answer.
    #[error("the server was ended: {0}")]
    Violation(String),
}

impl Fault {
    const fn reason(&self) -> CrashReason {
        match self {
            Self::Closed | Self::Violation(_) => CrashReason::Protocol,
            Self::Hangs | Self::Unread(_) => CrashReason::PeerTimeout,
            Self::Noise(_) | Self::TooLarge(_) => CrashReason::OutputLimit,
        }
    }
}

impl Crash {
    /// The crash of a process that has ended by itself or by a limit.
    pub(crate) fn new(exit: Exit, breach: Option<Breach>, stderr: String, killed: u32) -> Self {
        let (reason, status) = match breach {
            Some(breach) => {
                let reason = match breach {
                    Breach::Memory { .. } => CrashReason::MemoryLimit,
                    Breach::Processes { .. } => CrashReason::ProcessLimit,
                };
                (reason, format!("the server was ended: {breach}"))
            }
            None if exit.is_of_cpu_limit() => (
                CrashReason::CpuLimit,
                "the server was ended: it exceeded its processor time limit".to_owned(),
            ),
            None => {
                let reason = if exit.code.is_some() { CrashReason::Exit } else { CrashReason::Signal };
                (reason, format!("the server ended with {exit}"))
            }
        };
        Self { reason, status, stderr, killed }
    }

    /// The crash of a process that is ended with its whole tree of `killed` processes.
    pub(crate) fn of(fault: &Fault, stderr: String, killed: u32) -> Self {
        Self { reason: fault.reason(), status: fault.to_string(), stderr, killed }
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.status)?;
        if self.stderr.is_empty() { Ok(()) } else { write!(formatter, "; its stderr ends: {}", self.stderr) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_says_why_and_how() {
        #[track_caller]
        fn check(exit: Exit, breach: Option<Breach>, stderr: &str, reason: &str, text: &str) {
            let crash = Crash::new(exit, breach, stderr.to_owned(), 0);
            assert_eq!((crash.reason.as_str(), crash.to_string().as_str()), (reason, text));
        }
        let killed = Exit { code: None, signal: Some(9) };
        check(
            Exit { code: Some(3), signal: None },
            None,
            "boom",
            "exit",
            "the server ended with exit status 3; its stderr ends: boom",
        );
        check(killed, None, "", "signal", "the server ended with signal 9 (SIGKILL)");
        let memory = Some(Breach::Memory { bytes: 65 << 20 });
        check(
            killed,
            memory,
            "",
            "memory_limit",
            "the server was ended: it reached its memory limit (it had 65 MB)",
        );
        let processes = Some(Breach::Processes { count: 9 });
        check(
            killed,
            processes,
            "",
            "process_limit",
            "the server was ended: it exceeded its process limit (it had 9)",
        );
        let slow = Exit { code: None, signal: Some(24) };
        check(slow, None, "", "cpu_limit", "the server was ended: it exceeded its processor time limit");
        assert_eq!(CrashReason::SandboxSetup.as_str(), "sandbox_setup");
        assert!(CrashReason::MemoryLimit.is_limit() && !CrashReason::Signal.is_limit());
    }

    /// BOX-3: whatever a process is ended for, its error has the reason, the text, the end of stderr and the tree's
    /// size.
    #[test]
    fn one_that_is_ended_says_why_and_how_many_went() {
        #[track_caller]
        fn check(fault: &Fault, reason: &str, words: &str) {
            let crash = Crash::of(fault, "boom".to_owned(), 3);
            assert_eq!((crash.reason.as_str(), crash.killed), (reason, 3));
            assert!(crash.status.contains(words), "{crash}");
            assert!(crash.to_string().ends_with("; its stderr ends: boom"), "{crash}");
        }
        check(&Fault::Closed, "protocol", "closed its output");
        check(&Fault::Violation("it answered twice".to_owned()), "protocol", "was ended: it answered twice");
        check(&Fault::Hangs, "peer_timeout", "did not answer another call");
        check(&Fault::Noise(7), "output_limit", "7 bytes");
        let large = LinkError::TooLarge { bytes: 9, limit: 8 };
        check(&Fault::TooLarge(large), "output_limit", "9 bytes, more than the limit of 8");
    }
}
