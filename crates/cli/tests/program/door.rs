//! Access to the endpoint, and configurations that nobody agreed to.

use std::path::{Path, PathBuf};

use bridgehead_testkit::client::StdioClient;
use bridgehead_testkit::not_shown;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Place, Ran, program, signal, until};

/// A confined server with network access.
fn walled() -> String {
    format!(
        "[servers.walled]\ncommand = {:?}\nargs = [\"demo-server\"]\nfiles = {{ read = [\"/usr\"] }}\non_missing = \"degrade\"\n",
        program().display().to_string()
    )
}

async fn stop(mut gateway: StdioClient) {
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}

/// The status of the one running gateway, once `wanted` holds.
async fn reload(place: &Place, wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..400 {
        let told = place.run(&["status", "--json"]).await;
        if let Ok(status) = serde_json::from_str::<Value>(&told.stdout) {
            let gateway = status["gateways"][0].clone();
            if wanted(&gateway) {
                return gateway;
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the gateway never reached the expected status");
}

#[track_caller]
fn refused(ran: &Ran, parts: &[&str]) {
    assert_eq!(ran.code, Some(78), "{ran:?}");
    for part in parts {
        assert!(ran.stderr.contains(part), "`{part}` is not in: {}", ran.stderr);
    }
}

/// WALL-5: a gateway does not open an endpoint that a confined server with network access could call.
#[tokio::test]
async fn a_confined_server_with_network_needs_a_token_at_the_endpoint() {
    let place = Place::new();
    let file = place.file("bridgehead.toml", &walled());
    let config = ["--config", file.to_str().unwrap()];
    let ran = place.run(&["serve", "--listen", "127.0.0.1:0", config[0], config[1]]).await;
    refused(&ran, &["`walled`", "http.token_file", "network = \"none\"", "--stdio"]);

    let told = place.run(&["check", "--json", config[0], config[1]]).await.json();
    let said = told["diagnostics"][0]["message"].as_str().unwrap();
    assert!(said.contains("`serve` over HTTP refuses this") && said.contains("`walled`"), "{told:#}");

    let ran = place.run(&["serve", "--stdio", "--standalone", config[0], config[1]]).await;
    assert_eq!(ran.code, Some(0), "without HTTP there is nothing to call: {ran:?}");

    let (gateway, _) = place.serve_http(&config, &[("BRIDGEHEAD_HTTP_TOKEN", "s3cret")]).await;
    stop(gateway).await;

    place.file("bridgehead.toml", &format!("{}network = \"none\"\n", walled()));
    let (gateway, _) = place.serve_http(&config, &[]).await;
    stop(gateway).await;
}

/// WALL-5: a reload does not add such a server while the endpoint requires no token.
#[tokio::test]
async fn a_reload_does_not_bring_a_confined_server_to_an_open_endpoint() {
    let place = Place::new();
    let file = place.config(&["one"], "");
    let (gateway, _) = place.serve_http(&["--config", file.to_str().unwrap()], &[]).await;
    place.config(&["one"], &format!("[http]\ntoken_env = \"HOME\"\n{}", walled()));
    let told = reload(&place, |gateway| gateway["reload"]["ok"] == false).await;
    assert!(told["reload"]["message"].as_str().unwrap().contains("`walled`"), "{told}");
    assert_eq!(told["upstreams"].as_array().unwrap().len(), 1, "{told}");
    until(|| gateway.stderr().contains("the old one stays in effect").then_some(())).await;
    stop(gateway).await;
}

/// A client's configuration in its own folder; its one server creates a file when it runs.
fn cloned(place: &Place) -> (PathBuf, PathBuf) {
    let folder = place.path().join("cloned");
    std::fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    let (file, ran) = (folder.join(".mcp.json"), folder.join("ran"));
    let script = format!("touch {}; exec {} demo-server", ran.display(), program().display());
    let text = serde_json::json!({"mcpServers": {"theirs": {"command": "/bin/sh", "args": ["-c", script]}}});
    std::fs::write(&file, text.to_string()).unwrap();
    (file, ran)
}

/// WALL-7: a configuration in the current folder does not run without consent. The user's own configuration is used
/// instead; if there is none, the demo runs. Naming the file counts as consent.
#[tokio::test]
async fn a_configuration_of_the_folder_does_not_run_unasked() {
    let place = Place::new();
    let (file, ran) = cloned(&place);
    let (folder, name) = (file.parent().unwrap(), file.to_str().unwrap());
    for verb in [&["tools"][..], &["check"], &["serve", "--stdio"], &["call", "server_ping"]] {
        let passed = place.run_in(folder, verb, &[]).await;
        assert_eq!(passed.code, Some(0), "{passed:?}");
        for part in
            [&format!("skipping `{name}`"), &format!("run `bridgehead trust {name}`"), "nobody agreed"]
        {
            assert!(passed.stderr.contains(part), "{part}: {passed:?}");
        }
        assert!(!ran.exists(), "nothing of the folder ran");
    }
    std::fs::write(folder.join("bridgehead.toml"), "[servers.x]\ncommand = \"touch\"\nargs = [\"ran\"]\n")
        .unwrap();
    let both = place.run_in(folder, &["tools"], &[]).await;
    for part in [format!("skipping `{name}`"), format!("skipping `{}/bridgehead.toml`", folder.display())] {
        assert!(both.stderr.contains(&part), "{part}: {both:?}");
    }

    std::fs::create_dir_all(place.path().join("bridgehead")).unwrap();
    let own = place.config(&["own"], "");
    let own_file = place.path().join("bridgehead/bridgehead.toml");
    std::fs::rename(own, &own_file).unwrap();
    let listed = place.run_in(folder, &["tools"], &[]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stderr.contains(&format!("skipping `{name}`")), "{}", listed.stderr);
    assert!(listed.stderr.contains(&format!("configuration: {}", own_file.display())), "{}", listed.stderr);
    assert!(!ran.exists(), "nothing of the folder ran");

    let named = place.run_in(folder, &["tools", "--config", ".mcp.json"], &[]).await;
    assert_eq!((named.code, ran.exists()), (Some(0), true), "{named:?}");
    assert!(named.stderr.contains(&format!("configuration: {name}")), "{}", named.stderr);
    std::fs::remove_file(&ran).unwrap();
    let named = place.run_in(folder, &["tools"], &[("BRIDGEHEAD_CONFIG", ".mcp.json")]).await;
    assert_eq!((named.code, ran.exists()), (Some(0), true), "{named:?}");
}

/// Runs `tools` in a folder on its own terminal, and answers its question if it asks one. Returns the terminal output.
pub(crate) async fn on_a_terminal(place: &Place, folder: &Path, answer: &str) -> String {
    let command = format!("cd '{}' && exec '{}' tools", folder.display(), program().display());
    let mut child = place.start_program(Path::new("script"), &["-q", "-e", "-c", &command, "/dev/null"], &[]);
    let mut shown = String::new();
    while let Some(line) = child.recv_line().await {
        shown.push_str(line.trim_end());
        shown.push('\n');
        if line.contains("[y/N]") {
            child.send_bytes(answer.as_bytes()).await;
        }
    }
    child.wait().await;
    shown
}

/// WALL-7: a user at a terminal sees what would run and is asked. The answer holds until the content changes, also for runs
/// without a terminal.
#[tokio::test]
async fn a_person_is_asked_once_for_each_content() {
    let place = Place::new();
    let (file, ran) = cloned(&place);
    let folder = file.parent().unwrap();
    if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join("script").exists())
    {
        not_shown("a_person_is_asked_once_for_each_content", "the program `script`");
        return;
    }
    let shown = on_a_terminal(&place, folder, "n\n").await;
    assert!(shown.contains("theirs: /bin/sh -c \"touch") && shown.contains("[y/N]"), "{shown}");
    assert!(shown.contains("you refused it") && !ran.exists(), "{shown}");
    let again = on_a_terminal(&place, folder, "y\n").await;
    assert!(!again.contains("[y/N]") && !ran.exists(), "the answer was kept: {again}");

    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n")).unwrap();
    let shown = on_a_terminal(&place, folder, "y\n").await;
    assert!(shown.contains("[y/N]") && shown.contains("echo"), "{shown}");
    assert!(ran.exists());
    std::fs::remove_file(&ran).unwrap();
    let alone = place.run_in(folder, &["tools"], &[]).await;
    assert_eq!((alone.code, ran.exists()), (Some(0), true), "{alone:?}");

    // A running gateway does not load content that the user has not agreed to.
    let mut gateway = place.start_in(folder, &["serve", "--listen", "127.0.0.1:0"], &[]);
    until(|| gateway.stderr().contains("/mcp\n").then_some(())).await;
    reload(&place, |gateway| gateway["upstreams"][0]["state"] == "ready").await;
    std::fs::remove_file(&ran).unwrap();
    std::fs::write(&file, text.replace("theirs", "others")).unwrap();
    let told = reload(&place, |gateway| gateway["reload"]["ok"] == false).await;
    assert!(told["reload"]["message"].as_str().unwrap().contains("nobody agreed"), "{told}");
    assert_eq!((&told["upstreams"][0]["name"], ran.exists()), (&Value::from("theirs"), false));
    std::fs::write(&file, format!("{text}\n")).unwrap();
    reload(&place, |gateway| gateway["reload"]["message"] == "no server changed").await;
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
    std::fs::write(&file, format!("{text}\n\n")).unwrap();
    let passed = place.run_in(folder, &["tools"], &[]).await;
    assert!(passed.stderr.contains("nobody agreed") && !ran.exists(), "{passed:?}");
}

/// HOUR-8: removing the configuration file changes nothing, whether the watcher or SIGHUP notices it.
#[tokio::test]
async fn a_removed_configuration_changes_nothing() {
    let place = Place::new();
    let file = place.config(&["one"], "");
    let (gateway, _) = place.serve_http(&["--config", file.to_str().unwrap()], &[]).await;
    let before =
        reload(&place, |gateway| gateway["upstreams"][0]["state"] == "ready").await["upstreams"][0].clone();
    let same = |told: &Value| {
        assert_eq!(told["upstreams"].as_array().unwrap().len(), 1, "{told}");
        let server = &told["upstreams"][0];
        assert_eq!((&server["name"], &server["pid"]), (&before["name"], &before["pid"]), "{told}");
    };
    let kept = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let told = reload(&place, |gateway| gateway["reload"]["ok"] == false).await;
    assert!(told["reload"]["message"].as_str().unwrap().contains("is gone"), "{told}");
    same(&told);
    signal(&gateway, Signal::HUP);
    let time = told["reload"]["time"].clone();
    same(&reload(&place, |gateway| gateway["reload"]["time"] != time).await);
    assert!(
        gateway.stderr().contains("is gone; the running configuration stays in effect"),
        "{}",
        gateway.stderr()
    );
    std::fs::write(&file, kept).unwrap();
    same(&reload(&place, |gateway| gateway["reload"]["message"] == "no server changed").await);
    stop(gateway).await;
}

/// WALL-8: every server gets the configurations of all gateways above it, and a gateway that finds its own among them
/// refuses to start. Gateways with different configurations can nest.
#[tokio::test]
async fn a_gateway_does_not_start_itself() {
    let place = Place::new();
    let seen = place.path().join("seen");
    let script =
        format!("printenv BRIDGEHEAD_PARENTS > {}; exec {} demo-server", seen.display(), program().display());
    let inner = place
        .file("inner.toml", &format!("[servers.deep]\ncommand = \"/bin/sh\"\nargs = [\"-c\", {script:?}]\n"));
    let serve = |file: &Path| {
        let (program, file) = (program().display().to_string(), file.display().to_string());
        format!(
            "[servers.nested]\ncommand = {program:?}\nargs = [\"serve\", \"--stdio\", \"--config\", {file:?}]\n"
        )
    };
    let outer = place.file("outer.toml", &serve(&inner));
    let listed = place.run(&["tools", "--config", outer.to_str().unwrap()]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let parents = std::fs::read_to_string(&seen).unwrap();
    let ids: Vec<&str> = parents.trim().split(',').collect();
    assert!(ids.len() == 2 && ids[0] != ids[1] && ids.iter().all(|id| id.len() == 16), "{parents}");

    let within = [("BRIDGEHEAD_PARENTS", parents.trim())];
    for file in [&outer, &inner] {
        let file = file.to_str().unwrap();
        for verb in [&["serve", "--stdio"][..], &["tools"], &["check"], &["doctor"]] {
            let looped = place.run_with(&[verb, &["--config", file]].concat(), &within, "").await;
            refused(&looped, &[file, "BRIDGEHEAD_PARENTS", "without end"]);
        }
    }
    let other = place.config(&["other"], "");
    let listed = place.run_with(&["tools", "--config", other.to_str().unwrap()], &within, "").await;
    assert_eq!(listed.code, Some(0), "{listed:?}");

    let itself = place.path().join("itself.toml");
    std::fs::write(&itself, serve(&itself)).unwrap();
    let looped =
        place.run(&["check", "--json", "--timeout", "20", "--config", itself.to_str().unwrap()]).await;
    assert_eq!(looped.code, Some(1), "{looped:?}");
    assert_eq!(looped.json()["servers"][0]["ok"], false, "{looped:?}");
}
