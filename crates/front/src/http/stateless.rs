//! The sessions of modern clients: for each principal, one for each name that its clients give themselves.
//!
//! No principal ever uses what is kept for another. A name is only a label within a principal, because a client chooses it
//! freely: a principal has at most [`MOST_CLIENTS`] sessions, and beyond that the one that has been idle the longest goes. A
//! session that was not used for the idle time is dropped, and with it its own server processes; so is one whose credential is
//! revoked, as soon as its running calls have ended.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bridgehead_gateway::{Principal, Session};
use bridgehead_wire::{Object, Raw};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

/// How many sessions a principal has at most.
const MOST_CLIENTS: usize = 16;
/// The longest name, in characters.
const LONGEST_NAME: usize = 100;
/// A longer `clientInfo` (it may contain images) is not kept, but parsed again with each request.
const MOST_KEPT: usize = 1024;

/// The sessions of all principals that have sent a request recently.
#[derive(Debug)]
pub(crate) struct Stateless {
    /// The clients of each principal, the least recently used first.
    known: Mutex<HashMap<Principal, Vec<Known>>>,
    /// After how many sweeps in a row without a request a session is dropped.
    patience: u32,
}

#[derive(Debug)]
struct Known {
    name: Box<str>,
    /// The last `clientInfo` with that name: an equal one needs no parsing. `None` if it is too long to keep.
    info: Option<Box<str>>,
    session: Session,
    /// The principal as it was last authenticated.
    shown: Principal,
    /// How many sweeps have found it unused since its last request.
    unused: u32,
    /// Drops the session when its credential is revoked.
    _watch: Option<AbortOnDropHandle<()>>,
}

impl Stateless {
    /// Sessions that are dropped after `idle`, if [`Self::sweep`] is called every `sweep_interval`.
    pub(crate) fn new(idle: Duration, sweep_interval: Duration) -> Self {
        let sweeps = idle.as_millis().div_ceil(sweep_interval.as_millis().max(1));
        Self { known: Mutex::default(), patience: u32::try_from(sweeps).unwrap_or(u32::MAX) }
    }

    /// The session of a principal's client that introduces itself with this `clientInfo`.
    pub(crate) fn of(self: &Arc<Self>, principal: &Principal, client_info: Option<&Raw>) -> Session {
        let info = client_info.map(Raw::as_str).unwrap_or_default();
        let mut known = self.known.lock();
        let clients = match known.get_mut(principal) {
            Some(clients) => clients,
            None => known.entry(principal.clone()).or_default(),
        };
        if let Some(at) = clients.iter().rposition(|client| client.info.as_deref() == Some(info)) {
            return used(clients, at, principal);
        }
        let name = client_info.and_then(name).unwrap_or_default();
        let kept = (info.len() <= MOST_KEPT).then(|| Box::from(info));
        if let Some(at) = clients.iter().position(|client| *client.name == *name) {
            if let Some(client) = clients.get_mut(at) {
                client.info = kept;
            }
            return used(clients, at, principal);
        }
        if clients.len() >= MOST_CLIENTS {
            match clients.iter().position(|client| !client.session.is_in_use()) {
                Some(idle) => drop(clients.remove(idle)),
                // All are busy. Two clients of one principal then share a session.
                None => return used(clients, 0, principal),
            }
        }
        let session = Session::new();
        clients.push(Known {
            session: session.clone(),
            shown: principal.clone(),
            unused: 0,
            _watch: self.watch(principal, &name),
            name: name.into(),
            info: kept,
        });
        session
    }

    /// Drops the session of a client as soon as the credential that was shown last for it is revoked.
    fn watch(self: &Arc<Self>, principal: &Principal, name: &str) -> Option<AbortOnDropHandle<()>> {
        if !principal.validity().until_revoked().can_end() {
            return None;
        }
        let (stateless, mut shown, name) = (Arc::downgrade(self), principal.clone(), name.to_owned());
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                shown.validity().until_revoked().ended().await;
                match Weak::upgrade(&stateless).and_then(|stateless| stateless.drop_revoked(&shown, &name)) {
                    Some(newer) => shown = newer,
                    None => return,
                }
            }
        })))
    }

    /// Drops the session of a client, unless a credential was shown for it that is still good; returns that one.
    fn drop_revoked(&self, principal: &Principal, name: &str) -> Option<Principal> {
        let mut known = self.known.lock();
        let clients = known.get_mut(principal)?;
        let at = clients.iter().position(|client| *client.name == *name)?;
        let shown = clients.get(at).map(|client| client.shown.clone())?;
        if !shown.validity().is_revoked() {
            return Some(shown);
        }
        debug!(%principal, "a session ended: its credential was revoked");
        drop(clients.remove(at));
        if clients.is_empty() {
            known.remove(principal);
        }
        None
    }

    /// Drops the sessions that have been idle for too long. A request in progress counts as use.
    pub(crate) fn sweep(&self) {
        let patience = self.patience;
        self.known.lock().retain(|_, clients| {
            clients.retain_mut(|client| {
                client.unused = if client.session.is_in_use() { 0 } else { client.unused + 1 };
                client.unused <= patience
            });
            !clients.is_empty()
        });
    }
}

/// Marks a client as the one that was used last.
fn used(clients: &mut [Known], at: usize, principal: &Principal) -> Session {
    let Some(later) = clients.get_mut(at..) else { return Session::new() };
    if later.len() > 1 {
        later.rotate_left(1);
    }
    let Some(client) = later.last_mut() else { return Session::new() };
    client.unused = 0;
    if !client.shown.shares_credential(principal) {
        client.shown = principal.clone();
    }
    client.session.clone()
}

/// The name in a `clientInfo`.
fn name(info: &Raw) -> Option<String> {
    let name = Object::parse(info).ok()?.get("name")?.to_text()?;
    Some(name.chars().take(LONGEST_NAME).collect())
}

#[cfg(test)]
mod tests {
    use bridgehead_gateway::Validity;
    use tokio_util::sync::CancellationToken;

    use super::*;

    const EVERY: Duration = Duration::from_secs(15);

    fn stateless() -> Arc<Stateless> {
        Arc::new(Stateless::new(EVERY * 4, EVERY))
    }

    fn info(text: &str) -> Option<Raw> {
        Some(Raw::parse(text.to_owned()).unwrap())
    }

    fn named(name: &str) -> Option<Raw> {
        info(&format!(r#"{{"name":"{name}","version":"1"}}"#))
    }

    /// GATE-3: each principal has its own session, and the same one from request to request.
    #[test]
    fn a_session_for_each_principal() {
        let stateless = stateless();
        let (ada, bob) = (Principal::named("ada"), Principal::named("bob"));
        assert_eq!(stateless.of(&ada, None), stateless.of(&ada, None));
        assert_ne!(stateless.of(&ada, None), stateless.of(&bob, None));
        assert_ne!(stateless.of(&ada, named("x").as_ref()), stateless.of(&bob, named("x").as_ref()));
    }

    /// ACC-1, GATE-3: a client of a principal is known by its name, whatever else it says about itself.
    #[test]
    fn a_session_for_each_client_name() {
        let stateless = stateless();
        let ada = Principal::named("ada");
        let of = |info: &Option<Raw>| stateless.of(&ada, info.as_ref());
        let editor = of(&named("editor"));
        assert_eq!(of(&info(r#"{"version":"2","name":"editor"}"#)), editor);
        assert_eq!(of(&named("editor")), editor);
        let long = format!(r#"{{"name":"editor","icons":"{}"}}"#, "x".repeat(MOST_KEPT));
        assert_eq!(of(&info(&long)), editor);
        let nameless = of(&None);
        assert_ne!(nameless, editor, "a text that is not kept is not an absent one");
        for same in ["{}", r#"{"name":7}"#, r#"{"name":""}"#] {
            assert_eq!(of(&info(same)), nameless, "{same}");
        }
        assert_ne!(of(&named("other")), editor);
        let longest = "n".repeat(LONGEST_NAME);
        assert_eq!(of(&named(&longest)), of(&named(&format!("{longest}n"))), "a name has a maximum length");
    }

    /// ACC-1: a principal has a bounded number of sessions. The idle one that was used the longest ago makes way; if none is
    /// idle, clients of the principal share one.
    #[test]
    fn the_sessions_of_a_principal_are_bounded() {
        let stateless = stateless();
        let (ada, bob) = (Principal::named("ada"), Principal::named("bob"));
        let of = |number: usize| stateless.of(&ada, named(&format!("c{number}")).as_ref());
        let numbers: Vec<_> = (0..MOST_CLIENTS).map(|number| format!("{:?}", of(number))).collect();
        let busy = of(1);
        drop(of(0));
        drop(of(MOST_CLIENTS));
        let names = || -> Vec<String> {
            stateless.known.lock()[&ada].iter().map(|client| client.name.to_string()).collect()
        };
        assert_eq!(names().len(), MOST_CLIENTS);
        assert!(!names().contains(&"c2".to_owned()), "neither the busy one nor the one that was used again");
        assert!(numbers.len() == MOST_CLIENTS && of(1) == busy);
        let held: Vec<_> = names().iter().map(|name| stateless.of(&ada, named(name).as_ref())).collect();
        assert!(held.contains(&of(MOST_CLIENTS + 1)), "all are busy, so one is shared");
        assert_eq!(names().len(), MOST_CLIENTS);
        assert!(!held.contains(&stateless.of(&bob, named("c1").as_ref())), "never with another principal");
    }

    /// GATE-3: an unused session is dropped after the idle time, one with a request in progress stays.
    #[test]
    fn an_idle_session_goes() {
        let stateless = stateless();
        let (idle, busy, back) =
            (Principal::named("idle"), Principal::named("busy"), Principal::named("back"));
        drop(stateless.of(&idle, None));
        let held = stateless.of(&busy, None);
        drop(stateless.of(&back, None));
        for _ in 0..4 {
            stateless.sweep();
        }
        assert_eq!(stateless.known.lock().len(), 3, "not before the time is over");
        drop(stateless.of(&back, None));
        stateless.sweep();
        let known = stateless.known.lock();
        assert!(!known.contains_key(&idle) && known.contains_key(&back));
        assert_eq!(known[&busy][0].session, held);
    }

    /// ACC-2 (case 11): the session of a revoked credential goes at once, unless its client has shown a good one since. One
    /// that only expires stays until it is idle.
    #[tokio::test(start_paused = true)]
    async fn a_revoked_credential_ends_its_session() {
        let stateless = stateless();
        let (first, second) = (CancellationToken::new(), CancellationToken::new());
        let by = |revoked: &CancellationToken| {
            let expires = Some(tokio::time::Instant::now());
            Principal::named("ada").valid(Validity::new(Some(revoked.clone()), expires))
        };
        let session = stateless.of(&by(&first), None);
        tokio::time::sleep(EVERY).await;
        assert_eq!(stateless.of(&by(&first), None), session, "expired, and shown again");
        assert_eq!(stateless.of(&by(&second), None), session, "another key of the same principal");
        first.cancel();
        tokio::time::sleep(EVERY).await;
        assert_eq!(stateless.of(&by(&second), None), session);
        second.cancel();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(stateless.known.lock().is_empty());
        assert!(!session.is_in_use(), "what it owns ends with its last request");
    }
}
