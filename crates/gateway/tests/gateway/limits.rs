//! The resource limits of servers, as a client and an operator see them.

use std::time::Duration;

use bridgehead_config::{Isolation, Limits, Requirement, ToolOverride};
use bridgehead_gateway::ProgressSink;
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_wire::Revision;
use serde_json::json;
use tokio::time::Instant;

use crate::support::Fixture;

/// BOX-3: a server whose process tree grows too large is killed as a whole. Its running calls say why and are not
/// retried, although `retry` would allow it. The server is restarted.
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
    assert!(fixture.call("echo", json!({})).await.is_ok(), "the server is restarted");
    fixture.end().await;
}

/// BOX-1, BOX-3: a call may run no longer than its limit, with or without progress.
#[tokio::test]
async fn a_call_may_run_only_so_long() {
    let steps = Behaviour::Progress {
        steps: 100_000,
        every_ms: 20,
        fault: bridgehead_testkit::ProgressFault::None,
        then: Box::new(Behaviour::Hang),
    };
    let mock = Mock::legacy().tool("steps", steps).tool("hang", Behaviour::Hang);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].limits =
            Limits { execution: Some(Duration::from_millis(300)), ..Limits::default() };
    });
    fixture.names().await;
    for tool in ["hang", "steps"] {
        let (sink, mut progress) = ProgressSink::channel(1024);
        let params = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": 7}});
        let began = Instant::now();
        let asked = fixture.ask_with(Revision::V2025_11_25, "tools/call", params, Some(sink));
        let outcome = tokio::time::timeout(Duration::from_secs(30), asked).await.expect("the call is ended");
        let error: serde_json::Value = outcome.unwrap_err().body().decode().unwrap();
        assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}");
        assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
        assert_eq!(progress.recv().await.is_some(), tool == "steps", "{tool}");
    }
    fixture.end().await;
}

/// BOX-1, BOX-3: a call in its own process has 30 000 ms; a tool may have less or more, in its own process or a shared
/// one.
#[tokio::test]
async fn a_call_has_its_time_to_the_millisecond() {
    for isolation in [Isolation::Call, Isolation::Shared] {
        let folder = tempfile::tempdir().unwrap();
        let called = folder.path().join("called");
        let script = format!("touch '{}'", called.display());
        let hang = || Behaviour::Shell { script: script.clone(), then: Box::new(Behaviour::Hang) };
        let mock = Mock::legacy().tool("usual", hang()).tool("brief", hang()).tool("patient", hang());
        let fixture = Fixture::start(&[("m", mock)], |options| {
            let server = &mut options.servers[0];
            (server.isolation, server.limits) = (isolation, Limits::OF_A_CALL);
            // No other timer is due on the clock that jumps.
            server.probe_interval = Duration::from_secs(36_000);
            if isolation != Isolation::Call {
                server.limits = Limits { execution: Limits::OF_A_CALL.execution, ..Limits::default() };
            }
            for (tool, ms) in [("brief", 700), ("patient", 45_000)] {
                let limits = Limits { execution: Some(Duration::from_millis(ms)), ..Limits::default() };
                server.tools.insert(tool.to_owned(), ToolOverride { limits, ..ToolOverride::default() });
            }
        });
        fixture.names().await;
        for (tool, most) in [("usual", 30_000), ("brief", 700), ("patient", 45_000)] {
            tokio::time::pause();
            let began = Instant::now();
            // The paused clock stands still while the test waits for the process by the wall clock, then jumps to the
            // call's deadline.
            let is_called = async {
                for _ in 0..30_000 {
                    if std::fs::remove_file(&called).is_ok() {
                        return;
                    }
                    let tick = || std::thread::sleep(Duration::from_millis(2));
                    tokio::task::spawn_blocking(tick).await.unwrap();
                }
                panic!("the tool was never called");
            };
            let (outcome, ()) = tokio::join!(fixture.call(tool, json!({})), is_called);
            let took = began.elapsed().as_millis();
            tokio::time::resume();
            let error = outcome.unwrap_err();
            assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}");
            assert_eq!(
                (&error["data"]["retryable"], &error["data"]["mayHaveRun"]),
                (&json!(true), &json!(true))
            );
            assert!((most..=most + 1).contains(&took), "{isolation:?} {tool}: after {took} ms");
        }
        fixture.end().await;
    }
}

/// BOX-1: the limits of a call and of a tool reach the process that serves it; a shared process has only the limits
/// that are set. BOX-2: the same holds for how much of its error output is kept.
#[tokio::test]
async fn limits_reach_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("limits");
    let tell = Behaviour::Shell {
        script: format!("cat /proc/self/limits > '{}'", table.display()),
        then: Box::new(Behaviour::Echo),
    };
    let words = Behaviour::Shell {
        script: "for i in $(seq 100 199); do echo line $i >&2; done; kill -ABRT $PPID; sleep 60".to_owned(),
        then: Box::new(Behaviour::Hang),
    };
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let soft = |table: &str, name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    let own = read("/proc/self/limits".as_ref());
    let of_tool =
        Limits { open_files: Some(100), file_size: Some(3 << 20), log: Some(64), ..Limits::default() };
    for (isolation, limits, tool, [files, size]) in [
        (Isolation::Call, Limits::OF_A_CALL, "tell", [Some(256), Some(64 << 20)]),
        (Isolation::Call, Limits::OF_A_CALL, "tell_small", [Some(100), Some(3 << 20)]),
        (Isolation::Shared, Limits::default(), "tell", [None, None]),
        (Isolation::Session, Limits::default(), "tell", [None, None]),
        (Isolation::Shared, Limits { log: None, ..of_tool }, "tell", [Some(100), Some(3 << 20)]),
    ] {
        let mock = Mock::legacy()
            .tool("tell", tell.clone())
            .tool("tell_small", tell.clone())
            .tool("words", words.clone())
            .tool("words_small", words.clone());
        let fixture = Fixture::start(&[("m", mock)], |options| {
            let server = &mut options.servers[0];
            (server.isolation, server.limits) = (isolation, limits);
            if isolation == Isolation::Call {
                for tool in ["tell_small", "words_small"] {
                    server
                        .tools
                        .insert(tool.to_owned(), ToolOverride { limits: of_tool, ..ToolOverride::default() });
                }
            }
        });
        fixture.names().await;
        fixture.call(tool, json!({})).await.unwrap();
        let found = read(&table);
        for (name, most) in [("Max open files", files), ("Max file size", size)] {
            let expected = most.map_or_else(|| soft(&own, name), |most: u64| most.to_string());
            assert_eq!(soft(&found, name), expected, "{isolation:?} {tool}: {name}");
        }
        // Where there is a control group it limits memory, and the process has no rlimit for it.
        let memory = soft(&found, "Max data size");
        let unlimited = soft(&own, "Max data size");
        let told = limits.memory.is_some_and(|most| memory == most.to_string());
        assert!(told || memory == unlimited, "{isolation:?} {tool}: {memory}");
        if isolation == Isolation::Call {
            for (tool, least, most) in [("words", 500, 600), ("words_small", 40, 64)] {
                let error = fixture.call(tool, json!({})).await.unwrap_err();
                let kept = error["data"]["details"]["stderr"].as_str().unwrap();
                assert!((least..=most).contains(&kept.len()), "{tool}: {kept}");
                assert!(kept.ends_with("line 199"), "{tool}: {kept}");
            }
        }
        fixture.end().await;
    }
}

/// BOX-1: the status has each limit that is set and how it is enforced; a server without limits is not limited.
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
    // The kernel enforces it only in a control group delegated to this program.
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

/// A server that requires stronger limits than the system offers is not started; its calls say so and name the cure.
/// Where the system offers them, the server gets them.
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
    match upstreams[0].acquire(Instant::now()).await {
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

/// It is an error to require enforcement of a limit that is not set, or that is set for another resource.
#[tokio::test]
async fn requiring_an_unset_limit_is_refused() {
    let mock = || Mock::legacy().tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock()), ("n", mock())], |options| {
        options.servers[0].require = vec![Requirement::MemoryHard];
        options.servers[1].require = vec![Requirement::ProcessesHard];
        options.servers[1].limits = Limits { memory: Some(512 << 20), ..Limits::default() };
    });
    for (index, key) in ["max_memory_mb", "max_processes"].into_iter().enumerate() {
        let upstreams = fixture.gateway.upstreams();
        let patience = Instant::now() + Duration::from_secs(60);
        let refused = upstreams[index].acquire(patience).await.unwrap_err().to_string();
        assert!(refused.contains("no such limit is set") && refused.contains(key), "{refused}");
    }
    fixture.end().await;
}
