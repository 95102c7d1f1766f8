//! `bridgehead call`: one call from the shell.

use std::io::Read;
use std::time::Duration;

use bridgehead_wire::{Raw, RpcError};
use clap::Args;
use serde_json::{Value, json};

use super::exit::Exit;
use super::target::{AskError, Target, Where, run_once};
use super::world::World;
use super::{Run, output};

/// Call a tool and print its answer
#[derive(Debug, Args)]
#[command(
    after_help = "The call goes to the running gateway with the same configuration. Without one, the servers that may
offer the tool are started for this call and stopped after it; such a call is not recorded.
Exit codes: 0 success, 1 the tool failed, 2 usage, 3 the server could not be reached.

Examples:
  bridgehead call add --args '{\"a\":1,\"b\":2}'
  bridgehead call echo --args @arguments.json --json
  echo '{\"ms\":500}' | bridgehead call sleep --args - --url http://127.0.0.1:4848/mcp"
)]
pub(crate) struct Call {
    /// The tool, as `bridgehead tools` shows it
    name: String,
    /// The arguments: a JSON object, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
    args: String,
    /// Give up on the call after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    #[command(flatten)]
    place: Where,
    /// Print the whole result as JSON
    #[arg(long)]
    json: bool,
}

impl Run for Call {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(call: &Call, world: &World) -> Exit {
    let arguments = match arguments(&call.args) {
        Ok(arguments) => arguments,
        Err(reason) => {
            output::talk(&format!("error: {reason}"));
            return Exit::Usage;
        }
    };
    run_once(async {
        let target = match Target::open(&call.place, world, Some(&call.name), call.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let calling = target.call(&call.name, &arguments, progress);
        let outcome = match call.timeout {
            None => Some(calling.await),
            Some(seconds) => tokio::time::timeout(Duration::from_secs(seconds), calling).await.ok(),
        };
        let (failures, _) = target.failures().await;
        target.close().await;
        match outcome {
            Some(Ok(result)) => answered(&result, call.json),
            Some(Err(AskError::Unreachable(reason))) => {
                output::talk(&format!("error: {reason}"));
                Exit::Unreachable
            }
            Some(Err(AskError::Answered(error))) => refused(&error, &failures, call.json),
            None => {
                output::talk(&format!(
                    "error: `{}` did not answer within {} s",
                    call.name,
                    call.timeout.unwrap_or_default()
                ));
                Exit::Failure
            }
        }
    })
}

fn arguments(given: &str) -> Result<Raw, String> {
    let text = match given.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read `{file}` for --args: {error}"))?,
        None if given == "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| format!("cannot read stdin for --args: {error}"))?;
            text
        }
        None => given.to_owned(),
    };
    let text = text.trim().to_owned();
    let raw = Raw::parse(text).map_err(|error| format!("--args is not JSON: {error}"))?;
    if raw.is_object() {
        Ok(raw)
    } else {
        Err("--args must be a JSON object, such as '{\"a\":1}'".to_owned())
    }
}

fn progress(params: &Value) {
    let number = |key: &str| params[key].as_f64().map(|number| number.to_string());
    let Some(done) = number("progress") else { return };
    let mut line = format!("progress {done}");
    if let Some(total) = number("total") {
        line.push_str(&format!(" of {total}"));
    }
    if let Some(message) = params["message"].as_str() {
        line.push_str(&format!(": {}", output::one_line(message, 200)));
    }
    output::talk(&line);
}

fn answered(result: &Raw, as_json: bool) -> Exit {
    let decoded: Value = result.decode().unwrap_or_default();
    let exit = if decoded["isError"] == true { Exit::Failure } else { Exit::Success };
    if as_json {
        return output::raw_data(result.as_str(), exit);
    }
    let mut text = String::new();
    for block in decoded["content"].as_array().into_iter().flatten() {
        match block["text"].as_str() {
            Some(words) if block["type"] == "text" => text.push_str(words),
            _ => text.push_str(&describe(block)),
        }
        text.push('\n');
    }
    if text.is_empty() {
        let structured = decoded.get("structuredContent").map(ToString::to_string);
        text = structured.unwrap_or_default();
    }
    if text.is_empty() { exit } else { output::raw_data(&text, exit) }
}

/// A one-line description of a block that is not text; --json shows the whole block.
fn describe(block: &Value) -> String {
    let kind = block["type"].as_str().unwrap_or("unknown");
    let detail = ["uri", "mimeType"].iter().find_map(|key| block[*key].as_str()).unwrap_or_default();
    format!("[{} {}]", output::one_line(kind, 40), output::one_line(detail, 200)).replace(" ]", "]")
}

/// Reports an error answer; its cause decides the exit code.
fn refused(error: &RpcError, failures: &[(String, String)], as_json: bool) -> Exit {
    let data: Value = error.data().and_then(|data| data.decode().ok()).unwrap_or_default();
    let exit = match data["code"].as_str() {
        // The tool may belong to a server that did not start.
        Some("PROVIDER_TOOL_UNKNOWN") if failures.is_empty() => Exit::Usage,
        Some(
            "PROVIDER_TOOL_UNKNOWN"
            | "PROVIDER_UNAVAILABLE"
            | "PROVIDER_INIT_FAILED"
            | "SANDBOX_UNAVAILABLE"
            | "mcp_restart_in_progress"
            | "mcp_restart_failed",
        ) => Exit::Unreachable,
        _ => Exit::Failure,
    };
    if exit == Exit::Unreachable {
        for (server, reason) in failures {
            output::talk(&format!("warning: server `{server}` does not serve: {reason}"));
        }
    }
    if as_json {
        let body: Value = error.body().decode().unwrap_or_default();
        return output::json_data(&json!({"error": body}), exit);
    }
    output::talk(&format!("error: {}", error.message()));
    if let Some(hint) = data["hint"].as_str() {
        output::talk(&format!("hint: {hint}"));
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_must_be_an_object() {
        assert_eq!(arguments(r#" {"a": 1.0} "#).unwrap().as_str(), r#"{"a": 1.0}"#);
        for bad in ["", "{", "[1]", "1", "@/no/such/file"] {
            assert!(arguments(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_blocks_are_told_in_a_line() {
        assert_eq!(describe(&json!({"type": "image", "mimeType": "image/png"})), "[image image/png]");
        assert_eq!(describe(&json!({"type": "resource_link", "uri": "file:a"})), "[resource_link file:a]");
        assert_eq!(describe(&json!({"type": "new"})), "[new]");
    }
}
