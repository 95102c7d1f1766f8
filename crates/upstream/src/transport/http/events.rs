//! The event stream on which a legacy server sends messages unprompted.
//!
//! For streamable HTTP it is optional: a server may refuse it, and a broken stream is resumed. For HTTP+SSE it is
//! the connection itself, and its end is the end of the link.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bridgehead_lines::Full;
use bridgehead_wire::{EventBuffer, ServerEvent};
use http::StatusCode;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::Remote;
use super::body::{Media, media_name};
use super::dialect::Draft;
use super::exchange::{RESUME_AFTER, RESUME_AT_MOST};
use super::refusal::refused;
use super::wire::Wire;
use crate::link::LinkError;

/// An open stream.
#[derive(Debug)]
pub(super) struct Feed {
    wire: Wire,
    events: EventBuffer,
}

/// Why a stream could not be opened.
#[derive(Debug)]
pub(super) struct NoFeed {
    /// The server's status, if it answered.
    pub(super) status: Option<StatusCode>,
    pub(super) reason: String,
}

impl From<NoFeed> for LinkError {
    fn from(NoFeed { status, reason }: NoFeed) -> Self {
        match status {
            None => Self::Closed(reason.into()),
            Some(status) => refused(status, reason),
        }
    }
}

impl Feed {
    /// Requests the stream, from where the last one broke off. `sent` is called when the request has left.
    pub(super) async fn open(
        remote: &Remote,
        last_id: Option<&str>,
        sent: impl FnMut(),
    ) -> Result<Self, NoFeed> {
        match remote.exchange_telling(&Draft::stream(last_id), sent).await {
            Err(failure) => Err(NoFeed { status: None, reason: failure.reason() }),
            Ok((head, wire)) => {
                let status = head.status;
                if !status.is_success() {
                    let reason = remote.explain(status, &head.headers);
                    return Err(NoFeed { status: Some(status), reason });
                }
                if head.media != Media::Events {
                    let reason = format!(
                        "{} answered with {} where an event stream was expected: check the `url` and the `type`",
                        remote.url,
                        media_name(&head.headers)
                    );
                    return Err(NoFeed { status: Some(status), reason });
                }
                Ok(Self { wire, events: EventBuffer::new() })
            }
        }
    }

    /// The next event with data; `None` if the stream has ended or an event exceeds the limit.
    pub(super) async fn next(&mut self, limit: usize) -> Option<ServerEvent> {
        loop {
            while let Some(event) = self.events.next_event() {
                if !event.data.is_empty() {
                    return Some(event);
                }
            }
            if self.events.held() > limit {
                warn!(
                    held = self.events.held(),
                    limit, "an event is larger than the limit; its stream is closed"
                );
                return None;
            }
            let piece = poll_fn(|context| match self.wire.poll_body(context) {
                Poll::Ready(Some(Ok(piece))) => Poll::Ready(Some(piece)),
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            self.events.push(piece.await?);
        }
    }
}

impl Remote {
    /// Handles an event; fails if the server was given up, after which nothing more is read.
    async fn take(&self, event: &ServerEvent) -> Result<(), Full> {
        match self.board.accept(&event.data) {
            Some(reply) => self.reply(reply).await,
            None => Ok(()),
        }
    }

    /// Listens to a streamable server for as long as it allows it. `asked` is dropped when the first request for
    /// the stream has left, or has failed.
    pub(super) async fn listen(self: Arc<Self>, asked: oneshot::Sender<()>) {
        let mut asked = Some(asked);
        let mut last_id: Option<String> = None;
        let mut delay = RESUME_AFTER;
        loop {
            let opened = Feed::open(&self, last_id.as_deref(), || drop(asked.take())).await;
            drop(asked.take());
            match opened {
                Ok(mut feed) => {
                    while let Some(event) = feed.next(self.limit).await {
                        if self.take(&event).await.is_err() {
                            return;
                        }
                    }
                    last_id = feed.events.last_id().map(str::to_owned).or(last_id);
                    delay = feed.events.retry().unwrap_or(RESUME_AFTER).min(RESUME_AT_MOST);
                }
                Err(NoFeed { status: Some(StatusCode::NOT_FOUND), .. })
                    if self.dialect.load().has_session() =>
                {
                    return self.retire(&format!("{} has forgotten our session", self.url));
                }
                Err(NoFeed { status: Some(status), .. }) if status.is_client_error() => {
                    return debug!(server = %self.board.server, %status, "the server has no stream of its own");
                }
                Err(NoFeed { reason, .. }) => {
                    debug!(server = %self.board.server, reason, "the server's own stream could not be opened");
                    delay = (delay * 2).min(RESUME_AT_MOST);
                }
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Reads the only stream of an HTTP+SSE server to its end, which ends the link.
    pub(super) async fn read(self: Arc<Self>, mut feed: Feed) {
        while let Some(event) = feed.next(self.limit).await {
            if self.take(&event).await.is_err() {
                return;
            }
        }
        let reason = if feed.events.held() > self.limit {
            format!("{} sent an event larger than the limit (`max_message_mb`)", self.url)
        } else {
            format!("{} closed its event stream", self.url)
        };
        self.board.end(LinkError::Closed(reason.into()));
        self.over.cancel();
    }
}
