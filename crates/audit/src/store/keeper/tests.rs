//! The keeper's rounds, one step at a time and without its thread.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Waker};

use super::super::commit_queue::Slot;
use super::super::tests::event;
use super::super::{CHECKPOINT_FILE, SqliteFiles, journal_of};
use super::*;
use crate::{Clock, Exit, Outcome, SystemClock, read_checkpoints};

const LONG: Duration = Duration::from_secs(60 * 60);

/// A store without a keeper.
fn begun(folder: &Path, change: impl FnOnce(&mut StoreOptions)) -> (Shared, Intake) {
    let mut options = StoreOptions::new(folder);
    change(&mut options);
    Shared::begin(options).unwrap()
}

/// Another segment.
fn another(folder: &Path, number: usize) -> Intake {
    let (store, now) = (SqliteFiles::new(folder), SystemClock::default().wall());
    Segment::first(&store, folder, &format!("another-{number}"), now).unwrap().1
}

/// The only segment in the store.
fn only(shared: &Shared) -> String {
    shared.store.segments().unwrap().remove(0)
}

fn append(shared: &Shared, rows: usize) {
    let enter = || Waiting { draft: shared.keeping.enter(&event()), slot: None };
    let mut rows: Vec<_> = (0..rows).map(|_| enter()).collect();
    shared.append(&mut rows).unwrap();
}

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// AUD-2: the journal waits only while rows come fast, measured since a look that is long enough ago.
#[test]
fn a_rush_is_told_by_what_was_written() {
    let mut pace = Pace { since: Instant::now(), written: 0, rush: false };
    assert!(!pace.is_rush(10 * RUSH), "too short to tell");
    pace.since = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    assert!(pace.is_rush(10 * RUSH));
    assert!(pace.is_rush(10 * RUSH), "too short to tell");
    pace.since = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    assert!(!pace.is_rush(10 * RUSH + RUSH / 2));
}

/// AUD-2: the journal waits for the end of a rush, unless many segments wait.
#[test]
fn many_segments_do_not_wait_for_the_end_of_a_rush() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, intake) = begun(folder.path(), |_| {});
    let mut keeper = Keeper::new(&shared, intake);
    assert!(keeper.has_time());
    // A look in the future: too short to tell.
    keeper.pace = Pace { since: Instant::now() + LONG, written: 0, rush: true };
    for number in 1..=MOST_WAITING {
        assert!(!keeper.has_time(), "{number}");
        keeper.intakes.push_front(another(folder.path(), number));
    }
    assert!(keeper.has_time());
}

/// AUD-2: the keeper waits with patience for a store that refuses rows; then the segments behind it get their turn.
#[test]
fn a_database_that_takes_nothing_is_waited_for() {
    #[track_caller]
    fn check(patience: Duration, files: usize, left: usize, told: Option<bool>) {
        let folder = tempfile::tempdir().unwrap();
        let (shared, intake) = begun(folder.path(), |options| options.patience = patience);
        let mut keeper = Keeper::new(&shared, intake);
        (1..files).for_each(|number| keeper.intakes.push_front(another(folder.path(), number)));
        let error = StoreError::Damaged { place: "a.0001".to_owned(), what: "locked".to_owned() };
        keeper.cannot_bring_in(&error);
        let trouble = keeper.trouble.as_ref().map(|trouble| trouble.told);
        assert_eq!((keeper.intakes.len(), trouble, keeper.unfinished), (left, told, left < files));
    }
    check(LONG, 1, 1, Some(false));
    check(LONG, 2, 2, Some(false));
    check(Duration::ZERO, 1, 1, Some(true));
    check(Duration::ZERO, 2, 1, None);
    check(Duration::ZERO, 3, 2, None);
}

/// PIPE-4: calls behind a write that does not return are refused, and exits stay; a write that is only slow is checked
/// again later.
#[test]
fn calls_behind_a_write_that_does_not_come_back_are_refused() {
    #[track_caller]
    fn check(patience: Duration, busy: bool, armed: bool, refused: bool) {
        let folder = tempfile::tempdir().unwrap();
        let (shared, intake) = begun(folder.path(), |options| options.patience = patience);
        let slot = Arc::<Slot>::default();
        {
            let mut line = shared.counter.line.lock();
            line.busy = busy;
            line.writing = busy.then(Instant::now);
            line.push(Draft::empty(RowKind::Enter), Some(Arc::clone(&slot)));
            line.push(Draft::empty(RowKind::Exit), None);
        }
        Keeper::new(&shared, intake).watch_disk();
        let line = shared.counter.line.lock();
        let left: Vec<bool> = line.waiting.iter().map(|row| row.draft.kind == RowKind::Enter).collect();
        assert_eq!(left, if refused { vec![false] } else { vec![true, false] });
        let answer = slot.poll(&Context::from_waker(Waker::noop()));
        assert_eq!((answer.is_some_and(|it| it.is_err()), line.armed), (refused, armed));
    }
    check(LONG, false, false, false);
    check(LONG, true, true, false);
    check(Duration::ZERO, false, false, false);
    check(Duration::ZERO, true, true, true);
}

/// AUD-3: a checkpoint covers rows once they are many or have waited long enough, and not before.
#[test]
fn rows_are_covered_when_they_are_many_or_old() {
    #[track_caller]
    fn check(rows: usize, after: Duration, counts: &[u64]) {
        let folder = tempfile::tempdir().unwrap();
        let (shared, intake) = begun(folder.path(), |options| {
            (options.checkpoint_rows, options.checkpoint_after) = (3, after);
        });
        let mut keeper = Keeper::new(&shared, intake);
        if rows > 0 {
            append(&shared, rows);
        }
        keeper.cover();
        let waits = rows > 0 && counts.is_empty();
        assert_eq!((keeper.uncovered_since.is_some(), value(&shared.uncovered) > 0), (waits, waits));
        keeper.bring_in();
        assert!(!keeper.is_behind());
        let file = read_checkpoints(&folder.path().join(CHECKPOINT_FILE)).unwrap();
        assert_eq!(file.checkpoints.iter().map(|it| it.count).collect::<Vec<_>>(), counts);
    }
    check(0, Duration::ZERO, &[]);
    check(2, LONG, &[]);
    check(2, Duration::ZERO, &[2]);
    check(3, LONG, &[3]);
}

/// AUD-2, AUD-6: the journal goes into the store, is replaced when it is long, and is removed when its segment is finished.
#[test]
fn the_journal_is_brought_in() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, intake) = begun(folder.path(), |_| {});
    let name = only(&shared);
    let length = || std::fs::metadata(journal_of(folder.path(), &name)).map(|it| it.len()).ok();
    let mut keeper = Keeper::new(&shared, intake);
    append(&shared, 3);
    assert!(keeper.is_behind());
    keeper.bring_in();
    assert!(!keeper.is_behind() && length() > Some(0), "a short journal stays in use");
    append(&shared, 250);
    keeper.bring_in();
    assert_eq!((keeper.is_behind(), length()), (false, Some(0)));

    append(&shared, 1);
    shared.full.store(true, Ordering::Relaxed);
    keeper.rotate();
    assert_eq!(keeper.intakes.len(), 2);
    keeper.bring_in();
    assert_eq!((keeper.intakes.len(), keeper.is_behind(), length()), (1, false, None));
    let numbers: Vec<u64> = (1..=255).collect();
    assert_eq!(rows(&*shared.store, &name, &numbers).unwrap().len(), 254);
    assert!(recover::is_sealed(&*shared.store, &name));
}

/// AUD-2: a row that arrives while the journal is brought in is not lost.
#[test]
fn a_journal_with_a_new_row_is_not_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, mut intake) = begun(folder.path(), |_| {});
    append(&shared, 250);
    while intake.take_in().unwrap() {}
    assert!(intake.wants_journal());
    let mut keeper = Keeper::new(&shared, intake);
    append(&shared, 1);
    keeper.renew_journal();
    assert!(keeper.is_behind());
    keeper.bring_in();
    assert_eq!(rows(&*shared.store, &only(&shared), &[250, 251]).unwrap().len(), 2);
}

/// AUD-2: large payloads become waiting rows, in the order they arrived.
#[test]
fn large_payloads_become_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, intake) = begun(folder.path(), |_| {});
    let enter = event();
    let exit = Exit::new(enter.call(), enter.moment(), enter.moment(), Outcome::Cancelled);
    shared.counter.line.lock().push_heavy(Heavy::Enter(Box::new(enter), Arc::default()));
    shared.counter.line.lock().push_heavy(Heavy::Exit(Box::new(exit), None));
    Keeper::new(&shared, intake).prepare_heavy();
    let line = shared.counter.line.lock();
    let rows: Vec<_> =
        line.waiting.iter().map(|row| (row.draft.kind == RowKind::Enter, row.slot.is_some())).collect();
    assert_eq!((rows, line.heavy.len()), (vec![(true, true), (false, false)], 0));
}

/// AUD-2: the journal is brought in without a pause where possible, and a failure is retried after a while.
#[test]
fn a_keeper_pauses_longest_after_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, intake) = begun(folder.path(), |_| {});
    let mut keeper = Keeper::new(&shared, intake);
    assert_eq!(keeper.pause(), COME_BY);
    keeper.intakes.push_front(another(folder.path(), 1));
    assert_eq!(keeper.pause(), Duration::ZERO, "a segment must be finished");
    keeper.trouble = Some(Trouble { since: Instant::now(), told: false });
    assert_eq!(keeper.pause(), AFTER_FAILURE, "a store refuses rows");
    keeper.trouble = None;
    shared.failing.store(true, Ordering::Relaxed);
    assert_eq!(keeper.pause(), AFTER_FAILURE, "the journal cannot be written");
    shared.failing.store(false, Ordering::Relaxed);
    keeper.pace = Pace { since: Instant::now() + LONG, written: 0, rush: true };
    assert_eq!(keeper.pause(), COME_BY, "in a rush");
}

/// Whether a keeper wakes by itself within this time.
fn wakes(keeper: &mut Keeper<'_>, within: Duration) -> bool {
    let counter = &keeper.shared.counter;
    counter.line.lock().armed = false;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| keeper.sleep());
        let until = Instant::now() + within;
        while !sleeper.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let awake = sleeper.is_finished();
        counter.line.lock().arm();
        counter.bell.notify_one();
        assert!(!sleeper.join().unwrap(), "the store is not closing");
        awake
    })
}

/// AUD-2: a keeper with nothing to do sleeps until it is woken; remaining work or a due checkpoint wakes it.
#[test]
fn a_keeper_sleeps_while_there_is_nothing_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, intake) =
        begun(folder.path(), |options| options.checkpoint_after = Duration::from_millis(5));
    let mut keeper = Keeper::new(&shared, intake);
    let (a_while, minute) = (5 * COME_BY, Duration::from_secs(60));
    assert!(!wakes(&mut keeper, a_while), "nothing to do");
    keeper.uncovered_since = Some(Instant::now() + LONG);
    assert!(!wakes(&mut keeper, a_while), "no checkpoint is due");
    keeper.uncovered_since = Some(Instant::now());
    assert!(wakes(&mut keeper, minute), "a checkpoint is due");
    keeper.uncovered_since = None;
    shared.counter.line.lock().push(Draft::empty(RowKind::Exit), None);
    assert!(wakes(&mut keeper, minute), "a row waits");
    drop(shared.counter.line.lock().take());
    append(&shared, 1);
    assert!(wakes(&mut keeper, minute), "the journal has a row");
    keeper.bring_in();
    assert!(!wakes(&mut keeper, a_while), "nothing is left");
    shared.counter.line.lock().closing = true;
    assert!(keeper.sleep(), "the store closes");
}
