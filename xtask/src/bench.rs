//! `cargo xtask bench`: builds the gateway and the programs of the benchmark as they would be shipped, then hands over to
//! the benchmark.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps::cargo_output;

/// `options` go to the benchmark as they are.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let built = build(root)?;
    let status = command(&built.program("bench")?)
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

/// What cargo said while it built.
pub(crate) struct Built(String);

/// Builds the gateway, its shim beside it, and the programs that measure it, as they would be shipped.
pub(crate) fn build(root: &Path) -> Result<Built> {
    // Nothing else may be built with them: Cargo would give the gateway the features that others want.
    let packages = ["--package=bridgehead", "--package=bridgehead-bench"];
    Built::by(root, &[&["--release", "--bins"], &packages[..]].concat())
}

impl Built {
    pub(crate) fn by(root: &Path, options: &[&str]) -> Result<Self> {
        let arguments = [&["build", "--message-format=json-render-diagnostics"], options].concat();
        Ok(Self(String::from_utf8(cargo_output(root, &arguments)?).context("cargo's messages are not text")?))
    }

    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        program(&self.0, name).with_context(|| format!("cargo built no program `{name}`"))
    }
}

/// Where cargo put a program.
fn program(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let path = message["executable"].as_str()?;
        (message["target"]["name"] == name).then(|| PathBuf::from(path))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a chore is a person's typing: no part of the gateway runs through here"
)]
pub(crate) fn command(program: &Path) -> Command {
    Command::new(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_other_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"bench"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"bench"},"executable":"a/bench"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#
        );
        assert_eq!(program(messages, "bench"), Some(PathBuf::from("a/bench")));
        assert_eq!(program(messages, "bridgehead"), None);
    }
}
