//! Who makes a request, in which protocol revision, and what the request is.

use std::fmt;
use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_wire::{Abilities, Era, Id, Level, Method, Object, Raw, RequestMeta, Revision};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::access::Principal;
use crate::dialogue::park::Park;
use crate::dialogue::questioner::Questioner;
use crate::life::session::Session;

/// How the client reaches us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientTransport {
    /// Lines on stdin and stdout.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// A pair of pipes inside this process.
    Memory,
    /// None: the program that embeds the gateway calls its functions.
    Library,
}

impl ClientTransport {
    /// The name in the audit record.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Memory => "memory",
            Self::Library => "library",
        }
    }
}

/// One client, as far as an answer depends on it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who makes the request.
    pub principal: Principal,
    /// The revision this message speaks; for a legacy client the one negotiated at `initialize`.
    pub revision: Revision,
    /// How the request arrived.
    pub transport: ClientTransport,
    /// The session; server processes that are not shared belong to it.
    pub session: Session,
    /// Asks the client something during its call; `None` if the client cannot be asked.
    pub questioner: Option<Questioner>,
}

impl Caller {
    /// The era of the message.
    pub fn era(&self) -> Era {
        self.revision.era()
    }

    /// The lowest log level that the client wants to receive with a request.
    pub fn log_level(&self, request: &ClientRequest) -> Option<Level> {
        match self.era() {
            Era::Modern => request.meta.log_level,
            Era::Legacy => self.session.log_level(),
        }
    }

    /// Whether the client may get notifications before the answer to a request.
    #[inline]
    pub fn wants_notes(&self, request: &ClientRequest) -> bool {
        request.meta.progress_token.is_some()
            || request.method == Method::Listen
            || self.log_level(request).is_some()
    }

    /// The name and version of the client program, as it states them.
    pub(crate) fn client(&self, request: &ClientRequest) -> Option<Arc<str>> {
        self.session.client(self.era(), &request.meta)
    }

    /// Whether a server's question reaches the client while its call is open. Any other client is asked through the result
    /// of its request, and answers with the next one.
    pub(crate) fn is_asked_in_call(&self) -> bool {
        self.era() == Era::Legacy || self.transport == ClientTransport::Library
    }

    /// What the client can be asked during its call.
    #[inline]
    pub fn abilities(&self) -> Abilities {
        self.questioner.as_ref().map_or(Abilities::NONE, Questioner::abilities)
    }
}

/// One request, its parameters found but not decoded.
#[derive(Debug, Clone)]
pub struct ClientRequest {
    /// The method.
    pub method: Method,
    /// The parameters; absent ones read as an empty object.
    pub params: Object,
    /// Their `_meta`, already checked for the era.
    pub meta: RequestMeta,
    /// The JSON-RPC id, set only where the answer depends on it: for `subscriptions/listen`.
    pub id: Option<Id>,
}

impl ClientRequest {
    /// The correlation id that came with it, or a new one.
    pub(crate) fn correlation(&self) -> CorrelationId {
        self.meta.correlation_id.as_deref().and_then(CorrelationId::parse).unwrap_or_else(CorrelationId::mint)
    }

    /// What the client can be asked through the result of this request. `None` unless a modern client sent a
    /// request that it can repeat with a `requestState`: a legacy client is asked while it waits.
    #[inline]
    pub(crate) fn parkable(&self, era: Era) -> Option<Abilities> {
        if era != Era::Modern || !self.method.may_ask() {
            return None;
        }
        let abilities = match &self.meta.client_capabilities {
            Some(capabilities) if capabilities.bytes().len() > 2 => Abilities::declared(capabilities),
            _ => Abilities::NONE,
        };
        (abilities.answers_any() || self.params.get("requestState").is_some()).then_some(abilities)
    }
}

/// Where progress, log lines and other notifications of one request go, as whole encoded messages, in order.
///
/// Bounded: a client that does not read loses progress, never the answer.
#[derive(Debug, Clone)]
pub struct ProgressSink(Reader);

#[derive(Clone)]
enum Reader {
    /// To the request itself.
    Request(mpsc::Sender<Bytes>),
    /// To the request that currently waits for a parked call.
    Park(Arc<Park>),
    /// To a function of the embedding program.
    Function(Arc<dyn Fn(Bytes) -> bool + Send + Sync>),
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request(_) => "Request",
            Self::Park(_) => "Park",
            Self::Function(_) => "Function",
        })
    }
}

impl ProgressSink {
    /// A sink and the end to read from, holding at most `capacity` unread notifications.
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self(Reader::Request(sender)), receiver)
    }

    /// A sink that hands each notification to a function, which must not block and says whether it had room.
    pub fn function(take: impl Fn(Bytes) -> bool + Send + Sync + 'static) -> Self {
        Self(Reader::Function(Arc::new(take)))
    }

    /// A sink to the request that waits for a parked call when a notification is sent.
    pub(crate) const fn parked(park: Arc<Park>) -> Self {
        Self(Reader::Park(park))
    }

    /// The progress token that the client knows: `first`, unless another request has resumed its call.
    pub(crate) fn token(&self, first: &Raw) -> Option<Raw> {
        match &self.0 {
            Reader::Request(_) | Reader::Function(_) => Some(first.clone()),
            Reader::Park(park) => park.way().and_then(|way| way.token),
        }
    }

    /// Resolves when the receiver is gone.
    pub async fn closed(&self) {
        match &self.0 {
            Reader::Request(sender) => sender.closed().await,
            // Never resolves: the next request of the call may read again, and a function stays.
            Reader::Park(_) | Reader::Function(_) => std::future::pending().await,
        }
    }

    /// Sends one notification, waiting for room; returns whether the receiver still exists.
    pub async fn deliver(&self, notification: Bytes) -> bool {
        match &self.0 {
            Reader::Request(sender) => sender.send(notification).await.is_ok(),
            Reader::Park(_) | Reader::Function(_) => self.send(notification),
        }
    }

    /// Sends one notification without waiting; returns whether there was room.
    pub fn send(&self, notification: Bytes) -> bool {
        match &self.0 {
            Reader::Request(sender) => sender.try_send(notification).is_ok(),
            Reader::Park(park) => park.way().is_some_and(|way| way.sink.send(notification)),
            Reader::Function(take) => take(notification),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ERA-1: a call may be parked only if the client is modern, the method allows questions, and the client
    /// declared an ability or sent a state.
    #[test]
    fn what_may_be_parked() {
        #[track_caller]
        fn check(era: Era, method: &str, params: &'static str, expected: Option<bool>) {
            let object = Object::parse(&Raw::literal(params)).unwrap();
            let meta = RequestMeta::read(Some(&object)).unwrap();
            let request = ClientRequest { method: method.into(), params: object, meta, id: None };
            let answers_any = request.parkable(era).map(|abilities| abilities.answers_any());
            assert_eq!(answers_any, expected, "{era:?} {method} {params}");
        }
        let declared =
            r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{}}}}"#;
        let nothing = r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}"#;
        let other = r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{}}}}"#;
        for method in ["tools/call", "prompts/get", "resources/read"] {
            check(Era::Modern, method, declared, Some(true));
            check(Era::Modern, method, r#"{"requestState":"s"}"#, Some(false));
            for params in [nothing, other, "{}"] {
                check(Era::Modern, method, params, None);
            }
            check(Era::Legacy, method, declared, None);
            check(Era::Legacy, method, r#"{"requestState":"s"}"#, None);
        }
        check(Era::Modern, "tools/list", declared, None);
        check(Era::Modern, "tools/list", r#"{"requestState":"s"}"#, None);
    }
}
