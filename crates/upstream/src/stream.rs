//! One ordered engine per stream of messages.
//!
//! A single reader task takes messages in the order they arrive and hands each to the request it belongs
//! to; no task is started per message.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bridgehead_lines::{LineReader, Outbox};
use bridgehead_wire::{Abilities, Id, Line, Method, RpcError, Spliced, notification, request, response};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{debug, warn};

use crate::crash::Crash;
use crate::link::{Event, LinkError, Purpose, call_is_over, cancelled_params};
use crate::switchboard::{Slot, Switchboard};

/// What both tasks and all requests share.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) board: Switchboard,
    limit: usize,
    /// How much that is no message may come, in bytes; any amount, if unset.
    noise_limit: OnceLock<u64>,
    out: Outbox,
}

/// After so many lines in a row that are no messages others have their turn.
const NOISY_LINES: u32 = 64;

impl Stream {
    pub(crate) fn new(server: &str, limit: usize) -> Self {
        Self { board: Switchboard::new(server), limit, noise_limit: OnceLock::new(), out: Outbox::default() }
    }

    pub(crate) fn open(self: &Arc<Self>, purpose: Purpose, abilities: Abilities) -> StreamExchange {
        let id = self.board.next_id();
        let slot = self.board.register(id, purpose);
        let stream = Arc::clone(self);
        StreamExchange { stream, id, slot, abilities, owed: Vec::new(), sent: false, done: false }
    }

    pub(crate) async fn notify(&self, method: &Method, params: Option<&Spliced>) {
        self.out.room().await;
        self.out.push(|out| notification(out, method.as_str(), params));
    }

    pub(crate) async fn read<R: AsyncRead + Unpin>(&self, reader: R) {
        let mut lines = LineReader::new(reader, self.limit);
        let (mut noise, mut noisy) = (0, 0_u32);
        loop {
            match lines.next().await {
                Ok(Some(line)) => {
                    self.accept(line);
                    if noise == self.board.noise() {
                        continue;
                    }
                    noise = self.board.noise();
                    if self.noise_limit.get().is_some_and(|&most| noise > most) {
                        return self.board.end(LinkError::Crashed(Arc::new(Crash::noise(noise))));
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

    /// Ends the link once more than this came that is no message.
    pub(crate) fn limit_noise(&self, bytes: u64) {
        let _ = self.noise_limit.set(bytes);
    }

    pub(crate) async fn write<W: AsyncWrite>(&self, writer: W) {
        if let Err(error) = self.out.write_to(writer).await {
            debug!(server = %self.board.server, %error, "cannot write to the server any more");
        }
    }

    fn accept(&self, line: Line) {
        match line {
            Line::Text(text) => {
                if let Some(reply) = self.board.accept(&text) {
                    self.out.push(|out| out.extend_from_slice(&reply));
                }
            }
            Line::TooLong { bytes, id } => {
                warn!(server = %self.board.server, bytes, limit = self.limit, "skipped a line longer than the limit");
                if id.is_none() {
                    self.board.made_noise(bytes);
                }
                if let Some(id) = id.and_then(|id| id.as_u64()) {
                    self.board.lose(id, LinkError::TooLarge { bytes, limit: self.limit });
                }
            }
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
    /// What the server asked and has no answer to.
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
        self.stream.out.room().await;
        if !self.abilities.is_none() {
            self.slot.can_answer(self.abilities);
        }
        self.stream.out.push(|out| request(out, self.id, method.as_str(), params));
        self.sent = true;
    }

    pub(crate) fn want_logs(&self) {
        self.slot.want_logs();
    }

    pub(crate) const fn was_sent(&self) -> bool {
        self.sent
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
            self.stream.out.push(|out| response(out, id, outcome));
        }
    }
}

impl Drop for StreamExchange {
    fn drop(&mut self) {
        let open = !self.done && self.stream.board.release(self.id);
        if !self.abilities.is_none() {
            self.owed.extend(self.slot.unseen());
            for id in std::mem::take(&mut self.owed) {
                self.stream.out.push(|out| response(out, &id, Err(&call_is_over())));
            }
        }
        if open && self.sent && self.slot.purpose != Purpose::Handshake {
            let params = cancelled_params(self.id);
            self.stream.out.push(|out| notification(out, Method::Cancelled.as_str(), Some(&params)));
        }
    }
}
