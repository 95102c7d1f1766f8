//! The API for operators: status, configuration id, events, the lines that servers write, and restarts.
//!
//! The same routes are served on the HTTP front, to holders of a token, and on a Unix socket, to users who may
//! open its file. The socket serves MCP clients too. Callers are checked before a request gets here. This module
//! decides nothing about servers itself.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_gateway::events::{Delivery, Filter, Subscription, Topic};
use bridgehead_gateway::{Followed, Follower, Gateway};
use bridgehead_wire::held::Budget;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderValue, Method, Request, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::admission::Admission;
use super::connection::{accept_all, connection};
use super::reply::{self, Body, Reply};
use super::{ENDPOINT, Routes, body, crashed, sse};
use crate::panics::{self, guarded};
use crate::{Backend, Token};

/// The prefix of all routes of the API.
pub const API: &str = "/api/v1/";

/// How many events may wait for a slow reader.
const EVENTS_WAITING: usize = 1024;
/// How many lines are returned by default.
const USUAL_TAIL: usize = 100;
/// The largest body of a request.
const MAX_BODY_BYTES: usize = 4096;
/// The longest silence on a stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long the head of a request may take, and a body.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
const BODY_WITHIN: Duration = Duration::from_secs(60);
/// How many connections the socket serves at once.
const MAX_CONNECTIONS: usize = 64;

/// The API of one gateway. Clones share it.
#[derive(Debug, Clone)]
pub struct Api(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    gateway: Gateway,
    token: Option<Token>,
    shutdown: CancellationToken,
}

impl Api {
    /// The API of `gateway`. Over HTTP it accepts `token`, besides the token of the front. Streams end at
    /// `shutdown`.
    pub fn new(gateway: Gateway, token: Option<Token>, shutdown: CancellationToken) -> Self {
        Self(Arc::new(Inner { gateway, token, shutdown }))
    }

    /// The token that it accepts, besides that of the front.
    pub(crate) fn token(&self) -> Option<&Token> {
        self.0.token.as_ref()
    }

    /// Answers a request of an admitted operator.
    pub(crate) async fn answer<D>(&self, request: Request<D>) -> Reply
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        let (parts, content) = request.into_parts();
        let query = Query(parts.uri.query().unwrap_or_default());
        let route = parts.uri.path().strip_prefix(API).unwrap_or_default();
        let wanted = match route {
            "status" | "configuration" | "events" | "logs" => Method::GET,
            "restart" => Method::POST,
            _ => {
                let routes =
                    format!("nothing here; the routes are {API}{{status,configuration,events,logs,restart}}");
                return failed(StatusCode::NOT_FOUND, &routes);
            }
        };
        if parts.method != wanted {
            let mut reply = failed(StatusCode::METHOD_NOT_ALLOWED, &format!("`{route}` wants {wanted}"));
            if let Ok(allow) = HeaderValue::from_str(wanted.as_str()) {
                reply.headers_mut().insert(header::ALLOW, allow);
            }
            return reply;
        }
        match route {
            "status" => answered(StatusCode::OK, &self.0.gateway.status()),
            "configuration" => answered(StatusCode::OK, &json!({"id": self.0.gateway.configuration_id()})),
            "events" => self.events(&query),
            "logs" => self.logs(&query),
            _ => self.restart(content).await,
        }
    }

    fn events(&self, query: &Query<'_>) -> Reply {
        let server = query.last("server");
        if let Some(server) = server
            && self.0.gateway.record(server).is_none()
        {
            return self.unknown(server);
        }
        let topics: Vec<String> =
            query.all("topic").flat_map(|topics| topics.split(',')).map(str::to_owned).collect();
        let filter = Filter { topics, server: server.map(str::to_owned) };
        if !Topic::ALL.into_iter().any(|topic| filter.admits(topic)) {
            let topics = Topic::ALL.map(Topic::as_str).join(", ");
            return failed(
                StatusCode::BAD_REQUEST,
                &format!("no event has such a topic; the topics are {topics}"),
            );
        }
        let subscription = self.0.gateway.events().subscribe_to(filter, EVENTS_WAITING);
        self.stream(Source::Events(subscription))
    }

    fn logs(&self, query: &Query<'_>) -> Reply {
        let Some(server) = query.last("server") else {
            return failed(StatusCode::BAD_REQUEST, "name the server whose lines you want: `?server=NAME`");
        };
        let tail = match query.last("tail").map(str::parse) {
            None => USUAL_TAIL,
            Some(Ok(tail)) => tail,
            Some(Err(_)) => return failed(StatusCode::BAD_REQUEST, "`tail` must be a number of lines"),
        };
        let Some(record) = self.0.gateway.record(server) else { return self.unknown(server) };
        if matches!(query.last("follow"), None | Some("" | "0" | "false")) {
            return answered(
                StatusCode::OK,
                &json!({"server": server, "lines": record.tail(tail).iter().map(|line| json!(**line)).collect::<Vec<_>>()}),
            );
        }
        self.stream(Source::Lines(record.follow(tail)))
    }

    async fn restart(
        &self,
        content: impl http_body::Body<Data = Bytes, Error: Into<body::BoxError>> + Unpin,
    ) -> Reply {
        let asked = match body::read(content, MAX_BODY_BYTES, BODY_WITHIN).await {
            Ok(text) => serde_json::from_slice::<Value>(&text).unwrap_or_default(),
            Err(_) => Value::Null,
        };
        let Some(server) = asked["server"].as_str() else {
            return failed(StatusCode::BAD_REQUEST, "the body must be {\"server\": NAME}");
        };
        if !self.0.gateway.restart(server) {
            return self.unknown(server);
        }
        info!(server = %format_args!("mcp:{server}"), "an operator asked for a restart");
        answered(StatusCode::ACCEPTED, &json!({"server": server, "restarting": true}))
    }

    fn unknown(&self, server: &str) -> Reply {
        let near = self.0.gateway.similar_servers(server);
        let shown: String = server.chars().filter(|character| !character.is_control()).take(64).collect();
        let mut message = format!("no server is called `{shown}`");
        if !near.is_empty() {
            message.push_str(&format!("; did you mean `{}`?", near.join("` or `")));
        }
        answered(StatusCode::NOT_FOUND, &json!({"error": {"message": message, "near": near}}))
    }

    /// An event stream, until its source ends or the gateway stops.
    fn stream(&self, source: Source) -> Reply {
        let shutdown = self.0.shutdown.clone();
        // Sends something at once, so that the client knows that it is connected.
        let first = Some(Bytes::from_static(b": connected\n\n"));
        let pieces = stream::unfold((source, shutdown, first), |(mut source, shutdown, first)| async move {
            let piece = match first {
                Some(first) => first,
                None => tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return None,
                    piece = source.next() => piece?,
                    () = sleep(KEEP_ALIVE) => sse::COMMENT,
                },
            };
            Some((piece, (source, shutdown, None)))
        });
        reply::events(Body::from_stream(pieces))
    }
}

/// What a stream carries.
enum Source {
    Events(Subscription),
    Lines(Follower),
}

impl Source {
    async fn next(&mut self) -> Option<Bytes> {
        Some(match self {
            Self::Events(subscription) => match subscription.next().await? {
                Delivery::Event(event) => told(event.topic().as_str(), &*event),
                Delivery::Missed(count) => missed(count),
            },
            Self::Lines(follower) => match follower.next().await {
                Followed::Line(line) => told("line", &*line),
                Followed::Missed(count) => missed(count),
            },
        })
    }
}

fn told(kind: &str, data: &impl Serialize) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(format!("event: {kind}\ndata: ").as_bytes());
    out.put_slice(&serde_json::to_vec(data).unwrap_or_default());
    out.put_slice(b"\n\n");
    out.freeze()
}

/// The event that says how many entries a slow reader has missed here.
fn missed(count: u64) -> Bytes {
    told("missed", &json!({"missed": count}))
}

fn answered(status: StatusCode, data: &impl Serialize) -> Reply {
    let mut reply = reply::json(status, serde_json::to_vec(data).unwrap_or_default().into());
    reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

/// An error in the format of the API.
pub(crate) fn failed(status: StatusCode, message: &str) -> Reply {
    answered(status, &json!({"error": {"message": message}}))
}

/// The parameters of a request. Names of servers and topics need no escapes, so none are decoded.
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn all(&self, name: &'static str) -> impl Iterator<Item = &'a str> {
        self.0
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "1")))
            .filter(move |(key, value)| *key == name && !value.is_empty())
            .map(|(_, value)| value)
    }

    fn last(&self, name: &'static str) -> Option<&'a str> {
        self.all(name).last()
    }
}

/// Serves the API, and `routes` at the MCP endpoint, on a Unix socket until `shutdown`, and then until the requests in
/// progress are answered. Any user who may open the socket may call, so `routes` should require no token.
pub async fn serve_socket<B: Backend>(
    listener: UnixListener,
    api: Api,
    routes: Routes<B>,
    shutdown: CancellationToken,
) {
    let accept = async move || Ok(listener.accept().await?.0);
    accept_all(
        "the control socket",
        &Admission::new(MAX_CONNECTIONS, Budget::process()),
        accept,
        &shutdown,
        |panic| panics::ended(routes.backend(), panic),
        |connections, stream: UnixStream, member| {
            let (api, routes) = (api.clone(), routes.clone());
            connections.spawn(async move {
                let answer = move |request: Request<body::Counted>| {
                    let (api, routes) = (api.clone(), routes.clone());
                    async move {
                        match request.uri().path() {
                            ENDPOINT => routes.answer(request).await,
                            _ => guarded(routes.backend(), pin!(api.answer(request)))
                                .await
                                .unwrap_or_else(|error| crashed(&error)),
                        }
                    }
                };
                if let Err(error) = connection(stream, answer, &member.activity, HEAD_WITHIN).await {
                    debug!(%error, "a connection to the control socket ended early");
                }
            });
        },
    )
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let query = Query("topic=a,b&server=x&topic=c&follow&server=&tail=5");
        assert_eq!(query.all("topic").collect::<Vec<_>>(), ["a,b", "c"]);
        assert_eq!(
            (query.last("server"), query.last("follow"), query.last("tail")),
            (Some("x"), Some("1"), Some("5"))
        );
        assert_eq!(Query("").last("server"), None);
    }

    #[test]
    fn an_event_is_one_line_of_data_under_its_name() {
        assert_eq!(told("line", &json!({"a": "x\ny"})), "event: line\ndata: {\"a\":\"x\\ny\"}\n\n");
        assert_eq!(missed(3), "event: missed\ndata: {\"missed\":3}\n\n");
    }
}
