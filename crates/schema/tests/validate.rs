//! The validator from outside: dialects, references, hostile schemas and the issues of a failure.

#![expect(clippy::panic, reason = "a failed expectation of a test")]

use std::time::{Duration, Instant};

use bridgehead_schema::{Effort, Issue, SchemaError, Unfit, Validator, without_schema};
use serde_json::{Value, json};

#[track_caller]
fn compiled(schema: &Value) -> Validator {
    match Validator::compile(&schema.to_string()) {
        Ok(validator) => validator,
        Err(error) => panic!("{schema}: {error}"),
    }
}

#[track_caller]
fn refused(schema: &Value) -> SchemaError {
    match Validator::compile(&schema.to_string()) {
        Ok(_) => panic!("{schema} compiles"),
        Err(error) => error,
    }
}

#[track_caller]
fn within(limit: Duration, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    let taken = start.elapsed();
    assert!(taken < limit, "took {taken:?}");
}

/// PIPE-3: each dialect has its own rules, 2020-12 is the default.
#[test]
fn the_dialect_decides_what_a_keyword_means() {
    #[track_caller]
    fn check(dialect: Option<&str>, mut schema: Value, instance: &Value, valid: bool) {
        if let Some(dialect) = dialect {
            schema["$schema"] = json!(dialect);
        }
        assert_eq!(compiled(&schema).check(instance).is_ok(), valid, "{schema} {instance}");
    }
    let pair = json!(["a", 1]);
    // `items` as a list is a tuple up to 2019-09; `prefixItems` means nothing there.
    let tuple = json!({"items": [{"type": "integer"}]});
    let prefix = json!({"prefixItems": [{"type": "integer"}]});
    for old in [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
    ] {
        check(Some(old), tuple.clone(), &pair, false);
        check(Some(old), prefix.clone(), &pair, true);
    }
    for new in [None, Some("https://json-schema.org/draft/2020-12/schema")] {
        check(new, prefix.clone(), &pair, false);
    }
    // `dependentRequired` came with 2019-09.
    let dependent = json!({"dependentRequired": {"a": ["b"]}});
    check(Some("http://json-schema.org/draft-07/schema#"), dependent.clone(), &json!({"a": 1}), true);
    check(Some("https://json-schema.org/draft/2019-09/schema"), dependent, &json!({"a": 1}), false);
}

/// PIPE-3: an unknown dialect is an error that names it, not a guess.
#[test]
fn an_unknown_dialect_is_named() {
    let error = refused(&json!({"$schema": "https://example.com/dialect"}));
    assert!(
        matches!(&error, SchemaError::UnknownDialect(name) if name == "https://example.com/dialect"),
        "{error}"
    );
}

/// PIPE-3: a reference out of the document is refused without touching the network or the disk.
#[test]
fn a_remote_reference_is_refused() {
    for target in [
        "https://example.com/schema.json",
        "http://127.0.0.1:9/canary",
        "file:///etc/passwd",
        "other.json",
        "//example.com/x#/a",
        "urn:example:x",
    ] {
        for keyword in ["$ref", "$dynamicRef"] {
            for schema in [json!({keyword: target}), json!({"properties": {"a": {keyword: target}}})] {
                let error = refused(&schema);
                assert!(matches!(&error, SchemaError::RemoteReference(named) if named == target), "{error}");
            }
        }
    }
    // A base URI of the schema itself does not allow it either.
    let error = refused(&json!({"$id": "https://example.com/a", "items": {"$ref": "b"}}));
    assert!(matches!(error, SchemaError::RemoteReference(_)), "{error}");
    // Not even in an unused part.
    let error = refused(&json!({"$defs": {"unused": {"$ref": "https://example.com/x"}}}));
    assert!(matches!(error, SchemaError::RemoteReference(_)), "{error}");
}

#[test]
fn references_within_the_document_work() {
    let schema = json!({
        "properties": {"tree": {"$ref": "#/$defs/tree"}, "named": {"$ref": "#word"}},
        "$defs": {
            "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}, "additionalProperties": false},
            "word": {"$anchor": "word", "type": "string"},
        },
    });
    let validator = compiled(&schema);
    assert_eq!(validator.check(&json!({"tree": {"left": {"left": {}}}, "named": "x"})), Ok(()));
    let issues = validator.check(&json!({"tree": {"left": {"right": {}}}, "named": 1})).unwrap_err();
    let mut paths: Vec<&str> = issues.iter().map(|issue| issue.instance_path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/named", "/tree/left"]);
}

/// PIPE-3: an issue has the instance path, the schema path and a message, under these names.
#[test]
fn issues_say_where_and_what() {
    let schema = json!({
        "type": "object",
        "properties": {"list": {"items": {"type": "integer"}}, "a/b": {"minimum": 3}},
        "required": ["name"],
    });
    let issues = compiled(&schema).check(&json!({"list": [1, "two"], "a/b": 1})).unwrap_err();
    let mut issues: Vec<String> = issues.iter().map(|issue| serde_json::to_string(issue).unwrap()).collect();
    issues.sort_unstable();
    assert_eq!(
        issues,
        [
            r#"{"path":"","schemaPath":"/required","message":"\"name\" is a required property"}"#,
            r#"{"path":"/a~1b","schemaPath":"/properties/a~1b/minimum","message":"value is less than the minimum of 3"}"#,
            r#"{"path":"/list/1","schemaPath":"/properties/list/items/type","message":"value is not of type \"integer\""}"#,
        ]
    );
}

/// PIPE-3: arguments are not echoed: issues are few and short, and do not quote the value.
#[test]
fn issues_are_bounded() {
    let validator = compiled(&json!({"additionalProperties": {"type": "integer"}}));
    let secret = "hunter2".repeat(100_000);
    let many: serde_json::Map<String, Value> =
        (0..1_000).map(|index| (format!("{index:04}{}", "k".repeat(2_000)), json!(secret))).collect();
    let issues = validator.check(&Value::Object(many.clone())).unwrap_err();
    assert_eq!(issues.len(), 32);
    for issue in &issues {
        assert!(issue.message.chars().count() <= 257, "{}", issue.message);
        assert!(issue.instance_path.chars().count() <= 513);
        assert!(!issue.message.contains("hunter2"), "{}", issue.message);
    }
    let closed = compiled(&json!({"additionalProperties": false})).check(&Value::Object(many)).unwrap_err();
    assert!(closed.iter().all(|issue| issue.message.chars().count() <= 257));
}

/// PIPE-3: a pattern that makes backtracking engines run forever is answered quickly.
#[test]
fn catastrophic_patterns_are_harmless() {
    for pattern in ["^(a+)+$", "^(a|aa)+$", "(.*)*b{1,100}c", "^([a-zA-Z]+)*$"] {
        let validator = compiled(&json!({"pattern": pattern}));
        let instance = json!(format!("{}!", "a".repeat(50_000)));
        within(Duration::from_secs(30), || assert!(validator.check(&instance).is_err(), "{pattern}"));
    }
    within(Duration::from_secs(30), || {
        refused(&json!({"pattern": "((a{100}){100}){100}"}));
    });
    refused(&json!({"pattern": "^(?=a)b"}));
    refused(&json!({"pattern": "("}));
}

/// PIPE-3: the errors of broken schemas.
#[test]
fn broken_schemas_do_not_compile() {
    let error = refused(&json!({"properties": {"a": {"type": "objekt"}}}));
    assert!(matches!(&error, SchemaError::Invalid { path, .. } if path == "/properties/a/type"), "{error}");
    assert!(matches!(Validator::compile("{"), Err(SchemaError::NotJson(_))));
    assert!(matches!(Validator::compile(&"[".repeat(10_000)), Err(SchemaError::NotJson(_))));
    let large = format!(r#"{{"description":"{}"}}"#, "x".repeat(1 << 20));
    assert!(matches!(Validator::compile(&large), Err(SchemaError::TooLarge { what: "bytes", .. })));
}

/// PIPE-3: branching recursion cannot make a check or its explanation run away.
#[test]
fn branching_recursion_is_answered_quickly() {
    let mut instance = json!({});
    for _ in 0..100 {
        instance = json!({"a": instance, "x": 1});
    }
    for (dialect, keyword) in [
        ("https://json-schema.org/draft/2020-12/schema", "$ref"),
        ("https://json-schema.org/draft/2020-12/schema", "$dynamicRef"),
        ("https://json-schema.org/draft/2019-09/schema", "$recursiveRef"),
        ("http://json-schema.org/draft-07/schema#", "$ref"),
    ] {
        let again = json!({"properties": {"a": {keyword: "#"}}, "required": ["x"]});
        let validator = compiled(&json!({"$schema": dialect, "anyOf": [again, again]}));
        within(Duration::from_secs(30), || {
            let issues = validator.check(&instance).unwrap_err();
            assert_eq!(issues[0].message, "value does not match the schema");
        });
    }
    let again = json!({"properties": {"a": {"$ref": "#"}}, "required": ["x"]});
    let validator = compiled(&json!({"anyOf": [again, again]}));
    within(Duration::from_secs(30), || {
        let issues = validator.check(&json!({"a": {"a": {}}})).unwrap_err();
        assert!(issues[0].message.contains("anyOf"), "{issues:?}");
    });
}

/// PIPE-3: a long path through the schema per level of the instance cannot exhaust the stack.
#[test]
fn the_stack_suffices() {
    for links in [3, 14, 30, 60] {
        let mut definitions = serde_json::Map::new();
        for link in 0..links {
            definitions.insert(link.to_string(), json!({"$ref": format!("#/$defs/{}", link + 1)}));
        }
        definitions.insert(links.to_string(), json!({"properties": {"a": {"$ref": "#"}, "end": false}}));
        let validator = compiled(&json!({"$ref": "#/$defs/0", "$defs": definitions}));
        let mut refused = 0;
        let mut instance = json!({"end": 1});
        for _ in 0..126 {
            let issues = validator.check(&instance).unwrap_err();
            refused += usize::from(issues[0].message.contains("nested more deeply"));
            instance = json!({"a": instance});
        }
        assert_eq!(refused > 0, links > 6, "{links} links: {refused} refused");
    }
}

#[track_caller]
fn places(outcome: Result<Value, Unfit>) -> Vec<String> {
    match outcome {
        Ok(_) => Vec::new(),
        Err(Unfit::Issues(issues)) => issues.into_iter().map(|issue| issue.instance_path).collect(),
        Err(Unfit::TooSlow) => panic!("a brief check is enough here"),
    }
}

/// WIRE-1: arguments that other readers could read differently are refused with their place, whatever the schema allows.
#[test]
fn arguments_mean_one_thing() {
    let validator =
        compiled(&json!({"type": "object", "properties": {"path": {"type": "string"}, "env": {}}}));
    let read = |text: &str| places(validator.read(text, Effort::Brief));
    assert!(read(r#"{"path":"a","other":1,"env":{"http_proxy":1,"HTTP_PROXY":2}}"#).is_empty());
    assert_eq!(read(r#"{"path":"a","path":"b"}"#), ["/path"]);
    assert_eq!(read(r#"{"path":"a","p\u0061th":7}"#), ["/path"]);
    assert_eq!(read(r#"{"path":"a","Path":"b"}"#), ["/Path"]);
    assert_eq!(read(r#"{"PATH":7}"#), ["/PATH"]);
    assert_eq!(read(r#"{"env":{"x":[{"a":1,"a":2}]}}"#), ["/env/x/0/a"]);
    assert_eq!(read(r#"{"path":7}"#), ["/path"]);
    assert!(without_schema(r#"{"a":{"b":1},"b":1,"A":1}"#, Effort::Brief).is_ok());
    assert!(matches!(without_schema(r#"{"a":{"b":1,"b":1}}"#, Effort::Brief), Err(Unfit::Issues(_))));
    assert!(validator.check_arguments(&json!({"Path": "b"})).is_err());
}

/// BOUND-2: a brief check refuses large work, and every check refuses work that is too large; both decide quickly. Small
/// arguments for a large schema are checked at once, and so are large ones for a small schema.
#[test]
fn large_work_is_told_apart() {
    let values: Vec<Value> = (0..40_000).map(|n| json!(n as f64 + 0.5)).collect();
    let validator =
        compiled(&json!({"properties": {"list": {"items": {"enum": values}}, "text": {"type": "string"}}}));
    let list = |length: usize| json!({"list": vec![0.25; length]}).to_string();
    let read = |text: &str, effort| validator.read(text, effort).map(drop);
    let issues = |outcome: Result<(), Unfit>| match outcome {
        Err(Unfit::Issues(issues)) => issues,
        other => panic!("{other:?}"),
    };
    assert_eq!(issues(read(&list(1), Effort::Brief))[0].instance_path, "/list/0");
    assert_eq!(read(&list(1000), Effort::Brief), Err(Unfit::TooSlow));
    let told = |issues: Vec<Issue>| issues[0].message.clone();
    assert_eq!(told(issues(read(&list(1000), Effort::Full))), "value does not match the schema");
    within(Duration::from_secs(30), || {
        let message = told(issues(read(&list(300_000), Effort::Full)));
        assert!(
            message.contains("too large to be checked") && message.contains("100 million steps"),
            "{message}"
        );
        let value: Value = serde_json::from_str(&list(300_000)).unwrap();
        assert!(told(validator.check(&value).unwrap_err()).contains("too large to be checked"));
    });
    let text = json!({"text": "a".repeat(200_000)}).to_string();
    assert_eq!(read(&text, Effort::Brief), Ok(()));
    let long = json!({"text": "a".repeat(400_000)}).to_string();
    assert_eq!(read(&long, Effort::Brief), Err(Unfit::TooSlow));
    assert_eq!(read(&long, Effort::Full), Ok(()));
}
