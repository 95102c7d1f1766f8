//! Upstream servers: how each is reached, what it speaks, what it offers, and whether it is there.
//!
//! Knows nothing of clients. A request comes in as prepared bytes and leaves through a [`Link`]; what
//! comes back is delivered in order.

mod catalog;
mod health;
mod link;
mod negotiate;
mod policy;
mod supervisor;
mod transport;
mod upstream;

pub use catalog::Tool;
pub use link::{Event, Exchange, Link, LinkError, Purpose, stamp_modern};
pub use negotiate::Peer;
pub use policy::{Delays, RestartPolicy};
pub use upstream::{
    Failure, FailureStage, INIT_TIMEOUT, Outage, Ready, State, Surroundings, Unavailable, Upstream,
};
