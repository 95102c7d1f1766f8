//! Finds the request that an incoming message belongs to, independent of the transport.
//!
//! Request ids are ours and double as progress tokens. Ids of the peer's own requests are a separate space and are
//! only echoed. The messages of a request go to its slot in the order of arrival, the answer last; nothing follows
//! an answer.
//!
//! Unreadable lines and answers to no request are skipped: servers print log output where only messages belong, and
//! one bad line must not fail the calls of others. A process that serves one call has no others, so its board is
//! strict. While a request waits, each of these is a fault that ends the process: an unreadable answer, an answer to
//! a request that was never sent, a second answer. A late answer to a cancelled request is not a fault, and a line
//! that does not look like an answer stays noise.
//!
//! A request of the peer's own does not say which of our requests it belongs to. It goes to the only open request
//! whose client can answer it, and is refused if there is none or more than one.

mod slot;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bridgehead_config::Roots;
use bridgehead_wire::held::{Account, Budget};
use bridgehead_wire::{
    Abilities, Id, Level, Message, Method, Note, Notification, Object, Raw, Redactor, Request, Response,
    RpcError, Spliced, code, is_broken_answer, key, response,
};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::debug;

use crate::catalog::Lists;
use crate::link::notice::Notice;
use crate::link::{Event, LinkError, Purpose};
use crate::server::crash::Fault;
use crate::transport::relay::loss::Loss;

pub(crate) use slot::Slot;

/// How many ids of dropped requests are remembered; a strict board has far fewer.
const GIVEN_UP: usize = 64;
/// The first id of a request through a relay, which sends its own handshake to the same server.
const FIRST_RELAYED_ID: u64 = 16;
/// How many bytes of a line that is not JSON go into the log.
const NOISE_SHOWN: usize = 200;

/// The requests of one link that wait for an answer, and what the peer has asked.
#[derive(Debug)]
pub(crate) struct Switchboard {
    pub(crate) server: Arc<str>,
    /// The account of the memory that is held for the peer.
    pub(crate) account: Arc<Account>,
    next_id: AtomicU64,
    open: AtomicBool,
    table: Mutex<Table>,
    /// Whether the peer has asked a question during a request.
    asked: AtomicBool,
    /// Whether it has asked a question that could have belonged to more than one request.
    ambiguous: AtomicBool,
    /// Whether it has asked for a client's roots at any time.
    roots: AtomicBool,
    /// Whether it has asked for them while no call was open that could have caused it.
    unbidden: AtomicBool,
    /// Whether calls are served yet.
    serves: AtomicBool,
    /// The configured answer to a question for roots, if no client is to be asked.
    answer: OnceLock<Raw>,
    /// The lists that may have changed, and what wakes their reader.
    changed: AtomicU8,
    bell: Notify,
    redactor: Redactor,
    on_noise: OnceLock<NoiseCallback>,
    /// How many bytes arrived that were not messages.
    noise: AtomicU64,
    on_notice: OnceLock<NoticeCallback>,
    /// Whether the peer is a relay.
    of_relay: AtomicBool,
    /// Whether a malformed answer is a fault, and the first such fault.
    strict: AtomicBool,
    fault: Mutex<Option<Fault>>,
    /// The log level that a legacy peer was asked for, plus one; 0 before.
    level: AtomicU8,
}

/// Receives each line that is not a message.
struct NoiseCallback(Box<dyn Fn(&str) + Send + Sync>);

impl std::fmt::Debug for NoiseCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NoiseCallback")
    }
}

/// Receives what the peer says outside of any request.
struct NoticeCallback(Box<dyn Fn(&Notice) + Send + Sync>);

impl std::fmt::Debug for NoticeCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NoticeCallback")
    }
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<u64, Arc<Slot>, BuildHasherDefault<OwnIds>>,
    /// The latest dropped requests, which may still be answered.
    given_up: VecDeque<u64>,
    ended: Option<LinkError>,
}

/// Spreads our own ids over a table. They count upwards, so no peer can make them collide. The standard hasher,
/// made for keys that others choose, takes 280 instructions more per call.
#[derive(Debug, Default)]
struct OwnIds(u64);

impl Hasher for OwnIds {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Switchboard {
    pub(crate) fn new(server: &str) -> Self {
        Self {
            server: format!("mcp:{server}").into(),
            account: Account::new(Budget::process()),
            next_id: AtomicU64::new(1),
            open: AtomicBool::new(true),
            table: Mutex::default(),
            asked: AtomicBool::new(false),
            ambiguous: AtomicBool::new(false),
            roots: AtomicBool::new(false),
            unbidden: AtomicBool::new(false),
            serves: AtomicBool::new(false),
            answer: OnceLock::new(),
            changed: AtomicU8::new(0),
            bell: Notify::new(),
            redactor: Redactor::default(),
            on_noise: OnceLock::new(),
            noise: AtomicU64::new(0),
            on_notice: OnceLock::new(),
            of_relay: AtomicBool::new(false),
            strict: AtomicBool::new(false),
            fault: Mutex::default(),
            level: AtomicU8::new(0),
        }
    }

    /// Passes the beginning of every line that is not a message to `show`, which must not block. Only the first
    /// callback is used.
    pub(crate) fn on_noise(&self, show: impl Fn(&str) + Send + Sync + 'static) {
        drop(self.on_noise.set(NoiseCallback(Box::new(show))));
    }

    /// Passes to `take`, which must not block, what the peer says outside of any request. Only the first callback
    /// is used.
    pub(crate) fn on_notice(&self, take: impl Fn(&Notice) + Send + Sync + 'static) {
        drop(self.on_notice.set(NoticeCallback(Box::new(take))));
    }

    /// Counts bytes that are not a message.
    pub(crate) fn made_noise(&self, bytes: u64) {
        self.noise.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many bytes arrived that were not messages.
    pub(crate) fn noise(&self) -> u64 {
        self.noise.load(Ordering::Relaxed)
    }

    /// Marks the peer as a relay. Its own handshake took the first ids.
    pub(crate) fn be_of_relay(&self) {
        self.of_relay.store(true, Ordering::Relaxed);
        self.next_id.fetch_max(FIRST_RELAYED_ID, Ordering::Relaxed);
    }

    /// Whether the peer is a relay.
    #[inline]
    pub(crate) fn is_of_relay(&self) -> bool {
        self.of_relay.load(Ordering::Relaxed)
    }

    /// From now on a malformed answer is a fault while a request waits.
    pub(crate) fn be_strict(&self) {
        self.strict.store(true, Ordering::Release);
    }

    /// Whether a malformed answer is a fault now.
    fn judges(&self, table: &Table) -> bool {
        let waits = |slot: &Arc<Slot>| slot.purpose.is_work();
        self.strict.load(Ordering::Acquire) && table.slots.values().any(waits)
    }

    /// The first fault since the last call; checked whenever there was noise.
    pub(crate) fn take_fault(&self) -> Option<Fault> {
        self.fault.lock().take()
    }

    /// Records a fault, and this many bytes of noise.
    fn found(&self, fault: Fault, bytes: u64) {
        self.fault.lock().get_or_insert(fault);
        self.made_noise(bytes);
    }

    fn notice(&self, notice: &Notice) {
        if let Some(NoticeCallback(take)) = self.on_notice.get() {
            take(notice);
        }
    }

    /// Whether this level asks for more lines than before. If so, records it as requested.
    pub(crate) fn wants_level(&self, level: Level) -> bool {
        let wanted = level as u8 + 1;
        let before = self.level.load(Ordering::Acquire);
        let asks = before == 0 || wanted < before;
        if asks {
            self.level.store(wanted, Ordering::Release);
        }
        asks
    }

    /// A new, unused id.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A slot for the request `id`. On an ended link the slot already holds the reason.
    pub(crate) fn register(&self, id: u64, purpose: Purpose) -> Arc<Slot> {
        let slot = Arc::new(Slot::new(purpose));
        let mut table = self.table.lock();
        if let Some(error) = &table.ended {
            slot.push(Event::Lost(error.clone()));
        } else {
            table.slots.insert(id, Arc::clone(&slot));
        }
        slot
    }

    /// Drops the request `id`. Reports whether it was still waiting.
    pub(crate) fn release(&self, id: u64) -> bool {
        let mut table = self.table.lock();
        let waited = table.slots.remove(&id).is_some();
        if waited {
            if table.given_up.len() == GIVEN_UP {
                table.given_up.pop_front();
            }
            table.given_up.push_back(id);
        }
        waited
    }

    /// Replaces the slot of the request `id`, if it is still waiting: the new one only hears how the request ends.
    pub(crate) fn abandon(&self, id: u64) -> Option<Arc<Slot>> {
        let slot = Arc::new(Slot::new(Purpose::Abandoned));
        let mut table = self.table.lock();
        *table.slots.get_mut(&id)? = Arc::clone(&slot);
        Some(slot)
    }

    /// Fails `id` because its answer was too large.
    pub(crate) fn too_large(&self, id: u64, error: LinkError) {
        let mut table = self.table.lock();
        if self.judges(&table) {
            drop(table);
            return self.found(Fault::TooLarge(error), 1);
        }
        if let Some(slot) = table.slots.remove(&id) {
            slot.push(Event::Lost(error));
        }
    }

    /// Fails every open request and all later ones with `error`. The first reason stays.
    pub(crate) fn end(&self, error: LinkError) {
        self.open.store(false, Ordering::Release);
        let mut table = self.table.lock();
        let error = table.ended.get_or_insert(error).clone();
        let slots: Vec<_> = table.slots.drain().collect();
        drop(table);
        for (_, slot) in slots {
            slot.push(Event::Lost(error.clone()));
        }
    }

    /// Accepts no further requests; open ones have their own connections and continue.
    #[cfg(feature = "http")]
    pub(crate) fn retire(&self, error: LinkError) {
        self.open.store(false, Ordering::Release);
        self.table.lock().ended.get_or_insert(error);
    }

    /// Why it ended, if it has.
    pub(crate) fn ended(&self) -> Option<LinkError> {
        if self.is_open() { None } else { self.table.lock().ended.clone() }
    }

    /// Whether requests are still accepted.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// How many requests wait for an answer.
    pub(crate) fn waiting(&self) -> usize {
        self.table.lock().slots.values().filter(|slot| slot.purpose.is_work()).count()
    }

    /// Resolves when the peer has said that some of its lists changed since this last resolved.
    pub(crate) async fn lists_changed(&self) -> Lists {
        loop {
            let changed = Lists::from_bits(self.changed.swap(0, Ordering::AcqRel));
            if !changed.is_empty() {
                return changed;
            }
            self.bell.notified().await;
        }
    }

    /// Whether one of these lists changed since the last call.
    pub(crate) fn take_changed(&self, lists: Lists) -> bool {
        self.changed.fetch_and(!lists.bits(), Ordering::AcqRel) & lists.bits() != 0
    }

    /// Marks these lists as possibly changed.
    pub(crate) fn doubt(&self, lists: Lists) {
        self.changed.fetch_or(lists.bits(), Ordering::AcqRel);
        self.bell.notify_one();
    }

    /// Handles one message. Returns the answer if it is a request of the peer's own.
    pub(crate) fn accept(&self, text: &Bytes) -> Option<BytesMut> {
        match Message::parse(text) {
            Ok(Message::Response(response)) => {
                if let Some((id, loss)) = self.loss(&response) {
                    self.lost(id, loss);
                } else if let Some(fault) = self.answered(response) {
                    self.found(fault, text.len() as u64 + 1);
                }
                None
            }
            Ok(Message::Notification(note)) => {
                self.told(note);
                None
            }
            Ok(Message::Request(asked)) => self.asked(asked),
            Err(malformed) => {
                self.made_noise(text.len() as u64 + 1);
                // Many servers print banners and debug output where only messages belong.
                let line = text;
                let text = String::from_utf8_lossy(&text[..text.len().min(NOISE_SHOWN)]);
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                debug!(server = %self.server, reason = %malformed, line = %self.redactor.text(&text), "ignored a line that is not a message");
                if let Some(NoiseCallback(show)) = self.on_noise.get() {
                    show(&text);
                }
                if self.judges(&self.table.lock()) && is_broken_answer(line) {
                    let words = format!("its answer cannot be read: {malformed}");
                    self.fault.lock().get_or_insert(Fault::Violation(words));
                }
                None
            }
        }
    }

    /// Handles a notification.
    pub(crate) fn told(&self, note: Notification) {
        let relayed = match note.method.note() {
            Some(Note::Progress) => return self.progressed(note.params),
            Some(Note::ToolsListChanged) => return self.doubt(Lists::TOOLS),
            Some(Note::PromptsListChanged) => return self.doubt(Lists::PROMPTS),
            Some(Note::ResourcesListChanged) => return self.doubt(Lists::RESOURCES),
            Some(Note::Cancelled) => return self.withdrawn(note.params.as_ref()),
            Some(Note::LogMessage) => return self.logged(note.params),
            Some(Note::Acknowledged) => return self.acknowledged(note.params.as_ref()),
            Some(Note::ResourceUpdated) => note.params.map(Notice::Updated),
            Some(Note::TaskChanged) => note.params.map(Notice::Task),
            // Only a client may send these, or they end with the question that they are about.
            Some(Note::Initialized | Note::RootsListChanged | Note::ElicitationComplete) | None => None,
        };
        match relayed {
            Some(notice) => self.notice(&notice),
            None => debug!(server = %self.server, method = %note.method, "notification not relayed"),
        }
    }

    /// What a relay reports of a request, instead of an answer.
    fn loss(&self, response: &Response) -> Option<(u64, Loss)> {
        let error = response.outcome.as_ref().err().filter(|_| self.is_of_relay())?;
        Some((response.id.as_ref()?.as_u64()?, Loss::of(error)?))
    }

    /// Ends a request because of what a relay found.
    fn lost(&self, id: u64, loss: Loss) {
        if matches!(loss.error, LinkError::TooLarge { .. }) {
            return self.too_large(id, loss.error);
        }
        if let Some(slot) = self.table.lock().slots.remove(&id) {
            slot.lose(loss);
        }
    }

    /// Delivers an answer to its request. For an answer to no request, returns the fault if the board is strict.
    fn answered(&self, response: Response) -> Option<Fault> {
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
        if let Some(slot) = slot {
            drop(table);
            slot.push(Event::Answer(response.outcome));
            return None;
        }
        // A late answer to a cancelled request, a second answer, or an unknown id.
        debug!(server = %self.server, id = ?response.id, "ignored an answer that no request waits for");
        // Without an id it only says that the server could not read something.
        let id = response.id.filter(|_| self.judges(&table))?;
        let sent = 1..self.next_id.load(Ordering::Relaxed);
        let Some(id) = id.as_u64().filter(|id| sent.contains(id)) else {
            return Some(Fault::Violation("it answered a request that was never sent".to_owned()));
        };
        if let Some(at) = table.given_up.iter().position(|given_up| *given_up == id) {
            table.given_up.remove(at);
            return None;
        }
        Some(Fault::Violation(format!("it answered request {id} a second time")))
    }

    fn progressed(&self, params: Option<Raw>) {
        let Some(params) = params else { return };
        let Some((token, progress)) = reached(&params) else { return };
        let Some(slot) = self.table.lock().slots.get(&token).cloned() else { return };
        slot.progressed(params, progress);
    }

    /// A log line does not say which request it belongs to: it goes to the only request that wants log lines, else
    /// it becomes a notice.
    fn logged(&self, params: Option<Raw>) {
        let Some(params) = params else { return };
        let table = self.table.lock();
        let mut wanting = table.slots.values().filter(|slot| slot.wants_logs());
        if let (Some(slot), None) = (wanting.next(), wanting.next()) {
            slot.push_if_room(Event::Log(params));
            return;
        }
        drop(table);
        self.notice(&Notice::Log(params));
    }

    fn acknowledged(&self, params: Option<&Raw>) {
        let id = params
            .and_then(|params| Object::parse(params).ok())
            .and_then(|params| params.get(key::META))
            .and_then(|meta| Object::parse(&meta).ok())
            .and_then(|meta| meta.get(key::SUBSCRIPTION_ID))
            .and_then(|id| id.decode::<u64>().ok());
        if let Some(slot) = id.and_then(|id| self.table.lock().slots.get(&id).cloned()) {
            slot.push_if_room(Event::Acknowledged);
        }
    }

    /// A request of the server's own that arrived on no request's stream: it goes to the only request that can
    /// answer it. Returns the answer if there is one right away.
    fn asked(&self, asked: Request) -> Option<BytesMut> {
        if self.knows_answer(&asked.method) {
            return Some(self.answer_alone(&asked, Abilities::NONE));
        }
        self.note_roots(&asked.method);
        let table = self.table.lock();
        if asked.method == Method::RootsList
            && !(self.serves.load(Ordering::Relaxed)
                && table.slots.values().any(|slot| slot.purpose == Purpose::Ordinary))
        {
            self.unbidden.store(true, Ordering::Relaxed);
        }
        let mut can =
            table.slots.values().filter(|slot| slot.abilities().covers(&asked.method, asked.params.as_ref()));
        match (can.next(), can.next()) {
            (Some(slot), None) if slot.has_room() => {
                debug!(server = %self.server, method = %asked.method, "the server asks a client");
                self.note_question();
                slot.push(Event::Asked(asked));
                return None;
            }
            (Some(_), Some(_)) => {
                drop(table);
                self.ambiguous.store(true, Ordering::Relaxed);
                return Some(self.refuse(
                    &asked,
                    &RpcError::new(
                        code::INTERNAL_ERROR,
                        "several calls are in progress, and it cannot be told which of them this is asked for; call one at a time",
                    ),
                ));
            }
            _ => {}
        }
        // No client can answer it. If a single call may have caused it, that call gets the question and ends with
        // it. Questions for roots are excepted: servers ask for roots at any time.
        let mut hear = table.slots.values().filter(|slot| slot.abilities().hears_all());
        if let (Some(slot), None) = (hear.next(), hear.next())
            && matches!(asked.method, Method::Elicit | Method::CreateMessage)
            && slot.has_room()
        {
            slot.push(Event::Asked(asked));
            return None;
        }
        let known = table.slots.values().fold(0, |known, slot| known | slot.abilities().bits());
        drop(table);
        Some(self.answer_alone(&asked, Abilities::from_bits(known)))
    }

    /// Answers questions for roots from the configuration from now on.
    pub(crate) fn answer_roots(&self, roots: Option<&Roots>) {
        if let Some(answer) = roots.and_then(|roots| Raw::parse(roots.as_str().to_owned()).ok()) {
            let _ = self.answer.set(answer);
        }
    }

    /// Whether a question is answered without asking a client.
    pub(crate) fn knows_answer(&self, method: &Method) -> bool {
        *method == Method::RootsList && self.answer.get().is_some()
    }

    pub(crate) fn begin_to_serve(&self) {
        self.serves.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_asked_roots_unbidden(&self) -> bool {
        self.unbidden.load(Ordering::Relaxed)
    }

    /// Notes a question for roots: the server may remember the answer.
    pub(crate) fn note_roots(&self, method: &Method) {
        if *method == Method::RootsList {
            self.roots.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the peer asks questions during requests.
    pub(crate) fn note_question(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether a request is open for a client that can be asked.
    pub(crate) fn has_askable(&self) -> bool {
        self.table.lock().slots.values().any(|slot| slot.abilities().answers_any())
    }

    /// Whether the peer has asked a question during a request.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether the peer has asked for a client's roots.
    pub(crate) fn has_asked_roots(&self) -> bool {
        self.roots.load(Ordering::Relaxed)
    }

    /// Whether the peer has asked a question that could have belonged to more than one request.
    pub(crate) fn was_ambiguous(&self) -> bool {
        self.ambiguous.load(Ordering::Relaxed)
    }

    /// The answer to a request of the server's own that goes to no client; `known` are the abilities of the clients
    /// that it could have meant.
    pub(crate) fn answer_alone(&self, asked: &Request, known: Abilities) -> BytesMut {
        if let Some(answer) = self.answer.get().filter(|_| asked.method == Method::RootsList) {
            let mut out = BytesMut::new();
            response(&mut out, &asked.id, Ok(&Spliced::from(answer.clone())));
            return out;
        }
        if asked.method == Method::Ping {
            let mut out = BytesMut::new();
            response(&mut out, &asked.id, Ok(&Spliced::from(Raw::literal("{}"))));
            return out;
        }
        let error = if known.knows(&asked.method) {
            RpcError::new(code::INVALID_PARAMS, "this client did not declare that mode, or is asked too much")
        } else {
            let message = format!("this client does not offer `{}`", asked.method);
            RpcError::new(code::METHOD_NOT_FOUND, &message)
        };
        self.refuse(asked, &error)
    }

    fn refuse(&self, asked: &Request, error: &RpcError) -> BytesMut {
        debug!(server = %self.server, method = %asked.method, code = error.code(), "refused a question of the server");
        let mut out = BytesMut::new();
        response(&mut out, &asked.id, Err(error));
        out
    }

    /// The server withdraws a question. Each request that may hold it recognises it by its id.
    fn withdrawn(&self, params: Option<&Raw>) {
        let Some(id) = withdrawn_id(params) else { return };
        for slot in self.table.lock().slots.values().filter(|slot| !slot.abilities().is_none()) {
            slot.push_if_room(Event::Withdrawn(id.clone()));
        }
    }
}

/// Which request a cancellation is about.
pub(crate) fn withdrawn_id(params: Option<&Raw>) -> Option<Id> {
    Object::parse(params?).ok()?.get("requestId").and_then(Id::new)
}

/// The token and the value of a progress notification.
pub(crate) fn reached(params: &Raw) -> Option<(u64, f64)> {
    #[derive(serde::Deserialize)]
    struct Progress {
        #[serde(rename = "progressToken")]
        token: u64,
        progress: f64,
    }
    params.decode::<Progress>().ok().map(|progress| (progress.token, progress.progress))
}

#[cfg(test)]
mod tests;
