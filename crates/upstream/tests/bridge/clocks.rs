//! The exact duration of handshakes, attempts and pauses, on a clock that jumps from timer to timer.

use std::collections::BTreeMap;
use std::time::Duration;

use bridgehead_config::Retry;
use bridgehead_upstream::bridge::{
    AttemptOptions, Cause, ConnectOptions, TIMEOUT_VARIABLE, TransportFactory, call_tool, connect_to_server,
    memory_transport, operations,
};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use tracing::Dispatch;

use crate::world::{Lines, Turn, World};

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn environment(value: Option<&str>) -> BTreeMap<String, String> {
    value.map(|value| (TIMEOUT_VARIABLE.to_owned(), value.to_owned())).into_iter().collect()
}

/// A server that reads and never answers.
fn silent() -> TransportFactory {
    TransportFactory::new(|_| async {
        let (ours, mut theirs) = memory_transport();
        tokio::spawn(async move { theirs.read_to_end(&mut Vec::new()).await });
        Ok(ours)
    })
}

/// BRG-1, BRG-2: a handshake's limit is the option, else the variable, else 30 000 ms. A longer handshake is an error
/// with one attempt, and retryable.
#[tokio::test(start_paused = true)]
async fn a_handshake_has_the_time_that_is_said() {
    for (variable, option, expected) in [
        (None, None, 30_000),
        (Some("250"), None, 250),
        (Some("250"), Some(70), 70),
        (None, Some(45_000), 45_000),
    ] {
        let options =
            ConnectOptions::default().factory(silent()).timeout_ms(option).environment(environment(variable));
        let began = Instant::now();
        let error = connect_to_server("memory:silent", options).await.unwrap_err();
        assert_eq!(began.elapsed(), milliseconds(expected), "{variable:?} {option:?}");
        assert!(matches!(error.cause, Cause::Timeout(limit) if limit == milliseconds(expected)), "{error}");
        assert_eq!((error.attempts, error.retryable()), (1, true), "{error}");
        assert!(error.to_string().ends_with(&format!("no answer within {expected} ms")), "{error}");
    }
}

/// BRG-2, BRG-3: each attempt's limit is the call's option, else the connection's, else the variable, else 30 000 ms, and
/// starts anew for each.
#[tokio::test(start_paused = true)]
async fn each_attempt_has_the_time_that_is_said() {
    for (variable, of_connection, option, expected) in [
        (None, None, None, 30_000),
        (Some("250"), None, None, 250),
        (Some("250"), None, Some(70), 70),
        (None, None, Some(45_000), 45_000),
        (None, Some(500), None, 500),
        (Some("250"), Some(5_000), None, 5_000),
        (Some("250"), Some(500), Some(45_000), 45_000),
    ] {
        let world = World::new(&[Turn::Silence; 9]);
        let connect = ConnectOptions::default()
            .factory(world.factory())
            .timeout_ms(of_connection)
            .environment(environment(variable));
        let bridge = connect_to_server("memory:scripted", connect).await.unwrap();
        let began = Instant::now();
        let options = world.options(Retry::Always).timeout_ms(option);
        let error = call_tool(&bridge, "add", &json!({}), &options).await.unwrap_err();
        assert_eq!(error.attempts, 3, "{variable:?} {of_connection:?} {option:?}");
        assert_eq!(began.elapsed(), milliseconds(3 * expected), "{variable:?} {of_connection:?} {option:?}");
        bridge.close().await;
    }
    let world = World::new(&[]);
    let bridge = world.bridge().await;
    let options = AttemptOptions::default().timeout_ms(0);
    let error = call_tool(&bridge, "add", &json!({}), &options).await.unwrap_err();
    assert!(error.to_string().contains("the option `timeout_ms` is `0`"), "{error}");
    assert_eq!((error.retryable(), world.seen.lock().calls), (false, 0), "nothing was sent");
}

/// BRG-2, BRG-6: a server that also does not say whether the tool may run twice is not waited for longer than an attempt.
#[tokio::test(start_paused = true)]
async fn a_frozen_server_is_not_asked_for_ever() {
    let world = World::new(&[Turn::Freeze; 9]);
    let connect = ConnectOptions::default().factory(world.factory()).timeout_ms(500);
    let bridge = connect_to_server("memory:scripted", connect).await.unwrap();
    let began = Instant::now();
    let calling = async { call_tool(&bridge, "add", &json!({}), &world.options(Retry::Safe)).await };
    let called = tokio::time::timeout(Duration::from_secs(60), calling).await;
    let error = called.expect("the call ends").unwrap_err();
    assert!(matches!(error.cause, Cause::Timeout(_)), "{error}");
    assert_eq!((error.attempts, error.may_have_run, began.elapsed()), (1, true, milliseconds(1_000)));
}

/// BRG-3: at most `max_attempts` attempts, at least one, with pauses of base × 2^(n−1) between them.
#[tokio::test(start_paused = true)]
async fn attempts_and_pauses_are_those_of_the_options() {
    for (max_attempts, backoff, expected) in [
        (5, 100, &[100, 200, 400, 800][..]),
        (4, 1_000, &[1_000, 2_000, 4_000]),
        (2, 7, &[7]),
        (1, 1_000, &[]),
        (0, 1_000, &[]),
    ] {
        let world = World::new(&[Turn::Fail(-32603); 9]);
        let bridge = world.bridge().await;
        let options = world.options(Retry::Always).max_attempts(max_attempts).backoff(milliseconds(backoff));
        let error = call_tool(&bridge, "add", &json!({}), &options).await.unwrap_err();
        let pauses: Vec<u128> = world.seen.lock().pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(pauses, expected, "{max_attempts}");
        let attempts = max_attempts.max(1);
        assert_eq!((error.attempts, world.seen.lock().calls), (attempts, attempts as usize), "{error}");
        bridge.close().await;
    }
}

/// BRG-3, BRG-6: by default a call whose tool may have run is tried three times, with pauses of 1 s and 2 s.
#[tokio::test(start_paused = true)]
async fn a_call_without_options() {
    for (turns, outcome) in [
        (&[Turn::Close, Turn::Fail(-32603), Turn::Answer][..], Ok(())),
        (&[Turn::Close, Turn::Fail(-32603), Turn::Close, Turn::Answer], Err(3)),
    ] {
        let world = World::new(turns);
        let bridge = world.bridge().await;
        let began = Instant::now();
        let called = call_tool(&bridge, "add", &json!({}), &AttemptOptions::default()).await;
        assert_eq!(called.map(drop).map_err(|error| error.attempts), outcome);
        assert_eq!((began.elapsed(), world.seen.lock().calls), (milliseconds(3_000), 3));
        bridge.close().await;
    }
}

/// BRG-3: without a logger in the options, a retry is logged to the caller's subscriber. A call that is not retried
/// logs nothing.
#[tokio::test(start_paused = true)]
async fn retries_are_logged_where_the_caller_logs() {
    let lines = Lines::default();
    let _listening = tracing::subscriber::set_default(lines.clone());
    // With a single dispatcher `tracing` caches for every thread whether the first thread wanted a line.
    let _second = Dispatch::new(Lines::default());
    let world = World::new(&[Turn::Fail(-32603), Turn::Answer, Turn::Fail(-32602)]);
    let bridge = world.bridge().await;
    let options = world.options(Retry::Always).backoff(milliseconds(40));
    call_tool(&bridge, "add", &json!({}), &options).await.unwrap();
    call_tool(&bridge, "add", &json!({}), &options).await.unwrap_err();
    let lines = lines.0.lock().clone();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["WARN", "tool=\"add\"", "attempt=1", "delayMs=40", "cause=as scripted (code -32603)"] {
        assert!(lines[0].contains(part), "{part} in {}", lines[0]);
    }
    bridge.close().await;
}

/// ENV-2, ENV-8: the latency of a result is the whole duration of the call, with its retries and pauses.
#[tokio::test(start_paused = true)]
async fn latencies_are_told_to_the_millisecond() {
    let world = World::new(&[Turn::After(1_234), Turn::Fail(-32603), Turn::After(5)]);
    let bridge = world.bridge().await;
    let add = operations(&bridge).await.unwrap().remove(0);
    let envelope = add.run(&json!({})).await.unwrap();
    assert_eq!((envelope.meta.latency_ms, envelope.flat().latency_ms), (1_234, 1_234));
    assert_eq!(add.run(&json!({})).await.unwrap().meta.latency_ms, 1_005);
    bridge.close().await;
}
