//! `cargo xtask docs`: checks every link of the documentation, then builds it as a book in the target folder.
//!
//! The pages live where a reader of the repository expects them: most in `docs`, a few at the root. mdBook wants one folder,
//! so the chore copies them into one and adjusts their links (`docs/pages.rs`). The sources stay readable without the book.

mod links;
mod pages;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::steps;
use pages::Page;

const PROGRAM: &str = "mdbook";
/// The version that the book is built with: another one may order its settings differently.
const MDBOOK: &str = "0.5.4";

/// Checks the links and builds the book.
pub(crate) fn run(root: &Path) -> Result<()> {
    let pages = Page::all(root)?;
    check_links(root, &pages)?;
    install(root)?;
    let folder = steps::target_folder()?.join("book");
    let sources = folder.join("src");
    if sources.exists() {
        fs::remove_dir_all(&sources).context("the last book's sources could not be removed")?;
    }
    let listed = pages::summary(root)?;
    for page in &pages {
        page.copy(&sources)?;
    }
    pages::copy_pictures(root, &sources)?;
    fs::write(sources.join("SUMMARY.md"), listed)?;
    fs::copy(root.join("book.toml"), folder.join("book.toml")).context("book.toml could not be copied")?;
    steps::output(root, PROGRAM, &["build".as_ref(), folder.as_os_str()])?;
    println!("{}", folder.join("html").join("index.html").display());
    Ok(())
}

/// Installs mdBook if it is missing.
pub(crate) fn install(root: &Path) -> Result<()> {
    if steps::output(root, PROGRAM, &["--version"]).is_ok() {
        return Ok(());
    }
    eprintln!("installing mdbook");
    let version = format!("mdbook@{MDBOOK}");
    // The features left out watch files and serve pages.
    steps::cargo(root, &["install", &version, "--locked", "--no-default-features", "--features=search"], &[])
}

/// Fails if a page links to a file or a heading that does not exist, names a source file that does not exist, or is missing in
/// the table of contents.
pub(crate) fn check(root: &Path) -> Result<()> {
    check_links(root, &Page::all(root)?)
}

fn check_links(root: &Path, pages: &[Page]) -> Result<()> {
    let mut complaints: Vec<String> = pages.iter().flat_map(|page| page.broken_links(root, pages)).collect();
    complaints.extend(pages::unlisted(root, pages)?);
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n   "));
    }
    println!("the links of {} pages lead somewhere", pages.len());
    Ok(())
}
