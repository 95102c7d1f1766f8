//! Counts from the record what was spent on a day: at the start, when no other gateway of the configuration runs.
//!
//! The enter of a call says what it costs and which budgets count it. Its exit says if no server got it, and what it cost beyond
//! that if it was sent again. A call whose
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
    // An exit with a cost is of a call that was sent again.
    if let (Some(enter), Some(more)) = (row.enter, row.cost)
        && let Some((keys, _)) = charged.get(&(instance.to_owned(), enter))
    {
        add(keys, i64::try_from(more).unwrap_or(i64::MAX));
    }
    let refunded = row.enter.filter(|_| row.refunded);
    if let Some((keys, cost)) = refunded.and_then(|enter| charged.remove(&(instance.to_owned(), enter))) {
        add(&keys, -cost);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use bridgehead_audit::{
        About, AuditSink, Call, Clock, CorrelationId, Enter, Era, Exit, Outcome, StoreOptions, StoreSink,
        Ticket,
    };
    use bridgehead_testkit::FakeClock;

    use super::super::ledger::day_of;
    use super::*;

    const TODAY: &str = "2026-03-02T12:00:00Z";

    struct Recorded {
        sink: StoreSink,
        clock: FakeClock,
    }

    impl Recorded {
        fn open(folder: &Path, at: &str) -> Self {
            let clock = FakeClock::at(at.parse().unwrap());
            let mut options = StoreOptions::new(folder);
            options.clock = Arc::new(clock.clone());
            Self { sink: StoreSink::open(options).unwrap(), clock }
        }

        async fn enter(
            &self,
            principal: &str,
            cost: Option<u64>,
            budgets: Option<&str>,
        ) -> (Enter, Option<Ticket>) {
            let mut about = About::default();
            (about.cost, about.budgets) = (cost, budgets.map(Arc::from));
            let call = Call {
                tool: "say".into(),
                server: Some("m".into()),
                principal: principal.into(),
                correlation: CorrelationId::mint(),
                era: Era::Modern,
                transport: "http",
                about,
            };
            // What a client says is not what a call costs.
            let said = br#"{"cost":40,"refunded":true}"#;
            let enter = Enter::new(call, bytes::Bytes::from_static(said), true, self.clock.now());
            let ticket = self.sink.enter(&enter).await.unwrap();
            (enter, ticket)
        }

        fn exit(&self, entered: (Enter, Option<Ticket>), refunded: bool) {
            self.end(entered, |exit| if refunded { exit.refunding() } else { exit });
        }

        fn end(&self, (enter, ticket): (Enter, Option<Ticket>), with: impl FnOnce(Exit) -> Exit) {
            let exit = Exit::new(enter.call(), enter.moment(), self.clock.now(), Outcome::Cancelled);
            self.sink.exit(ticket, with(exit)).unwrap();
        }

        async fn call(&self, principal: &str, cost: u64, budgets: &str) {
            let entered = self.enter(principal, Some(cost), Some(budgets)).await;
            self.exit(entered, false);
        }
    }

    #[track_caller]
    fn check(folder: &Path, expected: &[(&str, &str, i64)]) {
        let spent = recount(&Archive::in_folder(folder), day_of(TODAY.parse().unwrap()));
        for (budget, principal, amount) in expected {
            assert_eq!(spent.get(&key(budget, principal)), Some(amount), "{budget} {principal}");
        }
        assert_eq!(spent.len(), expected.len());
    }

    /// ACC-5 (case 28): the calls of the day count with what they cost, in all segments of all instances. What was given
    /// back does not count, and a call without an end does.
    #[tokio::test]
    async fn what_was_spent_today() {
        let folder = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(24 * 60 * 60);
        let yesterday = Recorded::open(folder.path(), "2026-03-01T23:59:59Z");
        yesterday.call("ada", 3, "a").await;
        let over_midnight = yesterday.enter("ada", Some(3), Some("a")).await;
        yesterday.clock.advance(Duration::from_secs(1));
        // It was given back today, but it had been charged yesterday.
        yesterday.exit(over_midnight, true);
        yesterday.call("ada", 1, "a").await;
        let other = Recorded::open(folder.path(), TODAY);
        other.call("ada", 2, "a b").await;
        other.call("bob", 2, "a").await;
        other.exit(other.enter("ada", None, None).await, false);
        // It was sent three times.
        let again = other.enter("eve", Some(2), Some("a b")).await;
        other.end(again, |exit| exit.charging(4));
        let refunded = other.enter("ada", Some(50), Some("a b")).await;
        other.exit(refunded, true);
        let _open = other.enter("bob", Some(7), Some("a")).await;
        let tomorrow = Recorded::open(folder.path(), TODAY);
        tomorrow.clock.advance(day);
        tomorrow.call("ada", 9, "a").await;
        let expected = [("a", "ada", 3), ("b", "ada", 2), ("a", "bob", 9), ("a", "eve", 6), ("b", "eve", 6)];
        check(folder.path(), &expected);
        [yesterday, other, tomorrow].into_iter().for_each(|recorded| recorded.sink.close());
        check(folder.path(), &expected);
    }

    /// ACC-5 (case 28): what was given back belongs to a row of the same gateway: rows of two gateways have the same numbers.
    #[tokio::test]
    async fn a_refund_is_of_its_own_gateway() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Recorded::open(folder.path(), TODAY), Recorded::open(folder.path(), TODAY));
        let at = |recorded: &Recorded, time: &str| recorded.clock.set_wall(time.parse().unwrap());
        let yesterday = "2026-03-01T23:59:59Z";
        // The first row of each was charged on the day on which the second row of the other one was.
        let _open = one.enter("ada", Some(5), Some("a")).await;
        at(&one, yesterday);
        let ones = one.enter("ada", Some(40), Some("a")).await;
        at(&other, yesterday);
        let others = other.enter("ada", Some(40), Some("a")).await;
        at(&other, TODAY);
        let _open_too = other.enter("ada", Some(3), Some("a")).await;
        at(&one, TODAY);
        one.exit(ones, true);
        other.exit(others, true);
        // The files are read while their gateways run, and a row may still be on its way into them.
        [one, other].into_iter().for_each(|recorded| recorded.sink.close());
        check(folder.path(), &[("a", "ada", 8)]);
    }

    /// ACC-5: a segment that cannot be read is left out; a record that does not exist says nothing.
    #[tokio::test]
    async fn a_damaged_segment_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), &[]);
        check(&folder.path().join("none"), &[]);
        let recorded = Recorded::open(folder.path(), TODAY);
        recorded.call("ada", 2, "a").await;
        recorded.sink.close();
        std::fs::write(folder.path().join("0.0001.sqlite"), "no database").unwrap();
        check(folder.path(), &[("a", "ada", 2)]);
    }
}
