//! What a relay does: it carries messages between the gateway, on lines, and one remote server.
//!
//! It connects, and then stands for the server: it answers the gateway's opening with what the server said to its own,
//! and every later request goes to the server under the same id. So progress tokens, results and errors pass
//! unchanged. When the server cannot be reached or is lost, it ends with the reason; the gateway restarts it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_lines::{LineReader, Outbox};
use bridgehead_schema::{HeaderParameter, header_parameters};
use bridgehead_wire::{
    Abilities, Era, Id, Line, Message, Method, Notification, Object, Raw, Request, Response, RpcError,
    Spliced, code, key, notification, response,
};
use bytes::BytesMut;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use super::loss::{Loss, fold};
use super::{LossKind, Task};
use crate::catalog::Lists;
use crate::link::negotiate::{Offer, Peer};
use crate::link::notice::Notice;
use crate::link::switchboard::withdrawn_id;
use crate::link::{Event, Exchange, Link, Mirror, Purpose};
use crate::server::record::ServerRecords;
use crate::transport::{ConnectError, Connection, connect};

/// How many requests may be open; the gateway's queue allows far fewer.
const MOST_OPEN: usize = 1024;
/// How many messages may come before the server is connected: the two of the opening, and cancellations of them.
const MOST_EARLY: usize = 8;
/// How many answers to questions of the server one request may have waiting.
const MOST_ANSWERS: usize = 16;
/// How long the open requests may take to report that the server is lost, and the gateway to read the last lines.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The annotation that makes an argument a header.
const HEADER_ANNOTATION: &[u8] = b"x-mcp-header";

/// Why a relay ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    reason: String,
    /// What it means for the next attempt.
    pub kind: LossKind,
}

impl fmt::Display for Lost {
    /// On one line, because the last line is read.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason.replace(['\n', '\r'], " "))
    }
}

/// Carries messages until the gateway's end of the lines is closed.
///
/// # Errors
/// The server could not be reached, or was lost.
pub async fn carry<R, W>(task: Task, reader: R, writer: W) -> Result<(), Lost>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Send + 'static,
{
    let Task { server, limit } = task;
    // The gateway has checked its clients' messages, and adds little to them.
    let mut lines = LineReader::new(reader, limit.saturating_mul(2));
    let mut early = Vec::new();
    let (mut connection, peer) = {
        let (environment, turns) = (BTreeMap::new(), Semaphore::new(1));
        let record = ServerRecords::default().of(server.name.as_ref());
        let connecting = connect(&server, &environment, limit, None, &record, Offer::Questions, &turns);
        let mut connecting = std::pin::pin!(connecting);
        loop {
            tokio::select! {
                connected = &mut connecting => break connected.map_err(|error| unreached(&error))?,
                line = lines.next() => match line {
                    Ok(Some(line)) if early.len() < MOST_EARLY => early.push(line),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return Ok(()),
                },
            }
        }
    };
    connection.link.begin_to_serve();
    let out = Arc::new(Outbox::default());
    let mut writing = tokio::spawn({
        let out = Arc::clone(&out);
        async move { out.write_to(writer).await }
    });
    let mut relay = Relay::new(connection.link.clone(), peer, Arc::clone(&out));
    for line in early {
        relay.take(line).await;
    }
    let ended = loop {
        let link = connection.link.clone();
        tokio::select! {
            biased;
            () = connection.ended() => break Err(lost(&link)),
            line = lines.next(), if relay.open.len() < MOST_OPEN => match line {
                Ok(Some(line)) => relay.take(line).await,
                Ok(None) | Err(_) => break Ok(()),
            },
            changed = link.lists_changed() => relay.tell_changed(changed).await,
            Some(ended) = relay.running.join_next() => {
                if let Ok(id) = ended {
                    relay.open.remove(&id);
                }
            }
            _ = &mut writing => break Ok(()),
        }
    };
    if ended.is_err() {
        let reports = async { while relay.running.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS / 2, reports).await;
    }
    drop(relay);
    out.close();
    let written = async {
        if !writing.is_finished() {
            let _ = writing.await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, written).await;
    Connection::stop(connection).await;
    ended
}

fn lost(link: &Link) -> Lost {
    let reason = link.ended().map_or_else(|| "the connection ended".to_owned(), |error| error.to_string());
    Lost { reason, kind: LossKind::Passing }
}

fn unreached(error: &ConnectError) -> Lost {
    let kind = match (error.is_denied(), error.is_lasting()) {
        (true, _) => LossKind::Denied,
        (false, true) => LossKind::Lasting,
        (false, false) => LossKind::Passing,
    };
    Lost { reason: error.to_string(), kind }
}

/// The open requests, and what they share.
struct Relay {
    shared: Arc<Shared>,
    peer: Peer,
    /// Whether the gateway's `server/discover` was answered; a later one is a probe.
    discovered: bool,
    open: HashMap<u64, AbortHandle>,
    running: JoinSet<u64>,
}

struct Shared {
    link: Link,
    out: Arc<Outbox>,
    /// Which request gets the answer to a question of the server.
    asked: Mutex<HashMap<Id, mpsc::Sender<Response>>>,
    /// The arguments that are sent as headers too, by tool.
    headers: Mutex<HashMap<String, Arc<[HeaderParameter]>>>,
}

impl Relay {
    fn new(link: Link, peer: Peer, out: Arc<Outbox>) -> Self {
        let told = Arc::clone(&out);
        link.on_notice(move |notice| {
            let (method, params) = match notice {
                Notice::Updated(params) => (Method::ResourceUpdated, params),
                Notice::Task(params) => (Method::TaskChanged, params),
                Notice::Log(params) => (Method::LogMessage, params),
            };
            let mut message = BytesMut::new();
            notification(&mut message, method.as_str(), Some(&params.clone().into()));
            fold(&mut message);
            // A report may be lost, like any that a server sends to a gateway that does not read.
            told.push_if_room(&message);
        });
        let shared = Shared { link, out, asked: Mutex::default(), headers: Mutex::default() };
        Self {
            shared: Arc::new(shared),
            peer,
            discovered: false,
            open: HashMap::new(),
            running: JoinSet::new(),
        }
    }

    /// Handles a message of the gateway.
    async fn take(&mut self, line: Line) {
        let Line::Text(text) = line else { return };
        match Message::parse(&text) {
            Ok(Message::Request(request)) => self.request(request).await,
            Ok(Message::Notification(Notification { method, params })) => match method {
                // The server was told at its own handshake.
                Method::Initialized => {}
                Method::Cancelled => {
                    let id = withdrawn_id(params.as_ref()).and_then(|id| id.as_u64());
                    if let Some(request) = id.and_then(|id| self.open.remove(&id)) {
                        request.abort();
                    }
                }
                method => self.shared.link.notify(&method, params.map(Spliced::from).as_ref()).await,
            },
            Ok(Message::Response(answer)) => {
                let asked = answer.id.as_ref().and_then(|id| self.shared.asked.lock().remove(id));
                if let Some(request) = asked {
                    let _ = request.try_send(answer);
                }
            }
            // The gateway writes no other lines.
            Err(_) => {}
        }
    }

    async fn request(&mut self, request: Request) {
        let Some(id) = request.id.as_u64() else { return };
        let opening = match request.method {
            Method::Initialize => Some(initialize_result(&self.peer)),
            Method::Discover if !std::mem::replace(&mut self.discovered, true) => {
                Some(discover_result(&self.peer))
            }
            _ => None,
        };
        match opening {
            Some(outcome) => self.shared.answer(id, outcome.as_ref()).await,
            None => {
                let shared = Arc::clone(&self.shared);
                let running = self.running.spawn(async move {
                    shared.carry_out(id, request).await;
                    id
                });
                self.open.insert(id, running);
            }
        }
    }

    async fn tell_changed(&self, changed: Lists) {
        for (list, method) in [
            (Lists::TOOLS, Method::ToolsListChanged),
            (Lists::PROMPTS, Method::PromptsListChanged),
            (Lists::RESOURCES, Method::ResourcesListChanged),
        ] {
            if changed.has(list) {
                self.shared.tell(&method, None).await;
            }
        }
    }
}

impl Shared {
    /// One request, from its sending to its answer. Dropping this cancels it at the server.
    async fn carry_out(self: Arc<Self>, id: u64, request: Request) {
        let Request { id: _, method, params } = request;
        let params = params.unwrap_or(Raw::literal("{}"));
        let members = Object::parse(&params).unwrap_or_else(|_| Object::empty());
        let name = method.named_by().and_then(|member| members.text(member)).map(|name| name.into_owned());
        let purpose = if method == Method::Listen { Purpose::Standing } else { Purpose::Ordinary };
        // Which client a question is for is decided by the gateway.
        let abilities = match name {
            Some(_) => Abilities::ALL.hearing_all(),
            None => Abilities::NONE,
        };
        let mut exchange = self.link.open_as(id, purpose, abilities);
        if name.is_some() {
            exchange.want_logs();
        }
        let headers = match method {
            Method::ToolsCall => name.as_ref().and_then(|name| self.headers.lock().get(name).cloned()),
            _ => None,
        };
        let parameters = headers.as_deref().unwrap_or_default();
        let mirror = Mirror { name: name.as_deref(), parameters, params: Some(&members) };
        exchange.send_mirrored(&method, &Spliced::from(params.clone()), mirror).await;
        let (answers, mut answered) = mpsc::channel(MOST_ANSWERS);
        let mut questions = Questions { shared: &self, answers, open: Vec::new() };
        let outcome = loop {
            let event = tokio::select! {
                biased;
                Some(answer) = answered.recv() => {
                    reply(&mut exchange, answer);
                    continue;
                }
                event = exchange.next() => event,
            };
            match event {
                Event::Progress(params) => self.tell(&Method::Progress, Some(params)).await,
                Event::Log(params) => self.tell(&Method::LogMessage, Some(params)).await,
                Event::Acknowledged => {
                    let params = json!({(key::META): {(key::SUBSCRIPTION_ID): id}});
                    self.tell(&Method::Acknowledged, Some(Raw::encode(&params))).await;
                }
                Event::Asked(asked) => questions.ask(asked).await,
                Event::Withdrawn(id) => questions.withdraw(&id).await,
                Event::Answer(outcome) => break outcome,
                Event::Lost(error) => break Err(Loss { error, sent: exchange.was_sent() }.to_error()),
            }
        };
        if let (Method::ToolsList, Ok(result)) = (&method, &outcome)
            && self.link.mirrors_headers()
        {
            self.learn_headers(result);
        }
        self.answer(id, outcome.as_ref()).await;
    }

    /// Notes which arguments of the listed tools are sent as headers too.
    fn learn_headers(&self, result: &Raw) {
        #[derive(Deserialize)]
        struct Listed {
            tools: Vec<Entry>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Entry {
            name: String,
            input_schema: Option<Value>,
        }
        if memchr::memmem::find(result.bytes(), HEADER_ANNOTATION).is_none() {
            return;
        }
        let Ok(Listed { tools }) = result.decode() else { return };
        let mut known = self.headers.lock();
        for Entry { name, input_schema } in tools {
            // Invalid annotations are ignored; the server refuses the call and says why.
            let found = input_schema.and_then(|schema| header_parameters(&schema).ok()).unwrap_or_default();
            known.insert(name, found.into());
        }
    }

    async fn answer(&self, id: u64, outcome: Result<&Raw, &RpcError>) {
        let outcome = outcome.map(|result| Spliced::from(result.clone()));
        self.send(|out| response(out, &id.into(), outcome.as_ref().map_err(|error| *error))).await;
    }

    async fn tell(&self, method: &Method, params: Option<Raw>) {
        let params = params.map(Spliced::from);
        self.send(|out| notification(out, method.as_str(), params.as_ref())).await;
    }

    async fn send(&self, write: impl FnOnce(&mut BytesMut)) {
        let folded = |out: &mut BytesMut| {
            let before = out.len();
            write(out);
            fold(&mut out[before..]);
        };
        self.out.send(folded).await;
    }
}

/// The server's questions during one request. Dropping this withdraws them from the gateway's answers.
struct Questions<'a> {
    shared: &'a Shared,
    answers: mpsc::Sender<Response>,
    open: Vec<Id>,
}

impl Questions<'_> {
    async fn ask(&mut self, asked: Request) {
        self.shared.asked.lock().insert(asked.id.clone(), self.answers.clone());
        self.open.push(asked.id.clone());
        let params = asked.params.map(Spliced::from);
        self.shared.send(|out| question(out, &asked.id, asked.method.as_str(), params.as_ref())).await;
    }

    async fn withdraw(&mut self, id: &Id) {
        if self.shared.asked.lock().remove(id).is_some() {
            self.shared.tell(&Method::Cancelled, Some(object(&[("requestId", id.raw().clone())]))).await;
        }
    }
}

impl Drop for Questions<'_> {
    fn drop(&mut self) {
        let mut asked = self.shared.asked.lock();
        self.open.iter().for_each(|id| drop(asked.remove(id)));
    }
}

fn reply(exchange: &mut Exchange, answer: Response) {
    let Some(id) = answer.id else { return };
    match answer.outcome {
        Ok(result) => exchange.reply(&id, Ok(&Spliced::from(result))),
        Err(error) => exchange.reply(&id, Err(&error)),
    }
}

/// Writes a question of the server, under the server's own id.
fn question(out: &mut BytesMut, id: &Id, method: &str, params: Option<&Spliced>) {
    notification(out, method, params);
    // The same members and an id.
    out.truncate(out.len() - 1);
    out.extend_from_slice(b",\"id\":");
    out.extend_from_slice(id.raw().bytes());
    out.extend_from_slice(b"}");
}

/// The answer to the gateway's handshake.
fn initialize_result(peer: &Peer) -> Result<Raw, RpcError> {
    if peer.revision.era() == Era::Modern {
        return Err(RpcError::new(code::METHOD_NOT_FOUND, "the server speaks the modern revision"));
    }
    let mut members = described(peer);
    members.push(("protocolVersion", Raw::string(peer.revision.as_str())));
    members.extend(peer.server_info.clone().map(|info| ("serverInfo", info)));
    Ok(object(&members))
}

/// The answer to the gateway's first `server/discover`.
fn discover_result(peer: &Peer) -> Result<Raw, RpcError> {
    if peer.revision.era() == Era::Legacy {
        return Err(RpcError::new(code::METHOD_NOT_FOUND, "the server speaks a revision with `initialize`"));
    }
    let mut members = described(peer);
    members.push(("supportedVersions", Raw::encode(&[peer.revision.as_str()])));
    let info = peer.server_info.clone();
    members.extend(info.map(|info| (key::META, object(&[(key::SERVER_INFO, info)]))));
    Ok(object(&members))
}

/// What the answers of both eras have in common.
fn described(peer: &Peer) -> Vec<(&'static str, Raw)> {
    let mut members = vec![("capabilities", peer.capabilities.clone())];
    members.extend(peer.instructions.as_ref().map(|text| ("instructions", Raw::string(text))));
    members
}

fn object(members: &[(&'static str, Raw)]) -> Raw {
    let empty = Object::empty();
    let mut edit = empty.edit();
    for (name, value) in members {
        edit.set(name, value.clone());
    }
    edit.finish().to_raw()
}
