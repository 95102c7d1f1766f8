//! One place for everything that happens: every call, server, queue and record emits a [`Signal`], which writes its log
//! line, adds to its counters and publishes its event.
//!
//! A [`Signal`] is passed to [`Signals::emit`] at one line. An [`Event`] is what the bus publishes about it: the event
//! is built once, never changed, and handed by the [`Bus`] to every [`Subscription`] that asked for it. The code that
//! notices something decides whether it is worth a signal; this crate keeps no history, reaches no other process and
//! decides nothing.
//!
//! What must stay true: no other crate logs, counts or publishes what has a signal, and none can publish an event.
//! Emitting never waits for a subscriber, and costs one atomic read while there is none. A subscriber that falls behind
//! learns exactly how many events it lost, so that no outcome of a call is lost silently. An event cannot be built
//! without a correlation id, and text of another party enters one only as an [`Excerpt`], short and without secrets.

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
pub use event::{Asked, AskedBy, Detail, Event, InitOutcome, ProbeKind};
pub use excerpt::Excerpt;
pub use filter::Filter;
pub use metrics::{BOUNDS, Counter, Distribution, Measure, MetricsSnapshot};
pub use signal::{
    CallEnded, CheckpointMade, DisconnectReason, ExecutionEnded, ExecutionOutcome, Line, ServerSignal,
    Signal, Stage, StateChange, WaitEnd,
};
pub use signals::Signals;
pub use topic::Topic;
