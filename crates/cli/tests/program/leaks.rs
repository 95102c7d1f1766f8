//! If the client, the gateway or a server is killed with SIGKILL, no process of the demo is left.

use bridgehead_testkit::LeakCheck;
use bridgehead_testkit::client::{StdioClient, modern_params};
use rustix::process::Signal;
use serde_json::json;

use crate::common::{Place, lives, program, signal, signal_pid, until, upstream_pids};

/// A gateway over stdio whose servers carry the marker of the leak check.
async fn marked(place: &Place, check: &LeakCheck) -> (StdioClient, Vec<u32>) {
    let (name, value) = check.marker();
    let command = program().display().to_string();
    let server = |server: &str| {
        format!(
            "[servers.{server}]\ncommand = {command:?}\nargs = [\"demo-server\"]\nenv = {{ {name} = \"{value}\", WHICH = \"{server}\" }}\n"
        )
    };
    let config = place.file("bridgehead.toml", &(server("one") + &server("two")));
    let mut client =
        place.start(&["serve", "--stdio", "--standalone", "--config", config.to_str().unwrap()], &[]);
    let pids = upstream_pids(&mut client).await;
    assert_eq!(pids.len(), 2);
    let params = json!({"name": "one__sleep", "arguments": {"ms": 60_000}, "_meta": {"progressToken": 1}});
    client.start_request("tools/call", modern_params(params)).await;
    assert_eq!(client.recv().await["method"], "notifications/progress");
    (client, pids)
}

async fn gone(pids: &[u32]) {
    until(|| pids.iter().all(|pid| !lives(*pid)).then_some(())).await;
}

#[tokio::test]
async fn the_gateway_is_killed() {
    let check = LeakCheck::start();
    let place = Place::new();
    let (mut client, pids) = marked(&place, &check).await;
    client.kill();
    assert_eq!(client.wait().await.code(), None);
    gone(&pids).await;
    drop(client);
    check.assert_clean().await;
}

/// A killed client closes its end of the pipes; the gateway sees nothing else of it.
#[tokio::test]
async fn the_client_is_killed() {
    let check = LeakCheck::start();
    let place = Place::new();
    let (mut client, pids) = marked(&place, &check).await;
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0), "{}", client.stderr());
    gone(&pids).await;
    drop(client);
    check.assert_clean().await;
}

/// The server restarts, and the call in progress, whose tool is annotated read-only, is repeated there. Its progress never
/// goes backwards.
#[tokio::test]
async fn a_server_is_killed() {
    let check = LeakCheck::start();
    let place = Place::new();
    let (mut client, pids) = marked(&place, &check).await;
    signal_pid(pids[0], Signal::KILL);
    let renewed = async {
        loop {
            let now = upstream_pids(&mut client).await;
            if now.len() == 2 && now[0] != pids[0] {
                break now;
            }
        }
    };
    let now = tokio::time::timeout(std::time::Duration::from_secs(60), renewed).await.unwrap();
    assert_eq!(now[1], pids[1], "the other server is not touched");
    let params = json!({"name": "two__echo", "arguments": {"text": "here"}});
    let echoed = client.request("tools/call", modern_params(params)).await;
    assert_eq!(echoed["result"]["content"][0]["text"], "here");
    client.close_stdin();
    assert_eq!(client.wait().await.code(), Some(0), "{}", client.stderr());
    gone(&now).await;
    drop(client);
    check.assert_clean().await;
}

/// `call` starts the servers for one call and stops them at its end, even if a signal ends it early.
#[tokio::test]
async fn a_call_is_interrupted() {
    let check = LeakCheck::start();
    let place = Place::new();
    let (name, value) = check.marker();
    let command = program().display().to_string();
    let text = format!(
        "[servers.one]\ncommand = {command:?}\nargs = [\"demo-server\"]\nenv = {{ {name} = \"{value}\" }}\n"
    );
    let config = place.file("bridgehead.toml", &text);
    let arguments = ["call", "sleep", "--args", r#"{"ms":60000}"#, "--config", config.to_str().unwrap()];
    let mut client = place.start(&arguments, &[]);
    until(|| client.stderr().contains("progress 0").then_some(())).await;
    signal(&client, Signal::INT);
    assert_eq!(client.wait().await.code(), Some(130), "{}", client.stderr());
    drop(client);
    check.assert_clean().await;
}
