//! `bridgehead connect` and `bridgehead disconnect`, on the files of clients in a home of their own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bridgehead_testkit::client::StdioClient;
use serde_json::{Value, json};

use crate::common::{Place, Ran, program};

/// A home with clients.
struct Home {
    place: Place,
}

impl Home {
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir(place.path().join("bin")).unwrap();
        Self { place }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    /// Writes a file of a client.
    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Puts a command into the PATH.
    fn command(&self, name: &str, script: &str) {
        let path = self.write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[]).await
    }

    async fn run_with(&self, arguments: &[&str], more: &[(&str, &str)]) -> Ran {
        Ran::of(self.start(arguments, more)).await
    }

    fn start(&self, arguments: &[&str], more: &[(&str, &str)]) -> StdioClient {
        let home = self.place.path().to_str().unwrap();
        let config = format!("{home}/.config");
        let path = format!("{home}/bin:/usr/bin:/bin");
        let mut variables = vec![("HOME", home), ("XDG_CONFIG_HOME", &config), ("PATH", &path)];
        variables.extend_from_slice(more);
        let folder = self.path("project");
        fs::create_dir_all(&folder).unwrap();
        self.place.start_in(&folder, arguments, &variables)
    }

    /// Runs a command that must work, and returns what it told about the first client.
    #[track_caller]
    fn first(ran: &Ran) -> Value {
        ran.json()["clients"][0].clone()
    }

    /// The names of the files in a folder.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn records(&self) -> Value {
        let text =
            fs::read_to_string(self.path("state/bridgehead/connected.json")).unwrap_or("{}".to_owned());
        serde_json::from_str(&text).unwrap()
    }
}

fn command_of(entry: &Value) -> (&str, Vec<&str>) {
    let args = entry["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    (entry["command"].as_str().unwrap(), args)
}

/// The clients whose JSON files are edited, with the keys of their servers and a file as their users have it.
const FILES: [(&str, &str, &str, &str); 7] = [
    (
        "claude-desktop",
        ".config/Claude/claude_desktop_config.json",
        "mcpServers",
        "{\n  \"globalShortcut\": \"\"\n}",
    ),
    (
        "claude-code",
        ".claude.json",
        "mcpServers",
        "{\n  \"numStartups\": 3,\n  \"mcpServers\": {},\n  \"projects\": {\"/x\": {\"mcpServers\": {}}}\n}\n",
    ),
    (
        "cursor",
        ".cursor/mcp.json",
        "mcpServers",
        "{\"mcpServers\":{\"a\":{\"command\":\"x\",\"env\":{\"T\":\"é\"}}}}",
    ),
    (
        "vscode",
        ".config/Code/User/mcp.json",
        "servers",
        "\u{feff}{\r\n\t// mine\r\n\t\"servers\": {\r\n\t\t\"a\": {\"command\": \"x\"}, // one\r\n\t},\r\n\t\"inputs\": []\r\n}\r\n",
    ),
    ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers", "{\n    \"mcpServers\": {\n    }\n}\n"),
    (
        "zed",
        ".config/zed/settings.json",
        "context_servers",
        "// Zed settings\n{\n  \"theme\": \"One\",\n  /* none yet */\n}\n",
    ),
    ("copilot", ".copilot/mcp-config.json", "mcpServers", ""),
];

/// JOIN-2: `connect` adds one entry with the absolute path of the program to each client's file, and `disconnect` gives back
/// every byte; a file that was not there is gone again.
#[tokio::test]
async fn clients_are_connected_and_restored() {
    let home = Home::new();
    let all: Vec<&str> = FILES.iter().map(|(client, ..)| *client).chain(["codex", "gemini"]).collect();
    for (_, path, _, text) in FILES {
        home.write(path, text);
    }
    let toml = "# mine\r\nmodel = \"o\"\r\n\r\n[mcp_servers.a]\r\ncommand = \"x\" # one\r\n";
    home.write(".codex/config.toml", toml);
    let connected = home.run(&[&["connect", "--json"], &all[..]].concat()).await;
    assert_eq!(connected.code, Some(0), "{connected:?}");
    for (number, (client, path, key, text)) in FILES.into_iter().enumerate() {
        let edited = home.read(path);
        let told = &connected.json()["clients"][number];
        assert_eq!((&told["client"], &told["state"]), (&json!(client), &json!("connected")), "{told}");
        assert_eq!(told["undo"], format!("bridgehead disconnect {client}"));
        let backup = PathBuf::from(told["backup"].as_str().unwrap());
        assert_eq!(fs::read_to_string(&backup).unwrap(), text, "{client}");
        assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
        let at = edited.find("\"bridgehead\"").unwrap();
        let entry: Value = serde_json::Deserializer::from_str(edited[at..].split_once(':').unwrap().1)
            .into_iter()
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(command_of(&entry), (program().to_str().unwrap(), vec!["serve", "--stdio"]), "{client}");
        assert!(edited.contains(&format!("\"{key}\"")), "{edited}");
        let kept: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        assert!(kept.iter().all(|line| edited.contains(line.trim_end_matches([',', '}', '{']))), "{edited}");
    }
    let codex = home.read(".codex/config.toml");
    assert!(codex.starts_with(toml) && codex.contains("[mcp_servers.bridgehead]\r\n"), "{codex}");
    let gemini = home.path(".gemini/settings.json");
    assert_eq!(fs::metadata(&gemini).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(home.records()["connections"].as_array().unwrap().len(), all.len());

    let again = home.run(&[&["connect", "--json"], &all[..]].concat()).await;
    let states = again.json();
    assert!(
        states["clients"].as_array().unwrap().iter().all(|told| told["state"] == "unchanged"),
        "{states}"
    );
    assert_eq!(home.read(".codex/config.toml"), codex);

    let disconnected = home.run(&["disconnect", "--all", "--json"]).await;
    assert_eq!(disconnected.code, Some(0), "{disconnected:?}");
    let states = disconnected.json();
    assert!(states["clients"].as_array().unwrap().iter().all(|told| told["state"] == "restored"), "{states}");
    for (client, path, _, text) in FILES {
        assert_eq!(home.read(path), text, "{client}");
        let folder = Path::new(path).parent().unwrap().to_str().unwrap();
        if !folder.is_empty() {
            assert_eq!(home.names(folder).len(), 1, "{client}: {:?}", home.names(folder));
        }
    }
    assert_eq!(home.read(".codex/config.toml"), toml);
    assert!(!gemini.exists());
    assert_eq!(home.records()["connections"], json!([]));
    let nothing = home.run(&["disconnect", "--all", "--json"]).await;
    assert_eq!((nothing.code, &nothing.json()["clients"]), (Some(0), &json!([])), "{nothing:?}");
}

/// JOIN-2: what a client's file says starts the gateway on demand, from any folder.
#[tokio::test]
async fn the_entry_starts_the_gateway() {
    let home = Home::new();
    // The gateway that the entry starts ends with its client.
    let config = home.place.config(&["one"], "[gateway]\nlinger_ms = 0\n");
    let ran = home.run(&["connect", "cursor", "--config", config.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let file: Value = serde_json::from_str(&home.read(".cursor/mcp.json")).unwrap();
    let (command, args) = command_of(&file["mcpServers"]["bridgehead"]);
    let config = config.canonicalize().unwrap();
    assert_eq!(args, ["serve", "--stdio", "--config", config.to_str().unwrap()]);
    let at = home.place.path().to_str().unwrap();
    let mut client = StdioClient::start(
        Path::new(command),
        &args,
        [("XDG_RUNTIME_DIR", at), ("XDG_STATE_HOME", at), ("RUST_LOG", "")],
    );
    client.initialize().await;
    let tools = client.request("tools/list", json!({})).await;
    assert!(tools["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{tools}");
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0));
}

/// JOIN-2: from a file that somebody has changed since, only the entry is taken away; without a record too.
#[tokio::test]
async fn what_others_changed_stays() {
    let home = Home::new();
    let before = "{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}\n";
    home.write(".cursor/mcp.json", before);
    for keeps_record in [true, false] {
        assert_eq!(home.run(&["connect", "cursor"]).await.code, Some(0));
        let changed = home.read(".cursor/mcp.json").replace("\"a\": {}", "\"a\": {\"b\": 1}");
        home.write(".cursor/mcp.json", &changed);
        if !keeps_record {
            fs::remove_file(home.path("state/bridgehead/connected.json")).unwrap();
        }
        let planned = home.run(&["disconnect", "cursor", "--dry-run"]).await;
        assert!(
            planned.stdout.contains("-    \"bridgehead\": {")
                && !planned.stdout.contains("+    \"bridgehead"),
            "{planned:?}"
        );
        assert_eq!(home.read(".cursor/mcp.json"), changed);
        let ran = home.run(&["disconnect", "cursor", "--json"]).await;
        assert_eq!(Home::first(&ran)["state"], "removed", "{ran:?}");
        assert_eq!(home.read(".cursor/mcp.json"), before.replace("\"a\": {}", "\"a\": {\"b\": 1}"));
        let ran = home.run(&["disconnect", "cursor"]).await;
        assert!(ran.code == Some(0) && ran.stderr.contains("not connected, nothing changed"), "{ran:?}");
        home.write(".cursor/mcp.json", before);
    }
}

/// JOIN-2: an entry of ours that says something else is updated and keeps what its user added; the original comes back. An
/// entry of the same name that is not ours stays, and another name is proposed.
#[tokio::test]
async fn entries_that_are_there() {
    let home = Home::new();
    let before = "{\n  \"mcpServers\": {}\n}\n";
    home.write(".codeium/windsurf/mcp_config.json", before);
    assert_eq!(home.run(&["connect", "windsurf"]).await.code, Some(0));
    let config = home.place.config(&[], "");
    let config = config.to_str().unwrap();
    let ran = home.run(&["connect", "windsurf", "--config", config, "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "updated", "{ran:?}");
    assert!(home.read(".codeium/windsurf/mcp_config.json").contains("--config"));
    let ran = home.run(&["disconnect", "windsurf", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "restored", "{ran:?}");
    assert_eq!(home.read(".codeium/windsurf/mcp_config.json"), before);

    let old = "{\"mcpServers\": {\"bridgehead\": {\"serverUrl\": \"http://x\", \"command\": \"/old/bridgehead\", \"args\": [\"serve\"], \"disabledTools\": [\"t\"]}}}";
    home.write(".codeium/windsurf/mcp_config.json", old);
    let ran = home.run(&["connect", "windsurf", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "updated", "{ran:?}");
    let now: Value = serde_json::from_str(&home.read(".codeium/windsurf/mcp_config.json")).unwrap();
    let entry = &now["mcpServers"]["bridgehead"];
    assert_eq!((&entry["serverUrl"], &entry["disabledTools"]), (&Value::Null, &json!(["t"])), "{now}");
    assert_eq!(command_of(entry).0, program().to_str().unwrap());
    let ran = home.run(&["disconnect", "windsurf", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "removed", "{ran:?}");

    let other = "{\"mcpServers\": {\"bridgehead\": {\"command\": \"other\"}}}";
    home.write(".cursor/mcp.json", other);
    let ran = home.run(&["connect", "cursor"]).await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("starts something else; use another name with `--name`"), "{ran:?}");
    let ran = home.run(&["disconnect", "cursor"]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("starts something else, so it stays"), "{ran:?}");
    assert_eq!(home.read(".cursor/mcp.json"), other);
    let ran = home.run(&["connect", "cursor", "--name", "gate", "--json"]).await;
    assert_eq!(Home::first(&ran)["undo"], "bridgehead disconnect cursor --name gate", "{ran:?}");
    assert_eq!(home.run(&["disconnect", "cursor", "--name", "gate"]).await.code, Some(0));
    assert_eq!(home.read(".cursor/mcp.json"), other);
    for wrong in [&["connect", "cursor", "--name", "a b"][..], &["connect", "notepad"], &["disconnect"]] {
        assert_eq!(home.run(wrong).await.code, Some(2), "{wrong:?}");
    }
    for verb in ["connect", "disconnect"] {
        let ran = home.run(&[verb, "curser"]).await;
        assert!(ran.stderr.contains("did you mean `cursor`?") && ran.stdout.is_empty(), "{ran:?}");
        let ran = home.run(&[verb, "curser", "--json"]).await;
        assert_eq!((ran.code, &ran.json()["ok"]), (Some(2), &json!(false)), "{ran:?}");
        assert!(ran.json()["error"].as_str().unwrap().contains("there is no client `curser`"), "{ran:?}");
    }
}

/// JOIN-2: of several `connect` at once, no entry and no record is lost.
#[tokio::test]
async fn several_at_once() {
    let home = Home::new();
    let names: Vec<String> = (0..4).map(|number| format!("gate{number}")).collect();
    let all: Vec<StdioClient> = names
        .iter()
        .flat_map(|name| ["cursor", "windsurf"].map(|client| ["connect", client, "--name", name]))
        .map(|arguments| home.start(&arguments, &[]))
        .collect();
    for child in all {
        let ran = Ran::of(child).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    for file in [".cursor/mcp.json", ".codeium/windsurf/mcp_config.json"] {
        let now: Value = serde_json::from_str(&home.read(file)).unwrap();
        let entries = now["mcpServers"].as_object().unwrap();
        assert!(names.iter().all(|name| entries.contains_key(name)), "{now}");
    }
    assert_eq!(home.records()["connections"].as_array().unwrap().len(), 8, "{}", home.records());
}

/// JOIN-2: connecting again keeps what the user added to the entry. Only what Codex refuses beside the rest is taken out, with a
/// word about it.
#[tokio::test]
async fn what_users_add_to_an_entry() {
    let home = Home::new();
    let file = ".codex/config.toml";
    assert_eq!(home.run(&["connect", "codex"]).await.code, Some(0));
    let tools = "\n[mcp_servers.bridgehead.tools.echo]\napproval_mode = \"approve\"\n";
    home.write(file, &format!("{}{tools}", home.read(file)));
    let ran = home.run(&["connect", "codex", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "unchanged", "{ran:?}");
    assert!(home.read(file).ends_with(tools), "{}", home.read(file));

    let more = "\n[mcp_servers.bridgehead.env]\nA = \"b\"\n";
    home.write(file, &format!("{}{more}", home.read(file)));
    let http = ["connect", "codex", "--http=http://127.0.0.1:9/mcp", "--json"];
    let planned = home.run(&[&http[..], &["--dry-run"]].concat()).await;
    let ran = home.run(&http).await;
    for ran in [&planned, &ran] {
        let told = Home::first(ran);
        assert!(told["warnings"][0].as_str().unwrap().contains("`env` cannot stand beside"), "{told}");
    }
    let now = home.read(file);
    assert!(now.contains("url = ") && now.contains(tools), "{now}");
    assert!(!now.contains("command = ") && !now.contains("bridgehead.env"), "{now}");
    let kept = home.names(".codex").into_iter().find(|name| name.contains(".bridgehead-")).unwrap();
    assert!(home.read(&format!(".codex/{kept}")).contains(more), "{kept}");

    let headers = "url = \"http://127.0.0.1:9/mcp\"\nhttp_headers = { X = \"y\" }\n";
    home.write(file, &now.replace("url = \"http://127.0.0.1:9/mcp\"\n", headers));
    let ran = home.run(&["connect", "codex"]).await;
    assert!(ran.stderr.contains("Codex: `http_headers` cannot stand beside"), "{ran:?}");
    let now = home.read(file);
    assert!(now.contains("command = ") && now.contains(tools), "{now}");
    assert!(!now.contains("url = ") && !now.contains("http_headers"), "{now}");
    let ran = home.run(&["connect", "codex", "--json"]).await;
    assert_eq!(Home::first(&ran)["warnings"], json!([]), "{ran:?}");
}

/// JOIN-2: a broken file is named with line and column, and stays; the other clients are connected.
#[tokio::test]
async fn a_broken_file_is_skipped() {
    let home = Home::new();
    let broken = [
        (".cursor/mcp.json", "{\n\t\"mcpServers\": {\n", "line 2, column 16: unterminated object"),
        (
            ".cursor/mcp.json",
            "{\"mcpServers\": {},\r\n \"mcpServers\": {}}",
            "line 2, column 2: the key `mcpServers`",
        ),
        (".cursor/mcp.json", "[]", "line 1, column 1: the file does not hold an object"),
    ];
    for (path, text, message) in broken {
        home.write(path, text);
        let ran = home.run(&["connect", "cursor", "zed"]).await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(message) && ran.stderr.contains("mcp.json"), "{ran:?}");
        assert!(ran.stderr.contains("Zed: connected"), "{ran:?}");
        assert_eq!((home.read(path).as_str(), home.names(".cursor")), (text, vec!["mcp.json".to_owned()]));
        assert_eq!(home.run(&["disconnect", "zed"]).await.code, Some(0));
        let listed = home.run(&["connect"]).await;
        assert!(listed.stdout.contains("broken: line"), "{listed:?}");
    }
    fs::write(home.path(".cursor/mcp.json"), [b'{', 0xff]).unwrap();
    let ran = home.run(&["connect", "cursor"]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("it is not UTF-8"), "{ran:?}");
    home.write(".codex/config.toml", "[a\n");
    let ran = home.run(&["connect", "codex"]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("config.toml`, line 1, column"), "{ran:?}");
    assert_eq!(home.names(".codex"), ["config.toml"]);
}

/// JOIN-2: a link stays a link, a read-only file stays as it is, and so does every file if the disk is full.
#[tokio::test]
async fn files_that_resist() {
    let home = Home::new();
    let before = "{\n  \"mcpServers\": {}\n}\n";
    home.write("dots/mcp.json", before);
    fs::create_dir(home.path(".cursor")).unwrap();
    symlink("../dots/mcp.json", home.path(".cursor/mcp.json")).unwrap();
    assert_eq!(home.run(&["connect", "cursor"]).await.code, Some(0));
    assert!(home.path(".cursor/mcp.json").is_symlink() && home.read("dots/mcp.json").contains("bridgehead"));
    assert_eq!(home.run(&["disconnect", "cursor"]).await.code, Some(0));
    assert!(home.path(".cursor/mcp.json").is_symlink());
    assert_eq!(home.read("dots/mcp.json"), before);

    // The file that a link means need not be there.
    fs::remove_file(home.path("dots/mcp.json")).unwrap();
    assert_eq!(home.run(&["connect", "cursor"]).await.code, Some(0));
    assert!(home.read("dots/mcp.json").contains("bridgehead"));
    let ran = home.run(&["disconnect", "cursor", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "restored", "{ran:?}");
    assert!(home.path(".cursor/mcp.json").is_symlink() && home.names("dots").is_empty(), "{ran:?}");
    home.write("dots/mcp.json", before);

    fs::set_permissions(home.path("dots/mcp.json"), Permissions::from_mode(0o444)).unwrap();
    let ran = home.run(&["connect", "cursor"]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("is read-only"), "{ran:?}");
    fs::set_permissions(home.path("dots/mcp.json"), Permissions::from_mode(0o644)).unwrap();

    // A process that may write no byte to files is what a full disk looks like.
    let script = format!("trap '' XFSZ; ulimit -f 0; exec '{}' connect cursor 2>&1", program().display());
    let at = home.place.path().to_str().unwrap();
    let state = format!("{at}/state");
    let variables =
        [("HOME", at), ("XDG_STATE_HOME", state.as_str()), ("PATH", "/usr/bin:/bin"), ("RUST_LOG", "")];
    let ran = Ran::of(StdioClient::start(Path::new("/bin/sh"), &["-c", &script], variables)).await;
    assert!(ran.code == Some(1) && ran.stdout.contains("cannot be written, and stays as it was"), "{ran:?}");
    assert_eq!(
        (home.read("dots/mcp.json").as_str(), home.names("dots")),
        (before, vec!["mcp.json".to_owned()])
    );
}

/// JOIN-2: the client's own command is used if it is there; if it fails, the file is edited, with a word about it.
#[tokio::test]
async fn the_clients_own_command() {
    let home = Home::new();
    home.command(
        "claude",
        r#"echo "$@" >> "$HOME/said"
[ -e "$HOME/fails" ] && { echo "no luck" >&2; exit 3; }
[ -e "$HOME/lies" ] && exit 0
case "$2" in
add-json) printf '{"mcpServers":{"%s":%s},"userID":1}' "$5" "$6" > "$HOME/.claude.json" ;;
remove) printf '{"mcpServers":{},"userID":2}' > "$HOME/.claude.json" ;;
esac"#,
    );
    let before = "{\"userID\":1}";
    home.write(".claude.json", before);
    let ran = home.run(&["connect", "claude-code", "--json"]).await;
    let told = Home::first(&ran);
    assert_eq!((&told["state"], &told["how"]), (&json!("connected"), &json!("command")), "{ran:?}");
    assert!(home.read("said").starts_with("mcp add-json --scope user bridgehead {"), "{}", home.read("said"));
    assert!(home.read(".claude.json").contains("--stdio"));
    let ran = home.run(&["disconnect", "claude-code", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "restored", "{ran:?}");
    assert_eq!(home.read(".claude.json"), before);

    // The client has changed its file since.
    assert_eq!(home.run(&["connect", "claude-code"]).await.code, Some(0));
    home.write(".claude.json", &home.read(".claude.json").replace("\"userID\":1", "\"userID\":7"));
    let ran = home.run(&["disconnect", "claude-code", "--json"]).await;
    let told = Home::first(&ran);
    assert_eq!((&told["state"], &told["how"]), (&json!("removed"), &json!("command")), "{ran:?}");
    assert!(home.read("said").ends_with("mcp remove --scope user bridgehead\n"), "{}", home.read("said"));

    // The client made the file itself, so it is not removed.
    fs::remove_file(home.path(".claude.json")).unwrap();
    assert_eq!(home.run(&["connect", "claude-code"]).await.code, Some(0));
    assert_eq!(home.run(&["disconnect", "claude-code"]).await.code, Some(0));
    assert_eq!(home.read(".claude.json"), "{\"mcpServers\":{},\"userID\":2}");

    // Nor is it after an update.
    fs::remove_file(home.path(".claude.json")).unwrap();
    assert_eq!(home.run(&["connect", "claude-code"]).await.code, Some(0));
    let ran = home.run(&["connect", "claude-code", "--http=http://127.0.0.1:9/mcp", "--json"]).await;
    let told = Home::first(&ran);
    assert_eq!((&told["state"], &told["how"]), (&json!("updated"), &json!("edit")), "{ran:?}");
    assert!(home.read(".claude.json").contains("http://127.0.0.1:9/mcp"), "{ran:?}");
    let ran = home.run(&["disconnect", "claude-code", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "removed", "{ran:?}");
    assert_eq!(home.read(".claude.json"), "{\"mcpServers\":{},\"userID\":2}");

    for (broken, word) in [("fails", "exit status 3: no luck"), ("lies", "its entry is not in the file")] {
        home.write(".claude.json", before);
        home.write(broken, "");
        let ran = home.run(&["connect", "claude-code", "--json"]).await;
        let told = Home::first(&ran);
        assert_eq!((&told["state"], &told["how"]), (&json!("connected"), &json!("edit")), "{ran:?}");
        assert!(told["warnings"][0].as_str().unwrap().contains(word), "{told}");
        assert!(told["next"][0].as_str().unwrap().contains("may write its file again"), "{told}");
        home.write(".claude.json", &home.read(".claude.json").replace(":1", ":3"));
        let ran = home.run(&["disconnect", "claude-code", "--json"]).await;
        let told = Home::first(&ran);
        assert_eq!((&told["state"], &told["how"]), (&json!("removed"), &json!("edit")), "{ran:?}");
        assert_eq!(home.read(".claude.json"), before.replace(":1", ":3"));
        fs::remove_file(home.path(broken)).unwrap();
    }
    let said = home.read("said");
    home.write(".claude.json", before);
    for verb in ["connect", "disconnect"] {
        assert_eq!(home.run(&[verb, "claude-code", "--no-command"]).await.code, Some(0));
    }
    assert_eq!((home.read("said"), home.read(".claude.json").as_str()), (said, before));
}

/// JOIN-2: what is here is listed with its state; all of it is connected at once; and what would change, or is to be pasted,
/// is shown without a change.
#[tokio::test]
async fn lists_plans_and_snippets() {
    let home = Home::new();
    let none = home.run(&["connect"]).await;
    assert!(
        none.code == Some(0) && none.stdout.is_empty() && none.stderr.contains("no client is found"),
        "{none:?}"
    );
    assert_eq!(home.run(&["connect", "--all"]).await.code, Some(1));
    home.write(".cursor/mcp.json", "{}");
    home.write(".config/zed/settings.json", "{\"context_servers\": {\"bridgehead\": {\"command\": \"x\"}}}");
    home.write(".config/goose/config.yaml", "");
    home.command("gemini", "exit 1");
    let state = |listed: &Ran, client: &str| {
        let told = listed.json();
        let row = told["clients"].as_array().unwrap().iter().find(|row| row["client"] == client).cloned();
        row.unwrap_or_default()["state"].as_str().unwrap_or("-").to_owned()
    };
    let listed = home.run(&["connect", "--json"]).await;
    assert_eq!(state(&listed, "cursor"), "not connected");
    assert_eq!(state(&listed, "zed"), "another server is named `bridgehead`");
    assert_eq!(state(&listed, "goose"), "printed only");
    assert_eq!(
        (state(&listed, "gemini"), state(&listed, "vscode")),
        ("not connected".to_owned(), "-".to_owned())
    );
    let ran = home.run(&["connect", "--all"]).await;
    assert_eq!(ran.code, Some(1), "Zed has another: {ran:?}");
    assert!(
        ran.stderr.contains("Cursor: connected in `") && ran.stderr.contains("Gemini CLI: connected in `"),
        "{ran:?}"
    );
    let listed = home.run(&["connect"]).await;
    assert!(
        listed.stdout.starts_with("CLIENT  ") && listed.stdout.contains("\ncursor  connected "),
        "{listed:?}"
    );
    let config = home.place.config(&[], "");
    let listed = home.run(&["connect", "--json", "--config", config.to_str().unwrap()]).await;
    assert_eq!(state(&listed, "cursor"), "connected in another way");
    assert_eq!(home.run(&["connect", "--json", "--config", "no-such-file"]).await.code, Some(78));

    let before = home.read(".config/zed/settings.json");
    let planned = home.run(&["connect", "zed", "vscode", "--name", "gate", "--dry-run"]).await;
    assert_eq!(planned.code, Some(0), "{planned:?}");
    assert!(
        planned.stdout.contains("@@ line 1 @@") && planned.stdout.contains("+    \"gate\": {"),
        "{planned:?}"
    );
    assert!(planned.stderr.contains("Zed: would change `"), "{planned:?}");
    let printed = home.run(&["connect", "zed", "--name", "gate", "--print"]).await;
    let snippet: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(command_of(&snippet["context_servers"]["gate"]).1, ["serve", "--stdio"]);
    assert_eq!(home.read(".config/zed/settings.json"), before);
    assert!(!home.path(".config/Code").exists());
    let goose = home.run(&["connect", "goose"]).await;
    assert!(goose.code == Some(0) && goose.stdout.starts_with("extensions:\n  bridgehead:\n"), "{goose:?}");
    assert!(
        goose.stderr.contains("Goose: add this to `") && goose.stderr.contains("goose/config.yaml"),
        "{goose:?}"
    );
    assert_eq!(home.run(&["disconnect", "goose"]).await.code, Some(1));
    let ended = home.run(&["connect", "roo"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("has ended"), "{ended:?}");
}

/// JOIN-2: over HTTP the entry has the address and, if keys are needed, a header with the client's form of a variable; a
/// client without such a form starts the program.
#[tokio::test]
async fn over_http() {
    let home = Home::new();
    let plain = home.place.file("plain.toml", "[http]\nlisten = \"0.0.0.0:4900\"\n");
    let keyed =
        home.place.file("keyed.toml", &format!("[[auth.keys.a]]\nsha256 = \"{}\"\n", "ab".repeat(32)));
    let token = home.place.file("token.toml", "[http]\ntoken_env = \"MY_TOKEN\"\n");
    let chosen = home.place.file("chosen.toml", "[http]\nlisten = \"127.0.0.1:0\"\n");
    let [plain, keyed, token, chosen] = [&plain, &keyed, &token, &chosen].map(|path| path.to_str().unwrap());
    let url = |port: u16| format!("http://127.0.0.1:{port}/mcp");
    let entry = |name: &str| -> Value {
        let text = home.read(".cursor/mcp.json");
        serde_json::from_str::<Value>(&text).unwrap()["mcpServers"][name].clone()
    };
    let ran = home.run(&["connect", "cursor", "zed", "--http", "--name", "a", "--config", plain]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("keep the gateway running"), "{ran:?}");
    assert_eq!(entry("a"), json!({"url": url(4900)}));
    assert!(home.read(".config/zed/settings.json").contains("4900"));
    let ran = home.run(&["connect", "cursor", "zed", "--http", "--name", "b", "--config", keyed]).await;
    assert_eq!(
        entry("b"),
        json!({"url": url(4848), "headers": {"Authorization": "Bearer ${env:MCP_BRIDGEHEAD_KEY}"}})
    );
    assert!(ran.stderr.contains("set MCP_BRIDGEHEAD_KEY where Cursor starts"), "{ran:?}");
    assert!(ran.stderr.contains("Zed cannot be given a key for HTTP"), "{ran:?}");
    let zed: Value = serde_json::from_str(&home.read(".config/zed/settings.json")).unwrap();
    assert_eq!(command_of(&zed["context_servers"]["b"]).1[0], "serve");
    let ran = home
        .run_with(
            &["connect", "cursor", "--http", "--name", "c", "--config", token],
            &[("MY_TOKEN", "t0ken-t0ken-t0ken-t0ken")],
        )
        .await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(entry("c")["headers"]["Authorization"], "Bearer ${env:MY_TOKEN}");
    let there =
        ["connect", "cursor", "--http=https://gate.example/mcp", "--key-variable", "K", "--name", "d"];
    assert_eq!(home.run(&there).await.code, Some(0));
    assert_eq!(
        entry("d"),
        json!({"url": "https://gate.example/mcp", "headers": {"Authorization": "Bearer ${env:K}"}})
    );
    let again = home.run(&there).await;
    assert!(again.stderr.contains("connected already"), "{again:?}");
    let ran = home.run(&["connect", "cursor", "--http", "--config", chosen]).await;
    assert!(ran.code == Some(78) && ran.stderr.contains("chooses its port"), "{ran:?}");
    assert_eq!(home.run(&["connect", "cursor", "--http=gate.example"]).await.code, Some(2));
    let ran = home.run(&["disconnect", "--all", "--json"]).await;
    let states = ran.json();
    assert_eq!(states["clients"].as_array().unwrap().len(), 6, "{states}");
    assert!(states["clients"].as_array().unwrap().iter().all(|told| told["state"] == "restored"), "{states}");
    assert!(!home.path(".cursor/mcp.json").exists());
}

/// JOIN-2: where the gateway is installed as a service, clients get its address; one that knows no HTTP starts the program.
#[tokio::test]
async fn where_the_service_is_installed() {
    let home = Home::new();
    home.command("systemctl", "exit 0");
    let config = home.place.config(&[], "[http]\nlisten = \"127.0.0.1:4901\"\n");
    let config = config.to_str().unwrap();
    let installed = home.run(&["service", "install", "--config", config]).await;
    assert_eq!(installed.code, Some(0), "{installed:?}");
    let ran = home.run(&["connect", "cursor", "claude-desktop", "--config", config]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(home.read(".cursor/mcp.json").contains("http://127.0.0.1:4901/mcp"), "{ran:?}");
    assert!(home.read(".config/Claude/claude_desktop_config.json").contains("--stdio"), "{ran:?}");
    assert!(ran.stderr.contains("Claude Desktop knows no HTTP, so it starts the program"), "{ran:?}");
}

/// JOIN-2: a project's file gets the entry with `--project`. A configuration of the folder is named only if the user agreed to
/// it, and a file that is the gateway's own configuration gets no entry.
#[tokio::test]
async fn in_a_project() {
    let home = Home::new();
    let ran = home.run(&["connect", "cursor", "--project", "--json"]).await;
    let told = Home::first(&ran);
    assert_eq!(told["undo"], "bridgehead disconnect cursor --project", "{ran:?}");
    assert!(home.read("project/.cursor/mcp.json").contains("--stdio") && !home.path(".cursor").exists());
    assert_eq!(home.run(&["disconnect", "cursor"]).await.code, Some(0));
    assert!(home.path("project/.cursor/mcp.json").exists(), "it is not the user's");
    assert_eq!(home.run(&["disconnect", "cursor", "--project"]).await.code, Some(0));
    assert!(!home.path("project/.cursor/mcp.json").exists());
    for verb in ["connect", "disconnect"] {
        let ran = home.run(&[verb, "claude-desktop", "--project"]).await;
        assert!(ran.code == Some(1) && ran.stderr.contains("no file for a project"), "{ran:?}");
        let ran = home.run_with(&[verb, "cursor"], &[("HOME", "")]).await;
        assert!(ran.code == Some(1) && ran.stderr.contains("because HOME is not set"), "{ran:?}");
    }

    home.write("project/.mcp.json", "{\"mcpServers\": {}}");
    let ran = home.run(&["connect", "claude-code", "--project"]).await;
    assert_eq!(ran.code, Some(0), "nobody agreed to it as a configuration: {ran:?}");
    assert!(!home.read("project/.mcp.json").contains("--config"), "{ran:?}");
    assert!(ran.stderr.contains("Claude Code asks once in each project"), "{ran:?}");
    assert!(ran.stderr.contains("there is no configuration yet"), "{ran:?}");
    assert_eq!(home.run(&["disconnect", "claude-code", "--project"]).await.code, Some(0));
    let ran = home.run(&["connect", "claude-code", "--project", "--config", ".mcp.json"]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("would start itself"), "{ran:?}");
    assert_eq!(home.read("project/.mcp.json"), "{\"mcpServers\": {}}");
    // Others may write the map without a key around it.
    home.write("project/.mcp.json", "{\"a\": {\"command\": \"x\"}}");
    assert_eq!(home.run(&["connect", "copilot", "--project"]).await.code, Some(0));
    let bare: Value = serde_json::from_str(&home.read("project/.mcp.json")).unwrap();
    assert_eq!(bare["bridgehead"]["type"], "local", "{bare}");
}

/// JOIN-2: with `--move`, the client's servers that the gateway has are turned off, and taken out where a client cannot do so;
/// all comes back.
#[tokio::test]
async fn servers_are_moved() {
    let home = Home::new();
    let config = home.place.config(&["one"], "");
    let config = config.to_str().unwrap();
    let program = program().display();
    let windsurf = format!(
        "{{\n  \"mcpServers\": {{\n    \"one\": {{\n      \"command\": \"{program}\",\n      \"args\": [\"demo-server\"]\n    }},\n    \"two\": {{}}\n  }}\n}}\n"
    );
    home.write(".codeium/windsurf/mcp_config.json", &windsurf);
    home.write(".cursor/mcp.json", &windsurf);
    let all = ["connect", "windsurf", "cursor", "--move", "--config", config];
    let planned = home.run(&[&all[..], &["--dry-run"]].concat()).await;
    assert!(planned.stderr.contains("`one` would be turned off"), "{planned:?}");
    assert_eq!(home.read(".codeium/windsurf/mcp_config.json"), windsurf);
    let ran = home.run(&all).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("`one` is out of the file, because the gateway has it"), "{ran:?}");
    let now: Value = serde_json::from_str(&home.read(".codeium/windsurf/mcp_config.json")).unwrap();
    assert_eq!(now["mcpServers"]["one"]["disabled"], true, "{now}");
    assert_eq!(now["mcpServers"]["two"], json!({}));
    let ran = home.run(&["disconnect", "windsurf", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "restored", "{ran:?}");
    assert_eq!(home.read(".codeium/windsurf/mcp_config.json"), windsurf);

    assert_eq!(home.run(&all).await.code, Some(0));
    let changed =
        home.read(".codeium/windsurf/mcp_config.json").replace("\"two\": {}", "\"two\": {\"a\": 1}");
    home.write(".codeium/windsurf/mcp_config.json", &changed);
    let ran = home.run(&["disconnect", "windsurf", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "removed", "{ran:?}");
    assert_eq!(
        home.read(".codeium/windsurf/mcp_config.json"),
        windsurf.replace("\"two\": {}", "\"two\": {\"a\": 1}")
    );
}

/// JOIN-2: servers that were turned off are on again after `disconnect`, whatever was changed and connected meanwhile.
#[tokio::test]
async fn servers_that_were_moved_come_back() {
    let home = Home::new();
    let config = home.place.config(&["one"], "");
    let config = config.to_str().unwrap();
    let program = program().display();
    let zed = format!(
        "{{\n  \"theme\": \"One\",\n  \"context_servers\": {{\n    \"one\": {{\n      \"command\": \"{program}\",\n      \"args\": [\"demo-server\"]\n    }}\n  }}\n}}\n"
    );
    let file = ".config/zed/settings.json";
    home.write(file, &zed);
    let all = ["connect", "zed", "--move", "--config", config];
    assert_eq!(home.run(&all).await.code, Some(0));
    home.write(file, &home.read(file).replace("One", "Two"));
    let ran = home.run(&[&all[..], &["--http=http://127.0.0.1:9/mcp", "--json"]].concat()).await;
    assert_eq!(Home::first(&ran)["state"], "updated", "{ran:?}");
    assert!(home.read(file).contains("\"enabled\": false"), "{}", home.read(file));
    let ran = home.run(&["disconnect", "zed", "--json"]).await;
    assert_eq!(Home::first(&ran)["state"], "removed", "{ran:?}");
    assert_eq!(home.read(file), zed.replace("One", "Two"));

    // What the entry brought with it goes with it, too.
    home.write(file, "{}\n");
    assert_eq!(home.run(&["connect", "zed"]).await.code, Some(0));
    home.write(file, &home.read(file).replacen('{', "{\n  \"theme\": 1,", 1));
    assert_eq!(home.run(&["connect", "zed", "--config", config]).await.code, Some(0));
    assert_eq!(home.run(&["disconnect", "zed"]).await.code, Some(0));
    assert!(!home.read(file).contains("context_servers"), "{}", home.read(file));

    // Somebody took the entry out, and it is connected anew, by an edit or by the client's command.
    let script = r#"case "$2" in add) printf '\n[mcp_servers.bridgehead]\ncommand = "%s"\n' "$5" >> "$HOME/.codex/config.toml" ;; esac"#;
    for by_command in [false, true] {
        if by_command {
            home.command("codex", script);
        }
        let before = format!("[mcp_servers.one]\ncommand = \"{program}\"\nargs = [\"demo-server\"]\n");
        home.write(".codex/config.toml", &before);
        assert_eq!(home.run(&["connect", "codex", "--move", "--config", config]).await.code, Some(0));
        let off = format!("{before}enabled = false\n");
        assert!(home.read(".codex/config.toml").starts_with(&off), "{}", home.read(".codex/config.toml"));
        home.write(".codex/config.toml", &off);
        let ran = home.run(&["connect", "codex", "--config", config, "--json"]).await;
        let how = if by_command { "command" } else { "edit" };
        assert_eq!(Home::first(&ran)["how"], how, "{ran:?}");
        assert_eq!(home.run(&["disconnect", "codex"]).await.code, Some(0));
        assert_eq!(home.read(".codex/config.toml").trim_end(), before.trim_end());
    }
}

/// JOIN-2: a file of an administrator wins; it is named and not changed.
#[tokio::test]
async fn managed_files_are_named() {
    let home = Home::new();
    let managed = home.write("system.json", "{}");
    let variables = [("GEMINI_CLI_SYSTEM_SETTINGS_PATH", managed.to_str().unwrap())];
    let ran = home.run_with(&["connect", "gemini"], &variables).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("system.json` was put there by an administrator and wins"), "{ran:?}");
    assert_eq!(home.read("system.json"), "{}");
}
