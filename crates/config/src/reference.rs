//! The reference page of all keys, written from the key table.

use std::fmt::Write as _;

use crate::environment::VARIABLES;
use crate::keys::{self, Key, KeyTable, Status};

const OPENING: &str = include_str!("docs/reference.md");

/// The reference page in Markdown, which is stored as `docs/configuration.md`.
pub fn reference() -> String {
    let mut page = OPENING.to_owned();
    page.push_str("\n## Environment variables\n\n| variable | meaning |\n|---|---|\n");
    for (name, meaning) in VARIABLES {
        row(&mut page, &[&format!("`{name}`"), meaning]);
    }
    page.push_str("\nAny other variable that begins with `BRIDGEHEAD_` is an error.\n\n## Keys\n");
    for place in KeyTable::ALL {
        let heading = match place {
            KeyTable::Root => "Top of the file".to_owned(),
            _ => format!("`{}`", place.heading()),
        };
        let _infallible =
            write!(page, "\n### {heading}\n\n| key | value | default | meaning |\n|---|---|---|---|\n");
        for key in keys::of(place) {
            let default = if key.default.is_empty() { String::new() } else { default(key) };
            row(
                &mut page,
                &[
                    &format!("`{}`", key.name),
                    &key.kind.describe(),
                    &default,
                    &format!("{}{}", key.doc, remark(key)),
                ],
            );
        }
    }
    page
}

/// The default: values in code style, descriptions as plain text.
fn default(key: &Key) -> String {
    let code = key.default.starts_with(['"', '[', '{'])
        || key.default.starts_with(|first: char| first.is_ascii_digit())
        || ["true", "false"].contains(&key.default);
    if code { format!("`{}`", key.default) } else { key.default.to_owned() }
}

fn remark(key: &Key) -> String {
    match key.status {
        Status::Supported => String::new(),
        Status::Later { accepts: [], .. } => " *Not supported yet.*".to_owned(),
        Status::Later { accepts, .. } => {
            format!(" *Not supported yet, except `{}`.*", accepts.join("`, `"))
        }
    }
}

fn row(page: &mut String, cells: &[&str]) {
    for cell in cells {
        page.push_str("| ");
        page.push_str(&cell.replace('|', "\\|"));
        page.push(' ');
    }
    page.push_str("|\n");
}
