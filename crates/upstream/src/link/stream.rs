//! One ordered engine per stream of messages.
//!
//! A single reader task takes messages in the order of arrival and hands each to its request; no task is started
//! per message.
//!
//! A peer that sends requests but does not read the answers is not read either. The reader waits for room in the
//! outbox, and after [`UNREAD_FOR`] the peer is given up with a [`Fault`] that its callers receive.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bridgehead_lines::{Full, LineReader, Outbox};
use bridgehead_wire::{Abilities, Id, Line, Method, RpcError, Spliced, notification, request, response};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::link::switchboard::{Slot, Switchboard};
use crate::link::{Event, LinkError, Purpose, call_is_over, cancelled_params};
use crate::server::crash::Fault;
use crate::transport::relay::loss;

/// Shared by both tasks and all requests.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) board: Switchboard,
    limit: usize,
    /// How many bytes that are not messages may arrive; no limit if unset.
    noise_limit: OnceLock<u64>,
    /// Why reading stopped early.
    fault: OnceLock<Fault>,
    /// Cancelled when the peer is given up, perhaps by a task other than its reader.
    given_up: CancellationToken,
    out: Outbox,
}

/// How long a peer may leave the answers to its own requests unread, once they fill the outbox.
const UNREAD_FOR: Duration = Duration::from_secs(10);

/// The reader yields to other tasks after every batch of this many lines that are not messages.
const NOISY_LINES: u32 = 64;

impl Stream {
    pub(crate) fn new(server: &str, limit: usize) -> Self {
        Self {
            board: Switchboard::new(server),
            limit,
            noise_limit: OnceLock::new(),
            fault: OnceLock::new(),
            given_up: CancellationToken::new(),
            out: Outbox::default(),
        }
    }

    #[cfg(test)]
    fn open(self: &Arc<Self>, purpose: Purpose, abilities: Abilities) -> StreamExchange {
        self.open_as(self.board.next_id(), purpose, abilities)
    }

    pub(crate) fn open_as(
        self: &Arc<Self>,
        id: u64,
        purpose: Purpose,
        abilities: Abilities,
    ) -> StreamExchange {
        let slot = self.board.register(id, purpose);
        let stream = Arc::clone(self);
        StreamExchange { stream, id, slot, abilities, owed: Vec::new(), sent: false, done: false }
    }

    pub(crate) async fn notify(&self, method: &Method, params: Option<&Spliced>) {
        self.out.send(|out| notification(out, method.as_str(), params)).await;
    }

    pub(crate) async fn read<R: AsyncRead + Unpin>(&self, reader: R) {
        let mut lines = LineReader::new(reader, self.limit);
        let (mut noise, mut noisy) = (0, 0_u32);
        loop {
            match lines.next().await {
                Ok(Some(line)) => {
                    if let Some(reply) = self.accept(line)
                        && self.answer(&reply).await.is_err()
                    {
                        return self.give_up();
                    }
                    if noise == self.board.noise() {
                        continue;
                    }
                    noise = self.board.noise();
                    // A line cut off by the end of the stream is not a fault: the end says more.
                    let fault = self.board.take_fault().filter(|_| !lines.has_ended());
                    let noisy_beyond = self.noise_limit.get().filter(|&&most| noise > most);
                    if let Some(fault) = fault.or(noisy_beyond.map(|_| Fault::Noise(noise))) {
                        let _ = self.fault.set(fault);
                        return;
                    }
                    noisy = noisy.wrapping_add(1);
                    if noisy.is_multiple_of(NOISY_LINES) {
                        tokio::task::yield_now().await;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    return debug!(server = %self.board.server, %error, "reading from the server failed");
                }
            }
        }
    }

    /// Why reading stopped before the stream ended, if it did. The owner of the process then ends it.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.get()
    }

    /// Resolves when the peer was given up because it does not read its answers.
    pub(crate) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// Gives the peer up; the owner of its process ends it. The answers owed to it can neither be sent nor kept.
    fn give_up(&self) {
        let bytes = self.out.waiting().bytes;
        warn!(server = %self.board.server, bytes, "the server sends requests but does not read the answers; giving it up");
        let _ = self.fault.set(Fault::Unread(bytes));
        self.given_up.cancel();
    }

    /// Answers a request of the peer's own. Nothing more is read until the answer has room.
    async fn answer(&self, reply: &[u8]) -> Result<(), Full> {
        while self.out.push(|out| out.extend_from_slice(reply)).is_err() {
            tokio::time::timeout(UNREAD_FOR, self.out.room_for_owed()).await.map_err(|_| Full)?;
        }
        Ok(())
    }

    /// Stops reading once more than this many bytes arrived that are not messages.
    pub(crate) fn limit_noise(&self, bytes: u64) {
        let _ = self.noise_limit.set(bytes);
    }

    pub(crate) async fn write<W: AsyncWrite>(&self, writer: W) {
        if let Err(error) = self.out.write_to(writer).await {
            debug!(server = %self.board.server, %error, "writing to the server failed");
        }
    }

    /// Handles a line. Returns the answer if it is a request of the peer's own.
    fn accept(&self, line: Line) -> Option<BytesMut> {
        match line {
            Line::Text(text) if self.board.is_of_relay() => self.board.accept(&loss::unfold(text)),
            Line::Text(text) => self.board.accept(&text),
            Line::TooLong { bytes, id } => {
                warn!(server = %self.board.server, bytes, limit = self.limit, "skipped a line longer than the limit");
                if id.is_none() {
                    self.board.made_noise(bytes);
                }
                if let Some(id) = id.and_then(|id| id.as_u64()) {
                    self.board.too_large(id, LinkError::TooLarge { bytes, limit: self.limit });
                }
                None
            }
        }
    }

    /// Queues an answer that is owed to the peer, where the caller cannot wait.
    fn owe(&self, write: impl FnOnce(&mut BytesMut)) {
        if self.out.push(write).is_err() {
            self.give_up();
        }
    }
}

/// One request on a stream.
#[derive(Debug)]
pub(crate) struct StreamExchange {
    stream: Arc<Stream>,
    id: u64,
    slot: Arc<Slot>,
    abilities: Abilities,
    /// The server's questions that have no answer yet.
    owed: Vec<Id>,
    sent: bool,
    done: bool,
}

impl StreamExchange {
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) async fn send(&mut self, method: &Method, params: &Spliced) {
        if self.slot.has_event() {
            return;
        }
        let write = |out: &mut BytesMut| {
            if !self.abilities.is_none() {
                self.slot.can_answer(self.abilities);
            }
            request(out, self.id, method.as_str(), params);
        };
        self.stream.out.send(write).await;
        self.sent = true;
    }

    pub(crate) fn want_logs(&self) {
        self.slot.want_logs();
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.sent && !self.slot.was_withheld()
    }

    pub(crate) fn poll_next(&mut self, context: &Context<'_>) -> Poll<Event> {
        let event = std::task::ready!(self.slot.poll(context));
        match &event {
            Event::Progress(_) | Event::Log(_) | Event::Acknowledged => {}
            Event::Asked(asked) => self.owed.push(asked.id.clone()),
            Event::Withdrawn(id) => self.owed.retain(|owed| owed != id),
            Event::Answer(_) | Event::Lost(_) => self.done = true,
        }
        Poll::Ready(event)
    }

    pub(crate) fn reply(&mut self, id: &Id, outcome: Result<&Spliced, &RpcError>) {
        if let Some(at) = self.owed.iter().position(|owed| owed == id) {
            self.owed.swap_remove(at);
            self.stream.owe(|out| response(out, id, outcome));
        }
    }
}

impl StreamExchange {
    /// Cancels the request if it was sent and is not answered, and returns what hears the end of it.
    pub(crate) fn abandon(&mut self) -> Option<Self> {
        if self.done || !self.sent || self.slot.purpose != Purpose::Ordinary {
            return None;
        }
        let slot = self.stream.board.abandon(self.id)?;
        // Nothing is left to release; questions that are owed an answer get it when this is dropped.
        self.done = true;
        self.tell_cancelled();
        let (stream, abilities, owed) = (Arc::clone(&self.stream), Abilities::NONE, Vec::new());
        Some(Self { stream, id: self.id, slot, abilities, owed, sent: true, done: false })
    }

    fn tell_cancelled(&self) {
        let params = cancelled_params(self.id);
        let lost = self.stream.out.push(|out| notification(out, Method::Cancelled.as_str(), Some(&params)));
        if lost.is_err() {
            debug!(server = %self.stream.board.server, "the server does not read; a cancellation was dropped");
        }
    }
}

impl Drop for StreamExchange {
    fn drop(&mut self) {
        let open = !self.done && self.stream.board.release(self.id);
        if !self.abilities.is_none() {
            self.owed.extend(self.slot.unseen());
            for id in std::mem::take(&mut self.owed) {
                self.stream.owe(|out| response(out, &id, Err(&call_is_over())));
            }
        }
        if open && self.sent && !matches!(self.slot.purpose, Purpose::Handshake | Purpose::Abandoned) {
            self.tell_cancelled();
        }
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_lines::Bounds;
    use bytes::BufMut;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn open(stream: &Arc<Stream>) -> StreamExchange {
        stream.open(Purpose::Ordinary, Abilities::NONE)
    }

    /// The fault after these bytes arrive while request 3 waits; 1 was answered, 2 was dropped.
    async fn fault_of(strict: bool, came: &[u8]) -> Option<Fault> {
        let stream = Arc::new(Stream::new("m", 100));
        let first = open(&stream);
        stream.read(&b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n"[..]).await;
        assert!(first.slot.has_event());
        drop(open(&stream));
        let _waits = open(&stream);
        if strict {
            stream.board.be_strict();
        }
        stream.read(came).await;
        stream.fault().cloned()
    }

    #[track_caller]
    fn violates(fault: Option<Fault>, words: &str) {
        let Some(Fault::Violation(found)) = fault else { panic!("{words}: {fault:?}") };
        assert!(found.contains(words), "{found}");
    }

    /// BOX-3: a malformed answer ends a process that serves one call, and no other.
    #[tokio::test]
    async fn instead_of_an_answer() {
        let cases: [(&[u8], &str); 6] = [
            (br#"{"jsonrpc":"2.0","id":3,"result":{"content":["#, "cannot be read: not valid JSON"),
            (b"{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"a\":\"\xff\"}}", "cannot be read: not valid JSON"),
            (br#"{"jsonrpc":"2.0","id":3,"result":{},"error":null}"#, "cannot be read: it must have one of"),
            (br#"{"jsonrpc":"2.0","id":4,"result":{}}"#, "never sent"),
            (br#"{"jsonrpc":"2.0","id":"3","result":{}}"#, "never sent"),
            (br#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "request 1 a second time"),
        ];
        for (line, words) in cases {
            let ended = [line, b"\n"].concat();
            violates(fault_of(true, &ended).await, words);
            assert_eq!(fault_of(false, &ended).await, None, "the process may serve other calls");
        }
        let large = format!("{{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":\"{}\"}}\n", "x".repeat(200));
        let too_large = fault_of(true, large.as_bytes()).await;
        assert!(matches!(too_large, Some(Fault::TooLarge(LinkError::TooLarge { limit: 100, .. }))));
        assert_eq!(fault_of(false, large.as_bytes()).await, None);
    }

    /// Output beside the answers is not a fault, and neither are late answers.
    #[tokio::test]
    async fn beside_an_answer() {
        let cases: [&[u8]; 8] = [
            b"listening on stdio\n",
            b"\xff\xfe{\n[]\nnull\n{}\n",
            b"{ jsonrpc: '2.0', id: 3, result: {} }\n",
            br#"{"level":30,"id":3,"error":"no such file"}"#,
            b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":\"x\"}\n",
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32601,\"message\":\"\"}}\n",
            b"{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n",
            // The process has ended: how it ended says more than the partial line it left.
            br#"{"jsonrpc":"2.0","id":3,"result":{"content":["#,
        ];
        for case in cases {
            assert_eq!(fault_of(true, case).await, None, "{}", String::from_utf8_lossy(case));
        }
        let late_and_once_more = b"{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n".repeat(2);
        violates(fault_of(true, &late_and_once_more).await, "request 2 a second time");
    }

    /// While no request waits for an answer, nothing counts as a malformed answer.
    #[tokio::test]
    async fn without_a_request_nothing_is_judged() {
        let stream = Arc::new(Stream::new("m", 100));
        stream.board.be_strict();
        let mut answered = open(&stream);
        let twice = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n".repeat(2);
        stream.read(&twice[..]).await;
        stream.read(&b"{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{\n"[..]).await;
        assert_eq!(stream.fault(), None);
        let answer = std::future::poll_fn(|context| answered.poll_next(context)).await;
        assert!(matches!(answer, Event::Answer(Ok(_))), "{answer:?}");
    }

    /// BOX-2: exceeding the noise limit ends the reading.
    #[tokio::test]
    async fn noise_is_limited() {
        let stream = Arc::new(Stream::new("m", 100));
        stream.limit_noise(10);
        stream.read(&b"chatter\n"[..]).await;
        assert_eq!(stream.fault(), None);
        stream.read(&b"chatter\nchatter\n"[..]).await;
        assert_eq!(stream.fault(), Some(&Fault::Noise(16)));
    }

    /// BOUND-1: a peer that sends requests but does not read the answers is not read either, and is given up after
    /// a while; its queue stays bounded throughout. A peer that reads again is kept.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_floods_and_does_not_read() {
        for reads_again in [false, true] {
            let stream = Arc::new(Stream::new("m", 1000));
            let waits = open(&stream);
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let (reads, writes) = tokio::io::split(ours);
            let (mut unread, mut flood) = tokio::io::split(theirs);
            let flooding = tokio::spawn(async move {
                let ping = b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"ping\"}\n".repeat(1000);
                while flood.write_all(&ping).await.is_ok() {}
            });
            let writing = tokio::spawn({
                let stream = Arc::clone(&stream);
                async move { stream.write(writes).await }
            });
            let began = tokio::time::Instant::now();
            if reads_again {
                let reader = tokio::time::timeout(UNREAD_FOR / 2, stream.read(reads)).await;
                assert!(reader.is_err() && stream.fault().is_none(), "the reader waits");
                let mut read = vec![0; 1 << 20];
                unread.read_exact(&mut read).await.unwrap();
                assert!(stream.out.push(|out| out.put_slice(b"{}")).is_ok(), "there is room again");
            } else {
                stream.read(reads).await;
                assert_eq!(began.elapsed(), UNREAD_FOR);
                let Some(Fault::Unread(bytes)) = stream.fault() else { panic!("{:?}", stream.fault()) };
                assert!(stream.fault().unwrap().to_string().contains("does not read the answers"));
                assert!(*bytes <= 2 * Bounds::STREAM.bytes, "{bytes}");
                stream.given_up().await;
            }
            let waiting = stream.out.waiting();
            assert!(waiting.messages <= 2 * Bounds::STREAM.messages, "{waiting:?}");
            drop(waits);
            flooding.abort();
            writing.abort();
        }
    }

    /// BOUND-1: a peer is given up when an answer that cannot wait finds no room in its outbox.
    #[tokio::test]
    async fn a_peer_that_cannot_be_answered() {
        let stream = Arc::new(Stream::new("m", 100));
        let mut asked = stream.open(Purpose::Ordinary, Abilities::NONE);
        while stream.out.push(|out| out.put_bytes(b'x', 1 << 20)).is_ok() {}
        asked.owed.push(1.into());
        assert!(futures_util::poll!(Box::pin(stream.given_up())).is_pending());
        asked.reply(&1.into(), Err(&call_is_over()));
        stream.given_up().await;
        assert!(matches!(stream.fault(), Some(Fault::Unread(_))));
    }
}
