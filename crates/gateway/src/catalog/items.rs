//! Merges the prompts, resources and templates of all servers and of this program. Each is listed, found by
//! name, and requested from the server it came from, or served by its Rust handler.
//!
//! Prompts are named like tools. A URI appears in many places, so it passes unchanged. If two servers have
//! the same URI, the first one in the configuration owns it, unless `resource_uris` is `"rewrite"`. What is
//! written in Rust keeps its name and its URI; a server's prompt of that name is prefixed. Unchanged parts are
//! reused from the previous merge.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bridgehead_config::ResourceUris;
use bridgehead_upstream::{Features, Item, Items, Upstream};
use bridgehead_wire::{Object, Raw, Revision, Spliced};
use tracing::debug;

use crate::access::{Action, Decision, Thing};
use crate::catalog::fnv::Fnv;
use crate::catalog::names::{Wanted, expose, plain};
use crate::catalog::native::NativeItem;
use crate::catalog::offers::{Offer, Offers, Share};
use crate::catalog::pages::{Lists, Pages};
use crate::catalog::view::Admission;
use crate::relay::queue::Queue;
use crate::relay::uris::outward;

/// The kind of items in a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Prompts,
    Resources,
    Templates,
}

impl ItemKind {
    /// The member of a list that holds the entries.
    const fn member(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    fn of(self, share: &Share) -> &Items {
        match self {
            Self::Prompts => &share.prompts,
            Self::Resources => &share.resources,
            Self::Templates => &share.templates,
        }
    }
}

/// A server that requests can be sent to.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) upstream: Upstream,
    pub(crate) server: Arc<str>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) features: Features,
}

impl Owner {
    pub(crate) fn of(share: &Share) -> Self {
        Self {
            upstream: share.upstream.clone(),
            server: Arc::clone(&share.server),
            queue: Arc::clone(share.queue("")),
            features: share.features,
        }
    }

    /// Whether requests to both go to the same server, through the same queue, with the same features.
    fn is(&self, other: &Self) -> bool {
        self.upstream.is(&other.upstream)
            && self.features == other.features
            && Arc::ptr_eq(&self.queue, &other.queue)
    }
}

/// What serves a prompt, a resource or a template. `N` is what this program has of that kind.
#[derive(Debug)]
pub(crate) enum ItemTarget<N> {
    Native(Arc<N>),
    Server { owner: Owner, item: Arc<Item> },
}

/// One offered prompt, resource or template.
#[derive(Debug)]
pub(crate) struct Entry<N> {
    /// The name or URI that clients use.
    pub(crate) name: Arc<str>,
    pub(crate) target: ItemTarget<N>,
    /// The entry as lists show it: under the offered name, every other byte from the server.
    definition: Raw,
}

impl<N: NativeItem> Entry<N> {
    /// The server that it belongs to; `None` for one of this program.
    pub(crate) fn server(&self) -> Option<&Arc<str>> {
        match &self.target {
            ItemTarget::Native(_) => None,
            ItemTarget::Server { owner, .. } => Some(&owner.server),
        }
    }

    /// The name or URI that its server, or this program, knows it by.
    pub(crate) fn own(&self) -> &str {
        match &self.target {
            ItemTarget::Native(native) => native.key(),
            ItemTarget::Server { item, .. } => &item.name,
        }
    }

    /// The item as an authorizer knows it.
    pub(crate) fn thing(&self) -> Thing<'_> {
        Thing { server: self.server().map(|server| &**server), name: self.own(), read_only: true }
    }

    fn is_native(&self) -> bool {
        matches!(self.target, ItemTarget::Native(_))
    }

    /// Whether it is this item of that server.
    fn is_at(&self, server: &Owner, of: &Arc<Item>) -> bool {
        matches!(&self.target, ItemTarget::Server { owner, item } if Arc::ptr_eq(item, of) && owner.is(server))
    }
}

/// All items of one kind.
#[derive(Debug)]
pub(crate) struct Merged<N> {
    /// The entries that lists show, in order: those of servers, then those of this program.
    listed: Vec<Arc<Entry<N>>>,
    by_name: HashMap<Arc<str>, Arc<Entry<N>>>,
    lists: Lists,
    sources: Vec<Source>,
    /// How many of this program there are. None is ever taken away or replaced.
    natives: usize,
    /// In a view: what it leaves out.
    hidden: Vec<Arc<Entry<N>>>,
}

/// The share that a part of the merge was read from.
#[derive(Debug)]
struct Source {
    share: Arc<Share>,
    items: Items,
    listed: bool,
}

impl Source {
    fn is_of(&self, kind: ItemKind, offer: &Offer) -> bool {
        Arc::ptr_eq(&self.items, kind.of(&offer.share))
            && self.listed == offer.listed
            && self.share.places_like(&offer.share)
    }
}

impl<N: NativeItem> Merged<N> {
    pub(crate) fn merge(
        kind: ItemKind,
        natives: &[Arc<N>],
        offers: &Offers,
        (name_limit, uris): (usize, ResourceUris),
        server_info: &Raw,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let complete = offers.is_settled();
        let of_kind = || offers.all.iter().filter(|offer| !kind.of(&offer.share).is_empty());
        if let Some(before) = before
            && before.lists.is_complete() == complete
            && before.natives == natives.len()
            && before.sources.len() == of_kind().count()
            && before.sources.iter().zip(of_kind()).all(|(source, offer)| source.is_of(kind, offer))
        {
            return Arc::clone(before);
        }
        let known = |name: &str| before.and_then(|before| before.by_name.get(name));
        let taken: HashSet<&str> = natives.iter().map(|native| native.key()).collect();
        let mut names = names(kind, of_kind(), &taken, name_limit, uris).into_iter();
        let mut listed = Vec::new();
        let mut by_name: HashMap<Arc<str>, Arc<Entry<N>>> = HashMap::new();
        let own = natives.iter().map(|native| match known(native.key()) {
            Some(entry) if entry.is_native() => Arc::clone(entry),
            _ => Arc::new(Entry {
                name: native.key().into(),
                target: ItemTarget::Native(Arc::clone(native)),
                definition: native.definition(),
            }),
        });
        let own: Vec<Arc<Entry<N>>> = own.collect();
        by_name.extend(own.iter().map(|entry| (Arc::clone(&entry.name), Arc::clone(entry))));
        for offer in of_kind() {
            let owner = Owner::of(&offer.share);
            for item in kind.of(&offer.share).iter() {
                let Some(name) = names.next() else { break };
                let entry = match known(&name) {
                    Some(known) if known.is_at(&owner, item) => Arc::clone(known),
                    _ => Arc::new(Entry {
                        definition: definition(kind, &name, item),
                        name,
                        target: ItemTarget::Server { owner: owner.clone(), item: Arc::clone(item) },
                    }),
                };
                match by_name.entry(Arc::clone(&entry.name)) {
                    Slot::Vacant(slot) => {
                        slot.insert(Arc::clone(&entry));
                        if offer.listed {
                            listed.push(entry);
                        }
                    }
                    Slot::Occupied(first) => {
                        let first = first.get().server().map_or("this program", |server| server);
                        debug!(name = %entry.name, server = %owner.server, of = first, "two servers offer this; the first owns it");
                    }
                }
            }
        }
        listed.extend(own);
        let pages = Arc::new(Pages::new(fingerprint(&listed), listed.len()));
        let sources = of_kind().map(|offer| Source {
            share: Arc::clone(&offer.share),
            items: Arc::clone(kind.of(&offer.share)),
            listed: offer.listed,
        });
        Arc::new(Self {
            lists: Lists::new(kind.member(), pages, complete, server_info.clone()),
            sources: sources.collect(),
            natives: natives.len(),
            listed,
            by_name,
            hidden: Vec::new(),
        })
    }

    /// A copy without what `admission` denies. If the list in `before` is still the same, its pages are reused.
    pub(crate) fn seen_by(
        self: &Arc<Self>,
        action: Action,
        admission: &Admission<'_>,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let admits = |entry: &Entry<N>| (admission.decide)(action, entry.thing()) != Decision::Deny;
        let (mut by_name, mut hidden) = (HashMap::new(), Vec::new());
        for (name, entry) in &self.by_name {
            match admits(entry) {
                true => drop(by_name.insert(Arc::clone(name), Arc::clone(entry))),
                false => hidden.push(Arc::clone(entry)),
            }
        }
        if hidden.is_empty() {
            return Arc::clone(self);
        }
        let listed: Vec<Arc<Entry<N>>> =
            self.listed.iter().filter(|entry| by_name.contains_key(&entry.name)).cloned().collect();
        let pages = Pages::within(fingerprint(&listed), listed.len(), Some(Arc::clone(admission.room)));
        let pages = match before {
            Some(before) if before.lists.pages.is_like(&pages) => Arc::clone(&before.lists.pages),
            _ => Arc::new(pages),
        };
        let lists = self.lists.around_pages(pages);
        Arc::new(Self { listed, by_name, lists, sources: Vec::new(), natives: 0, hidden })
    }

    /// What a view leaves out; nothing in a whole catalog.
    pub(crate) fn hidden(&self) -> &[Arc<Entry<N>>] {
        &self.hidden
    }

    /// The entry of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Entry<N>>> {
        self.by_name.get(name)
    }

    /// The entries that clients see, in order.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &Arc<Entry<N>>> {
        self.listed.iter()
    }

    /// Whether clients see one of this program.
    pub(crate) fn has_natives(&self) -> bool {
        self.listed.last().is_some_and(|entry| entry.is_native())
    }

    /// The page of the list that `cursor` points to; `None` if the cursor does not belong to this list.
    pub(crate) fn list(&self, revision: Revision, cursor: Option<&str>) -> Option<Spliced> {
        self.lists.page(revision, cursor, || self.listed.iter().map(|entry| &entry.definition))
    }

    /// Whether a client sees the same list in both.
    pub(crate) fn lists_the_same(&self, other: &Self) -> bool {
        self.lists.pages.is_like(&other.lists.pages)
    }
}

/// A hash that identifies a list by its definitions.
fn fingerprint<N>(listed: &[Arc<Entry<N>>]) -> u64 {
    let mut generation = Fnv::new();
    for entry in listed {
        generation.add(entry.definition.bytes());
        generation.add(&[0]);
    }
    generation.whole()
}

fn names<'a>(
    kind: ItemKind,
    offers: impl Iterator<Item = &'a Offer>,
    taken: &HashSet<&str>,
    limit: usize,
    uris: ResourceUris,
) -> Vec<Arc<str>> {
    let shares: Vec<&Share> = offers.map(|offer| &*offer.share).collect();
    let items = || shares.iter().flat_map(|share| kind.of(share).iter().map(move |item| (share, item)));
    if kind != ItemKind::Prompts {
        return items()
            .map(|(share, item)| match uris {
                ResourceUris::Keep => item.name.as_str().into(),
                ResourceUris::Rewrite => outward(&share.server, &item.name).into(),
            })
            .collect();
    }
    let plain: Vec<Arc<str>> =
        items().map(|(share, item)| plain(&share.server, &item.name, share.prefixed, taken)).collect();
    let wanted: Vec<Wanted<'_>> = items()
        .zip(&plain)
        .map(|((share, item), plain)| Wanted { server: &share.server, tool: &item.name, plain })
        .collect();
    expose(&wanted, taken, limit)
}

fn definition(kind: ItemKind, name: &str, item: &Item) -> Raw {
    if item.name == name {
        return item.definition.clone();
    }
    let member = match kind {
        ItemKind::Prompts => "name",
        ItemKind::Resources => "uri",
        ItemKind::Templates => "uriTemplate",
    };
    let Ok(object) = Object::parse(&item.definition) else { return item.definition.clone() };
    let mut edit = object.edit();
    edit.set(member, Raw::string(name));
    edit.finish().to_raw()
}
