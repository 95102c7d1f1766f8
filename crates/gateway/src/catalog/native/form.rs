//! The form of a question, made from the schema of a Rust type.
//!
//! A form is a small part of JSON Schema: an object whose fields are texts, numbers, booleans, or a choice of one or
//! several texts. Clients draw it, so it holds only members that they know.

use serde_json::{Map, Value, json};

/// The formats of texts that clients know.
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// The form for a schema without references. The error says what a form cannot have.
pub(super) fn of(schema: &Value) -> Result<Value, String> {
    if schema["type"] != "object" {
        return Err("it is not a struct with named fields".to_owned());
    }
    let none = Map::new();
    let mut fields = Map::new();
    for (name, schema) in schema["properties"].as_object().unwrap_or(&none) {
        let field = field(schema).ok_or_else(|| {
            format!("its field `{name}` is not a text, a number, a boolean, an enum without data, or a list of such enums")
        })?;
        fields.insert(name.clone(), field);
    }
    let mut form = json!({"type": "object", "properties": fields});
    if let Some(required) = schema.get("required") {
        form["required"] = required.clone();
    }
    Ok(form)
}

fn field(schema: &Value) -> Option<Value> {
    let schema = without_null(schema)?;
    let mut field = match choices(&schema) {
        Some(choices) => choices.of_one(),
        None => match schema["type"].as_str()? {
            "array" => {
                let items = choices(&schema["items"])?;
                kept(
                    &schema,
                    &["minItems", "maxItems"],
                    json!({"type": "array", "items": items.of_several()}),
                )
            }
            "string" => {
                let mut field = kept(&schema, &["minLength", "maxLength"], json!({"type": "string"}));
                if let Some(format) = schema["format"].as_str().filter(|format| FORMATS.contains(format)) {
                    field["format"] = json!(format);
                }
                field
            }
            kind @ ("integer" | "number") => kept(&schema, &["minimum", "maximum"], json!({"type": kind})),
            "boolean" => json!({"type": "boolean"}),
            _ => return None,
        },
    };
    if !schema["default"].is_null() {
        field["default"] = schema["default"].clone();
    }
    Some(kept(&schema, &["title", "description"], field))
}

/// A field with more members of its schema.
fn kept(schema: &Value, members: &[&str], mut field: Value) -> Value {
    for member in members {
        if let Some(value) = schema.get(member) {
            field[*member] = value.clone();
        }
    }
    field
}

/// The schema of an `Option` as that of its content: a field that may be missing is not required.
fn without_null(schema: &Value) -> Option<Value> {
    let mut schema = schema.clone();
    let object = schema.as_object_mut()?;
    if let Some(Value::Array(all)) = object.get("anyOf") {
        let [one] = &all.iter().filter(|one| one["type"] != "null").collect::<Vec<_>>()[..] else {
            return None;
        };
        let mut one = one.as_object()?.clone();
        object.remove("anyOf");
        // What the field says of itself counts more than what its type says.
        one.append(object);
        return Some(Value::Object(one));
    }
    if let Some(Value::Array(types)) = object.get("type") {
        let [one] = &types.iter().filter(|one| *one != "null").collect::<Vec<_>>()[..] else { return None };
        let one = (*one).clone();
        object.insert("type".to_owned(), one);
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    Some(schema)
}

/// The texts that a field may have, each with a title.
struct Choices(Vec<(String, Option<String>)>);

/// `None` if the schema is no choice of texts.
fn choices(schema: &Value) -> Option<Choices> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(values) = schema["enum"].as_array() {
        let values: Option<Vec<_>> = values.iter().map(|value| Some((text(value)?, None))).collect();
        return values.map(Choices);
    }
    if let Some(value) = schema.get("const") {
        return Some(Choices(vec![(text(value)?, text(&schema["description"]))]));
    }
    let parts = schema["oneOf"].as_array()?;
    let parts: Option<Vec<_>> = parts.iter().map(|part| Some(choices(part)?.0)).collect();
    parts.map(|parts| Choices(parts.concat()))
}

impl Choices {
    fn is_titled(&self) -> bool {
        self.0.iter().any(|(_, title)| title.is_some())
    }

    fn values(&self) -> Vec<&str> {
        self.0.iter().map(|(value, _)| value.as_str()).collect()
    }

    fn titled(&self) -> Vec<Value> {
        let one = |(value, title): &(String, Option<String>)| json!({"const": value, "title": title.as_ref().unwrap_or(value)});
        self.0.iter().map(one).collect()
    }

    fn of_one(&self) -> Value {
        match self.is_titled() {
            true => json!({"type": "string", "oneOf": self.titled()}),
            false => json!({"type": "string", "enum": self.values()}),
        }
    }

    fn of_several(&self) -> Value {
        match self.is_titled() {
            true => json!({"anyOf": self.titled()}),
            false => json!({"type": "string", "enum": self.values()}),
        }
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use schemars::generate::SchemaSettings;

    use super::*;

    fn form<T: JsonSchema>() -> Result<Value, String> {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        of(&settings.into_generator().into_root_schema_for::<T>().to_value())
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only their schemas matter")]
    enum Color {
        Red,
        Green,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only their schemas matter")]
    enum Speed {
        /// As fast as possible.
        Fast,
        Slow,
    }

    /// LIB-2: each kind of field, as clients know it.
    #[test]
    fn every_kind_of_field() {
        #[track_caller]
        fn check<T: JsonSchema>(expected: &Value) {
            #[derive(JsonSchema)]
            #[expect(dead_code, reason = "only its schema matters")]
            struct One<T> {
                /// What it is.
                it: T,
            }
            let form = form::<One<T>>().unwrap();
            let mut expected = expected.clone();
            expected["description"] = json!("What it is.");
            assert_eq!(form["properties"]["it"], expected);
        }
        check::<String>(&json!({"type": "string"}));
        check::<Option<String>>(&json!({"type": "string"}));
        check::<bool>(&json!({"type": "boolean"}));
        check::<u8>(&json!({"type": "integer", "minimum": 0, "maximum": 255}));
        check::<Option<f64>>(&json!({"type": "number"}));
        check::<Color>(&json!({"type": "string", "enum": ["Red", "Green"]}));
        check::<Option<Color>>(&json!({"type": "string", "enum": ["Red", "Green"]}));
        let speeds =
            json!([{"const": "Slow", "title": "Slow"}, {"const": "Fast", "title": "As fast as possible."}]);
        check::<Speed>(&json!({"type": "string", "oneOf": speeds}));
        check::<Option<Speed>>(&json!({"type": "string", "oneOf": speeds}));
        check::<Vec<Color>>(&json!({"type": "array", "items": {"type": "string", "enum": ["Red", "Green"]}}));
        check::<Vec<Speed>>(&json!({"type": "array", "items": {"anyOf": speeds}}));
    }

    /// LIB-2: what is required, what limits a field, and what only describes Rust.
    #[test]
    fn a_whole_form() {
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema matters")]
        struct Signup {
            #[schemars(email)]
            mail: String,
            #[schemars(length(min = 2, max = 9), title = "Your name")]
            name: Option<String>,
            #[serde(default)]
            count: i64,
        }
        let expected = json!({
            "type": "object",
            "properties": {
                "mail": {"type": "string", "format": "email"},
                "name": {"type": "string", "minLength": 2, "maxLength": 9, "title": "Your name"},
                "count": {"type": "integer", "default": 0},
            },
            "required": ["mail"],
        });
        assert_eq!(form::<Signup>(), Ok(expected));
        #[derive(JsonSchema)]
        struct Nothing {}
        assert_eq!(form::<Nothing>(), Ok(json!({"type": "object", "properties": {}})));
    }

    /// LIB-2: what a form cannot ask for is refused, and the reason names the field.
    #[test]
    fn what_is_no_form() {
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema matters")]
        struct Nested {
            inner: Option<Box<Nested>>,
        }
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema matters")]
        struct Words {
            words: Vec<String>,
        }
        assert!(form::<String>().unwrap_err().contains("not a struct"));
        assert!(form::<Nested>().unwrap_err().contains("`inner`"));
        assert!(form::<Words>().unwrap_err().contains("`words`"));
    }
}
