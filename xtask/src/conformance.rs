//! Runs the official conformance suite against our fixtures, directly and through the gateway, and compares.
//!
//! There are two fixtures with the same tools, on the Rust SDK and on the TypeScript SDK. They run in parallel.
//!
//! The suite's own count says little about a gateway, because a skipped check passes. Therefore this chore also counts
//! what the gateway *keeps*: every check that succeeds at the fixture directly must succeed through the gateway too.
//! `conformance/expected-failures.json` lists what is not kept yet, with the reason. Any other loss fails the chore, and
//! so does an entry that is no longer true.
//!
//! The suite's other half judges clients. There the gateway is the client, driven by [`driver`], and it must keep every
//! check that the suite made.

mod driver;
mod peers;
mod suite;
mod verdict;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use peers::{Era, Maker, Peers, Programs};
use suite::{REVISIONS, Side, Suite};
use verdict::{Comparison, Expected, Scenario, Totals};

pub(crate) use driver::run as play;

/// The chore under which the suite starts [`play`].
pub(crate) const PLAY: &str = "conformance-play";

/// One comparison: a set of requirements, and an upstream restricted to an era.
struct Leg {
    /// The name of the leg in tables and in the expectations.
    label: &'static str,
    revision: &'static str,
    upstream: Upstream,
}

/// What is behind the gateway.
enum Upstream {
    /// The fixture as a child process of the gateway, restricted to an era.
    Stdio(Era),
    /// The fixture over HTTP, restricted to an era.
    Http(Era),
}

/// Both sets with an upstream that knows both eras, then across the eras. The fixture does what a scenario asks in the
/// manner of its era, so the direct run stays a valid reference.
const LEGS: [Leg; 8] = [
    Leg { label: "2025-11-25", revision: "2025-11-25", upstream: Upstream::Stdio(Era::Both) },
    Leg { label: "2026-07-28", revision: "2026-07-28", upstream: Upstream::Stdio(Era::Both) },
    Leg { label: "2025-11-25 by HTTP", revision: "2025-11-25", upstream: Upstream::Http(Era::Both) },
    Leg { label: "2026-07-28 by HTTP", revision: "2026-07-28", upstream: Upstream::Http(Era::Both) },
    Leg {
        label: "2025-11-25 over 2026-07-28",
        revision: "2025-11-25",
        upstream: Upstream::Stdio(Era::Modern),
    },
    Leg {
        label: "2026-07-28 over 2025-11-25",
        revision: "2026-07-28",
        upstream: Upstream::Stdio(Era::Legacy),
    },
    Leg {
        label: "2025-11-25 over 2026-07-28 by HTTP",
        revision: "2025-11-25",
        upstream: Upstream::Http(Era::Modern),
    },
    Leg {
        label: "2026-07-28 over 2025-11-25 by HTTP",
        revision: "2026-07-28",
        upstream: Upstream::Http(Era::Legacy),
    },
];

/// The legs in which the gateway is the client, one for each set.
const CLIENT_LEGS: [(&str, &str); 2] =
    [("client 2025-11-25", "2025-11-25"), ("client 2026-07-28", "2026-07-28")];

/// How often `--full` runs everything. A check that succeeds only sometimes counts as lost.
const ROUNDS: usize = 5;
/// How often a single round tries a leg with unexpected losses. The suite gives some answers half a second, which may be
/// too short on a busy machine. A check is lost if every try loses it. With several rounds nothing is tried again: there
/// every number must be the same.
const TRIES: usize = 3;

/// The options of the chore.
#[derive(Debug, PartialEq, Eq)]
struct Request<'a> {
    repeat: usize,
    compare: bool,
    json: Option<&'a str>,
}

impl<'a> Request<'a> {
    fn read(arguments: &[&'a str]) -> Result<Self> {
        let mut request = Self { repeat: 1, compare: false, json: None };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--full" => request.repeat = ROUNDS,
                "--repeat" => {
                    let times = rest.next().and_then(|times| times.parse().ok()).filter(|times| *times > 0);
                    request.repeat = times.context("--repeat needs a number")?;
                }
                "--compare" => request.compare = true,
                "--json" => request.json = Some(rest.next().context("--json needs the name of a file")?),
                other => {
                    bail!("`conformance` knows --full, --repeat N, --compare and --json FILE, not `{other}`")
                }
            }
        }
        Ok(request)
    }
}

/// Installs the suite.
pub(crate) fn install(root: &Path) -> Result<()> {
    Suite::install(root).map(drop)
}

/// The chore.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let request = Request::read(arguments)?;
    let expected = Expected::read(&root.join("conformance/expected-failures.json"))?;
    let suite = Suite::install(root)?;
    let programs = Programs::build(root, suite.typescript_fixture())?;
    let servers = std::thread::scope(|scope| {
        let runs = Maker::ALL.map(|maker| {
            let (suite, programs, request, expected) = (&suite, &programs, &request, &expected);
            scope.spawn(move || observe(suite, programs, maker, request.repeat, expected))
        });
        let mut servers = Legs::default();
        for run in runs {
            servers.0.extend(run.join().map_err(|_| anyhow!("a run panicked"))??.0);
        }
        anyhow::Ok(servers)
    })?;
    // Not in parallel with anything: the suite measures how long a client waits.
    let mut clients = Legs::default();
    for round in 1..=request.repeat {
        for (label, revision) in CLIENT_LEGS {
            println!("round {round} of {}: {revision}, the gateway as the client", request.repeat);
            let scenarios = suite.scenarios(Side::Client, revision)?;
            let comparison = patiently(request.repeat, label, &expected, || {
                Ok(Comparison::of_client(&scenarios, &suite.run_client(&programs.gateway, revision, label)?))
            })?;
            clients.add(label, comparison);
        }
    }

    let mut mistakes = Vec::new();
    for (legs, table) in [(&servers, table as fn(&str, &Comparison) -> String), (&clients, client_table)] {
        for (label, Seen { worst: comparison, totals }) in &legs.0 {
            print!("\n{}", table(label, comparison));
            if let Some(other) = totals.iter().find(|other| **other != totals[0]) {
                mistakes.push(format!("{label}: rounds differ: {:?}, then {other:?}", totals[0]));
            }
            if request.compare {
                print!("\n{}", losses(comparison));
            }
            mistakes.extend(expected.mistakes(label, comparison));
        }
    }
    println!(
        "\nkept: the fixture passes directly, and every check that succeeds there succeeds through the gateway;"
    );
    println!("as a client: every check that the suite made of the gateway succeeds, without a warning.");
    println!(
        "The tasks-* scenarios are left out, because the fixture has no tasks. So are the client scenarios in auth/."
    );
    if let Some(file) = request.json {
        let report = report(&servers, &clients, &expected);
        std::fs::write(file, format!("{report:#}\n")).with_context(|| format!("could not write {file}"))?;
    }
    if !mistakes.is_empty() {
        bail!("{}\nconformance/expected-failures.json says what is expected", mistakes.join("\n"));
    }
    Ok(())
}

/// Runs all legs with the fixture of one SDK.
fn observe(
    suite: &Suite,
    programs: &Programs,
    maker: Maker,
    rounds: usize,
    expected: &Expected,
) -> Result<Legs> {
    let mut servers = Legs::default();
    let prefix = maker.prefix();
    for round in 1..=rounds {
        // New processes for each round: the suite leaves calls behind that wait for their clients.
        let peers = Peers::start(programs, maker, suite.folder())?;
        let mut direct = BTreeMap::new();
        let directly = |revision: &'static str| {
            println!("round {round} of {rounds}: {prefix}{revision}, directly");
            suite.run(peers.direct(), revision, &format!("{prefix}{revision} directly"))
        };
        for revision in REVISIONS {
            direct.insert(revision, directly(revision)?);
        }
        for Leg { label, revision, upstream } in &LEGS {
            println!("round {round} of {rounds}: {prefix}{label}, through the gateway");
            let address = match upstream {
                Upstream::Stdio(era) => peers.through(*era),
                Upstream::Http(era) => peers.through_http(*era),
            };
            let label = format!("{prefix}{label}");
            let scenarios = suite.scenarios(Side::Server, revision)?;
            let mut is_first = true;
            let comparison = patiently(rounds, &label, expected, || {
                if !std::mem::take(&mut is_first) {
                    direct.insert(*revision, directly(revision)?);
                }
                let through = suite.run(address, revision, &label)?;
                Ok(Comparison::new(&scenarios, &direct[revision], &through))
            })?;
            servers.add(&label, comparison);
        }
    }
    Ok(servers)
}

/// Runs a leg. In a single round, tries it up to [`TRIES`] times until there is no unexpected loss.
fn patiently(
    rounds: usize,
    label: &str,
    expected: &Expected,
    mut run: impl FnMut() -> Result<Comparison>,
) -> Result<Comparison> {
    let tries = if rounds == 1 { TRIES } else { 1 };
    let mut comparison = run()?;
    for _ in 1..tries {
        let mistakes = expected.mistakes(label, &comparison);
        if mistakes.is_empty() {
            break;
        }
        println!(
            "{}\nthis leg is run again, in case the machine was too busy for the suite's limits",
            mistakes.join("\n")
        );
        comparison = run()?;
    }
    Ok(comparison)
}

/// The results of each leg, in the order of their first runs.
#[derive(Default)]
struct Legs(Vec<(String, Seen)>);

/// The worst result of all rounds, and the totals of each.
struct Seen {
    worst: Comparison,
    totals: Vec<Totals>,
}

impl Legs {
    fn add(&mut self, label: &str, comparison: Comparison) {
        let totals = comparison.totals();
        match self.0.iter_mut().find(|(known, _)| known == label) {
            Some((_, seen)) => {
                seen.worst.keep_worst(comparison);
                seen.totals.push(totals);
            }
            None => self.0.push((label.to_owned(), Seen { worst: comparison, totals: vec![totals] })),
        }
    }
}

/// The table of a client leg, which has no direct run to compare with.
fn client_table(label: &str, comparison: &Comparison) -> String {
    let mut text = format!("{label:<48} {:<8} {:<7} kept\n", "passes", "scored");
    for (name, Scenario { scored, through, lost, .. }) in &comparison.scenarios {
        let passes = if through.passes { "pass" } else { "FAIL" };
        let kept = if comparison.is_kept(name) { "kept".to_owned() } else { format!("lost {}", lost.len()) };
        text += &format!("{name:<48} {passes:<8} {:<7} {kept}\n", if *scored { "yes" } else { "no" });
    }
    let totals = comparison.totals();
    text +=
        &format!("scored: {}/{}; kept: {}/{}\n", totals.through, totals.scored, totals.kept, totals.keepable);
    text
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

fn report(servers: &Legs, clients: &Legs, expected: &Expected) -> Value {
    let legs = |legs: &Legs, with_direct: bool| -> Vec<Value> {
        let tell = |(label, Seen { worst: comparison, .. }): &(String, Seen)| {
            let totals = comparison.totals();
            let scenarios: Vec<Value> = comparison
                .scenarios
                .iter()
                .map(|(name, scenario)| {
                    let mut told = json!({
                        "name": name,
                        "scored": scenario.scored,
                        "through": scenario.through.passes,
                        "kept": comparison.is_kept(name),
                        "lost": scenario.lost,
                        "expected": expected.reason(label, name),
                    });
                    if with_direct {
                        told["direct"] = scenario.direct.passes.into();
                    }
                    told
                })
                .collect();
            let mut told = json!({
                "leg": label,
                "scored": { "of": totals.scored, "through": totals.through },
                "kept": { "of": totals.keepable, "kept": totals.kept },
                "scenarios": scenarios,
                "mistakes": expected.mistakes(label, comparison),
            });
            if with_direct {
                told["scored"]["direct"] = totals.direct.into();
            }
            told
        };
        legs.0.iter().map(tell).collect()
    };
    json!({ "suite": suite::VERSION, "legs": legs(servers, true), "client": legs(clients, false) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_in_any_order() {
        let request = Request::read(&["--json", "out.json", "--full"]).unwrap();
        assert_eq!(request, Request { repeat: 5, compare: false, json: Some("out.json") });
        assert_eq!(Request::read(&["--repeat", "3"]).unwrap().repeat, 3);
        assert!(Request::read(&["--repeat", "0"]).is_err());
        assert!(Request::read(&["--json"]).is_err());
        assert!(Request::read(&["--fast"]).is_err());
    }
}
