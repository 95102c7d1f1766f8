//! Limits as clients meet them: a real gateway with a scripted server, over HTTP, with the record in real files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_access::limits::{BudgetRecord, Costs, PrincipalLimits};
use bridgehead_audit::{Archive, NoopSink, StoreOptions, StoreSink};
use bridgehead_call::AuditSink;
use bridgehead_config::{
    GatewaySettings, HttpSettings, Launch, LimitRule, Rate, Secret, ServerConfig, Stdio, ToolOverride, Who,
};
use bridgehead_front::{Workers, authenticator, router, serve};
use bridgehead_gateway::{Gateway, Options};
use bridgehead_testkit::client::{HttpClient, HttpReply, modern_headers, modern_params};
use bridgehead_testkit::{Behaviour, FakeClock, LeakCheck, Mock};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

fn rule() -> LimitRule {
    LimitRule {
        who: vec![Who::Local],
        tools: Vec::new(),
        rate: None,
        concurrent: None,
        budget_per_day: None,
        line: 3,
    }
}

struct World {
    gateway: Gateway,
    address: SocketAddr,
    shutdown: CancellationToken,
    leaks: LeakCheck,
}

impl World {
    /// A gateway with the tools `m__say` and `m__big`, which costs 2.
    async fn start(
        rule: LimitRule,
        clock: &FakeClock,
        audit: Arc<dyn AuditSink>,
        record: Option<&Path>,
    ) -> Self {
        let leaks = LeakCheck::start().required();
        let text = || Behaviour::Text("said".to_owned());
        let mock = Mock::modern().tool("say", text()).tool("big", text());
        let (program, args) = mock.command();
        let mut stdio = Stdio::new(program.to_str().unwrap(), args);
        for (name, value) in mock.env().into_iter().chain([leaks.marker()]) {
            stdio.env.insert(name, Secret::new(value));
        }
        let settings = GatewaySettings::default();
        let mut server = ServerConfig::new("m".parse().unwrap(), Launch::Stdio(stdio), &settings);
        server.tools = [("big".to_owned(), ToolOverride { cost: Some(2), ..ToolOverride::default() })].into();
        let servers = vec![server];
        let record = record.map(|folder| BudgetRecord {
            archive: Archive::in_folder(folder),
            configuration: "bridgehead.toml".to_owned(),
        });
        let limits =
            PrincipalLimits::new(vec![rule], Costs::of(&servers), Arc::new(clock.clone()), record).unwrap();
        let gateway = Gateway::new(Options {
            servers,
            audit,
            limiter: Some(Arc::new(limits)),
            clock: Arc::new(clock.clone()),
            environment: Some(BTreeMap::new()),
            ..Options::default()
        });
        let gateway = gateway.unwrap();
        gateway.start();
        gateway.settled().await;
        let settings = HttpSettings::default();
        let (listener, shutdown) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), CancellationToken::new());
        let address = listener.local_addr().unwrap();
        let signs_in = authenticator(&settings, None);
        let routes = router(gateway.clone(), &settings, signs_in, shutdown.clone());
        let ending = shutdown.clone();
        tokio::spawn(async move { serve(listener, routes, &Workers::start(1).unwrap(), ending).await });
        Self { gateway, address, shutdown, leaks }
    }

    async fn modern(&self, tool: &str) -> HttpReply {
        self.ask("tools/call", json!({"name": tool, "arguments": {}})).await
    }

    async fn discover(&self) -> HttpReply {
        self.ask("server/discover", json!({})).await
    }

    async fn ask(&self, method: &str, params: Value) -> HttpReply {
        let params = modern_params(params);
        let headers = modern_headers(method, &params);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        HttpClient::new(self.address).post("/mcp", &headers, body.to_string()).await
    }

    async fn legacy(&self, session: &[(&str, &str)], method: &str, params: Value) -> HttpReply {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        HttpClient::new(self.address).post("/mcp", session, body.to_string()).await
    }

    async fn end(self, record: Option<Arc<StoreSink>>) {
        self.shutdown.cancel();
        self.gateway.stop().await;
        drop(self.gateway);
        if let Some(record) = record {
            record.close();
        }
        self.leaks.assert_clean().await;
    }
}

fn code(reply: &HttpReply) -> Value {
    reply.answer()["error"]["data"]["code"].clone()
}

/// ACC-5 (case 27): a burst passes, then a modern client gets status 429 with its headers, and a legacy client the same error
/// as an ordinary answer. Both may go on when the time has come.
#[tokio::test]
async fn a_rate_in_both_eras() {
    let number = |number| NonZeroU32::new(number).unwrap();
    let rate = Rate { count: number(60), per: Duration::from_secs(60), burst: number(4) };
    let clock = FakeClock::new();
    let rule = LimitRule { rate: Some(rate), ..rule() };
    let world = World::start(rule, &clock, Arc::new(NoopSink), None).await;
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let opened = world.legacy(&[], "initialize", hello.clone()).await;
    let session = [("mcp-session-id", opened.header("mcp-session-id").unwrap())];
    let say = json!({"name": "say", "arguments": {}});
    for _ in 0..2 {
        assert_eq!(world.modern("say").await.answer()["result"]["content"][0]["text"], "said");
    }
    let answer = world.legacy(&session, "tools/call", say.clone()).await;
    assert_eq!(answer.answer()["result"]["content"][0]["text"], "said");

    clock.advance(Duration::from_millis(300));
    let refused = world.modern("say").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.header("ratelimit-policy"), Some("\"rate\";q=60;w=60"));
    assert_eq!(refused.header("ratelimit"), Some("\"rate\";r=0;t=1"));
    let error = &refused.json()["error"];
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32603), &json!("RATE_LIMITED")));
    assert_eq!((&error["data"]["retryable"], &error["data"]["retryAfterMs"]), (&json!(true), &json!(700)));
    assert_eq!((&error["data"]["mayHaveRun"], &error["data"]["tool"]), (&json!(false), &json!("say")));
    let refused = world.legacy(&session, "tools/call", say.clone()).await;
    assert_eq!((refused.status, refused.header("retry-after")), (200, None));
    let error = &refused.answer()["error"];
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32603), &json!("RATE_LIMITED")));
    assert_eq!(error["data"]["retryAfterMs"], 700);
    // What begins a session, or asks what the gateway is, counts as any other request.
    let again = world.legacy(&[], "initialize", hello).await;
    assert_eq!((code(&again), again.header("mcp-session-id")), (json!("RATE_LIMITED"), None));
    let described = world.discover().await;
    assert_eq!((described.status, code(&described)), (429, json!("RATE_LIMITED")));

    clock.advance(Duration::from_millis(700));
    assert_eq!(
        world.legacy(&session, "tools/call", say).await.answer()["result"]["content"][0]["text"],
        "said"
    );
    assert_eq!(world.modern("say").await.status, 429);
    world.end(None).await;
}

fn copied(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

/// ACC-5 (case 28): what was spent today is known after a kill, from the record as it then is. A call that did not run cost
/// nothing, and the next day begins anew.
#[tokio::test]
async fn a_budget_survives_a_kill() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), FakeClock::new());
    let open = |folder: &Path| {
        let mut options = StoreOptions::new(folder);
        options.clock = Arc::new(clock.clone());
        Arc::new(StoreSink::open(options).unwrap())
    };
    let rule = LimitRule { budget_per_day: Some(4), ..rule() };
    let sink = open(folder.path());
    let world = World::start(rule.clone(), &clock, Arc::clone(&sink) as _, Some(folder.path())).await;
    for (tool, expected) in
        [("big", 200), ("unknown", 200), ("say", 200), ("big", 429), ("say", 200), ("say", 429)]
    {
        assert_eq!(world.modern(tool).await.status, expected, "{tool}");
    }
    let refused = world.modern("say").await;
    assert_eq!((code(&refused), refused.header("retry-after")), (json!("BUDGET_EXHAUSTED"), Some("86400")));
    assert_eq!(refused.header("ratelimit"), Some("\"budget\";r=0;t=86400"));
    // The files as they are now are what a kill leaves; the locks die with the process.
    let left = copied(folder.path());
    world.end(Some(sink)).await;

    let sink = open(left.path());
    let world = World::start(rule, &clock, Arc::clone(&sink) as _, Some(left.path())).await;
    assert_eq!(code(&world.modern("say").await), json!("BUDGET_EXHAUSTED"));
    clock.advance(Duration::from_secs(86_400));
    assert_eq!(world.modern("big").await.status, 200);
    world.end(Some(sink)).await;
}
