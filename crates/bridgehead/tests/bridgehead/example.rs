//! The example is run, not only compiled.

#[path = "../../examples/rust_tool.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod rust_tool;

use serde_json::json;

/// SRV-8: a Rust tool registered through the library is served like any other.
#[tokio::test]
async fn the_rust_tool_counts() {
    assert_eq!(rust_tool::run().await.unwrap(), json!({"ok": true, "data": {"words": 4}}));
}
