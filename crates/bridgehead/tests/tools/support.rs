//! Tools of scripted servers, with a recorder and a check for leftovers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead::config::{Launch, Secret, ServerConfig, Stdio};
use bridgehead::tools::{ToolResult, Tools, ToolsOptions};
use bridgehead::{NativeTool, Registry};
use bridgehead_testkit::{LeakCheck, Mock, Recorder};
use serde_json::{Value, json};

/// Started tools. They end by [`World::end`], which also checks for leftovers; a test that forgets it fails.
pub(crate) struct World {
    pub(crate) tools: Tools,
    pub(crate) recorder: Recorder,
    pub(crate) leaks: LeakCheck,
}

/// A server entry that runs a mock.
pub(crate) fn server(name: &str, mock: &Mock, leaks: &LeakCheck) -> ServerConfig {
    let (program, args) = mock.command();
    let mut stdio = Stdio::new(program.to_str().unwrap(), args);
    for (name, value) in mock.env().into_iter().chain([leaks.marker()]) {
        stdio.env.insert(name, Secret::new(value));
    }
    let mut server = ServerConfig::program(name, "replaced", [""; 0]).unwrap();
    server.launch = Launch::Stdio(stdio);
    server
}

/// Options that take nothing of the machine, and a registry of their own: tests of one process do not share servers.
pub(crate) fn options(recorder: &Recorder) -> ToolsOptions {
    Tools::builder()
        .environment(BTreeMap::new())
        .registry(Registry::new())
        .warm_up(Duration::from_secs(60))
        .audit(Arc::new(recorder.clone()))
}

/// A Rust tool that takes any object.
pub(crate) fn native<F, R>(name: &str, handler: F) -> NativeTool
where
    F: Fn(Value) -> R + Send + Sync + 'static,
    R: Future<Output = Value> + Send + 'static,
{
    NativeTool::new(name, "", json!({"type": "object"}), move |arguments, _| {
        let answer = handler(arguments);
        async { Ok(answer.await) }
    })
}

/// Waits until the condition holds.
pub(crate) async fn until(fits: impl Fn() -> bool) {
    for _ in 0..6000 {
        if fits() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition never became true");
}

/// The structured content of a result.
pub(crate) fn structured(result: &ToolResult) -> Value {
    result.raw().decode::<Value>().unwrap()["structuredContent"].clone()
}

impl World {
    /// One server of each mock.
    pub(crate) async fn start(servers: &[(&str, Mock)]) -> Self {
        Self::with(servers, |_| (), |options| options).await
    }

    /// The same with changed servers and options.
    pub(crate) async fn with(
        servers: &[(&str, Mock)],
        change: impl Fn(&mut ServerConfig),
        more: impl FnOnce(ToolsOptions) -> ToolsOptions,
    ) -> Self {
        let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
        let mut options = options(&recorder);
        for (name, mock) in servers {
            let mut server = server(name, mock, &leaks);
            change(&mut server);
            options = options.server(server);
        }
        let tools = more(options).start().await.unwrap();
        Self { tools, recorder, leaks }
    }

    /// Calls a tool without arguments; returns the structured content.
    pub(crate) async fn call(&self, tool: &str) -> Value {
        structured(&self.tools.call(tool, json!({})).await.unwrap())
    }

    /// The process that answers a tool of that behaviour.
    pub(crate) async fn pid(&self, tool: &str) -> u64 {
        self.call(tool).await["pid"].as_u64().unwrap()
    }

    /// Closes the tools, and checks that every call was recorded as a pair and that nothing is left.
    pub(crate) async fn end(self) {
        let Self { tools, recorder, leaks } = self;
        tools.close().await;
        drop(tools);
        leaks.assert_clean().await;
        recorder.assert_paired();
    }
}
