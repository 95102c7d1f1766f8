//! The licences of the project, and those of the libraries whose code is in the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{PLATFORM, copy, write};
use crate::steps;

const OWN: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
const OF_DEPENDENCIES: &str = "LICENSES-OF-DEPENDENCIES.txt";
/// How the names of files with a licence or its notices begin.
const BEGINNINGS: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Files that every package with programs has.
pub(super) struct Licences {
    own: [PathBuf; 2],
    of_dependencies: PathBuf,
}

impl Licences {
    pub(super) fn of(root: &Path, of_dependencies: &str, folder: &Path) -> Result<Self> {
        let file = folder.join(OF_DEPENDENCIES);
        write(&file, of_dependencies)?;
        Ok(Self { own: OWN.map(|name| root.join(name)), of_dependencies: file })
    }

    /// Copies all, and returns their names.
    pub(super) fn copy_into(&self, folder: &Path) -> Result<Vec<String>> {
        self.copy_own_into(folder)?;
        copy(&self.of_dependencies, folder)?;
        Ok(OWN.iter().chain([&OF_DEPENDENCIES]).map(|name| (*name).to_owned()).collect())
    }

    /// Copies those of the project, for a package without programs.
    pub(super) fn copy_own_into(&self, folder: &Path) -> Result<()> {
        self.own.iter().try_for_each(|file| copy(file, folder))
    }
}

/// Reads the licences of everything that the program depends on, from the sources that cargo has.
pub(super) fn collect(root: &Path, folder: &Path) -> Result<Licences> {
    let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM.target];
    let metadata = steps::cargo_output(root, &arguments, &[])?;
    let metadata: Value = serde_json::from_slice(&metadata).context("cargo metadata is not JSON")?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut lines = BTreeSet::new();
    for package in dependencies(&metadata)? {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        lines.insert(format!("{name}: {}", text("license")));
        let sources = Path::new(text("manifest_path")).parent().context("a package has no folder")?;
        for file in chosen(files(sources)?, text("license")) {
            let bytes = fs::read(sources.join(&file))?;
            texts
                .entry(String::from_utf8_lossy(&bytes).trim_end().to_owned())
                .or_default()
                .insert(name.clone());
        }
    }
    Licences::of(root, &page(&lines, &texts)?, folder)
}

/// The packages from elsewhere whose code is in the program.
fn dependencies(metadata: &Value) -> Result<Vec<&Value>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let nodes = metadata["resolve"]["nodes"].as_array().context("cargo metadata has no graph")?;
    let program = packages.iter().find(|package| package["name"] == "bridgehead-cli");
    let mut open = vec![&program.context("cargo metadata has no bridgehead-cli")?["id"]];
    let mut seen: Vec<&Value> = Vec::new();
    while let Some(id) = open.pop() {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        let edges = nodes.iter().find(|node| node["id"] == *id).and_then(|node| node["deps"].as_array());
        for edge in edges.into_iter().flatten() {
            let kinds = edge["dep_kinds"].as_array();
            // Neither build scripts nor tests are in the program.
            if kinds.into_iter().flatten().any(|kind| kind["kind"].is_null()) {
                open.push(&edge["pkg"]);
            }
        }
    }
    Ok(packages
        .iter()
        .filter(|package| seen.contains(&&package["id"]) && !package["source"].is_null())
        .collect())
}

/// The names of files with licences.
fn files(sources: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(sources).with_context(|| format!("{} could not be read", sources.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_file()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| BEGINNINGS.iter().any(|beginning| name.to_uppercase().starts_with(beginning)))
        .collect();
    names.sort();
    Ok(names)
}

/// Of several licences to choose from, the MIT licence; else all files.
fn chosen(files: Vec<String>, licence: &str) -> Vec<String> {
    let mit: Vec<String> = files.iter().filter(|name| name.to_uppercase().contains("MIT")).cloned().collect();
    let may_choose = licence.contains("MIT") && !licence.contains("AND") && !mit.is_empty();
    if may_choose { mit } else { files }
}

fn page(lines: &BTreeSet<String>, texts: &BTreeMap<String, BTreeSet<String>>) -> Result<String> {
    let mut page = "The programs contain code of these libraries, under these licences:\n\n\
                    the C library musl: MIT\nthe standard library of Rust: MIT OR Apache-2.0\n"
        .to_owned();
    for line in lines {
        writeln!(page, "{line}")?;
    }
    for (text, names) in texts {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        write!(page, "\n{}\n{}:\n\n{text}\n", "=".repeat(80), names.join(", "))?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_in_the_program_is_followed_and_nothing_else() {
        let package = |name: &str, source: Value| json!({"id": name, "name": name, "source": source});
        let edge = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("bridgehead-cli", Value::Null), package("ours", Value::Null), package("direct", json!("registry")),
                package("deep", json!("registry")), package("builds", json!("registry")), package("other", json!("registry")),
            ],
            "resolve": {"nodes": [
                {"id": "bridgehead-cli", "deps": [edge("ours", Value::Null), edge("builds", json!("build"))]},
                {"id": "ours", "deps": [edge("direct", Value::Null), edge("bridgehead-cli", json!("dev"))]},
                {"id": "direct", "deps": [edge("deep", Value::Null), edge("direct", Value::Null)]},
                {"id": "other", "deps": []},
            ]},
        });
        let names: Vec<_> =
            dependencies(&metadata).unwrap().iter().map(|package| package["name"].clone()).collect();
        assert_eq!(names, ["direct", "deep"]);
    }

    #[track_caller]
    fn check_chosen(files: &[&str], licence: &str, expected: &[&str]) {
        assert_eq!(chosen(files.iter().map(|name| (*name).to_owned()).collect(), licence), expected);
    }

    #[test]
    fn the_shortest_licence_is_chosen_where_one_may_choose() {
        let both = ["LICENSE-APACHE", "LICENSE-MIT"];
        check_chosen(&both, "MIT OR Apache-2.0", &["LICENSE-MIT"]);
        check_chosen(&both, "MIT AND Apache-2.0", &both);
        check_chosen(&["LICENSE"], "MIT", &["LICENSE"]);
        check_chosen(&["LICENSE", "NOTICE"], "Apache-2.0", &["LICENSE", "NOTICE"]);
    }

    #[test]
    fn equal_texts_are_printed_once() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let texts = BTreeMap::from([("Do as you like.".to_owned(), names(&["a 1", "b 2"]))]);
        let page = page(&names(&["a 1: MIT", "b 2: MIT"]), &texts).unwrap();
        assert!(page.contains("\na 1: MIT\nb 2: MIT\n"), "{page}");
        assert!(page.ends_with("\na 1, b 2:\n\nDo as you like.\n"), "{page}");
    }
}
