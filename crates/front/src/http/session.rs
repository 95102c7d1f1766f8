//! Legacy sessions: who opened them, what they negotiated, and when they end.
//!
//! A session belongs to one principal; for every other principal it does not exist. It expires when it was not used for
//! the idle time; a call in flight and an open stream count as use. The number of sessions is capped. At the cap a new
//! session replaces an expired one. Else it replaces the least recently used one of the principal that has the most, if that
//! is more than the newcomer has: nobody locks others out by holding sessions. Else, among the newcomer's own and those of its
//! equals, it replaces the oldest that never sent a request, else the one that has been idle the longest, if that is at least
//! [`LONG_IDLE`]. Else, if a principal is above its fair share, the newest of its sessions that only have their stream open makes
//! way, as long as that principal keeps no fewer than the newcomer has then. Otherwise the new session is refused. A session with
//! a running call never makes way.
//!
//! A session ends when the credential that opened it is revoked: it is unknown from then on, and its stream closes, but its
//! running calls finish. It survives the expiry of a token, because its client comes back with the next one. What that one
//! allows counts from then on: a session gives no rights.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{Standing, makes_way};
use bridgehead_gateway::{OpenQuestions, Principal, Session as Identity};
use bridgehead_wire::held::{Account, Budget, Lenient, Reservation};
use bridgehead_wire::{Abilities, Revision};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use super::replay::{Kept, Streams};
use crate::inflight::InFlight;

/// How long a session that sent a request must be idle before it may make way for a new one. Its client can open another.
const LONG_IDLE: Duration = Duration::from_secs(60);

/// What a session costs that nothing is done with.
const SESSION: usize = 4 * 1024;

/// All sessions of an endpoint.
#[derive(Debug)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<Uuid, Arc<Session>>>,
    cap: usize,
    idle: Duration,
    budget: Arc<Budget>,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: Uuid,
    /// Who opened it. Each request is judged by the principal that it shows itself.
    pub(crate) principal: Principal,
    pub(crate) revision: Revision,
    /// What its client can be asked during a call.
    pub(crate) abilities: Abilities,
    /// Where the client's answers go.
    pub(crate) desk: OpenQuestions,
    /// The gateway's own session for it.
    pub(crate) identity: Identity,
    pub(crate) in_flight: InFlight,
    /// The events of its streams, kept for clients that come back.
    pub(crate) streams: Streams,
    /// Cancelled when the session is over.
    pub(crate) ended: CancellationToken,
    /// When it was opened.
    born: Instant,
    /// Its memory, on the account of its principal.
    _held: Reservation,
    usage: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    leases: usize,
    stream: bool,
    /// Whether it ever sent a request.
    requested: bool,
    last: Instant,
    /// The principal as it was last authenticated.
    shown: Principal,
}

impl Sessions {
    pub(crate) fn new(cap: usize, idle: Duration, budget: &Arc<Budget>) -> Self {
        Self { table: Mutex::default(), cap, idle, budget: Arc::clone(budget) }
    }

    /// Opens a session, unless there are too many.
    pub(crate) fn open(
        &self,
        principal: Principal,
        revision: Revision,
        abilities: Abilities,
    ) -> Option<Arc<Session>> {
        // Before the table is locked: memory that is short is looked for in it.
        let held = self.budget.of(principal.id()).reserve(SESSION).ok()?;
        let mut table = self.table.lock();
        if table.len() >= self.cap {
            expire(&mut table, self.idle);
        }
        if table.len() >= self.cap && !make_way(&mut table, self.cap, &principal) {
            return None;
        }
        let (shown, account) = (principal.clone(), Account::new(&self.budget));
        account.belongs_to(principal.id());
        let session = Arc::new(Session {
            id: Uuid::new_v4(),
            principal,
            revision,
            abilities,
            desk: OpenQuestions::default(),
            identity: Identity::new(),
            in_flight: InFlight::default(),
            streams: Streams::new(account),
            ended: CancellationToken::new(),
            born: Instant::now(),
            _held: held,
            usage: Mutex::new(Usage {
                leases: 0,
                stream: false,
                requested: false,
                last: Instant::now(),
                shown,
            }),
        });
        table.insert(session.id, session.clone());
        Some(session)
    }

    /// Finds the session `id` of `principal` and keeps it from expiring while the lease lives.
    pub(crate) fn lease(&self, id: &str, principal: &Principal) -> Option<Lease> {
        let id = Uuid::try_parse(id).ok()?;
        let table = self.table.lock();
        let session = table.get(&id).filter(|session| {
            session.principal == *principal && !session.principal.validity().is_revoked()
        })?;
        // Still under the table's lock: a sweep cannot come in between.
        session.usage.lock().leases += 1;
        Some(Lease(session.clone()))
    }

    /// Ends a session as soon as the credential that opened it is revoked.
    pub(crate) fn watch(self: &Arc<Self>, session: &Session) {
        let validity = session.principal.validity().until_revoked();
        if !validity.can_end() {
            return;
        }
        let (sessions, id, ended) = (Arc::downgrade(self), session.id, session.ended.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => return,
                () = validity.ended() => {}
            }
            let session = sessions.upgrade().and_then(|sessions| sessions.table.lock().remove(&id));
            if let Some(session) = session {
                debug!(session = session.label(), "session ended: its credential was revoked");
                // Not `end`: its running calls finish. What is kept for it goes with the last of them.
                session.ended.cancel();
            }
        });
    }

    /// Ends a session: its calls are cancelled, its stream closes, its id is unknown from now on.
    pub(crate) fn end(&self, session: &Session) {
        self.table.lock().remove(&session.id);
        session.end();
    }

    /// Ends the sessions that have been idle for too long.
    pub(crate) fn sweep(&self) {
        expire(&mut self.table.lock(), self.idle);
    }

    /// How often to sweep.
    pub(crate) fn sweep_interval(&self) -> Duration {
        (self.idle / 4).clamp(Duration::from_millis(100), Duration::from_secs(30))
    }
}

fn expire(table: &mut HashMap<Uuid, Arc<Session>>, idle: Duration) {
    let now = Instant::now();
    table.retain(|_, session| {
        let keep = {
            let usage = session.usage.lock();
            usage.is_busy() || now.duration_since(usage.last) < idle
        };
        if !keep {
            debug!(session = session.label(), "session expired");
            session.end();
        }
        keep
    });
}

/// When memory is short, sessions drop the logs of their streams: first those that were read, then answers that no client
/// has fetched. Each time the sessions of the principal whose logs hold the most come first, the least recently used before
/// others.
impl Lenient for Sessions {
    fn let_go(&self, bytes: usize) {
        let mut sessions: Vec<_> = self
            .table
            .lock()
            .values()
            .map(|session| (session.usage.lock().last, Arc::clone(session)))
            .collect();
        let mut held: HashMap<Arc<str>, usize> = HashMap::new();
        for (_, session) in &sessions {
            *held.entry(session.principal.shared()).or_default() += session.streams.bytes();
        }
        let of = |session: &Session| held.get(session.principal.as_str()).copied().unwrap_or_default();
        sessions.sort_by_key(|(last, session)| (Reverse(of(session)), *last));
        let mut freed = 0;
        for kept in [Kept::Read, Kept::Unread] {
            for (_, session) in &sessions {
                if freed >= bytes {
                    return;
                }
                freed += session.streams.let_go(kept, bytes - freed);
            }
        }
    }
}

/// Ends a session for a new one of `newcomer`; returns whether there was one to end. Nobody loses one to a newcomer that has
/// more than they have.
fn make_way(table: &mut HashMap<Uuid, Arc<Session>>, cap: usize, newcomer: &Principal) -> bool {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for session in table.values() {
        *counts.entry(session.principal.as_str()).or_default() += 1;
    }
    let count = |principal: &Principal| counts.get(principal.as_str()).copied().unwrap_or_default();
    let (now, own) = (Instant::now(), count(newcomer));
    let candidate = |session: &Arc<Session>| {
        let (usage, held) = (session.usage.lock(), count(&session.principal));
        let abandoned = !usage.requested || now.duration_since(usage.last) >= LONG_IDLE;
        // Whoever has more than the newcomer loses one of any age, the one with the most first.
        let order = match held.cmp(&own) {
            Ordering::Greater => (Reverse(held), false, usage.last),
            Ordering::Equal if abandoned => (Reverse(held), usage.requested, usage.last),
            _ => return None,
        };
        (!usage.is_busy()).then_some((order, session.id))
    };
    let unused = table.values().filter_map(candidate).min().map(|(_, id)| id);
    let principals = counts.len() + usize::from(own == 0);
    let standing = table.values().filter_map(|session| {
        let standing = Standing { held: count(&session.principal), principals };
        let (usage, other) = (session.usage.lock(), session.principal != *newcomer);
        let stands = usage.stream && usage.leases == 0;
        (other && stands && standing.can_spare(own)).then_some((standing, session.born, session.id))
    });
    let Some(id) = unused.or_else(|| makes_way(cap, standing)) else { return false };
    let Some(session) = table.remove(&id) else { return false };
    debug!(session = session.label(), principal = %session.principal, "a session makes way for another");
    session.end();
    true
}

impl Usage {
    /// Whether something of it runs or is open.
    const fn is_busy(&self) -> bool {
        self.leases > 0 || self.stream
    }
}

impl Session {
    /// Sets the mark before it cancels the calls: a call that enters after the cancellation sees the mark. Ends the
    /// session's own server processes too.
    fn end(&self) {
        self.ended.cancel();
        self.in_flight.cancel_all();
        self.identity.end();
    }

    /// Enough of the id to tell sessions apart in a log, too little to use one.
    pub(crate) fn label(&self) -> String {
        self.id.to_string().chars().take(8).collect()
    }

    /// Notes the credential that a request shows. If it is another one than before, that is `told` before the next request
    /// notes its own.
    pub(crate) fn shows(&self, principal: &Principal, told: impl FnOnce()) {
        let mut usage = self.usage.lock();
        if !usage.shown.shares_credential(principal) {
            usage.shown = principal.clone();
            told();
        }
    }

    /// Takes the session's one stream, if it is free.
    pub(crate) fn open_stream(self: &Arc<Self>) -> Option<StreamLease> {
        let mut usage = self.usage.lock();
        if usage.stream {
            return None;
        }
        usage.stream = true;
        Some(StreamLease(self.clone()))
    }
}

impl Drop for Session {
    /// Ends the task that watches its credential.
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// Keeps a session in use; using it resets its idle time.
#[derive(Debug)]
pub(crate) struct Lease(pub(crate) Arc<Session>);

impl Lease {
    /// Notes that the session sent a request, so that it does not count as never used.
    pub(crate) fn requested(&self) {
        self.0.usage.lock().requested = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        usage.leases -= 1;
        usage.last = Instant::now();
    }
}

/// The session's stream while it is open.
#[derive(Debug)]
pub(crate) struct StreamLease(pub(crate) Arc<Session>);

impl Drop for StreamLease {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        usage.stream = false;
        usage.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_gateway::Validity;
    use tokio::time::advance;

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    fn sessions(cap: usize) -> Sessions {
        Sessions::new(cap, IDLE, Budget::process())
    }

    fn open(sessions: &Sessions) -> Option<Arc<Session>> {
        sessions.open(Principal::local(), Revision::V2025_06_18, Abilities::NONE)
    }

    fn known(sessions: &Sessions, session: &Session) -> bool {
        sessions.lease(&session.id.to_string(), &Principal::local()).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_belongs_to_its_principal() {
        let sessions = sessions(4);
        let session = open(&sessions).unwrap();
        let id = session.id.to_string();
        assert!(sessions.lease(&id, &Principal::local()).is_some());
        assert!(sessions.lease(&id, &Principal::named("token")).is_none());
        assert!(sessions.lease("not-an-id", &Principal::local()).is_none());
        assert_eq!(session.id.get_version_num(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_sessions_expire_and_used_ones_do_not() {
        let sessions = sessions(8);
        let [idle, used, calling, streaming] = std::array::from_fn(|_| open(&sessions).unwrap());
        let call = sessions.lease(&calling.id.to_string(), &Principal::local()).unwrap();
        let stream = streaming.open_stream().unwrap();
        advance(IDLE / 2).await;
        assert!(known(&sessions, &used));
        advance(IDLE / 2).await;
        sessions.sweep();
        assert!(idle.ended.is_cancelled() && !known(&sessions, &idle));
        assert!(known(&sessions, &used));
        advance(IDLE * 100).await;
        sessions.sweep();
        assert!(used.ended.is_cancelled());
        assert!(!calling.ended.is_cancelled(), "a call in flight keeps its session");
        assert!(!streaming.ended.is_cancelled(), "an open stream keeps its session");
        drop((call, stream));
        advance(IDLE - Duration::from_secs(1)).await;
        sessions.sweep();
        assert!(!calling.ended.is_cancelled(), "the idle time begins when the call ends");
        advance(Duration::from_secs(1)).await;
        sessions.sweep();
        assert!(calling.ended.is_cancelled() && streaming.ended.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn the_cap_holds_and_expired_sessions_make_room() {
        let sessions = sessions(2);
        let first = used(&sessions);
        let second = used(&sessions);
        assert!(open(&sessions).is_none());
        sessions.end(&second);
        used(&sessions);
        assert!(open(&sessions).is_none());
        advance(IDLE).await;
        assert!(open(&sessions).is_some());
        assert!(first.ended.is_cancelled());
    }

    fn used(sessions: &Sessions) -> Arc<Session> {
        let session = open(sessions).unwrap();
        sessions.lease(&session.id.to_string(), &Principal::local()).unwrap().requested();
        session
    }

    /// BOUND-4: sessions that never sent a request make way, the oldest first; then those that have been idle for long.
    /// Sessions in use never do.
    #[tokio::test(start_paused = true)]
    async fn unused_sessions_lock_nobody_out() {
        let sessions = Sessions::new(4, LONG_IDLE * 10, Budget::process());
        let [idle, calling, streaming] = std::array::from_fn(|_| used(&sessions));
        let call = sessions.lease(&calling.id.to_string(), &Principal::local()).unwrap();
        let stream = streaming.open_stream().unwrap();
        let mut last = open(&sessions).unwrap();
        for _ in 0..1000 {
            advance(Duration::from_millis(1)).await;
            let next = open(&sessions).unwrap();
            assert!(last.ended.is_cancelled() && !known(&sessions, &last));
            last = next;
        }
        sessions.lease(&last.id.to_string(), &Principal::local()).unwrap().requested();
        assert!(open(&sessions).is_none(), "all were used lately");
        advance(LONG_IDLE - Duration::from_millis(500)).await;
        let newcomer = used(&sessions);
        assert!(idle.ended.is_cancelled() && !last.ended.is_cancelled(), "idle for longest");
        assert!(open(&sessions).is_none());
        advance(LONG_IDLE * 5).await;
        used(&sessions);
        used(&sessions);
        assert!(last.ended.is_cancelled() && newcomer.ended.is_cancelled());
        assert!(open(&sessions).is_none());
        assert!(!calling.ended.is_cancelled() && !streaming.ended.is_cancelled());
        drop((call, stream));
    }

    /// BOUND-4, ACC-5: a principal that holds most sessions, all of them just used, locks nobody out: its least recently used
    /// one makes way, but none that is in use. Equals are refused as before.
    #[tokio::test(start_paused = true)]
    async fn a_principal_with_many_sessions_locks_nobody_out() {
        let sessions = Sessions::new(6, LONG_IDLE * 10, Budget::process());
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(used_by(&sessions, "eve").await.unwrap());
        }
        assert!(used_by(&sessions, "eve").await.is_none(), "nobody has more, and all were used lately");
        let call = sessions.lease(&held[0].id.to_string(), &held[0].principal).unwrap();
        let stream = held[1].open_stream().unwrap();
        let ended = || -> Vec<usize> { (0..6).filter(|at| held[*at].ended.is_cancelled()).collect() };
        let first = used_by(&sessions, "ada").await.unwrap();
        assert_eq!(ended(), [2]);
        for (name, expected) in [("bob", &[2, 3][..]), ("ada", &[2, 3, 4]), ("bob", &[2, 3, 4, 5])] {
            used_by(&sessions, name).await.unwrap();
            assert_eq!(ended(), expected, "{name}");
        }
        assert!(used_by(&sessions, "ada").await.is_none(), "all have two");
        assert!(used_by(&sessions, "carl").await.is_some());
        assert!(first.ended.is_cancelled() && ended().len() == 4, "eve's are in use");
        drop((call, stream));
    }

    /// WIRE-5: a principal with a stream open on each of its sessions locks nobody out: the newest makes way for a principal that
    /// has fewer, down to the same number, and never one with a running call. With one principal nobody makes way.
    #[tokio::test(start_paused = true)]
    async fn streams_keep_no_session_from_others() {
        let sessions = Sessions::new(4, LONG_IDLE * 10, Budget::process());
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(used_by(&sessions, "eve").await.unwrap());
        }
        let streams: Vec<_> = held.iter().map(|session| session.open_stream().unwrap()).collect();
        let call = sessions.lease(&held[3].id.to_string(), &held[3].principal).unwrap();
        let ended = || -> Vec<usize> { (0..4).filter(|at| held[*at].ended.is_cancelled()).collect() };
        assert!(used_by(&sessions, "eve").await.is_none() && ended().is_empty());
        let first = used_by(&sessions, "ada").await.unwrap();
        assert_eq!(ended(), [2]);
        let own = first.open_stream().unwrap();
        used_by(&sessions, "ada").await.unwrap();
        assert_eq!(ended(), [1, 2]);
        assert!(used_by(&sessions, "ada").await.is_none(), "each has two, and hers are in use or new");
        drop((streams, call, own));
    }

    /// BOUND-4: a principal gets no session of those who have fewer, however long they were idle; its own makes way.
    #[tokio::test(start_paused = true)]
    async fn a_principal_with_many_sessions_pushes_nobody_out() {
        let sessions = Sessions::new(3, LONG_IDLE * 10, Budget::process());
        let opened = sessions.open(Principal::named("ada"), Revision::V2025_06_18, Abilities::NONE).unwrap();
        advance(LONG_IDLE).await;
        let own = used_by(&sessions, "eve").await.unwrap();
        used_by(&sessions, "eve").await.unwrap();
        assert!(used_by(&sessions, "eve").await.is_none());
        advance(LONG_IDLE).await;
        assert!(used_by(&sessions, "eve").await.is_some());
        assert!(own.ended.is_cancelled() && !opened.ended.is_cancelled());
    }

    /// A session that has just sent a request, a moment after all others.
    async fn used_by(sessions: &Sessions, name: &str) -> Option<Arc<Session>> {
        advance(Duration::from_millis(1)).await;
        let session = sessions.open(Principal::named(name), Revision::V2025_06_18, Abilities::NONE)?;
        sessions.lease(&session.id.to_string(), &session.principal).unwrap().requested();
        Some(session)
    }

    #[tokio::test(start_paused = true)]
    async fn ending_a_session_cancels_its_calls() {
        let sessions = sessions(2);
        let session = open(&sessions).unwrap();
        let (entry, _registration) = session.in_flight.enter(&1.into()).unwrap();
        sessions.end(&session);
        assert!(!entry.finish(), "its answer is no longer wanted");
        assert!(!known(&sessions, &session));
    }

    /// ACC-2 (case 11): a session whose credential is revoked is unknown at once and its stream closes, but its calls go on. An
    /// expired token does not end a session, and neither does another credential of the same principal.
    #[tokio::test(start_paused = true)]
    async fn a_revoked_credential_ends_its_session() {
        let sessions = Arc::new(sessions(4));
        let revoked = CancellationToken::new();
        let of = |revoked: &CancellationToken| {
            let expires = Some(Instant::now() + IDLE / 4);
            Principal::named("ada").valid(Validity::new(Some(revoked.clone()), expires))
        };
        let [ended, other] = [&revoked, &CancellationToken::new()].map(|revoked| {
            let session = sessions.open(of(revoked), Revision::V2025_06_18, Abilities::NONE).unwrap();
            sessions.watch(&session);
            session
        });
        let find = |session: &Session| sessions.lease(&session.id.to_string(), &Principal::named("ada"));
        advance(IDLE / 2).await;
        tokio::task::yield_now().await;
        assert!(find(&other).is_some(), "a newer token of the same principal");
        let call = find(&ended).unwrap();
        let (entry, _registration) = ended.in_flight.enter(&1.into()).unwrap();
        revoked.cancel();
        assert!(find(&ended).is_none(), "at once");
        ended.ended.cancelled().await;
        assert_eq!(sessions.table.lock().len(), 1);
        assert!(entry.finish(), "its answer is still wanted");
        assert!(!ended.identity.is_ended(), "and its own servers stay for the call");
        assert!(find(&other).is_some());
        drop(call);
    }

    /// A log line identifies a session by a part of its id that gives no access to it.
    #[tokio::test(start_paused = true)]
    async fn a_label_is_not_an_id() {
        let sessions = sessions(2);
        let [one, other] = std::array::from_fn(|_| open(&sessions).unwrap());
        let label = one.label();
        assert!(label.len() == 8 && one.id.to_string().starts_with(&label), "{label}");
        assert_ne!(label, other.label());
        assert!(sessions.lease(&label, &Principal::local()).is_none());
    }

    /// BOUND-3: when memory is short, sessions release as much as is missing and no more: first what was read, then the
    /// rest, each time from the least recently used session first.
    #[tokio::test(start_paused = true)]
    async fn sessions_let_go_of_what_is_missing() {
        const ANSWER: usize = 1000;
        let sessions = Sessions::new(4, IDLE, &Budget::new(1 << 20, 1 << 20));
        let held = |session: &Session| session.streams.held() / ANSWER;
        let mut opened = Vec::new();
        for (read, unread) in [(1, 1), (3, 0), (0, 2)] {
            let session = open(&sessions).unwrap();
            for number in 0..read + unread {
                session.streams.keep_finished(ANSWER, number < read);
            }
            opened.push(session);
            advance(Duration::from_millis(1)).await;
        }
        let check = |missing: usize, left: [usize; 3]| {
            sessions.let_go(missing);
            assert_eq!([0, 1, 2].map(|at| held(&opened[at])), left, "{missing}");
        };
        check(0, [2, 3, 2]);
        check(ANSWER + ANSWER / 2, [1, 2, 2]);
        check(1, [1, 1, 2]);
        check(ANSWER * 5 / 2, [0, 0, 1]);
        check(1, [0, 0, 0]);
    }

    /// BOUND-3: the logs of whoever's hold the most are released first, however recently they were used.
    #[tokio::test(start_paused = true)]
    async fn the_greediest_lets_go_first() {
        const ANSWER: usize = 1000;
        let sessions = Sessions::new(8, IDLE, &Budget::new(1 << 20, 1 << 20));
        let ada = used_by(&sessions, "ada").await.unwrap();
        ada.streams.keep_finished(ANSWER, false);
        let mut eve = Vec::new();
        for _ in 0..3 {
            let session = used_by(&sessions, "eve").await.unwrap();
            session.streams.keep_finished(ANSWER, false);
            eve.push(session);
        }
        sessions.let_go(2 * ANSWER);
        let left: Vec<usize> = eve.iter().map(|session| session.streams.held() / ANSWER).collect();
        assert_eq!((ada.streams.held() / ANSWER, left), (1, vec![0, 0, 1]));
    }

    /// BOUND-3: a session is charged to the account of its principal, which has no more than one peer may hold.
    #[tokio::test(start_paused = true)]
    async fn sessions_are_charged_to_their_principal() {
        let budget = Budget::new(8 * SESSION, 2 * SESSION);
        let sessions = Sessions::new(64, IDLE, &budget);
        let held = [used_by(&sessions, "eve").await.unwrap(), used_by(&sessions, "eve").await.unwrap()];
        assert!(used_by(&sessions, "eve").await.is_none());
        let other = used_by(&sessions, "ada").await.unwrap();
        assert_eq!((budget.of(held[0].principal.id()).held(), budget.held()), (2 * SESSION, 3 * SESSION));
        sessions.end(&held[0]);
        drop(held);
        assert!(used_by(&sessions, "eve").await.is_some());
        drop(other);
    }

    #[tokio::test(start_paused = true)]
    async fn one_stream_at_a_time() {
        let session = open(&sessions(1)).unwrap();
        let stream = session.open_stream().unwrap();
        assert!(session.open_stream().is_none());
        drop(stream);
        assert!(session.open_stream().is_some());
    }
}
