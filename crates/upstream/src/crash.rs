//! How a server's process came to its end, for people and for programs.

use std::fmt;

use bridgehead_process::{Breach, Exit};

/// How a server's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// Why, as one of a few words.
    pub reason: CrashReason,
    /// How, in words.
    pub status: String,
    /// The end of its error output, without secrets and control characters.
    pub stderr: String,
    /// How many processes of its tree had to be killed.
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
    /// It closed its output and went on running.
    Protocol,
    /// It answered nobody any more, and was ended for that.
    PeerTimeout,
    /// Its answer was larger than it may be.
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

impl Crash {
    /// What is known of a process that has ended, or, without an exit, has closed its output only.
    pub(crate) fn new(exit: Option<Exit>, breach: Option<Breach>, stderr: String, killed: u32) -> Self {
        let (reason, status) = match (breach, exit) {
            (Some(breach), _) => {
                let reason = match breach {
                    Breach::Memory { .. } => CrashReason::MemoryLimit,
                    Breach::Processes { .. } => CrashReason::ProcessLimit,
                };
                (reason, format!("the server was ended: {breach}"))
            }
            (None, Some(exit)) if exit.is_of_cpu_limit() => (
                CrashReason::CpuLimit,
                "the server was ended: it took more processor time than it may".to_owned(),
            ),
            (None, Some(exit)) => {
                let reason = if exit.code.is_some() { CrashReason::Exit } else { CrashReason::Signal };
                (reason, format!("the server ended with {exit}"))
            }
            (None, None) => (CrashReason::Protocol, "the server closed its output".to_owned()),
        };
        Self { reason, status, stderr, killed }
    }
}

impl Crash {
    /// One that is ended because it answered nobody any more.
    pub(crate) fn hangs(stderr: String) -> Self {
        let status =
            "the server did not answer another call, nor a probe after it, and is restarted".to_owned();
        Self { reason: CrashReason::PeerTimeout, status, stderr, killed: 0 }
    }
}

impl Crash {
    /// One that wrote too much where only messages belong.
    pub(crate) fn noise(bytes: u64) -> Self {
        let status = format!("the server was ended: {bytes} bytes on its standard output were no messages");
        Self { reason: CrashReason::OutputLimit, status, stderr: String::new(), killed: 0 }
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
        fn check(exit: Option<Exit>, breach: Option<Breach>, stderr: &str, reason: &str, text: &str) {
            let crash = Crash::new(exit, breach, stderr.to_owned(), 0);
            assert_eq!((crash.reason.as_str(), crash.to_string().as_str()), (reason, text));
        }
        let killed = Some(Exit { code: None, signal: Some(9) });
        check(
            Some(Exit { code: Some(3), signal: None }),
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
        let slow = Some(Exit { code: None, signal: Some(24) });
        check(slow, None, "", "cpu_limit", "the server was ended: it took more processor time than it may");
        check(None, None, "", "protocol", "the server closed its output");
        assert_eq!(Crash::hangs(String::new()).reason.as_str(), "peer_timeout");
        assert_eq!(CrashReason::OutputLimit.as_str(), "output_limit");
        assert_eq!(CrashReason::SandboxSetup.as_str(), "sandbox_setup");
        assert!(CrashReason::MemoryLimit.is_limit() && !CrashReason::Signal.is_limit());
    }
}
