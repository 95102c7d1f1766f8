//! The mock upstream does what its script says, seen from the other end of its pipes.

use std::time::{Duration, Instant};

use bridgehead_testkit::client::{StdioClient, legacy_handshake, modern_params};
use bridgehead_testkit::{
    Behaviour, Crash, Initialize, Mock, Probe, ProgressFault, RpcError, Script, Tool, Verbatim,
};
use serde_json::{Value, json};

async fn probe(client: &mut StdioClient) -> Value {
    client.request("server/discover", modern_params(json!({}))).await
}

async fn call(client: &mut StdioClient, tool: &str, arguments: Value) -> Value {
    let params = modern_params(json!({"name": tool, "arguments": arguments}));
    client.request("tools/call", params).await
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

/// QA-3: the test double is a scripted peer over a real transport: a separate process on its own pipes.
#[tokio::test]
async fn each_era_answers_the_probe_in_its_way() {
    let answer = probe(&mut StdioClient::start_mock(&Mock::modern().instructions("be kind"))).await;
    assert_eq!(answer["result"]["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(answer["result"]["instructions"], "be kind");
    let answer = probe(&mut StdioClient::start_mock(&Mock::legacy())).await;
    assert_eq!(answer["error"]["code"], -32601);
    let answer = probe(&mut StdioClient::start_mock(&Mock::new())).await;
    assert_eq!(answer["result"]["cacheScope"], "public");
}

#[tokio::test]
async fn odd_probes() {
    let start = |probe| StdioClient::start_mock(&Mock::legacy().on_probe(probe));
    let silence = Duration::from_millis(150);

    let mut client = start(Probe::Silent);
    client.start_request("server/discover", modern_params(json!({}))).await;
    assert_eq!(client.recv_within(silence).await, None);
    assert_eq!(client.initialize().await["result"]["protocolVersion"], "2025-11-25");

    let mut client = start(Probe::Error(RpcError::new(-31999, "what?").data(json!({"why": 1}))));
    let answer = probe(&mut client).await;
    assert_eq!(answer["error"], json!({"code": -31999, "message": "what?", "data": {"why": 1}}));

    let mut client = start(Probe::Exit { status: 3 });
    client.start_request("server/discover", modern_params(json!({}))).await;
    assert_eq!(client.recv_line().await, None);
    assert_eq!(client.wait().await.code(), Some(3));

    let mut client = start(Probe::Late { ms: 120 });
    let started = Instant::now();
    let late = client.start_request("server/discover", modern_params(json!({}))).await;
    client.initialize().await;
    assert_eq!(client.answer_to(late).await["error"]["code"], -32601);
    assert!(started.elapsed() >= Duration::from_millis(120));

    let mut client = start(Probe::ForeignId);
    client.start_request("server/discover", modern_params(json!({}))).await;
    let answer = client.recv().await;
    assert_eq!((&answer["id"], answer.get("error").is_some()), (&json!("server-error"), true));

    let mut client = start(Probe::Unsupported { supported: vec!["2027-01-01".into()] });
    let answer = probe(&mut client).await;
    assert_eq!(answer["error"]["code"], -32022);
    assert_eq!(answer["error"]["data"]["supported"], json!(["2027-01-01"]));

    let mut client = start(Probe::Garbage);
    client.start_request("server/discover", modern_params(json!({}))).await;
    let line = client.recv_line().await.unwrap();
    assert!(serde_json::from_str::<Value>(&line).is_err(), "{line}");
}

#[tokio::test]
async fn odd_handshakes() {
    let early = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "roots/list"});
    let mock = Mock::legacy()
        .revision("2099-12-31")
        .before_initialize_result(early.clone())
        .before_initialize_result(ask.clone())
        .after_initialized(ask.clone());
    let mut client = StdioClient::start_mock(&mock);
    let answer = client.initialize().await;
    assert_eq!(answer["result"]["protocolVersion"], "2099-12-31");
    assert_eq!(client.take_aside(), [early, ask.clone()]);
    assert_eq!(client.recv().await, ask);

    let refusing = Mock::legacy().on_initialize(Initialize::Error(RpcError::new(-32000, "no")));
    let answer = StdioClient::start_mock(&refusing).request("initialize", legacy_handshake()).await;
    assert_eq!(answer["error"]["code"], -32000);

    let mut client = StdioClient::start_mock(&Mock::legacy().on_initialize(Initialize::Silent));
    client.start_request("initialize", legacy_handshake()).await;
    assert_eq!(client.recv_within(Duration::from_millis(150)).await, None);

    let mut client = StdioClient::start_mock(&Mock::legacy().on_initialize(Initialize::Exit { status: 4 }));
    client.start_request("initialize", legacy_handshake()).await;
    assert_eq!(client.wait().await.code(), Some(4));
}

#[tokio::test]
async fn each_era_refuses_what_belongs_to_the_other() {
    let mut modern = StdioClient::start_mock(&Mock::modern());
    let answer = modern.request("initialize", legacy_handshake()).await;
    assert_eq!(answer["error"]["data"]["supported"], json!(["2026-07-28"]));
    let answer = modern.request("tools/list", json!({})).await;
    assert_eq!(answer["error"]["code"], -32602);
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2025-11-25"}});
    let answer = modern.request("tools/list", modern_params(meta)).await;
    assert_eq!(answer["error"]["code"], -32022);

    let mut legacy = StdioClient::start_mock(&Mock::legacy());
    let answer = legacy.request("tools/list", modern_params(json!({}))).await;
    assert_eq!(answer["error"]["code"], -32600);
    assert_eq!(legacy.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn echoes_byte_for_byte_in_both_eras() {
    let mock = Mock::new().tool("echo", Behaviour::Echo);
    let mut client = StdioClient::start_mock(&mock);
    let modern = call(&mut client, "echo", json!({"a": 1})).await;
    assert_eq!(modern["result"]["structuredContent"], json!({"a": 1}));
    assert_eq!(modern["result"]["resultType"], "complete");
    let answer = client.request("tools/call", json!({"name": "echo"})).await;
    assert_eq!(answer["error"]["code"], -32600, "no handshake yet");

    client.initialize().await;
    let line = r#"{"jsonrpc":"2.0","id":"x\u0041","method":"tools/call","params":{"name":"echo","arguments":{"z":1.0,"a":1e2}}}"#;
    client.send_bytes(format!("{line}\n").as_bytes()).await;
    assert_eq!(
        client.recv_line().await.unwrap(),
        r#"{"jsonrpc":"2.0","id":"x\u0041","result":{"content":[{"type":"text","text":"{\"z\":1.0,\"a\":1e2}"}],"structuredContent":{"z":1.0,"a":1e2},"isError":false}}"#
    );
    let answer = client.request("tools/call", json!({"name": "nothing"})).await;
    assert_eq!(answer["error"]["code"], -32602);
}

#[tokio::test]
async fn raw_results_and_raw_lines_are_byte_exact() {
    let result = r#"{ "z": 1.50, "content":[], "a":{"future" : null}, "n": 12345678901234567890123 }"#;
    let mock = Mock::modern()
        .tool("raw", Behaviour::raw_result(result))
        .tool("line", Behaviour::RawLine(r#"{"id":$ID,"broken":01}"#.into()));
    let mut client = StdioClient::start_mock(&mock);
    client.start_request("tools/call", modern_params(json!({"name": "raw"}))).await;
    let line = client.recv_line().await.unwrap();
    assert_eq!(line, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));
    client.start_request("tools/call", modern_params(json!({"name": "line"}))).await;
    assert_eq!(client.recv_line().await.unwrap(), r#"{"id":2,"broken":01}"#);
}

#[tokio::test]
async fn simple_behaviours() {
    let mock = Mock::modern()
        .tool("text", Behaviour::Text("hello".into()))
        .tool("error", Behaviour::Error(RpcError::new(7, "seven").data("[1]")))
        .tool("is_error", Behaviour::IsError("bad".into()))
        .tool("pid", Behaviour::ProcessId)
        .tool("env", Behaviour::Environment { values: vec!["SHOWN".into()] })
        .tool("args", Behaviour::Arguments)
        .variable("SHOWN", "yes")
        .variable("HIDDEN", "secret");
    let mut client = StdioClient::start(&mock.command().0, &["--flag", "x"], mock.env());
    assert_eq!(text(&call(&mut client, "text", json!({})).await), "hello");
    let answer = call(&mut client, "error", json!({})).await;
    assert_eq!(answer["error"], json!({"code": 7, "message": "seven", "data": [1]}));
    let answer = call(&mut client, "is_error", json!({})).await;
    assert_eq!((text(&answer), &answer["result"]["isError"]), ("bad", &json!(true)));
    let answer = call(&mut client, "pid", json!({})).await;
    assert_eq!(answer["result"]["structuredContent"]["pid"], json!(client.pid()));
    let answer = call(&mut client, "env", json!({})).await;
    let told = &answer["result"]["structuredContent"];
    assert_eq!(told["values"], json!({"SHOWN": "yes"}));
    assert!(told["names"].as_array().unwrap().contains(&json!("HIDDEN")), "{told}");
    let answer = call(&mut client, "args", json!({})).await;
    assert_eq!(answer["result"]["structuredContent"]["args"], json!(["--flag", "x"]));
}

#[tokio::test]
async fn delayed_calls_run_side_by_side() {
    let mock = Mock::modern()
        .tool("slow", Behaviour::Text("slow".into()).after(400))
        .tool("fast", Behaviour::Text("fast".into()).after(50));
    let mut client = StdioClient::start_mock(&mock);
    let slow = client.start_request("tools/call", modern_params(json!({"name": "slow"}))).await;
    let fast = client.start_request("tools/call", modern_params(json!({"name": "fast"}))).await;
    assert_eq!(client.recv().await["id"], fast);
    assert_eq!(client.recv().await["id"], slow);
}

#[tokio::test]
async fn progress_comes_only_when_asked_for_and_with_the_faults_ordered() {
    async fn steps(fault: ProgressFault, token: Option<&str>) -> (Vec<(Value, Value)>, Option<Value>) {
        let mock = Mock::modern().tool("work", Behaviour::Echo.with_odd_progress(3, 1, fault));
        let mut client = StdioClient::start_mock(&mock);
        let mut params = json!({"name": "work"});
        if let Some(token) = token {
            params["_meta"] = json!({"progressToken": token});
        }
        client.request("tools/call", modern_params(params)).await;
        let pick = |message: &Value| {
            (message["params"]["progressToken"].clone(), message["params"]["progress"].clone())
        };
        let before = client.take_aside().iter().map(pick).collect();
        if fault == ProgressFault::AfterFinal {
            return (before, Some(pick(&client.recv().await).1));
        }
        client.close_stdin();
        assert_eq!(client.recv_line().await, None);
        (before, None)
    }
    let with = |token: &str, steps: [u64; 3]| steps.map(|step| (json!(token), json!(step))).to_vec();
    assert_eq!(steps(ProgressFault::None, None).await, (vec![], None));
    assert_eq!(steps(ProgressFault::None, Some("t")).await, (with("t", [1, 2, 3]), None));
    assert_eq!(steps(ProgressFault::NotIncreasing, Some("t")).await, (with("t", [1, 1, 1]), None));
    let (before, _) = steps(ProgressFault::UnknownToken, Some("t")).await;
    assert_eq!(before, with("nobody-gave-this", [1, 2, 3]));
    let (before, after) = steps(ProgressFault::AfterFinal, Some("t")).await;
    assert_eq!((before, after), (with("t", [1, 2, 3]), Some(json!(4))));
}

#[tokio::test]
async fn lists_come_in_pages() {
    async fn pages(mock: Mock, most: usize) -> Vec<Vec<String>> {
        let mut client = StdioClient::start_mock(&mock);
        let (mut pages, mut params) = (Vec::new(), json!({}));
        while pages.len() < most {
            let answer = client.request("tools/list", modern_params(params)).await;
            let result = &answer["result"];
            assert_eq!((&result["resultType"], &result["ttlMs"]), (&json!("complete"), &json!(0)));
            let names = result["tools"].as_array().unwrap().iter();
            pages.push(names.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect());
            match result.get("nextCursor") {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => break,
            }
        }
        pages
    }
    let mock = ["a", "b", "c"].into_iter().fold(Mock::new(), |mock, name| mock.tool(name, Behaviour::Echo));
    assert_eq!(pages(mock.clone(), 9).await, [vec!["a", "b", "c"]]);
    assert_eq!(pages(mock.clone().pages(2), 9).await, [vec!["a", "b"], vec!["c"]]);
    assert_eq!(pages(mock.clone().endless_pages(), 50).await.len(), 50);

    let mut client = StdioClient::start_mock(&mock.clone().list_error(RpcError::new(-32603, "broken")));
    let answer = client.request("tools/list", modern_params(json!({}))).await;
    assert_eq!(answer["error"]["message"], "broken");
    let mut client = StdioClient::start_mock(&mock.list_delay_ms(60));
    let started = Instant::now();
    client.request("tools/list", modern_params(json!({}))).await;
    assert!(started.elapsed() >= Duration::from_millis(60));
    let answer = client.request("tools/list", modern_params(json!({"cursor": "bad"}))).await;
    assert_eq!(answer["error"]["code"], -32602);
}

#[tokio::test]
async fn tools_are_listed_as_written() {
    let schema = r#"{"type":"object","properties":{"b":{},"a":{"minimum":1.0}}}"#;
    let tool = Tool::new("t", Behaviour::Echo)
        .description("does t")
        .input_schema(schema)
        .output_schema(json!({"type": "object"}))
        .annotations(json!({"readOnlyHint": true}))
        .extra("x-vendor", "[1, 2]");
    let mut client = StdioClient::start_mock(&Mock::legacy().full_tool(tool));
    client.initialize().await;
    client.start_request("tools/list", json!({})).await;
    let expected = format!(
        r#"{{"name":"t","description":"does t","inputSchema":{schema},"outputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":true}},"x-vendor":[1, 2]}}"#
    );
    assert_eq!(
        client.recv_line().await.unwrap(),
        format!(r#"{{"jsonrpc":"2.0","id":2,"result":{{"tools":[{expected}]}}}}"#)
    );
}

#[tokio::test]
async fn a_changed_list_is_announced_in_each_era() {
    let added = Tool::new("new", Behaviour::Echo);
    let mock = Mock::new().tool("add", Behaviour::AddTool(Box::new(added)));

    let mut legacy = StdioClient::start_mock(&mock);
    legacy.initialize().await;
    legacy.request("tools/call", json!({"name": "add"})).await;
    assert_eq!(legacy.take_aside()[0]["method"], "notifications/tools/list_changed");
    let answer = legacy.request("tools/list", json!({})).await;
    assert_eq!(answer["result"]["tools"][1]["name"], "new");

    let mut modern = StdioClient::start_mock(&mock);
    let filter = json!({"notifications": {"toolsListChanged": true}});
    let listen = modern.start_request("subscriptions/listen", modern_params(filter)).await;
    call(&mut modern, "add", json!({})).await;
    let aside = modern.take_aside();
    let methods: Vec<&Value> = aside.iter().map(|message| &message["method"]).collect();
    let expected = ["notifications/subscriptions/acknowledged", "notifications/tools/list_changed"];
    assert_eq!(methods, expected);
    let id = &aside[1]["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
    assert_eq!(*id, listen);
}

#[tokio::test]
async fn wrong_and_double_answers() {
    let mock = Mock::modern().tool("wrong", Behaviour::WrongId).tool("double", Behaviour::DoubleAnswer);
    let mut client = StdioClient::start_mock(&mock);
    call(&mut client, "wrong", json!({})).await;
    assert_eq!(client.take_aside()[0]["id"], "nobody-asked-with-this");
    let first = call(&mut client, "double", json!({})).await;
    assert_eq!(client.recv().await, first);
}

#[tokio::test]
async fn noise_and_garbage_are_no_messages() {
    let mock = Mock::modern()
        .noise("Loading…")
        .noise("Ready!")
        .stderr("warning: old")
        .tool("garbage", Behaviour::Garbage("oops".into()))
        .tool("flood", Behaviour::Flood { megabytes: 2 });
    let mut client = StdioClient::start_mock(&mock);
    assert_eq!(client.recv_line().await.unwrap(), "Loading…");
    assert_eq!(client.recv_line().await.unwrap(), "Ready!");
    client.start_request("tools/call", modern_params(json!({"name": "garbage"}))).await;
    assert_eq!(client.recv_line().await.unwrap(), "oops");
    assert_eq!(client.recv_line().await.unwrap(), "Loading…");
    client.start_request("tools/call", modern_params(json!({"name": "flood"}))).await;
    assert!(client.recv_line().await.unwrap().len() > 2 * 1024 * 1024);
    assert_eq!(client.recv_line().await.unwrap(), "Ready!");
    assert_eq!(client.stderr(), "warning: old\n");
}

#[tokio::test]
async fn what_came_in_can_be_asked_for() {
    let mock = Mock::modern()
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("cancelled", Behaviour::ReportCancelled)
        .tool("received", Behaviour::Received);
    let mut client = StdioClient::start_mock(&mock);
    let params = modern_params(json!({"name": "hang", "arguments": {"x": 1}}));
    let hanging = client.start_request("tools/call", params.clone()).await;
    client.notify("notifications/cancelled", json!({"requestId": hanging})).await;
    client.notify("notifications/cancelled", json!({"requestId": "other"})).await;
    let answer = call(&mut client, "received", json!({})).await;
    assert_eq!(text(&answer), params.to_string());
    let answer = call(&mut client, "received", json!({})).await;
    assert_eq!(text(&answer), params.to_string(), "the query itself does not count");
    let answer = call(&mut client, "cancelled", json!({})).await;
    assert_eq!(answer["result"]["structuredContent"]["cancelled"], json!([hanging, "other"]));
}

#[tokio::test]
async fn it_can_ask_the_client() {
    let mock = Mock::legacy().tool("ask", Behaviour::ask("roots/list", json!({"a": 1})));
    let mut client = StdioClient::start_mock(&mock);
    client.initialize().await;
    let asking = client.start_request("tools/call", json!({"name": "ask"})).await;
    let question = client.recv().await;
    assert_eq!(question, json!({"jsonrpc": "2.0", "id": 0, "method": "roots/list", "params": {"a": 1}}));
    client.send(json!({"jsonrpc": "2.0", "id": 0, "result": {"roots": []}})).await;
    let answer = client.answer_to(asking).await;
    assert_eq!(answer["result"]["structuredContent"], json!({"result": {"roots": []}}));
}

#[tokio::test]
async fn it_dies_as_told_and_with_its_input() {
    let mock = Mock::modern()
        .tool("exit", Behaviour::Crash(Crash::Exit { status: 9 }))
        .tool("abort", Behaviour::Crash(Crash::Abort))
        .tool("hang", Behaviour::Hang)
        .tool("slow", Behaviour::Echo.after(30_000));
    for (tool, code) in [("exit", Some(9)), ("abort", None)] {
        let mut client = StdioClient::start_mock(&mock);
        client.start_request("tools/call", modern_params(json!({"name": tool}))).await;
        assert_eq!(client.recv_line().await, None);
        assert_eq!(client.wait().await.code(), code, "{tool}");
    }
    for tool in ["hang", "slow"] {
        let mut client = StdioClient::start_mock(&mock);
        client.start_request("tools/call", modern_params(json!({"name": tool}))).await;
        client.close_stdin();
        assert!(client.wait().await.success(), "{tool}");
    }
    let mut client = StdioClient::start_mock(&mock.ignore_eof());
    client.close_stdin();
    assert_eq!(client.recv_within(Duration::from_millis(150)).await, None);
    client.kill();
    assert_eq!(client.wait().await.code(), None);
}

#[tokio::test]
async fn the_transcript_keeps_what_was_received() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mock = Mock::legacy().transcript(file.path());
    for _ in 0..2 {
        let mut client = StdioClient::start_mock(&mock);
        let pid = client.pid().unwrap();
        client.initialize().await;
        client.close_stdin();
        client.wait().await;
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let [.., started, initialize, initialized, eof] = lines.as_slice() else {
            panic!("too short: {text}");
        };
        assert_eq!((*started, *eof), (&*format!("--- started {pid}"), &*format!("--- eof {pid}")));
        assert!(initialize.contains(r#""initialize""#) && initialized.contains("initialized"), "{text}");
    }
    assert_eq!(std::fs::read_to_string(file.path()).unwrap().lines().count(), 8);
}

#[tokio::test]
async fn a_bad_script_is_refused_with_a_reason() {
    #[track_caller]
    fn check(status: std::process::ExitStatus, stderr: &str, expected: &str) {
        assert_eq!(status.code(), Some(2));
        assert!(stderr.contains(expected), "{stderr}");
    }
    let program = Mock::new().command().0;
    let none: [(&str, &str); 0] = [];
    let mut client = StdioClient::start(&program, &[], none);
    check(client.wait().await, &client.stderr(), "no script");
    let mut client = StdioClient::start(&program, &[r#"{"erra":"modern"}"#], none);
    check(client.wait().await, &client.stderr(), "erra");
}

#[test]
fn scripts_can_be_written_by_hand() {
    let script: Script = serde_json::from_str(
        r#"{"era": "legacy", "on_probe": {"late": {"ms": 5}}, "tools": [
            {"name": "a", "input_schema": {"type":"object", "x": 1.0}, "behaviour": {"raw_result": {"z":1,"a":2}}},
            {"name": "b", "behaviour": {"delay": {"ms": 5, "then": {"raw_result": "{\"z\":1}"}}}}]}"#,
    )
    .unwrap();
    assert!(script.tools[0].listing().contains(r#"{"type":"object", "x": 1.0}"#));
    let Behaviour::RawResult(result) = script.tools[0].behaviour() else { panic!("{script:?}") };
    assert_eq!(result, &Verbatim::from(r#"{"z":1,"a":2}"#));
    let Behaviour::Delay { ms: 5, then } = script.tools[1].behaviour() else { panic!("{script:?}") };
    assert!(matches!(&**then, Behaviour::RawResult(text) if text.as_str() == r#"{"z":1}"#));
}
