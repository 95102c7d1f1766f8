//! The ways to reach a server, one module each.

pub(crate) mod stdio;
