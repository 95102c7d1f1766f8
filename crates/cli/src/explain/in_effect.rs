//! The rules that a running gateway applies, told over its control socket and read again here: `explain` asks for them when the
//! file of the configuration cannot be used.
//!
//! Names, groups and patterns are told. Digests of keys, tokens and secrets are not.

use std::path::{Path, PathBuf};

use bridgehead::config::{ApiKey, Config, Issuer, PolicyRule, Source, ThingPattern, Who};
use bridgehead_access::keys::KeysFile;
use serde_json::{Value, json};

use super::super::output;

/// What a running gateway tells of the configuration in effect.
pub(crate) fn told(config: &Config) -> Value {
    let keys = |keys: &[ApiKey]| -> Vec<Value> {
        keys.iter().map(|key| json!({"name": key.name, "groups": key.groups})).collect()
    };
    let file = match &config.source {
        Source::Toml(path) | Source::ClientJson(path) => Some(path),
        Source::Demo => None,
    };
    json!({
        "file": file,
        "servers": config.servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(),
        "issuers": config.auth.issuers.iter().map(|issuer| issuer.name.as_str()).collect::<Vec<_>>(),
        "keys": keys(&config.auth.keys),
        "keysFile": config.auth.keys_file,
        "policy": config.policy.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn rule(rule: &PolicyRule) -> Value {
    let texts = |patterns: &[ThingPattern]| patterns.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "line": rule.line,
        "who": rule.who.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "tools": texts(&rule.tools),
        "prompts": texts(&rule.prompts),
        "resources": texts(&rule.resources),
        "denyTools": texts(&rule.deny_tools),
        "denyPrompts": texts(&rule.deny_prompts),
        "denyResources": texts(&rule.deny_resources),
        "scopes": rule.scopes.iter().map(|(pattern, scopes)| json!([pattern.to_string(), scopes])).collect::<Vec<_>>(),
        "readOnly": rule.read_only,
    })
}

/// A configuration with the rules, names and keys that a gateway told, and nothing else; `None` if it told none. Keys come from
/// the keys file as it is now, because the gateway follows it.
pub(super) fn heard(told: &Value) -> Option<Config> {
    let mut config = Config::demo();
    config.source = match told["file"].as_str() {
        Some(file) => Source::Toml(PathBuf::from(file)),
        None => Source::Demo,
    };
    config.policy = told["policy"].as_array()?.iter().map(read_rule).collect::<Option<_>>()?;
    config.auth.issuers = texts(&told["issuers"]).into_iter().map(|name| Issuer::new(name, "")).collect();
    config.auth.keys = told["keys"].as_array()?.iter().map(key).collect::<Option<_>>()?;
    if let Some(file) = told["keysFile"].as_str() {
        match KeysFile::new(Path::new(file)).allow_group_read(true).rows() {
            Ok(rows) => {
                let rows = rows.unwrap_or_default();
                config.auth.keys_in_file = rows.keys;
                config.auth.revoked_keys = rows.revoked;
            }
            Err(error) => output::talk(&format!("warning: the keys of a file are not known: {error}")),
        }
    }
    Some(config)
}

/// The names of the servers that a gateway told.
pub(super) fn servers(told: &Value) -> Vec<String> {
    texts(&told["servers"])
}

fn key(told: &Value) -> Option<ApiKey> {
    Some(ApiKey {
        name: told["name"].as_str()?.to_owned(),
        sha256: [0; 32],
        groups: texts(&told["groups"]),
        scopes: Vec::new(),
        expires: None,
    })
}

fn read_rule(told: &Value) -> Option<PolicyRule> {
    let patterns = |key: &str| texts(&told[key]).iter().map(|text| pattern(text)).collect::<Option<Vec<_>>>();
    let scopes = told["scopes"].as_array()?.iter();
    Some(PolicyRule {
        line: usize::try_from(told["line"].as_u64()?).ok()?,
        who: texts(&told["who"]).iter().map(|text| who(text)).collect::<Option<_>>()?,
        tools: patterns("tools")?,
        prompts: patterns("prompts")?,
        resources: patterns("resources")?,
        deny_tools: patterns("denyTools")?,
        deny_prompts: patterns("denyPrompts")?,
        deny_resources: patterns("denyResources")?,
        scopes: scopes
            .map(|pair| Some((pattern(pair[0].as_str()?)?, texts(&pair[1]))))
            .collect::<Option<_>>()?,
        read_only: told["readOnly"].as_bool()?,
    })
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn pattern(text: &str) -> Option<ThingPattern> {
    let (server, name) = text.split_once('/')?;
    Some(ThingPattern { server: server.to_owned(), name: name.to_owned() })
}

/// The reverse of how it is displayed.
fn who(text: &str) -> Option<Who> {
    Some(match (text, text.split_once(':')) {
        ("*", _) => Who::Everyone,
        ("local", _) => Who::Local,
        ("token", _) => Who::Token,
        (_, Some(("local", user))) => Who::LocalUser(user.parse().ok()?),
        (_, Some(("key", name))) => Who::Key(name.to_owned()),
        (_, Some(("group", name))) => Who::Group(name.to_owned()),
        (_, Some(("proxy", name))) => Who::Proxy(name.to_owned()),
        _ => {
            let (issuer, subject) = text.split_once('/')?;
            Who::Subject { issuer: issuer.to_owned(), subject: subject.to_owned() }
        }
    })
}

#[cfg(test)]
mod tests {
    use bridgehead::config::{Environment, load_text};

    use super::*;

    /// JOIN-9: the rules that a gateway tells are those that are read again, whomever and whatever they speak of.
    #[test]
    fn what_is_told_is_heard() {
        let text = "[servers.a]\ncommand = 'x'\n\n[auth.issuers.corp]\nissuer = 'https://id.example.com'\naudiences = ['m']\n\n\
            [[auth.keys.ci]]\nsha256 = 'abababababababababababababababababababababababababababababababab'\ngroups = ['build']\n\n\
            [[policy]]\nwho = ['*', 'local', 'local:7', 'token', 'key:ci', 'group:build', 'corp/a:b', 'corp/*']\n\
            tools = ['a/read*', '*/x/y']\ndeny_tools = ['a/z']\nprompts = ['a/p']\nresources = ['a/file:///x/*']\n\
            deny_resources = ['a/q']\ndeny_prompts = ['*/r']\nread_only = true\n";
        let environment = Environment::default();
        let config = load_text(Path::new("/c.toml"), text.into(), &environment, Path::new("/"))
            .unwrap_or_else(|error| panic!("{error}"));
        let told = told(&config);
        assert!(!told.to_string().contains("abab"), "{told}");
        let heard = heard(&told).unwrap();
        assert_eq!(format!("{:?}", heard.policy), format!("{:?}", config.policy));
        assert_eq!((servers(&told), heard.auth.issuers.len()), (vec!["a".to_owned()], 1));
        assert_eq!((heard.auth.keys[0].name.as_str(), &heard.auth.keys[0].groups[0][..]), ("ci", "build"));
        assert_eq!(heard.source, config.source);
        assert!(super::heard(&json!({})).is_none());
        assert_eq!(who("proxy:x"), Some(Who::Proxy("x".to_owned())));
        assert_eq!(who("ada"), None);
    }
}
