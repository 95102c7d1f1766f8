//! What clients are told unprompted: changes of lists, resources and tasks, and log lines.
//!
//! A client that does not read costs no more memory than what it asked for. A changed list or resource is
//! reported once, however often it changes; of a task only the current state is kept; the oldest log lines
//! are dropped. A feed belongs to a legacy session, which subscribes as it goes along, or to one
//! `subscriptions/listen`, whose filter is fixed and whose messages carry its id.

pub(crate) mod subscriptions;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use bridgehead_upstream::{Lists, Watch};
use bridgehead_wire::held::{Budget, NoRoom, Reservation};
use bridgehead_wire::{Level, Method, Object, Raw, Spliced, key, notification};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::access::Principal;
use crate::catalog::Catalog;
use crate::gate::CallRecord;
use crate::relay::request::Outcome;

/// How many unread log lines are kept for one client.
const MOST_LINES: usize = 256;
/// How many resources one client may follow, and how many tasks.
pub(crate) const MOST_RESOURCES: usize = 4_096;
/// What a followed resource or task costs, besides its name, which is kept a few times.
const FOLLOWED: usize = 1_024;
const NAMES: usize = 4;

/// The feeds of all clients. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Feeds(Arc<Mutex<Vec<Weak<Inner>>>>);

/// What one client is told. Clones share one feed; a message taken from one is gone from all.
#[derive(Debug, Clone)]
pub struct Feed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The id of the `subscriptions/listen` that it belongs to.
    listen: Option<Raw>,
    /// The number of the session that it belongs to.
    session: Option<u64>,
    /// Whose it is, as last authenticated; `None` if its owner may hear everything.
    principal: Option<Mutex<Principal>>,
    /// Cancelled when the principal lost something that it listens to.
    ended: CancellationToken,
    lists: Lists,
    /// The wanted log level plus one; 0 for no log lines. Read with every call.
    level: AtomicU8,
    state: Mutex<FeedState>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct FeedState {
    resources: HashMap<String, FollowedResource>,
    changed: Lists,
    updated: VecDeque<(String, Raw)>,
    tasks: HashMap<TaskOrigin, FollowedTask>,
    lines: VecDeque<Raw>,
}

/// What clients saw before a change.
#[derive(Debug, Default)]
pub(crate) struct SeenBefore(HashMap<usize, Arc<Catalog>>);

/// A resource that a client follows. The record of the request that subscribed ends with it.
#[derive(Debug, Default)]
struct FollowedResource {
    /// `None` for a resource of this program, and while the server of any other is gone.
    watch: Option<Watch>,
    record: Option<CallRecord>,
    /// Its memory, on the account of its principal.
    held: Option<Reservation>,
}

impl Drop for FollowedResource {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            end(record);
        }
    }
}

fn end(record: CallRecord) {
    record.exit(Outcome::Prepared(Raw::literal("{}").into()));
}

/// Identifies a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TaskOrigin {
    pub(crate) server: String,
    /// The session, if the task is in a process of that session's own.
    pub(crate) session: Option<u64>,
    /// The server's id of the task.
    pub(crate) own: String,
}

#[derive(Debug)]
struct FollowedTask {
    /// The id that the client knows it by.
    offered: String,
    /// The tool whose call became the task, by the server's name of it.
    tool: String,
    watch: Option<Watch>,
    /// Its current state, if the client has not been told yet.
    state: Option<Raw>,
    /// Its memory, on the account of its principal.
    _held: Option<Reservation>,
}

impl Feeds {
    /// Opens the feed of a legacy session that may hear everything: all lists, and what it subscribes to later.
    pub fn open_session(&self, session: u64) -> Feed {
        self.open(None, Some(session), None, Lists::ALL)
    }

    /// Opens the feed of a principal's legacy session.
    pub(crate) fn open_session_of(&self, principal: &Principal, session: u64) -> Feed {
        self.open(None, Some(session), Some(principal.clone()), Lists::ALL)
    }

    /// Opens the feed of a `subscriptions/listen`.
    pub(crate) fn open_listen(&self, principal: &Principal, id: Raw, lists: Lists) -> Feed {
        self.open(Some(id), None, Some(principal.clone()), lists)
    }

    fn open(
        &self,
        listen: Option<Raw>,
        session: Option<u64>,
        principal: Option<Principal>,
        lists: Lists,
    ) -> Feed {
        let inner = Inner {
            listen,
            session,
            principal: principal.map(Mutex::new),
            ended: CancellationToken::new(),
            lists,
            level: AtomicU8::new(0),
            state: Mutex::default(),
            bell: Notify::new(),
        };
        let feed = Feed(Arc::new(inner));
        let mut feeds = self.0.lock();
        feeds.retain(|feed| feed.strong_count() > 0);
        feeds.push(Arc::downgrade(&feed.0));
        feed
    }

    fn each(&self, visit: impl Fn(&Inner)) {
        let feeds: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        feeds.iter().for_each(|feed| visit(feed));
    }

    /// Reports that these lists have changed.
    pub fn changed(&self, lists: Lists) {
        if lists.is_empty() {
            return;
        }
        self.each(|feed| feed.changed(lists));
    }

    /// What each client sees now, as far as `last` knows.
    pub(crate) fn seen(&self, last: impl Fn(&Principal) -> Option<Arc<Catalog>>) -> SeenBefore {
        let feeds: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let seen = feeds.into_iter().filter_map(|feed| {
            let seen = last(&feed.principal()?)?;
            Some((feed.number(), seen))
        });
        SeenBefore(seen.collect())
    }

    /// Reports to each client the lists that have changed for it: `changed` compares what its principal sees with what it
    /// saw before.
    pub(crate) fn changed_for(
        &self,
        before: &SeenBefore,
        changed: impl Fn(&Principal, Option<&Catalog>) -> Lists,
    ) {
        self.each(|feed| match feed.principal() {
            Some(principal) => {
                feed.changed(changed(&principal, before.0.get(&feed.number()).map(|seen| &**seen)));
            }
            None => feed.changed(Lists::ALL),
        });
    }

    /// Ends what clients follow and may not follow any more. A `subscriptions/listen` that lost something ends altogether,
    /// because what it follows was agreed with its client.
    pub(crate) fn review(
        &self,
        may_read: impl Fn(&Principal, &str) -> bool,
        may_call: impl Fn(&Principal, &str, &str) -> bool,
    ) {
        self.each(|feed| {
            let Some(principal) = feed.principal() else { return };
            let (uris, tasks) = {
                let state = feed.state.lock();
                let tasks = state.tasks.iter().map(|(place, task)| (place.clone(), task.tool.clone()));
                (state.resources.keys().cloned().collect::<Vec<_>>(), tasks.collect::<Vec<_>>())
            };
            let lost: Vec<String> = uris.into_iter().filter(|uri| !may_read(&principal, uri)).collect();
            let lost_tasks: Vec<TaskOrigin> = tasks
                .into_iter()
                .filter(|(place, tool)| !may_call(&principal, &place.server, tool))
                .map(|(place, _)| place)
                .collect();
            if feed.listen.is_some() && !(lost.is_empty() && lost_tasks.is_empty()) {
                feed.ended.cancel();
            }
            lost.iter().for_each(|uri| feed.leave(uri));
            let mut state = feed.state.lock();
            let left: Vec<_> = lost_tasks.iter().map(|place| state.tasks.remove(place)).collect();
            drop(state);
            drop(left);
        });
    }

    /// Reports that a resource has changed, to those who may read it. If `session` is set, only that session
    /// is told: its own server said so.
    pub(crate) fn updated(&self, session: Option<u64>, params: &Raw, may_read: impl Fn(&Principal) -> bool) {
        let uri = Object::parse(params).ok().and_then(|params| params.get("uri")?.to_text());
        let Some(uri) = uri else { return };
        self.each(|feed| {
            if session.is_some() && feed.session != session {
                return;
            }
            let mut state = feed.state.lock();
            let wanted = state.resources.contains_key(&uri)
                || state.resources.keys().any(|wanted| is_within(&uri, wanted));
            if !wanted || state.updated.iter().any(|(known, _)| *known == uri) {
                return;
            }
            if !feed.principal().as_ref().is_none_or(&may_read) {
                return;
            }
            // A followed resource may have any number of sub-resources.
            if state.updated.len() < MOST_RESOURCES {
                state.updated.push_back((uri.clone(), params.detached()));
            }
            drop(state);
            feed.bell.notify_one();
        });
    }

    /// Reports that a task has changed. `tell` makes the params for the id that a client knows the task by.
    pub(crate) fn task_changed(&self, place: &TaskOrigin, tell: impl Fn(&str) -> Raw) {
        self.each(|feed| {
            let mut state = feed.state.lock();
            let Some(task) = state.tasks.get_mut(place) else { return };
            task.state = Some(tell(&task.offered));
            drop(state);
            feed.bell.notify_one();
        });
    }

    /// Passes on a log line that belongs to no single request, to sessions that asked for its level and may
    /// hear it.
    pub(crate) fn logged(
        &self,
        session: Option<u64>,
        level: Level,
        params: &Raw,
        may_hear: impl Fn(&Principal) -> bool,
    ) {
        self.each(|feed| {
            if session.is_some() && feed.session != session {
                return;
            }
            if feed.level().is_none_or(|wanted| level < wanted) {
                return;
            }
            if !feed.principal().as_ref().is_none_or(&may_hear) {
                return;
            }
            let mut state = feed.state.lock();
            if state.lines.len() >= MOST_LINES {
                state.lines.pop_front();
            }
            state.lines.push_back(params.detached());
            drop(state);
            feed.bell.notify_one();
        });
    }

    /// Ends the records of all subscriptions, when no server reports changes any more.
    pub(crate) fn end_records(&self) {
        self.each(|feed| {
            let records: Vec<CallRecord> = {
                let mut state = feed.state.lock();
                state.resources.values_mut().filter_map(|followed| followed.record.take()).collect()
            };
            records.into_iter().for_each(end);
        });
    }

    /// Finds servers again for followed resources and tasks whose watch is over.
    pub(crate) fn watch_again(
        &self,
        watch: impl Fn(Option<&Principal>, &str) -> Option<Watch>,
        watch_task: impl Fn(&TaskOrigin) -> Option<Watch>,
    ) {
        self.each(|feed| {
            let lost: Vec<TaskOrigin> = {
                let state = feed.state.lock();
                let is_lost = |task: &FollowedTask| task.watch.as_ref().is_none_or(Watch::is_over);
                state.tasks.iter().filter(|(_, task)| is_lost(task)).map(|(place, _)| place.clone()).collect()
            };
            for place in lost {
                let found = watch_task(&place);
                if let Some(task) = feed.state.lock().tasks.get_mut(&place) {
                    task.watch = found;
                }
            }
            let lost: Vec<String> = {
                let state = feed.state.lock();
                let lost = state
                    .resources
                    .iter()
                    .filter(|(_, followed)| followed.watch.as_ref().is_none_or(Watch::is_over));
                lost.map(|(uri, _)| uri.clone()).collect()
            };
            for uri in lost {
                let found = watch(feed.principal().as_ref(), &uri);
                if let Some(held) = feed.state.lock().resources.get_mut(&uri) {
                    held.watch = found;
                }
            }
        });
    }
}

impl Feed {
    /// The next message, whole and encoded. Nothing is lost if the future is dropped.
    pub async fn next(&self) -> Bytes {
        loop {
            if let Some(message) = self.0.take() {
                return message;
            }
            self.0.bell.notified().await;
        }
    }

    /// Judges what it tells by this principal from now on: the client of a session may come back with a credential that gives
    /// it more or fewer rights.
    pub(crate) fn shown(&self, principal: &Principal) {
        if let Some(known) = &self.0.principal {
            known.lock().clone_from(principal);
        }
    }

    /// The lowest wanted log level; `None` before the client asked for log lines.
    pub(crate) fn level(&self) -> Option<Level> {
        self.0.level()
    }

    pub(crate) fn set_level(&self, level: Level) {
        self.0.level.store(level as u8 + 1, Ordering::Release);
    }

    /// Follows a resource. Returns whether there was room.
    pub(crate) fn follow(&self, uri: &str, watch: Option<Watch>) -> bool {
        self.follow_with(uri, || FollowedResource { watch, record: None, held: None })
    }

    /// Follows a resource for a `resources/subscribe` request, whose record stays open until the subscription
    /// ends.
    pub(crate) fn subscribe(&self, uri: &str, watch: Option<Watch>, record: &mut CallRecord) -> bool {
        self.follow_with(uri, || FollowedResource { watch, record: Some(record.keep()), held: None })
    }

    fn follow_with(&self, uri: &str, followed: impl FnOnce() -> FollowedResource) -> bool {
        let Ok(held) = self.0.reserve(uri) else { return false };
        let mut state = self.0.state.lock();
        if state.resources.len() >= MOST_RESOURCES && !state.resources.contains_key(uri) {
            return false;
        }
        let mut followed = followed();
        followed.held = held;
        let before = state.resources.insert(uri.to_owned(), followed);
        drop(state);
        drop(before);
        true
    }

    /// Follows a task under the id that the client knows it by. Returns whether there was room.
    pub(crate) fn follow_task(&self, place: TaskOrigin, tool: String, offered: &str, watch: Watch) -> bool {
        let Ok(held) = self.0.reserve(offered) else { return false };
        let mut state = self.0.state.lock();
        let room = state.tasks.len() < MOST_RESOURCES || state.tasks.contains_key(&place);
        if room {
            let (offered, watch) = (offered.to_owned(), Some(watch));
            let task = FollowedTask { offered, tool, watch, state: None, _held: held };
            state.tasks.insert(place, task);
        }
        room
    }

    /// Stops following a resource.
    pub(crate) fn leave(&self, uri: &str) {
        self.0.leave(uri);
    }

    /// Resolves when its principal lost something that it listens to.
    pub(crate) async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// Drops everything: the client wants nothing any more.
    pub(crate) fn close(&self) {
        self.0.level.store(0, Ordering::Release);
        let state = std::mem::take(&mut *self.0.state.lock());
        drop(state);
    }
}

impl Inner {
    /// Reserves the memory for following something, on the account of the principal.
    fn reserve(&self, name: &str) -> Result<Option<Reservation>, NoRoom> {
        let Some(principal) = self.principal() else { return Ok(None) };
        Budget::process().of(principal.id()).reserve(FOLLOWED + NAMES * name.len()).map(Some)
    }

    /// Identifies it among those that exist.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn principal(&self) -> Option<Principal> {
        self.principal.as_ref().map(|principal| principal.lock().clone())
    }

    fn changed(&self, lists: Lists) {
        let wanted = self.lists.and(lists);
        if !wanted.is_empty() {
            let mut state = self.state.lock();
            state.changed = state.changed | wanted;
            drop(state);
            self.bell.notify_one();
        }
    }

    fn leave(&self, uri: &str) {
        let mut state = self.state.lock();
        let left = state.resources.remove(uri);
        state.updated.retain(|(updated, _)| updated != uri && !is_within(updated, uri));
        drop(state);
        drop(left);
    }

    fn level(&self) -> Option<Level> {
        let number = usize::from(self.level.load(Ordering::Acquire));
        number.checked_sub(1).and_then(|number| Level::ALL.get(number)).copied()
    }

    fn take(&self) -> Option<Bytes> {
        let mut state = self.state.lock();
        for (list, method) in [
            (Lists::TOOLS, Method::ToolsListChanged),
            (Lists::PROMPTS, Method::PromptsListChanged),
            (Lists::RESOURCES, Method::ResourcesListChanged),
        ] {
            if state.changed.has(list) {
                state.changed = state.changed.without(list);
                drop(state);
                return Some(self.message(&method, None));
            }
        }
        if let Some((_, params)) = state.updated.pop_front() {
            drop(state);
            return Some(self.message(&Method::ResourceUpdated, Some(&params)));
        }
        if let Some(params) = state.tasks.values_mut().find_map(|task| task.state.take()) {
            drop(state);
            return Some(self.message(&Method::TaskChanged, Some(&params)));
        }
        let line = state.lines.pop_front()?;
        drop(state);
        Some(self.message(&Method::LogMessage, Some(&line)))
    }

    fn message(&self, method: &Method, params: Option<&Raw>) -> Bytes {
        let mut out = BytesMut::new();
        let params = match &self.listen {
            Some(id) => Some(tagged(params, id)),
            None => params.map(untagged),
        };
        notification(&mut out, method.as_str(), params.as_ref());
        out.freeze()
    }
}

/// Params with the id of the `subscriptions/listen` they belong to.
pub(crate) fn tagged(params: Option<&Raw>, id: &Raw) -> Spliced {
    let params = params.and_then(|params| Object::parse(params).ok()).unwrap_or_else(Object::empty);
    let meta = params.get(key::META).and_then(|meta| Object::parse(&meta).ok()).unwrap_or_else(Object::empty);
    let mut meta = meta.edit();
    meta.remove_if(|name| name.starts_with(key::HOP_PREFIX.as_bytes()));
    meta.set(key::SUBSCRIPTION_ID, id.clone());
    let mut edit = params.edit();
    edit.set(key::META, meta.finish());
    edit.finish()
}

/// Params without the members that belong to the previous hop.
fn untagged(params: &Raw) -> Spliced {
    let Ok(object) = Object::parse(params) else { return params.clone().into() };
    let Some(meta) = object.get(key::META).and_then(|meta| Object::parse(&meta).ok()) else {
        return params.clone().into();
    };
    let mut kept = meta.edit();
    kept.remove_if(|name| name.starts_with(key::HOP_PREFIX.as_bytes()));
    let kept = kept.finish().to_raw();
    let mut edit = object.edit();
    match Object::parse(&kept) {
        Ok(kept) if kept.is_empty() => edit.remove(key::META),
        _ => edit.set(key::META, kept),
    };
    edit.finish()
}

/// Whether `uri` is a part of the resource `whole`.
fn is_within(uri: &str, whole: &str) -> bool {
    uri.strip_prefix(whole).is_some_and(|rest| whole.ends_with('/') || rest.starts_with(['/', '?', '#']))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn now(feed: &Feed) -> Option<String> {
        let message = feed.next().now_or_never()?;
        Some(String::from_utf8(message.to_vec()).unwrap())
    }

    /// BOUND-3: what a principal follows is charged to its account, whatever streams it is followed on; what does not fit is not
    /// followed, and what has ended costs nothing.
    #[test]
    fn what_is_followed_is_charged_to_its_principal() {
        let feeds = Feeds::default();
        let eve = Principal::named("eve, who follows much");
        let held = || Budget::process().of(eve.id()).held();
        let listen = |number: usize| feeds.open_listen(&eve, Raw::encode(&number), Lists::NONE);
        let mut streams = Vec::new();
        let full = (0..64).any(|number| {
            let stream = listen(number);
            let followed = (0..MOST_RESOURCES).all(|at| stream.follow(&format!("note://{at}"), None));
            streams.push(stream);
            !followed
        });
        assert!(full && held() > 60 << 20 && held() <= 64 << 20, "{} streams hold {}", streams.len(), held());
        assert!(
            feeds
                .open_listen(&Principal::named("ada"), Raw::encode(&1), Lists::NONE)
                .follow("note://1", None)
        );
        streams.truncate(1);
        assert!(held() < 6 << 20, "{}", held());
        assert!(listen(99).follow("note://1", None));
        streams.clear();
        assert_eq!(held(), 0);
    }

    /// ERA-1: a changed list is reported once, on the feeds that asked for it, with the id of their listen.
    #[test]
    fn lists_are_told_once() {
        let feeds = Feeds::default();
        let session = feeds.open_session(1);
        let listen = feeds.open_listen(&Principal::local(), Raw::string("l"), Lists::PROMPTS);
        assert_eq!(now(&session), None);
        feeds.changed(Lists::TOOLS);
        feeds.changed(Lists::TOOLS | Lists::PROMPTS);
        let told =
            |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}/list_changed"}}"#);
        assert_eq!(now(&session), Some(told("tools")));
        assert_eq!(now(&session), Some(told("prompts")));
        assert_eq!(now(&session), None);
        assert_eq!(
            now(&listen).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}"#
        );
        assert_eq!(now(&listen), None);
    }

    /// ERA-1: a change of a resource, or of a part of it, is reported to its followers with everything the
    /// server said.
    #[test]
    fn resources_are_told_to_their_followers() {
        let feeds = Feeds::default();
        let (one, other) =
            (feeds.open_session(1), feeds.open_listen(&Principal::local(), Raw::literal("7"), Lists::NONE));
        assert!(one.follow("a://b", None) && other.follow("a://b/", None));
        let params = Raw::literal(
            r#"{"uri":"a://b/c","x":1.0,"_meta":{"io.modelcontextprotocol/subscriptionId":3,"v/k":1}}"#,
        );
        feeds.updated(None, &params, |_| true);
        feeds.updated(None, &params, |_| true);
        feeds.updated(None, &Raw::literal(r#"{"uri":"a://bc"}"#), |_| true);
        feeds.updated(None, &Raw::literal("{}"), |_| true);
        assert_eq!(
            now(&one).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a://b/c","x":1.0,"_meta":{"v/k":1}}}"#
        );
        assert_eq!(now(&one), None);
        assert!(now(&other).unwrap().contains(r#""io.modelcontextprotocol/subscriptionId":7"#));
        feeds.updated(Some(2), &params, |_| true);
        assert_eq!(now(&one), None, "it was another session's own server");
        feeds.updated(Some(1), &params, |_| true);
        one.leave("a://b");
        assert_eq!(now(&one), None);
    }

    /// Log lines go to sessions that asked for their level; if there are too many, the oldest are dropped.
    #[test]
    fn log_lines_by_level() {
        let feeds = Feeds::default();
        let feed = feeds.open_session(1);
        let line = |number: usize| Raw::encode(&serde_json::json!({"level": "error", "data": number}));
        feeds.logged(None, Level::Error, &line(0), |_| true);
        assert_eq!(now(&feed), None, "the client asked for no log lines");
        feed.set_level(Level::Warning);
        feeds.logged(None, Level::Notice, &line(1), |_| true);
        assert_eq!(now(&feed), None, "below the wanted level");
        feeds.logged(Some(2), Level::Error, &line(1), |_| true);
        assert_eq!(now(&feed), None, "it was another session's own server");
        for (session, level) in [(None, Level::Warning), (Some(1), Level::Emergency)] {
            feeds.logged(session, level, &line(7), |_| true);
            assert!(now(&feed).unwrap().contains(r#""data":7"#), "{level:?}");
        }
        for number in 0..MOST_LINES + 2 {
            feeds.logged(None, Level::Error, &line(number), |_| true);
        }
        for number in 2..MOST_LINES + 2 {
            assert!(now(&feed).unwrap().contains(&format!(r#""data":{number},"#)), "{number}");
        }
        assert_eq!(now(&feed), None);
        feeds.logged(None, Level::Error, &line(0), |_| true);
        feed.close();
        assert_eq!(now(&feed), None);
    }

    /// ACC-3: what a session is told is judged by the principal that was shown last. A feed without one hears everything.
    #[test]
    fn a_feed_is_judged_by_who_was_shown_last() {
        let feeds = Feeds::default();
        let (ada, eve) = (Principal::named("ada"), Principal::named("eve"));
        let (own, open) = (feeds.open_session_of(&ada, 1), feeds.open_session(2));
        assert!(own.follow("a:x", None) && open.follow("a:x", None));
        for (shown, hears) in [(None, true), (Some(&eve), false), (Some(&ada), true)] {
            for feed in [&own, &open] {
                shown.inspect(|shown| feed.shown(shown));
            }
            feeds.updated(None, &Raw::literal(r#"{"uri":"a:x"}"#), |principal| *principal == ada);
            assert_eq!((now(&own).is_some(), now(&open).is_some()), (hears, true), "{shown:?}");
        }
    }
}
