//! Checks a rule about the sources of the whole workspace that the compiler cannot check.

#![expect(clippy::unwrap_used, reason = "a failed expectation of a test")]

use std::path::{Path, PathBuf};

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// No code hooks between fork and exec: a hook would make every start copy the page tables of the gateway.
#[test]
fn nothing_hooks_into_the_start_of_a_program() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    sources(&workspace.join("crates"), &mut found);
    sources(&workspace.join("xtask"), &mut found);
    assert!(found.len() > 10, "the sources were not found");
    // In two parts, so that this file does not match.
    let hook = concat!("pre_", "exec");
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            assert!(!code.contains(hook), "{}:{}: {hook}", path.display(), number + 1);
        }
    }
}
