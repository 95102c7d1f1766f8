//! The sink that `serve` records calls with: segments in a store ([`backend`]) and, while a segment grows, a journal of its
//! newest rows, which is a file in the folder.
//!
//! A process instance writes its own segments, named by its id, so several gateways can share a store. A call waits until
//! its enter row is in the journal (see `commit_queue`). One thread, the keeper, does everything that may take long: the
//! store, sealing, retention, and finishing what killed processes left.
//!
//! What must stay true: once an enter has returned, its row survives a kill of the process; a written row is never changed,
//! and is removed only with its whole segment, by retention.

mod backend;
mod commit_queue;
mod files;
mod intake;
mod journal;
mod keeper;
mod memory;
mod recover;
mod retention;
mod segment;
mod sqlite;

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

pub use self::backend::{Appender, Blank, Frame, NewRow, Snapshot, Store, TakeRecord};
use self::commit_queue::{Counter, Entering, Waiting};
pub(crate) use self::files::private;
use self::intake::Intake;
pub(crate) use self::journal::path_of as journal_of;
pub use self::memory::MemoryStore;
#[cfg(test)]
pub(crate) use self::segment::FORMAT;
pub use self::segment::Header;
pub(crate) use self::segment::{KNOWN_FORMATS, segment_name, segments_of};
use self::segment::{OpenCalls, Segment, Written};
pub use self::sqlite::{SqliteFiles, segments};
use crate::row::Keeping;
use crate::{
    AuditError, AuditSink, Checkpoint, Clock, Enter, EnterFuture, Exit, Payloads, Signer, SystemClock, Ticket,
};

/// The file in the folder that every checkpoint is appended to.
pub const CHECKPOINT_FILE: &str = "checkpoints.jsonl";
/// By default, the longest that a row waits for the checkpoint that covers it.
pub const CHECKPOINT_AFTER: Duration = Duration::from_secs(60);
/// The extension of the file whose lock shows that an instance is alive.
const LOCK: &str = "lock";

/// What happens to a call whose enter row cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The call is refused.
    #[default]
    Refuse,
    /// The call is made without a record, and counted.
    Continue,
}

/// Receives every checkpoint, on the keeper's thread.
pub type OnCheckpoint = Box<dyn Fn(&Checkpoint) + Send + Sync>;

/// Called with `true` when the store has refused rows for longer than [`StoreOptions::patience`], and with `false` when it
/// accepts them again; on the keeper's thread.
pub type OnLag = Box<dyn Fn(bool) + Send + Sync>;

/// How a store is kept.
pub struct StoreOptions {
    /// The folder of the journals and the file of checkpoints, and of the segments unless `store` is set; created if
    /// missing.
    pub folder: PathBuf,
    /// Where the segments are; SQLite files in the folder by default. All gateways that share a folder must use the same
    /// store.
    pub store: Option<Arc<dyn Store>>,
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
    /// Receives every checkpoint.
    pub on_checkpoint: Option<OnCheckpoint>,
    /// Learns when rows begin to wait in the journal, and when they no longer do.
    pub on_lag: Option<OnLag>,
    /// After how many rows a checkpoint is made.
    pub checkpoint_rows: u64,
    /// How long a row may wait for the checkpoint that covers it.
    pub checkpoint_after: Duration,
    /// The size at which a segment is sealed and another begun.
    pub segment_bytes: u64,
    /// How long a segment may grow before it is sealed.
    pub segment_age: Duration,
    /// How long sealed segments are kept; forever by default.
    pub keep_for: Option<Duration>,
    /// How much all segments may take before the oldest sealed ones are removed; unlimited by default.
    pub keep_bytes: Option<u64>,
    /// How long to wait for a locked file or a disk that does not answer.
    pub patience: Duration,
    /// What tells the time.
    pub clock: Arc<dyn Clock>,
}

impl StoreOptions {
    /// The defaults, with everything in `folder`.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            store: None,
            payloads: Payloads::default(),
            redactor: Redactor::default(),
            on_failure: OnFailure::default(),
            signer: None,
            checkpoint_file: None,
            on_checkpoint: None,
            on_lag: None,
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
        /// Who could change it, and the cure.
        what: String,
    },
    /// The segment is damaged, or the store refuses it.
    #[error("the audit segment {place} cannot be used: {what}")]
    Damaged {
        /// Where the segment is.
        place: String,
        /// What the store says, or what is missing.
        what: String,
    },
    /// A newer program wrote it.
    #[error(
        "the audit segment {place} has schema version {version}, which this program is too old to read; use a newer version"
    )]
    Newer {
        /// Where the segment is.
        place: String,
        /// Its version.
        version: usize,
    },
    /// A system error; the caller names the segment.
    #[error(transparent)]
    System(io::Error),
}

impl StoreError {
    /// The folder of this file cannot be written to.
    fn beside(file: &Path, error: io::Error) -> Self {
        Self::Folder { path: file.parent().unwrap_or(file).to_owned(), error }
    }
}

/// Keeps the events of calls in a store.
pub struct StoreSink {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// What calls and the keeper share.
pub(crate) struct Shared {
    counter: Counter,
    /// Locked by the writer that has set `busy` in the queue, and briefly by the keeper while no writer has: no call ever
    /// waits for this lock.
    writer: Mutex<Writer>,
    keeping: Keeping,
    /// Used only by the keeper: no call waits for it.
    store: Arc<dyn Store>,
    options: StoreOptions,
    instance: String,
    /// Calls that were made without a record.
    unrecorded: AtomicU64,
    /// Rows that no checkpoint covers yet.
    uncovered: AtomicU64,
    /// How many bytes of rows were written since the start.
    written: AtomicU64,
    /// The segment has reached its size.
    full: AtomicBool,
    /// The last write failed.
    failing: AtomicBool,
}

/// Where rows are written.
struct Writer {
    /// `None` once the store is closed.
    segment: Option<Segment>,
    open: OpenCalls,
    /// Checkpoints that the keeper has not taken yet.
    fresh: Vec<Checkpoint>,
    /// Held for as long as the instance lives.
    _lock: File,
}

impl StoreSink {
    /// Opens a store: begins a segment and starts the keeper.
    ///
    /// # Errors
    /// When the folder cannot be written to, or other users can write to it.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let (shared, intake) = Shared::begin(options)?;
        let shared = Arc::new(shared);
        let thread = std::thread::Builder::new().name("audit".to_owned()).stack_size(512 * 1024);
        let keeper = {
            let shared = Arc::clone(&shared);
            thread
                .spawn(move || keeper::run(&shared, intake))
                .map_err(|error| StoreError::Folder { path: PathBuf::new(), error })?
        };
        Ok(Self { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// The id of this process instance, which names its segments.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.shared.instance
    }

    /// How many calls were made without a record because `on_failure` is [`OnFailure::Continue`].
    #[must_use]
    pub fn unrecorded_calls(&self) -> u64 {
        self.shared.unrecorded.load(Ordering::Relaxed)
    }

    /// Writes the waiting rows, marks open calls as interrupted, and seals the segment. Blocks until that is done; a second
    /// call does nothing.
    pub fn close(&self) {
        let Some(keeper) = self.keeper.lock().take() else { return };
        self.shared.counter.line.lock().closing = true;
        self.shared.counter.bell.notify_one();
        if keeper.join().is_err() {
            error!("the audit keeper panicked; the segment is not sealed and is finished at the next start");
        }
    }
}

impl Drop for StoreSink {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for StoreSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StoreSink")
            .field("folder", &self.shared.options.folder)
            .field("instance", &self.shared.instance)
            .finish_non_exhaustive()
    }
}

impl AuditSink for StoreSink {
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
    /// Begins a segment, without a keeper yet.
    fn begin(mut options: StoreOptions) -> Result<(Self, Intake), StoreError> {
        options.folder = files::folder(&options.folder)?;
        let usual = || Arc::new(SqliteFiles::new(&options.folder)) as Arc<dyn Store>;
        let store = options.store.clone().unwrap_or_else(usual);
        let instance = uuid::Uuid::now_v7().hyphenated().to_string();
        let lock = files::lock(&options.folder, &instance)
            .map_err(|error| StoreError::Folder { path: options.folder.clone(), error })?;
        let begun = Segment::first(&*store, &options.folder, &instance, options.clock.wall());
        let (segment, intake) = begun.inspect_err(|_| {
            recover::remove_new(&*store, &options.folder, &instance);
            let _ = std::fs::remove_file(lock_path(&options.folder, &instance));
        })?;
        let writer =
            Writer { segment: Some(segment), open: OpenCalls::default(), fresh: Vec::new(), _lock: lock };
        let shared = Self {
            counter: Counter::default(),
            writer: Mutex::new(writer),
            keeping: Keeping { payloads: options.payloads, redactor: options.redactor.clone() },
            store,
            options,
            instance,
            unrecorded: AtomicU64::new(0),
            uncovered: AtomicU64::new(0),
            written: AtomicU64::new(0),
            full: AtomicBool::new(false),
            failing: AtomicBool::new(false),
        };
        Ok((shared, intake))
    }

    /// Writes rows; returns their place and how many calls are under way now. Only the writer that has set `busy` may call
    /// this.
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

    /// Explains a failed write to the operator.
    fn explain(&self, error: &io::Error) -> String {
        let folder = self.options.folder.display();
        let text = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("the disk is full; make room for the audit folder {folder}")
            }
            _ => format!("{error} (audit folder {folder})"),
        };
        // Logs once, not for every call until the fault is repaired.
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
mod tests;
