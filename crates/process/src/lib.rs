//! Starts programs and ends them. Nothing outside this crate starts a program, and no child outlives its
//! handle: when a [`Child`] is stopped, or just dropped, its whole process group is killed and the child is
//! reaped.
//!
//! What a program is for, when it is started again and what its output means is left to others. This crate
//! knows pipes, not protocols.
//!
//! What must stay true:
//! - Programs are started by `posix_spawn`, whose cost does not grow with the memory of the gateway. The
//!   standard library falls back to `fork` when hooks, user or group ids are set, and also when a bare program
//!   name is to be searched in an environment that was changed; so programs are searched here, and always
//!   started by their absolute path.
//! - A child's environment is exactly what its [`Spec`] says.
//! - No signal is sent to a group that may have become somebody else's, see [`Child`].
//!
//! Known limit: a descendant that makes itself leader of a new session leaves the group and is not found.

mod child;
mod exit;
mod spec;
mod stderr;

pub use child::{Child, spawn};
pub use exit::Exit;
pub use spec::{SpawnError, Spec, base_environment};
pub use stderr::{LineCallback, Stderr};
