//! The sink with its keeper's thread, and failures between the two.

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

fn fill(sink: &StoreSink, full: bool) {
    sink.shared.writer.lock().segment.as_mut().unwrap().fill_disk(full);
}

fn exit(enter: &Enter) -> Exit {
    let body = Bytes::from(format!("\"{}\"", "y".repeat(5_000)));
    Exit::new(enter.call(), enter.moment(), enter.moment(), Outcome::Result { body, is_error: false })
}

/// AUD-2, AUD-3: rows that share an insert statement, and the remaining ones, are in the file in order and verify.
#[test]
fn rows_of_one_commit_are_written_whatever_their_number() {
    for many in [1, 15, 16, 17, 32, 40] {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemClock::default().wall();
        let store = SqliteFiles::new(folder.path());
        let (mut segment, mut intake) = Segment::first(&store, folder.path(), "instance", now).unwrap();
        let mut rows: Vec<_> = (0..many).map(|_| Keeping::default().enter(&event())).collect();
        segment.append(&mut rows, &mut OpenCalls::default()).unwrap();
        while intake.take_in().unwrap() {}
        intake.add(segment.checkpoint(true, now, None));
        assert_eq!(intake.state().unwrap().len(), 1);
        intake.finish().unwrap();
        let (mut numbers, mut verifier) = (Vec::new(), Verifier::default());
        read_segment(&segments(folder.path()).remove(0), |record| {
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

/// PIPE-4, PIPE-6: on a full disk calls are refused and exits wait; with room again both are written and the chain has
/// no gap.
#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let sink = StoreSink::open(StoreOptions::new(folder.path())).unwrap();
    let first = event();
    let ticket = block_on(sink.enter(&first)).unwrap();
    fill(&sink, true);
    sink.exit(ticket, exit(&first)).unwrap();
    let error = block_on(sink.enter(&event())).unwrap_err().to_string();
    assert!(error.contains("the disk is full"), "{error}");
    fill(&sink, false);
    block_on(sink.enter(&event())).unwrap();
    sink.close();
    let file = segments(folder.path()).remove(0);
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
        [(1, None, None), (2, Some(1), Some("result")), (3, None, None), (4, Some(3), Some("interrupted"))]
    );
}

/// PIPE-4: with `OnFailure::Continue` calls go on without a record, and are counted.
#[test]
fn a_full_disk_is_counted_where_calls_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(folder.path());
    options.on_failure = OnFailure::Continue;
    let sink = StoreSink::open(options).unwrap();
    fill(&sink, true);
    block_on(sink.enter(&event())).unwrap();
    assert_eq!(sink.unrecorded_calls(), 1);
    fill(&sink, false);
    block_on(sink.enter(&event())).unwrap();
    assert_eq!(sink.unrecorded_calls(), 1);
}

/// AUD-2: the next start also finishes what a process left between two steps: files that were never renamed into place,
/// and a sealed segment that still has its journal.
#[test]
fn what_was_left_between_two_steps_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let sink = StoreSink::open(StoreOptions::new(folder.path())).unwrap();
    block_on(sink.enter(&event())).unwrap();
    sink.close();
    let file = segments(folder.path()).remove(0);
    let store = SqliteFiles::new(folder.path());
    let [name, next] = [1, 2].map(|index| segment_name(sink.instance(), index));
    drop(store.prepare(&next).unwrap());
    std::fs::write(journal_of(folder.path(), &next).with_extension("rows.new"), "").unwrap();
    std::fs::write(journal_of(folder.path(), &name), "").unwrap();
    std::fs::write(lock_path(folder.path(), sink.instance()), "").unwrap();
    StoreSink::open(StoreOptions::new(folder.path())).unwrap().close();
    assert_eq!(segments(folder.path()), std::slice::from_ref(&file));
    assert!(recover::is_sealed(&store, &name) && !journal_of(folder.path(), &name).exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "the segment and the checkpoints");
}

/// AUD-2: a store that closes while its file is locked is finished at the next start.
#[test]
fn a_segment_that_cannot_be_sealed_is_finished_later() {
    let folder = tempfile::tempdir().unwrap();
    let sink = StoreSink::open(StoreOptions::new(folder.path())).unwrap();
    block_on(sink.enter(&event())).unwrap();
    let file = segments(folder.path()).remove(0);
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    sink.close();
    let lock = lock_path(folder.path(), sink.instance());
    let store = SqliteFiles::new(folder.path());
    let name = segment_name(sink.instance(), 1);
    assert!(lock.exists() && !recover::is_sealed(&store, &name));
    drop((sink, other));
    StoreSink::open(StoreOptions::new(folder.path())).unwrap().close();
    assert!(!lock.exists() && recover::is_sealed(&store, &name));
}

/// The queue is bounded: a store that cannot write eventually refuses exits instead of growing.
#[test]
fn the_line_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let sink = StoreSink::open(StoreOptions::new(folder.path())).unwrap();
    fill(&sink, true);
    let enter = event();
    let exit = || Exit::new(enter.call(), enter.moment(), enter.moment(), Outcome::Cancelled);
    let taken = (0..2 * commit_queue::MOST_ROWS).take_while(|_| sink.exit(None, exit()).is_ok()).count();
    assert!((commit_queue::MOST_ROWS..2 * commit_queue::MOST_ROWS).contains(&taken), "{taken}");
    assert!(matches!(block_on(sink.enter(&enter)), Err(AuditError::Full | AuditError::Failed(_))));
    fill(&sink, false);
}

/// PIPE-4: calls behind a write that does not return are refused, also if nothing else wakes the keeper; a waiting exit
/// stays.
#[test]
fn a_disk_that_does_not_answer_refuses() {
    for exits in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(folder.path());
        options.patience = Duration::from_millis(100);
        let sink = StoreSink::open(options).unwrap();
        {
            let mut line = sink.shared.counter.line.lock();
            line.busy = true;
            line.writing = Some(std::time::Instant::now());
        }
        let enter = event();
        (0..exits).for_each(|_| sink.exit(None, exit(&enter)).unwrap());
        let waited =
            block_on(async { tokio::time::timeout(Duration::from_secs(60), sink.enter(&enter)).await });
        // Resets this before any assertion can fail: the store cannot close during a write.
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

/// AUD-2: the count of written bytes, which detects a rush, counts each row once.
#[test]
fn what_was_written_is_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let sink = StoreSink::open(StoreOptions::new(folder.path())).unwrap();
    for _ in 0..3 {
        block_on(sink.enter(&event())).unwrap();
    }
    let bytes = sink.shared.writer.lock().segment.as_ref().unwrap().bytes();
    assert!(bytes > 3 * 5_000);
    assert_eq!(sink.shared.written.load(Ordering::Relaxed), bytes);
}
