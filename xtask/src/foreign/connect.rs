//! Writes the gateway into the files of real clients, and lets the clients say what they read.
//!
//! Each client has a home of its own and no network. `bridgehead connect` registers the gateway, once with the client's own
//! command in the PATH and once by an edit of the file's text. The client then lists the entry and, where it checks that,
//! connects to the gateway. `bridgehead disconnect` takes it away. Without a client in between, every byte comes back.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::install::Installed;
use super::outcome::{Outcome, Outcomes};
use super::program::{MARK, append, command, leftovers, mark};

/// How many seconds a program may take.
const LIMIT: &str = "120";

/// A client.
struct Agent {
    /// For `bridgehead connect`, and its command.
    id: &'static str,
    command: &'static str,
    /// Its file, and what a user had there before.
    file: &'static str,
    before: &'static str,
    /// What it prints about the entry.
    list: &'static [&'static str],
    /// What it says if it has reached the gateway; it does not try, if empty.
    healthy: &'static str,
}

const AGENTS: [Agent; 3] = [
    Agent {
        id: "claude-code",
        command: "claude",
        file: ".claude.json",
        before: "{\n  \"numStartups\": 3,\n  \"mcpServers\": {}\n}\n",
        list: &["mcp", "list"],
        healthy: "Connected",
    },
    Agent {
        id: "codex",
        command: "codex",
        file: ".codex/config.toml",
        before: "# mine\nmodel = \"o\" # one\n\n[mcp_servers.other]\ncommand = \"/bin/false\"\nenabled = false\n",
        list: &["mcp", "list"],
        healthy: "enabled",
    },
    Agent {
        id: "gemini",
        command: "gemini",
        file: ".gemini/settings.json",
        // Without this, Gemini CLI turns all servers off in a folder that nobody trusted.
        before: "{\n  // mine\n  \"security\": {\n    \"folderTrust\": {\"enabled\": false}\n  }\n}\n",
        list: &["mcp", "list"],
        healthy: "Connected",
    },
];

/// How the entry gets into the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Command,
    Edit,
}

impl Way {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Command => "its own command",
            Self::Edit => "an edit of its file",
        }
    }
}

/// Runs every client in both ways.
pub(crate) fn run(installed: &Installed, outcomes: &mut Outcomes) -> Result<()> {
    let offline = is_offline();
    if !offline {
        println!(
            "connect: the clients keep their network, because this system has no network namespaces for users"
        );
    }
    let mark = mark("connect");
    for agent in &AGENTS {
        for way in [Way::Command, Way::Edit] {
            let place = Home::new(installed, agent, way, offline, &mark)?;
            place.check(outcomes)?;
        }
    }
    outcomes.processes.push(Outcome::of("connected clients", "leave no process", &leftovers(&mark)));
    Ok(())
}

/// Whether programs can be run without a network.
fn is_offline() -> bool {
    let tried = command("unshare").args(["-rn", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// The home of one client.
struct Home<'h> {
    agent: &'static Agent,
    way: Way,
    offline: bool,
    mark: &'h str,
    home: PathBuf,
    gateway: PathBuf,
    log: PathBuf,
}

impl<'h> Home<'h> {
    fn new(
        installed: &Installed,
        agent: &'static Agent,
        way: Way,
        offline: bool,
        mark: &'h str,
    ) -> Result<Self> {
        let home = installed.scratch().join(format!("{}-{}", agent.id, way.as_str().replace(' ', "-")));
        fs::create_dir_all(home.join("client"))?;
        fs::create_dir_all(home.join(".config/bridgehead"))?;
        std::os::unix::fs::symlink(installed.agent(agent.command)?, home.join("client").join(agent.command))?;
        let node = match installed.node().is_absolute() {
            true => installed.node().to_owned(),
            false => find("node").context("Node is not in the PATH")?,
        };
        fs::create_dir_all(home.join("bin"))?;
        std::os::unix::fs::symlink(node, home.join("bin/node"))?;
        let script = json!({"era": "modern", "tools": [{"name": "echo", "behaviour": "echo"}]});
        let config = format!(
            "[servers.mock]\ncommand = {}\nenv = {{ MOCK_SCRIPT = {}, {MARK} = {} }}\n",
            json!(installed.mock()),
            json!(script.to_string()),
            json!(mark),
        );
        fs::write(home.join(".config/bridgehead/bridgehead.toml"), config)?;
        let log = installed.logs().join(format!("connect · {} · {}.log", agent.id, way.as_str()));
        Ok(Self { agent, way, offline, mark, home, gateway: installed.gateway(), log })
    }

    fn check(&self, outcomes: &mut Outcomes) -> Result<()> {
        let file = self.home.join(self.agent.file);
        fs::create_dir_all(file.parent().unwrap_or(&self.home))?;
        let mut told = |check: &str, complaints: Vec<String>| {
            let row = format!("{} · {}", self.agent.command, self.way.as_str());
            outcomes.connect.push(Outcome::of(&row, check, &complaints));
        };

        fs::write(&file, self.agent.before)?;
        let connected = self.bridgehead("connect")?;
        told("connect", expect(&connected, "state", &["connected"]));
        let how = if self.way == Way::Command { "command" } else { "edit" };
        told("as meant", expect(&connected, "how", &[how]));
        let listed = self.client(self.agent.list)?;
        told("listed", contains(&listed, "bridgehead", true));
        told("usable", contains(&line_of(&listed, "bridgehead"), self.agent.healthy, true));
        let disconnected = self.bridgehead("disconnect")?;
        told("disconnect", expect(&disconnected, "state", &["removed", "restored"]));
        let listed = self.client(self.agent.list)?;
        told("gone", contains(&listed, "bridgehead", false));

        fs::write(&file, self.agent.before)?;
        self.bridgehead("connect")?;
        let restored = self.bridgehead("disconnect")?;
        let mut complaints = expect(&restored, "state", &["restored"]);
        let now = fs::read_to_string(&file)?;
        if now != self.agent.before {
            complaints.push(format!("the file is not as it was:\n{now}"));
        }
        told("byte for byte", complaints);
        Ok(())
    }

    /// Runs a verb of ours on the client, and returns what it tells.
    fn bridgehead(&self, verb: &str) -> Result<Value> {
        let folders = match self.way {
            Way::Command => "client",
            Way::Edit => "",
        };
        let (printed, _) = self.output(&self.gateway, &[verb, self.agent.id, "--json"], folders)?;
        Ok(serde_json::from_str(&printed).unwrap_or_else(|_| json!({"printed": printed})))
    }

    fn client(&self, arguments: &[&str]) -> Result<String> {
        // Gemini CLI lists its servers on stderr.
        let printed = self.output(&self.home.join("client").join(self.agent.command), arguments, "client")?;
        Ok(format!("{}{}", printed.0, printed.1))
    }

    /// Runs a program to its end, in the client's home, without a network. Returns what it printed to stdout and stderr.
    fn output(&self, program: &Path, arguments: &[&str], folder: &str) -> Result<(String, String)> {
        let path = format!("{0}/{folder}:{0}/bin:/usr/bin:/bin", self.home.display());
        let mut run = command(if self.offline { "unshare" } else { "timeout" });
        if self.offline {
            run.args(["-rn", "timeout"]);
        }
        let printed = run
            .arg(LIMIT)
            .arg(program)
            .args(arguments)
            .env_clear()
            .envs([("PATH", path.as_str()), (MARK, self.mark), ("NO_COLOR", "1")])
            .env("HOME", &self.home)
            .current_dir(&self.home)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("{} could not be started", program.display()))?;
        let [stdout, stderr] =
            [printed.stdout, printed.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let words = arguments.join(" ");
        writeln!(append(&self.log)?, "$ {} {words}\n{stdout}{stderr}", program.display())?;
        Ok((stdout, stderr))
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Complains unless a member of the first client's report has one of these values.
fn expect(report: &Value, key: &str, wanted: &[&str]) -> Vec<String> {
    let found = &report["clients"][0][key];
    match wanted.iter().any(|wanted| found == wanted) {
        true => Vec::new(),
        false => vec![format!("`{key}` is {found} instead of {wanted:?} in {report}")],
    }
}

/// Complains if a text has these words, or if it has not.
fn contains(text: &str, words: &str, wanted: bool) -> Vec<String> {
    match text.contains(words) == wanted {
        true => Vec::new(),
        false if wanted => vec![format!("`{words}` is not in: {text}")],
        false => vec![format!("`{words}` is in: {text}")],
    }
}

fn line_of(text: &str, word: &str) -> String {
    text.lines().find(|line| line.contains(word)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_say_is_judged() {
        let report = json!({"clients": [{"state": "connected"}]});
        assert!(expect(&report, "state", &["removed", "connected"]).is_empty());
        assert_eq!(expect(&report, "state", &["removed"]).len(), 1);
        assert_eq!(expect(&json!({}), "state", &["removed"]).len(), 1);
        let list = "Servers:\nbridgehead: /b serve - ✔ Connected\nother: Disabled";
        assert!(contains(&line_of(list, "bridgehead"), "Connected", true).is_empty());
        assert_eq!(contains(&line_of(list, "other"), "Connected", true).len(), 1);
        assert_eq!(contains(list, "bridgehead", false).len(), 1);
        assert!(contains("none", "bridgehead", false).is_empty());
    }
}
