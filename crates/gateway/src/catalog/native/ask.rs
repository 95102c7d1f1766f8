//! The questions that a handler may ask its client: a form, a page to open, a message of its model, its roots.
//!
//! A question is sent in the form that the client's revision knows. Whether a client can be asked is what it
//! declared; a client that cannot be asked is an error that the handler can match on, and the call goes on.

use bridgehead_wire::{Abilities, Era, Method, Raw};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::debug;

use super::context::{NotNow, ToolContext};
use super::handler::ToolFailure;
use crate::dialogue::park::answers;
use crate::dialogue::questions::{MOST, in_time, params_for};

/// What a user did with a question. `T` is what the form asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elicitation<T> {
    /// The user agreed, and filled in the form.
    Accepted(T),
    /// The user said no.
    Declined,
    /// The user dismissed the question, or did not answer in time (`question_timeout_ms`).
    Cancelled,
}

/// A folder or file that a client lets servers work with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Root {
    /// Its address, usually a `file:` URI.
    pub uri: String,
    /// A name for people.
    pub name: Option<String>,
}

/// Why a question of a handler has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The client did not declare that it can be asked this.
    #[error("the client cannot be asked: it did not declare the capability {capability}")]
    Unsupported {
        /// The capabilities that the client would have to declare.
        capability: Value,
    },
    /// The client answered with an error, did not answer in time, or has gone.
    #[error("the client was asked for `{method}`, which failed: {message}")]
    Failed {
        /// The method of the question.
        method: &'static str,
        /// The code of the JSON-RPC error.
        code: i64,
        /// Its message.
        message: String,
    },
    /// The answer is not what was asked for.
    #[error("the client's answer to `{method}` cannot be used: {reason}")]
    BadAnswer {
        /// The method of the question.
        method: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The type cannot be asked for by a form.
    #[error("a form cannot ask for a `{name}`: {reason}")]
    NotAForm {
        /// The name of the type.
        name: String,
        /// What a form cannot have.
        reason: String,
    },
    /// Too many questions of the call are open.
    #[error("{MOST} questions of this call are open already; ask again when one is answered")]
    TooMany,
    /// The call has ended, so nobody waits for an answer.
    #[error("the call has ended, so its client can no longer be asked")]
    Ended,
}

impl From<AskError> for ToolFailure {
    fn from(error: AskError) -> Self {
        let failure = Self::new(error.to_string());
        match &error {
            AskError::Unsupported { capability } => {
                failure.with_details(json!({"requiredCapabilities": capability}))
            }
            _ => failure,
        }
    }
}

impl ToolContext {
    /// Asks the user to fill in a form, whose fields `schema` describes: an object with texts, numbers, booleans and
    /// choices. With the feature `typed`, `elicit` makes the schema from a Rust type.
    ///
    /// ```
    /// use bridgehead_gateway::{Elicitation, NativeTool, ToolContext};
    /// use serde_json::{Value, json};
    ///
    /// let form = json!({"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]});
    /// let tool = NativeTool::new(
    ///     "wipe",
    ///     "Deletes everything.",
    ///     json!({"type": "object"}),
    ///     move |_: Value, cx: ToolContext| {
    ///         let form = form.clone();
    ///         async move {
    ///             match cx.elicit_form("Delete everything?", form).await? {
    ///                 Elicitation::Accepted(answer) if answer["sure"] == true => Ok(json!("deleted")),
    ///                 _ => Ok(json!("kept")),
    ///             }
    ///         }
    ///     },
    /// );
    /// # drop(tool);
    /// ```
    ///
    /// # Errors
    /// If the client cannot be asked, or its answer cannot be used.
    pub async fn elicit_form(&self, message: &str, schema: Value) -> Result<Elicitation<Value>, AskError> {
        let params = Raw::encode(&json!({"message": message, "requestedSchema": schema}));
        let answer = self.ask(&Method::Elicit, &params, None).await?;
        elicited(&answer)
    }

    /// Asks the user to open a page. `Accepted` means that the user agreed to, not that the page is done: the handler
    /// has to learn that from whatever serves the page.
    ///
    /// # Errors
    /// If the client cannot be asked, or its answer cannot be used.
    pub async fn elicit_url(&self, message: &str, url: &str) -> Result<Elicitation<()>, AskError> {
        let params = Raw::encode(&json!({"mode": "url", "message": message, "url": url}));
        // A legacy client knows a page by an id, and is told when the page is done.
        let visit = (self.call.revision.era() == Era::Legacy).then(|| uuid::Uuid::new_v4().to_string());
        let answer = self.ask(&Method::Elicit, &params, visit.as_deref()).await?;
        Ok(match elicited(&answer)? {
            Elicitation::Accepted(_) => {
                if let Some(visit) = visit {
                    self.call.visits(visit);
                }
                Elicitation::Accepted(())
            }
            Elicitation::Declined => Elicitation::Declined,
            Elicitation::Cancelled => Elicitation::Cancelled,
        })
    }

    /// Has the client's model write a message: the params and the result of `sampling/createMessage`, unchanged.
    ///
    /// # Errors
    /// If the client cannot be asked, or its answer cannot be used.
    pub async fn sample(&self, request: &Value) -> Result<Value, AskError> {
        let answer = self.ask(&Method::CreateMessage, &Raw::encode(request), None).await?;
        answer.decode().map_err(|error| bad_answer(&Method::CreateMessage, error.to_string()))
    }

    /// Asks the client for its roots: the folders and files that it lets servers work with.
    ///
    /// # Errors
    /// If the client cannot be asked, or its answer cannot be used.
    pub async fn roots(&self) -> Result<Vec<Root>, AskError> {
        #[derive(Deserialize)]
        struct Roots {
            roots: Vec<Root>,
        }
        let answer = self.ask(&Method::RootsList, &Raw::literal("{}"), None).await?;
        let roots: Result<Roots, _> = answer.decode();
        roots.map(|answer| answer.roots).map_err(|error| bad_answer(&Method::RootsList, error.to_string()))
    }

    async fn ask(&self, method: &Method, params: &Raw, visit: Option<&str>) -> Result<Raw, AskError> {
        let call = &self.call;
        let able = |abilities: Abilities| abilities.covers(method, Some(params));
        let Some(questioner) = call.questioner.as_ref().filter(|client| able(client.abilities())) else {
            let needed = Abilities::needed(method, Some(params)).and_then(|needed| needed.decode().ok());
            return Err(AskError::Unsupported { capability: needed.unwrap_or_default() });
        };
        let _asking = call.begin_asking().map_err(|reason| match reason {
            NotNow::Ended => AskError::Ended,
            NotNow::TooMany => AskError::TooMany,
        })?;
        debug!(correlationId = %self.correlation, %method, "the client is asked by a handler");
        let params = params_for(method, Some(params), call.revision, visit);
        let asked = in_time(method, questioner.ask(method, &params, call.patience), call.patience);
        let answer = tokio::select! {
            biased;
            answer = asked => answer,
            // The handler has returned, and asked from a task of its own.
            () = call.ended.cancelled() => return Err(AskError::Ended),
        };
        match answer {
            Ok(answer) if answers(method, &answer) => Ok(answer),
            Ok(_) => Err(bad_answer(method, "it lacks a member that such an answer has")),
            Err(error) => {
                Err(AskError::Failed { method: known(method), code: error.code(), message: error.message() })
            }
        }
    }
}

/// The answer to `elicitation/create`.
fn elicited(answer: &Raw) -> Result<Elicitation<Value>, AskError> {
    #[derive(Deserialize)]
    struct Answer {
        action: String,
        content: Option<Value>,
    }
    let answer: Answer = answer.decode().map_err(|error| bad_answer(&Method::Elicit, error.to_string()))?;
    match answer.action.as_str() {
        "accept" => Ok(Elicitation::Accepted(answer.content.unwrap_or_else(|| json!({})))),
        "decline" => Ok(Elicitation::Declined),
        "cancel" => Ok(Elicitation::Cancelled),
        other => {
            let reason = format!("its action `{}` is not known", other.chars().take(32).collect::<String>());
            Err(bad_answer(&Method::Elicit, reason))
        }
    }
}

pub(super) fn bad_answer(method: &Method, reason: impl Into<String>) -> AskError {
    AskError::BadAnswer { method: known(method), reason: reason.into() }
}

fn known(method: &Method) -> &'static str {
    method.known().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIB-2: what a user did with a question, as clients say it.
    #[test]
    fn what_a_user_did() {
        #[track_caller]
        fn check(answer: &'static str, expected: Result<Elicitation<Value>, &str>) {
            let read = elicited(&Raw::literal(answer)).map_err(|error| error.to_string());
            match (read, expected) {
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (read, expected) => assert_eq!(read, expected.map_err(str::to_owned), "{answer}"),
            }
        }
        check(r#"{"action":"accept","content":{"n":1}}"#, Ok(Elicitation::Accepted(json!({"n": 1}))));
        check(r#"{"action":"accept"}"#, Ok(Elicitation::Accepted(json!({}))));
        check(r#"{"action":"decline"}"#, Ok(Elicitation::Declined));
        check(r#"{"action":"cancel"}"#, Ok(Elicitation::Cancelled));
        check(r#"{"action":"maybe"}"#, Err("`elicitation/create` cannot be used: its action `maybe`"));
        check(r#"{"action":7}"#, Err("cannot be used"));
    }

    /// LIB-2: a handler that passes the error on names the missing capability.
    #[test]
    fn a_failure_names_the_capability() {
        let failure = ToolFailure::from(AskError::Unsupported { capability: json!({"roots": {}}) });
        assert!(failure.message.contains(r#"{"roots":{}}"#), "{failure}");
        assert_eq!(failure.details, Some(json!({"requiredCapabilities": {"roots": {}}})));
        assert_eq!(ToolFailure::from(AskError::Ended).details, None);
    }
}
