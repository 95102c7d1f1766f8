//! Servers that ask while several calls run: each such call gets a process of its own.

use std::time::Duration;

use bridgehead_config::{Interactive, Isolation, ServerConfig};
use bridgehead_testkit::client::modern_params;
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::questions::{Client, EVERYTHING};
use crate::support::{Fixture, until};

fn asking() -> Mock {
    let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    Mock::legacy()
        .tool("form", Behaviour::ask("elicitation/create", form))
        .tool("roots", Behaviour::ask("roots/list", json!({})))
        .tool("late", Behaviour::ask("roots/list", json!({})).after(300))
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("pid", Behaviour::ProcessId)
}

async fn fixture(change: impl FnOnce(&mut ServerConfig)) -> Fixture {
    let fixture = Fixture::start(&[("near", asking())], |options| change(&mut options.servers[0]));
    fixture.settled().await;
    fixture
}

fn leased(fixture: &Fixture) -> usize {
    fixture.gateway.upstreams()[0].leased()
}

fn pid(result: &Value) -> u64 {
    result["structuredContent"]["pid"].as_u64().unwrap()
}

/// ERA-3: a question that could belong to either of two calls is refused and switches the server to exclusive leases.
/// From then on both calls are answered at the same time, each on its own process. A client that declared nothing needs
/// no lease.
#[tokio::test]
async fn an_ambiguous_question_leads_to_leases() {
    let fixture = fixture(|_| ()).await;
    let (mut first, mut second) = (Client::new(EVERYTHING), Client::new(EVERYTHING));
    let idle = second.call(&fixture.gateway, "hang");
    until(|| fixture.recorder.enters().len() == 1).await;
    let result = first.call(&fixture.gateway, "form").await.unwrap().unwrap();
    assert_eq!(result["structuredContent"]["error"]["code"], -32603, "{result}");
    assert!(first.told.try_recv().is_err() && second.told.try_recv().is_err(), "no client is asked");
    assert_eq!(leased(&fixture), 0);
    idle.abort();

    let calls = [first.call(&fixture.gateway, "form"), second.call(&fixture.gateway, "form")];
    for (client, call) in [&mut first, &mut second].into_iter().zip(calls) {
        let asked = client.next().await;
        assert_eq!(asked["method"], "elicitation/create", "{asked}");
        client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
        assert_eq!(call.await.unwrap().unwrap()["structuredContent"]["result"]["action"], "accept");
    }
    assert_eq!(leased(&fixture), 2);
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    let own = pid(&first.call(&fixture.gateway, "pid").await.unwrap().unwrap());
    assert_ne!(shared, own, "a client without capabilities uses the shared process");
    assert_eq!(leased(&fixture), 2, "leases are reused");
    fixture.end().await;
}

/// ERA-3: there are at most `max_leases`; the next call waits for one.
#[tokio::test]
async fn leases_are_bounded_and_waited_for() {
    let fixture = fixture(|server| {
        server.interactive = Interactive::Exclusive;
        server.max_leases = 2;
        server.request_timeout = Some(Duration::from_secs(30));
    })
    .await;
    let mut clients: Vec<Client> = (0..3).map(|_| Client::new(EVERYTHING)).collect();
    let mut calls = Vec::new();
    for client in &mut clients[..2] {
        calls.push(client.call(&fixture.gateway, "form"));
        client.next().await;
    }
    let waiting = clients[2].call(&fixture.gateway, "pid");
    until(|| fixture.recorder.enters().len() == 3).await;
    assert!(!waiting.is_finished());
    assert_eq!(leased(&fixture), 2);
    calls.remove(0).abort();
    waiting.await.unwrap().unwrap();
    assert_eq!(leased(&fixture), 2);
    calls.remove(0).abort();
    fixture.end().await;
}

/// ERA-3: a call that gets no lease before its deadline says so.
#[tokio::test]
async fn no_lease_in_time() {
    let fixture = fixture(|server| {
        server.interactive = Interactive::Exclusive;
        server.max_leases = 1;
        server.request_timeout = Some(Duration::from_millis(400));
    })
    .await;
    let (mut first, second) = (Client::new(EVERYTHING), Client::new(r#"{"roots":{}}"#));
    let call = first.call(&fixture.gateway, "form");
    let asked = first.next().await;
    let error = second.call(&fixture.gateway, "pid").await.unwrap().unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_UNAVAILABLE", "{error}");
    assert!(error["message"].as_str().unwrap().contains("max_leases"), "{error}");
    first.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    call.await.unwrap().unwrap();
    // A process for another class takes its place.
    second.call(&fixture.gateway, "pid").await.unwrap().unwrap();
    assert_eq!(leased(&fixture), 1);
    fixture.end().await;
}

/// ERA-3: a session gets the process that it used before. With `Interactive::Shared` no client gets its own process.
#[tokio::test]
async fn sessions_and_shared_processes() {
    let fixture = fixture(|server| server.interactive = Interactive::Exclusive).await;
    let session = bridgehead_gateway::Session::new();
    let mut client = Client::new(EVERYTHING).in_session(&session);
    let other = Client::new(EVERYTHING);
    let first = pid(&client.call(&fixture.gateway, "pid").await.unwrap().unwrap());
    let second = pid(&other.call(&fixture.gateway, "pid").await.unwrap().unwrap());
    assert_ne!(first, second);
    assert_eq!(pid(&client.call(&fixture.gateway, "pid").await.unwrap().unwrap()), first);
    assert!(client.told.try_recv().is_err());
    fixture.end().await;

    let fixture = self::fixture(|server| server.interactive = Interactive::Shared).await;
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    assert_eq!(pid(&client.call(&fixture.gateway, "pid").await.unwrap().unwrap()), shared);
    assert_eq!(leased(&fixture), 0);
    fixture.end().await;
}

/// ERA-3: a call with a process of its own takes no lease, whatever its client declared.
#[tokio::test]
async fn a_process_for_one_call_is_no_lease() {
    let fixture = fixture(|server| {
        server.isolation = Isolation::Call;
        server.interactive = Interactive::Exclusive;
    })
    .await;
    let client = Client::new(EVERYTHING);
    let pids = [client.call(&fixture.gateway, "pid"), client.call(&fixture.gateway, "pid")];
    let [first, second] = pids.map(|call| async { pid(&call.await.unwrap().unwrap()) });
    assert_ne!(first.await, second.await);
    assert_eq!(leased(&fixture), 0);
    fixture.end().await;
}

/// ERA-3: a server that is known to ask gets exactly its client's capabilities, once. A client that declared everything
/// uses the shared process.
#[tokio::test]
async fn a_server_that_asks_is_told_what_its_clients_declared() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", asking().transcript(&said))], |_| ());
    fixture.settled().await;
    let mut client = Client::new(EVERYTHING);
    let some = Client::new(r#"{"elicitation":{}}"#);
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    assert_eq!(
        pid(&some.call(&fixture.gateway, "pid").await.unwrap().unwrap()),
        shared,
        "the server has not asked yet"
    );
    let call = client.call(&fixture.gateway, "form");
    let asked = client.next().await;
    client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    call.await.unwrap().unwrap();
    let class = pid(&some.call(&fixture.gateway, "pid").await.unwrap().unwrap());
    assert_ne!(class, shared);
    assert_eq!(
        pid(&some.call(&fixture.gateway, "pid").await.unwrap().unwrap()),
        class,
        "all clients of a class share one process"
    );
    assert_eq!(pid(&client.call(&fixture.gateway, "pid").await.unwrap().unwrap()), shared);
    assert_eq!(leased(&fixture), 1);
    let said = std::fs::read_to_string(&said).unwrap();
    assert!(said.contains(r#""capabilities":{"elicitation":{"form":{}}}"#), "{said}");
    fixture.end().await;
}

/// ERA-3: if a server is known to ask, a call avoids a process where another call waits for an answer, so neither is
/// refused.
#[tokio::test]
async fn a_call_keeps_clear_of_one_that_is_asked() {
    let fixture = fixture(|_| ()).await;
    for capabilities in [EVERYTHING, r#"{"elicitation":{}}"#] {
        let (mut first, mut second) = (Client::new(capabilities), Client::new(capabilities));
        let mut calls = Vec::new();
        let mut asked = Vec::new();
        for client in [&mut first, &mut second] {
            calls.push(client.call(&fixture.gateway, "form"));
            asked.push(client.next().await);
        }
        for ((client, asked), call) in [&first, &second].into_iter().zip(asked).zip(calls) {
            client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}));
            assert_eq!(call.await.unwrap().unwrap()["structuredContent"]["result"]["action"], "decline");
        }
    }
    assert_eq!(leased(&fixture), 3, "one beside the shared process, one for the class, one beside that");
    fixture.end().await;
}

/// ERA-1: a question after its call was cancelled, or outside any call, is refused at once.
#[tokio::test]
async fn questions_without_a_call_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let unasked =
        r#"{"jsonrpc":"2.0","id":"early","method":"sampling/createMessage","params":{"messages":[]}}"#;
    let mock = asking().after_initialized(unasked).transcript(&said);
    let fixture = Fixture::start(&[("near", mock)], |_| ());
    fixture.settled().await;
    let answered = |id: &str| {
        let said = std::fs::read_to_string(&said).unwrap();
        said.lines().any(|line| line.contains(&format!(r#""id":{id}"#)) && line.contains(r#""code":-32601"#))
    };
    until(|| answered(r#""early""#)).await;
    let mut client = Client::new(EVERYTHING);
    let call = client.call(&fixture.gateway, "late");
    until(|| std::fs::read_to_string(&said).unwrap().contains("tools/call")).await;
    call.abort();
    until(|| answered("0")).await;
    assert!(client.told.try_recv().is_err(), "no client is asked");
    let exits = fixture.recorder.exits().len();
    assert_eq!(
        (exits, leased(&fixture), fixture.gateway.parked()),
        (1, 0, 0),
        "the call left nothing behind"
    );
    fixture.end().await;
}

/// Calls the tool that asks for roots, and answers its question.
async fn tell_roots(fixture: &Fixture, client: &mut Client, roots: &str) -> Value {
    let call = client.call(&fixture.gateway, "roots");
    let asked = client.next().await;
    assert_eq!(asked["method"], "roots/list", "{asked}");
    client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": [{"uri": roots}]}}));
    call.await.unwrap().unwrap()
}

/// ERA-3: a server may keep the roots it got. Once it has asked for roots, a session that has roots gets its own
/// process, and a modern call gets a fresh one. A client without roots still uses the shared process.
#[tokio::test]
async fn roots_of_one_client_are_not_shown_to_another() {
    let fixture = fixture(|_| ()).await;
    let (mut first, mut second) = (Client::new(EVERYTHING), Client::new(EVERYTHING));
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    assert_eq!(
        pid(&first.call(&fixture.gateway, "pid").await.unwrap().unwrap()),
        shared,
        "the server has not asked yet"
    );
    tell_roots(&fixture, &mut first, "file:///first").await;
    let mut own = Vec::new();
    for client in [&mut first, &mut second] {
        let before = pid(&client.call(&fixture.gateway, "pid").await.unwrap().unwrap());
        let result = tell_roots(&fixture, client, "file:///own").await;
        assert_eq!(result["structuredContent"]["result"]["roots"][0]["uri"], "file:///own", "{result}");
        assert_eq!(pid(&client.call(&fixture.gateway, "pid").await.unwrap().unwrap()), before);
        own.push(before);
    }
    own.push(shared);
    let meta = json!({"io.modelcontextprotocol/clientCapabilities": {"roots": {}}});
    for _ in 0..2 {
        let params = json!({"name": "pid", "arguments": {}, "_meta": meta});
        let result = fixture.ask(Revision::MODERN, "tools/call", modern_params(params)).await.unwrap();
        own.push(pid(&result.decode().unwrap()));
    }
    let mut different = own.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 5, "{own:?}");
    assert_eq!(leased(&fixture), 0, "the processes of modern calls end with the calls");
    let rootless = Client::new(r#"{"sampling":{}}"#);
    rootless.call(&fixture.gateway, "pid").await.unwrap().unwrap();
    assert_eq!(pid(&fixture.call("pid", json!({})).await.unwrap()), shared);
    fixture.end().await;
}

/// A server that asks for roots as soon as it has started, as servers that keep roots do.
fn keeping(said: &std::path::Path) -> Mock {
    let unbidden = r#"{"jsonrpc":"2.0","id":"first","method":"roots/list"}"#;
    asking().after_initialized(unbidden).transcript(said)
}

/// The `pid` of a modern client's call; the gateway asks the client for its roots first.
async fn pid_with_roots(fixture: &Fixture, principal: &str, roots: &Value) -> u64 {
    let meta = json!({"io.modelcontextprotocol/clientCapabilities": {"roots": {}}});
    let params = json!({"name": "pid", "arguments": {}, "_meta": meta});
    let asked = fixture.ask_as(principal, "tools/call", modern_params(params.clone())).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let questions = asked["inputRequests"].as_object().unwrap();
    let (key, question) = questions.iter().next().unwrap();
    assert_eq!((questions.len(), question["method"].as_str()), (1, Some("roots/list")), "{asked}");
    let mut again = params;
    again["requestState"] = asked["requestState"].clone();
    again["inputResponses"] = json!({key: {"roots": roots}});
    pid(&fixture.ask_as(principal, "tools/call", modern_params(again)).await)
}

/// HOUR-1, GATE-3, ACC-1: a modern client that has roots keeps its process from call to call. The gateway first asks it for
/// its roots, then finds the process kept for its principal and these roots. Other roots or another principal get
/// another process. The server gets the roots of its process whenever it asks. `status` says why there are several
/// processes.
#[tokio::test]
async fn modern_clients_with_roots_keep_their_process() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", keeping(&said))], |_| ());
    fixture.settled().await;
    let (a, b) = (json!([{"uri": "file:///a", "name": "a"}]), json!([{"uri": "file:///b"}]));
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    let first = pid_with_roots(&fixture, "one", &a).await;
    assert_ne!(first, shared);
    assert_eq!(pid_with_roots(&fixture, "one", &json!([{"name": "a", "uri": "file:///a"}])).await, first);
    let others = [pid_with_roots(&fixture, "one", &b).await, pid_with_roots(&fixture, "two", &a).await];
    assert!(others[0] != others[1] && !others.contains(&first) && !others.contains(&shared), "{others:?}");
    assert_eq!(pid_with_roots(&fixture, "one", &a).await, first, "the process is still there");
    assert_eq!(leased(&fixture), 3);
    until(|| {
        let said = std::fs::read_to_string(&said).unwrap();
        let told = |uri: &str| said.matches(&format!(r#""uri":"file:///{uri}""#)).count();
        told("a") >= 2 && told("b") >= 1
    })
    .await;
    let health = fixture.gateway.health();
    let beside = &health["upstreams"][0]["beside"];
    assert_eq!(beside[0]["count"], 3, "{health}");
    assert!(beside[0]["reason"].as_str().unwrap().contains("its client has roots"), "{health}");
    assert_eq!(fixture.gateway.parked(), 0);
    fixture.end().await;
}

/// HOUR-1: there are at most `max_leases` kept processes; the least recently used one makes way.
#[tokio::test]
async fn kept_processes_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", keeping(&said))], |options| options.servers[0].max_leases = 1);
    fixture.settled().await;
    let (a, b) = (json!([{"uri": "file:///a"}]), json!([{"uri": "file:///b"}]));
    let first = pid_with_roots(&fixture, "one", &a).await;
    let second = pid_with_roots(&fixture, "one", &b).await;
    assert_ne!(first, second);
    assert_eq!((pid_with_roots(&fixture, "one", &b).await, leased(&fixture)), (second, 1));
    assert_ne!(pid_with_roots(&fixture, "one", &a).await, first);
    fixture.end().await;
}

/// HOUR-1: a server's configured `roots` answer its questions, at its start and during calls. No client is asked, and
/// all clients share the server.
#[tokio::test]
async fn configured_roots_ask_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", keeping(&said))], |options| {
        options.servers[0].roots = Some(bridgehead_config::Roots::of(["file:///fixed".to_owned()]));
    });
    fixture.settled().await;
    let fixed = r#"{"roots":[{"uri":"file:///fixed"}]}"#;
    until(|| std::fs::read_to_string(&said).unwrap().contains(&format!(r#""id":"first","result":{fixed}"#)))
        .await;
    let mut client = Client::new(EVERYTHING);
    let result = client.call(&fixture.gateway, "roots").await.unwrap().unwrap();
    assert_eq!(result["structuredContent"]["result"]["roots"][0]["uri"], "file:///fixed", "{result}");
    assert!(client.told.try_recv().is_err(), "the client was not asked");
    let meta = json!({"io.modelcontextprotocol/clientCapabilities": {"roots": {}}});
    for tool in ["roots", "pid", "pid"] {
        let params = json!({"name": tool, "arguments": {}, "_meta": meta});
        let result = fixture.ask_as("one", "tools/call", modern_params(params)).await;
        assert_eq!(result["resultType"], "complete", "{result}");
    }
    assert_eq!(
        fixture.call("roots", json!({})).await.unwrap()["structuredContent"]["result"]["roots"][0]["uri"],
        "file:///fixed"
    );
    fixture.end().await;
}

/// ERA-1: when a legacy client's roots change, its own server process is notified with its next call, and only once.
/// The server's question then reaches the client.
#[tokio::test]
async fn changed_roots_are_told_to_the_servers_of_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", asking().transcript(&said))], |options| {
        options.servers[0].isolation = Isolation::Session;
    });
    fixture.settled().await;
    let told = || {
        let said = std::fs::read_to_string(&said).unwrap();
        said.matches("notifications/roots/list_changed").count()
    };
    let (mut client, other) = (Client::new(EVERYTHING), Client::new(EVERYTHING));
    for client in [&client, &other] {
        client.call(&fixture.gateway, "pid").await.unwrap().unwrap();
    }
    client.session().roots_changed();
    other.call(&fixture.gateway, "pid").await.unwrap().unwrap();
    assert_eq!(told(), 0);
    let result = tell_roots(&fixture, &mut client, "file:///new").await;
    assert_eq!(result["structuredContent"]["result"]["roots"][0]["uri"], "file:///new");
    client.call(&fixture.gateway, "pid").await.unwrap().unwrap();
    until(|| told() == 1).await;
    let said = std::fs::read_to_string(&said).unwrap();
    assert!(said.contains(r#""roots":{"listChanged":true}"#), "{said}");
    fixture.end().await;
}

/// ERA-3: until a question was ambiguous, calls do not wait for a lease: when all leases are taken they share the
/// server.
#[tokio::test]
async fn calls_run_concurrently_until_a_question_is_in_doubt() {
    let fixture = fixture(|server| server.max_leases = 1).await;
    let mut clients: Vec<Client> = (0..2).map(|_| Client::new(EVERYTHING)).collect();
    let mut calls = Vec::new();
    for client in &mut clients {
        calls.push(client.call(&fixture.gateway, "form"));
        client.next().await;
    }
    assert_eq!(leased(&fixture), 1);
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    let third = Client::new(EVERYTHING).call(&fixture.gateway, "pid").await.unwrap().unwrap();
    assert_eq!(pid(&third), shared);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    fixture.end().await;
}
