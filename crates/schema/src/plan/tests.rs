use serde_json::json;

use super::*;

#[track_caller]
fn plan(schema: &Value) -> Plan {
    Plan::of(schema).unwrap()
}

/// WIRE-1: a key that is declared at its place passes, one that only resembles a declared one does not, and where
/// nothing is declared any key passes.
#[test]
fn keys_that_resemble_declared_ones() {
    #[track_caller]
    fn check(schema: &Value, instance: &Value, expected: &[&str]) {
        let found = plan(schema).lookalikes(instance, u64::MAX).unwrap();
        let paths: Vec<&str> = found.iter().map(|issue| issue.instance_path.as_str()).collect();
        assert_eq!(paths, expected, "{schema} {instance}");
        let names = plan(schema).names;
        let mut resembles = false;
        let text = instance.to_string();
        crate::strict::read(&text, Some(&names)).map(|reading| resembles = reading.resembles).unwrap();
        assert!(resembles || expected.is_empty(), "reading notices every key that the search finds");
    }
    let schema = json!({"properties": {
        "path": {"type": "string"},
        "env": {"type": "object"},
        "deep": {"items": {"$ref": "#/$defs/step"}},
        "both": {"properties": {"a": {}, "A": {}}},
        "http_proxy": {},
    }, "allOf": [{"properties": {"inherited": {}}}], "$defs": {"step": {
        "properties": {"next": {"$ref": "#/$defs/step"}, "task": {}},
        "additionalProperties": {"properties": {"x": {}}},
    }}});
    check(&schema, &json!({"path": "", "env": {"PATH": 1, "http_proxy": 1, "HTTP_PROXY": 2}}), &[]);
    check(&schema, &json!({"Path": ""}), &["/Path"]);
    check(&schema, &json!({"path": "", "PATH": ""}), &["/PATH"]);
    check(&schema, &json!({"INHERITED": ""}), &["/INHERITED"]);
    check(&schema, &json!({"both": {"a": 1, "A": 2}}), &[]);
    check(&schema, &json!({"A": 1, "unrelated": 1, "Task": 1}), &[]);
    check(&schema, &json!({"deep": [{"next": {"Next": 1}}]}), &["/deep/0/next/Next"]);
    check(&schema, &json!({"deep": [{"ta\u{17f}\u{212a}": 1}]}), &["/deep/0/ta\u{17f}\u{212a}"]);
    check(&schema, &json!({"deep": [{"a/b": {"X": 1}}]}), &["/deep/0/a~1b/X"]);
    check(&json!({"type": "object"}), &json!({"a": 1, "A": 1}), &[]);
}

/// BOUND-2: every keyword that makes a validator work is counted, and annotations cost next to nothing.
#[test]
fn work_is_counted_over_all_keywords() {
    #[track_caller]
    fn check(schema: &Value, instance: &Value, expected: std::ops::RangeInclusive<u64>) {
        let steps = plan(schema).steps(instance, u64::MAX).unwrap();
        assert!(expected.contains(&steps), "{schema}: {steps}");
        assert!(
            plan(schema).per_byte.saturating_mul(bytes(instance) as u64) >= steps,
            "the rough bound holds"
        );
        assert!(plan(schema).steps(instance, steps - 1).is_none(), "counting stops at its limit");
    }
    let many = |make: &dyn Fn(usize) -> Value| (0..1000).map(make).collect::<Vec<_>>();
    let mixed = json!({"enum": many(&|n| json!([n]))});
    let numbers = json!(many(&|n| json!(n)));
    check(&json!({"items": {"type": "integer"}}), &numbers, 1000..=5000);
    check(&json!({"items": mixed}), &numbers, 1_000_000..=5_000_000);
    check(&json!({"contains": mixed}), &numbers, 1_000_000..=5_000_000);
    check(&json!({"items": {"enum": many(&|n| json!(n.to_string()))}}), &numbers, 1000..=10_000);
    check(&json!({"items": {"anyOf": [mixed, mixed]}}), &numbers, 2_000_000..=10_000_000);
    check(&json!({"$defs": {"a": mixed}, "items": {"$ref": "#/$defs/a"}}), &numbers, 1_000_000..=5_000_000);
    let properties: Map<String, Value> = (0..1000).map(|n| (format!("p{n}"), json!({}))).collect();
    check(&json!({"items": {"properties": properties}}), &json!(many(&|_| json!({}))), 1_000_000..=3_000_000);
    let needed = many(&|n| json!(n.to_string()));
    check(&json!({"items": {"required": needed}}), &json!(many(&|_| json!({}))), 1_000_000..=3_000_000);
    check(
        &json!({"items": {"dependentRequired": {"x": needed}}}),
        &json!(many(&|_| json!({}))),
        1_000_000..=3_000_000,
    );
    let keys: Map<String, Value> = (0..1000).map(|n| (format!("{n:04}"), json!(1))).collect();
    check(&json!({"propertyNames": mixed}), &json!(keys), 1_000_000..=9_000_000);
    check(&json!({"additionalProperties": mixed}), &json!(keys), 1_000_000..=9_000_000);
    check(&json!({"patternProperties": {"^(a{100}){10}": {}}}), &json!(keys), 1_000_000..=20_000_000);
    check(
        &json!({"dependentSchemas": {"0000": {"additionalProperties": mixed}}}),
        &json!(keys),
        1_000_000..=9_000_000,
    );
    check(&json!({"pattern": "(a{100}){10}"}), &json!("a".repeat(1000)), 500_000..=3_000_000);
    check(&json!({"uniqueItems": true}), &numbers, 2000..=10_000);
    // `unevaluatedProperties` evaluates its neighbours again, at each level.
    let mut nested = json!({"properties": {"a": {}}});
    for _ in 0..20 {
        nested = json!({"allOf": [nested], "unevaluatedProperties": false});
    }
    check(&nested, &json!({"a": 1}), 1_000_000..=u64::MAX);
}

#[test]
fn work_of_a_branching_recursion() {
    let again = json!({"properties": {"a": {"$ref": "#"}}});
    let plan = plan(&json!({"anyOf": [again, again]}));
    let deep = |levels| (0..levels).fold(json!(1), |value, _| json!({"a": value}));
    assert!(plan.steps(&deep(3), 1000).is_some());
    assert!(plan.steps_explained(&deep(60), 1 << 40).is_none());
    assert!(!plan.is_little(1, 1 << 30));
    // The validator caches its outcome for an object, and so avoids this work.
    assert!(plan.steps(&deep(60), 100_000).is_some());
}
