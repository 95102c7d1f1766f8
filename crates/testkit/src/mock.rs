//! Composes the script of a mock upstream and finds the program that runs it.
//!
//! The code under test starts the program: [`Mock::command`] and [`Mock::env`] give what a server's configuration
//! needs. The programs found are never older than their sources.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::script::{
    Behaviour, Carrier, Era, Initialize, Probe, Reply, RpcError, SCRIPT_VARIABLE, Script, Tool, Verbatim,
};

/// A mock upstream under construction.
#[derive(Debug, Clone, Default)]
pub struct Mock {
    script: Script,
    variables: BTreeMap<String, String>,
}

impl Mock {
    /// A mock of both eras without tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// A mock that speaks only the modern era.
    pub fn modern() -> Self {
        Self::new().era(Era::Modern)
    }

    /// A mock that speaks only the legacy era.
    pub fn legacy() -> Self {
        Self::new().era(Era::Legacy)
    }

    /// Sets the era.
    #[must_use]
    pub fn era(mut self, era: Era) -> Self {
        self.script.era = era;
        self
    }

    /// Sets the revision in the legacy handshake's answer, known or not.
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.script.revision = revision.into();
        self
    }

    /// Sets the instructions of the server.
    #[must_use]
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.script.instructions = Some(text.into());
        self
    }

    /// Sets the name and version that the server reports.
    #[must_use]
    pub fn server(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.script.server_name = name.into();
        self.script.server_version = version.into();
        self
    }

    /// Sets the capabilities it declares.
    #[must_use]
    pub fn capabilities(mut self, capabilities: impl Into<Verbatim>) -> Self {
        self.script.capabilities = Some(capabilities.into());
        self
    }

    /// Answers a method with this result; `$PARAMS` in it stands for the params as received. The latest matching reply
    /// wins.
    #[must_use]
    pub fn replies(mut self, method: impl Into<String>, result: impl Into<Verbatim>) -> Self {
        self.script.replies.push(Reply { method: method.into(), about: None, outcome: Ok(result.into()) });
        self
    }

    /// Answers a method for one name, URI or cursor.
    #[must_use]
    pub fn replies_about(
        mut self,
        method: impl Into<String>,
        about: impl Into<String>,
        outcome: Result<Verbatim, RpcError>,
    ) -> Self {
        self.script.replies.push(Reply { method: method.into(), about: Some(about.into()), outcome });
        self
    }

    /// Sets the response to `server/discover`.
    #[must_use]
    pub fn on_probe(mut self, probe: Probe) -> Self {
        self.script.on_probe = probe;
        self
    }

    /// Sets the response to `initialize`.
    #[must_use]
    pub fn on_initialize(mut self, initialize: Initialize) -> Self {
        self.script.initialize = initialize;
        self
    }

    /// Adds a line to write before the initialize result.
    #[must_use]
    pub fn before_initialize_result(mut self, message: impl Into<Verbatim>) -> Self {
        self.script.before_initialize_result.push(message.into());
        self
    }

    /// Adds a line to write after `notifications/initialized` arrives.
    #[must_use]
    pub fn after_initialized(mut self, message: impl Into<Verbatim>) -> Self {
        self.script.after_initialized.push(message.into());
        self
    }

    /// Adds a noise line on standard output, written at start and between messages.
    #[must_use]
    pub fn noise(mut self, line: impl Into<String>) -> Self {
        self.script.noise.push(line.into());
        self
    }

    /// Adds a line to write on standard error at start.
    #[must_use]
    pub fn stderr(mut self, line: impl Into<String>) -> Self {
        self.script.stderr.push(line.into());
        self
    }

    /// Adds a tool with this behaviour.
    #[must_use]
    pub fn tool(self, name: impl Into<String>, behaviour: Behaviour) -> Self {
        self.full_tool(Tool::new(name, behaviour))
    }

    /// Adds a fully described tool.
    #[must_use]
    pub fn full_tool(mut self, tool: Tool) -> Self {
        self.script.tools.push(tool);
        self
    }

    /// Splits `tools/list` over this many pages.
    #[must_use]
    pub fn pages(mut self, pages: usize) -> Self {
        self.script.pages = pages;
        self
    }

    /// Makes every page of `tools/list` name a next one.
    #[must_use]
    pub fn endless_pages(mut self) -> Self {
        self.script.endless_pages = true;
        self
    }

    /// Makes `tools/list` fail.
    #[must_use]
    pub fn list_error(mut self, error: RpcError) -> Self {
        self.script.list_error = Some(error);
        self
    }

    /// Makes `tools/list` slow.
    #[must_use]
    pub fn list_delay_ms(mut self, ms: u64) -> Self {
        self.script.list_delay_ms = ms;
        self
    }

    /// Keeps the process alive, for a minute at most, when its standard input ends.
    #[must_use]
    pub fn ignore_eof(mut self) -> Self {
        self.script.ignore_eof = true;
        self
    }

    /// Appends every line received to this file; see [`Script::transcript`].
    #[must_use]
    pub fn transcript(mut self, file: impl Into<PathBuf>) -> Self {
        self.script.transcript = Some(file.into());
        self
    }

    /// Adds a variable to [`Mock::env`], such as the mark of a
    /// [`LeakCheck`](crate::LeakCheck).
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// The script as JSON.
    pub fn script(&self) -> String {
        serde_json::to_string(&self.script).expect("a script has only string keys")
    }

    /// The program, without arguments: a test may add its own, which the mock ignores.
    ///
    /// Servers are started through the shim, so this builds the shim too if needed.
    pub fn command(&self) -> (PathBuf, Vec<String>) {
        shim_path();
        (mock_path().to_owned(), Vec::new())
    }

    /// The variables the program needs: its script.
    pub fn env(&self) -> BTreeMap<String, String> {
        let mut variables = self.variables.clone();
        variables.insert(SCRIPT_VARIABLE.to_owned(), self.script());
        variables
    }
}

/// A mock that listens on a loopback port. Dropping it kills the mock.
#[derive(Debug)]
pub struct Served {
    mock: Mock,
    carrier: Carrier,
    address: SocketAddr,
    child: Child,
}

impl Mock {
    /// Starts the mock on a loopback port with its whole script.
    pub fn serve(&self, carrier: Carrier) -> Served {
        let mut mock = self.clone();
        mock.script.carrier = Some(carrier);
        let (child, address) = mock.start();
        Served { mock, carrier, address, child }
    }

    #[expect(clippy::disallowed_methods, reason = "a server that the code under test does not start")]
    fn start(&self) -> (Child, SocketAddr) {
        let mut child = Command::new(mock_path())
            .envs(self.env())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the mock can be started");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the mock prints its address");
        let address = line.trim().strip_prefix("listening ").and_then(|text| text.parse().ok());
        (child, address.unwrap_or_else(|| panic!("not an address: {line:?}")))
    }
}

impl Served {
    /// Its address, as a `url` of the configuration.
    pub fn url(&self) -> String {
        match self.carrier {
            Carrier::Http => format!("http://{}/mcp", self.address),
            Carrier::Sse => format!("http://{}/sse", self.address),
            Carrier::WebSocket => format!("ws://{}/", self.address),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it at once; [`Served::restart`] starts it again.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port.
    pub fn restart(&mut self) {
        self.kill();
        self.mock.script.port = self.address.port();
        (self.child, self.address) = self.mock.start();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program `mock-upstream` beside the running test, built now if it is missing or older than its sources.
///
/// A run over the whole workspace has built it already; a run of one other package
/// (`cargo test -p …`) has not, because Cargo builds no programs of a dependency.
pub fn mock_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| fresh("bridgehead-testkit", "testkit", "mock-upstream"))
}

/// The program `process-shim`, built if needed like [`mock_path`]. It is where the process crate looks for it, so that
/// a test's servers are managed as in the real gateway.
pub fn shim_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| fresh("bridgehead-process", "process", "process-shim"))
}

/// A program of the package whose sources are in `crates/{folder}`, built if needed.
fn fresh(package: &str, folder: &str, name: &str) -> PathBuf {
    let profile_folder = profile_folder();
    let program = profile_folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join("src");
    if !is_fresh(&program, sources) {
        build(&profile_folder, package, name);
    }
    assert!(program.is_file(), "no {name} at {} after building it", program.display());
    program
}

/// The folder of finished programs: the parent of `deps`, where Cargo puts test programs.
fn profile_folder() -> PathBuf {
    let current = std::env::current_exe().expect("the path of the running test");
    let folder = current.parent().expect("a program lies in a folder");
    match folder.file_name() {
        Some(name) if name == "deps" || name == "examples" => {
            folder.parent().expect("`deps` lies in a folder").to_owned()
        }
        // A doc test runs from a temporary folder, which says nothing about the target folder.
        _ if folder.join("deps").is_dir() => folder.to_owned(),
        _ => std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from)
            .join("debug"),
    }
}

fn is_fresh(program: &Path, sources: PathBuf) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|data| data.modified());
    let Ok(built) = modified(program) else {
        return false;
    };
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut folders = vec![sources];
    while let Some(folder) = folders.pop() {
        // An archived test run has no sources, so the program cannot be older than them.
        let Ok(entries) = folder.read_dir() else {
            continue;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(time) = modified(&path) {
                newest = newest.max(time);
            }
        }
    }
    newest <= built
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test of another package needs the program before anything can run it"
)]
fn build(profile_folder: &Path, package: &str, name: &str) {
    let profile = match profile_folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(name) => name,
    };
    let target_folder = profile_folder.parent().expect("a profile folder lies in a target folder");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--offline", "--package", package])
        .args(["--bin", name, "--profile", profile])
        .arg("--target-dir")
        .arg(target_folder)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "building {name} failed:\n{}", String::from_utf8_lossy(&output.stderr));
}
