//! `bridgehead enable` and `bridgehead disable`: turn a server of `bridgehead.toml` on and off.

use clap::Args;
use serde_json::json;

use super::takeover::{Change, Watch};
use super::{Edited, expect};
use crate::exit::Exit;
use crate::run::Run;
use crate::servers_file::edit;
use crate::world::World;

/// Turn a server of your bridgehead.toml on, and start it
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 on and ready, 1 on but not ready, 2 no such server, 78 the file is wrong.

Examples:
  bridgehead enable github
  bridgehead enable db --scope project"
)]
pub(crate) struct Enable {
    #[command(flatten)]
    turned: Turned,
}

/// Turn a server of your bridgehead.toml off, and keep it in the file
#[derive(Debug, Args)]
#[command(after_help = "A running gateway stops it at once.
Exit codes: 0 off, 1 the file cannot be edited, 2 no such server, 78 the file is wrong.

Examples:
  bridgehead disable github
  bridgehead disable db --scope project")]
pub(crate) struct Disable {
    #[command(flatten)]
    turned: Turned,
}

#[derive(Debug, Args)]
struct Turned {
    /// The server
    name: String,
    #[command(flatten)]
    edited: Edited,
    #[command(flatten)]
    watch: Watch,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Enable {
    fn json(&self) -> bool {
        self.turned.json
    }

    fn run(&self, world: &World) -> Exit {
        self.turned.run(true, world)
    }
}

impl Run for Disable {
    fn json(&self) -> bool {
        self.turned.json
    }

    fn run(&self, world: &World) -> Exit {
        self.turned.run(false, world)
    }
}

impl Turned {
    fn run(&self, on: bool, world: &World) -> Exit {
        let Self { name, edited, watch, json } = self;
        let file = match edited.file(world) {
            Ok(file) => file,
            Err(error) => return error.tell(*json),
        };
        let change = Change::begin(&file, edited, world);
        let edited = edit(&file, world, |servers| {
            expect(servers, name, world)?;
            servers.turn(name, on)
        });
        let changed = match edited {
            Ok((changed, _)) => changed,
            Err(error) => return error.tell(*json),
        };
        let word = if on { "enabled" } else { "disabled" };
        let done = json!({ (word): name, "changed": changed });
        let text = match changed {
            true => format!("{word} {name} in {}", file.display()),
            false => format!("{name} is {word} already in {}", file.display()),
        };
        match (on, changed) {
            (true, true) => change.with_start(name, (&text, &done), watch, *json),
            (false, true) => change.without_start((&text, &done), watch, *json),
            (_, false) => change.nothing((&text, &done), *json),
        }
    }
}
