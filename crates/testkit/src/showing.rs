//! Where and as whom a test shows something: notes of what a machine lacks, and the same tests as another user.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Says that a test could not show what it is for, because the machine lacks something. A run of all tests by
/// `cargo xtask` counts these.
#[expect(clippy::print_stdout, reason = "for whoever reads the output of a test")]
pub fn not_shown(test: &str, lacking: &str) {
    println!("NOT SHOWN {test}: {lacking}");
    if let Some(folder) = std::env::var_os("CASES_NOT_SHOWN") {
        let note = Path::new(&folder).join(test);
        // Another user may have said it already.
        if !note.exists() {
            std::fs::write(note, lacking).expect("a folder for notes that can be written to");
        }
    }
}

/// Set for tests that are run once more.
const AGAIN: &str = "TESTS_AGAIN_AS_ANOTHER";

/// Runs those tests of this test program once more whose names `wanted` picks, as a user without privileges, each in a
/// process of its own. Only root can do that, and only once; and the user must be able to execute `programs`. What keeps
/// it from being done is noted under `test`.
pub fn as_unprivileged(test: &str, programs: &[&Path], wanted: impl Fn(&str) -> bool) {
    if !rustix::process::geteuid().is_root() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    let itself = std::env::current_exe().expect("the path of the running test");
    let reaches = |path: &Path| {
        other_user().arg("test").arg("-x").arg(path).status().is_ok_and(|status| status.success())
    };
    if ![&[itself.as_path()], programs].concat().into_iter().all(reaches) {
        not_shown(test, "setpriv, or a way for another user to the programs of the tests");
        return;
    }
    let listed = other_user().arg(&itself).arg("--list").output().expect("the list of tests");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let tests: Vec<&str> = tests.filter(|name| wanted(name)).collect();
    assert!(!tests.is_empty(), "there are no such tests");
    let run = |name: &str| {
        let run = other_user().arg(&itself).args(["--exact", name]).env(AGAIN, "1").output();
        let run = run.expect("the test as another user");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{name}: {said}");
    };
    // Some at a time: most of them wait for something.
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

/// What runs its arguments as a user without privileges.
#[expect(clippy::disallowed_methods, reason = "another user is another program")]
fn other_user() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).env("TMPDIR", "/tmp");
    command
}
