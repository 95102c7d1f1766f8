//! Finds programs that cargo built by their names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::steps::{Variables, cargo_output};

/// The executables that cargo reports as built: their names and paths.
pub(crate) struct Built(Vec<(String, PathBuf)>);

impl Built {
    /// The gateway, its shim beside it, and the programs that measure it, built with `cargo build --release`.
    pub(crate) fn optimised(root: &Path) -> Result<Self> {
        Self::by(root, OPTIMISED, &[])
    }

    /// Only the programs that measure the gateway.
    pub(crate) fn to_measure(root: &Path) -> Result<Self> {
        Self::by(root, &["build", "--release", "--bins", "--package=bridgehead-bench"], &[])
    }

    /// Every program of the workspace, built quickly, to check its behaviour.
    pub(crate) fn to_check(root: &Path) -> Result<Self> {
        // The example makes Cargo use the features that tests want, and so reuse the dependencies built for tests.
        Self::by(root, &["build", "--workspace", "--bins", "--example=embedded"], &[])
    }

    /// Runs cargo once and collects what it builds.
    pub(crate) fn by(root: &Path, arguments: &[&str], variables: Variables<'_>) -> Result<Self> {
        let arguments = [arguments, &["--message-format=json-render-diagnostics"]].concat();
        let messages = cargo_output(root, &arguments, variables)?;
        Ok(Self(read(std::str::from_utf8(&messages).context("cargo's messages are not text")?)))
    }

    /// The path of a program.
    pub(crate) fn program(&self, name: &str) -> Result<&Path> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, path)| path.as_path()).with_context(|| format!("cargo built no program `{name}`"))
    }

    /// The paths of all programs.
    pub(crate) fn into_programs(self) -> Vec<PathBuf> {
        self.0.into_iter().map(|(_, path)| path).collect()
    }
}

/// Only these packages are built together: with others, Cargo would enable their features in the gateway too.
const OPTIMISED: &[&str] =
    &["build", "--release", "--bins", "--package=bridgehead-cli", "--package=bridgehead-bench"];

fn read(messages: &str) -> Vec<(String, PathBuf)> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = messages.filter_map(|message| {
        let path = message["executable"].as_str()?.into();
        Some((message["target"]["name"].as_str()?.to_owned(), path))
    });
    programs.collect()
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
        let built = Built(read(messages));
        assert_eq!(built.program("bench").unwrap(), Path::new("a/bench"));
        assert!(built.program("bridgehead").is_err());
        assert_eq!(built.into_programs(), [PathBuf::from("a/bench")]);
    }
}
