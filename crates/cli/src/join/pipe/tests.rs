//! The pipe against scripted gateways, on a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, duplex, split};
use tokio::io::{BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// Both ends of the pipe, as tests use them.
struct End {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

impl End {
    fn of(stream: DuplexStream) -> Self {
        let (reader, writer) = split(stream);
        Self { lines: BufReader::new(reader).lines(), writer }
    }

    async fn says(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).await.unwrap();
        self.writer.write_all(b"\n").await.unwrap();
    }

    async fn hears(&mut self) -> String {
        self.lines.next_line().await.unwrap().expect("a line")
    }

    async fn hears_json(&mut self) -> Value {
        serde_json::from_str(&self.hears().await).unwrap()
    }

    #[track_caller]
    fn hears_nothing(&mut self) {
        let now = futures_util::FutureExt::now_or_never(self.lines.next_line());
        assert!(now.is_none(), "{now:?}");
    }
}

/// Gateways, and attempts that fail, that a test hands out one by one; after the last one every attempt fails.
struct Scripted {
    next: mpsc::Receiver<Option<DuplexStream>>,
    attempts: Arc<AtomicUsize>,
}

impl Gateways for Scripted {
    type Reader = ReadHalf<DuplexStream>;
    type Writer = WriteHalf<DuplexStream>;

    async fn enter(&mut self) -> Result<Entered<Self::Reader, Self::Writer>, Exit> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        match self.next.recv().await.flatten() {
            Some(stream) => Ok(entered(stream)),
            None => Err(Exit::Configuration),
        }
    }
}

fn entered(stream: DuplexStream) -> Entered<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>> {
    let (reader, writer) = split(stream);
    Entered { reader, writer, early: Bytes::new() }
}

struct Setting {
    client: End,
    gateway: End,
    next: Option<mpsc::Sender<Option<DuplexStream>>>,
    attempts: Arc<AtomicUsize>,
    stop: CancellationToken,
    pipe: JoinHandle<Exit>,
}

impl Setting {
    fn new() -> Self {
        Self::with(64 * 1024, 1000)
    }

    /// A pipe whose gateways take so many bytes before they have to read, and whose messages have at most `limit` bytes.
    fn with(buffer: usize, limit: usize) -> Self {
        let ((client, theirs), (gateway, ours)) = (duplex(64 * 1024), duplex(buffer));
        let (next, receiver) = mpsc::channel(8);
        let (attempts, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let mut gateways = Scripted { next: receiver, attempts: Arc::clone(&attempts) };
        let (input, output) = split(theirs);
        let pipe = Pipe::new(input, output, limit, stop.clone());
        let pipe = tokio::task::spawn_local(async move { pipe.run(&mut gateways, entered(ours)).await });
        let (client, gateway) = (End::of(client), End::of(gateway));
        Self { client, gateway, next: Some(next), attempts, stop, pipe }
    }

    /// The gateway dies, and this is the next one.
    async fn another_gateway(&mut self) {
        let (gateway, ours) = duplex(64 * 1024);
        self.gateway = End::of(gateway);
        self.next.as_ref().unwrap().send(Some(ours)).await.unwrap();
    }

    /// The gateway dies, and no attempt to enter another works until this one gives up.
    async fn no_gateway(&mut self) {
        for _ in PAUSES {
            self.next.as_ref().unwrap().send(None).await.unwrap();
        }
        self.gateway = End::of(duplex(1).0);
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::Relaxed)
    }

    /// The client is told that its request cannot be served now.
    async fn is_refused(&mut self, id: &Value) {
        let lost = self.client.hears_json().await;
        let data = &lost["error"]["data"];
        assert_eq!((&lost["id"], &data["code"]), (id, &json!("PROVIDER_UNAVAILABLE")));
        assert_eq!((&data["mayHaveRun"], &data["retryable"]), (&json!(false), &json!(true)));
    }

    async fn handshake(&mut self) {
        self.client.says(INITIALIZE).await;
        assert_eq!(self.gateway.hears().await, INITIALIZE);
        self.gateway.says(&answer("\"i\"", &json!({"capabilities": {"tools": {"listChanged": true}}}))).await;
        assert_eq!(self.client.hears_json().await["id"], "i");
        self.client.says(INITIALIZED).await;
        assert_eq!(self.gateway.hears().await, INITIALIZED);
    }
}

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0", "id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn call(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "a"}}).to_string()
}

fn answer(id: &str, result: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

async fn locally<F: Future<Output = ()>>(test: F) {
    tokio::task::LocalSet::new().run_until(test).await;
}

/// JOIN-4: lines pass unchanged in both directions; what is on its way when the input ends is still delivered.
#[tokio::test(start_paused = true)]
async fn a_byte_pipe() {
    locally(async {
        let mut setting = Setting::new();
        let odd = r#" {"id" : 1, "jsonrpc":"2.0","method":"tools/call" , "params":{"x": 1.0}} "#;
        setting.client.says(odd).await;
        assert_eq!(setting.gateway.hears().await, odd);
        setting.gateway.says(r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#).await;
        assert!(setting.client.hears().await.contains("progress"));
        setting.client.writer.write_all(call(2).as_bytes()).await.unwrap();
        setting.client.writer.shutdown().await.unwrap();
        assert_eq!(setting.gateway.hears().await, call(2), "a last line without its end");
        assert_eq!(setting.gateway.lines.next_line().await.unwrap(), None, "the input has ended");
        setting.gateway.says(&answer("2", &json!({}))).await;
        setting.gateway.says(&answer("1", &json!({}))).await;
        drop(setting.gateway);
        assert_eq!(setting.client.hears().await, answer("2", &json!({})));
        assert_eq!(setting.client.hears().await, answer("1", &json!({})));
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success);
        assert_eq!(setting.attempts.load(Ordering::Relaxed), 0);
    })
    .await;
}

/// JOIN-4: when the gateway dies, a call in flight gets an error, the next gateway gets the handshake again without the client
/// noticing, lists are announced, and the next call works.
#[tokio::test(start_paused = true)]
async fn a_gateway_dies() {
    locally(async {
        let mut setting = Setting::new();
        setting.handshake().await;
        setting.client.says(&call(1)).await;
        setting.gateway.hears().await;
        // Half an answer is no answer.
        setting.gateway.writer.write_all(br#"{"jsonrpc":"2.0","id":1,"resu"#).await.unwrap();
        setting.another_gateway().await;
        let lost = setting.client.hears_json().await;
        assert_eq!((&lost["id"], &lost["error"]["data"]["mayHaveRun"]), (&json!(1), &json!(true)));
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        setting
            .gateway
            .says(&answer("\"i\"", &json!({"capabilities": {"tools": {"listChanged": true}, "prompts": {}}})))
            .await;
        assert_eq!(setting.gateway.hears().await, INITIALIZED);
        assert_eq!(setting.client.hears_json().await["method"], "notifications/tools/list_changed");
        setting.client.says(&call(2)).await;
        assert_eq!(setting.gateway.hears().await, call(2));
        setting.gateway.says(&answer("2", &json!({}))).await;
        assert_eq!(setting.client.hears().await, answer("2", &json!({})));
        setting.client.hears_nothing();
        drop(setting.client);
        assert_eq!(setting.gateway.lines.next_line().await.unwrap(), None);
        drop(setting.gateway);
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success);
    })
    .await;
}

/// JOIN-4: a handshake in flight is answered by the next gateway.
#[tokio::test(start_paused = true)]
async fn a_gateway_dies_during_the_handshake() {
    locally(async {
        let mut setting = Setting::new();
        setting.client.says(INITIALIZE).await;
        setting.gateway.hears().await;
        setting.another_gateway().await;
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        setting.gateway.says(&answer("\"i\"", &json!({"x": 1}))).await;
        assert_eq!(setting.client.hears_json().await["result"], json!({"x": 1}));
        setting.client.says(INITIALIZED).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZED);
        setting.client.hears_nothing();
    })
    .await;
}

/// JOIN-4: a line that the dead gateway did not get whole goes to the next one, and is not answered with an error.
#[tokio::test(start_paused = true)]
async fn what_was_not_sent_is_sent_to_the_next() {
    locally(async {
        let mut setting = Setting::with(20, 1000);
        setting.client.says(&call(1)).await;
        setting.client.says(&call(2)).await;
        tokio::task::yield_now().await;
        setting.another_gateway().await;
        assert_eq!(setting.gateway.hears().await, call(1));
        assert_eq!(setting.gateway.hears().await, call(2));
        setting.client.hears_nothing();
        // The same for a line that has just been read, while another is on its way.
        setting.client.says(&call(3)).await;
        assert_eq!(setting.gateway.hears().await, call(3));
        setting.another_gateway().await;
        for id in [1, 2, 3] {
            assert_eq!(setting.client.hears_json().await["id"], id);
        }
    })
    .await;
}

/// JOIN-4: after a deliberate stop the next gateway is entered when the client needs it, not before.
#[tokio::test(start_paused = true)]
async fn a_gateway_stops() {
    locally(async {
        let mut setting = Setting::new();
        setting.handshake().await;
        setting.client.says(&call(1)).await;
        setting.gateway.hears().await;
        setting.gateway.says(&answer("1", &json!({}))).await;
        setting.gateway.writer.write_all(STOPPED.as_bytes()).await.unwrap();
        setting.another_gateway().await;
        assert_eq!(
            setting.client.hears().await,
            answer("1", &json!({})),
            "the farewell is not for the client"
        );
        sleep(Duration::from_secs(1000)).await;
        assert_eq!(setting.attempts.load(Ordering::Relaxed), 0);
        setting.client.says(&call(2)).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        setting.gateway.says(&answer("\"i\"", &json!({}))).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZED);
        assert_eq!(setting.gateway.hears().await, call(2));
        setting.gateway.writer.write_all(STOPPED.as_bytes()).await.unwrap();
        setting.another_gateway().await;
        assert_eq!(setting.client.hears_json().await["error"]["data"]["retryable"], true);
        drop(setting.client);
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success, "a client that leaves needs no gateway");
        assert_eq!(setting.attempts.load(Ordering::Relaxed), 1);
    })
    .await;
}

/// JOIN-4: attempts to enter the next gateway are bounded. Then waiting requests get an error, the client stays, and its next line
/// is the next occasion.
#[tokio::test(start_paused = true)]
async fn no_gateway_can_be_entered() {
    locally(async {
        let mut setting = Setting::new();
        setting.handshake().await;
        let start = Instant::now();
        setting.no_gateway().await;
        sleep(Duration::from_millis(50)).await;
        setting.client.says(&call(1)).await;
        setting.client.says(&call(2)).await;
        setting.is_refused(&json!(1)).await;
        setting.is_refused(&json!(2)).await;
        assert_eq!(start.elapsed(), PAUSES.iter().sum::<Duration>());
        sleep(Duration::from_secs(1000)).await;
        assert_eq!(setting.attempts(), PAUSES.len(), "an idle client needs none");
        setting.no_gateway().await;
        setting.client.says(&call(3)).await;
        setting.is_refused(&json!(3)).await;
        assert_eq!(setting.attempts(), 2 * PAUSES.len());
        setting.another_gateway().await;
        setting.client.says(&call(4)).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        setting.gateway.says(&answer("\"i\"", &json!({}))).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZED);
        assert_eq!(setting.gateway.hears().await, call(4), "what was refused is not sent");
        setting.client.hears_nothing();
        drop(setting.client);
        assert_eq!(setting.gateway.lines.next_line().await.unwrap(), None);
        drop(setting.gateway);
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success);
    })
    .await;
}

/// JOIN-4: a client that needs no gateway for a while, or leaves then, ends well; one that left a request gets the exit code of the
/// last attempt.
#[tokio::test(start_paused = true)]
async fn a_client_leaves_when_no_gateway_can_be_entered() {
    locally(async {
        let mut setting = Setting::new();
        setting.no_gateway().await;
        sleep(Duration::from_secs(1000)).await;
        assert_eq!(setting.attempts(), PAUSES.len());
        setting.client.hears_nothing();
        drop(setting.client);
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success);

        let mut setting = Setting::new();
        setting.no_gateway().await;
        sleep(Duration::from_millis(50)).await;
        setting.client.says(&call(1)).await;
        setting.client.writer.shutdown().await.unwrap();
        setting.is_refused(&json!(1)).await;
        assert_eq!(setting.pipe.await.unwrap(), Exit::Configuration);
    })
    .await;
}

/// JOIN-4: a handshake that no gateway answers is refused, and can be tried again. A client whose handshake was answered may complete
/// it while there is no gateway.
#[tokio::test(start_paused = true)]
async fn no_gateway_for_a_handshake() {
    locally(async {
        let mut setting = Setting::new();
        setting.client.says(INITIALIZE).await;
        setting.gateway.hears().await;
        setting.no_gateway().await;
        setting.is_refused(&json!("i")).await;
        setting.another_gateway().await;
        setting.client.says(INITIALIZE).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        setting.gateway.says(&answer("\"i\"", &json!({}))).await;
        assert_eq!(setting.client.hears_json().await["result"], json!({}));

        setting.no_gateway().await;
        sleep(Duration::from_millis(50)).await;
        setting.client.says(INITIALIZED).await;
        sleep(Duration::from_secs(1000)).await;
        assert_eq!(setting.attempts(), 2 * PAUSES.len() + 1, "the notification does not wait for a gateway");
        setting.another_gateway().await;
        setting.client.says(&call(1)).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        setting.gateway.says(&answer("\"i\"", &json!({}))).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZED);
        assert_eq!(setting.gateway.hears().await, call(1));
        setting.client.hears_nothing();
    })
    .await;
}

/// JOIN-4: a gateway that does not take the handshake counts as an attempt, and so does one that says nothing.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_does_not_answer() {
    locally(async {
        let mut setting = Setting::new();
        setting.handshake().await;
        setting.another_gateway().await;
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        setting.another_gateway().await;
        let silent = std::mem::replace(&mut setting.gateway, End::of(duplex(1).0));
        let start = Instant::now();
        setting.another_gateway().await;
        assert_eq!(setting.gateway.hears().await, INITIALIZE);
        assert!(start.elapsed() >= HANDSHAKE);
        setting.gateway.says(&answer("\"i\"", &json!({}))).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZED);
        assert_eq!(setting.attempts.load(Ordering::Relaxed), 3);
        drop(silent);
    })
    .await;
}

/// JOIN-4: a client that leaves while no gateway runs ends the pipe at once; one that left a request is served first.
#[tokio::test(start_paused = true)]
async fn a_client_leaves_meanwhile() {
    locally(async {
        let mut setting = Setting::new();
        drop(std::mem::replace(&mut setting.gateway, End::of(duplex(1).0)));
        sleep(Duration::from_millis(10)).await;
        drop(setting.client);
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success);

        let mut setting = Setting::new();
        drop(std::mem::replace(&mut setting.gateway, End::of(duplex(1).0)));
        sleep(Duration::from_millis(10)).await;
        setting.client.says(&call(1)).await;
        setting.client.writer.shutdown().await.unwrap();
        sleep(Duration::from_millis(10)).await;
        setting.another_gateway().await;
        assert_eq!(setting.gateway.hears().await, call(1));
        setting.gateway.says(&answer("1", &json!({}))).await;
        drop(setting.gateway);
        assert_eq!(setting.client.hears().await, answer("1", &json!({})));
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success);
    })
    .await;
}

/// JOIN-4: a signal ends the input; a gateway that never closes does not keep the pipe.
#[tokio::test(start_paused = true)]
async fn a_signal_ends_the_input() {
    locally(async {
        let mut setting = Setting::new();
        setting.client.says(&call(1)).await;
        setting.gateway.hears().await;
        setting.stop.cancel();
        assert_eq!(setting.gateway.lines.next_line().await.unwrap(), None);
        setting.gateway.says(&answer("1", &json!({}))).await;
        assert_eq!(setting.client.hears().await, answer("1", &json!({})));
        let start = Instant::now();
        assert_eq!(setting.pipe.await.unwrap(), Exit::Success);
        assert_eq!(start.elapsed(), LAST_ANSWERS);
    })
    .await;
}

/// JOIN-4: a line that is too long is refused in the words of the gateway, in either state of the pipe.
#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long() {
    locally(async {
        let mut setting = Setting::with(1024, 100);
        let long = format!(r#"{{"jsonrpc":"2.0","id":9,"method":"{}"}}"#, "x".repeat(100));
        setting.client.says(&long).await;
        let refused = setting.client.hears_json().await;
        assert_eq!(refused["id"], 9);
        let words = refused["error"]["message"].as_str().unwrap();
        assert!(words.contains(&format!("{} bytes", long.len())) && words.contains("100"), "{words}");
        setting.client.says(&call(1)).await;
        assert_eq!(setting.gateway.hears().await, call(1));
    })
    .await;
}

/// JOIN-4: what the next gateway answers to repeated subscriptions is not for the client, also in the middle of other lines.
#[tokio::test(start_paused = true)]
async fn repeated_subscriptions_are_silent() {
    locally(async {
        let mut setting = Setting::new();
        setting.handshake().await;
        let subscribe = r#"{"jsonrpc":"2.0","id":5,"method":"resources/subscribe","params":{"uri":"a://b"}}"#;
        setting.client.says(subscribe).await;
        setting.gateway.hears().await;
        setting.gateway.says(&answer("5", &json!({}))).await;
        setting.client.hears().await;
        setting.another_gateway().await;
        setting.gateway.hears().await;
        setting.gateway.says(&answer("\"i\"", &json!({}))).await;
        assert_eq!(setting.gateway.hears().await, INITIALIZED);
        let again = setting.gateway.hears_json().await;
        assert_eq!(
            (&again["method"], &again["params"]),
            (&json!("resources/subscribe"), &json!({"uri": "a://b"}))
        );
        let note = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated"}"#;
        let lines = [note, &answer(&again["id"].to_string(), &json!({})), note].join("\n");
        setting.gateway.says(&lines).await;
        assert_eq!(
            (setting.client.hears().await, setting.client.hears().await),
            (note.to_owned(), note.to_owned())
        );
        setting.client.hears_nothing();
    })
    .await;
}

/// JOIN-4: the answer to a question of the dead gateway goes nowhere, whenever the client writes it.
#[tokio::test(start_paused = true)]
async fn late_answers() {
    locally(async {
        let mut setting = Setting::new();
        for id in [7, 8] {
            setting.gateway.says(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#)).await;
            setting.client.hears().await;
        }
        drop(std::mem::replace(&mut setting.gateway, End::of(duplex(1).0)));
        for id in [7, 8] {
            assert_eq!(setting.client.hears_json().await["params"]["requestId"], id);
        }
        setting.client.says(&answer("7", &json!({}))).await;
        setting.another_gateway().await;
        setting.client.says(&answer("8", &json!({}))).await;
        setting.client.says(&call(1)).await;
        assert_eq!(setting.gateway.hears().await, call(1));
    })
    .await;
}
