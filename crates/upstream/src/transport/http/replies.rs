//! Messages owed to an HTTP server: answers to its own requests, and cancellations.
//!
//! Each is a POST. They wait in one bounded outbox, and one task per server delivers a few at a time. So the tasks
//! and descriptors of a server stay bounded, however many requests it sends. The readers of the server's messages
//! wait while the outbox is full, and a server that accepts nothing for [`UNTAKEN_FOR`] is given up.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bridgehead_lines::{Bounds, Full, Outbox};
use bridgehead_wire::{Method, Spliced, notification};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use tracing::{debug, warn};

use super::Remote;
use crate::link::LinkError;

/// How much may wait for one server; messages that cannot wait for room have as much again.
const WAITING: Bounds = Bounds { bytes: 4 * 1024 * 1024, messages: 512 };
/// How many are delivered at once, so that one that hangs does not block the others.
const AT_ONCE: usize = 4;
/// How long a server may accept no answer to its own requests, once they fill the outbox. It is shorter than the
/// time that one of them may take to be accepted: otherwise a server that hangs would get a little room again and
/// again.
const UNTAKEN_FOR: Duration = Duration::from_secs(5);

/// The outbox of one server. Its task ends when this is dropped.
#[derive(Debug)]
pub(super) struct Replies(Arc<Outbox>);

impl Default for Replies {
    fn default() -> Self {
        Self(Arc::new(Outbox::new(WAITING)))
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Remote {
    /// Starts the delivery.
    pub(super) fn deliver_replies(self: &Arc<Self>) {
        let outbox = Arc::clone(&self.replies.0);
        let remote: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            let messages = stream::unfold(outbox, |outbox| async move {
                let message: Bytes = outbox.next().await?;
                Some((message, outbox))
            });
            messages
                .for_each_concurrent(AT_ONCE, |message| {
                    let remote = remote.upgrade();
                    async move {
                        if let Some(remote) = remote {
                            remote.tell("an answer", message).await;
                        }
                    }
                })
                .await;
        });
    }

    /// Answers a request of the server's own, or gives the server up if it has accepted nothing for too long. The
    /// reader of the server's messages continues only after this.
    pub(super) async fn reply(&self, reply: BytesMut) -> Result<(), Full> {
        let outbox = &self.replies.0;
        while outbox.push(|out| out.extend_from_slice(&reply)).is_err() {
            if tokio::time::timeout(UNTAKEN_FOR, outbox.room_for_owed()).await.is_err() {
                self.give_up();
                return Err(Full);
            }
        }
        Ok(())
    }

    /// The same for callers that cannot wait; returns the reply if there was no room for it.
    pub(super) fn try_reply(&self, reply: BytesMut) -> Result<(), BytesMut> {
        self.replies.0.push(|out| out.extend_from_slice(&reply)).map_err(|Full| reply)
    }

    /// The same for a reply that cannot be sent later either.
    pub(super) fn owe(&self, reply: BytesMut) {
        if self.try_reply(reply).is_err() {
            self.give_up();
        }
    }

    /// Sends a cancellation to the server. It may be lost.
    pub(super) fn tell_cancelled(&self, params: &Spliced) {
        let mut body = BytesMut::new();
        notification(&mut body, Method::Cancelled.as_str(), Some(params));
        if !self.replies.0.push_if_room(&body) {
            debug!(server = %self.board.server, "the server accepts nothing; a cancellation was dropped");
        }
    }

    /// Ends the link; all open requests fail with the reason.
    fn give_up(&self) {
        let waiting = self.replies.0.waiting();
        warn!(server = %self.board.server, messages = waiting.messages, bytes = waiting.bytes, "the server sends requests but does not accept the answers; giving it up");
        let reason = format!(
            "{} sends requests and does not accept the answers; {} of them are waiting: the link to it was closed",
            self.url, waiting.messages
        );
        self.board.end(LinkError::Closed(reason.into()));
        self.over.cancel();
    }
}
