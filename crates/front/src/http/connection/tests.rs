//! Connections over in-process pipes, with a clock that the tests control.

use super::super::reply::Body;
use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Serves a connection to its end; a connection that never ends fails the test.
async fn serve_to_its_end<R>(
    stream: DuplexStream,
    answer: impl Fn(Request<Counted>) -> R,
    activity: &Arc<Activity>,
) -> hyper::Result<()>
where
    R: Future<Output = Reply> + Send + 'static,
{
    let serving = connection(stream, answer, activity, HEAD_WITHIN);
    tokio::time::timeout(HEADERS_WITHIN * 100, serving).await.expect("the connection ends")
}

fn start(answer: &'static str) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
    start_within(Budget::process(), 100_000, answer)
}

fn start_within(
    budget: &Arc<Budget>,
    times: usize,
    answer: &'static str,
) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
    let (client, server) = duplex(1024);
    let answer = move |_| async move { Reply::new(Body::from(answer.repeat(times))) };
    let budget = Arc::clone(budget);
    let serving = async move {
        let budget = &budget;
        let member = Admission::new(1, budget).enter(&CancellationToken::new()).unwrap();
        serve_to_its_end(server, answer, &member.activity).await
    };
    (client, tokio::spawn(serving))
}

/// BOUND-4: a head has its own time limit, from the start of the connection or from its first byte; between requests a
/// client may be silent for longer.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_slow_with_its_headers_is_closed() {
    for said in ["", "GET / HTTP/1.1\r\nhost: local"] {
        let (mut client, served) = start("x");
        let began = Instant::now();
        client.write_all(said.as_bytes()).await.unwrap();
        assert_eq!(served.await.unwrap().is_err(), !said.is_empty());
        assert_eq!(began.elapsed().as_secs(), HEAD_WITHIN.as_secs(), "{said}");
    }
    let (mut client, served) = start("");
    for _ in 0..3 {
        assert!(ask(&mut client).await.starts_with("HTTP/1.1 200 OK"));
        sleep(HEADERS_WITHIN / 2).await;
    }
    let began = Instant::now();
    client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    // More pieces of the head do not extend the time.
    for _ in 0..3 {
        sleep(HEAD_WITHIN / 4).await;
        client.write_all(b"a: b\r\n").await.unwrap();
    }
    assert!(served.await.unwrap().is_err());
    assert_eq!(began.elapsed().as_secs(), HEAD_WITHIN.as_secs());
    let (mut client, served) = start("");
    client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let began = Instant::now();
    assert!(served.await.unwrap().unwrap_err().is_timeout());
    assert_eq!(began.elapsed().as_secs(), HEADERS_WITHIN.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_answer_is_closed() {
    let (mut client, served) = start("x");
    client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut head = [0; 100];
    client.read_exact(&mut head).await.unwrap();
    let began = Instant::now();
    assert!(served.await.unwrap().is_err());
    assert_eq!(began.elapsed().as_secs(), STALLED_WRITE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_is_served() {
    let (mut client, served) = start("x");
    client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let (mut total, mut piece) = (0, [0; 1024]);
    loop {
        sleep(STALLED_WRITE / 2).await;
        match client.read(&mut piece).await.unwrap() {
            0 => break,
            read => total += read,
        }
    }
    assert!(total > 100_000);
    served.await.unwrap().unwrap();
}

/// A front whose connections answer with `ok`, behind a listener with a limited number of descriptors.
struct Listener {
    come: tokio::sync::mpsc::Sender<DuplexStream>,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

fn listen(most: usize, descriptors: usize) -> Listener {
    let (come, waiting) = tokio::sync::mpsc::channel(100);
    let (shutdown, open) = (CancellationToken::new(), Arc::new(()));
    let ending = shutdown.clone();
    let serving = tokio::spawn(async move {
        let waiting = tokio::sync::Mutex::new(waiting);
        let accept = {
            let open = Arc::clone(&open);
            async move || {
                if Arc::strong_count(&open) - 2 >= descriptors {
                    return Err(io::Error::from_raw_os_error(NO_DESCRIPTORS[0]));
                }
                waiting.lock().await.recv().await.ok_or_else(|| io::Error::other("over"))
            }
        };
        accept_all(
            "a test",
            &Admission::new(most, Budget::process()),
            accept,
            &ending,
            |error| panic!("{error}"),
            |connections, stream, member| {
                let held = Arc::clone(&open);
                connections.spawn(async move {
                    let _descriptor = held;
                    let answer = |_| async { Reply::new(Body::from("ok")) };
                    drop(serve_to_its_end(stream, answer, &member.activity).await);
                });
            },
        )
        .await;
    });
    Listener { come, shutdown, serving }
}

impl Listener {
    async fn connect(&self) -> DuplexStream {
        let (client, server) = duplex(1024);
        self.come.send(server).await.unwrap();
        client
    }
}

async fn ask(client: &mut DuplexStream) -> String {
    let asked = client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut heard = vec![0; 1000];
    let read = match asked {
        // The paused clock stands still while any task can run.
        Ok(()) => tokio::time::timeout(HEADERS_WITHIN, client.read(&mut heard)).await.expect("an answer"),
        Err(_) => Ok(0),
    };
    String::from_utf8_lossy(&heard[..read.unwrap_or_default()]).into_owned()
}

/// BOUND-4: unused connections lock no client out, and a connection that has sent a request is not closed for them.
#[tokio::test(start_paused = true)]
async fn idle_connections_lock_nobody_out() {
    let front = listen(4, 100);
    let mut served = front.connect().await;
    assert!(ask(&mut served).await.ends_with("ok"));
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(front.connect().await);
    }
    let mut newcomer = front.connect().await;
    assert!(ask(&mut newcomer).await.ends_with("ok"));
    assert!(ask(&mut served).await.ends_with("ok"), "it had sent a request");
    for gone in &mut idle[..17] {
        assert_eq!(gone.read(&mut [0]).await.unwrap(), 0, "closed");
    }
    front.shutdown.cancel();
    front.serving.await.unwrap();
}

/// BOUND-4: where no connection can make way, a new client is told that there is no room.
#[tokio::test(start_paused = true)]
async fn a_newcomer_is_refused_where_all_are_served() {
    let front = listen(0, 100);
    let mut newcomer = front.connect().await;
    let mut heard = String::new();
    newcomer.read_to_string(&mut heard).await.unwrap();
    let (head, body) = heard.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nretry-after: 5\r\n"), "{head}");
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{heard}");
    assert!(body.contains("all connections are in use"));
    front.shutdown.cancel();
    front.serving.await.unwrap();
}

/// BOUND-1: a front without descriptors closes an unused connection and continues.
#[tokio::test(start_paused = true)]
async fn a_front_without_descriptors_goes_on() {
    let front = listen(100, 3);
    let mut idle = [front.connect().await, front.connect().await, front.connect().await];
    tokio::task::yield_now().await;
    let began = Instant::now();
    let mut newcomer = front.connect().await;
    assert!(ask(&mut newcomer).await.ends_with("ok"));
    assert!(began.elapsed() < HEAD_WITHIN, "it did not have to wait until the others timed out");
    assert_eq!(idle[0].read(&mut [0]).await.unwrap(), 0, "closed");
    front.shutdown.cancel();
    front.serving.await.unwrap();
}

/// BOUND-4: where no descriptor is left and no connection can make way, the reserve serves to refuse each new client;
/// where a connection makes way, no client is refused.
#[tokio::test]
async fn the_reserve_refuses_a_newcomer_in_words() {
    let sockets = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = sockets.local_addr().unwrap();
    for room in [0, 1] {
        let shutdown = CancellationToken::new();
        let (waiting, refusing) = (std::cell::RefCell::new(None), std::cell::Cell::new(true));
        // The first accept of a client fails, for lack of a descriptor.
        let accept = async || {
            if let Some(stream) = waiting.take() {
                return Ok(stream);
            }
            let (stream, _) = sockets.accept().await?;
            if refusing.get() {
                waiting.replace(Some(stream));
                return Err(io::Error::from_raw_os_error(NO_DESCRIPTORS[0]));
            }
            Ok(stream)
        };
        assert!(spare_descriptor().is_some());
        let admission = Admission::new(room, Budget::process());
        let fresh = admission.enter(&shutdown);
        let front = accept_all(
            "a test",
            &admission,
            accept,
            &shutdown,
            |_| (),
            |connections, stream, member| {
                connections.spawn(async move {
                    let answer = |_| async { Reply::new(Body::from("ok")) };
                    drop(connection(stream, answer, &member.activity, HEAD_WITHIN).await);
                });
            },
        );
        let clients = async {
            for _ in 0..3 {
                let mut client = TcpStream::connect(address).await.unwrap();
                // A client that is refused sends nothing, because it would stay unread.
                if room == 1 {
                    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
                    client.write_all(request).await.unwrap();
                }
                let mut heard = String::new();
                client.read_to_string(&mut heard).await.unwrap();
                let status = if room == 0 { "HTTP/1.1 503 " } else { "HTTP/1.1 200 " };
                assert!(heard.starts_with(status), "{room}: {heard:?}");
                refusing.set(room == 0);
            }
            shutdown.cancel();
        };
        let served = async { tokio::join!(front, clients) };
        tokio::time::timeout(Duration::from_secs(60), served).await.expect("all are answered");
        assert_eq!(fresh.is_some_and(|fresh| !fresh.activity.begin()), room == 1, "it made way");
    }
}

/// BOUND-4: a connection that has made way serves no more requests: one that arrives meanwhile is not started, and the
/// connection is closed.
#[tokio::test(start_paused = true)]
async fn whoever_has_made_way_is_not_served() {
    for makes_way in [false, true] {
        let admission = Admission::new(1, Budget::process());
        let member = admission.enter(&CancellationToken::new()).unwrap();
        let (mut client, server) = duplex(1024);
        let served = Arc::new(parking_lot::Mutex::new(0));
        let count = Arc::clone(&served);
        let serving = tokio::spawn(async move {
            let answer = |_| {
                *count.lock() += 1;
                async { Reply::new(Body::from("ok")) }
            };
            // The request arrives before the connection is first polled.
            tokio::task::yield_now().await;
            serve_to_its_end(server, answer, &member.activity).await
        });
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        assert_eq!(makes_way && admission.evict(), makes_way);
        let mut heard = String::new();
        let read = tokio::time::timeout(HEADERS_WITHIN, client.read_to_string(&mut heard)).await;
        read.expect("an answer, or the end").unwrap();
        assert_eq!((*served.lock(), heard.ends_with("ok")), if makes_way { (0, false) } else { (1, true) });
        serving.await.unwrap().unwrap();
    }
}

/// BOUND-3: unread answers are held within the limits; a client beyond them is told why its answer is missing.
#[tokio::test(start_paused = true)]
async fn answers_that_nobody_reads_are_bounded() {
    let budget = Budget::new(10 << 20, 4 << 20);
    let mut unread = Vec::new();
    let ask = async |client: &mut DuplexStream| {
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut head = [0; 370];
        client.read_exact(&mut head).await.unwrap();
        String::from_utf8_lossy(&head).into_owned()
    };
    for number in 0..20 {
        let (mut client, _served) = start_within(&budget, 3 << 20, "x");
        let head = ask(&mut client).await;
        assert_eq!(head.starts_with("HTTP/1.1 200 "), number < 3, "{number}: {head}");
        if number >= 3 {
            assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("limits.held_mb"), "{head}");
        }
        unread.push(client);
    }
    assert_eq!(budget.peak(), 9 << 20);
    let (mut client, _served) = start_within(&budget, 5 << 20, "x");
    assert!(ask(&mut client).await.contains("limits.held_per_peer_mb"));
    drop(unread);
    let (mut client, _served) = start_within(&budget, 3 << 20, "x");
    assert!(ask(&mut client).await.starts_with("HTTP/1.1 200 "), "what the others held is free");
}

/// BOUND-3: half-sent bodies are held within the limits; clients beyond them are told that there is no room.
#[tokio::test(start_paused = true)]
async fn bodies_that_are_sent_by_half_are_bounded() {
    let budget = Budget::new(10 << 20, 4 << 20);
    let start = || {
        let (client, server) = duplex(1 << 16);
        let budget = Arc::clone(&budget);
        let served = tokio::spawn(async move {
            let member = Admission::new(1, &budget).enter(&CancellationToken::new()).unwrap();
            let answer = |request: Request<Counted>| async {
                let within = Duration::from_secs(60);
                let read = super::super::body::read(request.into_body(), 16 << 20, within).await;
                Reply::new(Body::from(format!("{read:?}").chars().take(100).collect::<String>()))
            };
            serve_to_its_end(server, answer, &member.activity).await
        });
        (client, served)
    };
    let send = async |client: &mut DuplexStream, megabytes: usize, of: usize| {
        let head = format!("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", of << 20);
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b'x'; megabytes << 20]).await.unwrap();
    };
    let mut halves = Vec::new();
    for _ in 0..20 {
        let (mut client, served) = start();
        send(&mut client, 3, 4).await;
        halves.push((client, served));
    }
    assert!(budget.peak() <= 10 << 20 && budget.held() >= 9 << 20, "{budget:?}");
    let mut heard = [0; 1000];
    let (last, _) = halves.last_mut().unwrap();
    let read = last.read(&mut heard).await.unwrap();
    assert!(String::from_utf8_lossy(&heard[..read]).contains("NoRoom(Total("), "{heard:?}");
    drop(halves);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(budget.held(), 0);
    let (mut client, _served) = start();
    send(&mut client, 5, 5).await;
    let read = client.read(&mut heard).await.unwrap();
    assert!(String::from_utf8_lossy(&heard[..read]).contains("NoRoom(Peer("));
    let (mut client, _served) = start();
    send(&mut client, 3, 3).await;
    let read = client.read(&mut heard).await.unwrap();
    assert!(String::from_utf8_lossy(&heard[..read]).contains("Ok("), "a body that fits is read whole");
}

/// SRV-2: the panic of a connection's own task is reported, both while others are accepted and after that.
#[tokio::test]
async fn a_connection_that_panics_is_told_of() {
    let told = parking_lot::Mutex::new(Vec::new());
    let shutdown = CancellationToken::new();
    let given = std::cell::Cell::new(0);
    // Called anew whenever a connection has ended.
    let accept = async || {
        match given.get() {
            0 => {}
            1 => {
                bridgehead_testkit::until("the first line of the log", || !told.lock().is_empty()).await;
            }
            _ => {
                shutdown.cancel();
                std::future::pending::<()>().await;
            }
        }
        given.set(given.get() + 1);
        Ok(duplex(64).0)
    };
    let failed = |error: JoinError| told.lock().push(error.is_panic());
    let admission = Admission::new(4, Budget::process());
    accept_all("a test", &admission, accept, &shutdown, failed, |connections, stream, member| {
        connections.spawn(async move {
            let _held = (stream, member);
            panic!("a panic of a connection");
        });
    })
    .await;
    assert_eq!(*told.lock(), [true, true]);
}
