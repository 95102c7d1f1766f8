//! Who may use what: the rules of the configuration, as the gateway asks them.
//!
//! The rules decide about principals and things only; how much a principal may do is a limit, and how it proved who it is
//! is not their business. A principal's class is the set of rules that speak of it, so its decisions are prepared once for
//! all principals of the class. What must stay true: any denial beats any permission; once one rule allows something, what
//! no rule allows is denied; letter case does not matter; and [`Policy::explain`], which reads the rules one by one, says
//! the same as [`Authorizer::decide`], which does not.

mod explain;
mod patterns;
mod rules;
mod template;
mod uri;
mod who;

use std::sync::Arc;

use arc_swap::ArcSwap;
use bridgehead_config::PolicyRule;
use bridgehead_gateway::{Action, Authorizer, Decide, Decision, Principal, Thing};

pub use explain::{Deciding, Explanation, Verdict};
use rules::Rules;

/// The rules in effect. They can be replaced while a gateway uses them; the gateway is then told
/// ([`bridgehead_gateway::Gateway::policy_changed`]).
#[derive(Debug)]
pub struct Policy(ArcSwap<Rules>);

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule on line {line}: pattern `{pattern}`: {reason}")]
pub struct PolicyError {
    /// The line of the rule.
    pub line: usize,
    /// The pattern that does not compile.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Policy {
    /// Compiles rules.
    ///
    /// # Errors
    /// If a pattern is not one. The rules of a checked configuration always compile.
    pub fn new(rules: Vec<PolicyRule>) -> Result<Self, PolicyError> {
        Rules::compile(rules).map(|rules| Self(ArcSwap::from_pointee(rules)))
    }

    /// Replaces all rules in one step. Returns whether they say something else than before; the gateway must then be told.
    ///
    /// # Errors
    /// If a pattern is not one; the old rules then stay in effect.
    pub fn replace(&self, rules: Vec<PolicyRule>) -> Result<bool, PolicyError> {
        let new = Rules::compile(rules)?;
        let changed = new.digest() != self.0.load().digest();
        self.0.store(Arc::new(new));
        Ok(changed)
    }

    /// All scopes that some call needs, in order. A client is asked for all of them at once when it signs in.
    pub fn scopes(&self) -> Vec<String> {
        self.0.load().scopes()
    }

    /// What identifies the rules in the record: the SHA-256 of what they say, without where they stand.
    pub fn digest(&self) -> String {
        self.0.load().digest().to_owned()
    }

    /// Why a principal may or may not do something, and by which rule.
    pub fn explain(&self, principal: &Principal, action: Action, thing: Thing<'_>) -> Explanation {
        self.0.load().explain(principal, action, thing, None)
    }
}

impl Authorizer for Policy {
    fn class(&self, principal: &Principal) -> Arc<str> {
        let rules = self.0.load();
        rules.class(&rules.applied_to(principal)).into()
    }

    fn decide(&self, principal: &Principal, action: Action, thing: Thing<'_>) -> Decision {
        let rules = self.0.load();
        let applied = rules.applied_to(principal);
        rules.decide(&applied, action, thing)
    }

    fn decide_for<'a>(&'a self, principal: &'a Principal) -> Box<Decide<'a>> {
        let rules = self.0.load_full();
        let applied = rules.applied_to(principal);
        let prepared = rules::Prepared::default();
        Box::new(move |action, thing: Thing<'_>| rules.decide_prepared(&applied, &prepared, action, thing))
    }

    fn may_use(&self, principal: &Principal, action: Action, server: Option<&str>) -> bool {
        let rules = self.0.load();
        let applied = rules.applied_to(principal);
        rules.may_use(&applied, action, server)
    }

    fn why_denied(&self, principal: &Principal, action: Action, thing: Thing<'_>) -> String {
        let rules = self.0.load();
        let matching = rules.matching(&rules.applied_to(principal), action, thing);
        rules.explain(principal, action, thing, matching.as_ref()).to_string()
    }
}
