//! The JSON Schema of our own format, generated from the key table, for editors.
//!
//! It covers what the key table knows: names, kinds, ranges, and keys that are not supported yet. Loading checks what keys
//! mean together (`command` or `url`, one timeout within the other). Two rules must stay true: the schema accepts every
//! file that loads, and it refuses every unknown key and every value of the wrong kind.
//!
//! It uses draft 7, because editors complete from that draft.

use serde_json::{Map, Value, json};

use crate::keys::{self, Key, KeyTable, Status, ValueKind};

/// The schema of `bridgehead.toml`, which is stored as `docs/bridgehead.schema.json`.
pub fn json_schema() -> Value {
    let mut schema = table(KeyTable::Root);
    schema.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
    schema.insert("title".to_owned(), json!("bridgehead.toml"));
    schema.insert("description".to_owned(), json!("The configuration of Bridgehead, an MCP gateway."));
    let places = KeyTable::ALL.into_iter().filter(|place| *place != KeyTable::Root);
    let definitions: Map<_, _> =
        places.map(|place| (definition(place).to_owned(), Value::Object(table(place)))).collect();
    schema.insert("definitions".to_owned(), Value::Object(definitions));
    let mut schema = Value::Object(schema);
    // Any crate of the build can turn on serde_json's `preserve_order`, and then objects are not sorted.
    schema.sort_all_objects();
    schema
}

const fn definition(place: KeyTable) -> &'static str {
    match place {
        KeyTable::Root => "root",
        KeyTable::Gateway => "gateway",
        KeyTable::Http => "http",
        KeyTable::Bounds => "bounds",
        KeyTable::Audit => "audit",
        KeyTable::Queue => "queue",
        KeyTable::Server => "server",
        KeyTable::Limits => "limits",
        KeyTable::Files => "files",
        KeyTable::Tool => "tool",
        KeyTable::Listener => "listener",
        KeyTable::Tls => "tls",
        KeyTable::Auth => "auth",
        KeyTable::Issuer => "issuer",
        KeyTable::Introspection => "introspection",
        KeyTable::ApiKey => "api_key",
        KeyTable::TrustedProxy => "trusted_proxy",
        KeyTable::Policy => "policy",
        KeyTable::LimitRule => "limit_rule",
        KeyTable::Secrets => "secrets",
    }
}

fn refer(place: KeyTable) -> Value {
    json!({ "$ref": format!("#/definitions/{}", definition(place)) })
}

fn table(place: KeyTable) -> Map<String, Value> {
    let mut properties = Map::new();
    let mut spelt_otherwise = Map::new();
    for key in keys::of(place) {
        let camel_case = key.camel_case();
        if camel_case != key.name {
            // As a pattern, the second spelling is accepted, but editors do not offer it.
            spelt_otherwise.insert(format!("^{camel_case}$"), value(key));
        }
        properties.insert(key.name.to_owned(), described(key));
    }
    let mut table = Map::new();
    table.insert("type".to_owned(), json!("object"));
    table.insert("additionalProperties".to_owned(), json!(false));
    table.insert("properties".to_owned(), Value::Object(properties));
    if !spelt_otherwise.is_empty() {
        table.insert("patternProperties".to_owned(), Value::Object(spelt_otherwise));
    }
    table
}

/// The schema of a key's value, with its description and default.
fn described(key: &Key) -> Value {
    let later = match key.status {
        Status::Supported => String::new(),
        Status::Later { accepts: [], .. } => " Not supported yet.".to_owned(),
        Status::Later { accepts, .. } => format!(" Not supported yet, except `{}`.", accepts.join("`, `")),
    };
    // The `$ref` goes into an `allOf`, because draft 7 ignores the members beside a `$ref`.
    let mut schema = match value(key) {
        Value::Object(schema) if !schema.contains_key("$ref") => schema,
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    schema.insert("description".to_owned(), json!(format!("{}{later}", key.doc)));
    // A default that is a description ("one per core") is not JSON and is left out.
    if let Ok(default) = serde_json::from_str::<Value>(key.default) {
        schema.insert("default".to_owned(), default);
    }
    Value::Object(schema)
}

fn value(key: &Key) -> Value {
    match key.status {
        Status::Supported => kind(key.kind),
        Status::Later { accepts: [], .. } => json!({ "not": {} }),
        Status::Later { accepts, .. } => match key.kind {
            ValueKind::Choice(_) => words(accepts),
            _ => {
                let values = accepts.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
                json!({ "enum": values.collect::<Vec<_>>() })
            }
        },
    }
}

fn kind(kind: ValueKind) -> Value {
    match kind {
        ValueKind::Flag => json!({ "type": "boolean" }),
        ValueKind::Integer { least, most } => json!({ "type": "integer", "minimum": least, "maximum": most }),
        ValueKind::Text => json!({ "type": "string" }),
        ValueKind::Choice(choices) => words(choices),
        ValueKind::FlagOr(choices) => json!({ "anyOf": [{ "type": "boolean" }, words(choices)] }),
        ValueKind::List => json!({ "type": "array", "items": { "type": "string" } }),
        ValueKind::ChoiceOrList(choices) => {
            let items = json!({ "type": "array", "items": { "type": ["string", "integer"] } });
            json!({ "anyOf": [words(choices), items] })
        }
        // Editors see a TOML date as a string.
        ValueKind::Time => json!({ "type": "string" }),
        ValueKind::Map => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        ValueKind::ListMap => {
            let list = json!({ "type": "array", "items": { "type": "string" } });
            json!({ "type": "object", "additionalProperties": list })
        }
        ValueKind::Table(place) => refer(place),
        ValueKind::Tables(place) => named(place, &refer(place)),
        ValueKind::Rows(place) => rows(place),
        ValueKind::NamedRows(place) => named(place, &rows(place)),
    }
}

fn rows(place: KeyTable) -> Value {
    json!({ "type": "array", "items": refer(place) })
}

/// A table of named values. Names that end up in ids have few characters.
fn named(place: KeyTable, value: &Value) -> Value {
    let mut tables = json!({ "type": "object", "additionalProperties": value });
    if matches!(place, KeyTable::Server | KeyTable::Issuer | KeyTable::ApiKey | KeyTable::Listener) {
        tables["propertyNames"] = json!({ "pattern": "^[A-Za-z0-9_.-]{1,64}$" });
    }
    tables
}

/// Words match in any letter case: editors offer the list, and the pattern accepts the other spellings.
fn words(words: &[&str]) -> Value {
    let in_any_case = |word: &String| -> String {
        let one = |letter: char| match letter {
            letter if letter.is_ascii_alphabetic() => {
                format!("[{}{}]", letter.to_ascii_lowercase(), letter.to_ascii_uppercase())
            }
            other => other.to_string(),
        };
        word.chars().map(one).collect()
    };
    let as_camel_case = words.iter().filter(|word| word.contains('_')).map(|word| word.replace('_', ""));
    let all: Vec<String> = words.iter().map(|&word| word.to_owned()).chain(as_camel_case).collect();
    let pattern = all.iter().map(in_any_case).collect::<Vec<_>>().join("|");
    json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": format!("^({pattern})$") }] })
}
