//! Writes the reference pages of events and of counters, and fails if they are stale (`cargo xtask generate`).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do: with a panic that says where")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use bridgehead_call::CorrelationId;
use bridgehead_events::{
    Asked, BOUNDS, Counter, Detail, Event, Excerpt, InitOutcome, Measure, ProbeKind, Topic,
};
use bridgehead_wire::Redactor;

/// What each key of an event means. A key without a line here fails the test.
const KEYS: &[(&str, &str)] = &[
    ("topic", "the topic"),
    ("time", "when it happened, in UTC, with milliseconds"),
    (
        "correlationId",
        "the call it belongs to; for an event of a server, the start or restart that caused it",
    ),
    ("server", "the server's name in the configuration; `null` if no server is concerned"),
    ("count", "how many names follow; for a checkpoint, how many rows its segment has"),
    ("names", "the server's own names of all its tools"),
    ("added", "tools that are new"),
    ("removed", "tools that are gone"),
    ("unchanged", "how many tools stayed"),
    ("tool", "the name that the client used"),
    ("method", "the method of the protocol"),
    ("subject", "the prompt, resource or task; empty for a list"),
    ("principal", "on whose behalf; `null` for a call of a provider"),
    ("client", "the client program, without secrets; `null` if it did not say"),
    ("summary", "how the result begins, without secrets, at most 1 KiB"),
    ("durationMs", "how long it took, in whole milliseconds"),
    ("code", "the error code, as in the error pages, or the server's own"),
    ("retryable", "whether the same request may succeed later"),
    ("message", "what went wrong, without secrets, at most 1 KiB"),
    ("outcome", "`ready`, `failed` or `cancelled`"),
    ("tools", "how many tools the server has; 0 unless it is ready"),
    ("error", "why it failed, or `null`"),
    ("ok", "whether the server answered the probe"),
    ("kind", "the request that probed: `ping`, `list_tools` or `discover`"),
    ("attempt", "the number of this restart since the server was last well, from 1"),
    ("delayMs", "the pause before the restart, in milliseconds"),
    ("reason", "why, as far as known"),
    ("pid", "the process id"),
    ("status", "the exit status or the signal"),
    ("segment", "the segment of the record"),
    ("root", "the root over its rows, in hexadecimal"),
    ("head", "the head after its last row, in hexadecimal"),
    ("sealed", "whether no row follows in this segment"),
];

const EVENTS: &str = "\
# Events

<!-- Written by `cargo xtask generate` from the topics in crates/events. -->

`bridgehead events` shows what happens in a running gateway, in sentences; `--json` prints one object per line. The same objects come
from [`GET /api/v1/events`](http-api.md) and, in a program that embeds the gateway, from `Gateway::events()`.

- `--topic` takes a topic, or the first words of some: `--topic provider.mcp.tool` shows completed and failed calls.
- `--server` shows the events of one server only.
- Events are not kept. A reader gets those that happen while it listens. A reader that is too slow gets `{\"missed\": N}` in place of
  N events; a call never waits for a reader. What must be kept is in the [record](audit.md).
- Texts of servers are cut to 1 KiB, and secrets are removed from them.

Every event has `topic`, `time`, `correlationId` and `server`. The other keys depend on the topic:

| topic | when | keys |
|---|---|---|
";

const METRICS: &str = "\
# Counters and measurements

<!-- Written by `cargo xtask generate` from the rows in crates/events. -->

The gateway counts what happens and measures how long things take, from its start on. Numbers only grow. Counters, events and log
lines come from the same signals, so they agree.

- `bridgehead status --json` and the tool `server_health` show `calls`, `failed`, `cancelled`, `auditExitFailures` and
  `invalidOutputs`.
- A program that embeds the gateway reads all of them: `Gateway::signals().metrics()` ([library](library.md#what-happens-as-events-and-in-numbers)).
- An endpoint for Prometheus does not exist yet.

## Counters

| counter | what it counts |
|---|---|
";

fn examples() -> Vec<Detail> {
    let text = |text: &str| Excerpt::new(&Redactor::default(), text);
    let (tool, prompt) =
        (|| Asked::Tool("files__read".into()), || Asked::Method("prompts/get", "plan".into()));
    let completed = |about| Detail::Completed { about, by: None, summary: text("a"), duration_ms: 7 };
    let failed = |about| Detail::Failed {
        about,
        by: None,
        code: Cow::Borrowed("PROVIDER_TIMEOUT"),
        retryable: true,
        message: text("a"),
    };
    vec![
        Detail::ToolsDiscovered { names: vec!["read".into()] },
        Detail::ToolsRefreshed { added: vec![], removed: vec![], unchanged: 1 },
        completed(tool()),
        failed(tool()),
        completed(prompt()),
        failed(prompt()),
        Detail::Disconnected,
        Detail::Reconnected,
        Detail::ReconnectExhausted,
        Detail::InitStarted,
        Detail::InitFinished { outcome: InitOutcome::Ready, tools: 1, duration_ms: 7, error: None },
        Detail::Probe { kind: ProbeKind::Ping, duration_ms: 7, error: None },
        Detail::Restart { attempt: 1, delay_ms: 0, reason: text("a") },
        Detail::ProcessExited { pid: 7, status: "exit status 1".to_owned(), reason: text("a") },
        Detail::AuditCheckpoint {
            segment: "a.0001".to_owned(),
            count: 1,
            root: String::new(),
            head: String::new(),
            sealed: false,
        },
    ]
}

/// The keys of an event in the order in which they are written.
fn keys(event: &Event) -> Vec<String> {
    let text = serde_json::to_string(event).unwrap();
    let value: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    let mut keys: Vec<String> = value.into_keys().collect();
    keys.sort_by_key(|key| text.find(&format!("\"{key}\":")));
    keys
}

/// The doc comment above the line of `source` that begins with `line`, as one line.
fn comment(source: &str, line: &str) -> String {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = lines.iter().position(|found| found.starts_with(line)).unwrap();
    let above = lines[..at].iter().rev().map_while(|line| line.strip_prefix("/// "));
    let mut words: Vec<&str> = above.collect();
    words.reverse();
    words.join(" ").trim_end_matches('.').to_owned()
}

#[track_caller]
fn check_page(name: &str, page: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&file, page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "docs/{name} is stale; run `cargo xtask generate`");
}

/// BUS-1, WORD-2: the page of events has every topic and every key that an event of it has.
#[test]
fn the_page_of_events_is_fresh() {
    let source = include_str!("../src/topic.rs");
    let (mut page, mut used) = (EVENTS.to_owned(), Vec::new());
    let mut topics = Vec::new();
    for detail in examples() {
        let event = Event::new("2026-11-16T12:00:00Z".parse().unwrap(), CorrelationId::mint(), None, detail);
        let (topic, keys) = (event.topic(), keys(&event));
        let when = comment(source, &format!("{topic:?},"));
        let own: Vec<String> = keys[4..].iter().map(|key| format!("`{key}`")).collect();
        let own = if own.is_empty() { "–".to_owned() } else { own.join(", ") };
        page += &format!("| `{topic}` | {when} | {own} |\n");
        used.extend(keys);
        topics.push(topic);
    }
    assert_eq!(topics, Topic::ALL, "every topic has an example, in order");
    page += "\n| key | meaning |\n|---|---|\n";
    for (key, meaning) in KEYS {
        assert!(used.iter().any(|used| used == key), "no event has `{key}`");
        page += &format!("| `{key}` | {meaning} |\n");
    }
    used.retain(|used| KEYS.iter().all(|(key, _)| key != used));
    assert!(used.is_empty(), "these keys have no meaning: {used:?}");
    check_page("events.md", &page);
}

/// GATE-6, WORD-2: the page of counters has every counter, every measurement and their buckets.
#[test]
fn the_page_of_counters_is_fresh() {
    let source = include_str!("../src/metrics.rs");
    let row = |row: String, name: &str| {
        format!("| `{name}` | {} |\n", comment(source, &format!("{row} = \"{name}\",")))
    };
    let mut page = METRICS.to_owned();
    page.extend(Counter::ALL.map(|counter| row(format!("{counter:?}"), counter.as_str())));
    page += "\n## Measurements\n\n| measurement | what is measured |\n|---|---|\n";
    page.extend(Measure::ALL.map(|measure| row(format!("{measure:?}"), measure.as_str())));
    let bounds = BOUNDS.map(|bound| match bound.as_micros() {
        short @ 0..1_000 => format!("{short} µs"),
        1_000..1_000_000 => format!("{} ms", bound.as_secs_f64() * 1_000.0),
        _ => format!("{} s", bound.as_secs_f64()),
    });
    page += &format!(
        "\nEach measurement has a sum and buckets. The bounds of the buckets are {}; one more bucket has what is longer.\n",
        bounds.join(", ")
    );
    check_page("metrics.md", &page);
}
