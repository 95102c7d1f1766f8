//! What the upstreams bring to a merge: the tools that their filters admit, with the plain name of each.
//!
//! A share is made once for each list that a server gave and is passed on from catalog to catalog, so that
//! whoever did not change is recognised by its address.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use bridgehead_config::Prefix;
use bridgehead_upstream::{Ready, State, Tool, Upstream};

use crate::names::{Wanted, plain};

/// The tools of one server as it last listed them.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) upstream: Upstream,
    pub(crate) server: Arc<str>,
    pub(crate) tools: Vec<Arc<Tool>>,
    /// The name of each tool, if nobody else wants it.
    pub(crate) plain: Vec<Arc<str>>,
    /// What the server tells the model about itself.
    pub(crate) instructions: Option<String>,
    prefixed: bool,
    /// Where it was read from; weak, for a catalog must not keep the link of a server that is gone.
    source: Weak<Ready>,
}

/// A share, and whether it stands in the lists; the tools of a server that is gone do not, but are known.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) share: Arc<Share>,
    pub(crate) listed: bool,
}

/// What all upstreams offer, in the order of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    pub(crate) all: Vec<Offer>,
    /// How many servers are still starting.
    pub(crate) starting: usize,
}

impl Share {
    pub(crate) fn new(
        upstream: &Upstream,
        tools: Vec<Arc<Tool>>,
        instructions: Option<String>,
        prefixed: bool,
        taken: &HashSet<&str>,
    ) -> Self {
        let server: Arc<str> = upstream.name().as_ref().into();
        Self {
            plain: tools.iter().map(|tool| plain(&server, &tool.name, prefixed, taken)).collect(),
            upstream: upstream.clone(),
            server,
            tools,
            instructions,
            prefixed,
            source: Weak::new(),
        }
    }

    fn read(upstream: &Upstream, ready: &Arc<Ready>, prefixed: bool, taken: &HashSet<&str>) -> Self {
        let filter = &upstream.config().filter;
        let tools = ready.tools.iter().filter(|tool| filter.admits(&tool.name)).cloned().collect();
        let instructions = ready.peer.instructions.clone();
        let source = Arc::downgrade(ready);
        Self { source, ..Self::new(upstream, tools, instructions, prefixed, taken) }
    }

    /// Handles to one server share its configuration, and no two servers do.
    fn is_of(&self, upstream: &Upstream) -> bool {
        std::ptr::eq(self.upstream.config(), upstream.config())
    }

    pub(crate) fn wanted(&self) -> impl Iterator<Item = Wanted<'_>> {
        let named = self.tools.iter().zip(&self.plain);
        named.map(|(tool, plain)| Wanted { server: &self.server, tool: &tool.name, plain })
    }
}

impl Offers {
    /// Reads the upstreams as they are now. `before` finds the share that a server had until now; `taken`
    /// are the names of our own tools.
    pub(crate) fn gather<'a>(
        upstreams: &[Upstream],
        prefix: Prefix,
        taken: &HashSet<&str>,
        before: impl Fn(&str) -> Option<&'a Arc<Share>>,
    ) -> Self {
        let mut offers = Self::default();
        for upstream in upstreams {
            let prefixed = is_prefixed(prefix, upstream.config().prefix, upstreams.len());
            let known = before(upstream.name().as_ref()).filter(|share| share.is_of(upstream));
            let read = |ready: &Arc<Ready>| match known {
                Some(share)
                    if share.prefixed == prefixed
                        && std::ptr::eq(share.source.as_ptr(), Arc::as_ptr(ready)) =>
                {
                    Arc::clone(share)
                }
                _ => Arc::new(Share::read(upstream, ready, prefixed, taken)),
            };
            let (share, listed) = match upstream.state() {
                State::Ready(ready) => (Some(read(&ready)), true),
                State::Restarting(outage) => (outage.last.as_ref().map(read), outage.listed),
                // So that a call to one of its tools can say that the server is gone.
                State::Failed(_) => (known.cloned(), false),
                State::Starting { .. } => {
                    offers.starting += 1;
                    (None, false)
                }
                State::Stopped => (None, false),
            };
            offers.all.extend(share.map(|share| Offer { share, listed }));
        }
        offers
    }
}

/// `auto` leaves the prefix out if and only if exactly one server is configured.
pub(crate) fn is_prefixed(prefix: Prefix, server: Option<bool>, servers: usize) -> bool {
    server.unwrap_or(match prefix {
        Prefix::Auto => servers != 1,
        Prefix::Always => true,
        Prefix::Never => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CAT-3: `auto`, `true`, `false`, and the server's own word over them.
    #[test]
    fn the_prefix_by_setting() {
        assert!(!is_prefixed(Prefix::Auto, None, 1));
        assert!(is_prefixed(Prefix::Auto, None, 2));
        assert!(is_prefixed(Prefix::Always, None, 1));
        assert!(!is_prefixed(Prefix::Never, None, 9));
        assert!(is_prefixed(Prefix::Never, Some(true), 9));
        assert!(!is_prefixed(Prefix::Always, Some(false), 9));
    }
}
