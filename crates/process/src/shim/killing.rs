//! Ends the processes below this one, however fast they multiply.
//!
//! A tree that starts processes faster than they can be found would outrun whoever kills them one by one. So the tree is
//! first stopped: each process gets SIGSTOP when it is found, before its children are looked for. What is stopped starts
//! nothing, so the search comes to an end, and then all of them are killed.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::descent::{self, Descendant};

/// How long processes may take to die after SIGKILL. A process that takes longer hangs in the kernel, or belongs to
/// another user and could not be signalled.
pub(super) const DYING: Duration = Duration::from_secs(4);
/// The pause between two rounds of killing, if no process was seen to end.
pub(super) const ROUND: Duration = Duration::from_millis(2);
/// How long one round may search for more processes to stop. Those that it misses are found by the next one.
const STOPPING: Duration = Duration::from_millis(250);

/// Sends SIGTERM to all processes below this one. All are found before the first one hears it, so that those which it starts to
/// tidy up do not hear it too.
pub(super) fn terminate() {
    for member in descent::below(std::process::id()) {
        let _ = signal(member, Signal::TERM);
    }
}

/// Stops and kills all processes below this one, except `spared` and those below them. Returns the pids of the killed ones.
/// It takes further rounds until nobody is left: a process may have been between two parents.
pub(super) fn kill(spared: &BTreeSet<u32>) -> Vec<u32> {
    let me = std::process::id();
    let until = Instant::now() + STOPPING;
    let mut stopped = BTreeSet::new();
    loop {
        let before = stopped.len();
        descent::visit(me, spared, |member| {
            if stopped.insert(member.pid) {
                let _ = signal(member, Signal::STOP);
            }
            ControlFlow::Continue(())
        });
        // A process that was just starting another one when it was stopped has a child that only another search finds.
        if stopped.len() == before || Instant::now() >= until {
            break;
        }
    }
    let mut killed = Vec::new();
    descent::visit(me, spared, |member| {
        if signal(member, Signal::KILL).is_ok() {
            killed.push(member.pid);
        }
        ControlFlow::Continue(())
    });
    killed
}

/// Signals a descendant of this process.
fn signal(member: Descendant, signal: Signal) -> rustix::io::Result<()> {
    let pid = i32::try_from(member.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    if member.parent == std::process::id() {
        // Only we can reap our own child, so its pid cannot have been reused.
        rustix::process::kill_process(pid, signal)
    } else {
        signal_deeper(pid, member.parent, signal)
    }
}

/// Signals a process whose parent may reap it, and so free its pid, at any time. The handle is opened before the check:
/// if the pid still belongs to a member of the tree afterwards, the handle refers to that process or to a dead one.
/// A process that is missed here becomes our child when its parent dies, and the next round finds it.
fn signal_deeper(pid: Pid, parent: u32, signal: Signal) -> rustix::io::Result<()> {
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    match descent::parent(pid.as_raw_pid().unsigned_abs()) {
        Some(now) if now == parent || now == std::process::id() => {
            rustix::process::pidfd_send_signal(handle, signal)
        }
        _ => Err(Errno::SRCH),
    }
}
