//! Reads event streams (`text/event-stream`): bytes in, the data of events out.
//!
//! Only the data matters to MCP over HTTP; comments, event types, ids and retry times are passed over, and an
//! event without data is none. How much may be held is for the caller to say, who knows what it has pushed.
//!
//! What must stay true: where the stream is cut into pieces makes no difference, each byte is looked at once
//! (an event that comes in many pieces costs no more than one that comes whole), and what the stream has not
//! ended with an empty line is never given out.

use bytes::{Bytes, BytesMut};

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Collects a stream and gives back its events. The reader calls [`EventBuffer::push`] with what has come, then
/// [`EventBuffer::next_event`] until there is none.
#[derive(Debug, Default)]
pub struct EventBuffer {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line break.
    scanned: usize,
    /// The data of the event that is being read: its lines, each with a line feed after it.
    data: BytesMut,
    /// Whether the last line ended with a carriage return, whose line feed may still come.
    after_return: bool,
    /// Whether the first line has been read.
    begun: bool,
}

impl EventBuffer {
    /// An empty one, for the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The data of the next whole event.
    pub fn next_event(&mut self) -> Option<Bytes> {
        while let Some(line) = self.next_line() {
            if !line.is_empty() {
                self.read_field(&line);
            } else if !self.data.is_empty() {
                let mut data = self.data.split();
                data.truncate(data.len() - 1);
                return Some(data.freeze());
            }
        }
        None
    }

    /// A line ends with a line feed, a carriage return, or both.
    fn next_line(&mut self) -> Option<BytesMut> {
        if self.after_return && !self.buffer.is_empty() {
            self.after_return = false;
            if self.buffer[0] == b'\n' {
                let _line_feed = self.buffer.split_to(1);
            }
        }
        let Some(at) = memchr::memchr2(b'\n', b'\r', &self.buffer[self.scanned..]) else {
            self.scanned = self.buffer.len();
            return None;
        };
        let mut line = self.buffer.split_to(self.scanned + at);
        self.after_return = self.buffer.split_to(1)[0] == b'\r';
        self.scanned = 0;
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(BYTE_ORDER_MARK) {
            let _mark = line.split_to(BYTE_ORDER_MARK.len());
        }
        Some(line)
    }

    fn read_field(&mut self, line: &[u8]) {
        let value = match line.strip_prefix(b"data:") {
            Some(value) => value.strip_prefix(b" ").unwrap_or(value),
            None if line == b"data" => b"",
            None => return,
        };
        self.data.extend_from_slice(value);
        self.data.extend_from_slice(b"\n");
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
                events.push(piece);
                found.extend(std::iter::from_fn(|| events.next_event()));
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
        events.push(b"data: ");
        for _ in 0..200_000 {
            events.push(b"0123456789");
            assert_eq!(events.next_event(), None);
        }
        events.push(b"\n\n");
        assert_eq!(events.next_event().map(|data| data.len()), Some(2_000_000));
    }
}
