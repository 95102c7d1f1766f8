//! The clients that have joined over the control socket: who they are, since when, and when the last one has left.
//!
//! The front adds a client when it joins and drops its [`Joined`] when the connection ends, however that happens. What must
//! be equal for a client to join is decided elsewhere and kept here as one value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use super::session::Session;
use crate::gateway::Gateway;

/// A client that has joined, as the status shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinedClient {
    /// Its name and version, once it has stated them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it joined, in UTC.
    pub since: String,
}

/// A client that was not let in, as the status shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedClient {
    /// When it last tried, in UTC.
    pub time: String,
    /// The names of what differs, without values: `text`, `variables.NAME`, `programs.SERVER`.
    pub differs: Vec<String>,
}

/// How many refused clients are remembered, each once for what differs.
const MOST_REFUSED: usize = 8;
/// How many names of each are remembered, and how much of a name.
const MOST_NAMES: (usize, usize) = (16, 128);

/// All joined clients of one gateway.
#[derive(Debug)]
pub(crate) struct JoinedClients {
    next: AtomicU64,
    table: Mutex<Vec<Entry>>,
    count: watch::Sender<usize>,
    identity: Mutex<Option<Value>>,
    /// The latest last.
    refused: Mutex<Vec<RefusedClient>>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    session: Session,
    since: String,
}

impl Default for JoinedClients {
    fn default() -> Self {
        let (next, table, identity) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Self { next, table, count: watch::Sender::new(0), identity, refused: Mutex::default() }
    }
}

impl JoinedClients {
    /// The clients, the first one first.
    pub(crate) fn describe(&self) -> Vec<JoinedClient> {
        let table = self.table.lock();
        let one = |entry: &Entry| JoinedClient {
            name: entry.session.label().map(|name| name.to_string()),
            since: entry.since.clone(),
        };
        table.iter().map(one).collect()
    }

    /// Those that were not let in, the latest last.
    pub(crate) fn describe_refused(&self) -> Vec<RefusedClient> {
        self.refused.lock().clone()
    }
}

/// A joined client; it leaves when this is dropped.
#[derive(Debug)]
pub struct Joined {
    clients: Arc<JoinedClients>,
    number: u64,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let mut table = self.clients.table.lock();
        table.retain(|entry| entry.number != self.number);
        self.clients.count.send_replace(table.len());
    }
}

impl Gateway {
    /// Counts a client that has joined, until the returned value is dropped.
    #[must_use]
    pub fn join(&self, session: &Session) -> Joined {
        let clients = Arc::clone(&self.inner().joined);
        let number = clients.next.fetch_add(1, Ordering::Relaxed);
        let since = format!("{:.3}", jiff::Timestamp::now());
        {
            let mut table = clients.table.lock();
            table.push(Entry { number, session: session.clone(), since });
            clients.count.send_replace(table.len());
        }
        Joined { clients, number }
    }

    /// Notes that a client was not let in because of what differs. One with another configuration file is none of ours.
    #[doc(hidden)]
    pub fn refuse(&self, differs: &[String]) {
        if differs.iter().any(|name| name == "file") {
            return;
        }
        let (count, length) = MOST_NAMES;
        let short = |name: &String| name.chars().take(length).collect();
        let differs: Vec<String> = differs.iter().take(count).map(short).collect();
        let mut refused = self.inner().joined.refused.lock();
        refused.retain(|known| known.differs != differs);
        if refused.len() == MOST_REFUSED {
            refused.remove(0);
        }
        refused.push(RefusedClient { time: format!("{:.3}", jiff::Timestamp::now()), differs });
    }

    /// How many clients have joined.
    pub fn joined_count(&self) -> usize {
        *self.inner().joined.count.borrow()
    }

    /// Waits until no client has been joined for `linger`. The first client has at least `first` to join.
    pub async fn left_alone(&self, first: Duration, linger: Duration) {
        let mut count = self.inner().joined.count.subscribe();
        let mut patience = first.max(linger);
        loop {
            // The sender lives as long as the gateway, so waiting cannot fail.
            let joining = count.wait_for(|count| *count > 0);
            if tokio::time::timeout(patience, joining).await.is_err() {
                return;
            }
            patience = linger;
            drop(count.wait_for(|count| *count == 0).await);
        }
    }

    /// What must be equal for a client to join; `None` if no client may. It is derived from secrets too, so it is only for the
    /// gateway's own user.
    pub fn identity(&self) -> Option<Value> {
        self.inner().joined.identity.lock().clone()
    }

    /// Sets what must be equal for a client to join.
    pub fn set_identity(&self, identity: Option<Value>) {
        *self.inner().joined.identity.lock() = identity;
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::Raw;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::gateway::Options;

    /// JOIN-4: the first client has time to join; after that the gateway is alone as soon as nobody was joined for the linger.
    #[tokio::test(start_paused = true)]
    async fn a_gateway_is_alone_after_the_last_client_has_left() {
        let gateway = Gateway::new(Options::default()).unwrap();
        let (first, linger) = (Duration::from_secs(30), Duration::from_secs(5));
        let start = Instant::now();
        gateway.left_alone(first, linger).await;
        assert_eq!(start.elapsed(), first, "nobody came");
        gateway.left_alone(Duration::ZERO, linger).await;
        assert_eq!(start.elapsed(), first + linger, "the linger is longer");

        let alone = tokio::spawn({
            let gateway = gateway.clone();
            async move { gateway.left_alone(first, linger).await }
        });
        tokio::time::sleep(Duration::from_secs(29)).await;
        let one = gateway.join(&Session::new());
        tokio::time::sleep(Duration::from_secs(100)).await;
        let other = gateway.join(&Session::new());
        assert_eq!(gateway.joined_count(), 2);
        drop(one);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(!alone.is_finished(), "somebody is joined");
        drop(other);
        tokio::time::sleep(Duration::from_secs(4)).await;
        let back = gateway.join(&Session::new());
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(!alone.is_finished(), "somebody came back in time");
        let left = Instant::now();
        drop(back);
        alone.await.unwrap();
        assert_eq!(left.elapsed(), linger);
        assert_eq!(gateway.joined_count(), 0);
    }

    /// JOIN-4: the status says what differed for clients that were not let in, the latest last, bounded and each case once. One that has
    /// another configuration file is not mentioned.
    #[tokio::test]
    async fn the_status_says_who_was_not_let_in() {
        let gateway = Gateway::new(Options::default()).unwrap();
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        gateway.refuse(&names(&["file", "text", "variables.HOME"]));
        assert!(gateway.health().get("refused").is_none());
        for case in [&["variables.HOME"][..], &["text"], &["variables.HOME"]] {
            gateway.refuse(&names(case));
        }
        let told = gateway.status().refused;
        assert_eq!(
            told.iter().map(|one| one.differs.clone()).collect::<Vec<_>>(),
            [["text"], ["variables.HOME"]]
        );
        assert!(gateway.health()["refused"][1]["time"].is_string());
        let many: Vec<String> = (0..100).map(|number| format!("{number}{}", "x".repeat(1_000))).collect();
        gateway.refuse(&many);
        many.iter().for_each(|one| gateway.refuse(std::slice::from_ref(one)));
        let told = gateway.status().refused;
        assert_eq!(told.len(), MOST_REFUSED);
        gateway.refuse(&many);
        let last = gateway.status().refused.pop().unwrap().differs;
        assert_eq!((last.len(), last[0].chars().count()), MOST_NAMES);
    }

    /// JOIN-4: the status names the joined clients, in the order in which they came.
    #[tokio::test]
    async fn the_status_names_joined_clients() {
        let gateway = Gateway::new(Options::default()).unwrap();
        assert_eq!(gateway.status().clients, []);
        let (one, other) = (Session::new(), Session::new());
        one.introduce(&Raw::literal(r#"{"name":"editor","version":"1.2"}"#));
        let held = (gateway.join(&one), gateway.join(&other));
        let names: Vec<_> = gateway.status().clients.into_iter().map(|client| client.name).collect();
        assert_eq!(names, [Some("editor 1.2".to_owned()), None]);
        assert!(gateway.health()["clients"][0]["since"].is_string());
        drop(held.0);
        assert_eq!(gateway.status().clients.len(), 1);
        drop(held.1);
        assert_eq!(gateway.health().get("clients"), None, "nobody is joined");
        assert_eq!(gateway.identity(), None);
        gateway.set_identity(Some(json!({"a": 1})));
        assert_eq!(gateway.identity(), Some(json!({"a": 1})));
    }
}
