//! Who a client is from one request to the next, as far as servers are kept for it.
//!
//! The front makes one session for each connection on lines, each session of a legacy client over HTTP, and
//! each principal of the modern ones there. Ending it, or dropping the last clone, ends the servers that were
//! its own; a request costs a clone of a pointer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bridgehead_config::Isolation;
use bridgehead_upstream::{Hold, Unavailable, Upstream};
use bridgehead_wire::{Era, Level};
use parking_lot::Mutex;

use crate::feed::Feed;

/// One client, from its first request to its last. Clones are the same session.
#[derive(Debug, Clone)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    number: u64,
    kept: Mutex<Kept>,
    /// What a legacy client is told of its own accord.
    feed: OnceLock<Feed>,
}

#[derive(Debug, Default)]
struct Kept {
    ended: bool,
    uses: Vec<Use>,
}

/// What a session has of one server.
#[derive(Debug)]
struct Use {
    server: Upstream,
    /// Its own process, where the server is not shared.
    own: Option<Upstream>,
    /// Set once a legacy client used it: it then stays awake.
    hold: Option<Hold>,
}

impl Use {
    fn lives(&self) -> bool {
        !self.own.as_ref().unwrap_or(&self.server).is_released()
    }
}

impl Session {
    /// A new one, of which nobody else knows.
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner { number, kept: Mutex::default(), feed: OnceLock::new() }))
    }

    /// Ends it: the servers that were its own stop at once, and it gets no others.
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

    /// The least grave log lines that its client asked for.
    pub fn log_level(&self) -> Option<Level> {
        self.0.feed.get().and_then(Feed::level)
    }

    /// Its feed; opened, by the session's number, the first time it is asked for.
    pub fn feed_or(&self, open: impl FnOnce(u64) -> Feed) -> Feed {
        self.0.feed.get_or_init(|| open(self.0.number)).clone()
    }

    /// Whether it has ended.
    pub fn is_ended(&self) -> bool {
        self.0.kept.lock().ended
    }

    /// The upstream that serves this session: `server` itself, or a process of the session's own. None means
    /// the former, which is the ordinary case and costs nothing.
    pub(crate) fn uses(&self, server: &Upstream, era: Era) -> Result<Option<Upstream>, Unavailable> {
        let config = server.config();
        let owns = config.isolation == Isolation::Session;
        // A legacy session holds what it uses, so that what a server knows of it outlives its pauses.
        let holds = era == Era::Legacy && (config.lazy || config.idle_timeout.is_some());
        if !owns && !holds {
            return Ok(None);
        }
        let mut kept = self.0.kept.lock();
        if kept.ended {
            return Err(Unavailable::Stopped);
        }
        let at = match kept.uses.iter().position(|known| known.server.is(server) && known.lives()) {
            Some(at) => at,
            None => {
                // What was stopped or replaced since then is of no use.
                kept.uses.retain(Use::lives);
                let own = if owns { Some(server.own(self.0.number)?) } else { None };
                kept.uses.push(Use { server: server.clone(), own, hold: None });
                kept.uses.len() - 1
            }
        };
        let used = &mut kept.uses[at];
        if holds && used.hold.is_none() {
            used.hold = used.own.as_ref().unwrap_or(server).hold();
        }
        Ok(used.own.clone())
    }

    /// The number under which servers may remember it: only a legacy client is the same from call to call.
    pub(crate) fn remembered_by(&self, era: Era) -> Option<u64> {
        (era == Era::Legacy).then_some(self.0.number)
    }

    /// The process of this server that is the session's own, if there is one.
    pub(crate) fn own(&self, server: &Upstream) -> Option<Upstream> {
        let kept = self.0.kept.lock();
        kept.uses.iter().find(|known| known.server.is(server)).and_then(|known| known.own.clone())
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
