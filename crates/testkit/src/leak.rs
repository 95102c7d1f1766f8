//! Checks that a test leaves nothing behind: no process, no descriptor, no task.
//!
//! A process counts if it descends from the test, or if its environment carries the mark of the check; the mark also
//! finds orphans. Zombies count, because their parent did not wait for them. Leftovers have a minute of real time to go
//! away.
//!
//! Descriptors, and children without the mark, belong to the whole test process. If several tests share a process
//! (`cargo test`), they may be another test's, so only marked processes and tasks are checked there. A runner with a
//! process per test (`cargo nextest`) gets everything checked. [`LeakCheck::whole_process`] overrides this.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Handle;

/// The variable that carries the mark.
const MARK: &str = "BRIDGEHEAD_TEST_MARK";

/// How long leftovers may take to go away.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process may take to switch from one program to the next, on a busy machine.
const EXECUTING: Duration = Duration::from_secs(5);

/// A process, distinguished from a later one with the same number by its start time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessKey {
    pid: u32,
    started: u64,
}

/// The processes, descriptors and tasks that existed when the test began.
#[derive(Debug)]
pub struct LeakCheck {
    mark: String,
    whole_process: bool,
    /// Whether a test that never runs the check fails.
    required: bool,
    asked: AtomicBool,
    patience: Duration,
    children: BTreeSet<ProcessKey>,
    descriptors: BTreeMap<u32, PathBuf>,
    tasks: usize,
}

/// What exists beyond that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Processes: number, state letter and command line.
    pub processes: Vec<(u32, char, String)>,
    /// Descriptors that were not open before: number and target. Empty unless there are more of them than before.
    pub descriptors: Vec<(u32, PathBuf)>,
    /// How many more tasks the runtime has.
    pub tasks: usize,
}

impl LeakCheck {
    /// Takes the baseline. Inside a runtime its tasks are counted too.
    pub fn start() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let nanoseconds =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Self {
            mark: format!("{}-{nanoseconds}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)),
            whole_process: std::env::var("NEXTEST_EXECUTION_MODE").as_deref() == Ok("process-per-test"),
            required: false,
            asked: AtomicBool::new(false),
            patience: PATIENCE,
            children: descendants(&processes()).map(|process| process.key.clone()).collect(),
            descriptors: descriptors(),
            tasks: tasks(),
        }
    }

    /// Sets whether this test has the process to itself.
    #[must_use]
    pub fn whole_process(mut self, alone: bool) -> Self {
        self.whole_process = alone;
        self
    }

    /// Fails a test that drops the check without running it: otherwise a forgotten check would go unnoticed.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Sets how long leftovers may take to go away, instead of a minute.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The variable, name and value, for the processes that the test starts.
    pub fn marker(&self) -> (String, String) {
        (MARK.to_owned(), self.mark.clone())
    }

    /// Waits until nothing is left; panics with the list of leftovers.
    pub async fn assert_clean(self) {
        if let Err(left) = self.settle().await {
            panic!("the test left something behind:\n{left}");
        }
    }

    /// Waits until nothing is left, or returns the leftovers when patience runs out.
    pub async fn settle(&self) -> Result<(), Leftovers> {
        self.asked.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + self.patience;
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(left);
            }
            // Real time for foreign processes, the runtime's time for our own timers: under a paused clock only the
            // second lets those fire.
            let _ = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(4))).await;
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    }

    /// The leftovers at this moment.
    pub fn leftovers(&self) -> Leftovers {
        let all = processes();
        let mut found: BTreeMap<&ProcessKey, &Process> = BTreeMap::new();
        if self.whole_process {
            let new = descendants(&all).filter(|process| !self.children.contains(&process.key));
            found.extend(new.map(|process| (&process.key, process)));
        }
        let mark = format!("{MARK}={}", self.mark);
        let marked = all.iter().filter(|process| process.carries(&mark));
        found.extend(marked.map(|process| (&process.key, process)));

        let mut open = BTreeMap::new();
        if self.whole_process {
            open = descriptors();
            if open.len() <= self.descriptors.len() {
                open.clear();
            }
            open.retain(|number, target| self.descriptors.get(number) != Some(target));
        }
        Leftovers {
            processes: found
                .into_values()
                .map(|process| (process.key.pid, process.state, process.command()))
                .collect(),
            descriptors: open.into_iter().collect(),
            tasks: tasks().saturating_sub(self.tasks),
        }
    }
}

impl Drop for LeakCheck {
    fn drop(&mut self) {
        let forgotten = self.required && !self.asked.load(Ordering::Relaxed);
        assert!(!forgotten || std::thread::panicking(), "the test never asked what it left behind");
    }
}

impl Leftovers {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (pid, state, command) in &self.processes {
            writeln!(formatter, "  process {pid} ({state}): {command}")?;
        }
        for (number, target) in &self.descriptors {
            writeln!(formatter, "  descriptor {number}: {}", target.display())?;
        }
        if self.tasks > 0 {
            writeln!(formatter, "  {} tasks of the runtime", self.tasks)?;
        }
        Ok(())
    }
}

struct Process {
    key: ProcessKey,
    parent: u32,
    state: char,
}

impl Process {
    /// Reads `/proc/PID/stat`. The process name in it may contain anything, so fields count from its closing bracket.
    fn read(pid: u32) -> Option<Self> {
        let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            key: ProcessKey { pid, started: fields.nth(17)?.parse().ok()? },
        })
    }

    fn carries(&self, variable: &str) -> bool {
        let limit = Instant::now() + EXECUTING;
        loop {
            // Unreadable for this user, or a zombie: its environment is unknown.
            let Ok(text) = std::fs::read(format!("/proc/{}/environ", self.key.pid)) else { return false };
            if !text.is_empty() || !self.is_executing() || Instant::now() > limit {
                return text.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the process is in the middle of `exec`: for a moment it has neither arguments nor an environment. A
    /// kernel thread never has any.
    fn is_executing(&self) -> bool {
        const OF_THE_SYSTEM: u32 = 2;
        let is_of_the_system = self.key.pid == OF_THE_SYSTEM || self.parent == OF_THE_SYSTEM;
        !is_of_the_system && self.state != 'Z' && self.command().is_empty()
    }

    fn command(&self) -> String {
        let text = std::fs::read(format!("/proc/{}/cmdline", self.key.pid)).unwrap_or_default();
        String::from_utf8_lossy(&text).trim_end_matches('\0').replace('\0', " ")
    }
}

fn numbers_in(folder: &str) -> Vec<u32> {
    let entries = Path::new(folder).read_dir().expect("a system with /proc");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn processes() -> Vec<Process> {
    numbers_in("/proc").into_iter().filter_map(Process::read).collect()
}

/// All descendants of the test process, at any depth.
fn descendants(all: &[Process]) -> impl Iterator<Item = &Process> {
    let mut family = BTreeSet::from([std::process::id()]);
    loop {
        let known = family.len();
        let born = all.iter().filter(|process| family.contains(&process.parent));
        let born: Vec<u32> = born.map(|process| process.key.pid).collect();
        family.extend(born);
        if family.len() == known {
            break;
        }
    }
    all.iter().filter(move |process| family.contains(&process.parent))
}

fn descriptors() -> BTreeMap<u32, PathBuf> {
    let target = |number| {
        // The descriptor that reads this folder is closed by now, so it is left out.
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        Some((number, target))
    };
    numbers_in("/proc/self/fd").into_iter().filter_map(target).collect()
}

fn tasks() -> usize {
    Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks())
}
