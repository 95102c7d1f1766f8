//! A start that can be watched, and clients that come before it is over.

use std::path::PathBuf;

use bridgehead_testkit::client::{HttpClient, StdioClient, legacy_handshake, modern_params};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, program, signal, until};
use crate::terminal::{COLUMNS, Terminal};

/// What the slow server says while it starts; a terminal would obey the middle of it.
const SAID: &str = "fetching \\033[2J\\033[1A a package";

/// A configuration with a quick server, one that starts only when a file exists, and one that does not start.
struct Slow {
    place: Place,
    file: PathBuf,
}

impl Slow {
    fn new(more: &str) -> Self {
        let place = Place::new();
        let gate = place.path().join("gate");
        let script = format!(
            "printf '{SAID}\\n' >&2; until [ -e '{}' ]; do sleep 0.05; done; exec '{}' demo-server",
            gate.display(),
            program().display()
        );
        let slow = format!("{more}\n[servers.slow]\ncommand = \"/bin/sh\"\nargs = [\"-c\", {script:?}]\n");
        let file = place.config(&["quick"], &slow);
        Self { place, file }
    }

    fn file(&self) -> &str {
        self.file.to_str().unwrap()
    }

    /// Lets the slow server start.
    fn open(&self) {
        std::fs::write(self.place.path().join("gate"), "").unwrap();
    }
}

fn line<'a>(lines: &'a [String], beginning: &str) -> Option<&'a String> {
    lines.iter().find(|line| line.starts_with(beginning))
}

/// JOIN-5: on a terminal, `check` shows a line per server with its state, the seconds and its last words, and removes them when
/// all is known. They fit the terminal, and what a server writes cannot draw on it.
#[tokio::test]
async fn a_check_can_be_watched() {
    let slow = Slow::new("");
    let mut terminal = Terminal::start(&slow.place, &["check", "--config", slow.file()]);
    let lines = terminal
        .until(|lines| {
            let starting = line(lines, "  slow   starting").is_some_and(|line| line.contains("fetching"));
            starting && line(lines, "  quick  ready").is_some()
        })
        .await;
    let starting = line(&lines, "  slow   starting").unwrap();
    assert!(starting.ends_with(" s  fetching [2J[1A a package"), "{starting}");
    assert!(line(&lines, "  quick  ready").unwrap().ends_with(" tools"), "{lines:?}");
    let live = lines.iter().filter(|line| line.starts_with("  "));
    assert!(live.clone().all(|line| line.chars().count() < COLUMNS), "{lines:?}");
    assert_eq!(live.count(), 2, "each server once: {lines:?}");
    slow.open();
    assert_eq!(terminal.client.wait().await.code(), Some(0));
    let lines = terminal.lines();
    assert!(line(&lines, "slow   ok").is_some() && line(&lines, "quick  ok").is_some(), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("starting")), "{lines:?}");
}

/// JOIN-5: Ctrl-C during the start leaves a clean terminal, with nothing of the live lines and with its usual behaviour.
#[tokio::test]
async fn an_interrupted_start_leaves_a_clean_terminal() {
    let slow = Slow::new("");
    for verb in ["check", "serve"] {
        let more = if verb == "serve" { &["--listen", "127.0.0.1:0"][..] } else { &[] };
        let arguments = [&[verb, "--config", slow.file()], more].concat();
        let mut terminal = Terminal::start(&slow.place, &arguments);
        terminal.until(|lines| line(lines, "  slow   starting").is_some()).await;
        terminal.client.send_bytes(b"\x03").await;
        let code = if verb == "check" { 130 } else { 0 };
        assert_eq!(terminal.client.wait().await.code(), Some(code), "{:?}", terminal.lines());
        let lines = terminal.lines();
        assert!(!lines.iter().any(|line| line.starts_with("  slow") || line.contains("^C")), "{lines:?}");
        let received = terminal.received();
        let count = |code: &str| received.matches(code).count();
        assert_eq!(count("\x1b[?7l"), count("\x1b[?7h"));
    }
}

/// JOIN-5: log lines appear above the live lines of `serve` and do not tear them; the last state stays on the terminal.
#[tokio::test]
async fn log_lines_and_live_lines_keep_apart() {
    let slow = Slow::new("");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--log-level", "debug", "--config", slow.file()];
    let mut terminal = Terminal::start(&slow.place, &arguments);
    terminal.until(|lines| line(lines, "  slow   starting").is_some()).await;
    slow.open();
    let lines = terminal
        .until(|lines| {
            let released = lines.iter().any(|line| line.contains("released the memory of startup code"));
            released && line(lines, "  slow   ready").is_some()
        })
        .await;
    let at = |beginning: &str| lines.iter().position(|line| line.starts_with(beginning)).unwrap();
    assert_eq!(
        at("  quick  ready"),
        at("  slow   ready") + 1,
        "in the order of the configuration: {lines:?}"
    );
    let torn = |line: &&String| {
        let whole =
            ["20", "Bridgehead ", "configuration: ", "  "].iter().any(|words| line.starts_with(words));
        !(line.is_empty() || whole)
    };
    assert_eq!(lines.iter().find(torn), None, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("  slow")).count(), 1, "{lines:?}");
    terminal.client.send_bytes(b"\x03").await;
    terminal.client.wait().await;
}

/// JOIN-5: in a pipe `check` says when each server begins and how its start ended; as JSON for programs; and nothing with the log
/// off.
#[tokio::test]
async fn a_pipe_gets_plain_lines() {
    let slow = Slow::new("[servers.broken]\ncommand = \"/no/such/program\"\n");
    slow.open();
    let ran = slow.place.run(&["check", "--config", slow.file(), "--log-level", "error"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let said: Vec<&str> = ran.stderr.lines().collect();
    for beginning in ["slow: starting", "quick: starting", "slow: ready after ", "quick: ready after "] {
        let found = said.iter().filter(|line| line.starts_with(beginning)).count();
        assert_eq!(found, 1, "{beginning}: {said:?}");
    }
    let failed = said.iter().find(|line| line.starts_with("broken: failed after ")).unwrap();
    assert!(failed.contains("/no/such/program"), "{failed}");
    assert!(!ran.stderr.contains('\x1b'));

    let ran = slow.place.run(&["check", "--config", slow.file(), "--log-format", "json"]).await;
    let told: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let about = |server: &str, state: &str| {
        told.iter()
            .find(|line| line["server"] == server && line["state"] == state)
            .unwrap_or_else(|| panic!("{told:?}"))
    };
    assert!(about("slow", "ready")["tools"].as_u64().is_some_and(|tools| tools > 0), "{told:?}");
    assert!(about("broken", "failed")["reason"].is_string());
    assert!(about("quick", "starting").get("tools").is_none(), "no empty members");

    let ran = slow.place.run(&["check", "--config", slow.file(), "--log-level", "off"]).await;
    assert_eq!(ran.said(), "", "nothing but the configuration");
}

/// JOIN-5: the log of a gateway says that a server is starting; the log of `serve --stdio` has no codes for a terminal.
#[tokio::test]
async fn a_log_tells_of_the_start() {
    let slow = Slow::new("");
    for transport in [&["--stdio", "--standalone"][..], &["--listen", "127.0.0.1:0"]] {
        let arguments = [&["serve", "--config", slow.file()], transport].concat();
        let mut gateway = slow.place.start(&arguments, &[("TERM", "xterm")]);
        until(|| gateway.stderr().contains("is starting server=\"mcp:slow\"").then_some(())).await;
        assert!(!gateway.stderr().contains('\x1b'));
        signal(&gateway, Signal::TERM);
        assert_eq!(gateway.wait().await.code(), Some(0));
    }
}

fn names(listed: &Value) -> Vec<&str> {
    let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[track_caller]
fn check_partial(answer: &Value) {
    let told = answer["result"]["instructions"].as_str().unwrap_or_default();
    let partial = told.split("These instructions are partial: ").nth(1).unwrap_or_else(|| panic!("{answer}"));
    assert!(partial.contains("`slow`") && partial.contains("still starting"), "{answer}");
}

#[track_caller]
fn check_early(listed: &Value) {
    let names = names(listed);
    assert!(names.contains(&"quick__echo") && !names.contains(&"slow__echo"), "{names:?}");
}

#[track_caller]
fn check_complete(listed: &Value, told: &Value) {
    let names = names(listed);
    assert!(names.contains(&"quick__echo") && names.contains(&"slow__echo"), "{names:?}");
    assert!(!told["result"]["instructions"].as_str().unwrap_or_default().contains("partial"), "{told}");
}

const EARLY: &str = "[gateway]\nlist_wait_ms = 200\n";

/// The list of tools as soon as it has the quick server's.
async fn early_list(client: &mut StdioClient, params: &Value) -> Value {
    bridgehead_testkit::found("the tools of the quick server", async || {
        let listed = client.request("tools/list", params.clone()).await;
        names(&listed).contains(&"quick__echo").then_some(listed)
    })
    .await
}

/// The list of tools after the announcement that brings the slow server's.
async fn late_list(client: &mut StdioClient, params: &Value) -> Value {
    loop {
        while client.recv().await["method"] != "notifications/tools/list_changed" {}
        // The first one may be about the quick server.
        let listed = client.request("tools/list", params.clone()).await;
        if names(&listed).contains(&"slow__echo") {
            return listed;
        }
    }
}

/// JOIN-5: over stdio, a client of either era that lists early gets what is there and partial instructions, hears of the change,
/// and then gets everything.
#[tokio::test]
async fn early_clients_over_stdio() {
    let slow = Slow::new(EARLY);
    let mut client = slow.place.start(&["serve", "--stdio", "--standalone", "--config", slow.file()], &[]);
    check_partial(&client.initialize().await);
    check_early(&early_list(&mut client, &json!({})).await);
    client.take_aside();
    slow.open();
    let listed = late_list(&mut client, &json!({})).await;
    client.close_stdin();
    client.wait().await;
    let mut again = slow.place.start(&["serve", "--stdio", "--standalone", "--config", slow.file()], &[]);
    until_complete(&mut again).await;
    check_complete(&listed, &again.initialize().await);
    again.close_stdin();
    again.wait().await;

    let slow = Slow::new(EARLY);
    let mut client = slow.place.start(&["serve", "--stdio", "--standalone", "--config", slow.file()], &[]);
    check_partial(&client.request("server/discover", modern_params(json!({}))).await);
    check_early(&early_list(&mut client, &modern_params(json!({}))).await);
    let listen = modern_params(json!({"notifications": {"toolsListChanged": true}}));
    client.start_request("subscriptions/listen", listen).await;
    assert_eq!(client.recv().await["method"], "notifications/subscriptions/acknowledged");
    slow.open();
    let listed = late_list(&mut client, &modern_params(json!({}))).await;
    check_complete(&listed, &client.request("server/discover", modern_params(json!({}))).await);
    client.close_stdin();
    client.wait().await;
}

/// Waits until no server is starting.
async fn until_complete(client: &mut StdioClient) {
    bridgehead_testkit::soon("the tools of the slow server", async {}).await;
    while !names(&client.request("tools/list", modern_params(json!({}))).await).contains(&"slow__echo") {}
}

/// JOIN-5: the same over HTTP.
#[tokio::test]
async fn early_clients_over_http() {
    let slow = Slow::new(EARLY);
    let (mut gateway, address) = slow.place.serve_http(&["--config", slow.file()], &[]).await;
    let http = HttpClient::new(address);
    let path = "/mcp";
    let modern = async |method: &str| http.post_modern(path, method, json!({})).await.answer();
    let post = async |session: &str, message: Value| {
        http.post(path, &[("mcp-session-id", session)], message.to_string()).await
    };
    check_partial(&modern("server/discover").await);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": legacy_handshake()});
    let opened = http.post(path, &[], hello.to_string()).await;
    check_partial(&opened.answer());
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    post(&session, json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    let list = || json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}});
    bridgehead_testkit::soon("the tools of the quick server", async {
        loop {
            let listed = post(&session, list()).await.answer();
            if names(&listed).contains(&"quick__echo") {
                check_early(&listed);
                break;
            }
        }
    })
    .await;
    check_early(&modern("tools/list").await);
    let accept = [("mcp-session-id", session.as_str()), ("accept", "text/event-stream")];
    let mut legacy_feed = http.open(hyper::Method::GET, path, &accept, "").await;
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let mut modern_feed = http.open_modern(path, "subscriptions/listen", listen).await;
    let first = modern_feed.next_message().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    slow.open();
    for feed in [&mut legacy_feed, &mut modern_feed] {
        while feed.next_message().await.unwrap()["method"] != "notifications/tools/list_changed" {}
    }
    // The feed of the session may tell of the quick server first.
    until_listed(&http, path).await;
    let told = modern("server/discover").await;
    check_complete(&modern("tools/list").await, &told);
    check_complete(&post(&session, list()).await.answer(), &told);
    let again = http.post(path, &[], hello.to_string()).await.answer();
    check_complete(&modern("tools/list").await, &again);
    signal(&gateway, Signal::TERM);
    gateway.wait().await;
}

async fn until_listed(http: &HttpClient, path: &str) {
    bridgehead_testkit::soon("the tools of the slow server", async {}).await;
    while !names(&http.post_modern(path, "tools/list", json!({})).await.answer()).contains(&"slow__echo") {}
}
