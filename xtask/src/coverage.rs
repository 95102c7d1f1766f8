//! `cargo xtask coverage`: shows which lines the tests run, by crate, and fails below the thresholds.
//!
//! The compiler inserts the counters, and its own LLVM tools read them. Programs that tests start are counted too. Lines
//! of test modules are not counted, because they always run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::built::Built;
use crate::cases::Notes;
use crate::compiler::{self, Aim};
use crate::steps::{self, Steps};

/// The crates that are judged, and the smallest allowed share of covered lines in percent (QA-1).
const CRATES: &[(&str, f64)] = &[
    ("wire", 85.0),
    ("schema", 85.0),
    ("config", 85.0),
    ("audit", 85.0),
    ("call", 85.0),
    ("events", 85.0),
    ("lines", 85.0),
    ("process", 85.0),
    ("upstream", 85.0),
    ("gateway", 85.0),
    ("front", 85.0),
    ("access", 85.0),
    ("bridgehead", 0.0),
    ("cli", 0.0),
    ("testkit", 0.0),
];

/// Where every line must be covered (QA-1): the chain, and the bootstrap of the server.
const WHOLE: &[&str] = &[
    "crates/gateway/src/gate/",
    "crates/gateway/src/surface/tools/",
    "crates/bridgehead/src/server.rs",
    "crates/bridgehead/src/running.rs",
    "crates/bridgehead/src/transport.rs",
    "crates/bridgehead/src/handlers.rs",
];

/// Runs the tests with counters and judges the counts.
pub(crate) fn run(root: &Path, html: bool) -> Result<()> {
    Counters::new(root)?.count("default")?.judge(html)
}

/// The tests of CI. They run once: with counters if possible; else without, and the step `coverage` fails.
pub(crate) fn ci(steps: &mut Steps<'_>) {
    steps.install_nextest();
    steps.install_strace();
    steps.install_systemd();
    match Counters::new(steps.root()) {
        Ok(counters) => {
            let mut counted = None;
            steps.run("tests", |_| {
                counted = Some(counters.count("ci")?);
                Ok(())
            });
            // If tests fail, their counts mean nothing.
            if let Some(counted) = counted {
                steps.run("coverage", |_| counted.judge(false));
            }
            steps.documentation_tests();
        }
        Err(error) => {
            steps.run("coverage", |_| Err(error));
            steps.test("ci");
        }
    }
}

/// How tests are run with counters.
struct Counters<'a> {
    root: &'a Path,
    /// The folder of the LLVM tools.
    tools: PathBuf,
    /// Where the counts of each process go.
    folder: PathBuf,
}

impl<'a> Counters<'a> {
    /// Installs the tools that read the counts, if they are missing.
    fn new(root: &'a Path) -> Result<Self> {
        let tools = compiler::tools(root)?;
        Ok(Self { root, tools, folder: steps::target_folder()?.join("coverage") })
    }

    /// Runs all tests of the workspace.
    fn count(self, profile: &str) -> Result<Counted<'a>> {
        // Counts of an older build would be attributed to lines that have moved since.
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        // Only for crates of the workspace: dependencies are built once, and shared by tests with and without counters.
        let compiler = Aim::Lines.install(&self.folder)?;
        let counts = self.folder.join("%p-%m.profraw");
        let variables =
            [("RUSTC_WORKSPACE_WRAPPER", compiler.as_os_str()), ("LLVM_PROFILE_FILE", counts.as_os_str())];
        let arguments: &[&str] = if steps::has_nextest(self.root) {
            &["nextest", "run", "--workspace", "--profile", profile]
        } else {
            &["test", "--workspace", "--no-fail-fast"]
        };
        let notes = Notes::new()?;
        let outcome = steps::cargo(self.root, arguments, &[&variables[..], &[notes.variable()]].concat());
        // A server that a test starts does not get our variables, and leaves its counts in the folder of the test.
        remove_strays(self.root)?;
        outcome?;
        notes.tell(self.root)?;
        let programs =
            Built::by(self.root, &["test", "--workspace", "--no-run"], &variables)?.into_programs();
        Ok(Counted { counters: self, programs })
    }

    fn read(&self, tool: &str, arguments: &[&Path]) -> Result<Vec<u8>> {
        steps::output(self.root, self.tools.join(tool), arguments)
    }
}

/// The counts, and the programs that map them to lines.
struct Counted<'a> {
    counters: Counters<'a>,
    programs: Vec<PathBuf>,
}

impl Counted<'_> {
    /// Judges the counts.
    fn judge(&self, html: bool) -> Result<()> {
        let Counters { root, folder, .. } = &self.counters;
        let merged = folder.join("merged.profdata");
        let list = folder.join("profiles");
        fs::write(&list, profiles(folder)?)?;
        // A process that was killed while it wrote its counts leaves a broken file; the other files still count.
        let options = ["merge", "-sparse", "--failure-mode=all", "-o"].map(Path::new);
        let inputs = [merged.as_path(), Path::new("-f"), list.as_path()];
        self.counters.read("llvm-profdata", &[&options[..], &inputs].concat())?;

        let profile = PathBuf::from(format!("--instr-profile={}", merged.display()));
        let mut about = vec![profile];
        about.extend(self.programs.iter().flat_map(|program| ["--object".into(), program.clone()]));
        let about: Vec<&Path> = about.iter().map(PathBuf::as_path).collect();
        let lcov = self
            .counters
            .read("llvm-cov", &[&["export", "--format=lcov"].map(Path::new), &about[..]].concat())?;
        if html {
            let pages = folder.join("html");
            let to = PathBuf::from(format!("--output-dir={}", pages.display()));
            let options = [Path::new("show"), Path::new("--format=html"), &to];
            self.counters.read("llvm-cov", &[&options, &about[..]].concat())?;
            println!("pages to browse: {}", pages.join("index.html").display());
        }
        let lcov = String::from_utf8(lcov).context("the report is not text")?;
        let files = read_lcov(&lcov, |path| {
            let path = Path::new(path).strip_prefix(root).ok()?;
            let text = fs::read_to_string(root.join(path)).ok()?;
            Some((path.to_str()?.to_owned(), test_module(&text)))
        });
        let verdict = judge(&files);
        print!("{}", verdict.table);
        if !verdict.missed.is_empty() {
            bail!("coverage is below the threshold: {}", verdict.missed.join(", "));
        }
        Ok(())
    }
}

/// The files with counts, one per line.
fn profiles(folder: &Path) -> Result<String> {
    let mut list = String::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "profraw") {
            list += &format!("{}\n", path.display());
        }
    }
    Ok(list)
}

fn remove_strays(root: &Path) -> Result<()> {
    for folder in fs::read_dir(root.join("crates"))?.flatten() {
        let Ok(entries) = fs::read_dir(folder.path()) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with("default_") && name.ends_with(".profraw")) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

/// How often each line of a file ran.
type Lines = BTreeMap<usize, u64>;

/// Reads a report. `place` returns the name of a file and the line where its test module begins, or `None` for a file that
/// does not count.
fn read_lcov(report: &str, place: impl Fn(&str) -> Option<(String, usize)>) -> BTreeMap<String, Lines> {
    let mut files: BTreeMap<String, Lines> = BTreeMap::new();
    let mut current = None;
    for line in report.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            current = place(path);
        } else if let (Some((file, tests)), Some(entry)) = (&current, line.strip_prefix("DA:"))
            && let Some((number, count)) = entry.split_once(',')
            && let (Ok(number), Ok(count)) = (number.parse::<usize>(), count.parse::<u64>())
            && number < *tests
        {
            *files.entry(file.clone()).or_default().entry(number).or_default() += count;
        }
    }
    files
}

/// The line on which the test module of a file begins. By convention it is the last item of a file.
fn test_module(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let module = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod "));
    module.map_or(usize::MAX, |at| at + 1)
}

struct Verdict {
    table: String,
    missed: Vec<String>,
}

fn judge(files: &BTreeMap<String, Lines>) -> Verdict {
    let mut table = format!("{:<44} {:>6} {:>8} {:>7} {:>6}\n", "", "lines", "covered", "share", "least");
    let mut missed = Vec::new();
    let mut row = |name: &str, lines: usize, covered: usize, least: f64| {
        let share = if lines == 0 { 100.0 } else { covered as f64 * 100.0 / lines as f64 };
        let verdict = if share < least { "  too little" } else { "" };
        table.push_str(&format!("{name:<44} {lines:>6} {covered:>8} {share:>6.1}% {least:>5}%{verdict}\n"));
        if share < least {
            missed.push(name.to_owned());
        }
    };
    for (name, least) in CRATES {
        let folder = format!("crates/{name}/src/");
        let of_crate =
            || files.iter().filter(|(file, _)| file.starts_with(&folder)).flat_map(|(_, lines)| lines);
        row(
            &format!("crates/{name}"),
            of_crate().count(),
            of_crate().filter(|(_, count)| **count > 0).count(),
            *least,
        );
    }
    let mut open = String::new();
    for (file, lines) in files.iter().filter(|(file, _)| WHOLE.iter().any(|part| file.starts_with(part))) {
        row(file, lines.len(), lines.values().filter(|count| **count > 0).count(), 100.0);
        let not_run: Vec<_> =
            lines.iter().filter(|(_, count)| **count == 0).map(|(line, _)| line.to_string()).collect();
        if !not_run.is_empty() {
            open.push_str(&format!("{file} never runs: {}\n", not_run.join(", ")));
        }
    }
    for part in WHOLE {
        if !files.keys().any(|file| file.starts_with(part)) {
            missed.push(format!("{part} (not in the report)"));
        }
    }
    table.push_str(&open);
    Verdict { table, missed }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
SF:/r/crates/wire/src/a.rs
DA:1,3
DA:2,0
DA:9,7
end_of_record
SF:/elsewhere/b.rs
DA:1,0
end_of_record
SF:/r/crates/gateway/src/gate/mod.rs
DA:4,1
DA:5,0
end_of_record
";

    fn files() -> BTreeMap<String, Lines> {
        read_lcov(REPORT, |path| path.strip_prefix("/r/").map(|path| (path.to_owned(), 9)))
    }

    #[test]
    fn a_report_gives_the_lines_that_count() {
        let files = files();
        assert_eq!(files.len(), 2);
        assert_eq!(files["crates/wire/src/a.rs"], BTreeMap::from([(1, 3), (2, 0)]));
    }

    /// QA-1: a crate below its threshold fails, and so does a line of the chain or the bootstrap that never runs.
    #[test]
    fn too_little_is_named() {
        let verdict = judge(&files());
        assert!(verdict.table.contains("crates/gateway/src/gate/mod.rs never runs: 5"), "{}", verdict.table);
        assert!(verdict.missed.contains(&"crates/wire".to_owned()), "{:?}", verdict.missed);
        assert!(
            verdict.missed.contains(&"crates/gateway/src/gate/mod.rs".to_owned()),
            "{:?}",
            verdict.missed
        );
        assert!(!verdict.missed.contains(&"crates/testkit".to_owned()), "{:?}", verdict.missed);
    }

    /// QA-1: the promised crates and places are judged by the promised thresholds.
    #[test]
    fn the_bars_are_those_of_the_promise() {
        for name in ["upstream", "process", "gateway", "front", "config", "wire", "audit"] {
            let least = CRATES.iter().find(|(judged, _)| *judged == name).map(|(_, least)| *least);
            assert!(least.is_some_and(|least| least >= 85.0), "{name}: {least:?}");
        }
        for place in ["gateway/src/gate/", "bridgehead/src/server.rs", "bridgehead/src/running.rs"] {
            assert!(WHOLE.contains(&&*format!("crates/{place}")), "{place}");
        }
    }

    #[test]
    fn test_modules_are_found() {
        assert_eq!(test_module("a\n#[cfg(test)]\nmod tests {\n"), 2);
        assert_eq!(test_module("a\n#[cfg(test)]\nfn only_here() {}\n"), usize::MAX);
    }
}
