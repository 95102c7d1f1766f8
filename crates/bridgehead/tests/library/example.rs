//! Runs the examples; compiling them is not enough.

#[path = "../../examples/bridge.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod bridge;
#[path = "../../examples/embedded.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod embedded;
#[path = "../../examples/rust_tool.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod rust_tool;

use serde_json::json;

/// SRV-8: a Rust tool registered through the library is served like any other tool.
#[tokio::test]
async fn the_rust_tool_counts() {
    assert_eq!(rust_tool::run().await.unwrap(), json!({"ok": true, "data": {"words": 4}}));
}

/// BRG-7: a client and a server in one process, connected in memory.
#[tokio::test]
async fn the_bridge_measures() {
    assert_eq!(bridge::run().await.unwrap()["structuredContent"], json!({"ok": true, "data": 4}));
}

/// BOX-1, PROV-4: in a program other than `bridgehead`, a remote server is called from a separate process, which is the same
/// program started again.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the example is a program of its own here")]
async fn the_provider_reaches_servers_from_another_process() {
    use bridgehead_testkit::{Behaviour, Carrier, Mock};

    let served = Mock::legacy().tool("add", Behaviour::Echo).serve(Carrier::Http);
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(std::path::Path::parent).unwrap().join("examples/provider");
    let ran = tokio::process::Command::new(program).arg(served.url()).kill_on_drop(true).output();
    let ran = tokio::time::timeout(std::time::Duration::from_secs(60), ran).await.unwrap().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains(r#"{\"a\":1,\"b\":2}"#), "{said} {complained}");
}

/// AUD-1, BUS-2: a gateway inside a program, with its own tool, record and subscriber, in less than 60 lines.
#[tokio::test]
async fn the_embedded_gateway_greets() {
    let (answer, record, topic) = embedded::run().await.unwrap();
    assert_eq!(answer, "\"hello, world\"");
    assert_eq!(record, ["greet begins", "greet ended"]);
    assert_eq!(topic, "provider.mcp.tool.completed");
    assert!(include_str!("../../examples/embedded.rs").lines().count() < 60);
}
