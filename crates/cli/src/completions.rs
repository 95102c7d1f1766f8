//! `bridgehead completions`: prints the script with which a shell completes our command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::exit::Exit;
use super::{Cli, Run, output};

/// Print the completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bridgehead completions bash > ~/.local/share/bash-completion/completions/bridgehead
  bridgehead completions fish > ~/.config/fish/completions/bridgehead.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Run for Completions {
    /// A wrong variable of ours must not break a starting shell.
    fn run_anywhere(&self) -> Option<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "bridgehead", &mut script);
        Some(output::raw_data(&String::from_utf8_lossy(&script), Exit::Success))
    }
}
