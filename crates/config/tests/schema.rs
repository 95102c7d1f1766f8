//! The JSON Schema matches the key table, and agrees with loading about every key.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test says what it needs")]

use std::collections::BTreeMap;
use std::path::Path;

use bridgehead_config::keys::{KEYS, Key, KeyTable, ValueKind};
use bridgehead_config::{ConfigError, Environment, load};
use bridgehead_schema::Validator;
use serde_json::Value;

fn validator() -> Validator {
    Validator::compile(&bridgehead_config::json_schema().to_string()).unwrap()
}

fn load_text(text: &str) -> Result<(), ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bridgehead.toml"), text).unwrap();
    let environment = Environment::read(BTreeMap::new()).unwrap();
    load(Some("bridgehead.toml".as_ref()), &environment, folder.path()).map(drop)
}

#[track_caller]
fn check(text: &str, issue_at: Option<&str>) {
    let document: Value = toml::from_str(text).unwrap();
    let outcome = validator().check(&document);
    match (issue_at, outcome) {
        (None, Ok(())) => {}
        (Some(path), Err(issues)) if issues.iter().any(|issue| issue.instance_path == path) => {}
        (expected, outcome) => panic!("expected {expected:?}, found {outcome:?}\n{text}"),
    }
}

/// A stale file fails; `UPDATE_REFERENCE=1` rewrites it.
#[test]
fn the_committed_schema_is_fresh() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bridgehead.schema.json");
    let schema = format!("{:#}\n", bridgehead_config::json_schema());
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&file, &schema).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == schema, "docs/bridgehead.schema.json is stale; run `cargo xtask generate`");
}

#[test]
fn the_examples_of_the_documentation_pass() {
    let tutorial = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/first-call.md");
    let page = bridgehead_config::reference() + &std::fs::read_to_string(tutorial).unwrap();
    let examples: Vec<_> =
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        check(example, None);
        load_text(example).unwrap();
    }
}

#[test]
fn slips_are_found_where_they_are() {
    check("[gateway]\nmode = \"ReadOnly\"\nlistWaitMs = 0", None);
    check("[gateway]\nmode = \"readnoly\"", Some("/gateway/mode"));
    check("[gateway]\nmdoe = \"full\"", Some("/gateway"));
    check("[gateway]\nrequest_timeout_ms = 0", Some("/gateway/request_timeout_ms"));
    check("[gateway]\nrequestTimeoutMs = \"1s\"", Some("/gateway/requestTimeoutMs"));
    check("[gateway]\nprefix = false", None);
    check("[gateway]\nprefix = \"always\"", Some("/gateway/prefix"));
    check("[servers.a]\ncommand = \"x\"\nisolation = \"shared\"\nidle_timeout_ms = 5\nlazy = true", None);
    check("[servers.a]\ncommand = \"x\"\nisolation = \"session\"\nshared = false", None);
    check("[servers.a]\ncommand = \"x\"\nisolation = \"call\"", None);
    check("[servers.a]\ncommand = \"x\"\nidle_timeout_ms = -5", Some("/servers/a/idle_timeout_ms"));
    check("[servers.a]\nenv = { A = 1 }", Some("/servers/a/env/A"));
    check("[servers.a.tools.t]\nlock = true", None);
    check("[servers.a.tools.t]\nlocked = true", Some("/servers/a/tools/t"));
    check(
        "[servers.a]\ncommand = \"x\"\nrequire = [\"memory:hard\"]\n[servers.a.limits]\nmax_memory_mb = 1",
        None,
    );
    check("[servers.a.limits]\nmax_memory_mb = 0", Some("/servers/a/limits/max_memory_mb"));
    check("[servers.a.tools.t.limits]\nmax_memory_mb = 1", None);
    check("[servers.a.tools.t.limits]\nmax_memory = 1", Some("/servers/a/tools/t/limits"));
    check("[servers.a.files]\nread = [\"/usr\"]", None);
    check("[servers.a]\ncommand = \"x\"\nnetwork = \"some\"", Some("/servers/a/network"));
    check("[servers.\"a b\"]\ncommand = \"x\"", Some("/servers"));
    check("[queues.q]\nconcurrency = 1\nmax_waiting = 0", None);
    check("[queues.q]\nconcurrency = 0", Some("/queues/q/concurrency"));
    check("[[policy]]\nwho = ['*']\ndenyTools = ['a/*']\nscopes = { 'a/b' = ['x'] }", None);
    check("[[policy]]\nwho = '*'", Some("/policy/0/who"));
    check("[[policy]]\nscopes = { 'a/b' = 'x' }", Some("/policy/0/scopes/a~1b"));
    check("[policy]\nwho = ['*']", Some("/policy"));
    check("[[limits.rules]]\nwho = ['*']\n[[limits.rules]]\nburts = 1", Some("/limits/rules/1"));
    check("[[auth.keys.ci]]\nexpires = '2027-01-01'\n[[auth.keys.ci]]\ngroups = ['a']", None);
    check("[auth.keys.ci]\ngroups = ['a']", Some("/auth/keys/ci"));
    check("[[auth.keys.'a b']]\ngroups = ['a']", Some("/auth/keys"));
    check("[http.listeners.a]\nlisten = 'unix:x'\ntls.cert_file = 'a'\ntls.key_file = 'b'", None);
    check("[http.listeners.a]\ntls.certfile = 'a'", Some("/http/listeners/a/tls"));
}

/// Values of every kind, and the edge values of the kind of `key`.
fn candidates(key: &Key) -> Vec<String> {
    let mut values: Vec<String> = [
        "true",
        "false",
        "-1",
        "0",
        "1",
        "1.5",
        "'x'",
        "'127.0.0.1:1'",
        "[]",
        "['x']",
        "[1]",
        "{}",
        "{ x = 'x' }",
        "{ x = ['x'] }",
        "[{}]",
        "{ x = [{}] }",
    ]
    .map(str::to_owned)
    .to_vec();
    values.extend(["{ x = 1 }", "{ x = {} }"].map(str::to_owned));
    match key.kind {
        ValueKind::Integer { least, most } => {
            values.extend([least, most, most + 1].map(|number| number.to_string()));
            values.push(least.wrapping_sub(1).cast_signed().to_string());
        }
        ValueKind::Choice(words) | ValueKind::FlagOr(words) => {
            values.extend(
                words
                    .iter()
                    .flat_map(|word| [word.to_uppercase(), (*word).to_owned()])
                    .map(|word| format!("'{word}'")),
            );
        }
        _ => {}
    }
    values
}

fn file(key: &Key, name: &str, value: &str) -> String {
    let line = format!("{name} = {value}\n");
    let server = "[servers.a]\ncommand = 'x'\n";
    let issuer = "[auth.issuers.a]\nissuer = 'https://a'\naudiences = ['x']\n";
    match key.place {
        KeyTable::Root => line,
        KeyTable::Gateway => format!("[gateway]\n{line}"),
        KeyTable::Http => format!("[http]\n{line}"),
        KeyTable::Bounds => format!("[limits]\n{line}"),
        KeyTable::Audit => format!("[audit]\n{line}"),
        KeyTable::Queue => format!("[queues.q]\n{line}"),
        KeyTable::Server if key.name == "command" => format!("[servers.a]\n{line}"),
        KeyTable::Server => format!("{server}{line}"),
        KeyTable::Limits => format!("{server}[servers.a.limits]\n{line}"),
        KeyTable::Files => format!("{server}[servers.a.files]\n{line}"),
        KeyTable::Tool => format!("{server}[servers.a.tools.t]\n{line}"),
        KeyTable::Listener if key.name == "listen" => format!("[http.listeners.a]\n{line}"),
        KeyTable::Listener => format!("[http.listeners.a]\nlisten = '127.0.0.1:1'\n{line}"),
        KeyTable::Tls => {
            format!("[http.listeners.a]\nlisten = '127.0.0.1:1'\n[http.listeners.a.tls]\n{line}")
        }
        KeyTable::Auth => format!("[auth]\n{line}"),
        KeyTable::ApiKey if key.name == "sha256" => format!("[[auth.keys.a]]\n{line}"),
        KeyTable::ApiKey => format!("[[auth.keys.a]]\nsha256 = '{}'\n{line}", "0f".repeat(32)),
        KeyTable::Issuer if key.name == "issuer" => format!("[auth.issuers.a]\n{line}"),
        KeyTable::Issuer if key.name == "audiences" => {
            format!("[auth.issuers.a]\nissuer = 'https://a'\n{line}")
        }
        KeyTable::Issuer => format!("{issuer}{line}"),
        KeyTable::Introspection => format!("{issuer}[auth.issuers.a.introspection]\n{line}"),
        KeyTable::TrustedProxy => format!("[auth.proxy]\n{line}"),
        KeyTable::Policy if key.name == "who" => format!("[[policy]]\ntools = ['*/*']\n{line}"),
        KeyTable::Policy if key.name == "tools" => format!("[[policy]]\nwho = ['*']\n{line}"),
        KeyTable::Policy => format!("[[policy]]\nwho = ['*']\ntools = ['*/*']\n{line}"),
        KeyTable::Secrets => format!("[secrets]\n{line}"),
        KeyTable::LimitRule if key.name == "rate" => format!("[[limits.rules]]\nwho = ['*']\n{line}"),
        KeyTable::LimitRule if key.name == "who" => format!("[[limits.rules]]\nrate = '1/s'\n{line}"),
        KeyTable::LimitRule => format!("[[limits.rules]]\nwho = ['*']\nrate = '1/s'\n{line}"),
        _ => unreachable!("a place without a heading"),
    }
}

/// Every key with values of every kind: the schema accepts what loads. It refuses what loading refuses because the key is
/// unknown, not supported yet, or of the wrong kind.
#[test]
fn the_schema_and_loading_agree_about_every_key() {
    let validator = validator();
    let (mut accepted, mut refused) = (0, 0);
    for key in KEYS {
        let all = candidates(key);
        // A sample is enough for the other spellings.
        let some = || all.iter().step_by(5);
        let spellings = [
            (key.name.to_owned(), all.iter().collect()),
            (key.camel_case(), some().collect::<Vec<_>>()),
            (format!("{}x", key.name), some().collect()),
        ];
        for (name, values) in spellings {
            for value in values {
                let text = file(key, &name, value);
                let document: Value = toml::from_str(&text).unwrap();
                let by_schema = validator.check(&document);
                match load_text(&text) {
                    Ok(()) => {
                        assert!(by_schema.is_ok(), "loads, but the schema says {by_schema:?}:\n{text}");
                        accepted += 1;
                    }
                    Err(error) => {
                        let by_table = error.0.iter().any(|diagnostic| {
                            let message = &diagnostic.message;
                            ["unknown key", "not supported yet", "must be"]
                                .iter()
                                .any(|part| message.contains(part))
                        });
                        assert!(!by_table || by_schema.is_err(), "the schema accepts, but {error}:\n{text}");
                        refused += usize::from(by_table);
                    }
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 1000, "{accepted} accepted, {refused} refused");
}
