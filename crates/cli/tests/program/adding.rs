//! What a new server changes besides: the names of other servers' tools, and who may use what; and a gateway beside another.

use std::path::Path;

use bridgehead_testkit::client::{StdioClient, modern_params};
use rustix::process::Signal;
use serde_json::json;

use crate::common::{Place, program, signal};

const DEMO: [&str; 3] = ["--", "bridgehead", "demo-server"];

async fn add(place: &Place, words: &[&str]) -> crate::common::Ran {
    place.run(&[&["add"], words, &DEMO].concat()).await
}

/// Waits until a gateway can be asked.
async fn answers(place: &Place) {
    for _ in 0..400 {
        if place.run(&["status"]).await.code == Some(0) {
            return;
        }
    }
    panic!("the gateway did not open its control socket");
}

/// HOUR-2: the command `bridgehead` means the running program, wherever that is; the PATH need not have it, and another program
/// of that name there is not started.
#[tokio::test]
async fn the_command_bridgehead_is_this_program() {
    let place = Place::new();
    let bin = place.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let other = bin.join("bridgehead");
    std::fs::write(&other, "#!/bin/sh\nexit 9\n").unwrap();
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for path in ["/usr/bin:/bin".to_owned(), format!("{}:/usr/bin:/bin", bin.display())] {
        let variables = [("PATH", path.as_str())];
        let name = format!("demo{}", path.len());
        let added = place.run_with(&[&["add", &name], &DEMO[..]].concat(), &variables, "").await;
        assert_eq!(added.code, Some(0), "{added:?}");
        assert!(added.stdout.contains(": ready, 4 tools"), "{added:?}");
        assert!(!added.stderr.contains("there is no program"), "{added:?}");
        let check = place.run_with(&["check"], &variables, "").await;
        assert_eq!(check.code, Some(0), "{check:?}");
    }
    let text = std::fs::read_to_string(place.path().join("bridgehead/bridgehead.toml")).unwrap();
    assert!(text.contains("command = \"bridgehead\"\n"), "the file says what was written: {text}");
}

/// JOIN-3: the first server hears that a second one will rename its tools, and can decide at once; the second one says what it
/// renamed, and whoever uses the old name gets the new one, with a gateway and without.
#[tokio::test]
async fn a_second_server_renames_the_tools_of_the_first() {
    let place = Place::new();
    let first = add(&place, &["one"]).await;
    assert!(first.stderr.contains("a second one puts `one__` before them"), "{first:?}");
    let (gateway, address) = place.serve_http(&[], &[]).await;
    answers(&place).await;
    let second = add(&place, &["two"]).await;
    assert_eq!(second.code, Some(0), "{second:?}");
    assert!(second.stderr.contains("the tools of `one` have new names: `TOOL` is `one__TOOL`"), "{second:?}");
    let call = ["call", "add", "--args", r#"{"a":1,"b":2}"#];
    let old = place.run(&call).await;
    assert_eq!(old.code, Some(2), "{old:?}");
    assert!(old.stderr.contains("`one__add`") && old.stderr.contains("`two__add`"), "{old:?}");
    // A client of the gateway that knows the old name gets the new one, too.
    let url = format!("http://{address}/mcp");
    let by_client = place.run(&["call", "add", "--url", &url]).await;
    assert!(by_client.stderr.contains("did you mean `one__add`"), "{by_client:?}");
    signal(&gateway, Signal::TERM);
    drop(gateway);
    let old = place.run(&[&call[..], &["--fresh"]].concat()).await;
    assert!(old.stderr.contains("did you mean `one__add` or `two__add`?"), "{old:?}");

    let removed = place.run(&["remove", "two", "--no-check"]).await;
    assert!(removed.stderr.contains("`one__TOOL` is `TOOL`"), "{removed:?}");
    let fixed = Place::new();
    for (decided, name) in [("--prefix", "one"), ("--prefix=false", "two")] {
        let added = add(&fixed, &[decided, "--json", name]).await;
        assert_eq!(added.json()["renamed"], json!([]), "{added:?}");
        assert!(!added.stderr.contains("note: the tools"), "{added:?}");
    }
    let tools = fixed.run(&["tools"]).await;
    assert!(tools.stdout.contains("one__add") && tools.stdout.contains("\nadd "), "{tools:?}");
}

/// JOIN-3, ACC-4: with rules in place, `add` says that nobody may use the new server yet, and `connect` says it again, and of which
/// servers the rules let this user use nothing.
#[tokio::test]
async fn a_new_server_under_rules() {
    let place = Place::new();
    let folder = place.path().join("bridgehead");
    std::fs::create_dir(&folder).unwrap();
    let server =
        |name: &str| format!("[servers.{name}]\ncommand = \"bridgehead\"\nargs = [\"demo-server\"]\n");
    let rules = "[[policy]]\nwho = [\"local\"]\ntools = [\"one/*\"]\n[[policy]]\nwho = [\"token\"]\ntools = [\"three/*\"]\n";
    let text = format!("{rules}{}{}", server("one"), server("three"));
    std::fs::write(folder.join("bridgehead.toml"), text).unwrap();
    let added = add(&place, &["two", "--no-check", "--json"]).await;
    assert!(added.stderr.contains("warning: nobody may use `two` yet"), "{added:?}");
    assert_eq!(added.json()["nobodyMayUse"], json!(["two"]), "{added:?}");
    let home = [("HOME", place.path().to_str().unwrap())];
    let connected = place.run_with(&["connect", "cursor"], &home, "").await;
    assert_eq!(connected.code, Some(0), "{connected:?}");
    for words in ["nobody may use `two` yet", "use nothing of `three`"] {
        assert!(connected.stderr.contains(words), "{words}: {connected:?}");
    }
    for rules in ["", "[[policy]]\nwho = [\"local\"]\ntools = [\"*/echo\"]\n"] {
        let open = Place::new();
        let config = open.file("open.toml", rules);
        let added = add(&open, &["--config", config.to_str().unwrap(), "--no-check", "one"]).await;
        assert_eq!(added.code, Some(0), "{added:?}");
        assert!(!added.stderr.contains("nobody may use"), "{added:?}");
    }
}

/// HOUR-11: where one's own gateway listens already, `serve` says so, with its address, and not only that the address is in use.
#[tokio::test]
async fn a_gateway_beside_ones_own() {
    let place = Place::new();
    let config = place.config(&["one"], "");
    let config = config.to_str().unwrap();
    let (gateway, address) = place.serve_http(&["--config", config], &[]).await;
    answers(&place).await;
    let beside = place.run(&["serve", "--listen", &address.to_string(), "--config", config]).await;
    assert_eq!(beside.code, Some(1), "{beside:?}");
    let told = format!(
        "error: your gateway serves http://{address}/mcp already (pid {}, configuration {config})",
        gateway.pid().unwrap()
    );
    assert!(beside.stderr.contains(&told) && !beside.stderr.contains("in use"), "{beside:?}");
    signal(&gateway, Signal::TERM);
}

/// CAT-3: a client that goes on with the name from the time of one server hears the new one.
#[tokio::test]
async fn an_old_name_over_stdio() {
    let place = Place::new();
    let config = place.config(&["one", "two"], "");
    let arguments = ["serve", "--stdio", "--standalone", "--config", config.to_str().unwrap()];
    let mut client: StdioClient = place.start_program(Path::new(program()), &arguments, &[]);
    let params = modern_params(json!({"name": "add", "arguments": {"a": 1, "b": 2}}));
    let answer = client.request("tools/call", params).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("did you mean `one__add`"), "{answer}");
    client.close_stdin();
}
