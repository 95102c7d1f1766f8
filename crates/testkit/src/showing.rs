//! Notes about cases that a machine cannot show, and runs of the same tests as another user.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Notes that a test could not show its case because the machine lacks something. `cargo xtask` counts these notes when
/// it runs all tests.
#[expect(clippy::print_stdout, reason = "readers of the test's output need it")]
pub fn not_shown(test: &str, lacking: &str) {
    println!("NOT SHOWN {test}: {lacking}");
    if let Some(folder) = std::env::var_os("CASES_NOT_SHOWN") {
        let note = Path::new(&folder).join(test);
        // A run as another user may have written the note already.
        if !note.exists() {
            std::fs::write(note, lacking).expect("a folder for notes that can be written to");
        }
    }
}

/// Set for tests that run a second time.
const AGAIN: &str = "TESTS_AGAIN_AS_ANOTHER";

/// Runs the tests of this test program that `wanted` picks once more as an unprivileged user, each in its own process.
/// Only root can do that, and only once; the user must be able to execute `programs`. If it is not possible, the reason
/// is noted under `test`.
pub fn as_unprivileged(test: &str, programs: &[&Path], wanted: impl Fn(&str) -> bool) {
    if !rustix::process::geteuid().is_root() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    let itself = std::env::current_exe().expect("the path of the running test");
    let reaches = |path: &Path| {
        other_user().arg("test").arg("-x").arg(path).status().is_ok_and(|status| status.success())
    };
    if ![&[itself.as_path()], programs].concat().into_iter().all(reaches) {
        not_shown(test, "setpriv, or access for another user to the test programs");
        return;
    }
    let listed = other_user().arg(&itself).arg("--list").output().expect("the list of tests");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let tests: Vec<&str> = tests.filter(|name| wanted(name)).collect();
    assert!(!tests.is_empty(), "no test matches");
    let run = |name: &str| {
        let run = other_user().arg(&itself).args(["--exact", name]).env(AGAIN, "1").output();
        let run = run.expect("the test as another user");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{name}: {said}");
    };
    // Several at a time, since most of them wait for something.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(name) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(name);
                }
            });
        }
    });
}

/// A command that runs its arguments as an unprivileged user.
#[expect(clippy::disallowed_methods, reason = "another user is another program")]
fn other_user() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).env("TMPDIR", "/tmp");
    command
}
