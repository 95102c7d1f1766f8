//! The steps of docs/access.md, taken one after the other with the configurations that the page shows.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use bridgehead_testkit::client::{HttpClient, HttpReply, StdioClient, modern_headers, modern_params};
use bridgehead_testkit::{Behaviour, Mock};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, signal, until};

const PAGE: &str = include_str!("../../../../docs/access.md");

/// The configuration of a step, with a scripted server in place of the published one.
fn step(number: u32) -> String {
    step_with(number, &["read_file", "write_file"])
}

/// The same, with these tools.
fn step_with(number: u32, tools: &[&str]) -> String {
    let block = PAGE.split(&format!("<!-- step {number} -->\n```toml\n")).nth(1).unwrap();
    let text = block.split("```").next().unwrap();
    let (before, _) = text.split_once("command = ").unwrap();
    let mock = tools.iter().fold(Mock::modern(), |mock, tool| mock.tool(*tool, Behaviour::Echo));
    let env: Vec<String> =
        mock.env().iter().map(|(name, value)| format!("{name} = {}", json!(value))).collect();
    format!("{before}command = {}\nenv = {{ {} }}\n", json!(mock.command().0), env.join(", "))
}

async fn ask(address: SocketAddr, method: &str, params: Value, bearer: Option<&str>) -> HttpReply {
    let params = modern_params(params);
    let mut headers = modern_headers(method, &params);
    headers.extend(bearer.map(|bearer| ("authorization", format!("Bearer {bearer}"))));
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    HttpClient::new(address).post("/mcp", &headers, body.to_string()).await
}

async fn tools(address: SocketAddr, bearer: &str) -> Vec<String> {
    let answer = ask(address, "tools/list", json!({}), Some(bearer)).await;
    let tools = answer.answer()["result"]["tools"].clone();
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    tools.as_array().unwrap_or_else(|| panic!("{answer:?}")).iter().map(name).collect()
}

async fn call(address: SocketAddr, tool: &str, bearer: &str) -> Value {
    let params = json!({"name": tool, "arguments": {"text": "x"}});
    ask(address, "tools/call", params, Some(bearer)).await.answer()
}

async fn serve(place: &Place, number: u32) -> (StdioClient, SocketAddr) {
    let file = place.file("bridgehead.toml", &step(number));
    place.serve_http(&["--config", file.to_str().unwrap()], &[]).await
}

/// Replaces the configuration of a running gateway in one step, which must not read half of it.
fn rewrite(place: &Place, text: &str) {
    let file = place.file("bridgehead.toml.new", text);
    std::fs::rename(file, place.path().join("bridgehead.toml")).unwrap();
}

async fn stop(mut gateway: StdioClient) {
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}

/// Makes a key as the page says; returns it.
async fn key(place: &Place, arguments: &[&str]) -> String {
    let file = place.path().join("bridgehead.toml");
    let made = place.run(&[&["key", "new"], arguments, &["--config", file.to_str().unwrap()]].concat()).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let key = made.stdout.trim().to_owned();
    assert!(key.starts_with("bhk_") && key.len() == 53, "{made:?}");
    key
}

/// The rows of the record: principal, subject and outcome or error code.
async fn record(place: &Place) -> Vec<Value> {
    let listed = place.run(&["audit", "list", "--json"]).await;
    listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// ACC-1: one token admits its holders, all of them as the principal `token`.
#[tokio::test]
async fn step_1_one_token() {
    let place = Place::new();
    let (gateway, address) = serve(&place, 1).await;
    let file = place.path().join("token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(file).unwrap();
    assert_eq!(ask(address, "tools/list", json!({}), None).await.status, 401);
    assert_eq!(
        call(address, "read_file", token.trim()).await["result"]["structuredContent"],
        json!({"text": "x"})
    );
    stop(gateway).await;
    let rows = record(&place).await;
    assert!(rows.iter().any(|row| row["principal"] == "token" && row["tool"] == "read_file"), "{rows:#?}");
}

/// ACC-2: keys are made while the gateway runs, each names its own principal, and a revoked one is refused within a second.
#[tokio::test]
async fn step_2_a_key_for_each() {
    let place = Place::new();
    let file = place.file("bridgehead.toml", &step(2));
    let ci = key(&place, &["ci", "--group", "build", "--expires", "90d"]).await;
    let keys = std::fs::read_to_string(place.path().join("keys.toml")).unwrap();
    assert!(!keys.contains(&ci), "only the digest is kept");
    let (gateway, address) = serve(&place, 2).await;
    assert_eq!(ask(address, "tools/list", json!({}), None).await.status, 401);
    assert_eq!(call(address, "read_file", &ci).await["result"]["structuredContent"], json!({"text": "x"}));
    let alice = key(&place, &["alice", "--group", "people"]).await;
    until_served(address, &alice, true).await;
    let config = file.to_str().unwrap();
    let listed = place.run(&["key", "list", "--config", config]).await;
    assert!(listed.stdout.contains("alice") && !listed.stdout.contains(&alice), "{listed:?}");
    let revoked = place.run(&["key", "revoke", "ci", "--config", config]).await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    until_served(address, &ci, false).await;
    assert_eq!(ask(address, "tools/list", json!({}), Some(&alice)).await.status, 200);
    stop(gateway).await;
    let rows = record(&place).await;
    assert!(rows.iter().any(|row| row["principal"] == "key:ci" && row["tool"] == "read_file"), "{rows:#?}");
    for made in ["key/new", "key/revoke"] {
        assert!(rows.iter().any(|row| row["method"] == made), "{made}: {rows:#?}");
    }
    for secret in [&ci, &alice] {
        assert!(!format!("{rows:?}").contains(secret.as_str()));
    }
}

/// Waits until a credential is accepted, or refused. A refused one soon counts as one of too many.
async fn until_served(address: SocketAddr, bearer: &str, served: bool) {
    for _ in 0..500 {
        let status = ask(address, "tools/list", json!({}), Some(bearer)).await.status;
        if (status == 200) == served {
            assert!(served || [401, 429].contains(&status), "{status}");
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the credential is still {}", if served { "refused" } else { "accepted" });
}

/// ACC-3: rules show each principal its own tools; a denied call gets the answer of an unknown one, and the record says why.
#[tokio::test]
async fn step_3_rules() {
    let place = Place::new();
    // The keys of the step before: a rule may only name what exists.
    let file = place.file("bridgehead.toml", &step(2));
    let ci = key(&place, &["ci"]).await;
    let alice = key(&place, &["alice", "--group", "people"]).await;
    let (gateway, address) = serve(&place, 3).await;
    assert_eq!(tools(address, &ci).await, ["read_file"]);
    assert_eq!(tools(address, &alice).await, ["read_file"]);
    let denied = call(address, "write_file", &alice).await;
    let unknown = call(address, "wrote_file", &alice).await;
    let plain = |answer: &Value| {
        let mut error = answer["error"].clone();
        error["data"]["correlationId"].take();
        error.to_string().replace("write_file", "NAME").replace("wrote_file", "NAME")
    };
    assert_eq!(plain(&denied), plain(&unknown));
    let config = file.to_str().unwrap();
    let told = place.run(&["explain", "files/write_file", "--as", "key:ci", "--config", config]).await;
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stdout.contains("denied") || told.stdout.contains("no rule"), "{told:?}");
    stop(gateway).await;
    let rows = record(&place).await;
    let row = rows.iter().find(|row| row["tool"] == "write_file").unwrap_or_else(|| panic!("{rows:#?}"));
    assert!(row.to_string().contains("DENIED"), "{row}");
    for (outcome, count) in [("denied", 1), ("error", 2)] {
        let listed = place.run(&["audit", "list", "--json", "--outcome", outcome]).await;
        let calls = listed.stdout.lines().filter(|line| line.contains("\"tool\":\"wr"));
        assert_eq!(calls.count(), count, "{outcome}: {listed:?}");
    }
}

/// ACC-4 (case 24): `explain` says what a running gateway does, also of keys in the keys file, with their groups, and of tools that
/// the rules hide from whoever asks. A tool comes before a page of the same name. `tools` says that rules may hide some.
#[tokio::test]
async fn explain_says_what_is_enforced() {
    let place = Place::new();
    place.file("bridgehead.toml", &step(2));
    key(&place, &["ci"]).await;
    let alice = key(&place, &["alice", "--group", "people"]).await;
    let file = place.file("bridgehead.toml", &step_with(3, &["read_file", "write_file", "audit"]));
    let config = ["--config", file.to_str().unwrap()];
    let (gateway, address) = place.serve_http(&config, &[]).await;
    assert_eq!(tools(address, &alice).await, ["read_file", "audit"]);
    let explain = async |arguments: &[&str]| place.run(&[&["explain"], arguments, &config].concat()).await;
    for (topic, tool, expected) in [
        ("files/read_file", "read_file", "allowed"),
        ("read_file", "read_file", "allowed"),
        ("audit", "audit", "allowed"),
        ("write_file", "write_file", "denied"),
    ] {
        let told = explain(&[topic, "--as", "key:alice"]).await;
        let first = format!("files/{tool} for key:alice in people: {expected}\n");
        assert!(told.code == Some(0) && told.stdout.starts_with(&first), "{topic}: {told:?}");
        let answer = call(address, tool, &alice).await;
        assert_eq!(answer.get("result").is_some(), expected == "allowed", "{tool}: {answer}");
    }
    key(&place, &["alice", "--group", "guests"]).await;
    let both = explain(&["files/read_file", "--as", "key:alice"]).await;
    let verdicts: Vec<&str> = both.stdout.lines().filter(|line| line.starts_with("files/")).collect();
    let each = ["guests: denied", "people: allowed"];
    assert_eq!(verdicts, each.map(|end| format!("files/read_file for key:alice in {end}")), "{both:?}");
    let told = explain(&["files/read_file", "--as", "key:alice", "--json"]).await;
    let mut each = serde_json::Deserializer::from_str(&told.stdout).into_iter::<Value>();
    let allowed: Vec<Value> = each.by_ref().map(|told| told.unwrap()["allowed"].clone()).collect();
    assert_eq!(allowed, [json!(false), json!(true)], "{told:?}");
    let page = explain(&["audit"]).await;
    assert!(page.code == Some(0) && !page.stdout.contains("files/audit"), "{page:?}");
    for (wrong, said) in [("key:alcie", "did you mean `alice`?"), ("corp/ada", "there is no issuer `corp`")] {
        let refused = explain(&["files/read_file", "--as", wrong]).await;
        assert!(refused.code == Some(2) && refused.stderr.contains(said), "{refused:?}");
    }
    let hidden = "note: rules may hide all tools from you";
    let listed = place.run(&["tools", config[0], config[1]]).await;
    assert!(listed.stdout.trim().is_empty() && listed.stderr.contains(hidden), "{listed:?}");
    stop(gateway).await;
    let fresh = place.run(&["tools", config[0], config[1]]).await;
    assert!(fresh.stdout.contains("write_file") && !fresh.stderr.contains(hidden), "{fresh:?}");
}

/// ACC-4: `tools` does not speak of rules if it shows something. `explain` names servers that do not serve, if a tool
/// that they may have is not found.
#[tokio::test]
async fn where_explain_finds_tools() {
    let place = Place::new();
    let gone = "[servers.gone]\ncommand = \"/no/such/program\"\n";
    let rules = "[[policy]]\nwho = [\"local\"]\ntools = [\"demo/echo\"]\n";
    let file = place.config(&["demo"], &format!("{rules}{gone}"));
    let config = ["--config", file.to_str().unwrap()];
    let (gateway, address) = place.serve_http(&config, &[]).await;
    let seen = async || ask(address, "tools/list", json!({}), None).await.answer().to_string();
    bridgehead_testkit::soon("the tools of the demo", async {
        while !seen().await.contains("demo__echo") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    let tools = place.run(&["tools", config[0], config[1]]).await;
    assert!(tools.stdout.starts_with("demo__echo ") && !tools.stderr.contains("rules"), "{tools:?}");
    stop(gateway).await;
    let file = place.config(&["demo"], &format!("[gateway]\nprefix = false\n{gone}"));
    let config = ["--config", file.to_str().unwrap()];
    for (topic, code, warns) in [("echo", 0, false), ("no_such", 2, true)] {
        let told = place.run(&["explain", topic, config[0], config[1]]).await;
        assert_eq!(told.code, Some(code), "{told:?}");
        assert_eq!(told.stderr.contains("server `gone` does not serve"), warns, "{told:?}");
        assert_eq!(told.stdout.starts_with("demo/echo for local"), !warns, "{told:?}");
    }
}

/// ACC-2, ACC-3: a key that rules name can be revoked: the gateway takes over changed rules and starts again, and the name admits
/// nobody until a key is made for it.
#[tokio::test]
async fn a_rule_may_name_a_revoked_key() {
    let place = Place::new();
    place.file("bridgehead.toml", &step(2));
    let ci = key(&place, &["ci"]).await;
    let alice = key(&place, &["alice", "--group", "people"]).await;
    let eve = key(&place, &["eve"]).await;
    let rule = "\n[[policy]]\nwho = [\"key:eve\"]\ntools = [\"files/*\"]\n";
    let file = place.file("bridgehead.toml", &format!("{}{rule}", step(3)));
    let config = file.to_str().unwrap();
    let (gateway, address) = place.serve_http(&["--config", config], &[]).await;
    assert_eq!(tools(address, &eve).await, ["read_file", "write_file"]);
    for name in ["ci", "alice"] {
        let revoked = place.run(&["key", "revoke", name, "--config", config]).await;
        assert_eq!(revoked.code, Some(0), "{revoked:?}");
    }
    let tightened = rule.replace("files/*", "files/read_*");
    rewrite(&place, &format!("{}{tightened}", step(3)));
    for _ in 0..500 {
        if tools(address, &eve).await == ["read_file"] {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(tools(address, &eve).await, ["read_file"], "{}", gateway.stderr());
    stop(gateway).await;
    let (gateway, address) = place.serve_http(&["--config", config], &[]).await;
    for refused in [&ci, &alice] {
        assert_eq!(ask(address, "tools/list", json!({}), Some(refused)).await.status, 401);
    }
    stop(gateway).await;
    let explained = place.run(&["explain", "files/read_file", "--as", "key:ci", "--config", config]).await;
    assert!(explained.code == Some(2) && explained.stderr.contains("was revoked at"), "{explained:?}");
    place.file("bridgehead.toml", &step(3).replace("key:ci", "key:never"));
    let never = place.run(&["check", "--config", config]).await;
    assert!(never.code == Some(78), "a name that never was is a mistake: {never:?}");
}

/// ACC-1: with an issuer, a caller without credentials is sent to it, by addresses that come from `public_url` alone.
#[tokio::test]
async fn step_4_single_sign_on() {
    let place = Place::new();
    place.file("bridgehead.toml", &step(2));
    let ci = key(&place, &["ci"]).await;
    let (gateway, address) = serve(&place, 4).await;
    let refused = ask(address, "tools/list", json!({}), None).await;
    assert_eq!(refused.status, 401);
    let metadata = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp";
    let challenge = refused.header("www-authenticate").unwrap();
    assert!(challenge.contains(&format!("resource_metadata=\"{metadata}\"")), "{challenge}");
    assert!(challenge.contains("files:write") && challenge.contains("mcp"), "{challenge}");
    for path in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"] {
        let document = HttpClient::new(address).get(path, &[]).await;
        assert_eq!(document.json()["resource"], "https://mcp.example.com/mcp", "{document:?}");
        let servers = &document.json()["authorization_servers"];
        assert_eq!(*servers, json!(["https://id.example.com/realms/corp"]));
    }
    assert_eq!(tools(address, &ci).await, ["read_file"], "keys work beside it");
    stop(gateway).await;
}

/// ACC-6: health and readiness need no credentials.
#[tokio::test]
async fn health_needs_no_credentials() {
    let place = Place::new();
    let (gateway, address) = serve(&place, 1).await;
    for path in ["/healthz", "/readyz"] {
        let answer = HttpClient::new(address).get(path, &[("host", "anything.example")]).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    stop(gateway).await;
}

/// ACC-3: `check` shows where clients are served, who is admitted and how many rules there are. It names patterns that match no
/// tool of a server that has started, and none of a server that has not.
#[tokio::test]
async fn what_check_says_about_access() {
    let place = Place::new();
    let more = "[http.listeners.here]\nlisten = \"unix:gate.sock\"\nauth = \"open\"\n\
                [[auth.keys.ci]]\nsha256 = \"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\"\n\
                [auth.issuers.corp]\nissuer = \"https://id.example.com\"\naudiences = [\"a\"]\n\
                [[policy]]\nwho = [\"key:ci\"]\ntools = [\"demo/*\"]\ndeny_tools = [\"demo/ech\", \"gone/x\", \"demo/ECHO\"]\n\
                [[limits.rules]]\nwho = [\"*\"]\nrate = \"60/min\"\ntools = [\"bridgehead/no_such\"]\n\
                [servers.gone]\ncommand = \"/no/such/program\"\n";
    let file = place.config(&["demo"], more);
    let config = ["--config", file.to_str().unwrap()];
    let told = place.run(&["check", "--json", config[0], config[1]]).await.json();
    let access = &told["access"];
    assert_eq!((&access["policyRules"], &access["limitRules"]), (&json!(1), &json!(1)), "{told:#}");
    let socket = format!("unix:{} (`here`, open)", place.path().join("gate.sock").display());
    assert_eq!(access["listeners"], json!(["127.0.0.1:4848", socket]));
    assert_eq!(
        access["admits"],
        json!(["holders of the keys `ci`", "holders of tokens of `corp`, verified"])
    );
    let findings = json!([
        "the rule in line 9: `deny_tools`: `demo/ech` matches no tool that is offered; did you mean `demo/echo`?",
        "the rule in line 13: `tools`: `bridgehead/no_such` matches no tool that is offered",
    ]);
    assert_eq!(access["findings"], findings, "{access:#}");

    let said = place.run(&["check", config[0], config[1]]).await.stdout;
    for line in
        ["admits: holders of the keys `ci`\n", "rules: 1 rule, 1 limit\n", "finding: the rule in line 9: "]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    let plain = place.config(&["demo"], "");
    let said = place.run(&["check", "--config", plain.to_str().unwrap()]).await.stdout;
    assert!(!said.contains("admits") && !said.contains("rules:") && !said.contains("listens"), "{said}");
}

/// ACC-3, ACC-9: changed rules take effect in a running gateway without a restart, and the record has the reload with what
/// identifies the rules. Rules that cannot be used change nothing.
#[tokio::test]
async fn rules_are_changed_while_the_gateway_runs() {
    let place = Place::new();
    place.file("bridgehead.toml", &step(2));
    let ci = key(&place, &["ci"]).await;
    let alice = key(&place, &["alice", "--group", "people"]).await;
    let (gateway, address) = serve(&place, 3).await;
    assert_eq!(tools(address, &alice).await, ["read_file"]);
    rewrite(&place, &step(3).replace("[\"files/write_*\", \"files/move_*\"]", "[\"files/read_*\"]"));
    for _ in 0..500 {
        if tools(address, &alice).await == ["write_file"] {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(tools(address, &alice).await, ["write_file"]);
    assert_eq!(tools(address, &ci).await, ["read_file"], "another class stays as it was");
    rewrite(&place, &step(3).replace("files/*", "nothing/*"));
    until(|| gateway.stderr().contains("the old one stays in effect").then_some(())).await;
    assert_eq!(tools(address, &alice).await, ["write_file"]);
    stop(gateway).await;
    let rows = record(&place).await;
    let reloads: Vec<&Value> = rows.iter().filter(|row| row["method"] == "configuration/reload").collect();
    assert_eq!(reloads.len(), 2, "{rows:#?}");
    let shown = place.run(&["audit", "show", reloads[0]["correlationId"].as_str().unwrap()]).await;
    let mut texts = shown.stdout.split('"').map(|text| text.trim_end_matches('\\'));
    assert!(
        texts.any(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())),
        "{shown:?}"
    );
}

/// ACC-3: each item of a batch of a legacy client is judged by the rules: lists are its own, a denied call is answered like an unknown
/// one, and an allowed one runs.
#[tokio::test]
async fn rules_hold_in_a_batch() {
    let place = Place::new();
    place.file("bridgehead.toml", &step(2));
    key(&place, &["ci"]).await;
    let alice = key(&place, &["alice", "--group", "people"]).await;
    let (gateway, address) = serve(&place, 3).await;
    let bearer = format!("Bearer {alice}");
    let client = HttpClient::new(address);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"},
    }});
    let accept = ("accept", "application/json, text/event-stream");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), accept];
    let opened = client.post("/mcp", &headers, hello.to_string()).await;
    let session = opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned();
    let item = |id: u32, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let named = |name: &str| json!({"name": name, "arguments": {"text": "x"}});
    let batch = json!([
        item(1, "tools/list", json!({})),
        item(2, "tools/call", named("read_file")),
        item(3, "tools/call", named("write_file")),
        item(4, "tools/call", named("wrote_file")),
    ]);
    let headers = [headers[0], headers[1], headers[2], ("mcp-session-id", session.as_str())];
    let answers = client.post("/mcp", &headers, batch.to_string()).await.json();
    let answer = |id: u32| {
        let all = answers.as_array().unwrap_or_else(|| panic!("{answers}"));
        all.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{id}: {answers}")).clone()
    };
    let listed: Vec<Value> =
        answer(1)["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(listed, ["read_file"]);
    assert!(answer(2)["result"]["content"].is_array(), "{answers}");
    let plain = |id: u32| {
        let mut error = answer(id)["error"].clone();
        assert!(error["data"]["correlationId"].take().is_string(), "{answers}");
        error.to_string().replace("write_file", "NAME").replace("wrote_file", "NAME")
    };
    assert_eq!(plain(3), plain(4));
    stop(gateway).await;
}

/// ACC-6: one program serves several listeners, each with its own authentication: an open Unix socket admits the local user, the
/// address with keys refuses callers without one, and the socket is gone after the end.
#[tokio::test]
async fn listeners_have_their_own_authentication() {
    let place = Place::new();
    place.file("bridgehead.toml", &step(2));
    let ci = key(&place, &["ci"]).await;
    let socket = place.path().join("gate.sock");
    let listeners = format!(
        "[http.listeners.here]\nlisten = {}\nauth = \"open\"\n",
        json!(format!("unix:{}", socket.display()))
    );
    let file = place.file("bridgehead.toml", &format!("{listeners}{}", step(2)));
    let (gateway, address) = place.serve_http(&["--config", file.to_str().unwrap()], &[]).await;
    until(|| gateway.stderr().contains("also at unix:").then_some(())).await;
    assert_eq!(ask(address, "tools/list", json!({}), None).await.status, 401);
    assert!(tools(address, &ci).await.contains(&"write_file".to_owned()));
    let params = modern_params(json!({}));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}).to_string();
    let mut request = String::from(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n",
    );
    for (name, value) in modern_headers("tools/list", &params) {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("write_file"), "{answer}");
    stop(gateway).await;
    assert!(!socket.exists());
}
