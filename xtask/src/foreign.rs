//! Puts the gateway between third-party clients and servers, and checks what comes through.
//!
//! The programs are installed at pinned versions into the target folder. The drivers in `foreign/` and `crates/foreign`
//! use the foreign SDKs and print one line of JSON per check. This chore starts the gateway, gives the drivers their
//! orders, looks for leftover processes, and reports the outcome. It fails if any check fails.

mod access;
mod clients;
mod cold;
mod connect;
mod hour;
mod install;
mod interactive;
mod outcome;
mod program;
mod remote;
mod servers;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use install::Installed;

pub(crate) use install::{packages as install_packages, succeed};
use outcome::Outcomes;
pub(crate) use program::{MARK, command, leftovers, mark, wait};

const USAGE: &str = "usage: cargo xtask foreign [--full] [--only clients|servers|remote|interactive|access|connect|cold|hour] [--json FILE]";
/// How often the long form repeats the clients, to catch races.
const FULL_ROUNDS: u32 = 5;

/// The options of the chore.
struct Options {
    full: bool,
    only: Option<Part>,
    json: Option<PathBuf>,
}

/// A part that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Clients,
    Servers,
    Remote,
    Interactive,
    Access,
    Connect,
    Cold,
    /// Not part of a whole run, because it needs the packages that `cargo xtask package` makes.
    Hour,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self> {
        let mut options = Self { full: false, only: None, json: None };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--full" => options.full = true,
                "--only" => {
                    options.only = Some(match arguments.next() {
                        Some(&"clients") => Part::Clients,
                        Some(&"servers") => Part::Servers,
                        Some(&"remote") => Part::Remote,
                        Some(&"interactive") => Part::Interactive,
                        Some(&"access") => Part::Access,
                        Some(&"connect") => Part::Connect,
                        Some(&"cold") => Part::Cold,
                        Some(&"hour") => Part::Hour,
                        _ => bail!("--only needs the name of a part; {USAGE}"),
                    });
                }
                "--json" => {
                    let file = arguments.next().with_context(|| format!("--json needs a file; {USAGE}"))?;
                    options.json = Some(PathBuf::from(file));
                }
                unknown => bail!("`{unknown}` is not an option; {USAGE}"),
            }
        }
        Ok(options)
    }
}

/// Runs everything; fails if a check fails.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let started = Instant::now();
    let installed = install::install(root)?;
    println!("installed and built in {:.0} s\n", started.elapsed().as_secs_f32());
    let outcomes = observe(&installed, &options)?;

    println!("{}", outcomes.report());
    if let Some(file) = &options.json {
        let text = format!("{:#}\n", outcomes.to_json(options.full));
        std::fs::write(file, text).with_context(|| format!("{} could not be written", file.display()))?;
    }
    println!("in {:.0} s; the logs are in {}", started.elapsed().as_secs_f32(), installed.logs().display());
    // The last line is the one that CI and people look for.
    println!("{} passed, {} failed", outcomes.passed(), outcomes.failed());
    if outcomes.failed() > 0 {
        bail!("{} checks failed", outcomes.failed());
    }
    Ok(())
}

fn observe(installed: &Installed, options: &Options) -> Result<Outcomes> {
    let mut outcomes = Outcomes::default();
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(Part::Clients) {
        let rounds = if options.full { FULL_ROUNDS } else { 1 };
        for _ in 0..rounds {
            clients::run(installed, &mut outcomes)?;
        }
    }
    if wanted(Part::Servers) {
        servers::run(installed, options.full, &mut outcomes)?;
    }
    if wanted(Part::Remote) {
        remote::run(installed, &mut outcomes)?;
    }
    if wanted(Part::Interactive) {
        interactive::run(installed, options.full, &mut outcomes)?;
    }
    if wanted(Part::Access) {
        access::run(installed, &mut outcomes)?;
    }
    if wanted(Part::Connect) {
        connect::run(installed, &mut outcomes)?;
    }
    if wanted(Part::Cold) {
        cold::run(installed, &mut outcomes)?;
    }
    if options.only == Some(Part::Hour) {
        hour::run(installed, &mut outcomes)?;
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_others_refused() {
        let options = Options::parse(&["--json", "out.json", "--full"]).unwrap();
        assert!(options.full);
        assert_eq!(options.json.as_deref(), Some(Path::new("out.json")));
        assert_eq!(options.only, None);
        assert_eq!(Options::parse(&["--only", "remote"]).unwrap().only, Some(Part::Remote));
        assert!(Options::parse(&["--only"]).is_err());
        assert!(Options::parse(&["--only", "everything"]).is_err());
        assert!(Options::parse(&["--json"]).is_err());
        assert!(Options::parse(&["--fast"]).is_err());
    }
}
