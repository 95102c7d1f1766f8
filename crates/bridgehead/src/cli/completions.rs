//! `bridgehead completions`: the script that lets a shell complete our command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::exit::Exit;
use super::{Cli, output};

/// Print the completions of a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bridgehead completions bash > ~/.local/share/bash-completion/completions/bridgehead
  bridgehead completions fish > ~/.config/fish/completions/bridgehead.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Runs the verb.
pub(crate) fn run(completions: &Completions) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "bridgehead", &mut script);
    output::raw_data(&String::from_utf8_lossy(&script), Exit::Success)
}
