//! The menu of chores around the code: `cargo xtask CHORE`.
//!
//! Each chore is what CI runs, under the same name, so that nobody has to read CI to know what will be asked of a
//! change. Nothing here is part of the product.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore talks to the person who started it")]

mod bench;
mod built;
mod cases;
mod compiler;
mod conformance;
mod count;
mod coverage;
mod dist;
mod foreign;
mod fuzz;
mod generate;
mod mutants;
mod report;
mod requirements;
mod scan;
mod soak;
mod steps;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::ScopedJoinHandle;

use anyhow::{Result, anyhow};

use steps::Steps;

const HELP: &str = "\
Chores of the Bridgehead workspace.

Usage: cargo xtask CHORE

Chores:
  check                  formatting, requirements, lints and documentation; warnings are errors
  test                   all tests of the workspace, then the examples in its documentation
  ci                     check, test with coverage, and the short forms of conformance, foreign, mutants and soak, bench --brief;
                         installs what is missing
  bench                  what the gateway costs, against the server behind it, directly; also --full, --brief,
                         --json FILE, --enforce (fails if a bar is missed), --threads N, --only TEXT
  count                  instructions of one relayed call, by valgrind, against docs/counts.md; also --write, --only TEXT
  dist                   the programs as they are shipped, built twice: the second time by what the first was seen to do
                         under load; prints where they are
  conformance            the official suite against our fixture, directly and through the gateway, and with the
                         gateway as the client it judges; also --full (three rounds, the worst counts), --compare
                         (what was lost and why), --json FILE
  foreign                clients and servers of other people through the gateway; also --full (five rounds of the
                         clients, the servers over stdio too), --only clients|servers|remote, --json FILE
  soak                   servers are killed in 50 cycles while calls run, and nothing may be left or grow; also
                         --full (1000 cycles, 50 kills, 10000 isolated calls), --cycles N, --kills N,
                         --calls N, --json FILE
  requirements           are all landed requirements named by a test, and is docs/requirements.md fresh?
  requirements --write   writes docs/requirements.md anew
  cases                  which of the 59 cases of isolation have tests, and why the others have none; `test` and `ci`
                         end with how many of them this machine could show
  generate               writes every page that is made from code anew; --check only compares
  coverage               which lines the tests run, and whether that is enough; --html for pages to look through
  mutants                small breaks of the code, and whether a test notices each, for 30 minutes at the most; goes on
                         where the last run stopped; also --group NAME, --sample N, --minutes N, --only TEXT,
                         --missed (names those that no test noticed), --write (the table in docs/testing.md),
                         --change (40 of what has changed since that table, in six minutes, as CI does)
  fuzz [TARGET]          property tests for five minutes, or --minutes N
  help                   this text

Examples:
  cargo xtask check      before a commit
  cargo xtask ci         exactly what CI runs
";

fn main() -> ExitCode {
    if let Some(code) = compiler::compile() {
        return code;
    }
    steps::remember_program();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let outcome = match arguments.as_slice() {
        [] | ["help" | "--help" | "-h"] | [_, "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["check"] => {
            let mut steps = Steps::new(&root);
            check(&mut steps);
            steps.finish()
        }
        ["test"] => {
            let mut steps = Steps::new(&root);
            steps.test("default");
            steps.finish()
        }
        ["ci"] => ci(&root),
        ["bench", options @ ..] => bench::run(&root, options),
        ["count", options @ ..] => count::run(&root, options),
        ["dist"] => dist::run(&root),
        ["conformance", rest @ ..] => conformance::run(&root, rest),
        // Not for people: the suite starts it, once for every scenario of clients.
        [conformance::PLAY, url] => conformance::play(url),
        ["foreign", options @ ..] => foreign::run(&root, options),
        ["soak", options @ ..] => soak::run(&root, options),
        ["requirements"] => report::check(&root),
        ["requirements", "--write"] => report::write(&root),
        ["cases"] => cases::run(&root),
        ["generate"] => generate::write(&root),
        ["generate", "--check"] => generate::check(&root),
        ["coverage"] => coverage::run(&root, false),
        ["coverage", "--html"] => coverage::run(&root, true),
        ["mutants", "--change"] => mutants::ci(&root),
        ["mutants", options @ ..] => mutants::run(&root, options),
        ["fuzz", arguments @ ..] => fuzz::run(&root, arguments),
        unknown => {
            eprintln!("there is no chore `{}`\n\n{HELP}", unknown.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Everything in its short form. What waits for the network, or is not needed for long, is done beside the first steps with
/// the time that they leave over.
fn ci(root: &Path) -> Result<()> {
    let mut steps = Steps::new(root);
    std::thread::scope(|scope| {
        let packages = scope.spawn(|| {
            foreign::install_packages(root)?;
            conformance::install(root)?;
            mutants::install(root)
        });
        check(&mut steps);
        coverage::ci(&mut steps);
        steps.run("other people's programs", |_| joined(packages));
        steps.run("conformance", |root| conformance::run(root, &[]));
        steps.run("foreign clients and servers", |root| foreign::run(root, &[]));
    });
    steps.run("mutants of the change", mutants::ci);
    steps.run("soak", soak::ci);
    steps.run("benchmark", |root| bench::run(root, &["--brief"]));
    steps.finish()
}

fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().map_err(|_| anyhow!("it panicked"))?
}

/// The cheap ones first: they fail within a second.
fn check(steps: &mut Steps<'_>) {
    steps.cargo("formatting", &["fmt", "--all", "--check"], &[]);
    steps.run("requirements", report::check);
    steps.run("cases of isolation", cases::run);
    steps.cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]);
    steps.cargo(
        "documentation",
        &["doc", "--workspace", "--no-deps"],
        &[("RUSTDOCFLAGS", OsStr::new("-D warnings"))],
    );
}

/// The root of the repository, wherever the chore was called from.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
