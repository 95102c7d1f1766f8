//! Servers behind a proxy, and servers that redirect. The proxy is a small real one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::net::SocketAddr;
use std::sync::Arc;

use bridgehead_config::RemoteTransport;
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply, reply};
use bridgehead_testkit::{Behaviour, Carrier, Mock};
use parking_lot::Mutex;
use remote::{Running, call, modern, result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// `me:hunter2`, as the proxy receives it.
const TOLD: &str = "proxy-authorization: Basic bWU6aHVudGVyMg==";

/// What a proxy does with a request.
#[derive(Debug, Clone, Copy)]
enum Manner {
    Carries,
    Says(&'static str),
    Closes,
}

struct Proxy {
    address: SocketAddr,
    /// The heads of all requests.
    heads: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, heads) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let ours = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let heads = Arc::clone(&ours);
                serving.spawn(async move {
                    let _ = serve(client, manner, &heads).await;
                });
            }
        });
        Self { address, heads, _task: AbortOnDropHandle::new(task) }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }
}

/// Handles one request; its connection is not reused.
async fn serve(mut client: TcpStream, manner: Manner, heads: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut read = Vec::new();
    let end = loop {
        if client.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
        if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    heads.lock().push(head.clone());
    match manner {
        Manner::Carries => {}
        Manner::Says(answer) => return client.write_all(answer.as_bytes()).await,
        Manner::Closes => return Ok(()),
    }
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    if method == "CONNECT" {
        let mut server = TcpStream::connect(target).await?;
        client.write_all(b"HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n").await?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
        return Ok(());
    }
    let rest = target.strip_prefix("http://").unwrap();
    let (place, path) = rest.split_at(rest.find('/').unwrap());
    let mut server = TcpStream::connect(place).await?;
    let lines = head.lines().skip(1).filter(|line| !line.starts_with("proxy-authorization"));
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let head = format!("{method} {path} HTTP/1.1\r\n{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"));
    server.write_all(head.as_bytes()).await?;
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    while read.len() < end + length.unwrap_or_default() {
        if client.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
    }
    server.write_all(&read[end..]).await?;
    let mut answer = Vec::new();
    let line = loop {
        if server.read_buf(&mut answer).await? == 0 {
            return Ok(());
        }
        if answer.windows(4).any(|four| four == b"\r\n\r\n") {
            break answer.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        }
    };
    // Bytes that the client sends later would be another request, which this proxy does not carry.
    answer.splice(line..line, b"connection: close\r\n".iter().copied());
    client.write_all(&answer).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    tokio::select! {
        copied = tokio::io::copy(&mut from_server, &mut to_client) => copied.map(drop),
        copied = tokio::io::copy(&mut from_client, &mut to_server) => copied.map(drop),
    }
}

fn through(proxy: &Proxy) -> Option<bridgehead_config::Proxy> {
    Some(format!("http://me:hunter2@{}", proxy.address).parse().unwrap())
}

/// LINK-2, LINK-3, LINK-4: every transport uses the configured proxy: plain HTTP with absolute-form requests,
/// everything else through a `CONNECT` tunnel. Only the proxy gets its credentials.
#[tokio::test]
async fn every_transport_goes_through_a_proxy() {
    let rounds = [
        (Mock::modern(), Carrier::Http, "POST http://"),
        (Mock::legacy(), Carrier::Http, "POST http://"),
        (Mock::legacy(), Carrier::Sse, "GET http://"),
        (Mock::modern(), Carrier::WebSocket, "CONNECT "),
    ];
    for (mock, carrier, begins) in rounds {
        let proxy = Proxy::start(Manner::Carries).await;
        let served = mock
            .tool("echo", Behaviour::Text("hello".to_owned()))
            .tool("slow", Behaviour::Text("done".to_owned()).with_progress(3))
            .serve(carrier);
        let running = Running::at(&served.url(), |_, remote| {
            remote.proxy = through(&proxy);
            if carrier == Carrier::Sse {
                remote.transport = RemoteTransport::Sse;
            }
        });
        let ready = running.ready().await;
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello", "{carrier:?}");
        assert_eq!(call(&ready, "slow").await.unwrap(), "done", "{carrier:?}");
        let shown = format!("{:?} {ready:?}", running.upstream);
        assert!(!shown.contains("hunter2") && !shown.contains("bWU6"), "{shown}");
        running.end().await;
        let heads = proxy.heads();
        assert!(heads[0].starts_with(begins), "{carrier:?}: {}", heads[0]);
        for head in &heads {
            let whole = head.starts_with("CONNECT 127.0.0.1:") || head.contains(" http://127.0.0.1:");
            assert!(whole && head.contains(TOLD), "{carrier:?}: {head}");
        }
    }
    let proxy = Proxy::start(Manner::Carries).await;
    let peer = Peer::start(|asked| modern(asked, |asked| json_reply(&result(asked, "well")))).await;
    let running = Running::start(&peer, |_, remote| remote.proxy = through(&proxy));
    let ready = running.ready().await;
    assert_eq!(call(&ready, "echo").await.unwrap(), "well");
    running.end().await;
    let asked = peer.asked();
    assert!(asked.iter().all(|asked| asked.header("proxy-authorization").is_empty()), "{asked:?}");
    assert!(asked.iter().all(|asked| asked.target == "/mcp?key=hunter2"), "{asked:?}");
    assert_eq!(asked.len(), proxy.heads().len(), "nothing went past the proxy");
}

/// LINK-2, LINK-4: if a proxy refuses, is absent or is no proxy, the server's state says so, names the proxy and the
/// cure, and shows no credentials.
#[tokio::test]
async fn a_proxy_that_refuses() {
    let unauthorized = "HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\n\
                        content-length: 0\r\n\r\n";
    let table: &[(Manner, bool, &[&str])] = &[
        (Manner::Says(unauthorized), true, &["rejects the credentials in `proxy` (407)"]),
        (Manner::Says(unauthorized), false, &["wants credentials (407)", "`http://NAME:PASSWORD@HOST:PORT`"]),
        (
            Manner::Says("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"),
            true,
            &["cannot be reached through the proxy", "502 Bad Gateway"],
        ),
        (Manner::Says("HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n"), true, &["504"]),
        (Manner::Closes, true, &["proxy"]),
    ];
    for (manner, told, words) in table {
        for scheme in ["http", "https", "ws"] {
            let proxy = Proxy::start(*manner).await;
            let place = format!("http://{}/", proxy.address);
            let running = Running::at(&format!("{scheme}://server.invalid/x?hunter2"), |_, remote| {
                remote.proxy = match told {
                    true => through(&proxy),
                    false => Some(place.parse().unwrap()),
                };
            });
            let outage = running.outage().await;
            for words in words.iter().copied().chain([place.as_str()]) {
                assert!(outage.contains(words), "{scheme} {manner:?}: `{words}` is not in: {outage}");
            }
            assert!(!outage.contains("hunter2") && !outage.contains("bWU6"), "{outage}");
            running.end().await;
        }
    }
    let table = [
        (Manner::Says("HTTP/1.1 403 Forbidden\r\n\r\n"), "does not connect to https://server.invalid/… (403"),
        (Manner::Says("SSH-2.0-x\r\n"), "does not answer like an HTTP proxy"),
        (Manner::Says("HTTP/1.1 200 OK\r\n\r\nhello"), "sent unexpected data"),
    ];
    for (manner, words) in table {
        let proxy = Proxy::start(manner).await;
        let running = Running::at("https://server.invalid/x", |_, remote| remote.proxy = through(&proxy));
        let outage = running.outage().await;
        assert!(outage.contains(words) && !outage.contains("hunter2"), "{outage}");
        running.end().await;
    }
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (proxy, words) in [
        (format!("http://me:hunter2@{refusing}"), "cannot connect to the proxy http://127.0.0.1:"),
        ("http://me:hunter2@no-such-host.invalid".to_owned(), "the host of the proxy http://no-such-host"),
    ] {
        let running =
            Running::at("http://127.0.0.1:9/", |_, remote| remote.proxy = Some(proxy.parse().unwrap()));
        let outage = running.outage().await;
        assert!(outage.contains(words) && outage.contains("check `proxy`"), "{outage}");
        assert!(!outage.contains("hunter2"), "{outage}");
        running.end().await;
    }
}

/// A server that has moved from `/mcp` to where `redirect` points.
fn moved(asked: &Asked, redirect: impl Fn(&Asked) -> Vec<Part>) -> Vec<Part> {
    if asked.target.starts_with("/mcp") {
        return redirect(asked);
    }
    modern(asked, |asked| json_reply(&result(asked, "moved")))
}

/// LINK-2: a redirect to another path of the same server is followed if configured, with the whole request; otherwise
/// the error names the cure.
#[tokio::test]
async fn redirects_within_a_server() {
    for status in ["307 Temporary Redirect", "308 Permanent Redirect"] {
        let peer = Peer::start(move |asked| {
            moved(asked, |asked| match asked.target.as_str() {
                "/mcp/more" => reply(status, &["location: /there?key=hunter2"], ""),
                _ => reply(status, &["location: mcp/more"], ""),
            })
        })
        .await;
        let running = Running::start(&peer, |_, remote| {
            remote.follow_redirects = true;
            remote.headers.insert("X-Key".to_owned(), bridgehead_config::Secret::new("hunter2"));
        });
        let ready = running.ready().await;
        assert_eq!(call(&ready, "echo").await.unwrap(), "moved", "{status}");
        let asked = peer.asked();
        let [.., first, second, third] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(
            [&first.target, &second.target, &third.target],
            ["/mcp?key=hunter2", "/mcp/more", "/there?key=hunter2"]
        );
        assert_eq!((&first.body, &first.headers), (&third.body, &third.headers));
        assert_eq!(third.header("x-key"), "hunter2");
        running.end().await;

        let running = Running::start(&peer, |_, _| ());
        let outage = running.outage().await;
        assert!(outage.contains("redirects to another path (30"), "{outage}");
        assert!(outage.contains("`follow_redirects = true`") && !outage.contains("hunter2"), "{outage}");
        running.end().await;
    }
}

/// LINK-2, LINK-4: a redirect to another server, or one that changes the request, is never followed: nothing reaches
/// that server. An endless redirect is given up.
#[tokio::test]
async fn redirects_that_are_not_followed() {
    let elsewhere = Peer::start(|asked| modern(asked, |asked| json_reply(&result(asked, "stolen")))).await;
    let place = elsewhere.url("/there?hunter2");
    for (status, to, words) in [
        ("307 Temporary Redirect", place.clone(), "which is not followed"),
        ("308 Permanent Redirect", place.replace("127.0.0.1", "localhost"), "which is not followed"),
        ("302 Found", "/there".to_owned(), "which is not followed"),
        ("303 See Other", "/there".to_owned(), "which is not followed"),
        ("308 Permanent Redirect", "/mcp?round".to_owned(), "redirects again and again (308)"),
    ] {
        let location = format!("location: {to}");
        let peer = Peer::start(move |asked| moved(asked, |_| reply(status, &[&location], ""))).await;
        for scheme in ["http", "ws"] {
            let url = format!("{scheme}://{}/mcp?key=hunter2", peer.address());
            let running = Running::at(&url, |_, remote| {
                remote.follow_redirects = true;
                if scheme == "http" {
                    remote.transport = RemoteTransport::Http;
                }
            });
            let outage = running.outage().await;
            assert!(outage.contains(words), "{scheme} {status} {to}: {outage}");
            assert!(!outage.contains("hunter2"), "{outage}");
            running.end().await;
        }
        let asked = peer.asked();
        let rounds = asked.split(|asked| asked.target != "/mcp?round").map(<[_]>::len);
        assert_eq!(rounds.max(), Some(if to == "/mcp?round" { 3 } else { 0 }), "{to}: {asked:?}");
        assert!(peer.asked().iter().all(|asked| !asked.target.starts_with("/there")));
    }
    assert!(elsewhere.asked().is_empty(), "nothing is sent to another server");
}

/// LINK-4: a WebSocket that has moved on the same server.
#[tokio::test]
async fn a_web_socket_that_has_moved() {
    let served = Mock::modern().tool("echo", Behaviour::Text("hello".to_owned())).serve(Carrier::WebSocket);
    let url = served.url();
    let there = url.strip_prefix("ws://").unwrap().split('/').next().unwrap().to_owned();
    // Forwards everything except the first request, which it redirects.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let passing = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut serving = tokio::task::JoinSet::new();
        let mut count = 0;
        while let Ok((mut client, _)) = listener.accept().await {
            count += 1;
            let (first, there) = (count == 1, there.clone());
            serving.spawn(async move {
                if first {
                    let answer =
                        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /\r\ncontent-length: 0\r\n\r\n";
                    let mut head = [0; 4096];
                    let _ = client.read(&mut head).await;
                    let _ = client.write_all(answer).await;
                } else if let Ok(mut server) = TcpStream::connect(there).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    }));
    let running = Running::at(&format!("ws://{address}/old"), |_, remote| remote.follow_redirects = true);
    let ready = running.ready().await;
    assert_eq!((ready.transport, call(&ready, "echo").await.unwrap().as_str()), ("websocket", "hello"));
    running.end().await;
    drop(passing);
}
