//! Opens the paths that a program may use without following symbolic links. A server that can write to a folder on such a
//! path could otherwise redirect it.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::path::Path;

#[cfg(target_os = "linux")]
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
#[cfg(target_os = "linux")]
use rustix::io::Errno;

/// Why a path cannot be given to a program: it does not exist, or it contains a symbolic link. `None` if it is usable.
pub(crate) fn unusable(path: &Path) -> Option<io::Error> {
    #[cfg(target_os = "linux")]
    {
        open_without_links(path).err().map(explain)
    }
    #[cfg(not(target_os = "linux"))]
    {
        path.metadata().err()
    }
}

/// Opens `path` for a Landlock rule. A symbolic link in the path, or at its end, is an error.
#[cfg(target_os = "linux")]
pub(crate) fn open_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // The seccomp filter of a container may not know `openat2`.
        Err(Errno::NOSYS | Errno::PERM) => walk_without_links(path),
        settled => settled,
    }
}

/// Like [`open_without_links`], but opens one path component at a time.
#[cfg(target_os = "linux")]
fn walk_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = None;
    for name in path.components() {
        let opened = match &at {
            None => openat(CWD, name.as_os_str(), flags, Mode::empty())?,
            Some(folder) => openat(folder, name.as_os_str(), flags, Mode::empty())?,
        };
        if FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        at = Some(opened);
    }
    at.ok_or(Errno::NOENT)
}

/// Turns an error of [`open_without_links`] into words that fit a path in `files`.
#[cfg(target_os = "linux")]
pub(crate) fn explain(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP => io::Error::other(
            "it contains a symbolic link, which is not followed when a server starts; put the folder itself there, \
             or reload the configuration if the link is yours",
        ),
        other => other.into(),
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("real/inner")).unwrap();
        std::fs::write(root.join("real/file"), "x").unwrap();
        symlink(root.join("real"), root.join("link")).unwrap();
        symlink("file", root.join("real/alias")).unwrap();
        (place, root)
    }

    /// WALL-2: neither way of opening follows a link anywhere in the path; real files and folders are opened.
    #[test]
    fn links_are_not_followed() {
        let (_place, root) = place();
        for open in [open_without_links, walk_without_links] {
            assert!(open(&root.join("real/inner")).is_ok());
            assert!(open(&root.join("real/file")).is_ok());
            assert_eq!(open(&root.join("link")).unwrap_err(), Errno::LOOP);
            assert_eq!(open(&root.join("link/inner")).unwrap_err(), Errno::LOOP);
            assert_eq!(open(&root.join("real/alias")).unwrap_err(), Errno::LOOP);
            assert_eq!(open(&root.join("none")).unwrap_err(), Errno::NOENT);
            assert_eq!(open(&root.join("real/file/x")).unwrap_err(), Errno::NOTDIR);
        }
    }
}
