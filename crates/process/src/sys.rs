//! What no safe interface offers: three things that the shim needs at its start, before anything else in it has
//! descriptors or signals of its own, and one about the memory of a process.
#![expect(unsafe_code, reason = "calls of the system that neither std nor rustix wraps")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

/// Keeps every descriptor from `first` on from programs that this process starts. Whoever started it may have
/// leaked some.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: the call takes three numbers and touches no memory. Setting the flag on a descriptor closes
    // nothing here, so no owner of one loses it.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor that is readable when a child has ended, once SIGCHLD is blocked by [`deafen`].
pub(crate) fn ends_of_children() -> io::Result<OwnedFd> {
    let mut child = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by `sigemptyset` before it is read, and outlives the call. `signal` installs
    // no code of ours: the default is restored because children of a process that ignores SIGCHLD vanish without
    // a status.
    let descriptor = unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::sigemptyset(child.as_mut_ptr());
        libc::sigaddset(child.as_mut_ptr(), libc::SIGCHLD);
        libc::signalfd(-1, child.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has just made this descriptor, and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Makes this thread deaf to every signal that can be blocked. Programs that are started afterwards inherit it.
pub(crate) fn deafen() {
    let mut every = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by `sigfillset` before it is read, and outlives the call; a null pointer
    // asks for no old value. With these arguments neither can fail.
    unsafe {
        libc::sigfillset(every.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, every.as_ptr(), ptr::null_mut());
    }
}

/// Lets go of the pages of a mapping, which must be code of a file. Says whether the system did it.
pub(crate) fn let_go(code: std::ops::Range<usize>) -> bool {
    // SAFETY: the caller took the range from this process's own list of mappings, as one that is executable,
    // private, not writable and backed by a file. Nobody writes to such pages, so each comes back from the file as
    // it was, this very code included.
    unsafe { libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED) == 0 }
}
