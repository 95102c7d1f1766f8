//! What a program may use, and what happens if it takes more. The name of a test carries the number of the case that it
//! shows.
//!
//! The greedy programs here are also bounded by themselves: they take a little more than their limit and stop.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed expectation of a test")]
#![expect(clippy::disallowed_methods, reason = "a program that takes memory is another one")]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bridgehead_process::{
    Breach, Child, Confinement, Effective, Enforced, Limits, Shim, SpawnError, Spec, base_environment, spawn,
    use_shim,
};
use bridgehead_testkit::{as_unprivileged, not_shown, soon};
use common::{four_takers, none_survived};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Set in the environment of everything that a test starts, so that every process of the test can be found.
const MARK: &str = "BRIDGEHEAD_LIMITS_TEST";
/// Makes this file's program allocate this many megabytes, and wait.
const TAKES: &str = "BRIDGEHEAD_LIMITS_MEGABYTES";
/// Makes this file's program open this many files, and print how many it could open.
const OPENS: &str = "BRIDGEHEAD_LIMITS_FILES";
/// Makes this file's program map and fill this many megabytes of shared memory, and wait.
const SHARES: &str = "BRIDGEHEAD_LIMITS_SHARED";
/// Makes a taker of memory hide how much it has, as far as that is possible.
const HIDES: &str = "BRIDGEHEAD_LIMITS_HIDDEN";
/// The path of this file's program, for scripts.
const PROGRAM: &str = "PROGRAM";

fn mark(test: &str) -> String {
    format!("{test}-{}-{:?}", std::process::id(), std::time::SystemTime::now())
}

fn spec(script: &str, mark: &str, limits: Limits) -> Spec {
    let parent: BTreeMap<String, String> = std::env::vars().collect();
    let mut env = base_environment(&parent);
    env.insert(MARK.to_owned(), mark.to_owned());
    env.insert(PROGRAM.to_owned(), std::env::current_exe().unwrap().to_str().unwrap().to_owned());
    let args = vec!["-c".to_owned(), script.to_owned()];
    Spec { program: "sh".to_owned(), args, env, cwd: None, limits, confinement: None }
}

fn start(script: &str, mark: &str, limits: Limits) -> Child {
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
    spawn(&spec(script, mark, limits), Box::new(|_| {})).unwrap()
}

/// The processes with the mark, without zombies.
fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    })
    .collect()
}

/// Waits until no process with this mark is left: the system may take a moment after the kill.
async fn none_left(mark: &str) {
    let gone = async {
        while !marked(mark).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
}

/// Waits until a child is ended by its limits, within a time that is generous on any machine.
async fn ended(child: &mut Child, mark: &str) -> Option<Breach> {
    tokio::time::timeout(Duration::from_secs(60), child.wait()).await.unwrap();
    let begin = Instant::now();
    while !marked(mark).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "processes are left: {:?}", marked(mark));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.breach()
}

const MEGABYTE: u64 = 1 << 20;

/// This file's program as one that takes memory, one megabyte after the other. Does nothing unless one of the variables
/// above is set.
#[test]
fn taker() {
    if std::env::var(HIDES).is_ok() {
        let closed = rustix::process::DumpableBehavior::NotDumpable;
        rustix::process::set_dumpable_behavior(closed).unwrap();
    }
    if let Ok(megabytes) = std::env::var(TAKES) {
        let megabytes: usize = megabytes.parse().unwrap();
        let mut taken = Vec::new();
        for number in 0..megabytes {
            taken.push(vec![number as u8 | 1; 1 << 20]);
        }
        println!("took {}", taken.len());
        std::thread::sleep(Duration::from_secs(60));
    }
    if let Ok(megabytes) = std::env::var(SHARES) {
        // Shared memory that is written through a mapping counts for the process that has it mapped.
        let script = format!(
            "import mmap,time\nm=mmap.mmap(-1,{megabytes}<<20)\nfor i in range(0,{megabytes}<<20,4096): m[i]=1\nprint('took',flush=True)\ntime.sleep(60)"
        );
        let error = std::os::unix::process::CommandExt::exec(
            std::process::Command::new(python().unwrap()).arg("-c").arg(script),
        );
        panic!("{error}");
    }
    if let Ok(count) = std::env::var(OPENS) {
        let files: Vec<_> =
            (0..count.parse().unwrap()).map_while(|_| std::fs::File::open("/dev/null").ok()).collect();
        println!("opened {}", files.len());
    }
}

/// BOX-3: one process that takes more memory than the tree may have dies, and memory is reported as the reason.
#[tokio::test]
async fn box_19_private_memory_is_limited() {
    let mark = mark("19");
    let limits = Limits { memory: Some(96 * MEGABYTE), ..Limits::default() };
    let script = format!("{TAKES}=300 exec \"${PROGRAM}\" --exact taker --nocapture");
    let mut child = start(&script, &mark, limits);
    let breach = ended(&mut child, &mark).await;
    let Some(Breach::Memory { bytes }) = breach else { panic!("{breach:?}; {}", child.stderr_tail()) };
    assert!((86 * MEGABYTE..200 * MEGABYTE).contains(&bytes), "{bytes}");
}

/// BOX-3: a process that dies with 90 % of its memory limit or more died of memory; with less it died of something else.
#[tokio::test]
async fn who_died_with_nearly_all_memory_died_of_it() {
    for (megabytes, of_memory) in [(186, true), (120, false)] {
        let place = tempfile::tempdir().unwrap();
        let mark = mark("90");
        let limits = Limits { memory: Some(200 * MEGABYTE), ..Limits::default() };
        let script = format!(
            "{TAKES}={megabytes} \"${PROGRAM}\" --exact taker --nocapture > '{out}' & pid=$!; \
             until grep -q took '{out}'; do sleep 0.02; done; kill -KILL $pid; wait $pid; exit 3",
            out = place.path().join("out").display()
        );
        let mut child = start(&script, &mark, limits);
        let breach = ended(&mut child, &mark).await;
        match breach {
            Some(Breach::Memory { bytes }) if of_memory => {
                assert!((180 * MEGABYTE..=200 * MEGABYTE).contains(&bytes), "{bytes}");
            }
            None if !of_memory => {}
            other => panic!("{megabytes} MB: {other:?}; {}", child.stderr_tail()),
        }
    }
}

/// BOX-3: several processes share one limit, although each of them alone stays within it.
#[tokio::test]
async fn box_21_children_share_one_memory_limit() {
    let mark = mark("21");
    let limits = Limits { memory: Some(96 * MEGABYTE), ..Limits::default() };
    let mut child = start(&four_takers(TAKES, PROGRAM), &mark, limits);
    let breach = ended(&mut child, &mark).await;
    assert!(matches!(breach, Some(Breach::Memory { bytes }) if bytes >= 96 * MEGABYTE), "{breach:?}");
    none_survived(&mut child).await;
}

/// BOX-3: processes that are closed to their own user count in full, so that nobody hides memory in them.
#[tokio::test]
async fn memory_cannot_be_hidden() {
    let mark = mark("hidden");
    let limits = Limits { memory: Some(96 * MEGABYTE), ..Limits::default() };
    let script = format!("export {HIDES}=1; {}", four_takers(TAKES, PROGRAM));
    let mut child = start(&script, &mark, limits);
    let breach = ended(&mut child, &mark).await;
    assert!(matches!(breach, Some(Breach::Memory { bytes }) if bytes >= 96 * MEGABYTE), "{breach:?}");
    none_survived(&mut child).await;
}

/// BOX-3: a process whose first thread has ended still counts with the memory of the others.
#[tokio::test]
async fn memory_of_later_threads_counts() {
    const SCRIPT: &str = "import ctypes,platform,threading,time\n\
        def take():\n m=bytearray(30<<20); time.sleep(60)\n\
        threading.Thread(target=take).start()\n\
        ctypes.CDLL(None).syscall(60 if platform.machine()=='x86_64' else 93, 0)";
    let Some(python) = python() else {
        not_shown("memory_of_later_threads_counts", "python3, to end a thread with");
        return;
    };
    let mark = mark("threads");
    let limits = Limits { memory: Some(96 * MEGABYTE), ..Limits::default() };
    let taker = format!("{python} -c \"{SCRIPT}\"");
    let script = format!("{taker} & {taker} & {taker} & {taker} & wait; sleep 60; echo survived");
    let mut child = start(&script, &mark, limits);
    let breach = ended(&mut child, &mark).await;
    assert!(matches!(breach, Some(Breach::Memory { bytes }) if bytes >= 96 * MEGABYTE), "{breach:?}");
    none_survived(&mut child).await;
}

/// BOX-3: limits bind the program and what it starts, but not its shim, which may be a large program itself.
#[tokio::test]
async fn limits_are_not_those_of_the_shim() {
    let limits = Limits { memory: Some(96 * MEGABYTE), open_files: Some(100), ..Limits::default() };
    let child = start("exec sleep 60", &mark("shim"), limits);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
    let shim: u32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    let limit = |pid: u32, name: &str| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    for (name, own) in [("Max data size", (96 * MEGABYTE).to_string()), ("Max open files", "100".to_owned())]
    {
        // In a control group, the system limits the memory otherwise.
        if name == "Max open files" || child.effective().memory == Some(Enforced::Sampled) {
            assert_eq!(limit(child.pid(), name), own);
        }
        assert_ne!(limit(shim, name), own, "{name} of the shim");
    }
    soon("the end of the tree", child.kill()).await;
}

/// A tree that stays below its limits is left alone, and memory that is shared by forking counts once.
#[tokio::test]
async fn box_23_those_who_keep_the_limit_are_left_alone() {
    let mark = mark("23");
    let limits = Limits {
        memory: Some(256 * MEGABYTE),
        processes: Some(16),
        open_files: Some(256),
        file_size: Some(MEGABYTE),
        ..Limits::default()
    };
    let mut child = start("sleep 0.3 & sleep 0.3 & wait; echo well", &mark, limits);
    // If this program is in a control group of its own, the system enforces the memory limit.
    let must = Limits { hard_memory: true, ..limits };
    let memory = match spawn(&spec("true", "none", must), Box::new(|_| {})) {
        Ok(_) => Enforced::Hard,
        Err(error) => {
            assert!(matches!(error, SpawnError::Ungrouped { .. }), "{error}");
            Enforced::Sampled
        }
    };
    assert_eq!(
        child.effective(),
        Effective {
            memory: Some(memory),
            processes: Some(Enforced::Sampled),
            open_files: Some(Enforced::Hard),
            file_size: Some(Enforced::Hard),
            confined: None,
        }
    );
    assert_eq!(child.view().effective(), child.effective());
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    assert_eq!(output, "well\n");
    assert!(soon("the end of the program", child.wait()).await.is_success());
    assert_eq!((child.breach(), child.killed()), (None, 0));
}

/// BOX-3: a tree with too many processes is killed as a whole, whichever user it runs as, also root.
#[tokio::test]
async fn box_24_processes_are_limited() {
    let mark = mark("24");
    let limits = Limits { processes: Some(8), ..Limits::default() };
    let mut child =
        start("for number in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; wait", &mark, limits);
    let breach = ended(&mut child, &mark).await;
    assert!(matches!(breach, Some(Breach::Processes { count }) if count > 8), "{breach:?}");
    assert!(child.killed() > 8, "{}", child.killed());
}

/// BOX-3: a tree may have exactly as many processes as its limit; one more ends it.
#[tokio::test]
async fn the_limit_itself_is_allowed() {
    let mark = mark("exact");
    let limits = Limits { processes: Some(8), ..Limits::default() };
    let script = "for number in 1 2 3 4 5 6 7; do sleep 60 & done; read more; sleep 60 & wait";
    let mut child = start(script, &mark, limits);
    let full = async {
        while marked(&mark).len() < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), full).await.expect("eight processes within a minute");
    // The tree is looked at every few milliseconds.
    let looked_at = tokio::time::timeout(Duration::from_millis(300), child.wait()).await;
    assert!(looked_at.is_err() && child.breach().is_none(), "{looked_at:?}: {:?}", child.breach());
    child.take_stdin().unwrap().write_all(b"\n").await.unwrap();
    let breach = ended(&mut child, &mark).await;
    assert_eq!(breach, Some(Breach::Processes { count: 9 }));
}

/// BOX-3, BOX-4: a fork bomb is ended with its tree. Unstopped, it would reach at most 127 processes.
#[tokio::test]
async fn box_25_a_fork_bomb_is_ended() {
    let mark = mark("25");
    let limits = Limits { processes: Some(16), ..Limits::default() };
    let bomb = "bomb() { if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi; sleep 60; }; bomb 6";
    let mut child = start(bomb, &mark, limits);
    let breach = ended(&mut child, &mark).await;
    assert!(matches!(breach, Some(Breach::Processes { count }) if count > 16), "{breach:?}");
}

/// BOX-3, BOX-4: a tree that multiplies as fast as it can is counted no further than to its limit, stopped as it is found, and
/// ended. Unstopped, it would reach 4095 processes.
#[tokio::test]
async fn a_tree_that_multiplies_is_stopped() {
    if !std::path::Path::new("/usr/bin/perl").is_file() {
        not_shown("a_tree_that_multiplies_is_stopped", "perl, to fork with");
        return;
    }
    let mark = mark("multiplies");
    let limits = Limits { processes: Some(24), ..Limits::default() };
    let bomb = "exec perl -e 'for (1..11) { fork } sleep 60'";
    let mut child = start(bomb, &mark, limits);
    let breach = ended(&mut child, &mark).await;
    assert_eq!(breach, Some(Breach::Processes { count: 25 }));
}

/// BOX-3, BOX-4: a process that is always another one, because it forks and its parent ends, is ended with its tree.
#[tokio::test]
async fn a_process_that_flees_is_caught() {
    if !std::path::Path::new("/usr/bin/perl").is_file() {
        not_shown("a_process_that_flees_is_caught", "perl, to fork with");
        return;
    }
    let mark = mark("flees");
    let flight = "perl -e 'for (1..300000) { exit if fork } sleep 60' & echo up; sleep 60";
    let mut child = start(flight, &mark, Limits { processes: Some(24), ..Limits::default() });
    let mut heard = [0; 3];
    soon("the program's word", child.take_stdout().unwrap().read_exact(&mut heard)).await.unwrap();
    soon("the end of the tree", child.kill()).await;
    none_left(&mark).await;
}

/// BOX-3: without a control group, the system refuses processes to a tree in a user namespace of its own: exactly, if the limit must
/// be hard; else far beyond it, as a second line behind the sampling, for a program that is confined. Root is not bound by that.
#[tokio::test]
async fn processes_are_counted_in_a_namespace() {
    const NAME: &str = "processes_are_counted_in_a_namespace";
    let mark = mark("namespace");
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
    let hard = Limits { processes: Some(8), hard_processes: true, ..Limits::default() };
    let script = "for number in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; echo all; wait";
    let mut child = match spawn(&spec(script, &mark, hard), Box::new(|_| {})) {
        Ok(child) => child,
        Err(error) => {
            assert!(matches!(error, SpawnError::Ungrouped { .. }), "{error}");
            return not_shown(NAME, "a user other than root, and user namespaces or control groups");
        }
    };
    assert_eq!(child.effective().processes, Some(Enforced::Hard));
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    ended(&mut child, &mark).await;
    assert_eq!(output, "", "{}", child.stderr_tail());

    let confinement = Some(Confinement { network: false, ..Confinement::default() });
    let limits = Limits { hard_processes: false, ..hard };
    let script = "grep 'Max processes' /proc/self/limits; id -u; cat /proc/self/uid_map";
    let mut child = spawn(&Spec { confinement, ..spec(script, &mark, limits) }, Box::new(|_| {})).unwrap();
    assert_eq!(child.effective().processes, Some(Enforced::Sampled));
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    let words: Vec<&str> = output.split_whitespace().collect();
    let user = rustix::process::geteuid().as_raw().to_string();
    match words.as_slice() {
        ["Max", "processes", "1024", "1024", "processes", shown, inside, outside, "1"] => {
            assert_eq!((*shown, *inside, *outside), (&*user, &*user, &*user));
        }
        // A control group does it instead.
        other => assert_eq!(other.last(), Some(&"4294967295"), "{output}"),
    }
}

/// BOX-1: a process that makes a file too large gets a write error.
#[tokio::test]
async fn box_42_files_are_limited() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("large");
    let limits = Limits { file_size: Some(MEGABYTE), ..Limits::default() };
    let script = format!("head -c 5000000 /dev/zero > {}; echo $?", file.display());
    let mut child = start(&script, &mark("42"), limits);
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    soon("the end of the program", child.wait()).await;
    assert_eq!(output.trim(), "1", "{}", child.stderr_tail());
    assert!(child.stderr_tail().contains("too large"), "{}", child.stderr_tail());
    assert_eq!(file.metadata().unwrap().len(), MEGABYTE);
}

/// BOX-1: no process has more files open than allowed.
#[tokio::test]
async fn box_43_open_files_are_limited() {
    let limits = Limits { open_files: Some(64), ..Limits::default() };
    let script = format!("{OPENS}=500 exec \"${PROGRAM}\" --exact taker --nocapture");
    let mut child = start(&script, &mark("43"), limits);
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    soon("the end of the program", child.wait()).await;
    let opened: u32 =
        output.split("opened ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!((40..64).contains(&opened), "{output}");
}

/// BOX-1: a limited program writes no core file, which would be as large as its memory; it cannot allow itself one.
#[tokio::test]
async fn a_limited_program_writes_no_core_file() {
    let limits = Limits { open_files: Some(64), ..Limits::default() };
    let script = "ulimit -Sc; ulimit -Hc";
    let mut child = start(script, &mark("core"), limits);
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    soon("the end of the program", child.wait()).await;
    assert_eq!(output, "0\n0\n");
}

/// BOX-2: the kept part of a program's standard error is bounded.
#[tokio::test]
async fn box_17_error_output_is_bounded() {
    let limits = Limits { log: Some(1024), ..Limits::default() };
    let mut child =
        start("i=0; while [ $i -lt 500 ]; do echo line $i >&2; i=$((i+1)); done", &mark("17"), limits);
    soon("the end of the program", child.wait()).await;
    let tail = child.stderr_tail();
    assert!(tail.len() <= 1024 && tail.ends_with("line 499"), "{}", tail.len());
}

/// Without a shim, limits cannot be enforced: the start is refused, and nothing runs.
#[tokio::test]
async fn box_53_limits_without_a_keeper_are_refused() {
    use_shim(Shim::Off);
    let limits = Limits { memory: Some(MEGABYTE), ..Limits::default() };
    let error = spawn(&spec("sleep 60", "none", limits), Box::new(|_| {})).unwrap_err().to_string();
    assert!(error.contains("its limits cannot be enforced"), "{error}");
    assert!(error.contains("call `bridgehead::main_if_asked()` first in its `main`"), "{error}");
}

/// BOX-4: without a shim, a program runs in a process group of its own. A stop ends the whole group, also if the program
/// ignores SIGTERM; and its end is seen by itself.
#[tokio::test]
async fn a_program_without_a_keeper_ends_with_its_group() {
    use_shim(Shim::Off);
    let run =
        |script: &str, mark: &str| spawn(&spec(script, mark, Limits::default()), Box::new(|_| {})).unwrap();
    let (polite, stubborn, brief) = (mark("polite"), mark("stubborn"), mark("brief"));
    let child = run("sleep 600 & wait", &polite);
    let view = child.view();
    assert_eq!(
        (view.containment().to_string(), child.containment().to_string()),
        ("group".into(), "group".into())
    );
    assert_eq!(view.tree().first(), Some(&child.pid()));
    child.stop(Duration::from_millis(1)).await;
    assert!(view.tree().is_empty());
    none_left(&polite).await;

    let mut child = run("trap '' TERM; echo on; sleep 600 & wait; wait", &stubborn);
    let mut heard = [0; 3];
    child.take_stdout().unwrap().read_exact(&mut heard).await.unwrap();
    child.stop(Duration::from_millis(1)).await;
    none_left(&stubborn).await;

    let mut child = run("sleep 600 & exit 7", &brief);
    assert_eq!(soon("the end of the program", child.wait()).await.code, Some(7));
    none_left(&brief).await;
}

/// BOX-4: without a shim, a confinement that must hold refuses the start, and the error names the cure.
#[tokio::test]
async fn a_confinement_without_a_keeper_is_refused() {
    use_shim(Shim::Off);
    let confinement = Confinement { files: None, network: false, signals: false, degrade: false };
    let confined = Spec { confinement: Some(confinement), ..spec("sleep 60", "none", Limits::default()) };
    let error = spawn(&confined, Box::new(|_| {})).unwrap_err().to_string();
    assert!(error.contains("main_if_asked") && error.contains("on_missing"), "{error}");
}

/// BOX-3: a process that takes more CPU time than allowed gets SIGXCPU and dies of it.
#[tokio::test]
async fn processor_time_is_limited() {
    let mark = mark("cpu");
    let mut child = start("while :; do :; done", &mark, Limits { cpu_seconds: Some(1), ..Limits::default() });
    let exit = tokio::time::timeout(Duration::from_secs(60), child.wait()).await.unwrap();
    assert!(exit.is_of_cpu_limit(), "{exit}");
}

/// BOX-3: shared memory counts as memory.
#[tokio::test]
async fn box_20_shared_memory_is_limited() {
    if python().is_none() {
        not_shown("box_20_shared_memory_is_limited", "python3, to map memory with");
        return;
    }
    let mark = mark("20");
    let limits = Limits { memory: Some(96 * MEGABYTE), ..Limits::default() };
    let script = format!("{SHARES}=300 exec \"${PROGRAM}\" --exact taker --nocapture");
    let mut child = start(&script, &mark, limits);
    let breach = ended(&mut child, &mark).await;
    assert!(
        matches!(breach, Some(Breach::Memory { bytes }) if bytes >= 96 * MEGABYTE),
        "{breach:?}; {}",
        child.stderr_tail()
    );
}

/// The path of a Python interpreter.
fn python() -> Option<&'static str> {
    ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .find(|path| std::path::Path::new(path).is_file())
}

/// All tests of this file also hold for an unprivileged user; root runs them once more as one.
#[test]
fn all_holds_for_an_unprivileged_user() {
    let shim = std::path::Path::new(env!("CARGO_BIN_EXE_process-shim"));
    as_unprivileged("limits_as_an_unprivileged_user", &[shim], |name| {
        name != "all_holds_for_an_unprivileged_user"
    });
}
