//! The stores that the suite runs on: each of ours, inside a wrapper that can refuse rows or show a changed row.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bridgehead_audit::{
    Appender, Archive, Blank, Checkpoint, Expected, Frame, Hash, MemoryStore, NewRow, Problem, ReadError,
    Record, RecordKind, Row, Snapshot, SqliteFiles, Store, StoreError, StoreOptions, StoreSink,
    StoredSegment, TakeRecord, Verified, Verifier, read_checkpoints, read_segment, write_line,
};

/// How the wrapped store misbehaves.
#[derive(Debug, Default)]
pub(crate) struct Mood {
    /// It refuses everything new.
    pub(crate) refuses: AtomicBool,
    /// The row with this number is shown changed.
    pub(crate) changed: AtomicU64,
}

/// A store from outside the crate that wraps another one.
#[derive(Debug)]
struct Unruly {
    inner: Arc<dyn Store>,
    mood: Arc<Mood>,
}

struct UnrulyBlank(Box<dyn Blank>, Arc<Mood>);
struct UnrulyAppender(Box<dyn Appender>, Arc<Mood>);
struct UnrulySnapshot(Box<dyn Snapshot>, Arc<Mood>);

impl Mood {
    fn check(&self) -> Result<(), StoreError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(StoreError::Damaged { place: "unruly".to_owned(), what: "it refuses".to_owned() });
        }
        Ok(())
    }
}

impl Store for Unruly {
    fn segments(&self) -> Result<Vec<String>, StoreError> {
        self.inner.segments()
    }

    fn prepare(&self, segment: &str) -> Result<Box<dyn Blank>, StoreError> {
        Ok(Box::new(UnrulyBlank(self.inner.prepare(segment)?, Arc::clone(&self.mood))))
    }

    fn reopen(&self, segment: &str) -> Result<Box<dyn Appender>, StoreError> {
        Ok(Box::new(UnrulyAppender(self.inner.reopen(segment)?, Arc::clone(&self.mood))))
    }

    fn read(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError> {
        Ok(Box::new(UnrulySnapshot(self.inner.read(segment)?, Arc::clone(&self.mood))))
    }

    fn repair(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError> {
        self.inner.repair(segment)
    }

    fn remove(&self, segment: &str) -> Result<(), StoreError> {
        self.inner.remove(segment)
    }

    fn bytes(&self, segment: &str) -> u64 {
        self.inner.bytes(segment)
    }

    fn remnants(&self) -> Vec<String> {
        self.inner.remnants()
    }

    fn clear(&self, instance: &str) {
        self.inner.clear(instance);
    }

    fn place(&self, segment: &str) -> String {
        self.inner.place(segment)
    }
}

impl Blank for UnrulyBlank {
    fn begin(self: Box<Self>, header: &str, head: Hash) -> Result<Box<dyn Appender>, StoreError> {
        let Self(inner, mood) = *self;
        Ok(Box::new(UnrulyAppender(inner.begin(header, head)?, mood)))
    }
}

impl Appender for UnrulyAppender {
    fn last(&self) -> u64 {
        self.0.last()
    }

    fn count(&self) -> u64 {
        self.0.count()
    }

    fn append(&mut self, rows: &[NewRow<'_>]) -> Result<(), StoreError> {
        self.1.check()?;
        self.0.append(rows)
    }

    fn state(&mut self, checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
        self.1.check()?;
        self.0.state(checkpoints)
    }

    fn seal(self: Box<Self>) -> Result<(), StoreError> {
        self.1.check()?;
        self.0.seal()
    }

    fn discard(self: Box<Self>) {
        self.0.discard();
    }

    fn wait_for_locks(&mut self) {
        self.0.wait_for_locks();
    }
}

impl Snapshot for UnrulySnapshot {
    fn frame(&self) -> Result<Frame, ReadError> {
        self.0.frame()
    }

    fn last_checkpoint(&self) -> Result<Option<Record>, ReadError> {
        self.0.last_checkpoint()
    }

    fn rows(&self, numbers: RangeInclusive<i64>, take: &mut TakeRecord<'_>) -> Result<(), ReadError> {
        let changed = self.1.changed.load(Ordering::Relaxed);
        self.0.rows(numbers, &mut |row| {
            let mut row = row.clone();
            if row.seq == Some(changed) {
                row.text = String::from_utf8(row.text).unwrap().replace("ada", "eve").into_bytes();
            }
            take(&row)
        })
    }
}

/// A store with its folder.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) mood: Arc<Mood>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Memory,
}

/// Runs a test on each of our stores.
#[expect(clippy::print_stdout, reason = "says which one a test failed on")]
pub(crate) fn for_each_store(test: impl Fn(&World)) {
    for kind in [Kind::Sqlite, Kind::Memory] {
        println!("on {kind:?}");
        test(&World::new(kind));
    }
}

impl World {
    pub(crate) fn new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> = match kind {
            Kind::Sqlite => Arc::new(SqliteFiles::new(folder.path())),
            Kind::Memory => Arc::new(MemoryStore::default()),
        };
        let mood = Arc::<Mood>::default();
        Self { folder, store: Arc::new(Unruly { inner, mood: Arc::clone(&mood) }), mood, kind }
    }

    /// An empty one of the same kind.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.kind)
    }

    /// An empty one of the other kind.
    pub(crate) fn opposite(&self) -> Self {
        Self::new(if self.kind == Kind::Sqlite { Kind::Memory } else { Kind::Sqlite })
    }

    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions { store: Some(Arc::clone(&self.store)), ..StoreOptions::new(self.folder.path()) }
    }

    pub(crate) fn open(&self, change: impl FnOnce(&mut StoreOptions)) -> StoreSink {
        let mut options = self.options();
        change(&mut options);
        StoreSink::open(options).unwrap()
    }

    /// The next start, which finishes what it finds.
    pub(crate) fn start_and_stop(&self) {
        self.open(|_| {}).close();
    }

    pub(crate) fn refuse(&self, refuses: bool) {
        self.mood.refuses.store(refuses, Ordering::Relaxed);
    }

    pub(crate) fn archive(&self) -> Archive {
        Archive::new(Arc::clone(&self.store), self.folder.path())
    }

    pub(crate) fn segments(&self) -> Vec<StoredSegment> {
        self.archive().segments().unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.store.segments().unwrap()
    }

    /// All rows, including those in journals.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for segment in self.segments() {
            let take = |record: &Record| {
                if record.kind == RecordKind::Row {
                    rows.push(serde_json::from_slice(&record.text).unwrap());
                }
                Ok(())
            };
            read_segment(&segment, take).unwrap();
        }
        rows
    }

    /// How many rows are in the store itself.
    pub(crate) fn stored(&self) -> usize {
        let mut count = 0;
        for name in self.names() {
            let stored = self.store.read(&name).unwrap();
            stored
                .rows(i64::MIN..=i64::MAX, &mut |_| {
                    count += 1;
                    Ok(())
                })
                .unwrap();
        }
        count
    }

    pub(crate) fn verify(&self) -> (Vec<Verified>, Vec<Problem>) {
        let mut verifier = Verifier::default();
        verifier.read(self.segments());
        let (verified, problems, _) = verifier.finish();
        (verified, problems)
    }

    /// Verifies with the file of checkpoints, like `audit verify`.
    pub(crate) fn verify_all(&self) -> Vec<Problem> {
        let mut verifier = Verifier::default();
        let stated = read_checkpoints(&self.checkpoint_file()).unwrap();
        stated.checkpoints.iter().for_each(|checkpoint| verifier.expect(Expected::from(checkpoint)));
        stated.removed.into_iter().for_each(|removal| verifier.explain(removal));
        verifier.read(self.segments());
        verifier.finish_folder().1
    }

    pub(crate) fn checkpoint_file(&self) -> PathBuf {
        self.folder.path().join(bridgehead_audit::CHECKPOINT_FILE)
    }

    pub(crate) fn export(&self) -> String {
        let mut lines = Vec::new();
        for segment in self.segments() {
            read_segment(&segment, |record| Ok(write_line(record, &mut lines)?)).unwrap();
        }
        String::from_utf8(lines).unwrap()
    }

    /// Whether there is a file with this ending in the folder.
    pub(crate) fn has(&self, ending: &str) -> bool {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries.into_iter().any(|entry| entry.unwrap().path().extension().is_some_and(|it| it == ending))
    }

    /// Copies everything as a killed process would leave it now. The journals come first, because rows move from them into
    /// the store and never back.
    pub(crate) fn copy_to(&self, other: &Self) {
        for ending in ["rows", "lock"] {
            for entry in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
                if entry.path().extension().is_some_and(|it| it == ending) {
                    std::fs::copy(entry.path(), other.folder.path().join(entry.file_name())).unwrap();
                }
            }
        }
        for name in self.names() {
            copy(&*self.store, &*other.store, &name, other.folder.path());
        }
    }
}

fn copy(from: &dyn Store, to: &dyn Store, name: &str, journals: &Path) {
    let stored = from.read(name).unwrap();
    let frame = stored.frame().unwrap();
    let text = |record: &Record| String::from_utf8(record.text.clone()).unwrap();
    let header = &frame.headers[0];
    let mut appender = to.prepare(name).unwrap().begin(&text(header), header.hash.unwrap()).unwrap();
    stored
        .rows(i64::MIN..=i64::MAX, &mut |row| {
            let row = (row.seq.unwrap(), text(row), row.hash.unwrap());
            appender.append(&[NewRow { seq: row.0, text: &row.1, head: row.2 }]).unwrap();
            Ok(())
        })
        .unwrap();
    let checkpoints: Vec<Checkpoint> =
        frame.checkpoints.iter().map(|it| serde_json::from_slice(&it.text).unwrap()).collect();
    appender.state(&checkpoints).unwrap();
    if !journals.join(format!("{name}.rows")).exists() {
        appender.seal().unwrap();
    }
}
