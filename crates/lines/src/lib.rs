//! Newline-delimited messages over byte streams, for both ends that speak them: clients on stdio, servers
//! as child processes.
//!
//! Reading is bounded ([`LineReader`]); writing is gathered by one writer ([`Outbox`]). What the lines mean
//! is somebody else's.

mod outbox;
mod reader;

pub use outbox::{Bounds, Full, Outbox};
pub use reader::LineReader;
