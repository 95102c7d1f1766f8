//! What becomes of the servers that were found: names, secrets, and what is there already.

use std::fs;
use std::path::Path;

use bridgehead::config::load;

use super::super::SecretsChoice;
use super::super::plan::Outcome;
use super::{CLAUDE, CURSOR, Place, WINDSURF, import, mode, server};
use crate::exit::Exit;

/// JOIN-1, JOIN-2: after an import the user is asked whether the clients go on with the gateway alone; only a yes changes their files.
#[test]
fn clients_are_handed_over_by_request() {
    for (answers, moved) in [("y\n", false), ("y\n\n", false), ("y\nn\n", false), ("y\ny\n", true)] {
        let place = Place::new();
        let entry = server("git", r#""command": "git-mcp""#);
        let file = place.write(Path::new(CURSOR), &entry);
        let exit = import(&[]).import(&place.world(), Some(&mut answers.as_bytes())).unwrap();
        assert_eq!(exit, Exit::Success);
        assert!(place.text(&place.own()).contains("[servers.git]"), "{answers:?}");
        let text = place.text(&file);
        assert_eq!(
            (text.contains("git-mcp"), text.contains("serve")),
            (!moved, moved),
            "{answers:?}: {text}"
        );
    }
}

/// JOIN-1: the same name and launch in several clients is one server; another launch gets the name of its client.
#[test]
fn the_same_name_twice() {
    let place = Place::new();
    place.write(Path::new(CLAUDE), &server("git", r#""command": "git-mcp", "env": {"A": "${A}"}"#));
    place.write(Path::new(CURSOR), &server("git", r#""command": "git-mcp", "env": {"A": "${env:A}"}"#));
    place.write(Path::new(WINDSURF), &server("git", r#""command": "other-git-mcp""#));
    place.write(
        Path::new("home/.junie/mcp/mcp.json"),
        &server("git", r#""command": "git-mcp", "env": {"A": "1"}"#),
    );
    let (plan, _) = place.plan(&[]);
    let told: Vec<(&str, Option<&str>, &Outcome)> =
        plan.rows.iter().map(|row| (row.client.id, row.server.as_deref(), &row.outcome)).collect();
    assert_eq!(
        told,
        [
            ("claude-code", Some("git"), &Outcome::Added),
            ("cursor", Some("git"), &Outcome::Merged("Claude Code")),
            ("windsurf", Some("git-windsurf"), &Outcome::Added),
            ("junie", Some("git-junie"), &Outcome::Added),
        ]
    );
    assert!(plan.rows[2].remarks[0].contains("another server is called `git`"), "{:?}", plan.rows[2]);
    assert_eq!(place.import(&[]), Exit::Success);
    assert!(place.added(&[]).is_empty());
    // A client that is imported alone finds its server under the name that it has there.
    let (plan, _) = place.plan(&["--from", "windsurf"]);
    assert_eq!(
        (plan.rows[0].server.as_deref(), &plan.rows[0].outcome),
        (Some("git-windsurf"), &Outcome::Kept)
    );
}

/// JOIN-1: one client that uses a server is enough for it to be on, and different filters are told.
#[test]
fn the_same_server_with_other_settings() {
    let place = Place::new();
    place.write(Path::new(CLAUDE), &server("git", r#""command": "git-mcp""#));
    place.write(Path::new(WINDSURF), &server("git", r#""command": "git-mcp", "disabledTools": ["push"]"#));
    let (plan, _) = place.plan(&[]);
    assert_eq!(plan.rows[1].remarks, ["its tools are filtered as in Claude Code"]);
    place.write(Path::new(CURSOR), &server("x", r#""command": "x", "disabled": true"#));
    place.write(Path::new(WINDSURF), &server("x", r#""command": "x""#));
    assert_eq!(place.added(&[]), ["git", "x"]);
    place.write(Path::new(WINDSURF), &server("x", r#""command": "x", "disabled": true"#));
    assert_eq!(place.added(&[]), ["git", "!x"]);
}

/// JOIN-1: an existing configuration keeps its comments and its order; a server that is there is kept, and one of the same name
/// with another launch is added beside it.
#[test]
fn an_existing_configuration() {
    let place = Place::new();
    let own = "# Mine.\n\n[servers.git] # by hand\ncommand = 'my-git' # never touched\n\n[servers.notes]\ncommand = \"notes-mcp\"\n\
               env = { NOTES_TOKEN = \"${NOTES_TOKEN}\" }\n\n# the end\n";
    place.write(Path::new("home/.config/bridgehead/bridgehead.toml"), own);
    place.write(
        Path::new(CURSOR),
        r#"{"mcpServers": {
            "git": {"command": "git-mcp"},
            "notes": {"command": "notes-mcp", "env": {"NOTES_TOKEN": "a-literal-token"}},
            "bridgehead": {"command": "something-else"}
        }}"#,
    );
    let (plan, _) = place.plan(&[]);
    let told: Vec<(Option<&str>, &Outcome)> =
        plan.rows.iter().map(|row| (row.server.as_deref(), &row.outcome)).collect();
    assert_eq!(
        told,
        [
            (Some("git-cursor"), &Outcome::Added),
            (Some("notes"), &Outcome::Kept),
            (Some("bridgehead-cursor"), &Outcome::Added)
        ]
    );
    assert_eq!(place.import(&[]), Exit::Success);
    let text = place.text(&place.own());
    assert!(text.starts_with(own), "{text}");
    assert!(
        text.contains("# From Cursor: ~/.cursor/mcp.json\n[servers.git-cursor]\ncommand = \"git-mcp\"\n"),
        "{text}"
    );
    assert!(!place.own().with_extension("env").exists(), "a value that is not used is not copied");
    let written = fs::read(place.own()).unwrap();
    assert_eq!(place.import(&[]), Exit::Success);
    assert_eq!(fs::read(place.own()).unwrap(), written);
}

/// JOIN-1: a dry run writes nothing, not even a folder.
#[test]
fn a_dry_run() {
    let place = Place::new();
    place
        .write(Path::new(CURSOR), &server("git", r#""command": "git-mcp", "env": {"GIT_TOKEN": "literal"}"#));
    assert_eq!(place.import(&["--dry-run"]), Exit::Success);
    assert_eq!(place.import(&["--dry-run", "--json"]), Exit::Success);
    assert!(!place.home().join(".config").exists());
}

/// JOIN-1: secrets go to a file of mode 0600, or to variables that the user sets; never into a file that others can read.
#[test]
fn where_secrets_go() {
    let text = r#"{"mcpServers": {
        "git": {"command": "git-mcp", "env": {"GIT_TOKEN": "tok-1", "LANG": "C"}},
        "web": {"url": "https://h.example.com/mcp?api_key=abc-1", "headers": {"Authorization": "Bearer tok-2"}},
        "pg": {"command": "pg-mcp", "args": ["postgres://ada:hunter2@db/x"]}
    }}"#;
    let place = Place::new();
    place.write(Path::new(CURSOR), text);
    place.write(Path::new("home/.config/bridgehead/bridgehead.toml"), "# mine\n");
    assert_eq!(mode(&place.own()), 0o644);
    assert_eq!(place.import(&[]), Exit::Success);
    let (own, env) = (place.text(&place.own()), place.text(&place.own().with_extension("env")));
    for secret in ["tok-1", "tok-2", "abc-1"] {
        assert!(!own.contains(secret) && env.contains(secret), "{own}\n{env}");
    }
    assert!(own.contains("hunter2"), "arguments cannot be elsewhere");
    assert_eq!((mode(&place.own()), mode(&place.own().with_extension("env"))), (0o600, 0o600));
    let config = load(Some(&place.own()), &place.world().environment, &place.project()).unwrap();
    assert_eq!(config.servers.len(), 3, "{config:?}");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);

    let place = Place::new();
    place.write(Path::new(CURSOR), text);
    let (plan, _) = place.plan(&["--secrets", "variables"]);
    let needs: Vec<&str> = plan.needs().into_keys().collect();
    assert_eq!(needs, ["GIT_TOKEN", "WEB_AUTHORIZATION", "WEB_URL"]);
    assert_eq!(place.import(&["--secrets", "variables"]), Exit::Success);
    let own = place.text(&place.own());
    assert!(
        own.contains("GIT_TOKEN = \"${GIT_TOKEN}\"") && own.contains("https://h.example.com/${WEB_URL}"),
        "{own}"
    );
    assert!(!own.contains("tok-") && !own.contains("abc-1"), "{own}");
    assert!(!place.own().with_extension("env").exists());
    let (plan, _) = place.plan(&[]);
    assert!(plan.is_empty(), "what was left to variables is not imported again: {:?}", plan.rows);
}

/// JOIN-1: a key among the arguments makes a configuration that others could read the user's alone.
#[test]
fn a_key_among_the_arguments() {
    let place = Place::new();
    let args =
        r#"["-y", "@upstash/mcp-server", "run", "me@example.com", "a8f5f167f44f4964e6c998dee827110c"]"#;
    place.write(Path::new(CURSOR), &server("up", &format!(r#""command": "npx", "args": {args}"#)));
    place.write(Path::new("home/.config/bridgehead/bridgehead.toml"), "# mine\n");
    assert_eq!(mode(&place.own()), 0o644);
    assert_eq!(place.import(&["--yes"]), Exit::Success);
    assert_eq!(mode(&place.own()), 0o600);
}

/// JOIN-1: a variable that is set needs no remark, and its value is nowhere.
#[test]
fn variables_are_not_resolved() {
    let place = Place::new().with("SHOP_KEY", "do-not-copy").with("GIT_TOKEN", "do-not-copy");
    place.write(
        Path::new(CURSOR),
        &server("git", r#""command": "git-mcp", "env": {"A": "${env:GIT_TOKEN}", "B": "${input:shop-key}"}"#),
    );
    let (plan, _) = place.plan(&[]);
    assert!(plan.needs().is_empty(), "{:?}", plan.needs());
    assert_eq!(place.import(&[]), Exit::Success);
    let own = place.text(&place.own());
    assert!(own.contains("A = \"${GIT_TOKEN}\"") && own.contains("B = \"${SHOP_KEY}\""), "{own}");
    assert!(!own.contains("do-not-copy"), "{own}");
}

/// JOIN-1: an entry that the gateway would refuse is added turned off, with the gateway's own reason.
#[test]
fn what_the_gateway_refuses() {
    let place = Place::new();
    place.write(
        Path::new(CLAUDE),
        r#"{"mcpServers": {
            "args": {"command": "x", "args": ["--api-key", "${API_KEY}"]},
            "url": {"url": "ftp://h/x"},
            "header": {"url": "https://h/x", "headers": {"a b": "c"}},
            "pattern": {"command": "x", "disabledTools": ["[a"]},
            "empty": {"command": " "},
            "text": "x",
            "nothing": {},
            "list": {"command": ["x", {}]}
        }}"#,
    );
    let (plan, _) = place.plan(&[]);
    let told: Vec<(&str, &str, bool)> = plan
        .rows
        .iter()
        .map(|row| (row.name.as_str(), row.outcome.as_str(), row.disabled.is_some()))
        .collect();
    assert_eq!(
        told,
        [
            ("args", "added", true),
            ("url", "added", true),
            ("header", "added", true),
            ("pattern", "skipped", false),
            ("empty", "skipped", false),
            ("text", "skipped", false),
            ("nothing", "skipped", false),
            ("list", "skipped", false),
        ]
    );
    assert!(plan.rows[0].disabled.as_ref().unwrap().contains("every user of this machine can see arguments"));
    assert_eq!(place.import(&[]), Exit::Success);
    let own = place.text(&place.own());
    assert!(own.contains("disabled = true # `url` is not the address of a server"), "{own}");
    assert!(load(Some(&place.own()), &place.world().environment, &place.project()).is_ok());
}

/// JOIN-1: an entry that is off in one client, on in another and refused by the gateway stops no other: it is added turned off,
/// with the gateway's reason.
#[test]
fn a_refused_server_that_one_client_turned_off() {
    for (turned_off, on, reason) in [
        (r#""url": "https://u:p@h.example/mcp""#, r#""serverUrl": "https://u:p@h.example/mcp""#, "`url`"),
        (
            r#""command": "c", "env": {"K=V": "1"}"#,
            r#""command": "c", "env": {"K=V": "1"}"#,
            "a name in `env`",
        ),
    ] {
        let place = Place::new();
        place.write(
            Path::new(CURSOR),
            &format!(
                r#"{{"mcpServers": {{"good": {{"command": "g"}}, "x": {{{turned_off}, "disabled": true}}}}}}"#
            ),
        );
        place.write(Path::new(WINDSURF), &server("x", on));
        assert_eq!(place.added(&[]), ["good", "!x"], "{on}");
        assert_eq!(place.import(&[]), Exit::Success, "{on}");
        let own = place.text(&place.own());
        let off = own.lines().find(|line| line.starts_with("disabled = true # ")).unwrap_or_default();
        assert!(off.contains(reason) && !off.contains("turned off in"), "{own}");
        assert!(load(Some(&place.own()), &place.world().environment, &place.project()).is_ok(), "{own}");
    }
}

/// JOIN-1: on a terminal the user decides where secrets go and whether to go on. Without an answer nothing is written.
#[test]
fn questions() {
    #[track_caller]
    fn check(words: &[&str], answers: &str, expected: Option<SecretsChoice>) {
        let place = Place::new();
        place.write(
            Path::new(CURSOR),
            &server("git", r#""command": "git-mcp", "env": {"GIT_TOKEN": "tok-1"}"#),
        );
        let exit = import(words).import(&place.world(), Some(&mut answers.as_bytes())).unwrap();
        assert_eq!(exit, Exit::Success);
        let written = match (place.own().exists(), place.own().with_extension("env").exists()) {
            (true, true) => Some(SecretsChoice::EnvFile),
            (true, false) => Some(SecretsChoice::Variables),
            (false, _) => None,
        };
        assert_eq!(written, expected, "{words:?} {answers:?}");
    }
    check(&[], "\n\n", Some(SecretsChoice::EnvFile));
    check(&[], "Yes\ny\n", Some(SecretsChoice::EnvFile));
    check(&[], "n\ny\n", Some(SecretsChoice::Variables));
    check(&[], "y\nn\n", None);
    check(&[], "y\n", None);
    check(&[], "", None);
    check(&["--secrets", "env-file"], "y\n", Some(SecretsChoice::EnvFile));
    check(&["--secrets", "variables"], "y\n", Some(SecretsChoice::Variables));
    check(&["--secrets", "variables"], "no\n", None);
}
