//! Who asks, in which protocol, and what.

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
pub enum Transport {
    /// Lines on stdin and stdout.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// A pair of pipes inside this process.
    Memory,
}

impl Transport {
    /// As the audit trail shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Memory => "memory",
        }
    }
}

/// One client, as far as an answer depends on it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who it is.
    pub principal: Principal,
    /// The revision this message speaks; for a legacy client the one negotiated at `initialize`.
    pub revision: Revision,
    /// Where it comes in.
    pub transport: Transport,
    /// What it shares servers with nobody else as.
    pub session: Session,
    /// The way to ask it something during its call; none for whom cannot be asked.
    pub questioner: Option<Questioner>,
}

impl Caller {
    /// The era of the message.
    pub fn era(&self) -> Era {
        self.revision.era()
    }

    /// The least grave log lines that it wants with a request.
    pub fn log_level(&self, request: &ClientRequest) -> Option<Level> {
        match self.era() {
            Era::Modern => request.meta.log_level,
            Era::Legacy => self.session.log_level(),
        }
    }

    /// Whether something may be told before a request is answered.
    pub fn wants_notes(&self, request: &ClientRequest) -> bool {
        request.meta.progress_token.is_some()
            || request.method == Method::Listen
            || self.log_level(request).is_some()
    }

    /// The name and version of the program that asks, as it says itself.
    pub(crate) fn client(&self, request: &ClientRequest) -> Option<Arc<str>> {
        self.session.client(self.era(), &request.meta)
    }

    /// What it can be asked during its call.
    pub fn abilities(&self) -> Abilities {
        self.questioner.as_ref().map_or(Abilities::NONE, Questioner::abilities)
    }
}

/// One request, its parameters found but not decoded.
#[derive(Debug, Clone)]
pub struct ClientRequest {
    /// What is asked.
    pub method: Method,
    /// The parameters; absent ones read as an empty object.
    pub params: Object,
    /// Their `_meta`, already checked for the era.
    pub meta: RequestMeta,
    /// The request's own id, where the answer depends on it: a `subscriptions/listen`.
    pub id: Option<Id>,
}

impl ClientRequest {
    /// The correlation id that came with it, or a new one.
    pub(crate) fn correlation(&self) -> CorrelationId {
        self.meta.correlation_id.as_deref().and_then(CorrelationId::parse).unwrap_or_else(CorrelationId::mint)
    }

    /// What its client can be asked by the result, for a request that may come back with a state; none for any other:
    /// a legacy client is asked while it waits.
    pub(crate) fn parkable(&self, era: Era) -> Option<Abilities> {
        if era != Era::Modern || !self.method.may_ask() {
            return None;
        }
        let abilities = match &self.meta.client_capabilities {
            Some(capabilities) if capabilities.as_str().len() > 2 => Abilities::declared(capabilities),
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

#[derive(Debug, Clone)]
enum Reader {
    /// To the request itself.
    Request(mpsc::Sender<Bytes>),
    /// To whichever request of a parked call is there.
    Park(Arc<Park>),
}

impl ProgressSink {
    /// A sink and the end to read from, holding at most `capacity` unread notifications.
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self(Reader::Request(sender)), receiver)
    }

    /// A sink to the request of a parked call that is there when something comes.
    pub(crate) const fn parked(park: Arc<Park>) -> Self {
        Self(Reader::Park(park))
    }

    /// The token that the client knows progress by: `first`, unless another request has taken up its call.
    pub(crate) fn token(&self, first: &Raw) -> Option<Raw> {
        match &self.0 {
            Reader::Request(_) => Some(first.clone()),
            Reader::Park(park) => park.way().and_then(|way| way.token),
        }
    }

    /// Resolves when nobody reads any more.
    pub async fn closed(&self) {
        match &self.0 {
            Reader::Request(sender) => sender.closed().await,
            // Its next request may.
            Reader::Park(_) => std::future::pending().await,
        }
    }

    /// Hands on one notification when there is room; says whether anybody still reads.
    pub async fn deliver(&self, notification: Bytes) -> bool {
        match &self.0 {
            Reader::Request(sender) => sender.send(notification).await.is_ok(),
            Reader::Park(_) => self.send(notification),
        }
    }

    /// Hands on one notification; says whether there was room.
    pub fn send(&self, notification: Bytes) -> bool {
        match &self.0 {
            Reader::Request(sender) => sender.try_send(notification).is_ok(),
            Reader::Park(park) => park.way().is_some_and(|way| way.sink.send(notification)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ERA-1: only what a modern client asks may be parked, only where it may be asked something, and only if it
    /// declared that it can be or comes back with a state.
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
