//! Serves [`Echo`] over lines or over HTTP, as fast as simple code can.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bridgehead_wire::{Line, LineBuffer};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::echo::{Answer, Echo};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const MAX_MESSAGE: usize = 1024 * 1024;

/// Answers line by line until the input ends. All lines of one read are answered by one write.
pub fn lines(echo: &Echo, mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut lines = LineBuffer::new(MAX_MESSAGE);
    let mut chunk = vec![0_u8; 64 * 1024];
    let mut out = Vec::new();
    loop {
        let count = input.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        lines.space().extend_from_slice(&chunk[..count]);
        while let Some(line) = lines.next_line() {
            let Line::Text(text) = line else { continue };
            let Answer { parts, .. } = echo.answer(&text);
            if !parts[0].is_empty() {
                parts.iter().for_each(|part| out.extend_from_slice(part));
                out.push(b'\n');
            }
        }
        output.write_all(&out)?;
        output.flush()?;
        out.clear();
    }
}

/// Serves every connection of `listener`, on the thread that polls this. Must run within a `LocalSet`.
pub async fn http(echo: Echo, listener: TcpListener) -> io::Result<Infallible> {
    let echo = Rc::new(echo);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::task::spawn_local(connection(echo.clone(), stream));
    }
}

async fn connection(echo: Rc<Echo>, stream: TcpStream) {
    drop(stream.set_nodelay(true));
    let service = service_fn(|request| {
        let echo = echo.clone();
        async move { Ok::<_, Infallible>(respond(&echo, request).await) }
    });
    // A client may disconnect in the middle of a request.
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

async fn respond(echo: &Echo, request: Request<Incoming>) -> Response<Parts> {
    let (head, body) = request.into_parts();
    match head.method {
        Method::POST => {}
        Method::DELETE => return status(StatusCode::OK),
        _ => return status(StatusCode::METHOD_NOT_ALLOWED),
    }
    let Ok(text) = Limited::new(body, MAX_MESSAGE).collect().await else {
        return status(StatusCode::BAD_REQUEST);
    };
    let answer = echo.answer(&text.to_bytes());
    if !answer.opens_session && is_legacy(&head.headers) && !head.headers.contains_key(SESSION) {
        return status(StatusCode::BAD_REQUEST);
    }
    if answer.parts[0].is_empty() {
        return status(StatusCode::ACCEPTED);
    }
    let opens_session = answer.opens_session;
    let mut response = Response::new(Parts::of(answer));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if opens_session {
        response.headers_mut().insert(SESSION, HeaderValue::from_static("the-only-session"));
    }
    response
}

fn is_legacy(headers: &HeaderMap) -> bool {
    headers.get(VERSION).is_none_or(|version| version != "2026-07-28")
}

fn status(status: StatusCode) -> Response<Parts> {
    let mut response = Response::new(Parts::default());
    *response.status_mut() = status;
    response
}

/// A body of known length, made of existing slices.
#[derive(Default)]
struct Parts {
    parts: VecDeque<Bytes>,
    left: u64,
}

impl Parts {
    fn of(answer: Answer) -> Self {
        let parts: VecDeque<Bytes> = answer.parts.into_iter().filter(|part| !part.is_empty()).collect();
        let left = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts, left }
    }
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Some(part) = self.parts.pop_front() else { return Poll::Ready(None) };
        self.left -= part.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_answered_in_order_and_only_where_an_answer_is_due() {
        let input = concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            "\n",
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            "\n\n",
            r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
            "\n"
        );
        let mut output = Vec::new();
        lines(&Echo::new(0), input.as_bytes(), &mut output).unwrap();
        let expected =
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n";
        assert_eq!(String::from_utf8(output).unwrap(), expected);
    }
}
