//! The gateway with scripted servers behind it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod catalog;
mod chain;
mod edges;
mod events;
mod support;
