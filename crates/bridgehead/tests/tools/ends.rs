//! How tools end: closed, dropped, with their runtime, or not at all because only a handler failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead::config::Isolation;
use bridgehead::tools::{CallOptions, StartToolsError, ToolError, ToolResult, Tools};
use bridgehead::{Code, Fault, NativeTool, Outcome};
use bridgehead_testkit::{Behaviour, LeakCheck, Mock, Recorder};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::support::{World, native, options, server, structured, until};

type Called = JoinHandle<Result<ToolResult, ToolError>>;

fn mock() -> Mock {
    Mock::legacy()
        .tool("hangs", Behaviour::HangUntilCancelled)
        .tool("echo", Behaviour::Echo)
        .tool("family", Behaviour::Grandchild)
}

/// Counts the handlers that run, by what they hold.
fn pending(running: &Arc<AtomicUsize>) -> NativeTool {
    struct Running(Arc<AtomicUsize>);
    impl Drop for Running {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let running = Arc::clone(running);
    native("pending", move |_| {
        running.fetch_add(1, Ordering::SeqCst);
        let held = Running(Arc::clone(&running));
        async move {
            let _held = held;
            std::future::pending().await
        }
    })
    .concurrent()
}

/// Calls a server, a process of its own and a Rust tool, none of which answers.
async fn calls_in_flight(world: &World) -> Vec<Called> {
    let before = world.recorder.enters().len();
    let calls = ["shared__hangs", "own__hangs", "each__hangs", "pending"];
    let calls = calls.map(|tool| tokio::spawn(world.tools.call(tool, json!({}))));
    until(|| world.recorder.enters().len() == before + 4).await;
    calls.into()
}

async fn world(running: &Arc<AtomicUsize>) -> World {
    let servers = [("shared", mock()), ("own", mock()), ("each", mock())];
    let isolated = |server: &mut bridgehead::config::ServerConfig| {
        server.isolation = match server.name.as_str() {
            "own" => Isolation::Session,
            "each" => Isolation::Call,
            _ => Isolation::Shared,
        };
    };
    World::with(&servers, isolated, |options| options.register(pending(running))).await
}

/// LIB-5: closing ends running calls with an error, for every clone, and returns when no process is left. Closing again does
/// nothing. Later calls are refused, as something that no repetition cures, and recorded.
#[tokio::test]
async fn closed_with_calls_in_flight() {
    let running = Arc::default();
    let world = world(&running).await;
    world.tools.call("shared__family", json!({})).await.unwrap();
    let calls = calls_in_flight(&world).await;
    let clone = world.tools.clone();
    let serving: Vec<u32> = world.tools.health().iter().filter_map(|server| server.pid).collect();
    assert_eq!(serving.len(), 3);
    tokio::join!(clone.close(), world.tools.close());
    let lives = |pid: &u32| std::path::Path::new("/proc").join(pid.to_string()).exists();
    assert_eq!(serving.iter().filter(|pid| lives(pid)).count(), 0);
    // One that was being started for the next call ends a moment later.
    until(|| world.leaks.leftovers().processes.is_empty()).await;
    for call in calls {
        let ended = call.await.unwrap().unwrap_err();
        assert_eq!((ended.code(), ended.may_have_run()), (Code::ProviderUnavailable, true), "{ended}");
        assert!(ended.message().contains("closed"), "{ended}");
        assert_eq!((ended.retryable(), ended.fault()), (false, Fault::Caller), "{ended}");
    }
    assert_eq!(running.load(Ordering::SeqCst), 0);
    for tool in ["shared__echo", "own__echo", "each__echo", "pending"] {
        let refused = clone.call(tool, json!({})).await.unwrap_err();
        assert_eq!((refused.code(), refused.may_have_run()), (Code::ProviderUnavailable, false), "{refused}");
        assert!(refused.message().contains("closed"), "{refused}");
        assert!(refused.message().ends_with("start new `Tools`"), "{refused}");
        assert_eq!((refused.retryable(), refused.fault()), (false, Fault::Caller), "{refused}");
    }
    assert_eq!(world.recorder.enters().len(), 9);
    drop(clone);
    world.end().await;
}

/// LIB-5: tools that are dropped without being closed leave nothing behind, and calls in flight end with an error.
#[tokio::test]
async fn dropped_with_calls_in_flight() {
    let running = Arc::default();
    let world = world(&running).await;
    world.tools.call("shared__family", json!({})).await.unwrap();
    let calls = calls_in_flight(&world).await;
    // One that nobody polls any more.
    let mut forgotten = Box::pin(world.tools.call("shared__hangs", json!({})));
    assert!(futures_util::poll!(&mut forgotten).is_pending());
    let World { tools, recorder, leaks } = world;
    let clone = tools.clone();
    drop(tools);
    assert!(clone.call("shared__echo", json!({})).await.is_ok(), "a clone is left");
    drop(clone);
    for call in calls {
        let ended = call.await.unwrap().unwrap_err();
        assert_eq!(ended.code(), Code::ProviderUnavailable, "{ended}");
    }
    assert_eq!(running.load(Ordering::SeqCst), 0);
    until(|| leaks.leftovers().processes.is_empty()).await;
    assert_eq!(forgotten.await.unwrap_err().code(), Code::ProviderUnavailable);
    leaks.assert_clean().await;
    recorder.assert_paired();
}

/// LIB-5: a start that is dropped while servers start leaves nothing behind.
#[tokio::test]
async fn a_start_that_is_dropped() {
    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let slow = Mock::legacy().tool("echo", Behaviour::Echo).list_delay_ms(60_000);
    let mut starting = options(&recorder).server(server("slow", &slow, &leaks)).start();
    assert!(futures_util::poll!(&mut starting).is_pending());
    until(|| !leaks.leftovers().processes.is_empty()).await;
    drop(starting);
    leaks.assert_clean().await;
}

/// LIB-5: when the runtime of the tools is dropped with calls in flight, every process ends and nothing panics. The tools may
/// be dropped later, outside of any runtime, and a call from another runtime fails at once.
#[test]
fn a_dropped_runtime_ends_everything() {
    let runtimes: [fn() -> Runtime; 2] = [
        || Builder::new_current_thread().enable_all().build().unwrap(),
        || Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    ];
    for make in runtimes {
        let running = Arc::default();
        // The runtime that looks at the end is there from the beginning: it has descriptors of its own.
        let last = make();
        let (leaks, runtime) = (LeakCheck::start().required(), make());
        let (world, calls) = runtime.block_on(async {
            let world = world(&running).await;
            world.tools.call("shared__family", json!({})).await.unwrap();
            let calls = calls_in_flight(&world).await;
            (world, calls)
        });
        drop(runtime);
        assert_eq!(running.load(Ordering::SeqCst), 0);
        let World { tools, recorder, leaks: marked } = world;
        let other = make();
        other.block_on(async {
            for call in calls {
                // With its runtime, or a moment earlier with its server, if another thread still ran it.
                match call.await {
                    Ok(ended) => assert!(ended.is_err(), "{ended:?}"),
                    Err(ended) => assert!(ended.is_cancelled(), "{ended}"),
                }
            }
            until(|| marked.leftovers().processes.is_empty()).await;
            for tool in ["shared__echo", "own__echo", "each__echo"] {
                let failed = tokio::time::timeout(Duration::from_secs(20), tools.call(tool, json!({})));
                let failed = failed.await.expect("it fails at once").unwrap_err();
                assert_eq!(failed.code(), Code::ProviderUnavailable, "{failed}");
            }
            tools.close().await;
            // Descriptors of the runtimes are none of its business; the other check counts those.
            let left = marked.patience(Duration::ZERO).settle().await.err().unwrap_or_default();
            assert!(left.processes.is_empty() && left.tasks == 0, "{left}");
        });
        drop(other);
        drop(tools);
        last.block_on(leaks.assert_clean());
        recorder.assert_paired();
    }
}

/// LIB-5: when the only runtime is dropped, nobody is left to reap children, and still none of them stays as a zombie.
#[test]
fn a_dropped_runtime_leaves_no_zombie() {
    let (leaks, recorder) = (LeakCheck::start(), Recorder::new());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let tools = runtime.block_on(async {
        let mock = Mock::legacy().tool("echo", Behaviour::Echo);
        options(&recorder).server(server("a", &mock, &leaks)).start().await.unwrap()
    });
    assert_ne!(children(), [""; 0], "it runs");
    drop(runtime);
    drop(tools);
    for _ in 0..6000 {
        if children().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("these are left: {:?}", children());
}

/// The children of this process, zombies too, as the system describes them.
fn children() -> Vec<String> {
    let own = std::process::id().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let all = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    // The name stands in parentheses and may hold anything.
    let parent = |stat: &str| Some(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_owned());
    all.filter(|stat| parent(stat).as_deref() == Some(own.as_str())).collect()
}

/// LIB-5, PIPE-5: a handler that panics fails its own call, before or after it first waits; its lock is free, and the tools
/// go on.
#[tokio::test]
async fn a_handler_that_panics() {
    let early = native("early", |arguments| {
        assert_eq!(arguments["fine"], true, "a handler that panics");
        async { json!("fine") }
    });
    let late = native("late", |arguments| async move {
        tokio::task::yield_now().await;
        assert_eq!(arguments["fine"], true, "a handler that panics");
        json!("fine")
    });
    let world =
        World::with(&[("one", mock())], |_| (), |options| options.register(early).register(late)).await;
    for tool in ["early", "late"] {
        let failed = world.tools.call(tool, json!({})).await.unwrap_err();
        assert_eq!((failed.code(), failed.may_have_run()), (Code::HandlerError, true), "{failed}");
        assert_eq!(failed.message(), format!("tool `{tool}` panicked"));
        let exit = world.recorder.exits().pop().unwrap();
        assert!(matches!(exit.outcome(), Outcome::Error { code, .. } if code == "HANDLER_ERROR"), "{exit:?}");
        let fine = world.tools.call(tool, json!({"fine": true})).await.unwrap();
        assert_eq!(structured(&fine)["data"], "fine");
    }
    assert!(world.tools.call("one__echo", json!({})).await.is_ok());
    world.end().await;
}

/// LIB-5: a handler that blocks its thread holds up one thread of the runtime, and no other call on a runtime with several.
/// One that hands its work to `spawn_blocking` holds up none, and its call can be timed out.
#[test]
fn a_handler_that_blocks() {
    let runtime = |threads: usize| match threads {
        1 => Builder::new_current_thread().enable_all().build().unwrap(),
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap(),
    };
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(parking_lot::Mutex::new(held));
    let wait = move || {
        let held = Arc::clone(&held);
        move || held.lock().recv_timeout(Duration::from_secs(60)).is_ok()
    };
    let aside = wait.clone();
    let blocks = native("blocks", move |_| {
        let wait = wait();
        async move { json!(wait()) }
    });
    let hands_over = native("hands_over", move |_| {
        let wait = aside();
        async move { json!(tokio::task::spawn_blocking(wait).await.unwrap()) }
    });
    for (tool, threads) in [("blocks", 2), ("hands_over", 1)] {
        runtime(threads).block_on(async {
            let (blocks, hands_over) = (blocks.clone(), hands_over.clone());
            let more =
                |options: bridgehead::tools::ToolsOptions| options.register(blocks).register(hands_over);
            let world = World::with(&[("one", mock())], |_| (), more).await;
            let blocked = tokio::spawn(world.tools.call(tool, json!({})));
            until(|| world.recorder.enters().len() == 1).await;
            for number in 0..20 {
                let echoed = world.tools.call("one__echo", json!({"number": number})).await.unwrap();
                assert_eq!(structured(&echoed), json!({"number": number}));
            }
            assert!(!blocked.is_finished());
            let options = CallOptions::default().timeout(Duration::from_millis(20));
            let late = world.tools.call_with(tool, json!({}), options).await.unwrap_err();
            assert_eq!(
                (late.code(), late.may_have_run()),
                (Code::ProviderTimeout, false),
                "its turn never comes"
            );
            release.send(()).unwrap();
            assert_eq!(structured(&blocked.await.unwrap().unwrap())["data"], true);
            world.end().await;
        });
    }
}

/// LIB-5: a handler that was woken by a timer and then blocks leaves timers and sockets to the other thread of its runtime.
#[test]
fn a_handler_that_blocks_after_it_has_waited() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(parking_lot::Mutex::new(held));
    let blocking = Arc::new(AtomicUsize::new(0));
    let begun = Arc::clone(&blocking);
    let blocks = native("blocks", move |_| {
        let (held, begun) = (Arc::clone(&held), Arc::clone(&begun));
        async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            begun.fetch_add(1, Ordering::SeqCst);
            json!(held.lock().recv_timeout(Duration::from_secs(30)).is_ok())
        }
    });
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::with(&[], |_| (), |options| options.register(blocks)).await;
        let blocked = tokio::spawn(world.tools.call("blocks", json!({})));
        // Only timers from here on: nothing else wakes a thread of the runtime.
        until(|| blocking.load(Ordering::SeqCst) == 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!blocked.is_finished(), "the timers stood still with the handler");
        release.send(()).unwrap();
        assert_eq!(structured(&blocked.await.unwrap().unwrap())["data"], true);
        world.end().await;
    });
}

/// LIB-5: closing while servers still start ends them at once.
#[tokio::test]
async fn closed_while_servers_start() {
    let slow = Mock::legacy().tool("echo", Behaviour::Echo).list_delay_ms(60_000);
    let world = World::with(&[("slow", slow)], |_| (), |options| options.warm_up(Duration::ZERO)).await;
    let waiting = tokio::spawn(world.tools.call("slow__echo", json!({})));
    let tools: Tools = world.tools.clone();
    until(|| !world.leaks.leftovers().processes.is_empty()).await;
    tokio::time::timeout(Duration::from_secs(30), tools.close())
        .await
        .expect("it does not wait for the start");
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::ProviderUnavailable);
    drop(tools);
    world.end().await;
}

/// LIB-5: a start without a runtime is an error that says so, and no panic.
#[test]
fn a_start_needs_a_runtime() {
    let mut start = Tools::builder().start();
    let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(refused)) = start.as_mut().poll(&mut nobody) else { panic!("it waits") };
    assert!(matches!(refused, StartToolsError::NoRuntime), "{refused}");
    assert!(refused.to_string().contains("`#[tokio::main]`"), "{refused}");
}
