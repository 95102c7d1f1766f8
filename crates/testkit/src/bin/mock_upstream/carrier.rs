//! The same server on a loopback port: streamable HTTP, HTTP+SSE or WebSocket.
//!
//! One thread per connection, and only what a small server does: plain HTTP/1.1, bodies of known length in, chunked
//! event streams out. The first line on standard output is the address.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use bridgehead_testkit::{Carrier, MODERN_REVISION};
use parking_lot::Mutex;
use serde_json::Value;

use crate::output::Output;
use crate::server::{Server, aside};
use crate::transcript::Transcript;

/// How often the thread of a silent connection polls.
const LOOK: Duration = Duration::from_millis(20);

/// State that all connections share.
struct Port {
    server: Arc<Server>,
    transcript: Transcript,
    /// The sessions of streamable HTTP.
    sessions: Mutex<HashSet<String>>,
    /// The streams of HTTP+SSE, by session.
    streams: Mutex<HashMap<String, Sender<String>>>,
    next_session: Mutex<u64>,
}

struct Request {
    method: String,
    target: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// Serves forever.
pub(crate) fn serve(
    server: &Arc<Server>,
    carrier: Carrier,
    transcript: &Transcript,
) -> std::io::Result<Infallible> {
    let listener = TcpListener::bind(("127.0.0.1", server.script.port))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening {}", listener.local_addr()?)?;
    out.flush()?;
    drop(out);
    let port = Arc::new(Port {
        server: Arc::clone(server),
        transcript: transcript.clone(),
        sessions: Mutex::default(),
        streams: Mutex::default(),
        next_session: Mutex::new(0),
    });
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let port = Arc::clone(&port);
        aside(move || {
            // A client may disconnect at any time.
            let _ = match carrier {
                Carrier::Http => port.http(stream, Port::streamable),
                Carrier::Sse => port.http(stream, Port::sse),
                Carrier::WebSocket => port.websocket(stream),
            };
        });
    }
}

impl Port {
    fn http(
        &self,
        stream: TcpStream,
        answer: fn(&Self, &Request, &mut TcpStream) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut out = stream.try_clone()?;
        let mut input = BufReader::new(stream);
        while let Some(request) = read(&mut input)? {
            if !request.body.is_empty() {
                self.transcript.note(&request.body);
            }
            answer(self, &request, &mut out)?;
        }
        Ok(())
    }

    fn mint(&self) -> String {
        let mut next = self.next_session.lock();
        *next += 1;
        format!("session-{next}")
    }

    fn streamable(&self, request: &Request, out: &mut TcpStream) -> std::io::Result<()> {
        let modern = request.header("mcp-protocol-version") == MODERN_REVISION;
        let session = request.header("mcp-session-id");
        let known = self.sessions.lock().contains(session);
        match request.method.as_str() {
            "DELETE" if known => {
                self.sessions.lock().remove(session);
                return reply(out, "200 OK", "", "");
            }
            "GET" if known => {
                let (sender, messages) = channel();
                self.server.output.add(sender);
                return stream(out, "", None, &messages);
            }
            "POST" => {}
            _ => return reply(out, "405 Method Not Allowed", "", ""),
        }
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default();
        let shakes = method == "initialize";
        if !modern && !shakes && !known {
            let status = if session.is_empty() { "400 Bad Request" } else { "404 Not Found" };
            return reply(out, status, "content-type: text/plain\r\n", "no such session");
        }
        let (sender, messages) = channel();
        let output = Output::reader(sender);
        self.server.receive(&request.body, &output);
        if message["id"].is_null() || method.is_empty() {
            return reply(out, "202 Accepted", "", "");
        }
        // A call on another thread has its own output; when all outputs are dropped, no more messages come.
        drop(output);
        let id = message["id"].to_string();
        let Some(first) = self.first(&messages, out, &id, modern) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let head: Value = serde_json::from_str(&first).unwrap_or_default();
        if !answers(&head, &id) {
            let ended = stream(out, &first, Some(&id), &messages);
            if ended.is_err() && modern {
                self.server.cancel(&id);
            }
            return ended;
        }
        let mut headers = "content-type: application/json\r\n".to_owned();
        if shakes && head["result"].is_object() {
            let session = self.mint();
            headers += &format!("mcp-session-id: {session}\r\n");
            self.sessions.lock().insert(session);
        }
        let status = match head["error"]["code"].as_i64() {
            Some(-32601) if modern => "404 Not Found",
            Some(-32021) if modern => "400 Bad Request",
            Some(-32602 | -32022..=-32020) if modern && method == "server/discover" => "400 Bad Request",
            _ => "200 OK",
        };
        reply(out, status, &headers, &first)
    }

    /// The first message for a request; `None` if the client disconnected first.
    fn first(
        &self,
        messages: &Receiver<String>,
        out: &mut TcpStream,
        id: &str,
        modern: bool,
    ) -> Option<String> {
        loop {
            match messages.recv_timeout(LOOK) {
                Ok(message) => return Some(message),
                Err(error) => {
                    if is_gone(out) {
                        if modern {
                            self.server.cancel(id);
                        }
                        return None;
                    }
                    if error == RecvTimeoutError::Disconnected {
                        std::thread::sleep(LOOK);
                    }
                }
            }
        }
    }

    fn sse(&self, request: &Request, out: &mut TcpStream) -> std::io::Result<()> {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        match (request.method.as_str(), path) {
            ("GET", "/sse") => {
                let session = self.mint();
                let (sender, messages) = channel();
                self.server.output.add(sender.clone());
                self.streams.lock().insert(session.clone(), sender);
                head(out)?;
                chunk(out, &format!("event: endpoint\ndata: /messages?{session}\n\n"))?;
                events(out, None, &messages)
            }
            ("POST", "/messages") => {
                let Some(sender) = self.streams.lock().get(query).cloned() else {
                    return reply(out, "404 Not Found", "", "");
                };
                reply(out, "202 Accepted", "", "")?;
                self.server.receive(&request.body, &Output::reader(sender));
                Ok(())
            }
            (_, "/sse") => reply(out, "405 Method Not Allowed", "", ""),
            _ => reply(out, "404 Not Found", "", ""),
        }
    }

    fn websocket(&self, stream: TcpStream) -> std::io::Result<()> {
        let Ok(mut socket) = tungstenite::accept(stream) else { return Ok(()) };
        // One thread for both directions: it reads what has arrived, then sends what is queued.
        socket.get_mut().set_read_timeout(Some(LOOK))?;
        let (sender, messages) = channel();
        self.server.output.add(sender.clone());
        let output = Output::reader(sender);
        loop {
            match socket.read() {
                Ok(tungstenite::Message::Text(text)) => {
                    self.transcript.note(text.as_bytes());
                    self.server.receive(text.as_bytes(), &output);
                }
                Ok(tungstenite::Message::Close(_)) => {
                    let _ = socket.flush();
                    return Ok(());
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error))
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return Ok(()),
            }
            for message in messages.try_iter() {
                if socket.send(tungstenite::Message::text(message)).is_err() {
                    return Ok(());
                }
            }
        }
    }
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

fn read(input: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some(Request { method, target, headers, body }))
}

/// Whether a message is the answer to the request `id`.
fn answers(message: &Value, id: &str) -> bool {
    let theirs = message["id"].to_string();
    theirs == id && message["method"].is_null()
}

fn is_gone(out: &TcpStream) -> bool {
    let _ = out.set_nonblocking(true);
    let gone = match out.peek(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    let _ = out.set_nonblocking(false);
    gone
}

fn reply(out: &mut TcpStream, status: &str, headers: &str, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    out.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

fn head(out: &mut TcpStream) -> std::io::Result<()> {
    out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
}

fn chunk(out: &mut TcpStream, text: &str) -> std::io::Result<()> {
    out.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

/// An event stream that begins with `first` and ends after the answer to `id`.
fn stream(
    out: &mut TcpStream,
    first: &str,
    id: Option<&str>,
    messages: &Receiver<String>,
) -> std::io::Result<()> {
    head(out)?;
    if !first.is_empty() {
        chunk(out, &format!("event: message\ndata: {first}\n\n"))?;
    }
    events(out, id, messages)
}

fn events(out: &mut TcpStream, id: Option<&str>, messages: &Receiver<String>) -> std::io::Result<()> {
    loop {
        match messages.recv_timeout(LOOK) {
            Ok(message) => {
                chunk(out, &format!("event: message\ndata: {message}\n\n"))?;
                let ends = id.is_some_and(|id| {
                    serde_json::from_str::<Value>(&message).is_ok_and(|message| answers(&message, id))
                });
                if ends {
                    return out.write_all(b"0\r\n\r\n");
                }
            }
            Err(error) => {
                if is_gone(out) {
                    return Err(ErrorKind::BrokenPipe.into());
                }
                if error == RecvTimeoutError::Disconnected {
                    std::thread::sleep(LOOK);
                }
            }
        }
    }
}
