//! The cases that isolation is judged by, numbered from 1 to 59: which of them a test shows, and why the others are not.
//!
//! A test shows a case if it is named for it, `box_21_…`. A case that no test shows must stand in [`NOT_SHOWN`] with the
//! reason, and one that a test shows must not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

/// How many there are.
const CASES: u32 = 59;

/// What no test shows, and why.
const NOT_SHOWN: &[(u32, &str)] = &[(
    11,
    "a length prefix beyond all bounds: messages are lines here, and lines that are too long are case 12",
)];

/// Counts, and complains about what is neither shown nor explained.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut sources = Vec::new();
    collect(&root.join("crates"), &mut sources)?;
    let shown: BTreeSet<u32> = sources.iter().flat_map(|source| cases_in(source)).collect();
    let not_shown: BTreeMap<u32, &str> = NOT_SHOWN.iter().copied().collect();
    let complaints = complaints(&shown, &not_shown);
    println!("{} of {CASES} cases of isolation are shown by tests", shown.len());
    for (number, reason) in &not_shown {
        println!("  not shown: {number}: {reason}");
    }
    match complaints.is_empty() {
        true => Ok(()),
        false => bail!("{}", complaints.join("\n")),
    }
}

fn complaints(shown: &BTreeSet<u32>, not_shown: &BTreeMap<u32, &str>) -> Vec<String> {
    let neither = (1..=CASES)
        .filter(|number| !shown.contains(number) && !not_shown.contains_key(number))
        .map(|number| format!("case {number} is shown by no test `box_{number:02}_…`, and nothing says why"));
    let both = not_shown
        .keys()
        .filter(|number| shown.contains(number))
        .map(|number| format!("case {number} is shown, though it is listed as not shown"));
    let unknown = shown.iter().filter(|&&number| !(1..=CASES).contains(&number));
    let unknown = unknown.map(|number| format!("there is no case {number}"));
    neither.chain(both).chain(unknown).collect()
}

/// The numbers of all functions in a source that are named for a case.
fn cases_in(source: &str) -> Vec<u32> {
    let names =
        source.lines().filter_map(|line| line.trim_start().split_once("fn box_").map(|(_, name)| name));
    names.filter_map(|name| name.get(..2)?.parse().ok()).collect()
}

fn collect(folder: &Path, sources: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_from_names() {
        let source = "#[test]\nasync fn box_07_a() {}\n    fn box_12_b() {}\nfn other() {}\nfn box_ab() {}\n";
        assert_eq!(cases_in(source), [7, 12]);
    }

    #[test]
    fn what_is_neither_shown_nor_explained_is_a_complaint() {
        let all: BTreeSet<u32> = (1..=CASES).collect();
        assert!(complaints(&all, &BTreeMap::new()).is_empty());
        let without: BTreeSet<u32> = (2..=CASES).collect();
        assert_eq!(complaints(&without, &BTreeMap::new()).len(), 1);
        assert!(complaints(&without, &BTreeMap::from([(1, "why")])).is_empty());
        assert_eq!(complaints(&all, &BTreeMap::from([(1, "why")])).len(), 1);
        let more: BTreeSet<u32> = (1..=CASES + 1).collect();
        assert_eq!(complaints(&more, &BTreeMap::new()), ["there is no case 60"]);
    }
}
