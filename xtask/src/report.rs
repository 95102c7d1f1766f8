//! Maps every requirement to the tests that name it, and writes `docs/requirements.md`.
//!
//! The page is made from the table and the sources alone, without line numbers or dates. It changes only when a test that
//! names an id is added, removed or moved.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::requirements::{Due, Group, REQUIREMENTS, families};
use crate::scan;
use crate::steps::cargo_output;

const PAGE: &str = "docs/requirements.md";
const CURE: &str = "run `cargo xtask requirements --write`";

/// Id to the full paths of the tests that name it.
type Proofs = BTreeMap<String, Vec<String>>;

/// Fails if a landed id has no test, a test names an id that does not exist, or the page is stale.
pub(crate) fn check(root: &Path) -> Result<()> {
    let proofs = collect(root)?;
    let mut complaints = complaints(&proofs);
    if fs::read_to_string(root.join(PAGE)).unwrap_or_default() != render(&proofs) {
        complaints.push(format!("{PAGE} is stale: {CURE}"));
    }
    conclude(&complaints)
}

/// Writes the page, then reports the problems that writing it does not solve.
pub(crate) fn write(root: &Path) -> Result<()> {
    let proofs = collect(root)?;
    fs::write(root.join(PAGE), render(&proofs)).with_context(|| format!("{PAGE} could not be written"))?;
    println!("wrote {PAGE}");
    conclude(&complaints(&proofs))
}

fn conclude(complaints: &[String]) -> Result<()> {
    if !complaints.is_empty() {
        bail!("{}", complaints.join("\n   "));
    }
    Ok(())
}

fn complaints(proofs: &Proofs) -> Vec<String> {
    let known: Vec<String> = REQUIREMENTS.iter().map(|requirement| requirement.id()).collect();
    let unproven = REQUIREMENTS
        .iter()
        .filter(|requirement| requirement.due == Due::Now && !proofs.contains_key(&requirement.id()))
        .map(|requirement| {
            format!("{} has landed, but no test names it: {}", requirement.id(), requirement.summary)
        });
    let unknown = proofs
        .iter()
        .filter(|(id, _)| !known.contains(id))
        .map(|(id, tests)| format!("{id} does not exist, but is named by {}", tests.join(", ")));
    unproven.chain(unknown).collect()
}

fn render(proofs: &Proofs) -> String {
    let mut page = String::from(
        "# Requirements and their tests\n\n\
         <!-- Written by `cargo xtask requirements --write`; the table is in xtask/src/requirements.rs. -->\n\n\
         Every promise has an id, and a test that proves it names the id in its doc comment. A promise marked *not yet*\n\
         is not due; one without that mark and without a test fails the check.\n",
    );
    for group in Group::ALL {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {}\n", group.title());
        for requirement in REQUIREMENTS.iter().filter(|requirement| requirement.group() == group) {
            let id = requirement.id();
            let mark = match requirement.due {
                Due::Now => String::new(),
                Due::With(change) => format!(" *(not yet; kept by: {change})*"),
            };
            let _ = write!(page, "\n**{id}** {}{mark}\n", requirement.summary);
            let tests = proofs.get(&id).map(Vec::as_slice).unwrap_or_default();
            if !tests.is_empty() {
                page.push('\n');
            }
            for test in tests {
                let _ = writeln!(page, "- `{test}`");
            }
        }
    }
    page
}

fn collect(root: &Path) -> Result<Proofs> {
    let families = families();
    let mut proofs = Proofs::new();
    for (package, folder) in packages(root)? {
        for file in sources(&folder)? {
            let source =
                fs::read_to_string(&file).with_context(|| format!("{} could not be read", file.display()))?;
            let place = place(&package, file.strip_prefix(&folder).unwrap_or(&file));
            for test in scan::tests(&source, &families) {
                for id in test.ids {
                    proofs.entry(id).or_default().push(format!("{place}::{}", test.path));
                }
            }
        }
    }
    for tests in proofs.values_mut() {
        tests.sort();
    }
    Ok(proofs)
}

/// The packages of the workspace with their folders.
fn packages(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let output = cargo_output(root, &["metadata", "--no-deps", "--format-version", "1"], &[])?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    packages
        .iter()
        .map(|package| {
            let text = |key: &str| package[key].as_str().with_context(|| format!("a package has no {key}"));
            let folder = Path::new(text("manifest_path")?).parent().context("a package has no folder")?;
            Ok((text("name")?.replace('-', "_"), folder.to_owned()))
        })
        .collect()
}

/// All Rust sources of a package.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["src", "tests", "examples", "benches"].map(|name| folder.join(name)).to_vec();
    folders.retain(|folder| folder.is_dir());
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("{} could not be read", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// The module path of a file: `crate::chain::lock` for `src/chain/lock.rs`, `crate::lines` for `tests/lines.rs`.
fn place(package: &str, file: &Path) -> String {
    let mut parts: Vec<String> = file
        .with_extension("")
        .components()
        .skip(1)
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        parts.pop();
    }
    parts.insert(0, package.to_owned());
    parts.join("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_place(file: &str, expected: &str) {
        assert_eq!(place("front", Path::new(file)), expected);
    }

    #[test]
    fn places_are_module_paths() {
        check_place("src/lib.rs", "front");
        check_place("src/main.rs", "front");
        check_place("src/stdio.rs", "front::stdio");
        check_place("src/http/mod.rs", "front::http");
        check_place("src/http/sse.rs", "front::http::sse");
        check_place("tests/lines.rs", "front::lines");
    }

    /// QA-2: a landed requirement without a test fails, and so does an unknown id in a test.
    #[test]
    fn a_landed_id_without_a_test_and_an_unknown_id_are_complaints() {
        let everything = || {
            REQUIREMENTS
                .iter()
                .filter(|requirement| requirement.due == Due::Now)
                .map(|requirement| (requirement.id(), vec!["front::one".to_owned()]))
                .collect::<Proofs>()
        };
        assert_eq!(complaints(&everything()), Vec::<String>::new());

        let mut lacking = everything();
        lacking.remove("PIPE-7");
        let told = complaints(&lacking);
        assert!(
            matches!(told.as_slice(), [one] if one.starts_with("PIPE-7 has landed, but no test names it")),
            "{told:?}"
        );

        let mut unknown = everything();
        unknown.insert("PIPE-99".to_owned(), vec!["front::one".to_owned()]);
        assert_eq!(complaints(&unknown), ["PIPE-99 does not exist, but is named by front::one"]);
    }

    /// QA-2: the page has the groups, and the tests under their ids.
    #[test]
    fn the_page_names_the_tests() {
        let proofs = Proofs::from([("CAT-3".to_owned(), vec!["a::one".to_owned(), "b::two".to_owned()])]);
        let page = render(&proofs);
        assert!(page.contains("through a map\n\n- `a::one`\n- `b::two`\n"), "{page}");
        assert!(
            page.contains("**BOX-1** an isolated call runs in a process of its own, with limits\n"),
            "{page}"
        );
        let health = page.find("## Health").unwrap();
        let errors = page.find("## Error normalisation").unwrap();
        assert!((health..errors).contains(&page.find("**PROV-2**").unwrap()));
    }
}
