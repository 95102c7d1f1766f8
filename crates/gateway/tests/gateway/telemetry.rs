//! Which log lines starts and calls produce, and at which level.

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bridgehead_config::{ToolFilter, ToolOverride};
use bridgehead_events::{Delivery, Filter};
use bridgehead_gateway::NativeTool;
use bridgehead_testkit::{Behaviour, Crash, FakeClock, Mock, Tool};
use bridgehead_wire::Revision;
use parking_lot::Mutex;
use serde_json::json;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::support::Fixture;

#[derive(Clone, Default)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    pub(crate) fn listen(&self) -> tracing::subscriber::DefaultGuard {
        self.listen_with(FmtSpan::NONE)
    }

    pub(crate) fn listen_to_spans(&self) -> tracing::subscriber::DefaultGuard {
        self.listen_with(FmtSpan::CLOSE)
    }

    /// The lines for the end of a span of this name.
    pub(crate) fn closed(&self, span: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let closes = |line: &&str| {
            let spans = line.split(" bridgehead_").next().unwrap_or_default().trim_end_matches(':');
            // The fields of a span may hold colons too.
            let names: String =
                spans.split('}').map(|part| part.split('{').next().unwrap_or_default()).collect();
            let last = names.rsplit(':').next().unwrap_or_default().trim().trim_start_matches("DEBUG ");
            line.contains(": close") && last == span
        };
        text.lines().filter(closes).map(str::to_owned).collect()
    }

    fn listen_with(&self, spans: FmtSpan) -> tracing::subscriber::DefaultGuard {
        // `tracing` remembers for all threads whether anybody is interested in a line, from whoever listens when the line is
        // first met. A dispatcher that stays and is interested in everything makes that the same in any order of tests.
        static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
            let all = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(io::sink);
            tracing::Dispatch::new(all.finish())
        });
        LazyLock::force(&SECOND);
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(spans)
            .with_writer(move || lines.clone())
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// The level of every line that contains `what`.
    pub(crate) fn levels(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let told = text.lines().filter(|line| line.contains(what));
        told.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect()
    }

    pub(crate) fn line(&self, what: &str) -> String {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        text.lines().find(|line| line.contains(what)).unwrap_or_default().to_owned()
    }
}

/// POOL-14: each start logs its time, outcome and tool count; each call its latency and outcome. Payloads are logged
/// only at trace, without secrets, and so are answered probes and the ends of processes; hidden tools and latencies at debug,
/// restarts at warn.
#[tokio::test]
async fn starts_and_calls_are_logged() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let mock = Mock::legacy()
        .tool("echo", Behaviour::Echo)
        .tool("hidden", Behaviour::Echo)
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("die", Behaviour::Crash(Crash::Exit { status: 3 }));
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].filter = ToolFilter::new(["*"], ["hidden"]).unwrap();
        options.servers[0].restart = false;
    });
    fixture.settled().await;
    fixture.call("echo", json!({"password": "hunter2", "plain": "seen-in-full"})).await.unwrap();
    let gateway = fixture.gateway.clone();
    let params = json!({"name": "hang", "arguments": {}});
    let cancelled = tokio::spawn(async move {
        crate::support::ask(&gateway, Revision::V2025_11_25, "tools/call", params, None).await
    });
    bridgehead_testkit::until("the start of the second call", || fixture.recorder.enters().len() >= 2).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    fixture.call("die", json!({})).await.unwrap_err();
    fixture.gateway.stop().await;

    assert_eq!(lines.levels(" serves "), ["INFO"]);
    let serves = lines.line(" serves ");
    for part in ["mcp:m", "tools=4", "took="] {
        assert!(serves.contains(part), "{part}: {serves}");
    }
    assert_eq!(lines.levels("tools that the filters leave out"), ["DEBUG"]);
    assert!(lines.line("tools that the filters leave out").contains("hidden"));
    assert_eq!(lines.levels("its tools"), ["TRACE"]);
    assert_eq!(lines.levels("call ended"), ["DEBUG"; 3]);
    let ended = lines.line("call ended");
    for part in ["outcome=\"result\"", "durationMs=", "queuedMs=0", "server=\"m\""] {
        assert!(ended.contains(part), "{part}: {ended}");
    }
    assert_eq!(lines.levels("call in full"), ["TRACE"; 3]);
    let full = lines.line("call in full");
    for part in ["arguments=", "result=", "password", "seen-in-full", "correlationId="] {
        assert!(full.contains(part), "{part}: {full}");
    }
    assert_eq!(
        full.matches("seen-in-full").count(),
        3,
        "the arguments, and the result as text and as data: {full}"
    );
    let quoted = lines.levels("seen-in-full");
    assert!(quoted.iter().all(|level| level == "TRACE"), "arguments above trace: {quoted:?}");
    for (outcome, level) in [("\"cancelled\"", "DEBUG"), ("\"PROVIDER_CRASHED\"", "DEBUG")] {
        assert_eq!(lines.levels(&format!("outcome={outcome}")), [level], "{outcome}");
    }
    let named = |line: &str| line.contains(" bridgehead_upstream") && line.contains("server=");
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let about: Vec<&str> = text.lines().filter(|line| named(line)).collect();
    assert!(!about.is_empty() && about.iter().all(|line| line.contains("server=mcp:m")), "{about:?}");
    assert_eq!(lines.levels("hunter2"), [""; 0], "a secret is in the log");
    assert_eq!(lines.levels(" lost server=")[..1], ["WARN"]);
    assert_eq!(lines.levels("will not be started again"), ["WARN"]);
    assert_eq!(lines.levels("answered its health probe")[..1], ["TRACE"]);
    assert_eq!(lines.levels("its process has ended")[..1], ["TRACE"]);
    fixture.end().await;
}

/// POOL-14: a call is logged with its duration by the gateway's clock, to the millisecond.
#[tokio::test]
async fn latencies_are_logged_as_they_are() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let clock = FakeClock::new();
    let hands = clock.clone();
    let work = NativeTool::new("work", "", json!({"type": "object"}), move |_, _| {
        hands.advance(Duration::from_millis(250));
        async { Ok(json!(null)) }
    });
    let fixture = Fixture::start(&[], |options| {
        options.clock = Arc::new(clock);
        options.tools.push(work);
    });
    fixture.call("work", json!({})).await.unwrap();
    assert_eq!(lines.levels("call ended"), ["DEBUG"]);
    let ended = lines.line("call ended");
    for part in ["outcome=\"result\"", "durationMs=250", "queuedMs=0", "tool=work"] {
        assert!(ended.contains(part), "{part}: {ended}");
    }
    fixture.end().await;
}

/// PIPE-3: a tool whose schema does not compile is kept, with a warning that names the server and the tool. PIPE-5: the
/// panic of a handler is logged as an error, with its text.
#[tokio::test]
async fn what_is_wrong_with_tools_is_logged() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let bad = Tool::new("bad", Behaviour::Echo).input_schema(json!({"type": 5}));
    let cursed =
        NativeTool::new("cursed", "", json!({"type": "object"}), |_, _| async { panic!("its words") });
    let fixture =
        Fixture::start(&[("m", Mock::legacy().full_tool(bad))], |options| options.tools.push(cursed));
    fixture.settled().await;
    assert_eq!(lines.levels("`bad` has an input schema that cannot be used"), ["WARN"]);
    assert!(lines.line("`bad` has an input schema").contains("mcp:m"));
    fixture.call("bad", json!({"any": "thing"})).await.unwrap();
    fixture.call("cursed", json!({})).await.unwrap();
    assert_eq!(lines.levels("a tool handler panicked"), ["ERROR"]);
    let line = lines.line("a tool handler panicked");
    assert!(line.contains("name=\"cursed\"") && line.contains("its words"), "{line}");
    fixture.end().await;
}

/// CAT-4, HOUR-11: a setting for a tool that the server does not have is a warning, with a suggestion. It is logged
/// again only when the set of such findings changes.
#[tokio::test]
async fn what_the_configuration_says_in_vain_is_logged_once() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let grow = |name: &str| Behaviour::AddTool(Box::new(Tool::new(name, Behaviour::Echo)));
    let mock = Mock::legacy()
        .capabilities(r#"{"tools":{"listChanged":true}}"#)
        .tool("read", Behaviour::Echo)
        .tool("grow", grow("other"))
        .tool("mend", grow("wirte"));
    let fixture = Fixture::start(&[("m", mock)], |options| {
        let server = &mut options.servers[0];
        server.filter = ToolFilter::new(["*"], ["m__Read", "wirte"]).unwrap();
        server.tools.insert("reed".to_owned(), ToolOverride::default());
    });
    fixture.settled().await;
    let denied =
        "`tools_denied`: `m__Read` matches none of its tools, so it has no effect; did you mean `read`?";
    let other = "`tools_denied`: `wirte` matches none of its tools, so it has no effect";
    let setting = "`tools.reed` names none of its tools, so it has no effect; did you mean `read`?";
    let told = |words: &str| lines.levels(words).len();
    for words in [denied, other, setting] {
        assert_eq!(lines.levels(words), ["WARN"], "{words}");
        assert!(lines.line(words).contains("mcp:m"), "{words}");
    }
    let findings = fixture.gateway.status().upstreams[0].findings.clone();
    assert_eq!(findings, [denied, other, setting]);

    let mut changes = fixture.gateway.catalog_changes();
    changes.mark_unchanged();
    fixture.call("grow", json!({})).await.unwrap();
    changes.changed().await.unwrap();
    assert_eq!([denied, other, setting].map(told), [1, 1, 1], "the findings are unchanged");
    fixture.call("mend", json!({})).await.unwrap();
    crate::support::until(|| fixture.gateway.status().upstreams[0].findings.len() == 2).await;
    assert_eq!([denied, other, setting].map(told), [2, 1, 2], "one of them is resolved");
    fixture.end().await;
}

/// POOL-14: a server that fails to start is logged as a connection error.
#[tokio::test]
async fn a_failed_start_is_logged() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let fixture = Fixture::start(&[("m", Mock::legacy())], |options| {
        let bridgehead_config::Launch::Stdio(stdio) = &mut options.servers[0].launch else { unreachable!() };
        stdio.command = "no-such-program-anywhere".to_owned();
        options.servers[0].restart = false;
    });
    fixture.settled().await;
    assert_eq!(lines.levels("did not come up"), ["ERROR"]);
    let line = lines.line("did not come up");
    for part in ["mcp:m", "attempt=0", "reason=", "no-such-program-anywhere"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(lines.levels("will not be started again"), ["WARN"]);
    fixture.end().await;
}

/// POOL-14, POOL-9: a server that may not be started is an error, its standard error output is debug, and its tool
/// names appear only at trace. Each line carries `mcp:{server}`.
#[tokio::test]
async fn details_and_failures_have_their_levels() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let mock = || Mock::legacy().stderr("hello from below").tool("a_tool_of_its_own", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock()), ("walled", mock())], |options| {
        let files = bridgehead_config::FileAccess { read: vec!["/no/such/place".into()], write: Vec::new() };
        options.servers[1].confinement =
            Some(bridgehead_config::Confinement { files: Some(files), ..Default::default() });
    });
    fixture.settled().await;
    crate::support::until(|| !lines.levels("hello from below").is_empty()).await;
    fixture.gateway.stop().await;
    for (what, level, server) in [
        (" was not started server=", "ERROR", "mcp:walled"),
        ("hello from below", "DEBUG", "mcp:m"),
        ("its tools", "TRACE", "mcp:m"),
    ] {
        assert_eq!(lines.levels(what), [level], "{what}");
        assert!(lines.line(what).contains(&format!("server={server}")), "{}", lines.line(what));
    }
    assert!(lines.line("its tools").contains("a_tool_of_its_own"), "{}", lines.line("its tools"));
    let named = lines.levels("a_tool_of_its_own");
    assert!(named.iter().all(|level| level == "TRACE"), "{named:?}");
    fixture.end().await;
}

/// PIPE-8: the id of a call is in every line about it and in its event; a client's id that is a UUID is used unchanged.
#[tokio::test]
async fn the_id_of_a_call_is_in_its_lines_and_its_event() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let mock = Mock::legacy().tool("echo", Behaviour::Echo).tool("list", Behaviour::raw_result("[]"));
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    fixture.settled().await;
    let filter = Filter { topics: vec!["provider.mcp.tool".to_owned()], server: None };
    let mut told = fixture.gateway.events().subscribe_to(filter, 8);
    let mut ids = vec!["01890a5d-ac96-774b-bcce-b302099a8057".to_owned()];
    let meta = json!({"bridgehead/correlationId": ids[0]});
    let params = json!({"name": "echo", "arguments": {}, "_meta": meta});
    fixture.ask(Revision::V2025_11_25, "tools/call", params).await.unwrap();
    let failed = fixture.call("list", json!({})).await.unwrap_err();
    ids.push(failed["data"]["correlationId"].as_str().unwrap().to_owned());
    fixture.gateway.stop().await;
    for (id, says) in
        ids.iter().zip([&["call ended", "call in full"][..], &["call ended", "call in full", "call failed"]])
    {
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        for what in says {
            let found = text
                .lines()
                .filter(|line| line.contains(what) && line.contains(&format!("correlationId={id}")));
            assert_eq!(found.count(), 1, "{what} of {id}: {text}");
        }
        let Some(Delivery::Event(event)) = told.try_next() else { panic!("no event of {id}") };
        assert_eq!((event.correlation().to_string(), event.server()), (id.clone(), Some("m")));
    }
    fixture.end().await;
}

/// PIPE-8: there is a span for the call and one for each stage, with the call's id. If spans are recorded, the client's
/// trace continues under a span of ours, and a request without a trace starts one with the id of the call.
#[tokio::test]
async fn spans_and_traces() {
    let lines = Lines::default();
    let _listening = lines.listen_to_spans();
    let mock = Mock::legacy().tool("echo", Behaviour::Echo).tool("received", Behaviour::Received);
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0]
            .tools
            .insert("echo".to_owned(), ToolOverride { lock: Some(true), ..ToolOverride::default() });
    });
    fixture.settled().await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let call = async |meta: serde_json::Value| {
        let params = json!({"name": "echo", "arguments": {}, "_meta": meta});
        fixture.ask(Revision::V2025_11_25, "tools/call", params).await.unwrap();
        let received = fixture.call("received", json!({})).await.unwrap();
        received["content"][0]["text"].as_str().unwrap().replace([' ', '\n'], "")
    };
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let continued = call(json!({"bridgehead/correlationId": id, "tracestate": "a=1", "baggage": "k=v",
                                "traceparent": format!("00-{trace}-b7ad6b7169203331-00")}))
    .await;
    let begun =
        call(json!({"bridgehead/correlationId": id, "tracestate": "a=1", "traceparent": "nonsense"})).await;
    fixture.gateway.stop().await;

    for stage in ["lock", "validate", "audit_enter", "acquire", "send", "dispatch", "audit_exit", "call"] {
        let closed: Vec<String> = lines.closed(stage).into_iter().filter(|line| line.contains(id)).collect();
        assert_eq!(closed.len(), 2, "{stage}: {closed:?}");
    }
    assert!(lines.closed("send")[0].contains("dispatch{server=\"m\"}"), "{}", lines.closed("send")[0]);
    let called = &lines.closed("call")[0];
    assert!(
        called.contains(&format!("traceId=\"{trace}\""))
            && called.contains("parentSpanId=\"b7ad6b7169203331\""),
        "{called}"
    );
    let (_, own) = called.split_once(" spanId=\"").unwrap();
    let own = &own[..16];
    assert!(continued.contains(&format!(r#""traceparent":"00-{trace}-{own}-00""#)), "{own}: {continued}");
    assert!(
        continued.contains(r#""tracestate":"a=1""#) && continued.contains(r#""baggage":"k=v""#),
        "{continued}"
    );
    assert!(begun.contains(&format!(r#""traceparent":"00-{}-"#, id.replace('-', ""))), "{begun}");
    assert!(!begun.contains("tracestate"), "a trace that starts here carries no foreign state: {begun}");
    assert!(continued.contains(id) && begun.contains(id));
    fixture.end().await;
}
