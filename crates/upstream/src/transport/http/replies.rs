//! What a server reached over HTTP is owed: answers to its own requests, and cancellations.
//!
//! Each is a POST. They wait in one bounded outbox, and one task for each server delivers them, a few at a time: however
//! many requests a server sends, it has no more than that of our tasks and descriptors. Whoever reads what the server
//! sends waits while the outbox is full, and a server that takes nothing from it for [`UNTAKEN_FOR`] is given up.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bridgehead_lines::{Bounds, Full, Outbox};
use bridgehead_wire::{Method, Spliced, notification};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use tracing::{debug, warn};

use super::Remote;
use crate::link::LinkError;

/// How much may wait for one server; what cannot wait has as much again.
const WAITING: Bounds = Bounds { bytes: 4 * 1024 * 1024, messages: 512 };
/// How many are on their way at once: one that hangs does not hold up the others.
const AT_ONCE: usize = 4;
/// How long a server may take no answer to its own requests, once they fill the outbox. Less than one of them may take to
/// be accepted, or a server that hangs would be given a little room again and again.
const UNTAKEN_FOR: Duration = Duration::from_secs(5);

/// The outbox of one server. The task that empties it ends with this.
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
    /// Starts to deliver.
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

    /// Answers a request of the server's own, or gives the server up if it has taken nothing for too long. Whoever
    /// reads what the server sends reads on only after this.
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

    /// The same for those who cannot wait; the error has what there was no room for.
    pub(super) fn try_reply(&self, reply: BytesMut) -> Result<(), BytesMut> {
        self.replies.0.push(|out| out.extend_from_slice(&reply)).map_err(|Full| reply)
    }

    /// The same for what cannot be answered later either.
    pub(super) fn owe(&self, reply: BytesMut) {
        if self.try_reply(reply).is_err() {
            self.give_up();
        }
    }

    /// Tells the server that nobody waits any more. It may be lost.
    pub(super) fn tell_cancelled(&self, params: &Spliced) {
        let mut body = BytesMut::new();
        notification(&mut body, Method::Cancelled.as_str(), Some(params));
        if !self.replies.0.push_if_room(&body) {
            debug!(server = %self.board.server, "the server takes nothing, and is not told of a cancellation");
        }
    }

    /// Ends the link, and all who wait for an answer hear why.
    fn give_up(&self) {
        let waiting = self.replies.0.waiting();
        warn!(server = %self.board.server, messages = waiting.messages, bytes = waiting.bytes, "the server sends requests and does not take the answers; it is given up");
        let reason = format!(
            "{} sends requests and does not take the answers, {} of which wait for it: the link to it was closed",
            self.url, waiting.messages
        );
        self.board.end(LinkError::Closed(reason.into()));
        self.over.cancel();
    }
}
