//! Runs all foreign servers at once behind one gateway, calls them in both eras, and checks that they end with the gateway.
//!
//! Most are started as `node FILE` or by the program that pip installed. Some are started through `npx`, which puts npm
//! and a shell between the gateway and the server.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::install::{Installed, succeed};
use super::outcome::{Outcome, Outcomes};
use super::program::{Gateway, MARK, command, drive, leftovers, mark, marked};

const ERAS: [&str; 2] = ["legacy", "modern"];
const SERVERS: usize = 12;
/// How many processes `npx` adds: npm and a shell for each of three servers.
const LAUNCHERS: usize = 6;

/// Calls all servers, then ends the gateway in several ways.
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

    stage.confined(outcomes)?;
    stage.kill(outcomes)?;
    if full {
        stage.over_stdio(outcomes)?;
    }
    Ok(())
}

/// The files that the servers work on.
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
        let who = if order["only"].is_array() { "confined servers" } else { "servers" };
        outcomes.servers.told(who, &text("era"), &text("transport"), told);
        Ok(())
    }

    /// A Node and a Python server with full isolation: a process for each call with the limits of isolated calls, no
    /// network, no writable file, and only their own files to read.
    fn confined(&self, outcomes: &mut Outcomes) -> Result<()> {
        let mark = mark("confined");
        let file = self.installed.scratch().join("confined.toml");
        fs::write(&file, self.confined_servers(&mark)?)
            .with_context(|| format!("{} could not be written", file.display()))?;
        let gateway = Gateway::start(&self.installed.gateway(), &file, &mark, &self.log())?;
        for era in ERAS {
            let only = json!(["everything", "time"]);
            self.drive(
                &json!({"transport": "http", "era": era, "url": gateway.url, "only": only}),
                outcomes,
            )?;
        }
        outcomes.processes.push(gateway.terminate()?);
        outcomes.processes.push(Outcome::of(
            "confined servers",
            "gone after SIGTERM of the gateway",
            &leftovers(&mark),
        ));
        Ok(())
    }

    /// Strings are written as JSON, which is valid TOML too.
    fn confined_servers(&self, mark: &str) -> Result<String> {
        let at = self.installed;
        // An interpreter may be installed anywhere; its libraries are beside it.
        let home = |program: &Path| -> Result<PathBuf> {
            let found = match program.is_absolute() {
                true => program.to_owned(),
                false => std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
                    .map(|folder| folder.join(program))
                    .find(|path| path.is_file())
                    .with_context(|| format!("{} is not in the PATH", program.display()))?,
            };
            let real = found.canonicalize()?;
            let home = real.parent().and_then(Path::parent);
            home.map(Path::to_owned).with_context(|| format!("{} is not in a folder", real.display()))
        };
        let everything = at.npm_program("mcp-server-everything");
        let time = at.python("mcp-server-time");
        let python = time.parent().context("mcp-server-time is not in a folder")?.to_owned();
        let server = |name: &str, program: &Path, arguments: Value, read: Value| {
            let (program, folder, path) = (json!(program), json!(self.folder), json!(self.path()));
            format!(
                "[servers.{name}]\ncommand = {program}\nargs = {arguments}\ncwd = {folder}\n\
                 isolation = \"call\"\nprofile = \"offline-readonly\"\nfiles = {{ read = {read} }}\n\
                 env = {{ {MARK} = \"{mark}\", PATH = {path} }}\n\n"
            )
        };
        let node_reads = json!([at.npm(), home(at.node())?]);
        let python_reads = json!([python.parent(), home(&python.join("python3"))?]);
        Ok(server("everything", at.node(), json!([everything]), node_reads)
            + &server("time", &time, json!([]), python_reads))
    }

    /// Checks what is left when the gateway has no chance to clean up.
    fn kill(&self, outcomes: &mut Outcomes) -> Result<()> {
        let mark = mark("killed");
        let gateway = self.gateway(&mark)?;
        let order = json!({"transport": "http", "era": "modern", "url": gateway.url, "only_list": true});
        self.drive(&order, outcomes)?;
        // The gateway itself, the servers, and the npm processes with their shells.
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
                "args": ["serve", "--stdio", "--standalone", "--config", config],
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
        // Even if a browser is installed, the server must not start it.
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

    /// The servers' PATH begins with the folder of the tested Node, because npx and the code runner search it there.
    fn path(&self) -> String {
        let inherited = std::env::var("PATH").unwrap_or_default();
        match self.installed.node().parent().filter(|folder| folder.is_absolute()) {
            Some(folder) => format!("{}:{inherited}", folder.display()),
            None => inherited,
        }
    }
}
