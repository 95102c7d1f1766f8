//! What people write on the command line before they have read its help.

use bridgehead_testkit::client::modern_params;
use serde_json::{Value, json};

use crate::common::{Place, until};
use crate::terminal::{COLUMNS, Terminal};

/// JOIN-8: `call` takes its arguments as words, typed by the tool's schema; `tools --server` shows the tools of one server, with and
/// without a running gateway; a server that does not exist is refused with the nearest name.
#[tokio::test]
async fn words_and_servers() {
    let place = Place::new();
    let config = place.config(&["one", "two"], "");
    let config = config.to_str().unwrap();
    let run = async |words: &[&str]| place.run(&[words, &["--config", config]].concat()).await;
    let check = async || {
        let sum = run(&["call", "one__add", "a=1", "b=2.5", "--json"]).await;
        assert_eq!(sum.json()["structuredContent"]["sum"], json!(3.5), "{sum:?}");
        let text = run(&["call", "two__echo", "text=17"]).await;
        assert_eq!((text.code, text.stdout.trim()), (Some(0), "17"), "{text:?}");
        let listed = run(&["tools", "--server", "two", "--json"]).await.json();
        let names: Vec<&str> =
            listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["two__echo", "two__add", "two__sleep", "two__fail"]);
        let own = run(&["tools", "--server", "bridgehead"]).await;
        assert!(own.stdout.contains("server_ping") && !own.stdout.contains("two__"), "{own:?}");
    };
    check().await;
    let wrong = run(&["tools", "--server", "tow"]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("no server `tow`; did you mean `two`?"), "{wrong:?}");
    let shown = run(&["tools", "show", "one__add", "--server", "one"]).await;
    assert!(shown.code == Some(2) && shown.stderr.contains("leave it out here"), "{shown:?}");
    let (_gateway, _) = place.serve_http(&["--config", config], &[]).await;
    // Its control socket may follow its banner.
    while place.run(&["status"]).await.code != Some(0) {}
    check().await;
}

/// HOUR-4: the record is filtered by caller and client program and counted per tool and caller, for people on a narrow terminal too; the
/// events of a gateway name the caller. What acts on a terminal is an escape in JSON.
#[tokio::test]
async fn who_called_what() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let config = config.to_str().unwrap();
    let mut gateway = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    let sockets = || {
        let names = std::fs::read_dir(place.path().join("bridgehead")).into_iter().flatten().flatten();
        names.filter(|entry| entry.path().extension().is_some_and(|it| it == "sock")).count()
    };
    until(|| (sockets() == 1).then_some(())).await;
    let mut events = place.start(&["events", "--json", "--topic", "tool"], &[]);
    let within = std::time::Duration::from_millis(200);
    let told = loop {
        gateway.request("tools/call", modern_params(json!({"name": "server_ping"}))).await;
        if let Ok(Some(line)) = tokio::time::timeout(within, events.recv_line()).await {
            break line;
        }
    };
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(told["principal"].as_str().unwrap().starts_with("local"), "{told}");
    assert_eq!(told["client"], "testkit 1.0.0");
    let name = "a\u{2028}b\u{202e}c\u{85}d";
    for _ in 0..2 {
        gateway.request("tools/call", modern_params(json!({"name": name}))).await;
    }
    gateway.close_stdin();
    assert_eq!(gateway.wait().await.code(), Some(0));

    let audit = async |words: &[&str]| place.run(&[&["audit"], words, &["--config", config]].concat()).await;
    let count = async |words: &[&str]| {
        audit(&[&["list", "--json", "--method", "tools/call"], words].concat()).await.stdout.lines().count()
    };
    let principal = told["principal"].as_str().unwrap();
    let all = count(&[]).await;
    assert!(all >= 3);
    for (words, expected) in [
        (["--principal", principal], all),
        (["--principal", "nobody"], 0),
        (["--client", "testkit"], all),
        (["--client", "testkit 1.0.0"], all),
        (["--client", "testkit 2"], 0),
    ] {
        assert_eq!(count(&words).await, expected, "{words:?}");
    }
    let listed = audit(&["list", "--json", "--tool", name]).await.stdout;
    assert!(listed.contains(r"a\u2028b\u202ec\u0085d") && !listed.contains('\u{2028}'), "{listed}");
    let row: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(row["tool"], name);
    let top = audit(&["top", "--json", "--tool", name]).await;
    let total: Value = serde_json::from_str(&top.stdout).unwrap();
    assert_eq!(
        (&total["calls"], &total["failed"], &total["client"], &total["principal"]),
        (&json!(2), &json!(2), &json!("testkit"), &json!(principal))
    );
    let wide = audit(&["list"]).await.stdout;
    assert!(wide.lines().next().unwrap().contains("CLIENT") && wide.contains("testkit 1.0.0"), "{wide}");

    for words in [["audit", "list"], ["audit", "top"], ["tools", "cost"]] {
        let mut terminal = Terminal::start(&place, &[&words[..], &["--config", config]].concat());
        terminal.client.wait().await;
        let lines = terminal.lines();
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{words:?}: {lines:#?}");
        let first = if words == ["audit", "list"] {
            row["correlationId"].as_str().unwrap().get(..13)
        } else {
            Some("server_")
        };
        assert!(lines.iter().any(|line| line.contains(first.unwrap())), "{words:?}: {lines:#?}");
    }
}

/// JOIN-3: options of a command that stand before `--` are told where they belong.
#[tokio::test]
async fn where_options_of_a_command_stand() {
    let place = Place::new();
    let ran = place.run(&["add", "files", "npx", "-y", "server", "hunter2"]).await;
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("hint: ") && ran.stderr.contains("bridgehead add files -- npx -y …"),
        "{ran:?}"
    );
    let as_json = place.run(&["--log-format", "json", "add", "files", "npx", "-y"]).await;
    assert!(as_json.stderr.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{as_json:?}");
    let help = place.run(&["--help"]).await;
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
}

/// JOIN-8: a port alone is one of 127.0.0.1, under both names of the option, and what is neither is told what to write.
#[tokio::test]
async fn a_port_alone() {
    let place = Place::new();
    for option in ["--listen", "--port"] {
        let mut gateway = place.start(&["serve", option, "0"], &[]);
        let said = until(|| Some(gateway.stderr()).filter(|said| said.contains("/mcp"))).await;
        assert!(said.contains("http://127.0.0.1:"), "{said}");
        crate::common::signal(&gateway, rustix::process::Signal::TERM);
        assert_eq!(gateway.wait().await.code(), Some(0));
    }
    let wrong = place.run(&["serve", "--listen", "10.0.0.1"]).await;
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("it needs a port too, such as 10.0.0.1:4848"),
        "{wrong:?}"
    );
}

/// HOUR-12: `uninstall` lists everything and removes what it says: clients' files are as they were, and the record, keys and configuration
/// stay unless they are named. It refuses while a gateway runs, and where nobody can be asked.
#[tokio::test]
async fn uninstall() {
    let place = Place::new();
    let home = place.path().to_str().unwrap().to_owned();
    let run = async |words: &[&str]| place.run_with(words, &[("HOME", &home)], "").await;
    let cursor = place.path().join(".cursor/mcp.json");
    std::fs::create_dir(cursor.parent().unwrap()).unwrap();
    let before = "{\n  // mine\n  \"mcpServers\": {}\n}\n";
    std::fs::write(&cursor, before).unwrap();
    let program = crate::common::program().to_str().unwrap();
    let added = run(&["add", "demo", "--env", "DEMO_TOKEN=hunter2", "--", program, "demo-server"]).await;
    assert_eq!(added.code, Some(0), "{added:?}");
    assert_eq!(run(&["key", "new", "ci"]).await.code, Some(0));
    assert_eq!(run(&["connect", "cursor"]).await.code, Some(0));
    assert_ne!(std::fs::read_to_string(&cursor).unwrap(), before);
    let own = place.path().join("bridgehead");
    std::fs::write(own.join("notes.txt"), "").unwrap();

    let mut gateway = place.start(&["serve", "--stdio", "--standalone"], &[("HOME", &home)]);
    gateway.request("tools/call", modern_params(json!({"name": "server_ping"}))).await;
    until(|| {
        let found = std::fs::read_dir(&own).unwrap().flatten();
        found.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|it| it == "sock"))
    })
    .await;
    let refused = run(&["uninstall", "--yes"]).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("end it first: kill "), "{refused:?}");
    gateway.close_stdin();
    gateway.wait().await;

    let planned = run(&["uninstall", "--dry-run", "--json"]).await.json();
    let paths = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|one| one["path"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let ends = |list: &[String], name: &str| list.iter().any(|path| path.ends_with(name));
    let (goes, stays) = (paths(&planned["goes"]), paths(&planned["stays"]));
    assert!(ends(&goes, "state/bridgehead/connected.json"), "{planned:#}");
    for name in ["bridgehead.toml", "bridgehead.env", "keys.toml", ".sqlite"] {
        assert!(ends(&stays, name) && !ends(&goes, name), "{name}: {planned:#}");
    }
    assert_eq!(planned["notOurs"], json!([own.join("notes.txt")]));
    assert_eq!(planned["clients"][0]["file"], json!(cursor));
    let shown = run(&["uninstall", "--dry-run"]).await;
    assert!(
        shown.stdout.contains("stays; --also record") && shown.stdout.contains("is taken out of Cursor"),
        "{shown:?}"
    );
    assert_eq!(run(&["uninstall"]).await.code, Some(2), "nobody can be asked");
    assert_ne!(std::fs::read_to_string(&cursor).unwrap(), before);

    let done = run(&["uninstall", "--yes"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(std::fs::read_to_string(&cursor).unwrap(), before);
    let left = run(&["uninstall", "--dry-run", "--json"]).await.json();
    assert_eq!((paths(&left["goes"]), paths(&left["stays"])), (vec![], stays));

    let all = run(&["uninstall", "--yes", "--also", "record,keys", "--also", "configuration"]).await;
    assert_eq!(all.code, Some(0), "{all:?}");
    assert!(!place.path().join("state/bridgehead").exists());
    let again = run(&["uninstall"]).await;
    assert!(again.code == Some(0) && again.stderr.contains("nothing is left to remove"), "{again:?}");
    let names: Vec<_> = std::fs::read_dir(&own).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["notes.txt"]);
}
