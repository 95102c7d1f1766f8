//! A call as every crate knows it: its id, the two events that it leaves, the sink that takes them, and the clock.
//!
//! [`Enter`] says who is about to ask for what and with which arguments, [`Exit`] how it ended and how long it took; what
//! ties them is the [`Ticket`] that the sink gave for the enter. Whoever only passes a call on needs this and no store.
//!
//! What must stay true: an event cannot be changed once it is built, durations come from the monotonic clock and never
//! from the difference of two wall times, and [`NoopSink`] costs a call no allocation.

mod clock;
mod event;
mod sink;

pub use bridgehead_wire::Era;
pub use clock::{Clock, Moment, SystemClock};
pub use event::{About, Call, CorrelationId, Enter, Exit, Outcome, Ticket};
pub use sink::{AuditError, AuditSink, EnterFuture, NoopSink};
