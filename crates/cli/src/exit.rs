//! The exit codes, in one place.

use std::process::ExitCode;

use bridgehead::{Ending, RunError, Signal, StartError};

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did its work, or stopped cleanly.
    Success,
    /// A tool or a server failed, or something else went wrong that has no code of its own.
    Failure,
    /// The command line is invalid.
    Usage,
    /// The server that was needed could not be reached.
    Unreachable,
    /// The gateway could not start in time; trying again may help.
    StartupTimeout,
    /// The configuration cannot be used.
    Configuration,
    /// A second signal ended it immediately.
    Forced(Signal),
}

impl Exit {
    /// The code that a shell sees.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::StartupTimeout => 75,
            Self::Configuration => 78,
            Self::Forced(signal) => 128 + signal.number(),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl From<&StartError> for Exit {
    fn from(error: &StartError) -> Self {
        match error {
            StartError::Timeout(_) => Self::StartupTimeout,
            StartError::Token(_) | StartError::Exposed(_) | StartError::Listener(_) => Self::Configuration,
            _ => Self::Failure,
        }
    }
}

impl From<&Result<Ending, RunError>> for Exit {
    fn from(ended: &Result<Ending, RunError>) -> Self {
        match ended {
            Ok(Ending::ClientGone | Ending::Signal(_)) => Self::Success,
            Ok(Ending::Forced(signal)) => Self::Forced(*signal),
            Err(_) => Self::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// SRV-2: 75 for a startup timeout, 78 for the configuration, 1 for any other fatal error and a panic, 0
    /// for a clean stop; after a second signal, the code of a process that the signal killed.
    #[test]
    fn codes() {
        assert_eq!(Exit::from(&StartError::Timeout(Duration::ZERO)).code(), 75);
        assert_eq!(Exit::Configuration.code(), 78);
        assert_eq!(Exit::from(&StartError::AlreadyStarted).code(), 1);
        assert_eq!(Exit::from(&Err(RunError::Panicked)).code(), 1);
        assert_eq!(Exit::from(&Ok(Ending::ClientGone)).code(), 0);
        assert_eq!(Exit::from(&Ok(Ending::Signal(Signal::Terminate))).code(), 0);
        assert_eq!(Exit::from(&Ok(Ending::Forced(Signal::Terminate))).code(), 143);
        assert_eq!(Exit::from(&Ok(Ending::Forced(Signal::Interrupt))).code(), 130);
    }
}
