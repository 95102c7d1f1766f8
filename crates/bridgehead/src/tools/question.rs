//! What a server may ask during a call, and the answers: typed where a program looks, raw where nothing may be lost.
//!
//! A server of either era is answered the same way. What has no handler is not declared, so the server knows that it cannot
//! ask.

use std::fmt;
use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_config::Roots;
use bridgehead_gateway::{Answers, Elicitation};
use bridgehead_schema::Content;
use bridgehead_wire::{Abilities, Method, Object, Raw, RpcError};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

/// The code of a question that a person refused.
const REFUSED: i64 = -1;

/// What a server asks the user during a call (`elicitation/create`). The answer is an
/// [`Elicitation`]: the object that the user filled in, or `Value::Null` if the user agreed to open a page.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ElicitationRequest {
    /// The tool whose call it is, by the name that was called.
    pub tool: Arc<str>,
    /// The id of the call.
    pub call: CorrelationId,
    /// What to show to the user.
    pub message: String,
    /// What the user is to do.
    pub kind: ElicitationKind,
    /// The params of the question, with everything that the server wrote.
    pub params: Raw,
}

/// What the user is to do.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ElicitationKind {
    /// Fill in a form: an object that fits this schema.
    Form {
        /// The schema; `None` if the server sent none.
        schema: Option<Raw>,
    },
    /// Open a page.
    Url {
        /// Its address.
        url: String,
    },
}

/// What a server asks the model during a call (`sampling/createMessage`).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SamplingRequest {
    /// The tool whose call it is, by the name that was called.
    pub tool: Arc<str>,
    /// The id of the call.
    pub call: CorrelationId,
    /// The conversation so far.
    pub messages: Vec<SamplingMessage>,
    /// The instructions for the model.
    pub system_prompt: Option<String>,
    /// How many tokens the answer may have.
    pub max_tokens: Option<u64>,
    /// The params of the question, with everything that the server wrote: preferences, temperature, stop sequences.
    pub params: Raw,
}

/// One message of a conversation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SamplingMessage {
    /// `user` or `assistant`.
    pub role: String,
    /// What it says.
    pub content: Vec<Content>,
}

/// The answer to a [`SamplingRequest`]: the result of `sampling/createMessage`.
#[derive(Debug, Clone)]
pub struct SamplingResult(Raw);

impl SamplingResult {
    /// A text that a model said.
    pub fn text(model: &str, text: &str) -> Self {
        let content = json!({"type": "text", "text": text});
        Self(Raw::encode(
            &json!({"role": "assistant", "model": model, "content": content, "stopReason": "endTurn"}),
        ))
    }

    /// Any other result.
    pub fn raw(result: Raw) -> Self {
        Self(result)
    }
}

/// The model is not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SamplingRefused(String);

impl SamplingRefused {
    /// With a reason for the server.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

type ElicitationHandler = dyn Fn(ElicitationRequest) -> BoxFuture<'static, Elicitation<Value>> + Send + Sync;
type SamplingHandler =
    dyn Fn(SamplingRequest) -> BoxFuture<'static, Result<SamplingResult, SamplingRefused>> + Send + Sync;

/// What answers the questions of a call.
#[derive(Clone, Default)]
pub(super) struct Handlers {
    pub(super) roots: Option<Roots>,
    pub(super) elicitation: Option<Arc<ElicitationHandler>>,
    pub(super) sampling: Option<Arc<SamplingHandler>>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers").field("abilities", &self.abilities()).finish_non_exhaustive()
    }
}

impl Handlers {
    fn abilities(&self) -> Abilities {
        let mut declared = json!({});
        if self.elicitation.is_some() {
            declared["elicitation"] = json!({"form": {}, "url": {}});
        }
        if self.sampling.is_some() {
            declared["sampling"] = json!({});
        }
        if self.roots.is_some() {
            declared["roots"] = json!({});
        }
        Abilities::declared(&Raw::encode(&declared))
    }

    /// The same as a function of the gateway, for a call of `tool`; `None` if nothing can be asked.
    pub(super) fn answers(self, tool: &str, call: CorrelationId) -> Option<Answers> {
        if self.roots.is_none() && self.elicitation.is_none() && self.sampling.is_none() {
            return None;
        }
        let tool: Arc<str> = tool.into();
        Some(Answers::new(self.abilities(), move |method, params| {
            match (&method, &self.elicitation, &self.sampling, &self.roots) {
                (Method::Elicit, Some(answer), ..) => {
                    let answering = answer(elicitation(Arc::clone(&tool), call, params));
                    Box::pin(async { Ok(encode(answering.await)) })
                }
                (Method::CreateMessage, _, Some(answer), _) => {
                    let answering = answer(sampling(Arc::clone(&tool), call, params));
                    Box::pin(async {
                        let refused = |SamplingRefused(reason)| RpcError::new(REFUSED, &reason);
                        answering.await.map(|SamplingResult(result)| result).map_err(refused)
                    })
                }
                (Method::RootsList, _, _, Some(roots)) => {
                    let roots =
                        Raw::parse(roots.as_str().to_owned()).unwrap_or(Raw::literal(r#"{"roots":[]}"#));
                    Box::pin(std::future::ready(Ok(roots)))
                }
                _ => {
                    let refused = RpcError::new(
                        bridgehead_wire::code::METHOD_NOT_FOUND,
                        &format!("this client does not answer `{method}`"),
                    );
                    Box::pin(std::future::ready(Err(refused)))
                }
            }
        }))
    }
}

/// The answer to `elicitation/create`.
fn encode(answer: Elicitation<Value>) -> Raw {
    Raw::encode(&match answer {
        Elicitation::Accepted(Value::Null) => json!({"action": "accept"}),
        Elicitation::Accepted(content) => json!({"action": "accept", "content": content}),
        Elicitation::Declined => json!({"action": "decline"}),
        Elicitation::Cancelled => json!({"action": "cancel"}),
    })
}

fn elicitation(tool: Arc<str>, call: CorrelationId, params: Raw) -> ElicitationRequest {
    let object = Object::parse(&params).unwrap_or_else(|_| Object::empty());
    let text = |name: &str| object.get(name).and_then(|raw| raw.to_text());
    let kind = match text("mode").as_deref() {
        Some("url") => ElicitationKind::Url { url: text("url").unwrap_or_default() },
        _ => ElicitationKind::Form { schema: object.get("requestedSchema") },
    };
    ElicitationRequest { tool, call, message: text("message").unwrap_or_default(), kind, params }
}

fn sampling(tool: Arc<str>, call: CorrelationId, params: Raw) -> SamplingRequest {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Asked {
        messages: Vec<AskedMessage>,
        system_prompt: Option<String>,
        max_tokens: Option<u64>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct AskedMessage {
        role: String,
        content: Value,
    }
    let Asked { messages, system_prompt, max_tokens } = params.decode().unwrap_or_default();
    let message = |AskedMessage { role, content }| {
        // Earlier revisions have one block, later ones one or several.
        let blocks = if content.is_array() { content } else { json!([content]) };
        SamplingMessage { role, content: Content::all(Some(&blocks)) }
    };
    let messages = messages.into_iter().map(message).collect();
    SamplingRequest { tool, call, messages, system_prompt, max_tokens, params }
}
