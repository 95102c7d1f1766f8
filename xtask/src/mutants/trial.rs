//! Runs tests of the copy: once to see which mutants each comes across, then against one mutant at a time.
//!
//! Every test has a process of its own, in namespaces of its own: a mutated pid or path reaches nothing outside. The
//! system's files are read-only there, `/tmp` is empty and goes with the test, and so does every process it started.

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

/// How much is done to catch a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// For one that is tried the first time.
    Quick,
    /// For one that was not caught before: all tests, and each may wait as long as it waits for anything.
    Thorough,
}

impl Effort {
    /// What a test may take besides ten times what it took before: a busy machine is no mutant.
    const fn patience(self) -> Duration {
        match self {
            Self::Quick => Duration::from_secs(20),
            Self::Thorough => Duration::from_secs(100),
        }
    }

    /// How many tests are tried. Those that come across the fewest mutants come first: they are about it.
    const fn tests(self) -> usize {
        match self {
            Self::Quick => 80,
            Self::Thorough => usize::MAX,
        }
    }

    /// How many tests may hang before a mutant is given up.
    const fn hangs(self) -> usize {
        match self {
            Self::Quick => 2,
            Self::Thorough => 3,
        }
    }
}

/// Enters the namespaces' files, then runs what follows. It stays the first process there and waits for all others.
/// A repository below `/tmp` is shown there again, by a descriptor that was opened before.
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

/// One test, and what it came across.
#[derive(Debug, Clone)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) package: String,
    binary: PathBuf,
    folder: PathBuf,
    took: Duration,
    reached: Vec<u32>,
}

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// By a test that failed.
    Caught(String),
    /// No test failed; so many came across it.
    Missed(usize),
    /// Tests hung, and none failed.
    TimedOut,
}

/// How one run of a test ended.
enum Ended {
    Passed,
    Failed,
    Hung,
}

/// All tests of the copy that pass without a mutant, with what they come across.
pub(super) struct Tests {
    all: Vec<Test>,
    /// The tests that come across a mutant, the best ones first.
    by_mutant: BTreeMap<u32, Vec<usize>>,
    /// Whether there was time to see them all.
    complete: bool,
}

impl Tests {
    /// Builds all tests, then runs those that are wanted once, for so long at the most.
    pub(super) fn record(
        tree: &Tree,
        limit: Option<Duration>,
        wanted: impl Fn(&Test) -> bool,
    ) -> Result<Self> {
        let mut listed = list(tree)?;
        let deadline = limit.map(|limit| Instant::now() + limit);
        listed.retain(wanted);
        println!("{} tests are run once to see which mutants each comes across", listed.len());
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
            println!("  left out, as it fails without a mutant here: {name}");
        }
        if failed.len() * 20 > listed.len() {
            bail!("{} of {} tests fail without a mutant", failed.len(), listed.len());
        }
        let mut all = recorded.into_inner().unwrap_or_default();
        let complete = all.len() + failed.len() == listed.len();
        if !complete {
            println!("  the time was enough for {} of them", all.len() + failed.len());
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

    /// Tries mutants, until the deadline, and says what became of each.
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

    /// Whether it is known which tests come across a mutant, if any does.
    pub(super) fn know(&self, id: u32) -> bool {
        self.complete || self.by_mutant.contains_key(&id)
    }

    /// For the next shard.
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

/// Builds and lists the tests: all of them, so that dependencies are the ones that are built already.
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
    // The chores have no mutants, and their tests read sources that are not what they were.
    Ok(tests.filter(|test| test.package != "xtask").collect())
}

/// Where one thread runs its tests.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(tree: &Tree, number: usize) -> Result<Self> {
        let folder = tree.switch.with_file_name(format!("place-{number}"));
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Which mutant is on from now.
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
                // Its namespace, and every process in it, ends with it.
                child.kill()?;
                child.wait()?;
                return Ok(Ended::Hung);
            }
            std::thread::sleep(step);
            step = (step * 2).min(Duration::from_millis(8));
        }
    }
}

/// Does something with each item, on as many threads as there are processors, until it says no.
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

/// Whether tests can be kept in namespaces here.
pub(super) fn can_isolate(root: &Path) -> bool {
    steps::output(root, "unshare", &["--mount", "--pid", "--fork", "--mount-proc", "true"]).is_ok()
}
