//! How a server is asked whether it is well, and what the log says of one that is not.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply};
use bridgehead_upstream::{State, Upstream};
use parking_lot::Mutex;
use remote::{Running, legacy};
use serde_json::json;

/// What was logged on this thread.
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
        // With a single dispatcher `tracing` remembers the first thread's "no" for all; a second one prevents it.
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

    /// The levels of the lines that say `what`, each once.
    fn levels(&self, what: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let told = text.lines().filter(|line| line.contains(what));
        let mut levels: Vec<String> =
            told.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect();
        levels.dedup();
        levels
    }
}

async fn becomes(upstream: &Upstream, wanted: impl FnMut(&State) -> bool) -> State {
    let mut states = upstream.watch();
    let found = tokio::time::timeout(Duration::from_secs(60), states.wait_for(wanted)).await;
    found.unwrap().unwrap().clone()
}

fn refusal(asked: &Asked) -> Vec<Part> {
    json_reply(
        &json!({"jsonrpc": "2.0", "id": asked.json()["id"], "error": {"code": -32000, "message": "no"}}),
    )
}

/// POOL-14: a failed probe is an error in the log, at the start of a server and while it runs; its loss and its restart
/// are warnings, and so is a restart that somebody asked for.
#[tokio::test]
async fn failed_probes_are_errors_and_restarts_are_warnings() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let (well, lists) = (Arc::new(AtomicBool::new(true)), AtomicUsize::new(0));
    let is_well = Arc::clone(&well);
    // One that is not well lists its tools for every other who asks: once for its start, and not for the probe.
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
    // The list is refused to one probe of two.
    well.store(false, Ordering::SeqCst);
    becomes(&running.upstream, |state| matches!(state, State::Restarting(_))).await;
    well.store(true, Ordering::SeqCst);
    becomes(&running.upstream, |state| matches!(state, State::Ready(_))).await;
    assert_eq!(lines.levels("health probe failed server="), ["ERROR"], "while it runs");
    assert_eq!(lines.levels(" lost server="), ["WARN"]);
    assert_eq!(lines.levels("restart scheduled"), ["WARN"]);
    running.end().await;

    lines.0.lock().clear();
    let running = Running::start(&peer, |_, _| {});
    running.ready().await;
    assert!(running.upstream.restart());
    becomes(&running.upstream, |state| matches!(state, State::Ready(ready) if ready.restarts == 1)).await;
    assert_eq!(lines.levels("restarts as asked"), ["WARN"]);
    assert_eq!(lines.levels("restart scheduled"), ["WARN"]);
    assert_eq!(lines.levels("health probe failed"), [""; 0]);
    running.end().await;
}
