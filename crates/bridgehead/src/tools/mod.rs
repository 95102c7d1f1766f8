//! The tools of many servers, called from this program: the gateway without a front.
//!
//! [`Tools`] starts any number of servers, merges their tools, and calls them. Every call passes the same gate as a client's:
//! it is authorized, limited, locked, checked, recorded and queued under the [`Principal`] of this program. So everything that
//! a configuration can say about a server holds here too.
//!
//! ```
//! use bridgehead::config::ServerConfig;
//! use bridgehead::tools::Tools;
//! use serde_json::json;
//!
//! # use bridgehead_testkit::{Behaviour, Mock, mock_path};
//! # trait Played { fn playing(self, name: &str) -> Self; }
//! # impl Played for ServerConfig {
//! #     fn playing(mut self, name: &str) -> Self {
//! #         bridgehead_testkit::shim_path();
//! #         let mock = Mock::new().tool(name, Behaviour::Text(format!("{name} is done")));
//! #         let mut stdio = bridgehead::config::Stdio::new(mock_path().to_str().unwrap(), [""; 0]);
//! #         stdio.env = mock.env().into_iter().map(|(name, value)| (name, bridgehead::config::Secret::new(value))).collect();
//! #         self.launch = bridgehead::config::Launch::Stdio(stdio);
//! #         self
//! #     }
//! # }
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let files = ServerConfig::program("files", "npx", ["-y", "@modelcontextprotocol/server-filesystem", "."])?;
//!     let search = ServerConfig::remote("search", "https://mcp.example.com/mcp")?;
//! #   let (files, search) = (files.playing("list_directory"), search.playing("find"));
//!     let tools = Tools::builder().server(files).server(search).start().await?;
//!     for tool in tools.list() {
//!         println!("{}: {}", tool.name, tool.description().unwrap_or_default());
//!     }
//!     let listed = tools.call("files__list_directory", json!({"path": "."})).await?;
//!     println!("{}", listed.flat().result);
//! #   assert_eq!(listed.flat().result, "list_directory is done");
//! #   assert_eq!(tools.call("search__find", json!({})).await?.flat().namespace, "search");
//!     tools.close().await;
//!     Ok(())
//! }
//! ```
//!
//! What must stay true: dropping a call cancels it and tells the server. [`Tools::close`], or dropping the last clone, leaves
//! no process and no task behind. No call leaves half a record, a held lock or a taken place in a queue.

mod call;
mod filter;
mod options;
mod question;
mod result;

use std::fmt;
use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_events::Bus;
use bridgehead_gateway::{CancelReason, Gateway, Principal, Session};
use bridgehead_wire::Raw;

pub use bridgehead_config::InvalidPattern;
pub use bridgehead_gateway::{OfferedTool, ServerStatus, ToolError};
pub use call::{CallOptions, Progress, ToolCall};
pub use filter::ToolsFilter;
pub use options::{StartToolsError, ToolsOptions};
pub use question::{
    ElicitationKind, ElicitationRequest, SamplingMessage, SamplingRefused, SamplingRequest, SamplingResult,
};
pub use result::ToolResult;

/// The tools of many servers. Clones share them; dropping the last clone ends what [`Tools::close`] would end, without
/// waiting for it.
#[derive(Debug, Clone)]
pub struct Tools(Arc<Shared>);

struct Shared {
    gateway: Gateway,
    principal: Principal,
    /// Whose processes are those that are not shared. It ends with these tools.
    session: Session,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tools").field("principal", &self.principal.as_str()).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.gateway.end_direct(&self.session);
        self.gateway.leave();
    }
}

impl Tools {
    /// Options that all have defaults.
    pub fn builder() -> ToolsOptions {
        ToolsOptions::default()
    }

    fn new(gateway: Gateway, principal: Principal) -> Self {
        Self(Arc::new(Shared { gateway, principal, session: Session::new() }))
    }

    /// The tools that the principal may use now, in the order of the servers. Answered from memory.
    pub fn list(&self) -> Vec<OfferedTool> {
        self.0.gateway.list_tools_for(&self.0.principal)
    }

    /// The part of [`Tools::list`] that a filter admits, for an agent that is to know only some of the tools. The filter
    /// hides tools; it does not forbid to call them. For that use an authorizer.
    ///
    /// ```
    /// # use bridgehead::NativeTool;
    /// # use bridgehead::tools::{Tools, ToolsFilter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tool = |name| NativeTool::new(name, "", serde_json::json!({"type": "object"}), |_, _| async { Ok(().into()) });
    /// # let tools = Tools::builder().register(tool("read_file")).register(tool("write_file")).start().await?;
    /// let reading = ToolsFilter::default().allow(["read_*"])?;
    /// let names: Vec<_> = tools.list_for(&reading).into_iter().map(|tool| tool.name).collect();
    /// assert_eq!(names, ["read_file".into()]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn list_for(&self, filter: &ToolsFilter) -> Vec<OfferedTool> {
        let mut tools = self.list();
        tools.retain(|tool| filter.admits(tool));
        tools
    }

    /// Calls a tool by its offered name. The arguments are an object: a [`serde_json::Value`], or [`Raw`] JSON that is passed
    /// on byte for byte.
    ///
    /// The call begins when the returned future is first polled. Dropping the future cancels the call.
    pub fn call(&self, tool: &str, arguments: impl Into<Raw>) -> ToolCall {
        self.call_with(tool, arguments, CallOptions::default())
    }

    /// Calls a tool with these options.
    ///
    /// ```
    /// # use bridgehead::{Code, NativeTool};
    /// use bridgehead::tools::{CallOptions, Tools};
    /// use std::time::Duration;
    /// # use serde_json::json;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let slow = NativeTool::new("slow", "", json!({"type": "object"}), |_, _| std::future::pending());
    /// # let tools = Tools::builder().register(slow).start().await?;
    /// let options = CallOptions::default().timeout(Duration::from_millis(500));
    /// let late = tools.call_with("slow", json!({}), options).await.unwrap_err();
    /// assert_eq!(late.code(), Code::ProviderTimeout);
    /// assert!(late.retryable() && late.may_have_run());
    /// # Ok(())
    /// # }
    /// ```
    pub fn call_with(&self, tool: &str, arguments: impl Into<Raw>, options: CallOptions) -> ToolCall {
        let Shared { gateway, principal, session } = &*self.0;
        ToolCall::new(gateway, options.into_call(tool, arguments.into(), principal.clone(), session.clone()))
    }

    /// Cancels the running calls with this id: their servers are told, and each call ends with the code `cancelled`. Returns
    /// whether there was any.
    pub fn cancel(&self, id: CorrelationId) -> bool {
        self.0.gateway.cancel_call(&self.0.session, id)
    }

    /// Cancels the running calls of this tool, by its offered name. As [`CancelReason::Client`], each ends with the code
    /// `cancelled`, as by [`Tools::cancel`]. As [`CancelReason::Timeout`], each that runs fails with `PROVIDER_TIMEOUT`, and the
    /// server is looked after as when a call's own timeout ends: a process that these tools have for themselves
    /// (`isolation = "session"`) is restarted, even if no call runs, and any other server is probed. Returns whether there was
    /// anything to cancel or restart.
    pub fn cancel_tool(&self, name: &str, reason: CancelReason) -> bool {
        self.0.gateway.cancel_tool(&self.0.session, name, reason)
    }

    /// What the servers and tools say about themselves for the model, as one text; `None` if they say nothing.
    pub fn instructions(&self) -> Option<String> {
        self.0.gateway.instructions_for(&self.0.principal)
    }

    /// The state of each server, in the order of the configuration: whether it serves, why not, and what to do about it.
    pub fn health(&self) -> Vec<ServerStatus> {
        self.0.gateway.status().upstreams
    }

    /// Publishes what happens to servers and calls.
    pub fn events(&self) -> &Bus {
        self.0.gateway.events()
    }

    /// The principal of every call.
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// The gateway behind these tools, for everything else: counters, log lines, a restart, other servers.
    pub fn gateway(&self) -> &Gateway {
        &self.0.gateway
    }

    /// Ends everything that these tools hold, for all clones: running calls fail with `PROVIDER_UNAVAILABLE`, and servers that
    /// nothing else in this process uses are stopped. Returns when nothing is left of them; a process that was just being
    /// started is killed and ends a moment later. A second call does nothing.
    pub async fn close(&self) {
        self.0.gateway.end_direct(&self.0.session);
        Box::pin(self.0.gateway.stop()).await;
    }
}
