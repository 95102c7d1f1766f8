//! What waits to be written to a peer: many senders, one writer, few system calls.
//!
//! Senders append to one shared buffer and go on; the writer task takes the whole buffer and writes it
//! at once. It yields before taking, so that every sender that is ready now rides in the same write.

use std::io;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// Senders wait while more than this is unwritten: a peer that does not read must not grow our memory.
const HIGH_WATER: usize = 4 * 1024 * 1024;
/// A buffer that grew past this for one large message is not kept.
const KEEP: usize = 256 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    buffer: Mutex<BytesMut>,
    filled: Notify,
    drained: Notify,
}

impl Outbox {
    /// Appends one message, whose bytes `write` adds; the line break is ours. Waits for room first.
    pub(crate) async fn send(&self, write: impl FnOnce(&mut BytesMut)) {
        loop {
            let drained = self.drained.notified();
            if self.buffer.lock().len() <= HIGH_WATER {
                break;
            }
            drained.await;
        }
        self.push(write);
    }

    /// Appends one short message without waiting, for places that cannot wait.
    pub(crate) fn push(&self, write: impl FnOnce(&mut BytesMut)) {
        let mut buffer = self.buffer.lock();
        write(&mut buffer);
        buffer.extend_from_slice(b"\n");
        drop(buffer);
        self.filled.notify_one();
    }

    /// Writes until the pipe fails. Ends only by error or by being dropped.
    pub(crate) async fn drain_into(&self, mut pipe: impl AsyncWrite + Unpin) -> io::Error {
        let mut writing = BytesMut::new();
        loop {
            self.filled.notified().await;
            tokio::task::yield_now().await;
            std::mem::swap(&mut *self.buffer.lock(), &mut writing);
            self.drained.notify_waiters();
            if let Err(error) = pipe.write_all(&writing).await {
                return error;
            }
            if let Err(error) = pipe.flush().await {
                return error;
            }
            if writing.capacity() > KEEP {
                writing = BytesMut::new();
            } else {
                writing.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn messages_leave_in_order_and_share_writes() {
        let outbox = Arc::new(Outbox::default());
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let writer = tokio::spawn({
            let outbox = Arc::clone(&outbox);
            async move { outbox.drain_into(ours).await }
        });
        for number in 0..100 {
            outbox.send(|out| out.extend_from_slice(number.to_string().as_bytes())).await;
        }
        let mut text = Vec::new();
        while text.iter().filter(|byte| **byte == b'\n').count() < 100 {
            theirs.read_buf(&mut text).await.unwrap();
        }
        let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        drop(theirs);
        outbox.push(|out| out.extend_from_slice(b"x"));
        assert_eq!(writer.await.unwrap().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_stops_the_senders() {
        let outbox = Outbox::default();
        outbox.send(|out| out.resize(HIGH_WATER + 1, b'x')).await;
        let mut second = Box::pin(outbox.send(|out| out.extend_from_slice(b"y")));
        assert!(futures_util::poll!(&mut second).is_pending());
        outbox.buffer.lock().clear();
        outbox.drained.notify_waiters();
        assert!(futures_util::poll!(&mut second).is_ready());
    }
}
