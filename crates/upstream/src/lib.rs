//! Upstream servers: how each is reached, what it speaks, what it offers, and whether it is there.
//!
//! Knows nothing of clients. A request comes in as prepared bytes and leaves through a [`Link`]; what
//! comes back is delivered in order.

pub mod bridge;
mod catalog;
mod core;
mod crash;
mod denied;
mod doorbell;
mod given;
mod health;
mod key;
mod leases;
mod link;
mod listening;
mod negotiate;
mod notice;
mod policy;
mod pool;
pub mod provider;
mod record;
mod registry;
pub mod relay;
mod shelf;
mod stream;
mod supervisor;
mod switchboard;
#[cfg(test)]
mod testing;
mod transport;
mod upstream;

pub use bridgehead_process::{
    Confinement as AskedConfinement, Containment, Effective, Enforced, ProcessView,
};
pub use catalog::{Features, Item, Items, Listing, Lists, OutputError, Tool};
pub use core::{Hold, Watch};
pub use crash::{Crash, CrashReason};
pub use leases::{Keeper, Lease, Reason};
pub use link::{Event, Exchange, Link, LinkError, Mirror, Purpose, stamp_modern};
pub use negotiate::Peer;
pub use notice::{Notice, NoticeSink, Origin};
pub use policy::{Delays, RestartPolicy};
pub use pool::OneShot;
pub use record::{Facts, Followed, Follower, Initialisation, LineSink, LineSource, LogLine, Record, Records};
pub use registry::Registry;
pub use upstream::{
    Acquired, Failure, FailureStage, INIT_TIMEOUT, Outage, Ready, State, Surroundings, Unavailable, Upstream,
};
