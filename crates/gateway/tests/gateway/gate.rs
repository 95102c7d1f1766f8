//! The gate's five stages, seen from the front.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Fixture, ask, ask_raw, until};
use bridgehead_audit::{Clock, CorrelationId, Exit, Outcome, StoreOptions, StoreSink};
use bridgehead_config::{Mode, Output};
use bridgehead_gateway::{Gateway, NativeTool, Options, ProgressSink, ToolFailure};
use bridgehead_testkit::{Behaviour, Event, FakeClock, Mock, Recorder, RpcError, Tool};
use bridgehead_wire::{Raw, Revision};
use serde_json::{Value, json};
use tokio::sync::Notify;

const LEGACY: Revision = Revision::V2025_11_25;

fn object() -> Value {
    json!({"type": "object"})
}

fn with_tool(tool: NativeTool) -> impl FnOnce(&mut Options) {
    move |options| options.tools.push(tool)
}

/// The error in the envelope of a refused or failed call.
fn error_of(result: &Value) -> Value {
    assert_eq!(result["isError"], true, "{result}");
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text["ok"], false);
    text["error"].clone()
}

/// The future of a call is moved several times before it runs, so its rare parts are boxed. Before that, one awaited
/// part was ten times as large as all the rest.
#[test]
fn the_future_of_a_call_is_small() {
    let gateway = Gateway::new(Options::default()).unwrap();
    let params = Raw::literal("{}");
    let size = size_of_val(&ask_raw(&gateway, LEGACY, "tools/call", &params, None));
    assert!(size <= 8 * 1024, "{size} bytes");
}

/// PIPE-1: lock, then validation, then audit enter, then dispatch, then audit exit. The waiting call has
/// neither been validated nor recorded; the refused one is recorded as not validated and not dispatched.
#[tokio::test]
async fn the_stages_come_in_order() {
    let gate = Arc::new(Notify::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let tool = {
        let (gate, runs) = (Arc::clone(&gate), Arc::clone(&runs));
        let schema = json!({"type": "object", "required": ["n"]});
        NativeTool::new("slow", "", schema, move |_, _| {
            let (gate, runs) = (Arc::clone(&gate), Arc::clone(&runs));
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                gate.notified().await;
                Ok(json!(null))
            }
        })
    };
    let fixture = Arc::new(Fixture::start(&[], with_tool(tool)));
    let first = tokio::spawn({
        let fixture = Arc::clone(&fixture);
        async move { fixture.call("slow", json!({"n": 1})).await }
    });
    while runs.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let second = tokio::spawn({
        let fixture = Arc::clone(&fixture);
        async move { fixture.call("slow", json!({})).await }
    });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fixture.recorder.events().len(), 1, "the second call waits for its turn before anything else");
    gate.notify_one();
    first.await.unwrap().unwrap();
    let refused = tokio::select! {
        refused = second => refused.unwrap().unwrap(),
        () = until(|| runs.load(Ordering::SeqCst) > 1) => panic!("the refused call was dispatched"),
    };
    assert_eq!(error_of(&refused)["code"], "INVALID_PARAMS");
    assert_eq!(runs.load(Ordering::SeqCst), 1, "a refused call is not dispatched");
    let kinds: Vec<String> = fixture
        .recorder
        .events()
        .iter()
        .map(|event| match event {
            Event::Enter(enter) => format!("enter {}", enter.validated()),
            Event::Exit(_) => "exit".to_owned(),
        })
        .collect();
    assert_eq!(kinds, ["enter true", "exit", "enter false", "exit"]);
    Arc::into_inner(fixture).unwrap().end().await;
}

/// PIPE-2: turns are first come, first served, and a panic or a dropped request gives the turn back.
#[tokio::test]
async fn turns_are_fair_and_always_given_back() {
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let tool = {
        let order = Arc::clone(&order);
        NativeTool::new("turn", "", object(), move |arguments, _| {
            let order = Arc::clone(&order);
            async move {
                order.lock().push(arguments["n"].as_u64().unwrap());
                tokio::task::yield_now().await;
                match arguments["do"].as_str() {
                    Some("panic") => panic!("on purpose"),
                    Some("hang") => std::future::pending().await,
                    _ => Ok(json!(null)),
                }
            }
        })
    };
    let fixture = Arc::new(Fixture::start(&[], with_tool(tool)));
    let call = |n: u64, what: &'static str| {
        let fixture = Arc::clone(&fixture);
        tokio::spawn(async move { fixture.call("turn", json!({"n": n, "do": what})).await })
    };
    let hanging = call(0, "hang");
    tokio::task::yield_now().await;
    let waiting: Vec<_> = (1..6).map(|n| call(n, if n == 2 { "panic" } else { "" })).collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*order.lock(), [0]);
    hanging.abort();
    let _ = hanging.await;
    for call in waiting {
        call.await.unwrap().unwrap();
    }
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4, 5]);
    Arc::into_inner(fixture).unwrap().end().await;
}

/// PIPE-2: an upstream tool runs concurrently unless its configuration asks for turns.
#[tokio::test]
async fn upstream_tools_run_side_by_side() {
    let mock = Mock::legacy().tool("slow", Behaviour::Echo.after(150)).tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    fixture.settled().await;
    let started = std::time::Instant::now();
    let calls = (0..10).map(|_| fixture.call("slow", json!({})));
    for result in futures_util::future::join_all(calls).await {
        result.unwrap();
    }
    assert!(
        started.elapsed() < Duration::from_millis(150 * 9),
        "ten calls did not queue up behind each other"
    );
    fixture.end().await;
}

/// PIPE-2: `lock = true` makes an upstream tool's calls take turns.
#[tokio::test]
async fn an_upstream_tool_can_be_locked() {
    let mock = Mock::legacy().tool("hang", Behaviour::HangUntilCancelled).tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].tools.entry("hang".to_owned()).or_default().lock = Some(true);
    });
    fixture.settled().await;
    let fixture = Arc::new(fixture);
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move { fixture.call("hang", json!({})).await })
        })
        .collect();
    fixture.call("echo", json!({})).await.unwrap();
    assert_eq!(fixture.gateway.health()["upstreams"][0]["inFlight"], 1, "only one of the two is upstream");
    for call in calls {
        call.abort();
        let _ = call.await;
    }
    Arc::into_inner(fixture).unwrap().end().await;
}

/// The machine's wall clock, and the monotonic time of the test's runtime.
struct RuntimeClock(tokio::time::Instant);

impl Clock for RuntimeClock {
    fn wall(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// AUD-1: the duration runs from the enter to the exit. The wait for the tool lock comes before it and is recorded
/// separately, also for a call that is dropped while it waits.
#[tokio::test(start_paused = true)]
async fn the_wait_for_a_turn_is_not_part_of_the_duration() {
    let slow = NativeTool::new("slow", "", object(), |_, _| async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        Ok(json!(null))
    });
    let fixture = Fixture::start(&[], |options| {
        options.clock = Arc::new(RuntimeClock(tokio::time::Instant::now()));
        options.tools.push(slow);
    });
    let call = || fixture.call("slow", json!({}));
    let impatient = tokio::time::timeout(Duration::from_millis(150), call());
    let (first, second, dropped) = tokio::join!(call(), call(), impatient);
    assert!(first.is_ok() && second.is_ok() && dropped.is_err());
    let times = |exit: &Exit| (exit.duration_ms(), exit.queued_ms());
    let exits: Vec<_> = fixture.recorder.exits().iter().map(times).collect();
    assert_eq!(exits, [(0, 150), (400, 0), (400, 400)]);
    fixture.end().await;
}

/// PIPE-3: a failure is INVALID_PARAMS with the instance path, the schema path and a message; the error of an upstream
/// tool has no structured content.
#[tokio::test]
async fn arguments_are_checked_against_the_schema() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let mock = Mock::legacy().full_tool(Tool::new("strict", Behaviour::Echo).input_schema(schema));
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    fixture.settled().await;
    fixture.call("strict", json!({"n": 1})).await.unwrap();
    let refused = fixture.call("strict", json!({"n": "x"})).await.unwrap();
    assert!(refused.get("structuredContent").is_none());
    let error = error_of(&refused);
    assert_eq!(error["code"], "INVALID_PARAMS");
    let issue = &error["details"]["issues"][0];
    assert_eq!(
        (issue["path"].as_str(), issue["schemaPath"].as_str()),
        (Some("/n"), Some("/properties/n/type"))
    );
    assert!(issue["message"].as_str().is_some_and(|message| !message.is_empty()));
    let not_an_object = fixture.call("strict", json!([1])).await.unwrap();
    assert_eq!(error_of(&not_an_object)["code"], "INVALID_PARAMS");
    fixture.end().await;
}

/// PIPE-4: a call whose enter cannot be recorded is not made; its exit is still recorded.
#[tokio::test]
async fn no_record_no_call() {
    let runs = Arc::new(AtomicUsize::new(0));
    let tool = {
        let runs = Arc::clone(&runs);
        NativeTool::new("count", "", object(), move |_, _| {
            runs.fetch_add(1, Ordering::SeqCst);
            async { Ok(json!(null)) }
        })
    };
    let fixture = Fixture::start(&[], with_tool(tool));
    fixture.recorder.fail_enter(true);
    let error = fixture.call("count", json!({})).await.unwrap_err();
    assert_eq!(
        (error["code"].as_i64(), error["data"]["code"].as_str()),
        (Some(-32603), Some("AUDIT_ENTER_FAILED"))
    );
    assert_eq!(error["data"]["mayHaveRun"], false);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let exits = fixture.recorder.exits();
    assert!(matches!(exits[0].outcome(), Outcome::Error { code, .. } if code == "AUDIT_ENTER_FAILED"));
    fixture.end_unpaired().await;
}

/// PIPE-5: a handler's failure and its panic are HANDLER_ERROR; the panic's text shows only if the configuration asks
/// for it.
#[tokio::test]
async fn handlers_fail_safely() {
    const HINT: &str = "`bridgehead explain HANDLER_ERROR` tells cause and cure";
    let tool = || {
        NativeTool::new("bad", "", object(), |arguments, _| async move {
            if arguments["panic"] == true {
                panic!("a private thing");
            }
            Err(ToolFailure::new("it broke").with_details(json!({"why": 7})))
        })
    };
    let fixture = Fixture::start(&[], with_tool(tool()));
    let failed = fixture.call("bad", json!({})).await.unwrap();
    assert_eq!(
        error_of(&failed),
        json!({"code": "HANDLER_ERROR", "message": "it broke", "details": {"why": 7, "hint": HINT}})
    );
    let panicked = fixture.call("bad", json!({"panic": true})).await.unwrap();
    assert_eq!(
        error_of(&panicked),
        json!({"code": "HANDLER_ERROR", "message": "tool `bad` panicked", "details": {"hint": HINT}})
    );
    fixture.end().await;
    for debug in
        [(|options: &mut Options| options.settings.mode = Mode::Test) as fn(&mut Options), |options| {
            options.settings.debug_errors = true;
        }]
    {
        let fixture = Fixture::start(&[], |options| {
            options.tools.push(tool());
            debug(options);
        });
        let panicked = fixture.call("bad", json!({"panic": true})).await.unwrap();
        assert_eq!(error_of(&panicked)["details"]["panic"], "a private thing");
        fixture.end().await;
    }
}

/// AUD-1: the exit of a failed call is recorded with the details that its client got: ours, a handler's, or a server's.
#[tokio::test]
async fn the_record_has_the_details_of_errors() {
    let failing = NativeTool::new("bad", "", json!({"type": "object", "required": ["n"]}), |_, _| async {
        Err(ToolFailure::new("it broke").with_details(json!({"why": 7})))
    });
    let refusal = Behaviour::Error(RpcError::new(-32050, "no").data(r#"{"n":3}"#));
    let mock = Mock::legacy().tool("refusing", refusal).tool("plain", Behaviour::error(-32051, "no"));
    let fixture = Fixture::start(&[("m", mock)], with_tool(failing));
    fixture.settled().await;
    fixture.call("bad", json!({})).await.unwrap();
    fixture.call("bad", json!({"n": 1})).await.unwrap();
    fixture.call("refusing", json!({})).await.unwrap_err();
    fixture.call("plain", json!({})).await.unwrap_err();
    let details = |exit: &Exit| match exit.outcome() {
        Outcome::Error { details, .. } => details.as_ref().map(|json| serde_json::from_slice(json).unwrap()),
        other => panic!("{other:?}"),
    };
    let details: Vec<Option<Value>> = fixture.recorder.exits().iter().map(details).collect();
    assert_eq!(details[0].as_ref().unwrap()["issues"][0]["schemaPath"], "/required");
    assert_eq!(details[1..], [Some(json!({"why": 7})), Some(json!({"n": 3})), None]);
    fixture.end().await;
}

/// PIPE-6: a failing audit exit is counted, and the client sees the original outcome.
#[tokio::test]
async fn a_failing_exit_is_ours_to_note() {
    let fixture = Fixture::start(&[], |_| ());
    fixture.recorder.fail_exit(true);
    let ping = fixture.call("server_ping", json!({})).await.unwrap();
    assert_eq!(ping["structuredContent"]["ok"], true);
    assert_eq!(fixture.gateway.health()["counters"]["auditExitFailures"], 1);
    fixture.end_unpaired().await;
}

/// PIPE-7: rejected calls, unknown tools, and calls cancelled while queued or running leave one pair each.
#[tokio::test]
async fn every_call_leaves_one_pair() {
    let gate = NativeTool::new("hang", "", json!({"type": "object", "maxProperties": 0}), |_, _| {
        std::future::pending()
    });
    let fixture = Arc::new(Fixture::start(&[], with_tool(gate)));
    fixture.call("server_ping", json!({})).await.unwrap();
    fixture.call("hang", json!({"surplus": 1})).await.unwrap();
    fixture.call("nobody", json!({})).await.unwrap_err();
    let call = || {
        let fixture = Arc::clone(&fixture);
        tokio::spawn(async move { fixture.call("hang", json!({})).await })
    };
    let (running, queued) = (call(), call());
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    for call in [queued, running] {
        call.abort();
        let _ = call.await;
    }
    bridgehead_testkit::until("the ends of both calls", || fixture.recorder.exits().len() >= 5).await;
    let outcomes: Vec<_> = fixture
        .recorder
        .exits()
        .iter()
        .map(|exit| match exit.outcome() {
            Outcome::Result { .. } => "result".to_owned(),
            Outcome::Error { code, .. } => code.to_string(),
            Outcome::Cancelled => "cancelled".to_owned(),
        })
        .collect();
    assert_eq!(outcomes[..3], ["result", "INVALID_PARAMS", "PROVIDER_TOOL_UNKNOWN"]);
    assert_eq!(outcomes[3..], ["cancelled", "cancelled"]);
    let validated: Vec<bool> = fixture.recorder.enters().iter().map(|enter| enter.validated()).collect();
    assert_eq!(
        validated,
        [true, false, false, true, false],
        "the call left in the queue was never validated"
    );
    Arc::into_inner(fixture).unwrap().end().await;
}

/// PIPE-8: the correlation id is the caller's if that is a UUID, else ours. The result, the error, both audit events
/// and the server get it. Without recorded spans, trace context is forwarded unchanged.
#[tokio::test]
async fn one_id_through_everything() {
    let mock = Mock::legacy().tool("echo", Behaviour::Echo).tool("received", Behaviour::Received);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    fixture.settled().await;
    let id = CorrelationId::mint().to_string();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let meta = json!({"bridgehead/correlationId": id, "traceparent": traceparent, "acme/x": [1]});
    let params = json!({"name": "echo", "arguments": {}, "_meta": meta});
    let result: Value = fixture.ask(LEGACY, "tools/call", params.clone()).await.unwrap().decode().unwrap();
    assert_eq!(result["_meta"]["bridgehead/correlationId"], id.as_str());
    let seen = fixture.call("received", json!({})).await.unwrap()["content"].to_string();
    assert!(seen.contains(traceparent) && seen.contains("acme/x") && seen.contains(&id), "{seen}");
    let mut unknown = params.clone();
    unknown["name"] = json!("nobody");
    let error = fixture.ask(LEGACY, "tools/call", unknown).await.unwrap_err();
    assert!(error.body().as_str().contains(&id));
    let first = &fixture.recorder.enters()[0];
    assert_eq!(first.correlation().to_string(), id);
    assert_eq!(fixture.recorder.exits()[0].correlation().to_string(), id);
    let mut bad = params;
    bad["_meta"]["bridgehead/correlationId"] = json!("not a uuid; DROP TABLE");
    let result: Value = fixture.ask(LEGACY, "tools/call", bad).await.unwrap().decode().unwrap();
    let minted = result["_meta"]["bridgehead/correlationId"].as_str().unwrap();
    assert!(CorrelationId::parse(minted).is_some());
    fixture.end().await;
}

/// WIRE-2: two concurrent calls with the same client-chosen correlation id keep their own exits in the record.
#[tokio::test]
async fn calls_with_one_id_keep_their_own_ends() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Arc::new(StoreSink::open(StoreOptions::new(folder.path())).unwrap());
    let sink = Arc::clone(&audit);
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let fixture = Fixture::start(&[], move |options| {
        options.audit = sink;
        options.tools.push(NativeTool::new("slow", "", json!({"type": "object"}), move |_, _| {
            let gate = Arc::clone(&opened);
            async move {
                gate.notified().await;
                Ok(json!("from slow"))
            }
        }));
        let quick = |_, _| async { Ok(json!("from quick")) };
        options.tools.push(NativeTool::new("quick", "", json!({"type": "object"}), quick));
    });
    let meta = json!({"bridgehead/correlationId": CorrelationId::mint().to_string()});
    let params = |tool: &str| json!({"name": tool, "arguments": {}, "_meta": meta.clone()});
    let slow = {
        let (gateway, params) = (fixture.gateway.clone(), params("slow"));
        tokio::spawn(async move { ask(&gateway, LEGACY, "tools/call", params, None).await })
    };
    let entered = || {
        let mut entered = false;
        for file in bridgehead_audit::segments(folder.path()) {
            let look = |record: &bridgehead_audit::Record| {
                entered |= record.kind == bridgehead_audit::RecordKind::Row;
                Ok(())
            };
            bridgehead_audit::read_segment(&file, look).unwrap();
        }
        entered
    };
    until(entered).await;
    fixture.ask(LEGACY, "tools/call", params("quick")).await.unwrap();
    gate.notify_one();
    slow.await.unwrap().unwrap();
    audit.close();
    fixture.end().await;
    let files = bridgehead_audit::segments(folder.path());
    let mut ends = Vec::new();
    bridgehead_audit::read_calls(&files, |call| {
        let said = call.exit().and_then(|exit| exit.payload.clone()).unwrap_or_default();
        ends.push((call.first.tool.clone(), said.contains(&format!("from {}", call.first.tool))));
        Ok(())
    })
    .unwrap();
    assert_eq!(ends, [("quick".to_owned(), true), ("slow".to_owned(), true)]);
    let mut verifier = bridgehead_audit::Verifier::default();
    verifier.read(&files);
    assert_eq!(verifier.finish().1, []);
}

/// PIPE-9: progress restarts the time of a call, up to a cap; a timeout cancels the call at the server.
#[tokio::test]
async fn time_is_restarted_by_progress_and_capped() {
    let mock = Mock::legacy()
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool(
            "steps",
            Behaviour::Text("done".to_owned()).with_odd_progress(
                8,
                40,
                bridgehead_testkit::ProgressFault::None,
            ),
        )
        .tool("report", Behaviour::ReportCancelled);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(200));
        options.servers[0].max_total = Some(Duration::from_millis(2_000));
    });
    fixture.settled().await;
    let error = fixture.call("hang", json!({})).await.unwrap_err();
    assert_eq!(
        (error["data"]["code"].as_str(), error["data"]["mayHaveRun"].as_bool()),
        (Some("PROVIDER_TIMEOUT"), Some(true))
    );
    assert!(error["message"].as_str().unwrap().contains("(tool failed: timeout)"));
    let report = fixture.call("report", json!({})).await.unwrap();
    assert_ne!(report["content"][0]["text"], "[]", "the server got the cancellation: {report}");
    let (sink, mut progress) = ProgressSink::channel(64);
    let params = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": "p"}});
    let result = fixture.ask_with(LEGACY, "tools/call", params, Some(sink)).await.unwrap();
    assert!(result.as_str().contains("done"), "320 ms of work under a limit of 200, with progress");
    assert!(progress.recv().await.is_some());
    fixture.end().await;
}

/// PIPE-9: no amount of progress extends a call past the cap.
#[tokio::test]
async fn progress_does_not_extend_a_call_for_ever() {
    let mock = Mock::legacy().tool(
        "steps",
        Behaviour::Text("done".to_owned()).with_odd_progress(
            200,
            20,
            bridgehead_testkit::ProgressFault::None,
        ),
    );
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(150));
        options.servers[0].max_total = Some(Duration::from_millis(300));
    });
    fixture.settled().await;
    let (sink, _progress) = ProgressSink::channel(1024);
    let params = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": 7}});
    let error = fixture.ask_with(LEGACY, "tools/call", params, Some(sink)).await.unwrap_err();
    assert!(error.body().as_str().contains("PROVIDER_TIMEOUT"));
    fixture.end().await;
}

/// SRV-7: version, mode and uptime by the monotonic clock. ENV-1: the envelope as structured content and as
/// the same JSON in text, described by the output schema.
#[tokio::test]
async fn the_gateway_answers_about_itself() {
    let clock = FakeClock::new();
    let gateway = Gateway::new(Options {
        clock: Arc::new(clock.clone()),
        version: "9.8.7".to_owned(),
        audit: Arc::new(Recorder::new()),
        ..Options::default()
    })
    .unwrap();
    clock.advance(Duration::from_millis(1_234));
    let params = json!({"name": "server_ping"});
    let result: Value = ask(&gateway, LEGACY, "tools/call", params, None).await.unwrap().decode().unwrap();
    let envelope = json!({"ok": true, "data": {"version": "9.8.7", "mode": "full", "uptime_ms": 1_234}});
    assert_eq!(result["structuredContent"], envelope);
    assert_eq!(
        serde_json::from_str::<Value>(result["content"][0]["text"].as_str().unwrap()).unwrap(),
        envelope
    );
    let health: Value = ask(&gateway, LEGACY, "tools/call", json!({"name": "server_health"}), None)
        .await
        .unwrap()
        .decode()
        .unwrap();
    let data = &health["structuredContent"]["data"];
    assert_eq!(
        (&data["version"], &data["mode"], &data["uptimeMs"]),
        (&json!("9.8.7"), &json!("full"), &json!(1_234))
    );
    assert!(
        data["upstreams"].is_array() && data["counters"]["calls"] == 2 && data["capabilities"].is_object()
    );
    let list: Value = ask(&gateway, LEGACY, "tools/list", json!({}), None).await.unwrap().decode().unwrap();
    for tool in list["tools"].as_array().unwrap() {
        let schema = bridgehead_schema::Validator::compile(&tool["outputSchema"].to_string()).unwrap();
        let sample = if tool["name"] == "server_ping" { &result } else { &health };
        assert!(schema.check(&sample["structuredContent"]).is_ok());
        assert!(schema.check(&json!({"ok": false, "error": {"code": "X", "message": "y"}})).is_ok());
    }
}

/// ENV-7: results pass byte for byte: unknown members, unknown blocks, number text and key order survive.
#[tokio::test]
async fn results_pass_byte_for_byte() {
    let text = r#"{"z":1.0e0, "content":[{"type":"future_block","b":0.10,"a":"\u00e4"}],"structuredContent":{"big":123456789012345678901234567890}}"#;
    let mock = Mock::legacy().tool("raw", Behaviour::raw_result(text));
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    fixture.settled().await;
    let params = json!({"name": "raw", "arguments": {}});
    let result: Raw = fixture.ask(LEGACY, "tools/call", params).await.unwrap();
    let rest = &result.as_str()[result.as_str().find("},").unwrap() + 2..];
    assert_eq!(rest, &text[1..], "everything after our `_meta` is the server's own text");
    fixture.end().await;
}

/// A request of several lines reaches a line-based server as one line.
#[tokio::test]
async fn line_breaks_in_a_request_do_no_harm() {
    let mock = Mock::legacy().tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    fixture.settled().await;
    let params = Raw::literal("{\r\n  \"name\": \"echo\",\n  \"arguments\": {\n    \"a\": [1,\n2]\n  }\n}");
    let result: Value =
        ask_raw(&fixture.gateway, LEGACY, "tools/call", &params, None).await.unwrap().decode().unwrap();
    assert_eq!(result["structuredContent"], json!({"a": [1, 2]}));
    fixture.end().await;
}

/// ENV-9: a result that violates its tool's output schema is passed, reported and counted, or fails the call, as
/// configured. A tool's own error is exempt, and so is a question, which is not a result yet.
#[tokio::test]
async fn results_against_their_schema() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let promising = |name: &str, behaviour| Tool::new(name, behaviour).output_schema(schema.to_string());
    let mock = || {
        Mock::modern()
            .full_tool(promising(
                "good",
                Behaviour::raw_result(r#"{"content":[],"structuredContent":{"n":1}}"#),
            ))
            .full_tool(promising(
                "bad",
                Behaviour::raw_result(r#"{"content":[],"structuredContent":{"n":"hunter2"}}"#),
            ))
            .full_tool(promising("none", Behaviour::Text("plain".to_owned())))
            .full_tool(promising("failing", Behaviour::IsError("no".to_owned())))
            .full_tool(promising("refusing", Behaviour::error(-32050, "no")))
            .full_tool(promising(
                "asking",
                Behaviour::InputRequired(r#"{"resultType":"input_required","inputRequests":{}}"#.into()),
            ))
            .full_tool(Tool::new("broken", Behaviour::Echo).output_schema(r#"{"type":5}"#))
            .tool("free", Behaviour::Echo)
    };
    let names = ["off", "report", "enforce"];
    let servers: Vec<(&str, Mock)> = names.iter().map(|name| (*name, mock())).collect();
    let fixture = Fixture::start(&servers, |options| {
        options.servers[1].output = Output::Report;
        options.servers[2].output = Output::Enforce;
    });
    fixture.settled().await;
    let mut told = Vec::new();
    for name in names {
        for tool in ["good", "bad", "none", "failing", "refusing", "asking", "broken", "free"] {
            let params = json!({"name": format!("{name}__{tool}"), "arguments": {}});
            let params = bridgehead_testkit::client::modern_params(params);
            let answer = fixture.ask(Revision::MODERN, "tools/call", params).await;
            match answer {
                Ok(_) => assert_ne!(tool, "refusing"),
                Err(error) if tool == "refusing" => assert_eq!(error.code(), -32050),
                Err(error) => {
                    let data: Value = error.data().unwrap().decode().unwrap();
                    assert_eq!(
                        (&data["code"], &data["mayHaveRun"]),
                        (&json!("PROVIDER_INVALID_OUTPUT"), &json!(true))
                    );
                    assert!(
                        !error.body().as_str().contains("hunter2"),
                        "the error does not quote the result"
                    );
                    told.push((name, tool));
                }
            }
        }
        let counted = fixture.gateway.health()["counters"]["invalidOutputs"].clone();
        assert_eq!(
            counted,
            json!(match name {
                "off" => 0,
                "report" => 2,
                _ => 4,
            })
        );
    }
    assert_eq!(told, [("enforce", "bad"), ("enforce", "none")]);
    fixture.end().await;
}
