//! Questions that a server asks its client during a call: between two modern sides the question is a result.

use bridgehead_config::{GatewaySettings, Launch, Remote, ServerConfig};
use bridgehead_testkit::client::modern_params;
use bridgehead_testkit::{Behaviour, Carrier, Era, Mock, Served, Tool};
use bridgehead_wire::{Raw, Revision};
use serde_json::{Value, json};

use crate::support::{Fixture, ask_raw};

const MODERN: Revision = Revision::MODERN;
/// White space, key order, escapes and numbers that a decoder would change.
const QUESTION: &str = r#"{ "requestState" : "v1.\u0041b\/c==","inputRequests":{"r1":{"method":"elicitation/create","params":{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"n":{"type":"number","minimum":1.0}}}}}},"resultType":"input_required"}"#;

fn asking(era: Era) -> Mock {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false});
    let ask = Behaviour::InputRequired(QUESTION.into()).needing("elicitation");
    Mock::new()
        .era(era)
        .full_tool(Tool::new("ask", ask).input_schema(schema))
        .tool("bare", Behaviour::InputRequired(QUESTION.into()))
        .tool("task", Behaviour::raw_result(r#"{"resultType":"task","taskId":"1"}"#))
        .tool("received", Behaviour::Received)
}

/// The mock as a process and behind streamable HTTP.
fn fixture(era: Era) -> (Fixture, Served) {
    let served = asking(era).serve(Carrier::Http);
    let launch = Launch::Remote(Remote::new(served.url().parse().unwrap()));
    let fixture = Fixture::start(&[("near", asking(era))], |options| {
        options.servers.push(ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default()));
    });
    (fixture, served)
}

async fn call(fixture: &Fixture, tool: &str, members: Value, capabilities: Value) -> Result<Raw, Value> {
    let mut params =
        json!({"name": tool, "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}});
    params.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let params = Raw::encode(&modern_params(params));
    let outcome = ask_raw(&fixture.gateway, MODERN, "tools/call", &params, None).await;
    outcome.map_err(|error| error.body().decode().unwrap())
}

fn text(result: &Raw) -> String {
    result.decode::<Value>().unwrap()["content"][0]["text"].as_str().unwrap().to_owned()
}

/// ERA-1, modern on modern: a question passes unchanged, and the server sees the client's own capabilities. The
/// client's next call brings the state and the answers to the server untouched, and its arguments are still checked.
#[tokio::test]
async fn a_modern_client_answers_a_modern_server() {
    let (fixture, _served) = fixture(Era::Modern);
    fixture.settled().await;
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}, "roots": {}});
    for server in ["near", "far"] {
        let tool = format!("{server}__ask");
        let asked =
            call(&fixture, &tool, json!({"arguments": {"x": 1}}), capabilities.clone()).await.unwrap();
        let (marks, rest) = asked.as_str().split_once(r#"},"requestState""#).unwrap();
        assert!(marks.contains("correlationId") && marks.contains(r#"{"name":"bridgehead""#), "{marks}");
        assert_eq!(format!(r#"{{ "requestState"{rest}"#), QUESTION);

        let retry = json!({
            "arguments": {"x": 1},
            "inputResponses": {"r1": {"action": "accept", "content": {"n": 1.5}}, "unknown": 7},
            "requestState": "v1.Ab/c==",
        });
        let done = call(&fixture, &tool, retry.clone(), capabilities.clone()).await.unwrap();
        let received: Value = serde_json::from_str(&text(&done)).unwrap();
        for member in ["arguments", "inputResponses", "requestState"] {
            assert_eq!(received[member], retry[member], "{received}");
        }
        assert_eq!(received["_meta"]["io.modelcontextprotocol/clientCapabilities"], capabilities);
        let answers_only = json!({"arguments": {"x": 1}, "inputResponses": {}});
        let received = text(&call(&fixture, &tool, answers_only, capabilities.clone()).await.unwrap());
        assert!(received.contains("inputResponses") && !received.contains("requestState"), "{received}");

        let wrong = json!({"arguments": {"x": "no"}, "requestState": "v1.Ab/c=="});
        let refused = call(&fixture, &tool, wrong, capabilities.clone()).await.unwrap();
        assert!(refused.as_str().contains("INVALID_PARAMS"), "{}", refused.as_str());
    }
    fixture.end().await;
}

/// ERA-1, modern on modern: the client gets the server's error about a capability that the client lacks.
#[tokio::test]
async fn a_missing_capability_keeps_its_meaning() {
    let (fixture, _served) = fixture(Era::Modern);
    fixture.settled().await;
    for server in ["near", "far"] {
        let tool = format!("{server}__ask");
        let error = call(&fixture, &tool, json!({"arguments": {"x": 1}}), json!({})).await.unwrap_err();
        assert_eq!(error["code"], -32021, "{error}");
        assert_eq!(error["data"]["requiredCapabilities"], json!({"elicitation": {}}));
        let error = fixture.call(&tool, json!({"x": 1})).await.unwrap_err();
        assert_eq!(error["code"], -32602, "its revision does not have -32021: {error}");
        assert_eq!(error["data"]["requiredCapabilities"], json!({"elicitation": {}}));
    }
    fixture.end().await;
}

#[track_caller]
fn is_refused(error: &Value) {
    assert_eq!(error["data"]["code"], "PROVIDER_INVALID_OUTPUT", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("unexpected `resultType`"), "{message}");
}

/// ERA-1: a client that would not recognise a question never gets one, and no other kind of result passes.
#[tokio::test]
async fn questions_without_a_capable_client_are_refused() {
    let (fixture, _served) = fixture(Era::Modern);
    fixture.settled().await;
    for server in ["near", "far"] {
        let error = fixture.call(&format!("{server}__bare"), json!({})).await.unwrap_err();
        assert_eq!(error["data"]["code"], "PROVIDER_INVALID_OUTPUT", "{error}");
        assert!(error["message"].as_str().unwrap().contains("did not declare"), "{error}");
        let params = fixture.call(&format!("{server}__received"), json!({})).await.unwrap();
        let params = params["content"][0]["text"].as_str().unwrap();
        assert!(
            params.contains(r#"clientCapabilities":{}"#),
            "no capability is declared for the client: {params}"
        );
        let task = format!("{server}__task");
        is_refused(&call(&fixture, &task, json!({}), json!({"elicitation": {}})).await.unwrap_err());
    }
    fixture.end().await;
}

/// ERA-1: a server that could not take the answer may not ask.
#[tokio::test]
async fn questions_of_the_wrong_era_are_refused() {
    let (fixture, _served) = fixture(Era::Legacy);
    fixture.settled().await;
    for server in ["near", "far"] {
        let bare = format!("{server}__bare");
        is_refused(&call(&fixture, &bare, json!({}), json!({"elicitation": {}})).await.unwrap_err());
    }
    fixture.end().await;
}
