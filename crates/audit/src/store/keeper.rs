//! The keeper: the thread that does the work that no call should wait for.
//!
//! It sleeps until a row is written or queued. A moment later it writes the rows that no call took along, brings the
//! journal into the store, makes due checkpoints and rotates the segment. While calls come so fast that they need the
//! processor, the journal waits. When the keeper needs the segment for itself it marks the commit queue busy, like a
//! writer: calls then wait without blocking a thread.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use super::backend::Store;
use super::commit_queue::{Heavy, Waiting};
use super::intake::Intake;
use super::segment::{Segment, index, segments_of};
use super::{Shared, StoreError, StoreOptions, Writer, files, lock_path, recover, retention};
use crate::Checkpoint;
use crate::records::ReadError;
use crate::row::{Draft, Row, RowKind};

/// How long exits may wait for a call that writes them too.
const COME_BY: Duration = Duration::from_millis(20);
/// The pause after a failed write.
const AFTER_FAILURE: Duration = Duration::from_millis(250);
/// How long a closing store tries to write the waiting rows.
const LAST_TRY: Duration = Duration::from_secs(2);
/// This many bytes of rows per second are a rush: the journal waits until it is over.
const RUSH: u64 = 8 << 20;
/// How many segments may wait for the end of a rush.
const MOST_WAITING: usize = 4;

pub(super) fn run(shared: &Shared, intake: Intake) {
    let mut keeper = Keeper::new(shared, intake);
    let publish = |checkpoint: &Checkpoint| keeper.publish(checkpoint);
    recover::all(&*shared.store, &shared.options, &shared.instance, publish);
    keeper.retain();
    loop {
        let closing = keeper.sleep();
        keeper.prepare_heavy();
        shared.counter.write(shared, None);
        keeper.watch_disk();
        keeper.cover();
        keeper.rotate();
        if keeper.has_time() {
            keeper.bring_in();
        }
        if closing {
            keeper.close();
            return;
        }
    }
}

struct Keeper<'a> {
    shared: &'a Shared,
    /// The unfinished segments; the growing one is last.
    intakes: VecDeque<Intake>,
    /// When the growing segment was begun.
    begun: Instant,
    uncovered_since: Option<Instant>,
    pace: Pace,
    /// The store refuses rows of the first segment.
    trouble: Option<Trouble>,
    /// A segment is left for the next start to finish.
    unfinished: bool,
}

/// A store that refuses rows.
struct Trouble {
    since: Instant,
    told: bool,
}

/// How fast rows come.
struct Pace {
    since: Instant,
    written: u64,
    rush: bool,
}

impl Pace {
    /// Whether rows come fast, measured over at least `COME_BY` since the last look.
    fn is_rush(&mut self, written: u64) -> bool {
        let elapsed = self.since.elapsed();
        if elapsed >= COME_BY {
            let rate = (written - self.written) as f64 / elapsed.as_secs_f64();
            *self = Self { since: Instant::now(), written, rush: rate >= RUSH as f64 };
        }
        self.rush
    }
}

impl<'a> Keeper<'a> {
    fn new(shared: &'a Shared, intake: Intake) -> Self {
        Self {
            shared,
            intakes: VecDeque::from([intake]),
            begun: Instant::now(),
            uncovered_since: None,
            pace: Pace { since: Instant::now(), written: 0, rush: false },
            trouble: None,
            unfinished: false,
        }
    }

    /// Waits for work; returns whether the store closes.
    fn sleep(&mut self) -> bool {
        let counter = &self.shared.counter;
        let (behind, pause) = (self.is_behind(), self.pause());
        let mut line = counter.line.lock();
        // Work left from before: rows that could not be written, and the journal. A call with a large payload wakes the
        // keeper itself.
        if behind || !line.waiting.is_empty() {
            line.armed = true;
        }
        if !line.armed && !line.closing {
            match self.uncovered_since {
                Some(since) => {
                    let due = since + self.shared.options.checkpoint_after;
                    counter.bell.wait_until(&mut line, due);
                }
                None => counter.bell.wait(&mut line),
            }
        }
        if line.armed && line.heavy.is_empty() && !line.closing && !pause.is_zero() {
            counter.bell.wait_for(&mut line, pause);
        }
        line.armed = false;
        line.closing
    }

    /// How long calls have to queue more before the next round.
    fn pause(&mut self) -> Duration {
        let failing = self.trouble.is_some() || self.shared.failing.load(Ordering::Relaxed);
        match (failing, self.is_behind() && self.has_time()) {
            (true, _) => AFTER_FAILURE,
            (false, true) => Duration::ZERO,
            (false, false) => COME_BY,
        }
    }

    fn is_behind(&self) -> bool {
        self.intakes.len() > 1 || self.intakes.iter().any(Intake::is_behind)
    }

    /// Whether to bring the journal in now.
    fn has_time(&mut self) -> bool {
        let rush = self.pace.is_rush(self.shared.written.load(Ordering::Relaxed));
        !rush || self.intakes.len() > MOST_WAITING
    }

    /// Digests and redacts large payloads, in the order they arrived.
    fn prepare_heavy(&self) {
        let counter = &self.shared.counter;
        loop {
            let next = match counter.line.lock().heavy.front() {
                None => return,
                Some(Heavy::Enter(event, slot)) => Heavy::Enter(event.clone(), Arc::clone(slot)),
                Some(Heavy::Exit(event, ticket)) => Heavy::Exit(event.clone(), *ticket),
            };
            let (draft, slot) = match next {
                Heavy::Enter(event, slot) => (self.shared.keeping.enter(&event), Some(slot)),
                Heavy::Exit(event, ticket) => (self.shared.keeping.exit(ticket, &event), None),
            };
            let mut line = counter.line.lock();
            line.pop_heavy();
            line.push(draft, slot);
        }
    }

    /// Refuses the calls that wait behind a write that does not return.
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
            line.take().into_iter().partition(|row| row.draft.kind == RowKind::Enter);
        line.put_back(kept);
        drop(line);
        let reason: Arc<str> = "the disk of the audit folder does not answer".into();
        for slot in refused.into_iter().filter_map(|row| row.slot) {
            slot.refuse(Arc::clone(&reason));
        }
    }

    /// Runs `act` on the segment while no write is in progress.
    fn alone<T>(&self, act: impl FnOnce(&mut Writer) -> T) -> T {
        let counter = &self.shared.counter;
        loop {
            let mut line = counter.line.lock();
            if !line.busy {
                line.busy = true;
                break;
            }
            drop(line);
            // A write takes only a moment, unless the disk does not answer.
            self.watch_disk();
            std::thread::sleep(Duration::from_micros(200));
        }
        let done = act(&mut self.shared.writer.lock());
        counter.line.lock().busy = false;
        counter.pass_on();
        done
    }

    /// Brings a part of the journal into the store, and finishes the segment if that was the last part.
    fn bring_in(&mut self) {
        let Some(intake) = self.intakes.front_mut() else { return };
        let stated = match intake.take_in().and_then(|_| intake.state()) {
            Ok(stated) => stated,
            Err(error) => return self.cannot_bring_in(&error),
        };
        let done = intake.wants_journal();
        if self.trouble.take().is_some_and(|trouble| trouble.told) {
            self.tell_lag(false);
        }
        match self.publish_but_the_seal(&stated) {
            Some(sealed) => {
                if let Some(intake) = self.intakes.pop_front() {
                    self.finish(intake, sealed);
                    self.retain();
                }
            }
            None if done && self.intakes.len() == 1 => self.renew_journal(),
            None => {}
        }
    }

    /// Publishes all checkpoints except the seal, and returns the seal, which is the last if there is one. The segment
    /// must be finished before its seal is published.
    fn publish_but_the_seal<'c>(&self, stated: &'c [Checkpoint]) -> Option<&'c Checkpoint> {
        stated.iter().filter(|checkpoint| !checkpoint.sealed).for_each(|checkpoint| self.publish(checkpoint));
        stated.last().filter(|last| last.sealed)
    }

    /// Another program locks the file, the disk is full, or the file is damaged. The rows are safe in the journal.
    fn cannot_bring_in(&mut self, error: &StoreError) {
        let trouble = self.trouble.get_or_insert_with(|| Trouble { since: Instant::now(), told: false });
        if trouble.since.elapsed() < self.shared.options.patience {
            return;
        }
        if self.intakes.len() > 1 {
            // It would keep the segments behind it waiting forever.
            warn!(%error, "an audit segment cannot be finished; the next start tries again");
            self.intakes.pop_front();
            (self.trouble, self.unfinished) = (None, true);
        } else if !std::mem::replace(&mut trouble.told, true) {
            warn!(%error, "audit rows stay in the journal: the store refuses them; the gateway tries again");
            self.tell_lag(true);
        }
    }

    fn tell_lag(&self, behind: bool) {
        if let Some(tell) = &self.shared.options.on_lag {
            tell(behind);
        }
    }

    /// Replaces the journal when it is long and all of it is in the store.
    fn renew_journal(&mut self) {
        let Some(mut intake) = self.intakes.pop_back() else { return };
        let renewed = self.alone(|writer| match &mut writer.segment {
            // Only now is it certain that no row arrived meanwhile.
            Some(segment) if intake.wants_journal() => segment.renew_journal(&mut intake),
            _ => Ok(()),
        });
        if let Err(error) = renewed {
            warn!(%error, "the audit journal could not be replaced; the old one stays in use");
        }
        self.intakes.push_back(intake);
    }

    /// Takes the checkpoints that calls made, and makes one when rows have waited long enough.
    fn cover(&mut self) {
        self.uncovered_since = match (self.shared.uncovered.load(Ordering::Relaxed), self.uncovered_since) {
            (0, _) => None,
            (_, since) => Some(since.unwrap_or_else(Instant::now)),
        };
        let options = &self.shared.options;
        let due = self.uncovered_since.is_some_and(|since| since.elapsed() >= options.checkpoint_after);
        if due {
            self.alone(|writer| {
                let Some(segment) = &mut writer.segment else { return };
                writer.fresh.push(segment.checkpoint(false, options.clock.wall(), options.signer.as_ref()));
                self.shared.uncovered.store(0, Ordering::Relaxed);
            });
            self.uncovered_since = None;
        }
        // During a write the lock is taken; the next round comes soon.
        let fresh = self
            .shared
            .writer
            .try_lock()
            .map(|mut writer| std::mem::take(&mut writer.fresh))
            .unwrap_or_default();
        if let Some(intake) = self.intakes.back_mut() {
            fresh.into_iter().for_each(|checkpoint| intake.add(checkpoint));
        }
    }

    /// Begins another segment when this one is large or old. The old one is finished once all its rows are in the store.
    fn rotate(&mut self) {
        let options = &self.shared.options;
        let old_enough = self.begun.elapsed() >= options.segment_age;
        if !self.shared.full.swap(false, Ordering::Relaxed) && !old_enough {
            return;
        }
        self.begun = Instant::now();
        let now = options.clock.wall();
        let next = self.alone(|writer| {
            let segment = writer.segment.as_ref().filter(|segment| segment.count() > 0)?;
            Some(segment.next_name())
        });
        let Some(name) = next else { return };
        let rotated = self.shared.store.prepare(&name).and_then(|blank| {
            self.alone(|writer| {
                let Some(old) = &mut writer.segment else { return Ok(None) };
                let (next, intake) = old.follow(blank, &options.folder, now)?;
                writer.fresh.push(old.checkpoint(true, now, options.signer.as_ref()));
                writer.segment = Some(next);
                // Both concern the old segment, which grew until now.
                self.shared.full.store(false, Ordering::Relaxed);
                self.shared.uncovered.store(0, Ordering::Relaxed);
                Ok(Some((intake, std::mem::take(&mut writer.fresh))))
            })
        });
        match rotated {
            Ok(Some((next, sealed))) => {
                if let Some(old) = self.intakes.back_mut() {
                    sealed.into_iter().for_each(|checkpoint| old.add(checkpoint));
                }
                self.intakes.push_back(next);
                self.uncovered_since = None;
            }
            Ok(None) => {}
            // The old segment stays in use: one that is too long is better than none.
            Err(error) => warn!(%error, "a new audit segment could not be begun; the old one stays in use"),
        }
    }

    /// Closes a sealed segment.
    fn finish(&mut self, intake: Intake, sealed: &Checkpoint) {
        match intake.finish() {
            Ok(()) => self.publish(sealed),
            Err(error) => {
                warn!(%error, segment = sealed.segment, "an audit segment could not be finished");
                self.unfinished = true;
            }
        }
    }

    fn retain(&self) {
        retention::run(&*self.shared.store, &self.shared.options, &self.shared.instance);
    }

    fn publish(&self, checkpoint: &Checkpoint) {
        let options = &self.shared.options;
        if let Err(error) = append_line(options, &checkpoint.text()) {
            let file = options.checkpoint_path();
            warn!(%error, file = %file.display(), "an audit checkpoint could not be appended to its file");
        }
        if let Some(tell) = &options.on_checkpoint {
            tell(checkpoint);
        }
    }

    /// Writes the waiting rows, ends the open calls and seals the segment.
    fn close(&mut self) {
        let shared = self.shared;
        let until = Instant::now() + LAST_TRY;
        loop {
            self.prepare_heavy();
            shared.counter.write(shared, None);
            let mut line = shared.counter.line.lock();
            let done = line.is_settled();
            if done || Instant::now() >= until {
                line.closed = true;
                if !done {
                    error!(
                        rows = line.waiting.len(),
                        "the audit store closes with rows that could not be written"
                    );
                }
                let left = line.take();
                drop(line);
                let reason: Arc<str> = "the store is closed".into();
                for slot in left.into_iter().filter_map(|row| row.slot) {
                    slot.refuse(Arc::clone(&reason));
                }
                break;
            }
            drop(line);
            std::thread::sleep(COME_BY);
        }
        if let Err(error) = self.finish_all() {
            // The next start finds the lock free and finishes.
            warn!(%error, "the audit record could not be finished; the next start tries again");
            return;
        }
        self.retain();
        if !self.unfinished {
            let _ = std::fs::remove_file(lock_path(&shared.options.folder, &shared.instance));
        }
    }

    /// Brings all journals into the store, ends the open calls and seals.
    fn finish_all(&mut self) -> Result<(), StoreError> {
        let options = &self.shared.options;
        let (segment, open, fresh) = self.alone(|writer| {
            (writer.segment.take(), writer.open.numbers(), std::mem::take(&mut writer.fresh))
        });
        let Some(mut segment) = segment else { return Ok(()) };
        if let Some(intake) = self.intakes.back_mut() {
            fresh.into_iter().for_each(|checkpoint| intake.add(checkpoint));
        }
        while let Some(mut intake) = self.intakes.pop_front() {
            intake.wait_for_locks();
            while intake.take_in()? {}
            if self.intakes.is_empty() {
                if segment.count() == 0 && segment.header().index == 1 {
                    intake.discard();
                    break;
                }
                self.end_calls(&mut segment, &open);
                while intake.take_in()? {}
                intake.add(segment.checkpoint(true, options.clock.wall(), options.signer.as_ref()));
            }
            let stated = intake.state()?;
            if let Some(sealed) = self.publish_but_the_seal(&stated) {
                self.finish(intake, sealed);
            }
        }
        Ok(())
    }

    /// Writes exits for the open calls. They may have entered in any segment.
    fn end_calls(&self, segment: &mut Segment, open: &[u64]) {
        if open.is_empty() {
            return;
        }
        let Shared { store, options, instance, .. } = self.shared;
        let mut enters = Vec::new();
        let segments = segments_of(&**store, instance).unwrap_or_else(|error| {
            warn!(%error, "interrupted calls could not be looked up");
            Vec::new()
        });
        for name in segments {
            let Some(index) = index(&name) else { continue };
            match rows(&**store, &name, open) {
                Ok(found) => enters.extend(found.into_iter().map(|row| (index, row))),
                Err(error) => warn!(%error, "interrupted calls could not be looked up"),
            }
        }
        let mut ends = ends(enters.iter().map(|(index, row)| (*index, row)), options.clock.wall());
        let ended = self.alone(|writer| segment.append(&mut ends, &mut writer.open));
        if let Err(error) = ended {
            warn!(%error, "interrupted calls could not be marked as such");
        }
    }
}

/// The rows with these numbers that a segment has in its store.
fn rows(store: &dyn Store, name: &str, numbers: &[u64]) -> Result<Vec<Row>, ReadError> {
    let stored = store.read(name)?;
    let mut rows = Vec::new();
    for number in numbers.iter().filter_map(|number| i64::try_from(*number).ok()) {
        stored.rows(number..=number, &mut |record| {
            rows.extend(serde_json::from_slice::<Row>(&record.text));
            Ok(())
        })?;
    }
    Ok(rows)
}

/// The exits of calls whose end was not recorded; each enter comes with the index of its segment.
pub(super) fn ends<'a>(enters: impl Iterator<Item = (u32, &'a Row)>, now: jiff::Timestamp) -> Vec<Draft> {
    enters.filter_map(|(segment, row)| Draft::interrupted(segment, row, now)).collect()
}

/// Appends to the file of checkpoints. It is one write, so that lines of several gateways do not mix.
pub(super) fn append_line(options: &StoreOptions, line: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut open = match &options.checkpoint_file {
        None => files::private(),
        // The operator chose this path, and may have put a link there.
        Some(_) => OpenOptions::new(),
    };
    let mut file = open.append(true).create(true).mode(0o600).open(options.checkpoint_path())?;
    file.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests;
