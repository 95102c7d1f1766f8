//! The messages that wait to be written to one peer: many senders, one writer, few system calls.
//!
//! Senders append to a shared buffer and continue. The writer takes the whole buffer and writes it at once. It first lets
//! every sender run that is ready now, so that their messages share one write. Messages leave in the order in which they
//! were accepted.
//!
//! What must stay true: every way in is bounded. A sender that can wait uses [`Outbox::send`]. A message that may be lost
//! goes through [`Outbox::push_if_room`]. A message that is owed to the peer and cannot wait, such as the answer to its own
//! request written by a destructor, has as much room again; [`Outbox::push`] reports when that is used up too. A message
//! is taken whole if there is any room, so an outbox holds at most twice its [`Bounds`] and one message.

use std::io;
use std::pin::pin;

use bridgehead_wire::on_one_line;
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A buffer that has grown larger than this is freed after use.
const KEPT: usize = 256 * 1024;

/// How much may wait unwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// In bytes.
    pub bytes: usize,
    /// In messages.
    pub messages: usize,
}

impl Bounds {
    /// What one peer on a stream may leave unread.
    pub const STREAM: Self = Self { bytes: 4 * 1024 * 1024, messages: 64 * 1024 };

    const fn twice(self) -> Self {
        Self { bytes: self.bytes * 2, messages: self.messages * 2 }
    }
}

/// The message was not taken: there is no room, because the peer does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// The end that all senders share.
#[derive(Debug)]
pub struct Outbox {
    bounds: Bounds,
    state: Mutex<Buffered>,
    filled: Notify,
    drained: Notify,
    /// The writer has stopped; nothing more can be sent.
    gone: CancellationToken,
}

#[derive(Debug, Default)]
struct Buffered {
    buffer: BytesMut,
    /// Messages in the buffer.
    messages: usize,
    /// The bytes that the writer has taken and not yet written.
    writing: usize,
    writing_messages: usize,
    /// No more messages come: the writer ends when the buffer is empty.
    closing: bool,
}

impl Buffered {
    fn has_room(&self, bounds: Bounds) -> bool {
        self.buffer.len() + self.writing < bounds.bytes
            && self.messages + self.writing_messages < bounds.messages
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new(Bounds::STREAM)
    }
}

impl Outbox {
    /// An outbox with these bounds, and as much room again for messages that are owed.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            state: Mutex::default(),
            filled: Notify::new(),
            drained: Notify::new(),
            gone: CancellationToken::new(),
        }
    }

    /// Appends one message as soon as there is room. `write` adds its bytes, the outbox adds the line break. A future that
    /// is dropped while it waits has sent nothing.
    pub async fn send(&self, write: impl FnOnce(&mut BytesMut)) {
        let mut write = Some(write);
        while !self.put(self.bounds, &mut write) {
            self.room().await;
        }
    }

    /// Appends one message that is owed to the peer, unless the room for owed messages is used up too.
    pub fn push(&self, write: impl FnOnce(&mut BytesMut)) -> Result<(), Full> {
        if self.put(self.bounds.twice(), &mut Some(write)) { Ok(()) } else { Err(Full) }
    }

    /// Appends a message that may be lost; returns whether there was room.
    pub fn push_if_room(&self, message: &[u8]) -> bool {
        self.put(self.bounds, &mut Some(|out: &mut BytesMut| out.put_slice(message)))
    }

    /// Appends what `write` adds, if there is room within `bounds`. After the writer has stopped, every message counts as
    /// sent.
    fn put<W: FnOnce(&mut BytesMut)>(&self, bounds: Bounds, write: &mut Option<W>) -> bool {
        if self.gone.is_cancelled() {
            return true;
        }
        {
            let mut state = self.state.lock();
            if !state.has_room(bounds) {
                return false;
            }
            let Some(write) = write.take() else { return true };
            let start = state.buffer.len();
            write(&mut state.buffer);
            on_one_line(&mut state.buffer[start..]);
            state.buffer.put_u8(b'\n');
            state.messages += 1;
        }
        self.filled.notify_one();
        true
    }

    /// Waits until the peer has read enough that more can be sent.
    pub async fn room(&self) {
        self.room_within(self.bounds).await;
    }

    /// Waits until the peer has read enough that an owed message can be sent.
    pub async fn room_for_owed(&self) {
        self.room_within(self.bounds.twice()).await;
    }

    async fn room_within(&self, bounds: Bounds) {
        while !self.state.lock().has_room(bounds) {
            let mut drained = pin!(self.drained.notified());
            drained.as_mut().enable();
            // Checked again, because from here on no drain can be missed.
            if self.state.lock().has_room(bounds) {
                return;
            }
            tokio::select! {
                () = drained => {}
                () = self.gone.cancelled() => return,
            }
        }
    }

    /// Waits until the writer has stopped; nothing can be sent after that.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Lets the writer end once everything is written.
    pub fn close(&self) {
        self.state.lock().closing = true;
        self.filled.notify_one();
    }

    /// How many bytes and messages wait.
    pub fn waiting(&self) -> Bounds {
        let state = self.state.lock();
        Bounds {
            bytes: state.buffer.len() + state.writing,
            messages: state.messages + state.writing_messages,
        }
    }

    /// The next message without its line break, for a transport that takes messages one by one; `None` once the outbox is
    /// closed and empty. The message no longer counts as waiting.
    pub async fn next(&self) -> Option<Bytes> {
        loop {
            {
                let mut state = self.state.lock();
                if let Some(end) = state.buffer.iter().position(|byte| *byte == b'\n') {
                    let mut message = state.buffer.split_to(end + 1);
                    message.truncate(end);
                    state.messages -= 1;
                    drop(state);
                    self.drained.notify_waiters();
                    return Some(message.freeze());
                }
                if state.closing {
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Writes until closed, then closes the stream. Ends early, with the error, when the peer is gone.
    pub async fn write_to(&self, stream: impl AsyncWrite) -> io::Result<()> {
        // Even if this future is dropped, no sender may wait for room that never comes.
        let _gone = self.gone.clone().drop_guard();
        let mut stream = pin!(stream);
        let mut batch = BytesMut::new();
        // A single-threaded runtime runs every ready sender before it returns to the writer; a multi-threaded one does not.
        let several = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        loop {
            let closing = {
                let mut state = self.state.lock();
                std::mem::swap(&mut batch, &mut state.buffer);
                state.writing = batch.len();
                state.writing_messages = std::mem::take(&mut state.messages);
                state.closing
            };
            if batch.is_empty() {
                if closing {
                    return stream.shutdown().await;
                }
                self.filled.notified().await;
                if several {
                    tokio::task::yield_now().await;
                }
                continue;
            }
            let mut rest = &batch[..];
            while !rest.is_empty() {
                let written = stream.write(rest).await?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                let (done, left) = rest.split_at(written);
                rest = left;
                // A peer that reads slowly makes room as it reads.
                if !left.is_empty() {
                    self.wrote(done, left.len());
                }
            }
            stream.flush().await?;
            batch = emptied(batch);
            self.wrote(&[], 0);
        }
    }

    /// The writer has written `done` of its batch, and `left` bytes remain.
    #[inline]
    fn wrote(&self, done: &[u8], left: usize) {
        {
            let mut state = self.state.lock();
            state.writing = left;
            let ends = done.iter().filter(|byte| **byte == b'\n').count();
            state.writing_messages = if left == 0 { 0 } else { state.writing_messages.saturating_sub(ends) };
        }
        self.drained.notify_waiters();
    }
}

/// The buffer to use next: the same one, unless it has grown too large.
#[inline]
fn emptied(mut buffer: BytesMut) -> BytesMut {
    buffer.clear();
    if buffer.capacity() > KEPT { BytesMut::new() } else { buffer }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn messages_leave_in_order_one_a_line() {
        let outbox = Arc::new(Outbox::default());
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let writer = tokio::spawn({
            let outbox = Arc::clone(&outbox);
            async move { outbox.write_to(ours).await }
        });
        for number in 0..100 {
            outbox.send(|out| out.put_slice(format!("{{\r\n  \"n\": {number}\n}}").as_bytes())).await;
        }
        outbox.close();
        let mut text = String::new();
        theirs.read_to_string(&mut text).await.unwrap();
        let expected: String = (0..100).map(|number| format!("{{    \"n\": {number} }}\n")).collect();
        assert_eq!(text, expected);
        writer.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_stops_those_who_can_wait() {
        const BACKLOG: usize = Bounds::STREAM.bytes;
        let outbox = Arc::new(Outbox::default());
        outbox.send(|out| out.resize(BACKLOG, b'x')).await;
        assert!(!outbox.push_if_room(b"lost"));
        let mut room = Box::pin(outbox.room());
        assert!(futures_util::poll!(&mut room).is_pending());
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let writer = tokio::spawn({
            let outbox = Arc::clone(&outbox);
            async move { outbox.write_to(ours).await }
        });
        let mut text = vec![0; BACKLOG + 1];
        theirs.read_exact(&mut text).await.unwrap();
        room.await;
        assert!(outbox.push_if_room(b"kept"));
        drop(theirs);
        outbox.send(|out| out.put_slice(b"more")).await;
        assert_eq!(writer.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        outbox.gone().await;
        outbox.send(|out| out.resize(BACKLOG, b'x')).await;
        outbox.send(|out| out.resize(BACKLOG, b'x')).await;
    }

    /// BOUND-1: every way in is bounded, in bytes and in messages; owed messages have their own bound.
    #[tokio::test]
    async fn no_way_in_is_without_a_bound() {
        for bounds in
            [Bounds { bytes: 1000, messages: usize::MAX / 2 }, Bounds { bytes: 1 << 30, messages: 100 }]
        {
            let outbox = Arc::new(Outbox::new(bounds));
            let message = [b'x'; 9];
            let mut taken = 0;
            while outbox.push_if_room(&message) {
                taken += 1;
            }
            assert_eq!(taken, 100);
            assert!(futures_util::poll!(Box::pin(outbox.send(|out| out.put_slice(&message)))).is_pending());
            while outbox.push(|out| out.put_slice(&message)).is_ok() {
                taken += 1;
            }
            assert_eq!((taken, outbox.waiting()), (200, Bounds { bytes: 2000, messages: 200 }));
            let mut owed = Box::pin(outbox.room_for_owed());
            assert!(futures_util::poll!(&mut owed).is_pending());
            // A peer that reads a little makes a little room, though the batch is not written yet.
            let (ours, mut theirs) = tokio::io::duplex(64);
            let writer = tokio::spawn({
                let outbox = Arc::clone(&outbox);
                async move { outbox.write_to(ours).await }
            });
            theirs.read_exact(&mut [0; 30]).await.unwrap();
            owed.await;
            assert!(outbox.waiting().bytes > 1000, "most of it is unread");
            outbox.push(|out| out.put_slice(&message)).unwrap();
            outbox.close();
            let mut rest = Vec::new();
            theirs.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest.len(), 2000 - 30 + 10);
            writer.await.unwrap().unwrap();
        }
    }

    /// BOUND-1: the memory of one long message is not kept for short ones.
    #[test]
    fn a_buffer_that_has_grown_is_given_back() {
        for (capacity, kept) in [(64, 64), (KEPT, KEPT), (KEPT + 1, 0)] {
            let mut buffer = BytesMut::with_capacity(capacity);
            buffer.put_slice(b"written");
            let next = emptied(buffer);
            assert_eq!((next.capacity(), next.len()), (kept, 0), "{capacity}");
        }
    }

    #[tokio::test]
    async fn messages_one_by_one() {
        let outbox = Outbox::new(Bounds { bytes: 100, messages: 1 });
        outbox.send(|out| out.put_slice(b"a\nb")).await;
        let mut second = Box::pin(outbox.send(|out| out.put_slice(b"c")));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!(outbox.next().await.unwrap(), "a b");
        second.await;
        outbox.close();
        assert_eq!(outbox.next().await.unwrap(), "c");
        assert_eq!(outbox.next().await, None);
    }
}
