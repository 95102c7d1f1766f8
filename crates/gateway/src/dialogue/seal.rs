//! Seals the state that a client carries for the gateway and brings back.
//!
//! Sealed content can be neither read nor changed. It opens only for the subject it was sealed for: not for
//! another principal, another request or another process. The key is made at the first use and never leaves
//! the process. This module does not enforce that a state is used only once.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bridgehead_wire::{Object, Raw};
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Tells the gateway's states from those that a server has its clients carry.
const MARK: &str = "bh1.";

/// How many bytes a nonce has: enough to choose it at random for every state.
const NONCE_BYTES: usize = 24;

/// The key of one gateway.
#[derive(Default)]
pub(crate) struct Seal(OnceLock<Option<XChaCha20Poly1305>>);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    fn key(&self) -> Option<&XChaCha20Poly1305> {
        let fresh = || Some(XChaCha20Poly1305::new(&random::<32>()?.into()));
        self.0.get_or_init(fresh).as_ref()
    }

    /// Seals `content` for `subject`. `None` if the system provides no random numbers.
    pub(crate) fn close(&self, content: &[u8], subject: &SealedFor) -> Option<String> {
        let nonce = random::<NONCE_BYTES>()?;
        let payload = Payload { msg: content, aad: &subject.0 };
        let text = self.key()?.encrypt(&XNonce::from(nonce), payload).ok()?;
        Some(format!("{MARK}{}", URL_SAFE_NO_PAD.encode([&nonce[..], &text].concat())))
    }

    /// The content that was sealed for `subject`; `None` for anything else.
    pub(crate) fn open(&self, sealed: &str, subject: &SealedFor) -> Option<Vec<u8>> {
        let sealed = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(MARK)?).ok()?;
        let (nonce, text) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg: text, aad: &subject.0 };
        self.key()?.decrypt(&XNonce::from(*nonce), payload).ok()
    }

    /// Whether the gateway may have issued a state.
    pub(crate) fn is_marked(state: &str) -> bool {
        state.starts_with(MARK)
    }
}

/// Random bytes of the system.
fn random<const LENGTH: usize>() -> Option<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

/// The principal and the request that a state is sealed for. The order of the request's members does not
/// matter, and neither do the members that a client adds when it repeats the request.
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

/// Writes a value with the members of every object sorted by name.
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

    /// ERA-2: a state is bound to its principal and request; the order of the request's members does not
    /// matter.
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

    /// ERA-2: a state that was changed, cut, or sealed with another key or for another request does not open.
    #[test]
    fn only_what_was_sealed_opens() {
        let seal = Seal::default();
        let about = subject("a", "tools/call", "{}");
        let sealed = seal.close(b"content", &about).unwrap();
        assert_eq!(seal.open(&sealed, &about).as_deref(), Some(&b"content"[..]));
        assert!(Seal::is_marked(&sealed) && !Seal::is_marked("a-state-of-a-server"));
        assert_ne!(seal.close(b"content", &about).unwrap(), sealed, "no two sealed texts are the same");
        assert!(seal.open(&sealed, &subject("b", "tools/call", "{}")).is_none());
        assert!(Seal::default().open(&sealed, &about).is_none(), "a key of another process");
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
