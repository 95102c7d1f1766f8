//! The gateway's end of the nursery, the process that shims are forked from; see [`shim`](crate::shim).
//!
//! There is at most one that is asked for new shims. It lives as long as somebody holds it, which every tree does,
//! and ends by itself when the gateway dies. One that fails is replaced by the next start; the trees that came from
//! it go on.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::message;

/// A running nursery; closing the socket ends it.
#[derive(Debug)]
pub(crate) struct Nursery {
    program: PathBuf,
    socket: UnixStream,
}

/// The one that is asked.
static CURRENT: Mutex<Weak<Nursery>> = Mutex::new(Weak::new());

impl Nursery {
    /// The running one, or a new one.
    pub(crate) fn of(program: &Path) -> io::Result<Arc<Self>> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nursery) = current.upgrade().filter(|nursery| nursery.program == program) {
            return Ok(nursery);
        }
        let nursery = Arc::new(Self::start(program)?);
        *current = Arc::downgrade(&nursery);
        Ok(nursery)
    }

    fn start(program: &Path) -> io::Result<Self> {
        let (socket, its_socket) = UnixStream::pair()?;
        #[expect(clippy::disallowed_methods, reason = "this is one of the places that start programs")]
        let mut command = std::process::Command::new(program);
        // It gets no environment: what a server's variables might do to a program is not meant for its keeper.
        command.arg0("bridgehead-shim").arg(message::ASKED).env_clear().process_group(0);
        // Only where coverage is measured: so that what runs in shims is counted.
        #[cfg(coverage)]
        command.envs(std::env::vars_os().filter(|(name, _)| name == "LLVM_PROFILE_FILE"));
        command.stdin(OwnedFd::from(its_socket)).stdout(Stdio::null()).stderr(Stdio::null());
        // Dropped, it is waited for in the background.
        drop(tokio::process::Command::from(command).kill_on_drop(false).spawn()?);
        Ok(Self { program: program.to_owned(), socket })
    }

    /// Asks for a shim with this control socket. That it was asked does not mean that there will be one; if there is
    /// none, the other end of the control socket is closed.
    ///
    /// `grouped` says that its tree wants a control group.
    pub(crate) fn ask(&self, control: &OwnedFd, grouped: bool) -> io::Result<()> {
        let descriptors = [control.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // There is space for exactly this.
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        // One that has not read hundreds of these does not read any more.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&[u8::from(grouped)])], &mut ancillary, flags)?;
        Ok(())
    }

    /// Asks it no more, as it does not work.
    pub(crate) fn retire(self: &Arc<Self>) {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ptr() == Arc::as_ptr(self) {
            *current = Weak::new();
        }
    }
}
