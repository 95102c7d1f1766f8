//! `bridgehead uninstall`: takes back what Bridgehead has written for this user, and shows it first.
//!
//! Clients get their files back, the service goes, and so does what a gateway keeps for itself. The record, the keys and the
//! configuration stay unless they are named: nobody can make them again.

mod found;

use std::fs;
use std::io::{self, BufRead};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use self::found::{Found, What};
use super::connect;
use super::exit::Exit;
use super::service;
use super::world::{World, short};
use super::{Run, output};

/// Remove what Bridgehead has written for you; list it with --dry-run
#[derive(Debug, Args)]
#[command(
    after_help = "Takes the entries out of connected clients, removes the service, and removes what gateways keep for themselves.
The record of calls, API keys and your configuration stay unless --also names them. The program itself is removed as it was
installed: cargo uninstall bridgehead-cli, npm uninstall -g bridgehead or pipx uninstall bridgehead.
Exit codes: 0 done, 1 a gateway still runs, or something could not be removed.

Examples:
  bridgehead uninstall --dry-run                 what would go, and what would stay
  bridgehead uninstall
  bridgehead uninstall --also record,keys,configuration --yes"
)]
pub(crate) struct Uninstall {
    /// What goes too: record, keys, configuration; may be repeated
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', hide_possible_values = true)]
    also: Vec<Also>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Ask nothing
    #[arg(long, short)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What stays unless it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Also {
    Record,
    Keys,
    Configuration,
}

impl Run for Uninstall {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        let asks = world.asks() && !self.yes && !self.json;
        self.uninstall(world, asks.then_some(&mut io::stdin().lock()))
    }
}

/// Everything that concerns the removal.
struct Plan {
    /// The clients that are connected, and their files.
    clients: Vec<(&'static str, PathBuf)>,
    units: Vec<PathBuf>,
    found: Found,
}

impl Plan {
    /// Whether nothing was found.
    fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.units.is_empty() && self.found.files.is_empty()
    }
}

impl Uninstall {
    /// Removes. With `answers` the user is asked first.
    fn uninstall(&self, world: &World, answers: Option<&mut dyn BufRead>) -> Exit {
        let running = found::gateways(world);
        let plan = Plan {
            clients: connect::connected(world),
            units: service::units(world),
            found: Found::of(world),
        };
        if !self.json {
            self.show(&plan, world);
        }
        if self.dry_run {
            if !self.json && plan.is_empty() {
                output::talk("nothing of Bridgehead is here, except the program");
            }
            for pid in &running {
                output::talk(&format!(
                    "note: a gateway with pid {pid} is running; end it before you uninstall"
                ));
            }
            return if self.json { self.tell(&plan, &[], Exit::Success) } else { Exit::Success };
        }
        let goes = plan.found.files.iter().any(|(what, _)| what.goes(&self.also));
        if !goes && plan.clients.is_empty() && plan.units.is_empty() {
            output::talk("nothing is left to remove");
            return if self.json { self.tell(&plan, &[], Exit::Success) } else { Exit::Success };
        }
        if !running.is_empty() {
            let pids: Vec<String> = running.iter().map(ToString::to_string).collect();
            let reason = format!("a gateway is running; end it first: kill {}", pids.join(" "));
            return output::failed(&reason, Exit::Failure, self.json);
        }
        match answers {
            Some(answers) => {
                output::prompt("Remove this? [y/N] ");
                let mut line = String::new();
                drop(answers.read_line(&mut line));
                if !["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()) {
                    output::talk("nothing was changed");
                    return Exit::Success;
                }
            }
            None if self.yes => {}
            None => {
                return output::failed(
                    "nobody can be asked here; say --yes, or --dry-run",
                    Exit::Usage,
                    self.json,
                );
            }
        }
        let failures = self.remove(&plan, world);
        for failure in &failures {
            output::talk(&format!("error: {failure}"));
        }
        let exit = if failures.is_empty() { Exit::Success } else { Exit::Failure };
        if self.json {
            return self.tell(&plan, &failures, exit);
        }
        if failures.is_empty() {
            let program = std::env::current_exe().map(|path| short(&path, world.home())).unwrap_or_default();
            output::talk(&format!("done; the program itself is {program}, and goes as it was installed"));
        }
        exit
    }

    /// Removes everything that goes. Returns what could not be removed.
    fn remove(&self, plan: &Plan, world: &World) -> Vec<String> {
        // The clients first: their files are given back with what `connected.json` has.
        let mut failures = connect::undo_all(world);
        if let Err(reason) = service::remove(world) {
            failures.push(reason);
        }
        if !failures.is_empty() {
            return failures;
        }
        let going = plan.found.files.iter().filter(|(what, _)| what.goes(&self.also));
        failures.extend(going.filter_map(|(_, path)| found::remove(path).err()));
        for folder in &plan.found.folders {
            // Fails where something is left in it.
            drop(fs::remove_dir(folder));
        }
        failures
    }

    fn show(&self, plan: &Plan, world: &World) {
        let mut rows: Vec<Vec<String>> = vec![["WHAT", "PLACE", ""].map(str::to_owned).to_vec()];
        let mut row = |what: &str, place: &PathBuf, fate: String| {
            rows.push(vec![what.to_owned(), short(place, world.home()), fate]);
        };
        for (client, file) in &plan.clients {
            row("entry", file, format!("is taken out of {client}"));
        }
        plan.units.iter().for_each(|unit| row("service", unit, "goes".to_owned()));
        for (what, path) in &plan.found.files {
            let fate = match what.goes(&self.also) {
                true => "goes".to_owned(),
                false => format!("stays; --also {}", what.as_str()),
            };
            row(what.as_str(), path, fate);
        }
        for path in plan.found.others() {
            row("other", &path, "stays; not ours".to_owned());
        }
        if rows.len() > 1 {
            output::data(&output::table(&rows), Exit::Success);
        }
    }

    fn tell(&self, plan: &Plan, failures: &[String], exit: Exit) -> Exit {
        let files = |goes: bool| -> Vec<Value> {
            let files = plan.found.files.iter().filter(|(what, _)| what.goes(&self.also) == goes);
            files.map(|(what, path): &(What, PathBuf)| json!({"what": what.as_str(), "path": path})).collect()
        };
        let clients: Vec<Value> =
            plan.clients.iter().map(|(client, file)| json!({"client": client, "file": file})).collect();
        let report = json!({
            "ok": exit == Exit::Success,
            "dryRun": self.dry_run,
            "clients": clients,
            "service": plan.units,
            "goes": files(true),
            "stays": files(false),
            "notOurs": plan.found.others(),
            "failures": failures,
        });
        output::json_data(&report, exit)
    }
}
