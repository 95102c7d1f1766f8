//! The thread that does what no call should wait for.
//!
//! It sleeps until something is queued, comes by a moment later for what no call took with it, and looks after
//! the log, the checkpoints and the size of the segment then. While it needs the segment for itself it holds
//! the line like a writer: calls wait without holding a thread.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use super::line::{Heavy, Waiting};
use super::segment::{Segment, connect};
use super::{Desk, Shared, StoreError, lock_path, recover, retention};
use crate::Checkpoint;
use crate::row::{Draft, Kind, Row};

/// A log of this size is brought into the file. That holds up calls, and under load a segment of the usual size is full
/// before: then its log is brought in when it is sealed, while calls go on with the next one.
pub(super) const LONG_LOG: u64 = 128 << 20;
/// How often it is brought there at most before the writers have to wait.
const MOST_PASSES: usize = 5;
/// What they may have added in one of these times.
const FEW_PAGES: i64 = 256;
/// How long exits may wait for a call that takes them along.
const COME_BY: Duration = Duration::from_millis(20);
/// How long it waits after a failed write.
const AFTER_FAILURE: Duration = Duration::from_millis(250);
/// How long a closing store tries to write what waits.
const LAST_TRY: Duration = Duration::from_secs(2);

pub(super) fn run(shared: &Shared) {
    let keeper = Keeper { shared };
    recover::all(&shared.options, &shared.instance, |checkpoint| keeper.publish(checkpoint));
    keeper.retain();
    let mut begun = Instant::now();
    let mut uncovered_since: Option<Instant> = None;
    loop {
        let closing = keeper.sleep(uncovered_since);
        keeper.prepare_heavy();
        shared.counter.write(shared, None);
        keeper.watch_disk();
        keeper.empty_log();
        uncovered_since = match (shared.uncovered.load(Ordering::Relaxed), uncovered_since) {
            (0, _) => None,
            (_, since) => Some(since.unwrap_or_else(Instant::now)),
        };
        if uncovered_since.is_some_and(|since| since.elapsed() >= shared.options.checkpoint_after) {
            keeper.checkpoint();
            uncovered_since = None;
        }
        if keeper.rotate(begun) {
            begun = Instant::now();
            keeper.retain();
        }
        keeper.publish_fresh();
        if closing {
            keeper.close();
            return;
        }
    }
}

struct Keeper<'a> {
    shared: &'a Shared,
}

impl Keeper<'_> {
    /// Waits for work; says whether the store closes.
    fn sleep(&self, uncovered_since: Option<Instant>) -> bool {
        let counter = &self.shared.counter;
        let mut line = counter.line.lock();
        let pause = if self.shared.failing.load(Ordering::Relaxed) { AFTER_FAILURE } else { COME_BY };
        // What is left from before: rows that could not be written, or large payloads.
        if !line.waiting.is_empty() || !line.heavy.is_empty() {
            line.armed = true;
        }
        if !line.armed && !line.closing {
            match uncovered_since {
                Some(since) => {
                    let due = since + self.shared.options.checkpoint_after;
                    counter.bell.wait_until(&mut line, due);
                }
                None => counter.bell.wait(&mut line),
            }
        }
        if line.armed && line.heavy.is_empty() && !line.closing {
            counter.bell.wait_for(&mut line, pause);
        }
        line.armed = false;
        line.closing
    }

    /// Digests and redacts large payloads, in the order they came.
    fn prepare_heavy(&self) {
        let counter = &self.shared.counter;
        loop {
            let next = match counter.line.lock().heavy.front() {
                None => return,
                Some(Heavy::Enter(event, slot)) => Heavy::Enter(event.clone(), Arc::clone(slot)),
                Some(Heavy::Exit(event)) => Heavy::Exit(event.clone()),
            };
            let (draft, slot) = match next {
                Heavy::Enter(event, slot) => (self.shared.keeping.enter(&event), Some(slot)),
                Heavy::Exit(event) => (self.shared.keeping.exit(&event), None),
            };
            let mut line = counter.line.lock();
            line.pop_heavy();
            line.push(draft, slot);
        }
    }

    /// Refuses the calls that wait behind a write that does not come back.
    fn watch_disk(&self) {
        let counter = &self.shared.counter;
        let mut line = counter.line.lock();
        let stalled = line.writing.is_some_and(|since| since.elapsed() >= self.shared.options.patience);
        if !stalled {
            if line.busy {
                line.armed = true;
            }
            return;
        }
        line.armed = true;
        let (refused, kept): (Vec<Waiting>, Vec<Waiting>) =
            line.take().into_iter().partition(|row| row.draft.kind == Kind::Enter);
        line.put_back(kept);
        drop(line);
        let reason: Arc<str> = "the disk of the audit folder does not answer".into();
        for slot in refused.into_iter().filter_map(|row| row.slot) {
            slot.settle(Err(Arc::clone(&reason)));
        }
    }

    /// Does something with the segment while nobody writes.
    fn alone<T>(&self, act: impl FnOnce(&mut Desk) -> T) -> T {
        let counter = &self.shared.counter;
        loop {
            let mut line = counter.line.lock();
            if !line.busy {
                line.busy = true;
                break;
            }
            drop(line);
            // A writer is done in a moment, unless the disk does not answer.
            self.watch_disk();
            std::thread::sleep(Duration::from_micros(200));
        }
        let done = act(&mut self.shared.desk.lock());
        counter.line.lock().busy = false;
        counter.pass_on();
        done
    }

    /// Brings the log into the file: beside the writers as long as they add much to it meanwhile, the rest while they
    /// wait, so that the log is begun anew instead of growing for ever under load. They wait for the disk then, and
    /// what it has to write should be little.
    fn empty_log(&self) {
        if !self.shared.work.swap(false, Ordering::Relaxed) {
            return;
        }
        let long = self.alone(|desk| {
            let segment = desk.segment.as_ref()?;
            (segment.logged() >= LONG_LOG).then(|| segment.path().to_owned())
        });
        let Some(path) = long else { return };
        let emptied = connect(&path, true).and_then(|connection| {
            // Says how many pages the log has.
            let empty = || {
                connection
                    .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1))
                    .map_err(|error| StoreError::database(&path, &error))
            };
            let mut pages = 0;
            for _ in 0..MOST_PASSES {
                let before = std::mem::replace(&mut pages, empty()?);
                if pages - before < FEW_PAGES {
                    break;
                }
            }
            self.alone(|desk| {
                empty()?;
                desk.segment.as_mut().into_iter().for_each(Segment::log_emptied);
                Ok(())
            })
        });
        if let Err(error) = emptied {
            warn!(%error, "the audit log could not be brought into its file; it will be tried again");
        }
    }

    fn checkpoint(&self) {
        let options = &self.shared.options;
        self.alone(|desk| {
            let Some(segment) = &mut desk.segment else { return };
            if let Ok(checkpoint) = segment.checkpoint(false, options.clock.wall(), options.signer.as_ref()) {
                desk.fresh.push(checkpoint);
            }
            self.shared.uncovered.store(segment.uncovered(), Ordering::Relaxed);
        });
    }

    /// Begins another segment when this one is large or old; says whether it did.
    fn rotate(&self, begun: Instant) -> bool {
        let options = &self.shared.options;
        let old_enough = begun.elapsed() >= options.segment_age;
        if !self.shared.full.swap(false, Ordering::Relaxed) && !old_enough {
            return false;
        }
        let old = self.alone(|desk| {
            let segment = desk.segment.as_ref().filter(|segment| segment.count() > 0)?;
            let header = segment.header();
            let next = Segment::create(
                &options.folder,
                &header.instance,
                header.index + 1,
                segment.next(),
                Some(segment.head()),
                options.clock.wall(),
            );
            match next {
                Ok(next) => desk.segment.replace(next),
                Err(error) => {
                    // The old one goes on: a record too long is better than none.
                    warn!(%error, "no new audit segment could be begun");
                    None
                }
            }
        });
        let Some(old) = old else { return false };
        self.shared.uncovered.store(0, Ordering::Relaxed);
        self.seal(old);
        true
    }

    /// Says whether it could.
    fn seal(&self, segment: Segment) -> bool {
        let options = &self.shared.options;
        let name = segment.header().segment.clone();
        match segment.seal(options.clock.wall(), options.signer.as_ref()) {
            Ok(checkpoint) => {
                self.publish(&checkpoint);
                true
            }
            Err(error) => {
                warn!(%error, segment = name, "an audit segment could not be sealed");
                false
            }
        }
    }

    fn retain(&self) {
        retention::run(&self.shared.options, &self.shared.instance);
    }

    fn publish_fresh(&self) {
        // Looked at without the line: a writer adds to it and sets `work`, which brings us back.
        let fresh = match self.shared.desk.try_lock() {
            Some(mut desk) => std::mem::take(&mut desk.fresh),
            None => {
                self.shared.work.store(true, Ordering::Relaxed);
                self.shared.counter.line.lock().armed = true;
                return;
            }
        };
        fresh.iter().for_each(|checkpoint| self.publish(checkpoint));
    }

    fn publish(&self, checkpoint: &Checkpoint) {
        let options = &self.shared.options;
        let file = options.checkpoint_path();
        if let Err(error) = append_line(&file, &checkpoint.text()) {
            warn!(%error, file = %file.display(), "an audit checkpoint could not be appended to its file");
        }
        if let Some(tell) = &options.on_checkpoint {
            tell(checkpoint);
        }
    }

    /// Writes what waits, ends what is open, seals.
    fn close(&self) {
        let shared = self.shared;
        let until = Instant::now() + LAST_TRY;
        loop {
            self.prepare_heavy();
            shared.counter.write(shared, None);
            let mut line = shared.counter.line.lock();
            let done = line.waiting.is_empty() && line.heavy.is_empty() && !line.busy;
            if done || Instant::now() >= until {
                line.closed = true;
                if !done {
                    error!(
                        rows = line.waiting.len(),
                        "the store closes with exits that could not be written"
                    );
                }
                let left = line.take();
                drop(line);
                let reason: Arc<str> = "the store is closed".into();
                for slot in left.into_iter().filter_map(|row| row.slot) {
                    slot.settle(Err(Arc::clone(&reason)));
                }
                break;
            }
            drop(line);
            std::thread::sleep(COME_BY);
        }
        let segment = self.alone(|desk| {
            let mut segment = desk.segment.take()?;
            let open = desk.open.numbers();
            let ends = segment.texts(&open).map(|texts| ends(&texts, shared.options.clock.wall()));
            if let Ok(mut ends) = ends
                && !ends.is_empty()
                && let Err(error) = segment.append(&mut ends, &mut desk.open)
            {
                warn!(%error, "calls that were cut off could not be marked as interrupted");
            }
            Some(segment)
        });
        self.publish_fresh();
        let Some(segment) = segment else { return };
        if segment.count() == 0 && segment.header().index == 1 {
            segment.discard();
        } else if !self.seal(segment) {
            // The next start finds the lock that nobody holds, and finishes.
            return;
        }
        self.retain();
        let _ = std::fs::remove_file(lock_path(&shared.options.folder, &shared.instance));
    }
}

/// The exits of calls whose end nobody saw.
pub(super) fn ends(enters: &[String], now: jiff::Timestamp) -> Vec<Draft> {
    let rows = enters.iter().filter_map(|text| serde_json::from_str::<Row>(text).ok());
    rows.filter_map(|row| Draft::interrupted(&row, now)).collect()
}

/// One write, so that lines of several gateways do not mix.
pub(super) fn append_line(file: &Path, line: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut open = OpenOptions::new();
    open.append(true).create(true).mode(0o600).open(file)?.write_all(format!("{line}\n").as_bytes())
}
