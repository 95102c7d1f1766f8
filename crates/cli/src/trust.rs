//! Remembers which configurations of the current folder the user agreed to, by path and content.
//!
//! Somebody else may have put such a file there, for example with a cloned repository, and it runs programs. So it is used
//! only if the user agreed to exactly that text. The answers are in one file in the user's state folder. If other users
//! could have written that file, it is ignored.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::replace::{self, Replacement};

/// How many answers are kept; the oldest are dropped first.
const KEPT: usize = 512;
/// A larger file is not one that we wrote.
const LARGEST: u64 = 1 << 20;

/// The answers of one user.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    /// `None` if the user has no state folder.
    file: Option<PathBuf>,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    path: String,
    sha256: String,
    agreed: bool,
    time: String,
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answers {
    version: u32,
    files: Vec<Answer>,
}

impl Trust {
    /// The answers of the user with these variables: `$XDG_STATE_HOME/bridgehead/trust.json`, or
    /// `~/.local/state/bridgehead/trust.json`.
    pub(crate) fn of(variables: &BTreeMap<String, String>) -> Self {
        let folder = |name: &str| variables.get(name).map(Path::new).filter(|path| path.is_absolute());
        let state = folder("XDG_STATE_HOME")
            .map(Path::to_owned)
            .or_else(|| folder("HOME").map(|home| home.join(".local/state")));
        Self { file: state.map(|state| state.join("bridgehead/trust.json")) }
    }

    /// The user's answer about this file with this text; `None` if the user was not asked.
    pub(crate) fn answer(&self, path: &Path, text: &[u8]) -> Option<bool> {
        let (path, sha256) = (canonical(path)?, digest(text));
        let answers = self.read().ok()?;
        let mut said = answers.files.iter().rev().filter(|one| one.path == path && one.sha256 == sha256);
        said.next().map(|one| one.agreed)
    }

    /// Keeps an answer for this file with this text.
    pub(crate) fn keep(&self, path: &Path, text: &[u8], agreed: bool) -> io::Result<()> {
        let (Some(file), Some(path)) = (&self.file, canonical(path)) else {
            return Err(io::Error::other("there is no state folder, or the path is not UTF-8"));
        };
        let sha256 = digest(text);
        let mut answers = self.read().unwrap_or_default();
        answers.version = 1;
        answers.files.retain(|one| one.path != path || one.sha256 != sha256);
        let time = format!("{:.0}", jiff::Timestamp::now());
        answers.files.push(Answer { path, sha256, agreed, time });
        let surplus = answers.files.len().saturating_sub(KEPT);
        answers.files.drain(..surplus);
        if let Some(folder) = file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let before = replace::read(file)?;
        let after = serde_json::to_vec_pretty(&answers)?;
        let replaced = Replacement::new(before.as_deref(), &after).private().write(file);
        replaced.map(drop).map_err(io::Error::other)
    }

    fn read(&self) -> io::Result<Answers> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let about = fs::symlink_metadata(file)?;
        let own = about.uid() == rustix::process::geteuid().as_raw();
        if !about.is_file() || !own || about.mode() & 0o022 != 0 || about.len() > LARGEST {
            let path = file.display();
            warn!(%path, "ignoring the answers about configurations, because other users may have written them");
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(serde_json::from_slice(&fs::read(file)?)?)
    }
}

/// The canonical path of a file, as text.
fn canonical(path: &Path) -> Option<String> {
    path.canonicalize().ok()?.to_str().map(str::to_owned)
}

/// The SHA-256 of a text, in hexadecimal digits.
pub(crate) fn digest(text: &[u8]) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn trust(state: &Path) -> Trust {
        Trust::of(&BTreeMap::from([("XDG_STATE_HOME".to_owned(), state.to_str().unwrap().to_owned())]))
    }

    /// WALL-7: an answer holds for one file with one text, by any path to it, and only its user can read it.
    #[test]
    fn answers_are_kept_by_path_and_content() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one.toml"), folder.path().join("other.toml"));
        for file in [&one, &other] {
            fs::write(file, "a").unwrap();
        }
        let trust = trust(folder.path());
        assert_eq!(trust.answer(&one, b"a"), None, "the user was not asked");
        trust.keep(&one, b"a", true).unwrap();
        trust.keep(&one, b"b", false).unwrap();
        assert_eq!((trust.answer(&one, b"a"), trust.answer(&one, b"b")), (Some(true), Some(false)));
        assert_eq!((trust.answer(&one, b"c"), trust.answer(&other, b"a")), (None, None));
        std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).unwrap();
        assert_eq!(trust.answer(&folder.path().join("link/one.toml"), b"a"), Some(true));
        trust.keep(&one, b"a", false).unwrap();
        assert_eq!(trust.answer(&one, b"a"), Some(false), "the last answer counts");
        let kept = folder.path().join("bridgehead/trust.json");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(kept.parent().unwrap()).unwrap().count(), 1, "no draft is left");
    }

    /// WALL-7: answers that other users may have written are ignored.
    #[test]
    fn a_file_that_others_may_write_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.toml");
        fs::write(&file, "a").unwrap();
        let trust = trust(folder.path());
        trust.keep(&file, b"a", true).unwrap();
        let kept = folder.path().join("bridgehead/trust.json");
        for (mode, answer) in [(0o620, None), (0o602, None), (0o644, Some(true))] {
            fs::set_permissions(&kept, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(trust.answer(&file, b"a"), answer, "{mode:o}");
        }
        fs::write(&kept, "{").unwrap();
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(trust.answer(&file, b"a"), None);
        trust.keep(&file, b"a", true).unwrap();
        assert_eq!(trust.answer(&file, b"a"), Some(true), "an answer replaces what cannot be read");
        assert!(Trust::of(&BTreeMap::new()).keep(&file, b"a", true).is_err());
    }

    #[test]
    fn only_so_many_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.toml");
        fs::write(&file, "").unwrap();
        let trust = trust(folder.path());
        let files = (0..KEPT).map(|number| Answer {
            path: "/x".to_owned(),
            sha256: number.to_string(),
            agreed: true,
            time: String::new(),
        });
        let answers = Answers { version: 1, files: files.collect() };
        trust.keep(&file, b"first", true).unwrap();
        let kept = folder.path().join("bridgehead/trust.json");
        fs::write(&kept, serde_json::to_vec(&answers).unwrap()).unwrap();
        trust.keep(&file, b"last", true).unwrap();
        let now = trust.read().unwrap().files;
        assert_eq!((now.len(), now[0].sha256.as_str()), (KEPT, "1"));
        assert_eq!(trust.answer(&file, b"last"), Some(true));
    }
}
