//! Whatever a client's file holds, the result is a configuration.

use std::fs;

use bridgehead::config::load;
use proptest::prelude::*;

use super::{Place, surroundings};
use crate::clients::Client;
use crate::exit::Exit;

/// Values as people and programs write them into such files.
fn any_value() -> impl Strategy<Value = serde_json::Value> {
    let text = prop_oneof![
        r"[ -~]{0,12}",
        r"(\$|\{|\}|\$\{|:-|env:|file:|input:|workspaceFolder|\$\{\{ secrets\.|%|X|_|/|-| |ü|\\|\n|#|'){0,8}",
        Just("npx".to_owned()),
        Just("https://h.example.com/mcp".to_owned()),
        Just("postgres://ada:hunter2@db/x".to_owned()),
        any::<String>(),
    ];
    let leaf = prop_oneof![
        8 => text.prop_map(serde_json::Value::from),
        1 => any::<i64>().prop_map(serde_json::Value::from),
        1 => any::<bool>().prop_map(serde_json::Value::from),
        1 => Just(serde_json::Value::Null),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map(r"[A-Za-z_ -]{1,8}|Authorization|API_KEY", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Entries with the keys that clients use, and values of any kind.
fn any_entry() -> impl Strategy<Value = serde_json::Value> {
    let keys = [
        "command",
        "args",
        "env",
        "url",
        "serverUrl",
        "httpUrl",
        "uri",
        "cmd",
        "headers",
        "type",
        "transport",
        "cwd",
        "envFile",
        "disabled",
        "enabled",
        "timeout",
        "tools",
        "includeTools",
        "excludeTools",
        "env_vars",
        "env_keys",
        "apiKey",
        "headersHelper",
        "oauth",
        "other",
    ];
    let likely = prop_oneof![
        Just(("command", serde_json::Value::from("x"))),
        Just(("url", serde_json::Value::from("https://h.example.com/mcp"))),
        (prop::sample::select(keys.to_vec()), any_value()),
    ];
    prop::collection::vec((likely, (prop::sample::select(keys.to_vec()), any_value())), 1..4).prop_map(
        |pairs| {
            let pairs = pairs.into_iter().flat_map(|(one, other)| [one, other]);
            serde_json::Value::Object(pairs.map(|(key, value)| (key.to_owned(), value)).collect())
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// JOIN-1: whatever is imported loads as a configuration, and a second import changes nothing.
    #[test]
    fn whatever_is_imported_loads(
        client in prop::sample::select(&["claude-code", "cursor", "vscode", "zed", "opencode", "gemini", "cline", "warp", "copilot"][..]),
        entries in prop::collection::btree_map("[a-z ]{1,6}|bridgehead", any_entry(), 1..4),
        variables in any::<bool>(),
    ) {
        let place = Place::new();
        let client = Client::named(client).unwrap();
        let file = client.user_files(surroundings(&place.world())).remove(0).path;
        let key = client.keys[0][0];
        place.write(&file, &serde_json::json!({ key: entries }).to_string());
        let words = ["--from", client.id, "--secrets", if variables { "variables" } else { "env-file" }];
        let exit = place.import(&words);
        prop_assert!([Exit::Success, Exit::Failure].contains(&exit), "{:?}", exit);
        if place.own().exists() {
            let world = place.world();
            let config = load(Some(&place.own()), &world.environment, world.folder());
            prop_assert!(config.is_ok(), "{}\n{}", config.unwrap_err(), place.text(&place.own()));
            let before = fs::read(place.own()).unwrap();
            place.import(&words);
            prop_assert_eq!(String::from_utf8(before).unwrap(), fs::read_to_string(place.own()).unwrap());
        }
    }
}
