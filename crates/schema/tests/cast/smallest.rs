//! The smallest value of a schema: used if the schema itself offers none.

use serde_json::{Value, json};

use super::cast;

/// Checks the value that is made for `part`; `None` if there is none.
#[track_caller]
fn check(part: &Value, expected: Option<&Value>) {
    // Draft 7 is the last in which formats are checked.
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["p"], "properties": {"p": part}});
    let made = cast(&schema, &json!({"other": 1}));
    let changes = expected
        .map(|value| json!({"op": "add", "path": "/p", "value": value, "source": "smallest"}))
        .into_iter()
        .collect::<Value>();
    assert_eq!(json!(made.changes), changes, "{part}");
    assert_eq!(made.value.get("p"), expected, "{part}");
    assert_eq!(made.issues.is_empty(), expected.is_some(), "{part}");
}

/// ENV-5: the number closest to zero that the bounds and steps allow; a whole one if any fits.
#[test]
fn numbers() {
    let exact = 9_007_199_254_740_992_i64;
    for (mut part, expected) in [
        (json!({}), json!(0)),
        (json!({"minimum": -3, "maximum": 5}), json!(0)),
        (json!({"minimum": 3}), json!(3)),
        (json!({"minimum": 2.25}), json!(3)),
        (json!({"maximum": -2.25}), json!(-3)),
        (json!({"exclusiveMinimum": 0}), json!(1)),
        (json!({"exclusiveMinimum": 3}), json!(4)),
        (json!({"exclusiveMaximum": -3}), json!(-4)),
        (json!({"exclusiveMaximum": -7, "minimum": -20}), json!(-8)),
        (json!({"exclusiveMinimum": 1, "exclusiveMaximum": 1.25}), json!(1.125)),
        (json!({"minimum": 0.25, "maximum": 0.25}), json!(0.25)),
        (json!({"minimum": -0.75, "exclusiveMaximum": -0.25}), json!(-0.5)),
        (json!({"multipleOf": 5, "minimum": 7}), json!(10)),
        (json!({"multipleOf": 5, "maximum": -7}), json!(-10)),
        (json!({"multipleOf": 5, "exclusiveMinimum": 10}), json!(15)),
        (json!({"multipleOf": 5, "exclusiveMaximum": -10}), json!(-15)),
        (json!({"multipleOf": 0.25, "exclusiveMinimum": 1.25, "maximum": 1.75}), json!(1.5)),
        (json!({"multipleOf": 0.25, "minimum": -1.75, "exclusiveMaximum": -1.25}), json!(-1.5)),
        (json!({"multipleOf": 7, "not": {"const": 0}}), json!(7)),
        // Beyond the exact range of a float the bounds themselves are tried.
        (json!({"minimum": exact - 1}), json!(exact - 1)),
        (json!({"minimum": exact}), json!(exact)),
        (json!({"minimum": exact + 1}), json!(exact + 1)),
        (json!({"maximum": -exact}), json!(-exact)),
        (json!({"multipleOf": 3e18, "minimum": 1e19}), json!(1.2e19)),
    ] {
        part["type"] = json!("number");
        check(&part, Some(&expected));
        if expected.as_f64().is_some_and(|number| number.fract() == 0.0) {
            part["type"] = json!("integer");
            check(&part, Some(&expected));
        }
    }
    check(&json!({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}), None);
    // An exclusive bound in draft 4.
    let older = json!({"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "required": ["p"],
                       "properties": {"p": {"type": "integer", "minimum": 3, "exclusiveMinimum": true}}});
    assert_eq!(cast(&older, &json!({})).value, json!({"p": 4}));
    // The number of steps to the bound is infinite.
    check(&json!({"type": "number", "multipleOf": 1e-300, "exclusiveMinimum": 1e300}), None);
}

/// ENV-5: the shortest of a few texts, one of the format, or the literal text of a pattern.
#[test]
fn texts() {
    for (mut part, expected) in [
        (json!({}), Some("")),
        (json!({"minLength": 3}), Some("aaa")),
        (json!({"minLength": 1, "pattern": "^[^a]"}), Some("0")),
        (json!({"minLength": 2, "pattern": "^[0-9]+$"}), Some("00")),
        (json!({"minLength": 2, "pattern": "^[A-Z]+$"}), Some("AA")),
        (json!({"pattern": "^[a-z]$"}), Some("a")),
        (json!({"pattern": "^[0-9]$"}), Some("0")),
        (json!({"pattern": "^[A-Z]$"}), Some("A")),
        (json!({"pattern": "^v1\\.2$"}), Some("v1.2")),
        (json!({"pattern": "^[0-9]{4}-[a-z]+$"}), None),
        (json!({"minLength": 2, "maxLength": 1}), None),
        (json!({"format": "date-time"}), Some("1970-01-01T00:00:00Z")),
        (json!({"format": "date"}), Some("1970-01-01")),
        (json!({"format": "time"}), Some("00:00:00Z")),
        (json!({"format": "email"}), Some("a@b.c")),
        (json!({"format": "hostname"}), Some("a")),
        (json!({"format": "ipv4"}), Some("0.0.0.0")),
        (json!({"format": "ipv6"}), Some("::")),
        (json!({"format": "uri"}), Some("a:")),
        (json!({"format": "iri"}), Some("a:")),
        (json!({"format": "of-no-standard"}), Some("")),
    ] {
        part["type"] = json!("string");
        check(&part, expected.map(Value::from).as_ref());
    }
    let most = 64 * 1024;
    check(&json!({"type": "string", "minLength": most}), Some(&"a".repeat(most).into()));
    check(&json!({"type": "string", "minLength": most + 1}), None);
}

/// ENV-5: the smallest kind that a schema names; of several alternatives the first, whatever its kind.
#[test]
fn kinds() {
    for (part, expected) in [
        (json!({"type": ["object", "array", "string", "number", "boolean", "null"]}), json!(null)),
        (json!({"type": ["object", "array", "string", "number", "boolean"]}), json!(false)),
        (json!({"type": "boolean", "not": {"const": false}}), json!(true)),
        (json!({"type": ["object", "array", "string", "number"]}), json!(0)),
        (json!({"type": ["object", "array", "string"]}), json!("")),
        (json!({"type": ["object", "array"]}), json!([])),
        (json!({"type": ["object"]}), json!({})),
        (json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}), json!(1)),
        (json!({"type": ["number"], "exclusiveMinimum": 0, "maximum": 1}), json!(1)),
        (json!({"type": ["integer", "string"], "exclusiveMinimum": 0, "exclusiveMaximum": 1}), json!("")),
    ] {
        check(&part, Some(&expected));
    }
    let kinds = [
        ("object", json!({})),
        ("array", json!([])),
        ("string", json!("")),
        ("number", json!(0)),
        ("integer", json!(0)),
        ("boolean", json!(false)),
    ];
    for (kind, smallest) in kinds {
        for others in [json!(["null"]), json!(["null", "boolean"]), json!(["null", "integer"])] {
            if !others.as_array().is_some_and(|others| others.contains(&json!(kind))) {
                check(&json!({"anyOf": [{"type": kind}, {"type": others}]}), Some(&smallest));
                check(&json!({"anyOf": [{"type": [kind]}, {"type": others}]}), Some(&smallest));
            }
        }
    }
}
