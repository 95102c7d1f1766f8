//! `bridgehead call`: one call from the shell.

mod words;

use std::time::Duration;

use bridgehead_wire::{Method, Raw};
use clap::Args;
use serde_json::Value;

use self::words::Given;
use super::answering::{Answering, Answers};
use super::exit::Exit;
use super::reply;
use super::request::{Asking, Listed};
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
  bridgehead call add a=1 b=2
  bridgehead call add --args '{\"a\":1,\"b\":2}'
  bridgehead call echo --args @arguments.json --json
  bridgehead call book --answer guests=2 --answer breakfast=yes
  echo '{\"ms\":500}' | bridgehead call sleep --args - --url http://127.0.0.1:4848/mcp"
)]
pub(crate) struct Call {
    /// The tool, as `bridgehead tools` shows it
    name: String,
    /// Arguments as name=value; the tool's schema says whether a value is a text, or JSON such as 1, true or [1,2]
    #[arg(value_name = "NAME=VALUE")]
    words: Vec<String>,
    /// All arguments at once: a JSON object, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    args: Option<String>,
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
    let read = || -> Result<(Given, Answering), String> {
        let given = Given::read(&call.name, &call.words, call.args.as_deref())?;
        Ok((given, Answering::new(&call.answers, &format!("`{}`", call.name))?))
    };
    let (given, answering) = match read() {
        Ok(read) => read,
        Err(reason) => return output::wrong(&reason),
    };
    run_once(async {
        let target = match Target::open(&call.place, world, Need::Tool(&call.name), call.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let arguments = match given {
            Given::Whole(arguments) => Ok(arguments),
            Given::Words(words) => {
                target.list(Listed::Tools).await.map(|tools| words.fit(&call.name, &tools))
            }
        };
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(error) => {
                let (failures, _) = target.failures().await;
                target.close().await;
                return reply::refused(&error, &failures, call.json);
            }
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
