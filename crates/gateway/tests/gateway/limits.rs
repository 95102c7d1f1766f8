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
    // The system itself keeps it only in a control group that was handed to this program.
    let memory = status.upstreams[0].limits.as_ref().unwrap()["memoryBytes"]["enforced"].clone();
    assert!(memory == "sampled" || memory == "hard", "{memory}");
    assert_eq!(
        status.upstreams[0].limits,
        Some(json!({
            "memoryBytes": {"most": 512 << 20, "enforced": memory},
            "openFiles": {"most": 256, "enforced": "hard"},
            "executionMs": {"most": 9000},
            "outputBytes": {"most": 1 << 20},
        }))
    );
    assert_eq!(status.upstreams[1].limits, None);
    fixture.end().await;
}

/// A server that must be limited harder than is possible is not started, and calls say so and name the cure. Where it is
/// possible it is limited like that.
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
    let upstreams = fixture.gateway.upstreams();
    match upstreams[0].acquire(tokio::time::Instant::now()).await {
        Ok(_) => assert_eq!(status.limits.as_ref().unwrap()["memoryBytes"]["enforced"], "hard"),
        Err(refused) => {
            assert!(status.sandbox_unavailable, "{status:?}");
            assert_eq!(status.pid, None);
            let refused = refused.to_string();
            for words in ["can only be sampled", "`require`", "control group", "Delegate="] {
                assert!(refused.contains(words), "{refused}");
            }
        }
    }
    assert!(fixture.call("well__pid", json!({})).await.is_ok());
    fixture.end().await;
}

/// To require that a limit is kept well which is not set, or which is of processes elsewhere, is a mistake that is told.
#[tokio::test]
async fn what_is_required_of_nothing_is_refused() {
    let mock = || Mock::legacy().tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock()), ("n", mock())], |options| {
        options.servers[0].require = vec![Requirement::MemoryHard];
        options.servers[1].require = vec![Requirement::ProcessesHard];
        options.servers[1].limits = Limits { memory: Some(512 << 20), ..Limits::default() };
    });
    for (index, key) in ["max_memory_mb", "max_processes"].into_iter().enumerate() {
        let upstreams = fixture.gateway.upstreams();
        let patience = tokio::time::Instant::now() + Duration::from_secs(60);
        let refused = upstreams[index].acquire(patience).await.unwrap_err().to_string();
        assert!(refused.contains("no such limit is set") && refused.contains(key), "{refused}");
    }
    fixture.end().await;
}
