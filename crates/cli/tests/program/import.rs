//! `bridgehead import` as a user runs it, on a home with the files of several clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Place, Ran, program};

/// Writes a client's file into the home.
fn write(place: &Place, path: &str, text: &str) {
    let path = place.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

async fn import(place: &Place, arguments: &[&str]) -> Ran {
    let home = place.path().to_str().unwrap();
    let mut all = vec!["import"];
    all.extend_from_slice(arguments);
    place.run_with(&all, &[("HOME", home)], "").await
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The files of three clients, one of them broken, with a secret and our own entry.
fn clients(place: &Place) {
    let program = program().to_str().unwrap();
    let cursor = json!({"mcpServers": {
        "adder": {"command": program, "args": ["demo-server"], "env": {"DEMO_TOKEN": "a-secret-of-the-demo"}},
        "gateway": {"command": program, "args": ["serve", "--stdio"]},
    }});
    write(place, ".cursor/mcp.json", &cursor.to_string());
    let desktop = json!({"mcpServers": {
        "adder": {"command": program, "args": ["demo-server"], "env": {"DEMO_TOKEN": "a-secret-of-the-demo"}},
    }});
    write(place, "Claude/claude_desktop_config.json", &format!("// by hand\n{desktop}"));
    write(place, ".codex/config.toml", "[mcp_servers.broken]\ncommand = nothing\n");
}

/// JOIN-1: what was imported works: its tools are listed and called. The client's files stay, the secret is in a file of mode
/// 0600, and a broken file is named and stops nothing.
#[tokio::test]
async fn imported_servers_work() {
    let place = Place::new();
    clients(&place);
    let before = fs::read(place.path().join(".cursor/mcp.json")).unwrap();
    let dry = import(&place, &["--dry-run"]).await;
    assert_eq!(dry.code, Some(1), "{dry:?}");
    assert!(dry.stdout.starts_with("CLIENT"), "{dry:?}");
    assert!(dry.stderr.contains("error: ~/.codex/config.toml:2:11: not valid TOML"), "{dry:?}");
    assert!(dry.stderr.contains("1 server would be added to ~/bridgehead/bridgehead.toml"), "{dry:?}");
    assert!(!place.path().join("bridgehead").exists());

    let done = import(&place, &[]).await;
    assert_eq!(done.code, Some(1), "a file is broken: {done:?}");
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{done:?}");
    assert!(lines[1].starts_with("Claude Desktop") && lines[1].contains("added"), "{done:?}");
    assert!(lines[2].starts_with("Cursor") && lines[2].contains("the same as in Claude Desktop"), "{done:?}");
    assert!(lines[3].contains("skipped") && lines[3].contains("it is Bridgehead itself"), "{done:?}");
    assert!(done.stderr.contains("added 1 server to ~/bridgehead/bridgehead.toml"), "{done:?}");
    assert!(
        done.stderr.contains(
            "secrets are in ~/bridgehead/bridgehead.env, which only you can read: ADDER_DEMO_TOKEN"
        ),
        "{done:?}"
    );
    assert!(done.stderr.contains("next: `bridgehead check`"), "{done:?}");
    let own = place.path().join("bridgehead/bridgehead.toml");
    assert!(!fs::read_to_string(&own).unwrap().contains("a-secret-of-the-demo"));
    assert!(!format!("{done:?}").contains("a-secret-of-the-demo"));
    let secrets = own.with_extension("env");
    assert!(fs::read_to_string(&secrets).unwrap().contains("a-secret-of-the-demo"));
    assert_eq!((mode(&own), mode(&secrets)), (0o600, 0o600));
    assert_eq!(fs::read(place.path().join(".cursor/mcp.json")).unwrap(), before);

    let home = [("HOME", place.path().to_str().unwrap())];
    let called = place.run_with(&["call", "add", "--args", r#"{"a":1,"b":2}"#], &home, "").await;
    assert!(called.code == Some(0) && called.stdout.contains('3'), "{called:?}");

    let written = fs::read(&own).unwrap();
    let again = import(&place, &["--from", "cursor"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stdout.contains("already there") && again.stderr.contains("nothing to add"), "{again:?}");
    assert_eq!(fs::read(&own).unwrap(), written);
}

/// JOIN-1: servers of a project are named, and the user's own file is not taken for a project's in the home.
#[tokio::test]
async fn servers_of_a_project_are_named() {
    let place = Place::new();
    clients(&place);
    let home = [("HOME", place.path().to_str().unwrap())];
    let note = "note: this project has servers in";
    let at_home = place.run_in(place.path(), &["import", "--dry-run"], &home).await;
    assert!(!at_home.stderr.contains(note), "{at_home:?}");
    write(&place, "project/.cursor/mcp.json", r#"{"mcpServers": {"a": {"command": "x"}}}"#);
    let folder = place.path().join("project");
    let in_project = place.run_in(&folder, &["import", "--dry-run"], &home).await;
    assert!(in_project.stderr.contains(&format!("{note} `~/project/.cursor/mcp.json`")), "{in_project:?}");
}

/// JOIN-1: programs get one JSON document, whatever was found.
#[tokio::test]
async fn json_for_programs() {
    let place = Place::new();
    let nothing = import(&place, &["--json"]).await;
    assert_eq!(nothing.code, Some(0), "{nothing:?}");
    assert_eq!(nothing.json()["servers"], json!([]));
    assert!(nothing.stderr.contains("there are no servers to import"), "{nothing:?}");
    let missing = import(&place, &["--json", "--from", "zed"]).await;
    assert!(missing.code == Some(1) && missing.stderr.contains("zed/settings.json"), "{missing:?}");

    clients(&place);
    let done = import(&place, &["--json"]).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    let told = done.json();
    assert_eq!((&told["changed"], &told["dryRun"]), (&json!(true), &json!(false)));
    assert!(told["configuration"].as_str().unwrap().ends_with("bridgehead/bridgehead.toml"), "{told}");
    let adder = &told["servers"][0];
    assert_eq!(
        (
            &adder["client"],
            &adder["line"],
            &adder["scope"],
            &adder["name"],
            &adder["as"],
            &adder["transport"]
        ),
        (
            &json!("claude-desktop"),
            &json!(2),
            &json!("user"),
            &json!("adder"),
            &json!("adder"),
            &json!("stdio")
        )
    );
    assert!(adder["file"].as_str().unwrap().ends_with("Claude/claude_desktop_config.json"), "{told}");
    let actions: Vec<&Value> = told["servers"].as_array().unwrap().iter().map(|one| &one["action"]).collect();
    assert_eq!(actions, [&json!("added"), &json!("merged"), &json!("skipped")]);
    assert_eq!(told["servers"][2]["remarks"], json!(["it is Bridgehead itself"]));
    let broken = &told["broken"][0];
    assert_eq!(
        (&broken["client"], &broken["line"], &broken["column"]),
        (&json!("codex"), &json!(2), &json!(11))
    );
    assert_eq!(told["secrets"]["variables"], json!(["ADDER_DEMO_TOKEN"]));
    assert_eq!((&told["exposed"], &told["variables"]), (&json!([]), &json!([])));
    assert!(!done.stdout.contains("a-secret-of-the-demo"), "{done:?}");
}

/// JOIN-6: importing a project's servers does not agree to run them; the command that does is named.
#[tokio::test]
async fn a_projects_servers_need_an_agreement() {
    let place = Place::new();
    let (folder, ran) = (place.path().join("project"), place.path().join("ran"));
    let script = format!("touch {}", ran.display());
    let servers = json!({"mcpServers": {"theirs": {"command": "sh", "args": ["-c", script]}}}).to_string();
    write(&place, "project/.mcp.json", &servers);
    let done = place.run_in(&folder, &["import", "--scope", "project"], &[]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let trust = format!("bridgehead trust {}/bridgehead.toml", folder.display());
    assert!(done.stderr.contains(&format!("next: `{trust}`")), "{done:?}");
    let listed = place.run_in(&folder, &["tools"], &[]).await;
    assert!(listed.stderr.contains("nobody agreed") && !ran.exists(), "{listed:?}");

    write(&place, "other/.mcp.json", &servers);
    let other = place.path().join("other");
    let done = place.run_in(&other, &["import", "--scope", "project", "--json"], &[]).await;
    assert_eq!(done.json()["next"], format!("bridgehead trust {}/bridgehead.toml", other.display()));
    let named = ["import", ".mcp.json", "--into", "named.toml", "--json"];
    assert!(place.run_in(&other, &named, &[]).await.json()["next"].is_string());
    write(&place, ".cursor/mcp.json", &servers);
    let home = [("HOME", place.path().to_str().unwrap())];
    let own = ["import", "--into", "own.toml", "--json"];
    assert_eq!(place.run_in(&other, &own, &home).await.json()["next"], Value::Null);
}

/// JOIN-1: what cannot be written is an error that leaves everything as it was.
#[tokio::test]
async fn a_configuration_that_cannot_be_edited() {
    let place = Place::new();
    clients(&place);
    write(&place, "bridgehead/bridgehead.toml", "servers = 5\n");
    let wrong = import(&place, &["--from", "cursor"]).await;
    assert_eq!(wrong.code, Some(78), "{wrong:?}");
    assert_eq!(fs::read_to_string(place.path().join("bridgehead/bridgehead.toml")).unwrap(), "servers = 5\n");
    let of_a_client = import(&place, &["--from", "cursor", "--into", "mcp.json"]).await;
    assert!(of_a_client.code == Some(2) && of_a_client.stderr.contains("does not edit"), "{of_a_client:?}");
    assert!(of_a_client.stderr.contains("name a `bridgehead.toml` instead"), "{of_a_client:?}");
    assert!(!of_a_client.stderr.contains("--config"), "{of_a_client:?}");
    let unknown = import(&place, &["--from", "cursorr"]).await;
    assert!(unknown.code == Some(2) && unknown.stderr.contains("'cursor'"), "{unknown:?}");
}
