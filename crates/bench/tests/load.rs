//! Runs the load generator against the echo server: every answer is checked, in both eras.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::time::Duration;

use bridgehead_bench::echo::Echo;
use bridgehead_bench::load::Load;
use bridgehead_bench::request::{Ask, Era};
use bridgehead_bench::serve;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Serves on a separate thread, in place of a process; the thread ends with the test process.
fn served(tools: usize) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            serve::http(Echo::new(tools), TcpListener::from_std(listener).unwrap()).await
        })
    });
    address
}

fn load(address: std::net::SocketAddr, era: Era, ask: Ask) -> Load {
    let (warm_up, measured) = (Duration::from_millis(20), Duration::from_millis(50));
    let tool = "echo".to_owned();
    Load { address, pid: std::process::id(), era, ask, tool, connections: 4, warm_up, measured }
}

#[test]
fn calls_and_lists_are_answered_in_both_eras() {
    let address = served(100);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for era in Era::ALL {
        for ask in [Ask::Call, Ask::List] {
            let round = runtime.block_on(load(address, era, ask).run()).unwrap();
            assert!(round.per_second > 0.0);
            assert!(round.latency.p50 > 0.0 && round.latency.p50 <= round.latency.p99);
        }
    }
}

#[test]
fn a_wrong_answer_ends_the_round() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let answer = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"broken"}}"#;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all(&[head.as_bytes(), answer].concat()).unwrap();
        }
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(load(address, Era::Modern, Ask::Call).run()).unwrap_err();
    assert!(format!("{error:#}").contains("a wrong answer"), "{error:#}");
}

/// FAULT-2: the load waits for a server that is slower than the measured time, so a measurement does not fail on a busy
/// machine.
#[test]
fn a_slow_answer_is_waited_for() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut request) {
            std::thread::sleep(Duration::from_millis(150));
            let text = String::from_utf8_lossy(&request[..length]).into_owned();
            let (_, id) = text.split_once("\"id\":").unwrap();
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, &id[..8]);
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}", answer.len()).unwrap();
        }
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let load = Load { connections: 1, ..load(address, Era::Modern, Ask::List) };
    let round = runtime.block_on(load.run()).unwrap();
    assert!(round.latency.p50 >= 150_000.0, "{round:?}");
}
