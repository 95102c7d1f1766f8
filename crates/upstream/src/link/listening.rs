//! Keeps a server reporting changes for as long as it serves.
//!
//! A modern server reports changes on our `subscriptions/listen` request, which names everything that is wanted.
//! When that set changes, a second listen is opened and the old one stays until the new one is acknowledged. A
//! legacy server reports changes of its lists by itself, and of single resources after `resources/subscribe`; it
//! has no tasks. The reports reach the link like any other message; this module only asks for them.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use bridgehead_wire::{Era, Method, Object, Raw, Spliced, code};
use tokio::time::Instant;
use tracing::debug;

use crate::catalog::{Features, Lists};
use crate::link::negotiate::Peer;
use crate::link::{Event, Exchange, Link, Purpose, modern_params_declaring};
use crate::server::core::{Core, Watched};
use crate::server::supervisor::sleep_until;

/// How long after a listen ended the next one is opened: the first pause and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a legacy server may take to answer a subscription.
const ANSWER: Duration = Duration::from_secs(10);

/// The capabilities declared to be told of tasks.
const WITH_TASKS: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// What one server was asked to report.
pub(crate) struct Listening {
    era: Era,
    features: Features,
    /// The listen that was acknowledged.
    current: Option<Exchange>,
    /// The listen that will replace it.
    coming: Option<Exchange>,
    /// What the server was last asked for; `None` before the first time.
    asked: Option<BTreeSet<Watched>>,
    /// Tasks of listens that the server refused. It may have forgotten one of them, which must not affect anything
    /// else.
    forgotten: BTreeSet<Watched>,
    /// When to ask again, after a listen that ended.
    again: Option<Instant>,
    pause: Duration,
    /// Whether a listen broke off, so that a change may have been missed.
    missed: bool,
    /// The server does not know what a listen is.
    refused: bool,
}

impl Listening {
    pub(crate) fn new(peer: &Peer) -> Self {
        Self {
            era: peer.revision.era(),
            features: Features::declared(&peer.capabilities),
            current: None,
            coming: None,
            asked: None,
            forgotten: BTreeSet::new(),
            again: None,
            pause: PAUSE,
            missed: false,
            refused: false,
        }
    }

    /// Never ends. The future may be dropped and the method called again at any time.
    pub(crate) async fn go_on(&mut self, link: &Link, core: &Core) {
        match self.era {
            Era::Modern => self.listen(link, core).await,
            Era::Legacy => self.subscribe(link, core).await,
        }
    }

    async fn listen(&mut self, link: &Link, core: &Core) {
        while !self.refused {
            // Nothing that an earlier process was asked for still counts.
            if self.asked.is_none() {
                core.followed.send_replace(BTreeSet::new());
            }
            let wanted = core.watched();
            let due = self.again.is_none_or(|again| Instant::now() >= again);
            if due && self.asked.as_ref() != Some(&wanted) {
                self.again = None;
                self.coming = None;
                if let Some(params) = self.filter(&wanted) {
                    let mut exchange = link.open(Purpose::Standing);
                    let declared = Raw::literal(if has_tasks(&wanted) { WITH_TASKS } else { "{}" });
                    exchange.send(&Method::Listen, &modern_params_declaring(&params, declared)).await;
                    self.coming = Some(exchange);
                } else {
                    self.current = None;
                }
                self.asked = Some(wanted);
            }
            let (current, coming, again) = (&mut self.current, &mut self.coming, self.again);
            let (is_new, event) = tokio::select! {
                () = core.orders.watched.notified() => continue,
                event = next(coming) => (true, event),
                event = next(current) => (false, event),
                () = sleep_until(again) => continue,
            };
            match event {
                Event::Acknowledged if is_new => {
                    self.current = self.coming.take();
                    self.pause = PAUSE;
                    core.followed.send_replace(self.asked.clone().unwrap_or_default());
                    if std::mem::take(&mut self.missed) {
                        link.doubt(self.features.changes);
                    }
                }
                event if event.is_last() => self.ended(is_new, &event),
                _ => {}
            }
        }
        pending::<()>().await;
    }

    fn ended(&mut self, is_new: bool, event: &Event) {
        if is_new {
            self.coming = None;
        } else {
            self.current = None;
        }
        if let Event::Answer(Err(error)) = event
            && error.code() == code::METHOD_NOT_FOUND
        {
            self.refused = true;
            return debug!("the server does not support notifications of changes");
        }
        let asked = self.asked.take().unwrap_or_default();
        if is_new && matches!(event, Event::Answer(Err(_))) && has_tasks(&asked) {
            debug!("the server refuses to report on tasks; it is asked for the rest");
            self.forgotten.extend(asked.into_iter().filter(Watched::is_task));
        }
        debug!(pause = ?self.pause, "a stream of changes ended; another will be opened");
        self.missed = true;
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// The params of a listen; `None` if there is nothing to listen for.
    fn filter(&self, wanted: &BTreeSet<Watched>) -> Option<Object> {
        let Features { changes, subscribe, tasks, .. } = self.features;
        let mut filter = serde_json::Map::new();
        for (list, name) in [
            (Lists::TOOLS, "toolsListChanged"),
            (Lists::PROMPTS, "promptsListChanged"),
            (Lists::RESOURCES, "resourcesListChanged"),
        ] {
            if changes.has(list) {
                filter.insert(name.to_owned(), true.into());
            }
        }
        for (able, name, of) in [
            (subscribe, "resourceSubscriptions", Watched::resource as fn(&Watched) -> Option<&str>),
            (tasks, "taskIds", Watched::task),
        ] {
            let known = wanted.iter().filter(|watched| !self.forgotten.contains(watched));
            let names: Vec<&str> = known.filter_map(of).collect();
            if able && !names.is_empty() {
                filter.insert(name.to_owned(), names.into());
            }
        }
        let params = serde_json::json!({ "notifications": filter });
        if filter.is_empty() { None } else { Object::parse(&Raw::encode(&params)).ok() }
    }

    async fn subscribe(&mut self, link: &Link, core: &Core) {
        if !self.features.subscribe {
            pending::<()>().await;
        }
        if self.asked.is_none() {
            core.followed.send_replace(BTreeSet::new());
        }
        loop {
            let wanted = core.watched();
            let asked = self.asked.get_or_insert_default();
            let begin: Vec<Watched> = wanted.difference(asked).cloned().collect();
            let end: Vec<Watched> = asked.difference(&wanted).cloned().collect();
            for (method, watched) in [(Method::Subscribe, begin), (Method::Unsubscribe, end)] {
                for watched in watched {
                    let Some(uri) = watched.resource() else { continue };
                    let params = Spliced::from(Raw::encode(&serde_json::json!({ "uri": uri })));
                    let asking = link.ask(&method, &params, Purpose::Ordinary);
                    let answer = tokio::time::timeout(ANSWER, asking).await;
                    if !matches!(answer, Ok(Ok(Ok(_)))) {
                        debug!(%method, "the server did not accept the request about changes of a resource");
                    }
                    if method == Method::Subscribe {
                        core.followed.send_modify(|followed| {
                            followed.insert(watched.clone());
                        });
                        asked.insert(watched);
                    } else {
                        core.followed.send_modify(|followed| {
                            followed.remove(&watched);
                        });
                        asked.remove(&watched);
                    }
                }
            }
            core.orders.watched.notified().await;
        }
    }
}

fn has_tasks(watched: &BTreeSet<Watched>) -> bool {
    watched.iter().any(Watched::is_task)
}

impl Watched {
    fn resource(&self) -> Option<&str> {
        match self {
            Self::Resource(uri) => Some(uri),
            Self::Task(_) => None,
        }
    }

    fn task(&self) -> Option<&str> {
        match self {
            Self::Task(id) => Some(id),
            Self::Resource(_) => None,
        }
    }

    fn is_task(&self) -> bool {
        self.task().is_some()
    }
}

async fn next(exchange: &mut Option<Exchange>) -> Event {
    match exchange {
        Some(exchange) => exchange.next().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
