//! Recognizes plain schemas: those that are valid at first sight and need no check against the meta-schema.
//!
//! Checking a schema against the meta-schema of its dialect requires compiling the meta-schema, which takes longer
//! than everything else at the start of a gateway. Nearly all tools describe their arguments with a handful of
//! keywords whose rules are the same in every dialect since draft 6. This module recognizes those; a schema with
//! anything else is not plain and gets the full check.
//!
//! What must stay true: a plain schema compiles.

use serde_json::{Map, Value};

/// The dialects whose rules for the keywords below are the same.
const DIALECTS: [&str; 4] = [
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
];

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Whether `schema` is plain.
pub(crate) fn is_plain(schema: &Value) -> bool {
    let dialect = |dialect: &Value| {
        dialect
            .as_str()
            .is_some_and(|dialect| DIALECTS.contains(&dialect.strip_suffix('#').unwrap_or(dialect)))
    };
    match schema {
        Value::Object(members) => members
            .iter()
            .all(|(keyword, value)| if keyword == "$schema" { dialect(value) } else { fits(keyword, value) }),
        other => other.is_boolean(),
    }
}

fn is_part(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.iter().all(|(keyword, value)| fits(keyword, value)),
        other => other.is_boolean(),
    }
}

fn fits(keyword: &str, value: &Value) -> bool {
    match keyword {
        "type" => match value {
            Value::Array(several) => {
                !several.is_empty() && several.iter().all(is_type) && all_differ(several)
            }
            one => is_type(one),
        },
        "properties" => value.as_object().is_some_and(|parts: &Map<_, _>| parts.values().all(is_part)),
        "required" => {
            value.as_array().is_some_and(|names| names.iter().all(Value::is_string) && all_differ(names))
        }
        "items" | "additionalProperties" | "not" => is_part(value),
        "allOf" | "anyOf" | "oneOf" => {
            value.as_array().is_some_and(|parts| !parts.is_empty() && parts.iter().all(is_part))
        }
        "enum" => value.as_array().is_some_and(|values| !values.is_empty() && all_differ(values)),
        "title" | "description" | "$comment" | "format" => value.is_string(),
        "const" | "default" => true,
        "examples" => value.is_array(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            value.is_u64()
        }
        "uniqueItems" | "readOnly" | "writeOnly" | "deprecated" => value.is_boolean(),
        // By convention no dialect defines such a keyword.
        other => other.starts_with("x-"),
    }
}

fn is_type(value: &Value) -> bool {
    value.as_str().is_some_and(|name| TYPES.contains(&name))
}

/// Compares each value with each, which is cheap for so few; a longer list makes the schema not plain.
fn all_differ(values: &[Value]) -> bool {
    values.len() <= 64 && values.iter().enumerate().all(|(at, value)| !values[..at].contains(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::validator::options;

    /// Keywords with values that may or may not be valid for them.
    fn nearly_a_schema() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec!["object", "string", "array", "a", "b", "x-a"]);
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (-1..3_i64).prop_map(Value::from),
            word.clone().prop_map(Value::from),
            prop::collection::vec(word.prop_map(Value::from), 0..3).prop_map(Value::from),
            prop::sample::select(&DIALECTS[..]).prop_map(|dialect| json!({"$schema": dialect})),
        ];
        let keyword = prop::sample::select(vec![
            "type",
            "properties",
            "required",
            "items",
            "additionalProperties",
            "not",
            "allOf",
            "anyOf",
            "oneOf",
            "enum",
            "title",
            "format",
            "const",
            "default",
            "examples",
            "minimum",
            "exclusiveMaximum",
            "minLength",
            "maxItems",
            "uniqueItems",
            "readOnly",
            "deprecated",
            "x-a",
            "$ref",
            "pattern",
            "a",
        ]);
        leaf.prop_recursive(4, 48, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(Value::from),
                prop::collection::hash_map(keyword.clone(), inner, 1..4).prop_map(|members| json!(members)),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_plain_schema_compiles(schema in nearly_a_schema()) {
            if is_plain(&schema) {
                let built = options().build(&schema);
                prop_assert!(built.is_ok(), "{}: {:?}", schema, built.err());
            }
        }
    }

    #[test]
    fn what_tools_usually_write_is_plain() {
        for schema in [
            json!(true),
            json!({}),
            json!({"type": "object"}),
            json!({
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "where", "minLength": 1},
                    "mode": {"enum": ["a", "b"], "default": "a"},
                    "many": {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0}},
                    "either": {"anyOf": [{"type": "string"}, {"const": 1}], "x-mcp-header": "Either"},
                },
                "required": ["path"],
                "additionalProperties": false,
            }),
        ] {
            assert!(is_plain(&schema), "{schema}");
        }
    }

    #[test]
    fn what_needs_a_closer_look_is_not() {
        for schema in [
            json!("object"),
            json!({"type": "file"}),
            json!({"type": []}),
            json!({"type": ["string", "string"]}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
            json!({"$schema": "https://example.com/dialect"}),
            json!({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}),
            json!({"properties": {"a": {"$ref": "#/$defs/a"}}}),
            json!({"properties": {"a": {"pattern": "("}}}),
            json!({"properties": ["a"]}),
            json!({"required": "a"}),
            json!({"required": ["a", "a"]}),
            json!({"items": [{}]}),
            json!({"minLength": -1}),
            json!({"minimum": "1"}),
            json!({"anyOf": []}),
            json!({"enum": "a"}),
            json!({"surprise": 1}),
        ] {
            assert!(!is_plain(&schema), "{schema}");
        }
    }
}
