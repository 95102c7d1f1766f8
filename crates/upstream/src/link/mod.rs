//! A live connection to an upstream, and one request on it.
//!
//! What is behind a link is either an ordered stream of messages ([`crate::link::stream`]: a process, a WebSocket) or
//! an HTTP endpoint that takes a POST per request ([`crate::transport::http`]). Whoever calls sees no
//! difference: a request has an id of ours, what comes for it comes in order, the answer last, and dropping an
//! [`Exchange`] before its answer tells the peer that nobody waits any more.
//!
//! A legacy server may ask something back while it works on a request. Who opened that request for somebody with
//! [`Abilities`] gets the question as an [`Event`] and owes it an [`Exchange::reply`]; what is left is refused when
//! the exchange is dropped.

pub(crate) mod call;
pub(crate) mod doorbell;
pub(crate) mod listening;
pub(crate) mod negotiate;
pub(crate) mod notice;
pub(crate) mod stream;
pub(crate) mod switchboard;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bridgehead_config::Roots;
use bridgehead_schema::HeaderParameter;
use bridgehead_wire::held::Account;
use bridgehead_wire::{Abilities, Id, Level, Method, Object, Raw, Request, RpcError, Spliced, code, key};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::catalog::Lists;
use crate::link::notice::Notice;
use crate::link::stream::{Stream, StreamExchange};
use crate::link::switchboard::Switchboard;
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
        /// Whether the same request may be taken later: too many at once, or a fault on the way.
        transient: bool,
    },
    /// The server answered with something that is no answer; the text says with what.
    #[error("{0}")]
    Unusable(Arc<str>),
    /// The answer came, but was larger than we take.
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
    /// The params of a log line, where they were asked for.
    Log(Raw),
    /// What was asked for by a standing request is told from now on.
    Acknowledged,
    /// The server asks whom the request was opened for. Its id is the server's own.
    Asked(Request),
    /// The server no longer wants to know what it asked under this id.
    Withdrawn(Id),
    /// The answer. Nothing comes after it.
    Answer(Result<Raw, RpcError>),
    /// There will be no answer.
    Lost(LinkError),
}

impl Event {
    /// Whether nothing comes after it.
    pub(crate) const fn is_last(&self) -> bool {
        matches!(self, Self::Answer(_) | Self::Lost(_))
    }
}

/// What a request is for, as far as the engine treats it differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An ordinary request; dropping it cancels it upstream.
    Ordinary,
    /// One that stays open for as long as the peer serves, and is no work in progress.
    Standing,
    /// Part of finding out what the peer is: never cancelled, and an error that names an id nobody used
    /// is taken as its answer (some servers answer what they do not know that way).
    Handshake,
}

/// What of a request a modern HTTP server wants to see in headers too. Nothing is computed from it unless such
/// a server is asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mirror<'a> {
    /// The tool, prompt, resource or task that the request is about, as the server names it.
    pub name: Option<&'a str>,
    /// The annotated parameters of the tool.
    pub parameters: &'a [HeaderParameter],
    /// Where the arguments are: the params of the request, before or after our edits.
    pub params: Option<&'a Object>,
}

/// A live connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Link(LinkKind);

#[derive(Debug, Clone)]
enum LinkKind {
    Stream(Arc<Stream>),
    Http(Arc<Remote>),
}

/// One request, from the moment it has an id to its answer.
#[derive(Debug)]
pub struct Exchange(ExchangeKind);

#[derive(Debug)]
enum ExchangeKind {
    Stream(StreamExchange),
    Http(Box<HttpExchange>),
}

impl Link {
    /// Makes a link over lines and the two tasks' work that drives it. The caller runs both futures: the first
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
        let stream = Arc::new(Stream::new(server, limit));
        let (for_reader, for_writer) = (Arc::clone(&stream), Arc::clone(&stream));
        let read = async move { for_reader.read(reader).await };
        let write = async move { for_writer.write(writer).await };
        (Self(LinkKind::Stream(stream)), read, write)
    }

    pub(crate) const fn over_http(remote: Arc<Remote>) -> Self {
        Self(LinkKind::Http(remote))
    }

    /// Shows every line that is no message to `show`, which must not block; the beginning of it, that is. The first
    /// one who asks is served.
    pub(crate) fn on_noise(&self, show: impl Fn(&str) + Send + Sync + 'static) {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.on_noise(show),
            LinkKind::Http(remote) => remote.board.on_noise(show),
        }
    }

    /// Ends the link of a process once it wrote more than this that is no message.
    pub(crate) fn limit_noise(&self, bytes: u64) {
        if let LinkKind::Stream(stream) = &self.0 {
            stream.limit_noise(bytes);
        }
    }

    /// Takes an answer that is none for a fault from now on: for a process that serves one call.
    pub(crate) fn be_strict(&self) {
        self.board().be_strict();
    }

    /// Why the process behind it is to be ended, if reading was given up before its output ended.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        match &self.0 {
            LinkKind::Stream(stream) => stream.fault(),
            LinkKind::Http(_) => None,
        }
    }

    /// Resolves when the peer on a stream was given up though its reader may not have seen why: [`Link::fault`] says.
    pub(crate) async fn given_up(&self) {
        match &self.0 {
            LinkKind::Stream(stream) => stream.given_up().await,
            LinkKind::Http(_) => std::future::pending().await,
        }
    }

    /// Tells `take`, which must not block, what the peer says outside of any request. The first one who asks is served.
    pub(crate) fn on_notice(&self, take: impl Fn(&Notice) + Send + Sync + 'static) {
        self.board().on_notice(take);
    }

    /// These lists may have changed.
    pub(crate) fn doubt(&self, lists: Lists) {
        self.board().doubt(lists);
    }

    /// Asks a legacy peer for log lines of this level, unless it was asked for as much before.
    pub async fn want_level(&self, level: Level) {
        if self.board().wants_level(level) {
            let params = Raw::encode(&serde_json::json!({"level": level.as_str()}));
            // A peer that refuses gives what it gives.
            let _ = self.ask(&Method::SetLevel, &params.into(), Purpose::Ordinary).await;
        }
    }

    /// Opens a request: it has an id from now on, and is sent by [`Exchange::send`].
    pub fn open(&self, purpose: Purpose) -> Exchange {
        self.open_for(purpose, Abilities::NONE)
    }

    /// Opens a request for somebody who can be asked something by the server meanwhile.
    pub fn open_for(&self, purpose: Purpose, abilities: Abilities) -> Exchange {
        Exchange(match &self.0 {
            LinkKind::Stream(stream) => ExchangeKind::Stream(stream.open(purpose, abilities)),
            LinkKind::Http(remote) => {
                ExchangeKind::Http(Box::new(HttpExchange::open(remote, purpose, abilities)))
            }
        })
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
        match &self.0 {
            LinkKind::Stream(stream) => stream.notify(method, params).await,
            LinkKind::Http(remote) => remote.notify(method, params).await,
        }
    }

    /// Whether requests to the peer carry parts of themselves in headers, so that a tool whose annotations for
    /// them are invalid cannot be called.
    pub fn mirrors_headers(&self) -> bool {
        match &self.0 {
            LinkKind::Stream(_) => false,
            LinkKind::Http(remote) => remote.is_modern(),
        }
    }

    /// Whether one of these lists changed since this was last asked; for those who do not wait for it.
    pub(crate) fn take_changed(&self, lists: Lists) -> bool {
        self.board().take_changed(lists)
    }

    /// Resolves when the peer has said that some of its lists changed since the last time this resolved.
    pub async fn lists_changed(&self) -> Lists {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.lists_changed().await,
            LinkKind::Http(remote) => remote.board.lists_changed().await,
        }
    }

    /// Whether a call is open for somebody who can be asked something.
    pub fn has_askable(&self) -> bool {
        self.board().has_askable()
    }

    /// Whether the server has asked during a call since the link is open.
    pub fn has_asked(&self) -> bool {
        self.board().has_asked()
    }

    /// Answers for roots as configured, from now on; nobody is asked.
    pub(crate) fn answer_roots(&self, roots: Option<&Roots>) {
        self.board().answer_roots(roots);
    }

    /// Says that calls are served from now on: what is asked before is asked of nobody's call.
    pub(crate) fn begin_to_serve(&self) {
        self.board().begin_to_serve();
    }

    /// Whether the server has asked for the roots of a client when there was no call that it could have asked for.
    pub fn has_asked_roots_unbidden(&self) -> bool {
        self.board().has_asked_roots_unbidden()
    }

    /// Whether the server has asked for the roots of a client since the link is open.
    pub fn has_asked_roots(&self) -> bool {
        self.board().has_asked_roots()
    }

    /// Whether the server has asked what could have been for more than one call.
    pub fn was_ambiguous(&self) -> bool {
        self.board().was_ambiguous()
    }

    /// Whether what a server asks comes on the stream of the call that it is for.
    pub fn has_own_streams(&self) -> bool {
        match &self.0 {
            LinkKind::Stream(_) => false,
            LinkKind::Http(remote) => remote.has_own_streams(),
        }
    }

    /// What is held for the peer.
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

    /// Why it ended, once it has.
    pub fn ended(&self) -> Option<LinkError> {
        match &self.0 {
            LinkKind::Stream(stream) => stream.board.ended(),
            LinkKind::Http(remote) => remote.board.ended(),
        }
    }

    /// Whether it has not ended. Costs next to nothing to ask.
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
    /// The id it is sent with, which is also its progress token.
    pub const fn id(&self) -> u64 {
        match &self.0 {
            ExchangeKind::Stream(exchange) => exchange.id(),
            ExchangeKind::Http(exchange) => exchange.id(),
        }
    }

    /// Sends it, unless the link has ended already. Waits only while the peer is not reading.
    pub async fn send(&mut self, method: &Method, params: &Spliced) {
        self.send_mirrored(method, params, Mirror::default()).await;
    }

    /// Sends it, with what the peer may want to see in headers.
    pub async fn send_mirrored(&mut self, method: &Method, params: &Spliced, mirror: Mirror<'_>) {
        match &mut self.0 {
            ExchangeKind::Stream(exchange) => exchange.send(method, params).await,
            // It leaves with the first look at what comes back: then the sender's own task carries it.
            ExchangeKind::Http(exchange) => exchange.send(method, params, mirror),
        }
    }

    /// Lets log lines of the request through, before it is sent.
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

    /// Why it waits to be sent, if the server asked to be left alone for a while.
    pub(crate) fn put_off(&self) -> Option<LinkError> {
        match &self.0 {
            ExchangeKind::Stream(_) => None,
            ExchangeKind::Http(exchange) => exchange.put_off(),
        }
    }

    /// What comes next. After an answer or a loss, nothing does.
    pub async fn next(&mut self) -> Event {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Exchange::next`], for those who wait for something else too.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        match &mut self.0 {
            ExchangeKind::Stream(exchange) => exchange.poll_next(context),
            ExchangeKind::Http(exchange) => exchange.poll_next(context),
        }
    }

    /// Answers what the server asked under `id`; nothing, if it is not waiting for that any more.
    pub fn reply(&mut self, id: &Id, outcome: Result<&Spliced, &RpcError>) {
        match &mut self.0 {
            ExchangeKind::Stream(exchange) => exchange.reply(id, outcome),
            ExchangeKind::Http(exchange) => exchange.reply(id, outcome),
        }
    }

    /// The answer, skipping what comes before it.
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

/// Params of the notification that nobody waits for `id` any more.
pub(crate) fn cancelled_params(id: u64) -> Spliced {
    Spliced::from(Raw::encode(&serde_json::json!({
        "requestId": id,
        "reason": "the client no longer waits for this request",
    })))
}

/// The answer to what was asked for a request that has ended.
pub(crate) fn call_is_over() -> RpcError {
    RpcError::new(code::INTERNAL_ERROR, "the call that this was asked for has ended")
}

/// Sets the `_meta` members that every request to a modern server carries; `capabilities` are those of whom it
/// is sent for.
pub fn stamp_modern(edit: &mut bridgehead_wire::Edit<'_>, capabilities: impl Into<Spliced>) {
    edit.set(key::PROTOCOL_VERSION, Raw::literal("\"2026-07-28\""))
        .set(key::CLIENT_CAPABILITIES, capabilities)
        .set(key::CLIENT_INFO, Raw::literal(CLIENT_INFO));
}

/// Params of a request of our own to a modern peer, with `members` beside the `_meta`. Of ourselves we can do
/// nothing for a server.
pub(crate) fn modern_params(members: &Object) -> Spliced {
    modern_params_declaring(members, Raw::literal("{}"))
}

/// The same, declaring that we can do this.
pub(crate) fn modern_params_declaring(members: &Object, capabilities: Raw) -> Spliced {
    let meta = members.get(key::META).and_then(|meta| Object::parse(&meta).ok());
    let meta = meta.unwrap_or_else(Object::empty);
    let mut meta = meta.edit();
    stamp_modern(&mut meta, capabilities);
    let mut edit = members.edit();
    edit.set(key::META, meta.finish());
    edit.finish()
}

/// Who we are to servers.
pub(crate) const CLIENT_INFO: &str =
    concat!(r#"{"name":"bridgehead","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

#[cfg(test)]
mod tests;
