//! Notifications that clients get unprompted, and log lines, across the eras.

use std::time::Duration;

use bridgehead_gateway::{Caller, ClientRequest, ClientTransport, Feed, Principal, ProgressSink, Session};
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_wire::{Id, Object, Raw, RequestMeta, Revision, RpcError};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::Fixture;

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;
const ALL: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"logging":{}}"#;

/// One server of an era with a tool for each notification that it may send.
fn mock(mock: Mock, name: &str) -> Mock {
    let done = || Behaviour::Text("done".to_owned());
    let line = |level: &str| format!(r#"{{"level":"{level}","logger":"l","data":1.0}}"#);
    mock.capabilities(ALL)
        .replies("prompts/list", r#"{"prompts":[{"name":"p"}]}"#)
        .replies("resources/list", format!(r#"{{"resources":[{{"uri":"{name}://r","name":"r"}}]}}"#))
        .replies("resources/templates/list", r#"{"resourceTemplates":[]}"#)
        .replies("resources/subscribe", "{}")
        .replies("resources/unsubscribe", "{}")
        .replies("logging/setLevel", "{}")
        .tool(
            "update",
            Behaviour::tell_aside(
                "notifications/resources/updated",
                format!(r#"{{"uri":"{name}://r/part"}}"#),
                done(),
            ),
        )
        .tool(
            "log",
            Behaviour::tell(
                "notifications/message",
                line("debug"),
                Behaviour::tell("notifications/message", line("error"), done()),
            ),
        )
        .tool("grow", Behaviour::AddTool(Box::new(bridgehead_testkit::Tool::new("grown", done()))))
}

/// A client of one session.
struct Client<'f> {
    fixture: &'f Fixture,
    session: Session,
    revision: Revision,
}

impl<'f> Client<'f> {
    fn new(fixture: &'f Fixture, revision: Revision) -> Self {
        Self { fixture, session: Session::new(), revision }
    }

    fn feed(&self) -> Feed {
        self.fixture.gateway.feed(&Principal::local(), &self.session)
    }

    fn caller(&self) -> Caller {
        Caller {
            principal: Principal::local(),
            revision: self.revision,
            transport: ClientTransport::Memory,
            session: self.session.clone(),
            questioner: None,
        }
    }

    async fn ask(&self, method: &str, params: Value, sink: Option<ProgressSink>) -> Result<Value, RpcError> {
        let request = ask(method, &params, None);
        let answer = self.fixture.gateway.answer(&self.caller(), &request, sink).await?;
        Ok(answer.to_raw().decode().unwrap())
    }

    /// Opens a `subscriptions/listen`.
    fn listen(&self, filter: &Value) -> (mpsc::Receiver<Bytes>, JoinHandle<Result<Value, RpcError>>) {
        let (sink, notes) = ProgressSink::channel(8);
        let (gateway, caller) = (self.fixture.gateway.clone(), self.caller());
        let request = ask("subscriptions/listen", &json!({"notifications": filter}), Some("l"));
        let listening = tokio::spawn(async move {
            gateway
                .answer(&caller, &request, Some(sink))
                .await
                .map(|result| result.to_raw().decode().unwrap())
        });
        (notes, listening)
    }
}

fn ask(method: &str, params: &Value, id: Option<&str>) -> ClientRequest {
    let params = Object::parse(&Raw::encode(params)).unwrap();
    let meta = RequestMeta::read(Some(&params)).unwrap();
    ClientRequest { method: method.into(), params, meta, id: id.and_then(|id| Id::new(Raw::string(id))) }
}

fn decoded(message: &Bytes) -> Value {
    serde_json::from_slice(message).unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.unwrap()
}

async fn told(feed: &Feed) -> Value {
    decoded(&soon(feed.next()).await)
}

/// ERA-1: a legacy client is notified of changed lists and of the resources it subscribed to, whatever era its servers
/// speak.
#[tokio::test]
async fn a_legacy_client_is_told() {
    let fixture =
        Fixture::start(&[("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b"))], |_| ());
    fixture.settled().await;
    let client = Client::new(&fixture, LEGACY);
    let feed = client.feed();
    for server in ["a", "b"] {
        let uri = json!({"uri": format!("{server}://r")});
        assert_eq!(client.ask("resources/subscribe", uri.clone(), None).await.unwrap(), json!({}));
        // The gateway subscribes at the server in the background: call until the server notifies.
        let update = json!({"name": format!("{server}__update"), "arguments": {}});
        let message = loop {
            client.ask("tools/call", update.clone(), None).await.unwrap();
            tokio::select! {
                message = feed.next() => break decoded(&message),
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
        };
        assert_eq!(message["method"], "notifications/resources/updated");
        assert_eq!(message["params"], json!({"uri": format!("{server}://r/part")}));
        client.ask("resources/unsubscribe", uri, None).await.unwrap();
        client
            .ask("tools/call", json!({"name": format!("{server}__grow"), "arguments": {}}), None)
            .await
            .unwrap();
        assert_eq!(told(&feed).await["method"], "notifications/tools/list_changed", "{server}");
    }
    let names = fixture.names().await;
    assert!(names.contains(&"a__grown".to_owned()) && names.contains(&"b__grown".to_owned()));
    for (params, code) in [(json!({"uri": 1}), -32602), (json!({}), -32602)] {
        let refused = client.ask("resources/subscribe", params, None).await.unwrap_err();
        assert_eq!(refused.code(), code);
    }
    fixture.end().await;
}

/// ERA-1: a listen is acknowledged first, with the part that is honoured. Its notifications carry its id and are only
/// those asked for. It ends with its result when the client stops reading.
#[tokio::test]
async fn a_modern_client_listens() {
    let fixture =
        Fixture::start(&[("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b"))], |_| ());
    fixture.settled().await;
    let client = Client::new(&fixture, MODERN);
    let id = json!({"io.modelcontextprotocol/subscriptionId": "l"});
    for server in ["a", "b"] {
        let filter = json!({
            "toolsListChanged": true,
            "resourceSubscriptions": [format!("{server}://r"), "nobody"],
        });
        let (mut notes, listening) = client.listen(&filter);
        let (mut prompts_only, other) = client.listen(&json!({"promptsListChanged": true}));
        let acknowledged = decoded(&soon(notes.recv()).await.unwrap());
        assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(acknowledged["params"]["_meta"], id);
        let honoured = &acknowledged["params"]["notifications"];
        assert_eq!(honoured["toolsListChanged"], true);
        assert_eq!(honoured["resourceSubscriptions"][0], format!("{server}://r"));
        assert!(honoured.get("promptsListChanged").is_none());
        let update = json!({"name": format!("{server}__update"), "arguments": {}});
        let message = loop {
            client.ask("tools/call", update.clone(), None).await.unwrap();
            tokio::select! {
                message = notes.recv() => break decoded(&message.unwrap()),
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
        };
        assert_eq!(message["params"], json!({"uri": format!("{server}://r/part"), "_meta": id}));
        client
            .ask("tools/call", json!({"name": format!("{server}__grow"), "arguments": {}}), None)
            .await
            .unwrap();
        let message = loop {
            // Updates may still arrive.
            let message = decoded(&soon(notes.recv()).await.unwrap());
            if message["method"] != "notifications/resources/updated" {
                break message;
            }
        };
        assert_eq!(message["method"], "notifications/tools/list_changed");
        assert_eq!(message["params"]["_meta"], id);
        notes.close();
        let result = soon(listening).await.unwrap().unwrap();
        assert_eq!(result["resultType"], "complete");
        assert_eq!(result["_meta"]["io.modelcontextprotocol/subscriptionId"], "l");
        assert_eq!(
            decoded(&prompts_only.recv().await.unwrap())["params"]["notifications"],
            json!({"promptsListChanged": true})
        );
        assert!(prompts_only.try_recv().is_err(), "only what was asked for arrives");
        other.abort();
    }
    let (_notes, bad) = client.listen(&json!(7));
    assert_eq!(soon(bad).await.unwrap().unwrap_err().code(), -32602);
    fixture.end().await;
}

/// ERA-1: log lines of a request reach its client from its level up, and only if it asked for lines. They name the
/// server if there are several.
#[tokio::test]
async fn log_lines_reach_who_asked() {
    let fixture =
        Fixture::start(&[("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b"))], |_| ());
    fixture.settled().await;
    for server in ["a", "b"] {
        for revision in [LEGACY, MODERN] {
            for level in [None, Some("debug"), Some("warning")] {
                let client = Client::new(&fixture, revision);
                let mut params = json!({"name": format!("{server}__log"), "arguments": {}});
                match level {
                    Some(level) if revision == MODERN => {
                        params["_meta"] = json!({"io.modelcontextprotocol/logLevel": level});
                    }
                    Some(level) => {
                        client.ask("logging/setLevel", json!({"level": level}), None).await.unwrap();
                    }
                    None => {}
                }
                let (sink, mut notes) = ProgressSink::channel(8);
                client.ask("tools/call", params, Some(sink)).await.unwrap();
                let mut levels = Vec::new();
                while let Ok(note) = notes.try_recv() {
                    let note = decoded(&note);
                    assert_eq!(note["method"], "notifications/message");
                    assert_eq!(note["params"]["logger"], format!("{server}/l"));
                    levels.push(note["params"]["level"].as_str().unwrap().to_owned());
                }
                let expected: &[&str] = match level {
                    None => &[],
                    Some("debug") => &["debug", "error"],
                    Some(_) => &["error"],
                };
                assert_eq!(levels, expected, "{server} {revision} {level:?}");
            }
        }
    }
    let refused = Client::new(&fixture, LEGACY).ask("logging/setLevel", json!({"level": "loud"}), None).await;
    assert_eq!(refused.unwrap_err().code(), -32602);
    fixture.end().await;
}

/// ERA-1: log lines of a call whose client can be asked questions reach it too, with or without a progress token.
#[tokio::test]
async fn log_lines_of_a_call_that_may_be_parked() {
    let fixture =
        Fixture::start(&[("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b"))], |_| ());
    fixture.settled().await;
    let client = Client::new(&fixture, MODERN);
    for server in ["a", "b"] {
        let params = json!({"name": format!("{server}__log"), "arguments": {}, "_meta": {
            "io.modelcontextprotocol/logLevel": "error",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        }});
        let (sink, mut notes) = ProgressSink::channel(8);
        client.ask("tools/call", params, Some(sink)).await.unwrap();
        assert_eq!(decoded(&notes.try_recv().unwrap())["params"]["level"], "error", "{server}");
    }
    fixture.end().await;
}

/// ERA-1: when a subscription is answered or a listen acknowledged, the server has been asked, so every later change is
/// announced.
#[tokio::test]
async fn a_subscription_holds_when_it_is_answered() {
    for era in ["legacy", "modern"] {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        let (server, method) = match era {
            "legacy" => (Mock::legacy(), "resources/subscribe"),
            _ => (Mock::modern(), "resourceSubscriptions"),
        };
        let fixture = Fixture::start(&[("a", mock(server, "a").transcript(&said))], |_| ());
        fixture.settled().await;
        let asked = || std::fs::read_to_string(&said).unwrap().matches(method).count();
        let client = Client::new(&fixture, LEGACY);
        client.ask("resources/subscribe", json!({"uri": "a://r"}), None).await.unwrap();
        assert_eq!(asked(), 1, "{era}");
        client.ask("resources/unsubscribe", json!({"uri": "a://r"}), None).await.unwrap();
        let (mut notes, listening) =
            Client::new(&fixture, MODERN).listen(&json!({"resourceSubscriptions": ["a://r", "a://r/x"]}));
        soon(notes.recv()).await.unwrap();
        assert!(asked() > 1, "{era}");
        drop(notes);
        soon(listening).await.unwrap().unwrap();
        fixture.end().await;
    }
}

/// ERA-1: a subscription to a resource that no server has or announces is refused to a legacy client. For a modern one
/// it is left out of the acknowledgement. No server gets it.
#[tokio::test]
async fn a_subscription_to_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let silent = Mock::legacy()
        .capabilities(r#"{"tools":{},"resources":{}}"#)
        .replies("resources/list", r#"{"resources":[{"uri":"s://r","name":"r"}]}"#)
        .replies("resources/templates/list", r#"{"resourceTemplates":[]}"#)
        .transcript(&said);
    let fixture = Fixture::start(&[("s", silent)], |_| ());
    fixture.settled().await;
    let client = Client::new(&fixture, LEGACY);
    let refused = client.ask("resources/subscribe", json!({"uri": "s://r"}), None).await.unwrap_err();
    assert_eq!(refused.code(), -32602);
    let refused = client.ask("resources/subscribe", json!({}), None).await.unwrap_err();
    assert_eq!(refused.code(), -32602);
    let filter = json!({"resourceSubscriptions": ["s://r", "x://nowhere"]});
    let (mut notes, listening) = Client::new(&fixture, MODERN).listen(&filter);
    let acknowledged = decoded(&soon(notes.recv()).await.unwrap());
    assert_eq!(acknowledged["params"]["notifications"], json!({}));
    drop(notes);
    soon(listening).await.unwrap().unwrap();
    let empty = Fixture::start(&[], |_| ());
    let nobody = Client::new(&empty, LEGACY);
    let refused = nobody.ask("resources/subscribe", json!({"uri": "s://r"}), None).await.unwrap_err();
    assert_eq!(refused.code(), -32002);
    assert!(!std::fs::read_to_string(&said).unwrap().contains("subscribe"));
    empty.end().await;
    fixture.end().await;
}

/// The client's next notification; panics if none comes in time.
async fn told_soon(feed: &Feed) -> Value {
    decoded(&tokio::time::timeout(Duration::from_secs(15), feed.next()).await.unwrap())
}

/// ERA-1: with rewritten URIs, the notification of a changed resource has the URI that its clients know.
#[tokio::test]
async fn a_changed_resource_is_told_apart_by_server() {
    let servers = [("a", mock(Mock::legacy(), "a")), ("b", mock(Mock::modern(), "b"))];
    let fixture = Fixture::start(&servers, |options| {
        options.settings.resource_uris = bridgehead_config::ResourceUris::Rewrite;
    });
    fixture.settled().await;
    let client = Client::new(&fixture, LEGACY);
    let feed = client.feed();
    for server in ["a", "b"] {
        let uri = format!("bridgehead+{server}:{server}://r");
        client.ask("resources/subscribe", json!({"uri": uri}), None).await.unwrap();
        let update = json!({"name": format!("{server}__update"), "arguments": {}});
        client.ask("tools/call", update, None).await.unwrap();
        let message = told_soon(&feed).await;
        assert_eq!(message["method"], "notifications/resources/updated");
        assert_eq!(message["params"], json!({"uri": format!("{uri}/part")}));
    }
    fixture.end().await;
}

/// ERA-1: a log line that belongs to no request names its server only if there are several.
#[tokio::test]
async fn log_lines_of_no_request_name_their_server() {
    for (servers, expected) in [(&["a"][..], "l"), (&["a", "b"][..], "a/l")] {
        let servers: Vec<_> = servers.iter().map(|name| (*name, mock(Mock::legacy(), name))).collect();
        let fixture = Fixture::start(&servers, |_| ());
        fixture.settled().await;
        let client = Client::new(&fixture, LEGACY);
        let feed = client.feed();
        client.ask("logging/setLevel", json!({"level": "error"}), None).await.unwrap();
        let tool = if servers.len() > 1 { "a__log" } else { "log" };
        client.ask("tools/call", json!({"name": tool, "arguments": {}}), None).await.unwrap();
        let message = told_soon(&feed).await;
        assert_eq!(message["method"], "notifications/message");
        assert_eq!(message["params"], json!({"level": "error", "logger": expected, "data": 1.0}));
        fixture.end().await;
    }
}
