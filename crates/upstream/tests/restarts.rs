//! When a server is restarted, and the events of its life: every number, on a clock that only the test moves.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{GatewaySettings, HealthProbe, Launch, Remote, Secret, ServerConfig, Stdio};
use bridgehead_events::{Delivery, Event, Signals, Subscription, Topic};
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply};
use bridgehead_testkit::{Behaviour, Crash, FrozenClock, LeakCheck, Mock};
use bridgehead_upstream::{Registry, RestartPolicy, Surroundings, Upstream, UpstreamState};
use remote::{Running, legacy, modern};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

/// A server behind a registry, and its events.
struct Watched {
    upstream: Upstream,
    told: Subscription,
    _registry: Registry,
}

fn watch(server: ServerConfig) -> Watched {
    let signals = Signals::default();
    let told = signals.bus().subscribe(1_024);
    let surroundings = Surroundings {
        environment: Arc::default(),
        limit: 1 << 20,
        credentials: None,
        changed: Arc::new(Notify::new()),
        notices: None,
        warm_up: Arc::new(Semaphore::new(8)),
        signals,
        records: bridgehead_upstream::ServerRecords::default(),
        shelf: None,
        policy: RestartPolicy::REGISTRY,
    };
    let registry = Registry::new();
    Watched { upstream: registry.attach(server, surroundings), told, _registry: registry }
}

impl Watched {
    async fn next(&mut self) -> Arc<Event> {
        match tokio::time::timeout(Duration::from_secs(600), self.told.next()).await.unwrap() {
            Some(Delivery::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    /// The next event of a topic; earlier ones are skipped.
    async fn until(&mut self, topic: Topic) -> Value {
        loop {
            let event = self.next().await;
            if event.topic() == topic {
                return json!(*event);
            }
        }
    }

    /// All events up to one of a topic.
    async fn all_until(&mut self, topic: Topic) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let event = self.next().await;
            all.push(json!(*event));
            if event.topic() == topic {
                return all;
            }
        }
    }
}

fn missing_program() -> ServerConfig {
    let stdio = Stdio::new("no-such-program-here", Vec::<String>::new());
    ServerConfig::new("gone".parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default())
}

fn running(name: &str, mock: &Mock, leaks: &LeakCheck) -> ServerConfig {
    let (program, args) = mock.command();
    let mut stdio = Stdio::new(program.to_str().unwrap(), args);
    for (name, value) in mock.env().into_iter().chain([leaks.marker()]) {
        stdio.env.insert(name, Secret::new(value));
    }
    ServerConfig::new(name.parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default())
}

/// Some keys of an event.
fn shown<const N: usize>(event: &Value, keys: [&str; N]) -> Value {
    Value::from_iter(keys.map(|key| event[key].clone()))
}

/// POOL-3, BUS-1: a server that does not start is retried after 0, 1, 2, 5, 10, 30 and 60 s, then every 60 s forever.
/// From 5 s on each pause is up to a tenth longer, unless `jitter` is off. The reported delay is the actual one.
#[tokio::test(start_paused = true)]
async fn restarts_come_after_their_delays() {
    let steps = [0, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
    for jitter in [false, true] {
        let mut watched = watch(ServerConfig { jitter, ..missing_program() });
        let mut longer = 0;
        for number in 0..40 {
            let least = steps[usize::min(number, steps.len() - 1)];
            let due = watched.until(Topic::Restart).await;
            let told_at = Instant::now();
            assert_eq!(due["attempt"], number + 1, "{due}");
            assert!(due["reason"].as_str().unwrap().contains("no-such-program-here"), "{due}");
            let delay = due["delayMs"].as_u64().unwrap();
            let most = if jitter && least >= 5_000 { least + least / 10 } else { least };
            assert!((least..=most).contains(&delay), "attempt {number}: {delay}");
            longer += usize::from(delay > least);
            watched.until(Topic::InitStarted).await;
            let waited = u64::try_from(told_at.elapsed().as_millis()).unwrap();
            assert!((delay..=delay + 1).contains(&waited), "attempt {number}: {waited} for {delay}");
        }
        // Of 37 long pauses nearly all get at least a millisecond of jitter.
        assert!(if jitter { longer > 30 } else { longer == 0 }, "{longer}");
        watched.upstream.stop().await;
    }
}

fn pid(upstream: &Upstream) -> Pid {
    let UpstreamState::Ready(ready) = upstream.state() else { panic!("{:?}", upstream.state()) };
    Pid::from_raw(i32::try_from(ready.pid.unwrap()).unwrap()).unwrap()
}

async fn ready(upstream: &Upstream) {
    let mut states = upstream.watch();
    let ready = states.wait_for(|state| matches!(state, UpstreamState::Ready(_)));
    tokio::time::timeout(Duration::from_secs(60), ready).await.unwrap().unwrap();
}

/// Advances the clock past a time that no timer here waits for.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// POOL-3, POOL-6: the delays continue where they were, unless the server was healthy for 60 s. A successful restart
/// releases all waiters.
#[tokio::test]
async fn only_lasting_health_resets_the_delays() {
    let leaks = LeakCheck::start().required();
    let mut server = running("m", &Mock::legacy().tool("echo", Behaviour::Echo), &leaks);
    // The server is probed only if a call asks for it.
    server.probe_interval = Duration::from_secs(36_000);
    let mut watched = watch(server);
    for (served, delay, attempt) in [(0, 0, 1), (0, 1_000, 2), (59, 2_000, 3), (60, 0, 1), (58, 1_000, 2)] {
        ready(&watched.upstream).await;
        pass(Duration::from_secs(served)).await;
        let before = pid(&watched.upstream);
        kill_process(before, Signal::KILL).unwrap();
        let due = watched.until(Topic::Restart).await;
        assert_eq!(shown(&due, ["delayMs", "attempt"]), json!([delay, attempt]), "after {served} s: {due}");
        let far = Instant::now() + Duration::from_secs(3_600);
        let waiting = tokio::spawn({
            let upstream = watched.upstream.clone();
            async move { upstream.acquire(far).await.map(|ready| ready.pid) }
        });
        pass(Duration::from_millis(delay)).await;
        let now = tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap().unwrap();
        assert_ne!(now, Some(before.as_raw_nonzero().get().cast_unsigned()));
    }
    watched.upstream.stop().await;
    leaks.assert_clean().await;
}

/// BUS-1, BUS-2, POOL-8, POOL-14: a successful start reports its probe, outcome, tools and the duration of each, all
/// under one id. The last initialisation is kept.
#[tokio::test(start_paused = true)]
async fn a_start_is_told_to_the_millisecond() {
    let _still = FrozenClock::begin();
    let (lists, may_list) = watch::channel(false);
    let (answers, may_answer) = watch::channel(false);
    let peer = Peer::start(move |asked| {
        let wait = match asked.rpc().as_str() {
            "tools/list" => Some(Part::Until(may_list.clone())),
            "ping" => Some(Part::Until(may_answer.clone())),
            _ => None,
        };
        wait.into_iter().chain(legacy(asked, |_| Vec::new())).collect()
    })
    .await;
    let launch = Launch::Remote(Remote::new(peer.url("/mcp").parse().unwrap()));
    let mut watched = watch(ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default()));
    assert_eq!(watched.upstream.record().facts().last_init, None);
    for (method, opens, time) in [("tools/list", lists, 700), ("ping", answers, 300)] {
        until_asked(&peer, method, 1).await;
        tokio::time::advance(Duration::from_millis(time)).await;
        opens.send_replace(true);
    }
    let told = watched.all_until(Topic::ToolsDiscovered).await;
    let topics: Vec<&str> = told.iter().map(|event| event["topic"].as_str().unwrap()).collect();
    let names = ["init.started", "probe", "init.finished", "tools.discovered"];
    assert_eq!(topics, names.map(|name| format!("provider.mcp.{name}")));
    for event in &told {
        assert_eq!(
            shown(event, ["server", "correlationId"]),
            json!(["far", told[0]["correlationId"]]),
            "{event}"
        );
        assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
    }
    assert_eq!(shown(&told[1], ["ok", "kind", "durationMs", "error"]), json!([true, "ping", 300, null]));
    assert_eq!(
        shown(&told[2], ["outcome", "tools", "durationMs", "error"]),
        json!(["ready", 3, 1_000, null])
    );
    assert_eq!(shown(&told[3], ["count", "names"]), json!([3, ["echo", "slow", "odd"]]));
    let kept = watched.upstream.record().facts().last_init.unwrap();
    assert_eq!((kept.outcome.as_str(), kept.tools, kept.duration_ms, kept.error), ("ready", 3, 1_000, None));
    watched.upstream.stop().await;
}

/// BUS-1, BUS-2, POOL-8: a failed start reports why, under one id for each attempt.
#[tokio::test(start_paused = true)]
async fn a_start_that_fails_is_told() {
    let mut watched = watch(missing_program());
    let mut ids = Vec::new();
    for attempt in 1..=3 {
        let told = watched.all_until(Topic::Restart).await;
        let topics: Vec<&str> = told.iter().map(|event| event["topic"].as_str().unwrap()).collect();
        assert_eq!(
            topics,
            ["init.started", "init.finished", "restart"].map(|name| format!("provider.mcp.{name}"))
        );
        assert!(told.iter().all(|event| event["correlationId"] == told[0]["correlationId"]), "{told:?}");
        assert_eq!(shown(&told[1], ["outcome", "tools"]), json!(["failed", 0]));
        let reason = told[1]["error"].as_str().unwrap();
        assert!(reason.contains("no-such-program-here"), "{reason}");
        assert_eq!(shown(&told[2], ["attempt", "reason"]), json!([attempt, reason]));
        ids.push(told[0]["correlationId"].clone());
    }
    ids.dedup();
    assert_eq!(ids.len(), 3, "an id for each attempt");
    watched.upstream.stop().await;

    let mut watched = watch(ServerConfig { restart: false, ..missing_program() });
    let told = watched.all_until(Topic::ReconnectExhausted).await;
    assert!(told.iter().all(|event| event["topic"] != "provider.mcp.restart"), "{told:?}");
    assert_eq!(told[2]["correlationId"], told[0]["correlationId"]);
    watched.upstream.stop().await;
}

/// BUS-1, BUS-2: the events of a process that ends and returns: the end under the id of the start that brought it up,
/// the return under the id of the next start.
#[tokio::test]
async fn a_loss_and_a_return_are_told() {
    let leaks = LeakCheck::start().required();
    let mock = Mock::legacy()
        .stderr("no licence: token=hunter2")
        .tool("die", Behaviour::Crash(Crash::Exit { status: 3 }));
    let mut watched = watch(running("m", &mock, &leaks));
    let first = watched.until(Topic::ToolsDiscovered).await["correlationId"].clone();
    ready(&watched.upstream).await;
    let before = pid(&watched.upstream);
    let UpstreamState::Ready(now) = watched.upstream.state() else { unreachable!() };
    remote::call(&now, "die").await.unwrap_err();
    let told = watched.all_until(Topic::Reconnected).await;
    let topics: Vec<&str> = told.iter().map(|event| event["topic"].as_str().unwrap()).collect();
    let names = [
        "disconnected",
        "process.exited",
        "restart",
        "init.started",
        "probe",
        "init.finished",
        "tools.refreshed",
        "reconnected",
    ];
    assert_eq!(topics, names.map(|name| format!("provider.mcp.{name}")));
    let second = &told[3]["correlationId"];
    for (at, event) in told.iter().enumerate() {
        let id = if at < 3 { &first } else { second };
        assert_eq!(shown(event, ["server", "correlationId"]), json!(["m", id]), "{event}");
        assert!(!event.to_string().contains("hunter2"), "{event}");
    }
    assert_ne!(&first, second);
    let [exited, restart] = [&told[1], &told[2]];
    assert_eq!(shown(exited, ["pid", "status"]), json!([before.as_raw_nonzero().get(), "exit status 3"]));
    for reason in [&exited["reason"], &restart["reason"]] {
        let reason = reason.as_str().unwrap();
        assert!(reason.contains("exit status 3") && reason.contains("no licence"), "{reason}");
    }
    assert_eq!(shown(restart, ["attempt", "delayMs"]), json!([1, 0]));
    assert_eq!(shown(&told[6], ["added", "removed", "unchanged"]), json!([[], [], 1]));

    assert!(watched.upstream.restart());
    let told = watched.all_until(Topic::Restart).await;
    assert_eq!(told.last().unwrap()["reason"], "it was asked to restart");
    watched.until(Topic::Reconnected).await;
    watched.upstream.stop().await;
    leaks.assert_clean().await;
}

/// Waits until the peer got `method` that many times, while the clock stands still.
async fn until_asked(peer: &Peer, method: &str, times: usize) {
    let began = std::time::Instant::now();
    while peer.asked_for(method).len() < times {
        assert!(began.elapsed() < Duration::from_secs(60), "{method} was not requested");
        tokio::task::yield_now().await;
    }
}

/// POOL-5: by default a server is probed every 30 s, with `ping`, or `server/discover` for a modern one.
#[tokio::test(start_paused = true)]
async fn a_server_is_probed_every_thirty_seconds() {
    type Script = fn(&Asked) -> Vec<Part>;
    let table: [(&str, Script); 2] =
        [("ping", |asked| legacy(asked, |_| vec![])), ("server/discover", |asked| modern(asked, |_| vec![]))];
    for (method, script) in table {
        let _still = FrozenClock::begin();
        let peer = Peer::start(script).await;
        let running = Running::start(&peer, |_, _| {});
        running.ready().await;
        let mut asked = peer.asked_for(method).len();
        for _ in 0..3 {
            tokio::time::advance(Duration::from_millis(29_990)).await;
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            assert_eq!(peer.asked_for(method).len(), asked, "{method} came early");
            tokio::time::advance(Duration::from_millis(11)).await;
            asked += 1;
            until_asked(&peer, method, asked).await;
        }
        running.end().await;
    }
}

/// POOL-5: a server that fails the probe at the end of its start offers no tools.
#[tokio::test]
async fn a_server_that_fails_its_first_probe_offers_nothing() {
    let peer = Peer::start(|asked| match asked.rpc().as_str() {
        "ping" => vec![Part::Close],
        _ => legacy(asked, |_| Vec::new()),
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    running.upstream.settled().await;
    let UpstreamState::Restarting(outage) = running.upstream.state() else {
        panic!("{:?}", running.upstream.state())
    };
    assert!(outage.reason.starts_with("its health probe failed: "), "{}", outage.reason);
    assert!(outage.last.is_none(), "its tools were read, but are not offered");
    running.end().await;
}

/// POOL-2: by default an attempt to start a server may take 180 000 ms.
#[tokio::test(start_paused = true)]
async fn an_attempt_may_take_three_minutes() {
    let peer = Peer::start(|asked| match asked.rpc().as_str() {
        "tools/list" => vec![Part::Hang],
        _ => modern(asked, |_| Vec::new()),
    })
    .await;
    let still = FrozenClock::begin();
    let began = Instant::now();
    let running = Running::start(&peer, |_, _| {});
    until_asked(&peer, "tools/list", 1).await;
    drop(still);
    let outage = running.outage().await;
    assert_eq!(began.elapsed().as_secs(), 180);
    assert!(outage.contains("no usable answer within 180s (`start_timeout_ms`)"), "{outage}");
    running.end().await;
}

fn refuses(asked: &Asked, method: &str) -> Vec<Part> {
    if asked.rpc() != method {
        return legacy(asked, |_| Vec::new());
    }
    let error = json!({"code": -32000, "message": "no"});
    json_reply(&json!({"jsonrpc": "2.0", "id": asked.json()["id"], "error": error}))
}

/// POOL-5, BUS-1: a probe event names the request that was answered.
#[tokio::test]
async fn a_probe_tells_what_was_asked() {
    type Script = fn(&Asked) -> Vec<Part>;
    let table: [(Script, HealthProbe, &str); 4] = [
        (|asked| legacy(asked, |_| vec![]), HealthProbe::Ping, "ping"),
        (|asked| refuses(asked, "ping"), HealthProbe::Ping, "list_tools"),
        (|asked| legacy(asked, |_| vec![]), HealthProbe::ListTools, "list_tools"),
        (|asked| modern(asked, |_| vec![]), HealthProbe::Ping, "discover"),
    ];
    for (script, health_probe, kind) in table {
        let peer = Peer::start(script).await;
        let launch = Launch::Remote(Remote::new(peer.url("/mcp").parse().unwrap()));
        let server = ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default());
        let mut watched = watch(ServerConfig { health_probe, ..server });
        let probe = watched.until(Topic::Probe).await;
        assert_eq!(shown(&probe, ["ok", "kind", "error"]), json!([true, kind, null]), "{probe}");
        watched.upstream.stop().await;
    }
}
