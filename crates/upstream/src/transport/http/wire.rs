//! HTTP/1.1 on one connection to a server: sends a request, reads the head and the body of its answer.
//!
//! Saves at least 11 000 of the 80 000 instructions of a call: an exchange takes 15 400 here, framing, pool and matching of the
//! answer included, and 26 600 in hyper's client alone (callgrind, `docs/decisions/0028-own-http-client.md`).
//!
//! The call that uses a connection drives it; there is no task or channel in between. Invariants: a request counts
//! as unsent only while the socket has accepted none of its bytes. An answer without a clear end is an error, and
//! its connection is not reused. A connection that received unrequested bytes is not reused either.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::Instant;

use super::SESSION;
use super::body::Media;
use crate::transport::dial::Socket;

/// How long a connection may stay idle and still be reused, if the server names no time.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The largest head of an answer.
const LARGEST_HEAD: usize = 256 * 1024;
/// The most headers of an answer.
const MOST_HEADERS: usize = 100;
/// The longest line of a chunk's size, and the most bytes of trailers.
const LARGEST_CHUNK_LINE: usize = 16 * 1024;
/// How much is read at once: at first, and of a long answer.
const READ: usize = 8 * 1024;
const LONGEST_READ: usize = 256 * 1024;
/// A buffer with less room than this grows before the next read.
const LEAST_ROOM: usize = 2 * 1024;
/// Pieces up to this size are copied: otherwise they would pin the buffer that the next answer is read into.
pub(super) const COPIED: usize = 4 * 1024;

/// A request as bytes.
pub(crate) struct Request {
    head: Bytes,
    body: Bytes,
}

impl Request {
    /// Makes a request from a complete head.
    pub(super) fn new(mut head: BytesMut, body: &Bytes) -> Self {
        if body.len() > COPIED {
            return Self { head: head.freeze(), body: body.clone() };
        }
        // Writing one piece is faster than writing two.
        head.extend_from_slice(body);
        Self { head: head.freeze(), body: Bytes::new() }
    }

    /// Its size in bytes.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// The same request with another target.
    pub(super) fn to(&self, target: &str) -> Self {
        let line = memchr::memchr(b'\r', &self.head).unwrap_or(self.head.len());
        let method = memchr::memchr(b' ', &self.head[..line]).unwrap_or(line);
        let mut head = BytesMut::with_capacity(self.head.len() + target.len());
        for part in [&self.head[..method], b" ", target.as_bytes(), b" HTTP/1.1", &self.head[line..]] {
            head.extend_from_slice(part);
        }
        Self { head: head.freeze(), body: self.body.clone() }
    }
}

impl fmt::Debug for Request {
    /// Shows no header: they may be credentials.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Request").field("size", &self.len()).finish_non_exhaustive()
    }
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) media: Media,
    /// All headers, if the answer is not a success or has an unknown media type; otherwise at most the session id.
    pub(crate) headers: HeaderMap,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: io::Error,
    /// Whether provably none of its bytes left.
    pub(crate) unsent: bool,
}

/// One connection.
pub(crate) struct Wire {
    socket: Socket,
    /// Bytes that were read but not consumed.
    buffer: BytesMut,
    /// How much of the buffer was already searched for the end of a head.
    looked: usize,
    /// How much to read at once.
    read: usize,
    body: Body,
    /// Whether the server keeps the connection open after the answer.
    kept: bool,
    waits_since: Instant,
    longest_wait: Duration,
}

/// The rest of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Nothing,
    Length(u64),
    /// The line that says how long the next chunk is.
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    /// Trailers after the last chunk; this many bytes of them were skipped.
    Trailers(usize),
    /// Until the connection ends.
    ToEnd,
}

impl fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Wire").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Wire {
    pub(crate) fn over(socket: Socket) -> Self {
        Self {
            socket,
            buffer: BytesMut::new(),
            looked: 0,
            read: READ,
            body: Body::Nothing,
            kept: true,
            waits_since: Instant::now(),
            longest_wait: LONGEST_WAIT,
        }
    }

    /// Sends a request and waits for the head of its answer. `sent` is called once the whole request is written.
    pub(crate) async fn send(
        &mut self,
        request: &Request,
        mut sent: impl FnMut(),
    ) -> Result<Head, SendError> {
        let mut left = Buf::chain(request.head.as_ref(), request.body.as_ref());
        let whole = left.remaining();
        poll_fn(|context| {
            let polled = self.poll_exchange(&mut left, whole, context);
            if !left.has_remaining() {
                sent();
            }
            polled
        })
        .await
    }

    /// Writes the rest of a request, and reads meanwhile: a server may answer before it has read everything, and
    /// then stop reading.
    fn poll_exchange(
        &mut self,
        left: &mut impl Buf,
        whole: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Head, SendError>> {
        while left.has_remaining() {
            match poll_write(&mut self.socket, left, context) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if left.remaining() == whole => {
                    return Poll::Ready(Err(SendError { error, unsent: true }));
                }
                // The server may have sent the reason.
                Poll::Ready(Err(_)) => {
                    left.advance(left.remaining());
                    self.kept = false;
                }
            }
        }
        let lost = |error| SendError { error, unsent: false };
        if !left.has_remaining()
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.socket).poll_flush(context)
        {
            return Poll::Ready(Err(lost(error)));
        }
        let head = ready!(self.poll_head(context)).map_err(lost)?;
        self.kept &= !left.has_remaining();
        Poll::Ready(Ok(head))
    }

    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Head>> {
        loop {
            // A head can only be complete if the new bytes contain a line break.
            let fresh = std::mem::replace(&mut self.looked, self.buffer.len());
            if memchr::memchr(b'\n', &self.buffer[fresh..]).is_some()
                && let Some(head) = self.take_head()?
            {
                self.looked = 0;
                return Poll::Ready(Ok(head));
            }
            if self.buffer.len() > LARGEST_HEAD {
                return Poll::Ready(Err(broken("the head of its answer is too large")));
            }
            if ready!(self.poll_fill(context))? == 0 {
                return Poll::Ready(Err(ended()));
            }
        }
    }

    /// Takes the head of an answer out of the buffer, if it is complete. Informational heads (1xx) are skipped.
    fn take_head(&mut self) -> io::Result<Option<Head>> {
        loop {
            let mut headers = [const { MaybeUninit::uninit() }; MOST_HEADERS];
            let mut response = httparse::Response::new(&mut []);
            let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
                &mut response,
                &self.buffer,
                &mut headers,
            );
            let size = match parsed {
                Ok(httparse::Status::Complete(size)) => size,
                Ok(httparse::Status::Partial) => return Ok(None),
                Err(error) => return Err(broken(&format!("its answer is not HTTP: {error}"))),
            };
            let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
            let status = status.ok_or_else(|| broken("its answer has no status"))?;
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(broken("it switches to a protocol that was not requested"));
            }
            if status.is_informational() {
                self.buffer.advance(size);
                self.looked = self.buffer.len();
                continue;
            }
            let said = Framing::read(response.headers)?;
            let head = said.head(status, response.headers);
            self.body = said.body(status);
            let keeps = if response.version == Some(1) { !said.closes } else { said.keeps };
            self.kept &= keeps && self.body != Body::ToEnd;
            self.longest_wait = said.wait.unwrap_or(self.longest_wait);
            self.buffer.advance(size);
            return Ok(Some(head));
        }
    }

    /// The next piece of the answer's body; `None` at its end.
    pub(crate) fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match self.take_piece() {
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(piece))),
                Ok(None) if self.body == Body::Nothing => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => {
                    self.kept = false;
                    return Poll::Ready(Some(Err(error)));
                }
            }
            match ready!(self.poll_fill(context)) {
                Ok(0) if self.body == Body::ToEnd => self.body = Body::Nothing,
                Ok(0) => {
                    self.kept = false;
                    return Poll::Ready(Some(Err(ended())));
                }
                Ok(_) => {}
                Err(error) => {
                    self.kept = false;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// A piece of the body from the buffer. `None` if more must be read first, or if the body has ended.
    fn take_piece(&mut self) -> io::Result<Option<Bytes>> {
        while !self.buffer.is_empty() {
            match self.body {
                Body::Nothing => break,
                Body::ToEnd => return Ok(Some(self.take(usize::MAX))),
                Body::Length(left) => {
                    let piece = self.take(usize::try_from(left).unwrap_or(usize::MAX));
                    let left = left - piece.len() as u64;
                    self.body = if left == 0 { Body::Nothing } else { Body::Length(left) };
                    return Ok(Some(piece));
                }
                Body::Chunk(left) => {
                    let piece = self.take(usize::try_from(left).unwrap_or(usize::MAX));
                    let left = left - piece.len() as u64;
                    self.body = if left == 0 { Body::ChunkEnd } else { Body::Chunk(left) };
                    return Ok(Some(piece));
                }
                Body::ChunkEnd => match self.take_line(0)? {
                    None => break,
                    Some(line) if line.is_empty() => self.body = Body::ChunkSize,
                    Some(_) => return Err(broken("a chunk of its answer does not match its size")),
                },
                Body::ChunkSize => match self.take_line(0)? {
                    None => break,
                    Some(line) => match chunk_size(&line)? {
                        0 => self.body = Body::Trailers(0),
                        size => self.body = Body::Chunk(size),
                    },
                },
                Body::Trailers(passed) => match self.take_line(passed)? {
                    None => break,
                    Some(line) if line.is_empty() => self.body = Body::Nothing,
                    Some(line) => self.body = Body::Trailers(passed + line.len() + 1),
                },
            }
        }
        Ok(None)
    }

    fn take(&mut self, most: usize) -> Bytes {
        let size = most.min(self.buffer.len());
        if size > COPIED {
            return self.buffer.split_to(size).freeze();
        }
        let piece = Bytes::copy_from_slice(&self.buffer[..size]);
        self.buffer.advance(size);
        piece
    }

    /// A complete line without its line break. Together with the `passed` bytes it must not be too long.
    fn take_line(&mut self, passed: usize) -> io::Result<Option<Bytes>> {
        let Some(end) = memchr::memchr(b'\n', &self.buffer) else {
            if passed + self.buffer.len() > LARGEST_CHUNK_LINE {
                return Err(broken("its chunked answer is malformed"));
            }
            return Ok(None);
        };
        if passed + end > LARGEST_CHUNK_LINE {
            return Err(broken("a line of its chunked answer is too long"));
        }
        let line = Bytes::copy_from_slice(self.buffer[..end].trim_ascii_end());
        self.buffer.advance(end + 1);
        Ok(Some(line))
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buffer.capacity() - self.buffer.len() < LEAST_ROOM {
            self.buffer.reserve(self.read);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        let count = ready!(pin!(self.socket.read_buf(&mut self.buffer)).poll(context))?;
        // A full buffer means that more is coming: the next read may be larger.
        if count == room {
            self.read = (self.read * 2).min(LONGEST_READ);
        }
        Poll::Ready(Ok(count))
    }

    /// The size of the rest of the answer, if known.
    pub(crate) const fn length(&self) -> Option<u64> {
        match self.body {
            Body::Nothing => Some(0),
            Body::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Whether the answer was read to its end.
    pub(crate) fn is_read(&self) -> bool {
        self.body == Body::Nothing
    }

    /// Prepares the connection for reuse; returns whether it is worth keeping.
    pub(super) fn rest(&mut self) -> bool {
        if self.read > READ {
            self.read = READ;
            // Shrinks the buffer, but keeps the bytes that were already read.
            self.buffer = BytesMut::from(self.buffer.as_ref());
        }
        self.waits_since = Instant::now();
        self.kept
    }

    /// Whether it can take a request now.
    pub(super) fn is_usable(&mut self) -> bool {
        if self.waits_since.elapsed() > self.longest_wait {
            return false;
        }
        let context = &mut Context::from_waker(Waker::noop());
        // The end of the last answer may be unread. An answer that continues after its last message is not worth
        // waiting for.
        while self.body != Body::Nothing {
            match self.poll_body(context) {
                Poll::Ready(None) => break,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_))) | Poll::Pending => return false,
            }
        }
        // Anything readable now is the end of the connection or unrequested bytes.
        self.kept && self.buffer.is_empty() && self.poll_fill(context).is_pending()
    }
}

fn poll_write(socket: &mut Socket, left: &mut impl Buf, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut parts = [IoSlice::new(&[]); 2];
    let written = ready!(match left.chunks_vectored(&mut parts) {
        // A single slice is cheaper for the system.
        1 => Pin::new(socket).poll_write(context, &parts[0]),
        count => Pin::new(socket).poll_write_vectored(context, &parts[..count]),
    })?;
    left.advance(written);
    Poll::Ready(if written == 0 { Err(ErrorKind::WriteZero.into()) } else { Ok(()) })
}

/// What the headers of an answer say about its body and its connection.
#[derive(Debug, Default)]
struct Framing {
    length: Option<u64>,
    /// Whether its last transfer coding is `chunked`; `None` if it has no coding.
    chunked: Option<bool>,
    closes: bool,
    keeps: bool,
    wait: Option<Duration>,
    media: Media,
}

impl Framing {
    fn read(headers: &[httparse::Header<'_>]) -> io::Result<Self> {
        let mut said = Self::default();
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            let value = header.value.trim_ascii();
            if is("content-length") {
                let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                let length =
                    length.filter(|_| digits).ok_or_else(|| broken("its answer has no usable length"))?;
                if said.length.replace(length).is_some_and(|other| other != length) {
                    return Err(broken("its answer has two lengths"));
                }
            } else if is("content-type") {
                said.media = Media::of(value);
            } else if is("transfer-encoding") {
                let last = tokens(value).next_back();
                said.chunked = Some(last.is_some_and(|last| last.eq_ignore_ascii_case(b"chunked")));
            } else if is("connection") {
                said.closes |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"close"));
                said.keeps |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"keep-alive"));
            } else if is("keep-alive") {
                said.wait = tokens(value).find_map(wait).or(said.wait);
            }
        }
        Ok(said)
    }

    fn head(&self, status: StatusCode, headers: &[httparse::Header<'_>]) -> Head {
        let all = !status.is_success() || self.media == Media::Other;
        let mut kept = HeaderMap::new();
        for header in headers {
            if (all || header.name.eq_ignore_ascii_case(SESSION.as_str()))
                && let (Ok(name), Ok(value)) =
                    (HeaderName::try_from(header.name), HeaderValue::from_bytes(header.value))
            {
                kept.append(name, value);
            }
        }
        Head { status, media: self.media, headers: kept }
    }

    fn body(&self, status: StatusCode) -> Body {
        match (self.chunked, self.length) {
            _ if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => Body::Nothing,
            (Some(true), _) => Body::ChunkSize,
            (Some(false), _) | (None, None) => Body::ToEnd,
            (None, Some(0)) => Body::Nothing,
            (None, Some(length)) => Body::Length(length),
        }
    }
}

fn tokens(value: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// How long the server says it keeps the connection, less a second for requests in flight.
fn wait(token: &[u8]) -> Option<Duration> {
    let seconds = std::str::from_utf8(token.strip_prefix(b"timeout=")?).ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).saturating_sub(Duration::from_secs(1)).min(LONGEST_WAIT))
}

/// The size of a chunk; extensions on its line are ignored.
fn chunk_size(line: &[u8]) -> io::Result<u64> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let size = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    size.filter(|_| plain).ok_or_else(|| broken("a chunk of its answer has no valid size"))
}

fn broken(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

fn ended() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the server closed it")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection, and its other end.
    async fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        (Wire::over(Socket::Plain(near)), far)
    }

    fn request(body: usize) -> Request {
        let head = BytesMut::from(&b"POST / HTTP/1.1\r\n\r\n"[..]);
        Request::new(head, &Bytes::from(vec![b'x'; body]))
    }

    async fn piece(wire: &mut Wire) -> Option<io::Result<Bytes>> {
        poll_fn(|context| wire.poll_body(context)).await
    }

    async fn whole(wire: &mut Wire) -> io::Result<String> {
        let mut text = Vec::new();
        while let Some(piece) = piece(wire).await {
            text.extend_from_slice(&piece?);
        }
        Ok(String::from_utf8(text).unwrap())
    }

    /// What an answer is read as, however it is split: the body and whether the connection is reused, or the error.
    #[track_caller]
    fn check(answer: &'static str, expected: Result<(&str, bool), &str>) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        async move {
            let sizes = if answer.len() < 1000 { [1, 7, answer.len()] } else { [1000, 7000, answer.len()] };
            for size in sizes {
                let (mut wire, mut far) = pair().await;
                let server = async {
                    for piece in answer.as_bytes().chunks(size) {
                        // The client may have stopped reading.
                        let _ = far.write_all(piece).await;
                        tokio::task::yield_now().await;
                    }
                    let _ = far.shutdown().await;
                };
                let client = async {
                    wire.send(&request(1), || {}).await.map_err(|failed| failed.error)?;
                    let body = whole(&mut wire).await?;
                    Ok::<_, io::Error>((body, wire.rest()))
                };
                let (found, ()) = tokio::join!(client, server);
                match (found, expected) {
                    (Ok((body, kept)), Ok((text, again))) => {
                        assert_eq!((&*body, kept), (text, again), "{at}");
                    }
                    (Err(error), Err(reason)) => {
                        assert!(error.to_string().contains(reason), "{at}: {error}");
                        assert!(!wire.rest() || !wire.is_usable(), "{at}");
                    }
                    (found, _) => panic!("{at}: {found:?}"),
                }
            }
        }
    }

    /// LINK-2: every way in which an answer can mark its end.
    #[tokio::test]
    async fn answers_by_their_framing() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Ok(("hello", true))).await;
        check("HTTP/1.1 200 OK\ncontent-length:5 \n\nhello", Ok(("hello", true))).await;
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Ok(("", true))).await;
        check("HTTP/1.1 204 No\r\n\r\n", Ok(("", true))).await;
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nContent-Length: 2\r\n\r\nhi", Ok(("hi", true))).await;
        check("HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 2\r\n\r\nhi", Ok(("hi", false)))
            .await;
        check("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", Ok(("hi", false))).await;
        check("HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 2\r\n\r\nhi", Ok(("hi", true)))
            .await;
        check("HTTP/1.1 200 OK\r\n\r\nto the end", Ok(("to the end", false))).await;
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            Ok(("hi", true)),
        )
        .await;
        let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\ncontent-length: 1\r\n\r\n\
                      3;a=b\r\nhel\r\n0A \r\nlo, world.\r\n0\r\nTrailer: 1\r\n\r\n";
        check(chunks, Ok(("hello, world.", true))).await;
    }

    /// LINK-2: an answer without a clear end is malformed.
    #[tokio::test]
    async fn malformed_responses() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell", Err("closed")).await;
        check("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", Err("two lengths"))
            .await;
        for length in ["", "-1", "+5", "5, 5", "99999999999999999999", "five"] {
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\nhello");
            check(answer.leak(), Err("no usable length")).await;
        }
        check("HTTP/1.1 101 Switching\r\n\r\n", Err("not requested")).await;
        check("SSH-2.0-x\r\n\r\n", Err("not HTTP")).await;
        check("HTTP/1.1 200 OK\r\ncontent-le", Err("closed")).await;
        for chunk in ["x\r\n", "\r\n", "-1\r\n", "ffffffffffffffffff\r\n"] {
            let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}");
            check(answer.leak(), Err("no valid size")).await;
        }
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n", Err("not match its size"))
            .await;
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n", Err("closed")).await;
        let endless = |head: &str| format!("HTTP/1.1 200 OK\r\n{head}{}", "y".repeat(LARGEST_HEAD)).leak();
        check(endless("x: "), Err("too large")).await;
        check(endless("transfer-encoding: chunked\r\n\r\n"), Err("malformed")).await;
        check(endless("transfer-encoding: chunked\r\n\r\n0\r\n"), Err("malformed")).await;
    }

    /// A connection is reused if the last answer was read to its end and nothing else arrived.
    #[tokio::test]
    async fn what_is_used_again() {
        let (mut wire, mut far) = pair().await;
        let head = "HTTP/1.1 200 OK\r\nkeep-alive: max=5, timeout=7\r\n";
        far.write_all(
            format!("{head}content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
                .as_bytes(),
        )
        .await
        .unwrap();
        let answer = wire.send(&request(0), || {}).await.unwrap();
        assert_eq!((answer.status, answer.media, answer.headers.len()), (StatusCode::OK, Media::Events, 0));
        assert_eq!(piece(&mut wire).await.unwrap().unwrap(), "hi");
        assert_eq!(wire.longest_wait, Duration::from_secs(6));
        assert!(wire.rest() && !wire.is_usable(), "its end has not arrived");
        far.write_all(b"0\r\n\r\n").await.unwrap();
        wire.socket_is_readable().await;
        assert!(wire.rest() && wire.is_usable());
        assert!(wire.is_usable());
        far.write_all(b"HTTP/1.1 408 Too slow\r\n\r\n").await.unwrap();
        wire.socket_is_readable().await;
        assert!(!wire.is_usable(), "unexpected bytes arrived");

        let (mut wire, far) = pair().await;
        assert!(wire.is_usable());
        drop(far);
        wire.socket_is_readable().await;
        assert!(!wire.is_usable(), "its server has closed it");
    }

    /// A long answer is read in large pieces, and an idle connection does not keep their memory.
    #[tokio::test]
    async fn long_answers_leave_no_room_behind() {
        let (mut wire, mut far) = pair().await;
        let server = async {
            far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n").await.unwrap();
            far.write_all(&vec![b'y'; 3_000_000]).await.unwrap();
        };
        let client = async {
            wire.send(&request(0), || {}).await.unwrap();
            assert_eq!(wire.length(), Some(3_000_000));
            assert_eq!(whole(&mut wire).await.unwrap().len(), 3_000_000);
        };
        tokio::join!(client, server);
        assert!(wire.rest() && wire.buffer.capacity() <= READ && wire.is_usable());
    }

    /// BRG-6: a partly sent request may have run, and an early answer counts as an answer.
    #[tokio::test]
    async fn requests_that_are_not_read() {
        let (mut wire, mut far) = pair().await;
        far.write_all(b"HTTP/1.1 413 Too large\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\nno")
            .await
            .unwrap();
        let answer = wire.send(&request(50_000_000), || {}).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.headers["retry-after"]), (413, &HeaderValue::from(1)));
        assert_eq!(whole(&mut wire).await.unwrap(), "no");
        assert!(!wire.rest(), "the rest of the request was not written");

        let (mut wire, far) = pair().await;
        drop(far);
        assert!(!wire.send(&request(50_000_000), || {}).await.unwrap_err().unsent);

        let (mut wire, far) = pair().await;
        far.set_zero_linger().unwrap();
        drop(far);
        wire.socket_is_readable().await;
        assert!(wire.send(&request(1), || {}).await.unwrap_err().unsent, "not a byte of it left");
        let shown = format!("{:?} {wire:?}", request(3));
        assert_eq!(shown, "Request { size: 22, .. } Wire { body: Nothing, .. }");
    }

    impl Wire {
        async fn socket_is_readable(&self) {
            if let Socket::Plain(socket) = &self.socket {
                socket.readable().await.unwrap();
            }
        }
    }
}
