//! Tasks of modern servers: a task id leads back to its server, and only for the client that got it.

use std::time::Duration;

use bridgehead_gateway::{Caller, ClientRequest, ClientTransport, Principal, ProgressSink, Session};
use bridgehead_testkit::client::modern_params;
use bridgehead_testkit::{Behaviour, Carrier, Mock};
use bridgehead_wire::{Id, Object, Raw, RequestMeta, Revision};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::support::Fixture;

const EXTENDED: &str =
    r#"{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}},"experimental":{"x/y":{"n":1.0}}}"#;
const TASK: &str = r#"{"resultType":"task","taskId":"t/1","status":"working","ttlMs":null,"x": 1.50}"#;

/// A server whose tool becomes a task; all such servers use the same task id.
fn server(name: &str) -> Mock {
    let state = format!(
        r#"{{"resultType":"complete","taskId":"t/1","status":"completed","result":{{"by":"{name}"}},"params":$PARAMS}}"#
    );
    Mock::modern()
        .capabilities(EXTENDED)
        .tool("slow", Behaviour::raw_result(TASK))
        .tool("received", Behaviour::Received)
        .tool(
            "tell",
            Behaviour::tell_aside(
                "notifications/tasks",
                format!(r#"{{"taskId":"t/1","status":"completed","result":{{"by":"{name}"}},"x":1.50}}"#),
                Behaviour::Text("told".to_owned()),
            ),
        )
        .replies("tasks/get", state)
        .replies("tasks/update", r#"{"resultType":"complete"}"#)
        .replies("tasks/cancel", r#"{"resultType":"complete"}"#)
}

async fn ask(fixture: &Fixture, who: &str, method: &str, mut params: Value) -> Result<Value, Value> {
    if params["_meta"].is_null() {
        let declared = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
        params["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities": declared});
    }
    let (caller, request) = request(who, method, params, None);
    let answer = fixture.gateway.answer(&caller, &request, None).await;
    answer.map(|result| result.to_raw().decode().unwrap()).map_err(|error| error.body().decode().unwrap())
}

fn request(who: &str, method: &str, params: Value, id: Option<&str>) -> (Caller, ClientRequest) {
    let params = Object::parse(&Raw::encode(&modern_params(params))).unwrap();
    let meta = RequestMeta::read(Some(&params)).unwrap();
    let caller = Caller {
        principal: Principal::named(who),
        revision: Revision::MODERN,
        transport: ClientTransport::Memory,
        session: Session::new(),
        questioner: None,
    };
    let id = id.and_then(|id| Id::new(Raw::string(id)));
    (caller, ClientRequest { method: method.into(), params, meta, id })
}

/// Opens a listen for tasks; returns its messages and the acknowledged part.
async fn listen(
    fixture: &Fixture,
    who: &str,
    ids: Value,
    capabilities: Value,
) -> (mpsc::Receiver<Bytes>, AbortOnDropHandle<()>, Value) {
    let params = json!({
        "notifications": {"taskIds": ids},
        "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities},
    });
    let (caller, request) = request(who, "subscriptions/listen", params, Some("l"));
    let (sink, mut notes) = ProgressSink::channel(8);
    let gateway = fixture.gateway.clone();
    let listening = AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = gateway.answer(&caller, &request, Some(sink)).await;
    }));
    let first = tokio::time::timeout(Duration::from_secs(30), notes.recv()).await.unwrap().unwrap();
    let first: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    (notes, listening, first["params"]["notifications"].clone())
}

/// ERA-1, ACC-1: a task is queried, answered and cancelled at its own server, over stdio and HTTP, only by the client that
/// made it. The server's answers pass through.
#[tokio::test]
async fn a_task_is_found_again() {
    let far = server("far").serve(Carrier::Http);
    let fixture = Fixture::start(&[("near", server("near"))], |options| {
        let mut entry = crate::support::at("far", &far.url());
        entry.era = bridgehead_config::EraChoice::Modern;
        options.servers.push(entry);
    });
    fixture.settled().await;
    for name in ["near", "far"] {
        let task = ask(&fixture, "me", "tools/call", json!({"name": format!("{name}__slow")})).await.unwrap();
        assert_eq!(task["resultType"], "task", "{task}");
        assert_eq!((&task["status"], &task["x"]), (&json!("working"), &json!(1.5)));
        let id = task["taskId"].as_str().unwrap();
        assert_ne!(id, "t/1");
        let got = ask(&fixture, "me", "tasks/get", json!({"taskId": id})).await.unwrap();
        assert_eq!((&got["taskId"], &got["result"]["by"]), (&json!(id), &json!(name)), "{got}");
        assert_eq!((&got["resultType"], &got["params"]["taskId"]), (&json!("complete"), &json!("t/1")));
        for method in ["tasks/update", "tasks/cancel"] {
            ask(&fixture, "me", method, json!({"taskId": id, "inputResponses": {}})).await.unwrap();
        }
        for (who, id) in [("you", id), ("me", "t/1"), ("me", "bh1.AAAA"), ("me", &id[..id.len() - 1])] {
            let error = ask(&fixture, who, "tasks/get", json!({"taskId": id})).await.unwrap_err();
            assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!("no such task")));
        }
        assert_eq!(ask(&fixture, "me", "tasks/get", json!({})).await.unwrap_err()["code"], -32602);
    }
    fixture.end().await;
}

/// ERA-1, GATE-3, ACC-1: an unprompted notification about a task reaches the listens that follow it, unchanged except for the
/// id that the client knows. It reaches no other client's listen, and no task with the same id on another server.
#[tokio::test]
async fn a_task_that_changes_is_told_to_its_client() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let far = server("far").serve(Carrier::Http);
    let near = server("near").transcript(&said);
    let fixture = Fixture::start(&[("near", near)], |options| {
        let mut entry = crate::support::at("far", &far.url());
        entry.era = bridgehead_config::EraChoice::Modern;
        options.servers.push(entry);
    });
    fixture.settled().await;
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let tell = |server: &'static str| {
        let call = json!({"name": format!("{server}__tell")});
        async { ask(&fixture, "me", "tools/call", call).await.unwrap() }
    };
    for name in ["near", "far"] {
        let other = if name == "near" { "far" } else { "near" };
        let task = ask(&fixture, "me", "tools/call", json!({"name": format!("{name}__slow")})).await.unwrap();
        let id = task["taskId"].as_str().unwrap();
        let ids = json!([id, "t/1", "nobody's"]);
        let (mut mine, _mine, honoured) = listen(&fixture, "me", ids.clone(), tasks.clone()).await;
        assert_eq!(honoured, json!({"taskIds": [id]}));
        let (mut yours, _yours, honoured) = listen(&fixture, "you", ids.clone(), tasks.clone()).await;
        assert_eq!(honoured, json!({}));
        let (mut plain, _plain, honoured) = listen(&fixture, "me", ids, json!({})).await;
        assert_eq!(honoured, json!({}), "a client without task support gets no tasks");
        tell(other).await;
        tell(name).await;
        let told = tokio::time::timeout(Duration::from_secs(30), mine.recv()).await.unwrap().unwrap();
        let text = String::from_utf8(told.to_vec()).unwrap();
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(told["method"], "notifications/tasks");
        assert_eq!((&told["params"]["taskId"], &told["params"]["status"]), (&json!(id), &json!("completed")));
        assert_eq!(told["params"]["result"], json!({"by": name}), "{told}");
        assert_eq!(told["params"]["_meta"], json!({"io.modelcontextprotocol/subscriptionId": "l"}));
        assert!(text.contains("1.50"), "{text}");
        assert!(yours.try_recv().is_err() && plain.try_recv().is_err());
    }
    let said = std::fs::read_to_string(&said).unwrap();
    let asked = said.lines().find(|line| line.contains("taskIds")).unwrap();
    assert!(asked.contains(r#""taskIds":["t/1"]"#), "the server's own id: {asked}");
    assert!(asked.contains(r#""extensions":{"io.modelcontextprotocol/tasks":{}}"#), "{asked}");
    fixture.end().await;
}

/// ERA-1: a server learns of task support only from a client that has it, and a task that no client could follow is
/// refused.
#[tokio::test]
async fn a_client_without_tasks_gets_none() {
    let plain =
        Mock::modern().tool("slow", Behaviour::raw_result(TASK)).tool("received", Behaviour::Received);
    let fixture = Fixture::start(&[("tasks", server("tasks")), ("plain", plain)], |_| ());
    fixture.settled().await;
    let none = json!({"io.modelcontextprotocol/clientCapabilities": {}});
    let slow = json!({"name": "tasks__slow", "_meta": none});
    let error = ask(&fixture, "me", "tools/call", slow).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_INVALID_OUTPUT", "{error}");
    for (server, told) in [("tasks", true), ("plain", false)] {
        let slow = ask(&fixture, "me", "tools/call", json!({"name": format!("{server}__slow")})).await;
        assert_eq!(slow.is_ok(), told, "{slow:?}");
        let received = json!({"name": format!("{server}__received")});
        let received = ask(&fixture, "me", "tools/call", received).await.unwrap();
        assert_eq!(received.to_string().contains("io.modelcontextprotocol/tasks"), told, "{received}");
    }
    fixture.end().await;
}

/// ERA-1: extensions are declared to modern clients if a server has them; experimental capabilities only if there is a
/// single server. Tools that only run as tasks of 2025-11-25 are not offered.
#[tokio::test]
async fn what_is_declared() {
    let required = bridgehead_testkit::Tool::new("old", Behaviour::Echo);
    let legacy = Mock::legacy()
        .capabilities(EXTENDED)
        .full_tool(required.extra("execution", r#"{"taskSupport":"required"}"#))
        .tool("other", Behaviour::Echo);
    for (servers, extensions, experimental) in [
        (vec![("a", server("a"))], true, true),
        (vec![("a", server("a")), ("b", legacy.clone())], true, false),
        (vec![("b", legacy)], false, true),
    ] {
        let fixture = Fixture::start(&servers, |_| ());
        fixture.settled().await;
        let declared = ask(&fixture, "me", "server/discover", json!({})).await.unwrap();
        let declared = &declared["capabilities"];
        assert_eq!(!declared["extensions"].is_null(), extensions, "{declared}");
        assert_eq!(!declared["experimental"].is_null(), experimental, "{declared}");
        let legacy: Value =
            fixture.gateway.initialize(&Principal::local(), Revision::V2025_11_25).decode().unwrap();
        assert_eq!(!legacy["capabilities"]["experimental"].is_null(), experimental, "{legacy}");
        assert!(legacy["capabilities"]["extensions"].is_null(), "{legacy}");
        if !extensions {
            let error = ask(&fixture, "me", "tasks/get", json!({"taskId": "x"})).await.unwrap_err();
            assert_eq!(error["code"], -32601);
        }
        assert!(!fixture.names().await.iter().any(|name| name.ends_with("old")));
        fixture.end().await;
    }
}
