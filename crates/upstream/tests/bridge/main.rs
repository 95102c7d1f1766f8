//! The bridge client against scripted peers, connected in memory.
#![expect(clippy::unwrap_used, reason = "a failed assumption is a failed test")]

mod clocks;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{Launch, Retry, Secret, Stdio};
use bridgehead_events::Counter;
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_upstream::bridge::{
    AttemptOptions, BACKOFF_BASE, Bridge, Cause, ConnectOptions, DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT_MS,
    TIMEOUT_VARIABLE, TransportFactory, call_tool, connect_to_endpoint, connect_to_server, memory_transport,
    operations,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::time::Instant;
use tracing::Dispatch;

use world::{Lines, Turn, World};

/// BRG-1: connecting gives the URL, the client and a close that resolves, also twice. A failed connect is the same
/// error as a failed call, with one attempt.
#[tokio::test(start_paused = true)]
async fn connect() {
    let world = World::new(&[]);
    let bridge = world.bridge().await;
    assert_eq!(bridge.url(), "memory:scripted");
    assert_eq!(bridge.client().await.unwrap().peer.revision.as_str(), "2025-11-25");
    bridge.close().await;
    bridge.close().await;

    let asked = Arc::new(Mutex::new(String::new()));
    let wanted = Arc::clone(&asked);
    let refuses = TransportFactory::new(move |url| {
        url.clone_into(&mut wanted.lock());
        async { Err::<DuplexStream, _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)) }
    });
    let options = ConnectOptions::default().factory(refuses);
    let error = connect_to_server("http://user:hunter2@host/mcp?key=hunter3", options).await.unwrap_err();
    assert_eq!((error.attempts, error.retryable()), (1, true));
    assert_eq!(
        *asked.lock(),
        "http://user:hunter2@host/mcp?key=hunter3",
        "the factory gets the whole address"
    );
    let said = error.to_string();
    assert!(said.starts_with("connecting to http://host/mcp failed after 1 attempt: "), "{said}");
    assert!(!said.contains("hunter"), "{said}");
}

/// BRG-1, BRG-2: a handshake that takes too long is the same error.
#[tokio::test(start_paused = true)]
async fn a_handshake_takes_its_time_and_no_more() {
    let silent = TransportFactory::new(|_| async {
        let (ours, theirs) = memory_transport();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(theirs);
        });
        Ok(ours)
    });
    let began = Instant::now();
    let options = ConnectOptions::default().factory(silent).timeout_ms(70);
    let error = connect_to_server("memory:silent", options).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Timeout(_)), "{error}");
    assert_eq!((error.attempts, began.elapsed()), (1, Duration::from_millis(70)));
}

/// BRG-3, BRG-7: a call and its answer between two ends in one process; a tool's own error is an answer.
#[tokio::test(start_paused = true)]
async fn round_trip() {
    let world = World::new(&[Turn::Answer, Turn::ToolError]);
    let bridge = world.bridge().await;
    let options = AttemptOptions::default();
    let result = call_tool(&bridge, "add", &json!({"a": 1}), &options).await.unwrap();
    assert_eq!(result.as_str(), r#"{"content":[{"text":"{\"a\":1}","type":"text"}]}"#);
    let result = call_tool(&bridge, "add", &json!({}), &options).await.unwrap();
    assert!(result.as_str().contains(r#""isError":true"#), "{result:?}");
    assert_eq!(world.seen.lock().calls, 2);
    bridge.close().await;
}

/// BRG-2: the variable limits each attempt, and an invalid value is reported before anything is sent.
#[tokio::test(start_paused = true)]
async fn timeout_by_variable() {
    let world = World::new(&[Turn::Silence; 9]);
    let environment = |value: &str| BTreeMap::from([(TIMEOUT_VARIABLE.to_owned(), value.to_owned())]);
    let connect =
        |value: &str| ConnectOptions::default().factory(world.factory()).environment(environment(value));
    let bridge = connect_to_server("memory:scripted", connect("250")).await.unwrap();
    let began = Instant::now();
    let options = world.options(Retry::Never);
    let error = call_tool(&bridge, "add", &json!({}), &options).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Timeout(limit) if limit == Duration::from_millis(250)), "{error}");
    assert_eq!(began.elapsed(), Duration::from_millis(250));
    tokio::task::yield_now().await;
    assert_eq!(world.seen.lock().cancelled, 1, "the server gets the cancellation");

    let error = connect_to_server("memory:scripted", connect("soon")).await.unwrap_err();
    assert!(error.to_string().contains("BRIDGEHEAD_MCP_TIMEOUT is `soon`"), "{error}");
    assert!(!error.retryable());
}

/// BRG-2: the default timeout is 30 000 ms.
#[tokio::test(start_paused = true)]
async fn default_timeout() {
    let world = World::new(&[Turn::Silence; 9]);
    let bridge = world.bridge().await;
    let began = Instant::now();
    let error = call_tool(&bridge, "add", &json!({}), &world.options(Retry::Never)).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 30000 ms"), "{error}");
    assert_eq!(began.elapsed(), Duration::from_millis(DEFAULT_TIMEOUT_MS));
}

/// BRG-3, BRG-4: transient failures are retried after 1 s and then 2 s, over a new connection if needed.
#[tokio::test(start_paused = true)]
async fn retry_to_success() {
    for turn in [Turn::Fail(-32603), Turn::Fail(-32001), Turn::Fail(-32000), Turn::Silence, Turn::Close] {
        let world = World::new(&[turn, turn, Turn::Answer]);
        let bridge = world.bridge().await;
        call_tool(&bridge, "add", &json!({}), &world.options(Retry::Always)).await.unwrap();
        assert_eq!(world.pauses(), [1, 2], "{turn:?}");
        let connections = if matches!(turn, Turn::Close) { 3 } else { 1 };
        assert_eq!(world.seen.lock().connections, connections, "{turn:?}");
    }
    assert_eq!((DEFAULT_ATTEMPTS, BACKOFF_BASE), (3, Duration::from_millis(1_000)));
}

/// BRG-4: a failure that would repeat is not retried.
#[tokio::test(start_paused = true)]
async fn no_retry() {
    for code in [-32601, -32602, -32600, 7, -32050] {
        let world = World::new(&[Turn::Fail(code)]);
        let bridge = world.bridge().await;
        let error = call_tool(&bridge, "add", &json!({}), &world.options(Retry::Always)).await.unwrap_err();
        assert_eq!((error.attempts, error.retryable(), world.seen.lock().calls), (1, false, 1), "{code}");
        assert!(matches!(&error.cause, Cause::Rpc(error) if error.code() == code));
    }
}

/// BRG-5: the last error has the cause, the number of attempts and whether it was retryable, and names the tool.
#[tokio::test(start_paused = true)]
async fn retries_exhausted() {
    let world = World::new(&[Turn::Fail(-32603); 9]);
    let bridge = world.bridge().await;
    let error = call_tool(&bridge, "add", &json!({}), &world.options(Retry::Always)).await.unwrap_err();
    assert_eq!((error.attempts, error.retryable(), error.may_have_run), (3, true, true));
    assert!(matches!(&error.cause, Cause::Rpc(error) if error.code() == -32603));
    assert_eq!(error.to_string(), "tool `add` failed after 3 attempts: as scripted (code -32603)");
    assert_eq!(world.pauses(), [1, 2]);
}

/// BRG-6: `safe` repeats calls that provably never reached the server, and tools annotated as harmless to repeat;
/// `never` repeats nothing.
#[tokio::test(start_paused = true)]
async fn what_may_run_twice() {
    async fn attempts(retry: Retry, annotations: Value) -> u32 {
        let world = World { annotations, ..World::new(&[Turn::Close; 9]) };
        let bridge = world.bridge().await;
        call_tool(&bridge, "add", &json!({}), &world.options(retry)).await.unwrap_err().attempts
    }
    assert_eq!(attempts(Retry::Always, json!({})).await, 3);
    assert_eq!(attempts(Retry::Safe, json!({})).await, 1);
    assert_eq!(attempts(Retry::Safe, json!({"readOnlyHint": true})).await, 3);
    assert_eq!(attempts(Retry::Safe, json!({"idempotentHint": true})).await, 3);
    assert_eq!(attempts(Retry::Never, json!({"idempotentHint": true})).await, 1);

    // A connection that was never established has sent nothing.
    let world = World::new(&[]);
    let once = Arc::new(Mutex::new(Some(world.factory())));
    let flaky = TransportFactory::new(move |url| {
        let (first, url) = (once.lock().take(), url.to_owned());
        async move {
            match first {
                Some(_) => {
                    let (ours, theirs) = memory_transport();
                    tokio::spawn(World::new(&[Turn::Close]).serve(theirs));
                    let _ = url;
                    Ok(ours)
                }
                None => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)),
            }
        }
    });
    let options = ConnectOptions::default().factory(flaky);
    let bridge = connect_to_server("memory:flaky", options).await.unwrap();
    let options = world.options(Retry::Never);
    call_tool(&bridge, "add", &json!({}), &options).await.unwrap_err();
    let error = call_tool(&bridge, "add", &json!({}), &world.options(Retry::Safe)).await.unwrap_err();
    assert_eq!(error.attempts, 3, "{error}");
}

/// BRG-5, BRG-6: a call whose first attempt was sent may have run, also if its last attempt could not even connect.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_sent_is_not_forgotten() {
    let world = World::new(&[Turn::Close]);
    let once = Arc::new(Mutex::new(Some(world.clone())));
    let gone_after_the_first = TransportFactory::new(move |_| {
        let first = once.lock().take();
        async move {
            let world = first.ok_or(std::io::ErrorKind::ConnectionRefused)?;
            let (ours, theirs) = memory_transport();
            tokio::spawn(world.serve(theirs));
            Ok(ours)
        }
    });
    let options = ConnectOptions::default().factory(gone_after_the_first);
    let bridge = connect_to_server("memory:flaky", options).await.unwrap();
    let error = call_tool(&bridge, "add", &json!({}), &world.options(Retry::Always)).await.unwrap_err();
    assert_eq!((error.attempts, error.may_have_run, world.seen.lock().calls), (3, true, 1), "{error}");
    assert!(matches!(&error.cause, Cause::Connect { .. }), "the last attempt was not sent: {error}");
}

/// BRG-1, BRG-5: a closed bridge stays closed, and says so; what was never sent did not run.
#[tokio::test(start_paused = true)]
async fn close() {
    let world = World::new(&[]);
    let bridge = world.bridge().await;
    bridge.close().await;
    let error = call_tool(&bridge, "add", &json!({}), &world.options(Retry::Always)).await.unwrap_err();
    assert_eq!((error.attempts, error.retryable(), error.may_have_run), (1, false, false));
    assert!(error.to_string().contains("the bridge is closed"), "{error}");
    assert_eq!(world.seen.lock().connections, 1);
}

/// ENV-9, ENV-4: every tool becomes an operation with the server's schemas; a missing or invalid schema accepts
/// anything. A result's data is cast, and the call's id is sent along. GATE-6: casts are counted.
#[tokio::test(start_paused = true)]
async fn tools_become_operations() {
    let world = World::new(&[Turn::Structured, Turn::Answer]);
    let bridge = world.bridge().await;
    let operations = operations(&bridge).await.unwrap();
    let names: Vec<&str> = operations.iter().map(|operation| operation.spec.name.as_str()).collect();
    assert_eq!(names, ["add", "measure", "broken"]);
    let [add, measure, broken] = &operations[..] else { unreachable!() };
    assert_eq!(measure.spec.description.as_deref(), Some("Measures."));
    assert_eq!(measure.spec.input_schema, json!({"type": "object", "title": "in"}));
    assert_eq!(measure.spec.output_schema["properties"]["n"]["default"], 7);
    assert_eq!((&add.spec.output_schema, &broken.spec.output_schema), (&json!(true), &json!(true)));
    assert_eq!((&add.spec.description, &broken.spec.input_schema), (&None, &json!({"type": "object"})));

    let envelope = measure.run(&json!({"of": "x"})).await.unwrap();
    assert_eq!(envelope.data, json!({"n": 7}));
    assert_eq!(envelope.meta.structured_content, Some(json!({"n": "x", "surplus": 1})));
    assert_eq!(envelope.meta.cast.len(), 2);
    assert_eq!((envelope.meta.server.as_str(), envelope.meta.tool.as_str()), ("scripted", "measure"));
    assert_eq!(envelope.flat().namespace, "scripted");
    assert_eq!(envelope.meta.meta.unwrap()["got/id"], envelope.meta.correlation_id.as_str());
    let plain = add.run(&json!({"a": 1})).await.unwrap();
    assert_eq!(plain.data, json!([{"type": "text", "text": r#"{"a":1}"#}]));
    let counted = [Counter::Casts, Counter::CastChanges, Counter::CastIssues, Counter::Retries];
    assert_eq!(counted.map(|counter| bridge.signals().metrics().count(counter)), [1, 2, 0, 0]);
    bridge.close().await;
}

/// ENV-8: a server without a name is called by its address, without any secret in it.
#[tokio::test(start_paused = true)]
async fn a_nameless_server_is_called_by_its_address() {
    let world = World { name: "", ..World::new(&[]) };
    let options = ConnectOptions::default().factory(world.factory());
    let bridge = connect_to_server("memory:scripted?key=hunter2", options).await.unwrap();
    let operations = operations(&bridge).await.unwrap();
    assert_eq!(operations[0].run(&json!({})).await.unwrap().flat().namespace, "memory:scripted");
    bridge.close().await;
}

/// ENV-9: operations follow the current list, whether or not its change was announced.
#[tokio::test(start_paused = true)]
async fn operations_follow_list_changes() {
    let names = async |bridge: &Bridge| -> Vec<String> {
        operations(bridge).await.unwrap().into_iter().map(|operation| operation.spec.name).collect()
    };
    let world = World::new(&[]);
    let bridge = world.bridge().await;
    assert_eq!(names(&bridge).await, ["add", "measure", "broken"]);
    world.seen.lock().new_list = true;
    assert_eq!(names(&bridge).await, ["add", "new"]);
    bridge.close().await;
}

/// BRG-6: after a server announces a changed list, its current annotations decide whether a tool may run twice.
#[tokio::test(start_paused = true)]
async fn retries_follow_list_changes() {
    let world = World::new(&[Turn::Fail(-32603), Turn::NewList, Turn::Fail(-32603), Turn::Answer]);
    let bridge = world.bridge().await;
    let options = world.options(Retry::Safe);
    let call = async || call_tool(&bridge, "add", &json!({}), &options).await;
    assert_eq!(call().await.unwrap_err().attempts, 1, "the tool may change something");
    call().await.unwrap();
    call().await.unwrap();
    assert_eq!(world.seen.lock().calls, 4);
    bridge.close().await;
}

/// BRG-1, BRG-3: options can be printed, even with an embedder's functions in them.
#[test]
fn options_can_be_shown() {
    let options = ConnectOptions::default().factory(World::new(&[]).factory());
    assert!(format!("{options:?}").contains("factory: Some(TransportFactory)"), "{options:?}");
    let options = AttemptOptions::default();
    assert!(format!("{options:?}").contains("sleep: Sleep"), "{options:?}");
}

/// BRG-2, LIB-1: without variables in the options, connecting takes the timeout and the variables that programs need from
/// the process, and nothing else: a program is found by its bare name.
#[expect(clippy::disallowed_methods, reason = "an environment of its own needs a process of its own")]
#[test]
fn the_environment_of_the_process() {
    const TEST: &str = "the_environment_of_the_process";
    let run = |timeout: &str| {
        let folder = bridgehead_testkit::mock_path().parent().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([TEST, "--exact"]).env(TIMEOUT_VARIABLE, timeout).env("PATH", folder).env("UNLISTED", "x");
        let ended = child.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    };
    if std::env::var("UNLISTED").is_err() {
        run("60000");
        return run("soon");
    }
    let values = ["PATH", "UNLISTED"].map(str::to_owned).to_vec();
    let mock = Mock::new().tool("env", Behaviour::Environment { values });
    let mut stdio = Stdio::new("mock-upstream", Vec::<String>::new());
    stdio.env = mock.env().into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connecting = connect_to_endpoint(Launch::Stdio(stdio), ConnectOptions::default()).await;
        if std::env::var(TIMEOUT_VARIABLE).as_deref() == Ok("soon") {
            let refused = connecting.unwrap_err().to_string();
            return assert!(refused.contains("BRIDGEHEAD_MCP_TIMEOUT is `soon`"), "{refused}");
        }
        let bridge = connecting.unwrap();
        let told = call_tool(&bridge, "env", &json!({}), &AttemptOptions::default()).await.unwrap();
        bridge.close().await;
        let told: Value = told.decode().unwrap();
        let values = &told["structuredContent"]["values"];
        assert_eq!(values["PATH"], std::env::var("PATH").unwrap());
        assert_eq!(values.get("UNLISTED"), None, "{told}");
    });
}

/// BRG-3, GATE-6: each retry is counted and logged at WARN with its delay and cause, to the embedder's logger if there
/// is one.
#[tokio::test(start_paused = true)]
async fn retries_are_logged_to_the_logger_of_the_options() {
    let world = World::new(&[Turn::Fail(-32603), Turn::Fail(-32001)]);
    let lines = Lines::default();
    let logger = Some(Dispatch::new(lines.clone()));
    // With a single dispatcher `tracing` caches for every thread whether the first thread wanted a line.
    let _second = Dispatch::new(Lines::default());
    let options = ConnectOptions::default().factory(world.factory()).logger(logger);
    let bridge = connect_to_server("memory:scripted", options).await.unwrap();
    call_tool(&bridge, "add", &json!({}), &world.options(Retry::Always)).await.unwrap();
    let lines = lines.0.lock().clone();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, (delay, attempt)) in lines.iter().zip([(1000, 1), (2000, 2)]) {
        for part in [
            "WARN",
            "trying again",
            "cause=",
            "as scripted",
            &format!("delayMs={delay}"),
            &format!("attempt={attempt}"),
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    assert_eq!(bridge.signals().metrics().count(Counter::Retries), 2);
    bridge.close().await;
}

/// ENV-6: a tool's own error is data; only a call without a result is an error.
#[tokio::test(start_paused = true)]
async fn which_ends_are_errors() {
    let world = World::new(&[Turn::ToolError, Turn::Fail(-32602), Turn::Scalar, Turn::Silence, Turn::Close]);
    let bridge = world.bridge().await;
    let operations = operations(&bridge).await.unwrap();
    let options = world.options(Retry::Never);
    let nothing = json!({});
    let run = || operations[1].run_with(&nothing, &options);
    let failed = run().await.unwrap();
    assert!(failed.meta.is_error && !failed.flat().ok && failed.meta.cast.is_empty());
    assert!(matches!(run().await.unwrap_err().cause, Cause::Rpc(_)), "an unknown tool");
    assert!(run().await.unwrap_err().to_string().contains("not usable"));
    assert!(matches!(run().await.unwrap_err().cause, Cause::Timeout(_)));
    assert!(matches!(run().await.unwrap_err().cause, Cause::Link(_)), "a lost connection");
    bridge.close().await;
    assert!(matches!(run().await.unwrap_err().cause, Cause::Closed));
    assert!(matches!(
        bridgehead_upstream::bridge::operations(&bridge).await.unwrap_err().cause,
        Cause::Closed
    ));
}
