//! Connections through a proxy: which requests it carries itself, how it is asked for a tunnel, what its refusals
//! mean.
//!
//! Plain HTTP goes to the proxy as a request with an absolute address. For everything else the proxy is asked for a
//! tunnel (`CONNECT`), and what travels inside is between us and the server. The proxy's credentials go to the proxy
//! only, and nothing is read from the environment.

use std::io;

use base64::{Engine, engine::general_purpose::STANDARD};
use bridgehead_config::{Proxy, Url};
use bytes::BytesMut;
use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest answer head of a proxy, before there is a tunnel.
const LARGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;

/// Whether requests to this address go to the proxy itself.
pub(crate) fn carries(url: &Url) -> bool {
    !url.is_secure() && !url.is_web_socket()
}

/// The credentials for the proxy, as a header.
pub(crate) fn authorization(proxy: &Proxy) -> Option<HeaderValue> {
    let credentials = STANDARD.encode(proxy.credentials()?.expose());
    let mut value = HeaderValue::from_str(&format!("Basic {credentials}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Asks the proxy for a tunnel to the server. The error is the reason as text.
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
            return Err(format!("the proxy {proxy} closed the connection instead of answering"));
        }
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let size = match response.parse(&said) {
            Ok(httparse::Status::Complete(size)) => size,
            Ok(httparse::Status::Partial) if said.len() < LARGEST_HEAD => continue,
            _ => return Err(format!("{proxy} does not answer like an HTTP proxy: check `proxy`")),
        };
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or_default();
        if !status.is_success() {
            return Err(refusal(proxy, url, status));
        }
        // The server speaks only when spoken to.
        if size < said.len() {
            return Err(format!("the proxy {proxy} sent unexpected data: check `proxy`"));
        }
        return Ok(());
    }
}

/// Explains a status from the proxy itself.
pub(crate) fn refusal(proxy: &Proxy, url: &Url, status: StatusCode) -> String {
    match status.as_u16() {
        407 if proxy.credentials().is_some() => {
            format!("the proxy {proxy} rejects the credentials in `proxy` (407): check them")
        }
        407 => format!(
            "the proxy {proxy} wants credentials (407): write them into `proxy`, as \
             `http://NAME:PASSWORD@HOST:PORT`"
        ),
        502..=504 => {
            format!(
                "{url} cannot be reached through the proxy {proxy} ({status}): is the server running there?"
            )
        }
        _ => {
            format!(
                "the proxy {proxy} does not connect to {url} ({status}): check `proxy`, and what it allows"
            )
        }
    }
}
