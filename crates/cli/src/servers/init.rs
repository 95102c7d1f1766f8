//! `bridgehead init`: writes a `bridgehead.toml` with comments to begin with.

use clap::Args;
use serde_json::json;

use super::{Edited, stop};
use crate::exit::Exit;
use crate::output;
use crate::run::Run;
use crate::servers_file::edit;
use crate::world::World;

/// The file to begin with. Everything in it is a comment, so it changes nothing.
const TEMPLATE: &str = include_str!("template.toml");

/// Write a bridgehead.toml with comments to begin with
#[derive(Debug, Args)]
#[command(after_help = "An existing file is never overwritten.
Exit codes: 0 written, 1 there is such a file already.

Examples:
  bridgehead init
  bridgehead init --scope project")]
pub(crate) struct Init {
    #[command(flatten)]
    edited: Edited,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run for Init {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        let file = match self.edited.file(world) {
            Ok(file) => file,
            Err(error) => return error.tell(self.json),
        };
        let written = edit(&file, world, |servers| match servers.is_new() {
            true => {
                servers.set_text(TEMPLATE);
                Ok(())
            }
            false => stop(
                format!(
                    "`{}` exists already and stays as it is; add a server to it with `bridgehead add`",
                    servers.path().display()
                ),
                Exit::Failure,
            ),
        });
        match written {
            Ok(_) if self.json => output::json_data(&json!({"ok": true, "file": file}), Exit::Success),
            Ok(_) => {
                let text = format!(
                    "wrote {}\nnext: add a server with `bridgehead add NAME -- command`",
                    file.display()
                );
                output::data(&text, Exit::Success)
            }
            Err(error) => error.tell(self.json),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use bridgehead::config::{Environment, load_text};

    use super::*;

    /// JOIN-3: the file can be used as it is, and so can everything that it suggests.
    #[test]
    fn the_template_can_be_used() {
        let environment =
            Environment::read(BTreeMap::from([("TRACKER_TOKEN".to_owned(), "t".to_owned())])).unwrap();
        let load =
            |text: String| load_text(Path::new("a.toml"), text.into_bytes(), &environment, Path::new("/"));
        assert!(load(TEMPLATE.to_owned()).unwrap().servers.is_empty());
        let suggested = |line: &&str| line.starts_with("[") || line.contains(" = ");
        let lines = TEMPLATE.lines().filter_map(|line| line.strip_prefix("# ")).filter(suggested);
        let config =
            load(lines.flat_map(|line| [line, "\n"]).collect()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((config.servers.len(), config.disabled.len(), config.warnings.len()), (1, 1, 0));
    }
}
