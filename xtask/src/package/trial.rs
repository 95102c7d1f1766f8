//! Installs every package into a fresh folder with a fresh home and no network, and runs it as a user would.
//!
//! Whatever starts the program must be like the program itself: the same output, the same exit codes, an end by the same signals,
//! and no process left behind.

mod npm;
mod running;
mod tarball;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{NAME, Packages, VERSION, renew};
use crate::foreign::{MARK, command, leftovers, mark};
use crate::steps;
use running::Running;

/// Installs and runs all packages.
pub(super) fn run(packages: &Packages) -> Result<()> {
    for (name, trial) in [
        ("tarball", tarball::run as fn(&Packages, &Place) -> Result<()>),
        ("npm", npm::run),
        ("wheel", wheel::run),
    ] {
        let started = Instant::now();
        let place = Place::new(name)?;
        trial(packages, &place).with_context(|| format!("the package for {name} fails"))?;
        let left = leftovers(&place.mark);
        ensure!(left.is_empty(), "processes are left after the package for {name}: {}", left.join(", "));
        println!("{name}: installed and run, {:.1} s", started.elapsed().as_secs_f32());
    }
    Ok(())
}

/// A folder with an empty home, like the machine of somebody who has never heard of us.
struct Place {
    folder: PathBuf,
    /// What every process carries that is started here.
    mark: String,
}

impl Place {
    fn new(name: &str) -> Result<Self> {
        let folder = steps::target_folder()?.join("package-trial").join(name);
        renew(&folder)?;
        std::fs::create_dir(folder.join("home"))?;
        Ok(Self { folder, mark: mark(name) })
    }

    /// A program with nothing in its environment but the path, the home and the mark.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = command(program);
        command.env_clear().current_dir(&self.folder);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.folder.join("home")).env("TERM", "dumb").env(MARK, &self.mark);
        command
    }
}

/// One way to start the program: the start of a command line, to which its arguments are added.
struct Start<'a> {
    place: &'a Place,
    folder: PathBuf,
    program: PathBuf,
    before: Vec<String>,
}

impl<'a> Start<'a> {
    fn new(place: &'a Place, program: impl Into<PathBuf>, before: &[&str]) -> Self {
        let before = before.iter().map(|word| (*word).to_owned()).collect();
        Self { place, folder: place.folder.clone(), program: program.into(), before }
    }

    /// The same in a folder of the place.
    fn within(mut self, folder: &str) -> Self {
        self.folder.push(folder);
        self
    }

    fn with(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.command(&self.program);
        command.args(&self.before).args(arguments).current_dir(&self.folder);
        command
    }

    /// The version, a call, exit codes, and the standard streams.
    fn behaves(&self) -> Result<()> {
        self.says(&["--version"], 0, &format!("{NAME} {VERSION}"))?;
        self.says(&["call", "add", "--args", r#"{"a":1,"b":2}"#], 0, r#"{"sum":3}"#)?;
        self.says(&["call", "fail"], 1, "")?;
        self.says(&["serve", "--no-such-option"], 2, "")?;
        self.says(&["check", "--config", "missing.toml"], 78, "")?;
        self.answers_on_its_streams()
    }

    /// Runs it to its end; `expected` is all that it prints, unless it is empty.
    fn says(&self, arguments: &[&str], code: i32, expected: &str) -> Result<()> {
        let mut command = self.with(arguments);
        let output = command.output().with_context(|| format!("{command:?} could not be started"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(code),
            "{command:?} ended with {}, not {code}:\n{said}{complained}",
            output.status
        );
        ensure!(
            expected.is_empty() || said.trim() == expected,
            "{command:?} printed `{said}`, not `{expected}`:\n{complained}"
        );
        Ok(())
    }

    /// A client that speaks over stdin and stdout gets an answer, and the program ends with its input.
    fn answers_on_its_streams(&self) -> Result<()> {
        let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"trial","version":"1"}}}"#;
        let mut running = Running::start(self.with(&["demo-server"]))?;
        running.write(&format!("{hello}\n"))?;
        running.until("bridgehead-demo")?;
        running.close_input();
        running.ends_with(0)
    }

    /// A gateway started this way ends well by each of these signals, and with everything that it started.
    fn ends_by(&self, signals: &[&str]) -> Result<()> {
        for signal in signals {
            let (running, _) = Running::serve(self.with(&SERVE))?;
            running.signal(signal)?;
            running.ends_with(0).with_context(|| format!("after {signal}"))?;
            let left = leftovers(&self.place.mark);
            ensure!(left.is_empty(), "processes are left after {signal}: {}", left.join(", "));
        }
        Ok(())
    }

    /// Ctrl-C at a terminal, which every process in the foreground gets, counts once: the gateway finishes the call that runs,
    /// which it would break off at a second signal. It ends with one of these codes.
    fn ends_by_the_interrupt_key(&self, codes: &[i32]) -> Result<()> {
        let words = [&self.before[..], &SERVE.map(str::to_owned)].concat().join(" ");
        let mut terminal = self.place.command("script");
        terminal.current_dir(&self.folder);
        terminal.args(["--quiet", "--return", "--flush", "--command"]);
        // The shell gets the signal too, and would end by it.
        terminal.arg(format!("exec {} {words}", self.program.display())).arg("/dev/null");
        let (mut running, address) = Running::serve(terminal)?;
        let call = ["call", "sleep", "--args", r#"{"ms":2000}"#, "--url", &address];
        let mut call = Running::start(self.with(&call))?;
        call.until("progress 0 of")?;
        running.write("\u{3}")?;
        call.ends_with(0).context("a call that ran at Ctrl-C was broken off")?;
        running.ends_with_one_of(codes).context("after Ctrl-C at a terminal")?;
        let left = leftovers(&self.place.mark);
        ensure!(left.is_empty(), "processes are left after Ctrl-C: {}", left.join(", "));
        Ok(())
    }
}

/// A gateway with the demo server, at a free port.
const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

/// A path as an argument.
fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}
