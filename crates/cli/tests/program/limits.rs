//! Limits of the configuration, with the program as an operator runs it.

use std::net::SocketAddr;

use bridgehead_testkit::client::{HttpClient, HttpReply, StdioClient};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, signal};

async fn call(address: SocketAddr, tool: &str) -> HttpReply {
    let arguments = if tool == "echo" { json!({"text": "x"}) } else { json!({}) };
    let params = json!({"name": tool, "arguments": arguments});
    HttpClient::new(address).post_modern("/mcp", "tools/call", params).await
}

fn code(reply: &HttpReply) -> Value {
    reply.answer()["error"]["data"]["code"].clone()
}

async fn serve(place: &Place, more: &str) -> (StdioClient, SocketAddr) {
    let config = place.config(&["demo"], more);
    place.serve_http(&["--config", config.to_str().unwrap()], &[]).await
}

async fn stop(mut gateway: StdioClient) {
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}

/// ACC-5 (case 28): a budget survives kill -9: the next start counts it from the record. Two gateways of one configuration
/// share it, and a start beside a running one knows what was spent.
#[tokio::test]
async fn a_budget_survives_kill_9() {
    let place = Place::new();
    let rules =
        "[[limits.rules]]\nwho = [\"*\"]\nbudget_per_day = 5\n\n[servers.demo.tools.echo]\ncost = 2\n";
    let (mut gateway, address) = serve(&place, rules).await;
    for _ in 0..2 {
        let answer = call(address, "echo").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.answer()["error"].is_null(), "{answer:?}");
    }
    let refused = call(address, "echo").await;
    assert_eq!((refused.status, code(&refused)), (429, json!("BUDGET_EXHAUSTED")), "{refused:?}");
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some(), "{refused:?}");
    signal(&gateway, Signal::KILL);
    gateway.wait().await;

    let (mut first, address) = serve(&place, rules).await;
    assert_eq!(code(&call(address, "echo").await), json!("BUDGET_EXHAUSTED"), "4 of 5 are spent");
    let (second, other) = serve(&place, rules).await;
    assert_eq!(code(&call(other, "echo").await), json!("BUDGET_EXHAUSTED"), "the other knows it too");
    assert_eq!(call(other, "server_ping").await.status, 200, "one is left");
    assert_eq!(code(&call(address, "server_ping").await), json!("BUDGET_EXHAUSTED"));
    signal(&first, Signal::KILL);
    first.wait().await;
    assert_eq!(code(&call(other, "server_ping").await), json!("BUDGET_EXHAUSTED"));
    stop(second).await;

    // What a rule counts makes its budget, not how much it allows.
    let (gateway, address) = serve(&place, &rules.replace("= 5", "= 6")).await;
    assert_eq!(call(address, "server_ping").await.status, 200);
    assert_eq!(code(&call(address, "server_ping").await), json!("BUDGET_EXHAUSTED"));
    stop(gateway).await;
    let verified = place.run(&["audit", "verify"]).await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

/// ACC-5: a budget without a record does not start.
#[tokio::test]
async fn a_budget_needs_a_record() {
    let place = Place::new();
    let more = "[audit]\nstore = \"none\"\n[[limits.rules]]\nwho = [\"*\"]\nbudget_per_day = 5\n";
    let config = place.config(&["demo"], more);
    let ran = place.run(&["serve", "--config", config.to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(78), "{ran:?}");
    assert!(ran.stderr.contains("budget_per_day") && ran.stderr.contains("record"), "{ran:?}");
}

/// ACC-5 (case 27): a rate of the configuration answers 429, and a change of the file takes effect while the gateway runs.
#[tokio::test]
async fn a_rate_of_the_configuration() {
    let place = Place::new();
    let rules = "[[limits.rules]]\nwho = [\"local\"]\ntools = [\"demo/ECHO\"]\nrate = \"1/h\"\n";
    let (gateway, address) = serve(&place, rules).await;
    assert_eq!(call(address, "echo").await.status, 200);
    let refused = call(address, "echo").await;
    assert_eq!((refused.status, code(&refused)), (429, json!("RATE_LIMITED")));
    assert_eq!(refused.header("ratelimit-policy"), Some("\"rate\";q=1;w=3600"));
    assert_eq!(call(address, "server_ping").await.status, 200, "another tool");
    place.config(&["demo"], &rules.replace("1/h", "2/h"));
    let mut status = 429;
    for _ in 0..400 {
        status = call(address, "echo").await.status;
        if status == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    assert_eq!(status, 200, "{}", gateway.stderr());
    stop(gateway).await;
}
