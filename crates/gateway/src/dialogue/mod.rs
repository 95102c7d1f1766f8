//! Asks a client something during its call, on behalf of a server.
//!
//! A legacy client is asked while it waits (`questioner`, `questions`). If the server is modern, it asks
//! through its result, and a legacy client answers in rounds (`rounds`). A modern client gets the question as
//! its result and comes back with the answer. Its call stays open meanwhile (`park`), and a sealed state
//! identifies it (`seal`).

pub(crate) mod park;
pub(crate) mod questioner;
pub(crate) mod questions;
pub(crate) mod rounds;
pub(crate) mod seal;
