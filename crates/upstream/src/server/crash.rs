//! How a server's process came to its end, for people and for programs.

use std::fmt;

use bridgehead_process::{Breach, Exit};

use crate::link::LinkError;

/// How a server's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// Why, as one of a few words.
    pub reason: CrashReason,
    /// How, in words.
    pub status: String,
    /// The end of its error output, without secrets and control characters.
    pub stderr: String,
    /// How many processes of its tree had to be killed: those that outlived it, or all that there were when it was ended.
    pub killed: u32,
}

/// Why a server's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashReason {
    /// It ended with a status of its own.
    Exit,
    /// A signal ended it.
    Signal,
    /// Its tree had more memory than it may, or died with nearly all of it.
    MemoryLimit,
    /// Its tree had more processes than it may.
    ProcessLimit,
    /// It took more processor time than it may.
    CpuLimit,
    /// It closed its output and went on running, or wrote an answer that is none.
    Protocol,
    /// It answered nobody any more, or read nothing while answers to its own requests piled up, and was ended for that.
    PeerTimeout,
    /// Its answer was larger than it may be, or as much of its output was no message.
    OutputLimit,
    /// It could not be limited or confined as asked.
    SandboxSetup,
}

impl CrashReason {
    /// As programs read it.
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

    /// Whether the same call would meet the same limit again.
    #[must_use]
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::MemoryLimit | Self::ProcessLimit | Self::CpuLimit | Self::OutputLimit)
    }
}

/// Why a process is ended that would go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// It closed its output.
    #[error("the server closed its output")]
    Closed,
    /// It answers nobody any more.
    #[error("the server did not answer another call, nor a probe after it, and is restarted")]
    Hangs,
    /// It sent requests and did not read the answers, so many bytes of which wait.
    #[error(
        "the server was ended: it sends requests and does not read the answers, {0} bytes of which wait for it"
    )]
    Unread(usize),
    /// So many bytes came that were no messages.
    #[error("the server was ended: {0} bytes on its standard output were no messages")]
    Noise(u64),
    /// Its answer was larger than it may be.
    #[error("the server was ended: {0}")]
    TooLarge(LinkError),
    /// What it wrote as an answer is none.
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
    /// What is known of a process that has ended.
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
                "the server was ended: it took more processor time than it may".to_owned(),
            ),
            None => {
                let reason = if exit.code.is_some() { CrashReason::Exit } else { CrashReason::Signal };
                (reason, format!("the server ended with {exit}"))
            }
        };
        Self { reason, status, stderr, killed }
    }

    /// One that is ended with all of its tree, which has so many processes.
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
        check(slow, None, "", "cpu_limit", "the server was ended: it took more processor time than it may");
        assert_eq!(CrashReason::SandboxSetup.as_str(), "sandbox_setup");
        assert!(CrashReason::MemoryLimit.is_limit() && !CrashReason::Signal.is_limit());
    }

    /// BOX-3: whatever a process is ended for, its error has the reason, the words, the last words and the tree's size.
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
