//! A minimal HTTP/1.1 client for the load: one request at a time on a kept connection, and only answers with a
//! `Content-Length`.
//!
//! There is an asynchronous client for the load, and a blocking one for the work before and after it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as BlockingStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::request::{Ask, Era, Template, digits};

/// The timeout of the blocking client for a read or a write.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many bytes at either end of a message are searched for its id.
const EDGE: usize = 64;
/// The initial size of the buffer for an answer.
const ROOM: usize = 16 * 1024;

/// The parsed head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    status: u16,
    /// Where the body begins.
    body_at: usize,
    length: usize,
    session: Option<String>,
}

impl Head {
    /// Parses the head; `None` if it has not arrived completely.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let status = bytes.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let mut head = Self {
            status: status.context("an answer without a status")?,
            body_at: end + 4,
            length: 0,
            session: None,
        };
        let mut length = None;
        for line in bytes[..end].split(|byte| *byte == b'\n').skip(1) {
            let Some(colon) = memchr::memchr(b':', line) else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                length = std::str::from_utf8(value)?.parse().ok();
            } else if name.eq_ignore_ascii_case(b"mcp-session-id") {
                head.session = Some(String::from_utf8(value.to_vec())?);
            }
        }
        head.length = match (length, head.status) {
            (Some(length), _) => length,
            (None, 202 | 204) => 0,
            (None, status) => bail!("an answer with status {status} has no Content-Length"),
        };
        Ok(Some(head))
    }

    fn end(&self) -> usize {
        self.body_at + self.length
    }
}

/// A connection of the load.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; ROOM] })
    }

    /// Sends a request and returns the body of its answer, whose status must be 200.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request).await.context("cannot send")?;
        let (mut filled, mut head) = (0, None);
        loop {
            let count = self.stream.read(&mut self.buffer[filled..]).await.context("cannot receive")?;
            ensure!(count > 0, "the connection was closed in the middle of an answer");
            filled += count;
            if head.is_none() {
                head = Head::read(&self.buffer[..filled])?;
            }
            if let Some(head) = &head {
                if filled >= head.end() {
                    return body(head, &self.buffer[..filled]);
                }
                if self.buffer.len() < head.end() {
                    self.buffer.resize(head.end(), 0);
                }
            }
            ensure!(filled < self.buffer.len(), "an answer's head is longer than {ROOM} bytes");
        }
    }
}

fn body<'a>(head: &Head, bytes: &'a [u8]) -> Result<&'a [u8]> {
    ensure!(bytes.len() == head.end(), "extra bytes after the answer");
    let body = &bytes[head.body_at..];
    if head.status != 200 {
        bail!("status {}: {}", head.status, String::from_utf8_lossy(body));
    }
    Ok(body)
}

/// Checks that `body` answers the request with this id: it needs the id, a result and, for a call, the text that was sent.
pub fn check(ask: Ask, id: u32, body: &[u8]) -> Result<()> {
    let id = digits(id);
    let mut member = *b"\"id\":........";
    member[5..].copy_from_slice(&id);
    let (head, tail) = (&body[..body.len().min(EDGE)], &body[body.len().saturating_sub(EDGE)..]);
    let named = memmem::find(head, &member).is_some() || memmem::find(tail, &member).is_some();
    let right = match ask {
        Ask::Call => {
            let mut text = *b"\"text\":\"message ........\"";
            text[16..24].copy_from_slice(&id);
            memmem::find(body, &text).is_some() && memmem::find(body, b"\"result\":{").is_some()
        }
        Ask::List | Ask::Greet => {
            memmem::find(head, b"\"result\":{").is_some() || memmem::find(tail, b"\"result\":{").is_some()
        }
    };
    ensure!(named && right, "a wrong answer: {}", String::from_utf8_lossy(&body[..body.len().min(400)]));
    Ok(())
}

/// Sends one request on a new connection and returns the body and the session of the answer.
pub fn once(address: SocketAddr, request: &[u8]) -> Result<(Vec<u8>, Option<String>)> {
    let mut stream =
        BlockingStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request).context("cannot send")?;
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; ROOM]);
    loop {
        let count = stream.read(&mut chunk).context("cannot receive")?;
        ensure!(count > 0, "the connection was closed in the middle of an answer");
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(head) = Head::read(&bytes)?
            && bytes.len() >= head.end()
        {
            return Ok((body(&head, &bytes)?.to_vec(), head.session));
        }
    }
}

/// Opens a legacy session.
pub fn open_session(address: SocketAddr) -> Result<String> {
    let (_, session) = once(address, Template::new(address, Era::Legacy, Ask::Greet, None).bytes())?;
    session.context("no session was opened")
}

/// Ends a legacy session. A failure does not matter: the server would drop the session in the end.
pub fn end_session(address: SocketAddr, session: &str) {
    drop(once(address, Template::goodbye(address, session).bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_when_they_are_whole() {
        let text = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\nMcp-Session-Id: abc\r\n\r\n{}";
        let head = Head::read(text).unwrap().unwrap();
        assert_eq!((head.status, head.length, head.session.as_deref()), (200, 2, Some("abc")));
        assert_eq!(body(&head, text).unwrap(), b"{}");
        assert!(Head::read(&text[..50]).unwrap().is_none());
    }

    #[test]
    fn an_answer_without_a_length_is_refused() {
        let error = Head::read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap_err();
        assert!(error.to_string().contains("has no Content-Length"), "{error}");
    }

    #[test]
    fn errors_and_foreign_answers_do_not_pass() {
        let good = br#"{"jsonrpc":"2.0","id":10000007,"result":{"content":[{"type":"text","text":"message 10000007"}]}}"#;
        check(Ask::Call, 7, good).unwrap();
        check(Ask::Call, 8, good).unwrap_err();
        check(Ask::Call, 7, br#"{"jsonrpc":"2.0","id":10000007,"error":{"code":1,"message":"no"}}"#)
            .unwrap_err();
        check(Ask::List, 7, br#"{"jsonrpc":"2.0","id":10000007,"error":{"code":1,"message":"no"}}"#)
            .unwrap_err();
        let head = Head::read(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n").unwrap().unwrap();
        body(&head, b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n").unwrap_err();
    }
}
