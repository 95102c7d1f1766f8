//! What the principals of one class see: the catalog without what they may not use.
//!
//! A view is built when a principal of its class first asks, from the current catalog, and serves until the
//! catalog or the rules are replaced. A principal remembers its class, so a request that finds its view ready
//! compares two addresses. What is kept depends on the number of classes, not of principals: the views of
//! [`MAX_VIEWS`] classes, and the pages of their lists within a number of bytes (`Room`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

use super::{Action, Authorizer, Principal, Thing};
use crate::catalog::Catalog;
use crate::catalog::pages::Room;
use crate::catalog::view::Admission;

/// How many views are kept. With one more, that of the class that was unused for longest is dropped.
const MAX_VIEWS: usize = 256;

/// The views of a gateway.
pub(crate) struct Views {
    /// `None` if every principal may use everything: then the whole catalog is every principal's view.
    authorizer: Option<Arc<dyn Authorizer>>,
    /// Names the rules in effect, uniquely in this process; classes of other rules count no more.
    rules: AtomicU64,
    known: Mutex<HashMap<Arc<str>, Arc<Class>>>,
    /// How many views were built so far: the time by which classes are used or unused.
    built: AtomicU64,
    room: Arc<Room>,
}

/// All principals with the same decisions.
pub(crate) struct Class {
    name: Arc<str>,
    /// The rules under which it exists.
    rules: u64,
    view: ArcSwapOption<View>,
    /// How many views were built when it was last used.
    used: AtomicU64,
    /// Held while its view is built.
    building: Mutex<()>,
}

struct View {
    /// The catalog that it was built from. Only its address matters, which stays taken while this exists.
    whole: Weak<Catalog>,
    seen: Arc<Catalog>,
}

impl View {
    fn is_of(&self, whole: &Arc<Catalog>) -> bool {
        std::ptr::eq(self.whole.as_ptr(), Arc::as_ptr(whole))
    }
}

impl Views {
    /// Views whose prepared lists take at most `bytes`.
    pub(crate) fn new(authorizer: Option<Arc<dyn Authorizer>>, bytes: usize) -> Self {
        Self {
            authorizer,
            rules: AtomicU64::new(next_rules()),
            known: Mutex::default(),
            built: AtomicU64::new(0),
            room: Arc::new(Room::new(bytes)),
        }
    }

    pub(crate) fn authorizer(&self) -> Option<&Arc<dyn Authorizer>> {
        self.authorizer.as_ref()
    }

    /// What a principal sees of a catalog.
    #[inline]
    pub(crate) fn of(&self, principal: &Principal, whole: Guard<Arc<Catalog>>) -> Guard<Arc<Catalog>> {
        let Some(authorizer) = &self.authorizer else { return whole };
        let rules = self.rules.load(Ordering::Acquire);
        if let Some(class) = &*principal.class().load()
            && class.rules == rules
            && let Some(view) = &*class.view.load()
            && view.is_of(&whole)
        {
            self.touch(class);
            return Guard::from_inner(Arc::clone(&view.seen));
        }
        Guard::from_inner(self.build(&**authorizer, principal, rules, &whole))
    }

    /// What a principal last saw, if that is still known.
    pub(crate) fn last(&self, principal: &Principal) -> Option<Arc<Catalog>> {
        let class = self.class(&**self.authorizer.as_ref()?, principal, self.rules.load(Ordering::Acquire));
        let view = class.view.load();
        view.as_ref().map(|view| Arc::clone(&view.seen))
    }

    /// Forgets all classes: the rules have changed.
    pub(crate) fn renew(&self) {
        let mut known = self.known.lock();
        self.rules.store(next_rules(), Ordering::Release);
        known.clear();
    }

    /// Whether a principal may use nothing at all of a server.
    pub(crate) fn hides(&self, principal: &Principal, server: &str) -> bool {
        let Some(authorizer) = &self.authorizer else { return false };
        let may_use = |action| authorizer.may_use(principal, action, Some(server));
        ![Action::Call, Action::Get, Action::Read].into_iter().any(may_use)
    }

    fn touch(&self, class: &Class) {
        let now = self.built.load(Ordering::Relaxed);
        if class.used.load(Ordering::Relaxed) != now {
            class.used.store(now, Ordering::Relaxed);
        }
    }

    fn class(&self, authorizer: &dyn Authorizer, principal: &Principal, rules: u64) -> Arc<Class> {
        if let Some(class) = &*principal.class().load()
            && class.rules == rules
        {
            return Arc::clone(class);
        }
        let name = authorizer.class(principal);
        let class = match self.known.lock().get(&name) {
            Some(class) if class.rules == rules => Arc::clone(class),
            _ => Arc::new(Class {
                name,
                rules,
                view: ArcSwapOption::empty(),
                used: AtomicU64::new(0),
                building: Mutex::default(),
            }),
        };
        principal.class().store(Some(Arc::clone(&class)));
        class
    }

    #[cold]
    fn build(
        &self,
        authorizer: &dyn Authorizer,
        principal: &Principal,
        rules: u64,
        whole: &Arc<Catalog>,
    ) -> Arc<Catalog> {
        let class = self.keep(self.class(authorizer, principal, rules));
        principal.class().store(Some(Arc::clone(&class)));
        let _alone = class.building.lock();
        let before = class.view.load_full();
        if let Some(view) = before.as_ref().filter(|view| view.is_of(whole)) {
            return Arc::clone(&view.seen);
        }
        let admission = Admission {
            decide: &*authorizer.decide_for(principal),
            may_use: &|action, server| authorizer.may_use(principal, action, Some(server)),
            room: &self.room,
        };
        let seen = Arc::new(whole.seen_by(&admission, before.as_ref().map(|view| &*view.seen)));
        self.built.fetch_add(1, Ordering::Relaxed);
        self.touch(&class);
        class.view.store(Some(Arc::new(View { whole: Arc::downgrade(whole), seen: Arc::clone(&seen) })));
        seen
    }

    /// The class as all its principals share it. If there are too many classes, the view of one is dropped.
    fn keep(&self, class: Arc<Class>) -> Arc<Class> {
        let mut known = self.known.lock();
        if let Some(shared) = known.get(&class.name).filter(|shared| shared.rules == class.rules) {
            return Arc::clone(shared);
        }
        if class.rules != self.rules.load(Ordering::Acquire) {
            // The rules were replaced meanwhile; the next request asks again.
            return class;
        }
        if known.len() >= MAX_VIEWS {
            let unused =
                known.values().min_by_key(|class| class.used.load(Ordering::Relaxed)).map(Arc::clone);
            if let Some(unused) = unused {
                known.remove(&unused.name);
                // Its principals may remember the class, so it must not hold on to its view.
                unused.view.store(None);
            }
        }
        known.insert(Arc::clone(&class.name), Arc::clone(&class));
        class
    }
}

fn next_rules() -> u64 {
    static RULES: AtomicU64 = AtomicU64::new(1);
    RULES.fetch_add(1, Ordering::Relaxed)
}

/// A resource as an authorizer knows it.
pub(crate) const fn resource<'a>(server: Option<&'a str>, uri: &'a str) -> Thing<'a> {
    Thing { server, name: uri, read_only: true }
}
