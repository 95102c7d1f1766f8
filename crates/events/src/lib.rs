//! What the gateway tells whoever listens: which tools a server has, how calls end, how servers live and die.
//!
//! An [`Event`] is built once and never changed; the [`Bus`] hands it to every [`Subscription`] that asked for
//! it. When something is worth an event is decided by whoever publishes; this crate keeps no history, reaches
//! no other process and decides nothing.
//!
//! What must stay true: publishing never waits for a subscriber and costs one atomic read while there is none;
//! a subscriber that falls behind learns how many events it lost, to the last one, so that no outcome of a
//! call is lost silently; an event cannot be built without a correlation id, and whatever another party wrote
//! enters one only as an [`Excerpt`], short and without secrets.

mod bus;
mod event;
mod excerpt;
mod filter;
mod topic;

pub use bus::{Bus, Delivery, Subscription};
pub use event::{Asked, Detail, Event, InitOutcome, ProbeKind};
pub use excerpt::Excerpt;
pub use filter::Filter;
pub use topic::Topic;
