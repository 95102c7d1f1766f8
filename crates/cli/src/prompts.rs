//! `bridgehead prompts`: shows the prompts that the servers offer, and gets one.

use bridgehead_wire::{Method, Raw};
use clap::{Args, Subcommand};
use serde_json::Value;

use super::answering::{Answering, Answers};
use super::exit::Exit;
use super::reply;
use super::request::{Asking, Listed, read_arguments};
use super::target::{Need, Target, Where, run_once};
use super::world::World;
use super::{Run, output};

/// Show the prompts that the servers offer, or get one
#[derive(Debug, Args)]
#[command(
    after_help = "The running gateway with the same configuration answers. Without one, the servers are started for
this command and stopped after it; `get` starts only those that may offer the prompt.
Exit codes: 0 success, 1 failure, 2 no such prompt, 3 no server could be reached.

Examples:
  bridgehead prompts
  bridgehead prompts get files__review --args '{\"path\":\"src\"}'
  bridgehead prompts list --json"
)]
pub(crate) struct Prompts {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All prompts, one line each (the default)
    #[command(after_help = "Examples:\n  bridgehead prompts list\n  bridgehead prompts list --json")]
    List,
    /// The messages of one prompt
    #[command(
        after_help = "Examples:\n  bridgehead prompts get review --args '{\"path\":\"src\"}'\n  bridgehead prompts get review --json"
    )]
    Get(Get),
}

#[derive(Debug, Args)]
struct Get {
    /// The prompt, as `bridgehead prompts` shows it
    name: String,
    /// The arguments: a JSON object, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", default_value = "{}", allow_hyphen_values = true)]
    args: String,
    #[command(flatten)]
    answers: Answers,
}

impl Run for Prompts {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        match &self.what {
            None | Some(What::List) => list(self, world),
            Some(What::Get(wanted)) => get(self, wanted, world),
        }
    }
}

fn list(prompts: &Prompts, world: &World) -> Exit {
    run_once(async {
        let target = match Target::open(&prompts.place, world, Need::Everything, prompts.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let listed = target.list(Listed::Prompts).await;
        let (failures, some_serve) = target.failures().await;
        target.close().await;
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => return reply::refused(&error, &failures, prompts.json),
        };
        reply::warn(&failures);
        let exit = if some_serve { Exit::Success } else { Exit::Unreachable };
        if prompts.json {
            return output::lists(&[("prompts", &listed)], &reply::failed(&failures), exit);
        }
        if listed.is_empty() {
            output::talk("no server offers a prompt");
            return exit;
        }
        let rows = listed.iter().filter_map(|prompt| prompt.decode().ok()).map(|prompt| row(&prompt));
        output::data(&output::table(&rows.collect::<Vec<_>>()), exit)
    })
}

/// Name, arguments (those in brackets are optional) and description.
fn row(prompt: &Value) -> Vec<String> {
    let arguments = prompt["arguments"].as_array().into_iter().flatten().map(|argument| {
        let name = argument["name"].as_str().unwrap_or_default();
        if argument["required"] == true { name.to_owned() } else { format!("[{name}]") }
    });
    let arguments: Vec<String> = arguments.collect();
    vec![
        output::one_line(prompt["name"].as_str().unwrap_or_default(), 128),
        output::one_line(&arguments.join(" "), 500),
        output::summary(prompt["description"].as_str().or(prompt["title"].as_str()).unwrap_or_default()),
    ]
}

fn get(prompts: &Prompts, wanted: &Get, world: &World) -> Exit {
    let read = || -> Result<(Raw, Answering), String> {
        let arguments = read_arguments(&wanted.args)?;
        Ok((arguments, Answering::new(&wanted.answers, &format!("`{}`", wanted.name))?))
    };
    let (arguments, answering) = match read() {
        Ok(read) => read,
        Err(reason) => return output::wrong(&reason),
    };
    run_once(async {
        let need = Need::Prompt(&wanted.name);
        let target = match Target::open(&prompts.place, world, need, prompts.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let asking = Asking {
            method: Method::PromptsGet,
            members: vec![("name", Raw::string(&wanted.name)), ("arguments", arguments)],
            answering: &answering,
            timeout: None,
        };
        let outcome = target.converse(&asking, reply::progress).await;
        let (failures, _) = target.failures().await;
        target.close().await;
        match outcome {
            Ok(result) if prompts.json => answering.judge(output::raw_data(result.as_str(), Exit::Success)),
            Ok(result) => {
                let text = text(&result.decode().unwrap_or_default());
                answering.judge(output::raw_data(&text, Exit::Success))
            }
            Err(error) => {
                let message = "no server offers this prompt; `bridgehead prompts` lists all prompts";
                reply::refused(&reply::unknown(error, message), &failures, prompts.json)
            }
        }
    })
}

/// The messages of a prompt, each under the role that says it.
fn text(result: &Value) -> String {
    let message = |message: &Value| {
        let role = output::one_line(message["role"].as_str().unwrap_or("unknown"), 40);
        let content = &message["content"];
        let blocks: Vec<&Value> =
            content.as_array().map_or_else(|| vec![content], |blocks| blocks.iter().collect());
        let blocks: Vec<String> = blocks.into_iter().map(reply::block).collect();
        format!("{role}:\n{}\n", blocks.join("\n"))
    };
    let messages = result["messages"].as_array().into_iter().flatten().map(message);
    messages.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// JOIN-8: prompts are listed with their arguments, and shown message by message.
    #[test]
    fn prompts_for_people() {
        let prompt =
            json!({"name": "p", "title": "T", "arguments": [{"name": "a", "required": true}, {"name": "b"}]});
        assert_eq!(row(&prompt), ["p", "a [b]", "T"]);
        assert_eq!(row(&json!({"name": "p", "title": "T", "description": "D"})), ["p", "", "D"]);
        let result = json!({"messages": [
            {"role": "user", "content": {"type": "text", "text": "hello"}},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image", "mimeType": "image/png"}]},
        ]});
        assert_eq!(text(&result), "user:\nhello\n\nassistant:\na\n[image image/png]\n");
        assert_eq!(text(&json!({})), "");
    }
}
