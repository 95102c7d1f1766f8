//! Ends what is left behind when a server kills the processes that keep it.
//!
//! A server that is not confined runs as the gateway's user, so it can kill or stop its shim and the nursery. Stopping them is
//! no better than killing them: whoever keeps a tree and is found stopped is killed. The nursery sees to its shims; this module
//! sees to the nursery and, in a program that [adopts](adopt_orphans) what is left behind, to the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::descent;

/// Whether this process adopts what its descendants leave behind.
static ADOPTS: AtomicBool = AtomicBool::new(false);

/// The children of this process that are not orphans.
static KNOWN: Mutex<BTreeMap<u32, Kind>> = Mutex::new(BTreeMap::new());

/// Why a child is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This process has started it, and the runtime reaps it.
    Started,
    /// It is the shim of a tree. It becomes a child of this process if its nursery dies.
    Shim,
}

/// Makes this process the parent of those whose parents die, if a server has killed the nursery as well as its shim, so that they
/// are found and killed, as long as the runtime runs. For a program whose only children come from this crate: every other child
/// is taken for an orphan.
///
/// Must be called within a tokio runtime that has its I/O driver enabled.
///
/// # Errors
/// If the system refuses that.
pub fn adopt_orphans() -> io::Result<()> {
    let mut children = signal(SignalKind::child())?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    ADOPTS.store(true, Ordering::Relaxed);
    tokio::spawn(async move {
        while children.recv().await.is_some() {
            look_after();
        }
    });
    Ok(())
}

/// The known children. Whoever starts one holds this until it has [noted](Known::note) it.
pub(crate) struct Known(MutexGuard<'static, BTreeMap<u32, Kind>>);

impl Known {
    pub(crate) fn lock() -> Self {
        Self(KNOWN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn note(&mut self, pid: u32, kind: Kind) {
        self.0.insert(pid, kind);
    }

    pub(crate) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }
}

/// Kills the keepers among the children of this process that have been stopped, and its orphans. Call it whenever a child has ended
/// or stopped.
pub(crate) fn look_after() {
    let known = Known::lock();
    for (pid, kind) in known.0.iter() {
        let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) else { continue };
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(_)) = rustix::process::waitid(WaitId::Pid(pid), stopped) {
            // It is our child, and is only reaped once it has ended, so the pid is still its own.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        if *kind == Kind::Shim {
            // An error means that the nursery lives and does this.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
    if !ADOPTS.load(Ordering::Relaxed) {
        return;
    }
    let me = std::process::id();
    let mut orphans = Vec::new();
    descent::visit(me, &known.0.keys().copied().collect::<BTreeSet<_>>(), |member| {
        orphans.push(member);
        std::ops::ControlFlow::Continue(())
    });
    for member in orphans {
        let Some(pid) = i32::try_from(member.pid).ok().and_then(Pid::from_raw) else { continue };
        // Those further down become our children as soon as their parents are dead, and the system tells us of that.
        if member.parent == me {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}
