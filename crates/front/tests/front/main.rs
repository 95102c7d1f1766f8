//! The front from outside: over pipes and over real loopback sockets, with a scripted backend.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod api;
mod client;
mod door;
mod fake;
mod guarded;
mod limits;
mod lines;
mod listeners;
mod modern;
mod panics;
mod principals;
mod sessions;
