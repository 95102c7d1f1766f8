//! Servers that were imported do not run twice: `import` offers to connect, `connect --move` turns the originals off, and
//! `disconnect` turns them on again.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Place, Ran, program};

/// A home with two clients that have servers.
struct Home {
    place: Place,
}

const CURSOR: &str = ".cursor/mcp.json";
const CODEX: &str = ".codex/config.toml";

impl Home {
    fn new() -> Self {
        let home = Self { place: Place::new() };
        let demo = program().display();
        home.write(
            CURSOR,
            &format!(
                "{{\n  \"mcpServers\": {{\n    // by hand\n    \"my adder\": {{\n      \"command\": \"{demo}\", // mine\n      \
                 \"args\": [\"demo-server\"],\n      \"env\": {{\"API_TOKEN\": \"ghp_0123456789abcdefghijABCDEFGHIJ012345\"}}\n    \
                 }},\n    \"notes\": {{\"command\": \"{demo}\", \"args\": [\"demo-server\", \"--notes\"]}}\n  }}\n}}\n"
            ),
        );
        home.write(CODEX, &format!("[mcp_servers.other]\ncommand = \"{demo}\"\nargs = [\"demo-server\"]\n"));
        home
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.place.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.place.path().join(path)).unwrap()
    }

    async fn run(&self, words: &[&str]) -> Ran {
        let home = self.place.path().to_str().unwrap();
        self.place.run_with(words, &[("HOME", home), ("PATH", "/usr/bin:/bin")], "").await
    }

    fn servers(&self) -> Value {
        let text = self.read(CURSOR);
        let strict: Vec<&str> = text.lines().map(|line| line.split(" //").next().unwrap()).collect();
        let all: Value = serde_json::from_str(&strict.join("\n")).unwrap();
        all["mcpServers"].clone()
    }
}

/// JOIN-2, JOIN-1: after an import, `import` names the command that ends the doubling and `connect` says what runs twice; `connect
/// --move` leaves no server at two places, in whichever way the client can, also one whose name had to change; and `disconnect`
/// gives all back, byte for byte.
#[tokio::test]
async fn imported_servers_do_not_run_twice() {
    let home = Home::new();
    let before = [home.read(CURSOR), home.read(CODEX)];
    let imported = home.run(&["import"]).await;
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let next = "next: `bridgehead connect cursor codex --move`";
    assert!(imported.stderr.contains(next), "{imported:?}");
    assert_eq!([home.read(CURSOR), home.read(CODEX)], before, "an import changes no client's file");

    let twice = home.run(&["connect", "cursor"]).await;
    assert!(twice.stderr.contains("`my adder`, `notes` would run twice"), "{twice:?}");
    assert!(home.servers()["my adder"].is_object());
    let moved = home.run(&["connect", "cursor", "codex", "--move", "--json"]).await;
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let told = moved.json();
    assert_eq!(told["clients"][0]["moved"], json!(["my adder", "notes"]), "{told}");
    assert_eq!(told["clients"][1]["moved"], json!(["other"]), "{told}");
    let servers = home.servers();
    assert_eq!(servers.as_object().unwrap().keys().collect::<Vec<_>>(), ["bridgehead"], "{servers}");
    assert!(home.read(CODEX).contains("enabled = false"), "{}", home.read(CODEX));
    let again = home.run(&["import"]).await;
    assert!(!again.stderr.contains("next: `bridgehead connect"), "nothing runs twice: {again:?}");

    let back = home.run(&["disconnect", "--all"]).await;
    assert_eq!(back.code, Some(0), "{back:?}");
    assert_eq!([home.read(CURSOR), home.read(CODEX)], before);
}

/// JOIN-2: servers that were taken out come back although the file was changed meanwhile, and as they were written; one that
/// somebody has added anew stays as it is. A second connection in between forgets none of them.
#[tokio::test]
async fn servers_that_were_taken_out_come_back() {
    let home = Home::new();
    let before = home.servers();
    assert_eq!(home.run(&["import", "--from", "cursor"]).await.code, Some(0));
    assert_eq!(home.run(&["connect", "cursor", "--move"]).await.code, Some(0));
    home.write(
        CURSOR,
        &home.read(CURSOR).replacen(
            "\"bridgehead\"",
            "\"notes\": {\"command\": \"new\"},\n    \"bridgehead\"",
            1,
        ),
    );
    let again = home.run(&["connect", "cursor", "--move", "--http=http://127.0.0.1:9/mcp"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(home.servers()["notes"], json!({"command": "new"}), "the gateway has another one: {again:?}");
    let back = home.run(&["disconnect", "cursor"]).await;
    assert_eq!(back.code, Some(0), "{back:?}");
    let now = home.servers();
    assert_eq!(now["my adder"], before["my adder"], "{now}");
    assert_eq!((&now["notes"], &now["bridgehead"]), (&json!({"command": "new"}), &Value::Null), "{now}");
    assert!(home.read(CURSOR).contains("// mine"), "{}", home.read(CURSOR));
}

/// JOIN-2: what was turned off comes back even if somebody has taken the gateway's entry out by hand; and a server that its client
/// signs in to is not turned off, because the gateway does not.
#[tokio::test]
async fn what_was_moved_comes_back_without_our_entry() {
    let home = Home::new();
    let text = home.read(CURSOR).replacen(
        "    \"notes\"",
        "    \"signed\": {\"url\": \"https://mcp.example.com/\", \"auth\": {\"CLIENT_ID\": \"x\"}},\n    \"notes\"",
        1,
    );
    home.write(CURSOR, &text);
    let codex = home.read(CODEX);
    assert_eq!(home.run(&["import", "--yes"]).await.code, Some(0));
    assert_eq!(home.run(&["connect", "cursor", "codex", "--move"]).await.code, Some(0));
    let servers = home.servers();
    assert_eq!(
        servers.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["bridgehead", "signed"],
        "{servers}"
    );
    home.write(CURSOR, "{\"mcpServers\": {}}\n");
    home.write(CODEX, &format!("{codex}enabled = false\n"));
    let back = home.run(&["disconnect", "--all"]).await;
    assert_eq!(back.code, Some(0), "{back:?}");
    assert!(home.servers()["my adder"].is_object() && home.servers()["notes"].is_object(), "{back:?}");
    assert_eq!(home.read(CODEX), codex);
}

/// JOIN-2: only what the gateway really has is turned off: not a server of the same name that starts something else, not one that is
/// off at the gateway, and nothing if it could not be remembered.
#[tokio::test]
async fn only_what_the_gateway_has_is_moved() {
    let home = Home::new();
    let demo = program().display();
    let config = home.place.file(
        "c.toml",
        &format!(
            "[servers.my_adder]\ncommand = \"{demo}\"\nargs = [\"demo-server\", \"other\"]\n[servers.notes]\ncommand = \"{demo}\"\n\
             args = [\"demo-server\", \"--notes\"]\ndisabled = true\n[servers.other]\ncommand = \"{demo}\"\nargs = [\"demo-server\"]\n"
        ),
    );
    let config = config.to_str().unwrap();
    let before = home.servers();
    let moved = home.run(&["connect", "cursor", "--move", "--config", config, "--json"]).await;
    assert_eq!((moved.code, &moved.json()["clients"][0]["moved"]), (Some(0), &json!([])), "{moved:?}");
    assert_eq!(
        (&home.servers()["my adder"], &home.servers()["notes"]),
        (&before["my adder"], &before["notes"])
    );

    // The configuration of the gateway may be a client's file, too.
    let home = Home::new();
    let team =
        home.place.file("team.json", &home.read(CURSOR).replace("// by hand", "").replace(", // mine", ","));
    home.write("state/bridgehead/connected.json/x", "the records cannot be written");
    let words = ["connect", "cursor", "--move", "--config", team.to_str().unwrap()];
    let refused = home.run(&words).await;
    assert!(refused.stderr.contains("its servers stay on: nothing would remember"), "{refused:?}");
    assert_eq!(home.servers()["notes"]["args"], json!(["demo-server", "--notes"]), "{refused:?}");
    fs::remove_dir_all(home.place.path().join("state/bridgehead/connected.json")).unwrap();
    let moved = home.run(&words).await;
    assert!(moved.stderr.contains("`my adder`, `notes` are out of the file"), "{moved:?}");
}
