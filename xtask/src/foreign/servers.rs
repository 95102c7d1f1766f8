//! All foreign servers at once behind one gateway, called in both eras, and gone when the gateway is.
//!
//! Most are started as `node FILE` or by the program that pip installed; some go through `npx`, which puts npm and a
//! shell between the gateway and the server.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::install::{Installed, succeed};
use super::outcome::{Outcome, Outcomes};
use super::program::{Gateway, MARK, command, drive, leftovers, mark, marked};

const ERAS: [&str; 2] = ["legacy", "modern"];
const SERVERS: usize = 12;
/// How many processes more there are because of `npx`: npm and a shell for each of three.
const LAUNCHERS: usize = 6;

/// Calls all servers, then ends the gateway in every way there is.
pub(crate) fn run(installed: &Installed, full: bool, outcomes: &mut Outcomes) -> Result<()> {
    let stage = Stage::set(installed)?;

    let mark = mark("asked");
    let gateway = stage.gateway(&mark)?;
    let answers = installed.scratch().join("direct.json");
    let direct = json!({"servers": stage.config(), "answers": answers});
    for era in ERAS {
        let order = json!({"transport": "http", "era": era, "url": gateway.url, "direct": direct});
        stage.drive(&order, outcomes)?;
    }
    outcomes.processes.push(gateway.terminate()?);
    outcomes.processes.push(Outcome::of(
        "all servers",
        "gone after SIGTERM of the gateway",
        &leftovers(&mark),
    ));

    stage.kill(outcomes)?;
    if full {
        stage.over_stdio(outcomes)?;
    }
    Ok(())
}

/// What the servers work on.
struct Stage<'a> {
    installed: &'a Installed,
    folder: PathBuf,
    repository: PathBuf,
}

impl<'a> Stage<'a> {
    fn set(installed: &'a Installed) -> Result<Self> {
        // The filesystem server compares real paths.
        let scratch = installed.scratch().canonicalize()?;
        let (folder, repository) = (scratch.join("files"), scratch.join("repository"));
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(&repository)?;
        let identity = ["-c", "user.name=foreign", "-c", "user.email=foreign@example.invalid"];
        let commit = ["commit", "--quiet", "--allow-empty", "--no-gpg-sign", "-m", "the first commit"];
        succeed(command("git").args(["init", "--quiet"]).current_dir(&repository), "git init")?;
        succeed(command("git").args(identity).args(commit).current_dir(&repository), "git commit")?;
        Ok(Self { installed, folder, repository })
    }

    fn gateway(&self, mark: &str) -> Result<Gateway> {
        let config = self.write_config(mark)?;
        Gateway::start(&self.installed.gateway(), &config, mark, &self.log())
    }

    fn config(&self) -> PathBuf {
        self.installed.scratch().join("servers.json")
    }

    fn log(&self) -> PathBuf {
        self.installed.logs().join("servers.log")
    }

    fn drive(&self, order: &Value, outcomes: &mut Outcomes) -> Result<()> {
        let mut order = order.clone();
        order["folder"] = json!(self.folder);
        order["repository"] = json!(self.repository);
        let mut driver = command(self.installed.node());
        driver.arg(self.installed.npm().join("servers.mjs"));
        let text = |key: &str| order[key].as_str().unwrap_or_default().to_owned();
        let name = format!("servers · {} · {}", text("era"), text("transport"));
        let told = drive(&name, &mut driver, &order, &self.log())?;
        outcomes.servers.told("servers", &text("era"), &text("transport"), told);
        Ok(())
    }

    /// What is left when the gateway has no chance to tidy up.
    fn kill(&self, outcomes: &mut Outcomes) -> Result<()> {
        let mark = mark("killed");
        let gateway = self.gateway(&mark)?;
        let order = json!({"transport": "http", "era": "modern", "url": gateway.url, "only_list": true});
        self.drive(&order, outcomes)?;
        // The gateway itself, the servers, and npm and its shells.
        let before = marked(&mark);
        let complaint = if before.len() > SERVERS + LAUNCHERS { Vec::new() } else { before };
        outcomes.processes.push(Outcome::of("all servers", "run before the gateway is killed", &complaint));
        gateway.kill()?;
        outcomes.processes.push(Outcome::of(
            "all servers",
            "gone after SIGKILL of the gateway",
            &leftovers(&mark),
        ));
        Ok(())
    }

    fn over_stdio(&self, outcomes: &mut Outcomes) -> Result<()> {
        for era in ERAS {
            let mark = mark("closed");
            let config = self.write_config(&mark)?;
            let order = json!({
                "transport": "stdio",
                "era": era,
                "command": self.installed.gateway(),
                "args": ["serve", "--stdio", "--config", config],
                "env": {MARK: mark, "XDG_STATE_HOME": self.installed.logs()},
            });
            self.drive(&order, outcomes)?;
            let left = leftovers(&mark);
            outcomes.processes.push(Outcome::of("all servers", "gone after the client closed", &left));
        }
        Ok(())
    }

    fn write_config(&self, mark: &str) -> Result<PathBuf> {
        let file = self.config();
        let config = json!({"mcpServers": self.servers(mark)});
        fs::write(&file, config.to_string())
            .with_context(|| format!("{} could not be written", file.display()))?;
        Ok(file)
    }

    /// The names are those that `foreign/servers.mjs` knows.
    fn servers(&self, mark: &str) -> Value {
        let at = self.installed;
        let path = self.path();
        let server = |program: &Path, arguments: &[&str]| json!({"command": program, "args": arguments, "env": {MARK: mark, "PATH": path}});
        let node = |name: &str, more: &[&str]| {
            let file = at.npm_program(name);
            let file = file.to_string_lossy();
            server(at.node(), &[&[&*file], more].concat())
        };
        let folder = self.folder.to_string_lossy();
        let mut memory = node("mcp-server-memory", &[]);
        memory["env"]["MEMORY_FILE_PATH"] = json!(self.folder.join("memory.jsonl"));
        let npx = |name: &str, more: &[&str]| {
            let mut started = server(Path::new("npx"), &[&["--no-install", name], more].concat());
            started["cwd"] = json!(at.npm());
            started
        };
        // Where there is a browser, it is not to be started either.
        let no_browser = ["--headless", "--isolated", "--executable-path", "/no/such/browser"];
        let database = self.folder.join("notes.db");
        json!({
            "everything": node("mcp-server-everything", &[]),
            "files": node("mcp-server-filesystem", &[&folder]),
            "memory": memory,
            "thinking": npx("mcp-server-sequential-thinking", &[]),
            "code": node("mcp-server-code-runner", &[]),
            "commands": node("mcp-server-commands", &[]),
            "time": server(&at.python("mcp-server-time"), &[]),
            "git": server(&at.python("mcp-server-git"), &[]),
            "browser": npx("playwright-mcp", &no_browser),
            "database": npx("dbhub", &["--demo"]),
            "sqlite": server(&at.old_python("mcp-server-sqlite"), &["--db-path", &database.to_string_lossy()]),
            "fetch": server(&at.python("mcp-server-fetch"), &["--allow-private-ips", "--ignore-robots-txt"]),
        })
    }

    /// The path of the servers begins with the Node they are tested on: npx and the code runner look for it there.
    fn path(&self) -> String {
        let inherited = std::env::var("PATH").unwrap_or_default();
        match self.installed.node().parent().filter(|folder| folder.is_absolute()) {
            Some(folder) => format!("{}:{inherited}", folder.display()),
            None => inherited,
        }
    }
}
