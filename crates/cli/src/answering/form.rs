//! The forms that servers ask a person to fill in: their fields, what a typed text means for a field, and whether it fits.
//!
//! Knows nothing of terminals. A field of an unusual kind is typed as JSON.

use bridgehead_schema::Validator;
use bridgehead_wire::{Object, Raw};
use serde_json::{Value, json};

/// One field of a form.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    /// What the server calls it, if that is not its name, and what the server says of it.
    pub(super) about: String,
    pub(super) kind: Kind,
    pub(super) required: bool,
    pub(super) default: Option<Value>,
    schema: Value,
}

/// What a field takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Text,
    Integer,
    Number,
    Flag,
    /// One of these.
    Choice(Vec<Choice>),
    /// Any number of these.
    Choices(Vec<Choice>),
    /// Anything else.
    Json,
}

/// A value that a person may choose, and what the server calls it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) value: Value,
    pub(super) title: String,
}

/// The fields of a form, in the order of its schema.
pub(super) fn fields(schema: Option<&Raw>) -> Vec<Field> {
    let Some(form) = schema.and_then(|schema| Object::parse(schema).ok()) else { return Vec::new() };
    let required: Vec<String> =
        form.get("required").and_then(|required| required.decode().ok()).unwrap_or_default();
    let properties = form.get("properties").and_then(|properties| Object::parse(&properties).ok());
    let members: Vec<(String, Raw)> =
        properties.iter().flat_map(|properties| properties.members().collect::<Vec<_>>()).collect();
    members
        .into_iter()
        .map(|(name, schema)| {
            let schema: Value = schema.decode().unwrap_or_default();
            let texts = ["title", "description"].iter().filter_map(|key| schema[*key].as_str());
            Field {
                about: texts.filter(|text| *text != name).collect::<Vec<_>>().join(": "),
                kind: kind(&schema),
                required: required.contains(&name),
                default: schema.get("default").cloned(),
                name,
                schema,
            }
        })
        .collect()
}

fn kind(schema: &Value) -> Kind {
    if let Some(choices) = choices(schema) {
        return Kind::Choice(choices);
    }
    match schema["type"].as_str() {
        Some("string") => Kind::Text,
        Some("integer") => Kind::Integer,
        Some("number") => Kind::Number,
        Some("boolean") => Kind::Flag,
        Some("array") => choices(&schema["items"]).map_or(Kind::Json, Kind::Choices),
        _ => Kind::Json,
    }
}

/// The values of an `enum`, with `enumNames` if it has them, or of constants with titles.
fn choices(schema: &Value) -> Option<Vec<Choice>> {
    let titled = |title: Option<&Value>, value: &Value| Choice {
        title: title.and_then(Value::as_str).map_or_else(|| shown(value), str::to_owned),
        value: value.clone(),
    };
    if let Some(values) = schema["enum"].as_array() {
        let names = schema["enumNames"].as_array();
        let name = |at: usize| names.and_then(|names| names.get(at));
        return Some(values.iter().enumerate().map(|(at, value)| titled(name(at), value)).collect());
    }
    let options = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array())?;
    options.iter().map(|option| Some(titled(option.get("title"), option.get("const")?))).collect()
}

/// A value as a person would type it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

impl Field {
    /// What it takes, in words: the kind, its bounds, and whether it may be left out.
    pub(super) fn wants(&self) -> String {
        let kind = match &self.kind {
            Kind::Text => "text",
            Kind::Integer => "whole number",
            Kind::Number => "number",
            Kind::Flag => "yes or no",
            Kind::Choice(_) => "one of the list",
            Kind::Choices(_) => "any of the list, with commas between",
            Kind::Json => "JSON",
        };
        let mut words = vec![kind.to_owned()];
        let bounds = [
            ("format", ""),
            ("minLength", "at least this many characters: "),
            ("maxLength", "at most this many characters: "),
            ("minimum", "at least "),
            ("maximum", "at most "),
            ("minItems", "at least this many: "),
            ("maxItems", "at most this many: "),
        ];
        words.extend(bounds.iter().filter_map(|(key, words)| {
            Some(format!("{words}{}", shown(self.schema.get(*key).filter(|bound| !bound.is_null())?)))
        }));
        words.push(if self.required { "required" } else { "optional" }.to_owned());
        words.join(", ")
    }

    /// What a typed text means, if it fits.
    pub(super) fn read(&self, typed: &str) -> Result<Value, String> {
        let typed = typed.trim();
        let value = match &self.kind {
            Kind::Text => json!(typed),
            Kind::Integer => {
                json!(typed.parse::<i64>().map_err(|_| format!("`{typed}` is not a whole number"))?)
            }
            Kind::Number => match typed.parse::<f64>() {
                Ok(number) if number.is_finite() => {
                    serde_json::from_str(typed).unwrap_or_else(|_| json!(number))
                }
                _ => return Err(format!("`{typed}` is not a number")),
            },
            Kind::Flag => match typed.to_ascii_lowercase().as_str() {
                "y" | "yes" | "true" => json!(true),
                "n" | "no" | "false" => json!(false),
                _ => return Err(format!("`{typed}` is neither yes nor no")),
            },
            Kind::Choice(choices) => chosen(choices, typed)?,
            Kind::Choices(choices) => {
                let parts = typed.split(',').map(str::trim).filter(|part| !part.is_empty());
                Value::Array(parts.map(|part| chosen(choices, part)).collect::<Result<_, _>>()?)
            }
            Kind::Json => {
                serde_json::from_str(typed).map_err(|error| format!("this is not JSON: {error}"))?
            }
        };
        self.check(&value)?;
        Ok(value)
    }

    /// Whether a value fits the field.
    pub(super) fn check(&self, value: &Value) -> Result<(), String> {
        if let (Some(format), Some(text)) = (self.schema["format"].as_str(), value.as_str())
            && !fits_format(format, text)
        {
            return Err(format!("`{text}` is not of the form `{format}`"));
        }
        // A schema that does not compile is the server's fault; it checks the answer itself.
        let Ok(validator) = Validator::compile(&self.schema.to_string()) else { return Ok(()) };
        validator.check(value).map_err(|issues| {
            issues.first().map_or_else(|| "this does not fit".to_owned(), |issue| issue.message.clone())
        })
    }
}

/// The choice that a person means: by its number, its value or its title.
fn chosen(choices: &[Choice], typed: &str) -> Result<Value, String> {
    let is = |text: &str| text.eq_ignore_ascii_case(typed);
    let named = choices.iter().find(|choice| is(&shown(&choice.value)) || is(&choice.title));
    let numbered = || typed.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?));
    match named.or_else(numbered) {
        Some(choice) => Ok(choice.value.clone()),
        None => Err(format!("`{typed}` is none of the choices")),
    }
}

/// Whether a text has the form that forms may ask for. An unknown form is the server's to check.
fn fits_format(format: &str, text: &str) -> bool {
    match format {
        "email" => text.split_once('@').is_some_and(|(name, host)| {
            !name.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace) && !host.contains('@')
        }),
        "uri" => text.split_once(':').is_some_and(|(scheme, rest)| {
            let letters = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
            scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                && scheme.chars().all(letters)
                && !rest.is_empty()
                && !text.contains(char::is_whitespace)
        }),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(schema: &Value) -> Field {
        let form = Raw::encode(&json!({"properties": {"f": schema}, "required": ["f"]}));
        fields(Some(&form)).remove(0)
    }

    /// JOIN-8: a form has its fields in the server's order, each with its kind, its bounds and its default.
    #[test]
    fn the_fields_of_a_form() {
        let schema = Raw::parse(
            r#"{"type":"object","required":["z"],"properties":{
                "z":{"type":"string","title":"Name","description":"yours","minLength":2},
                "a":{"type":"integer","minimum":1,"maximum":9,"default":3},
                "m":{"type":"array","items":{"anyOf":[{"const":"r","title":"Red"}]},"minItems":1}}}"#
                .to_owned(),
        )
        .unwrap();
        let found = fields(Some(&schema));
        let told: Vec<_> =
            found.iter().map(|one| (one.name.as_str(), one.about.as_str(), one.wants())).collect();
        assert_eq!(
            told,
            [
                ("z", "Name: yours", "text, at least this many characters: 2, required".to_owned()),
                ("a", "", "whole number, at least 1, at most 9, optional".to_owned()),
                ("m", "", "any of the list, with commas between, at least this many: 1, optional".to_owned()),
            ]
        );
        assert_eq!(found[1].default, Some(json!(3)));
        assert_eq!(fields(None), []);
        assert_eq!(fields(Some(&Raw::literal("[]"))), []);
    }

    /// JOIN-8: what is typed becomes a value of the field's type, or an error that says why not.
    #[test]
    fn what_is_typed() {
        #[track_caller]
        fn check(schema: &Value, typed: &str, expected: Result<Value, &str>) {
            assert_eq!(field(schema).read(typed), expected.map_err(str::to_owned), "{schema} {typed}");
        }
        check(&json!({"type": "string"}), " a b ", Ok(json!("a b")));
        check(&json!({"type": "integer"}), "7", Ok(json!(7)));
        check(&json!({"type": "integer"}), "7.5", Err("`7.5` is not a whole number"));
        check(&json!({"type": "number"}), "7.50", Ok(json!(7.5)));
        check(&json!({"type": "number"}), "7", Ok(json!(7)));
        check(&json!({"type": "number"}), "inf", Err("`inf` is not a number"));
        check(&json!({"type": "boolean"}), "Y", Ok(json!(true)));
        check(&json!({"type": "boolean"}), "no", Ok(json!(false)));
        check(&json!({"type": "boolean"}), "2", Err("`2` is neither yes nor no"));
        let color = json!({"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]});
        for typed in ["2", "g", "green"] {
            check(&color, typed, Ok(json!("g")));
        }
        check(&color, "0", Err("`0` is none of the choices"));
        check(&color, "3", Err("`3` is none of the choices"));
        // A value that is itself a number is meant before a number of the list.
        check(&json!({"enum": [2, 1]}), "1", Ok(json!(1)));
        let titled = json!({"type": "string", "oneOf": [{"const": "a", "title": "A b"}, {"const": "c"}]});
        check(&titled, "a B", Ok(json!("a")));
        let many = json!({"type": "array", "items": {"type": "string", "enum": ["r", "g"]}, "maxItems": 1});
        check(&many, "r,", Ok(json!(["r"])));
        check(&many, "r, x", Err("`x` is none of the choices"));
        assert!(field(&many).read("r, g").is_err());
        check(&json!({"type": "object"}), "{\"a\":1}", Ok(json!({"a": 1})));
        assert!(field(&json!({"type": "object"})).read("{").unwrap_err().starts_with("this is not JSON"));
        assert!(field(&json!({"type": "string", "minLength": 3})).read("ab").is_err());
        assert!(field(&json!({"type": "integer", "maximum": 3})).read("4").is_err());
        assert!(field(&json!({"type": "integer", "$ref": "http://x"})).read("4").is_ok());
    }

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("email", "a@b", &["a", "@b", "a@", "a@b@c", "a @b"][..]),
            ("uri", "https://a", &["a", "1a:b", "a:", "a b:c", "a:b c"]),
            ("date", "2026-02-28", &["2026-02-30", "x"]),
            ("date-time", "2026-02-28T10:00:00Z", &["2026-02-28", "x"]),
            ("new", "anything", &[]),
        ] {
            let field = field(&json!({"type": "string", "format": format}));
            assert_eq!(field.read(good), Ok(json!(good)));
            for bad in bad {
                assert_eq!(field.read(bad), Err(format!("`{bad}` is not of the form `{format}`")));
            }
        }
    }

    #[test]
    fn values_as_they_are_typed() {
        for (value, expected) in [(json!("a"), "a"), (json!([1, "b"]), "1, b"), (json!(true), "true")] {
            assert_eq!(shown(&value), expected);
        }
    }
}
