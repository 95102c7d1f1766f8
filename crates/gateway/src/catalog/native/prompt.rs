//! Prompts written in Rust.

use std::fmt;

use bridgehead_wire::Raw;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::context::ToolContext;
use super::handler::{BoundHandler, Handler, Named, Refused, ToolFailure, Unreadable};
use super::strings::{self, Strings};
use super::{NativeItem, RegisterError, is_plain_name};
use crate::error::GatewayError;

/// Who says a message of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptMessage {
    role: Role,
    content: Value,
}

impl PromptMessage {
    /// A text of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(Role::User, json!({"type": "text", "text": text.into()}))
    }

    /// A text of the model.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new(Role::Assistant, json!({"type": "text", "text": text.into()}))
    }

    /// Any content block of the protocol: an image, a sound, a resource.
    pub fn new(role: Role, content: Value) -> Self {
        Self { role, content }
    }
}

/// A Rust prompt: a function that makes messages from its arguments.
///
/// The arguments of a prompt are texts. The handler takes them as any type that serde can read: a struct, whose
/// fields may be texts, numbers, booleans, enums and options of these; a map of texts; or `()` for a prompt without
/// arguments. Arguments that cannot be read are refused with `INVALID_PARAMS`.
///
/// ```
/// use bridgehead_gateway::{NativePrompt, PromptMessage, ToolContext};
///
/// #[derive(serde::Deserialize)]
/// struct Review {
///     file: String,
///     lines: Option<u32>,
/// }
///
/// let review = NativePrompt::new("review", "Reviews a file.", |asked: Review, _cx: ToolContext| async move {
///     let most = asked.lines.unwrap_or(200);
///     Ok(vec![PromptMessage::user(format!("Review the first {most} lines of {}.", asked.file))])
/// })
/// .argument("file", "The path of the file.")
/// .optional_argument("lines", "How many lines at most.");
/// assert_eq!(review.name(), "review");
/// ```
#[derive(Clone)]
pub struct NativePrompt {
    name: String,
    title: Option<String>,
    description: String,
    arguments: Vec<Argument>,
    handler: Handler<Strings, Vec<PromptMessage>>,
}

#[derive(Debug, Clone, Serialize)]
struct Argument {
    name: String,
    description: String,
    required: bool,
}

impl NativePrompt {
    /// A prompt whose messages `handler` makes.
    pub fn new<A, F, R>(name: &str, description: &str, handler: F) -> Self
    where
        A: DeserializeOwned + Send + 'static,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Vec<PromptMessage>, ToolFailure>> + Send + 'static,
    {
        Self {
            name: name.to_owned(),
            title: None,
            description: description.to_owned(),
            arguments: Vec::new(),
            handler: Handler::new(strings::read::<A>, handler),
        }
    }

    /// Sets a display name.
    #[must_use]
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// Declares an argument that a client must give.
    #[must_use]
    pub fn argument(self, name: &str, description: &str) -> Self {
        self.declared(name, description, true)
    }

    /// Declares an argument that a client may leave out.
    #[must_use]
    pub fn optional_argument(self, name: &str, description: &str) -> Self {
        self.declared(name, description, false)
    }

    fn declared(mut self, name: &str, description: &str, required: bool) -> Self {
        let (name, description) = (name.to_owned(), description.to_owned());
        self.arguments.push(Argument { name, description, required });
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn check(&self) -> Result<(), RegisterError> {
        match is_plain_name(&self.name) {
            true => Ok(()),
            false => Err(RegisterError::BadPromptName(self.name.clone())),
        }
    }

    pub(crate) fn named(&self) -> Named<'_> {
        Named { kind: "prompt", name: &self.name }
    }

    /// Reads the arguments of a request: `None` if it has none.
    pub(crate) fn read(
        &self,
        arguments: Option<&Raw>,
        debug: bool,
    ) -> Result<BoundHandler<Vec<PromptMessage>>, GatewayError> {
        let refused = |path: String, message: &str| {
            let unreadable = Unreadable { path, message: message.to_owned() };
            Refused::Unreadable(unreadable).into_error(self.named(), debug)
        };
        let given: Map<String, Value> = match arguments.filter(|arguments| !arguments.is_null()) {
            Some(arguments) => {
                arguments.decode().map_err(|_| refused(String::new(), "they are not an object"))?
            }
            None => Map::new(),
        };
        let mut strings = Strings::new();
        for (name, value) in given {
            match value {
                Value::String(text) => drop(strings.insert(name, text)),
                _ => return Err(refused(format!("/{name}"), "it is not a text")),
            }
        }
        let missing =
            self.arguments.iter().find(|argument| argument.required && !strings.contains_key(&argument.name));
        if let Some(argument) = missing {
            return Err(refused(format!("/{}", argument.name), "it is required"));
        }
        self.handler.read(strings).map_err(|refused| refused.into_error(self.named(), debug))
    }

    /// The result of `prompts/get`.
    pub(crate) fn result(&self, messages: &[PromptMessage]) -> Raw {
        Raw::encode(&json!({"description": self.description, "messages": messages}))
    }
}

impl NativeItem for NativePrompt {
    fn key(&self) -> &str {
        &self.name
    }

    fn definition(&self) -> Raw {
        let mut definition = json!({
            "name": self.name,
            "description": self.description,
            "arguments": self.arguments,
        });
        if let Some(title) = &self.title {
            definition["title"] = json!(title);
        }
        Raw::encode(&definition)
    }
}

impl fmt::Debug for NativePrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativePrompt").field("name", &self.name).finish_non_exhaustive()
    }
}
