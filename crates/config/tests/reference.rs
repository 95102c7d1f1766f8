//! The reference page is what the key table says.

use std::path::Path;

/// A stale page fails; `UPDATE_REFERENCE=1` writes it anew.
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
