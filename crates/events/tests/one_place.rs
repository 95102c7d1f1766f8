//! Nothing is logged, counted or published except through signals. The compiler guarantees this for the bus: only this
//! crate can publish an event. The rest is checked by reading the sources.
#![expect(clippy::unwrap_used, reason = "a failed assumption is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

/// The crates that do not run in a gateway, which count as they like, and this crate itself.
const OTHERS: [&str; 5] = ["bench", "events", "fixture", "foreign", "testkit"];

/// Sources that add to numbers that are not metrics, and what those are.
const NO_METRICS: [(&str, &str); 15] = [
    ("audit/src/store/", "the progress of the store, which decides what it does next"),
    ("front/src/http/admission.rs", "the number of a connection"),
    ("front/src/http/workers.rs", "how busy a thread is, which decides who gets a connection"),
    (
        "gateway/src/access/views.rs",
        "the number of a set of rules, and how many views were built, which orders classes by use",
    ),
    ("gateway/src/catalog/pages.rs", "how much memory prepared pages take"),
    ("gateway/src/gate/mod.rs", "how often a call was sent, which decides what it is charged"),
    ("gateway/src/gate/cancels.rs", "whether calls have to check for cancellation"),
    ("gateway/src/life/joined.rs", "the number of a client that has joined"),
    ("gateway/src/life/session.rs", "the number of a session"),
    ("upstream/src/link/switchboard.rs", "ids of requests, and how much noise a server made, up to a bound"),
    ("upstream/src/sharing/leases.rs", "the number of a lease"),
    ("upstream/src/sharing/pool.rs", "numbers of processes, and the figures that a pool decides by"),
    ("upstream/src/sharing/registry.rs", "the number of an attachment"),
    ("upstream/src/transport/http/", "how many exchanges are open"),
    ("wire/src/held.rs", "how much memory peers hold"),
];

/// A backend without signals, which is no gateway and writes the line of a signal itself.
const NO_SIGNALS: &str = "front/src/backend.rs";

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every source file of the gateway's crates by its path below `crates`, without test code.
fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let (mut found, crates) = (Vec::new(), crates());
    for entry in fs::read_dir(&crates).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if entry.path().is_dir() && !OTHERS.iter().any(|other| name == *other) {
            walk(&entry.path().join("src"), &mut found);
        }
    }
    let is_test =
        |path: &str| path.ends_with("/tests.rs") || path.ends_with("/testing.rs") || path.contains("/tests/");
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
        (name, text)
    };
    let sources: Vec<_> = found.into_iter().map(read).filter(|(name, _)| !is_test(name)).collect();
    assert!(sources.len() > 100, "{} sources", sources.len());
    sources
}

/// The variants of an enum of `signal.rs`.
fn variants(name: &str) -> Vec<String> {
    let text = fs::read_to_string(crates().join("events/src/signal.rs")).unwrap();
    let (_, body) = text.split_once(&format!("pub enum {name}<'a> {{\n")).unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let own = body.lines().filter_map(|line| line.strip_prefix("    "));
    let named = own.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    named.map(|line| line.split([' ', '(', ',']).next().unwrap().to_owned()).collect()
}

/// How often `word` occurs in `text` as a whole word.
fn occurrences(text: &str, word: &str) -> usize {
    let is_word =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(word)
        .filter(|(at, _)| !is_word(text[..*at].chars().next_back()))
        .filter(|(at, _)| !is_word(text[at + word.len()..].chars().next()))
        .count()
}

/// GATE-6: each signal is emitted at one line of the program.
#[test]
fn each_signal_is_emitted_at_one_line() {
    let sources = sources();
    for name in ["Signal", "ServerSignal"] {
        let variants = variants(name);
        assert!(variants.len() > 8, "{variants:?}");
        for variant in variants {
            let signal = format!("{name}::{variant}");
            let emitted = sources.iter().map(|(path, text)| (path, occurrences(text, &signal)));
            let emitted: Vec<_> = emitted.filter(|(_, times)| *times > 0).collect();
            assert!(matches!(emitted[..], [(_, 1)]), "`{signal}` is emitted at {emitted:?}");
        }
    }
}

/// GATE-6: no other place counts what happens.
#[test]
fn nothing_else_counts() {
    let counting: Vec<String> =
        sources().into_iter().filter(|(_, text)| text.contains("fetch_add(")).map(|(path, _)| path).collect();
    for path in &counting {
        assert!(
            NO_METRICS.iter().any(|(known, _)| path.starts_with(known)),
            "{path} adds to a number: make it a row of `events/src/metrics.rs`, fed by a signal; \
             if it is not a metric, add it to `NO_METRICS`"
        );
    }
    for (known, _) in NO_METRICS {
        assert!(counting.iter().any(|path| path.starts_with(known)), "{known} no longer adds to a number");
    }
}

/// GATE-6: no other place writes the line of a signal.
#[test]
fn nothing_else_logs_it() {
    let text = fs::read_to_string(crates().join("events/src/log.rs")).unwrap();
    // The message is the last argument of a macro.
    let ends = text.lines().filter_map(|line| line.trim_end_matches([';', ',']).strip_suffix("\")"));
    let several =
        text.lines().filter_map(|line| line.strip_suffix('"').filter(|line| line.contains("queuedMs")));
    let messages: Vec<&str> = ends.chain(several).filter_map(|line| line.rsplit('"').next()).collect();
    assert!(messages.len() > 20 && messages.contains(&"call ended"), "{messages:?}");
    let macros = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];
    for (path, text) in sources().into_iter().filter(|(path, _)| path != NO_SIGNALS) {
        let logs = |line: &&str| macros.iter().any(|name| line.contains(name));
        for line in text.lines().filter(logs) {
            let twin = messages.iter().find(|message| line.contains(&format!("\"{message}\")")));
            assert_eq!(twin, None, "{path} writes the line of a signal: {line}");
        }
    }
}
