//! Casting, by examples and by properties that hold for any schema and any value.

#![expect(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "a failed expectation of a test")]

#[path = "../common/mod.rs"]
mod common;
mod limits;
mod mended;
mod smallest;

use std::time::{Duration, Instant};

use bridgehead_schema::{Cast, CastChange, OutputSchema};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Far more than any of these inputs needs on a busy machine, far less than a runaway would take.
const SOON: Duration = Duration::from_secs(60);

#[track_caller]
fn cast(schema: &Value, raw: &Value) -> Cast {
    let compiled = OutputSchema::compile(&schema.to_string()).unwrap();
    let started = Instant::now();
    let cast = compiled.cast(raw);
    assert!(started.elapsed() < SOON, "{schema}");
    // These must hold for every cast.
    assert_eq!(
        patched(raw, &cast.changes),
        cast.value,
        "the list of changes is complete: {:?}",
        cast.changes
    );
    assert_eq!(compiled.check(&cast.value).is_ok(), cast.issues.is_empty());
    if compiled.check(raw).is_ok() {
        assert_eq!((&cast.value, cast.changes.len()), (raw, 0), "a value that fits is not touched");
    }
    let again = compiled.cast(&cast.value);
    assert_eq!(
        (&again.value, again.changes.len()),
        (&cast.value, 0),
        "a second cast changes nothing: {schema}"
    );
    cast
}

/// Applies the changes to `raw`, as RFC 6902 says.
fn patched(raw: &Value, changes: &[CastChange]) -> Value {
    let mut value = raw.clone();
    for change in changes {
        let (path, new) = match change {
            CastChange::Add { path, value, .. } | CastChange::Replace { path, value, .. } => {
                (path, Some(value.clone()))
            }
            CastChange::Remove { path } => (path, None),
        };
        let Some((parent, last)) = path.rsplit_once('/') else {
            value = new.expect("the whole is never removed");
            continue;
        };
        let last = last.replace("~1", "/").replace("~0", "~");
        match (value.pointer_mut(parent).expect(path), new) {
            (Value::Object(members), Some(new)) => {
                let before = members.insert(last, new);
                assert_eq!(before.is_some(), matches!(change, CastChange::Replace { .. }), "{path}");
            }
            (Value::Object(members), None) => drop(members.remove(&last).expect(path)),
            (Value::Array(items), Some(new)) if matches!(change, CastChange::Replace { .. }) => {
                items[last.parse::<usize>().unwrap()] = new;
            }
            (Value::Array(items), Some(new)) => items.insert(last.parse().unwrap(), new),
            (Value::Array(items), None) => drop(items.remove(last.parse().unwrap())),
            (other, _) => panic!("{path} leads into {other}"),
        }
    }
    value
}

#[track_caller]
fn check(schema: &Value, raw: &Value, expected: &Value) {
    let cast = cast(schema, raw);
    assert_eq!(&cast.value, expected, "{:?}", cast.changes);
    assert_eq!(cast.issues, []);
}

fn object(properties: &Value, required: &Value) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

/// ENV-5: the sources that fill a missing or unfit part, in their order.
#[test]
fn where_a_part_comes_from() {
    let of = |part: Value| object(&json!({"p": part}), &json!(["p"]));
    for (part, expected, source) in [
        (json!({"type": "integer", "default": 7, "const": 8}), json!(8), "const"),
        (json!({"type": "integer", "default": 7, "enum": [6, 7]}), json!(7), "default"),
        (json!({"type": "integer", "default": "unfit"}), json!(0), "smallest"),
        (json!({"const": "c"}), json!("c"), "const"),
        (json!({"enum": ["x", "y"]}), json!("x"), "enum"),
        (json!({"enum": ["x", 5], "type": "integer"}), json!(5), "enum"),
        (json!({"type": "integer", "minimum": 3}), json!(3), "smallest"),
        (json!({"type": "integer", "exclusiveMinimum": 3, "multipleOf": 5}), json!(5), "smallest"),
        (json!({"type": "integer", "maximum": -4}), json!(-4), "smallest"),
        (json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), json!(0.5), "smallest"),
        (
            json!({"type": "integer", "minimum": 9_007_199_254_740_993_u64}),
            json!(9_007_199_254_740_993_u64),
            "smallest",
        ),
        (json!({"type": "string", "minLength": 3}), json!("aaa"), "smallest"),
        (json!({"type": "string", "pattern": "^yes$"}), json!("yes"), "smallest"),
        (json!({"type": "boolean"}), json!(false), "smallest"),
        (json!({"type": ["string", "null"]}), json!(null), "smallest"),
        (
            json!({"type": "array", "minItems": 2, "items": {"type": "boolean"}}),
            json!([false, false]),
            "smallest",
        ),
        (json!({"type": "array", "contains": {"const": 1}}), json!([1]), "smallest"),
        (of(json!({"type": "string", "default": "deep"})), json!({"p": "deep"}), "smallest"),
        (json!({"$ref": "#/$defs/d"}), json!(4), "default"),
        (
            json!({"oneOf": [{"type": "string", "minLength": 70_000}, {"type": "array"}]}),
            json!([]),
            "smallest",
        ),
        (json!({"allOf": [{"type": "integer"}, {"minimum": 2}]}), json!(2), "smallest"),
        (json!({"type": "string", "not": {"const": ""}}), json!("a"), "smallest"),
        (json!({"if": {"type": "integer"}, "then": {"minimum": 4}, "else": false}), json!(4), "smallest"),
    ] {
        let mut schema = of(part.clone());
        schema["$defs"] = json!({"d": {"type": "integer", "default": 4}});
        let missing = cast(&schema, &json!({}));
        assert_eq!(missing.value["p"], expected, "{part}");
        assert_eq!(
            json!(missing.changes),
            json!([{"op": "add", "path": "/p", "value": expected, "source": source}])
        );
        // Some of these schemas accept this text; then it stays.
        let unfit = cast(&schema, &json!({"p": "~ unfit ~"}));
        if unfit.value["p"] != "~ unfit ~" {
            assert_eq!(
                json!(unfit.changes),
                json!([{"op": "replace", "path": "/p", "value": expected, "source": source}])
            );
        }
    }
}

/// ENV-5: parts that fit stay, at any depth; closed objects and lists lose their surplus.
#[test]
fn as_little_as_possible_is_changed() {
    let person =
        object(&json!({"name": {"type": "string"}, "age": {"type": "integer"}}), &json!(["name", "age"]));
    let people = object(
        &json!({"people": {"type": "array", "items": {"$ref": "#/$defs/person"}}}),
        &json!(["people"]),
    );
    let mut people = people;
    people["$defs"] = json!({"person": person});
    check(
        &people,
        &json!({"people": [{"name": "Ada", "age": 36, "x": 1}, {"name": "Bob"}, {"name": 5, "age": 7}], "more": true}),
        &json!({"people": [{"name": "Ada", "age": 36, "x": 1}, {"name": "Bob", "age": 0}, {"name": "", "age": 7}], "more": true}),
    );
    let mut closed = person.clone();
    closed["additionalProperties"] = json!(false);
    check(&closed, &json!({"name": "Ada", "age": 1, "a/b~c": 1}), &json!({"name": "Ada", "age": 1}));
    let apart = json!({"allOf": [person], "properties": {"extra": true}, "unevaluatedProperties": false});
    check(
        &apart,
        &json!({"name": "Ada", "age": 1, "extra": 2, "more": 3}),
        &json!({"name": "Ada", "age": 1, "extra": 2}),
    );
    let pattern = json!({"patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": {"type": "string"}});
    check(
        &pattern,
        &json!({"n_a": 1, "n_b": "x", "c": 5, "d": "y"}),
        &json!({"n_a": 1, "n_b": 0, "c": "", "d": "y"}),
    );

    let tuple =
        json!({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false, "minItems": 2});
    check(&tuple, &json!(["a", "b", "c", "d"]), &json!(["a", 0]));
    check(&tuple, &json!([]), &json!(["", 0]));
    let older = json!({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}],
                       "additionalItems": {"type": "integer"}});
    check(&older, &json!([1, 2, "x"]), &json!(["", 2, 0]));
    check(&json!({"type": "array", "maxItems": 2}), &json!([1, 2, 3, 4]), &json!([1, 2]));
    // No value is found for this member, and it is not required.
    let hard = json!({"properties": {"code": {"type": "string", "pattern": "^[0-9]{4}-[a-z]+$"}}});
    check(&hard, &json!({"code": 5, "kept": 1}), &json!({"kept": 1}));
}

/// ENV-5: the alternative with the fewest changes is taken.
#[test]
fn the_nearest_alternative_is_taken() {
    let branch = |kind: &str, field: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind}, field: {"type": "integer"}},
               "required": ["kind", field], "additionalProperties": false})
    };
    for keyword in ["oneOf", "anyOf"] {
        let schema = json!({keyword: [branch("a", "x"), branch("b", "y")]});
        check(&schema, &json!({"kind": "b", "y": "?"}), &json!({"kind": "b", "y": 0}));
        check(&schema, &json!({"kind": "b"}), &json!({"kind": "b", "y": 0}));
        check(&schema, &json!({"kind": "a", "x": 1, "y": 2}), &json!({"kind": "a", "x": 1}));
        check(&schema, &json!(7), &json!({"kind": "a", "x": 0}));
    }
    let dependent =
        json!({"dependentRequired": {"card": ["address"]}, "properties": {"address": {"type": "string"}}});
    check(&dependent, &json!({"card": 1}), &json!({"card": 1, "address": ""}));
}

/// ENV-5: a part that cannot be mended stays, the rest is mended, and the cast reports the issue.
#[test]
fn what_cannot_be_mended_stays() {
    let schema = object(
        &json!({"code": {"type": "string", "pattern": "^[0-9]{4}-[a-z]+$"}, "n": {"type": "integer"}}),
        &json!(["code", "n"]),
    );
    let cast = cast(&schema, &json!({"code": 5, "n": "x"}));
    assert_eq!(cast.value, json!({"code": 5, "n": 0}));
    assert_eq!(cast.issues.len(), 1);
    assert_eq!(cast.issues[0].instance_path, "/code");
}

/// ENV-4: without a schema anything fits; a malformed or remote schema is refused.
#[test]
fn schemas_that_are_none() {
    let anything = OutputSchema::anything();
    assert_eq!(anything.cast(&json!([1, {"a": null}])).value, json!([1, {"a": null}]));
    assert_eq!(anything.schema(), &json!(true));
    for none in
        ["", "5", "[]", r#"{"type":5}"#, r#"{"$ref":"https://example.com/x.json"}"#, r##"{"$ref":"#"}"##]
    {
        assert!(OutputSchema::compile(none).is_err(), "{none}");
    }
}

/// ENV-5: casting stops in time for schemas that recurse, ask for too much or grow without end.
#[test]
fn schemas_that_would_run_away() {
    let list = json!({"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                      "required": ["value", "next"]});
    check(
        &list,
        &json!({"value": 1, "next": {"value": "x", "next": {}}}),
        &json!({"value": 1, "next": {"value": 0, "next": {"value": 0, "next": null}}}),
    );
    let endless = json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
    assert!(!cast(&endless, &json!({})).issues.is_empty());
    // Each level doubles the value: it would have 2^40 parts.
    let mut definitions = Map::new();
    for level in 0..40 {
        let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
        let doubled = object(&json!({"a": next, "b": next}), &json!(["a", "b"]));
        definitions.insert(level.to_string(), doubled);
    }
    definitions.insert("40".to_owned(), json!({"type": "integer"}));
    let doubling = json!({"$ref": "#/$defs/0", "$defs": definitions});
    assert!(!cast(&doubling, &json!({})).issues.is_empty());
    assert!(!cast(&json!({"type": "string", "minLength": 4_000_000_000_u64}), &json!(1)).issues.is_empty());
    assert!(!cast(&json!({"type": "array", "minItems": 4_000_000_000_u64}), &json!(1)).issues.is_empty());

    let mut deep = json!("x");
    let tree = json!({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}, {"type": "object", "additionalProperties": {"$ref": "#"}}]});
    for _ in 0..100 {
        deep = json!([deep, deep.is_array()]);
    }
    let _ = cast(&tree, &deep);
    let wide: Value = (0..10_000).map(|at| if at % 2 == 0 { json!(at) } else { json!({"a": "x"}) }).collect();
    assert_eq!(cast(&tree, &wide).issues, []);
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn instance() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..9_i64).prop_map(Value::from),
        Just(json!(0.5)),
        "[ab]{0,3}".prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(&["a", "b", "c", "d"][..]), inner, 0..4)
                .prop_map(|members| members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()),
        ]
    })
}

/// Random schemas that their defaults and smallest values satisfy.
fn satisfiable() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        (-5..5_i64, 0..9_i64)
            .prop_map(|(low, more)| json!({"type": "integer", "minimum": low, "maximum": low + more})),
        (-5..5_i64).prop_map(|low| json!({"type": "number", "exclusiveMinimum": low})),
        (1..4_i64, -9..9_i64)
            .prop_map(|(step, low)| json!({"type": "integer", "multipleOf": step, "minimum": low})),
        (0..4_u8).prop_map(|least| json!({"type": "string", "minLength": least})),
        instance().prop_map(|value| json!({"const": value})),
        prop::collection::vec(instance(), 1..3).prop_map(|values| json!({"enum": values})),
        instance().prop_map(|value| json!({"default": value})),
        (0..5_i64).prop_map(|value| json!({"type": ["string", "integer"], "default": value})),
        prop::sample::select(&NAMES[..]).prop_map(|name| json!({"$ref": format!("#/$defs/{name}")})),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let members = prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner.clone(), 0..3);
        prop_oneof![
            (members, prop::sample::subsequence(&NAMES[..], 0..3), any::<bool>()).prop_map(
                |(members, required, open)| {
                    let required: Vec<_> =
                        required.into_iter().filter(|name| open || members.contains_key(name)).collect();
                    let properties: Map<_, _> =
                        members.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
                    let mut schema =
                        json!({"type": "object", "properties": properties, "required": required});
                    if !open {
                        schema["additionalProperties"] = json!(false);
                    }
                    schema
                }
            ),
            (inner.clone(), 0..3_u8)
                .prop_map(|(items, least)| json!({"type": "array", "items": items, "minItems": least})),
            (prop::collection::vec(inner.clone(), 1..3), any::<bool>(), 0..2_u8).prop_map(
                |(placed, open, least)| {
                    json!({"type": "array", "prefixItems": placed, "items": open, "minItems": least})
                }
            ),
            inner.clone().prop_map(|part| json!({"additionalProperties": part, "type": "object"})),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({"anyOf": [a, b]})),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({"oneOf": [
                {"type": "object", "properties": {"kind": {"const": "a"}, "a": a}, "required": ["kind", "a"]},
                {"type": "object", "properties": {"kind": {"const": "b"}, "b": b}, "required": ["kind", "b"]},
            ]})),
            inner.prop_map(|part| json!({"allOf": [part, {"title": "the same"}]})),
        ]
    })
}

/// Definitions refer to later ones only, so that none needs itself.
fn document(part: impl Strategy<Value = Value> + Clone) -> impl Strategy<Value = Value> {
    (part.clone(), prop::collection::vec(part, NAMES.len())).prop_map(|(mut root, definitions)| {
        let mut known = Map::new();
        for (at, (name, mut definition)) in NAMES.iter().zip(definitions).enumerate() {
            renamed(&mut definition, at + 1);
            known.insert((*name).to_owned(), definition);
        }
        renamed(&mut root, 0);
        json!({"allOf": [root], "$defs": known})
    })
}

/// Replaces every reference to a definition before `first` by `true`.
fn renamed(schema: &mut Value, first: usize) {
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix("#/$defs/"));
    let earlier =
        reference.and_then(|name| NAMES.iter().position(|known| *known == name)).is_some_and(|at| at < first);
    if earlier {
        *schema = json!(true);
    }
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| renamed(item, first)),
        Value::Object(members) => members.values_mut().for_each(|member| renamed(member, first)),
        _ => {}
    }
}

/// Anything that compiles, including circular references and contradictions.
fn wild() -> impl Strategy<Value = Value> {
    let more = &[
        "dependentRequired",
        "default",
        "minItems",
        "maxItems",
        "minProperties",
        "multipleOf",
        "minimum",
        "maximum",
        "uniqueItems",
    ];
    let value = prop_oneof![
        3 => prop::sample::select(&["#", "#/$defs/a", "#/$defs/b", "string", "object", "array", "integer", "a", "^a", "date"][..])
            .prop_map(Value::from),
        2 => instance(),
        1 => prop::sample::subsequence(&NAMES[..], 0..3).prop_map(Value::from),
    ];
    common::wild(more, value, 4)
}

proptest! {
    // A failing case is printed whole; no file is left behind.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// ENV-5: if defaults and smallest values satisfy a schema, every value can be made to fit. `cast` also asserts
    /// that a fitting value is not touched, a second cast changes nothing, and every change is listed.
    #[test]
    fn what_can_be_satisfied_is(schema in document(satisfiable().boxed()), raw in instance()) {
        let cast = cast(&schema, &raw);
        prop_assert_eq!(&cast.issues, &vec![], "{} against {}: {}", raw, schema, cast.value);
    }

    /// ENV-5: casting ends in time for any schema of a server, and any value.
    #[test]
    fn any_schema_is_cast_to_in_bounded_time(part in wild(), a in wild(), b in wild(), raw in instance()) {
        let schema = json!({"allOf": [part], "$defs": {"a": a, "b": b}});
        if let Ok(compiled) = OutputSchema::compile(&schema.to_string()) {
            let made = cast(&schema, &raw);
            // If null can be made to fit, any value can.
            if compiled.cast(&Value::Null).issues.is_empty() && compiled.check(&Value::Null).is_err() {
                prop_assert_eq!(&made.issues, &vec![], "{} against {}: {}", raw, schema, made.value);
            }
        }
    }
}
