//! Processes of single sessions (`isolation = "session"`): how many there are, and whose makes way.
//!
//! At most `max_session_processes` exist of a server. When another is needed, the newest of the principal that has the most
//! makes way if that principal is above its fair share and still has no fewer than the newcomer then: an idle one first. Its
//! session gets a new process with its next call. Otherwise an idle process of the newcomer itself makes way, the oldest
//! first. If none is idle, the call is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bridgehead_call::{Standing, makes_way};
use bridgehead_config::Isolation;
use tracing::info;

use crate::server::{Unavailable, Upstream};
use crate::sharing::key::Scope;

impl Upstream {
    /// The session's own process of this server, by the session's number, for a principal; started if it does not exist.
    pub fn own(&self, session: u64, principal: &Arc<str>) -> Result<Self, Unavailable> {
        if self.config().isolation == Isolation::Session {
            self.make_way_for(principal)?;
        }
        let own = self.beside(Scope::Session(session), Arc::clone(self.shared_config()))?;
        own.belongs_to(principal);
        Ok(own)
    }

    fn make_way_for(&self, principal: &Arc<str>) -> Result<(), Unavailable> {
        let most = self.config().max_session_processes;
        let mut sessions = self.owned();
        sessions.retain(|own| own.is_session() && !own.is_released());
        if sessions.len() < most {
            return Ok(());
        }
        let held = |whose: Option<&Arc<str>>| sessions.iter().filter(|own| own.whose() == whose).count();
        let mut whose: Vec<_> = sessions.iter().filter_map(Self::whose).chain([principal]).collect();
        whose.sort_unstable();
        whose.dedup();
        let own = held(Some(principal));
        let others = sessions.iter().enumerate().filter(|(_, other)| other.whose() != Some(principal));
        let candidates = others.filter_map(|(at, other)| {
            let standing = Standing { held: held(other.whose()), principals: whose.len() };
            standing.can_spare(own).then(|| (standing, (other.in_flight() == 0, at), other))
        });
        let oldest_idle =
            || sessions.iter().find(|other| other.whose() == Some(principal) && other.in_flight() == 0);
        let Some(leaves) = makes_way(most, candidates).or_else(oldest_idle) else {
            return Err(Unavailable::AllOwned(most));
        };
        info!(server = %self.name(), whose = leaves.whose().map(|whose| &**whose), "the process of a session makes way for another");
        leaves.evict();
        Ok(())
    }

    /// Ends it for another principal. Its running calls may be tried again.
    fn evict(&self) {
        self.evicted().store(true, Ordering::Release);
        self.release();
    }

    /// Whether it was ended because another principal waited.
    pub fn made_way(&self) -> bool {
        self.evicted().load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_config::ServerConfig;

    use super::*;
    use crate::testing;

    fn upstream(most: usize) -> Upstream {
        let server = ServerConfig {
            isolation: Isolation::Session,
            max_session_processes: most,
            ..testing::unusable()
        };
        Upstream::start(server, testing::surroundings())
    }

    /// WIRE-5: one principal's sessions do not take all processes: the newest of whoever has the most makes way for a principal
    /// that has fewer, and never for one that has as many.
    #[tokio::test(start_paused = true)]
    async fn the_greediest_makes_way() {
        let upstream = upstream(4);
        let [eve, ada, bob] = ["eve", "ada", "bob"].map(Arc::<str>::from);
        let held: Vec<_> = (0..4).map(|session| upstream.own(session, &eve).unwrap()).collect();
        let released = || held.iter().map(Upstream::is_released).collect::<Vec<_>>();
        let _first = upstream.own(10, &ada).unwrap();
        assert_eq!(released(), [false, false, false, true]);
        assert!(held[3].made_way() && !held[0].made_way());
        let second = upstream.own(11, &ada).unwrap();
        assert_eq!(released(), [false, false, true, true]);
        let third = upstream.own(12, &bob).unwrap();
        assert_eq!((second.is_released(), released()), (true, vec![false, false, true, true]));
        assert!(!third.is_released());
        let fourth = upstream.own(13, &bob).unwrap();
        assert!(
            third.is_released() && !fourth.is_released(),
            "nobody has two more, so its own idle one goes"
        );
    }

    /// WIRE-5: with one principal, its oldest idle process makes way, and there are never more than the limit.
    #[tokio::test(start_paused = true)]
    async fn one_principal_has_no_more_than_the_limit() {
        let upstream = upstream(3);
        let eve = Arc::<str>::from("eve");
        let held: Vec<_> = (0..60).map(|session| upstream.own(session, &eve).unwrap()).collect();
        let live: Vec<usize> = (0..60).filter(|at| !held[*at].is_released()).collect();
        assert_eq!(live, [57, 58, 59]);
    }
}
