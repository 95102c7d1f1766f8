//! `cargo xtask count`: counts the instructions of one relayed call and compares them with the table in `docs/counts.md`.
//!
//! The table names the compiler it was made with. With the same compiler, a call that costs more than [`ROOM`] allows fails
//! the chore. With another compiler the figures are only reported, because the compiler itself changes them.

mod embedding;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::built::Built;
use crate::steps;

/// The page with the table.
const PAGE: &str = "docs/counts.md";
/// By how many percent a call may exceed its figure in the table.
const ROOM: f64 = 3.0;
const COMPILER: &str = "Compiler: ";
/// The end of the name of a call in a gateway with many rules, tools and principals.
const RULED: &str = ", rules";

/// Counts, prints and compares. `--write` writes the table; `--only TEXT` counts some of the calls; `--embedding` counts the
/// calls of a program that embeds a client; `--principals` measures what classes and principals cost.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let (write, only) = match options {
        [] => (false, None),
        ["--write"] => (true, None),
        ["--only", text] => (false, Some(*text)),
        ["--embedding", rest @ ..] if matches!(rest, [] | ["--write"]) => {
            install_valgrind(root)?;
            return embedding::run(root, !rest.is_empty());
        }
        ["--principals"] => return principals(root),
        unknown => bail!(
            "`count` takes --write, --only TEXT, --principals or --embedding, not `{}`",
            unknown.join(" ")
        ),
    };
    install_valgrind(root)?;
    let (built, mut arguments) = programs(root)?;
    arguments.extend(only.into_iter().flat_map(|text| ["--only".into(), text.into()]));
    let counted = steps::output(root, built.program("count")?, &arguments)?;
    let counted: Map<String, Value> = serde_json::from_slice(&counted).context("the counts are not JSON")?;
    let now = Table { compiler: compiler(root)?, figures: figures(&counted) };
    let page = root.join(PAGE);
    if write {
        fs::write(&page, now.page())?;
        println!("{}", now.page());
        return Ok(());
    }
    let before = Table::read(&fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?);
    print!("{}", now.against(&before));
    now.judge(&before)
}

/// Builds the programs, and names those that `count` starts.
fn programs(root: &Path) -> Result<(Built, Vec<OsString>)> {
    let packages = ["--package=bridgehead-cli", "--package=bridgehead-bench"];
    // Incremental builds divide the code into other units, which changes the counts.
    let whole = [("CARGO_INCREMENTAL", OsStr::new("0"))];
    let built = Built::by(root, &["build", "--profile=count", "--bins", packages[0], packages[1]], &whole)?;
    let mut arguments = vec!["--gateway".into(), built.program("bridgehead")?.as_os_str().to_owned()];
    arguments.extend(["--upstream".into(), built.program("echo-upstream")?.as_os_str().to_owned()]);
    Ok((built, arguments))
}

/// Times the first list of each class of principals, and tells the memory of each principal, with many rules and tools.
fn principals(root: &Path) -> Result<()> {
    let (built, mut arguments) = programs(root)?;
    arguments.push("--principals".into());
    let told = steps::output(root, built.program("count")?, &arguments)?;
    let told: Value = serde_json::from_slice(&told).context("the figures are not JSON")?;
    let middle = |name: &str| {
        let mut times: Vec<u64> =
            told[name].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        times.sort_unstable();
        times.get(times.len() / 2).map_or(0.0, |micros| *micros as f64 / 1000.0)
    };
    println!("first list of a class   {:>8.1} ms (median; the bar is 50 ms)", middle("first"));
    println!("prepared list           {:>8.1} ms (median)", middle("later"));
    println!("memory of a principal   {:>8} bytes (the bar is 1024)", told["bytesEach"]);
    Ok(())
}

/// The version of the compiler, as it prints it.
fn compiler(root: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&steps::output(root, "rustc", &["--version"])?).trim().to_owned())
}

/// Installs valgrind from the system's packages, if it is missing.
fn install_valgrind(root: &Path) -> Result<()> {
    if steps::output(root, "valgrind", &["--version"]).is_ok() {
        return Ok(());
    }
    eprintln!("installing valgrind");
    steps::output(root, "apt-get", &["install", "--yes", "valgrind"])
        .map(drop)
        .context("valgrind is missing and could not be installed")
}

fn figures(counted: &Map<String, Value>) -> Vec<(String, u64)> {
    counted.iter().filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect()
}

/// The figures of one build.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    compiler: String,
    figures: Vec<(String, u64)>,
}

/// One call in a comparison.
struct Row<'a> {
    name: &'a str,
    now: u64,
    /// Its figure in the table, and by how many percent it differs.
    change: Option<(u64, f64)>,
}

impl Table {
    fn page(&self) -> String {
        let mut page = format!(
            "# Instructions of one relayed call\n\n\
             Counted by callgrind in the gateway's process: one thread, one connection, the difference of a run of 1 200 calls\n\
             and one of 200, so that starting and stopping cancel out. `cargo xtask count` counts again and fails if a call takes\n\
             more than {ROOM} % more instructions with the same compiler; `cargo xtask count --write` writes this page.\n\n\
             {COMPILER}{}\n\n| call | instructions |\n|---|---|\n",
            self.compiler
        );
        for (name, count) in &self.figures {
            let _ = writeln!(page, "| {name} | {count} |");
        }
        page
    }

    fn read(page: &str) -> Self {
        let compiler = page.lines().find_map(|line| line.strip_prefix(COMPILER)).unwrap_or_default();
        let rows = page.lines().filter_map(|line| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
        });
        Self { compiler: compiler.to_owned(), figures: rows.collect() }
    }

    fn of(&self, name: &str) -> Option<u64> {
        self.figures.iter().find(|(known, _)| known == name).map(|(_, count)| *count)
    }

    /// Each call, what it takes now, what it took before, and the difference in percent.
    fn compared<'a>(&'a self, before: &Self) -> impl Iterator<Item = Row<'a>> {
        self.figures.iter().map(|(name, now)| {
            let change = before.of(name).map(|was| (was, (*now as f64 / was as f64 - 1.0) * 100.0));
            Row { name, now: *now, change }
        })
    }

    fn against(&self, before: &Self) -> String {
        let mut text = String::new();
        for Row { name, now, change } in self.compared(before) {
            let change = change.map_or_else(
                || "not in the table".to_owned(),
                |(was, percent)| format!("{was} in the table, {percent:+.1} %"),
            );
            let _ = writeln!(text, "{name:<34} {now:>8}  ({change})");
        }
        text
    }

    /// Fails if a call takes too many instructions and the compiler is the same.
    fn judge(&self, before: &Self) -> Result<()> {
        let too_dear = |row: &Row<'_>| row.change.is_some_and(|(_, percent)| percent > ROOM + 1e-9);
        let dearer: Vec<&str> = self.compared(before).filter(too_dear).map(|row| row.name).collect();
        if self.compiler != before.compiler {
            println!(
                "the table was made with {}, and this compiler is {}: nothing is judged",
                before.compiler, self.compiler
            );
        } else if !dearer.is_empty() {
            bail!("more than {ROOM} % above the figure in {PAGE}: {}", dearer.join("; "));
        }
        self.judge_rules()
    }

    /// Fails if rules make a call dearer than they may, whatever the compiler.
    fn judge_rules(&self) -> Result<()> {
        for (name, ruled) in &self.figures {
            let Some(free) = name.strip_suffix(RULED).and_then(|plain| self.of(plain)) else { continue };
            let percent = (*ruled as f64 / free as f64 - 1.0) * 100.0;
            println!("{name}: rules add {percent:+.1} %");
            if percent > ROOM + 1e-9 {
                bail!("rules add {percent:.1} % to {name}, more than {ROOM} %");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(compiler: &str, count: u64) -> Table {
        Table {
            compiler: compiler.to_owned(),
            figures: vec![("tools/call, modern, stdio".to_owned(), count)],
        }
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let table = table("rustc 1", 40_000);
        assert_eq!(Table::read(&table.page()), table);
    }

    #[test]
    fn a_dearer_call_fails_with_the_same_compiler_only() {
        let before = table("rustc 1", 100_000);
        table("rustc 1", 103_000).judge(&before).unwrap();
        let error = table("rustc 1", 103_100).judge(&before).unwrap_err().to_string();
        assert!(error.contains("tools/call, modern, stdio"), "{error}");
        table("rustc 2", 200_000).judge(&before).unwrap();
    }

    #[test]
    fn rules_may_add_as_much_as_a_call_may_grow() {
        let with = |ruled: u64| {
            let mut table = table("rustc 1", 100_000);
            table.figures.push(("tools/call, modern, stdio, rules".to_owned(), ruled));
            table
        };
        with(103_000).judge(&Table::read("")).unwrap();
        let error = with(103_100).judge(&Table::read("")).unwrap_err().to_string();
        assert!(error.contains("rules add 3.1 %"), "{error}");
    }

    #[test]
    fn the_comparison_says_by_how_much() {
        let text = table("rustc 1", 99_000).against(&table("rustc 1", 100_000));
        assert!(text.contains("99000  (100000 in the table, -1.0 %)"), "{text}");
        assert!(table("rustc 1", 1).against(&Table::read("")).contains("not in the table"));
    }
}
