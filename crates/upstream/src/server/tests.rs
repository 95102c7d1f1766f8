//! What an attachment reports about its server, and which processes it keeps waiting.

use bridgehead_config::{GatewaySettings, Remote};
use bridgehead_events::{Delivery, Topic};
#[cfg(feature = "http")]
use bridgehead_testkit::peer::{Peer, json_reply, reply};
#[cfg(feature = "http")]
use serde_json::json;

use super::*;
#[cfg(feature = "http")]
use crate::catalog::Lists;
use crate::testing;

/// POOL-2: an attempt may add tools that are in no list now, unless it is known to fail or all of them are still
/// listed.
#[tokio::test(start_paused = true)]
async fn what_the_next_attempt_may_bring() {
    #[track_caller]
    fn check(known: bool, listed: bool, lasting: bool, expected: bool) {
        let last = known.then(Arc::<Listing>::default);
        let reason = "it broke".to_owned();
        let outage = Outage { since: Instant::now(), attempts: 1, reason, last, listed, lasting };
        assert_eq!(outage.may_bring(), expected, "{outage:?}");
    }
    check(false, true, false, true);
    check(false, false, false, true);
    check(true, false, false, true);
    check(true, true, false, false);
    for (known, listed) in [(false, false), (false, true), (true, false), (true, true)] {
        check(known, listed, true, false);
    }
}

/// POOL-10: a remote server is not a process of ours that could be restarted.
#[tokio::test]
async fn only_what_is_run_is_a_process() {
    let far = Launch::Remote(Remote::new("http://127.0.0.1:9/".parse().unwrap()));
    let far = ServerConfig::new("far".parse().unwrap(), far, &GatewaySettings::default());
    for (server, expected) in [(testing::missing(), true), (far, false), (testing::unusable(), false)] {
        assert_eq!(Upstream::start(server, testing::surroundings()).is_process(), expected);
    }
}

/// SRV-3: saved is the list of the shared process, and not one that may belong to one account of several.
#[tokio::test]
async fn whose_lists_are_saved() {
    let plain = Surroundings { shelf: Some(PathBuf::from("/none")), ..testing::surroundings() };
    let source = CredentialSource::new(|_| None);
    let signed_in = Surroundings { credentials: Some(source), ..plain.clone() };
    let far = Launch::Remote(Remote::new("http://127.0.0.1:9/".parse().unwrap()));
    let far = ServerConfig { launch: far, ..testing::unusable() };
    for (server, surroundings, scope, expected) in [
        (testing::unusable(), &plain, Scope::Shared, true),
        (testing::unusable(), &plain, Scope::Session(1), false),
        (testing::unusable(), &plain, Scope::Call(1), false),
        (testing::unusable(), &signed_in, Scope::Shared, true),
        (far.clone(), &plain, Scope::Shared, true),
        (far, &signed_in, Scope::Shared, false),
        (testing::unusable(), &testing::surroundings(), Scope::Shared, false),
    ] {
        let runtime = Handle::current();
        let upstream = Registry::new().join(Arc::new(server), surroundings.clone(), scope, runtime);
        assert_eq!(upstream.0.core.shelf.is_some(), expected, "{:?} {scope:?}", upstream.config().launch);
    }
}

/// POOL-1: only the use of a server that may sleep is counted.
#[tokio::test]
async fn only_what_sleeps_is_held() {
    for (idle_timeout, lazy) in [(None, false), (Some(Duration::from_secs(1)), false), (None, true)] {
        let server = ServerConfig { idle_timeout, lazy, ..testing::unusable() };
        let upstream = Upstream::start(server, testing::surroundings());
        let held = [upstream.hold(), upstream.hold()];
        let sleeps = idle_timeout.is_some() || lazy;
        assert!(held.iter().all(|hold| hold.is_some() == sleeps), "{idle_timeout:?} {lazy}");
        let holds = || upstream.0.core.usage.lock().holds;
        assert_eq!(holds(), if sleeps { 2 } else { 0 });
        drop(held);
        assert_eq!(holds(), 0);
        assert_eq!(upstream.0.core.usage.lock().ever, sleeps);
    }
}

/// ERA-1: a watch ends with the attachment that took it.
#[tokio::test]
async fn a_watch_is_over_with_its_attachment() {
    let registry = Registry::new();
    let attach = || registry.attach(testing::unusable(), testing::surroundings());
    let (here, there) = (attach(), attach());
    let watches = [here.watch_resource("a://r"), here.watch_task("t"), there.watch_resource("a://r")];
    assert!(!watches.iter().any(Watch::is_over));
    here.release();
    assert_eq!(watches.each_ref().map(Watch::is_over), [true, true, false]);
}

/// Whether the pool of tools without limits of their own is full.
fn is_full(upstream: &Upstream) -> bool {
    let own = upstream.0.pools.numbers().next().unwrap();
    !upstream.0.pools.get(own).wants()
}

/// BOX-5: if each call has its own process, some wait from the beginning; those of a lazy server wait from the
/// first call on. Otherwise none wait.
#[tokio::test]
async fn some_wait_before_they_are_called() {
    for (isolation, lazy, at_first, later) in [
        (Isolation::Call, false, true, true),
        (Isolation::Call, true, false, true),
        (Isolation::Shared, false, false, false),
        (Isolation::Session, true, false, false),
    ] {
        let server = ServerConfig { isolation, lazy, ..testing::unusable() };
        let upstream = Upstream::start(server, testing::surroundings());
        assert_eq!(is_full(&upstream), at_first, "{isolation:?}, lazy: {lazy}");
        let call = upstream.one_shot("tool").unwrap();
        assert_eq!(upstream.pool().1, u64::from(!at_first), "misses of {isolation:?}, lazy: {lazy}");
        drop(call);
        assert_eq!(is_full(&upstream), later, "{isolation:?}, lazy: {lazy}, after a call");
    }
}

/// BUS-1: events of a process for one call are not reported as events of its server.
#[tokio::test(start_paused = true)]
async fn processes_of_calls_are_not_told_of() {
    let around = testing::surroundings();
    let mut told = around.signals.bus().subscribe(64);
    let server =
        ServerConfig { restart: false, isolation: Isolation::Call, lazy: true, ..testing::missing() };
    let upstream = Upstream::start(server, around);
    upstream.settled().await;
    let call = upstream.one_shot("tool").unwrap();
    call.settled().await;
    assert!(matches!(call.state(), UpstreamState::Failed(_)), "{:?}", call.state());
    let started = std::iter::from_fn(|| told.try_next())
        .filter(|delivery| matches!(delivery, Delivery::Event(event) if event.topic() == Topic::InitStarted));
    assert_eq!(started.count(), 1, "only the start of the server itself");
}

/// BOX-5: processes that end while they wait are replaced, later and later, and not at all once the policy gives
/// up.
#[tokio::test(start_paused = true)]
async fn what_ends_while_it_waits_is_replaced() {
    for (attempts, replaced) in [(Some(0), false), (Some(3), true)] {
        let around = testing::surroundings();
        let policy = RestartPolicy { attempts, ..around.policy };
        let server = ServerConfig { restart: false, isolation: Isolation::Call, ..testing::missing() };
        let upstream = Upstream::start(server, Surroundings { policy, ..around });
        let starts = || {
            let lines = upstream.record().tail(usize::MAX);
            lines.iter().filter(|line| &*line.text == "is being started").count()
        };
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let all = starts();
        // The server itself, and the two that waited first.
        assert_eq!(all > 3, replaced, "{attempts:?}: {all}");
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(starts(), all, "the pool was given up");
    }
}

/// CAT-2: a list that changes while the reading of another waits for more changes is read too.
#[cfg(feature = "http")]
#[tokio::test]
async fn two_kinds_of_changes_in_quick_succession() {
    let peer = Peer::start(|asked| {
        let body = asked.json();
        let answer = |result| json_reply(&json!({"jsonrpc": "2.0", "id": body["id"], "result": result}));
        match asked.rpc().as_str() {
            "initialize" => answer(json!({
                "protocolVersion": "2025-11-25", "serverInfo": {"name": "p", "version": "1"},
                "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
            })),
            "tools/list" => answer(json!({"tools": []})),
            "prompts/list" => answer(json!({"prompts": []})),
            "resources/list" => answer(json!({"resources": []})),
            "resources/templates/list" => answer(json!({"resourceTemplates": []})),
            "ping" => answer(json!({})),
            _ => reply("202 Accepted", &[], ""),
        }
    })
    .await;
    let far = Launch::Remote(Remote::new(peer.url("/mcp").parse().unwrap()));
    let far = ServerConfig::new("far".parse().unwrap(), far, &GatewaySettings::default());
    let upstream = Upstream::start(far, testing::surroundings());
    upstream.settled().await;
    let lists = [
        (Lists::TOOLS, "tools/list"),
        (Lists::PROMPTS, "prompts/list"),
        (Lists::RESOURCES, "resources/list"),
    ];
    for (first, second) in [(0, 1), (1, 2), (2, 0)] {
        let UpstreamState::Ready(ready) = upstream.state() else { panic!("not ready") };
        let count = |peer: &Peer| lists.map(|(_, method)| peer.asked_for(method).len());
        let before = count(&peer);
        ready.link.doubt(lists[first].0);
        // The supervisor takes the first change, and waits for more of them.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        ready.link.doubt(lists[second].0);
        let read = |peer: &Peer| [first, second].iter().all(|&list| count(peer)[list] > before[list]);
        peer.until(&format!("{} and {} are read again", lists[first].1, lists[second].1), read).await;
        // The next pair begins after this one was taken in.
        let answered = tokio::time::timeout(Duration::from_secs(10), async {
            while ready.link.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        answered.await.expect("the lists are read within 10 s");
    }
    upstream.stop().await;
}
