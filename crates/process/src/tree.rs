//! Keeps a program and everything below it through a shim: the gateway's end of the control socket.
//!
//! The shim holds the tree together, waits for its members and kills them. Here its reports are read, and it is
//! told to end by closing the socket, which also happens when the gateway dies. The shim itself is never
//! killed as long as it answers, because its tree would be free then.
//!
//! If a server kills its shim, the server's group and what still descends from the server is killed from here, and
//! what had left both before by the nursery. Only a server that kills the nursery as well can leave something.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tracing::warn;

use crate::child::{AFTER_KILL, AFTER_TERM, Pipes};
use crate::message::{self, Birth, REPORT, Report, Stage};
use crate::nursery::Nursery;
use crate::view::ProcessView;
use crate::{Breach, Effective, Exit, SpawnError, Spec, descent, paths};

/// How long the shim may take to report the start. It takes a millisecond; longer means that it hangs.
const STARTING: Duration = Duration::from_secs(10);

/// Why a shim is not understood.
const STRANGE: &str = "it is of another version than this program";

/// A running program and its tree.
#[derive(Debug)]
pub(crate) struct Tree {
    program: Birth,
    shim: Birth,
    /// What the shim came from, kept for the next.
    _nursery: Arc<Nursery>,
    control: tokio::net::UnixStream,
    /// A report that is not yet complete.
    report: [u8; REPORT],
    filled: usize,
    effective: Effective,
    breach: Option<Breach>,
    killed: u32,
    exit: Option<Exit>,
    gone: bool,
}

/// A shim that has its order, and has not answered yet. Dropping it ends the shim and what it may have started.
#[derive(Debug)]
pub(crate) struct Starting<'spec> {
    spec: &'spec Spec,
    program: PathBuf,
    shim_path: PathBuf,
    nursery: Arc<Nursery>,
    control: UnixStream,
    pipes: Pipes,
}

/// Why nothing was started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// The nursery is gone, or does not fork any more.
    NoShim(SpawnError),
    /// Another shim would not help.
    Refused(SpawnError),
}

impl From<NotStarted> for SpawnError {
    fn from(reason: NotStarted) -> Self {
        match reason {
            NotStarted::NoShim(error) | NotStarted::Refused(error) => error,
        }
    }
}

impl<'spec> Starting<'spec> {
    /// Asks for a shim and gives it the order.
    pub(crate) fn begin(spec: &'spec Spec, program: PathBuf, shim_path: PathBuf) -> Result<Self, NotStarted> {
        let other = |source| NotStarted::Refused(SpawnError::Other { program: spec.program.clone(), source });
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
        let failed = |source| SpawnError::Shim { shim: shim_path.clone(), source: silence(source) };
        let nursery = Nursery::of(&shim_path).map_err(|error| NotStarted::Refused(failed(error)))?;
        let asked = nursery.ask(&its_control.into(), spec.limits.is_of_tree()).and_then(|()| {
            // It waits in the socket until the shim is there.
            send_order(&control, &order, &[stdin.into(), stdout.into(), stderr.into()])
        });
        if let Err(error) = asked {
            nursery.retire();
            return Err(NotStarted::NoShim(failed(error)));
        }
        Ok(Self { spec, program, shim_path, nursery, control, pipes })
    }

    /// Waits for the answer, which takes a millisecond or two, with this thread blocked.
    pub(crate) fn finish_blocking(mut self) -> Result<(Tree, Pipes), NotStarted> {
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
    pub(crate) async fn finish(self) -> Result<(Tree, Pipes), NotStarted> {
        let mut report = [0; REPORT];
        let read = async {
            self.control.set_nonblocking(true)?;
            let mut control = tokio::net::UnixStream::from_std(self.control.try_clone()?)?;
            match timeout(STARTING, control.read_exact(&mut report)).await {
                Ok(read) => read.map(|_| control),
                Err(_) => Err(io::ErrorKind::WouldBlock.into()),
            }
        };
        let read = read.await;
        self.settle(read, report)
    }

    fn settle(
        self,
        read: io::Result<tokio::net::UnixStream>,
        report: [u8; REPORT],
    ) -> Result<(Tree, Pipes), NotStarted> {
        let shim_failed = |source| SpawnError::Shim { shim: self.shim_path, source: silence(source) };
        let control = match read {
            Ok(control) => control,
            Err(error) => {
                self.nursery.retire();
                return Err(NotStarted::NoShim(shim_failed(error)));
            }
        };
        let (program, shim, effective) = match Report::decode(report) {
            Some(Report::Started { program, shim, effective }) => (program, shim, effective),
            Some(Report::Failed { stage, errno }) => {
                let source = io::Error::from_raw_os_error(errno);
                return Err(NotStarted::Refused(match stage {
                    Stage::Program => self.spec.refused(self.program, source),
                    Stage::Limits => {
                        let program = self.spec.program.clone();
                        SpawnError::Limits { program, reason: source.to_string() }
                    }
                    Stage::Ungrouped(lack) => {
                        SpawnError::Ungrouped { program: self.spec.program.clone(), why: lack.why() }
                    }
                    Stage::Confinement(feature) => SpawnError::Confinement {
                        program: self.spec.program.clone(),
                        feature: feature.name(),
                        reason: source.to_string(),
                        way_out: feature.way_out(),
                    },
                    Stage::Path(which) => {
                        let files = self.spec.confinement.as_ref().and_then(|asked| asked.files.as_ref());
                        let index = usize::try_from(which).unwrap_or(usize::MAX);
                        let path = files.and_then(|files| files.each().nth(index)).unwrap_or(Path::new(""));
                        let source = paths::explain(rustix::io::Errno::from_raw_os_error(errno));
                        let program = self.spec.program.clone();
                        SpawnError::Path { program, path: path.to_owned(), source }
                    }
                    Stage::Keeping => shim_failed(source),
                    Stage::Order => shim_failed(io::Error::other(STRANGE)),
                }));
            }
            Some(Report::Breached(_) | Report::Exited { .. } | Report::Gone { .. }) | None => {
                return Err(NotStarted::Refused(shim_failed(io::Error::other(STRANGE))));
            }
        };
        let _nursery = self.nursery;
        let tree = Tree {
            program,
            shim,
            _nursery,
            control,
            report: [0; REPORT],
            filled: 0,
            effective,
            breach: None,
            killed: 0,
            exit: None,
            gone: false,
        };
        Ok((tree, self.pipes))
    }
}

impl Tree {
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid
    }

    /// The program, as others may look at it.
    pub(crate) fn view(&self) -> ProcessView {
        ProcessView::below_shim(self.program, self.shim, self.effective)
    }

    /// How its limits are kept.
    pub(crate) fn effective(&self) -> Effective {
        self.effective
    }

    /// What it had too much of, once it is gone, and how many were killed.
    pub(crate) fn end(&self) -> (Option<Breach>, u32) {
        (self.breach, self.killed)
    }

    /// The exit of the program, once it and its tree are gone.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit.filter(|_| self.gone)
    }

    /// The pids of the program and of all below the shim, the shim itself not among them.
    pub(crate) fn members(&self) -> Vec<u32> {
        let root = if self.shim.is_there() { self.shim.pid } else { self.program.pid };
        descent::below(root).into_iter().map(|member| member.pid).collect()
    }

    /// Waits until the program has ended and nothing of its tree is left. May be dropped and called again.
    pub(crate) async fn gone(&mut self) -> Exit {
        while !self.gone {
            match self.next_report().await {
                Some(Report::Exited { status }) => self.exit = Some(ExitStatus::from_raw(status).into()),
                Some(Report::Breached(breach)) => self.breach = Some(breach),
                Some(Report::Gone { left, killed }) => {
                    self.killed = killed;
                    if left > 0 {
                        // Stuck in the kernel, or no longer ours to signal.
                        warn!(
                            left,
                            "processes of a server could not be ended (`bridgehead explain something-is-left-behind`)"
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
                self.kill_shim();
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
        if !self.program.is_there() {
            return;
        }
        let pid = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw);
        let below_shim = descent::parent(self.program.pid) == Some(self.shim.pid);
        let root = if below_shim { self.shim.pid } else { self.program.pid };
        for member in descent::below(root) {
            if let Some(pid) = pid(member.pid) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        if let Some(pid) = pid(self.program.pid) {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// Kills a shim that does not answer any more. What is below it comes to the nursery, which does the rest.
    fn kill_shim(&self) {
        let Some(pid) = i32::try_from(self.shim.pid).ok().and_then(Pid::from_raw) else { return };
        // The handle is of whoever has the pid first; if that is the shim, it is dead or the shim's.
        if let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            && self.shim.is_there()
        {
            let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
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
