//! The rules, compiled: which of them concern a principal, and what they decide together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bridgehead_config::{OWN_SERVER, PolicyRule};
use bridgehead_gateway::{Action, Decision, Principal, Scopes, Thing};
use globset::Candidate;
use sha2::{Digest, Sha256};

use super::PolicyError;
use super::patterns::{Bucket, Effect, Pattern, Patterns, PatternsBuilder, SameName};
use super::template::{covers, covers_pattern, may_meet};
use super::uri::readings;
use super::who::{RuleSet, WhoIndex};

/// A kind of thing: tools, prompts, resources.
const KINDS: usize = 3;

/// Compiled rules.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) written: Vec<PolicyRule>,
    who: WhoIndex,
    /// By kind.
    patterns: [Patterns; KINDS],
    /// The scopes that patterns ask for.
    scopes: Vec<Vec<Arc<str>>>,
    /// Whether what no rule allows is denied.
    pub(super) denies_by_default: bool,
    digest: String,
}

/// What is found once while many things are decided about for one class.
#[derive(Default)]
pub(super) struct Prepared {
    /// By kind and server.
    servers: RefCell<[HashMap<String, Arc<Summary>>; KINDS]>,
    /// By kind and number of the patterns with the same name.
    same_name: RefCell<[Vec<Option<Arc<Effects>>>; KINDS]>,
    found: RefCell<Vec<usize>>,
    scopes: RefCell<HashMap<Vec<usize>, Scopes>>,
}

/// What the rules of a class say of all things of a server.
#[derive(Debug, Default)]
struct Summary {
    server: String,
    effects: Effects,
}

/// What several patterns do together.
#[derive(Debug, Default, Clone)]
struct Effects {
    denied: bool,
    allowed: bool,
    allowed_read_only: bool,
    scopes: Vec<usize>,
}

impl Effects {
    /// Adds the patterns of the rules of a class.
    fn add<'p>(&mut self, applied: &RuleSet, patterns: impl IntoIterator<Item = &'p Pattern>) {
        for pattern in patterns.into_iter().filter(|pattern| applied.has(pattern.rule)) {
            match pattern.effect {
                Effect::Deny => self.denied = true,
                Effect::Allow => self.allowed = true,
                Effect::AllowReadOnly => self.allowed_read_only = true,
                Effect::Scopes(needed) => self.scopes.push(needed),
            }
        }
    }

    fn join(&mut self, other: &Self) {
        self.denied |= other.denied;
        self.allowed |= other.allowed;
        self.allowed_read_only |= other.allowed_read_only;
        self.scopes.extend_from_slice(&other.scopes);
    }
}

impl Rules {
    pub(super) fn compile(written: Vec<PolicyRule>) -> Result<Self, PolicyError> {
        let mut builders: [PatternsBuilder; KINDS] = Default::default();
        let mut scopes = Vec::new();
        for (number, rule) in written.iter().enumerate() {
            let allow = if rule.read_only { Effect::AllowReadOnly } else { Effect::Allow };
            let lists = [
                (0, allow, &rule.tools),
                (0, Effect::Deny, &rule.deny_tools),
                (1, Effect::Allow, &rule.prompts),
                (1, Effect::Deny, &rule.deny_prompts),
                (2, Effect::Allow, &rule.resources),
                (2, Effect::Deny, &rule.deny_resources),
            ];
            for (kind, effect, patterns) in lists {
                for pattern in patterns {
                    builders[kind].add(rule.line, number, effect, pattern)?;
                }
            }
            for (pattern, needed) in &rule.scopes {
                builders[0].add(rule.line, number, Effect::Scopes(scopes.len()), pattern)?;
                scopes.push(needed.iter().map(|scope| Arc::from(scope.as_str())).collect());
            }
        }
        let [tools, prompts, resources] = builders;
        Ok(Self {
            who: WhoIndex::new(&written),
            patterns: [tools.build()?, prompts.build()?, resources.build()?],
            scopes,
            denies_by_default: written.iter().any(PolicyRule::allows),
            digest: digest(&written),
            written,
        })
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// All scopes that some call needs, each once.
    pub(super) fn scopes(&self) -> Vec<String> {
        let mut all: Vec<String> = self.scopes.iter().flatten().map(ToString::to_string).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The rules that speak of a principal.
    pub(super) fn applied_to(&self, principal: &Principal) -> RuleSet {
        self.who.of(principal)
    }

    /// The name of the class of the principals that these rules speak of. Other rules make other classes.
    pub(super) fn class(&self, applied: &RuleSet) -> String {
        format!("{}:{}", &self.digest[..16], applied.name())
    }

    /// Whether the principals of a class might use something of a server.
    pub(super) fn may_use(&self, applied: &RuleSet, action: Action, server: Option<&str>) -> bool {
        let kind = kind(action);
        let server = server.unwrap_or(OWN_SERVER).to_lowercase();
        let summary = self.summary(applied, kind, &server);
        let allows = |pattern: &Pattern| {
            applied.has(pattern.rule) && matches!(pattern.effect, Effect::Allow | Effect::AllowReadOnly)
        };
        let mut patterns = self.patterns[kind].of_server(&server).flat_map(Bucket::all);
        !summary.effects.denied && (!self.denies_by_default || patterns.any(allows))
    }

    /// Decides about a thing.
    pub(super) fn decide(&self, applied: &RuleSet, action: Action, thing: Thing<'_>) -> Decision {
        self.decide_prepared(applied, &Prepared::default(), action, thing)
    }

    /// Decides about one of many things.
    pub(super) fn decide_prepared(
        &self,
        applied: &RuleSet,
        prepared: &Prepared,
        action: Action,
        thing: Thing<'_>,
    ) -> Decision {
        let kind = kind(action);
        let summary = prepared.summary(self, applied, kind, thing.server);
        if summary.effects.denied {
            return Decision::Deny;
        }
        let name = thing.name.to_lowercase();
        let decision = match action {
            Action::ReadSome => return self.decide_template(applied, &summary.server, &name),
            Action::Call | Action::Get | Action::Read => {
                self.decide_name(applied, prepared, (kind, &summary), &name, thing.read_only)
            }
        };
        if action != Action::Read || decision == Decision::Deny {
            return decision;
        }
        // Read before it is in lower case: an encoded letter stays the letter that it is.
        let Some(readings) = readings(thing.name) else { return Decision::Deny };
        let denied = |reading: &String| {
            let reading = reading.to_lowercase();
            self.decide_name(applied, prepared, (kind, &summary), &reading, thing.read_only) == Decision::Deny
        };
        if readings.iter().any(denied) { Decision::Deny } else { decision }
    }

    fn decide_name(
        &self,
        applied: &RuleSet,
        prepared: &Prepared,
        (kind, summary): (usize, &Summary),
        name: &str,
        read_only: bool,
    ) -> Decision {
        let mut effects = summary.effects.clone();
        let candidate = Candidate::new(name);
        let mut found = prepared.found.borrow_mut();
        for bucket in self.patterns[kind].of_server(&summary.server) {
            for same in bucket.matching(&candidate, &mut found) {
                effects.join(&prepared.effects(applied, (kind, self.patterns[kind].distinct), same));
            }
        }
        let allowed = !self.denies_by_default || effects.allowed || effects.allowed_read_only && read_only;
        match (allowed && !effects.denied, effects.scopes.is_empty()) {
            (false, _) => Decision::Deny,
            (true, true) => Decision::Allow,
            (true, false) => Decision::Scoped(prepared.scopes(self, effects.scopes)),
        }
    }

    /// The rules that speak of a thing, by whatever effect; `None` for a template, which no pattern has to match.
    pub(super) fn matching(&self, applied: &RuleSet, action: Action, thing: Thing<'_>) -> Option<RuleSet> {
        if action == Action::ReadSome {
            return None;
        }
        let server = thing.server.unwrap_or(OWN_SERVER).to_lowercase();
        let mut rules = RuleSet::empty(self.written.len());
        let mut found = Vec::new();
        let readings = if action == Action::Read { readings(thing.name) } else { None };
        let written = thing.name.to_owned();
        for name in std::iter::once(written).chain(readings.into_iter().flatten()) {
            let name = name.to_lowercase();
            let candidate = Candidate::new(&name);
            for bucket in self.patterns[kind(action)].of_server(&server) {
                let every = bucket.every_name.iter();
                let matching = bucket.matching(&candidate, &mut found).flat_map(|same| &same.patterns);
                let matching = every.chain(matching);
                matching
                    .filter(|pattern| applied.has(pattern.rule))
                    .for_each(|pattern| rules.add(pattern.rule));
            }
        }
        Some(rules)
    }

    /// Decides about a template: whether some resource that it matches may be read.
    fn decide_template(&self, applied: &RuleSet, server: &str, template: &str) -> Decision {
        let patterns = || {
            let all = self.patterns[kind(Action::ReadSome)].of_server(server).flat_map(Bucket::all);
            all.filter(|pattern| applied.has(pattern.rule))
        };
        let denying = || patterns().filter(|pattern| pattern.effect == Effect::Deny);
        let allows = |pattern: &Pattern| {
            matches!(pattern.effect, Effect::Allow | Effect::AllowReadOnly)
                && may_meet(&pattern.name, template)
                && !denying().any(|denying| covers_pattern(&denying.name, &pattern.name))
        };
        let allowed = !self.denies_by_default || patterns().any(allows);
        match allowed && !denying().any(|denying| covers(&denying.name, template)) {
            true => Decision::Allow,
            false => Decision::Deny,
        }
    }

    /// What the rules of a class say of all things of a server, whose name is in lower case.
    fn summary(&self, applied: &RuleSet, kind: usize, server: &str) -> Summary {
        let mut summary = Summary { server: server.to_owned(), ..Summary::default() };
        for bucket in self.patterns[kind].of_server(server) {
            summary.effects.add(applied, &bucket.every_name);
        }
        summary
    }
}

impl Prepared {
    fn summary(&self, rules: &Rules, applied: &RuleSet, kind: usize, server: Option<&str>) -> Arc<Summary> {
        let (server, servers) = (server.unwrap_or(OWN_SERVER), &mut self.servers.borrow_mut()[kind]);
        if let Some(summary) = servers.get(server) {
            return Arc::clone(summary);
        }
        let summary = Arc::new(rules.summary(applied, kind, &server.to_lowercase()));
        servers.insert(server.to_owned(), Arc::clone(&summary));
        summary
    }

    /// What the patterns with the same name do for the class. `distinct` is how many such names the kind has.
    fn effects(&self, applied: &RuleSet, (kind, distinct): (usize, usize), same: &SameName) -> Arc<Effects> {
        let known = &mut self.same_name.borrow_mut()[kind];
        known.resize(distinct, None);
        match known.get_mut(same.number) {
            Some(Some(effects)) => Arc::clone(effects),
            found => {
                let mut effects = Effects::default();
                effects.add(applied, &same.patterns);
                let effects = Arc::new(effects);
                if let Some(place) = found {
                    *place = Some(Arc::clone(&effects));
                }
                effects
            }
        }
    }

    /// All scopes of these patterns, each once. Tools that need the same scopes share the list.
    fn scopes(&self, rules: &Rules, mut needed: Vec<usize>) -> Scopes {
        needed.sort_unstable();
        needed.dedup();
        let mut known = self.scopes.borrow_mut();
        let scopes = known.entry(needed).or_insert_with_key(|needed| {
            let mut all: Vec<Arc<str>> = needed.iter().flat_map(|at| &rules.scopes[*at]).cloned().collect();
            all.sort();
            all.dedup();
            all.into()
        });
        Arc::clone(scopes)
    }
}

/// The kind of thing that an action concerns.
const fn kind(action: Action) -> usize {
    match action {
        Action::Call => 0,
        Action::Get => 1,
        Action::Read | Action::ReadSome => 2,
    }
}

/// A hash of what rules say, wherever they stand.
fn digest(rules: &[PolicyRule]) -> String {
    let mut text = String::new();
    for rule in rules {
        let PolicyRule {
            who,
            tools,
            prompts,
            resources,
            deny_tools,
            deny_prompts,
            deny_resources,
            scopes,
            ..
        } = rule;
        let _ = write!(text, "rule {who:?} {}", rule.read_only);
        for list in [tools, prompts, resources, deny_tools, deny_prompts, deny_resources] {
            let _ = write!(text, " {list:?}");
        }
        let _ = writeln!(text, " {scopes:?}");
    }
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use bridgehead_config::Who;

    use super::*;

    /// A rule that says nothing.
    pub(in crate::policy) fn rule() -> PolicyRule {
        PolicyRule {
            who: vec![Who::Everyone],
            tools: Vec::new(),
            prompts: Vec::new(),
            resources: Vec::new(),
            deny_tools: Vec::new(),
            deny_prompts: Vec::new(),
            deny_resources: Vec::new(),
            scopes: Vec::new(),
            read_only: false,
            line: 1,
        }
    }
}
