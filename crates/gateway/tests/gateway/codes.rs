//! Every code of the error table, as a client of the gateway gets it.

use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{Queue, Requirement};
use bridgehead_gateway::{NativeTool, ToolFailure};
use bridgehead_testkit::{Behaviour, Crash, Initialize, Mock, Probe, Tool};
use bridgehead_wire::Revision;
use serde_json::{Value, json};

use crate::support::{Fixture, until};

const LEGACY: Revision = Revision::V2025_11_25;

/// Calls a tool with a correlation id that the client chose.
async fn call(fixture: &Fixture, tool: &str, id: &str) -> Result<Value, Value> {
    let params = json!({"name": tool, "arguments": {}, "_meta": {"bridgehead/correlationId": id}});
    match fixture.ask(LEGACY, "tools/call", params).await {
        Ok(result) => Ok(result.decode().unwrap()),
        Err(error) => Err(error.body().decode().unwrap()),
    }
}

/// What the table and the call say about one error.
struct Row {
    tool: &'static str,
    code: &'static str,
    rpc: i64,
    retryable: bool,
    server: Option<&'static str>,
    may_have_run: bool,
}

/// Calls the row's tool and compares the whole error: no member may be missing, and only `details` may be added.
/// Returns `details`.
async fn check(fixture: &Fixture, row: Row) -> Option<Value> {
    let id = CorrelationId::mint().to_string();
    let error = call(fixture, row.tool, &id).await.unwrap_err();
    let mut data = error["data"].clone();
    let details = data.as_object_mut().unwrap().remove("details");
    let expected = json!({
        "source": "gateway",
        "code": row.code,
        "retryable": row.retryable,
        "server": row.server,
        "tool": row.tool,
        "correlationId": id,
        "mayHaveRun": row.may_have_run,
        "hint": format!("`bridgehead explain {}` tells cause and cure", row.code),
    });
    assert_eq!((error["code"].as_i64(), data), (Some(row.rpc), expected), "{error}");
    assert!(error["message"].as_str().is_some_and(|words| !words.is_empty()), "{error}");
    // The record has the same code.
    let exits = fixture.recorder.exits();
    let exit = exits.iter().find(|exit| exit.correlation().to_string() == id).unwrap();
    let told = matches!(exit.outcome(), bridgehead_call::Outcome::Error { code, .. } if code == row.code);
    assert!(told, "{exit:?}");
    details
}

/// ERR-1: what a client gets for each code of a running server, with the complete `data`.
#[tokio::test]
async fn codes_of_servers_that_run() {
    let busy = Mock::legacy().tool("hang", Behaviour::HangUntilCancelled);
    let mock = Mock::legacy()
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("list", Behaviour::raw_result("[]"))
        .tool("die", Behaviour::Crash(Crash::Exit { status: 3 }))
        .tool("echo", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock), ("busy", busy)], |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(1_000));
        options.servers[0].restart = false;
        options.servers[1].queue = Queue { name: None, concurrency: 1, max_waiting: 0 };
    });
    fixture.settled().await;
    let unknown = Row {
        tool: "m__nobody",
        code: "PROVIDER_TOOL_UNKNOWN",
        rpc: -32602,
        retryable: false,
        server: None,
        may_have_run: false,
    };
    check(&fixture, unknown).await;
    let of = |tool, code, retryable, may_have_run| Row {
        tool,
        code,
        rpc: -32603,
        retryable,
        server: Some("m"),
        may_have_run,
    };
    check(&fixture, of("m__hang", "PROVIDER_TIMEOUT", true, true)).await;
    check(&fixture, of("m__list", "PROVIDER_INVALID_OUTPUT", false, true)).await;
    let gateway = fixture.gateway.clone();
    let holding = tokio::spawn(async move {
        let params = json!({"name": "busy__hang", "arguments": {}});
        crate::support::ask(&gateway, LEGACY, "tools/call", params, None).await
    });
    until(|| fixture.gateway.health()["upstreams"][1]["queue"]["running"] == 1).await;
    let full = of("busy__hang", "PROVIDER_UNAVAILABLE", true, false);
    check(&fixture, Row { server: Some("busy"), ..full }).await;
    holding.abort();
    let _ = holding.await;
    check(&fixture, of("m__die", "PROVIDER_CRASHED", true, true)).await;
    until(|| fixture.gateway.health()["upstreams"][0]["state"] == "failed").await;
    check(&fixture, of("m__echo", "mcp_restart_failed", false, false)).await;
    fixture.end().await;
}

/// ERR-1: the same for servers that never started; each error names its server.
#[tokio::test]
async fn codes_of_servers_that_never_came_up() {
    let broken =
        Mock::legacy().on_probe(Probe::Exit { status: 1 }).on_initialize(Initialize::Exit { status: 7 });
    let servers =
        [("old", Mock::legacy().revision("1999-09-09")), ("broken", broken), ("boxed", Mock::legacy())];
    let fixture = Fixture::start(&servers, |options| {
        options.servers[1].request_timeout = Some(Duration::from_millis(300));
        // The server has no memory limit, so this requirement cannot be met.
        options.servers[2].require = vec![Requirement::MemoryHard];
    });
    fixture.settled().await;
    for (server, tool, code, retryable) in [
        ("old", "old__a", "PROVIDER_INIT_FAILED", false),
        ("broken", "broken__a", "mcp_restart_in_progress", true),
        ("boxed", "boxed__a", "SANDBOX_UNAVAILABLE", false),
    ] {
        let row = Row { tool, code, rpc: -32603, retryable, server: Some(server), may_have_run: false };
        let details = check(&fixture, row).await;
        let expected = (server == "boxed").then(|| json!({"reason": "sandbox_setup"}));
        assert_eq!(details, expected, "{server}");
    }
    fixture.end().await;
}

/// ERR-1: the error of a call that cannot be recorded, with the complete `data`.
#[tokio::test]
async fn the_code_of_a_call_that_cannot_be_recorded() {
    let fixture = Fixture::start(&[("m", Mock::legacy().tool("echo", Behaviour::Echo))], |_| ());
    fixture.settled().await;
    fixture.recorder.fail_enter(true);
    let row = Row {
        tool: "echo",
        code: "AUDIT_ENTER_FAILED",
        rpc: -32603,
        retryable: false,
        server: Some("m"),
        may_have_run: false,
    };
    check(&fixture, row).await;
    fixture.end_unpaired().await;
}

/// ERR-1: an error for the model is a result with `isError` whose text is `{ok: false, error}`. The gateway's own tools
/// also return it as structured content; tools of servers do not.
#[tokio::test]
async fn codes_that_a_model_sees() {
    let strict = json!({"type": "object", "required": ["n"]});
    let failing = NativeTool::new("failing", "", json!({"type": "object"}), |_, _| async {
        Err(ToolFailure::new("no"))
    });
    let own = NativeTool::new("own", "", strict.clone(), |_, _| async { Ok(json!(null)) });
    let theirs = Tool::new("theirs", Behaviour::Echo).input_schema(strict);
    let fixture = Fixture::start(&[("m", Mock::legacy().full_tool(theirs))], |options| {
        options.tools.extend([failing, own]);
    });
    fixture.settled().await;
    for (tool, code, is_ours) in [
        ("failing", "HANDLER_ERROR", true),
        ("own", "INVALID_PARAMS", true),
        ("theirs", "INVALID_PARAMS", false),
    ] {
        let id = CorrelationId::mint().to_string();
        let result = call(&fixture, tool, &id).await.unwrap();
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result["_meta"]["bridgehead/correlationId"], id.as_str(), "{result}");
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        let error = &text["error"];
        assert_eq!((&text["ok"], &error["code"]), (&json!(false), &json!(code)), "{text}");
        let hint = format!("`bridgehead explain {code}` tells cause and cure");
        assert_eq!((error["message"].is_string(), &error["details"]["hint"]), (true, &json!(hint)), "{text}");
        assert_eq!(result.get("structuredContent"), is_ours.then_some(&text), "{tool}");
    }
    fixture.end().await;
}
