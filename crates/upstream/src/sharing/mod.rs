//! Which clients share a process of a server, and which get their own: for a session, for a client that can be
//! asked, for one call.

pub(crate) mod key;
pub(crate) mod leases;
pub(crate) mod pool;
pub(crate) mod registry;
mod sessions;
