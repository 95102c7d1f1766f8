//! A process killed at any system call of a segment's life leaves a record that can be read, finished and verified.
//!
//! A process changes its files only by system calls, so a kill can leave only the states between two of them. `strace` kills
//! the child below at the first, the second, the third … call of each kind. Calls that change no file cannot make a
//! difference and are left out.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{IoSlice, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bridgehead_audit::{
    AuditSink, CHECKPOINT_FILE, CorrelationId, Expected, StoreOptions, StoreSink, Verifier, read_checkpoints,
    segments,
};

use crate::support::{block_on, enter_of, eventually, exit_of, open, python_verifies, rows, verify};

const FOLDER: &str = "BRIDGEHEAD_AUDIT_TEST_LIFE";
/// The calls that change, create, move or remove a file. (The child prints with `writev`.)
const CHANGING: [&str; 12] = [
    "openat",
    "write",
    "pwrite64",
    "pwritev",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
];
/// Up to this many calls of a kind, each is tried; of a kind with more, this many at even distances.
const MOST_OF_A_KIND: usize = 120;
/// How long the test tries points.
const MOST_TIME: Duration = Duration::from_secs(70);
/// The segments of one life. `strace` counts the calls of each thread separately, and the thread that first reaches a number
/// ends them all. So a thread's first calls may be hidden; it repeats them for the next segment.
const SEGMENTS: usize = 5;
/// How many files loading and starting the child open before the store begins.
const OPENED_BEFORE: usize = 20;

/// The child: the life of some segments, with everything that the store does to one.
#[test]
fn child_with_a_short_life() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    (0..OPENED_BEFORE).for_each(|_| drop(fs::File::open("/dev/null").unwrap()));
    let told = fs::File::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap());
    let mut options = StoreOptions::new(folder);
    (options.segment_bytes, options.checkpoint_rows) = (2_000, 4);
    let sink = StoreSink::open(options).unwrap();
    let answer = |ends: bool| {
        let enter = enter_of(CorrelationId::mint(), "files__read", "{}");
        let ticket = block_on(sink.enter(&enter)).unwrap();
        let line = format!("\nanswered {}\n", enter.correlation());
        assert_eq!((&told).write_vectored(&[IoSlice::new(line.as_bytes())]).unwrap(), line.len());
        if ends {
            sink.exit(ticket, exit_of(&enter, "{}")).unwrap();
        }
    };
    for wanted in 2..=SEGMENTS {
        answer(false);
        eventually("another segment begins", || {
            answer(true);
            // Listing the folder would add system calls that are not the store's.
            folder.join(format!("{}.{wanted:04}.sqlite", sink.instance())).exists()
        });
    }
    sink.close();
}

/// One life under `strace` with these options.
fn live(folder: &Path, options: &[&str]) -> Output {
    let ran = Command::new("strace")
        .args(["-f", "-qq"])
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child_with_a_short_life", "--nocapture"])
        .env(FOLDER, folder)
        // With this variable the loader opens more files than the child does.
        .env_remove("LD_LIBRARY_PATH")
        .output();
    ran.unwrap_or_else(|error| {
        panic!("strace cannot be run ({error}); install it, e.g. `apt-get install strace`")
    })
}

/// How often each kind is called in one life, by the thread that calls it most: `strace` counts per thread.
fn kinds(before: &Path) -> BTreeMap<&'static str, usize> {
    let folder = copy(before);
    let log = folder.path().join("log");
    let all = format!("trace={}", CHANGING.join(","));
    let ran = live(folder.path(), &["-o", log.to_str().unwrap(), "-e", &all]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "the life ended early: {said}");
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let text = fs::read_to_string(&log).unwrap();
    for line in text.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let Some((kind, _)) = call.trim_start().split_once('(') else { continue };
        if CHANGING.contains(&kind) {
            *counts.entry((thread, kind)).or_default() += 1;
        }
    }
    let mut kinds = BTreeMap::new();
    for ((_, kind), count) in counts {
        let kind = CHANGING.into_iter().find(|it| *it == kind).unwrap();
        let most: &mut usize = kinds.entry(kind).or_default();
        *most = count.max(*most);
    }
    kinds
}

/// What a killed process left can be read as it is; the next start finishes it, and no acknowledged call is lost.
fn check(folder: &Path, answered: &HashSet<String>, at: &str, with_python: bool) {
    let left = segments(folder);
    assert_eq!(verify(&left).1, [], "{at}: as it was left");
    open(folder).close();
    let files = segments(folder);
    let mut verifier = Verifier::default();
    let stated = read_checkpoints(&folder.join(CHECKPOINT_FILE)).unwrap();
    stated.checkpoints.iter().for_each(|checkpoint| verifier.expect(Expected::from(checkpoint)));
    verifier.read(&files);
    let (verified, problems, absent) = verifier.finish();
    assert_eq!((problems, absent), (vec![], vec![]), "{at}");
    assert!(verified.iter().all(|segment| segment.sealed), "{at}: {verified:?}");
    let instance = |file: &Path| file.file_name().unwrap().to_str().unwrap()[..36].to_owned();
    let rows = files.iter().flat_map(|file| rows(file).into_iter().map(|row| (instance(file), row)));
    let rows: Vec<_> = rows.collect();
    let entered: HashSet<String> = rows
        .iter()
        .filter(|(_, row)| row.kind == "enter")
        .map(|(_, row)| row.correlation_id.clone())
        .collect();
    assert!(entered.is_superset(answered), "{at}: an answered call is lost");
    let ended: HashSet<_> = rows.iter().filter_map(|(instance, row)| Some((instance, row.enter?))).collect();
    assert_eq!((ended.len(), rows.len()), (entered.len(), 2 * entered.len()), "{at}: each call ends once");
    let paths: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    assert!(!with_python || paths.is_empty() || python_verifies(&paths), "{at}");
    let mut beside: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    beside.retain(|path| !files.contains(path) && path.file_name().unwrap() != CHECKPOINT_FILE);
    assert_eq!(beside, Vec::<PathBuf>::new(), "{at}: something is left beside the segments");
}

/// One life that is killed at a certain call; returns the calls that it answered and whether the kill happened.
fn live_until(folder: &Path, kind: &str, number: usize) -> (HashSet<String>, bool) {
    let kill = format!("inject={kind}:signal=SIGKILL:when={number}");
    let ran = live(folder, &["-o", "/dev/null", "-e", &format!("trace={kind}"), "-e", &kill]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let whole = |id: &str| CorrelationId::parse(id).map(|id| id.to_string());
    let answered = said.lines().filter_map(|line| whole(line.split_once("answered ")?.1)).collect();
    (answered, ran.status.signal() == Some(9))
}

/// The folder of a process that was killed before its fourth segment had a journal, and the calls it had answered. Each life
/// begins by finishing it.
fn left_before() -> (tempfile::TempDir, HashSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    let (answered, died) = live_until(folder.path(), "rename", 6);
    assert!(died && segments(folder.path()).len() == 4, "{:?}", segments(folder.path()));
    (folder, answered)
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

/// FAULT-1: a kill at any system call of a segment's life leaves a record that can be read, recovers and verifies, and loses
/// no confirmed enter.
#[test]
fn a_kill_at_any_system_call_is_recovered_from() {
    let (before, answered_before) = left_before();
    let kinds = kinds(before.path());
    for needed in ["openat", "pwrite64", "ftruncate", "fsync", "rename", "unlink"] {
        assert!(kinds.contains_key(needed), "a life without {needed}: {kinds:?}");
    }
    let mut points: Vec<(&str, usize)> = kinds
        .iter()
        .flat_map(|(kind, count)| {
            let tried = (*count).min(MOST_OF_A_KIND);
            (0..tried).map(move |number| (*kind, 1 + number * count / tried))
        })
        .collect();
    // If the machine is too busy to try all, the first points are a sample of every kind.
    points.sort_by_key(|(_, number)| number % 5);
    let until = Instant::now() + MOST_TIME;
    let (next, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // A life mostly waits, so several run at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((kind, number)) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if Instant::now() > until {
                        next.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    let folder = copy(before.path());
                    let (mut answered, died) = live_until(folder.path(), kind, *number);
                    answered.extend(answered_before.iter().cloned());
                    check(folder.path(), &answered, &format!("{kind} number {number}"), number % 16 == 1);
                    killed.fetch_add(usize::from(died), Ordering::Relaxed);
                }
            });
        }
    });
    let (killed, tried) = (killed.into_inner(), next.into_inner().min(points.len()));
    println!("{killed} kills at {tried} of {} points of {kinds:?}", points.len());
    // Lives differ a little: some end before they reach a call that another made.
    assert!(killed * 3 >= tried, "{killed} kills at {tried} points of {kinds:?}");
}
