//! `add`, `remove`, `enable`, `disable` and `init`, as a person uses them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bridgehead_testkit::client::StdioClient;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, Ran, lives, program, signal, until};

const TOKEN: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

/// The user's own file.
fn own(place: &Place) -> PathBuf {
    place.path().join("bridgehead/bridgehead.toml")
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn demo() -> [&'static str; 3] {
    ["--", program().to_str().unwrap(), "demo-server"]
}

async fn stop(mut gateway: StdioClient) {
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}

#[track_caller]
fn said(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    for part in parts {
        assert!(ran.stderr.contains(part) || ran.stdout.contains(part), "`{part}` is missing: {ran:?}");
    }
}

/// JOIN-3: `add` writes the user's own file, keeps the secret in a file for the user alone, starts the server once and says what
/// it offers; the commands that follow use it.
#[tokio::test]
async fn a_server_is_added_and_used() {
    let place = Place::new();
    let secret = format!("GITHUB_TOKEN={TOKEN}");
    let arguments = [&["add", "--json", "demo", "--env", &secret, "-e", "LEVEL=debug"][..], &demo()].concat();
    let ran = place.run(&arguments).await;
    said(&ran, 0, &[]);
    let told = ran.json();
    assert_eq!(
        (&told["ok"], &told["server"]["state"], &told["server"]["tools"]),
        (&json!(true), &json!("ready"), &json!(4))
    );
    assert_eq!((&told["gateway"], &told["file"]), (&Value::Null, &json!(own(&place))));
    let env = own(&place).with_file_name("bridgehead.env");
    assert_eq!(
        (&told["secrets"]["file"], &told["secrets"]["variables"]),
        (&json!(env), &json!(["DEMO_GITHUB_TOKEN"]))
    );
    let written = text(&own(&place));
    assert!(
        written.contains("GITHUB_TOKEN = \"${DEMO_GITHUB_TOKEN}\"") && !written.contains(TOKEN),
        "{written}"
    );
    assert!(text(&env).contains(TOKEN) && !ran.stderr.contains(TOKEN), "{ran:?}");
    assert_eq!((mode(&own(&place)), mode(&env)), (0o600, 0o600));
    let listed = place.run(&["tools"]).await;
    said(&listed, 0, &["echo"]);

    let plain = [&["add", "second"][..], &demo()].concat();
    let ran = place.run(&plain).await;
    said(&ran, 0, &["added second to", ": ready, 4 tools", "starting it once"]);
}

/// JOIN-3: a server that does not start stays in the file, and `add` says why; with `--no-check` and `--disabled` nothing starts.
#[tokio::test]
async fn a_server_that_does_not_start() {
    let place = Place::new();
    let ran = place.run(&["add", "gone", "--", "no-such-program", "-x"]).await;
    said(
        &ran,
        1,
        &[
            "there is no program `no-such-program`",
            "it does not start: program `no-such-program` was not found",
        ],
    );
    // What happened is told once, and no line sends its reader to a gateway that does not run.
    let ran = place.run(&["add", "ends", "--", "/bin/sh", "-c", "echo boom >&2; exit 3"]).await;
    said(&ran, 1, &["boom", "run the command of `ends` by hand"]);
    assert!(!ran.stderr.contains("restart scheduled") && !ran.stdout.contains("bridgehead logs"), "{ran:?}");
    let ran = place.run(&["check"]).await;
    said(&ran, 1, &["failed: ends: ", "next: ends: run the command"]);
    assert!(!ran.stderr.contains("restart scheduled"), "{ran:?}");
    let ran = place.run(&["check", "--log-level", "warn"]).await;
    assert!(ran.stderr.contains("restart scheduled"), "whoever asks for the log gets it: {ran:?}");
    let ran = place.run(&["add", "gone2", "--json", "--", "no-such-program"]).await;
    said(&ran, 1, &[]);
    assert_eq!((&ran.json()["ok"], &ran.json()["added"]), (&json!(false), &json!("gone2")));
    let touched = place.path().join("ran");
    for option in ["--no-check", "--disabled"] {
        let ran = place.run(&["add", option, &option[2..], "--", "touch", touched.to_str().unwrap()]).await;
        said(&ran, 0, &["added"]);
    }
    assert!(!touched.exists());
    let written = text(&own(&place));
    assert!(written.contains("[servers.gone]") && written.contains("[servers.disabled]"), "{written}");
    assert!(written.contains("disabled = true"), "{written}");
}

/// JOIN-3: a program whose argument is a file of the current folder works from every folder.
#[tokio::test]
async fn a_program_with_a_file_of_this_folder() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("project")).unwrap();
    let folder = place.path().join("project").canonicalize().unwrap();
    std::fs::write(folder.join("srv.sh"), format!("exec '{}' demo-server\n", program().display())).unwrap();
    let note = format!(
        "note: an argument names a file of this folder, so the program runs in `{}`",
        folder.display()
    );
    let ran = place.run_in(&folder, &["add", "own", "--", "sh", "srv.sh"], &[]).await;
    said(&ran, 0, &[&note, "ready, 4 tools"]);
    said(&place.run_in(place.path(), &["check"], &[]).await, 0, &["own  ok"]);
    let plain = place.run_in(&folder, &["add", "--no-check", "other", "--", "sh", "gone.sh"], &[]).await;
    assert!(plain.code == Some(0) && !plain.stderr.contains("note: an argument"), "{plain:?}");
    let named = ["add", "--no-check", "third", "--cwd", ".", "--", "sh", "srv.sh"];
    let named = place.run_in(&folder, &named, &[]).await;
    assert!(named.code == Some(0) && !named.stderr.contains("note: an argument"), "{named:?}");
}

/// JOIN-3: what is wrong is named with its cure, and nothing is written.
#[tokio::test]
async fn wrong_command_lines() {
    let place = Place::new();
    #[rustfmt::skip]
    let cases: &[(&[&str], &[&str])] = &[
        (&["add", "my server", "--", "x"], &["did you mean `my_server`?"]),
        (&["add", "x"], &["bridgehead add x -- command arguments"]),
        (&["add", "x", "npx -y foo"], &["the command holds arguments", "bridgehead add x -- npx"]),
        (&["add", "-t", "http", "x", "example.com/mcp"], &["did you mean `https://example.com/mcp`?"]),
        (&["add", "x", "https://h/mcp", "-e", "A=1"], &["--header"]),
        (&["add", "x", "--env", "TOKEN", "--", "y"], &["NAME=VALUE"]),
        (&["add", "x", "--header", "nothing", "https://h"], &["NAME: VALUE"]),
        (&["add", "x", "--type", "carrier-pigeon", "https://h"], &["stdio, http, sse, ws"]),
        (&["add", "--config", "client.json", "x", "--", "y"], &["the file of an MCP client", "name a `bridgehead.toml` instead"]),
        (&["add", "--config", "a.toml", "--scope", "user", "x", "--", "y"], &["cannot be used with"]),
        (&["remove", "x"], &["there is no server `x`", "it has no servers"]),
        (&["disable", "x"], &["there is no server `x`"]),
    ];
    for (arguments, parts) in cases {
        said(&place.run_in(place.path(), arguments, &[]).await, 2, parts);
    }
    let named = [("BRIDGEHEAD_CONFIG", ".mcp.json")];
    let ran = place.run_in(place.path(), &["add", "x", "--", "y"], &named).await;
    said(&ran, 2, &["let BRIDGEHEAD_CONFIG name a `bridgehead.toml`, or unset it"]);
    assert!(!ran.stderr.contains("--config"), "{ran:?}");
    let ran = place.run(&["add", "x", "--json"]).await;
    assert_eq!((ran.code, &ran.json()["ok"]), (Some(2), &json!(false)));
    assert!(!own(&place).exists());
    let ran = place.run_with(&["add", "x", "--", "y"], &[("XDG_CONFIG_HOME", ""), ("HOME", "")], "").await;
    said(&ran, 78, &["there is no configuration folder"]);
    for verb in [
        &["add", "x", "--json", "--", "y"][..],
        &["remove", "x", "--json"],
        &["init", "--json"],
        &["enable", "x", "--json"],
    ] {
        let ran = place.run_with(verb, &[("XDG_CONFIG_HOME", ""), ("HOME", "")], "").await;
        assert_eq!((ran.code, &ran.json()["ok"]), (Some(78), &json!(false)), "{ran:?}");
    }

    let added = |name: &'static str| ["add", "--no-check", name, "--", "true"];
    said(&place.run(&added("files")).await, 0, &[]);
    said(&place.run(&added("files")).await, 2, &["there is a server `files`", "bridgehead remove files"]);
    said(&place.run(&["enable", "flies"]).await, 2, &["did you mean `files`?"]);
    said(&place.run(&["enable", "other"]).await, 2, &["its servers are `files`"]);
    let folder = place.path().join("project");
    std::fs::create_dir(&folder).unwrap();
    let project = ["add", "--no-check", "--scope", "project", "db", "--", "true"];
    said(&place.run_in(&folder, &project, &[]).await, 0, &["project/bridgehead.toml"]);
    said(&place.run_in(&folder, &["remove", "db"], &[]).await, 2, &["--scope project"]);
    let ran = place.run_in(&folder, &added("more"), &[]).await;
    said(&ran, 0, &["note: in this folder, bridgehead uses ./bridgehead.toml"]);
    said(&place.run_in(&folder, &["remove", "db", "-s", "project"], &[]).await, 0, &["removed db"]);
    assert_eq!(text(&folder.join("bridgehead.toml")), "");
}

/// JOIN-3: a remote server with its transport and headers, whose secret is not in the configuration.
#[tokio::test]
async fn a_remote_server() {
    let place = Place::new();
    let ran = place
        .run(&[
            "add",
            "--no-check",
            "--transport",
            "sse",
            "far",
            "https://h/sse",
            "-H",
            "Authorization: Bearer hunter2",
        ])
        .await;
    said(&ran, 0, &["`headers.Authorization` looks like a secret"]);
    let written = text(&own(&place));
    assert!(written.contains("type = \"sse\"\nurl = \"https://h/sse\""), "{written}");
    assert!(
        written.contains("Authorization = \"${FAR_AUTHORIZATION}\"") && !written.contains("hunter2"),
        "{written}"
    );
    let ran = place.run(&["add", "--no-check", "near", "--url", "https://h/mcp"]).await;
    said(&ran, 0, &[]);
    let ran = place.run(&["add", "--no-check", "odd", "--", "true", "--token=hunter2"]).await;
    said(&ran, 0, &["`args` looks like a secret and stays", "every user of this machine"]);
    let ran = place.run(&["remove", "far", "--json"]).await;
    said(&ran, 0, &["note: removed its secrets from `", ": FAR_AUTHORIZATION"]);
    let told = &ran.json()["secrets"];
    let file = own(&place).with_file_name("bridgehead.env");
    assert_eq!((&told["file"], &told["variables"]), (&json!(file), &json!(["FAR_AUTHORIZATION"])), "{ran:?}");
    let env = text(&own(&place).with_file_name("bridgehead.env"));
    assert!(!env.contains("hunter2"), "the secret goes with its server: {env}");
}

/// JOIN-3: tabs, a byte order mark, CRLF and comments stay; a file with a duplicate key is named and left alone.
#[tokio::test]
async fn files_as_people_write_them() {
    let place = Place::new();
    let before = "\u{feff}# mine\r\n[servers.a]\r\n\tcommand = 'true'\t# c\r\n";
    let file = place.file("mine.toml", before);
    let config = ["--config", file.to_str().unwrap(), "--no-check"];
    said(&place.run(&[&["add", "b"][..], &config, &["--", "true"]].concat()).await, 0, &[]);
    let added = "\r\n[servers.b]\r\ncommand = \"true\"\r\n";
    assert_eq!(text(&file), format!("{before}{added}"));
    said(&place.run(&[&["disable", "a"][..], &config].concat()).await, 0, &["disabled a"]);
    said(&place.run(&[&["disable", "a"][..], &config].concat()).await, 0, &["disabled already"]);
    said(&place.run(&[&["enable", "a"][..], &config].concat()).await, 0, &["enabled a"]);
    said(&place.run(&[&["remove", "b"][..], &config].concat()).await, 0, &["removed b"]);
    assert_eq!(text(&file), before);

    for broken in ["[servers.a]\ncommand = 'x'\ncommand = 'y'\n", "[servers.a\n", "nonsense = true\n"] {
        std::fs::write(&file, broken).unwrap();
        let ran = place.run(&[&["add", "b"][..], &config, &["--", "true"]].concat()).await;
        said(&ran, 78, &["mine.toml", "so it is not edited"]);
        assert_eq!(text(&file), broken);
    }
}

/// JOIN-3: a disk that is full during an edit leaves the old file whole, and nothing else.
#[tokio::test]
async fn a_full_disk() {
    let place = Place::new();
    let folder = place.path().join("full");
    std::fs::create_dir(&folder).unwrap();
    let before = format!("# {}\n[servers.a]\ncommand = 'true'\n", "x".repeat(4000));
    let file = folder.join("b.toml");
    std::fs::write(&file, &before).unwrap();
    // No file can grow beyond four blocks; the signal that comes with it is ignored, so writing fails as on a full disk.
    let shell = ["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\"", program().to_str().unwrap()];
    let add =
        ["add", "--no-check", "b", "--config", file.to_str().unwrap(), "-e", "TOKEN=hunter2", "--", "true"];
    let ran = Ran::of(place.start_program(Path::new("/bin/sh"), &[&shell[..], &add].concat(), &[])).await;
    said(&ran, 1, &["b.toml` cannot be written, and stays as it was"]);
    assert_eq!(text(&file), before);
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["b.toml"], "neither a draft nor a secret is left");
}

/// JOIN-3: of several `add` at once, none is lost.
#[tokio::test]
async fn several_at_once() {
    let place = Place::new();
    let names: Vec<String> = (0..6).map(|number| format!("server{number}")).collect();
    let all: Vec<StdioClient> = names
        .iter()
        .map(|name| {
            let secret = format!("TOKEN=secret-of-{name}");
            place.start(&["add", "--no-check", name, "--env", &secret, "--", "true"], &[])
        })
        .collect();
    for child in all {
        said(&Ran::of(child).await, 0, &[]);
    }
    let (written, env) = (text(&own(&place)), text(&own(&place).with_file_name("bridgehead.env")));
    for name in &names {
        assert!(written.contains(&format!("[servers.{name}]")), "{name}: {written}");
        assert!(env.contains(&format!("secret-of-{name}")), "{name}: {env}");
    }
    said(&place.run(&["check"]).await, 1, &[]);
}

/// JOIN-3: a running gateway takes each change over at once, and the command waits for it and says what came up.
#[tokio::test]
async fn while_a_gateway_runs() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("bridgehead")).unwrap();
    std::fs::rename(place.config(&["one"], ""), own(&place)).unwrap();
    let (gateway, _) = place.serve_http(&[], &[]).await;
    place.is_found().await;
    let ran = place.run(&[&["add", "--json", "two", "-e", "API_KEY=hunter2"][..], &demo()].concat()).await;
    said(&ran, 0, &[]);
    let told = ran.json();
    assert_eq!(told["gateway"]["pid"], json!(gateway.pid().unwrap()));
    assert_eq!((&told["server"]["state"], &told["server"]["tools"]), (&json!("ready"), &json!(4)));
    let servers = async || {
        let status = place.run(&["status", "--json"]).await.json();
        let all = status["gateways"][0]["upstreams"].as_array().unwrap().clone();
        all.iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(servers().await, ["one", "two"]);
    // The command finds the gateway by what is in effect, the file of variables included.
    let listed = place.run(&["tools", "--log-level", "debug"]).await;
    said(&listed, 0, &["using the running gateway", "two__echo"]);
    said(&place.run(&["disable", "two"]).await, 0, &["disabled two"]);
    assert_eq!(servers().await, ["one"]);
    said(&place.run(&["enable", "two"]).await, 0, &["ready, 4 tools", "takes it over"]);
    assert_eq!(servers().await, ["one", "two"]);
    let ran = place.run(&["add", "bad", "--", "false"]).await;
    said(&ran, 1, &["it does not start"]);
    said(&place.run(&["remove", "bad"]).await, 0, &["removed bad"]);
    said(&place.run(&["remove", "two"]).await, 0, &["removed two"]);
    assert_eq!(servers().await, ["one"]);

    // A new value in the file of variables is taken over, too.
    said(&place.run(&[&["add", "two", "-e", "API_KEY=hunter2"][..], &demo()].concat()).await, 0, &[]);
    let env = own(&place).with_file_name("bridgehead.env");
    let pid = async || {
        let status = place.run(&["status", "--json"]).await.json();
        status["gateways"][0]["upstreams"][1]["pid"].clone()
    };
    let before = pid().await;
    std::fs::write(&env, text(&env).replace("hunter2", "hunter3")).unwrap();
    for _ in 0..400 {
        let now = pid().await;
        if now != before && now.is_u64() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_ne!(pid().await, before, "the server got its new secret");
    stop(gateway).await;
}

/// JOIN-3: a gateway that runs the demo takes over the first file that the user makes, with its rules, and every later change.
#[tokio::test]
async fn the_demo_gives_way_to_the_first_server() {
    let place = Place::new();
    let (gateway, _) = place.serve_http(&[], &[]).await;
    place.is_found().await;
    // Without a file, a reload changes nothing and says why.
    signal(&gateway, Signal::HUP);
    let reload = async || place.run(&["status", "--json"]).await.json()["gateways"][0]["reload"].clone();
    bridgehead_testkit::soon("a reload without a file", async {}).await;
    while !reload().await["message"].as_str().is_some_and(|message| message.contains("`bridgehead add`")) {}
    let ran = place.run(&[&["add", "--json", "one", "-e", "API_KEY=hunter2"][..], &demo()].concat()).await;
    said(&ran, 0, &[]);
    assert_eq!(ran.json()["gateway"]["pid"], json!(gateway.pid().unwrap()));
    let servers = async || {
        let status = place.run(&["status", "--json"]).await.json();
        let all = status["gateways"][0]["upstreams"].as_array().unwrap().clone();
        all.iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(servers().await, ["one"]);
    said(&place.run(&["status"]).await, 0, &[&format!("configuration {}", own(&place).display())]);
    said(&place.run(&[&["add", "two"][..], &demo()].concat()).await, 0, &["takes it over", "ready, 4 tools"]);
    assert_eq!(servers().await, ["one", "two"]);
    let listed = place.run(&["tools", "--log-level", "debug"]).await;
    said(&listed, 0, &["using the running gateway", "two__echo"]);
    // Its rules are in effect, too.
    let rule = "\n[[policy]]\nwho = [\"local\"]\ntools = [\"one/*\"]\n";
    std::fs::write(own(&place), text(&own(&place)) + rule).unwrap();
    bridgehead_testkit::soon("a reload of the rules", async {}).await;
    while !reload().await["message"].as_str().is_some_and(|message| message.contains("no server changed")) {}
    let listed = place.run(&["tools"]).await;
    assert!(listed.stdout.contains("one__echo") && !listed.stdout.contains("two__echo"), "{listed:?}");
    stop(gateway).await;
}

/// JOIN-3: a gateway does not serve itself: a server with its own address fails, at the start and later, and says so.
#[tokio::test]
async fn a_server_that_is_the_gateway() {
    let place = Place::new();
    let (gateway, address) = place.serve_http(&[], &[]).await;
    place.is_found().await;
    let url = format!("http://{address}/mcp");
    let words = ["leads back to this gateway", "bridgehead remove self"];
    said(&place.run(&["add", "self", &url]).await, 1, &words);
    stop(gateway).await;
    let listen = address.to_string();
    let gateway = place.start(&["serve", "--listen", &listen], &[]);
    until(|| gateway.stderr().contains(words[0]).then_some(())).await;
    stop(gateway).await;
}

/// JOIN-3: Ctrl-C while a server starts ends the command and the server; the entry stays.
#[tokio::test]
async fn an_interrupted_wait() {
    let place = Place::new();
    let pid = place.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600", pid.display());
    let mut child = place.start(&["add", "slow", "--", "/bin/sh", "-c", &script], &[]);
    let server: u32 = until(|| std::fs::read_to_string(&pid).ok()?.trim().parse().ok()).await;
    assert!(lives(server));
    signal(&child, Signal::INT);
    assert_eq!(child.wait().await.code(), Some(130), "{}", child.stderr());
    assert!(child.stderr().contains("the change stays written"), "{}", child.stderr());
    assert!(text(&own(&place)).contains("[servers.slow]"));
    until(|| (!lives(server)).then_some(())).await;
}

/// JOIN-3: a server that is not ready in time is stopped again, and the message does not send its reader to a gateway that does
/// not run.
#[tokio::test]
async fn a_server_that_is_too_slow() {
    let place = Place::new();
    let ran = place.run(&["add", "slow", "--timeout", "1", "--", "/bin/sh", "-c", "exec sleep 600"]).await;
    said(
        &ran,
        1,
        &["it was not ready within 1 s, and was stopped again", "next: give it longer with --timeout"],
    );
    assert!(!ran.stdout.contains("bridgehead status"), "{ran:?}");
}

/// JOIN-3: `init` writes a file that the gateway accepts, and never overwrites one.
#[tokio::test]
async fn a_file_to_begin_with() {
    let place = Place::new();
    let ran = place.run(&["init", "--json"]).await;
    said(&ran, 0, &[]);
    assert_eq!(ran.json(), json!({"ok": true, "file": own(&place)}));
    let written = text(&own(&place));
    said(&place.run(&["check"]).await, 0, &["no server is configured"]);
    said(&place.run(&["init"]).await, 1, &["exists already and stays as it is"]);
    assert_eq!(text(&own(&place)), written);
    said(&place.run(&[&["add", "demo"][..], &demo()].concat()).await, 0, &["ready, 4 tools"]);
    assert!(text(&own(&place)).starts_with(&written), "the comments stay");
    let folder = place.path().join("project");
    std::fs::create_dir(&folder).unwrap();
    let ran = place.run_in(&folder, &["init", "--scope", "project"], &[]).await;
    said(&ran, 0, &["wrote", "bridgehead add NAME"]);
}
