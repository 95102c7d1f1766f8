//! The hashes of the record, each in its own domain so that none can stand in for another.
//!
//! A row's leaf is the hash of its text. A row's head is the hash of the head before it and its leaf. The head
//! before the first row is the hash of the segment's header. A checkpoint has a digest of its text.
//! `docs/audit.md` documents the hashed bytes; they must not change without a new format number.

use std::fmt;

use sha2::{Digest, Sha256};

/// The prefix byte of a row's text when it is hashed.
pub(crate) const LEAF: u8 = 0;
const NODE: u8 = 1;
const LINK: u8 = 2;
const HEADER: u8 = 3;
const CHECKPOINT: u8 = 4;

/// A SHA-256 value, written in lower-case hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash of plain bytes: the digest of arguments and results.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The leaf of a row's text (RFC 6962, section 2.1).
    #[must_use]
    pub fn leaf(row: &[u8]) -> Self {
        domain(LEAF, row)
    }

    /// The node above two others (RFC 6962, section 2.1).
    #[must_use]
    pub fn node(left: &Self, right: &Self) -> Self {
        pair(NODE, left, right)
    }

    /// The head after a row.
    #[must_use]
    pub fn link(before: &Self, leaf: &Self) -> Self {
        pair(LINK, before, leaf)
    }

    /// The head before the first row of a segment with this header.
    #[must_use]
    pub fn header(text: &[u8]) -> Self {
        domain(HEADER, text)
    }

    /// The digest of a checkpoint's text.
    #[must_use]
    pub fn checkpoint(text: &[u8]) -> Self {
        domain(CHECKPOINT, text)
    }

    /// Reads exactly 64 lower-case digits: a hash has one spelling.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        unhex(text, &mut bytes).then_some(Self(bytes))
    }
}

fn domain(tag: u8, text: &[u8]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update([tag]);
    hasher.update(text);
    Hash(hasher.finalize().into())
}

fn pair(tag: u8, one: &Hash, other: &Hash) -> Hash {
    let mut both = [0; 65];
    both[0] = tag;
    both[1..33].copy_from_slice(&one.0);
    both[33..].copy_from_slice(&other.0);
    Hash(Sha256::digest(both).into())
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends `bytes` in hexadecimal.
pub(crate) fn hex(bytes: &[u8], out: &mut Vec<u8>) {
    bytes.iter().for_each(|byte| out.extend_from_slice(&two_digits(*byte)));
}

const fn two_digits(byte: u8) -> [u8; 2] {
    [DIGITS[(byte >> 4) as usize], DIGITS[(byte & 15) as usize]]
}

/// Fills `out` from lower-case hexadecimal of exactly its length; returns whether the text was valid.
pub(crate) fn unhex(text: &str, out: &mut [u8]) -> bool {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    text.len() == out.len() * 2
        && out.iter_mut().zip(text.as_bytes().chunks_exact(2)).all(|(byte, pair)| {
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            }
        })
}

impl Hash {
    /// Its text.
    pub(crate) fn digits(&self) -> [u8; 64] {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&two_digits(byte));
        }
        digits
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(std::str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl serde::Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl<'de> serde::Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not 64 lower-case hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_has_one_spelling() {
        let hash = Hash::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), text);
        assert_eq!(Hash::parse(text), Some(hash));
        assert_eq!(Hash::parse(&text.to_uppercase()), None);
        assert_eq!(Hash::parse(&text[1..]), None);
    }

    #[test]
    fn domains_are_apart() {
        let (a, b) = (Hash::of(b"a"), Hash::of(b"b"));
        let joined: Vec<u8> = [a.0, b.0].concat();
        let all = [
            Hash::of(&joined),
            Hash::leaf(&joined),
            Hash::node(&a, &b),
            Hash::link(&a, &b),
            Hash::header(&joined),
            Hash::checkpoint(&joined),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
    }
}
