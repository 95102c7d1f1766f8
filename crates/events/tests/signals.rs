//! The results of each signal: its line, its event, and its counters.
#![expect(clippy::expect_used, clippy::panic, reason = "a failed assumption is a failed test")]

use std::io;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bridgehead_call::{About, AuditError, Call, CorrelationId, Exit, Moment, Outcome};
use bridgehead_events::{
    BOUNDS, Bus, CallEnded, CheckpointMade, Counter, Delivery, DisconnectReason, ExecutionEnded,
    ExecutionOutcome, Line, Measure, ProbeKind, ServerSignal, Signal, Signals, Stage, StateChange, WaitEnd,
};
use bridgehead_testkit::FakeClock;
use bridgehead_wire::{Era, Revision};
use serde_json::{Value, json};
use tracing::Dispatch;

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn id() -> CorrelationId {
    CorrelationId::parse(ID).expect("a UUID")
}

/// The lines that were written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no thread panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn logger(&self) -> Dispatch {
        // With a single dispatcher `tracing` caches the first thread's "not interested" for all threads; a second
        // dispatcher prevents that.
        static SECOND: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish()));
        LazyLock::force(&SECOND);
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || lines.clone())
            .with_ansi(false)
            .without_time();
        Dispatch::new(subscriber.finish())
    }

    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().expect("no thread panicked"));
        let text = String::from_utf8(bytes).expect("text");
        text.lines().map(|line| line.trim().replace(ID, "ID")).collect()
    }
}

/// The expected results of one signal, and nothing else.
#[derive(Default)]
struct Expected<'a> {
    lines: &'a [&'a str],
    /// The topic, the server and the rest of the event.
    event: Option<(&'a str, Option<&'a str>, Value)>,
    counts: &'a [(Counter, u64)],
    /// A measure, and the bound of the bucket that it falls into.
    measured: Option<(Measure, Duration)>,
}

#[track_caller]
fn check(emit: impl FnOnce(&Signals), expected: Expected<'_>) {
    let (lines, signals) = (Lines::default(), Signals::new(Bus::new(Arc::new(FakeClock::new())), None));
    let mut told = signals.bus().subscribe(8);
    tracing::dispatcher::with_default(&lines.logger(), || emit(&signals));
    let lines = lines.take();
    assert_eq!(lines, expected.lines);
    let events: Vec<Value> = std::iter::from_fn(|| told.try_next())
        .map(|delivery| match delivery {
            Delivery::Event(event) => serde_json::to_value(&*event).expect("JSON"),
            Delivery::Missed(count) => panic!("{count} events were missed"),
        })
        .collect();
    let event = expected.event.map(|(topic, server, mut rest)| {
        rest["topic"] = topic.into();
        rest["server"] = server.into();
        rest["time"] = "2026-01-01T00:00:00.000Z".into();
        // A checkpoint gets a new id each time.
        let minted = topic == "audit.checkpoint";
        rest["correlationId"] = if minted { events[0]["correlationId"].clone() } else { ID.into() };
        rest
    });
    assert_eq!(events, Vec::from_iter(event), "{lines:?}");
    let metrics = signals.metrics();
    for counter in Counter::ALL {
        let count = expected.counts.iter().find(|(counted, _)| *counted == counter).map_or(0, |(_, n)| *n);
        assert_eq!(metrics.count(counter), count, "{}: {lines:?}", counter.as_str());
    }
    for measure in Measure::ALL {
        let mut buckets = [0; BOUNDS.len() + 1];
        if let Some((_, bound)) = expected.measured.filter(|(measured, _)| *measured == measure) {
            let bucket = BOUNDS.iter().position(|known| *known == bound).expect("a bound");
            buckets[bucket] = 1;
        }
        assert_eq!(metrics.measure(measure).buckets, buckets, "{}: {lines:?}", measure.as_str());
    }
}

fn call() -> Call {
    Call {
        tool: "add".into(),
        server: Some("calc".into()),
        principal: "ada".into(),
        correlation: id(),
        era: Era::Modern,
        transport: "http",
        about: About::default(),
    }
}

fn prompt() -> Call {
    let about = About::of(Some("prompts/get"), "greet".into());
    Call { tool: "".into(), about, ..call() }
}

const MS: Duration = Duration::from_millis(1);

/// A call that took 3.2 ms and waited for 1 ms.
fn ended(call: &Call, outcome: Outcome) -> impl FnOnce(&Signals) {
    let moment = |monotonic| Moment { wall: jiff::Timestamp::UNIX_EPOCH, monotonic };
    let took = Duration::from_micros(3_200);
    let exit = Exit::new(call, moment(MS), moment(MS + took), outcome).after_waiting(MS);
    move |signals| {
        let arguments = br#"{"a":1,"password":"hunter2"}"#;
        let ended = CallEnded { call, arguments, exit: &exit, took, retryable: true };
        signals.emit(&Signal::CallEnded(ended));
    }
}

/// GATE-6, SRV-7, BUS-2, POOL-14: the end of a call is one signal. Its line, its event and its numbers agree, and an error
/// that a tool reports counts as failed.
#[test]
fn the_end_of_a_call() {
    let sum = |is_error| Outcome::Result { body: r#"{"sum":3}"#.into(), is_error };
    let error = || Outcome::Error {
        code: "PROVIDER_TIMEOUT".into(),
        message: "late, token=hunter2".to_owned(),
        details: None,
    };
    let line = |about: &str, outcome: &str| {
        format!(
            "DEBUG bridgehead_gateway::gate::record: call ended correlationId=ID {about} server=\"calc\" \
             outcome=\"{outcome}\" durationMs=3 queuedMs=1"
        )
    };
    let full = |result: &str| {
        format!(
            "TRACE bridgehead_gateway::gate::record: call in full correlationId=ID \
             arguments=\"{{\\\"a\\\":1,\\\"password\\\":\\\"[redacted]\\\"}}\" result=\"{result}\""
        )
    };
    let (sum_shown, error_shown) = (r#"{\"sum\":3}"#, "late, token=[redacted]");
    let tool = |call: &Call, outcome, word, result, event, counts: &[(Counter, u64)]| {
        let about = match call.about.method {
            None => r#"method="tools/call" subject="add""#,
            Some(_) => r#"method="prompts/get" subject="greet""#,
        };
        let lines = [line(about, word), full(result)];
        check(
            ended(call, outcome),
            Expected {
                lines: &lines.each_ref().map(String::as_str),
                event: Some(event),
                counts,
                measured: Some((Measure::Call, 5 * MS)),
            },
        );
    };
    let completed = || {
        let rest = json!({"tool": "add", "summary": r#"{"sum":3}"#, "durationMs": 3, "principal": "ada", "client": null});
        ("provider.mcp.tool.completed", Some("calc"), rest)
    };
    let failed = |code: &str, retryable: bool, message: &str| {
        let rest = json!({
            "tool": "add", "code": code, "retryable": retryable, "message": message, "principal": "ada", "client": null
        });
        ("provider.mcp.tool.failed", Some("calc"), rest)
    };
    let gone = "the client no longer wants the answer";
    tool(&call(), sum(false), "result", sum_shown, completed(), &[]);
    tool(&call(), sum(true), "tool error", sum_shown, completed(), &[(Counter::Failed, 1)]);
    let timeout = failed("PROVIDER_TIMEOUT", true, error_shown);
    tool(&call(), error(), "PROVIDER_TIMEOUT", error_shown, timeout, &[(Counter::Failed, 1)]);
    let cancelled = failed("cancelled", false, gone);
    tool(&call(), Outcome::Cancelled, "cancelled", "", cancelled, &[(Counter::Cancelled, 1)]);
    let about = |topic, mut rest: Value| {
        rest["method"] = "prompts/get".into();
        (rest["principal"], rest["client"]) = ("ada".into(), Value::Null);
        rest["subject"] = "greet".into();
        (topic, Some("calc"), rest)
    };
    let completed = json!({"summary": r#"{"sum":3}"#, "durationMs": 3});
    let completed = about("provider.mcp.request.completed", completed);
    tool(&prompt(), sum(false), "result", sum_shown, completed, &[]);
    let rest = json!({"code": "PROVIDER_TIMEOUT", "retryable": true, "message": error_shown});
    let late = about("provider.mcp.request.failed", rest);
    tool(&prompt(), error(), "PROVIDER_TIMEOUT", error_shown, late, &[(Counter::RequestsFailed, 1)]);
    let rest = json!({"code": "cancelled", "retryable": false, "message": gone});
    let left = about("provider.mcp.request.failed", rest);
    tool(&prompt(), Outcome::Cancelled, "cancelled", "", left, &[(Counter::RequestsCancelled, 1)]);
}

/// GATE-6: each other signal of a gateway, a provider or a bridge writes its one line, if it has one, publishes its one
/// event, and adds only to its own counters.
#[test]
fn what_comes_of_each_signal() {
    #[track_caller]
    fn emitted(signal: &Signal<'_>, expected: Expected<'_>) {
        check(|signals| signals.emit(signal), expected);
    }
    #[track_caller]
    fn counted(signal: &Signal<'_>, counts: &[(Counter, u64)]) {
        emitted(signal, Expected { counts, ..Expected::default() });
    }
    #[track_caller]
    fn logged(signal: &Signal<'_>, counter: Counter, line: &str) {
        let lines = match line {
            "" => &[][..],
            line => &[line],
        };
        emitted(signal, Expected { lines, counts: &[(counter, 1)], ..Expected::default() });
    }
    let (add, greet) = (&call(), &prompt());
    counted(&Signal::CallEntered(add), &[(Counter::Calls, 1)]);
    counted(&Signal::CallEntered(greet), &[(Counter::Requests, 1)]);
    for (stage, counter) in [
        (Stage::Authorize, Counter::RefusedByPolicy),
        (Stage::Limit, Counter::RefusedByLimit),
        (Stage::Lock, Counter::RefusedByLock),
        (Stage::Check, Counter::RefusedByCheck),
        (Stage::Record, Counter::RefusedByRecord),
    ] {
        counted(&Signal::CallRefused(add, stage), &[(counter, 1)]);
    }
    for (line, measure) in [(Line::Lock, Measure::LockWait), (Line::Queue, Measure::QueueWait)] {
        for (end, counter) in [
            (WaitEnd::Turn, None),
            (WaitEnd::TimedOut, Some(Counter::WaitsTimedOut)),
            (WaitEnd::Left, Some(Counter::WaitsLeft)),
        ] {
            let counts = Vec::from_iter(counter.map(|counter| (counter, 1)));
            let measured = Some((measure, 25 * MS));
            let waited = Signal::Waited { line, end, waited: 20 * MS };
            emitted(&waited, Expected { counts: &counts, measured, ..Expected::default() });
        }
    }
    counted(&Signal::AuditLag { behind: true }, &[(Counter::AuditLags, 1)]);
    counted(&Signal::AuditLag { behind: false }, &[]);
    for (operator, who) in [(false, "a request"), (true, "an operator")] {
        let refused = Signal::SignInRefused { status: 401, reason: "no token", operator };
        let line = format!("DEBUG bridgehead_front::http: turned {who} away status=401 reason=no token");
        logged(&refused, Counter::SignInsRefused, &line);
    }
    let full = Signal::Waited { line: Line::Queue, end: WaitEnd::Full, waited: Duration::ZERO };
    counted(&full, &[(Counter::QueueFull, 1)]);

    let invalid = |server| Signal::OutputInvalid { correlation: id(), tool: "add", server, why: "no `sum`" };
    let does_not_fit = "WARN bridgehead_gateway::surface::tools::output: a result does not fit its output schema \
                        correlationId=ID tool=add";
    let words = format!("{does_not_fit} server=\"calc\" why=no `sum`");
    logged(&invalid(Some("calc")), Counter::InvalidOutputs, &words);
    logged(&invalid(None), Counter::InvalidOutputs, &format!("{does_not_fit} why=no `sum`"));
    let error = &AuditError::Full;
    let not_entered = |cancelled| Signal::EnterFailed { call: add, error, cancelled };
    logged(&not_entered(false), Counter::AuditEnterFailures, "");
    logged(
        &not_entered(true),
        Counter::AuditEnterFailures,
        "ERROR bridgehead_gateway::gate::record: a cancelled call could not be recorded correlationId=ID \
         error=the audit queue is full",
    );
    logged(
        &Signal::ExitFailed { call: add, error },
        Counter::AuditExitFailures,
        "ERROR bridgehead_gateway::gate::record: the end of a call could not be recorded correlationId=ID \
         method=\"tools/call\" subject=\"add\" error=the audit queue is full",
    );
    logged(
        &Signal::SinkPanicked("boo"),
        Counter::AuditPanics,
        "ERROR bridgehead_gateway::gate::record: the audit sink panicked panic=\"boo\"",
    );
    logged(
        &Signal::AnswerPanicked { correlation: id(), method: "tools/call", words: "boo" },
        Counter::Panics,
        "ERROR bridgehead_gateway::panics: answering a request panicked correlationId=ID method=\"tools/call\" \
         panic=\"boo\"",
    );
    logged(
        &Signal::FrontPanicked("boo"),
        Counter::Panics,
        "ERROR bridgehead_gateway::panics: serving a client panicked panic=\"boo\"",
    );
    logged(
        &Signal::Retry { correlation: id(), tool: "add", attempt: 2, pause: 800 * MS, cause: &"it was lost" },
        Counter::Retries,
        "WARN bridgehead_upstream::bridge: trying again correlationId=ID tool=\"add\" attempt=2 delayMs=800 \
         cause=it was lost",
    );
    counted(
        &Signal::Cast { changes: 3, issues: 1 },
        &[(Counter::Casts, 1), (Counter::CastChanges, 3), (Counter::CastIssues, 1)],
    );
    let checkpoint = CheckpointMade { segment: "a.0001", count: 2, root: &"0f", head: &"f0", sealed: true };
    let rest = json!({"segment": "a.0001", "count": 2, "root": "0f", "head": "f0", "sealed": true});
    emitted(
        &Signal::Checkpoint(checkpoint),
        Expected {
            event: Some(("audit.checkpoint", None, rest)),
            counts: &[(Counter::Checkpoints, 1)],
            ..Expected::default()
        },
    );
    let server = Arc::from("calc");
    let execution = |outcome, counts: &[(Counter, u64)], topic, mut rest: Value| {
        rest["tool"] = "calc__add".into();
        // The program itself calls; it has no principal here.
        (rest["principal"], rest["client"]) = (Value::Null, Value::Null);
        let (server, tool) = (Some(&server), "calc__add");
        let ended = ExecutionEnded { correlation: id(), server, tool, outcome, took: 700 * MS };
        let measured = Some((Measure::Call, 1_000 * MS));
        let event = Some((topic, Some("calc"), rest));
        emitted(&Signal::ExecutionEnded(ended), Expected { event, counts, measured, ..Expected::default() });
    };
    execution(
        ExecutionOutcome::Result("{}"),
        &[(Counter::Calls, 1)],
        "provider.mcp.tool.completed",
        json!({"summary": "{}", "durationMs": 700}),
    );
    execution(
        ExecutionOutcome::Failed { code: "PROVIDER_TIMEOUT", retryable: true, message: "token=hunter2" },
        &[(Counter::Calls, 1), (Counter::Failed, 1)],
        "provider.mcp.tool.failed",
        json!({"code": "PROVIDER_TIMEOUT", "retryable": true, "message": "token=[redacted]"}),
    );
    let message = "the caller no longer wants the answer";
    execution(
        ExecutionOutcome::Cancelled,
        &[(Counter::Calls, 1), (Counter::Cancelled, 1)],
        "provider.mcp.tool.failed",
        json!({"code": "cancelled", "retryable": false, "message": message}),
    );
}

/// GATE-6, POOL-14, BUS-1: each signal of a server writes its one line, if it has one, publishes its one event, and adds
/// only to its own counters.
#[test]
fn what_comes_of_each_signal_of_a_server() {
    type Told<'a> = Option<(&'a str, Value)>;
    #[track_caller]
    fn happened(
        signal: &ServerSignal<'_>,
        lines: &[&str],
        event: Told<'_>,
        counter: Option<Counter>,
        measured: Option<(Measure, Duration)>,
    ) {
        let emit = |signals: &Signals| {
            signal.log("files");
            signals.hear(signal, &"other".into(), id());
        };
        let event = event.map(|(topic, rest)| (topic, Some("other"), rest));
        let counts = Vec::from_iter(counter.map(|counter| (counter, 1)));
        let lines: Vec<String> = lines.iter().map(|line| line.replace("@", SUPERVISOR)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        check(emit, Expected { lines: &lines, event, counts: &counts, measured });
    }
    const SUPERVISOR: &str = "bridgehead_upstream::server::supervisor:";
    let started = Some(("provider.mcp.init.started", json!({})));
    happened(&ServerSignal::StartBegan, &[], started, Some(Counter::Starts), None);
    let serves = |one_shot| ServerSignal::Serves {
        transport: "stdio",
        pid: Some(7),
        revision: Revision::V2025_11_25,
        tools: &["a", "b"],
        restarts: 1,
        took: 40 * MS,
        one_shot,
    };
    let names = r#"TRACE @ its tools server=mcp:files names=["a", "b"]"#;
    for (one_shot, line) in [
        (
            false,
            "INFO @ serves server=mcp:files transport=\"stdio\" pid=7 revision=2025-11-25 tools=2 restarts=1 took=40ms",
        ),
        (true, "DEBUG @ a process for one call is ready server=mcp:files pid=7 took=40ms"),
    ] {
        let finished = json!({"outcome": "ready", "tools": 2, "durationMs": 40, "error": null});
        let finished = Some(("provider.mcp.init.finished", finished));
        happened(&serves(one_shot), &[line, names], finished, None, Some((Measure::Start, 50 * MS)));
    }
    for (sandbox, line) in [
        (false, "ERROR @ did not come up server=mcp:files attempt=2 reason=\"token=hunter2\""),
        (true, "ERROR @ was not started server=mcp:files reason=\"token=hunter2\""),
    ] {
        let failed =
            ServerSignal::StartFailed { attempt: 2, reason: "token=hunter2", sandbox, took: 40 * MS };
        let finished =
            json!({"outcome": "failed", "tools": 0, "durationMs": 40, "error": "token=[redacted]"});
        let finished = Some(("provider.mcp.init.finished", finished));
        let measured = Some((Measure::Start, 50 * MS));
        happened(&failed, &[line], finished, Some(Counter::StartsFailed), measured);
    }
    for (parting, line, counter) in [
        (
            DisconnectReason::Lost("it ended"),
            "WARN @ lost server=mcp:files reason=\"it ended\"",
            Some(Counter::Lost),
        ),
        (DisconnectReason::Asked, "WARN @ restarts as asked server=mcp:files", None),
        (DisconnectReason::Unused, "INFO @ is not used and goes to sleep server=mcp:files", None),
    ] {
        let event = Some(("provider.mcp.disconnected", json!({})));
        let signal = ServerSignal::Disconnected(parting);
        let loss = if let DisconnectReason::Lost(reason) = parting { Some(reason) } else { None };
        assert_eq!(signal.loss(), loss);
        happened(&signal, &[line], event, counter, None);
    }
    let back = Some(("provider.mcp.reconnected", json!({})));
    assert_eq!(ServerSignal::Reconnected.loss(), None);
    happened(&ServerSignal::Reconnected, &[], back, None, None);
    let given_up = Some(("provider.mcp.reconnect.exhausted", json!({})));
    happened(&ServerSignal::GivenUp, &[], given_up, Some(Counter::GivenUp), None);
    happened(
        &ServerSignal::Restart { attempt: 3, delay: 200 * MS, reason: "it ended" },
        &["WARN @ restart scheduled server=mcp:files attempt=3 delay=200ms"],
        Some(("provider.mcp.restart", json!({"attempt": 3, "delayMs": 200, "reason": "it ended"}))),
        Some(Counter::Restarts),
        None,
    );
    let probed = Some((Measure::Probe, 5 * MS));
    for (error, lines, counter) in [
        (None, &[r#"TRACE @ answered its health probe server=mcp:files kind="ping" took=4ms"#][..], None),
        (
            Some("late"),
            &["ERROR @ health probe failed server=mcp:files reason=\"late\""][..],
            Some(Counter::ProbesFailed),
        ),
    ] {
        let told = json!({"ok": error.is_none(), "kind": "ping", "durationMs": 4, "error": error});
        let probe = ServerSignal::Probe { kind: ProbeKind::Ping, took: 4 * MS, error };
        happened(&probe, lines, Some(("provider.mcp.probe", told)), counter, probed);
    }
    happened(
        &ServerSignal::ProcessExited { pid: 7, status: &"exit status 3", reason: "it ended" },
        &[r#"TRACE @ its process has ended server=mcp:files pid=7 status=exit status 3 reason="it ended""#],
        Some((
            "provider.mcp.process.exited",
            json!({"pid": 7, "status": "exit status 3", "reason": "it ended"}),
        )),
        Some(Counter::ProcessExits),
        None,
    );
    let listed = Some(Counter::Listings);
    happened(
        &ServerSignal::Listed { before: None, now: &["a", "b"] },
        &[],
        Some(("provider.mcp.tools.discovered", json!({"count": 2, "names": ["a", "b"]}))),
        listed,
        None,
    );
    happened(
        &ServerSignal::Listed { before: Some(&["gone", "a"]), now: &["a", "new"] },
        &[],
        Some((
            "provider.mcp.tools.refreshed",
            json!({"added": ["new"], "removed": ["gone"], "unchanged": 1}),
        )),
        listed,
        None,
    );
    for (change, lines, counter) in [
        (StateChange::Woken, &["DEBUG @ is woken server=mcp:files"][..], None),
        (StateChange::StartedAnew, &["WARN @ is started again as asked server=mcp:files"], None),
        (StateChange::Asleep, &[], Some(Counter::BecameAsleep)),
        (StateChange::Ready, &[], Some(Counter::BecameReady)),
        (StateChange::Down, &[], Some(Counter::BecameDown)),
        (StateChange::Unlisted, &["WARN @ still down; its tools leave the lists server=mcp:files"], None),
        (
            StateChange::Failed("it ended"),
            &["WARN @ does not serve, and will not be started again server=mcp:files reason=\"it ended\""],
            Some(Counter::BecameFailed),
        ),
        (
            StateChange::Spent("it ended"),
            &["DEBUG @ a process for one call cannot serve it server=mcp:files reason=\"it ended\""],
            None,
        ),
        (StateChange::Stopped, &[], None),
    ] {
        happened(&ServerSignal::State(change), lines, None, counter, None);
    }
}

/// GATE-6: a time falls into the bucket of the first bound that it does not exceed, or into the last bucket if it exceeds
/// all.
#[test]
fn times_fall_into_their_buckets() {
    let signals = Signals::default();
    let mut expected = [0; BOUNDS.len() + 1];
    let (mut sum, nanosecond) = (Duration::ZERO, Duration::from_nanos(1));
    assert!(BOUNDS.is_sorted());
    for (bucket, bound) in BOUNDS.into_iter().enumerate() {
        for (waited, bucket) in [(bound, bucket), (bound + nanosecond, bucket + 1)] {
            signals.emit(&Signal::Waited { line: Line::Queue, end: WaitEnd::Turn, waited });
            expected[bucket] += 1;
            sum += waited;
        }
    }
    let (metrics, count) = (signals.metrics(), 2 * BOUNDS.len() as u64);
    let found = metrics.measure(Measure::QueueWait);
    assert_eq!((found.buckets, found.sum, found.count()), (expected, sum, count));
    assert_eq!(metrics.measure(Measure::LockWait).count(), 0);
}

/// GATE-6: clones share their counters, and every metric has its own name.
#[test]
fn clones_count_together() {
    let (signals, call) = (Signals::default(), call());
    let copies = [signals.clone(), signals.clone()];
    copies.iter().for_each(|copy| copy.emit(&Signal::CallEntered(&call)));
    assert_eq!(signals.metrics().count(Counter::Calls), 2);
    let names = |names: &[&str]| names.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!(names(&Counter::ALL.map(Counter::as_str)), Counter::ALL.len());
    assert_eq!(names(&Measure::ALL.map(Measure::as_str)), Measure::ALL.len());
    assert_eq!(format!("{signals:?}"), "Signals { bus: Bus { watchers: 0, .. }, .. }");
}

/// GATE-6: failures that concern the operator go to the logger, and are counted; the end of a call does not.
#[test]
fn trouble_goes_to_the_logger() {
    let (lines, apart, call) = (Lines::default(), Lines::default(), call());
    let bus = Bus::new(Arc::new(FakeClock::new()));
    let signals = Signals::new(bus, Some(apart.logger()));
    let (correlation, error) = (id(), &AuditError::Full);
    let trouble = [
        Signal::EnterFailed { call: &call, error, cancelled: true },
        Signal::ExitFailed { call: &call, error },
        Signal::SinkPanicked("boo"),
        Signal::AnswerPanicked { correlation, method: "tools/call", words: "boo" },
        Signal::FrontPanicked("boo"),
        Signal::Retry { correlation, tool: "add", attempt: 1, pause: MS, cause: &"it was lost" },
    ];
    tracing::dispatcher::with_default(&lines.logger(), || {
        trouble.iter().for_each(|signal| signals.emit(signal));
        ended(&call, Outcome::Cancelled)(&signals);
    });
    let (lines, apart) = (lines.take(), apart.take());
    assert_eq!((lines.len(), apart.len()), (2, trouble.len()), "{lines:?} {apart:?}");
    assert!(lines.iter().all(|line| line.contains(": call ")), "{lines:?}");
    let counted = [Counter::AuditExitFailures, Counter::Panics, Counter::Cancelled];
    assert_eq!(counted.map(|counter| signals.metrics().count(counter)), [1, 2, 1]);
}
