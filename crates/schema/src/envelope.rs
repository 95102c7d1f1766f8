//! The result of a call to a server as a program gets it: the data, and everything that is known about it.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{CastChange, Content, Issue, OutputSchema};

/// Where a result comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultOrigin {
    /// The server.
    pub server: String,
    /// The tool, by the name that the server gives it.
    pub tool: String,
    /// The id of the call.
    pub correlation_id: String,
    /// How long it took.
    pub latency: Duration,
}

/// The result of one call to a server. A tool that returns `isError` has answered: its answer is data too.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Envelope {
    /// The structured content if there is any, even `null`; else the blocks.
    pub data: Value,
    /// What is known about it.
    pub meta: Meta,
}

/// What is known about a result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// Whether the tool marks its answer as an error.
    pub is_error: bool,
    /// The blocks.
    pub content: Vec<Content>,
    /// The original structured content, also if `data` was cast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Value>,
    /// The original `_meta` of the result.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
    /// The server.
    pub server: String,
    /// The tool.
    pub tool: String,
    /// The id of the call.
    pub correlation_id: String,
    /// How long it took, in whole milliseconds.
    pub latency_ms: u64,
    /// The changes that made `data` fit its schema, as a JSON Patch on `structured_content`; empty if it fitted.
    pub cast: Vec<CastChange>,
    /// The issues that `data` still has after the cast.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<Issue>,
}

/// A result for agents: one text, and the rest beside it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flat {
    /// Whether the tool succeeded.
    pub ok: bool,
    /// The texts, joined by line feeds.
    pub result: String,
    /// How long it took, in whole milliseconds.
    pub latency_ms: u64,
    /// `"mcp"`.
    pub kind: &'static str,
    /// The server.
    pub namespace: String,
    /// Everything that is not plain text, if present: other blocks as `content`, `structuredContent`, `_meta`.
    pub extras: Map<String, Value>,
}

impl Envelope {
    /// The envelope of an original tool result, without a cast.
    #[must_use]
    pub fn new(result: &Map<String, Value>, origin: ResultOrigin) -> Self {
        let content = Content::all(result.get("content"));
        let structured_content = result.get("structuredContent").cloned();
        let data = structured_content.clone().unwrap_or_else(|| json!(content));
        Self {
            data,
            meta: Meta {
                is_error: result.get("isError") == Some(&Value::Bool(true)),
                content,
                structured_content,
                meta: result.get("_meta").cloned(),
                server: origin.server,
                tool: origin.tool,
                correlation_id: origin.correlation_id,
                latency_ms: u64::try_from(origin.latency.as_millis()).unwrap_or(u64::MAX),
                cast: Vec::new(),
                issues: Vec::new(),
            },
        }
    }

    /// Casts `data` to the tool's output schema. Blocks and error results are left alone.
    #[must_use]
    pub fn cast(mut self, schema: &OutputSchema) -> Self {
        if let (Some(raw), false) = (&self.meta.structured_content, self.meta.is_error) {
            let cast = schema.cast(raw);
            (self.data, self.meta.cast, self.meta.issues) = (cast.value, cast.changes, cast.issues);
        }
        self
    }

    /// The form for agents.
    #[must_use]
    pub fn flat(&self) -> Flat {
        let meta = &self.meta;
        let plain = |content: &&Content| matches!(content, Content::Text { more, .. } if more.is_empty());
        let texts: Vec<&str> = meta.content.iter().filter_map(Content::as_text).collect();
        let others: Vec<&Content> = meta.content.iter().filter(|content| !plain(content)).collect();
        let mut extras = Map::new();
        if !others.is_empty() {
            extras.insert("content".to_owned(), json!(others));
        }
        if let Some(structured) = &meta.structured_content {
            extras.insert("structuredContent".to_owned(), structured.clone());
        }
        if let Some(meta) = &meta.meta {
            extras.insert("_meta".to_owned(), meta.clone());
        }
        Flat {
            ok: !meta.is_error,
            result: texts.join("\n"),
            latency_ms: meta.latency_ms,
            kind: "mcp",
            namespace: meta.server.clone(),
            extras,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(result: &Value) -> Envelope {
        let origin = ResultOrigin {
            server: "demo".to_owned(),
            tool: "add".to_owned(),
            correlation_id: "id".to_owned(),
            latency: Duration::from_micros(12_900),
        };
        Envelope::new(result.as_object().unwrap(), origin)
    }

    /// ENV-2: an envelope has the data, and all that is known about it.
    #[test]
    fn an_envelope_has_data_and_meta() {
        let result = json!({"content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3}, "_meta": {"x/y": 1}});
        assert_eq!(
            json!(envelope(&result)),
            json!({"data": {"sum": 3}, "meta": {
                "isError": false, "content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3},
                "_meta": {"x/y": 1}, "server": "demo", "tool": "add", "correlationId": "id", "latencyMs": 12, "cast": [],
            }})
        );
        assert!(!envelope(&json!({})).meta.is_error);
        assert!(!envelope(&json!({"isError": "true"})).meta.is_error);
        assert!(envelope(&json!({"isError": true})).meta.is_error);
    }

    /// ENV-3: structured content is the data whenever its key is present, whatever its value; else the blocks are.
    #[test]
    fn where_data_comes_from() {
        let blocks = json!([{"type": "text", "text": "a"}, {"type": "future"}]);
        for structured in [json!(null), json!(false), json!(0), json!(""), json!([]), json!({"a": 1})] {
            let made = envelope(&json!({"content": blocks, "structuredContent": structured}));
            assert_eq!(made.data, structured);
            assert_eq!(made.meta.structured_content, Some(structured));
        }
        let made = envelope(&json!({"content": blocks}));
        assert_eq!(
            made.data,
            json!([{"type": "text", "text": "a"}, {"type": "text", "text": r#"{"type":"future"}"#}])
        );
        assert_eq!(made.meta.structured_content, None);
        assert_eq!(envelope(&json!({})).data, json!([]));
    }

    /// ENV-5: structured content is cast, and its raw form stays; error results and blocks are not cast.
    #[test]
    fn what_is_cast() {
        let schema = OutputSchema::compile(
            r#"{"type":"object","properties":{"n":{"type":"integer","default":7}},"required":["n"]}"#,
        );
        let schema = schema.unwrap();
        let raw = json!({"n": "x"});
        let made = envelope(&json!({"structuredContent": raw})).cast(&schema);
        assert_eq!((made.data, made.meta.structured_content), (json!({"n": 7}), Some(raw.clone())));
        assert_eq!(
            json!(made.meta.cast),
            json!([{"op": "replace", "path": "/n", "value": 7, "source": "default"}])
        );
        assert_eq!(made.meta.issues, []);

        let failed = envelope(&json!({"structuredContent": raw, "isError": true})).cast(&schema);
        assert_eq!((failed.data, failed.meta.cast), (raw, vec![]));
        let blocks = envelope(&json!({"content": [{"type": "text", "text": "a"}]})).cast(&schema);
        assert_eq!((blocks.data, blocks.meta.cast), (json!([{"type": "text", "text": "a"}]), vec![]));
    }

    /// ENV-8: texts are joined, the rest is beside them, and a tool error is not `ok`.
    #[test]
    fn the_form_for_agents() {
        let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
        let marked = json!({"type": "text", "text": "b", "annotations": {"priority": 1}});
        let result = json!({"content": [{"type": "text", "text": "a"}, image, marked, {"type": "future"}],
                            "structuredContent": null, "_meta": {"x/y": 1}});
        assert_eq!(
            json!(envelope(&result).flat()),
            json!({"ok": true, "result": "a\nb\n{\"type\":\"future\"}", "latencyMs": 12, "kind": "mcp", "namespace": "demo",
                   "extras": {"content": [image, marked], "structuredContent": null, "_meta": {"x/y": 1}}})
        );
        let failed =
            envelope(&json!({"content": [{"type": "text", "text": "no such file"}], "isError": true})).flat();
        assert!(!failed.ok);
        assert_eq!((failed.result.as_str(), failed.extras.len()), ("no such file", 0));
    }
}
