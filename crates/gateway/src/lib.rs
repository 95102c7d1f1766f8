//! Routes every request to the upstream that serves it and runs every call through the five-stage
//! chain. Opens no socket and starts no process: the front brings requests, `upstream` holds links.

mod builtin;
mod caller;
mod catalog;
mod chain;
mod error;
mod fnv;
mod gateway;
mod instructions;
mod names;
mod native;
mod offers;
mod pages;
pub mod panics;
mod relay;

pub use caller::{Ask, Caller, Principal, ProgressSink, Transport};
pub use error::{CallError, Code, Shape};
pub use gateway::{Gateway, OfferedTool, Options};
pub use native::{NativeTool, Need, RegisterError, ToolContext, ToolFailure};
