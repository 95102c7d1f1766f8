//! Reads event streams (`text/event-stream`): bytes in, events out.
//!
//! Comments and unknown fields are skipped. An event without data is not returned, but its id and its retry
//! time still count. The caller limits how much is held, which [`EventBuffer::held`] reports.
//!
//! What must stay true: where the stream is cut into pieces makes no difference. Each byte is looked at once: an
//! event in many pieces costs no more than a whole one. An event that no empty line has ended yet is never
//! returned. A large event takes no more memory than [`Gathered`] does.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::Gathered;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Collects a stream and returns its events. The reader calls [`EventBuffer::push`] with the bytes that arrived, then
/// [`EventBuffer::next_event`] until there is none.
#[derive(Debug, Default)]
pub struct EventBuffer {
    /// Bytes that have arrived and are not parsed yet.
    unread: VecDeque<Bytes>,
    /// The beginning of the line that is being read.
    line: Gathered,
    /// The event that is being read.
    data: Option<Bytes>,
    more: BytesMut,
    kind: Bytes,
    last_id: Option<String>,
    retry: Option<Duration>,
    /// How many bytes are held, unparsed ones included.
    held: usize,
    /// Whether the last line ended with a carriage return, whose line feed may still come.
    after_return: bool,
    /// Whether the first line has been read.
    begun: bool,
}

/// One event with data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its type; empty where the stream names none.
    pub kind: Bytes,
    /// Its data lines, joined.
    pub data: Bytes,
}

impl EventBuffer {
    /// An empty one, for the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that have arrived.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.held += bytes.len();
            self.unread.push_back(bytes);
        }
    }

    /// How much is held for an event that has not ended.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// The last id in the stream, from which the stream can be resumed.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long the stream asks its client to wait before it resumes.
    pub const fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// The next whole event.
    pub fn next_event(&mut self) -> Option<ServerEvent> {
        while let Some(line) = self.next_line() {
            if !line.is_empty() {
                self.read_field(line);
                continue;
            }
            let kind = std::mem::take(&mut self.kind);
            self.held = self.unread.iter().map(Bytes::len).sum();
            if let Some(data) = self.take_data() {
                return Some(ServerEvent { kind, data });
            }
        }
        None
    }

    fn take_data(&mut self) -> Option<Bytes> {
        let first = self.data.take()?;
        Some(if self.more.is_empty() { first } else { self.more.split().freeze() })
    }

    /// A line ends with a line feed, a carriage return, or both.
    fn next_line(&mut self) -> Option<Bytes> {
        loop {
            let chunk = self.unread.front_mut()?;
            if std::mem::take(&mut self.after_return) && chunk[0] == b'\n' {
                chunk.advance(1);
            }
            let Some(at) = memchr::memchr2(b'\n', b'\r', chunk) else {
                let chunk = self.unread.pop_front()?;
                self.line.push(chunk);
                continue;
            };
            let end = chunk.split_to(at);
            self.after_return = chunk[0] == b'\r';
            chunk.advance(1);
            if chunk.is_empty() {
                self.unread.pop_front();
            }
            self.line.push(end);
            let mut line = self.line.take();
            if !std::mem::replace(&mut self.begun, true) && line.starts_with(BYTE_ORDER_MARK) {
                line.advance(BYTE_ORDER_MARK.len());
            }
            return Some(line);
        }
    }

    fn read_field(&mut self, mut line: Bytes) {
        let name = memchr::memchr(b':', &line).unwrap_or(line.len());
        let field = line.split_to(name);
        let skip = line.len().min(if line.get(1) == Some(&b' ') { 2 } else { 1 });
        line.advance(skip);
        match field.as_ref() {
            b"data" => match &self.data {
                None => self.data = Some(line),
                Some(first) => {
                    if self.more.is_empty() {
                        self.more.extend_from_slice(first);
                        self.data = Some(Bytes::new());
                    }
                    self.more.extend_from_slice(b"\n");
                    self.more.extend_from_slice(&line);
                }
            },
            b"event" => self.kind = line,
            b"id" => {
                // A NUL would not survive the header that it is sent back in; neither would a line break.
                if let Ok(id) = std::str::from_utf8(&line)
                    && !id.contains('\0')
                {
                    self.last_id = (!id.is_empty()).then(|| id.to_owned());
                }
            }
            b"retry" => {
                let digits = line.iter().all(u8::is_ascii_digit);
                let millis = std::str::from_utf8(&line).ok().and_then(|text| text.parse().ok());
                self.retry = millis.filter(|_| digits).map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stream: &str, expected: &[&str]) {
        for size in [1, 2, 3, 7, stream.len().max(1)] {
            let mut events = EventBuffer::new();
            let mut found = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                events.push(Bytes::copy_from_slice(piece));
                found.extend(std::iter::from_fn(|| events.next_event()).map(|event| event.data));
            }
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn events_end_with_an_empty_line() {
        check("data: a\n\ndata:b\n\n", &["a", "b"]);
        check("data: half", &[]);
        check("data: half\n", &[]);
        check("", &[]);
    }

    #[test]
    fn any_line_break_will_do() {
        check("data: a\r\n\r\ndata: b\r\rdata: c\n\r\ndata: d\r\n\n", &["a", "b", "c", "d"]);
    }

    #[test]
    fn data_lines_are_joined() {
        check("data: {\"a\":\ndata: 1}\n\n", &["{\"a\":\n1}"]);
        check("data\ndata\n\n", &["\n"]);
        check("data:  x\n\n", &[" x"]);
        check("data:\n\n", &[""]);
    }

    #[test]
    fn everything_else_is_passed_over() {
        check(": alive\n\nid: 4\nevent: message\nretry: 5\ndatum: y\nDATA: z\ndata: x\n\n: bye\n\n", &["x"]);
        check("\u{feff}data: a\n\n\u{feff}data: b\n\n", &["a"]);
    }

    #[test]
    fn a_large_event_in_small_pieces_is_read_in_one_pass() {
        let mut events = EventBuffer::new();
        events.push(Bytes::from_static(b"data: "));
        for _ in 0..200_000 {
            events.push(Bytes::from_static(b"0123456789"));
            assert_eq!(events.next_event(), None);
        }
        events.push(Bytes::from_static(b"\n\n"));
        assert_eq!(events.held(), 2_000_008);
        assert_eq!(events.next_event().map(|event| event.data.len()), Some(2_000_000));
        assert_eq!(events.held(), 0);
    }
    #[test]
    fn a_whole_event_is_not_copied() {
        let mut events = EventBuffer::new();
        let stream = Bytes::from(vec![b'x'; 10_000]);
        let stream = Bytes::from([b"data: ", stream.as_ref(), b"\n\n"].concat());
        events.push(stream.clone());
        let event = events.next_event().unwrap();
        assert_eq!(event.data.as_ptr(), stream[6..].as_ptr());
    }

    /// What a client needs to resume a stream that broke.
    #[test]
    fn ids_and_retry_times_are_kept() {
        let mut events = EventBuffer::new();
        events.push(Bytes::from_static(b"id: 1\nretry: 250\nevent: endpoint\ndata: /x\n\ndata: y\n\n"));
        let first = events.next_event().unwrap();
        assert_eq!((first.kind.as_ref(), first.data.as_ref()), (&b"endpoint"[..], &b"/x"[..]));
        assert_eq!(events.next_event().unwrap().kind, "");
        assert_eq!((events.last_id(), events.retry()), (Some("1"), Some(Duration::from_millis(250))));
        events.push(Bytes::from_static(b"id: 2\n\nretry: soon\nid: a\0b\n\n"));
        assert_eq!(events.next_event(), None, "an event without data is not returned");
        assert_eq!((events.last_id(), events.retry()), (Some("2"), Some(Duration::from_millis(250))));
        events.push(Bytes::from_static(b"id\n\n"));
        assert_eq!(events.next_event(), None);
        assert_eq!(events.last_id(), None);
    }
}
