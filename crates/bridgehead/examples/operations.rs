//! Every tool of a server as a typed operation: its spec, and a function that runs it.
//!
//! `cargo run -p bridgehead --example operations -- bridgehead demo-server`, or any other command that runs an MCP server
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use bridgehead::bridge::{ConnectOptions, connect_to_endpoint, operations};
use bridgehead::config::{Launch, Stdio};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The result of the tool `add`.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Sum {
    sum: f64,
}

/// Runs `command`, prints the tools it offers, and adds two numbers with its operation `add`.
pub(crate) async fn run(command: &str, arguments: &[String]) -> Result<Sum, Box<dyn Error>> {
    let endpoint = Launch::Stdio(Stdio::new(command, arguments));
    let bridge = connect_to_endpoint(endpoint, ConnectOptions::default()).await?;
    let operations = operations(&bridge).await?;
    for operation in &operations {
        let spec = &operation.spec;
        println!("{}: {}", spec.name, spec.description.as_deref().unwrap_or("says nothing of itself"));
    }
    let add = operations.iter().find(|operation| operation.spec.name == "add").ok_or("there is no `add`")?;
    let envelope = add.run(&json!({"a": 1, "b": 2})).await;
    bridge.close().await;
    let envelope = envelope?;
    println!("call {} took {} ms", envelope.meta.correlation_id, envelope.meta.latency_ms);
    // The data was cast to the server's output schema, so it fits the type written after that schema.
    Ok(serde_json::from_value(envelope.data)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut command = std::env::args().skip(1);
    let program = command.next().unwrap_or_else(|| "bridgehead".to_owned());
    let mut arguments: Vec<String> = command.collect();
    if arguments.is_empty() {
        arguments.push("demo-server".to_owned());
    }
    println!("{:?}", run(&program, &arguments).await?);
    Ok(())
}
