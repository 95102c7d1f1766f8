//! What waits to be written to one peer: many senders, one writer, few system calls.
//!
//! Senders append to a shared buffer and go on; the writer takes the whole buffer and writes it at once, when
//! every sender that is ready now has had its turn and rides in the same write. The order of
//! [`Outbox::push`] is the order on the wire. What a peer does not read stays bounded: whoever can wait
//! waits for [`Outbox::room`], and what may be lost goes by [`Outbox::push_if_room`].

use std::io;
use std::pin::pin;

use bridgehead_wire::on_one_line;
use bytes::{BufMut, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How much may wait unwritten before there is no room.
pub const BACKLOG: usize = 4 * 1024 * 1024;
/// A buffer that has grown larger than this is given back after use.
const KEPT: usize = 256 * 1024;

/// The shared end: messages go in here.
#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<State>,
    filled: Notify,
    drained: Notify,
    /// The writer has stopped; nothing more can be sent.
    gone: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    buffer: BytesMut,
    /// Bytes that the writer has taken and not finished.
    writing: usize,
    /// No more messages come: the writer ends when the buffer is empty.
    closing: bool,
}

impl Outbox {
    /// Appends one message, whose bytes `write` adds; the line break is ours.
    pub fn push(&self, write: impl FnOnce(&mut BytesMut)) {
        if self.gone.is_cancelled() {
            return;
        }
        {
            let mut state = self.state.lock();
            let start = state.buffer.len();
            write(&mut state.buffer);
            on_one_line(&mut state.buffer[start..]);
            state.buffer.put_u8(b'\n');
        }
        self.filled.notify_one();
    }

    /// Appends a message that may be lost; says whether there was room.
    pub fn push_if_room(&self, message: &[u8]) -> bool {
        let room = self.backlog() < BACKLOG;
        if room {
            self.push(|out| out.put_slice(message));
        }
        room
    }

    /// Waits until the peer has read enough for more to be taken on.
    pub async fn room(&self) {
        while self.backlog() >= BACKLOG {
            let mut drained = pin!(self.drained.notified());
            drained.as_mut().enable();
            // Looked at again now that no drain can be missed.
            if self.backlog() < BACKLOG {
                return;
            }
            tokio::select! {
                () = drained => {}
                () = self.gone.cancelled() => return,
            }
        }
    }

    /// Waits until nothing can be sent any more.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Lets the writer end once everything is written.
    pub fn close(&self) {
        self.state.lock().closing = true;
        self.filled.notify_one();
    }

    fn backlog(&self) -> usize {
        let state = self.state.lock();
        state.buffer.len() + state.writing
    }

    /// Writes until closed, then closes the stream. Ends early, with the error, when the peer is gone.
    pub async fn write_to(&self, stream: impl AsyncWrite) -> io::Result<()> {
        // Also when this future is dropped, nobody must wait for room that never comes.
        let _gone = self.gone.clone().drop_guard();
        let mut stream = pin!(stream);
        let mut batch = BytesMut::new();
        // A single thread runs whoever is ready before it comes back to the writer; several do not.
        let several = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        loop {
            let closing = {
                let mut state = self.state.lock();
                std::mem::swap(&mut batch, &mut state.buffer);
                state.writing = batch.len();
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
            stream.write_all(&batch).await?;
            stream.flush().await?;
            batch.clear();
            if batch.capacity() > KEPT {
                batch = BytesMut::new();
            }
            self.state.lock().writing = 0;
            self.drained.notify_waiters();
        }
    }
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
            outbox.push(|out| out.put_slice(format!("{{\r\n  \"n\": {number}\n}}").as_bytes()));
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
        let outbox = Arc::new(Outbox::default());
        outbox.push(|out| out.resize(BACKLOG, b'x'));
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
        outbox.push(|out| out.put_slice(b"more"));
        assert_eq!(writer.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        outbox.gone().await;
        outbox.push(|out| out.resize(BACKLOG, b'x'));
        outbox.room().await;
    }
}
