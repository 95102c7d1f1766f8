//! Runs the examples of the library that need a server, with the bundled demo.

#[path = "../../../bridgehead/examples/operations.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod operations;
#[path = "../../../bridgehead/examples/provider.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod provider;
#[path = "../../../bridgehead/examples/tools.rs"]
#[expect(dead_code, reason = "the example's own `main` is not ours")]
mod tools;

use serde_json::json;

use crate::common::program;

/// PROV-1: an agent runs a tool of the demo server.
#[tokio::test]
async fn the_provider_adds() {
    let result = provider::run(program().to_str().unwrap(), &["demo-server".to_owned()]).await.unwrap();
    assert_eq!(result["structuredContent"]["sum"], 3, "{result}");
}

/// ENV-9: the tools of the demo server as typed operations.
#[tokio::test]
async fn the_operation_adds() {
    let sum = operations::run(program().to_str().unwrap(), &["demo-server".to_owned()]).await.unwrap();
    assert_eq!(json!(sum), json!({"sum": 3.0}));
}

/// LIB-1: the tools of the demo server and of the program itself, called from the program.
#[tokio::test]
async fn the_tools_add_and_double() {
    let doubled = tools::run(program().to_str().unwrap(), &["demo-server".to_owned()]).await.unwrap();
    assert_eq!(doubled, json!(6.0));
}
