//! Appends every received message to a file for the test to read.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

/// The file, if the script names one. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Transcript(Option<Arc<Mutex<File>>>);

impl Transcript {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Some(Arc::new(Mutex::new(file)))))
    }

    pub(crate) fn note(&self, line: &[u8]) {
        if let Some(file) = &self.0 {
            // One write per line: several processes may append to the same file.
            let _ = file.lock().write_all(&[line, b"\n"].concat());
        }
    }
}
