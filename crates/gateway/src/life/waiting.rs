//! How long lists and calls wait for starting servers.
//!
//! All lists wait together, once, for `list_wait_ms`. A call of something that a starting server may offer
//! waits for that server within its own limits, because otherwise its client would have to call again.

use bridgehead_upstream::{INIT_TIMEOUT, Upstream, UpstreamState};
use tokio::time::Instant;

use crate::access::Principal;
use crate::catalog::Catalog;
use crate::catalog::names::is_under;
use crate::catalog::offers::is_prefixed;
use crate::gateway::{Gateway, Inner};

impl Gateway {
    /// SRV-3: the first list waits a limited time for servers that are starting.
    pub(crate) async fn wait_for_servers(&self) {
        let mut starting = self.inner().starting.subscribe();
        if *starting.borrow() == 0 {
            return;
        }
        let wait = self.inner().settings.list_wait;
        let deadline = *self.inner().list_deadline.lock().get_or_insert_with(|| Instant::now() + wait);
        let _ = tokio::time::timeout_at(deadline, starting.wait_for(|starting| *starting == 0)).await;
    }

    /// Waits until `find` succeeds on the catalog, as long as a starting server may still offer the wanted
    /// thing. That is the server whose name is in `name`, or any server if names have no prefix. A call waits
    /// at most for its silence limit, and for the first minute of the server's start (POOL-2). If no such
    /// server is starting, it waits as lists do.
    pub(crate) async fn wait_for<T>(
        &self,
        principal: &Principal,
        name: Option<&str>,
        find: impl Fn(&Catalog) -> Option<T>,
    ) -> Option<T> {
        let began = Instant::now();
        let mut merged = self.inner().starting.subscribe();
        loop {
            merged.mark_unchanged();
            if let Some(found) = find(&self.inner().view(principal)) {
                return Some(found);
            }
            let Some(until) = self.inner().starts_until(principal, name, began) else { break };
            if tokio::time::timeout_at(until, merged.changed()).await.is_err() {
                return find(&self.inner().view(principal));
            }
        }
        self.wait_for_servers().await;
        find(&self.inner().view(principal))
    }
}

impl Inner {
    /// The time until which a call that began at `began` waits for servers that are starting or restarting
    /// and may have what it names.
    fn starts_until(&self, principal: &Principal, name: Option<&str>, began: Instant) -> Option<Instant> {
        let upstreams = self.upstreams.read();
        let may_have = |upstream: &&Upstream| {
            let config = upstream.config();
            name.is_none_or(|name| {
                !is_prefixed(self.settings.prefix, config.prefix, upstreams.len())
                    || is_under(name, config.name.as_ref())
            })
        };
        let catalog = self.catalog.load();
        // What a principal may not use does not make it wait, or the wait would tell of it.
        let seen = |upstream: &&Upstream| !self.views.hides(principal, upstream.name().as_ref());
        let until = upstreams.iter().filter(may_have).filter(seen).filter_map(|upstream| {
            let patience = match upstream.state() {
                UpstreamState::Starting { since, known: None } => since + INIT_TIMEOUT,
                // Its tools are not listed at the moment, and the next attempt may bring them.
                UpstreamState::Restarting(outage) if outage.may_bring() => outage.since + INIT_TIMEOUT,
                // It is ready, and its list is about to be merged.
                UpstreamState::Ready(_) if catalog.owner(upstream.name().as_ref()).is_none() => {
                    Instant::now() + self.settings.list_wait
                }
                _ => return None,
            };
            Some(patience.min(began + upstream.config().clocks().silent))
        });
        until.max()
    }
}
