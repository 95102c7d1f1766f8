//! The exit codes, in one place.

use std::process::ExitCode;

use bridgehead::{Ending, RunError, StartError, StopSignal};

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
    Forced(StopSignal),
}

impl Exit {
    /// All of them, in the order of their codes.
    pub(crate) const ALL: [Self; 8] = [
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::Unreachable,
        Self::StartupTimeout,
        Self::Configuration,
        Self::Forced(StopSignal::Interrupt),
        Self::Forced(StopSignal::Terminate),
    ];

    /// In a few words, for the help of the program.
    const fn short(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Usage => "usage",
            Self::Unreachable => "not reachable",
            Self::StartupTimeout => "start too slow",
            Self::Configuration => "configuration",
            Self::Forced(StopSignal::Interrupt) => "Ctrl-C",
            Self::Forced(StopSignal::Terminate) => "terminated",
        }
    }

    /// What it means, for the pages.
    const fn meaning(self) -> &'static str {
        match self {
            Self::Success => "The command did its work, or stopped cleanly.",
            Self::Failure => {
                "A tool, a server or a check failed, or something went wrong that has no code of its own."
            }
            Self::Usage => {
                "The command line is invalid, or names a tool, prompt, resource, server or topic that does not exist."
            }
            Self::Unreachable => "No gateway is running, or the server that was needed could not be reached.",
            Self::StartupTimeout => "The gateway could not start in time; trying again may help.",
            Self::Configuration => "The configuration or the environment cannot be used.",
            Self::Forced(StopSignal::Interrupt) => {
                "Ctrl-C (SIGINT) ended the command before its work was done."
            }
            Self::Forced(StopSignal::Terminate) => "SIGTERM ended the command before its work was done.",
        }
    }

    /// All codes on one line, for the help of the program.
    pub(crate) fn line() -> String {
        let each: Vec<String> =
            Self::ALL.iter().map(|exit| format!("{} {}", exit.code(), exit.short())).collect();
        format!("Exit codes: {}.", each.join(", "))
    }

    /// All codes as a table of a page.
    pub(crate) fn page() -> String {
        let rows = Self::ALL.iter().map(|exit| format!("| {} | {} |\n", exit.code(), exit.meaning()));
        format!("| code | meaning |\n|---|---|\n{}", rows.collect::<String>())
    }

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

impl Exit {
    /// The exit that another process of this program ended with; any other code is a failure.
    pub(crate) fn of_code(code: Option<i32>) -> Self {
        let known = [Self::Usage, Self::Unreachable, Self::StartupTimeout, Self::Configuration];
        known.into_iter().find(|exit| code == Some(exit.code().into())).unwrap_or(Self::Failure)
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
            StartError::Token(_)
            | StartError::Exposed(_)
            | StartError::Listener(_)
            | StartError::WithoutEffect(_) => Self::Configuration,
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

    /// JOIN-8: the table has every code once, in order, each with its own words; the program's help has the same codes.
    #[test]
    fn the_table_is_complete() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 75, 78, 130, 143]);
        let page = Exit::page();
        assert_eq!(page.lines().count(), 2 + Exit::ALL.len());
        let mut meanings: Vec<&str> = Exit::ALL.iter().map(|exit| exit.meaning()).collect();
        meanings.dedup();
        assert_eq!(meanings.len(), Exit::ALL.len());
        for exit in Exit::ALL {
            let row = format!("| {} | {} |", exit.code(), exit.meaning());
            assert!(page.lines().any(|line| line == row), "{page}");
        }
        assert_eq!(
            Exit::line(),
            "Exit codes: 0 success, 1 failure, 2 usage, 3 not reachable, 75 start too slow, 78 configuration, 130 Ctrl-C, \
             143 terminated."
        );
    }

    /// SRV-2: 75 for a startup timeout, 78 for the configuration, 1 for any other fatal error and a panic, 0
    /// for a clean stop; after a second signal, the code of a process that the signal killed.
    #[test]
    fn codes() {
        assert_eq!(Exit::from(&StartError::Timeout(Duration::ZERO)).code(), 75);
        assert_eq!(Exit::Configuration.code(), 78);
        assert_eq!(Exit::from(&StartError::AlreadyStarted).code(), 1);
        assert_eq!(Exit::from(&Err(RunError::Panicked)).code(), 1);
        assert_eq!(Exit::from(&Ok(Ending::ClientGone)).code(), 0);
        for (code, exit) in
            [(78, Exit::Configuration), (75, Exit::StartupTimeout), (3, Exit::Unreachable), (2, Exit::Usage)]
        {
            assert_eq!(Exit::of_code(Some(code)), exit);
        }
        assert_eq!(
            [Exit::of_code(Some(0)), Exit::of_code(None)],
            [Exit::Failure; 2],
            "it should not have ended"
        );
        assert_eq!(Exit::from(&Ok(Ending::Signal(StopSignal::Terminate))).code(), 0);
        assert_eq!(Exit::from(&Ok(Ending::Forced(StopSignal::Terminate))).code(), 143);
        assert_eq!(Exit::from(&Ok(Ending::Forced(StopSignal::Interrupt))).code(), 130);
    }
}
