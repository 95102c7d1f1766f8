//! The traits that every store of segments implements.
//!
//! A segment has a header, rows and checkpoints. One process writes it, through one [`Appender`]; any process may read it as
//! it was at one moment, through a [`Snapshot`]. Commit queue, journal, hash chain and keeper sit above the store and are
//! the same for every store. No call ever waits for a store: one that refuses rows only delays the keeper, while the rows
//! wait in the journal.
//!
//! What must stay true: a segment exists with its header or not at all; a batch is stored whole or not at all; stored data
//! never changes and is removed only with its whole segment.

use std::fmt;
use std::ops::RangeInclusive;

use super::StoreError;
use crate::records::{ReadError, Record};
use crate::{Checkpoint, Hash};

/// Keeps segments, each under its name. The names of an instance's segments begin with its id and sort by age.
pub trait Store: fmt::Debug + Send + Sync {
    /// The names of all segments, the oldest first.
    ///
    /// # Errors
    /// When the store does not answer.
    fn segments(&self) -> Result<Vec<String>, StoreError>;

    /// Prepares a new segment, so that beginning it is quick: calls wait for the beginning. The segment stays invisible
    /// until then.
    ///
    /// # Errors
    /// When nothing can be stored.
    fn prepare(&self, segment: &str) -> Result<Box<dyn Blank>, StoreError>;

    /// Continues a segment that a killed process left.
    ///
    /// # Errors
    /// When it is missing, damaged, or written by a newer program.
    fn reopen(&self, segment: &str) -> Result<Box<dyn Appender>, StoreError>;

    /// Reads a segment, also one that is being written.
    ///
    /// # Errors
    /// When it is missing or cannot be read.
    fn read(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError>;

    /// Reads a segment of a killed process, and may write to repair what the kill interrupted.
    ///
    /// # Errors
    /// When it is missing or cannot be read.
    fn repair(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError> {
        self.read(segment)
    }

    /// Removes a segment, or what a kill left of an earlier removal.
    ///
    /// # Errors
    /// When it is missing or cannot be removed.
    fn remove(&self, segment: &str) -> Result<(), StoreError>;

    /// The size of a segment in bytes; 0 if unknown.
    fn bytes(&self, segment: &str) -> u64;

    /// Removed segments of which a kill left something; [`Store::remove`] removes the rest.
    // Not mutated: it already returns an empty list.
    #[cfg_attr(false, mutants::skip)]
    fn remnants(&self) -> Vec<String> {
        Vec::new()
    }

    /// Removes segments that a killed instance prepared and did not begin.
    fn clear(&self, instance: &str) {
        let _ = instance;
    }

    /// Where a segment is, for the operator who has to repair it.
    fn place(&self, segment: &str) -> String {
        segment.to_owned()
    }
}

/// A prepared segment that has no header yet.
pub trait Blank {
    /// Gives it its header, the header's hash, and its name.
    ///
    /// # Errors
    /// When the header cannot be stored; then the segment does not exist.
    fn begin(self: Box<Self>, header: &str, head: Hash) -> Result<Box<dyn Appender>, StoreError>;
}

/// The only writer of a segment.
pub trait Appender: Send {
    /// The number of the last stored row, or 0. After an error it shows whether the batch was stored.
    fn last(&self) -> u64;

    /// How many rows are stored.
    fn count(&self) -> u64;

    /// Stores rows after the last one, all of them or none.
    ///
    /// # Errors
    /// When the store refuses them now, or already has one of them.
    fn append(&mut self, rows: &[NewRow<'_>]) -> Result<(), StoreError>;

    /// Stores checkpoints whose rows are already stored, all of them or none.
    ///
    /// # Errors
    /// When the store refuses them now.
    fn state(&mut self, checkpoints: &[Checkpoint]) -> Result<(), StoreError>;

    /// Closes a segment whose last checkpoint seals it: nothing follows, and all of it is on the disk.
    ///
    /// # Errors
    /// When that is not certain; the next start tries again.
    fn seal(self: Box<Self>) -> Result<(), StoreError>;

    /// Discards a segment that never got a row.
    fn discard(self: Box<Self>);

    /// From now on waits briefly for other programs, instead of failing at once.
    fn wait_for_locks(&mut self) {}
}

/// A row on its way into a store.
#[derive(Clone, Copy, Debug)]
pub struct NewRow<'a> {
    /// Its number.
    pub seq: u64,
    /// The text that is hashed.
    pub text: &'a str,
    /// The head after it.
    pub head: Hash,
}

/// A segment as it was at one moment, no matter how long the reading takes. Reading does not judge: changed records are
/// passed on as they are.
pub trait Snapshot {
    /// Everything but the rows.
    ///
    /// # Errors
    /// When it cannot be read.
    fn frame(&self) -> Result<Frame, ReadError>;

    /// The checkpoint that was stored last.
    ///
    /// # Errors
    /// When it cannot be read.
    fn last_checkpoint(&self) -> Result<Option<Record>, ReadError>;

    /// Passes on the rows with these numbers, in order. A row with a negative number, which only tampering produces, gets
    /// the largest number there is.
    ///
    /// # Errors
    /// When they cannot be read, or when `take` fails.
    fn rows(&self, numbers: RangeInclusive<i64>, take: &mut TakeRecord<'_>) -> Result<(), ReadError>;
}

/// Receives records, one by one.
pub type TakeRecord<'a> = dyn FnMut(&Record) -> Result<(), ReadError> + 'a;

/// Everything in a segment but its rows.
#[derive(Debug, Default)]
pub struct Frame {
    /// An intact segment has exactly one.
    pub headers: Vec<Record>,
    /// In the order of the row counts that they cover, which are their `seq`.
    pub checkpoints: Vec<Record>,
    /// The numbers of the first row and the last.
    pub bounds: Option<RangeInclusive<i64>>,
}
