//! Remote servers of both eras behind streamable HTTP, played by a scripted peer.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead_config::{EraChoice, RemoteTransport, Secret};
use bridgehead_testkit::FrozenClock;
use bridgehead_testkit::peer::{Asked, Part, Peer, chunk, event, json_reply, last_chunk, reply, stream_head};
use bridgehead_upstream::{Event, LinkError, Mirror, Purpose, Unavailable, UpstreamState};
use bridgehead_wire::{Abilities, Method, Object, Raw, Revision, Spliced};
use remote::{Running, call, legacy, modern, open, result};
use serde_json::json;
use tokio::time::Instant;

/// LINK-2: a modern server gets one POST per request, with the headers that mirror the request and the configured ones.
#[tokio::test]
async fn a_modern_server() {
    let peer = Peer::start(|asked| modern(asked, |asked| json_reply(&result(asked, "hello")))).await;
    let running = Running::start(&peer, |server, remote| {
        remote.headers.insert("X-Key".to_owned(), Secret::new("hunter2"));
        server.era = EraChoice::Auto;
    });
    let ready = running.ready().await;
    assert_eq!(ready.peer.revision, Revision::MODERN);
    assert_eq!(ready.pid, None);
    assert_eq!(call(&ready, "echo").await.unwrap(), "hello");
    let params = Raw::encode(&json!({"name": "echo", "arguments": {"region": "日本"}}));
    let params = Object::parse(&params).unwrap();
    let tool = &ready.tools[0];
    let mut exchange = ready.link.open(Purpose::Ordinary);
    let mirror = Mirror { name: Some("grüße"), parameters: &tool.headers, params: Some(&params) };
    exchange.send_mirrored(&Method::ToolsCall, &params.edit().finish(), mirror).await;
    assert!(exchange.answer().await.is_ok());
    let asked = peer.asked();
    assert!(asked.iter().all(|asked| asked.method == "POST" && asked.header("x-key") == "hunter2"));
    assert!(asked.iter().all(|asked| asked.header("mcp-protocol-version") == "2026-07-28"));
    assert!(asked.iter().all(|asked| asked.header("accept") == "application/json, text/event-stream"));
    assert!(asked.iter().all(|asked| asked.header("mcp-method") == asked.rpc()));
    let last = asked.last().unwrap();
    assert_eq!(last.header("mcp-name"), "=?base64?Z3LDvMOfZQ==?=");
    assert_eq!(last.header("mcp-param-region"), "=?base64?5pel5pys?=");
    assert_eq!(peer.connections(), 1, "one connection serves them all");
    let names: Vec<_> = ready.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["echo", "slow"], "the tool with an invalid annotation is left out");
    assert!(!format!("{ready:?}").contains("hunter2"));
    running.end().await;
    assert!(peer.asked().iter().all(|asked| asked.method == "POST"), "there is no session to end");
}

/// LINK-2: a modern server that refuses a revision it supports is asked once more, and not a third time.
#[tokio::test]
async fn a_refused_revision() {
    let refuse = |asked: &Asked| {
        let error = json!({"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"], "requested": "2026-07-28"}});
        let body = json!({"jsonrpc": "2.0", "id": asked.json()["id"], "error": error}).to_string();
        reply("400 Bad Request", &["content-type: application/json"], &body)
    };
    let count = Arc::new(AtomicUsize::new(0));
    let peer = Peer::start(move |asked| match count.fetch_add(1, Ordering::SeqCst) {
        0 => refuse(asked),
        _ => modern(asked, |asked| json_reply(&result(asked, "hello"))),
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    assert_eq!((ready.peer.revision, ready.restarts), (Revision::MODERN, 0));
    running.end().await;

    let peer = Peer::start(refuse).await;
    let running = Running::start(&peer, |_, _| {});
    let outage = running.outage().await;
    assert!(outage.contains("no common protocol revision"), "{outage}");
    assert!(peer.asked_for("initialize").is_empty(), "the server is not a legacy one");
    running.end().await;
}

/// LINK-2: a legacy server has a session and its own stream, and is told when the gateway disconnects.
#[tokio::test]
async fn a_legacy_server() {
    let peer = Peer::start(|asked| match (asked.method.as_str(), asked.rpc().as_str()) {
        ("GET", _) => vec![
            stream_head(&[]),
            Part::Wait(Duration::from_millis(50)),
            event(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})),
            event(&json!({"jsonrpc": "2.0", "id": 0, "method": "ping"})),
            Part::Hang,
        ],
        _ => legacy(asked, |asked| json_reply(&result(asked, "old"))),
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    assert_eq!(ready.peer.revision, Revision::V2025_06_18);
    assert_eq!(call(&ready, "echo").await.unwrap(), "old");
    peer.until("the list is read again", |peer| peer.asked_for("tools/list").len() > 1).await;
    let answers =
        |peer: &Peer| peer.asked().iter().filter(|asked| asked.json()["result"] == json!({})).count();
    peer.until("the server's ping is answered", |peer| answers(peer) == 1).await;
    let asked = peer.asked();
    let of = |method: &str| asked.iter().find(|asked| asked.rpc() == method).unwrap();
    assert_eq!(of("initialize").header("mcp-protocol-version"), "");
    for method in ["notifications/initialized", "tools/list", "ping", "tools/call"] {
        assert_eq!(of(method).header("mcp-session-id"), "s1", "{method}");
        assert_eq!(of(method).header("mcp-protocol-version"), "2025-06-18", "{method}");
    }
    assert!(asked.iter().any(|asked| asked.method == "GET" && asked.header("accept") == "text/event-stream"));
    running.end().await;
    let asked = peer.asked();
    let ended = asked.iter().find(|asked| asked.method == "DELETE").unwrap();
    assert_eq!(ended.header("mcp-session-id"), "s1");
}

/// LINK-2: the gateway requests a legacy server's own stream before anything else, so that the request cannot be
/// mistaken for the resumption of an answer.
#[tokio::test]
async fn the_stream_of_a_server_comes_before_its_calls() {
    let table: [fn() -> Vec<Part>; 3] = [
        || reply("405 Method Not Allowed", &[], ""),
        || vec![Part::Wait(Duration::from_millis(200)), stream_head(&[]), Part::Hang],
        || vec![Part::Hang],
    ];
    for stream in table {
        let peer = Peer::start(move |asked| match asked.method.as_str() {
            "GET" => stream(),
            _ => legacy(asked, |asked| json_reply(&result(asked, "old"))),
        })
        .await;
        let running = Running::start(&peer, |_, _| {});
        let ready = running.ready().await;
        assert_eq!(call(&ready, "echo").await.unwrap(), "old");
        let asked = peer.asked();
        let stream = asked.iter().position(|asked| asked.method == "GET");
        let list = asked.iter().position(|asked| asked.rpc() == "tools/list");
        assert!(stream.is_some() && stream < list, "{asked:?}");
        running.end().await;
    }
}

/// FAULT-3: some servers, such as those on Node, send even the head of their own stream only with the first event. The
/// gateway does not wait for it: the server is ready and answers calls without any time passing. A question that comes
/// on that stream during a call reaches the client of that call.
#[tokio::test(start_paused = true)]
async fn a_stream_without_a_head_is_not_waited_for() {
    let _still = FrozenClock::begin();
    let began = Instant::now();
    let (asks, is_asked) = tokio::sync::watch::channel(false);
    let peer = Peer::start(move |asked| match (asked.method.as_str(), asked.rpc().as_str()) {
        ("GET", _) => {
            let question = json!({"jsonrpc": "2.0", "id": 7, "method": "roots/list"});
            vec![Part::Until(is_asked.clone()), stream_head(&[]), event(&question), Part::Hang]
        }
        ("POST", "tools/call") if asked.json()["params"]["name"] == "slow" => {
            asks.send_replace(true);
            vec![Part::Hang]
        }
        _ => legacy(asked, |asked| json_reply(&result(asked, "old"))),
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    assert_eq!(call(&ready, "echo").await.unwrap(), "old");
    assert!(peer.asked().iter().any(|asked| asked.method == "GET"), "its stream was requested");

    let roots = Abilities::declared(&Raw::literal(r#"{"roots":{}}"#));
    let mut exchange = ready.link.open_for(Purpose::Ordinary, roots);
    let params = Raw::literal(r#"{"name":"slow","arguments":{}}"#);
    exchange.send(&Method::ToolsCall, &Spliced::from(params)).await;
    match exchange.next().await {
        Event::Asked(question) => assert_eq!(question.method, Method::RootsList),
        other => panic!("{other:?}"),
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "nothing waited for a timer");
    drop(exchange);
    running.end().await;
}

/// HOUR-2: `start_timeout_ms` limits an attempt to start, not the minute that callers wait. Callers fail at 60 s while
/// the attempt continues, and a server that starts later serves.
#[tokio::test(start_paused = true)]
async fn an_attempt_has_a_bound_of_its_own() {
    let (lists, may_list) = tokio::sync::watch::channel(false);
    let peer = Peer::start(move |asked| match asked.rpc().as_str() {
        "tools/list" => {
            let wait = Part::Until(may_list.clone());
            std::iter::once(wait).chain(modern(asked, |_| Vec::new())).collect()
        }
        _ => modern(asked, |asked| json_reply(&result(asked, "late"))),
    })
    .await;
    let still = FrozenClock::begin();
    let began = Instant::now();
    let running = Running::start(&peer, |_, _| {});
    has_asked(&peer, "tools/list", 1).await;
    drop(still);
    let far = began + Duration::from_secs(3_600);
    let refused = running.upstream.acquire(far).await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 60);
    assert!(matches!(refused, Unavailable::StillStarting(_)), "{refused}");
    assert!(refused.to_string().contains("still starting after 60 s"), "{refused}");
    tokio::time::sleep_until(began + Duration::from_secs(170)).await;
    assert!(matches!(running.upstream.state(), UpstreamState::Starting { .. }));
    let still = FrozenClock::begin();
    lists.send_replace(true);
    let ready = running.ready().await;
    assert_eq!((call(&ready, "echo").await.unwrap().as_str(), ready.restarts), ("late", 0));
    assert_eq!(peer.asked_for("tools/list").len(), 1, "it was the first attempt");
    running.end().await;

    lists.send_replace(false);
    let began = Instant::now();
    let running = Running::start(&peer, |server, _| server.start_timeout = Duration::from_secs(20));
    has_asked(&peer, "tools/list", 2).await;
    drop(still);
    let outage = running.outage().await;
    assert_eq!(began.elapsed().as_secs(), 20);
    assert!(outage.contains("no usable answer within 20s (`start_timeout_ms`)"), "{outage}");
    running.end().await;
}

/// Waits until the peer got `method` that many times, while the clock stands still.
async fn has_asked(peer: &Peer, method: &str, times: usize) {
    bridgehead_testkit::until(method, || peer.asked_for(method).len() >= times).await;
}

/// LINK-2: progress comes before the answer, whatever else is in the stream.
#[tokio::test]
async fn answers_among_events() {
    let peer = Peer::start(|asked| {
        modern(asked, |asked| {
            let id = asked.json()["id"].clone();
            let progress = |token: &serde_json::Value, progress: u32| {
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": progress}})
            };
            vec![
                stream_head(&[]),
                chunk(": hello\n\nretry: 5\n\ndata:\n\n"),
                event(&progress(&id, 1)),
                event(&progress(&json!("foreign"), 2)),
                event(&json!({"jsonrpc": "2.0", "id": 4711, "result": {}})),
                chunk("data: this is no message\n\n"),
                event(&progress(&id, 1)),
                event(&progress(&id, 2)),
                event(&result(asked, "done")),
                event(&result(asked, "done again")),
                last_chunk(),
            ]
        })
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    for _ in 0..3 {
        let mut exchange = open(&ready, "echo").await;
        let mut seen = Vec::new();
        loop {
            match exchange.next().await {
                Event::Progress(params) => {
                    seen.push(params.decode::<serde_json::Value>().unwrap()["progress"].clone());
                }
                Event::Answer(answer) => break assert!(answer.unwrap().as_str().contains("done\"")),
                Event::Lost(error) => panic!("{error}"),
                Event::Log(_) | Event::Acknowledged => panic!("nothing of this was requested"),
                Event::Asked(_) | Event::Withdrawn(_) => panic!("this client cannot be asked"),
            }
        }
        assert_eq!(seen, [1, 2]);
    }
    running.end().await;
}

/// LINK-2: a legacy answer whose stream breaks is resumed with `Last-Event-ID`, after the time the server asks for.
#[tokio::test]
async fn a_broken_stream_is_taken_up() {
    let waiting = Arc::new(parking_lot::Mutex::new(None));
    let peer = Peer::start(move |asked| match asked.method.as_str() {
        "GET" if asked.header("last-event-id") == "e-2" => {
            let text = waiting.lock().take().unwrap_or_default();
            vec![stream_head(&[]), chunk(&format!("id: e-3\ndata: {text}\n\n")), last_chunk()]
        }
        "GET" => reply("405 Method Not Allowed", &[], ""),
        _ => legacy(asked, |asked| {
            *waiting.lock() = Some(result(asked, "resumed").to_string());
            vec![stream_head(&[]), chunk("id: e-1\nretry: 300\ndata:\n\nid: e-2\n\n"), last_chunk()]
        }),
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    let began = Instant::now();
    assert_eq!(call(&ready, "echo").await.unwrap(), "resumed");
    assert!((300..500).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    running.end().await;
}

/// LINK-2: a lost session is replaced by a new handshake; the request that met it never ran.
#[tokio::test]
async fn a_forgotten_session() {
    let shakes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&shakes);
    let peer = Peer::start(move |asked| {
        if asked.rpc() == "initialize" {
            count.fetch_add(1, Ordering::SeqCst);
        }
        if asked.rpc() == "tools/call" && count.load(Ordering::SeqCst) == 1 {
            return reply(
                "404 Not Found",
                &["content-type: application/json"],
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
            );
        }
        legacy(asked, |asked| json_reply(&result(asked, "again")))
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    let mut exchange = open(&ready, "echo").await;
    let Err(LinkError::Closed(reason)) = exchange.answer().await else { panic!("a lost session") };
    assert!(reason.contains("has forgotten our session"), "{reason}");
    assert!(!exchange.was_sent());
    let again = running.upstream.acquire(Instant::now() + Duration::from_secs(60)).await.unwrap();
    assert_eq!(call(&again, "echo").await.unwrap(), "again");
    assert_eq!(shakes.load(Ordering::SeqCst), 2);
    running.end().await;
}

/// ERA-1: a server that has forgotten a task and refuses to follow it still announces all other changes.
#[tokio::test]
async fn a_forgotten_task_costs_no_other_changes() {
    let peer = Peer::start(|asked| {
        let id = &asked.json()["id"];
        match asked.rpc().as_str() {
            "server/discover" => json_reply(&json!({"jsonrpc": "2.0", "id": id, "result": {
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "public",
                "capabilities": {"tools": {"listChanged": true}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
            }})),
            "subscriptions/listen" if asked.body.contains("taskIds") => {
                let error = json!({"code": -32602, "message": "no such task"});
                json_reply(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
            }
            "subscriptions/listen" => {
                let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
                let params = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
                let method = "notifications/subscriptions/acknowledged";
                let acknowledged = json!({"jsonrpc": "2.0", "method": method, "params": params});
                vec![stream_head(&[]), event(&acknowledged), Part::Hang]
            }
            _ => modern(asked, |asked| json_reply(&result(asked, "hello"))),
        }
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    running.ready().await;
    let listens = |peer: &Peer| peer.asked_for("subscriptions/listen").len();
    peer.until("the gateway listens", |peer| listens(peer) == 1).await;
    let watch = running.upstream.watch_task("t/1");
    tokio::time::timeout(Duration::from_secs(60), watch.settled()).await.unwrap();
    let asked: Vec<bool> =
        peer.asked_for("subscriptions/listen").iter().map(|asked| asked.body.contains("taskIds")).collect();
    assert_eq!(asked, [false, true, false]);
    drop(watch);
    running.end().await;
}

/// POOL-10: an abandoned request is cancelled: by closing its response, or by a message to a legacy server.
#[tokio::test]
async fn cancellation() {
    let script = |asked: &Asked| modern(asked, |_| vec![Part::Hang]);
    let peer = Peer::start(script).await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    let mut exchange = open(&ready, "slow").await;
    let waited = tokio::time::timeout(Duration::from_millis(100), exchange.next()).await;
    assert!(waited.is_err());
    assert_eq!((peer.ended(), ready.link.in_flight()), (0, 1));
    drop(exchange);
    peer.until("the response is closed", |peer| peer.ended() == 1).await;
    assert_eq!(ready.link.in_flight(), 0);
    running.end().await;

    let peer = Peer::start(|asked| legacy(asked, |_| vec![stream_head(&[]), Part::Hang])).await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    let mut exchange = open(&ready, "slow").await;
    let id = exchange.id();
    assert!(tokio::time::timeout(Duration::from_millis(100), exchange.next()).await.is_err());
    drop(exchange);
    peer.until("server is notified", |peer| !peer.asked_for("notifications/cancelled").is_empty()).await;
    assert_eq!(peer.asked_for("notifications/cancelled")[0].json()["params"]["requestId"], json!(id));
    running.end().await;
}

/// BRG-6: if a server asks to wait, the request waits and is sent again.
#[tokio::test]
async fn too_many_requests() {
    let calls = Arc::new(AtomicUsize::new(0));
    let peer = Peer::start(move |asked| {
        let calls = Arc::clone(&calls);
        modern(asked, move |asked| match calls.fetch_add(1, Ordering::SeqCst) {
            0 => reply("429 Too Many Requests", &["retry-after: 1"], ""),
            _ => json_reply(&result(asked, "at last")),
        })
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    let began = Instant::now();
    let mut exchange = open(&ready, "echo").await;
    exchange.answer().await.unwrap().unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(exchange.sends(), 2, "the server got both");
    running.end().await;
}

/// POOL-6: the gateway reconnects to a server that went away, and calls wait for it.
#[tokio::test]
async fn a_server_that_goes_and_comes_back() {
    let peer = Peer::start(|asked| {
        modern(asked, |asked| {
            let mut parts = json_reply(&result(asked, "one"));
            parts.push(Part::Close);
            parts
        })
    })
    .await;
    let address = peer.address();
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    assert_eq!(call(&ready, "echo").await.unwrap(), "one");
    drop(peer);
    let mut exchange = open(&ready, "echo").await;
    let Err(LinkError::Closed(reason)) = exchange.answer().await else { panic!("a lost server") };
    assert!(reason.contains("is the server running there?"), "{reason}");
    assert!(!exchange.was_sent());
    assert_eq!(exchange.sends(), 0);
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let peer = Peer::serve(tokio::net::TcpListener::from_std(listener).unwrap(), |asked| {
        modern(asked, |asked| json_reply(&result(asked, "two")))
    });
    let again = running.upstream.acquire(Instant::now() + Duration::from_secs(60)).await.unwrap();
    assert_eq!(call(&again, "echo").await.unwrap(), "two");
    running.end().await;
    drop(peer);
}

/// LINK-2: `era` saves the server the probe it cannot answer.
#[tokio::test]
async fn an_era_may_be_configured() {
    let peer = Peer::start(|asked| legacy(asked, |asked| json_reply(&result(asked, "x")))).await;
    let running = Running::start(&peer, |server, remote| {
        server.era = EraChoice::Legacy;
        remote.transport = RemoteTransport::Http;
    });
    running.ready().await;
    running.end().await;
    assert!(peer.asked_for("server/discover").is_empty());
    let running = Running::start(&peer, |server, _| server.era = EraChoice::Modern);
    let reason = running.outage().await;
    assert!(reason.contains("refused the request (400"), "{reason}");
    assert!(matches!(running.upstream.state(), UpstreamState::Restarting(_)));
    running.end().await;
    assert_eq!(peer.asked_for("initialize").len(), 1);
}

/// LINK-2: a large answer passes, whole or as an event; one above the limit does not.
#[tokio::test]
async fn large_answers() {
    let peer = Peer::start(|asked| {
        modern(asked, |asked| {
            let size = asked.json()["params"]["arguments"]["size"].as_u64().unwrap_or(0);
            let text = "x".repeat(usize::try_from(size).unwrap());
            match asked.json()["params"]["name"].as_str() {
                Some("slow") => vec![stream_head(&[]), event(&result(asked, &text)), last_chunk()],
                _ => json_reply(&result(asked, &text)),
            }
        })
    })
    .await;
    let running = Running::start(&peer, |_, _| {});
    let ready = running.ready().await;
    for tool in ["echo", "slow"] {
        for (size, fits) in [(10 << 20, true), (20 << 20, false)] {
            let mut exchange = ready.link.open(Purpose::Ordinary);
            let params = Spliced::from(Raw::encode(&json!({"name": tool, "arguments": {"size": size}})));
            exchange.send(&Method::ToolsCall, &params).await;
            match exchange.answer().await {
                Ok(Ok(result)) => assert!(fits && result.bytes().len() > size, "{tool} {size}"),
                Err(LinkError::TooLarge { .. }) => assert!(!fits, "{tool} {size}"),
                other => panic!("{other:?}"),
            }
        }
    }
    running.end().await;
}

/// BOUND-1: however many requests a remote server sends, and whatever it does with the answers, the answers use only a
/// few connections. A server that takes none is given up, and its callers get the reason.
#[tokio::test]
async fn a_server_that_floods_requests() {
    let flood = |pings: usize| {
        let text: String = (0..pings)
            .map(|id| format!("data: {}\n\n", json!({"jsonrpc": "2.0", "id": id, "method": "ping"})))
            .collect();
        chunk(&text)
    };
    let answers =
        |peer: &Peer| peer.asked().iter().filter(|asked| asked.json()["result"].is_object()).count();
    // On its own stream, and on that of a call.
    for aside in [true, false] {
        for takes in [true, false] {
            let peer = Peer::start(move |asked| {
                let is_answer = asked.json()["result"].is_object();
                match (asked.method.as_str(), asked.rpc().as_str()) {
                    ("GET", _) if aside => {
                        vec![
                            stream_head(&[]),
                            Part::Wait(Duration::from_millis(300)),
                            flood(3000),
                            Part::Hang,
                        ]
                    }
                    ("POST", _) if is_answer && takes => reply("202 Accepted", &[], ""),
                    ("POST", _) if is_answer => vec![Part::Hang],
                    ("POST", "tools/call") if !aside => {
                        let done = [event(&result(asked, "done")), last_chunk()];
                        [vec![stream_head(&[]), flood(3000)], done.to_vec()].concat()
                    }
                    _ => legacy(asked, |_| vec![Part::Hang]),
                }
            })
            .await;
            let running = Running::start(&peer, |_, _| {});
            let ready = running.ready().await;
            let called = call(&ready, "slow");
            if takes {
                let all = async {
                    while answers(&peer) < 3000 {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                if aside {
                    tokio::select! {
                        () = all => {}
                        outcome = called => panic!("{outcome:?}"),
                    }
                } else {
                    assert_eq!(called.await.unwrap(), "done");
                    all.await;
                }
            } else {
                let error = called.await.unwrap_err();
                assert!(error.contains("sends requests and does not accept the answers"), "{error}");
                assert!(ready.link.ended().is_some());
                assert!(answers(&peer) <= 4, "{} on their way at once", answers(&peer));
            }
            assert!(peer.connections() < 16, "{} connections", peer.connections());
            running.end().await;
        }
    }
}

/// BOUND-3: an endless list is refused when it exceeds the memory limit for one server, and nothing of it is kept.
#[tokio::test]
async fn a_list_without_end() {
    let resident_mb = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    };
    let peer = Peer::start(|asked| {
        if asked.rpc() != "tools/list" {
            return modern(asked, |asked| json_reply(&result(asked, "hello")));
        }
        let page = asked.json()["params"]["cursor"].as_str().unwrap_or("0").parse::<u64>().unwrap();
        let tool = |number: u64| json!({"name": format!("t{page}-{number}"), "description": "x".repeat(100_000), "inputSchema": {"type": "object"}});
        let tools: Vec<_> = (0..10).map(tool).collect();
        let list = json!({"tools": tools, "nextCursor": (page + 1).to_string(), "resultType": "complete", "ttlMs": 0, "cacheScope": "public"});
        json_reply(&json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": list}))
    })
    .await;
    let before = resident_mb();
    let running = Running::start(&peer, |_, _| {});
    let outage = running.outage().await;
    assert!(outage.contains("it is too large") && outage.contains("limits.held_per_peer_mb"), "{outage}");
    assert!(peer.asked_for("tools/list").len() < 30, "{} pages of 1 MB", peer.asked_for("tools/list").len());
    assert!(resident_mb() < before + 200, "from {before} to {} MB", resident_mb());
    let budget = bridgehead_wire::held::Budget::process();
    assert!(budget.peak() > 50 << 20 && budget.peak() <= 64 << 20, "{}", budget.peak());
    running.end().await;
    assert_eq!(budget.held(), 0);
}
