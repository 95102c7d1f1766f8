//! A client that lists once, right after its start: seven published servers, one of them slow, behind a gateway that the client
//! starts itself, at its first start ever and at the second.
//!
//! Many clients never ask again, so what they miss then is missing until somebody restarts them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::clients::{DRIVERS, Driver};
use super::install::Installed;
use super::outcome::{Outcome, Outcomes};
use super::program::{MARK, drive, leftovers, mark};

/// The servers, and how many tools each has at its pinned version.
const SERVERS: [(&str, usize); 7] =
    [("everything", 16), ("files", 14), ("memory", 9), ("git", 12), ("time", 2), ("fetch", 1), ("slow", 1)];
/// How long the slow server is silent, in seconds: longer than a silent server is waited for.
const SLOW_SECONDS: u32 = 6;
/// How long a client waits for its list at the first start, and at the second.
const WITHIN_MS: [u32; 2] = [25_000, 1_500];
/// How often the second start is tried, because the machine may be busy.
const ATTEMPTS: usize = 3;

/// SRV-3: every SDK gets all tools with its only question.
pub(crate) fn run(installed: &Installed, outcomes: &mut Outcomes) -> Result<()> {
    // The Inspector is a program run per request, so it has no start of its own to measure.
    for driver in DRIVERS.iter().filter(|driver| driver.name != "Inspector CLI") {
        for era in driver.eras {
            start_twice(installed, driver, era, outcomes)?;
        }
    }
    Ok(())
}

fn start_twice(installed: &Installed, driver: &Driver, era: &str, outcomes: &mut Outcomes) -> Result<()> {
    let name = format!("cold, {} · {era}", driver.name);
    let mark = mark("cold");
    // A home of its own, so that it is the first start ever.
    let home = installed.scratch().join(mark.replace("cold", "c"));
    fs::create_dir_all(&home)?;
    let config = write_config(installed, &home, &mark)?;
    let log = installed.logs().join(format!("{name}.log"));
    let start = |start: &str, within_ms: u32| {
        let order = json!({
            "transport": "stdio",
            "era": era,
            "url": "",
            "command": installed.gateway(),
            "args": ["serve", "--stdio", "--config", config],
            "env": {MARK: mark, "XDG_STATE_HOME": home, "XDG_RUNTIME_DIR": home},
            "cold": {"start": start, "servers": SERVERS.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
                     "within_ms": within_ms},
        });
        let told =
            drive(&format!("{name}, {start}"), (driver.program)(installed).env(MARK, &mark), &order, &log)?;
        anyhow::Ok((told, leftovers(&mark)))
    };
    let (told, left) = start("first start", WITHIN_MS[0])?;
    outcomes.cold.told(driver.name, era, "stdio", told);
    outcomes.processes.push(Outcome::of("cold starts", "leave no process", &left));
    for attempt in 1..=ATTEMPTS {
        let (told, left) = start("second start", WITHIN_MS[1])?;
        let good = told.1.is_none() && told.0.iter().all(|line| line["ok"] == true);
        if good || attempt == ATTEMPTS {
            outcomes.cold.told(driver.name, era, "stdio", told);
            outcomes.processes.push(Outcome::of("cold starts", "leave no process", &left));
            break;
        }
    }
    Ok(())
}

fn write_config(at: &Installed, home: &Path, mark: &str) -> Result<PathBuf> {
    let node = |name: &str| vec![at.node().to_owned(), at.npm_program(name)];
    let python = |name: &str| vec![at.python(name)];
    let slowly = format!("sleep {SLOW_SECONDS}; exec \"$@\"");
    let mut slow: Vec<PathBuf> = ["sh", "-c", &slowly, "sh"].map(PathBuf::from).to_vec();
    slow.extend(node("mcp-server-sequential-thinking"));
    let mut files = node("mcp-server-filesystem");
    files.push(home.to_owned());
    let servers = [
        ("everything", node("mcp-server-everything")),
        ("files", files),
        ("memory", node("mcp-server-memory")),
        ("git", python("mcp-server-git")),
        ("time", python("mcp-server-time")),
        ("fetch", python("mcp-server-fetch")),
        ("slow", slow),
    ];
    let servers = servers.map(|(name, command)| {
        let (program, args): (&PathBuf, &[PathBuf]) = match command.split_first() {
            Some(split) => split,
            None => return String::new(),
        };
        let memory = json!(home.join("memory.jsonl"));
        format!(
            "[servers.{name}]\ncommand = {}\nargs = {}\nenv = {{ {MARK} = {}, MEMORY_FILE_PATH = {memory} }}\n",
            json!(program),
            json!(args),
            Value::from(mark)
        )
    });
    let file = home.join("bridgehead.toml");
    fs::write(&file, format!("[gateway]\nlinger_ms = 0\n{}", servers.concat()))
        .with_context(|| format!("{} could not be written", file.display()))?;
    Ok(file)
}
