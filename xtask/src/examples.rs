//! LIB-4: runs every documented example of the library exactly as it is documented.
//!
//! The commands are those that the examples' own headers and docs/library.md give. The program `bridgehead` is found by its bare
//! name, as after an installation, and the servers of npm are found where the other checks install them. What an example asks
//! on its terminal is answered on its standard input.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::built::Built;
use crate::foreign::{self, MARK, command, leftovers, mark};
use crate::{shown, steps};

const FOLDER: &str = "crates/bridgehead/examples";
const PAGE: &str = "docs/library.md";
/// How every documented command begins.
const RUN: &str = "cargo run -p bridgehead --example ";
/// What the person at the terminal answers: a name.
pub(crate) const ANSWERS: &str = "Ada\n";

/// Runs all of them; fails if one fails or leaves a process behind.
pub(crate) fn run(root: &Path) -> Result<()> {
    let built = Built::to_check(root)?;
    let programs = built.program("bridgehead")?.parent().context("`bridgehead` is in no folder")?;
    let place = place(root)?;
    for line in documented(root)? {
        println!("\n{line}");
        let mark = mark("example");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&path)))?;
        let mut running = command("sh")
            .args(["-c", &line])
            .current_dir(&place)
            .env("PATH", path)
            .env(MARK, &mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("`{line}` could not be started"))?;
        // An example that asks nothing may end before it is answered.
        let _ = running.stdin.take().context("the example has no input")?.write_all(ANSWERS.as_bytes());
        let status = shown::finish(running)?;
        ensure!(status.success(), "`{line}` ended with {status}");
        let left = leftovers(&mark);
        ensure!(left.is_empty(), "`{line}` left processes: {}", left.join(", "));
    }
    Ok(())
}

/// An empty folder below the installed servers, so that npx finds them and fetches nothing.
pub(crate) fn place(root: &Path) -> Result<PathBuf> {
    foreign::install_packages(root)?;
    let place = steps::target_folder()?.join("foreign/npm/agent");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;
    Ok(place)
}

/// The commands that the headers of the examples and the page give; fails if an example has none, or if the page and a header
/// differ.
fn documented(root: &Path) -> Result<BTreeSet<String>> {
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let on_page = commands(&page);
    let mut in_headers = BTreeSet::new();
    for entry in root.join(FOLDER).read_dir().with_context(|| format!("cannot read {FOLDER}"))? {
        let path = entry?.path();
        let source = fs::read_to_string(&path)?;
        let header: String =
            source.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n");
        let commands = commands(&header);
        if commands.is_empty() {
            bail!("{} does not say how to run it: `{RUN}…`", path.display());
        }
        in_headers.extend(commands);
    }
    ensure!(
        on_page == in_headers,
        "{PAGE} and the headers of the examples give different commands: {:?}",
        on_page.symmetric_difference(&in_headers).collect::<Vec<_>>()
    );
    Ok(on_page)
}

/// The commands between backticks.
fn commands(text: &str) -> BTreeSet<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|quoted| quoted.starts_with(RUN)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIB-4: every example says how to run it, and the page about the library says the same.
    #[test]
    fn every_example_is_documented_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let documented = documented(root).unwrap();
        let examples = root.join(FOLDER).read_dir().unwrap().count();
        assert_eq!(documented.len(), examples, "{documented:?}");
        assert!(
            documented.iter().any(|line| line.ends_with("--example agent -- --calls 8")),
            "{documented:?}"
        );
    }

    #[test]
    fn commands_are_found_between_backticks() {
        let text = "a `cargo run -p bridgehead --example x -- y` and `cargo test`";
        assert_eq!(commands(text), BTreeSet::from(["cargo run -p bridgehead --example x -- y".to_owned()]));
    }
}
