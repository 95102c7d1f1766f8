//! What happens, in one place: every call, server, queue and record says it with a [`Signal`], and from that logs are
//! written, counters are added to and the bus is told.
//!
//! A [`Signal`] is given to [`Signals::emit`] at one line. An [`Event`] is what the bus is told of one: it is built once
//! and never changed, and the [`Bus`] hands it to every [`Subscription`] that asked for it. When something is worth a
//! signal is decided by whoever notices it; this crate keeps no history, reaches no other process and decides nothing.
//!
//! What must stay true: no other crate logs, counts or tells what has a signal, and none can publish an event; emitting
//! never waits for a subscriber and costs one atomic read while there is none;
//! a subscriber that falls behind learns how many events it lost, to the last one, so that no outcome of a
//! call is lost silently; an event cannot be built without a correlation id, and whatever another party wrote
//! enters one only as an [`Excerpt`], short and without secrets.

mod bus;
mod event;
mod excerpt;
mod filter;
mod log;
mod metrics;
mod signal;
mod signals;
mod told;
mod topic;

pub use bus::{Bus, Delivery, Subscription};
pub use event::{Asked, Detail, Event, InitOutcome, ProbeKind};
pub use excerpt::Excerpt;
pub use filter::Filter;
pub use metrics::{BOUNDS, Counter, Distribution, Measure, Snapshot};
pub use signal::{
    CallEnded, Change, Checkpoint, ExecutionEnded, ExecutionOutcome, Line, Parting, ServerSignal, Signal,
    Stage, WaitEnd,
};
pub use signals::Signals;
pub use topic::Topic;
