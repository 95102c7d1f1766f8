//! The tools of servers and of this program, listed and called together.
//!
//! `cargo run -p bridgehead --example tools -- bridgehead demo-server`, or any other command of an MCP server
//! that has a tool `add`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use bridgehead::NativeTool;
use bridgehead::config::ServerConfig;
use bridgehead::tools::Tools;
use serde_json::{Value, json};

/// Runs a server, adds two numbers with its tool `add`, and doubles the sum with a tool of this program.
pub(crate) async fn run(command: &str, arguments: &[String]) -> Result<Value, Box<dyn Error>> {
    let server = ServerConfig::program("numbers", command, arguments)?;
    let double = NativeTool::new(
        "double",
        "Doubles a number.",
        json!({"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}),
        |arguments, _| async move { Ok(json!(arguments["n"].as_f64().unwrap_or_default() * 2.0)) },
    );
    let tools = Tools::builder().server(server).register(double).start().await?;
    for tool in tools.list() {
        println!("{}: {}", tool.name, tool.description().unwrap_or_default());
    }
    let sum = tools.call("numbers__add", json!({"a": 1, "b": 2})).await?.envelope().data;
    let doubled = tools.call("double", json!({"n": sum["sum"]})).await?.envelope().data;
    tools.close().await;
    Ok(doubled["data"].clone())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut command = std::env::args().skip(1);
    let program = command.next().unwrap_or_else(|| "bridgehead".to_owned());
    let mut arguments: Vec<String> = command.collect();
    if arguments.is_empty() {
        arguments.push("demo-server".to_owned());
    }
    println!("{}", run(&program, &arguments).await?);
    Ok(())
}
