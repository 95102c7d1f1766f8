//! Segments and exports read as one sequence: a header, its rows in order, each checkpoint behind the row it
//! was made after.
//!
//! A record is text and the hash that is stored beside it. Reading judges nothing; that is `verify`'s.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::iter;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use serde::de::IgnoredAny;

use crate::hash::unhex;
use crate::store::{Access, StoreError, connect, journal_of, private, segment_files};
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
    /// The number that the database has for a row; an export has none beside the text.
    pub seq: Option<u64>,
    /// The bytes that are hashed.
    pub text: Vec<u8>,
    /// The hash as it is stored; none if it is not one.
    pub hash: Option<Hash>,
}

/// Why records cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A segment.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// An export that does not look like one.
    #[error("line {line} of the export is no record: it was changed, or this is no export")]
    Line {
        /// Which, from 1.
        line: u64,
    },
    /// A journal with a line that is no row.
    #[error("line {line} of {} is no row: it was changed", path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
        /// Which, from 1.
        line: u64,
    },
    /// Whoever takes the records could not.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

/// The segments in a folder, the oldest first.
#[must_use]
pub fn segments(folder: &Path) -> Vec<PathBuf> {
    segment_files(folder)
}

/// Reads a segment, also one that is being written.
///
/// # Errors
/// When the file cannot be read, or when `take` fails.
pub fn read_segment(
    path: &Path,
    mut take: impl FnMut(&Record) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let segment = Segment::open(path)?;
    let mut frame = segment.frame()?;
    frame.headers.iter().try_for_each(&mut take)?;
    let mut rows = |row: &Record| {
        take(row)?;
        frame.checkpoints.after_row().try_for_each(|checkpoint| take(&checkpoint))
    };
    segment.rows(i64::MIN..=i64::MAX, &mut rows)?;
    if let Some(journal) = segment.journal {
        journal.rows(frame.bounds.as_ref().map(|bounds| *bounds.end()), &mut rows)?;
    }
    frame.checkpoints.left().try_for_each(|checkpoint| take(&checkpoint))
}

/// A segment that is open for reading, as it was in one moment, however long the reading takes.
pub(crate) struct Segment<'a> {
    path: &'a Path,
    connection: Connection,
    pub(crate) journal: Option<Journal>,
}

/// The newest rows of a segment that is being written, or was when its process was killed.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

/// All of a segment but its rows.
#[derive(Default)]
pub(crate) struct Frame {
    /// There should be one.
    pub(crate) headers: Vec<Record>,
    pub(crate) checkpoints: Checkpoints,
    /// The numbers of the first row and the last.
    pub(crate) bounds: Option<RangeInclusive<i64>>,
}

/// Checkpoints that wait for the row that they were made after.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The next stands last.
    waiting: Vec<(u64, Record)>,
    rows: u64,
}

impl<'a> Segment<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self, ReadError> {
        let broken = |error: rusqlite::Error| StoreError::database(path, &error);
        if let Err(error) = std::fs::metadata(path) {
            return Err(ReadError::File { path: path.to_owned(), error });
        }
        // First: rows go from here into the database, and what is read of that is younger then.
        let journal = Journal::open(path)?;
        let connection = connect(path, Access::Read)?;
        connection.busy_timeout(Duration::from_secs(2)).map_err(broken)?;
        connection.execute_batch("BEGIN").map_err(broken)?;
        Ok(Self { path, connection, journal })
    }

    pub(crate) fn frame(&self) -> Result<Frame, ReadError> {
        let broken = |error: rusqlite::Error| StoreError::database(self.path, &error);
        self.read_frame().map_err(|error| broken(error).into())
    }

    fn read_frame(&self) -> Result<Frame, rusqlite::Error> {
        let mut statement = self.connection.prepare("SELECT body, head FROM segment ORDER BY id")?;
        let headers = statement.query_map([], |row| record(RecordKind::Header, None, row, 0))?;
        let headers = headers.collect::<Result<_, _>>()?;
        let mut statement =
            self.connection.prepare("SELECT count, body, digest FROM checkpoints ORDER BY count, rowid")?;
        let checkpoints = statement.query_map([], |row| {
            let count = row.get(0)?;
            Ok((count, record(RecordKind::Checkpoint, Some(count), row, 1)?))
        })?;
        let mut waiting = checkpoints.collect::<Result<Vec<_>, _>>()?;
        waiting.reverse();
        // Each by itself is looked up; together SQLite would look at every row.
        let bounds = "SELECT (SELECT min(seq) FROM rows), (SELECT max(seq) FROM rows)";
        let (first, last): (Option<i64>, Option<i64>) =
            self.connection.query_row(bounds, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Frame {
            headers,
            checkpoints: Checkpoints { waiting, rows: 0 },
            bounds: first.zip(last).map(|(first, last)| first..=last),
        })
    }

    /// The rows with these numbers, in their order.
    pub(crate) fn rows(
        &self,
        numbers: RangeInclusive<i64>,
        mut take: impl FnMut(&Record) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let broken = |error: rusqlite::Error| StoreError::database(self.path, &error);
        let mut statement = self
            .connection
            .prepare("SELECT seq, body, head FROM rows WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq")
            .map_err(broken)?;
        let mut rows = statement.query((numbers.start(), numbers.end())).map_err(broken)?;
        // One for all rows: a text of its own for each would cost more than reading it.
        let mut found = Record { kind: RecordKind::Row, seq: None, text: Vec::new(), hash: None };
        while let Some(row) = rows.next().map_err(broken)? {
            // The numbers of SQLite have a sign; a negative one is nobody's.
            let seq = row.get::<_, i64>(0).map_err(broken)?;
            found.seq = Some(u64::try_from(seq).unwrap_or(u64::MAX));
            fill(&mut found, row, 1).map_err(broken)?;
            take(&found)?;
        }
        Ok(())
    }
}

impl Journal {
    /// None if there is none, as of every segment that is finished.
    fn open(segment: &Path) -> Result<Option<Self>, ReadError> {
        let path = journal_of(segment);
        match private().read(true).open(&path) {
            Ok(file) => Ok(Some(Self { path, file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ReadError::File { path, error }),
        }
    }

    /// Its rows behind the one with this number, which is the last in the database. What follows the last whole line
    /// was promised to nobody.
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

/// Whether a line is what a write left that was cut short: not a whole record whose end was changed.
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
    /// Those that were made after the row that comes next.
    pub(crate) fn after_row(&mut self) -> impl Iterator<Item = Record> {
        self.rows += 1;
        let rows = self.rows;
        iter::from_fn(move || self.waiting.pop_if(|(covered, _)| *covered <= rows).map(|(_, record)| record))
    }

    /// Those that stand behind the last row.
    pub(crate) fn left(self) -> impl Iterator<Item = Record> {
        self.waiting.into_iter().rev().map(|(_, record)| record)
    }
}

fn record(
    kind: RecordKind,
    seq: Option<u64>,
    row: &rusqlite::Row<'_>,
    text: usize,
) -> Result<Record, rusqlite::Error> {
    let mut record = Record { kind, seq, text: Vec::new(), hash: None };
    fill(&mut record, row, text)?;
    Ok(record)
}

/// Takes text and hash over from two columns that stand side by side.
fn fill(record: &mut Record, row: &rusqlite::Row<'_>, text: usize) -> Result<(), rusqlite::Error> {
    record.text.clear();
    record.text.extend_from_slice(row.get_ref(text)?.as_bytes()?);
    record.hash = row.get_ref(text + 1)?.as_blob().ok().and_then(|bytes| bytes.try_into().ok()).map(Hash);
    Ok(())
}

/// How the line of each kind of record begins, goes on behind the hash, and ends.
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

/// What a line is, its hash if that is one, and its text.
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
/// When it cannot be read or a line is no record, or when `take` fails.
pub fn read_export(
    path: &Path,
    mut take: impl FnMut(&Record) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let file = File::open(path).map_err(|error| ReadError::File { path: path.to_owned(), error })?;
    for_each_line(file, path, |number, line| take(&read_line(line).ok_or(ReadError::Line { line: number })?))
}

/// Shows each line with its number, from 1, and the character that ends it. One that has no such character is the last:
/// what comes behind it later, while somebody writes, is the rest of it and no line.
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

/// What the file beside the segments says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointFile {
    /// The checkpoints, in the order they were made.
    pub checkpoints: Vec<Checkpoint>,
    /// What retention noted of the segments that it removed.
    pub removed: Vec<Removal>,
    /// The numbers of lines that are neither.
    pub unknown: Vec<usize>,
}

/// Reads the file that checkpoints are appended to; one that is not there is empty.
///
/// # Errors
/// When it is there and cannot be read.
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

    /// A file that grows while it is read: each part comes when the one before was read to its end.
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

    /// AUD-3: whoever reads a journal while a line is being written has the lines before it, and not the rest of that
    /// one as another.
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

    /// AUD-3: a segment without a journal is finished; one whose journal cannot be opened is not read as if it were.
    #[test]
    fn a_journal_that_cannot_be_opened_is_not_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let segment = folder.path().join("a.sqlite");
        assert!(Journal::open(&segment).unwrap().is_none());
        std::os::unix::fs::symlink(folder.path(), journal_of(&segment)).unwrap();
        let error = Journal::open(&segment).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("a.rows"), "{error}");
    }
}
