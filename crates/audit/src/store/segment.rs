//! One segment: a SQLite file with a header, rows that only ever follow each other, and checkpoints.
//!
//! Whoever holds a [`Segment`] is its only writer. Appending is one transaction without a sync: the rows are
//! in the kernel's hands when it returns, which a killed process cannot take back. Bringing the log into the
//! file is the keeper's business and happens through a connection of its own.
//!
//! What must stay true: a failed append leaves the segment, its head and its tree as they were.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql, params};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::StoreError;
use crate::merkle::Frontier;
use crate::row::{Draft, Kind, time_text};
use crate::{Checkpoint, CorrelationId, Hash, Signer};

/// The number of the row format; a checker that does not know it must not guess.
pub(crate) const FORMAT: u32 = 1;
/// How the file of a segment ends.
pub(crate) const EXTENSION: &str = "sqlite";
/// What a page of the log costs.
const PAGE: u64 = 4096;

/// How many rows one statement writes where there are so many: each costs less then.
const AT_ONCE: usize = 16;
const INSERT: &str = "INSERT INTO rows (seq, body, head) VALUES (?, ?, ?)";
static INSERT_MANY: LazyLock<String> =
    LazyLock::new(|| INSERT.to_owned() + &", (?, ?, ?)".repeat(AT_ONCE - 1));

/// Each brings a file from the version of its index to the next one.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE segment (id INTEGER PRIMARY KEY CHECK (id = 1), body TEXT NOT NULL, head BLOB NOT NULL) STRICT;
    CREATE TABLE rows (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, head BLOB NOT NULL) STRICT;
    CREATE TABLE checkpoints (count INTEGER NOT NULL, body TEXT NOT NULL, digest BLOB NOT NULL) STRICT;
    CREATE VIEW calls AS
        SELECT i.seq, i.body->>'time' AS time, i.body->>'correlationId' AS correlation_id,
            i.body->>'principal' AS principal, i.body->>'server' AS server, i.body->>'tool' AS tool,
            i.body->>'era' AS era, i.body->>'transport' AS transport,
            o.body->>'outcome' AS outcome, o.body->>'code' AS code,
            o.body->>'durationMs' AS duration_ms, o.body->>'queuedMs' AS queued_ms,
            i.body->>'bytes' AS bytes_in, o.body->>'bytes' AS bytes_out,
            i.body->>'digest' AS arguments_digest, o.body->>'digest' AS result_digest,
            i.body->>'payload' AS arguments, o.body->>'payload' AS result
        FROM rows i
        LEFT JOIN (SELECT CAST(body->>'enter' AS INTEGER) AS enter, body FROM rows) o ON o.enter = i.seq
        WHERE i.body->>'kind' = 'enter';
"];

/// What a segment says about itself, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The row format.
    pub format: u32,
    /// The segment's name: the instance and its index.
    pub segment: String,
    /// The process instance that writes it.
    pub instance: String,
    /// Which segment of the instance it is, from 1.
    pub index: u32,
    /// The number of its first row.
    pub first: u64,
    /// The head behind the last row of the segment before it.
    pub previous: Option<Hash>,
    /// When it was begun, in UTC.
    pub started: String,
    /// The version of the program.
    pub version: String,
}

/// A segment that can grow.
pub(crate) struct Segment {
    connection: Connection,
    path: PathBuf,
    header: Header,
    /// The number that the next row gets.
    next: u64,
    head: Hash,
    tree: Frontier,
    /// What `tree` was before the append in progress.
    before: Frontier,
    /// The count at the last checkpoint.
    checkpointed: u64,
    /// The size of its rows.
    bytes: u64,
    /// What was written to the log since the keeper last emptied it, about.
    logged: u64,
}

/// The text of a row, which is known to be text.
struct Body<'a>(&'a [u8]);

impl ToSql for Body<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>, rusqlite::Error> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

/// Calls that have entered and not left: the numbers of their enter rows. Several calls may share an id,
/// because a caller may bring one.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(HashMap<CorrelationId, SmallVec<[u64; 2]>>);

enum Change {
    Opened(CorrelationId),
    Closed(CorrelationId, u64),
}

impl OpenCalls {
    pub(super) fn open(&mut self, id: CorrelationId, seq: u64) {
        self.0.entry(id).or_default().push(seq);
    }

    fn close(&mut self, id: CorrelationId) -> Option<u64> {
        let Entry::Occupied(mut numbers) = self.0.entry(id) else { return None };
        if numbers.get().len() > 1 {
            return Some(numbers.get_mut().remove(0));
        }
        numbers.remove().pop()
    }

    fn undo(&mut self, change: &Change) {
        match change {
            Change::Opened(id) => {
                if let Some(numbers) = self.0.get_mut(id) {
                    numbers.pop();
                    if numbers.is_empty() {
                        self.0.remove(id);
                    }
                }
            }
            Change::Closed(id, seq) => self.0.entry(*id).or_default().insert(0, *seq),
        }
    }

    /// How many there are; those that share an id count once.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The numbers of all of them, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.0.values().flatten().copied().collect();
        numbers.sort_unstable();
        numbers
    }
}

impl Segment {
    /// Begins a segment in a new file.
    pub(crate) fn create(
        folder: &Path,
        instance: &str,
        index: u32,
        first: u64,
        previous: Option<Hash>,
        now: jiff::Timestamp,
    ) -> Result<Self, StoreError> {
        let name = format!("{instance}.{index:04}");
        let path = folder.join(format!("{name}.{EXTENSION}"));
        let header = Header {
            format: FORMAT,
            segment: name,
            instance: instance.to_owned(),
            index,
            first,
            previous,
            started: time_text(now),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let text = serde_json::to_string(&header).unwrap_or_default();
        let head = Hash::header(text.as_bytes());
        let connection = create_private(&path)
            .map_err(|error| StoreError::Folder { path: folder.to_owned(), error })
            .and_then(|()| {
                let connection = connect(&path, true)?;
                migrate(&connection, &path)?;
                connection
                    .execute("INSERT INTO segment (id, body, head) VALUES (1, ?1, ?2)", params![text, head.0])
                    .map_err(|error| StoreError::database(&path, &error))?;
                Ok(connection)
            })?;
        Ok(Self::before_its_rows(connection, path, header, head))
    }

    fn before_its_rows(connection: Connection, path: PathBuf, header: Header, head: Hash) -> Self {
        Self {
            connection,
            path,
            next: header.first,
            header,
            head,
            tree: Frontier::default(),
            before: Frontier::default(),
            checkpointed: 0,
            bytes: 0,
            logged: 0,
        }
    }

    /// Takes up a segment that another process left, behind its last row. Nothing is verified here beyond
    /// what is needed to go on: whoever changed it before must not be able to stop the next start.
    pub(crate) fn resume(path: &Path) -> Result<Self, StoreError> {
        let broken = |error: &rusqlite::Error| StoreError::database(path, error);
        let connection = connect(path, true)?;
        migrate(&connection, path)?;
        let (text, head): (String, [u8; 32]) = connection
            .query_row("SELECT body, head FROM segment", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(|error| broken(&error))?;
        let header: Header = serde_json::from_str(&text).map_err(|error| StoreError::Damaged {
            path: path.to_owned(),
            what: format!("its header: {error}"),
        })?;
        let mut segment = Self::before_its_rows(connection, path.to_owned(), header, Hash(head));
        let mut statement = segment
            .connection
            .prepare("SELECT seq, CAST(body AS BLOB), head FROM rows ORDER BY seq")
            .map_err(|error| broken(&error))?;
        let mut rows = statement.query([]).map_err(|error| broken(&error))?;
        while let Some(row) = rows.next().map_err(|error| broken(&error))? {
            let body =
                row.get_ref(1).and_then(|value| Ok(value.as_bytes()?)).map_err(|error| broken(&error))?;
            segment.tree.push(Hash::leaf(body));
            segment.head = Hash(row.get(2).map_err(|error| broken(&error))?);
            segment.next = row.get::<_, u64>(0).map_err(|error| broken(&error))? + 1;
        }
        drop(rows);
        drop(statement);
        Ok(segment)
    }

    /// Writes rows in one transaction; all of them or none.
    pub(crate) fn append(
        &mut self,
        rows: &mut [impl AsMut<Draft>],
        open: &mut OpenCalls,
    ) -> Result<(), rusqlite::Error> {
        let (next, head) = (self.next, self.head);
        self.before.become_like(&self.tree);
        let mut changes = Vec::with_capacity(rows.len());
        let written = self.write(rows, open, &mut changes);
        if written.is_err() {
            // Where the transaction is already over this fails, and that is as good.
            let _ = self.connection.execute_batch("ROLLBACK");
            (self.next, self.head) = (next, head);
            std::mem::swap(&mut self.tree, &mut self.before);
            changes.iter().rev().for_each(|change| open.undo(change));
        }
        written
    }

    fn write(
        &mut self,
        rows: &mut [impl AsMut<Draft>],
        open: &mut OpenCalls,
        changes: &mut Vec<Change>,
    ) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut written = 0;
        for some in rows.chunks_mut(AT_ONCE) {
            let together = some.len() == AT_ONCE;
            let mut insert = self.connection.prepare_cached(if together { &INSERT_MANY } else { INSERT })?;
            for (place, draft) in some.iter_mut().map(AsMut::as_mut).enumerate() {
                let seq = self.next;
                let enter = match draft.kind {
                    Kind::Enter => {
                        open.open(draft.correlation, seq);
                        changes.push(Change::Opened(draft.correlation));
                        None
                    }
                    Kind::Exit => open.close(draft.correlation).inspect(|enter| {
                        changes.push(Change::Closed(draft.correlation, *enter));
                    }),
                };
                let row = draft.numbered(seq, enter);
                let leaf = row.leaf();
                self.head = Hash::link(&self.head, &leaf);
                self.tree.push(leaf);
                let first = if together { 3 * place } else { 0 };
                insert.raw_bind_parameter(first + 1, seq)?;
                insert.raw_bind_parameter(first + 2, Body(row.text()))?;
                insert.raw_bind_parameter(first + 3, self.head.0)?;
                if !together || place + 1 == AT_ONCE {
                    insert.raw_execute()?;
                }
                self.next += 1;
                written += row.text().len() as u64;
            }
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        self.bytes += written;
        self.logged += written + 2 * PAGE;
        Ok(())
    }

    /// States what the segment is now. A sealed one takes no more rows.
    pub(crate) fn checkpoint(
        &mut self,
        sealed: bool,
        now: jiff::Timestamp,
        signer: Option<&Signer>,
    ) -> Result<Checkpoint, rusqlite::Error> {
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
        let text = checkpoint.text();
        self.connection
            .prepare_cached("INSERT INTO checkpoints (count, body, digest) VALUES (?1, ?2, ?3)")?
            .execute(params![checkpoint.count, text, Hash::checkpoint(text.as_bytes()).0])?;
        self.checkpointed = self.tree.count();
        self.logged += 2 * PAGE;
        Ok(checkpoint)
    }

    /// Seals the segment and makes it a single file that can be copied as it is.
    pub(crate) fn seal(
        mut self,
        now: jiff::Timestamp,
        signer: Option<&Signer>,
    ) -> Result<Checkpoint, StoreError> {
        let broken = |error: &rusqlite::Error| StoreError::database(&self.path, error);
        // Off the path of calls: readers may be waited for.
        self.connection.busy_timeout(Duration::from_secs(2)).map_err(|error| broken(&error))?;
        let path = self.path.clone();
        let broken = |error: &rusqlite::Error| StoreError::database(&path, error);
        let checkpoint = self.checkpoint(true, now, signer).map_err(|error| broken(&error))?;
        self.connection
            .execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_checkpoint(TRUNCATE);")
            .map_err(|error| broken(&error))?;
        // A reader keeps it in the mode of a running segment, which verifies just as well.
        let _ = self.connection.execute_batch("PRAGMA journal_mode = DELETE;");
        Ok(checkpoint)
    }

    /// Gives up a segment that never got a row.
    pub(crate) fn discard(self) {
        let path = self.path.clone();
        drop(self.connection);
        for ending in ["", "-wal", "-shm"] {
            let mut file = path.clone().into_os_string();
            file.push(ending);
            let _ = std::fs::remove_file(file);
        }
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How many rows it has.
    pub(crate) fn count(&self) -> u64 {
        self.tree.count()
    }

    /// How many rows no checkpoint covers.
    pub(crate) fn uncovered(&self) -> u64 {
        self.tree.count() - self.checkpointed
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn head(&self) -> Hash {
        self.head
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn logged(&self) -> u64 {
        self.logged
    }

    /// The log was emptied.
    pub(crate) fn log_emptied(&mut self) {
        self.logged = 0;
    }

    /// Lets the file take no more than it has, like a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&self, full: bool) {
        let pages = if full { 1 } else { 1_000_000 };
        self.connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
    }

    /// The texts of these rows.
    pub(crate) fn texts(&self, numbers: &[u64]) -> Result<Vec<String>, rusqlite::Error> {
        let mut statement = self.connection.prepare("SELECT body FROM rows WHERE seq = ?1")?;
        let mut texts = Vec::new();
        for number in numbers {
            let mut rows = statement.query(params![number])?;
            while let Some(row) = rows.next()? {
                texts.push(row.get(0)?);
            }
        }
        Ok(texts)
    }
}

/// Makes the file before SQLite does, readable for its owner alone: SQLite gives its other files the same.
fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

/// Opens a file for writing, or for reading alone. Never waits for a lock unless told to.
pub(crate) fn connect(path: &Path, write: bool) -> Result<Connection, StoreError> {
    let broken = |error: &rusqlite::Error| StoreError::database(path, error);
    let access = if write { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|error| broken(&error))?;
    connection.busy_timeout(Duration::ZERO).map_err(|error| broken(&error))?;
    if write {
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0;
                 PRAGMA cache_size = -512; PRAGMA trusted_schema = OFF;",
            )
            .map_err(|error| broken(&error))?;
    }
    Ok(connection)
}

/// Brings a file to the newest version of the schema.
fn migrate(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let broken = |error: &rusqlite::Error| StoreError::database(path, error);
    let version: u32 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(|error| broken(&error))?;
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > MIGRATIONS.len() {
        return Err(StoreError::Newer { path: path.to_owned(), version });
    }
    for (at, migration) in MIGRATIONS.iter().enumerate().skip(version) {
        connection
            .execute_batch(&format!("BEGIN IMMEDIATE; {migration} PRAGMA user_version = {}; COMMIT;", at + 1))
            .map_err(|error| broken(&error))?;
    }
    Ok(())
}
