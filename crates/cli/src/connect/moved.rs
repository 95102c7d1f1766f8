//! Turns off the servers of a client that the gateway serves now, so that they do not run twice, and on again.
//!
//! Only some clients can turn a server off in their file. From the files of others the entry is taken out; the record of the
//! connection keeps its text, and `disconnect` puts it back as it was.

use serde::{Deserialize, Serialize};

use crate::clients::Client;
use crate::clients::edit::{self, EditError, Format, Place, Shape};

/// The member that turns a server off, and its value then.
pub(crate) fn switch(client: &Client) -> Option<(&'static str, bool)> {
    match client.id {
        "windsurf" => Some(("disabled", true)),
        "zed" | "codex" => Some(("enabled", false)),
        _ => None,
    }
}

/// An entry that was taken out of a client's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    name: String,
    /// Its value, as it was written. It may hold secrets, as the file does, and the records are as private.
    text: String,
}

impl Taken {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// The entries of these names, as they are written; none if the format of the file cannot say.
pub(crate) fn taken(
    format: Format,
    text: &str,
    path: &[&str],
    names: &[String],
) -> Result<Vec<Taken>, EditError> {
    let mut all = Vec::new();
    for name in names {
        if let Some(text) = edit::written(format, text, Place { path, name })? {
            all.push(Taken { name: name.clone(), text });
        }
    }
    Ok(all)
}

/// The text without these entries, as far as they still say what they said when they were read.
pub(crate) fn without(
    format: Format,
    text: &str,
    path: &[&str],
    entries: &[Taken],
) -> Result<String, EditError> {
    let mut text = text.to_owned();
    for Taken { name, text: entry } in entries {
        let place = Place { path, name };
        if edit::written(format, &text, place)?.as_ref() == Some(entry) {
            text = edit::remove(format, &text, place, None)?;
        }
    }
    Ok(text)
}

/// The text with these entries put back, except where there is one of that name meanwhile.
pub(crate) fn with(
    format: Format,
    text: &str,
    path: &[&str],
    entries: &[Taken],
) -> Result<String, EditError> {
    let mut text = text.to_owned();
    for Taken { name, text: entry } in entries {
        let place = Place { path, name };
        if edit::find(format, &text, place)?.is_none() {
            text = edit::insert(format, &text, place, &Shape::Written(entry.clone()))?.0;
        }
    }
    Ok(text)
}

/// The text with these servers turned off, or on again as they were.
pub(crate) fn switched(
    format: Format,
    text: &str,
    path: &[&str],
    names: &[String],
    (member, value): (&str, bool),
    off: bool,
) -> Result<String, EditError> {
    let mut text = text.to_owned();
    for name in names {
        let path: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
        let place = Place { path: &path, name: member };
        let there = edit::find(format, &text, place)?;
        text = match (off, there) {
            (true, None) => edit::insert(format, &text, place, &Shape::Flag(value))?.0,
            (true, Some(_)) => edit::replace(format, &text, place, &Shape::Flag(value))?,
            (false, Some(there)) if there == value => edit::remove(format, &text, place, None)?,
            (false, _) => text,
        };
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-2: servers that the gateway has are turned off in the client's own way, and on again.
    #[test]
    fn servers_are_turned_off_and_on() {
        let names = ["a".to_owned(), "b".to_owned()];
        let json = "{\n  \"s\": {\n    \"a\": {\n      \"command\": \"x\"\n    },\n    \"b\": {\"disabled\": false}\n  }\n}\n";
        let off = switched(Format::Json, json, &["s"], &names, ("disabled", true), true).unwrap();
        assert_eq!(
            off,
            "{\n  \"s\": {\n    \"a\": {\n      \"command\": \"x\",\n      \"disabled\": true\n    },\n    \"b\": {\"disabled\": true}\n  }\n}\n"
        );
        let on = switched(Format::Json, &off, &["s"], &names, ("disabled", true), false).unwrap();
        assert_eq!(on, json.replace("{\"disabled\": false}", "{}"));
        let toml = "[s.a]\ncommand = 'x'\n\n[s.b]\nenabled = true\n";
        let off = switched(Format::Toml, toml, &["s"], &names, ("enabled", false), true).unwrap();
        assert_eq!(off, "[s.a]\ncommand = 'x'\nenabled = false\n\n[s.b]\nenabled = false\n");
        let switches = ["windsurf", "zed", "codex", "cursor"].map(|id| switch(Client::named(id).unwrap()));
        assert_eq!(
            switches,
            [Some(("disabled", true)), Some(("enabled", false)), Some(("enabled", false)), None]
        );
    }

    /// JOIN-2: entries that were taken out come back as they were written, with their comments; one that says something else by
    /// then stays, and so does one that somebody has written anew.
    #[test]
    fn entries_are_taken_out_and_put_back() {
        let json = "{\n  \"s\": {\n    \"z\": {},\n    \"a\": {\n      // mine\n      \"n\": [1, null, {\"b\": 2.50}]\n    }\n  }\n}\n";
        let names = ["a".to_owned(), "gone".to_owned()];
        let entries = taken(Format::Json, json, &["s"], &names).unwrap();
        assert_eq!(entries.len(), 1, "{entries:?}");
        let out = without(Format::Json, json, &["s"], &entries).unwrap();
        assert_eq!(out, "{\n  \"s\": {\n    \"z\": {}\n  }\n}\n");
        assert_eq!(with(Format::Json, &out, &["s"], &entries).unwrap(), json);
        assert_eq!(with(Format::Json, json, &["s"], &entries).unwrap(), json);
        let other = json.replace("null", "true");
        assert_eq!(without(Format::Json, &other, &["s"], &entries).unwrap(), other);
        let toml = "[s.a]\ncommand = 'x'\n";
        assert_eq!(taken(Format::Toml, toml, &["s"], &["a".to_owned()]).unwrap(), []);
    }
}
