//! A call as all crates share it: its id, the two events that it leaves, the sink that takes them, and the clock.
//!
//! [`Enter`] names the caller, the subject and the arguments. [`Exit`] says how the call ended and how long it took. The
//! [`Ticket`] that the sink issued for the enter ties the two together. A crate that only passes calls on needs this
//! crate and no store.
//!
//! `Share` (feature `share`) is how principals share what is scarce: the one type that knows turns, making way, and what a call still holds
//! after its client has gone.
//!
//! What must stay true: an event cannot be changed once it is built, durations come from the monotonic clock and never
//! from the difference of two wall times, and [`NoopSink`] costs a call no allocation.

mod clock;
mod event;
#[cfg(feature = "share")]
mod share;
mod sink;

pub use bridgehead_wire::Era;
pub use clock::{Clock, Moment, SystemClock};
pub use event::{About, Call, CorrelationId, Enter, Exit, Outcome, Ticket};
#[cfg(feature = "share")]
pub use share::{Depth, Evicted, NoTurn, PATIENCE, Permit, Resting, Seat, Share, Standing, makes_way};
pub use sink::{AuditError, AuditSink, EnterFuture, NoopSink};
