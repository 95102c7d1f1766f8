//! `cargo xtask macos`: checks that the programs compile for macOS. No test runs there.
//!
//! Their C code is compiled by Zig, which has Apple's headers. Nothing is linked, because that needs Apple's SDK.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{package, shown, steps};

const TARGET: &str = "aarch64-apple-darwin";
/// The compiler for C code, and the program that makes cargo use it. Both come as programs from PyPI.
const TOOLS: [&str; 2] = ["ziglang==0.17.0", "cargo-zigbuild==0.24.0"];

/// Checks the programs, or says why it cannot.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tools = match package::add_target(root, TARGET).and_then(|()| steps::install_from_pypi(root, &TOOLS))
    {
        Ok(tools) => tools,
        Err(error) => {
            println!("macOS is not checked, because a tool for it is missing: {error:#}");
            return Ok(());
        }
    };
    let mut path = OsString::from(&tools);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut check = steps::program_at(root, tools.join("cargo-zigbuild"));
    check.args(["check", "--locked", "--package=bridgehead-cli", "--target", TARGET]).env("PATH", path);
    let status = shown::status(&mut check).context("cargo-zigbuild could not be started")?;
    if !status.success() {
        bail!("the programs do not compile for macOS");
    }
    Ok(())
}
