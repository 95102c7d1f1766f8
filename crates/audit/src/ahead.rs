//! Verifies segments and exports on all processors: several threads read and hash parts, and one thread judges the parts in
//! their order.
//!
//! Parts that were read ahead wait in bounded queues. Judging needs the order, and is the cheap part.

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::available_parallelism;

use parking_lot::Mutex;

use crate::archive::{OpenedSegment, StoredSegment};
use crate::records::{Checkpoints, Journal, ReadError, read_export};
use crate::store::{Frame, TakeRecord};
use crate::verify::{Seen, Verifier};

/// How many rows make one part of a segment, if its numbers have no gaps.
const PART: u64 = 8192;
/// A segment never has more parts than this, whatever its numbers say.
const MOST_PARTS: u64 = 4096;
/// How many records a reading thread hands over at once.
const BATCH: usize = 512;
/// How many batches of a part may wait to be judged.
const WAITING: usize = 16;

/// A source of records to verify.
#[derive(Clone, Debug)]
pub enum RecordSource {
    /// A segment, in any store.
    Segment(StoredSegment),
    /// The file of an export.
    Export(PathBuf),
}

impl RecordSource {
    /// Where it is, for messages.
    fn place(&self) -> String {
        match self {
            Self::Segment(segment) => segment.place(),
            Self::Export(file) => file.display().to_string(),
        }
    }
}

/// A file is an export (`*.jsonl`) or a segment (`*.sqlite`).
impl From<&PathBuf> for RecordSource {
    fn from(file: &PathBuf) -> Self {
        if file.extension().is_some_and(|ending| ending == "jsonl") {
            Self::Export(file.clone())
        } else {
            Self::Segment(file.into())
        }
    }
}

impl From<StoredSegment> for RecordSource {
    fn from(segment: StoredSegment) -> Self {
        Self::Segment(segment)
    }
}

/// The unit of reading.
enum Part {
    /// A source begins; its headers and checkpoints are already read.
    Begin(Result<Begun, ReadError>),
    /// The rows of a segment with these numbers.
    Rows(RangeInclusive<i64>),
    /// The rows of its journal after the one with this number.
    Journal(Journal, Option<i64>),
    /// A whole export.
    Export(PathBuf),
}

/// The beginning of a source.
struct Begun {
    frame: Frame,
    /// Whether it is a segment without a journal: nobody writes it any more.
    closed: bool,
}

/// The unit of judging, in the order of the parts.
enum NextPart {
    Begin(Result<Begun, ReadError>),
    Records(Receiver<Found>),
}

/// What a reading thread hands over.
type Found = Result<Vec<Seen>, ReadError>;

impl Verifier {
    /// Checks segments and exports, in this order. A source that cannot be read is a problem like any other.
    pub fn read(&mut self, sources: impl IntoIterator<Item: Into<RecordSource>>) {
        let sources: Vec<RecordSource> = sources.into_iter().map(Into::into).collect();
        let threads = available_parallelism().map_or(1, NonZero::get);
        let parts =
            Mutex::new(sources.iter().flat_map(|source| parts(source).map(move |part| (source, part))));
        let parts = &parts;
        let (turns, due) = sync_channel(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let turns = turns.clone();
                scope.spawn(move || read_parts(parts, &turns));
            }
            drop(turns);
            self.judge_turns(due);
        });
    }

    fn judge_turns(&mut self, due: Receiver<(&RecordSource, NextPart)>) {
        // The checkpoints of the current source; `None` once it proved unreadable.
        let mut checkpoints: Option<Checkpoints> = None;
        for (source, turn) in due {
            let outcome = match turn {
                NextPart::Begin(begun) => {
                    self.judge_rest(checkpoints.take());
                    begun.map(|Begun { frame, closed }| {
                        frame.headers.iter().for_each(|header| self.take(header));
                        if closed {
                            self.closed();
                        }
                        checkpoints = Some(Checkpoints::new(frame.checkpoints));
                    })
                }
                NextPart::Records(found) => {
                    checkpoints.as_mut().map_or(Ok(()), |checkpoints| self.judge_part(found, checkpoints))
                }
            };
            if let Err(error) = outcome {
                checkpoints = None;
                self.report(&source.place(), error.to_string());
            }
        }
        self.judge_rest(checkpoints);
    }

    fn judge_part(&mut self, found: Receiver<Found>, checkpoints: &mut Checkpoints) -> Result<(), ReadError> {
        for batch in found {
            for seen in batch? {
                self.judge(&seen);
                if let Seen::Row(_) = seen {
                    checkpoints.after_row().for_each(|checkpoint| self.take(&checkpoint));
                }
            }
        }
        Ok(())
    }

    fn judge_rest(&mut self, checkpoints: Option<Checkpoints>) {
        let left = checkpoints.into_iter().flat_map(Checkpoints::left);
        left.for_each(|checkpoint| self.take(&checkpoint));
    }
}

/// The parts of a source, in their order.
fn parts(source: &RecordSource) -> impl Iterator<Item = Part> {
    let segment = match source {
        RecordSource::Export(file) => {
            let begun = Begun { frame: Frame::default(), closed: false };
            return vec![Part::Begin(Ok(begun)), Part::Export(file.clone())].into_iter();
        }
        RecordSource::Segment(segment) => segment,
    };
    let (frame, journal) =
        match segment.open().and_then(|segment| Ok((segment.stored.frame()?, segment.journal))) {
            Ok((frame, journal)) => (Ok(frame), journal),
            Err(error) => (Err(error), None),
        };
    let bounds = frame.as_ref().ok().and_then(|frame| frame.bounds.clone());
    let last = bounds.as_ref().map(|bounds| *bounds.end());
    let rows = bounds.into_iter().flat_map(split).map(Part::Rows);
    let newest = journal.map(|journal| Part::Journal(journal, last));
    let closed = newest.is_none();
    let begun = frame.map(|frame| Begun { frame, closed });
    [Part::Begin(begun)].into_iter().chain(rows).chain(newest).collect::<Vec<_>>().into_iter()
}

/// Splits numbers into ranges of about the same length.
fn split(numbers: RangeInclusive<i64>) -> impl Iterator<Item = RangeInclusive<i64>> {
    let (first, last) = numbers.into_inner();
    let parts = (last.abs_diff(first) / PART).min(MOST_PARTS) + 1;
    let step = last.abs_diff(first) / parts + 1;
    (0..parts).filter_map(move |part| {
        let start = first.checked_add_unsigned(part * step)?;
        (start <= last).then(|| start..=last.min(start.saturating_add_unsigned(step - 1)))
    })
}

/// Reads part after part, until none is left or the judging thread is gone.
fn read_parts<'a>(
    parts: &Mutex<impl Iterator<Item = (&'a RecordSource, Part)>>,
    turns: &SyncSender<(&'a RecordSource, NextPart)>,
) {
    let mut segment: Option<(&RecordSource, OpenedSegment)> = None;
    loop {
        let (found, records) = sync_channel(WAITING);
        // One lock covers both steps, so turns are sent in the order of the parts.
        let (source, part) = {
            let mut parts = parts.lock();
            let Some((source, part)) = parts.next() else { return };
            let (turn, part) = match part {
                Part::Begin(frame) => (NextPart::Begin(frame), None),
                Part::Rows(_) | Part::Journal(..) | Part::Export(_) => {
                    (NextPart::Records(records), Some(part))
                }
            };
            if turns.send((source, turn)).is_err() {
                return;
            }
            (source, part)
        };
        let outcome = match part {
            Some(Part::Rows(numbers)) => rows(&mut segment, source, numbers, &found),
            Some(Part::Journal(journal, last)) => batched(&found, |take| journal.rows(last, take)),
            Some(Part::Export(file)) => batched(&found, |take| read_export(&file, take)),
            Some(Part::Begin(_)) | None => Ok(()),
        };
        if let Err(error) = outcome {
            // The receiver may be gone: after an error, the rest of a source is not judged.
            let _ = found.send(Err(error));
        }
    }
}

/// Reads rows of a segment, and keeps it open for its next part.
fn rows<'a>(
    open: &mut Option<(&'a RecordSource, OpenedSegment)>,
    source: &'a RecordSource,
    numbers: RangeInclusive<i64>,
    found: &SyncSender<Found>,
) -> Result<(), ReadError> {
    let RecordSource::Segment(segment) = source else { return Ok(()) };
    let opened = match open.take() {
        Some((one, opened)) if std::ptr::eq(one, source) => opened,
        _ => segment.open()?,
    };
    let (_, opened) = open.insert((source, opened));
    batched(found, |take| opened.stored.rows(numbers, take))
}

/// Sends records in batches.
fn batched(
    found: &SyncSender<Found>,
    read: impl FnOnce(&mut TakeRecord<'_>) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut batch = Vec::with_capacity(BATCH);
    let outcome = read(&mut |record| {
        batch.push(Seen::of(record));
        if batch.len() == BATCH {
            let _ = found.send(Ok(std::mem::replace(&mut batch, Vec::with_capacity(BATCH))));
        }
        Ok(())
    });
    let _ = found.send(Ok(batch));
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number is in exactly one range, also where the numbers are absurd.
    #[test]
    fn ranges_cover_all_numbers_once() {
        for (first, last) in
            [(1, 1), (1, 8192), (1, 8193), (5, 1_000_000), (-3, 70_000), (i64::MIN, i64::MAX), (1, i64::MAX)]
        {
            let ranges: Vec<_> = split(first..=last).collect();
            assert_eq!((*ranges[0].start(), *ranges[ranges.len() - 1].end()), (first, last));
            assert!(ranges.windows(2).all(|pair| pair[0].end() + 1 == *pair[1].start()), "{first}..={last}");
            assert!(ranges.len() as u64 <= MOST_PARTS + 1);
        }
        assert_eq!(split(1..=20_000).count(), 3);
    }
}
