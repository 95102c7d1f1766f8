//! The sessions of modern clients: one for each principal, so that no principal ever uses what is kept for another.
//!
//! A session that was not used for the idle time is dropped, and with it its own server processes.

use std::collections::HashMap;
use std::time::Duration;

use bridgehead_gateway::{Principal, Session};
use parking_lot::Mutex;

/// The sessions of all principals that have sent a request recently.
#[derive(Debug)]
pub(crate) struct Stateless {
    known: Mutex<HashMap<Principal, Known>>,
    /// After how many sweeps in a row without a request a session is dropped.
    patience: u32,
}

#[derive(Debug)]
struct Known {
    session: Session,
    /// How many sweeps have found it unused since its last request.
    unused: u32,
}

impl Stateless {
    /// Sessions that are dropped after `idle`, if [`Self::sweep`] is called every `sweep_interval`.
    pub(crate) fn new(idle: Duration, sweep_interval: Duration) -> Self {
        let sweeps = idle.as_millis().div_ceil(sweep_interval.as_millis().max(1));
        Self { known: Mutex::default(), patience: u32::try_from(sweeps).unwrap_or(u32::MAX) }
    }

    /// The session of a principal.
    pub(crate) fn of(&self, principal: &Principal) -> Session {
        let mut known = self.known.lock();
        if let Some(known) = known.get_mut(principal) {
            known.unused = 0;
            return known.session.clone();
        }
        let session = Session::new();
        known.insert(principal.clone(), Known { session: session.clone(), unused: 0 });
        session
    }

    /// Drops the sessions that have been idle for too long. A request in progress counts as use.
    pub(crate) fn sweep(&self) {
        let patience = self.patience;
        self.known.lock().retain(|_, known| {
            known.unused = if known.session.is_in_use() { 0 } else { known.unused + 1 };
            known.unused <= patience
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(15);

    /// GATE-3: each principal has its own session, and the same one from request to request.
    #[test]
    fn a_session_for_each_principal() {
        let stateless = Stateless::new(EVERY * 4, EVERY);
        let (ada, bob) = (Principal::named("ada"), Principal::named("bob"));
        assert_eq!(stateless.of(&ada), stateless.of(&ada));
        assert_ne!(stateless.of(&ada), stateless.of(&bob));
    }

    /// GATE-3: an unused session is dropped after the idle time, one with a request in progress stays.
    #[test]
    fn an_idle_session_goes() {
        let stateless = Stateless::new(EVERY * 4, EVERY);
        let (idle, busy, back) =
            (Principal::named("idle"), Principal::named("busy"), Principal::named("back"));
        drop(stateless.of(&idle));
        let held = stateless.of(&busy);
        drop(stateless.of(&back));
        for _ in 0..4 {
            stateless.sweep();
        }
        assert_eq!(stateless.known.lock().len(), 3, "not before the time is over");
        drop(stateless.of(&back));
        stateless.sweep();
        let known = stateless.known.lock();
        assert!(!known.contains_key(&idle) && known.contains_key(&back));
        assert_eq!(known[&busy].session, held);
    }
}
