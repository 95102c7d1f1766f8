//! Reads a request body within limits of size, of time, and of memory held for its sender.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bridgehead_wire::Gathered;
use bridgehead_wire::held::{NoRoom, SMALL};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::admission::Activity;

/// How long a client may be silent in the middle of a body.
const SILENCE: Duration = Duration::from_secs(30);
/// How much of a body that is too large is read and thrown away, and for how long: a client that is
/// still writing when the connection closes may never see the answer.
const DISCARDED: u64 = 256 * 1024 * 1024;
const DISCARDING: Duration = Duration::from_secs(5);

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It has more bytes than are accepted.
    TooLarge,
    /// The client fell silent.
    Slow,
    /// The connection broke, or the framing is wrong.
    Broken,
    /// Too much is held already.
    NoRoom(NoRoom),
}

/// The error of a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl From<BoxError> for BodyError {
    fn from(error: BoxError) -> Self {
        error.downcast_ref().copied().map_or(Self::Broken, Self::NoRoom)
    }
}

/// The body of a request. A long one is counted on the account of its connection as it arrives.
pub(crate) struct Counted {
    pub(crate) body: hyper::body::Incoming,
    pub(crate) activity: Arc<Activity>,
    pub(crate) seen: usize,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(BoxError::from)?;
        self.seen += frame.data_ref().map_or(0, Bytes::len);
        if self.seen > SMALL {
            self.activity.hold_body(self.seen)?;
            if self.body.is_end_stream() {
                self.activity.has_body();
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    // Not mutated: without it, one more poll of the body finds the end.
    #[cfg_attr(false, mutants::skip)]
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads the whole body within a time limit. A body in one piece is not copied, and one that has arrived already costs no
/// timer.
pub(crate) async fn read<D>(mut body: D, limit: usize, within: Duration) -> Result<Bytes, BodyError>
where
    D: Body<Data = Bytes> + Unpin,
    D::Error: Into<BoxError>,
{
    if body.size_hint().lower() > limit as u64 {
        discard(body).await;
        return Err(BodyError::TooLarge);
    }
    let mut gathered = Gathered::expecting(body.size_hint().exact());
    let mut deadline = None;
    while !body.is_end_stream() {
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None => {
                let now = Instant::now();
                let until = (now + SILENCE).min(*deadline.get_or_insert(now + within));
                timeout_at(until, body.frame()).await.map_err(|_| BodyError::Slow)?
            }
        };
        let Some(frame) = frame else { break };
        let refused = match frame {
            Ok(frame) => match frame.into_data() {
                Ok(data) if gathered.len() + data.len() > limit => BodyError::TooLarge,
                Ok(data) => {
                    gathered.push(data);
                    continue;
                }
                Err(_) => continue,
            },
            Err(error) => BodyError::from(error.into()),
        };
        drop(gathered);
        if refused != BodyError::Broken {
            discard(body).await;
        }
        return Err(refused);
    }
    Ok(gathered.take())
}

async fn discard<D>(mut body: D)
where
    D: Body<Data = Bytes> + Unpin,
    D::Error: Into<BoxError>,
{
    let reading = async {
        let mut seen = 0_u64;
        while seen < DISCARDED
            && let Some(frame) = body.frame().await
        {
            match frame.map_err(|error| BodyError::from(error.into())) {
                Ok(frame) => seen += frame.data_ref().map_or(0, |data| data.len() as u64),
                // It is not kept, so it does not matter that there is no room for it.
                Err(BodyError::NoRoom(_)) => seen += 1,
                Err(_) => return,
            }
        }
    };
    // After that time the connection is closed, even if the client is still writing.
    drop(timeout(DISCARDING, reading).await);
}

#[cfg(test)]
mod tests {
    use super::super::reply::Body;
    use futures_util::stream;

    use super::*;

    fn chunked(chunks: Vec<&'static [u8]>) -> Body {
        Body::from_stream(stream::iter(chunks.into_iter().map(Bytes::from)))
    }

    const WITHIN: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn reads_up_to_the_limit() {
        assert_eq!(read(Body::from("12345"), 5, WITHIN).await.unwrap(), "12345");
        assert_eq!(read(Body::from("123456"), 5, WITHIN).await, Err(BodyError::TooLarge));
        assert_eq!(read(chunked(vec![b"12", b"34", b"5"]), 5, WITHIN).await.unwrap(), "12345");
        assert_eq!(read(chunked(vec![b"12", b"34", b"56"]), 5, WITHIN).await, Err(BodyError::TooLarge));
        assert_eq!(read(Body::empty(), 5, WITHIN).await.unwrap(), "");
    }

    /// BOUND-4: neither silence nor a trickle keeps a request open.
    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_given_up() {
        let began = Instant::now();
        let body = Body::from_stream(stream::pending());
        assert_eq!(read(body, 5, WITHIN).await, Err(BodyError::Slow));
        assert_eq!(began.elapsed(), SILENCE);
        let began = Instant::now();
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(SILENCE / 2).await;
            Some((Bytes::from_static(b"x"), ()))
        });
        assert_eq!(read(Body::from_stream(trickle), 1000, WITHIN).await, Err(BodyError::Slow));
        assert_eq!(began.elapsed(), WITHIN);
    }
}
