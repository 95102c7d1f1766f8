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

#[cfg(test)]
mod tests {
    use super::*;

    /// WORD-2: the check passes for pages that are linked and listed. It fails if a link leads nowhere, if the table of
    /// contents lacks a page, and if it lists one that does not exist.
    #[test]
    fn pages_must_be_linked_and_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for folder in ["docs/deep/er", "crates"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let write = |page: &str, text: &str| fs::write(root.join(page), text).unwrap();
        for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "crates/README.md"] {
            write(page, "# A page\n");
        }
        write("docs/deep/er/f.md", "# F\n");
        let listed = "[a](a.md) [f](deep/er/f.md) [b](../ARCHITECTURE.md) [c](../CONTRIBUTING.md) [d](../CHANGELOG.md)";
        write("docs/SUMMARY.md", listed);
        write("docs/a.md", "# A\n\n[here](#a) [there](../README.md#a-page)\n");
        check(root).unwrap();

        let broken = |page: &str, text: &str, complaint: &str| {
            let before = fs::read_to_string(root.join(page)).unwrap();
            write(page, text);
            let error = check(root).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
            write(page, &before);
        };
        broken("docs/a.md", "[gone](b.md)", "docs/a.md: the link to `b.md` leads nowhere");
        broken("docs/a.md", "# A\n[gone](#b)", "docs/a.md: the link to `#b` leads nowhere");
        broken("README.md", "[gone](docs/a.md#b)", "README.md: the link to `docs/a.md#b` leads nowhere");
        broken(
            "docs/SUMMARY.md",
            &listed.replace("[a](a.md)", ""),
            "docs/SUMMARY.md does not list docs/a.md",
        );
        broken("docs/deep/er/f.md", "[gone](g.md)", "docs/deep/er/f.md: the link to `g.md` leads nowhere");
        broken("docs/SUMMARY.md", &format!("{listed} [e](e.md)"), "the link to `e.md` leads nowhere");
        check(root).unwrap();
    }
}
