//! How much a principal may do: asked with each request, and told when the request ends.
//!
//! What must stay true: an allowance is settled exactly once, when it is dropped, however its request ends. What a request was
//! charged is refunded only if no server got it, and taken again for each further sending.

use std::fmt;
use std::sync::Arc;

use bridgehead_wire::Method;

use super::Principal;
use crate::error::GatewayError;

/// A request that a limiter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limited<'a> {
    /// The method of the request.
    pub method: &'a Method,
    /// The server that it goes to; `None` for the gateway's own.
    pub server: Option<&'a str>,
    /// The tool, prompt or resource, by the name that the client used.
    pub name: &'a str,
    /// The tool or prompt, by the name that its server knows; `None` for what does not exist, and for anything else.
    pub own_name: Option<&'a str>,
}

impl<'a> Limited<'a> {
    /// A request about something without a name of its own at a server.
    pub const fn new(method: &'a Method, server: Option<&'a str>, name: &'a str) -> Self {
        Self { method, server, name, own_name: None }
    }

    /// Sets the name that the server knows.
    #[must_use]
    pub const fn called(self, own_name: Option<&'a str>) -> Self {
        Self { own_name, ..self }
    }
}

/// Decides how much a principal may do, never what it may use. Must not block: it is called with each
/// request.
pub trait Limiter: Send + Sync + 'static {
    /// Counts a request, or refuses it.
    ///
    /// # Errors
    /// The failure that the client gets. It should say when the client may try again.
    fn admit(&self, principal: &Principal, request: Limited<'_>) -> Result<Allowance, GatewayError>;
}

/// What a call took from budgets. The record keeps it with the call's enter, so that spending can be recounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// How much, from each of the budgets.
    pub cost: u64,
    /// The ids of the budgets, separated by spaces.
    pub budgets: Arc<str>,
    /// The day whose budgets they are, as days since 1970-01-01 in UTC.
    pub day: i64,
}

/// Gets back what requests took.
pub trait Account: Send + Sync + 'static {
    /// A request has ended. `marks` is what its allowance was made with. `correction` changes what it was charged.
    fn settle(&self, marks: Option<&[u64]>, correction: Option<Correction<'_>>);
}

/// A change of what was taken from budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Correction<'a> {
    /// What was taken.
    pub charge: &'a Charge,
    /// How often it is taken once more: −1 gives it back, because no server got the request; 2 means that the request was
    /// sent three times.
    pub times: i64,
}

/// What a limiter granted one request. Held while the request runs, and given back when dropped.
#[derive(Default)]
#[must_use]
pub struct Allowance(Granted);

#[derive(Default)]
enum Granted {
    #[default]
    Nothing,
    Held {
        _value: Box<dyn Send>,
    },
    Taken {
        account: Arc<dyn Account>,
        marks: Option<Arc<[u64]>>,
        charge: Option<Charge>,
        /// How often the request may have run.
        runs: u32,
    },
}

impl Allowance {
    /// An allowance with nothing to give back.
    pub const fn free() -> Self {
        Self(Granted::Nothing)
    }

    /// An allowance that keeps a value, such as a permit, until the request has ended.
    pub fn holding(value: impl Send + 'static) -> Self {
        Self(Granted::Held { _value: Box::new(value) })
    }

    /// An allowance that is settled with an account. Making it allocates nothing.
    pub fn taken(account: Arc<dyn Account>, marks: Option<Arc<[u64]>>, charge: Option<Charge>) -> Self {
        Self(Granted::Taken { account, marks, charge, runs: 0 })
    }

    /// What the request was charged.
    pub const fn charge(&self) -> Option<&Charge> {
        match &self.0 {
            Granted::Taken { charge, .. } => charge.as_ref(),
            Granted::Nothing | Granted::Held { .. } => None,
        }
    }

    /// Notes whether the request may have run. It has not, until this says so.
    pub const fn runs(&mut self, may_have: bool) {
        if let Granted::Taken { runs, .. } = &mut self.0 {
            *runs = may_have as u32;
        }
    }

    /// Notes that the request was sent so many times more.
    pub const fn runs_again(&mut self, times: u32) {
        if let Granted::Taken { runs, .. } = &mut self.0 {
            *runs = runs.saturating_add(times);
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        if let Granted::Taken { account, marks, charge, runs } = &self.0 {
            let times = i64::from(*runs) - 1;
            let correction = charge.as_ref().filter(|_| times != 0);
            account.settle(marks.as_deref(), correction.map(|charge| Correction { charge, times }));
        }
    }
}

impl fmt::Debug for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance").field("charge", &self.charge()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Settled(Mutex<Vec<(Vec<u64>, Option<i64>)>>);

    impl Account for Settled {
        fn settle(&self, marks: Option<&[u64]>, correction: Option<Correction<'_>>) {
            let taken = correction.map(|correction| correction.charge.cost.cast_signed() * correction.times);
            self.0.lock().push((marks.unwrap().to_vec(), taken));
        }
    }

    /// ACC-5: an allowance is settled once; it refunds only a request that did not run, and takes the charge again for each
    /// further sending.
    #[test]
    fn an_allowance_is_settled_when_it_is_dropped() {
        #[track_caller]
        fn check(runs: &[bool], again: u32, taken: Option<i64>) {
            let account = Arc::new(Settled::default());
            let charge = Charge { cost: 3, budgets: "a".into(), day: 1 };
            let mut allowance =
                Allowance::taken(Arc::clone(&account) as _, Some(Arc::from([5])), Some(charge));
            runs.iter().for_each(|runs| allowance.runs(*runs));
            allowance.runs_again(again);
            assert_eq!(allowance.charge().map(|charge| charge.cost), Some(3));
            assert_eq!(*account.0.lock(), []);
            drop(allowance);
            assert_eq!(*account.0.lock(), [(vec![5], taken)]);
        }
        check(&[], 0, Some(-3));
        check(&[true], 0, None);
        check(&[true, false], 0, Some(-3));
        check(&[true], 2, Some(6));
        let (kept, other) = (Arc::new(()), Allowance::free());
        let mut holding = Allowance::holding(Arc::clone(&kept));
        holding.runs(true);
        assert_eq!((Arc::strong_count(&kept), holding.charge(), other.charge()), (2, None, None));
        drop(holding);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
