//! Installs and runs the official suite, and reads its results.
//!
//! The versions are pinned in `conformance/package.json`; everything is installed into `target/conformance`. The suite
//! needs a newer Node than many systems have, so npm installs one with it where it has one for the platform.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::driver;
use crate::{shown, steps};

/// The pinned version of the suite.
pub(crate) const VERSION: &str = "0.2.0-alpha.12";

/// The sets of requirements to run.
pub(crate) const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// The fixture on the TypeScript SDK.
const FIXTURE: &str = "fixture.mjs";
const PACKAGE: &str = "node_modules/@modelcontextprotocol/conformance";

/// What the suite judges.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    /// The suite's name for it.
    const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// One check that the suite made.
#[derive(Clone, Default)]
pub(crate) struct Check {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) message: String,
}

/// The checks of a run, by scenario.
pub(crate) type Results = BTreeMap<String, Vec<Check>>;

/// The installed suite.
pub(crate) struct Suite {
    folder: PathBuf,
    node: PathBuf,
}

impl Suite {
    /// Installs the pinned packages, unless they are already installed.
    pub(crate) fn install(root: &Path) -> Result<Self> {
        let folder = root.join("target/conformance");
        fs::create_dir_all(&folder)?;
        let pinned = |name| fs::read(root.join("conformance").join(name));
        let lock = pinned("package-lock.json")?;
        // npm writes the second file last, so its existence means that an installation was completed.
        let is_installed = fs::read(folder.join("package-lock.json")).is_ok_and(|present| present == lock)
            && folder.join("node_modules/.package-lock.json").exists();
        if !is_installed {
            fs::write(folder.join("package.json"), pinned("package.json")?)?;
            fs::write(folder.join("package-lock.json"), &lock)?;
            println!("installing the conformance suite into {}", folder.display());
            let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
            let status = shown::status(program("npm").args(arguments).current_dir(&folder));
            let status =
                status.context("npm could not be started; the conformance suite is installed with it")?;
            if !status.success() {
                bail!("npm ci ended with {status}");
            }
        }
        // Node searches packages from the folder of the script.
        fs::copy(root.join("conformance").join(FIXTURE), folder.join(FIXTURE))?;
        let node = fs::read_dir(folder.join("node_modules"))?
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("node-"))
            .map(|entry| entry.path().join("bin/node"))
            .find(|node| node.exists());
        // If npm has none for this platform, the one in the PATH must be new enough.
        Ok(Self { folder, node: node.unwrap_or_else(|| "node".into()) })
    }

    /// Node, and the fixture on the TypeScript SDK.
    pub(crate) fn typescript_fixture(&self) -> (PathBuf, PathBuf) {
        (self.node.clone(), self.folder.join(FIXTURE))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The scenarios of a set for one side, and whether each is scored. Tasks and authorization are left out.
    pub(crate) fn scenarios(&self, side: Side, revision: &str) -> Result<BTreeMap<String, bool>> {
        let file = self.folder.join(PACKAGE).join(format!("requirements/{revision}.yaml"));
        let text = fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        let scenarios = read_scenarios(&text, side);
        if scenarios.is_empty() {
            bail!("no scenarios were found in {}; has its format changed?", file.display());
        }
        Ok(scenarios)
    }

    /// Runs a set against a server and reads the checks. A scenario that fails is a result, not an error.
    pub(crate) fn run(&self, url: &str, revision: &str, label: &str) -> Result<Results> {
        self.judge(Side::Server, &["--url", url, "--requirements", revision], label, &[])
    }

    /// Runs a set with the gateway as the client, played by this program ([`super::driver`]).
    pub(crate) fn run_client(&self, gateway: &Path, revision: &str, label: &str) -> Result<Results> {
        let player = steps::this_program()?;
        let command = format!("{} {}", player.display(), super::PLAY);
        let arguments = ["--command", &command, "--requirements", revision];
        self.judge(Side::Client, &arguments, label, &[(driver::GATEWAY, gateway)])
    }

    fn judge(
        &self,
        side: Side,
        arguments: &[&str],
        label: &str,
        variables: &[(&str, &Path)],
    ) -> Result<Results> {
        let results = self.folder.join("results").join(label);
        if results.exists() {
            fs::remove_dir_all(&results)?;
        }
        fs::create_dir_all(&results)?;
        let log = File::create(results.with_extension("log"))?;
        let status = program(&self.node)
            .arg(self.folder.join(PACKAGE).join("dist/index.js"))
            .arg(side.name())
            .args(arguments)
            .arg("--output-dir")
            .arg(&results)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .and_then(|mut suite| suite.wait());
        status
            .with_context(|| format!("could not start {}; the suite needs Node 22", self.node.display()))?;
        let read = read_results(side, &results)?;
        if read.is_empty() {
            bail!("the suite wrote no results; see {}", results.with_extension("log").display());
        }
        Ok(read)
    }
}

/// A program that a chore runs.
#[expect(
    clippy::disallowed_methods,
    reason = "a chore runs programs as a person would; this is not part of the gateway"
)]
pub(crate) fn program(path: impl AsRef<OsStr>) -> Command {
    Command::new(path)
}

/// Reads one side's part of a requirements file: the list under its name, and the entries of `not_scored:` with its leg.
fn read_scenarios(text: &str, side: Side) -> BTreeMap<String, bool> {
    let mut scenarios = BTreeMap::new();
    let (mut section, mut unscored) = ("", "");
    for line in text.lines() {
        let item = line.trim_start().trim_start_matches("- ");
        if !line.starts_with([' ', '#']) {
            section = line.trim_end_matches(':');
        } else if section == side.name() && line.starts_with("  - ") {
            scenarios.insert(item.to_owned(), true);
        } else if let Some(name) = item.strip_prefix("scenario: ") {
            unscored = name;
        } else if section == "not_scored" && item.strip_prefix("leg: ") == Some(side.name()) {
            scenarios.insert(unscored.to_owned(), false);
        }
    }
    scenarios.retain(|name, _| !name.starts_with("tasks-") && !name.starts_with("auth/"));
    scenarios
}

fn read_results(side: Side, folder: &Path) -> Result<Results> {
    let mut results = Results::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Some(scenario) = scenario_of(side, &entry.file_name().to_string_lossy()).map(str::to_owned)
        else {
            continue;
        };
        let file = entry.path().join("checks.json");
        let text = fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
        let checks: Vec<Value> = serde_json::from_slice(&text)?;
        let member = |check: &Value, name: &str| check[name].as_str().unwrap_or_default().to_owned();
        let checks = checks.iter().map(|check| Check {
            id: member(check, "id"),
            name: member(check, "name"),
            status: member(check, "status"),
            message: member(check, "errorMessage"),
        });
        let mut checks: Vec<Check> = checks.collect();
        if side == Side::Client {
            checks.push(script_check(&entry.path())?);
        }
        results.insert(scenario, checks);
    }
    Ok(results)
}

/// One more check: whether the scripted client finished. The suite judges only what it saw itself.
fn script_check(folder: &Path) -> Result<Check> {
    let printed = |name: &str| fs::read_to_string(folder.join(name));
    let finished = printed("stdout.txt")?.contains(driver::FINISHED);
    let said = printed("stderr.txt")?;
    let last = said.lines().rfind(|line| line.starts_with("error: ")).unwrap_or("it ended without a message");
    Ok(Check {
        id: "script".to_owned(),
        name: String::new(),
        status: if finished { "SUCCESS" } else { "FAILURE" }.to_owned(),
        message: if finished { String::new() } else { last.to_owned() },
    })
}

/// The scenario whose results are in a folder: `server-SCENARIO-TIME`, or `SCENARIO-TIME` for a client.
fn scenario_of(side: Side, folder: &str) -> Option<&str> {
    const TIME: usize = "-2026-01-31T12-00-00-000Z".len();
    let rest = match side {
        Side::Client => folder,
        Side::Server => folder.strip_prefix("server-")?,
    };
    rest.split_at_checked(rest.len().checked_sub(TIME)?).map(|(scenario, _)| scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenarios_of_a_side_are_found() {
        let text = "# words: here\nserver:\n  - ping\n  - tools-list\n\nclient:\n  - initialize\n\nnot_scored:\n\
                    \x20 - scenario: auth/dpop\n    leg: client\n    reason: extension\n\
                    \x20 - scenario: tasks-lifecycle\n    leg: server\n    reason: extension\n\
                    \x20 - scenario: server-sse-polling\n    leg: server\n    note: >-\n      words\n";
        let check = |side, expected: &[(&str, bool)]| {
            let expected: BTreeMap<String, bool> =
                expected.iter().map(|(name, scored)| ((*name).to_owned(), *scored)).collect();
            assert_eq!(read_scenarios(text, side), expected);
        };
        check(Side::Server, &[("ping", true), ("server-sse-polling", false), ("tools-list", true)]);
        check(Side::Client, &[("initialize", true)]);
    }

    #[test]
    fn a_folder_names_its_scenario() {
        let folder = "server-server-sse-polling-2026-11-15T10-34-42-243Z";
        assert_eq!(scenario_of(Side::Server, folder), Some("server-sse-polling"));
        assert_eq!(scenario_of(Side::Server, "server-ping"), None);
        assert_eq!(scenario_of(Side::Server, "client-ping-2026-11-15T10-34-42-243Z"), None);
        assert_eq!(scenario_of(Side::Client, "tools_call-2026-11-15T10-34-42-243Z"), Some("tools_call"));
        // The suite puts scenarios with a slash in their name into such a folder.
        assert_eq!(scenario_of(Side::Client, "auth"), None);
    }

    /// The pinned version and the one in reports are the same.
    #[test]
    fn the_version_is_the_pinned_one() {
        let package: Value = serde_json::from_str(include_str!("../../../conformance/package.json")).unwrap();
        assert_eq!(package["dependencies"]["@modelcontextprotocol/conformance"], VERSION);
    }
}
