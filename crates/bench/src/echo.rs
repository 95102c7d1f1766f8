//! The smallest possible MCP server: both eras, one tool that answers with its text, and a list of any length from
//! prepared bytes.
//!
//! It turns a message into an answer; `serve` does the I/O. It checks only what it needs, because it represents the
//! fastest server that a gateway could have behind it.

use bridgehead_wire::{Id, Malformed, Message, Method, Raw, Request, RpcError, code, error_response};
use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::tools;

const SERVER_INFO: &str = r#"{"name":"echo-upstream","version":"1"}"#;
const CAPABILITIES: &str = r#"{"tools":{}}"#;

/// The prepared parts of all answers.
#[derive(Debug)]
pub struct Echo {
    modern_list: Bytes,
    legacy_list: Bytes,
}

/// One answer, in parts, so that a long list is never copied.
#[derive(Debug, Default, Clone)]
pub struct Answer {
    /// What to write, in this order. All are empty if there is nothing to answer.
    pub parts: [Bytes; 3],
    /// Whether the request opened a legacy session.
    pub opens_session: bool,
}

impl Answer {
    fn of(text: BytesMut) -> Self {
        Self { parts: [text.freeze(), Bytes::new(), Bytes::new()], opens_session: false }
    }

    fn error(id: Option<&Id>, error: &RpcError) -> Self {
        let mut out = BytesMut::new();
        error_response(&mut out, id.map(Id::raw), error);
        Self::of(out)
    }
}

/// The members of `params` that are used here.
#[derive(Deserialize, Default)]
struct Params<'a> {
    name: Option<&'a str>,
    #[serde(borrow)]
    arguments: Option<Arguments<'a>>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<Meta<'a>>,
    #[serde(borrow, rename = "protocolVersion")]
    protocol_version: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
}

impl Echo {
    /// A server with the tool `echo` and `generated` others.
    pub fn new(generated: usize) -> Self {
        let tools = tools::definitions(generated);
        let modern_list = format!(
            r#"{{"resultType":"complete","ttlMs":60000,"cacheScope":"public","_meta":{{"io.modelcontextprotocol/serverInfo":{SERVER_INFO}}},"tools":{tools}}}}}"#
        );
        let legacy_list = format!(r#"{{"tools":{tools}}}}}"#);
        Self { modern_list: Bytes::from(modern_list), legacy_list: Bytes::from(legacy_list) }
    }

    /// Answers one message.
    pub fn answer(&self, text: &Bytes) -> Answer {
        match Message::parse(text) {
            Ok(Message::Request(request)) => self.request(&request),
            Ok(Message::Notification(_) | Message::Response(_)) => Answer::default(),
            Err(malformed) => {
                let Malformed { id, .. } = &malformed;
                Answer::error(id.as_ref(), &malformed.to_error())
            }
        }
    }

    fn request(&self, request: &Request) -> Answer {
        let params: Params<'_> = match request.params.as_ref().map(Raw::decode) {
            None => Params::default(),
            Some(Ok(params)) => params,
            Some(Err(_)) => {
                let error =
                    RpcError::new(code::INVALID_PARAMS, "`params` are not of a shape this server knows");
                return Answer::error(Some(&request.id), &error);
            }
        };
        let modern = params.meta.is_some_and(|meta| meta.version.is_some());
        let mut out = BytesMut::with_capacity(256);
        out.put_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.put_slice(request.id.raw().bytes());
        out.put_slice(b",\"result\":");
        match request.method {
            Method::ToolsCall if params.name == Some("echo") => {
                let text =
                    params.arguments.and_then(|arguments| arguments.text).map_or("\"\"", RawValue::get);
                out.put_slice(b"{\"content\":[{\"type\":\"text\",\"text\":");
                out.put_slice(text.as_bytes());
                out.put_slice(b"}]");
                if modern {
                    out.put_slice(
                        b",\"resultType\":\"complete\",\"_meta\":{\"io.modelcontextprotocol/serverInfo\":",
                    );
                    out.put_slice(SERVER_INFO.as_bytes());
                    out.put_u8(b'}');
                }
                out.put_slice(b"}}");
            }
            Method::ToolsList => {
                let list = if modern { &self.modern_list } else { &self.legacy_list };
                return Answer { parts: [out.freeze(), list.clone(), Bytes::new()], opens_session: false };
            }
            Method::Discover if modern => {
                out.put_slice(
                    format!(
                        r#"{{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{CAPABILITIES},"ttlMs":60000,"cacheScope":"public","_meta":{{"io.modelcontextprotocol/serverInfo":{SERVER_INFO}}}}}}}"#
                    )
                    .as_bytes(),
                );
            }
            Method::Initialize => {
                let version = params.protocol_version.map_or("\"2025-11-25\"", RawValue::get);
                out.put_slice(
                    format!(
                        r#"{{"protocolVersion":{version},"capabilities":{CAPABILITIES},"serverInfo":{SERVER_INFO}}}}}"#
                    )
                    .as_bytes(),
                );
                return Answer { opens_session: true, ..Answer::of(out) };
            }
            Method::Ping => out.put_slice(b"{}}"),
            Method::ToolsCall => {
                return Answer::error(
                    Some(&request.id),
                    &RpcError::new(code::INVALID_PARAMS, "the only tool is `echo`"),
                );
            }
            _ => {
                return Answer::error(
                    Some(&request.id),
                    &RpcError::new(code::METHOD_NOT_FOUND, "no such method"),
                );
            }
        }
        Answer::of(out)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

    fn ask(request: &str) -> (Value, bool) {
        let answer = Echo::new(3).answer(&Bytes::copy_from_slice(request.as_bytes()));
        (serde_json::from_slice(&answer.parts.concat()).unwrap(), answer.opens_session)
    }

    #[test]
    fn echoes_text_and_id_in_both_eras() {
        let legacy = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"echo","arguments":{"text":"x\ny"}}}"#;
        let (answer, _) = ask(legacy);
        assert_eq!(
            answer,
            json!({"jsonrpc": "2.0", "id": "a", "result": {"content": [{"type": "text", "text": "x\ny"}]}})
        );
        let modern = legacy.replace(r#""name""#, &format!("{META},\"name\""));
        let (answer, _) = ask(&modern);
        assert_eq!(answer["result"]["resultType"], "complete");
        assert_eq!(answer["result"]["content"][0]["text"], "x\ny");
    }

    #[test]
    fn lists_all_tools_with_the_members_of_the_era() {
        let (answer, _) = ask(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
        assert_eq!(answer["result"]["tools"].as_array().unwrap().len(), 4);
        assert_eq!(answer["result"]["ttlMs"], Value::Null);
        let (answer, _) =
            ask(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{{META}}}}}"#));
        assert_eq!(answer["result"]["tools"].as_array().unwrap().len(), 4);
        assert_eq!(answer["result"]["ttlMs"], 60000);
    }

    #[test]
    fn discover_is_modern_and_initialize_opens_a_session() {
        let (answer, opens) =
            ask(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{{{META}}}}}"#));
        assert_eq!((answer["result"]["supportedVersions"][0].as_str(), opens), (Some("2026-07-28"), false));
        let (answer, opens) = ask(
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#,
        );
        assert_eq!((answer["result"]["protocolVersion"].as_str(), opens), (Some("2025-06-18"), true));
    }

    #[test]
    fn what_it_does_not_know_is_an_error_and_a_notification_is_silent() {
        assert_eq!(ask(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#).0["error"]["code"], -32601);
        let other = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"other"}}"#;
        assert_eq!(ask(other).0["error"]["code"], -32602);
        let silent = Echo::new(0)
            .answer(&Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#));
        assert!(silent.parts.concat().is_empty());
    }
}
