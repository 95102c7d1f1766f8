//! Runs the steps of a chore one after the other and remembers which failed.
//!
//! A failing step does not stop the next one, so that one run reports every failure.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cases::Notes;
use crate::shown;

/// Variables that a program gets in addition to those of this program.
pub(crate) type Variables<'a> = &'a [(&'a str, &'a OsStr)];

/// The steps so far.
pub(crate) struct Steps<'a> {
    root: &'a Path,
    failed: Vec<&'static str>,
}

impl<'a> Steps<'a> {
    pub(crate) const fn new(root: &'a Path) -> Self {
        Self { root, failed: Vec::new() }
    }

    /// Runs one step and prints its duration.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce(&Path) -> Result<()>) {
        println!("── {name}");
        let started = Instant::now();
        let outcome = step(self.root);
        let seconds = started.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => println!("── {name}: ok, {seconds:.1} s\n"),
            Err(error) => {
                println!("── {name}: failed, {seconds:.1} s\n   {error:#}\n");
                self.failed.push(name);
            }
        }
    }

    /// A step that is one call of cargo.
    pub(crate) fn cargo(&mut self, name: &'static str, arguments: &[&str], variables: Variables<'_>) {
        self.run(name, |root| cargo(root, arguments, variables));
    }

    /// The root of the repository.
    pub(crate) const fn root(&self) -> &'a Path {
        self.root
    }

    /// Installs nextest if it is missing. The tests also run without it, so a failure here is not a failed step.
    pub(crate) fn install_nextest(&self) {
        if !has_nextest(self.root)
            && let Err(error) = cargo(self.root, &["install", "cargo-nextest", "--locked"], &[])
        {
            println!("cargo-nextest could not be installed: {error:#}");
        }
    }

    /// Installs `strace` if it is missing. A test uses it to kill a process at chosen system calls, and fails without it.
    pub(crate) fn install_strace(&self) {
        if output(self.root, "strace", &["--version"]).is_ok() {
            return;
        }
        if let Err(error) = install_from_debian(self.root, "strace") {
            println!("strace could not be installed; install it for the tests of the audit store: {error:#}");
        }
    }

    /// Installs the programs of systemd if they are missing. Tests use them to check the unit files and to pass a socket as a
    /// service manager does, and fail without them. Nothing of systemd has to run.
    pub(crate) fn install_systemd(&self) {
        let needed = ["systemd-analyze", "systemd-socket-activate"];
        if needed.iter().all(|program| output(self.root, program, &["--version"]).is_ok()) {
            return;
        }
        if let Err(error) = install_from_debian(self.root, "systemd") {
            println!(
                "systemd could not be installed; install it for the tests of `bridgehead service`: {error:#}"
            );
        }
    }

    /// Runs all tests, with nextest if it is installed: it gives each test its own process and ends tests that hang.
    pub(crate) fn test(&mut self, profile: &str) {
        let with_nextest = has_nextest(self.root);
        self.run("tests", |root| {
            let arguments: &[&str] = if with_nextest {
                &["nextest", "run", "--workspace", "--profile", profile]
            } else {
                println!(
                    "cargo-nextest is not installed; `cargo install cargo-nextest --locked` installs it"
                );
                println!("continuing with `cargo test`, which cannot end a test that hangs");
                &["test", "--workspace", "--no-fail-fast"]
            };
            let notes = Notes::new()?;
            cargo(root, arguments, &[notes.variable()])?;
            notes.tell(root)
        });
        if with_nextest {
            self.documentation_tests();
        }
    }

    /// The examples in the documentation, which nextest does not run.
    pub(crate) fn documentation_tests(&mut self) {
        self.cargo("tests in documentation", &["test", "--workspace", "--doc"], &[]);
    }

    /// Fails if a step failed.
    pub(crate) fn finish(self) -> Result<()> {
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        Ok(())
    }
}

/// One call of cargo, which must succeed.
pub(crate) fn cargo(root: &Path, arguments: &[&str], variables: Variables<'_>) -> Result<()> {
    let status = shown::status(command(root).args(arguments).envs(variables.iter().copied()))
        .with_context(|| format!("cargo {} could not be started", arguments.join(" ")))?;
    if !status.success() {
        bail!("cargo {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}

/// The path of this program. A chore may rebuild this program, and then the system no longer knows the path. Therefore
/// [`remember_program`] reads it at the start.
pub(crate) fn this_program() -> Result<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path).context("the path of this program is not known")
}

/// Remembers the path of this program. Must be called before any chore runs.
pub(crate) fn remember_program() {
    if let Ok(program) = std::env::current_exe() {
        let _ = PROGRAM.set(program);
    }
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Cargo's target folder, which holds everything that is built or installed.
pub(crate) fn target_folder() -> Result<&'static Path> {
    this_program()?.parent().and_then(Path::parent).context("this program is not in a target folder")
}

/// The compiler's target triple of this machine.
pub(crate) fn host(root: &Path) -> Result<String> {
    let about =
        String::from_utf8(output(root, "rustc", &["-vV"])?).context("the compiler's output is not text")?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("the compiler does not print its host")
}

/// Whether nextest is installed.
pub(crate) fn has_nextest(root: &Path) -> bool {
    succeeds(root, &["nextest", "--version"])
}

/// Whether a call of cargo succeeds; hides its output.
pub(crate) fn succeeds(root: &Path, arguments: &[&str]) -> bool {
    let outcome = command(root).args(arguments).output();
    outcome.is_ok_and(|output| output.status.success())
}

/// What cargo printed.
pub(crate) fn cargo_output(root: &Path, arguments: &[&str], variables: Variables<'_>) -> Result<Vec<u8>> {
    printed(command(root).args(arguments).envs(variables.iter().copied()))
}

/// What another program printed.
pub(crate) fn output(
    root: &Path,
    program: impl AsRef<OsStr>,
    arguments: &[impl AsRef<OsStr>],
) -> Result<Vec<u8>> {
    printed(program_at(root, program).args(arguments))
}

fn printed(command: &mut Command) -> Result<Vec<u8>> {
    let output = shown::output(command).with_context(|| format!("{command:?} could not be started"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    Ok(output.stdout)
}

fn command(root: &Path) -> Command {
    let mut cargo = program_at(root, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo prints into a pipe and cannot see that a person reads it.
    if std::env::var_os("CARGO_TERM_COLOR").is_none() && std::io::stderr().is_terminal() {
        cargo.env("CARGO_TERM_COLOR", "always");
    }
    cargo
}

/// A program that a chore starts.
#[expect(
    clippy::disallowed_methods,
    reason = "a chore runs programs as a person would; this is not part of the gateway"
)]
pub(crate) fn program_at(root: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root);
    command
}

/// Installs a package with `apt-get`.
pub(crate) fn install_from_debian(root: &Path, package: &str) -> Result<()> {
    let apt = |arguments: &[&str]| output(root, "apt-get", arguments).map(drop);
    let install = ["install", "--yes", "--quiet", "--no-install-recommends", package];
    // The package lists may be missing or old.
    apt(&install).or_else(|_| apt(&["update", "--quiet"]).and_then(|()| apt(&install)))
}

/// Installs programs from PyPI into an environment of their own in the target folder, if they are missing, and returns the
/// folder with them. Each is named with its version; another version is installed anew.
pub(crate) fn install_from_pypi(root: &Path, tools: &[&str]) -> Result<PathBuf> {
    let folder = target_folder()?.join("pypi-tools").join(tools.join("-").replace('=', ""));
    let done = folder.join("installed");
    if !done.exists() {
        eprintln!("installing {}", tools.join(" and "));
        output(root, "python3", &["-m".as_ref(), "venv".as_ref(), folder.as_os_str()])
            .context("python3 with venv is needed")?;
        let pip = ["install", "--quiet", "--disable-pip-version-check"];
        output(root, folder.join("bin").join("pip"), &[&pip, tools].concat())?;
        std::fs::write(done, "")?;
    }
    Ok(folder.join("bin"))
}
