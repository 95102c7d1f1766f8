//! Opens the files of the folder safely: only their owner can read them, only the owner can write to the folder, and no
//! link is followed.
//!
//! An attacker who can put a link where the store is about to write can redirect the write anywhere. One who can write to
//! the folder can remove the record.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{StoreError, lock_path};

/// The bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;
/// How often another start may remove our new lock file, as that of a dead process, before we give up.
const MOST_TRIES: usize = 100;

/// The options that open a file of the folder.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Creates the folder for its owner alone, if it is missing, and returns its real path.
pub(super) fn folder(path: &Path) -> Result<PathBuf, StoreError> {
    let failed = |error| StoreError::Folder { path: path.to_owned(), error };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    let metadata = std::fs::metadata(&path).map_err(failed)?;
    let (owner, own) = (metadata.uid(), rustix::process::geteuid().as_raw());
    let mode = metadata.mode() & 0o7777;
    let what = if owner != own {
        format!(
            "it belongs to user {owner}, who could change the record, but the gateway runs as user {own}; change its owner"
        )
    } else if mode & OTHERS_WRITE != 0 {
        let cure = format!("`chmod go-w {}`", path.display());
        format!("its mode is {mode:o}, so other users could change the record; run {cure}")
    } else {
        return Ok(path);
    };
    Err(StoreError::Unsafe { path, what })
}

/// Creates and locks the file that shows that an instance is alive.
pub(super) fn lock(folder: &Path, instance: &str) -> io::Result<File> {
    let path = lock_path(folder, instance);
    for _ in 0..MOST_TRIES {
        let file = private().write(true).create(true).truncate(false).open(&path)?;
        file.lock()?;
        let ours = file.metadata()?;
        // Before we locked it, another start may have removed it as the lock of a dead process.
        let there = std::fs::symlink_metadata(&path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
    Err(io::Error::other("another process keeps removing its lock file"))
}

/// Removes unfinished files of an instance: those whose names contain this ending and that were never renamed into place.
pub(super) fn remove_new(folder: &Path, instance: &str, ending: &str) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.strip_prefix(instance).is_some_and(|rest| rest.starts_with('.') && rest.contains(ending)) {
            let _ = std::fs::remove_file(path);
        }
    }
}
