//! The part of a catalog that the principals of one class may use.
//!
//! Routes and entries are shared with the whole catalog; only maps and lists of addresses are the view's own. What is
//! left out is remembered, because the texts that servers write may name it: such a text is not shown either.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bridgehead_upstream::Features;

use super::offers::Share;
use super::pages::{Pages, Room};
use super::{Catalog, Group, Route, Summary, Target, generation, listed, native_features, same_list};
use crate::access::{Action, Decide, Decision, Scopes, Thing};

/// What the principals of a class may use, and where their lists are kept.
pub(crate) struct Admission<'a> {
    pub(crate) decide: &'a Decide<'a>,
    /// Whether they might use something of a server.
    pub(crate) may_use: &'a dyn Fn(Action, &str) -> bool,
    pub(crate) room: &'a Arc<Room>,
}

/// What a call of a tool must meet, although the tool exists.
#[derive(Debug, Clone)]
pub(crate) enum Condition {
    /// The authorizer decides by the arguments.
    ByArguments,
    /// The principal needs all of these scopes.
    Scopes(Scopes),
}

/// The names of one server that a class must not see.
#[derive(Debug, Default)]
pub(crate) struct Unsaid {
    /// Names that are one word each, in lower case.
    words: HashSet<String>,
    /// All others.
    phrases: Vec<String>,
}

impl Catalog {
    /// This catalog without what `admission` denies. Lists that are still the same are reused from `before`.
    pub(crate) fn seen_by(&self, admission: &Admission<'_>, before: Option<&Self>) -> Self {
        let Admission { decide, may_use, room } = admission;
        let mut conditions = HashMap::new();
        let mut admits = |route: &Arc<Route>| match decide(Action::Call, route.thing()) {
            Decision::Deny => false,
            Decision::Allow => true,
            Decision::ByArguments => {
                conditions.insert(Arc::clone(&route.name), Condition::ByArguments);
                true
            }
            Decision::Scoped(scopes) => {
                conditions.insert(Arc::clone(&route.name), Condition::Scopes(scopes));
                true
            }
        };
        let prompts = self.prompts.seen_by(Action::Get, admission, before.map(|before| &before.prompts));
        let resources =
            self.resources.seen_by(Action::Read, admission, before.map(|before| &before.resources));
        let templates =
            self.templates.seen_by(Action::ReadSome, admission, before.map(|before| &before.templates));
        let shown: HashSet<&str> = prompts
            .listed()
            .filter_map(|entry| entry.server())
            .chain(resources.listed().chain(templates.listed()).filter_map(|entry| entry.server()))
            .map(|server| &**server)
            .collect();
        let mut all_routes = true;
        let groups = self.groups.iter().filter_map(|group| {
            let (routes, hidden): (Vec<Arc<Route>>, Vec<Arc<Route>>) =
                group.routes.iter().cloned().partition(&mut admits);
            all_routes &= hidden.is_empty();
            let summary = match hidden.is_empty() {
                true => Arc::clone(&group.summary),
                false => Arc::new(Summary::new(&routes)),
            };
            let (mut speaks, mut listed) = (true, group.listed);
            if let Some(share) = &group.share {
                // A server may have no tools, or resources that it does not list.
                let has_none = hidden.is_empty() && may_use(Action::Call, &share.server);
                let reads = share.features.resources && may_use(Action::Read, &share.server);
                speaks = !routes.is_empty() || shown.contains(&*share.server) || has_none;
                listed &= speaks || reads;
                if !(speaks || reads) {
                    return None;
                }
            }
            Some(Group { share: group.share.clone(), routes, listed, speaks, hidden, summary })
        });
        let groups: Vec<Group> = groups.collect();
        let mut routes = HashMap::with_capacity(self.routes.len());
        for route in groups.iter().flat_map(|group| &group.routes) {
            routes.insert(Arc::clone(&route.name), Arc::clone(route));
        }
        let is_whole = all_routes
            && Arc::ptr_eq(&prompts, &self.prompts)
            && Arc::ptr_eq(&resources, &self.resources)
            && Arc::ptr_eq(&templates, &self.templates);
        let pages = match before {
            _ if is_whole => Arc::clone(&self.lists.pages),
            Some(before) if same_list(&before.groups, &groups) => Arc::clone(&before.lists.pages),
            _ => {
                let listed = listed(&groups).count();
                Arc::new(Pages::within(generation(&groups), listed, Some(Arc::clone(room))))
            }
        };
        let shares = || groups.iter().filter(|group| group.listed).filter_map(|group| group.share.as_ref());
        let speaks = groups.iter().any(|group| group.share.is_some() && group.listed && group.speaks);
        Self {
            routes,
            lists: self.lists.around_pages(pages),
            features: shares()
                .fold(native_features(&groups, &prompts, &resources, &templates), |all, share| {
                    all.or(usable(share, may_use))
                }),
            experimental: self.experimental.clone().filter(|_| speaks),
            prompts: Arc::clone(&prompts),
            resources: Arc::clone(&resources),
            templates: Arc::clone(&templates),
            uris: self.uris,
            instructions: OnceLock::new(),
            starting: self.starting,
            provisional: self.provisional,
            missing: {
                let uses = |server: &str| {
                    [Action::Call, Action::Get, Action::Read].iter().any(|action| may_use(*action, server))
                };
                self.missing.iter().filter(|server| uses(server)).cloned().collect()
            },
            hidden: groups.iter().map(|group| group.summary.hidden).sum(),
            conditions,
            unsaid: OnceLock::new(),
            is_whole,
            groups,
        }
    }

    /// What a call of a tool must meet.
    #[inline]
    pub(crate) fn condition(&self, tool: &str) -> Option<&Condition> {
        if self.conditions.is_empty() { None } else { self.conditions.get(tool) }
    }

    /// The tool that a server knows by this name.
    pub(crate) fn tool_of(&self, server: &str, own: &str) -> Option<&Arc<Route>> {
        let is_of = |group: &&Group| group.share.as_ref().is_some_and(|share| *share.server == *server);
        let group = self.groups.iter().find(is_of)?;
        group.routes.iter().find(|route| route.thing().name == own)
    }

    /// How many tools of a server are shown.
    pub(crate) fn shown_of(&self, server: &str) -> usize {
        let shown = self.listed().filter(|route| route.server.as_deref() == Some(server));
        shown.count()
    }

    /// Whether something of a server is shown.
    pub(crate) fn shows(&self, server: &str) -> bool {
        let of = |group: &Group| group.share.as_ref().is_some_and(|share| *share.server == *server);
        self.groups.iter().any(|group| group.listed && group.speaks && of(group))
    }

    /// Whether a text of a server names something of the server that this view leaves out.
    pub(crate) fn leaves_unsaid(&self, server: &str, text: &str) -> bool {
        if self.is_whole {
            return false;
        }
        let unsaid = self.unsaid.get_or_init(|| {
            let mut unsaid: HashMap<Arc<str>, Unsaid> = HashMap::new();
            let mut add = |server: Option<&Arc<str>>, name: &str| {
                if let Some(server) = server {
                    unsaid.entry(Arc::clone(server)).or_default().add(name);
                }
            };
            for route in self.groups.iter().flat_map(|group| &group.hidden) {
                add(route.server.as_ref(), &route.name);
                add(route.server.as_ref(), route.thing().name);
            }
            for entry in self.prompts.hidden() {
                add(entry.server(), &entry.name);
                add(entry.server(), entry.own());
            }
            for entry in self.resources.hidden().iter().chain(self.templates.hidden()) {
                add(entry.server(), entry.own());
            }
            unsaid
        });
        unsaid.get(server).is_some_and(|unsaid| unsaid.is_in(text))
    }
}

impl Unsaid {
    fn add(&mut self, name: &str) {
        let name = name.to_lowercase();
        if name.is_empty() {
            return;
        }
        match name.chars().all(is_of_word) {
            true => drop(self.words.insert(name)),
            false => self.phrases.push(name),
        }
    }

    fn is_in(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        text.split(|letter| !is_of_word(letter)).any(|word| self.words.contains(word))
            || self.phrases.iter().any(|phrase| text.contains(phrase.as_str()))
    }
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == '-'
}

/// The features of a server that a class can use.
fn usable(share: &Share, may_use: &dyn Fn(Action, &str) -> bool) -> Features {
    let [calls, gets, reads] =
        [Action::Call, Action::Get, Action::Read].map(|action| may_use(action, &share.server));
    let of = share.features;
    Features {
        prompts: of.prompts && gets,
        resources: of.resources && reads,
        subscribe: of.subscribe && reads,
        completions: of.completions && (gets || reads),
        tasks: of.tasks && calls,
        ui: of.ui && (calls || reads),
        ..of
    }
}

impl Route {
    /// The tool as an authorizer knows it.
    pub(crate) fn thing(&self) -> Thing<'_> {
        let (name, read_only) = match &self.target {
            Target::Native(native) => (native.tool.name(), native.tool.is_read_only()),
            Target::Upstream { tool, .. } => (tool.name.as_str(), tool.read_only),
        };
        Thing { server: self.server.as_deref(), name, read_only }
    }
}
