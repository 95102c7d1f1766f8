//! The verdicts on mutants, kept between runs, and the published figures.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::list::{EXHAUSTIVE, Group, Mutant, digest};
use super::trial::{Effort, Verdict};

/// The page with the figures, and the marks around them.
const PAGE: &str = "docs/testing.md";
const BEGIN: &str = "<!-- mutants: written by `cargo xtask mutants --write` -->\n";
const COMMIT: &str = "Judged at commit ";
const END: &str = "<!-- /mutants -->\n";

/// Verdicts of earlier runs and of this one.
pub(super) struct Results {
    verdicts: BTreeMap<u32, Kept>,
    /// A digest of each mutant's name and file.
    keys: BTreeMap<u32, u64>,
    /// The digest of the current copy, and of the copy in which each mutant was tried thoroughly.
    tree: u64,
    thorough_in: BTreeMap<u32, u64>,
    file: File,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kept {
    Judged(Verdict),
    /// It does not compile, or cannot be woven in.
    LeftOut,
}

impl Results {
    /// Reads the known verdicts. A verdict is valid as long as the mutated file has not changed.
    pub(super) fn read(root: &Path, folder: &Path, mutants: &BTreeMap<u32, Mutant>) -> Result<Self> {
        let mut files: HashMap<&str, u64> = HashMap::new();
        let mut keys = BTreeMap::new();
        for (id, mutant) in mutants {
            let file = match files.get(mutant.file.as_str()) {
                Some(digest) => *digest,
                None => {
                    let text = fs::read(root.join(&mutant.file))
                        .with_context(|| format!("cannot read {}", mutant.file))?;
                    *files.entry(&mutant.file).or_insert(digest(0, text.into_iter()))
                }
            };
            keys.insert(*id, digest(file, mutant.name.bytes()));
        }
        let path = folder.join("verdicts.jsonl");
        let by_key: HashMap<u64, u32> = keys.iter().map(|(id, key)| (*key, *id)).collect();
        let lines = fs::read_to_string(&path).unwrap_or_default();
        let mut verdicts = BTreeMap::new();
        let mut thorough_in = BTreeMap::new();
        for line in lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let id = line["key"].as_u64().and_then(|key| by_key.get(&key));
            if let (Some(id), Some(kept)) = (id, Kept::read(&line)) {
                verdicts.insert(*id, kept);
                thorough_in.extend(line["thoroughIn"].as_u64().map(|tree| (*id, tree)));
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { verdicts, keys, tree: 0, thorough_in, file })
    }

    /// Starts without verdicts, and keeps new ones apart from those of earlier runs.
    pub(super) fn none(folder: &Path, mutants: &BTreeMap<u32, Mutant>) -> Result<Self> {
        let file = File::create(folder.join("verdicts.jsonl"))?;
        let keys = mutants.iter().map(|(id, mutant)| (*id, digest(0, mutant.name.bytes()))).collect();
        Ok(Self { verdicts: BTreeMap::new(), keys, tree: 0, thorough_in: BTreeMap::new(), file })
    }

    /// How many mutants were caught, and how many were tried.
    pub(super) fn caught(&self) -> (usize, usize) {
        let tally = self.tally(self.verdicts.keys());
        (tally.caught, tally.tried())
    }

    /// Sets the digest of the copy that is tried from now on.
    pub(super) fn about(&mut self, tree: u64) {
        self.tree = tree;
    }

    /// Whether a mutant need not be tried again: it was caught, or it was tried thoroughly and nothing has changed since.
    pub(super) fn is_settled(&self, id: u32) -> bool {
        match self.verdicts.get(&id) {
            Some(Kept::Judged(Verdict::Caught(_))) => true,
            Some(Kept::Judged(_)) => self.thorough_in.get(&id) == Some(&self.tree),
            Some(Kept::LeftOut) | None => false,
        }
    }

    /// How much effort the next try takes.
    pub(super) fn effort(&self, id: u32) -> Effort {
        if self.verdicts.contains_key(&id) { Effort::Thorough } else { Effort::Quick }
    }

    pub(super) fn add(&mut self, id: u32, effort: Effort, verdict: Verdict) -> Result<()> {
        if effort == Effort::Thorough {
            self.thorough_in.insert(id, self.tree);
        }
        self.keep(id, Kept::Judged(verdict))
    }

    /// The mutants that do not compile or cannot be woven in.
    pub(super) fn left_out(&self) -> BTreeSet<u32> {
        self.verdicts.iter().filter(|(_, kept)| **kept == Kept::LeftOut).map(|(id, _)| *id).collect()
    }

    pub(super) fn leave_out(&mut self, ids: &BTreeSet<u32>) -> Result<()> {
        ids.iter().try_for_each(|id| self.keep(*id, Kept::LeftOut))
    }

    fn keep(&mut self, id: u32, kept: Kept) -> Result<()> {
        if kept == Kept::LeftOut && self.verdicts.get(&id) == Some(&kept) {
            return Ok(());
        }
        let mut line = kept.line(self.keys.get(&id).copied().unwrap_or_default());
        line["thoroughIn"] = json!(self.thorough_in.get(&id));
        writeln!(self.file, "{line}")?;
        self.verdicts.insert(id, kept);
        Ok(())
    }

    /// Lists the mutants that no test noticed.
    pub(super) fn missed(&self, mutants: &BTreeMap<u32, Mutant>, takes: impl Fn(&Mutant) -> bool) -> String {
        let mut out = String::new();
        for (id, mutant) in mutants {
            if let Some(Kept::Judged(verdict)) = self.verdicts.get(id)
                && !matches!(verdict, Verdict::Caught(_))
                && takes(mutant)
            {
                let _ = writeln!(out, "{verdict}: {}", mutant.name);
            }
        }
        out
    }

    fn tally<'a>(&self, ids: impl Iterator<Item = &'a u32>) -> Tally {
        let mut tally = Tally::default();
        for id in ids {
            match self.verdicts.get(id) {
                Some(Kept::Judged(Verdict::Caught(_))) => tally.caught += 1,
                Some(Kept::Judged(Verdict::Missed(_))) => tally.missed += 1,
                Some(Kept::Judged(Verdict::TimedOut)) => tally.timed_out += 1,
                Some(Kept::LeftOut) => tally.left_out += 1,
                None => tally.open += 1,
            }
        }
        tally
    }
}

impl Kept {
    fn line(&self, key: u64) -> Value {
        match self {
            Self::Judged(Verdict::Caught(by)) => json!({"key": key, "caught": by}),
            Self::Judged(Verdict::Missed(tests)) => json!({"key": key, "missed": tests}),
            Self::Judged(Verdict::TimedOut) => json!({"key": key, "timedOut": true}),
            Self::LeftOut => json!({"key": key, "leftOut": true}),
        }
    }

    fn read(line: &Value) -> Option<Self> {
        if let Some(by) = line["caught"].as_str() {
            return Some(Self::Judged(Verdict::Caught(by.to_owned())));
        }
        if let Some(tests) = line["missed"].as_u64() {
            return Some(Self::Judged(Verdict::Missed(tests.try_into().ok()?)));
        }
        match (line["timedOut"].as_bool(), line["leftOut"].as_bool()) {
            (Some(true), _) => Some(Self::Judged(Verdict::TimedOut)),
            (_, Some(true)) => Some(Self::LeftOut),
            _ => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(by) => write!(f, "caught by {by}"),
            Self::Missed(0) => f.write_str("no test reaches it"),
            Self::Missed(tests) => write!(f, "missed by {tests} tests"),
            Self::TimedOut => f.write_str("timed out"),
        }
    }
}

/// How many mutants got each verdict.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    caught: usize,
    missed: usize,
    timed_out: usize,
    left_out: usize,
    open: usize,
}

impl Tally {
    const fn tried(&self) -> usize {
        self.caught + self.missed + self.timed_out
    }

    /// The share of caught mutants in percent. A mutant that timed out does not count as caught.
    fn share(&self) -> f64 {
        100.0 * self.caught as f64 / self.tried().max(1) as f64
    }

    /// The 95 % confidence interval of the share (Wilson).
    fn interval(&self) -> (f64, f64) {
        const Z: f64 = 1.96;
        let count = self.tried().max(1) as f64;
        let share = self.share() / 100.0;
        let middle = share + Z * Z / (2.0 * count);
        let width = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
        let whole = 1.0 + Z * Z / count;
        (100.0 * (middle - width) / whole, 100.0 * (middle + width) / whole)
    }

    fn row(&self, title: &str, of: usize, bar: Option<f64>) -> String {
        let (low, high) = self.interval();
        let bar = bar.map_or_else(|| "–".to_owned(), |bar| format!("{bar:.0} %"));
        format!(
            "| {title} | {of} | {} | {} | {} | {:.1} % | {low:.1}–{high:.1} % | {bar} |\n",
            self.tried(),
            self.caught,
            self.timed_out,
            self.share(),
        )
    }
}

/// The published table: a line for each group, one for all, and one for each place where every mutant is tried.
pub(super) fn page(results: &Results, mutants: &BTreeMap<u32, Mutant>, sampled: &[u32], seed: u64) -> String {
    let mut out = format!(
        "Drawn with seed {seed}.\n\n\
         | mutants of | there are | tried | caught | timed out | caught of those tried | 95 % interval | bar |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    let group_of = |id: &u32| mutants.get(id).map(|mutant| Group::of(&mutant.file));
    // In the total each group is weighted by its number of mutants, not by how many were tried.
    let mut weighted = 0.0;
    for group in Group::ALL {
        let of = mutants.keys().filter(|id| group_of(id) == Some(group)).count();
        let tally = results.tally(sampled.iter().filter(|id| group_of(id) == Some(group)));
        weighted += tally.share() * of as f64;
        out.push_str(&tally.row(group.title(), of, group.bar()));
    }
    let all = results.tally(sampled.iter());
    let (low, high) = all.interval();
    let _ = writeln!(
        out,
        "| **all** | {} | {} | {} | {} | {:.1} %, by size of the groups {:.1} % | {low:.1}–{high:.1} % | 80 % |",
        mutants.len(),
        all.tried(),
        all.caught,
        all.timed_out,
        all.share(),
        weighted / mutants.len().max(1) as f64,
    );
    for place in EXHAUSTIVE {
        let here: Vec<u32> =
            mutants.iter().filter(|(_, mutant)| mutant.file.starts_with(place)).map(|(id, _)| *id).collect();
        out.push_str(&results.tally(here.iter()).row(&format!("every one of `{place}`"), here.len(), None));
    }
    let _ = writeln!(
        out,
        "\nOf the drawn ones {} do not compile or cannot be woven in; {} were not tried yet.",
        all.left_out, all.open
    );
    out
}

/// Writes the figures into the page, with the commit that they describe.
pub(super) fn write(root: &Path, summary: &str, commit: &str) -> Result<()> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path)?;
    let (before, _, after) = parts(&text)?;
    fs::write(path, format!("{before}{BEGIN}{COMMIT}{commit}.\n\n{summary}{END}{after}"))?;
    Ok(())
}

/// The commit that the published figures describe.
pub(super) fn base(root: &Path) -> Result<String> {
    let text = fs::read_to_string(root.join(PAGE))?;
    let (_, figures, _) = parts(&text)?;
    let commit =
        figures.lines().find_map(|line| line.strip_prefix(COMMIT)).map(|line| line.trim_end_matches('.'));
    commit.map(str::to_owned).with_context(|| format!("{PAGE} does not name the commit of its figures"))
}

/// The text before the figures, the figures, and the text after them.
fn parts(text: &str) -> Result<(&str, &str, &str)> {
    let missing = |mark: &str| format!("{PAGE} has no mark `{}`", mark.trim());
    let (before, rest) = text.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (figures, after) = rest.split_once(END).with_context(|| missing(END))?;
    Ok((before, figures, after))
}
