//! Random schemas, shared by tests.

use proptest::prelude::*;
use serde_json::Value;

/// Keywords that hold schemas or member names, which can make a document deep and wide.
const KEYWORDS: [&str; 25] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "items",
    "prefixItems",
    "contains",
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "dependentSchemas",
    "required",
    "$ref",
    "type",
    "enum",
    "const",
    "format",
    "pattern",
    "minLength",
];

/// Anything that looks like a schema: objects of the keywords and of `more`, and lists, with these values in them, up to
/// this depth.
pub(crate) fn wild(
    more: &'static [&'static str],
    value: impl Strategy<Value = Value> + 'static,
    depth: u32,
) -> impl Strategy<Value = Value> {
    let word = prop::sample::select([&KEYWORDS[..], more].concat());
    let width = depth as usize;
    value.prop_recursive(depth, 8 * depth, depth, move |inner| {
        prop_oneof![
            4 => prop::collection::vec((word.clone(), inner.clone()), 0..width)
                .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
            1 => prop::collection::vec(inner, 0..width - 1).prop_map(Value::from),
        ]
    })
}
