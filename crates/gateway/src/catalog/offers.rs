//! What the upstreams bring to a merge: the tools that their filters admit, each with its plain name, and
//! their prompts, resources and templates.
//!
//! A share is built once per listing of a server and passed from catalog to catalog. A server that did not
//! change is therefore recognised by the address of its share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use bridgehead_config::{GatewaySettings, Prefix, ResourceUris, ServerConfig};
use bridgehead_upstream::{Features, Items, Listing, Tool, Upstream, UpstreamState};
use bridgehead_wire::Raw;
use tracing::{debug, warn};

use crate::catalog::names::{Wanted, is_under, may_be_short, plain};
use crate::catalog::similar::similar;
use crate::relay::queue::{Queue, Queues};
use crate::relay::uris::inward;

/// The tools, prompts, resources and templates of one server, as it last listed them.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) upstream: Upstream,
    pub(crate) server: Arc<str>,
    pub(crate) tools: Vec<Arc<Tool>>,
    /// The name of each tool, unless another tool wants the same.
    pub(crate) plain: Vec<Arc<str>>,
    pub(crate) prompts: Items,
    pub(crate) resources: Items,
    pub(crate) templates: Items,
    pub(crate) features: Features,
    pub(crate) experimental: Option<Raw>,
    queue: Arc<Queue>,
    /// The queues of tools that have their own.
    tool_queues: HashMap<String, Arc<Queue>>,
    /// The server's own instructions for the model.
    pub(crate) instructions: Option<String>,
    /// Whether this is a saved list: what the server listed the last time it ran, not in this run.
    pub(crate) cached: bool,
    pub(crate) prefixed: bool,
    /// Warnings about settings for its tools that have no effect.
    idle: Vec<String>,
    /// The listing that it was read from; weak, because only its address matters.
    source: Weak<Listing>,
}

/// A share, and whether lists show it. The tools of a server that is gone are known but not listed.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) share: Arc<Share>,
    pub(crate) listed: bool,
}

/// What all upstreams offer, in the order of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    pub(crate) all: Vec<Offer>,
    /// The servers that are still starting, of which nothing is known.
    pub(crate) starting: Vec<Arc<str>>,
    /// How many servers are still starting and will list what they have now, instead of the saved list that stands in for it.
    pub(crate) provisional: usize,
    /// How many servers there are.
    pub(crate) servers: usize,
}

impl Share {
    pub(crate) fn new(
        upstream: &Upstream,
        tools: Vec<Arc<Tool>>,
        instructions: Option<String>,
        prefixed: bool,
        taken: &HashSet<&str>,
        queues: &Queues,
    ) -> Self {
        let config = upstream.config();
        let named = config.tools.iter().filter_map(|(tool, own)| Some((tool, own.queue.as_ref()?)));
        let server: Arc<str> = upstream.name().as_ref().into();
        Self {
            plain: tools.iter().map(|tool| plain(&server, &tool.name, prefixed, taken)).collect(),
            queue: queues.of(&config.name, &config.queue),
            tool_queues: named.map(|(tool, own)| (tool.clone(), queues.of(&config.name, own))).collect(),
            upstream: upstream.clone(),
            server,
            tools,
            prompts: Items::default(),
            resources: Items::default(),
            templates: Items::default(),
            features: Features::default(),
            experimental: None,
            instructions,
            cached: false,
            prefixed,
            idle: Vec::new(),
            source: Weak::new(),
        }
    }

    fn read(
        upstream: &Upstream,
        listing: &Arc<Listing>,
        prefixed: bool,
        taken: &HashSet<&str>,
        queues: &Queues,
        before: Option<&Arc<Self>>,
    ) -> Self {
        let idle = without_effect(upstream.config(), listing);
        // Warn again only if the warnings changed: a server may list its tools often.
        if before.is_none_or(|before| before.idle != idle) {
            for words in &idle {
                warn!(server = %format_args!("mcp:{}", upstream.name()), "{words}");
            }
        }
        let filter = &upstream.config().filter;
        let (tools, filtered): (Vec<_>, Vec<_>) =
            listing.iter().cloned().partition(|tool| filter.admits(&tool.name));
        if !filtered.is_empty() {
            let names: Vec<&str> = filtered.iter().map(|tool| tool.name.as_str()).collect();
            debug!(server = %format_args!("mcp:{}", upstream.name()), ?names, "tools that the filters leave out");
        }
        let instructions = listing.instructions.clone();
        let (source, cached) = (Arc::downgrade(listing), listing.cached);
        Self {
            idle,
            source,
            cached,
            prompts: Arc::clone(&listing.prompts),
            resources: Arc::clone(&listing.resources),
            templates: Arc::clone(&listing.templates),
            features: listing.features,
            experimental: listing.experimental.clone(),
            ..Self::new(upstream, tools, instructions, prefixed, taken, queues)
        }
    }

    /// The queue that limits the calls of a tool.
    pub(crate) fn queue(&self, tool: &str) -> &Arc<Queue> {
        self.tool_queues.get(tool).unwrap_or(&self.queue)
    }

    /// Whether items of both are requested at the same server, under the same names.
    pub(crate) fn places_like(&self, other: &Self) -> bool {
        self.upstream.is(&other.upstream)
            && self.prefixed == other.prefixed
            && self.features == other.features
            && Arc::ptr_eq(&self.queue, &other.queue)
    }

    /// Whether the share belongs to `upstream`. All handles to one server share its configuration; no two
    /// servers do.
    fn is_of(&self, upstream: &Upstream) -> bool {
        std::ptr::eq(self.upstream.config(), upstream.config())
    }

    pub(crate) fn wanted(&self) -> impl Iterator<Item = Wanted<'_>> {
        let named = self.tools.iter().zip(&self.plain);
        named.map(|(tool, plain)| Wanted { server: &self.server, tool: &tool.name, plain })
    }
}

impl Offers {
    /// Whether the lists will stay as they are, as far as anybody knows.
    pub(crate) fn is_settled(&self) -> bool {
        self.starting.is_empty() && self.provisional == 0
    }

    /// Reads the upstreams in their current state. `before` finds the previous share of a server; `taken`
    /// holds the names of the gateway's own tools.
    pub(crate) fn gather<'a>(
        upstreams: &[Upstream],
        prefix: Prefix,
        taken: &HashSet<&str>,
        queues: &Queues,
        before: impl Fn(&str) -> Option<&'a Arc<Share>>,
    ) -> Self {
        let mut offers = Self { servers: upstreams.len(), ..Self::default() };
        for upstream in upstreams {
            let prefixed = is_prefixed(prefix, upstream.config().prefix, upstreams.len());
            let known = before(upstream.name().as_ref()).filter(|share| share.is_of(upstream));
            let read = |listing: &Arc<Listing>| match known {
                Some(share)
                    if share.prefixed == prefixed
                        && std::ptr::eq(share.source.as_ptr(), Arc::as_ptr(listing)) =>
                {
                    Arc::clone(share)
                }
                _ => Arc::new(Share::read(upstream, listing, prefixed, taken, queues, known)),
            };
            let (share, listed) = match upstream.state() {
                UpstreamState::Ready(ready) => (Some(read(&ready.tools)), true),
                UpstreamState::Asleep(listing) => (Some(read(&listing)), true),
                UpstreamState::Starting { known: Some(listing), .. } => {
                    offers.provisional += usize::from(listing.cached);
                    (Some(read(&listing)), true)
                }
                UpstreamState::Restarting(outage) => (outage.last.as_ref().map(read), outage.listed),
                // Kept, so that a call to one of its tools can say that the server has failed.
                UpstreamState::Failed(_) => (known.cloned(), false),
                UpstreamState::Starting { known: None, .. } => {
                    offers.starting.push(upstream.name().as_ref().into());
                    (None, false)
                }
                UpstreamState::Stopped => (None, false),
            };
            offers.all.extend(share.map(|share| Offer { share, listed }));
        }
        offers
    }
}

/// Warnings about settings for tools that a server does not have: a filter, a lock or a limit that its author
/// relies on and that has no effect.
pub(crate) fn without_effect(server: &ServerConfig, listing: &Listing) -> Vec<String> {
    let names: Vec<&str> = listing.iter().map(|tool| tool.name.as_str()).collect();
    let meant = |written: &str| {
        // Patterns match the server's own name of a tool; writing the offered name is the usual mistake.
        let own = written.strip_prefix(server.name.as_str()).and_then(|rest| rest.strip_prefix("__"));
        let plain = own.unwrap_or(written).replace(['*', '?'], "");
        let found = names.iter().copied().find(|name| own.is_some() && name.eq_ignore_ascii_case(&plain));
        match found.or_else(|| similar(&plain, names.iter().copied()).first().copied()) {
            Some(near) => format!("; did you mean `{}`?", shown(near)),
            None => String::new(),
        }
    };
    let patterns = server.filter.without_match(&names);
    let patterns = patterns.into_iter().map(|(key, pattern)| {
        format!(
            "`{key}`: `{}` matches none of its tools, so it has no effect{}",
            shown(pattern),
            meant(pattern)
        )
    });
    let settings = server.tools.keys().filter(|name| !names.contains(&name.as_str()));
    let settings = settings.map(|name| {
        format!("`tools.{}` names none of its tools, so it has no effect{}", shown(name), meant(name))
    });
    patterns.chain(settings).collect()
}

/// A name that a server chose, made safe for a log line.
fn shown(name: &str) -> String {
    name.chars().filter(|character| !character.is_control()).take(128).collect()
}

/// The servers among `servers` that may offer a tool or a prompt called `name`, for a caller that wants to start
/// only those. They keep the names that their tools and prompts have when all servers run.
pub fn may_offer(settings: &GatewaySettings, servers: &[ServerConfig], name: &str) -> Vec<ServerConfig> {
    let may = |server: &ServerConfig| {
        // A short form may be cut inside the server's name, so it does not identify the server.
        may_be_short(name) || server.prefix == Some(false) || is_under(name, server.name.as_ref())
    };
    named(settings, servers).filter(may).collect()
}

/// The servers among `servers` that may have the resource `uri`, for the same use: the one that a rewritten URI
/// names, and otherwise all of them, because a URI does not say whose it is.
pub fn may_have(settings: &GatewaySettings, servers: &[ServerConfig], uri: &str) -> Vec<ServerConfig> {
    let owner =
        inward(uri).filter(|_| settings.resource_uris == ResourceUris::Rewrite).map(|(server, _)| server);
    let may = |server: &ServerConfig| owner.is_none_or(|owner| server.name.as_str() == owner);
    named(settings, servers).filter(may).collect()
}

/// The server of this name among `servers`, for the same use.
pub fn only(settings: &GatewaySettings, servers: &[ServerConfig], name: &str) -> Vec<ServerConfig> {
    named(settings, servers).filter(|server| server.name.as_str() == name).collect()
}

/// The servers, each with the prefix that it has when all of them run.
pub fn named<'a>(
    settings: &'a GatewaySettings,
    servers: &'a [ServerConfig],
) -> impl Iterator<Item = ServerConfig> + 'a {
    servers.iter().map(|server| {
        let prefixed = is_prefixed(settings.prefix, server.prefix, servers.len());
        ServerConfig { prefix: Some(prefixed), ..server.clone() }
    })
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
    use bridgehead_config::Launch;

    use super::*;

    /// HOUR-3: a call needs only servers whose tools can have that name, and their tools keep their names.
    #[test]
    fn who_may_offer_a_tool() {
        #[track_caller]
        fn check(servers: &[(&str, Option<bool>)], tool: &str, expected: &[(&str, bool)]) {
            let settings = GatewaySettings::default();
            let servers: Vec<ServerConfig> = servers
                .iter()
                .map(|(name, prefix)| {
                    let launch = Launch::Unusable { reason: String::new() };
                    let server = ServerConfig::new(name.parse().unwrap(), launch, &settings);
                    ServerConfig { prefix: *prefix, ..server }
                })
                .collect();
            let found = may_offer(&settings, &servers, tool);
            let found: Vec<(&str, bool)> =
                found.iter().map(|server| (server.name.as_str(), server.prefix.unwrap())).collect();
            assert_eq!(found, expected, "{tool}");
        }
        let two = [("a", None), ("b", None)];
        check(&two, "a__read", &[("a", true)]);
        check(&two, "read", &[]);
        check(&two, "server_ping", &[]);
        check(&two, "x_e1f4230d", &[("a", true), ("b", true)]);
        check(&[("a", None)], "read", &[("a", false)]);
        check(&[("a", None), ("b", Some(false))], "a__read", &[("a", true), ("b", false)]);
        check(&[("a", None), ("a__b", None)], "a__b__c", &[("a", true), ("a__b", true)]);
    }

    /// JOIN-8: a rewritten URI names its server; any other may be everybody's.
    #[test]
    fn who_may_have_a_resource() {
        #[track_caller]
        fn check(uris: ResourceUris, uri: &str, expected: &[&str]) {
            let settings = GatewaySettings { resource_uris: uris, ..GatewaySettings::default() };
            let server = |name: &str| {
                ServerConfig::new(
                    name.parse().unwrap(),
                    Launch::Unusable { reason: String::new() },
                    &settings,
                )
            };
            let found = may_have(&settings, &[server("a"), server("b")], uri);
            let names: Vec<&str> = found.iter().map(|server| server.name.as_str()).collect();
            assert_eq!(names, expected, "{uri}");
            assert!(found.iter().all(|server| server.prefix == Some(true)));
        }
        check(ResourceUris::Rewrite, "bridgehead+b:file:///x", &["b"]);
        check(ResourceUris::Rewrite, "bridgehead+c:file:///x", &[]);
        check(ResourceUris::Rewrite, "ui://x", &["a", "b"]);
        check(ResourceUris::default(), "bridgehead+b:file:///x", &["a", "b"]);
    }

    /// CAT-3: `auto`, `true`, `false`, and the server's own setting, which overrides them.
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
