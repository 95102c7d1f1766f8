//! A modern client on a legacy server: the call is parked while the client is away, and never made twice.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead_gateway::{Caller, ClientRequest, ClientTransport, Gateway, Principal, ProgressSink, Session};
use bridgehead_testkit::client::modern_params;
use bridgehead_testkit::peer::{Asked, Part, Peer, event, json_reply, last_chunk, reply, stream_head};
use bridgehead_testkit::{Behaviour, Carrier, Crash, Mock};
use bridgehead_wire::{Object, Raw, RequestMeta, Revision};
use serde_json::{Value, json};

use crate::support::{Fixture, TRANSPORTS, at, everywhere, until};

fn everything() -> Value {
    json!({"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}})
}

fn form() -> Value {
    json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "number"}}}})
}

fn asking() -> Mock {
    let url = json!({"mode": "url", "url": "https://x/", "elicitationId": "1", "message": "go"});
    let question = |method: &str, params: Value| (method.to_owned(), params.into());
    let round = |names: &[&str]| -> Vec<_> {
        let one = |name: &&str| match *name {
            "form" => question("elicitation/create", form()),
            "sample" => question("sampling/createMessage", json!({"messages": [], "maxTokens": 1})),
            _ => question("roots/list", json!({})),
        };
        names.iter().map(one).collect()
    };
    Mock::legacy()
        .tool("form", Behaviour::ask("elicitation/create", form()))
        .tool("url", Behaviour::ask("elicitation/create", url))
        .tool("sample", Behaviour::ask("sampling/createMessage", json!({"messages": [], "maxTokens": 1})))
        .tool("roots", Behaviour::Ask { method: "roots/list".to_owned(), params: None })
        .tool("three", Behaviour::AskInRounds(vec![round(&["form", "sample", "roots"])]))
        .tool("twice", Behaviour::AskInRounds(vec![round(&["form"]), round(&["form", "roots"])]))
        .tool("reports", Behaviour::ask("elicitation/create", form()).with_progress(3))
        .tool("die", Behaviour::Crash(Crash::Abort).after(1))
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("echo", Behaviour::Echo)
}

/// One server as a process, which writes a transcript of its input.
fn near(transcript: &Path, change: impl FnOnce(&mut bridgehead_gateway::Options)) -> Fixture {
    Fixture::start(&[("near", asking().transcript(transcript))], change)
}

struct Client {
    principal: Principal,
    capabilities: Value,
    progress: Option<ProgressSink>,
    token: &'static str,
}

impl Client {
    fn new() -> Self {
        Self { principal: Principal::local(), capabilities: everything(), progress: None, token: "mine" }
    }

    async fn call(&self, gateway: &Gateway, tool: &str, members: Value) -> Result<Value, Value> {
        let mut params = json!({
            "name": tool, "arguments": {},
            "_meta": {"io.modelcontextprotocol/clientCapabilities": self.capabilities, "progressToken": self.token},
        });
        if self.progress.is_none() {
            params["_meta"].as_object_mut().unwrap().remove("progressToken");
        }
        params.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let params = Object::parse(&Raw::encode(&modern_params(params))).unwrap();
        let meta = RequestMeta::read(Some(&params)).unwrap();
        let caller = Caller {
            principal: self.principal.clone(),
            revision: Revision::MODERN,
            transport: ClientTransport::Memory,
            session: Session::new(),
            questioner: None,
        };
        let request = ClientRequest { method: "tools/call".into(), params, meta, id: None };
        let outcome = gateway.answer(&caller, &request, self.progress.clone());
        let outcome = tokio::time::timeout(Duration::from_secs(60), outcome).await.unwrap();
        outcome
            .map(|result| result.to_raw().decode().unwrap())
            .map_err(|error| error.body().decode().unwrap())
    }

    /// Calls a tool that asks; returns the question that the client gets.
    async fn ask(&self, gateway: &Gateway, tool: &str) -> Value {
        let asked = self.call(gateway, tool, json!({})).await.unwrap();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        asked
    }

    async fn answer(
        &self,
        gateway: &Gateway,
        tool: &str,
        asked: &Value,
        answers: Value,
    ) -> Result<Value, Value> {
        let state = &asked["requestState"];
        self.call(gateway, tool, json!({"inputResponses": answers, "requestState": state})).await
    }
}

/// The keys of the questions, in order.
fn keys(asked: &Value) -> Vec<String> {
    asked["inputRequests"].as_object().unwrap().keys().cloned().collect()
}

/// A valid answer to each question.
fn answers(asked: &Value) -> Value {
    let answer = |question: &Value| match question["method"].as_str().unwrap() {
        "elicitation/create" => json!({"action": "accept", "content": {"n": 1.50}}),
        "sampling/createMessage" => {
            json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "s"}})
        }
        _ => json!({"roots": [{"uri": "file:///a"}]}),
    };
    let asked = asked["inputRequests"].as_object().unwrap();
    asked.iter().map(|(key, question)| (key.clone(), answer(question))).collect()
}

#[track_caller]
fn is_not_valid(outcome: &Result<Value, Value>) {
    let error = outcome.as_ref().unwrap_err();
    assert_eq!(error["code"], -32602, "{error}");
    assert_eq!(error["message"], "invalid or expired requestState", "the error does not say what is wrong");
}

/// All calls have ended, and none is parked or waited for. The fixture's end checks for leftover processes as well.
#[track_caller]
fn nothing_is_left(fixture: &Fixture) {
    let Fixture { gateway, recorder, .. } = fixture;
    assert_eq!((recorder.exits().len(), gateway.parked()), (recorder.enters().len(), 0));
    let upstream = &gateway.upstreams()[0];
    if let bridgehead_upstream::UpstreamState::Ready(ready) = upstream.state() {
        assert_eq!(ready.link.in_flight(), 0);
    }
}

fn count(transcript: &Path, text: &str) -> usize {
    std::fs::read_to_string(transcript).unwrap_or_default().matches(text).count()
}

fn transcript() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("said");
    (folder, file)
}

/// ERA-1, modern on legacy: every kind of question reaches the client as a result, and its next request brings the
/// answer to the same call, on every transport.
#[tokio::test]
async fn a_modern_client_answers_a_legacy_server() {
    let (fixture, _served) = everywhere(asking, |_| ()).await;
    let client = Client::new();
    for server in TRANSPORTS {
        for (tool, method) in [
            ("form", "elicitation/create"),
            ("url", "elicitation/create"),
            ("sample", "sampling/createMessage"),
            ("roots", "roots/list"),
        ] {
            let tool = format!("{server}__{tool}");
            let asked = client.ask(&fixture.gateway, &tool).await;
            let [key] = &keys(&asked)[..] else { panic!("{asked}") };
            let question = &asked["inputRequests"][key];
            assert_eq!(question["method"], method, "{server}: {asked}");
            assert!(
                question.get("id").is_none() && question["params"].get("elicitationId").is_none(),
                "{asked}"
            );
            if method == "elicitation/create" {
                assert!(question["params"]["mode"].is_string(), "its mode is given: {asked}");
            }
            assert!(asked["_meta"]["io.modelcontextprotocol/serverInfo"]["name"].is_string(), "{asked}");
            assert_eq!(fixture.gateway.parked(), 1);
            let done = client.answer(&fixture.gateway, &tool, &asked, answers(&asked)).await.unwrap();
            assert_eq!(done["resultType"], "complete", "{done}");
            assert_eq!(done["structuredContent"]["result"], answers(&asked)[key], "{server}: {done}");
            assert_eq!(done["_meta"]["bridgehead/correlationId"], asked["_meta"]["bridgehead/correlationId"]);
            assert_eq!(fixture.gateway.parked(), 0);
        }
    }
    let calls = fixture.recorder.enters().len();
    assert_eq!(
        (calls, fixture.recorder.exits().len()),
        (16, 16),
        "a call is one pair, however many requests it took"
    );
    fixture.end().await;
}

/// ERA-1: questions that a server asks together reach the client together, and a later round has its own state.
#[tokio::test]
async fn questions_come_together_and_in_rounds() {
    let (fixture, _served) = everywhere(asking, |_| ()).await;
    let client = Client::new();
    for server in TRANSPORTS {
        let tool = format!("{server}__three");
        let asked = client.ask(&fixture.gateway, &tool).await;
        assert_eq!(keys(&asked).len(), 3, "{server}: {asked}");
        let done = client.answer(&fixture.gateway, &tool, &asked, answers(&asked)).await.unwrap();
        assert_eq!(done["structuredContent"]["answers"].as_array().unwrap().len(), 3, "{done}");

        let tool = format!("{server}__twice");
        let first = client.ask(&fixture.gateway, &tool).await;
        let second = client.answer(&fixture.gateway, &tool, &first, answers(&first)).await.unwrap();
        assert_eq!(keys(&second).len(), 2, "{server}: {second}");
        assert!(keys(&second).iter().all(|key| !keys(&first).contains(key)), "keys are not reused");
        assert_ne!(first["requestState"], second["requestState"]);
        is_not_valid(&client.answer(&fixture.gateway, &tool, &first, answers(&first)).await);
        let done = client.answer(&fixture.gateway, &tool, &second, answers(&second)).await.unwrap();
        assert_eq!(done["structuredContent"]["answers"].as_array().unwrap().len(), 3, "{done}");
    }
    fixture.end().await;
}

/// ERA-2, GATE-3, ACC-1: a state that was changed, was used before, or belongs to another client or request is refused and
/// runs nothing.
#[tokio::test]
async fn a_state_is_good_for_one_request_of_one_client_once() {
    let (_folder, said) = transcript();
    let fixture = near(&said, |_| ());
    fixture.settled().await;
    let client = Client::new();
    let gateway = &fixture.gateway;
    let asked = client.ask(gateway, "form").await;
    let state = asked["requestState"].as_str().unwrap();
    let good = answers(&asked);
    for tampered in [
        format!("{state}-tampered"),
        state[..state.len() - 2].to_owned(),
        "bh1.AAAA".to_owned(),
        "x".to_owned(),
    ] {
        let members = json!({"inputResponses": good, "requestState": tampered});
        is_not_valid(&client.call(gateway, "form", members).await);
    }
    let foreign = Client { principal: Principal::named("somebody"), ..Client::new() };
    is_not_valid(&foreign.answer(gateway, "form", &asked, good.clone()).await);
    is_not_valid(&client.answer(gateway, "url", &asked, good.clone()).await);
    let other = json!({"arguments": {"x": 1}, "inputResponses": good, "requestState": state});
    is_not_valid(&client.call(gateway, "form", other).await);

    let done = client.answer(gateway, "form", &asked, good.clone()).await.unwrap();
    assert_eq!(done["resultType"], "complete");
    is_not_valid(&client.answer(gateway, "form", &asked, good).await);
    assert_eq!(count(&said, r#""method":"tools/call""#), 1, "it ran once");
    nothing_is_left(&fixture);
    fixture.end().await;
}

/// ERA-2: of two answers to the same question only the first counts.
#[tokio::test]
async fn two_answer_one_question() {
    let (_folder, said) = transcript();
    let fixture = near(&said, |_| ());
    fixture.settled().await;
    let client = Client::new();
    let asked = client.ask(&fixture.gateway, "form").await;
    let answer = || client.answer(&fixture.gateway, "form", &asked, answers(&asked));
    let (first, second) = tokio::join!(answer(), answer());
    assert_eq!(first.unwrap()["resultType"], "complete");
    is_not_valid(&second);
    assert_eq!(count(&said, r#""method":"tools/call""#), 1);
    nothing_is_left(&fixture);
    fixture.end().await;
}

/// ERA-1, ERA-2: unrequested answers are ignored, missing ones are asked for again, and a malformed answer is refused
/// without using up the round.
#[tokio::test]
async fn answers_are_matched_with_questions() {
    let (_folder, said) = transcript();
    let fixture = near(&said, |_| ());
    fixture.settled().await;
    let client = Client::new();
    let gateway = &fixture.gateway;
    let asked = client.ask(gateway, "three").await;
    let all = answers(&asked);
    for malformed in [
        json!(7),
        json!([]),
        json!({keys(&asked)[0].clone(): {"content": {}}}),
        json!({keys(&asked)[2].clone(): 7}),
    ] {
        let error = client.answer(gateway, "three", &asked, malformed).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains("inputResponses"), "{error}");
    }
    let first = &keys(&asked)[0];
    let some = json!({first.clone(): all[first], "nobody-asked": {"action": "accept"}});
    let again = client.answer(gateway, "three", &asked, some).await.unwrap();
    assert_eq!(again["resultType"], "input_required", "{again}");
    assert_eq!(keys(&again), keys(&asked)[1..], "only what is missing");
    let none = client.answer(gateway, "three", &again, json!({})).await.unwrap();
    assert_eq!(keys(&none), keys(&again));
    let bare = client.call(gateway, "three", json!({"requestState": none["requestState"]})).await.unwrap();
    assert_eq!(keys(&bare), keys(&again), "no answers at all");
    let done = client.answer(gateway, "three", &bare, answers(&bare)).await.unwrap();
    assert_eq!(done["structuredContent"]["answers"].as_array().unwrap().len(), 3, "{done}");
    assert_eq!(count(&said, r#""method":"tools/call""#), 1, "it ran once");
    nothing_is_left(&fixture);

    // Without a state the gateway knows of no question: this is a call like any other, and its answers belong to no
    // question.
    let fresh =
        client.call(gateway, "form", json!({"inputResponses": {"q1": {"action": "accept"}}})).await.unwrap();
    assert_eq!(fresh["resultType"], "input_required", "{fresh}");
    assert_eq!(count(&said, "inputResponses"), 0, "a legacy server does not know that member");
    fixture.end().await;
}

/// ERA-2: the end of a call is kept while its client is away: an answer, an error, or the death of the server.
#[tokio::test]
async fn the_end_of_a_parked_call_is_kept() {
    let fixture = Fixture::start(&[("near", asking())], |_| ());
    fixture.settled().await;
    let client = Client::new();
    let gateway = &fixture.gateway;
    let asked = client.ask(gateway, "form").await;
    // A client that declared nothing shares the process with the client that is being asked.
    let other = Client { capabilities: json!({}), ..Client::new() };
    let crash = other.call(gateway, "die", json!({})).await.unwrap_err();
    assert_eq!(crash["data"]["code"], "PROVIDER_CRASHED", "{crash}");
    until(|| fixture.recorder.exits().len() == 2).await;
    assert_eq!(gateway.parked(), 1, "its end waits for the client");
    let lost = client.answer(gateway, "form", &asked, answers(&asked)).await.unwrap_err();
    assert_eq!(lost["data"]["code"], "PROVIDER_CRASHED", "{lost}");
    assert_eq!(lost["data"]["mayHaveRun"], true, "{lost}");
    is_not_valid(&client.answer(gateway, "form", &asked, answers(&asked)).await);
    nothing_is_left(&fixture);
    fixture.end().await;

    let peer = Peer::start(script).await;
    let fixture = Fixture::start(&[], |options| options.servers.push(at("p", &peer.url("/mcp"))));
    fixture.settled().await;
    let asked = client.ask(&fixture.gateway, "hurries").await;
    until(|| fixture.recorder.exits().len() == 1).await;
    let done = client.answer(&fixture.gateway, "hurries", &asked, answers(&asked)).await.unwrap();
    assert_eq!(done["content"][0]["text"], "done without you", "{done}");

    let asked = client.ask(&fixture.gateway, "takes_back").await;
    assert_eq!(keys(&asked), ["q2"], "the withdrawn question is not asked: {asked}");
    fixture.end().await;
}

/// A server that finishes before it has the answer, and one that withdraws its question and asks another.
fn script(asked: &Asked) -> Vec<Part> {
    let body = asked.json();
    let answer = |result: Value| json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
    let ask = |id: u64| event(&json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"}));
    let done = event(&answer(json!({"content": [{"type": "text", "text": "done without you"}]})));
    let tools =
        ["takes_back", "hurries"].map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
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
            _ => vec![stream_head(&[]), ask(7), Part::Wait(Duration::from_millis(300)), done, last_chunk()],
        },
        _ => reply("202 Accepted", &[], ""),
    }
}

/// ERA-2: if a client does not return, its question is cancelled and then its call. Its state is no longer valid, and
/// nothing is left.
#[tokio::test]
async fn a_client_that_never_comes_back() {
    let (_folder, said) = transcript();
    let patience = Duration::from_millis(300);
    let fixture = near(&said, |options| options.servers[0].question_timeout = Some(patience));
    fixture.settled().await;
    // Each client can be asked only one kind of question, so that a question's call is unambiguous.
    let client = Client { capabilities: json!({"elicitation": {}}), ..Client::new() };
    let other = Client { capabilities: json!({"sampling": {}}), ..Client::new() };
    let gateway = &fixture.gateway;
    let asked = client.ask(gateway, "form").await;
    let sampled = other.ask(gateway, "sample").await;
    until(|| gateway.parked() == 0).await;
    let exits = fixture.recorder.exits();
    assert_eq!(exits.len(), 2, "both calls ended");
    let said = std::fs::read_to_string(&said).unwrap();
    assert!(said.contains(r#""result":{"action":"cancel"}"#), "{said}");
    assert!(said.contains("the client did not answer within"), "{said}");
    is_not_valid(&client.answer(gateway, "form", &asked, answers(&asked)).await);
    is_not_valid(&other.answer(gateway, "sample", &sampled, answers(&sampled)).await);
    nothing_is_left(&fixture);
    fixture.end().await;
}

/// ERA-2, ERA-3: calls whose clients never return give up their leases at their deadline. A call that came when all
/// eight were taken waits and is then asked, and in the end all eight are free.
#[tokio::test]
async fn abandoned_questions_give_their_leases_back() {
    let (_folder, said) = transcript();
    let fixture = near(&said, |options| {
        options.servers[0].interactive = bridgehead_config::Interactive::Exclusive;
        options.servers[0].question_timeout = Some(Duration::from_secs(5));
    });
    fixture.settled().await;
    let (client, gateway) = (Client::new(), &fixture.gateway);
    let leased = || gateway.upstreams()[0].leased();
    // All processes are started before the time counts.
    let eight = || futures_util::future::join_all((0..8).map(|_| client.ask(gateway, "form")));
    for asked in eight().await {
        client.answer(gateway, "form", &asked, answers(&asked)).await.unwrap();
    }
    assert_eq!((leased(), gateway.parked()), (8, 0), "`max_leases` is 8 by default");
    let abandoned = eight().await;
    assert_eq!((leased(), gateway.parked()), (8, 8));
    let mut ninth = Box::pin(client.ask(gateway, "form"));
    tokio::select! {
        asked = &mut ninth => panic!("the ninth call did not wait: {asked}"),
        () = until(|| fixture.recorder.enters().len() == 17) => {}
    }
    assert_eq!((leased(), gateway.parked()), (8, 8));
    let asked = ninth.await;
    let done = client.answer(gateway, "form", &asked, answers(&asked)).await.unwrap();
    assert_eq!(done["resultType"], "complete");
    until(|| gateway.parked() == 0).await;
    for asked in &abandoned {
        is_not_valid(&client.answer(gateway, "form", asked, answers(asked)).await);
    }
    assert_eq!(count(&said, r#""method":"tools/call""#), 17, "nothing ran twice");
    assert_eq!(count(&said, r#""result":{"action":"cancel"}"#), 8);
    for asked in eight().await {
        client.answer(gateway, "form", &asked, answers(&asked)).await.unwrap();
    }
    assert_eq!(leased(), 8);
    nothing_is_left(&fixture);
    fixture.end().await;
}

/// ERA-1: a client that leaves while its answer is being processed has cancelled its call, and the server is notified.
#[tokio::test]
async fn leaving_during_a_later_round_cancels() {
    let peer = Peer::start(hanging).await;
    let fixture = Fixture::start(&[], |options| options.servers.push(at("p", &peer.url("/mcp"))));
    fixture.settled().await;
    let client = Client::new();
    let asked = client.ask(&fixture.gateway, "asks").await;
    {
        let retry = client.answer(&fixture.gateway, "asks", &asked, answers(&asked));
        tokio::pin!(retry);
        tokio::select! {
            outcome = &mut retry => panic!("{outcome:?}"),
            () = peer.until("the answer came", |peer| peer.asked().iter().any(|asked| asked.body.contains("roots")
                && asked.body.contains("result"))) => {}
        }
    }
    assert_eq!(fixture.gateway.parked(), 0);
    until(|| fixture.recorder.exits().len() == 1).await;
    peer.until("the server gets the cancellation", |peer| {
        peer.asked().iter().any(|asked| asked.body.contains("notifications/cancelled"))
    })
    .await;
    is_not_valid(&client.answer(&fixture.gateway, "asks", &asked, answers(&asked)).await);
    fixture.end().await;
}

/// A server that asks once and then never answers.
fn hanging(asked: &Asked) -> Vec<Part> {
    let body = asked.json();
    let answer = |result: Value| json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
    match asked.rpc().as_str() {
        "initialize" => json_reply(&answer(
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "p", "version": "1"}}),
        )),
        "tools/list" => {
            json_reply(&answer(json!({"tools": [{"name": "asks", "inputSchema": {"type": "object"}}]})))
        }
        "ping" => json_reply(&answer(json!({}))),
        "tools/call" => {
            let ask = event(&json!({"jsonrpc": "2.0", "id": 7, "method": "roots/list"}));
            vec![stream_head(&[]), ask, Part::Hang]
        }
        _ => reply("202 Accepted", &[], ""),
    }
}

/// ERA-1, ERA-3: a modern client is not asked for what it did not declare. Its call ends with an error that names the
/// missing capability, and the server is told that its question will not be answered.
#[tokio::test]
async fn a_capability_that_is_missing() {
    let (fixture, _served) = everywhere(asking, |_| ()).await;
    for server in TRANSPORTS {
        for (tool, capabilities, needed) in [
            ("sample", json!({}), json!({"sampling": {}})),
            ("form", json!({"sampling": {}}), json!({"elicitation": {}})),
            ("url", json!({"elicitation": {}}), json!({"elicitation": {"url": {}}})),
        ] {
            let client = Client { capabilities, ..Client::new() };
            let error =
                client.call(&fixture.gateway, &format!("{server}__{tool}"), json!({})).await.unwrap_err();
            assert_eq!(error["code"], -32021, "{server}: {error}");
            assert_eq!(error["data"]["requiredCapabilities"], needed);
        }
        assert_eq!(fixture.gateway.parked(), 0);
    }
    fixture.end().await;
}

/// ERA-1: progress goes to whichever request of the call is open, under that request's token.
#[tokio::test]
async fn progress_follows_the_requests() {
    let fixture = Fixture::start(&[("near", asking())], |_| ());
    fixture.settled().await;
    let (sink, mut notes) = ProgressSink::channel(8);
    let client = Client { progress: Some(sink), ..Client::new() };
    let asked = client.ask(&fixture.gateway, "reports").await;
    let note: Value = serde_json::from_slice(&notes.recv().await.unwrap()).unwrap();
    assert_eq!(note["params"]["progressToken"], "mine", "{note}");
    let done = client.answer(&fixture.gateway, "reports", &asked, answers(&asked)).await.unwrap();
    assert_eq!(done["resultType"], "complete");
    fixture.end().await;
}

/// ERA-1: once another request has resumed a call, its progress goes to that request, under its token and no other. A
/// request that resumes it without a token gets none.
#[tokio::test]
async fn progress_has_the_token_of_the_request_that_resumed_the_call() {
    for wanted in [true, false] {
        let (goes_on, waits) = tokio::sync::watch::channel(false);
        let peer = Peer::start(move |asked| match asked.rpc().as_str() {
            "tools/call" => {
                let body = asked.json();
                let ask = event(&json!({"jsonrpc": "2.0", "id": 7, "method": "roots/list"}));
                let progress = |step: u32| {
                    let params =
                        json!({"progressToken": body["params"]["_meta"]["progressToken"], "progress": step});
                    event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
                };
                let done = json!({"jsonrpc": "2.0", "id": body["id"], "result": {"content": []}});
                let parts =
                    [progress(1), ask, Part::Until(waits.clone()), progress(2), progress(3), event(&done)];
                [vec![stream_head(&[])], parts.into(), vec![last_chunk()]].concat()
            }
            _ => hanging(asked),
        })
        .await;
        let fixture = Fixture::start(&[], |options| options.servers.push(at("p", &peer.url("/mcp"))));
        fixture.gateway.settled().await;
        let (first, mut of_first) = ProgressSink::channel(8);
        let (second, mut of_second) = ProgressSink::channel(8);
        let first = Client { progress: Some(first), ..Client::new() };
        let second = Client { progress: wanted.then_some(second), token: "yours", ..Client::new() };
        let asked = first.ask(&fixture.gateway, "asks").await;
        let resumed = second.answer(&fixture.gateway, "asks", &asked, answers(&asked));
        let going_on = async {
            let answered = |peer: &Peer| {
                peer.asked().iter().any(|asked| asked.body.contains("roots") && asked.body.contains("result"))
            };
            peer.until("the answer came", answered).await;
            goes_on.send_replace(true);
        };
        let (done, ()) = tokio::join!(resumed, going_on);
        assert_eq!(done.unwrap()["resultType"], "complete");
        let tokens = |notes: &mut tokio::sync::mpsc::Receiver<bytes::Bytes>| {
            let notes = std::iter::from_fn(|| notes.try_recv().ok());
            let notes: Vec<Value> = notes.map(|note| serde_json::from_slice(&note).unwrap()).collect();
            notes.iter().map(|note| note["params"]["progressToken"].clone()).collect::<Vec<Value>>()
        };
        assert_eq!(tokens(&mut of_first), ["mine"], "only what came before the question");
        let expected: &[&str] = if wanted { &["yours", "yours"] } else { &[] };
        assert_eq!(tokens(&mut of_second), expected);
        fixture.end().await;
    }
}

/// ERA-2: a gateway that stops ends all parked calls, and a waiting client gets an error.
#[tokio::test]
async fn a_gateway_that_stops_leaves_nothing_parked() {
    let fixture = Fixture::start(&[("near", asking())], |_| ());
    fixture.settled().await;
    Client { capabilities: json!({"elicitation": {}}), ..Client::new() }.ask(&fixture.gateway, "form").await;
    Client { capabilities: json!({"roots": {}}), ..Client::new() }.ask(&fixture.gateway, "roots").await;
    assert_eq!(fixture.gateway.parked(), 2);
    let gateway = fixture.gateway.clone();
    gateway.stop().await;
    assert_eq!(gateway.parked(), 0);
    assert_eq!(fixture.recorder.exits().len(), 2, "each call is recorded once the gateway has stopped");
    drop(gateway);
    fixture.end().await;

    let peer = Peer::start(hanging).await;
    let fixture = Fixture::start(&[], |options| options.servers.push(at("p", &peer.url("/mcp"))));
    fixture.settled().await;
    let client = Client::new();
    let asked = client.ask(&fixture.gateway, "asks").await;
    let waiting = client.answer(&fixture.gateway, "asks", &asked, answers(&asked));
    let stopping = async {
        peer.until("the answer came", |peer| {
            peer.asked().iter().any(|asked| asked.body.contains("roots") && asked.body.contains("result"))
        })
        .await;
        fixture.gateway.stop().await;
    };
    let (told, ()) = tokio::join!(waiting, stopping);
    assert_eq!(told, Err(json!({"code": -32603, "message": "the call was ended by the gateway"})));
    fixture.end().await;
}

/// ERA-4: the 2025-11-25 refusal that sends a user to a page becomes a question for a modern client, and the call is
/// made when the user agrees. Older clients get it as text. A client of 2025-11-25 gets it unchanged.
#[tokio::test]
async fn a_page_that_has_to_be_visited_first() {
    let page = json!({"mode": "url", "elicitationId": "1", "url": "https://x/", "message": "sign in"});
    let error =
        bridgehead_testkit::RpcError::new(-32042, "sign in first").data(json!({"elicitations": [page]}));
    let mock = Mock::legacy().tool("locked", Behaviour::Error(error));
    let fixture = Fixture::start(&[("near", mock)], |_| ());
    fixture.settled().await;
    let client = Client::new();
    let gateway = &fixture.gateway;
    let asked = client.ask(gateway, "locked").await;
    let [key] = &keys(&asked)[..] else { panic!("{asked}") };
    let expected = json!({"mode": "url", "url": "https://x/", "message": "sign in"});
    assert_eq!(asked["inputRequests"][key]["params"], expected);
    let again =
        client.answer(gateway, "locked", &asked, json!({key.clone(): {"action": "accept"}})).await.unwrap();
    assert_eq!(again["resultType"], "input_required", "the call was made again, and refused again: {again}");
    let [key] = &keys(&again)[..] else { panic!("{again}") };
    let done =
        client.answer(gateway, "locked", &again, json!({key.clone(): {"action": "decline"}})).await.unwrap();
    assert_eq!((&done["isError"], &done["resultType"]), (&json!(true), &json!("complete")), "{done}");

    // The gateway does not send a client to the same page forever.
    let mut outcome = client.ask(gateway, "locked").await;
    for round in 1..=3 {
        assert_eq!(outcome["resultType"], "input_required", "{round}: {outcome}");
        let agreed = json!({keys(&outcome)[0].clone(): {"action": "accept"}});
        outcome = client.answer(gateway, "locked", &outcome, agreed).await.unwrap();
    }
    assert_eq!(
        (&outcome["isError"], &outcome["resultType"]),
        (&json!(true), &json!("complete")),
        "{outcome}"
    );
    assert!(outcome["content"][0]["text"].as_str().unwrap().contains("sign in first"), "{outcome}");

    let none = Client { capabilities: json!({"elicitation": {}}), ..Client::new() };
    let error = none.call(gateway, "locked", json!({})).await.unwrap_err();
    assert_eq!(error["code"], -32021, "{error}");
    let error = fixture.call("locked", json!({})).await.unwrap_err();
    assert_eq!(error["code"], -32042, "{error}");
    let params = json!({"name": "locked", "arguments": {}});
    let result = fixture.ask(Revision::V2025_06_18, "tools/call", params).await.unwrap();
    assert!(
        result.as_str().contains("https://x/") && result.as_str().contains(r#""isError":true"#),
        "{}",
        result.as_str()
    );
    fixture.end().await;
}

/// ERA-4: lists and results are those of the client's revision, whatever the server speaks.
#[tokio::test]
async fn what_older_clients_get() {
    let tool = bridgehead_testkit::Tool::new(
        "t",
        Behaviour::raw_result(
            r#"{"content":[{"type":"resource_link","uri":"file:///a","name":"n"}],"structuredContent":{"a":1.50}}"#,
        ),
    )
    .output_schema(json!({"type": "object"}))
    .annotations(json!({"readOnlyHint": true}))
    .extra("title", "\"T\"")
    .extra("icons", "[]")
    .extra("execution", r#"{"taskSupport":"optional"}"#);
    let fixture = Fixture::start(&[("near", Mock::legacy().full_tool(tool))], |_| ());
    fixture.settled().await;
    for (revision, members, structured) in [
        (Revision::V2024_11_05, vec!["name", "inputSchema"], false),
        (Revision::V2025_03_26, vec!["name", "inputSchema", "annotations"], false),
        (Revision::V2025_06_18, vec!["name", "inputSchema", "outputSchema", "annotations", "title"], true),
        (
            Revision::V2025_11_25,
            vec!["name", "inputSchema", "outputSchema", "annotations", "title", "icons"],
            true,
        ),
    ] {
        for _ in 0..2 {
            let list = fixture.ask(revision, "tools/list", json!({})).await.unwrap();
            let list: Value = list.decode().unwrap();
            let listed = list["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "t").unwrap();
            let mut names: Vec<&String> = listed.as_object().unwrap().keys().collect();
            let mut expected: Vec<String> = members.iter().map(|name| (*name).to_owned()).collect();
            names.sort();
            expected.sort();
            assert_eq!(names, expected.iter().collect::<Vec<_>>(), "{revision}");
        }
        let result = fixture.ask(revision, "tools/call", json!({"name": "t"})).await.unwrap();
        assert_eq!(result.as_str().contains(r#""structuredContent":{"a":1.50}"#), structured, "{revision}");
        assert_eq!(result.as_str().contains("resource_link"), structured, "{revision}");
        assert!(result.as_str().contains("file:///a"), "{revision}");
    }
    fixture.end().await;
}

/// The resident memory of this process, in kilobytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// ERA-2: a thousand parked calls on one streamable HTTP server take less than 50 MB, and each gets its answer.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_thousand_parked_calls_take_little() {
    const CALLS: usize = 1000;
    let served = asking().serve(Carrier::Http);
    let fixture = Fixture::start(&[], |options| options.servers.push(at("far", &served.url())));
    fixture.settled().await;
    let client = Client::new();
    let gateway = &fixture.gateway;
    let asked = client.ask(gateway, "form").await;
    client.answer(gateway, "form", &asked, answers(&asked)).await.unwrap();

    let before = resident();
    let mut parked = Vec::with_capacity(CALLS);
    while parked.len() < CALLS {
        parked.extend(futures_util::future::join_all((0..50).map(|_| client.ask(gateway, "form"))).await);
    }
    assert_eq!(gateway.parked(), CALLS);
    let grown = resident().saturating_sub(before);
    println!("{CALLS} parked calls: {grown} kB more in memory");
    assert!(grown < 50 * 1024, "{grown} kB");
    for some in parked.chunks(50) {
        let answers = some.iter().map(|asked| client.answer(gateway, "form", asked, answers(asked)));
        for done in futures_util::future::join_all(answers).await {
            assert_eq!(done.unwrap()["resultType"], "complete");
        }
    }
    assert_eq!(gateway.parked(), 0);
    fixture.end().await;
}

/// WIRE-5, PIPE-2: a parked call keeps its tool lock for as long as its client takes. A call that waits for the lock
/// does so within its own deadline, and the lock is free when the parked call has ended.
#[tokio::test]
async fn a_parked_call_keeps_its_turn() {
    let (_folder, transcript) = transcript();
    let fixture = near(&transcript, |options| {
        let server = &mut options.servers[0];
        server.tools.entry("form".to_owned()).or_default().lock = Some(true);
        server.max_total = Some(Duration::from_secs(4));
    });
    fixture.settled().await;
    let client = Client::new();
    let asked = client.ask(&fixture.gateway, "form").await;
    let late = client.call(&fixture.gateway, "form", json!({})).await.unwrap_err();
    assert_eq!(late["data"]["code"], "PROVIDER_UNAVAILABLE", "{late}");
    assert_eq!(late["data"]["mayHaveRun"], false, "{late}");
    let done = client.answer(&fixture.gateway, "form", &asked, answers(&asked)).await.unwrap();
    assert_eq!(done["resultType"], "complete", "{done}");
    let asked = client.ask(&fixture.gateway, "form").await;
    client.answer(&fixture.gateway, "form", &asked, answers(&asked)).await.unwrap();
    nothing_is_left(&fixture);
    fixture.end().await;
}
