//! JSON Schema, compiled once and checked often.
//!
//! [`Validator`] checks the arguments of calls, [`header_parameters`] reads which of them travel as HTTP
//! headers. An [`Envelope`] is the result of a call as a program gets it: its [`Content`] blocks are typed, and
//! its data is cast to the [`OutputSchema`]. The caller decides what to do with a schema that does not compile,
//! and when to check what.
//!
//! What must stay true: no `$ref` is ever fetched, and no hostile schema makes a check run away. Schemas come
//! from upstreams, so their size, nesting and the expansion of their references are bounded.

mod cast;
mod complexity;
mod content;
mod cost;
mod envelope;
mod header;
mod plain;
mod plan;
mod strict;
mod validator;

pub use cast::{Cast, CastChange, CastSource, OutputSchema};
pub use content::Content;
pub use envelope::{Envelope, Flat, Meta, ResultOrigin};
pub use header::{HeaderAnnotationError, HeaderKind, HeaderParameter, header_parameters};
pub use validator::{Effort, Issue, Unfit, Validator, without_schema};

/// Why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The text is not JSON.
    #[error("the schema is not JSON: {0}")]
    NotJson(String),
    /// The schema exceeds a bound.
    #[error("the schema has more than {limit} {what}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        limit: usize,
    },
    /// `$schema` names a dialect that is not known.
    #[error("the schema's dialect `{0}` is not known; drafts 4, 6, 7, 2019-09 and 2020-12 are")]
    UnknownDialect(String),
    /// A reference leaves the document.
    #[error("the schema refers to `{0}`, which is outside of it and is not fetched")]
    RemoteReference(String),
    /// A reference points at nothing.
    #[error("the schema refers to `{0}`, which it does not contain")]
    DanglingReference(String),
    /// A part has its own identifier, which would change the meaning of the references in it.
    #[error("the schema embeds another one with the identifier `{0}`; embedded schemas are not supported")]
    EmbeddedSchema(String),
    /// A schema refers to itself for the same value, so a check would never end.
    #[error("the schema refers to itself without descending into the value, so a check would never end")]
    Endless,
    /// The schema breaks the rules of its dialect.
    #[error("the schema is not valid at `{path}`: {message}")]
    Invalid {
        /// JSON pointer into the schema.
        path: String,
        /// What is wrong there.
        message: String,
    },
}

/// Whether the root of `schema` is an object schema, as the input schema of a tool must be: its `type` is
/// exactly `"object"`.
#[must_use]
pub fn is_object_schema(schema: &serde_json::Value) -> bool {
    schema.get("type").and_then(serde_json::Value::as_str) == Some("object")
}

/// Escapes one step of a JSON pointer.
pub(crate) fn escaped_pointer(step: &str) -> std::borrow::Cow<'_, str> {
    match step.contains(['~', '/']) {
        true => step.replace('~', "~0").replace('/', "~1").into(),
        false => step.into(),
    }
}

/// At most `limit` characters of the displayed `text`. The rest is not even formatted: a message may contain
/// megabytes that an untrusted party chose.
pub(crate) fn shortened(text: &dyn std::fmt::Display, limit: usize) -> String {
    struct Bounded {
        text: String,
        left: usize,
    }
    impl std::fmt::Write for Bounded {
        fn write_str(&mut self, more: &str) -> std::fmt::Result {
            for character in more.chars() {
                if self.left == 0 {
                    self.text.push('…');
                    return Err(std::fmt::Error);
                }
                self.text.push(character);
                self.left -= 1;
            }
            Ok(())
        }
    }
    let mut bounded = Bounded { text: String::new(), left: limit };
    // The only error is our own, at the limit.
    let _ = std::fmt::write(&mut bounded, format_args!("{text}"));
    bounded.text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// SRV-8: only a schema whose root is an object schema describes arguments.
    #[test]
    fn object_schemas_are_told_apart() {
        assert!(is_object_schema(&json!({"type": "object"})));
        for other in [
            json!({}),
            json!(true),
            json!(null),
            json!({"type": "string"}),
            json!({"type": ["object"]}),
            json!({"properties": {}}),
        ] {
            assert!(!is_object_schema(&other), "{other}");
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(shortened(&"äöü", 3), "äöü");
        assert_eq!(shortened(&"äöüß", 3), "äöü…");
    }
}
