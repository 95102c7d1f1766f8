//! The way through a proxy: which requests it carries itself, how it is asked for a connection, what its refusals mean.
//!
//! Plain HTTP is given to the proxy as a request for a whole address; for everything else it is asked for a connection
//! (`CONNECT`), and what travels on that is between us and the server. What the proxy is told to let us pass goes to
//! the proxy alone, and nothing is read from the environment.

use std::io;

use base64::{Engine, engine::general_purpose::STANDARD};
use bridgehead_config::{Proxy, Url};
use bytes::BytesMut;
use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How much a proxy may say before there is a connection.
const LARGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;

/// Whether requests to this address are given to the proxy itself.
pub(crate) fn carries(url: &Url) -> bool {
    !url.is_secure() && !url.is_web_socket()
}

/// What the proxy wants to know before it lets us pass.
pub(crate) fn authorization(proxy: &Proxy) -> Option<HeaderValue> {
    let credentials = STANDARD.encode(proxy.credentials()?.expose());
    let mut value = HeaderValue::from_str(&format!("Basic {credentials}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Asks the proxy for a connection to the server. The error says why there is none.
pub(crate) async fn tunnel(tcp: &mut TcpStream, url: &Url, proxy: &Proxy) -> Result<(), String> {
    let broke = |error: io::Error| format!("the proxy {proxy} broke the connection ({error})");
    let (host, port) = (url.host(), url.port());
    let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = format!("CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n").into_bytes();
    if let Some(value) = authorization(proxy) {
        request.extend_from_slice(b"proxy-authorization: ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    tcp.write_all(&request).await.map_err(broke)?;
    let mut said = BytesMut::new();
    loop {
        if tcp.read_buf(&mut said).await.map_err(broke)? == 0 {
            return Err(format!("the proxy {proxy} closed the connection instead of an answer"));
        }
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let size = match response.parse(&said) {
            Ok(httparse::Status::Complete(size)) => size,
            Ok(httparse::Status::Partial) if said.len() < LARGEST_HEAD => continue,
            _ => return Err(format!("what is at {proxy} does not speak as a proxy does: check `proxy`")),
        };
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or_default();
        if !status.is_success() {
            return Err(refusal(proxy, url, status));
        }
        // The server speaks when it is spoken to.
        if size < said.len() {
            return Err(format!("the proxy {proxy} sent something that nobody asked for: check `proxy`"));
        }
        return Ok(());
    }
}

/// What a status of the proxy's own means.
pub(crate) fn refusal(proxy: &Proxy, url: &Url, status: StatusCode) -> String {
    match status.as_u16() {
        407 if proxy.credentials().is_some() => {
            format!("the proxy {proxy} does not take the credentials in `proxy` (407): check them")
        }
        407 => format!(
            "the proxy {proxy} wants credentials (407): write them into `proxy`, as \
             `http://NAME:PASSWORD@HOST:PORT`"
        ),
        502..=504 => {
            format!("{url} is not reached through the proxy {proxy} ({status}): is the server running there?")
        }
        _ => {
            format!("the proxy {proxy} does not lead to {url} ({status}): check `proxy`, and what it allows")
        }
    }
}
