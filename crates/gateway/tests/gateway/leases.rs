//! Servers that ask while several calls are in progress: each such call then has one for itself.

use std::time::Duration;

use bridgehead_config::{Interactive, Isolation, Server};
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

async fn fixture(change: impl FnOnce(&mut Server)) -> Fixture {
    let fixture = Fixture::start(&[("near", asking())], |options| change(&mut options.servers[0]));
    fixture.gateway.settled().await;
    fixture
}

fn leased(fixture: &Fixture) -> usize {
    fixture.gateway.upstreams()[0].leased()
}

fn pid(result: &Value) -> u64 {
    result["structuredContent"]["pid"].as_u64().unwrap()
}

/// ERA-3: a question that could be for two calls is refused and switches the server to exclusive leases: from then on
/// both are answered at the same time, each on a process of its own, and who declared nothing needs none.
#[tokio::test]
async fn a_question_for_nobody_leads_to_leases() {
    let fixture = fixture(|_| ()).await;
    let (mut first, mut second) = (Client::new(EVERYTHING), Client::new(EVERYTHING));
    let idle = second.call(&fixture.gateway, "hang");
    until(|| fixture.recorder.enters().len() == 1).await;
    let result = first.call(&fixture.gateway, "form").await.unwrap().unwrap();
    assert_eq!(result["structuredContent"]["error"]["code"], -32603, "{result}");
    assert!(first.told.try_recv().is_err() && second.told.try_recv().is_err(), "nobody is asked");
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
    assert_ne!(shared, own, "a client that can be asked nothing uses the shared one");
    assert_eq!(leased(&fixture), 2, "leases are used again");
    fixture.end().await;
}

/// ERA-3: there are at most `max_leases`; whoever comes then waits for one.
#[tokio::test]
async fn leases_are_bounded_and_waited_for() {
    let fixture = fixture(|server| {
        server.interactive = Interactive::Exclusive;
        server.max_leases = 2;
        server.request_timeout = Duration::from_secs(30);
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

/// ERA-3: a call that no lease comes free for in time says so.
#[tokio::test]
async fn no_lease_in_time() {
    let fixture = fixture(|server| {
        server.interactive = Interactive::Exclusive;
        server.max_leases = 1;
        server.request_timeout = Duration::from_millis(400);
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
    // One of another class takes its place.
    second.call(&fixture.gateway, "pid").await.unwrap().unwrap();
    assert_eq!(leased(&fixture), 1);
    fixture.end().await;
}

/// ERA-3: a session finds the process again that it used before, and where sharing is wanted nobody has one for itself.
#[tokio::test]
async fn who_shares_what() {
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

/// ERA-3: a call that has a process for itself takes no lease, whatever its client can be asked.
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

/// ERA-3: a server that is known to ask is told exactly what its client declared, once; who declared all uses the
/// shared one.
#[tokio::test]
async fn a_server_that_asks_is_told_what_its_clients_declared() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", asking().transcript(&said))], |_| ());
    fixture.gateway.settled().await;
    let mut client = Client::new(EVERYTHING);
    let some = Client::new(r#"{"elicitation":{}}"#);
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    assert_eq!(
        pid(&some.call(&fixture.gateway, "pid").await.unwrap().unwrap()),
        shared,
        "nothing was asked yet"
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
        "all of a class share one"
    );
    assert_eq!(pid(&client.call(&fixture.gateway, "pid").await.unwrap().unwrap()), shared);
    assert_eq!(leased(&fixture), 1);
    let said = std::fs::read_to_string(&said).unwrap();
    assert!(said.contains(r#""capabilities":{"elicitation":{"form":{}}}"#), "{said}");
    fixture.end().await;
}

/// ERA-3: where a server is known to ask, a call does not go where another one waits for an answer: neither is refused.
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
    assert_eq!(leased(&fixture), 3, "one beside the shared one, one of the class, one beside that");
    fixture.end().await;
}

/// ERA-1: what a server asks when its call has been cancelled, or outside any call, is refused at once.
#[tokio::test]
async fn questions_without_a_call_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let unasked =
        r#"{"jsonrpc":"2.0","id":"early","method":"sampling/createMessage","params":{"messages":[]}}"#;
    let mock = asking().after_initialized(unasked).transcript(&said);
    let fixture = Fixture::start(&[("near", mock)], |_| ());
    fixture.gateway.settled().await;
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
    assert!(client.told.try_recv().is_err(), "nobody is asked");
    let exits = fixture.recorder.exits().len();
    assert_eq!((exits, leased(&fixture), fixture.gateway.parked()), (1, 0, 0), "nothing is left of the call");
    fixture.end().await;
}

/// Calls the tool that asks for roots, and answers it.
async fn tell_roots(fixture: &Fixture, client: &mut Client, roots: &str) -> Value {
    let call = client.call(&fixture.gateway, "roots");
    let asked = client.next().await;
    assert_eq!(asked["method"], "roots/list", "{asked}");
    client.answer(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": [{"uri": roots}]}}));
    call.await.unwrap().unwrap()
}

/// ERA-3: a server may keep the roots that it was told. Once it has asked for some, a session that has roots has it for
/// itself, and a modern call has one that nobody had before; who has none shares it as ever.
#[tokio::test]
async fn roots_of_one_client_are_not_shown_to_another() {
    let fixture = fixture(|_| ()).await;
    let (mut first, mut second) = (Client::new(EVERYTHING), Client::new(EVERYTHING));
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    assert_eq!(
        pid(&first.call(&fixture.gateway, "pid").await.unwrap().unwrap()),
        shared,
        "nothing was asked"
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
    assert_eq!(leased(&fixture), 0, "those of modern calls end with them");
    let rootless = Client::new(r#"{"sampling":{}}"#);
    rootless.call(&fixture.gateway, "pid").await.unwrap().unwrap();
    assert_eq!(pid(&fixture.call("pid", json!({})).await.unwrap()), shared);
    fixture.end().await;
}

/// A server that asks for roots as soon as it has started, as those do that keep them.
fn keeping(said: &std::path::Path) -> Mock {
    let unbidden = r#"{"jsonrpc":"2.0","id":"first","method":"roots/list"}"#;
    asking().after_initialized(unbidden).transcript(said)
}

/// The `pid` of a modern client's call, which is asked for its roots first.
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

/// HOUR-1, GATE-3: a modern client that has roots keeps its process from call to call: it is asked for them first and finds the
/// one that is kept for its principal and these roots. Whoever has others, or is somebody else, has another; the server is
/// told the roots that belong to it, whenever it asks. `status` says why there are several.
#[tokio::test]
async fn modern_clients_with_roots_keep_their_process() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", keeping(&said))], |_| ());
    fixture.gateway.settled().await;
    let (a, b) = (json!([{"uri": "file:///a", "name": "a"}]), json!([{"uri": "file:///b"}]));
    let shared = pid(&fixture.call("pid", json!({})).await.unwrap());
    let first = pid_with_roots(&fixture, "one", &a).await;
    assert_ne!(first, shared);
    assert_eq!(pid_with_roots(&fixture, "one", &json!([{"name": "a", "uri": "file:///a"}])).await, first);
    let others = [pid_with_roots(&fixture, "one", &b).await, pid_with_roots(&fixture, "two", &a).await];
    assert!(others[0] != others[1] && !others.contains(&first) && !others.contains(&shared), "{others:?}");
    assert_eq!(pid_with_roots(&fixture, "one", &a).await, first, "it is still there");
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

/// HOUR-1: there are `max_leases` of them at the most: the one that was not used for longest makes way.
#[tokio::test]
async fn kept_processes_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", keeping(&said))], |options| options.servers[0].max_leases = 1);
    fixture.gateway.settled().await;
    let (a, b) = (json!([{"uri": "file:///a"}]), json!([{"uri": "file:///b"}]));
    let first = pid_with_roots(&fixture, "one", &a).await;
    let second = pid_with_roots(&fixture, "one", &b).await;
    assert_ne!(first, second);
    assert_eq!((pid_with_roots(&fixture, "one", &b).await, leased(&fixture)), (second, 1));
    assert_ne!(pid_with_roots(&fixture, "one", &a).await, first);
    fixture.end().await;
}

/// HOUR-1: `roots` of a server answers from the configuration, at its start and during calls: nobody is asked, and
/// everybody shares the server.
#[tokio::test]
async fn configured_roots_ask_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", keeping(&said))], |options| {
        options.servers[0].roots = Some(bridgehead_config::Roots::of(["file:///fixed".to_owned()]));
    });
    fixture.gateway.settled().await;
    let fixed = r#"{"roots":[{"uri":"file:///fixed"}]}"#;
    until(|| std::fs::read_to_string(&said).unwrap().contains(&format!(r#""id":"first","result":{fixed}"#)))
        .await;
    let mut client = Client::new(EVERYTHING);
    let result = client.call(&fixture.gateway, "roots").await.unwrap().unwrap();
    assert_eq!(result["structuredContent"]["result"]["roots"][0]["uri"], "file:///fixed", "{result}");
    assert!(client.told.try_recv().is_err(), "nobody was asked");
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

/// ERA-1: a legacy client's roots changed: the server that is its own is told with its next call, and only once; what
/// it asks then reaches the client.
#[tokio::test]
async fn changed_roots_are_told_to_the_servers_of_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let fixture = Fixture::start(&[("near", asking().transcript(&said))], |options| {
        options.servers[0].isolation = Isolation::Session;
    });
    fixture.gateway.settled().await;
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

/// ERA-3: as long as no question was in doubt, calls do not wait for a lease: where all are taken they share the server.
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
