//! The file of a Unix socket: created for its owner only, never in place of one that somebody serves, removed at the end.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A socket's file. Dropping this removes it, unless another one has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Option<Identity>,
}

/// What tells a file from its successor at the same path. The number of an inode is used again, so the time counts too, where
/// the file system knows it.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(path: &Path) -> Option<Identity> {
    let file = fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.created().ok()))
}

impl SocketFile {
    /// Creates the socket. The file of a program that ended without removing it is replaced.
    pub(crate) fn create(path: &Path) -> io::Result<(UnixListener, Self)> {
        remove_stale(path)?;
        let listener = bind_for_owner(path)?;
        Ok((listener, Self { path: path.to_owned(), identity: identity(path) }))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Removes the socket at `path` if nobody listens on it. Anything else that is there stays, and is an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket is there; move it away, or choose another path",
        ));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // One that is too busy to accept is served too.
        _ => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another program listens there; end it, or choose another path",
        )),
    }
}

/// A socket that only its owner can open, from its first moment on. It is made in a folder of its own: the mode of a new socket
/// depends on the umask, which belongs to the whole process.
fn bind_for_owner(path: &Path) -> io::Result<UnixListener> {
    let folder = path.parent().unwrap_or(Path::new(".")).join(format!(".b{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let draft = folder.join("s");
    let made = UnixListener::bind(&draft).and_then(|listener| {
        fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
        fs::rename(&draft, path)?;
        Ok(listener)
    });
    drop((fs::remove_file(&draft), fs::remove_dir(&folder)));
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-6: a socket is for its owner only, replaces one that nobody serves, and is removed at the end. Whatever else is at
    /// its path stays.
    #[test]
    fn a_socket_takes_nobodys_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gate.sock");
        let (listener, file) = SocketFile::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!((file.path(), fs::read_dir(folder.path()).unwrap().count()), (&*path, 1));
        UnixStream::connect(&path).unwrap();
        let taken = SocketFile::create(&path).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        drop(listener);
        let (_second, other) = SocketFile::create(&path).unwrap();
        drop(file);
        UnixStream::connect(&path).unwrap();
        drop(other);
        assert!(!path.exists());

        fs::write(&path, "mine").unwrap();
        assert_eq!(SocketFile::create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert!(SocketFile::create(&folder.path().join("no/such/folder.sock")).is_err());
    }
}
