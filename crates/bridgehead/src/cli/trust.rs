//! What a person said about configurations that were found in a folder: kept by path and content, never by name alone.
//!
//! A file that somebody else may have put there, such as one of a cloned repository, runs programs. So it is used only
//! if a person agreed to that very text. The answers are in one file of the user's state folder that nobody else may
//! write; one that others may have written counts for nothing.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

/// How many answers are kept; the oldest go first.
const KEPT: usize = 512;
/// A larger file is not ours.
const LARGEST: u64 = 1 << 20;

/// The answers of one user.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    /// None where the user has no folder for state.
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

/// The file as it is written.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answers {
    version: u32,
    files: Vec<Answer>,
}

impl Trust {
    /// The answers of the user that these variables mean: `$XDG_STATE_HOME/bridgehead/trust.json`, else
    /// `~/.local/state/bridgehead/trust.json`.
    pub(crate) fn of(variables: &BTreeMap<String, String>) -> Self {
        let folder = |name: &str| variables.get(name).map(Path::new).filter(|path| path.is_absolute());
        let state = folder("XDG_STATE_HOME")
            .map(Path::to_owned)
            .or_else(|| folder("HOME").map(|home| home.join(".local/state")));
        Self { file: state.map(|state| state.join("bridgehead/trust.json")) }
    }

    /// What was said about this file with this text; nothing, if nobody was asked.
    pub(crate) fn answer(&self, path: &Path, text: &[u8]) -> Option<bool> {
        let (path, sha256) = (canonical(path)?, digest(text));
        let answers = self.read().ok()?;
        let mut said = answers.files.iter().rev().filter(|one| one.path == path && one.sha256 == sha256);
        said.next().map(|one| one.agreed)
    }

    /// Keeps an answer for this file with this text.
    pub(crate) fn keep(&self, path: &Path, text: &[u8], agreed: bool) -> io::Result<()> {
        let (Some(file), Some(path)) = (&self.file, canonical(path)) else {
            return Err(io::Error::other("there is no folder for state, or the path is not text"));
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
        // Under another name first, so that nobody reads half of it.
        let draft = file.with_extension(format!("draft-{}", std::process::id()));
        drop(fs::remove_file(&draft));
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        out.write_all(&serde_json::to_vec_pretty(&answers)?)?;
        fs::rename(&draft, file)
    }

    fn read(&self) -> io::Result<Answers> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let about = fs::symlink_metadata(file)?;
        let own = about.uid() == rustix::process::geteuid().as_raw();
        if !about.is_file() || !own || about.mode() & 0o022 != 0 || about.len() > LARGEST {
            let path = file.display();
            warn!(%path, "others may have written the answers about configurations, so they count for nothing");
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(serde_json::from_slice(&fs::read(file)?)?)
    }
}

/// The one path that a file has for everybody, as text.
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

    /// WALL-7: an answer holds for one file with one text, by whatever path it is reached, and is the user's alone.
    #[test]
    fn answers_are_kept_by_path_and_content() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one.toml"), folder.path().join("other.toml"));
        for file in [&one, &other] {
            fs::write(file, "a").unwrap();
        }
        let trust = trust(folder.path());
        assert_eq!(trust.answer(&one, b"a"), None, "nobody was asked");
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

    /// WALL-7: answers that others may have written count for nothing.
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
