//! Calls, their options, their results and their errors.

use std::time::Duration;

use bridgehead::config::{Config, InvalidServer, ServerConfig};
use bridgehead::events::Delivery;
use bridgehead::tools::{CallOptions, StartToolsError, ToolCall, Tools, ToolsFilter};
use bridgehead::{
    Code, CorrelationId, Fault, NativeTool, Outcome, Principal, Raw, RegisterError, ServerState, ToolFailure,
    Traceparent,
};
use bridgehead_testkit::{Behaviour, Crash, LeakCheck, Mock, Recorder, Tool};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{World, native, options, server, structured, until};

const EVERY: fn(&str) -> Mock = |text| Mock::new().tool("say", Behaviour::Text(text.to_owned()));

fn assert_send<T: Send + 'static>(_: &T) {}

/// LIB-1: the tools of many servers and of this program are listed together and called in process. Each call is recorded
/// under the embedder's principal.
#[tokio::test]
async fn many_servers_are_called_in_process() {
    let legacy = Mock::legacy().tool("say", Behaviour::Text("legacy".to_owned())).instructions("Ask me.");
    let servers =
        [("old", legacy), ("new", Mock::modern().tool("echo", Behaviour::Echo)), ("any", EVERY("any"))];
    let greet = native("greet", |arguments| async move {
        json!(format!("hello, {}", arguments["name"].as_str().unwrap()))
    });
    let world = World::with(
        &servers,
        |_| (),
        |options| options.principal(Principal::named("agent-7")).register(greet),
    )
    .await;
    let tools = &world.tools;
    let listed: Vec<_> =
        tools.list().into_iter().map(|tool| (tool.name.to_string(), tool.own_name)).collect();
    let expected = [("old__say", "say"), ("new__echo", "echo"), ("any__say", "say"), ("greet", "greet")];
    assert_eq!(listed, expected.map(|(name, own)| (name.to_owned(), own.to_owned())));
    assert_eq!(tools.list()[3].input_schema().unwrap().as_str(), r#"{"type":"object"}"#);
    assert_eq!(tools.list()[3].description().as_deref(), Some(""));
    assert!(tools.instructions().unwrap().contains("#### MCP Server: old"), "{:?}", tools.instructions());
    assert_eq!(tools.principal().as_str(), "agent-7");

    assert_eq!(tools.call("old__say", json!({})).await.unwrap().flat().result, "legacy");
    assert_eq!(tools.call("any__say", json!({})).await.unwrap().server(), Some("any"));
    let echoed = tools.call("new__echo", json!({"a": 1})).await.unwrap();
    assert_eq!((structured(&echoed), echoed.is_error()), (json!({"a": 1}), false));
    let greeted = tools.call("greet", json!({"name": "world"})).await.unwrap();
    assert_eq!((structured(&greeted), greeted.server()), (json!({"ok": true, "data": "hello, world"}), None));

    let enters = world.recorder.enters();
    let recorded: Vec<_> = enters
        .iter()
        .map(|enter| (enter.tool(), enter.server(), enter.principal(), enter.call().transport))
        .collect();
    let by = |tool, server| (tool, server, "agent-7", "library");
    let expected = [
        by("old__say", Some("old")),
        by("any__say", Some("any")),
        by("new__echo", Some("new")),
        by("greet", None),
    ];
    assert_eq!(recorded, expected);
    assert_eq!(enters[2].correlation(), echoed.correlation());
    world.end().await;
}

/// LIB-1: arguments and results pass byte for byte, also if they are written on several lines.
#[tokio::test]
async fn bytes_stay_as_they_are() {
    const RESULT: &str = r#"{ "content":[], "x": 1.50, "structuredContent" : {"b":1e2,"a":-0.0}}"#;
    let mock =
        Mock::legacy().tool("same", Behaviour::raw_result(RESULT)).tool("received", Behaviour::Received);
    let world = World::start(&[("one", mock)]).await;
    let written = "{\"n\": 1.0,\n \"k\": [1E5 , null],\n\"a\":\"\\u00e9\"}";
    let result = world.tools.call("one__same", Raw::parse(written).unwrap()).await.unwrap();
    assert_eq!(result.raw().as_str(), RESULT);
    let received = world.tools.call("one__received", json!({})).await.unwrap().flat().result;
    let sent = written.replace('\n', " ");
    assert!(received.contains(&format!(r#""arguments":{sent}"#)), "{received}");
    world.end().await;
}

/// LIB-1, PIPE-8: the embedder's id and its trace are in the record, in the events and in what the server gets.
#[tokio::test]
async fn a_call_has_the_embedders_id_and_trace() {
    let mock = Mock::legacy().tool("echo", Behaviour::Echo).tool("received", Behaviour::Received);
    let world = World::start(&[("one", mock)]).await;
    let mut events = world.tools.events().subscribe(16);
    let id = CorrelationId::mint();
    let parent = Traceparent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
    let options = CallOptions::default().correlation(id).trace_with_state(parent, "vendor=1");
    let call = world.tools.call_with("one__echo", json!({}), options);
    assert_send::<ToolCall>(&call);
    assert_eq!(call.id(), id);
    assert_eq!(call.await.unwrap().correlation(), id);
    let Some(Delivery::Event(told)) = events.next().await else { panic!("no event") };
    assert_eq!((told.topic().to_string().as_str(), told.correlation()), ("provider.mcp.tool.completed", id));
    let received = world.tools.call("one__received", json!({})).await.unwrap().flat().result;
    let meta = serde_json::from_str::<Value>(&received).unwrap()["_meta"].clone();
    let expected = json!({
        "bridgehead/correlationId": id.to_string(), "traceparent": parent.to_string(), "tracestate": "vendor=1",
    });
    assert_eq!(meta, expected);
    assert_eq!((world.recorder.enters()[0].correlation(), world.recorder.exits()[0].correlation()), (id, id));
    world.end().await;
}

/// LIB-1, ENV-5, ENV-8: one result has three forms: the server's bytes, an envelope cast to the tool's output schema, and the
/// flat form with the server's own namespace.
#[tokio::test]
async fn a_result_has_three_forms() {
    const RESULT: &str =
        r#"{"content":[{"type":"text","text":"four"}],"structuredContent":{"n":"4"},"isError":false}"#;
    let schema = r#"{"type":"object","properties":{"n":{"type":"integer","default":7}},"required":["n"]}"#;
    let tool = Tool::new("count", Behaviour::raw_result(RESULT)).output_schema(schema);
    let mock = Mock::legacy().full_tool(tool).tool("bad", Behaviour::IsError("no such file".to_owned()));
    let world = World::start(&[("one", mock)]).await;
    let result = world.tools.call("one__count", json!({})).await.unwrap();
    assert_eq!(result.raw().as_str(), RESULT);
    let envelope = result.envelope();
    assert_eq!((envelope.data, envelope.meta.structured_content), (json!({"n": 7}), Some(json!({"n": "4"}))));
    assert_eq!(envelope.meta.cast.len(), 1);
    assert_eq!((envelope.meta.server.as_str(), envelope.meta.tool.as_str()), ("one", "count"));
    assert_eq!(envelope.meta.correlation_id, result.correlation().to_string());
    let flat = result.flat();
    assert_eq!((flat.ok, flat.result.as_str(), flat.namespace.as_str()), (true, "four", "one"));
    let failed = world.tools.call("one__bad", json!({})).await.unwrap();
    assert!(
        failed.is_error() && !failed.flat().ok && failed.envelope().meta.is_error,
        "an answer, not an error"
    );
    world.end().await;
}

/// LIB-1: progress comes in order and before the result; a reader that does not keep up loses progress, never the answer.
#[tokio::test]
async fn progress_is_bounded() {
    let mock = Mock::legacy().tool("steps", Behaviour::Text("done".to_owned()).with_progress(40));
    let world = World::start(&[("one", mock)]).await;
    for (room, expected) in [(64, (1..=40).collect::<Vec<_>>()), (3, vec![1, 2, 3])] {
        let (told, mut progress) = mpsc::channel(room);
        let options = CallOptions::default().progress(told);
        let result = world.tools.call_with("one__steps", json!({}), options).await.unwrap();
        assert_eq!(result.flat().result, "done");
        let mut steps = Vec::new();
        while let Some(step) = progress.recv().await {
            assert_eq!((step.total, step.message), (Some(40.0), Some(format!("step {}", step.progress))));
            assert!(step.params.as_str().contains(r#""total":40"#), "{}", step.params.as_str());
            steps.push(step.progress as u64);
        }
        assert_eq!(steps, expected);
    }
    world.end().await;
}

/// LIB-1: the errors of calls say what, whose fault, whether to retry, and what now; a server's own error is beside them.
#[tokio::test]
async fn an_error_says_what_to_do() {
    let strict = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
    let texts = r#"{"type":"object","properties":{"n":{}},"additionalProperties":{"type":"string"}}"#;
    let mock = Mock::legacy()
        .full_tool(Tool::new("strict", Behaviour::Echo).input_schema(strict))
        .full_tool(Tool::new("texts", Behaviour::Echo).input_schema(texts))
        .tool("refuses", Behaviour::error(-32602, "not so"))
        .tool("broken", Behaviour::error(-32603, "out of order"))
        .tool("odd", Behaviour::error(77, "seventy-seven"))
        .tool("dies", Behaviour::Crash(Crash::Exit { status: 3 }));
    let fails = NativeTool::new("fails", "", json!({"type": "object"}), |_, _| async {
        Err(ToolFailure::new("it is full").with_details(json!({"free": 0})))
    });
    let world = World::with(&[("one", mock)], |_| (), |options| options.register(fails)).await;
    let check = async |tool: &str, expected: (Code, Fault, bool, bool, Option<&str>, Option<i64>, &str)| {
        let error = world.tools.call(tool, json!({})).await.unwrap_err();
        let (code, fault, retryable, ran, server, rpc, words) = expected;
        assert_eq!((error.code(), error.fault(), error.retryable()), (code, fault, retryable), "{error}");
        assert_eq!((error.may_have_run(), error.server(), error.tool()), (ran, server, tool), "{error}");
        assert_eq!(error.rpc().map(|rpc| rpc.code()), rpc, "{error}");
        assert!(error.message().contains(words), "{error}");
        assert!(error.hint().contains(code.as_str()) && error.to_string().contains(&error.hint()), "{error}");
        error
    };
    let (caller, of_server, one) = (Fault::Caller, Fault::Server, Some("one"));
    let refused =
        check("one__strict", (Code::InvalidParams, caller, false, false, one, None, "do not fit the schema"))
            .await;
    assert_eq!(refused.details().unwrap()["issues"][0]["schemaPath"], "/required");
    let text = refused.to_string();
    assert!(
        text.contains("schema of tool `one__strict`; \"n\" is a required property (`bridgehead"),
        "{text}"
    );
    let wrong = world.tools.call("one__strict", json!({"n": "one"})).await.unwrap_err().to_string();
    assert!(wrong.contains("`one__strict`; /n: value is not of type \"integer\" (`bridgehead"), "{wrong}");
    let many = json!({"n": 1, "a": 1, "b": 1, "c": 1, "d": 1, "e": 1});
    let many = world.tools.call("one__texts", many).await.unwrap_err().to_string();
    assert!(many.contains("; /b: ") && many.contains("; /c: ") && !many.contains("/d: "), "{many}");
    assert!(many.contains("; and 2 more (`bridgehead"), "{many}");
    check(
        "one__strikt",
        (Code::ProviderToolUnknown, caller, false, false, None, None, "did you mean `one__strict`?"),
    )
    .await;
    let words = "server `one` refused tool `one__refuses`: not so (code -32602)";
    check("one__refuses", (Code::ProviderInvalidInput, caller, false, true, one, Some(-32602), words)).await;
    check(
        "one__broken",
        (Code::ProviderUnavailable, of_server, true, true, one, Some(-32603), "out of order"),
    )
    .await;
    check("one__odd", (Code::ProviderInvalidOutput, of_server, false, true, one, Some(77), "seventy-seven"))
        .await;
    check("one__dies", (Code::ProviderCrashed, of_server, true, true, one, None, "was lost during the call"))
        .await;
    let failed = check("fails", (Code::HandlerError, of_server, false, true, None, None, "it is full")).await;
    assert_eq!(failed.details(), Some(&json!({"free": 0})));
    let array = world.tools.call("one__odd", json!([])).await.unwrap_err();
    assert_eq!(array.code(), Code::InvalidParams, "{array}");
    let deep = format!("{}{}", r#"{"a":"#.repeat(200), "1".to_owned() + &"}".repeat(200));
    let deep = world.tools.call("one__odd", Raw::parse(deep).unwrap()).await.unwrap_err();
    assert_eq!((deep.code(), deep.may_have_run()), (Code::InvalidParams, false), "{deep}");
    world.end().await;
}

/// LIB-1: a call ends when its own time does, whatever it waits for: the error names the setting, the record has the code,
/// and the server is told.
#[tokio::test]
async fn a_call_has_its_own_timeout() {
    let mock = Mock::legacy()
        .tool("hangs", Behaviour::HangUntilCancelled)
        .tool("echo", Behaviour::Echo)
        .tool("cancelled", Behaviour::ReportCancelled);
    let one_at_a_time = |server: &mut ServerConfig| {
        server.queue.concurrency = 1;
        server.cancel_grace = Some(Duration::ZERO);
        server.tools.entry("cancelled".to_owned()).or_default().queue = Some(Default::default());
    };
    let silent = native("silent", |_| std::future::pending());
    let world = World::with(&[("one", mock)], one_at_a_time, |options| options.register(silent)).await;
    let holder = tokio::spawn(world.tools.call("one__hangs", json!({})));
    let locker = tokio::spawn(world.tools.call("silent", json!({})));
    until(|| world.recorder.enters().len() == 2).await;
    let check = async |tool: &str, words: &str, ran: bool| {
        let options = CallOptions::default().timeout(Duration::from_millis(250));
        let began = std::time::Instant::now();
        let late = world.tools.call_with(tool, json!({}), options).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(60), "other limits are longer: {late}");
        assert_eq!((late.code(), late.may_have_run()), (Code::ProviderTimeout, ran), "{late}");
        assert!(late.message().contains(words) && late.message().contains("`timeout`"), "{late}");
        let exit = world.recorder.exits().pop().unwrap();
        assert_eq!(exit.correlation(), late.correlation());
        assert!(
            matches!(exit.outcome(), Outcome::Error { code, .. } if code == "PROVIDER_TIMEOUT"),
            "{exit:?}"
        );
    };
    check("one__echo", "tool `one__echo` was not called within 250 ms", false).await;
    check("silent", "tool `silent` was not called within 250 ms", false).await;
    holder.abort();
    locker.abort();
    until(|| world.recorder.exits().len() == 4).await;
    check("one__hangs", "tool `one__hangs` did not answer within 250 ms", true).await;
    check("silent", "tool `silent` did not answer within 250 ms", true).await;
    assert_eq!(world.call("one__cancelled").await["cancelled"].as_array().unwrap().len(), 2);
    let options = CallOptions::default().timeout(Duration::MAX);
    assert!(world.tools.call_with("one__echo", json!({}), options).await.is_ok());
    world.end().await;
}

/// LIB-1: the time of a call also bounds the wait for a server that is still starting.
#[tokio::test]
async fn a_timeout_covers_a_server_that_starts() {
    let world = World::with(
        &[("slow", Mock::legacy().tool("echo", Behaviour::Echo).list_delay_ms(60_000))],
        |_| (),
        |options| options.warm_up(Duration::ZERO),
    )
    .await;
    assert_eq!(world.tools.health()[0].state, ServerState::Starting);
    let options = CallOptions::default().timeout(Duration::from_millis(100));
    let late = world.tools.call_with("slow__echo", json!({}), options).await.unwrap_err();
    assert_eq!(
        (late.code(), late.server(), late.may_have_run()),
        (Code::ProviderTimeout, Some("slow"), false)
    );
    assert!(late.message().contains("server `slow` is still starting"), "{late}");
    world.end().await;
}

/// LIB-1: a call is cancelled by its id, or by dropping its future; the server is told, and the record says so.
#[tokio::test]
async fn a_call_can_be_cancelled() {
    let mock = Mock::legacy()
        .tool("hangs", Behaviour::HangUntilCancelled)
        .tool("cancelled", Behaviour::ReportCancelled);
    let silent = native("silent", |_| std::future::pending());
    let world = World::with(&[("one", mock)], |_| (), |options| options.register(silent)).await;
    let cancelled = |count: usize| {
        let exits = world.recorder.exits();
        exits.iter().filter(|exit| matches!(exit.outcome(), Outcome::Cancelled)).count() == count
    };
    for (number, tool) in ["one__hangs", "silent"].into_iter().enumerate() {
        let call = world.tools.call(tool, json!({}));
        let id = call.id();
        assert!(!world.tools.cancel(id), "it has not begun");
        let other = tokio::spawn(world.tools.call(tool, json!({})));
        let call = tokio::spawn(call);
        until(|| world.recorder.enters().iter().any(|enter| enter.correlation() == id) || tool == "silent")
            .await;
        until(|| world.tools.cancel(id)).await;
        let ended = call.await.unwrap().unwrap_err();
        assert_eq!(
            (ended.code(), ended.retryable(), ended.tool()),
            (Code::Cancelled, false, tool),
            "{ended}"
        );
        assert!(!other.is_finished(), "another call goes on");
        other.abort();
        assert!(other.await.unwrap_err().is_cancelled());
        until(|| cancelled(2 * (number + 1))).await;
        assert!(!world.tools.cancel(id), "it has ended");
    }
    assert_eq!(world.call("one__cancelled").await["cancelled"].as_array().unwrap().len(), 2);
    world.end().await;
}

/// LIB-1, CAT-4: an agent gets the part of the list that a filter admits, by server and by patterns; a denial wins.
#[tokio::test]
async fn lists_are_filtered() {
    let mock = || Mock::new().tool("read_file", Behaviour::Echo).tool("Write_File", Behaviour::Echo);
    let greet = native("read_me", |_| async { json!(0) });
    let world = World::with(&[("a", mock()), ("b", mock())], |_| (), |options| options.register(greet)).await;
    let check = |filter: ToolsFilter, expected: &[&str]| {
        let names: Vec<_> =
            world.tools.list_for(&filter).into_iter().map(|tool| tool.name.to_string()).collect();
        assert_eq!(names, expected);
    };
    let all = ToolsFilter::default;
    check(all(), &["a__read_file", "a__Write_File", "b__read_file", "b__Write_File", "read_me"]);
    check(all().servers(["b"]), &["b__read_file", "b__Write_File"]);
    check(all().allow(["READ_*"]).unwrap(), &["a__read_file", "b__read_file", "read_me"]);
    check(all().deny(["*file"]).unwrap(), &["read_me"]);
    check(all().servers(["a"]).allow(["any"]).unwrap().deny(["write*"]).unwrap(), &["a__read_file"]);
    check(all().servers([]), &[]);
    let refused = all().allow(["a["]).unwrap_err();
    assert!(refused.pattern == "a[" && refused.to_string().contains("`a[`"), "{refused}");
    world.end().await;
}

/// LIB-1: the health of every server is known, with the reason and the next step for one that does not serve; the others are
/// called as ever.
#[tokio::test]
async fn one_broken_server_does_not_stop_the_others() {
    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let broken = ServerConfig::program("broken", "/no/such/program", [""; 0]).unwrap();
    let options = options(&recorder).server(broken).server(server("fine", &EVERY("fine"), &leaks));
    let tools = options.start().await.unwrap();
    let health = tools.health();
    assert_eq!(
        (health[1].name.as_str(), health[1].state, health[1].tools),
        ("fine", ServerState::Ready, Some(1))
    );
    assert_eq!(health[0].state, ServerState::Restarting);
    assert!(health[0].reason.as_ref().unwrap().contains("there is no program at `/no/such/program`"));
    assert!(health[0].next_step.as_ref().unwrap().contains("check `command`"));
    assert_eq!(tools.call("fine__say", json!({})).await.unwrap().flat().result, "fine");
    let failed = tools.call("broken__say", json!({})).await.unwrap_err();
    assert_eq!((failed.code(), failed.server()), (Code::ProviderInitFailed, Some("broken")), "{failed}");
    World { tools, recorder, leaks }.end().await;
}

/// LIB-1: tools are built from a client's file or a file of our own. SRV-1: the file's variables come from the given map.
#[tokio::test]
async fn files_configure_tools() {
    let (leaks, recorder, folder) =
        (LeakCheck::start().required(), Recorder::new(), tempfile::tempdir().unwrap());
    let mock = Mock::new().tool("env", Behaviour::Environment { values: vec!["GREETING".to_owned()] });
    let (mark, value) = leaks.marker();
    let mut environment: std::collections::BTreeMap<String, String> = mock.env();
    environment.insert("SAID".to_owned(), "hello".to_owned());
    let (program, _) = mock.command();
    let mut env = json!({"MOCK_SCRIPT": "${MOCK_SCRIPT}", "GREETING": "${SAID}"});
    env[mark] = json!(value);
    let client = json!({"mcpServers": {"theirs": {"command": program, "env": env}}});
    let table = env.as_object().unwrap().iter().map(|(name, value)| format!("{name} = {value}\n"));
    let own = format!(
        "[gateway]\nprefix = false\n[servers.ours]\ncommand = {}\n[servers.ours.env]\n{}",
        json!(program),
        table.collect::<String>()
    );
    for (file, text, tool) in [("client.json", client.to_string(), "env"), ("own.toml", own, "env")] {
        let path = folder.path().join(file);
        std::fs::write(&path, text).unwrap();
        let options = options(&recorder).environment(environment.clone()).file(&path).unwrap();
        let tools = options.start().await.unwrap();
        let told = tools.call(tool, json!({})).await.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(structured(&told)["values"], json!({"GREETING": "hello"}));
        tools.close().await;
    }
    leaks.assert_clean().await;
    recorder.assert_paired();
    let refused =
        Tools::builder().environment(environment).file(folder.path().join("none.toml")).unwrap_err();
    assert!(refused.to_string().contains("none.toml"), "{refused}");
}

/// LIB-5: what cannot be started is refused with its reason, and nothing runs.
#[tokio::test]
async fn what_cannot_be_started() {
    let twice = || ServerConfig::program("one", "/no/such/program", [""; 0]).unwrap();
    let refused = Tools::builder().server(twice()).server(twice()).start().await.unwrap_err();
    assert!(
        matches!(&refused, StartToolsError::DuplicateServer(name) if name.as_str() == "one"),
        "{refused}"
    );
    assert!(refused.to_string().contains("two servers named `one`"));
    let tool = |schema| NativeTool::new("t", "", schema, |_, _| async { Ok(json!(0)) });
    for schema in
        [json!({"type": "object", "properties": 5}), json!({"type": "object", "$ref": "#/none"}), json!(7)]
    {
        let refused = Tools::builder().register(tool(schema.clone())).start().await.unwrap_err();
        assert!(
            matches!(refused, StartToolsError::Register(RegisterError::BadSchema { .. })),
            "{schema}: {refused}"
        );
    }
    let bad_name = ServerConfig::program("no spaces", "x", [""; 0]).unwrap_err();
    assert!(
        matches!(bad_name, InvalidServer::Name(_)) && bad_name.to_string().contains("1 to 64"),
        "{bad_name}"
    );
    let bad_url = ServerConfig::remote("one", "ftp://x").unwrap_err();
    assert!(
        matches!(bad_url, InvalidServer::Url(_)) && bad_url.to_string().contains("https://"),
        "{bad_url}"
    );
    let none = Tools::builder().configured(&Config::demo()).start().await.unwrap();
    assert!(none.list().is_empty() && none.health().is_empty() && none.instructions().is_none());
    assert_eq!(none.call("x", json!({})).await.unwrap_err().code(), Code::ProviderToolUnknown);
}

/// LIB-5, PIPE-3: a tool of a server whose schema does not compile is kept: it is called unchecked.
#[tokio::test]
async fn a_schema_that_does_not_compile() {
    let tool = Tool::new("odd", Behaviour::Echo).input_schema(r#"{"type":"object","properties":5}"#);
    let world = World::start(&[("one", Mock::legacy().full_tool(tool))]).await;
    let findings = &world.tools.health()[0].findings;
    assert!(findings.iter().any(|found| found.contains("`odd`")), "{findings:?}");
    assert_eq!(
        structured(&world.tools.call("one__odd", json!({"x": [1]})).await.unwrap()),
        json!({"x": [1]})
    );
    world.end().await;
}
