//! `bridgehead restart`: restarts one server of a running gateway.

use clap::Args;

use super::exit::Exit;
use super::instance::{Which, post};
use super::target::run_once;
use super::world::World;
use super::{Run, output};

/// Restart a server of the running gateway
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 the restart began, 2 no such server, 3 no gateway is running.

Examples:
  bridgehead restart files
  bridgehead restart files --instance 4711")]
pub(crate) struct Restart {
    /// The server, as `bridgehead status` shows it
    name: String,
    #[command(flatten)]
    which: Which,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Restart {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(restart: &Restart, world: &World) -> Exit {
    let instance = match restart.which.one(world) {
        Ok(instance) => instance,
        Err(exit) => return exit,
    };
    run_once(async {
        match post(&instance, "restart", &restart.name).await {
            Ok(answer) if restart.json => output::json_data(&answer, Exit::Success),
            Ok(_) => {
                output::talk(&format!("`{}` is being restarted; see `bridgehead status`", restart.name));
                Exit::Success
            }
            Err(refused) => refused.tell(restart.json),
        }
    })
}
