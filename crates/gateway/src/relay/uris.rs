//! Resource URIs that carry their server: `bridgehead+SERVER:URI`, if `resource_uris` is `"rewrite"`.
//!
//! A URI is an identity: the prefix is added wherever a result names a resource, and removed wherever a
//! client does. URIs of apps (`ui:`) stay, because clients recognise them by their scheme. By default none of
//! this happens, and URIs pass unchanged.

use bridgehead_wire::{Object, Raw};
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::value::RawValue;

const SCHEME: &str = "bridgehead+";

/// A server's URI as clients see it.
pub(crate) fn outward(server: &str, uri: &str) -> String {
    if uri.starts_with("ui:") { uri.to_owned() } else { format!("{SCHEME}{server}:{uri}") }
}

/// The server that a client's URI names, and the server's own URI.
pub(crate) fn inward(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix(SCHEME)?.split_once(':')
}

/// A result with every resource URI as clients see it: in read contents, and in embedded resources and links
/// of tool results and prompt messages. Everything else is unchanged.
pub(crate) fn result_outward(server: &str, result: &Raw) -> Raw {
    edited(result, |result, edit| {
        if let Some(contents) = result.get("contents") {
            edit.set("contents", each(&contents, |content| with_uri(server, content)));
        }
        if let Some(content) = result.get("content") {
            edit.set("content", each(&content, |block| block_outward(server, block)));
        }
        if let Some(messages) = result.get("messages") {
            let message = |message: &Raw| {
                edited(message, |message, edit| {
                    if let Some(content) = message.get("content") {
                        edit.set("content", block_outward(server, &content));
                    }
                })
            };
            edit.set("messages", each(&messages, message));
        }
    })
}

/// The params of a notification, or an entry of a list, with its `uri` as clients see it.
pub(crate) fn with_uri(server: &str, object: &Raw) -> Raw {
    edited(object, |object, edit| {
        if let Some(uri) = object.get("uri").and_then(|uri| uri.to_text()) {
            edit.set("uri", Raw::string(&outward(server, &uri)));
        }
    })
}

/// Whether a URI has the form that only the gateway gives to URIs.
pub(crate) fn is_rewritten(uri: &str) -> bool {
    uri.starts_with(SCHEME)
}

fn block_outward(server: &str, block: &Raw) -> Raw {
    edited(block, |object, edit| match object.get("type").and_then(|kind| kind.to_text()).as_deref() {
        Some("resource_link") => {
            if let Some(uri) = object.get("uri").and_then(|uri| uri.to_text()) {
                edit.set("uri", Raw::string(&outward(server, &uri)));
            }
        }
        Some("resource") => {
            if let Some(resource) = object.get("resource") {
                edit.set("resource", with_uri(server, &resource));
            }
        }
        _ => {}
    })
}

fn edited(raw: &Raw, change: impl FnOnce(&Object, &mut bridgehead_wire::Edit<'_>)) -> Raw {
    let Ok(object) = Object::parse(raw) else { return raw.clone() };
    let mut edit = object.edit();
    change(&object, &mut edit);
    edit.finish().to_raw()
}

/// An array with each of its values changed.
fn each(array: &Raw, change: impl Fn(&Raw) -> Raw) -> Raw {
    let Ok(values) = array.decode::<Vec<&RawValue>>() else { return array.clone() };
    let mut out = BytesMut::from("[");
    for value in values {
        if out.len() > 1 {
            out.put_u8(b',');
        }
        match Raw::parse(value.get().to_owned()) {
            Ok(value) => out.put_slice(change(&value).bytes()),
            Err(_) => out.put_slice(value.get().as_bytes()),
        }
    }
    out.put_u8(b']');
    Raw::parse(Bytes::from(out)).unwrap_or_else(|_| array.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for uri in ["a://b", "file:///x:y", "urn:a:b"] {
            assert_eq!(inward(&outward("s", uri)), Some(("s", uri)));
        }
        assert_eq!(outward("s", "ui://app"), "ui://app");
        assert_eq!(inward("a://b"), None);
        assert_eq!(inward("bridgehead+s"), None);
    }

    #[test]
    fn every_place_of_a_result() {
        #[track_caller]
        fn check(result: &'static str, expected: &str) {
            assert_eq!(result_outward("s", &Raw::literal(result)).as_str(), expected);
        }
        check(
            r#"{"contents":[{"uri":"a://b","n":1.0},{"text":"x"}],"x":2.0}"#,
            r#"{"contents":[{"uri":"bridgehead+s:a://b","n":1.0},{"text":"x"}],"x":2.0}"#,
        );
        check(
            r#"{"content":[{"type":"text","uri":"a"},{"type":"resource_link","uri":"a:b"},{"type":"resource","resource":{"uri":"a:b"}},7]}"#,
            r#"{"content":[{"type":"text","uri":"a"},{"type":"resource_link","uri":"bridgehead+s:a:b"},{"type":"resource","resource":{"uri":"bridgehead+s:a:b"}},7]}"#,
        );
        check(
            r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a:b"}}}]}"#,
            r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"bridgehead+s:a:b"}}}]}"#,
        );
        check(
            r#"{"content":5,"contents":{},"messages":null}"#,
            r#"{"content":5,"contents":{},"messages":null}"#,
        );
        check("[]", "[]");
    }
}
