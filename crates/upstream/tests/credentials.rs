//! Credentials of remote servers: requested for each request, notified of each refusal, shown nowhere.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bridgehead_config::{GatewaySettings, Launch, Remote, RemoteTransport, Secret, ServerConfig};
use bridgehead_testkit::peer::{Asked, Part, Peer, chunk, event, json_reply, last_chunk, reply, stream_head};
use bridgehead_testkit::{Behaviour, Carrier, Mock};
use bridgehead_upstream::credentials::{
    AfterRefusal, CredentialHeaders, CredentialRefusal, CredentialSource, Credentials, NoCredentials,
    Presented,
};
use bridgehead_upstream::{LinkError, Registry};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use remote::{Running, call, heads, legacy, modern, open, overheard, result, surroundings};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Every credential contains this, and no output may.
const SECRET: &str = "hunter2";

fn bearer(token: &str) -> CredentialHeaders {
    let value = Secret::new(format!("Bearer {SECRET}-{token}"));
    CredentialHeaders::new([("Authorization", &value)])
}

/// The token that a request carries.
fn token(asked: &Asked) -> String {
    let value = asked.header("authorization").strip_prefix(&format!("Bearer {SECRET}-"));
    value.unwrap_or_else(|| panic!("no credentials: {asked:?}")).to_owned()
}

fn tokens(asked: &[Asked]) -> Vec<String> {
    asked.iter().map(token).collect()
}

fn source<C: Credentials>(credentials: &Arc<C>) -> Option<CredentialSource> {
    let credentials = Arc::clone(credentials);
    Some(CredentialSource::new(move |_| Some(Arc::<C>::clone(&credentials))))
}

/// A token that changes after each refusal, as long as there is another one.
struct Rotating {
    current: Mutex<CredentialHeaders>,
    next: Mutex<VecDeque<&'static str>>,
    asked: AtomicUsize,
    told: Mutex<Vec<Told>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Told {
    status: u16,
    challenges: Vec<String>,
    /// Whether the refused token is the one it would present now.
    was_current: bool,
    is_final: bool,
}

impl Rotating {
    fn new(first: &str, next: &[&'static str]) -> Arc<Self> {
        Arc::new(Self {
            current: Mutex::new(bearer(first)),
            next: Mutex::new(next.iter().copied().collect()),
            asked: AtomicUsize::new(0),
            told: Mutex::default(),
        })
    }

    fn told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.told.lock())
    }
}

impl Credentials for Rotating {
    fn present(&self) -> Presented<'_> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Presented::Now(self.current.lock().clone())
    }

    fn refused<'a>(&'a self, refusal: CredentialRefusal<'a>) -> BoxFuture<'a, AfterRefusal> {
        let mut current = self.current.lock();
        let was_current = refusal.presented.is_same(&current);
        self.told.lock().push(Told {
            status: refusal.status,
            challenges: refusal.challenges.iter().map(|&challenge| challenge.to_owned()).collect(),
            was_current,
            is_final: refusal.is_final,
        });
        let next = if was_current { self.next.lock().pop_front() } else { None };
        let after = match next {
            Some(next) => {
                *current = bearer(next);
                AfterRefusal::TryAgain
            }
            None if was_current => AfterRefusal::GiveUp,
            None => AfterRefusal::TryAgain,
        };
        Box::pin(std::future::ready(after))
    }
}

/// A new token for each request, by its number; it always allows another try.
#[derive(Default)]
struct Numbered {
    asked: AtomicUsize,
    told: AtomicUsize,
}

impl Credentials for Numbered {
    fn present(&self) -> Presented<'_> {
        Presented::Now(bearer(&self.asked.fetch_add(1, Ordering::SeqCst).to_string()))
    }

    fn refused<'a>(&'a self, _: CredentialRefusal<'a>) -> BoxFuture<'a, AfterRefusal> {
        self.told.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(AfterRefusal::TryAgain))
    }
}

/// GATE-7: each request carries the credentials presented at that moment, and asks for them once.
#[tokio::test]
async fn each_request_asks() {
    let peer = Peer::start(|asked| modern(asked, |asked| json_reply(&result(asked, "hello")))).await;
    let credentials = Rotating::new("a", &[]);
    let running = Running::with(source(&credentials), &peer.url("/mcp"), |_, remote| {
        remote.headers.insert("X-Configured".to_owned(), Secret::new("x"));
    });
    let ready = running.ready().await;
    for token in ["a", "a", "b", "b", "a"] {
        *credentials.current.lock() = bearer(token);
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello");
    }
    assert_eq!(tokens(&peer.asked_for("tools/call")), ["a", "a", "b", "b", "a"]);
    running.end().await;
    let asked = peer.asked();
    assert_eq!(credentials.asked.load(Ordering::SeqCst), asked.len());
    assert!(asked.iter().all(|asked| asked.header("x-configured").is_empty()), "replaced by credentials");
    assert_eq!(peer.connections(), 1);
}

/// GATE-7: credentials are notified of a 401 or 403 with its challenges. If they have others, the request is sent once
/// more, and not a third time. The final error reads as it does without credentials. Neither it nor any log line shows
/// a value.
#[tokio::test]
async fn a_refusal_is_told() {
    let lines = Lines::default();
    let listening = lines.listen();
    let challenges = [format!("Bearer realm=\"{SECRET}\", error=\"invalid_token\""), "Basic".to_owned()];
    for (code, status, words) in [
        (401, "401 Unauthorized", "wants a sign-in (401 with a challenge), which is not supported yet"),
        (403, "403 Forbidden", "forbids it (403): check the credentials under `headers`"),
    ] {
        let headers = challenges.clone().map(|challenge| format!("www-authenticate: {challenge}"));
        let peer = Peer::start(move |asked| {
            modern(asked, |asked| match token(asked).as_str() {
                "good" => json_reply(&result(asked, "hello")),
                _ => reply(status, &headers.each_ref().map(String::as_str), SECRET),
            })
        })
        .await;
        let told = |was_current, is_final| Told {
            status: code,
            challenges: challenges.to_vec(),
            was_current,
            is_final,
        };
        let mut seen = 0;
        let mut posted = || {
            let all = tokens(&peer.asked_for("tools/call"));
            let new = all[seen..].to_vec();
            seen = all.len();
            new
        };
        let credentials = Rotating::new("old", &["good"]);
        let running = Running::with(source(&credentials), &peer.url("/mcp"), |_, _| {});
        let ready = running.ready().await;
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello");
        assert_eq!(
            (posted(), credentials.told()),
            (vec!["old".into(), "good".into()], vec![told(true, false)])
        );
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello");
        assert_eq!((posted(), credentials.told()), (vec!["good".into()], vec![]));

        // The next token is no better, and the one after it is for the next request.
        *credentials.current.lock() = bearer("old");
        *credentials.next.lock() = ["bad", "good"].into();
        let mut exchange = open(&ready, "echo").await;
        let Err(LinkError::Refused { reason, transient: false, .. }) = exchange.answer().await else {
            panic!("an answer")
        };
        assert!(reason.contains(words) && !reason.contains(SECRET), "{reason}");
        assert!(!exchange.was_sent(), "the call never ran");
        assert_eq!(posted(), ["old", "bad"]);
        assert_eq!(credentials.told(), [told(true, false), told(true, true)]);
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello");
        assert_eq!(posted(), ["good"]);

        // There is no other token.
        *credentials.current.lock() = bearer("old");
        let reason = call(&ready, "echo").await.unwrap_err();
        assert!(reason.contains(words) && !reason.contains(SECRET), "{reason}");
        assert_eq!((posted(), credentials.told()), (vec!["old".into()], vec![told(true, false)]));

        // Of many requests refused at once, one makes the token change; all are sent again.
        *credentials.next.lock() = ["good"].into();
        let calls = futures_util::future::join_all((0..20).map(|_| call(&ready, "echo"))).await;
        assert!(calls.iter().all(|answer| answer.as_deref() == Ok("hello")), "{calls:?}");
        assert!(credentials.next.lock().is_empty());
        let shown = format!("{ready:?} {exchange:?} {running:?}", running = running.upstream);
        assert!(!shown.contains(SECRET), "{shown}");
        running.end().await;
    }
    drop(listening);
    let lines = lines.text();
    assert!(lines.contains("the request is sent again with other credentials"), "{lines}");
    assert!(!lines.contains(SECRET), "{lines}");
}

/// GATE-7: every kind of request to a streamable server asks for credentials: messages and answers, its own stream, a
/// resumed stream, the end of the session, and each after a redirect. Each is sent again if refused.
#[tokio::test]
async fn every_kind_of_request_asks() {
    let kind = |asked: &Asked| {
        let rpc = if asked.json()["result"].is_object() { "answer".to_owned() } else { asked.rpc() };
        [asked.method.as_str(), rpc.as_str(), asked.header("last-event-id")].join(" ")
    };
    let (waiting, known) = (Mutex::new(None), Mutex::new(HashSet::new()));
    let peer = Peer::start(move |asked| {
        if known.lock().insert(kind(asked)) {
            return reply("401 Unauthorized", &["www-authenticate: Bearer"], "");
        }
        if asked.target == "/mcp" {
            return reply("307 Temporary Redirect", &["location: /moved"], "");
        }
        match asked.method.as_str() {
            "GET" if asked.header("last-event-id") == "e-1" => {
                let answer: String = waiting.lock().take().unwrap_or_default();
                vec![stream_head(&[]), chunk(&format!("data: {answer}\n\n")), last_chunk()]
            }
            "GET" => {
                let ping = event(&json!({"jsonrpc": "2.0", "id": 7, "method": "ping"}));
                vec![stream_head(&[]), ping, Part::Hang]
            }
            _ => legacy(asked, |asked| {
                *waiting.lock() = Some(result(asked, "resumed").to_string());
                vec![stream_head(&[]), chunk("id: e-1\nretry: 1\n\n"), last_chunk()]
            }),
        }
    })
    .await;
    let credentials = Arc::new(Numbered::default());
    let running = Running::with(source(&credentials), &peer.url("/mcp"), |server, remote| {
        server.era = bridgehead_config::EraChoice::Legacy;
        remote.follow_redirects = true;
    });
    let ready = running.ready().await;
    assert_eq!(call(&ready, "echo").await.unwrap(), "resumed");
    let answered = |peer: &Peer| {
        peer.asked().iter().any(|asked| asked.target == "/moved" && asked.json()["result"].is_object())
    };
    peer.until("its ping is answered", answered).await;
    drop(ready);
    running.end().await;

    let asked = peer.asked();
    let numbers: HashSet<String> = tokens(&asked).into_iter().collect();
    assert_eq!(numbers.len(), asked.len(), "each request has its own credentials");
    assert_eq!(credentials.asked.load(Ordering::SeqCst), asked.len(), "and asked for them once");
    let has = |what: &str, fits: &dyn Fn(&Asked) -> bool| {
        for target in ["/mcp", "/moved"] {
            assert!(asked.iter().any(|asked| asked.target == target && fits(asked)), "{target}: {what}");
        }
    };
    has("a message", &|asked| asked.rpc() == "notifications/initialized");
    has("a call", &|asked| asked.rpc() == "tools/call");
    has("its own stream", &|asked| asked.method == "GET" && asked.header("last-event-id").is_empty());
    has("a stream taken up", &|asked| asked.method == "GET" && asked.header("last-event-id") == "e-1");
    has("the end", &|asked| asked.method == "DELETE");
    let kinds: HashSet<String> = asked.iter().map(kind).collect();
    assert_eq!(credentials.told.load(Ordering::SeqCst), kinds.len(), "each kind was refused once: {kinds:?}");
    assert!(kinds.len() >= 8, "{kinds:?}");
}

/// GATE-7: over every transport each request asks for credentials, and the first may be refused.
#[tokio::test]
async fn every_transport_asks() {
    let mock = |mock: Mock| mock.tool("echo", Behaviour::Text("hello".to_owned()));
    let (old, new) = (mock(Mock::legacy()), mock(Mock::modern()));
    for (era, carrier, configured, methods) in [
        (&old, Carrier::Http, None, &["get", "post", "delete"][..]),
        (&new, Carrier::Http, None, &["post"]),
        (&old, Carrier::Sse, Some(RemoteTransport::Sse), &["get", "post"]),
        (&old, Carrier::WebSocket, None, &["get"]),
        (&new, Carrier::WebSocket, None, &["get"]),
    ] {
        let served = era.serve(carrier);
        let url = served.url();
        let (scheme, rest) = url.split_once("://").unwrap();
        let (address, path) = rest.split_once('/').unwrap();
        let (door, heard) = overheard(address.to_owned()).await;
        let (strict, refused) = refusing_the_first(door).await;
        let credentials = Arc::new(Numbered::default());
        let url = format!("{scheme}://{strict}/{path}");
        let running = Running::with(source(&credentials), &url, |_, remote| {
            remote.transport = configured.unwrap_or(remote.transport);
        });
        let ready = running.ready().await;
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello", "{carrier:?}");
        drop(ready);
        running.end().await;
        let mut requests: Vec<String> = heard.lock().iter().flat_map(|bytes| heads(bytes)).collect();
        for method in methods {
            assert!(requests.iter().any(|head| head.starts_with(&format!("{method} "))), "{carrier:?}");
        }
        requests.extend(refused.lock().iter().flat_map(|bytes| heads(bytes)));
        let numbers: HashSet<&str> = requests
            .iter()
            .map(|head| {
                let value = head.lines().find_map(|line| line.strip_prefix("authorization: bearer hunter2-"));
                value.unwrap_or_else(|| panic!("{carrier:?}: {head}"))
            })
            .collect();
        assert_eq!(numbers.len(), requests.len(), "{carrier:?}");
        assert_eq!(credentials.asked.load(Ordering::SeqCst), requests.len(), "{carrier:?}");
        assert_eq!(credentials.told.load(Ordering::SeqCst), 1, "{carrier:?}");
    }
}

/// GATE-7: a WebSocket that is refused twice fails with the usual error.
#[tokio::test]
async fn a_web_socket_is_refused() {
    let peer = Peer::start(|_| reply("403 Forbidden", &[], SECRET)).await;
    let credentials = Rotating::new("old", &["bad", "good"]);
    let url = format!("ws://{}/", peer.address());
    let running = Running::with(source(&credentials), &url, |_, _| {});
    let outage = running.outage().await;
    assert!(outage.contains("forbids it (403)") && !outage.contains(SECRET), "{outage}");
    assert_eq!(tokens(&peer.asked())[..2], ["old", "bad"]);
    let told: Vec<(u16, bool)> = credentials.told().iter().map(|told| (told.status, told.is_final)).collect();
    assert_eq!(told[..2], [(403, false), (403, true)]);
    running.end().await;
}

/// A proxy in front of a server that refuses the first request, and the bytes of that request.
async fn refusing_the_first(address: String) -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let door = listener.local_addr().unwrap().to_string();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&refused);
    tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        while !bytes.windows(4).any(|part| part == b"\r\n\r\n") {
            first.read_buf(&mut bytes).await.unwrap();
        }
        keeps.lock().push(bytes);
        let refusal = b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer\r\ncontent-length: 0\r\n\
                        connection: close\r\n\r\n";
        first.write_all(refusal).await.unwrap();
        drop(first);
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = tokio::net::TcpStream::connect(&address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    (door, refused)
}

/// Presents what a test sets, possibly late or not at all.
struct Slow {
    says: Mutex<Says>,
    waiting: AtomicUsize,
}

#[derive(Clone)]
enum Says {
    Token(&'static str),
    After(tokio::sync::watch::Receiver<bool>, &'static str),
    Nothing(&'static str),
}

impl Credentials for Slow {
    fn present(&self) -> Presented<'_> {
        match self.says.lock().clone() {
            Says::Token(token) => Presented::Now(bearer(token)),
            Says::Nothing(reason) => {
                Presented::Later(Box::pin(async move { Err(NoCredentials::new(reason)) }))
            }
            Says::After(mut ready, token) => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                Presented::Later(Box::pin(async move {
                    let _ = ready.wait_for(|ready| *ready).await;
                    Ok(bearer(token))
                }))
            }
        }
    }
}

/// GATE-7: a request waits for credentials that are being fetched. Without any it is not sent and says why, and the
/// link stays usable.
#[tokio::test]
async fn a_request_waits_for_its_credentials() {
    let peer = Peer::start(|asked| modern(asked, |asked| json_reply(&result(asked, "hello")))).await;
    let credentials = Arc::new(Slow { says: Mutex::new(Says::Token("a")), waiting: AtomicUsize::new(0) });
    let running = Running::with(source(&credentials), &peer.url("/mcp"), |_, _| {});
    let ready = running.ready().await;

    *credentials.says.lock() = Says::Nothing("sign in with `login far`");
    let mut exchange = open(&ready, "echo").await;
    let refused = exchange.answer().await.unwrap_err();
    let expected =
        LinkError::Refused { reason: "sign in with `login far`".into(), transient: false, denied: false };
    assert_eq!((refused, exchange.was_sent(), ready.link.ended()), (expected, false, None));
    drop(exchange);
    assert!(peer.asked_for("tools/call").is_empty());

    let (fetched, is_fetched) = tokio::sync::watch::channel(false);
    *credentials.says.lock() = Says::After(is_fetched, "b");
    let calling = call(&ready, "echo");
    let fetching = async {
        while credentials.waiting.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert!(peer.asked_for("tools/call").is_empty(), "the call waits");
        fetched.send_replace(true);
    };
    let (called, ()) =
        tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(calling, fetching) })
            .await
            .unwrap();
    assert_eq!(called.unwrap(), "hello");
    assert_eq!(tokens(&peer.asked_for("tools/call")), ["b"]);
    running.end().await;

    *credentials.says.lock() = Says::Nothing("sign in with `login far`");
    let before = peer.asked().len();
    for (scheme, transport) in
        [("http", RemoteTransport::Probe), ("http", RemoteTransport::Sse), ("ws", RemoteTransport::WebSocket)]
    {
        let url = format!("{scheme}://{}/", peer.address());
        let running = Running::with(source(&credentials), &url, |_, remote| remote.transport = transport);
        assert_eq!(running.outage().await, "sign in with `login far`", "{transport:?}");
        running.end().await;
    }
    assert_eq!(peer.asked().len(), before);
}

/// GATE-7: a remote server is shared only by those with the same credential source; a local server has no credentials.
#[tokio::test]
async fn who_shares_a_server() {
    let registry = Registry::new();
    let far = Launch::Remote(Remote::new("http://127.0.0.1:9/".parse().unwrap()));
    let here = Launch::Unusable { reason: "it is not to be run".to_owned() };
    let credentials = Rotating::new("a", &[]);
    let sources = [source(&credentials), source(&credentials), None];
    for (launch, apart) in [(far, 3), (here, 1)] {
        let server = ServerConfig::new("s".parse().unwrap(), launch, &GatewaySettings::default());
        let attach =
            |source: &Option<CredentialSource>| registry.attach(server.clone(), surroundings(source.clone()));
        let attached: Vec<_> = sources.iter().chain(&sources).map(attach).collect();
        assert_eq!(registry.len(), apart);
        for at in 0..3 {
            assert!(attached[at].is_same_process(&attached[at + 3]));
        }
        registry.clean_up().await;
    }
}

/// Log lines of all levels.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        // With a single dispatcher `tracing` caches the first thread's "not interested" for all threads; a second
        // dispatcher prevents that.
        static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
            tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish())
        });
        LazyLock::force(&SECOND);
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || lines.clone())
            .with_ansi(false)
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}
