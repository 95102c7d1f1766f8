//! The requests that the gateway makes to issuers: metadata, keys, introspection.
//!
//! Everything about an answer is bounded: its size, its time, and that it comes from the address that was asked. A redirect is an
//! answer like any other, and never followed.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bridgehead_config::{Secret, Url};
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;

/// The largest answer.
pub(crate) const LARGEST_ANSWER: usize = 256 * 1024;
/// How long a request may take, from the connection to the last byte.
const WITHIN: Duration = Duration::from_secs(10);

/// Makes requests to issuers.
pub trait Fetch: Send + Sync + 'static {
    /// Makes one request. The future borrows nothing, so that several callers can wait for it.
    fn fetch(&self, asked: Asked) -> BoxFuture<'static, Result<Answer, FetchError>>;
}

/// A request to an issuer.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Where it goes.
    pub url: Url,
    /// What is posted; without it the request is a `GET`.
    pub form: Option<Form>,
}

/// A form, and the client that posts it.
#[derive(Clone)]
pub struct Form {
    /// The encoded fields. They hold a client's token.
    pub fields: Secret,
    /// The name and the secret of the gateway at the issuer.
    pub client: (String, Secret),
}

impl fmt::Debug for Form {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Form").field("client", &self.client.0).finish_non_exhaustive()
    }
}

/// The answer of an issuer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, of at most 256 KiB.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// It cannot be reached, or broke off.
    #[error("{0}")]
    Unreachable(String),
    /// It took too long.
    #[error("no answer within {} s", WITHIN.as_secs())]
    Timeout,
    /// It is larger than anything useful.
    #[error("the answer is larger than {} KiB", LARGEST_ANSWER / 1024)]
    TooLarge,
}

impl Asked {
    /// A `GET`.
    pub const fn get(url: Url) -> Self {
        Self { url, form: None }
    }
}

/// Requests over HTTP/1.1, one connection each: issuers are asked a few times an hour.
#[derive(Debug, Clone, Copy, Default)]
pub struct HttpFetch;

impl Fetch for HttpFetch {
    fn fetch(&self, asked: Asked) -> BoxFuture<'static, Result<Answer, FetchError>> {
        Box::pin(async move {
            let asking = tokio::time::timeout(WITHIN, ask(asked));
            asking.await.unwrap_or(Err(FetchError::Timeout))
        })
    }
}

async fn ask(asked: Asked) -> Result<Answer, FetchError> {
    let unreachable = |error: &dyn fmt::Display| FetchError::Unreachable(error.to_string());
    let stream = bridgehead_upstream::open_stream(&asked.url).await.map_err(|error| unreachable(&error))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(|error| unreachable(&error))?;
    let exchange = async {
        let request = asked.into_request().map_err(|error| unreachable(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
        let (parts, mut body) = answer.into_parts();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| unreachable(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > LARGEST_ANSWER {
                return Err(FetchError::TooLarge);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Answer { status: parts.status, headers: parts.headers, body: bytes.freeze() })
    };
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        ended = connection => match ended {
            // The connection has read the whole answer and nobody reuses it.
            Ok(()) => exchange.await,
            Err(error) => Err(unreachable(&error)),
        },
    }
}

impl Asked {
    fn into_request(self) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder()
            .method(if self.form.is_some() { Method::POST } else { Method::GET })
            .uri(self.url.target())
            .header(header::HOST, self.url.authority())
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close");
        let Some(Form { fields, client: (name, secret) }) = self.form else {
            return request.body(Full::default());
        };
        // RFC 6749 §2.3.1: both parts are encoded as in a form before they are joined.
        let pair = STANDARD.encode(format!("{}:{}", encoded(&name), encoded(secret.expose())));
        let mut basic = HeaderValue::from_str(&format!("Basic {pair}"))?;
        basic.set_sensitive(true);
        request = request
            .header(header::AUTHORIZATION, basic)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        request.body(Full::new(Bytes::copy_from_slice(fields.expose().as_bytes())))
    }
}

/// A text as a value of a form.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Reads the address of an issuer or of something that it names: `https`, or `http` on this machine.
///
/// # Errors
/// A message without the address.
pub(crate) fn checked_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("the address cannot be used: {error}"))?;
    check_url(&url)?;
    Ok(url)
}

pub(crate) fn check_url(url: &Url) -> Result<(), String> {
    let host = url.host();
    let is_here = host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    match !url.is_web_socket() && (url.is_secure() || is_here) {
        true => Ok(()),
        false => Err(format!("{url} is not an https address; http is accepted on this machine only")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers one connection with these bytes, and returns what was asked.
    async fn serve(answer: Vec<u8>) -> (Url, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/a?b=c", listener.local_addr().unwrap()).parse().unwrap();
        let serving = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.windows(4).any(|end| end == b"\r\n\r\n")
                || asked.starts_with(b"POST") && !asked.ends_with(b"end")
            {
                assert_ne!(tcp.read_buf(&mut asked).await.unwrap(), 0);
            }
            let _ = tcp.write_all(&answer).await;
            let _ = tcp.shutdown().await;
            String::from_utf8(asked).unwrap().to_ascii_lowercase()
        });
        (url, serving)
    }

    /// ACC-2: an answer has its status, headers and body; a redirect is not followed; a large answer is refused.
    #[tokio::test]
    async fn answers() {
        let (url, asked) =
            serve(b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 2\r\n\r\nhi".to_vec()).await;
        let answer = HttpFetch.fetch(Asked::get(url)).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (302, &b"hi"[..]));
        assert_eq!(answer.headers["location"], "/x");
        let asked = asked.await.unwrap();
        assert!(asked.starts_with("get /a?b=c http/1.1\r\n") && !asked.contains("authorization"), "{asked}");

        for (size, fits) in [(LARGEST_ANSWER, true), (LARGEST_ANSWER + 1, false)] {
            let mut bytes = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
            bytes.resize(bytes.len() + size, b' ');
            let (url, _asked) = serve(bytes).await;
            let answer = HttpFetch.fetch(Asked::get(url)).await;
            assert_eq!(
                answer.map(|answer| answer.body.len()).map_err(|error| error == FetchError::TooLarge),
                if fits { Ok(size) } else { Err(true) }
            );
        }
        let (url, _asked) = serve(b"not http".to_vec()).await;
        assert!(matches!(HttpFetch.fetch(Asked::get(url)).await, Err(FetchError::Unreachable(_))));
    }

    /// ACC-2 (case 8): the gateway shows its own credentials, encoded as RFC 6749 says, and nothing prints them.
    #[tokio::test]
    async fn a_form_is_posted_by_its_client() {
        let (url, asked) = serve(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()).await;
        let client = ("gate way".to_owned(), Secret::new("p:w"));
        let form = Form { fields: Secret::new("token=x&end"), client };
        assert!(!format!("{form:?}").contains("token=x"));
        let answer = HttpFetch.fetch(Asked { url, form: Some(form) }).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
        let asked = asked.await.unwrap();
        assert_eq!(encoded("a-b_c.d~e\n+ü"), "a-b_c.d~e%0A%2B%C3%BC");
        let pair = STANDARD.encode("gate%20way:p%3Aw").to_ascii_lowercase();
        assert!(asked.contains(&format!("authorization: basic {pair}\r\n")), "{asked}");
        assert!(
            asked.contains("application/x-www-form-urlencoded") && asked.ends_with("token=x&end"),
            "{asked}"
        );
    }

    /// ACC-2: issuers are asked over https, except on this machine.
    #[test]
    fn addresses() {
        for good in ["https://id.example/x", "http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]:2/"]
        {
            assert!(checked_url(good).is_ok(), "{good}");
        }
        for bad in
            ["http://id.example/x", "wss://id.example/x", "ws://localhost/", "http://localhost.evil/", "x"]
        {
            assert!(checked_url(bad).is_err(), "{bad}");
        }
    }
}
