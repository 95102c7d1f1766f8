//! Signals to this process itself. The only test in this file, so that no other test gets them.

use std::sync::Arc;
use std::time::Duration;

use bridgehead::{Ending, NativeTool, Server, StopSignal, Transport};
use bridgehead_testkit::Recorder;
use rustix::process::{getpid, kill_process};
use serde_json::json;
use tokio::io::AsyncWriteExt;

/// SRV-2: when one client is gone, the requests of the other are drained. One signal does not end the drain early, a second
/// one does.
#[tokio::test]
async fn the_second_signal_ends_the_drain() {
    let recorder = Recorder::new();
    let endless = NativeTool::new("endless", "", json!({"type": "object"}), |_, _| std::future::pending());
    let (leaving, first) = tokio::io::duplex(1024);
    let (mut staying, second) = tokio::io::duplex(1024);
    let server = Server::builder()
        .register(endless)
        .audit(Arc::new(recorder.clone()))
        .transport(Transport::Memory(first))
        .transport(Transport::Memory(second))
        .process_handlers(true)
        .build()
        .unwrap();
    let running = server.start().await.unwrap();
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "endless"}});
    staying.write_all(format!("{initialize}\n{call}\n").as_bytes()).await.unwrap();
    while recorder.enters().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(leaving);
    let mut waiting = std::pin::pin!(running.wait());
    let noticed = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ending = &mut waiting => panic!("the other client's request was not drained: {ending:?}"),
        () = noticed => {}
    }
    // Signals of the same kind in quick succession merge into one, so the test repeats it until two have arrived.
    let mut again = tokio::time::interval(Duration::from_millis(20));
    let ending = loop {
        tokio::select! {
            biased;
            ending = &mut waiting => break ending.unwrap(),
            _ = again.tick() => {
                kill_process(getpid(), rustix::process::Signal::TERM).unwrap();
            }
        }
    };
    assert_eq!(ending, Ending::Forced(StopSignal::Terminate));
}
