//! What a user sees after a mistake: the line, the caret, the cure, all mistakes at once and no secret.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed assumption is a failed test")]

mod common;

use bridgehead_config::{ConfigError, load};
use common::{environment, refused, toml};
use insta::assert_snapshot;

/// The warnings about a client's file, which is accepted.
#[track_caller]
fn warned(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(".mcp.json"), text).unwrap();
    let config = load(Some(".mcp.json".as_ref()), &environment(), folder.path()).unwrap();
    ConfigError(config.warnings).to_string()
}

#[test]
fn an_unknown_key_gets_its_nearest_match() {
    assert_snapshot!(toml("[servers.files]\ncomand = \"npx\"\n"), @r#"
    error: unknown key `comand`
     --> bridgehead.toml:2:1
      |
    2 | comand = "npx"
      | ^^^^^^ did you mean `command`?
      |
      = help: program to run; excludes `url`
    "#);
}

#[test]
fn a_key_in_the_wrong_place_is_sent_home() {
    assert_snapshot!(toml("[gateway]\nlisten = \"127.0.0.1:1\"\n"), @r"
    error: unknown key `listen`
     --> bridgehead.toml:2:1
      |
    2 | listen = …
      | ^^^^^^ not a key of `[gateway]`
      |
      = help: it belongs in `[http]`
    ");
}

#[test]
fn a_key_like_no_other_gets_the_list() {
    assert_snapshot!(toml("[servers.a]\ncommand = \"x\"\n[servers.a.tools.t]\nzzz = 1\n"), @r"
    error: unknown key `zzz`
     --> bridgehead.toml:4:1
      |
    4 | zzz = …
      | ^^^ not a key of `[servers.NAME.tools.TOOL]`
      |
      = help: the keys here are `lock`, `cost`, `queue`, `limits`
    ");
}

/// WORD-1: all mistakes are reported at once, each with the thing, the place and the cure, and without a path of the repository.
/// `refused` checks this for every mistake in these tests.
#[test]
fn several_mistakes_are_told_in_one_go() {
    let text = r#"
[gateway]
mode = "readnly"
threads = 0
request_timeout_ms = 4000000
colour = true

[http]
listen = "everywhere"
allowed_origins = ["app.example.com"]

[servers."my server"]
command = ""

[servers.both]
command = "x"
args = "-y"
url = "https://host"

[servers.neither]
cwd = "."
"#;
    assert_snapshot!(toml(text), @r#"
    error: `mode` must be one of `"full"`, `"readonly"`, `"minimal"`, `"test"`, found `"readnly"`
     --> bridgehead.toml:3:8
      |
    3 | mode = "readnly"
      |        ^^^^^^^^^ did you mean `"readonly"`?
      |
      = help: which tools are offered: all (`full`), only those annotated read-only (`readonly`), only the built-in ones (`minimal`), or all with debug details in errors (`test`)

    error: `threads` must be a whole number from 1 to 1024, found `0`
     --> bridgehead.toml:4:11
      |
    4 | threads = 0
      |           ^ expected a whole number from 1 to 1024
      |
      = help: number of threads that serve HTTP clients

    error: `request_timeout_ms` is longer than `max_total_ms`
     --> bridgehead.toml:5:22
      |
    5 | request_timeout_ms = 4000000
      |                      ^^^^^^^
      |
      = help: a call ends after `max_total_ms` in any case: make it at least 4000000, or `request_timeout_ms` at most 3600000

    error: unknown key `colour`
     --> bridgehead.toml:6:1
      |
    6 | colour = …
      | ^^^^^^ not a key of `[gateway]`
      |
      = help: the keys here are `mode`, `prefix`, `max_name_length`, `resource_uris`, `request_timeout_ms`, `max_total_ms`, `startup_timeout_ms`, `list_wait_ms`, `linger_ms`, `question_timeout_ms`, `cancel_grace_ms`, `threads`, `debug_errors`, `max_message_mb`, `init_concurrency`

    error: `listen` is not an address with a port
     --> bridgehead.toml:9:10
      |
    9 | listen = "everywhere"
      |          ^^^^^^^^^^^^
      |
      = help: write an IP address and a port, such as `"127.0.0.1:4848"` or `"[::1]:4848"`

    error: an entry of `allowed_origins` cannot match anything
      --> bridgehead.toml:10:20
       |
    10 | allowed_origins = ["app.example.com"]
       |                    ^^^^^^^^^^^^^^^^^
       |
       = help: write a scheme and a host, such as `"https://app.example.com"`

    error: `my server` is not a server name
      --> bridgehead.toml:12:10
       |
    12 | [servers."my server"]
       |          ^^^^^^^^^^^
       |
       = help: use 1 to 64 letters, digits, `_`, `.` and `-`

    error: `command` is empty
      --> bridgehead.toml:13:11
       |
    13 | command = ""
       |           ^^
       |
       = help: name the program to run

    error: both `command` and `url` are written
      --> bridgehead.toml:15:10
       |
    15 | [servers.both]
       |          ^^^^
       |
       = help: keep one: `command` runs a server here, `url` reaches a remote one

    error: `args` must be a list of strings, found a string
      --> bridgehead.toml:17:8
       |
    17 | args = "-y"
       |        ^^^^ expected a list of strings
       |
       = help: arguments of the command

    error: neither `command` nor `url` is written
      --> bridgehead.toml:20:10
       |
    20 | [servers.neither]
       |          ^^^^^^^
       |
       = help: name the program to run (`command`), or the address of the server (`url`)
    "#);
}

#[test]
fn a_key_written_in_both_spellings_is_an_error() {
    assert_snapshot!(toml("[gateway]\ndebug_errors = true\ndebugErrors = false\n"), @r"
    error: `debug_errors` is written twice
     --> bridgehead.toml:3:1
      |
    3 | debugErrors = false
      | ^^^^^^^^^^^
      |
      = help: keep one; `debug_errors` and `debugErrors` are the same key
    ");
}

#[test]
fn a_key_of_the_future_is_not_supported_yet() {
    let text = r#"
[gateway]
roots = ["/usr"]
"#;
    assert_snapshot!(toml(text), @r#"
    error: `roots` is not supported yet
     --> bridgehead.toml:3:1
      |
    3 | roots = ["/usr"]
      | ^^^^^
      |
      = help: remove it (folders announced to servers that ask for roots)
    "#);
}

/// AUD-4: a rule that cannot work is refused, with its place in the file.
#[test]
fn rules_of_redaction_must_work() {
    let text = r#"
[audit]
redact = ["x*", "fine"]
redact_paths = ["crm:user"]
folder = ""
"#;
    assert_snapshot!(toml(text), @r#"
    error: this `redact` pattern cannot be used
     --> bridgehead.toml:3:11
      |
    3 | redact = ["x*", "fine"]
      |           ^^^^
      |
      = help: the pattern matches the empty text, so it would hide everything

    error: a redacted path is written `tool:/path`, with the tool's name for clients, or `*:/path`
     --> bridgehead.toml:4:17
      |
    4 | redact_paths = ["crm:user"]
      |                 ^^^^^^^^^^
      |
      = help: a path begins with `/`, such as `/user/ssn` or `/items/*/key`

    error: `folder` is empty
     --> bridgehead.toml:5:10
      |
    5 | folder = ""
      |          ^^
      |
      = help: name a path, or remove the key
    "#);
}

#[test]
fn syntax_errors_in_toml_are_told_in_one_go_without_values() {
    let text = "[servers.a]\ncommand = npx\n[servers.a.env]\nTOKEN = \"hunter2\nOTHER = hunter3\n";
    let shown = toml(text);
    assert!(!shown.contains("hunter"), "{shown}");
    assert_snapshot!(shown, @r#"
    error: not valid TOML: invalid float, expected `nan`
     --> bridgehead.toml:2:11
      |
    2 | command = npx
      |           ^^^
      |
      = help: write text in quotes

    error: not valid TOML: invalid basic string, expected `"`
     --> bridgehead.toml:4:17
      |
    4 | TOKEN = "*******
      |                 ^

    error: not valid TOML: string values must be quoted, expected literal string
     --> bridgehead.toml:5:9
      |
    5 | OTHER = *******
      |         ^^^^^^^
      |
      = help: write text in quotes
    "#);
}

#[test]
fn a_syntax_error_in_json_has_a_caret() {
    let text = "{\n  // servers\n  \"mcpServers\": {\n    \"a\": { \"command\": \"x\" \"env\": { \"K\": \"hunter2\" } }\n  }\n}\n";
    let shown = refused(".mcp.json", text).to_string();
    assert!(!shown.contains("hunter"), "{shown}");
    assert_snapshot!(shown, @r#"
    error: not valid JSON: expected comma
     --> .mcp.json:4:26
      |
    4 |     "a": { "command": "*" "env": { "*": "*******" } }
      |                          ^
    "#);
}

#[test]
fn a_json_file_without_servers_says_what_was_looked_for() {
    assert_snapshot!(refused("x.json", "{\n  \"mcpServer\": {}\n}\n"), @r#"
    error: `x.json` has no map of servers
     --> x.json:1:1
      |
    1 | {
      | ^
      |
      = help: a client's file has its servers under `mcpServers`, `servers` or `context_servers`

    warning: unknown key `mcpServer`
     --> x.json:2:3
      |
    2 |   "mcpServer": {}
      |   ^^^^^^^^^^^
      |
      = help: did you mean `mcpServers` instead of `mcpServer`?
    "#);
    assert_snapshot!(refused("x.json", ""), @r"
    error: not valid JSON: the file holds no JSON object
     --> x.json:1:1
      |
    1 |
      | ^
    ");
}

#[test]
fn no_snippet_shows_a_secret() {
    let text = r#"
[http]
token = "hunter2"
token_env = "hunter2"

[servers.a]
command = "x"
args = ["--api-key", "hunter2", 7]
env = { KEY = "hunter2", "A=B" = "hunter2", PORT = 3000 }
enviromnent = { KEY = "hunter2" }

[servers.b]
command = "x"
pin = "hunter2"
env = "hunter2"
"#;
    let shown = toml(text);
    assert!(!shown.contains("hunter2"), "{shown}");
    // Cut the list of server keys: it grows over time, and this snapshot is not about it.
    let shown: Vec<&str> = shown.lines().map(|line| line.split(" `type`, ").next().unwrap()).collect();
    let shown = shown.join("\n");
    assert_snapshot!(shown, @r#"
    error: unknown key `token`
     --> bridgehead.toml:3:1
      |
    3 | token = …
      | ^^^^^ not a key of `[http]`
      |
      = help: the keys here are `listen`, `listeners`, `allowed_hosts`, `allowed_origins`, `local_users`, `token_file`, `token_env`, `max_sessions`, `session_idle_ms`, `max_body_mb`, `keep_alive_ms`, `poll_after_ms`

    error: `token_env`: that variable is not set
     --> bridgehead.toml:4:13
      |
    4 | token_env = …
      |             ^
      |
      = help: write the name of a variable that holds the token, not the token itself

    error: `args` must be a list of strings, found a number
     --> bridgehead.toml:8:15
      |
    8 | args = […, …, 7]
      |               ^ expected a list of strings
      |
      = help: arguments of the command

    error: `env` must be a table of strings, found a number
     --> bridgehead.toml:9:36
      |
    9 | env = { KEY = …, "A=B" = …, PORT = … }
      |                                    ^ expected a table of strings
      |
      = help: environment variables of the command, in addition to those every server gets (see `bridgehead explain environment`)

    error: unknown key `enviromnent`
      --> bridgehead.toml:10:1
       |
    10 | enviromnent = { KEY = … }
       | ^^^^^^^^^^^ did you mean `env`?
       |
       = help: environment variables of the command, in addition to those every server gets (see `bridgehead explain environment`)

    error: unknown key `pin`
      --> bridgehead.toml:14:1
       |
    14 | pin = …
       | ^^^ not a key of `[servers.NAME]`
       |
       = help: the keys here are

    error: `env` must be a table of strings, found a string
      --> bridgehead.toml:15:7
       |
    15 | env = …
       |       ^ expected a table of strings
       |
       = help: environment variables of the command, in addition to those every server gets (see `bridgehead explain environment`)
    "#);
}

#[test]
fn a_clients_file_loses_only_the_server_with_the_mistake() {
    let text = r#"{
  "theme": "dark",
  "mcpServers": {
    "My Server": { "command": "x", "alwaysAllow": ["a"], "comand": "y" },
    "wrong": { "command": "x", "args": "-y ${NOT_SET}", "env": { "KEY": "hunter2" } },
    "unset": { "command": "x", "env": { "KEY": "hunter2${NOT_SET}" } },
    "remote": { "type": "http", "url": "https://host:x/mcp?key=hunter2", "headers": { "X": "hunter2" } },
    "confined": { "command": "x", "network": "none" },
    "input": { "command": "x", "args": ["${input:key}"] },
    "list": []
  }
}"#;
    let shown = warned(text);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_snapshot!(shown, @r#"
    warning: unknown key `theme`
     --> .mcp.json:2:3
      |
    2 |   "theme": …,
      |   ^^^^^^^
      |
      = help: only the servers of a client's file are used

    warning: server `My Server` is called `My_Server` here
     --> .mcp.json:4:5
      |
    4 |     "My Server": { "command": "x", "alwaysAllow": […], "comand": "y" },
      |     ^^^^^^^^^^^
      |
      = help: names are 1 to 64 letters, digits, `_`, `.` and `-`, each used once

    warning: unknown key `alwaysAllow`
     --> .mcp.json:4:36
      |
    4 |     "My Server": { "command": "x", "alwaysAllow": […], "comand": "y" },
      |                                    ^^^^^^^^^^^^^ not a key of `[servers.NAME]`
      |
      = help: it is ignored

    warning: unknown key `comand`
     --> .mcp.json:4:56
      |
    4 |     "My Server": { "command": "x", "alwaysAllow": […], "comand": "y" },
      |                                                        ^^^^^^^^ did you mean `command`?
      |
      = help: program to run; excludes `url`

    warning: server `wrong` cannot start: `args` must be a list of strings, found a string
     --> .mcp.json:5:40
      |
    5 |     "wrong": { "command": "x", "args": "-y ${NOT_SET}", "env": { "KEY": … } },
      |                                        ^^^^^^^^^^^^^^^ expected a list of strings
      |
      = help: arguments of the command

    warning: server `unset` cannot start: `env.KEY`: the variable `NOT_SET` is not set
     --> .mcp.json:6:48
      |
    6 |     "unset": { "command": "x", "env": { "KEY": … } },
      |                                                ^
      |
      = help: set `NOT_SET`, or give a default: `${NOT_SET:-default}`

    warning: server `remote` cannot start: `url` is not the address of a server: its port is not a number from 1 to 65535
     --> .mcp.json:7:40
      |
    7 |     "remote": { "type": "http", "url": …, "headers": { "X": … } },
      |                                        ^
      |
      = help: write it like `https://host/mcp`

    warning: server `input` cannot start: `args`: `${input:key}` can only be answered by an editor
     --> .mcp.json:9:41
      |
    9 |     "input": { "command": "x", "args": ["${input:key}"] },
      |                                         ^^^^^^^^^^^^^^
      |
      = help: put the value into a variable and write `${NAME}`

    warning: server `list` cannot start: a server must be a table, found a list
      --> .mcp.json:10:13
       |
    10 |     "list": []
       |             ^^
    "#);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = load(Some("x.toml".as_ref()), &environment(), folder.path()).unwrap_err();
    assert_snapshot!(missing, @r"
    error: cannot read the configuration: No such file or directory (os error 2)
    --> x.toml
    ");
    std::fs::write(folder.path().join("y.toml"), b"a = 1\nb = \"\xff\"").unwrap();
    let garbled = load(Some("y.toml".as_ref()), &environment(), folder.path()).unwrap_err();
    assert_snapshot!(garbled, @r"
    error: line 2 is not UTF-8 text
    --> y.toml
    ");
}

#[test]
fn positions_count_from_one_and_colours_are_optional() {
    let error = refused("bridgehead.toml", "# ü\n[gateway]\n  'ü' = { 'môde' = 1 }\n");
    let diagnostic = &error.0[0];
    assert_eq!(diagnostic.position(), Some((3, 3)), "{diagnostic}");
    assert_eq!(diagnostic.file(), Some("bridgehead.toml".as_ref()));
    assert!(!diagnostic.render(false).contains('\u{1b}'));
    assert!(diagnostic.render(true).contains('\u{1b}'));
}

/// WIRE-3: no text of a file, or of its name, can control the terminal that shows the diagnostic.
#[test]
fn what_files_hold_does_not_draw_on_the_terminal() {
    let acts = |character: char| {
        character != '\n' && character.is_control()
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let keys = "[servers.files]\n\"com\\u001b[2Jm\\n\\u202eand\" = 1\n\"a\u{202e}\u{2066}b\" = 2\ncommand = \"x\u{85}\"\n";
    let error = refused("bridgehead.toml", keys);
    for diagnostic in &error.0 {
        let shown = diagnostic.render(false);
        assert!(!shown.chars().any(acts), "{shown:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let name = "x\u{1b}[2J\u{202e}.toml";
    let missing = load(Some(name.as_ref()), &environment(), folder.path()).unwrap_err().to_string();
    assert!(!missing.chars().any(acts), "{missing:?}");
}

/// The message about an unknown key at the top of the file says where the key is.
#[test]
fn an_unknown_key_at_the_top_says_so() {
    let told = toml("zzzzzz = 1\n");
    assert!(told.contains("not a key of the top of the file"), "{told}");
}

/// In a client's file the last of two equal keys wins, with a warning. A misspelt key before it is not a duplicate.
#[test]
fn a_key_that_is_written_twice_in_a_clients_file() {
    let told = warned(r#"{"mcpServers": {"a": {"command": "x", "command": "y"}}}"#);
    assert_eq!(told.matches("`command` is written twice").count(), 1, "{told}");
    let told = warned(r#"{"mcpServers": {"a": {"comand": "x", "command": "y"}}}"#);
    assert!(told.contains("unknown key `comand`") && !told.contains("written twice"), "{told}");
    let told = toml("[servers.a]\ncommand = \"x\"\nstart_timeout_ms = 5\nstartTimeoutMs = 6\n");
    assert!(told.contains("`start_timeout_ms` is written twice"), "{told}");
    assert!(told.contains("`start_timeout_ms` and `startTimeoutMs` are the same key"), "{told}");
    let told = toml("[servers.a]\ncomand = \"x\"\ncommand = \"y\"\n");
    assert!(told.contains("`command` is written twice"), "{told}");
}
