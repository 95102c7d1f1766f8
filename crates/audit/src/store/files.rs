//! The files of the folder: for their owner alone, in a folder that nobody else can write to, and never through a link.
//!
//! Whoever can put a link where the store is about to write can have it write anywhere, and whoever can write to the folder
//! can remove what is recorded there.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{StoreError, lock_path};

/// The bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;
/// How often a lock is taken for that of a dead process, and removed, before it is given up.
const MOST_TRIES: usize = 100;

/// How a file of the folder is opened.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Makes the folder for its owner alone, unless it is there, and says where it really is.
pub(super) fn folder(path: &Path) -> Result<PathBuf, StoreError> {
    let failed = |error| StoreError::Folder { path: path.to_owned(), error };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    let metadata = std::fs::metadata(&path).map_err(failed)?;
    let (owner, own) = (metadata.uid(), rustix::process::geteuid().as_raw());
    let mode = metadata.mode() & 0o7777;
    let what = if owner != own {
        format!(
            "it belongs to user {owner}, and the gateway runs as user {own}, so that user could change the record"
        )
    } else if mode & OTHERS_WRITE != 0 {
        let cure = format!("`chmod go-w {}`", path.display());
        format!("its mode is {mode:o}, so other users could change the record; {cure} takes that from them")
    } else {
        return Ok(path);
    };
    Err(StoreError::Unsafe { path, what })
}

/// Makes the file that says that an instance lives, and locks it.
pub(super) fn lock(folder: &Path, instance: &str) -> io::Result<File> {
    let path = lock_path(folder, instance);
    for _ in 0..MOST_TRIES {
        let file = private().write(true).create(true).truncate(false).open(&path)?;
        file.lock()?;
        let ours = file.metadata()?;
        // Before it was locked, another start may have taken it for that of a dead process and removed it.
        let there = std::fs::symlink_metadata(&path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
    Err(io::Error::other("its lock is removed again and again"))
}

/// Removes the files of an instance that end like this, or with more behind it: they never got their place.
pub(super) fn remove_new(folder: &Path, instance: &str, ending: &str) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.strip_prefix(instance).is_some_and(|rest| rest.starts_with('.') && rest.contains(ending)) {
            let _ = std::fs::remove_file(path);
        }
    }
}
