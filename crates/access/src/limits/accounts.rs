//! What principals have used: one account for each that is active.
//!
//! A principal whose rates have recovered and that has nothing running is forgotten: a new account would be the same. Groups
//! decide which rules count a principal, and they may differ from token to token. What a rule has counted belongs to the
//! principal all the same, so that nobody gets a second allowance by another token.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bridgehead_gateway::{Account, Correction, Principal, PrincipalKind};
use parking_lot::Mutex;

use super::Book;
use super::gcra::Cell;
use super::ledger::{self, BudgetKey};

/// How many parts the table has, each with its own lock.
const SHARDS: usize = 16;
/// How many principals a part remembers at most.
const MOST: usize = 4096;
/// A part with fewer principals is not swept.
const FEW: usize = 64;
/// How many sets of groups of one principal are remembered.
const MOST_VARIANTS: usize = 8;

/// The accounts of all active principals.
pub(super) struct Accounts {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

#[derive(Default)]
struct Shard {
    known: HashMap<Arc<str>, Known>,
    /// The number of principals at which idle ones are looked for.
    sweep_at: usize,
}

/// A principal.
#[derive(Default)]
struct Known {
    /// What the rules that count it have counted.
    counted: Vec<(usize, Arc<Counted>)>,
    /// The rules that count it, by its groups.
    variants: Vec<Arc<PrincipalAccount>>,
}

/// What one rule has counted of one principal.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) cell: Cell,
    pub(super) running: AtomicU32,
    /// Where its spending is.
    pub(super) budget: BudgetKey,
}

/// A principal with certain groups, and what counts it.
pub(super) struct PrincipalAccount {
    pub(super) book: Arc<Book>,
    kind: PrincipalKind,
    groups: u64,
    /// The rules that count it.
    pub(super) rules: Box<[(usize, Arc<Counted>)]>,
}

impl Accounts {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }

    /// The account of a principal.
    pub(super) fn of(&self, book: &Arc<Book>, principal: &Principal) -> Arc<PrincipalAccount> {
        let (id, kind) = (principal.as_str(), principal.kind());
        let groups = if book.rules.by_group { self.digest(principal) } else { 0 };
        let mut shard = self.shards[self.hasher.hash_one(id) as usize % SHARDS].lock();
        let variants = shard.known.get(id).map(|known| &*known.variants).unwrap_or_default();
        if let Some(account) = variants.iter().find(|known| known.groups == groups && known.kind == kind) {
            return Arc::clone(account);
        }
        shard.open(book, principal, groups)
    }

    /// A number for the groups of a principal, in any order.
    fn digest(&self, principal: &Principal) -> u64 {
        principal.groups().fold(0, |sum: u64, group| sum.wrapping_add(self.hasher.hash_one(group)))
    }

    /// How many sets of groups are remembered of the principal with most.
    #[cfg(test)]
    pub(super) fn most_variants(&self) -> usize {
        let most = |shard: &Mutex<Shard>| shard.lock().known.values().map(|known| known.variants.len()).max();
        self.shards.iter().filter_map(most).max().unwrap_or_default()
    }

    /// How many principals are remembered.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().known.len()).sum()
    }
}

impl Shard {
    fn open(&mut self, book: &Arc<Book>, principal: &Principal, groups: u64) -> Arc<PrincipalAccount> {
        if !self.known.contains_key(principal.as_str()) {
            self.sweep(book.clock.monotonic());
        }
        let known = self.known.entry(principal.shared()).or_default();
        let mut rules = Vec::new();
        for (number, rule) in book.rules.rules.iter().enumerate() {
            if !rule.who.iter().any(|who| principal.is(who)) {
                continue;
            }
            let before = known.counted.iter().find(|(other, _)| *other == number);
            let counted = before.map(|(_, counted)| Arc::clone(counted)).unwrap_or_else(|| {
                let key = rule.budget.as_ref().map(|budget| ledger::key(&budget.id, principal.as_str()));
                let counted = Arc::new(Counted {
                    cell: Cell::default(),
                    running: AtomicU32::new(0),
                    budget: key.unwrap_or_default(),
                });
                known.counted.push((number, Arc::clone(&counted)));
                counted
            });
            rules.push((number, counted));
        }
        let (kind, book) = (principal.kind(), Arc::clone(book));
        let account = Arc::new(PrincipalAccount { book, kind, groups, rules: rules.into() });
        if known.variants.len() >= MOST_VARIANTS {
            known.variants.remove(0);
        }
        known.variants.push(Arc::clone(&account));
        account
    }

    /// Forgets idle principals, if there are twice as many as were left last time. If the table is full of active ones, some
    /// of those are forgotten too.
    fn sweep(&mut self, now: Duration) {
        if self.known.len() < self.sweep_at.clamp(FEW, MOST) {
            return;
        }
        self.known.retain(|_, known| !known.is_idle(now));
        self.sweep_at = self.known.len() * 2;
        if self.known.len() >= MOST {
            let mut left = MOST / 8;
            self.known.retain(|_, known| {
                let forgotten = left > 0 && known.is_unused();
                left -= usize::from(forgotten);
                !forgotten
            });
        }
    }
}

impl Known {
    /// Whether no request has it in hand. A new one gets it only from the table, which is locked.
    fn is_unused(&self) -> bool {
        self.variants.iter().all(|account| Arc::strong_count(account) == 1)
    }

    /// Whether a new account would be the same.
    fn is_idle(&self, now: Duration) -> bool {
        let at_rest = |counted: &Counted| {
            counted.cell.is_recovered(now) && counted.running.load(Ordering::Relaxed) == 0
        };
        self.is_unused() && self.counted.iter().all(|(_, counted)| at_rest(counted))
    }
}

impl PrincipalAccount {
    /// The rules that count a request with these marks.
    pub(super) fn counting<'a>(
        &'a self,
        marks: Option<&'a [u64]>,
    ) -> impl Iterator<Item = (&'a super::rules::Rule, &'a Counted)> {
        let rules = &self.book.rules;
        let counts = move |(number, _): &&(usize, Arc<Counted>)| rules.counts(*number, marks);
        self.rules.iter().filter(counts).map(|(number, counted)| (&rules.rules[*number], &**counted))
    }
}

impl Account for PrincipalAccount {
    fn settle(&self, marks: Option<&[u64]>, correction: Option<Correction<'_>>) {
        for (rule, counted) in self.counting(marks) {
            if rule.concurrent.is_some() {
                counted.running.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if let Some(Correction { charge, times }) = correction {
            let budgets = self.counting(marks).filter(|(rule, _)| rule.budget.is_some());
            let keys: Vec<BudgetKey> = budgets.map(|(_, counted)| counted.budget).collect();
            let cost = i64::try_from(charge.cost).unwrap_or(i64::MAX);
            self.book.ledger.correct(charge.day, &keys, cost.saturating_mul(times));
        }
    }
}
