//! `cargo xtask dist`: builds the gateway and its shim as they are shipped, with profile-guided optimisation.
//!
//! They are built twice. The first build counts what runs how often while the benchmark runs its loads; the second build
//! uses the counts. Relaying a message consists of many short functions, which become about a fifth faster.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::bench;
use crate::built::Built;
use crate::compiler::{Aim, COUNTS, PROFILE, tools};
use crate::steps::{self, Variables};

/// Builds the programs and prints their paths.
pub(crate) fn run(root: &Path) -> Result<()> {
    let built = build(root)?;
    for name in ["bridgehead", "bridgehead-shim"] {
        println!("{}", built.program(name)?.display());
    }
    Ok(())
}

/// Builds the programs, unless they are up to date.
pub(crate) fn build(root: &Path) -> Result<Built> {
    build_for(root, &steps::host(root)?, &[])
}

/// The same for a target whose programs run on this machine, with variables for its C compiler. Each target has its own
/// profile.
pub(crate) fn build_for(root: &Path, target: &str, variables: Variables<'_>) -> Result<Built> {
    let folder = steps::target_folder()?.join("dist").join(target);
    let profile = folder.join(PROFILE);
    let compile = |aim, name| compile(root, &folder, (aim, name), target, variables);
    let counting = compile(Aim::Count, "counting")?;
    let gateway = counting.program("bridgehead")?;
    if written(&profile) <= written(gateway) {
        eprintln!("running the benchmark's loads to collect a profile");
        let counts = folder.join(COUNTS);
        if counts.exists() {
            fs::remove_dir_all(&counts)?;
        }
        let measuring = Built::to_measure(root)?;
        steps::output(
            root,
            measuring.program("bench")?,
            &bench::arguments(&measuring, gateway, &["--brief"])?,
        )?;
        // Cargo does not know that the second build depends on the profile.
        let guided = folder.join("guided");
        if guided.exists() {
            fs::remove_dir_all(&guided)?;
        }
        let merge = ["merge".as_ref(), "-o".as_ref(), profile.as_os_str(), counts.as_os_str()];
        steps::output(root, tools(root)?.join("llvm-profdata"), &merge)?;
    }
    compile(Aim::Guide, "guided")
}

/// Builds for one aim, in its own folder, because cargo does not see the wrapper's extra arguments.
fn compile(
    root: &Path,
    folder: &Path,
    (aim, name): (Aim, &str),
    target: &str,
    variables: Variables<'_>,
) -> Result<Built> {
    let compiler = aim.install(folder)?;
    let to = folder.join(name);
    let to = to.to_str().context("the target folder's path is not text")?;
    let arguments = [
        "build",
        "--profile=dist",
        "--bins",
        "--package=bridgehead-cli",
        "--target",
        target,
        "--target-dir",
        to,
    ];
    Built::by(root, &arguments, &[variables, &[("RUSTC_WRAPPER", OsStr::new(&compiler))]].concat())
}

/// When a file was written; the epoch if it is missing.
fn written(file: &Path) -> SystemTime {
    fs::metadata(file).and_then(|about| about.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}
