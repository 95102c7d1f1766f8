//! Real children: shell scripts that are started, watched and ended.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed expectation of a test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bridgehead_process::{Child, Exit, SpawnError, Spec, base_environment, spawn};
use bridgehead_testkit::soon;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::ChildStdout;

fn spec(script: &str) -> Spec {
    let parent: BTreeMap<String, String> = std::env::vars().collect();
    Spec {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: base_environment(&parent),
        cwd: None,
        limits: bridgehead_process::Limits::default(),
        confinement: None,
    }
}

fn start(script: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = spawn(&spec(script), Box::new(|_| {})).unwrap();
    let lines = BufReader::new(child.take_stdout().unwrap()).lines();
    (child, lines)
}

/// The state letter of a process and its group; `None` if there is no such process.
fn state(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let letter = fields.next()?.chars().next()?;
    Some((letter, fields.nth(1)?.parse().ok()?))
}

/// Waits until no member of the group runs any more. Zombies do not count: grandchildren are reaped by the process that
/// adopted them.
async fn assert_group_gone(group: u32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let alive: Vec<u32> = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|&pid| state(pid).is_some_and(|(letter, its)| its == group && letter != 'Z'))
            .collect();
        if alive.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "still running: {alive:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// LINK-1: the child's environment is the allow-list plus `env`, nothing else.
#[tokio::test]
async fn the_environment_is_exactly_what_was_given() {
    let mut spec = spec("");
    spec.program = "env".to_owned();
    spec.args.clear();
    spec.env.insert("OWN".to_owned(), "given".to_owned());
    let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    assert_eq!(soon("the end of the program", child.wait()).await, Exit { code: Some(0), signal: None });
    let seen: BTreeMap<String, String> = output
        .lines()
        .map(|line| line.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(seen, spec.env);
}

/// LINK-1: pipes connect both ways, and the pid is the child's.
#[tokio::test]
async fn pipes_and_pid() {
    let (mut child, mut lines) = start("echo $$; read word; echo \"got $word\"");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), child.pid().to_string());
    assert_eq!(state(child.pid()).unwrap().1, child.pid(), "it leads its own group");
    let mut stdin = child.take_stdin().unwrap();
    assert!(child.take_stdin().is_none());
    stdin.write_all(b"hello\n").await.unwrap();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "got hello");
    assert!(soon("the end of the program", child.wait()).await.is_success());
    assert_eq!(state(child.pid()), None, "reaped");
}

/// LINK-1: stderr is captured line by line and as a tail, which is complete once the end is known.
#[tokio::test]
async fn stderr_is_captured() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let on_line = Box::new(move |line: &str| sender.send(line.to_owned()).unwrap());
    let mut child = spawn(&spec("echo one >&2; printf 'two\\007' >&2; exit 3"), on_line).unwrap();
    let stderr = child.stderr();
    let exit = soon("the end of the program", child.wait()).await;
    assert_eq!(exit.to_string(), "exit status 3");
    assert_eq!(child.stderr_tail(), "one\ntwo");
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["one", "two"]);
    drop(child);
    assert_eq!(stderr.tail(), "one\ntwo");
}

#[tokio::test]
async fn the_end_is_reported() {
    for (script, expected) in [
        ("exit 0", "exit status 0"),
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "signal 9 (SIGKILL)"),
        ("kill -TERM $$", "signal 15 (SIGTERM)"),
    ] {
        let (mut child, _lines) = start(script);
        assert_eq!(soon("the end of the program", child.wait()).await.to_string(), expected);
        assert_eq!(soon("the end of the program", child.wait()).await.to_string(), expected, "and again");
        assert_eq!(child.stop(Duration::ZERO).await.to_string(), expected, "and at last");
    }
}

#[tokio::test]
async fn a_wait_can_be_dropped_and_repeated() {
    let (mut child, _lines) = start("read word; exit 4");
    let early = tokio::time::timeout(Duration::from_millis(20), child.wait()).await;
    assert!(early.is_err());
    drop(child.take_stdin());
    assert_eq!(soon("the end of the program", child.wait()).await.to_string(), "exit status 4");
}

/// LINK-1: a failed start says why, and reveals nothing of the environment.
#[tokio::test]
async fn failures_to_start_have_a_cause() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Spec), expected: &str) {
        let mut spec = spec("true");
        spec.env.insert("TOKEN".to_owned(), "hunter2".to_owned());
        change(&mut spec);
        let error: SpawnError = spawn(&spec, Box::new(|_| {})).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(expected), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let place = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    check(
        |spec| spec.program = "no-such-program".to_owned(),
        "program `no-such-program` was not found; every directory in PATH was searched; install it",
    );
    check(|spec| spec.program = "/no/such/program".to_owned(), "there is no program at `/no/such/program`");
    check(|spec| spec.program = "/etc/passwd".to_owned(), "`/etc/passwd` cannot be executed");
    check(
        |spec| spec.cwd = Some("/no/such/place".into()),
        "the working directory `/no/such/place` does not exist",
    );
    let orphan = script("orphan", "#!/no/such/interpreter\n");
    check(|spec| spec.program = orphan, "names in its first line does not exist");
    let bare = script("bare", "true\n");
    check(|spec| spec.program = bare, "starts with `#!`");
    check(|spec| spec.args.push("a\0b".to_owned()), "could not be started");
}

/// LINK-1: the program is searched in the PATH that the child gets, not in the gateway's.
#[tokio::test]
async fn the_childs_path_is_searched() {
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", place.path().join("our-shell")).unwrap();
    let mut spec = spec("pwd; exit 7");
    spec.program = "our-shell".to_owned();
    spec.env = BTreeMap::from([("PATH".to_owned(), place.path().to_str().unwrap().to_owned())]);
    spec.cwd = Some(Path::new("/").to_owned());
    let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    assert_eq!(output, "/\n");
    assert_eq!(soon("the end of the program", child.wait()).await.to_string(), "exit status 7");
}

/// LINK-1: a well-behaved child ends when its input closes, without a signal.
#[tokio::test]
async fn stop_closes_the_input_first() {
    let (child, mut lines) = start("trap 'exit 9' TERM; echo up; while read word; do :; done; exit 5");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "up");
    let pid = child.pid();
    assert_eq!(child.stop(Duration::from_secs(60)).await.to_string(), "exit status 5");
    assert_eq!(state(pid), None, "reaped");
}

#[tokio::test]
async fn stop_asks_before_it_kills() {
    let (child, mut lines) = start("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "up");
    assert_eq!(child.stop(Duration::ZERO).await.to_string(), "exit status 9");
}

#[tokio::test]
async fn stop_ends_a_child_that_ignores_it() {
    let (child, mut lines) = start("trap '' TERM; echo up; while :; do sleep 0.01; done");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "up");
    let group = child.pid();
    assert_eq!(child.stop(Duration::ZERO).await.to_string(), "signal 9 (SIGKILL)");
    assert_eq!(state(group), None, "reaped");
    assert_group_gone(group).await;
}

const FAMILY: &str = "sleep 100 & echo up; sleep 100";

#[tokio::test]
async fn stop_ends_the_whole_group() {
    let (child, mut lines) = start(FAMILY);
    lines.next_line().await.unwrap();
    let group = child.pid();
    child.stop(Duration::ZERO).await;
    assert_eq!(state(group), None, "reaped");
    assert_group_gone(group).await;
}

#[tokio::test]
async fn members_that_outlive_the_leader_are_killed() {
    let (mut child, mut lines) = start("(trap '' TERM HUP; sleep 100) & echo up; exit 6");
    lines.next_line().await.unwrap();
    let group = child.pid();
    assert_eq!(soon("the end of the program", child.wait()).await.to_string(), "exit status 6");
    assert_group_gone(group).await;

    let (child, mut lines) = start("(trap '' TERM HUP; sleep 100) & echo up; exit 6");
    lines.next_line().await.unwrap();
    let group = child.pid();
    assert_eq!(child.stop(Duration::from_secs(60)).await.to_string(), "exit status 6");
    assert_group_gone(group).await;
}

/// No child outlives its handle, and none stays a zombie.
#[tokio::test]
async fn drop_ends_the_whole_group_and_reaps() {
    let (child, mut lines) = start(FAMILY);
    lines.next_line().await.unwrap();
    let group = child.pid();
    drop(child);
    assert_group_gone(group).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(group).is_some() {
        assert!(Instant::now() < deadline, "the child is a zombie");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_unfinished_stop_kills() {
    let (child, mut lines) = start(FAMILY);
    lines.next_line().await.unwrap();
    let group = child.pid();
    let stopping = tokio::time::timeout(Duration::from_millis(20), child.stop(Duration::from_secs(100)));
    assert!(stopping.await.is_err());
    assert_group_gone(group).await;
}

/// A descendant that left the group and holds stderr open does not delay `wait`.
#[tokio::test]
async fn a_runaway_that_holds_stderr_is_not_waited_for() {
    let (mut child, mut lines) = start("echo words >&2; setsid sleep 30 & sleep 0.1; echo up; exit 0");
    lines.next_line().await.unwrap();
    let start = Instant::now();
    soon("the end of the program", child.wait()).await;
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(child.stderr_tail(), "words");
}
