//! `tools`, `call` and `check`: what they print, where, and their exit codes.

use bridgehead_testkit::{Behaviour, Mock, Tool};
use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::common::{Place, Ran, program, signal, until};

const NONE: &str = "configuration: none found\n";
const DEMO: &str = "the bundled demo server runs; looked for ./bridgehead.toml";

#[tokio::test]
async fn tools_lists_what_is_offered() {
    let place = Place::new();
    let ran = place.run(&["tools"]).await;
    assert_eq!(ran.code, Some(0));
    assert!(ran.stderr.starts_with(&format!("{NONE}{DEMO}")), "{}", ran.stderr);
    assert_snapshot!(ran.stdout, @r"
    echo           Gives back the text it gets.
    add            Adds two numbers; the sum is structured output.
    sleep          Waits for some milliseconds and reports its progress; can be cancelled.
    fail           Fails with the message it gets, like a tool that cannot do its work.
    server_ping    Check that the gateway responds; returns its version, mode and uptime.
    server_health  The health of the gateway's servers: state of each, calls in flight, counters, capabilities.
    ");
    let as_json = place.run(&["tools", "list", "--json"]).await;
    let listed = as_json.json();
    assert_eq!((listed["tools"].as_array().unwrap().len(), &listed["failed"]), (6, &json!([])));
}

/// The note about the demo appears only where this command starts the demo, not where a running gateway answers.
#[tokio::test]
async fn the_demo_is_announced_where_it_starts() {
    let place = Place::new();
    let (mut gateway, _) = place.serve_http(&[], &[]).await;
    place.is_found().await;
    let ran = place.run(&["tools"]).await;
    assert_eq!((ran.code, ran.said().as_str()), (Some(0), ""));
    let fresh = place.run(&["tools", "--fresh"]).await;
    assert!(fresh.said().starts_with(DEMO), "{}", fresh.stderr);
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

#[tokio::test]
async fn tools_shows_one() {
    let place = Place::new();
    let ran = place.run(&["tools", "show", "echo"]).await;
    assert_eq!(ran.code, Some(0));
    assert_snapshot!(ran.stdout, @r#"
    echo
      Gives back the text it gets.

    input:
    {
      "properties": {
        "text": {
          "type": "string"
        }
      },
      "required": [
        "text"
      ],
      "type": "object"
    }

    annotations:
    {
      "readOnlyHint": true
    }
    "#);
    let as_json = place.run(&["tools", "show", "echo", "--json"]).await;
    assert_eq!(as_json.json()["name"], "echo");
    let unknown = place.run(&["tools", "show", "ecko"]).await;
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(2), ""));
    assert!(unknown.stderr.contains("no tool `ecko` is offered; did you mean `echo`?"), "{}", unknown.stderr);
}

/// CAT-5: `tools instructions` prints the text that clients get, from temporary servers and from a running gateway.
#[tokio::test]
async fn tools_prints_the_instructions() {
    let place = Place::new();
    let silent = place.run(&["tools", "instructions"]).await;
    assert_eq!((silent.code, silent.stdout.as_str()), (Some(0), ""));
    assert!(silent.stderr.contains("no server has instructions"), "{}", silent.stderr);
    let cut = Tool::new("cut", Behaviour::Echo).extra("instructions", json!("Measure twice."));
    let mock = Mock::legacy().instructions("For wood.").full_tool(cut);
    let server = json!({"command": mock.command().0, "env": mock.env()});
    let file = place.file("mock.json", &json!({"mcpServers": {"saw": server}}).to_string());
    let file = file.to_str().unwrap();
    let text = "#### MCP Server: saw\n\nFor wood.\n\n##### Tool: cut\n\nMeasure twice.";
    let ran = place.run(&["tools", "instructions", "--config", file]).await;
    assert_eq!((ran.code, ran.stdout), (Some(0), format!("{text}\n")), "{}", ran.stderr);
    let (mut gateway, address) = place.serve_http(&["--config", file], &[]).await;
    let url = format!("http://{address}/mcp");
    // The first list waits until the server has started.
    assert_eq!(place.run(&["tools", "--url", &url]).await.code, Some(0));
    let ran = place.run(&["tools", "instructions", "--json", "--url", &url]).await;
    assert_eq!(ran.json(), json!({"instructions": text}), "{}", ran.stderr);
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// A server that does not start is named on stderr; the list fails only if no server starts.
#[tokio::test]
async fn tools_names_servers_that_fail() {
    let place = Place::new();
    let broken = "[servers.broken]\ncommand = \"/no/such/program\"\n";
    let some = place.config(&["demo"], broken);
    let ran = place.run(&["tools", "--config", some.to_str().unwrap()]).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 6), "{}", ran.stderr);
    assert!(ran.stderr.contains("warning: server `broken` does not serve: "), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("demo__echo "), "two servers, so names carry a prefix: {}", ran.stdout);

    let only = place.file("only.toml", broken);
    let ran = place.run(&["tools", "--json", "--config", only.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(3));
    assert_eq!(ran.json()["failed"][0]["server"], "broken");
}

#[tokio::test]
async fn call_prints_the_answer() {
    #[track_caller]
    fn check(ran: &Ran, code: i32, stdout: &str) {
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), stdout), "{}", ran.stderr);
    }
    let place = Place::new();
    check(&place.run(&["call", "add", "--args", r#"{"a":1,"b":2}"#]).await, 0, "{\"sum\":3}\n");
    let file = place.file("arguments.json", r#"{"text": "from a file"}"#);
    let by_file = format!("@{}", file.display());
    check(&place.run(&["call", "echo", "--args", &by_file]).await, 0, "from a file\n");
    let by_stdin = place.run_with(&["call", "echo", "--args", "-"], &[], r#"{"text": "from stdin"}"#).await;
    check(&by_stdin, 0, "from stdin\n");

    check(&place.run(&["call", "fail"]).await, 1, "failed, as asked\n");
    let raw = place.run(&["call", "fail", "--json"]).await;
    assert_eq!((raw.code, &raw.json()["isError"]), (Some(1), &json!(true)));

    let slept = place.run(&["call", "sleep", "--args", r#"{"ms":50}"#]).await;
    check(&slept, 0, "slept for 50 ms\n");
    assert!(slept.stderr.contains("progress 10 of 10: 50 of 50 ms"), "{}", slept.stderr);
    let late = place.run(&["call", "sleep", "--args", r#"{"ms":60000}"#, "--timeout", "1"]).await;
    check(&late, 1, "");
    assert!(late.stderr.contains("did not answer within 1 s"), "{}", late.stderr);
}

/// Invalid arguments, unknown tools and unreachable servers each have their own exit code and message.
#[tokio::test]
async fn call_says_whose_fault_it_is() {
    let place = Place::new();
    for bad in ["{", "[]", "@/no/such/file"] {
        let ran = place.run(&["call", "add", "--args", bad]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{bad}");
        assert!(ran.stderr.contains("--args"), "{}", ran.stderr);
    }
    assert_eq!(place.run(&["call"]).await.code, Some(2));

    let unfit = place.run(&["call", "add", "--args", r#"{"a":"one"}"#]).await;
    assert_eq!(unfit.code, Some(1));
    assert!(unfit.stdout.contains("INVALID_PARAMS"), "{}", unfit.stdout);

    let unknown = place.run(&["call", "nope"]).await;
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(2), ""));
    assert!(unknown.stderr.contains("error: no server offers tool `nope`\n"), "{}", unknown.stderr);
    let near = place.run(&["call", "ecko"]).await;
    assert_eq!(near.code, Some(2));
    let words = "error: no server offers tool `ecko`; did you mean `echo`?\n";
    assert!(near.stderr.contains(words), "{}", near.stderr);

    let broken = place.file("broken.toml", "[servers.broken]\ncommand = \"/no/such/program\"\n");
    let gone = place.run(&["call", "nope", "--json", "--config", broken.to_str().unwrap()]).await;
    assert_eq!(gone.code, Some(3), "{}", gone.stderr);
    assert_eq!(gone.json()["error"]["data"]["code"], "PROVIDER_INIT_FAILED");

    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{nobody}/mcp");
    let unreachable = place.run(&["call", "add", "--url", &url]).await;
    assert_eq!(unreachable.code, Some(3));
    assert!(unreachable.stderr.contains("cannot reach"), "{}", unreachable.stderr);
    assert_eq!(place.run(&["tools", "--url", "https://host/"]).await.code, Some(2));
    assert_eq!(place.run(&["tools", "--url", &url, "--config", "x"]).await.code, Some(2));
}

/// With `--url` a running gateway answers, progress and errors included.
#[tokio::test]
async fn a_running_gateway_is_asked() {
    let place = Place::new();
    let (mut gateway, address) = place.serve_http(&[], &[]).await;
    let url = format!("http://{address}");
    let listed = place.run(&["tools", "--url", &url]).await;
    assert_eq!((listed.code, listed.stdout.lines().count()), (Some(0), 6));
    assert_eq!(listed.stderr, "", "nothing is started, so there is nothing to say");
    let arguments = ["call", "sleep", "--args", r#"{"ms":50}"#, "--url", &url];
    let slept = place.run(&arguments).await;
    assert_eq!((slept.code, slept.stdout.as_str()), (Some(0), "slept for 50 ms\n"));
    assert!(slept.stderr.contains("progress 10 of 10"), "{}", slept.stderr);
    let failed = place.run(&["call", "fail", "--url", &url]).await;
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), "failed, as asked\n"));
    let unknown = place.run(&["call", "nope", "--url", &url]).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// CAT-3: names that had to be shortened are reported by `check`.
#[tokio::test]
async fn check_tells_all_there_is_to_know() {
    let place = Place::new();
    let more = "[gateway]\nmax_name_length = 16\n[servers.broken]\ncommand = \"/no/such/program\"\n\
                [servers.switched_off]\ncommand = \"x\"\ndisabled = true\n";
    let config = place.config(&["much_longer"], more);
    let ran = place.run(&["check", "--config", config.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(1));
    let shown = ran.stdout.replace(&config.display().to_string(), "FILE");
    assert_snapshot!(shown, @r"
    configuration: FILE
    broken        failed
    much_longer   ok      4 tools, speaks 2026-07-28
    switched_off  off     disabled in the configuration
    failed: broken: there is no program at `/no/such/program`; correct the path, or give only a name to search PATH
    next: broken: check `command`, `cwd` and `env` of `broken` in the configuration
    renamed: `echo` of `much_longer` is offered as `much_lo_a3fb8eed`
    renamed: `sleep` of `much_longer` is offered as `much_lo_992dab11`
    renamed: `fail` of `much_longer` is offered as `much_lo_b92e68ab`
    ");

    let as_json = place.run(&["check", "--json", "--config", config.to_str().unwrap()]).await;
    assert_eq!(as_json.code, Some(1));
    let report = as_json.json();
    assert_eq!(report["ok"], false);
    assert_eq!(
        report["servers"][1],
        json!({"name": "much_longer", "ok": true, "revision": "2026-07-28", "tools": 4, "findings": []})
    );
    assert_eq!(report["disabled"], json!(["switched_off"]));
    assert_eq!(report["renamed"][1]["tool"], "sleep");
}

#[tokio::test]
async fn check_shows_every_mistake_with_its_place() {
    let place = Place::new();
    let config = place.file("wrong.toml", "[gateway]\nmod = \"full\"\n[servers.a]\ncomand = \"x\"\n");
    let ran = place.run(&["check", "--config", config.to_str().unwrap()]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(78), ""));
    let shown = ran.stderr.replace(&config.display().to_string(), "FILE");
    assert_snapshot!(shown, @r#"
    error: unknown key `mod`
     --> FILE:2:1
      |
    2 | mod = "full"
      | ^^^ did you mean `mode`?
      |
      = help: which tools are offered: all (`full`), only those annotated read-only (`readonly`), only the built-in ones (`minimal`), or all with debug details in errors (`test`)

    error: unknown key `comand`
     --> FILE:4:1
      |
    4 | comand = "x"
      | ^^^^^^ did you mean `command`?
      |
      = help: program to run; excludes `url`

    the configuration cannot be used: 2 findings
    "#);

    let as_json = place.run(&["check", "--json", "--config", config.to_str().unwrap()]).await;
    assert_eq!((as_json.code, as_json.stderr.as_str()), (Some(78), ""));
    let report = as_json.json();
    assert_eq!(report["diagnostics"][0]["line"], 2);
    assert_eq!(report["diagnostics"][0]["severity"], "error");
}

/// A client's own file works unchanged; unknown keys in it cause a warning.
#[tokio::test]
async fn a_clients_file_is_used_as_it_is() {
    let place = Place::new();
    let command = program().display().to_string();
    let text =
        json!({"mcpServers": {"demo": {"command": command, "args": ["demo-server"], "colour": "red"}}});
    let file = place.file("claude.json", &text.to_string());
    let ran = place.run(&["check", "--config", file.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("warning") && ran.stderr.contains("colour"), "{}", ran.stderr);
    let called =
        place.run(&["call", "echo", "--args", r#"{"text":"x"}"#, "--config", file.to_str().unwrap()]).await;
    assert_eq!((called.code, called.stdout.as_str()), (Some(0), "x\n"));
}

/// If the reader of stdout is gone, the program ends quietly, without a panic or an error message.
#[tokio::test]
async fn a_closed_stdout_is_not_an_error() {
    let place = Place::new();
    let line = format!(
        "{} tools list --json --log-level off | true; echo ${{PIPESTATUS[0]}} >&2",
        program().display()
    );
    let mut shell = place.start_program(std::path::Path::new("bash"), &["-c", &line], &[]);
    until(|| shell.stderr().ends_with("0\n").then_some(())).await;
    shell.wait().await;
    let said: Vec<String> = shell.stderr().lines().map(str::to_owned).collect();
    assert!(said[0] == NONE.trim_end() && said[1].starts_with(DEMO) && said[2..] == ["0"], "{said:?}");
}

#[tokio::test]
async fn help_and_version() {
    let place = Place::new();
    let version = place.run(&["--version"]).await;
    assert_eq!(version.stdout, format!("bridgehead {}\n", env!("CARGO_PKG_VERSION")));
    for verb in ["serve", "tools", "call", "check"] {
        let help = place.run(&[verb, "--help"]).await;
        assert_eq!(help.code, Some(0));
        assert!(help.stdout.contains("Examples:\n  bridgehead "), "{}", help.stdout);
    }
    assert_eq!(place.run(&[]).await.code, Some(2));
}

/// A running gateway requires some arguments as headers too; `call` finds out which ones and sends them.
#[tokio::test]
async fn arguments_travel_as_headers_where_the_tool_says_so() {
    let place = Place::new();
    let schema = json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"count": {"type": "integer", "x-mcp-header": "Count"}}},
    }});
    let mock = Mock::modern().full_tool(Tool::new("deploy", Behaviour::Echo).input_schema(schema));
    let server = json!({"command": mock.command().0, "env": mock.env()});
    let file = place.file("mock.json", &json!({"mcpServers": {"mock": server}}).to_string());
    let (mut gateway, address) = place.serve_http(&["--config", file.to_str().unwrap()], &[]).await;
    let url = format!("http://{address}/mcp");
    let given = r#"{"region":"süd","deep":{"count":3}}"#;
    let ran = place.run(&["call", "deploy", "--args", given, "--url", &url, "--json"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["structuredContent"], serde_json::from_str::<serde_json::Value>(given).unwrap());
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// The completion script names every visible verb.
#[tokio::test]
async fn completions_are_printed_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = place.run(&["completions", shell]).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{shell}");
        for verb in ["serve", "tools", "call", "check"] {
            assert!(ran.stdout.contains(verb), "{shell} does not know {verb}");
        }
    }
    assert_eq!(place.run(&["completions", "csh"]).await.code, Some(2));
}

/// WIRE-3: names, descriptions and answers of a server cannot control the terminal or start a line of their own, in the
/// output for people and in the log. Programs get them unchanged, byte for byte.
#[tokio::test]
async fn what_servers_say_does_not_draw_on_the_terminal() {
    const EVIL: &str = "ok\u{1b}[2J\u{9b}1m\u{202e}\rx\nerror: forged";
    let acts = |character: char| {
        !matches!(character, '\n' | '\t') && character.is_control() || character == '\u{202e}'
    };
    let schema = json!({"type": "object", "$ref": EVIL});
    let mock = Mock::legacy()
        .instructions(EVIL)
        .full_tool(Tool::new("say", Behaviour::Text(EVIL.to_owned())).description(EVIL).input_schema(schema))
        .tool("wrong", Behaviour::Error(bridgehead_testkit::RpcError::new(-32000, EVIL)))
        .tool(EVIL, Behaviour::Echo);
    let place = Place::new();
    let server = json!({"command": mock.command().0, "env": mock.env()});
    let file = place.file("mock.json", &json!({"mcpServers": {"m": server}}).to_string());
    let file = file.to_str().unwrap();
    for verb in [
        &["tools"][..],
        &["tools", "show", "say"],
        &["tools", "show", EVIL],
        &["tools", "show", "no\u{1b}[2Jne"],
        &["tools", "instructions"],
        &["call", "wrong"],
        &["call", "no\u{1b}[2Jne"],
        &["check"],
    ] {
        for format in ["text", "json"] {
            let arguments =
                [verb, &["--config", file, "--log-level", "debug", "--log-format", format]].concat();
            let ran = place.run(&arguments).await;
            let shown = format!("{}\n{}", ran.stdout, ran.stderr);
            assert!(!shown.chars().any(acts), "{verb:?}: {shown:?}");
            let is_instructions = verb.contains(&"instructions");
            let forged = |line: &str| line.starts_with("error: forged");
            assert!(is_instructions || !shown.lines().any(forged), "{verb:?}: {shown}");
        }
    }
    let said = place.run(&["call", "say", "--config", file]).await;
    assert_eq!(said.stdout, format!("{EVIL}\n"), "a program gets the unchanged text");
    let listed = place.run(&["tools", "--json", "--config", file]).await.json();
    assert!(listed["tools"].as_array().unwrap().iter().any(|tool| tool["description"] == EVIL));
}

/// ACC-4 (case 24): `explain` names the rule that decides, with file and line, from the configuration alone; a name that is
/// nothing is refused.
#[tokio::test]
async fn explain_names_the_rule() {
    let place = Place::new();
    let rules = r#"
[auth]
public_url = "https://mcp.example.com/mcp"
[auth.issuers.corp]
issuer = "https://id.example.com"
[[policy]]
who = ["corp/*"]
tools = ["git/*"]
read_only = true
[[policy]]
who = ["corp/ada"]
tools = ["git/add", "git/delete_*"]
deny_tools = ["git/delete_*"]
scopes = { "git/add" = ["repo:write"] }
"#;
    let file = place.config(&["git"], rules);
    let explain = async |arguments: &[&str]| {
        place.run(&[&["explain"], arguments, &["--config", file.to_str().unwrap()]].concat()).await
    };
    let denied = explain(&["git/delete_repo", "--as", "corp/ada"]).await;
    assert_eq!(denied.code, Some(0), "{}", denied.stderr);
    assert!(denied.stdout.contains("git/delete_repo for corp/ada: denied"), "{}", denied.stdout);
    let rule = "bridgehead.toml:10 deny_tools = \"git/delete_*\" for corp/ada";
    assert!(denied.stdout.contains(rule), "{}", denied.stdout);
    let prefixed = explain(&["git__add", "--as", "corp/ada"]).await;
    assert!(prefixed.stdout.contains(": allowed\n"), "{}", prefixed.stdout);
    assert!(prefixed.stdout.contains("scopes: repo:write"), "{}", prefixed.stdout);
    // The server says that this one only reads, so the first rule allows it.
    let offered = explain(&["add", "--as", "corp/ada", "--json"]).await;
    assert_eq!((&offered.json()["tool"], &offered.json()["rule"]["line"]), (&json!("git/add"), &json!(6)));
    let depends = explain(&["git/log", "--as", "corp/eve"]).await;
    assert!(depends.stdout.contains("allowed if the tool says that it only reads"), "{}", depends.stdout);
    assert!(depends.stdout.contains(":6 tools"), "{}", depends.stdout);
    let nobody = explain(&["git/log", "--as", "proxy:x", "--json"]).await.json();
    assert_eq!((&nobody["allowed"], &nobody["reason"]), (&json!(false), &json!("no rule allows it")));
    let code = explain(&["DENIED", "--as", "corp/ada"]).await;
    assert!(code.stdout.starts_with("DENIED\n====="), "{}", code.stdout);
    for wrong in [&["gti/log"][..], &["git/log", "--as", "nobody"], &["no-such-topic"]] {
        assert_eq!(explain(wrong).await.code, Some(2), "{wrong:?}");
    }
}
