//! What the gateway reports about itself and its servers, and the lines it keeps of them.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_gateway::{Followed, LineSink, LineSource, Reload, ServerState, ServerStatus};
use bridgehead_testkit::{Behaviour, Initialize, Mock, Probe, Tool};
use parking_lot::Mutex;
use serde_json::json;

use crate::support::Fixture;

async fn until(fixture: &Fixture, server: usize, wanted: impl Fn(&ServerStatus) -> bool) -> ServerStatus {
    for _ in 0..2_000 {
        if let Some(status) = fixture.gateway.status().upstreams.get(server).filter(|status| wanted(status)) {
            return status.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the status never matched: {:?}", fixture.gateway.status());
}

/// SRV-7, POOL-14: the status of a running server has its processes, its memory, and the outcome of its last start.
#[tokio::test]
async fn a_server_that_serves_is_told_whole() {
    let mock = Mock::legacy().tool("a", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    fixture.settled().await;
    fixture.gateway.set_addresses(vec!["127.0.0.1:1".to_owned()]);
    fixture.gateway.set_reload(Reload {
        time: "2026-11-15T12:00:00.000Z".to_owned(),
        ok: true,
        message: "nothing changed".to_owned(),
        needs_restart: Vec::new(),
    });
    fixture.call("a", json!({})).await.unwrap();
    let status = json!(fixture.gateway.status());
    assert_eq!(status["instance"], fixture.gateway.instance());
    assert_eq!((fixture.gateway.instance().len(), &status["pid"]), (12, &json!(std::process::id())));
    assert_eq!((&status["addresses"], &status["reload"]["ok"]), (&json!(["127.0.0.1:1"]), &json!(true)));
    assert_eq!((&status["mode"], &status["counters"]["calls"]), (&json!("full"), &json!(1)));
    let server = &status["upstreams"][0];
    let shown = ["name", "state", "transport", "revision", "era", "tools", "inFlight", "restarts"]
        .map(|key| server[key].clone());
    let expected = json!(["m", "ready", "stdio", "2025-11-25", "legacy", 1, 0, 0]);
    assert_eq!(json!(shown), expected, "{server}");
    assert_eq!((&server["lastInit"]["outcome"], &server["lastInit"]["tools"]), (&json!("ready"), &json!(1)));
    assert_eq!(server["pids"][0], server["pid"]);
    assert!(
        server["uptimeMs"].is_u64() && server["reason"].is_null() && server["nextStep"].is_null(),
        "{server}"
    );
    assert!(server["queue"]["waiting"].is_u64(), "{server}");
    if cfg!(target_os = "linux") {
        assert!(server["memoryBytes"].as_u64().unwrap() > 100_000, "{server}");
        assert_eq!(server["containment"], "tree");
    }
    fixture.end().await;
}

/// POOL-9, POOL-14: a server that crashes repeatedly shows it, with its exit status, its last lines and what to do.
#[tokio::test]
async fn a_server_that_loops_tells_why() {
    let mock = Mock::legacy()
        .stderr("no licence: token=hunter2")
        .on_probe(Probe::Exit { status: 7 })
        .on_initialize(Initialize::Exit { status: 7 });
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    let status = until(&fixture, 0, |status| status.state == ServerState::CrashLooping).await;
    assert!(status.reason.as_deref().unwrap().contains("exit status 7"), "{status:?}");
    assert_eq!(status.last_exit.as_ref().unwrap()["status"], "exit status 7");
    assert!(status.stderr.iter().any(|line| line == "no licence: token=[redacted]"), "{status:?}");
    assert!(status.next_step.as_deref().unwrap().contains("bridgehead logs m"), "{status:?}");
    assert!(status.restarts >= 3 && status.last_error.is_some(), "{status:?}");
    assert_eq!(status.last_init.unwrap()["outcome"], "failed");
    fixture.end().await;
}

/// POOL-9: a server's standard error and the gateway's lines about it survive a restart, can be followed, and go to the
/// embedder's callback.
#[tokio::test]
async fn lines_survive_a_restart() {
    let shown: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = LineSink::new({
        let shown = Arc::clone(&shown);
        move |line| shown.lock().push(line.to_string())
    });
    let mock = Mock::legacy().stderr("hello").tool("a", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| options.log_lines = Some(sink));
    fixture.settled().await;
    assert!(fixture.gateway.record("n").is_none() && !fixture.gateway.restart("n"));
    let record = fixture.gateway.record("m").unwrap();
    let before = until(&fixture, 0, |status| status.state == ServerState::Ready).await.pid;
    assert!(fixture.gateway.restart("m"));
    let after = until(&fixture, 0, |status| status.state == ServerState::Ready && status.restarts == 1).await;
    assert_ne!(before, after.pid);
    let mut follower = record.follow(usize::MAX);
    let mut hellos = 0;
    while hellos < 2 {
        let next = tokio::time::timeout(Duration::from_secs(60), follower.next()).await.unwrap();
        let Followed::Line(line) = next else { panic!("no line should be lost") };
        hellos += usize::from(line.source == LineSource::Stderr && &*line.text == "hello");
    }
    let lines: Vec<String> = record.tail(usize::MAX).iter().map(|line| line.text.to_string()).collect();
    assert!(lines.iter().any(|line| line.starts_with("serves 1 tool,")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("it was asked to restart")), "{lines:?}");
    assert!(shown.lock().iter().all(|line| line.contains(" mcp:m ")), "{shown:?}");
    assert!(shown.lock().iter().any(|line| line.ends_with(" mcp:m stderr: hello")), "{shown:?}");
    fixture.end().await;
}

/// Problems with single tools are reported, and the server still serves.
#[tokio::test]
async fn findings_about_tools_are_told() {
    let bad = Tool::new("bad", Behaviour::Echo).input_schema(json!({"type": 5}));
    let mock = Mock::legacy().tool("twin", Behaviour::Echo).tool("twin", Behaviour::Echo).full_tool(bad);
    let fixture = Fixture::start(&[("files", mock)], |_| ());
    fixture.settled().await;
    let status = until(&fixture, 0, |status| status.state == ServerState::Ready).await;
    assert_eq!(status.findings.len(), 2, "{status:?}");
    assert!(status.findings[0].contains("`twin` appears twice"), "{status:?}");
    assert!(status.findings[1].contains("`bad` has an input schema that cannot be used"), "{status:?}");
    #[track_caller]
    fn check(fixture: &Fixture, written: &str, expected: &[&str]) {
        assert_eq!(fixture.gateway.similar_servers(written), expected, "{written}");
    }
    check(&fixture, "file", &["files"]);
    check(&fixture, "Fiels", &["files"]);
    check(&fixture, "weather", &[]);
    fixture.end().await;
}

/// A server that is not restarted automatically starts again when an operator asks for it.
#[tokio::test]
async fn a_failed_server_is_started_again_when_asked() {
    let mock = Mock::legacy()
        .tool("a", Behaviour::Echo)
        .tool("die", Behaviour::Crash(bridgehead_testkit::Crash::Exit { status: 3 }));
    let fixture = Fixture::start(&[("m", mock)], |options| options.servers[0].restart = false);
    fixture.settled().await;
    fixture.call("die", json!({})).await.unwrap_err();
    until(&fixture, 0, |status| status.state == ServerState::Failed).await;
    assert!(fixture.gateway.restart("m"));
    until(&fixture, 0, |status| status.state == ServerState::Ready).await;
    fixture.call("a", json!({})).await.unwrap();
    fixture.end().await;
}
