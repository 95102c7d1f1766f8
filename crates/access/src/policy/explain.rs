//! Why a principal may or may not use something, rule by rule.
//!
//! The rules are read as they are written, without the sets and the index by which the gateway decides. A property test
//! holds both to the same answers.

use std::collections::BTreeSet;
use std::fmt;

use bridgehead_config::{OWN_SERVER, PolicyRule, ThingPattern, Who};
use bridgehead_gateway::{Action, Principal, Thing};

use super::patterns::matches;
use super::rules::Rules;
use super::template::{covers, covers_pattern, may_meet};
use super::uri::readings;
use super::who::RuleSet;

/// Why something is allowed or denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What decides.
    pub verdict: Verdict,
    /// The scopes that a call needs besides, in order.
    pub scopes: Vec<String>,
}

/// What decides whether something may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No rule allows anything, and none denies this.
    NothingDenies,
    /// A rule allows it.
    Allowed(Deciding),
    /// A rule denies it.
    Denied(Deciding),
    /// The only rules that would allow it admit tools that change nothing, and this one does not say so.
    NotReadOnly(Deciding),
    /// No rule allows it, and some rule allows something else.
    NothingAllows,
    /// The URI contains what servers read in different ways, or not at all, such as control characters.
    Unreadable,
}

impl Verdict {
    const fn allows(&self) -> bool {
        matches!(self, Self::NothingDenies | Self::Allowed(_))
    }
}

/// The rule that decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deciding {
    /// The line of the rule in the file.
    pub line: usize,
    /// The word in the rule that means the principal.
    pub who: Who,
    /// The key in the rule, such as `deny_tools`.
    pub key: &'static str,
    /// The pattern that matches.
    pub pattern: ThingPattern,
}

impl Explanation {
    /// Whether it may be used, by someone who has the scopes.
    pub const fn is_allowed(&self) -> bool {
        self.verdict.allows()
    }

    /// The rule that decides, if one does.
    pub const fn rule(&self) -> Option<&Deciding> {
        match &self.verdict {
            Verdict::Allowed(rule) | Verdict::Denied(rule) | Verdict::NotReadOnly(rule) => Some(rule),
            Verdict::NothingDenies | Verdict::NothingAllows | Verdict::Unreadable => None,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::NothingDenies => f.write_str("no rule denies it"),
            Verdict::NothingAllows => f.write_str("no rule allows it"),
            Verdict::Unreadable => {
                f.write_str("its URI contains control characters, or is percent-encoded again and again")
            }
            Verdict::Allowed(rule) => write!(f, "the rule on {rule} allows it"),
            Verdict::Denied(rule) => write!(f, "the rule on {rule} denies it"),
            Verdict::NotReadOnly(rule) => {
                write!(
                    f,
                    "the rule on {rule} allows tools that only read, and this one does not say that it does"
                )
            }
        }
    }
}

impl fmt::Display for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} (`{}` for `{}`: `{}`)", self.line, self.key, self.who, self.pattern)
    }
}

impl Rules {
    /// Explains a decision. `among` are the rules that may matter to it; all, if absent. It takes time for each of them.
    pub(super) fn explain(
        &self,
        principal: &Principal,
        action: Action,
        thing: Thing<'_>,
        among: Option<&RuleSet>,
    ) -> Explanation {
        let applied: Vec<(&PolicyRule, &Who)> = self
            .written
            .iter()
            .enumerate()
            .filter(|(number, _)| among.is_none_or(|among| among.has(*number)))
            .filter_map(|(_, rule)| Some((rule, rule.who.iter().find(|who| principal.is(who))?)))
            .collect();
        let server = thing.server.unwrap_or(OWN_SERVER);
        let verdict = |name: &str| self.verdict(&applied, action, (server, name), thing.read_only);
        let readings = if action == Action::Read { readings(thing.name) } else { Some(Vec::new()) };
        let written = verdict(thing.name);
        let verdict = match readings {
            _ if matches!(written, Verdict::Denied(_)) => written,
            None => Verdict::Unreadable,
            Some(readings) => {
                let others = readings.iter().map(|reading| verdict(reading));
                let mut stricter = others.filter(|other| !other.allows());
                if written.allows() { stricter.next().unwrap_or(written) } else { written }
            }
        };
        let scopes: BTreeSet<&String> = applied
            .iter()
            .flat_map(|(rule, _)| &rule.scopes)
            .filter(|(pattern, _)| action == Action::Call && fits(pattern, server, thing.name))
            .flat_map(|(_, scopes)| scopes)
            .collect();
        Explanation { verdict, scopes: scopes.into_iter().cloned().collect() }
    }

    fn verdict(
        &self,
        applied: &[(&PolicyRule, &Who)],
        action: Action,
        (server, name): (&str, &str),
        read_only: bool,
    ) -> Verdict {
        let deciding = |rule: &PolicyRule, who: &Who, key, pattern: &ThingPattern| Deciding {
            line: rule.line,
            who: who.clone(),
            key,
            pattern: pattern.clone(),
        };
        let of_server = |pattern: &&ThingPattern| matches(&pattern.server, server);
        let denies = |pattern: &ThingPattern| match action {
            Action::ReadSome => covers(&pattern.name.to_lowercase(), &name.to_lowercase()),
            Action::Call | Action::Get | Action::Read => matches(&pattern.name, name),
        };
        let mut denying = Vec::new();
        for (rule, who) in applied {
            let (key, patterns) = denials(rule, action);
            if let Some(pattern) = patterns.iter().filter(of_server).find(|pattern| denies(pattern)) {
                return Verdict::Denied(deciding(rule, who, key, pattern));
            }
            denying.extend(patterns.iter().filter(of_server).map(|pattern| (*rule, *who, key, pattern)));
        }
        let mut refused = None;
        for (rule, who) in applied {
            let (key, patterns) = permissions(rule, action);
            for pattern in patterns.iter().filter(of_server) {
                let lower = pattern.name.to_lowercase();
                let allows = match action {
                    Action::ReadSome => may_meet(&lower, &name.to_lowercase()),
                    Action::Call | Action::Get | Action::Read => matches(&pattern.name, name),
                };
                if !allows {
                    continue;
                }
                let covering = denying.iter().find(|(_, _, _, denying)| {
                    action == Action::ReadSome && covers_pattern(&denying.name.to_lowercase(), &lower)
                });
                if let Some((rule, who, key, pattern)) = covering {
                    refused.get_or_insert(Verdict::Denied(deciding(rule, who, key, pattern)));
                } else if action == Action::Call && rule.read_only && !read_only {
                    refused.get_or_insert(Verdict::NotReadOnly(deciding(rule, who, key, pattern)));
                } else {
                    return Verdict::Allowed(deciding(rule, who, key, pattern));
                }
            }
        }
        match (refused, self.denies_by_default) {
            (Some(refused), true) => refused,
            (None, true) => Verdict::NothingAllows,
            (_, false) => Verdict::NothingDenies,
        }
    }
}

fn fits(pattern: &ThingPattern, server: &str, name: &str) -> bool {
    matches(&pattern.server, server) && matches(&pattern.name, name)
}

fn permissions(rule: &PolicyRule, action: Action) -> (&'static str, &[ThingPattern]) {
    match action {
        Action::Call => ("tools", &rule.tools),
        Action::Get => ("prompts", &rule.prompts),
        Action::Read | Action::ReadSome => ("resources", &rule.resources),
    }
}

fn denials(rule: &PolicyRule, action: Action) -> (&'static str, &[ThingPattern]) {
    match action {
        Action::Call => ("deny_tools", &rule.deny_tools),
        Action::Get => ("deny_prompts", &rule.deny_prompts),
        Action::Read | Action::ReadSome => ("deny_resources", &rule.deny_resources),
    }
}
