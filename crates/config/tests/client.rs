//! How an unmodified file of an MCP client is read.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed assumption is a failed test")]

use std::collections::BTreeMap;

use bridgehead_config::{Config, Environment, HealthProbe, Launch, Source, load};

#[track_caller]
fn config(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(".mcp.json"), text).unwrap();
    std::fs::write(folder.path().join(".env"), "FROM_FILE=1").unwrap();
    let variables = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]);
    let environment = Environment::read(variables).unwrap();
    load(Some(".mcp.json".as_ref()), &environment, folder.path()).unwrap_or_else(|error| panic!("{error}"))
}

/// One line per server: its name, and its command line or the reason why it has none.
fn summary(config: &Config) -> Vec<String> {
    let line = |server: &bridgehead_config::ServerConfig| match &server.launch {
        Launch::Stdio(stdio) => {
            let env: Vec<_> =
                stdio.env.iter().map(|(name, value)| format!("{name}={}", value.expose())).collect();
            let words = env.iter().chain([&stdio.command]).chain(&stdio.args);
            format!("{}: {}", server.name, words.map(String::as_str).collect::<Vec<_>>().join(" "))
        }
        Launch::Remote(remote) => format!("{}: {:?} {}", server.name, remote.transport, remote.url),
        Launch::Unusable { reason } => format!("{}! {reason}", server.name),
    };
    config.servers.iter().map(line).collect()
}

#[test]
fn a_claude_style_file_just_works() {
    let read = config(
        r#"{
          // what a person adds by hand
          "mcpServers": {
            "files": { "command": "npx", "args": ["-y", "server-filesystem", "/tmp"], },
            "github": {
              "type": "stdio", "command": "gh-mcp", "args": [], "envFile": ".env",
              "env": { "TOKEN": "${TOKEN}", "PORT": 3000, "HOST": "${NO:-h}" }, "cwd": null
            },
            "off": { "command": "x", "disabled": true, "args": "wrong" },
          },
        }"#,
    );
    assert_eq!(read.source, Source::ClientJson(".mcp.json".into()));
    assert_eq!(
        summary(&read),
        ["files: npx -y server-filesystem /tmp", "github: FROM_FILE=1 HOST=h PORT=3000 TOKEN=hunter2 gh-mcp"]
    );
    assert_eq!(read.disabled.len(), 1);
    assert_eq!(read.warnings.len(), 0, "{:?}", read.warnings);
}

/// HOUR-7: servers and tools that a client's file disables are disabled here too, under every name for it.
#[test]
fn what_a_client_restricts_stays_restricted() {
    let read = config(
        r#"{"mcpServers": {
            "off": {"command": "x", "enabled": false},
            "on": {"command": "x", "enabled": true},
            "torn": {"command": "x", "enabled": true, "disabled": true},
            "denied": {"command": "x", "disabledTools": ["drop"]},
            "excluded": {"command": "x", "excludeTools": ["drop"]},
            "included": {"command": "x", "includeTools": ["list"]},
            "listed": {"command": "x", "tools": ["list"]},
            "all": {"command": "x", "tools": ["*"]}
        }}"#,
    );
    let disabled: Vec<&str> = read.disabled.iter().map(|name| name.as_str()).collect();
    assert_eq!(disabled, ["off", "torn"]);
    assert!(read.warnings.is_empty(), "{:?}", read.warnings);
    let admitted: Vec<(&str, bool, bool)> = read
        .servers
        .iter()
        .map(|server| (server.name.as_str(), server.filter.admits("list"), server.filter.admits("drop")))
        .collect();
    let expected = [
        ("on", true, true),
        ("denied", true, false),
        ("excluded", true, false),
        ("included", true, false),
        ("listed", true, false),
        ("all", true, true),
    ];
    assert_eq!(admitted, expected);
}

/// HOUR-7: Zed's older form, whose `command` is a table, is read; its variables are never shown.
#[test]
fn a_nested_command_is_read() {
    let read = config(
        r#"{"context_servers": {
            "a": {"command": {"path": "npx", "args": ["-y", "x"], "env": {"TOKEN": "hunter2"}}},
            "b": {"command": {"path": "npx", "args": "hunter2"}}
        }}"#,
    );
    assert_eq!(summary(&read)[0], "a: TOKEN=hunter2 npx -y x");
    assert!(summary(&read)[1].starts_with("b! `args` must be a list of strings"), "{:?}", summary(&read));
    assert!(!format!("{}", read.warnings[0]).contains("hunter2"));
}

/// POOL-5: a client's file may choose the tool list as the probe in its own spelling.
#[test]
fn a_clients_file_chooses_the_probe_in_its_spelling() {
    let read = config(
        r#"{"mcpServers": {
            "a": {"command": "x", "healthProbe": "listTools"},
            "b": {"command": "x", "healthProbe": "list_tools"},
            "c": {"command": "x", "healthProbe": "ping"}
        }}"#,
    );
    let probes: Vec<_> = read.servers.iter().map(|server| server.health_probe).collect();
    assert_eq!(probes, [HealthProbe::ListTools, HealthProbe::ListTools, HealthProbe::Ping]);
    assert_eq!(summary(&read), ["a: x", "b: x", "c: x"]);
    assert!(read.warnings.is_empty(), "{:?}", read.warnings);
}

/// HOUR-9: for a command written like a shell line, the message says where its arguments belong and does not repeat them.
#[test]
fn arguments_in_a_command_are_told_where_they_belong() {
    let read = config(
        r#"{"mcpServers": {
            "a": {"command": "npx -y server --token hunter2"},
            "b": {"command": "/no/such folder/server"},
            "c": {"command": " npx "}
        }}"#,
    );
    let told = "a! `command` holds arguments; keep `npx` and move the rest to `args`";
    assert_eq!(summary(&read), [told, "b: /no/such folder/server", "c:  npx "]);
    assert!(!format!("{}", read.warnings[0]).contains("hunter2"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("a program");
    std::fs::write(&program, "").unwrap();
    let text = serde_json::json!({"mcpServers": {"a": {"command": program}}}).to_string();
    assert_eq!(summary(&config(&text)), [format!("a: {}", program.display())]);
}

/// HOUR-5: a client's file does not decide which of the user's variables a program gets.
#[test]
fn a_clients_file_passes_no_variables_on() {
    let read = config(r#"{"mcpServers": {"a": {"command": "x", "inherit_env": ["TOKEN"]}}}"#);
    let Launch::Stdio(stdio) = &read.servers[0].launch else { panic!("{:?}", summary(&read)) };
    assert!(stdio.inherit_env.is_empty());
    let warnings: Vec<_> = read.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("`inherit_env` is ignored"), "{warnings:?}");
}

#[test]
fn other_clients_keep_their_servers_under_other_names() {
    for map in ["mcpServers", "servers", "context_servers"] {
        let read = config(&format!(r#"{{"{map}": {{"a": {{"command": "x"}}}}, "inputs": []}}"#));
        assert_eq!(summary(&read), ["a: x"]);
        assert!(read.warnings.is_empty());
    }
}

#[test]
fn a_broken_server_leaves_the_others_alone() {
    let read = config(
        r#"{"mcpServers": {
            "good": {"command": "x", "timeout": 5, "autoApprove": []},
            "args": {"command": "x", "args": "y"},
            "null": {"command": "x", "args": ["a", null]},
            "none": {},
            "empty": {"command": " "},
            "unset": {"command": "x", "args": ["${NOPE}"]},
            "odd": {"command": "x", "args": ["${1}"]},
            "remote": {"url": "https://host/mcp"},
            "sse": {"type": "sse", "url": "https://host/sse"},
            "kind": {"type": "pigeon", "command": "x"},
            "word": "x"
        }}"#,
    );
    assert_eq!(
        summary(&read),
        [
            "good: x",
            "args! `args` must be a list of strings, found a string",
            "null! `args` must be a list of strings, found null",
            "none! neither `command` nor `url` is written",
            "empty! `command` is empty",
            "unset! `args`: the variable `NOPE` is not set",
            "odd! `args`: a `${` does not begin a variable",
            "remote: Probe https://host/…",
            "sse: Sse https://host/…",
            "kind! `type` must be one of `\"stdio\"`, `\"http\"`, `\"sse\"`, `\"websocket\"`, `\"streamable-http\"`, \
             `\"streamableHttp\"`, `\"streamable_http\"`, `\"ws\"`, found `\"pigeon\"`",
            "word! a server must be a table, found a string",
        ]
    );
    assert_eq!(read.warnings.len(), 10);
}

#[test]
fn names_are_adapted_and_stay_apart() {
    let read = config(
        r#"{"mcpServers": {
            "a b": {"command": "1"}, "a_b": {"command": "2"}, "a/b": {"command": "3"}, "": {"command": "4"},
            "twice": {"command": "5"}, "twice": {"command": "6"}
        }}"#,
    );
    assert_eq!(summary(&read), ["a_b: 1", "a_b_2: 2", "a_b_3: 3", "_: 4", "twice: 6"]);
    assert_eq!(read.warnings.len(), 5);
}

#[test]
fn a_file_without_a_telling_name_is_recognised_by_its_first_character() {
    let folder = tempfile::tempdir().unwrap();
    let environment = Environment::read(BTreeMap::new()).unwrap();
    for (text, json) in
        [("\u{feff} {\"servers\": {}}", true), ("// x\n{\"servers\": {}}", true), ("[servers]", false)]
    {
        std::fs::write(folder.path().join("settings"), text).unwrap();
        let config = load(Some("settings".as_ref()), &environment, folder.path()).unwrap();
        assert_eq!(matches!(config.source, Source::ClientJson(_)), json, "{text}");
    }
}
