//! Which clients have a server process to themselves, and which servers sleep.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bridgehead_config::{Isolation, Launch, Mode};
use bridgehead_events::{Delivery, Filter};
use bridgehead_gateway::{CancelReason, Gateway, Options, Registry, ServerState, Session};
use bridgehead_testkit::peer::{Peer, json_reply, reply};
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::support::{self, Fixture, call_as};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::MODERN;

fn mock() -> Mock {
    Mock::legacy().tool("pid", Behaviour::ProcessId)
}

/// Whether the process with this number lives; `told` is the tool's answer.
fn lives(told: &str) -> bool {
    let pid: String = told.chars().filter(char::is_ascii_digit).collect();
    Path::new("/proc").join(pid).exists()
}

async fn until(wanted: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if wanted() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the condition never became true");
}

fn state(gateway: &Gateway) -> ServerState {
    gateway.status().upstreams[0].state
}

async fn asleep(gateway: &Gateway) {
    until(|| state(gateway) == ServerState::Asleep && gateway.status().upstreams[0].pids.is_empty()).await;
}

fn own(options: &mut Options) {
    options.servers[0].isolation = Isolation::Session;
}

/// POOL-1: `session` gives each client session its own process, which ends with the session at once. A separate
/// process, shared by all, lists the tools.
#[tokio::test]
async fn each_session_has_its_own_process() {
    let fixture = Fixture::start(&[("m", mock())], own);
    let sessions = [Session::new(), Session::new()];
    let mut pids = Vec::new();
    for session in &sessions {
        let pid = fixture.call_as(session, LEGACY, "pid").await.unwrap();
        assert_eq!(fixture.call_as(session, MODERN, "pid").await.unwrap(), pid, "one session, one process");
        pids.push(pid);
    }
    let listing = match fixture.gateway.upstreams()[0].state() {
        bridgehead_upstream::UpstreamState::Ready(ready) => format!(r#"{{"pid":{}}}"#, ready.pid.unwrap()),
        other => panic!("{other:?}"),
    };
    assert!(pids[0] != pids[1] && !pids.contains(&listing));
    sessions[0].end();
    until(|| !lives(&pids[0])).await;
    assert!(lives(&pids[1]) && lives(&listing));
    let late = fixture.call_as(&sessions[0], LEGACY, "pid").await.unwrap_err();
    assert_eq!(late["data"]["code"], "PROVIDER_UNAVAILABLE");
    let [_, second] = sessions;
    drop(second);
    until(|| !lives(&pids[1])).await;
    let third = Session::new();
    let pid = fixture.call_as(&third, LEGACY, "pid").await.unwrap();
    fixture.gateway.stop().await;
    assert!(!lives(&pid) && !lives(&listing), "the gateway leaves no process");
    fixture.end().await;
}

/// POOL-1: a server is stopped after its idle time without use. Its tools stay listed, no change is announced, and the
/// next call starts it. A call in flight is a use, however long it takes.
#[tokio::test]
async fn an_unused_server_sleeps_until_it_is_called() {
    let slow = Behaviour::Delay { ms: 500, then: Box::new(Behaviour::ProcessId) };
    let fixture = Fixture::start(&[("m", mock().tool("slow", slow))], |options| {
        options.servers[0].idle_timeout = Some(Duration::from_millis(100));
    });
    fixture.settled().await;
    let changes = fixture.gateway.catalog_changes();
    let session = Session::new();
    let first = fixture.call_as(&session, MODERN, "slow").await.unwrap();
    asleep(&fixture.gateway).await;
    assert!(!lives(&first));
    assert!(fixture.names().await.contains(&"pid".to_owned()), "its tools stay listed");
    assert_eq!(fixture.gateway.status().upstreams[0].catalog, Some("live"));
    let second = fixture.call_as(&session, MODERN, "pid").await.unwrap();
    assert_ne!(first, second);
    assert!(!changes.has_changed().unwrap());
    fixture.end().await;
}

/// POOL-1: a legacy session keeps the servers it has used awake for as long as it lives.
#[tokio::test]
async fn a_legacy_session_keeps_its_servers_awake() {
    let fixture = Fixture::start(&[("m", mock())], |options| {
        options.servers[0].idle_timeout = Some(Duration::from_millis(20));
    });
    let session = Session::new();
    let first = fixture.call_as(&session, LEGACY, "pid").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.call_as(&session, LEGACY, "pid").await.unwrap(), first);
    session.end();
    asleep(&fixture.gateway).await;
    fixture.end().await;
}

/// POOL-1: a session's own process sleeps too if its client is stateless.
#[tokio::test]
async fn a_process_of_a_session_sleeps() {
    let fixture = Fixture::start(&[("m", mock())], |options| {
        own(options);
        options.servers[0].idle_timeout = Some(Duration::from_millis(50));
    });
    let session = Session::new();
    let first = fixture.call_as(&session, MODERN, "pid").await.unwrap();
    until(|| !lives(&first)).await;
    assert_ne!(fixture.call_as(&session, MODERN, "pid").await.unwrap(), first);
    fixture.end().await;
}

/// A restart restarts all processes of a server. The next call replaces a process that was cleaned up.
#[tokio::test]
async fn processes_of_sessions_are_replaced() {
    let registry = Registry::new();
    let fixture = Fixture::start(&[("m", mock())], |options| {
        own(options);
        options.registry = registry.clone();
    });
    let session = Session::new();
    let first = fixture.call_as(&session, LEGACY, "pid").await.unwrap();
    let shared = fixture.gateway.status().upstreams[0].pid.unwrap();
    assert!(!first.contains(&shared.to_string()));
    assert!(fixture.gateway.restart("m"));
    until(|| !lives(&first) && !lives(&shared.to_string())).await;
    let second = fixture.call_as(&session, LEGACY, "pid").await.unwrap();
    assert_ne!(first, second);
    registry.clean_up().await;
    assert!(!lives(&second));
    let error = fixture.call_as(&session, LEGACY, "pid").await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_UNAVAILABLE", "the server itself is gone too");
    fixture.gateway.stop().await;
    fixture.gateway.start();
    assert!(fixture.call_as(&session, LEGACY, "pid").await.is_ok());
    fixture.end().await;
}

/// POOL-1: gateways with the same registry share a process; when one gateway stops, the other keeps it.
#[tokio::test]
async fn gateways_share_what_is_the_same() {
    let registry = Registry::new();
    let first = Fixture::start(&[("one", mock())], |options| options.registry = registry.clone());
    let start = |name: &str, registry: Registry| {
        let mut server = first.gateway.upstreams()[0].config().clone();
        server.name = name.parse().unwrap();
        let environment = Some(BTreeMap::new());
        let gateway =
            Gateway::new(Options { servers: vec![server], environment, registry, ..Options::default() })
                .unwrap();
        gateway.start();
        gateway
    };
    let (second, apart) = (start("two", registry.clone()), start("one", Registry::new()));
    let session = Session::new();
    let pid = first.call_as(&session, LEGACY, "pid").await.unwrap();
    assert_eq!(call_as(&second, &session, LEGACY, "pid").await.unwrap(), pid);
    assert_ne!(call_as(&apart, &session, LEGACY, "pid").await.unwrap(), pid);
    assert_eq!(registry.len(), 1);
    second.stop().await;
    assert_eq!(first.call_as(&session, LEGACY, "pid").await.unwrap(), pid);
    apart.stop().await;
    first.end().await;
    assert!(registry.is_empty());
}

/// POOL-1: gateways without a registry of their own share the one of their process.
#[tokio::test]
async fn gateways_share_the_registry_of_their_process() {
    let fixture = Fixture::start(&[("one", mock())], |_| ());
    let server = fixture.gateway.upstreams()[0].config().clone();
    let environment = Some(BTreeMap::new());
    let other = Gateway::new(Options { servers: vec![server], environment, ..Options::default() }).unwrap();
    other.start();
    let session = Session::new();
    let pid = fixture.call_as(&session, LEGACY, "pid").await.unwrap();
    assert_eq!(call_as(&other, &session, LEGACY, "pid").await.unwrap(), pid);
    other.stop().await;
    assert!(lives(&pid), "the other gateway still uses it");
    fixture.end().await;
    assert!(!lives(&pid));
}

/// POOL-8: `init_concurrency` is how many processes a gateway launches at once. With 0 no process starts; a remote
/// server is not launched and needs no slot.
#[tokio::test]
async fn processes_are_launched_as_the_settings_say() {
    let served = mock().serve(bridgehead_testkit::Carrier::Http);
    for (init_concurrency, state_of_process) in [(0, ServerState::Starting), (1, ServerState::Ready)] {
        let fixture = Fixture::start(&[("near", mock())], |options| {
            options.settings.init_concurrency = init_concurrency;
            options.registry = Registry::new();
            options.servers.push(support::at("far", &served.url()));
        });
        let state = |at: usize| fixture.gateway.status().upstreams[at].state;
        until(|| state(1) == ServerState::Ready && state(0) == state_of_process).await;
        fixture.call("far__pid", json!({})).await.unwrap();
        assert_eq!(state(0), state_of_process, "{init_concurrency} at once");
        fixture.end().await;
    }
}

/// POOL-12: stop releases everything, and the same gateway may start again. POOL-8: starting a running gateway does
/// nothing.
#[tokio::test]
async fn a_gateway_starts_again() {
    let registry = Registry::new();
    let fixture = Fixture::start(&[("m", mock())], |options| options.registry = registry.clone());
    let mut pids: Vec<String> = Vec::new();
    for _ in 0..3 {
        fixture.gateway.start();
        fixture.gateway.start();
        let pid = fixture.call_as(&Session::new(), LEGACY, "pid").await.unwrap();
        assert!(!pids.contains(&pid));
        assert_eq!((registry.len(), fixture.gateway.upstreams().len()), (1, 1));
        fixture.gateway.stop().await;
        assert!(!lives(&pid) && registry.is_empty() && fixture.gateway.upstreams().is_empty());
        let refused = fixture.call_as(&Session::new(), LEGACY, "pid").await.unwrap_err();
        assert_eq!(refused["data"]["code"], "PROVIDER_UNAVAILABLE");
        pids.push(pid);
    }
    fixture.end().await;
}

/// LIB-1: a gateway that was given no environment starts its servers from that of the process: with the variables that
/// every program needs, and with those that `inherit_env` names, also in a new configuration.
#[tokio::test]
async fn servers_start_from_the_environment_of_the_process() {
    let values = ["PATH", "CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"];
    let mock =
        Mock::legacy().tool("env", Behaviour::Environment { values: values.map(str::to_owned).to_vec() });
    let fixture = Fixture::start(&[("one", mock)], |options| {
        options.environment = None;
        let Launch::Stdio(stdio) = &mut options.servers[0].launch else { panic!("a program") };
        stdio.inherit_env.push("CARGO_MANIFEST_DIR".to_owned());
    });
    let told = async || {
        let told = fixture.call("env", json!({})).await.unwrap();
        values.map(|name| told["structuredContent"]["values"].get(name).is_some())
    };
    assert_eq!(told().await, [true, true, false]);
    let mut server = fixture.gateway.upstreams()[0].config().clone();
    let Launch::Stdio(stdio) = &mut server.launch else { panic!("a program") };
    stdio.inherit_env.push("CARGO_PKG_NAME".to_owned());
    fixture.gateway.reload(vec![server]).await;
    assert_eq!(told().await, [true, true, true]);
    fixture.end().await;
}

fn at(home: &Path) -> impl Fn(&mut Options) {
    let home = home.to_str().unwrap().to_owned();
    move |options| {
        options.environment = Some([("XDG_STATE_HOME".to_owned(), home.clone())].into());
        options.servers[0].lazy = true;
    }
}

fn kept(home: &Path) -> Vec<std::path::PathBuf> {
    let folder = home.join("bridgehead/catalog").read_dir();
    folder.map(|files| files.map(|file| file.unwrap().path()).collect()).unwrap_or_default()
}

async fn listed(gateway: &Gateway) -> Value {
    let tools = gateway.list_tools();
    let tool = tools.iter().find(|tool| &*tool.name == "pid").unwrap();
    tool.definition.decode().unwrap()
}

/// POOL-1: a lazy server without a cached list is started once to list its tools. Later gateways list them, marked as
/// cached, without starting it. The first call starts it, and the real list replaces the cached one with one change.
#[tokio::test]
async fn a_lazy_server_starts_with_its_first_call() {
    let home = tempfile::tempdir().unwrap();
    let learning = Fixture::start(&[("m", mock().instructions("Use it."))], at(home.path()));
    assert!(learning.names().await.contains(&"pid".to_owned()));
    asleep(&learning.gateway).await;
    assert_eq!(kept(home.path()).len(), 1);
    let server = learning.gateway.upstreams()[0].config().clone();
    learning.gateway.stop().await;

    let knowing = Fixture::start(&[("m", mock())], |options| {
        at(home.path())(options);
        options.servers = vec![server];
    });
    knowing.gateway.settled().await;
    assert_eq!(state(&knowing.gateway), ServerState::Asleep);
    assert_eq!(knowing.gateway.status().upstreams[0].catalog, Some("cached"));
    assert_eq!(listed(&knowing.gateway).await["_meta"], json!({"bridgehead/cached": true}));
    assert!(knowing.gateway.instructions().unwrap().contains("Use it."));
    assert!(knowing.gateway.status().upstreams[0].last_init.is_none(), "the server was not started");
    let mut changes = knowing.gateway.catalog_changes();
    let before = *changes.borrow_and_update();
    let pid = knowing.call_as(&Session::new(), MODERN, "pid").await.unwrap();
    until(|| knowing.gateway.status().upstreams[0].catalog == Some("live")).await;
    changes.changed().await.unwrap();
    assert_eq!(*changes.borrow_and_update(), before + 1);
    assert!(listed(&knowing.gateway).await["_meta"].is_null());
    assert!(lives(&pid), "a lazy server in use stays");
    knowing.end().await;
    learning.end().await;
}

/// An unusable cached list counts as none. SRV-5: mode `test` caches nothing.
#[tokio::test]
async fn kept_lists_that_are_not_usable() {
    let home = tempfile::tempdir().unwrap();
    let fixture = Fixture::start(&[("m", mock())], at(home.path()));
    asleep(&fixture.gateway).await;
    fixture.gateway.stop().await;
    for text in ["{\"format\":99}", "not json"] {
        let file = kept(home.path()).remove(0);
        std::fs::write(&file, text).unwrap();
        fixture.gateway.start();
        asleep(&fixture.gateway).await;
        assert!(fixture.gateway.status().upstreams[0].last_init.is_some(), "the server was started");
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"pid\""), "the list is cached again");
        fixture.gateway.stop().await;
    }
    fixture.end().await;

    let home = tempfile::tempdir().unwrap();
    let fixture = Fixture::start(&[("m", mock())], |options| {
        at(home.path())(options);
        options.settings.mode = Mode::Test;
    });
    asleep(&fixture.gateway).await;
    assert!(kept(home.path()).is_empty());
    fixture.end().await;
}

/// A lazy server that fails to start for a call fails like any other, and its tools leave the lists.
#[tokio::test]
async fn a_lazy_server_that_does_not_start() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("server");
    let fixture = Fixture::start(&[("m", mock())], |options| {
        at(home.path())(options);
        options.servers[0].restart = false;
        let Launch::Stdio(stdio) = &mut options.servers[0].launch else { unreachable!() };
        std::os::unix::fs::symlink(&stdio.command, &program).unwrap();
        stdio.command = program.to_str().unwrap().to_owned();
    });
    asleep(&fixture.gateway).await;
    fixture.gateway.stop().await;
    std::fs::remove_file(&program).unwrap();
    fixture.gateway.start();
    fixture.settled().await;
    assert_eq!(fixture.gateway.status().upstreams[0].catalog, Some("cached"));
    let error = fixture.call("pid", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "mcp_restart_failed", "{error}");
    until(|| fixture.gateway.list_tools().len() == 2).await;
    fixture.end().await;
}

/// POOL-10: a timed-out call restarts the process of its session, and so does `cancel_tool` with reason timeout. A
/// shared process, or another reason, causes no restart. POOL-13: the message is the tool's.
#[tokio::test]
async fn a_process_of_a_session_that_hangs_is_restarted() {
    let mock = mock().tool("hang", Behaviour::Hang);
    let brief =
        |options: &mut Options| options.servers[0].request_timeout = Some(Duration::from_millis(1_500));
    let fixture = Fixture::start(&[("m", mock.clone())], |options| {
        own(options);
        brief(options);
    });
    let session = Session::new();
    let first = fixture.call_as(&session, LEGACY, "pid").await.unwrap();
    let cancel = |tool, reason| fixture.gateway.cancel_tool(&session, tool, reason);
    assert!(!cancel("pid", CancelReason::Client) && !cancel("none", CancelReason::Timeout));
    assert!(!fixture.gateway.cancel_tool(&Session::new(), "pid", CancelReason::Timeout));
    assert!(cancel("pid", CancelReason::Timeout));
    until(|| !lives(&first)).await;
    let second = fixture.call_as(&session, LEGACY, "pid").await.unwrap();
    let began = tokio::time::Instant::now();
    let error = fixture.call_as(&session, LEGACY, "hang").await.unwrap_err();
    let message = error["message"].as_str().unwrap();
    assert!(message.ends_with("(tool failed: timeout)"), "{message}");
    let data = &error["data"];
    assert_eq!(data["code"], "PROVIDER_TIMEOUT");
    assert_eq!((&data["retryable"], &data["mayHaveRun"]), (&json!(true), &json!(true)), "{error}");
    assert!(
        began.elapsed() >= Duration::from_millis(1_500),
        "the call had its full time: {:?}",
        began.elapsed()
    );
    until(|| !lives(&second)).await;
    assert!(fixture.call_as(&session, LEGACY, "pid").await.is_ok());
    fixture.end().await;

    let shared = Fixture::start(&[("m", mock)], brief);
    let first = shared.call_as(&session, LEGACY, "pid").await.unwrap();
    let error = shared.call_as(&session, LEGACY, "hang").await.unwrap_err();
    assert!(error["message"].as_str().unwrap().ends_with("(tool failed: timeout)"));
    assert!(!shared.gateway.cancel_tool(&session, "pid", CancelReason::Timeout));
    assert_eq!(shared.call_as(&session, LEGACY, "pid").await.unwrap(), first);
    shared.end().await;
}

/// POOL-5: a shared server is probed after a call that timed out, and at no other time here.
#[tokio::test]
async fn a_shared_server_is_probed_after_a_timed_out_call() {
    let mock = mock().tool("hang", Behaviour::HangUntilCancelled);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(500));
        options.servers[0].probe_interval = Duration::from_secs(3_600);
    });
    fixture.gateway.settled().await;
    let filter = Filter { topics: vec!["provider.mcp.probe".to_owned()], server: None };
    let mut probes = fixture.gateway.events().subscribe_to(filter, 8);
    let error = fixture.call("hang", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_TIMEOUT", "{error}");
    let probed = tokio::time::timeout(Duration::from_secs(60), probes.next()).await;
    let Some(Delivery::Event(probed)) = probed.expect("it is probed") else { panic!("no event") };
    assert_eq!(json!(*probed)["ok"], true);
    fixture.end().await;
}

/// POOL-5: a server that turned a call away is probed at once.
#[tokio::test]
async fn a_server_that_turned_a_call_away_is_probed() {
    let peer = Peer::start(|asked| {
        let body = asked.json();
        let answer = |result: Value| json_reply(&json!({"jsonrpc": "2.0", "id": body["id"], "result": result}));
        match asked.rpc().as_str() {
            "initialize" => answer(json!({
                "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "p", "version": "1"},
            })),
            "tools/list" => answer(json!({"tools": [{"name": "barred", "inputSchema": {"type": "object"}}]})),
            "ping" => answer(json!({})),
            "tools/call" => reply("403 Forbidden", &[], ""),
            _ => reply("202 Accepted", &[], ""),
        }
    })
    .await;
    let fixture = Fixture::start(&[], |options| options.servers.push(support::at("p", &peer.url("/mcp"))));
    fixture.gateway.settled().await;
    let before = peer.asked_for("ping").len();
    let error = fixture.call_as(&Session::new(), LEGACY, "barred").await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_UNAVAILABLE", "{error}");
    peer.until("a probe after the refusal", |peer| peer.asked_for("ping").len() > before).await;
    fixture.end().await;
}

/// POOL-10: `cancel_tool` reaches the process that runs the session's call: a shared server gets a cancellation, a
/// process of the call's own is killed. Calls of other sessions and of other tools continue.
#[tokio::test]
async fn a_call_is_given_up_whoever_runs_it() {
    let mock = mock()
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("wait", Behaviour::HangUntilCancelled)
        .tool("report", Behaviour::ReportCancelled);
    for isolation in [Isolation::Shared, Isolation::Call] {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        let pings =
            || std::fs::read_to_string(&said).unwrap_or_default().matches(r#""method":"ping""#).count();
        let mock = mock.clone().transcript(&said);
        let fixture = Fixture::start(&[("m", mock)], |options| options.servers[0].isolation = isolation);
        fixture.settled().await;
        let [mine, theirs] = [Session::new(), Session::new()];
        let call = |session: &Session, tool: &'static str| {
            let (gateway, session) = (fixture.gateway.clone(), session.clone());
            tokio::spawn(async move { call_as(&gateway, &session, LEGACY, tool).await })
        };
        let running = || fixture.gateway.upstreams()[0].in_flight();
        let cancel = |tool, reason| fixture.gateway.cancel_tool(&mine, tool, reason);
        let others = [call(&theirs, "hang"), call(&mine, "wait")];
        until(|| running() == 2).await;
        assert!(
            !cancel("hang", CancelReason::Client),
            "{isolation:?}: a session cannot cancel another session's call"
        );
        for reason in [CancelReason::Client, CancelReason::Timeout] {
            let given_up = call(&mine, "hang");
            until(|| running() == 3).await;
            let before = pings();
            assert!(cancel("hang", reason), "{isolation:?}");
            let error = given_up.await.unwrap().unwrap_err();
            let message = error["message"].as_str().unwrap();
            match reason {
                CancelReason::Client => {
                    assert_eq!(message, "the call of tool `hang` of server `m` was cancelled");
                }
                CancelReason::Timeout => {
                    assert!(message.ends_with("(tool failed: timeout)"), "{message}");
                    let told = ["code", "retryable", "mayHaveRun"].map(|key| error["data"][key].clone());
                    assert_eq!(json!(told), json!(["PROVIDER_TIMEOUT", true, true]), "{error}");
                }
            }
            until(|| running() == 2).await;
            match reason {
                CancelReason::Timeout => until(|| pings() > before).await,
                // A probe would be in the transcript before this later request.
                CancelReason::Client if isolation == Isolation::Shared => {
                    fixture.call_as(&theirs, LEGACY, "report").await.unwrap();
                    assert_eq!(pings(), before, "a server is not probed after a client's cancellation");
                }
                CancelReason::Client => {}
            }
        }
        assert!(!cancel("hang", CancelReason::Client), "{isolation:?}: the call no longer runs");
        if isolation == Isolation::Shared {
            let report = fixture.call_as(&theirs, LEGACY, "report").await.unwrap();
            let report: Value = serde_json::from_str(&report).unwrap();
            assert_eq!(
                report["cancelled"].as_array().unwrap().len(),
                2,
                "the server got the cancellations: {report}"
            );
        }
        assert!(others.iter().all(|other| !other.is_finished()), "{isolation:?}: the other calls continue");
        for other in others {
            other.abort();
            assert!(other.await.unwrap_err().is_cancelled());
        }
        fixture.end().await;
    }
}
