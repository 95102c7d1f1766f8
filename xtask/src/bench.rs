//! `cargo xtask bench`: builds the gateway and the programs of the benchmark as they would be shipped, then hands over to
//! the benchmark.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::built::Built;
use crate::steps;

/// `options` go to the benchmark as they are.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let built = Built::to_ship(root)?;
    let status = steps::program_at(root, built.program("bench")?)
        .arg("--gateway")
        .arg(built.program("bridgehead")?)
        .arg("--upstream")
        .arg(built.program("echo-upstream")?)
        .args(options)
        .status()
        .context("the benchmark could not be started")?;
    if !status.success() {
        bail!("the benchmark ended with {status}");
    }
    Ok(())
}
