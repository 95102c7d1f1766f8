//! Calls the tool `echo` of a stdio server many times, one call after the other, by one of three ways of embedding a client:
//! `embedding bridge|tools|rmcp SERVER CALLS`.
//!
//! `cargo xtask count` runs it under valgrind, to compare what a call costs the embedding program. All three speak to the same
//! server on one thread and read the text of every answer.

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use bridgehead::bridge::{AttemptOptions, ConnectOptions, call_tool, connect_to_endpoint};
use bridgehead::config::{Launch, ServerConfig, Stdio};
use bridgehead::schema::Content;
use bridgehead::tools::Tools;
use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::TokioChildProcess;
use serde_json::{Map, Value, json};

fn main() -> Result<ExitCode> {
    bridgehead::main_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, server, calls] = &arguments[..] else {
        bail!("usage: embedding bridge|tools|rmcp SERVER CALLS")
    };
    let calls = calls.parse().context("CALLS is not a number")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match way.as_str() {
            "bridge" => by_bridge(server, calls).await,
            "tools" => by_tools(server, calls).await,
            "rmcp" => by_rmcp(server, calls).await,
            unknown => bail!("there is no way `{unknown}`"),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What every call says.
fn text(call: u32) -> String {
    format!("message {}", 10_000_000 + call)
}

async fn by_bridge(server: &str, calls: u32) -> Result<()> {
    let launch = Launch::Stdio(Stdio::new(server, [""; 0]));
    let bridge = connect_to_endpoint(launch, ConnectOptions::default()).await?;
    let options = AttemptOptions::default();
    for call in 0..calls {
        let result = call_tool(&bridge, "echo", &json!({"text": text(call)}), &options).await?;
        let result: Map<String, Value> = result.decode()?;
        let content = Content::all(result.get("content"));
        ensure!(
            content.first().and_then(Content::as_text).is_some_and(|said| said.contains(&text(call))),
            "{result:?}"
        );
    }
    bridge.close().await;
    Ok(())
}

async fn by_tools(server: &str, calls: u32) -> Result<()> {
    let tools = Tools::builder().server(ServerConfig::program("echo", server, [""; 0])?).start().await?;
    for call in 0..calls {
        let result = tools.call("echo__echo", json!({"text": text(call)})).await?.flat();
        ensure!(result.ok && result.result.contains(&text(call)), "{result:?}");
    }
    tools.close().await;
    Ok(())
}

async fn by_rmcp(server: &str, calls: u32) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "rmcp starts its server itself, which is what is compared")]
    let child = TokioChildProcess::new(tokio::process::Command::new(server))?;
    let client = ().serve(child).await?;
    for call in 0..calls {
        let Value::Object(arguments) = json!({"text": text(call)}) else {
            bail!("the arguments are no object")
        };
        let result = client.call_tool(CallToolRequestParams::new("echo").with_arguments(arguments)).await?;
        let said = result.content.first().and_then(|content| content.as_text());
        ensure!(said.is_some_and(|said| said.text.contains(&text(call))), "{result:?}");
    }
    client.cancel().await?;
    Ok(())
}
