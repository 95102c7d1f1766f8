//! Bridgehead as a library: build a gateway from options, register Rust tools, start it on a transport,
//! stop it.
//!
//! This crate connects the other crates and has no protocol or policy of its own. Nothing happens before
//! [`Server::start`]: building a server connects nothing, installs nothing and reads no environment. The library never
//! prints and never ends the process; only the binary does. The exception is a process that was started as a helper, see
//! [`main_if_asked`].
//!
//! Nothing is built by default. Choose the features that you need:
//!
//! | feature | what it gives |
//! |---|---|
//! | `bridge` | one connection to one server, and calls over it |
//! | `provider` | one server as a provider of tools for an agent; includes `bridge` |
//! | `tools` | [the tools of many servers](tools), called from this program; includes `bridge` |
//! | `typed` | tools whose schemas come from Rust types; includes `tools` |
//! | `server` | a gateway that serves clients, over stdio or in memory; includes `tools` |
//! | `http` | remote servers, over HTTP and WebSocket; with `server` also clients over HTTP, and operators |
//! | `access` | who may call over HTTP, what each may use and how much; includes `server`, `http` and `audit-sqlite` |
//! | `audit-sqlite` | the record of calls in SQLite files, with signed checkpoints |
//! | `sandbox` | the confinement of servers |
//! | `config-files` | configuration files, and the variables that change them |
//!
//! A configuration that needs a missing feature is refused, with an error that names the feature.
//!
#![cfg_attr(feature = "server", doc = "```")]
#![cfg_attr(not(feature = "server"), doc = "```ignore")]
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

#[cfg(feature = "access")]
pub mod access;
#[cfg(all(feature = "server", feature = "http"))]
pub mod control;
#[cfg(all(feature = "server", not(feature = "http")))]
#[path = "no_control.rs"]
mod control;
#[cfg(feature = "server")]
mod endpoint;
#[cfg(feature = "server")]
mod handlers;
#[cfg(feature = "bridge")]
mod helper;
#[cfg(feature = "server")]
mod running;
#[cfg(all(feature = "bridge", feature = "config-files"))]
mod secret_commands;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "tools")]
pub mod tools;
#[cfg(feature = "server")]
mod transport;

/// The record of calls: the store, its readers and its checks.
#[cfg(feature = "audit-sqlite")]
pub mod audit {
    pub use bridgehead_audit::*;
}

/// Words of the protocol that signatures of this library contain.
#[cfg(feature = "bridge")]
pub mod protocol {
    pub use bridgehead_wire::{
        ClientMethod, ClientNote, Eras, Failure, Method, Note, Recording, Revision, ServerMethod, Shape,
    };
}

pub use bridgehead_call::{
    About, AuditError, AuditSink, Call, Clock, CorrelationId, Enter, EnterFuture, Era, Exit, Moment,
    NoopSink, Outcome, SystemClock, Ticket,
};
pub use bridgehead_config as config;
#[cfg(feature = "config-files")]
pub use bridgehead_config::Config;
pub use bridgehead_config::{GatewaySettings, HttpSettings, Mode};
#[cfg(feature = "bridge")]
pub use bridgehead_events as events;
#[cfg(all(feature = "server", feature = "http"))]
pub use bridgehead_front::{
    Authenticating, Authenticator, BindError, LocalUser, Peer, PeerUser, Refusal, TlsError, Token, TokenError,
};
#[cfg(feature = "tools")]
#[doc(inline)]
pub use bridgehead_gateway::Options as GatewayOptions;
#[cfg(feature = "tools")]
pub use bridgehead_gateway::{
    Account, Action, AdminEvent, Allowance, AskError, Authorizer, CancelReason, Charge, Decide, Decision,
    Elicitation, Followed, Follower, Gateway, GatewayError, Joined, JoinedClient, Level, Limited, Limiter,
    LineSink, LineSource, LogLine, NativePrompt, NativeResource, NativeTool, Need, OfferedTool, OverLimit,
    Principal, PrincipalKind, PromptMessage, Quota, RegisterError, Registry, Reload, ReloadReport,
    ResourceContents, Role, Root, Scopes, ServerRecord, ServerState, ServerStatus, Session, Status, Thing,
    ToolContext, ToolFailure, Validity,
};
#[cfg(feature = "bridge")]
pub use bridgehead_schema as schema;
#[cfg(feature = "provider")]
pub use bridgehead_upstream::provider;
#[cfg(feature = "bridge")]
pub use bridgehead_upstream::{bridge, credentials};
#[cfg(feature = "bridge")]
pub use bridgehead_wire::{Code, Fault, NotJson, Raw, Redactor, RpcError, RuleError, Rules, Traceparent};
#[cfg(all(feature = "server", feature = "http"))]
pub use control::Control;
#[cfg(feature = "server")]
pub use endpoint::{Exposed, check_endpoint};
#[cfg(feature = "server")]
pub use handlers::StopSignal;
#[cfg(feature = "bridge")]
pub use helper::main_if_asked;
#[cfg(feature = "server")]
pub use running::{DRAIN, Ending, RunError, Running};
#[cfg(all(feature = "bridge", feature = "config-files"))]
pub use secret_commands::secret_commands;
#[cfg(feature = "server")]
pub use server::{Server, ServerOptions, StartError};
#[cfg(feature = "server")]
pub use transport::{ByteStream, Connecting, Transport};

/// Hides what the configuration's `audit.redact` describes, wherever this process writes something.
#[cfg(all(feature = "tools", feature = "config-files"))]
fn hide(config: &Config) {
    if !Redactor::hide_everywhere(&config.audit.rules) {
        tracing::warn!(
            "`audit.redact` of this configuration has no effect: a process keeps the rules that it got first"
        );
    }
}

/// The code of the README and of the guides, which runs as tests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/library.md")]
    struct Library;

    #[doc = include_str!("../../../docs/library/one-call.md")]
    struct OneCall;

    #[doc = include_str!("../../../docs/library/server.md")]
    struct ServerInRust;

    #[doc = include_str!("../../../docs/library/provider.md")]
    struct Provider;

    #[doc = include_str!("../../../docs/library/many-servers.md")]
    struct ManyServers;

    #[doc = include_str!("../../../docs/library/workflow-engine.md")]
    struct WorkflowEngine;
}
