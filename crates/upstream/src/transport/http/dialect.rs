//! The dialect of a server, and its requests as bytes.
//!
//! The head of a POST is prepared once and copied into each request. It includes the credentials: when these change
//! it is prepared again, and checking that takes one pointer comparison.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use bridgehead_config::{Proxy, Remote as Settings, Url};
use bridgehead_wire::Revision;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::body::{self, Mirrored};
use super::wire::{self, Request};
use super::{BOTH, EVENTS, JSON, LAST_EVENT_ID, SESSION, VERSION};
use crate::transport::credentials::CredentialHeaders;
use crate::transport::proxy;

/// How the gateway speaks to the server.
#[derive(Clone)]
pub(super) struct Dialect {
    pub(super) speech: Speech,
    /// The request target for messages.
    target: String,
    /// Whether the target is an absolute address, because a proxy carries the requests.
    whole: bool,
    host: HeaderValue,
    /// For the proxy that carries the requests.
    proxy_authorization: Option<HeaderValue>,
    /// The negotiated revision, if there is one.
    revision: Option<Revision>,
    session: Option<HeaderValue>,
    presented: CredentialHeaders,
    /// The headers of every request, made from all of the above.
    headers: HeaderMap,
    /// The beginning of every POST's head.
    post: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speech {
    /// Stateless: the answer is the response, and closing the response cancels.
    Modern,
    /// A handshake, maybe a session; the answer is the response.
    Streamable,
    /// A handshake; answers arrive on the one event stream.
    Sse,
}

/// A request before it is written, independent of credentials and redirects.
pub(super) enum Draft {
    /// A message, with the parts that are repeated in headers.
    Message { mirrored: Option<Mirrored>, body: Bytes, sends: AtomicU32 },
    /// Opens an event stream, from where the last one broke off.
    Stream { last_id: Option<HeaderValue> },
    /// Ends the session.
    End,
}

impl fmt::Debug for Dialect {
    /// Shows no header: they may be credentials.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Dialect").field("speech", &self.speech).finish_non_exhaustive()
    }
}

impl Draft {
    pub(super) const fn message(mirrored: Option<Mirrored>, body: Bytes) -> Self {
        Self::Message { mirrored, body, sends: AtomicU32::new(0) }
    }

    /// Notes that the server got the message once more, whatever it answered.
    pub(super) fn reached(&self) {
        if let Self::Message { sends, .. } = self {
            sends.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often the server got the message.
    pub(super) fn sends(&self) -> u32 {
        match self {
            Self::Message { sends, .. } => sends.load(Ordering::Relaxed),
            Self::Stream { .. } | Self::End => 0,
        }
    }

    pub(super) fn stream(last_id: Option<&str>) -> Self {
        Self::Stream { last_id: last_id.and_then(|id| HeaderValue::from_str(id).ok()) }
    }
}

impl Dialect {
    /// The modern dialect, without credentials.
    pub(super) fn new(settings: &Settings) -> Self {
        let whole = is_carried(&settings.url, settings.proxy.as_ref());
        let host = HeaderValue::from_str(&settings.url.authority());
        let dialect = Self {
            speech: Speech::Modern,
            target: target(&settings.url, whole),
            whole,
            host: host.unwrap_or(HeaderValue::from_static("")),
            proxy_authorization: settings.proxy.as_ref().filter(|_| whole).and_then(proxy::authorization),
            revision: Some(Revision::MODERN),
            session: None,
            presented: CredentialHeaders::default(),
            headers: HeaderMap::new(),
            post: Bytes::new(),
        };
        dialect.prepared()
    }

    /// For a handshake: no version is negotiated yet.
    pub(super) fn shaking(mut self) -> Self {
        (self.speech, self.revision, self.session) = (Speech::Streamable, None, None);
        self.prepared()
    }

    pub(super) fn agreed(mut self, revision: Revision, session: Option<HeaderValue>) -> Self {
        (self.revision, self.session) = (Some(revision), session);
        self.prepared()
    }

    pub(super) fn at(mut self, url: &Url) -> Self {
        self.speech = Speech::Sse;
        self.target = target(url, self.whole);
        self.prepared()
    }

    /// The same with other credentials.
    pub(super) fn presenting(&self, presented: &CredentialHeaders) -> Self {
        Self { presented: presented.clone(), ..self.clone() }.prepared()
    }

    pub(super) fn presents(&self, presented: &CredentialHeaders) -> bool {
        self.presented.is_same(presented)
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    fn prepared(mut self) -> Self {
        let mut headers = HeaderMap::with_capacity(16);
        headers.insert(header::HOST, self.host.clone());
        headers.insert(header::CONTENT_TYPE, JSON);
        headers.insert(header::ACCEPT, BOTH);
        headers.extend(self.presented.iter());
        // Only the gateway sets the headers that frame a message.
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::TRANSFER_ENCODING);
        if let Some(value) = &self.proxy_authorization {
            headers.insert(header::PROXY_AUTHORIZATION, value.clone());
        }
        let version = self.revision.map(|revision| HeaderValue::from_static(revision.as_str()));
        for (name, value) in [(VERSION, version), (SESSION, self.session.clone())] {
            match value {
                Some(value) => headers.insert(name, value),
                None => headers.remove(name),
            };
        }
        // These headers differ for each request.
        headers.remove(&body::METHOD);
        headers.remove(&body::NAME);
        let mut head = BytesMut::new();
        self.begin(&mut head, "POST", &headers);
        (self.headers, self.post) = (headers, head.freeze());
        self
    }

    /// Writes the head of a request without the final empty line.
    fn begin(&self, out: &mut BytesMut, method: &str, headers: &HeaderMap) {
        let target = if self.target.is_empty() { "/" } else { &self.target };
        for part in [method, " ", target, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        headers.iter().for_each(|(name, value)| put_header(out, name, value));
    }

    /// A request as bytes.
    pub(super) fn write(&self, draft: &Draft) -> Request {
        match draft {
            Draft::Message { mirrored, body, .. } => self.post(mirrored.as_ref(), body),
            Draft::Stream { last_id } => {
                let mut headers = self.headers.clone();
                headers.insert(header::ACCEPT, EVENTS);
                headers.remove(header::CONTENT_TYPE);
                if let Some(id) = last_id {
                    headers.insert(LAST_EVENT_ID, id.clone());
                }
                self.bare("GET", &headers)
            }
            Draft::End => self.bare("DELETE", &self.headers),
        }
    }

    /// A request without a body.
    fn bare(&self, method: &str, headers: &HeaderMap) -> Request {
        let mut head = BytesMut::new();
        self.begin(&mut head, method, headers);
        head.extend_from_slice(b"\r\n");
        Request::new(head, &Bytes::new())
    }

    fn post(&self, mirrored: Option<&Mirrored>, body: &Bytes) -> Request {
        let mut head = BytesMut::with_capacity(self.post.len() + 256 + body.len().min(wire::COPIED));
        head.extend_from_slice(&self.post);
        for (name, value) in mirrored.into_iter().flat_map(Mirrored::headers) {
            // The request's own value wins over a configured one.
            if self.headers.contains_key(name) {
                let mut headers = self.headers.clone();
                headers.extend(
                    mirrored.into_iter().flat_map(Mirrored::headers).map(|(n, v)| (n.clone(), v.clone())),
                );
                head.clear();
                self.begin(&mut head, "POST", &headers);
                break;
            }
            put_header(&mut head, name, value);
        }
        put_header(&mut head, &header::CONTENT_LENGTH, &HeaderValue::from(body.len()));
        head.extend_from_slice(b"\r\n");
        Request::new(head, body)
    }
}

/// Whether requests go to the proxy itself.
pub(super) fn is_carried(url: &Url, proxy: Option<&Proxy>) -> bool {
    proxy.is_some() && proxy::carries(url)
}

/// The request target for an address.
pub(super) fn target(url: &Url, whole: bool) -> String {
    if whole { url.expose() } else { url.target().to_owned() }
}

fn put_header(out: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        out.extend_from_slice(part);
    }
}
