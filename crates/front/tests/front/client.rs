//! A small HTTP client over real sockets, and a front to talk to.

use std::net::SocketAddr;
use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_front::{Authenticator, Body, Routes, Token, Workers, authenticator, router, serve};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::fake::Fake;

/// A running front.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) serving: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start(fake: &Fake) -> Self {
        Self::with(fake, HttpSettings::default(), None).await
    }

    pub(crate) async fn with(fake: &Fake, settings: HttpSettings, token: Option<Token>) -> Self {
        let authenticator = authenticator(&settings, token);
        Self::known_by(fake, settings, authenticator).await
    }

    /// A front with this authenticator.
    pub(crate) async fn known_by(
        fake: &Fake,
        settings: HttpSettings,
        authenticator: Box<dyn Authenticator>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let router = router(fake.clone(), &settings, authenticator, shutdown.clone());
        // One thread besides this one: every other connection is handed over.
        let workers = Workers::start(1).unwrap();
        let (ending, routes) = (shutdown.clone(), router);
        let serving = tokio::spawn(async move { serve(listener, routes, &workers, ending).await });
        Self { address, shutdown, serving }
    }

    /// A request with the headers that every POST needs; `headers` replace and add, an empty value removes.
    pub(crate) async fn open(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Exchange {
        let host = self.address.to_string();
        let mut all = vec![("host", host.as_str()), ("accept", "application/json, text/event-stream")];
        if method == "POST" {
            all.push(("content-type", "application/json"));
        }
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)));
        all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
        let mut request = Request::builder().method(method).uri("/mcp");
        for (name, value) in all {
            request = request.header(name, value);
        }
        self.exchange(request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap()).await
    }

    pub(crate) async fn exchange(&self, request: Request<Full<Bytes>>) -> Exchange {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            let _ = connection.await;
        }));
        let response = tokio::time::timeout(Duration::from_secs(60), sender.send_request(request)).await;
        Exchange { response: response.expect("an answer in time").unwrap(), _connection: connection }
    }

    pub(crate) async fn send(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.open(method, headers, body).await.answer().await
    }

    pub(crate) async fn post(&self, headers: &[(&str, &str)], body: &str) -> Answer {
        self.send("POST", headers, body).await
    }

    /// A modern request with the headers that mirror `method` and `name`.
    pub(crate) async fn modern(&self, method: &str, name: &str, body: &str) -> Answer {
        self.post(&mirrored(method, name), body).await
    }

    /// Opens a legacy session and gives its id.
    pub(crate) async fn session(&self, revision: &str) -> String {
        let answer = self.post(&[], &crate::fake::initialize("0", revision)).await;
        assert_eq!(answer.json()["result"]["protocolVersion"], revision);
        let id = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let told = crate::fake::told("notifications/initialized", "");
        assert_eq!(self.post(&[("mcp-session-id", &id)], &told).await.status, 202);
        id
    }

    pub(crate) async fn in_session(&self, session: &str, body: &str) -> Answer {
        self.post(&[("mcp-session-id", session)], body).await
    }
}

/// A front without sockets. Nothing happens that the runtime does not know of, so the clock can be paused: a wait in vain
/// fails at once.
pub(crate) struct Direct {
    routes: Routes<Fake>,
    pub(crate) shutdown: CancellationToken,
}

impl Direct {
    pub(crate) fn start(fake: &Fake) -> Self {
        Self::known_by(fake, authenticator(&HttpSettings::default(), None))
    }

    pub(crate) fn known_by(fake: &Fake, authenticator: Box<dyn Authenticator>) -> Self {
        let shutdown = CancellationToken::new();
        let routes = router(fake.clone(), &HttpSettings::default(), authenticator, shutdown.clone());
        Self { routes, shutdown }
    }

    /// An answer whose body is still to be read; dropping it is a disconnect.
    pub(crate) async fn open(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Response<Body> {
        let mut request = Request::builder().method(method).uri("/mcp");
        let common = [("host", "localhost"), ("accept", "*/*"), ("content-type", "application/json")];
        for (name, value) in common.iter().chain(headers) {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(60), self.routes.answer(request)).await;
        answer.expect("an answer in time")
    }

    pub(crate) async fn send(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let (parts, body) = self.open(method, headers, body).await.into_parts();
        let body = tokio::time::timeout(Duration::from_secs(60), body.collect()).await;
        let bytes = body.expect("the body ends in time").unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: parts.status, headers: parts.headers, text }
    }

    /// Opens a legacy session and gives its id.
    pub(crate) async fn session(&self, revision: &str) -> String {
        let answer = self.send("POST", &[], &crate::fake::initialize("0", revision)).await;
        answer.headers["mcp-session-id"].to_str().unwrap().to_owned()
    }
}

/// The next piece of a body; nothing at its end.
pub(crate) async fn piece(body: &mut Body) -> Option<String> {
    let frame = tokio::time::timeout(Duration::from_secs(60), body.frame()).await;
    let frame = frame.expect("more of the body in time")?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

/// The headers of a modern request.
pub(crate) fn mirrored<'a>(method: &'a str, name: &'a str) -> Vec<(&'static str, &'a str)> {
    let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
    if !name.is_empty() {
        headers.push(("mcp-name", name));
    }
    headers
}

/// An answer whose body is still to be read; dropping it closes the connection.
pub(crate) struct Exchange {
    pub(crate) response: Response<Incoming>,
    _connection: AbortOnDropHandle<()>,
}

impl Exchange {
    pub(crate) async fn answer(self) -> Answer {
        let (parts, body) = self.response.into_parts();
        let body = tokio::time::timeout(Duration::from_secs(60), body.collect()).await;
        let bytes = body.expect("the body ends in time").unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: parts.status, headers: parts.headers, text }
    }

    /// The next piece of the body; nothing at its end.
    pub(crate) async fn next(&mut self) -> Option<String> {
        let frame = tokio::time::timeout(Duration::from_secs(60), self.response.frame()).await;
        let frame = frame.expect("more of the body in time")?;
        Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_str(&self.text).unwrap()
    }

    /// The messages of an event stream.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{self:?}");
        events(&self.text)
    }

    /// Status, code and id of an error answer.
    pub(crate) fn error(&self) -> (u16, i64, Option<String>) {
        let id = crate::fake::id_of(&self.text);
        (self.status.as_u16(), crate::fake::code_of(&self.json()), id)
    }
}

/// The messages in the text of an event stream.
pub(crate) fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| !data.is_empty())
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}
