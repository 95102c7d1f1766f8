//! A call that is dropped at any of its awaits.
//!
//! Each test makes the same call again and again. The first is dropped without having been polled, the next after one poll,
//! and so on, until the call ends by itself. After each drop the record is complete, nothing is held, and the next call works.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bridgehead::config::{Isolation, ServerConfig};
use bridgehead::tools::{CallOptions, ToolCall, ToolError, ToolResult};
use bridgehead::{AuditError, AuditSink, Elicitation, Enter, EnterFuture, Exit, Outcome, Ticket};
use bridgehead_testkit::{Behaviour, Carrier, Mock, Recorder};
use serde_json::{Value, json};

use crate::support::{World, native, until};

/// A sink that waits before it accepts an enter, so that a call can be dropped meanwhile.
struct Waits(Recorder);

impl AuditSink for Waits {
    fn enter(&self, event: &Enter) -> EnterFuture {
        let (recorder, event) = (self.0.clone(), event.clone());
        Box::pin(async move {
            tokio::task::yield_now().await;
            recorder.enter(&event).await
        })
    }

    fn exit(&self, ticket: Option<Ticket>, event: Exit) -> Result<(), AuditError> {
        self.0.exit(ticket, event)
    }
}

async fn world(servers: &[(&str, Mock)], change: impl Fn(&mut ServerConfig)) -> World {
    let own = native("own", |_| async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        json!("done")
    });
    let recorder = Recorder::new();
    let sink = Arc::new(Waits(recorder.clone()));
    let world = World::with(servers, change, |options| options.register(own).audit(sink)).await;
    World { recorder, ..world }
}

/// Polls a call this often, each time when it was woken; `None` if it has not ended then.
async fn polled(mut call: ToolCall, polls: usize) -> Option<Result<ToolResult, ToolError>> {
    let mut done = 0;
    poll_fn(|context| {
        if done == polls {
            return Poll::Ready(None);
        }
        done += 1;
        match std::pin::Pin::new(&mut call).poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if done == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops the call at each of its awaits, and checks what is left.
async fn at_every_await(world: &World, make: impl AsyncFn(usize) -> Option<Result<ToolResult, ToolError>>) {
    let busy = |value: &Value| value["running"] != 0 || value["waiting"] != 0;
    let mut dropped = 0;
    for polls in 0.. {
        let before = world.recorder.exits().len();
        let ended = make(polls).await;
        // Without a poll there was no call.
        let calls = world.recorder.enters().len();
        until(|| world.recorder.exits().len() == world.recorder.enters().len()).await;
        until(|| world.recorder.exits().len() > before || polls == 0).await;
        world.recorder.assert_paired();
        until(|| world.tools.health().iter().all(|server| !busy(&server.queue))).await;
        until(|| world.tools.gateway().upstreams().iter().all(|upstream| upstream.in_flight() == 0)).await;
        if let Some(ended) = ended {
            assert!(ended.is_ok(), "after {polls} polls: {ended:?}");
            let cancelled = world.recorder.exits().into_iter();
            let cancelled = cancelled.filter(|exit| matches!(exit.outcome(), Outcome::Cancelled)).count();
            assert!(
                dropped >= 2 && cancelled >= dropped,
                "{dropped} drops, {cancelled} cancelled, {calls} calls"
            );
            return;
        }
        dropped += usize::from(polls > 0);
        let next = tokio::time::timeout(Duration::from_secs(60), make(usize::MAX)).await;
        assert!(next.expect("nothing is held").unwrap().is_ok(), "after {polls} polls");
    }
}

fn echo() -> Mock {
    Mock::legacy().tool("echo", Behaviour::Echo)
}

/// LIB-5: a call to a shared process is dropped at every await.
#[tokio::test]
async fn of_a_shared_process() {
    let locked = |server: &mut ServerConfig| {
        server.tools.entry("echo".to_owned()).or_default().lock = Some(true);
    };
    let world = world(&[("one", echo())], locked).await;
    at_every_await(&world, async |polls| polled(world.tools.call("one__echo", json!({})), polls).await).await;
    world.end().await;
}

/// LIB-5: the same with a time limit, which waits beside every stage.
#[tokio::test]
async fn of_a_call_with_a_timeout() {
    let world = world(&[("one", echo())], |_| ()).await;
    let options = || CallOptions::default().timeout(Duration::from_secs(3600));
    let call = || world.tools.call_with("one__echo", json!({}), options());
    at_every_await(&world, async |polls| polled(call(), polls).await).await;
    world.end().await;
}

/// LIB-5: a call that has a process of its own is dropped at every await; its process ends with it.
#[tokio::test]
async fn of_a_process_of_its_own() {
    let isolated = |server: &mut ServerConfig| server.isolation = Isolation::Call;
    let world = world(&[("one", echo())], isolated).await;
    let settled = || {
        let health = world.tools.health().remove(0);
        let idle = health.pool.as_ref().and_then(|pool| pool["idle"].as_u64()).unwrap();
        // The process that lists the tools, and those that wait for a call.
        health.pids.len() as u64 == 1 + idle
    };
    at_every_await(&world, async |polls| {
        let ended = polled(world.tools.call("one__echo", json!({})), polls).await;
        until(settled).await;
        ended
    })
    .await;
    world.end().await;
}

/// LIB-5: a call that waits in a queue is dropped at every await.
#[tokio::test]
async fn of_a_queued_call() {
    let narrow = |server: &mut ServerConfig| {
        server.queue.concurrency = 1;
        // Its server never answers what is cancelled.
        server.cancel_grace = Some(Duration::from_millis(50));
    };
    let mock = echo().tool("hangs", Behaviour::HangUntilCancelled);
    let world = world(&[("one", mock)], narrow).await;
    at_every_await(&world, async |polls| {
        let running = |count: u64| world.tools.health()[0].queue["running"] == count;
        let holder = tokio::spawn(world.tools.call("one__hangs", json!({})));
        until(|| running(1)).await;
        let queued = polled(world.tools.call("one__echo", json!({})), polls);
        let free = async {
            // Frees the place once the call waits for it, or never does.
            for _ in 0..20 {
                if world.tools.health()[0].queue["waiting"] == 1 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            holder.abort();
        };
        let (ended, ()) = tokio::join!(queued, free);
        until(|| running(0)).await;
        ended
    })
    .await;
    world.end().await;
}

/// LIB-5: a call of a Rust tool is dropped at every await; its lock is free again.
#[tokio::test]
async fn of_a_rust_tool() {
    let world = world(&[], |_| ()).await;
    at_every_await(&world, async |polls| polled(world.tools.call("own", json!({})), polls).await).await;
    world.end().await;
}

/// LIB-5: a call over HTTP is dropped at every await.
#[tokio::test]
async fn of_a_remote_server() {
    for mock in [Mock::legacy(), Mock::modern()] {
        let served = mock.tool("echo", Behaviour::Echo).serve(Carrier::Http);
        let mut far = ServerConfig::remote("far", &served.url()).unwrap();
        far.jitter = false;
        let recorder = Recorder::new();
        let sink = Arc::new(Waits(recorder.clone()));
        let world = World::with(&[], |_| (), |options| options.server(far).audit(sink)).await;
        let world = World { recorder, ..world };
        at_every_await(&world, async |polls| polled(world.tools.call("far__echo", json!({})), polls).await)
            .await;
        world.end().await;
    }
}

/// LIB-5: a call during which its server asks is dropped at every await, for servers of both eras.
#[tokio::test]
async fn of_a_call_with_a_question() {
    let params = r#"{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{}}}"#;
    let legacy = Mock::legacy().tool("form", Behaviour::ask("elicitation/create", params));
    let round = format!(
        r#"{{"resultType":"input_required","requestState":"s-1","inputRequests":{{"k":{{"method":"elicitation/create","params":{params}}}}}}}"#
    );
    let modern = Mock::modern().tool("form", Behaviour::InputRounds(vec![round.into()]));
    for (server, mock) in [("old", legacy), ("new", modern)] {
        let world = world(&[(server, mock)], |_| ()).await;
        let options = CallOptions::default().on_elicitation(|_| async {
            tokio::task::yield_now().await;
            Elicitation::Declined
        });
        let call = || world.tools.call_with(&format!("{server}__form"), json!({}), options.clone());
        at_every_await(&world, async |polls| polled(call(), polls).await).await;
        world.end().await;
    }
}
