//! Process trees that try to outlive their server or the gateway, kept by a shim.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed expectation of a test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bridgehead_process::{
    Child, Containment, Exit, Shim, Spec, adopt_orphans, base_environment, spawn, use_shim,
};
use bridgehead_testkit::soon;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::ChildStdout;

/// Set in the environment of everything that a test starts, so that every process of the test can be found.
const MARK: &str = "BRIDGEHEAD_TREE_TEST";
/// Makes this file's program a gateway that runs the script in this variable until it is killed.
const GATEWAY: &str = "BRIDGEHEAD_TREE_GATEWAY";

/// Makes that gateway adopt orphans, and wait for the end of its server's shim.
const ADOPTS: &str = "BRIDGEHEAD_TREE_ADOPTS";

/// A classic daemon: forks, leads a new session, forks again, and its parents end. Prints its pid.
const DAEMON: &str = "setsid sh -c '(trap \"\" TERM HUP; exec sleep 300) & echo $!' & wait $!;";

fn spec(script: &str, mark: &str) -> Spec {
    let parent: BTreeMap<String, String> = std::env::vars().collect();
    let mut env = base_environment(&parent);
    env.insert(MARK.to_owned(), mark.to_owned());
    Spec {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env,
        cwd: None,
        limits: bridgehead_process::Limits::default(),
        confinement: None,
    }
}

/// A value for the mark that no other test and no other run uses.
fn mark(test: &str) -> String {
    format!("{test}-{}-{:?}", std::process::id(), std::time::SystemTime::now())
}

fn start(script: &str, mark: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
    let mut child = spawn(&spec(script, mark), Box::new(|_| {})).unwrap();
    assert_eq!(child.containment(), Containment::Tree);
    let lines = BufReader::new(child.take_stdout().unwrap()).lines();
    (child, lines)
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await.unwrap().unwrap().unwrap()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The state letter and the parent of a process.
fn state(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    pids()
        .filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .collect()
}

/// Our own children that have ended but were not waited for.
fn zombies() -> Vec<u32> {
    let me = std::process::id();
    pids().filter(|&pid| state(pid) == Some(('Z', me))).collect()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// POOL-9: a daemon that forked twice and left its session ends with the server, however the server ends.
#[tokio::test]
async fn a_daemon_does_not_survive() {
    for way in ["stop", "drop", "kill", "exit"] {
        let mark = mark(way);
        let (mut child, mut lines) = start(&format!("{DAEMON} echo up; read word; exit 3"), &mark);
        let daemon: u32 = line(&mut lines).await.parse().unwrap();
        assert_eq!(line(&mut lines).await, "up");
        assert_ne!(state(daemon).unwrap().1, child.pid(), "it has left its parent");
        until("the daemon is in the tree", || child.tree().contains(&daemon)).await;
        assert!(child.tree().contains(&child.pid()));
        match way {
            "stop" => assert_eq!(child.stop(Duration::from_secs(60)).await.to_string(), "exit status 3"),
            "kill" => assert_eq!(child.kill().await.to_string(), "signal 9 (SIGKILL)"),
            "exit" => {
                drop(child.take_stdin());
                assert_eq!(soon("the end of the program", child.wait()).await.to_string(), "exit status 3");
                assert_eq!(child.tree(), [0; 0]);
            }
            _ => {
                drop(child);
                until("the tree is gone", || marked(&mark).is_empty() && state(daemon).is_none()).await;
            }
        }
        // After a wait the processes must be gone now, not soon.
        assert_eq!((state(daemon), marked(&mark)), (None, vec![]), "{way}");
        until("no zombies", || zombies().is_empty()).await;
    }
}

/// POOL-9: a tree like that of `npx` ends completely, on SIGTERM or on SIGKILL.
#[tokio::test]
async fn box_29_launchers_and_shells_end_completely() {
    for script in [
        "sh -c 'sh -c \"echo up; sleep 300\"; true'; true",
        "sh -c 'trap \"\" TERM; echo up; sleep 300; sleep 300'; true",
    ] {
        let mark = mark("launcher");
        let (child, mut lines) = start(script, &mark);
        assert_eq!(line(&mut lines).await, "up");
        until("all of them run", || child.tree().len() >= 3).await;
        assert!(child.memory_bytes().unwrap() > 500_000, "{:?}", child.memory_bytes());
        let begin = Instant::now();
        assert_eq!(child.stop(Duration::ZERO).await.to_string(), "signal 15 (SIGTERM)");
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
        assert_eq!(marked(&mark), [0; 0]);
        // The nursery ends with the last tree, and must be reaped.
        until("no zombies", || zombies().is_empty()).await;
    }
}

/// POOL-9: every process of the tree gets the grace period, even if the server ends sooner.
#[tokio::test]
async fn the_grace_is_for_the_whole_tree() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("tidy");
    let inner = format!(
        "trap 'sleep 0.2; echo done > {}; exit' TERM; echo up; while :; do sleep 0.01; done",
        file.display()
    );
    let (child, mut lines) = start(&format!("sh -c \"{inner}\" & wait"), &mark("grace"));
    assert_eq!(line(&mut lines).await, "up");
    assert_eq!(child.stop(Duration::ZERO).await.to_string(), "signal 15 (SIGTERM)");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "done\n");
}

/// POOL-9: a hundred processes are killed as reliably as one, and quickly.
#[tokio::test]
async fn a_hundred_processes_are_killed_quickly() {
    let mark = mark("hundred");
    let script = "trap '' TERM; for i in 1 2 3 4 5 6 7 8 9 10; do (for j in 1 2 3 4 5 6 7 8 9; do setsid sleep 300 & done; wait) & done; echo up; wait";
    let (child, mut lines) = start(script, &mark);
    assert_eq!(line(&mut lines).await, "up");
    until("a hundred run", || child.tree().len() >= 101).await;
    let begin = Instant::now();
    child.kill().await;
    let taken = begin.elapsed();
    assert_eq!(marked(&mark), [0; 0]);
    assert!(taken < Duration::from_secs(60), "{taken:?}");
}

/// POOL-9: a server that forks without pause is ended too.
#[tokio::test]
async fn a_server_that_forks_all_the_time_is_ended() {
    let mark = mark("forks");
    let script = "trap '' TERM; echo up; while :; do (setsid sleep 0.05 &) ; done";
    let (child, mut lines) = start(script, &mark);
    assert_eq!(line(&mut lines).await, "up");
    let begin = Instant::now();
    child.kill().await;
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    assert_eq!(marked(&mark), [0; 0]);
}

/// POOL-9: orphans that end are reaped while the server still runs.
#[tokio::test]
async fn orphans_leave_no_zombies() {
    let (child, mut lines) =
        start("for i in 1 2 3 4 5; do (setsid sleep 0.01 &); done; echo up; read word", &mark("orphans"));
    assert_eq!(line(&mut lines).await, "up");
    until("only the server is left", || child.tree() == [child.pid()]).await;
    assert!(child.stop(Duration::from_secs(60)).await.code.is_some());
}

/// POOL-9: the child has its three pipes and no other descriptor, even if the gateway left one open by mistake.
#[tokio::test]
async fn the_child_has_no_foreign_descriptors_and_no_blocked_signals() {
    let leak = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    let (mut child, mut lines) = start("exec sleep 300", &mark("descriptors"));
    let pid = child.pid();
    until("the program runs", || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n")
        .await;
    let open = || {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let mut open: Vec<u32> =
            entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
        open.sort_unstable();
        open
    };
    // The loader has libraries open for a moment after the program has its name.
    until("nothing but the pipes is open", || open() == [0, 1, 2]).await;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let blocked = status.lines().find(|line| line.starts_with("SigBlk:")).unwrap();
    assert!(blocked.ends_with("\t0000000000000000"), "{blocked}");
    drop(child.take_stdin());
    child.kill().await;
    assert_eq!(lines.next_line().await.unwrap(), None, "no other process holds the pipe");
}

/// POOL-9: starts and ends leave neither descriptors nor processes behind.
#[tokio::test]
async fn descriptors_stay_flat() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mark = mark("flat");
    let (child, _) = start("exit 0", &mark);
    child.stop(Duration::from_secs(60)).await;
    let before = count();
    for round in 0..50 {
        let (mut child, mut lines) = start("echo up; read word", &mark);
        assert_eq!(line(&mut lines).await, "up");
        match round % 3 {
            0 => drop(child),
            1 => _ = child.stop(Duration::from_secs(60)).await,
            _ => {
                drop(child.take_stdin());
                soon("the end of the program", child.wait()).await;
            }
        }
    }
    let mut broken = spec("", &mark);
    broken.program = "/etc".to_owned();
    assert!(spawn(&broken, Box::new(|_| {})).is_err());
    until("no descriptors", || count() <= before).await;
    until("no processes", || marked(&mark).is_empty() && zombies().is_empty()).await;
}

/// POOL-9: signals to the shim, other than SIGKILL, do not free its tree.
#[tokio::test]
async fn the_shim_obeys_no_signals() {
    let mark = mark("deaf");
    let script =
        format!("{DAEMON} for s in TERM INT HUP QUIT USR1 ALRM; do kill -$s $PPID; done; echo up; read word");
    let (child, mut lines) = start(&script, &mark);
    line(&mut lines).await;
    assert_eq!(line(&mut lines).await, "up");
    assert!(child.tree().len() >= 2, "{:?}", child.tree());
    child.stop(Duration::from_secs(60)).await;
    assert_eq!(marked(&mark), [0; 0]);
}

/// POOL-9: a shim that does not react any more is ended together with its tree, and is not left behind as a stopped process.
#[tokio::test]
async fn a_stopped_shim_is_ended_with_its_tree() {
    let mark = mark("stopped");
    let (child, mut lines) = start("setsid sleep 300 & echo up; read word", &mark);
    assert_eq!(line(&mut lines).await, "up");
    let shim = state(child.pid()).unwrap().1;
    let pid = rustix::process::Pid::from_raw(i32::try_from(shim).unwrap()).unwrap();
    // A group of its own keeps signals to the group of the nursery away from it.
    assert_eq!(rustix::process::getpgid(Some(pid)), Ok(pid));
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    assert!(!soon("the end of a tree without a shim", child.kill()).await.is_success());
    until("the shim and its tree are gone", || marked(&mark).is_empty() && state(shim).is_none()).await;
}

/// POOL-9: when a server kills its shim, the whole tree is killed.
#[tokio::test]
async fn a_tree_that_lost_its_shim_is_killed() {
    for way in ["wait", "drop"] {
        let mark = mark(way);
        let script =
            format!("{DAEMON} setsid sleep 300 & sleep 300 & read word; kill -9 $PPID; exec sleep 300");
        let (mut child, mut lines) = start(&script, &mark);
        let daemon: u32 = line(&mut lines).await.parse().unwrap();
        let shim = state(child.pid()).unwrap().1;
        until("the daemon has left its parents", || state(daemon).is_some_and(|(_, parent)| parent == shim))
            .await;
        let mut stdin = child.take_stdin().unwrap();
        stdin.write_all(b"go\n").await.unwrap();
        if way == "wait" {
            assert_eq!(soon("the end of the program", child.wait()).await, Exit { code: None, signal: None });
            drop(child);
        } else {
            until("the shim is dead", || state(shim).is_none_or(|(letter, _)| letter == 'Z')).await;
            drop(child);
        }
        // The nursery has killed and reaped them all, the daemon too.
        until("the tree is gone", || marked(&mark).is_empty() && state(daemon).is_none()).await;
        until("no zombies", || zombies().is_empty()).await;
    }
}

/// POOL-9: a shim that was stopped is as good as killed: its tree is ended, and whoever waits for its end hears of it.
#[tokio::test]
async fn a_tree_whose_shim_was_stopped_is_killed() {
    let mark = mark("stopped");
    let script = format!("{DAEMON} echo up; read word; kill -STOP $PPID; exec sleep 300");
    let (mut child, mut lines) = start(&script, &mark);
    let daemon: u32 = line(&mut lines).await.parse().unwrap();
    assert_eq!(line(&mut lines).await, "up");
    child.take_stdin().unwrap().write_all(b"go\n").await.unwrap();
    soon("the end of the shim", child.abandoned()).await;
    assert_eq!(soon("the end of the program", child.wait()).await, Exit { code: None, signal: None });
    until("the tree is gone", || marked(&mark).is_empty() && state(daemon).is_none()).await;
}

/// POOL-9: a nursery that was stopped is replaced like one that was killed.
#[tokio::test]
async fn a_stopped_nursery_is_replaced() {
    let mark = mark("still");
    let script = "echo up; read word; exit 3";
    let (first, mut lines) = start(script, &mark);
    assert_eq!(line(&mut lines).await, "up");
    let nursery = state(state(first.pid()).unwrap().1).unwrap().1;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(nursery.cast_signed()).unwrap(),
        rustix::process::Signal::STOP,
    )
    .unwrap();
    until("the nursery has ended", || state(nursery).is_none()).await;
    let (second, mut more) = start(script, &mark);
    assert_eq!(line(&mut more).await, "up");
    for child in [first, second] {
        let exit = soon("the end of the program", child.stop(Duration::from_secs(60))).await;
        assert_eq!(exit.to_string(), "exit status 3");
    }
}

/// POOL-9: a server that kills or stops the nursery and its shim leaves nothing behind, not even a daemon, if the gateway adopts
/// orphans; and the gateway hears of it.
#[tokio::test]
async fn nothing_outlives_those_that_keep_it() {
    for (signal, first, second) in [
        ("KILL", "nursery", "shim"),
        ("KILL", "shim", "nursery"),
        ("STOP", "nursery", "shim"),
        ("STOP", "shim", "nursery"),
    ] {
        let mark = mark(&format!("{signal}-{first}"));
        let script = format!(
            "shim=$PPID; nursery=$(cut -d' ' -f4 /proc/$shim/stat); {DAEMON} \
             setsid sleep 300 & echo up; sleep 0.1; kill -{signal} ${first}; kill -{signal} ${second}; exec sleep 300"
        );
        #[expect(clippy::disallowed_methods, reason = "this test needs a gateway of its own")]
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "gateway", "--nocapture", "--quiet"]).env(GATEWAY, script).env(MARK, &mark);
        command.env(ADOPTS, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut gateway = command.spawn().unwrap();
        let mut output = BufReader::new(gateway.stdout.take().unwrap()).lines();
        let heard = async {
            while !output.next_line().await.unwrap().expect("the gateway goes on").contains("was abandoned") {
            }
        };
        soon("the gateway's word that it has heard", heard).await;
        let itself = gateway.id().unwrap();
        until("only the gateway is left", || marked(&mark) == [itself]).await;
        until("it has no children", || {
            !pids().any(|pid| state(pid).is_some_and(|(_, parent)| parent == itself))
        })
        .await;
        gateway.kill().await.unwrap();
    }
}

/// POOL-9: if the nursery is killed, running trees go on and end as usual, and the next start gets a new nursery.
#[tokio::test]
async fn a_killed_nursery_is_replaced() {
    let mark = mark("nursery");
    let script = format!("{DAEMON} echo up; read word; exit 3");
    let (first, mut lines) = start(&script, &mark);
    let daemon: u32 = line(&mut lines).await.parse().unwrap();
    assert_eq!(line(&mut lines).await, "up");
    let nursery = |child: &Child| state(state(child.pid()).unwrap().1).unwrap().1;
    let killed = nursery(&first);
    assert_eq!(state(killed).unwrap().1, std::process::id(), "the nursery is our only child");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(killed.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    // Starts at once, when the kernel may not even have closed its socket yet.
    let (second, mut more) = start(&script, &mark);
    assert_ne!(nursery(&second), killed);
    line(&mut more).await;
    assert_eq!(line(&mut more).await, "up");
    assert_eq!(first.stop(Duration::from_secs(60)).await.to_string(), "exit status 3");
    assert_eq!(state(daemon), None);
    assert_eq!(second.stop(Duration::from_secs(60)).await.to_string(), "exit status 3");
    until("nothing is left", || marked(&mark).is_empty()).await;
    until("no child is left", || {
        !pids().any(|pid| state(pid).is_some_and(|(_, parent)| parent == std::process::id()))
    })
    .await;
}

/// There is one nursery, which lives as long as a tree or a [`Prepared`](bridgehead_process::Prepared) holds it.
#[tokio::test]
async fn one_nursery_serves_many_and_ends_with_the_last() {
    let mark = mark("many");
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
    let children =
        || pids().filter(|&pid| state(pid).is_some_and(|(_, parent)| parent == std::process::id())).count();
    let prepared = bridgehead_process::prepare();
    let (first, _lines) = start("read word", &mark);
    let (second, _more) = start("read word", &mark);
    assert_eq!(children(), 1);
    first.kill().await;
    second.kill().await;
    assert_eq!(children(), 1);
    drop(prepared);
    until("the nursery has ended", || children() == 0).await;
}

/// POOL-9: nothing is left when the gateway itself is killed.
#[tokio::test]
async fn box_27_nothing_outlives_a_killed_gateway() {
    let mark = mark("gateway");
    #[expect(clippy::disallowed_methods, reason = "this test needs a gateway that it can kill")]
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "gateway", "--nocapture", "--quiet"]);
    command
        .env(GATEWAY, format!("{DAEMON} echo up; trap '' TERM HUP; sleep 300; sleep 300"))
        .env(MARK, &mark);
    let mut gateway = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut output = BufReader::new(gateway.stdout.take().unwrap()).lines();
    while !output.next_line().await.unwrap().expect("the gateway comes up").contains("gateway is up") {}
    // The server's shell may still be about to start its child.
    until("gateway, server, its child and the daemon are there", || marked(&mark).len() >= 4).await;
    gateway.kill().await.unwrap();
    until("all are gone", || marked(&mark).is_empty()).await;
}

/// The gateway of the test above. Does nothing unless [`GATEWAY`] is set.
#[tokio::test]
async fn gateway() {
    let Ok(script) = std::env::var(GATEWAY) else { return };
    if std::env::var(ADOPTS).is_ok() {
        adopt_orphans().unwrap();
    }
    let (mut child, mut lines) = start(&script, &std::env::var(MARK).unwrap());
    line(&mut lines).await;
    line(&mut lines).await;
    println!("gateway is up");
    if std::env::var(ADOPTS).is_ok() {
        soon("the end of the shim", child.abandoned()).await;
        soon("the end of the program", child.wait()).await;
        drop(child);
        println!("the server was abandoned");
        return std::future::pending().await;
    }
    soon("the end of the program", child.wait()).await;
    panic!("the server has ended");
}

/// POOL-9: a start with a broken shim fails with an error that says so, and nothing runs.
#[tokio::test]
async fn a_broken_shim_is_refused() {
    for (shim, expected) in [("/no/such/shim", "No such file"), ("/bin/true", "it ended at once")] {
        use_shim(Shim::Program(shim.into()));
        let error = spawn(&spec("sleep 300", "none"), Box::new(|_| {})).unwrap_err().to_string();
        assert!(error.contains(shim) && error.contains(expected), "{error}");
    }
}

/// Without a shim a program runs as a process group, and `containment` says so.
#[tokio::test]
async fn without_a_shim_there_is_a_group() {
    use_shim(Shim::Off);
    let mut child = spawn(&spec("sleep 300 & echo $!; wait", "none"), Box::new(|_| {})).unwrap();
    assert_eq!(child.containment(), Containment::Group);
    let mut lines = BufReader::new(child.take_stdout().unwrap()).lines();
    let sleeper: u32 = line(&mut lines).await.parse().unwrap();
    let mut tree = child.tree();
    tree.sort_unstable();
    let mut expected = [child.pid(), sleeper];
    expected.sort_unstable();
    assert_eq!(tree, expected);
    assert_eq!(child.kill().await.to_string(), "signal 9 (SIGKILL)");
    until("the group is gone", || state(sleeper).is_none_or(|(letter, _)| letter == 'Z')).await;
}

/// Arguments and variables may be as long as the system allows, which is more than a socket buffer holds.
#[tokio::test]
async fn long_arguments_arrive() {
    let mut spec = spec("echo ${#1} ${#BIG}", "none");
    spec.args.extend(["sh".to_owned(), "x".repeat(100_000)]);
    spec.env.insert("BIG".to_owned(), "y".repeat(120_000));
    for number in 0..10 {
        spec.env.insert(format!("MORE{number}"), "z".repeat(100_000));
    }
    spec.cwd = Some(Path::new("/").to_owned());
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
    let mut child = spawn(&spec, Box::new(|_| {})).unwrap();
    let mut output = String::new();
    soon("the end of what the program prints", child.take_stdout().unwrap().read_to_string(&mut output))
        .await
        .unwrap();
    assert_eq!(output, "100000 120000\n");
    assert!(soon("the end of the program", child.wait()).await.is_success());
}

/// POOL-9: starts that overlap, fail or are dropped leave nothing behind.
#[tokio::test]
async fn starts_may_overlap_and_be_given_up() {
    let mark = mark("overlap");
    use_shim(Shim::Program(env!("CARGO_BIN_EXE_process-shim").into()));
    let spec = spec("echo up; read word", &mark);
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let spec = spec.clone();
        running.spawn(async move {
            let mut child = bridgehead_process::start(&spec, Box::new(|_| {})).await.unwrap();
            let mut lines = BufReader::new(child.take_stdout().unwrap()).lines();
            assert_eq!(line(&mut lines).await, "up");
            child.stop(Duration::from_secs(60)).await
        });
    }
    for exit in running.join_all().await {
        assert!(exit.code.is_some(), "{exit}");
    }

    let place = tempfile::tempdir().unwrap();
    let mut broken = spec.clone();
    broken.program = place.path().join("script").to_str().unwrap().to_owned();
    std::fs::write(&broken.program, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&broken.program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let error = bridgehead_process::start(&broken, Box::new(|_| {})).await.unwrap_err();
    assert!(matches!(error, bridgehead_process::SpawnError::NoInterpreter { .. }), "{error}");

    let given_up =
        tokio::time::timeout(Duration::ZERO, bridgehead_process::start(&spec, Box::new(|_| {}))).await;
    drop(given_up);
    // The program may have started, because the order was already sent.
    tokio::time::sleep(Duration::from_millis(50)).await;
    until("nothing is left", || marked(&mark).is_empty() && zombies().is_empty()).await;
}

/// A view shows the same tree as its owner sees, and nothing once the tree has ended.
#[tokio::test]
async fn a_view_shows_the_tree_until_its_end() {
    let mark = mark("view");
    let (child, mut lines) = start("setsid sleep 60 & sleep 60 & echo up; wait", &mark);
    assert_eq!(line(&mut lines).await, "up");
    let view = child.view();
    until("all of them run", || view.tree().len() >= 3).await;
    let (mut seen, mut owned) = (view.tree(), child.tree());
    assert_eq!((seen[0], view.pid(), view.containment()), (child.pid(), child.pid(), Containment::Tree));
    seen.sort_unstable();
    owned.sort_unstable();
    assert_eq!(seen, owned);
    assert!(view.memory_bytes().unwrap() > 100_000);
    child.kill().await;
    assert_eq!((view.tree(), view.memory_bytes()), (Vec::new(), None));
}

/// A program keeps running when the thread that started it ends.
#[test]
fn box_47_the_thread_that_started_it_may_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mark = mark("thread");
    let handle = runtime.handle().clone();
    let started = {
        let mark = mark.clone();
        std::thread::spawn(move || {
            let _inside = handle.enter();
            start("echo up; cat", &mark)
        })
    };
    let (child, mut lines) = started.join().unwrap();
    runtime.block_on(async {
        assert_eq!(line(&mut lines).await, "up");
        assert!(marked(&mark).contains(&child.pid()));
        child.stop(Duration::from_secs(60)).await;
    });
}

/// BOX-5: starting a program costs a gateway with a gigabyte no more than a small one, and less than 2 ms at the median.
/// This judges the thread's CPU time, which other programs do not lengthen; `cargo xtask bench` judges the wall time.
#[tokio::test]
async fn box_48_a_start_does_not_grow_with_memory() {
    /// The CPU time of this thread so far.
    fn spent() -> Duration {
        let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(spent.split_whitespace().next().unwrap().parse().unwrap())
    }
    async fn median() -> Duration {
        let mut all = Vec::new();
        for _ in 0..31 {
            let mark = mark("memory");
            let begun = spent();
            let (child, mut lines) = start("echo up; cat", &mark);
            all.push(spent() - begun);
            line(&mut lines).await;
            child.kill().await;
        }
        all.sort();
        all[15]
    }
    let small = median().await;
    let held: Vec<Vec<u8>> = (0..1024).map(|number| vec![(number % 200) as u8 | 1; 1 << 20]).collect();
    let large = median().await;
    assert!(held.iter().all(|block| block[4096] != 0));
    assert!(large < Duration::from_millis(2), "{large:?}");
    assert!(large < small * 3 + Duration::from_micros(300), "{small:?}, with a gigabyte {large:?}");
}
