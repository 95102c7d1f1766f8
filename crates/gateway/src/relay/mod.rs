//! Carries one request to a server and its answer back: the turn in a queue, the rewriting on the way, and
//! the adaptation for older clients.

mod cell;
mod conversation;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod revise;
pub(crate) mod rewrite;
pub(crate) mod trace;
pub(crate) mod uris;
