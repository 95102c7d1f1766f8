//! Reads a request body within bounds of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};

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
}

/// Reads the whole body within a time; one that came in one piece is not copied, and one that is there costs no timer.
pub(crate) async fn read<D>(mut body: D, limit: usize, within: Duration) -> Result<Bytes, BodyError>
where
    D: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > limit as u64 {
        discard(body).await;
        return Err(BodyError::TooLarge);
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
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
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            drop((first, rest));
            discard(body).await;
            return Err(BodyError::TooLarge);
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}

async fn discard<D: Body<Data = Bytes> + Unpin>(mut body: D) {
    let reading = async {
        let mut seen = 0_u64;
        while seen < DISCARDED
            && let Some(Ok(frame)) = body.frame().await
        {
            seen += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
    };
    // Past the time the connection is closed under the client; it has been patient enough with us.
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
