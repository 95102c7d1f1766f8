//! The examples are run, not only compiled.

#[path = "../../examples/bridge.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod bridge;
#[path = "../../examples/provider.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod provider;
#[path = "../../examples/rust_tool.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod rust_tool;

use serde_json::json;

/// SRV-8: a Rust tool registered through the library is served like any other.
#[tokio::test]
async fn the_rust_tool_counts() {
    assert_eq!(rust_tool::run().await.unwrap(), json!({"ok": true, "data": {"words": 4}}));
}

/// BRG-7: a client and a server in one process, joined in memory.
#[tokio::test]
async fn the_bridge_measures() {
    assert_eq!(bridge::run().await.unwrap()["structuredContent"], json!({"ok": true, "data": 4}));
}

/// PROV-1: an agent runs a tool of the demo server.
#[tokio::test]
async fn the_provider_adds() {
    let result = provider::run(env!("CARGO_BIN_EXE_bridgehead"), &["demo-server".to_owned()]).await.unwrap();
    assert_eq!(result["structuredContent"]["sum"], 3, "{result}");
}
