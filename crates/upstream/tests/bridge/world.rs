//! A scripted server, connected to its client in memory: what it does with each call, and what it saw.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::Retry;
use bridgehead_upstream::bridge::{
    AttemptOptions, Bridge, ConnectOptions, Sleep, TransportFactory, connect_to_server, memory_transport,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};

/// What a scripted server does with a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn {
    Answer,
    /// Answers after this many milliseconds.
    After(u64),
    /// The tool reports its own answer as an error.
    ToolError,
    Fail(i64),
    /// Data that violates the tool's output schema.
    Structured,
    /// A malformed result.
    Scalar,
    Silence,
    /// Answers neither this nor anything after it.
    Freeze,
    Close,
    /// Announces a changed list: one more tool, and every tool is read-only.
    NewList,
}

/// Counts of connections and calls, and the pauses taken.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: usize,
    pub(crate) calls: usize,
    pub(crate) cancelled: usize,
    pub(crate) new_list: bool,
    pub(crate) pauses: Vec<Duration>,
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) turns: Arc<Vec<Turn>>,
    /// The annotations of the one tool.
    pub(crate) annotations: Value,
    /// The name that the server reports.
    pub(crate) name: &'static str,
}

impl World {
    pub(crate) fn new(turns: &[Turn]) -> Self {
        Self {
            seen: Arc::default(),
            turns: Arc::new(turns.to_vec()),
            annotations: json!({}),
            name: "scripted",
        }
    }

    pub(crate) fn factory(&self) -> TransportFactory {
        let world = self.clone();
        TransportFactory::new(move |_url| {
            let world = world.clone();
            async move {
                world.seen.lock().connections += 1;
                let (ours, theirs) = memory_transport();
                tokio::spawn(world.serve(theirs));
                Ok(ours)
            }
        })
    }

    pub(crate) async fn serve(self, stream: DuplexStream) {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut lines = BufReader::new(reader).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            let message: Value = serde_json::from_str(&line).unwrap();
            let result = |result: Value| json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            let error = |code: i64| {
                let error = json!({"code": code, "message": "as scripted"});
                json!({"jsonrpc": "2.0", "id": message["id"], "error": error})
            };
            let answer = match message["method"].as_str().unwrap() {
                "server/discover" => error(-32601),
                "initialize" => {
                    result(json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                    "serverInfo": {"name": self.name, "version": "1"}}))
                }
                "tools/list" if self.seen.lock().new_list => {
                    let read_only = json!({"readOnlyHint": true});
                    let tool = |name: &str| json!({"name": name, "annotations": read_only, "inputSchema": {"type": "object"}});
                    result(json!({"tools": [tool("add"), tool("new")]}))
                }
                "tools/list" => result(json!({"tools": [
                    {"name": "add", "annotations": self.annotations, "inputSchema": {"type": "object"}},
                    {"name": "measure", "description": "Measures.", "inputSchema": {"type": "object", "title": "in"},
                     "outputSchema": {"type": "object", "properties": {"n": {"type": "integer", "default": 7}},
                                      "required": ["n"], "additionalProperties": false}},
                    {"name": "broken", "outputSchema": {"type": 5}},
                ]})),
                "tools/call" => {
                    let turn = {
                        let mut seen = self.seen.lock();
                        seen.calls += 1;
                        *self.turns.get(seen.calls - 1).unwrap_or(&Turn::Answer)
                    };
                    let text = json!([{"type": "text", "text": message["params"]["arguments"].to_string()}]);
                    match turn {
                        Turn::After(ms) => {
                            tokio::time::sleep(Duration::from_millis(ms)).await;
                            result(json!({"content": text}))
                        }
                        Turn::Answer => result(json!({"content": text})),
                        Turn::NewList => {
                            self.seen.lock().new_list = true;
                            let note =
                                json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                            writer.write_all(format!("{note}\n").as_bytes()).await.unwrap();
                            result(json!({"content": text}))
                        }
                        Turn::Structured => {
                            let sent = message["params"]["_meta"]["bridgehead/correlationId"].clone();
                            result(
                                json!({"content": text, "structuredContent": {"n": "x", "surplus": 1}, "_meta": {"got/id": sent}}),
                            )
                        }
                        Turn::Scalar => result(json!(5)),
                        Turn::ToolError => result(json!({"content": text, "isError": true})),
                        Turn::Fail(code) => error(code),
                        Turn::Silence => continue,
                        Turn::Freeze => return std::future::pending().await,
                        Turn::Close => return,
                    }
                }
                "notifications/cancelled" => {
                    self.seen.lock().cancelled += 1;
                    continue;
                }
                _ => continue,
            };
            writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        }
    }

    pub(crate) async fn bridge(&self) -> Bridge {
        let options = ConnectOptions::default().factory(self.factory());
        connect_to_server("memory:scripted", options).await.unwrap()
    }

    pub(crate) fn options(&self, retry: Retry) -> AttemptOptions {
        let seen = Arc::clone(&self.seen);
        let sleep = Sleep::new(move |pause| {
            seen.lock().pauses.push(pause);
            async {}
        });
        AttemptOptions::default().retry(retry).sleep(sleep)
    }

    pub(crate) fn pauses(&self) -> Vec<u64> {
        self.seen.lock().pauses.iter().map(Duration::as_secs).collect()
    }
}

/// Keeps the log lines of level WARN.
#[derive(Clone, Default)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {field}={value:?}");
            }
        }
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        self.0.lock().push(fields.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
