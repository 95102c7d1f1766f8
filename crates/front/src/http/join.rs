//! Clients that join over the control socket: one HTTP request that changes the protocol, then lines as on stdin and stdout.
//!
//! The request says who asks: its body must equal the gateway's identity, or the client is refused and told what differs. From
//! then on the connection belongs to the stdio front. A gateway that stops on purpose says so in a last line that is not JSON,
//! [`STOPPED`], so that the other end can tell it from a crash; the program at the other end keeps the line from its client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bridgehead_gateway::{ClientTransport, Gateway, Principal, Session};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::body::{self, BoxError};
use super::connection::upgraded;
use super::reply::{self, Reply};
use super::{api, crashed};
use crate::panics::guarded;
use crate::stdio::{LineOptions, serve_session};

/// The path at which clients join, on the control socket only.
pub const JOIN: &str = "/api/v1/join";
/// The protocol that follows, as the headers name it.
pub const LINES: &str = "bridgehead-lines";
/// The last line of a gateway that stops on purpose, with its line break.
pub const STOPPED: &str = "#stopped\n";

/// How many clients may be joined at once.
const MOST_JOINED: usize = 512;
/// The largest body of a request to join.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// How long the body may take.
const BODY_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// What a connection to the control socket has agreed on. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Joining(Arc<Mutex<Option<OnUpgrade>>>);

impl Joining {
    /// Answers a request to join.
    pub(crate) async fn answer<D>(&self, gateway: &Gateway, request: Request<D>) -> Reply
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<BoxError>,
    {
        let deciding = std::pin::pin!(self.decide(gateway, request));
        guarded(gateway, deciding).await.unwrap_or_else(|error| crashed(&error))
    }

    async fn decide<D>(&self, gateway: &Gateway, mut request: Request<D>) -> Reply
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<BoxError>,
    {
        let upgrade = request.headers().get(header::UPGRADE);
        if request.method() != Method::POST || upgrade.is_none_or(|wanted| wanted != LINES) {
            return api::failed(
                StatusCode::UPGRADE_REQUIRED,
                &format!("`join` wants POST and `Upgrade: {LINES}`"),
            );
        }
        let upgrade = hyper::upgrade::on(&mut request);
        let theirs = match body::read(request.into_body(), MAX_BODY_BYTES, BODY_WITHIN).await {
            Ok(text) => serde_json::from_slice::<Value>(&text).unwrap_or_default(),
            Err(_) => Value::Null,
        };
        let Some(own) = gateway.identity() else {
            return refused(
                "this gateway serves only the client that started it, or its file needs a restart",
                &[],
            );
        };
        let differs = differences(&own, &theirs);
        if !differs.is_empty() {
            gateway.refuse(&differs);
            return refused("the client and the gateway differ", &differs);
        }
        if gateway.joined_count() >= MOST_JOINED {
            let full = format!("{MOST_JOINED} clients are joined already");
            return api::failed(StatusCode::SERVICE_UNAVAILABLE, &full);
        }
        *self.0.lock() = Some(upgrade);
        let mut reply = reply::empty(StatusCode::SWITCHING_PROTOCOLS);
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        reply.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(LINES));
        reply
    }

    /// Serves the client, if it has joined, to its end.
    pub(crate) async fn serve(self, gateway: Gateway, max_message_bytes: usize, shutdown: CancellationToken) {
        let Some(upgrade) = self.0.lock().take() else { return };
        let (stream, early) = match upgraded::<UnixStream>(upgrade).await {
            Ok(joined) => joined,
            Err(error) => return debug!(%error, "a client could not join"),
        };
        let session = Session::new();
        let joined = gateway.join(&session);
        info!(clients = gateway.joined_count(), "a client has joined");
        let (reader, writer) = stream.into_split();
        let reader = io::Cursor::new(early).chain(reader);
        let writer = Farewell { writer, shutdown: shutdown.clone(), said: 0 };
        let options = LineOptions {
            principal: Principal::local(),
            transport: ClientTransport::Stdio,
            max_message_bytes,
        };
        let served = serve_session(reader, writer, gateway.clone(), options, session, shutdown).await;
        drop(joined);
        info!(clients = gateway.joined_count(), failed = served.is_err(), "a client has left");
    }
}

fn refused(message: &str, differs: &[String]) -> Reply {
    api::answered(StatusCode::CONFLICT, &json!({"error": {"message": message, "differs": differs}}))
}

/// The names of the members that are not equal; those of objects by `name.member`. No values.
fn differences(own: &Value, theirs: &Value) -> Vec<String> {
    let none = Map::new();
    let members = |value: &Value| value.as_object().unwrap_or(&none).clone();
    let (own, theirs) = (members(own), members(theirs));
    let mut names: Vec<&String> = own.keys().chain(theirs.keys()).collect();
    names.sort();
    names.dedup();
    let mut differs = Vec::new();
    for name in names {
        match (own.get(name), theirs.get(name)) {
            (own, theirs) if own == theirs => {}
            (Some(own @ Value::Object(_)), Some(theirs @ Value::Object(_))) => {
                differs.extend(differences(own, theirs).iter().map(|member| format!("{name}.{member}")));
            }
            _ => differs.push(name.clone()),
        }
    }
    differs
}

/// Writes [`STOPPED`] before the end of the stream, if the gateway stops.
struct Farewell<W> {
    writer: W,
    shutdown: CancellationToken,
    /// How much of the line is written.
    said: usize,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Farewell<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.shutdown.is_cancelled()
            && let Some(rest @ [_, ..]) = STOPPED.as_bytes().get(self.said..)
        {
            match ready!(Pin::new(&mut self.writer).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.said += written,
            }
        }
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// JOIN-4: what differs is told by name, without values.
    #[test]
    fn what_differs_is_named() {
        #[track_caller]
        fn check(own: &Value, theirs: &Value, expected: &[&str]) {
            assert_eq!(differences(own, theirs), expected);
            assert_eq!(differences(theirs, own), expected);
        }
        let own = json!({"version": "1", "file": null, "variables": {"PATH": "a", "HOME": "b"}});
        check(&own, &own, &[]);
        check(
            &own,
            &json!({"version": "2", "file": null, "variables": {"PATH": "a", "HOME": "b"}}),
            &["version"],
        );
        check(
            &own,
            &json!({"version": "1", "file": null, "variables": {"PATH": "x", "LANG": "b"}}),
            &["variables.HOME", "variables.LANG", "variables.PATH"],
        );
        check(&own, &json!({"version": "1", "file": "f", "variables": 1}), &["file", "variables"]);
        check(&own, &Value::Null, &["file", "variables", "version"]);
    }

    /// JOIN-4: a gateway that stops says so, even to an end that takes one byte at a time; one that goes on does not.
    #[tokio::test]
    async fn a_stop_is_told() {
        for stops in [true, false] {
            let (ours, mut theirs) = tokio::io::duplex(1);
            let shutdown = CancellationToken::new();
            let mut writer = Farewell { writer: ours, shutdown: shutdown.clone(), said: 0 };
            let reading = tokio::spawn(async move {
                let mut text = String::new();
                theirs.read_to_string(&mut text).await.unwrap();
                text
            });
            writer.write_all(b"last\n").await.unwrap();
            if stops {
                shutdown.cancel();
            }
            writer.shutdown().await.unwrap();
            drop(writer);
            assert_eq!(reading.await.unwrap(), if stops { "last\n#stopped\n" } else { "last\n" });
        }
    }
}
