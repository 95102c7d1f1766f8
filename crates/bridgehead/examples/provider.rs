//! A server as a provider of tools for an agent: initialise, check its health, execute, terminate.
//!
//! `cargo run -p bridgehead --example provider -- bridgehead demo-server`, or any other command or URL of an MCP server that has a tool
//! `add`. Each call gets its own process. The helper processes for that are this program started again, so `main` first
//! checks whether it was started as a helper.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::Arc;

use bridgehead::config::{Launch, Remote, Stdio};
use bridgehead::events::Bus;
use bridgehead::provider::{Health, Invocation, McpProvider, ProviderAdapter, ProviderConfig};
use bridgehead::{CorrelationId, SystemClock};
use serde_json::{Value, json};

/// Runs or connects to a server, adds two numbers with its tool `add`, and ends it.
pub(crate) async fn run(command: &str, arguments: &[String]) -> Result<Value, Box<dyn Error>> {
    let provider = McpProvider::new(Bus::new(Arc::new(SystemClock::default())));
    let endpoint = match command.contains("://") {
        true => Launch::Remote(Remote::new(command.parse()?)),
        false => Launch::Stdio(Stdio::new(command, arguments)),
    };
    provider.init(ProviderConfig::new("demo".parse()?, endpoint)).await?;
    assert_eq!(provider.health(), Health::Healthy);
    for (name, _) in provider.tools() {
        println!("offers {name}");
    }
    let invocation = Invocation::new("demo__add", json!({"a": 1, "b": 2}));
    let executed = provider.execute(&invocation, CorrelationId::mint()).await;
    provider.terminate().await;
    let executed = executed?;
    println!("{} took {:?}", executed.tool, executed.duration);
    Ok(executed.result.decode()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    bridgehead::main_if_asked();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut command = std::env::args().skip(1);
    let program = command.next().unwrap_or_else(|| "bridgehead".to_owned());
    let mut arguments: Vec<String> = command.collect();
    if arguments.is_empty() {
        arguments.push("demo-server".to_owned());
    }
    println!("{}", runtime.block_on(run(&program, &arguments))?["content"][0]["text"]);
    Ok(())
}
