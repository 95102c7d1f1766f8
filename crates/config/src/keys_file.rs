//! The file of API keys that `bridgehead key` writes and the gateway watches: one list of tables per name.
//!
//! ```toml
//! [[ci]]
//! sha256 = "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
//! groups = ["build"]
//! scopes = ["repo:read"]
//! expires = 2027-01-31T00:00:00Z
//!
//! [[old]]
//! revoked = 2026-11-17T12:00:00Z
//! ```
//!
//! A row with `revoked` admits nobody. It keeps the name known, so that rules which still have it can be read.
//!
//! The tables have the keys of `[[auth.keys.NAME]]` in a configuration, and mistakes in them are told in the same way.

use std::path::Path;
use std::sync::Arc;

use crate::access::KeyRows;
use crate::check;
use crate::diagnostic::{ConfigError, Diagnostic, SourceText};
use crate::load::syntax;
use crate::mask::Mask;
use crate::section::Findings;
use crate::tree;

/// Reads the text of a keys file; `path` is only shown in diagnostics. An empty text has no rows.
///
/// # Errors
/// All mistakes at once, with their places. None of them shows what could be a key.
pub fn read_keys(text: &str, path: &Path) -> Result<KeyRows, ConfigError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
    let tree = tree::read_toml(&text);
    let mask = tree.as_ref().map_or(Mask::AllValues, |root| Mask::keys_file(root, &text));
    let source = Arc::new(SourceText { path: path.to_owned(), text, mask });
    let root = tree.map_err(|errors| syntax(&source, errors, "TOML"))?;
    let mut findings = Findings::new(source, true);
    let rows = check::keys_of_a_file(&root, &mut findings);
    findings.diagnostics.sort_by_key(Diagnostic::position);
    if findings.diagnostics.is_empty() { Ok(rows) } else { Err(ConfigError(findings.diagnostics)) }
}
