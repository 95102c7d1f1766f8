//! What a Rust handler tells its client while it runs: progress and log lines, and what its clocks make of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bridgehead_call::Outcome;
use bridgehead_gateway::{Level, NativeTool, ProgressSink, ToolContext};
use bridgehead_wire::Revision;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::{BOTH, Client, LEGACY, MODERN, data, everything, object};
use crate::support::Fixture;

fn tool<R>(name: &str, run: impl Fn(ToolContext) -> R + Send + Sync + 'static) -> NativeTool
where
    R: Future<Output = Value> + Send + 'static,
{
    NativeTool::new(name, "", object(), move |_, cx| {
        let running = run(cx);
        async move { Ok(running.await) }
    })
}

fn with(tools: Vec<NativeTool>) -> Fixture {
    Fixture::start(&[], |options| options.tools.extend(tools))
}

/// The notifications that came before the answer.
fn notes(unread: &mut mpsc::Receiver<bytes::Bytes>) -> Vec<Value> {
    let mut notes = Vec::new();
    while let Ok(note) = unread.try_recv() {
        notes.push(serde_json::from_slice(&note).unwrap());
    }
    notes
}

/// LIB-2: progress reaches a client of either era under its own token and in order, also from another thread. A value that
/// does not increase is not sent, and nothing is sent after the answer.
#[tokio::test]
async fn progress_reaches_the_client_in_order() {
    let kept = Arc::new(parking_lot::Mutex::new(None));
    let keep = Arc::clone(&kept);
    let steps = tool("steps", move |cx| {
        *keep.lock() = Some(cx.clone());
        async move {
            cx.progress(1.0, Some(9.0), Some("first"));
            let worker = tokio::task::spawn_blocking({
                let cx = cx.clone();
                move || cx.progress(2.5, None, None)
            });
            worker.await.unwrap();
            for ignored in [2.5, 2.0, f64::NAN, f64::INFINITY] {
                cx.progress(ignored, Some(9.0), None);
            }
            cx.progress(9.0, Some(f64::NAN), Some("last"));
            json!(null)
        }
    });
    let fixture = with(vec![steps]);
    for revision in BOTH {
        // A modern client that can be asked gets its progress through a call that may be parked.
        for capabilities in [json!({}), everything()] {
            let client = Client::new(revision, capabilities);
            let (sink, mut unread) = ProgressSink::channel(16);
            let params = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": "mine"}});
            let answered = client.send(&fixture.gateway, "tools/call", &params, Some(sink)).await.unwrap();
            data(&answered);
            kept.lock().take().unwrap().progress(10.0, None, None);
            let told: Vec<Value> = notes(&mut unread).iter().map(|note| note["params"].clone()).collect();
            let expected = [
                json!({"progressToken": "mine", "progress": 1.0, "total": 9.0, "message": "first"}),
                json!({"progressToken": "mine", "progress": 2.5}),
                json!({"progressToken": "mine", "progress": 9.0, "message": "last"}),
            ];
            assert_eq!(told, expected, "{revision}");

            // Without a token the client wants no progress.
            let (sink, mut unread) = ProgressSink::channel(16);
            let params = json!({"name": "steps", "arguments": {}});
            data(&client.send(&fixture.gateway, "tools/call", &params, Some(sink)).await.unwrap());
            assert_eq!(notes(&mut unread), Vec::<Value>::new(), "{revision}");
        }
    }
    let old = Client::new(Revision::V2024_11_05, json!({}));
    let (sink, mut unread) = ProgressSink::channel(16);
    let params = json!({"name": "steps", "arguments": {}, "_meta": {"progressToken": 7}});
    old.send(&fixture.gateway, "tools/call", &params, Some(sink)).await.unwrap().unwrap();
    let first = &notes(&mut unread)[0]["params"];
    assert_eq!(first, &json!({"progressToken": 7, "progress": 1.0, "total": 9.0}), "it knows no messages");
    fixture.end().await;
}

/// LIB-2, PIPE-9: a silent handler is ended after `request_timeout_ms`, with an error that says so; progress restarts that
/// clock, with or without a token, and `max_total_ms` bounds the whole call. The handler's future is dropped.
#[tokio::test(start_paused = true)]
async fn a_handler_has_its_time() {
    let dropped = Arc::new(AtomicBool::new(false));
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let flag = Arc::clone(&dropped);
    let silent = tool("silent", move |cx| {
        let held = OnDrop(Arc::clone(&flag));
        async move {
            let _held = held;
            cx.progress(1.0, None, None);
            sleep(Duration::from_secs(60)).await;
            json!("late")
        }
    });
    let steady = |name: &str, steps: u32| {
        tool(name, move |cx| async move {
            for step in 1..=steps {
                sleep(Duration::from_secs(8)).await;
                cx.progress(f64::from(step), None, None);
            }
            json!("done")
        })
    };
    let fixture = Fixture::start(&[], |options| {
        options.settings.request_timeout = Duration::from_secs(10);
        options.settings.max_total = Duration::from_secs(30);
        options.tools.extend([silent, steady("steady", 3), steady("endless", 100)]);
    });
    let client = Client::new(LEGACY, json!({}));
    for (name, after) in [("silent", 10), ("endless", 30)] {
        let began = tokio::time::Instant::now();
        let error = client.call(&fixture.gateway, name).await.unwrap_err();
        assert_eq!(
            (began.elapsed().as_secs(), &error["data"]["code"]),
            (after, &json!("PROVIDER_TIMEOUT")),
            "{error}"
        );
        assert_eq!(error["data"]["mayHaveRun"], true, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("tool `{name}` did not answer in time")), "{message}");
    }
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(data(&client.call(&fixture.gateway, "steady").await), "done");
    fixture.end().await;
}

/// LIB-2: a call that is cancelled drops its handler, and what the handler started elsewhere hears of it: a task that waits,
/// and a thread that looks. A call that is answered ends them too.
#[tokio::test]
async fn work_elsewhere_hears_of_the_end() {
    let (started, mut starts) = mpsc::channel(4);
    let (ended, mut ends) = mpsc::channel(4);
    let tool = tool("work", move |cx| {
        let (started, ended) = (started.clone(), ended.clone());
        async move {
            let over = cx.cancelled();
            let task = ended.clone();
            tokio::spawn(async move {
                over.await;
                task.send("task").await
            });
            let looking = cx.clone();
            tokio::task::spawn_blocking(move || {
                // A thread that never ends would keep the runtime from ending.
                let until = std::time::Instant::now() + bridgehead_testkit::PATIENCE;
                while !looking.is_cancelled() && std::time::Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ended.blocking_send("thread")
            });
            assert!(!cx.is_cancelled());
            started.send(()).await.unwrap();
            if cx.principal.as_str() == "patient" { std::future::pending().await } else { json!(null) }
        }
    });
    let fixture = with(vec![tool]);
    for revision in BOTH {
        for waits in [true, false] {
            let mut client = Client::new(revision, everything());
            if waits {
                client.principal = bridgehead_gateway::Principal::named("patient");
            }
            let call = client.send(&fixture.gateway, "tools/call", &json!({"name": "work"}), None);
            starts.recv().await.unwrap();
            if waits {
                call.abort();
            }
            let _ = call.await;
            let mut heard = [ends.recv().await.unwrap(), ends.recv().await.unwrap()];
            heard.sort_unstable();
            assert_eq!(heard, ["task", "thread"], "{revision} {waits}");
        }
    }
    let cancelled = fixture.recorder.exits();
    let cancelled = cancelled.iter().filter(|exit| matches!(exit.outcome(), Outcome::Cancelled)).count();
    assert_eq!(cancelled, 2);
    fixture.end().await;
}

/// LIB-2: log lines reach a client that asked for their level, and the gateway declares that it may write lines as soon as
/// there is a handler that may.
#[tokio::test]
async fn log_lines_reach_who_asked() {
    let logs = tool("logs", |cx| async move {
        cx.log(Level::Debug, "small");
        cx.log(Level::Error, json!({"n": 1}));
        json!(null)
    });
    let fixture = with(Vec::new());
    let client = Client::new(MODERN, json!({}));
    let declared = |answer: Value| answer["capabilities"].get("logging").is_some();
    let none = client.ask(&fixture.gateway, "server/discover", json!({})).await.unwrap();
    assert!(!declared(none), "built-in tools write no lines");
    fixture.gateway.register(logs).unwrap();
    assert!(declared(client.ask(&fixture.gateway, "server/discover", json!({})).await.unwrap()));
    for revision in BOTH {
        for (level, expected) in [(None, 0), (Some("debug"), 2), (Some("warning"), 1)] {
            let client = Client::new(revision, everything());
            let mut params = json!({"name": "logs", "arguments": {}});
            match level {
                Some(level) if revision == MODERN => {
                    params["_meta"] = json!({"io.modelcontextprotocol/logLevel": level});
                }
                Some(level) => {
                    client.ask(&fixture.gateway, "logging/setLevel", json!({"level": level})).await.unwrap();
                }
                None => {}
            }
            let (sink, mut unread) = ProgressSink::channel(16);
            client.send(&fixture.gateway, "tools/call", &params, Some(sink)).await.unwrap().unwrap();
            let lines = notes(&mut unread);
            assert_eq!(lines.len(), expected, "{revision} {level:?}: {lines:?}");
            if let Some(last) = lines.last() {
                assert_eq!(last["method"], "notifications/message");
                assert_eq!(last["params"], json!({"level": "error", "logger": "logs", "data": {"n": 1}}));
            }
        }
    }
    fixture.end().await;
}
