//! `bridgehead remove`: takes a server out of `bridgehead.toml`.

use clap::Args;
use serde_json::json;

use super::takeover::{Change, Watch};
use super::{Edited, expect};
use crate::exit::Exit;
use crate::output;
use crate::run::Run;
use crate::servers_file::edit;
use crate::world::World;

/// Remove a server from your bridgehead.toml
#[derive(Debug, Args)]
#[command(
    after_help = "The comment directly above the server goes with it, and so do the secrets that `add` and `import` kept for it alone. A running
gateway stops it at once.
Exit codes: 0 removed, 1 the file cannot be edited, 2 no such server, 78 the file is wrong.

Examples:
  bridgehead remove github
  bridgehead remove db --scope project"
)]
pub(crate) struct Remove {
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

impl Run for Remove {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        let file = match self.edited.file(world) {
            Ok(file) => file,
            Err(error) => return error.tell(self.json),
        };
        let change = Change::begin(&file, &self.edited, world);
        let edited = edit(&file, world, |servers| {
            expect(servers, &self.name, world)?;
            servers.remove(&self.name)?;
            Ok(servers.secrets_path().to_owned())
        });
        match edited {
            Ok((secrets, saved)) => {
                if !saved.forgotten.is_empty() {
                    let (names, file) = (saved.forgotten.join(", "), secrets.display());
                    output::talk(&format!("note: removed its secrets from `{file}`: {names}"));
                }
                let text = format!("removed {} from {}", self.name, file.display());
                let done = json!({
                    "removed": self.name,
                    "secrets": {"file": saved.secrets, "variables": saved.forgotten},
                });
                change.without_start((&text, &done), &self.watch, self.json)
            }
            Err(error) => error.tell(self.json),
        }
    }
}
