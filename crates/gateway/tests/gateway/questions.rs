//! Questions of a legacy server to a legacy client during its call, seen from the front: the client is a channel of
//! messages and a desk for its answers.

use std::time::Duration;

use bridgehead_config::{Interactive, ServerConfig};
use bridgehead_gateway::{
    Caller, ClientRequest, ClientTransport, Gateway, OpenQuestions, Outlet, Principal, Questioner, Session,
};
use bridgehead_testkit::peer::{Asked, Part, Peer, event, json_reply, last_chunk, reply, stream_head};
use bridgehead_testkit::{Behaviour, Carrier, Mock};
use bridgehead_wire::{Abilities, Message, Object, Raw, RequestMeta, Revision};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::support::{Fixture, TRANSPORTS, at, everywhere, until};

const LEGACY: Revision = Revision::V2025_11_25;
pub(crate) const EVERYTHING: &str = r#"{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{}}"#;

/// A client's end: the messages sent to it, in order.
struct Sent(mpsc::Sender<Value>);

impl Outlet for Sent {
    fn put(&self, message: Bytes) -> bool {
        self.0.try_send(serde_json::from_slice(&message).unwrap()).is_ok()
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.closed())
    }
}

pub(crate) struct Client {
    revision: Revision,
    principal: Principal,
    session: Session,
    desk: OpenQuestions,
    questioner: Questioner,
    pub(crate) told: mpsc::Receiver<Value>,
    /// How many of its calls have not ended.
    running: watch::Sender<usize>,
}

/// A running call, counted until everything that belongs to it has ended.
struct Running(watch::Sender<usize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl Client {
    pub(crate) fn new(capabilities: &'static str) -> Self {
        Self::of(LEGACY, capabilities)
    }

    pub(crate) fn of(revision: Revision, capabilities: &'static str) -> Self {
        let (sender, told) = mpsc::channel(64);
        let desk = OpenQuestions::default();
        let abilities = Abilities::declared(&Raw::literal(capabilities)).as_of(revision);
        let questioner = Questioner::new(abilities, desk.clone(), Sent(sender));
        let session = Session::new();
        session.declare(abilities);
        let (principal, running) = (Principal::local(), watch::Sender::new(0));
        Self { revision, principal, session, questioner, desk, told, running }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn of_principal(self, name: &str) -> Self {
        Self { principal: Principal::named(name), ..self }
    }

    pub(crate) fn in_session(self, session: &Session) -> Self {
        Self { session: session.clone(), ..self }
    }

    pub(crate) fn call(&self, gateway: &Gateway, tool: &str) -> JoinHandle<Result<Value, Value>> {
        let (gateway, questioner, revision) = (gateway.clone(), Some(self.questioner.clone()), self.revision);
        let (principal, session) = (self.principal.clone(), self.session.clone());
        let params = Object::parse(&Raw::encode(&json!({"name": tool, "arguments": {}}))).unwrap();
        let meta = RequestMeta::read(Some(&params)).unwrap();
        let request = ClientRequest { method: "tools/call".into(), params, meta, id: None };
        self.running.send_modify(|running| *running += 1);
        let running = Running(self.running.clone());
        tokio::spawn(async move {
            let _running = running;
            let caller =
                Caller { principal, revision, transport: ClientTransport::Memory, session, questioner };
            let outcome = gateway.answer(&caller, &request, None).await;
            outcome
                .map(|result| result.to_raw().decode().unwrap())
                .map_err(|error| error.body().decode().unwrap())
        })
    }

    /// The next message for the client. No more messages come once its calls have ended.
    pub(crate) async fn next(&mut self) -> Value {
        let mut running = self.running.subscribe();
        let told = async {
            tokio::select! {
                biased;
                told = self.told.recv() => told,
                _ = running.wait_for(|running| *running == 0) => self.told.try_recv().ok(),
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(60), told).await.unwrap();
        told.unwrap_or_else(|| panic!("the calls have ended without a message"))
    }

    pub(crate) fn answer(&self, message: &Value) -> bool {
        match Message::parse(&Bytes::from(message.to_string())) {
            Ok(Message::Response(response)) => self.desk.answered(response),
            other => panic!("{other:?}"),
        }
    }
}

fn asking() -> Mock {
    let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    Mock::legacy()
        .tool("form", Behaviour::ask("elicitation/create", form))
        .tool(
            "url",
            Behaviour::ask(
                "elicitation/create",
                json!({"mode": "url", "url": "http://x/", "elicitationId": "1", "message": "go"}),
            ),
        )
        .tool("sample", Behaviour::ask("sampling/createMessage", json!({"messages": [], "maxTokens": 1})))
        .tool("roots", Behaviour::Ask { method: "roots/list".to_owned(), params: None })
        .tool("hang", Behaviour::HangUntilCancelled)
}

/// All calls share the server, whatever it asks.
fn shared(server: &mut ServerConfig) {
    server.interactive = Interactive::Shared;
}

/// ERA-1, legacy on legacy: a question during a call reaches its client, and the answer, a result or an error, goes
/// back. Each side uses its own ids.
#[tokio::test]
async fn a_legacy_client_answers_a_legacy_server() {
    let (fixture, _served) = everywhere(asking, shared).await;
    for server in TRANSPORTS {
        let mut client = Client::new(EVERYTHING);
        let mut ids = Vec::new();
        for (tool, method, answer) in [
            ("form", "elicitation/create", json!({"action": "accept", "content": {"n": 1.50}})),
            ("url", "elicitation/create", json!({"action": "decline"})),
            ("sample", "sampling/createMessage", json!({"role": "assistant", "model": "m", "content": {}})),
            ("roots", "roots/list", json!({"roots": [{"uri": "file:///a"}]})),
        ] {
            let call = client.call(&fixture.gateway, &format!("{server}__{tool}"));
            let asked = client.next().await;
            assert_eq!(asked["method"], method, "{asked}");
            ids.push(asked["id"].clone());
            assert!(!client.answer(&json!({"jsonrpc": "2.0", "id": 999, "result": {}})), "not asked");
            assert!(client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": answer})));
            assert!(!client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {}})), "once only");
            let result = call.await.unwrap().unwrap();
            assert_eq!(result["structuredContent"]["result"], answer, "{result}");
        }
        ids.dedup();
        assert_eq!(ids.len(), 4, "every question has an id of its own: {ids:?}");
        let call = client.call(&fixture.gateway, &format!("{server}__form"));
        let asked = client.next().await;
        let error = json!({"code": -1, "message": "the user said no"});
        client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
        assert_eq!(call.await.unwrap().unwrap()["structuredContent"]["error"], error);
    }
    fixture.end().await;
}

/// ERA-1, ERA-3: a client is not asked for what it did not declare, and the server gets an error at once.
#[tokio::test]
async fn what_a_client_did_not_declare_is_refused() {
    let (fixture, _served) = everywhere(asking, shared).await;
    for server in TRANSPORTS {
        let mut client = Client::new(r#"{"elicitation":{}}"#);
        for (tool, code) in [("sample", -32601), ("roots", -32601), ("url", -32602)] {
            let result = client.call(&fixture.gateway, &format!("{server}__{tool}")).await.unwrap().unwrap();
            assert_eq!(result["structuredContent"]["error"]["code"], code, "{server} {tool}: {result}");
        }
        assert!(client.told.try_recv().is_err());
        let result = fixture.call(&format!("{server}__form"), json!({})).await.unwrap();
        assert_eq!(result["structuredContent"]["error"]["code"], -32601, "{result}");
    }
    fixture.end().await;
}

/// ERA-3: on one stream a question belongs to the only call in flight whose client can answer it; if there are two,
/// neither client is asked. Over HTTP the stream of the call decides.
#[tokio::test]
async fn a_question_belongs_to_one_call() {
    let (fixture, _served) = everywhere(asking, shared).await;
    for server in TRANSPORTS {
        let (mut client, mut other) = (Client::new(EVERYTHING), Client::new(r#"{"sampling":{}}"#));
        let idle = other.call(&fixture.gateway, &format!("{server}__hang"));
        // Both calls are in flight: only one client can be asked for roots, both can be asked to sample.
        let call = client.call(&fixture.gateway, &format!("{server}__roots"));
        let asked = client.next().await;
        client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}}));
        call.await.unwrap().unwrap();
        let call = client.call(&fixture.gateway, &format!("{server}__sample"));
        if server == "http" {
            let asked = client.next().await;
            client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {}}));
            call.await.unwrap().unwrap();
        } else {
            let result = call.await.unwrap().unwrap();
            let error = &result["structuredContent"]["error"];
            assert_eq!(error["code"], -32603, "{server}: {result}");
            assert!(error["message"].as_str().unwrap().contains("several calls"), "{error}");
        }
        assert!(other.told.try_recv().is_err(), "{server}: the question was not for this client");
        idle.abort();
        let _ = idle.await;
    }
    fixture.end().await;
}

/// PIPE-9: both clocks of a call stop while its client is asked: the one between two signs of life and the total. Both
/// continue afterwards.
#[tokio::test]
async fn clocks_stand_still_while_a_client_is_asked() {
    let (fixture, _served) = everywhere(asking, |server| {
        shared(server);
        server.request_timeout = Some(Duration::from_millis(400));
        server.max_total = Some(Duration::from_millis(600));
    })
    .await;
    let mut client = Client::new(EVERYTHING);
    let call = client.call(&fixture.gateway, "stdio__form");
    let asked = client.next().await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    let result = call.await.unwrap().unwrap();
    assert_eq!(result["structuredContent"]["result"]["action"], "accept");
    let error = client.call(&fixture.gateway, "stdio__hang").await.unwrap().unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}");
    fixture.end().await;
}

/// ERA-1: a cancelled call withdraws its question at the client and notifies the server. A client that has gone leaves
/// no call waiting for it.
#[tokio::test]
async fn a_call_that_ends_takes_its_question_along() {
    let folder = tempfile::tempdir().unwrap();
    let transcript = folder.path().join("said");
    let mock = asking().transcript(&transcript);
    let served = mock.serve(Carrier::Http);
    let near = folder.path().join("near");
    let fixture = Fixture::start(&[("stdio", asking().transcript(&near))], |options| {
        let mut server = at("http", &served.url());
        shared(&mut server);
        options.servers.push(server);
    });
    fixture.settled().await;
    for (server, said) in [("stdio", &near), ("http", &transcript)] {
        let mut client = Client::new(EVERYTHING);
        let call = client.call(&fixture.gateway, &format!("{server}__form"));
        let asked = client.next().await;
        call.abort();
        let withdrawn = client.next().await;
        assert_eq!(withdrawn["method"], "notifications/cancelled");
        assert_eq!(withdrawn["params"]["requestId"], asked["id"]);
        assert!(!client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {}})));
        until(|| {
            let said = std::fs::read_to_string(said).unwrap();
            said.contains("notifications/cancelled") && said.contains("has ended")
        })
        .await;

        let mut leaving = Client::new(EVERYTHING);
        let call = leaving.call(&fixture.gateway, &format!("{server}__form"));
        leaving.next().await;
        drop(leaving.told);
        let result = call.await.unwrap().unwrap();
        let error = &result["structuredContent"]["error"];
        assert!(error["message"].as_str().unwrap().contains("can no longer be asked"), "{result}");
        let mut gone = Client::new(EVERYTHING);
        gone.told.close();
        let result = gone.call(&fixture.gateway, &format!("{server}__form")).await.unwrap().unwrap();
        assert_eq!(result["structuredContent"]["error"]["code"], -32603, "{result}");
    }
    fixture.end().await;
}

/// A server that withdraws its question, one that finishes before it has the answer, and one that asks too much.
fn script(asked: &Asked) -> Vec<Part> {
    let body = asked.json();
    let answer = |result: Value| json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
    let ask = |id: u64| event(&json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"}));
    let done = event(&answer(json!({"content": []})));
    let tools = ["takes_back", "hurries", "floods"]
        .map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
    match asked.rpc().as_str() {
        "initialize" => json_reply(&answer(
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "p", "version": "1"}}),
        )),
        "tools/list" => json_reply(&answer(json!({"tools": tools}))),
        "ping" => json_reply(&answer(json!({}))),
        "tools/call" => match body["params"]["name"].as_str().unwrap() {
            "takes_back" => {
                let back = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
                vec![stream_head(&[]), ask(7), event(&back), ask(8), Part::Hang]
            }
            "hurries" => {
                vec![stream_head(&[]), ask(7), Part::Wait(Duration::from_millis(50)), done, last_chunk()]
            }
            _ => {
                let mut parts = vec![stream_head(&[])];
                parts.extend((0..17).map(ask));
                parts.extend([Part::Wait(Duration::from_millis(200)), done, last_chunk()]);
                parts
            }
        },
        _ => reply("202 Accepted", &[], ""),
    }
}

/// ERA-1: a question that the server withdraws is withdrawn at the client, and the number of open questions is limited.
#[tokio::test]
async fn a_server_changes_its_mind() {
    let peer = Peer::start(script).await;
    let fixture = Fixture::start(&[], |options| options.servers.push(at("p", &peer.url("/mcp"))));
    fixture.settled().await;
    let mut client = Client::new(r#"{"roots":{}}"#);
    let call = client.call(&fixture.gateway, "takes_back");
    let [first, taken_back, second] = [client.next().await, client.next().await, client.next().await];
    assert_eq!(taken_back["params"]["requestId"], first["id"], "{taken_back}");
    assert_eq!(second["method"], "roots/list");
    call.abort();
    assert_eq!(client.next().await["params"]["requestId"], second["id"]);

    let call = client.call(&fixture.gateway, "hurries");
    let asked = client.next().await;
    call.await.unwrap().unwrap();
    assert_eq!(client.next().await["params"]["requestId"], asked["id"]);

    let call = client.call(&fixture.gateway, "floods");
    for _ in 0..16 {
        assert_eq!(client.next().await["method"], "roots/list");
    }
    call.await.unwrap().unwrap();
    peer.until("the seventeenth is refused", |peer| {
        let answers = peer.asked().into_iter().filter(|asked| asked.body.contains("16 things already"));
        answers.count() == 1
    })
    .await;
    fixture.end().await;
}
