//! A user namespace of its own for a program, so that the system can limit its processes without a control group.
//!
//! `RLIMIT_NPROC` counts all processes of a user, so by itself it would count the user's other programs too. In a namespace
//! of its own the count begins with the program. It does not bind root. The program stays the same user, but no other user
//! exists in the namespace, so `sudo` and other programs that change their user do not work there. Therefore only two kinds
//! of programs get a namespace: confined ones, which could not change their user anyway, and those whose limit the system has
//! to enforce.

use std::io;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, WaitOptions};

use crate::Limits;
use crate::sys::{self, Alone, Fork};

/// Whether a program of this user can have a namespace in which the system limits its processes. Tries it out.
pub(super) fn work(alone: &Alone) -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    match sys::fork(alone) {
        // One process, which is this one: another must be refused.
        Ok(Fork::Child) => {
            let refused = enter().and_then(|()| limit(1)).is_ok()
                && matches!(sys::fork(alone), Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()));
            std::process::exit(i32::from(!refused))
        }
        Ok(Fork::Parent { child }) => {
            let child = i32::try_from(child).ok().and_then(Pid::from_raw);
            let ended = child.map(|child| rustix::process::waitpid(Some(child), WaitOptions::empty()));
            matches!(ended, Some(Ok(Some((_, status)))) if status.exit_status() == Some(0))
        }
        Err(_) => false,
    }
}

/// Whether a program with these limits is put into a namespace, where that works and there is no control group.
pub(super) fn are_wanted(limits: &Limits, confined: bool) -> bool {
    limits.processes.is_some() && (confined || limits.hard_processes)
}

/// Moves this process into a namespace in which it is the same user and group.
pub(super) fn enter() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::own_users()?;
    // The files that say who is who belong to root as long as the memory of this process is closed to its own user.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let put = |name: &std::ffi::CStr, text: String| -> io::Result<()> {
        let file = open(name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, text.as_bytes())?;
        Ok(())
    };
    put(c"/proc/self/setgroups", "deny".to_owned())?;
    put(c"/proc/self/uid_map", format!("{user} {user} 1"))?;
    put(c"/proc/self/gid_map", format!("{group} {group} 1"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Sets the limit, which counts threads as processes.
pub(super) fn limit(threads: u32) -> io::Result<()> {
    let most = Some(u64::from(threads));
    rustix::process::setrlimit(Resource::Nproc, Rlimit { current: most, maximum: most })?;
    Ok(())
}
