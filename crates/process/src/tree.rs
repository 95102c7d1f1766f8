//! Keeps a program and everything below it through a shim: the gateway's end of the control socket.
//!
//! The shim holds the tree together, waits for its members and kills them. Here its reports are read, and it is
//! told to end by closing the socket, which also happens when the gateway dies. The shim itself is never
//! killed as long as it answers, because its tree would be free then.
//!
//! If a server kills its shim, the server's group and what still descends from the server is killed from here.
//! What had left both before (a daemon that forked twice and leads a session of its own) escapes then.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tracing::warn;

use crate::child::{AFTER_KILL, AFTER_TERM, Pipes};
use crate::message::{self, REPORT, Report, Stage};
use crate::{Exit, SpawnError, Spec, descent};

/// How long the shim may take to report the start. It takes a millisecond; longer means that it hangs.
const STARTING: Duration = Duration::from_secs(10);

/// Why a shim is not understood.
const STRANGE: &str = "it is of another version than this program";

/// A running program and its tree.
#[derive(Debug)]
pub(crate) struct Tree {
    pid: u32,
    /// When the program was started, so that it is not taken for a later owner of its pid.
    born: u32,
    /// Is reaped in the background when it is dropped before its end was seen.
    shim: tokio::process::Child,
    control: tokio::net::UnixStream,
    /// A report that is not yet complete.
    report: [u8; REPORT],
    filled: usize,
    exit: Option<Exit>,
    gone: bool,
}

/// A shim that has its order, and has not answered yet. Dropping it ends the shim and what it may have started.
#[derive(Debug)]
pub(crate) struct Starting<'spec> {
    spec: &'spec Spec,
    program: PathBuf,
    shim_path: PathBuf,
    shim: tokio::process::Child,
    control: UnixStream,
    pipes: Pipes,
}

impl<'spec> Starting<'spec> {
    /// Starts the shim and gives it the order.
    pub(crate) fn begin(spec: &'spec Spec, program: PathBuf, shim_path: PathBuf) -> Result<Self, SpawnError> {
        let other = |source| SpawnError::Other { program: spec.program.clone(), source };
        let order = message::order(spec, &program).ok_or_else(|| {
            other(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an argument or variable has a zero byte in it",
            ))
        })?;
        let (stdin, our_stdin) = io::pipe().map_err(other)?;
        let (our_stdout, stdout) = io::pipe().map_err(other)?;
        let (our_stderr, stderr) = io::pipe().map_err(other)?;
        let pipes = Pipes {
            stdin: tokio::process::ChildStdin::from_std(OwnedFd::from(our_stdin).into()).map_err(other)?,
            stdout: tokio::process::ChildStdout::from_std(OwnedFd::from(our_stdout).into()).map_err(other)?,
            stderr: tokio::process::ChildStderr::from_std(OwnedFd::from(our_stderr).into()).map_err(other)?,
        };
        let (control, its_control) = UnixStream::pair().map_err(other)?;
        let shim = start_shim(&shim_path, its_control, &spec.program)
            .and_then(|shim| {
                send_order(&control, &order, &[stdin.into(), stdout.into(), stderr.into()])?;
                Ok(shim)
            })
            .map_err(|error| SpawnError::Shim { shim: shim_path.clone(), source: silence(error) })?;
        Ok(Self { spec, program, shim_path, shim, control, pipes })
    }

    /// Waits for the answer, which takes a millisecond or two, with this thread blocked.
    pub(crate) fn finish_blocking(mut self) -> Result<(Tree, Pipes), SpawnError> {
        let mut report = [0; REPORT];
        let read = self
            .control
            .set_read_timeout(Some(STARTING))
            .and_then(|()| self.control.read_exact(&mut report))
            .and_then(|()| self.control.set_nonblocking(true))
            .and_then(|()| tokio::net::UnixStream::from_std(self.control.try_clone()?));
        self.settle(read, report)
    }

    /// Waits for the answer.
    pub(crate) async fn finish(self) -> Result<(Tree, Pipes), SpawnError> {
        let mut report = [0; REPORT];
        let read = async {
            self.control.set_nonblocking(true)?;
            let mut control = tokio::net::UnixStream::from_std(self.control.try_clone()?)?;
            control.read_exact(&mut report).await?;
            Ok(control)
        };
        let read = read.await;
        self.settle(read, report)
    }

    fn settle(
        self,
        read: io::Result<tokio::net::UnixStream>,
        report: [u8; REPORT],
    ) -> Result<(Tree, Pipes), SpawnError> {
        let shim_failed = |source| SpawnError::Shim { shim: self.shim_path, source: silence(source) };
        let control = match read {
            Ok(control) => control,
            Err(error) => return Err(shim_failed(error)),
        };
        let (pid, born) = match Report::decode(report) {
            Some(Report::Started { pid, born }) => (pid, born),
            Some(Report::Failed { stage, errno }) => {
                let source = io::Error::from_raw_os_error(errno);
                return Err(match stage {
                    Stage::Program => self.spec.refused(self.program, source),
                    Stage::Keeping => shim_failed(source),
                    Stage::Order => shim_failed(io::Error::other(STRANGE)),
                });
            }
            Some(Report::Exited { .. } | Report::Gone { .. }) | None => {
                return Err(shim_failed(io::Error::other(STRANGE)));
            }
        };
        let shim = self.shim;
        let tree = Tree { pid, born, shim, control, report: [0; REPORT], filled: 0, exit: None, gone: false };
        Ok((tree, self.pipes))
    }
}

impl Tree {
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// When the program was started.
    pub(crate) fn born(&self) -> u32 {
        self.born
    }

    /// The pid of the shim, until it is reaped.
    pub(crate) fn shim_pid(&self) -> Option<u32> {
        self.shim.id()
    }

    /// The exit of the program, once it and its tree are gone.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit.filter(|_| self.gone)
    }

    /// The pids of the program and of all below the shim, the shim itself not among them.
    pub(crate) fn members(&self) -> Vec<u32> {
        self.shim.id().map(descent::below).unwrap_or_default().into_iter().map(|member| member.pid).collect()
    }

    /// Waits until the program has ended and nothing of its tree is left. May be dropped and called again.
    pub(crate) async fn gone(&mut self) -> Exit {
        while !self.gone {
            match self.next_report().await {
                Some(Report::Exited { status }) => self.exit = Some(ExitStatus::from_raw(status).into()),
                Some(Report::Gone { left, .. }) => {
                    if left > 0 {
                        // Stuck in the kernel, or no longer ours to signal.
                        warn!(
                            left,
                            "processes of a server could not be ended (docs/troubleshooting.md#something-is-left-behind)"
                        );
                    }
                    self.gone = true;
                }
                Some(Report::Started { .. } | Report::Failed { .. }) => {}
                None => {
                    self.kill_from_here();
                    self.gone = true;
                }
            }
        }
        // It ends with its last report; failing to wait means that somebody else has.
        let _ = self.shim.wait().await;
        *self.exit.get_or_insert(Exit::UNKNOWN)
    }

    /// SIGTERM to the tree, a second to obey, and SIGKILL.
    pub(crate) async fn terminate(&mut self) -> Exit {
        let grace = u32::try_from(AFTER_TERM.as_millis()).unwrap_or(u32::MAX);
        // A shim that does not read any more has gone, which the wait will tell.
        let _ =
            rustix::net::send(&self.control, &grace.to_le_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        self.gone_within(AFTER_TERM + AFTER_KILL).await
    }

    pub(crate) async fn kill(&mut self) -> Exit {
        // The end of our half is what the shim obeys; its reports still come.
        let _ = rustix::net::shutdown(&self.control, Shutdown::Write);
        self.gone_within(AFTER_KILL).await
    }

    /// Somebody who stopped the shim, or the kernel, may keep it from obeying.
    async fn gone_within(&mut self, patience: Duration) -> Exit {
        match timeout(patience, self.gone()).await {
            Ok(exit) => exit,
            Err(_) => {
                self.kill_from_here();
                let _ = self.shim.start_kill();
                Exit::KILLED
            }
        }
    }

    /// The next report; nothing once the shim is gone. May be dropped and called again.
    async fn next_report(&mut self) -> Option<Report> {
        loop {
            self.control.readable().await.ok()?;
            match self.control.try_read(&mut self.report[self.filled..]) {
                Ok(0) => return None,
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
            if self.filled == REPORT {
                self.filled = 0;
                return Report::decode(self.report);
            }
        }
    }

    /// Kills what can be found of a tree whose shim does not do it.
    fn kill_from_here(&self) {
        // As long as the program has this pid, so has its group.
        if descent::born(self.pid) != Some(self.born) {
            return;
        }
        let pid = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw);
        let root = self.shim.id().filter(|&shim| descent::parent(self.pid) == Some(shim)).unwrap_or(self.pid);
        for member in descent::below(root) {
            if let Some(pid) = pid(member.pid) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        if let Some(pid) = pid(self.pid) {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The socket closes with us, and the shim does the rest, if there still is one.
        if !self.gone {
            let mut reports = [0; 4 * REPORT];
            while let Ok(count) = rustix::io::read(&self.control, &mut reports) {
                if count == 0 {
                    self.kill_from_here();
                    break;
                }
            }
        }
    }
}

/// Starts the shim with the control socket as its input. It gets no environment: what the server's variables
/// might do to a program is not meant for its keeper.
fn start_shim(path: &Path, control: UnixStream, server: &str) -> io::Result<tokio::process::Child> {
    #[expect(clippy::disallowed_methods, reason = "this is one of the places that start programs")]
    let mut command = std::process::Command::new(path);
    // The program's name serves whoever looks at a list of processes; its arguments may be secret.
    command.arg0("bridgehead-shim").arg(message::ASKED).arg(server);
    command.env_clear().process_group(0);
    // Only where coverage is measured: so that what runs in the shim is counted.
    #[cfg(coverage)]
    command.envs(std::env::vars_os().filter(|(name, _)| name == "LLVM_PROFILE_FILE"));
    command.stdin(OwnedFd::from(control)).stdout(Stdio::null()).stderr(Stdio::null());
    tokio::process::Command::from(command).kill_on_drop(false).spawn()
}

/// Sends the descriptors with the first bytes of the order.
fn send_order(control: &UnixStream, order: &[u8], descriptors: &[OwnedFd; 3]) -> io::Result<()> {
    let descriptors = descriptors.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // There is space for exactly this.
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = rustix::net::sendmsg(control, &[IoSlice::new(order)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut control = control;
    control.set_write_timeout(Some(STARTING))?;
    control.write_all(order.get(sent..).unwrap_or_default())
}

/// Says what it means that talking to the shim failed.
fn silence(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            io::Error::other("it ended at once")
        }
        io::ErrorKind::WouldBlock => io::Error::other("it does not answer"),
        _ => error,
    }
}
