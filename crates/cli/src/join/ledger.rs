//! What a client has open at its gateway, and what its session holds there.
//!
//! The pipe tells the ledger every line in both directions. When a gateway dies, the ledger knows which requests must be
//! answered in its place, and what has to be said again to the next gateway. Ids and methods are found, nothing else is
//! decoded. What is kept is bounded: [`Ledger::is_full`] holds the client back.

use std::collections::{BTreeMap, HashMap, HashSet};

use bridgehead_wire::{Code, Id, Incoming, Message, Method, Note, Object, Raw, RpcError, Shape, code, key};
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;

/// How many requests may be open, and how many bytes their ids may have.
const MOST_OPEN: usize = 16 * 1024;
const MOST_ID_BYTES: usize = 1024 * 1024;
/// How many subscriptions are said again to the next gateway, and how many late answers are recognised.
const MOST_KEPT: usize = 4096;

/// The text of an id.
type IdText = Box<str>;

/// One message of a client's line, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A request.
    Request { id: IdText, what: What, in_batch: bool },
    /// The client no longer wants an answer.
    Cancelled(IdText),
    /// The handshake is complete.
    Initialized,
    /// An answer to a question of the gateway.
    Answer(IdText),
}

/// What a request does to the session, once it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// Begins the session; the whole line.
    Initialize(Bytes),
    /// Sets the log level; the params.
    SetLevel(Raw),
    /// Subscribes to a resource; its URI and the params.
    Subscribe(IdText, Raw),
    /// The opposite.
    Unsubscribe(IdText),
    /// Stays open until it is ended.
    Listen,
    /// Has no effect.
    Read,
    /// Anything else; it may have effects at a server.
    Other,
}

impl What {
    fn of(method: &Method, params: Option<&Raw>, line: &Bytes, in_batch: bool) -> Self {
        let copied = || params.map(Raw::detached);
        let uri = || params.and_then(|params| Object::parse(params).ok()?.get("uri")?.to_text());
        match method {
            // In a batch it is refused.
            Method::Initialize if !in_batch => Self::Initialize(Bytes::copy_from_slice(line)),
            Method::SetLevel => copied().map_or(Self::Other, Self::SetLevel),
            Method::Subscribe => match (uri(), copied()) {
                (Some(uri), Some(params)) => Self::Subscribe(uri.into(), params),
                _ => Self::Other,
            },
            Method::Unsubscribe => uri().map_or(Self::Other, |uri| Self::Unsubscribe(uri.into())),
            Method::Listen => Self::Listen,
            Method::Ping
            | Method::Discover
            | Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::TemplatesList
            | Method::Complete => Self::Read,
            _ => Self::Other,
        }
    }

    /// The answer in place of a gateway that is gone; `None` for what is said again instead.
    fn lost(&self, id: &str) -> Option<String> {
        match self {
            Self::Initialize(_) => None,
            // The right end of a stream of notifications is its result.
            Self::Listen => {
                let meta = format!(r#"{{"{}":{id}}}"#, key::SUBSCRIPTION_ID);
                let result = format!(r#"{{"resultType":"complete","_meta":{meta}}}"#);
                Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
            }
            what => {
                let message = "the gateway ended during the request; the next request finds it running again";
                let may_have_run = !matches!(what, Self::Read | Self::SetLevel(_));
                Some(failed(id, Code::ProviderCrashed, message, may_have_run))
            }
        }
    }
}

/// The messages of one line of the client.
pub(crate) fn sent(line: &Bytes) -> Vec<Sent> {
    let one = |message: Message, in_batch: bool| match message {
        Message::Request(request) => {
            let what = What::of(&request.method, request.params.as_ref(), line, in_batch);
            Some(Sent::Request { id: text(&request.id), what, in_batch })
        }
        Message::Notification(told) => match told.method.note() {
            Some(Note::Initialized) => Some(Sent::Initialized),
            Some(Note::Cancelled) => {
                let id = Object::parse(told.params.as_ref()?).ok()?.get("requestId")?;
                Some(Sent::Cancelled(id.as_str().into()))
            }
            _ => None,
        },
        Message::Response(answer) => answer.id.as_ref().map(|id| Sent::Answer(text(id))),
    };
    match Incoming::parse(line) {
        Ok(Incoming::Single(message)) => one(message, false).into_iter().collect(),
        Ok(Incoming::Batch(items)) => {
            items.into_iter().flatten().filter_map(|item| one(item, true)).collect()
        }
        // The gateway answers it.
        Err(_) => Vec::new(),
    }
}

fn text(id: &Id) -> IdText {
    id.raw().as_str().into()
}

/// The begin of a line of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head<'l> {
    /// Answers a request.
    Answer { id: &'l str, ok: bool },
    /// Asks the client something.
    Question { id: &'l str },
    /// A notification, or a line that has to be read whole.
    Other,
}

impl<'l> Head<'l> {
    /// Reads the form in which this program writes messages.
    pub(crate) fn of(line: &'l [u8]) -> Self {
        Self::found(line).unwrap_or(Self::Other)
    }

    fn found(line: &'l [u8]) -> Option<Self> {
        let rest = line.strip_prefix(b"{\"jsonrpc\":\"2.0\",\"id\":")?;
        let end = match rest.first()? {
            b'"' => {
                let mut escaped = false;
                1 + rest.iter().skip(1).position(|byte| {
                    let closes = *byte == b'"' && !escaped;
                    escaped = *byte == b'\\' && !escaped;
                    closes
                })? + 1
            }
            _ => rest.iter().position(|byte| *byte == b',')?,
        };
        let (id, rest) = rest.split_at_checked(end)?;
        let id = std::str::from_utf8(id).ok()?;
        match rest {
            rest if rest.starts_with(b",\"result\":") => Some(Self::Answer { id, ok: true }),
            rest if rest.starts_with(b",\"error\":") => Some(Self::Answer { id, ok: false }),
            rest if rest.starts_with(b",\"method\":") => Some(Self::Question { id }),
            _ => None,
        }
    }
}

/// The handshake of a legacy client.
#[derive(Debug, Clone)]
struct Handshake {
    id: IdText,
    line: Bytes,
    answered: bool,
    initialized: bool,
}

#[derive(Debug)]
struct Open {
    what: What,
    /// Its place in the order of requests, and the line it came in if that was a batch.
    number: u64,
    batch: Option<u64>,
}

/// What must be said to the next gateway before anything else.
#[derive(Debug)]
pub(crate) struct Again {
    /// The line of the handshake, and the id of its answer.
    pub(crate) handshake: Bytes,
    pub(crate) id: Box<str>,
    /// Whether the client has its answer already.
    pub(crate) answered: bool,
    /// The lines that follow the answer.
    pub(crate) then: BytesMut,
    /// Whether the client may be told that lists have changed.
    pub(crate) hears: bool,
}

/// The books of one client.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    open: HashMap<IdText, Open>,
    id_bytes: usize,
    number: u64,
    batches: u64,
    handshake: Option<Handshake>,
    level: Option<Raw>,
    subscriptions: BTreeMap<IdText, Raw>,
    /// Questions of the gateway that the client has not answered.
    questions: HashSet<IdText>,
    /// Questions of gateways that are gone: their answers go nowhere.
    stale: HashSet<IdText>,
    /// Answers to what was said again, which are not for the client.
    swallowed: HashSet<IdText>,
    again: u64,
}

impl Ledger {
    /// Whether the client has to wait until something is answered.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= MOST_OPEN || self.id_bytes >= MOST_ID_BYTES
    }

    /// Whether the line is only the answer to a question of a gateway that is gone.
    pub(crate) fn is_late(&self, line: &[Sent]) -> bool {
        matches!(line, [Sent::Answer(id)] if self.stale.contains(id))
    }

    /// A line of the client has been sent to the gateway.
    pub(crate) fn was_sent(&mut self, line: Vec<Sent>) {
        self.batches += 1;
        for sent in line {
            match sent {
                Sent::Request { id, what, in_batch } => {
                    if let What::Initialize(line) = &what {
                        let (id, line) = (id.clone(), line.clone());
                        self.handshake = Some(Handshake { id, line, answered: false, initialized: false });
                    }
                    self.number += 1;
                    // A client that uses an id twice gets one answer for it.
                    drop(self.close(&id));
                    self.id_bytes += id.len();
                    let batch = in_batch.then_some(self.batches);
                    self.open.insert(id, Open { what, number: self.number, batch });
                }
                Sent::Cancelled(id) => drop(self.close(&id)),
                Sent::Initialized => {
                    if let Some(handshake) = &mut self.handshake {
                        handshake.initialized = true;
                    }
                }
                Sent::Answer(id) => drop(self.questions.remove(&id)),
            }
        }
    }

    /// The gateway has sent a line; returns whether it is for the client.
    pub(crate) fn was_heard(&mut self, line: &[u8]) -> bool {
        match Head::of(line) {
            Head::Answer { id, .. } if self.swallowed.remove(id) => false,
            Head::Answer { id, ok } => {
                self.answered(id, ok);
                true
            }
            Head::Question { id } => {
                self.stale.remove(id);
                self.questions.insert(id.into());
                true
            }
            Head::Other => {
                if line.first() == Some(&b'[')
                    && let Ok(Incoming::Batch(items)) = Incoming::parse(&Bytes::copy_from_slice(line))
                {
                    for item in items.into_iter().flatten() {
                        if let Message::Response(answer) = item
                            && let Some(id) = &answer.id
                        {
                            self.answered(&text(id), answer.outcome.is_ok());
                        }
                    }
                }
                true
            }
        }
    }

    fn close(&mut self, id: &str) -> Option<What> {
        let open = self.open.remove(id)?;
        self.id_bytes -= id.len();
        Some(open.what)
    }

    fn answered(&mut self, id: &str, ok: bool) {
        match self.close(id) {
            Some(What::Initialize(_)) => match &mut self.handshake {
                Some(handshake) if ok => handshake.answered = true,
                _ => self.handshake = None,
            },
            Some(What::SetLevel(params)) if ok => self.level = Some(params),
            Some(What::Subscribe(uri, params)) if ok && self.subscriptions.len() < MOST_KEPT => {
                self.subscriptions.insert(uri, params);
            }
            Some(What::Unsubscribe(uri)) if ok => drop(self.subscriptions.remove(&uri)),
            _ => {}
        }
    }

    /// The gateway is gone: what the client gets in its place, one message per line.
    pub(crate) fn gateway_is_gone(&mut self) -> BytesMut {
        let mut out = BytesMut::new();
        let mut open: Vec<(IdText, Open)> = self.open.drain().collect();
        open.sort_by_key(|(_, open)| open.number);
        self.id_bytes = 0;
        self.swallowed.clear();
        // The answers to one batch are one array.
        for line in open.chunk_by(|(_, one), (_, other)| one.batch.is_some() && one.batch == other.batch) {
            let answers = line.iter().filter_map(|(id, open)| open.what.lost(id));
            let mut answers = answers.collect::<Vec<String>>().join(",");
            if answers.is_empty() {
                continue;
            }
            if line.iter().any(|(_, open)| open.batch.is_some()) {
                answers = format!("[{answers}]");
            }
            out.put_slice(answers.as_bytes());
            out.put_u8(b'\n');
        }
        let mut questions: Vec<IdText> = self.questions.drain().collect();
        questions.sort();
        for id in questions {
            let params = format!(r#"{{"requestId":{id},"reason":"the gateway that asked has ended"}}"#);
            let line = format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
            out.put_slice(line.as_bytes());
            out.put_u8(b'\n');
            if self.stale.len() < MOST_KEPT {
                self.stale.insert(id);
            }
        }
        out
    }

    /// What must be said to the next gateway; `None` for a client without a handshake.
    pub(crate) fn again(&mut self) -> Option<Again> {
        let handshake = self.handshake.clone()?;
        let mut then = BytesMut::new();
        if handshake.answered {
            if handshake.initialized {
                then.put_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
            }
            let level = self.level.iter().map(|params| ("logging/setLevel", params));
            let subscriptions = self.subscriptions.values().map(|params| ("resources/subscribe", params));
            for (method, params) in level.chain(subscriptions) {
                self.again += 1;
                let id = format!("\"bridgehead-again-{}\"", self.again);
                let params = params.as_str();
                let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
                then.put_slice(line.as_bytes());
                then.put_u8(b'\n');
                self.swallowed.insert(id.into());
            }
        }
        let Handshake { id, line, answered, initialized } = handshake;
        Some(Again { handshake: line, id, answered, then, hears: answered && initialized })
    }

    /// Forgets a handshake without an answer, which no gateway will give; returns its id.
    pub(crate) fn give_handshake_up(&mut self) -> Option<Box<str>> {
        self.handshake.take_if(|handshake| !handshake.answered).map(|handshake| handshake.id)
    }

    /// The next gateway has answered the handshake of a client that had no answer yet.
    pub(crate) fn handshake_was_answered(&mut self, ok: bool) {
        match &mut self.handshake {
            Some(handshake) if ok => handshake.answered = true,
            _ => self.handshake = None,
        }
    }
}

/// The answer to a request that this program fails in place of a gateway.
pub(crate) fn failed(id: &str, failure: Code, message: &str, may_have_run: bool) -> String {
    let rpc_code = match failure.shape() {
        Shape::Rpc(code) => code,
        Shape::ToolResult | Shape::Internal => code::INTERNAL_ERROR,
    };
    let data = json!({
        "source": "gateway",
        "code": failure.as_str(),
        "retryable": failure.retryable(),
        "mayHaveRun": may_have_run,
        "hint": failure.hint(),
    });
    let error = RpcError::with_data(rpc_code, message, &data);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{}}}"#, error.body().as_str())
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::{error_response, request, response};
    use serde_json::Value;

    use super::*;

    fn line(text: &str) -> Vec<Sent> {
        sent(&Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Sends lines of a client, then hears lines of its gateway.
    fn after(client: &[&str], gateway: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for text in client {
            ledger.was_sent(line(text));
        }
        for text in gateway {
            assert!(ledger.was_heard(text.as_bytes()), "{text}");
        }
        ledger
    }

    fn gone(ledger: &mut Ledger) -> Vec<Value> {
        let text = ledger.gateway_is_gone();
        text[..]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    /// The head of every line that the gateway writes is understood.
    #[test]
    fn heads_of_lines() {
        #[track_caller]
        fn check(write: impl FnOnce(&mut BytesMut), expected: Head<'_>) {
            let mut out = BytesMut::new();
            write(&mut out);
            assert_eq!(Head::of(&out), expected, "{out:?}");
        }
        let id = |text: &str| Id::new(Raw::parse(text.to_owned()).unwrap()).unwrap();
        for text in ["7", "-1", r#""a""#, r#""a\"b,\\""#, r#""ä}{""#] {
            let result = Raw::literal("{\"id\":9}").into();
            check(|out| response(out, &id(text), Ok(&result)), Head::Answer { id: text, ok: true });
            let error = RpcError::new(1, "no");
            check(|out| response(out, &id(text), Err(&error)), Head::Answer { id: text, ok: false });
        }
        check(|out| request(out, 3, "roots/list", &Raw::literal("{}").into()), Head::Question { id: "3" });
        check(|out| error_response(out, None, &RpcError::new(1, "no")), Head::Other);
        for text in [
            "",
            "[",
            r#"{"jsonrpc":"2.0","method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":"a"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
        ] {
            assert_eq!(Head::of(text.as_bytes()), Head::Other, "{text}");
        }
    }

    /// JOIN-4: a request in flight gets an error that can be retried and says whether it may have run; an answered or a cancelled
    /// one gets nothing.
    #[test]
    fn what_was_in_flight_is_answered() {
        let mut ledger = after(
            &[
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}"#,
                r#"{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"b"}}"#,
                r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#,
                r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"c"}}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}"#,
                r#"{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen","params":{}}"#,
                "not JSON",
            ],
            &[
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#,
            ],
        );
        let told = gone(&mut ledger);
        assert_eq!(
            told.iter().map(|one| one["id"].clone()).collect::<Vec<_>>(),
            ["\"two\"", "3", "5"].map(|id| { serde_json::from_str::<Value>(id).unwrap() })
        );
        assert_eq!(
            told[0]["error"]["data"],
            json!({
                "source": "gateway", "code": "PROVIDER_CRASHED", "retryable": true, "mayHaveRun": true,
                "hint": Code::ProviderCrashed.hint(),
            })
        );
        assert_eq!(
            (&told[0]["error"]["code"], &told[1]["error"]["data"]["mayHaveRun"]),
            (&json!(-32603), &json!(false))
        );
        assert_eq!(
            told[2]["result"],
            json!({"resultType": "complete", "_meta": {"io.modelcontextprotocol/subscriptionId": 5}})
        );
        assert_eq!(gone(&mut ledger), [Value::Null; 0], "once");
    }

    /// JOIN-4: the answers to a batch are one array, and an answered batch is closed.
    #[test]
    fn batches() {
        let batch = |ids: [u8; 2]| {
            let items = ids.map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call"}));
            Value::from(items.to_vec()).to_string()
        };
        let mut ledger = after(
            &[&batch([1, 2]), &batch([3, 4]), &batch([5, 6]), r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#],
            &[
                r#"[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}]"#,
            ],
        );
        let told = gone(&mut ledger);
        let ids =
            |value: &Value| value.as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
        assert_eq!((ids(&told[0]), ids(&told[1])), (vec![json!(3), json!(4)], vec![json!(5), json!(6)]));
        assert_eq!((told.len(), &told[2]["id"]), (3, &json!(7)));
        let initialize = r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#;
        let mut ledger = after(&[initialize], &[]);
        assert_eq!(ids(&gone(&mut ledger)[0]), [json!(1)], "it is refused in a batch");
        assert!(ledger.again().is_none());
    }

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
    const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    const ANSWERED: &str = r#"{"jsonrpc":"2.0","id":0,"result":{}}"#;

    /// JOIN-4: the handshake, the log level and the subscriptions are said again, as they were answered.
    #[test]
    fn a_session_is_said_again() {
        let subscribe = |id: u8, method: &str, uri: &str| {
            json!({"jsonrpc": "2.0", "id": id, "method": format!("resources/{method}"), "params": {"uri": uri}}).to_string()
        };
        let mut ledger = after(
            &[
                INITIALIZE,
                INITIALIZED,
                r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}"#,
                &subscribe(2, "subscribe", "a://1"),
                &subscribe(3, "subscribe", "a://2"),
                &subscribe(4, "subscribe", "a://3"),
                &subscribe(5, "unsubscribe", "a://2"),
                r#"{"jsonrpc":"2.0","id":6,"method":"logging/setLevel","params":{"level":"nonsense"}}"#,
            ],
            &[
                ANSWERED,
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
                r#"{"jsonrpc":"2.0","id":3,"result":{}}"#,
                r#"{"jsonrpc":"2.0","id":4,"error":{"code":1,"message":"no"}}"#,
                r#"{"jsonrpc":"2.0","id":5,"result":{}}"#,
                r#"{"jsonrpc":"2.0","id":6,"error":{"code":1,"message":"no"}}"#,
            ],
        );
        assert_eq!(gone(&mut ledger), [Value::Null; 0]);
        let again = ledger.again().unwrap();
        assert_eq!(
            (&*again.handshake, &*again.id, again.answered, again.hears),
            (INITIALIZE.as_bytes(), "0", true, true)
        );
        let then = String::from_utf8(again.then.to_vec()).unwrap();
        let then: Vec<Value> = then.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let methods: Vec<_> =
            then.iter().map(|one| (one["method"].as_str().unwrap(), &one["params"])).collect();
        assert_eq!(
            methods,
            [
                ("notifications/initialized", &Value::Null),
                ("logging/setLevel", &json!({"level": "info"})),
                ("resources/subscribe", &json!({"uri": "a://1"})),
            ]
        );
        // The answers to these are not for the client.
        for one in &then[1..] {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, one["id"]);
            assert!(!ledger.was_heard(answer.as_bytes()));
            assert!(ledger.was_heard(answer.as_bytes()), "once");
        }
    }

    /// JOIN-4: a handshake without an answer is said again and gets one; a refused one is forgotten.
    #[test]
    fn a_handshake_without_an_answer() {
        let mut ledger = after(&[INITIALIZE], &[]);
        assert_eq!(gone(&mut ledger), [Value::Null; 0], "the next gateway answers it");
        let again = ledger.again().unwrap();
        assert!(!again.answered && !again.hears && again.then.is_empty());
        ledger.handshake_was_answered(true);
        assert!(ledger.again().unwrap().answered);
        let refused = r#"{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":"no"}}"#;
        assert!(after(&[INITIALIZE], &[refused]).again().is_none());
        let mut ledger = after(&[INITIALIZE], &[]);
        ledger.handshake_was_answered(false);
        assert!(ledger.again().is_none());
        assert!(Ledger::default().again().is_none());
    }

    /// JOIN-4: a question of a gateway that is gone is withdrawn, and its late answer goes nowhere, unless the next gateway asks
    /// under the same id.
    #[test]
    fn questions_of_a_gateway_that_is_gone() {
        let question = |id: u8| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
        let answer = |id: u8| line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        let mut ledger = after(&[], &[&question(1), &question(2)]);
        assert!(!ledger.is_late(&answer(1)));
        ledger.was_sent(answer(1));
        let told = gone(&mut ledger);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(
            (&told[0]["method"], &told[0]["params"]["requestId"]),
            (&json!("notifications/cancelled"), &json!(2))
        );
        assert!(ledger.is_late(&answer(2)) && !ledger.is_late(&answer(1)) && !ledger.is_late(&[]));
        ledger.was_heard(question(2).as_bytes());
        assert!(!ledger.is_late(&answer(2)));
    }

    /// BOUND-1: a client with very many open requests, or very long ids, is held back.
    #[test]
    fn what_is_open_is_bounded() {
        let mut ledger = Ledger::default();
        for id in 0..MOST_OPEN {
            assert!(!ledger.is_full(), "{id}");
            ledger.was_sent(line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)));
        }
        assert!(ledger.is_full());
        ledger.was_heard(br#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
        assert!(!ledger.is_full());
        let mut ledger = Ledger::default();
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(MOST_ID_BYTES));
        ledger.was_sent(line(&long));
        ledger.was_sent(line(&long));
        assert!(ledger.is_full());
        ledger.was_sent(line(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":"{}"}}}}"#,
            "x".repeat(MOST_ID_BYTES)
        )));
        assert!(!ledger.is_full() && ledger.id_bytes == 0);
    }
}
