//! A live connection to an upstream, and one request on it.
//!
//! Behind a link is either an ordered stream of messages ([`crate::link::stream`]: a process, a WebSocket) or an
//! HTTP endpoint that takes one POST per request ([`crate::transport::http`]). The caller sees no difference: a
//! request has an id of ours, its messages arrive in order, the answer last. Dropping an [`Exchange`] before its
//! answer cancels the request at the peer; [`Exchange::abandon`] does that and tells when the peer is done with it.
//!
//! A legacy server may ask a question while it works on a request. If the request was opened with [`Abilities`],
//! its opener receives the question as an [`Event`] and must answer it with [`Exchange::reply`]; unanswered
//! questions are refused when the exchange is dropped.

pub(crate) mod call;
pub(crate) mod doorbell;
pub(crate) mod listening;
pub(crate) mod negotiate;
pub(crate) mod notice;
pub(crate) mod stream;
pub(crate) mod switchboard;
pub(crate) mod unfinished;

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bridgehead_config::Roots;
use bridgehead_schema::HeaderParameter;
use bridgehead_wire::held::Account;
use bridgehead_wire::{Abilities, Id, Level, Method, Object, Raw, Request, RpcError, Spliced, code, key};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;

use crate::catalog::Lists;
use crate::link::notice::Notice;
use crate::link::stream::{Stream, StreamExchange};
use crate::link::switchboard::Switchboard;
use crate::link::unfinished::Unfinished;
use crate::server::crash::{Crash, Fault};
use crate::transport::http::{HttpExchange, Remote};

/// Why a link, or one request on it, gives no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection ended; the text says how.
    #[error("{0}")]
    Closed(Arc<str>),
    /// The server's process ended, or had to be ended.
    #[error("{0}")]
    Crashed(Arc<Crash>),
    /// The server is there, but turned this request away; the text says why and what helps.
    #[error("{reason}")]
    Refused {
        /// Why, and what helps.
        reason: Arc<str>,
        /// Whether the same request may be accepted later: too many at once, or a fault on the way.
        transient: bool,
        /// Whether other credentials are wanted (401, 403), so that the same request is refused again.
        denied: bool,
    },
    /// The server sent a malformed answer; the text describes it.
    #[error("{0}")]
    Unusable(Arc<str>),
    /// The answer was larger than the limit.
    #[error(
        "the answer has {bytes} bytes, more than the limit of {limit} (`max_message_mb`, `max_output_mb`)"
    )]
    TooLarge {
        /// Its size, as far as it was read.
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
    /// The params of a log line, if the request wants them.
    Log(Raw),
    /// From now on the server sends what a standing request asked for.
    Acknowledged,
    /// The server asks the client that the request was opened for. The id is the server's own.
    Asked(Request),
    /// The server withdraws the question with this id.
    Withdrawn(Id),
    /// The answer. Nothing comes after it.
    Answer(Result<Raw, RpcError>),
    /// There will be no answer.
    Lost(LinkError),
}

impl Event {
    /// Whether this is the last event.
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Answer(_) | Self::Lost(_))
    }
}

/// The purpose of a request, as far as the engine treats it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An ordinary request; dropping it cancels it upstream.
    Ordinary,
    /// A request that stays open for as long as the peer serves and does not count as work in progress.
    Standing,
    /// Part of negotiating the protocol. It is never cancelled, and an error with an unknown id counts as its
    /// answer: some servers answer unknown requests that way.
    Handshake,
    /// A request that was cancelled and may still run. It does not count as work in progress.
    Abandoned,
}

impl Purpose {
    /// Whether somebody waits for the request.
    pub(crate) const fn is_work(self) -> bool {
        match self {
            Self::Ordinary | Self::Handshake => true,
            Self::Standing | Self::Abandoned => false,
        }
    }
}

/// The parts of a request that a modern HTTP server also wants in headers. They are computed only for such a
/// server.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mirror<'a> {
    /// The tool, prompt, resource or task of the request, by the server's name for it.
    pub name: Option<&'a str>,
    /// The annotated parameters of the tool.
    pub parameters: &'a [HeaderParameter],
    /// The params of the request, which hold the arguments, before or after our edits.
    pub params: Option<&'a Object>,
}

/// A live connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Link(LinkKind);

/// A link in the hands of what drives it. Dropping this ends the link: otherwise calls would wait for answers that nothing
/// reads any more, for example after the end of the runtime.
#[derive(Debug)]
pub(crate) struct DrivenLink(pub(crate) Link);

impl Deref for DrivenLink {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0
    }
}

impl Drop for DrivenLink {
    fn drop(&mut self) {
        self.0.end(LinkError::Closed("the connection was dropped".into()));
    }
}

#[derive(Debug, Clone)]
enum LinkKind {
    Stream(Arc<Stream>),
    Http(Arc<Remote>),
}

/// One request, from its id to its answer.
#[derive(Debug)]
pub struct Exchange(ExchangeKind);

#[derive(Debug)]
enum ExchangeKind {
    Stream(StreamExchange),
    Http(Box<HttpExchange>),
}

impl Link {
    /// Makes a link over lines, and the two futures that drive it. The caller runs both: the first reads until the
    /// peer's stream ends (then the caller gives the reason with [`Link::end`]), the second writes until it fails
    /// or is dropped.
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
        let stream = Arc::new(Stream::new(server, limit));
        let (for_reader, for_writer) = (Arc::clone(&stream), Arc::clone(&stream));
        let read = async move { for_reader.read(reader).await };
        let write = async move { for_writer.write(writer).await };
        (Self(LinkKind::Stream(stream)), read, write)
    }

    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "no remote server can be connected"))]
    pub(crate) const fn over_http(remote: Arc<Remote>) -> Self {
        Self(LinkKind::Http(remote))
    }

    /// Passes the beginning of every line that is not a message to `show`, which must not block. Only the first
    /// callback is used.
    pub(crate) fn on_noise(&self, show: impl Fn(&str) + Send + Sync + 'static) {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.on_noise(show),
            LinkKind::Http(remote) => remote.board.on_noise(show),
        }
    }

    /// Ends a process's link once it has written more than this many bytes that are not messages.
    pub(crate) fn limit_noise(&self, bytes: u64) {
        if let LinkKind::Stream(stream) = &self.0 {
            stream.limit_noise(bytes);
        }
    }

    /// From now on a malformed answer is a fault: for a process that serves one call.
    pub(crate) fn be_strict(&self) {
        self.board().be_strict();
    }

    /// Why the process must be ended, if reading stopped before its output ended.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        match &self.0 {
            LinkKind::Stream(stream) => stream.fault(),
            LinkKind::Http(_) => None,
        }
    }

    /// Resolves when a peer on a stream was given up for a reason that its reader may not have seen;
    /// [`Link::fault`] has it.
    pub(crate) async fn given_up(&self) {
        match &self.0 {
            LinkKind::Stream(stream) => stream.given_up().await,
            LinkKind::Http(_) => std::future::pending().await,
        }
    }

    /// Passes to `take`, which must not block, what the peer says outside of any request. Only the first callback
    /// is used.
    pub(crate) fn on_notice(&self, take: impl Fn(&Notice) + Send + Sync + 'static) {
        self.board().on_notice(take);
    }

    /// Marks these lists as possibly changed.
    pub(crate) fn doubt(&self, lists: Lists) {
        self.board().doubt(lists);
    }

    /// Asks a legacy peer for log lines of this level, unless an earlier request covers it.
    pub async fn want_level(&self, level: Level) {
        if self.board().wants_level(level) {
            let params = Raw::encode(&serde_json::json!({"level": level.as_str()}));
            // A refusal changes nothing: the peer sends the lines that it sends.
            let _ = self.ask(&Method::SetLevel, &params.into(), Purpose::Ordinary).await;
        }
    }

    /// Opens a request: gives it an id. [`Exchange::send`] sends it.
    pub fn open(&self, purpose: Purpose) -> Exchange {
        self.open_for(purpose, Abilities::NONE)
    }

    /// Opens a request for a client that the server may ask during it.
    pub fn open_for(&self, purpose: Purpose, abilities: Abilities) -> Exchange {
        self.open_as(self.board().next_id(), purpose, abilities)
    }

    /// The same under an id that the caller chooses, and never twice.
    pub(crate) fn open_as(&self, id: u64, purpose: Purpose, abilities: Abilities) -> Exchange {
        Exchange(match &self.0 {
            LinkKind::Stream(stream) => ExchangeKind::Stream(stream.open_as(id, purpose, abilities)),
            LinkKind::Http(remote) => {
                ExchangeKind::Http(Box::new(HttpExchange::open_as(remote, id, purpose, abilities)))
            }
        })
    }

    /// Marks the peer as a relay: it writes what it finds of a request in a form of ours.
    pub(crate) fn be_of_relay(&self) {
        self.board().be_of_relay();
    }

    /// One request and its answer, for callers that want no progress.
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
        match &self.0 {
            LinkKind::Stream(stream) => stream.notify(method, params).await,
            LinkKind::Http(remote) => remote.notify(method, params).await,
        }
    }

    /// Whether requests to the peer repeat parts of themselves in headers. If so, a tool with invalid header
    /// annotations cannot be called.
    pub fn mirrors_headers(&self) -> bool {
        match &self.0 {
            LinkKind::Stream(_) => false,
            LinkKind::Http(remote) => remote.is_modern(),
        }
    }

    /// Whether one of these lists changed since the last call; for callers that do not wait.
    pub(crate) fn take_changed(&self, lists: Lists) -> bool {
        self.board().take_changed(lists)
    }

    /// Resolves when the peer has said that some of its lists changed since this last resolved.
    pub async fn lists_changed(&self) -> Lists {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.lists_changed().await,
            LinkKind::Http(remote) => remote.board.lists_changed().await,
        }
    }

    /// Whether a call is open for a client that can be asked.
    pub fn has_askable(&self) -> bool {
        self.board().has_askable()
    }

    /// Whether the server has asked a question during a call on this link.
    pub fn has_asked(&self) -> bool {
        self.board().has_asked()
    }

    /// Answers questions for roots from the configuration from now on; no client is asked.
    pub(crate) fn answer_roots(&self, roots: Option<&Roots>) {
        self.board().answer_roots(roots);
    }

    /// Marks the link as serving calls: questions before this belong to no call.
    pub(crate) fn begin_to_serve(&self) {
        self.board().begin_to_serve();
    }

    /// Whether the server has asked for a client's roots while no call was open that could have caused it.
    pub fn has_asked_roots_unbidden(&self) -> bool {
        self.board().has_asked_roots_unbidden()
    }

    /// Whether the server has asked for a client's roots on this link.
    pub fn has_asked_roots(&self) -> bool {
        self.board().has_asked_roots()
    }

    /// Whether the server has asked a question that could have belonged to more than one call.
    pub fn was_ambiguous(&self) -> bool {
        self.board().was_ambiguous()
    }

    /// Whether the server's questions arrive on the stream of the call that they belong to.
    pub fn has_own_streams(&self) -> bool {
        match &self.0 {
            LinkKind::Stream(_) => false,
            LinkKind::Http(remote) => remote.has_own_streams(),
        }
    }

    /// The account of the memory that is held for the peer.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.board().account
    }

    fn board(&self) -> &Switchboard {
        match &self.0 {
            LinkKind::Stream(stream) => &stream.board,
            LinkKind::Http(remote) => &remote.board,
        }
    }

    /// Fails every open request and all later ones with `error`. The first reason stays.
    pub fn end(&self, error: LinkError) {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.end(error),
            LinkKind::Http(remote) => remote.board.end(error),
        }
    }

    /// Why the link ended, if it has.
    pub fn ended(&self) -> Option<LinkError> {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.ended(),
            LinkKind::Http(remote) => remote.board.ended(),
        }
    }

    /// Whether the link has not ended. This is cheap to call.
    #[inline]
    pub fn is_open(&self) -> bool {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.is_open(),
            LinkKind::Http(remote) => remote.board.is_open(),
        }
    }

    /// How many requests wait for an answer.
    pub fn in_flight(&self) -> usize {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.waiting(),
            LinkKind::Http(remote) => remote.in_flight(),
        }
    }
}

impl Exchange {
    /// The request's id, which is also its progress token.
    pub const fn id(&self) -> u64 {
        match &self.0 {
            ExchangeKind::Stream(exchange) => exchange.id(),
            ExchangeKind::Http(exchange) => exchange.id(),
        }
    }

    /// Sends the request, unless the link has ended. Waits only while the peer does not read.
    pub async fn send(&mut self, method: &Method, params: &Spliced) {
        self.send_mirrored(method, params, Mirror::default()).await;
    }

    /// Sends the request, with the parts that the peer may want in headers.
    pub async fn send_mirrored(&mut self, method: &Method, params: &Spliced, mirror: Mirror<'_>) {
        match &mut self.0 {
            ExchangeKind::Stream(exchange) => exchange.send(method, params).await,
            // The request leaves at the first poll for its answer, so the sender's own task drives it.
            ExchangeKind::Http(exchange) => exchange.send(method, params, mirror),
        }
    }

    /// Requests the log lines of this request. Call it before sending.
    pub fn want_logs(&mut self) {
        match &mut self.0 {
            ExchangeKind::Stream(exchange) => exchange.want_logs(),
            ExchangeKind::Http(exchange) => exchange.want_logs(),
        }
    }

    /// Whether the request was handed to the writer: if not, it cannot have run.
    pub fn was_sent(&self) -> bool {
        match &self.0 {
            ExchangeKind::Stream(exchange) => exchange.was_sent(),
            ExchangeKind::Http(exchange) => exchange.was_sent(),
        }
    }

    /// How often the server got the request, whatever it answered: over HTTP it may have asked to send it again.
    pub fn sends(&self) -> u32 {
        match &self.0 {
            ExchangeKind::Stream(exchange) => u32::from(exchange.was_sent()),
            ExchangeKind::Http(exchange) => exchange.sends(),
        }
    }

    /// Why the request is not sent yet, if the server asked us to wait.
    pub(crate) fn put_off(&self) -> Option<LinkError> {
        match &self.0 {
            ExchangeKind::Stream(_) => None,
            ExchangeKind::Http(exchange) => exchange.put_off(),
        }
    }

    /// The next event. Nothing follows an answer or a loss.
    pub async fn next(&mut self) -> Event {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Like [`Exchange::next`], for callers that wait for something else too.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        match &mut self.0 {
            ExchangeKind::Stream(exchange) => exchange.poll_next(context),
            ExchangeKind::Http(exchange) => exchange.poll_next(context),
        }
    }

    /// Answers the server's question `id`; does nothing if the server no longer waits for it.
    pub fn reply(&mut self, id: &Id, outcome: Result<&Spliced, &RpcError>) {
        match &mut self.0 {
            ExchangeKind::Stream(exchange) => exchange.reply(id, outcome),
            ExchangeKind::Http(exchange) => exchange.reply(id, outcome),
        }
    }

    /// Cancels the request, if it was sent and its answer has not come. Dropping does that too; this returns what tells the
    /// end of the request at the server, as far as `grace` allows.
    pub fn abandon(&mut self, grace: Duration) -> Option<Unfinished> {
        let runtime = Handle::try_current().ok().filter(|_| !grace.is_zero())?;
        let abandoned = match &mut self.0 {
            ExchangeKind::Stream(exchange) => ExchangeKind::Stream(exchange.abandon()?),
            ExchangeKind::Http(exchange) => ExchangeKind::Http(Box::new(exchange.abandon()?)),
        };
        Some(Unfinished::watch(Self(abandoned), grace, &runtime))
    }

    /// Waits until the server has provably ended a cancelled request, or the link has ended. The end of a response alone is no
    /// such proof.
    async fn ends(mut self) {
        match &self.0 {
            ExchangeKind::Stream(_) => self.answered(false).await,
            ExchangeKind::Http(exchange) => {
                let over = exchange.over();
                tokio::select! {
                    () = over => {}
                    () = self.answered(true) => {}
                }
            }
        }
    }

    /// Waits for the answer to a cancelled request; for ever, if it is lost and `goes_on` then.
    async fn answered(&mut self, goes_on: bool) {
        loop {
            match self.next().await {
                Event::Answer(_) | Event::Lost(LinkError::TooLarge { .. }) => return,
                Event::Lost(_) if goes_on => std::future::pending().await,
                Event::Lost(_) => return,
                Event::Asked(asked) => self.reply(&asked.id, Err(&call_is_over())),
                Event::Progress(_) | Event::Log(_) | Event::Acknowledged | Event::Withdrawn(_) => {}
            }
        }
    }

    /// Waits for the answer and skips everything before it.
    pub async fn answer(&mut self) -> Result<Result<Raw, RpcError>, LinkError> {
        loop {
            match self.next().await {
                Event::Progress(_)
                | Event::Log(_)
                | Event::Acknowledged
                | Event::Asked(_)
                | Event::Withdrawn(_) => {}
                Event::Answer(outcome) => return Ok(outcome),
                Event::Lost(error) => return Err(error),
            }
        }
    }
}

/// Params of the notification that cancels request `id`.
pub(crate) fn cancelled_params(id: u64) -> Spliced {
    Spliced::from(Raw::encode(&serde_json::json!({
        "requestId": id,
        "reason": "the client no longer waits for this request",
    })))
}

/// The answer to a question whose call has ended.
pub(crate) fn call_is_over() -> RpcError {
    RpcError::new(code::INTERNAL_ERROR, "the call that this was asked for has ended")
}

/// Sets the `_meta` members that every request to a modern server carries; `capabilities` are those of the client
/// it is sent for.
pub fn stamp_modern(edit: &mut bridgehead_wire::Edit<'_>, capabilities: impl Into<Spliced>) {
    edit.set(key::PROTOCOL_VERSION, Raw::literal("\"2026-07-28\""))
        .set(key::CLIENT_CAPABILITIES, capabilities)
        .set(key::CLIENT_INFO, Raw::literal(CLIENT_INFO));
}

/// Params of a request of our own to a modern peer, with `members` beside the `_meta`. It declares no capabilities:
/// the gateway itself answers no questions.
pub(crate) fn modern_params(members: &Object) -> Spliced {
    modern_params_declaring(members, Raw::literal("{}"))
}

/// Like [`modern_params`], but declares these capabilities.
pub(crate) fn modern_params_declaring(members: &Object, capabilities: Raw) -> Spliced {
    let meta = members.get(key::META).and_then(|meta| Object::parse(&meta).ok());
    let meta = meta.unwrap_or_else(Object::empty);
    let mut meta = meta.edit();
    stamp_modern(&mut meta, capabilities);
    let mut edit = members.edit();
    edit.set(key::META, meta.finish());
    edit.finish()
}

/// How the gateway identifies itself to servers.
pub(crate) const CLIENT_INFO: &str =
    concat!(r#"{"name":"bridgehead","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

#[cfg(test)]
mod tests;
