//! Bridgehead as a library: build a gateway from options, register Rust tools, start it on a transport,
//! stop it.
//!
//! This crate connects the other crates and has no protocol or policy of its own. Nothing happens before
//! [`Server::start`]: building a server connects nothing, installs nothing and reads no environment. The library never
//! prints and never ends the process; only the binary does. The exception is a process that was started as a helper, see
//! [`main_if_asked`].
//!
//! ```
//! use bridgehead::{NativeTool, Server, Transport};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (client, theirs) = tokio::io::duplex(64 * 1024);
//! let greet = NativeTool::new("greet", "Says hello.", json!({"type": "object"}), |_, _| async {
//!     Ok(json!("hello"))
//! });
//! let server = Server::builder().register(greet).transport(Transport::Memory(theirs)).build()?;
//! assert!(!server.is_connected());
//! let running = server.start().await?;
//! assert!(server.is_connected());
//! // … speak MCP over `client` …
//! # drop(client);
//! running.stop().await;
//! # Ok(())
//! # }
//! ```

pub mod control;
mod endpoint;
mod handlers;
mod helper;
mod running;
mod server;
mod transport;

/// The record of calls: the store, its readers and its checks.
pub mod audit {
    pub use bridgehead_audit::*;
}

pub use bridgehead_audit::{
    About, AuditError, AuditSink, Call, Clock, CorrelationId, Enter, EnterFuture, Era, Exit, Moment,
    NoopSink, Outcome, SystemClock, Ticket,
};
pub use bridgehead_config as config;
pub use bridgehead_config::{Config, GatewaySettings, HttpSettings, Mode};
pub use bridgehead_events as events;
pub use bridgehead_gateway::{
    Action, Allowance, Authorizer, CallError, CancelReason, Code, Decision, Followed, Follower, Gateway,
    Limited, Limiter, LineSink, LineSource, LogLine, NativeTool, Need, Principal, PrincipalKind,
    RegisterError, Registry, ReloadReport, Session, Thing, ToolContext, ToolFailure,
};
pub use bridgehead_upstream::{bridge, credentials, provider};
pub use control::Control;
pub use endpoint::{Exposed, check_endpoint};
pub use handlers::Signal;
pub use helper::main_if_asked;
pub use running::{DRAIN, Ending, RunError, Running};
pub use server::{Server, ServerOptions, StartError};
pub use transport::{ByteStream, Connecting, Transport};
