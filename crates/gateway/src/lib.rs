//! Routes every request to the upstream that serves it, through one gate. Opens no socket and starts no
//! process: the front delivers requests, and `upstream` holds the links.

mod access;
mod caller;
mod catalog;
mod dialogue;
mod error;
mod feeds;
mod gate;
mod gateway;
mod life;
pub mod panics;
mod relay;
mod surface;

pub use access::{
    Account, Action, Allowance, Authorizer, Charge, Correction, Decide, Decision, Limited, Limiter,
    Principal, PrincipalKind, Scopes, Thing, Validity,
};
pub use bridgehead_events as events;
pub use bridgehead_upstream::{
    Followed, Follower, LineSink, LineSource, Lists, LogLine, Registry, ServerRecord,
};
pub use bridgehead_wire::{Code, Fault, Level, Quota, Shape};
pub use caller::{Caller, ClientRequest, ClientTransport, ProgressSink};
pub use catalog::native::{
    AskError, Elicitation, NativePrompt, NativeResource, NativeTool, Need, PromptMessage, RegisterError,
    ResourceContents, Role, Root, ToolContext, ToolFailure,
};
pub use catalog::offers::{may_have, may_offer, named, only};
pub use catalog::similar::similar;
pub use dialogue::questioner::{Answers, OpenQuestions, Outlet, Questioner};
pub use error::{GatewayError, OverLimit, missing_scope};
pub use feeds::{Feed, Feeds};
pub use gate::{AdminEvent, admin};
pub use gateway::{Gateway, OfferedTool, Options};
pub use life::joined::{Joined, JoinedClient, RefusedClient};
pub use life::session::Session;
pub use life::status::{Reload, ServerState, ServerStatus, Status};
pub use life::{CancelReason, ReloadReport};
pub use surface::tools::direct::{DirectCall, DirectResult, ToolError};
