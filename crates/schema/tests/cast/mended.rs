//! Which parts stay and which are removed when a value is mended from within.

use bridgehead_schema::OutputSchema;
use serde_json::{Value, json};

use super::cast;

/// A text that the cast never finds.
fn hard() -> Value {
    json!({"type": "string", "pattern": "^[0-9]{4}-[a-z]+$"})
}

/// Checks what `raw` becomes, by which changes (`op` and path), and the paths of the issues that are left.
#[track_caller]
fn check(schema: &Value, raw: &Value, expected: &Value, changes: &[&str], unfit: &[&str]) {
    let made = cast(schema, raw);
    let operation = |change: &Value| format!("{} {}", change["op"], change["path"]).replace('"', "");
    let told: Vec<_> = made.changes.iter().map(|change| operation(&json!(change))).collect();
    assert_eq!(&made.value, expected, "{told:?}");
    assert_eq!(told, changes);
    assert_eq!(made.issues.iter().map(|issue| issue.instance_path.as_str()).collect::<Vec<_>>(), unfit);
}

/// ENV-5: an element that cannot be mended is removed, unless it has a meaning by its position.
#[test]
fn elements() {
    check(
        &json!({"type": "array", "items": hard()}),
        &json!(["1234-a", 5, 6, "0000-b"]),
        &json!(["1234-a", "0000-b"]),
        &["remove /1", "remove /1"],
        &[],
    );
    let raw = json!([1, 5, 6, "1234-a"]);
    let (expected, changes, unfit) = (json!([1, 5, "1234-a"]), ["remove /2"], ["/1"]);
    check(
        &json!({"type": "array", "minItems": 2, "prefixItems": [{"type": "integer"}, hard()], "items": hard()}),
        &raw,
        &expected,
        &changes,
        &unfit,
    );
    let older = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "minItems": 2,
                       "items": [{"type": "integer"}, hard()], "additionalItems": hard()});
    check(&older, &raw, &expected, &changes, &unfit);
    check(
        &json!({"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}, "minContains": 2}),
        &json!([1, 7, "x"]),
        &json!([1, 7, 0, 7]),
        &["replace /2", "add /3"],
        &[],
    );
    check(
        &json!({"type": "array", "prefixItems": [true], "unevaluatedItems": false, "minItems": 1}),
        &json!([1, 2, 3]),
        &json!([1]),
        &["remove /1", "remove /1"],
        &[],
    );
}

/// ENV-5: a member is removed if its name is not allowed, if it is forbidden, or if it cannot be mended; a required
/// one stays.
#[test]
fn members() {
    check(
        &json!({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "required": ["fine"]}),
        &json!({"fine": 1, "NOT": 2}),
        &json!({"fine": 1}),
        &["remove /NOT"],
        &[],
    );
    check(
        &json!({"type": "object", "properties": {"never": false, "some": hard()}, "required": ["fine"]}),
        &json!({"fine": 1, "never": 2, "some": 3}),
        &json!({"fine": 1}),
        &["remove /never", "remove /some"],
        &[],
    );
    check(
        &json!({"type": "object", "properties": {"inner": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["k"]}}}),
        &json!({"inner": {"n": "x", "k": 1}}),
        &json!({"inner": {"n": 0, "k": 1}}),
        &["replace /inner/n"],
        &[],
    );
    check(
        &json!({"type": "object", "properties": {"some": hard(), "n": {"type": "integer"}}, "required": ["some"]}),
        &json!({"some": 1, "n": "x"}),
        &json!({"some": 1, "n": 0}),
        &["replace /n"],
        &["/some"],
    );
}

/// ENV-5: a member that several schemas describe is made once, so that it fits them all, together with its dependent
/// members.
#[test]
fn members_that_are_made() {
    let twice = |first: Value, second: Value| json!({"type": "object", "properties": {"a": first}, "patternProperties": {"^a": second}, "required": ["a"]});
    let (any, large) = (json!({"type": "integer"}), json!({"type": "integer", "minimum": 3}));
    for schema in [twice(any.clone(), large.clone()), twice(large, any)] {
        check(&schema, &json!({}), &json!({"a": 3}), &["add /a"], &[]);
    }
    let dependent = json!({"type": "object", "required": ["b"], "dependentRequired": {"b": ["a"]}});
    check(
        &json!({"type": "object", "properties": {"p": dependent}, "required": ["p"]}),
        &json!({}),
        &json!({"p": {"a": null, "b": null}}),
        &["add /p"],
        &[],
    );
}

/// ENV-5: of alternatives with equally many changes the first is taken; if none can be reached, nothing is changed.
#[test]
fn alternatives() {
    let branch =
        |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]});
    check(
        &json!({"anyOf": [branch("a"), branch("b")]}),
        &json!({"kind": 5, "more": 1}),
        &json!({"kind": "a", "more": 1}),
        &["replace /kind"],
        &[],
    );
    let stuck = |name: &str| json!({"type": "object", "properties": {"code": hard(), name: {"type": "integer"}}, "required": ["code"]});
    let raw = json!({"code": 5, "n": "x", "m": "y"});
    check(&json!({"anyOf": [stuck("n"), stuck("m")]}), &raw, &raw, &[], &[""]);
}

/// ENV-5: the additions of one round are checked in the next; a value that never settles is left as it was.
#[test]
fn rounds() {
    check(
        &json!({"type": "object", "required": ["b"], "dependentRequired": {"a": ["z"], "b": ["a"]}}),
        &json!({"b": 1}),
        &json!({"b": 1, "a": null, "z": null}),
        &["add /a", "add /z"],
        &[],
    );
    let raw = json!({"a": "x"});
    check(
        &json!({"type": "object", "required": ["a"], "allOf": [{"properties": {"a": {"enum": [5, 9]}}},
                                             {"properties": {"a": {"type": "integer", "minimum": 6}}}]}),
        &raw,
        &raw,
        &[],
        &["/a", "/a"],
    );
}

/// ENV-5: the parts of a schema are found for any identifier and any form of references.
#[test]
fn names_of_a_schema() {
    for id in
        ["https://example.com/s.json", "https://example.com/s#", "urn:example:s", "s.json", "/s", "s", "#s"]
    {
        let own = format!("{}#/definitions/n", id.split('#').next().unwrap_or_default());
        for (dialect, key) in [
            ("https://json-schema.org/draft/2020-12/schema", "$id"),
            ("http://json-schema.org/draft-07/schema#", "$id"),
            ("http://json-schema.org/draft-04/schema#", "id"),
        ] {
            for reference in ["#/definitions/n", &own] {
                let schema = json!({"$schema": dialect, key: id, "type": "object", "required": ["b"],
                                    "properties": {"a": {"$ref": reference}},
                                    "definitions": {"n": {"type": "integer"}}});
                // 2020-12 requires an anchor for this.
                if OutputSchema::compile(&schema.to_string()).is_err() {
                    assert_eq!((id, dialect.contains("2020")), ("#s", true), "{schema}");
                    continue;
                }
                check(&schema, &json!({"a": "x", "b": 1}), &json!({"a": 0, "b": 1}), &["replace /a"], &[]);
            }
        }
    }
}
