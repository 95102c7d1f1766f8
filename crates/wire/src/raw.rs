//! One JSON value as the bytes it arrived in.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The text is not one JSON value.
#[derive(Debug, thiserror::Error)]
#[error("not valid JSON: {0}")]
pub struct NotJson(#[from] serde_json::Error);

/// One valid JSON value, without surrounding white space, as a cheap slice of a shared buffer.
///
/// Cloning and slicing only count references; the bytes are copied when the value is written out.
#[derive(Clone, PartialEq, Eq)]
pub struct Raw(Bytes);

impl Raw {
    /// Checks `text` and keeps it as it is.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, NotJson> {
        let bytes = text.into();
        let value: &RawValue = serde_json::from_slice(&bytes)?;
        Ok(Self::within(&bytes, value))
    }

    /// Encodes one of our own values. Only types whose encoding cannot fail are passed in; a failure
    /// would be a bug and yields `null`.
    pub fn encode(value: &impl Serialize) -> Self {
        Self(serde_json::to_vec(value).map_or(Bytes::from_static(b"null"), Bytes::from))
    }

    /// A JSON string.
    pub fn string(text: &str) -> Self {
        // Our own ids and names need no escapes. Not `any`: checking all bytes is faster than stopping early.
        let escaped = text.bytes().fold(false, |found, byte| found | matches!(byte, 0..0x20 | b'"' | b'\\'));
        if escaped {
            return Self::encode(&text);
        }
        let mut quoted = Vec::with_capacity(text.len() + 2);
        quoted.push(b'"');
        quoted.extend_from_slice(text.as_bytes());
        quoted.push(b'"');
        Self(quoted.into())
    }

    /// A literal written in the source.
    pub const fn literal(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// The slice of `buffer` that `value` borrows from it.
    pub(crate) fn within(buffer: &Bytes, value: &RawValue) -> Self {
        Self(buffer.slice_ref(value.get().as_bytes()))
    }

    /// Takes a slice that is known to be one JSON value.
    pub(crate) const fn trusted(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// The text. JSON is UTF-8; the parser has checked it.
    #[inline]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Decodes the value.
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }

    /// The text of a JSON string, if this is one.
    pub fn to_text(&self) -> Option<String> {
        text_of(self.as_str()).map(Cow::into_owned)
    }

    /// Whether this is an object.
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        self.0.as_ref() == b"null"
    }

    /// A copy in a buffer of its own, for values that outlive the message they came in: a slice would
    /// keep the whole read buffer alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

/// The text of `json`, which is one JSON value, if it is a string. Borrowed unless it is written with escapes.
pub(crate) fn text_of(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    match memchr::memchr(b'\\', inner.as_bytes()) {
        Some(_) => serde_json::from_str(json).ok().map(Cow::Owned),
        None => Some(Cow::Borrowed(inner)),
    }
}

impl fmt::Debug for Raw {
    /// Shows the size only: raw values carry arguments and results, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({} bytes)", self.0.len())
    }
}

impl From<&serde_json::Value> for Raw {
    fn from(value: &serde_json::Value) -> Self {
        Self::encode(value)
    }
}

impl From<serde_json::Value> for Raw {
    fn from(value: serde_json::Value) -> Self {
        Self::encode(&value)
    }
}

impl From<Raw> for Bytes {
    fn from(raw: Raw) -> Self {
        raw.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_text_and_drops_the_space_around_it() {
        assert_eq!(Raw::parse(" {\"a\": 1.0e0}\n").unwrap().as_str(), "{\"a\": 1.0e0}");
        assert!(Raw::parse("{} {}").is_err());
        assert!(Raw::parse("").is_err());
        assert!(Raw::parse(&b"\"\xff\""[..]).is_err(), "invalid UTF-8 is not JSON");
    }

    #[test]
    fn debug_shows_no_content() {
        assert_eq!(format!("{:?}", Raw::string("hunter2")), "Raw(9 bytes)");
    }
}
