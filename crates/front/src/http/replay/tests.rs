//! Streams that are read, left and resumed, with a clock that the tests control.

use bridgehead_wire::held::Budget;
use http_body_util::BodyExt;

use super::*;
use crate::http::running::OnDisconnect;

const MANNER: Manner = Manner {
    revision: Revision::V2025_11_25,
    keep_alive: Duration::from_secs(15),
    poll_after: None,
    validity: Validity::new(None, None),
};

fn streams() -> Streams {
    Streams::new(Account::new(&Budget::new(64 << 20, 64 << 20)))
}

impl Streams {
    /// A finished stream that holds about this many bytes, read to its end or not at all.
    pub(crate) fn keep_finished(&self, bytes: usize, read: bool) {
        let log = self.open();
        log.push(&vec![b'x'; bytes]).unwrap();
        log.finish();
        if read {
            Reader::new(log, 0).ready().unwrap();
        }
    }

    /// What all streams hold.
    pub(crate) fn held(&self) -> usize {
        self.account.held()
    }
}

fn done(body: &'static str) -> Option<Answer> {
    Some(Answer::whole(bridgehead_wire::Raw::literal(body).into()))
}

/// The next event of a body.
async fn next(reply: &mut Reply) -> String {
    let frame = reply.body_mut().frame().await.unwrap().unwrap();
    String::from_utf8(frame.data_ref().unwrap().to_vec()).unwrap()
}

/// All of a body, which has no more than a few events.
async fn text(reply: Reply) -> String {
    let (mut body, mut text) = (reply.into_body(), String::new());
    for _ in 0..100 {
        let Some(frame) = body.frame().await else { return text };
        text.push_str(std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap());
    }
    panic!("the body does not end: {}", text.chars().take(1000).collect::<String>());
}

fn finished(body: &'static str) -> Running<Option<Answer>> {
    Running::new(OnDisconnect::Finish, async move { done(body) })
}

/// ERA-1: events have ids, the client learns when to come back, and a client that comes back reads on.
#[tokio::test(start_paused = true)]
async fn a_stream_is_taken_up_again() {
    let streams = streams();
    let (tell, notes) = mpsc::channel(4);
    let (go, gate) = tokio::sync::oneshot::channel::<()>();
    let call = Running::new(OnDisconnect::Finish, async move {
        tell.send(Bytes::from_static(b"1")).await.unwrap();
        gate.await.unwrap();
        tell.send(Bytes::from_static(b"2")).await.unwrap();
        done("3")
    });
    let mut reply = answer(call, Some(notes), &streams, MANNER, false).await;
    let seen = [next(&mut reply).await, next(&mut reply).await].concat();
    assert_eq!(seen, "id: 1-0\nretry: 1000\ndata: \n\nid: 1-1\nevent: message\ndata: 1\n\n");
    drop(reply);
    go.send(()).unwrap();
    let (log, next) = streams.find("1-1").unwrap();
    let rest = "id: 1-2\nevent: message\ndata: 2\n\nid: 1-3\nevent: message\ndata: 3\n\n";
    assert_eq!(text(body(log, next, MANNER)).await, rest);
    let (log, next) = streams.find("1-1").unwrap();
    assert_eq!(text(body(log, next, MANNER)).await, rest, "and again");
    for foreign in ["1-4", "2-0", "0-0", "x", "1-", "-1", "1-x", ""] {
        assert!(streams.find(foreign).is_none(), "{foreign}");
    }
}

/// ERA-1: a client that stays away for too long gets no more notifications, and questions to it fail; the answer is still
/// kept for it.
#[tokio::test(start_paused = true)]
async fn whoever_stays_away_is_given_up() {
    let streams = streams();
    let (tell, notes) = mpsc::channel(4);
    let call = Running::new(OnDisconnect::Finish, async move {
        tell.send(Bytes::from_static(b"1")).await.unwrap();
        tell.closed().await;
        done("2")
    });
    let mut reply = answer(call, Some(notes), &streams, MANNER, true).await;
    assert!(next(&mut reply).await.starts_with("id: 1-0\n"));
    assert!(next(&mut reply).await.ends_with("data: 1\n\n"));
    drop(reply);
    sleep(GRACE - Duration::from_millis(1)).await;
    assert!(streams.find("1-2").is_none(), "it may still come back");
    sleep(Duration::from_millis(2)).await;
    let (log, next) = streams.find("1-1").unwrap();
    assert_eq!(text(body(log, next, MANNER)).await, "id: 1-2\nevent: message\ndata: 2\n\n");
}

#[tokio::test(start_paused = true)]
async fn plain_unless_there_is_something_to_stream() {
    let streams = streams();
    let reply = answer(finished("2"), None, &streams, MANNER, false).await;
    assert_eq!(reply.headers()["content-type"], "application/json");
    let reply = answer(finished("2"), None, &streams, MANNER, true).await;
    assert_eq!(text(reply).await, "id: 1-0\nretry: 1000\ndata: \n\nid: 1-1\nevent: message\ndata: 2\n\n");
    let older = Manner { revision: Revision::V2025_06_18, ..MANNER };
    let reply = answer(finished("2"), None, &streams, older.clone(), true).await;
    assert_eq!(text(reply).await, "id: 2-0\nevent: message\ndata: 2\n\n", "no event without a message");
    let (tell, notes) = mpsc::channel(4);
    tell.try_send(Bytes::from_static(b"1")).unwrap();
    drop(tell);
    let cancelled = Running::new(OnDisconnect::Finish, async { None });
    let reply = answer(cancelled, Some(notes), &streams, older, false).await;
    assert_eq!(text(reply).await, "id: 3-0\nevent: message\ndata: 1\n\n");
    let nothing = Running::new(OnDisconnect::Finish, async { None });
    assert_eq!(text(answer(nothing, None, &streams, MANNER, false).await).await, "");
}

/// A client on a silent stream is sent away and comes back for the answer.
#[tokio::test(start_paused = true)]
async fn a_silent_stream_sends_its_client_away() {
    let streams = streams();
    let manner = Manner { poll_after: Some(Duration::from_secs(60)), ..MANNER };
    let call = Running::new(OnDisconnect::Finish, async {
        sleep(Duration::from_secs(100)).await;
        done("2")
    });
    let seen = text(answer(call, None, &streams, manner.clone(), true).await).await;
    assert!(seen.starts_with("id: 1-0\n") && seen.contains(": keep-alive") && !seen.contains("data: 2"));
    let (log, next) = streams.find("1-0").unwrap();
    assert!(text(body(log, next, manner)).await.ends_with("data: 2\n\n"));
}

/// What is kept is bounded, and a panic ends the stream.
#[tokio::test(start_paused = true)]
async fn logs_are_bounded() {
    let streams = streams();
    let log = streams.open();
    for _ in 0..5 {
        log.push(&vec![b'x'; MOST_BYTES / 2]).unwrap();
    }
    assert!(log.written.lock().bytes <= MOST_BYTES && log.written.lock().events.len() == 1);
    log.finish();
    let (log, next) = streams.find("1-0").unwrap();
    assert!(text(body(log, next, MANNER)).await.starts_with("id: 1-4\n"), "reads on with what is left");
    for _ in 0..MOST_STREAMS {
        streams.open();
    }
    assert!(streams.find("1-4").is_none());
    assert_eq!(streams.calls.lock().kept.len(), MOST_STREAMS);
    let panics = Running::new(OnDisconnect::Finish, async {
        assert!(streams_are_fine(), "on purpose");
        done("1")
    });
    let reply = answer(panics, None, &streams, MANNER, true).await;
    assert!(!text(reply).await.contains("data: 1"));
}

/// BOUND-1: of one stream `MOST_BYTES` are kept, and not one byte more.
#[test]
fn a_log_is_kept_to_the_last_byte() {
    let overhead = {
        let log = streams().open();
        log.push(b"").unwrap();
        log.written.lock().bytes
    };
    for (second, kept) in [(MOST_BYTES / 2, 2), (MOST_BYTES / 2 + 1, 1)] {
        let streams = streams();
        let log = streams.open();
        log.push(&vec![b'x'; MOST_BYTES / 2 - overhead]).unwrap();
        log.push(&vec![b'x'; second - overhead]).unwrap();
        let written = log.written.lock();
        assert_eq!((written.events.len(), written.first), (kept, 2 - kept as u64), "{second}");
        assert_eq!(written.bytes, if kept == 2 { MOST_BYTES } else { second });
        assert_eq!(streams.account.held(), written.bytes);
    }
}

/// BOUND-3: however many events were dropped, the account counts exactly those that are left.
#[test]
fn a_long_stream_is_on_the_account() {
    let streams = streams();
    let log = streams.open();
    log.prime();
    for _ in 0..20_000 {
        log.push(&[b'x'; 50]).unwrap();
    }
    let written = log.written.lock();
    assert!(written.first > 10_000, "most have gone");
    let kept = written.events.len() * (50 + EVENT_BYTES);
    assert_eq!((written.bytes, streams.account.held()), (kept, kept));
    drop(written);
    streams.calls.lock().kept.clear();
    drop(log);
    assert_eq!(streams.account.held(), 0);
}

/// BOUND-3: only finished streams without a reader are dropped, the oldest first and no more of them than asked for; those
/// that were not read to their end only with `Kept::Unread`.
#[test]
fn which_streams_go() {
    let streams = streams();
    for read in [false, true, true, false] {
        streams.keep_finished(1000, read);
    }
    let being_read = Reader::new(streams.open(), 0);
    being_read.log.push(b"x").unwrap();
    being_read.log.finish();
    streams.open().push(b"x").unwrap();
    let begun = streams.open();
    begun.push(b"1").unwrap();
    begun.push(b"2").unwrap();
    Reader::new(Arc::clone(&begun), 0).ready().unwrap();
    begun.finish();
    let one = streams.find("2-0").unwrap().0.written.lock().bytes;
    let check = |which: Kept, bytes: usize, freed: bool, left: &[u64]| {
        assert_eq!(streams.let_go(which, bytes) > 0, freed, "{which:?} {bytes}");
        let kept: Vec<u64> = streams.calls.lock().kept.iter().map(|log| log.stream).collect();
        assert_eq!(kept, left, "{which:?} {bytes}");
    };
    check(Kept::Read, 0, false, &[1, 2, 3, 4, 5, 6, 7]);
    check(Kept::Read, one, true, &[1, 3, 4, 5, 6, 7]);
    check(Kept::Read, usize::MAX, true, &[1, 4, 5, 6, 7]);
    check(Kept::Read, usize::MAX, false, &[1, 4, 5, 6, 7]);
    check(Kept::Unread, 1, true, &[4, 5, 6, 7]);
    check(Kept::Unread, usize::MAX, true, &[5, 6]);
    drop(being_read);
    check(Kept::Unread, usize::MAX, true, &[6]);
}

/// ERA-1: ids of the session's own stream are found among those of calls; a reader sees each event once.
#[test]
fn the_stream_of_an_id() {
    let streams = streams();
    assert!(streams.find("0-0").is_none(), "nothing was sent yet");
    let call = streams.open();
    for log in [streams.own(), &call] {
        for message in [b"1", b"2"] {
            log.push(message).unwrap();
        }
        for (event, next) in [(0, 1), (1, 2)] {
            let (found, after) = streams.find(&format!("{}-{event}", log.stream)).unwrap();
            assert!(Arc::ptr_eq(&found, log) && after == next, "{event}");
        }
        assert!(streams.find(&format!("{}-2", log.stream)).is_none());
        assert_eq!(log.is_own(), log.stream == 0);
        let mut reader = Reader::new(Arc::clone(log), 0);
        for message in ["1", "2"] {
            let event = reader.ready().unwrap();
            assert!(event.ends_with(format!("data: {message}\n\n").as_bytes()), "{event:?}");
        }
        assert!(reader.ready().is_none());
    }
}

/// BOUND-3: the memory of streams is bounded for a session and in total. Streams that were read are dropped first, then
/// answers that no client has fetched; after that an answer becomes an error that says why.
#[tokio::test(start_paused = true)]
async fn what_streams_hold_is_bounded() {
    let budget = Budget::new(10 << 20, 4 << 20);
    let (one, other) = (Streams::new(Account::new(&budget)), Streams::new(Account::new(&budget)));
    let large = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"{}\"}}", "x".repeat(3 << 19));
    let call = || {
        let body = bridgehead_wire::Raw::parse(large.clone()).unwrap().into();
        Running::new(OnDisconnect::Finish, async move { Some(Answer::whole(body)) })
    };
    let read = text(answer(call(), None, &one, MANNER, true).await).await;
    assert!(read.len() > large.len());
    // Calls whose clients are gone.
    for _ in 0..20 {
        drop(answer(call(), None, &one, MANNER, true).await);
        tokio::task::yield_now().await;
        drop(answer(call(), None, &other, MANNER, true).await);
        tokio::task::yield_now().await;
        assert!(one.account.held() <= 4 << 20 && other.account.held() <= 4 << 20);
    }
    assert!(one.find("1-0").is_none(), "what was read went first");
    assert_eq!(one.account.held() / large.len(), 2, "the latest are kept");
    assert!(one.find("21-1").is_some() && one.find("19-1").is_none());
    assert!(budget.peak() <= 10 << 20, "{}", budget.peak());
    // A stream that is being read is not dropped, so there is no room for another.
    let mut bodies: Vec<_> =
        [20, 21].map(|log| body(one.find(&format!("{log}-0")).unwrap().0, 0, MANNER)).into();
    let refused = text(answer(call(), None, &one, MANNER, true).await).await;
    assert!(refused.contains("\"id\":7") && refused.contains("limits.held_per_peer_mb"), "{refused}");
    bodies.clear();
    let kept = text(answer(call(), None, &one, MANNER, true).await).await;
    assert!(kept.len() > large.len());
    drop((one, other));
    assert_eq!(budget.held(), 0, "all is given back with the sessions");
}

fn streams_are_fine() -> bool {
    false
}

/// ACC-2 (case 11): a stream ends with the credential of its reader. The call goes on, and its answer is kept.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_credential() {
    let streams = streams();
    let revoked = tokio_util::sync::CancellationToken::new();
    let call = Running::new(OnDisconnect::Finish, async {
        sleep(Duration::from_secs(60)).await;
        done("2")
    });
    let manner = Manner { validity: Validity::new(Some(revoked.clone()), None), ..MANNER };
    let reply = answer(call, None, &streams, manner, true).await;
    let reading = tokio::spawn(text(reply));
    sleep(Duration::from_secs(1)).await;
    assert!(!reading.is_finished());
    revoked.cancel();
    let began = Instant::now();
    assert!(!reading.await.unwrap().contains("message"));
    assert!(began.elapsed() < Duration::from_secs(1));
    let (log, next) = streams.find("1-0").unwrap();
    assert_eq!(text(body(log, next, MANNER)).await.matches("data: 2").count(), 1);
}
