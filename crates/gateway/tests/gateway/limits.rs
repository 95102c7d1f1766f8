//! What servers may use, as a client and an operator see it.

use std::time::Duration;

use bridgehead_config::{Limits, Requirement};
use bridgehead_testkit::{Behaviour, Mock};
use serde_json::json;

use crate::support::Fixture;

/// BOX-3: a server whose tree grows too large is killed as a whole; calls that were under way say why, are not sent
/// again although they might be, and the server comes back.
#[tokio::test]
async fn a_server_that_exceeds_its_limits_is_ended_and_comes_back() {
    let mock = Mock::legacy()
        .tool("fork", Behaviour::Grandchild)
        .tool("hang", Behaviour::Hang)
        .tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].limits = Limits { processes: Some(1), ..Limits::default() };
        options.servers[0].retry = bridgehead_config::Retry::Always;
    });
    fixture.names().await;
    let (hanging, _) = tokio::join!(fixture.call("hang", json!({})), fixture.call("fork", json!({})));
    let error = hanging.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_CRASHED", "{error}");
    let details = &error["data"]["details"];
    assert_eq!(details["reason"], "process_limit", "{error}");
    assert!(details["killed"].as_u64().unwrap() >= 2, "{error}");
    assert!(details["status"].as_str().unwrap().contains("process limit"), "{error}");
    assert!(fixture.call("echo", json!({})).await.is_ok(), "it is back");
    fixture.end().await;
}

/// BOX-1, BOX-3: a call may run only so long, progress or not.
#[tokio::test]
async fn a_call_may_run_only_so_long() {
    let mock = Mock::legacy().tool("hang", Behaviour::Hang).tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].limits =
            Limits { execution: Some(Duration::from_millis(300)), ..Limits::default() };
    });
    fixture.names().await;
    let error = fixture.call("hang", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}");
    fixture.end().await;
}

/// BOX-1: what is set and how it is kept is told; who sets nothing is not limited.
#[tokio::test]
async fn limits_are_told_as_they_are_kept() {
    let servers = [("limited", Mock::modern()), ("free", Mock::modern())];
    let fixture = Fixture::start(&servers, |options| {
        options.servers[0].limits = Limits {
            memory: Some(512 << 20),
            open_files: Some(256),
            output: Some(1 << 20),
            execution: Some(Duration::from_secs(9)),
            ..Limits::default()
        };
    });
    fixture.names().await;
    let status = fixture.gateway.status();
    assert_eq!(
        status.upstreams[0].limits,
        Some(json!({
            "memoryBytes": {"most": 512 << 20, "enforced": "sampled"},
            "openFiles": {"most": 256, "enforced": "hard"},
            "executionMs": {"most": 9000},
            "outputBytes": {"most": 1 << 20},
        }))
    );
    assert_eq!(status.upstreams[1].limits, None);
    fixture.end().await;
}

/// A server that must be limited harder than is possible is not started, and calls say so.
#[tokio::test]
async fn box_54_what_is_required_and_impossible_is_refused() {
    let mock = Mock::legacy().tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(
        &[("m", mock), ("well", Mock::legacy().tool("pid", Behaviour::ProcessId))],
        |options| {
            options.servers[0].limits = Limits { memory: Some(512 << 20), ..Limits::default() };
            options.servers[0].require = vec![Requirement::MemoryHard];
        },
    );
    fixture.names().await;
    let status = &fixture.gateway.status().upstreams[0];
    assert!(status.reason.as_ref().unwrap().contains("memory:hard"), "{status:?}");
    assert_eq!(status.pid, None);
    let upstreams = fixture.gateway.upstreams();
    let refused = upstreams[0].acquire(tokio::time::Instant::now()).await.unwrap_err();
    assert!(refused.to_string().contains("can only be sampled"), "{refused}");
    assert!(fixture.call("well__pid", json!({})).await.is_ok());
    fixture.end().await;
}
