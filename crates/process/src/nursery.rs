//! The gateway's end of the nursery, the process that shims are forked from; see [`shim`](crate::shim).
//!
//! At most one nursery is current and gets requests for new shims. Every tree holds its nursery. A nursery ends when the
//! last holder drops it, or by itself when the gateway dies. If a nursery fails, the next start replaces it, and the
//! trees that came from it go on.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::signal::unix::{SignalKind, signal};

use crate::message;
use crate::orphans::{self, Kind, Known};

/// A running nursery; closing the socket ends it.
#[derive(Debug)]
pub(crate) struct Nursery {
    program: PathBuf,
    socket: UnixStream,
    /// Its process id, if the system still had one for it.
    pid: Option<Pid>,
}

/// The nursery that gets new requests.
static CURRENT: Mutex<Weak<Nursery>> = Mutex::new(Weak::new());

impl Nursery {
    /// The current nursery, or a new one if this program has no nursery yet.
    pub(crate) fn of(program: &Path) -> io::Result<Arc<Self>> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nursery) = current.upgrade().filter(|nursery| nursery.program == program) {
            return Ok(nursery);
        }
        let nursery = Arc::new(Self::start(program)?);
        nursery.watch()?;
        *current = Arc::downgrade(&nursery);
        Ok(nursery)
    }

    fn start(program: &Path) -> io::Result<Self> {
        let (socket, its_socket) = UnixStream::pair()?;
        #[expect(clippy::disallowed_methods, reason = "this is one of the places that start programs")]
        let mut command = std::process::Command::new(program);
        // The nursery gets no environment, so that no variable changes how shims run.
        command.arg0("bridgehead-shim").arg(message::ASKED).env_clear().process_group(0);
        // Where coverage is measured, code that runs in shims must be counted too.
        #[cfg(coverage)]
        command.envs(std::env::vars_os().filter(|(name, _)| name == "LLVM_PROFILE_FILE"));
        command.stdin(OwnedFd::from(its_socket)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut known = Known::lock();
        // tokio reaps a dropped child in the background, while a runtime runs.
        let child = tokio::process::Command::from(command).kill_on_drop(false).spawn()?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        known.note(child.id().unwrap_or_default(), Kind::Started);
        Ok(Self { program: program.to_owned(), socket, pid })
    }

    /// Sees to it that this nursery does not stay stopped, for as long as it is used.
    fn watch(self: &Arc<Self>) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        let nursery = Arc::downgrade(self);
        tokio::spawn(async move {
            while children.recv().await.is_some() && nursery.strong_count() > 0 {
                orphans::look_after();
            }
        });
        Ok(())
    }

    /// Asks for a shim with this control socket. Success does not mean that a shim will exist: if the nursery cannot
    /// fork one, it closes its end of the control socket.
    ///
    /// `grouped` says that the tree wants a control group.
    pub(crate) fn ask(&self, control: &OwnedFd, grouped: bool) -> io::Result<()> {
        let descriptors = [control.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // Cannot fail: the buffer has space for exactly this.
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        // Does not wait: a nursery that has left hundreds of requests unread is stuck.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&[u8::from(grouped)])], &mut ancillary, flags)?;
        Ok(())
    }

    /// Sends no more requests to this nursery, because it does not work.
    pub(crate) fn retire(self: &Arc<Self>) {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ptr() == Arc::as_ptr(self) {
            *current = Weak::new();
        }
    }
}

impl Drop for Nursery {
    /// Ends the nursery, and reaps it: its last holder may go with the runtime, after which nobody else would.
    fn drop(&mut self) {
        let Some(pid) = self.pid else { return };
        let _ = self.socket.shutdown(Shutdown::Both);
        // A thread that cannot be started costs an entry in the table of processes until this program ends.
        let _ = std::thread::Builder::new().name("nursery".to_owned()).spawn(move || {
            // An error means that tokio was quicker.
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Known::lock().forget(pid.as_raw_pid().unsigned_abs());
        });
    }
}
