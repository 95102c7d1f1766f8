//! A planted secret appears in no stored record, log line, event or error.

use std::sync::Arc;

use bridgehead_audit::{StoreOptions, StoreSink, read_segment, segments, write_line};
use bridgehead_config::Mode;
use bridgehead_gateway::{Gateway, NativeTool, Options, ToolFailure};
use bridgehead_wire::{Redactor, Revision, Rules};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::ask;
use crate::telemetry::Lines;

const CASES: usize = 256;

/// A value in which a secret is planted, and the secret.
#[derive(Debug, Clone)]
struct Planted {
    arguments: Value,
    secret: String,
    /// The tool that is called with it.
    tool: &'static str,
}

/// A secret recognisable by a name, a shape or a pattern, with the value around it.
fn secret() -> impl Strategy<Value = (Value, String)> {
    let named = (
        prop::sample::select(
            &["password", "apiKey", "X-Api-Key", "client_secret", "authorization", "DB_PASS", "accessToken"]
                [..],
        ),
        "[A-Za-z0-9]{14,24}",
    )
        .prop_map(|(name, secret)| (json!({name: secret}), secret));
    let shaped = prop_oneof![
        "ghp_[A-Za-z0-9]{36}",
        "glpat-[A-Za-z0-9]{20}",
        "AKIA[A-Z0-9]{16}",
        "sk_live_[A-Za-z0-9]{24}",
        "npm_[A-Za-z0-9]{36}",
        "eyJ[A-Za-z0-9]{20}\\.eyJ[A-Za-z0-9]{30}\\.[A-Za-z0-9]{43}",
        "NIGHTINGALE-[0-9]{5,9}",
    ];
    let shaped = (shaped, "[a-z ]{0,12}")
        .prop_map(|(secret, around)| (json!(format!("{around} {secret} {around}")), secret));
    let number = (10_000_000_u64..99_999_999).prop_map(|digits| {
        let secret = format!("4711{digits}");
        (json!(secret.parse::<u64>().unwrap_or_default()), secret)
    });
    prop_oneof![3 => named, 3 => shaped, 1 => number]
}

fn planted() -> impl Strategy<Value = Planted> {
    let nested = (secret(), prop::collection::vec((any::<bool>(), "[a-z]{1,6}"), 0..4)).prop_map(
        |((value, secret), way)| {
            let around = |value: Value, (listed, name): (bool, String)| {
                if listed { json!([1, value, "x"]) } else { json!({name: value, "more": true}) }
            };
            (way.into_iter().fold(value, around), secret)
        },
    );
    let tool = prop::sample::select(&["mirror", "fail", "fail_in_detail", "strict", "nobody"][..]);
    let found = (nested, tool).prop_map(|((value, secret), tool)| Planted {
        arguments: json!({"value": value}),
        secret,
        tool,
    });
    // Path rules apply to arguments and results only: such a value cannot be found in a sentence.
    let by_path = ("[A-Za-z0-9]{14,24}", prop::sample::select(&["mirror", "strict", "nobody"][..])).prop_map(
        |(secret, tool)| Planted { arguments: json!({"plain": {"deep": secret}, "x": 1}), secret, tool },
    );
    prop_oneof![6 => found, 1 => by_path]
}

fn tools() -> Vec<NativeTool> {
    let open = || json!({"type": "object"});
    let strict =
        json!({"type": "object", "properties": {"value": {"type": "boolean"}}, "required": ["missing"]});
    vec![
        NativeTool::new("mirror", "", open(), |arguments, _| async move {
            Ok(json!({"plain": arguments["plain"], "value": arguments["value"]}))
        }),
        NativeTool::new("fail", "", open(), |arguments, _| async move {
            Err(ToolFailure::new(format!("cannot use {arguments}")))
        }),
        NativeTool::new("fail_in_detail", "", open(), |arguments, _| async move {
            Err(ToolFailure::new("cannot").with_details(arguments))
        }),
        NativeTool::new("strict", "", strict, |_, _| async { Ok(json!(1)) }),
    ]
}

/// AUD-4: a planted secret is in no byte of the store, no line of the log at its most verbose, no event, no export, and
/// no error that the client gets.
#[test]
fn a_planted_secret_is_nowhere() {
    let mut rules = Rules::default();
    rules.pattern(r"NIGHTINGALE-\d+").unwrap();
    rules.pattern(r"\b4711\d{8}\b").unwrap();
    // The result of a Rust tool is in its envelope, and a second time as text.
    for path in ["/plain/deep", "/structuredContent/data/plain/deep", "/content/*/text"] {
        rules.path("*", path).unwrap();
    }
    assert!(Redactor::hide_everywhere(&Arc::new(rules)));
    let (folder, lines) = (tempfile::tempdir().unwrap(), Lines::default());
    let _listening = lines.listen();
    let mut runner = TestRunner::default();
    let cases: Vec<Planted> =
        (0..CASES).map(|_| planted().new_tree(&mut runner).unwrap().current()).collect();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (errors, events) = runtime.block_on(async {
        let sink = Arc::new(StoreSink::open(StoreOptions::new(folder.path())).unwrap());
        let mut options = Options { tools: tools(), audit: Arc::clone(&sink) as _, ..Options::default() };
        options.settings.mode = Mode::Full;
        let gateway = Gateway::new(options).unwrap();
        gateway.start();
        let mut told = gateway.events().subscribe(4 * CASES);
        let (mut errors, mut events) = (Vec::new(), Vec::new());
        for Planted { arguments, tool, .. } in &cases {
            let params = json!({"name": tool, "arguments": arguments});
            let answer = match ask(&gateway, Revision::V2025_11_25, "tools/call", params, None).await {
                Ok(result) => result.as_str().to_owned(),
                Err(error) => error.body().as_str().to_owned(),
            };
            // A tool's own answer to its client is not redacted.
            errors.push(if *tool == "mirror" { String::new() } else { answer });
        }
        while let Some(event) = told.try_next() {
            events.push(format!("{event:?}"));
        }
        gateway.stop().await;
        sink.close();
        (errors, events)
    });
    assert_eq!(events.len(), CASES, "each call has its event");

    let mut stored = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        stored.extend(std::fs::read(entry.path()).unwrap());
    }
    let mut exported = Vec::new();
    for segment in segments(folder.path()) {
        read_segment(&segment, |record| Ok(write_line(record, &mut exported)?)).unwrap();
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let sinks = [
        ("the store", text(&stored)),
        ("the export", text(&exported)),
        ("the log", text(&lines.0.lock())),
        ("the events", events.join("\n")),
    ];
    assert!(sinks.iter().all(|(_, text)| text.contains("[redacted]")));
    for (planted, error) in cases.iter().zip(&errors) {
        for (sink, text) in sinks.iter().map(|(sink, text)| (*sink, text)).chain([("an error", error)]) {
            assert!(!text.contains(&planted.secret), "the secret is in {sink}: {planted:?}: {error}");
        }
    }
}
