//! One request carried to a server and its answer back: its turn in a queue, what is rewritten on the way, what an
//! older client gets of it.

mod cell;
mod conversation;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod revise;
pub(crate) mod rewrite;
pub(crate) mod trace;
pub(crate) mod uris;
