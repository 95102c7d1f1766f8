//! The record of calls as users see it: `serve` writes it, `audit` reads and checks it.

use bridgehead_testkit::client::{StdioClient, modern_params};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, signal, until};

async fn call(client: &mut StdioClient, tool: &str, arguments: Value) -> Value {
    client.request("tools/call", modern_params(json!({"name": tool, "arguments": arguments}))).await
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// AUD-2, AUD-3, AUD-5: `serve` records by default. list, show, verify, prove and export read the record while it runs, and
/// `verify` detects a later change with exit code 1.
#[tokio::test]
async fn calls_are_recorded_and_can_be_checked() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let config = config.to_str().unwrap();
    let mut gateway = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    call(&mut gateway, "add", json!({"a": 1, "b": 2})).await;
    call(&mut gateway, "nothing", json!({})).await;

    let audit = async |arguments: &[&str]| {
        let mut all = vec!["audit"];
        all.extend_from_slice(arguments);
        all.extend_from_slice(&["--config", config]);
        place.run(&all).await
    };
    let status = place.run(&["status", "--json"]).await.json();
    let instance = status["gateways"][0]["instance"].as_str().unwrap().to_owned();
    let listed = loop {
        let listed = audit(&["list", "--json"]).await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let calls = lines(&listed.stdout);
        if calls.len() == 2 && calls.iter().all(|call| call["outcome"] != "open") {
            break calls;
        }
    };
    assert_eq!(listed[0]["tool"], "add");
    let segment = listed[0]["segment"].as_str().unwrap();
    assert!(segment.ends_with(&format!("-{instance}.0001")), "{segment} is named by {instance}");
    assert_eq!((&listed[0]["outcome"], &listed[0]["transport"]), (&json!("result"), &json!("stdio")));
    assert_eq!((&listed[0]["era"], &listed[0]["server"]), (&json!("modern"), &json!("demo")));
    assert!(listed[0]["arguments"].as_str().unwrap().contains("\"b\""), "{}", listed[0]);
    assert_eq!((&listed[1]["outcome"], &listed[1]["validated"]), (&json!("error"), &json!(false)));
    let id = listed[0]["correlationId"].as_str().unwrap();
    let shown = audit(&["show", id]).await;
    assert!(shown.code == Some(0) && shown.stdout.contains("argumentsDigest"), "{shown:?}");
    assert_eq!(audit(&["show", "0199d0a5-6f2b-7c3e-8d4f-0123456789ab"]).await.code, Some(1));
    for (filter, count) in [
        (["--tool", "add"], 1),
        (["--server", "demo"], 1),
        (["--outcome", "error"], 1),
        (["--id", id], 1),
        (["--since", "1h"], 2),
        (["--until", "1h"], 0),
        (["--limit", "1"], 1),
    ] {
        let found = audit(&["list", "--json", filter[0], filter[1]]).await;
        assert_eq!(lines(&found.stdout).len(), count, "{filter:?}");
    }
    assert!(audit(&["list"]).await.stdout.contains("CORRELATION ID"));
    let running = audit(&["verify", "--json"]).await;
    assert_eq!(running.code, Some(0), "{running:?}");
    assert!(audit(&["prove", id]).await.stderr.contains("no checkpoint covers"));

    gateway.close_stdin();
    assert_eq!(gateway.wait().await.code(), Some(0));
    let verified = audit(&["verify"]).await;
    assert!(verified.code == Some(0) && verified.stdout.contains("sealed"), "{verified:?}");
    let head = verified.stdout.split_whitespace().next().unwrap().to_owned();

    for flag in [&[][..], &["--exit"]] {
        let mut arguments = vec!["prove", id];
        arguments.extend_from_slice(flag);
        let proof = audit(&arguments).await;
        assert_eq!(proof.code, Some(0), "{proof:?}");
        let file = place.file("proof.json", &proof.stdout);
        let root = proof.json()["checkpoint"]["root"].as_str().unwrap().to_owned();
        let file = file.to_str().unwrap();
        assert_eq!(place.run(&["audit", "verify-proof", file, "--root", &root]).await.code, Some(0));
        let other = "0".repeat(64);
        assert_eq!(place.run(&["audit", "verify-proof", file, "--root", &other]).await.code, Some(1));
        let changed = place.file("changed.json", &proof.stdout.replace("add", "sub"));
        assert_eq!(place.run(&["audit", "verify-proof", changed.to_str().unwrap()]).await.code, Some(1));
    }

    let exported = place.path().join("record.jsonl");
    let exported = exported.to_str().unwrap();
    assert_eq!(audit(&["export", "--output", exported]).await.code, Some(0));
    assert_eq!(audit(&["verify", exported]).await.code, Some(0));
    let csv = audit(&["export", "--format", "csv", "--outcome", "result"]).await;
    assert!(csv.stdout.lines().count() == 2 && csv.stdout.starts_with("time,correlationId,"), "{csv:?}");

    let text = std::fs::read_to_string(exported).unwrap();
    std::fs::write(exported, text.replace("\"tool\":\"add\"", "\"tool\":\"sum\"")).unwrap();
    let changed = audit(&["verify", exported]).await;
    assert!(changed.code == Some(1) && changed.stdout.contains("row 1: it was changed"), "{changed:?}");
    let cut: Vec<&str> = text.lines().take(2).collect();
    std::fs::write(exported, cut.join("\n") + "\n").unwrap();
    assert_eq!(
        audit(&["verify", exported]).await.code,
        Some(0),
        "without a saved head, a cut tail is not detected"
    );
    assert_eq!(audit(&["verify", exported, "--head", &head]).await.code, Some(1));

    let folder = place.path().join("state/bridgehead/audit");
    let segment = std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path());
    let segment = segment.into_iter().find(|path| path.extension().is_some_and(|it| it == "sqlite")).unwrap();
    std::fs::remove_file(segment).unwrap();
    let gone = audit(&["verify"]).await;
    assert!(gone.code == Some(1) && gone.stdout.contains("the whole segment is missing"), "{gone:?}");
}

/// HOUR-4: `audit list --limit` shows the newest calls of all gateways. An unknown outcome is refused with a list of the
/// known ones. The beginning of an id is enough. `prove` says when it will work. A count of one is singular.
#[tokio::test]
async fn the_record_of_several_gateways_is_read_as_one() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let config = config.to_str().unwrap();
    let audit = async |arguments: &[&str]| {
        let mut all = vec!["audit"];
        all.extend_from_slice(arguments);
        all.extend_from_slice(&["--config", config]);
        place.run(&all).await
    };
    let mut older = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    call(&mut older, "add", json!({"a": 1, "b": 1})).await;
    let mut younger = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    call(&mut younger, "add", json!({"a": 2, "b": 2})).await;
    call(&mut older, "add", json!({"a": 3, "b": 3})).await;
    let all = loop {
        let calls = lines(&audit(&["list", "--json"]).await.stdout);
        if calls.len() == 3 && calls.iter().all(|call| call["outcome"] == "result") {
            break calls;
        }
    };
    let text = |call: &Value, key: &str| call[key].as_str().unwrap().to_owned();
    for limit in ["1", "2"] {
        let newest = lines(&audit(&["list", "--json", "--limit", limit]).await.stdout);
        assert_eq!(newest, all[3 - newest.len()..], "--limit {limit}");
        assert_eq!(newest.len().to_string(), limit);
    }
    assert!(text(&all[2], "arguments").contains('3') && all[2]["segment"] == all[0]["segment"], "{all:?}");

    let refused = audit(&["list", "--outcome", "bad"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("toolError") && refused.stderr.contains("interrupted"), "{refused:?}");

    let ids: Vec<String> = all.iter().map(|call| text(call, "correlationId")).collect();
    let ambiguous = audit(&["show", &ids[0][..1]]).await;
    assert_eq!(ambiguous.code, Some(1));
    assert!(ids.iter().all(|id| ambiguous.stderr.contains(id)), "{ambiguous:?}");
    let shared = |length: usize| ids[1..].iter().any(|id| id[..length] == ids[0][..length]);
    let length = (1..36).find(|length| !shared(*length)).unwrap();
    let shown = audit(&["show", "--json", &ids[0][..length].to_uppercase()]).await;
    assert_eq!(lines(&shown.stdout), [all[0].clone()], "{shown:?}");
    let early = audit(&["prove", &ids[0][..length]]).await;
    assert!(early.code == Some(1) && early.stderr.contains("try again in"), "{early:?}");

    for mut gateway in [older, younger] {
        gateway.close_stdin();
        gateway.wait().await;
    }
    assert_eq!(audit(&["prove", &ids[0][..length]]).await.code, Some(0));
    let both = audit(&["verify"]).await;
    assert!(both.stdout.contains("2 segments are unchanged"), "{both:?}");
    let file =
        format!("{}/state/bridgehead/audit/{}.sqlite", place.path().display(), text(&all[1], "segment"));
    let one = audit(&["verify", &file]).await;
    assert!(one.stdout.contains("1 segment is unchanged"), "{one:?}");
}

/// AUD-2: after kill -9 the record has the call that was answered. The next start ends the call in progress as
/// `interrupted`, and everything verifies.
#[tokio::test]
async fn a_killed_gateway_leaves_a_record_that_is_finished_later() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let config = config.to_str().unwrap();
    let mut gateway = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    call(&mut gateway, "add", json!({"a": 1, "b": 2})).await;
    let params = json!({"name": "sleep", "arguments": {"ms": 60_000}, "_meta": {"progressToken": 1}});
    gateway.start_request("tools/call", modern_params(params)).await;
    assert_eq!(gateway.recv().await["method"], "notifications/progress");
    signal(&gateway, Signal::KILL);
    gateway.wait().await;
    let folder = place.path().join("state/bridgehead/audit");
    let locks = || {
        let names = std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".lock")).count()
    };
    assert_eq!(locks(), 1);
    let mut next = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    call(&mut next, "server_ping", json!({})).await;
    until(|| (locks() == 1).then_some(())).await;
    next.close_stdin();
    next.wait().await;
    let listed = lines(&place.run(&["audit", "list", "--json", "--config", config]).await.stdout);
    let told: Vec<_> = listed.iter().map(|call| (&call["tool"], call["outcome"].as_str().unwrap())).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    // Exits are queued: the exit of the answered call may have been lost with the process, but not its enter.
    assert!(told[0] == (&json!("add"), "result") || told[0] == (&json!("add"), "interrupted"), "{told:?}");
    assert_eq!(told[1..], [(&json!("sleep"), "interrupted"), (&json!("server_ping"), "result")]);
    assert_eq!(place.run(&["audit", "verify", "--config", config]).await.code, Some(0));
}

/// AUD-2: nothing is recorded if the configuration says so. An unusable folder stops `serve`, unless `on_failure` is
/// `continue`.
#[tokio::test]
async fn the_configuration_decides_what_is_kept() {
    let place = Place::new();
    for (more, variables) in [("audit.store = \"none\"", &[][..]), ("", &[("BRIDGEHEAD_MODE", "test")][..])] {
        let config = place.config(&["demo"], more);
        let mut gateway = place
            .start(&["serve", "--stdio", "--standalone", "--config", config.to_str().unwrap()], variables);
        call(&mut gateway, "add", json!({"a": 1, "b": 2})).await;
        gateway.close_stdin();
        gateway.wait().await;
        assert!(!place.path().join("state/bridgehead/audit").exists(), "{more}");
    }
    let file = place.file("file", "");
    let folder = format!("audit.folder = \"{}/audit\"\n", file.display());
    let config = place.config(&["demo"], &folder);
    let ran = place.run(&["serve", "--stdio", "--standalone", "--config", config.to_str().unwrap()]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("audit.folder"), "{ran:?}");
    let config = place.config(&["demo"], &format!("{folder}audit.on_failure = \"continue\"\n"));
    let mut gateway =
        place.start(&["serve", "--stdio", "--standalone", "--config", config.to_str().unwrap()], &[]);
    let answer = call(&mut gateway, "add", json!({"a": 1, "b": 2})).await;
    assert!(answer["result"].is_object(), "{answer}");
    assert!(gateway.stderr().contains("without a record"), "{}", gateway.stderr());
}

/// AUD-4: a planted secret appears in no sink: not in the record, the log at its most verbose level, or the events. It is
/// recognized by a name, a shape, a pattern or a path.
#[tokio::test]
async fn a_planted_secret_appears_in_no_sink() {
    let place = Place::new();
    let rules = "[audit]\nredact = ['NIGHTINGALE-\\d+']\nredact_paths = ['*:/plain/deep']\n";
    let config = place.config(&["demo"], rules);
    let config = config.to_str().unwrap();
    let mut gateway =
        place.start(&["--log-level", "trace", "serve", "--stdio", "--standalone", "--config", config], &[]);
    let secrets =
        ["hunter2-by-name", "ghp_0123456789abcdefABCDEF0123456789abcd", "NIGHTINGALE-4711", "by-its-path"];
    let arguments = json!({
        "password": secrets[0],
        "note": format!("use {} please", secrets[1]),
        "project": secrets[2],
        "plain": {"deep": secrets[3]},
    });
    let sockets = || {
        let names = std::fs::read_dir(place.path().join("bridgehead")).into_iter().flatten().flatten();
        names.filter(|entry| entry.path().extension().is_some_and(|it| it == "sock")).count()
    };
    until(|| (sockets() == 1).then_some(())).await;
    let mut events = place.start(&["events", "--json"], &[]);
    let a_moment = std::time::Duration::from_millis(100);
    let mut told = loop {
        call(&mut gateway, "server_ping", json!({})).await;
        if let Ok(Some(line)) = tokio::time::timeout(a_moment, events.recv_line()).await {
            break line;
        }
    };
    for tool in ["add", "server_ping", "nothing"] {
        call(&mut gateway, tool, arguments.clone()).await;
    }
    // As the name of a tool, in a URI, and as the name of the client.
    let mut params = modern_params(json!({"name": secrets[1]}));
    params["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] = json!(secrets[1]);
    gateway.request("tools/call", params.clone()).await;
    params["uri"] = json!(format!("file:///x?token={}", secrets[0]));
    gateway.request("resources/read", params).await;
    let text = json!({"text": format!("{} {}", secrets[1], secrets[2])});
    let echoed = call(&mut gateway, "echo", text).await;
    assert!(echoed.to_string().contains("NIGHTINGALE"), "the client gets the unredacted answer: {echoed}");
    while !told.contains("\"tool\":\"echo\"") {
        told.push_str(&events.recv_line().await.unwrap());
    }
    gateway.close_stdin();
    gateway.wait().await;
    let exported = place.run(&["audit", "export", "--config", config]).await.stdout;
    assert!(exported.matches("[redacted]").count() >= 4, "{exported}");
    let mut stored = exported;
    for entry in std::fs::read_dir(place.path().join("state/bridgehead/audit")).unwrap().flatten() {
        stored.push_str(&String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()));
    }
    for (sink, text) in [("the record", stored), ("the log", gateway.stderr()), ("the events", told)] {
        for secret in secrets {
            assert!(!text.contains(secret), "{secret} is in {sink}");
        }
    }
}

/// GATE-2, GATE-3: `audit list` shows a request other than a call by its method, `--method` filters by method, and each row
/// names the client program.
#[tokio::test]
async fn other_requests_are_listed_too() {
    let place = Place::new();
    let config = place.config(&["demo"], "[audit]\nmethods = [\"tools/list\"]");
    let config = config.to_str().unwrap();
    let mut gateway = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    call(&mut gateway, "add", json!({"a": 1, "b": 2})).await;
    gateway.request("tools/list", modern_params(json!({}))).await;
    gateway.close_stdin();
    assert_eq!(gateway.wait().await.code(), Some(0));

    let all = place.run(&["audit", "list", "--config", config]).await;
    assert!(all.stdout.contains(" add ") && all.stdout.contains(" tools/list "), "{}", all.stdout);
    let some = place.run(&["audit", "list", "--json", "--method", "tools/list", "--config", config]).await;
    let found = lines(&some.stdout);
    assert_eq!(found.len(), 1, "{}", some.stdout);
    assert_eq!((&found[0]["method"], &found[0]["outcome"]), (&json!("tools/list"), &json!("result")));
    assert_eq!(found[0]["client"], "testkit 1.0.0");
}
