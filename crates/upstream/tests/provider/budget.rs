//! How long a call may take: one budget for the whole call, on a clock that only the test moves.

use std::path::PathBuf;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{Isolation, Limits};
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_upstream::provider::{Invocation, ProviderAdapter, ProviderConfig, ProviderError};
use bridgehead_wire::Code;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::world::{Way, World, mock, wall_clock_tick};

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A tool that never answers, but leaves a file when it is called.
struct Work {
    folder: TempDir,
}

impl Work {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn called(&self) -> PathBuf {
        self.folder.path().join("called")
    }

    fn behaviour(&self) -> Behaviour {
        let script = format!("touch '{}'", self.called().display());
        Behaviour::Shell { script, then: Box::new(Behaviour::Hang) }
    }

    /// Waits by the wall clock until the tool was called, while the paused clock stands still.
    async fn is_called(&self) {
        for _ in 0..30_000 {
            if std::fs::remove_file(self.called()).is_ok() {
                return;
            }
            wall_clock_tick().await;
        }
        panic!("the tool was never called");
    }
}

/// Runs a call that is never answered. The clock stands still while `meanwhile` works, and then jumps from timer to
/// timer. Returns how the call ended, and after how many milliseconds.
async fn ended(
    world: &World,
    tool: &str,
    timeout: Option<Duration>,
    meanwhile: impl Future<Output = ()>,
) -> (ProviderError, u128) {
    tokio::time::pause();
    let began = Instant::now();
    let invocation = Invocation::new(format!("far__{tool}"), json!({})).timeout(timeout);
    let call = world.provider.execute(&invocation, CorrelationId::mint());
    let (outcome, ()) = tokio::join!(call, meanwhile);
    let took = began.elapsed().as_millis();
    tokio::time::resume();
    (outcome.unwrap_err(), took)
}

#[track_caller]
fn assert_timeout((error, took): &(ProviderError, u128), after: u128, setting: &str) {
    assert_eq!((error.code, error.retryable()), (Code::ProviderTimeout, true), "{error}");
    // Timers are exact to one millisecond.
    assert!((after..=after + 1).contains(took), "ended after {took} ms: {error}");
    let words = format!("within {after} ms, its `{setting}` (tool failed: timeout)");
    assert!(error.message.contains(&words), "{error}");
}

/// BOX-1, PROV-1, PROV-4: `limits.execution` ends a call, in its own process or a shared one. It applies together with
/// the timeout of the invocation, or else of the configuration; the shorter one counts.
#[tokio::test]
async fn the_execution_limit_is_a_clock() {
    for (way, isolation) in
        [(Way::Stdio, Isolation::Call), (Way::Stdio, Isolation::Shared), (Way::Http, Isolation::Shared)]
    {
        let work = Work::new();
        let world = World::new(way, mock().tool("work", work.behaviour()));
        let ended = async |timeout: Option<u64>| {
            ended(&world, "work", timeout.map(milliseconds), work.is_called()).await
        };
        let limits = Limits { execution: Some(milliseconds(300)), ..Limits::default() };
        let config = world.config().isolation(isolation).limits(limits).timeout(milliseconds(900));
        world.provider.init(config.clone()).await.unwrap();
        assert_timeout(&ended(None).await, 300, "limits.execution");
        assert_timeout(&ended(Some(2_000)).await, 300, "limits.execution");
        assert_timeout(&ended(Some(200)).await, 200, "timeout");

        let limits = Limits::default();
        world.provider.init(config.limits(limits)).await.unwrap();
        assert_timeout(&ended(None).await, 900, "timeout");
        assert_timeout(&ended(Some(2_000)).await, 2_000, "timeout");
        world.end().await;
    }
}

/// PROV-1, BOX-1: by default a call ends after 30 s.
#[tokio::test]
async fn a_call_has_thirty_seconds_by_default() {
    let work = Work::new();
    let world = World::new(Way::Stdio, mock().tool("work", work.behaviour()));
    let config = ProviderConfig::new("far".parse().unwrap(), world.config().endpoint);
    assert_eq!((config.timeout, config.limits.execution), (milliseconds(30_000), Some(milliseconds(30_000))));
    world.provider.init(config).await.unwrap();
    assert_timeout(&ended(&world, "work", None, work.is_called()).await, 30_000, "timeout");
    world.end().await;
}

/// A provider whose calls have their own processes, none of which has started.
async fn held(mock: Mock) -> World {
    let world = World::new(Way::Stdio, mock);
    world.peer.can_be_held();
    let config = world.config().isolation(Isolation::Call);
    world.provider.init(config).await.unwrap();
    world.peer.hold();
    // Two processes may already wait for a call; their replacements are held.
    for _ in 0..2 {
        assert_timeout(&ended(&world, "hang", Some(milliseconds(10)), async {}).await, 10, "timeout");
    }
    world
}

/// PROV-1, PROV-4: a call has a single budget. The start of its process uses it up too, and a call whose process never
/// started ends like any other timeout.
#[tokio::test]
async fn a_call_spends_one_budget() {
    let work = Work::new();
    let world = held(mock().tool("work", work.behaviour())).await;
    let late = ended(&world, "work", Some(milliseconds(1_000)), async {}).await;
    assert_timeout(&late, 1_000, "timeout");
    assert!(late.0.message.contains("had no process ready for tool `work`"), "{}", late.0);

    let start = async {
        tokio::time::advance(milliseconds(900)).await;
        world.peer.let_go();
        work.is_called().await;
    };
    let late = ended(&world, "work", Some(milliseconds(1_000)), start).await;
    assert_timeout(&late, 1_000, "timeout");
    assert!(late.0.message.contains("did not answer tool `work`"), "{}", late.0);
    world.end().await;
}

/// PROV-1, BOX-1: a tool may have its own limits: for time in any process, for the rest only where each call has its
/// own process. If a limit could not be enforced, `init` says so.
#[tokio::test]
async fn limits_of_a_tool_are_its_own() {
    let more = Limits { execution: Some(milliseconds(700)), output: Some(4 << 20), ..Limits::default() };
    for isolation in [Isolation::Call, Isolation::Shared] {
        let (work, other) = (Work::new(), Work::new());
        let mock = mock()
            .tool("work", work.behaviour())
            .tool("other", other.behaviour())
            .tool("flood", Behaviour::Flood { megabytes: 2 })
            .tool("flood_more", Behaviour::Flood { megabytes: 2 });
        let world = World::new(Way::Stdio, mock);
        let limits =
            Limits { execution: Some(milliseconds(300)), output: Some(1 << 20), ..Limits::default() };
        let own = |limits| [("work".to_owned(), limits), ("flood_more".to_owned(), limits)].into();
        let config = world.config().isolation(isolation).limits(limits).tool_limits(own(more));
        let longer = Limits { output: None, ..more };
        match isolation {
            Isolation::Call => world.provider.init(config).await.unwrap(),
            Isolation::Shared | Isolation::Session => {
                let error = world.provider.init(config.clone()).await.unwrap_err();
                assert_eq!(error.code, Code::ProviderInitFailed, "{error}");
                assert!(error.message.contains("`tool_limits` of tool `flood_more`"), "{error}");
                world.provider.init(config.tool_limits(own(longer))).await.unwrap();
            }
        }
        let late = ended(&world, "work", None, work.is_called()).await;
        assert_timeout(&late, 700, "limits.execution");
        let late = ended(&world, "other", None, other.is_called()).await;
        assert_timeout(&late, 300, "limits.execution");
        if isolation == Isolation::Call {
            // The clock stands still, however long a loaded machine takes.
            tokio::time::pause();
            let run = async |tool: &str| {
                tokio::select! {
                    outcome = world.run(tool, json!({})) => outcome,
                    () = async { loop { wall_clock_tick().await } } => unreachable!(),
                }
            };
            let flood = run("flood").await.unwrap_err();
            assert!(flood.message.contains("output_limit"), "{flood}");
            assert!(run("flood_more").await.is_ok());
            tokio::time::resume();
        }
        world.end().await;
    }
}
