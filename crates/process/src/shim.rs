//! The process between the gateway and a server, which keeps the server's process tree together.
//!
//! The shim is a "subreaper": a process below it that loses its parent becomes the shim's child. That includes a
//! daemon that has forked twice and left its session. So no process leaves the tree, and the tree can be killed as a
//! whole. The shim kills it when the gateway says so, when the server ends by itself, and when the control socket
//! closes, which happens however the gateway dies.
//!
//! The shim is one thread without a runtime that sleeps in `poll`. It keeps no descriptor of the server. It has its
//! own process group, so that the terminal's interrupt key does not reach it, and it reacts to no signal but SIGKILL.
//! A server can still kill or stop its shim, because both run as one user. The gateway then sees the control socket
//! close and kills the processes that it can find.
//!
//! Shims are forked from one **nursery**, a small process that the gateway executes once. Forking it is far cheaper
//! than executing and linking a program again, and costs the gateway one message instead of a start. The nursery is a
//! subreaper too: it adopts and kills what a killed shim leaves behind. Shims do not depend on the nursery; if it
//! dies, the gateway executes another one for the next server.

/// Becomes the nursery, and does not return, if this program was started as one. Call it first in `main`.
///
/// A program that has called this can serve as the shim where the small shim is not installed. The small one starts a
/// third faster and takes a tenth of the memory.
pub fn main_if_asked() {
    #[cfg(target_os = "linux")]
    {
        if std::env::args_os().nth(1).is_some_and(|argument| argument == crate::message::ASKED) {
            std::process::exit(nursery::main());
        }
        crate::trial::main_if_asked();
        crate::keeper::this_executable_can();
    }
}

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(all(target_os = "linux", feature = "sandbox"))]
mod confine;
#[cfg(all(target_os = "linux", not(feature = "sandbox")))]
#[path = "shim/no_confine.rs"]
mod confine;
#[cfg(all(target_os = "linux", feature = "sandbox"))]
mod filter;
#[cfg(target_os = "linux")]
mod keeping;
#[cfg(target_os = "linux")]
mod killing;
#[cfg(target_os = "linux")]
mod nursery;
#[cfg(target_os = "linux")]
mod own_users;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod watch;
