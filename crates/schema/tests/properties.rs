//! Properties that hold for any schema, hostile ones included: the answer comes soon, and it is right.

#![expect(clippy::panic, reason = "a failed expectation of a test")]

mod common;

use std::time::{Duration, Instant};

use bridgehead_schema::{SchemaError, Validator, header_parameters};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Far more than any of these inputs needs on a busy machine, far less than a runaway would take.
const SOON: Duration = Duration::from_secs(30);

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn instance() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..3_i64).prop_map(Value::from),
        "[ab]{0,3}".prop_map(Value::from),
    ];
    scalar.prop_recursive(5, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner, 0..4).prop_map(|members| {
                members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }),
        ]
    })
}

/// A schema of keywords that `valid` below implements too. References lead to any definition, so they may
/// be circular.
fn plain() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!(false)),
        prop::sample::select(&["null", "boolean", "integer", "string", "array", "object"][..])
            .prop_map(|kind| json!({ "type": kind })),
        instance().prop_map(|value| json!({ "const": value })),
        prop::collection::vec(instance(), 1..3).prop_map(|values| json!({ "enum": values })),
        prop::sample::select(&NAMES[..]).prop_map(|name| json!({ "required": [name] })),
        (0..3_u8).prop_map(|least| json!({ "minLength": least, "minItems": least })),
        prop::sample::select(&NAMES[..]).prop_map(|name| json!({ "$ref": format!("#/$defs/{name}") })),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..3);
        prop_oneof![
            (prop::sample::select(&["allOf", "anyOf", "oneOf"][..]), list)
                .prop_map(|(word, list)| json!({ word: list })),
            inner.clone().prop_map(|schema| json!({ "not": schema })),
            inner.clone().prop_map(|schema| json!({ "items": schema })),
            inner.clone().prop_map(|schema| json!({ "additionalProperties": schema })),
            (prop::sample::select(&NAMES[..]), inner.clone())
                .prop_map(|(name, schema)| json!({ "properties": { name: schema } })),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|(a, b, c)| json!({ "if": a, "then": b, "else": c })),
        ]
    })
}

/// A document: a schema with definitions.
fn document(part: impl Strategy<Value = Value> + Clone) -> impl Strategy<Value = Value> {
    (part.clone(), prop::collection::vec(part, NAMES.len())).prop_map(|(root, definitions)| {
        let definitions: Map<_, _> = NAMES.iter().map(|name| (*name).to_owned()).zip(definitions).collect();
        json!({ "allOf": [root], "$defs": definitions })
    })
}

/// Anything that looks like a schema, with dangerous keywords.
fn wild() -> impl Strategy<Value = Value> {
    let more = &[
        "dependencies",
        "$defs",
        "definitions",
        "$dynamicRef",
        "$recursiveRef",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$anchor",
        "$id",
        "id",
        "$schema",
        "multipleOf",
        "maximum",
        "x-mcp-header",
        "$vocabulary",
        "contentSchema",
    ];
    let value = prop_oneof![
        2 => prop::sample::select(&["#", "#a", "#/$defs/a", "#/items", "#/%", "#/~2", "http://x/", "string", "x", "(a+)+$", "[",
            "\\p{L}{1000}", "(?=a)", "date-time", "http://json-schema.org/draft-07/schema#",
            "https://json-schema.org/draft/2020-12/schema", ""][..]).prop_map(Value::from),
        1 => instance(),
        1 => Just(json!(1e308)),
    ];
    common::wild(more, value, 5)
}

/// An independent check for the keywords of [`plain`]. `None` if it does not end.
fn valid(schema: &Value, definitions: &Value, value: &Value, steps: usize) -> Option<bool> {
    if steps == 0 {
        return None;
    }
    let holds = |schema: &Value, value: &Value| valid(schema, definitions, value, steps - 1);
    let members = match schema {
        Value::Bool(flag) => return Some(*flag),
        Value::Object(members) => members,
        other => panic!("not a schema: {other}"),
    };
    let mut all = true;
    for (keyword, argument) in members {
        let list = || {
            argument
                .as_array()
                .into_iter()
                .flatten()
                .map(|part| holds(part, value))
                .collect::<Option<Vec<_>>>()
        };
        all &= match keyword.as_str() {
            "$defs" | "then" | "else" => true,
            "type" => match argument.as_str() {
                Some("null") => value.is_null(),
                Some("boolean") => value.is_boolean(),
                Some("integer") => value.is_i64(),
                Some("string") => value.is_string(),
                Some("array") => value.is_array(),
                _ => value.is_object(),
            },
            "const" => value == argument,
            "enum" => argument.as_array().is_some_and(|values| values.contains(value)),
            "required" => value.as_object().is_none_or(|members| {
                argument
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .all(|name| members.contains_key(name))
            }),
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() as u64 >= argument.as_u64().unwrap_or(0)),
            "minItems" => {
                value.as_array().is_none_or(|items| items.len() as u64 >= argument.as_u64().unwrap_or(0))
            }
            "$ref" => {
                let name =
                    argument.as_str().and_then(|text| text.strip_prefix("#/$defs/")).unwrap_or_default();
                holds(&definitions[name], value)?
            }
            "allOf" => list()?.into_iter().all(|holds| holds),
            "anyOf" => list()?.into_iter().any(|holds| holds),
            "oneOf" => list()?.into_iter().filter(|holds| *holds).count() == 1,
            "not" => !holds(argument, value)?,
            "if" => holds(if holds(argument, value)? { &members["then"] } else { &members["else"] }, value)?,
            "items" => match value {
                Value::Array(items) => items
                    .iter()
                    .map(|item| holds(argument, item))
                    .collect::<Option<Vec<_>>>()?
                    .into_iter()
                    .all(|holds| holds),
                _ => true,
            },
            "properties" | "additionalProperties" => match value {
                Value::Object(values) => {
                    let mut fits = true;
                    for (name, value) in values {
                        let part = if keyword == "properties" { argument.get(name) } else { Some(argument) };
                        fits &= part.map_or(Some(true), |part| holds(part, value))?;
                    }
                    fits
                }
                _ => true,
            },
            other => panic!("unknown keyword {other}"),
        };
    }
    Some(all)
}

fn soon<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, TestCaseError> {
    let started = Instant::now();
    let outcome = work();
    let taken = started.elapsed();
    prop_assert!(taken < SOON, "{what} took {taken:?}");
    Ok(outcome)
}

proptest! {
    // A failing case is printed whole; no file is left behind.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// PIPE-3: any schema of an upstream is compiled or refused in time, and so is any check against it.
    #[test]
    fn any_schema_is_compiled_or_refused_in_bounded_time(
        schema in prop_oneof![wild(), document(wild().boxed()), document(plain().boxed())],
        instance in prop_oneof![instance(), Just(json!("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"))],
    ) {
        let _ = soon("reading annotations", || header_parameters(&schema))?;
        let text = schema.to_string();
        if let Ok(validator) = soon("compiling", || Validator::compile(&text))?
            && let Err(issues) = soon("checking", || validator.check(&instance))?
        {
            prop_assert!((1..=32).contains(&issues.len()));
            for issue in issues {
                let length = issue.message.len() + issue.instance_path.len() + issue.schema_path.len();
                prop_assert!(length <= 4 * (256 + 512 + 512 + 3), "{issue:?}");
            }
        }
    }

    /// PIPE-3: a check follows the schema, including its references.
    #[test]
    fn a_check_agrees_with_the_schema(schema in document(plain().boxed()), instance in instance()) {
        let expected = valid(&schema, &schema["$defs"], &instance, 40);
        match Validator::compile(&schema.to_string()) {
            Ok(validator) => {
                let checked = validator.check(&instance);
                if let Some(expected) = expected {
                    prop_assert_eq!(checked.is_ok(), expected, "{} against {}: {:?}", instance, schema, checked);
                }
            }
            Err(SchemaError::Endless) => {}
            Err(error) => return Err(TestCaseError::fail(format!("{schema}: {error}"))),
        }
    }
}
