//! What is offered, under which names, and when.

use std::time::Duration;

use crate::support::Fixture;
use bridgehead_config::{Mode, Prefix, Retry, ToolFilter};
use bridgehead_testkit::{Behaviour, Mock, Probe, Tool};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::V2026_07_28;

fn mock(tools: &[&str]) -> Mock {
    tools.iter().fold(Mock::legacy(), |mock, tool| mock.tool(*tool, Behaviour::Echo))
}

/// CAT-3: one server keeps its names, several are prefixed; order is that of configuration and server.
#[tokio::test]
async fn names_and_order() {
    let one = Fixture::start(&[("files", mock(&["b", "a", "server_ping"]))], |_| ());
    assert_eq!(one.names().await, ["b", "a", "files__server_ping", "server_ping", "server_health"]);
    one.call("b", json!({})).await.unwrap();
    one.call("files__server_ping", json!({"x": 1})).await.unwrap();
    one.end().await;
    let two =
        Fixture::start(&[("z", mock(&["a"])), ("y", Mock::modern().tool("a", Behaviour::Echo))], |_| ());
    assert_eq!(two.names().await, ["z__a", "y__a", "server_ping", "server_health"]);
    two.call("z__a", json!({})).await.unwrap();
    two.call("y__a", json!({})).await.unwrap();
    let unknown = two.call("a", json!({})).await.unwrap_err();
    assert_eq!(
        (unknown["code"].as_i64(), unknown["data"]["code"].as_str()),
        (Some(-32602), Some("PROVIDER_TOOL_UNKNOWN"))
    );
    two.end().await;
}

/// CAT-3: colliding and overlong names get a short form that works and is reported.
#[tokio::test]
async fn short_forms_work() {
    let long = "t".repeat(80);
    let servers = [("z", mock(&["a", &long])), ("y", mock(&["a"]))];
    let fixture = Fixture::start(&servers, |options| options.settings.prefix = Prefix::Never);
    let names = fixture.names().await;
    assert!(names[0].starts_with("a_") && names[2].starts_with("a_") && names[0] != names[2], "{names:?}");
    assert_eq!(names[1].len(), 64);
    for name in &names[..3] {
        fixture.call(name, json!({})).await.unwrap();
    }
    assert_eq!(fixture.gateway.renamed().len(), 3);
    fixture.end().await;
}

/// SRV-5: `readonly` hides and counts what is not annotated read-only; a call names tool and mode;
/// `minimal` starts no server.
#[tokio::test]
async fn modes_hide_tools() {
    let reader = Tool::new("read", Behaviour::Echo).annotations(json!({"readOnlyHint": true}));
    let servers = [("m", Mock::legacy().full_tool(reader).tool("write", Behaviour::Echo))];
    let readonly = Fixture::start(&servers, |options| options.settings.mode = Mode::Readonly);
    assert_eq!(readonly.names().await, ["read", "server_ping", "server_health"]);
    readonly.call("read", json!({})).await.unwrap();
    let error = readonly.call("write", json!({})).await.unwrap_err();
    assert_eq!(error["message"], "tool `write` is not available in mode `readonly`");
    assert_eq!(readonly.gateway.health()["counters"]["toolsHiddenByMode"], 1);
    readonly.end().await;
    let minimal = Fixture::start(&servers, |options| options.settings.mode = Mode::Minimal);
    assert_eq!(minimal.names().await, ["server_ping", "server_health"]);
    assert!(minimal.gateway.upstreams().is_empty());
    minimal.end().await;
}

/// SRV-3: the first list waits for servers that are starting, then answers with what is there and `ttlMs`
/// 0; what comes later is announced.
#[tokio::test]
async fn lists_wait_a_while_and_changes_are_announced() {
    let servers = [("quick", mock(&["a"])), ("slow", mock(&["b"]).list_delay_ms(1_000))];
    let fixture = Fixture::start(&servers, |options| options.settings.list_wait = Duration::from_millis(500));
    let mut changes = fixture.gateway.catalog_changes();
    let early: Value = fixture.ask(MODERN, "tools/list", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(
        (early["tools"].as_array().unwrap().len(), early["ttlMs"].as_u64()),
        (3, Some(0)),
        "quick, and our own"
    );
    changes.mark_unchanged();
    fixture.gateway.settled().await;
    changes.changed().await.unwrap();
    let late: Value = fixture.ask(MODERN, "tools/list", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(late["tools"].as_array().unwrap().len(), 4);
    assert!(late["ttlMs"].as_u64().unwrap() > 0);
    fixture.end().await;
}

/// A call for a tool whose server is still starting waits for it, too.
#[tokio::test]
async fn a_call_waits_for_its_server() {
    let fixture = Fixture::start(&[("slow", mock(&["b"]).list_delay_ms(300))], |_| ());
    fixture.call("b", json!({})).await.unwrap();
    fixture.end().await;
}

/// One broken server never stops the others, and says why in the health report.
#[tokio::test]
async fn a_broken_server_does_not_hurt_the_others() {
    let broken = Mock::legacy()
        .on_probe(Probe::Exit { status: 1 })
        .on_initialize(bridgehead_testkit::Initialize::Exit { status: 7 });
    let fixture = Fixture::start(&[("broken", broken), ("good", mock(&["a"]))], |_| ());
    assert_eq!(fixture.names().await, ["good__a", "server_ping", "server_health"]);
    let health = fixture.gateway.health();
    assert_eq!(health["upstreams"][0]["state"], "restarting");
    assert!(health["upstreams"][0]["reason"].as_str().unwrap().contains("exit status 7"), "{health}");
    assert_eq!(health["upstreams"][1]["state"], "ready");
    let error = fixture.call("broken__a", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_INIT_FAILED");
    assert!(error["message"].as_str().unwrap().contains("exit status 7"), "{error}");
    fixture.end().await;
}

fn dying() -> Mock {
    mock(&["a"]).tool("die", Behaviour::Crash(bridgehead_testkit::Crash::Exit { status: 3 }))
}

/// A server that is lost comes back; the call that lost it says that it may have run and is not repeated,
/// later ones wait for the restart, and the list stays as it was.
#[tokio::test]
async fn a_lost_server_comes_back() {
    let fixture = Fixture::start(&[("m", dying())], |_| ());
    fixture.gateway.settled().await;
    let names = fixture.names().await;
    let error = fixture.call("die", json!({})).await.unwrap_err();
    assert_eq!(
        (error["data"]["code"].as_str(), error["data"]["mayHaveRun"].as_bool()),
        (Some("PROVIDER_CRASHED"), Some(true))
    );
    assert!(error["message"].as_str().unwrap().contains("exit status 3"));
    assert_eq!(fixture.names().await, names);
    fixture.call("a", json!({})).await.unwrap();
    assert_eq!(fixture.gateway.health()["upstreams"][0]["restarts"], 1);
    fixture.end().await;
}

/// BRG-6: under `safe` a call is repeated where the tool is annotated read-only, under `never` it is not.
#[tokio::test]
async fn safe_calls_are_sent_again() {
    let once = std::env::temp_dir().join(format!("bridgehead-once-{}", std::process::id()));
    for (retry, annotations, repeated) in [
        (Retry::Safe, json!({"readOnlyHint": true}), true),
        (Retry::Safe, json!({"idempotentHint": true}), true),
        (Retry::Safe, json!({}), false),
        (Retry::Always, json!({}), true),
        (Retry::Never, json!({"readOnlyHint": true}), false),
    ] {
        let _ = std::fs::remove_file(&once);
        let tool =
            Tool::new("once", Behaviour::CrashOnce { marker: once.clone() }).annotations(annotations.clone());
        let fixture = Fixture::start(&[("m", Mock::legacy().full_tool(tool))], |options| {
            options.servers[0].retry = retry;
        });
        fixture.gateway.settled().await;
        let outcome = fixture.call("once", json!({})).await;
        assert_eq!(outcome.is_ok(), repeated, "{retry:?} {annotations} {outcome:?}");
        fixture.end().await;
    }
    let _ = std::fs::remove_file(&once);
}

/// POOL-11: with restart off, a tool of a server that was lost is no longer listed, and a call says so.
#[tokio::test]
async fn a_server_that_is_not_restarted_is_named() {
    let fixture = Fixture::start(&[("m", dying())], |options| options.servers[0].restart = false);
    fixture.gateway.settled().await;
    let mut changes = fixture.gateway.catalog_changes();
    fixture.call("die", json!({})).await.unwrap_err();
    changes.changed().await.unwrap();
    assert_eq!(fixture.names().await, ["server_ping", "server_health"]);
    let error = fixture.call("a", json!({})).await.unwrap_err();
    assert_eq!(
        (error["data"]["code"].as_str(), error["data"]["mayHaveRun"].as_bool()),
        (Some("mcp_restart_failed"), Some(false))
    );
    fixture.end().await;
}

/// CAT-4: what a filter does not admit is neither listed nor callable.
#[tokio::test]
async fn filters_hide_tools() {
    let fixture = Fixture::start(&[("m", mock(&["read", "write"]))], |options| {
        options.servers[0].filter = ToolFilter::new(["*"], ["W*"]).unwrap();
    });
    assert_eq!(fixture.names().await, ["read", "server_ping", "server_health"]);
    assert_eq!(fixture.call("write", json!({})).await.unwrap_err()["code"], -32602);
    fixture.end().await;
}

#[tokio::test]
async fn the_lists_of_both_eras_and_bad_cursors() {
    let fixture = Fixture::start(&[("m", mock(&["a"]))], |_| ());
    let legacy: Value = fixture.ask(LEGACY, "tools/list", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(legacy.as_object().unwrap().len(), 1, "nothing modern for a legacy client");
    let modern: Value = fixture.ask(MODERN, "tools/list", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(
        (modern["resultType"].as_str(), modern["cacheScope"].as_str()),
        (Some("complete"), Some("private"))
    );
    let error = fixture.ask(MODERN, "tools/list", json!({"cursor": "x"})).await.unwrap_err();
    assert_eq!(error.code(), -32602);
    let error = fixture.ask(LEGACY, "server/discover", json!({})).await.unwrap_err();
    assert_eq!(error.code(), -32601);
    let discover: Value = fixture.ask(MODERN, "server/discover", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(discover["supportedVersions"], json!(["2026-07-28"]));
    fixture.end().await;
}

/// An upstream's own errors pass with their code and data; two that are about our own hop do not.
#[tokio::test]
async fn errors_of_a_server_pass() {
    let raw = |code: i64| {
        Behaviour::Error(bridgehead_testkit::RpcError {
            code,
            message: "theirs".to_owned(),
            data: Some(json!({"k": 1}).into()),
        })
    };
    let servers =
        [("m", Mock::legacy().tool("own", raw(1234)).tool("hop", raw(-32020)).tool("lacks", raw(-32021)))];
    let fixture = Fixture::start(&servers, |_| ());
    let error = fixture.call("own", json!({})).await.unwrap_err();
    assert_eq!(error, json!({"code": 1234, "message": "theirs", "data": {"k": 1}}));
    let error = fixture.call("hop", json!({})).await.unwrap_err();
    assert_eq!(
        (error["code"].as_i64(), error["data"]["code"].as_str()),
        (Some(-32603), Some("PROVIDER_UNAVAILABLE"))
    );
    let error = fixture.call("lacks", json!({})).await.unwrap_err();
    assert_eq!(
        error,
        json!({"code": -32602, "message": "theirs", "data": {"k": 1}}),
        "legacy clients do not know -32021"
    );
    let params = json!({"name": "lacks", "arguments": {}});
    assert_eq!(fixture.ask(MODERN, "tools/call", params).await.unwrap_err().code(), -32021);
    fixture.end().await;
}
