//! Reads a record: its segments from the store, and the newest rows of growing segments from their journals in the folder.
//!
//! All readers use it, with any store: `audit` on the command line, the verifier, proofs.
//!
//! What must stay true: a journal is opened before its segment is read. Rows move from the journal into the store, so the
//! store is read at a later moment and no row is missed between the two.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::records::{Checkpoints, Journal, ReadError, Record, number_of};
use crate::store::{Header, Snapshot, SqliteFiles, Store, StoreError, TakeRecord, journal_of, segments_of};

/// A store of segments, and the folder with the journals of growing segments.
#[derive(Clone, Debug)]
pub struct Archive {
    store: Arc<dyn Store>,
    folder: PathBuf,
}

/// One segment of an archive.
#[derive(Clone, Debug)]
pub struct StoredSegment {
    archive: Archive,
    name: String,
}

impl Archive {
    /// The usual archive: everything is in `folder`, the segments as SQLite files.
    #[must_use]
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        Self::new(Arc::new(SqliteFiles::new(&folder)), folder)
    }

    /// The segments of `store`, with their journals in `folder`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, folder: impl Into<PathBuf>) -> Self {
        Self { store, folder: folder.into() }
    }

    /// Where the journals are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All segments, the oldest first.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn segments(&self) -> Result<Vec<StoredSegment>, StoreError> {
        Ok(self.named(self.store.segments()?))
    }

    fn named(&self, names: Vec<String>) -> Vec<StoredSegment> {
        names.into_iter().map(|name| StoredSegment { archive: self.clone(), name }).collect()
    }

    /// Follows an instance: passes its rows after number `after` to `take`, in order and each once. Returns the number of
    /// the last row, which is where to continue. Rows that are no longer kept are skipped.
    ///
    /// # Errors
    /// When a segment cannot be read, or when `take` fails.
    pub fn follow(
        &self,
        instance: &str,
        after: u64,
        mut take: impl FnMut(&Record) -> Result<(), ReadError>,
    ) -> Result<u64, ReadError> {
        let segments = self.named(segments_of(&*self.store, instance)?);
        // The next row is usually in the newest segment.
        let mut from = segments.len().saturating_sub(1);
        while from > 0 && segments[from].open()?.first()? > after.saturating_add(1) {
            from -= 1;
        }
        let mut last = after;
        for segment in &segments[from..] {
            segment.open()?.rows_behind(last, &mut |row| {
                take(row)?;
                last = row.seq.or_else(|| number_of(&row.text)).unwrap_or(last);
                Ok(())
            })?;
        }
        Ok(last)
    }
}

impl StoredSegment {
    /// Its name: the instance that wrote it, and the segment's index.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The instance that wrote it.
    #[must_use]
    pub fn instance(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// Where it is, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        self.archive.store.place(&self.name)
    }

    /// Passes its rows that were written at `since` or later to `take`, in order; older ones may come too. A segment that was
    /// sealed before is not read.
    ///
    /// # Errors
    /// When it cannot be read, or when `take` fails.
    pub fn rows_since(
        &self,
        since: jiff::Timestamp,
        mut take: impl FnMut(&Record) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let opened = self.open()?;
        let last = opened.stored.last_checkpoint()?;
        let last = last.and_then(|last| serde_json::from_slice::<Checkpoint>(&last.text).ok());
        let sealed =
            last.filter(|last| last.sealed).and_then(|last| last.time.parse::<jiff::Timestamp>().ok());
        if sealed.is_some_and(|sealed| sealed < since) {
            return Ok(());
        }
        opened.rows_behind(0, &mut take)
    }

    pub(crate) fn open(&self) -> Result<OpenedSegment, ReadError> {
        let journal = Journal::open(journal_of(&self.archive.folder, &self.name))?;
        Ok(OpenedSegment { stored: self.archive.store.read(&self.name)?, journal })
    }
}

/// A SQLite file by its path, with the journal beside it.
impl From<&Path> for StoredSegment {
    fn from(file: &Path) -> Self {
        let (store, name) = SqliteFiles::around(file);
        let folder = store.folder().to_owned();
        Self { archive: Archive::new(Arc::new(store), folder), name }
    }
}

impl From<&PathBuf> for StoredSegment {
    fn from(file: &PathBuf) -> Self {
        file.as_path().into()
    }
}

impl From<&StoredSegment> for StoredSegment {
    fn from(segment: &StoredSegment) -> Self {
        segment.clone()
    }
}

/// A segment as it was at one moment.
pub(crate) struct OpenedSegment {
    pub(crate) stored: Box<dyn Snapshot>,
    pub(crate) journal: Option<Journal>,
}

impl OpenedSegment {
    /// The number of its first row, by its header.
    fn first(&self) -> Result<u64, ReadError> {
        let header = |record: &Record| serde_json::from_slice::<Header>(&record.text).ok();
        Ok(self.stored.frame()?.headers.first().and_then(header).map_or(0, |header| header.first))
    }

    /// Its rows after the one with this number.
    fn rows_behind(self, number: u64, take: &mut TakeRecord<'_>) -> Result<(), ReadError> {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        let mut last = number;
        self.stored.rows(number.saturating_add(1)..=i64::MAX, &mut |row| {
            last = row.seq.and_then(|seq| i64::try_from(seq).ok()).unwrap_or(last);
            take(row)
        })?;
        self.journal.map_or(Ok(()), |journal| journal.rows(Some(last), take))
    }
}

/// Reads a segment, also one that is being written. A path names a SQLite file.
///
/// # Errors
/// When it cannot be read, or when `take` fails.
pub fn read_segment(
    segment: impl Into<StoredSegment>,
    mut take: impl FnMut(&Record) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let segment = segment.into().open()?;
    let frame = segment.stored.frame()?;
    frame.headers.iter().try_for_each(&mut take)?;
    let mut checkpoints = Checkpoints::new(frame.checkpoints);
    let mut rows = |row: &Record| {
        take(row)?;
        checkpoints.after_row().try_for_each(|checkpoint| take(&checkpoint))
    };
    segment.stored.rows(i64::MIN..=i64::MAX, &mut rows)?;
    if let Some(journal) = segment.journal {
        journal.rows(frame.bounds.map(|bounds| *bounds.end()), &mut rows)?;
    }
    checkpoints.left().try_for_each(|checkpoint| take(&checkpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GATE-5: a file is a segment by its name, also a copy under another name, with the journal beside it.
    #[test]
    fn a_file_is_a_segment_under_its_name() {
        #[track_caller]
        fn check(file: &str, name: &str, instance: &str, journal: &str) {
            let segment = StoredSegment::from(Path::new(file));
            let beside = journal_of(segment.archive.folder(), segment.name());
            assert_eq!((segment.place().as_str(), segment.name()), (file, name));
            assert_eq!(segment.instance(), instance);
            assert_eq!(beside, Path::new(journal));
        }
        check("/record/a.0001.sqlite", "a.0001", "a", "/record/a.0001.rows");
        check("a.0001.sqlite", "a.0001", "a", "a.0001.rows");
        check("../copy.db", "copy", "copy", "../copy.rows");
        check("/record/copy", "copy", "copy", "/record/copy.rows");
    }
}
