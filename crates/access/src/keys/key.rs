//! The text of an API key: `bhk_`, 43 characters for 256 random bits, and 6 for their checksum.
//!
//! The checksum (CRC-32, as in GitHub's tokens) lets a scanner or a redactor recognise a key without asking anybody, and lets the
//! gateway refuse a mistyped one before it looks anything up. It is no protection: that is what the random bits are for.

use std::fmt::Write as _;

use bridgehead_config::Secret;
use sha2::{Digest, Sha256};

/// How every key begins.
pub const PREFIX: &str = "bhk_";
/// 62 to the power of 43 is just more than 2 to the power of 256.
const RANDOM_CHARACTERS: usize = 43;
const CHECKSUM_CHARACTERS: usize = 6;
const LENGTH: usize = PREFIX.len() + RANDOM_CHARACTERS + CHECKSUM_CHARACTERS;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The longest name of a key.
const LONGEST_NAME: usize = 64;

/// An API key as its holder has it. It is printed once, when it is made, and never kept.
#[derive(Debug, Clone)]
pub struct Key(Secret);

/// Why a text is not a key. Holds no part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// It does not have the form of a key.
    #[error("a key is `bhk_` and 49 letters and digits")]
    Form,
    /// A character is wrong or missing.
    #[error("the checksum of the key is wrong; a character may be missing or mistyped")]
    Checksum,
}

impl Key {
    /// A new random key.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn generate() -> std::io::Result<Self> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        Ok(Self::of(random))
    }

    fn of(mut number: [u8; 32]) -> Self {
        let mut text = PREFIX.to_owned();
        let mut digits = [0_u8; RANDOM_CHARACTERS];
        for digit in digits.iter_mut().rev() {
            *digit = divide(&mut number);
        }
        text.extend(digits.iter().map(|digit| character(u32::from(*digit))));
        let checksum = checksum(&text.as_bytes()[PREFIX.len()..]);
        text.extend(checksum.map(char::from));
        Self(Secret::new(text))
    }

    /// Reads a key. A wrong checksum is found here, without any look-up.
    ///
    /// # Errors
    /// If the text is not a key.
    pub fn parse(text: &[u8]) -> Result<Self, InvalidKey> {
        check(text)?;
        let text = std::str::from_utf8(text).map_err(|_| InvalidKey::Form)?;
        Ok(Self(Secret::new(text)))
    }

    /// Its text.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// What is kept of it.
    pub fn digest(&self) -> [u8; 32] {
        digest(self.0.expose().as_bytes())
    }
}

/// Whether a text is a key, by its form and its checksum.
pub(crate) fn check(text: &[u8]) -> Result<(), InvalidKey> {
    let rest = text.strip_prefix(PREFIX.as_bytes()).ok_or(InvalidKey::Form)?;
    if text.len() != LENGTH || !rest.iter().all(u8::is_ascii_alphanumeric) {
        return Err(InvalidKey::Form);
    }
    let (random, written) = rest.split_at(RANDOM_CHARACTERS);
    if checksum(random) == written { Ok(()) } else { Err(InvalidKey::Checksum) }
}

/// The SHA-256 of a credential.
pub(crate) fn digest(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// A digest as it is written in files.
pub fn digest_text(digest: &[u8; 32]) -> String {
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Checks the name of a key. It is part of the principal's id, of rules and of a TOML header.
///
/// # Errors
/// A message, if the name has other characters than letters, digits, `_`, `.` and `-`, or too many.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    match name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(fits) {
        true => Err(format!(
            "`{}` cannot be the name of a key: use up to {LONGEST_NAME} letters, digits, `_`, `.` and `-`",
            name.escape_debug()
        )),
        false => Ok(()),
    }
}

/// Divides a big-endian number by 62 and returns the remainder.
fn divide(number: &mut [u8; 32]) -> u8 {
    let mut rest = 0_u16;
    for byte in number {
        let part = (rest << 8) | u16::from(*byte);
        // Both fit: the rest is below 62, so the part is below 62 * 256.
        (*byte, rest) = ((part / 62) as u8, part % 62);
    }
    rest as u8
}

fn character(digit: u32) -> char {
    DIGITS.get(digit as usize).map_or('0', |byte| char::from(*byte))
}

/// The CRC-32 of the random characters, in base 62.
fn checksum(random: &[u8]) -> [u8; CHECKSUM_CHARACTERS] {
    let mut rest = crc32(random);
    let mut text = [b'0'; CHECKSUM_CHARACTERS];
    for place in text.iter_mut().rev() {
        *place = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    text
}

/// CRC-32 (IEEE 802.3), bit by bit: 43 bytes need no table, and a crate for it would be longer than these lines.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-1 (case 11): a key has 256 random bits and their checksum, in the form that scanners look for.
    #[test]
    fn a_key_has_its_form() {
        let (one, other) = (Key::generate().unwrap(), Key::generate().unwrap());
        assert_ne!(one.expose(), other.expose());
        for key in [&one, &other, &Key::of([0; 32]), &Key::of([255; 32])] {
            let text = key.expose();
            assert_eq!((text.len(), &text[..4]), (53, "bhk_"));
            assert!(text[4..].bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
            assert_eq!(Key::parse(text.as_bytes()).unwrap().digest(), key.digest());
        }
        assert!(!format!("{one:?}").contains(&one.expose()[4..20]), "{one:?}");
    }

    /// The number is written in base 62 and the checksum is the usual CRC-32, so that other programs can check a key.
    #[test]
    fn the_encoding_is_the_documented_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        let mut number = [0; 32];
        (number[30], number[31]) = (1, 62);
        // 318 = 5 * 62 + 8
        assert_eq!(&Key::of(number).expose()[4..47], format!("{:0>43}", "58"));
        // CRC-32 of 43 zeros, by another implementation.
        assert_eq!(crc32(&[b'0'; 43]), 0x7849_568F);
        let largest = Key::of([255; 32]);
        assert_ne!(&largest.expose()[4..5], "0", "all digits are used");
    }

    /// ACC-1 (case 11): a mistyped key is refused by its checksum, whichever character is wrong.
    #[test]
    fn a_wrong_character_is_found() {
        let key = Key::generate().unwrap();
        for at in 4..53 {
            let mut text = key.expose().as_bytes().to_vec();
            text[at] = if text[at] == b'a' { b'b' } else { b'a' };
            assert_eq!(Key::parse(&text).unwrap_err(), InvalidKey::Checksum, "character {at}");
        }
        let text = key.expose();
        for wrong in ["", "bhk_", &text[..52], &format!("{text}a"), &text.replace("bhk_", "bh__")] {
            assert_eq!(Key::parse(wrong.as_bytes()).unwrap_err(), InvalidKey::Form, "{wrong}");
        }
        let mut spaced = text.as_bytes().to_vec();
        spaced[10] = b' ';
        assert_eq!(Key::parse(&spaced).unwrap_err(), InvalidKey::Form);
    }

    #[test]
    fn names() {
        for name in ["ci", "a.b-c_D9", &"n".repeat(64)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "a b", "a/b", "ä", "a]", "a\n", &"n".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert_eq!(digest_text(&digest(b"abc"))[..8], *"ba7816bf");
    }
}
