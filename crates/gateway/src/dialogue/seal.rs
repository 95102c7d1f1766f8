//! Seals what a client carries for us and brings back.
//!
//! What is sealed can be neither read nor changed, and opens only together with what it was sealed about: another
//! principal, another request or another process finds that it does not open. The key is made by the first who seals
//! and never leaves the process. That something is used once only is not seen here.

use std::sync::OnceLock;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bridgehead_wire::{Object, Raw};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Tells what is ours from what a server has its clients carry.
const MARK: &str = "bh1.";

/// The key of one gateway.
#[derive(Default)]
pub(crate) struct Seal(OnceLock<Option<RandomizedNonceKey>>);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    fn key(&self) -> Option<&RandomizedNonceKey> {
        let fresh = || {
            let mut key = [0; 32];
            aws_lc_rs::rand::fill(&mut key).ok()?;
            RandomizedNonceKey::new(&AES_256_GCM, &key).ok()
        };
        self.0.get_or_init(fresh).as_ref()
    }

    /// Seals `content` about `subject`. Nothing, if the system has no randomness to give.
    pub(crate) fn close(&self, content: &[u8], subject: &SealedFor) -> Option<String> {
        let mut text = content.to_vec();
        let nonce = self.key()?.seal_in_place_append_tag(Aad::from(subject.0), &mut text).ok()?;
        let mut sealed = nonce.as_ref().to_vec();
        sealed.extend_from_slice(&text);
        Some(format!("{MARK}{}", URL_SAFE_NO_PAD.encode(sealed)))
    }

    /// What was sealed about `subject`; nothing for whatever was not.
    pub(crate) fn open(&self, sealed: &str, subject: &SealedFor) -> Option<Vec<u8>> {
        let mut sealed = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(MARK)?).ok()?;
        let (nonce, text) = sealed.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        Some(self.key()?.open_in_place(nonce, Aad::from(subject.0), text).ok()?.to_vec())
    }

    /// Whether a state may be ours.
    pub(crate) fn is_marked(state: &str) -> bool {
        state.starts_with(MARK)
    }
}

/// Whose request something is sealed about, and what it asks: the same request reads the same in whatever order its
/// members stand, and with whatever an earlier answer made the client add.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SealedFor([u8; 32]);

impl SealedFor {
    pub(crate) fn of(principal: &str, method: &str, params: &Object) -> Self {
        let mut digest = Sha256::new();
        for part in [principal, method] {
            digest.update(part.len().to_le_bytes());
            digest.update(part);
        }
        let mut members: Vec<(String, Raw)> = params
            .members()
            .filter(|(name, _)| !matches!(name.as_str(), "_meta" | "inputResponses" | "requestState"))
            .collect();
        members.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, value) in members {
            let mut text = String::new();
            match value.decode::<Value>() {
                Ok(value) => sorted(&value, &mut text),
                Err(_) => text.push_str(value.as_str()),
            }
            for part in [name, text] {
                digest.update(part.len().to_le_bytes());
                digest.update(part);
            }
        }
        Self(digest.finalize().into())
    }
}

/// Writes a value with the members of every object in the order of their names.
fn sorted(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in members {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                sorted(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(principal: &str, method: &str, params: &'static str) -> SealedFor {
        SealedFor::of(principal, method, &Object::parse(&Raw::literal(params)).unwrap())
    }

    /// ERA-2: a state is bound to principal and request, whatever order the request is written in.
    #[test]
    fn what_a_state_is_about() {
        let first =
            subject("a", "tools/call", r#"{"name":"t","arguments":{"x":1,"y":[{"b":2,"a":1}]},"_meta":{}}"#);
        let again =
            r#"{"requestState":"s","inputResponses":{},"arguments":{"y":[{"a":1,"b":2}],"x":1},"name":"t"}"#;
        assert!(subject("a", "tools/call", again) == first);
        for (principal, method, params) in [
            ("b", "tools/call", again),
            ("a", "prompts/get", again),
            ("a", "tools/call", r#"{"name":"t","arguments":{"x":2,"y":[{"a":1,"b":2}]}}"#),
            ("a", "tools/call", r#"{"name":"u","arguments":{"x":1,"y":[{"a":1,"b":2}]}}"#),
            ("a", "tools/call", r#"{"name":"t"}"#),
        ] {
            assert!(subject(principal, method, params) != first, "{params}");
        }
    }

    /// ERA-2: what was changed, cut, sealed by another or about something else does not open.
    #[test]
    fn only_what_was_sealed_opens() {
        let seal = Seal::default();
        let about = subject("a", "tools/call", "{}");
        let sealed = seal.close(b"content", &about).unwrap();
        assert_eq!(seal.open(&sealed, &about).as_deref(), Some(&b"content"[..]));
        assert!(Seal::is_marked(&sealed) && !Seal::is_marked("a-state-of-a-server"));
        assert_ne!(seal.close(b"content", &about).unwrap(), sealed, "no two are the same");
        assert!(seal.open(&sealed, &subject("b", "tools/call", "{}")).is_none());
        assert!(Seal::default().open(&sealed, &about).is_none(), "another process");
        for position in MARK.len()..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
            assert!(seal.open(std::str::from_utf8(&changed).unwrap(), &about).is_none(), "{position}");
        }
        for foreign in [format!("{sealed}-tampered"), sealed[..20].to_owned(), MARK.to_owned(), String::new()]
        {
            assert!(seal.open(&foreign, &about).is_none(), "{foreign}");
        }
    }
}
