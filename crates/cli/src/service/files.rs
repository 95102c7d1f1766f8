//! Unit files that this program may replace and remove: those that it wrote and nobody changed since.
//!
//! The first lines of such a file say who wrote it, and have the digest of the rest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::replace::Replacement;
use crate::trust::digest;

/// How a file of ours begins.
const MARK: &str = "# Written by `bridgehead service install`; `bridgehead service uninstall` removes it.\n";
/// How its second line begins.
const DIGEST: &str = "# SHA-256 of the lines below: ";

/// What is found at the place of a unit file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Nothing.
    Absent,
    /// The file as we wrote it.
    Ours,
    /// A file that we wrote and somebody changed.
    Changed,
    /// Something else.
    Foreign,
}

/// The place of a unit file.
#[derive(Debug)]
pub(crate) struct UnitFile(PathBuf);

impl UnitFile {
    /// The file of a unit in a folder.
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        Self(folder.join(name))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Its text, if there is a file.
    pub(crate) fn text(&self) -> Result<Option<String>, String> {
        match fs::read(&self.0) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("cannot read {}: {error}", self.0.display())),
        }
    }

    /// What is there.
    pub(crate) fn kept(&self) -> Result<Kept, String> {
        Ok(self.text()?.map_or(Kept::Absent, |text| kept(&text)))
    }

    /// Writes it with its mark, unless somebody changes it at the same moment.
    pub(crate) fn write(&self, text: &str) -> Result<(), String> {
        if let Some(folder) = self.0.parent() {
            fs::create_dir_all(folder)
                .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        }
        let before = self.text()?;
        let (before, after) = (before.as_ref().map(String::as_bytes), marked(text));
        let replaced = Replacement::new(before, after.as_bytes()).write(&self.0);
        replaced.map(drop).map_err(|error| error.to_string())
    }

    /// Removes it.
    pub(crate) fn remove(&self) -> Result<(), String> {
        fs::remove_file(&self.0).map_err(|error| format!("cannot remove {}: {error}", self.0.display()))
    }
}

fn marked(text: &str) -> String {
    format!("{MARK}{DIGEST}{}\n{text}", digest(text.as_bytes()))
}

fn kept(text: &str) -> Kept {
    let Some(rest) = text.strip_prefix(MARK) else { return Kept::Foreign };
    let told = rest.strip_prefix(DIGEST).and_then(|rest| rest.split_once('\n'));
    match told {
        Some((told, text)) if told == digest(text.as_bytes()) => Kept::Ours,
        _ => Kept::Changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_ours_are_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let file = UnitFile::new(&folder.path().join("deep/user"), "a.service");
        assert_eq!(file.kept(), Ok(Kept::Absent));
        for text in ["[Unit]\n", "[Unit]\nDescription=x\n"] {
            file.write(text).unwrap();
            assert_eq!(file.kept(), Ok(Kept::Ours));
            assert!(file.text().unwrap().unwrap().ends_with(text));
        }
        let written = file.text().unwrap().unwrap();
        fs::write(file.path(), format!("{written}Wants=y\n")).unwrap();
        assert_eq!(file.kept(), Ok(Kept::Changed));
        fs::write(file.path(), MARK).unwrap();
        assert_eq!(file.kept(), Ok(Kept::Changed));
        fs::write(file.path(), "[Unit]\n").unwrap();
        assert_eq!(file.kept(), Ok(Kept::Foreign));
        assert_eq!(fs::read_dir(file.path().parent().unwrap()).unwrap().count(), 1, "no draft is left");
        file.remove().unwrap();
        assert_eq!(file.kept(), Ok(Kept::Absent));
        assert!(file.remove().unwrap_err().contains("a.service"));
        fs::create_dir(file.path()).unwrap();
        assert!(file.kept().unwrap_err().contains("cannot read"));
        assert!(file.write("x").unwrap_err().contains("cannot read"));
        let below = UnitFile::new(&folder.path().join("file/user"), "a.service");
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(below.write("x").unwrap_err().contains("cannot make"));
    }
}
