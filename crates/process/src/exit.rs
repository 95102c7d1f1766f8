//! How a program ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;

/// How a child ended: with an exit code, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The code it returned.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Exit {
    /// The exit of a child that was sent SIGKILL and could not be waited for.
    pub(crate) const KILLED: Self = Self { code: None, signal: Some(Signal::KILL.as_raw()) };

    /// The exit of a child whose status could not be read.
    pub(crate) const UNKNOWN: Self = Self { code: None, signal: None };

    /// Whether the CPU time limit ended it.
    #[must_use]
    pub fn is_of_cpu_limit(&self) -> bool {
        self.signal == Some(Signal::XCPU.as_raw())
    }

    /// Whether the program ended with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal() }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(formatter, "exit status {code}"),
            (None, Some(signal)) => match NAMES.iter().find(|(named, _)| named.as_raw() == signal) {
                Some((_, name)) => write!(formatter, "signal {signal} ({name})"),
                None => write!(formatter, "signal {signal}"),
            },
            (None, None) => formatter.write_str("unknown exit status"),
        }
    }
}

/// The signals that end programs in practice.
const NAMES: [(Signal, &str); 13] = [
    (Signal::HUP, "SIGHUP"),
    (Signal::INT, "SIGINT"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::ILL, "SIGILL"),
    (Signal::TRAP, "SIGTRAP"),
    (Signal::ABORT, "SIGABRT"),
    (Signal::BUS, "SIGBUS"),
    (Signal::FPE, "SIGFPE"),
    (Signal::KILL, "SIGKILL"),
    (Signal::SEGV, "SIGSEGV"),
    (Signal::PIPE, "SIGPIPE"),
    (Signal::TERM, "SIGTERM"),
    (Signal::SYS, "SIGSYS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_readable() {
        #[track_caller]
        fn check(code: Option<i32>, signal: Option<i32>, expected: &str) {
            assert_eq!(Exit { code, signal }.to_string(), expected);
        }
        check(Some(0), None, "exit status 0");
        check(Some(3), None, "exit status 3");
        check(None, Some(9), "signal 9 (SIGKILL)");
        check(None, Some(11), "signal 11 (SIGSEGV)");
        check(None, Some(64), "signal 64");
        check(None, None, "unknown exit status");
        assert_eq!(Exit::KILLED.to_string(), "signal 9 (SIGKILL)");
    }
}
