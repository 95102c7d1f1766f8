//! The command line: one module per verb, and what they share.
//!
//! Only this part of the project prints. stdout is data (on `serve --stdio` the protocol alone), stderr is
//! talk. A verb never ends the process itself: it gives back an [`Exit`], and the one `match` in `exit` says
//! which code that is.

mod audit;
mod call;
mod check;
mod completions;
mod demo;
mod doctor;
mod events;
mod exit;
mod explain;
mod instance;
mod log;
mod logs;
mod output;
mod relay;
mod reload;
mod remote;
mod restart;
mod serve;
mod status;
mod target;
mod tools;
mod trust;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use bridgehead::config::LogLevel;
use clap::{Args, Parser, Subcommand};

use self::exit::Exit;
use self::log::LogFormat;
use self::world::World;

/// The secured end of every MCP connection: any number of MCP servers behind one endpoint.
#[derive(Debug, Parser)]
#[command(
    name = "bridgehead",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  bridgehead serve                          the gateway on http://127.0.0.1:4848/mcp
  bridgehead tools                          what the configured servers offer
  bridgehead call add --args '{\"a\":1,\"b\":2}'
  bridgehead check                          the configuration, and whether each server starts
  bridgehead status                         how the running gateway and its servers are

Configuration: --config, BRIDGEHEAD_CONFIG, ./bridgehead.toml and ./.mcp.json once
you agreed to them, $XDG_CONFIG_HOME/bridgehead/bridgehead.toml; without any of
them a demo runs."
)]
struct Cli {
    #[command(flatten)]
    talk: Talk,
    #[command(subcommand)]
    verb: Verb,
}

/// What is written to stderr.
#[derive(Debug, Args)]
struct Talk {
    /// off, error, warn, info, debug or trace [default: info for serve, else warn]
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Logging, to stderr")]
    log_level: Option<LogLevel>,
    /// text or json
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        help_heading = "Logging, to stderr"
    )]
    log_format: LogFormat,
}

/// Which configuration is used.
#[derive(Debug, Args)]
struct Chosen {
    /// The configuration file: bridgehead.toml, or the mcpServers JSON of a client
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(serve::Serve),
    Tools(tools::Tools),
    Call(call::Call),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Status(status::Status),
    Logs(logs::Logs),
    Restart(restart::Restart),
    Events(events::Events),
    Audit(audit::Audit),
    Explain(explain::Explain),
    Completions(completions::Completions),
    /// The bundled demo server, on stdin and stdout
    #[command(hide = true)]
    DemoServer,
    /// One remote server, on stdin and stdout, for a gateway
    #[command(hide = true)]
    Relay,
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let Cli { talk, verb } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json(std::env::args_os()) => {
            output::talk_json();
            output::talk(error.render().to_string().trim_end());
            return Exit::Usage.into();
        }
        Err(error) => error.exit(),
    };
    guarded(|| run(&talk, verb)).into()
}

/// Whether a command line that cannot be read wants JSON on stderr all the same.
fn asks_for_json(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> bool {
    let arguments: Vec<_> = arguments.into_iter().map(|one| one.to_string_lossy().into_owned()).collect();
    arguments.iter().any(|one| one == "--log-format=json")
        || arguments.windows(2).any(|pair| pair == ["--log-format", "json"])
}

/// A panic outside of everything that catches one is logged by then; it is the general failure, not the code
/// that the language would give it.
fn guarded(run: impl FnOnce() -> Exit) -> Exit {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Exit::Failure)
}

fn run(talk: &Talk, verb: Verb) -> Exit {
    if talk.log_format == LogFormat::Json {
        output::talk_json();
    }
    // Neither knows a configuration or reads the environment: the demo is an upstream like any other, and a
    // shell that starts must not stumble over a variable of ours.
    match &verb {
        Verb::DemoServer => return demo::run(),
        Verb::Completions(completions) => return completions::run(completions),
        Verb::Explain(explain) => return explain::run(explain),
        _ => {}
    }
    let wants_json = match &verb {
        Verb::Serve(_) | Verb::Explain(_) | Verb::Completions(_) | Verb::DemoServer | Verb::Relay => false,
        Verb::Tools(tools) => tools.json,
        Verb::Call(call) => call.json,
        Verb::Check(check) => check.json,
        Verb::Doctor(doctor) => doctor.json,
        Verb::Status(status) => status.json,
        Verb::Logs(logs) => logs.json,
        Verb::Restart(restart) => restart.json,
        Verb::Events(events) => events.json,
        Verb::Audit(audit) => audit.json,
    };
    let speaks_mcp = matches!(&verb, Verb::Serve(serve) if serve.stdio);
    let world = match World::read(speaks_mcp) {
        Ok(world) => world,
        Err(error) => return output::configuration_error(&error, wants_json),
    };
    let usual = if matches!(verb, Verb::Serve(_)) { LogLevel::Info } else { LogLevel::Warn };
    log::install(talk.log_level, &world.environment, usual, talk.log_format);
    match verb {
        Verb::Serve(serve) => serve::run(&serve, &world),
        Verb::Tools(tools) => tools::run(&tools, &world),
        Verb::Call(call) => call::run(&call, &world),
        Verb::Check(check) => check::run(&check, &world),
        Verb::Doctor(doctor) => doctor::run(&doctor, &world),
        Verb::Status(status) => status::run(&status, &world),
        Verb::Logs(logs) => logs::run(&logs, &world),
        Verb::Restart(restart) => restart::run(&restart, &world),
        Verb::Events(events) => events::run(&events, &world),
        Verb::Audit(audit) => audit::run(&audit, &world),
        Verb::Relay => relay::run(),
        Verb::Explain(_) | Verb::Completions(_) | Verb::DemoServer => Exit::Success,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_verb_shows_an_example() {
        let mut command = Cli::command();
        command.build();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        {
            let example = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains("bridgehead"), "{} shows no example", verb.get_name());
        }
        command.debug_assert();
    }

    /// A stale page fails; `UPDATE_REFERENCE=1` writes it anew.
    #[test]
    fn the_man_pages_are_fresh() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        for command in std::iter::once(&command).chain(shown) {
            let man = clap_mangen::Man::new(command.clone());
            let (name, mut page) = (man.get_filename(), Vec::new());
            man.render(&mut page).unwrap();
            let file = folder.join(&name);
            if std::env::var_os("UPDATE_REFERENCE").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&file, &page).unwrap();
            }
            let written = std::fs::read(&file).unwrap_or_default();
            assert!(written == page, "docs/man/{name} is stale; run `cargo xtask generate`");
        }
    }

    /// SRV-2: a panic outside a handler is exit code 1.
    #[test]
    fn a_panic_is_the_general_failure() {
        assert_eq!(guarded(|| Exit::Success), Exit::Success);
        assert_eq!(guarded(|| panic!("nobody catches this")), Exit::Failure);
    }
}
