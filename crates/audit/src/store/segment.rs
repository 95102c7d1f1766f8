//! A growing segment: a header, and rows that are only ever appended.
//!
//! The holder of a [`Segment`] is its only writer. Appending is one write to the journal without a sync: when it returns
//! the kernel has the rows, and killing the process cannot undo that. The keeper brings them from there into the store.
//!
//! What must stay true: a failed append leaves the segment, its head and its tree as they were.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::StoreError;
use super::backend::{Blank, Store};
use super::intake::Intake;
use super::journal::Journal;
use crate::merkle::Frontier;
use crate::records::{ReadError, push_row};
use crate::row::{Draft, RowKind, time_text};
use crate::{Checkpoint, Hash, Signer, Ticket};

/// The number of the row format. A verifier that does not know it must not guess.
pub(crate) const FORMAT: u32 = 2;
/// The formats that this program reads.
pub(crate) const KNOWN_FORMATS: RangeInclusive<u32> = 1..=FORMAT;
/// The buffer that is kept for the lines of a commit; a larger one is freed.
const USUAL_COMMIT: usize = 256 << 10;

/// The description of a segment, written once at its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The row format.
    pub format: u32,
    /// The segment's name: its instance and its index.
    pub segment: String,
    /// The process instance that writes it.
    pub instance: String,
    /// Which segment of the instance it is, from 1.
    pub index: u32,
    /// The number of its first row.
    pub first: u64,
    /// The head after the last row of the segment before it.
    pub previous: Option<Hash>,
    /// When it was begun, in UTC.
    pub started: String,
    /// The version of the program.
    pub version: String,
}

/// A segment that can grow.
pub(crate) struct Segment {
    journal: Journal,
    header: Header,
    /// The number that the next row gets.
    next: u64,
    head: Hash,
    tree: Frontier,
    /// `tree` before the append in progress.
    before: Frontier,
    /// The count at the last checkpoint.
    checkpointed: u64,
    /// The size of its rows.
    bytes: u64,
    /// The lines of the append in progress.
    lines: Vec<u8>,
}

/// Calls that have entered and not exited: the numbers of their enter rows, each with the index of its segment. Nothing
/// that a caller chose, such as its correlation id, is used here.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(BTreeMap<u64, u32>);

enum Change {
    Opened(Ticket),
    Closed(Ticket),
}

/// Where rows were written: they are consecutive.
pub(crate) struct Written {
    /// The index of the segment.
    pub(crate) segment: u32,
    /// The number of the first.
    pub(crate) first: u64,
}

impl OpenCalls {
    pub(super) fn open(&mut self, ticket: Ticket) {
        self.0.insert(ticket.number(), ticket.segment());
    }

    /// Closes a call; returns whether it was open, because a ticket is good for one exit.
    fn close(&mut self, ticket: Ticket) -> bool {
        match self.0.entry(ticket.number()) {
            Entry::Occupied(open) if *open.get() == ticket.segment() => {
                open.remove();
                true
            }
            _ => false,
        }
    }

    fn undo(&mut self, change: &Change) {
        match change {
            Change::Opened(ticket) => drop(self.0.remove(&ticket.number())),
            Change::Closed(ticket) => self.open(*ticket),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The numbers of all of them, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }
}

impl Segment {
    /// Begins the first segment of an instance.
    pub(crate) fn first(
        store: &dyn Store,
        folder: &Path,
        instance: &str,
        now: jiff::Timestamp,
    ) -> Result<(Self, Intake), StoreError> {
        Self::begin(store.prepare(&segment_name(instance, 1))?, folder, instance, 1, 1, None, now)
    }

    /// The name of the segment that follows this one.
    pub(crate) fn next_name(&self) -> String {
        segment_name(&self.header.instance, self.header.index + 1)
    }

    /// Begins the segment that follows this one.
    pub(crate) fn follow(
        &self,
        blank: Box<dyn Blank>,
        folder: &Path,
        now: jiff::Timestamp,
    ) -> Result<(Self, Intake), StoreError> {
        let header = &self.header;
        Self::begin(blank, folder, &header.instance, header.index + 1, self.next, Some(self.head), now)
    }

    fn begin(
        blank: Box<dyn Blank>,
        folder: &Path,
        instance: &str,
        index: u32,
        first: u64,
        previous: Option<Hash>,
        now: jiff::Timestamp,
    ) -> Result<(Self, Intake), StoreError> {
        let header = Header {
            format: FORMAT,
            segment: segment_name(instance, index),
            instance: instance.to_owned(),
            index,
            first,
            previous,
            started: time_text(now),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let text = serde_json::to_string(&header).unwrap_or_default();
        let head = Hash::header(text.as_bytes());
        let mut intake = Intake::new(blank.begin(&text, head)?, folder, &header.segment);
        match Self::before_its_rows(&mut intake, header, head) {
            Ok(segment) => Ok((segment, intake)),
            Err(error) => {
                intake.discard();
                Err(error)
            }
        }
    }

    fn before_its_rows(intake: &mut Intake, header: Header, head: Hash) -> Result<Self, StoreError> {
        Ok(Self {
            journal: intake.begin_journal()?,
            next: header.first,
            header,
            head,
            tree: Frontier::default(),
            before: Frontier::default(),
            checkpointed: 0,
            bytes: 0,
            lines: Vec::new(),
        })
    }

    /// Continues a segment that another process left, after its last row. Verifies only what is needed to continue:
    /// tampering must not be able to prevent the next start.
    pub(crate) fn resume(store: &dyn Store, name: &str, intake: &mut Intake) -> Result<Self, ReadError> {
        while intake.take_in()? {}
        let damaged = |what: String| StoreError::Damaged { place: store.place(name), what };
        let stored = store.repair(name)?;
        let headers = stored.frame()?.headers;
        let found = headers.first().and_then(|found| Some((&found.text, found.hash?)));
        let (text, head) = found.ok_or_else(|| damaged("it has no header".to_owned()))?;
        let header = serde_json::from_slice(text).map_err(|error| damaged(format!("its header: {error}")))?;
        let mut segment = Self::before_its_rows(intake, header, head)?;
        stored.rows(i64::MIN..=i64::MAX, &mut |row| {
            let (head, next) = row
                .hash
                .zip(row.seq.and_then(|seq| seq.checked_add(1)))
                .ok_or_else(|| damaged(format!("row {} has no head or no number", segment.next)))?;
            segment.tree.push(Hash::leaf(&row.text));
            (segment.head, segment.next) = (head, next);
            Ok(())
        })?;
        Ok(segment)
    }

    /// Writes rows in one write, all of them or none; returns their place.
    pub(crate) fn append(
        &mut self,
        rows: &mut [impl AsMut<Draft>],
        open: &mut OpenCalls,
    ) -> Result<Written, io::Error> {
        let (next, head) = (self.next, self.head);
        self.before.copy_from(&self.tree);
        let mut changes = Vec::with_capacity(rows.len());
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        let mut bytes = 0;
        for draft in rows.iter_mut().map(AsMut::as_mut) {
            let enter = match draft.kind {
                RowKind::Enter => {
                    let ticket = Ticket::new(self.header.index, self.next);
                    open.open(ticket);
                    changes.push(Change::Opened(ticket));
                    None
                }
                RowKind::Exit => {
                    let enter = draft.ticket.filter(|ticket| open.close(*ticket));
                    changes.extend(enter.map(Change::Closed));
                    enter
                }
            };
            let row = draft.numbered(self.header.format, self.next, enter);
            let leaf = row.leaf();
            self.head = Hash::link(&self.head, &leaf);
            self.tree.push(leaf);
            self.next += 1;
            push_row(&mut lines, &self.head, row.text());
            bytes += row.text().len() as u64;
        }
        let written = self.journal.append(&lines);
        if written.is_ok() {
            self.bytes += bytes;
        } else {
            (self.next, self.head) = (next, head);
            std::mem::swap(&mut self.tree, &mut self.before);
            changes.iter().rev().for_each(|change| open.undo(change));
        }
        if lines.capacity() <= USUAL_COMMIT {
            self.lines = lines;
        }
        written.map(|()| Written { segment: self.header.index, first: next })
    }

    /// Makes a checkpoint of the segment as it is now. A sealed segment takes no more rows.
    pub(crate) fn checkpoint(
        &mut self,
        sealed: bool,
        now: jiff::Timestamp,
        signer: Option<&Signer>,
    ) -> Checkpoint {
        let mut checkpoint = Checkpoint {
            segment: self.header.segment.clone(),
            count: self.tree.count(),
            root: self.tree.root(),
            head: self.head,
            time: time_text(now),
            sealed,
            key: None,
            signature: None,
        };
        if let Some(signer) = signer {
            signer.sign(&mut checkpoint);
        }
        self.checkpointed = self.tree.count();
        checkpoint
    }

    /// Switches to a new journal; all of the old one must be in the store.
    pub(crate) fn renew_journal(&mut self, intake: &mut Intake) -> Result<(), StoreError> {
        self.journal = intake.begin_journal()?;
        Ok(())
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// How many rows it has.
    pub(crate) fn count(&self) -> u64 {
        self.tree.count()
    }

    /// How many rows no checkpoint covers.
    pub(crate) fn uncovered(&self) -> u64 {
        self.tree.count() - self.checkpointed
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the journal refuse writes, like a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self, full: bool) {
        self.journal.full = full;
    }
}

/// The name of a segment.
pub(crate) fn segment_name(instance: &str, index: u32) -> String {
    format!("{instance}.{index:04}")
}

/// A segment's index in its instance, from its name.
pub(super) fn index(name: &str) -> Option<u32> {
    name.rsplit_once('.')?.1.parse().ok()
}

/// The segments of one instance, the oldest first.
pub(crate) fn segments_of(store: &dyn Store, instance: &str) -> Result<Vec<String>, StoreError> {
    let mut segments = store.segments()?;
    segments.retain(|name| name.strip_prefix(instance).is_some_and(|rest| rest.starts_with('.')));
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_closes_its_own_call_once() {
        let mut calls = OpenCalls::default();
        for number in [12, 5, 7] {
            calls.open(Ticket::new(1, number));
        }
        assert!(!calls.close(Ticket::new(2, 7)), "a ticket of another segment");
        assert!(!calls.close(Ticket::new(1, 6)));
        assert!(calls.close(Ticket::new(1, 7)));
        assert!(!calls.close(Ticket::new(1, 7)));
        assert_eq!(calls.numbers(), [5, 12]);
    }
}
