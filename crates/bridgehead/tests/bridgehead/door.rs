//! Who gets in, and what is let run: the endpoint and the servers behind it, configurations that nobody agreed to.

use bridgehead_testkit::client::StdioClient;
use serde_json::Value;

use crate::common::{Place, Ran, program, signal, until};
use rustix::process::Signal;

/// A confined server that has the network.
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

/// What `status --json` shows of the one gateway that runs, once `wanted` holds.
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
    panic!("the gateway's status never became what was waited for");
}

#[track_caller]
fn refused(ran: &Ran, parts: &[&str]) {
    assert_eq!(ran.code, Some(78), "{ran:?}");
    for part in parts {
        assert!(ran.stderr.contains(part), "`{part}` is not in: {}", ran.stderr);
    }
}

/// WALL-5: a gateway that a confined server with network could call does not open its endpoint.
#[tokio::test]
async fn a_confined_server_with_network_needs_a_token_at_the_endpoint() {
    let place = Place::new();
    let file = place.file("bridgehead.toml", &walled());
    let config = ["--config", file.to_str().unwrap()];
    let ran = place.run(&["serve", "--listen", "127.0.0.1:0", config[0], config[1]]).await;
    refused(&ran, &["`walled`", "http.token_file", "network = \"none\"", "--stdio"]);

    let ran = place.run(&["serve", "--stdio", config[0], config[1]]).await;
    assert_eq!(ran.code, Some(0), "without HTTP there is nothing to call: {ran:?}");

    let (gateway, _) = place.serve_http(&config, &[("BRIDGEHEAD_HTTP_TOKEN", "s3cret")]).await;
    stop(gateway).await;

    place.file("bridgehead.toml", &format!("{}network = \"none\"\n", walled()));
    let (gateway, _) = place.serve_http(&config, &[]).await;
    stop(gateway).await;
}

/// WALL-5: nor does a reload bring such a server to an endpoint that is open.
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
