//! Shared by the tests of this crate: the program as a user starts it, and configurations with the bundled demo as servers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead_testkit::client::{StdioClient, modern_params};
use bridgehead_testkit::found;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_bridgehead"))
}

/// A folder without any configuration, for `XDG_CONFIG_HOME` and for files of the test.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A configuration with the demo as a server under each of these names, and more text.
    pub(crate) fn config(&self, names: &[&str], more: &str) -> PathBuf {
        let mut text = format!("{more}\n");
        for name in names {
            text.push_str(&format!(
                "[servers.{name}]\ncommand = {:?}\nargs = [\"demo-server\"]\n",
                program().display().to_string()
            ));
        }
        self.file("bridgehead.toml", &text)
    }

    /// Starts the program with the test's environment, no configuration and these variables.
    pub(crate) fn start(&self, arguments: &[&str], variables: &[(&str, &str)]) -> StdioClient {
        self.start_program(program(), arguments, variables)
    }

    /// Starts another program in the same way.
    pub(crate) fn start_program(
        &self,
        program: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> StdioClient {
        let home = self.path().to_str().unwrap();
        let state = format!("{home}/state");
        let mut all = vec![
            ("XDG_CONFIG_HOME", home),
            ("XDG_RUNTIME_DIR", home),
            ("XDG_STATE_HOME", &state),
            ("RUST_LOG", ""),
        ];
        all.extend_from_slice(variables);
        StdioClient::start(program, arguments, all)
    }

    /// Starts the program in a folder.
    pub(crate) fn start_in(
        &self,
        folder: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> StdioClient {
        let shell = ["-c", "cd \"$0\" && exec \"$@\"", folder.to_str().unwrap(), program().to_str().unwrap()];
        self.start_program(Path::new("/bin/sh"), &[&shell, arguments].concat(), variables)
    }

    /// Starts `serve` on a port of its choice; returns once it listens.
    pub(crate) async fn serve_http(
        &self,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> (StdioClient, SocketAddr) {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        all.extend_from_slice(arguments);
        let gateway = self.start(&all, variables);
        // The banner is plain text or part of a line of JSON.
        let listens = |said: &str| said.contains("/mcp\n") || said.contains("/mcp\\n");
        let said = until(|| listens(&gateway.stderr()).then(|| gateway.stderr())).await;
        let address = said.split("http://").nth(1).unwrap().split("/mcp").next().unwrap();
        (gateway, address.parse().unwrap())
    }

    /// Waits until a gateway of this place answers on its control socket, which may follow its banner.
    #[track_caller]
    pub(crate) fn is_found(&self) -> impl Future<Output = ()> {
        found("a gateway that `status` finds", async || {
            self.run(&["status"]).await.code.filter(|code| *code == 0).map(drop)
        })
    }

    /// Runs the program to its end.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[], "").await
    }

    /// Runs the program to its end with variables and input.
    pub(crate) async fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)], input: &str) -> Ran {
        let mut child = self.start(arguments, variables);
        if !input.is_empty() {
            child.send_bytes(input.as_bytes()).await;
        }
        Ran::of(child).await
    }

    /// Runs the program in a folder to its end.
    pub(crate) async fn run_in(&self, folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
        Ran::of(self.start_in(folder, arguments, variables)).await
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Waits for the end of a program that gets no more input.
    pub(crate) async fn of(mut child: StdioClient) -> Self {
        child.close_stdin();
        let mut stdout = String::new();
        while let Some(line) = child.recv_line().await {
            stdout.push_str(&line);
            stdout.push('\n');
        }
        let code = child.wait().await.code();
        Self { code, stdout, stderr: child.stderr() }
    }

    /// Its stderr without the line that names the configuration.
    pub(crate) fn said(&self) -> String {
        let lines = self.stderr.lines().filter(|line| !line.starts_with("configuration: "));
        lines.flat_map(|line| [line, "\n"]).collect()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }
}

/// Waits until another process has done something.
#[track_caller]
pub(crate) fn until<T>(mut ready: impl FnMut() -> Option<T>) -> impl Future<Output = T> {
    found("what another process does here", async move || {
        let done = ready();
        if done.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        done
    })
}

/// Sends a signal.
pub(crate) fn signal(client: &StdioClient, signal: Signal) {
    signal_pid(client.pid().unwrap(), signal);
}

/// Sends a signal by process id.
pub(crate) fn signal_pid(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Whether a process is alive, and not a zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// The process ids of the servers, from `server_health`.
pub(crate) async fn upstream_pids(client: &mut StdioClient) -> Vec<u32> {
    let pids: Vec<u64> = found("a process of each server", async || {
        let params = modern_params(json!({"name": "server_health"}));
        let answer = client.request("tools/call", params).await;
        let upstreams = answer["result"]["structuredContent"]["data"]["upstreams"].clone();
        upstreams.as_array().unwrap().iter().map(|upstream| upstream["pid"].as_u64()).collect()
    })
    .await;
    pids.into_iter().map(|pid| u32::try_from(pid).unwrap()).collect()
}
