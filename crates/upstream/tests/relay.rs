//! The relay as the gateway sees it: lines in and lines out, with a remote server behind them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::time::Duration;

use bridgehead_testkit::{Behaviour, Carrier, Mock, Served, Tool};
use bridgehead_upstream::relay::{carry, told};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};
use tokio::task::JoinHandle;

const CARRIERS: [(Carrier, u8); 3] = [(Carrier::Http, 1), (Carrier::Sse, 2), (Carrier::WebSocket, 3)];

/// A message as its server wrote it.
fn unfolded(line: &str) -> String {
    line.replace('\u{1e}', "\n").replace('\u{1f}', "\r")
}

struct Relay {
    input: DuplexStream,
    output: Lines<BufReader<DuplexStream>>,
    running: JoinHandle<Result<(), carry::Lost>>,
}

impl Relay {
    fn start(url: &str, transport: u8) -> Self {
        let text = json!({
            "name": "far", "url": url, "transport": transport, "headers": {}, "proxy": null,
            "follow_redirects": false, "era": 0, "roots": null, "limit": 1 << 20,
        });
        let task = told(&text.to_string()).unwrap();
        let (input, reads) = tokio::io::duplex(1 << 16);
        let (writes, output) = tokio::io::duplex(1 << 16);
        let running = tokio::spawn(carry::carry(task, reads, writes));
        Self { input, output: BufReader::new(output).lines(), running }
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(Duration::from_secs(30), self.output.next_line()).await;
        line.expect("a line of the relay within 30 s").unwrap().expect("the relay still writes")
    }

    /// Sends a request; returns what comes up to its answer.
    async fn ask(&mut self, id: u64, method: &str, params: Value) -> Vec<String> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        let mut came = Vec::new();
        loop {
            let line = self.line().await;
            let message: Value = serde_json::from_str(&unfolded(&line)).unwrap();
            came.push(line);
            if message["id"] == id && message.get("method").is_none() {
                return came;
            }
        }
    }

    /// The opening of a gateway; returns the answers to `server/discover` and `initialize`.
    async fn open(&mut self) -> [Value; 2] {
        let mut answers = Vec::new();
        for (id, method) in [(1, "server/discover"), (2, "initialize")] {
            let came = self.ask(id, method, json!({})).await;
            answers.push(serde_json::from_str(came.last().unwrap()).unwrap());
        }
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        answers.try_into().unwrap()
    }

    async fn call(&mut self, id: u64, tool: &str) -> Vec<String> {
        let params = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": id}});
        self.ask(id, "tools/call", params).await
    }

    async fn end(self) -> Result<(), carry::Lost> {
        drop(self.input);
        let ended = tokio::time::timeout(Duration::from_secs(30), self.running).await;
        ended.expect("the relay ends within 30 s").unwrap()
    }

    async fn lost(self) -> String {
        let ended = tokio::time::timeout(Duration::from_secs(30), self.running).await;
        ended.expect("the relay ends within 30 s of the loss").unwrap().unwrap_err().to_string()
    }
}

/// A result that a decoder and encoder would change.
const RAW: &str = r#"{ "content":[ ] ,"n":1.0e1, "x":"\u0041" }"#;

fn mock() -> Mock {
    Mock::legacy()
        .server("far away", "9")
        .instructions("be kind")
        .tool("raw", Behaviour::RawResult(RAW.into()))
        .tool("steps", Behaviour::Echo.with_progress(2))
        .tool("hang", Behaviour::HangUntilCancelled)
        .full_tool(Tool::new("asks", Behaviour::ask("elicitation/create", json!({"message": "n?"}))))
}

async fn until(what: &str, ready: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if ready() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 30 s: {what}");
}

fn method(line: &str) -> Value {
    serde_json::from_str::<Value>(line).unwrap()["method"].clone()
}

/// BOX-1: a relay stands for its server. Results, progress and questions pass unchanged and under the gateway's ids, over
/// every transport; the server's own description answers the gateway's opening, and a probe reaches the server.
#[tokio::test]
async fn a_relay_passes_everything_on() {
    for (carrier, transport) in CARRIERS {
        let folder = tempfile::tempdir().unwrap();
        let transcript = folder.path().join("transcript");
        let served: Served = mock().transcript(&transcript).serve(carrier);
        let mut relay = Relay::start(&served.url(), transport);
        let [discovered, initialized] = relay.open().await;
        assert_eq!(discovered["error"]["code"], -32601, "{carrier:?}: {discovered}");
        let said = &initialized["result"];
        assert_eq!(said["serverInfo"], json!({"name": "far away", "version": "9"}), "{carrier:?}: {said}");
        assert_eq!((&said["instructions"], said["capabilities"].is_object()), (&json!("be kind"), true));

        let came = relay.call(21, "raw").await;
        assert_eq!(came, [format!(r#"{{"jsonrpc":"2.0","id":21,"result":{RAW}}}"#)], "{carrier:?}");
        let came = relay.call(22, "steps").await;
        let tokens: Vec<Value> = came[..came.len() - 1]
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["params"]["progressToken"].clone())
            .collect();
        assert_eq!(tokens, [22, 22], "{carrier:?}: {came:?}");

        relay
            .send(&json!({"jsonrpc": "2.0", "id": 23, "method": "tools/call", "params": {"name": "asks"}}))
            .await;
        let asked = relay.line().await;
        assert_eq!(method(&asked), "elicitation/create", "{carrier:?}: {asked}");
        let id = serde_json::from_str::<Value>(&asked).unwrap()["id"].clone();
        relay
            .send(&json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"n": 7}}}))
            .await;
        let answer = relay.line().await;
        assert!(answer.contains(r#""id":23"#) && answer.contains("accept"), "{carrier:?}: {answer}");

        let call = json!({"jsonrpc": "2.0", "id": 24, "method": "tools/call", "params": {"name": "hang"}});
        relay.send(&call).await;
        let seen = |what: &str| std::fs::read_to_string(&transcript).unwrap().matches(what).count();
        until(&format!("{carrier:?}: the call at the server"), || seen(r#""hang""#) > 0).await;
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 24}});
        relay.send(&cancel).await;
        let told = || seen(r#""requestId":24"#) > 0;
        until(&format!("{carrier:?}: the cancellation at the server"), told).await;

        let before = seen(r#""ping""#);
        relay.ask(25, "ping", json!({})).await;
        assert_eq!(seen(r#""ping""#), before + 1, "{carrier:?}: the server itself is probed");
        assert_eq!(relay.end().await, Ok(()), "{carrier:?}");
    }
}

/// BOX-1: an answer that spans lines arrives as it was written, and a probe of a modern server reaches it.
#[tokio::test]
async fn line_breaks_and_the_modern_era() {
    let raw = "{\n  \"content\": [],\r\n  \"resultType\": \"complete\"\n}";
    let folder = tempfile::tempdir().unwrap();
    let transcript = folder.path().join("transcript");
    let mock = Mock::modern().tool("raw", Behaviour::RawResult(raw.into())).transcript(&transcript);
    let served = mock.serve(Carrier::Http);
    let mut relay = Relay::start(&served.url(), 1);
    let [discovered, initialized] = relay.open().await;
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]), "{discovered}");
    assert_eq!(initialized["error"]["code"], -32601, "{initialized}");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let came = relay.ask(21, "tools/call", json!({"name": "raw", "arguments": {}, "_meta": meta})).await;
    let line = came.last().unwrap();
    assert!(unfolded(line).contains(raw), "{line:?}");
    let probes = || std::fs::read_to_string(&transcript).unwrap().matches("server/discover").count();
    let before = probes();
    relay.ask(22, "server/discover", json!({"_meta": meta})).await;
    assert_eq!(probes(), before + 1, "only the first one is answered by the relay");
    assert_eq!(relay.end().await, Ok(()));
}

/// POOL-6, PROV-2: a relay whose server is lost ends and says why: at once where a connection is kept, else at the next
/// request, whose failure says that nothing was sent.
#[tokio::test]
async fn a_relay_ends_with_its_server() {
    for (carrier, transport) in CARRIERS {
        let mut served = mock().serve(carrier);
        let mut relay = Relay::start(&served.url(), transport);
        relay.open().await;
        served.kill();
        if carrier == Carrier::Http {
            let came = relay.call(21, "raw").await;
            let error: Value = serde_json::from_str(&came[0]).unwrap();
            let loss = &error["error"]["data"]["bridgehead/loss"];
            assert_eq!((&loss["kind"], &loss["sent"]), (&json!("closed"), &json!(false)), "{error}");
        }
        let reason = relay.lost().await;
        assert!(reason.contains("127.0.0.1") && !reason.contains('\n'), "{carrier:?}: {reason}");

        let lost = Relay::start(&served.url(), transport).lost().await;
        assert!(lost.contains("cannot connect"), "{carrier:?}: {lost}");
    }
}
