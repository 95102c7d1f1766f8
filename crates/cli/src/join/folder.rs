//! The folder of control sockets, as far as it can be trusted, and the lock that makes one of several starters start.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

/// How long the path of a socket can be.
const LONGEST_SOCKET: usize = if cfg!(target_os = "linux") { 107 } else { 103 };
/// How often a held lock is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Creates the folder if needed, and checks that no other user can put a socket there.
///
/// # Errors
/// Says why the folder cannot be used.
pub(crate) fn check(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    // A name of a socket has twelve characters and its ending.
    if folder.as_os_str().len() + "/0123456789ab.sock".len() > LONGEST_SOCKET {
        return Err(format!("the path of the folder `{shown}` is too long for control sockets"));
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| format!("the folder `{shown}` for control sockets cannot be created: {error}"))?;
    let about = fs::symlink_metadata(folder)
        .map_err(|error| format!("the folder `{shown}` for control sockets cannot be read: {error}"))?;
    judge(&about, rustix::process::geteuid().as_raw())
        .map_err(|reason| format!("the folder `{shown}` for control sockets {reason}"))
}

fn judge(about: &fs::Metadata, user: u32) -> Result<(), &'static str> {
    if !about.is_dir() {
        return Err("is not a folder");
    }
    if about.uid() != user {
        return Err("belongs to another user; remove it, or set XDG_RUNTIME_DIR to a folder of your own");
    }
    if about.mode() & 0o022 != 0 {
        return Err("can be written by other users; close it with `chmod 700`");
    }
    Ok(())
}

/// A held lock; dropping it removes its file.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// Holds the lock for as long as it is open.
    _file: File,
}

impl Lock {
    /// Waits for the lock of this name.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub(crate) async fn take(folder: &Path, name: &str) -> io::Result<Self> {
        let path = folder.join(format!("start-{name}.lock"));
        loop {
            if let Some(lock) = Self::try_take(&path)? {
                return Ok(lock);
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // The holder before may have removed the file between our opening and locking it.
        let held = file.metadata()?;
        let same =
            fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (held.dev(), held.ino()));
        Ok(same.then(|| Self { path: path.to_owned(), _file: file }))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while it is held: who waits sees that it locked a file that is gone, and makes a new one.
        drop(fs::remove_file(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// JOIN-4: a folder of another user, or one that others can write, is not used, and the message says why.
    #[test]
    fn a_folder_of_others_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("deep/run");
        assert_eq!(check(&folder), Ok(()));
        let about = fs::metadata(&folder).unwrap();
        assert_eq!(about.mode() & 0o777, 0o700);
        assert!(judge(&about, about.uid() + 1).unwrap_err().starts_with("belongs to another user"));
        for (mode, usable) in [(0o755, true), (0o720, false), (0o702, false)] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check(&folder).is_ok(), usable, "{mode:o}");
        }
        let refused = check(&folder).unwrap_err();
        assert!(refused.contains("deep/run") && refused.contains("chmod 700"), "{refused}");
        fs::write(place.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink(&folder, place.path().join("link")).unwrap();
        for name in ["file", "link", "file/below", &"long".repeat(30)] {
            assert!(check(&place.path().join(name)).is_err(), "{name}");
        }
    }

    /// JOIN-4: one of several starters has the lock, the others get it in turn, and no file is left.
    #[tokio::test]
    async fn one_starter_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let first = Lock::take(place.path(), "a").await.unwrap();
        let other = Lock::take(place.path(), "b").await.unwrap();
        let path = place.path().join("start-a.lock");
        assert!(Lock::try_take(&path).unwrap().is_none());
        // A file that was opened before it was removed is not the lock.
        let before = OpenOptions::new().write(true).open(&path).unwrap();
        drop(first);
        before.try_lock().unwrap();
        let second = Lock::take(place.path(), "a").await.unwrap();
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop((second, other));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        assert!(Lock::take(&place.path().join("missing"), "a").await.is_err());
    }
}
