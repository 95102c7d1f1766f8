//! One value tree for both file formats: what was written, and where.
//!
//! The two readers differ only in syntax. Everything after them (unknown keys, types, meaning) works on this tree, so
//! TOML and JSON cannot drift apart. A node knows its byte range in the file; a table keeps the order of its keys. This
//! module does not know which keys exist.

use std::ops::Range;

use jsonc_parser::common::Ranged as _;
use toml::de::{DeTable, DeValue};

/// A byte range in the text of a file.
pub(crate) type Span = Range<usize>;

/// A value with its place in the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) value: Value,
}

/// What a node holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    /// A number that is not a whole number within 64 bits, as it was written.
    Number(String),
    Flag(bool),
    /// A time or a date, as it was written.
    Date(String),
    /// Only as an item of a list; a key that is `null` counts as absent.
    Null,
    List(Vec<Node>),
    Table(Vec<Entry>),
}

/// One key of a table with its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: Span,
    pub(crate) node: Node,
}

/// What a reader rejected, and where.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SyntaxError {
    pub(crate) message: String,
    pub(crate) span: Span,
}

impl Value {
    /// The kind of value in words, for "expected …, found …".
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Integer(_) | Value::Number(_) => "a number",
            Value::Flag(_) => "a boolean",
            Value::Date(_) => "a date",
            Value::Null => "null",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// A scalar as plain text, `None` for lists, tables and dates.
    pub(crate) fn scalar_text(&self) -> Option<String> {
        match self {
            Value::Text(text) | Value::Number(text) => Some(text.clone()),
            Value::Integer(number) => Some(number.to_string()),
            Value::Flag(flag) => Some(flag.to_string()),
            Value::Date(_) | Value::Null | Value::List(_) | Value::Table(_) => None,
        }
    }
}

/// Reads TOML. The parser recovers, so it reports several syntax errors at once.
pub(crate) fn read_toml(text: &str) -> Result<Node, Vec<SyntaxError>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let span = document.span();
        return Ok(Node { span, value: toml_table(document.into_inner()) });
    }
    let whole = text.len()..text.len();
    Err(errors
        .into_iter()
        .map(|error| SyntaxError {
            message: error.message().to_owned(),
            span: error.span().unwrap_or_else(|| whole.clone()),
        })
        .collect())
}

fn toml_table(table: DeTable<'_>) -> Value {
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, value)| {
            let key_span = key.span();
            Entry { key: key.into_inner().into_owned(), key_span, node: toml_node(value) }
        })
        .collect();
    // The parser's map is sorted by name; users expect the order of the file.
    entries.sort_by_key(|entry| entry.key_span.start);
    Value::Table(entries)
}

fn toml_node(value: toml::Spanned<DeValue<'_>>) -> Node {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Number(number.to_string()),
        },
        DeValue::Float(number) => Value::Number(number.to_string()),
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::Datetime(time) => Value::Date(time.to_string()),
        DeValue::Array(items) => Value::List(items.into_iter().map(toml_node).collect()),
        DeValue::Table(table) => toml_table(table),
    };
    Node { span, value }
}

/// Reads JSON with comments and trailing commas. A key whose value is `null` is read as if it were absent.
pub(crate) fn read_json(text: &str) -> Result<Node, SyntaxError> {
    let options = jsonc_parser::ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = jsonc_parser::parse_to_ast(text, &jsonc_parser::CollectOptions::default(), &options)
        .map_err(|error| SyntaxError {
            message: lower_first(&error.kind().to_string()),
            span: error.range().start..error.range().end,
        })?;
    let end = text.len();
    parsed
        .value
        .map(json_node)
        .ok_or(SyntaxError { message: "the file holds no JSON object".to_owned(), span: end..end })
}

fn json_node(value: jsonc_parser::ast::Value<'_>) -> Node {
    use jsonc_parser::ast::Value as Json;
    let span = value.start()..value.end();
    let value = match value {
        Json::NullKeyword(_) => Value::Null,
        Json::StringLit(text) => Value::Text(text.value.into_owned()),
        Json::NumberLit(number) => match number.value.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Number(number.value.to_owned()),
        },
        Json::BooleanLit(flag) => Value::Flag(flag.value),
        Json::Array(array) => Value::List(array.elements.into_iter().map(json_node).collect()),
        Json::Object(object) => Value::Table(
            object
                .properties
                .into_iter()
                .filter(|property| property.value.as_null_keyword().is_none())
                .map(|property| {
                    let key_span = property.name.start()..property.name.end();
                    Entry { key: property.name.into_string(), key_span, node: json_node(property.value) }
                })
                .collect(),
        ),
    };
    Node { span, value }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(node: &Node) -> &[Entry] {
        match &node.value {
            Value::Table(entries) => entries,
            other => panic!("expected a table, found {}", other.describe()),
        }
    }

    #[test]
    fn both_formats_give_the_same_tree() {
        let toml =
            read_toml("[servers.b]\ncommand = 'x'\nargs = [1, true]\n[servers.a]\ntimeout = 1.5").unwrap();
        let json = read_json(
            r#"{"servers": { /* c */ "b": {"command": "x", "args": [1, true,]}, "a": {"timeout": 1.5, "gone": null}}}"#,
        )
        .unwrap();
        fn plain(node: &Node) -> String {
            match &node.value {
                Value::Table(entries) => {
                    let entries: Vec<_> =
                        entries.iter().map(|entry| format!("{}={}", entry.key, plain(&entry.node))).collect();
                    format!("{{{}}}", entries.join(","))
                }
                Value::List(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(",")),
                other => other.scalar_text().unwrap(),
            }
        }
        assert_eq!(plain(&toml), "{servers={b={command=x,args=[1,true]},a={timeout=1.5}}}");
        assert_eq!(plain(&json), plain(&toml));
    }

    #[test]
    fn spans_are_bytes_of_the_text() {
        let text = "# ü\n[gateway]\nmode = \"full\"";
        let tree = read_toml(text).unwrap();
        let gateway = &table(&tree)[0];
        let mode = &table(&gateway.node)[0];
        assert_eq!(&text[gateway.key_span.clone()], "gateway");
        assert_eq!(&text[mode.key_span.clone()], "mode");
        assert_eq!(&text[mode.node.span.clone()], "\"full\"");
    }

    #[test]
    fn several_toml_syntax_errors_are_found_in_one_go() {
        let errors = read_toml("a = \nb = 1\nc = 'x\n").unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        let deep = 20_000;
        assert!(read_json(&"[".repeat(deep)).is_err());
        assert!(read_json(&r#"{"a":"#.repeat(deep)).is_err());
        assert!(read_toml(&format!("a = {}{}", "[".repeat(deep), "]".repeat(deep))).is_err());
        assert!(read_toml(&format!("{}a = 1", "a.".repeat(deep))).is_err());
        assert!(read_toml(&format!("[{}a]", "a.".repeat(deep))).is_err());
        assert!(read_toml(&format!("b = {{ c = 1, {}a = 1 }}", "a.".repeat(deep))).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _toml = read_toml(&text);
            let _json = read_json(&text);
        }

        #[test]
        fn text_made_of_syntax_never_panics(text in r#"([\[\]{}=:,."'#/*\\\n a1-]|true|\$\{|"""|é){0,60}"#) {
            let _toml = read_toml(&text);
            let _json = read_json(&text);
        }
    }
}
