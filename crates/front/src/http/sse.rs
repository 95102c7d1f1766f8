//! Answers as event streams: a call's notifications, then its answer, then the end.
//!
//! A call is answered by plain JSON unless a notification comes first. At most the call's progress channel
//! (whose surplus is dropped at the source) and one answer wait for a client that does not read.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bridgehead_wire::on_one_line;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http_body::Frame;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

use super::reply::{self, Answer, Body, Reply};
use super::running::Running;

/// The comment that keeps a silent stream alive.
pub(crate) const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// One message as an event.
pub(crate) fn event(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(message.len() + 24);
    out.put_slice(b"event: message\ndata: ");
    let start = out.len();
    out.put_slice(message);
    on_one_line(&mut out[start..]);
    out.put_slice(b"\n\n");
    out.freeze()
}

/// When a stream ends before its call does.
#[derive(Default)]
pub(crate) struct Ends {
    /// When this resolves, no more notifications are taken, and the call that sends them ends with its answer.
    pub(crate) notes: Option<BoxFuture<'static, ()>>,
    /// When this resolves, the client gets nothing more, and its call finishes without it.
    pub(crate) stream: Option<BoxFuture<'static, ()>>,
}

/// Answers with the outcome of `call`: JSON, or events as soon as `notes` has a message. A cancelled call has no
/// answer; its POST then ends as an event stream without events.
pub(crate) async fn answer(
    mut call: Running<Option<Answer>>,
    notes: Option<mpsc::Receiver<Bytes>>,
    keep_alive: Duration,
    ends: Ends,
) -> Reply {
    let Some(mut notes) = notes else { return plain(call.await) };
    let first = tokio::select! {
        biased;
        Some(note) = notes.recv() => note,
        answer = &mut call => {
            let mut out = BytesMut::new();
            while let Ok(note) = notes.try_recv() {
                out.put_slice(&event(&note));
            }
            if out.is_empty() {
                return plain(answer);
            }
            if let Some(answer) = answer {
                out.put_slice(&event(answer.body.to_raw().bytes()));
            }
            return reply::events(Body::from(out.freeze()));
        }
    };
    let body = CallEvents {
        ready: VecDeque::from([event(&first)]),
        notes,
        answer: Some(call.into_task()),
        keep_alive,
        silence: Box::pin(sleep(keep_alive)),
        ends,
    };
    reply::events(Body::coming(body))
}

fn plain(answer: Option<Answer>) -> Reply {
    match answer {
        Some(answer) => answer.into_reply(),
        None => reply::events(Body::empty()),
    }
}

/// The body of a POST whose call has begun to notify.
struct CallEvents {
    ready: VecDeque<Bytes>,
    notes: mpsc::Receiver<Bytes>,
    answer: Option<BoxFuture<'static, Option<Option<Answer>>>>,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
    ends: Ends,
}

impl CallEvents {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if due(&mut self.ends.stream, context) {
            self.ready.clear();
            self.notes.close();
            // Dropping the call would cancel it.
            self.answer.take().map(tokio::spawn);
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            if due(&mut self.ends.notes, context) {
                self.notes.close();
            }
            let Some(answer) = &mut self.answer else { return Poll::Ready(None) };
            if let Poll::Ready(Some(note)) = self.notes.poll_recv(context) {
                return Poll::Ready(Some(event(&note)));
            }
            if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
                self.answer = None;
                // Notifications that came before the answer are sent before it.
                while let Ok(note) = self.notes.try_recv() {
                    self.ready.push_back(event(&note));
                }
                self.ready.extend(outcome.flatten().map(|answer| event(answer.body.to_raw().bytes())));
                continue;
            }
            return self.silence.as_mut().poll(context).map(|()| Some(COMMENT));
        }
    }
}

/// Whether the time has come; if so, it is not asked again.
fn due(end: &mut Option<BoxFuture<'static, ()>>, context: &mut Context<'_>) -> bool {
    let due = end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
    if due {
        *end = None;
    }
    due
}

impl http_body::Body for CallEvents {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let event = self.poll_event(context);
        if event.is_ready() {
            let next = Instant::now() + self.keep_alive;
            self.silence.as_mut().reset(next);
        }
        event.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::running::OnDisconnect;
    use http_body_util::BodyExt;

    fn done(body: &'static str) -> Option<Answer> {
        Some(Answer::whole(bridgehead_wire::Raw::literal(body).into()))
    }

    async fn text(reply: Reply) -> String {
        String::from_utf8(reply.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[test]
    fn an_event_is_one_line_of_data() {
        assert_eq!(event(b"{\n\"a\":\r\n1}"), "event: message\ndata: { \"a\":  1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_carries_comments() {
        let (tell, notes) = mpsc::channel(4);
        tell.send(Bytes::from_static(b"1")).await.unwrap();
        let call = Running::new(OnDisconnect::Cancel, async {
            sleep(Duration::from_secs(25)).await;
            done("2")
        });
        let reply = answer(call, Some(notes), Duration::from_secs(10), Ends::default()).await;
        assert_eq!(
            text(reply).await,
            "event: message\ndata: 1\n\n: keep-alive\n\n: keep-alive\n\nevent: message\ndata: 2\n\n"
        );
        drop(tell);
    }

    #[tokio::test]
    async fn plain_unless_a_notification_comes_first() {
        let (tell, notes) = mpsc::channel(4);
        let call = Running::new(OnDisconnect::Cancel, async { done("2") });
        let reply = answer(call, Some(notes), Duration::from_secs(10), Ends::default()).await;
        assert_eq!(reply.headers()["content-type"], "application/json");
        drop(tell);
        let (tell, notes) = mpsc::channel(4);
        let call = Running::new(OnDisconnect::Cancel, async move {
            tell.send(Bytes::from_static(b"1")).await.unwrap();
            done("2")
        });
        let reply = answer(call, Some(notes), Duration::from_secs(10), Ends::default()).await;
        assert_eq!(reply.headers()["content-type"], "text/event-stream");
        assert_eq!(reply.headers()["x-accel-buffering"], "no");
        assert_eq!(text(reply).await, "event: message\ndata: 1\n\nevent: message\ndata: 2\n\n");
        let cancelled = Running::new(OnDisconnect::Cancel, async { None });
        assert_eq!(text(answer(cancelled, None, Duration::from_secs(10), Ends::default()).await).await, "");
    }
    /// ACC-2 (case 11): after the end of a stream its client gets nothing more, but the call finishes. After the end of its
    /// notifications alone, the client still gets the answer.
    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_before_its_call() {
        let after = |seconds| -> Option<BoxFuture<'static, ()>> {
            Some(Box::pin(sleep(Duration::from_secs(seconds))))
        };
        for (whole, expected) in [(true, ""), (false, "event: message\ndata: 2\n\n")] {
            let ends = match whole {
                true => Ends { stream: after(5), ..Ends::default() },
                false => Ends { notes: after(5), ..Ends::default() },
            };
            let (tell, unread) = mpsc::channel(4);
            tell.send(Bytes::from_static(b"1")).await.unwrap();
            let (finished, finishes) = tokio::sync::oneshot::channel();
            let call = Running::new(OnDisconnect::Cancel, async move {
                tell.closed().await;
                sleep(Duration::from_secs(3)).await;
                finished.send(Instant::now()).unwrap();
                done("2")
            });
            let began = Instant::now();
            let reply = answer(call, Some(unread), Duration::from_secs(10), ends).await;
            assert_eq!(text(reply).await, format!("event: message\ndata: 1\n\n{expected}"));
            assert_eq!(finishes.await.unwrap() - began, Duration::from_secs(8));
        }
    }
}
