//! Resources written in Rust: one with a fixed URI, or all that a URI template describes.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bridgehead_wire::Raw;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::context::ToolContext;
use super::handler::{BoundHandler, Handler, Named, Refused, ToolFailure};
use super::strings::{self, Strings};
use super::{NativeItem, RegisterError};
use crate::catalog::template::Template;
use crate::relay::uris::is_rewritten;

/// What a resource contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceContents {
    /// A text.
    Text(String),
    /// Anything else; clients get it in base64.
    Bytes(Vec<u8>),
}

impl From<String> for ResourceContents {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for ResourceContents {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u8>> for ResourceContents {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// A Rust resource: a function that gives the contents of one URI, or of every URI that matches a template.
///
/// ```
/// use bridgehead_gateway::{NativeResource, ToolContext};
///
/// let motd = NativeResource::new("notes://motd", "motd", |_cx: ToolContext| async { Ok("Welcome.") })
///     .mime_type("text/plain")
///     .description("The message of the day.");
///
/// #[derive(serde::Deserialize)]
/// struct Day {
///     year: u16,
///     month: u8,
/// }
///
/// let diary = NativeResource::template(
///     "notes://diary/{year}/{month}",
///     "diary",
///     |day: Day, _cx: ToolContext| async move {
///         // `None` if there is no such resource.
///         Ok((day.month <= 12).then(|| format!("Nothing happened in {}-{}.", day.year, day.month)))
///     },
/// );
/// assert_eq!((motd.uri(), diary.uri()), ("notes://motd", "notes://diary/{year}/{month}"));
/// ```
#[derive(Clone)]
pub struct NativeResource {
    uri: String,
    is_template: bool,
    name: String,
    title: Option<String>,
    description: Option<String>,
    mime_type: Option<String>,
    handler: Handler<Strings, Option<ResourceContents>>,
}

impl NativeResource {
    /// A resource with a fixed URI.
    pub fn new<C, F, R>(uri: &str, name: &str, handler: F) -> Self
    where
        C: Into<ResourceContents>,
        F: Fn(ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<C, ToolFailure>> + Send + 'static,
    {
        let handler = move |(): (), context| {
            let running = handler(context);
            async move { running.await.map(|contents| Some(contents.into())) }
        };
        Self::with(uri, false, name, Handler::new(strings::read::<()>, handler))
    }

    /// All resources whose URIs match a template: `{name}` stands for a part of the URI without `/`, `?` and `#`,
    /// `{+name}` for any part. The handler takes the parts by their names, as a struct or a map of texts, without
    /// percent-encoding. It returns `None` if there is no such resource. A URI whose parts cannot be read as the
    /// handler's type does not exist either.
    ///
    /// A part is what the client wrote. If it names a file, the handler has to check that it stays where it should.
    pub fn template<A, C, F, R>(uri_template: &str, name: &str, handler: F) -> Self
    where
        A: DeserializeOwned + Send + 'static,
        C: Into<ResourceContents>,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Option<C>, ToolFailure>> + Send + 'static,
    {
        let handler = move |parts: A, context| {
            let running = handler(parts, context);
            async move { running.await.map(|contents| contents.map(Into::into)) }
        };
        Self::with(uri_template, true, name, Handler::new(strings::read::<A>, handler))
    }

    fn with(
        uri: &str,
        is_template: bool,
        name: &str,
        handler: Handler<Strings, Option<ResourceContents>>,
    ) -> Self {
        let (uri, name) = (uri.to_owned(), name.to_owned());
        Self { uri, is_template, name, title: None, description: None, mime_type: None, handler }
    }

    /// Sets a display name.
    #[must_use]
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// Describes it for models.
    #[must_use]
    pub fn description(self, description: impl Into<String>) -> Self {
        Self { description: Some(description.into()), ..self }
    }

    /// Sets the media type of its contents.
    #[must_use]
    pub fn mime_type(self, mime_type: impl Into<String>) -> Self {
        Self { mime_type: Some(mime_type.into()), ..self }
    }

    /// Its URI, or the template of its URIs.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    pub(super) const fn is_template(&self) -> bool {
        self.is_template
    }

    pub(super) fn check(&self) -> Result<(), RegisterError> {
        let refused = |reason: &'static str| Err(RegisterError::BadUri { uri: self.uri.clone(), reason });
        let scheme = self.uri.split_once(':').map(|(scheme, _)| scheme).unwrap_or_default();
        let letters = |text: &str| {
            text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '-' | '.'))
        };
        if !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) || !letters(scheme) {
            return refused("it has to begin with a scheme, as in `notes://today`");
        }
        if self.uri.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
            return refused("it contains white space");
        }
        if is_rewritten(&self.uri) {
            return refused("URIs with this scheme are made by the gateway");
        }
        match (self.is_template, Template::parse(&self.uri)) {
            (true, Some(_)) => Ok(()),
            (true, None) => {
                refused("a template has parts of the form `{name}` or `{+name}`, each with its own name")
            }
            (false, _) if self.uri.contains(['{', '}']) => {
                refused("it is a template; use `NativeResource::template`")
            }
            (false, _) => Ok(()),
        }
    }

    pub(crate) fn named<'a>(&self, uri: &'a str) -> Named<'a> {
        Named { kind: "resource", name: uri }
    }

    /// Reads the variables of a URI; the error of a URI that does not exist is `Unreadable`.
    pub(crate) fn read(&self, uri: &str) -> Result<BoundHandler<Option<ResourceContents>>, Refused> {
        let strings = match self.is_template {
            true => {
                Template::parse(&self.uri).and_then(|template| template.variables(uri)).unwrap_or_default()
            }
            false => Strings::new(),
        };
        self.handler.read(strings)
    }

    /// The result of `resources/read`.
    pub(crate) fn result(&self, uri: &str, contents: ResourceContents) -> Raw {
        let mut content = json!({"uri": uri});
        if let Some(mime_type) = &self.mime_type {
            content["mimeType"] = json!(mime_type);
        }
        match contents {
            ResourceContents::Text(text) => content["text"] = json!(text),
            ResourceContents::Bytes(bytes) => content["blob"] = json!(STANDARD.encode(bytes)),
        }
        Raw::encode(&json!({"contents": [content]}))
    }
}

impl NativeItem for NativeResource {
    fn key(&self) -> &str {
        &self.uri
    }

    fn definition(&self) -> Raw {
        let member = if self.is_template { "uriTemplate" } else { "uri" };
        let mut definition = json!({member: self.uri, "name": self.name});
        for (member, value) in
            [("title", &self.title), ("description", &self.description), ("mimeType", &self.mime_type)]
        {
            if let Some(value) = value {
                definition[member] = json!(value);
            }
        }
        Raw::encode(&definition)
    }
}

impl fmt::Debug for NativeResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeResource").field("uri", &self.uri).finish_non_exhaustive()
    }
}
