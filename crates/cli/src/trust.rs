//! Remembers which configurations of the current folder the user agreed to, by path and content.
//!
//! Somebody else may have put such a file there, for example with a cloned repository, and it runs programs. So it is used
//! only if the user agreed to exactly that text. The answers are in one file in the user's state folder. If other users
//! could have written that file, it is ignored.

mod changes;
mod verb;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

pub(crate) use self::changes::{changes, what_runs};
pub(crate) use self::verb::TrustFile;
use super::replace::{self, ReplaceError, Replacement};

/// How many answers are kept; the oldest are dropped first.
const KEPT: usize = 512;
/// How often an answer is written again, if another program of ours writes one at the same moment.
const ATTEMPTS: usize = 10;
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

impl Answer {
    /// Whether the file still is what the answer is about.
    fn state(&self) -> &'static str {
        match fs::read(&self.path) {
            Ok(text) if digest(&text) == self.sha256 => "unchanged",
            Ok(_) => "changed since",
            Err(_) => "gone",
        }
    }
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
        let path = canonical(path).ok_or_else(|| io::Error::other("the path is not UTF-8"))?;
        let sha256 = digest(text);
        let time = format!("{:.0}", jiff::Timestamp::now());
        self.change(|answers| {
            answers.retain(|one| one.path != path || one.sha256 != sha256);
            let (path, sha256, time) = (path.clone(), sha256.clone(), time.clone());
            answers.push(Answer { path, sha256, agreed, time });
        })
    }

    /// Takes the agreement to a text for the text that follows it.
    pub(crate) fn renew(&self, path: &Path, before: Option<&[u8]>, after: &[u8]) -> io::Result<()> {
        if let (Some(path), Some(before)) = (canonical(path), before.map(digest)) {
            self.change(|answers| answers.retain(|one| one.path != path || one.sha256 != before))?;
        }
        self.keep(path, after, true)
    }

    /// Forgets all answers about a file, which need not exist. Returns how many there were.
    pub(crate) fn forget(&self, path: &Path) -> io::Result<usize> {
        let path = canonical(path).or_else(|| path.to_str().map(str::to_owned)).unwrap_or_default();
        let mut count = 0;
        self.change(|answers| {
            let before = answers.len();
            answers.retain(|one| one.path != path);
            count = before - answers.len();
        })?;
        Ok(count)
    }

    /// All answers, the oldest first.
    fn all(&self) -> Vec<Answer> {
        self.read().map(|answers| answers.files).unwrap_or_default()
    }

    /// The folder of the answers, to be watched.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.file.as_deref()?.parent()
    }

    /// Changes the answers, one program after the other.
    fn change(&self, mut edit: impl FnMut(&mut Vec<Answer>)) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(io::Error::other("there is no state folder")) };
        if let Some(folder) = file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let _lock = replace::lock_own(file)?;
        let mut changed = None;
        for _ in 0..ATTEMPTS {
            let before = replace::read(file)?;
            let mut answers = self.read().unwrap_or_default();
            answers.version = 1;
            edit(&mut answers.files);
            let surplus = answers.files.len().saturating_sub(KEPT);
            answers.files.drain(..surplus);
            let after = serde_json::to_vec_pretty(&answers)?;
            match Replacement::new(before.as_deref(), &after).private().write(file) {
                Ok(_) => return Ok(()),
                Err(error @ ReplaceError::Changed(_)) => changed = Some(error),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Err(changed.map_or_else(|| io::ErrorKind::Other.into(), io::Error::other))
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
        let left = fs::read_dir(kept.parent().unwrap()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".trust.json.lock", "trust.json"], "no draft is left");
    }

    /// WALL-7: of several answers at once, none is lost, and also one from the folder of the answers itself is kept.
    #[test]
    fn several_answers_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let trust = trust(folder.path());
        let files: Vec<PathBuf> = (0..8).map(|number| folder.path().join(format!("{number}.toml"))).collect();
        std::thread::scope(|scope| {
            for file in &files {
                fs::write(file, "a").unwrap();
                scope.spawn(|| trust.keep(file, b"a", true).unwrap());
            }
        });
        assert!(files.iter().all(|file| trust.answer(file, b"a") == Some(true)), "{:?}", trust.all());
        // As the verbs that edit a configuration do.
        let beside = folder.path().join("bridgehead/own.toml");
        fs::write(&beside, "a").unwrap();
        let _held = replace::lock(&beside).unwrap();
        trust.renew(&beside, None, b"a").unwrap();
        assert_eq!(trust.answer(&beside, b"a"), Some(true));
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
