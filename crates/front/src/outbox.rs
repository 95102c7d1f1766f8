//! One writer for everything that goes to a line-based client.
//!
//! Messages are appended to a shared buffer and a single task writes what has gathered, so that many
//! answers leave in one write. The order of [`Outbox::push`] is the order on the wire. What a client does
//! not read stays bounded: progress is dropped, and [`Outbox::room`] holds the reader back.

use std::io;
use std::pin::pin;

use bytes::{BufMut, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How much may wait unwritten before no new requests are read and progress is dropped.
pub(crate) const BACKLOG: usize = 4 * 1024 * 1024;
/// A buffer that has grown larger than this is given back after use.
const KEPT: usize = 256 * 1024;

/// The shared end: messages go in here.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
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
    /// Appends one message as a line.
    pub(crate) fn push(&self, write: impl FnOnce(&mut BytesMut)) {
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
    pub(crate) fn push_if_room(&self, message: &[u8]) -> bool {
        let room = self.backlog() < BACKLOG;
        if room {
            self.push(|out| out.put_slice(message));
        }
        room
    }

    /// Waits until the client has read enough for more to be taken on.
    pub(crate) async fn room(&self) {
        loop {
            let mut drained = pin!(self.drained.notified());
            drained.as_mut().enable();
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
    pub(crate) async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Lets the writer end once everything is written.
    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.filled.notify_one();
    }

    fn backlog(&self) -> usize {
        let state = self.state.lock();
        state.buffer.len() + state.writing
    }

    /// Writes until closed. Ends early, with the error, when the client is gone.
    pub(crate) async fn write_to(&self, writer: impl AsyncWrite) -> io::Result<()> {
        // Also when this future is dropped, nobody must wait for room that never comes.
        let _gone = self.gone.clone().drop_guard();
        let mut writer = pin!(writer);
        let mut batch = BytesMut::new();
        loop {
            let closing = {
                let mut state = self.state.lock();
                std::mem::swap(&mut batch, &mut state.buffer);
                state.writing = batch.len();
                state.closing
            };
            if batch.is_empty() {
                if closing {
                    return writer.shutdown().await;
                }
                self.filled.notified().await;
                continue;
            }
            writer.write_all(&batch).await?;
            writer.flush().await?;
            batch.clear();
            if batch.capacity() > KEPT {
                batch = BytesMut::new();
            }
            self.state.lock().writing = 0;
            self.drained.notify_waiters();
        }
    }
}

/// Turns line breaks into spaces. Within JSON they can only be white space between tokens, such as an
/// upstream that is not bound to lines may send.
pub(crate) fn on_one_line(message: &mut [u8]) {
    while let Some(at) = memchr::memchr2(b'\n', b'\r', message) {
        message[at] = b' ';
    }
}
