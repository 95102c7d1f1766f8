//! What each era adds to a request: the `_meta` and headers of the modern one, the handshake of the legacy one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::script::{LEGACY_REVISION, MODERN_REVISION};

/// Adds the `_meta` members that a modern request needs and the parameters lack.
pub fn modern_params(mut params: Value) -> Value {
    let members = params.as_object_mut().expect("parameters are an object");
    let meta = members.entry("_meta").or_insert_with(|| json!({}));
    let meta = meta.as_object_mut().expect("`_meta` is an object");
    for (key, value) in [
        ("protocolVersion", json!(MODERN_REVISION)),
        ("clientCapabilities", json!({})),
        ("clientInfo", json!({"name": "testkit", "version": "1.0.0"})),
    ] {
        meta.entry(format!("io.modelcontextprotocol/{key}")).or_insert(value);
    }
    params
}

/// The headers of a modern request, derived from its method and parameters.
pub fn modern_headers(method: &str, params: &Value) -> Vec<(&'static str, String)> {
    let mut headers =
        vec![("mcp-protocol-version", MODERN_REVISION.to_owned()), ("mcp-method", method.to_owned())];
    let name = match method {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        _ => None,
    };
    headers.extend(name.map(|name| ("mcp-name", header_value(name))));
    headers
}

/// The parameters of `initialize` for a client without capabilities.
pub fn legacy_handshake() -> Value {
    json!({
        "protocolVersion": LEGACY_REVISION,
        "capabilities": {},
        "clientInfo": {"name": "testkit", "version": "1.0.0"},
    })
}

/// A value as a header carries it: unchanged, or in base64 if a header cannot carry it.
fn header_value(text: &str) -> String {
    let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && text.trim() == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if plain { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_keeps_what_is_there() {
        let params = modern_params(json!({"name": "x", "_meta": {"progressToken": 1}}));
        assert_eq!(params["name"], "x");
        assert_eq!(params["_meta"]["progressToken"], 1);
        let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
        assert_eq!(version, MODERN_REVISION);

        let own = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}});
        let version = &modern_params(own)["_meta"]["io.modelcontextprotocol/protocolVersion"];
        assert_eq!(version, "1999-01-01");
    }

    #[test]
    fn names_that_no_header_can_carry_go_in_base64() {
        #[track_caller]
        fn check(name: &str, expected: &str) {
            let headers = modern_headers("tools/call", &json!({"name": name}));
            assert_eq!(headers[2], ("mcp-name", expected.to_owned()));
        }
        check("add", "add");
        check("a b", "a b");
        check(" a", "=?base64?IGE=?=");
        check("é", "=?base64?w6k=?=");
        check("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?=");
        assert_eq!(modern_headers("tools/list", &json!({})).len(), 2);
    }
}
