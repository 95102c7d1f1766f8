//! Builds the gateway and the programs of the benchmark as they would be shipped, then hands over to the benchmark.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps::cargo_output;

/// `options` go to the benchmark as they are.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let build = [
        "build",
        "--release",
        "--bins",
        "--package=bridgehead",
        "--package=bridgehead-bench",
        "--message-format=json-render-diagnostics",
    ];
    let built = String::from_utf8(cargo_output(root, &build)?).context("cargo's messages are not text")?;
    let program = |name| program(&built, name).with_context(|| format!("cargo built no program `{name}`"));
    let status = command(&program("bench")?)
        .arg("--gateway")
        .arg(program("bridgehead")?)
        .arg("--upstream")
        .arg(program("echo-upstream")?)
        .args(options)
        .status()
        .context("the benchmark could not be started")?;
    if !status.success() {
        bail!("the benchmark ended with {status}");
    }
    Ok(())
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
fn command(program: &Path) -> Command {
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
