//! Replaces the content of a file in one step: a reader sees the old text or the new one, and a failure leaves the old one whole.
//!
//! The new text is written beside the file, flushed, and renamed over it. A link to the file stays a link: dotfile managers
//! keep the file itself elsewhere. The permissions and the owner stay as they are. If somebody else changed the file since
//! its caller read it, nothing is replaced ([`ReplaceError::Changed`]), and the caller starts again from the new text. Programs of
//! ours wait for each other with [`lock`] and [`lock_own`].

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead::config::read_file;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::output;

/// The permissions of a file that only its owner may read.
pub(crate) const PRIVATE: u32 = 0o600;

/// How the ending of a draft begins; the number of its process follows.
const DRAFT: &str = "draft-";
/// No file of settings is larger.
const LARGEST: u64 = 64 * 1024 * 1024;
/// No edit takes longer. A draft that is older has been left.
const LONGEST_EDIT: Duration = Duration::from_secs(60 * 60);

/// A replacement of a file's content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replacement<'r> {
    /// What the caller read; `None` if there was no file.
    pub(crate) before: Option<&'r [u8]>,
    /// The new content.
    pub(crate) after: &'r [u8],
    /// What a new file may be used for by whom; the process's umask still applies.
    pub(crate) mode: u32,
    /// Whether an existing file loses the permissions that `mode` does not have.
    pub(crate) narrow: bool,
    /// Whether the old file is kept beside it, under a name with the time.
    pub(crate) backup: bool,
}

/// Why a file was not replaced. It is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplaceError {
    /// Somebody else has changed it since it was read.
    #[error("`{}` was changed by another program at the same moment; try again", .0.display())]
    Changed(PathBuf),
    /// The system refused.
    #[error("`{}` cannot be {action}, and stays as it was: {error}", path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        error: io::Error,
    },
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// The file itself, after all links.
    pub(crate) file: PathBuf,
    /// Where the old content is kept.
    pub(crate) backup: Option<PathBuf>,
}

impl<'r> Replacement<'r> {
    /// Replaces `before` by `after`. A new file gets the usual permissions.
    pub(crate) const fn new(before: Option<&'r [u8]>, after: &'r [u8]) -> Self {
        Self { before, after, mode: 0o666, narrow: false, backup: false }
    }

    /// Makes the file readable by its owner only, whether it is new or not.
    pub(crate) const fn private(self) -> Self {
        Self { mode: PRIVATE, narrow: true, ..self }
    }

    /// Keeps the old file beside it.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the files of other programs, which follow"))]
    pub(crate) const fn with_backup(self) -> Self {
        Self { backup: true, ..self }
    }

    /// Replaces the content of the file at `path`, whose folder exists.
    pub(crate) fn write(&self, path: &Path) -> Result<Replaced, ReplaceError> {
        let file = target(path).map_err(failed(path, "found"))?;
        remove_left_drafts(&file);
        let draft = beside(&file, &format!("{DRAFT}{}", std::process::id()));
        let written = self.write_draft(&file, &draft).and_then(|()| self.swap(&file, &draft));
        if written.is_err() {
            // A rename that worked has taken it away.
            drop(fs::remove_file(&draft));
        }
        let backup = written?;
        // The new name must survive a power cut, too. The change is made already, so a folder that cannot be flushed is no failure.
        if let Some(folder) = file.parent() {
            drop(File::open(folder).and_then(|folder| folder.sync_all()));
        }
        Ok(Replaced { file, backup })
    }

    fn write_draft(&self, file: &Path, draft: &Path) -> Result<(), ReplaceError> {
        let old = match fs::metadata(file) {
            Ok(about) if !about.is_file() => {
                return Err(failed(file, "replaced")(io::Error::other("it is not a regular file")));
            }
            Ok(about) => Some(about),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(file, "read")(error)),
        };
        let mode = old.as_ref().map_or(self.mode, |_| PRIVATE);
        let written =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(draft).and_then(|mut out| {
                out.write_all(self.after)?;
                if let Some(old) = &old {
                    let own = out.metadata()?;
                    if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
                        fchown(&out, Some(old.uid()), Some(old.gid()))?;
                    }
                    let kept = old.mode() & 0o7777;
                    let mode = if self.narrow { kept & self.mode } else { kept };
                    out.set_permissions(Permissions::from_mode(mode))?;
                }
                out.sync_all()
            });
        written.map_err(failed(file, "written"))
    }

    /// Puts the draft into the file's place. Returns where the old content is kept.
    fn swap(&self, file: &Path, draft: &Path) -> Result<Option<PathBuf>, ReplaceError> {
        let backup = match (self.backup, self.before) {
            (true, Some(before)) => Some(keep(file, before).map_err(failed(file, "backed up"))?),
            _ => None,
        };
        // What another program writes between this look and the rename is lost, so nothing slow is between them.
        let swapped = match read(file) {
            Ok(now) if now.as_deref() == self.before => {
                fs::rename(draft, file).map_err(failed(file, "replaced"))
            }
            Ok(_) => Err(ReplaceError::Changed(file.to_owned())),
            Err(error) => Err(failed(file, "read")(error)),
        };
        match swapped {
            Ok(()) => Ok(backup),
            Err(error) => {
                backup.into_iter().for_each(|backup| drop(fs::remove_file(backup)));
                Err(error)
            }
        }
    }
}

/// The content of a file; `None` if there is none.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match read_file(path, LARGEST) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file that a path means after all links. It need not exist yet, and neither need the last link's target.
pub(crate) fn target(path: &Path) -> io::Result<PathBuf> {
    /// As many links as Linux itself follows.
    const LINKS: usize = 40;
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            // `join` takes an absolute link as it is.
            Ok(link) => path = path.parent().unwrap_or(Path::new("/")).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many links"))
}

/// Keeps other programs of ours from changing files in the folder of this one, until the result is dropped. Waits while another
/// one does the same.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let file = target(path)?;
    let lock = File::open(file.parent().unwrap_or(Path::new("/")))?;
    // On a file system without locks, a change by another program is still noticed when the file is replaced.
    if let Err(Errno::WOULDBLOCK) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        output::talk(&format!("waiting for another bridgehead that edits `{}`", path.display()));
        let _ = flock(&lock, FlockOperation::LockExclusive);
    }
    Ok(lock)
}

/// Keeps other programs of ours from changing a file of our own, until the result is dropped. It is a file beside it, and not
/// the folder, which the caller may have locked already.
pub(crate) fn lock_own(file: &Path) -> io::Result<File> {
    let lock = beside(file, "lock");
    let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE).open(lock)?;
    let _ = flock(&lock, FlockOperation::LockExclusive);
    Ok(lock)
}

/// Copies the content of a file to a name with the current time, which only its owner may read.
pub(crate) fn keep(file: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".bridgehead-{time}"));
    for number in 1.. {
        let mut name = name.clone();
        if number > 1 {
            name.push(format!("-{number}"));
        }
        let backup = file.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&backup) {
            Ok(mut out) => {
                let written = out.write_all(content).and_then(|()| out.sync_all());
                if written.is_err() {
                    drop(fs::remove_file(&backup));
                }
                return written.map(|()| backup);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A hidden file in the same folder, for use together with this one.
pub(crate) fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{ending}"));
    file.with_file_name(name)
}

/// Removes the drafts of this file that killed programs of ours have left. One whose program lives is its own affair, unless it
/// is older than any edit takes: its number may have gone to another program.
fn remove_left_drafts(file: &Path) {
    let Some(prefix) = beside(file, DRAFT).file_name().and_then(|name| name.to_str()).map(str::to_owned)
    else {
        return;
    };
    let entries = file.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse::<u32>().ok());
        let Some(number) = number else { continue };
        let is_old = || {
            let age =
                entry.metadata().and_then(|about| about.modified()).ok().and_then(|time| time.elapsed().ok());
            age.is_some_and(|age| age > LONGEST_EDIT)
        };
        if number == std::process::id() || !lives(number) || is_old() {
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// Whether there is a process of this number.
fn lives(number: u32) -> bool {
    let process = i32::try_from(number).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
}

/// What the system refused for this file.
pub(crate) fn failed(path: &Path, action: &'static str) -> impl Fn(io::Error) -> ReplaceError {
    let path = path.to_owned();
    move |error| ReplaceError::Failed { path: path.clone(), action, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// JOIN-3: a replaced file keeps its permissions, and nothing is left beside it; a private one loses those of others.
    #[test]
    fn permissions_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        Replacement::new(None, b"one").private().write(&file).unwrap();
        assert_eq!((fs::read(&file).unwrap().as_slice(), mode(&file)), (b"one".as_slice(), 0o600));
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        Replacement::new(Some(b"one"), b"two").write(&file).unwrap();
        assert_eq!((fs::read(&file).unwrap().as_slice(), mode(&file)), (b"two".as_slice(), 0o640));
        Replacement::new(Some(b"two"), b"three").private().write(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        assert_eq!(names(folder.path()), ["a"]);
    }

    /// JOIN-3: a link stays a link, and the file it means is replaced, through several links and where it does not exist yet.
    #[test]
    fn links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (home, dots) = (folder.path().join("home"), folder.path().join("dots"));
        fs::create_dir(&home).unwrap();
        fs::create_dir(&dots).unwrap();
        std::os::unix::fs::symlink("../dots/b", home.join("a")).unwrap();
        std::os::unix::fs::symlink("c", dots.join("b")).unwrap();
        let done = Replacement::new(None, b"one").write(&home.join("a")).unwrap();
        assert_eq!(done.file.canonicalize().unwrap(), dots.join("c").canonicalize().unwrap());
        Replacement::new(Some(b"one"), b"two").write(&home.join("a")).unwrap();
        assert!(home.join("a").is_symlink() && dots.join("b").is_symlink());
        assert_eq!(fs::read(dots.join("c")).unwrap(), b"two");
        assert_eq!(
            (names(&home), names(&dots)),
            (vec!["a".to_owned()], vec!["b".to_owned(), "c".to_owned()])
        );
        std::os::unix::fs::symlink("loop", home.join("loop")).unwrap();
        assert!(Replacement::new(None, b"x").write(&home.join("loop")).is_err());
    }

    /// JOIN-3: an edit removes what killed edits of the same file have left, and nothing else.
    #[test]
    fn left_drafts_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        // No system gives this number to a process.
        let (gone, own) = (i32::MAX.unsigned_abs(), std::process::id());
        let living = std::os::unix::process::parent_id();
        let draft = |name: &str, number: u32| format!(".{name}.draft-{number}");
        for name in
            [draft("a.toml", gone), draft("a.toml", own), draft("a.toml", living), draft("b.toml", gone)]
        {
            fs::write(folder.path().join(name), "secret").unwrap();
        }
        let kept = [".a.toml.draft-", ".a.toml.draft-x", ".a.toml.lock"];
        kept.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        Replacement::new(None, b"one").write(&file).unwrap();
        let mut left = vec![draft("a.toml", living), draft("b.toml", gone), "a.toml".to_owned()];
        left.extend(kept.map(str::to_owned));
        left.sort();
        assert_eq!(names(folder.path()), left);
        // The number of a killed program may belong to another one by now.
        let long_ago = std::time::SystemTime::now() - 2 * LONGEST_EDIT;
        let old = File::options().write(true).open(folder.path().join(draft("a.toml", living))).unwrap();
        old.set_modified(long_ago).unwrap();
        Replacement::new(Some(b"one"), b"two").write(&file).unwrap();
        assert!(!names(folder.path()).contains(&draft("a.toml", living)));
    }

    /// JOIN-3: what somebody else wrote meanwhile is not lost.
    #[test]
    fn a_change_of_others_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "theirs").unwrap();
        for before in [None, Some(b"ours".as_slice())] {
            let refused = Replacement::new(before, b"new").with_backup().write(&file);
            assert!(matches!(refused, Err(ReplaceError::Changed(_))), "{refused:?}");
        }
        fs::remove_file(&file).unwrap();
        let refused = Replacement::new(Some(b"theirs"), b"new").write(&file);
        assert!(matches!(refused, Err(ReplaceError::Changed(_))), "{refused:?}");
        assert!(names(folder.path()).is_empty());
    }

    /// JOIN-3: the old content is kept under a name with the time, for its owner only, and a second backup gets its own name.
    #[test]
    fn backups() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.json");
        assert_eq!(Replacement::new(None, b"1").with_backup().write(&file).unwrap().backup, None);
        let mut kept = Vec::new();
        for (before, after) in [(b"1", b"2"), (b"2", b"3"), (b"3", b"4")] {
            let backup =
                Replacement::new(Some(before), after).with_backup().write(&file).unwrap().backup.unwrap();
            assert_eq!((fs::read(&backup).unwrap().as_slice(), mode(&backup)), (before.as_slice(), 0o600));
            kept.push(backup.file_name().unwrap().to_str().unwrap().to_owned());
        }
        assert!(
            kept.iter().all(|name| name.starts_with("a.json.bridgehead-20") && name.contains('Z')),
            "{kept:?}"
        );
        assert_eq!(names(folder.path()).len(), 4, "{kept:?}");
    }

    #[test]
    fn what_is_no_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let told = Replacement::new(None, b"x").write(folder.path()).unwrap_err().to_string();
        assert!(told.contains("not a regular file"), "{told}");
        let told = Replacement::new(None, b"x").write(&folder.path().join("no/a")).unwrap_err().to_string();
        assert!(told.contains("cannot be written, and stays as it was"), "{told}");
    }
}
