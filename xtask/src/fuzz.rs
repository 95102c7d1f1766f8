//! `cargo xtask fuzz`: runs the property tests with as many cases as fit into the given time.
//!
//! CI runs the same tests with few cases. They use proptest on the stable compiler. Its inputs follow the grammar of
//! what is parsed, which gets further into these parsers than random bytes do. A failing case is shrunk and printed.
//! Each round draws new random inputs.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::steps;

/// Cases of each test in one round: some seconds of work, so that a run does not exceed its time by much.
const CASES: &str = "10000";

/// Property tests of one thing.
struct Target {
    name: &'static str,
    package: &'static str,
    /// The path of the file with the tests, relative to the root.
    file: &'static str,
    tests: &'static [&'static str],
}

const TARGETS: &[Target] = &[
    Target {
        name: "messages",
        package: "bridgehead-wire",
        file: "crates/wire/tests/properties.rs",
        tests: &[
            "a_request_keeps_its_id_and_params",
            "depth_agrees_with_a_recursive_count",
            "no_bytes_make_a_reader_panic",
        ],
    },
    Target {
        name: "splicer",
        package: "bridgehead-wire",
        file: "crates/wire/tests/properties.rs",
        tests: &["an_edit_does_what_it_says_and_no_more", "an_edit_of_nested_meta_leaves_the_rest"],
    },
    Target {
        name: "lines",
        package: "bridgehead-wire",
        file: "crates/wire/tests/properties.rs",
        tests: &["lines_are_what_stands_between_line_breaks", "lines_do_not_depend_on_how_they_arrive"],
    },
    Target {
        name: "events",
        package: "bridgehead-wire",
        file: "crates/wire/tests/properties.rs",
        tests: &["events_carry_their_messages_through", "events_do_not_depend_on_how_they_arrive"],
    },
    Target {
        name: "headers",
        package: "bridgehead-wire",
        file: "crates/wire/tests/properties.rs",
        tests: &["header_values_round_trip"],
    },
    Target {
        name: "redactor",
        package: "bridgehead-wire",
        file: "crates/wire/tests/properties.rs",
        tests: &[
            "a_planted_secret_never_gets_out",
            "a_secret_member_is_hidden_and_the_rest_kept",
            "redacting_twice_is_redacting_once",
            "what_holds_no_secret_is_not_touched",
        ],
    },
    Target {
        name: "configuration",
        package: "bridgehead-config",
        file: "crates/config/tests/properties.rs",
        tests: &["arbitrary_files_never_panic", "a_planted_secret_is_shown_in_no_message"],
    },
    Target {
        name: "schemas",
        package: "bridgehead-schema",
        file: "crates/schema/tests/properties.rs",
        tests: &["any_schema_is_compiled_or_refused_in_bounded_time", "a_check_agrees_with_the_schema"],
    },
    Target {
        name: "era",
        package: "bridgehead-front",
        file: "crates/front/src/era.rs",
        tests: &["the_era_agrees_with_the_rules"],
    },
];

/// Runs one target, or all of them in turn, until the time is over. Every target runs at least once.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let (minutes, name) = match arguments {
        [] => (5, None),
        ["--minutes", minutes] => (whole(minutes)?, None),
        ["--minutes", minutes, name] | [name, "--minutes", minutes] => (whole(minutes)?, Some(*name)),
        [name] => (5, Some(*name)),
        _ => bail!("usage: cargo xtask fuzz [--minutes N] [TARGET]"),
    };
    let chosen: Vec<&Target> =
        TARGETS.iter().filter(|target| name.is_none_or(|name| name == target.name)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        bail!("there is no target `{}`; there are {}", name.unwrap_or_default(), names.join(", "));
    }
    // Builds first, so that building does not count as test time.
    for target in &chosen {
        target.cargo(root, &["--no-run"], &[])?;
    }
    let started = Instant::now();
    let time = Duration::from_secs(minutes * 60);
    for round in 1.. {
        for target in &chosen {
            if round > 1 && started.elapsed() >= time {
                println!("{} rounds without a failure", round - 1);
                return Ok(());
            }
            println!("── round {round}: {}, {:.0} s", target.name, started.elapsed().as_secs_f32());
            target.run(root).with_context(|| format!("{} failed; its input is above", target.name))?;
        }
    }
    Ok(())
}

fn whole(minutes: &str) -> Result<u64> {
    minutes.parse().with_context(|| format!("`{minutes}` is not a number of minutes"))
}

impl Target {
    fn run(&self, root: &Path) -> Result<()> {
        self.cargo(root, &[], self.tests)
    }

    /// Runs `cargo test` for the target with these options, and only these tests if any are given.
    fn cargo(&self, root: &Path, options: &[&str], tests: &[&str]) -> Result<()> {
        let mut arguments = vec!["test", "--quiet", "--package", self.package];
        if self.file.contains("/tests/") {
            let binary = Path::new(self.file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            arguments.extend(["--test", binary]);
        } else {
            arguments.push("--lib");
        }
        arguments.extend(options);
        arguments.push("--");
        arguments.extend(tests);
        // Optimised, but with its assertions and overflow checks.
        steps::cargo(
            root,
            &arguments,
            &[("PROPTEST_CASES", OsStr::new(CASES)), ("CARGO_PROFILE_DEV_OPT_LEVEL", OsStr::new("2"))],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter that matches no test would run nothing and still succeed.
    #[test]
    fn every_target_names_tests_that_exist() {
        for target in TARGETS {
            let text = std::fs::read_to_string(crate::root().join(target.file)).unwrap();
            for test in target.tests {
                assert!(text.contains(&format!("fn {test}(")), "{} has no test {test}", target.file);
            }
        }
    }
}
