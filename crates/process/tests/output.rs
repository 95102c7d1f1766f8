//! Programs that run for what they print.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bridgehead_process::{Limits, OutputError, SpawnError, Spec, base_environment, output, output_blocking};

const LONG: Duration = Duration::from_secs(60);

fn spec(script: &str) -> Spec {
    let parent: BTreeMap<String, String> = std::env::vars().collect();
    Spec {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: base_environment(&parent),
        cwd: None,
        limits: Limits::default(),
        confinement: None,
    }
}

/// ACC-8: a program gets no input, and everything it prints up to the bound is returned; a failure says nothing of it.
#[tokio::test]
async fn what_a_program_prints() {
    let printed = output(&spec("cat; printf 'a\\nb\\n'; echo other >&2"), 4, LONG).await.unwrap();
    assert_eq!(printed, b"a\nb\n");
    let run = |script: &str| {
        let spec = spec(script);
        async move { output(&spec, 4, LONG).await.unwrap_err() }
    };
    let long = run("printf abcde; exec sleep 600").await;
    assert!(matches!(long, OutputError::TooLong(4)), "{long}");
    let failed = run("printf abc; exit 3").await;
    assert_eq!(failed.to_string(), "it ended with exit status 3");
    let nowhere = Spec { program: "no-such-program".to_owned(), ..spec("") };
    let missing = output(&nowhere, 4, LONG).await.unwrap_err();
    assert!(matches!(missing, OutputError::Start(SpawnError::NotFound { .. })), "{missing}");
}

/// ACC-8: a program that takes too long is killed with its descendants, also from a thread without a runtime.
#[test]
fn a_late_program_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = format!("sleep 600 & echo $! > '{}'; printf abc; wait", pid.display());
    let began = Instant::now();
    let late = output_blocking(&spec(&script), 100, Duration::from_secs(1)).unwrap_err();
    assert_eq!(late.to_string(), "it did not end within 1 s and was killed");
    assert!(began.elapsed() < LONG, "it was waited for");
    let pid = std::fs::read_to_string(pid).unwrap();
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, state)| !state.trim_start().starts_with('Z'))
    };
    while lives() {
        assert!(began.elapsed() < LONG, "the descendant still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(output_blocking(&spec("printf done"), 100, LONG).unwrap(), b"done");
}
