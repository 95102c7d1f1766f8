//! Single keys of entries that the files of `every_client` do not have.

use super::{Place, surroundings};
use crate::clients::Client;
use crate::exit::Exit;

/// Imports one entry, and compares its table and what is told about it.
#[track_caller]
fn check(client: &str, entry: &str, expected: &str, told: &[&str]) {
    let place = Place::new();
    let client = Client::named(client).unwrap();
    let file = client.user_files(surroundings(&place.world())).remove(0).path;
    place.write(&file, &format!(r#"{{"{}": {{"x": {entry}}}}}"#, client.keys[0].join(".")));
    let (plan, broken) = place.plan(&["--from", client.id]);
    assert!(broken.is_empty(), "{broken:?}");
    let row = &plan.rows[0];
    let reason = match &row.outcome {
        super::Outcome::Skipped(reason) => Some(reason),
        _ => None,
    };
    let found: Vec<&String> = reason.into_iter().chain(&row.disabled).chain(&row.remarks).collect();
    assert_eq!(found, told, "{entry}");
    assert_eq!(place.import(&["--from", client.id]), Exit::Success);
    let text = place.text(&place.own());
    let table = text.split_once("[servers.x]\n").map(|(_, table)| table).unwrap_or_default();
    assert_eq!(table.replace('\n', "; "), expected, "{entry}");
}

/// JOIN-1: time limits come in seconds or milliseconds; what is no limit is left out.
#[test]
fn time_limits() {
    for (client, limit, expected) in [
        ("claude-code", "1500", "request_timeout_ms = 1500; "),
        ("claude-code", "1500.9", "request_timeout_ms = 1500; "),
        ("cline", "1.5", "request_timeout_ms = 1500; "),
        ("cline", "\"30\"", "request_timeout_ms = 30000; "),
        ("cline", "0", ""),
        ("cline", "-1", ""),
        ("cline", "0.0001", ""),
        ("claude-code", "1", "request_timeout_ms = 1; "),
        ("cline", "\"soon\"", ""),
        ("cline", "3600", "request_timeout_ms = 3600000; "),
        ("cursor", "30", ""),
    ] {
        let entry = format!(r#"{{"command": "c", "timeout": {limit}}}"#);
        check(client, &entry, &format!("command = \"c\"; {expected}"), &[]);
    }
    let entry = r#"{"command": "c", "timeout": 3601}"#;
    check(
        "cline",
        entry,
        "command = \"c\"; request_timeout_ms = 3600000; ",
        &["its time limit is shortened to one hour"],
    );
    let entry = r#"{"command": "c", "timeout": 1e300}"#;
    check("cline", entry, "command = \"c\"; ", &[]);
}

/// JOIN-1: the kind of a server is what its entry says, or else what it has.
#[test]
fn kinds() {
    let url = r#""url": "https://h.example.com/m""#;
    let plain = "url = \"https://h.example.com/m\"; ";
    check("cursor", &format!(r#"{{{url}}}"#), plain, &[]);
    check("cursor", &format!(r#"{{{url}, "command": null}}"#), plain, &[]);
    check("cursor", &format!(r#"{{"type": "http", {url}}}"#), &format!("type = \"http\"; {plain}"), &[]);
    check("cursor", &format!(r#"{{"type": "SSE", {url}}}"#), &format!("type = \"sse\"; {plain}"), &[]);
    check(
        "cursor",
        &format!(r#"{{"type": "http", {url}, "command": "c"}}"#),
        &format!("type = \"http\"; {plain}"),
        &["left out: `command`"],
    );
    let left_out = "left out: `url`";
    check(
        "cursor",
        &format!(r#"{{"type": "stdio", {url}, "command": "c"}}"#),
        "command = \"c\"; ",
        &[left_out],
    );
    check("cursor", &format!(r#"{{{url}, "command": "c"}}"#), "command = \"c\"; ", &[left_out]);
    check("cursor", r#"{"url": "", "command": "c"}"#, "command = \"c\"; ", &[]);
    check("cursor", r#"{"type": "http", "command": "c"}"#, "command = \"c\"; ", &[]);
    let unknown = "its kind `grpc` is unknown, so the gateway finds out the transport";
    check("cursor", &format!(r#"{{"type": "grpc", {url}}}"#), plain, &[unknown]);
    check("cursor", r#"{"url": "ws://h/m"}"#, "type = \"websocket\"; url = \"ws://h/m\"; ", &[]);
    check("cursor", r#"{"url": ""}"#, "", &["its address is empty"]);
    check("cursor", r#"{"type": "http"}"#, "", &["it has neither a command nor an address"]);
    let pipe = "its address is a named pipe of Windows";
    let off = format!("url = \"pipe:///x\"; disabled = true # {pipe}; ");
    check("vscode", r#"{"url": "pipe:///x"}"#, &off, &[pipe]);
}

/// JOIN-1: arguments that are no list are kept in sight, and the server is turned off.
#[test]
fn arguments_that_are_no_list() {
    let reason = "its arguments must be a list, found a text";
    let off = format!("command = \"c\"; args = [\"a b\"]; disabled = true # {reason}; ");
    check("cursor", r#"{"command": "c", "args": "a b"}"#, &off, &[reason]);
    check("cursor", r#"{"command": "c", "args": null}"#, "command = \"c\"; ", &[]);
    check("cursor", r#"{"command": "c", "args": {}}"#, "", &["its command and arguments must be texts"]);
}

/// JOIN-1: headers of the gateway's own are left out and named; a token stands where its client has it.
#[test]
fn headers() {
    let url = r#""url": "https://h.example.com/m""#;
    let plain = "url = \"https://h.example.com/m\"; ";
    for name in ["Content-Type", "accept", "Mcp-Session-Id", "Sec-WebSocket-Key", "Host"] {
        let entry = format!(r#"{{{url}, "headers": {{"{name}": "a"}}}}"#);
        check(
            "cursor",
            &entry,
            plain,
            &[&format!("left out: the header `{name}`, which the gateway sets itself")],
        );
    }
    let entry = format!(r#"{{{url}, "headers": {{"A": 1, "B": null, "C": ["x"], "A": 2}}}}"#);
    check("cursor", &entry, &format!("{plain}headers = {{ A = \"2\" }}; "), &[]);
    let entry = format!(r#"{{{url}, "headers": {{"Accepts": "a", "X-Mcp-A": "b"}}}}"#);
    check("cursor", &entry, &format!("{plain}headers = {{ Accepts = \"a\", X-Mcp-A = \"b\" }}; "), &[]);
    let signs_in = "Cursor signs in to it; the gateway needs a token under `headers`";
    check("cursor", &format!(r#"{{{url}, "auth": {{"CLIENT_ID": "x"}}}}"#), plain, &[signs_in]);
    check("cursor", &format!(r#"{{{url}, "oauth": false}}"#), plain, &[]);
    check("cursor", r#"{"command": "c", "oauth": {}}"#, "command = \"c\"; ", &[]);
}

/// JOIN-1: variables and paths of programs.
#[test]
fn programs() {
    let c = "command = \"c\"; ";
    let entry = r#"{"command": "c", "env": {"A": true, "B": {"x": 1}, "C": null, "D": 1.50}}"#;
    check(
        "cursor",
        entry,
        &format!("{c}env = {{ A = \"true\", D = \"1.50\" }}; "),
        &["left out: `env.B`, which is a map"],
    );
    // A program that gets the variable replaces the reference itself.
    let entry = r#"{"command": "c", "args": ["a:${A}", "${B}"], "env": {"A": "1"}}"#;
    check(
        "claude-code",
        entry,
        &format!("{c}args = [\"a:$${{A}}\", \"${{B}}\"]; env = {{ A = \"1\" }}; "),
        &[],
    );
    let entry = r#"{"command": "c", "cwd": "~/a", "envFile": "./b/.env"}"#;
    check("cursor", entry, &format!("{c}cwd = \"~/a\"; env_file = \"/home/ada/b/.env\"; "), &[]);
    let entry = r#"{"command": "c", "cwd": "${env:D}/a"}"#;
    check("cursor", entry, &format!("{c}cwd = \"${{D}}/a\"; "), &[]);
    check("cursor", r#"{"command": "c", "cwd": " "}"#, c, &[]);
    check(
        "cursor",
        r#"{"command": "c", "zeta": 1, "alpha": 2, "icon": "x"}"#,
        c,
        &["left out: `alpha`, `zeta`"],
    );
    check("cursor", r#"{"command": 5}"#, "command = \"5\"; ", &[]);
    check(
        "cursor",
        r#"{"command": "c", "args": [1, true, "x"]}"#,
        &format!("{c}args = [\"1\", \"true\", \"x\"]; "),
        &[],
    );
    check("cursor", r#"{"command": "c", "args": [[]]}"#, "", &["its command and arguments must be texts"]);
    check("cursor", r#"[]"#, "", &["an entry must be a map, found a list"]);
    check("cursor", r#"{"command": []}"#, "", &["its command is empty"]);
}

/// JOIN-1: lists of tools; an empty list means all or none, as its client means it.
#[test]
fn tools() {
    for (client, list, expected) in [
        ("gemini", r#""includeTools": ["a"]"#, "tools_allowed = [\"a\"]; "),
        ("gemini", r#""includeTools": []"#, ""),
        ("gemini", r#""excludeTools": []"#, ""),
        ("copilot", r#""tools": ["a", "*"]"#, ""),
        ("copilot", r#""tools": []"#, "tools_allowed = []; "),
        ("windsurf", r#""disabledTools": ["a(b)", 5]"#, "tools_denied = [\"a\"]; "),
        ("amp", r#""includeTools": "a""#, ""),
    ] {
        let entry = format!(r#"{{"command": "c", {list}}}"#);
        check(client, &entry, &format!("command = \"c\"; {expected}"), &[]);
    }
}
