//! One ordered engine per connection to an upstream.
//!
//! A single reader task takes messages in the order they arrive and hands each to the request it belongs
//! to, the answer last; no task is started per message. Request ids are ours and double as progress
//! tokens; ids of the peer's own requests are another space and are only echoed. Dropping an
//! [`Exchange`] before its answer tells the peer that nobody waits any more.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use bridgehead_lines::{LineReader, Outbox};
use bridgehead_wire::{
    Line, Message, Method, Object, Raw, Redactor, Request, Response, RpcError, Spliced, code, key,
    notification, request, response,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tracing::{debug, warn};

/// Progress that may wait for one slow receiver; beyond it the newest replaces the one before.
const QUEUED_PROGRESS: usize = 256;
/// How much of a line that is not JSON goes into the log.
const NOISE_SHOWN: usize = 200;

/// Why a link, or one request on it, gives no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection ended; the text says how, with the end of the server's stderr where there is one.
    #[error("{0}")]
    Closed(Arc<str>),
    /// The answer came, but was larger than we take.
    #[error("the answer has {bytes} bytes, more than the limit of {limit} (`max_message_mb`)")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
}

/// What arrives for one request, in order.
#[derive(Debug)]
pub enum Event {
    /// The params of a progress notification.
    Progress(Raw),
    /// The answer. Nothing comes after it.
    Answer(Result<Raw, RpcError>),
    /// There will be no answer.
    Lost(LinkError),
}

/// A live connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: Arc<str>,
    limit: usize,
    next_id: AtomicU64,
    out: Outbox,
    table: Mutex<Table>,
    tools_changed: Notify,
    redactor: Redactor,
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<u64, Arc<Slot>>,
    ended: Option<LinkError>,
}

#[derive(Debug)]
struct Slot {
    purpose: Purpose,
    state: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<Event>,
    waker: Option<Waker>,
    last_progress: Option<f64>,
}

/// What a request is for, as far as the engine treats it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An ordinary request; dropping it cancels it upstream.
    Ordinary,
    /// Part of finding out what the peer is: never cancelled, and an error that names an id nobody used
    /// is taken as its answer (some servers answer what they do not know that way).
    Handshake,
}

impl Link {
    /// Makes a link and the two tasks' work that drives it. The caller runs both futures: the first
    /// reads until the peer's stream ends (after which the caller says why by [`Link::end`]), the second
    /// writes until it fails or is dropped.
    pub fn over<R, W>(
        server: &str,
        reader: R,
        writer: W,
        limit: usize,
    ) -> (Self, impl Future<Output = ()> + Send + use<R, W>, impl Future<Output = ()> + Send + use<R, W>)
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        let shared = Arc::new(Shared {
            server: server.into(),
            limit,
            next_id: AtomicU64::new(1),
            out: Outbox::default(),
            table: Mutex::default(),
            tools_changed: Notify::new(),
            redactor: Redactor::default(),
        });
        let (for_reader, for_writer) = (Arc::clone(&shared), Arc::clone(&shared));
        let read = async move { for_reader.read(reader).await };
        let write = async move {
            if let Err(error) = for_writer.out.write_to(writer).await {
                debug!(server = %for_writer.server, %error, "cannot write to the server any more");
            }
        };
        (Self(shared), read, write)
    }

    /// Opens a request: it has an id from now on, and is sent by [`Exchange::send`].
    pub fn open(&self, purpose: Purpose) -> Exchange {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Slot { purpose, state: Mutex::default() });
        let mut table = self.0.table.lock();
        if let Some(error) = &table.ended {
            slot.state.lock().queue.push_back(Event::Lost(error.clone()));
        } else {
            table.slots.insert(id, Arc::clone(&slot));
        }
        drop(table);
        Exchange { shared: Arc::clone(&self.0), id, slot, sent: false, done: false }
    }

    /// One request and its answer, for those who want no progress.
    pub async fn ask(
        &self,
        method: &Method,
        params: &Spliced,
        purpose: Purpose,
    ) -> Result<Result<Raw, RpcError>, LinkError> {
        let mut exchange = self.open(purpose);
        exchange.send(method, params).await;
        exchange.answer().await
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &Method, params: Option<&Spliced>) {
        self.0.out.room().await;
        self.0.out.push(|out| notification(out, method.as_str(), params));
    }

    /// Resolves when the peer has said that its tools changed since the last time this resolved.
    pub async fn tools_changed(&self) {
        self.0.tools_changed.notified().await;
    }

    /// Fails every open request and all later ones with `error`. The first reason stays.
    pub fn end(&self, error: LinkError) {
        let mut table = self.0.table.lock();
        let error = table.ended.get_or_insert(error).clone();
        let slots: Vec<_> = table.slots.drain().collect();
        drop(table);
        for (_, slot) in slots {
            slot.push(Event::Lost(error.clone()));
        }
    }

    /// Why it ended, once it has.
    pub fn ended(&self) -> Option<LinkError> {
        self.0.table.lock().ended.clone()
    }

    /// How many requests wait for an answer.
    pub fn in_flight(&self) -> usize {
        self.0.table.lock().slots.len()
    }
}

impl Shared {
    async fn read<R: AsyncRead + Unpin>(&self, reader: R) {
        let mut lines = LineReader::new(reader, self.limit);
        loop {
            match lines.next().await {
                Ok(Some(line)) => self.accept(line),
                Ok(None) => return,
                Err(error) => return debug!(server = %self.server, %error, "reading from the server failed"),
            }
        }
    }

    fn accept(&self, line: Line) {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong { bytes, id } => {
                let error = LinkError::TooLarge { bytes, limit: self.limit };
                warn!(server = %self.server, bytes, limit = self.limit, "skipped a line longer than the limit");
                if let Some(slot) =
                    id.and_then(|id| id.as_u64()).and_then(|id| self.table.lock().slots.remove(&id))
                {
                    slot.push(Event::Lost(error));
                }
                return;
            }
        };
        match Message::parse(&text) {
            Ok(Message::Response(response)) => self.answered(response),
            Ok(Message::Notification(note)) => match note.method {
                Method::Progress => self.progressed(note.params),
                Method::ToolsListChanged => self.tools_changed.notify_one(),
                method => debug!(server = %self.server, %method, "notification not relayed"),
            },
            Ok(Message::Request(asked)) => self.asked(&asked),
            Err(malformed) => {
                // Many servers print banners and debug output where only messages belong.
                let text = String::from_utf8_lossy(&text[..text.len().min(NOISE_SHOWN)]);
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                debug!(server = %self.server, reason = %malformed, line = %self.redactor.text(&text), "ignored a line that is no message");
            }
        }
    }

    fn answered(&self, response: Response) {
        let mut table = self.table.lock();
        let slot =
            response.id.as_ref().and_then(|id| id.as_u64()).and_then(|id| table.slots.remove(&id)).or_else(
                || {
                    let only = table.slots.iter().next().filter(|_| table.slots.len() == 1)?;
                    let foreign_error = only.1.purpose == Purpose::Handshake && response.outcome.is_err();
                    let id = *only.0;
                    if foreign_error { table.slots.remove(&id) } else { None }
                },
            );
        drop(table);
        match slot {
            Some(slot) => slot.push(Event::Answer(response.outcome)),
            // Late answers to cancelled requests, second answers, ids nobody used.
            None => debug!(server = %self.server, id = ?response.id, "ignored an answer nobody waits for"),
        }
    }

    fn progressed(&self, params: Option<Raw>) {
        #[derive(serde::Deserialize)]
        struct Progress {
            #[serde(rename = "progressToken")]
            token: u64,
            progress: f64,
        }
        let Some(params) = params else { return };
        let Ok(progress) = params.decode::<Progress>() else { return };
        let Some(slot) = self.table.lock().slots.get(&progress.token).cloned() else { return };
        let mut waiting = slot.state.lock();
        // The protocol wants progress to increase; what does not is noise to the client.
        if waiting.last_progress.is_some_and(|last| progress.progress <= last) {
            return;
        }
        waiting.last_progress = Some(progress.progress);
        if waiting.queue.len() >= QUEUED_PROGRESS {
            waiting.queue.pop_back();
        }
        waiting.push(Event::Progress(params));
    }

    /// A request of the server's own. No capability is declared upstream, so only `ping` has an answer.
    fn asked(&self, asked: &Request) {
        let outcome = match asked.method {
            Method::Ping => Ok(Spliced::from(Raw::literal("{}"))),
            _ => Err(RpcError::new(
                code::METHOD_NOT_FOUND,
                &format!("this client does not offer `{}`", asked.method),
            )),
        };
        debug!(server = %self.server, method = %asked.method, answered = outcome.is_ok(), "the server asked");
        self.out.push(|out| response(out, &asked.id, outcome.as_ref()));
    }
}

impl Slot {
    fn push(&self, event: Event) {
        self.state.lock().push(event);
    }
}

impl Waiting {
    fn push(&mut self, event: Event) {
        self.queue.push_back(event);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// One request, from the moment it has an id to its answer.
#[derive(Debug)]
pub struct Exchange {
    shared: Arc<Shared>,
    id: u64,
    slot: Arc<Slot>,
    sent: bool,
    done: bool,
}

impl Exchange {
    /// The id it is sent with, which is also its progress token.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Sends it, unless the link has ended already. Waits only while the peer is not reading.
    pub async fn send(&mut self, method: &Method, params: &Spliced) {
        if !self.slot.state.lock().queue.is_empty() {
            return;
        }
        self.shared.out.room().await;
        self.shared.out.push(|out| request(out, self.id, method.as_str(), params));
        self.sent = true;
    }

    /// Whether the request was handed to the writer: if not, it cannot have run.
    pub const fn was_sent(&self) -> bool {
        self.sent
    }

    /// What comes next. After an answer or a loss, nothing does.
    pub async fn next(&mut self) -> Event {
        let event = poll_fn(|context| {
            let mut waiting = self.slot.state.lock();
            if let Some(event) = waiting.queue.pop_front() {
                return Poll::Ready(event);
            }
            if !waiting.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                waiting.waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        self.done |= !matches!(event, Event::Progress(_));
        event
    }

    /// The answer, skipping progress.
    pub async fn answer(&mut self) -> Result<Result<Raw, RpcError>, LinkError> {
        loop {
            match self.next().await {
                Event::Progress(_) => {}
                Event::Answer(outcome) => return Ok(outcome),
                Event::Lost(error) => return Err(error),
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.done || self.shared.table.lock().slots.remove(&self.id).is_none() {
            return;
        }
        if self.sent && self.slot.purpose == Purpose::Ordinary {
            let params = Spliced::from(Raw::encode(&serde_json::json!({
                "requestId": self.id,
                "reason": "the client no longer waits for this request",
            })));
            self.shared.out.push(|out| notification(out, Method::Cancelled.as_str(), Some(&params)));
        }
    }
}

/// Sets the `_meta` members that every request to a modern server carries.
pub fn stamp_modern(edit: &mut bridgehead_wire::Edit<'_>) {
    edit.set(key::PROTOCOL_VERSION, Raw::literal("\"2026-07-28\""))
        .set(key::CLIENT_CAPABILITIES, Raw::literal("{}"))
        .set(key::CLIENT_INFO, Raw::literal(CLIENT_INFO));
}

/// Params of a request of our own to a modern peer, with `members` beside the `_meta`.
pub(crate) fn modern_params(members: &Object) -> Spliced {
    let empty = Object::empty();
    let mut meta = empty.edit();
    stamp_modern(&mut meta);
    let mut edit = members.edit();
    edit.set(key::META, meta.finish());
    edit.finish()
}

/// Who we are to servers.
pub(crate) const CLIENT_INFO: &str =
    concat!(r#"{"name":"bridgehead","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);
