//! How a provider notices the loss of its server, reconnects, and terminates.

use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{Isolation, Limits};
use bridgehead_events::{Detail, Topic};
use bridgehead_testkit::{Behaviour, FrozenClock, Tool};
use bridgehead_upstream::provider::{Health, Invocation, ProviderAdapter, ProviderConfig};
use bridgehead_wire::Code;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::Instant;

use crate::outage::delays_until;
use crate::world::{Peer, Way, World, mock, wall_clock_tick};

/// PROV-1, POOL-4, PROV-2: by default a lost server is tried ten times, after 1 s and then with doubling pauses up to
/// 30 s, without jitter. Then it is given up, and only a new `init` brings it back.
#[tokio::test]
async fn ten_attempts_and_doubling_pauses_by_default() {
    let mut world = World::new(Way::Stdio, mock());
    let endpoint = world.config().endpoint;
    let config = ProviderConfig::new("far".parse().unwrap(), endpoint)
        .isolation(Isolation::Shared)
        .limits(Limits::default());
    assert_eq!((config.max_retries, config.reconnect_backoff), (10, Duration::from_millis(1_000)));
    world.provider.init(config.clone()).await.unwrap();
    world.lose().await;
    world.until(Health::Degraded).await;
    tokio::time::pause();
    let began = Instant::now();
    let delays = delays_until(&mut world, |detail| matches!(detail, Detail::ReconnectExhausted)).await;
    assert_eq!(delays, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000, 30_000]);
    // Part of the first pause passed in real time.
    let took = began.elapsed().as_secs();
    assert!((178..=182).contains(&took), "{took} s");
    assert_eq!(world.provider.health(), Health::Unavailable);
    world.peer.restart();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(world.provider.health(), Health::Unavailable, "it does not come back by itself");
    assert!(world.told().is_empty(), "no more attempts");
    let error = world.run("echo", json!({})).await.unwrap_err();
    assert_eq!((error.code, error.retryable()), (Code::ProviderUnavailable, false), "{error}");
    tokio::time::resume();
    world.provider.init(config).await.unwrap();
    assert_eq!(world.provider.health(), Health::Healthy);
    world.end().await;
}

async fn pid(world: &World) -> Pid {
    let result = world.run("pid", json!({})).await.unwrap();
    Pid::from_raw(i32::try_from(result["structuredContent"]["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

/// Waits for the health, by the wall clock.
async fn until(world: &World, health: Health) {
    for _ in 0..30_000 {
        if world.provider.health() == health {
            return;
        }
        wall_clock_tick().await;
    }
    panic!("never {health:?}");
}

/// PROV-2: the end of a transport is noticed immediately, without a call and without any clock moving.
#[tokio::test]
async fn the_end_of_a_transport_is_noticed() {
    for way in [Way::Stdio, Way::Sse, Way::WebSocket] {
        let mut world = World::new(way, mock().tool("pid", Behaviour::ProcessId));
        let config = world.config().reconnect_backoff(Duration::from_secs(600));
        world.provider.init(config).await.unwrap();
        let pid = pid(&world).await;
        world.told();
        tokio::time::pause();
        let still = FrozenClock::begin();
        match &mut world.peer {
            Peer::Program { .. } => kill_process(pid, Signal::KILL).unwrap(),
            Peer::Served(served) => served.kill(),
        }
        until(&world, Health::Degraded).await;
        let topics: Vec<Topic> = world.told().iter().map(|event| event.topic()).collect();
        assert_eq!(topics[0], Topic::Disconnected, "{topics:?}");
        assert!(!topics.contains(&Topic::Probe), "{topics:?}");
        drop(still);
        tokio::time::resume();
        world.end().await;
    }
}

/// PROV-2, POOL-5: a server that runs but answers nothing is noticed by its keep-alive, after 30 s plus the 3 s that a
/// probe may take. After a call that timed out it is probed at once. It is then killed without any time to end in: it
/// would not use it, and its successor would start that much later.
#[tokio::test]
async fn a_server_that_hangs_is_noticed() {
    for (timeout, noticed) in [(None, 33_000), (Some(200), 3_200)] {
        let mut world = World::new(Way::Stdio, mock().tool("pid", Behaviour::ProcessId));
        let config = world.config().reconnect_backoff(Duration::from_secs(600));
        world.provider.init(config).await.unwrap();
        let pid = pid(&world).await;
        world.told();
        tokio::time::pause();
        let began = Instant::now();
        kill_process(pid, Signal::STOP).unwrap();
        if let Some(timeout) = timeout {
            let timeout = Some(Duration::from_millis(timeout));
            let invocation = Invocation::new("far__hang", json!({})).timeout(timeout);
            let late = world.provider.execute(&invocation, CorrelationId::mint()).await.unwrap_err();
            assert_eq!(late.code, Code::ProviderTimeout, "{late}");
        }
        while world.provider.health() == Health::Healthy {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let took = u64::try_from(began.elapsed().as_millis()).unwrap();
        // Some of the 30 s passed before the server was stopped.
        let slack = if timeout.is_none() { 3_000 } else { 20 };
        assert!((noticed - slack..=noticed + 50).contains(&took), "{timeout:?}: after {took} ms");
        let probe = world.told().into_iter().find(|event| event.topic() == Topic::Probe).unwrap();
        let probe = json!(*probe);
        assert_eq!((&probe["ok"], &probe["kind"]), (&json!(false), &json!("discover")), "{probe}");
        assert!((3_000..=3_010).contains(&probe["durationMs"].as_u64().unwrap()), "{probe}");
        assert_eq!(probe["error"], "its health probe failed: it did not answer within 3 s");
        let still = FrozenClock::begin();
        let place = format!("/proc/{}", pid.as_raw_nonzero());
        let mut ticks = 0;
        while std::path::Path::new(&place).exists() {
            wall_clock_tick().await;
            ticks += 1;
            assert!(
                ticks < 15_000,
                "{timeout:?}: the frozen server was not killed while the clock stood still"
            );
        }
        drop(still);
        tokio::time::resume();
        world.end().await;
    }
}

/// PROV-2, BUS-1: a reconnect reads the catalog again. It first reports what is new, gone and unchanged in it, then
/// that the server is back.
#[tokio::test]
async fn a_reconnect_tells_how_the_tools_differ() {
    let later = Box::new(Tool::new("later", Behaviour::Echo));
    let mut world = World::new(Way::Stdio, mock().tool("grow", Behaviour::AddTool(later)));
    world.provider.init(world.config()).await.unwrap();
    let told: Vec<_> = world.told().iter().map(|event| json!(**event)).collect();
    let discovered = told.iter().find(|event| event["topic"] == "provider.mcp.tools.discovered").unwrap();
    assert_eq!(
        (&discovered["count"], &discovered["names"]),
        (&json!(4), &json!(["echo", "hang", "die", "grow"]))
    );
    world.run("grow", json!({})).await.unwrap();
    let grown = async {
        while world.provider.tools().len() != 5 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), grown).await.unwrap();
    let differences = |world: &mut World| {
        let told: Vec<_> = world.told().iter().map(|event| json!(**event)).collect();
        let at = |topic: &str| told.iter().position(|event| event["topic"] == topic);
        let refreshed = at("provider.mcp.tools.refreshed");
        let back = at("provider.mcp.reconnected");
        assert!(back.is_none_or(|back| refreshed.unwrap() < back), "{told:?}");
        let event = &told[refreshed.unwrap()];
        (json!([event["added"], event["removed"], event["unchanged"]]), back.is_some())
    };
    assert_eq!(differences(&mut world), (json!([["later"], [], 4]), false));
    world.lose().await;
    world.peer.restart();
    world.until(Health::Healthy).await;
    assert_eq!(differences(&mut world), (json!([[], ["later"], 4]), true));
    assert_eq!(world.provider.tools().len(), 4);
    world.end().await;
}

/// PROV-5: terminate ends running calls, with their processes, and background attempts; no events follow.
#[tokio::test]
async fn terminate_ends_what_runs() {
    for isolation in [Isolation::Shared, Isolation::Call] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("echo $PPID > '{0}.part'; mv '{0}.part' '{0}'", file.display());
        let busy = Behaviour::Shell { script, then: Box::new(Behaviour::Hang) };
        let world = World::new(Way::Stdio, mock().tool("busy", busy));
        world.provider.init(world.config().isolation(isolation)).await.unwrap();
        let invocation = Invocation::new("far__busy", json!({}));
        let call = world.provider.execute(&invocation, CorrelationId::mint());
        let end = async {
            bridgehead_testkit::until("the file that says that the call runs", || file.exists()).await;
            world.provider.terminate().await;
            let pid = std::fs::read_to_string(&file).unwrap();
            !std::path::Path::new("/proc").join(pid.trim()).exists()
        };
        let (outcome, is_gone) = tokio::join!(call, end);
        let error = outcome.unwrap_err();
        assert_eq!((error.code, error.retryable()), (Code::ProviderCrashed, true), "{isolation:?}: {error}");
        assert!(is_gone, "{isolation:?}: its process is left");
        world.end().await;
    }

    let mut world = World::init(Way::Stdio).await;
    world.lose().await;
    world.until(Health::Degraded).await;
    world.provider.terminate().await;
    assert_eq!((world.provider.health(), world.provider.tools().len()), (Health::Unavailable, 0));
    world.told();
    world.peer.restart();
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    tokio::time::resume();
    assert!(world.told().is_empty(), "no more attempts");
    world.provider.terminate().await;
    world.end().await;
}
