//! The limits of a cast: its depth, its work, and values that cannot be checked at all.

use serde_json::{Map, Value, json};

use super::cast;

/// How many levels of a value are examined.
const DEEPEST: usize = 48;
/// The longest list that is filled.
const LONGEST: usize = 1_000;

/// A schema of `levels` nested objects, each with the next as its required member `n`, and `last` innermost.
fn nested_schema(levels: usize, last: Value) -> Value {
    let mut definitions = Map::new();
    for level in 0..levels {
        let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
        definitions.insert(
            level.to_string(),
            json!({"type": "object", "properties": {"n": next}, "required": ["n"]}),
        );
    }
    definitions.insert(levels.to_string(), last);
    json!({"$ref": "#/$defs/0", "$defs": definitions})
}

fn nested(levels: usize, last: Value) -> Value {
    (0..levels).fold(last, |inner, _| json!({"n": inner}))
}

/// ENV-5: a value is made only as deep as values are examined.
#[test]
fn how_deep_is_filled() {
    let made = cast(&nested_schema(DEEPEST, json!({"type": "integer"})), &json!({}));
    assert_eq!(made.value, nested(DEEPEST, json!(0)));
    assert_eq!(made.issues, []);
    let made = cast(&nested_schema(DEEPEST + 1, json!({"type": "integer"})), &json!({}));
    assert_eq!((made.value, made.changes), (json!({}), vec![]));
    assert_eq!(made.issues.len(), 1);
}

/// ENV-5: a part is mended only as deep as values are examined, and is left alone below.
#[test]
fn how_deep_is_mended() {
    let closed = json!({"type": "object", "properties": {"k": true}, "additionalProperties": false, "required": ["k"]});
    let (surplus, fine) = (json!({"k": 1, "surplus": 2}), json!({"k": 1}));
    let made = cast(&nested_schema(DEEPEST, closed.clone()), &nested(DEEPEST, surplus.clone()));
    assert_eq!(made.value, nested(DEEPEST, fine));
    assert_eq!(json!(made.changes), json!([{"op": "remove", "path": "/n".repeat(DEEPEST) + "/surplus"}]));
    assert_eq!(made.issues, []);
    let deeper = nested(DEEPEST + 1, surplus);
    let made = cast(&nested_schema(DEEPEST + 1, closed), &deeper);
    assert_eq!((made.value, made.changes), (deeper, vec![]));
    assert_eq!(made.issues.len(), 1);
}

/// ENV-5: a list is filled up to a thousand elements; one that needs more is left as it is.
#[test]
fn how_long_a_list_is_filled() {
    for (keyword, of) in [("minItems", "items"), ("minContains", "contains")] {
        let schema = |least: usize| json!({"type": "array", keyword: least, of: {"const": 7}});
        let made = cast(&schema(LONGEST), &json!([7]));
        assert_eq!((made.value, made.changes.len()), (json!(vec![7; LONGEST]), LONGEST - 1), "{keyword}");
        assert_eq!(made.issues, []);
        let made = cast(&schema(LONGEST + 1), &json!([7]));
        assert_eq!((made.value, made.changes), (json!([7]), vec![]), "{keyword}");
        assert_eq!(made.issues.len(), 1, "{keyword}");
    }
}

/// ENV-5: if the work exceeds the budget nothing is changed, not even parts that had already been mended.
#[test]
fn too_much_to_do_changes_nothing() {
    // Each level doubles the value that is needed.
    let mut definitions = Map::new();
    for level in 0..40 {
        let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
        let doubled = json!({"type": "object", "properties": {"a": next, "b": next}, "required": ["a", "b"]});
        definitions.insert(level.to_string(), doubled);
    }
    definitions.insert("40".to_owned(), json!({"type": "integer"}));
    let schema = json!({"$defs": definitions, "required": ["n", "vast"],
                        "properties": {"n": {"type": "integer"}, "vast": {"$ref": "#/$defs/0"}}});
    let raw = json!({"n": "x"});
    let made = cast(&schema, &raw);
    assert_eq!((made.value, made.changes), (raw, vec![]));
    assert_eq!(made.issues.len(), 2);
}

/// ENV-5: a value that is too deep to be checked is not touched, even if it could be mended.
#[test]
fn what_cannot_be_checked_is_not_touched() {
    // A chain of schemas for each level of the value: the check would take too much of the stack.
    let again = (0..20).fold(json!({"$ref": "#/$defs/tree"}), |inner, _| json!({"allOf": [inner]}));
    let schema = json!({"properties": {"n": {"type": "integer"}, "tree": {"$ref": "#/$defs/tree"}},
                        "$defs": {"tree": {"items": again}}});
    let tree = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let made = cast(&schema, &json!({"n": "x", "tree": tree(20)}));
    assert_eq!((&made.value["n"], made.issues.len()), (&json!(0), 0));
    let raw = json!({"n": "x", "tree": tree(100)});
    let made = cast(&schema, &raw);
    assert_eq!((made.value, made.changes), (raw, vec![]));
    assert_eq!(
        made.issues.iter().map(|issue| issue.message.as_str()).collect::<Vec<_>>(),
        ["value is nested more deeply than can be checked against this schema"]
    );
}
