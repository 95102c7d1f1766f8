//! How the loss of a request travels from a relay to the gateway, and how a message stays one line without a change.
//!
//! A [`LinkError`] has no form in JSON-RPC. A relay writes it as an error with a member of ours, and the link to the
//! relay reads it back. A remote server could write the same error; it would only describe its own request falsely,
//! which it can do with an HTTP status as well.

use bridgehead_wire::{RpcError, code};
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::link::LinkError;

/// What stands for a line feed and a carriage return between the tokens of a message. JSON allows neither anywhere.
const FOLDED: [(u8, u8); 2] = [(b'\n', 0x1e), (b'\r', 0x1f)];

/// A request without an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) error: LinkError,
    /// Whether the request may have reached the server.
    pub(crate) sent: bool,
}

#[derive(Serialize, Deserialize)]
struct Data {
    #[serde(rename = "bridgehead/loss")]
    loss: Form,
}

#[derive(Serialize, Deserialize)]
struct Form {
    kind: Kind,
    sent: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Closed,
    Refused { transient: bool, denied: bool },
    Unusable,
    TooLarge { bytes: u64, limit: usize },
}

impl Loss {
    /// The error that stands for it.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "there is no relay"))]
    pub(crate) fn to_error(&self) -> RpcError {
        let kind = match &self.error {
            // Only a process crashes, and a relay runs none.
            LinkError::Closed(_) | LinkError::Crashed(_) => Kind::Closed,
            LinkError::Refused { transient, denied, .. } => {
                Kind::Refused { transient: *transient, denied: *denied }
            }
            LinkError::Unusable(_) => Kind::Unusable,
            LinkError::TooLarge { bytes, limit } => Kind::TooLarge { bytes: *bytes, limit: *limit },
        };
        let data = json!(Data { loss: Form { kind, sent: self.sent } });
        RpcError::with_data(code::INTERNAL_ERROR, &self.error.to_string(), &data)
    }

    /// The loss that an error stands for, if it does.
    pub(crate) fn of(error: &RpcError) -> Option<Self> {
        let data = error.data().filter(|_| error.code() == code::INTERNAL_ERROR)?;
        let Data { loss: Form { kind, sent } } = data.decode().ok()?;
        let reason = error.message().into();
        let error = match kind {
            Kind::Closed => LinkError::Closed(reason),
            Kind::Refused { transient, denied } => LinkError::Refused { reason, transient, denied },
            Kind::Unusable => LinkError::Unusable(reason),
            Kind::TooLarge { bytes, limit } => LinkError::TooLarge { bytes, limit },
        };
        Some(Self { error, sent })
    }
}

/// Makes a message one line.
#[cfg_attr(not(feature = "http"), expect(dead_code, reason = "there is no relay"))]
pub(crate) fn fold(message: &mut [u8]) {
    for (plain, folded) in FOLDED {
        replace(message, plain, folded);
    }
}

/// The message that was made one line.
pub(crate) fn unfold(line: Bytes) -> Bytes {
    if memchr::memchr2(FOLDED[0].1, FOLDED[1].1, &line).is_none() {
        return line;
    }
    let mut message = BytesMut::from(line);
    for (plain, folded) in FOLDED {
        replace(&mut message, folded, plain);
    }
    message.freeze()
}

fn replace(mut message: &mut [u8], from: u8, to: u8) {
    while let Some(at) = memchr::memchr(from, message) {
        message[at] = to;
        message = &mut message[at + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BOX-1: what a relay reports of a request is what the gateway would have found by itself.
    #[test]
    fn losses_travel() {
        let reason = || "http://h/ has forgotten our session".into();
        for error in [
            LinkError::Closed(reason()),
            LinkError::Refused { reason: reason(), transient: true, denied: false },
            LinkError::Refused { reason: reason(), transient: false, denied: true },
            LinkError::Unusable(reason()),
            LinkError::TooLarge { bytes: 11, limit: 10 },
        ] {
            for sent in [false, true] {
                let loss = Loss { error: error.clone(), sent };
                assert_eq!(Loss::of(&loss.to_error()), Some(loss));
            }
        }
        assert_eq!(Loss::of(&RpcError::new(code::INTERNAL_ERROR, "no")), None);
        let other = RpcError::with_data(code::INTERNAL_ERROR, "no", &json!({"bridgehead/loss": {}}));
        assert_eq!(Loss::of(&other), None);
    }

    /// BOX-1: line breaks between the tokens of an answer survive the relay's lines.
    #[test]
    fn messages_keep_their_line_breaks() {
        let message = b"{\r\n  \"a\": [1,\n2]\r}\n";
        let mut line = message.to_vec();
        fold(&mut line);
        assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
        assert_eq!(unfold(Bytes::from(line))[..], message[..]);
        assert_eq!(unfold(Bytes::from_static(b"{}"))[..], b"{}"[..]);
    }
}
