//! The rules of the configuration, from outside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod decisions;
mod explained;
mod rule;
