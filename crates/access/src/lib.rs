//! Who may call what, and how much.
//!
//! The gateway and the front ask through three traits, and this crate implements them from the checked configuration: an
//! authenticator names the principal of a request, the authorizer decides what that principal may use, and the limiter
//! decides how much. Nothing here knows how a request travels.
//!
//! - [`limits`]: how much each principal may do. [`limits::Limits::new`] makes the limiter from the rules of the
//!   configuration, what tools cost, a clock, and the record that budgets are counted from; [`limits::Limits::reload`]
//!   replaces the rules. It goes into the `limiter` of the gateway's `Options`.

pub mod limits;
