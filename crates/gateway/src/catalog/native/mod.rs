//! Tools, prompts and resources written in Rust and registered through the library, including the built-in tools.
//!
//! Each has a handler: a function that takes its arguments and a [`ToolContext`], and returns a future. Requests for
//! them pass the same gate as requests for servers, and the surfaces (`surface/`) decide what runs. A handler is
//! read (`handler`), then run within the limits of its call (`run`). It may talk to its client meanwhile (`context`,
//! `ask`). With the feature `typed`, schemas are made from Rust types (`typed`, `form`).
//!
//! What must stay true: a handler runs at most once for a call, and everything of a handler that panics or is
//! cancelled ends with it.

mod ask;
mod context;
#[cfg(feature = "typed")]
mod form;
mod handler;
mod prompt;
mod resource;
mod run;
mod strings;
mod tool;
#[cfg(feature = "typed")]
mod typed;

use std::collections::HashSet;
use std::sync::Arc;

use bridgehead_config::Mode;
use bridgehead_wire::Raw;
use serde_json::json;

use crate::gateway::Gateway;

pub use ask::{AskError, Elicitation, Root};
pub use context::ToolContext;
pub use handler::ToolFailure;
pub(crate) use handler::{BoundHandler, Refused};
pub use prompt::{NativePrompt, PromptMessage, Role};
pub use resource::{NativeResource, ResourceContents};
pub(crate) use run::run;
pub(crate) use tool::RegisteredTool;
pub use tool::{NativeTool, Need};

/// Why a Rust tool, prompt or resource cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name of a tool is not a plain lower-case identifier.
    #[error(
        "tool name `{0}` is not allowed: use lower-case letters, digits and `_`, not beginning with a digit"
    )]
    BadName(String),
    /// The input schema is not one for an object, or does not compile.
    #[error("the input schema of tool `{tool}` cannot be used: {reason}")]
    BadSchema {
        /// The tool.
        tool: String,
        /// What is wrong.
        reason: String,
    },
    /// The schema of the data that a tool answers with does not compile.
    #[error("the data schema of tool `{tool}` cannot be used: {reason}")]
    BadDataSchema {
        /// The tool.
        tool: String,
        /// What is wrong. A path in it begins at the root of the tool's output schema, which has the data at
        /// `/properties/data`.
        reason: String,
    },
    /// A tool of that name is registered already.
    #[error("a tool named `{0}` is registered already")]
    Duplicate(String),
    /// The mode does not admit what the tool needs.
    #[error("tool `{tool}` needs {need}, which mode `{mode}` does not admit")]
    NotAdmitted {
        /// The tool.
        tool: String,
        /// What it needs.
        need: Need,
        /// The mode.
        mode: Mode,
    },
    /// The name of a prompt is not a plain lower-case identifier.
    #[error(
        "prompt name `{0}` is not allowed: use lower-case letters, digits and `_`, not beginning with a digit"
    )]
    BadPromptName(String),
    /// A prompt of that name is registered already.
    #[error("a prompt named `{0}` is registered already")]
    DuplicatePrompt(String),
    /// The URI or URI template of a resource cannot be used.
    #[error("the URI `{uri}` of a resource is not allowed: {reason}")]
    BadUri {
        /// The URI or the template.
        uri: String,
        /// What is wrong, and what would be right.
        reason: &'static str,
    },
    /// A resource with that URI or template is registered already.
    #[error("a resource with the URI `{0}` is registered already")]
    DuplicateResource(String),
}

/// A prompt or resource, as the catalog lists it.
pub(crate) trait NativeItem {
    /// What clients use it by: the name of a prompt, the URI of a resource, the pattern of a template.
    fn key(&self) -> &str;

    /// Its entry in a list.
    fn definition(&self) -> Raw;
}

/// Everything that is registered, each kind in the order of registration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Natives {
    pub(crate) tools: Vec<Arc<RegisteredTool>>,
    pub(crate) prompts: Vec<Arc<NativePrompt>>,
    pub(crate) resources: Vec<Arc<NativeResource>>,
    pub(crate) templates: Vec<Arc<NativeResource>>,
}

impl Natives {
    /// Adds a tool, if it passes the checks.
    pub(crate) fn add_tool(&mut self, tool: NativeTool, mode: Mode) -> Result<(), RegisterError> {
        let is_taken = |name: &str| self.tools.iter().any(|other| other.tool.name() == name);
        let tool = tool.register(mode, is_taken)?;
        self.tools.push(Arc::new(tool));
        Ok(())
    }

    /// Adds a prompt, if it passes the checks.
    pub(crate) fn add_prompt(&mut self, prompt: NativePrompt) -> Result<(), RegisterError> {
        prompt.check()?;
        if self.prompts.iter().any(|other| other.name() == prompt.name()) {
            return Err(RegisterError::DuplicatePrompt(prompt.name().to_owned()));
        }
        self.prompts.push(Arc::new(prompt));
        Ok(())
    }

    /// Adds a resource or a template, if it passes the checks.
    pub(crate) fn add_resource(&mut self, resource: NativeResource) -> Result<(), RegisterError> {
        resource.check()?;
        let kind = if resource.is_template() { &mut self.templates } else { &mut self.resources };
        if kind.iter().any(|other| other.uri() == resource.uri()) {
            return Err(RegisterError::DuplicateResource(resource.uri().to_owned()));
        }
        kind.push(Arc::new(resource));
        Ok(())
    }

    /// The names of the tools.
    pub(crate) fn tool_names(&self) -> HashSet<&str> {
        self.tools.iter().map(|native| native.tool.name()).collect()
    }
}

impl Gateway {
    /// Offers another Rust tool from now on, before or after the gateway starts. Clients are notified that
    /// the list changed.
    ///
    /// # Errors
    /// When the tool cannot be registered. Nothing has changed then.
    pub fn register(&self, tool: NativeTool) -> Result<(), RegisterError> {
        let mode = self.inner().settings.mode;
        self.register_with(|natives| natives.add_tool(tool, mode))
    }

    /// Offers another Rust prompt from now on. Clients are notified that the list changed.
    ///
    /// # Errors
    /// When the prompt cannot be registered. Nothing has changed then.
    pub fn register_prompt(&self, prompt: NativePrompt) -> Result<(), RegisterError> {
        self.register_with(|natives| natives.add_prompt(prompt))
    }

    /// Offers another Rust resource or resource template from now on. Clients are notified that the list changed.
    ///
    /// # Errors
    /// When the resource cannot be registered. Nothing has changed then.
    pub fn register_resource(&self, resource: NativeResource) -> Result<(), RegisterError> {
        self.register_with(|natives| natives.add_resource(resource))
    }

    fn register_with(
        &self,
        add: impl FnOnce(&mut Natives) -> Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        let gateway = self.inner();
        let alone = gateway.merging.lock();
        add(&mut gateway.natives.lock())?;
        gateway.merge_now(&alone);
        Ok(())
    }

    /// Reports that the contents of a Rust resource have changed: clients that subscribed to this URI are notified.
    pub fn resource_updated(&self, uri: &str) {
        let params = Raw::encode(&json!({"uri": uri}));
        self.inner().feeds.updated(None, &params, |principal| self.inner().may_read(principal, None, uri));
    }
}

/// Whether a name is a plain lower-case identifier.
fn is_plain_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_lowercase() || first == '_')
        && letters.all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(name: &str) -> NativePrompt {
        NativePrompt::new(name, "", |(): (), _| async { Ok(Vec::new()) })
    }

    fn resource(uri: &str) -> NativeResource {
        NativeResource::new(uri, "r", |_| async { Ok("") })
    }

    fn template(uri: &str) -> NativeResource {
        NativeResource::template(uri, "t", |(): (), _| async { Ok(Some("")) })
    }

    /// LIB-2: a prompt with a bad name, a resource with a bad URI, and duplicates are refused, and nothing changes.
    #[test]
    fn prompts_and_resources_are_refused_by_rule() {
        let mut natives = Natives::default();
        assert_eq!(natives.add_prompt(prompt("greet")), Ok(()));
        let twice = natives.add_prompt(prompt("greet"));
        assert_eq!(twice, Err(RegisterError::DuplicatePrompt("greet".to_owned())));
        let bad = natives.add_prompt(prompt("Greet"));
        assert_eq!(bad, Err(RegisterError::BadPromptName("Greet".to_owned())));
        assert_eq!(natives.add_resource(resource("a://b")), Ok(()));
        assert_eq!(natives.add_resource(template("a://{b}")), Ok(()));
        for (twice, uri) in [(resource("a://b"), "a://b"), (template("a://{b}"), "a://{b}")] {
            let expected = Err(RegisterError::DuplicateResource(uri.to_owned()));
            assert_eq!(natives.add_resource(twice), expected);
        }
        for (bad, reason) in [
            (resource("b"), "scheme"),
            (resource("1a://b"), "scheme"),
            (resource("a b://c"), "scheme"),
            (resource("a://b c"), "white space"),
            (resource("bridgehead+s:a://b"), "made by the gateway"),
            (resource("a://{b}"), "use `NativeResource::template`"),
            (template("a://b"), "`{name}`"),
            (template("a://{?b}"), "`{name}`"),
            (template("a://{b}/{b}"), "own name"),
        ] {
            let error = natives.add_resource(bad).unwrap_err();
            assert!(matches!(&error, RegisterError::BadUri { .. }), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
        let Natives { prompts, resources, templates, .. } = &natives;
        assert_eq!((prompts.len(), resources.len(), templates.len()), (1, 1, 1));
    }
}
