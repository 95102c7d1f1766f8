//! `cargo xtask features`: every feature of the library builds without warnings, alone and with HTTP, and whatever needs a
//! missing feature is refused.
//!
//! `--write` measures how much processor time each feature takes to build, which other programs on the machine hardly change, and
//! writes the table of `docs/library.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{housekeeping, steps};

/// The page with the table, and what encloses the table there.
const PAGE: &str = "docs/library.md";
const BEGIN: &str = "<!-- Written by `cargo xtask features --write`. -->\n";
const END: &str = "<!-- The end of the table. -->\n";

/// The crates that have features.
const PACKAGES: &[&str] = &[
    "--package=bridgehead",
    "--package=bridgehead-config",
    "--package=bridgehead-process",
    "--package=bridgehead-upstream",
    "--package=bridgehead-gateway",
    "--package=bridgehead-front",
];

/// The rows of the table: features, and what they give.
const ROWS: &[(&str, &str)] = &[
    ("bridge", "one connection to one server, and calls over it"),
    ("bridge,http", "the same, and remote servers over HTTP and WebSocket"),
    ("provider", "one server as a provider of tools for an agent; includes `bridge`"),
    ("tools", "a gateway in this process, without clients from outside; includes `bridge`"),
    ("typed", "tools whose schemas come from Rust types; includes `tools`"),
    ("server", "a gateway that serves clients, over stdio or in memory; includes `tools`"),
    ("server,http", "the same, with remote servers, clients over HTTP, and operators"),
    (
        "access",
        "who may call over HTTP, what each may use and how much; includes `server`, `http` and `audit-sqlite`",
    ),
    ("bridge,sandbox", "the confinement of servers"),
    ("audit-sqlite", "the record of calls in SQLite files, with signed checkpoints"),
    ("config-files", "configuration files, and the variables that change them"),
    ("provider,typed,access,sandbox,config-files", "everything"),
];

/// Checks the features, or measures them.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    match options {
        [] => check(root),
        ["--write"] => write(root),
        unknown => bail!("`features` takes --write, not `{}`", unknown.join(" ")),
    }
}

/// Fails on a warning in a build with few features, and on a test about a missing one.
pub(crate) fn check(root: &Path) -> Result<()> {
    housekeeping::install_hack(root)?;
    // All features together are built, checked and tested everywhere else.
    let each =
        ["hack", "clippy", "--each-feature", "--exclude-all-features", "--skip=default", "--lib", "--quiet"];
    let strictly = ["--", "-D", "warnings"];
    steps::cargo(root, &[&each, PACKAGES, &strictly].concat(), &[])?;
    steps::cargo(root, &[&each[..], &["--features=http", PACKAGES[0]], &strictly].concat(), &[])?;
    let missing = ["--package=bridgehead-upstream", "--no-default-features", "--test=missing_features"];
    steps::cargo(root, &[&["test", "--quiet"], &missing[..]].concat(), &[])
}

/// Builds every row on its own and writes the table.
fn write(root: &Path) -> Result<()> {
    let folder = steps::target_folder()?.join("features");
    let to = folder.to_str().context("the target folder's path is not text")?;
    let mut table = String::from("| features | what they give | crates | CPU seconds |\n|---|---|---|---|\n");
    for (features, gives) in ROWS {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let build = ["build", "--quiet", "--package=bridgehead", "--features", features];
        let before = processor_time()?;
        steps::cargo(root, &[&build[..], &["--target-dir", to]].concat(), &[])?;
        let seconds = (processor_time()? - before).as_secs();
        let shown = features.replace(',', "`, `");
        let row = format!("| `{shown}` | {gives} | {} | {seconds} |", crates(root, features)?.len());
        println!("{row}");
        let _ = writeln!(table, "{row}");
    }
    fs::remove_dir_all(&folder)?;
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    fs::write(root.join(PAGE), with_table(&page, &table)?)?;
    Ok(())
}

/// The processor time of all programs that this one has run so far.
fn processor_time() -> Result<Duration> {
    /// The system counts in hundredths of a second.
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string("/proc/self/stat").context("processor times can be read on Linux only")?;
    // The name of the program, in brackets, may contain spaces.
    let (_, fields) = stat.rsplit_once(')').context("the process has no name")?;
    let mut children = fields.split_whitespace().skip(13).map(str::parse::<u32>);
    let mut next = || children.next().context("the process has no times")?.context("a time is not a number");
    Ok(TICK * (next()? + next()?))
}

/// The page with another table.
fn with_table(page: &str, table: &str) -> Result<String> {
    let (before, rest) =
        page.split_once(BEGIN).with_context(|| format!("{PAGE} has no table of features"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the table in {PAGE} has no end"))?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

/// The crates that the library consists of with these features, its own included, each with its version.
fn crates(root: &Path, features: &str) -> Result<Vec<String>> {
    let tree = ["tree", "--package=bridgehead", "--features", features];
    let how = ["--edges=normal", "--prefix=none", "--no-dedupe"];
    let printed = String::from_utf8(steps::cargo_output(root, &[&tree[..], &how].concat(), &[])?)?;
    let mut crates: Vec<String> = printed.lines().map(str::to_owned).collect();
    crates.sort();
    crates.dedup();
    Ok(crates)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIB-3: a call over HTTP builds no command line, no database, no signatures, no confinement, and nothing that reads
    /// configuration files; without HTTP it builds no TLS either, and no feature is on by default.
    #[test]
    fn an_embedder_builds_what_it_uses() {
        #[track_caller]
        fn check(features: &str, present: &[&str], absent: &[&str]) {
            let crates = crates(&crate::root(), features).unwrap();
            let has = |name: &&&str| crates.iter().any(|line| line.split(' ').next() == Some(**name));
            assert_eq!(present.iter().filter(|name| !has(name)).collect::<Vec<_>>(), [&""; 0], "{features}");
            assert_eq!(absent.iter().filter(has).collect::<Vec<_>>(), [&""; 0], "{features}");
        }
        const FILES: &[&str] = &["toml", "jsonc-parser", "annotate-snippets"];
        const SIGNED: &[&str] = &["rusqlite", "libsqlite3-sys", "ed25519-dalek"];
        const WALLS: &[&str] = &["landlock", "seccompiler"];
        const REMOTE: &[&str] = &["rustls", "aws-lc-sys", "tungstenite", "httparse"];
        const PROGRAM: &[&str] = &["clap", "notify", "mimalloc", "tracing-subscriber"];
        const SERVED: &[&str] = &["hyper", "bridgehead-front", "bridgehead-gateway", "globset", "strsim"];
        check("bridge,http", REMOTE, &[FILES, SIGNED, WALLS, PROGRAM, SERVED].concat());
        check("bridge", &["bridgehead-upstream"], &[FILES, SIGNED, WALLS, PROGRAM, SERVED, REMOTE].concat());
        check("server", &["bridgehead-front"], &[FILES, SIGNED, WALLS, PROGRAM, REMOTE, &["hyper"]].concat());
        check("", &["bridgehead-config"], &["bridgehead-upstream", "tokio"]);
        let all = "provider,typed,access,sandbox,config-files";
        check(all, &[FILES, SIGNED, WALLS, REMOTE, SERVED].concat(), PROGRAM);
    }

    #[test]
    fn the_time_of_programs_is_counted() {
        let before = processor_time().unwrap();
        let busy = "n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done";
        steps::output(&crate::root(), "sh", &["-c", busy]).unwrap();
        assert!(processor_time().unwrap() > before);
    }

    #[test]
    fn the_table_is_replaced_and_the_rest_stays() {
        let page = format!("before\n{BEGIN}\nold\n\n{END}after\n");
        assert_eq!(with_table(&page, "new\n").unwrap(), format!("before\n{BEGIN}\nnew\n\n{END}after\n"));
        assert!(with_table("before\nafter\n", "new\n").is_err());
        assert!(with_table(&format!("before\n{BEGIN}"), "new\n").is_err());
    }
}
