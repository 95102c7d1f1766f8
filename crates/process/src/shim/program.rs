//! The program of an order, prepared so far that the new process only has to make system calls to become it.
//!
//! The new process is a fork of the shim, and the shim may be a large program with much reserved memory. So the limits are
//! set last, when nothing allocates any more: in that process alone, and never in the shim.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::message::Order;
use crate::sys::{self, SignalMask};

/// A program that is about to run.
pub(super) struct Program {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    cwd: Option<PathBuf>,
    /// Its standard input, output and error.
    pipes: [OwnedFd; 3],
}

impl Program {
    /// Takes from the order what the program is called with.
    pub(super) fn new(order: &Order, pipes: [OwnedFd; 3]) -> io::Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
        let path = text(order.program.as_os_str().as_bytes())?;
        let given = order.args.iter().map(|argument| text(argument.as_bytes()));
        let args = std::iter::once(Ok(path.clone())).chain(given).collect::<Result<_, _>>()?;
        let variable =
            |(name, value): &(OsString, OsString)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat());
        let env = order.env.iter().map(variable).collect::<Result<_, _>>()?;
        Ok(Self { path, args, env, cwd: order.cwd.clone(), pipes })
    }

    /// Turns this process into the program, which hears the signals of `heard`. `limit` sets its limits. Returns only if that
    /// failed.
    pub(super) fn run(self, heard: &SignalMask, limit: impl FnOnce() -> io::Result<()>) -> io::Error {
        let Self { path, args, env, cwd, pipes: [stdin, stdout, stderr] } = self;
        let prepared = || -> io::Result<()> {
            rustix::stdio::dup2_stdin(&stdin)?;
            rustix::stdio::dup2_stdout(&stdout)?;
            rustix::stdio::dup2_stderr(&stderr)?;
            rustix::process::setpgid(None, None)?;
            if let Some(cwd) = &cwd {
                rustix::process::chdir(cwd)?;
            }
            Ok(())
        };
        if let Err(error) = prepared() {
            return error;
        }
        sys::restore_signals(heard);
        sys::execute(&path, &args, &env, limit)
    }
}
