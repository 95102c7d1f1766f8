//! A tool written in Rust, served and called within one process.
//!
//! Run it with `cargo run -p bridgehead --example rust_tool`.

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use bridgehead::{NativeTool, Server, ToolContext, Transport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

#[derive(Deserialize, JsonSchema)]
struct CountWords {
    /// The text to count in.
    text: String,
}

#[derive(Serialize, JsonSchema)]
struct Counted {
    words: usize,
}

/// A tool that counts the words of a text. Its schemas come from the two types.
fn count_words() -> NativeTool {
    let handler = |asked: CountWords, cx: ToolContext| async move {
        let mut words = 0;
        for (number, line) in asked.text.lines().enumerate() {
            words += line.split_whitespace().count();
            cx.progress(number as f64 + 1.0, None, None);
        }
        Ok(Counted { words })
    };
    NativeTool::typed("count_words", "Counts the words of a text.", handler).read_only().concurrent()
}

/// Builds the server, calls the tool over a pair of pipes, stops the server and returns the tool's answer.
pub(crate) async fn run() -> Result<Value, Box<dyn std::error::Error>> {
    let (client, theirs) = tokio::io::duplex(64 * 1024);
    let server = Server::builder().register(count_words()).transport(Transport::Memory(theirs)).build()?;
    let running = server.start().await?;

    let request = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "count_words",
            "arguments": {"text": "one bridge, many banks"},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    });
    let (reader, mut writer) = tokio::io::split(client);
    writer.write_all(format!("{request}\n").as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).await?;
    let answer: Value = serde_json::from_str(&line)?;

    running.stop().await;
    Ok(answer["result"]["structuredContent"].clone())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", run().await?);
    Ok(())
}
