//! A legacy server asks a legacy client questions during a call, end to end: both fronts, with a process and an HTTP
//! server behind them.

use bridgehead_testkit::client::{HttpClient, HttpStream, StdioClient, legacy_handshake};
use bridgehead_testkit::{Behaviour, Carrier, Mock, SCRIPT_VARIABLE, Served};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, signal};

const QUESTIONS: [(&str, &str); 3] =
    [("form", "elicitation/create"), ("sample", "sampling/createMessage"), ("roots", "roots/list")];

fn asking() -> Mock {
    let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    Mock::legacy()
        .tool("form", Behaviour::ask("elicitation/create", form).with_progress(1))
        .tool("sample", Behaviour::ask("sampling/createMessage", json!({"messages": [], "maxTokens": 1})))
        .tool("roots", Behaviour::Ask { method: "roots/list".to_owned(), params: None })
}

/// A configuration with the mock as a process and over HTTP.
fn configured(place: &Place) -> (String, Served) {
    let (program, _) = asking().command();
    let served = asking().serve(Carrier::Http);
    let script = asking().env().remove(SCRIPT_VARIABLE).unwrap();
    let text = format!(
        "[gateway]\nlinger_ms = 0\n[servers.near]\ncommand = {:?}\nenv = {{ {SCRIPT_VARIABLE} = '{script}' }}\n[servers.far]\nurl = {:?}\n",
        program.display().to_string(),
        served.url()
    );
    (place.file("bridgehead.toml", &text).display().to_string(), served)
}

fn handshake(capabilities: Value) -> Value {
    let mut params = legacy_handshake();
    params["capabilities"] = capabilities;
    params
}

fn everything() -> Value {
    json!({"sampling": {}, "elicitation": {}, "roots": {"listChanged": true}})
}

async fn lines(place: &Place, config: &str, capabilities: Value) -> StdioClient {
    let mut client = place.start(&["serve", "--config", config, "--stdio"], &[]);
    client.request("initialize", handshake(capabilities)).await;
    client.notify("notifications/initialized", json!({})).await;
    client.request("tools/list", json!({})).await;
    client.take_aside();
    client
}

/// ERA-1, legacy on legacy: a client on stdin and stdout is asked during its call and answers. Cancelling the call also
/// cancels its question.
#[tokio::test]
async fn a_client_on_lines_is_asked() {
    let place = Place::new();
    let (config, _served) = configured(&place);
    let mut client = lines(&place, &config, everything()).await;
    for server in ["near", "far"] {
        for (tool, method) in QUESTIONS {
            let params = json!({"name": format!("{server}__{tool}"), "_meta": {"progressToken": "p"}});
            let call = client.start_request("tools/call", params).await;
            let mut asked = client.recv().await;
            while asked.get("id").is_none() {
                asked = client.recv().await;
            }
            assert_eq!(asked["method"], method, "{asked}");
            let answer = json!({"said": method});
            client.send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer})).await;
            let result = client.answer_to(call).await;
            assert_eq!(result["result"]["structuredContent"]["result"], answer, "{result}");
        }
        client.take_aside();
        let call = client.start_request("tools/call", json!({"name": format!("{server}__roots")})).await;
        let asked = client.recv().await;
        client.notify("notifications/cancelled", json!({"requestId": call})).await;
        let withdrawn = client.recv().await;
        assert_eq!(withdrawn["params"]["requestId"], asked["id"], "{withdrawn}");
    }
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0), "{}", client.stderr());
}

/// ERA-1: a client that declares no capabilities is never asked; its server gets an error with the reason.
#[tokio::test]
async fn a_client_that_declares_nothing_is_not_asked() {
    let place = Place::new();
    let (config, _served) = configured(&place);
    let mut client = lines(&place, &config, json!({})).await;
    for server in ["near", "far"] {
        let result = client.request("tools/call", json!({"name": format!("{server}__roots")})).await;
        assert_eq!(result["result"]["structuredContent"]["error"]["code"], -32601, "{result}");
    }
    assert!(client.take_aside().iter().all(|message| message.get("id").is_none()));
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0), "{}", client.stderr());
}

struct Session {
    http: HttpClient,
    id: String,
}

impl Session {
    async fn open(http: HttpClient, capabilities: Value) -> Self {
        let params = handshake(capabilities);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let opened = http.post("/mcp", &[], body.to_string()).await;
        Self { http, id: opened.header("mcp-session-id").expect("a session").to_owned() }
    }

    fn headers(&self) -> [(&str, &str); 2] {
        [("mcp-session-id", self.id.as_str()), ("mcp-protocol-version", "2025-11-25")]
    }

    async fn call(&self, tool: &str, id: u64) -> HttpStream {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool}});
        self.http.open_post("/mcp", &self.headers(), body.to_string()).await
    }

    async fn post(&self, message: Value) -> u16 {
        self.http.post("/mcp", &self.headers(), message.to_string()).await.status
    }

    /// Waits until no call is in progress at any server.
    async fn until_idle(&self) {
        for id in 100..4_000 {
            let health = self.call("server_health", id).await.finish().await.answer();
            let upstreams = health["result"]["structuredContent"]["data"]["upstreams"].clone();
            if upstreams.as_array().unwrap().iter().all(|one| one["inFlight"] == 0) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("a call never ends");
    }
}

/// ERA-1, legacy on legacy: over HTTP the question comes on the stream of the call, and the answer as a POST of the same
/// session. An answer from another session is ignored. The end of a call cancels its question, and a client that leaves
/// while it is asked leaves no call behind.
#[tokio::test]
async fn a_client_over_http_is_asked() {
    let place = Place::new();
    let (config, _served) = configured(&place);
    let (mut gateway, address) = place.serve_http(&["--config", &config], &[]).await;
    let http = HttpClient::new(address);
    let session = Session::open(http, everything()).await;
    let other = Session::open(http, everything()).await;
    for server in ["near", "far"] {
        for (tool, method) in QUESTIONS {
            let mut stream = session.call(&format!("{server}__{tool}"), 2).await;
            assert_eq!(stream.header("content-type"), Some("text/event-stream"));
            let asked = stream.next_message().await.unwrap();
            assert_eq!(asked["method"], method, "{asked}");
            let id = &asked["id"];
            let wrong = json!({"jsonrpc": "2.0", "id": id, "result": {"said": "by another"}});
            assert_eq!(other.post(wrong).await, 202);
            let answer = json!({"said": method});
            assert_eq!(session.post(json!({"jsonrpc": "2.0", "id": id, "result": answer})).await, 202);
            let result = stream.next_message().await.unwrap();
            assert_eq!(result["result"]["structuredContent"]["result"], answer, "{result}");
            assert!(stream.next_message().await.is_none());
        }
        let mut stream = session.call(&format!("{server}__roots"), 3).await;
        assert_eq!(stream.next_message().await.unwrap()["method"], "roots/list");
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}});
        assert_eq!(session.post(cancel).await, 202);
        while let Some(message) = stream.next_message().await {
            assert_eq!(message["method"], "notifications/cancelled", "{message}");
        }
        let leaver = Session::open(http, everything()).await;
        let mut stream = leaver.call(&format!("{server}__roots"), 4).await;
        assert_eq!(stream.next_message().await.unwrap()["method"], "roots/list");
        drop(stream);
        http.delete("/mcp", &leaver.headers()).await;
        session.until_idle().await;
    }
    let plain = Session::open(http, json!({})).await.call("near__roots", 2).await;
    assert_eq!(plain.header("content-type"), Some("application/json"), "nothing was asked of it");
    assert_eq!(plain.finish().await.json()["result"]["structuredContent"]["error"]["code"], -32601);
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}
