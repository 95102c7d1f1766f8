//! Files that hold a secret: a token, a TLS key, a secret of a server. One that others can read is refused, with the command
//! that cures it. Every place that reads such a file uses this check.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a file that holds a secret is not used. Says nothing of what is in it.
#[derive(Debug)]
#[non_exhaustive]
pub enum SecretFileError {
    /// It does not exist, or the gateway may not read it.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is a folder, a pipe or a device.
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Others may read or change it.
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is longer than a secret.
    TooLong {
        /// The file.
        path: PathBuf,
        /// How long it may be.
        most: u64,
    },
}

impl SecretFileError {
    /// What is wrong, without the cure.
    pub fn fault(&self) -> String {
        match self {
            Self::Unreadable { path, error } => format!("`{}` cannot be read: {error}", path.display()),
            Self::NotAFile { path } => format!("`{}` is not a regular file", path.display()),
            Self::Exposed { path, mode } => {
                format!(
                    "others than its owner can use `{}` (mode {mode:03o}), which holds a secret",
                    path.display()
                )
            }
            Self::TooLong { path, most } => format!("`{}` is longer than {most} bytes", path.display()),
        }
    }

    /// What to do about it.
    pub fn cure(&self) -> String {
        match self {
            Self::Unreadable { .. } => "correct the path, or let the gateway read the file".to_owned(),
            Self::NotAFile { .. } | Self::TooLong { .. } => {
                "name a file that holds the secret alone".to_owned()
            }
            Self::Exposed { path, mode } => {
                let group_only = mode & FOR_OTHERS_THAN_READING_GROUP == 0;
                let more = if group_only { ", or set `allow_group_read = true` in `[secrets]`" } else { "" };
                format!("run `chmod 600 {}`{more}", shell_word(path))
            }
        }
    }
}

impl fmt::Display for SecretFileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.fault(), self.cure())
    }
}

impl std::error::Error for SecretFileError {}

/// What nobody but the owner may have.
const FOR_OTHERS: u32 = 0o077;
/// The same, if the group may read: mounted secrets often belong to root and to the group of the program.
const FOR_OTHERS_THAN_READING_GROUP: u32 = 0o037;

/// Checks the permissions of a file that holds a secret.
///
/// # Errors
/// If others than its owner, and with `allow_group_read` its group, may read it, or may change it.
pub fn check_secret_file(path: &Path, mode: u32, allow_group_read: bool) -> Result<(), SecretFileError> {
    let forbidden = if allow_group_read { FOR_OTHERS_THAN_READING_GROUP } else { FOR_OTHERS };
    match mode & forbidden {
        0 => Ok(()),
        _ => Err(SecretFileError::Exposed { path: path.to_owned(), mode: mode & 0o777 }),
    }
}

/// Reads a file that holds a secret, at most `most` bytes.
///
/// # Errors
/// If it cannot be read, is not a regular file, is longer, or can be read by others ([`check_secret_file`]).
pub fn read_secret_file(path: &Path, allow_group_read: bool, most: u64) -> Result<Vec<u8>, SecretFileError> {
    let unreadable = |error| SecretFileError::Unreadable { path: path.to_owned(), error };
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(SecretFileError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(unreadable)?;
    check_secret_file(path, file.metadata().map_err(unreadable)?.mode(), allow_group_read)?;
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content).map_err(unreadable)?;
    match content.len() as u64 > most {
        true => Err(SecretFileError::TooLong { path: path.to_owned(), most }),
        false => Ok(content),
    }
}

/// Reads a regular file of at most `most` bytes. Anything else is an error: a device never ends, and a pipe waits for its writer.
///
/// # Errors
/// If it cannot be read, is no regular file, or is longer.
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    bounded(File::open(path)?, most)
}

/// Reads all of a file, if that is at most `most` bytes.
pub(crate) fn bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut content)?;
    match content.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes"))),
        false => Ok(content),
    }
}

/// A path as a word of a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |next: char| next.is_alphanumeric() || "/._-+:@%,~".contains(next);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// WALL-7: only regular files of a bounded size are read: a device never ends, and a pipe waits for its writer.
    #[test]
    fn what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_file(&path, 5).unwrap(), b"12345");
        assert_eq!(read_file(&path, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for other in [Path::new("/dev/zero"), folder.path(), &socket] {
            let error = read_file(other, 5).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{}: {error}", other.display());
        }
        assert_eq!(
            bounded(File::open("/dev/zero").unwrap(), 9).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
    }

    /// ACC-8: a file that others can read is refused with the cure, whichever bit lets them; with `allow_group_read`, its
    /// group may read it.
    #[test]
    fn who_may_read_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "s3cret\n").unwrap();
        for (mode, alone, with_group) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o700, true, true),
            (0o640, false, true),
            (0o440, false, true),
            (0o660, false, false),
            (0o610, false, false),
            (0o604, false, false),
            (0o602, false, false),
            (0o601, false, false),
            (0o644, false, false),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            for (allow, expected) in [(false, alone), (true, with_group)] {
                match read_secret_file(&path, allow, 100) {
                    Ok(content) => assert!(expected && content == b"s3cret\n", "{mode:o} {allow}"),
                    Err(error) => {
                        let told = error.to_string();
                        assert!(!expected, "{mode:o} {allow}: {told}");
                        assert!(told.contains(&format!("(mode {mode:03o})")), "{told}");
                        assert!(told.contains(&format!("run `chmod 600 {}`", path.display())), "{told}");
                        assert_eq!(told.contains("allow_group_read"), with_group, "{told}");
                        assert!(!told.contains("s3cret"), "{told}");
                    }
                }
            }
        }
    }

    /// ACC-8: a secret file is a regular file of bounded size.
    #[test]
    fn what_a_secret_file_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let read = |most| read_secret_file(&path, false, most);
        assert!(read(5).unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&path, "12345").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(5).unwrap(), b"12345");
        assert!(read(4).unwrap_err().to_string().contains("longer than 4 bytes"));
        let error = read_secret_file(folder.path(), true, 5).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn words_of_a_shell() {
        for (path, expected) in
            [("/a/b-c.d", "/a/b-c.d"), ("/a b", "'/a b'"), ("-x", "'-x'"), ("it's", r"'it'\''s'")]
        {
            assert_eq!(shell_word(Path::new(path)), expected);
        }
    }
}
