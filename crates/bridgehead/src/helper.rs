//! The helper processes of a program with servers: the shim of a process tree, and the relay to a remote server.
//!
//! A separate process looks after each process tree. With `isolation = "call"`, a separate process also reaches a remote
//! server, so that the host never parses what that server sends. Both are the program itself, started again with another
//! argument. So nothing else has to be installed, and both ends always come from the same build.

#[cfg(all(feature = "server", feature = "http"))]
mod relay;

/// Runs as a helper and does not return, if this process was started as one. Otherwise remembers that this program can be
/// started as a helper.
///
/// A program that embeds Bridgehead calls this first in its `main`, before it starts a thread or a runtime and before it
/// reads its arguments. Without it, a server with a `url` cannot have `isolation = "call"`, and process trees have a shim
/// only if `bridgehead-shim` lies beside the program. The former also takes the features `server` and `http`.
///
/// ```no_run
/// // The first line of `main`.
/// bridgehead::main_if_asked();
/// ```
pub fn main_if_asked() {
    bridgehead_process::shim::main_if_asked();
    #[cfg(all(feature = "server", feature = "http"))]
    relay::main_if_asked();
}
