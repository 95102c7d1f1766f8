//! The rules of the configuration in a running gateway, as clients meet them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod changed;
mod hidden;
mod scale;
mod tasks;
mod world;
