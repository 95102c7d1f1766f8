//! One request to an HTTP server, from the POST to its answer, driven by the task that waits for it.
//!
//! Invariants: a request is sent again only if the server provably did not run it. Dropping a modern request closes
//! its response; dropping a legacy one sends a cancellation. If the stream of a legacy answer breaks, it is resumed
//! where it broke off, if the server has given it event ids. A server's question on the stream of a request goes to
//! the client of that request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bridgehead_lines::Full;
use bridgehead_wire::{
    Abilities, EventBuffer, Gathered, Id, Message, Method, Raw, RpcError, Spliced, code, request, response,
};
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::body::{Media, Mirrored, media_name};
use super::dialect::{Draft, Speech};
use super::refusal::{never_ran, pause, refused};
use super::wire::{Head as Answered, Wire};
use super::{Failure, Remote, SESSION};
use crate::catalog::Lists;
use crate::link::switchboard::{Slot, reached, withdrawn_id};
use crate::link::{Event, LinkError, Mirror, Purpose, call_is_over, cancelled_params};

/// How often a request is sent again after the server asked to wait.
const MOST_PAUSES: u32 = 3;
/// How often in a row a broken stream is resumed without receiving an event.
const MOST_RESUMPTIONS: u32 = 5;
/// The pause before resuming, if the server names none.
pub(super) const RESUME_AFTER: Duration = Duration::from_secs(1);
/// The longest pause before resuming, whatever the server says.
pub(super) const RESUME_AT_MOST: Duration = Duration::from_secs(60);
/// How much of a refusal's body is read to find an error in it.
const LARGEST_REFUSAL: usize = 64 * 1024;

type Head = Result<(Answered, Wire), Failure>;

/// One request.
pub(crate) struct HttpExchange {
    remote: Arc<Remote>,
    id: u64,
    purpose: Purpose,
    /// Queues messages from the server's own stream; a modern server has none.
    slot: Option<Arc<Slot>>,
    abilities: Abilities,
    /// The server's questions that have no answer yet.
    owed: Vec<Id>,
    outgoing: Option<Outgoing>,
    state: ExchangeState,
    /// The status and the session id of the last response.
    pub(super) status: Option<StatusCode>,
    pub(super) session: Option<HeaderValue>,
    last_progress: Option<f64>,
    logs: bool,
    pauses: u32,
    /// Until when the server asked us to wait; nothing is sent before.
    put_off: Option<Instant>,
    resumptions: u32,
    sent: bool,
    done: bool,
    /// An answer to a request of the server's own that has no room yet; nothing more is read until it has.
    replying: Option<BoxFuture<'static, Result<(), Full>>>,
}

/// The posted request, kept to post it again.
struct Outgoing {
    speech: Speech,
    in_session: bool,
    draft: Arc<Draft>,
}

enum ExchangeState {
    /// Nothing was sent, or nothing more will come.
    Idle,
    /// Waits for the head of the answer.
    Head(BoxFuture<'static, Head>),
    /// The answer is a single JSON text.
    Whole { wire: Wire, pieces: Gathered },
    /// The answer arrives among events.
    Events { wire: Wire, events: Box<EventBuffer> },
    /// The server refused; its body may contain an error.
    Refused { wire: Wire, pieces: Gathered, reason: String },
    /// The answer arrives on the server's own stream.
    Elsewhere,
}

impl fmt::Debug for HttpExchange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HttpExchange").field("id", &self.id).finish_non_exhaustive()
    }
}

impl HttpExchange {
    pub(crate) fn open(remote: &Arc<Remote>, purpose: Purpose, abilities: Abilities) -> Self {
        Self::open_as(remote, remote.board.next_id(), purpose, abilities)
    }

    pub(crate) fn open_as(remote: &Arc<Remote>, id: u64, purpose: Purpose, abilities: Abilities) -> Self {
        if purpose.is_work() {
            remote.open_exchanges.fetch_add(1, Ordering::Relaxed);
        }
        // A modern server has no stream of its own, so no slot is needed.
        let slot = (!remote.is_modern()).then(|| remote.board.register(id, purpose));
        Self {
            remote: Arc::clone(remote),
            id,
            purpose,
            slot,
            abilities,
            owed: Vec::new(),
            outgoing: None,
            state: ExchangeState::Idle,
            status: None,
            session: None,
            last_progress: None,
            logs: false,
            pauses: 0,
            put_off: None,
            resumptions: 0,
            sent: false,
            done: false,
            replying: None,
        }
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn want_logs(&mut self) {
        self.logs = true;
        if let Some(slot) = &self.slot {
            slot.want_logs();
        }
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.sent && self.put_off().is_none()
    }

    pub(crate) fn sends(&self) -> u32 {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.draft.sends())
    }

    /// Why nothing was sent yet, if the server asked us to wait.
    pub(crate) fn put_off(&self) -> Option<LinkError> {
        let left = self.put_off?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        let reason = format!(
            "{} gets too many requests: it asks to wait {seconds} s more (`Retry-After`)",
            self.remote.url
        );
        Some(LinkError::Refused { reason: reason.into(), transient: true, denied: false })
    }

    pub(crate) fn send(&mut self, method: &Method, params: &Spliced, mirror: Mirror<'_>) {
        let dialect = self.remote.dialect.load();
        let (speech, in_session) = (dialect.speech, dialect.has_session());
        drop(dialect);
        let mut body = BytesMut::new();
        request(&mut body, self.id, method.as_str(), params);
        let mirrored = (speech == Speech::Modern).then(|| Mirrored::new(method, mirror));
        let draft = Arc::new(Draft::message(mirrored, body.freeze()));
        self.outgoing = Some(Outgoing { speech, in_session, draft });
        if let Some(slot) = self.slot.as_ref().filter(|_| !self.abilities.is_none()) {
            slot.can_answer(self.abilities);
        }
        if self.remote.board.is_open() {
            self.post(None);
        }
    }

    /// Posts the request, after `pause` if there is one.
    fn post(&mut self, pause: Option<Duration>) {
        let Some(outgoing) = &self.outgoing else { return };
        let draft = Arc::clone(&outgoing.draft);
        let remote = Arc::clone(&self.remote);
        self.sent = true;
        self.put_off = remote.rests_until();
        self.state = ExchangeState::Head(Box::pin(async move {
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
            remote.exchange(&draft).await
        }));
    }

    /// Resumes the stream of the answer.
    fn resume(&mut self, last_id: String, after: Duration) {
        let remote = Arc::clone(&self.remote);
        self.state = ExchangeState::Head(Box::pin(async move {
            tokio::time::sleep(after.min(RESUME_AT_MOST)).await;
            remote.exchange(&Draft::stream(Some(&last_id))).await
        }));
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(slot) = &self.slot
            && let Poll::Ready(event) = slot.poll(context)
        {
            return Poll::Ready(self.give(event));
        }
        loop {
            let event = match std::mem::replace(&mut self.state, ExchangeState::Idle) {
                ExchangeState::Idle => self.idle(),
                ExchangeState::Elsewhere => {
                    self.state = ExchangeState::Elsewhere;
                    return Poll::Pending;
                }
                ExchangeState::Head(mut head) => match head.as_mut().poll(context) {
                    Poll::Pending => {
                        self.state = ExchangeState::Head(head);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok((head, wire))) => self.judge(&head, wire),
                    Poll::Ready(Err(failure)) => Some(self.failed(failure)),
                },
                ExchangeState::Whole { wire, pieces } => ready!(self.poll_whole(wire, pieces, context)),
                ExchangeState::Events { wire, events } => {
                    ready!(self.poll_events(wire, events, context))
                }
                ExchangeState::Refused { wire, pieces, reason } => {
                    ready!(self.poll_refused(wire, pieces, reason, context))
                }
            };
            if let Some(event) = event {
                return Poll::Ready(self.give(event));
            }
        }
    }

    fn give(&mut self, event: Event) -> Event {
        match &event {
            Event::Progress(_) | Event::Log(_) | Event::Acknowledged => {}
            Event::Asked(asked) => self.owed.push(asked.id.clone()),
            Event::Withdrawn(id) => self.owed.retain(|owed| owed != id),
            Event::Answer(_) | Event::Lost(_) => {
                self.done = true;
                self.state = ExchangeState::Idle;
            }
        }
        event
    }

    pub(crate) fn reply(&mut self, id: &Id, outcome: Result<&Spliced, &RpcError>) {
        if let Some(at) = self.owed.iter().position(|owed| owed == id) {
            self.owed.swap_remove(at);
            let mut reply = BytesMut::new();
            response(&mut reply, id, outcome);
            self.remote.owe(reply);
        }
    }

    fn idle(&self) -> Option<Event> {
        let ended = self.remote.board.ended();
        Some(Event::Lost(ended.unwrap_or_else(|| LinkError::Closed("the request was not sent".into()))))
    }

    fn failed(&mut self, failure: Failure) -> Event {
        let reason = match failure {
            Failure::Unsent(reason) => {
                self.sent = self.resumptions > 0;
                // The supervisor reconnects, and callers wait there meanwhile.
                if self.purpose != Purpose::Handshake {
                    self.remote.retire(&reason);
                }
                reason
            }
            Failure::Lost(reason) => reason,
            Failure::Withheld(none) => {
                self.sent = self.resumptions > 0;
                return Event::Lost(none.into());
            }
        };
        Event::Lost(LinkError::Closed(reason.into()))
    }

    /// Decides on the next state by the head of the answer.
    fn judge(&mut self, head: &Answered, wire: Wire) -> Option<Event> {
        self.status = Some(head.status);
        if let Some(session) = head.headers.get(SESSION) {
            self.session = Some(session.clone());
        }
        if !head.status.is_success() {
            return self.turned_away(head.status, &head.headers, wire);
        }
        match head.media {
            Media::Json if head.status != StatusCode::ACCEPTED => {
                let length = wire.length();
                if let Some(size) = length.filter(|size| *size > self.remote.limit as u64) {
                    return Some(self.too_large(size));
                }
                self.state = ExchangeState::Whole { wire, pieces: Gathered::expecting(length) };
            }
            Media::Events => self.state = ExchangeState::Events { wire, events: Box::default() },
            _ if self.speech() == Speech::Sse => {
                self.remote.pool.put(wire);
                self.state = ExchangeState::Elsewhere;
            }
            _ => {
                let reason = format!(
                    "{} answered with {} where JSON or an event stream was expected: check that `url` is an MCP endpoint",
                    self.remote.url,
                    media_name(&head.headers)
                );
                return Some(Event::Lost(LinkError::Unusable(reason.into())));
            }
        }
        None
    }

    fn speech(&self) -> Speech {
        self.outgoing.as_ref().map_or(Speech::Modern, |outgoing| outgoing.speech)
    }

    fn turned_away(&mut self, status: StatusCode, headers: &HeaderMap, wire: Wire) -> Option<Event> {
        let reason = self.remote.explain(status, headers);
        if self.resumptions > 0 {
            let reason = format!("the stream of the answer broke and could not be resumed: {reason}");
            return Some(Event::Lost(LinkError::Closed(reason.into())));
        }
        let in_session = self.outgoing.as_ref().is_some_and(|outgoing| outgoing.in_session);
        if status == StatusCode::NOT_FOUND && in_session {
            self.sent = false;
            let reason = format!("{} has forgotten our session", self.remote.url);
            self.remote.retire(&reason);
            return Some(Event::Lost(LinkError::Closed(reason.into())));
        }
        if let Some(pause) = pause(status, headers)
            && self.pauses < MOST_PAUSES
        {
            self.pauses += 1;
            debug!(server = %self.remote.board.server, ?pause, "the server asks to wait");
            self.remote.hold(pause);
            self.post(Some(pause));
            return None;
        }
        self.sent = !never_ran(status, headers);
        self.state = ExchangeState::Refused { wire, pieces: Gathered::default(), reason };
        None
    }

    fn poll_refused(
        &mut self,
        mut wire: Wire,
        mut pieces: Gathered,
        reason: String,
        context: &mut Context<'_>,
    ) -> Poll<Option<Event>> {
        loop {
            match wire.poll_body(context) {
                Poll::Pending => {
                    self.state = ExchangeState::Refused { wire, pieces, reason };
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(part))) if pieces.len() + part.len() <= LARGEST_REFUSAL => {
                    pieces.push(part);
                }
                Poll::Ready(Some(_)) => {
                    return Poll::Ready(Some(Event::Lost(self.refusal(reason))));
                }
                Poll::Ready(None) => break,
            }
        }
        self.remote.pool.put(wire);
        // A refusal with a JSON-RPC error is an answer, whatever id it names.
        Poll::Ready(Some(match Message::parse(&pieces.take()) {
            Ok(Message::Response(response)) if response.outcome.is_err() && !self.is_about_access() => {
                self.answer(response.outcome)
            }
            _ => Event::Lost(self.refusal(reason)),
        }))
    }

    fn refusal(&self, reason: String) -> LinkError {
        refused(self.status.unwrap_or_default(), reason)
    }

    /// Access is the operator's concern: our own text explains it, whatever the server says.
    fn is_about_access(&self) -> bool {
        self.status.is_some_and(|status| {
            matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) || status.is_server_error()
        })
    }

    fn poll_whole(
        &mut self,
        mut wire: Wire,
        mut pieces: Gathered,
        context: &mut Context<'_>,
    ) -> Poll<Option<Event>> {
        loop {
            if wire.is_read() {
                break;
            }
            match wire.poll_body(context) {
                Poll::Pending => {
                    self.state = ExchangeState::Whole { wire, pieces };
                    return Poll::Pending;
                }
                Poll::Ready(None) => break,
                Poll::Ready(Some(Ok(part))) => {
                    pieces.push(part);
                    if pieces.len() > self.remote.limit {
                        return Poll::Ready(Some(self.too_large(pieces.len() as u64)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let reason = format!("the answer of {} broke off ({error})", self.remote.url);
                    return Poll::Ready(Some(Event::Lost(LinkError::Closed(reason.into()))));
                }
            }
        }
        self.remote.pool.put(wire);
        let text = pieces.take();
        if self.speech() == Speech::Sse && text.trim_ascii().is_empty() {
            self.state = ExchangeState::Elsewhere;
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match Message::parse(&text) {
            Ok(Message::Response(response))
                if self.is_ours(response.id.as_ref().and_then(|id| id.as_u64()))
                    || response.outcome.is_err() =>
            {
                self.answer(response.outcome)
            }
            Ok(_) => self.unusable("something that does not answer the request"),
            Err(malformed) => self.unusable(&format!("something that is not a message ({malformed})")),
        }))
    }

    fn is_ours(&self, id: Option<u64>) -> bool {
        id == Some(self.id)
    }

    fn poll_events(
        &mut self,
        mut wire: Wire,
        mut events: Box<EventBuffer>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Event>> {
        loop {
            loop {
                if let Some(replying) = &mut self.replying {
                    match replying.as_mut().poll(context) {
                        Poll::Pending => {
                            self.state = ExchangeState::Events { wire, events };
                            return Poll::Pending;
                        }
                        Poll::Ready(Ok(())) => self.replying = None,
                        Poll::Ready(Err(Full)) => return Poll::Ready(self.idle()),
                    }
                }
                let Some(event) = events.next_event() else { break };
                self.resumptions = 0;
                if event.data.is_empty() {
                    continue;
                }
                let Some(event) = self.take(&event.data) else { continue };
                if !event.is_last() {
                    self.state = ExchangeState::Events { wire, events };
                } else {
                    // Polls for the end of the stream; otherwise the next user of the connection finds it.
                    match wire.poll_body(context) {
                        Poll::Ready(Some(_)) => {}
                        Poll::Ready(None) | Poll::Pending => self.remote.pool.put(wire),
                    }
                }
                return Poll::Ready(Some(event));
            }
            if events.held() > self.remote.limit {
                return Poll::Ready(Some(self.too_large(events.held() as u64)));
            }
            match wire.poll_body(context) {
                Poll::Pending => {
                    self.state = ExchangeState::Events { wire, events };
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(part))) => events.push(part),
                Poll::Ready(end) => {
                    if end.is_none() {
                        self.remote.pool.put(wire);
                    }
                    return Poll::Ready(self.broke_off(&events));
                }
            }
        }
    }

    /// Handles a stream that ended before the answer.
    fn broke_off(&mut self, events: &EventBuffer) -> Option<Event> {
        if let Some(id) = events.last_id().map(str::to_owned)
            && self.speech() == Speech::Streamable
            && self.resumptions < MOST_RESUMPTIONS
        {
            self.resumptions += 1;
            let after = events.retry().unwrap_or(RESUME_AFTER);
            debug!(server = %self.remote.board.server, ?after, "the stream of an answer broke; resuming it");
            self.resume(id, after);
            return None;
        }
        let reason = format!("{} ended the stream of the answer before it came", self.remote.url);
        Some(Event::Lost(LinkError::Closed(reason.into())))
    }

    /// Handles a message on the request's own stream.
    fn take(&mut self, text: &Bytes) -> Option<Event> {
        match Message::parse(text) {
            Ok(Message::Response(response)) => {
                let id = response.id.as_ref().and_then(|id| id.as_u64());
                let foreign_error = response.outcome.is_err() && self.purpose == Purpose::Handshake;
                if self.is_ours(id) || foreign_error {
                    return Some(self.answer(response.outcome));
                }
                debug!(server = %self.remote.board.server, id = ?response.id, "ignored an answer that no request waits for");
                None
            }
            Ok(Message::Notification(note)) if note.method == Method::Progress => {
                let params = note.params?;
                let (token, progress) = reached(&params)?;
                let increases = self.last_progress.is_none_or(|last| progress > last);
                if !self.is_ours(Some(token)) || !increases {
                    return None;
                }
                self.last_progress = Some(progress);
                Some(Event::Progress(params))
            }
            Ok(Message::Notification(note)) if note.method == Method::LogMessage && self.logs => {
                note.params.map(Event::Log)
            }
            Ok(Message::Notification(note)) if note.method == Method::Acknowledged => {
                Some(Event::Acknowledged)
            }
            Ok(Message::Notification(note)) => {
                if note.method == Method::Cancelled
                    && let Some(id) = withdrawn_id(note.params.as_ref())
                    && self.owed.contains(&id)
                {
                    return Some(Event::Withdrawn(id));
                }
                self.remote.board.told(note);
                None
            }
            Ok(Message::Request(asked))
                if !self.remote.board.knows_answer(&asked.method)
                    && (self.abilities.covers(&asked.method, asked.params.as_ref())
                        || (self.abilities.hears_all()
                            && matches!(
                                asked.method,
                                Method::Elicit | Method::CreateMessage | Method::RootsList
                            ))) =>
            {
                self.remote.board.note_question();
                self.remote.board.note_roots(&asked.method);
                Some(Event::Asked(asked))
            }
            Ok(Message::Request(asked)) => {
                let reply = self.remote.board.answer_alone(&asked, self.abilities);
                if let Err(reply) = self.remote.try_reply(reply) {
                    let remote = Arc::clone(&self.remote);
                    self.replying = Some(Box::pin(async move { remote.reply(reply).await }));
                }
                None
            }
            Err(malformed) => {
                warn!(server = %self.remote.board.server, reason = %malformed, "ignored an event that is not a message");
                None
            }
        }
    }

    fn answer(&self, outcome: Result<Raw, RpcError>) -> Event {
        // The server expects other header annotations than we know: its tool list has changed.
        if outcome.as_ref().is_err_and(|error| error.code() == code::HEADER_MISMATCH) {
            self.remote.board.doubt(Lists::TOOLS);
        }
        Event::Answer(outcome)
    }

    fn too_large(&self, bytes: u64) -> Event {
        Event::Lost(LinkError::TooLarge { bytes, limit: self.remote.limit })
    }

    fn unusable(&self, what: &str) -> Event {
        Event::Lost(LinkError::Unusable(format!("{} answered with {what}", self.remote.url).into()))
    }
}

impl HttpExchange {
    /// Cancels the request if it was sent and is not answered, and returns what hears the end of it.
    pub(crate) fn abandon(&mut self) -> Option<Self> {
        if self.done || !self.was_sent() || self.purpose != Purpose::Ordinary {
            return None;
        }
        let slot = match &self.slot {
            Some(_) => Some(self.remote.board.abandon(self.id)?),
            None => None,
        };
        self.refuse_owed();
        self.slot = None;
        self.done = true;
        let mut state = std::mem::replace(&mut self.state, ExchangeState::Idle);
        // A modern server notices that the response is closed.
        match self.speech() {
            Speech::Modern => state = ExchangeState::Idle,
            _ => self.remote.tell_cancelled(&cancelled_params(self.id)),
        }
        Some(Self {
            remote: Arc::clone(&self.remote),
            id: self.id,
            purpose: Purpose::Abandoned,
            slot,
            abilities: Abilities::NONE,
            owed: Vec::new(),
            outgoing: self.outgoing.take(),
            state,
            status: None,
            session: None,
            last_progress: None,
            logs: false,
            // It is never posted again, whatever the server asks for.
            pauses: MOST_PAUSES,
            put_off: None,
            resumptions: self.resumptions,
            sent: true,
            done: false,
            replying: self.replying.take(),
        })
    }

    /// Resolves when the link has ended.
    pub(crate) fn over(&self) -> impl Future<Output = ()> + Send + use<> {
        self.remote.over.clone().cancelled_owned()
    }

    /// Answers the questions that nobody answers any more.
    fn refuse_owed(&mut self) {
        if let Some(slot) = self.slot.as_ref().filter(|_| !self.abilities.is_none()) {
            self.owed.extend(slot.unseen());
            for id in std::mem::take(&mut self.owed) {
                let mut reply = BytesMut::new();
                response(&mut reply, &id, Err(&call_is_over()));
                self.remote.owe(reply);
            }
        }
    }
}

impl Drop for HttpExchange {
    fn drop(&mut self) {
        if self.purpose.is_work() {
            self.remote.open_exchanges.fetch_sub(1, Ordering::Relaxed);
        }
        if self.slot.is_some() {
            self.remote.board.release(self.id);
            self.refuse_owed();
        }
        let told = matches!(self.purpose, Purpose::Handshake | Purpose::Abandoned);
        let waits = self.sent && !self.done && !told;
        // A modern server notices that the response is closed, which happens with this drop.
        if !waits || self.speech() == Speech::Modern {
            return;
        }
        self.remote.tell_cancelled(&cancelled_params(self.id));
    }
}
