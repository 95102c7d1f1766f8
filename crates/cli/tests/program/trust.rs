//! `bridgehead trust`: configurations that lie in a project's folder.

use std::path::{Path, PathBuf};

use bridgehead_testkit::client::{StdioClient, Terminal};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, Ran, program, signal, until};

/// A folder of a project, as it was cloned.
fn project(place: &Place) -> (PathBuf, PathBuf) {
    let folder = place.path().join("project");
    std::fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let file = folder.join("bridgehead.toml");
    std::fs::write(&file, server("theirs")).unwrap();
    (folder, file)
}

fn server(name: &str) -> String {
    format!("[servers.{name}]\ncommand = {:?}\nargs = [\"demo-server\"]\n", program().display().to_string())
}

#[track_caller]
fn said(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    for part in parts {
        assert!(ran.stderr.contains(part) || ran.stdout.contains(part), "`{part}` is missing: {ran:?}");
    }
}

async fn stop(mut gateway: StdioClient) {
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}

/// The status of the one running gateway, once `wanted` holds.
async fn status(place: &Place, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..400 {
        let told = place.run(&["status", "--json"]).await;
        if let Ok(status) = serde_json::from_str::<Value>(&told.stdout)
            && wanted(&status["gateways"][0])
        {
            return status["gateways"][0].clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the gateway never reached the expected status");
}

fn names(gateway: &Value) -> Vec<&str> {
    gateway["upstreams"].as_array().unwrap().iter().map(|server| server["name"].as_str().unwrap()).collect()
}

/// JOIN-6: a found configuration is passed over with the command to run, and the user's own configuration or the demo is used;
/// after `trust` it is used, for that content only.
#[tokio::test]
async fn agreed_content_is_used() {
    let place = Place::new();
    let (folder, file) = project(&place);
    let name = file.to_str().unwrap();
    let passed = place.run_in(&folder, &["check"], &[]).await;
    said(&passed, 0, &[&format!("skipping `{name}`"), &format!("bridgehead trust {name}"), "the demo runs"]);
    said(&place.run_in(&folder, &["trust"], &[]).await, 2, &["theirs: ", "demo-server", "add --yes"]);
    let ran = place.run_in(&folder, &["trust", "--yes", "--json"], &[]).await;
    said(&ran, 0, &[]);
    assert_eq!(
        (&ran.json()["ok"], &ran.json()["path"], &ran.json()["gateway"]),
        (&json!(true), &json!(name), &Value::Null)
    );
    said(
        &place.run_in(&folder, &["check"], &[]).await,
        0,
        &["theirs  ok", &format!("configuration: {name}")],
    );
    said(&place.run_in(&folder, &["trust"], &[]).await, 0, &["may be used already"]);

    std::fs::write(&file, server("others")).unwrap();
    let passed = place.run_in(&folder, &["check"], &[]).await;
    said(&passed, 0, &["skipping", "bridgehead trust", "the demo runs"]);
    let ran = place.run(&["trust", "--list", "--json"]).await;
    let listed = ran.json()["files"][0].clone();
    assert_eq!(
        (&listed["path"], &listed["agreed"], &listed["file"]),
        (&json!(name), &json!(true), &json!("changed since"))
    );
    said(&place.run(&["trust", "--list"]).await, 0, &["agreed", "changed since"]);
    said(&place.run(&["trust", "--revoke", folder.to_str().unwrap()]).await, 0, &["forgot 1 answer"]);
    said(&place.run(&["trust", "--revoke", name, "--json"]).await, 2, &["you said nothing about"]);
    said(&place.run(&["trust", "--list"]).await, 0, &["not been asked"]);
}

/// JOIN-6: whoever agrees has seen all of the text: what is redacted and cut elsewhere, variables of the programs, and a command
/// that cannot start as long as a variable is not set. Values of variables are not shown.
#[tokio::test]
async fn nothing_is_hidden() {
    let place = Place::new();
    let (folder, file) = project(&place);
    std::fs::remove_file(file).unwrap();
    let long = "x".repeat(500);
    let servers = json!({"mcpServers": {
        "unset": {"command": "sh", "args": ["-c", "touch ran # ${EDITOR_X}"]},
        "set": {"command": "sh", "args": ["${MY_PASS}", "password=\"$(touch ran)\""], "cwd": "sub"},
        "long": {"command": "sh", "args": [long], "env": {"LD_PRELOAD": "./evil.so"}},
        "far": {"url": "https://h.example/mcp?token=hunter2"},
    }});
    std::fs::write(folder.join(".mcp.json"), servers.to_string()).unwrap();
    let ran = place.run_in(&folder, &["trust"], &[("MY_PASS", "from-the-environment")]).await;
    said(
        &ran,
        2,
        &[
            "unset: sh -c \"touch ran # ${EDITOR_X}\"",
            "set: sh ${MY_PASS} \"password=\\\"$(touch ran)\\\"\"",
            "cwd: \"sub\"",
            &format!("long: sh {long}"),
            "env: {LD_PRELOAD: \"./evil.so\"}",
            "far: \"https://h.example/mcp?token=hunter2\"",
        ],
    );
    assert!(!ran.stderr.contains("from-the-environment"), "{ran:?}");
}

/// JOIN-6: what cannot be agreed to is named; the user's own configuration needs no agreement.
#[tokio::test]
async fn what_needs_no_agreement() {
    let place = Place::new();
    let (folder, file) = project(&place);
    said(&place.run_in(place.path(), &["trust"], &[]).await, 2, &["neither bridgehead.toml nor .mcp.json"]);
    said(&place.run(&["trust", "no-such-file"]).await, 2, &["there is no file"]);
    std::fs::write(&file, "[servers.a]\ncommand = 1\n").unwrap();
    said(&place.run_in(&folder, &["trust", "--yes"], &[]).await, 78, &["`command` must be"]);
    std::fs::create_dir(place.path().join("bridgehead")).unwrap();
    let own = place.path().join("bridgehead/bridgehead.toml");
    std::fs::write(&own, server("own")).unwrap();
    said(&place.run(&["trust", own.to_str().unwrap()]).await, 0, &["needs no agreement"]);
    let passed = place.run_in(&folder, &["check"], &[]).await;
    said(&passed, 0, &["own  ok", "skipping"]);
    assert!(!place.path().join("state/bridgehead/trust.json").exists());
}

/// JOIN-6: a change by somebody else leaves the running configuration in force; status and log say what changed and name `trust`;
/// after that the gateway applies it. An edit by a verb is applied at once.
#[tokio::test]
async fn a_running_gateway_follows_what_was_agreed_to() {
    let place = Place::new();
    let (folder, file) = project(&place);
    said(&place.run_in(&folder, &["trust", "--yes"], &[]).await, 0, &["may be used now"]);
    let gateway = place.start_in(&folder, &["serve", "--listen", "127.0.0.1:0"], &[]);
    until(|| gateway.stderr().contains("/mcp\n").then_some(())).await;
    status(&place, |gateway| gateway["upstreams"][0]["state"] == "ready").await;

    let evil = "[servers.evil]\ncommand = 'sh'\nargs = ['-c', 'exit', '--token=hunter2']\n";
    std::fs::write(&file, format!("{}{evil}", server("theirs"))).unwrap();
    let told = status(&place, |gateway| gateway["reload"]["ok"] == false).await;
    let message = told["reload"]["message"].as_str().unwrap();
    for part in ["+ evil: sh -c exit", &format!("bridgehead trust {}", file.display()), "stays in effect"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!message.contains("hunter2") && names(&told) == ["theirs"], "{told}");
    until(|| gateway.stderr().contains("bridgehead trust").then_some(())).await;
    assert!(!gateway.stderr().contains("hunter2"));
    said(&place.run(&["status"]).await, 0, &["NOT reloaded", "bridgehead trust"]);

    std::fs::write(&file, format!("{}[http]\nlisten = '127.0.0.1:0'\n", server("theirs"))).unwrap();
    status(&place, |gateway| gateway["reload"]["message"].as_str().unwrap().contains("(+ [http])")).await;

    std::fs::write(&file, format!("{}{}", server("theirs"), server("second"))).unwrap();
    status(&place, |gateway| gateway["reload"]["message"].as_str().unwrap().contains("+ second")).await;
    let ran = place.run_in(&folder, &["trust", "--yes", "--json"], &[]).await;
    said(&ran, 0, &[]);
    assert_eq!(ran.json()["gateway"]["message"], "added second", "{ran:?}");
    let told = status(&place, |gateway| gateway["reload"]["ok"] == true).await;
    assert_eq!(names(&told), ["theirs", "second"]);

    let demo = program().to_str().unwrap();
    let add = ["add", "--scope", "project", "third", "--", demo, "demo-server"];
    said(&place.run_in(&folder, &add, &[]).await, 0, &["takes it over", "ready, 4 tools"]);
    assert_eq!(
        names(&status(&place, |gateway| gateway["reload"]["ok"] == true).await),
        ["theirs", "second", "third"]
    );
    stop(gateway).await;
}

/// JOIN-6: editing somebody else's file does not agree to it, and starts nothing.
#[tokio::test]
async fn an_edit_does_not_agree_to_a_strangers_file() {
    let place = Place::new();
    let (folder, file) = project(&place);
    let ran = place.path().join("ran");
    let add = ["add", "--scope", "project", "mine", "--", "touch", ran.to_str().unwrap()];
    said(&place.run_in(&folder, &add, &[]).await, 1, &["added mine", "nobody agreed", "bridgehead trust"]);
    assert!(!ran.exists());
    said(&place.run_in(&folder, &["check"], &[]).await, 0, &["skipping"]);
    assert!(std::fs::read_to_string(&file).unwrap().contains("[servers.mine]"));
}

/// JOIN-6: on a terminal `trust` shows what would run, and asks.
#[tokio::test]
async fn a_person_is_asked() {
    let place = Place::new();
    let (folder, _) = project(&place);
    let home = place.path().to_str().unwrap();
    let state = format!("{home}/state");
    let variables = [("XDG_CONFIG_HOME", home), ("XDG_STATE_HOME", &state), ("XDG_RUNTIME_DIR", home)];
    let command = format!("cd '{}' && exec '{}' trust", folder.display(), program().display());
    for (answer, code, told) in [("n", 1, "you refused"), ("yes", 0, "may be used now")] {
        let mut terminal = Terminal::start(Path::new("/bin/sh"), &["-c", &command], variables, 100, None);
        terminal.until("theirs: ").await;
        terminal.until("[y/N]").await;
        terminal.type_line(answer);
        assert_eq!(terminal.wait().await.code(), Some(code), "{}", terminal.shown());
        assert!(terminal.shown().contains(told), "{}", terminal.shown());
    }
}
