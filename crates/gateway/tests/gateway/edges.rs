//! Rare paths through the chain: servers that answer nonsense or go away, clients that do not read, sinks that fail.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::support::{Fixture, ask, ask_raw, until};
use bridgehead_call::{AuditError, AuditSink, Enter, EnterFuture, Exit, Outcome, Ticket};
use bridgehead_config::ToolOverride;
use bridgehead_gateway::{Gateway, NativeTool, Options, ProgressSink};
use bridgehead_testkit::{Behaviour, Mock, Recorder, Tool};
use bridgehead_wire::{Raw, Revision};
use serde_json::{Value, json};

const LEGACY: Revision = Revision::V2025_11_25;

fn hanging() -> NativeTool {
    NativeTool::new("hang", "", json!({"type": "object"}), |_, _| std::future::pending())
}

fn told(error: &Value) -> (Option<&str>, Option<bool>) {
    (error["data"]["code"].as_str(), error["data"]["mayHaveRun"].as_bool())
}

/// ERR-1: an unusable result is the server's fault, and the tool may have run.
#[tokio::test]
async fn malformed_results_are_refused() {
    let mock = Mock::legacy()
        .tool("list", Behaviour::raw_result("[]"))
        .tool("ask", Behaviour::raw_result(r#"{"resultType":"input_required"}"#))
        .tool("flood", Behaviour::Flood { megabytes: 2 })
        .tool("well", Behaviour::Text("fine".to_owned()));
    let fixture = Fixture::start(&[("m", mock)], |options| options.settings.max_message_bytes = 1 << 20);
    for (tool, reason) in
        [("list", "not an object"), ("ask", "unexpected `resultType`"), ("flood", "server `m`: ")]
    {
        let error = fixture.call(tool, json!({})).await.unwrap_err();
        assert_eq!(told(&error), (Some("PROVIDER_INVALID_OUTPUT"), Some(true)), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("server `m`: ") && message.contains(reason), "{message}");
    }
    assert_eq!(fixture.call("well", json!({})).await.unwrap()["content"][0]["text"], "fine");
    fixture.end().await;
}

/// PIPE-3: arguments that are valid JSON but cannot be decoded, such as a number out of range, are refused before the
/// tool runs.
#[tokio::test]
async fn arguments_that_cannot_be_decoded_are_refused() {
    let fixture = Fixture::start(&[], |options| options.tools.push(hanging()));
    let params = Raw::parse(r#"{"name":"hang","arguments":{"n":1e999}}"#.to_owned()).unwrap();
    let result = ask_raw(&fixture.gateway, LEGACY, "tools/call", &params, None).await.unwrap();
    assert!(result.as_str().contains("INVALID_PARAMS"), "{}", result.as_str());
    assert!(result.as_str().contains("out of range"), "{}", result.as_str());
    assert!(matches!(fixture.recorder.exits()[0].outcome(), Outcome::Error { .. }));
    fixture.end().await;
}

/// A client that does not read its progress loses progress, never the answer.
#[tokio::test]
async fn unread_progress_is_dropped() {
    let mock = Mock::legacy().tool("steps", Behaviour::Text("done".to_owned()).with_progress(5));
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    let (sink, mut progress) = ProgressSink::channel(1);
    let params = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": "p"}});
    let result = fixture.ask_with(LEGACY, "tools/call", params, Some(sink)).await.unwrap();
    assert!(result.as_str().contains("done"));
    assert!(progress.recv().await.is_some(), "the first had room");
    assert!(progress.recv().await.is_none(), "and no other");
    fixture.end().await;
}

/// A call whose server is stopped while it waits for its turn gets an error that says so, and is never sent.
#[tokio::test]
async fn a_call_that_finds_its_server_stopped_is_not_made() {
    let mock = Mock::legacy().tool("slow", Behaviour::HangUntilCancelled);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0]
            .tools
            .insert("slow".to_owned(), ToolOverride { lock: Some(true), ..ToolOverride::default() });
    });
    fixture.settled().await;
    let call = |gateway: Gateway| {
        tokio::spawn(async move {
            let params = json!({"name": "slow", "arguments": {}});
            ask(&gateway, LEGACY, "tools/call", params, None)
                .await
                .unwrap_err()
                .body()
                .decode::<Value>()
                .unwrap()
        })
    };
    let first = call(fixture.gateway.clone());
    while fixture.recorder.enters().is_empty() {
        tokio::task::yield_now().await;
    }
    let second = call(fixture.gateway.clone());
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    fixture.gateway.stop().await;
    assert_eq!(told(&first.await.unwrap()), (Some("PROVIDER_CRASHED"), Some(true)));
    let second = second.await.unwrap();
    assert_eq!(told(&second), (Some("PROVIDER_UNAVAILABLE"), Some(false)), "{second}");
    fixture.end().await;
}

/// Holds every enter until the test releases it.
struct Slow(Recorder, Arc<tokio::sync::Notify>);

impl AuditSink for Slow {
    fn enter(&self, event: &Enter) -> EnterFuture {
        let (entered, gate) = (self.0.enter(event), Arc::clone(&self.1));
        Box::pin(async move {
            gate.notified().await;
            entered.await
        })
    }

    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.0.exit(ticket, event)
    }
}

/// WIRE-2, PIPE-7: a call cancelled while its enter is being written still gives its exit the ticket.
#[tokio::test]
async fn a_call_cancelled_while_it_enters_leaves_its_pair() {
    let (recorder, gate) = (Recorder::new(), Arc::new(tokio::sync::Notify::new()));
    let audit = Arc::new(Slow(recorder.clone(), Arc::clone(&gate)));
    let fixture = Fixture::start(&[], |options| options.audit = audit);
    let gateway = fixture.gateway.clone();
    let call = tokio::spawn(async move {
        ask(&gateway, LEGACY, "tools/call", json!({"name": "server_ping"}), None).await
    });
    until(|| recorder.enters().len() == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(recorder.exits().len(), 0, "it has no ticket yet");
    gate.notify_one();
    until(|| recorder.exits().len() == 1).await;
    recorder.assert_paired();
    assert_eq!(recorder.exits()[0].outcome(), &Outcome::Cancelled);
    fixture.end().await;
}

/// PIPE-7: a call cancelled before its turn leaves its pair even if the sink refuses the enter.
#[tokio::test]
async fn a_cancelled_call_leaves_its_pair_at_a_failing_sink() {
    let fixture = Fixture::start(&[], |options| options.tools.push(hanging()));
    let call = |gateway: Gateway| {
        let params = json!({"name": "hang", "arguments": {}});
        tokio::spawn(async move { ask(&gateway, LEGACY, "tools/call", params, None).await })
    };
    let running = call(fixture.gateway.clone());
    while fixture.recorder.enters().is_empty() {
        tokio::task::yield_now().await;
    }
    let queued = call(fixture.gateway.clone());
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    fixture.recorder.fail_enter(true);
    for call in [queued, running] {
        call.abort();
        let _ = call.await;
    }
    bridgehead_testkit::until("the ends of both calls", || fixture.recorder.exits().len() >= 2).await;
    assert!(fixture.recorder.exits().iter().all(|exit| matches!(exit.outcome(), Outcome::Cancelled)));
    assert_eq!(fixture.recorder.enters().len(), 2);
    fixture.end().await;
}

/// A call dropped after its runtime is gone can no longer be recorded, but is still counted.
#[test]
fn a_call_dropped_after_its_runtime_is_counted() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let recorder = Recorder::new();
    let gateway = {
        let _inside = runtime.enter();
        let audit = Arc::new(recorder.clone());
        Gateway::new(Options { audit, tools: vec![hanging()], ..Options::default() }).unwrap()
    };
    let mut context = Context::from_waker(Waker::noop());
    {
        let params = || json!({"name": "hang", "arguments": {}});
        let mut running = pin!(ask(&gateway, LEGACY, "tools/call", params(), None));
        let mut queued = Box::pin(ask(&gateway, LEGACY, "tools/call", params(), None));
        let _inside = runtime.enter();
        assert!(matches!(running.as_mut().poll(&mut context), Poll::Pending));
        assert!(matches!(queued.as_mut().poll(&mut context), Poll::Pending));
        drop(_inside);
        drop(queued);
        assert_eq!(gateway.health()["counters"]["cancelled"], 1);
        assert_eq!((recorder.enters().len(), recorder.exits().len()), (1, 0), "only the running one");
    }
    assert_eq!(recorder.exits().len(), 1);
}

/// PIPE-3: an unusable schema of a server checks nothing; the server gets the arguments and validates them itself.
#[tokio::test]
async fn a_schema_that_cannot_be_used_stops_no_call() {
    let schema = json!({"type": "object", "$ref": "http://elsewhere.example/schema"});
    let mock =
        Mock::legacy().full_tool(Tool::new("odd", Behaviour::Text("ran".to_owned())).input_schema(schema));
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    assert_eq!(fixture.call("odd", json!({"x": 1})).await.unwrap()["content"][0]["text"], "ran");
    fixture.end().await;
}
