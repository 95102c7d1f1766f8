//! One connection and one call: the bridge client, connected in memory to a server in the same process.
//!
//! `cargo run -p bridgehead --example bridge`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use bridgehead::bridge::{
    AttemptOptions, ConnectOptions, TransportFactory, call_tool, connect_to_server, memory_transport,
};
use bridgehead::{NativeTool, Server, Transport};
use serde_json::{Value, json};

/// Asks a server for the length of a text. Returns the unchanged tool result.
pub(crate) async fn run() -> Result<Value, Box<dyn Error>> {
    // A real server needs no factory: `connect_to_server("https://host/mcp", ConnectOptions::default())`.
    let factory = TransportFactory::new(|_url| async {
        let (client, theirs) = memory_transport();
        let length = NativeTool::new(
            "length",
            "How long a text is.",
            json!({"type": "object"}),
            |arguments, _| async move { Ok(json!(arguments["text"].as_str().unwrap_or_default().len())) },
        );
        let options = Server::builder().process_handlers(false).register(length);
        let server = options.transport(Transport::Memory(theirs)).build().map_err(std::io::Error::other)?;
        let running = server.start().await.map_err(std::io::Error::other)?;
        tokio::spawn(running.wait());
        Ok(client)
    });
    let options = ConnectOptions::default().factory(factory);
    let bridge = connect_to_server("memory:length", options).await?;
    let result = call_tool(&bridge, "length", &json!({"text": "four"}), &AttemptOptions::default()).await;
    bridge.close().await;
    Ok(result?.decode()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", run().await?["structuredContent"]);
    Ok(())
}
