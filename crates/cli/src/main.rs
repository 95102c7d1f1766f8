//! The `bridgehead` program: reads the command line and the environment, runs one verb, exits with its code. One module per
//! verb, and the code they share.
//!
//! Only this package of the project prints. stdout is for data (with `serve --stdio`, for the protocol alone), stderr for
//! messages. A verb never ends the process itself: it returns an [`Exit`], and one `match` in `exit` maps it to a code.

mod address;
mod answering;
mod audit;
mod call;
mod check;
mod clients;
mod completions;
mod connect;
mod demo;
mod doctor;
mod events;
mod exit;
mod explain;
mod hint;
mod import;
mod instance;
mod join;
mod key;
mod log;
mod logs;
mod meant;
mod output;
mod prompts;
mod relay;
mod reload;
mod remote;
mod replace;
mod reply;
mod request;
mod resources;
mod restart;
mod run;
mod salvage;
mod screen;
mod serve;
mod servers;
mod servers_file;
mod service;
mod starting;
mod status;
mod table;
mod target;
mod tools;
mod trust;
mod uninstall;
mod world;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use bridgehead::config::LogLevel;
use clap::error::ContextKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use self::exit::Exit;
use self::log::LogFormat;
use self::run::Run;
use self::world::World;

/// mimalloc, because a call makes many small allocations. Huge pages are off: they would double the size of an idle gateway.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The secured end of every MCP connection: any number of MCP servers behind one endpoint.
#[derive(Debug, Parser)]
#[command(
    name = "bridgehead",
    version,
    arg_required_else_help = true,
    after_help = help()
)]
struct Cli {
    #[command(flatten)]
    talk: Talk,
    #[command(subcommand)]
    verb: Verb,
}

/// What the help of the program ends with.
fn help() -> String {
    format!("{EXAMPLES}\n\n{}", Exit::line())
}

const EXAMPLES: &str = "Examples:
  bridgehead serve                          the gateway on http://127.0.0.1:4848/mcp
  bridgehead import                         the servers of your other MCP clients
  bridgehead add files -- npx -y @modelcontextprotocol/server-filesystem ~/notes
  bridgehead tools                          what the configured servers offer
  bridgehead call add --args '{\"a\":1,\"b\":2}'
  bridgehead check                          the configuration, and whether each server starts
  bridgehead status                         the state of the running gateway and its servers

Configuration: --config, BRIDGEHEAD_CONFIG, ./bridgehead.toml and ./.mcp.json once
you agreed to them with `bridgehead trust`, ~/.config/bridgehead/bridgehead.toml ($XDG_CONFIG_HOME instead of
~/.config, if it is set); without any of them a demo runs.";

/// Options for the log on stderr.
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
    Prompts(prompts::Prompts),
    Resources(resources::Resources),
    Connect(connect::Connect),
    Disconnect(connect::Disconnect),
    Add(Box<servers::Add>),
    Remove(servers::Remove),
    Enable(servers::Enable),
    Disable(servers::Disable),
    Init(servers::Init),
    Trust(trust::TrustFile),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Status(status::Status),
    Logs(logs::Logs),
    Restart(restart::Restart),
    Events(events::Events),
    Audit(audit::Audit),
    Key(key::Keys),
    Service(service::Service),
    Import(import::Import),
    Explain(explain::Explain),
    Uninstall(uninstall::Uninstall),
    Completions(completions::Completions),
    #[command(hide = true)]
    DemoServer(demo::DemoServer),
    #[command(hide = true)]
    Relay(relay::Relay),
}

impl Verb {
    /// A new verb is a variant above, a line here, and a file with its `Run`.
    fn as_run(&self) -> &dyn Run {
        match self {
            Self::Serve(verb) => verb,
            Self::Tools(verb) => verb,
            Self::Call(verb) => verb,
            Self::Prompts(verb) => verb,
            Self::Resources(verb) => verb,
            Self::Connect(verb) => verb,
            Self::Disconnect(verb) => verb,
            Self::Add(verb) => &**verb,
            Self::Remove(verb) => verb,
            Self::Enable(verb) => verb,
            Self::Disable(verb) => verb,
            Self::Init(verb) => verb,
            Self::Trust(verb) => verb,
            Self::Check(verb) => verb,
            Self::Doctor(verb) => verb,
            Self::Status(verb) => verb,
            Self::Logs(verb) => verb,
            Self::Restart(verb) => verb,
            Self::Events(verb) => verb,
            Self::Audit(verb) => verb,
            Self::Key(verb) => verb,
            Self::Service(verb) => verb,
            Self::Import(verb) => verb,
            Self::Explain(verb) => verb,
            Self::Uninstall(verb) => verb,
            Self::Completions(verb) => verb,
            Self::DemoServer(verb) => verb,
            Self::Relay(verb) => verb,
        }
    }
}

fn main() -> ExitCode {
    // First, because a helper does not use the command line.
    bridgehead::main_if_asked();
    let Cli { talk, verb } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(error).into(),
    };
    guarded(|| run(&talk, verb.as_run())).into()
}

/// Shows the help or the version that was asked for, or why the command line cannot be read.
fn refused(mut error: clap::Error) -> Exit {
    if !error.use_stderr() {
        error.exit();
    }
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let hint = hint::hint(&error, &Cli::command(), &words);
    if hint.is_some() {
        // It knows more than what the parser suggests.
        error.remove(ContextKind::Suggested);
    }
    let as_json = asks_for_json(std::env::args_os());
    match as_json {
        true => {
            output::talk_json();
            output::talk(error.render().to_string().trim_end());
        }
        // With the colours that the terminal takes.
        false => drop(error.print()),
    }
    if let Some(hint) = hint {
        output::talk(&format!("hint: {hint}"));
    }
    Exit::Usage
}

/// Whether an invalid command line still asks for JSON on stderr.
fn asks_for_json(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let arguments: Vec<_> = arguments.into_iter().map(|one| one.to_string_lossy().into_owned()).collect();
    arguments.iter().any(|one| one == "--log-format=json")
        || arguments.windows(2).any(|pair| pair == ["--log-format", "json"])
}

/// Turns an uncaught panic, which is already logged, into the general failure code instead of Rust's code for panics.
fn guarded(run: impl FnOnce() -> Exit) -> Exit {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Exit::Failure)
}

fn run(talk: &Talk, verb: &dyn Run) -> Exit {
    if talk.log_format == LogFormat::Json {
        output::talk_json();
    }
    if let Some(exit) = verb.run_anywhere() {
        return exit;
    }
    let world = match World::read(verb.speaks_mcp()) {
        Ok(world) => world,
        Err(error) if verb.only_reads() => {
            salvage::show_mistakes(&error);
            match World::to_read() {
                Ok(world) => world,
                Err(error) => return output::configuration_error(&error, verb.json()),
            }
        }
        Err(error) => return output::configuration_error(&error, verb.json()),
    };
    log::install(talk.log_level, &world.environment, verb.log_level(), talk.log_format);
    verb.run(&world)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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

    /// The program and all its verbs, as a user sees them.
    fn commands() -> Vec<clap::Command> {
        let mut program = Cli::command().disable_help_subcommand(true).term_width(100);
        program.build();
        let mut commands = vec![program.clone()];
        let mut open: Vec<clap::Command> = shown(&program).rev().cloned().collect();
        while let Some(command) = open.pop() {
            open.extend(shown(&command).rev().cloned());
            commands.push(command);
        }
        commands
    }

    fn shown(command: &clap::Command) -> impl DoubleEndedIterator<Item = &clap::Command> {
        command.get_subcommands().collect::<Vec<_>>().into_iter().filter(|verb| !verb.is_hide_set())
    }

    /// A stale page fails; `UPDATE_REFERENCE=1` rewrites it.
    #[track_caller]
    pub(crate) fn check_page(name: &str, page: &[u8]) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, page).unwrap();
        }
        let written = std::fs::read(&file).unwrap_or_default();
        assert!(written == page, "docs/{name} is stale; run `cargo xtask generate`");
    }

    #[test]
    fn the_man_pages_are_fresh() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        for command in std::iter::once(&command).chain(shown(&command)) {
            let man = clap_mangen::Man::new(command.clone());
            let mut page = Vec::new();
            man.render(&mut page).unwrap();
            check_page(&format!("man/{}", man.get_filename()), &page);
        }
    }

    #[test]
    fn the_page_of_commands_is_fresh() {
        let mut page = "# Commands\n\n<!-- Written by `cargo xtask generate` from the help texts of the program. -->\n\n\
            stdout is data, stderr is for people, and every command takes `--json` where it prints data.\n\n\
            ## Exit codes\n\n"
            .to_owned();
        page += &Exit::page();
        for mut command in commands() {
            let name = command.get_bin_name().unwrap_or("bridgehead").to_owned();
            let help = command.render_long_help().to_string();
            let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
            page += &format!("\n## {name}\n\n```text\n{}\n```\n", help.join("\n"));
        }
        check_page("commands.md", page.as_bytes());
    }

    /// WORD-1: help texts follow the same rules: every verb and option says what it does, in one short line that starts with a capital
    /// letter and has no full stop; every verb shows examples; no text names a path of the repository.
    #[test]
    fn help_texts_follow_the_rules() {
        let mut broken = Vec::new();
        for mut command in commands() {
            let name = command.get_bin_name().unwrap_or("bridgehead").to_owned();
            let help = command.render_long_help().to_string();
            if ["docs/", "crates/", "xtask"].iter().any(|path| help.contains(path)) {
                broken.push(format!("{name}: the help names a path of the repository"));
            }
            if !help.contains("Examples:") && command.get_subcommands().next().is_none() {
                broken.push(format!("{name}: the help has no examples"));
            }
            let about = command.get_about().map(ToString::to_string);
            let options = command.get_arguments().filter(|option| !option.is_hide_set()).map(|option| {
                (format!("{name} {}", option.get_id()), option.get_help().map(ToString::to_string))
            });
            for (place, text) in std::iter::once((name.clone(), about)).chain(options) {
                let Some(text) = text else {
                    broken.push(format!("{place}: there is no help"));
                    continue;
                };
                let first = text.chars().next().unwrap_or_default();
                if first.is_lowercase() && !text.starts_with("off, ") && !text.starts_with("text or ") {
                    broken.push(format!("{place}: starts without a capital letter: {text}"));
                }
                if text.ends_with('.') || text.chars().count() > 140 {
                    broken.push(format!("{place}: ends with a full stop, or is long: {text}"));
                }
            }
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    /// JOIN-8: the exit codes that a verb's help names are those of the one table.
    #[test]
    fn verbs_name_known_exit_codes() {
        for mut command in commands() {
            let help = command.render_long_help().to_string();
            let Some((_, told)) = help.split_once("Exit codes:") else { continue };
            let told = told.split("\n\n").next().unwrap_or_default();
            let codes: Vec<u8> = told
                .split(|letter: char| !letter.is_ascii_digit())
                .filter_map(|digits| digits.parse().ok())
                .collect();
            assert!(!codes.is_empty(), "{told}");
            for code in codes {
                assert!(Exit::ALL.iter().any(|exit| exit.code() == code), "{}: {code}", command.get_name());
            }
        }
    }

    /// SRV-2: a panic outside a handler is exit code 1.
    #[test]
    fn a_panic_is_the_general_failure() {
        assert_eq!(guarded(|| Exit::Success), Exit::Success);
        assert_eq!(guarded(|| panic!("nobody catches this")), Exit::Failure);
    }
}
