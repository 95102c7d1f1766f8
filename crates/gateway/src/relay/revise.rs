//! Adapts what a newer server says for an older client, member by member, according to the protocol's
//! revisions.
//!
//! Members that a revision does not have are removed, or replaced by text where possible. For a client whose
//! revision has everything, and wherever nothing changes, the bytes are the server's. Definitions are adapted
//! once per list; results as they pass.

use bridgehead_wire::{Object, Raw, Revision, Spliced};
use serde_json::{Value, json};

/// A tool, prompt, resource or template for the list of a client of `revision`; `None` if it needs no change.
pub(crate) fn definition(definition: &Raw, revision: Revision) -> Option<Spliced> {
    let object = Object::parse(definition).ok()?;
    let is_unknown = |name: &str| match name {
        // Tasks of 2025-11-25 are not relayed, so no client is told of them.
        "execution" => true,
        "icons" => revision < Revision::V2025_11_25,
        "title" | "_meta" => revision < Revision::V2025_06_18,
        "annotations" => revision < Revision::V2025_03_26,
        "outputSchema" => {
            revision < Revision::V2025_06_18
                || (revision < Revision::MODERN
                    && !object.get("outputSchema").is_some_and(|schema| is_of_objects(&schema)))
        }
        _ => false,
    };
    let arguments =
        object.get("arguments").filter(|_| revision < Revision::V2025_06_18).and_then(|all| untitled(&all));
    if arguments.is_none() && !object.members().any(|(name, _)| is_unknown(&name)) {
        return None;
    }
    let mut edit = object.edit();
    edit.remove_if(|name| std::str::from_utf8(name).is_ok_and(is_unknown));
    if let Some(arguments) = arguments {
        edit.set("arguments", arguments);
    }
    Some(edit.finish())
}

/// Whether a schema is for objects: before 2026-07-28 structured content had to be an object.
fn is_of_objects(schema: &Raw) -> bool {
    let kind = Object::parse(schema).ok().and_then(|schema| schema.get("type")?.to_text());
    kind.as_deref() == Some("object")
}

/// The arguments of a prompt without titles; `None` if there are none to remove.
fn untitled(arguments: &Raw) -> Option<Raw> {
    let mut arguments: Value = arguments.as_str().contains("title").then(|| arguments.decode().ok())??;
    for argument in arguments.as_array_mut()? {
        argument.as_object_mut()?.remove("title");
    }
    Some(Raw::encode(&arguments))
}

/// The changes to a result for a client of `revision`: the member and its new value, `None` to remove it. The
/// usual result for a current client costs a look at one member.
pub(crate) fn result(result: &Object, revision: Revision) -> Vec<(&'static str, Option<Raw>)> {
    let mut changes = Vec::new();
    if revision == Revision::MODERN {
        return changes;
    }
    if let Some(structured) = result.get("structuredContent")
        && (revision < Revision::V2025_06_18 || !structured.is_object())
    {
        changes.push(("structuredContent", None));
    }
    if revision < Revision::V2025_11_25 {
        let revised = |member: &'static str, revise: fn(&mut Value, Revision) -> bool| {
            let value = result.get(member).filter(|value| may_need_change(value, revision))?;
            let mut items: Value = value.decode().ok()?;
            let mut changed = false;
            for item in items.as_array_mut()? {
                changed |= revise(item, revision);
            }
            changed.then(|| (member, Some(Raw::encode(&items))))
        };
        changes.extend(revised("content", block));
        changes.extend(revised("messages", |message, revision| {
            message.get_mut("content").is_some_and(|content| block(content, revision))
        }));
        changes.extend(revised("contents", |content, revision| {
            revision < Revision::V2025_06_18
                && content.as_object_mut().is_some_and(|it| it.remove("_meta").is_some())
        }));
    }
    changes
}

/// Whether a value may contain something newer than `revision`. Most content does not, and is not decoded.
fn may_need_change(value: &Raw, revision: Revision) -> bool {
    let text = value.as_str();
    let has = |word: &str| text.contains(word);
    has("icons")
        || (revision < Revision::V2025_06_18 && (has("resource_link") || has("_meta") || has("lastModified")))
        || (revision < Revision::V2025_03_26 && has("audio"))
}

/// Converts a content block to `revision`; returns whether it changed.
fn block(block: &mut Value, revision: Revision) -> bool {
    let Some(object) = block.as_object_mut() else { return false };
    let kind = object.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let text = |object: &serde_json::Map<String, Value>, name: &str| {
        object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    if kind == "resource_link" && revision < Revision::V2025_06_18 {
        let (uri, name) = (text(object, "uri"), text(object, "name"));
        let words = if name.is_empty() { uri } else { format!("{name}: {uri}") };
        *block = json!({"type": "text", "text": words});
        return true;
    }
    if kind == "audio" && revision < Revision::V2025_03_26 {
        let words =
            format!("[audio, {}, omitted: this client's protocol has no audio]", text(object, "mimeType"));
        *block = json!({"type": "text", "text": words});
        return true;
    }
    let mut changed = object.remove("icons").is_some();
    if revision < Revision::V2025_06_18 {
        changed |= object.remove("_meta").is_some();
        if let Some(annotations) = object.get_mut("annotations").and_then(Value::as_object_mut) {
            changed |= annotations.remove("lastModified").is_some();
        }
        if let Some(resource) = object.get_mut("resource").and_then(Value::as_object_mut) {
            changed |= resource.remove("_meta").is_some();
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    const MODERN: Revision = Revision::MODERN;
    use Revision::{V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25};

    fn listed(text: &'static str, revision: Revision) -> String {
        let raw = Raw::literal(text);
        definition(&raw, revision)
            .map_or_else(|| text.to_owned(), |revised| revised.to_raw().as_str().to_owned())
    }

    /// ERA-4: what a definition may hold in each revision.
    #[test]
    fn definitions_by_revision() {
        const TOOL: &str = r#"{"name":"t", "title":"T","icons":[],"_meta":{"a/b":1.0},"annotations":{"readOnlyHint":true},"outputSchema":{"type":"object"},"execution":{},"x":1.50}"#;
        for (revision, expected) in [
            (
                MODERN,
                r#"{"name":"t", "title":"T","icons":[],"_meta":{"a/b":1.0},"annotations":{"readOnlyHint":true},"outputSchema":{"type":"object"},"x":1.50}"#,
            ),
            (
                V2025_11_25,
                r#"{"name":"t", "title":"T","icons":[],"_meta":{"a/b":1.0},"annotations":{"readOnlyHint":true},"outputSchema":{"type":"object"},"x":1.50}"#,
            ),
            (
                V2025_06_18,
                r#"{"name":"t", "title":"T","_meta":{"a/b":1.0},"annotations":{"readOnlyHint":true},"outputSchema":{"type":"object"},"x":1.50}"#,
            ),
            (V2025_03_26, r#"{"name":"t","annotations":{"readOnlyHint":true},"x":1.50}"#),
            (V2024_11_05, r#"{"name":"t","x":1.50}"#),
        ] {
            assert_eq!(listed(TOOL, revision), expected, "{revision}");
        }
        for revision in Revision::ALL {
            assert!(definition(&Raw::literal(r#"{"name":"t","inputSchema":{}}"#), revision).is_none());
        }
        let any = r#"{"name":"t","outputSchema":{"type":["integer"]}}"#;
        assert_eq!(listed(any, MODERN), any);
        assert_eq!(listed(any, V2025_11_25), r#"{"name":"t"}"#, "its result is not always an object");
        let prompt = r#"{"name":"p","arguments":[{"name":"a","title":"A"}]}"#;
        assert_eq!(listed(prompt, V2025_03_26), r#"{"name":"p","arguments":[{"name":"a"}]}"#);
        assert_eq!(listed(prompt, V2025_06_18), prompt);
    }

    fn changed(text: &'static str, revision: Revision) -> Value {
        let raw = Raw::literal(text);
        let object = Object::parse(&raw).unwrap();
        let mut value: Value = raw.decode().unwrap();
        for (member, change) in result(&object, revision) {
            match change {
                Some(change) => value[member] = change.decode().unwrap(),
                None => drop(value.as_object_mut().unwrap().remove(member)),
            }
        }
        value
    }

    /// ERA-4: what a result may contain in each revision; the rest is replaced by text or removed.
    #[test]
    fn results_by_revision() {
        const RESULT: &str = r#"{"content":[{"type":"text","text":"t","_meta":{}},{"type":"audio","data":"","mimeType":"audio/wav"},{"type":"resource_link","uri":"file:///a","name":"n","icons":[]}],"structuredContent":{"a":1}}"#;
        let whole: Value = serde_json::from_str(RESULT).unwrap();
        assert_eq!(changed(RESULT, MODERN), whole);
        assert_eq!(changed(RESULT, V2025_11_25), whole);
        let june = changed(RESULT, V2025_06_18);
        assert!(june["content"][2].get("icons").is_none() && june["structuredContent"]["a"] == 1, "{june}");
        let march = changed(RESULT, V2025_03_26);
        assert_eq!(march["content"][0], json!({"type": "text", "text": "t"}));
        assert_eq!(march["content"][1]["type"], "audio");
        assert_eq!(march["content"][2], json!({"type": "text", "text": "n: file:///a"}));
        assert!(march.get("structuredContent").is_none());
        let first = changed(RESULT, V2024_11_05);
        assert!(first["content"][1]["text"].as_str().unwrap().contains("audio/wav"), "{first}");

        for falsy in
            [r#"{"structuredContent":0}"#, r#"{"structuredContent":null}"#, r#"{"structuredContent":[1]}"#]
        {
            assert_eq!(changed(falsy, V2025_11_25), json!({}), "{falsy}");
            assert_ne!(changed(falsy, MODERN), json!({}));
        }
        let prompt = r#"{"messages":[{"role":"user","content":{"type":"audio","mimeType":"a/b"}}]}"#;
        assert_eq!(changed(prompt, V2024_11_05)["messages"][0]["content"]["type"], "text");
        let read = r#"{"contents":[{"uri":"a:b","text":"t","_meta":{}}]}"#;
        assert_eq!(changed(read, V2025_03_26), json!({"contents": [{"uri": "a:b", "text": "t"}]}));
        assert_eq!(
            changed(r#"{"content":7,"messages":{}}"#, V2024_11_05),
            json!({"content": 7, "messages": {}})
        );
    }
}
