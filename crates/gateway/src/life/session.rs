//! A client's identity from one request to the next, as far as servers are kept for it.
//!
//! The front makes one session for each line-based connection, for each session of a legacy client over HTTP,
//! and for each name of a modern client of a principal over HTTP. Ending a session, or dropping its last clone, ends the
//! servers of its own. A request costs one clone of a pointer.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bridgehead_config::{Interactive, Isolation};
use bridgehead_upstream::{Hold, LeaseOwner, Reason, Unavailable, Upstream};
use bridgehead_wire::{Abilities, Era, Level, Method, Raw, RequestMeta};
use parking_lot::Mutex;
use tracing::info;

use super::label::ClientLabel;
use crate::feeds::Feed;

/// One client, from its first request to its last. Clones share one session.
#[derive(Debug, Clone)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    number: u64,
    /// The abilities that a legacy client declared, as bits.
    abilities: AtomicU8,
    kept: Mutex<Kept>,
    label: ClientLabel,
    /// What a legacy client is told unprompted.
    feed: OnceLock<Feed>,
}

#[derive(Debug, Default)]
struct Kept {
    ended: bool,
    uses: Vec<Use>,
}

/// A session's use of one server.
#[derive(Debug)]
struct Use {
    server: Upstream,
    /// The session's own process, if the server is not shared.
    own: Option<Upstream>,
    /// Set once a legacy client has used the server: the server then stays awake.
    hold: Option<Hold>,
    /// Whether the session's own process still has to be told that the client's roots have changed.
    roots_changed: bool,
}

impl Use {
    fn lives(&self) -> bool {
        !self.own.as_ref().unwrap_or(&self.server).is_released()
    }
}

impl Session {
    /// A new session.
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (abilities, kept, label) = (AtomicU8::new(0), Mutex::default(), ClientLabel::default());
        Self(Arc::new(Inner { number, abilities, kept, label, feed: OnceLock::new() }))
    }

    /// Stores what the client declared at its handshake that it can be asked.
    #[doc(hidden)]
    pub fn declare(&self, abilities: Abilities) {
        self.0.abilities.store(abilities.bits(), Ordering::Release);
    }

    /// Stores the `clientInfo` of the client's handshake.
    pub fn introduce(&self, client_info: &Raw) {
        self.0.label.of(client_info);
    }

    /// The name and version of the client program: of a modern client from its request, of a legacy client
    /// from its handshake.
    pub(crate) fn client(&self, era: Era, meta: &RequestMeta) -> Option<Arc<str>> {
        match era {
            Era::Modern => self.0.label.of(&meta.client_info()?),
            Era::Legacy => self.0.label.last(),
        }
    }

    /// The name and version of the client program that was heard last.
    pub(crate) fn label(&self) -> Option<Arc<str>> {
        self.0.label.last()
    }

    /// Whether there is another clone besides this one.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn abilities(&self) -> Abilities {
        Abilities::from_bits(self.0.abilities.load(Ordering::Acquire))
    }

    /// Ends the session: servers of its own stop at once, and it gets no new ones.
    pub fn end(&self) {
        if let Some(feed) = self.0.feed.get() {
            feed.close();
        }
        let kept = {
            let mut kept = self.0.kept.lock();
            kept.ended = true;
            std::mem::take(&mut kept.uses)
        };
        for used in kept {
            if let Some(own) = used.own {
                own.release();
            }
        }
    }

    /// The lowest log level that the client asked for.
    pub fn log_level(&self) -> Option<Level> {
        self.0.feed.get().and_then(Feed::level)
    }

    /// The session's feed; opened with the session's number when it is first needed.
    #[doc(hidden)]
    pub fn feed_or(&self, open: impl FnOnce(u64) -> Feed) -> Feed {
        self.0.feed.get_or_init(|| open(self.0.number)).clone()
    }

    /// Whether it has ended.
    pub fn is_ended(&self) -> bool {
        self.0.kept.lock().ended
    }

    /// Its unique number.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// The upstream that serves this session: `server` itself, or a process of the session's own. `None`
    /// means `server` itself, which is the usual case and costs nothing.
    ///
    /// A server that asks for roots may keep them, so a client with roots gets its own process. If there are
    /// already `max_leases` of these, calls take turns instead.
    pub(crate) fn uses(
        &self,
        server: &Upstream,
        era: Era,
        principal: &Arc<str>,
    ) -> Result<Option<Upstream>, Unavailable> {
        let config = server.config();
        let rooted = era == Era::Legacy
            && self.abilities().knows(&Method::RootsList)
            && config.isolation == Isolation::Shared
            && config.interactive == Interactive::Auto
            && server.keeps_roots();
        let owns = config.isolation == Isolation::Session || rooted;
        // A legacy session holds the servers it uses, so that a server's memory of the session survives
        // pauses.
        let holds = era == Era::Legacy && (config.lazy || config.idle_timeout.is_some());
        if !owns && !holds {
            return Ok(None);
        }
        let mut kept = self.0.kept.lock();
        if kept.ended {
            return Err(Unavailable::Stopped);
        }
        let fits = |known: &Use| known.server.is(server) && known.lives() && known.own.is_some() == owns;
        let at = match kept.uses.iter().position(fits) {
            Some(at) => at,
            None if rooted && server.beside_count() >= config.max_leases => return Ok(None),
            None => {
                // Forget what has been stopped or replaced since then.
                kept.uses.retain(Use::lives);
                let own = if owns { Some(server.own(self.0.number, principal)?) } else { None };
                if rooted {
                    info!(server = %server.name(), why = Reason::Roots.as_str(), "a session gets its own instance beside the shared one");
                }
                kept.uses.push(Use { server: server.clone(), own, hold: None, roots_changed: false });
                kept.uses.len() - 1
            }
        };
        let used = &mut kept.uses[at];
        if holds && used.hold.is_none() {
            used.hold = used.own.as_ref().unwrap_or(server).hold();
        }
        Ok(used.own.clone())
    }

    /// Handles the client's notice that its roots have changed. The session's own servers are told with the
    /// next request to them, because then the client is there to answer their questions.
    pub fn roots_changed(&self) {
        for used in &mut self.0.kept.lock().uses {
            used.roots_changed = used.own.is_some();
        }
    }

    /// Whether `own`, a process of this session's own, has to be told now that the roots have changed.
    pub(crate) fn take_roots_changed(&self, own: &Upstream) -> bool {
        let mut kept = self.0.kept.lock();
        let used = kept.uses.iter_mut().find(|known| known.own.as_ref().is_some_and(|it| it.is(own)));
        used.is_some_and(|used| std::mem::take(&mut used.roots_changed))
    }

    /// The key under which servers may remember the session: only a legacy client is the same from call to
    /// call.
    pub(crate) fn remembered_by(&self, era: Era) -> Option<LeaseOwner> {
        (era == Era::Legacy).then_some(LeaseOwner::Session(self.0.number))
    }

    /// The session's own process of this server, if there is one.
    pub(crate) fn own(&self, server: &Upstream) -> Option<Upstream> {
        let kept = self.0.kept.lock();
        kept.uses.iter().filter(|known| known.server.is(server)).find_map(|known| known.own.clone())
    }
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Session {}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for used in &self.kept.get_mut().uses {
            if let Some(own) = &used.own {
                own.release();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_config::{GatewaySettings, Launch, ServerConfig};
    use bridgehead_wire::Raw;

    use super::*;
    use crate::catalog::tests::start;

    fn server(change: impl FnOnce(&mut ServerConfig)) -> Upstream {
        let launch = Launch::Unusable { reason: "not for real".to_owned() };
        let mut server = ServerConfig::new("s".parse().unwrap(), launch, &GatewaySettings::default());
        change(&mut server);
        start(server)
    }

    fn isolated(server: &mut ServerConfig) {
        server.isolation = Isolation::Session;
    }

    fn session(capabilities: &'static str) -> Session {
        let session = Session::new();
        session.declare(Abilities::declared(&Raw::literal(capabilities)));
        session
    }

    /// POOL-1, ERA-3: a session has its own process if the configuration asks for it; a server that never
    /// asked for roots is shared, whatever its clients declared.
    #[tokio::test]
    async fn who_has_a_process_of_its_own() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut ServerConfig), expected: bool) {
            let server = server(change);
            for era in [Era::Legacy, Era::Modern] {
                for capabilities in ["{}", r#"{"sampling":{}}"#, r#"{"roots":{}}"#] {
                    let session = session(capabilities);
                    let own = session.uses(&server, era, &"me".into()).unwrap();
                    assert_eq!(own.is_some(), expected, "{era:?} {capabilities}");
                    assert_eq!(session.own(&server).is_some(), expected, "{era:?} {capabilities}");
                }
            }
        }
        check(|_| (), false);
        check(isolated, true);
        check(|server| server.isolation = Isolation::Call, false);
        check(|server| server.interactive = Interactive::Shared, false);
        check(|server| server.interactive = Interactive::Exclusive, false);
        check(|server| server.lazy = true, false);
    }

    /// POOL-1: a session reuses its process until that has ended, and then gets another. Ended processes are
    /// not kept.
    #[tokio::test]
    async fn what_has_ended_is_not_used_again() {
        let (first, second) = (server(isolated), server(isolated));
        let session = Session::new();
        let own = session.uses(&first, Era::Legacy, &"me".into()).unwrap().unwrap();
        assert!(session.uses(&first, Era::Modern, &"me".into()).unwrap().unwrap().is(&own));
        own.release();
        let next = session.uses(&first, Era::Legacy, &"me".into()).unwrap().unwrap();
        assert!(!next.is(&own) && !next.is_released());
        assert_eq!(session.0.kept.lock().uses.len(), 1);
        first.release();
        assert!(next.is_released());
        session.uses(&second, Era::Legacy, &"me".into()).unwrap().unwrap();
        let kept = session.0.kept.lock();
        assert!(kept.uses.len() == 1 && kept.uses[0].server.is(&second), "{kept:?}");
    }

    /// POOL-1: a session that ends stops its own servers and gets no new ones.
    #[tokio::test]
    async fn an_ended_session_has_nothing() {
        let server = server(isolated);
        let session = Session::new();
        let own = session.uses(&server, Era::Legacy, &"me".into()).unwrap().unwrap();
        session.end();
        assert!(own.is_released() && session.is_ended());
        assert!(matches!(session.uses(&server, Era::Legacy, &"me".into()), Err(Unavailable::Stopped)));

        let dropped = Session::new();
        let own = dropped.uses(&server, Era::Legacy, &"me".into()).unwrap().unwrap();
        drop(dropped);
        assert!(own.is_released());
    }
}
