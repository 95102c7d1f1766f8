//! `bridgehead call`: one call from the shell.

use std::time::Duration;

use bridgehead_wire::{Method, Raw};
use clap::Args;
use serde_json::Value;

use super::answering::{Answering, Answers};
use super::exit::Exit;
use super::reply;
use super::request::{Asking, read_arguments};
use super::target::{Need, Target, Where, run_once};
use super::world::World;
use super::{Run, output};

/// Call a tool and print its answer
#[derive(Debug, Args)]
#[command(
    after_help = "The call goes to the running gateway with the same configuration. Without one, the servers that may
offer the tool are started for this call and stopped after it, as you could start them yourself: such a call is not recorded,
and rules, limits and budgets of the configuration do not apply to it.
If the server asks something meanwhile, you are asked on the terminal; in a script, use --answer.
Exit codes: 0 success, 1 the tool failed, 2 usage, 3 the server could not be reached.

Examples:
  bridgehead call add --args '{\"a\":1,\"b\":2}'
  bridgehead call echo --args @arguments.json --json
  bridgehead call book --answer guests=2 --answer breakfast=yes
  echo '{\"ms\":500}' | bridgehead call sleep --args - --url http://127.0.0.1:4848/mcp"
)]
pub(crate) struct Call {
    /// The tool, as `bridgehead tools` shows it
    name: String,
    /// Arguments where many people put them first, for an error that names their place
    #[arg(hide = true)]
    misplaced: Option<String>,
    /// The arguments: a JSON object, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
    args: String,
    /// Give up on the call after this many seconds; the time of your answers does not count
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    #[command(flatten)]
    answers: Answers,
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
    let read = || -> Result<(Raw, Answering), String> {
        if let Some(misplaced) = &call.misplaced {
            let (name, misplaced) = (&call.name, output::one_line(misplaced, 200));
            return Err(format!(
                "the arguments of `{name}` stand after --args: bridgehead call {name} --args '{misplaced}'"
            ));
        }
        let arguments = read_arguments(&call.args)?;
        Ok((arguments, Answering::new(&call.answers, &format!("`{}`", call.name))?))
    };
    let (arguments, answering) = match read() {
        Ok(read) => read,
        Err(reason) => return output::wrong(&reason),
    };
    run_once(async {
        let target = match Target::open(&call.place, world, Need::Tool(&call.name), call.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let asking = Asking {
            method: Method::ToolsCall,
            members: vec![("name", Raw::string(&call.name)), ("arguments", arguments)],
            answering: &answering,
            timeout: call.timeout.map(Duration::from_secs),
        };
        let outcome = target.converse(&asking, reply::progress).await;
        let (failures, _) = target.failures().await;
        target.close().await;
        match outcome {
            Ok(result) => answering.judge(answered(&result, call.json)),
            Err(error) => reply::refused(&error, &failures, call.json),
        }
    })
}

fn answered(result: &Raw, as_json: bool) -> Exit {
    let decoded: Value = result.decode().unwrap_or_default();
    let exit = if decoded["isError"] == true { Exit::Failure } else { Exit::Success };
    if as_json {
        return output::raw_data(result.as_str(), exit);
    }
    let blocks = decoded["content"].as_array().into_iter().flatten();
    let mut text: String = blocks.map(|block| reply::block(block) + "\n").collect();
    if text.is_empty() {
        let structured = decoded.get("structuredContent").map(ToString::to_string);
        text = structured.unwrap_or_default();
    }
    if text.is_empty() { exit } else { output::raw_data(&text, exit) }
}
