//! Event streams of a legacy session that a client can resume where they broke off.
//!
//! Every event is first written into the log of its stream, under an id that names the stream and the place in it. A call
//! writes for as long as it runs, whether its client is connected or not; the body of a response only reads. A client
//! that comes back with the last id it saw reads on from there.
//!
//! A body ends with the credential of its reader; the call and its log go on.
//!
//! Logs are bounded in length and in number: a session drops its oldest ones first, those of finished calls before others.
//! Their memory is on the session's account. When that account or the total budget is used up, finished streams that were
//! read are dropped first, then answers that no client has fetched. If there is still no room, the answer is replaced by
//! an error.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bridgehead_gateway::Validity;
use bridgehead_wire::held::{Account, NoRoom, Reservation};
use bridgehead_wire::{Id, Message, Revision, RpcError, code, error_response, on_one_line};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::reply::{self, Answer, Body, Reply};
use super::running::Running;
use super::sse::COMMENT;

/// How many streams of a session are kept.
const MOST_STREAMS: usize = 64;
/// How much of one stream is kept; the last event in any case.
const MOST_BYTES: usize = 1024 * 1024;
/// About how much an event takes besides its message.
const EVENT_BYTES: usize = 128;
/// How long a client should wait before it comes back.
const RETRY: Duration = Duration::from_secs(1);
/// How long a client may be away. After that only the answer of its call is kept for it, and questions to it fail.
const GRACE: Duration = Duration::from_secs(5);
/// The stream that carries the feed of a session.
const OWN_STREAM: u64 = 0;

/// The streams of one session.
#[derive(Debug)]
pub(crate) struct Streams {
    own: Arc<Log>,
    calls: Arc<Mutex<Calls>>,
    account: Arc<Account>,
}

#[derive(Debug)]
struct Calls {
    next: u64,
    kept: VecDeque<Arc<Log>>,
}

/// Which finished streams to drop; one with a reader is never dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Those that were read to their end.
    Read,
    /// The others too.
    Unread,
}

/// The events of one stream.
#[derive(Debug)]
pub(crate) struct Log {
    stream: u64,
    written: Mutex<Written>,
    /// How many events there are; readers wait for more.
    length: watch::Sender<u64>,
    account: Arc<Account>,
    /// The streams of the same session.
    siblings: Weak<Mutex<Calls>>,
}

#[derive(Debug)]
struct Written {
    /// The number of the first event that is kept.
    first: u64,
    events: VecDeque<Event>,
    /// The memory that they hold together.
    bytes: usize,
    /// The number of the event after the last that was read.
    read: u64,
    done: bool,
}

/// One event, and the memory that is reserved for it.
#[derive(Debug)]
struct Event {
    text: Bytes,
    held: Reservation,
}

impl Calls {
    /// Drops streams, the oldest first, until this many bytes are free; returns how many are.
    fn let_go(&mut self, which: Kept, bytes: usize) -> usize {
        let mut freed = 0;
        self.kept.retain(|log| {
            let written = log.written.lock();
            let read = written.read == written.first + written.events.len() as u64;
            let goes = freed < bytes
                && written.done
                && log.length.receiver_count() == 0
                && (read || which == Kept::Unread);
            if goes {
                freed += written.bytes;
            }
            !goes
        });
        freed
    }
}

impl Streams {
    /// The streams of a session with this account.
    pub(crate) fn new(account: Arc<Account>) -> Self {
        let calls = Arc::new(Mutex::new(Calls { next: 1, kept: VecDeque::new() }));
        Self { own: Log::new(OWN_STREAM, &account, &calls), calls, account }
    }

    /// The log of the session's feed.
    pub(crate) const fn own(&self) -> &Arc<Log> {
        &self.own
    }

    /// Drops finished streams without a reader, the oldest first, until this many bytes are free; returns how many are.
    pub(crate) fn let_go(&self, which: Kept, bytes: usize) -> usize {
        self.calls.lock().let_go(which, bytes)
    }

    /// The memory that they hold together.
    pub(crate) fn bytes(&self) -> usize {
        self.account.held()
    }

    /// A log for a call that streams.
    fn open(&self) -> Arc<Log> {
        let mut calls = self.calls.lock();
        if calls.kept.len() >= MOST_STREAMS {
            let oldest = calls.kept.iter().position(|log| log.written.lock().done).unwrap_or_default();
            calls.kept.remove(oldest);
        }
        let log = Log::new(calls.next, &self.account, &self.calls);
        calls.next += 1;
        calls.kept.push_back(Arc::clone(&log));
        log
    }

    /// The stream that an event id belongs to, and the number of the event that comes after it.
    pub(crate) fn find(&self, id: &str) -> Option<(Arc<Log>, u64)> {
        let (stream, event) = id.split_once('-')?;
        let (stream, event) = (stream.parse::<u64>().ok()?, event.parse::<u64>().ok()?);
        let log = match stream {
            OWN_STREAM => Some(Arc::clone(&self.own)),
            _ => self.calls.lock().kept.iter().find(|log| log.stream == stream).cloned(),
        }?;
        // The id of an event that was dropped is accepted; an id that was never given out is not.
        let given = event < log.end();
        given.then_some((log, event + 1))
    }
}

impl Log {
    fn new(stream: u64, account: &Arc<Account>, siblings: &Arc<Mutex<Calls>>) -> Arc<Self> {
        Arc::new(Self {
            stream,
            written: Mutex::new(Written {
                first: 0,
                events: VecDeque::new(),
                bytes: 0,
                read: 0,
                done: false,
            }),
            length: watch::Sender::new(0),
            account: Arc::clone(account),
            siblings: Arc::downgrade(siblings),
        })
    }

    /// Whether it is the log of the session's feed.
    pub(crate) const fn is_own(&self) -> bool {
        self.stream == OWN_STREAM
    }

    /// The number of the event that comes next.
    pub(crate) fn end(&self) -> u64 {
        *self.length.borrow()
    }

    /// Writes an event without a message, from which a client learns an id and when to come back.
    pub(crate) fn prime(&self) {
        // If there is no room, the stream does without this event.
        let _ = self.write(0, |number, out| {
            let head = format!("id: {}-{number}\nretry: {}\ndata: \n\n", self.stream, RETRY.as_millis());
            out.put_slice(head.as_bytes());
        });
    }

    /// Writes one message, if there is room for it.
    pub(crate) fn push(&self, message: &[u8]) -> Result<(), NoRoom> {
        self.write(message.len(), |number, out| {
            out.put_slice(format!("id: {}-{number}\nevent: message\ndata: ", self.stream).as_bytes());
            let start = out.len();
            out.put_slice(message);
            on_one_line(&mut out[start..]);
            out.put_slice(b"\n\n");
        })
    }

    /// Writes a message that may be lost.
    pub(crate) fn push_note(&self, message: &[u8]) {
        if let Err(no_room) = self.push(message) {
            debug!(%no_room, "dropped a notification to a client");
        }
    }

    /// Writes the answer of a call, or an error that says why the answer was not kept.
    fn push_answer(&self, answer: &Answer) {
        let body = answer.body.to_raw();
        if let Err(no_room) = self.push(body.bytes()) {
            debug!(%no_room, bytes = body.bytes().len(), "an answer was not kept");
            let reason = format!(
                "the call has run, but its answer has {} bytes and cannot be kept: {no_room}",
                body.bytes().len()
            );
            let id = match Message::parse(body.bytes()) {
                Ok(Message::Response(response)) => response.id,
                _ => None,
            };
            let mut out = BytesMut::new();
            error_response(&mut out, id.as_ref().map(Id::raw), &RpcError::new(code::INTERNAL_ERROR, &reason));
            self.push_note(&out);
        }
    }

    /// Reserves this many bytes, if need be by dropping older streams of the session.
    fn reserve(&self, bytes: usize) -> Result<Reservation, NoRoom> {
        self.account.reserve(bytes).or_else(|_| {
            if let Some(siblings) = self.siblings.upgrade() {
                let mut siblings = siblings.lock();
                let freed = siblings.let_go(Kept::Read, bytes);
                siblings.let_go(Kept::Unread, bytes.saturating_sub(freed));
            }
            self.account.reserve(bytes)
        })
    }

    /// Writes an event with a message of this length.
    fn write(&self, length: usize, write: impl FnOnce(u64, &mut BytesMut)) -> Result<(), NoRoom> {
        // Nothing is locked yet: this may make other sessions release memory.
        let held = self.reserve(length + EVENT_BYTES)?;
        let mut written = self.written.lock();
        let number = written.first + written.events.len() as u64;
        let mut out = BytesMut::with_capacity(length + EVENT_BYTES);
        write(number, &mut out);
        written.bytes += held.bytes();
        written.events.push_back(Event { text: out.freeze(), held });
        while written.bytes > MOST_BYTES && written.events.len() > 1 {
            let oldest = written.events.pop_front().map_or(0, |event| event.held.bytes());
            written.bytes -= oldest;
            written.first += 1;
        }
        drop(written);
        self.length.send_replace(number + 1);
        Ok(())
    }

    /// Resolves when the log still has no reader [`GRACE`] after it lost the last one.
    async fn abandoned(&self) {
        loop {
            self.length.closed().await;
            sleep(GRACE).await;
            if self.length.receiver_count() == 0 {
                return;
            }
        }
    }

    /// Marks the end of the stream.
    fn finish(&self) {
        self.written.lock().done = true;
        // Wakes the readers.
        self.length.send_modify(|_| ());
    }

    /// The event with that number, or the first kept one after it, and the number of the next event.
    fn get(&self, number: u64) -> Option<(Bytes, u64)> {
        let mut written = self.written.lock();
        let number = number.max(written.first);
        let at = usize::try_from(number - written.first).ok()?;
        let event = written.events.get(at)?.text.clone();
        written.read = written.read.max(number + 1);
        Some((event, number + 1))
    }

    fn is_done(&self) -> bool {
        self.written.lock().done
    }
}

/// Reads a log from some event on.
pub(crate) struct Reader {
    log: Arc<Log>,
    next: u64,
    length: watch::Receiver<u64>,
}

impl Reader {
    pub(crate) fn new(log: Arc<Log>, next: u64) -> Self {
        Self { length: log.length.subscribe(), log, next }
    }

    /// The next event, if it is written already.
    pub(crate) fn ready(&mut self) -> Option<Bytes> {
        let (event, next) = self.log.get(self.next)?;
        self.next = next;
        Some(event)
    }

    /// The next event; `None` when the stream is over.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.length.mark_unchanged();
            let done = self.log.is_done();
            if let Some(event) = self.ready() {
                return Some(event);
            }
            if done || self.length.changed().await.is_err() {
                return None;
            }
        }
    }
}

/// How a stream is served.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    pub(crate) revision: Revision,
    pub(crate) keep_alive: Duration,
    /// After how much silence the client is sent away to come back for the rest; `None` for never.
    pub(crate) poll_after: Option<Duration>,
    /// How long its reader may read.
    pub(crate) validity: Validity,
}

/// Whether clients of a revision understand an event without a message.
pub(crate) fn primes(revision: Revision) -> bool {
    revision >= Revision::V2025_11_25
}

/// Answers with the outcome of `call`: JSON, or events as soon as `notes` has a message, or from the start if the
/// client `prefers` them. A cancelled call has no answer; its POST then ends as an event stream without one.
pub(crate) async fn answer(
    mut call: Running<Option<Answer>>,
    notes: Option<mpsc::Receiver<Bytes>>,
    streams: &Streams,
    manner: Manner,
    prefers: bool,
) -> Reply {
    let mut first = None;
    let mut notes = notes;
    if !prefers {
        let note = async {
            match &mut notes {
                Some(notes) => notes.recv().await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            Some(note) = note => first = Some(note),
            answer = &mut call => {
                let told: Vec<Bytes> = std::iter::from_fn(|| notes.as_mut()?.try_recv().ok()).collect();
                return match answer {
                    Some(answer) if told.is_empty() => answer.into_reply(),
                    None if told.is_empty() => reply::events(Body::empty()),
                    answer => {
                        let log = opened(streams, manner.revision);
                        told.iter().for_each(|note| log.push_note(note));
                        if let Some(answer) = answer {
                            log.push_answer(&answer);
                        }
                        log.finish();
                        body(log, 0, manner)
                    }
                };
            }
        }
    }
    let log = opened(streams, manner.revision);
    let writing = Writing(Arc::clone(&log));
    if let Some(note) = first {
        log.push_note(&note);
    }
    // A separate task, so that the call continues when the client is gone or slow to read.
    tokio::spawn(async move {
        let Writing(log) = &writing;
        let mut abandoned = std::pin::pin!(log.abandoned());
        let answer = loop {
            let Some(unread) = &mut notes else { break call.await };
            tokio::select! {
                biased;
                // Closing the channel makes questions to the client fail.
                () = &mut abandoned, if !unread.is_closed() => unread.close(),
                note = unread.recv() => match note {
                    Some(note) => log.push_note(&note),
                    None => notes = None,
                },
                answer = &mut call => {
                    while let Ok(note) = unread.try_recv() {
                        log.push_note(&note);
                    }
                    break answer;
                }
            }
        };
        if let Some(answer) = answer {
            log.push_answer(&answer);
        }
    });
    body(log, 0, manner)
}

/// Marks the end of a call's log when dropped, so that its readers see the end even if the call panicked.
struct Writing(Arc<Log>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.finish();
    }
}

fn opened(streams: &Streams, revision: Revision) -> Arc<Log> {
    let log = streams.open();
    if primes(revision) {
        log.prime();
    }
    log
}

/// The events of a log from `next` on, with comments in between.
pub(crate) fn body(log: Arc<Log>, next: u64, manner: Manner) -> Reply {
    let Manner { revision, keep_alive, poll_after, validity } = manner;
    let poll_after = poll_after.filter(|_| primes(revision));
    let quiet_since = Instant::now();
    let reading = (Reader::new(log, next), quiet_since, validity);
    let events = stream::unfold(reading, move |(mut reader, quiet_since, validity)| async move {
        let sent_away = async {
            match poll_after {
                Some(after) => sleep_until(quiet_since + after).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = validity.ended() => None,
            event = reader.next() => Some((event?, (reader, Instant::now(), validity))),
            () = sent_away => None,
            () = sleep(keep_alive) => Some((COMMENT, (reader, quiet_since, validity))),
        }
    });
    reply::events(Body::from_stream(events))
}

#[cfg(test)]
mod tests;
