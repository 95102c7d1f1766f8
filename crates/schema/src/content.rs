//! The blocks of a tool result as types, for programs that match on them.
//!
//! Nothing is dropped: extra members of a block stay in `more`. A block of an unknown kind, or one that lacks
//! required members, becomes a text block with its JSON. Code that only relays a result must not use this: it
//! relays blocks byte for byte.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One block of a tool result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    /// A text.
    Text {
        /// Its text.
        text: String,
        /// Annotations and other members.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// A picture.
    Image {
        /// Its bytes in base64.
        data: String,
        /// Their media type.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Annotations and other members.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// A recording.
    Audio {
        /// Its bytes in base64.
        data: String,
        /// Their media type.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Annotations and other members.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// A resource, with its content.
    Resource {
        /// Its URI and its text or bytes.
        resource: Map<String, Value>,
        /// Annotations and other members.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// A link to a resource.
    ResourceLink {
        /// Its URI.
        uri: String,
        /// Its name.
        name: String,
        /// Annotations and other members.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
}

impl Content {
    /// Reads a block as one of the kinds.
    #[must_use]
    pub fn of(block: &Value) -> Self {
        Self::deserialize(block).unwrap_or_else(|_| Self::Text { text: block.to_string(), more: Map::new() })
    }

    /// All blocks of a result. A `content` that is not a list counts as one block; a missing one has no blocks.
    #[must_use]
    pub fn all(content: Option<&Value>) -> Vec<Self> {
        match content {
            None => Vec::new(),
            Some(Value::Array(blocks)) => blocks.iter().map(Self::of).collect(),
            Some(other) => vec![Self::of(other)],
        }
    }

    /// The text of a text block.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// ENV-7: the five kinds are recognized, and keep their extra members.
    #[test]
    fn the_kinds_of_blocks() {
        #[track_caller]
        fn check(block: &Value, expected: fn(&Content) -> bool) {
            let content = Content::of(block);
            assert!(expected(&content), "{content:?}");
            assert_eq!(&serde_json::to_value(&content).unwrap(), block, "nothing is dropped");
        }
        let text =
            json!({"type": "text", "text": "a", "annotations": {"audience": ["user"]}, "_meta": {"x/y": 1}});
        check(&text, |content| matches!(content, Content::Text { text, .. } if text == "a"));
        let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png", "future": null});
        check(
            &image,
            |content| matches!(content, Content::Image { mime_type, .. } if mime_type == "image/png"),
        );
        let audio = json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"});
        check(&audio, |content| matches!(content, Content::Audio { data, .. } if data == "AA=="));
        let resource = json!({"type": "resource", "resource": {"uri": "file:///a", "blob": "AA=="}});
        check(
            &resource,
            |content| matches!(content, Content::Resource { resource, .. } if resource["uri"] == "file:///a"),
        );
        let link = json!({"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3});
        check(&link, |content| matches!(content, Content::ResourceLink { more, .. } if more["size"] == 3));
    }

    /// ENV-7: any other block becomes a text with its JSON.
    #[test]
    fn unknown_blocks_become_text() {
        for block in [
            json!({"type": "future_block", "x": [1, {"y": null}]}),
            json!({"type": "image", "data": "AA=="}),
            json!({"type": "text", "text": 5}),
            json!({"text": "no type"}),
            json!({"type": 5}),
            json!("bare"),
            json!(null),
        ] {
            let Content::Text { text, more } = Content::of(&block) else { panic!("{block}") };
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), block);
            assert!(more.is_empty());
        }
        assert_eq!(Content::all(None), []);
        assert_eq!(Content::all(Some(&json!({"type": "text", "text": "one"})))[0].as_text(), Some("one"));
        assert_eq!(Content::all(Some(&json!(7)))[0].as_text(), Some("7"));
    }
}
