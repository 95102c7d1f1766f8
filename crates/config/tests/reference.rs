//! The reference page matches the key table.

use std::path::Path;

use bridgehead_config::keys::Status;

/// A stale page fails; `UPDATE_REFERENCE=1` rewrites it.
#[test]
fn the_reference_page_is_fresh() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let reference = bridgehead_config::reference();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&page, &reference).unwrap();
    }
    let written = std::fs::read_to_string(&page).unwrap();
    assert!(written == reference, "docs/configuration.md is stale; run `cargo xtask generate`");
}

/// HOUR-11: the README's list of missing features names none that the key table supports.
#[test]
fn what_is_not_there_yet_is_not_there() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let missing = readme.split("\n\n").find(|paragraph| paragraph.starts_with("Not supported yet")).unwrap();
    for key in bridgehead_config::keys::KEYS.iter().filter(|key| key.status == Status::Supported) {
        assert!(!missing.contains(&format!("`{}`", key.name)), "`{}` works: {missing}", key.name);
    }
    for works in ["tasks", "what files and networks", "a process for every call"] {
        assert!(!missing.contains(works), "{works} works: {missing}");
    }
}
