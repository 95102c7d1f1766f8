//! Forks shims and reaps them. Ends when the gateway has closed its socket and all shims are gone.

use std::collections::BTreeSet;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{DumpableBehavior, Signal, WaitOptions};

use super::cgroup::Ground;
use super::killing::{self, DYING, ROUND};
use super::{keeping, own_users};
use crate::sys::{self, Alone, Fork, SignalMask};
use crate::ungrouped::Ungrouped;

/// What a process does after the nursery's loop.
enum Role {
    /// Becomes a shim, with the signal mask for its server and the means to enforce the limits of its tree.
    Shim(SignalMask, Option<Means>),
    /// Ends.
    Done,
}

/// What the system offers to enforce the limits of a tree.
pub(super) struct Means {
    /// Where trees have control groups, or why they have none.
    pub(super) ground: Result<Ground, Ungrouped>,
    /// Whether trees can have a user namespace of their own, in which their processes are counted.
    pub(super) own_users: bool,
}

pub(super) fn main() -> i32 {
    match Nursery::open().and_then(Nursery::run) {
        Ok(Role::Shim(heard, means)) => keeping::main(&heard, means),
        Ok(Role::Done) => 0,
        Err(_) => 1,
    }
}

struct Nursery {
    alone: Alone,
    children: OwnedFd,
    heard: SignalMask,
    /// The pid of the gateway, which has started this process.
    gateway: u32,
    /// What enforces the limits of trees. `None` until the first tree with limits.
    means: Option<Means>,
    /// The shims that have not ended.
    shims: BTreeSet<u32>,
    /// Until when the processes that a dead shim left behind are killed.
    sweeping: Option<Instant>,
}

impl Nursery {
    fn open() -> io::Result<Self> {
        let alone = Alone::check()?;
        // Old kernels cannot do this. It is only a second defence, because the gateway leaks no descriptor on purpose.
        let _ = sys::close_on_exec_from(3);
        let children = sys::ends_of_children()?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        // So that a server cannot attach to its shim with a debugger and change it. Shims inherit this.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let _ = rustix::thread::set_name(c"shim-nursery");
        let gateway = rustix::process::getppid().map_or(0, |parent| parent.as_raw_pid().unsigned_abs());
        Ok(Self {
            alone,
            children,
            heard: sys::block_signals(),
            gateway,
            means: None,
            shims: BTreeSet::new(),
            sweeping: None,
        })
    }

    fn run(mut self) -> io::Result<Role> {
        let gateway = io::stdin();
        let mut connected = true;
        loop {
            let anybody = self.reap();
            if !connected && !anybody {
                return Ok(Role::Done);
            }
            self.sweep();
            let timeout = self.sweeping.and_then(|_| Timespec::try_from(ROUND).ok());
            let mut sources =
                [PollFd::new(&self.children, PollFlags::IN), PollFd::new(&gateway, PollFlags::IN)];
            let count = if connected { 2 } else { 1 };
            // After an interrupted sleep the loop checks everything again anyway.
            if poll(&mut sources[..count], timeout.as_ref()).is_err() {
                continue;
            }
            let [ended, asked] = [0, 1].map(|index: usize| !sources[index].revents().is_empty());
            if ended {
                // One signal may stand for the end of many children; `reap` waits for all of them.
                let _ = rustix::io::read(&self.children, &mut [0_u8; 1024]);
            }
            if asked {
                match receive(gateway.as_fd()) {
                    Ok(Some((control, grouped))) => {
                        if grouped && self.means.is_none() {
                            let ground = Ground::prepare(self.gateway);
                            let own_users = ground.is_err() && own_users::work(&self.alone);
                            self.means = Some(Means { ground, own_users });
                        }
                        if let Some(role) = self.fork(&control)? {
                            return Ok(role);
                        }
                    }
                    Ok(None) => {}
                    Err(_) => connected = false,
                }
            }
        }
    }

    /// Forks a shim for this control socket. Returns its role in the new process, and `None` in the nursery. If the fork
    /// fails, the caller closes the socket, which tells the gateway.
    fn fork(&mut self, control: &OwnedFd) -> io::Result<Option<Role>> {
        match sys::fork(&self.alone) {
            Ok(Fork::Parent { child }) => {
                self.shims.insert(child);
                Ok(None)
            }
            Ok(Fork::Child) => {
                // Replaces the nursery's own socket. Returning drops the nursery's other descriptors.
                rustix::stdio::dup2_stdin(control)?;
                Ok(Some(Role::Shim(self.heard, self.means.take())))
            }
            Err(_) => Ok(None),
        }
    }

    /// Reaps all children that have ended. False if none is left.
    ///
    /// A shim that has been stopped keeps nothing any more. Only its server can have done that. It is killed, so that the gateway
    /// hears of it and the tree ends.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if status.stopped() => {
                    if self.shims.contains(&pid.as_raw_pid().unsigned_abs()) {
                        let _ = rustix::process::kill_process(pid, Signal::KILL);
                    }
                }
                Ok(Some((pid, status))) => {
                    let shim = self.shims.remove(&pid.as_raw_pid().unsigned_abs());
                    if shim && status.exit_status() != Some(0) {
                        self.sweeping = Some(Instant::now() + DYING);
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Kills what dead shims have left behind: processes below us that are neither a shim nor below one.
    fn sweep(&mut self) {
        let Some(until) = self.sweeping else { return };
        if let Some(Means { ground: Ok(ground), .. }) = &self.means {
            ground.sweep();
        }
        if killing::kill(&self.shims).is_empty() || Instant::now() >= until {
            self.sweeping = None;
        }
    }
}

/// Receives the control socket of the next shim, and whether its tree wants a control group. An error if the gateway has
/// closed its socket.
fn receive(gateway: std::os::fd::BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, bool)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut asked = [0];
    let buffers = &mut [IoSliceMut::new(&mut asked)];
    let received = rustix::net::recvmsg(gateway, buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(Errno::PIPE.into());
    }
    let control = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(control.map(|control| (control, asked == [1])))
}
