//! How much each principal may do: `[[limits.rules]]`.
//!
//! Every rule that speaks of the principal and of the called tool counts a request, and all of them must admit it. A rule
//! without tools counts every request that passes the gate. What is counted belongs to one principal and one rule.
//!
//! - `rate` and `burst`: the generic cell rate algorithm, one atomic number (`gcra`).
//! - `concurrent`: requests that run. An open event stream does not run.
//! - `budget_per_day`: what calls of tools cost, in a UTC day (`ledger`, `recount`).
//!
//! What must stay true: a refused request has taken nothing; what a request took while it ran is given back however it ends;
//! a call that provably did not run costs nothing; memory is bounded (`accounts`, `rules`).

mod accounts;
mod gcra;
mod ledger;
mod recount;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_audit::Archive;
use bridgehead_call::Clock;
use bridgehead_config::{LimitRule, Rate};
use bridgehead_gateway::{Allowance, Charge, Code, GatewayError, Limited, Limiter, Principal, Quota};
use bridgehead_wire::Method;

use accounts::{Accounts, Counted, PrincipalAccount};
use ledger::{DAY, Ledger, Place};
pub use rules::Costs;
use rules::{Rule, Rules};

/// When a client whose requests all run should try again.
const RUNNING_WAIT: Duration = Duration::from_secs(1);

/// Why limits cannot be enforced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A budget is counted from the record, and there is none.
    #[error(
        "the limit rule in line {line} has `budget_per_day`, which is counted from the record, but no record is kept; \
         set `audit.store`, or remove the budget"
    )]
    NoRecord {
        /// The rule's line.
        line: usize,
    },
    /// A pattern of a rule does not compile.
    #[error("the limit rule in line {line}: `{pattern}` is not a pattern: {reason}")]
    Pattern {
        /// The rule's line.
        line: usize,
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file that gateways of one configuration share cannot be made.
    #[error("what was spent of budgets cannot be kept in {folder}: {error}")]
    Ledger {
        /// The folder of the record.
        folder: String,
        /// What failed.
        error: std::io::Error,
    },
}

/// The record that budgets are counted from.
#[derive(Debug, Clone)]
pub struct BudgetRecord {
    /// The record. Its folder holds the ledger that running gateways share.
    pub archive: Archive,
    /// The name of the configuration, such as the path of its file. All gateways of one configuration that keep their record
    /// in this folder share their budgets.
    pub configuration: String,
}

/// The limiter of the configuration.
pub struct PrincipalLimits {
    current: ArcSwap<Current>,
    clock: Arc<dyn Clock>,
    record: Option<BudgetRecord>,
}

/// Rules, and what they have counted.
struct Current {
    written: (Vec<LimitRule>, Costs),
    book: Arc<Book>,
    accounts: Accounts,
}

/// What all accounts share.
struct Book {
    rules: Rules,
    ledger: Ledger,
    clock: Arc<dyn Clock>,
}

impl PrincipalLimits {
    /// Enforces these rules. If one of them has a budget, what was spent today is recounted from the record, which may read
    /// much of today's part of it.
    ///
    /// # Errors
    /// If a rule has a budget and there is no record, if a pattern does not compile, or if the ledger cannot be made.
    pub fn new(
        rules: Vec<LimitRule>,
        costs: Costs,
        clock: Arc<dyn Clock>,
        record: Option<BudgetRecord>,
    ) -> Result<Self, LimitError> {
        let current = Current::new((rules, costs), &clock, record.as_ref())?;
        Ok(Self { current: ArcSwap::from_pointee(current), clock, record })
    }

    /// Enforces other rules from now on. If anything has changed, rates and running requests are counted from zero; budgets
    /// go on.
    ///
    /// # Errors
    /// As for [`PrincipalLimits::new`]. The rules of before then stay.
    pub fn reload(&self, rules: Vec<LimitRule>, costs: Costs) -> Result<(), LimitError> {
        let written = (rules, costs);
        if self.current.load().written != written {
            self.current.store(Arc::new(Current::new(written, &self.clock, self.record.as_ref())?));
        }
        Ok(())
    }
}

impl std::fmt::Debug for PrincipalLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrincipalLimits")
            .field("rules", &self.current.load().written.0.len())
            .finish_non_exhaustive()
    }
}

impl Current {
    fn new(
        written: (Vec<LimitRule>, Costs),
        clock: &Arc<dyn Clock>,
        record: Option<&BudgetRecord>,
    ) -> Result<Self, LimitError> {
        let configuration = record.map(|record| &*record.configuration).unwrap_or_default();
        let rules = Rules::new(&written.0, written.1.clone(), configuration)?;
        let place = match (rules.rules.iter().find(|rule| rule.budget.is_some()), record) {
            (None, _) => None,
            (Some(rule), None) => return Err(LimitError::NoRecord { line: rule.line }),
            (Some(_), Some(BudgetRecord { archive, .. })) => {
                let today = ledger::day_of(clock.wall());
                let recount = || recount::recount(archive, today);
                let place = Place::open(archive.folder(), configuration, today, recount);
                let folder = archive.folder().display().to_string();
                Some(place.map_err(|error| LimitError::Ledger { folder, error })?)
            }
        };
        let book = Book { rules, ledger: Ledger::new(place), clock: Arc::clone(clock) };
        Ok(Self { written, book: Arc::new(book), accounts: Accounts::new() })
    }
}

impl Limiter for PrincipalLimits {
    fn admit(&self, principal: &Principal, request: Limited<'_>) -> Result<Allowance, GatewayError> {
        let current = self.current.load();
        if current.book.rules.rules.is_empty() {
            return Ok(Allowance::free());
        }
        let account = current.accounts.of(&current.book, principal);
        if account.rules.is_empty() {
            return Ok(Allowance::free());
        }
        let calls = *request.method == Method::ToolsCall;
        let own_name = request.own_name.filter(|_| calls);
        let tool = own_name.and_then(|name| current.book.rules.tool(request.server, name));
        let cost = tool.as_ref().map_or(1, |tool| tool.cost);
        let marks = tool.map(|tool| tool.marks);
        let held = account.take(principal, marks.as_deref(), *request.method != Method::Listen)?;
        let charge = match calls && cost > 0 {
            true => account.charge(principal, marks.as_deref(), cost).inspect_err(|_| {
                account.give_back(marks.as_deref());
            })?,
            false => None,
        };
        Ok(match held || charge.is_some() {
            true => Allowance::taken(account, marks, charge),
            false => Allowance::free(),
        })
    }
}

impl PrincipalAccount {
    /// Counts a request with all rules, or with none. Returns whether there is something to give back when it ends. `runs` is
    /// false for a request that only listens.
    fn take(&self, principal: &Principal, marks: Option<&[u64]>, runs: bool) -> Result<bool, GatewayError> {
        let (mut held, mut now) = (false, None);
        for (at, (rule, counted)) in self.counting(marks).enumerate() {
            let taken = match &rule.rate {
                Some((rate, pace)) => {
                    let now = *now.get_or_insert_with(|| self.book.clock.monotonic());
                    pace.take(&counted.cell, now).map_err(|wait| too_fast(principal, rule, *rate, wait))
                }
                None => Ok(()),
            };
            let taken = taken.and_then(|()| match rule.concurrent.filter(|_| runs) {
                Some(most) => {
                    held = true;
                    counted.begin(most.get()).ok_or_else(|| {
                        // Counted by its own rate already.
                        let _ = rule.rate.as_ref().map(|(_, pace)| pace.give_back(&counted.cell));
                        too_many(principal, rule, most.get())
                    })
                }
                None => Ok(()),
            });
            if let Err(refused) = taken {
                self.counting(marks).take(at).for_each(|(rule, counted)| counted.undo(rule, runs));
                return Err(refused);
            }
        }
        Ok(held)
    }

    /// Takes back what [`PrincipalAccount::take`] counted just now for a call.
    fn give_back(&self, marks: Option<&[u64]>) {
        self.counting(marks).for_each(|(rule, counted)| counted.undo(rule, true));
    }

    /// Takes the cost of a call from all budgets that count it, or from none.
    fn charge(
        &self,
        principal: &Principal,
        marks: Option<&[u64]>,
        cost: u64,
    ) -> Result<Option<Charge>, GatewayError> {
        let budgets = || {
            self.counting(marks).filter_map(|(rule, counted)| Some((rule, rule.budget.as_ref()?, counted)))
        };
        let Some((_, first, _)) = budgets().next() else { return Ok(None) };
        let now = self.book.clock.wall();
        let day = ledger::day_of(now);
        let charged: Vec<_> =
            budgets().map(|(_, budget, counted)| (counted.budget, budget.per_day)).collect();
        self.book.ledger.charge(day, &charged, cost).map_err(|over| {
            let next = (day + 1).saturating_mul(DAY).saturating_sub(now.as_second());
            let wait = Duration::from_secs(u64::try_from(next).unwrap_or_default());
            let spent = (charged[over.which].1, over.spent);
            spent_up(principal, budgets().nth(over.which).map_or(0, |(rule, ..)| rule.line), spent, wait)
        })?;
        let ids = match charged.len() {
            1 => Arc::clone(&first.id),
            _ => budgets().map(|(_, budget, _)| &*budget.id).collect::<Vec<_>>().join(" ").into(),
        };
        Ok(Some(Charge { cost, budgets: ids, day }))
    }
}

impl Counted {
    /// Counts one more running request, if fewer than `most` run.
    fn begin(&self, most: u32) -> Option<()> {
        let begun = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
            (running < most).then_some(running + 1)
        });
        begun.ok().map(drop)
    }

    fn undo(&self, rule: &Rule, runs: bool) {
        if let Some((_, pace)) = &rule.rate {
            pace.give_back(&self.cell);
        }
        if rule.concurrent.is_some() && runs {
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn too_fast(principal: &Principal, rule: &Rule, rate: Rate, wait: Duration) -> GatewayError {
    let message = format!(
        "`{principal}` made too many requests: {} in {} s is the limit (rule in line {}); try again in {} ms",
        rate.count,
        rate.per.as_secs_f64(),
        rule.line,
        milliseconds(wait).as_millis()
    );
    let quota = Quota {
        name: "rate",
        count: u64::from(rate.count.get()),
        window: rate.per,
        left: 0,
        more_after: wait,
    };
    GatewayError::new(Code::RateLimited, message).over_limit(milliseconds(wait), Some(quota))
}

fn too_many(principal: &Principal, rule: &Rule, most: u32) -> GatewayError {
    let message = format!(
        "`{principal}` has too many requests running: {most} at once is the limit (rule in line {}); try again when one \
         has ended",
        rule.line
    );
    GatewayError::new(Code::RateLimited, message).over_limit(RUNNING_WAIT, None)
}

fn spent_up(
    principal: &Principal,
    line: usize,
    (per_day, spent): (u64, u64),
    wait: Duration,
) -> GatewayError {
    let message = format!(
        "`{principal}` has spent {spent} of its budget of {per_day} for today, and the call costs more than is left (rule \
         in line {line}); the next day begins at midnight UTC"
    );
    let left = per_day.saturating_sub(spent);
    let window = Duration::from_secs(DAY.unsigned_abs());
    let quota = Quota { name: "budget", count: per_day, window, left, more_after: wait };
    GatewayError::new(Code::BudgetExhausted, message).over_limit(wait, Some(quota))
}

/// Rounded up to whole milliseconds, so that a client that waits this long is not refused again.
fn milliseconds(wait: Duration) -> Duration {
    Duration::from_millis(u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}
