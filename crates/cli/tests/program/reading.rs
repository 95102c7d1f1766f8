//! A mistake in the configuration or the environment keeps nobody from reading.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, Ran, signal, until};

const RULES: &str = "[[policy]]\nwho = [\"local\"]\ntools = [\"one/echo\"]\n";

/// A configuration with a record, a key and rules.
fn configured(place: &Place) -> (String, String) {
    let record = place.path().join("record").display().to_string();
    let key = format!("[[auth.keys.ci]]\nsha256 = \"{}\"\ngroups = [\"build\"]\n", "ab".repeat(32));
    let more = format!("[audit]\nfolder = {record:?}\n[auth]\nlocal = true\n{key}{RULES}");
    (place.config(&["one"], &more).display().to_string(), record)
}

/// Makes a mistake in a file: in its form, or in one of its values.
fn break_it(config: &str, mistake: &str) {
    let text = std::fs::read_to_string(config).unwrap();
    std::fs::write(config, format!("{text}\n{mistake}\n")).unwrap();
}

fn has(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    for part in parts {
        assert!(ran.stdout.contains(part) || ran.stderr.contains(part), "`{part}` is missing: {ran:?}");
    }
}

/// Asks until it is so.
async fn repeated(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..200 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("it was waited in vain until {what}");
}

/// JOIN-9: `audit`, `key list`, `status`, `logs`, `explain` and `doctor` work although the configuration has a mistake, and say so;
/// `explain` answers from the rules of the running gateway, and refuses without one.
#[tokio::test]
async fn a_broken_file_can_be_read_around() {
    for mistake in ["[broken", "[servers.x]\ncomand = \"x\""] {
        let place = Place::new();
        let (config, record) = configured(&place);
        let config = config.as_str();
        let (gateway, _) = place.serve_http(&["--config", config], &[]).await;
        repeated("the gateway records a call", async || {
            let call = ["call", "echo", "--args", r#"{"text":"x"}"#, "--config", config];
            place.run(&call).await.code == Some(0) && Path::new(&record).exists()
        })
        .await;
        // The rules in effect are those of the last file that could be used, and not those of the start.
        let text = std::fs::read_to_string(config).unwrap();
        std::fs::write(config, text.replace("[\"one/echo\"]", "[\"one/echo\", \"one/add\"]")).unwrap();
        repeated("the gateway reloads its file", async || {
            let status = place.run(&["status", "--json"]).await;
            status.json()["gateways"][0]["reload"]["ok"] == true
        })
        .await;
        break_it(config, mistake);
        let wrong = if mistake == "[broken" { "not valid TOML" } else { "comand" };
        let with = |verb: &[&'static str]| {
            let mut all: Vec<String> = verb.iter().map(|word| (*word).to_owned()).collect();
            all.extend(["--config".to_owned(), config.to_owned()]);
            all
        };
        let run = async |verb: Vec<String>| {
            let words: Vec<&str> = verb.iter().map(String::as_str).collect();
            place.run(&words).await
        };
        let listed = run(with(&["audit", "list"])).await;
        has(&listed, 0, &["echo", wrong, "only [audit] is read here"]);
        has(&run(with(&["audit", "verify"])).await, 0, &["1 segment is unchanged", wrong]);
        has(&run(with(&["key", "list"])).await, 0, &["ci", "build", "only [auth] is read here"]);
        has(&run(with(&["key", "new", "x"])).await, 78, &[wrong]);

        for who in [&["explain", "one/add"][..], &["explain", "add"]] {
            has(&run(with(who)).await, 0, &["one/add for local", ": allowed", "running gateway", wrong]);
        }
        let ci = run(with(&["explain", "one/add", "--as", "key:ci", "--json"])).await;
        has(&ci, 0, &[wrong]);
        assert_eq!((&ci.json()["allowed"], &ci.json()["groups"]), (&json!(false), &json!(["build"])));

        has(&place.run(&["logs", "one"]).await, 0, &["serves 4 tools", "cannot be used now", wrong]);
        let status = place.run(&["status", "--json"]).await;
        let told = &status.json()["gateways"][0]["configMistake"];
        assert!(told.as_str().is_some_and(|told| told.contains(wrong)), "{status:?}");
        has(&place.run(&["status"]).await, 0, &["one ", "ready", wrong]);
        let doctor = run(with(&["doctor", "--json"])).await;
        has(&doctor, 78, &[]);
        let told: Value = doctor.json();
        assert_eq!((&told["ok"], told["machine"].as_array().is_some()), (&json!(false), true), "{told}");
        assert!(told["diagnostics"][0]["message"].as_str().unwrap().contains(wrong), "{told}");
        has(&run(with(&["doctor"])).await, 78, &["this machine, as tested", "no server was examined", wrong]);

        let pid = gateway.pid().unwrap();
        signal(&gateway, Signal::TERM);
        until(|| (!crate::common::lives(pid)).then_some(())).await;
        has(
            &run(with(&["explain", "one/echo"])).await,
            78,
            &[wrong, "no gateway runs with this configuration"],
        );
        has(&run(with(&["audit", "list"])).await, 0, &["echo", wrong]);
    }
}

/// JOIN-9: so it is with a mistake in the environment, and with a file whose needed section is the wrong one.
#[tokio::test]
async fn other_mistakes_can_be_read_around() {
    let place = Place::new();
    let variables = [("BRIDGEHEAD_MODES", "full")];
    for verb in [&["audit", "list"][..], &["key", "list", "--keys-file", "k.toml"], &["audit", "verify"]] {
        let ran = place.run_with(verb, &variables, "").await;
        has(&ran, 0, &["warning: unknown environment variable BRIDGEHEAD_MODES"]);
    }
    let config = place.file("c.toml", "[audit]\nfoldre = \"/x\"\n");
    let ran = place.run(&["audit", "list", "--config", config.to_str().unwrap()]).await;
    has(&ran, 0, &["foldre", "and its [audit] neither"]);
    let missing = place.run(&["audit", "list", "--config", "/no/such.toml"]).await;
    has(&missing, 78, &["does not exist"]);
}

/// HOUR-3: what is wrong with one server does not stand before the answer of another; it is told to whoever starts or lists all.
#[tokio::test]
async fn a_broken_server_does_not_speak_for_another() {
    let place = Place::new();
    let more = "[servers.lame]\ncommand = \"x\"\nenv = { A = \"${NO_SUCH_VARIABLE}\" }\n";
    let config = place.config(&["one"], more);
    let config = config.to_str().unwrap();
    let call = ["call", "one__echo", "--args", r#"{"text":"x"}"#, "--config", config];
    let fresh = place.run(&call).await;
    assert_eq!((fresh.code, fresh.said().as_str()), (Some(0), ""), "{fresh:?}");
    has(&place.run(&["tools", "--config", config]).await, 0, &["`lame`", "NO_SUCH_VARIABLE"]);
    has(&place.run(&["call", "lame__x", "--config", config]).await, 3, &["NO_SUCH_VARIABLE"]);
    has(&place.run(&["check", "--config", config]).await, 1, &["NO_SUCH_VARIABLE"]);
    let (gateway, _) = place.serve_http(&["--config", config], &[]).await;
    assert!(gateway.stderr().contains("NO_SUCH_VARIABLE"), "{}", gateway.stderr());
    // A call that finds no gateway yet names the configuration from which it starts servers.
    repeated("a call finds the gateway, which tells nothing of another server", async || {
        let asked = place.run(&call).await;
        asked.code == Some(0) && asked.stderr.is_empty()
    })
    .await;
    let listed = place.run(&["tools", "--server", "one", "--config", config]).await;
    assert_eq!((listed.code, listed.stderr.as_str()), (Some(0), ""), "{listed:?}");
    has(&place.run(&["tools", "--server", "lame", "--config", config]).await, 3, &["NO_SUCH_VARIABLE"]);
    signal(&gateway, Signal::TERM);
}
