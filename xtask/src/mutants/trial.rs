//! Runs tests of the copy: once to record which mutants each test reaches, then against one mutant at a time.
//!
//! Every test has its own process in its own namespaces, so a mutated pid or path does no harm outside. The system's files
//! are read-only there and `/tmp` is empty. The contents of `/tmp` and all processes of the test end with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::tree::Tree;
use crate::steps;

/// How much effort is spent to catch a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// For a mutant that is tried for the first time.
    Quick,
    /// For a mutant that was not caught before: all tests, each with time for its own longest timeouts.
    Thorough,
}

impl Effort {
    /// How long a test may take in addition to ten times its normal duration. A busy machine must not look like a hang.
    const fn patience(self) -> Duration {
        match self {
            Self::Quick => Duration::from_secs(20),
            Self::Thorough => Duration::from_secs(100),
        }
    }

    /// How many tests are tried. Tests that reach few mutants come first, because they test this code specifically.
    const fn tests(self) -> usize {
        match self {
            Self::Quick => 80,
            Self::Thorough => usize::MAX,
        }
    }

    /// How many tests may hang before the mutant counts as timed out.
    const fn hangs(self) -> usize {
        match self {
            Self::Quick => 2,
            Self::Thorough => 3,
        }
    }
}

/// Sets up the mounts of the namespaces, then runs the test. The shell stays the first process there and waits for it.
/// A repository below `/tmp` is mounted there again, through a descriptor that was opened before.
const ENTER: &str = r#"set -e
mount --bind "$1" "$2"
exec 9<"$3"
mount -t tmpfs tmpfs /tmp
if ! [ -d "$3" ]; then
  mkdir -p "$3"
  mount --no-canonicalize --rbind /proc/self/fd/9 "$3"
  mount -o remount,bind,ro "$3"
  cd "$PWD"
fi
exec 9<&-
mount -o remount,bind,ro /
ulimit -v 16000000
shift 3
set +e
"$@"
exit $?"#;

/// One test, and the mutants that it reaches.
#[derive(Debug, Clone)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) package: String,
    binary: PathBuf,
    folder: PathBuf,
    took: Duration,
    reached: Vec<u32>,
}

/// The verdict on a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This test failed.
    Caught(String),
    /// No test failed, although this many reach it.
    Missed(usize),
    /// Some tests hung, and none failed.
    TimedOut,
}

/// How one run of a test ended.
enum Ended {
    Passed,
    Failed,
    Hung,
}

/// All tests of the copy that pass without a mutant, with the mutants that they reach.
pub(super) struct Tests {
    all: Vec<Test>,
    /// The tests that reach a mutant, the most promising ones first.
    by_mutant: BTreeMap<u32, Vec<usize>>,
    /// Whether there was time to run them all.
    complete: bool,
}

impl Tests {
    /// Builds all tests, then runs the wanted ones once, for at most `limit`.
    pub(super) fn record(
        tree: &Tree,
        limit: Option<Duration>,
        wanted: impl Fn(&Test) -> bool,
    ) -> Result<Self> {
        let mut listed = list(tree)?;
        let deadline = limit.map(|limit| Instant::now() + limit);
        listed.retain(wanted);
        println!("running {} tests once to record which mutants each reaches", listed.len());
        let done = AtomicUsize::new(0);
        let recorded = Mutex::new(Vec::new());
        let failed = Mutex::new(Vec::new());
        in_parallel(tree, &listed, |place, test| {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            place.set("record")?;
            let began = Instant::now();
            let ended = place.run(tree, test, Effort::Thorough.patience())?;
            let took = began.elapsed();
            let mut test = Test { took, reached: place.reached()?, ..test.clone() };
            test.reached.sort_unstable();
            test.reached.dedup();
            match ended {
                Ended::Passed => recorded.lock().unwrap_or_else(|lock| lock.into_inner()).push(test),
                Ended::Failed | Ended::Hung => {
                    failed.lock().unwrap_or_else(|lock| lock.into_inner()).push(test.name);
                }
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(200) {
                println!("  {done} of {}", listed.len());
            }
            Ok(true)
        })?;
        let failed = failed.into_inner().unwrap_or_default();
        for name in &failed {
            println!("  left out, because it fails here without a mutant: {name}");
        }
        if failed.len() * 20 > listed.len() {
            bail!("{} of {} tests fail without a mutant", failed.len(), listed.len());
        }
        let mut all = recorded.into_inner().unwrap_or_default();
        let complete = all.len() + failed.len() == listed.len();
        if !complete {
            println!("  there was time for {} of them", all.len() + failed.len());
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self::of(all, complete))
    }

    fn of(all: Vec<Test>, complete: bool) -> Self {
        let mut by_mutant: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, test) in all.iter().enumerate() {
            for id in &test.reached {
                by_mutant.entry(*id).or_default().push(index);
            }
        }
        for tests in by_mutant.values_mut() {
            tests.sort_by_key(|index| {
                (all[*index].reached.len() as u128) * (all[*index].took.as_millis() + 30)
            });
        }
        Self { all, by_mutant, complete }
    }

    /// Tries mutants until the deadline, and calls `told` with each verdict.
    pub(super) fn judge(
        &self,
        tree: &Tree,
        mutants: &[(u32, Effort)],
        deadline: Instant,
        told: impl Fn(u32, Effort, &Verdict) -> Result<()> + Sync,
    ) -> Result<()> {
        in_parallel(tree, mutants, |place, (id, effort)| {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            told(*id, *effort, &self.verdict(tree, place, *id, *effort)?)?;
            Ok(true)
        })
    }

    fn verdict(&self, tree: &Tree, place: &Place, id: u32, effort: Effort) -> Result<Verdict> {
        let tests = self.by_mutant.get(&id).map(Vec::as_slice).unwrap_or_default();
        place.set(&id.to_string())?;
        let mut hung = 0;
        for test in tests.iter().take(effort.tests()).map(|index| &self.all[*index]) {
            match place.run(tree, test, effort.patience() + test.took * 10)? {
                Ended::Passed => {}
                Ended::Failed => return Ok(Verdict::Caught(test.name.clone())),
                Ended::Hung => hung += 1,
            }
            if hung == effort.hangs() {
                break;
            }
        }
        Ok(if hung > 0 { Verdict::TimedOut } else { Verdict::Missed(tests.len()) })
    }

    /// Whether it is known which tests reach a mutant.
    pub(super) fn know(&self, id: u32) -> bool {
        self.complete || self.by_mutant.contains_key(&id)
    }

    /// For the next run.
    pub(super) fn to_json(&self) -> Value {
        let tests = self.all.iter().map(|test| {
            json!([
                test.name,
                test.package,
                test.binary,
                test.folder,
                test.took.as_millis() as u64,
                test.reached
            ])
        });
        tests.collect()
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let tests = value.as_array()?.iter().map(|test| {
            let text = |at: usize| test[at].as_str().map(str::to_owned);
            let reached = test[5].as_array()?.iter().filter_map(|id| id.as_u64()?.try_into().ok()).collect();
            Some(Test {
                name: text(0)?,
                package: text(1)?,
                binary: text(2)?.into(),
                folder: text(3)?.into(),
                took: Duration::from_millis(test[4].as_u64()?),
                reached,
            })
        });
        tests.collect::<Option<Vec<_>>>().map(|all| Self::of(all, true))
    }
}

/// Builds and lists all tests. A selection would make cargo build the dependencies again.
fn list(tree: &Tree) -> Result<Vec<Test>> {
    let target = format!("--target-dir={}", steps::target_folder()?.display());
    let arguments = ["nextest", "list", "--workspace", "--message-format=json", "--cargo-quiet", &target];
    let listed = steps::cargo_output(&tree.root, &arguments, &tree.variables())?;
    let listed: Value = serde_json::from_slice(&listed).context("the list of tests is not JSON")?;
    let suites = listed["rust-suites"].as_object().context("nextest lists no tests")?;
    let tests = suites.values().flat_map(|suite| {
        let text = |member: &str| suite[member].as_str().unwrap_or_default().to_owned();
        let names = suite["testcases"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
        names.map(move |name| Test {
            name,
            package: text("package-name"),
            binary: text("binary-path").into(),
            folder: text("cwd").into(),
            took: Duration::ZERO,
            reached: Vec::new(),
        })
    });
    // The chores have no mutants, and their tests read sources, which are changed in the copy.
    Ok(tests.filter(|test| test.package != "xtask").collect())
}

/// The folder in which one thread runs its tests.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(tree: &Tree, number: usize) -> Result<Self> {
        let folder = tree.switch.with_file_name(format!("place-{number}"));
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Sets which mutant is on, or `record`.
    fn set(&self, active: &str) -> Result<()> {
        fs::write(self.folder.join("active"), active)?;
        let reach = self.folder.join("reach");
        if reach.exists() {
            fs::remove_file(reach)?;
        }
        Ok(())
    }

    fn reached(&self) -> Result<Vec<u32>> {
        let bytes = match fs::read(self.folder.join("reach")) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(bytes.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]])).collect())
    }

    fn run(&self, tree: &Tree, test: &Test, patience: Duration) -> Result<Ended> {
        let mut child = steps::program_at(&test.folder, "unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ENTER, "sh"])
            .args([&self.folder, &tree.switch, &tree.repository, &test.binary])
            .args(["--exact", &test.name])
            .env("CARGO_MANIFEST_DIR", &test.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("`unshare` could not be started; it is in the package util-linux")?;
        let deadline = Instant::now() + patience;
        let mut step = Duration::from_millis(1);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(if status.success() { Ended::Passed } else { Ended::Failed });
            }
            if Instant::now() >= deadline {
                // Its namespaces, with all processes in them, end with it.
                child.kill()?;
                child.wait()?;
                return Ok(Ended::Hung);
            }
            std::thread::sleep(step);
            step = (step * 2).min(Duration::from_millis(8));
        }
    }
}

/// Calls `work` for each item, on as many threads as there are CPUs, until it returns false.
fn in_parallel<T: Sync>(
    tree: &Tree,
    items: &[T],
    work: impl Fn(&Place, &T) -> Result<bool> + Sync,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (next, work) = (&next, &work);
                scope.spawn(move || -> Result<()> {
                    let place = Place::new(tree, number)?;
                    while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if !work(&place, item)? {
                            break;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("a thread of the chore panicked"),
        })
    })
}

/// Whether tests can run in their own namespaces here.
pub(super) fn can_isolate(root: &Path) -> bool {
    steps::output(root, "unshare", &["--mount", "--pid", "--fork", "--mount-proc", "true"]).is_ok()
}
