//! The file that holds the digests of keys: `keys.toml`, beside the configuration.
//!
//! Each row is a table `[[NAME]]` with `sha256`, `groups`, `scopes` and `expires`, or with `revoked` for what is left of a name
//! whose keys are gone. People may edit the file. A change by a program keeps all other text, comments included. It is made under
//! a lock, written to another file, flushed and renamed, so a reader sees the old text or the new one. If somebody edits the file
//! meanwhile, the change is made again on the new text.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bridgehead_config::{ApiKey, ConfigError, Diagnostic, KeyRows, RevokedKey, check_secret_file, read_keys};
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};

use super::key::{check_name, digest_text};

/// A larger file is refused.
const LARGEST: u64 = 4 << 20;
/// How often a change is made again, if somebody else edits the file meanwhile.
const ATTEMPTS: usize = 10;
const HEADING: &str =
    "# Keys of Bridgehead, as digests. Written by `bridgehead key`; may be edited by hand.\n";

/// A keys file, which need not exist.
#[derive(Debug, Clone)]
pub struct KeysFile {
    path: PathBuf,
    allow_group_read: bool,
}

/// Why a keys file cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysFileError {
    /// The system refused.
    #[error("the keys file `{}` cannot be {action}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// Other users of the machine can read or change it.
    #[error("other users can read or change the keys file `{}` (mode {mode:o}): {cure}", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// The command that mends it.
        cure: String,
    },
    /// It is not a small text file.
    #[error("the keys file `{}` {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It is not a list of keys.
    #[error("the keys file is wrong: {}", told(.0))]
    Wrong(ConfigError),
    /// A key cannot have this name, group or scope.
    #[error("{0}")]
    Name(String),
    /// The rows to remove cannot be told apart from others.
    #[error("{0}")]
    Ambiguous(String),
}

/// What was removed from the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed(pub Vec<ApiKey>);

/// What tells one state of a file from another, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The text of the file, and which state of it that was.
#[derive(Debug)]
struct Content {
    text: String,
    state: Option<Fingerprint>,
    /// The user and the group that it belongs to, and its permissions.
    owner: Option<Owner>,
}

/// Whose a file is, and what others may do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    user: u32,
    group: u32,
    mode: u32,
}

impl KeysFile {
    /// The file at this path, which only its owner may read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), allow_group_read: false }
    }

    /// Whether its group may read it, too.
    #[must_use]
    pub fn allow_group_read(self, allow_group_read: bool) -> Self {
        Self { allow_group_read, ..self }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys in it; `None` if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read, is wrong, or can be read by other users.
    pub fn read(&self) -> Result<Option<Vec<ApiKey>>, KeysFileError> {
        Ok(self.rows()?.map(|rows| rows.keys))
    }

    /// The keys in it and the names of revoked ones; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`KeysFile::read`].
    pub fn rows(&self) -> Result<Option<KeyRows>, KeysFileError> {
        let content = self.content()?;
        content.state.map(|_| self.parse(&content.text)).transpose()
    }

    /// Adds a key. What is left of a revoked one of this name goes, if the new one is in all of its groups.
    ///
    /// # Errors
    /// If the name, a group or a scope is not one, or the file cannot be read or written.
    pub fn append(&self, key: &ApiKey) -> Result<(), KeysFileError> {
        check_name(&key.name).map_err(KeysFileError::Name)?;
        // A wrong group or scope is told as what it is, and not as a mistake in the file.
        let read = read_keys(&row(key), Path::new("the new key"));
        read.map_err(|error| {
            KeysFileError::Name(format!("the key cannot be written: {}", messages(&error)))
        })?;
        self.change(|text| {
            let back = |old: &RevokedKey| {
                old.name == key.name && old.groups.iter().all(|group| key.groups.contains(group))
            };
            let mut expected = self.parse(text)?;
            expected.keys.push(key.clone());
            expected.revoked.retain(|old| !back(old));
            let left = without_rows(text, &key.name, |row| {
                self.parse(row).is_ok_and(|row| row.keys.is_empty() && row.revoked.iter().all(back))
            });
            let after = with_row(&left, &row(key));
            match are_same(&self.parse(&after)?, &expected) {
                true => Ok((after, ())),
                false => Err(self.unusable("ends with text that a row cannot follow; edit it by hand")),
            }
        })
    }

    /// Removes the keys with this name and, if given, whose digest begins with `prefix`. If no other key has the name, or a
    /// group of theirs, a row with the time `now` keeps these known: rules may have them.
    ///
    /// # Errors
    /// If no key fits, several keys fit a prefix, or the file cannot be read or written.
    pub fn remove(&self, name: &str, prefix: Option<&str>, now: Timestamp) -> Result<Removed, KeysFileError> {
        self.change(|text| {
            let before = self.parse(text)?;
            let fits = |key: &ApiKey| {
                let digest = digest_text(&key.sha256);
                key.name == name
                    && prefix.is_none_or(|prefix| digest.starts_with(&prefix.to_ascii_lowercase()))
            };
            let (removed, kept): (Vec<ApiKey>, Vec<ApiKey>) = before.keys.iter().cloned().partition(fits);
            if removed.is_empty() {
                return Err(self.no_such_key(name, prefix, &before));
            }
            if prefix.is_some() && removed.len() > 1 {
                let digests: Vec<String> = removed.iter().map(|key| digest_text(&key.sha256)).collect();
                return Err(KeysFileError::Ambiguous(format!(
                    "{} keys `{name}` have a digest with this beginning: {}; write more of it",
                    removed.len(),
                    digests.join(", ")
                )));
            }
            let mut expected = KeyRows { keys: kept, revoked: before.revoked };
            let mut after = without_rows(text, name, |row| {
                self.parse(row).is_ok_and(|row| row.revoked.is_empty() && row.keys.iter().all(fits))
            });
            if let Some(left) = left_of(&removed, name, &expected, now) {
                after = with_row(&after, &revoked_row(&left));
                expected.revoked.push(left);
            }
            // The rows were found by their first lines. Reading the result again proves that nothing else went with them.
            match self.parse(&after) {
                Ok(left) if are_same(&left, &expected) => Ok((after, Removed(removed))),
                _ => {
                    Err(self
                        .unusable("writes this key in a form that only a person can remove; edit it by hand"))
                }
            }
        })
    }

    /// Changes the text: `edit` gets the current one and returns the new one. A link to the file stays a link.
    fn change<T>(
        &self,
        edit: impl FnMut(&str) -> Result<(String, T), KeysFileError>,
    ) -> Result<T, KeysFileError> {
        match self.path.canonicalize() {
            Ok(path) => Self { path, ..self.clone() }.replace(edit),
            Err(_) => self.replace(edit),
        }
    }

    fn replace<T>(
        &self,
        mut edit: impl FnMut(&str) -> Result<(String, T), KeysFileError>,
    ) -> Result<T, KeysFileError> {
        let _lock = self.lock()?;
        for _ in 0..ATTEMPTS {
            let content = self.content()?;
            let (text, done) = edit(&content.text)?;
            let written = self.write_beside(&text, content.owner)?;
            if self.fingerprint()? != content.state {
                // Somebody edited the file meanwhile, and that edit must not be lost.
                let _ = std::fs::remove_file(&written);
                continue;
            }
            std::fs::rename(&written, &self.path).map_err(self.failed("replaced"))?;
            // The new name must survive a power cut, too.
            let folder = File::open(self.folder()).and_then(|folder| folder.sync_all());
            folder.map_err(self.failed("flushed"))?;
            return Ok(done);
        }
        Err(self.unusable("is being changed all the time; try again"))
    }

    /// Locks a file beside this one, which is itself replaced by every change. The lock ends with the returned file.
    fn lock(&self) -> Result<File, KeysFileError> {
        let mut options = OpenOptions::new();
        let options = options.create(true).append(true).mode(0o600);
        let lock = options.open(self.beside("lock")).map_err(self.failed("locked"))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| self.failed("locked")(error.into()))?;
        Ok(lock)
    }

    /// Writes the new text for the owner of the old one: the gateway may run as another user than whoever makes keys.
    fn write_beside(&self, text: &str, owner: Option<Owner>) -> Result<PathBuf, KeysFileError> {
        let path = self.beside("new");
        // Left by a program that was killed: the lock says that nobody writes it now.
        let _ = std::fs::remove_file(&path);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| {
            if let Some(Owner { user, group, mode }) = owner {
                let made = file.metadata()?;
                if (user, group) != (made.uid(), made.gid()) {
                    std::os::unix::fs::fchown(&file, Some(user), Some(group))?;
                }
                // A group that could read the old text can read the new one.
                file.set_permissions(Permissions::from_mode(mode))?;
            }
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all())
        });
        written.map_err(self.failed("written"))?;
        Ok(path)
    }

    fn content(&self) -> Result<Content, KeysFileError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Content { text: String::new(), state: None, owner: None });
            }
            Err(error) => return Err(self.failed("read")(error)),
        };
        let about = file.metadata().map_err(self.failed("read"))?;
        let mode = about.mode() & 0o777;
        if !about.is_file() || about.len() > LARGEST {
            return Err(self.unusable("is not a text file of at most 4 MiB"));
        }
        // A digest does not give a key away, but whoever can write here can admit himself.
        check_secret_file(&self.path, mode, self.allow_group_read)
            .map_err(|error| KeysFileError::Exposed { path: self.path.clone(), mode, cure: error.cure() })?;
        let mut text = String::new();
        file.take(LARGEST + 1).read_to_string(&mut text).map_err(self.failed("read"))?;
        let owner = Some(Owner { user: about.uid(), group: about.gid(), mode });
        Ok(Content { text, state: Some(Fingerprint::of(&about)), owner })
    }

    /// Which state the file is in; `None` if it does not exist.
    pub(crate) fn fingerprint(&self) -> Result<Option<Fingerprint>, KeysFileError> {
        match std::fs::metadata(&self.path) {
            Ok(about) => Ok(Some(Fingerprint::of(&about))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read")(error)),
        }
    }

    fn parse(&self, text: &str) -> Result<KeyRows, KeysFileError> {
        read_keys(text, &self.path).map_err(KeysFileError::Wrong)
    }

    fn no_such_key(&self, name: &str, prefix: Option<&str>, rows: &KeyRows) -> KeysFileError {
        let revoked = rows.revoked.iter().find(|key| key.name == name);
        let same: Vec<String> = rows
            .keys
            .iter()
            .filter(|key| key.name == name)
            .map(|key| digest_text(&key.sha256)[..12].to_owned())
            .collect();
        KeysFileError::Ambiguous(match (prefix, same.as_slice(), revoked) {
            (Some(_), [_, ..], _) => format!(
                "no key `{name}` in `{}` has a digest with this beginning; there are: {}",
                self.path.display(),
                same.join(", ")
            ),
            (_, [], Some(revoked)) => format!("the key `{name}` was revoked already, at {}", revoked.at),
            _ => format!("there is no key `{name}` in `{}`; see `bridgehead key list`", self.path.display()),
        })
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
    }

    /// A hidden file in the same folder, for use together with this one.
    fn beside(&self, ending: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.folder().join(format!(".{name}.{ending}"))
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> KeysFileError + Copy + '_ {
        move |error| KeysFileError::File { path: self.path.clone(), action, error }
    }

    fn unusable(&self, reason: &str) -> KeysFileError {
        KeysFileError::Unusable { path: self.path.clone(), reason: reason.to_owned() }
    }
}

impl Fingerprint {
    fn of(about: &std::fs::Metadata) -> Self {
        Self {
            device: about.dev(),
            inode: about.ino(),
            size: about.size(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

/// One row as it is written.
fn row(key: &ApiKey) -> String {
    let mut row = format!("{}sha256 = \"{}\"\n", heading(&key.name), digest_text(&key.sha256));
    row.push_str(&list("groups", &key.groups));
    row.push_str(&list("scopes", &key.scopes));
    if let Some(expires) = key.expires {
        row.push_str(&format!("expires = {expires}\n"));
    }
    row
}

/// One row of a revoked key as it is written.
fn revoked_row(key: &RevokedKey) -> String {
    format!("{}revoked = {}\n{}", heading(&key.name), key.at, list("groups", &key.groups))
}

fn heading(name: &str) -> String {
    if name.contains('.') { format!("[[\"{name}\"]]\n") } else { format!("[[{name}]]\n") }
}

/// A line with a list, nothing if it is empty. Items are quoted as JSON strings, which TOML reads the same way.
fn list(name: &str, items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: Vec<String> =
        items.iter().map(|item| serde_json::Value::from(item.as_str()).to_string()).collect();
    format!("{name} = [{}]\n", items.join(", "))
}

/// The text with one more row.
fn with_row(text: &str, row: &str) -> String {
    let mut after = if text.is_empty() { HEADING.to_owned() } else { text.to_owned() };
    if !after.ends_with('\n') {
        after.push('\n');
    }
    after.push('\n');
    after.push_str(row);
    after
}

/// What is left of removed keys of one name: the name, unless another row has it, and the groups that no other row has.
fn left_of(removed: &[ApiKey], name: &str, others: &KeyRows, now: Timestamp) -> Option<RevokedKey> {
    let KeyRows { keys, revoked } = others;
    let named = keys.iter().map(|key| &key.name).chain(revoked.iter().map(|key| &key.name));
    let is_named = named.into_iter().any(|other| other == name);
    let known: BTreeSet<&String> =
        keys.iter().flat_map(|key| &key.groups).chain(revoked.iter().flat_map(|key| &key.groups)).collect();
    let groups: BTreeSet<&String> =
        removed.iter().flat_map(|key| &key.groups).filter(|group| !known.contains(group)).collect();
    let left = RevokedKey { name: name.to_owned(), groups: groups.into_iter().cloned().collect(), at: now };
    (!is_named || !left.groups.is_empty()).then_some(left)
}

/// Whether two files have the same rows, in any order.
fn are_same(one: &KeyRows, other: &KeyRows) -> bool {
    fn same<T: PartialEq>(one: &[T], other: &[T]) -> bool {
        let count = |list: &[T], row: &T| list.iter().filter(|known| *known == row).count();
        one.len() == other.len() && one.iter().all(|row| count(one, row) == count(other, row))
    }
    same(&one.keys, &other.keys) && same(&one.revoked, &other.revoked)
}

/// The text without the rows of `name` that `is_gone` accepts. A row begins with its `[[NAME]]` line and ends before the comments
/// and empty lines that precede the next one.
fn without_rows(text: &str, name: &str, is_gone: impl Fn(&str) -> bool) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let is_filling = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        if header_name(line) != Some(name) {
            out.push_str(line);
            at += 1;
            continue;
        }
        let next = (at + 1..lines.len()).find(|next| is_header(lines[*next])).unwrap_or(lines.len());
        let filling = lines[at + 1..next].iter().rev().take_while(|line| is_filling(line)).count();
        let row = lines[at..next - filling].concat();
        if is_gone(&row) {
            // The empty line before the row goes with it.
            if out.ends_with("\n\n") {
                out.pop();
            }
        } else {
            out.push_str(&row);
        }
        at = next - filling;
    }
    out
}

/// The name in a line `[[NAME]]`, which may be quoted and followed by a comment.
fn header_name(line: &str) -> Option<&str> {
    let inner = line.trim_start().strip_prefix("[[")?.split_once("]]")?.0.trim();
    let quoted = |quote| inner.strip_prefix(quote).and_then(|inner| inner.strip_suffix(quote));
    Some(quoted('"').or_else(|| quoted('\'')).unwrap_or(inner))
}

/// All errors, on one line and without their places.
fn messages(error: &ConfigError) -> String {
    let one = |diagnostic: &Diagnostic| match &diagnostic.help {
        Some(help) => format!("{} ({help})", diagnostic.message),
        None => diagnostic.message.clone(),
    };
    error.0.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// All errors, on one line.
fn told(error: &ConfigError) -> String {
    let one = |diagnostic: &Diagnostic| {
        let place = match (diagnostic.file(), diagnostic.position()) {
            (Some(file), Some((line, column))) => format!("{}:{line}:{column}: ", file.display()),
            (Some(file), None) => format!("{}: ", file.display()),
            (None, _) => String::new(),
        };
        format!("{place}{}", diagnostic.message)
    };
    error.0.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
