//! Routes every request to the upstream that serves it and runs every call through the five-stage
//! chain. Opens no socket and starts no process: the front brings requests, `upstream` holds links.

mod asking;
mod builtin;
mod caller;
mod catalog;
mod chain;
mod errand;
mod error;
mod feed;
mod fnv;
mod gateway;
mod instructions;
mod items;
mod life;
mod names;
mod native;
mod offers;
mod pages;
pub mod panics;
mod park;
mod questions;
mod queue;
mod relay;
mod revise;
mod rounds;
mod seal;
mod session;
mod status;
mod subscriptions;
mod surfaces;
mod tasks;
mod template;
mod trace;
mod uris;

pub use asking::{Desk, Outlet, Questioner};
pub use bridgehead_events as events;
pub use bridgehead_upstream::{Followed, Follower, LineSink, LineSource, Lists, LogLine, Record, Registry};
pub use bridgehead_wire::{Code, Shape};
pub use caller::{Ask, Caller, Principal, ProgressSink, Transport};
pub use error::CallError;
pub use feed::{Feed, Feeds};
pub use gateway::{Gateway, OfferedTool, Options};
pub use life::{CancelReason, ReloadReport};
pub use native::{NativeTool, Need, RegisterError, ToolContext, ToolFailure};
pub use session::Session;
pub use status::{Reload, ServerState, ServerStatus, Status};
