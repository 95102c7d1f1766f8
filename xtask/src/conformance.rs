//! Runs the official conformance suite against our fixture, directly and through the gateway, and compares.
//!
//! The suite's own count says little about a gateway: it lets a check pass that could not be made. What is counted here
//! besides is what the gateway *keeps*: every check that succeeds at the fixture directly must succeed through the
//! gateway too. What is not kept yet stands in `conformance/expected-failures.json` with the reason; anything else that
//! is lost fails the chore, and so does an entry that is no longer true.

mod peers;
mod suite;
mod verdict;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use peers::{Era, Peers};
use suite::{REVISIONS, Suite};
use verdict::{Comparison, Expected, Scenario};

/// One comparison: a set of requirements, and the era the upstream is held to.
struct Leg {
    /// How the leg is called in tables and in the expectations.
    label: &'static str,
    revision: &'static str,
    era: Era,
}

/// Both sets with an upstream that knows both eras, then across the eras. What a scenario asks of an upstream of one
/// era, the fixture does in that era's manner, so the direct run is the same measure.
const LEGS: [Leg; 4] = [
    Leg { label: "2025-11-25", revision: "2025-11-25", era: Era::Both },
    Leg { label: "2026-07-28", revision: "2026-07-28", era: Era::Both },
    Leg { label: "2025-11-25 over 2026-07-28", revision: "2025-11-25", era: Era::Modern },
    Leg { label: "2026-07-28 over 2025-11-25", revision: "2026-07-28", era: Era::Legacy },
];

/// How often everything is run with `--full`: what holds only sometimes does not hold.
const ROUNDS: usize = 3;

/// What the chore was asked to do.
#[derive(Default, Debug, PartialEq, Eq)]
struct Request<'a> {
    full: bool,
    compare: bool,
    json: Option<&'a str>,
}

impl<'a> Request<'a> {
    fn read(arguments: &[&'a str]) -> Result<Self> {
        let mut request = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--full" => request.full = true,
                "--compare" => request.compare = true,
                "--json" => request.json = Some(rest.next().context("--json needs the name of a file")?),
                other => bail!("`conformance` knows --full, --compare and --json FILE, not `{other}`"),
            }
        }
        Ok(request)
    }
}

/// The chore.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let request = Request::read(arguments)?;
    let expected = Expected::read(&root.join("conformance/expected-failures.json"))?;
    let suite = Suite::install(root)?;
    let rounds = if request.full { ROUNDS } else { 1 };
    let mut comparisons: Vec<(&str, Comparison)> = Vec::new();
    let peers = Peers::start(root, suite.folder())?;
    for round in 1..=rounds {
        let mut direct = BTreeMap::new();
        for revision in REVISIONS {
            println!("round {round} of {rounds}: {revision}, directly");
            direct.insert(revision, suite.run(peers.direct(), revision, &format!("{revision} directly"))?);
        }
        for (leg, Leg { label, revision, era }) in LEGS.iter().enumerate() {
            println!("round {round} of {rounds}: {label}, through the gateway");
            let through = suite.run(peers.through(*era), revision, label)?;
            let comparison = Comparison::new(&suite.scenarios(revision)?, &direct[revision], &through);
            match comparisons.get_mut(leg) {
                Some((_, worst)) => worst.keep_worst(comparison),
                None => comparisons.push((label, comparison)),
            }
        }
    }
    drop(peers);

    let mut mistakes = Vec::new();
    for (label, comparison) in &comparisons {
        print!("\n{}", table(label, comparison));
        if request.compare {
            print!("\n{}", losses(comparison));
        }
        mistakes.extend(expected.mistakes(label, comparison));
    }
    println!(
        "\nkept: the fixture passes directly, and every check that succeeds there succeeds through the gateway."
    );
    println!("The tasks-* scenarios are left out: the fixture has no tasks.");
    if let Some(file) = request.json {
        let report = report(&comparisons, &expected);
        std::fs::write(file, format!("{report:#}\n")).with_context(|| format!("could not write {file}"))?;
    }
    if !mistakes.is_empty() {
        bail!("{}\nconformance/expected-failures.json says what is expected", mistakes.join("\n"));
    }
    Ok(())
}

fn table(label: &str, comparison: &Comparison) -> String {
    let mark = |yes| if yes { "pass" } else { "FAIL" };
    let row = |name: &str, columns: [&str; 4]| {
        format!("{name:<48} {:<7} {:<8} {:<7} {}\n", columns[0], columns[1], columns[2], columns[3])
    };
    let mut text = row(label, ["direct", "through", "scored", "kept"]);
    for (name, Scenario { scored, direct, through, lost }) in &comparison.scenarios {
        let kept = if !direct.passes {
            "-".to_owned()
        } else if comparison.is_kept(name) {
            "kept".to_owned()
        } else {
            format!("lost {}", lost.len())
        };
        let scored = if *scored { "yes" } else { "no" };
        text += &row(name, [mark(direct.passes), mark(through.passes), scored, &kept]);
    }
    let totals = comparison.totals();
    text += &format!(
        "scored: direct {}/{}, through {}/{}; kept: {}/{}\n",
        totals.direct, totals.scored, totals.through, totals.scored, totals.kept, totals.keepable
    );
    text
}

/// What was lost, and what the suite said about it.
fn losses(comparison: &Comparison) -> String {
    let mut text = String::new();
    for (name, scenario) in &comparison.scenarios {
        for check in &scenario.lost {
            let said = scenario.through.said.get(check).map_or("the check was not made", String::as_str);
            text += &format!("{name}/{check}: {said}\n");
        }
    }
    text
}

fn report(comparisons: &[(&str, Comparison)], expected: &Expected) -> Value {
    let legs: Vec<Value> = comparisons
        .iter()
        .map(|(label, comparison)| {
            let totals = comparison.totals();
            let scenarios: Vec<Value> = comparison
                .scenarios
                .iter()
                .map(|(name, scenario)| {
                    json!({
                        "name": name,
                        "scored": scenario.scored,
                        "direct": scenario.direct.passes,
                        "through": scenario.through.passes,
                        "kept": comparison.is_kept(name),
                        "lost": scenario.lost,
                        "expected": expected.reason(label, name),
                    })
                })
                .collect();
            json!({
                "leg": label,
                "scored": { "of": totals.scored, "direct": totals.direct, "through": totals.through },
                "kept": { "of": totals.keepable, "kept": totals.kept },
                "scenarios": scenarios,
                "mistakes": expected.mistakes(label, comparison),
            })
        })
        .collect();
    json!({ "suite": suite::VERSION, "legs": legs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_in_any_order() {
        let request = Request::read(&["--json", "out.json", "--full"]).unwrap();
        assert_eq!(request, Request { full: true, compare: false, json: Some("out.json") });
        assert!(Request::read(&["--json"]).is_err());
        assert!(Request::read(&["--fast"]).is_err());
    }
}
