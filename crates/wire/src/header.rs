//! The value codec of the headers that mirror parts of a request (`Mcp-Name`, `Mcp-Param-*`).
//!
//! A header can carry visible ASCII, space and tab; anything else travels as
//! `=?base64?<standard base64 of the UTF-8>?=`. Which headers are mirrored, and what a mismatch
//! means, is for the HTTP front and the upstream client to say.
//!
//! What must stay true: decoding an encoded value gives back the same text, an encoded value is
//! always a legal header value that no intermediary may trim, and no error repeats the value.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};

const PREFIX: &str = "=?base64?";
const SUFFIX: &str = "?=";

/// Why the value of a mirrored header cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderValueError {
    /// A byte outside ASCII in a value that is not encoded.
    #[error("header value has the non-ASCII byte 0x{byte:02x} at offset {at}; send it as =?base64?…?=")]
    NotAscii {
        /// The byte.
        byte: u8,
        /// Its offset in the value.
        at: usize,
    },
    /// A control character, other than tab, in a value that is not encoded.
    #[error("header value has the control character 0x{byte:02x} at offset {at}; send it as =?base64?…?=")]
    Control {
        /// The character.
        byte: u8,
        /// Its offset in the value.
        at: usize,
    },
    /// The text between the markers is not padded standard base64.
    #[error("header value between =?base64? and ?= is not standard base64 with padding (RFC 4648 §4)")]
    NotBase64,
    /// The base64 is valid but does not decode to text.
    #[error("header value between =?base64? and ?= decodes to bytes that are not UTF-8")]
    NotUtf8,
}

/// Writes `value` so that [`decode_header_value`] gives it back: as it is where a header can carry
/// it, else as base64.
pub fn encode_header_value(value: &str) -> String {
    if survives_as_is(value) {
        value.to_owned()
    } else {
        format!("{PREFIX}{}{SUFFIX}", STANDARD.encode(value))
    }
}

/// Reads the value of a mirrored header.
///
/// Space and tab around the value are not part of it. The markers are case-sensitive, and a value
/// with only one of them is literal.
pub fn decode_header_value(value: &[u8]) -> Result<Cow<'_, str>, HeaderValueError> {
    let offset = value.len() - trim_start(value).len();
    let value = trim_end(trim_start(value));
    if let Some(encoded) = between_markers(value) {
        let bytes = STANDARD.decode(encoded).map_err(|_| HeaderValueError::NotBase64)?;
        return String::from_utf8(bytes).map(Cow::Owned).map_err(|_| HeaderValueError::NotUtf8);
    }
    if let Some(at) = value.iter().position(|byte| !is_plain(*byte)) {
        let (byte, at) = (value[at], offset + at);
        return Err(if byte.is_ascii() {
            HeaderValueError::Control { byte, at }
        } else {
            HeaderValueError::NotAscii { byte, at }
        });
    }
    // Never fails: these are ASCII characters.
    std::str::from_utf8(value).map(Cow::Borrowed).map_err(|_| HeaderValueError::NotUtf8)
}

fn survives_as_is(value: &str) -> bool {
    let bytes = value.as_bytes();
    // The markers may overlap here (`=?base64?=`): we read that as literal, but a reader that only
    // tests both ends would not, so it is never sent plain.
    let like_sentinel = value.starts_with(PREFIX) && value.ends_with(SUFFIX);
    let trimmed =
        bytes.first().is_some_and(|byte| is_blank(*byte)) || bytes.last().is_some_and(|byte| is_blank(*byte));
    !like_sentinel && !trimmed && bytes.iter().all(|byte| is_plain(*byte))
}

fn between_markers(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(PREFIX.as_bytes())?.strip_suffix(SUFFIX.as_bytes())
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x20..=0x7e)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trim_start(value: &[u8]) -> &[u8] {
    let blanks = value.iter().take_while(|byte| is_blank(**byte)).count();
    &value[blanks..]
}

fn trim_end(value: &[u8]) -> &[u8] {
    let blanks = value.iter().rev().take_while(|b| is_blank(**b)).count();
    &value[..value.len() - blanks]
}

#[cfg(test)]
mod tests {
    use super::{HeaderValueError, decode_header_value, encode_header_value};

    #[track_caller]
    fn check(value: &str, header: &str) {
        assert_eq!(encode_header_value(value), header);
        assert_eq!(decode_header_value(header.as_bytes()).as_deref(), Ok(value));
    }

    #[track_caller]
    fn check_reads(header: &[u8], expected: Result<&str, HeaderValueError>) {
        assert_eq!(decode_header_value(header).as_deref(), expected.as_ref().map(|text| *text));
    }

    #[test]
    fn plain_ascii_travels_as_it_is() {
        check("", "");
        check("files.read", "files.read");
        check("file:///a b\tc~", "file:///a b\tc~");
    }

    #[test]
    fn what_a_header_cannot_carry_travels_as_base64() {
        check("日本語", "=?base64?5pel5pys6Kqe?=");
        check(" lead", "=?base64?IGxlYWQ=?=");
        check("trail\t", "=?base64?dHJhaWwJ?=");
        check(" ", "=?base64?IA==?=");
        check("a\nb", "=?base64?YQpi?=");
        check("\u{7f}", "=?base64?fw==?=");
    }

    #[test]
    fn a_value_like_the_sentinel_is_encoded() {
        check("=?base64?SGVsbG8=?=", "=?base64?PT9iYXNlNjQ/U0dWc2JHOD0/PQ==?=");
        check("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?=");
    }

    #[test]
    fn one_marker_or_another_case_is_literal() {
        check("=?base64?SGVsbG8=", "=?base64?SGVsbG8=");
        check("SGVsbG8=?=", "SGVsbG8=?=");
        check("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?=");
        check_reads(b"=?base64?=", Ok("=?base64?="));
    }

    #[test]
    fn white_space_around_a_value_is_not_part_of_it() {
        check_reads(b" \tplain ", Ok("plain"));
        check_reads(b" =?base64?IA==?=\t", Ok(" "));
        check_reads(b"=?base64??=", Ok(""));
        check_reads(b"  ", Ok(""));
    }

    #[test]
    fn bad_base64_is_refused() {
        for bad in ["SGVsbG8", "SGVsbG8==", "SGVs bG8=", "SGVsbG9=", "-_-_", "SGVsbG8=\n", "====", "é"] {
            check_reads(format!("=?base64?{bad}?=").as_bytes(), Err(HeaderValueError::NotBase64));
        }
        check_reads(b"=?base64?/w==?=", Err(HeaderValueError::NotUtf8));
    }

    #[test]
    fn raw_bytes_a_header_must_not_carry_are_refused() {
        let (byte, at) = (0xc3, 2);
        check_reads(" a\u{e9}".as_bytes(), Err(HeaderValueError::NotAscii { byte, at }));
        let (byte, at) = (0, 1);
        check_reads(b"a\0b", Err(HeaderValueError::Control { byte, at }));
        let (byte, at) = (0x7f, 0);
        check_reads(b"\x7f", Err(HeaderValueError::Control { byte, at }));
    }
}
