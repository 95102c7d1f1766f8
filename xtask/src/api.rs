//! The public interface of the library: written down as text, so that a change of it shows in review, and compared with an
//! earlier release.
//!
//! Both need what a stable toolchain does not promise: the first reads rustdoc's JSON, whose format changes with the compiler,
//! and the second needs another program. Each says aloud what is missing, and neither is part of CI.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps;

/// Where the texts are, one file for each published crate.
const FOLDER: &str = "docs/api";
/// The version of rustdoc's JSON that the crate `public-api` reads.
const FORMAT: u64 = 57;

/// Compares the public interface of every published crate with its text, or writes the texts.
pub(crate) fn run(root: &Path, write: bool) -> Result<()> {
    let mut changed = Vec::new();
    for package in published(root)? {
        let now = interface(root, &package)?;
        let file = root.join(FOLDER).join(format!("{package}.txt"));
        let before = std::fs::read_to_string(&file).unwrap_or_default();
        if now == before {
            continue;
        }
        if write {
            std::fs::create_dir_all(root.join(FOLDER))?;
            std::fs::write(&file, &now).with_context(|| format!("cannot write {}", file.display()))?;
            println!("wrote {FOLDER}/{package}.txt");
        } else {
            println!("{package}:\n{}", difference(&before, &now));
            changed.push(package);
        }
    }
    if !changed.is_empty() {
        bail!(
            "the public interface of {} has changed; if that is intended, run `cargo xtask api --write` and name the change in \
             CHANGELOG.md",
            changed.join(", ")
        );
    }
    Ok(())
}

/// Compares the library with an earlier commit by the rules of semantic versioning.
pub(crate) fn semver(root: &Path, baseline: Option<&str>) -> Result<()> {
    if !steps::succeeds(root, &["semver-checks", "--version"]) {
        bail!(
            "cargo-semver-checks is not installed; `cargo install cargo-semver-checks --locked` installs it"
        );
    }
    let newest = steps::output(root, "git", &["describe", "--tags", "--abbrev=0", "--match", "v*"]);
    let newest = newest.ok().and_then(|tag| String::from_utf8(tag).ok());
    let Some(baseline) = baseline.or(newest.as_deref().map(str::trim)) else {
        bail!(
            "no release is tagged yet; name a commit to compare with: `cargo xtask semver --baseline COMMIT`"
        );
    };
    steps::cargo(root, &["semver-checks", "--workspace", "--baseline-rev", baseline], &[])
}

/// The packages of the workspace that are published and have a library, in alphabetical order.
pub(crate) fn published(root: &Path) -> Result<Vec<String>> {
    let metadata =
        steps::output(root, "cargo", &["metadata", "--no-deps", "--format-version=1", "--offline"])?;
    let metadata: Value = serde_json::from_slice(&metadata).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_library = |package: &&Value| {
        let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        // An empty list of registries means that a package is never published.
        package["publish"].is_null() && targets.iter().any(|target| target["kind"][0] == "lib")
    };
    let names = packages.iter().filter(is_library).filter_map(|package| package["name"].as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// The public items of a crate, one per line. Items that another crate defines are in that crate's text.
fn interface(root: &Path, package: &str) -> Result<String> {
    let target = steps::target_folder()?.join("api");
    // The stable compiler writes this format too, if it is told that we know that the format may change.
    steps::cargo(
        root,
        &[
            "rustdoc",
            "--quiet",
            "--package",
            package,
            "--lib",
            "--all-features",
            "--",
            "-Zunstable-options",
            "--output-format=json",
        ],
        &[("RUSTC_BOOTSTRAP", OsStr::new("1")), ("CARGO_TARGET_DIR", target.as_os_str())],
    )?;
    let file = target.join("doc").join(format!("{}.json", package.replace('-', "_")));
    let json =
        std::fs::read_to_string(&file).with_context(|| format!("rustdoc wrote no {}", file.display()))?;
    let format =
        serde_json::from_str::<Value>(&json).context("rustdoc wrote no JSON")?["format_version"].as_u64();
    if format != Some(FORMAT) {
        bail!(
            "this compiler writes version {} of rustdoc's JSON, and this chore reads version {FORMAT}: use the compiler that \
             Cargo.toml names as `rust-version`, or another version of the crate public-api",
            format.unwrap_or_default()
        );
    }
    let api = public_api::Builder::from_rustdoc_json(&file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("the interface of {package} cannot be read"))?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}

/// The lines that are gone and those that are new.
fn difference(before: &str, now: &str) -> String {
    let mut text = String::new();
    for line in before.lines().filter(|line| !now.lines().any(|other| other == *line)) {
        let _ = writeln!(text, "- {line}");
    }
    for line in now.lines().filter(|line| !before.lines().any(|other| other == *line)) {
        let _ = writeln!(text, "+ {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_lost_and_new_lines() {
        assert_eq!(difference("a\nb\n", "b\nc\n"), "- a\n+ c\n");
        assert_eq!(difference("a\n", "a\n"), "");
    }
}
