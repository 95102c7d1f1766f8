//! Tools, prompts and resources written in Rust, for clients of both eras.

mod asks;
mod items;
mod progress;
#[cfg(feature = "typed")]
mod typed;

use std::time::Duration;

use bridgehead_gateway::{
    Caller, ClientRequest, ClientTransport, Gateway, OpenQuestions, Outlet, Principal, ProgressSink,
    Questioner, Session,
};
use bridgehead_testkit::client::modern_params;
use bridgehead_wire::{Abilities, Era, Message, Object, Raw, RequestMeta, Revision};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;
/// What both eras have to do alike.
const BOTH: [Revision; 2] = [LEGACY, MODERN];

/// The capabilities of a client that can be asked everything.
fn everything() -> Value {
    json!({"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}})
}

fn object() -> Value {
    json!({"type": "object"})
}

/// The messages that a legacy client gets during its requests.
struct Sent(mpsc::Sender<Value>);

impl Outlet for Sent {
    fn put(&self, message: Bytes) -> bool {
        self.0.try_send(serde_json::from_slice(&message).unwrap()).is_ok()
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.closed())
    }
}

/// A client of either era, with what it declares.
struct Client {
    revision: Revision,
    capabilities: Value,
    principal: Principal,
    session: Session,
    questions: OpenQuestions,
    told: mpsc::Receiver<Value>,
    outlet: mpsc::Sender<Value>,
}

/// What a client was asked, and how its request ended.
#[derive(Debug)]
struct Talk {
    /// Method and params of each question, in order.
    questions: Vec<(String, Value)>,
    /// The notifications that a legacy client got meanwhile.
    notes: Vec<Value>,
    outcome: Result<Value, Value>,
}

impl Client {
    fn new(revision: Revision, capabilities: Value) -> Self {
        let (outlet, told) = mpsc::channel(64);
        let (session, questions) = (Session::new(), OpenQuestions::default());
        let principal = Principal::local();
        Self { revision, capabilities, principal, session, questions, told, outlet }
    }

    fn is_legacy(&self) -> bool {
        self.revision.era() == Era::Legacy
    }

    /// Sends one request, as the front does.
    fn send(
        &self,
        gateway: &Gateway,
        method: &str,
        params: &Value,
        progress: Option<ProgressSink>,
    ) -> JoinHandle<Result<Value, Value>> {
        let mut params = params.clone();
        let mut questioner = None;
        if self.is_legacy() {
            let abilities = Abilities::declared(&Raw::encode(&self.capabilities)).as_of(self.revision);
            let outlet = Sent(self.outlet.clone());
            questioner =
                (!abilities.is_none()).then(|| Questioner::new(abilities, self.questions.clone(), outlet));
        } else {
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
            params = modern_params(params);
        }
        let params = Object::parse(&Raw::encode(&params)).unwrap();
        let meta = RequestMeta::read(Some(&params)).unwrap();
        let caller = Caller {
            principal: self.principal.clone(),
            revision: self.revision,
            transport: ClientTransport::Memory,
            session: self.session.clone(),
            questioner,
        };
        let request = ClientRequest { method: method.into(), params, meta, id: None };
        let gateway = gateway.clone();
        tokio::spawn(async move {
            let outcome = gateway.answer(&caller, &request, progress).await;
            outcome
                .map(|result| result.to_raw().decode().unwrap())
                .map_err(|error| error.body().decode().unwrap())
        })
    }

    /// Sends a request and waits for its outcome.
    async fn ask(&self, gateway: &Gateway, method: &str, params: Value) -> Result<Value, Value> {
        self.send(gateway, method, &params, None).await.unwrap()
    }

    /// Calls a tool without arguments.
    async fn call(&self, gateway: &Gateway, tool: &str) -> Result<Value, Value> {
        self.ask(gateway, "tools/call", json!({"name": tool, "arguments": {}})).await
    }

    /// Makes a request to its end, and answers every question on the way: with a result, or with an error, which only a
    /// legacy client can give.
    async fn talk(
        &mut self,
        gateway: &Gateway,
        method: &str,
        params: Value,
        answer: impl Fn(&str, &Value) -> Result<Value, Value>,
    ) -> Talk {
        let (mut questions, mut notes) = (Vec::new(), Vec::new());
        let mut put = |method: &Value, params: &Value| {
            let method = method.as_str().unwrap().to_owned();
            let answer = answer(&method, params);
            questions.push((method, params.clone()));
            answer
        };
        if self.is_legacy() {
            let mut request = self.send(gateway, method, &params, None);
            let outcome = loop {
                tokio::select! {
                    biased;
                    Some(told) = self.told.recv() => {
                        if told.get("id").is_some() {
                            let mut response = json!({"jsonrpc": "2.0", "id": told["id"]});
                            match put(&told["method"], &told["params"]) {
                                Ok(result) => response["result"] = result,
                                Err(error) => response["error"] = error,
                            }
                            self.respond(&response);
                        } else {
                            notes.push(told);
                        }
                    }
                    outcome = &mut request => break outcome.unwrap(),
                }
            };
            return Talk { questions, notes, outcome };
        }
        let mut next = params.clone();
        loop {
            let outcome = self.ask(gateway, method, next).await;
            let asked = match &outcome {
                Ok(asked) if asked["resultType"] == "input_required" => asked,
                _ => return Talk { questions, notes, outcome },
            };
            let mut answers = json!({});
            for (key, question) in asked["inputRequests"].as_object().unwrap() {
                answers[key] = put(&question["method"], &question["params"]).unwrap();
            }
            next = params.clone();
            next["inputResponses"] = answers;
            next["requestState"] = asked["requestState"].clone();
        }
    }

    /// Responds to a question of a legacy client's call; returns whether one waited for it.
    fn respond(&self, response: &Value) -> bool {
        match Message::parse(&Bytes::from(response.to_string())) {
            Ok(Message::Response(response)) => self.questions.answered(response),
            other => panic!("{other:?}"),
        }
    }

    /// The next message of a legacy client.
    async fn next(&mut self) -> Value {
        tokio::time::timeout(Duration::from_secs(3_600), self.told.recv()).await.unwrap().unwrap()
    }
}

/// The data that a Rust tool answered with.
#[track_caller]
fn data(outcome: &Result<Value, Value>) -> &Value {
    let result = outcome.as_ref().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(result["structuredContent"]["ok"], true, "{result}");
    &result["structuredContent"]["data"]
}

/// The error in the envelope of a Rust tool.
#[track_caller]
fn failure(outcome: &Result<Value, Value>) -> &Value {
    let result = outcome.as_ref().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(result["isError"], true, "{result}");
    &result["structuredContent"]["error"]
}
