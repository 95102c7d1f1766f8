//! What holds for any file: reading it gives a configuration or diagnostics, and never shows a secret.
#![expect(clippy::unwrap_used, reason = "a failed assumption is a failed test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bridgehead_config::keys::KEYS;
use bridgehead_config::{
    ConfigError, Environment, LimitRule, PolicyRule, Rate, ThingPattern, Who, load, load_text,
};
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
[[auth.keys.ci]]
sha256 = "{SECRET}"
[auth.issuers.corp]
issuer = "https://u:{SECRET}@host/"
[auth.issuers.corp.introspection]
client_id = "x"
client_secret = "{SECRET}"
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
            "\"${file:x}\"",
            "\"${cmd:x}\"",
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
            "[\"*\", \"a/b\", \"key:k\"]",
            "[{}]",
            "{ x = [\"y\"] }",
            "\"1/s\"",
            "\"https://x/\"",
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
            "[auth]",
            "[secrets]",
            "[[auth.keys.k]]",
            "[auth.keys]",
            "[auth.issuers.i]",
            "[auth.issuers.i.introspection]",
            "[auth.proxy]",
            "[[policy]]",
            "[policy]",
            "[[limits.rules]]",
            "[http.listeners.l]",
            "[http.listeners.l.tls]",
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

/// What rules may name, so that every generated rule is a valid one.
const AROUND: &str = "
[[auth.keys.ci]]
sha256 = \"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\"
[auth.issuers.corp]
issuer = \"https://id.example.com\"
audiences = [\"a\"]
groups_claim = \"groups\"
[auth.proxy]
proxies = [\"10.0.0.7\"]
user_header = \"X-User\"
[servers.files]
command = \"x\"
";

fn who() -> impl Strategy<Value = Vec<Who>> {
    let name = || "[a-zé][a-z0-9 :/@\"\\\\é]{0,8}";
    let one = prop_oneof![
        Just(Who::Everyone),
        Just(Who::Local),
        Just(Who::Token),
        Just(Who::Key("ci".to_owned())),
        any::<u32>().prop_map(Who::LocalUser),
        name().prop_map(Who::Group),
        name().prop_map(Who::Proxy),
        name().prop_map(|subject| Who::Subject { issuer: "corp".to_owned(), subject }),
        Just(Who::Subject { issuer: "corp".to_owned(), subject: "*".to_owned() }),
    ];
    prop::collection::vec(one, 1..4)
}

fn thing() -> impl Strategy<Value = ThingPattern> {
    let server = prop::sample::select(&["files", "*", "FILES", "{files,x}", "f?les", "bridgehead"][..]);
    (server, "[a-z*?é:/.]{1,12}").prop_map(|(server, name)| ThingPattern { server: server.to_owned(), name })
}

fn things() -> impl Strategy<Value = Vec<ThingPattern>> {
    prop::collection::vec(thing(), 0..3)
}

fn policy_rule() -> impl Strategy<Value = PolicyRule> {
    let scopes = prop::collection::vec((thing(), prop::collection::vec("[a-z:.]{1,6}", 1..3)), 0..3);
    let lists = [(); 6].map(|()| things());
    (who(), lists, scopes, any::<bool>()).prop_map(|(who, lists, mut scopes, read_only)| {
        // A table has each pattern once.
        scopes.sort_by_key(|(pattern, _)| pattern.to_string());
        scopes.dedup_by_key(|(pattern, _)| pattern.to_string());
        let [tools, prompts, resources, deny_tools, deny_prompts, deny_resources] = lists;
        PolicyRule {
            who,
            tools,
            prompts,
            resources,
            deny_tools,
            deny_prompts,
            deny_resources,
            scopes,
            read_only,
            line: 0,
        }
    })
}

fn limit_rule() -> impl Strategy<Value = (LimitRule, String)> {
    let units = [("s", 1), ("sec", 1), ("min", 60), ("h", 3600), ("hour", 3600), ("day", 86_400)];
    let rate = (1..u32::MAX, prop::sample::select(units.to_vec()), prop::option::of(1..u32::MAX));
    let budget = prop::option::of(1..u64::try_from(i64::MAX).unwrap());
    (who(), things(), rate, prop::option::of(1..u32::MAX), budget).prop_map(
        |(who, tools, (count, (unit, seconds), burst), concurrent, budget_per_day)| {
            let number = |number: u32| number.try_into().unwrap();
            let rate = Rate {
                count: number(count),
                per: Duration::from_secs(seconds),
                burst: number(burst.unwrap_or(count)),
            };
            let rule = LimitRule {
                who,
                tools,
                rate: Some(rate),
                concurrent: concurrent.map(number),
                budget_per_day,
                line: 0,
            };
            let burst = burst.map(|burst| format!("burst = {burst}\n")).unwrap_or_default();
            (rule, format!("rate = \"{count}/{unit}\"\n{burst}"))
        },
    )
}

/// A list as TOML. JSON strings are TOML strings.
fn list<T: ToString>(items: &[T]) -> String {
    let quoted: Vec<String> =
        items.iter().map(|item| serde_json::to_string(&item.to_string()).unwrap()).collect();
    format!("[{}]", quoted.join(", "))
}

fn written(rule: &PolicyRule) -> String {
    let scopes: Vec<String> = rule
        .scopes
        .iter()
        .map(|(pattern, scopes)| {
            format!("{} = {}", serde_json::to_string(&pattern.to_string()).unwrap(), list(scopes))
        })
        .collect();
    format!(
        "[[policy]]\nwho = {}\ntools = {}\nprompts = {}\nresources = {}\ndeny_tools = {}\ndeny_prompts = {}\n\
         deny_resources = {}\nread_only = {}\nscopes = {{ {} }}\n",
        list(&rule.who),
        list(&rule.tools),
        list(&rule.prompts),
        list(&rule.resources),
        list(&rule.deny_tools),
        list(&rule.deny_prompts),
        list(&rule.deny_resources),
        rule.read_only,
        scopes.join(", ")
    )
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

    /// ACC-3, ACC-5: every rule that is written is read back as it was meant, in its place.
    #[test]
    fn rules_are_read_as_they_are_written(
        policy in prop::collection::vec(policy_rule(), 0..4),
        limits in prop::collection::vec(limit_rule(), 0..4),
    ) {
        let mut text = AROUND.to_owned();
        let mut expected = (Vec::new(), Vec::new());
        for rule in policy {
            let line = text.matches('\n').count() + 1;
            text.push_str(&written(&rule));
            expected.0.push(PolicyRule { line, ..rule });
        }
        for (rule, rate) in limits {
            let line = text.matches('\n').count() + 1;
            text.push_str(&format!("[[limits.rules]]\nwho = {}\ntools = {}\n{rate}", list(&rule.who), list(&rule.tools)));
            for (key, value) in [
                ("concurrent", rule.concurrent.map(|number| u64::from(number.get()))),
                ("budget_per_day", rule.budget_per_day),
            ] {
                text.extend(value.map(|value| format!("{key} = {value}\n")));
            }
            expected.1.push(LimitRule { line, ..rule });
        }
        let folder = Path::new("/nowhere");
        match load_text(Path::new("x.toml"), text.clone().into_bytes(), &environment(), folder) {
            Ok(read) => prop_assert_eq!((read.policy, read.limits), expected),
            Err(error) => prop_assert!(false, "{}\n{}", error, text),
        }
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
