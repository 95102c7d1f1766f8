//! Raw clients for tests from outside: they send what they are told and hide nothing.
//!
//! They speak no protocol of their own accord; a test that wants a handshake sends it. Every
//! wait ends with a panic after [`PATIENCE`] of the runtime's time, so use them with a
//! running clock only.

mod envelope;
mod http;
mod stdio;

use std::time::Duration;

pub use envelope::{legacy_handshake, modern_headers, modern_params};
pub use http::{HttpClient, HttpReply, HttpStream, SseEvent};
pub use stdio::StdioClient;

/// How long a client waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something, no longer than [`PATIENCE`].
async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {PATIENCE:?}"),
    }
}
