//! What no safe interface offers: what a shim needs at its start, before anything else in it has descriptors or
//! signals of its own; how it is made from the nursery; and one thing about the memory of a process.
#![expect(unsafe_code, reason = "calls of the system that neither std nor rustix wraps")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
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

/// The signals that a thread does not hear.
#[derive(Clone, Copy)]
pub(crate) struct SignalMask(libc::sigset_t);

/// Makes this thread deaf to every signal that can be blocked, and gives what it was deaf to before. Programs that
/// are started afterwards inherit it.
pub(crate) fn deafen() -> SignalMask {
    let mut every = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is initialised by `sigfillset` before it is read, and both outlive the calls. With these
    // arguments neither can fail; and a set of zeroes, which is an empty one, would be valid too.
    unsafe {
        libc::sigfillset(every.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
        SignalMask(before.assume_init())
    }
}

/// Hears again what it heard before.
pub(crate) fn hear_again(before: &SignalMask) {
    // SAFETY: the set came from the system and outlives the call; a null pointer asks for no old value.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before.0, ptr::null_mut());
    }
}

/// Which of the two a process is after [`fork`].
pub(crate) enum Fork {
    Parent { child: u32 },
    Child,
}

/// Shows that this process has one thread only, and is a program that starts no other.
pub(crate) struct Alone(());

impl Alone {
    /// Asked by the nursery, which has no runtime and starts no thread.
    pub(crate) fn check() -> io::Result<Self> {
        match std::fs::read_dir("/proc/self/task")?.take(2).count() {
            1 => Ok(Self(())),
            _ => Err(io::Error::other("there is more than one thread")),
        }
    }
}

/// Doubles this process. With more than one thread the others would be missing in the child, and whatever locks
/// they hold would stay locked there.
pub(crate) fn fork(_: &Alone) -> io::Result<Fork> {
    // SAFETY: this is the only thread, so that every lock is free or held by the code that goes on in the child as
    // well, and everything that is valid here is valid there.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        child => {
            u32::try_from(child).map(|child| Fork::Parent { child }).map_err(|_| io::Error::last_os_error())
        }
    }
}

/// What `clone3` is told, up to the group; the rest is for threads and for whoever wants to know more.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The flag that puts the child into a control group; `libc` has it cut to a number that is too small for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The same, with the child in the control group whose folder is given from its first moment on. The C library does not
/// hear of this child, which is to become another program soon and starts no thread until then.
pub(crate) fn fork_into(_: &Alone, group: BorrowedFd<'_>) -> io::Result<Fork> {
    let mut arguments = CloneArguments {
        flags: CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD.cast_unsigned().into(),
        cgroup: group.as_raw_fd().cast_unsigned().into(),
        ..CloneArguments::default()
    };
    // SAFETY: without a flag to share anything the child has a copy of all memory, and goes on with the same stack, as
    // after a fork. This is the only thread, so that every lock is free or held by the code that goes on in the child
    // as well. The structure outlives the call, and its size is told.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<CloneArguments>()) };
    match child {
        0 => Ok(Fork::Child),
        child => {
            u32::try_from(child).map(|child| Fork::Parent { child }).map_err(|_| io::Error::last_os_error())
        }
    }
}

/// Makes writing past the largest allowed size of a file an error instead of a death, here and in programs that are
/// started afterwards.
pub(crate) fn survive_large_files() {
    // SAFETY: ignoring a signal installs no code of ours.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// The most memory that a process had which this one has waited for, or any below it that was waited for, in bytes.
pub(crate) fn largest_of_ended() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure outlives the call and is valid as zeroes if the call should fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10
}

/// Lets go of the pages of a mapping, which must be code of a file. Says whether the system did it.
pub(crate) fn let_go(code: std::ops::Range<usize>) -> bool {
    // SAFETY: the caller took the range from this process's own list of mappings, as one that is executable,
    // private, not writable and backed by a file. Nobody writes to such pages, so each comes back from the file as
    // it was, this very code included.
    unsafe { libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED) == 0 }
}
