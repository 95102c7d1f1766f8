//! A backend that does what the test's tool names say, and the messages the tests send.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bridgehead_front::Backend;
use bridgehead_gateway::{Caller, ClientRequest, Feed, Feeds, Principal, ProgressSink, Session};
use bridgehead_schema::HeaderParameter;
use bridgehead_wire::{Code, Era, Failure, Method, Object, Raw, Revision, RpcError, Spliced, code};
use bytes::Bytes;
use tokio::sync::Notify;

/// The scripted backend; clones share everything.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Inner>);

pub(crate) struct Inner {
    /// Calls that have begun.
    pub(crate) begun: AtomicUsize,
    /// Calls that were dropped before they had finished.
    pub(crate) cancelled: AtomicUsize,
    /// Calls that have finished.
    pub(crate) finished: AtomicUsize,
    /// Lets one `gate` call finish.
    pub(crate) gate: Notify,
    /// Notified whenever one of the counts changes.
    pub(crate) moved: Notify,
    pub(crate) feeds: Feeds,
    pub(crate) headers: Arc<[HeaderParameter]>,
    /// The callers seen, as `principal revision`.
    pub(crate) callers: std::sync::Mutex<Vec<String>>,
    /// The principals by whose rights the feeds of sessions were judged, with their scopes.
    pub(crate) fed: std::sync::Mutex<Vec<String>>,
    /// The place of the next panic.
    pub(crate) curse: std::sync::Mutex<Option<&'static str>>,
    /// The panics that the front has reported.
    pub(crate) panics: std::sync::Mutex<Vec<String>>,
    /// The session of each caller.
    pub(crate) sessions: std::sync::Mutex<Vec<Session>>,
    /// Whether it has not started yet.
    pub(crate) starting: std::sync::atomic::AtomicBool,
    /// How long its instructions take, in milliseconds.
    pub(crate) instructions_ms: std::sync::atomic::AtomicU64,
}

impl std::ops::Deref for Fake {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self::with_headers(Vec::new())
    }

    pub(crate) fn with_headers(headers: Vec<HeaderParameter>) -> Self {
        Self(Arc::new(Inner {
            begun: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            gate: Notify::new(),
            moved: Notify::new(),
            feeds: Feeds::default(),
            headers: headers.into(),
            callers: std::sync::Mutex::default(),
            fed: std::sync::Mutex::default(),
            curse: std::sync::Mutex::default(),
            panics: std::sync::Mutex::default(),
            sessions: std::sync::Mutex::default(),
            starting: std::sync::atomic::AtomicBool::new(false),
            instructions_ms: std::sync::atomic::AtomicU64::new(0),
        }))
    }

    /// Waits until `count` is at least `expected`.
    pub(crate) async fn until(&self, count: impl Fn(&Inner) -> &AtomicUsize, expected: usize) {
        let wait = async {
            loop {
                let mut moved = std::pin::pin!(self.moved.notified());
                moved.as_mut().enable();
                if count(&self.0).load(Ordering::SeqCst) >= expected {
                    return;
                }
                moved.await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), wait).await.expect("the count is reached");
    }

    /// Panics, once, if this is the chosen place.
    fn panic_at(&self, place: &'static str) {
        let cursed = self.curse.lock().unwrap().take_if(|cursed| *cursed == place).is_some();
        assert!(!cursed, "a panic at `{place}`");
    }

    fn count(&self, count: &AtomicUsize) {
        count.fetch_add(1, Ordering::SeqCst);
        self.moved.notify_waiters();
    }

    /// Sends one notification, then waits until nobody reads any more.
    async fn listen(&self, progress: Option<ProgressSink>) -> Result<Spliced, RpcError> {
        let sink = progress.ok_or_else(|| RpcError::new(code::INTERNAL_ERROR, "nobody to tell"))?;
        let text = r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}"#;
        sink.send(Bytes::from_static(text.as_bytes()));
        sink.closed().await;
        Ok(Raw::literal(r#"{"listened":true}"#).into())
    }

    async fn call(
        &self,
        principal: &Principal,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let text = |name: &str| request.params.get(name).and_then(|raw| raw.to_text());
        let Some(tool) = text("name") else {
            return Err(RpcError::new(code::INVALID_PARAMS, "`params.name` must be a string"));
        };
        let mut running = Running { fake: self, done: false };
        self.count(&self.begun);
        let token =
            request.meta.progress_token.as_ref().map_or("0".to_owned(), |raw| raw.as_str().to_owned());
        let note = |step: usize| {
            let params = format!(r#"{{"progressToken":{token},"progress":{step}}}"#);
            let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
            progress.as_ref().map(|sink| sink.send(Bytes::from(text)))
        };
        let outcome = match tool.as_str() {
            "echo" => Ok(request.params.get("arguments").unwrap_or(Raw::literal("{}"))),
            "steps" => {
                for step in 1..=5 {
                    note(step);
                    tokio::task::yield_now().await;
                }
                Ok(Raw::literal(r#"{"steps":5}"#))
            }
            "burst" => {
                for step in 1..=5 {
                    note(step);
                }
                Ok(Raw::literal(r#"{"burst":5}"#))
            }
            "gate" => {
                self.gate.notified().await;
                Ok(Raw::literal(r#"{"gate":"open"}"#))
            }
            "step_then_gate" => {
                note(1);
                self.gate.notified().await;
                note(2);
                Ok(Raw::literal(r#"{"gate":"open"}"#))
            }
            "hang" => std::future::pending().await,
            "panic" => panic!("a panic at `call`"),
            "step_then_panic" => {
                note(1);
                tokio::task::yield_now().await;
                panic!("a panic at `call`");
            }
            "big" => Ok(Raw::string(&"x".repeat(1024 * 1024))),
            "limited" => Err(limited().of_failure(Failure {
                code: Code::RateLimited,
                retry_after: Some(std::time::Duration::from_millis(1500)),
                quota: None,
            })),
            "limited_upstream" => Err(limited()),
            "scoped" => Err(missing_scope().of_failure(Failure {
                code: Code::InsufficientScope,
                retry_after: None,
                quota: None,
            })),
            "write" if !principal.scopes().any(|scope| scope == "write") => Err(missing_scope()
                .of_failure(Failure { code: Code::InsufficientScope, retry_after: None, quota: None })),
            "write" => Ok(Raw::literal(r#"{"written":true}"#)),
            "of_the_ops" if principal.groups().any(|group| group == "ops") => Ok(Raw::literal("{}")),
            "scoped_upstream" => Err(missing_scope()),
            "capability" => Err(RpcError::new(code::MISSING_CLIENT_CAPABILITY, "needs sampling")),
            "upstream_no_method" => Err(RpcError::new(code::METHOD_NOT_FOUND, "upstream says so")),
            _ => Err(RpcError::new(code::INVALID_PARAMS, "unknown tool")),
        };
        running.done = true;
        self.count(&self.finished);
        outcome.map(Spliced::from)
    }
}

/// The error of a call that is one too many.
fn limited() -> RpcError {
    let data = serde_json::json!({"source": "gateway", "code": "RATE_LIMITED", "retryAfterMs": 1500});
    RpcError::with_data(code::INTERNAL_ERROR, "too many", &data)
}

/// The error of a call whose credential lacks scopes.
fn missing_scope() -> RpcError {
    let data = serde_json::json!({"source": "gateway", "code": "INSUFFICIENT_SCOPE", "scope": "read write"});
    RpcError::with_data(code::INTERNAL_ERROR, "a scope is missing", &data)
}

/// Counts a call that is dropped before its end.
struct Running<'a> {
    fake: &'a Fake,
    done: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.fake.count(&self.fake.cancelled);
        }
    }
}

impl Backend for Fake {
    async fn answer(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        self.callers.lock().unwrap().push(format!("{} {}", caller.principal, caller.revision));
        self.sessions.lock().unwrap().push(caller.session.clone());
        match request.method {
            Method::ToolsList => Ok(Raw::literal(r#"{"tools":[]}"#).into()),
            Method::Discover => Ok(Raw::literal(r#"{"supportedVersions":["2026-07-28"]}"#).into()),
            Method::ToolsCall => self.call(&caller.principal, request, progress).await,
            Method::Listen => self.listen(progress).await,
            _ => Err(RpcError::new(code::METHOD_NOT_FOUND, "no such method")),
        }
    }

    async fn wait_for_instructions(&self) {
        let ms = self.instructions_ms.load(Ordering::SeqCst);
        if ms > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
        }
    }

    fn initialize(&self, _principal: &Principal, revision: Revision) -> Raw {
        self.panic_at("initialize");
        Raw::encode(&serde_json::json!({ "protocolVersion": revision.as_str(), "capabilities": {} }))
    }

    fn header_parameters(&self, _principal: &Principal, tool: &str) -> Arc<[HeaderParameter]> {
        if tool == "echo" { self.headers.clone() } else { Arc::new([]) }
    }

    fn serves(&self, _principal: &Principal, _era: Era, method: &Method) -> bool {
        self.panic_at("serves");
        matches!(method, Method::Discover | Method::ToolsList | Method::ToolsCall)
    }

    fn feed(&self, principal: &Principal, session: &Session) -> Feed {
        self.panic_at("feed");
        let scopes: Vec<&str> = principal.scopes().collect();
        self.fed.lock().unwrap().push(format!("{principal} {}", scopes.join(" ")));
        session.feed_or(|number| self.feeds.open_session(number))
    }

    fn is_ready(&self) -> bool {
        !self.starting.load(Ordering::SeqCst)
    }

    fn panicked(&self, panic: &(dyn std::any::Any + Send)) {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
        self.panics.lock().unwrap().push(words.unwrap_or_default());
        self.moved.notify_waiters();
    }
}

/// The `_meta` members of a modern request.
pub(crate) const ENVELOPE: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#;

/// A modern request; `params` are the members besides `_meta`.
pub(crate) fn modern(id: &str, method: &str, params: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}{comma}"_meta":{{{ENVELOPE}}}}}}}"#
    )
}

/// A legacy request; `params` are all members.
pub(crate) fn legacy(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}}}}}"#)
}

/// A legacy `initialize`.
pub(crate) fn initialize(id: &str, revision: &str) -> String {
    legacy(
        id,
        "initialize",
        &format!(
            r#""protocolVersion":"{revision}","capabilities":{{}},"clientInfo":{{"name":"t","version":"0"}}"#
        ),
    )
}

/// A notification.
pub(crate) fn told(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{{params}}}}}"#)
}

/// The code of an error answer, or 0 for a result.
pub(crate) fn code_of(answer: &serde_json::Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or(0)
}

/// The text of the id member in `line`.
pub(crate) fn id_of(line: &str) -> Option<String> {
    let raw = Raw::parse(line.to_owned()).ok()?;
    Object::parse(&raw).ok()?.get("id").map(|id| id.as_str().to_owned())
}
