//! The questions of a server that are open at the client of one call.
//!
//! A call without questions carries an empty list and pays nothing for it. While a question is open, the
//! exchange with the server is polled too: the server may withdraw the question, ask another, answer the call
//! or end. A person has limited time to answer; after that the answer is "cancelled".

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bridgehead_upstream::{Event, Exchange};
use bridgehead_wire::{Id, Method, Object, Raw, Request, Revision, RpcError, Spliced, code, key};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tracing::debug;

use crate::caller::Caller;
use crate::dialogue::questioner::Answer;

/// How many may be open at once for one call.
pub(crate) const MOST: usize = 16;

/// The open questions of one call.
#[derive(Default)]
pub(crate) struct Questions {
    open: Vec<(Id, BoxFuture<'static, Answer>)>,
}

impl Questions {
    /// Whether the client is being asked.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Puts a question of the server to the client, which has `patience` to answer.
    pub(crate) fn put(
        &mut self,
        asked: &Request,
        caller: &Caller,
        exchange: &mut Exchange,
        patience: Duration,
    ) {
        let refusal = match &caller.questioner {
            Some(questioner) if self.open.len() < MOST => {
                let params = params_for(&asked.method, asked.params.as_ref(), caller.revision, None);
                debug!(method = %asked.method, "the client is asked");
                let answer =
                    in_time(&asked.method, questioner.ask(&asked.method, &params, patience), patience);
                return self.open.push((asked.id.clone(), answer));
            }
            Some(_) => RpcError::new(
                code::INTERNAL_ERROR,
                &format!("the client is being asked {MOST} things already; ask again when it has answered"),
            ),
            None => RpcError::new(code::METHOD_NOT_FOUND, "this client answers no questions"),
        };
        exchange.reply(&asked.id, Err(&refusal));
    }

    /// The server has withdrawn the question.
    pub(crate) fn withdraw(&mut self, id: &Id) {
        self.open.retain(|(open, _)| open != id);
    }

    /// The next event from the server; `None` if the client has answered everything before one came.
    pub(crate) async fn next(&mut self, exchange: &mut Exchange) -> Option<Event> {
        poll_fn(|context| {
            let mut at = 0;
            while at < self.open.len() {
                match self.open[at].1.as_mut().poll(context) {
                    Poll::Pending => at += 1,
                    Poll::Ready(answer) => {
                        let (id, _) = self.open.swap_remove(at);
                        let answer = answer.map(Spliced::from);
                        exchange.reply(&id, answer.as_ref());
                    }
                }
            }
            if self.open.is_empty() {
                return Poll::Ready(None);
            }
            exchange.poll_next(context).map(Some)
        })
        .await
    }
}

/// An answer within `patience`. On a timeout a question to the user counts as cancelled; any other question
/// fails.
pub(crate) fn in_time(
    method: &Method,
    answer: BoxFuture<'static, Answer>,
    patience: Duration,
) -> BoxFuture<'static, Answer> {
    let is_for_user = *method == Method::Elicit;
    Box::pin(async move {
        match tokio::time::timeout(patience, answer).await {
            Ok(answer) => answer,
            Err(_) if is_for_user => Ok(Raw::literal(r#"{"action":"cancel"}"#)),
            Err(_) => {
                let message = format!("the client did not answer within {} s", patience.as_secs());
                Err(RpcError::new(code::INTERNAL_ERROR, &message))
            }
        }
    })
}

/// The params of a question as a client of `revision` knows them. The server's progress token is removed,
/// because clients' progress is not relayed. `visit` is the id under which a client knows a page that it is
/// sent to.
pub(crate) fn params_for(
    method: &Method,
    params: Option<&Raw>,
    revision: Revision,
    visit: Option<&str>,
) -> Spliced {
    let Some(object) = params.and_then(|params| Object::parse(params).ok()) else {
        return Raw::literal("{}").into();
    };
    let mut edit = object.edit();
    if revision == Revision::MODERN {
        edit.remove_if(|name| matches!(name, b"elicitationId" | b"task"));
        if *method == Method::Elicit && object.get("mode").is_none() {
            edit.set("mode", Raw::literal("\"form\""));
        }
    }
    if let Some(visit) = visit {
        edit.set("elicitationId", Raw::string(visit));
    }
    if revision < Revision::V2025_11_25 {
        edit.remove_if(|name| matches!(name, b"mode" | b"tools" | b"toolChoice" | b"task"));
        if let Some(schema) = object.get("requestedSchema").and_then(|schema| plain_form(&schema)) {
            edit.set("requestedSchema", schema);
        }
    }
    let meta = object.get(key::META).and_then(|meta| Object::parse(&meta).ok());
    if let Some(meta) = meta.filter(|meta| meta.get(key::PROGRESS_TOKEN).is_some()) {
        let mut meta = meta.edit();
        meta.remove(key::PROGRESS_TOKEN);
        edit.set(key::META, meta.finish());
    }
    edit.finish()
}

/// A form as it was before 2025-11-25: choices with titles become an `enum` with `enumNames`, and fields with
/// several choices are removed. `None` if the form needs no change.
fn plain_form(schema: &Raw) -> Option<Raw> {
    let mut form: Value = schema.decode().ok()?;
    let fields = form.get_mut("properties")?.as_object_mut()?;
    let mut changed = false;
    let mut gone = Vec::new();
    for (name, field) in fields.iter_mut() {
        if field["type"] == "array" {
            gone.push(name.clone());
        } else if let Some(choices) = field.get("oneOf").and_then(Value::as_array) {
            let member = |of: &str| -> Vec<Value> { choices.iter().map(|one| one[of].clone()).collect() };
            let (values, titles) = (member("const"), member("title"));
            let Some(field) = field.as_object_mut() else { continue };
            field.remove("oneOf");
            field.insert("enum".to_owned(), values.into());
            field.insert("enumNames".to_owned(), titles.into());
            changed = true;
        }
    }
    for name in &gone {
        fields.remove(name);
    }
    if let Some(required) = form.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !gone.iter().any(|gone| name == gone));
    }
    (changed || !gone.is_empty()).then(|| Raw::encode(&form))
}

/// The refusal of a call whose server asks what its client did not declare.
pub(crate) fn undeclared(method: &Method, params: Option<&Raw>) -> RpcError {
    let needed = bridgehead_wire::Abilities::needed(method, params);
    let needed: Value = needed.and_then(|needed| needed.decode().ok()).unwrap_or_default();
    let message = format!("the server asks for `{method}`, which the request does not declare");
    RpcError::with_data(code::MISSING_CLIENT_CAPABILITY, &message, &json!({"requiredCapabilities": needed}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &Method, params: Option<&'static str>, revision: Revision, expected: &str) {
        let params = params.map(Raw::literal);
        assert_eq!(params_for(method, params.as_ref(), revision, None).to_raw().as_str(), expected);
    }

    #[test]
    fn what_a_client_is_asked() {
        let form = r#"{"mode":"form", "message":"?","n":1.0}"#;
        check(&Method::Elicit, Some(form), Revision::V2025_11_25, form);
        check(&Method::Elicit, Some(form), Revision::V2025_06_18, r#"{"message":"?","n":1.0}"#);
        let meta = r#"{"_meta":{"progressToken":1,"a/b":2},"message":"?"}"#;
        check(&Method::Elicit, Some(meta), Revision::V2025_11_25, r#"{"_meta":{"a/b":2},"message":"?"}"#);
        check(&Method::RootsList, None, Revision::V2025_11_25, "{}");
        check(&Method::RootsList, Some("[]"), Revision::V2025_11_25, "{}");
    }

    /// ERA-4: a question of a legacy server as a modern client knows it.
    #[test]
    fn what_a_modern_client_is_asked() {
        let url = r#"{"mode":"url","url":"https://x/","elicitationId":"1","message":"?"}"#;
        let modern = r#"{"mode":"url","url":"https://x/","message":"?"}"#;
        check(&Method::Elicit, Some(url), Revision::MODERN, modern);
        let form = r#"{"message":"?","task":{}}"#;
        check(&Method::Elicit, Some(form), Revision::MODERN, r#"{"mode":"form","message":"?"}"#);
        check(&Method::CreateMessage, Some(r#"{"messages":[]}"#), Revision::MODERN, r#"{"messages":[]}"#);
        let visit =
            params_for(&Method::Elicit, Some(&Raw::literal(modern)), Revision::V2025_11_25, Some("7"));
        assert!(visit.to_raw().as_str().contains(r#""elicitationId":"7""#));
    }

    /// ERA-4: what 2025-11-25 added is converted to the older form, or not asked.
    #[test]
    fn what_an_older_client_is_asked() {
        let old = Revision::V2025_06_18;
        let sampling = r#"{"messages":[],"tools":[],"toolChoice":{},"maxTokens":1}"#;
        check(&Method::CreateMessage, Some(sampling), old, r#"{"messages":[],"maxTokens":1}"#);
        let plain =
            r#"{"requestedSchema":{"type":"object","properties":{"a":{"type":"string","enum":["x"]}}}}"#;
        check(&Method::Elicit, Some(plain), old, plain);
        let titled = r#"{"requestedSchema":{"properties":{"a":{"oneOf":[{"const":"x","title":"X"}],"type":"string"},"b":{"type":"array"}},"required":["a","b"]}}"#;
        let asked = params_for(&Method::Elicit, Some(&Raw::literal(titled)), old, None).to_raw();
        assert_eq!(
            asked.decode::<Value>().unwrap(),
            json!({"requestedSchema": {
                "properties": {"a": {"type": "string", "enum": ["x"], "enumNames": ["X"]}},
                "required": ["a"],
            }})
        );
    }

    /// PIPE-9: if a user does not answer, the question is cancelled; any other question fails.
    #[tokio::test(start_paused = true)]
    async fn questions_time_out() {
        let silent = || -> BoxFuture<'static, Answer> { Box::pin(std::future::pending()) };
        let patience = Duration::from_secs(600);
        let answer = in_time(&Method::Elicit, silent(), patience).await.unwrap();
        assert_eq!(answer.as_str(), r#"{"action":"cancel"}"#);
        let began = tokio::time::Instant::now();
        let late = in_time(&Method::RootsList, silent(), patience).await.unwrap_err();
        assert_eq!((late.code(), began.elapsed()), (code::INTERNAL_ERROR, patience));
        assert_eq!(late.message(), "the client did not answer within 600 s");
        let ready = in_time(&Method::RootsList, Box::pin(async { Ok(Raw::literal("1")) }), patience);
        assert_eq!(ready.await.unwrap().as_str(), "1");
    }
}
