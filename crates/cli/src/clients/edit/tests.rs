//! Tables of edits, and the properties that hold for every file.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const SERVERS: Place<'static> = Place { path: &["mcpServers"], name: "bridgehead" };
const CODEX: Place<'static> = Place { path: &["mcp_servers"], name: "bridgehead" };

fn entry() -> Shape {
    Shape::Table(vec![
        ("command".to_owned(), Shape::Text("/b".to_owned())),
        ("args".to_owned(), Shape::List(vec!["serve".to_owned(), "--stdio".to_owned()])),
    ])
}

/// Inserts, compares, and removes again, with and without the memory of the insertion.
#[track_caller]
fn check(format: Format, place: Place<'_>, before: &str, expected: &str) {
    let (edited, added) = insert(format, before, place, &entry()).unwrap();
    assert_eq!(edited, expected);
    assert_eq!(find(format, &edited, place).unwrap(), Some(entry().tree()));
    assert_eq!(find(format, before, place).unwrap(), None);
    assert_eq!(remove(format, &edited, place, Some(&added)).unwrap(), before, "with the memory of it");
    let forgotten = remove(format, &edited, place, None).unwrap();
    assert_eq!(find(format, &forgotten, place).unwrap(), None);
    assert_eq!(remove(format, &forgotten, place, None).unwrap(), forgotten);
    let twice = insert(format, &edited, place, &entry()).unwrap_err();
    assert!(twice.message.contains("exists already"), "{twice}");
}

/// JOIN-2: an entry follows the style of its file: indentation, line ends, byte order mark, comments, commas and the end of the
/// file stay as they are.
#[test]
fn json_keeps_its_style() {
    let json = |before: &str, expected: &str| check(Format::Json, SERVERS, before, expected);
    // A file that is missing or blank.
    let whole = "{\n  \"mcpServers\": {\n    \"bridgehead\": {\n      \"command\": \"/b\",\n      \"args\": [\"serve\", \"--stdio\"]\n    }\n  }\n}\n";
    json("", whole);
    json(" \n", whole);
    json("// mine", &format!("// mine\n{whole}"));
    json("\u{feff}", &format!("\u{feff}{whole}"));
    // An object without entries.
    json("{}\n", whole);
    json("{\n}\n", whole);
    json("{\n  \"mcpServers\": {}\n}", whole.trim_end());
    json(
        "{\n  \"mcpServers\": { /* none */ }\n}",
        "{\n  \"mcpServers\": { /* none */\n    \"bridgehead\": {\n      \"command\": \"/b\",\n      \"args\": [\"serve\", \"--stdio\"]\n    }\n   }\n}",
    );
    // Tabs and CRLF.
    json(
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {}\r\n\t}\r\n}\r\n",
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {},\r\n\t\t\"bridgehead\": {\r\n\t\t\t\"command\": \"/b\",\r\n\t\t\t\"args\": [\"serve\", \"--stdio\"]\r\n\t\t}\r\n\t}\r\n}\r\n",
    );
    // Four blanks, a byte order mark, another key after it, no line end at the end.
    json(
        "\u{feff}{\n    \"mcpServers\": {\n        \"a\": {}\n    },\n    \"z\": 1\n}",
        "\u{feff}{\n    \"mcpServers\": {\n        \"a\": {},\n        \"bridgehead\": {\n            \"command\": \"/b\",\n            \"args\": [\"serve\", \"--stdio\"]\n        }\n    },\n    \"z\": 1\n}",
    );
    // A trailing comma, with a comment behind it.
    json(
        "{\n  \"mcpServers\": {\n    \"a\": {}, // one\n    // two\n  },\n}\n",
        "{\n  \"mcpServers\": {\n    \"a\": {}, // one\n    // two\n    \"bridgehead\": {\n      \"command\": \"/b\",\n      \"args\": [\"serve\", \"--stdio\"]\n    },\n  },\n}\n",
    );
    // No trailing comma, with a comment behind the last entry.
    json(
        "{\n  \"mcpServers\": {\n    \"a\": {} // one\n  }\n}\n",
        "{\n  \"mcpServers\": {\n    \"a\": {}, // one\n    \"bridgehead\": {\n      \"command\": \"/b\",\n      \"args\": [\"serve\", \"--stdio\"]\n    }\n  }\n}\n",
    );
    // Everything in one line.
    json(
        r#"{"mcpServers":{"a":{}}}"#,
        r#"{"mcpServers":{"a":{},"bridgehead":{"command":"/b","args":["serve","--stdio"]}}}"#,
    );
    json(
        r#"{"mcpServers": {"a": {}} }"#,
        r#"{"mcpServers": {"a": {}, "bridgehead": {"command": "/b", "args": ["serve", "--stdio"]}} }"#,
    );
    json(r#"{"x":1}"#, r#"{"x":1,"mcpServers":{"bridgehead":{"command":"/b","args":["serve","--stdio"]}}}"#);
}

#[test]
fn keys_may_be_flat_or_deep() {
    let flat = Place { path: &["amp.mcpServers"], name: "bridgehead" };
    check(
        Format::Json,
        flat,
        "{\n  \"amp.x\": 1\n}\n",
        "{\n  \"amp.x\": 1,\n  \"amp.mcpServers\": {\n    \"bridgehead\": {\n      \"command\": \"/b\",\n      \"args\": [\"serve\", \"--stdio\"]\n    }\n  }\n}\n",
    );
    let deep = Place { path: &["projects", "/a b", "mcpServers"], name: "bridgehead" };
    check(
        Format::Json,
        deep,
        "{\n  \"projects\": {\n    \"/a b\": {}\n  }\n}\n",
        "{\n  \"projects\": {\n    \"/a b\": {\n      \"mcpServers\": {\n        \"bridgehead\": {\n          \"command\": \"/b\",\n          \"args\": [\"serve\", \"--stdio\"]\n        }\n      }\n    }\n  }\n}\n",
    );
}

/// JOIN-2: an entry of a file that others have changed since is taken away alone.
#[test]
fn what_others_added_stays() {
    #[track_caller]
    fn left(text: &str, expected: &str) {
        let added = Added { existing: 0, blank: Some(String::new()), before: None };
        assert_eq!(remove(Format::Json, text, SERVERS, Some(&added)).unwrap(), expected);
        assert_eq!(remove(Format::Json, text, SERVERS, None).unwrap(), expected);
    }
    let own = "\"bridgehead\": {\"command\": \"/b\"}";
    left(
        &format!("{{\n  \"mcpServers\": {{\n    {own},\n    \"x\": {{}}\n  }}\n}}\n"),
        "{\n  \"mcpServers\": {\n    \"x\": {}\n  }\n}\n",
    );
    left(
        &format!(
            "{{\n  \"mcpServers\": {{\n    \"w\": {{}},\n    {own}, // after\n    \"x\": {{}}\n  }}\n}}\n"
        ),
        "{\n  \"mcpServers\": {\n    \"w\": {}, // after\n    \"x\": {}\n  }\n}\n",
    );
    left(&format!("{{\"mcpServers\": {{{own}, \"x\": {{}}}}}}"), "{\"mcpServers\": {\"x\": {}}}");
    left(
        &format!("{{\"mcpServers\": {{\"w\": {{}}, {own}, \"x\": {{}}}}}}"),
        "{\"mcpServers\": {\"w\": {}, \"x\": {}}}",
    );
    left(&format!("{{\"mcpServers\": {{\"w\": {{}}, {own}}}}}"), "{\"mcpServers\": {\"w\": {}}}");
    // A comment of others keeps what it is in; a line comment keeps its line end.
    left(&format!("{{\"mcpServers\": {{ // mine\n  {own}}}}}"), "{\"mcpServers\": { // mine\n  }}");
    left(
        &format!("{{\"mcpServers\": {{\"w\": 1, // mine\n  {own}, \"x\": 2}}}}"),
        "{\"mcpServers\": {\"w\": 1, // mine\n  \"x\": 2}}",
    );
    left(
        &format!("{{\"mcpServers\": {{\"w\": 1, // mine\n  {own}}}}}"),
        "{\"mcpServers\": {\"w\": 1 // mine\n  }}",
    );
    left(
        &format!("{{\"mcpServers\": {{\"w\": 1, {own} /* a */ , \"x\": 2}}}}"),
        "{\"mcpServers\": {\"w\": 1,  /* a */  \"x\": 2}}",
    );
    left("{\"servers\": {\"bridgehead\": {}}}", "{\"servers\": {\"bridgehead\": {}}}");
    left("", "");
}

#[test]
fn a_value_is_replaced_in_place() {
    let json =
        |text: &str| replace(Format::Json, text, Place { path: &["a", "b"], name: "c" }, &entry()).unwrap();
    assert_eq!(
        json("{\n  \"a\": {\n    \"b\": {\n      \"c\": 1, // one\n      \"d\": 2\n    }\n  }\n}"),
        "{\n  \"a\": {\n    \"b\": {\n      \"c\": {\n        \"command\": \"/b\",\n        \"args\": [\"serve\", \"--stdio\"]\n      }, // one\n      \"d\": 2\n    }\n  }\n}"
    );
    assert_eq!(
        json("{\"a\":{\"b\":{\"c\":1}}}"),
        "{\"a\":{\"b\":{\"c\":{\"command\":\"/b\",\"args\":[\"serve\",\"--stdio\"]}}}}"
    );
    assert_eq!(json("{\"a\": {}}"), "{\"a\": {}}");
    assert_eq!(json(""), "");
    let toml = |text: &str| {
        replace(Format::Toml, text, Place { path: &["a"], name: "c" }, &Shape::Flag(true)).unwrap()
    };
    assert_eq!(toml("[a]\r\nc = 'x' # one\r\n"), "[a]\r\nc = true # one\r\n");
    assert_eq!(toml("a = { c = 1, d = 2 }"), "a = { c = true, d = 2 }");
    assert_eq!(toml("[a.c]\nd = 1\n"), "[a.c]\nd = 1\n");
}

/// JOIN-2: a broken file is named with line and column, and not edited.
#[test]
fn broken_files_are_refused() {
    #[track_caller]
    fn refused(format: Format, place: Place<'_>, text: &str, line: usize, column: usize, message: &str) {
        for error in [
            insert(format, text, place, &entry()).unwrap_err(),
            remove(format, text, place, None).unwrap_err(),
            find(format, text, place).unwrap_err(),
        ] {
            assert_eq!((error.line, error.column), (line, column), "{error}");
            assert!(error.message.contains(message), "{error}");
        }
    }
    let json =
        |text: &str, line, column, message: &str| refused(Format::Json, SERVERS, text, line, column, message);
    json("{\n  \"mcpServers\": {\n", 2, 17, "unterminated object");
    json("\u{feff}{\n \"ä\": x}", 2, 7, "");
    json("[]", 1, 1, "the file does not hold an object");
    json("{\"mcpServers\": 1}", 1, 16, "`mcpServers` does not hold an object");
    json("{\"mcpServers\": {},\n \"mcpServers\": {}}", 2, 2, "is here and in line 1");
    json("{\"mcpServers\": {\"bridgehead\": {},\n \"bridgehead\": {}}}", 2, 2, "is here and in line 1");
    json("{\"a\" 1}", 1, 6, "colon");
    json("{'a': 1}", 1, 2, "single-quoted");
    let toml =
        |text: &str, line, column, message: &str| refused(Format::Toml, CODEX, text, line, column, message);
    toml("[a]\nb =\n", 2, 4, "");
    toml("a = 1\na = 2\n", 2, 1, "duplicate key");
}

/// JOIN-2: TOML keeps its comments, its line ends and the end of the file.
#[test]
fn toml_keeps_its_style() {
    let toml = |before: &str, expected: &str| check(Format::Toml, CODEX, before, expected);
    let block = "[mcp_servers.bridgehead]\ncommand = \"/b\"\nargs = [\"serve\", \"--stdio\"]\n";
    toml("", block);
    toml("# mine\na = 1 # one\n", &format!("# mine\na = 1 # one\n\n{block}"));
    toml("a = 1", &format!("a = 1\n\n{}", block.trim_end()));
    toml("\u{feff}a = 1\r\n", &format!("\u{feff}a = 1\r\n\r\n{}", block.replace('\n', "\r\n")));
    toml(
        "[mcp_servers]\n[mcp_servers.x]\ncommand = 'x'\n",
        &format!("[mcp_servers]\n[mcp_servers.x]\ncommand = 'x'\n\n{block}"),
    );
    toml("mcp_servers.x.command = 'x'\n", &format!("mcp_servers.x.command = 'x'\n\n{block}"));
    toml(
        "mcp_servers = { x = { command = 'x' } } # all\n",
        "mcp_servers = { x = { command = 'x' }, bridgehead = { command = \"/b\", args = [\"serve\", \"--stdio\"] } } # all\n",
    );
}

#[test]
fn a_table_is_removed_with_all_its_parts() {
    #[track_caller]
    fn left(text: &str, expected: &str) {
        assert_eq!(remove(Format::Toml, text, CODEX, None).unwrap(), expected);
    }
    left(
        "a = 1\n\n[mcp_servers.bridgehead]\ncommand = 'x' # one\n\n[mcp_servers.bridgehead.env]\nA = '''\n[no]\n'''\n\n# of b\n[b]\n",
        "a = 1\n\n\n# of b\n[b]\n",
    );
    left(
        "[mcp_servers]\nbridgehead.command = 'x'\nbridgehead.args = [\n]\nx.command = 'y'\n",
        "[mcp_servers]\nx.command = 'y'\n",
    );
    left("[mcp_servers]\nbridgehead = { command = 'x' }\n", "[mcp_servers]\n");
    left("mcp_servers = { bridgehead = {}, x = {} }\n", "mcp_servers = { x = {} }\n");
    left("mcp_servers = { bridgehead = {} }\n", "mcp_servers = {}\n");
    left("[[mcp_servers.bridgehead]]\na = 1\n[[mcp_servers.bridgehead]]\na.b = 2\n[c]\n", "[c]\n");
    left("[mcp_servers.x]\n", "[mcp_servers.x]\n");
}

/// JOIN-2: what was written behind the entry stays, on lines of its own.
#[test]
fn toml_that_grew_since() {
    #[track_caller]
    fn left(before: &str, more: &str) {
        let (edited, added) = insert(Format::Toml, before, CODEX, &entry()).unwrap();
        let grown = format!("{edited}{more}");
        assert_eq!(remove(Format::Toml, &grown, CODEX, Some(&added)).unwrap(), format!("{before}{more}"));
    }
    left("a = 1", "\n[b]\nc = 2\n");
    left("a = 1", "\n# mine\n");
    left("a = 1", "\n\n[b]");
    left("a = 1\r\nb = 2", "\r\n[c]\r\n");
    left("a = 1\n", "[b]\n");
    left("a = 1\r\n", "\r\n[b]\r\n");
    left("", "[b]\n");
}

#[test]
fn members_are_added_to_an_entry() {
    let toml = |text: &str, value: &Shape| {
        insert(Format::Toml, text, Place { path: &["mcp_servers", "x"], name: "enabled" }, value).unwrap().0
    };
    let off = Shape::Flag(false);
    assert_eq!(
        toml("[mcp_servers.x]\r\ncommand = 'x'\r\n\r\n[b]\r\n", &off),
        "[mcp_servers.x]\r\ncommand = 'x'\r\nenabled = false\r\n\r\n[b]\r\n"
    );
    assert_eq!(toml("[mcp_servers.x]", &off), "[mcp_servers.x]\nenabled = false");
    assert_eq!(toml("mcp_servers = { x = {} }\n", &off), "mcp_servers = { x = { enabled = false } }\n");
    assert_eq!(toml("", &off), "[mcp_servers.x]\nenabled = false\n");
    assert!(insert(Format::Toml, "mcp_servers = 1\n", CODEX, &off).unwrap_err().message.contains("by hand"));
    let json = insert(
        Format::Json,
        "{\n \"s\": {\n  \"x\": {\"command\": \"y\"}\n }\n}\n",
        Place { path: &["s", "x"], name: "disabled" },
        &Shape::Flag(true),
    );
    assert_eq!(json.unwrap().0, "{\n \"s\": {\n  \"x\": {\"command\": \"y\", \"disabled\": true}\n }\n}\n");
}

#[test]
fn snippets_stand_alone() {
    let snippet = entry().snippet(Format::Toml, CODEX);
    assert_eq!(snippet, "[mcp_servers.bridgehead]\ncommand = \"/b\"\nargs = [\"serve\", \"--stdio\"]\n");
    let quoted = Shape::Table(vec![
        ("a b".to_owned(), Shape::Text("\"\\\n".to_owned())),
        ("env".to_owned(), Shape::Table(vec![("X".to_owned(), Shape::Text("y".to_owned()))])),
        ("none".to_owned(), Shape::Table(Vec::new())),
    ]);
    for (format, place) in [(Format::Toml, CODEX), (Format::Json, SERVERS)] {
        let snippet = quoted.snippet(format, place);
        assert_eq!(find(format, &snippet, place).unwrap(), Some(quoted.tree()), "{snippet}");
    }
    let all = servers(Format::Json, "{\"mcpServers\": {\"a\": {\"b\": null}}}", &["mcpServers"]).unwrap();
    assert_eq!(all, Some(json!({"a": {"b": null}})));
}

/// How a generated file is written.
#[derive(Debug, Clone)]
struct Style {
    mark: bool,
    newline: &'static str,
    indent: &'static str,
    in_lines: bool,
    spaced: bool,
    comments: bool,
    trailing: bool,
    ends: bool,
}

fn style() -> impl Strategy<Value = Style> {
    let newline = prop_oneof![Just("\n"), Just("\r\n")];
    let indent = prop_oneof![Just("  "), Just("    "), Just("\t"), Just("")];
    let flags = any::<(bool, bool, bool, bool, bool, bool)>();
    (newline, indent, flags).prop_map(
        |(newline, indent, (mark, in_lines, spaced, comments, trailing, ends))| Style {
            mark,
            newline,
            indent,
            in_lines,
            spaced,
            comments: comments && in_lines,
            trailing,
            ends,
        },
    )
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i32>().prop_map(serde_json::Value::from),
        "[a-z/{}\\[\\],:\"\\\\ä]{0,6}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-z{]{1,5}", inner, 0..4)
                .prop_map(|members| members.into_iter().collect::<serde_json::Value>()),
        ]
    })
}

/// A file with other keys and other servers around the place of ours.
fn file() -> impl Strategy<Value = serde_json::Value> {
    let others = prop::collection::btree_map("[a-z{]{1,5}", value(), 0..4);
    let servers = prop::option::of(prop::collection::btree_map("[a-z]{1,5}", value(), 0..4));
    (others, servers).prop_map(|(others, servers)| {
        let mut file: serde_json::Value = others.into_iter().collect();
        if let Some(servers) = servers {
            file["mcpServers"] = servers.into_iter().collect();
        }
        file
    })
}

fn written(value: &serde_json::Value, style: &Style, depth: usize, out: &mut String) {
    let (open, close, members): (_, _, Vec<(Option<&String>, &serde_json::Value)>) = match value {
        serde_json::Value::Object(members) => {
            ('{', '}', members.iter().map(|(name, value)| (Some(name), value)).collect())
        }
        serde_json::Value::Array(items) => ('[', ']', items.iter().map(|item| (None, item)).collect()),
        leaf => return out.push_str(&leaf.to_string()),
    };
    let line = |out: &mut String, depth: usize| {
        if style.in_lines {
            out.push_str(style.newline);
            out.push_str(&style.indent.repeat(depth));
        }
    };
    out.push(open);
    if style.comments && depth.is_multiple_of(2) {
        out.push_str(" // \"}, ");
        line(out, depth + 1);
    }
    let last = members.len();
    for (number, (name, value)) in members.into_iter().enumerate() {
        line(out, depth + 1);
        if let Some(name) = name {
            out.push_str(&format!(
                "{}:{}",
                serde_json::Value::from(name.as_str()),
                if style.spaced { " " } else { "" }
            ));
        }
        written(value, style, depth + 1, out);
        if style.comments && depth.is_multiple_of(3) {
            out.push_str(" /* , } */");
        }
        if number + 1 < last || style.trailing {
            out.push(',');
            if style.spaced && !style.in_lines {
                out.push(' ');
            }
        }
        if style.comments && !depth.is_multiple_of(2) {
            out.push_str(" // one \" ]");
        }
    }
    if last > 0 || (style.comments && depth.is_multiple_of(2)) {
        line(out, depth);
    }
    out.push(close);
}

proptest! {
    /// JOIN-2: whatever a file looks like, an entry that is added and removed again leaves every byte as it was, and strict
    /// JSON stays strict.
    #[test]
    fn json_is_restored(file in file(), style in style()) {
        let mut text = String::new();
        if style.mark {
            text.push('\u{feff}');
        }
        written(&file, &style, 0, &mut text);
        if style.ends {
            text.push_str(style.newline);
        }
        let (edited, added) = insert(Format::Json, &text, SERVERS, &entry()).unwrap();
        prop_assert_eq!(remove(Format::Json, &edited, SERVERS, Some(&added)).unwrap(), &*text);
        // Line ends are not mixed, and the edit is one entry.
        if style.newline == "\r\n" && style.in_lines && text.contains('\n') {
            prop_assert_eq!(edited.matches('\n').count(), edited.matches("\r\n").count());
        }
        let strict = |text: &str| serde_json::from_str::<serde_json::Value>(text.trim_start_matches('\u{feff}')).ok();
        let mut expected = file.clone();
        expected["mcpServers"]["bridgehead"] = entry().tree();
        if strict(&text).is_some() {
            prop_assert_eq!(strict(&edited), Some(expected));
        }
        // Another entry that came later stays.
        let later = Place { name: "a-later-one", ..SERVERS };
        let (both, _) = insert(Format::Json, &edited, later, &Shape::Flag(true)).unwrap();
        let left = remove(Format::Json, &both, SERVERS, Some(&added)).unwrap();
        prop_assert_eq!(find(Format::Json, &left, SERVERS).unwrap(), None);
        prop_assert_eq!(find(Format::Json, &left, later).unwrap(), Some(true.into()));
        let gone = remove(Format::Json, &left, later, Some(&added)).unwrap();
        let mut old = file;
        if old.as_object().is_some_and(|old| old.get("mcpServers").is_none()) && find(Format::Json, &gone, Place { path: &[], name: "mcpServers" }).unwrap().is_some() {
            old["mcpServers"] = json!({});
        }
        prop_assert_eq!(Some(old), servers(Format::Json, &format!("{{\"all\":{}}}", gone.trim_start_matches('\u{feff}')), &["all"]).unwrap());
    }

    /// JOIN-2: the same for TOML.
    #[test]
    fn toml_is_restored(
        lines in prop::collection::vec("( ?[a-e]{1,3} = (1|'x'|\\[ \\]|\\{ a = 1 \\})( # one)?|\\[[a-e]{1,3}\\]|\\[mcp_servers\\.[a-e]\\]|# two|)", 0..8),
        newline in prop_oneof![Just("\n"), Just("\r\n")],
        ends in any::<bool>(),
    ) {
        let text = lines.join(newline) + if ends { newline } else { "" };
        prop_assume!(toml_edit::Document::parse(text.as_str()).is_ok());
        let (edited, added) = insert(Format::Toml, &text, CODEX, &entry()).unwrap();
        prop_assert!(edited.starts_with(&text));
        prop_assert_eq!(remove(Format::Toml, &edited, CODEX, Some(&added)).unwrap(), text);
    }

    /// No text breaks the editor: it edits or refuses.
    #[test]
    fn any_text_is_edited_or_refused(text in "[{}\\[\\]\"a:,/*\n #=.\\\\é]{0,24}") {
        for (format, place) in [(Format::Json, SERVERS), (Format::Toml, CODEX)] {
            if let Ok((edited, added)) = insert(format, &text, place, &entry()) {
                prop_assert_eq!(remove(format, &edited, place, Some(&added)).unwrap(), &*text);
            }
            let _ = remove(format, &text, place, None);
            let _ = replace(format, &text, place, &entry());
        }
    }
}
