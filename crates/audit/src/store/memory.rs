//! Segments in memory, for tests and for programs that keep no files: the content is lost when the process
//! ends.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use super::StoreError;
use super::backend::{Appender, Blank, Frame, NewRow, Snapshot, Store, TakeRecord};
use crate::records::{ReadError, Record, RecordKind};
use crate::{Checkpoint, Hash};

/// A store in memory. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<BTreeMap<String, Arc<Mutex<Kept>>>>>);

/// One segment. It only grows, so a snapshot is just its length at that moment.
struct Kept {
    header: Record,
    rows: Vec<Record>,
    checkpoints: Vec<Record>,
}

impl MemoryStore {
    fn kept(&self, segment: &str) -> Result<Arc<Mutex<Kept>>, StoreError> {
        self.0.lock().get(segment).cloned().ok_or_else(|| gone(segment))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.lock().keys()).finish()
    }
}

impl Store for MemoryStore {
    fn segments(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.0.lock().keys().cloned().collect())
    }

    fn prepare(&self, segment: &str) -> Result<Box<dyn Blank>, StoreError> {
        Ok(Box::new(MemoryBlank { store: self.clone(), segment: segment.to_owned() }))
    }

    fn reopen(&self, segment: &str) -> Result<Box<dyn Appender>, StoreError> {
        let kept = self.kept(segment)?;
        Ok(Box::new(MemoryAppender { store: self.clone(), segment: segment.to_owned(), kept }))
    }

    fn read(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError> {
        let kept = self.kept(segment)?;
        let (rows, checkpoints) = {
            let kept = kept.lock();
            (kept.rows.len(), kept.checkpoints.len())
        };
        Ok(Box::new(MemorySnapshot { kept, rows, checkpoints }))
    }

    fn remove(&self, segment: &str) -> Result<(), StoreError> {
        self.0.lock().remove(segment).map(drop).ok_or_else(|| gone(segment))
    }

    fn bytes(&self, segment: &str) -> u64 {
        let Ok(kept) = self.kept(segment) else { return 0 };
        let kept = kept.lock();
        let records = kept.rows.iter().chain(&kept.checkpoints).chain([&kept.header]);
        records.map(|record| (record.text.len() + size_of::<Hash>()) as u64).sum()
    }
}

fn gone(segment: &str) -> StoreError {
    let what = io::Error::from(io::ErrorKind::NotFound).to_string();
    StoreError::Damaged { place: segment.to_owned(), what }
}

struct MemoryBlank {
    store: MemoryStore,
    segment: String,
}

impl Blank for MemoryBlank {
    fn begin(self: Box<Self>, header: &str, head: Hash) -> Result<Box<dyn Appender>, StoreError> {
        let Self { store, segment } = *self;
        let header = record(RecordKind::Header, None, header, head);
        let kept = Arc::new(Mutex::new(Kept { header, rows: Vec::new(), checkpoints: Vec::new() }));
        store.0.lock().insert(segment.clone(), Arc::clone(&kept));
        Ok(Box::new(MemoryAppender { store, segment, kept }))
    }
}

struct MemoryAppender {
    store: MemoryStore,
    segment: String,
    kept: Arc<Mutex<Kept>>,
}

impl Appender for MemoryAppender {
    fn last(&self) -> u64 {
        self.kept.lock().rows.last().and_then(|row| row.seq).unwrap_or_default()
    }

    fn count(&self) -> u64 {
        self.kept.lock().rows.len() as u64
    }

    fn append(&mut self, rows: &[NewRow<'_>]) -> Result<(), StoreError> {
        let mut last = self.last();
        for row in rows {
            if row.seq <= last {
                let what = format!("row {} is already stored", row.seq);
                return Err(StoreError::Damaged { place: self.segment.clone(), what });
            }
            last = row.seq;
        }
        let rows = rows.iter().map(|row| record(RecordKind::Row, Some(row.seq), row.text, row.head));
        self.kept.lock().rows.extend(rows);
        Ok(())
    }

    fn state(&mut self, checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
        let stated = checkpoints.iter().map(|checkpoint| {
            let text = checkpoint.text();
            let digest = Hash::checkpoint(text.as_bytes());
            record(RecordKind::Checkpoint, Some(checkpoint.count), &text, digest)
        });
        self.kept.lock().checkpoints.extend(stated);
        Ok(())
    }

    fn seal(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }

    fn discard(self: Box<Self>) {
        let _ = self.store.remove(&self.segment);
    }
}

struct MemorySnapshot {
    kept: Arc<Mutex<Kept>>,
    rows: usize,
    checkpoints: usize,
}

impl Snapshot for MemorySnapshot {
    fn frame(&self) -> Result<Frame, ReadError> {
        let kept = self.kept.lock();
        let rows = &kept.rows[..self.rows];
        let (first, last) = (rows.first().map(number), rows.last().map(number));
        Ok(Frame {
            headers: vec![kept.header.clone()],
            checkpoints: kept.checkpoints[..self.checkpoints].to_vec(),
            bounds: first.zip(last).map(|(first, last)| first..=last),
        })
    }

    fn last_checkpoint(&self) -> Result<Option<Record>, ReadError> {
        Ok(self.kept.lock().checkpoints[..self.checkpoints].last().cloned())
    }

    fn rows(&self, numbers: RangeInclusive<i64>, take: &mut TakeRecord<'_>) -> Result<(), ReadError> {
        let first = {
            let kept = self.kept.lock();
            kept.rows[..self.rows].partition_point(|row| number(row) < *numbers.start())
        };
        for at in first..self.rows {
            // Locks for each row: a slow receiver must not hold up the writer.
            let row = self.kept.lock().rows[at].clone();
            if number(&row) > *numbers.end() {
                break;
            }
            take(&row)?;
        }
        Ok(())
    }
}

fn number(row: &Record) -> i64 {
    row.seq.and_then(|seq| i64::try_from(seq).ok()).unwrap_or(i64::MAX)
}

fn record(kind: RecordKind, seq: Option<u64>, text: &str, hash: Hash) -> Record {
    Record { kind, seq, text: text.as_bytes().to_vec(), hash: Some(hash) }
}
