//! Limits that the system itself enforces, by control groups. The name of a test carries the number of the case that it
//! shows.
//!
//! The tests need a control group that was delegated to the test program and that has no other programs in it, like that
//! of a systemd service with `Delegate=yes`. Elsewhere they say what is missing and show nothing.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed expectation of a test")]

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bridgehead_process::{
    Breach, Child, Enforced, Limits, Shim, SpawnError, Spec, base_environment, spawn, use_shim,
};
use bridgehead_testkit::{not_shown, soon};
use common::{four_takers, none_survived};
use tokio::io::AsyncReadExt;

/// Makes this file's program allocate this many megabytes, and wait.
const TAKES: &str = "BRIDGEHEAD_GROUPS_MEGABYTES";
/// Makes this file's program put this many megabytes into a file in memory, and wait.
const HIDES: &str = "BRIDGEHEAD_GROUPS_HIDDEN";
/// The path of this file's program, for scripts.
const PROGRAM: &str = "PROGRAM";

const MEGABYTE: u64 = 1 << 20;
/// Long enough for any machine to notice a breach.
const PATIENCE: Duration = Duration::from_secs(60);

/// This file's program as one that takes memory. Does nothing unless one of the variables above is set.
#[test]
fn taker() {
    let asked = |name: &str| std::env::var(name).ok().map(|count| count.parse::<usize>().unwrap());
    if let Some(megabytes) = asked(TAKES) {
        let taken: Vec<Vec<u8>> = (0..megabytes).map(|number| vec![number as u8 | 1; 1 << 20]).collect();
        println!("took {}", taken.len());
        std::thread::sleep(PATIENCE);
    }
    if let Some(megabytes) = asked(HIDES) {
        let file = rustix::fs::memfd_create("hidden", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        for _ in 0..megabytes {
            file.write_all(&vec![1; 1 << 20]).unwrap();
        }
        println!("hid {megabytes}");
        std::thread::sleep(PATIENCE);
    }
}

/// Starts a script whose limits must be hard. If that is impossible, prints why and returns `None`.
fn start(test: &str, script: &str, limits: Limits) -> Option<Child> {
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
    let mut env = base_environment(&std::env::vars().collect::<BTreeMap<_, _>>());
    env.insert(PROGRAM.to_owned(), std::env::current_exe().unwrap().to_str().unwrap().to_owned());
    let (program, args) = ("sh".to_owned(), vec!["-c".to_owned(), script.to_owned()]);
    match spawn(&Spec { program, args, env, cwd: None, limits, confinement: None }, Box::new(|_| {})) {
        Ok(child) => Some(child),
        Err(SpawnError::Ungrouped { why, .. }) => {
            not_shown(test, &format!("control groups: {why}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn memory(megabytes: u64) -> Limits {
    Limits { memory: Some(megabytes * MEGABYTE), hard_memory: true, ..Limits::default() }
}

fn processes(count: u32) -> Limits {
    Limits { processes: Some(count), hard_processes: true, ..Limits::default() }
}

async fn ended(child: &mut Child) -> Option<Breach> {
    tokio::time::timeout(PATIENCE, child.wait()).await.unwrap();
    child.breach()
}

/// The control group of a process.
fn group_of(pid: u32) -> PathBuf {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap().to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    Path::new(mount.split(' ').nth(4).unwrap()).join(own)
}

/// BOX-3: the system kills one process that takes more memory than the tree may have, and the breach is reported.
#[tokio::test]
async fn box_19_a_group_keeps_memory() {
    let script = format!("{TAKES}=300 exec \"${PROGRAM}\" --exact taker --nocapture");
    let Some(mut child) = start("box_19_a_group_keeps_memory", &script, memory(96)) else { return };
    assert_eq!(child.effective().memory, Some(Enforced::Hard));
    assert_eq!(child.view().effective(), child.effective());
    let folder = group_of(child.pid());
    assert_eq!(
        ended(&mut child).await,
        Some(Breach::Memory { bytes: 96 * MEGABYTE }),
        "{}",
        child.stderr_tail()
    );
    assert!(child.killed() >= 1, "{}", child.killed());
    assert!(!folder.exists(), "its group is removed");
}

/// BOX-3: several processes share one limit, and all of them are killed at once.
#[tokio::test]
async fn box_21_a_group_is_killed_as_a_whole() {
    let script = four_takers(TAKES, PROGRAM);
    let Some(mut child) = start("box_21_a_group_is_killed_as_a_whole", &script, memory(96)) else { return };
    assert!(matches!(ended(&mut child).await, Some(Breach::Memory { .. })), "{}", child.stderr_tail());
    none_survived(&mut child).await;
}

/// BOX-3: a file in memory that no process has mapped also counts as memory of the tree.
#[tokio::test]
async fn box_22_a_group_sees_files_in_memory() {
    let script = format!("{HIDES}=300 exec \"${PROGRAM}\" --exact taker --nocapture");
    let Some(mut child) = start("box_22_a_group_sees_files_in_memory", &script, memory(96)) else { return };
    assert!(matches!(ended(&mut child).await, Some(Breach::Memory { .. })), "{}", child.stderr_tail());
}

/// A tree within its limits is left alone. Reserved memory does not count: in a group, `RLIMIT_DATA` is not set.
#[tokio::test]
async fn box_23_a_group_leaves_those_alone_who_keep_the_limit() {
    let name = "box_23_a_group_leaves_those_alone_who_keep_the_limit";
    let limits = Limits { processes: Some(16), hard_processes: true, ..memory(256) };
    let script = "ulimit -d; sleep 0.3 & sleep 0.3 & wait; echo well";
    let Some(mut child) = start(name, script, limits) else { return };
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    assert_eq!(output, "unlimited\nwell\n");
    assert!(soon("the end of the program", child.wait()).await.is_success());
    assert_eq!((child.breach(), child.killed()), (None, 0));
    assert_eq!(child.effective().processes, Some(Enforced::Hard));
}

/// BOX-3: a tree never has more processes than its limit, whichever user it runs as, and a tree that tries is killed.
#[tokio::test]
async fn box_24_a_group_keeps_processes() {
    let script = "for number in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; wait";
    let Some(mut child) = start("box_24_a_group_keeps_processes", script, processes(8)) else { return };
    let folder = group_of(child.pid());
    assert_eq!(std::fs::read_to_string(folder.join("pids.max")).unwrap().trim(), "8");
    let breach = ended(&mut child).await;
    assert!(matches!(breach, Some(Breach::Processes { count }) if count <= 8), "{breach:?}");
    assert!(!folder.exists(), "its group is removed");
}

/// BOX-3, BOX-4: a fork bomb is stopped at the limit and ended.
#[tokio::test]
async fn box_25_a_group_ends_a_fork_bomb() {
    let bomb = "bomb() { if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi; sleep 60; }; bomb 6";
    let Some(mut child) = start("box_25_a_group_ends_a_fork_bomb", bomb, processes(16)) else { return };
    let breach = ended(&mut child).await;
    assert!(matches!(breach, Some(Breach::Processes { count }) if count <= 16), "{breach:?}");
}

/// BOX-4: a daemon that left its session ends with the group.
#[tokio::test]
async fn box_26_a_group_keeps_daemons() {
    let script = "setsid sh -c 'sleep 60 & echo $!; wait' & wait";
    let Some(mut child) = start("box_26_a_group_keeps_daemons", script, memory(256)) else { return };
    let mut stdout = child.take_stdout().unwrap();
    let mut output = [0; 32];
    let count = stdout.read(&mut output).await.unwrap();
    let daemon: u32 = std::str::from_utf8(&output[..count]).unwrap().trim().parse().unwrap();
    assert_eq!(group_of(daemon), group_of(child.pid()));
    child.kill().await;
    assert!(!Path::new(&format!("/proc/{daemon}")).exists());
}

/// BOX-4: what a killed shim left behind is ended and its group is removed; so is a stale group of an earlier gateway.
#[tokio::test]
async fn box_28_groups_without_a_keeper_are_swept() {
    let name = "box_28_groups_without_a_keeper_are_swept";
    let Some(mut child) = start(name, "setsid sleep 60 & wait", memory(256)) else { return };
    let folder = group_of(child.pid());
    let keeper: u32 =
        folder.file_name().unwrap().to_str().unwrap().split('-').nth(2).unwrap().parse().unwrap();
    let keeper = rustix::process::Pid::from_raw(i32::try_from(keeper).unwrap()).unwrap();
    let stale = folder.with_file_name("bridgehead-tree-4194304-1");
    std::fs::create_dir(&stale).unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
    soon("the end of the program", child.wait()).await;
    let begin = Instant::now();
    while folder.exists() || stale.exists() {
        assert!(begin.elapsed() < PATIENCE, "{} {}", folder.exists(), stale.exists());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// BOX-4: however many trees there were, none of their groups is left.
#[tokio::test]
async fn box_46_groups_do_not_add_up() {
    for _ in 0..20 {
        let Some(mut child) = start("box_46_groups_do_not_add_up", "exit 3", memory(64)) else { return };
        // The process may already be gone here.
        let folder = std::fs::exists(format!("/proc/{}/cgroup", child.pid())).unwrap();
        assert_eq!(ended(&mut child).await, None, "{folder}");
    }
    let home = group_of(std::process::id());
    assert!(home.ends_with("bridgehead-gateway"), "{}", home.display());
    let mine = |name: &str| {
        let keeper = name.split('-').nth(2).and_then(|pid| pid.parse::<u32>().ok());
        keeper.is_some_and(|keeper| !Path::new(&format!("/proc/{keeper}")).exists())
    };
    let left: Vec<String> = std::fs::read_dir(home.parent().unwrap())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.starts_with("bridgehead-tree-") && mine(name))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
