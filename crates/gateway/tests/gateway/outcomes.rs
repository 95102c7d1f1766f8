//! How calls in their own processes end, whatever the server does. Each test carries the number of the case it shows.
//!
//! Every greedy script here is bounded by more than the limit under test.

use std::path::Path;
use std::time::Duration;

use bridgehead_config::{Confinement, FileAccess, Isolation, Limits, Network, ToolOverride};
use bridgehead_gateway::Options;
use bridgehead_testkit::{Behaviour, Crash, Mock};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::Fixture;

/// A tool that runs a script, which shares the mock's output, and then answers.
fn shell(script: &str) -> Behaviour {
    Behaviour::Shell { script: script.to_owned(), then: Box::new(Behaviour::Echo) }
}

fn alone(options: &mut Options) {
    let server = &mut options.servers[0];
    server.isolation = Isolation::Call;
    server.limits = Limits::OF_A_CALL;
}

/// A gateway whose one server has a process for each call, which may take `execution` at most.
fn start(mock: Mock, execution: Duration) -> Fixture {
    Fixture::start(&[("m", mock.tool("echo", Behaviour::Echo))], |options| {
        alone(options);
        options.servers[0].limits.execution = Some(execution);
    })
}

/// Three processes that together hold 150 MB for a moment: `tail` keeps all of a line that does not end.
const HOG: &str = "for i in 1 2 3; do (head -c 50000000 /dev/zero; sleep 2) | tail | wc -c >&2 & done; wait";
/// Long enough for anything that ends by itself, on any machine.
const LONG: Duration = Duration::from_secs(60);
/// The time limit of calls that never end by themselves.
const SHORT: Duration = Duration::from_millis(700);

async fn until(what: &str, wanted: impl Fn() -> bool) {
    for _ in 0..4_000 {
        if wanted() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("this never happened: {what}");
}

/// Calls `tool`, which must fail with this code, and then `echo`, which must succeed.
async fn fails(fixture: Fixture, tool: &str, code: &str) -> Value {
    fixture.names().await;
    let error = fixture.call(tool, json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], code, "{error}");
    // The call was sent; what it did before its end is unknown.
    assert_eq!(
        (&error["data"]["retryable"], &error["data"]["mayHaveRun"]),
        (&json!(true), &json!(true)),
        "{error}"
    );
    assert_eq!(fixture.call("echo", json!({"a": 1})).await.unwrap()["structuredContent"]["a"], 1);
    fixture.end().await;
    error["data"]["details"].clone()
}

#[track_caller]
fn ended(details: &Value, reason: &str, status: &str) {
    assert_eq!(details["reason"], reason, "{details}");
    assert!(details["status"].as_str().unwrap().contains(status), "{details}");
    // A server that ended by itself may leave no process to kill; one that the gateway ended was killed.
    let killed = details["killed"].as_u64().unwrap();
    assert!(killed > 0 || matches!(reason, "exit" | "signal"), "{details}");
    assert!(details["stderr"].is_string(), "{details}");
}

/// BOX-1, BOX-2, BOX-4: a call is answered, and its process leaves nothing behind.
#[tokio::test]
async fn box_01_a_call_is_answered_and_nothing_is_left() {
    let fixture = start(Mock::legacy().tool("pid", Behaviour::ProcessId), LONG);
    fixture.names().await;
    let answer = fixture.call("pid", json!({})).await.unwrap();
    let pid = answer["structuredContent"]["pid"].as_u64().unwrap();
    until("it is reaped", || !Path::new(&format!("/proc/{pid}")).exists()).await;
    fixture.end().await;
}

/// BOX-3: the error of a server that faults names the signal, and the next call is served.
#[tokio::test]
async fn box_02_a_fault_is_told() {
    let mock = Mock::legacy().tool("fault", shell("while kill -SEGV $PPID; do sleep 0.1; done"));
    ended(&fails(start(mock, LONG), "fault", "PROVIDER_CRASHED").await, "signal", "signal 11");
}

/// BOX-3: the error has the last lines that the server wrote before it died.
#[tokio::test]
async fn box_03_last_words_are_told() {
    let mock =
        Mock::legacy().tool("abort", shell("echo the disk is on fire >&2; kill -ABRT $PPID; sleep 60"));
    let details = fails(start(mock, LONG), "abort", "PROVIDER_CRASHED").await;
    ended(&details, "signal", "signal 6");
    assert!(details["stderr"].as_str().unwrap().contains("the disk is on fire"), "{details}");
}

/// BOX-3: a clean exit without an answer is a crash too.
#[tokio::test]
async fn box_04_an_end_without_an_answer_is_a_crash() {
    let mock = Mock::legacy().tool("leave", Behaviour::Crash(Crash::Exit { status: 0 }));
    ended(&fails(start(mock, LONG), "leave", "PROVIDER_CRASHED").await, "exit", "exit status 0");
}

/// BOX-3: a server in an endless loop is ended, with everything it started.
#[tokio::test]
async fn box_06_a_busy_loop_is_ended() {
    let mock = Mock::legacy().tool("spin", shell("while :; do :; done"));
    fails(start(mock, SHORT), "spin", "PROVIDER_TIMEOUT").await;
}

/// BOX-3: a server that ignores SIGTERM is ended all the same.
#[tokio::test]
async fn box_07_one_that_ignores_signals_is_ended() {
    let mock = Mock::legacy().tool("deaf", shell("trap '' TERM INT HUP; while :; do sleep 1; done"));
    fails(start(mock, SHORT), "deaf", "PROVIDER_TIMEOUT").await;
}

/// BOX-3: a stopped process is ended like any other.
#[tokio::test]
async fn box_08_a_stopped_one_is_ended() {
    let mock = Mock::legacy().tool("stop", shell("kill -STOP $PPID; sleep 60"));
    fails(start(mock, SHORT), "stop", "PROVIDER_TIMEOUT").await;
}

/// BOX-3: half a message is not an answer.
#[tokio::test]
async fn box_09_half_a_message_is_no_answer() {
    let mock = Mock::legacy().tool("half", shell(r#"printf '{"jsonrpc":"2.0",'; sleep 60"#));
    fails(start(mock, SHORT), "half", "PROVIDER_TIMEOUT").await;
}

/// BOX-3: a server that closes its output and keeps running is ended at once.
#[tokio::test]
async fn box_10_closing_the_output_is_a_crash() {
    let mock = Mock::legacy().tool("close", Behaviour::CloseOutput);
    ended(&fails(start(mock, LONG), "close", "PROVIDER_CRASHED").await, "protocol", "closed its output");
}

/// BOX-2, BOX-3: an answer that is too large ends the call with that reason.
#[tokio::test]
async fn box_12_too_large_an_answer_is_refused() {
    let mock = Mock::legacy().tool("echo", Behaviour::Echo).tool("flood", Behaviour::Flood { megabytes: 3 });
    let fixture = Fixture::start(&[("m", mock)], |options| {
        alone(options);
        options.servers[0].limits.output = Some(1 << 20);
    });
    ended(&fails(fixture, "flood", "PROVIDER_CRASHED").await, "output_limit", "more than the limit");
}

/// BOX-2: an answer just below the limit arrives whole.
#[tokio::test]
async fn box_13_the_largest_answer_comes_whole() {
    let mock = Mock::legacy().tool("flood", Behaviour::Flood { megabytes: 3 });
    let fixture = Fixture::start(&[("m", mock)], |options| {
        alone(options);
        options.servers[0].limits.output = Some((3 << 20) + 4096);
    });
    fixture.names().await;
    let answer = fixture.call("flood", json!({})).await.unwrap();
    assert_eq!(answer["content"][0]["text"].as_str().unwrap().len(), 3 << 20);
    fixture.end().await;
}

/// BOX-3, BOX-4: an unreadable answer, or an answer to a request never sent, ends the call and its process at once and
/// affects no other call: the next call is served.
///
/// Output that does not look like an answer is no protocol error, because servers print log lines to their output. The
/// gateway skips it and keeps it for `logs`. It ends a process only once there is as much of it as an answer may have
/// (case 16). Of two answers the first counts, since no call waits for the second.
#[tokio::test]
async fn box_14_nonsense_ends_its_call_alone() {
    let depth = 10_000;
    let deep =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    let raw = |line: &str| Behaviour::RawLine(line.to_owned());
    let mock = Mock::legacy()
        .tool("bytes", shell(r#"printf '\377\376\000{\n\n[]\nnull\n{}\n{"level":30}\n{ id: 1 }\n'"#))
        .tool("twice", Behaviour::DoubleAnswer)
        .tool("deep", raw(&deep))
        .tool("cut", raw(r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":["#))
        .tool("both", raw(r#"{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":"no"}}"#))
        .tool(
            "no_text",
            shell(
                r#"printf '{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\377"}]}}\n'"#,
            ),
        )
        .tool("astray", Behaviour::WrongId)
        .tool("early", raw(r#"{"jsonrpc":"2.0","id":4000000000,"result":{}}"#))
        .tool("again", raw(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    let fixture = start(mock, LONG);
    fixture.names().await;
    for tool in ["bytes", "twice", "echo"] {
        let answer = fixture.call(tool, json!({"of": tool})).await.unwrap();
        assert_eq!(answer["structuredContent"], json!({"of": tool}), "{answer}");
    }
    for (tool, words) in [
        ("deep", "cannot be read: the message nests deeper"),
        ("cut", "cannot be read: not valid JSON"),
        ("both", "cannot be read: it must have one of"),
        ("no_text", "cannot be read: not valid JSON"),
        ("astray", "never sent"),
        ("early", "never sent"),
        ("again", "request 1 a second time"),
    ] {
        let error = fixture.call(tool, json!({})).await.unwrap_err();
        assert_eq!(error["data"]["code"], "PROVIDER_CRASHED", "{tool}: {error}");
        ended(&error["data"]["details"], "protocol", words);
        assert!(fixture.call("echo", json!({})).await.is_ok(), "after {tool}");
    }
    fixture.end().await;
}

/// Where calls share a process, one bad line ends neither the process nor a call that may be unrelated.
#[tokio::test]
async fn nonsense_does_not_end_a_shared_process() {
    let raw = |line: &str| Behaviour::RawLine(line.to_owned());
    let mock = Mock::legacy()
        .tool("pid", Behaviour::ProcessId)
        .tool("echo", Behaviour::Echo)
        .tool("astray", Behaviour::WrongId)
        .tool("twice", Behaviour::DoubleAnswer)
        .tool("cut", raw(r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":["#));
    let fixture = Fixture::start(&[("m", mock)], |options| {
        let limits = Limits { execution: Some(SHORT), ..Limits::default() };
        options.servers[0].tools.insert("cut".to_owned(), ToolOverride { limits, ..ToolOverride::default() });
    });
    fixture.names().await;
    let pid = async || fixture.call("pid", json!({})).await.unwrap()["structuredContent"]["pid"].clone();
    let before = pid().await;
    for tool in ["astray", "twice"] {
        let answer = fixture.call(tool, json!({"of": tool})).await.unwrap();
        assert_eq!(answer["structuredContent"], json!({"of": tool}), "{answer}");
    }
    let unread = fixture.call("cut", json!({})).await.unwrap_err();
    assert_eq!(unread["data"]["code"], "PROVIDER_TIMEOUT", "{unread}");
    assert_eq!(pid().await, before);
    fixture.end().await;
}

/// BOX-2: chatter on the output does not keep the answer from arriving.
#[tokio::test]
async fn box_15_chatter_is_skipped() {
    let mock = Mock::legacy().tool("chat", shell("yes chatter | head -c 8000000"));
    let fixture = start(mock, LONG);
    fixture.names().await;
    assert!(fixture.call("chat", json!({})).await.is_ok());
    // Only a bounded part of the chatter is kept.
    let kept: usize =
        fixture.gateway.upstreams()[0].record().tail(usize::MAX).iter().map(|line| line.text.len()).sum();
    assert!(kept <= 256 << 10, "{kept}");
    fixture.end().await;
}

/// BOX-2, BOX-3: endless output ends the call. The process that wrote it is gone, and only a bounded part of the output
/// is kept.
#[tokio::test]
async fn box_16_endless_output_is_ended() {
    let mock = Mock::legacy().tool("lines", shell("yes; sleep 60")).tool("one", shell("yes | tr -d '\\n'"));
    let fixture = Fixture::start(&[("m", mock.tool("echo", Behaviour::Echo))], |options| {
        alone(options);
        options.servers[0].limits.output = Some(1 << 20);
        let limits = Limits { execution: Some(SHORT), ..Limits::default() };
        options.servers[0].tools.insert("one".to_owned(), ToolOverride { limits, ..ToolOverride::default() });
    });
    fixture.names().await;
    let pids = || fixture.gateway.status().upstreams[0].pids.clone();
    until("two are waiting", || pids().len() == 3).await;
    let before = pids();
    let error = fixture.call("lines", json!({})).await.unwrap_err();
    ended(&error["data"]["details"], "output_limit", "not messages");
    assert!(
        error["data"]["details"]["killed"].as_u64().unwrap() >= 2,
        "the server and its child processes: {error}"
    );
    until("the process that wrote is gone", || {
        before.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).count() == 2
    })
    .await;
    let error = fixture.call("one", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}");
    let lines = fixture.gateway.upstreams()[0].record().tail(usize::MAX);
    let kept: usize = lines.iter().map(|line| line.text.len()).sum();
    assert!(kept <= 256 << 10, "{kept}");
    assert!(fixture.call("echo", json!({})).await.is_ok());
    fixture.end().await;
}

/// BOX-3: a call to a server that does not read its input times out, and meanwhile delays no other call: the one task
/// of this test keeps serving others.
#[tokio::test]
async fn box_18_one_that_does_not_read_holds_up_nobody() {
    let servers = ["deaf", "well"].map(|name| (name, Mock::legacy().tool("echo", Behaviour::Echo)));
    let fixture = Fixture::start(&servers, |options| {
        alone(options);
        options.servers[0].limits.execution = Some(Duration::from_secs(3));
    });
    fixture.names().await;
    let pids = || fixture.gateway.status().upstreams[0].pids.clone();
    let ready = || fixture.gateway.status().upstreams[0].pool.as_ref().is_some_and(|pool| pool["idle"] == 2);
    until("two are waiting", || pids().len() == 3 && ready()).await;
    let signal = |pid: &u32, signal| {
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(), signal)
    };
    let deaf = pids();
    for pid in &deaf {
        signal(pid, rustix::process::Signal::STOP).unwrap();
    }
    let answered = std::cell::Cell::new(0);
    let well = async {
        loop {
            assert!(fixture.call("well__echo", json!({})).await.is_ok());
            answered.set(answered.get() + 1);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Far more than fits into a pipe buffer.
    let error = tokio::select! {
        outcome = fixture.call("deaf__echo", json!({"text": "x".repeat(15 << 20)})) => outcome.unwrap_err(),
        () = well => unreachable!(),
    };
    assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}");
    assert!(answered.get() >= 20, "{}", answered.get());
    // Those not yet killed continue; the end of the test ends them all.
    for pid in &deaf {
        let _ = signal(pid, rustix::process::Signal::CONT);
    }
    fixture.end().await;
}

/// BOX-1: a tool's limits apply to that tool only.
#[tokio::test]
async fn box_44_limits_of_a_tool_are_its_own() {
    let take = || shell(HOG);
    let mock = Mock::legacy()
        .tool("take", take())
        .tool("take_more", take())
        .tool("hang", Behaviour::Hang)
        .tool("slow", Behaviour::Echo.after(1_500));
    let fixture = Fixture::start(&[("m", mock.tool("echo", Behaviour::Echo))], |options| {
        alone(options);
        let server = &mut options.servers[0];
        (server.limits.memory, server.limits.execution) = (Some(96 << 20), Some(LONG));
        let with = |limits| ToolOverride { limits, ..ToolOverride::default() };
        let more = Limits { memory: Some(512 << 20), ..Limits::default() };
        let shorter = Limits { execution: Some(SHORT), ..Limits::default() };
        server.tools.insert("take_more".to_owned(), with(more));
        server.tools.insert("hang".to_owned(), with(shorter));
    });
    fixture.names().await;
    let refused = fixture.call("take", json!({})).await.unwrap_err();
    ended(&refused["data"]["details"], "memory_limit", "memory limit");
    assert!(fixture.call("take_more", json!({})).await.is_ok());
    let late = fixture.call("hang", json!({})).await.unwrap_err();
    assert_eq!(late["data"]["code"], "PROVIDER_TIMEOUT", "{late}");
    assert!(fixture.call("slow", json!({})).await.is_ok());
    fixture.end().await;
}

/// BOX-4: of a hundred concurrent calls, those that crash or hang affect none of the others.
#[tokio::test]
async fn box_45_many_calls_at_once_are_apart() {
    let mock = Mock::legacy()
        .tool("echo", Behaviour::Echo)
        .tool("crash", Behaviour::Crash(Crash::Exit { status: 3 }))
        .tool("hang", Behaviour::Hang);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        alone(options);
        let limits = Limits { execution: Some(Duration::from_secs(20)), ..Limits::default() };
        options.servers[0].limits.execution = Some(Duration::from_secs(120));
        options.servers[0]
            .tools
            .insert("hang".to_owned(), ToolOverride { limits, ..ToolOverride::default() });
    });
    fixture.names().await;
    let calls = (0..100).map(|number| {
        let tool = match number % 10 {
            3 => "crash",
            7 => "hang",
            _ => "echo",
        };
        let fixture = &fixture;
        async move { (tool, fixture.call(tool, json!({"number": number})).await, number) }
    });
    let mut well = 0;
    for (tool, outcome, number) in join_all(calls).await {
        match (tool, outcome) {
            ("echo", Ok(answer)) => {
                assert_eq!(answer["structuredContent"]["number"], number);
                well += 1;
            }
            ("crash", Err(error)) => assert_eq!(error["data"]["code"], "PROVIDER_CRASHED", "{error}"),
            ("hang", Err(error)) => assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}"),
            (tool, outcome) => panic!("{tool}: {outcome:?}"),
        }
    }
    assert_eq!(well, 80);
    fixture.end().await;
}

/// A call that finds no process waiting starts one for itself, and is counted as a miss.
#[tokio::test]
async fn box_51_a_call_that_finds_nobody_starts_one() {
    let fixture = start(Mock::legacy().tool("slow", Behaviour::Echo.after(300)), LONG);
    fixture.names().await;
    let outcomes = join_all((0..6).map(|_| fixture.call("slow", json!({})))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let pool = fixture.gateway.status().upstreams[0].pool.clone().unwrap();
    assert!(pool["misses"].as_u64().unwrap() >= 4, "{pool}");
    fixture.end().await;
}

/// Servers with different settings never share a process, although they run the same program.
#[tokio::test]
async fn box_52_what_was_given_to_one_is_not_given_to_another() {
    let mock = || Mock::legacy().tool("env", Behaviour::Environment { values: vec!["WHO".to_owned()] });
    let servers = [("a", mock().variable("WHO", "a")), ("b", mock().variable("WHO", "b"))];
    let fixture = Fixture::start(&servers, |options| {
        for server in &mut options.servers {
            server.isolation = Isolation::Call;
            server.limits = Limits::OF_A_CALL;
        }
    });
    fixture.names().await;
    for _ in 0..4 {
        let (a, b) = tokio::join!(fixture.call("a__env", json!({})), fixture.call("b__env", json!({})));
        assert_eq!(a.unwrap()["structuredContent"]["values"]["WHO"], "a");
        assert_eq!(b.unwrap()["structuredContent"]["values"]["WHO"], "b");
    }
    fixture.end().await;
}

/// BOX-3: where calls share a process that hangs, the other calls say that another call caused their end, and the
/// server is restarted.
#[tokio::test]
async fn box_56_calls_that_share_a_hanging_process_say_so() {
    let mock = Mock::legacy()
        .tool("stop", shell("kill -STOP $PPID; sleep 60"))
        .tool("hang", Behaviour::Hang)
        .tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        let limits = Limits { execution: Some(SHORT), ..Limits::default() };
        options.servers[0]
            .tools
            .insert("stop".to_owned(), ToolOverride { limits, ..ToolOverride::default() });
    });
    fixture.names().await;
    let (hanging, stopped) = tokio::join!(fixture.call("hang", json!({})), fixture.call("stop", json!({})));
    assert_eq!(stopped.unwrap_err()["data"]["code"], "PROVIDER_TIMEOUT");
    let hanging = hanging.unwrap_err();
    assert_eq!(hanging["data"]["code"], "PROVIDER_CRASHED", "{hanging}");
    ended(&hanging["data"]["details"], "peer_timeout", "did not answer another call");
    assert!(hanging["data"]["details"]["killed"].as_u64().unwrap() >= 2, "{hanging}");
    assert!(fixture.call("echo", json!({})).await.is_ok(), "the server is restarted");
    fixture.end().await;
}

/// The last lines of a dead server are reported without control characters and without secrets.
#[tokio::test]
async fn box_57_last_words_are_cleaned() {
    let script = r"printf '\033[31mred\000 Authorization: Bearer abcdefghijklmnopqrstuvwxyz012345\n' >&2; kill -ABRT $PPID; sleep 60";
    let mock = Mock::legacy().tool("abort", shell(script));
    let details = fails(start(mock, LONG), "abort", "PROVIDER_CRASHED").await;
    let stderr = details["stderr"].as_str().unwrap();
    assert!(stderr.contains("red") && !stderr.contains("abcdefghijklmnop"), "{stderr:?}");
    assert!(!stderr.chars().any(|character| character.is_control() && character != '\n'), "{stderr:?}");
}

/// A call that its client abandons is killed with its process.
#[tokio::test]
async fn box_58_a_call_that_is_given_up_is_killed() {
    let fixture = start(Mock::legacy().tool("hang", Behaviour::Hang), LONG);
    fixture.names().await;
    let pids = || fixture.gateway.status().upstreams[0].pids.clone();
    until("two are waiting", || pids().len() == 3).await;
    let before = pids();
    let mut hanging = Box::pin(fixture.call("hang", json!({})));
    let served =
        async { until("one has the call", || fixture.gateway.upstreams()[0].in_flight() == 1).await };
    tokio::select! {
        outcome = &mut hanging => panic!("{outcome:?}"),
        () = served => {}
    }
    assert!(pids().iter().filter(|pid| before.contains(pid)).count() == 3);
    // Dropping the future abandons the call.
    drop(hanging);
    until("its process is gone and another waits", || {
        let now = pids();
        now.len() == 3 && now.iter().filter(|pid| before.contains(pid)).count() == 2
    })
    .await;
    fixture.end().await;
}

/// BOX-4: a gateway that stops ends all running calls, each with its process tree.
#[tokio::test]
async fn box_30_a_stop_ends_all_that_run() {
    let mock = Mock::legacy().tool("hang", Behaviour::Hang);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        alone(options);
        options.servers[0].limits.execution = Some(LONG * 10);
    });
    fixture.names().await;
    let mut calls = Box::pin(join_all((0..50).map(|_| fixture.call("hang", json!({})))));
    let running = async { until("all run", || fixture.gateway.upstreams()[0].in_flight() == 50).await };
    tokio::select! {
        _ = &mut calls => panic!("they ended"),
        () = running => {}
    }
    let began = std::time::Instant::now();
    let ((), outcomes) = tokio::join!(fixture.gateway.stop(), calls);
    assert!(outcomes.iter().all(Result::is_err));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    fixture.end().await;
}

/// What a confined server can reach, as a client sees it, and what its status says.
#[tokio::test]
async fn a_confined_server_serves_and_says_how_it_is_kept() {
    let place = tempfile::tempdir().unwrap();
    let (inside, outside) = (place.path().join("inside"), place.path().join("outside"));
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(&outside, "secret").unwrap();
    let read = format!("cat {} && exit 0; kill -ABRT $PPID; sleep 60", outside.display());
    let write = format!("echo x > {} || kill -ABRT $PPID", inside.join("new").display());
    let mock = Mock::legacy().tool("read", shell(&read)).tool("write", shell(&write));
    let fixture = Fixture::start(&[("m", mock)], |options| {
        alone(options);
        options.servers[0].confinement = Some(Confinement {
            files: Some(FileAccess { read: Vec::new(), write: vec![inside.clone()] }),
            network: Network::None,
            ..Confinement::default()
        });
    });
    fixture.names().await;
    assert!(fixture.call("write", json!({})).await.is_ok());
    assert!(inside.join("new").exists());
    let error = fixture.call("read", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_CRASHED", "{error}");
    let status = fixture.gateway.status().upstreams[0].confinement.clone().unwrap();
    assert_eq!(status["files"]["enforced"], true, "{status}");
    assert_eq!(status["network"], json!({"allowed": "none", "enforced": true}));
    assert_eq!(status["missing"], json!([]));
    fixture.end().await;
}

/// A server whose configured files do not exist is not started, and its calls say why.
#[tokio::test]
async fn a_server_that_cannot_be_confined_is_not_started() {
    let servers = [("m", Mock::legacy().tool("echo", Behaviour::Echo)), ("well", Mock::legacy())];
    let fixture = Fixture::start(&servers, |options| {
        options.servers[0].confinement = Some(Confinement {
            files: Some(FileAccess { read: vec!["/no/such/place".into()], write: Vec::new() }),
            ..Confinement::default()
        });
    });
    fixture.names().await;
    let status = fixture.gateway.status().upstreams[0].clone();
    assert!(
        status.sandbox_unavailable && status.reason.as_ref().unwrap().contains("/no/such/place"),
        "{status:?}"
    );
    assert!(status.next_step.as_ref().unwrap().contains("bridgehead doctor"), "{status:?}");
    fixture.end().await;
}

/// WALL-4: on a system that cannot confine signals to a process tree, a confined server runs and its status says so. A
/// server that requires it is not started. Neither is a server with `files` where Landlock is too old to keep it from
/// truncating them.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_old_system_is_told_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let start = |require: Vec<bridgehead_config::Requirement>| {
        Fixture::start(&[("m", Mock::legacy().tool("echo", Behaviour::Echo))], |options| {
            options.servers[0].require = require;
            options.servers[0].confinement = Some(Confinement {
                files: Some(FileAccess {
                    read: vec![folder.path().canonicalize().unwrap()],
                    write: Vec::new(),
                }),
                ..Confinement::default()
            });
        })
    };
    bridgehead_process::pretend_landlock(5);
    let fixture = start(Vec::new());
    fixture.names().await;
    let status = fixture.gateway.status().upstreams[0].clone();
    let confinement = status.confinement.clone().unwrap();
    assert_eq!(confinement["missing"], json!([]), "{status:?}");
    assert_eq!(confinement["gaps"], json!(["Landlock of version 6 or later (signals to other processes)"]));
    assert_eq!((&confinement["files"]["enforced"], &confinement["landlock"]), (&json!(true), &json!(5)));
    fixture.end().await;

    for (version, require, expected) in [
        (5, vec![bridgehead_config::Requirement::Signals], "take `signals` out of `require`"),
        (2, Vec::new(), "this system lacks Landlock of version 3 or later (files)"),
    ] {
        bridgehead_process::pretend_landlock(version);
        let fixture = start(require);
        fixture.names().await;
        let status = fixture.gateway.status().upstreams[0].clone();
        let reason = status.reason.clone().unwrap_or_default();
        assert!(status.sandbox_unavailable && reason.contains(expected), "{status:?}");
        fixture.end().await;
    }
}

/// The time of the slowest call. Four clients call the server, each one call after the other, until `enough` accepts
/// the number of answers. Every answer must be right.
async fn load(fixture: &Fixture, tool: &str, enough: impl Fn(u64) -> bool) -> Duration {
    let answered = std::cell::Cell::new(0);
    let client = async |client: u64| {
        let mut slowest = Duration::ZERO;
        while !enough(answered.get()) {
            let asked = json!({"client": client, "number": answered.get()});
            let begun = std::time::Instant::now();
            let answer = fixture.call(tool, asked.clone()).await.unwrap();
            slowest = slowest.max(begun.elapsed());
            assert_eq!(answer["structuredContent"], asked);
            answered.set(answered.get() + 1);
        }
        slowest
    };
    let slowest = tokio::join!(client(0), client(1), client(2), client(3));
    slowest.0.max(slowest.1).max(slowest.2).max(slowest.3)
}

/// BOX-4: a fork bomb, a memory hog, a flood and a daemon run repeatedly beside a server under load. All of its answers
/// are right, and none takes much longer than without such neighbours. Every attacker is bounded by more than its
/// limits.
#[tokio::test]
async fn box_25_bad_neighbours_do_not_touch_a_good_one() {
    const CALLS: u64 = 1_000;
    let bomb = "for i in $(seq 200); do sleep 30 & done; wait";
    let daemon = "setsid sh -c 'setsid sleep 30 &' &";
    let bad = Mock::legacy()
        .tool("bomb", shell(bomb))
        .tool("hog", shell(HOG))
        .tool("flood", shell("yes"))
        .tool("daemon", shell(daemon));
    let good = Mock::legacy().tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("bad", bad), ("good", good)], |options| {
        alone(options);
        let limits = &mut options.servers[0].limits;
        (limits.memory, limits.processes) = (Some(96 << 20), Some(32));
        (limits.output, limits.execution) = (Some(1 << 20), Some(LONG));
    });
    fixture.names().await;
    let calm = load(&fixture, "good__echo", |answered| answered >= CALLS).await;
    let attacked = std::cell::Cell::new(false);
    let attack = async {
        for _ in 0..2 {
            let (bomb, hog, flood, daemon) = tokio::join!(
                fixture.call("bad__bomb", json!({})),
                fixture.call("bad__hog", json!({})),
                fixture.call("bad__flood", json!({})),
                fixture.call("bad__daemon", json!({})),
            );
            ended(&bomb.unwrap_err()["data"]["details"], "process_limit", "process limit");
            ended(&hog.unwrap_err()["data"]["details"], "memory_limit", "memory limit");
            ended(&flood.unwrap_err()["data"]["details"], "output_limit", "not messages");
            assert!(daemon.is_ok(), "{daemon:?}");
        }
        attacked.set(true);
    };
    let attacked_and = |answered| attacked.get() && answered >= CALLS;
    let ((), slowest) = tokio::join!(attack, load(&fixture, "good__echo", attacked_and));
    // The attackers use the processors too, and get a fair share until they are ended.
    let bound = calm * 20 + Duration::from_secs(30);
    assert!(slowest < bound, "the slowest call took {slowest:?}, against {calm:?} without attackers");
    fixture.end().await;
}
