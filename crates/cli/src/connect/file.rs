//! Changes a client's file: reads it, edits its text, keeps a backup, and replaces it in one step.
//!
//! The client may run and write its file at the same moment. Then the change starts over from the new text. Another program of
//! ours waits until the change is done. A file that cannot be read, is not UTF-8, or is read-only stays as it is.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::clients::edit::EditError;
use crate::replace::{self, PRIVATE, ReplaceError, Replaced, Replacement, failed};

/// How often a change starts over because the client changed the file meanwhile.
const ATTEMPTS: usize = 8;
/// A larger file is none of a client.
const LARGEST: u64 = 64 << 20;

/// Why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It cannot be read.
    #[error("`{}` cannot be read: {reason}", file.display())]
    Unreadable { file: PathBuf, reason: String },
    /// Its text is broken, or the entry cannot be there.
    #[error("`{}`, {error}", file.display())]
    Broken { file: PathBuf, error: EditError },
    /// Nobody may write it.
    #[error("`{}` is read-only; make it writable, or add the entry by hand (`--print` shows it)", .0.display())]
    ReadOnly(PathBuf),
    /// It could not be replaced.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// Something else forbids it.
    #[error("{0}")]
    Refused(String),
}

/// A change that was made.
#[derive(Debug)]
pub(crate) struct Change<T> {
    /// What was there before; `None` if there was no file.
    pub(crate) before: Option<String>,
    /// What is there now.
    pub(crate) after: String,
    /// Where the old content is kept.
    pub(crate) backup: Option<PathBuf>,
    /// What the edit told.
    pub(crate) told: T,
}

/// The text of a file; `None` if there is none.
pub(crate) fn read(file: &Path) -> Result<Option<String>, FileError> {
    let unreadable = |reason: String| FileError::Unreadable { file: file.to_owned(), reason };
    match fs::metadata(file) {
        Ok(about) if !about.is_file() => return Err(unreadable("it is not a regular file".to_owned())),
        Ok(about) if about.len() > LARGEST => {
            return Err(unreadable(format!("it is larger than {} MiB", LARGEST >> 20)));
        }
        _ => {}
    }
    let bytes = replace::read(file).map_err(|error| unreadable(error.to_string()))?;
    let text = bytes.map(String::from_utf8).transpose();
    text.map_err(|error| unreadable(format!("it is not UTF-8 ({})", error.utf8_error())))
}

/// Edits the text of a file. The edit gets the current text and returns the new one; `None` leaves the file as it is.
pub(crate) fn change<T>(
    file: &Path,
    with_backup: bool,
    edit: impl Fn(Option<&str>) -> Result<Option<(String, T)>, FileError>,
) -> Result<Option<Change<T>>, FileError> {
    // The folder is made only if something is to be written there.
    if let Some(folder) = file.parent().filter(|folder| !folder.exists()) {
        if edit(None)?.is_none() {
            return Ok(None);
        }
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(failed(file, "created"))?;
    }
    let _lock = lock(file)?;
    let mut tries = 0;
    loop {
        let before = read(file)?;
        let Some((after, told)) = edit(before.as_deref())? else { return Ok(None) };
        if fs::metadata(file).is_ok_and(|about| about.permissions().readonly()) {
            return Err(FileError::ReadOnly(file.to_owned()));
        }
        tries += 1;
        match put(file, before.as_deref().map(str::as_bytes), after.as_bytes(), with_backup) {
            Ok(Replaced { backup, .. }) => return Ok(Some(Change { before, after, backup, told })),
            Err(ReplaceError::Changed(_)) if tries < ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Keeps other programs of ours from changing the file, whose folder exists, until the result is dropped.
pub(crate) fn lock(file: &Path) -> Result<File, ReplaceError> {
    replace::lock(file).map_err(failed(file, "locked"))
}

/// Replaces the content of a file. A new file is for its owner only: entries may have secrets.
pub(crate) fn put(
    file: &Path,
    before: Option<&[u8]>,
    after: &[u8],
    with_backup: bool,
) -> Result<Replaced, ReplaceError> {
    Replacement { before, after, mode: PRIVATE, narrow: false, backup: with_backup }.write(file)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// JOIN-2: a client that writes its file at the same moment loses nothing: the change starts over from what it wrote, and
    /// gives up if that never ends.
    #[test]
    fn a_change_starts_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "one").unwrap();
        let calls = Cell::new(0);
        let changed = change(&file, true, |text| {
            calls.set(calls.get() + 1);
            if calls.get() == 1 {
                fs::write(&file, "two").unwrap();
            }
            Ok(Some((format!("{}!", text.unwrap()), ())))
        });
        let changed = changed.unwrap().unwrap();
        assert_eq!((calls.get(), fs::read_to_string(&file).unwrap().as_str()), (2, "two!"));
        assert_eq!((changed.before.as_deref(), changed.after.as_str()), (Some("two"), "two!"));
        assert_eq!(fs::read_to_string(changed.backup.unwrap()).unwrap(), "two");

        let calls = Cell::new(0);
        let never = change(&file, false, |_| {
            calls.set(calls.get() + 1);
            fs::write(&file, format!("{}", calls.get())).unwrap();
            Ok(Some(("ours".to_owned(), ())))
        });
        assert!(matches!(never, Err(FileError::Replace(ReplaceError::Changed(_)))), "{never:?}");
        assert_eq!((calls.get(), fs::read_to_string(&file).unwrap()), (ATTEMPTS, ATTEMPTS.to_string()));
    }

    /// JOIN-2: of several changes at once, none is lost.
    #[test]
    fn changes_follow_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/a");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let file = &file;
                scope.spawn(move || {
                    change(file, true, |text| {
                        Ok(Some((format!("{}{number}\n", text.unwrap_or_default()), ())))
                    })
                    .unwrap()
                });
            }
        });
        let text = fs::read_to_string(&file).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    }

    #[test]
    fn new_files_are_private_and_others_stay_if_they_cannot_be_changed() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |file: &Path| fs::metadata(file).unwrap().permissions().mode() & 0o777;
        let file = folder.path().join("deep/er/a");
        let ours = |_: Option<&str>| Ok(Some(("ours".to_owned(), ())));
        assert!(change::<()>(&file, true, |_| Ok(None)).unwrap().is_none());
        assert!(!folder.path().join("deep").exists(), "nothing was to be written there");
        let made = change(&file, true, ours).unwrap().unwrap();
        assert_eq!((made.before, made.backup, mode(&file)), (None, None, 0o600));
        assert!(change::<()>(&file, true, |_| Ok(None)).unwrap().is_none());

        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
        let told = change(&file, true, ours).unwrap_err().to_string();
        assert!(told.contains("is read-only") && told.contains("--print"), "{told}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, [0xff]).unwrap();
        let told = change(&file, true, ours).unwrap_err().to_string();
        assert!(told.contains("it is not UTF-8"), "{told}");
        let told = change(folder.path(), true, ours).unwrap_err().to_string();
        assert!(told.contains("it is not a regular file"), "{told}");
        let big = File::create(folder.path().join("big")).unwrap();
        big.set_len(LARGEST + 1).unwrap();
        assert!(read(&folder.path().join("big")).unwrap_err().to_string().contains("larger than 64 MiB"));
        let told = change(&file.join("x"), true, ours).unwrap_err().to_string();
        assert!(told.contains("cannot be"), "{told}");
    }
}
