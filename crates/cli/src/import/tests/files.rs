//! What is read from the files of each client.

use std::fs;
use std::path::Path;

use bridgehead::config::load;
use clap::Parser;

use super::super::plan::Outcome;
use super::super::read;
use super::{CLAUDE, CURSOR, Line, Place, WINDSURF, import, mode, server, surroundings};

use crate::clients::{CLIENTS, Client};
use crate::exit::Exit;

/// JOIN-1: the files of every client are read with their own keys, kinds, variables, time limits and filters. The result loads,
/// holds no secret of the client, and a second import changes nothing.
#[test]
fn every_client() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import/fixtures");
    let mut stale = Vec::new();
    for client in &CLIENTS {
        let place = Place::new();
        let world = place.world();
        let main = client.user_files(surroundings(&world)).remove(0).path;
        let extension = main.extension().unwrap().to_str().unwrap();
        let text = fs::read_to_string(fixtures.join(format!("{}.{extension}", client.id))).unwrap();
        let file = place.write(&main, &text);
        let before = fs::read(&file).unwrap();
        let (plan, broken) = place.plan(&["--from", client.id]);
        assert!(broken.is_empty(), "{}: {broken:?}", client.id);
        let mut told = String::new();
        for row in &plan.rows {
            told.push_str(&format!(
                "{}:{} {} {}",
                row.scope.as_str(),
                row.line,
                row.name,
                row.outcome.as_str()
            ));
            let server =
                row.server.iter().filter(|server| **server != row.name).map(|server| format!(" as {server}"));
            let transport = row.transport.iter().map(|transport| format!(" ({transport})"));
            told.extend(server.chain(transport));
            let reason = match &row.outcome {
                Outcome::Skipped(reason) => Some(reason),
                _ => None,
            };
            let needs = row.needs.iter().map(|(name, about)| match about {
                Some(about) => format!("needs {name}: {about}"),
                None => format!("needs {name}"),
            });
            let off = row.disabled.iter().map(|reason| format!("disabled: {reason}"));
            let lines = reason.cloned().into_iter().chain(off).chain(row.remarks.clone()).chain(needs);
            lines.for_each(|line| told.push_str(&format!("\n    {line}")));
            told.push('\n');
        }
        assert_eq!(place.import(&["--from", client.id]), Exit::Success, "{}", client.id);
        assert_eq!(fs::read(&file).unwrap(), before, "the client's file is never changed");
        let env = place.own().with_extension("env");
        let found = place.plain(&format!(
            "{told}--- bridgehead.toml\n{}--- bridgehead.env\n{}",
            place.text(&place.own()),
            place.text(&env)
        ));
        let expected = fixtures.join(format!("{}.expected", client.id));
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            fs::write(&expected, &found).unwrap();
        }
        if fs::read_to_string(&expected).unwrap_or_default() != found {
            stale.push(format!("{}:\n{found}", client.id));
        }
        let config = load(Some(&place.own()), &world.environment.clone().without_secrets(), world.folder());
        assert!(config.is_ok(), "{}: {}", client.id, config.unwrap_err());
        assert_eq!(mode(&place.own()), 0o600, "{}", client.id);
        if env.exists() {
            assert_eq!(mode(&env), 0o600, "{}", client.id);
        }
        let (written, secrets) = (fs::read(place.own()).unwrap(), fs::read(&env).ok());
        assert_eq!(place.import(&["--from", client.id]), Exit::Success);
        assert_eq!(fs::read(place.own()).unwrap(), written, "{}: a second import changes nothing", client.id);
        assert_eq!(fs::read(&env).ok(), secrets, "{}", client.id);
        assert!(place.added(&["--from", client.id]).is_empty(), "{}", client.id);
    }
    assert!(
        stale.is_empty(),
        "other results than expected (UPDATE_REFERENCE=1 rewrites them):\n{}",
        stale.join("\n")
    );
}

/// JOIN-1: a broken file is named with its place and skipped, the others are imported, and the exit code says so.
#[test]
fn a_broken_file() {
    let place = Place::new();
    place.write(Path::new(CURSOR), "{\n  \"mcpServers\": {\n    \"git\": { \"command\": \"git-mcp\", }\n");
    place.write(Path::new(WINDSURF), r#"{"mcpServers": ["a"]}"#);
    place.write(
        Path::new("home/.gemini/settings.json"),
        "\u{feff}\t{\r\n\t\"mcpServers\": {\"a\": {\"command\": \"a\"},\r\n\t\"a\": {\"command\": \"b\"}}}",
    );
    fs::create_dir_all(place.home().join(".warp/.mcp.json")).unwrap();
    let (plan, broken) = place.plan(&[]);
    let told: Vec<(&str, Option<(usize, usize)>)> =
        broken.iter().map(|one| (one.client.id, one.at.map(|at| (at.line, at.column)))).collect();
    assert_eq!(told, [("cursor", Some((2, 17))), ("windsurf", Some((1, 16))), ("warp", None)]);
    assert!(broken[1].message.contains("must be a map, found a list"), "{broken:?}");
    assert!(broken[2].message.contains("not a regular file"), "{broken:?}");
    let rows: Vec<(&str, usize, &str)> =
        plan.rows.iter().map(|row| (row.name.as_str(), row.line, row.outcome.as_str())).collect();
    assert_eq!(rows, [("a", 2, "skipped"), ("a", 3, "added")]);
    assert_eq!(place.import(&["--json"]), Exit::Failure);
    assert!(place.text(&place.own()).contains("command = \"b\""), "the last one counts");
    let before = fs::read(place.own()).unwrap();
    assert_eq!(place.import(&[]), Exit::Failure, "nothing to add, and still broken files");
    assert_eq!(fs::read(place.own()).unwrap(), before);
}

/// JOIN-1: a file whose servers cannot be told is broken, at the place that says why: a map that is written twice, or no map.
#[test]
fn files_that_hold_no_clear_map() {
    #[track_caller]
    fn check(file: &str, text: &str, place_of: (usize, usize), part: &str) {
        let place = Place::new();
        place.write(Path::new(file), text);
        let (plan, broken) = place.plan(&[]);
        assert!(plan.rows.is_empty(), "{:?}", plan.rows);
        let at = broken[0].at.unwrap();
        assert_eq!(((at.line, at.column), broken.len()), (place_of, 1), "{broken:?}");
        assert!(broken[0].message.contains(part), "{broken:?}");
        assert_eq!(place.import(&[]), Exit::Failure);
    }
    let map = r#""mcpServers": {"a": {"command": "x"}}"#;
    let twice = format!("{{{map},\n  {map}}}");
    check(CURSOR, &twice, (2, 3), "`mcpServers` is written twice, first in line 1");
    let both = format!(r#"{{"projects": {{"/project": {twice}}}}}"#);
    check(CLAUDE, &both, (2, 3), "`mcpServers` is written twice");
    check(CLAUDE, "{\"projects\": {},\n\"projects\": {}}", (2, 1), "`projects` is written twice");
    check("home/.warp/.mcp.json", "{\"mcp\": {\"servers\": {},\n\"servers\": {}}}", (2, 1), "`servers` is");
    check(CURSOR, "\n[1, 2]", (2, 1), "it must hold a map, found a list");
    check(CURSOR, "5", (1, 1), "it must hold a map, found a number");
    let place = Place::new();
    place.write(Path::new(CURSOR), "");
    assert!(place.plan(&[]).1.is_empty(), "some clients make an empty file first");
}

/// JOIN-1: a project's files are imported only by request, into the project's own file, and start in its folder.
#[test]
fn a_project() {
    let place = Place::new();
    place.write(Path::new("project/.mcp.json"), &server("db", r#""command": "./db-mcp""#));
    place.write(
        Path::new("project/.cursor/mcp.json"),
        &server(
            "here",
            r#""command": "x", "args": ["${workspaceFolder}/a"], "envFile": ".env", "cwd": "sub""#,
        ),
    );
    assert!(place.added(&[]).is_empty());
    assert_eq!(place.import(&[]), Exit::Success);
    assert!(!place.own().exists());
    assert_eq!(place.import(&["--scope", "project"]), Exit::Success);
    let file = place.project().join("bridgehead.toml");
    let expected = "# From Claude Code: .mcp.json\n[servers.db]\ncommand = \"./db-mcp\"\ncwd = \".\"\n\n\
                    # From Cursor: .cursor/mcp.json\n[servers.here]\ncommand = \"x\"\nargs = [\"/project/a\"]\ncwd = \"/project/sub\"\n\
                    env_file = \"/project/.env\"\n";
    assert_eq!(place.text(&file), expected);
    let (plan, _) = place.plan(&["--scope", "project"]);
    assert!(plan.is_empty(), "{:?}", plan.rows);
    // Copilot CLI reads the first file, too.
    let (plan, _) = place.plan(&["--scope", "project", "--into", "other.toml"]);
    let told: Vec<(&str, &Outcome)> = plan.rows.iter().map(|row| (row.client.id, &row.outcome)).collect();
    assert_eq!(
        told,
        [
            ("claude-code", &Outcome::Added),
            ("cursor", &Outcome::Added),
            ("copilot", &Outcome::Merged("Claude Code")),
        ]
    );
}

/// JOIN-1: a named file is read as the client that writes such files does, by its place, its name or its content.
#[test]
fn named_files() {
    let place = Place::new();
    #[track_caller]
    fn check(place: &Place, path: &str, text: &str, expected: (&str, &str)) {
        place.write(Path::new(path), text);
        let world = place.world();
        let path = place.folder.path().join(path);
        let source = read::source_of(&path, None, surroundings(&world));
        assert_eq!(source.client.id, expected.0);
        let (plan, broken) = place.plan(&[path.to_str().unwrap()]);
        assert!(broken.is_empty(), "{broken:?}");
        let names: Vec<&str> = plan.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, [expected.1]);
    }
    let plain = |name| server(name, r#""command": "x""#);
    check(&place, "home/.cursor/mcp.json", &plain("a"), ("cursor", "a"));
    check(&place, "backup/.cursor/mcp.json", &plain("b"), ("cursor", "b"));
    check(&place, "backup/claude_desktop_config.json", &plain("c"), ("claude-code", "c"));
    check(&place, "backup/Claude/claude_desktop_config.json", &plain("d"), ("claude-desktop", "d"));
    check(&place, "backup/.codex/config.toml", "[mcp_servers.e]\ncommand = 'x'", ("codex", "e"));
    check(&place, "backup/any.toml", "[mcp_servers.f]\ncommand = 'x'", ("codex", "f"));
    check(&place, "backup/any.yaml", "extensions:\n  g:\n    cmd: x\n", ("goose", "g"));
    check(&place, "backup/other.yml", "mcpServers:\n- name: h\n  command: x\n", ("continue", "h"));
    check(&place, "backup/1.json", r#"{"context_servers": {"i": {"command": "x"}}}"#, ("zed", "i"));
    check(&place, "backup/2.json", r#"{"servers": {"j": {"command": "x"}}}"#, ("vscode", "j"));
    check(&place, "backup/3.json", r#"{"mcp": {"k": {"command": ["x"]}}}"#, ("opencode", "k"));
    check(&place, "backup/4.json", r#"{"amp.mcpServers": {"l": {"command": "x"}}}"#, ("amp", "l"));
    check(&place, "backup/5", r#"{"m": {"command": "x"}}"#, ("warp", "m"));
    let world = place.world();
    let cline = Client::named("cline");
    let source = read::source_of(Path::new("5"), cline, surroundings(&world));
    assert_eq!(Some(source.client), cline, "what is said counts");
    assert_eq!(place.import(&["no/such/file.json"]), Exit::Failure);
    assert_eq!(place.import(&["--from", "zed"]), Exit::Failure);
    assert_eq!(place.import(&["--from", "zed", "--json"]), Exit::Failure);
    assert_eq!(place.import(&["--from", "zed", "--from", "cline", "5"]), Exit::Usage);
}

/// JOIN-1: OpenCode's new form has its servers one level deeper; a server of that name is still one.
#[test]
fn both_forms_of_opencode() {
    let place = Place::new();
    let file = Path::new("home/.config/opencode/opencode.jsonc");
    place.write(file, r#"{"mcp": {"timeout": 5, "servers": {"a": {"type": "local", "command": ["x"], "disabled": true}, "b": {"type": "remote", "url": "https://h/mcp"}}}}"#);
    assert_eq!(place.added(&[]), ["!a", "b"]);
    place.write(file, r#"{"mcp": {"servers": {"type": "local", "command": ["x"]}, "c": {"type": "local", "command": ["y"]}}}"#);
    assert_eq!(place.added(&[]), ["servers", "c"]);
}

/// JOIN-1: the other keys under which Warp, Copilot CLI and older editors keep servers.
#[test]
fn other_places_in_files() {
    let place = Place::new();
    for (text, name) in [
        (r#"{"mcp_servers": {"a": {"command": "x"}}}"#, "a"),
        (r#"{"servers": {"b": {"command": "x"}}}"#, "b"),
        (r#"{"mcp": {"servers": {"c": {"command": "x"}}}}"#, "c"),
        (r#"{"d": {"command": "x"}, "e": 1}"#, "d"),
    ] {
        place.write(Path::new("home/.warp/.mcp.json"), text);
        assert_eq!(place.added(&["--from", "warp"]), [name]);
    }
    place.write(Path::new("home/.warp/.mcp.json"), r#"{"theme": {"name": "x"}}"#);
    assert!(place.added(&["--from", "warp"]).is_empty());
    place.write(Path::new("project/.github/mcp.json"), r#"{"f": {"type": "local", "command": "x"}}"#);
    assert_eq!(place.added(&["--from", "copilot", "--scope", "project"]), ["f"]);
    place.write(
        Path::new("home/.config/Code/User/settings.json"),
        r#"{"editor.fontSize": 12, "mcp": {"inputs": [{"id": "k", "description": "Key"}], "servers": {"g": {"command": "x", "env": {"K": "${input:k}"}}}}}"#,
    );
    let (plan, _) = place.plan(&["--from", "vscode"]);
    assert_eq!(plan.needs(), [("K", Some("Key"))].into());
    place.write(Path::new("project/.continue/mcpServers/one.json"), &server("h", r#""command": "x""#));
    place.write(Path::new("project/.continue/mcpServers/two.yaml"), "mcpServers:\n- name: i\n  command: y\n");
    assert_eq!(place.added(&["--from", "continue", "--scope", "project"]), ["i", "h"]);
}

#[test]
fn names_of_clients() {
    assert_eq!(
        import(&["--from", "Claude-Code", "--from", "lm-studio"])
            .clients()
            .iter()
            .map(|one| one.id)
            .collect::<Vec<_>>(),
        ["claude-code", "lmstudio"]
    );
    let wrong = Line::try_parse_from(["import", "--from", "cursorr"]).unwrap_err().to_string();
    assert!(wrong.contains("cursor"), "{wrong}");
}
