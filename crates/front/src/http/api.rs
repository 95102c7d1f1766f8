//! The API for operators: status, configuration id, rules, tools, events, the lines that servers write, and restarts.
//!
//! The same routes are served on the HTTP front, to the [`Operators`], and on a Unix socket, to users who may open its file. The
//! socket serves MCP clients too. Callers are checked before a request gets here. This module decides nothing about servers
//! itself. Restarts and opened streams are recorded.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_config::Who;
use bridgehead_gateway::events::{Delivery, Filter, Subscription, Topic};
use bridgehead_gateway::{AdminEvent, Followed, Follower, Gateway, OfferedTool, Principal, admin};
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
use super::connection::{accept_all, upgradable};
use super::join::{JOIN, Joining};
use super::reply::{self, Body, Reply};
use super::{ENDPOINT, Routes, body, crashed, sse};
use crate::Backend;
use crate::panics::{self, guarded};

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
/// How a request came in, in the record.
const HTTP: &str = "http";
const CONTROL: &str = "control";
/// How many connections the socket serves at once.
const MAX_CONNECTIONS: usize = 64;

/// The API of one gateway. Clones share it.
#[derive(Debug, Clone)]
pub struct Api(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    gateway: Gateway,
    operators: Operators,
    shutdown: CancellationToken,
}

/// Who may use the API over HTTP. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Operators(Arc<ArcSwap<Listed>>);

#[derive(Debug, Default)]
struct Listed {
    /// Who may do everything.
    all: Vec<Who>,
    /// Who may see everything and change nothing.
    read: Vec<Who>,
}

/// Who asks, and what that operator may do.
#[derive(Debug, Clone)]
pub(crate) struct Operator {
    pub(crate) principal: Principal,
    /// How the request came in, for the record.
    pub(crate) transport: &'static str,
    /// Whether it may change something.
    pub(crate) may_change: bool,
    /// Whether it is an operator only as long as it is listed.
    pub(crate) is_listed: bool,
}

impl Operators {
    /// `all` may do everything, `read` may see everything and change nothing.
    pub fn new(all: Vec<Who>, read: Vec<Who>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Listed { all, read })))
    }

    /// Replaces the lists. Whoever is in neither any more is refused at once, and its streams end at their next piece.
    pub fn set(&self, all: Vec<Who>, read: Vec<Who>) {
        self.0.store(Arc::new(Listed { all, read }));
    }

    /// What a principal may do here; `None` if it is no operator.
    pub(crate) fn admit(&self, principal: Principal) -> Option<Operator> {
        let listed = self.0.load();
        let is_one_of = |list: &[Who]| list.iter().any(|who| principal.is(who));
        let may_change = is_one_of(&listed.all);
        let admitted = may_change || is_one_of(&listed.read);
        admitted.then_some(Operator { principal, transport: HTTP, may_change, is_listed: true })
    }

    /// Whether somebody who was admitted still is.
    fn still_admit(&self, operator: &Operator) -> bool {
        !operator.is_listed || self.admit(operator.principal.clone()).is_some()
    }
}

impl Api {
    /// The API of `gateway`. Over HTTP it is open to `operators`. Streams end at `shutdown`.
    pub fn new(gateway: Gateway, operators: Operators, shutdown: CancellationToken) -> Self {
        Self(Arc::new(Inner { gateway, operators, shutdown }))
    }

    /// Who may use it over HTTP.
    pub(crate) fn operators(&self) -> &Operators {
        &self.0.operators
    }

    /// Answers a request of an admitted operator.
    pub(crate) async fn answer<D>(&self, operator: &Operator, request: Request<D>) -> Reply
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        let (parts, content) = request.into_parts();
        let query = Query(parts.uri.query().unwrap_or_default());
        let route = parts.uri.path().strip_prefix(API).unwrap_or_default();
        let wanted = match route {
            "status" | "configuration" | "rules" | "tools" | "events" | "logs" => Method::GET,
            "restart" => Method::POST,
            _ => {
                let routes = format!(
                    "nothing here; the routes are {API}{{status,configuration,rules,tools,events,logs,restart}}"
                );
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
            "rules" => answered(StatusCode::OK, &json!({"rules": self.0.gateway.rules().as_deref()})),
            "tools" => answered(StatusCode::OK, &json!({"tools": self.tools()})),
            "events" => self.events(operator, &query).await,
            "logs" => self.logs(operator, &query).await,
            _ if !operator.may_change => failed(
                StatusCode::FORBIDDEN,
                "this operator may see but not restart; list it under `operators` in `[auth]`",
            ),
            _ => self.restart(operator, content).await,
        }
    }

    /// All tools, whoever may use them: the name that clients use, and those that rules use.
    fn tools(&self) -> Vec<Value> {
        let described = |tool: OfferedTool| {
            let definition: Value = tool.definition.decode().unwrap_or_default();
            json!({
                "name": *tool.name,
                "server": tool.server.as_deref(),
                "ownName": tool.own_name,
                "readOnly": definition["annotations"]["readOnlyHint"] == true,
            })
        };
        self.0.gateway.list_tools().into_iter().map(described).collect()
    }

    /// Records what an operator does. `None` if it must not be done, because it cannot be recorded.
    async fn recorded(
        &self,
        operator: &Operator,
        (method, subject): (&'static str, &str),
        act: impl FnOnce() -> Result<Value, String>,
    ) -> Option<Result<Value, String>> {
        let event = AdminEvent {
            principal: &operator.principal,
            transport: operator.transport,
            method,
            subject,
            arguments: &json!({}),
        };
        self.0.gateway.record_event(event, act).await.ok()
    }

    async fn events(&self, operator: &Operator, query: &Query<'_>) -> Reply {
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
        let opened =
            self.recorded(operator, (admin::EVENTS, server.unwrap_or_default()), || Ok(json!({}))).await;
        if opened.is_none() {
            return unrecorded();
        }
        let subscription = self.0.gateway.events().subscribe_to(filter, EVENTS_WAITING);
        self.stream(operator, Source::Events(subscription))
    }

    async fn logs(&self, operator: &Operator, query: &Query<'_>) -> Reply {
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
        if self.recorded(operator, (admin::LOGS, server), || Ok(json!({}))).await.is_none() {
            return unrecorded();
        }
        self.stream(operator, Source::Lines(record.follow(tail)))
    }

    async fn restart(
        &self,
        operator: &Operator,
        content: impl http_body::Body<Data = Bytes, Error: Into<body::BoxError>> + Unpin,
    ) -> Reply {
        let asked = match body::read(content, MAX_BODY_BYTES, BODY_WITHIN).await {
            Ok(text) => serde_json::from_slice::<Value>(&text).unwrap_or_default(),
            Err(_) => Value::Null,
        };
        let Some(server) = asked["server"].as_str() else {
            return failed(StatusCode::BAD_REQUEST, "the body must be {\"server\": NAME}");
        };
        let restart = || match self.0.gateway.restart(server) {
            true => Ok(json!({"restarting": true})),
            false => Err("no such server".to_owned()),
        };
        let shown = one_line(server);
        match self.recorded(operator, (admin::RESTART, &shown), restart).await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return self.unknown(server),
            None => return unrecorded(),
        }
        info!(server = %format_args!("mcp:{server}"), "an operator asked for a restart");
        answered(StatusCode::ACCEPTED, &json!({"server": server, "restarting": true}))
    }

    fn unknown(&self, server: &str) -> Reply {
        let near = self.0.gateway.similar_servers(server);
        let shown = one_line(server);
        let mut message = format!("no server is called `{shown}`");
        if !near.is_empty() {
            message.push_str(&format!("; did you mean `{}`?", near.join("` or `")));
        }
        answered(StatusCode::NOT_FOUND, &json!({"error": {"message": message, "near": near}}))
    }

    /// An event stream, until its source ends, the gateway stops, or the operator's credential ends or is not listed any more.
    fn stream(&self, operator: &Operator, source: Source) -> Reply {
        let (api, operator) = (self.clone(), operator.clone());
        // Sends something at once, so that the client knows that it is connected.
        let first = Some(Bytes::from_static(b": connected\n\n"));
        let pieces =
            stream::unfold((source, api, operator, first), |(mut source, api, operator, first)| async move {
                let piece = match first {
                    Some(first) => first,
                    None => tokio::select! {
                        biased;
                        () = api.0.shutdown.cancelled() => return None,
                        () = operator.principal.validity().ended() => return None,
                        piece = source.next() => piece?,
                        () = sleep(KEEP_ALIVE) => sse::COMMENT,
                    },
                };
                let admitted = api.0.operators.still_admit(&operator);
                admitted.then_some((piece, (source, api, operator, None)))
            });
        reply::events(Body::from_stream(pieces))
    }
}

/// A name that a caller wrote, short and without control characters.
fn one_line(name: &str) -> String {
    name.chars().filter(|character| !character.is_control()).take(64).collect()
}

/// The answer if something cannot be recorded, and so is not done.
fn unrecorded() -> Reply {
    failed(
        StatusCode::SERVICE_UNAVAILABLE,
        "this cannot be recorded, so it was not done; see `bridgehead explain AUDIT_ENTER_FAILED`",
    )
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

pub(crate) fn answered(status: StatusCode, data: &impl Serialize) -> Reply {
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
/// progress are answered. Clients that join there are served over lines of at most `max_message_bytes`. Any user who may open
/// the socket may call, so `routes` should require no token.
pub async fn serve_socket<B: Backend>(
    listener: UnixListener,
    api: Api,
    routes: Routes<B>,
    max_message_bytes: usize,
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
            let (api, routes, shutdown) = (api.clone(), routes.clone(), shutdown.clone());
            connections.spawn(async move {
                let (gateway, joining) = (api.0.gateway.clone(), Joining::default());
                // Whoever can open the socket is the gateway's own user.
                let operator = Arc::new(Operator {
                    principal: Principal::local(),
                    transport: CONTROL,
                    may_change: true,
                    is_listed: false,
                });
                let agreed = joining.clone();
                let answer = move |request: Request<body::Counted>| {
                    let (api, routes, operator) = (api.clone(), routes.clone(), Arc::clone(&operator));
                    let agreed = agreed.clone();
                    async move {
                        match request.uri().path() {
                            ENDPOINT => routes.answer(request).await,
                            JOIN => agreed.answer(&api.0.gateway, request).await,
                            _ => guarded(routes.backend(), pin!(api.answer(&operator, request)))
                                .await
                                .unwrap_or_else(|error| crashed(&error)),
                        }
                    }
                };
                if let Err(error) = upgradable(stream, answer, &member.activity, HEAD_WITHIN).await {
                    debug!(%error, "a connection to the control socket ended early");
                }
                // Joined clients have a limit of their own, so that there is always a place for operators.
                drop(member);
                joining.serve(gateway, max_message_bytes, shutdown).await;
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
