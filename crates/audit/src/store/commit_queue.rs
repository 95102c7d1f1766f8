//! The combining commit: waiting calls write the rows of all calls that wait, without a writer thread.
//!
//! A call that finds no write in progress becomes the writer. While only few of the calls under way have joined, it
//! yields to its runtime a turn at a time so that more can join. Then it writes all waiting rows and wakes their
//! calls. A call that is alone, or nearly so, writes at once. An exit waits for no write and goes along with the next
//! one; the keeper writes the exits that no call takes along.
//!
//! What must stay true: the lock is held to move rows and flags, never during a write; one writer at a time (`busy`);
//! a call learns of its enter's commit only after the commit; a cancelled call does not block the calls that wait for
//! it to write.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::Shared;
use crate::row::{Draft, RowKind};
use crate::{AuditError, Enter, Exit, Ticket};

/// How many rows may wait.
pub(crate) const MOST_ROWS: usize = 8192;
/// How many bytes the waiting rows may have.
pub(crate) const MOST_BYTES: usize = 64 << 20;
/// How many turns of its runtime the writer yields at most.
const MOST_TURNS: u8 = 4;
/// The keeper digests and redacts payloads above this size: on a serving thread they would hold up other calls.
pub(crate) const HEAVY: usize = 256 * 1024;
/// How much unprepared payload may wait for the keeper.
const MOST_HEAVY_BYTES: usize = 256 << 20;

/// The rows that wait, and who writes.
#[derive(Default)]
pub(crate) struct CommitQueue {
    pub(crate) waiting: Vec<Waiting>,
    /// How many of them have a waiting call.
    awaited: usize,
    pub(crate) bytes: usize,
    /// Events that the keeper must prepare before they can be written.
    pub(crate) heavy: VecDeque<Heavy>,
    heavy_bytes: usize,
    /// How many calls had entered and not exited at the last write.
    under_way: usize,
    /// A write is in progress.
    pub(crate) busy: bool,
    /// When the write in progress began.
    pub(crate) writing: Option<Instant>,
    /// The keeper is awake, or will be soon.
    pub(crate) armed: bool,
    pub(crate) closing: bool,
    pub(crate) closed: bool,
}

/// A row, and the slot of the call that waits for it.
pub(crate) struct Waiting {
    pub(crate) draft: Draft,
    pub(crate) slot: Option<Arc<Slot>>,
}

impl AsMut<Draft> for Waiting {
    fn as_mut(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

/// An event whose payload is large.
pub(crate) enum Heavy {
    Enter(Box<Enter>, Arc<Slot>),
    Exit(Box<Exit>, Option<Ticket>),
}

impl Heavy {
    fn size(&self) -> usize {
        match self {
            Self::Enter(event, _) => event.arguments().len(),
            Self::Exit(event, _) => event.payload_bytes(),
        }
    }
}

/// Tells one call the result of its enter row.
#[derive(Default)]
pub(crate) struct Slot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    result: Option<Result<Ticket, Arc<str>>>,
    waker: Option<Waker>,
}

impl Slot {
    pub(crate) fn refuse(&self, reason: Arc<str>) {
        if let Some(waker) = self.answer(Err(reason)) {
            waker.wake();
        }
    }

    /// Stores the result, and returns the waker of the waiting call.
    fn answer(&self, result: Result<Ticket, Arc<str>>) -> Option<Waker> {
        let mut state = self.0.lock();
        state.result = Some(result);
        state.waker.take()
    }

    /// The result; without one, registers the waker.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Option<Result<Ticket, Arc<str>>> {
        let mut state = self.0.lock();
        if state.result.is_none() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        state.result.clone()
    }

    fn nudge(&self) {
        let waker = self.0.lock().waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl CommitQueue {
    fn full(&self) -> bool {
        self.waiting.len() >= MOST_ROWS || self.bytes >= MOST_BYTES || self.heavy_bytes >= MOST_HEAVY_BYTES
    }

    pub(crate) fn push(&mut self, draft: Draft, slot: Option<Arc<Slot>>) {
        self.bytes += draft.size();
        self.awaited += usize::from(slot.is_some());
        self.waiting.push(Waiting { draft, slot });
    }

    pub(crate) fn push_heavy(&mut self, heavy: Heavy) {
        self.heavy_bytes += heavy.size();
        self.heavy.push_back(heavy);
    }

    pub(crate) fn pop_heavy(&mut self) {
        if let Some(heavy) = self.heavy.pop_front() {
            self.heavy_bytes = self.heavy_bytes.saturating_sub(heavy.size());
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Waiting> {
        (self.bytes, self.awaited) = (0, 0);
        // About as many rows will arrive until the next write.
        let room = Vec::with_capacity(self.waiting.len());
        std::mem::replace(&mut self.waiting, room)
    }

    /// Puts rows back in front, where they were taken from.
    pub(crate) fn put_back(&mut self, mut rows: Vec<Waiting>) {
        self.bytes += rows.iter().map(|row| row.draft.size()).sum::<usize>();
        self.awaited += rows.iter().filter(|row| row.slot.is_some()).count();
        rows.append(&mut self.waiting);
        self.waiting = rows;
    }

    /// Whether so few of the calls under way have joined that waiting for more pays: the fixed cost of a commit is
    /// then shared by more rows.
    fn is_few(&self) -> bool {
        let ended = self.waiting.len() - self.awaited;
        2 * self.awaited < self.under_way.saturating_sub(ended)
    }

    /// Whether nothing waits and no write is in progress.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.heavy.is_empty() && !self.busy
    }

    /// Marks the keeper as needed; returns whether it must be woken.
    pub(crate) fn arm(&mut self) -> bool {
        !std::mem::replace(&mut self.armed, true)
    }
}

/// The commit queue, with the condition variable that wakes the keeper.
#[derive(Default)]
pub(crate) struct Counter {
    pub(crate) line: Mutex<CommitQueue>,
    pub(crate) bell: Condvar,
}

impl Counter {
    /// Queues an exit. It cannot overtake its enter, because it has the enter's ticket.
    pub(crate) fn exit(
        &self,
        shared: &Shared,
        ticket: Option<Ticket>,
        event: Exit,
    ) -> Result<(), AuditError> {
        let heavy = event.payload_bytes() > HEAVY;
        let draft = if heavy { None } else { Some(shared.keeping.exit(ticket, &event)) };
        let mut line = self.line.lock();
        if line.closed {
            return Err(AuditError::Failed("the store is closed".to_owned()));
        }
        if line.full() {
            return Err(AuditError::Full);
        }
        match draft {
            Some(draft) => line.push(draft, None),
            None => line.push_heavy(Heavy::Exit(Box::new(event), ticket)),
        }
        let ring = line.arm();
        drop(line);
        if ring {
            self.bell.notify_one();
        }
        Ok(())
    }

    /// Wakes the first waiting call, so that it writes for the calls behind it.
    pub(crate) fn pass_on(&self) {
        let line = self.line.lock();
        if line.busy {
            return;
        }
        let next = line.waiting.iter().find_map(|row| row.slot.clone());
        drop(line);
        if let Some(slot) = next {
            slot.nudge();
        }
    }

    /// Writes the waiting rows, unless a write is in progress. `own` is the slot of the writing call, which reads it
    /// right afterwards and needs no waking; the keeper has none.
    pub(crate) fn write(&self, shared: &Shared, own: Option<&Arc<Slot>>) {
        let mut line = self.line.lock();
        if line.busy || line.waiting.is_empty() {
            return;
        }
        line.busy = true;
        line.writing = Some(Instant::now());
        let mut rows = line.take();
        drop(line);
        let written = shared.append(&mut rows);
        let mut line = self.line.lock();
        line.busy = false;
        line.writing = None;
        let (settled, result) = match written {
            Ok((place, under_way)) => {
                line.under_way = under_way;
                (rows, Ok(place))
            }
            Err(error) => {
                // Refused enters were never acknowledged; exits are kept and tried again.
                let (enters, exits) = rows.into_iter().partition(|row| row.draft.kind == RowKind::Enter);
                line.put_back(exits);
                (enters, Err(Arc::from(shared.explain(&error))))
            }
        };
        // The keeper brings written rows into the store, and retries failed ones.
        let ring = line.arm();
        drop(line);
        for (number, row) in settled.into_iter().enumerate() {
            let Some(slot) = row.slot else { continue };
            let waker = slot.answer(match &result {
                Ok(place) => Ok(Ticket::new(place.segment, place.first + number as u64)),
                Err(reason) => Err(Arc::clone(reason)),
            });
            if let Some(waker) = waker
                && own.is_none_or(|own| !Arc::ptr_eq(own, &slot))
            {
                waker.wake();
            }
        }
        if ring {
            self.bell.notify_one();
        }
        self.pass_on();
    }
}

/// One call's wait for its enter row.
pub(crate) struct Entering {
    shared: Arc<Shared>,
    state: Stage,
    /// The turn that it yields before it writes for all.
    turn: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// How many turns it may still yield.
    turns: u8,
}

enum Stage {
    New(New),
    Queued(Arc<Slot>),
    Done,
}

/// An event on its way into the queue.
enum New {
    Row(Draft),
    /// An event that the keeper turns into a row.
    Heavy(Box<Enter>),
}

impl Entering {
    pub(crate) fn new(shared: &Arc<Shared>, event: &Enter) -> Self {
        let new = if event.arguments().len() > HEAVY {
            New::Heavy(Box::new(event.clone()))
        } else {
            New::Row(shared.keeping.enter(event))
        };
        Self { shared: Arc::clone(shared), state: Stage::New(new), turn: None, turns: MOST_TURNS }
    }

    /// Joins the queue, and returns whether this call must write; an error refuses the call.
    fn queue(&mut self, new: New, context: &Context<'_>) -> Result<bool, AuditError> {
        let shared = &self.shared;
        let slot = Arc::new(Slot::default());
        // Registers the waker first: once the row is queued, another thread may settle it.
        let _ = slot.poll(context);
        let mut line = shared.counter.line.lock();
        if line.closed || line.closing {
            return Err(AuditError::Failed("the store is closed".to_owned()));
        }
        if line.full() {
            return Err(AuditError::Full);
        }
        if line.writing.is_some_and(|since| since.elapsed() >= shared.options.patience) {
            return Err(AuditError::Failed("the disk of the audit folder does not answer".to_owned()));
        }
        let leads = !line.busy && line.awaited == 0;
        let heavy = matches!(new, New::Heavy(_));
        match new {
            New::Row(draft) => line.push(draft, Some(Arc::clone(&slot))),
            New::Heavy(event) => line.push_heavy(Heavy::Enter(event, Arc::clone(&slot))),
        }
        // The keeper refuses calls that wait too long for another call's write.
        let ring = (heavy || !leads) && line.arm();
        drop(line);
        if ring {
            shared.counter.bell.notify_one();
        }
        self.state = Stage::Queued(slot);
        Ok(leads && !heavy)
    }

    /// Ready when it is time to write.
    fn let_others_join(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(turn) = &mut self.turn {
                ready!(turn.as_mut().poll(context));
                self.turn = None;
            }
            let line = self.shared.counter.line.lock();
            if self.turns == 0 || line.busy || !line.is_few() {
                return Poll::Ready(());
            }
            drop(line);
            self.turns -= 1;
            self.turn = Some(Box::pin(tokio::task::yield_now()));
        }
    }

    fn finish(&mut self, result: Result<Ticket, AuditError>) -> Poll<Result<Option<Ticket>, AuditError>> {
        self.state = Stage::Done;
        Poll::Ready(match result {
            Err(error) if self.shared.options.on_failure == super::OnFailure::Continue => {
                self.shared.unrecorded(&error);
                Ok(None)
            }
            result => result.map(Some),
        })
    }
}

impl Future for Entering {
    type Output = Result<Option<Ticket>, AuditError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.state, Stage::Done) {
            Stage::New(new) => match self.queue(new, context) {
                Ok(true) => self.poll(context),
                Ok(false) => Poll::Pending,
                Err(error) => self.finish(Err(error)),
            },
            Stage::Queued(slot) => {
                self.state = Stage::Queued(Arc::clone(&slot));
                let mut result = slot.poll(context);
                if result.is_none() {
                    ready!(self.let_others_join(context));
                    self.shared.counter.write(&self.shared, Some(&slot));
                    result = slot.poll(context);
                }
                match result {
                    None => Poll::Pending,
                    Some(result) => {
                        self.finish(result.map_err(|reason| AuditError::Failed(reason.to_string())))
                    }
                }
            }
            Stage::Done => Poll::Ready(Ok(None)),
        }
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        // Its row stays in the queue. If this call was to write, another waiting call or the keeper does it now.
        if matches!(self.state, Stage::Queued(_)) {
            let ring = self.shared.counter.line.lock().arm();
            if ring {
                self.shared.counter.bell.notify_one();
            }
            self.shared.counter.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use bytes::Bytes;

    use super::*;
    use crate::Outcome;
    use crate::store::tests::event_with;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Woken {
        fn times(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    /// Polls a slot like a waiting call.
    fn look(slot: &Slot) -> (Arc<Woken>, bool) {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let settled = slot.poll(&Context::from_waker(&waker)).is_some();
        (woken, settled)
    }

    fn line(enters: usize, exits: usize, under_way: usize) -> CommitQueue {
        let mut line = CommitQueue { under_way, ..CommitQueue::default() };
        (0..enters).for_each(|_| line.push(Draft::empty(RowKind::Enter), Some(Arc::default())));
        (0..exits).for_each(|_| line.push(Draft::empty(RowKind::Exit), None));
        line
    }

    /// AUD-2: a call that is alone does not wait; one of many waits for some of the others.
    #[test]
    fn others_are_waited_for_where_many_calls_are_under_way() {
        for (enters, exits, under_way, few) in [
            (1, 0, 0, false),
            (1, 1, 1, false),
            (1, 0, 2, false),
            (1, 0, 3, true),
            (1, 60, 60, false),
            (10, 20, 64, true),
            (22, 20, 64, false),
            (1, 9, 2, false),
        ] {
            let mut line = line(enters, exits, under_way);
            assert_eq!(line.is_few(), few, "{enters} {exits} {under_way}");
            let taken = line.take();
            assert_eq!((line.awaited, line.bytes), (0, 0));
            line.put_back(taken);
            assert_eq!(line.is_few(), few, "put back, {enters} {exits} {under_way}");
        }
    }

    /// AUD-2: the last poller is woken once with the result; a later one gets it at once.
    #[test]
    fn a_slot_wakes_whoever_looked_last() {
        let slot = Slot::default();
        let (first, early) = look(&slot);
        let (second, still_early) = look(&slot);
        slot.nudge();
        assert_eq!((early, still_early, first.times(), second.times()), (false, false, 0, 1));
        slot.refuse("full".into());
        assert_eq!((first.times(), second.times()), (0, 2));
        let (late, settled) = look(&slot);
        slot.nudge();
        assert_eq!((settled, late.times(), second.times()), (true, 0, 2));
    }

    /// AUD-2: the first waiting call writes next, unless a write is in progress.
    #[test]
    fn the_turn_is_passed_on_to_the_first_that_waits() {
        let (counter, slots) = (Counter::default(), [(); 2].map(|()| Arc::<Slot>::default()));
        let woken = slots.each_ref().map(|slot| look(slot).0);
        let times = || woken.each_ref().map(|woken| woken.times());
        counter.pass_on();
        counter.line.lock().push(Draft::empty(RowKind::Exit), None);
        slots.into_iter().for_each(|slot| counter.line.lock().push(Draft::empty(RowKind::Enter), Some(slot)));
        counter.line.lock().busy = true;
        counter.pass_on();
        assert_eq!(times(), [0, 0]);
        counter.line.lock().busy = false;
        counter.pass_on();
        assert_eq!(times(), [1, 0]);
    }

    /// AUD-2: the keeper is woken once, until it has run.
    #[test]
    fn the_keeper_is_called_once() {
        let mut line = CommitQueue::default();
        assert_eq!([line.arm(), line.arm()], [true, false]);
        line.armed = false;
        assert!(line.arm());
    }

    /// AUD-2: a store that closes waits for rows, for large payloads and for a write in progress.
    #[test]
    fn a_line_is_settled_when_nothing_waits_and_nobody_writes() {
        let heavy = || Heavy::Enter(Box::new(event_with(Bytes::from_static(b"{}"))), Arc::default());
        assert!(CommitQueue::default().is_settled());
        assert!(!line(0, 1, 0).is_settled());
        assert!(!CommitQueue { busy: true, ..CommitQueue::default() }.is_settled());
        let mut line = CommitQueue::default();
        line.push_heavy(heavy());
        assert!(!line.is_settled());
        line.pop_heavy();
        assert!(line.is_settled());
    }

    /// AUD-2: every kind of waiting data has a bound, and taking it makes room again.
    #[test]
    fn what_waits_is_bounded_by_number_and_size() {
        assert!(!line(0, MOST_ROWS - 1, 0).full());
        assert!(line(0, MOST_ROWS, 0).full());
        assert!(!CommitQueue { bytes: MOST_BYTES - 1, ..CommitQueue::default() }.full());
        assert!(CommitQueue { bytes: MOST_BYTES, ..CommitQueue::default() }.full());

        let one = event_with(Bytes::from_static(b"1"));
        let body = Bytes::from(vec![0; MOST_HEAVY_BYTES - 1]);
        let large =
            Exit::new(one.call(), one.moment(), one.moment(), Outcome::Result { body, is_error: false });
        let mut line = CommitQueue::default();
        line.push_heavy(Heavy::Exit(Box::new(large), None));
        assert!(!line.full());
        line.push_heavy(Heavy::Enter(Box::new(one), Arc::default()));
        assert!(line.full());
        line.pop_heavy();
        assert_eq!((line.full(), line.heavy_bytes), (false, 1));
        line.pop_heavy();
        assert_eq!(line.heavy_bytes, 0);
    }
}
