//! What a call returns and reports: a valid result, its duration, one event for each outcome, and limits that reach the
//! process that serves it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{Isolation, Limits};
use bridgehead_events::Event;
use bridgehead_testkit::{Behaviour, FrozenClock, Tool};
use bridgehead_upstream::provider::{Execution, Invocation, ProviderAdapter, ProviderError};
use bridgehead_wire::Code;
use serde_json::{Value, json};

use crate::world::{Way, World, mock, wall_clock_tick};

/// A tool that runs a script and then answers.
fn shell(script: &str) -> Behaviour {
    Behaviour::Shell { script: script.to_owned(), then: Box::new(Behaviour::Echo) }
}

async fn execute(world: &World, tool: &str, arguments: Value) -> Result<Execution, ProviderError> {
    let invocation = Invocation::new(format!("far__{tool}"), arguments);
    world.provider.execute(&invocation, CorrelationId::mint()).await
}

/// PROV-4, ENV-9: a result that violates its tool's output schema is `PROVIDER_INVALID_OUTPUT`, not retryable. A tool's
/// own error is exempt, and without an output schema anything is valid.
#[tokio::test]
async fn results_must_keep_their_promise() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let promising = |name: &str, result: &str| {
        Tool::new(name, Behaviour::raw_result(result)).output_schema(schema.to_string())
    };
    let mock = || {
        mock()
            .full_tool(promising("good", r#"{"content":[],"structuredContent":{"n":1}}"#))
            .full_tool(promising("bad", r#"{"content":[],"structuredContent":{"n":"x"}}"#))
            .full_tool(promising("none", r#"{"content":[]}"#))
            .full_tool(promising("failing", r#"{"content":[],"structuredContent":{"n":"x"},"isError":true}"#))
            .tool("free", Behaviour::raw_result(r#"{"content":[],"structuredContent":{"n":"x"}}"#))
    };
    for isolation in [Isolation::Shared, Isolation::Call] {
        let world = World::new(Way::Stdio, mock());
        world.provider.init(world.config().isolation(isolation)).await.unwrap();
        for (tool, words) in [
            ("good", None),
            ("bad", Some("/n")),
            ("none", Some("`structuredContent` is missing")),
            ("failing", None),
            ("free", None),
        ] {
            match (execute(&world, tool, json!({})).await, words) {
                (Ok(executed), None) => assert_eq!(executed.flat().ok, tool != "failing", "{tool}"),
                (Err(error), Some(words)) => {
                    assert_eq!(
                        (error.code, error.retryable()),
                        (Code::ProviderInvalidOutput, false),
                        "{error}"
                    );
                    let begins = format!("the result of tool `far__{tool}` does not fit its output schema");
                    assert!(error.message.starts_with(&begins) && error.message.contains(words), "{error}");
                }
                (outcome, _) => panic!("{tool}: {outcome:?}"),
            }
        }
        world.end().await;
    }
}

/// PROV-4: unknown tools and invalid arguments are refused before anything is sent.
#[tokio::test]
async fn what_does_not_fit_is_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let transcript = folder.path().join("said");
    let world = World::new(Way::Stdio, mock().transcript(&transcript));
    world.provider.init(world.config()).await.unwrap();
    for (tool, arguments, code) in [
        ("nobody", json!({"n": "many"}), Code::ProviderToolUnknown),
        ("echo", json!({"n": "many"}), Code::ProviderInvalidInput),
        ("echo", json!([]), Code::ProviderInvalidInput),
    ] {
        let error = execute(&world, tool, arguments).await.unwrap_err();
        assert_eq!((error.code, error.retryable()), (code, false), "{error}");
    }
    let calls = || std::fs::read_to_string(&transcript).unwrap().matches("tools/call").count();
    assert_eq!(calls(), 0);
    execute(&world, "echo", json!({"n": 1})).await.unwrap();
    assert_eq!(calls(), 1);
    world.end().await;
}

/// A tool that reports when it was called, and answers when the test lets it.
struct Gate(tempfile::TempDir);

impl Gate {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn behaviour(&self) -> Behaviour {
        let (called, go) = (self.file("called"), self.file("go"));
        shell(&format!(
            "touch '{}'; while [ ! -e '{}' ]; do sleep 0.01; done",
            called.display(),
            go.display()
        ))
    }

    /// Waits until the tool is called, by the wall clock.
    async fn is_called(&self) {
        for _ in 0..30_000 {
            if self.file("called").exists() {
                return;
            }
            wall_clock_tick().await;
        }
        panic!("the tool was never called");
    }

    fn let_go(&self) {
        std::fs::write(self.file("go"), "").unwrap();
    }
}

/// PROV-4, BUS-1, ENV-8: a call returns the tool, the result, the given id, and the duration to the millisecond. The
/// bus and the form for agents report the same duration.
#[tokio::test]
async fn a_call_is_told_with_what_it_took() {
    for isolation in [Isolation::Shared, Isolation::Call] {
        let gate = Gate::new();
        let mut world = World::new(Way::Stdio, mock().tool("work", gate.behaviour()));
        world.provider.init(world.config().isolation(isolation)).await.unwrap();
        world.told();
        tokio::time::pause();
        let still = FrozenClock::begin();
        let invocation = Invocation::new("far__work", json!({"n": 1}));
        let correlation = CorrelationId::mint();
        let call = world.provider.execute(&invocation, correlation);
        let work = async {
            gate.is_called().await;
            tokio::time::advance(Duration::from_millis(1_234)).await;
            gate.let_go();
        };
        let (executed, ()) = tokio::join!(call, work);
        let executed = executed.unwrap();
        assert_eq!(executed.duration, Duration::from_millis(1_234), "{isolation:?}");
        assert_eq!((executed.tool.as_str(), executed.correlation), ("far__work", correlation));
        assert_eq!(executed.result.decode::<Value>().unwrap()["structuredContent"], json!({"n": 1}));
        let (envelope, flat) = (executed.envelope(), executed.flat());
        assert_eq!((envelope.meta.latency_ms, flat.latency_ms), (1_234, 1_234));
        assert_eq!((envelope.meta.server.as_str(), envelope.meta.tool.as_str()), ("far", "far__work"));
        let told = outcomes(&world.told());
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(
            (&told[0]["durationMs"], &told[0]["correlationId"]),
            (&json!(1_234), &json!(correlation.to_string()))
        );
        drop(still);
        tokio::time::resume();
        world.end().await;
    }
}

/// The events about call outcomes.
fn outcomes(events: &[std::sync::Arc<Event>]) -> Vec<Value> {
    let written = events.iter().map(|event| json!(**event));
    written.filter(|event| event["topic"].as_str().unwrap().starts_with("provider.mcp.tool.")).collect()
}

/// BUS-1, BUS-2: every outcome of a call, including a drop by its caller, is one event under the call's id, with every
/// member of its topic.
#[tokio::test]
async fn every_outcome_is_told_once() {
    let long = "x".repeat(5_000);
    let promising = Tool::new("bad", Behaviour::raw_result(r#"{"content":[],"structuredContent":5}"#))
        .output_schema(r#"{"type":"object"}"#);
    let scripted = mock()
        .full_tool(promising)
        .tool("long", Behaviour::Text(long.clone()))
        .tool("failing", Behaviour::IsError("no".to_owned()))
        .tool("busy", Behaviour::error(-32603, "busy"))
        .tool("strict", Behaviour::error(-32602, "what is this?"))
        .tool("odd", Behaviour::error(-32050, "password=hunter2"));
    let mut world = World::new(Way::Stdio, scripted);
    let check = async |world: &mut World, tool: &str, arguments: Value, code: Option<Code>| -> Value {
        world.told();
        let correlation = CorrelationId::mint();
        let timeout = (tool == "hang").then_some(Duration::from_millis(50));
        let invocation = Invocation::new(format!("far__{tool}"), arguments).timeout(timeout);
        let outcome = world.provider.execute(&invocation, correlation).await;
        let told = outcomes(&world.told());
        assert_eq!(told.len(), 1, "{tool}: {told:?}");
        let event = &told[0];
        assert_eq!(event["correlationId"], correlation.to_string(), "{tool}");
        assert_eq!(event["tool"], format!("far__{tool}"));
        assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
        match (outcome, code) {
            (Ok(executed), None) => {
                assert_eq!(event["topic"], "provider.mcp.tool.completed", "{tool}");
                assert_eq!(event["durationMs"], json!(executed.duration.as_millis()), "{tool}");
                assert_eq!(event.as_object().unwrap().len(), 9, "{event}");
                let summary = event["summary"].as_str().unwrap();
                let whole = executed.result.as_str();
                assert!(summary.len() <= 1_024, "{tool}: {}", summary.len());
                assert!(whole == summary || whole.starts_with(summary.strip_suffix('…').unwrap()), "{event}");
            }
            (Err(error), Some(code)) => {
                assert_eq!(error.code, code, "{error}");
                assert_eq!(event["topic"], "provider.mcp.tool.failed", "{tool}");
                assert_eq!(
                    (&event["code"], &event["retryable"]),
                    (&json!(code.as_str()), &json!(error.retryable()))
                );
                let message = event["message"].as_str().unwrap();
                assert!(message == error.message || message.contains("[redacted]"), "{event}");
                assert_eq!(event.as_object().unwrap().len(), 10, "{event}");
            }
            (outcome, _) => panic!("{tool}: {outcome:?}"),
        }
        event.clone()
    };
    let before = check(&mut world, "echo", json!({}), Some(Code::ProviderUnavailable)).await;
    assert_eq!(
        (&before["server"], &before["retryable"]),
        (&Value::Null, &json!(false)),
        "nothing is connected yet, and no repetition connects it"
    );
    world.provider.init(world.config()).await.unwrap();
    for (tool, arguments, code) in [
        ("echo", json!({"n": 7}), None),
        ("long", json!({}), None),
        ("failing", json!({}), None),
        ("nobody", json!({}), Some(Code::ProviderToolUnknown)),
        ("echo", json!({"n": "many"}), Some(Code::ProviderInvalidInput)),
        ("bad", json!({}), Some(Code::ProviderInvalidOutput)),
        ("busy", json!({}), Some(Code::ProviderUnavailable)),
        ("strict", json!({}), Some(Code::ProviderInvalidInput)),
        ("odd", json!({}), Some(Code::ProviderInvalidOutput)),
        ("hang", json!({}), Some(Code::ProviderTimeout)),
        ("die", json!({}), Some(Code::ProviderCrashed)),
    ] {
        let event = check(&mut world, tool, arguments, code).await;
        assert_eq!(event["server"], "far", "{event}");
        assert!(!event.to_string().contains("hunter2"), "{event}");
        if tool == "long" {
            assert!(event["summary"].as_str().unwrap().len() > 1_000, "{event}");
        }
    }

    world.until(bridgehead_upstream::provider::Health::Healthy).await;
    world.told();
    let invocation = Invocation::new("far__hang", json!({}));
    let correlation = CorrelationId::mint();
    let dropped =
        tokio::time::timeout(Duration::from_millis(20), world.provider.execute(&invocation, correlation));
    assert!(dropped.await.is_err());
    let told = outcomes(&world.told());
    assert_eq!(told.len(), 1, "{told:?}");
    let shown = ["topic", "correlationId", "server", "tool", "code", "retryable", "message"];
    assert_eq!(
        json!(shown.map(|key| &told[0][key])),
        json!([
            "provider.mcp.tool.failed",
            correlation.to_string(),
            "far",
            "far__hang",
            "cancelled",
            false,
            "the caller no longer wants the answer"
        ])
    );
    world.end().await;
}

/// The soft limit in a process's `/proc/*/limits` table.
fn limit(table: &str, name: &str) -> String {
    let line = table.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

/// BOX-1, PROV-1: an isolated call's process has the default limits of a call, or those of its tool. A shared process
/// has only the limits that are set.
#[tokio::test]
async fn limits_reach_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = |tool: &str| folder.path().join(tool);
    let tell = |tool: &str| shell(&format!("cat /proc/self/limits > '{}'", file(tool).display()));
    let scripted = || mock().tool("usual", tell("usual")).tool("small", tell("small"));
    let table = |path: &Path| std::fs::read_to_string(path).unwrap();
    let own = table("/proc/self/limits".as_ref());
    let of_small = Limits {
        memory: Some(512 << 20),
        open_files: Some(100),
        file_size: Some(3 << 20),
        ..Limits::default()
    };
    // Where there is a control group it limits memory, and the process has no rlimit for it.
    let memory = |found: &str, most: u64| found == most.to_string() || found == limit(&own, "Max data size");

    let world = World::new(Way::Stdio, scripted());
    let isolated = world
        .config()
        .isolation(Isolation::Call)
        .limits(Limits::OF_A_CALL)
        .tool_limits([("small".to_owned(), of_small)].into());
    world.provider.init(isolated).await.unwrap();
    for (tool, [bytes, files, size]) in
        [("usual", [256 << 20, 256, 64 << 20]), ("small", [512 << 20, 100, 3 << 20])]
    {
        execute(&world, tool, json!({})).await.unwrap();
        let table = table(&file(tool));
        assert_eq!(limit(&table, "Max open files"), files.to_string(), "{tool}");
        assert_eq!(limit(&table, "Max file size"), size.to_string(), "{tool}");
        assert!(memory(&limit(&table, "Max data size"), bytes), "{tool}: {table}");
    }
    world.end().await;

    let world = World::new(Way::Stdio, scripted());
    world.provider.init(world.config()).await.unwrap();
    execute(&world, "usual", json!({})).await.unwrap();
    for name in ["Max open files", "Max file size", "Max data size"] {
        assert_eq!(limit(&table(&file("usual")), name), limit(&own, name), "{name}");
    }
    world.end().await;
}

/// BOX-3: an isolated call that crashes is `PROVIDER_CRASHED` with the end of its error output; one that uses too much
/// memory gives that as the reason.
#[tokio::test]
async fn crashes_say_why() {
    // Three processes that together hold 150 MB for a moment.
    let hog = "for i in 1 2 3; do (head -c 50000000 /dev/zero; sleep 2) | tail | wc -c >&2 & done; wait";
    let words = "echo the disk is on fire >&2; kill -ABRT $PPID; sleep 60";
    let world = World::new(Way::Stdio, mock().tool("hog", shell(hog)).tool("abort", shell(words)));
    let limits = Limits { memory: Some(96 << 20), ..Limits::OF_A_CALL };
    let config = world.config().isolation(Isolation::Call).limits(limits);
    world.provider.init(config.timeout(Duration::from_secs(60))).await.unwrap();
    for (tool, parts) in [
        ("abort", ["(signal)", "signal 6", "the disk is on fire"]),
        ("hog", ["(memory_limit)", "memory limit", "MB"]),
    ] {
        let error = execute(&world, tool, json!({})).await.unwrap_err();
        assert_eq!((error.code, error.retryable()), (Code::ProviderCrashed, true), "{error}");
        for part in parts {
            assert!(error.message.contains(part), "{part}: {error}");
        }
        assert!(world.run("echo", json!({})).await.is_ok(), "after {tool}");
    }
    world.end().await;
}

/// PROV-1: the environment variables and the message limit of a configuration reach the server.
#[tokio::test]
async fn the_configuration_reaches_the_server() {
    let values = ["HOME", "TOKEN"].map(str::to_owned).to_vec();
    let scripted = mock()
        .tool("env", Behaviour::Environment { values })
        .tool("flood", Behaviour::Flood { megabytes: 2 });
    let world = World::new(Way::Stdio, scripted);
    let ours = [("HOME", "/home/someone"), ("TOKEN", "hunter2")];
    let config = world
        .config()
        .environment(ours.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
        .limit(1 << 20);
    world.provider.init(config).await.unwrap();
    let values = execute(&world, "env", json!({})).await.unwrap().result.decode::<Value>().unwrap();
    let values = &values["structuredContent"]["values"];
    assert_eq!((&values["HOME"], values.get("TOKEN")), (&json!("/home/someone"), None), "{values}");
    let error = execute(&world, "flood", json!({})).await.unwrap_err();
    assert_eq!(error.code, Code::ProviderInvalidOutput, "{error}");
    assert!(error.message.contains("more than the limit of 1048576"), "{error}");
    world.end().await;
}
