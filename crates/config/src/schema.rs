//! The JSON Schema of our own format, written from the key table, for editors.
//!
//! It says what the key table says: names, kinds, ranges, and what is still to come. What keys mean together
//! (`command` or `url`, a timeout within the other) is left to loading. What must stay true: a file that loads
//! is never refused by the schema, and an unknown key or a value of the wrong kind always is.
//!
//! Draft 7, because that is what editors know how to complete from.

use serde_json::{Map, Value, json};

use crate::keys::{self, Key, KeyTable, Status, ValueKind};

/// The schema of `bridgehead.toml`, as it is kept in `docs/bridgehead.schema.json`.
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
    // Whether objects are sorted by themselves is decided by whichever crate of a build asks for it.
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
            // A pattern, so that the second spelling is accepted but not offered.
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

/// What a key takes, with what a reader wants to know about it.
fn described(key: &Key) -> Value {
    let later = match key.status {
        Status::Supported => String::new(),
        Status::Later { accepts: [], .. } => " Not supported yet.".to_owned(),
        Status::Later { accepts, .. } => format!(" Not supported yet, except `{}`.", accepts.join("`, `")),
    };
    // In its own `allOf`, because draft 7 ignores what stands beside a `$ref`.
    let mut schema = match value(key) {
        Value::Object(schema) if !schema.contains_key("$ref") => schema,
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    schema.insert("description".to_owned(), json!(format!("{}{later}", key.doc)));
    // Defaults that are words ("one per core") are for people only.
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
        ValueKind::Map => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        ValueKind::Table(place) => refer(place),
        ValueKind::Tables(place) => {
            let mut tables = json!({ "type": "object", "additionalProperties": refer(place) });
            if place == KeyTable::Server {
                tables["propertyNames"] = json!({ "pattern": "^[A-Za-z0-9_.-]{1,64}$" });
            }
            tables
        }
    }
}

/// Words are read in any case: an editor offers the list, and the pattern lets the rest pass.
fn words(words: &[&str]) -> Value {
    let in_any_case = |word: &&str| -> String {
        let one = |letter: char| match letter {
            letter if letter.is_ascii_alphabetic() => {
                format!("[{}{}]", letter.to_ascii_lowercase(), letter.to_ascii_uppercase())
            }
            other => other.to_string(),
        };
        word.chars().map(one).collect()
    };
    let pattern = words.iter().map(in_any_case).collect::<Vec<_>>().join("|");
    json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": format!("^({pattern})$") }] })
}
