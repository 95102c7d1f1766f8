//! Reads lines from a byte stream as they arrive.

use std::io;

use bridgehead_wire::{Line, LineBuffer};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Reads lines of at most a given length; longer ones are reported and skipped.
#[derive(Debug)]
pub struct LineReader<R> {
    stream: R,
    lines: LineBuffer,
    ended: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads `stream`; no line may be longer than `limit` bytes.
    pub fn new(stream: R, limit: usize) -> Self {
        Self { stream, lines: LineBuffer::new(limit), ended: false }
    }

    /// Whether the stream has ended. A line that was returned together with the end had no line break.
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// The next line; `None` after the stream has ended. Dropping the future loses no bytes.
    pub async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.lines.next_line() {
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(None);
            }
            if self.stream.read_buf(self.lines.space()).await? == 0 {
                self.ended = true;
                return Ok(self.lines.finish());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn lines_until_the_end() {
        let (mut theirs, ours) = tokio::io::duplex(64);
        let mut lines = LineReader::new(ours, 10);
        assert!(futures_util::poll!(Box::pin(lines.next())).is_pending());
        theirs.write_all(b"one\ntwo\n0123456789abc\nlast").await.unwrap();
        drop(theirs);
        let mut found = Vec::new();
        assert!(!lines.has_ended());
        while let Some(line) = lines.next().await.unwrap() {
            assert_eq!(lines.has_ended(), found.len() == 3, "only the last has no line break");
            found.push(match line {
                Line::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                Line::TooLong { bytes, .. } => format!("{bytes} bytes"),
            });
        }
        assert_eq!(found, ["one", "two", "13 bytes", "last"]);
        assert!(lines.next().await.unwrap().is_none());
    }
}
