//! What holds for any file: reading it gives a configuration or diagnostics, and never shows a secret.
#![expect(clippy::unwrap_used, reason = "a failed assumption is a failed test")]

use std::collections::BTreeMap;

use bridgehead_config::keys::KEYS;
use bridgehead_config::{ConfigError, Environment, load};
use proptest::prelude::*;

fn environment() -> Environment {
    Environment::read(BTreeMap::from([("HOME".to_owned(), "/home/x".to_owned())])).unwrap()
}

/// Everything that reading a file prints.
fn told(file: &str, text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(file), text).unwrap();
    match load(Some(file.as_ref()), &environment(), folder.path()) {
        Ok(config) => {
            let warnings: String = config.warnings.iter().map(|warning| warning.render(true)).collect();
            format!("{config:?}\n{}\n{warnings}", ConfigError(config.warnings.clone()))
        }
        Err(error) => format!("{error:?}\n{error}"),
    }
}

const SECRET: &str = "c2VjcmV0LXZhbHVlLXh5eg";

fn planted(json: bool) -> String {
    if json {
        return format!(
            r#"{{
  "mcpServers": {{
    "a": {{ "command": "x", "args": ["--token", "{SECRET}"], "env": {{ "KEY": "{SECRET}" }} }},
    "b": {{
      "type": "http",
      "url": "https://u:{SECRET}@host/",
      "headers": {{
        "X": "{SECRET}"
      }}
    }}
  }},
  "other": "{SECRET}"
}}
"#
        );
    }
    format!(
        r#"[http]
token_env = "{SECRET}"
[servers.a]
command = "x"
args = ["--token", "{SECRET}", "-y"]
env = {{ KEY = "{SECRET}", OTHER = '{SECRET}' }}
[servers.b.env]
KEY = """
{SECRET}
"""
OTHER = "{SECRET}"
"#
    )
}

/// A known key, in either spelling, with a value that may or may not be valid.
fn entry() -> impl Strategy<Value = String> {
    let name = (prop::sample::select(KEYS), any::<bool>())
        .prop_map(|(key, camel)| if camel { key.camel_case() } else { key.name.to_owned() });
    let value = prop::sample::select(
        &[
            "true",
            "-1",
            "0",
            "64",
            "1e400",
            "99999999999999999999",
            "\"x\"",
            "\"${X\"",
            "\"${HOME:-é}\"",
            "\"\"",
            "[]",
            "[1]",
            "[\"é\", \"~/\"]",
            "{}",
            "{ x = \"y\" }",
            "{ x = {} }",
            "2026-01-01",
            "nan",
            "\"\\u0000\"",
        ][..],
    );
    (name, value).prop_map(|(name, value)| format!("{name} = {value}"))
}

fn heading() -> impl Strategy<Value = String> {
    prop::sample::select(
        &[
            "[gateway]",
            "[http]",
            "[audit]",
            "[servers]",
            "[servers.a]",
            "[servers.'ü b']",
            "[servers.a.tools.t]",
            "[servers.a.env]",
            "[servers.a.limits]",
            "[queues.q]",
            "[[servers]]",
            "[servers.a.files]",
        ][..],
    )
    .prop_map(str::to_owned)
}

/// A member of a client's file.
fn member() -> impl Strategy<Value = String> {
    let name = prop::sample::select(
        &[
            "mcpServers",
            "servers",
            "context_servers",
            "command",
            "args",
            "env",
            "url",
            "type",
            "disabled",
            "envFile",
            "é",
        ][..],
    );
    let value = prop_oneof![
        Just("{"),
        prop::sample::select(
            &["\"x\",", "1,", "[1,],", "[\"x\"],", "{\"é\": \"y\"},", "null,", "true,", "\"${X\"", "{}"][..]
        ),
    ];
    (name, value).prop_map(|(name, value)| format!("\"{name}\": {value}"))
}

proptest! {
    // A failing case is printed in full; no regression file is written.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_files_never_panic(
        lines in prop_oneof![
            prop::collection::vec(prop_oneof![3 => entry(), 2 => heading(), 1 => any::<String>()], 0..10),
            prop::collection::vec(prop_oneof![5 => member(), 2 => "[{}\\[\\],]{1,3}", 1 => any::<String>()], 0..12)
                .prop_map(|mut lines| { lines.insert(0, "{".to_owned()); lines }),
        ],
        file in prop::sample::select(&["x.toml", "x.json", "x"][..]),
    ) {
        prop_assert!(!told(file, &lines.join("\n")).is_empty());
    }

    /// After one typo anywhere in a file, no message shows a planted secret.
    #[test]
    fn a_planted_secret_is_shown_in_no_message(
        json in any::<bool>(),
        at in any::<prop::sample::Index>(),
        removed in 0..3_usize,
        inserted in prop::sample::select(&["", "\"", "'", "=", ":", "\n", "[", "]", "{", "}", ",", "#", "\\q", "x",
            " ", "é", "\"\"\"", "//", "${", "\r"][..]),
    ) {
        let mut text = planted(json);
        let start = at.index(text.len());
        text.replace_range(start..(start + removed).min(text.len()), inserted);
        let told = told(if json { "x.json" } else { "x.toml" }, &text);
        // Even eight characters in a row are a leak.
        for part in SECRET.as_bytes().windows(8) {
            let part = std::str::from_utf8(part).unwrap();
            prop_assert!(!told.contains(part), "{text}\n---\n{told}");
        }
    }
}
