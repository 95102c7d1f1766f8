//! The process between the gateway and a server: the keeper of the server's tree.
//!
//! The shim is "subreaper": whoever below it loses its parent becomes its child, also a daemon that has forked
//! twice and left its session. So nobody gets out of the tree, and the tree can be killed as a whole. It is
//! killed when the gateway says so, when the server ends by itself, and when the control socket ends, which
//! happens however the gateway dies.
//!
//! It is one thread without a runtime that sleeps in `poll`. It keeps no descriptor of the server, is in a
//! process group of its own so that the terminal's interrupt key does not reach it, and listens to no signal
//! but SIGKILL. What a server may still do is to kill or stop the shim, as both run for one user; the gateway
//! notices the end of the control socket then, and kills what it can find.
//!
//! Shims are forked from one **nursery**, a process that the gateway executes once and that does nothing but
//! that: forking something so small is far cheaper than executing and linking a program anew, and costs the
//! gateway one message instead of a start. The nursery is subreaper too: what a killed shim leaves behind comes
//! to it, and is killed. Shims do not depend on it; if it dies, the gateway executes another for the next server.

/// Becomes the shim, and does not return, if this program was started as one; call it first in `main`.
///
/// A program that has called this serves as shim where the small one is not installed. The small one starts a
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
#[cfg(target_os = "linux")]
mod confine;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod keeping;
#[cfg(target_os = "linux")]
mod nursery;
#[cfg(target_os = "linux")]
mod watch;
