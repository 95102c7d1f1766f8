//! `cargo xtask bench`: builds the gateway as it is shipped and the programs of the benchmark, then runs the benchmark.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::built::Built;
use crate::{dist, shown, steps};

/// Passes `options` on to the benchmark unchanged. With `--brief` nothing is judged, so it uses programs that are built for
/// tests.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let (measuring, shipped);
    let gateway = if options.contains(&"--brief") {
        measuring = Built::to_check(root)?;
        measuring.program("bridgehead")?
    } else {
        shipped = dist::build(root)?;
        measuring = Built::to_measure(root)?;
        shipped.program("bridgehead")?
    };
    let mut bench = steps::program_at(root, measuring.program("bench")?);
    bench.args(arguments(&measuring, gateway, options)?);
    let status = shown::status(&mut bench).context("the benchmark could not be started")?;
    if !status.success() {
        bail!("the benchmark ended with {status}");
    }
    Ok(())
}

/// The benchmark's arguments for this gateway.
pub(crate) fn arguments(measuring: &Built, gateway: &Path, options: &[&str]) -> Result<Vec<OsString>> {
    let programs =
        ["--gateway".into(), gateway.into(), "--upstream".into(), measuring.program("echo-upstream")?.into()];
    Ok(programs.into_iter().chain(options.iter().map(OsString::from)).collect())
}
