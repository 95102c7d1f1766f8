//! Replacing the set of servers of a running gateway.

use std::time::Duration;

use bridgehead_config::{ServerConfig, ToolFilter};
use bridgehead_gateway::{Gateway, ReloadReport, Session};
use bridgehead_testkit::{Behaviour, LeakCheck, Mock};
use bridgehead_wire::Revision;

use crate::support::{Fixture, call_as, server, until};

const LEGACY: Revision = Revision::V2025_11_25;

fn mock(which: &str) -> Mock {
    let slow = Behaviour::Delay { ms: 600, then: Box::new(Behaviour::ProcessId) };
    Mock::legacy().variable("WHICH", which).tool("pid", Behaviour::ProcessId).tool("slow", slow)
}

fn names(servers: &[&str]) -> Vec<bridgehead_config::ServerName> {
    servers.iter().map(|name| name.parse().unwrap()).collect()
}

fn configured(gateway: &Gateway) -> Vec<ServerConfig> {
    gateway.upstreams().iter().map(|upstream| upstream.config().clone()).collect()
}

async fn call(gateway: &Gateway, tool: &str) -> Result<String, String> {
    let answer = call_as(gateway, &Session::new(), LEGACY, tool).await;
    answer.map_err(|error| error["data"]["code"].as_str().unwrap_or_default().to_owned())
}

/// POOL-11: a reload touches only the servers that changed. Calls in flight elsewhere continue, lists follow the new
/// order, clients are notified once, and tools of a removed server say that they are gone.
#[tokio::test]
async fn only_what_changed_is_touched() {
    let all = [("a", mock("a")), ("b", mock("b")), ("c", mock("c")), ("d", mock("d"))];
    let fixture = Fixture::start(&all, |_| ());
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let old = configured(gateway);
    let mut before = Vec::new();
    for tool in ["a__pid", "b__pid", "c__pid"] {
        before.push(call(gateway, tool).await.unwrap());
    }
    let leaks = LeakCheck::start();
    let mut changed = old[1].clone();
    changed.filter = ToolFilter::new(["*"], ["slow"]).unwrap();
    let replaced = server("c", &mock("other"), &leaks);
    let added = server("e", &mock("e"), &leaks);
    let mut changes = gateway.catalog_changes();
    let tick = *changes.borrow_and_update();
    let in_flight = tokio::spawn({
        let gateway = gateway.clone();
        async move { call(&gateway, "a__slow").await }
    });
    let interrupted = tokio::spawn({
        let gateway = gateway.clone();
        async move { call(&gateway, "d__slow").await }
    });
    bridgehead_testkit::until("the start of the fifth call", || fixture.recorder.enters().len() >= 5).await;
    let report = gateway.reload(vec![added, replaced, changed, old[0].clone()]).await;
    assert_eq!(
        report,
        ReloadReport {
            added: names(&["e"]),
            removed: names(&["d"]),
            restarted: names(&["c"]),
            changed: names(&["b"]),
            unchanged: names(&["a"]),
        }
    );
    assert!(!report.is_empty());
    assert_eq!(*changes.borrow_and_update(), tick + 1, "clients are notified once");
    assert!(interrupted.await.unwrap().is_ok(), "a call in flight on a removed server may end");
    assert_eq!(in_flight.await.unwrap().unwrap(), before[0]);
    assert_eq!(call(gateway, "a__pid").await.unwrap(), before[0]);
    assert_eq!(call(gateway, "b__pid").await.unwrap(), before[1], "other settings, the same process");
    assert_ne!(call(gateway, "c__pid").await.unwrap(), before[2]);
    assert!(call(gateway, "e__pid").await.is_ok());
    assert_eq!(call(gateway, "d__pid").await.unwrap_err(), "mcp_restart_failed");
    assert_eq!(call(gateway, "b__slow").await.unwrap_err(), "PROVIDER_TOOL_UNKNOWN");
    let listed = fixture.names().await;
    assert_eq!(listed[..7], ["e__pid", "e__slow", "c__pid", "c__slow", "b__pid", "a__pid", "a__slow"]);

    let same = gateway.reload(configured(gateway)).await;
    assert!(same.is_empty() && same.unchanged.len() == 4);
    assert!(!changes.has_changed().unwrap());

    let mut back = configured(gateway);
    back.push(old[3].clone());
    assert_eq!(gateway.reload(back).await.added, names(&["d"]));
    assert!(call(gateway, "d__pid").await.is_ok());
    fixture.end().await;
    leaks.assert_clean().await;
}

/// A server that does not start delays neither the others nor, for long, the answer.
#[tokio::test]
async fn a_server_that_does_not_come_up() {
    let fixture = Fixture::start(&[("a", mock("a"))], |options| {
        options.settings.list_wait = Duration::from_millis(300);
    });
    fixture.settled().await;
    let mut servers = configured(&fixture.gateway);
    let mut silent = server("b", &mock("b").list_delay_ms(120_000), &LeakCheck::start());
    silent.restart = false;
    servers.push(silent);
    let began = std::time::Instant::now();
    fixture.gateway.reload(servers).await;
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(call(&fixture.gateway, "a__pid").await.is_ok());
    fixture.end().await;
}

/// JOIN-5: the start of a new server can be watched before it is in effect: the status has it, with what it writes to standard
/// error, and its record can be read.
#[tokio::test]
async fn a_new_server_is_seen_before_it_takes_effect() {
    let fixture = Fixture::start(&[("a", mock("a"))], |options| {
        options.settings.list_wait = Duration::from_secs(600);
    });
    fixture.settled().await;
    let mut servers = configured(&fixture.gateway);
    let leaks = LeakCheck::start();
    servers.push(server("b", &mock("b").stderr("fetching").list_delay_ms(3_600_000), &leaks));
    let reload = tokio::spawn({
        let gateway = fixture.gateway.clone();
        async move { gateway.reload(servers).await }
    });
    let arriving = || fixture.gateway.status().arriving;
    until(|| arriving().first().is_some_and(|server| server.stderr == ["fetching"])).await;
    let status = fixture.gateway.status();
    assert_eq!((status.arriving[0].name.as_str(), status.arriving[0].state.as_str()), ("b", "starting"));
    assert_eq!(status.upstreams.len(), 1, "it has no effect yet");
    assert!(fixture.gateway.record("b").is_some());
    assert!(fixture.gateway.health()["arriving"].is_array());
    fixture.gateway.stop().await;
    reload.await.unwrap();
    assert!(arriving().is_empty() && fixture.gateway.record("b").is_none());
    assert!(fixture.gateway.health().get("arriving").is_none());
    fixture.end().await;
    leaks.assert_clean().await;
}

/// POOL-12: a gateway stopped during or before a reload uses the new servers at its next start.
#[tokio::test]
async fn a_stop_ends_a_reload() {
    let fixture = Fixture::start(&[("a", mock("a"))], |_| ());
    fixture.settled().await;
    let mut servers = configured(&fixture.gateway);
    let leaks = LeakCheck::start();
    let folder = tempfile::tempdir().unwrap();
    let heard = folder.path().join("heard");
    servers.push(server("b", &mock("b").list_delay_ms(120_000).transcript(&heard), &leaks));
    let reload = tokio::spawn({
        let (gateway, servers) = (fixture.gateway.clone(), servers.clone());
        async move { gateway.reload(servers).await }
    });
    until(|| heard.exists()).await;
    let began = std::time::Instant::now();
    fixture.gateway.stop().await;
    assert!(began.elapsed() < Duration::from_secs(60));
    reload.await.unwrap();
    leaks.assert_clean().await;
    let leaks = LeakCheck::start();
    servers[1] = server("b", &mock("b"), &leaks);
    assert!(fixture.gateway.reload(servers).await.is_empty(), "no running server could change");
    fixture.gateway.start();
    assert!(call(&fixture.gateway, "b__pid").await.is_ok());
    assert!(call(&fixture.gateway, "a__pid").await.is_ok());
    fixture.end().await;
    leaks.assert_clean().await;
}

/// POOL-11: the tools of a removed server say so until a server of that name returns, whatever else is configured
/// meanwhile. Then that server decides.
#[tokio::test]
async fn what_is_gone_is_remembered_until_its_server_is_back() {
    let fixture = Fixture::start(&[("a", mock("a")), ("b", mock("b"))], |_| ());
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let [a, b] = configured(gateway).try_into().unwrap();
    let leaks = LeakCheck::start();
    assert_eq!(gateway.reload(vec![a.clone()]).await.removed, names(&["b"]));
    assert_eq!(call(gateway, "b__pid").await.unwrap_err(), "mcp_restart_failed");
    let c = server("c", &mock("c"), &leaks);
    assert_eq!(gateway.reload(vec![a.clone(), c.clone()]).await.added, names(&["c"]));
    assert_eq!(call(gateway, "b__pid").await.unwrap_err(), "mcp_restart_failed", "still gone");
    let back = ServerConfig { filter: ToolFilter::new(["*"], ["slow"]).unwrap(), ..b };
    assert_eq!(gateway.reload(vec![a, c, back]).await.added, names(&["b"]));
    assert!(call(gateway, "b__pid").await.is_ok());
    assert_eq!(call(gateway, "b__slow").await.unwrap_err(), "PROVIDER_TOOL_UNKNOWN", "its server is back");
    fixture.end().await;
    leaks.assert_clean().await;
}
