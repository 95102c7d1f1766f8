//! Checks by other people's tools: spelling (typos), licences and duplicates (cargo-deny), unused dependencies (cargo-shear).
//!
//! Each tool is installed if it is missing. Their settings are in `typos.toml`, `deny.toml` and `Cargo.toml`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::steps;

/// Comes as a program from Python's index, which is much faster than building it.
const TYPOS: &str = "typos==1.51.1";

/// Verbs of cargo, and the packages that have them. Later versions of cargo-shear need a newer compiler than we do.
const CARGO_TOOLS: &[(&str, &str)] = &[("shear", "cargo-shear@1.12.0"), ("deny", "cargo-deny@0.20.2")];

/// Installs every tool that is missing.
pub(crate) fn install(root: &Path) -> Result<()> {
    for (verb, package) in CARGO_TOOLS {
        if !steps::succeeds(root, &[verb, "--version"]) {
            eprintln!("installing {package}");
            steps::cargo(root, &["install", package, "--locked"], &[])?;
        }
    }
    install_typos(root).map(drop)
}

/// Fails on a word that is spelled wrongly. Deliberate slips are in `typos.toml`.
pub(crate) fn spelling(root: &Path) -> Result<()> {
    let typos = install_typos(root)?;
    let status = steps::program_at(root, typos)
        .arg("--format=brief")
        .status()
        .context("typos could not be started")?;
    if !status.success() {
        bail!("typos found words; correct them, or list a deliberate one in typos.toml");
    }
    Ok(())
}

/// Fails on a dependency that no code uses, on a licence that `deny.toml` does not allow, and on a crate in two versions that it
/// does not list.
pub(crate) fn dependencies(root: &Path) -> Result<()> {
    steps::cargo(root, &["shear"], &[])?;
    steps::cargo(
        root,
        &[
            "deny",
            "--offline",
            "--log-level=error",
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ],
        &[],
    )
}

/// Where typos is, after installing it into an environment of its own in the target folder if it is missing.
fn install_typos(root: &Path) -> Result<PathBuf> {
    let folder = steps::target_folder()?.join("typos");
    let program = folder.join("bin").join("typos");
    if !program.exists() {
        eprintln!("installing typos");
        steps::output(root, "python3", &["-m".as_ref(), "venv".as_ref(), folder.as_os_str()])
            .context("typos needs python3 with venv")?;
        steps::output(root, folder.join("bin").join("pip"), &["install", "--quiet", TYPOS])?;
    }
    Ok(program)
}
