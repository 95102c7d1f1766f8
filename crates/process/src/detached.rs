//! Programs that outlive whoever starts them: the one exception to the rule that no child outlives its handle.
//!
//! A detached program gets none of our descriptors: no input, and two pipes to its starter, which it is expected to give up
//! once it serves. It leaves our process session by itself, with [`leave_session`], because only a program can do that for
//! itself without a fork of its starter.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{ChildStderr, ChildStdout};

use crate::Exit;

/// A detached program, as its starter sees it. Dropping this leaves the program running.
#[derive(Debug)]
pub struct Detached {
    child: tokio::process::Child,
}

/// Starts `program`, by its absolute path, in `folder` with the environment of this process.
///
/// Must be called within a tokio runtime that has its I/O driver enabled.
///
/// # Errors
/// If it cannot be started.
pub fn detach(
    program: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    folder: &Path,
) -> io::Result<Detached> {
    // Whoever started this process may have left descriptors open in it.
    #[cfg(target_os = "linux")]
    crate::sys::close_on_exec_from(3)?;
    #[expect(clippy::disallowed_methods, reason = "this is one of the places that start programs")]
    let mut command = std::process::Command::new(program);
    command.args(arguments).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(target_os = "linux")]
    let mut known = crate::orphans::Known::lock();
    let child = tokio::process::Command::from(command).kill_on_drop(false).spawn()?;
    #[cfg(target_os = "linux")]
    known.note(child.id().unwrap_or_default(), crate::orphans::Kind::Started);
    Ok(Detached { child })
}

impl Detached {
    /// Its pid; `None` once its end is known.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// What it writes to standard output; `None` after the first call.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// What it writes to standard error; `None` after the first call.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If the system does not tell its status.
    pub async fn wait(&mut self) -> io::Result<Exit> {
        self.child.wait().await.map(Exit::from)
    }
}

/// Leaves the process session and group of whoever started this process, so that neither a terminal nor a signal to that group
/// ends it.
///
/// # Errors
/// If this process leads a process group.
pub fn leave_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Gives up standard output and standard error: from now on nothing that is written there goes anywhere.
///
/// # Errors
/// If `/dev/null` cannot be opened.
pub fn give_up_output() -> io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok(())
}
