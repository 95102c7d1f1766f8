//! The commands of clients that register servers themselves.
//!
//! A client that keeps its state in the same file knows best how to change it. Its command runs in the user's environment, with
//! a limit on its time, and all that it started is gone when this returns.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bridgehead_process::{Limits, Spec, start};
use tokio::io::{AsyncReadExt, copy, sink};
use tokio::time::timeout;

use super::entry::entry;
use super::launch::{Launch, on_path};
use crate::clients::{By, Client, Scope};
use crate::output::one_line;

/// How long a command may take. The slowest known one takes two seconds.
const WITHIN: Duration = Duration::from_secs(60);
/// How much of what a command prints is kept.
const MOST: u64 = 64 * 1024;
/// How many of its last lines are shown if it fails.
const LAST_LINES: usize = 4;

/// The arguments that add an entry; `None` if the client has no such command for this.
pub(crate) fn adding(client: &Client, scope: Scope, name: &str, launch: &Launch) -> Option<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    let scope_name = scope_name(scope);
    let user_only = scope == Scope::User;
    match (client.id, launch) {
        ("claude-code", launch) => {
            let json = entry(client, launch).tree().to_string();
            Some(words(&["mcp", "add-json", "--scope", scope_name, name, &json]))
        }
        ("codex", Launch::Stdio { command, args }) if user_only => {
            Some([words(&["mcp", "add", name, "--", command]), args.clone()].concat())
        }
        ("codex", Launch::Http { url, token }) if user_only => {
            let mut all = words(&["mcp", "add", name, "--url", url]);
            if let Some(token) = token {
                all.extend(words(&["--bearer-token-env-var", token]));
            }
            Some(all)
        }
        ("gemini", Launch::Stdio { command, args }) => {
            let all = words(&["mcp", "add", "--scope", scope_name, name, command, "--"]);
            Some([all, args.clone()].concat())
        }
        ("copilot", Launch::Stdio { command, args }) if user_only => {
            Some([words(&["mcp", "add", name, "--", command]), args.clone()].concat())
        }
        _ => None,
    }
}

/// The arguments that take an entry away.
pub(crate) fn removing(client: &Client, scope: Scope, name: &str) -> Option<Vec<String>> {
    let scope_name = scope_name(scope);
    let all: &[&str] = match client.id {
        "claude-code" | "gemini" => &["mcp", "remove", "--scope", scope_name, name],
        "codex" | "copilot" if scope == Scope::User => &["mcp", "remove", name],
        _ => return None,
    };
    Some(all.iter().map(|&word| word.to_owned()).collect())
}

const fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "user",
        Scope::Project => "project",
    }
}

/// The client's own program, if it is installed.
pub(crate) fn program(client: &Client, variables: &BTreeMap<String, String>) -> Option<String> {
    match client.connect.by {
        By::Command(name) => on_path(name, variables)?.to_str().map(str::to_owned),
        _ => None,
    }
}

/// Runs a command to its end. The error says how it ended and what it wrote last.
pub(crate) fn run(
    program: &str,
    args: Vec<String>,
    variables: &BTreeMap<String, String>,
    folder: &Path,
) -> Result<(), String> {
    run_within(program, args, variables, folder, WITHIN)
}

fn run_within(
    program: &str,
    args: Vec<String>,
    variables: &BTreeMap<String, String>,
    folder: &Path,
    within: Duration,
) -> Result<(), String> {
    let spec = Spec {
        program: program.to_owned(),
        args,
        env: variables.clone(),
        cwd: Some(folder.to_owned()),
        limits: Limits::default(),
        confinement: None,
    };
    let running = async {
        let mut child = start(&spec, Box::new(|_| ())).await.map_err(|error| error.to_string())?;
        drop(child.take_stdin());
        let mut printed = Vec::new();
        if let Some(mut stdout) = child.take_stdout() {
            let read = (&mut stdout).take(MOST).read_to_end(&mut printed).await;
            read.map_err(|error| error.to_string())?;
            // A command that cannot write would block or fail.
            copy(&mut stdout, &mut sink()).await.map_err(|error| error.to_string())?;
        }
        let exit = child.wait().await;
        if exit.is_success() {
            return Ok(());
        }
        let said = format!("{}\n{}", String::from_utf8_lossy(&printed), child.stderr_tail());
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = said.iter().skip(said.len().saturating_sub(LAST_LINES)).copied().collect::<Vec<_>>();
        match last.is_empty() {
            true => Err(format!("it ended with {exit}")),
            false => Err(format!("it ended with {exit}: {}", one_line(&last.join("; "), 400))),
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        // Dropping the child kills it.
        let late = || Err(format!("it did not end within {} s and was killed", within.as_secs_f32()));
        timeout(within, running).await.unwrap_or_else(|_| late())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(id: &str) -> &'static Client {
        Client::named(id).unwrap()
    }

    fn stdio() -> Launch {
        let args = ["serve", "--stdio", "--config", "/c d.toml"].map(str::to_owned).to_vec();
        Launch::Stdio { command: "/b".to_owned(), args }
    }

    /// JOIN-2: the words of each client's own command.
    #[test]
    fn words() {
        let http = Launch::Http { url: "http://h/mcp".to_owned(), token: Some("K".to_owned()) };
        let add = |id: &str, scope, launch: &Launch| {
            adding(client(id), scope, "gate", launch).map(|words| words.join("|"))
        };
        let user = Scope::User;
        assert_eq!(
            add("claude-code", Scope::Project, &stdio()).unwrap(),
            r#"mcp|add-json|--scope|project|gate|{"args":["serve","--stdio","--config","/c d.toml"],"command":"/b","type":"stdio"}"#
        );
        assert_eq!(
            add("codex", user, &stdio()).unwrap(),
            "mcp|add|gate|--|/b|serve|--stdio|--config|/c d.toml"
        );
        assert_eq!(
            add("codex", user, &http).unwrap(),
            "mcp|add|gate|--url|http://h/mcp|--bearer-token-env-var|K"
        );
        assert_eq!(add("codex", Scope::Project, &stdio()), None);
        assert_eq!(
            add("gemini", user, &stdio()).unwrap(),
            "mcp|add|--scope|user|gate|/b|--|serve|--stdio|--config|/c d.toml"
        );
        assert_eq!(add("gemini", user, &http), None);
        assert_eq!(
            add("copilot", user, &stdio()).unwrap(),
            "mcp|add|gate|--|/b|serve|--stdio|--config|/c d.toml"
        );
        assert_eq!(add("copilot", user, &http), None);
        assert_eq!(add("vscode", user, &stdio()), None);
        let remove = |id: &str, scope| removing(client(id), scope, "gate").map(|words| words.join("|"));
        assert_eq!(remove("claude-code", user).unwrap(), "mcp|remove|--scope|user|gate");
        assert_eq!(remove("gemini", Scope::Project).unwrap(), "mcp|remove|--scope|project|gate");
        assert_eq!(remove("codex", user).unwrap(), "mcp|remove|gate");
        assert_eq!((remove("codex", Scope::Project), remove("cursor", user)), (None, None));
    }

    /// JOIN-2: a command that fails or hangs is reported with what it said, and is gone.
    #[test]
    fn a_command_is_run_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let variables = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
        let shell = |script: &str, within| {
            let args = ["-c", script].map(str::to_owned).to_vec();
            run_within("sh", args, &variables, folder.path(), within)
        };
        assert_eq!(shell("touch here; yes | head -c 1000000", WITHIN), Ok(()));
        assert!(folder.path().join("here").exists(), "it runs in the folder");
        let told = shell("echo one; echo two >&2; exit 3", WITHIN).unwrap_err();
        assert!(told.contains("3") && told.ends_with(": one; two"), "{told}");
        assert!(shell("exit 3", WITHIN).unwrap_err().ends_with('3'));
        let told = shell("sleep 600", Duration::from_millis(50)).unwrap_err();
        assert_eq!(told, "it did not end within 0.05 s and was killed");
        let told = run("no-such-program", Vec::new(), &variables, folder.path()).unwrap_err();
        assert!(told.contains("was not found"), "{told}");
    }
}
