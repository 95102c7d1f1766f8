//! System calls without a safe wrapper: descriptors that a parent passes, signals at the start of a shim, the forks that make shims and
//! servers, becoming a server, turns on the processor, resource usage, and releasing code pages.
#![expect(unsafe_code, reason = "calls of the system that neither std nor rustix wraps")]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Makes programs that this process starts inherit no descriptor from `first` on. The parent may have leaked some.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: the call takes three numbers and touches no memory. Setting the flag on a descriptor closes
    // nothing here, so no owner of one loses it.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes a descriptor that this process was started with and that its parent gave it for this purpose. Programs that this
/// process starts do not inherit it. May be called once for each number.
pub(crate) fn take_passed(number: u32) -> io::Result<OwnedFd> {
    let number = libc::c_int::try_from(number).map_err(io::Error::other)?;
    // SAFETY: the call takes numbers and touches no memory. It fails if the descriptor is not open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open since this program was executed, so no code of this process has opened it, and the caller
    // takes each number once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A descriptor that becomes readable when a child ends, once [`block_signals`] has blocked SIGCHLD.
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
    // SAFETY: the system has just made this descriptor, and no other code knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The signals that a thread blocks.
#[derive(Clone, Copy)]
pub(crate) struct SignalMask(libc::sigset_t);

/// Blocks every signal that can be blocked for this thread, and returns the previous mask. Programs that are started
/// afterwards inherit the mask.
pub(crate) fn block_signals() -> SignalMask {
    let mut every = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigfillset` initialises the set before it is read, and both sets outlive the calls. With these arguments
    // neither call can fail; and a set of zeroes, which is an empty one, would be valid too.
    unsafe {
        libc::sigfillset(every.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
        SignalMask(before.assume_init())
    }
}

/// Restores the signal mask that [`block_signals`] returned.
pub(crate) fn restore_signals(before: &SignalMask) {
    // SAFETY: the set came from the system and outlives the call; a null pointer asks for no old value.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before.0, ptr::null_mut());
    }
}

/// Which of the two processes runs after [`fork`].
pub(crate) enum Fork {
    Parent { child: u32 },
    Child,
}

/// Proof that this process has only one thread, and is a program that starts no other.
pub(crate) struct Alone(());

impl Alone {
    /// For the nursery and its shims, which have no runtime and start no thread.
    pub(crate) fn check() -> io::Result<Self> {
        match std::fs::read_dir("/proc/self/task")?.take(2).count() {
            1 => Ok(Self(())),
            _ => Err(io::Error::other("there is more than one thread")),
        }
    }
}

/// Forks this process. It must have only one thread: other threads would be missing in the child, and their locks
/// would stay locked there.
pub(crate) fn fork(_: &Alone) -> io::Result<Fork> {
    // SAFETY: this is the only thread. So every lock is free, or held by code that continues in the child too, and
    // everything that is valid here is valid there.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        child => {
            u32::try_from(child).map(|child| Fork::Parent { child }).map_err(|_| io::Error::last_os_error())
        }
    }
}

/// The arguments of `clone3`, up to the control group, which is the last one needed here.
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

/// The flag that puts the child into a control group. The constant in `libc` has a type that is too small for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Like [`fork`], but the child starts inside the control group whose folder is given. The C library does not know about
/// this child. That is safe, because the child soon executes another program and starts no thread until then.
pub(crate) fn fork_into(_: &Alone, group: BorrowedFd<'_>) -> io::Result<Fork> {
    let mut arguments = CloneArguments {
        flags: CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD.cast_unsigned().into(),
        cgroup: group.as_raw_fd().cast_unsigned().into(),
        ..CloneArguments::default()
    };
    // SAFETY: no flag shares anything, so the child has a copy of all memory and continues on the same stack, as after a
    // fork. This is the only thread, so every lock is free, or held by code that continues in the child too. The
    // structure outlives the call, and its size is passed.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<CloneArguments>()) };
    match child {
        0 => Ok(Fork::Child),
        child => {
            u32::try_from(child).map(|child| Fork::Parent { child }).map_err(|_| io::Error::last_os_error())
        }
    }
}

/// Makes a write past the file size limit fail with an error instead of killing the process (SIGXFSZ). Programs that are
/// started afterwards inherit this.
pub(crate) fn survive_large_files() {
    // SAFETY: ignoring a signal installs no code of ours.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Becomes another program. `last` is called when everything is prepared and nothing is allocated any more. Returns only if it
/// failed.
pub(crate) fn execute(
    path: &CStr,
    args: &[CString],
    env: &[CString],
    last: impl FnOnce() -> io::Result<()>,
) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: the default of a signal installs no code of ours. The runtime of the language ignores this one.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    if let Err(error) = last() {
        return error;
    }
    // SAFETY: the texts end with a zero byte, the lists with a null pointer, and all of them outlive the call.
    unsafe {
        libc::execve(path.as_ptr(), args.as_ptr(), env.as_ptr());
    }
    io::Error::last_os_error()
}

/// Moves this process into a new namespace of users, which maps no user yet.
pub(crate) fn own_users() -> io::Result<()> {
    // SAFETY: the call takes a number and touches no memory. This flag shares and unshares no descriptors.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The arguments of `sched_setattr`, in their first version.
#[repr(C)]
#[derive(Default)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Lets this process run soon whenever it wants to, however many others want to: it asks for the shortest turns, which come
/// first, and for a better priority. Anybody may have the former (Linux 6.12 and later), and only some the latter.
pub(crate) fn run_before_others() {
    const SHORTEST: u64 = 100_000;
    const BETTER: i32 = -10;
    let current = rustix::process::getpriority_process(None).unwrap_or_default();
    for nice in [BETTER.min(current), current] {
        let size = u32::try_from(size_of::<Scheduling>()).unwrap_or_default();
        let scheduling = Scheduling { size, nice, runtime: SHORTEST, ..Scheduling::default() };
        // SAFETY: the structure says its size and outlives the call. Zero means this thread.
        if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const scheduling, 0) } == 0 {
            return;
        }
    }
}

/// The largest peak of resident memory, in bytes, of any descendant that ended and was waited for.
pub(crate) fn largest_of_ended() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure outlives the call and is valid as zeroes if the call should fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10
}

/// Releases the pages of a mapping, which must be code from a file. Returns whether the system did it.
pub(crate) fn release_pages(code: std::ops::Range<usize>) -> bool {
    // SAFETY: the caller took the range from this process's own list of mappings, as one that is executable,
    // private, not writable and backed by a file. Such pages are never written, so each is read back from the file
    // unchanged, also the page with this code.
    unsafe { libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED) == 0 }
}
