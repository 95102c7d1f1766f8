//! Judges a run through the gateway: what passed, what was kept, and what was expected to be lost.
//!
//! These are pure rules over the suite's results. A scenario passes if none of its checks failed, which is the suite's own
//! rule. It is kept if it passes both directly and through the gateway, and every check that succeeded directly also
//! succeeded through the gateway. A check that was skipped there counts as lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use super::suite::{Check, Results};

/// How one scenario went at one server.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) passes: bool,
    /// How often each check succeeded, by id and name; the suite makes some checks several times.
    successes: BTreeMap<(String, String), usize>,
    /// What the suite said about the checks that did not succeed, by id.
    pub(crate) said: BTreeMap<String, String>,
}

impl Outcome {
    fn new(checks: Option<&Vec<Check>>) -> Self {
        // A scenario without results never finished.
        let Some(checks) = checks else { return Self::default() };
        let mut outcome = Self { passes: true, ..Self::default() };
        for Check { id, name, status, message } in checks {
            match status.as_str() {
                "SUCCESS" => *outcome.successes.entry((id.clone(), name.clone())).or_default() += 1,
                "INFO" => {}
                other => {
                    outcome.passes &= other != "FAILURE";
                    outcome.said.insert(id.clone(), format!("{other} {message}").trim_end().to_owned());
                }
            }
        }
        outcome
    }

    /// The ids of the checks that succeed here, but not or less often there.
    fn lost_in(&self, there: &Self) -> BTreeSet<String> {
        let lost =
            self.successes.iter().filter(|(check, times)| there.successes.get(check).unwrap_or(&0) < times);
        lost.map(|((id, _), _)| id.clone()).collect()
    }
}

/// One scenario, directly and through the gateway.
pub(crate) struct Scenario {
    pub(crate) scored: bool,
    pub(crate) direct: Outcome,
    pub(crate) through: Outcome,
    pub(crate) lost: BTreeSet<String>,
}

/// All scenarios of one set.
pub(crate) struct Comparison {
    pub(crate) scenarios: BTreeMap<String, Scenario>,
}

/// The sums of one set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) scored: usize,
    pub(crate) direct: usize,
    pub(crate) through: usize,
    pub(crate) keepable: usize,
    pub(crate) kept: usize,
}

impl Comparison {
    pub(crate) fn new(scenarios: &BTreeMap<String, bool>, direct: &Results, through: &Results) -> Self {
        let compare = |(name, scored): (&String, &bool)| {
            let (direct, through) = (Outcome::new(direct.get(name)), Outcome::new(through.get(name)));
            let lost = direct.lost_in(&through);
            (name.clone(), Scenario { scored: *scored, direct, through, lost })
        };
        Self { scenarios: scenarios.iter().map(compare).collect() }
    }

    /// A client has no direct run to compare with, so it must keep every check that was made. Skipped checks do not count,
    /// and a scenario without results has lost everything.
    pub(crate) fn of_client(scenarios: &BTreeMap<String, bool>, seen: &Results) -> Self {
        let ideal = |name: &String| {
            let mut checks = seen.get(name).cloned().unwrap_or_default();
            checks.retain(|check| check.status != "SKIPPED" && check.status != "INFO");
            if checks.is_empty() {
                checks.push(Check { id: "results".to_owned(), ..Check::default() });
            }
            for check in &mut checks {
                "SUCCESS".clone_into(&mut check.status);
            }
            (name.clone(), checks)
        };
        Self::new(scenarios, &scenarios.keys().map(ideal).collect(), seen)
    }

    /// Takes over the worse results of another round.
    pub(crate) fn keep_worst(&mut self, other: Self) {
        for (name, worse) in other.scenarios {
            let Some(scenario) = self.scenarios.get_mut(&name) else { continue };
            scenario.direct.passes &= worse.direct.passes;
            scenario.through.passes &= worse.through.passes;
            scenario.through.said.extend(worse.through.said);
            scenario.lost.extend(worse.lost);
        }
    }

    pub(crate) fn is_kept(&self, name: &str) -> bool {
        self.scenarios.get(name).is_some_and(|scenario| {
            scenario.direct.passes && scenario.through.passes && scenario.lost.is_empty()
        })
    }

    pub(crate) fn totals(&self) -> Totals {
        let count = |rule: &dyn Fn(&str, &Scenario) -> bool| {
            self.scenarios.iter().filter(|(name, scenario)| rule(name, scenario)).count()
        };
        Totals {
            scored: count(&|_, scenario| scenario.scored),
            direct: count(&|_, scenario| scenario.scored && scenario.direct.passes),
            through: count(&|_, scenario| scenario.scored && scenario.through.passes),
            keepable: count(&|_, scenario| scenario.direct.passes),
            kept: count(&|name, _| self.is_kept(name)),
        }
    }
}

/// The expected losses: reason, then set or leg, then scenarios. `SCENARIO/CHECK` expects only one check to be lost, so that
/// the other checks of the scenario stay guarded.
pub(crate) struct Expected(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Expected {
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read(file).with_context(|| format!("could not read {}", file.display()))?;
        Ok(Self(serde_json::from_slice(&text).with_context(|| format!("{} is malformed", file.display()))?))
    }

    /// Why a scenario, or a part of it, is not kept yet.
    pub(crate) fn reason(&self, leg: &str, scenario: &str) -> Option<&str> {
        self.entries(leg).find(|(_, entry)| part(entry).0 == scenario).map(|(reason, _)| reason)
    }

    /// Where the run and the expectations differ, in words.
    pub(crate) fn mistakes(&self, leg: &str, comparison: &Comparison) -> Vec<String> {
        let mut mistakes = Vec::new();
        for (name, scenario) in &comparison.scenarios {
            if !scenario.direct.passes {
                mistakes.push(format!("{leg} {name}: the fixture fails without the gateway"));
                continue;
            }
            if comparison.is_kept(name) {
                continue;
            }
            let entries: Vec<(&str, Option<&str>)> = self
                .entries(leg)
                .map(|(_, entry)| part(entry))
                .filter(|(scenario, _)| scenario == name)
                .collect();
            if entries.is_empty() {
                let lost: Vec<&str> = scenario.lost.iter().map(String::as_str).collect();
                mistakes.push(format!("{leg} {name}: lost unexpectedly: {}", lost.join(", ")));
            } else if !entries.contains(&(name, None)) {
                let unlisted = scenario.lost.iter().filter(|check| !entries.contains(&(name, Some(check))));
                mistakes.extend(unlisted.map(|check| format!("{leg} {name}/{check}: lost unexpectedly")));
            }
        }
        for (reason, entry) in self.entries(leg) {
            let (name, check) = part(entry);
            let is_lost = match (comparison.scenarios.get(name), check) {
                (None, _) => false,
                (Some(_), None) => !comparison.is_kept(name),
                (Some(scenario), Some(check)) => scenario.lost.contains(check),
            };
            if !is_lost {
                mistakes.push(format!("{leg} {entry}: listed under `{reason}`, but kept; remove the entry"));
            }
        }
        mistakes
    }

    /// The entries for a leg: those under its own name, and those under its set, which apply to every upstream.
    fn entries(&self, leg: &str) -> impl Iterator<Item = (&str, &str)> {
        let set = leg.split_once(" over ").map_or(leg, |(set, _)| set);
        let sets = self
            .0
            .iter()
            .flat_map(|(reason, sets)| sets.iter().map(move |(name, list)| (reason, name, list)));
        sets.filter(move |(_, name, _)| *name == leg || *name == set)
            .flat_map(|(reason, _, list)| list.iter().map(move |entry| (reason.as_str(), entry.as_str())))
    }
}

/// The scenario of an entry, and the check if it names one.
fn part(entry: &str) -> (&str, Option<&str>) {
    entry.split_once('/').map_or((entry, None), |(scenario, check)| (scenario, Some(check)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(scenarios: &[(&str, &[(&str, &str)])]) -> Results {
        let check = |(id, status): &(&str, &str)| Check {
            id: (*id).to_owned(),
            name: String::new(),
            status: (*status).to_owned(),
            message: String::new(),
        };
        scenarios
            .iter()
            .map(|(name, checks)| ((*name).to_owned(), checks.iter().map(check).collect()))
            .collect()
    }

    fn compare(direct: &[(&str, &str)], through: &[(&str, &str)]) -> Comparison {
        let scenarios = [("a".to_owned(), true)].into();
        Comparison::new(&scenarios, &results(&[("a", direct)]), &results(&[("a", through)]))
    }

    #[track_caller]
    fn check_kept(direct: &[(&str, &str)], through: &[(&str, &str)], kept: bool) {
        assert_eq!(compare(direct, through).is_kept("a"), kept);
    }

    #[test]
    fn kept_is_stricter_than_passed() {
        check_kept(&[("x", "SUCCESS")], &[("x", "SUCCESS")], true);
        check_kept(&[("x", "SUCCESS")], &[("x", "SKIPPED")], false);
        check_kept(&[("x", "SUCCESS")], &[("x", "WARNING")], false);
        check_kept(&[("x", "SUCCESS")], &[("x", "INFO")], false);
        check_kept(&[("x", "SUCCESS")], &[], false);
        check_kept(&[("x", "WARNING")], &[("x", "WARNING")], true);
        check_kept(&[("x", "SUCCESS")], &[("x", "SUCCESS"), ("y", "FAILURE")], false);
        check_kept(&[("x", "FAILURE")], &[("x", "SUCCESS")], false);
    }

    #[test]
    fn a_check_made_twice_has_to_succeed_twice() {
        check_kept(&[("x", "SUCCESS"), ("x", "SUCCESS")], &[("x", "SUCCESS"), ("x", "WARNING")], false);
    }

    #[test]
    fn a_scenario_without_results_is_not_passed() {
        let scenarios = [("a".to_owned(), true)].into();
        let direct = results(&[("a", &[("x", "SUCCESS")])]);
        let totals = Comparison::new(&scenarios, &direct, &Results::new()).totals();
        assert_eq!(totals, Totals { scored: 1, direct: 1, through: 0, keepable: 1, kept: 0 });
    }

    #[track_caller]
    fn check_client(seen: &[(&str, &str)], lost: &[&str]) {
        let scenarios = [("a".to_owned(), true)].into();
        let comparison = Comparison::of_client(&scenarios, &results(&[("a", seen)]));
        assert!(comparison.scenarios["a"].lost.iter().eq(lost), "{:?}", comparison.scenarios["a"].lost);
        assert_eq!(comparison.is_kept("a"), lost.is_empty());
    }

    #[test]
    fn a_client_keeps_every_check_that_was_made() {
        check_client(&[("x", "SUCCESS"), ("y", "SKIPPED"), ("z", "INFO")], &[]);
        check_client(&[("x", "SUCCESS"), ("y", "WARNING")], &["y"]);
        check_client(&[("x", "SUCCESS"), ("x", "FAILURE")], &["x"]);
        check_client(&[("y", "SKIPPED")], &["results"]);
        check_client(&[], &["results"]);
        let scenarios = [("a".to_owned(), true)].into();
        assert!(!Comparison::of_client(&scenarios, &Results::new()).is_kept("a"));
    }

    #[test]
    fn the_worst_round_counts() {
        let mut worst = compare(&[("x", "SUCCESS")], &[("x", "SUCCESS")]);
        worst.keep_worst(compare(&[("x", "SUCCESS")], &[("x", "SKIPPED")]));
        worst.keep_worst(compare(&[("x", "SUCCESS")], &[("x", "SUCCESS")]));
        assert!(!worst.is_kept("a"));
    }

    #[track_caller]
    fn check_mistakes(entries: &[&str], through: &[(&str, &str)], mistakes: usize) {
        let entries = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let expected = Expected([("later".to_owned(), [("r".to_owned(), entries)].into())].into());
        let comparison = compare(&[("x", "SUCCESS"), ("y", "SUCCESS")], through);
        let found = expected.mistakes("r", &comparison);
        assert_eq!(found.len(), mistakes, "{found:?}");
        assert_eq!(
            expected.mistakes("r over s", &comparison).len(),
            mistakes,
            "a set is expected over every upstream"
        );
        assert!(expected.mistakes("other", &compare(&[], &[])).is_empty());
    }

    #[test]
    fn what_is_lost_is_listed_and_what_is_listed_is_lost() {
        let (all, x_only, none) = ([("x", "SUCCESS"), ("y", "SUCCESS")], [("x", "SUCCESS")], []);
        check_mistakes(&[], &all, 0);
        check_mistakes(&[], &x_only, 1);
        check_mistakes(&["a"], &x_only, 0);
        check_mistakes(&["a"], &all, 1);
        check_mistakes(&["a/y"], &x_only, 0);
        check_mistakes(&["a/y"], &none, 1);
        check_mistakes(&["a/y"], &all, 1);
        check_mistakes(&["a/x", "a/y"], &x_only, 1);
        check_mistakes(&["b"], &all, 1);
    }
}
