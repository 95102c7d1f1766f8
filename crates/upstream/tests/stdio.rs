//! Real server processes behind the stdio transport.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{GatewaySettings, Launch, ServerConfig, Stdio};
use bridgehead_testkit::{Behaviour, LeakCheck, Mock, Probe, Tool};
use bridgehead_upstream::{
    Event, Exchange, Purpose, Ready, RestartPolicy, Surroundings, Unavailable, Upstream, UpstreamState,
};
use bridgehead_wire::{Method, Raw, Revision, Spliced};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

const LIMIT: usize = 1 << 20;

fn surroundings(environment: BTreeMap<String, String>) -> Surroundings {
    Surroundings {
        environment: Arc::new(environment),
        limit: LIMIT,
        credentials: None,
        changed: Arc::new(Notify::new()),
        notices: None,
        warm_up: Arc::new(Semaphore::new(8)),
        signals: bridgehead_events::Signals::default(),
        records: bridgehead_upstream::ServerRecords::default(),
        shelf: None,
        policy: RestartPolicy::REGISTRY,
    }
}

/// A started mock; every test ends with [`Running::end`], which also checks for leftovers.
struct Running {
    upstream: Upstream,
    leaks: LeakCheck,
}

impl Running {
    fn start(mock: &Mock) -> Self {
        Self::start_with(mock, &BTreeMap::new())
    }

    fn start_with(mock: &Mock, environment: &BTreeMap<String, String>) -> Self {
        let leaks = LeakCheck::start().required();
        let (program, args) = mock.command();
        let mut stdio = Stdio::new(program.to_str().unwrap(), args);
        let (mark, value) = leaks.marker();
        let marker = (mark, value);
        for (name, value) in mock.env().into_iter().chain([marker]) {
            stdio.env.insert(name, bridgehead_config::Secret::new(value));
        }
        let server =
            ServerConfig::new("mock".parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default());
        let upstream = Upstream::start(server, surroundings(environment.clone()));
        Self { upstream, leaks }
    }

    async fn ready(&self) -> Arc<Ready> {
        self.upstream.settled().await;
        match self.upstream.state() {
            UpstreamState::Ready(ready) => ready,
            other => panic!("not ready: {other:?}"),
        }
    }

    async fn end(self) {
        self.upstream.stop().await;
        self.leaks.assert_clean().await;
    }
}

async fn open(ready: &Ready, tool: &str, arguments: Value) -> Exchange {
    let mut exchange = ready.link.open(Purpose::Ordinary);
    let mut params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": exchange.id()}});
    if ready.peer.revision == Revision::MODERN {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    }
    exchange.send(&Method::ToolsCall, &Spliced::from(Raw::encode(&params))).await;
    exchange
}

async fn call(ready: &Ready, tool: &str) -> Result<Raw, String> {
    match open(ready, tool, json!({})).await.answer().await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(error.body().as_str().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

async fn revision_of(mock: &Mock) -> Revision {
    let running = Running::start(&mock.clone().tool("echo", Behaviour::Echo));
    let ready = running.ready().await;
    let revision = ready.peer.revision;
    assert!(call(&ready, "echo").await.is_ok());
    drop(ready);
    running.end().await;
    revision
}

/// LINK-1: both eras and every odd answer to the probe.
#[tokio::test]
async fn every_kind_of_server_comes_up() {
    assert_eq!(revision_of(&Mock::modern()).await, Revision::MODERN);
    assert_eq!(revision_of(&Mock::new()).await, Revision::MODERN);
    assert_eq!(revision_of(&Mock::legacy()).await, Revision::V2025_11_25);
    assert_eq!(revision_of(&Mock::legacy().revision("2024-11-05")).await, Revision::V2024_11_05);
    assert_eq!(revision_of(&Mock::legacy().on_probe(Probe::Exit { status: 1 })).await, Revision::V2025_11_25);
    assert_eq!(revision_of(&Mock::legacy().on_probe(Probe::ForeignId)).await, Revision::V2025_11_25);
}

/// LINK-1: the child gets the listed variables and those of `env`, and nothing else.
#[tokio::test]
async fn the_environment_is_cleared() {
    let values = ["HOME", "MINE", "SECRET"].map(str::to_owned).to_vec();
    let mock = Mock::legacy().variable("MINE", "given").tool("env", Behaviour::Environment { values });
    let ours = [("HOME", "/home/someone"), ("SECRET", "hunter2"), ("PATH", "/usr/bin")];
    let ours = ours.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let running = Running::start_with(&mock, &ours);
    let ready = running.ready().await;
    let text = call(&ready, "env").await.unwrap().as_str().to_owned();
    assert!(text.contains("/home/someone") && text.contains("given"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("SECRET"), "{text}");
    running.end().await;
}

/// LINK-1: the pid is tracked, and stderr is captured: an error quotes its end.
#[tokio::test]
async fn a_crash_is_told_with_status_and_stderr() {
    let mock = Mock::legacy()
        .stderr("password=hunter2 about to go")
        .tool("die", Behaviour::Crash(bridgehead_testkit::Crash::Exit { status: 3 }));
    let running = Running::start(&mock);
    let ready = running.ready().await;
    assert!(std::path::Path::new(&format!("/proc/{}", ready.pid.unwrap())).exists());
    let mut other = open(&ready, "die", json!({})).await;
    let error = other.answer().await.unwrap_err().to_string();
    assert!(error.contains("exit status 3") && error.contains("about to go"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    let mut states = running.upstream.watch();
    let down = states.wait_for(|state| matches!(state, UpstreamState::Restarting(_))).await.unwrap().clone();
    let UpstreamState::Restarting(outage) = down else { unreachable!() };
    assert!(outage.reason.contains("exit status 3"), "{}", outage.reason);
    assert_eq!(outage.last.as_ref().map(|last| last.tools.len()), Some(1), "its tools are remembered");
    let later = open(&ready, "die", json!({})).await.answer().await;
    assert!(later.is_err(), "a link that ended refuses at once");
    running.end().await;
}

#[tokio::test]
async fn noise_wrong_ids_and_second_answers_do_no_harm() {
    let mock = Mock::legacy()
        .noise("Starting up... {not json}")
        .tool("wrong", Behaviour::WrongId)
        .tool("twice", Behaviour::DoubleAnswer)
        .tool("echo", Behaviour::Echo);
    let running = Running::start(&mock);
    let ready = running.ready().await;
    for _ in 0..3 {
        assert!(call(&ready, "wrong").await.is_ok());
        assert!(call(&ready, "twice").await.is_ok());
        assert!(call(&ready, "echo").await.is_ok());
    }
    assert_eq!(ready.link.in_flight(), 0);
    running.end().await;
}

/// A line over the limit is an error of that call, never a hang, and the link stays usable.
#[tokio::test]
async fn an_oversized_answer_is_an_error() {
    let mock = Mock::legacy().tool("flood", Behaviour::Flood { megabytes: 5 }).tool("echo", Behaviour::Echo);
    let running = Running::start(&mock);
    let ready = running.ready().await;
    let error = call(&ready, "flood").await.unwrap_err();
    assert!(error.contains("max_message_mb"), "{error}");
    assert!(call(&ready, "echo").await.is_ok());
    running.end().await;
}

#[tokio::test]
async fn progress_comes_in_order_and_before_the_answer() {
    let mock = Mock::modern().tool("work", Behaviour::Text("done".to_owned()).with_progress(50));
    let running = Running::start(&mock);
    let ready = running.ready().await;
    let mut exchanges = Vec::new();
    for _ in 0..20 {
        exchanges.push(open(&ready, "work", json!({})).await);
    }
    for mut exchange in exchanges {
        let mut last = -1.0;
        loop {
            match exchange.next().await {
                Event::Progress(params) => {
                    let params: Value = params.decode().unwrap();
                    assert_eq!(params["progressToken"], exchange.id());
                    assert!(params["progress"].as_f64().unwrap() > last);
                    last = params["progress"].as_f64().unwrap();
                }
                Event::Answer(answer) => break assert!(answer.is_ok()),
                Event::Lost(error) => panic!("{error}"),
                Event::Log(_) | Event::Acknowledged => panic!("nothing of this was requested"),
                Event::Asked(_) | Event::Withdrawn(_) => panic!("this client cannot be asked"),
            }
        }
        assert!(last > 0.0, "some progress arrived");
    }
    running.end().await;
}

/// POOL-10: dropping a request cancels it upstream.
#[tokio::test]
async fn a_dropped_request_is_cancelled() {
    let mock =
        Mock::legacy().tool("hang", Behaviour::HangUntilCancelled).tool("report", Behaviour::ReportCancelled);
    let running = Running::start(&mock);
    let ready = running.ready().await;
    let exchange = open(&ready, "hang", json!({})).await;
    let id = exchange.id();
    tokio::task::yield_now().await;
    drop(exchange);
    let report = call(&ready, "report").await.unwrap();
    assert!(report.as_str().contains(&id.to_string()), "{}", report.as_str());
    assert_eq!(ready.link.in_flight(), 0);
    running.end().await;
}

#[tokio::test]
async fn servers_that_do_not_come_up_say_why() {
    let reason = async |mock: &Mock| {
        let running = Running::start(mock);
        running.upstream.settled().await;
        let UpstreamState::Restarting(outage) = running.upstream.state() else {
            panic!("{:?}", running.upstream.state())
        };
        running.end().await;
        outage.reason.clone()
    };
    let text = reason(&Mock::legacy().revision("1999-09-09")).await;
    assert!(text.contains("1999-09-09"), "{text}");
    let text = reason(&Mock::legacy().tool("a", Behaviour::Echo).endless_pages()).await;
    assert!(text.contains("tools/list"), "{text}");
    let text =
        reason(&Mock::legacy().on_initialize(bridgehead_testkit::Initialize::Exit { status: 9 })).await;
    assert!(text.contains("exit status 9"), "{text}");
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_named() {
    let leaks = LeakCheck::start();
    let stdio = Stdio::new("no-such-program-here", Vec::<String>::new());
    let server =
        ServerConfig::new("gone".parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default());
    let path = [("PATH".to_owned(), "/usr/bin".to_owned())].into();
    let upstream = Upstream::start(server, surroundings(path));
    upstream.settled().await;
    let UpstreamState::Restarting(outage) = upstream.state() else { panic!() };
    assert!(outage.reason.contains("no-such-program-here"), "{}", outage.reason);
    upstream.stop().await;
    leaks.assert_clean().await;
}

#[tokio::test]
async fn all_pages_are_read_and_changes_are_followed() {
    let mut mock = Mock::legacy()
        .pages(3)
        .tool("grow", Behaviour::AddTool(Box::new(Tool::new("later", Behaviour::Echo))));
    for number in 0..10 {
        mock = mock.tool(format!("t{number}"), Behaviour::Echo);
    }
    let running = Running::start(&mock);
    let ready = running.ready().await;
    assert_eq!(ready.tools.len(), 11);
    call(&ready, "grow").await.unwrap();
    let mut states = running.upstream.watch();
    let grown =
        |state: &UpstreamState| matches!(state, UpstreamState::Ready(ready) if ready.tools.len() == 12);
    tokio::time::timeout(Duration::from_secs(60), states.wait_for(grown)).await.unwrap().unwrap();
    running.end().await;
}

/// A server that is still starting when the gateway stops leaves nothing behind either.
#[tokio::test]
async fn stopping_during_the_start_leaves_nothing() {
    let running = Running::start(
        &Mock::legacy().on_probe(Probe::Silent).on_initialize(bridgehead_testkit::Initialize::Silent),
    );
    tokio::task::yield_now().await;
    running.end().await;
}

/// POOL-3, POOL-6: a server that ends by itself is restarted at once, and is ready only with its tools.
#[tokio::test]
async fn a_killed_server_comes_back_with_its_tools() {
    let running = Running::start(&Mock::legacy().tool("echo", Behaviour::Echo));
    for round in 1..=2 {
        let ready = running.ready().await;
        let pid = rustix::process::Pid::from_raw(i32::try_from(ready.pid.unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let mut states = running.upstream.watch();
        states.wait_for(|state| matches!(state, UpstreamState::Restarting(_))).await.unwrap();
        let again = running.upstream.acquire(Instant::now() + Duration::from_secs(60)).await.unwrap();
        assert_ne!(again.pid, ready.pid);
        assert_eq!((again.tools.len(), again.restarts), (1, round));
        assert!(call(&again, "echo").await.is_ok());
    }
    running.end().await;
}

/// POOL-6: the end of a server is noticed even while its changed tool list is being read.
#[tokio::test]
async fn a_server_that_dies_while_it_lists_comes_back() {
    let added = Box::new(Tool::new("added", Behaviour::Echo));
    let mock = Mock::legacy().list_delay_ms(400).tool("add", Behaviour::AddTool(added));
    let running = Running::start(&mock);
    let ready = running.ready().await;
    call(&ready, "add").await.unwrap();
    // The list has been requested again, and its answer is pending.
    while ready.link.in_flight() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(ready.pid.unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let mut states = running.upstream.watch();
    let seen = states.wait_for(|state| matches!(state, UpstreamState::Restarting(_)));
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("the end is noticed").unwrap();
    let again = running.upstream.acquire(Instant::now() + Duration::from_secs(60)).await.unwrap();
    assert_ne!(again.pid, ready.pid);
    running.end().await;
}

/// POOL-6: a managed close schedules no restart. POOL-2: acquire during shutdown fails at once.
#[tokio::test]
async fn a_stopped_server_stays_stopped() {
    let running = Running::start(&Mock::legacy().tool("echo", Behaviour::Echo));
    running.ready().await;
    running.upstream.stop().await;
    assert!(matches!(running.upstream.state(), UpstreamState::Stopped));
    let refused = running.upstream.acquire(Instant::now() + Duration::from_secs(60)).await;
    assert!(matches!(refused, Err(Unavailable::Stopped)));
    let facts = running.upstream.record().facts();
    assert_eq!((facts.restarts, facts.last_error), (0, None), "nothing was lost, and nothing is restarted");
    running.end().await;
}

#[tokio::test]
async fn a_restart_can_be_asked_for() {
    let running = Running::start(&Mock::legacy().tool("echo", Behaviour::Echo));
    let ready = running.ready().await;
    running.upstream.restart();
    let mut states = running.upstream.watch();
    let renewed = |state: &UpstreamState| matches!(state, UpstreamState::Ready(now) if now.pid != ready.pid);
    tokio::time::timeout(Duration::from_secs(60), states.wait_for(renewed)).await.unwrap().unwrap();
    running.end().await;
}

fn missing_program() -> ServerConfig {
    let stdio = Stdio::new("no-such-program-here", Vec::<String>::new());
    ServerConfig::new("gone".parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default())
}

/// HOUR-5: a real process gets the variables it needs to reach the network, without credentials and nothing else. The
/// error of a failed start names the withheld variables, and none of their values.
#[tokio::test]
async fn a_failed_start_names_what_was_held_back() {
    let script = "echo cert=$SSL_CERT_FILE proxy=$HTTPS_PROXY zone=$TZ other=$OTHER_THING t=$TRACKER_TOKEN >&2; \
                  echo TRACKER_TOKEN must be set >&2; exit 3";
    let mut environment: BTreeMap<String, String> =
        std::env::vars().filter(|(name, _)| name == "PATH").collect();
    for (name, value) in [
        ("SSL_CERT_FILE", "/ca.pem"),
        ("TZ", "UTC"),
        ("HTTPS_PROXY", "http://me:hunter2@proxy:3128"),
        ("TRACKER_TOKEN", "hunter2"),
        ("OTHER_THING", "here"),
    ] {
        environment.insert(name.to_owned(), value.to_owned());
    }
    let failed = |inherit: &[&str]| {
        let mut stdio = Stdio::new("sh", ["-c", script]);
        stdio.inherit_env = inherit.iter().map(|name| (*name).to_owned()).collect();
        let server =
            ServerConfig::new("far".parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default());
        let upstream =
            Upstream::start(ServerConfig { restart: false, ..server }, surroundings(environment.clone()));
        async move {
            upstream.settled().await;
            let UpstreamState::Failed(failure) = upstream.state() else { panic!("{:?}", upstream.state()) };
            upstream.stop().await;
            failure.reason.clone()
        }
    };
    let reason = failed(&[]).await;
    assert!(reason.contains("cert=/ca.pem proxy= zone=UTC other= t=\n"), "{reason}");
    let held = "it did not get `HTTPS_PROXY` (its value holds credentials), `TRACKER_TOKEN` from the gateway's environment";
    assert!(reason.contains(held), "{reason}");
    assert!(!reason.contains("hunter2") && !reason.contains("OTHER_THING"), "{reason}");
    let reason = failed(&["HTTPS_PROXY", "TRACKER_TOKEN", "OTHER_THING"]).await;
    assert!(reason.contains("other=here") && !reason.contains("did not get"), "{reason}");
}

/// POOL-2: callers wait at most until 60 s after the start of the initialisation and fail together. Later callers fail
/// at once with the age of the failure; attempts continue forever.
#[tokio::test(start_paused = true)]
async fn waiting_ends_for_all_at_sixty_seconds() {
    let started = Instant::now();
    let upstream = Upstream::start(missing_program(), surroundings(BTreeMap::new()));
    let far = started + Duration::from_secs(3_600);
    let waiters = [0, 10, 40].map(|after| {
        let upstream = upstream.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(after)).await;
            let refused = upstream.acquire(far).await.unwrap_err();
            (Instant::now(), refused)
        })
    });
    let impatient = upstream.acquire(started + Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(impatient, Unavailable::StillRestarting(_)), "{impatient}");
    assert_eq!(started.elapsed().as_secs(), 5);
    for waiter in waiters {
        let (at, refused) = waiter.await.unwrap();
        assert_eq!((at - started).as_secs(), 60);
        assert!(matches!(refused, Unavailable::Down { .. }), "{refused}");
    }
    tokio::time::sleep_until(started + Duration::from_millis(100_500)).await;
    let before = Instant::now();
    let refused = upstream.acquire(far).await.unwrap_err();
    assert_eq!(Instant::now(), before, "the call no longer waits");
    assert!(refused.to_string().contains("100 s"), "{refused}");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let UpstreamState::Restarting(outage) = upstream.state() else { panic!() };
    assert!(outage.attempts > 50, "{}", outage.attempts);
    upstream.stop().await;
}

/// POOL-11: with restart off a lost server stays lost.
#[tokio::test(start_paused = true)]
async fn restart_can_be_off() {
    let server = ServerConfig { restart: false, ..missing_program() };
    let upstream = Upstream::start(server, surroundings(BTreeMap::new()));
    let refused = upstream.acquire(Instant::now() + Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(refused, Unavailable::Failed(_)), "{refused}");
    assert!(matches!(upstream.state(), UpstreamState::Failed(_)));
    upstream.stop().await;
}

/// The resident memory of this process, in megabytes.
fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// BOUND-1: a server that floods requests and does not read costs a few megabytes, delays no other server, and is
/// ended. Its callers get the reason.
#[tokio::test]
async fn a_server_that_floods_requests_is_ended() {
    let flood = Mock::legacy().tool("flood", Behaviour::FloodRequests { method: "ping".to_owned() });
    let flooding = Running::start(&flood);
    let other = Running::start(&Mock::legacy().tool("echo", Behaviour::Echo));
    let (ready, calm) = (flooding.ready().await, other.ready().await);
    let before = resident_mb();
    let mut states = flooding.upstream.watch();
    let mut asked = open(&ready, "flood", json!({})).await;
    let mut answer = std::pin::pin!(asked.answer());
    let (mut most, mut answered) = (before, 0);
    let error = loop {
        tokio::select! {
            biased;
            answer = &mut answer => break answer.unwrap_err().to_string(),
            echoed = call(&calm, "echo") => {
                assert!(echoed.is_ok(), "{echoed:?}");
                answered += 1;
                most = most.max(resident_mb());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    assert!(error.contains("it sends requests and does not read the answers"), "{error}");
    assert!(answered > 10, "{answered} calls of the other server");
    assert!(most < before + 64, "from {before} to {most} MB");
    let down = states.wait_for(|state| matches!(state, UpstreamState::Restarting(_))).await.unwrap().clone();
    let UpstreamState::Restarting(outage) = down else { unreachable!() };
    assert!(outage.reason.contains("does not read the answers"), "{}", outage.reason);
    // Both checks look at the whole process, so neither server may still run.
    other.upstream.stop().await;
    flooding.end().await;
    other.end().await;
}
