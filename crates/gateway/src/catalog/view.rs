//! The part of a catalog that the principals of one class may use.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use super::pages::{Lists, Pages};
use super::{Catalog, Group, Route, Summary, Target, generation, listed, native_features, same_list};
use crate::access::{Action, Decision, Thing};

/// Says whether something may be used.
pub(crate) type Decide<'a> = dyn Fn(Action, Thing<'_>) -> Decision + 'a;

impl Catalog {
    /// This catalog without what `decide` denies. Lists that are still the same are reused from `before`.
    pub(crate) fn seen_by(&self, decide: &Decide<'_>, before: Option<&Self>) -> Self {
        let mut by_arguments = HashSet::new();
        let mut admits = |route: &&Arc<Route>| match decide(Action::Call, route.thing()) {
            Decision::Allow => true,
            Decision::Deny => false,
            Decision::ByArguments => {
                by_arguments.insert(Arc::clone(&route.name));
                true
            }
        };
        let prompts = self.prompts.seen_by(Action::Get, decide, before.map(|before| &before.prompts));
        let resources = self.resources.seen_by(Action::Read, decide, before.map(|before| &before.resources));
        let templates = self.templates.seen_by(Action::Read, decide, before.map(|before| &before.templates));
        let shown: HashSet<&str> = prompts
            .listed()
            .filter_map(|entry| entry.server())
            .chain(resources.listed().chain(templates.listed()).filter_map(|entry| entry.server()))
            .map(|server| &**server)
            .collect();
        let groups: Vec<Group> = self
            .groups
            .iter()
            .map(|group| {
                let routes: Vec<Arc<Route>> = group.routes.iter().filter(&mut admits).cloned().collect();
                let is_shown = |server: &str| !routes.is_empty() || shown.contains(server);
                let listed = group.share.as_ref().is_none_or(|share| is_shown(&share.server));
                let summary = Arc::new(Summary::new(&routes));
                Group { share: group.share.clone(), routes, listed: group.listed && listed, summary }
            })
            .collect();
        let routes = groups.iter().flat_map(|group| &group.routes);
        let routes = routes.map(|route| (Arc::clone(&route.name), Arc::clone(route))).collect();
        let pages = match before {
            Some(before) if same_list(&before.groups, &groups) => Arc::clone(&before.lists.pages),
            _ => Arc::new(Pages::new(generation(&groups), listed(&groups).count())),
        };
        let shares = || groups.iter().filter(|group| group.listed).filter_map(|group| group.share.as_ref());
        let only = self.experimental.as_ref().filter(|_| shares().next().is_some());
        Self {
            routes,
            lists: self.lists.around_pages(pages),
            features: shares()
                .fold(native_features(&groups, &prompts, &resources, &templates), |all, share| {
                    all.or(share.features)
                }),
            experimental: only.cloned(),
            prompts: Arc::clone(&prompts),
            resources: Arc::clone(&resources),
            templates: Arc::clone(&templates),
            uris: self.uris,
            instructions: OnceLock::new(),
            starting: self.starting,
            hidden: groups.iter().map(|group| group.summary.hidden).sum(),
            by_arguments,
            groups,
        }
    }

    /// Whether the authorizer decides about each call of a tool.
    pub(crate) fn asks_about(&self, tool: &str) -> bool {
        !self.by_arguments.is_empty() && self.by_arguments.contains(tool)
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

impl Lists {
    /// The same kind of list with other pages.
    pub(super) fn around_pages(&self, pages: Arc<Pages>) -> Self {
        Self::new(self.member(), pages, self.is_complete(), self.server_info().clone())
    }
}
