//! `bridgehead serve` as clients and operators see it: both eras over both transports, signals, exit codes.

use std::path::Path;
use std::time::Duration;

use bridgehead_testkit::client::{HttpClient, StdioClient, legacy_handshake, modern_params};
use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, lives, program, signal, until, upstream_pids};

const DEMO_TOOLS: [&str; 6] = ["echo", "add", "sleep", "fail", "server_ping", "server_health"];

fn names(listed: &Value) -> Vec<&str> {
    listed["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

/// A client of one era on stdin and stdout.
async fn stdio(place: &Place, modern: bool) -> StdioClient {
    let mut client = place.start(&["serve", "--stdio", "--standalone"], &[]);
    if !modern {
        let answer = client.initialize().await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "bridgehead");
    }
    client
}

fn of_era(modern: bool, params: Value) -> Value {
    if modern { modern_params(params) } else { params }
}

/// A client of either era lists and calls the demo tools over stdio. SRV-4: stdout carries only protocol messages,
/// everything else goes to stderr. SRV-2: the end of stdin is a clean stop.
#[tokio::test]
async fn stdio_client_of_either_era_uses_the_demo() {
    for modern in [false, true] {
        let place = Place::new();
        let mut client = stdio(&place, modern).await;
        let listed = client.request("tools/list", of_era(modern, json!({}))).await;
        assert_eq!(names(&listed), DEMO_TOOLS);

        let params = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
        let added = client.request("tools/call", of_era(modern, params)).await;
        assert_eq!(added["result"]["structuredContent"], json!({"sum": 3}));
        assert_eq!(added["result"].get("resultType").is_some(), modern);

        let params = json!({"name": "fail", "arguments": {"message": "as asked"}});
        let failed = client.request("tools/call", of_era(modern, params)).await;
        assert_eq!(failed["result"]["isError"], true);
        assert_eq!(failed["result"]["content"][0]["text"], "as asked");

        client.close_stdin();
        while let Some(line) = client.recv_line().await {
            let message: Value = serde_json::from_str(&line).expect("only protocol messages");
            assert_eq!(message["jsonrpc"], "2.0");
        }
        assert_eq!(client.wait().await.code(), Some(0), "{}", client.stderr());
        let said = client.stderr();
        assert!(said.contains("configuration: none found"), "{said}");
        assert!(said.contains("INFO ready") && said.contains("INFO stopped"), "{said}");
        assert!(!said.contains("for a client"), "no banner without HTTP: {said}");
    }
}

/// Over stdio, progress comes before the answer, and a cancelled call is never answered.
#[tokio::test]
async fn stdio_client_of_either_era_follows_and_cancels_a_call() {
    for modern in [false, true] {
        let place = Place::new();
        let mut client = stdio(&place, modern).await;
        let sleep = |ms: u64| {
            of_era(modern, json!({"name": "sleep", "arguments": {"ms": ms}, "_meta": {"progressToken": "p"}}))
        };
        let slept = client.request("tools/call", sleep(100)).await;
        assert_eq!(slept["result"]["content"][0]["text"], "slept for 100 ms");
        let progress: Vec<Value> = client.take_aside();
        let progress: Vec<&Value> =
            progress.iter().filter(|message| message["method"] == "notifications/progress").collect();
        assert_eq!(progress.len(), 11);
        assert_eq!(progress[10]["params"]["progressToken"], "p");
        assert_eq!(progress[10]["params"]["progress"], 10);

        let id = client.start_request("tools/call", sleep(60_000)).await;
        assert_eq!(client.recv().await["method"], "notifications/progress");
        client.notify("notifications/cancelled", of_era(modern, json!({"requestId": id}))).await;
        until_idle(&mut client).await;
        let pinged = modern_params(json!({"name": "server_ping"}));
        assert!(client.request("tools/call", pinged).await.get("result").is_some());
        assert!(
            client.take_aside().iter().all(|message| message["id"] != id),
            "the cancelled call is not answered"
        );
    }
}

/// Waits until no call is in progress at the server: the cancellation has reached it.
async fn until_idle(client: &mut StdioClient) {
    bridgehead_testkit::found("a server without a call", async || {
        let health = client.request("tools/call", modern_params(json!({"name": "server_health"}))).await;
        let data = &health["result"]["structuredContent"]["data"];
        (data["counters"]["cancelled"] == 1 && data["upstreams"][0]["inFlight"] == 0).then_some(())
    })
    .await;
}

/// A client of either era lists and calls the demo tools over HTTP.
#[tokio::test]
async fn http_client_of_either_era_uses_the_demo() {
    let place = Place::new();
    let (mut gateway, address) = place.serve_http(&[], &[]).await;
    let http = HttpClient::new(address);

    let listed = http.post_modern("/mcp", "tools/list", json!({})).await;
    assert_eq!((listed.status, names(&listed.json())), (200, DEMO_TOOLS.to_vec()));
    let params = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
    let added = http.post_modern("/mcp", "tools/call", params).await;
    assert_eq!(added.json()["result"]["structuredContent"], json!({"sum": 3}));

    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": legacy_handshake()});
    let opened = http.post("/mcp", &[], body.to_string()).await;
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let headers = [("mcp-session-id", session.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let body = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(http.post("/mcp", &headers, body.to_string()).await.status, 202);
    let body = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    assert_eq!(names(&http.post("/mcp", &headers, body.to_string()).await.answer()), DEMO_TOOLS);
    let params = json!({"name": "echo", "arguments": {"text": "hi"}});
    let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params});
    let echoed = http.post("/mcp", &headers, body.to_string()).await.answer();
    assert_eq!(echoed["result"]["content"][0]["text"], "hi");

    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
    assert_eq!(gateway.recv_line().await, None, "nothing on stdout");
}

/// Over HTTP, progress comes as events before the answer, and closing a stream cancels its call.
#[tokio::test]
async fn http_client_follows_and_cancels_a_call() {
    let place = Place::new();
    let (mut gateway, address) = place.serve_http(&[], &[]).await;
    let http = HttpClient::new(address);
    let sleep = |ms: u64| json!({"name": "sleep", "arguments": {"ms": ms}, "_meta": {"progressToken": 7}});
    let reply = http.post_modern("/mcp", "tools/call", sleep(100)).await;
    let messages: Vec<Value> =
        reply.events.iter().filter(|event| !event.data.is_empty()).map(|event| event.json()).collect();
    assert_eq!(messages.len(), 12);
    assert_eq!(messages[10]["params"]["progress"], 10);
    assert_eq!(messages[10]["params"]["progressToken"], 7);
    assert_eq!(messages[11]["result"]["content"][0]["text"], "slept for 100 ms");

    let mut stream = http.open_modern("/mcp", "tools/call", sleep(60_000)).await;
    assert_eq!(stream.next_message().await.unwrap()["params"]["progress"], 0);
    drop(stream);
    bridgehead_testkit::soon("the end of the cancelled call", async {
        loop {
            let health = http.post_modern("/mcp", "tools/call", json!({"name": "server_health"})).await;
            let data = health.json()["result"]["structuredContent"]["data"].clone();
            if data["counters"]["cancelled"] == 1 && data["upstreams"][0]["inFlight"] == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    signal(&gateway, Signal::INT);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// SRV-2: after SIGTERM or SIGINT, a call in progress is still answered; then the program exits with 0.
#[tokio::test]
async fn a_signal_drains() {
    for kind in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let mut client = place.start(&["serve", "--stdio", "--standalone"], &[]);
        let id = started_sleep(&mut client, 1000).await;
        signal(&client, kind);
        let answer = client.answer_to(id).await;
        assert_eq!(answer["result"]["content"][0]["text"], "slept for 1000 ms");
        assert_eq!(client.wait().await.code(), Some(0), "{}", client.stderr());
    }
}

/// SRV-2: a signal drains HTTP requests too.
#[tokio::test]
async fn a_signal_drains_http() {
    let place = Place::new();
    let (mut gateway, address) = place.serve_http(&[], &[]).await;
    let params = json!({"name": "sleep", "arguments": {"ms": 1000}, "_meta": {"progressToken": 1}});
    let mut stream = HttpClient::new(address).open_modern("/mcp", "tools/call", params).await;
    assert_eq!(stream.next_message().await.unwrap()["method"], "notifications/progress");
    signal(&gateway, Signal::TERM);
    let answer = stream.finish().await.answer();
    assert_eq!(answer["result"]["content"][0]["text"], "slept for 1000 ms");
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}

/// SRV-2: a second signal ends the program immediately, whatever is in progress, and no process is left.
#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let place = Place::new();
    let mut client = place.start(&["serve", "--stdio", "--standalone"], &[]);
    let pids = upstream_pids(&mut client).await;
    started_sleep(&mut client, 60_000).await;
    signal(&client, Signal::TERM);
    until(|| client.stderr().contains("a second signal ends at once").then_some(())).await;
    let since = std::time::Instant::now();
    signal(&client, Signal::TERM);
    assert_eq!(client.wait().await.code(), Some(143), "{}", client.stderr());
    assert!(since.elapsed() < Duration::from_secs(30));
    until(|| pids.iter().all(|pid| !lives(*pid)).then_some(())).await;
}

/// Starts a `sleep`; returns once it runs.
async fn started_sleep(client: &mut StdioClient, ms: u64) -> u64 {
    let params = json!({"name": "sleep", "arguments": {"ms": ms}, "_meta": {"progressToken": 1}});
    let id = client.start_request("tools/call", modern_params(params)).await;
    assert_eq!(client.recv().await["method"], "notifications/progress");
    id
}

/// SRV-2: a start that takes longer than `BRIDGEHEAD_STARTUP_TIMEOUT_MS` exits with 75. Here the token file is a pipe that
/// nobody writes to.
#[tokio::test]
async fn a_start_that_hangs() {
    let place = Place::new();
    let token = place.path().join("token");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &token, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let config = place.config(&["one"], &format!("[http]\ntoken_file = {:?}", token.display().to_string()));
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let ran = place.run_with(&arguments, &[("BRIDGEHEAD_STARTUP_TIMEOUT_MS", "200")], "").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(75), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: no client could be served within 200 ms"), "{}", ran.stderr);
}

/// SRV-2: exit codes of a failed start: 78 for the configuration, 1 for a port that is in use.
#[tokio::test]
async fn starts_that_fail() {
    let place = Place::new();
    let wrong = place.file("wrong.toml", "[gateway]\nmod = \"full\"\n");
    let ran = place.run(&["serve", "--config", wrong.to_str().unwrap()]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(78), ""));
    assert!(ran.stderr.contains("did you mean `mode`"), "{}", ran.stderr);

    let ran = place.run(&["serve", "--config", "/no/such/file.toml"]).await;
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);

    let open = place.run(&["serve", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(open.code, Some(78));
    assert!(open.stderr.contains("clients must show who they are"), "{}", open.stderr);

    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let taken = place.run(&["serve", "--listen", &address]).await;
    assert_eq!(taken.code, Some(1));
    let line =
        taken.stderr.lines().find(|line| line.starts_with("error:")).unwrap().replace(&address, "ADDRESS");
    assert_snapshot!(line, @"error: cannot listen on ADDRESS: Address already in use (os error 98); end the program that holds it, or choose another port with `--listen`");

    assert_eq!(place.run(&["serve", "--listen", "nonsense"]).await.code, Some(2));
    assert_eq!(place.run(&["no-such-verb"]).await.code, Some(2));
}

/// SRV-6: an unknown variable of the namespace is an error with a suggestion. SRV-5: so is an unknown mode.
#[tokio::test]
async fn the_environment_is_checked() {
    let place = Place::new();
    let ran = place.run_with(&["serve"], &[("BRIDGEHEAD_MODES", "full")], "").await;
    assert_eq!(ran.code, Some(78));
    assert_snapshot!(ran.stderr, @r"
    error: unknown environment variable BRIDGEHEAD_MODES
     |
     = help: did you mean BRIDGEHEAD_MODE?
    ");
    let ran = place.run_with(&["check", "--json"], &[("BRIDGEHEAD_MODE", "fast")], "").await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(78), ""));
    assert_eq!(
        ran.json()["diagnostics"][0]["message"],
        "BRIDGEHEAD_MODE: `fast` is not a mode; allowed are `full`, `readonly`, `minimal` and `test`"
    );
}

/// SRV-5: each mode offers the tools that it admits. Hidden tools are counted, and the error for a call to one names the
/// tool and the mode.
#[tokio::test]
async fn modes() {
    for (mode, expected) in [
        ("full", &DEMO_TOOLS[..]),
        ("Readonly", &["echo", "add", "sleep", "server_ping", "server_health"][..]),
        ("MINIMAL", &["server_ping", "server_health"][..]),
        ("test", &DEMO_TOOLS[..]),
    ] {
        let place = Place::new();
        let mut client = place.start(&["serve", "--stdio", "--standalone"], &[("BRIDGEHEAD_MODE", mode)]);
        let listed = client.request("tools/list", modern_params(json!({}))).await;
        assert_eq!(names(&listed), expected, "{mode}");
        let pinged = client.request("tools/call", modern_params(json!({"name": "server_ping"}))).await;
        assert_eq!(pinged["result"]["structuredContent"]["data"]["mode"], mode.to_lowercase());
        let health = client.request("tools/call", modern_params(json!({"name": "server_health"}))).await;
        let data = &health["result"]["structuredContent"]["data"];
        assert_eq!(data["counters"]["toolsHiddenByMode"], i32::from(mode == "Readonly"));
        assert_eq!(data["upstreams"].as_array().unwrap().len(), usize::from(mode != "MINIMAL"));
        if mode == "Readonly" {
            let refused = client.request("tools/call", modern_params(json!({"name": "fail"}))).await;
            let message = refused["error"]["message"].as_str().unwrap();
            assert!(message.contains("`fail`") && message.contains("readonly"), "{message}");
        }
    }
}

/// The banner has three lines: the endpoint, what to paste, where the logs are; with a token, how to send it.
#[tokio::test]
async fn the_banner_and_the_token() {
    let place = Place::new();
    let token = place.path().join("token");
    let more = format!("[http]\ntoken_file = {:?}", token.display().to_string());
    let config = place.config(&["one"], &more);
    let (mut gateway, address) = place.serve_http(&["--config", config.to_str().unwrap()], &[]).await;
    let said = until(|| gateway.stderr().contains("logs: ").then(|| gateway.stderr())).await;
    let start = said.find("Bridgehead ").unwrap();
    let banner: Vec<&str> = said[start..].lines().take(3).collect();
    let banner = banner
        .join("\n")
        .replace(&address.to_string(), "ADDRESS")
        .replace(&token.display().to_string(), "FILE")
        .replace(env!("CARGO_PKG_VERSION"), "VERSION");
    assert_snapshot!(banner, @r#"
    Bridgehead VERSION serves MCP at http://ADDRESS/mcp
      for a client: {"mcpServers":{"bridgehead":{"headers":{"Authorization":"Bearer <the token in FILE>"},"type":"http","url":"http://ADDRESS/mcp"}}}
      logs: here, on stderr; more with --log-level debug
    "#);
    let secret = std::fs::read_to_string(&token).unwrap();
    assert!(!said.contains(secret.trim()));

    let url = format!("http://{address}");
    let refused = place.run(&["tools", "--url", &url]).await;
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("it requires a bearer token; pass --token"), "{}", refused.stderr);
    let by_option = place.run(&["tools", "--url", &url, "--token", secret.trim()]).await;
    assert_eq!((by_option.code, by_option.stdout.lines().count()), (Some(0), 6), "{}", by_option.stderr);
    let wrong = place.run(&["tools", "--url", &url, "--token", "-not-the-token"]).await;
    assert_eq!(wrong.code, Some(3), "a token may begin with a dash: {}", wrong.stderr);
    let variable = [("BRIDGEHEAD_HTTP_TOKEN", secret.trim())];
    let by_variable = place.run_with(&["call", "server_ping", "--url", &url], &variable, "").await;
    assert_eq!(by_variable.code, Some(0), "{}", by_variable.stderr);

    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// Both flags serve both transports, even on one thread. SRV-4: log lines are redacted JSON on stderr.
#[tokio::test]
async fn stdio_and_http_at_once_on_one_thread() {
    let place = Place::new();
    let config = place.config(&["one"], "[gateway]\nthreads = 1");
    let config = config.to_str().unwrap();
    let arguments = ["--stdio", "--http", "--config", config, "--log-format", "json", "--log-level", "debug"];
    let (mut client, address) = place.serve_http(&arguments, &[]).await;
    let over_stdio = client.request("tools/list", modern_params(json!({}))).await;
    let over_http = HttpClient::new(address).post_modern("/mcp", "tools/list", json!({})).await;
    assert_eq!(names(&over_stdio), names(&over_http.json()));
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0));
    let said = client.stderr();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"] == "ready" && line["level"] == "INFO"), "{said}");
}

/// SRV-4: text that looks like a secret does not reach the log, wherever it comes from.
#[tokio::test]
async fn log_lines_are_redacted() {
    let place = Place::new();
    let script = "[servers.one]\ncommand = \"sh\"\nargs = [\"-c\", \"echo password=hunter2 >&2; exit 1\"]\n";
    let config = place.file("bridgehead.toml", script);
    let ran = place.run(&["check", "--config", config.to_str().unwrap(), "--log-level", "trace"]).await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("[redacted]"), "{}", ran.stderr);
    assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
}

/// SRV-4: if nobody reads stderr any more, only log lines are lost.
#[tokio::test]
async fn a_closed_stderr_is_not_an_error() {
    let place = Place::new();
    let line =
        format!("exec {} serve --stdio --standalone --log-level trace 2> >(exec true)", program().display());
    let mut client = place.start_program(Path::new("bash"), &["-c", &line], &[]);
    let listed = client.request("tools/list", modern_params(json!({}))).await;
    assert_eq!(names(&listed), DEMO_TOOLS);
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0));
}
