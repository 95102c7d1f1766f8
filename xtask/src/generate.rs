//! `cargo xtask generate`: writes every page that is made from code.
//!
//! The tests that detect stale pages also write them. They run in CI too.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;

use crate::report;
use crate::steps::{self, Variables};

/// Tests that compare a committed page with its source, and write it where `UPDATE_REFERENCE` is set.
const PAGES: &[&[&str]] = &[
    &["--package", "bridgehead-config", "--test", "reference", "--test", "schema"],
    &["--package", "bridgehead-events", "--test", "pages"],
    &["--package", "bridgehead-cli", "--bin", "bridgehead", "fresh"],
];

/// Writes all pages.
pub(crate) fn write(root: &Path) -> Result<()> {
    report::write(root)?;
    tests(root, &[("UPDATE_REFERENCE", OsStr::new("1"))])
}

/// Fails if a page is stale.
pub(crate) fn check(root: &Path) -> Result<()> {
    report::check(root)?;
    tests(root, &[])
}

fn tests(root: &Path, variables: Variables<'_>) -> Result<()> {
    for page in PAGES {
        let arguments: Vec<&str> = ["test", "--quiet"].iter().chain(*page).copied().collect();
        steps::cargo(root, &arguments, variables)?;
    }
    Ok(())
}
