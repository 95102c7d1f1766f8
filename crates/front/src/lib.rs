//! Serves clients: reads messages from lines or HTTP, decides their era, hands requests to the gateway
//! and writes the answers back.
//!
//! Knows nothing of upstreams: everything behind [`Backend`] is somebody else's. What must stay true
//! here: a request gets exactly one answer (none once it is cancelled), its progress comes before its
//! answer, memory stays bounded whatever a client sends or fails to read, and nothing but protocol
//! messages is written to the client.

mod backend;
mod era;
mod http;
mod inflight;
mod panics;
mod stdio;
mod token;

pub use backend::Backend;
pub use http::{
    API, Api, Authenticating, Authenticator, Body, ENDPOINT, HEALTH, Peer, Refusal, Routes, Workers,
    authenticator, router, serve, serve_socket,
};
pub use stdio::{DRAIN_AFTER_END, LineOptions, serve_lines};
pub use token::{Token, TokenError, resolve_token};
