//! Splits a byte stream into lines of bounded length: a line longer than the limit is skipped, never stored.

use bytes::{Buf, Bytes, BytesMut};

use crate::{Id, Raw};

/// How much room a read gets.
const READ_SIZE: usize = 64 * 1024;
/// How much of an overlong line is kept at each end, to find its id.
const EDGE: usize = 4 * 1024;

/// One line of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Its text, without the line break; never blank.
    Text(Bytes),
    /// It was longer than the limit and was discarded.
    TooLong {
        /// Its length.
        bytes: u64,
        /// The id of the message, if it could be read from the beginning or the end of the line.
        id: Option<Id>,
    },
}

/// Splits what is read into lines. The reader appends to [`LineBuffer::space`], then takes
/// [`LineBuffer::next_line`] until there is none.
#[derive(Debug)]
pub struct LineBuffer {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line break.
    scanned: usize,
    limit: usize,
    overlong: Option<Overlong>,
}

#[derive(Debug)]
struct Overlong {
    bytes: u64,
    head: Bytes,
    tail: BytesMut,
}

impl LineBuffer {
    /// Lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, limit, overlong: None }
    }

    /// The buffer to read into.
    #[inline]
    pub fn space(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < READ_SIZE / 4 {
            // A long line doubles the buffer, so that it is copied a bounded number of times.
            self.buffer.reserve(READ_SIZE.max(self.buffer.len()));
        }
        &mut self.buffer
    }

    /// The next whole line.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) else {
                self.scanned = self.buffer.len();
                if self.overlong.is_some() || self.buffer.len() > self.limit {
                    self.skip_buffer();
                }
                return None;
            };
            let line = self.buffer.split_to(self.scanned + at);
            self.buffer.advance(1);
            self.scanned = 0;
            if let Some(line) = self.close(line) {
                return Some(line);
            }
        }
    }

    /// The text after the last line break, once the stream has ended.
    pub fn finish(&mut self) -> Option<Line> {
        let rest = self.buffer.split();
        self.scanned = 0;
        self.close(rest)
    }

    fn close(&mut self, line: BytesMut) -> Option<Line> {
        if let Some(mut overlong) = self.overlong.take() {
            overlong.add(&line);
            return Some(overlong.into_line());
        }
        if line.len() > self.limit {
            return Some(Overlong::new(&line).into_line());
        }
        let line = line.freeze();
        let line = line.strip_suffix(b"\r").map_or_else(|| line.clone(), |text| line.slice_ref(text));
        (!line.iter().all(u8::is_ascii_whitespace)).then_some(Line::Text(line))
    }

    fn skip_buffer(&mut self) {
        let part = self.buffer.split();
        self.scanned = 0;
        match &mut self.overlong {
            Some(overlong) => overlong.add(&part),
            None => self.overlong = Some(Overlong::new(&part)),
        }
        // Frees the large block.
        self.buffer = BytesMut::new();
    }
}

impl Overlong {
    fn new(part: &[u8]) -> Self {
        let head = Bytes::copy_from_slice(&part[..part.len().min(EDGE)]);
        let mut overlong = Self { bytes: 0, head, tail: BytesMut::new() };
        overlong.add(part);
        overlong
    }

    fn add(&mut self, part: &[u8]) {
        self.bytes += part.len() as u64;
        self.tail.extend_from_slice(&part[part.len().saturating_sub(EDGE)..]);
        let surplus = self.tail.len().saturating_sub(EDGE);
        self.tail.advance(surplus);
    }

    /// Peers write the id before the payload or after it. The middle of the line is gone, so this looks
    /// at the complete members at either end of the line.
    fn into_line(self) -> Line {
        let id = id_at_start(&self.head).or_else(|| id_at_end(&self.tail));
        Line::TooLong { bytes: self.bytes, id }
    }
}

/// Reads `{"key":scalar,…` from the front until the id or a value that is not a scalar.
fn id_at_start(head: &Bytes) -> Option<Id> {
    let mut rest = skip_space(head).strip_prefix(b"{")?;
    loop {
        let (key, after) = scalar(skip_space(rest))?;
        let after = skip_space(skip_space(after).strip_prefix(b":")?);
        let (value, after) = scalar(after)?;
        if key == b"\"id\"" {
            return Id::new(Raw::parse(Bytes::copy_from_slice(value)).ok()?);
        }
        rest = skip_space(after).strip_prefix(b",")?;
    }
}

/// Finds `,"id":scalar}` (with other scalars after it) at the very end.
fn id_at_end(tail: &[u8]) -> Option<Id> {
    let mut from = tail.len();
    // The last few candidates only: an `"id"` inside the payload is followed by more than one `}`.
    for _ in 0..8 {
        from = memchr::memmem::rfind(&tail[..from], b"\"id\"")?;
        let closing = tail[from..].iter().filter(|byte| **byte == b'}').count();
        if closing == 1 {
            let mut object = vec![b'{'];
            object.extend_from_slice(&tail[from..]);
            if let Some(id) = id_at_start(&Bytes::from(object)) {
                return Some(id);
            }
        }
    }
    None
}

/// Whether a malformed line was meant as an answer. Such a line names the protocol. Its complete members, read from the
/// front, include a result, an error or at least the id, and no method. A log line does not look like that, whether it is
/// JSON or an object as a program prints it.
pub fn is_broken_answer(line: &[u8]) -> bool {
    looks_like_answer(line).unwrap_or(false) && memchr::memmem::find(line, b"\"jsonrpc\"").is_some()
}

fn looks_like_answer(line: &[u8]) -> Option<bool> {
    let mut rest = skip_space(line).strip_prefix(b"{")?;
    let mut has_id = false;
    loop {
        let Some((key, after)) = scalar(skip_space(rest)) else { return Some(has_id) };
        match key {
            b"\"result\"" | b"\"error\"" => return Some(true),
            b"\"method\"" | b"\"params\"" => return Some(false),
            b"\"id\"" => has_id = true,
            _ => {}
        }
        let Some(value) = skip_space(after).strip_prefix(b":") else { return Some(has_id) };
        let value = skip_space(value);
        if matches!(value.first(), Some(b'{' | b'[')) {
            return Some(false);
        }
        let Some((_, after)) = scalar(value) else { return Some(has_id) };
        let Some(next) = skip_space(after).strip_prefix(b",") else { return Some(has_id) };
        rest = next;
    }
}

/// Turns line breaks into spaces, for a message that must be one line. Within JSON they can only be white
/// space between tokens, which peers on other transports may send.
#[inline]
pub fn on_one_line(mut message: &mut [u8]) {
    while let Some(at) = memchr::memchr2(b'\n', b'\r', message) {
        message[at] = b' ';
        message = &mut message[at + 1..];
    }
}

fn skip_space(text: &[u8]) -> &[u8] {
    text.trim_ascii_start()
}

/// A string, number or word at the front of `text`, and what follows it.
fn scalar(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = if text.first()? == &b'"' {
        let mut at = 1;
        loop {
            match text.get(at)? {
                b'"' => break at + 1,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
    } else {
        text.iter()
            .position(|byte| !matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z'))?
    };
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(limit: usize, chunks: &[&[u8]]) -> Vec<Line> {
        let mut buffer = LineBuffer::new(limit);
        let mut found = Vec::new();
        for chunk in chunks {
            buffer.space().extend_from_slice(chunk);
            while let Some(line) = buffer.next_line() {
                found.push(line);
            }
        }
        found.extend(buffer.finish());
        found
    }

    fn text(line: &str) -> Line {
        Line::Text(Bytes::copy_from_slice(line.as_bytes()))
    }

    #[test]
    fn splits_however_the_bytes_arrive() {
        let expected = vec![text("one"), text("two"), text("three")];
        assert_eq!(lines(10, &[b"one\ntwo\r\n\n  \nthree"]), expected);
        assert_eq!(lines(10, &[b"o", b"ne", b"\nt", b"wo\r", b"\n\n", b"three", b"\n"]), expected);
    }

    #[test]
    fn a_message_fits_on_one_line() {
        let mut text = *b"{\r\n\"a\":\n1}\n";
        on_one_line(&mut text);
        assert_eq!(&text, b"{  \"a\": 1} ");
    }

    #[track_caller]
    fn too_long(line: &str, id: Option<&str>) {
        let limit = 100;
        assert!(line.len() > limit);
        let whole = format!("{line}\nnext\n");
        let in_pieces: Vec<&[u8]> = whole.as_bytes().chunks(7).collect();
        for chunks in [vec![whole.as_bytes()], in_pieces] {
            let found = lines(limit, &chunks);
            assert_eq!(found.len(), 2, "the stream goes on after the line");
            let Line::TooLong { bytes, id: found_id } = &found[0] else { panic!("{found:?}") };
            assert_eq!(*bytes, line.len() as u64);
            assert_eq!(found_id.as_ref().map(|id| id.raw().as_str()), id);
            assert_eq!(found[1], text("next"));
        }
    }

    #[test]
    fn finds_the_id_of_a_line_that_is_too_long() {
        let blob = "x".repeat(20_000);
        too_long(&format!(r#"{{"jsonrpc":"2.0", "id" : 17,"result":{{"a":"{blob}"}}}}"#), Some("17"));
        too_long(
            &format!(r#"{{"result":{{"id":5,"a":"{blob}"}},"id":"a\"b","jsonrpc":"2.0"}}"#),
            Some(r#""a\"b""#),
        );
        too_long(&format!(r#"{{"result":{{"a":"{blob}","id":5}}}}"#), None);
        too_long(&blob, None);
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_told_from_a_log_line() {
        #[track_caller]
        fn check(line: &[u8], expected: bool) {
            assert_eq!(is_broken_answer(line), expected, "{}", String::from_utf8_lossy(line));
        }
        check(br#"{"jsonrpc":"2.0","id":1,"result":{"content":["#, true);
        check(br#" {"result":{"a":[}},"jsonrpc":"2.0","id":1}"#, true);
        check(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"message\":\"\xff\"}}", true);
        check(br#"{"jsonrpc":"2.0","id":1}"#, true);
        check(br#"{"jsonrpc":"2.0","id":1,"res"#, true);
        check(br#"{"jsonrpc":"2.0","id":1"#, true);
        check(br#"{"jsonrpc":"2.0","id""#, true);
        check(br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":5}"#, false);
        check(br#"{"jsonrpc":"2.0","method":"notifications/message","params":"x"}"#, false);
        check(br#"{"jsonrpc":"2.0","id":1,"params":{},"method":5}"#, false);
        check(br#"{"jsonrpc":"2.0","extra":{},"id":1}"#, false);
        check(br#"{"jsonrpc":"2.0"}"#, false);
        check(br#"{"level":30,"id":1,"error":"no connection"}"#, false);
        check(br#"{ jsonrpc: '2.0', id: 1, result: { content: [] } }"#, false);
        check(br#"got {"jsonrpc":"2.0","id":1,"result":"#, false);
        check(b"{}", false);
        check(b"{", false);
        check(b"\xff\xfe{", false);
    }

    #[test]
    fn memory_stays_bounded_while_skipping() {
        let mut buffer = LineBuffer::new(1000);
        for _ in 0..10_000 {
            buffer.space().extend_from_slice(&[b'x'; 10_000]);
            assert!(buffer.next_line().is_none());
            assert!(buffer.space().capacity() <= 2 * READ_SIZE);
        }
        buffer.space().extend_from_slice(b"\n");
        assert!(matches!(buffer.next_line(), Some(Line::TooLong { bytes: 100_000_000, id: None })));
    }
}
