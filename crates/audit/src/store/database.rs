//! The database of a segment: a SQLite file with its header, its rows and its checkpoints.
//!
//! Nobody but the keeper writes it, and no call waits for it. It brings in what the journal has, a part at a
//! time in one transaction each; whoever holds the file locked, or reads it for long, delays only that.
//!
//! What must stay true: a checkpoint is there only behind all the rows that it covers.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, OptionalExtension, ToSql, params};

use super::StoreError;
use super::files::{beside, private};
use super::journal::{self, Backlog, Journal};
use crate::records::{RecordKind, number_of, split_line};
use crate::{Checkpoint, Hash};

/// How a file ends that is not in its place yet.
const NEW: &str = "sqlite.new";
/// A log of this size is brought into the file.
const LONG_LOG: u64 = 16 << 20;
/// A journal of which so much is in the database is begun anew.
const LONG_JOURNAL: u64 = 1 << 20;
/// How long other programs are waited for when the file is finished.
const AT_THE_END: Duration = Duration::from_secs(2);

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

/// The file, and what of the journal is not in it yet.
pub(crate) struct Database {
    connection: Connection,
    path: PathBuf,
    /// None where there is no journal.
    backlog: Option<Backlog>,
    /// The number of its last row, or 0.
    last: u64,
    /// How many rows it has.
    count: u64,
    /// Checkpoints that wait for the rows that they cover.
    unstated: Vec<Checkpoint>,
    /// What was written to the log since it was last emptied, about.
    logged: u64,
}

/// A database without a header, under a name that nobody looks for: a segment is there with its header or not at all.
pub(crate) struct Blank {
    connection: Connection,
    /// Where it will be.
    path: PathBuf,
}

/// A row in the line of a journal.
struct JournalLine<'a> {
    seq: u64,
    text: &'a [u8],
    head: Hash,
}

/// The text of a row, which is known to be text.
struct Body<'a>(&'a [u8]);

impl ToSql for Body<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>, rusqlite::Error> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

impl Blank {
    /// Makes one that is to be the database of the segment in `path`.
    pub(crate) fn create(path: &Path) -> Result<Self, StoreError> {
        let path = path.to_owned();
        let new = path.with_extension(NEW);
        create_private(&new).map_err(|error| folder_of(&path, error))?;
        let connection = connect(&new, Access::Repair)?;
        // A start and, when it gets its header, calls wait for this. The disk has it when the first log is brought in.
        // Nothing is undone here: a file that does not get its place is thrown away as a whole.
        connection
            .execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;")
            .map_err(|error| StoreError::database(&new, &error))?;
        migrate(&connection, &new)?;
        Ok(Self { connection, path })
    }

    /// Gives it its header, its mode and its place. In this order: a file in its place that a kill caught on the way into
    /// its mode would be one that nobody can read without writing to it.
    pub(crate) fn begin(self, header: &str, head: Hash) -> Result<Database, StoreError> {
        let Self { connection, path } = self;
        let broken = |error: rusqlite::Error| StoreError::database(&path, &error);
        connection
            .execute("INSERT INTO segment (id, body, head) VALUES (1, ?1, ?2)", params![header, head.0])
            .map_err(broken)?;
        connection.execute_batch("PRAGMA journal_mode = WAL;").map_err(broken)?;
        connection.close().map_err(|(_, error)| broken(error))?;
        std::fs::rename(path.with_extension(NEW), &path).map_err(|error| folder_of(&path, error))?;
        Database::connect(&path, None)
    }
}

impl Database {
    /// Opens the file of a segment that a process left when it was killed.
    pub(crate) fn reopen(path: &Path) -> Result<Self, StoreError> {
        let backlog = Backlog::left(path).map_err(|error| unreadable(path, &error))?;
        let mut database = Self::connect(path, backlog)?;
        let found =
            database.connection.query_row("SELECT coalesce(max(seq), 0), count(*) FROM rows", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            });
        (database.last, database.count) = found.map_err(|error| StoreError::database(path, &error))?;
        Ok(database)
    }

    fn connect(path: &Path, backlog: Option<Backlog>) -> Result<Self, StoreError> {
        let connection = connect(path, Access::Write)?;
        migrate(&connection, path)?;
        Ok(Self {
            connection,
            path: path.to_owned(),
            backlog,
            last: 0,
            count: 0,
            unstated: Vec::new(),
            logged: 0,
        })
    }

    /// Begins a journal for the rows that follow; everything of the one before must be here.
    pub(crate) fn begin_journal(&mut self) -> Result<Journal, StoreError> {
        let (journal, backlog) = Journal::begin(&self.path).map_err(|error| folder_of(&self.path, error))?;
        self.backlog = Some(backlog);
        Ok(journal)
    }

    /// Brings a part of the journal in; says whether there was any.
    pub(crate) fn take_in(&mut self) -> Result<bool, StoreError> {
        let Some(backlog) = &self.backlog else { return Ok(false) };
        let lines = backlog.next().map_err(|error| unreadable(&self.path, &error))?;
        if lines.is_empty() {
            return Ok(false);
        }
        let (rows, length) = self.new_rows(&lines)?;
        self.write(&rows).map_err(|error| {
            // Where the transaction is already over this fails, and that is as good.
            let _ = self.connection.execute_batch("ROLLBACK");
            self.broken(&error)
        })?;
        self.last = rows.last().map_or(self.last, |row| row.seq);
        self.count += rows.len() as u64;
        self.logged += length as u64;
        self.backlog.as_mut().into_iter().for_each(|backlog| backlog.advance(length));
        if self.logged >= LONG_LOG {
            // Readers may keep some of it there. It is tried again with the next rows.
            let emptied = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            emptied.map_err(|error| self.broken(&error))?;
            self.logged = 0;
        }
        Ok(true)
    }

    /// The rows that are not here yet, and how long the lines are that they stand in. A line that is none ends them,
    /// and is an error where it is the first.
    fn new_rows<'a>(&self, lines: &'a [u8]) -> Result<(Vec<JournalLine<'a>>, usize), StoreError> {
        let (mut rows, mut length, mut last) = (Vec::new(), 0, self.last);
        // Every row passes here: looking at one byte after the other was 4 % of what a recorded call costs.
        for end in memchr::memchr_iter(b'\n', lines) {
            let line = &lines[length..=end];
            let Some(row) = JournalLine::read(line) else { break };
            length += line.len();
            // A journal outlives the transaction that brought it in.
            if row.seq > last {
                last = row.seq;
                rows.push(row);
            }
        }
        if length == 0 {
            let what = "a line is no row: it was changed".to_owned();
            return Err(StoreError::Damaged { path: journal::path_of(&self.path), what });
        }
        Ok((rows, length))
    }

    fn write(&self, rows: &[JournalLine<'_>]) -> Result<(), rusqlite::Error> {
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
                insert.raw_bind_parameter(first + 2, Body(row.text))?;
                insert.raw_bind_parameter(first + 3, row.head.0)?;
                if !together || place + 1 == AT_ONCE {
                    insert.raw_execute()?;
                }
            }
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    /// Has a checkpoint written when all the rows are here that it covers. They come in the order they were made.
    pub(crate) fn add(&mut self, checkpoint: Checkpoint) {
        self.unstated.push(checkpoint);
    }

    /// Writes the checkpoints that have all their rows, and returns them.
    pub(crate) fn state(&mut self) -> Result<Vec<Checkpoint>, StoreError> {
        let due = self.unstated.iter().take_while(|checkpoint| checkpoint.count <= self.count).count();
        if due == 0 {
            return Ok(Vec::new());
        }
        self.write_checkpoints(due).map_err(|error| {
            let _ = self.connection.execute_batch("ROLLBACK");
            self.broken(&error)
        })?;
        Ok(self.unstated.drain(..due).collect())
    }

    fn write_checkpoints(&self, due: usize) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for checkpoint in &self.unstated[..due] {
            let text = checkpoint.text();
            self.connection
                .prepare_cached("INSERT INTO checkpoints (count, body, digest) VALUES (?1, ?2, ?3)")?
                .execute(params![checkpoint.count, text, Hash::checkpoint(text.as_bytes()).0])?;
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    /// Makes it a single file that can be copied as it is; its last checkpoint has sealed it, and the journal goes.
    pub(crate) fn finish(self) -> Result<(), StoreError> {
        let broken = |error: &rusqlite::Error| self.broken(error);
        // Readers may be waited for: nobody waits for us.
        self.be_patient();
        self.connection
            .execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_checkpoint(TRUNCATE);")
            .map_err(|error| broken(&error))?;
        // A reader keeps it in the mode of a running segment, which verifies just as well. What undoes the change is kept
        // in memory: it is one write of one page, and a kill behind it would leave a file beside the segment that every
        // reader had to bring back first.
        let _ = self.connection.execute_batch("PRAGMA journal_mode = MEMORY;");
        journal::remove(&self.path).map_err(|error| folder_of(&self.path, error))
    }

    /// Gives up a segment that never got a row.
    pub(crate) fn discard(self) {
        let Self { connection, path, .. } = self;
        drop(connection);
        for file in beside(&path).iter().chain([&path]) {
            let _ = std::fs::remove_file(file);
        }
    }

    /// Waits for other programs from now on instead of coming back later.
    pub(crate) fn be_patient(&self) {
        let _ = self.connection.busy_timeout(AT_THE_END);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the journal has rows that are not here, or a checkpoint waits.
    pub(crate) fn is_behind(&self) -> bool {
        !self.unstated.is_empty() || self.backlog.as_ref().is_some_and(|backlog| !backlog.is_empty())
    }

    /// Whether the journal is all here and long enough to be begun anew.
    pub(crate) fn wants_journal(&self) -> bool {
        self.backlog.as_ref().is_some_and(|backlog| backlog.is_empty() && backlog.taken() >= LONG_JOURNAL)
    }

    /// The text of the header and its hash.
    pub(crate) fn header(&self) -> Result<(String, Hash), StoreError> {
        let header = self
            .connection
            .query_row("SELECT body, head FROM segment", [], |row| Ok((row.get(0)?, Hash(row.get(1)?))));
        header.map_err(|error| self.broken(&error))
    }

    /// Shows every row: its number, its text, its head.
    pub(crate) fn rows(&self, mut show: impl FnMut(u64, &[u8], Hash)) -> Result<(), StoreError> {
        let broken = |error: rusqlite::Error| self.broken(&error);
        let mut statement = self
            .connection
            .prepare("SELECT seq, CAST(body AS BLOB), head FROM rows ORDER BY seq")
            .map_err(broken)?;
        let mut rows = statement.query([]).map_err(broken)?;
        while let Some(row) = rows.next().map_err(broken)? {
            let (seq, head) = (row.get(0).map_err(broken)?, row.get(2).map_err(broken)?);
            let text = row.get_ref(1).and_then(|value| Ok(value.as_bytes()?)).map_err(broken)?;
            show(seq, text, Hash(head));
        }
        Ok(())
    }

    fn broken(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::database(&self.path, error)
    }
}

impl<'a> JournalLine<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        let (RecordKind::Row, Some(head), text) = split_line(line)? else { return None };
        // What goes into a column of text must be text.
        str::from_utf8(text).ok()?;
        Some(Self { seq: number_of(text)?, text, head })
    }
}

fn folder_of(path: &Path, error: std::io::Error) -> StoreError {
    StoreError::Folder { path: path.parent().unwrap_or(path).to_owned(), error }
}

fn unreadable(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Damaged { path: journal::path_of(path), what: error.to_string() }
}

/// The texts of those of these rows that a database has.
pub(crate) fn texts(path: &Path, numbers: &[u64]) -> Result<Vec<String>, StoreError> {
    let broken = |error: rusqlite::Error| StoreError::database(path, &error);
    let connection = connect(path, Access::Read)?;
    let mut statement = connection.prepare("SELECT body FROM rows WHERE seq = ?1").map_err(broken)?;
    let texts = numbers.iter().map(|number| statement.query_row([number], |row| row.get(0)).optional());
    texts.filter_map(Result::transpose).collect::<Result<_, _>>().map_err(broken)
}

/// Makes the file before SQLite does, readable for its owner alone: SQLite gives its other files the same.
fn create_private(path: &Path) -> std::io::Result<()> {
    private().write(true).create(true).truncate(true).open(path).map(drop)
}

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// To look, as anybody may.
    Read,
    /// To look, and to bring in order what a kill interrupted, which SQLite does where it may write.
    Repair,
    /// To write, with a log.
    Write,
}

/// Opens the file of a segment. Never waits for a lock unless told to.
pub(crate) fn connect(path: &Path, access: Access) -> Result<Connection, StoreError> {
    let broken = |error: rusqlite::Error| StoreError::database(path, &error);
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

/// The same file by a path whose folders are no links. SQLite follows none of them; ours are only those in the folder.
fn without_links(path: &Path) -> PathBuf {
    let named = path.file_name().zip(path.parent().filter(|parent| !parent.as_os_str().is_empty()));
    let resolved = named.and_then(|(name, parent)| Some(parent.canonicalize().ok()?.join(name)));
    resolved.unwrap_or_else(|| path.to_owned())
}

fn keep_log(connection: &Connection) -> Result<(), rusqlite::Error> {
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode != "wal" {
        // One write of one page, which needs nothing beside the file that would undo it.
        connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA journal_mode = WAL;")?;
    }
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -512;
         PRAGMA trusted_schema = OFF;",
    )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::push_row;

    /// AUD-2: rows that are here already are passed over with their lines, and a line that is no row ends what is taken.
    #[test]
    fn only_new_rows_are_taken_from_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let blank = Blank::create(&folder.path().join("a.sqlite")).unwrap();
        let mut database = blank.begin("{}", Hash::default()).unwrap();
        let mut lines = Vec::new();
        for seq in 1..=3 {
            push_row(&mut lines, &Hash::default(), format!(r#"{{"seq":{seq}}}"#).as_bytes());
        }
        let whole = lines.len();
        lines.extend_from_slice(b"no row\n");
        for (last, numbers) in [(0, vec![1, 2, 3]), (1, vec![2, 3]), (2, vec![3]), (3, vec![])] {
            database.last = last;
            let (rows, length) = database.new_rows(&lines).unwrap();
            assert_eq!(
                (rows.iter().map(|row| row.seq).collect::<Vec<_>>(), length),
                (numbers, whole),
                "{last}"
            );
        }
        let error = database.new_rows(b"no row\n").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("a line is no row"), "{error}");
    }
}
