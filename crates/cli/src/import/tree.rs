//! Reads JSON with comments, TOML and YAML into one tree that knows where everything stands.
//!
//! Nothing here interprets what is read. What must stay true: a text of any kind gives a tree or the place of its first fault,
//! never a panic, and a fault repeats no value of the file.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use toml_edit::{Item, TableLike};

use crate::clients::Form;

/// A place in a file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// A value and where it stands.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) at: Place,
    pub(crate) value: Value,
}

/// A value of any of the formats.
#[derive(Clone)]
pub(crate) enum Value {
    Null,
    Flag(bool),
    /// A number or a date, as it is written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file. JSON may have a key twice.
    Map(Vec<Member>),
}

/// One entry of a map.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) key: String,
    /// Where the key stands.
    pub(crate) at: Place,
    pub(crate) node: Node,
}

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) at: Place,
    pub(crate) message: String,
}

impl Node {
    /// The entries, if it is a map.
    pub(crate) fn map(&self) -> Option<&[Member]> {
        match &self.value {
            Value::Map(members) => Some(members),
            _ => None,
        }
    }

    /// The items, if it is a list.
    pub(crate) fn list(&self) -> Option<&[Self]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a value that is neither a list nor a map.
    pub(crate) fn scalar(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) | Value::Number(text) => Some(text.clone()),
            Value::Flag(flag) => Some(flag.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The flag, if it is one.
    pub(crate) const fn flag(&self) -> Option<bool> {
        match &self.value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The value under a key of a map. The last one counts, as for most clients.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.map()?.iter().rev().find(|member| member.key == key).map(|member| &member.node)
    }

    /// The value at the end of a path of keys.
    pub(crate) fn find(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// Whether it says nothing.
    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// What it is, for messages.
    pub(crate) const fn describe(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Flag(_) => "a flag",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// Reads the content of a file.
pub(crate) fn parse(content: &[u8], form: Form) -> Result<Node, Broken> {
    let text = std::str::from_utf8(content).map_err(|error| {
        let before = String::from_utf8_lossy(&content[..error.valid_up_to()]).into_owned();
        let message = "the file is not text in UTF-8".to_owned();
        Broken { at: Lines::of(&before).place(before.len()), message }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match form {
        Form::Json | Form::Jsonc => json(text),
        Form::Toml => toml(text),
        Form::Yaml => yaml(text),
    }
}

/// Where the lines of a text begin.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    fn place(&self, at: usize) -> Place {
        let at = self.text.floor_char_boundary(at.min(self.text.len()));
        let line = self.starts.partition_point(|start| *start <= at);
        let start = self.starts[line.saturating_sub(1)];
        Place { line, column: self.text[start..at].chars().count() + 1 }
    }

    fn span(&self, span: Option<Range<usize>>) -> Place {
        span.map_or_else(Place::default, |span| self.place(span.start))
    }
}

fn json(text: &str) -> Result<Node, Broken> {
    let lines = Lines::of(text);
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
        .map_err(|error| Broken {
            at: lines.place(error.range().start),
            message: format!("not valid JSON: {}", lower_first(&error.kind().to_string())),
        })?;
    // Some clients make an empty file first.
    Ok(parsed.value.map_or_else(nothing, |value| json_node(value, &lines)))
}

const fn nothing() -> Node {
    Node { at: Place { line: 1, column: 1 }, value: Value::Null }
}

fn json_node(value: jsonc_parser::ast::Value<'_>, lines: &Lines<'_>) -> Node {
    use jsonc_parser::ast::Value as Json;
    use jsonc_parser::common::Ranged;
    let at = lines.place(value.start());
    let value = match value {
        Json::NullKeyword(_) => Value::Null,
        Json::StringLit(text) => Value::Text(text.value.into_owned()),
        Json::NumberLit(number) => Value::Number(number.value.to_owned()),
        Json::BooleanLit(flag) => Value::Flag(flag.value),
        Json::Array(array) => {
            Value::List(array.elements.into_iter().map(|item| json_node(item, lines)).collect())
        }
        Json::Object(object) => Value::Map(
            object
                .properties
                .into_iter()
                .map(|property| Member {
                    at: lines.place(property.name.start()),
                    key: property.name.into_string(),
                    node: json_node(property.value, lines),
                })
                .collect(),
        ),
    };
    Node { at, value }
}

fn toml(text: &str) -> Result<Node, Broken> {
    let lines = Lines::of(text);
    let document = toml_edit::Document::parse(text).map_err(|error| Broken {
        at: lines.span(error.span()),
        message: format!("not valid TOML: {}", lower_first(error.message())),
    })?;
    Ok(Node { at: Place { line: 1, column: 1 }, value: toml_table(document.as_table(), &lines) })
}

fn toml_table(table: &dyn TableLike, lines: &Lines<'_>) -> Value {
    let member = |(key, item): (&str, &Item)| Member {
        at: lines.span(table.key(key).and_then(toml_edit::Key::span)),
        key: key.to_owned(),
        node: toml_node(item, lines),
    };
    Value::Map(table.iter().map(member).collect())
}

fn toml_node(item: &Item, lines: &Lines<'_>) -> Node {
    let value = match item {
        Item::None => Value::Null,
        Item::Value(value) => return toml_value(value, lines),
        Item::Table(table) => toml_table(table, lines),
        Item::ArrayOfTables(tables) => {
            let tables = tables
                .iter()
                .map(|table| Node { at: lines.span(table.span()), value: toml_table(table, lines) });
            Value::List(tables.collect())
        }
    };
    Node { at: lines.span(item.span()), value }
}

fn toml_value(value: &toml_edit::Value, lines: &Lines<'_>) -> Node {
    use toml_edit::Value as Toml;
    let at = lines.span(value.span());
    let value = match value {
        Toml::String(text) => Value::Text(text.value().clone()),
        Toml::Integer(number) => Value::Number(number.value().to_string()),
        Toml::Float(number) => Value::Number(number.value().to_string()),
        Toml::Boolean(flag) => Value::Flag(*flag.value()),
        Toml::Datetime(time) => Value::Number(time.value().to_string()),
        Toml::Array(items) => Value::List(items.iter().map(|item| toml_value(item, lines)).collect()),
        Toml::InlineTable(table) => toml_table(table, lines),
    };
    Node { at, value }
}

fn yaml(text: &str) -> Result<Node, Broken> {
    if text.trim().is_empty() {
        return Ok(nothing());
    }
    // The clients read YAML 1.2, where `no` and `y` are texts.
    let options = serde_saphyr::options! { strict_booleans: true };
    let read: Spanned<Yaml> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let error = error.without_snippet();
        // Its first line says what is wrong; the place comes apart.
        let words = error.to_string();
        let words = words.lines().next().unwrap_or_default();
        let words = words.split_once(" at line ").map_or(words, |(words, _)| words);
        let words = words.split_once("line ").map_or(words, |(before, rest)| match before {
            "" | "error: " => rest.split_once(": ").map_or(rest, |(_, words)| words),
            _ => words,
        });
        let at = error.location().map_or_else(Place::default, place);
        Broken { at, message: format!("not valid YAML: {}", lower_first(words)) }
    })?;
    Ok(yaml_node(read, text))
}

/// A YAML value before the texts of its numbers are looked up.
enum Yaml {
    Null,
    Flag(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned<Yaml>>),
    Map(Vec<(Spanned<Yaml>, Spanned<Yaml>)>),
}

fn yaml_node(read: Spanned<Yaml>, text: &str) -> Node {
    let at = place(read.referenced);
    // `1.10` is another text than the number 1.1.
    let written = |number: String| {
        let span = read.defined.span();
        let slice = span.byte_offset().zip(span.byte_len()).and_then(|(start, length)| {
            let start = usize::try_from(start).ok()?;
            text.get(start..start.checked_add(usize::try_from(length).ok()?)?)
        });
        slice.map(str::trim).filter(|slice| !slice.is_empty()).map_or(number, str::to_owned)
    };
    let value = match read.value {
        Yaml::Null => Value::Null,
        Yaml::Flag(flag) => Value::Flag(flag),
        Yaml::Number(number) => Value::Number(written(number)),
        Yaml::Text(text) => Value::Text(text),
        Yaml::List(items) => Value::List(items.into_iter().map(|item| yaml_node(item, text)).collect()),
        Yaml::Map(members) => Value::Map(
            members
                .into_iter()
                .filter_map(|(key, value)| {
                    let key = yaml_node(key, text);
                    Some(Member { key: key.scalar()?, at: key.at, node: yaml_node(value, text) })
                })
                .collect(),
        ),
    };
    Node { at, value }
}

fn place(location: Location) -> Place {
    let number = |number: u64| usize::try_from(number).unwrap_or_default();
    Place { line: number(location.line()), column: number(location.column()) }
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlVisitor)
    }
}

struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = Yaml;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Yaml, E> {
        Ok(Yaml::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Yaml, E> {
        Ok(Yaml::Number(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Yaml, E> {
        Ok(Yaml::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Yaml, E> {
        Ok(Yaml::Number(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Yaml, E> {
        Ok(Yaml::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_none<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
        Yaml::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Yaml, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Yaml::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Yaml, A::Error> {
        let mut all = Vec::new();
        while let Some(member) = members.next_entry()? {
            all.push(member);
        }
        Ok(Yaml::Map(all))
    }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The tree on one line.
    fn plain(node: &Node) -> String {
        match &node.value {
            Value::Map(members) => {
                let all: Vec<_> =
                    members.iter().map(|member| format!("{}={}", member.key, plain(&member.node))).collect();
                format!("{{{}}}", all.join(","))
            }
            Value::List(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(",")),
            Value::Null => "null".to_owned(),
            _ => node.scalar().unwrap(),
        }
    }

    #[track_caller]
    fn check(form: Form, text: &str, expected: &str) -> Node {
        let read = parse(text.as_bytes(), form).unwrap();
        assert_eq!(plain(&read), expected);
        read
    }

    /// JOIN-1: all three formats give the same tree, with the place of every key; a byte order mark and either kind of line ends
    /// do not matter.
    #[test]
    fn the_formats_give_one_tree() {
        let expected = "{s={a={c=x y,n=[1,true,1.10],e={K=no}}}}";
        let json = "\u{feff}// c\n{\n\t\"s\": {\r\n  \"a\": {\"c\": \"x y\", \"n\": [1, true, 1.10,], /* c */ \"e\": {\"K\": \"no\"}},\n}}";
        let read = check(Form::Json, json, expected);
        let key = &read.find(&["s"]).unwrap().map().unwrap()[0];
        assert_eq!((key.at.line, key.at.column), (4, 3));
        let toml = "# c\r\n[s.a]\r\nc = 'x y'\r\nn = [1, true, 1.10]\r\ne = { K = \"no\" }\r\n";
        let read = check(Form::Toml, toml, &expected.replace("1.10", "1.1"));
        let key = &read.find(&["s"]).unwrap().map().unwrap()[0];
        assert_eq!((key.at.line, key.at.column), (2, 4));
        let yaml = "\u{feff}# c\ns:\n  a:\n    c: x y\n    n: [1, true, 1.10]\n    e:\n      K: no\n";
        let read = check(Form::Yaml, yaml, expected);
        let key = &read.find(&["s"]).unwrap().map().unwrap()[0];
        assert_eq!((key.at.line, key.at.column), (3, 3));
    }

    #[test]
    fn other_values() {
        check(Form::Json, r#"{"a": null, "b": 1e3, "a": 2}"#, "{a=null,b=1e3,a=2}");
        check(Form::Toml, "a = 1979-05-27\n[[b]]\nc = 1\n[[b]]\nc = 2", "{a=1979-05-27,b=[{c=1},{c=2}]}");
        check(Form::Yaml, "a: ~\nb:\n- x\n- y: \"1\"\n7: z\nc: |\n  t\n", "{a=null,b=[x,{y=1}],7=z,c=t\n}");
        check(Form::Yaml, "d: &d {x: 1}\na: *d\nb:\n  <<: *d\n  y: 2\n", "{d={x=1},a={x=1},b={y=2,x=1}}");
        for form in [Form::Json, Form::Yaml] {
            check(form, "", "null");
            check(form, " \n", "null");
        }
        check(Form::Toml, "", "{}");
        let twice = parse(br#"{"a": 1, "a": 2}"#, Form::Json).unwrap();
        assert_eq!(twice.get("a").and_then(Node::scalar).as_deref(), Some("2"), "the last one counts");
    }

    /// JOIN-1: a broken file is reported with line and column, and without its values.
    #[test]
    fn faults_have_a_place() {
        #[track_caller]
        fn check(form: Form, text: &[u8], line: usize, column: usize, said: &str) {
            let broken = parse(text, form).err().unwrap();
            assert_eq!((broken.at.line, broken.at.column), (line, column), "{broken:?}");
            assert!(broken.message.contains(said) && !broken.message.contains("hunter2"), "{broken:?}");
            assert!(!broken.message.contains('\n') && broken.message.len() < 200, "{broken:?}");
        }
        check(Form::Json, b"{\"a\": {\n  \"password\": \"hunter2\"\n  \"b\": 1}}", 2, 24, "not valid JSON");
        check(Form::Json, "{\"ü\": x}".as_bytes(), 1, 7, "not valid JSON");
        check(Form::Json, b"{\"a\": \"hunter2", 1, 7, "not valid JSON: unterminated");
        check(Form::Json, b"{\"a\": \xff}", 1, 7, "UTF-8");
        check(Form::Toml, b"a = 1\npassword = hunter2\n", 2, 12, "not valid TOML");
        check(Form::Toml, b"[a]\nb = 1\nb = 2\n", 3, 1, "duplicate key");
        check(Form::Yaml, b"a:\n  b: 1\n\tpassword: hunter2\n", 2, 6, "found a tab");
        check(Form::Yaml, b"a: 1\nb: [hunter2\n", 2, 4, "unclosed");
        check(Form::Yaml, b"a:\n  b: 1\n  b: 2\n", 3, 3, "duplicate");
    }

    #[test]
    fn deep_nesting_and_bombs_are_faults() {
        let deep = 20_000;
        for (form, text) in [
            (Form::Json, "[".repeat(deep)),
            (Form::Toml, format!("a = {}{}", "[".repeat(deep), "]".repeat(deep))),
            (Form::Yaml, "[".repeat(deep)),
        ] {
            assert!(parse(text.as_bytes(), form).is_err());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            for form in [Form::Json, Form::Toml, Form::Yaml] {
                let _read = parse(text.as_bytes(), form);
            }
        }

        #[test]
        fn text_made_of_syntax_never_panics(text in r#"([\[\]{}=:,."'#/*&<!|>\\\n a1-]|true|\$\{|"""|---|é|\t){0,60}"#) {
            for form in [Form::Json, Form::Toml, Form::Yaml] {
                let _read = parse(text.as_bytes(), form);
            }
        }
    }
}
