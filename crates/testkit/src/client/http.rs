//! Single HTTP exchanges on loopback, read whole or as a stream of events.
//!
//! Every exchange has its own connection, closed with the reply: dropping an [`HttpStream`] disconnects the client.
//! Malformed requests, which libraries refuse to send, go through [`HttpClient::exchange_bytes`].

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{modern_headers, modern_params, patiently};

/// A client for one address.
#[derive(Debug, Clone, Copy)]
pub struct HttpClient {
    address: SocketAddr,
}

/// A complete reply.
#[derive(Debug, Clone)]
pub struct HttpReply {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// The events in it, if it is an event stream.
    pub events: Vec<SseEvent>,
}

/// A reply whose body is still arriving.
#[derive(Debug)]
pub struct HttpStream {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
    parser: SseParser,
    // Keeps the connection open exactly as long as the stream.
    _sender: http1::SendRequest<Full<Bytes>>,
}

/// One event of an event stream, or a comment in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The data, its lines joined.
    pub data: String,
    /// The id, if one was given.
    pub id: Option<String>,
    /// The type, if one was given.
    pub event: Option<String>,
    /// The text of a comment, such as a keep-alive; the other fields are then empty.
    pub comment: Option<String>,
}

impl HttpClient {
    /// A client for this address.
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Posts a body. Adds the content type and the accept header if they are missing.
    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> HttpReply {
        self.open_post(path, headers, body).await.finish().await
    }

    /// Posts a modern request, id 1, with its envelope and headers.
    pub async fn post_modern(&self, path: &str, method: &str, params: Value) -> HttpReply {
        self.open_modern(path, method, params).await.finish().await
    }

    /// Gets a path with these headers only.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpReply {
        self.open(Method::GET, path, headers, Bytes::new()).await.finish().await
    }

    /// Deletes a path with these headers only.
    pub async fn delete(&self, path: &str, headers: &[(&str, &str)]) -> HttpReply {
        self.open(Method::DELETE, path, headers, Bytes::new()).await.finish().await
    }

    /// Like [`HttpClient::post`], to be read event by event.
    pub async fn open_post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> HttpStream {
        let mut all = headers.to_vec();
        for (name, value) in
            [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
        {
            if !headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
                all.push((name, value));
            }
        }
        self.open(Method::POST, path, &all, body).await
    }

    /// Like [`HttpClient::post_modern`], to be read event by event.
    pub async fn open_modern(&self, path: &str, method: &str, params: Value) -> HttpStream {
        let params = modern_params(params);
        let headers = modern_headers(method, &params);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.open_post(path, &headers, body.to_string()).await
    }

    /// Sends a request with these headers, the host and the body's length, and nothing else. Returns once the head of
    /// the reply has arrived.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> HttpStream {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a path");
        for (name, value) in headers {
            let name = HeaderName::try_from(*name).expect("a header name");
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header value");
            request.headers_mut().append(name, value);
        }
        if !request.headers().contains_key("host") {
            let host = HeaderValue::try_from(self.address.to_string()).expect("an address is a host");
            request.headers_mut().insert("host", host);
        }
        patiently("the head of the reply", async {
            let stream = TcpStream::connect(self.address).await.expect("a server that listens");
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.expect("a connection");
            // The connection ends when the stream below is dropped.
            tokio::spawn(connection);
            let (head, body) = sender.send_request(request).await.expect("a reply").into_parts();
            HttpStream {
                status: head.status.as_u16(),
                headers: head.headers,
                body,
                parser: SseParser::default(),
                _sender: sender,
            }
        })
        .await
    }

    /// Sends raw bytes and returns everything that arrives until the server closes.
    pub async fn exchange_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        patiently("the exchange", async {
            let mut stream = TcpStream::connect(self.address).await.expect("a server that listens");
            let mut reply = Vec::new();
            // A server may refuse and close before it has read everything; only its reply counts.
            let _ = stream.write_all(bytes).await;
            let _ = stream.read_to_end(&mut reply).await;
            reply
        })
        .await
    }
}

impl HttpReply {
    /// A header's text, if present.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", String::from_utf8_lossy(&self.body)))
    }

    /// The answer, from the body or from the last event.
    pub fn answer(&self) -> Value {
        match self.events.iter().rfind(|event| !event.data.is_empty()) {
            Some(event) => event.json(),
            None => self.json(),
        }
    }
}

impl HttpStream {
    /// A header's text, if present.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The next event or comment; `None` at the end of the stream.
    pub async fn next_event(&mut self) -> Option<SseEvent> {
        patiently("an event", async {
            loop {
                if let Some(event) = self.parser.next_event() {
                    return Some(event);
                }
                let bytes = next_bytes(&mut self.body).await?;
                self.parser.push(&bytes);
            }
        })
        .await
    }

    /// The next event that carries JSON; `None` at the end of the stream.
    pub async fn next_message(&mut self) -> Option<Value> {
        loop {
            let event = self.next_event().await?;
            if !event.data.is_empty() {
                return Some(event.json());
            }
        }
    }

    /// Reads the rest. Events taken before are not in the reply.
    pub async fn finish(mut self) -> HttpReply {
        let stream = self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let mut body = std::mem::take(&mut self.parser.rest);
        patiently("the rest of the reply", async {
            while let Some(bytes) = next_bytes(&mut self.body).await {
                body.extend_from_slice(&bytes);
            }
        })
        .await;
        let mut events = Vec::new();
        if stream {
            let mut parser = SseParser::default();
            parser.push(&body);
            events.extend(std::iter::from_fn(|| parser.next_event()));
        }
        HttpReply { status: self.status, headers: self.headers, body: body.into(), events }
    }
}

impl SseEvent {
    /// The data as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.data))
    }
}

/// Splits a stream of bytes into events.
#[derive(Debug, Default)]
struct SseParser {
    rest: Vec<u8>,
}

impl SseParser {
    fn push(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes.iter().filter(|byte| **byte != b'\r'));
    }

    /// An event ends with an empty line, a comment with its own line.
    fn next_event(&mut self) -> Option<SseEvent> {
        let mut event = SseEvent::default();
        let mut data: Vec<String> = Vec::new();
        let (mut read, mut any) = (0, false);
        while let Some(length) = self.rest[read..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.rest[read..read + length]).into_owned();
            read += length + 1;
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "" if line.is_empty() && !any => {}
                "" if line.is_empty() => {
                    self.rest.drain(..read);
                    event.data = data.join("\n");
                    return Some(event);
                }
                "" if !any => {
                    self.rest.drain(..read);
                    return Some(SseEvent { comment: Some(value), ..SseEvent::default() });
                }
                "data" => data.push(value),
                "id" => event.id = Some(value),
                "event" => event.event = Some(value),
                _ => {}
            }
            any = any || !line.is_empty();
        }
        None
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The next chunk of a body; a broken connection ends it like a clean end.
async fn next_bytes(body: &mut Incoming) -> Option<Bytes> {
    loop {
        match body.frame().await?.ok()?.into_data() {
            Ok(bytes) => return Some(bytes),
            Err(_trailers) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_events_wherever_the_bytes_are_cut() {
        let text = ": alive\r\n\r\nid: 7\ndata: {\"a\":\ndata: 1}\n\nevent: x\ndata:\n\ndata: half";
        let expected = [
            SseEvent { comment: Some("alive".into()), ..SseEvent::default() },
            SseEvent { id: Some("7".into()), data: "{\"a\":\n1}".into(), ..SseEvent::default() },
            SseEvent { event: Some("x".into()), ..SseEvent::default() },
        ];
        for size in [1, 2, 7, text.len()] {
            let mut parser = SseParser::default();
            let mut events = Vec::new();
            for bytes in text.as_bytes().chunks(size) {
                parser.push(bytes);
                events.extend(std::iter::from_fn(|| parser.next_event()));
            }
            assert_eq!(events, expected, "in pieces of {size}");
        }
    }
}
