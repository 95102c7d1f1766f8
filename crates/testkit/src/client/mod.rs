//! Raw clients for tests from outside: they send exactly what the test gives them and hide nothing.
//!
//! They send nothing unprompted; a test that wants a handshake sends it. Every wait panics after [`PATIENCE`] of the
//! runtime's time, so use them only with a running clock.

mod envelope;
mod http;
mod stdio;
mod terminal;

pub use envelope::{legacy_handshake, modern_headers, modern_params};
pub use http::{HttpClient, HttpReply, HttpStream, SseEvent};
pub use stdio::StdioClient;
pub use terminal::Terminal;

pub use crate::PATIENCE;

/// Waits for a future, at most [`PATIENCE`].
async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {PATIENCE:?}"),
    }
}
