//! Segments as SQLite files in a folder, `NAME.sqlite` each.
//!
//! A file that is not yet renamed into place ends in `.sqlite.new`. While a segment is written, SQLite keeps its own files
//! beside it. A sealed segment is a single file that can be copied as it is.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::StoreError;
use super::backend::{Appender, Blank, Frame, NewRow, Snapshot, Store, TakeRecord};
use super::files::{private, remove_new};
use crate::records::{ReadError, Record, RecordKind};
use crate::{Checkpoint, Hash};

/// The extension of a segment's file.
const EXTENSION: &str = "sqlite";
/// The ending of its name before it is renamed into place.
const NEW: &str = ".sqlite.new";
/// The endings of the files that SQLite puts beside it.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];
/// A write-ahead log of this size is brought into the file.
const LONG_LOG: u64 = 16 << 20;
/// How long to wait for other programs when a file is finished.
const AT_THE_END: Duration = Duration::from_secs(2);
/// How long a reader waits for other programs.
const READER_WAITS: Duration = Duration::from_secs(2);

/// How many rows one statement writes when there are enough: each row then costs less.
const AT_ONCE: usize = 16;
const INSERT: &str = "INSERT INTO rows (seq, body, head) VALUES (?, ?, ?)";
static INSERT_MANY: LazyLock<String> =
    LazyLock::new(|| INSERT.to_owned() + &", (?, ?, ?)".repeat(AT_ONCE - 1));

/// Each migration brings a file from the schema version of its index to the next one.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE segment (id INTEGER PRIMARY KEY CHECK (id = 1), body TEXT NOT NULL, head BLOB NOT NULL) STRICT;
    CREATE TABLE rows (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, head BLOB NOT NULL) STRICT;
    CREATE TABLE checkpoints (count INTEGER NOT NULL, body TEXT NOT NULL, digest BLOB NOT NULL) STRICT;
    CREATE VIEW calls AS
        SELECT i.seq, i.body->>'time' AS time, i.body->>'correlationId' AS correlation_id,
            i.body->>'principal' AS principal, i.body->>'server' AS server, i.body->>'tool' AS tool,
            coalesce(i.body->>'method', 'tools/call') AS method,
            coalesce(i.body->>'subject', i.body->>'tool') AS subject,
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

/// The store of `serve`: a folder of SQLite files.
#[derive(Clone)]
pub struct SqliteFiles {
    folder: PathBuf,
    /// The extension of the files; a copy may have another.
    extension: Option<String>,
}

/// The segments in a folder, the oldest first: instance ids sort by age.
#[must_use]
pub fn segments(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == EXTENSION))
        .collect();
    files.sort();
    files
}

impl SqliteFiles {
    /// The segments in `folder`, which is not touched before a segment is begun there.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), extension: Some(EXTENSION.to_owned()) }
    }

    /// The store that a file is in, and the name of its segment.
    pub(crate) fn around(file: &Path) -> (Self, String) {
        let text = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
        let folder = file.parent().map(Path::to_owned).unwrap_or_default();
        let name = file.file_stem().map(text).unwrap_or_default();
        (Self { folder, extension: file.extension().map(text) }, name)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, segment: &str) -> PathBuf {
        self.folder.join(match &self.extension {
            Some(extension) => format!("{segment}.{extension}"),
            None => segment.to_owned(),
        })
    }

    fn snapshot(&self, segment: &str, access: Access) -> Result<Box<dyn Snapshot>, ReadError> {
        let path = self.path(segment);
        let broken = |error: rusqlite::Error| broken(&path, &error);
        if let Err(error) = std::fs::metadata(&path) {
            return Err(ReadError::File { path, error });
        }
        let connection = connect(&path, access)?;
        // A repair has the file for itself.
        if access == Access::Read {
            connection.busy_timeout(READER_WAITS).map_err(broken)?;
            connection.execute_batch("BEGIN").map_err(broken)?;
        }
        Ok(Box::new(SqliteSnapshot { connection, path }))
    }
}

impl fmt::Debug for SqliteFiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SqliteFiles").field(&self.folder).finish()
    }
}

impl Store for SqliteFiles {
    fn segments(&self) -> Result<Vec<String>, StoreError> {
        let name = |path: &PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        Ok(segments(&self.folder).iter().filter_map(name).collect())
    }

    fn prepare(&self, segment: &str) -> Result<Box<dyn Blank>, StoreError> {
        let new = self.folder.join(format!("{segment}{NEW}"));
        create_private(&new).map_err(|error| StoreError::beside(&new, error))?;
        let connection = connect(&new, Access::Repair)?;
        // The start of the gateway waits for this, and calls wait when the segment gets its header, so nothing is synced
        // here. The data reaches the disk when the first log is brought in. There is no rollback either: a file that is
        // never renamed into place is deleted whole.
        connection
            .execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;")
            .map_err(|error| broken(&new, &error))?;
        migrate(&connection, &new)?;
        Ok(Box::new(SqliteBlank { connection, new, path: self.path(segment) }))
    }

    fn reopen(&self, segment: &str) -> Result<Box<dyn Appender>, StoreError> {
        let mut appender = SqliteAppender::open(self.path(segment))?;
        let rows = "SELECT coalesce(max(seq), 0), count(*) FROM rows";
        let found = appender.connection.query_row(rows, [], |row| Ok((row.get(0)?, row.get(1)?)));
        (appender.last, appender.count) = found.map_err(|error| broken(&appender.path, &error))?;
        Ok(Box::new(appender))
    }

    fn read(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError> {
        self.snapshot(segment, Access::Read)
    }

    fn repair(&self, segment: &str) -> Result<Box<dyn Snapshot>, ReadError> {
        self.snapshot(segment, Access::Repair)
    }

    fn remove(&self, segment: &str) -> Result<(), StoreError> {
        let path = self.path(segment);
        let removed = std::fs::remove_file(&path);
        let gone = removed.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::NotFound);
        if gone {
            // Usually there are none.
            beside(&path).iter().for_each(|file| drop(std::fs::remove_file(file)));
        }
        removed.map_err(StoreError::System)
    }

    fn bytes(&self, segment: &str) -> u64 {
        std::fs::metadata(self.path(segment)).map_or(0, |data| data.len())
    }

    fn remnants(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let segment = |name: String| {
            let segment = BESIDE.iter().find_map(|ending| name.strip_suffix(ending))?;
            Some(segment.strip_suffix(EXTENSION)?.strip_suffix('.')?.to_owned())
        };
        let beside: BTreeSet<String> = names.filter_map(segment).collect();
        beside.into_iter().filter(|segment| !self.path(segment).exists()).collect()
    }

    fn clear(&self, instance: &str) {
        remove_new(&self.folder, instance, NEW);
    }

    fn place(&self, segment: &str) -> String {
        self.path(segment).display().to_string()
    }
}

fn beside(path: &Path) -> [PathBuf; 3] {
    BESIDE.map(|ending| {
        let mut path = path.as_os_str().to_owned();
        path.push(ending);
        PathBuf::from(path)
    })
}

/// A file without a header, under a temporary name.
struct SqliteBlank {
    connection: Connection,
    /// Where it is.
    new: PathBuf,
    /// Where it will be.
    path: PathBuf,
}

impl Blank for SqliteBlank {
    /// Writes the header, sets the mode, then renames, in this order. If a kill caught a file in its final place while the
    /// mode changed, nobody could read it without writing to it.
    fn begin(self: Box<Self>, header: &str, head: Hash) -> Result<Box<dyn Appender>, StoreError> {
        let Self { connection, new, path } = *self;
        let broken = |error: rusqlite::Error| broken(&path, &error);
        connection
            .execute("INSERT INTO segment (id, body, head) VALUES (1, ?1, ?2)", params![header, head.0])
            .map_err(broken)?;
        connection.execute_batch("PRAGMA journal_mode = WAL;").map_err(broken)?;
        connection.close().map_err(|(_, error)| broken(error))?;
        std::fs::rename(new, &path).map_err(|error| StoreError::beside(&path, error))?;
        Ok(Box::new(SqliteAppender::open(path)?))
    }
}

struct SqliteAppender {
    connection: Connection,
    path: PathBuf,
    /// The number of its last row, or 0.
    last: u64,
    /// How many rows it has.
    count: u64,
    /// About how many bytes were written to the log since it was last emptied.
    logged: u64,
}

impl SqliteAppender {
    fn open(path: PathBuf) -> Result<Self, StoreError> {
        let connection = connect(&path, Access::Write)?;
        migrate(&connection, &path)?;
        Ok(Self { connection, path, last: 0, count: 0, logged: 0 })
    }

    fn write(&self, rows: &[NewRow<'_>]) -> Result<(), rusqlite::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for some in rows.chunks(AT_ONCE) {
            let together = some.len() == AT_ONCE;
            let mut insert = self.connection.prepare_cached(if together { &INSERT_MANY } else { INSERT })?;
            for (place, row) in some.iter().enumerate() {
                let first = if together { 3 * place } else { 0 };
                insert.raw_bind_parameter(first + 1, row.seq)?;
                insert.raw_bind_parameter(first + 2, row.text)?;
                insert.raw_bind_parameter(first + 3, row.head.0)?;
                if !together || place + 1 == AT_ONCE {
                    insert.raw_execute()?;
                }
            }
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    fn write_checkpoints(&self, checkpoints: &[Checkpoint]) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for checkpoint in checkpoints {
            let text = checkpoint.text();
            self.connection
                .prepare_cached("INSERT INTO checkpoints (count, body, digest) VALUES (?1, ?2, ?3)")?
                .execute(params![checkpoint.count, text, Hash::checkpoint(text.as_bytes()).0])?;
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    /// Rolls back an unfinished transaction. If there is none this fails, which does no harm.
    fn undone(&self, error: &rusqlite::Error) -> StoreError {
        let _ = self.connection.execute_batch("ROLLBACK");
        broken(&self.path, error)
    }
}

impl Appender for SqliteAppender {
    fn last(&self) -> u64 {
        self.last
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn append(&mut self, rows: &[NewRow<'_>]) -> Result<(), StoreError> {
        self.write(rows).map_err(|error| self.undone(&error))?;
        self.last = rows.last().map_or(self.last, |row| row.seq);
        self.count += rows.len() as u64;
        self.logged += rows.iter().map(|row| row.text.len() as u64).sum::<u64>();
        if self.logged >= LONG_LOG {
            // Readers may keep some of it in the log. The next rows try again.
            let emptied = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            emptied.map_err(|error| broken(&self.path, &error))?;
            self.logged = 0;
        }
        Ok(())
    }

    fn state(&mut self, checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
        self.write_checkpoints(checkpoints).map_err(|error| self.undone(&error))
    }

    /// Turns it into a single file that can be copied as it is.
    fn seal(mut self: Box<Self>) -> Result<(), StoreError> {
        // Waiting for readers is fine: nothing waits for this.
        self.wait_for_locks();
        self.connection
            .execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_checkpoint(TRUNCATE);")
            .map_err(|error| broken(&self.path, &error))?;
        // With an open reader the file stays in WAL mode, which verifies just as well. The rollback journal is kept in
        // memory: the change is one write of one page, and a journal file left by a kill would have to be rolled back by
        // every reader first.
        let _ = self.connection.execute_batch("PRAGMA journal_mode = MEMORY;");
        Ok(())
    }

    fn discard(self: Box<Self>) {
        let Self { connection, path, .. } = *self;
        drop(connection);
        for file in beside(&path).iter().chain([&path]) {
            let _ = std::fs::remove_file(file);
        }
    }

    fn wait_for_locks(&mut self) {
        let _ = self.connection.busy_timeout(AT_THE_END);
    }
}

/// A connection; in a transaction where other programs may write.
struct SqliteSnapshot {
    connection: Connection,
    path: PathBuf,
}

impl SqliteSnapshot {
    fn read_frame(&self) -> Result<Frame, rusqlite::Error> {
        let mut statement = self.connection.prepare("SELECT body, head FROM segment ORDER BY id")?;
        let headers = statement.query_map([], |row| record(RecordKind::Header, None, row, 0))?;
        let headers = headers.collect::<Result<_, _>>()?;
        let mut statement =
            self.connection.prepare("SELECT count, body, digest FROM checkpoints ORDER BY count, rowid")?;
        let checkpoints =
            statement.query_map([], |row| record(RecordKind::Checkpoint, Some(row.get(0)?), row, 1))?;
        let checkpoints = checkpoints.collect::<Result<_, _>>()?;
        // Two subqueries use the index; in one query SQLite would scan every row.
        let bounds = "SELECT (SELECT min(seq) FROM rows), (SELECT max(seq) FROM rows)";
        let (first, last): (Option<i64>, Option<i64>) =
            self.connection.query_row(bounds, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Frame { headers, checkpoints, bounds: first.zip(last).map(|(first, last)| first..=last) })
    }
}

impl Snapshot for SqliteSnapshot {
    fn frame(&self) -> Result<Frame, ReadError> {
        self.read_frame().map_err(|error| broken(&self.path, &error).into())
    }

    fn last_checkpoint(&self) -> Result<Option<Record>, ReadError> {
        let last = "SELECT count, body, digest FROM checkpoints ORDER BY rowid DESC LIMIT 1";
        let last = self
            .connection
            .query_row(last, [], |row| record(RecordKind::Checkpoint, Some(row.get(0)?), row, 1));
        last.optional().map_err(|error| broken(&self.path, &error).into())
    }

    fn rows(&self, numbers: RangeInclusive<i64>, take: &mut TakeRecord<'_>) -> Result<(), ReadError> {
        let broken = |error: rusqlite::Error| broken(&self.path, &error);
        let mut statement = self
            .connection
            .prepare_cached("SELECT seq, body, head FROM rows WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq")
            .map_err(broken)?;
        let mut rows = statement.query((numbers.start(), numbers.end())).map_err(broken)?;
        // One buffer for all rows: allocating a text for each would cost more than reading it.
        let mut found = Record { kind: RecordKind::Row, seq: None, text: Vec::new(), hash: None };
        while let Some(row) = rows.next().map_err(broken)? {
            let seq = row.get::<_, i64>(0).map_err(broken)?;
            found.seq = Some(u64::try_from(seq).unwrap_or(u64::MAX));
            fill(&mut found, row, 1).map_err(broken)?;
            take(&found)?;
        }
        Ok(())
    }
}

fn record(
    kind: RecordKind,
    seq: Option<u64>,
    row: &rusqlite::Row<'_>,
    text: usize,
) -> Result<Record, rusqlite::Error> {
    let mut record = Record { kind, seq, text: Vec::new(), hash: None };
    fill(&mut record, row, text)?;
    Ok(record)
}

/// Copies text and hash from two adjacent columns.
fn fill(record: &mut Record, row: &rusqlite::Row<'_>, text: usize) -> Result<(), rusqlite::Error> {
    record.text.clear();
    record.text.extend_from_slice(row.get_ref(text)?.as_bytes()?);
    record.hash = row.get_ref(text + 1)?.as_blob().ok().and_then(|bytes| bytes.try_into().ok()).map(Hash);
    Ok(())
}

fn broken(path: &Path, error: &rusqlite::Error) -> StoreError {
    StoreError::Damaged { place: path.display().to_string(), what: error.to_string() }
}

/// Creates the file before SQLite does, readable by its owner alone: SQLite gives its other files the same mode.
fn create_private(path: &Path) -> io::Result<()> {
    private().write(true).create(true).truncate(true).open(path).map(drop)
}

/// The purpose of opening a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// To read only.
    Read,
    /// To read, and to let SQLite repair what a kill interrupted, for which it needs to write.
    Repair,
    /// To write, with a write-ahead log.
    Write,
}

/// Opens the file of a segment. Does not wait for locks unless a timeout is set later.
fn connect(path: &Path, access: Access) -> Result<Connection, StoreError> {
    let broken = |error: rusqlite::Error| broken(path, &error);
    let mode = match access {
        Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        Access::Repair | Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(without_links(path), flags);
    let connection = connection.map_err(broken)?;
    connection.busy_timeout(Duration::ZERO).map_err(broken)?;
    if access == Access::Write {
        keep_log(&connection).map_err(broken)?;
    }
    Ok(connection)
}

/// The same file by a path without linked folders. SQLite refuses any link in a path; we only forbid links inside the audit
/// folder.
fn without_links(path: &Path) -> PathBuf {
    let named = path.file_name().zip(path.parent().filter(|parent| !parent.as_os_str().is_empty()));
    let resolved = named.and_then(|(name, parent)| Some(parent.canonicalize().ok()?.join(name)));
    resolved.unwrap_or_else(|| path.to_owned())
}

fn keep_log(connection: &Connection) -> Result<(), rusqlite::Error> {
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode != "wal" {
        // One write of one page, which needs no rollback journal.
        connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA journal_mode = WAL;")?;
    }
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -512;
         PRAGMA trusted_schema = OFF;",
    )
}

/// Brings a file to the newest version of the schema.
fn migrate(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let version: u32 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|error| broken(path, &error))?;
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > MIGRATIONS.len() {
        return Err(StoreError::Newer { place: path.display().to_string(), version });
    }
    for (at, migration) in MIGRATIONS.iter().enumerate().skip(version) {
        connection
            .execute_batch(&format!("BEGIN IMMEDIATE; {migration} PRAGMA user_version = {}; COMMIT;", at + 1))
            .map_err(|error| broken(path, &error))?;
    }
    Ok(())
}
