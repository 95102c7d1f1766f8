//! Who shares a process of a server with whom, and who has one alone: for a session, for a client that can be asked, for one
//! call.

pub(crate) mod key;
pub(crate) mod leases;
pub(crate) mod pool;
pub(crate) mod registry;
