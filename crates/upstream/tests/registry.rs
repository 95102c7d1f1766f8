//! Which servers share a process, and for how long.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{GatewaySettings, Launch, Remote, Secret, ServerConfig, Stdio};
use bridgehead_events::{Delivery, InitOutcome, Signals, Subscription, Topic};
use bridgehead_testkit::{Behaviour, Initialize, LeakCheck, Mock, Probe};
use bridgehead_upstream::{
    Event, Exchange, Lease, ProcessView, Purpose, Registry, RestartPolicy, Surroundings, Unavailable,
    Upstream, UpstreamState,
};
use bridgehead_wire::{Abilities, Method, Raw, Spliced};
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// A registry for servers. It ends by [`World::end`], which also checks for leftovers.
struct World {
    registry: Registry,
    leaks: LeakCheck,
}

impl World {
    fn new() -> Self {
        Self { registry: Registry::new(), leaks: LeakCheck::start().required() }
    }

    fn server(&self, name: &str, mock: &Mock) -> ServerConfig {
        let (program, args) = mock.command();
        let mut stdio = Stdio::new(program.to_str().unwrap(), args);
        for (name, value) in mock.env().into_iter().chain([self.leaks.marker()]) {
            stdio.env.insert(name, Secret::new(value));
        }
        ServerConfig::new(name.parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default())
    }

    fn attach(&self, server: &ServerConfig) -> Upstream {
        self.registry.attach(server.clone(), surroundings())
    }

    async fn end(self) {
        self.registry.clean_up().await;
        assert!(self.registry.is_empty());
        self.leaks.assert_clean().await;
    }
}

fn surroundings() -> Surroundings {
    Surroundings {
        environment: Arc::default(),
        limit: 1 << 20,
        credentials: None,
        changed: Arc::new(Notify::new()),
        notices: None,
        warm_up: Arc::new(Semaphore::new(8)),
        signals: Signals::default(),
        records: bridgehead_upstream::ServerRecords::default(),
        shelf: None,
        policy: RestartPolicy::REGISTRY,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

fn mock() -> Mock {
    Mock::legacy().tool("echo", Behaviour::Echo)
}

fn missing_program() -> ServerConfig {
    let stdio = Stdio::new("no-such-program-here", Vec::<String>::new());
    ServerConfig::new("gone".parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default())
}

async fn pid(upstream: &Upstream) -> u32 {
    upstream.acquire(soon()).await.unwrap().pid.unwrap()
}

async fn becomes(upstream: &Upstream, wanted: impl FnMut(&UpstreamState) -> bool) -> UpstreamState {
    let mut states = upstream.watch();
    let found = tokio::time::timeout(Duration::from_secs(60), states.wait_for(wanted)).await;
    found.unwrap().unwrap().clone()
}

fn is_gone(pid: u32) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// POOL-1: the same server is one process, whatever its name. A difference in anything that concerns the process makes
/// it another one, even under the same name.
#[tokio::test]
async fn a_process_belongs_to_what_the_server_is() {
    let world = World::new();
    let one = world.attach(&world.server("one", &mock()));
    let other_name = world.attach(&world.server("two", &mock()));
    let other_credentials = world.attach(&world.server("one", &mock().variable("TOKEN", "b")));
    let mut patient = world.server("one", &mock());
    patient.request_timeout = Some(Duration::from_secs(1));
    let other_calls = world.attach(&patient);
    let mut probed = world.server("one", &mock());
    probed.probe_interval = Duration::from_secs(1);
    let other_care = world.attach(&probed);
    let limited = Surroundings { limit: 1 << 10, ..surroundings() };
    let other_limit = world.registry.attach(world.server("one", &mock()), limited);
    let home: BTreeMap<_, _> = [("HOME".to_owned(), "/elsewhere".to_owned())].into();
    let at_home = Surroundings { environment: Arc::new(home), ..surroundings() };
    let other_environment = world.registry.attach(world.server("one", &mock()), at_home);

    assert!(one.is_same_process(&other_name));
    assert!(one.is_same_process(&other_calls));
    assert_eq!(pid(&one).await, pid(&other_name).await);
    for other in [&other_credentials, &other_care, &other_limit, &other_environment] {
        assert!(!one.is_same_process(other));
        assert_ne!(pid(&one).await, pid(other).await);
    }
    assert_eq!((one.name().as_str(), other_name.name().as_str()), ("one", "two"));
    assert_eq!(world.registry.len(), 5);
    world.end().await;
}

/// POOL-1: a remote server reached differently is another server, even with the same credentials at the same address.
#[tokio::test]
async fn a_remote_server_is_also_how_it_is_reached() {
    let world = World::new();
    let server = |change: &dyn Fn(&mut Remote)| {
        let mut remote = Remote::new("http://127.0.0.1:9/mcp".parse().unwrap());
        change(&mut remote);
        world.attach(&ServerConfig::new(
            "far".parse().unwrap(),
            Launch::Remote(remote),
            &GatewaySettings::default(),
        ))
    };
    let one = server(&|_| ());
    assert!(one.is_same_process(&server(&|_| ())));
    let others = [
        server(&|remote| remote.follow_redirects = true),
        server(&|remote| remote.proxy = Some("http://127.0.0.1:8".parse().unwrap())),
        server(&|remote| remote.proxy = Some("http://me:a@127.0.0.1:8".parse().unwrap())),
        server(&|remote| remote.proxy = Some("http://me:b@127.0.0.1:8".parse().unwrap())),
    ];
    assert!(others.iter().all(|other| !one.is_same_process(other)));
    assert_eq!(world.registry.len(), 5);
    world.end().await;
}

/// POOL-1: registries share nothing with each other.
#[tokio::test]
async fn registries_are_apart() {
    let (here, there) = (World::new(), World::new());
    let server = here.server("s", &mock());
    let (one, other) = (here.attach(&server), there.attach(&server));
    assert!(!one.is_same_process(&other));
    assert_ne!(pid(&one).await, pid(&other).await);
    here.registry.clean_up().await;
    assert!(one.is_released() && here.registry.is_empty());
    assert!(other.acquire(soon()).await.is_ok());
    there.end().await;
    here.end().await;
}

/// POOL-1: a process lives until the last attachment has left, by `stop` or by being dropped.
#[tokio::test]
async fn the_last_to_leave_stops_the_process() {
    let world = World::new();
    let server = world.server("s", &mock());
    let [first, second, third] = std::array::from_fn(|_| world.attach(&server));
    let running = pid(&first).await;
    first.stop().await;
    assert!(matches!(first.state(), UpstreamState::Stopped));
    assert!(matches!(first.acquire(soon()).await, Err(Unavailable::Stopped)));
    assert!(!first.restart(), "a handle that has left cannot restart the server");
    drop(second);
    assert_eq!(pid(&third).await, running);
    third.stop().await;
    assert!(is_gone(running) && world.registry.is_empty());
    let again = world.attach(&server);
    assert_ne!(pid(&again).await, running);
    let running = pid(&again).await;
    drop(again);
    bridgehead_testkit::until("the end of the process", || is_gone(running)).await;
    world.end().await;
}

/// POOL-12: cleanup ends everything that runs, attached or not, and forgets it; a new start may follow.
#[tokio::test]
async fn cleanup_may_be_followed_by_a_new_start() {
    let world = World::new();
    let server = world.server("s", &mock());
    for _ in 0..2 {
        let upstream = world.attach(&server);
        let running = pid(&upstream).await;
        let waiting = upstream.own(7, &"me".into()).unwrap();
        world.registry.clean_up().await;
        assert!(is_gone(running) && world.registry.is_empty());
        for left in [&upstream, &waiting] {
            assert!(matches!(left.acquire(soon()).await, Err(Unavailable::Stopped)));
        }
        assert!(!upstream.restart());
        upstream.stop().await;
    }
    world.end().await;
}

fn told(subscription: &mut Subscription, topic: Topic) -> Vec<String> {
    let events = std::iter::from_fn(|| subscription.try_next()).map(|delivery| match delivery {
        Delivery::Event(event) => event,
        Delivery::Missed(count) => panic!("{count} events were missed"),
    });
    events
        .filter(|event| event.topic() == topic)
        .map(|event| event.server().unwrap_or_default().to_owned())
        .collect()
}

/// POOL-1, BUS-2: each attached gateway is notified of changes, and gets events under its own name for the server.
#[tokio::test]
async fn everybody_attached_is_told() {
    let world = World::new();
    let (here, there) = (surroundings(), surroundings());
    let mut heard = [here.signals.bus().subscribe(64), there.signals.bus().subscribe(64)];
    let one = world.registry.attach(world.server("one", &mock()), here.clone());
    let two = world.registry.attach(world.server("two", &mock()), there.clone());
    becomes(&one, |state| matches!(state, UpstreamState::Ready(_))).await;
    here.changed.notified().await;
    there.changed.notified().await;
    assert_eq!(told(&mut heard[0], Topic::InitFinished), ["one"]);
    assert_eq!(told(&mut heard[1], Topic::InitFinished), ["two"]);
    two.stop().await;
    assert!(one.restart());
    becomes(&one, |state| matches!(state, UpstreamState::Ready(ready) if ready.restarts == 1)).await;
    assert_eq!(told(&mut heard[0], Topic::Reconnected), ["one"]);
    assert!(
        told(&mut heard[1], Topic::Reconnected).is_empty(),
        "a gateway that has left gets no more events"
    );
    world.end().await;
}

/// POOL-2: all waiters for one process fail together at 60 s, under any name; a later attachment fails at once. When
/// the process recovers in the background, it serves all of them.
#[tokio::test]
async fn waiters_fail_together_and_recover_together() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("server");
    let mut server = world.server("one", &mock());
    let Launch::Stdio(stdio) = &mut server.launch else { unreachable!() };
    let real = std::mem::replace(&mut stdio.command, program.to_str().unwrap().to_owned());
    server.jitter = false;
    let renamed = ServerConfig { name: "two".parse().unwrap(), ..server.clone() };

    tokio::time::pause();
    let began = Instant::now();
    let upstreams = [world.attach(&server), world.attach(&renamed)];
    let waiting = upstreams.clone().map(|upstream| {
        tokio::spawn(async move { (upstream.acquire(later()).await.map(drop), Instant::now()) })
    });
    for waiter in waiting {
        let (refused, at) = waiter.await.unwrap();
        assert!(matches!(refused, Err(Unavailable::Down { .. })), "{refused:?}");
        assert_eq!((at - began).as_secs(), 60);
    }
    tokio::time::advance(Duration::from_secs(5)).await;
    let late = world.attach(&server);
    let before = Instant::now();
    let refused = late.acquire(later()).await.unwrap_err();
    assert_eq!(Instant::now(), before, "the call no longer waits");
    assert!(refused.to_string().contains("down for 65 s"), "{refused}");
    let failed = late.record().facts().last_init.unwrap();
    assert!(failed.outcome == InitOutcome::Failed && failed.error.is_some());

    std::os::unix::fs::symlink(PathBuf::from(real), &program).unwrap();
    // The attempts so far were at 0, 0, 1, 3, 8, 18 and 48 s; the next one, at 108 s, is awaited in real time.
    tokio::time::advance(Duration::from_secs(42)).await;
    tokio::time::resume();
    becomes(&late, |state| matches!(state, UpstreamState::Ready(_))).await;
    for upstream in upstreams.iter().chain([&late]) {
        assert!(upstream.acquire(soon()).await.is_ok());
    }
    world.end().await;
}

/// POOL-2: an acquire fails at once if the last attachment leaves while it waits.
#[tokio::test(start_paused = true)]
async fn acquire_during_shutdown_fails_at_once() {
    let registry = Registry::new();
    let upstream = registry.attach(missing_program(), surroundings());
    let waiting = tokio::spawn({
        let upstream = upstream.clone();
        async move { upstream.acquire(soon()).await.map(drop) }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let began = Instant::now();
    upstream.release();
    assert_eq!(waiting.await.unwrap(), Err(Unavailable::Stopped));
    upstream.remove();
    assert_eq!(upstream.acquire(soon()).await.map(drop), Err(Unavailable::Removed));
    assert_eq!(Instant::now(), began);
    assert!(upstream.own(1, &"me".into()).is_err());
}

/// POOL-8: the time, outcome and tool count of the last initialisation are kept.
#[tokio::test]
async fn initialisations_are_recorded() {
    let world = World::new();
    let upstream = world.attach(&world.server("s", &mock()));
    assert_eq!(upstream.record().facts().last_init, None);
    becomes(&upstream, |state| matches!(state, UpstreamState::Ready(_))).await;
    let first = upstream.record().facts().last_init.unwrap();
    assert_eq!((first.outcome, first.tools, &first.error), (InitOutcome::Ready, 1, &None));
    upstream.restart();
    becomes(&upstream, |state| matches!(state, UpstreamState::Ready(ready) if ready.restarts == 1)).await;
    let second = upstream.record().facts().last_init.unwrap();
    assert!(second.time > first.time && second.outcome == InitOutcome::Ready);
    let missing = world.attach(&missing_program());
    becomes(&missing, |state| matches!(state, UpstreamState::Restarting(_))).await;
    let failed = missing.record().facts().last_init.unwrap();
    assert_eq!((failed.outcome, failed.tools), (InitOutcome::Failed, 0));
    assert!(failed.error.unwrap().contains("no-such-program"));
    world.end().await;
}

/// POOL-8: eight servers that never answer, and an address that accepts connections and says nothing, delay no server
/// that starts after them, whatever `init_concurrency` is.
#[tokio::test]
async fn servers_that_hang_at_their_start_hold_up_no_other() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", nobody.local_addr().unwrap());
    for init_concurrency in [8, 1] {
        let world = World::new();
        let around = Surroundings { warm_up: Arc::new(Semaphore::new(init_concurrency)), ..surroundings() };
        let silent = |number: usize| {
            let mock = Mock::legacy().on_probe(Probe::Silent).on_initialize(Initialize::Silent);
            world.server(&format!("silent-{number}"), &mock.variable("NUMBER", number.to_string()))
        };
        let far = Launch::Remote(Remote::new(url.parse().unwrap()));
        let far = ServerConfig::new("far".parse().unwrap(), far, &GatewaySettings::default());
        let hanging: Vec<Upstream> = (0..8)
            .map(silent)
            .chain([far])
            .map(|server| world.registry.attach(server, around.clone()))
            .collect();
        let good = world.registry.attach(world.server("good", &mock()), around.clone());
        let served = good.acquire(Instant::now() + Duration::from_secs(45)).await;
        assert!(served.is_ok(), "{init_concurrency} at a time: {:?}", served.err());
        for hangs in &hanging {
            let state = hangs.state();
            assert!(matches!(state, UpstreamState::Starting { .. }), "{}: {state:?}", hangs.name());
        }
        let all_back = async {
            while around.warm_up.available_permits() != init_concurrency {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), all_back).await.expect("every permit is returned");
        drop((hanging, good, served));
        world.end().await;
    }
}

/// POOL-8: at most `init_concurrency` processes are launched at the same time; a remote server needs no permit.
#[tokio::test]
async fn processes_are_launched_in_turn() {
    let world = World::new();
    let around = Surroundings { warm_up: Arc::new(Semaphore::new(0)), ..surroundings() };
    let upstream = world.registry.attach(world.server("s", &mock()), around.clone());
    let far = Launch::Remote(Remote::new("http://127.0.0.1:1/".parse().unwrap()));
    let far = ServerConfig::new("far".parse().unwrap(), far, &GatewaySettings::default());
    let far = world.registry.attach(far, around.clone());
    becomes(&far, |state| matches!(state, UpstreamState::Restarting(_))).await;
    assert!(matches!(upstream.state(), UpstreamState::Starting { .. }), "no permit, no process");
    around.warm_up.add_permits(1);
    becomes(&upstream, |state| matches!(state, UpstreamState::Ready(_))).await;
    assert_eq!(around.warm_up.available_permits(), 1);
    world.end().await;
}

/// POOL-1: a session has its own process, which ends when the session leaves or the server itself goes.
#[tokio::test]
async fn a_session_has_its_own() {
    let world = World::new();
    let shared = world.attach(&world.server("s", &mock()));
    let [mine, same, theirs] = [1, 1, 2].map(|session| shared.own(session, &"me".into()).unwrap());
    let pids = [pid(&shared).await, pid(&mine).await, pid(&theirs).await];
    assert_eq!(pid(&same).await, pids[1], "one session, one process");
    assert!(pids[0] != pids[1] && pids[1] != pids[2] && pids[0] != pids[2]);
    drop(same);
    mine.stop().await;
    assert!(is_gone(pids[1]) && !is_gone(pids[0]) && !is_gone(pids[2]));
    let mut known: Vec<u32> = shared.record().processes().iter().map(ProcessView::pid).collect();
    known.sort_unstable();
    let mut left = [pids[0], pids[2]];
    left.sort_unstable();
    assert_eq!(known, left, "an ended process is no longer listed");
    shared.stop().await;
    assert!(is_gone(pids[0]) && is_gone(pids[2]), "no process outlives its server");
    assert!(matches!(theirs.acquire(soon()).await, Err(Unavailable::Stopped)));
    world.end().await;
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A server that no longer answers because its process is stopped. The clock is paused until the server is given up.
async fn halted(world: &World, server: &ServerConfig) -> (Upstream, u32) {
    let upstream = world.attach(server);
    let pid = pid(&upstream).await;
    signal(pid, rustix::process::Signal::STOP);
    tokio::time::pause();
    (upstream, pid)
}

async fn is_replaced(upstream: &Upstream, pid: u32) -> String {
    let lost = becomes(upstream, |state| matches!(state, UpstreamState::Restarting(_))).await;
    tokio::time::resume();
    becomes(upstream, |state| matches!(state, UpstreamState::Ready(ready) if ready.pid != Some(pid))).await;
    assert!(is_gone(pid));
    let UpstreamState::Restarting(outage) = lost else { unreachable!() };
    outage.reason.clone()
}

/// POOL-5: a server that stops answering its periodic probe is restarted, after the three seconds of a probe.
#[tokio::test]
async fn a_server_that_fails_its_periodic_probe_is_restarted() {
    for mock in [mock(), Mock::modern().tool("echo", Behaviour::Echo)] {
        let world = World::new();
        let mut server = world.server("s", &mock);
        server.probe_interval = Duration::from_secs(7);
        let began = Instant::now();
        let (upstream, pid) = halted(&world, &server).await;
        let reason = is_replaced(&upstream, pid).await;
        assert!(reason.contains("health probe failed") && reason.contains("within 3 s"), "{reason}");
        assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());
        world.end().await;
    }
}

/// POOL-5: a server suspected after a call's timeout is probed out of turn; if it is healthy, nothing happens.
#[tokio::test]
async fn a_suspected_server_is_probed_out_of_turn() {
    let world = World::new();
    let mut server = world.server("s", &mock());
    server.probe_interval = Duration::from_secs(3_600);
    let well = world.attach(&ServerConfig { name: "well".parse().unwrap(), ..server.clone() });
    let before = pid(&well).await;
    well.suspect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(pid(&well).await, before);
    well.stop().await;
    let (upstream, pid) = halted(&world, &server).await;
    let began = Instant::now();
    upstream.suspect();
    let reason = is_replaced(&upstream, pid).await;
    assert!(reason.contains("health probe failed"), "{reason}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    world.end().await;
}

/// A call of a client with all capabilities, on this very process.
async fn open(upstream: &Upstream, tool: &str) -> Exchange {
    let ready = upstream.acquire(soon()).await.unwrap();
    let mut exchange = ready.link.open_for(Purpose::Ordinary, Abilities::ALL);
    let params = json!({"name": tool, "arguments": {}});
    exchange.send(&Method::ToolsCall, &Spliced::from(Raw::encode(&params))).await;
    exchange
}

/// The lease such a client's call uses instead of the shared process, if it need not wait for it.
async fn lease(upstream: &Upstream) -> Result<Option<Lease>, Unavailable> {
    upstream.lease(&"me".into(), Abilities::ALL, None, Instant::now()).await
}

/// ERA-3: calls of clients that can be asked share a process until it asks. After that a call avoids a process with
/// another call, if there is room. Once a question was ambiguous, it waits for room.
#[tokio::test]
async fn a_call_keeps_clear_of_another_where_it_must() {
    let world = World::new();
    let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    let mock = mock()
        .tool("ask", Behaviour::ask("elicitation/create", form))
        .tool("hang", Behaviour::HangUntilCancelled);
    let server = ServerConfig { max_leases: 1, ..world.server("s", &mock) };
    let upstream = world.attach(&server);
    let waits = open(&upstream, "hang").await;
    assert!(lease(&upstream).await.unwrap().is_none(), "the server never asked");
    drop(waits);
    let mut asked = open(&upstream, "ask").await;
    let event = tokio::time::timeout(Duration::from_secs(15), asked.next()).await.unwrap();
    assert!(matches!(event, Event::Asked(_)), "{event:?}");

    let beside = lease(&upstream).await.unwrap().expect("another call could be asked");
    assert!(!beside.upstream().is_same_process(&upstream));
    assert!(lease(&upstream).await.unwrap().is_none(), "there is no room, and no question was ambiguous");
    drop(beside);
    drop(asked);
    assert!(lease(&upstream).await.unwrap().is_none(), "no other call could be asked");

    let waits = open(&upstream, "hang").await;
    let mut refused = open(&upstream, "ask").await;
    let answer = tokio::time::timeout(Duration::from_secs(15), refused.answer()).await.unwrap();
    assert!(answer.unwrap().unwrap().as_str().contains("-32603"), "the question could be for either call");
    drop((waits, refused));
    let own = lease(&upstream).await.unwrap().expect("from now on each call has its own process");
    assert!(matches!(lease(&upstream).await, Err(Unavailable::AllLeased(1))));
    drop(own);
    assert!(lease(&upstream).await.unwrap().is_some());
    world.end().await;
}
