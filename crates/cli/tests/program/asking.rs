//! Which gateway `call` and `tools` use: the running one with the same configuration, or else a temporary one with only the
//! servers they need.

use std::path::Path;

use bridgehead_testkit::client::StdioClient;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Place, Ran, signal, until};

/// A server that creates the file `mark` when it starts, and never answers.
fn silent(mark: &Path) -> String {
    let script = format!("touch {}; exec sleep 600", mark.display());
    format!("[servers.silent]\ncommand = \"sh\"\nargs = [\"-c\", {script:?}]\n")
}

/// The gateway that answers `server_health`.
#[track_caller]
fn answered_by(ran: &Ran) -> String {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told: Value = ran.json();
    told["structuredContent"]["data"]["instance"].as_str().unwrap().to_owned()
}

async fn stop(mut gateway: StdioClient) {
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// Runs `status` until it finds a gateway, and returns its id.
async fn instance(place: &Place) -> String {
    bridgehead_testkit::found("a gateway that `status` finds", async || {
        let ran = place.run(&["status", "--json"]).await;
        let id = ran.code.filter(|code| *code == 0).map(|_| ran.json()["gateways"][0]["instance"].clone());
        id.map(|id| id.as_str().unwrap().to_owned())
    })
    .await
}

/// HOUR-3: after `serve` and `call`, `audit list` shows the call, even if the gateway does not serve HTTP. `call` starts no
/// server and does not wait for a server that does not answer.
#[tokio::test]
async fn a_gateway_of_the_same_configuration_is_asked() {
    let place = Place::new();
    let mark = place.path().join("started");
    let config = place.config(&["demo"], &silent(&mark));
    let config = config.to_str().unwrap();
    let gateway = place.start(&["serve", "--stdio", "--standalone", "--config", config], &[]);
    let id = instance(&place).await;
    until(|| mark.exists().then_some(())).await;
    std::fs::remove_file(&mark).unwrap();

    let health = ["call", "server_health", "--json", "--config", config];
    assert_eq!(answered_by(&place.run(&health).await), id);
    let ran = place.run(&["call", "demo__echo", "--args", r#"{"text":"x"}"#, "--config", config]).await;
    assert_eq!((ran.code, ran.stdout.as_str(), ran.said().as_str()), (Some(0), "x\n", ""));
    let recorded = place.run(&["audit", "list", "--json", "--config", config]).await;
    assert!(recorded.stdout.contains("demo__echo"), "{recorded:?}");
    let shown = place.run(&["tools", "show", "demo__echo", "--json", "--config", config]).await;
    assert_eq!(shown.json()["name"], "demo__echo");
    assert!(!mark.exists(), "no server was started again");

    // Another path to the same file is the same configuration. A copy, another mode or `--fresh` is not.
    let link = place.path().join("link.toml");
    std::os::unix::fs::symlink(config, &link).unwrap();
    let by_link = ["call", "server_health", "--json", "--config", link.to_str().unwrap()];
    assert_eq!(answered_by(&place.run(&by_link).await), id);
    let copy = place.path().join("copy.toml");
    std::fs::copy(config, &copy).unwrap();
    let by_copy = ["call", "server_health", "--json", "--config", copy.to_str().unwrap()];
    assert_ne!(answered_by(&place.run(&by_copy).await), id);
    let in_mode = place.run_with(&health, &[("BRIDGEHEAD_MODE", "readonly")], "").await;
    assert_ne!(answered_by(&in_mode), id);
    assert_ne!(answered_by(&place.run(&[&health[..], &["--fresh"]].concat()).await), id);
    assert!(!mark.exists(), "a built-in tool needs no server");
    drop(gateway);
}

/// HOUR-3: a gateway that has reloaded its file is found by the file's new content. A gateway that could not apply all of it
/// is not used.
#[tokio::test]
async fn a_gateway_that_read_its_file_again_is_asked() {
    let place = Place::new();
    let config = place.config(&["demo"], "");
    let path = config.to_str().unwrap();
    let (gateway, _) = place.serve_http(&["--config", path], &[]).await;
    let id = instance(&place).await;
    let health = ["call", "server_health", "--json", "--config", path];
    assert_eq!(answered_by(&place.run(&health).await), id);

    place.config(&["demo", "other"], "");
    bridgehead_testkit::soon("an answer of the gateway that has reloaded the file", async {
        loop {
            // Until the gateway has reloaded the file, each call starts the servers.
            let ran = place.run(&health).await;
            if answered_by(&ran) == id {
                break;
            }
        }
    })
    .await;
    let ran = place.run(&["call", "other__echo", "--args", r#"{"text":"x"}"#, "--config", path]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "x\n"), "{}", ran.stderr);

    place.config(&["demo"], "[gateway]\nmode = \"readonly\"");
    until(|| gateway.stderr().contains("restart the gateway to apply it").then_some(())).await;
    until(|| gateway.stderr().contains("removed other").then_some(())).await;
    assert_ne!(answered_by(&place.run(&health).await), id, "it is not read-only yet");
    stop(gateway).await;
}

/// HOUR-3: without a gateway, only servers that may offer the tool are started. If names do not show which server that is,
/// the call runs as soon as the tool appears.
#[tokio::test]
async fn only_what_is_needed_is_started() {
    let place = Place::new();
    let mark = place.path().join("started");
    let config = place.config(&["demo"], &silent(&mark));
    let config = config.to_str().unwrap();
    let echo = |name| ["call", name, "--args", r#"{"text":"x"}"#, "--config", config];
    let ran = place.run(&echo("demo__echo")).await;
    assert_eq!((ran.code, ran.stdout.as_str(), ran.said().as_str()), (Some(0), "x\n", ""));
    let shown = place.run(&["tools", "show", "demo__echo", "--json", "--config", config]).await;
    assert_eq!((&shown.json()["name"], shown.said().as_str()), (&"demo__echo".into(), ""));
    let unknown = place.run(&echo("deno__echo")).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("no server is called `deno`; did you mean `demo`?"), "{unknown:?}");
    assert!(!mark.exists());

    place.config(&["demo"], &format!("[gateway]\nprefix = false\n{}", silent(&mark)));
    let ran = place.run(&echo("echo")).await;
    assert_eq!((ran.code, ran.stdout.as_str(), ran.said().as_str()), (Some(0), "x\n", ""));
    assert!(mark.exists(), "this server might have offered the tool");
}
