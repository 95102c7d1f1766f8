//! Measures what recording costs: calls of two threads with the combining commit, against a writer thread
//! that every call hands its events to and waits for.
//!
//! `cargo run --release -p bridgehead-audit --example commit`
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement, not the product")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bridgehead_audit::{
    About, AuditSink, Call, Clock, CorrelationId, Enter, Exit, Outcome, StoreOptions, StoreSink, SystemClock,
    Ticket,
};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

const THREADS: usize = 2;
const LASTS: Duration = Duration::from_secs(2);

enum Order {
    Enter(Box<Enter>, oneshot::Sender<Option<Ticket>>),
    Exit(Box<Exit>, Option<Ticket>),
}

/// One event loop owns the store: it takes the orders that have arrived, writes them at once and answers.
fn writer(sink: &Arc<StoreSink>) -> mpsc::Sender<Order> {
    let (orders, mut queue) = mpsc::channel(4_096);
    let sink = Arc::clone(sink);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            while let Some(order) = queue.recv().await {
                let mut next = Some(order);
                while let Some(order) = next {
                    let sink = Arc::clone(&sink);
                    match order {
                        Order::Enter(event, done) => drop(tokio::task::spawn_local(async move {
                            let _ = done.send(sink.enter(&event).await.unwrap());
                        })),
                        Order::Exit(event, ticket) => sink.exit(ticket, *event).unwrap(),
                    }
                    next = queue.try_recv().ok();
                }
            }
        }));
    });
    orders
}

fn event(clock: &SystemClock) -> Enter {
    let call = Call {
        tool: "files__read".into(),
        server: Some("files".into()),
        principal: "local:1000".into(),
        correlation: CorrelationId::mint(),
        era: bridgehead_wire::Era::Modern,
        transport: "http",
        about: About::default(),
    };
    Enter::new(call, Bytes::from_static(br#"{"path":"/tmp/notes/today.md","limit":100}"#), true, clock.now())
}

fn measure(name: &str, tasks: usize, through_writer: bool) {
    let folder = tempfile::tempdir().unwrap();
    let sink = Arc::new(StoreSink::open(StoreOptions::new(folder.path())).unwrap());
    let orders = through_writer.then(|| writer(&sink));
    let threads: Vec<_> = (0..THREADS.min(tasks))
        .map(|_| {
            let (sink, orders) = (Arc::clone(&sink), orders.clone());
            std::thread::spawn(move || {
                let local = tokio::task::LocalSet::new();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let times = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
                let end = Instant::now() + LASTS;
                for _ in 0..tasks.div_ceil(THREADS) {
                    let (sink, orders, times) = (Arc::clone(&sink), orders.clone(), times.clone());
                    local.spawn_local(async move {
                        let clock = SystemClock::default();
                        while Instant::now() < end {
                            let enter = event(&clock);
                            let begun = Instant::now();
                            let ticket = match &orders {
                                Some(orders) => {
                                    let (done, wait) = oneshot::channel();
                                    let _ = orders.send(Order::Enter(Box::new(enter.clone()), done)).await;
                                    wait.await.ok().flatten()
                                }
                                None => sink.enter(&enter).await.unwrap(),
                            };
                            times.borrow_mut().push(begun.elapsed());
                            let body = Bytes::from_static(br#"{"content":[{"type":"text","text":"hello"}]}"#);
                            let outcome = Outcome::Result { body, is_error: false };
                            let exit = Exit::new(enter.call(), enter.moment(), clock.now(), outcome);
                            match &orders {
                                Some(orders) => drop(orders.send(Order::Exit(Box::new(exit), ticket)).await),
                                None => drop(sink.exit(ticket, exit)),
                            }
                        }
                    });
                }
                runtime.block_on(local);
                times.take()
            })
        })
        .collect();
    let mut times: Vec<Duration> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{name:16} {tasks:3} at once: {:7.0} calls/s, enter p50 {:5.0} us, p99 {:6.0} us, max {:6.0} us",
        times.len() as f64 / LASTS.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn main() {
    for tasks in [1, 16, 64] {
        measure("combining commit", tasks, false);
        measure("writer thread", tasks, true);
    }
}
