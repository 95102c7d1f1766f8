//! Who may call what, and how much.
//!
//! The gateway and the front ask through three traits, and this crate implements them from the checked configuration: an
//! authenticator names the principal of a request, the authorizer decides what that principal may use, and the limiter
//! decides how much. Nothing here knows how a request travels.

pub mod policy;
