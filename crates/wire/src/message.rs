//! One JSON-RPC message, its members left as slices of the line or body it came in.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

use crate::raw::text_of;
use crate::{Method, Raw, RpcError, code, too_deep};

/// A request id: a string or an integer, echoed byte for byte.
#[derive(Clone, PartialEq, Eq)]
pub struct Id(Raw);

impl Id {
    /// Accepts a string or an integer token.
    pub fn new(raw: Raw) -> Option<Self> {
        let is_id = match raw.bytes().first()? {
            b'"' => true,
            b'-' | b'0'..=b'9' => raw.bytes().iter().all(|byte| matches!(byte, b'-' | b'0'..=b'9')),
            _ => false,
        };
        is_id.then_some(Self(raw))
    }

    /// The token as it came.
    pub const fn raw(&self) -> &Raw {
        &self.0
    }

    /// The number, if it is one that fits: our own ids always do.
    pub fn as_u64(&self) -> Option<u64> {
        self.0.as_str().parse().ok()
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self(Raw::encode(&number))
    }
}

impl std::hash::Hash for Id {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // The bytes without their length: an id is always the whole key, so a length would add nothing.
        state.write(self.0.bytes());
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

/// A request: it wants an answer.
#[derive(Debug, Clone)]
pub struct Request {
    /// What the answer must echo.
    pub id: Id,
    /// The method that is called.
    pub method: Method,
    /// An object or an array, if present.
    pub params: Option<Raw>,
}

/// A notification: nobody answers it.
#[derive(Debug, Clone)]
pub struct Notification {
    /// The method that it names.
    pub method: Method,
    /// An object or an array, if present.
    pub params: Option<Raw>,
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub struct Response {
    /// The id of the request; absent where the peer could not read it.
    pub id: Option<Id>,
    /// The result, or the error.
    pub outcome: Result<Raw, RpcError>,
}

/// Any single message.
#[derive(Debug, Clone)]
pub enum Message {
    /// A message that is answered.
    Request(Request),
    /// A message that nobody answers.
    Notification(Notification),
    /// An answer.
    Response(Response),
}

/// What a line or body holds.
#[derive(Debug)]
pub enum Incoming {
    /// One message.
    Single(Message),
    /// A JSON array of messages, each judged by itself. Only one revision allows it: the caller decides.
    Batch(Vec<Result<Message, Malformed>>),
}

/// Why a text is not a message, with the id to answer to where one could be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Malformed {
    /// The id of the offending message.
    pub id: Option<Id>,
    /// [`code::PARSE_ERROR`] or [`code::INVALID_REQUEST`].
    pub code: i64,
    /// What is wrong; it quotes no part of the text.
    pub reason: String,
}

impl Malformed {
    fn parse(error: &serde_json::Error) -> Self {
        // The decoder's own message may quote the text; its position is enough to find the place.
        let reason = format!("not valid JSON at line {}, column {}", error.line(), error.column());
        Self { id: None, code: code::PARSE_ERROR, reason }
    }

    fn request(id: Option<Id>, reason: impl Into<String>) -> Self {
        Self { id, code: code::INVALID_REQUEST, reason: reason.into() }
    }

    /// The error to answer with.
    pub fn to_error(&self) -> RpcError {
        RpcError::new(self.code, &self.reason)
    }
}

impl Incoming {
    /// Reads one line or body.
    pub fn parse(text: &Bytes) -> Result<Self, Malformed> {
        if too_deep(text) {
            let reason = format!("the message nests deeper than {} levels", crate::MAX_DEPTH);
            return Err(Malformed::request(None, reason));
        }
        if text.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
            return Message::read(text).map(Self::Single);
        }
        let items: Vec<&RawValue> = serde_json::from_slice(text).map_err(|error| Malformed::parse(&error))?;
        if items.is_empty() {
            return Err(Malformed::request(None, "the batch is empty"));
        }
        Ok(Self::Batch(
            items.into_iter().map(|item| Message::read(Raw::within(text, item).bytes())).collect(),
        ))
    }
}

impl Message {
    /// Reads a text that must hold one message.
    pub fn parse(text: &Bytes) -> Result<Self, Malformed> {
        match Incoming::parse(text)? {
            Incoming::Single(message) => Ok(message),
            Incoming::Batch(_) => Err(Malformed::request(None, "a batch is not allowed here")),
        }
    }

    fn read(text: &Bytes) -> Result<Self, Malformed> {
        // UTF-8 is checked once for the whole text; for invalid UTF-8 the decoder produces the error.
        let members = match std::str::from_utf8(text) {
            Ok(text) => serde_json::from_str(text),
            Err(_) => serde_json::from_slice(text),
        };
        let members: Members<'_> = match members {
            Ok(members) => members,
            // `is_data` means well-formed JSON of another shape: not an object, or with a member twice.
            Err(error) if error.is_data() => {
                return Err(Malformed::request(
                    None,
                    "not a JSON-RPC message object, or a member appears twice",
                ));
            }
            Err(error) => return Err(Malformed::parse(&error)),
        };
        let slice = |value: &RawValue| Raw::within(text, value);
        let id_text = members.id.map(slice);
        let id_is_null = id_text.as_ref().is_some_and(Raw::is_null);
        let id = id_text.clone().and_then(Id::new);
        if members.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(Malformed::request(id, "`jsonrpc` must be \"2.0\""));
        }
        if id_text.is_some() && id.is_none() && !id_is_null {
            return Err(Malformed::request(None, "`id` must be a string or an integer"));
        }
        if let Some(method) = members.method {
            let Some(method) = text_of(method.get()) else {
                return Err(Malformed::request(id, "`method` must be a string"));
            };
            let method = Method::from(&*method);
            let params = members.params.map(slice);
            if params.as_ref().is_some_and(|params| !matches!(params.bytes().first(), Some(b'{' | b'['))) {
                return Err(Malformed::request(id, "`params` must be an object or an array"));
            }
            return match id {
                Some(id) => Ok(Self::Request(Request { id, method, params })),
                None if id_is_null => Err(Malformed::request(None, "a request's `id` must not be null")),
                None => Ok(Self::Notification(Notification { method, params })),
            };
        }
        let outcome = match (members.result, members.error) {
            (Some(result), None) if id.is_some() => Ok(slice(result)),
            (None, Some(error)) => Err(RpcError::relayed(slice(error))),
            _ => return Err(Malformed::request(id, "it must have one of `method`, `result` and `error`")),
        };
        Ok(Self::Response(Response { id, outcome }))
    }
}

/// The members of a message, still borrowed. Deserialized by hand, because `Option<&RawValue>` reads a
/// present `null` as absent, and a result may be null.
#[derive(Default)]
struct Members<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    #[serde(other)]
    Unknown,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON-RPC message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Members::default();
                while let Some(key) = map.next_key()? {
                    let place = match key {
                        Key::Jsonrpc => &mut members.jsonrpc,
                        Key::Id => &mut members.id,
                        Key::Method => &mut members.method,
                        Key::Params => &mut members.params,
                        Key::Result => &mut members.result,
                        Key::Error => &mut members.error,
                        Key::Unknown => {
                            map.next_value::<de::IgnoredAny>()?;
                            continue;
                        }
                    };
                    if place.replace(map.next_value()?).is_some() {
                        return Err(de::Error::custom("a member appears twice"));
                    }
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Message, Malformed> {
        Message::parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[track_caller]
    fn refused(text: &[u8], code: i64, id: Option<&str>) {
        let error = Message::parse(&Bytes::copy_from_slice(text)).unwrap_err();
        assert_eq!((error.code, error.id.as_ref().map(|id| id.raw().as_str())), (code, id), "{error}");
    }

    #[test]
    fn the_three_kinds() {
        let Ok(Message::Request(request)) =
            read(r#" {"id" : "a\u0062" ,"method":"tools/call","jsonrpc":"2.0","params":{"x": 1.0}}"#)
        else {
            panic!("a request")
        };
        assert_eq!(request.id.raw().as_str(), r#""a\u0062""#, "the id token is kept byte for byte");
        assert_eq!(request.method, Method::ToolsCall);
        assert_eq!(request.params.unwrap().as_str(), r#"{"x": 1.0}"#);
        assert!(matches!(read(r#"{"jsonrpc":"2.0","method":"x"}"#), Ok(Message::Notification(_))));
        let Ok(Message::Response(response)) = read(r#"{"jsonrpc":"2.0","id":1,"result":null}"#) else {
            panic!("a response")
        };
        assert!(response.outcome.unwrap().is_null());
        assert!(matches!(
            read(r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}"#),
            Ok(Message::Response(Response { id: None, outcome: Err(_) }))
        ));
    }

    #[test]
    fn bad_input_gets_the_exact_code_and_the_id_where_it_can_be_read() {
        refused(b"", code::PARSE_ERROR, None);
        refused(b"{\"jsonrpc\":", code::PARSE_ERROR, None);
        refused(b"\xff\xfe", code::PARSE_ERROR, None);
        refused(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", code::PARSE_ERROR, None);
        refused(b"7", code::INVALID_REQUEST, None);
        refused(b"[]", code::INVALID_REQUEST, None);
        refused(br#"{"jsonrpc":"1.0","id":3,"method":"x"}"#, code::INVALID_REQUEST, Some("3"));
        refused(br#"{"id":3,"method":"x"}"#, code::INVALID_REQUEST, Some("3"));
        refused(br#"{"jsonrpc":"2.0","id":3}"#, code::INVALID_REQUEST, Some("3"));
        refused(br#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, code::INVALID_REQUEST, None);
        refused(br#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, code::INVALID_REQUEST, None);
        refused(br#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, code::INVALID_REQUEST, None);
        refused(br#"{"jsonrpc":"2.0","id":1,"method":5}"#, code::INVALID_REQUEST, Some("1"));
        refused(br#"{"jsonrpc":"2.0","id":1,"method":"x","params":5}"#, code::INVALID_REQUEST, Some("1"));
        refused(br#"{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}"#, code::INVALID_REQUEST, None);
        refused(br#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, code::INVALID_REQUEST, Some("1"));
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}{}}}"#,
            "[".repeat(20_000),
            "]".repeat(20_000)
        );
        refused(deep.as_bytes(), code::INVALID_REQUEST, None);
    }

    #[test]
    fn a_batch_judges_each_message_by_itself() {
        let text = Bytes::from_static(br#" [{"jsonrpc":"2.0","id":1,"method":"ping"}, 5]"#);
        let Ok(Incoming::Batch(items)) = Incoming::parse(&text) else { panic!("a batch") };
        assert!(matches!(items[0], Ok(Message::Request(_))));
        assert_eq!(items[1].as_ref().unwrap_err().code, code::INVALID_REQUEST);
    }
}
