//! What follows when a call takes too long: the call's own timeout, the times of the settings, and a cancel from outside.

use std::time::Duration;

use bridgehead::config::{Isolation, Prefix, ServerConfig};
use bridgehead::events::{Delivery, Filter, Subscription};
use bridgehead::tools::{CallOptions, Tools};
use bridgehead::{CancelReason, Code, GatewaySettings, Outcome};
use bridgehead_testkit::{Behaviour, LeakCheck, Mock, Recorder};
use serde_json::json;

use crate::support::{World, native, options, server, until};

fn mock() -> Mock {
    Mock::legacy().tool("hangs", Behaviour::HangUntilCancelled).tool("pid", Behaviour::ProcessId)
}

/// A shared server and one of these tools' own, which are probed after a call or never.
async fn world() -> World {
    let change = |server: &mut ServerConfig| {
        server.probe_interval = Duration::from_secs(3_600);
        if server.name.as_str() == "own" {
            server.isolation = Isolation::Session;
        }
    };
    let endless = native("endless", |_| std::future::pending()).concurrent();
    World::with(&[("shared", mock()), ("own", mock())], change, |options| options.register(endless)).await
}

fn probes(tools: &Tools) -> Subscription {
    tools.events().subscribe_to(Filter { topics: vec!["provider.mcp.probe".to_owned()], server: None }, 16)
}

/// The server of the next probe.
async fn probed(probes: &mut Subscription) -> String {
    let next = tokio::time::timeout(Duration::from_secs(60), probes.next()).await;
    let Some(Delivery::Event(event)) = next.expect("a server is probed") else { panic!("no event") };
    event.server().unwrap_or_default().to_owned()
}

/// Waits until the tools' own process is another one than before, and serves.
async fn restarted(world: &World, before: u64) {
    let mut pid = before;
    for _ in 0..600 {
        // A call that arrives during the restart may be lost with the old process.
        if let Ok(answer) = world.tools.call("own__pid", json!({})).await {
            pid = crate::support::structured(&answer)["pid"].as_u64().unwrap();
        }
        if pid != before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it was not restarted");
}

/// LIB-1, POOL-5, POOL-10: the timeout of a call does what the configured one does: a shared server is probed, a process of the
/// tools' own is restarted.
#[tokio::test]
async fn the_timeout_of_a_call_looks_after_its_server() {
    let world = world().await;
    let (shared, own) = (world.pid("shared__pid").await, world.pid("own__pid").await);
    let mut probes = probes(&world.tools);
    for tool in ["shared__hangs", "own__hangs"] {
        let options = CallOptions::default().timeout(Duration::from_millis(500));
        let late = world.tools.call_with(tool, json!({}), options).await.unwrap_err();
        assert_eq!((late.code(), late.may_have_run()), (Code::ProviderTimeout, true), "{late}");
        if tool == "shared__hangs" {
            assert_eq!(probed(&mut probes).await, "shared");
        }
    }
    restarted(&world, own).await;
    assert_eq!(world.pid("shared__pid").await, shared, "it has answered its probe");
    world.end().await;
}

/// LIB-1, POOL-5: a call that never left this program is no reason to look after a server.
#[tokio::test]
async fn a_call_that_was_not_sent_concerns_no_server() {
    let busy = |server: &mut ServerConfig| {
        server.probe_interval = Duration::from_secs(3_600);
        server.queue = bridgehead::config::Queue::of(1);
    };
    let world = World::with(&[("one", mock())], busy, |options| options).await;
    let mut probes = probes(&world.tools);
    let running = tokio::spawn(world.tools.call("one__hangs", json!({})));
    until(|| world.recorder.enters().len() == 1).await;
    // The first call has the only place before the second one comes.
    tokio::task::yield_now().await;
    let options = CallOptions::default().timeout(Duration::from_millis(50));
    let late = world.tools.call_with("one__pid", json!({}), options).await.unwrap_err();
    assert_eq!((late.code(), late.may_have_run()), (Code::ProviderTimeout, false), "{late}");
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    world.pid("one__pid").await;
    assert!(probes.try_next().is_none());
    world.end().await;
}

/// LIB-1, POOL-10: cancelling a tool as unwanted ends its calls as cancelled, those of Rust tools too; cancelling it for a
/// time-out fails them, probes a shared server and restarts a process of the tools' own.
#[tokio::test]
async fn a_tool_is_cancelled_by_its_name() {
    let world = world().await;
    let own = world.pid("own__pid").await;
    let mut probes = probes(&world.tools);
    let cancel = |tool: &str, reason| world.tools.cancel_tool(tool, reason);
    assert!(
        !cancel("shared__hangs", CancelReason::Client) && !cancel("shared__hangs", CancelReason::Timeout)
    );
    assert!(!cancel("endless", CancelReason::Timeout) && !cancel("unknown", CancelReason::Timeout));
    let (mut before, mut entered) = (world.recorder.exits().len(), world.recorder.enters().len());
    for (reason, code) in
        [(CancelReason::Client, Code::Cancelled), (CancelReason::Timeout, Code::ProviderTimeout)]
    {
        for tool in ["shared__hangs", "endless", "own__hangs"] {
            let running = tokio::spawn(world.tools.call(tool, json!({})));
            // A process of the tools' own is restarted for a time-out even if no call runs.
            until(|| world.recorder.enters().len() == entered + 1).await;
            entered += 1;
            until(|| cancel(tool, reason)).await;
            let ended = running.await.unwrap().unwrap_err();
            assert_eq!((ended.code(), ended.tool()), (code, tool), "{ended}");
            assert!(ended.may_have_run(), "{ended}");
            until(|| world.recorder.exits().len() == before + 1).await;
            before += 1;
            let exit = world.recorder.exits().pop().unwrap();
            match reason {
                CancelReason::Client => assert!(matches!(exit.outcome(), Outcome::Cancelled), "{exit:?}"),
                CancelReason::Timeout => {
                    let failed =
                        matches!(exit.outcome(), Outcome::Error { code, .. } if code == "PROVIDER_TIMEOUT");
                    assert!(failed, "{exit:?}");
                }
            }
        }
        match reason {
            CancelReason::Client => assert!(probes.try_next().is_none(), "nobody was late"),
            CancelReason::Timeout => assert_eq!(probed(&mut probes).await, "shared"),
        }
    }
    restarted(&world, own).await;
    world.end().await;
}

/// LIB-7, CAT-3: the settings' times hold for servers that were added before and after them, unless a server has its own; and a
/// single server keeps its prefix, unless the settings forbid it.
#[tokio::test]
async fn settings_do_not_depend_on_their_order() {
    let brief = |prefix| GatewaySettings {
        prefix,
        request_timeout: Duration::from_millis(400),
        ..GatewaySettings::default()
    };
    for (before, prefix, name) in [
        (true, Prefix::Auto, "one__hangs"),
        (false, Prefix::Auto, "one__hangs"),
        (true, Prefix::Always, "one__hangs"),
        (false, Prefix::Never, "hangs"),
    ] {
        let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
        let one = server("one", &mock(), &leaks);
        let options = match before {
            true => options(&recorder).server(one).settings(brief(prefix)),
            false => options(&recorder).settings(brief(prefix)).server(one),
        };
        let tools = options.start().await.unwrap();
        let late = tokio::time::timeout(Duration::from_secs(60), tools.call(name, json!({}))).await;
        let late = late.expect("the settings limit the call").unwrap_err();
        assert_eq!(late.code(), Code::ProviderTimeout, "{before} {prefix:?}: {late}");
        World { tools, recorder, leaks }.end().await;
    }

    let (leaks, recorder) = (LeakCheck::start().required(), Recorder::new());
    let patient = server("patient", &mock(), &leaks).request_timeout(Duration::from_secs(600));
    let tools = options(&recorder).server(patient).settings(brief(Prefix::Auto)).start().await.unwrap();
    let calling = tokio::time::timeout(Duration::from_secs(2), tools.call("patient__hangs", json!({})));
    assert!(calling.await.is_err(), "its own time is longer");
    World { tools, recorder, leaks }.end().await;
}
