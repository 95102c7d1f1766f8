//! Panics outside of tool handlers: in the embedder's audit sink and clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Fixture, ask, until};
use crate::telemetry::Lines;
use bridgehead_call::{AuditError, AuditSink, Clock, Enter, EnterFuture, Exit, Outcome, SystemClock, Ticket};
use bridgehead_gateway::{AdminEvent, NativeTool, Principal, admin};
use bridgehead_testkit::Recorder;
use bridgehead_wire::Revision;
use serde_json::{Value, json};

const LEGACY: Revision = Revision::V2025_11_25;

/// Where a sink panics.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Enter,
    EnterFuture,
    Exit,
}

/// Records every event, and panics at one place.
struct Panicking(Recorder, At);

impl AuditSink for Panicking {
    fn enter(&self, event: &Enter) -> EnterFuture {
        assert!(self.1 != At::Enter, "the sink is broken: hunter2");
        let entered = self.0.enter(event);
        let broken = self.1 == At::EnterFuture;
        Box::pin(async move {
            tokio::task::yield_now().await;
            assert!(!broken, "the sink is broken: hunter2");
            entered.await
        })
    }

    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.0.exit(ticket, event).unwrap();
        assert!(self.1 != At::Exit, "the sink is broken: hunter2");
        Ok(())
    }
}

fn start(at: At) -> (Fixture, Recorder) {
    let recorder = Recorder::new();
    let audit = Arc::new(Panicking(recorder.clone(), at));
    let hang = NativeTool::new("hang", "", json!({"type": "object"}), |_, _| std::future::pending());
    let fixture = Fixture::start(&[], |options| {
        options.audit = audit;
        options.tools.push(hang);
    });
    (fixture, recorder)
}

/// PIPE-4: a sink that panics at the enter has failed. The call is not made, its client gets an error without the
/// panic's text, and its exit says the same.
#[tokio::test]
async fn a_sink_that_panics_at_the_enter_refuses_the_call() {
    for at in [At::Enter, At::EnterFuture] {
        let (fixture, recorder) = start(at);
        let error = fixture.call("hang", json!({})).await.unwrap_err();
        let told =
            (error["code"].as_i64(), error["data"]["code"].as_str(), error["data"]["mayHaveRun"].as_bool());
        assert_eq!(told, (Some(-32603), Some("AUDIT_ENTER_FAILED"), Some(false)), "{error}");
        assert!(error["message"].as_str().unwrap().contains("the sink panicked"), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let exits = recorder.exits();
        assert_eq!(exits.len(), 1);
        assert!(matches!(exits[0].outcome(), Outcome::Error { code, .. } if code == "AUDIT_ENTER_FAILED"));
        let dead = tokio::time::timeout(Duration::from_millis(1), fixture.gateway.panicked()).await;
        assert!(dead.is_err(), "a sink's panic does not count as the gateway's");
        fixture.end().await;
    }
}

/// ACC-7: what an operator asks for is not done if its enter cannot be recorded, even if the sink panics; a sink that panics at
/// the exit changes nothing.
#[tokio::test]
async fn a_sink_that_panics_and_an_operator() {
    for (at, done) in [(At::Enter, false), (At::EnterFuture, false), (At::Exit, true)] {
        let (fixture, recorder) = start(at);
        let principal = Principal::local();
        let event = AdminEvent {
            principal: &principal,
            transport: "control",
            method: admin::RESTART,
            subject: "files",
            arguments: &json!({}),
        };
        let acted = AtomicBool::new(false);
        let act = || {
            acted.store(true, Ordering::Relaxed);
            Ok(json!({"restarting": true}))
        };
        let recorded = fixture.gateway.record_event(event, act).await;
        assert_eq!((recorded.is_ok(), acted.into_inner()), (done, done));
        assert_eq!(recorder.exits().len(), usize::from(done));
        if let Err(error) = recorded {
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        fixture.end().await;
    }
}

/// PIPE-6: a sink that panics at the exit is counted, and the client still gets the call's outcome.
#[tokio::test]
async fn a_sink_that_panics_at_the_exit_changes_no_outcome() {
    let (fixture, recorder) = start(At::Exit);
    let ping = fixture.call("server_ping", json!({})).await.unwrap();
    assert_eq!(ping["structuredContent"]["ok"], true);
    assert_eq!(fixture.gateway.health()["counters"]["auditExitFailures"], 1);
    // A call dropped while it runs ends in a destructor, where a panic could no longer be caught.
    let hanging = tokio::time::timeout(Duration::from_millis(50), fixture.call("hang", json!({})));
    assert!(hanging.await.is_err());
    assert_eq!(fixture.gateway.health()["counters"]["auditExitFailures"], 2);
    assert_eq!(recorder.exits().len(), 2);
    fixture.end().await;
}

/// PIPE-7: a call dropped before its enter still leaves its exit at a sink that panics.
#[tokio::test]
async fn a_dropped_call_leaves_its_exit_at_a_sink_that_panics() {
    let recorder = Recorder::new();
    let gate = Arc::new(AtomicBool::new(false));
    let audit = Arc::new(PanicsLater(Panicking(recorder.clone(), At::Enter), Arc::clone(&gate)));
    let hang = NativeTool::new("hang", "", json!({"type": "object"}), |_, _| std::future::pending());
    let fixture = Fixture::start(&[], |options| {
        options.audit = audit;
        options.tools.push(hang);
    });
    let running = {
        let gateway = fixture.gateway.clone();
        let params = json!({"name": "hang", "arguments": {}});
        tokio::spawn(async move { ask(&gateway, LEGACY, "tools/call", params, None).await })
    };
    until(|| recorder.enters().len() == 1).await;
    gate.store(true, Ordering::SeqCst);
    let queued = tokio::time::timeout(Duration::from_millis(50), fixture.call("hang", json!({})));
    assert!(queued.await.is_err());
    until(|| recorder.exits().len() == 1).await;
    assert_eq!((recorder.exits()[0].outcome(), recorder.enters().len()), (&Outcome::Cancelled, 1));
    running.abort();
    let _ = running.await;
    fixture.end().await;
}

/// Panics at every enter once its flag is set.
struct PanicsLater(Panicking, Arc<AtomicBool>);

impl AuditSink for PanicsLater {
    fn enter(&self, event: &Enter) -> EnterFuture {
        if self.1.load(Ordering::SeqCst) { self.0.enter(event) } else { self.0.0.enter(event) }
    }

    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.0.exit(ticket, event)
    }
}

/// A clock that panics once, after its flag is set.
struct PanickingClock(SystemClock, Arc<AtomicBool>);

impl Clock for PanickingClock {
    fn wall(&self) -> jiff::Timestamp {
        assert!(!self.1.swap(false, Ordering::SeqCst), "a panic outside of any handler");
        self.0.wall()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
}

/// GATE-6, PIPE-7, SRV-2: a panic on a call's path answers the call and leaves its pair with an error, not as
/// cancelled. The gateway reports it to its embedder, and the next call is served.
#[tokio::test]
async fn a_panic_in_the_chain_is_answered_and_recorded() {
    let curse = Arc::new(AtomicBool::new(false));
    let clock = Arc::new(PanickingClock(SystemClock::new(), Arc::clone(&curse)));
    let fixture = Fixture::start(&[], |options| options.clock = clock);
    let lines = Lines::default();
    let _listening = lines.listen();
    curse.store(true, Ordering::SeqCst);
    let error: Value = fixture.call("server_ping", json!({})).await.unwrap_err();
    assert_eq!(error["code"], -32603, "{error}");
    let id = error["data"]["correlationId"].clone();
    assert!(id.is_string(), "{error}");
    let data = json!({
        "source": "gateway", "code": "HANDLER_ERROR", "retryable": false, "server": null, "method": "tools/call",
        "correlationId": id, "mayHaveRun": true,
        "hint": "`bridgehead explain HANDLER_ERROR` tells cause and cure",
    });
    assert_eq!(error["data"], data);
    assert_eq!(lines.levels("answering a request panicked"), ["ERROR"]);
    let line = lines.line("answering a request panicked");
    for part in [id.as_str().unwrap(), r#"method="tools/call""#, r#"panic="a panic outside of any handler""#]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(
        error["message"].as_str().unwrap().contains("panicked while it answered `tools/call`"),
        "{error}"
    );
    fixture.gateway.panicked().await;
    until(|| fixture.recorder.exits().len() == 1).await;
    let exits = fixture.recorder.exits();
    assert!(
        matches!(exits[0].outcome(), Outcome::Error { code, message, details: None } if code == "HANDLER_ERROR" && message == "the call panicked"),
        "{exits:?}"
    );
    fixture.call("server_ping", json!({})).await.unwrap();
    let counters = &fixture.gateway.health()["counters"];
    assert_eq!(
        (&counters["failed"], &counters["cancelled"]),
        (&json!(1), &json!(0)),
        "the counters match the record"
    );
    fixture.end().await;
}

/// SRV-2: a parked call, which runs in its own task, is answered after a panic too.
#[tokio::test]
async fn a_panic_of_a_call_that_may_park_is_answered() {
    let curse = Arc::new(AtomicBool::new(false));
    let clock = Arc::new(PanickingClock(SystemClock::new(), Arc::clone(&curse)));
    let fixture = Fixture::start(&[], |options| options.clock = clock);
    curse.store(true, Ordering::SeqCst);
    let mut params =
        bridgehead_testkit::client::modern_params(json!({"name": "server_ping", "arguments": {}}));
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {}});
    let error = fixture.ask(Revision::MODERN, "tools/call", params).await.unwrap_err();
    assert!(error.message().contains("panicked while it answered"), "{}", error.body().as_str());
    until(|| fixture.recorder.exits().len() == 1).await;
    fixture.end().await;
}
