//! Reads a request body within bounds of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::timeout;

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

/// Reads the whole body; one that came in one piece is not copied.
pub(crate) async fn read<D>(mut body: D, limit: usize) -> Result<Bytes, BodyError>
where
    D: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > limit as u64 {
        discard(body).await;
        return Err(BodyError::TooLarge);
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while !body.is_end_stream() {
        let Some(frame) = timeout(SILENCE, body.frame()).await.map_err(|_| BodyError::Slow)? else { break };
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

    #[tokio::test]
    async fn reads_up_to_the_limit() {
        assert_eq!(read(Body::from("12345"), 5).await.unwrap(), "12345");
        assert_eq!(read(Body::from("123456"), 5).await, Err(BodyError::TooLarge));
        assert_eq!(read(chunked(vec![b"12", b"34", b"5"]), 5).await.unwrap(), "12345");
        assert_eq!(read(chunked(vec![b"12", b"34", b"56"]), 5).await, Err(BodyError::TooLarge));
        assert_eq!(read(Body::empty(), 5).await.unwrap(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_given_up() {
        let body = Body::from_stream(stream::pending());
        assert_eq!(read(body, 5).await, Err(BodyError::Slow));
    }
}
