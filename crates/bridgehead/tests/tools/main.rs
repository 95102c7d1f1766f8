//! The library over many servers: tools called in process, through the gate, from scripted servers and Rust handlers.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed expectation of a test")]

mod calls;
mod configured;
mod dropped;
mod ends;
mod late;
mod questions;
mod support;
