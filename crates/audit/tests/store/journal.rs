//! The way of rows from the journal into the database holds up no call and loses no row.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bridgehead_audit::{AuditSink, CorrelationId, INTERRUPTED, StoreOptions, StoreSink, segments};
use parking_lot::Mutex;
use rusqlite::Connection;

use crate::support::{block_on, call, enter_of, eventually, open, python_verifies, rows, verify};

/// Locks the database of a segment, like a program that forgot to end its transaction.
fn lock(file: &Path) -> Connection {
    let other = Connection::open(file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

fn journal(file: &Path) -> PathBuf {
    file.with_extension("rows")
}

/// Copies the files of a running store, as a killed process would leave them.
fn as_if_killed(from: &Path, sink: &StoreSink) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    assert!(to.path().join(format!("{}.lock", sink.instance())).exists());
    to
}

/// The next start on a folder, which finishes what it finds.
fn start_and_stop(folder: &Path) {
    open(folder).close();
}

/// AUD-2: a database that another program locks holds up no call: rows wait in the journal, where every reader finds them,
/// and are brought in once the lock is free.
#[test]
fn a_locked_database_holds_up_no_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    options.patience = Duration::from_millis(500);
    options.checkpoint_rows = 8;
    let sink = StoreSink::open(options).unwrap();
    let file = segments(folder.path()).pop().unwrap();
    let other = lock(&file);
    for number in 0..20 {
        block_on(call(&sink, number)).unwrap();
    }
    eventually("all rows can be read", || rows(&file).len() == 40);
    let brought_in = |other: &Connection| -> u64 {
        other.query_row("SELECT count(*) FROM rows", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(brought_in(&other), 0);
    assert_eq!(verify(std::slice::from_ref(&file)).1, []);
    assert!(python_verifies(&[file.to_str().unwrap()]));
    other.execute_batch("COMMIT").unwrap();
    eventually("all rows are in the database", || brought_in(&other) == 40);
    drop(other);
    sink.close();
    assert_eq!(rows(&file).len(), 40);
    let (verified, problems) = verify(std::slice::from_ref(&file));
    assert_eq!(problems, []);
    assert!(verified[0].sealed && verified[0].checkpoints >= 4, "{verified:?}");
    assert!(!journal(&file).exists());
}

/// PIPE-4: a database that is damaged during writing loses no row: calls go on and are recorded in the journal, which stays
/// beside it. The damage is reported, and nothing panics.
#[test]
fn a_damaged_database_costs_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    options.patience = Duration::from_millis(500);
    let sink = StoreSink::open(options).unwrap();
    let file = segments(folder.path()).pop().unwrap();
    Connection::open(&file).unwrap().execute_batch("DROP VIEW calls; DROP TABLE rows").unwrap();
    let ids: Vec<String> = (0..3).map(|number| block_on(call(&sink, number)).unwrap().to_string()).collect();
    assert_eq!(sink.unrecorded_calls(), 0);
    sink.close();
    assert!(!verify(std::slice::from_ref(&file)).1.is_empty());
    let journal = fs::read_to_string(journal(&file)).unwrap();
    assert!(ids.iter().all(|id| journal.contains(id)), "{journal}");
}

/// AUD-2, AUD-6: the next start brings in the journals of several segments of a killed process. Each segment is sealed, each
/// open call ends once, and an incomplete last line is ignored.
#[test]
fn journals_of_a_killed_process_are_brought_in() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    options.segment_bytes = 4_000;
    let sink = StoreSink::open(options).unwrap();
    let first = segments(folder.path()).pop().unwrap();
    let other = lock(&first);
    let early = enter_of(CorrelationId::mint(), "files__slow", "{}");
    block_on(sink.enter(&early)).unwrap();
    let answered = Mutex::new(HashSet::from([early.correlation().to_string()]));
    eventually("a third segment begins", || {
        answered.lock().insert(block_on(call(&sink, 1)).unwrap().to_string());
        segments(folder.path()).len() >= 3
    });
    let answered = answered.into_inner();
    let left = as_if_killed(folder.path(), &sink);
    let files = segments(left.path());
    assert_eq!(verify(&files).1, [], "before it is finished");
    let last = journal(files.last().unwrap());
    let mut cut = fs::read(&last).unwrap();
    cut.extend_from_slice(br#"{"head":"00"#);
    fs::write(&last, cut).unwrap();

    start_and_stop(left.path());
    assert_eq!(segments(left.path()), files);
    assert!(!files.iter().any(|file| journal(file).exists()));
    let (verified, problems) = verify(&files);
    assert_eq!(problems, []);
    assert!(verified.iter().all(|segment| segment.sealed));
    let rows: Vec<_> = files.iter().flat_map(|file| rows(file)).collect();
    let entered: HashSet<&str> =
        rows.iter().filter(|row| row.kind == "enter").map(|row| row.correlation_id.as_str()).collect();
    assert!(answered.iter().all(|id| entered.contains(id.as_str())));
    let ended: HashSet<u64> = rows.iter().filter_map(|row| row.enter).collect();
    assert_eq!(ended.len(), entered.len(), "each call ends once");
    let slow = rows.iter().find(|row| row.enter == Some(1)).unwrap();
    assert_eq!(slow.outcome.as_deref(), Some(INTERRUPTED));
    drop(other);
}

/// A changed journal is reported and does not prevent the next start; the rows before the change are brought in.
#[test]
fn a_changed_journal_does_not_stop_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let file = segments(folder.path()).pop().unwrap();
    let other = lock(&file);
    (0..3).for_each(|number| assert!(block_on(call(&sink, number)).is_ok()));
    eventually("all rows are written", || rows(&file).len() == 6);
    let left = as_if_killed(folder.path(), &sink);
    drop(other);
    let file = segments(left.path()).pop().unwrap();
    let text = fs::read_to_string(journal(&file)).unwrap();
    let changed: Vec<&str> = text.split_inclusive('\n').take(4).chain(["what is this\n"]).collect();
    fs::write(journal(&file), changed.concat()).unwrap();
    start_and_stop(left.path());
    let brought_in: u64 = Connection::open(&file)
        .unwrap()
        .query_row("SELECT count(*) FROM rows", [], |row| row.get(0))
        .unwrap();
    assert_eq!(brought_in, 4);
    let (_, problems) = verify(std::slice::from_ref(&file));
    assert!(problems[0].what.contains("line 5 of"), "{problems:?}");
    assert!(left.path().join(format!("{}.lock", sink.instance())).exists(), "the segment is not finished");
}

/// AUD-6: a journal whose rows are all in the database is replaced, and recording continues.
#[test]
fn a_long_journal_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let sink = open(folder.path());
    let large = format!("\"{}\"", "x".repeat(60_000));
    let enters: Vec<_> = (0..30).map(|_| enter_of(CorrelationId::mint(), "files__write", &large)).collect();
    for enter in &enters {
        block_on(sink.enter(enter)).unwrap();
    }
    let file = segments(folder.path()).pop().unwrap();
    // On a slow machine the journal is replaced before all rows arrive, and then has some again.
    let written = 30 * large.len() as u64;
    eventually("the journal is replaced", || fs::metadata(journal(&file)).unwrap().len() < written / 2 + 1);
    assert_eq!(rows(&file).len(), 30);
    block_on(call(&sink, 1)).unwrap();
    assert!(rows(&file).len() > 30, "the row is in the old journal or the new one");
    sink.close();
    assert_eq!(rows(&file).iter().map(|row| row.seq).collect::<Vec<_>>(), (1..=62).collect::<Vec<_>>());
    assert_eq!(verify(&[file]).1, []);
}

/// AUD-6: a segment that cannot be finished does not block those behind it, and is left to the next start.
#[test]
fn a_segment_that_cannot_be_finished_is_passed_by() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    (options.segment_bytes, options.patience) = (4_000, Duration::from_millis(500));
    let sink = StoreSink::open(options).unwrap();
    let first = segments(folder.path()).pop().unwrap();
    let other = lock(&first);
    let finished = |file: &PathBuf| !journal(file).exists();
    eventually("a segment behind it is finished", || {
        block_on(call(&sink, 1)).unwrap();
        segments(folder.path()).iter().any(finished)
    });
    assert!(!finished(&first));
    sink.close();
    assert!(!finished(&first), "it was left to the next start");
    assert_eq!(verify(&segments(folder.path())).1, []);
    drop((other, sink));
    start_and_stop(folder.path());
    assert!(segments(folder.path()).iter().all(finished));
    let (verified, problems) = verify(&segments(folder.path()));
    assert_eq!(problems, []);
    assert!(verified.iter().all(|segment| segment.sealed), "{verified:?}");
}

/// AUD-2, AUD-3, AUD-6: a reader sees an intact record at every moment while rows are written, brought in and sealed. Calls
/// that are open at the end get their exits, no matter which segment they entered in.
#[test]
fn a_record_verifies_at_every_moment_of_its_making() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    options.segment_bytes = 3 << 20;
    let sink = StoreSink::open(options).unwrap();
    let first = segments(folder.path()).remove(0);
    let payload = format!("\"{}\"", "x".repeat(20_000));
    let (mut before, mut looks, mut renewals, mut length) = (0, 0, 0, 0);
    let (seen, mut written) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Slowly enough that the journal does not wait for the end of a rush, and until the reader has seen enough.
            let calls = (1..3_000).take_while(|_| !seen.load(Ordering::Relaxed));
            calls
                .inspect(|_| {
                    block_on(sink.enter(&enter_of(CorrelationId::mint(), "files__write", &payload))).unwrap();
                    std::thread::sleep(Duration::from_millis(3));
                })
                .last()
        });
        while !writer.is_finished() {
            let files = segments(folder.path());
            let (verified, problems) = verify(&files);
            assert_eq!(problems, []);
            let count: u64 = verified.iter().map(|segment| segment.count).sum();
            assert!(count >= before, "{count} rows after {before}");
            before = count;
            let now = fs::metadata(journal(&first)).map_or(0, |data| data.len());
            renewals += usize::from(now < length);
            (length, looks) = (now, looks + 1);
            seen.store(renewals > 0 && files.len() > 1 && looks > 30, Ordering::Relaxed);
        }
        written = writer.join().unwrap().unwrap_or_default();
    });
    sink.close();
    let files = segments(folder.path());
    assert!(files.len() > 1 && renewals > 0, "{} segments, {renewals} journals", files.len());
    let (verified, problems) = verify(&files);
    assert_eq!(problems, []);
    assert_eq!(verified.iter().map(|segment| segment.count).sum::<u64>(), 2 * written);
}
