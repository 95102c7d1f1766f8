//! A run that is ended by a signal.

#![cfg(target_os = "linux")]
#![expect(clippy::disallowed_methods, reason = "the benchmark is started from outside, as a person does")]

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bridgehead_bench::family;
use rustix::process::{Pid, Signal, kill_process};

fn until(what: &str, wanted: impl Fn() -> bool) {
    let begun = Instant::now();
    while !wanted() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Everything that a run has started ends with it: here a gateway that does not even answer.
#[test]
fn a_run_that_is_ended_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = folder.path().join("gateway");
    write(&gateway, "#!/bin/sh\nexec sleep 60\n").unwrap();
    set_permissions(&gateway, Permissions::from_mode(0o755)).unwrap();
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mark = format!("BRIDGEHEAD_ENDING_TEST={}-{status}", folder.path().display());
        let (name, value) = mark.split_once('=').unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_bench"))
            .args(["--brief", "--upstream", env!("CARGO_BIN_EXE_echo-upstream"), "--gateway"])
            .arg(&gateway)
            .env(name, value)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the gateway runs", || {
            family::below(run.id()).iter().any(|process| process.command().contains("sleep 60"))
        });
        kill_process(Pid::from_child(&run), signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(status));
        until("nothing is left", || family::marked(&mark).is_empty());
    }
}
