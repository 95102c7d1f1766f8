//! The leak check finds what a test leaves behind, and ignores what goes away by itself.
//!
//! It looks at the whole process, so these tests take turns even if the runner runs tests concurrently.

#![expect(clippy::expect_used, reason = "a test without a runtime is a failed test")]

use std::time::Duration;

use bridgehead_testkit::client::{StdioClient, modern_params};
use bridgehead_testkit::{Behaviour, LeakCheck, Mock};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::runtime::Builder;

const SHORT: Duration = Duration::from_millis(100);

/// Runs a test on its own runtime, while no other test of this file has one: a runtime holds descriptors too.
fn alone(paused: bool, test: impl Future<Output = ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let runtime = Builder::new_current_thread().enable_all().start_paused(paused).build();
    runtime.expect("a runtime").block_on(test);
}

fn check() -> LeakCheck {
    LeakCheck::start().whole_process(true).patience(SHORT)
}

#[test]
fn a_child_that_lives_or_is_a_zombie_is_found() {
    alone(false, async {
        let check = check();
        let mut client = StdioClient::start_mock(&Mock::new().ignore_eof());
        let pid = client.pid().unwrap();
        let left = check.settle().await.unwrap_err();
        assert_eq!(left.processes.len(), 1, "{left}");
        assert_eq!(left.processes[0].0, pid);
        assert!(left.to_string().contains("mock-upstream"), "{left}");
        assert!(left.descriptors.len() >= 2, "at least two pipes: {left}");

        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        bridgehead_testkit::until("the end of the mock", || check.leftovers().processes[0].1 == 'Z').await;
        client.wait().await;
        drop(client);
        check.assert_clean().await;
    });
}

/// A required check that is forgotten fails its test.
#[test]
#[should_panic(expected = "never asked what it left behind")]
fn a_required_check_is_not_forgotten() {
    drop(check().required());
}

/// An orphan has another parent, but its environment still has the mark.
#[test]
fn an_orphan_is_found_by_its_mark() {
    alone(false, async {
        let check = check().whole_process(false);
        let (name, value) = check.marker();
        let mock = Mock::modern().tool("fork", Behaviour::Grandchild).variable(name, value);
        let mut client = StdioClient::start_mock(&mock);
        let answer = client.request("tools/call", modern_params(json!({"name": "fork"}))).await;
        let orphan = answer["result"]["structuredContent"]["pid"].as_i64().unwrap();
        client.close_stdin();
        client.wait().await;

        let left = check.settle().await.unwrap_err();
        let pids: Vec<i64> = left.processes.iter().map(|process| process.0.into()).collect();
        assert_eq!(pids, [orphan], "{left}");
        kill_process(Pid::from_raw(orphan as i32).unwrap(), Signal::KILL).unwrap();
        drop(client);
        check.patience(Duration::from_secs(5)).assert_clean().await;
    });
}

#[test]
fn descriptors_and_tasks_are_found() {
    alone(false, async {
        let check = check();
        let file = tempfile::NamedTempFile::new().unwrap();
        let task = tokio::spawn(std::future::pending::<()>());
        let left = check.settle().await.unwrap_err();
        assert_eq!((left.descriptors.len(), left.tasks), (1, 1), "{left}");
        assert_eq!(left.descriptors[0].1, file.path());
        task.abort();
        drop(file);
        check.assert_clean().await;
    });
}

/// Under a paused clock our own timers must still fire while the check waits.
#[test]
fn what_goes_away_by_itself_is_forgiven() {
    alone(true, async {
        let check = check().patience(Duration::from_secs(5));
        let file = tempfile::NamedTempFile::new().unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(SHORT).await;
            drop(file);
        });
        assert!(!check.leftovers().is_empty());
        check.assert_clean().await;
    });
}

#[test]
#[should_panic(expected = "1 tasks of the runtime")]
fn the_failure_names_what_is_left() {
    alone(false, async {
        let check = check();
        tokio::spawn(std::future::pending::<()>());
        check.assert_clean().await;
    });
}
