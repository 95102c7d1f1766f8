//! Shared by the tests of this crate: a client in this process.

use bridgehead_testkit::client::modern_params;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

/// A modern client on the other end of a pair of pipes.
pub(crate) struct MemoryClient {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
}

impl MemoryClient {
    pub(crate) fn new(stream: DuplexStream) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader: BufReader::new(reader), writer }
    }

    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Value {
        self.send(method, params).await;
        self.recv().await.expect("an answer")
    }

    /// Sends a request and does not wait.
    pub(crate) async fn send(&mut self, method: &str, params: Value) {
        let params = modern_params(params);
        self.write(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).await;
    }

    /// Sends a message as it is.
    pub(crate) async fn write(&mut self, message: &Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    pub(crate) async fn call(&mut self, name: &str) -> Value {
        let answer = self.request("tools/call", json!({"name": name, "arguments": {}})).await;
        answer["result"].clone()
    }

    /// The next message; `None` once the server has closed.
    pub(crate) async fn recv(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.reader.read_line(&mut line).await.unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }
}
