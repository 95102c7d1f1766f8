//! What happened to a call, told in two immutable events.
//!
//! [`Enter`] says who is about to call what and with which arguments, [`Exit`] how it ended and how long it
//! took; both carry the same [`CorrelationId`]. An [`AuditSink`] keeps them. When a call enters and exits is
//! the business of the chain in the gateway; this crate knows no transport, no runtime and no tool.
//!
//! What must stay true: an event cannot be changed once it is built, durations come from the monotonic clock
//! and never from the difference of two wall times, and [`NoopSink`] costs a call no allocation.

mod clock;
mod event;
mod sink;

pub use clock::{Clock, Moment, SystemClock};
pub use event::{Call, CorrelationId, Enter, Exit, Outcome};
pub use sink::{AuditError, AuditSink, EnterFuture, NoopSink};
