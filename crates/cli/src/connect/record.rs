//! Remembers which files were changed to connect clients, so that each can be given back as it was.
//!
//! The records are one file in the user's state folder, which only the user can read. A record that is lost costs only
//! exactness: the entry is then taken out of the file's text.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::moved::Taken;
use crate::clients::edit::Added;
use crate::replace::{self, ReplaceError, Replacement};
use crate::trust::digest;

/// How often a change starts over because another program changed the records meanwhile.
const ATTEMPTS: usize = 8;

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The client's id.
    pub(crate) client: String,
    /// The file with the entry, by the path that the client uses.
    pub(crate) file: PathBuf,
    /// The name of the entry.
    pub(crate) name: String,
    /// How the entry was written.
    pub(crate) how: How,
    pub(crate) time: String,
    /// The SHA-256 of the file after the change.
    pub(crate) after: String,
    /// What was there before.
    pub(crate) before: Before,
    /// What the entry brought with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) added: Option<Added>,
    /// The servers that were turned off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) moved: Vec<String>,
    /// The servers that were taken out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) taken: Vec<Taken>,
}

/// How an entry was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum How {
    /// The text of the file was edited.
    Edit,
    /// The client's own command wrote it.
    Command,
}

/// What was there before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Before {
    /// No file.
    Nothing,
    /// A file, which is kept.
    Kept { backup: PathBuf, sha256: String },
    /// A file with an entry of ours, whose origin is not known.
    Unknown,
}

/// The records of one user.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    /// `None` if the user has no state folder.
    file: Option<PathBuf>,
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    version: u32,
    connections: Vec<Record>,
}

impl Records {
    /// The records of the user with these variables.
    pub(crate) fn of(variables: &BTreeMap<String, String>) -> Self {
        let folder = |name: &str| variables.get(name).map(Path::new).filter(|path| path.is_absolute());
        let state = folder("XDG_STATE_HOME")
            .map(Path::to_owned)
            .or_else(|| folder("HOME").map(|home| home.join(".local/state")));
        Self { file: state.map(|state| state.join("bridgehead/connected.json")) }
    }

    /// The record of an entry.
    pub(crate) fn find(&self, client: &str, file: &Path, name: &str) -> Option<Record> {
        self.all().into_iter().find(|record| is_of(record, client, file, name))
    }

    /// All records; none if they cannot be read.
    pub(crate) fn all(&self) -> Vec<Record> {
        let text = self.file.as_ref().and_then(|file| replace::read(file).ok().flatten());
        text.map(|text| read(&text)).unwrap_or_default().connections
    }

    /// Keeps a record, in place of the one for the same entry.
    pub(crate) fn keep(&self, record: &Record) -> io::Result<()> {
        self.change(|records| {
            records.retain(|one| !is_of(one, &record.client, &record.file, &record.name));
            records.push(record.clone());
        })
    }

    /// Forgets the record of an entry.
    pub(crate) fn forget(&self, client: &str, file: &Path, name: &str) -> io::Result<()> {
        if self.find(client, file, name).is_none() {
            return Ok(());
        }
        self.change(|records| records.retain(|one| !is_of(one, client, file, name)))
    }

    fn change(&self, change: impl Fn(&mut Vec<Record>)) -> io::Result<()> {
        let file = self.file.as_ref().ok_or_else(|| io::Error::other("there is no state folder"))?;
        if let Some(folder) = file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let _lock = replace::lock_own(file)?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let before = replace::read(file)?;
            let mut content = before.as_deref().map(read).unwrap_or_default();
            content.version = 1;
            change(&mut content.connections);
            let after = serde_json::to_vec_pretty(&content)?;
            match Replacement::new(before.as_deref(), &after).private().write(file) {
                Ok(_) => return Ok(()),
                Err(error @ ReplaceError::Changed(_)) => last = Some(error),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Err(last.map_or_else(|| io::ErrorKind::Other.into(), io::Error::other))
    }
}

impl Record {
    /// The content of the file before the change, if it is now as the change left it. `Some(None)` means that there was no file.
    pub(crate) fn original(&self, now: &[u8]) -> Option<Option<Vec<u8>>> {
        if digest(now) != self.after {
            return None;
        }
        match &self.before {
            Before::Nothing => Some(None),
            Before::Kept { backup, sha256 } => {
                let kept = replace::read(backup).ok().flatten()?;
                (digest(&kept) == *sha256).then_some(Some(kept))
            }
            Before::Unknown => None,
        }
    }

    /// Whether the file is as the change left it, and can be given back as it was before.
    pub(crate) fn is_intact(&self, now: Option<&str>) -> bool {
        now.is_some_and(|now| self.original(now.as_bytes()).is_some())
    }

    /// The record of a change that follows an older one, whose servers are still turned off.
    pub(crate) fn with_moved(self, older: Option<Self>) -> Self {
        match older {
            // In the file from before this change they are off, so that is not the one to give back.
            Some(older) if older.has_moved() => {
                Self { before: Before::Unknown, moved: older.moved, taken: older.taken, ..self }
            }
            _ => self,
        }
    }

    /// Whether servers of the client were turned off or taken out.
    pub(crate) fn has_moved(&self) -> bool {
        !(self.moved.is_empty() && self.taken.is_empty())
    }

    /// Where the content before the change is kept.
    pub(crate) fn backup(&self) -> Option<&Path> {
        match &self.before {
            Before::Kept { backup, .. } => Some(backup),
            Before::Nothing | Before::Unknown => None,
        }
    }
}

fn is_of(record: &Record, client: &str, file: &Path, name: &str) -> bool {
    record.client == client && record.file == file && record.name == name
}

fn read(text: &[u8]) -> Content {
    serde_json::from_slice(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn record(name: &str, before: Before) -> Record {
        Record {
            client: "cursor".to_owned(),
            file: "/home/ada/.cursor/mcp.json".into(),
            name: name.to_owned(),
            how: How::Edit,
            time: String::new(),
            after: digest(b"after"),
            before,
            added: Some(Added::default()),
            moved: Vec::new(),
            taken: Vec::new(),
        }
    }

    #[test]
    fn records_are_kept_for_their_user() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().to_str().unwrap().to_owned();
        let records = Records::of(&BTreeMap::from([("XDG_STATE_HOME".to_owned(), state)]));
        let file = Path::new("/home/ada/.cursor/mcp.json");
        records.forget("cursor", file, "one").unwrap();
        assert!(records.all().is_empty());
        let (one, two) = (record("one", Before::Nothing), record("two", Before::Unknown));
        records.keep(&one).unwrap();
        records.keep(&two).unwrap();
        let changed = Record { how: How::Command, ..one };
        records.keep(&changed).unwrap();
        assert_eq!(records.all(), [two.clone(), changed.clone()]);
        assert_eq!(records.find("cursor", file, "one"), Some(changed));
        assert_eq!(records.find("zed", file, "one"), None);
        let kept = folder.path().join("bridgehead/connected.json");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
        records.forget("cursor", file, "one").unwrap();
        assert_eq!(records.all(), [two]);
        fs::write(&kept, "{").unwrap();
        assert!(records.all().is_empty(), "records that cannot be read count as lost");
        let home = Records::of(&BTreeMap::from([("HOME".to_owned(), "/home/ada".to_owned())]));
        assert_eq!(home.file.unwrap(), Path::new("/home/ada/.local/state/bridgehead/connected.json"));
        assert!(Records::of(&BTreeMap::new()).keep(&record("one", Before::Nothing)).is_err());
    }

    /// JOIN-2: of several records at once, none is lost.
    #[test]
    fn several_records_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().to_str().unwrap().to_owned();
        let records = Records::of(&BTreeMap::from([("XDG_STATE_HOME".to_owned(), state)]));
        let names: Vec<String> = (0..8).map(|number| number.to_string()).collect();
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| records.keep(&record(name, Before::Nothing)).unwrap());
            }
        });
        let mut kept: Vec<String> = records.all().into_iter().map(|record| record.name).collect();
        kept.sort();
        assert_eq!(kept, names);
    }

    /// JOIN-2: servers that were turned off are remembered until they are on again.
    #[test]
    fn servers_that_are_off_are_remembered() {
        let one = || record("a", Before::Nothing);
        assert_eq!(one().with_moved(None), one());
        assert_eq!(one().with_moved(Some(record("a", Before::Unknown))), one());
        let off = vec!["x".to_owned()];
        assert_eq!(
            one().with_moved(Some(Record { moved: off.clone(), ..one() })),
            Record { before: Before::Unknown, moved: off, ..one() }
        );
    }

    /// JOIN-2: a file is given back only if it is as we left it and the backup is as we made it.
    #[test]
    fn what_was_there_before() {
        let folder = tempfile::tempdir().unwrap();
        let backup = folder.path().join("backup");
        fs::write(&backup, "before").unwrap();
        let kept = Before::Kept { backup: backup.clone(), sha256: digest(b"before") };
        assert_eq!(record("a", kept.clone()).original(b"after"), Some(Some(b"before".to_vec())));
        assert_eq!(record("a", kept.clone()).original(b"changed"), None);
        assert_eq!(record("a", Before::Nothing).original(b"after"), Some(None));
        assert_eq!(record("a", Before::Nothing).original(b"changed"), None);
        assert_eq!(record("a", Before::Unknown).original(b"after"), None);
        assert_eq!(record("a", kept.clone()).backup(), Some(backup.as_path()));
        assert!(record("a", kept.clone()).is_intact(Some("after")));
        assert!(!record("a", kept.clone()).is_intact(Some("changed")));
        assert!(!record("a", Before::Nothing).is_intact(None));
        fs::write(&backup, "tampered").unwrap();
        assert_eq!(record("a", kept.clone()).original(b"after"), None);
        fs::remove_file(&backup).unwrap();
        assert_eq!(record("a", kept).original(b"after"), None);
    }
}
