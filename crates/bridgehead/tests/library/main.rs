//! Tests the library from the outside. They are one binary, because linking takes most of the build time.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do: with a panic that says where"
)]

mod bootstrap;
mod common;
mod decisions;
mod example;
mod native;
