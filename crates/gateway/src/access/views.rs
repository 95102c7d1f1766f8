//! What the principals of one class see: the catalog without what they may not use.
//!
//! A view is built when somebody of its class first asks, from the catalog as it is then, and serves until there is another
//! catalog. However many clients there are, there are as many lists as there are classes.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::Guard;
use parking_lot::Mutex;

use super::{Authorizer, Principal};
use crate::catalog::Catalog;

/// How many views are kept. A principal of one more has its view built again.
const MOST_VIEWS: usize = 256;

/// The views of a gateway.
#[derive(Default)]
pub(crate) struct Views {
    /// None where everybody may use everything: then the whole catalog is everybody's view.
    authorizer: Option<Arc<dyn Authorizer>>,
    known: Mutex<HashMap<Arc<str>, View>>,
}

struct View {
    /// What it was built from.
    whole: Arc<Catalog>,
    seen: Arc<Catalog>,
}

impl Views {
    pub(crate) fn new(authorizer: Option<Arc<dyn Authorizer>>) -> Self {
        Self { authorizer, known: Mutex::default() }
    }

    pub(crate) fn authorizer(&self) -> Option<&Arc<dyn Authorizer>> {
        self.authorizer.as_ref()
    }

    /// What a principal sees of a catalog.
    pub(crate) fn of(&self, principal: &Principal, whole: Guard<Arc<Catalog>>) -> Guard<Arc<Catalog>> {
        let Some(authorizer) = &self.authorizer else { return whole };
        let class = authorizer.class(principal);
        let mut known = self.known.lock();
        let before = known.get(&class);
        if let Some(view) = before.filter(|view| Arc::ptr_eq(&view.whole, &whole)) {
            return Guard::from_inner(Arc::clone(&view.seen));
        }
        let before = before.map(|view| Arc::clone(&view.seen));
        let decide = |action, thing: super::Thing<'_>| authorizer.decide(principal, action, thing);
        let seen = Arc::new(whole.seen_by(&decide, before.as_deref()));
        if known.len() >= MOST_VIEWS && !known.contains_key(&class) {
            known.clear();
        }
        known.insert(class, View { whole: Arc::clone(&whole), seen: Arc::clone(&seen) });
        Guard::from_inner(seen)
    }
}
