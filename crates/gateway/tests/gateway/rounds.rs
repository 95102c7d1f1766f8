//! A legacy client on a modern server: the gateway asks the client during its call, and calls the server again.

use std::time::Duration;

use bridgehead_config::{GatewaySettings, Launch, Remote, Roots, ServerConfig};
use bridgehead_testkit::client::modern_params;
use bridgehead_testkit::{Behaviour, Carrier, Mock, Served};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::questions::{Client, EVERYTHING};
use crate::support::Fixture;

/// A state with escapes that a decoder would change.
const STATE: &str = r#""v1.\u0041b\/c==-1""#;

fn round(state: &str, requests: &str) -> String {
    format!(r#"{{ "requestState" : {state},"inputRequests":{requests},"resultType":"input_required"}}"#)
}

fn asking() -> Mock {
    let form = r#"{"method":"elicitation/create","params":{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"n":{"type":"number","minimum":1.0}}}}}"#;
    let url = r#"{"method":"elicitation/create","params":{"mode":"url","message":"go","url":"https://x/"}}"#;
    let sample = r#"{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}"#;
    let roots = r#"{"method":"roots/list","params":{}}"#;
    let done = r#"{"resultType":"complete","content":[]}"#;
    let endless = |_| round(r#""again-1""#, &format!(r#"{{"k":{roots}}}"#)).into();
    Mock::modern()
        .tool(
            "form",
            Behaviour::InputRounds(vec![round(STATE, &format!(r#"{{"user name":{form}}}"#)).into()]),
        )
        .tool(
            "three",
            Behaviour::InputRounds(vec![
                round(STATE, &format!(r#"{{"a":{form},"b":{sample},"c":{roots}}}"#)).into(),
                round(r#""s-2""#, &format!(r#"{{"d":{roots}}}"#)).into(),
            ]),
        )
        .tool(
            "sample",
            Behaviour::InputRounds(vec![round(STATE, &format!(r#"{{"k":{sample}}}"#)).into(), done.into()]),
        )
        .tool(
            "url",
            Behaviour::InputRounds(vec![
                round(r#""s-1""#, &format!(r#"{{"k":{url}}}"#)).into(),
                round(r#""s-2""#, &format!(r#"{{"k":{url}}}"#)).into(),
            ]),
        )
        .tool(
            "waits",
            Behaviour::InputRounds(vec![r#"{"resultType":"input_required","requestState":"s-1"}"#.into()]),
        )
        .tool(
            "rooted",
            Behaviour::InputRounds(vec![round(r#""s-1""#, &format!(r#"{{"r":{roots}}}"#)).into()]),
        )
        .tool(
            "mixed",
            Behaviour::InputRounds(vec![
                round(r#""s-1""#, &format!(r#"{{"a":{form},"r":{roots}}}"#)).into(),
                round(r#""s-2""#, &format!(r#"{{"r":{roots}}}"#)).into(),
            ]),
        )
        .tool(
            "stubborn",
            Behaviour::InputRounds(vec![
                round(r#""s-1""#, &format!(r#"{{"a":{form},"r":{roots}}}"#)).into(),
                round(r#""s-2""#, &format!(r#"{{"a":{form},"r":{roots}}}"#)).into(),
            ]),
        )
        .tool("endless", Behaviour::InputRounds((0..2).map(endless).collect()))
        .tool("nothing", Behaviour::InputRounds(vec![r#"{"resultType":"input_required"}"#.into()]))
        .tool(
            "odd",
            Behaviour::InputRounds(vec![round(STATE, r#"{"k":{"method":"tools/call","params":{}}}"#).into()]),
        )
        .tool("received", Behaviour::Received)
}

async fn fixture() -> (Fixture, Served) {
    let served = asking().serve(Carrier::Http);
    let launch = Launch::Remote(Remote::new(served.url().parse().unwrap()));
    let fixture = Fixture::start(&[("near", asking())], |options| {
        options.servers.push(ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default()));
    });
    fixture.settled().await;
    (fixture, served)
}

fn received(result: &Value) -> Value {
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

/// ERA-1, legacy on modern: the client is asked during its call. The server is called again with the answers, the state
/// byte for byte, and the client's declared capabilities.
#[tokio::test]
async fn a_legacy_client_answers_a_modern_server() {
    let (fixture, _served) = fixture().await;
    for server in ["near", "far"] {
        let mut client = Client::new(EVERYTHING);
        let call = client.call(&fixture.gateway, &format!("{server}__form"));
        let asked = client.next().await;
        assert_eq!(asked["method"], "elicitation/create", "{asked}");
        assert_eq!(asked["params"]["requestedSchema"]["properties"]["n"]["minimum"], json!(1.0));
        let answer = json!({"action": "accept", "content": {"n": 1.5}});
        assert!(client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer})));
        let result = call.await.unwrap().unwrap();
        assert!(result.get("resultType").is_none(), "{result}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains(&format!(r#""requestState":{STATE}"#)), "byte for byte: {text}");
        let received = received(&result);
        assert_eq!(received["inputResponses"], json!({"user name": answer}));
        let declared = &received["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(*declared, json!({"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}));
    }
    assert_eq!(fixture.recorder.enters().len(), 2, "a call is one pair, however often the server was called");
    fixture.end().await;
}

/// ERA-1: several questions of a round are asked at once, and there may be several rounds.
#[tokio::test]
async fn questions_of_a_round_are_asked_at_once() {
    let (fixture, _served) = fixture().await;
    for server in ["near", "far"] {
        let mut client = Client::new(EVERYTHING);
        let call = client.call(&fixture.gateway, &format!("{server}__three"));
        let asked = [client.next().await, client.next().await, client.next().await];
        for asked in asked.iter().rev() {
            let answer = match asked["method"].as_str().unwrap() {
                "elicitation/create" => json!({"action": "decline"}),
                "roots/list" => json!({"roots": []}),
                _ => json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "s"}}),
            };
            client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer}));
        }
        let again = client.next().await;
        client.answer(
            &json!({"jsonrpc": "2.0", "id": again["id"], "result": {"roots": [{"uri": "file:///d"}]}}),
        );
        let received = received(&call.await.unwrap().unwrap());
        assert_eq!(
            received["inputResponses"],
            json!({"d": {"roots": [{"uri": "file:///d"}]}}),
            "only this round's answers"
        );
        assert_eq!(received["requestState"], "s-2");
    }
    fixture.end().await;
}

/// ERA-1: a user who gives no answer has cancelled. If sampling fails, the call fails, and the calling model gets the
/// reason.
#[tokio::test]
async fn a_client_that_fails_to_answer() {
    let (fixture, _served) = fixture().await;
    for server in ["near", "far"] {
        let mut client = Client::new(EVERYTHING);
        let error = json!({"code": -1, "message": "the user said no"});
        let call = client.call(&fixture.gateway, &format!("{server}__form"));
        let asked = client.next().await;
        client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
        let received = received(&call.await.unwrap().unwrap());
        assert_eq!(received["inputResponses"]["user name"], json!({"action": "cancel"}));
        for answer in [json!({"error": error}), json!({"result": {"no": "answer"}})] {
            let call = client.call(&fixture.gateway, &format!("{server}__sample"));
            let asked = client.next().await;
            let mut message = json!({"jsonrpc": "2.0", "id": asked["id"]});
            message.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
            client.answer(&message);
            let result = call.await.unwrap().unwrap();
            assert_eq!(result["isError"], true, "{result}");
            assert!(
                result["content"][0]["text"].as_str().unwrap().contains("sampling/createMessage"),
                "{result}"
            );
        }
    }
    fixture.end().await;
}

/// ERA-1: a client is not asked for what it did not declare, and a server that asks endlessly or asks nonsense is
/// stopped.
#[tokio::test]
async fn servers_that_ask_too_much() {
    let (fixture, _served) = fixture().await;
    for server in ["near", "far"] {
        for tool in ["sample", "nothing", "odd"] {
            let mut client = Client::new(r#"{"roots":{}}"#);
            let error =
                client.call(&fixture.gateway, &format!("{server}__{tool}")).await.unwrap().unwrap_err();
            let told = ["code", "retryable", "mayHaveRun"].map(|key| error["data"][key].clone());
            assert_eq!(json!(told), json!(["PROVIDER_INVALID_OUTPUT", false, true]), "{tool}: {error}");
            assert!(client.told.try_recv().is_err());
        }
        let error = fixture.call(&format!("{server}__form"), json!({})).await.unwrap_err();
        assert_eq!(error["data"]["code"], "PROVIDER_INVALID_OUTPUT", "no client to ask: {error}");
        let mut client = Client::new(EVERYTHING);
        let call = client.call(&fixture.gateway, &format!("{server}__endless"));
        for _ in 0..10 {
            let asked = client.next().await;
            client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}}));
        }
        let error = tokio::select! {
            outcome = call => outcome.unwrap().unwrap_err(),
            asked = client.told.recv() => panic!("the client was asked once more: {asked:?}"),
        };
        assert!(error["message"].as_str().unwrap().contains("10 times"), "{error}");
        assert!(client.told.try_recv().is_err());
    }
    fixture.end().await;
}

/// ERA-1: a server that only asks to wait is called again with its state. A page that the user agreed to is asked for
/// once, and the client is notified when the call is done.
#[tokio::test]
async fn servers_that_wait() {
    let (fixture, _served) = fixture().await;
    for server in ["near", "far"] {
        let mut client = Client::new(EVERYTHING);
        let result = client.call(&fixture.gateway, &format!("{server}__waits")).await.unwrap().unwrap();
        let put_off = received(&result);
        assert_eq!(put_off["requestState"], "s-1", "{put_off}");
        assert!(put_off.get("inputResponses").is_none(), "{put_off}");

        let call = client.call(&fixture.gateway, &format!("{server}__url"));
        let asked = client.next().await;
        let id = asked["params"]["elicitationId"].as_str().unwrap();
        assert!(id.len() > 20, "{asked}");
        client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
        let done = client.next().await;
        assert_eq!(done["method"], "notifications/elicitation/complete", "{done}");
        assert_eq!(done["params"]["elicitationId"], id);
        let received = received(&call.await.unwrap().unwrap());
        assert_eq!(received["inputResponses"], json!({"k": {"action": "accept"}}));
    }
    fixture.end().await;
}

/// ERA-1: a cancelled call withdraws its questions, and the server is not called again.
#[tokio::test]
async fn a_cancelled_call_asks_no_more() {
    let (fixture, _served) = fixture().await;
    for server in ["near", "far"] {
        let mut client = Client::new(EVERYTHING);
        let call = client.call(&fixture.gateway, &format!("{server}__form"));
        let asked = client.next().await;
        call.abort();
        let withdrawn = client.next().await;
        assert_eq!(withdrawn["method"], "notifications/cancelled");
        assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
        assert!(
            !client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}))
        );
    }
    fixture.end().await;
}

/// ERA-4: a client of an older revision is asked only what its revision has, and the server gets only those
/// capabilities.
#[tokio::test]
async fn older_clients_are_asked_in_their_own_words() {
    let (fixture, _served) = fixture().await;
    let mut client = Client::of(Revision::V2025_06_18, EVERYTHING);
    let call = client.call(&fixture.gateway, "near__form");
    let asked = client.next().await;
    assert!(asked["params"].get("mode").is_none(), "{asked}");
    client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}));
    let received = received(&call.await.unwrap().unwrap());
    let declared = &received["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(*declared, json!({"sampling": {}, "elicitation": {"form": {}}, "roots": {}}));
    let error = client.call(&fixture.gateway, "near__url").await.unwrap().unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_INVALID_OUTPUT", "its revision has no such mode: {error}");
    tokio::time::timeout(Duration::from_secs(60), fixture.end()).await.unwrap();
}

/// Two servers like those above, with configured roots.
async fn rooted() -> (Fixture, Served) {
    let served = asking().serve(Carrier::Http);
    let launch = Launch::Remote(Remote::new(served.url().parse().unwrap()));
    let fixture = Fixture::start(&[("near", asking())], |options| {
        options.servers.push(ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default()));
        for server in &mut options.servers {
            server.roots = Some(Roots::of(["file:///fixed".to_owned()]));
        }
    });
    fixture.settled().await;
    (fixture, served)
}

/// HOUR-1: a modern server that asks for the roots of a legacy client gets the configured ones, within the same call.
/// It does not matter whether the client declared roots or can be asked at all. The client is asked only the rest of a
/// round.
#[tokio::test]
async fn configured_roots_ask_no_legacy_client() {
    let (fixture, _served) = rooted().await;
    let fixed = json!({"roots": [{"uri": "file:///fixed"}]});
    for server in ["near", "far"] {
        let result = fixture.call(&format!("{server}__rooted"), json!({})).await.unwrap();
        let received = received(&result);
        assert_eq!(received["inputResponses"], json!({"r": fixed}), "{received}");
        assert_eq!(received["requestState"], "s-1");
        let declared = &received["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(*declared, json!({"roots": {}}), "the server may ask for roots");

        let mut client = Client::new(r#"{"elicitation":{}}"#);
        let call = client.call(&fixture.gateway, &format!("{server}__mixed"));
        let asked = client.next().await;
        assert_eq!(asked["method"], "elicitation/create", "{asked}");
        client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}));
        let received = self::received(&call.await.unwrap().unwrap());
        assert_eq!(received["inputResponses"], json!({"r": fixed}), "the second round asks for roots only");
        assert!(client.told.try_recv().is_err(), "the client was asked nothing else");
        let error = fixture.call(&format!("{server}__endless"), json!({})).await.unwrap_err();
        assert!(error["message"].as_str().unwrap().contains("10 times"), "{error}");
    }
    fixture.end().await;
}

/// HOUR-1: the same holds for a modern client: the gateway calls the server again within the one call. If a round asks
/// for more, the client sees the rest, with the state unchanged. The server gets the roots together with the client's
/// answers.
#[tokio::test]
async fn configured_roots_ask_no_modern_client() {
    let (fixture, _served) = rooted().await;
    let fixed = json!({"roots": [{"uri": "file:///fixed"}]});
    for server in ["near", "far"] {
        let capabilities = json!({"elicitation": {"form": {}}});
        let meta = json!({"io.modelcontextprotocol/clientCapabilities": capabilities});
        let params =
            |tool: &str| json!({"name": format!("{server}__{tool}"), "arguments": {}, "_meta": meta});
        let result = fixture.ask_as("one", "tools/call", modern_params(params("rooted"))).await;
        assert_eq!(result["resultType"], "complete", "{result}");
        let received = received(&result);
        assert_eq!(received["inputResponses"], json!({"r": fixed}), "{received}");
        assert_eq!(received["requestState"], "s-1");
        let declared = &received["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(*declared, json!({"elicitation": {"form": {}}, "roots": {}}));

        // `mixed` asks again only for what is missing, `stubborn` for everything it had asked.
        for tool in ["mixed", "stubborn"] {
            let asked = fixture.ask_as("one", "tools/call", modern_params(params(tool))).await;
            assert_eq!(asked["resultType"], "input_required", "{asked}");
            let questions = asked["inputRequests"].as_object().unwrap();
            assert_eq!(questions.keys().collect::<Vec<_>>(), ["a"], "{asked}");
            let mut again = params(tool);
            again["requestState"] = asked["requestState"].clone();
            again["inputResponses"] = json!({"a": {"action": "decline"}});
            let result = fixture.ask_as("one", "tools/call", modern_params(again)).await;
            assert_eq!(result["resultType"], "complete", "{result}");
            let received = self::received(&result);
            assert_eq!(
                received["inputResponses"],
                json!({"a": {"action": "decline"}, "r": fixed}),
                "the client's answers are repeated beside the roots: {received}"
            );
            assert_eq!(received["requestState"], "s-2");
        }
    }
    let recorded = fixture.recorder.enters().len();
    assert_eq!(recorded, 10, "a call is one pair, however often the server was called");
    fixture.end().await;
}
