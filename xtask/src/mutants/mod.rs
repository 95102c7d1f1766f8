//! `cargo xtask mutants`: breaks the product's code in small ways, and checks that the tests notice.
//!
//! cargo-mutants lists the possible changes. Building the workspace for each of them would take days. So all are built at
//! once into a copy of the repository, each behind a switch (`weave.rs`, `tree.rs`), and one at a time is turned on for the
//! tests that reach it (`trial.rs`). The target folder keeps the verdicts as long as the mutated file does not change. A run
//! continues where the last one stopped.

mod list;
mod results;
mod tree;
mod trial;
mod weave;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps;
use list::{EXHAUSTIVE, Group, Mutant};
use results::{Results, page};
use tree::Tree;
use trial::{Effort, Tests, Verdict};

/// The seed of the order in which mutants are drawn.
const SEED: u64 = 18;
/// How many mutants of each group are tried, besides the places where all are tried.
const SAMPLE: usize = 300;
/// The longest time that one run may take.
const MINUTES: u64 = 30;

/// How many mutants of a change CI tries, the longest time that its tests may take, and the share in percent that must be
/// caught.
const CI_SAMPLE: usize = 40;
const CI_TIME: Duration = Duration::from_secs(6 * 60);
const CI_BAR: usize = 80;
/// The smallest number of tried mutants that is judged.
const CI_LEAST: usize = 10;

/// The options of the chore.
struct Options {
    /// `None` means every group.
    group: Option<Group>,
    /// How many mutants of each group.
    sample: usize,
    minutes: u64,
    /// Only mutants whose name contains this text.
    only: Option<String>,
    /// Lists the missed mutants instead of trying any.
    show: bool,
    /// Writes the figures into docs/testing.md.
    write: bool,
}

impl Options {
    fn read(options: &[&str]) -> Result<Self> {
        let mut read =
            Self { group: None, sample: SAMPLE, minutes: MINUTES, only: None, show: false, write: false };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let mut value = || options.next().with_context(|| format!("`{option}` needs a value"));
            match *option {
                "--group" => {
                    let name = value()?;
                    let known = Group::ALL.into_iter().find(|group| group.name() == *name);
                    read.group = Some(known.with_context(|| {
                        let names: Vec<_> = Group::ALL.iter().map(|group| group.name()).collect();
                        format!("there is no group `{name}`, only {}", names.join(", "))
                    })?);
                }
                "--sample" => read.sample = value()?.parse().context("`--sample` needs a number")?,
                "--minutes" => read.minutes = value()?.parse().context("`--minutes` needs a number")?,
                "--only" => read.only = Some((*value()?).to_owned()),
                "--missed" => read.show = true,
                "--write" => read.write = true,
                unknown => bail!(
                    "`mutants` takes --group NAME, --sample N, --minutes N, --only TEXT, --missed and --write, not `{unknown}`"
                ),
            }
        }
        Ok(read)
    }

    fn takes(&self, mutant: &Mutant) -> bool {
        self.group.is_none_or(|group| group == Group::of(&mutant.file))
            && self.only.as_ref().is_none_or(|text| mutant.name.contains(text.as_str()))
    }
}

/// Tries mutants for the given time and prints how many were caught so far.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let options = Options::read(options)?;
    let deadline = Instant::now() + Duration::from_secs(options.minutes * 60);
    let mutants = numbered(list::all(root, None)?);
    let folder = folder()?;
    let mut results = Results::read(root, &folder, &mutants)?;
    if !options.show && !options.write {
        let chosen = chosen(&mutants, &options);
        let open: Vec<u32> = chosen.into_iter().filter(|id| !results.is_settled(*id)).collect();
        if !open.is_empty() {
            let (tree, tests) = prepared(root, &folder, &mutants, results.left_out())?;
            results.about(tree.digest()?);
            results.leave_out(&tree.left_out)?;
            let open = open.into_iter().filter(|id| !tree.left_out.contains(id) && !results.is_settled(*id));
            let mut open: Vec<(u32, Effort)> = open.map(|id| (id, results.effort(id))).collect();
            // Mutants that were never tried come first: they tell more than those that were missed before.
            open.sort_by_key(|(_, effort)| *effort == Effort::Thorough);
            println!("trying {} mutants for at most {} minutes", open.len(), options.minutes);
            judge(&tree, &tests, &open, deadline, &mut results, &mutants)?;
        }
    }
    if options.show {
        print!("{}", results.missed(&mutants, |mutant| options.takes(mutant)));
        return Ok(());
    }
    let sampled = chosen(&mutants, &Options { only: None, ..options });
    let summary = page(&results, &mutants, &sampled, SEED);
    print!("{summary}");
    if options.write {
        let commit = steps::output(root, "git", &["rev-parse", "--short", "HEAD"])?;
        results::write(root, &summary, String::from_utf8_lossy(&commit).trim())?;
    }
    Ok(())
}

/// Installs cargo-mutants if it is missing.
pub(crate) fn install(root: &Path) -> Result<()> {
    list::install(root)
}

/// Tries some mutants of the code that has changed since the published figures were made, as many as the time allows.
pub(crate) fn ci(root: &Path) -> Result<()> {
    if !trial::can_isolate(root) {
        println!("no mutant is tried: `unshare` cannot make namespaces for tests here; run it as root");
        return Ok(());
    }
    let folder = folder()?.join("ci");
    fs::create_dir_all(&folder)?;
    let base = results::base(root)?;
    let Ok(difference) = steps::output(root, "git", &["diff", &base, "--", "crates"]) else {
        println!("no mutant is tried: the commit of the published figures, {base}, is not in this clone");
        return Ok(());
    };
    let file = folder.join("change.diff");
    fs::write(&file, difference)?;
    let all = list::all(root, Some(&file))?;
    let mut drawn: Vec<(u32, &Mutant)> = (1..).zip(&all).collect();
    list::shuffle(&mut drawn, SEED);
    drawn.truncate(CI_SAMPLE);
    println!("the changes since {base} have {} mutants; {} of them are tried", all.len(), drawn.len());
    if drawn.is_empty() {
        return Ok(());
    }
    let mutants: BTreeMap<u32, Mutant> = drawn.into_iter().map(|(id, mutant)| (id, mutant.clone())).collect();
    let tree = Tree::make(root, &folder, &mutants, BTreeSet::new())?;
    let packages: Vec<&str> = mutants.values().map(|mutant| mutant.package.as_str()).collect();
    let tests = Tests::record(&tree, Some(CI_TIME / 2), |test| packages.contains(&test.package.as_str()))?;
    let deadline = Instant::now() + CI_TIME / 2;
    // If the time was enough for only some tests, the tests that reach a mutant may not be among them.
    let open = mutants.keys().filter(|id| !tree.left_out.contains(id) && tests.know(**id));
    let open: Vec<(u32, Effort)> = open.map(|id| (*id, Effort::Quick)).collect();
    let mut results = Results::none(&folder, &mutants)?;
    judge(&tree, &tests, &open, deadline, &mut results, &mutants)?;
    let (caught, tried) = results.caught();
    println!("{caught} of {tried} were caught; {} were not tried", mutants.len() - tried);
    if tried >= CI_LEAST && caught * 100 < tried * CI_BAR {
        bail!("less than {CI_BAR} % of the mutants of this change were caught");
    }
    Ok(())
}

fn judge(
    tree: &Tree,
    tests: &Tests,
    open: &[(u32, Effort)],
    deadline: Instant,
    results: &mut Results,
    mutants: &BTreeMap<u32, Mutant>,
) -> Result<()> {
    let results = std::sync::Mutex::new(results);
    tests.judge(tree, open, deadline, |id, effort, verdict| {
        if let (Some(mutant), Verdict::Missed(_) | Verdict::TimedOut) = (mutants.get(&id), verdict) {
            println!("{verdict}: {}", mutant.name);
        }
        results.lock().unwrap_or_else(|lock| lock.into_inner()).add(id, effort, verdict.clone())
    })
}

/// The mutants by the numbers that the woven code uses. Zero is not used.
fn numbered(mutants: Vec<Mutant>) -> BTreeMap<u32, Mutant> {
    (1..).zip(mutants).collect()
}

/// The mutants to try: all in exhaustive places, and the first of each group in the order of the seed.
fn chosen(mutants: &BTreeMap<u32, Mutant>, options: &Options) -> Vec<u32> {
    let mut chosen = Vec::new();
    for group in Group::ALL {
        let of_group = |mutant: &&Mutant| Group::of(&mutant.file) == group && options.takes(mutant);
        let mut all: Vec<_> =
            mutants.iter().filter(|(_, mutant)| of_group(mutant)).map(|(id, mutant)| (*id, mutant)).collect();
        list::shuffle(&mut all, SEED);
        let (sample, rest) = all.split_at(all.len().min(options.sample));
        let everywhere =
            rest.iter().filter(|(_, mutant)| EXHAUSTIVE.iter().any(|place| mutant.file.starts_with(place)));
        chosen.extend(sample.iter().chain(everywhere).map(|(id, _)| *id));
    }
    chosen
}

fn folder() -> Result<PathBuf> {
    let folder = steps::target_folder()?.join("mutants");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The copy with all mutants in it, and the mutants that each test reaches. Both are kept as long as no file changes.
fn prepared(
    root: &Path,
    folder: &Path,
    mutants: &BTreeMap<u32, Mutant>,
    left_out: BTreeSet<u32>,
) -> Result<(Tree, Tests)> {
    if !trial::can_isolate(root) {
        bail!(
            "mutants are only tried in separate namespaces, and `unshare` cannot make them here; run it as root"
        );
    }
    println!("weaving {} mutants into a copy of the repository", mutants.len());
    let tree = Tree::make(root, folder, mutants, left_out)?;
    println!("{} of them cannot be woven in or do not compile", tree.left_out.len());
    let digest = tree.digest()?;
    let kept = folder.join("reach.json");
    let known = fs::read(&kept).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    if let Some(known) = known.filter(|known| known["tree"] == digest)
        && let Some(tests) = Tests::from_json(&known["tests"])
    {
        return Ok((tree, tests));
    }
    let tests = Tests::record(&tree, None, |_| true)?;
    fs::write(kept, serde_json::json!({"tree": digest, "tests": tests.to_json()}).to_string())?;
    Ok((tree, tests))
}
