//! What a store of segments must do, whatever it is made of.
//!
//! A segment has a header, rows and checkpoints. One process writes it, by one [`Appender`]; anybody may read it, as it was in
//! one moment, by a [`Snapshot`]. Commit queue, journal, hash chain and keeper stand above and are the same for every store:
//! no call ever waits for one. A store that refuses only delays the keeper, whose rows wait in the journal.
//!
//! What must stay true: a segment is there with its header or not at all; a batch is stored whole or not at all; what is
//! stored never changes and goes only with its whole segment.

use std::fmt;
use std::ops::RangeInclusive;

use super::StoreError;
use crate::records::{ReadError, Record};
use crate::{Checkpoint, Hash};

/// Where segments are kept, each under its name. Names of an instance begin with its id and sort by age.
pub trait Store: fmt::Debug + Send + Sync {
    /// The names of all segments, the oldest first.
    ///
    /// # Errors
    /// When the store does not answer.
    fn segments(&self) -> Result<Vec<String>, StoreError>;

    /// Makes ready what a segment needs, so that beginning it is short: calls wait for that. Nobody sees it before.
    ///
    /// # Errors
    /// When nothing can be stored.
    fn prepare(&self, segment: &str) -> Result<Box<dyn Blank>, StoreError>;

    /// Goes on with a segment that a killed process left.
    ///
    /// # Errors
    /// When it is not there, damaged, or of a newer program.
    fn reopen(&self, segment: &str) -> Result<Box<dyn Appender>, StoreError>;

    /// Reads a segment, also one that is being written.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    fn read(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError>;

    /// Reads a segment of a killed process, and may write to bring in order what the kill interrupted.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    fn repair(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError> {
        self.read(segment)
    }

    /// Removes a segment, or what a kill left of one that was being removed.
    ///
    /// # Errors
    /// When it is not there or stays.
    fn remove(&self, segment: &str) -> Result<(), StoreError>;

    /// How much a segment takes; 0 where that is not known.
    fn bytes(&self, segment: &str) -> u64;

    /// The segments that are gone while a kill left something of them, which [`Store::remove`] takes away.
    // Not mutated: an empty list is what it gives.
    #[cfg_attr(false, mutants::skip)]
    fn remnants(&self) -> Vec<String> {
        Vec::new()
    }

    /// Removes what a killed instance made ready and did not begin.
    fn clear(&self, instance: &str) {
        let _ = instance;
    }

    /// Where a segment is, for whoever has to repair it.
    fn place(&self, segment: &str) -> String {
        segment.to_owned()
    }
}

/// A segment that is made ready and has no header yet.
pub trait Blank {
    /// Gives it its header, the hash of that, and its name.
    ///
    /// # Errors
    /// When it cannot be stored; then there is no such segment.
    fn begin(self: Box<Self>, header: &str, head: Hash) -> Result<Box<dyn Appender>, StoreError>;
}

/// The one that writes a segment.
pub trait Appender: Send {
    /// The number of the last row that is stored, or 0. After an error it says what became of the batch.
    fn last(&self) -> u64;

    /// How many rows are stored.
    fn count(&self) -> u64;

    /// Stores rows behind the last one, all of them or none.
    ///
    /// # Errors
    /// When the store does not take them now, or has one of them.
    fn append(&mut self, rows: &[NewRow<'_>]) -> Result<(), StoreError>;

    /// Stores checkpoints whose rows are stored, all of them or none.
    ///
    /// # Errors
    /// When the store does not take them now.
    fn state(&mut self, checkpoints: &[Checkpoint]) -> Result<(), StoreError>;

    /// Closes a segment whose last checkpoint seals it: nothing follows, and what is stored is on the disk.
    ///
    /// # Errors
    /// When that cannot be said; the next start tries again.
    fn seal(self: Box<Self>) -> Result<(), StoreError>;

    /// Gives up a segment that never got a row.
    fn discard(self: Box<Self>);

    /// Waits a moment for others from now on, instead of failing at once.
    fn be_patient(&mut self) {}
}

/// A row on its way into a store.
#[derive(Clone, Copy, Debug)]
pub struct NewRow<'a> {
    /// Its number.
    pub seq: u64,
    /// What is hashed.
    pub text: &'a str,
    /// The head behind it.
    pub head: Hash,
}

/// A segment as it was in one moment, however long the reading takes. Reading judges nothing: what was changed is shown as it is.
pub trait Snapshot {
    /// All but the rows.
    ///
    /// # Errors
    /// When it cannot be read.
    fn frame(&self) -> Result<Frame, ReadError>;

    /// The checkpoint that was stored last.
    ///
    /// # Errors
    /// When it cannot be read.
    fn last_checkpoint(&self) -> Result<Option<Record>, ReadError>;

    /// Shows the rows with these numbers, in their order. A row with a negative number, which only tampering makes, is shown
    /// with the largest number there is.
    ///
    /// # Errors
    /// When they cannot be read, or when `take` fails.
    fn rows(&self, numbers: RangeInclusive<i64>, take: &mut TakeRecord<'_>) -> Result<(), ReadError>;
}

/// Whoever is shown records, one by one.
pub type TakeRecord<'a> = dyn FnMut(&Record) -> Result<(), ReadError> + 'a;

/// All of a segment but its rows.
#[derive(Debug, Default)]
pub struct Frame {
    /// There should be one.
    pub headers: Vec<Record>,
    /// By the number of rows that they cover, which is their `seq`.
    pub checkpoints: Vec<Record>,
    /// The numbers of the first row and the last.
    pub bounds: Option<RangeInclusive<i64>>,
}
