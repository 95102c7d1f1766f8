//! The store from outside: what it keeps, what survives, and that changes are found.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "starts the checker and a process to kill")]

mod bad;
mod forged;
mod journal;
mod keeping;
mod killed;
mod pairs;
mod removal;
mod shown;
mod stores;
mod support;
mod tamper;
mod world;
