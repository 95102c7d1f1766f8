//! The provider adapter: the same twelve scenarios over every transport, then single calls and outages.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed assumption is a failed test")]

mod budget;
mod calls;
mod life;
mod outage;
mod world;

use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{Isolation, Limits};
use bridgehead_events::{Counter, Detail};
use bridgehead_testkit::{Behaviour, Crash, Mock};
use bridgehead_upstream::provider::{Health, Invocation, ProviderAdapter, ProviderConfig};
use bridgehead_wire::{Code, Fault};
use serde_json::{Value, json};

use world::{Way, World, mock};

async fn connect_and_discover(way: Way) {
    let world = World::init(way).await;
    assert_eq!(world.provider.health(), Health::Healthy);
    assert_eq!(format!("{:?}", world.provider), "McpProvider { health: Healthy, .. }");
    let names: Vec<String> = world.provider.tools().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["far__echo", "far__hang", "far__die"]);
    let schema =
        |name: &str| world.provider.tool_schema(name).map(|schema| schema.decode::<Value>().unwrap());
    assert_eq!(schema("far__echo").unwrap()["properties"], json!({"n": {"type": "integer"}}));
    for unknown in ["echo", "far__", "far__nobody", "other__echo"] {
        assert_eq!(schema(unknown), None, "{unknown}");
    }
    world.end().await;
}

async fn version_mismatch(way: Way) {
    let world = World::new(way, Mock::legacy().revision("1999-01-01").tool("echo", Behaviour::Echo));
    let error = world.provider.init(world.config()).await.unwrap_err();
    assert_eq!((error.code, error.retryable()), (Code::ProviderInitFailed, false), "{error}");
    assert!(error.message.contains("1999-01-01") && error.message.contains("2025-11-25"), "{error}");
    assert_eq!(world.provider.health(), Health::Unavailable);
    world.end().await;
}

async fn success(way: Way) {
    let world = World::init(way).await;
    let invocation = Invocation::new("far__echo", json!({"n": 1}));
    let correlation = CorrelationId::mint();
    let executed = world.provider.execute(&invocation, correlation).await.unwrap();
    assert_eq!((executed.tool.as_str(), executed.correlation), ("far__echo", correlation));
    assert!(executed.result.as_str().contains(r#"\"n\":1"#), "{:?}", executed.result);
    assert!(executed.duration > Duration::ZERO);
    let flat = json!(executed.flat());
    assert_eq!(
        (&flat["ok"], &flat["kind"], &flat["namespace"]),
        (&json!(true), &json!("mcp"), &json!("far"))
    );
    assert!(flat["result"].as_str().unwrap().contains(r#""n":1"#), "{flat}");
    assert_eq!(executed.envelope().meta.correlation_id, correlation.to_string());
    world.end().await;
}

async fn timeout(way: Way) {
    let world = World::init(way).await;
    let timeout = Some(Duration::from_millis(80));
    let invocation = Invocation::new("far__hang", json!({})).timeout(timeout);
    let error = world.provider.execute(&invocation, CorrelationId::mint()).await.unwrap_err();
    assert_eq!((error.code, error.retryable()), (Code::ProviderTimeout, true), "{error}");
    assert!(error.message.contains("(tool failed: timeout)"), "{error}");
    assert!(world.run("echo", json!({})).await.is_ok(), "other calls continue");
    world.end().await;
}

async fn crash(way: Way) {
    let world = World::init(way).await;
    let error = world.run("die", json!({})).await.unwrap_err();
    assert_eq!((error.code, error.retryable()), (Code::ProviderCrashed, true), "{error}");
    world.end().await;
}

async fn unknown_tool(way: Way) {
    let world = World::init(way).await;
    for tool in ["nobody", "", "echo__"] {
        let error = world.run(tool, json!({})).await.unwrap_err();
        assert_eq!((error.code, error.retryable()), (Code::ProviderToolUnknown, false), "{error}");
    }
    world.end().await;
}

async fn invalid_input(way: Way) {
    let world = World::init(way).await;
    let error = world.run("echo", json!({"n": "many"})).await.unwrap_err();
    assert_eq!((error.code, error.retryable()), (Code::ProviderInvalidInput, false), "{error}");
    assert!(error.message.contains("/n"), "{error}");
    world.end().await;
}

async fn disconnect_degrades(way: Way) {
    let mut world = World::init(way).await;
    world.lose().await;
    world.until(Health::Degraded).await;
    let error = world.run("echo", json!({})).await.unwrap_err();
    assert_eq!((error.code, error.retryable()), (Code::ProviderUnavailable, true), "{error}");
    assert_eq!(world.provider.tools().len(), 3, "its tools are still known");
    assert!(world.provider.tool_schema("far__echo").is_some(), "and so are their schemas");
    world.end().await;
}

async fn reconnect_success(way: Way) {
    let mut world = World::init(way).await;
    world.lose().await;
    world.until(Health::Degraded).await;
    world.told();
    world.peer.restart();
    world.until(Health::Healthy).await;
    assert!(world.run("echo", json!({"n": 2})).await.is_ok());
    let topics: Vec<&str> = world.told().iter().map(|event| event.topic().as_str()).collect();
    let at = |topic: &str| {
        topics.iter().position(|told| *told == topic).unwrap_or_else(|| panic!("{topic}: {topics:?}"))
    };
    assert!(at("provider.mcp.tools.refreshed") < at("provider.mcp.reconnected"), "{topics:?}");
    assert!(at("provider.mcp.reconnected") < at("provider.mcp.tool.completed"), "{topics:?}");
    world.end().await;
}

async fn reconnect_exhausted(way: Way) {
    let mut world = World::new(way, mock());
    let config = world.config().max_retries(2);
    world.provider.init(config.clone()).await.unwrap();
    world.lose().await;
    world.until(Health::Unavailable).await;
    let error = world.run("echo", json!({})).await.unwrap_err();
    assert_eq!(error.code, Code::ProviderUnavailable, "{error}");
    assert_eq!((error.retryable(), error.fault()), (false, Fault::Server), "only `init` helps: {error}");
    assert!(error.message.contains("call `init` again"), "{error}");
    assert!(world.told().iter().any(|event| event.topic().as_str() == "provider.mcp.reconnect.exhausted"));
    world.peer.restart();
    assert_eq!(world.provider.health(), Health::Unavailable, "it does not come back by itself");
    world.provider.init(config).await.unwrap();
    assert!(world.run("echo", json!({})).await.is_ok());
    world.end().await;
}

async fn bus_events(way: Way) {
    let mut world = World::init(way).await;
    let ids = [CorrelationId::mint(), CorrelationId::mint()];
    for (id, tool) in ids.iter().zip(["far__echo", "far__nobody"]) {
        let invocation = Invocation::new(tool, json!({}));
        let _ = world.provider.execute(&invocation, *id).await;
    }
    let told = world.told();
    let of = |fits: fn(&Detail) -> bool| {
        told.iter().find(|event| fits(event.detail())).unwrap_or_else(|| panic!("{told:?}")).correlation()
    };
    assert_eq!(of(|detail| matches!(detail, Detail::Completed { .. })), ids[0]);
    assert_eq!(of(|detail| matches!(detail, Detail::Failed { .. })), ids[1]);
    let started = of(|detail| matches!(detail, Detail::InitStarted));
    assert_eq!(of(|detail| matches!(detail, Detail::InitFinished { .. })), started);
    assert_eq!(of(|detail| matches!(detail, Detail::ToolsDiscovered { .. })), started);
    assert!(told.iter().all(|event| event.server() == Some("far")), "{told:?}");
    let counted = [Counter::Calls, Counter::Failed, Counter::Starts, Counter::Listings];
    assert_eq!(counted.map(|counter| world.provider.signals().metrics().count(counter)), [2, 1, 1, 1]);
    world.end().await;
}

async fn terminate(way: Way) {
    let mut world = World::init(way).await;
    world.provider.terminate().await;
    world.provider.terminate().await;
    assert_eq!(world.provider.health(), Health::Unavailable);
    assert_eq!(world.provider.tools().len(), 0);
    assert!(world.provider.tool_schema("far__echo").is_none());
    let error = world.run("echo", json!({})).await.unwrap_err();
    assert_eq!(error.code, Code::ProviderUnavailable, "{error}");

    let patient = world.config().reconnect_backoff(Duration::from_secs(600));
    world.provider.init(patient).await.unwrap();
    world.lose().await;
    world.until(Health::Degraded).await;
    world.end().await;
}

/// PROV-1, CAT-2, CAT-3: init connects and reads the tools, always under the namespace; a tool's schema is answered
/// from memory.
#[tokio::test]
async fn stdio_connect_and_discover() {
    connect_and_discover(Way::Stdio).await;
}

/// CAT-1: an incompatible revision is `PROVIDER_INIT_FAILED`, with both sides' versions.
#[tokio::test]
async fn stdio_version_mismatch() {
    version_mismatch(Way::Stdio).await;
}

/// PROV-1: a call returns the tool, the result, its duration and the given id.
#[tokio::test]
async fn stdio_success() {
    success(Way::Stdio).await;
}

/// ERR-1: a tool that does not answer in time.
#[tokio::test]
async fn stdio_timeout() {
    timeout(Way::Stdio).await;
}

/// ERR-1: a server that dies during a call.
#[tokio::test]
async fn stdio_crash() {
    crash(Way::Stdio).await;
}

/// ERR-1: a tool that no server offers; names are never split.
#[tokio::test]
async fn stdio_unknown_tool() {
    unknown_tool(Way::Stdio).await;
}

/// PROV-4: arguments are checked before anything is sent.
#[tokio::test]
async fn stdio_invalid_input() {
    invalid_input(Way::Stdio).await;
}

/// PROV-2, PROV-3: without its server the provider is degraded, and a call is refused at once as retryable.
#[tokio::test]
async fn stdio_disconnect_degrades() {
    disconnect_degrades(Way::Stdio).await;
}

/// PROV-2: a reconnect reads the catalog again and reports it: first the tools, then that the server is back.
#[tokio::test]
async fn stdio_reconnect_success() {
    reconnect_success(Way::Stdio).await;
}

/// PROV-2: after the last attempt the provider gives up; only a new init leaves that state.
#[tokio::test]
async fn stdio_reconnect_exhausted() {
    reconnect_exhausted(Way::Stdio).await;
}

/// BUS-2: a call's outcome carries the call's id; all events of one initialisation share their own id.
#[tokio::test]
async fn stdio_bus_events() {
    bus_events(Way::Stdio).await;
}

/// PROV-5: terminate ends everything, also during a reconnect, and may be repeated.
#[tokio::test]
async fn stdio_terminate() {
    terminate(Way::Stdio).await;
}

/// The same over every other transport.
macro_rules! scenarios {
    ($($test:ident: $scenario:ident over $way:ident;)*) => {
        $(#[tokio::test]
        async fn $test() {
            $scenario(Way::$way).await;
        })*
    };
}

scenarios! {
    http_connect_and_discover: connect_and_discover over Http;
    http_version_mismatch: version_mismatch over Http;
    http_success: success over Http;
    http_timeout: timeout over Http;
    http_crash: crash over Http;
    http_unknown_tool: unknown_tool over Http;
    http_invalid_input: invalid_input over Http;
    http_disconnect_degrades: disconnect_degrades over Http;
    http_reconnect_success: reconnect_success over Http;
    http_reconnect_exhausted: reconnect_exhausted over Http;
    http_bus_events: bus_events over Http;
    http_terminate: terminate over Http;
    sse_connect_and_discover: connect_and_discover over Sse;
    sse_version_mismatch: version_mismatch over Sse;
    sse_success: success over Sse;
    sse_timeout: timeout over Sse;
    sse_crash: crash over Sse;
    sse_unknown_tool: unknown_tool over Sse;
    sse_invalid_input: invalid_input over Sse;
    sse_disconnect_degrades: disconnect_degrades over Sse;
    sse_reconnect_success: reconnect_success over Sse;
    sse_reconnect_exhausted: reconnect_exhausted over Sse;
    sse_bus_events: bus_events over Sse;
    sse_terminate: terminate over Sse;
    websocket_connect_and_discover: connect_and_discover over WebSocket;
    websocket_version_mismatch: version_mismatch over WebSocket;
    websocket_success: success over WebSocket;
    websocket_timeout: timeout over WebSocket;
    websocket_crash: crash over WebSocket;
    websocket_unknown_tool: unknown_tool over WebSocket;
    websocket_invalid_input: invalid_input over WebSocket;
    websocket_disconnect_degrades: disconnect_degrades over WebSocket;
    websocket_reconnect_success: reconnect_success over WebSocket;
    websocket_reconnect_exhausted: reconnect_exhausted over WebSocket;
    websocket_bus_events: bus_events over WebSocket;
    websocket_terminate: terminate over WebSocket;
}

/// PROV-4, BOX-1, BOX-3, BOX-4: by default every call of a program's tool has its own limited process. A crash or a
/// timeout affects only that call. The result has the tool, the result, the duration and the id.
#[tokio::test]
async fn calls_of_a_program_are_isolated_by_default() {
    let scripted = mock()
        .tool("pid", Behaviour::ProcessId)
        .tool("leave", Behaviour::Crash(Crash::Exit { status: 3 }))
        .tool("stay", Behaviour::Hang)
        .tool("flood", Behaviour::Flood { megabytes: 2 });
    let world = World::new(Way::Stdio, scripted);
    let shared = world.config();
    let isolated = ProviderConfig::new("far".parse().unwrap(), shared.endpoint.clone());
    assert_eq!((isolated.isolation, isolated.limits), (Isolation::Call, Limits::OF_A_CALL));
    let limits = Limits { output: Some(1 << 20), ..isolated.limits };
    world.provider.init(isolated.limits(limits)).await.unwrap();

    let correlation = CorrelationId::mint();
    let pid = || Invocation::new("far__pid", json!({}));
    let first = world.provider.execute(&pid(), correlation).await.unwrap();
    assert_eq!((first.tool.as_str(), first.correlation), ("far__pid", correlation));
    assert!(first.duration > Duration::ZERO);
    let second = world.provider.execute(&pid(), correlation).await.unwrap();
    assert_ne!(first.result.as_str(), second.result.as_str(), "two calls had one process");

    let crash = world.run("leave", json!({})).await.unwrap_err();
    assert_eq!(crash.code, Code::ProviderCrashed, "{crash}");
    assert!(crash.message.contains("exit status 3"), "{crash}");
    let flood = world.run("flood", json!({})).await.unwrap_err();
    assert_eq!(flood.code, Code::ProviderCrashed, "{flood}");
    assert!(flood.message.contains("output_limit"), "{flood}");
    let timeout = Some(Duration::from_millis(300));
    let stay = Invocation::new("far__stay", json!({})).timeout(timeout);
    let late = world.provider.execute(&stay, correlation).await.unwrap_err();
    assert_eq!(late.code, Code::ProviderTimeout, "{late}");
    assert_eq!(world.provider.health(), Health::Healthy, "none of this affects the connection");
    assert!(world.run("pid", json!({})).await.is_ok());

    world.provider.terminate().await;
    let confinement = bridgehead_config::Confinement {
        files: Some(bridgehead_config::FileAccess { read: vec!["/no/such/place".into()], write: Vec::new() }),
        ..Default::default()
    };
    let refused = shared.confinement(confinement);
    let error = world.provider.init(refused).await.unwrap_err();
    assert_eq!(error.code, Code::SandboxUnavailable, "{error}");
    world.end().await;
}

/// PROV-3, PROV-4: a call whose process cannot be started ends at once, before its timeout, with the reason and as
/// retryable.
#[tokio::test]
async fn a_call_whose_program_is_gone_is_unavailable() {
    let mut world = World::new(Way::Stdio, mock());
    let config = world.config().isolation(Isolation::Call).timeout(Duration::from_secs(600));
    world.provider.init(config).await.unwrap();
    world.peer.away();
    // A few processes may already wait for calls.
    let mut outcome = Ok(json!(null));
    for _ in 0..5 {
        outcome = outcome.and(world.run("echo", json!({})).await);
    }
    let error = outcome.unwrap_err();
    assert_eq!((error.code, error.retryable()), (Code::ProviderUnavailable, true), "{error}");
    assert!(
        error.message.starts_with("server `far` has no process for the call: it does not serve"),
        "{error}"
    );
    assert_eq!(world.provider.health(), Health::Healthy, "its own process still runs");
    world.end().await;
}

/// BOX-1: a remote server is isolated by default too. A host program that cannot start itself as a second process gets
/// an error that names what it lacks, and reads nothing from such a server.
#[tokio::test]
async fn a_server_that_is_reached_is_never_called_from_the_host_by_default() {
    let world = World::new(Way::Http, mock());
    let shared = world.config();
    let isolated = ProviderConfig::new("far".parse().unwrap(), shared.endpoint.clone());
    assert_eq!(isolated.isolation, Isolation::Call);
    let error = world.provider.init(isolated).await.unwrap_err();
    assert!(error.message.contains("bridgehead::main_if_asked()"), "{error}");
    world.provider.init(shared).await.unwrap();
    world.end().await;
}
