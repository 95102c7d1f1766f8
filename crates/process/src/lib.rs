//! Starts programs and ends them. No other crate starts a program, and no child outlives its handle: when a
//! [`Child`] is stopped, or just dropped, the program and all its descendants are killed and reaped. On Linux a
//! [`shim`] starts every program: no descendant can leave the tree, and the tree also ends when the gateway is
//! killed. Elsewhere, and where the shim is not installed, a program leads a process group that is killed.
//! [`Child::containment`] reports which of the two applies. The exception is a program that is started with [`detach`], to
//! outlive its starter.
//!
//! Other crates decide what a program is for, when to restart it and what its output means. This crate knows
//! pipes, not protocols.
//!
//! What must stay true:
//! - Programs are started by `posix_spawn`, whose cost does not grow with the memory of the gateway. The
//!   standard library falls back to `fork` when hooks, user or group ids are set, and also when it has to search a
//!   bare program name in a changed environment. Therefore this crate searches programs itself and always starts
//!   them by their absolute path.
//! - A child's environment is exactly what its [`Spec`] says, and it has no descriptors but its three pipes.
//! - No signal is sent to a process or group whose id may have been reused.

mod child;
mod code;
mod confinement;
#[cfg(target_os = "linux")]
mod descent;
mod detached;
mod environment;
mod exit;
mod group;
mod keeper;
mod limits;
#[cfg(target_os = "linux")]
mod message;
#[cfg(target_os = "linux")]
mod nursery;
#[cfg(target_os = "linux")]
mod orphans;
mod output;
mod passed;
mod paths;
pub mod shim;
mod spec;
mod stderr;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod tree;
pub mod trial;
#[cfg(target_os = "linux")]
mod ungrouped;
mod view;

pub use child::{Child, spawn, start};
pub use code::release_code;
#[cfg(target_os = "linux")]
pub use confinement::pretend_landlock;
pub use confinement::{Confined, Confinement, Files};
pub use detached::{Detached, detach, give_up_output, leave_session};
pub use environment::{
    INHERITED, base_environment, held_back, is_personal, own_environment, personal_environment,
};
pub use exit::Exit;
pub use keeper::{Containment, Prepared, Shim, prepare, use_shim};
pub use limits::{Breach, Effective, Enforced, Limits};
#[cfg(target_os = "linux")]
pub use orphans::adopt_orphans;
pub use output::{OutputError, output, output_blocking};
pub use passed::passed_sockets;
pub use spec::{SpawnError, Spec, find_program};
pub use stderr::{LineCallback, Stderr};
pub use view::ProcessView;
