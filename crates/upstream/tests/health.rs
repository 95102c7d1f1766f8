//! How a server's health is probed, and what the log says about an unhealthy one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bridgehead_config::HealthProbe;
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply};
use bridgehead_upstream::{Upstream, UpstreamState};
use parking_lot::Mutex;
use remote::{Running, legacy, modern};
use serde_json::json;

/// The log lines of this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        // With a single dispatcher `tracing` caches the first thread's "not interested" for all threads; a second
        // dispatcher prevents that.
        static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
            tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish())
        });
        LazyLock::force(&SECOND);
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || lines.clone())
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// The distinct levels of the lines that contain `what`.
    fn levels(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let told = text.lines().filter(|line| line.contains(what));
        let mut levels: Vec<String> =
            told.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect();
        levels.dedup();
        levels
    }
}

async fn becomes(upstream: &Upstream, wanted: impl FnMut(&UpstreamState) -> bool) -> UpstreamState {
    let mut states = upstream.watch();
    let found = tokio::time::timeout(Duration::from_secs(60), states.wait_for(wanted)).await;
    found.unwrap().unwrap().clone()
}

fn refusal(asked: &Asked) -> Vec<Part> {
    json_reply(
        &json!({"jsonrpc": "2.0", "id": asked.json()["id"], "error": {"code": -32000, "message": "no"}}),
    )
}

/// POOL-14: a failed probe is logged as an error, at the start of a server and while it runs. Its loss and its restart
/// are warnings, and so is a requested restart.
#[tokio::test]
async fn failed_probes_are_errors_and_restarts_are_warnings() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let (well, lists) = (Arc::new(AtomicBool::new(true)), AtomicUsize::new(0));
    let is_well = Arc::clone(&well);
    // While unhealthy, the server answers every other `tools/list`: the one at its start, but not the probe.
    let peer = Peer::start(move |asked| match asked.rpc().as_str() {
        "ping" if !is_well.load(Ordering::SeqCst) => refusal(asked),
        "tools/list" if !is_well.load(Ordering::SeqCst) && lists.fetch_add(1, Ordering::SeqCst) % 2 == 1 => {
            refusal(asked)
        }
        _ => legacy(asked, |_| vec![]),
    })
    .await;

    well.store(false, Ordering::SeqCst);
    let running = Running::start(&peer, |_, _| {});
    let outage = running.outage().await;
    assert!(outage.contains("health probe failed"), "{outage}");
    assert_eq!(lines.levels("health probe failed server="), ["ERROR"], "at its start");
    assert_eq!(lines.levels("did not come up"), ["ERROR"]);
    assert_eq!(lines.levels("restart scheduled"), ["WARN"]);
    running.end().await;

    lines.0.lock().clear();
    well.store(true, Ordering::SeqCst);
    let running = Running::start(&peer, |server, _| server.probe_interval = Duration::from_millis(100));
    running.ready().await;
    assert_eq!(lines.levels("restart scheduled"), [""; 0], "nothing has happened yet");
    // Every second probe is refused the list.
    well.store(false, Ordering::SeqCst);
    becomes(&running.upstream, |state| matches!(state, UpstreamState::Restarting(_))).await;
    well.store(true, Ordering::SeqCst);
    becomes(&running.upstream, |state| matches!(state, UpstreamState::Ready(_))).await;
    assert_eq!(lines.levels("health probe failed server="), ["ERROR"], "while it runs");
    assert_eq!(lines.levels(" lost server="), ["WARN"]);
    assert_eq!(lines.levels("restart scheduled"), ["WARN"]);
    running.end().await;

    lines.0.lock().clear();
    let running = Running::start(&peer, |_, _| {});
    running.ready().await;
    assert!(running.upstream.restart());
    becomes(&running.upstream, |state| matches!(state, UpstreamState::Ready(ready) if ready.restarts == 1))
        .await;
    assert_eq!(lines.levels("restarts as asked"), ["WARN"]);
    assert_eq!(lines.levels("restart scheduled"), ["WARN"]);
    assert_eq!(lines.levels("health probe failed"), [""; 0]);
    running.end().await;
}

/// A server that answers one method oddly.
fn odd(asked: &Asked, method: &str, oddly: &[Part]) -> Vec<Part> {
    if asked.rpc() == method { oddly.to_vec() } else { legacy(asked, |_| vec![]) }
}

/// How often the peer got each of the methods a probe may use.
fn counts(peer: &Peer) -> [usize; 3] {
    ["ping", "server/discover", "tools/list"].map(|method| peer.asked_for(method).len())
}

/// POOL-5: the request of a probe, at the start of a server and while it runs: `ping`, `server/discover` for a modern
/// server, or only the tool list if configured.
#[tokio::test]
async fn a_server_is_probed_as_configured() {
    for (is_modern, choice, at_start, probes) in [
        // Every server gets `server/discover` once to find its era, and `tools/list` once.
        (false, HealthProbe::Ping, [1, 1, 1], [1, 0, 0]),
        (false, HealthProbe::ListTools, [0, 1, 2], [0, 0, 1]),
        (true, HealthProbe::Ping, [0, 2, 1], [0, 1, 0]),
        (true, HealthProbe::ListTools, [0, 1, 2], [0, 0, 1]),
    ] {
        let peer = Peer::start(move |asked| match is_modern {
            true => modern(asked, |_| vec![]),
            false => legacy(asked, |_| vec![]),
        })
        .await;
        let running = Running::start(&peer, |server, _| {
            server.health_probe = choice;
            server.probe_interval = Duration::from_secs(3_600);
        });
        running.ready().await;
        assert_eq!(counts(&peer), at_start, "{is_modern} {choice:?}");
        running.upstream.suspect();
        let total = |counts: [usize; 3]| counts.iter().sum::<usize>();
        peer.until("a second probe", |peer| total(counts(peer)) > total(at_start)).await;
        let more: Vec<usize> = counts(&peer).iter().zip(at_start).map(|(now, before)| now - before).collect();
        assert_eq!(more, probes, "{is_modern} {choice:?} while it runs");
        assert!(matches!(running.upstream.state(), UpstreamState::Ready(_)));
        running.end().await;
    }
}

/// POOL-5: the tool list is the fallback for a server that refuses `ping` or leaves it unanswered; that server is
/// healthy. A server whose probe is the tool list, and which refuses it, is not.
#[tokio::test]
async fn the_tool_list_is_the_fallback() {
    for hangs in [false, true] {
        let peer = Peer::start(move |asked| {
            let oddly = if hangs { vec![Part::Hang] } else { refusal(asked) };
            odd(asked, "ping", &oddly)
        })
        .await;
        let running = Running::start(&peer, |server, _| server.probe_interval = Duration::from_millis(100));
        let ready = running.ready().await;
        peer.until("the probes of a start and of a run", |peer| {
            let [pings, _, lists] = counts(peer);
            pings >= 2 && lists >= 3
        })
        .await;
        assert_eq!(ready.restarts, 0, "the server is healthy, hanging {hangs}");
        assert!(matches!(running.upstream.state(), UpstreamState::Ready(ready) if ready.restarts == 0));
        running.end().await;
    }
    let lists = AtomicUsize::new(0);
    let peer = Peer::start(move |asked| {
        let again = asked.rpc() == "tools/list" && lists.fetch_add(1, Ordering::SeqCst) > 0;
        if again { refusal(asked) } else { legacy(asked, |_| vec![]) }
    })
    .await;
    let running = Running::start(&peer, |server, _| server.health_probe = HealthProbe::ListTools);
    let outage = running.outage().await;
    assert!(outage.ends_with("its health probe failed: it refuses `tools/list`"), "{outage}");
    running.end().await;
}
