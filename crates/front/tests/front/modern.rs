//! Modern requests over HTTP: headers, statuses, streams, disconnects.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_gateway::Principal;
use bridgehead_schema::{HeaderKind, HeaderParameter};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Direct, Server, events, mirrored, piece};
use crate::fake::{ENVELOPE, Fake, modern, told};

fn envelope(version: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":"e","method":"tools/list","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{version}","io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
    )
}

#[tokio::test]
async fn a_request_is_answered_as_json_with_its_own_id() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let answer = server.modern("tools/list", "", &modern("\"\\u0061\"", "tools/list", "")).await;
    assert_eq!(answer.text, r#"{"jsonrpc":"2.0","id":"\u0061","result":{"tools":[]}}"#);
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["content-type"]),
        (200, &"application/json".parse().unwrap())
    );
    assert!(!answer.headers.contains_key("mcp-session-id"));
    let call = modern("1", "tools/call", r#""name":"echo","arguments":{"x": 1.50}"#);
    let answer = server.modern("tools/call", "echo", &call).await;
    assert_eq!(answer.text, r#"{"jsonrpc":"2.0","id":1,"result":{"x": 1.50}}"#, "no byte is changed");
    let discover = modern("1", "server/discover", "");
    let with_session: Vec<_> = [mirrored("server/discover", ""), vec![("mcp-session-id", "x")]].concat();
    assert_eq!(server.post(&with_session, &discover).await.status, 200, "session ids mean nothing");
    assert_eq!(fake.callers.lock().unwrap()[0], format!("{} 2026-07-28", Principal::local()));
}

/// WIRE-1: a request that the gateway refuses because others could read it differently is a bad request; one that it
/// refuses for what it asks is not.
#[tokio::test]
async fn a_request_that_can_be_read_in_two_ways_is_a_bad_request() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    for (params, status) in [
        (r#""name":"nothing""#, 200),
        (r#""name":"nothing","Name":"danger""#, 400),
        (r#""name":"nothing","name":"danger""#, 400),
        (r#""name":"nothing","argument\u017f":{}"#, 400),
    ] {
        let answer = server.modern("tools/call", "nothing", &modern("1", "tools/call", params)).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["code"]),
            (status, &(-32602).into()),
            "{params}"
        );
    }
}

/// ACC-5 (case 27): a call that a limit of the gateway refuses has status 429 and says when to try again, with or without
/// progress. An upstream that claims the same gets nothing but its words passed on. A legacy client gets the error as its
/// answer.
#[tokio::test]
async fn a_call_that_is_one_too_many() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    for (tool, progress, status, wait) in [
        ("limited", "", 429, Some("2")),
        ("limited", r#""progressToken":1,"#, 429, Some("2")),
        ("limited_upstream", "", 200, None),
    ] {
        let call = modern("1", "tools/call", &format!(r#""name":"{tool}""#));
        let call = call.replacen(r#""_meta":{"#, &format!(r#""_meta":{{{progress}"#), 1);
        let answer = server.modern("tools/call", tool, &call).await;
        assert_eq!(answer.status.as_u16(), status, "{tool}");
        assert_eq!(answer.headers.get("retry-after").map(|wait| wait.to_str().unwrap()), wait, "{tool}");
        let error = &answer.json()["error"];
        assert_eq!((&error["code"], &error["data"]["retryAfterMs"]), (&(-32603).into(), &1500.into()));
    }
    let session = server.session("2025-11-25").await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"limited"}}"#;
    let answer = server.in_session(&session, call).await;
    assert_eq!((answer.status.as_u16(), answer.headers.get("retry-after")), (200, None));
    assert!(answer.text.contains("RATE_LIMITED"), "{}", answer.text);
}

#[tokio::test]
async fn bad_requests_get_the_exact_status_and_code() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let list = modern("1", "tools/list", "");
    let deep = modern("1", "tools/list", &format!("\"a\":{}{}", "[".repeat(20_000), "]".repeat(20_000)));
    let one = Some("1");
    let version = ("mcp-protocol-version", "2026-07-28");
    let lists = ("mcp-method", "tools/list");
    let calls = ("mcp-method", "tools/call");
    let call = |name: &str| modern("1", "tools/call", &format!(r#""name":"{name}""#));
    type Case<'a> = (Vec<(&'a str, &'a str)>, String, u16, i64, Option<&'a str>);
    let cases: Vec<Case<'_>> = vec![
        // Media types, then the body.
        (vec![version, lists, ("accept", "application/json")], list.clone(), 406, -32600, None),
        (vec![version, lists, ("accept", "")], list.clone(), 406, -32600, None),
        (vec![version, lists, ("content-type", "text/plain")], list.clone(), 415, -32600, None),
        (vec![version, lists], String::new(), 400, -32700, None),
        (vec![version, lists], "{\"jsonrpc\":".to_owned(), 400, -32700, None),
        (vec![version, lists], deep, 400, -32600, None),
        (vec![version, lists], r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#.to_owned(), 400, -32600, one),
        (vec![version, lists], r#"{"jsonrpc":"2.0","id":1}"#.to_owned(), 400, -32600, one),
        (vec![version, lists], format!("[{list}]"), 400, -32600, None),
        (vec![lists], format!("[{list}]"), 400, -32600, None),
        (vec![version], r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned(), 400, -32600, None),
        // The version.
        (vec![lists], list.clone(), 400, -32020, one),
        (vec![version, version, lists], list.clone(), 400, -32020, one),
        (vec![("mcp-protocol-version", "2025-11-25"), lists], list.clone(), 400, -32020, one),
        (vec![version, lists], envelope("2027-01-01"), 400, -32020, Some("\"e\"")),
        (
            vec![("mcp-protocol-version", "2027-01-01"), lists],
            envelope("2027-01-01"),
            400,
            -32022,
            Some("\"e\""),
        ),
        (
            vec![("mcp-protocol-version", "2025-11-25"), lists],
            envelope("2025-11-25"),
            400,
            -32022,
            Some("\"e\""),
        ),
        (
            vec![version, lists],
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#.to_owned(),
            400,
            -32602,
            one,
        ),
        (
            vec![version, lists],
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}"#.to_owned(),
            400,
            -32602,
            one,
        ),
        (
            vec![version, ("mcp-method", "initialize")],
            crate::fake::initialize("1", "2025-06-18"),
            400,
            -32602,
            one,
        ),
        // The mirrored headers.
        (vec![version], list.clone(), 400, -32020, one),
        (vec![version, ("mcp-method", "Tools/List")], list.clone(), 400, -32020, one),
        (vec![version, lists, lists], list.clone(), 400, -32020, one),
        (vec![version, calls], call("echo"), 400, -32020, one),
        (vec![version, calls, ("mcp-name", "other")], call("echo"), 400, -32020, one),
        // The names of tools differ by case, and policies decide by the name.
        (vec![version, calls, ("mcp-name", "Echo")], call("echo"), 400, -32020, one),
        (vec![version, calls, ("mcp-name", "echo")], call("ECHO"), 400, -32020, one),
        (vec![version, calls, ("mcp-name", "echo2")], call("echo"), 400, -32020, one),
        (vec![version, calls, ("mcp-name", "")], call("echo"), 400, -32020, one),
        (vec![version, ("mcp-method", "tools/calls"), ("mcp-name", "echo")], call("echo"), 400, -32020, one),
        (vec![version, calls, ("mcp-name", "=?base64?!?=")], call("echo"), 400, -32020, one),
        (vec![version, calls, ("mcp-name", "echo"), ("mcp-name", "echo")], call("echo"), 400, -32020, one),
        (vec![version, calls, ("mcp-name", "echo")], modern("1", "tools/call", ""), 400, -32020, one),
        (
            vec![version, ("mcp-method", "resources/read")],
            modern("1", "resources/read", r#""uri":"a:b""#),
            400,
            -32020,
            one,
        ),
        // Methods that are not there.
        (vec![version, ("mcp-method", "no/such")], modern("1", "no/such", ""), 404, -32601, one),
        (vec![version, ("mcp-method", "ping")], modern("1", "ping", ""), 404, -32601, one),
        (vec![version, ("mcp-method", "initialize")], modern("1", "initialize", ""), 404, -32601, one),
        // What the gateway answers.
        (vec![version, calls], modern("1", "tools/call", ""), 200, -32602, one),
        (vec![version, calls, ("mcp-name", "nope")], call("nope"), 200, -32602, one),
        (vec![version, calls, ("mcp-name", "capability")], call("capability"), 400, -32021, one),
        (
            vec![version, calls, ("mcp-name", "upstream_no_method")],
            call("upstream_no_method"),
            200,
            -32601,
            one,
        ),
    ];
    for (headers, body, status, code, id) in cases {
        let answer = server.post(&headers, &body).await;
        let shown = &body[..body.len().min(100)];
        assert_eq!(answer.error(), (status, code, id.map(str::to_owned)), "{headers:?} {shown}: {answer:?}");
    }
    let refused =
        server.post(&[("mcp-protocol-version", "2027-01-01"), lists], &envelope("2027-01-01")).await;
    let data = &refused.json()["error"]["data"];
    assert_eq!(
        (&data["supported"], &data["requested"]),
        (&["2026-07-28"].as_slice().into(), &"2027-01-01".into())
    );
    assert_eq!(server.modern("tools/list", "", &list).await.status, 200, "still served");
}

#[tokio::test]
async fn invalid_utf8_is_not_json() {
    let server = Server::start(&Fake::new()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(&[head.as_bytes(), b"\xff\xfe"].concat()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 400") && text.contains("-32700"), "{text}");
}

#[tokio::test]
async fn header_values_may_be_encoded() {
    let parameter = HeaderParameter {
        header: "Region".to_owned(),
        path: vec!["region".to_owned()],
        kind: HeaderKind::String,
    };
    let server = Server::start(&Fake::with_headers(vec![parameter])).await;
    let check = async |headers: &[(&str, &str)], arguments: &str, status: u16| {
        let body = modern("1", "tools/call", &format!(r#""name":"echo","arguments":{arguments}"#));
        let all: Vec<_> = [&mirrored("tools/call", "=?base64?ZWNobw==?=")[..], headers].concat();
        let answer = server.post(&all, &body).await;
        assert_eq!(answer.status, status, "{headers:?} {answer:?}");
        assert!(status == 200 || answer.error().1 == -32020, "{answer:?}");
    };
    check(&[("mcp-param-region", "eu")], r#"{"region":"eu"}"#, 200).await;
    check(&[("Mcp-Param-REGION", "=?base64?ZXU=?=")], r#"{"region":"eu"}"#, 200).await;
    check(&[], r#"{"region":null}"#, 200).await;
    check(&[], r#"{"region":"eu"}"#, 400).await;
    check(&[("mcp-param-region", "us")], r#"{"region":"eu"}"#, 400).await;
    check(&[("mcp-param-region", "eu")], "{}", 400).await;
    // A prompt of the same name has no such headers.
    let prompt = modern("1", "prompts/get", r#""name":"echo","arguments":{"region":"eu"}"#);
    assert_eq!(server.modern("prompts/get", "echo", &prompt).await.error().1, -32601);
}

#[tokio::test]
async fn notifications_are_accepted_without_an_answer() {
    let server = Server::start(&Fake::new()).await;
    let version = ("mcp-protocol-version", "2026-07-28");
    let cancelled = told("notifications/cancelled", r#""requestId":1"#);
    let answer = server.post(&[version], &cancelled).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (202, ""));
    let claimed = told("notifications/cancelled", &format!(r#""requestId":1,"_meta":{{{ENVELOPE}}}"#));
    assert_eq!(server.post(&[version], &claimed).await.status, 202);
    assert_eq!(server.post(&[], &claimed).await.error(), (400, -32020, None));
    assert_eq!(server.post(&[("mcp-protocol-version", "2031-01-01")], &cancelled).await.error().1, -32022);
}

#[tokio::test]
async fn progress_makes_the_answer_a_stream() {
    let server = Server::start(&Fake::new()).await;
    let with_token = |tool: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","_meta":{{"progressToken":"p",{ENVELOPE}}}}}}}"#
        )
    };
    for tool in ["steps", "burst"] {
        let answer = server.modern("tools/call", tool, &with_token(tool)).await;
        assert_eq!(answer.headers["x-accel-buffering"], "no");
        assert_eq!(answer.headers["cache-control"], "no-cache");
        let found = answer.events();
        let steps: Vec<_> = found[..5].iter().map(|note| note["params"]["progress"].clone()).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5]);
        assert_eq!((found.len(), &found[5]["result"][tool]), (6, &5.into()));
    }
    let answer = server.modern("tools/call", "echo", &with_token("echo")).await;
    assert_eq!(answer.json()["id"], 1, "plain JSON when nothing was notified");
    let call = modern("1", "tools/call", r#""name":"burst""#);
    let answer = server.modern("tools/call", "burst", &call).await;
    assert_eq!(answer.json()["result"]["burst"], 5, "without a token nothing comes before the answer");
    let answer = server.modern("tools/call", "capability", &with_token("capability")).await;
    assert_eq!(answer.error(), (400, -32021, Some("1".to_owned())));
}

#[tokio::test]
async fn a_disconnect_cancels() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    // Before anything was answered.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = modern("1", "tools/call", r#""name":"hang""#);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\ncontent-type: application/json\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: hang\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    fake.until(|fake| &fake.begun, 1).await;
    drop(stream);
    fake.until(|fake| &fake.cancelled, 1).await;
    // In the middle of a stream.
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"step_then_gate","_meta":{{"progressToken":1,{ENVELOPE}}}}}}}"#
    );
    let mut exchange = server.open("POST", &mirrored("tools/call", "step_then_gate"), &body).await;
    assert_eq!(events(&exchange.next().await.unwrap())[0]["params"]["progress"], 1);
    drop(exchange);
    fake.until(|fake| &fake.cancelled, 2).await;
    assert_eq!(fake.finished.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn silent_streams_are_kept_alive() {
    let fake = Fake::new();
    let settings = HttpSettings { keep_alive: Duration::from_millis(20), ..HttpSettings::default() };
    let server = Server::with(&fake, settings, None).await;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"step_then_gate","_meta":{{"progressToken":1,{ENVELOPE}}}}}}}"#
    );
    let mut exchange = server.open("POST", &mirrored("tools/call", "step_then_gate"), &body).await;
    exchange.next().await.unwrap();
    assert_eq!(exchange.next().await.unwrap(), ": keep-alive\n\n");
    fake.gate.notify_one();
    let rest = exchange.answer().await;
    let last = rest.events();
    assert_eq!(last.last().unwrap()["result"]["gate"], "open");
}

#[tokio::test]
async fn bodies_are_bounded() {
    let settings = HttpSettings { max_body_bytes: 100_000, ..HttpSettings::default() };
    let server = Server::with(&Fake::new(), settings, None).await;
    let large = modern("1", "tools/list", &format!("\"a\":\"{}\"", "x".repeat(10_000_000)));
    assert_eq!(server.modern("tools/list", "", &large).await.error(), (413, -32600, None));
    // The same in pieces, without a length: refused while it is read, and read to its end.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..200 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
}

/// SRV-3: a shutdown ends a listen, with its result; a call continues, its progress included.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_who_listens_and_nobody_else() {
    let fake = Fake::new();
    let front = Direct::start(&fake);
    let listen = mirrored("subscriptions/listen", "");
    let mut listening =
        front.open("POST", &listen, &modern("1", "subscriptions/listen", "")).await.into_body();
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"step_then_gate","_meta":{{"progressToken":1,{ENVELOPE}}}}}}}"#
    );
    let mut calling = front.open("POST", &mirrored("tools/call", "step_then_gate"), &call).await.into_body();
    assert_eq!(
        events(&piece(&mut listening).await.unwrap())[0]["method"],
        "notifications/subscriptions/acknowledged"
    );
    assert_eq!(events(&piece(&mut calling).await.unwrap())[0]["params"]["progress"], 1);
    assert_eq!(piece(&mut listening).await.unwrap(), ": keep-alive\n\n", "it stays open until then");
    front.shutdown.cancel();
    assert_eq!(events(&piece(&mut listening).await.unwrap())[0]["result"]["listened"], true);
    assert_eq!(piece(&mut listening).await, None);
    // The front has seen the shutdown before the call goes on.
    while piece(&mut calling).await.unwrap() != ": keep-alive\n\n" {}
    fake.gate.notify_one();
    assert_eq!(events(&piece(&mut calling).await.unwrap())[0]["params"]["progress"], 2);
    assert_eq!(events(&piece(&mut calling).await.unwrap())[0]["result"]["gate"], "open");
    assert_eq!(piece(&mut calling).await, None);
}

/// SRV-3: a shutdown answers the requests in progress, closes every connection and returns.
#[tokio::test]
async fn shutdown_finishes_what_has_begun() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let idle = TcpStream::connect(server.address).await.unwrap();
    let body = modern("1", "tools/call", r#""name":"gate""#);
    let headers = mirrored("tools/call", "gate");
    let (answer, ()) = tokio::join!(server.post(&headers, &body), async {
        fake.until(|fake| &fake.begun, 1).await;
        server.shutdown.cancel();
        tokio::task::yield_now().await;
        fake.gate.notify_one();
    });
    assert_eq!(answer.json()["result"]["gate"], "open");
    let ended = tokio::time::timeout(Duration::from_secs(60), server.serving).await;
    ended.expect("ends although a client is idle").unwrap().unwrap();
    drop(idle);
    assert!(TcpStream::connect(server.address).await.is_err());
}
