//! Counts from the record what was spent on a day: at the start, when no other gateway of the configuration runs.
//!
//! The enter of a call says what it costs and which budgets count it. Its exit says if it provably did not run. A call whose
//! end was not recorded may have run, and so it counts. A segment that cannot be read is left out, as everywhere.

use std::borrow::Cow;
use std::collections::HashMap;

use bridgehead_audit::{Archive, Record};
use jiff::Timestamp;
use memchr::memmem;
use serde::Deserialize;
use tracing::warn;

use super::ledger::{BudgetKey, DAY, Spent, key, written};

/// What a row says about spending.
#[derive(Deserialize)]
struct SpentRow<'a> {
    seq: u64,
    #[serde(default)]
    enter: Option<u64>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(default, borrow)]
    principal: Option<Cow<'a, str>>,
    #[serde(default)]
    cost: Option<u64>,
    #[serde(default, borrow)]
    budgets: Option<Cow<'a, str>>,
    #[serde(default)]
    refunded: bool,
}

/// What was spent on a day, according to all segments of a record.
pub(super) fn recount(archive: &Archive, day: i64) -> Spent {
    let (mut spent, mut charged) = (Spent::new(), HashMap::new());
    let segments = archive.segments().unwrap_or_else(|error| {
        warn!(%error, "what was spent today cannot be recounted: the record cannot be read");
        Vec::new()
    });
    let since = Timestamp::from_second(day.saturating_mul(DAY)).unwrap_or_default();
    let today = written(day);
    for segment in segments {
        let read = segment.rows_since(since, |row| {
            count(&mut spent, &mut charged, (segment.instance(), &today), row);
            Ok(())
        });
        if let Err(error) = read {
            warn!(segment = %segment.place(), %error, "what was spent today is recounted without a segment that cannot be read");
        }
    }
    spent
}

/// The calls that were charged and have not ended: by instance and row.
type Charged = HashMap<(String, u64), (Vec<BudgetKey>, i64)>;

fn count(spent: &mut Spent, charged: &mut Charged, (instance, today): (&str, &str), row: &Record) {
    // Hardly any row is about spending. A member's name cannot occur inside of a string: its quotes would be escaped.
    let says = |member: &str| memmem::find(&row.text, member.as_bytes()).is_some();
    if !(says(r#""cost":"#) || says(r#""refunded":"#)) {
        return;
    }
    let Ok(row) = serde_json::from_slice::<SpentRow<'_>>(&row.text) else { return };
    let mut add = |keys: &[BudgetKey], amount: i64| {
        keys.iter().for_each(|key| *spent.entry(*key).or_default() += amount);
    };
    if let (Some(cost), Some(budgets), Some(principal)) = (row.cost, &row.budgets, &row.principal)
        && row.time.starts_with(today)
    {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let keys: Vec<_> = budgets.split(' ').map(|budget| key(budget, principal)).collect();
        add(&keys, cost);
        charged.insert((instance.to_owned(), row.seq), (keys, cost));
    }
    let refunded = row.enter.filter(|_| row.refunded);
    if let Some((keys, cost)) = refunded.and_then(|enter| charged.remove(&(instance.to_owned(), enter))) {
        add(&keys, -cost);
    }
}
