//! The first hour of a new user, on an empty home, with the npm package and published servers: a client's file is imported, the
//! client is connected, two clients share one set of servers, and the file comes back as it was.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::install::{Installed, succeed};
use super::outcome::{Outcome, Outcomes};
use super::program::{MARK, command, drive, leftovers, mark};
use crate::package::Packages;

/// What stands in the user's configuration before. The gateway ends soon after its last client, so that the check for leftovers need
/// not wait for it.
const BEGINS: &str = "# my own gateway\n[gateway]\nlinger_ms = 500   # short, for a test\n";
/// A value that must not reach a file that others can read.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";

/// Walks the hour. JOIN-1, JOIN-2, JOIN-4, JOIN-7: everything on the way is the program of the npm package.
pub(crate) fn run(installed: &Installed, outcomes: &mut Outcomes) -> Result<()> {
    let packages = Packages::in_target()?.npm();
    for package in &packages {
        ensure!(package.exists(), "{} is missing; `cargo xtask package --quick` makes it", package.display());
    }
    let mark = mark("hour");
    let home = installed.scratch().canonicalize()?.join("hour");
    let bridgehead = install(&home, &packages)?;
    let servers =
        [("everything", "server-everything/dist/index.js"), ("memory", "server-memory/dist/index.js")];
    let servers = servers
        .map(|(name, file)| (name, installed.npm().join("node_modules/@modelcontextprotocol").join(file)));
    for (_, file) in &servers {
        ensure!(file.exists(), "{} is not installed", file.display());
    }
    let file = home.join(".config/Claude/claude_desktop_config.json");
    write(&file, &client_file(installed, &servers, &mark))?;
    let config = home.join(".config/bridgehead/bridgehead.toml");
    write(&config, BEGINS)?;

    let log = installed.logs().join("hour.log");
    let mut driver = command(installed.node());
    driver.arg(installed.npm().join("hour.mjs"));
    let order = json!({
        "bridgehead": bridgehead,
        "home": home,
        "file": file,
        "config": config,
        "begins": BEGINS,
        "secret": SECRET,
        "mark": {"name": MARK, "value": mark},
        "servers": servers.map(|(name, file)| json!({"name": name, "file": file})),
    });
    let told = drive("the first hour", &mut driver, &order, &log)?;
    outcomes.hour.told("the first hour", "both", "stdio", told);
    outcomes.processes.push(Outcome::of("the first hour", "leaves no process", &leftovers(&mark)));
    Ok(())
}

/// Installs the packages as `npm install` of a user does; returns the program that npm links.
fn install(home: &Path, packages: &[PathBuf]) -> Result<PathBuf> {
    let folder = home.join("app");
    write(&folder.join("package.json"), "{\"private\": true}\n")?;
    let mut npm = command("npm");
    npm.args(["install", "--silent", "--offline", "--no-audit", "--no-fund"]).args(packages);
    succeed(npm.env("HOME", home).current_dir(&folder), "npm install of the packages")?;
    Ok(folder.join("node_modules/.bin/bridgehead"))
}

/// The file as Claude Desktop has it: two published servers, one of them with a secret, and a setting of its own.
fn client_file(installed: &Installed, servers: &[(&str, PathBuf); 2], mark: &str) -> String {
    let entry = |(name, file): &(&str, PathBuf)| {
        let mut env = json!({MARK: mark});
        if *name == "memory" {
            env["GITHUB_TOKEN"] = json!(SECRET);
        }
        ((*name).to_owned(), json!({"command": installed.node(), "args": [file], "env": env}))
    };
    let servers: serde_json::Map<String, Value> = servers.iter().map(entry).collect();
    // Tabs, and no newline at the end: the file must come back exactly like this.
    format!("{{\n\t\"globalShortcut\": \"Ctrl+Space\",\n\t\"mcpServers\": {}\n}}", Value::Object(servers))
}

fn write(file: &Path, text: &str) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, text).with_context(|| format!("{} could not be written", file.display()))
}
