//! The cases that isolation is judged by, numbered from 1 to 59: which of them a test shows, and why the others have none.
//!
//! A test shows a case if its name begins with the number, as in `box_21_…`. A case that no test shows must be listed in
//! [`NOT_SHOWN`] with the reason, and a case that a test shows must not be.
//!
//! Some tests need features that a machine may lack. There such a test passes, and leaves a note with its name and what is
//! missing in the folder that [`NOTES`] names. After a run of all tests the notes are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::steps;

/// The number of cases.
const CASES: u32 = 59;

/// The variable that tells tests where to leave their notes.
const NOTES: &str = "CASES_NOT_SHOWN";

/// The cases that no test shows, and why.
const NOT_SHOWN: &[(u32, &str)] = &[(
    11,
    "a length prefix that is too large: messages are lines here, and lines that are too long are case 12",
)];

/// Counts the cases, and fails if one is neither shown nor explained.
pub(crate) fn run(root: &Path) -> Result<()> {
    let shown: BTreeSet<u32> = tests(root)?.iter().filter_map(|name| case_of(name)).collect();
    let not_shown: BTreeMap<u32, &str> = NOT_SHOWN.iter().copied().collect();
    let complaints = complaints(&shown, &not_shown);
    println!("{} of {CASES} cases of isolation have tests", shown.len());
    for (number, reason) in &not_shown {
        println!("  has none: {number}: {reason}");
    }
    match complaints.is_empty() {
        true => Ok(()),
        false => bail!("{}", complaints.join("\n")),
    }
}

fn complaints(shown: &BTreeSet<u32>, not_shown: &BTreeMap<u32, &str>) -> Vec<String> {
    let neither = (1..=CASES)
        .filter(|number| !shown.contains(number) && !not_shown.contains_key(number))
        .map(|number| format!("case {number} has no test `box_{number:02}_…` and no reason why not"));
    let both = not_shown
        .keys()
        .filter(|number| shown.contains(number))
        .map(|number| format!("case {number} has a test, but is listed as not shown"));
    let unknown = shown.iter().filter(|&&number| !(1..=CASES).contains(&number));
    let unknown = unknown.map(|number| format!("there is no case {number}"));
    neither.chain(both).chain(unknown).collect()
}

/// The folder where the tests of a run leave their notes.
pub(crate) struct Notes(PathBuf);

impl Notes {
    /// Makes an empty folder. It is writable by everyone, because some tests run as another user.
    pub(crate) fn new() -> Result<Self> {
        let folder = steps::target_folder()?.join("not-shown");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        Ok(Self(folder))
    }

    /// The variable that tells the tests about the folder.
    pub(crate) fn variable(&self) -> (&'static str, &OsStr) {
        (NOTES, self.0.as_os_str())
    }

    /// Prints what was shown on this machine and what was not, after all tests have passed.
    pub(crate) fn tell(&self, root: &Path) -> Result<()> {
        let mut notes = BTreeMap::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let lacking = fs::read_to_string(entry.path())?;
            notes.insert(entry.file_name().to_string_lossy().into_owned(), lacking);
        }
        print!("{}", told(&tests(root)?, &notes));
        Ok(())
    }
}

/// The summary of a run: how many cases were shown, and which tests lacked something, as `notes` says.
fn told(tests: &BTreeSet<String>, notes: &BTreeMap<String, String>) -> String {
    let shows = |name: &&String| !notes.contains_key(*name);
    let shown: BTreeSet<u32> = tests.iter().filter(shows).filter_map(|name| case_of(name)).collect();
    let not_shown: Vec<String> =
        (1..=CASES).filter(|number| !shown.contains(number)).map(|number| number.to_string()).collect();
    let mut text = format!(
        "cases of isolation on this machine: {} shown, {} not shown ({})\n",
        shown.len(),
        not_shown.len(),
        not_shown.join(", ")
    );
    if !notes.is_empty() {
        text.push_str(&format!("{} of {} tests of cases lack something here:\n", notes.len(), tests.len()));
    }
    let mut lacking: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, what) in notes {
        lacking.entry(what).or_default().push(name);
    }
    for (what, names) in lacking {
        text.push_str(&format!("  {what}\n"));
        for name in names {
            text.push_str(&format!("    {name}\n"));
        }
    }
    text
}

/// The names of all tests that show a case.
fn tests(root: &Path) -> Result<BTreeSet<String>> {
    let mut sources = Vec::new();
    collect(&root.join("crates"), &mut sources)?;
    Ok(sources.iter().flat_map(|source| tests_in(source)).collect())
}

/// The names of all functions in a source that are named after a case.
fn tests_in(source: &str) -> Vec<String> {
    let names = source.lines().filter_map(|line| line.trim_start().split_once("fn box_"));
    let names = names.filter_map(|(_, rest)| Some(format!("box_{}", rest.split_once('(')?.0)));
    names.filter(|name| case_of(name).is_some()).collect()
}

/// The case that a test is named after.
fn case_of(name: &str) -> Option<u32> {
    name.strip_prefix("box_")?.get(..2)?.parse().ok()
}

fn collect(folder: &Path, sources: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(&path)?);
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
        assert_eq!(tests_in(source), ["box_07_a", "box_12_b"]);
        assert_eq!(case_of("box_12_b"), Some(12));
    }

    #[test]
    fn what_a_machine_lacks_is_counted() {
        let mut tests: BTreeSet<String> = (2..=CASES).map(|number| format!("box_{number:02}_a")).collect();
        tests.insert("box_07_b".to_owned());
        let notes =
            ["box_07_b", "box_09_a", "as_another_user"].map(|name| (name.to_owned(), "scopes".to_owned()));
        assert_eq!(
            told(&tests, &notes.into_iter().collect()),
            "cases of isolation on this machine: 57 shown, 2 not shown (1, 9)\n\
             3 of 59 tests of cases lack something here:\n  \
             scopes\n    as_another_user\n    box_07_b\n    box_09_a\n"
        );
        assert!(told(&tests, &BTreeMap::new()).ends_with("58 shown, 1 not shown (1)\n"));
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
