//! What the gateway offers, under which names, and when.

use std::time::Duration;

use crate::support::{Fixture, until};
use bridgehead_config::{Launch, Mode, Prefix, Retry, ToolFilter};
use bridgehead_gateway::{Options, Principal};
use bridgehead_testkit::{Behaviour, Mock, Probe, Tool};
use bridgehead_upstream::UpstreamState;
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

/// SRV-5: `readonly` hides and counts every tool that is not annotated read-only; an error for a call to one names the
/// tool and the mode. `minimal` starts no server.
#[tokio::test]
async fn modes_hide_tools() {
    let reader = Tool::new("read", Behaviour::Echo).annotations(json!({"readOnlyHint": true}));
    let servers = [("m", Mock::legacy().full_tool(reader).tool("write", Behaviour::Echo))];
    let readonly = Fixture::start(&servers, |options| options.settings.mode = Mode::Readonly);
    assert_eq!(readonly.names().await, ["read", "server_ping", "server_health"]);
    readonly.call("read", json!({})).await.unwrap();
    let error = readonly.call("write", json!({})).await.unwrap_err();
    assert_eq!(error["message"], "tool `write` is not available in mode `readonly`");
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32602), &json!("PROVIDER_TOOL_UNKNOWN")));
    assert_eq!((&error["data"]["server"], &error["data"]["mayHaveRun"]), (&json!("m"), &json!(false)));
    assert_eq!(readonly.gateway.health()["counters"]["toolsHiddenByMode"], 1);
    readonly.end().await;
    let minimal = Fixture::start(&servers, |options| options.settings.mode = Mode::Minimal);
    assert_eq!(minimal.names().await, ["server_ping", "server_health"]);
    assert!(minimal.gateway.upstreams().is_empty());
    minimal.end().await;
}

/// SRV-3: the first list waits for starting servers, then lists the tools known so far with `ttlMs` 0. Later tools are
/// announced.
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
    fixture.settled().await;
    changes.changed().await.unwrap();
    let late: Value = fixture.ask(MODERN, "tools/list", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(late["tools"].as_array().unwrap().len(), 4);
    assert!(late["ttlMs"].as_u64().unwrap() > 0);
    fixture.end().await;
}

/// JOIN-5: the first list waits its time and not longer, and no later list waits. Meanwhile the instructions of
/// either era say that they are partial and which servers are missing; they are complete once the servers are there.
#[tokio::test]
async fn an_early_list_is_completed_later() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let told = mock(&["a"]).instructions("Be quick.");
    let servers = [("quick", told), ("slow", mock(&["b"])), ("late", mock(&["c"]))];
    let wait = Duration::from_secs(7);
    let fixture = Fixture::start(&servers, |options| {
        options.settings.list_wait = wait;
        for server in &mut options.servers[1..] {
            behind(&gate, server);
        }
    });
    let discovered = async || {
        let found: Value = fixture.ask(MODERN, "server/discover", json!({})).await.unwrap().decode().unwrap();
        assert_eq!(found["ttlMs"], 0, "it may be outdated at any time");
        found["instructions"].as_str().unwrap().to_owned()
    };
    let initialized = || {
        let answer: Value = fixture.gateway.initialize(&Principal::local(), LEGACY).decode().unwrap();
        answer["instructions"].as_str().unwrap().to_owned()
    };
    let all_missing = "These instructions are partial: MCP servers `slow` and `late` are still starting. Their tools are \
                       listed when they are ready.";
    until(|| fixture.gateway.instructions().is_some_and(|told| told.starts_with("####"))).await;
    let partial = format!("#### MCP Server: quick\n\nBe quick.\n\n{all_missing}");
    assert_eq!(initialized(), partial, "a legacy client is answered at once");

    tokio::time::pause();
    for (revision, waits) in [(LEGACY, 5 * wait), (MODERN, Duration::ZERO)] {
        let began = tokio::time::Instant::now();
        let early: Value = fixture.ask(revision, "tools/list", json!({})).await.unwrap().decode().unwrap();
        let waited = began.elapsed();
        assert!(
            waited >= waits && waited < waits + Duration::from_millis(50),
            "{waited:?} instead of {waits:?}"
        );
        assert_eq!(early["tools"].as_array().unwrap().len(), 3, "quick, and our own: {early}");
    }
    let began = tokio::time::Instant::now();
    // By now the attempts of the others may have timed out by the paused clock, and one of them may be between two attempts.
    let told = discovered().await;
    let still = "#### MCP Server: quick\n\nBe quick.\n\nThese instructions are partial: MCP server";
    assert!(told.starts_with(still), "{told}");
    assert!(began.elapsed() < Duration::from_millis(300), "{:?}", began.elapsed());
    tokio::time::resume();

    let mut changes = fixture.gateway.catalog_changes();
    changes.mark_unchanged();
    std::fs::write(&gate, "").unwrap();
    changes.changed().await.unwrap();
    fixture.settled().await;
    assert_eq!(fixture.names().await, ["quick__a", "slow__b", "late__c", "server_ping", "server_health"]);
    let complete = "#### MCP Server: quick\n\nBe quick.".to_owned();
    assert_eq!((discovered().await, initialized()), (complete.clone(), complete));
    fixture.end().await;
}

/// Makes a server start only when a file exists.
fn behind(gate: &std::path::Path, server: &mut bridgehead_config::ServerConfig) {
    let Launch::Stdio(stdio) = &mut server.launch else { unreachable!() };
    let script = format!("until [ -e '{}' ]; do sleep 0.05; done; exec \"$@\"", gate.display());
    let program = std::mem::replace(&mut stdio.command, "/bin/sh".to_owned());
    let args = std::mem::take(&mut stdio.args);
    stdio.args = ["-c".to_owned(), script, "sh".to_owned(), program].into_iter().chain(args).collect();
}

/// A call for a tool whose server is still starting waits for it, too.
#[tokio::test]
async fn a_call_waits_for_its_server() {
    let fixture = Fixture::start(&[("slow", mock(&["b"]).list_delay_ms(300))], |_| ());
    fixture.call("b", json!({})).await.unwrap();
    fixture.end().await;
}

/// HOUR-2: a call to a starting server waits within its own deadline, even where lists do not wait at all, as here. If
/// the deadline passes first, the error names the server it waited for. A call to an unknown tool of another server
/// does not wait.
#[tokio::test]
async fn a_call_waits_for_a_starting_server_within_its_own_clock() {
    let servers = [("slow", mock(&["b"]).list_delay_ms(1_000)), ("quick", mock(&["a"]))];
    let fixture = Fixture::start(&servers, |options| options.settings.list_wait = Duration::ZERO);
    fixture.call("quick__a", json!({})).await.unwrap();
    let error = fixture.call("quick__none", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_TOOL_UNKNOWN", "{error}");
    let health = fixture.gateway.health();
    assert_eq!(health["upstreams"][0]["state"], "starting", "no call waited for it: {health}");
    fixture.call("slow__b", json!({})).await.unwrap();
    fixture.end().await;

    let servers = [("never", mock(&["b"]).list_delay_ms(3_600_000))];
    let fixture = Fixture::start(&servers, |options| {
        options.settings.list_wait = Duration::ZERO;
        options.settings.request_timeout = Duration::from_millis(300);
        for server in &mut options.servers {
            server.request_timeout = Some(Duration::from_millis(300));
        }
    });
    let error = fixture.call("b", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_UNAVAILABLE", "{error}");
    assert!(error["message"].as_str().unwrap().contains("`never` is still starting"), "{error}");
    fixture.end().await;
}

/// One broken server never stops the others, and the health report says why it broke.
#[tokio::test]
async fn a_broken_server_does_not_hurt_the_others() {
    let broken = Mock::legacy()
        .on_probe(Probe::Exit { status: 1 })
        .on_initialize(bridgehead_testkit::Initialize::Exit { status: 7 });
    let fixture = Fixture::start(&[("broken", broken), ("good", mock(&["a"]))], |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(300));
    });
    assert_eq!(fixture.names().await, ["good__a", "server_ping", "server_health"]);
    let health = fixture.gateway.health();
    assert_eq!(health["upstreams"][0]["state"], "restarting");
    assert!(health["upstreams"][0]["reason"].as_str().unwrap().contains("exit status 7"), "{health}");
    assert_eq!(health["upstreams"][1]["state"], "ready");
    let error = fixture.call("broken__a", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "mcp_restart_in_progress");
    assert!(error["message"].as_str().unwrap().contains("exit status 7"), "{error}");
    fixture.end().await;
}

/// Makes the first server fail at its first `failures` starts. Each attempt starts it twice: with the probe, and
/// without.
fn failing_first(options: &mut Options, folder: &std::path::Path, failures: usize) {
    let Launch::Stdio(stdio) = &mut options.servers[0].launch else { unreachable!() };
    let script = format!(
        "n=$(ls '{folder}' | wc -l); touch '{folder}'/$$; [ $n -ge {failures} ] || exit 7; exec \"$@\"",
        folder = folder.display()
    );
    let program = std::mem::replace(&mut stdio.command, "/bin/sh".to_owned());
    let args = std::mem::take(&mut stdio.args);
    stdio.args = ["-c".to_owned(), script, "sh".to_owned(), program].into_iter().chain(args).collect();
}

/// POOL-2: the first call to a server that fails to start waits for the next attempts, but not past its own deadline.
/// POOL-11: its error then says that the server is being restarted and that the call may be retried. After a minute of
/// outage the error comes at once, with the age of the outage.
#[tokio::test]
async fn a_first_call_waits_for_the_attempts_to_start_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::start(&[("m", mock(&["a"]))], |options| failing_first(options, folder.path(), 4));
    fixture.settled().await;
    let state = fixture.gateway.upstreams()[0].state();
    assert!(matches!(state, UpstreamState::Restarting(_)), "it failed at first: {state:?}");
    fixture.call("a", json!({})).await.unwrap();
    fixture.end().await;

    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::start(&[("m", mock(&["a"]))], |options| {
        failing_first(options, folder.path(), usize::MAX);
        options.servers[0].request_timeout = Some(Duration::from_millis(300));
    });
    fixture.settled().await;
    let began = tokio::time::Instant::now();
    let error = fixture.call("a", json!({})).await.unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    let told = |error: &Value| (error["data"]["code"].clone(), error["data"]["retryable"].clone());
    assert_eq!(told(&error), (json!("mcp_restart_in_progress"), json!(true)), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("is being restarted; call again later: "), "{message}");
    assert!(message.contains("exit status 7"), "{message}");

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    let down = fixture.gateway.status().upstreams[0].down_ms;
    assert!(down.is_some_and(|ms| (60_000..600_000).contains(&ms)), "{down:?}");
    let began = tokio::time::Instant::now();
    let error = fixture.call("a", json!({})).await.unwrap_err();
    assert_eq!(began.elapsed().as_millis(), 0, "the call no longer waits");
    tokio::time::resume();
    assert_eq!(told(&error), (json!("PROVIDER_UNAVAILABLE"), json!(true)), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("has been down for 6"), "{message}");
    fixture.end().await;
}

fn dying() -> Mock {
    mock(&["a"]).tool("die", Behaviour::Crash(bridgehead_testkit::Crash::Exit { status: 3 }))
}

/// A lost server is restarted. The call that lost it says that it may have run and is not repeated; later calls wait
/// for the restart, and the list stays the same.
#[tokio::test]
async fn a_lost_server_comes_back() {
    let fixture = Fixture::start(&[("m", dying())], |_| ());
    fixture.settled().await;
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
        fixture.settled().await;
        let outcome = fixture.call("once", json!({})).await;
        assert_eq!(outcome.is_ok(), repeated, "{retry:?} {annotations} {outcome:?}");
        fixture.end().await;
    }
    let _ = std::fs::remove_file(&once);
}

/// POOL-11: a call whose deadline passes while its server is being restarted says so. The second restart in a row comes
/// after one second, which is longer than this call's timeout.
#[tokio::test]
async fn a_call_may_not_outlast_the_restart() {
    let fixture = Fixture::start(&[("m", dying())], |options| {
        options.servers[0].request_timeout = Some(Duration::from_millis(200));
    });
    fixture.settled().await;
    for _ in 0..2 {
        fixture.call("die", json!({})).await.unwrap_err();
        let mut state = fixture.gateway.upstreams()[0].watch();
        state.wait_for(|state| !matches!(state, UpstreamState::Ready(_))).await.unwrap();
        let after = fixture.call("a", json!({})).await;
        if let Err(error) = after {
            assert_eq!(
                (error["data"]["code"].as_str(), error["data"]["retryable"].as_bool()),
                (Some("mcp_restart_in_progress"), Some(true))
            );
            assert_eq!(error["data"]["mayHaveRun"], false, "{error}");
            return fixture.end().await;
        }
    }
    panic!("the second restart was not waited for");
}

/// POOL-11: with restart off, the tools of a lost server are no longer listed, and a call to one says so.
#[tokio::test]
async fn a_server_that_is_not_restarted_is_named() {
    let fixture = Fixture::start(&[("m", dying())], |options| options.servers[0].restart = false);
    fixture.settled().await;
    let mut changes = fixture.gateway.catalog_changes();
    fixture.call("die", json!({})).await.unwrap_err();
    changes.changed().await.unwrap();
    assert_eq!(fixture.names().await, ["server_ping", "server_health"]);
    let error = fixture.call("a", json!({})).await.unwrap_err();
    assert_eq!(
        (error["data"]["code"].as_str(), error["data"]["mayHaveRun"].as_bool()),
        (Some("mcp_restart_failed"), Some(false))
    );
    assert_eq!(error["data"]["retryable"], false, "{error}");
    fixture.end().await;
}

/// CAT-4: a tool that the filter does not admit is neither listed nor callable.
#[tokio::test]
async fn filters_hide_tools() {
    let fixture = Fixture::start(&[("m", mock(&["read", "write"]))], |options| {
        options.servers[0].filter = ToolFilter::new(["*"], ["W*"]).unwrap();
    });
    assert_eq!(fixture.names().await, ["read", "server_ping", "server_health"]);
    assert_eq!(fixture.call("write", json!({})).await.unwrap_err()["code"], -32602);
    fixture.end().await;
}

/// CAT-1: the revision is negotiated, all pages are read, and every member of a tool's definition is registered and
/// listed unchanged.
#[tokio::test]
async fn all_of_a_server_is_registered() {
    let full = Tool::new("full", Behaviour::Echo)
        .description("Says it all.")
        .input_schema(json!({"type": "object", "properties": {"n": {"type": "integer"}}}))
        .output_schema(json!({"type": "object"}))
        .annotations(json!({"readOnlyHint": true, "title": "Full"}))
        .extra("x-own", json!([1, 2]));
    let many = (0..40).fold(Mock::legacy().revision("2024-11-05").pages(7), |mock, number| {
        mock.tool(format!("t{number}"), Behaviour::Echo)
    });
    let servers = [("many", many), ("modern", Mock::modern().full_tool(full))];
    let fixture = Fixture::start(&servers, |_| ());
    let names = fixture.names().await;
    assert_eq!(names.len(), 43);
    assert_eq!((names[0].as_str(), names[39].as_str()), ("many__t0", "many__t39"));
    let health = fixture.gateway.health();
    assert_eq!(
        (health["upstreams"][0]["revision"].as_str(), health["upstreams"][1]["revision"].as_str()),
        (Some("2024-11-05"), Some("2026-07-28"))
    );
    let tools = fixture.gateway.list_tools();
    let full = tools.iter().find(|tool| &*tool.name == "modern__full").unwrap();
    assert_eq!(full.server.as_deref(), Some("modern"));
    let full: Value = full.definition.decode().unwrap();
    assert_eq!(full["name"], "modern__full");
    assert_eq!(full["description"], "Says it all.");
    assert_eq!(full["inputSchema"]["properties"]["n"]["type"], "integer");
    assert_eq!(full["outputSchema"], json!({"type": "object"}));
    assert_eq!(full["annotations"], json!({"readOnlyHint": true, "title": "Full"}));
    assert_eq!(full["x-own"], json!([1, 2]));
    fixture.end().await;
}

/// CAT-1: a server that shares no revision with the gateway is `PROVIDER_INIT_FAILED`; the message has the versions of
/// both sides.
#[tokio::test]
async fn an_incompatible_revision_names_both_sides() {
    let servers = [("old", Mock::legacy().revision("1999-09-09")), ("good", mock(&["a"]))];
    let fixture = Fixture::start(&servers, |_| ());
    assert_eq!(fixture.names().await, ["good__a", "server_ping", "server_health"]);
    let error = fixture.call("old__a", json!({})).await.unwrap_err();
    assert_eq!(error["data"]["code"], "PROVIDER_INIT_FAILED");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("1999-09-09") && message.contains("2025-11-25"), "{message}");
    fixture.end().await;
}

/// CAT-2: tools and schemas are answered from memory, and follow a change that the server announces.
#[tokio::test]
async fn tools_and_schemas_from_memory() {
    let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
    let later = Tool::new("later", Behaviour::Echo).input_schema(schema.clone());
    let grow = Mock::legacy().tool("grow", Behaviour::AddTool(Box::new(later)));
    let fixture = Fixture::start(&[("m", grow)], |_| ());
    fixture.settled().await;
    let names =
        || -> Vec<String> { fixture.gateway.list_tools().iter().map(|tool| tool.name.to_string()).collect() };
    assert_eq!(names(), ["grow", "server_ping", "server_health"]);
    assert!(fixture.gateway.tool_schema("later").is_none());
    let mut changes = fixture.gateway.catalog_changes();
    fixture.call("grow", json!({})).await.unwrap();
    changes.changed().await.unwrap();
    assert_eq!(names(), ["grow", "later", "server_ping", "server_health"]);
    let found: Value = fixture.gateway.tool_schema("later").unwrap().decode().unwrap();
    assert_eq!(found, schema);
    let own: Value = fixture.gateway.tool_schema("server_ping").unwrap().decode().unwrap();
    assert_eq!(own["type"], "object");
    fixture.end().await;
}

/// CAT-5: the instructions are in `initialize` and in `server/discover`, or in neither if no server has any.
#[tokio::test]
async fn instructions_of_the_servers() {
    let careful = Tool::new("cut", Behaviour::Echo).extra("instructions", json!("Measure twice."));
    let hidden = Tool::new("meta", Behaviour::Echo).extra("_meta", json!({"instructions": "Look \"up\"."}));
    let servers = [
        ("saw", Mock::legacy().instructions("For wood.").full_tool(careful)),
        ("mute", mock(&["a"])),
        ("modern", Mock::modern().full_tool(hidden)),
    ];
    let text = "#### MCP Server: saw\n\nFor wood.\n\n##### Tool: saw__cut\n\nMeasure twice.\n\n\
                #### MCP Server: modern\n\n##### Tool: modern__meta\n\nLook \"up\".";
    let fixture = Fixture::start(&servers, |_| ());
    fixture.settled().await;
    assert_eq!(fixture.gateway.instructions().as_deref(), Some(text));
    let shaken: Value = fixture.gateway.initialize(&Principal::local(), LEGACY).decode().unwrap();
    assert_eq!(
        (shaken["instructions"].as_str(), shaken["protocolVersion"].as_str()),
        (Some(text), Some("2025-11-25"))
    );
    let discover: Value = fixture.ask(MODERN, "server/discover", json!({})).await.unwrap().decode().unwrap();
    assert_eq!(
        (discover["instructions"].as_str(), discover["resultType"].as_str()),
        (Some(text), Some("complete"))
    );
    fixture.end().await;
    let silent = Fixture::start(&[("mute", mock(&["a"]))], |_| ());
    silent.gateway.settled().await;
    assert_eq!(silent.gateway.instructions(), None);
    assert!(!silent.gateway.initialize(&Principal::local(), LEGACY).as_str().contains("instructions"));
    silent.end().await;
}

/// CAT-6: more than 1 000 tools come in pages, in both eras; a cursor from before a change is refused.
#[tokio::test]
async fn large_lists_are_paged() {
    let grow = Behaviour::AddTool(Box::new(Tool::new("later", Behaviour::Echo)));
    let large = (0..1_200).fold(Mock::legacy().tool("grow", grow), |mock, number| {
        mock.tool(format!("t{number}"), Behaviour::Echo)
    });
    let fixture = Fixture::start(&[("large", large)], |_| ());
    let mut first_cursor = None;
    for revision in [LEGACY, MODERN] {
        let list = async |params| -> Value {
            fixture.ask(revision, "tools/list", params).await.unwrap().decode().unwrap()
        };
        let first = list(json!({})).await;
        let cursor = first["nextCursor"].clone();
        let second = list(json!({"cursor": cursor})).await;
        let count = |page: &Value| page["tools"].as_array().unwrap().len();
        assert_eq!((count(&first), count(&second)), (1_000, 203));
        assert_eq!(second["tools"][0]["name"], "t999");
        assert_eq!((second.get("nextCursor"), &second["cacheScope"]), (None, &first["cacheScope"]));
        first_cursor = Some(cursor);
    }
    fixture.call("t1199", json!({})).await.unwrap();
    let mut changes = fixture.gateway.catalog_changes();
    fixture.call("grow", json!({})).await.unwrap();
    changes.changed().await.unwrap();
    for cursor in [first_cursor.unwrap(), json!(""), json!("MTAwMA=="), json!(1_000)] {
        let error = fixture.ask(MODERN, "tools/list", json!({"cursor": cursor})).await.unwrap_err();
        assert_eq!(error.code(), -32602, "{cursor}");
    }
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

/// An upstream's own errors pass with their code and data, except for two that concern the gateway's own hop.
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
    assert_eq!(error["data"]["mayHaveRun"], false, "the server refused to look at it");
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
