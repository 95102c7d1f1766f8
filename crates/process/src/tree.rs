//! The gateway's end of the control socket of a shim, which keeps a program and its descendants.
//!
//! The shim holds the tree together, reaps its processes and kills them. This module reads its reports, and ends the
//! tree by closing the socket, which also happens when the gateway dies. A shim that answers is never killed, because
//! its tree would then be uncontrolled.
//!
//! If a server kills its shim, this module kills the server's process group and its descendants. The nursery kills the
//! processes that had left both; if it was killed too, a program that adopts orphans does ([`orphans`](crate::orphans)).

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
use crate::orphans::{Kind, Known};
use crate::view::ProcessView;
use crate::{Breach, Effective, Exit, SpawnError, Spec, descent, paths};

/// How long the shim may take to report the start. Normally that takes a millisecond; after this time it hangs.
const STARTING: Duration = Duration::from_secs(10);

/// Why the reports of a shim cannot be decoded.
const STRANGE: &str = "it is of another version than this program";

/// A running program and its tree.
#[derive(Debug)]
pub(crate) struct Tree {
    program: Birth,
    shim: Birth,
    /// The nursery that the shim came from, kept alive for the next start.
    _nursery: Arc<Nursery>,
    control: tokio::net::UnixStream,
    /// The report that is being read, of which `filled` bytes have arrived.
    report: [u8; REPORT],
    filled: usize,
    effective: Effective,
    breach: Option<Breach>,
    killed: u32,
    exit: Option<Exit>,
    gone: bool,
}

/// A shim that has its order and has not answered yet. Dropping it ends the shim and what it may have started.
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
                "an argument, variable or path contains a zero byte",
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
            // The order waits in the socket until the shim reads it.
            send_order(&control, &order, &[stdin.into(), stdout.into(), stderr.into()])
        });
        if let Err(error) = asked {
            nursery.retire();
            return Err(NotStarted::NoShim(failed(error)));
        }
        Ok(Self { spec, program, shim_path, nursery, control, pipes })
    }

    /// Waits for the answer and blocks this thread, for a millisecond or two.
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
                    Stage::Order => shim_failed(io::Error::other(message::not_taken(errno))),
                }));
            }
            Some(Report::Breached(_) | Report::Exited { .. } | Report::Gone { .. }) | None => {
                return Err(NotStarted::Refused(shim_failed(io::Error::other(STRANGE))));
            }
        };
        let _nursery = self.nursery;
        Known::lock().note(shim.pid, Kind::Shim);
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

    /// A view of the program for code that does not own it.
    pub(crate) fn view(&self) -> ProcessView {
        ProcessView::below_shim(self.program, self.shim, self.effective)
    }

    /// How its limits are enforced.
    pub(crate) fn effective(&self) -> Effective {
        self.effective
    }

    /// The limit that it exceeded, if any, and how many processes were killed; known once it is gone.
    pub(crate) fn end(&self) -> (Option<Breach>, u32) {
        (self.breach, self.killed)
    }

    /// The exit of the program, once it and its tree are gone.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit.filter(|_| self.gone)
    }

    /// The pids of the program and of all processes below the shim, without the shim itself.
    pub(crate) fn members(&self) -> Vec<u32> {
        let root = if self.shim.is_there() { self.shim.pid } else { self.program.pid };
        descent::below(root).into_iter().map(|member| member.pid).collect()
    }

    /// Waits until the program has ended and its tree is gone. May be dropped and called again.
    pub(crate) async fn gone(&mut self) -> Exit {
        while !self.gone {
            match self.next_report().await {
                Some(report) => self.heard(report),
                None => self.take_over(),
            }
        }
        *self.exit.get_or_insert(Exit::UNKNOWN)
    }

    /// Resolves when the shim has ended without its tree, which is then killed from here. Never resolves for a shim that ends its
    /// tree. May be dropped and called again.
    pub(crate) async fn abandoned(&mut self) {
        while !self.gone {
            match self.next_report().await {
                Some(report) => self.heard(report),
                None => return self.take_over(),
            }
        }
        std::future::pending::<()>().await;
    }

    fn heard(&mut self, report: Report) {
        match report {
            Report::Exited { status } => self.exit = Some(ExitStatus::from_raw(status).into()),
            Report::Breached(breach) => self.breach = Some(breach),
            Report::Gone { left, killed } => {
                self.killed = killed;
                if left > 0 {
                    // They hang in the kernel, or belong to another user now.
                    warn!(
                        left,
                        "processes of a server could not be ended (`bridgehead explain something-is-left-behind`)"
                    );
                }
                self.gone = true;
            }
            Report::Started { .. } | Report::Failed { .. } => {}
        }
    }

    /// Ends the tree of a shim that is gone.
    fn take_over(&mut self) {
        warn!(
            pid = self.program.pid,
            "the shim of a server was killed; its processes are ended (`bridgehead explain something-is-left-behind`)"
        );
        self.kill_from_here();
        self.gone = true;
    }

    /// Sends SIGTERM to the tree, waits a second, and sends SIGKILL.
    pub(crate) async fn terminate(&mut self) -> Exit {
        let grace = u32::try_from(AFTER_TERM.as_millis()).unwrap_or(u32::MAX);
        // Sending fails only if the shim is gone, which the wait below notices.
        let _ =
            rustix::net::send(&self.control, &grace.to_le_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        self.gone_within(AFTER_TERM + AFTER_KILL).await
    }

    pub(crate) async fn kill(&mut self) -> Exit {
        // The shim kills the tree when our half of the socket closes; we can still read its reports.
        let _ = rustix::net::shutdown(&self.control, Shutdown::Write);
        self.gone_within(AFTER_KILL).await
    }

    /// Waits for the end up to `patience`, then kills the tree and the shim from here. A stopped shim, or one that hangs in
    /// the kernel, does not react.
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

    /// The next report; `None` once the shim is gone. May be dropped and called again.
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

    /// Kills all processes that can be found of a tree whose shim does not do it.
    fn kill_from_here(&self) {
        // As long as the program exists, its pid and the id of its group are valid.
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

    /// Kills a shim that does not answer any more. The nursery adopts what is below it and kills that too.
    fn kill_shim(&self) {
        let Some(pid) = i32::try_from(self.shim.pid).ok().and_then(Pid::from_raw) else { return };
        // The handle is opened before the check: if the shim still has the pid, the handle is the shim's or a dead one's.
        if let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            && self.shim.is_there()
        {
            let _ = rustix::process::pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        Known::lock().forget(self.shim.pid);
        // Dropping closes the socket, and the shim kills the tree. If the shim is already gone, it is killed from here.
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
    // Cannot fail: the buffer has space for exactly this.
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = rustix::net::sendmsg(control, &[IoSlice::new(order)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut control = control;
    control.set_write_timeout(Some(STARTING))?;
    control.write_all(order.get(sent..).unwrap_or_default())
}

/// Explains an error of the control socket.
fn silence(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            io::Error::other("it ended at once")
        }
        io::ErrorKind::WouldBlock => io::Error::other("it does not answer"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WORD-4: a shim that gets an order of another release starts nothing, and reports its own release.
    #[tokio::test]
    async fn a_shim_refuses_orders_of_another_release() {
        let shim = crate::keeper::chosen().expect("the tests build the shim");
        let nursery = Nursery::of(&shim).unwrap();
        let spec = Spec {
            program: "true".to_owned(),
            args: Vec::new(),
            env: std::collections::BTreeMap::new(),
            cwd: None,
            limits: crate::Limits::default(),
            confinement: None,
        };
        let mut order = message::order(&spec, Path::new("/bin/true")).unwrap();
        order[0] ^= 1;
        let (mut control, its_control) = UnixStream::pair().unwrap();
        nursery.ask(&its_control.into(), false).unwrap();
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        send_order(&control, &order, &[null(), null(), null()]).unwrap();
        control.set_read_timeout(Some(STARTING)).unwrap();
        let mut report = [0; REPORT];
        control.read_exact(&mut report).unwrap();
        let refused = Report::Failed { stage: Stage::Order, errno: message::RELEASE };
        assert_eq!(Report::decode(report), Some(refused));
    }
}
