//! The store that `serve` keeps its record in: a folder of segments, each a SQLite file and, while it grows, a
//! journal of its newest rows.
//!
//! A process instance writes segments of its own, named by its id, so several gateways can share a folder. A
//! call waits until its enter row is in the journal (see `line`); everything that may take long — the database,
//! sealing, retention, what another process left unfinished — is done by one thread, the keeper.
//!
//! What must stay true: an enter that returned is in the file whatever kills the process; a row is never
//! changed or removed once it is written, except with its whole segment by retention.

mod commit_queue;
mod database;
mod files;
mod journal;
mod keeper;
mod recover;
mod retention;
mod segment;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bridgehead_wire::Redactor;
use parking_lot::Mutex;
use tracing::{error, warn};

use self::commit_queue::{Counter, Entering, Waiting};
use self::database::Database;
pub(crate) use self::database::{Access, connect};
pub(crate) use self::files::private;
pub(crate) use self::journal::path_of as journal_of;
pub(crate) use self::recover::segment_files;
#[cfg(test)]
pub(crate) use self::segment::FORMAT;
pub use self::segment::Header;
pub(crate) use self::segment::{KNOWN_FORMATS, segment_name};
use self::segment::{OpenCalls, Segment, Written};
use crate::row::Keeping;
use crate::{
    AuditError, AuditSink, Checkpoint, Clock, Enter, EnterFuture, Exit, Payloads, Signer, SystemClock, Ticket,
};

/// The file in the folder that every checkpoint is appended to.
pub const CHECKPOINT_FILE: &str = "checkpoints.jsonl";
/// How long a row waits for the checkpoint that covers it, at most, where nothing else is said.
pub const CHECKPOINT_AFTER: Duration = Duration::from_secs(60);
/// How the file ends whose lock says that an instance lives.
const LOCK: &str = "lock";

/// What happens to a call whose enter row cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// It is not made.
    #[default]
    Refuse,
    /// It is made without a record, which is counted.
    Continue,
}

/// Is told of every checkpoint, from the keeper's thread.
pub type OnCheckpoint = Box<dyn Fn(&Checkpoint) + Send + Sync>;

/// How a store is kept.
pub struct StoreOptions {
    /// Where the segments are; made if it is not there.
    pub folder: PathBuf,
    /// What is kept of arguments and results.
    pub payloads: Payloads,
    /// What hides secrets in them.
    pub redactor: Redactor,
    /// What happens when a row cannot be written.
    pub on_failure: OnFailure,
    /// Signs checkpoints.
    pub signer: Option<Signer>,
    /// Where checkpoints are appended; [`CHECKPOINT_FILE`] in the folder by default.
    pub checkpoint_file: Option<PathBuf>,
    /// Is told of every checkpoint.
    pub on_checkpoint: Option<OnCheckpoint>,
    /// After how many rows a checkpoint is made.
    pub checkpoint_rows: u64,
    /// How long a row may wait for the checkpoint that covers it.
    pub checkpoint_after: Duration,
    /// At which size a segment is sealed and another begun.
    pub segment_bytes: u64,
    /// How long a segment may grow before it is sealed.
    pub segment_age: Duration,
    /// How long sealed segments are kept; for ever by default.
    pub keep_for: Option<Duration>,
    /// How much all segments may take before the oldest sealed ones go; any amount by default.
    pub keep_bytes: Option<u64>,
    /// How long a locked file or a disk that does not answer is waited for.
    pub patience: Duration,
    /// What tells the time.
    pub clock: Arc<dyn Clock>,
}

impl StoreOptions {
    /// The defaults, with the segments in `folder`.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            payloads: Payloads::default(),
            redactor: Redactor::default(),
            on_failure: OnFailure::default(),
            signer: None,
            checkpoint_file: None,
            on_checkpoint: None,
            checkpoint_rows: 1024,
            checkpoint_after: CHECKPOINT_AFTER,
            segment_bytes: 64 << 20,
            segment_age: Duration::from_secs(24 * 60 * 60),
            keep_for: None,
            keep_bytes: None,
            patience: Duration::from_secs(5),
            clock: Arc::new(SystemClock::default()),
        }
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.checkpoint_file.clone().unwrap_or_else(|| self.folder.join(CHECKPOINT_FILE))
    }
}

/// Why a store or a segment cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The folder cannot be written to.
    #[error(
        "the audit folder {} cannot be used: {error}; make it writable, choose another with `audit.folder`, or \
         turn the record off with `audit.store = \"none\"`",
        path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Others could change what is in the folder.
    #[error(
        "the audit folder {} is not safe: {what}; or choose another with `audit.folder`",
        path.display()
    )]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// Who could, and what prevents it.
        what: String,
    },
    /// The database refuses.
    #[error("the audit segment {} cannot be used: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says, or what is missing.
        what: String,
    },
    /// A newer program wrote it.
    #[error("the audit segment {} has schema version {version}, which this program does not know; use a newer one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: usize,
    },
}

impl StoreError {
    pub(crate) fn database(path: &Path, error: &rusqlite::Error) -> Self {
        Self::Damaged { path: path.to_owned(), what: error.to_string() }
    }
}

/// Keeps the events of calls in SQLite files.
pub struct SqliteSink {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// What calls and the keeper share.
pub(crate) struct Shared {
    counter: Counter,
    /// Locked by whoever has set `busy` in the line, and by the keeper for a glance where nobody has: nobody waits for it.
    writer: Mutex<Writer>,
    keeping: Keeping,
    options: StoreOptions,
    instance: String,
    /// Calls that were made without a record.
    unrecorded: AtomicU64,
    /// Rows that no checkpoint covers yet.
    uncovered: AtomicU64,
    /// How much was written, ever.
    written: AtomicU64,
    /// The segment has reached its size.
    full: AtomicBool,
    /// The last write failed.
    failing: AtomicBool,
}

/// Where rows are written.
struct Writer {
    /// None once the store is closed.
    segment: Option<Segment>,
    open: OpenCalls,
    /// Checkpoints that the keeper has not taken yet.
    fresh: Vec<Checkpoint>,
    /// Held for as long as the instance lives.
    _lock: File,
}

impl SqliteSink {
    /// Opens a store: begins a segment and starts the keeper.
    ///
    /// # Errors
    /// When the folder cannot be written to, or others can.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let (shared, database) = Shared::begin(options)?;
        let shared = Arc::new(shared);
        let thread = std::thread::Builder::new().name("audit".to_owned()).stack_size(512 * 1024);
        let keeper = {
            let shared = Arc::clone(&shared);
            thread
                .spawn(move || keeper::run(&shared, database))
                .map_err(|error| StoreError::Folder { path: PathBuf::new(), error })?
        };
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// The id of this process instance, which names its segments.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.shared.instance
    }

    /// How many calls were made without a record, because `on_failure` says so.
    #[must_use]
    pub fn unrecorded_calls(&self) -> u64 {
        self.shared.unrecorded.load(Ordering::Relaxed)
    }

    /// Writes what waits, marks calls that are still open as interrupted, and seals the segment. Blocks until
    /// that is done; a second time it does nothing.
    pub fn close(&self) {
        let Some(keeper) = self.keeper.lock().take() else { return };
        self.shared.counter.line.lock().closing = true;
        self.shared.counter.bell.notify_one();
        if keeper.join().is_err() {
            error!("the audit keeper panicked; the segment is not sealed and is finished at the next start");
        }
    }
}

impl Drop for SqliteSink {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for SqliteSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SqliteSink")
            .field("folder", &self.shared.options.folder)
            .field("instance", &self.shared.instance)
            .finish_non_exhaustive()
    }
}

impl AuditSink for SqliteSink {
    fn enter(&self, event: &Enter) -> EnterFuture {
        Box::pin(Entering::new(&self.shared, event))
    }

    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.shared.counter.exit(&self.shared, ticket, event)
    }

    fn instance(&self) -> Option<&str> {
        Some(&self.shared.instance)
    }
}

impl Shared {
    /// Begins a segment, which nobody keeps yet.
    fn begin(mut options: StoreOptions) -> Result<(Self, Database), StoreError> {
        options.folder = files::folder(&options.folder)?;
        let instance = uuid::Uuid::now_v7().hyphenated().to_string();
        let lock = files::lock(&options.folder, &instance)
            .map_err(|error| StoreError::Folder { path: options.folder.clone(), error })?;
        let begun = Segment::first(&options.folder, &instance, options.clock.wall());
        let (segment, database) = begun.inspect_err(|_| {
            recover::remove_new(&options.folder, &instance);
            let _ = std::fs::remove_file(lock_path(&options.folder, &instance));
        })?;
        let writer =
            Writer { segment: Some(segment), open: OpenCalls::default(), fresh: Vec::new(), _lock: lock };
        let shared = Self {
            counter: Counter::default(),
            writer: Mutex::new(writer),
            keeping: Keeping { payloads: options.payloads, redactor: options.redactor.clone() },
            options,
            instance,
            unrecorded: AtomicU64::new(0),
            uncovered: AtomicU64::new(0),
            written: AtomicU64::new(0),
            full: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        };
        Ok((shared, database))
    }

    /// Writes rows, and says where and how many calls are under way now; only for whoever has set `busy`.
    fn append(&self, rows: &mut [Waiting]) -> io::Result<(Written, usize)> {
        let mut writer = self.writer.lock();
        let Writer { segment, open, fresh, .. } = &mut *writer;
        let Some(segment) = segment else { return Err(io::Error::other("the store is closed")) };
        let before = segment.bytes();
        let written = segment.append(rows, open)?;
        self.failing.store(false, Ordering::Relaxed);
        self.written.fetch_add(segment.bytes() - before, Ordering::Relaxed);
        if segment.uncovered() >= self.options.checkpoint_rows {
            fresh.push(segment.checkpoint(false, self.options.clock.wall(), self.options.signer.as_ref()));
        }
        self.uncovered.store(segment.uncovered(), Ordering::Relaxed);
        if segment.bytes() >= self.options.segment_bytes {
            self.full.store(true, Ordering::Relaxed);
        }
        Ok((written, open.count()))
    }

    /// A failed write in words, for whoever has to repair it.
    fn explain(&self, error: &io::Error) -> String {
        let folder = self.options.folder.display();
        let text = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("the disk is full; make room for the audit folder {folder}")
            }
            _ => format!("{error} (audit folder {folder})"),
        };
        // Once, not for every call until it is repaired.
        if !self.failing.swap(true, Ordering::Relaxed) {
            warn!(reason = text, "the audit record cannot be written");
        }
        text
    }

    fn unrecorded(&self, error: &AuditError) {
        if self.unrecorded.fetch_add(1, Ordering::Relaxed) == 0 {
            warn!(%error, "calls are made without a record, as `audit.on_failure` says");
        }
    }
}

fn lock_path(folder: &Path, instance: &str) -> PathBuf {
    folder.join(format!("{instance}.{LOCK}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Call, CorrelationId, Outcome, RecordKind, Verifier, read_segment};

    pub(super) fn event() -> Enter {
        event_with(Bytes::from(format!("\"{}\"", "x".repeat(5_000))))
    }

    pub(super) fn event_with(arguments: Bytes) -> Enter {
        let call = Call {
            tool: "files__read".into(),
            server: None,
            principal: "ada".into(),
            correlation: CorrelationId::mint(),
            era: bridgehead_wire::Era::Modern,
            transport: "http",
            about: crate::About::default(),
        };
        Enter::new(call, arguments, true, SystemClock::default().now())
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn fill(sink: &SqliteSink, full: bool) {
        sink.shared.writer.lock().segment.as_mut().unwrap().fill_disk(full);
    }

    fn exit(enter: &Enter) -> Exit {
        let body = Bytes::from(format!("\"{}\"", "y".repeat(5_000)));
        Exit::new(enter.call(), enter.moment(), enter.moment(), Outcome::Result { body, is_error: false })
    }

    /// AUD-2, AUD-3: rows that share a statement, and those left over, are in the file in their order and verify.
    #[test]
    fn rows_of_one_commit_are_written_whatever_their_number() {
        for many in [1, 15, 16, 17, 32, 40] {
            let folder = tempfile::tempdir().unwrap();
            let now = SystemClock::default().wall();
            let (mut segment, mut database) = Segment::first(folder.path(), "instance", now).unwrap();
            let mut rows: Vec<_> = (0..many).map(|_| Keeping::default().enter(&event())).collect();
            segment.append(&mut rows, &mut OpenCalls::default()).unwrap();
            while database.take_in().unwrap() {}
            database.add(segment.checkpoint(true, now, None));
            assert_eq!(database.state().unwrap().len(), 1);
            database.finish().unwrap();
            let (mut numbers, mut verifier) = (Vec::new(), Verifier::default());
            read_segment(&segment_files(folder.path()).remove(0), |record| {
                verifier.take(record);
                if record.kind == RecordKind::Row {
                    numbers.push(serde_json::from_slice::<crate::Row>(&record.text).unwrap().seq);
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(verifier.finish().1, [], "{many} rows");
            assert_eq!(numbers, (1..=many).collect::<Vec<u64>>());
        }
    }

    /// PIPE-4, PIPE-6: on a full disk calls are refused, exits wait; with room again both are written and the
    /// chain has no gap.
    #[test]
    fn a_full_disk_refuses_and_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let sink = SqliteSink::open(StoreOptions::new(folder.path())).unwrap();
        let first = event();
        let ticket = block_on(sink.enter(&first)).unwrap();
        fill(&sink, true);
        sink.exit(ticket, exit(&first)).unwrap();
        let error = block_on(sink.enter(&event())).unwrap_err().to_string();
        assert!(error.contains("the disk is full"), "{error}");
        fill(&sink, false);
        block_on(sink.enter(&event())).unwrap();
        sink.close();
        let file = segment_files(folder.path()).remove(0);
        let (mut kinds, mut verifier) = (Vec::new(), Verifier::default());
        read_segment(&file, |record| {
            verifier.take(record);
            if record.kind == RecordKind::Row {
                kinds.push(serde_json::from_slice::<crate::Row>(&record.text).unwrap());
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(verifier.finish().1, []);
        let pairs: Vec<_> = kinds.iter().map(|row| (row.seq, row.enter, row.outcome.as_deref())).collect();
        assert_eq!(
            pairs,
            [
                (1, None, None),
                (2, Some(1), Some("result")),
                (3, None, None),
                (4, Some(3), Some("interrupted"))
            ]
        );
    }

    /// PIPE-4: where the operator wants it so, calls go on without a record, which is counted.
    #[test]
    fn a_full_disk_is_counted_where_calls_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(folder.path());
        options.on_failure = OnFailure::Continue;
        let sink = SqliteSink::open(options).unwrap();
        fill(&sink, true);
        block_on(sink.enter(&event())).unwrap();
        assert_eq!(sink.unrecorded_calls(), 1);
        fill(&sink, false);
        block_on(sink.enter(&event())).unwrap();
        assert_eq!(sink.unrecorded_calls(), 1);
    }

    /// AUD-2: the next start also finishes what a process left between two steps: files that never got their place, and a
    /// segment that is sealed and still has its journal.
    #[test]
    fn what_was_left_between_two_steps_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let sink = SqliteSink::open(StoreOptions::new(folder.path())).unwrap();
        block_on(sink.enter(&event())).unwrap();
        sink.close();
        let file = segment_files(folder.path()).remove(0);
        let next = folder.path().join(format!("{}.0002.sqlite", sink.instance()));
        drop(database::Blank::create(&next).unwrap());
        std::fs::write(next.with_extension("rows.new"), "").unwrap();
        std::fs::write(journal_of(&file), "").unwrap();
        std::fs::write(lock_path(folder.path(), sink.instance()), "").unwrap();
        SqliteSink::open(StoreOptions::new(folder.path())).unwrap().close();
        assert_eq!(segment_files(folder.path()), std::slice::from_ref(&file));
        assert!(recover::is_sealed(&file).unwrap() && !journal_of(&file).exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "it and the checkpoints");
    }

    /// AUD-2: a store that closes while its file is locked is finished at the next start.
    #[test]
    fn a_segment_that_cannot_be_sealed_is_finished_later() {
        let folder = tempfile::tempdir().unwrap();
        let sink = SqliteSink::open(StoreOptions::new(folder.path())).unwrap();
        block_on(sink.enter(&event())).unwrap();
        let file = segment_files(folder.path()).remove(0);
        let other = rusqlite::Connection::open(&file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        sink.close();
        let lock = lock_path(folder.path(), sink.instance());
        assert!(lock.exists() && !recover::is_sealed(&file).unwrap());
        drop((sink, other));
        SqliteSink::open(StoreOptions::new(folder.path())).unwrap().close();
        assert!(!lock.exists() && recover::is_sealed(&file).unwrap());
    }

    /// What waits is bounded: a store that cannot write refuses exits in the end instead of growing.
    #[test]
    fn the_line_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let sink = SqliteSink::open(StoreOptions::new(folder.path())).unwrap();
        fill(&sink, true);
        let enter = event();
        let exit = || Exit::new(enter.call(), enter.moment(), enter.moment(), Outcome::Cancelled);
        let taken = (0..2 * commit_queue::MOST_ROWS).take_while(|_| sink.exit(None, exit()).is_ok()).count();
        assert!((commit_queue::MOST_ROWS..2 * commit_queue::MOST_ROWS).contains(&taken), "{taken}");
        assert!(matches!(block_on(sink.enter(&enter)), Err(AuditError::Full | AuditError::Failed(_))));
        fill(&sink, false);
    }

    /// PIPE-4: calls that wait behind a write that does not come back are refused, also where nothing else calls the keeper;
    /// the exit that waits stays.
    #[test]
    fn a_disk_that_does_not_answer_refuses() {
        for exits in [0, 1] {
            let folder = tempfile::tempdir().unwrap();
            let mut options = StoreOptions::new(folder.path());
            options.patience = Duration::from_millis(100);
            let sink = SqliteSink::open(options).unwrap();
            {
                let mut line = sink.shared.counter.line.lock();
                line.busy = true;
                line.writing = Some(std::time::Instant::now());
            }
            let enter = event();
            (0..exits).for_each(|_| sink.exit(None, exit(&enter)).unwrap());
            let waited =
                block_on(async { tokio::time::timeout(Duration::from_secs(60), sink.enter(&enter)).await });
            // Before anything can fail: the store cannot close while somebody writes.
            let waiting = {
                let mut line = sink.shared.counter.line.lock();
                line.busy = false;
                line.writing = None;
                line.waiting.len()
            };
            let error = waited.unwrap().unwrap_err().to_string();
            assert!(error.contains("does not answer"), "{error}");
            assert_eq!(waiting, exits);
        }
    }

    /// AUD-2: what was written, by which a rush is told, is the rows and each of them once.
    #[test]
    fn what_was_written_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let sink = SqliteSink::open(StoreOptions::new(folder.path())).unwrap();
        for _ in 0..3 {
            block_on(sink.enter(&event())).unwrap();
        }
        let bytes = sink.shared.writer.lock().segment.as_ref().unwrap().bytes();
        assert!(bytes > 3 * 5_000);
        assert_eq!(sink.shared.written.load(Ordering::Relaxed), bytes);
    }
}
