//! Runs the chores around the code: `cargo xtask CHORE`.
//!
//! CI runs the same chores under the same names, so a contributor can check a change without reading the CI
//! configuration. Nothing here is part of the product.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore talks to the person who started it")]

mod api;
mod attack;
mod bench;
mod built;
mod cases;
mod compiler;
mod conformance;
mod count;
mod coverage;
mod dist;
mod docs;
mod examples;
mod features;
mod foreign;
mod fuzz;
mod generate;
mod housekeeping;
mod macos;
mod mutants;
mod package;
mod packages;
mod recording;
mod report;
mod requirements;
mod scan;
mod shown;
mod soak;
mod steps;
mod words;

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
  check                  formatting, requirements, words, links, spelling, dependencies, features, lints and documentation;
                         warnings are errors
  test                   all tests of the workspace, then the examples in its documentation
  ci                     check, test with coverage, macos, the short forms of conformance, foreign, package, mutants,
                         attack and soak, and bench --brief; installs missing tools
  attack                 tries the attacks of the folder `attacks` from outside; fails if one works; also --only
                         TEXT, --long (those that take a minute too)
  bench                  measures the gateway against direct calls to the server behind it; also --full, --brief,
                         --json FILE, --enforce (fails if a bar is missed), --threads N, --only TEXT
  count                  counts the instructions of one relayed call with valgrind and compares them with
                         docs/counts.md; also --write, --only TEXT; --embedding counts instructions and allocations of a
                         call through the library and through rmcp's client, and --embedding --write the table of
                         docs/performance.md; --principals times the first list of a class of principals, and weighs
                         each principal
  dist                   builds the programs as they are shipped, with profile-guided optimisation: a first build
                         records what runs under load, the second uses it; prints where they are
  conformance            runs the official suite against our fixture, directly and through the gateway, and with the
                         gateway as the client; also --full (five rounds, the worst counts), --compare (what was
                         lost and why), --json FILE
  foreign                runs third-party clients and servers through the gateway; also --full (five rounds of the
                         clients, the servers over stdio too), --only clients|servers|remote|interactive|access|hour
                         (`hour` needs what `package --quick` makes), --json FILE
  soak                   kills servers in 50 cycles while calls run, and checks for leaks and growth; also
                         --full (1000 cycles, 50 kills, 10000 isolated calls), --cycles N, --kills N,
                         --calls N, --json FILE
  features               builds the library with each of its features, where warnings are errors; --write measures how
                         long each takes and writes the table in docs/library.md
  requirements           checks that a test names every landed requirement, and that docs/requirements.md is current
  requirements --write   writes docs/requirements.md
  cases                  lists which of the 59 cases of isolation have tests, and why the others have none; `test` and
                         `ci` end with how many of them this machine could show
  api                    compares the public interface of every published crate with docs/api; --write writes it
  semver                 compares the library with its last release by the rules of semantic versioning; needs
                         cargo-semver-checks; --baseline COMMIT compares with a commit
  examples               runs every example of the library exactly as its documentation says
  packages               packs the published crates, unpacks them, and runs the agent of the examples on them with three
                         published servers, as a program outside this workspace
  package                packs a static build as a tarball, npm packages and a wheel, then installs and runs each; also
                         --quick (a build without optimisation), --version V (fails if the workspace has another
                         version), --out FOLDER
  macos                  checks that the programs compile for macOS, where they are not tested; says so if the tools
                         for that are missing
  docs                   checks the links of all pages and builds them as a book; prints where it is
  recording              runs the program and writes the picture of the README
  words                  checks texts against a few rules: phrases to avoid, no path of the repository in texts for users
  generate               writes every page that is made from code; --check only compares
  coverage               shows which lines the tests run, and fails below the thresholds; --html writes pages to browse
  mutants                breaks the code in small ways and checks that a test notices, for at most 30 minutes; continues
                         where the last run stopped; also --group NAME, --sample N, --minutes N, --only TEXT,
                         --missed (names the mutants that no test noticed), --write (the table in docs/testing.md),
                         --change (40 mutants of what has changed since that table, in six minutes, as CI does)
  fuzz [TARGET]          runs the property tests for five minutes, or --minutes N
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
            housekeeping(&mut steps);
            steps.finish()
        }
        ["test"] => {
            let mut steps = Steps::new(&root);
            steps.test("default");
            steps.finish()
        }
        ["ci"] => ci(&root),
        ["attack", options @ ..] => attack::run(&root, options),
        ["bench", options @ ..] => bench::run(&root, options),
        ["count", options @ ..] => count::run(&root, options),
        ["dist"] => dist::run(&root),
        ["conformance", rest @ ..] => conformance::run(&root, rest),
        // Internal: the suite starts it, once for every client scenario.
        [conformance::PLAY, url] => conformance::play(url),
        ["foreign", options @ ..] => foreign::run(&root, options),
        ["soak", options @ ..] => soak::run(&root, options),
        ["features", options @ ..] => features::run(&root, options),
        ["requirements"] => report::check(&root),
        ["requirements", "--write"] => report::write(&root),
        ["cases"] => cases::run(&root),
        ["api"] => api::run(&root, false),
        ["api", "--write"] => api::run(&root, true),
        ["semver"] => api::semver(&root, None),
        ["semver", "--baseline", commit] => api::semver(&root, Some(commit)),
        ["examples"] => examples::run(&root),
        ["packages"] => packages::run(&root),
        ["package", options @ ..] => package::run(&root, options),
        ["macos"] => macos::run(&root),
        ["docs"] => docs::run(&root),
        ["recording"] => recording::run(&root),
        ["words"] => words::check(&root),
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

/// Runs everything in its short form. Installations, which mostly wait for the network, run in parallel with the first
/// steps.
fn ci(root: &Path) -> Result<()> {
    let mut steps = Steps::new(root);
    std::thread::scope(|scope| {
        // A test runs these too.
        let tools = scope.spawn(|| housekeeping::install(root));
        let packages = scope.spawn(|| {
            foreign::install_packages(root)?;
            conformance::install(root)?;
            mutants::install(root)?;
            docs::install(root)
        });
        check(&mut steps);
        steps.run("tools for dependencies and spelling", |_| joined(tools));
        coverage::ci(&mut steps);
        steps.run("other people's programs", |_| joined(packages));
        housekeeping(&mut steps);
        steps.run("book", docs::run);
        steps.run("conformance", |root| conformance::run(root, &[]));
        steps.run("foreign clients and servers", |root| foreign::run(root, &[]));
        steps.run("examples", examples::run);
        steps.run("packages", packages::run);
        steps.run("installable packages", package::ci);
        steps.run("the first hour", |root| foreign::run(root, &["--only", "hour"]));
        steps.run("macOS", macos::run);
    });
    steps.run("mutants of the change", mutants::ci);
    steps.run("attacks", |root| attack::run(root, &[]));
    steps.run("soak", soak::ci);
    steps.run("benchmark", |root| bench::run(root, &["--brief"]));
    steps.finish()
}

fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().map_err(|_| anyhow!("it panicked"))?
}

/// The cheap steps come first: they fail within a second.
fn check(steps: &mut Steps<'_>) {
    steps.cargo("formatting", &["fmt", "--all", "--check"], &[]);
    steps.run("requirements", report::check);
    steps.run("cases of isolation", cases::run);
    steps.run("words", words::check);
    steps.run("links", docs::check);
    steps.cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]);
    steps.cargo(
        "documentation",
        &["doc", "--workspace", "--no-deps"],
        &[("RUSTDOCFLAGS", OsStr::new("-D warnings"))],
    );
}

/// What other people's tools check.
fn housekeeping(steps: &mut Steps<'_>) {
    steps.run("spelling", housekeeping::spelling);
    steps.run("release workflow", housekeeping::workflow);
    steps.run("features", features::check);
    steps.run("dependencies", |root| {
        housekeeping::install(root)?;
        housekeeping::dependencies(root)
    });
}

/// The root of the repository, independent of the current folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
