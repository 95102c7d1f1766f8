//! Requests that other parsers could read differently, and arguments that are costly to check.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::Outcome;
use bridgehead_config::Output;
use bridgehead_gateway::NativeTool;
use bridgehead_testkit::{Behaviour, Mock, Tool};
use bridgehead_wire::{Raw, Revision};
use serde_json::{Value, json};

use crate::support::{Fixture, ask_raw};

/// The code and the data of the error for params given as raw text.
async fn refused(fixture: &Fixture, revision: Revision, method: &str, params: &str) -> (i64, Value) {
    let params = Raw::parse(params.to_owned()).unwrap();
    let error = ask_raw(&fixture.gateway, revision, method, &params, None).await.unwrap_err();
    (error.code(), error.data().map_or(Value::Null, |data| data.decode().unwrap()))
}

/// The paths in the arguments that a call is refused for; empty if it is accepted.
async fn places(fixture: &Fixture, tool: &str, arguments: &str) -> Vec<String> {
    let params = Raw::parse(format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#)).unwrap();
    let revision = Revision::V2025_11_25;
    let result = ask_raw(&fixture.gateway, revision, "tools/call", &params, None).await.unwrap();
    let result: Value = result.decode().unwrap();
    if result["isError"] != true {
        return Vec::new();
    }
    let told: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(told["error"]["code"], "INVALID_PARAMS", "{told}");
    let issues = told["error"]["details"]["issues"].as_array().unwrap();
    issues.iter().map(|issue| issue["path"].as_str().unwrap().to_owned()).collect()
}

fn mock() -> Mock {
    let schema = json!({"type": "object", "properties": {
        "path": {"type": "string"}, "env": {"type": "object"}, "a": {}, "A": {},
    }});
    let pattern = json!({"type": "object", "pattern": "("});
    Mock::legacy()
        .full_tool(Tool::new("safe", Behaviour::Echo).input_schema(schema))
        .full_tool(Tool::new("unchecked", Behaviour::Echo).input_schema(pattern))
        .tool("danger", Behaviour::Echo)
}

/// WIRE-1: params with a member that nearly matches a known one, or with a duplicate, are refused in both eras and for
/// every method. A refused call leaves its pair of audit events.
#[tokio::test]
async fn params_that_readers_disagree_about() {
    let fixture = Fixture::start(&[("m", mock())], |_| ());
    fixture.settled().await;
    let calls = [
        r#"{"name":"safe","Name":"danger"}"#,
        r#"{"Name":"danger","name":"safe","arguments":{}}"#,
        r#"{"name":"safe","name":"danger"}"#,
        r#"{"name":"safe","n\u0061me":"danger"}"#,
        r#"{"name":"safe","argument\u017f":{}}"#,
        r#"{"name":"safe","arguments":{},"ARGUMENTS":{}}"#,
        r#"{"name":"safe","RequestState":"x"}"#,
    ];
    for (revision, era) in [(Revision::V2025_11_25, "legacy"), (Revision::MODERN, "modern")] {
        for params in calls {
            let (code, data) = refused(&fixture, revision, "tools/call", params).await;
            assert_eq!(
                (code, &data["code"], &data["tool"]),
                (-32602, &json!("INVALID_PARAMS"), &json!("safe")),
                "{era} {params}"
            );
        }
    }
    let exits = fixture.recorder.exits();
    assert_eq!((fixture.recorder.enters().len(), exits.len()), (14, 14));
    assert!(fixture.recorder.enters().iter().all(|enter| !enter.validated()));
    assert!(
        exits
            .iter()
            .all(|exit| matches!(exit.outcome(), Outcome::Error { code, .. } if code == "INVALID_PARAMS"))
    );
    for (method, params) in [
        ("tools/list", r#"{"cursor":"a","Cursor":"b"}"#),
        ("prompts/get", r#"{"name":"a","NAME":"b"}"#),
        ("prompts/get", r#"{"name":"a","arguments":{"x":"1","x":"2"}}"#),
        ("resources/read", r#"{"uri":"a","Uri":"b"}"#),
        ("resources/read", r#"{"URI":"b"}"#),
        ("completion/complete", r#"{"ref":{},"Ref":{}}"#),
        ("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"a","Name":"b"}}"#),
        ("logging/setLevel", r#"{"level":"error","Level":"debug"}"#),
    ] {
        assert_eq!(
            refused(&fixture, Revision::V2025_11_25, method, params).await.0,
            -32602,
            "{method} {params}"
        );
    }
    assert_eq!(places(&fixture, "danger", "{}").await, [""; 0], "an unambiguous call is served");
    fixture.end().await;
}

/// WIRE-1: duplicate argument keys, and undeclared keys that resemble a declared one, are refused with their path. Keys
/// of a free-form object are not restricted.
#[tokio::test]
async fn arguments_that_readers_disagree_about() {
    let fixture = Fixture::start(&[("m", mock())], |_| ());
    fixture.settled().await;
    for (tool, arguments, expected) in [
        ("safe", r#"{"path":"x","env":{"http_proxy":"1","HTTP_PROXY":"2"},"a":1,"A":2}"#, None),
        ("safe", r#"{"path":"x","path":"y"}"#, Some("/path")),
        ("safe", r#"{"path":"x","p\u0061th":"y"}"#, Some("/path")),
        ("safe", r#"{"path":"x","env":{"k":[{"a":1,"a":2}]}}"#, Some("/env/k/0/a")),
        ("safe", r#"{"Path":"x"}"#, Some("/Path")),
        ("safe", r#"{"path":"x","PATH":"y"}"#, Some("/PATH")),
        ("unchecked", r#"{"x":1,"X":2}"#, None),
        ("unchecked", r#"{"x":{"y":1,"y":2}}"#, Some("/x/y")),
        ("server_ping", r#"{"x":{"y":1,"y":2}}"#, Some("/x/y")),
    ] {
        let found = places(&fixture, tool, arguments).await;
        assert_eq!(found.first().map(String::as_str), expected, "{tool} {arguments}");
    }
    assert_eq!(fixture.recorder.exits().len(), 9);
    fixture.end().await;
}

fn costly() -> (Mock, impl Fn(usize) -> Value) {
    let values: Vec<f64> = (0..2000).map(|n| f64::from(n) + 0.5).collect();
    let schema = json!({"type": "object", "properties": {"list": {"items": {"enum": values}}}});
    let mock = Mock::legacy()
        .full_tool(Tool::new("costly", Behaviour::Echo).input_schema(schema))
        .tool("echo", Behaviour::Echo);
    (mock, |length| json!({"list": vec![1999.5; length]}))
}

/// BOUND-2: a long check delays no other call, even on a single thread. A check that would take too long is refused
/// with that reason.
#[tokio::test]
async fn large_checks_hold_up_nobody() {
    let (mock, list) = costly();
    let fixture = Arc::new(Fixture::start(&[("m", mock)], |_| ()));
    fixture.settled().await;
    let large = {
        let (fixture, arguments) = (Arc::clone(&fixture), list(20_000));
        tokio::spawn(async move { fixture.call("costly", arguments).await })
    };
    tokio::task::yield_now().await;
    let mut answered = 0;
    while !large.is_finished() {
        fixture.call("echo", json!({})).await.unwrap();
        answered += usize::from(!large.is_finished());
    }
    assert!(answered > 0, "others are served while it is checked");
    assert_ne!(large.await.unwrap().unwrap()["isError"], true);
    let refused = fixture.call("costly", list(300_000)).await.unwrap();
    let told: Value = serde_json::from_str(refused["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(told["error"]["code"], "INVALID_PARAMS");
    let message = told["error"]["details"]["issues"][0]["message"].as_str().unwrap();
    assert!(message.contains("too large to be checked"), "{message}");
    Arc::into_inner(fixture).unwrap().end().await;
}

/// BOUND-2: there are few slots for large checks, and a call waits for one within its own deadlines.
#[tokio::test]
async fn a_place_for_a_large_check_is_not_waited_for_for_ever() {
    let (mock, list) = costly();
    let fixture = Arc::new(Fixture::start(&[("m", mock)], |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(1));
    }));
    fixture.settled().await;
    // Twice the largest number of slots.
    let calls = (0..8).map(|_| {
        let (fixture, arguments) = (Arc::clone(&fixture), list(20_000));
        tokio::spawn(async move { fixture.call("costly", arguments).await })
    });
    let mut refused = 0;
    for call in calls.collect::<Vec<_>>() {
        if let Err(error) = call.await.unwrap()
            && error["message"].as_str().unwrap().contains("had to wait for others")
        {
            let data = &error["data"];
            let told = (&data["code"], &data["retryable"], &data["mayHaveRun"]);
            assert_eq!(told, (&json!("PROVIDER_UNAVAILABLE"), &json!(true), &json!(false)), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 0, "no call had to wait");
    Arc::into_inner(fixture).unwrap().end().await;
}

/// BOUND-2: a large result is also checked on another thread, and its violations are reported like any other.
#[tokio::test]
async fn large_results_are_checked() {
    let values: Vec<f64> = (0..2000).map(|n| f64::from(n) + 0.5).collect();
    let schema = json!({"type": "object", "properties": {"list": {"items": {"enum": values}}}}).to_string();
    let tool = |name: &str, last: f64| {
        let list = [vec![1999.5; 1_000], vec![last]].concat();
        let result = json!({"content": [], "structuredContent": {"list": list}}).to_string();
        Tool::new(name, Behaviour::raw_result(result)).output_schema(schema.as_str())
    };
    let mock = Mock::modern().full_tool(tool("good", 0.5)).full_tool(tool("bad", 0.25));
    let fixture = Fixture::start(&[("m", mock)], |options| options.servers[0].output = Output::Enforce);
    fixture.settled().await;
    fixture.call("good", json!({})).await.unwrap();
    let error = fixture.call("bad", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_INVALID_OUTPUT", "{error}");
    fixture.end().await;
}

/// WIRE-5: a call waits for its turn within its own deadlines, and is then refused as retryable. It still leaves its
/// pair of audit events.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_turn_ends() {
    for (silent, total, expected) in [(300, 4, 4), (2, 600, 2)] {
        let tool = NativeTool::new("hang", "", json!({"type": "object"}), |_, _| std::future::pending());
        let fixture = Arc::new(Fixture::start(&[], |options| {
            options.tools.push(tool);
            options.settings.request_timeout = Duration::from_secs(silent);
            options.settings.max_total = Duration::from_secs(total);
        }));
        let holding = tokio::spawn({
            let fixture = Arc::clone(&fixture);
            async move { fixture.call("hang", json!({})).await }
        });
        while fixture.recorder.enters().is_empty() {
            tokio::task::yield_now().await;
        }
        let began = tokio::time::Instant::now();
        let error = fixture.call("hang", json!({})).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), expected);
        let data = &error["data"];
        assert_eq!(
            (&data["code"], &data["retryable"], &data["mayHaveRun"]),
            (&json!("PROVIDER_UNAVAILABLE"), &json!(true), &json!(false)),
            "{error}"
        );
        assert_eq!(fixture.recorder.exits().len(), 1);
        holding.abort();
        let _ = holding.await;
        Arc::into_inner(fixture).unwrap().end().await;
    }
}
