//! Sends requests to a running gateway over streamable HTTP: one per connection, over plain TCP or its control socket.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bridgehead::ByteStream;
use bridgehead::config::Secret;
use bridgehead::control::Instance;
use bridgehead_front::ENDPOINT;
use bridgehead_wire::{EventBuffer, Message, Method, Raw, Revision, encode_header_value};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};

use super::request::AskError;

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// A running gateway in another process.
#[derive(Debug)]
pub(crate) struct Remote {
    authority: String,
    address: Address,
    path: String,
    token: Option<Secret>,
}

/// Where it listens.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    Tcp(String, u16),
    Socket(PathBuf),
}

impl Address {
    async fn connect(&self) -> io::Result<Box<dyn ByteStream>> {
        Ok(match self {
            Self::Tcp(host, port) => Box::new(TcpStream::connect((host.as_str(), *port)).await?),
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

impl Remote {
    /// Parses the address. Without a path it means the usual endpoint.
    pub(crate) fn new(url: &str, token: Option<Secret>) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| format!("`{url}` is not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("https is not supported yet; use http on a trusted network".to_owned());
            }
            _ => return Err(format!("`{url}` is not a URL that begins with http://")),
        }
        let authority = uri.authority().ok_or_else(|| format!("`{url}` names no host"))?;
        if authority.as_str().contains('@') {
            return Err("a URL must not carry credentials; use --token".to_owned());
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(Self {
            address: Address::Tcp(host, authority.port_u16().unwrap_or(80)),
            path: if path == "/" { ENDPOINT.to_owned() } else { path.to_owned() },
            authority: authority.to_string(),
            token,
        })
    }

    /// A gateway of this user, by its control socket.
    pub(crate) fn at_socket(instance: &Instance) -> Self {
        Self {
            authority: "localhost".to_owned(),
            address: Address::Socket(instance.socket.clone()),
            path: ENDPOINT.to_owned(),
            token: None,
        }
    }

    /// Sends one modern request and waits for its answer.
    pub(crate) async fn ask(
        &self,
        method: &Method,
        params: &str,
        headers: &[(String, String)],
        on_progress: &mut impl FnMut(&Value),
    ) -> Result<Raw, AskError> {
        let response = self.send(method, params, headers).await?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            let cure = "it requires a bearer token; pass --token or set BRIDGEHEAD_HTTP_TOKEN";
            return Err(self.unreachable(cure));
        }
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let mut events = Events::new(response.into_body(), is_stream);
        while let Some(message) = events.next().await.map_err(|reason| self.lost(reason))? {
            match Message::parse(&message) {
                Ok(Message::Response(answer)) => return answer.outcome.map_err(AskError::Answered),
                Ok(Message::Notification(told)) if told.method == Method::Progress => {
                    let params = told.params.and_then(|params| params.decode().ok()).unwrap_or_default();
                    on_progress(&params);
                }
                Ok(_) => {}
                Err(_) if status.is_success() => {
                    return Err(self.unreachable("its answer is not MCP"));
                }
                Err(_) => break,
            }
        }
        Err(match status.is_success() {
            true => self.lost("it ended before the answer".to_owned()),
            false => self.unreachable(&format!("it answered with HTTP status {status}")),
        })
    }

    async fn send(
        &self,
        method: &Method,
        params: &str,
        headers: &[(String, String)],
    ) -> Result<Response<Incoming>, AskError> {
        let failed =
            |reason: String| AskError::Unreachable(format!("cannot reach {}: {reason}", self.name()));
        let stream = tokio::time::timeout(CONNECT_WITHIN, self.address.connect())
            .await
            .map_err(|_| failed(format!("no connection within {CONNECT_WITHIN:?}")))?
            .map_err(|error| failed(error.to_string()))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(error.to_string()))?;
        tokio::spawn(connection);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let mut request = Request::post(self.path.as_str())
            .header(HOST, self.authority.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .header("mcp-protocol-version", Revision::MODERN.as_str())
            .header("mcp-method", method.as_str());
        if let (Some(member), Ok(value)) = (method.named_by(), serde_json::from_str::<Value>(params)) {
            let named = value[member].as_str().unwrap_or_default();
            request = request.header("mcp-name", encode_header_value(named));
        }
        for (name, value) in headers {
            request = request.header(name, encode_header_value(value));
        }
        if let Some(token) = &self.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(|_| failed("the token has characters that a header cannot carry".to_owned()))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request =
            request.body(Full::new(Bytes::from(body))).map_err(|error| failed(error.to_string()))?;
        sender.send_request(request).await.map_err(|error| match error.is_canceled() {
            true => failed(error.to_string()),
            false => self.lost(error.to_string()),
        })
    }

    fn lost(&self, reason: String) -> AskError {
        AskError::Lost { gateway: self.name(), reason }
    }

    fn unreachable(&self, reason: &str) -> AskError {
        AskError::Unreachable(format!("cannot use the gateway at {}: {reason}", self.name()))
    }

    /// Its name in messages.
    fn name(&self) -> String {
        match &self.address {
            Address::Tcp(..) => self.authority.clone(),
            Address::Socket(path) => path.display().to_string(),
        }
    }
}

/// The messages of a body: its one JSON text, or the data of its events.
struct Events {
    body: Incoming,
    is_stream: bool,
    events: EventBuffer,
    text: BytesMut,
    read: usize,
    done: bool,
}

impl Events {
    fn new(body: Incoming, is_stream: bool) -> Self {
        Self { body, is_stream, events: EventBuffer::new(), text: BytesMut::new(), read: 0, done: false }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            match self.events.next_event() {
                // Some servers open a stream with an empty event.
                Some(event) if event.data.is_empty() => continue,
                Some(event) => return Ok(Some(event.data)),
                None => {}
            }
            if self.done {
                return Ok(None);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.read += bytes.len();
                        if self.is_stream {
                            self.events.push(bytes);
                        } else {
                            self.text.extend_from_slice(&bytes);
                        }
                    }
                }
                Some(Err(error)) => return Err(error.to_string()),
                None => {
                    self.done = true;
                    if !self.text.is_empty() {
                        return Ok(Some(self.text.split().freeze()));
                    }
                }
            }
            if self.read > MAX_ANSWER_BYTES {
                return Err(format!("its answer is larger than {MAX_ANSWER_BYTES} bytes"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        #[track_caller]
        fn check(url: &str, expected: Result<(&str, u16, &str), &str>) {
            let remote = Remote::new(url, None);
            let found = remote.map(|remote| (remote.address, remote.path));
            let expected =
                expected.map(|(host, port, path)| (Address::Tcp(host.to_owned(), port), path.to_owned()));
            assert_eq!(found, expected.map_err(str::to_owned));
        }
        check("http://127.0.0.1:4848", Ok(("127.0.0.1", 4848, "/mcp")));
        check("http://localhost/", Ok(("localhost", 80, "/mcp")));
        check("http://[::1]:9/other?x=1", Ok(("::1", 9, "/other?x=1")));
        check("https://host/mcp", Err("https is not supported yet; use http on a trusted network"));
        check("host:80", Err("`host:80` is not a URL that begins with http://"));
        check("not a url", Err("`not a url` is not a URL"));
        check("http://me:secret@host/", Err("a URL must not carry credentials; use --token"));
    }
}
