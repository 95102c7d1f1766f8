//! How long lists, handshakes and calls wait for starting servers.
//!
//! Only a server of which nothing is known makes a list wait: one with a saved list is listed at once. All lists wait
//! together, once, until every such server was silent for `list_wait_ms`; a process that lives and has not answered yet, such
//! as one that is being downloaded, may take five times as long. A handshake waits for a moment. A call of something that a
//! starting server may offer waits for that server within its own limits, because otherwise its client would have to call
//! again.

use std::time::Duration;

use bridgehead_upstream::{INIT_TIMEOUT, Upstream, UpstreamState};
use tokio::time::Instant;

use crate::access::Principal;
use crate::catalog::Catalog;
use crate::catalog::names::is_under;
use crate::catalog::offers::is_prefixed;
use crate::gateway::{Gateway, Inner};

/// How long a handshake waits for the instructions of starting servers.
const HANDSHAKE_WAIT: Duration = Duration::from_millis(250);

/// How many times as long as for a silent server lists wait for a process that lives and has not answered yet.
const UNANSWERED: u32 = 5;

/// How long the list of a server that has just become ready may take to be merged.
const MERGED_SOON: Duration = Duration::from_secs(5);

/// The servers that may offer what is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holder<'a> {
    /// Any.
    Any,
    /// The one whose name is in this name, or any if names have no prefix.
    Named(&'a str),
    /// This one.
    Known(&'a Upstream),
}

impl Gateway {
    /// SRV-3: the first list waits a limited time for servers that are starting.
    pub(crate) async fn wait_for_servers(&self) {
        let mut merged = self.inner().starting.subscribe();
        if *merged.borrow_and_update() == 0 {
            return;
        }
        let began = *self.inner().lists_wait_since.lock().get_or_insert_with(Instant::now);
        while *merged.borrow_and_update() > 0 {
            let until = self.inner().lists_wait_until(began);
            if tokio::time::timeout_at(until, merged.changed()).await.is_err() {
                return;
            }
        }
    }

    /// SRV-3: a handshake waits a moment for the instructions of servers that are starting.
    #[doc(hidden)]
    pub async fn wait_for_instructions(&self) {
        let mut starting = self.inner().starting.subscribe();
        let _ = tokio::time::timeout(HANDSHAKE_WAIT, starting.wait_for(|starting| *starting == 0)).await;
    }

    /// Waits until `find` succeeds on the catalog, as long as a starting server may still offer the wanted
    /// thing. A call waits at most for its silence limit, and for the first minute of the server's start (POOL-2). If no
    /// server that may have it is starting, it waits as lists do for silent servers.
    pub(crate) async fn wait_for<T>(
        &self,
        principal: &Principal,
        holder: Holder<'_>,
        find: impl Fn(&Catalog) -> Option<T>,
    ) -> Option<T> {
        let began = Instant::now();
        let mut merged = self.inner().starting.subscribe();
        loop {
            merged.mark_unchanged();
            if let Some(found) = find(&self.inner().view(principal)) {
                return Some(found);
            }
            let Some(until) = self.inner().starts_until(principal, holder, began) else { break };
            if tokio::time::timeout_at(until, merged.changed()).await.is_err() {
                return find(&self.inner().view(principal));
            }
        }
        // Nothing that starts may have it, so the call does not wait for what is only slow.
        let _ = tokio::time::timeout(self.inner().settings.list_wait, self.wait_for_servers()).await;
        find(&self.inner().view(principal))
    }
}

impl Inner {
    /// The time until which lists that began to wait at `began` wait, as the servers are now.
    fn lists_wait_until(&self, began: Instant) -> Instant {
        let wait = self.settings.list_wait;
        let longest = began + wait * UNANSWERED;
        let upstreams = self.upstreams.read();
        let until = upstreams.iter().filter_map(|upstream| match upstream.state() {
            UpstreamState::Starting { known: None, answered: Some(at), .. } => Some(at + wait),
            UpstreamState::Starting { known: None, .. } if upstream.is_process() => Some(longest),
            _ => None,
        });
        until.max().map_or(began + wait, |until| until.clamp(began + wait, longest))
    }

    /// The time until which a call that began at `began` waits for servers that are starting or restarting
    /// and may have what it names.
    fn starts_until(&self, principal: &Principal, holder: Holder<'_>, began: Instant) -> Option<Instant> {
        let upstreams = self.upstreams.read();
        let may_have = |upstream: &&Upstream| {
            let config = upstream.config();
            match holder {
                Holder::Any => true,
                Holder::Named(name) => {
                    !is_prefixed(self.settings.prefix, config.prefix, upstreams.len())
                        || is_under(name, config.name.as_ref())
                }
                Holder::Known(known) => upstream.is(known),
            }
        };
        let catalog = self.catalog.load();
        // What a principal may not use does not make it wait, or the wait would tell of it.
        let seen = |upstream: &&Upstream| !self.views.hides(principal, upstream.name().as_ref());
        let until = upstreams.iter().filter(may_have).filter(seen).filter_map(|upstream| {
            // What it listed in this run is in the catalog, or about to be merged.
            let is_merged = || catalog.has_listing_of(upstream.name().as_ref());
            let patience = match upstream.state() {
                UpstreamState::Starting { since, .. } if !is_merged() => since + INIT_TIMEOUT,
                // It was just woken for the call.
                UpstreamState::Asleep(_) if matches!(holder, Holder::Known(_)) && !is_merged() => {
                    began + INIT_TIMEOUT
                }
                // Its tools are not listed at the moment, and the next attempt may bring them.
                UpstreamState::Restarting(outage) if outage.may_bring() => outage.since + INIT_TIMEOUT,
                UpstreamState::Ready(_) if !is_merged() => Instant::now() + MERGED_SOON,
                _ => return None,
            };
            Some(patience.min(began + upstream.config().clocks().silent))
        });
        until.max()
    }
}
