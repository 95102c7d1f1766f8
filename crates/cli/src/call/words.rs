//! The arguments of a call as a shell writes them: `a=1 b=two`, or one JSON object after `--args`.
//!
//! A shell knows only texts. The schema of the tool says which of them are meant as JSON; a value is never changed beyond that, and
//! the gateway checks it as it checks any other.

use bridgehead_wire::Raw;
use serde_json::{Map, Value};

use crate::output::one_line;
use crate::request::read_arguments;

/// How deep a schema is looked into for the types of a value.
const DEEPEST: usize = 4;

/// The arguments as they were given.
#[derive(Debug)]
pub(super) enum Given {
    /// A whole JSON object.
    Whole(Raw),
    /// Words that a schema gives a type.
    Words(Words),
}

/// Names and values, each name once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words(Vec<(String, String)>);

impl Given {
    /// Reads the words behind the tool's name, or what is after `--args`. The error says what to write instead.
    pub(super) fn read(tool: &str, words: &[String], args: Option<&str>) -> Result<Self, String> {
        if words.is_empty() {
            return read_arguments(args.unwrap_or("{}")).map(Self::Whole);
        }
        if args.is_some() {
            return Err("write the arguments as name=value or after --args, not both".to_owned());
        }
        let mut pairs: Vec<(String, String)> = Vec::new();
        for word in words {
            let shown = one_line(word, 200);
            if word.trim_start().starts_with(['{', '[', '@']) || word == "-" {
                return Err(format!(
                    "all arguments at once stand after --args: bridgehead call {tool} --args '{shown}'"
                ));
            }
            let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) else {
                return Err(format!(
                    "which argument is `{shown}`? write it as name=value; `bridgehead tools show {tool}` has the names"
                ));
            };
            if pairs.iter().any(|(known, _)| known == name) {
                return Err(format!("the argument `{}` is given twice", one_line(name, 200)));
            }
            pairs.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self::Words(Words(pairs)))
    }
}

impl Words {
    /// The arguments for this tool, as its schema among these definitions has them.
    pub(super) fn fit(&self, tool: &str, tools: &[Raw]) -> Raw {
        let definition = tools.iter().filter_map(|one| one.decode::<Value>().ok());
        let definition = definition.into_iter().find(|one| one["name"] == tool).unwrap_or_default();
        let properties = &definition["inputSchema"]["properties"];
        let fitted: Map<String, Value> = self
            .0
            .iter()
            .map(|(name, text)| (name.clone(), value(text, &properties[name.as_str()])))
            .collect();
        Raw::encode(&fitted)
    }
}

/// A text, or the JSON that it is, by what the schema allows.
fn value(text: &str, schema: &Value) -> Value {
    let mut allowed = Vec::new();
    types(schema, &mut allowed, DEEPEST);
    let literal = || Value::String(text.to_owned());
    match serde_json::from_str::<Value>(text) {
        Ok(parsed) if allowed.is_empty() || allowed.contains(&kind(&parsed)) => match parsed {
            // A text that may be one stays as it is, with its quotes.
            Value::String(_) if !allowed.is_empty() => literal(),
            parsed => parsed,
        },
        Ok(Value::Number(number)) if allowed.contains(&"integer") => Value::Number(number),
        // The gateway says what is wrong with it, in the words of the schema.
        Ok(parsed) if !allowed.contains(&"string") => parsed,
        _ => literal(),
    }
}

/// The types that a schema names, in all its alternatives.
fn types<'s>(schema: &'s Value, allowed: &mut Vec<&'s str>, depth: usize) {
    match &schema["type"] {
        Value::String(one) => allowed.push(one),
        Value::Array(some) => allowed.extend(some.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for value in schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")) {
        allowed.push(kind(value));
    }
    if depth > 0 {
        let alternatives = ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema[*key].as_array());
        alternatives.flatten().for_each(|one| types(one, allowed, depth - 1));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(all: &[&str]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    /// JOIN-8: a value is a text or JSON as the schema of its argument says, and JSON where the schema says nothing.
    #[test]
    fn values_fit_the_schema() {
        #[track_caller]
        fn check(schema: &Value, text: &str, expected: &Value) {
            assert_eq!(value(text, schema), *expected, "{text} for {schema}");
        }
        let string = json!({"type": "string"});
        for text in ["1", "true", "null", "a b", "", "\"q\"", "{}"] {
            check(&string, text, &json!(text));
        }
        let integer = json!({"type": "integer"});
        check(&integer, "7", &json!(7));
        check(&integer, "7.5", &json!(7.5));
        check(&integer, "seven", &json!("seven"));
        check(&json!({"type": "boolean"}), "1", &json!(1));
        check(&json!({"type": "array"}), "[1,2]", &json!([1, 2]));
        let optional = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
        check(&optional, "null", &json!(null));
        check(&optional, "5", &json!("5"));
        check(&json!({"type": ["integer", "string"]}), "5", &json!(5));
        check(&json!({"enum": ["1", "2"]}), "1", &json!("1"));
        check(&json!({"enum": [1, 2]}), "1", &json!(1));
        check(&json!({}), "\"5\"", &json!("5"));
        check(&Value::Null, "a", &json!("a"));
        check(&Value::Null, "-1.5e3", &json!(-1500.0));
    }

    /// JOIN-8: words that are no arguments are refused with what to write instead.
    #[test]
    fn mistakes() {
        #[track_caller]
        fn refused(all: &[&str], args: Option<&str>, part: &str) {
            let told = Given::read("add", &words(all), args).unwrap_err();
            assert!(told.contains(part), "{told}");
        }
        refused(&[r#"{"a":1}"#], None, r#"bridgehead call add --args '{"a":1}'"#);
        refused(&["@file"], None, "--args '@file'");
        refused(&["-"], None, "--args '-'");
        refused(&["1", "2"], None, "which argument is `1`? write it as name=value");
        refused(&["=1"], None, "which argument is `=1`?");
        refused(&["a=1", "a=2"], None, "`a` is given twice");
        refused(&["a=1"], Some("{}"), "not both");
    }

    /// JOIN-8: the words become one object in their order; a tool that nobody knows gets JSON where a value is JSON.
    #[test]
    fn words_become_an_object() {
        let Ok(Given::Words(read)) = Given::read("say", &words(&["text=1", "a=b=c", "n=2"]), None) else {
            panic!()
        };
        let tool = json!({"name": "say", "inputSchema": {"properties": {"text": {"type": "string"}}}});
        let tools = [Raw::parse(tool.to_string()).unwrap()];
        assert_eq!(read.fit("say", &tools).as_str(), r#"{"a":"b=c","n":2,"text":"1"}"#);
        assert_eq!(read.fit("other", &tools).as_str(), r#"{"a":"b=c","n":2,"text":1}"#);
    }
}
