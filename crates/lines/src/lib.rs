//! Newline-delimited messages over byte streams, for both ends that speak them: clients on stdio, servers
//! as child processes.
//!
//! Reading is bounded ([`LineReader`]); one writer batches what many senders write ([`Outbox`]). The callers
//! interpret the lines.

mod outbox;
mod reader;

pub use outbox::{Bounds, Full, Outbox};
pub use reader::LineReader;
