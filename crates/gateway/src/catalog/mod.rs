//! Everything the gateway offers, merged and named once per change.
//!
//! A catalog is immutable: when an upstream changes, a new catalog replaces it and reuses every unchanged
//! part. A change therefore costs what changed, plus a few pointers for the rest. Calls look names up in a
//! map; lists and instructions are prepared bytes.

pub(crate) mod builtin;
pub(crate) mod fnv;
pub(crate) mod instructions;
pub(crate) mod items;
pub(crate) mod names;
pub(crate) mod native;
pub(crate) mod offers;
pub(crate) mod pages;
pub(crate) mod similar;
pub(crate) mod template;
pub(crate) mod view;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bridgehead_config::{Isolation, Mode, Prefix, ResourceUris};
use bridgehead_schema::HeaderParameter;
use bridgehead_upstream::{Features, Lists as Changed, Tool, Upstream, UpstreamState};
use bridgehead_wire::{Object, Raw, Revision, Spliced, key};
use tracing::debug;

use crate::catalog::fnv::Fnv;
use crate::catalog::instructions::{partial, section};
use crate::catalog::items::{Entry, ItemKind, ItemTarget, Merged, Owner};
use crate::catalog::names::{Wanted, expose};
use crate::catalog::native::{NativePrompt, NativeResource, Natives, RegisteredTool};
use crate::catalog::offers::{Offers, Share};
use crate::catalog::pages::{Lists, Pages};
use crate::catalog::template::matches;
use crate::catalog::view::{Condition, Unsaid};
use crate::relay::queue::{Queue, Queues};
use crate::relay::uris::inward;

/// The lock of a tool whose calls take turns, first come, first served.
pub(crate) type ToolLock = Arc<bridgehead_call::Share>;

/// What runs a tool.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Native(Arc<RegisteredTool>),
    Upstream { upstream: Upstream, tool: Arc<Tool>, queue: Arc<Queue> },
}

/// One offered name.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    pub(crate) server: Option<Arc<str>>,
    pub(crate) target: Target,
    /// Set if calls take turns.
    pub(crate) lock: Option<ToolLock>,
    /// Set if the mode does not admit the tool: it is not listed, and the error for a call names the mode.
    pub(crate) excluded_by: Option<Mode>,
    /// Whether this is from a saved list, and not from what the server said in this run.
    pub(crate) saved: bool,
    /// The definition as lists show it: under the offered name, every other byte from the server.
    pub(crate) definition: Raw,
    /// A hash of the definition.
    fingerprint: u64,
}

impl Route {
    pub(crate) fn headers(&self) -> Option<&Arc<[HeaderParameter]>> {
        match &self.target {
            Target::Native(_) => None,
            Target::Upstream { tool, .. } => Some(&tool.headers),
        }
    }

    /// The server that runs it.
    pub(crate) fn upstream(&self) -> Option<&Upstream> {
        match &self.target {
            Target::Native(_) => None,
            Target::Upstream { upstream, .. } => Some(upstream),
        }
    }

    /// Whether its server is about to list, for this call or anyway, what it has now. Such a route is shown, but no call is decided
    /// and checked by it.
    #[inline]
    pub(crate) fn is_provisional(&self) -> bool {
        self.saved && self.upstream().is_some_and(will_list)
    }
}

#[cold]
fn will_list(upstream: &Upstream) -> bool {
    match upstream.state() {
        UpstreamState::Starting { .. } | UpstreamState::Ready(_) | UpstreamState::Restarting(_) => true,
        // A call to any other server that sleeps wakes a process of its own.
        UpstreamState::Asleep(_) => upstream.config().isolation == Isolation::Shared,
        UpstreamState::Failed(_) | UpstreamState::Stopped => false,
    }
}

/// Who has a resource.
pub(crate) enum ResourceOwner {
    Native(Arc<NativeResource>),
    /// The servers to ask, in this order. Empty if there are none.
    Servers(Vec<Owner>),
}

impl ResourceOwner {
    /// Nobody.
    pub(crate) const NOBODY: Self = Self::Servers(Vec::new());

    pub(crate) fn is_nobody(&self) -> bool {
        matches!(self, Self::Servers(servers) if servers.is_empty())
    }
}

/// The routes of one server, or of the gateway's own tools.
#[derive(Debug)]
struct Group {
    /// `None` for the gateway's own tools.
    share: Option<Arc<Share>>,
    /// In the order of the share.
    routes: Vec<Arc<Route>>,
    /// Whether lists show them. Unlisted routes can still be looked up.
    listed: bool,
    /// Whether a view shows anything of the server, so that its instructions may be shown too.
    speaks: bool,
    /// In a view: what it leaves out.
    hidden: Vec<Arc<Route>>,
    summary: Arc<Summary>,
}

/// Values computed once and reused while the routes stay the same.
#[derive(Debug)]
struct Summary {
    /// A hash that identifies the list of these routes.
    fingerprint: u64,
    /// How many routes the mode hides.
    hidden: usize,
}

/// The settings that shape names and lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) mode: Mode,
    pub(crate) prefix: Prefix,
    pub(crate) name_limit: usize,
    pub(crate) uris: ResourceUris,
}

/// What the gateway offers at one time.
#[derive(Debug)]
pub(crate) struct Catalog {
    routes: HashMap<Arc<str>, Arc<Route>>,
    /// In the order of the lists.
    groups: Vec<Group>,
    lists: Lists,
    pub(crate) prompts: Arc<Merged<NativePrompt>>,
    pub(crate) resources: Arc<Merged<NativeResource>>,
    pub(crate) templates: Arc<Merged<NativeResource>>,
    uris: ResourceUris,
    /// The features of all listed servers and of what is written in Rust, combined.
    pub(crate) features: Features,
    /// The experimental capabilities of the only server. `None` with several servers: a client could not tell
    /// whose they are.
    pub(crate) experimental: Option<Raw>,
    instructions: OnceLock<Option<Raw>>,
    /// How many servers are still starting, of which nothing is known.
    pub(crate) starting: usize,
    /// How many more are starting behind their saved lists.
    pub(crate) provisional: usize,
    /// Their names. A view has only the names that it may show.
    missing: Vec<Arc<str>>,
    /// How many tools the mode hides.
    pub(crate) hidden: usize,
    /// The tools whose calls must meet a condition. Empty except in a view.
    conditions: HashMap<Arc<str>, Condition>,
    /// In a view: the names that the texts of servers must not show, by server.
    unsaid: OnceLock<HashMap<Arc<str>, Unsaid>>,
    /// Whether this is all that there is: false in a view that leaves something out.
    pub(crate) is_whole: bool,
}

impl Catalog {
    /// Merges the upstreams in their current state with what is written in Rust.
    pub(crate) fn of(
        shape: Shape,
        natives: &Natives,
        upstreams: &[Upstream],
        queues: &Queues,
        server_info: &Raw,
        before: &Self,
    ) -> Self {
        let known = before.by_server();
        let shares = |server: &str| known.get(server).and_then(|group| group.share.as_ref());
        let offers = Offers::gather(upstreams, shape.prefix, &natives.tool_names(), queues, shares);
        Self::merge(shape, natives, &offers, server_info, Some(before))
    }

    /// Merges the offers and what is written in Rust, offers first. Everything unchanged is reused from
    /// `before`, including the tool locks that calls may be waiting for.
    pub(crate) fn merge(
        shape: Shape,
        natives: &Natives,
        offers: &Offers,
        server_info: &Raw,
        before: Option<&Self>,
    ) -> Self {
        let wanted: Vec<Wanted<'_>> = offers.all.iter().flat_map(|offer| offer.share.wanted()).collect();
        let mut names = expose(&wanted, &natives.tool_names(), shape.name_limit).into_iter();
        let known = before.map(Self::by_server).unwrap_or_default();
        let mut groups: Vec<Group> = Vec::with_capacity(offers.all.len() + 1);
        for offer in &offers.all {
            let names: Vec<Arc<str>> = names.by_ref().take(offer.share.tools.len()).collect();
            let known = known.get(&*offer.share.server).copied().filter(|group| group.is_of(&offer.share));
            groups.push(Group::of_share(&offer.share, names, offer.listed, shape.mode, known, before));
        }
        groups.push(Group::of_natives(&natives.tools, before));
        let total = groups.iter().map(|group| group.routes.len()).sum();
        let mut routes = HashMap::with_capacity(total);
        for route in groups.iter().flat_map(|group| &group.routes) {
            routes.insert(Arc::clone(&route.name), Arc::clone(route));
        }
        let pages = match before {
            Some(before) if same_list(&before.groups, &groups) => Arc::clone(&before.lists.pages),
            _ => Arc::new(Pages::new(generation(&groups), listed(&groups).count())),
        };
        let named = (shape.name_limit, shape.uris);
        let known = before.map(|before| &before.prompts);
        let prompts = Merged::merge(ItemKind::Prompts, &natives.prompts, offers, named, server_info, known);
        let merged = |kind: ItemKind, own: &[Arc<NativeResource>], known| {
            Merged::merge(kind, own, offers, named, server_info, known)
        };
        let known = before.map(|before| &before.resources);
        let resources = merged(ItemKind::Resources, &natives.resources, known);
        let known = before.map(|before| &before.templates);
        let templates = merged(ItemKind::Templates, &natives.templates, known);
        let only = offers.all.first().filter(|offer| offer.listed && offers.servers == 1);
        let experimental = only.and_then(|offer| offer.share.experimental.clone());
        let listed_shares = offers.all.iter().filter(|offer| offer.listed).map(|offer| &offer.share);
        let catalog = Self {
            routes,
            features: listed_shares
                .fold(native_features(&groups, &prompts, &resources, &templates), |all, share| {
                    all.or(share.features)
                }),
            prompts,
            resources,
            templates,
            uris: shape.uris,
            experimental,
            lists: Lists::new("tools", pages, offers.is_settled(), server_info.clone()),
            instructions: OnceLock::new(),
            starting: offers.starting.len(),
            provisional: offers.provisional,
            missing: offers.starting.clone(),
            hidden: groups.iter().map(|group| group.summary.hidden).sum(),
            conditions: HashMap::new(),
            unsaid: OnceLock::new(),
            is_whole: true,
            groups,
        };
        debug!(tools = total, starting = catalog.starting, hidden = catalog.hidden, "catalog merged");
        catalog
    }

    /// The tool of that name.
    pub(crate) fn route(&self, name: &str) -> Option<&Arc<Route>> {
        self.routes.get(name)
    }

    /// Every known tool, in no particular order.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.values()
    }

    /// The tools that clients see, in order.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &Arc<Route>> {
        listed(&self.groups)
    }

    /// The `tools/list` result for clients of a revision, from `cursor` on; `None` if the cursor does not
    /// belong to this list.
    pub(crate) fn list(&self, revision: Revision, cursor: Option<&str>) -> Option<Spliced> {
        self.lists.page(revision, cursor, || self.listed().map(|route| &route.definition))
    }

    /// The lists in which a client sees a difference from `other`.
    pub(crate) fn changed(&self, other: &Self) -> Changed {
        let mut changed = Changed::NONE;
        if !self.lists.pages.is_like(&other.lists.pages) {
            changed = changed | Changed::TOOLS;
        }
        if !self.prompts.lists_the_same(&other.prompts) {
            changed = changed | Changed::PROMPTS;
        }
        if !(self.resources.lists_the_same(&other.resources)
            && self.templates.lists_the_same(&other.templates))
        {
            changed = changed | Changed::RESOURCES;
        }
        changed
    }

    /// The URI that the server knows, for a URI from a client.
    pub(crate) fn own_uri<'u>(&self, uri: &'u str) -> &'u str {
        match self.uris {
            ResourceUris::Keep => uri,
            ResourceUris::Rewrite => inward(uri).map_or(uri, |(_, own)| own),
        }
    }

    /// Who has a resource: the one that lists it, alone; else the first with a matching template, alone, those
    /// of this program first; else every server with resources, those that list others under the same scheme
    /// first.
    pub(crate) fn resource_owner(&self, uri: &str) -> ResourceOwner {
        if let Some(owner) = self.known_owner(uri) {
            return owner;
        }
        if let Some((server, _)) = inward(uri).filter(|_| self.uris == ResourceUris::Rewrite) {
            return ResourceOwner::Servers(self.owner(server).into_iter().collect());
        }
        let scheme = uri.split(':').next().unwrap_or_default();
        let is_of_scheme = |share: &Share| {
            let all = share.resources.iter().chain(share.templates.iter());
            all.map(|item| item.name.split(':').next().unwrap_or_default()).any(|other| other == scheme)
        };
        let shares = self.groups.iter().filter(|group| group.listed).filter_map(|group| group.share.as_ref());
        let (first, then): (Vec<_>, Vec<_>) =
            shares.filter(|share| share.features.resources).partition(|share| is_of_scheme(share));
        ResourceOwner::Servers(first.into_iter().chain(then).map(|share| Owner::of(share)).collect())
    }

    /// The one that lists a resource, or a template that the URI matches.
    pub(crate) fn known_owner(&self, uri: &str) -> Option<ResourceOwner> {
        let entry = self.resources.get(uri).or_else(|| self.matching_template(uri))?;
        Some(match &entry.target {
            ItemTarget::Native(native) => ResourceOwner::Native(Arc::clone(native)),
            ItemTarget::Server { owner, .. } => ResourceOwner::Servers(vec![owner.clone()]),
        })
    }

    /// The template that a URI matches.
    fn matching_template(&self, uri: &str) -> Option<&Arc<Entry<NativeResource>>> {
        let fits = |entry: &&Arc<Entry<NativeResource>>| matches(&entry.name, uri);
        let own = self.templates.listed().filter(|entry| entry.server().is_none()).find(fits);
        own.or_else(|| self.templates.listed().find(fits))
    }

    /// Whether it has what this server listed in this run.
    pub(crate) fn has_listing_of(&self, server: &str) -> bool {
        let mut shares = self.groups.iter().filter_map(|group| group.share.as_ref());
        shares.any(|share| *share.server == *server && !share.cached)
    }

    /// The server of that name, if it is known.
    pub(crate) fn owner(&self, server: &str) -> Option<Owner> {
        self.by_server().get(server).and_then(|group| group.share.as_ref()).map(|share| Owner::of(share))
    }

    /// The instructions of servers and tools for the model, as one JSON string; `None` if there are none. While servers are
    /// starting, the last sentence says that they are partial.
    pub(crate) fn instructions(&self) -> Option<&Raw> {
        let said = self.instructions.get_or_init(|| {
            let mut prompts: HashMap<&str, Vec<&str>> = HashMap::new();
            for entry in self.prompts.listed() {
                if let Some(server) = entry.server() {
                    prompts.entry(server).or_default().push(&entry.name);
                }
            }
            let shown = self.groups.iter().filter(|group| group.listed && group.speaks);
            let mut sections: Vec<String> = shown
                .filter_map(|group| {
                    let share = group.share.as_ref()?;
                    let prompts = prompts.get(&*share.server).map_or(&[][..], Vec::as_slice);
                    let own = share.instructions.as_deref();
                    let own = own.filter(|own| !self.leaves_unsaid(&share.server, own));
                    section(&share.server, own, prompts, group.said())
                })
                .collect();
            sections.extend(partial(&self.missing));
            (!sections.is_empty()).then(|| Raw::string(&sections.join("\n\n")))
        });
        said.as_ref()
    }

    /// Tools whose offered name is not the plain one: server, tool, name.
    pub(crate) fn renamed(&self) -> Vec<(String, String, String)> {
        let shares = self.groups.iter().filter_map(|group| Some((group.share.as_ref()?, &group.routes)));
        shares
            .flat_map(|(share, routes)| share.wanted().zip(routes))
            .filter(|(want, route)| *want.plain != route.name)
            .map(|(want, route)| (want.server.to_owned(), want.tool.to_owned(), route.name.to_string()))
            .collect()
    }

    fn by_server(&self) -> HashMap<&str, &Group> {
        self.groups.iter().filter_map(|group| Some((&*group.share.as_ref()?.server, group))).collect()
    }
}

impl Group {
    /// The routes of a share under `names`. `known` is the previous group of the same share.
    fn of_share(
        share: &Arc<Share>,
        names: Vec<Arc<str>>,
        listed: bool,
        mode: Mode,
        known: Option<&Self>,
        before: Option<&Catalog>,
    ) -> Self {
        let mut all_known = known.is_some();
        let routes: Vec<Arc<Route>> = names
            .into_iter()
            .zip(&share.tools)
            .enumerate()
            .map(|(position, (name, tool))| {
                match known.and_then(|known| known.routes.get(position)).filter(|route| route.name == name) {
                    Some(route) => Arc::clone(route),
                    None => {
                        all_known = false;
                        Arc::new(Route::of_tool(share, name, tool, mode, before))
                    }
                }
            })
            .collect();
        let summary = match known.filter(|_| all_known) {
            Some(known) => Arc::clone(&known.summary),
            None => Arc::new(Summary::new(&routes)),
        };
        let hidden = Vec::new();
        Self { share: Some(Arc::clone(share)), routes, listed, speaks: true, hidden, summary }
    }

    fn of_natives(natives: &[Arc<RegisteredTool>], before: Option<&Catalog>) -> Self {
        let routes: Vec<Arc<Route>> = natives
            .iter()
            .map(|native| {
                Arc::new(Route {
                    name: native.tool.name().into(),
                    server: None,
                    target: Target::Native(Arc::clone(native)),
                    lock: native.tool.locked().then(|| lock(before, native.tool.name())),
                    excluded_by: None,
                    saved: false,
                    fingerprint: fingerprint(&native.definition),
                    definition: native.definition.clone(),
                })
            })
            .collect();
        let summary = Arc::new(Summary::new(&routes));
        Self { share: None, routes, listed: true, speaks: true, hidden: Vec::new(), summary }
    }

    /// The instructions of its tools, with their offered names.
    fn said(&self) -> impl Iterator<Item = (&str, &str)> {
        let shown = self.routes.iter().filter(|route| route.excluded_by.is_none());
        shown.filter_map(|route| match &route.target {
            Target::Native(_) => None,
            Target::Upstream { tool, .. } => Some((&*route.name, tool.instructions.as_deref()?)),
        })
    }

    fn is_of(&self, share: &Arc<Share>) -> bool {
        self.share.as_ref().is_some_and(|own| Arc::ptr_eq(own, share))
    }
}

impl Route {
    fn of_tool(
        share: &Share,
        name: Arc<str>,
        tool: &Arc<Tool>,
        mode: Mode,
        before: Option<&Catalog>,
    ) -> Self {
        let admitted = mode != Mode::Readonly || tool.read_only;
        let tools = &share.upstream.config().tools;
        let locked = tools.get(&tool.name).and_then(|tool| tool.lock).unwrap_or(false);
        let definition = definition(&name, tool, share.cached);
        Self {
            lock: locked.then(|| lock(before, &name)),
            server: Some(Arc::clone(&share.server)),
            target: Target::Upstream {
                upstream: share.upstream.clone(),
                tool: Arc::clone(tool),
                queue: Arc::clone(share.queue(&tool.name)),
            },
            excluded_by: (!admitted).then_some(mode),
            saved: share.cached,
            fingerprint: fingerprint(&definition),
            definition,
            name,
        }
    }
}

impl Summary {
    fn new(routes: &[Arc<Route>]) -> Self {
        let shown = || routes.iter().filter(|route| route.excluded_by.is_none());
        let mut fingerprint = Fnv::new();
        for route in shown() {
            fingerprint.add(&route.fingerprint.to_le_bytes());
        }
        Self { fingerprint: fingerprint.whole(), hidden: routes.len() - shown().count() }
    }
}

fn fingerprint(definition: &Raw) -> u64 {
    let mut fingerprint = Fnv::new();
    fingerprint.add(definition.bytes());
    fingerprint.whole()
}

fn listed(groups: &[Group]) -> impl Iterator<Item = &Arc<Route>> {
    let routes = groups.iter().filter(|group| group.listed).flat_map(|group| &group.routes);
    routes.filter(|route| route.excluded_by.is_none())
}

/// Compares addresses first: almost all routes are unchanged.
fn same_list(before: &[Group], after: &[Group]) -> bool {
    let same = |(one, other): (&Arc<Route>, &Arc<Route>)| {
        Arc::ptr_eq(one, other) || one.definition == other.definition
    };
    listed(before).count() == listed(after).count() && listed(before).zip(listed(after)).all(same)
}

fn generation(groups: &[Group]) -> u64 {
    let mut generation = Fnv::new();
    for group in groups.iter().filter(|group| group.listed) {
        generation.add(&group.summary.fingerprint.to_le_bytes());
    }
    generation.whole()
}

/// A definition under the offered name, marked if it comes from the cache; every other byte is the server's.
fn definition(name: &str, tool: &Tool, cached: bool) -> Raw {
    if tool.name == name && !cached {
        return tool.definition.clone();
    }
    let Ok(object) = Object::parse(&tool.definition) else { return tool.definition.clone() };
    let meta = object.get(key::META).and_then(|meta| Object::parse(&meta).ok()).unwrap_or_else(Object::empty);
    let mut edit = object.edit();
    if tool.name != name {
        edit.set("name", Raw::string(name));
    }
    if cached {
        let mut meta = meta.edit();
        meta.set(key::CACHED, Raw::literal("true"));
        edit.set(key::META, meta.finish());
    }
    edit.finish().to_raw()
}

/// What clients can use because of what is written in Rust. Built-in tools write no log lines.
fn native_features(
    groups: &[Group],
    prompts: &Merged<NativePrompt>,
    resources: &Merged<NativeResource>,
    templates: &Merged<NativeResource>,
) -> Features {
    let logs =
        |route: &Arc<Route>| matches!(&route.target, Target::Native(native) if !native.tool.is_builtin());
    let (prompts, resources) = (prompts.has_natives(), resources.has_natives() || templates.has_natives());
    let logging = prompts || resources || listed(groups).any(logs);
    Features { prompts, resources, subscribe: resources, logging, ..Features::default() }
}

fn lock(before: Option<&Catalog>, name: &str) -> ToolLock {
    before
        .and_then(|before| before.route(name))
        .and_then(|route| route.lock.clone())
        .unwrap_or_else(|| bridgehead_call::Share::new(1))
}

#[cfg(test)]
pub(crate) mod tests;
