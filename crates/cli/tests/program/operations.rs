//! Operating running gateways: `status`, `logs`, `restart`, `events`, the control socket and the API over HTTP.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bridgehead_testkit::client::{StdioClient, modern_params};
use bridgehead_testkit::{Behaviour, Mock, Tool};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Place, Ran, lives, signal, until};
use crate::terminal::Terminal;

/// A configuration with these mocks.
fn mocks(place: &Place, file: &str, servers: &[(&str, Mock)]) -> PathBuf {
    let servers: serde_json::Map<String, Value> = servers
        .iter()
        .map(|(name, mock)| ((*name).to_owned(), json!({"command": mock.command().0, "env": mock.env()})))
        .collect();
    place.file(file, &json!({"mcpServers": servers}).to_string())
}

/// The status, once `wanted` holds.
async fn status(place: &Place, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..200 {
        let ran = place.run(&["status", "--json"]).await;
        if ran.code == Some(0) && wanted(&ran.json()) {
            return ran.json();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the expected status never came: {:?}", place.run(&["status", "--json"]).await);
}

fn is_ready(status: &Value) -> bool {
    let gateways = status["gateways"].as_array().unwrap();
    let servers: Vec<&Value> = gateways.iter().flat_map(|one| one["upstreams"].as_array().unwrap()).collect();
    !servers.is_empty() && servers.iter().all(|server| server["state"] == "ready")
}

async fn stop(mut gateway: StdioClient) {
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

#[tokio::test]
async fn without_a_gateway_there_is_nothing_to_operate() {
    #[track_caller]
    fn check(ran: &Ran) {
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""));
        assert!(
            ran.stderr.contains("no gateway is running; start one with `bridgehead serve`"),
            "{}",
            ran.stderr
        );
    }
    let place = Place::new();
    for arguments in [&["status"][..], &["status", "--json"], &["logs", "a"], &["restart", "a"], &["events"]]
    {
        check(&place.run(arguments).await);
    }
}

/// AUD-5, POOL-9: one gateway on stdio is found and operated through its socket; it removes its files at its end.
#[tokio::test]
async fn a_gateway_on_stdio_is_operated() {
    let place = Place::new();
    let mock = Mock::legacy().stderr("hello from the server").tool("a", Behaviour::Echo);
    let file = mocks(&place, "mock.json", &[("files", mock)]);
    let mut gateway =
        place.start(&["serve", "--stdio", "--standalone", "--config", file.to_str().unwrap()], &[]);
    let before = status(&place, is_ready).await;
    let told = &before["gateways"][0];
    assert_eq!((&told["pid"], &told["addresses"]), (&json!(gateway.pid()), &json!([])));
    let folder = place.path().join("bridgehead");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let instance = told["instance"].as_str().unwrap().to_owned();
    for file in [format!("{instance}.sock"), format!("{instance}.json")] {
        assert_eq!(mode(&folder.join(file)), 0o600);
    }

    let shown = place.run(&["status"]).await.stdout;
    for words in ["on stdio", "files", "ready", "2025-11-25 over stdio", &instance] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let logs = place.run(&["logs", "files"]).await;
    assert_eq!(logs.code, Some(0), "{}", logs.stderr);
    assert!(logs.stdout.contains("Z  files  stderr: hello from the server\n"), "{}", logs.stdout);
    let logs = place.run(&["logs", "files", "--json", "--tail", "1"]).await;
    assert_eq!((logs.stdout.lines().count(), &logs.json()["label"]), (1, &json!("mcp:files")));

    let wrong = place.run(&["restart", "flies"]).await;
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.contains("no server is called `flies`; did you mean `files`?"), "{}", wrong.stderr);
    let pid = u32::try_from(told["upstreams"][0]["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(place.run(&["restart", "files", "--instance", &instance[..4]]).await.code, Some(0));
    let after =
        status(&place, |status| is_ready(status) && status["gateways"][0]["upstreams"][0]["restarts"] == 1)
            .await;
    assert_ne!(after["gateways"][0]["upstreams"][0]["pid"], pid);
    assert!(!lives(pid));
    // The client still uses the same gateway.
    let answer = gateway.request("tools/call", modern_params(json!({"name": "a", "arguments": {}}))).await;
    assert!(answer["result"].is_object(), "{answer}");
    stop(gateway).await;
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    assert_eq!(place.run(&["status"]).await.code, Some(3));
}

/// BUS-3, POOL-9: events and log lines are shown as they come. Ctrl-C and the end of the gateway are both clean ends.
#[tokio::test]
async fn streams_are_followed() {
    let place = Place::new();
    let file =
        mocks(&place, "mock.json", &[("files", Mock::legacy().stderr("up").tool("a", Behaviour::Echo))]);
    let (gateway, _) = place.serve_http(&["--config", file.to_str().unwrap()], &[]).await;
    status(&place, is_ready).await;
    let wrong = place.run(&["events", "--topic", "no.such"]).await;
    assert!(wrong.code == Some(2) && wrong.stderr.contains("provider.mcp.restart"), "{wrong:?}");
    let mut logs = place.start(&["logs", "files", "--follow", "--tail", "1000"], &[]);
    let mut seen = 0;
    let events =
        ["events", "--json", "--topic", "provider.mcp.restart", "--topic", "provider.mcp.reconnected"];
    let mut events = place.start(&events, &[]);
    let mut ended = place.start(&["events", "--server", "files"], &[]);
    // The test cannot see when they are subscribed, so it repeats restarts until each has reported one.
    let told = async {
        let first: Value = serde_json::from_str(&events.recv_line().await.unwrap()).unwrap();
        let line = ended.recv_line().await.unwrap();
        while seen < 2 {
            seen += usize::from(logs.recv_line().await.unwrap().ends_with("Z  files  stderr: up"));
        }
        (first, line)
    };
    let restarting = async {
        loop {
            assert_eq!(place.run(&["restart", "files"]).await.code, Some(0));
            status(&place, is_ready).await;
        }
    };
    let (event, line) = tokio::select! {
        told = told => told,
        () = restarting => unreachable!(),
    };
    assert_eq!(event["server"], "files");
    assert!(
        event["topic"] == "provider.mcp.restart" || event["topic"] == "provider.mcp.reconnected",
        "{event}"
    );
    assert!(line.contains("Z  ") && line.contains("  files  "), "{line}");
    for follower in [&mut logs, &mut events] {
        signal(follower, Signal::INT);
        while follower.recv_line().await.is_some() {}
        assert_eq!(follower.wait().await.code(), Some(0), "{}", follower.stderr());
    }
    stop(gateway).await;
    while ended.recv_line().await.is_some() {}
    assert_eq!(ended.wait().await.code(), Some(0));
}

/// AUD-5: with several gateways, `status` shows all; the other commands need to know which one.
#[tokio::test]
async fn several_gateways_are_told_apart() {
    let place = Place::new();
    let file = place.config(&["demo"], "");
    let arguments = ["--config", file.to_str().unwrap()];
    let (first, address) = place.serve_http(&arguments, &[]).await;
    let (second, _) = place.serve_http(&arguments, &[]).await;
    let both =
        status(&place, |status| status["gateways"].as_array().unwrap().len() == 2 && is_ready(status)).await;
    let ids: Vec<String> =
        (0..2).map(|number| both["gateways"][number]["instance"].as_str().unwrap().to_owned()).collect();
    let ran = place.run(&["restart", "demo"]).await;
    assert_eq!(ran.code, Some(2));
    for words in ["choose one with --instance ID", &ids[0], &ids[1], &format!("http://{address}")] {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    let pid = first.pid().unwrap().to_string();
    assert_eq!(place.run(&["restart", "demo", "--instance", &pid]).await.code, Some(0));
    let one = place.run(&["status", "--json", "--instance", &ids[1]]).await.json();
    assert_eq!(
        (one["gateways"].as_array().unwrap().len(), &one["gateways"][0]["instance"]),
        (1, &json!(ids[1]))
    );
    let ran = place.run(&["status", "--instance", "zz"]).await;
    assert!(ran.code == Some(3) && ran.stderr.contains("no gateway `zz` is running"), "{ran:?}");
    // After one is killed, only the other is found, so the choice is clear.
    signal(&first, Signal::KILL);
    let mut first = first;
    first.wait().await;
    assert_eq!(place.run(&["restart", "demo"]).await.code, Some(0));
    stop(second).await;
}

async fn http(address: std::net::SocketAddr, path: &str, token: Option<&str>) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{token}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// AUD-5, ACC-7, WALL-3: over HTTP the API opens to listed operators only. The files of the instance, which a confined server may be
/// allowed to read, hold nothing that opens it; neither does the endpoint's token, unless it is listed under the operators.
#[tokio::test]
async fn the_api_over_http_wants_an_operator() {
    let place = Place::new();
    let file = place.config(&["demo"], "");
    let variables = [("BRIDGEHEAD_HTTP_TOKEN", "front-token")];
    let (gateway, address) = place.serve_http(&["--config", file.to_str().unwrap()], &variables).await;
    status(&place, is_ready).await;
    let folder = place.path().join("bridgehead");
    let about = until(|| {
        let mut files = std::fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path());
        files.find(|path| path.extension().is_some_and(|extension| extension == "json"))
    })
    .await;
    let about: Value = serde_json::from_slice(&std::fs::read(about).unwrap()).unwrap();
    assert_eq!((&about["addresses"], &about["pid"]), (&json!([address]), &json!(gateway.pid())));
    assert_eq!(about["config"], file.to_str().unwrap());
    let texts = about.as_object().unwrap().values().filter_map(Value::as_str);
    for text in texts.chain(["wrong"]) {
        let answer = http(address, "/api/v1/status", Some(text)).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{text}: {answer}");
    }
    for (token, expected) in [(None, "401"), (Some("front-token"), "403")] {
        let answer = http(address, "/api/v1/status", token).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
    }
    stop(gateway).await;

    let listed = place.config(&["demo"], "[auth]\noperators_read = [\"token\"]\n");
    let (gateway, address) = place.serve_http(&["--config", listed.to_str().unwrap()], &variables).await;
    for (token, expected) in [(None, "401"), (Some("front-token"), "200")] {
        let answer = http(address, "/api/v1/status", token).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
    }
    stop(gateway).await;
}

/// A socket that cannot be created is a warning, and clients are still served.
#[tokio::test]
async fn a_gateway_starts_without_its_socket() {
    let place = Place::new();
    let blocked = place.file("blocked", "");
    let (gateway, address) = place.serve_http(&[], &[("XDG_RUNTIME_DIR", blocked.to_str().unwrap())]).await;
    until(|| gateway.stderr().contains("no control socket").then_some(())).await;
    assert!(http(address, "/healthz", None).await.ends_with("ok"));
    stop(gateway).await;
}

/// `status` and `check` name every kind of bad server with the reason and the next step, while the good server works.
/// HOUR-2: the next step for a server that is still starting is to wait, not to run it by hand.
#[tokio::test]
async fn every_bad_server_is_named_with_a_next_step() {
    let shell = |script: &str| json!({"command": "sh", "args": ["-c", script]});
    let mock = |mock: Mock| json!({"command": mock.command().0, "env": mock.env()});
    let bad = Tool::new("odd", Behaviour::Echo).input_schema(json!({"type": 5}));
    let place = Place::new();
    let servers = json!({
        "missing": {"command": "no-such-program-anywhere"},
        "exits": shell("echo no licence >&2; exit 3"),
        "html": shell("echo '<html>Sign in</html>'; while read line; do :; done"),
        "garbage": shell("while read line; do echo '{]'; done"),
        "silent": shell("while read line; do :; done"),
        "endless": mock(Mock::legacy().tool("a", Behaviour::Echo).endless_pages()),
        "twins": mock(Mock::legacy().tool("twin", Behaviour::Echo).tool("twin", Behaviour::Echo)),
        "schema": mock(Mock::legacy().full_tool(bad)),
        "good": mock(Mock::legacy().tool("a", Behaviour::Echo)),
    });
    // Reason or finding, and next step.
    let expected = [
        ("missing", "`no-such-program-anywhere` was not found", "check `command`"),
        ("exits", "exit status 3", "exits"),
        ("html", "no usable answer", "begins `<html>Sign in</html>`"),
        ("garbage", "no usable answer", "begins `{]`"),
        ("silent", "no usable answer", "wait: a start may take 180 s (`start_timeout_ms`)"),
        ("endless", "`tools/list`", "bug in the server"),
        ("twins", "tool `twin` appears twice", ""),
        ("schema", "tool `odd` has an input schema that cannot be used", ""),
    ];
    let file = place.file("bad.json", &json!({"mcpServers": servers}).to_string());
    let file = file.to_str().unwrap();
    let began = std::time::Instant::now();
    let mut gateway = place.start(&["serve", "--stdio", "--standalone", "--config", file], &[]);
    let answer =
        gateway.request("tools/call", modern_params(json!({"name": "good__a", "arguments": {}}))).await;
    assert!(answer["result"].is_object(), "{answer}");
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "the bad servers delayed it for {:?}",
        began.elapsed()
    );
    let told = status(&place, |status| {
        let servers = status["gateways"][0]["upstreams"].as_array().unwrap();
        servers.iter().all(|server| server["state"] == "ready" || server["reason"].is_string())
    })
    .await;
    let checked = place.run(&["check", "--json", "--timeout", "6", "--config", file]).await;
    assert_eq!(checked.code, Some(1), "{}", checked.stderr);
    let checked = checked.json();
    for (name, words, next) in expected {
        for servers in [&told["gateways"][0]["upstreams"], &checked["servers"]] {
            let server = servers.as_array().unwrap().iter().find(|server| server["name"] == name).unwrap();
            let said = format!("{} {}", server["reason"], server["findings"]).replace("\\\"", "\"");
            assert!(said.contains(words), "{name}: {server}");
            assert!(server["nextStep"].as_str().unwrap_or_default().contains(next), "{name}: {server}");
        }
    }
    let next = |servers: &Value| {
        let server = servers.as_array().unwrap().iter().find(|server| server["name"] == "exits").unwrap();
        server["nextStep"].as_str().unwrap().to_owned()
    };
    assert_eq!(next(&told["gateways"][0]["upstreams"]), "read what it wrote with `bridgehead logs exits`");
    // The servers of `check` are gone, and their lines with them.
    assert_eq!(next(&checked["servers"]), "run the command of `exits` by hand to see all that it writes");
    stop(gateway).await;
}

/// The configuration is reloaded when its file changes and on SIGHUP. New servers start, unchanged servers keep their
/// process, and an invalid file changes nothing.
#[tokio::test]
async fn a_changed_configuration_is_taken_over() {
    let place = Place::new();
    let file = place.config(&["one"], "");
    let (mut gateway, _) = place.serve_http(&["--stdio", "--config", file.to_str().unwrap()], &[]).await;
    let before = status(&place, is_ready).await;
    let pid = &before["gateways"][0]["upstreams"][0]["pid"];

    // Replaces the file with another one, as editors do.
    let next = Place::new();
    std::fs::rename(next.config(&["one", "two"], "[http]\nmax_sessions = 7\n"), &file).unwrap();
    let after =
        status(&place, |status| status["gateways"][0]["reload"]["ok"] == true && is_ready(status)).await;
    let told = &after["gateways"][0];
    assert_eq!((&told["upstreams"][0]["pid"], &told["upstreams"][1]["name"]), (pid, &json!("two")));
    assert_eq!(told["reload"]["message"], "added two", "{told}");
    assert_eq!(told["reload"]["needsRestart"], json!(["http.max_sessions"]));
    let call = modern_params(json!({"name": "two__echo", "arguments": {"text": "new"}}));
    let answer = gateway.request("tools/call", call).await;
    assert_eq!(answer["result"]["content"][0]["text"], "new", "{answer}");

    std::fs::write(&file, "[servers.one]\ncomand = \"x\"\n").unwrap();
    let broken = status(&place, |status| status["gateways"][0]["reload"]["ok"] == false).await;
    let told = &broken["gateways"][0];
    assert!(told["reload"]["message"].as_str().unwrap().contains("comand"), "{told}");
    assert_eq!((&told["upstreams"][0]["pid"], told["upstreams"].as_array().unwrap().len()), (pid, 2));
    assert!(gateway.stderr().contains("the old one stays in effect"), "{}", gateway.stderr());

    place.config(&["one"], "");
    status(&place, |status| status["gateways"][0]["reload"]["message"] == "removed two").await;
    signal(&gateway, Signal::HUP);
    let same =
        status(&place, |status| status["gateways"][0]["reload"]["message"] == "no server changed").await;
    assert_eq!(&same["gateways"][0]["upstreams"][0]["pid"], pid);
    stop(gateway).await;
}

/// JOIN-8: a call whose gateway ends meanwhile says that the tool may have run.
#[tokio::test]
async fn the_gateway_ends_during_a_call() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let config = config.to_str().unwrap();
    for json in [false, true] {
        let (mut gateway, _) = place.serve_http(&["--config", config], &[]).await;
        place.is_found().await;
        let mut arguments = vec!["call", "sleep", "--args", r#"{"ms":600000}"#, "--config", config];
        arguments.extend(json.then_some("--json"));
        let call = place.start(&arguments, &[]);
        until(|| call.stderr().contains("progress").then_some(())).await;
        gateway.kill();
        let ran = Ran::of(call).await;
        assert_eq!(ran.code, Some(3), "{ran:?}");
        match json {
            true => assert_eq!(ran.json()["error"]["data"]["mayHaveRun"], true, "{ran:?}"),
            false => assert!(ran.stderr.contains("what was asked for may have happened"), "{ran:?}"),
        }
        gateway.wait().await;
    }
}

/// JOIN-8: on a narrow terminal, `status` keeps the names whole and leaves out what there is no room for.
#[tokio::test]
async fn status_on_a_narrow_terminal() {
    let place = Place::new();
    let config = place.config(&["sequential-think"], "");
    let (gateway, _) = place.serve_http(&["--config", config.to_str().unwrap()], &[]).await;
    while !place.run(&["status"]).await.stdout.contains("RESTARTS") {}
    let terminal = Terminal::start(&place, &["status"]);
    let lines = terminal.until(|lines| lines.iter().any(|line| line.contains("sequential-think"))).await;
    assert!(lines.iter().any(|line| line.contains("SPEAKS")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("RESTARTS")), "{lines:?}");
    signal(&gateway, Signal::TERM);
}
