//! Records, and the files that hold them as lines: exports, journals, the file of checkpoints. A segment or an export is a
//! header, then its rows in order, each checkpoint after the last row that it covers.
//!
//! A record is a text and the hash stored beside it. Reading does not judge records; `verify` does.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::iter;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::hash::unhex;
use crate::store::{StoreError, private};
use crate::{Checkpoint, Hash, Removal};

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A segment begins.
    Header,
    /// A row.
    Row,
    /// A statement about the rows before it.
    Checkpoint,
}

/// One text with its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub kind: RecordKind,
    /// The number that the store has for a row, or how many rows a checkpoint covers. An export has none beside the text.
    pub seq: Option<u64>,
    /// The bytes that are hashed.
    pub text: Vec<u8>,
    /// The hash as it is stored; `None` if the stored value is not a hash.
    pub hash: Option<Hash>,
}

/// Why records cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A segment cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A line of an export is malformed.
    #[error("line {line} of the export is not a record: it was changed, or this is not an export")]
    Line {
        /// Which, from 1.
        line: u64,
    },
    /// A line of a journal is malformed.
    #[error("line {line} of {} is not a row: it was changed", path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
        /// Which, from 1.
        line: u64,
    },
    /// The receiver of the records failed.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

/// The newest rows of a segment that is being written, or was when its process was killed.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

/// Checkpoints that wait for the row that they were made after.
pub(crate) struct Checkpoints {
    /// The next one is last.
    waiting: Vec<Record>,
    rows: u64,
}

impl Journal {
    /// Opens a journal; `None` if there is none, which is so for every finished segment.
    pub(crate) fn open(path: PathBuf) -> Result<Option<Self>, ReadError> {
        match private().read(true).open(&path) {
            Ok(file) => Ok(Some(Self { path, file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ReadError::File { path, error }),
        }
    }

    /// Passes on its rows after the one with this number, which is the last in the store. A line that was cut short was
    /// never acknowledged and is skipped.
    pub(crate) fn rows(
        self,
        last: Option<i64>,
        mut take: impl FnMut(&Record) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let last = last.and_then(|last| u64::try_from(last).ok()).unwrap_or_default();
        let Self { path, file } = self;
        for_each_line(file, &path, |number, line| {
            if is_cut_short(line) {
                return Ok(());
            }
            let row = read_line(line).filter(|record| record.kind == RecordKind::Row);
            let seq = row.as_ref().and_then(|row| number_of(&row.text));
            match row.zip(seq) {
                Some((_, seq)) if seq <= last => Ok(()),
                Some((row, _)) => take(&row),
                None => Err(ReadError::Journal { path: path.clone(), line: number }),
            }
        })
    }
}

/// Whether a line is what an interrupted write left, and not a whole record whose end was changed.
fn is_cut_short(line: &[u8]) -> bool {
    let Some((last, before)) = line.split_last() else { return true };
    let whole = || [before, b"\n"].concat();
    *last != b'\n'
        && read_line(&whole()).is_none_or(|row| serde_json::from_slice::<IgnoredAny>(&row.text).is_err())
}

/// The number of a row, by its text.
pub(crate) fn number_of(text: &[u8]) -> Option<u64> {
    let number = text.strip_prefix(b"{\"seq\":")?;
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
    str::from_utf8(&number[..digits]).ok()?.parse().ok()
}

impl Checkpoints {
    /// The checkpoints of a frame, in their order.
    pub(crate) fn new(mut checkpoints: Vec<Record>) -> Self {
        checkpoints.reverse();
        Self { waiting: checkpoints, rows: 0 }
    }

    /// The checkpoints that belong after the next row.
    pub(crate) fn after_row(&mut self) -> impl Iterator<Item = Record> {
        self.rows += 1;
        let rows = self.rows;
        iter::from_fn(move || {
            self.waiting.pop_if(|checkpoint| checkpoint.seq.is_none_or(|count| count <= rows))
        })
    }

    /// The checkpoints that are left after the last row.
    pub(crate) fn left(self) -> impl Iterator<Item = Record> {
        self.waiting.into_iter().rev()
    }
}

/// How the line of each kind of record begins, and what follows the hash.
const LINES: [(RecordKind, &[u8], &[u8]); 3] = [
    (RecordKind::Header, b"{\"head\":\"", b"\",\"header\":"),
    (RecordKind::Row, b"{\"head\":\"", b"\",\"row\":"),
    (RecordKind::Checkpoint, b"{\"digest\":\"", b"\",\"checkpoint\":"),
];

/// Writes a record as a line of an export.
///
/// # Errors
/// When `out` fails.
pub fn write_line(record: &Record, out: &mut impl Write) -> io::Result<()> {
    for (kind, start, middle) in LINES {
        if kind == record.kind {
            out.write_all(start)?;
            write!(out, "{}", record.hash.unwrap_or_default())?;
            out.write_all(middle)?;
            out.write_all(&record.text)?;
            return out.write_all(b"}\n");
        }
    }
    Ok(())
}

/// The line of a row, as [`write_line`] would write it.
pub(crate) fn push_row(out: &mut Vec<u8>, head: &Hash, text: &[u8]) {
    let [_, (_, start, middle), _] = LINES;
    let digits = head.digits();
    out.reserve(start.len() + digits.len() + middle.len() + text.len() + 2);
    for part in [start, &digits, middle, text, b"}\n"] {
        out.extend_from_slice(part);
    }
}

/// A line's kind, its hash if that is valid, and its text.
pub(crate) fn split_line(line: &[u8]) -> Option<(RecordKind, Option<Hash>, &[u8])> {
    let line = line.strip_suffix(b"}\n")?;
    LINES.iter().find_map(|(kind, start, middle)| {
        let (hash, text) = line.strip_prefix(*start)?.split_at_checked(64)?;
        let text = text.strip_prefix(*middle)?;
        let mut bytes = [0; 32];
        let hash = unhex(std::str::from_utf8(hash).ok()?, &mut bytes).then_some(Hash(bytes));
        Some((*kind, hash, text))
    })
}

fn read_line(line: &[u8]) -> Option<Record> {
    let (kind, hash, text) = split_line(line)?;
    Some(Record { kind, seq: None, text: text.to_vec(), hash })
}

/// Reads an export.
///
/// # Errors
/// When it cannot be read or a line is malformed, or when `take` fails.
pub fn read_export(
    path: &Path,
    mut take: impl FnMut(&Record) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let file = File::open(path).map_err(|error| ReadError::File { path: path.to_owned(), error })?;
    for_each_line(file, path, |number, line| take(&read_line(line).ok_or(ReadError::Line { line: number })?))
}

/// Passes on each line with its number, from 1, and its line feed. A line without a line feed is the last: if a writer
/// appends more meanwhile, that is the rest of this line and not another.
fn for_each_line(
    file: impl Read,
    path: &Path,
    mut show: impl FnMut(u64, &[u8]) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut file = io::BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = file.read_until(b'\n', &mut line);
        if read.map_err(|error| ReadError::File { path: path.to_owned(), error })? == 0 {
            break;
        }
        show(number, &line)?;
        if line.last() != Some(&b'\n') {
            break;
        }
    }
    Ok(())
}

/// The content of the file of checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointFile {
    /// The checkpoints, in the order they were made.
    pub checkpoints: Vec<Checkpoint>,
    /// The notes of retention about the segments that it removed.
    pub removed: Vec<Removal>,
    /// The numbers of lines that are neither a checkpoint nor a note.
    pub unknown: Vec<usize>,
}

/// Reads the file that checkpoints are appended to; a missing file counts as empty.
///
/// # Errors
/// When it exists and cannot be read.
pub fn read_checkpoints(path: &Path) -> Result<CheckpointFile, ReadError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(ReadError::File { path: path.to_owned(), error }),
    };
    let mut file = CheckpointFile::default();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        if let Ok(checkpoint) = serde_json::from_slice::<Checkpoint>(line) {
            file.checkpoints.push(checkpoint);
        } else if let Ok(removal) = serde_json::from_slice::<Removal>(line) {
            file.removed.push(removal);
        } else {
            file.unknown.push(at + 1);
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that grows while it is read: each part appears once the one before was read to its end.
    struct Growing(Vec<&'static [u8]>, bool);

    impl Read for Growing {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if !self.1 || self.0.is_empty() {
                return Ok(0);
            }
            let part = self.0.remove(0);
            into[..part.len()].copy_from_slice(part);
            Ok(part.len())
        }
    }

    /// AUD-3: a reader of a journal that is being written gets the lines before the last, and does not take the rest of
    /// that one for another line.
    #[test]
    fn the_rest_of_a_line_that_is_being_written_is_no_line() {
        let mut seen = Vec::new();
        let growing = Growing(vec![b"one\ntw", b"o\nthree\n"], false);
        for_each_line(growing, Path::new("journal"), |number, line| {
            seen.push((number, line.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(1, b"one\n".to_vec()), (2, b"tw".to_vec())]);
    }

    /// AUD-3: a segment without a journal is finished. A segment whose journal cannot be opened is not read as if it were
    /// finished.
    #[test]
    fn a_journal_that_cannot_be_opened_is_not_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("a.rows");
        assert!(Journal::open(journal.clone()).unwrap().is_none());
        std::os::unix::fs::symlink(folder.path(), &journal).unwrap();
        let error = Journal::open(journal).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("a.rows"), "{error}");
    }
}
