//! What clients are told of their own accord: lists, resources and tasks that changed, log lines.
//!
//! A client that does not read costs no more than what it asked for: a list is told once however often it changed, so
//! is a resource, of a task only how it is doing now, and of log lines the oldest go. A feed belongs to a legacy session, which asks for things as it goes
//! along, or to one `subscriptions/listen`, whose wishes are fixed and whose messages carry its id.

pub(crate) mod subscriptions;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use bridgehead_upstream::{Lists, Watch};
use bridgehead_wire::{Level, Method, Object, Raw, Spliced, key, notification};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::gate::CallRecord;
use crate::relay::request::Outcome;

/// How many log lines may wait for one client.
const MOST_LINES: usize = 256;
/// How many resources one client may follow, and how many tasks.
pub(crate) const MOST_RESOURCES: usize = 4_096;

/// The feeds of all clients. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Feeds(Arc<Mutex<Vec<Weak<Inner>>>>);

/// What one client is told. Clones are the same feed; what is taken from one is gone from all.
#[derive(Debug, Clone)]
pub struct Feed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The id of the listen that it belongs to.
    listen: Option<Raw>,
    /// The number of the session that it belongs to.
    session: Option<u64>,
    lists: Lists,
    /// The level of log lines that are wanted, one above its number; 0 for none. Looked at with every call.
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

/// A resource whose changes are wanted. The record of who asked for it ends with it.
#[derive(Debug, Default)]
struct FollowedResource {
    watch: Option<Watch>,
    record: Option<CallRecord>,
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

/// Where a task is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TaskOrigin {
    pub(crate) server: String,
    /// The session whose own process it is in.
    pub(crate) session: Option<u64>,
    /// The server's id of it.
    pub(crate) own: String,
}

#[derive(Debug)]
struct FollowedTask {
    /// The id that the client knows it by.
    offered: String,
    watch: Option<Watch>,
    /// How it is doing, if that has not been told.
    state: Option<Raw>,
}

impl Feeds {
    /// The feed of a legacy session: all lists, and what it asks for later.
    pub fn open_session(&self, session: u64) -> Feed {
        self.open(None, Some(session), Lists::ALL)
    }

    /// The feed of a listen.
    pub(crate) fn open_listen(&self, id: Raw, lists: Lists) -> Feed {
        self.open(Some(id), None, lists)
    }

    fn open(&self, listen: Option<Raw>, session: Option<u64>, lists: Lists) -> Feed {
        let inner = Inner {
            listen,
            session,
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

    /// These lists are others now.
    pub fn changed(&self, lists: Lists) {
        if lists.is_empty() {
            return;
        }
        self.each(|feed| {
            let wanted = feed.lists.and(lists);
            if !wanted.is_empty() {
                let mut state = feed.state.lock();
                state.changed = state.changed | wanted;
                drop(state);
                feed.bell.notify_one();
            }
        });
    }

    /// A resource reads otherwise now; `session` is the only one whose server said so, if it is one.
    pub(crate) fn updated(&self, session: Option<u64>, params: &Raw) {
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
            // What is within a resource may have any number of names.
            if state.updated.len() < MOST_RESOURCES {
                state.updated.push_back((uri.clone(), params.detached()));
            }
            drop(state);
            feed.bell.notify_one();
        });
    }

    /// A task is in another state now: `tell` gives what of it is told under the id that a client knows it by.
    pub(crate) fn task_changed(&self, place: &TaskOrigin, tell: impl Fn(&str) -> Raw) {
        self.each(|feed| {
            let mut state = feed.state.lock();
            let Some(task) = state.tasks.get_mut(place) else { return };
            task.state = Some(tell(&task.offered));
            drop(state);
            feed.bell.notify_one();
        });
    }

    /// A log line that belongs to no single request: for sessions that asked for such lines.
    pub(crate) fn logged(&self, session: Option<u64>, level: Level, params: &Raw) {
        self.each(|feed| {
            if session.is_some() && feed.session != session {
                return;
            }
            if feed.level().is_none_or(|wanted| level < wanted) {
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

    /// Ends the records of all that is followed: no server tells anything any more.
    pub(crate) fn end_records(&self) {
        self.each(|feed| {
            let records: Vec<CallRecord> = {
                let mut state = feed.state.lock();
                state.resources.values_mut().filter_map(|followed| followed.record.take()).collect()
            };
            records.into_iter().for_each(end);
        });
    }

    /// Looks for servers to tell of the resources and the tasks that nobody tells of any more.
    pub(crate) fn watch_again(
        &self,
        watch: impl Fn(&str) -> Option<Watch>,
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
                let found = watch(&uri);
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

    /// The least grave log lines that are wanted; none before they were asked for.
    pub(crate) fn level(&self) -> Option<Level> {
        self.0.level()
    }

    pub(crate) fn set_level(&self, level: Level) {
        self.0.level.store(level as u8 + 1, Ordering::Release);
    }

    /// Changes of this resource are wanted. Says whether there was room for it.
    pub(crate) fn follow(&self, uri: &str, watch: Option<Watch>) -> bool {
        self.follow_with(uri, || FollowedResource { watch, record: None })
    }

    /// The same for who asked for it by a request of its own, whose record is kept until this is over.
    pub(crate) fn subscribe(&self, uri: &str, watch: Watch, record: &mut CallRecord) -> bool {
        self.follow_with(uri, || FollowedResource { watch: Some(watch), record: Some(record.keep()) })
    }

    fn follow_with(&self, uri: &str, followed: impl FnOnce() -> FollowedResource) -> bool {
        let mut state = self.0.state.lock();
        if state.resources.len() >= MOST_RESOURCES && !state.resources.contains_key(uri) {
            return false;
        }
        let before = state.resources.insert(uri.to_owned(), followed());
        drop(state);
        drop(before);
        true
    }

    /// How this task is doing is wanted, under the id that the client knows it by. Says whether there was room for it.
    pub(crate) fn follow_task(&self, place: TaskOrigin, offered: &str, watch: Watch) -> bool {
        let mut state = self.0.state.lock();
        let room = state.tasks.len() < MOST_RESOURCES || state.tasks.contains_key(&place);
        if room {
            let task = FollowedTask { offered: offered.to_owned(), watch: Some(watch), state: None };
            state.tasks.insert(place, task);
        }
        room
    }

    /// They no longer are.
    pub(crate) fn leave(&self, uri: &str) {
        let mut state = self.0.state.lock();
        let left = state.resources.remove(uri);
        state.updated.retain(|(updated, _)| updated != uri && !is_within(updated, uri));
        drop(state);
        drop(left);
    }

    /// Nothing is wanted any more.
    pub(crate) fn close(&self) {
        self.0.level.store(0, Ordering::Release);
        let state = std::mem::take(&mut *self.0.state.lock());
        drop(state);
    }
}

impl Inner {
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

/// Params that name the listen they belong to.
pub(crate) fn tagged(params: Option<&Raw>, id: &Raw) -> Spliced {
    let params = params.and_then(|params| Object::parse(params).ok()).unwrap_or_else(Object::empty);
    let meta = params.get(key::META).and_then(|meta| Object::parse(&meta).ok()).unwrap_or_else(Object::empty);
    let mut meta = meta.edit();
    meta.remove_if(|name| name.starts_with(key::HOP_PREFIX));
    meta.set(key::SUBSCRIPTION_ID, id.clone());
    let mut edit = params.edit();
    edit.set(key::META, meta.finish());
    edit.finish()
}

/// Params without what belongs to the hop before.
fn untagged(params: &Raw) -> Spliced {
    let Ok(object) = Object::parse(params) else { return params.clone().into() };
    let Some(meta) = object.get(key::META).and_then(|meta| Object::parse(&meta).ok()) else {
        return params.clone().into();
    };
    let mut kept = meta.edit();
    kept.remove_if(|name| name.starts_with(key::HOP_PREFIX));
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

    /// ERA-1: a list that changed is told once, on the feeds that asked for it, under the id of their listen.
    #[test]
    fn lists_are_told_once() {
        let feeds = Feeds::default();
        let session = feeds.open_session(1);
        let listen = feeds.open_listen(Raw::string("l"), Lists::PROMPTS);
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

    /// ERA-1: a resource, or a part of it, is told to those who follow it, with all that its server said.
    #[test]
    fn resources_are_told_to_their_followers() {
        let feeds = Feeds::default();
        let (one, other) = (feeds.open_session(1), feeds.open_listen(Raw::literal("7"), Lists::NONE));
        assert!(one.follow("a://b", None) && other.follow("a://b/", None));
        let params = Raw::literal(
            r#"{"uri":"a://b/c","x":1.0,"_meta":{"io.modelcontextprotocol/subscriptionId":3,"v/k":1}}"#,
        );
        feeds.updated(None, &params);
        feeds.updated(None, &params);
        feeds.updated(None, &Raw::literal(r#"{"uri":"a://bc"}"#));
        feeds.updated(None, &Raw::literal("{}"));
        assert_eq!(
            now(&one).unwrap(),
            r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a://b/c","x":1.0,"_meta":{"v/k":1}}}"#
        );
        assert_eq!(now(&one), None);
        assert!(now(&other).unwrap().contains(r#""io.modelcontextprotocol/subscriptionId":7"#));
        feeds.updated(Some(2), &params);
        assert_eq!(now(&one), None, "that was another session's own server");
        feeds.updated(Some(1), &params);
        one.leave("a://b");
        assert_eq!(now(&one), None);
    }

    /// Log lines go to sessions that asked for such; of too many the oldest go.
    #[test]
    fn log_lines_by_level() {
        let feeds = Feeds::default();
        let feed = feeds.open_session(1);
        let line = |number: usize| Raw::encode(&serde_json::json!({"level": "error", "data": number}));
        feeds.logged(None, Level::Error, &line(0));
        assert_eq!(now(&feed), None, "nobody asked");
        feed.set_level(Level::Warning);
        feeds.logged(None, Level::Notice, &line(1));
        assert_eq!(now(&feed), None, "less grave than was asked for");
        feeds.logged(Some(2), Level::Error, &line(1));
        assert_eq!(now(&feed), None, "that was another session's own server");
        for (session, level) in [(None, Level::Warning), (Some(1), Level::Emergency)] {
            feeds.logged(session, level, &line(7));
            assert!(now(&feed).unwrap().contains(r#""data":7"#), "{level:?}");
        }
        for number in 0..MOST_LINES + 2 {
            feeds.logged(None, Level::Error, &line(number));
        }
        for number in 2..MOST_LINES + 2 {
            assert!(now(&feed).unwrap().contains(&format!(r#""data":{number},"#)), "{number}");
        }
        assert_eq!(now(&feed), None);
        feeds.logged(None, Level::Error, &line(0));
        feed.close();
        assert_eq!(now(&feed), None);
    }
}
