//! Brings the rows of a journal into the store, a part at a time.
//!
//! Only the keeper does this, and no call waits for it: a program that locks the store, or reads it for long, delays only
//! the keeper.
//!
//! What must stay true: rows go from the journal into the store, each once; a checkpoint goes there only after all rows that
//! it covers; a journal is removed only when all of it is stored.

use std::path::{Path, PathBuf};

use super::StoreError;
use super::backend::{Appender, NewRow, Store};
use super::journal::{self, Backlog, Journal};
use crate::Checkpoint;
use crate::records::{RecordKind, number_of, split_line};

/// A journal is replaced once this much of it is in the store.
const LONG_JOURNAL: u64 = 1 << 20;

/// A segment in its store, and the part of its journal that is not there yet.
pub(crate) struct Intake {
    appender: Box<dyn Appender>,
    /// The file of the journal.
    journal: PathBuf,
    /// `None` without a journal.
    backlog: Option<Backlog>,
    /// Checkpoints that wait for the rows that they cover.
    unstated: Vec<Checkpoint>,
}

impl Intake {
    /// For a segment that was just begun.
    pub(crate) fn new(appender: Box<dyn Appender>, folder: &Path, segment: &str) -> Self {
        let journal = journal::path_of(folder, segment);
        Self { appender, journal, backlog: None, unstated: Vec::new() }
    }

    /// For a segment that a killed process left.
    pub(crate) fn reopen(store: &dyn Store, folder: &Path, segment: &str) -> Result<Self, StoreError> {
        let journal = journal::path_of(folder, segment);
        let backlog = Backlog::left(&journal).map_err(|error| unreadable(&journal, &error))?;
        Ok(Self { appender: store.reopen(segment)?, journal, backlog, unstated: Vec::new() })
    }

    /// Begins a journal for the next rows; all of the previous journal must be stored.
    pub(crate) fn begin_journal(&mut self) -> Result<Journal, StoreError> {
        let begun = Journal::begin(&self.journal).map_err(|error| StoreError::beside(&self.journal, error));
        let (journal, backlog) = begun?;
        self.backlog = Some(backlog);
        Ok(journal)
    }

    /// Stores a part of the journal; returns whether there was any.
    pub(crate) fn take_in(&mut self) -> Result<bool, StoreError> {
        let Some(backlog) = &mut self.backlog else { return Ok(false) };
        let lines = backlog.next().map_err(|error| unreadable(&self.journal, &error))?;
        if lines.is_empty() {
            return Ok(false);
        }
        let (rows, length) = new_rows(&lines, self.appender.last());
        if length == 0 {
            let what = "a line is not a row: it was changed".to_owned();
            return Err(StoreError::Damaged { place: self.journal.display().to_string(), what });
        }
        self.appender.append(&rows)?;
        backlog.advance(length);
        Ok(true)
    }

    /// Queues a checkpoint, to be stored once all rows that it covers are. Checkpoints arrive in the order they were made.
    pub(crate) fn add(&mut self, checkpoint: Checkpoint) {
        self.unstated.push(checkpoint);
    }

    /// Stores the checkpoints whose rows are all stored, and returns them.
    pub(crate) fn state(&mut self) -> Result<Vec<Checkpoint>, StoreError> {
        let count = self.appender.count();
        let due = self.unstated.iter().take_while(|checkpoint| checkpoint.count <= count).count();
        if due > 0 {
            self.appender.state(&self.unstated[..due])?;
        }
        Ok(self.unstated.drain(..due).collect())
    }

    /// Closes a segment whose last checkpoint has sealed it, and removes its journal.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        self.appender.seal()?;
        journal::remove(&self.journal).map_err(|error| StoreError::beside(&self.journal, error))
    }

    /// Discards a segment that never got a row.
    pub(crate) fn discard(self) {
        let _ = journal::remove(&self.journal);
        self.appender.discard();
    }

    /// From now on waits for other programs, instead of coming back later.
    pub(crate) fn wait_for_locks(&mut self) {
        self.appender.wait_for_locks();
    }

    /// Whether the journal has rows that are not stored, or a checkpoint waits.
    pub(crate) fn is_behind(&self) -> bool {
        !self.unstated.is_empty() || self.backlog.as_ref().is_some_and(|backlog| !backlog.is_empty())
    }

    /// Whether the journal is stored completely and is long enough to be replaced.
    pub(crate) fn wants_journal(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| backlog.is_empty() && backlog.taken() >= LONG_JOURNAL)
    }
}

/// The rows in these lines after the last stored one, and the length of the lines that were read. A malformed line ends
/// both.
fn new_rows(lines: &[u8], mut last: u64) -> (Vec<NewRow<'_>>, usize) {
    let (mut rows, mut length) = (Vec::new(), 0);
    // Every row passes here: searching byte by byte took 4 % of the cost of a recorded call.
    for end in memchr::memchr_iter(b'\n', lines) {
        let line = &lines[length..=end];
        let Some(row) = row_in(line) else { break };
        length += line.len();
        // The journal still has lines that are already stored.
        if row.seq > last {
            last = row.seq;
            rows.push(row);
        }
    }
    (rows, length)
}

fn row_in(line: &[u8]) -> Option<NewRow<'_>> {
    let (RecordKind::Row, Some(head), text) = split_line(line)? else { return None };
    // The store holds text, so the bytes must be UTF-8.
    Some(NewRow { seq: number_of(text)?, text: str::from_utf8(text).ok()?, head })
}

fn unreadable(journal: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Damaged { place: journal.display().to_string(), what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::push_row;
    use crate::{Hash, MemoryStore};

    /// AUD-2: the lines of stored rows are skipped, and a malformed line ends the batch.
    #[test]
    fn only_new_rows_are_taken_from_the_journal() {
        let mut lines = Vec::new();
        for seq in 1..=3 {
            push_row(&mut lines, &Hash::default(), format!(r#"{{"seq":{seq}}}"#).as_bytes());
        }
        let whole = lines.len();
        lines.extend_from_slice(b"no row\n");
        for (last, numbers) in [(0, vec![1, 2, 3]), (1, vec![2, 3]), (2, vec![3]), (3, vec![])] {
            let (rows, length) = new_rows(&lines, last);
            assert_eq!(
                (rows.iter().map(|row| row.seq).collect::<Vec<_>>(), length),
                (numbers, whole),
                "{last}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let appender = MemoryStore::default().prepare("a.0001").unwrap().begin("{}", Hash::default());
        let mut intake = Intake::new(appender.unwrap(), folder.path(), "a.0001");
        intake.begin_journal().unwrap().append(&lines).unwrap();
        assert!(intake.take_in().unwrap());
        assert_eq!((intake.appender.last(), intake.appender.count()), (3, 3));
        let error = intake.take_in().unwrap_err().to_string();
        assert!(error.contains("a.0001.rows") && error.contains("a line is not a row"), "{error}");
    }
}
