//! How a client is asked something during its call, for a server.
//!
//! A legacy client is asked while it waits (`questioner`, `questions`); what a modern server asks by its result a legacy client
//! is asked in rounds (`rounds`). A modern client gets the question as its result and comes back with the answer, to a call
//! that stayed open meanwhile (`park`) and that it finds by a sealed state (`seal`).

pub(crate) mod park;
pub(crate) mod questioner;
pub(crate) mod questions;
pub(crate) mod rounds;
pub(crate) mod seal;
