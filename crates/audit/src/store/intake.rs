//! Brings the rows of a journal into the store, a part at a time.
//!
//! Nobody but the keeper does this, and no call waits for it: whoever holds the store locked, or reads it for long, delays
//! only that.
//!
//! What must stay true: rows go from the journal into the store, each once; a checkpoint goes there only behind all the rows
//! that it covers; a journal goes only when all of it is stored.

use std::path::{Path, PathBuf};

use super::StoreError;
use super::backend::{Appender, NewRow, Store};
use super::journal::{self, Backlog, Journal};
use crate::Checkpoint;
use crate::records::{RecordKind, number_of, split_line};

/// A journal of which so much is in the store is begun anew.
const LONG_JOURNAL: u64 = 1 << 20;

/// A segment in its store, and what of its journal is not there yet.
pub(crate) struct Intake {
    appender: Box<dyn Appender>,
    /// The file of the journal.
    journal: PathBuf,
    /// None where there is no journal.
    backlog: Option<Backlog>,
    /// Checkpoints that wait for the rows that they cover.
    unstated: Vec<Checkpoint>,
}

impl Intake {
    /// Of a segment that was just begun.
    pub(crate) fn new(appender: Box<dyn Appender>, folder: &Path, segment: &str) -> Self {
        let journal = journal::path_of(folder, segment);
        Self { appender, journal, backlog: None, unstated: Vec::new() }
    }

    /// Of a segment that a process left when it was killed.
    pub(crate) fn reopen(store: &dyn Store, folder: &Path, segment: &str) -> Result<Self, StoreError> {
        let journal = journal::path_of(folder, segment);
        let backlog = Backlog::left(&journal).map_err(|error| unreadable(&journal, &error))?;
        Ok(Self { appender: store.reopen(segment)?, journal, backlog, unstated: Vec::new() })
    }

    /// Begins a journal for the rows that follow; everything of the one before must be stored.
    pub(crate) fn begin_journal(&mut self) -> Result<Journal, StoreError> {
        let begun = Journal::begin(&self.journal).map_err(|error| StoreError::beside(&self.journal, error));
        let (journal, backlog) = begun?;
        self.backlog = Some(backlog);
        Ok(journal)
    }

    /// Brings a part of the journal in; says whether there was any.
    pub(crate) fn take_in(&mut self) -> Result<bool, StoreError> {
        let Some(backlog) = &mut self.backlog else { return Ok(false) };
        let lines = backlog.next().map_err(|error| unreadable(&self.journal, &error))?;
        if lines.is_empty() {
            return Ok(false);
        }
        let (rows, length) = new_rows(&lines, self.appender.last());
        if length == 0 {
            let what = "a line is no row: it was changed".to_owned();
            return Err(StoreError::Damaged { place: self.journal.display().to_string(), what });
        }
        self.appender.append(&rows)?;
        backlog.advance(length);
        Ok(true)
    }

    /// Has a checkpoint stored when all the rows are that it covers. They come in the order they were made.
    pub(crate) fn add(&mut self, checkpoint: Checkpoint) {
        self.unstated.push(checkpoint);
    }

    /// Stores the checkpoints that have all their rows, and returns them.
    pub(crate) fn state(&mut self) -> Result<Vec<Checkpoint>, StoreError> {
        let count = self.appender.count();
        let due = self.unstated.iter().take_while(|checkpoint| checkpoint.count <= count).count();
        if due > 0 {
            self.appender.state(&self.unstated[..due])?;
        }
        Ok(self.unstated.drain(..due).collect())
    }

    /// Closes a segment whose last checkpoint has sealed it; the journal goes.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        self.appender.seal()?;
        journal::remove(&self.journal).map_err(|error| StoreError::beside(&self.journal, error))
    }

    /// Gives up a segment that never got a row.
    pub(crate) fn discard(self) {
        let _ = journal::remove(&self.journal);
        self.appender.discard();
    }

    /// Waits for other programs from now on instead of coming back later.
    pub(crate) fn be_patient(&mut self) {
        self.appender.be_patient();
    }

    /// Whether the journal has rows that are not stored, or a checkpoint waits.
    pub(crate) fn is_behind(&self) -> bool {
        !self.unstated.is_empty() || self.backlog.as_ref().is_some_and(|backlog| !backlog.is_empty())
    }

    /// Whether the journal is all stored and long enough to be begun anew.
    pub(crate) fn wants_journal(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| backlog.is_empty() && backlog.taken() >= LONG_JOURNAL)
    }
}

/// The rows in these lines behind the last one that is stored, and how long the lines are that were looked at. A line that
/// is no row ends them.
fn new_rows(lines: &[u8], mut last: u64) -> (Vec<NewRow<'_>>, usize) {
    let (mut rows, mut length) = (Vec::new(), 0);
    // Every row passes here: looking at one byte after the other was 4 % of what a recorded call costs.
    for end in memchr::memchr_iter(b'\n', lines) {
        let line = &lines[length..=end];
        let Some(row) = row_in(line) else { break };
        length += line.len();
        // A journal outlives the batch that brought it in.
        if row.seq > last {
            last = row.seq;
            rows.push(row);
        }
    }
    (rows, length)
}

fn row_in(line: &[u8]) -> Option<NewRow<'_>> {
    let (RecordKind::Row, Some(head), text) = split_line(line)? else { return None };
    // What is stored as text must be text.
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

    /// AUD-2: rows that are stored already are passed over with their lines, and a line that is no row ends what is taken.
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
        assert!(error.contains("a.0001.rows") && error.contains("a line is no row"), "{error}");
    }
}
