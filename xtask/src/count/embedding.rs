//! Counts what one call costs a program that embeds a client: instructions and allocations, through the library's two ways and
//! through rmcp's client, to the same server over stdio.
//!
//! Each figure is the difference of two runs of the program `embedding` that differ only in their number of calls, so starting
//! and stopping cancel out. Only the embedding process is counted, not the server.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::built::Built;
use crate::foreign::command;
use crate::steps;

/// The page with the table, and what encloses the table there.
const PAGE: &str = "docs/performance.md";
const BEGIN: &str = "<!-- Written by `cargo xtask count --embedding --write`. -->\n";
const END: &str = "<!-- The end of the table. -->\n";
/// How many calls the two runs of a figure make.
const CALLS: [u64; 2] = [200, 1200];
/// The ways of `embedding`, and what they are called in the table.
const WAYS: [(&str, &str); 3] =
    [("bridge", "`bridge::call_tool`"), ("tools", "`Tools::call`"), ("rmcp", "rmcp 3.8, `call_tool`")];

/// What one call costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    instructions: u64,
    allocations: u64,
}

/// Counts and prints; writes the table if asked to.
pub(super) fn run(root: &Path, write: bool) -> Result<()> {
    // Incremental builds divide the code into other units, which changes the counts.
    let whole = [("CARGO_INCREMENTAL", OsStr::new("0"))];
    let build = |package: &str, program: &str| -> Result<PathBuf> {
        let built =
            Built::by(root, &["build", "--profile=count", "--package", package, "--bin", program], &whole)?;
        Ok(built.program(program)?.to_owned())
    };
    let server = build("bridgehead-bench", "echo-stdio")?;
    // Found beside the program; valgrind cannot start the program itself again as its own shim.
    build("bridgehead-cli", "bridgehead-shim")?;
    let embedding = build("bridgehead-foreign", "embedding")?;
    let mut rows = Vec::new();
    for (way, name) in WAYS {
        let counted = |calls| count(&embedding, way, &server, calls);
        let [short, long] = CALLS.map(counted);
        let (short, long) = (short?, long?);
        let each = |long: u64, short: u64| long.saturating_sub(short) / (CALLS[1] - CALLS[0]);
        let cost = Cost {
            instructions: each(long.instructions, short.instructions),
            allocations: each(long.allocations, short.allocations),
        };
        println!("{name:<24} {:>8} instructions {:>6} allocations", cost.instructions, cost.allocations);
        rows.push((name, cost));
    }
    if write {
        let page = root.join(PAGE);
        let before = fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
        fs::write(&page, replaced(&before, &table(&rows))?)?;
    }
    Ok(())
}

/// Counts a whole run of the program: its instructions by callgrind, its allocations by memcheck.
fn count(embedding: &Path, way: &str, server: &Path, calls: u64) -> Result<Cost> {
    let folder = steps::target_folder()?.join("embedding");
    fs::create_dir_all(&folder)?;
    let (counts, log) = (folder.join(format!("{way}.callgrind")), folder.join(format!("{way}.memcheck")));
    let valgrind = |options: &[String]| -> Result<()> {
        let mut running = command("valgrind");
        running.args(options).arg(embedding).arg(way).arg(server).arg(calls.to_string());
        let ended = running.output().context("valgrind could not be started")?;
        ensure!(ended.status.success(), "{way} failed: {}", String::from_utf8_lossy(&ended.stderr));
        Ok(())
    };
    valgrind(&["--tool=callgrind".to_owned(), format!("--callgrind-out-file={}", counts.display())])?;
    valgrind(&[
        "--leak-check=no".to_owned(),
        "--undef-value-errors=no".to_owned(),
        format!("--log-file={}", log.display()),
    ])?;
    let instructions = number_after(&fs::read_to_string(&counts)?, &["totals:", "summary:"]);
    let allocations = number_after(&fs::read_to_string(&log)?, &["total heap usage:"]);
    Ok(Cost {
        instructions: instructions.context("callgrind's file has no total")?,
        allocations: allocations.context("memcheck's log has no heap usage")?,
    })
}

/// The first number after one of the words.
fn number_after(text: &str, words: &[&str]) -> Option<u64> {
    let line = words.iter().find_map(|word| text.split_once(word)).map(|(_, rest)| rest)?;
    line.split_ascii_whitespace().next()?.replace(',', "").parse().ok()
}

fn table(rows: &[(&str, Cost)]) -> String {
    let mut table = "\n| one call through | instructions | allocations |\n|---|---|---|\n".to_owned();
    for (name, Cost { instructions, allocations }) in rows {
        let _ = writeln!(table, "| {name} | {instructions} | {allocations} |");
    }
    table.push('\n');
    table
}

/// The page with another table between its marks.
fn replaced(page: &str, table: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.with_context(|| format!("{PAGE} has no place for the table"))?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_what_valgrind_writes() {
        assert_eq!(number_after("events: Ir\ntotals: 4200\n", &["totals:", "summary:"]), Some(4200));
        let log = "==1==   total heap usage: 12,345 allocs, 12,300 frees, 9,999 bytes allocated\n";
        assert_eq!(number_after(log, &["total heap usage:"]), Some(12_345));
        assert_eq!(number_after("nothing", &["totals:"]), None);
    }

    #[test]
    fn the_table_goes_between_its_marks() {
        let page = format!("before\n{BEGIN}old{END}after\n");
        let table = table(&[("`Tools::call`", Cost { instructions: 7, allocations: 2 })]);
        let page = replaced(&page, &table).unwrap();
        assert!(page.starts_with("before\n") && page.ends_with("after\n") && !page.contains("old"), "{page}");
        assert!(page.contains("| `Tools::call` | 7 | 2 |"), "{page}");
        replaced("no marks", "").unwrap_err();
    }
}
