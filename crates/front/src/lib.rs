//! Serves clients: reads messages from lines or HTTP, decides their era, hands requests to the gateway
//! and writes the answers back.
//!
//! This crate knows nothing of upstreams: it talks to the gateway through [`Backend`] only. What must
//! stay true: a request gets exactly one answer (none once it is cancelled), its progress comes before
//! its answer, memory stays bounded whatever a client sends or fails to read, and only protocol
//! messages are written to the client.

mod backend;
mod era;
mod fronts;
#[cfg(feature = "http")]
mod http;
mod inflight;
mod panics;
mod stdio;
#[cfg(feature = "http")]
mod token;

pub use backend::Backend;
pub use fronts::{answer, serve_client};
#[cfg(feature = "http")]
pub use fronts::{serve_control, serve_http};
#[cfg(feature = "http")]
pub use http::{
    API, Api, Authenticating, Authenticator, BindError, Body, ENDPOINT, HEALTH, JOIN, LINES, Listeners,
    LocalRule, LocalUser, MakeAuthenticator, Operators, Peer, PeerUser, READINESS, Reached, Refusal, Routes,
    STOPPED, TlsError, Workers, authenticator, bearer_token, bind, bind_on, listener_authenticator, router,
    serve, serve_socket,
};
pub use stdio::{DRAIN_AFTER_END, LineOptions, serve_lines, too_long};
#[cfg(feature = "http")]
pub use token::{Token, TokenError, check_reachable, resolve_token};
