//! What the principals of one class see: the catalog without what they may not use.
//!
//! A view is built when a principal of its class first asks, from the current catalog, and serves until the
//! catalog is replaced. The number of lists depends on the number of classes, not of clients.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::Guard;
use parking_lot::Mutex;

use super::{Authorizer, Principal};
use crate::catalog::Catalog;

/// How many views are kept. At one more class all are dropped, and each is rebuilt when it is next needed.
const MAX_VIEWS: usize = 256;

/// The views of a gateway.
#[derive(Default)]
pub(crate) struct Views {
    /// `None` if every principal may use everything: then the whole catalog is every principal's view.
    authorizer: Option<Arc<dyn Authorizer>>,
    known: Mutex<HashMap<Arc<str>, View>>,
}

struct View {
    /// The catalog that it was built from.
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
        if known.len() >= MAX_VIEWS && !known.contains_key(&class) {
            known.clear();
        }
        known.insert(class, View { whole: Arc::clone(&whole), seen: Arc::clone(&seen) });
        Guard::from_inner(seen)
    }
}
