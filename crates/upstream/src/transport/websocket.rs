//! A server behind a WebSocket: each message is one text frame, both ways.
//!
//! For the link it works like a process over stdio, so the same engine and the same probe serve it. The peer is
//! pinged; one that stays silent for a while counts as dead, whatever the network says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_config::{Remote, ServerConfig, Url};
use bridgehead_lines::LineReader;
use bridgehead_wire::Line;
use bytes::{BufMut, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::credentials::{CredentialHeaders, Credentials, is_worth_another};
use super::dial::{DIAL_TIMEOUT, Socket, dial};
use super::http::{MOST_REDIRECTS, explain, redirect, refused};
use super::opening;
use crate::link::negotiate::{NegotiateError, Offer, Opening, Peer, negotiate_until};
use crate::link::{DrivenLink, Link, LinkError};

/// How often the peer is pinged.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long the peer may stay silent, even to a ping.
const DEAD_AFTER: Duration = Duration::from_secs(45);
/// How long the peer may take to close.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// The buffer between the engine, which speaks lines, and the frames.
const PIPE: usize = 64 * 1024;

/// An open socket and the link over it.
#[derive(Debug)]
pub(crate) struct WebSocket {
    pub(crate) link: DrivenLink,
    /// Moves frames; returns the reason when the socket ends. `None` once it was seen to end.
    carrier: Option<AbortOnDropHandle<String>>,
    engine: [AbortOnDropHandle<()>; 2],
}

/// Connects and negotiates; a server that ends on the probe is connected to again without it.
pub(crate) async fn connect(
    server: &ServerConfig,
    settings: &Remote,
    credentials: &dyn Credentials,
    limit: usize,
    offer: Offer,
) -> Result<(WebSocket, Peer), NegotiateError> {
    let first = opening(server.era);
    match open(server, settings, credentials, limit).await?.negotiate(first, offer).await {
        Err((NegotiateError::EndedOnProbe(reason), _)) => {
            debug!(server = %format_args!("mcp:{}", server.name), %reason, "the server ended on the probe; retrying without it");
            let again = open(server, settings, credentials, limit).await?;
            let again = again.negotiate(Opening::Initialize, offer).await;
            again.map_err(|(error, _)| error)
        }
        other => other.map_err(|(error, _)| error),
    }
}

async fn open(
    server: &ServerConfig,
    settings: &Remote,
    credentials: &dyn Credentials,
    limit: usize,
) -> Result<WebSocket, NegotiateError> {
    let lost = |reason: String| NegotiateError::Link(LinkError::Closed(reason.into()));
    let mut url = settings.url.clone();
    let (mut redirects, mut sent_again) = (0, false);
    let frames = loop {
        let presented = credentials.present().wait().await.map_err(LinkError::from)?;
        let (status, headers) = match shake(&url, settings, &presented, limit).await.map_err(lost)? {
            Ok(frames) => break frames,
            Err(refusal) => refusal,
        };
        let to = redirect(&url, status, &headers);
        if let Some(to) = to.filter(|_| settings.follow_redirects && redirects < MOST_REDIRECTS) {
            (url, redirects) = (to, redirects + 1);
        } else if is_worth_another(credentials, (status, &headers), &presented, sent_again).await {
            sent_again = true;
        } else {
            let reason = explain(&url, status, &headers, settings.follow_redirects);
            return Err(refused(status, reason).into());
        }
    };
    // The engine's two ends speak lines; each frame becomes a line, and each line a frame.
    let (to_engine, engine_reads) = tokio::io::duplex(PIPE);
    let (engine_writes, from_engine) = tokio::io::duplex(PIPE);
    let (link, read, write) = Link::over(server.name.as_ref(), engine_reads, engine_writes, limit);
    link.answer_roots(server.roots.as_ref());
    let carrier = tokio::spawn(carry(frames, to_engine, from_engine, limit, url.to_string()));
    Ok(WebSocket {
        link: DrivenLink(link),
        carrier: Some(AbortOnDropHandle::new(carrier)),
        engine: [AbortOnDropHandle::new(tokio::spawn(read)), AbortOnDropHandle::new(tokio::spawn(write))],
    })
}

/// Opens the socket at `url`. The inner error is the server's HTTP answer instead.
async fn shake(
    url: &Url,
    settings: &Remote,
    presented: &CredentialHeaders,
    limit: usize,
) -> Result<Result<WebSocketStream<Socket>, (StatusCode, HeaderMap)>, String> {
    let socket = dial(url, settings.proxy.as_ref()).await.map_err(|error| error.to_string())?;
    let mut request = url
        .expose()
        .into_client_request()
        .map_err(|_| format!("{url} is not a WebSocket address: check the `url`"))?;
    request.headers_mut().extend(presented.iter());
    let config = WebSocketConfig::default().max_message_size(Some(limit)).max_frame_size(Some(limit));
    let shaking = tokio_tungstenite::client_async_with_config(request, socket, Some(config));
    match tokio::time::timeout(DIAL_TIMEOUT, shaking).await {
        Ok(Ok((frames, _))) => Ok(Ok(frames)),
        Ok(Err(Error::Http(response))) => Ok(Err((response.status(), response.headers().clone()))),
        Ok(Err(error)) => {
            Err(format!("{url} did not open a WebSocket ({error}): check the `url` and the `type`"))
        }
        Err(_) => Err(format!("{url} did not open a WebSocket in time: check the `url` and the `type`")),
    }
}

/// Moves messages both ways until one side ends, and returns the reason.
async fn carry<S: AsyncRead + AsyncWrite + Unpin>(
    frames: WebSocketStream<S>,
    to_engine: DuplexStream,
    from_engine: DuplexStream,
    limit: usize,
    url: String,
) -> String {
    let (sink, stream) = frames.split();
    let born = Instant::now();
    // When the peer was last heard from, in milliseconds since `born`.
    let heard = Arc::new(AtomicU64::new(0));
    tokio::select! {
        reason = receive(stream, to_engine, Arc::clone(&heard), born, &url) => reason,
        reason = transmit(sink, from_engine, limit, heard, born, &url) => reason,
    }
}

async fn receive<S: AsyncRead + AsyncWrite + Unpin>(
    mut frames: SplitStream<WebSocketStream<S>>,
    mut engine: DuplexStream,
    heard: Arc<AtomicU64>,
    born: Instant,
    url: &str,
) -> String {
    loop {
        let frame = frames.next().await;
        heard.store(u64::try_from(born.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let text = match frame {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Binary(_))) => {
                return format!(
                    "{url} sent a binary frame where each message is a text frame: check that MCP is spoken there"
                );
            }
            Some(Ok(Message::Close(Some(frame)))) => {
                let words: String = frame.reason.chars().filter(|c| !c.is_control()).take(200).collect();
                return format!("{url} closed the WebSocket (code {}): {words}", u16::from(frame.code));
            }
            Some(Ok(Message::Close(None))) | None => return format!("{url} closed the WebSocket"),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
            Some(Err(Error::Capacity(error))) => {
                return format!("{url} sent a message larger than the limit (`max_message_mb`): {error}");
            }
            Some(Err(error)) => return format!("the WebSocket to {url} broke ({error})"),
        };
        let mut line = BytesMut::with_capacity(text.len() + 1);
        line.put_slice(text.as_bytes());
        bridgehead_wire::on_one_line(&mut line);
        line.put_u8(b'\n');
        if engine.write_all(&line).await.is_err() {
            return "the link was closed".to_owned();
        }
    }
}

async fn transmit<S: AsyncRead + AsyncWrite + Unpin>(
    mut frames: SplitSink<WebSocketStream<S>, Message>,
    engine: DuplexStream,
    limit: usize,
    heard: Arc<AtomicU64>,
    born: Instant,
    url: &str,
) -> String {
    let mut lines = LineReader::new(engine, limit);
    let mut ping = tokio::time::interval(PING_EVERY);
    loop {
        let frame = tokio::select! {
            line = lines.next() => match line {
                Ok(Some(Line::Text(text))) => match Utf8Bytes::try_from(text) {
                    Ok(text) => Message::Text(text),
                    Err(_) => continue,
                },
                Ok(Some(Line::TooLong { .. })) => continue,
                Ok(None) | Err(_) => {
                    let _ = tokio::time::timeout(CLOSE_GRACE, frames.close()).await;
                    return "the link was closed".to_owned();
                }
            },
            _ = ping.tick() => {
                let silent = born.elapsed().saturating_sub(Duration::from_millis(heard.load(Ordering::Relaxed)));
                if silent > DEAD_AFTER {
                    return format!("{url} has been silent for {} s and did not answer a ping", silent.as_secs());
                }
                Message::Ping(bytes::Bytes::new())
            }
        };
        if let Err(error) = frames.send(frame).await {
            return format!("the WebSocket to {url} broke ({error})");
        }
    }
}

impl WebSocket {
    async fn negotiate(
        mut self,
        opening: Opening,
        offer: Offer,
    ) -> Result<(Self, Peer), (NegotiateError, Self)> {
        let link = self.link.clone();
        match negotiate_until(self.ended(), &link, opening, offer).await {
            Ok(peer) => Ok((self, peer)),
            Err(error) => Err((error, self)),
        }
    }

    /// Resolves when the socket has ended; every open request has then failed with the reason.
    pub(crate) async fn ended(&mut self) {
        if let Some(carrier) = &mut self.carrier {
            let reason = tokio::select! {
                biased;
                reason = carrier => Some(reason.unwrap_or_else(|error| error.to_string())),
                () = self.link.given_up() => None,
            };
            self.carrier = None;
            let reason = match reason {
                Some(reason) => {
                    // Messages from before the end still count.
                    let _ = (&mut self.engine[0]).await;
                    reason
                }
                None => self.link.fault().map(ToString::to_string).unwrap_or_default(),
            };
            self.link.end(LinkError::Closed(reason.into()));
        }
    }

    /// Closes the socket.
    pub(crate) async fn stop(self) {
        let Self { link, carrier, engine: [reader, writer] } = self;
        link.end(LinkError::Closed("the server was stopped".into()));
        writer.abort();
        let _ = writer.await;
        if let Some(carrier) = carrier {
            // The end of the engine's lines makes the carrier close the socket.
            let _ = tokio::time::timeout(CLOSE_GRACE * 2, carrier).await;
        }
        drop(reader);
    }
}

#[cfg(test)]
mod tests {
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    async fn carried(peer: impl AsyncFnOnce(WebSocketStream<DuplexStream>)) -> (String, Duration) {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let ours = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        let theirs = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
        let (to_engine, _engine_reads) = tokio::io::duplex(PIPE);
        let (_engine_writes, from_engine) = tokio::io::duplex(PIPE);
        let began = Instant::now();
        let (reason, ()) =
            tokio::join!(carry(ours, to_engine, from_engine, PIPE, "ws://h/".to_owned()), peer(theirs));
        (reason, began.elapsed())
    }

    /// LINK-4: a live peer answers pings and is kept; a dead one is noticed.
    #[tokio::test(start_paused = true)]
    async fn a_dead_peer_is_noticed() {
        let silent = async |frames| {
            tokio::time::sleep(Duration::from_secs(300)).await;
            drop::<WebSocketStream<_>>(frames);
        };
        let (reason, _) = carried(silent).await;
        assert_eq!(reason, "ws://h/ has been silent for 60 s and did not answer a ping");
        let alive = async |mut frames: WebSocketStream<DuplexStream>| {
            // Reading is enough to answer.
            let _ = tokio::time::timeout(Duration::from_secs(200), async {
                while let Some(Ok(_)) = frames.next().await {}
            })
            .await;
        };
        let (reason, lasted) = carried(alive).await;
        assert!(reason.contains("broke") || reason.contains("closed"), "{reason}");
        assert!(lasted >= Duration::from_secs(200), "{lasted:?}");
    }
}
