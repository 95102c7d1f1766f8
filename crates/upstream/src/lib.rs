//! Upstream servers: how the gateway reaches each one, its protocol, its tools and other lists, and its state.
//!
//! This crate knows nothing of clients. A request comes in as prepared bytes and leaves through a [`Link`]; the
//! messages that come back for it are delivered in order.

pub mod bridge;
mod catalog;
mod link;
pub mod provider;
mod server;
mod sharing;
#[cfg(test)]
mod testing;
mod transport;

pub use bridgehead_process::{
    Confinement as AskedConfinement, Containment, Effective, Enforced, ProcessView,
};
pub use catalog::{Features, Item, Items, Listing, Lists, OutputError, Tool};
pub use link::negotiate::Peer;
pub use link::notice::{Notice, NoticeSink, Origin};
pub use link::unfinished::Unfinished;
pub use link::{Event, Exchange, Link, LinkError, Mirror, Purpose, stamp_modern};
pub use server::core::{Hold, Watch};
pub use server::crash::{Crash, CrashReason};
pub use server::given::own_environment;
pub use server::policy::{Delays, RestartPolicy};
pub use server::record::{
    Facts, Followed, Follower, Initialisation, LineSink, LineSource, LogLine, ServerRecord, ServerRecords,
};
pub use server::{
    Acquired, Failure, FailureStage, INIT_TIMEOUT, Outage, Ready, Surroundings, Unavailable, Upstream,
    UpstreamState,
};
pub use sharing::leases::{Lease, LeaseOwner, Reason};
pub use sharing::pool::OneShot;
pub use sharing::registry::Registry;
#[cfg(feature = "http")]
pub use transport::dial::open_stream;
pub use transport::{credentials, relay};
