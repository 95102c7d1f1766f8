//! `bridgehead tools`: shows the tools that the servers offer, and what they cost.

mod cost;
mod owner;

use bridgehead_wire::Raw;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::cost::Cost;
use self::owner::Owners;
use super::exit::Exit;
use super::meant::meant;
use super::reply::{self, Failures};
use super::request::{AskError, Listed};
use super::target::{Need, Target, Where, run_once};
use super::world::World;
use super::{Run, output};

/// Show the tools that the servers offer
#[derive(Debug, Args)]
#[command(
    after_help = "The running gateway with the same configuration answers. Without one, the servers are started for
this command and stopped after it, and all tools are shown, whatever the rules say.

Examples:
  bridgehead tools
  bridgehead tools --server files
  bridgehead tools show add
  bridgehead tools instructions
  bridgehead tools cost
  bridgehead tools list --json --url http://127.0.0.1:4848/mcp"
)]
pub(crate) struct Tools {
    #[command(subcommand)]
    what: Option<What>,
    /// Only the tools of this server
    #[arg(long, global = true, value_name = "NAME")]
    server: Option<String>,
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All tools, one line each (the default)
    #[command(after_help = "Examples:\n  bridgehead tools list\n  bridgehead tools list --json")]
    List,
    /// One tool with its schemas
    #[command(after_help = "Examples:\n  bridgehead tools show add")]
    Show {
        /// The name as the list shows it
        name: String,
    },
    /// The text that tells the model how to use the servers and their tools
    #[command(after_help = "Examples:\n  bridgehead tools instructions")]
    Instructions,
    /// How many tokens the definitions of each server's tools take, estimated
    #[command(
        after_help = "A client sends the definitions of all tools to the model. One token is estimated as four bytes of them; the
tokenizer of a model decides the true number.

Examples:
  bridgehead tools cost
  bridgehead tools cost --json"
    )]
    Cost,
}

impl Run for Tools {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(tools: &Tools, world: &World) -> Exit {
    if tools.server.is_some() && matches!(tools.what, Some(What::Show { .. } | What::Instructions)) {
        return output::wrong(
            "--server chooses what `tools`, `tools list` and `tools cost` show; leave it out here",
        );
    }
    run_once(async {
        let tool = match &tools.what {
            Some(What::Show { name }) => Some(name.as_str()),
            None | Some(What::List | What::Instructions | What::Cost) => None,
        };
        let need = match (tool, &tools.server) {
            (Some(tool), _) => Need::Tool(tool),
            (None, Some(server)) => Need::Server(server),
            (None, None) => Need::Everything,
        };
        let target = match Target::open(&tools.place, world, need, tools.json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let found = match &tools.what {
            Some(What::Instructions) => target.instructions().await.map(Found::Instructions),
            None | Some(What::List | What::Show { .. } | What::Cost) => listed(tools, &target).await,
        };
        let (mut failures, mut some_serve) = target.failures().await;
        if let Some(server) = &tools.server {
            // What is wrong with another server does not matter to this answer.
            failures.retain(|(failed, _)| failed == server);
            some_serve = failures.is_empty();
        }
        target.close().await;
        let nothing = matches!((&found, tool), (Ok(Found::Tools(listed)), None) if listed.is_empty());
        // The gateway's own tools are always there, unless rules hide them, too.
        if nothing {
            output::talk(
                "note: rules may hide all tools from you, who are `local` on this machine; `bridgehead explain SERVER/TOOL` names the rule",
            );
        }
        let is_shown = |listed: &[Raw]| tool.is_some_and(|tool| find(listed, tool).is_some());
        if found.is_ok() && !matches!(&found, Ok(Found::Tools(listed)) if is_shown(listed)) {
            reply::warn(&failures);
        }
        let exit = if some_serve { Exit::Success } else { Exit::Unreachable };
        match (found, &tools.what) {
            (Err(error), _) => reply::refused(&error, &failures, tools.json),
            (Ok(Found::Instructions(text)), _) => instructions(text.as_deref(), tools.json, exit),
            (Ok(Found::Cost(cost)), _) => match tools.json {
                true => output::json_data(&cost.json(&failures), exit),
                false => output::data(&cost.text(), exit),
            },
            (Ok(Found::Tools(listed)), Some(What::Show { name })) => show(&listed, name, tools.json),
            (Ok(Found::Tools(listed)), _) => list(&listed, &failures, tools.json, exit),
        }
    })
}

/// The tools that are asked for, or what they cost.
async fn listed(tools: &Tools, target: &Target) -> Result<Found, AskError> {
    let mut listed = target.list(Listed::Tools).await?;
    let is_cost = matches!(tools.what, Some(What::Cost));
    if !is_cost && tools.server.is_none() {
        return Ok(Found::Tools(listed));
    }
    let owners = Owners::of(target).await;
    if let Some(server) = &tools.server {
        let name =
            |tool: &Raw| tool.decode::<Value>().unwrap_or_default()["name"].as_str().map(str::to_owned);
        listed.retain(|tool| name(tool).is_some_and(|name| owners.is_of(&name, server)));
    }
    Ok(match is_cost {
        true => Found::Cost(Cost::new(&listed, |name| owners.owner(name))),
        false => Found::Tools(listed),
    })
}

/// The requested data.
enum Found {
    Tools(Vec<Raw>),
    Instructions(Option<String>),
    Cost(Cost),
}

fn instructions(text: Option<&str>, as_json: bool, exit: Exit) -> Exit {
    if as_json {
        return output::json_data(&json!({"instructions": text}), exit);
    }
    match text {
        Some(text) => output::data(text, exit),
        None => {
            output::talk("no server has instructions");
            exit
        }
    }
}

fn list(tools: &[Raw], failures: &Failures, as_json: bool, exit: Exit) -> Exit {
    if as_json {
        return output::lists(&[("tools", tools)], &reply::failed(failures), exit);
    }
    let rows: Vec<Vec<String>> = tools
        .iter()
        .filter_map(|tool| tool.decode::<Value>().ok())
        .map(|tool| {
            let text = |key: &str| tool[key].as_str().unwrap_or_default().to_owned();
            vec![output::one_line(&text("name"), 128), output::summary(&text("description"))]
        })
        .collect();
    output::data(&output::table(&rows), exit)
}

fn find<'t>(tools: &'t [Raw], name: &str) -> Option<(&'t Raw, Value)> {
    tools.iter().find_map(|raw| {
        let tool: Value = raw.decode().ok()?;
        (tool["name"] == name).then_some((raw, tool))
    })
}

fn show(tools: &[Raw], name: &str, as_json: bool) -> Exit {
    let Some((raw, tool)) = find(tools, name) else {
        let names: Vec<String> = tools
            .iter()
            .filter_map(|tool| tool.decode::<Value>().ok()?["name"].as_str().map(str::to_owned))
            .collect();
        let meant = meant(name, names.iter().map(String::as_str), "`bridgehead tools` lists all tools");
        return output::wrong(&format!("no tool `{name}` is offered; {meant}"));
    };
    if as_json {
        return output::raw_data(raw.as_str(), Exit::Success);
    }
    let mut text = format!("{}\n", output::one_line(name, 128));
    if let Some(description) = tool["description"].as_str() {
        for line in description.lines() {
            text.push_str(&format!("  {}\n", output::one_line(line, usize::MAX)));
        }
    }
    for (title, key) in [("input", "inputSchema"), ("output", "outputSchema"), ("annotations", "annotations")]
    {
        if let Some(value) = tool.get(key) {
            text.push_str(&format!("\n{title}:\n{value:#}\n"));
        }
    }
    output::data(&text, Exit::Success)
}
