//! JSON-RPC and MCP as bytes: what a message is, which parts of it are ours, and how to change
//! those parts without touching the rest.
//!
//! This crate does no I/O and needs no async runtime. A message that is only forwarded is never
//! decoded into types: its members stay slices of the buffer it arrived in ([`Raw`]), and an edit
//! yields a sequence of slices ([`Spliced`]) in which every byte that we do not own is unchanged.

// Here, because every crate needs this one: it is the only error then.
#[cfg(windows)]
compile_error!(
    "Bridgehead does not support Windows; build and run it in WSL, the Windows Subsystem for Linux"
);

mod abilities;
pub mod code;
mod depth;
mod encode;
mod error;
mod failure;
mod fold;
mod frame;
mod gather;
mod header;
pub mod held;
mod level;
mod message;
mod meta;
mod method;
mod raw;
mod redact;
mod revision;
mod splice;
mod sse;
mod trace;
mod visible;

pub use abilities::Abilities;
pub use depth::{MAX_DEPTH, too_deep};
pub use encode::{error_response, notification, request, response, response_parts};
pub use error::{Failure, Quota, RpcError};
pub use failure::{Code, Fault, Shape};
pub use fold::{folded, folds_alike};
pub use frame::{Line, LineBuffer, is_broken_answer, on_one_line};
pub use gather::Gathered;
pub use header::{HeaderValueError, decode_header_value, encode_header_value};
pub use level::Level;
pub use message::{Id, Incoming, Malformed, Message, Notification, Request, Response};
pub use meta::{MetaError, RequestMeta, key};
pub use method::{ClientMethod, ClientNote, Eras, Method, Note, Recording, ServerMethod};
pub use raw::{NotJson, Raw};
pub use redact::{LineRedactor, Redactor, RuleError, Rules, is_secret_name};
pub use revision::{Era, Revision};
pub use splice::{Ambiguous, Edit, Object, Spliced};
pub use sse::{EventBuffer, ServerEvent};
pub use trace::Traceparent;
pub use visible::{visible_line, visible_text};
