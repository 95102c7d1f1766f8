//! Tools written in Rust and registered through the library, including the built-in ones.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_config::Mode;
use bridgehead_schema::Validator;
use bridgehead_wire::{Code, Raw};
use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::access::Principal;
use crate::catalog::Registered;
use crate::error::CallError;
use crate::gateway::Gateway;

/// What a tool needs of the gateway's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It changes something.
    Write,
    /// It uses the upstream servers.
    Upstreams,
}

impl Need {
    const fn admitted_by(self, mode: Mode) -> bool {
        match (self, mode) {
            (_, Mode::Full | Mode::Test)
            | (Self::Upstreams, Mode::Readonly)
            | (Self::Write, Mode::Minimal) => true,
            (Self::Write, Mode::Readonly) | (Self::Upstreams, Mode::Minimal) => false,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "to change something",
            Self::Upstreams => "upstream servers",
        })
    }
}

/// What a handler knows of the call.
#[derive(Debug, Clone)]
pub struct ToolContext {
    /// The call's correlation id.
    pub correlation: CorrelationId,
    /// Who calls.
    pub principal: Principal,
}

/// A handler's own failure.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ToolFailure {
    message: String,
    details: Option<Value>,
}

impl ToolFailure {
    /// A failure with a message for people.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), details: None }
    }

    /// Adds details for programs.
    #[must_use]
    pub fn with_details(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }
}

impl From<&str> for ToolFailure {
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

type HandlerFuture = Pin<Box<dyn Future<Output = Result<Value, ToolFailure>> + Send>>;
type Handler = Arc<dyn Fn(Value, ToolContext) -> HandlerFuture + Send + Sync>;

/// A Rust tool.
#[derive(Clone)]
pub struct NativeTool {
    name: String,
    title: Option<String>,
    description: String,
    input_schema: Value,
    data_schema: Value,
    needs: Vec<Need>,
    locked: bool,
    read_only: bool,
    handler: Handler,
}

/// Why a Rust tool cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The name is not a plain lower-case identifier.
    #[error(
        "tool name `{0}` is not allowed: use lower-case letters, digits and `_`, not beginning with a digit"
    )]
    BadName(String),
    /// The input schema is not one for an object, or does not compile.
    #[error("the input schema of tool `{tool}` must be an object schema (`\"type\": \"object\"`): {reason}")]
    BadSchema {
        /// The tool.
        tool: String,
        /// What is wrong.
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
}

impl NativeTool {
    /// A tool that takes arguments of `input_schema` and answers with data.
    pub fn new<F, R>(name: &str, description: &str, input_schema: Value, handler: F) -> Self
    where
        F: Fn(Value, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, ToolFailure>> + Send + 'static,
    {
        Self {
            name: name.to_owned(),
            title: None,
            description: description.to_owned(),
            input_schema,
            data_schema: json!({}),
            needs: Vec::new(),
            locked: true,
            read_only: false,
            handler: Arc::new(move |arguments, context| Box::pin(handler(arguments, context))),
        }
    }

    /// Sets a display name.
    #[must_use]
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// Describes the data it answers with.
    #[must_use]
    pub fn data_schema(self, data_schema: Value) -> Self {
        Self { data_schema, ..self }
    }

    /// Declares something it needs of the mode.
    #[must_use]
    pub fn needs(mut self, need: Need) -> Self {
        self.needs.push(need);
        self
    }

    /// Lets calls of it run side by side; by default they take turns.
    #[must_use]
    pub fn concurrent(self) -> Self {
        Self { locked: false, ..self }
    }

    /// Annotates it as changing nothing.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) const fn locked(&self) -> bool {
        self.locked
    }

    /// The checks of registration, in the order a person would fix them.
    fn check(&self, mode: Mode, registered: &[Arc<Registered>]) -> Result<Validator, RegisterError> {
        let mut letters = self.name.chars();
        let first_fits = letters.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_');
        if !first_fits || !letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
            return Err(RegisterError::BadName(self.name.clone()));
        }
        let bad_schema = |reason: String| RegisterError::BadSchema { tool: self.name.clone(), reason };
        if !bridgehead_schema::is_object_schema(&self.input_schema) {
            return Err(bad_schema("its root is not of type `object`".to_owned()));
        }
        let validator = Validator::compile(&self.input_schema.to_string())
            .map_err(|error| bad_schema(error.to_string()))?;
        if registered.iter().any(|other| other.tool.name == self.name) {
            return Err(RegisterError::Duplicate(self.name.clone()));
        }
        match self.needs.iter().find(|need| !need.admitted_by(mode)) {
            Some(need) => Err(RegisterError::NotAdmitted { tool: self.name.clone(), need: *need, mode }),
            None => Ok(validator),
        }
    }

    /// Its entry in a tool list; the output schema describes the envelope.
    pub(crate) fn definition(&self) -> Value {
        let mut definition = json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": {
                "type": "object",
                "properties": {
                    "ok": {"type": "boolean"},
                    "data": self.data_schema,
                    "error": {
                        "type": "object",
                        "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "details": {}},
                        "required": ["code", "message"],
                    },
                },
                "required": ["ok"],
            },
            "annotations": {"readOnlyHint": self.read_only},
        });
        if let Some(title) = &self.title {
            definition["title"] = json!(title);
        }
        definition
    }

    /// Runs the handler. A failure and a panic of the handler both become `HANDLER_ERROR`.
    pub(crate) async fn run(
        &self,
        arguments: Value,
        context: ToolContext,
        debug: bool,
    ) -> Result<Value, CallError> {
        // The handler may panic before it returns a future, so it is called inside the guarded block.
        let running = AssertUnwindSafe(async { (self.handler)(arguments, context).await }).catch_unwind();
        match running.await {
            Ok(Ok(data)) => Ok(data),
            Ok(Err(failure)) => {
                let error = CallError::new(Code::HandlerError, failure.message).after_sending();
                Err(match failure.details {
                    Some(details) => error.with_details(&details),
                    None => error,
                })
            }
            Err(panic) => {
                let words = crate::panics::words(&*panic);
                tracing::error!(tool = self.name, panic = words, "a tool handler panicked");
                let error = CallError::new(Code::HandlerError, format!("tool `{}` panicked", self.name))
                    .after_sending();
                Err(if debug {
                    error.with_details(&json!({"panic": words, "backtrace": crate::panics::last_backtrace()}))
                } else {
                    error
                })
            }
        }
    }
}

impl Registered {
    /// Adds a tool to the registered ones, if it passes the checks.
    pub(crate) fn add(all: &mut Vec<Arc<Self>>, tool: NativeTool, mode: Mode) -> Result<(), RegisterError> {
        let validator = tool.check(mode, all)?;
        let definition = Raw::encode(&tool.definition());
        all.push(Arc::new(Self { tool, validator, definition }));
        Ok(())
    }
}

impl Gateway {
    /// Offers another Rust tool from now on, before or after the gateway starts. Clients are notified that
    /// the list changed.
    ///
    /// # Errors
    /// When the tool cannot be registered. Nothing has changed then.
    pub fn register(&self, tool: NativeTool) -> Result<(), RegisterError> {
        let gateway = self.inner();
        let alone = gateway.merging.lock();
        Registered::add(&mut gateway.natives.lock(), tool, gateway.settings.mode)?;
        gateway.merge_now(&alone);
        Ok(())
    }
}

impl fmt::Debug for NativeTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeTool").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, schema: Value) -> NativeTool {
        NativeTool::new(name, "", schema, |_, _| async { Ok(json!(null)) })
    }

    fn object() -> Value {
        json!({"type": "object"})
    }

    /// SRV-8: a bad name, a schema that is not an object schema, and a duplicate are three errors.
    #[test]
    fn registration_refuses_by_rule() {
        let fits = |name| tool(name, object()).check(Mode::Full, &[]).is_ok();
        assert!(fits("a") && fits("_a1") && fits("snake_case"));
        for name in ["", "A", "1a", "a-b", "a b", "ä"] {
            assert_eq!(
                tool(name, object()).check(Mode::Full, &[]).err(),
                Some(RegisterError::BadName(name.to_owned()))
            );
        }
        for schema in
            [json!({"type": "string"}), json!(true), json!({}), json!({"type": "object", "properties": 5})]
        {
            let error = tool("a", schema).check(Mode::Full, &[]).err();
            assert!(matches!(error, Some(RegisterError::BadSchema { .. })), "{error:?}");
        }
        let mut registered = Vec::new();
        assert_eq!(Registered::add(&mut registered, tool("a", object()), Mode::Full), Ok(()));
        assert_eq!(
            Registered::add(&mut registered, tool("a", object()), Mode::Full),
            Err(RegisterError::Duplicate("a".to_owned()))
        );
        assert_eq!(registered.len(), 1);
    }

    /// SRV-5: a tool that needs what the mode does not admit is refused, and the error names both.
    #[test]
    fn modes_admit_by_need() {
        let refused = |need, mode| {
            tool("a", object()).needs(need).check(mode, &[]).err().map(|error| error.to_string())
        };
        assert_eq!(refused(Need::Write, Mode::Full), None);
        assert_eq!(refused(Need::Write, Mode::Test), None);
        assert_eq!(refused(Need::Write, Mode::Minimal), None);
        assert_eq!(refused(Need::Upstreams, Mode::Readonly), None);
        assert_eq!(
            refused(Need::Write, Mode::Readonly).unwrap(),
            "tool `a` needs to change something, which mode `readonly` does not admit"
        );
        assert_eq!(
            refused(Need::Upstreams, Mode::Minimal).unwrap(),
            "tool `a` needs upstream servers, which mode `minimal` does not admit"
        );
    }
}
