//! Adds one entry to the text of a client's file, finds it, and takes it away again.
//!
//! The files belong to other programs and to the people who write them by hand. So an edit is a few splices of the text: what
//! it does not name keeps every byte, with its comments, its indentation, its line ends and a byte order mark. Each edit is
//! read back and compared with the tree that it should have made; if they differ, the edit is refused and nothing is written.
//!
//! Reading and replacing files is left to others.

mod jsonc;
mod toml;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON, with the comments and trailing commas that people put there.
    Json,
    /// TOML.
    Toml,
}

/// A value to write. Tables keep the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A string.
    Text(String),
    /// true or false.
    Flag(bool),
    /// Strings.
    List(Vec<String>),
    /// A value as it stood in a file of JSON.
    Written(String),
    /// Names and values.
    Table(Vec<(String, Shape)>),
}

/// Where an entry is: the keys that lead to the table of servers, and its name there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The keys, from the top of the file.
    pub(crate) path: &'a [&'a str],
    /// The name of the entry.
    pub(crate) name: &'a str,
}

/// What an insertion did besides the entry, so that a removal can undo that too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Added {
    /// How many keys of the path existed before.
    #[serde(default)]
    existing: usize,
    /// What stood in the table before, if it had no entry; for TOML, what was put before the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blank: Option<String>,
    /// The whole text, if it held no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

/// Why a text was not edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub(crate) struct EditError {
    /// What is wrong, and what to do.
    pub(crate) message: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// The column, in characters from 1.
    pub(crate) column: usize,
}

impl EditError {
    fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { message: message.into(), line, column }
    }
}

/// Replaces `start..end` of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Splice {
    start: usize,
    end: usize,
    with: String,
}

impl Splice {
    fn insert(at: usize, with: impl Into<String>) -> Self {
        Self { start: at, end: at, with: with.into() }
    }

    fn cut(start: usize, end: usize) -> Self {
        Self { start, end, with: String::new() }
    }
}

/// Applies splices that do not overlap and are in order.
fn splice(text: &str, splices: &[Splice]) -> String {
    let mut out = String::with_capacity(text.len() + splices.iter().map(|one| one.with.len()).sum::<usize>());
    let mut at = 0;
    for one in splices {
        out.push_str(text.get(at..one.start).unwrap_or_default());
        out.push_str(&one.with);
        at = one.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

/// The line end that a text uses.
fn newline(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text.get(..at).is_some_and(|before| before.ends_with('\r')) => "\r\n",
        _ => "\n",
    }
}

/// Splits a byte order mark from a text.
fn without_mark(text: &str) -> (&str, &str) {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => ("\u{feff}", rest),
        None => ("", text),
    }
}

/// The entry as a tree, if it is there.
pub(crate) fn find(
    format: Format,
    text: &str,
    place: Place<'_>,
) -> Result<Option<serde_json::Value>, EditError> {
    let (_, text) = without_mark(text);
    match format {
        Format::Json => jsonc::find(text, place),
        Format::Toml => toml::find(text, place),
    }
}

/// The value of an entry as it is written, if it is there; `None` for TOML, where it may be in several places.
pub(crate) fn written(format: Format, text: &str, place: Place<'_>) -> Result<Option<String>, EditError> {
    let (_, text) = without_mark(text);
    match format {
        Format::Json => jsonc::written(text, place),
        Format::Toml => Ok(None),
    }
}

/// The table of servers as a tree, if it is there.
pub(crate) fn servers(
    format: Format,
    text: &str,
    path: &[&str],
) -> Result<Option<serde_json::Value>, EditError> {
    let Some((&name, path)) = path.split_last() else { return Ok(None) };
    find(format, text, Place { path, name })
}

/// Adds an entry, which must not be there yet.
pub(crate) fn insert(
    format: Format,
    text: &str,
    place: Place<'_>,
    value: &Shape,
) -> Result<(String, Added), EditError> {
    let (mark, text) = without_mark(text);
    let (edited, added) = match format {
        Format::Json => jsonc::insert(text, place, value)?,
        Format::Toml => toml::insert(text, place, value)?,
    };
    Ok((format!("{mark}{edited}"), added))
}

/// Gives an entry another value. Returns the text unchanged if there is no such entry.
pub(crate) fn replace(
    format: Format,
    text: &str,
    place: Place<'_>,
    value: &Shape,
) -> Result<String, EditError> {
    let (mark, text) = without_mark(text);
    let edited = match format {
        Format::Json => jsonc::replace(text, place, value)?,
        Format::Toml => toml::replace(text, place, value)?,
    };
    Ok(format!("{mark}{edited}"))
}

/// Removes an entry and, as far as nobody uses it, what its insertion added besides. Returns the text unchanged if there is no
/// such entry.
pub(crate) fn remove(
    format: Format,
    text: &str,
    place: Place<'_>,
    added: Option<&Added>,
) -> Result<String, EditError> {
    let (mark, text) = without_mark(text);
    let edited = match format {
        Format::Json => jsonc::remove(text, place, added)?,
        Format::Toml => toml::remove(text, place, added)?,
    };
    Ok(format!("{mark}{edited}"))
}

impl Shape {
    /// The value as a tree.
    pub(crate) fn tree(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Flag(flag) => (*flag).into(),
            Self::List(items) => items.iter().map(String::as_str).collect(),
            Self::Written(text) => jsonc::tree(text),
            Self::Table(members) => {
                members.iter().map(|(name, value)| (name.clone(), value.tree())).collect()
            }
        }
    }

    /// The value as a file would have it under these keys, alone and ready to be pasted.
    pub(crate) fn snippet(&self, format: Format, place: Place<'_>) -> String {
        // An empty text holds no value, and no value is of another kind.
        insert(format, "", place, self).map(|(text, _)| text).unwrap_or_default()
    }
}

/// Sets `path` and `name` in a tree, or removes the name.
fn set(tree: &mut serde_json::Value, place: Place<'_>, value: Option<serde_json::Value>) {
    let mut at = tree;
    for key in place.path {
        if !at.is_object() {
            *at = serde_json::json!({});
        }
        at = &mut at[*key];
    }
    if !at.is_object() {
        *at = serde_json::json!({});
    }
    if let Some(members) = at.as_object_mut() {
        match value {
            Some(value) => drop(members.insert(place.name.to_owned(), value)),
            None => drop(members.remove(place.name)),
        }
    }
}

/// Removes the tables of `path` that are empty, from the innermost to the first that was added.
fn prune(tree: &mut serde_json::Value, path: &[&str], existing: usize) {
    for depth in (existing..path.len()).rev() {
        let Some((name, above)) = path.get(..=depth).and_then(<[&str]>::split_last) else { return };
        let mut at = &mut *tree;
        for key in above {
            at = &mut at[*key];
        }
        let Some(members) = at.as_object_mut() else { return };
        if members.get(*name).and_then(serde_json::Value::as_object).is_none_or(|table| !table.is_empty()) {
            return;
        }
        members.remove(*name);
    }
}
