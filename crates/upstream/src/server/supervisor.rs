//! The one task that owns a server's process: starts it, watches it, and restarts it.
//!
//! Everything else only reads the state. A server becomes `Ready` only after its tool list was read and a probe
//! succeeded, so "ready" never means "ready, but without tools". While it starts for the first time, it offers what it
//! listed in an earlier run, if that was saved; once a start has failed, it does not.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_config::{Launch, Requirement, ServerConfig};
use bridgehead_events::{DisconnectReason, ServerSignal, StateChange};
use bridgehead_process::SpawnError;
use bridgehead_wire::{Era, Object, Raw, Redactor};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

use crate::catalog::cache;
use crate::catalog::{Features, ItemList, Items, ListError, Listing, Lists, list_items, list_tools};
use crate::link::listening::Listening;
use crate::link::negotiate::Peer;
use crate::link::{Link, LinkError};
use crate::server::core::Core;
use crate::server::denied;
use crate::server::given;
use crate::server::health::probe;
use crate::server::policy::RestartPolicy;
use crate::server::record::ServerRecord;
use crate::server::{Failure, FailureStage, INIT_TIMEOUT, Outage, Ready, Surroundings, UpstreamState};
use crate::sharing::key::Identity;
use crate::transport::{ConnectError, Connection, connect};

/// Changes of the tool list within this time are read together.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(50);
/// How long a list of prompts or resources may take.
const ITEMS_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the tools of a server that went down stay in the lists.
pub(crate) const LISTED_FOR: Duration = Duration::from_secs(30);

pub(crate) struct Supervisor {
    core: Arc<Core>,
    server: Arc<ServerConfig>,
    state: watch::Sender<UpstreamState>,
    surroundings: Surroundings,
    policy: RestartPolicy,
    redactor: Redactor,
    record: ServerRecord,
    saves: Mutex<Saves>,
}

/// How often the listing may be saved: ten times in a row, then once in ten seconds.
struct Saves {
    /// The time that is used up.
    used_until: Instant,
}

impl Saves {
    const EACH: Duration = Duration::from_secs(10);
    const AHEAD: Duration = Duration::from_secs(100);

    fn may_save(&mut self) -> bool {
        let used_until = self.used_until.max(Instant::now()) + Self::EACH;
        let may = used_until <= Instant::now() + Self::AHEAD;
        if may {
            self.used_until = used_until;
        }
        may
    }
}

/// Why a server stopped serving.
enum End {
    /// It ended by itself.
    Lost(String),
    /// It no longer answers, so it is not asked to end either.
    Hangs(String),
    /// A restart was requested.
    Asked,
    /// It was unused for long enough; its state is `Asleep` already.
    Unused,
}

/// Why a server did not start.
struct Refusal {
    reason: String,
    /// It could not be limited and confined as configured: retrying does not help.
    sandbox: bool,
    /// Whether its program was run.
    ran: bool,
    /// Whether its confinement may be the cause.
    walls: bool,
    /// Whether the next attempt will fail the same way.
    lasting: bool,
    /// Whether the server wants other credentials.
    denied: bool,
}

impl End {
    fn parting(&self) -> DisconnectReason<'_> {
        match self {
            Self::Lost(reason) | Self::Hangs(reason) => DisconnectReason::Lost(reason),
            Self::Asked => DisconnectReason::Asked,
            Self::Unused => DisconnectReason::Unused,
        }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self { reason, sandbox: false, ran: true, walls: true, lasting: false, denied: false }
    }
}

impl From<&ConnectError> for Refusal {
    fn from(error: &ConnectError) -> Self {
        Self {
            sandbox: error.is_of_sandbox(),
            ran: !matches!(error, ConnectError::Spawn(_)),
            lasting: error.is_lasting(),
            denied: error.is_denied(),
            walls: match error {
                ConnectError::Spawn(SpawnError::NotExecutable { .. }) => true,
                ConnectError::Spawn(error) => error.is_of_sandbox(),
                _ => true,
            },
            reason: error.to_string(),
        }
    }
}

impl Supervisor {
    pub(crate) fn new(
        core: Arc<Core>,
        server: Arc<ServerConfig>,
        state: watch::Sender<UpstreamState>,
        surroundings: Surroundings,
    ) -> Self {
        let policy =
            RestartPolicy { jitter: server.jitter, stable_after: server.stable_after, ..surroundings.policy };
        let record = core.record.clone();
        let saves = Mutex::new(Saves { used_until: Instant::now() });
        Self { core, server, state, surroundings, policy, redactor: Redactor::default(), record, saves }
    }

    /// Runs until stopped. Dropping the work in progress ends its process too.
    pub(crate) async fn run(self) {
        let stop = self.core.stop.clone();
        // Kept across restarts, so that each restart can use it.
        let _prepared = self.starts_now().then(bridgehead_process::prepare);
        let mut known = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            saved = self.recall() => saved,
        };
        loop {
            let mut current = None;
            let given_up = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                failure = self.keep(&mut current, &mut known) => Some(failure),
            };
            if let Some(process) = current.take() {
                match self.core.one_shot {
                    true => drop(process.kill().await),
                    false => drop(process.stop().await),
                }
            }
            let Some(failure) = given_up else { break };
            self.become_state(UpstreamState::Failed(Arc::new(failure)));
            if self.core.one_shot {
                // A caller that takes it sees the failure and takes another.
                stop.cancelled().await;
                break;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.core.orders.restart.notified() => {}
            }
            self.become_state(UpstreamState::starting(None));
        }
        self.become_state(UpstreamState::Stopped);
    }

    /// Whether it starts a process of ours right away.
    fn starts_now(&self) -> bool {
        matches!(self.server.launch, Launch::Stdio(_)) && !self.core.lazy
    }

    /// Starts the server and keeps it running; returns when it is given up. `known` is its last listing.
    async fn keep(&self, current: &mut Option<Connection>, known: &mut Option<Arc<Listing>>) -> Failure {
        if let Some(failure) = unusable(&self.server) {
            return failure;
        }
        let mut since = Instant::now();
        // Attempts since it was last stable, which set the delays.
        let mut attempts = 0;
        // Failed attempts since it last served; after too many the server is given up.
        let mut vain = 0;
        let mut restarts = 0;
        let mut served = false;
        loop {
            // One id for an attempt and everything that follows from it.
            let cause = CorrelationId::mint();
            let listed_until = since + LISTED_FOR;
            let coming_up = self.come_up(restarts, attempts, cause);
            let came_up = self.unlisting(listed_until, coming_up).await;
            if came_up.is_err() {
                // A server that has failed contributes nothing that it did not list in this run.
                known.take_if(|listing| listing.cached);
            }
            let mut denied = false;
            let (reason, lasting) = match came_up {
                Err(Refusal { reason, sandbox: true, .. }) => {
                    return Failure { stage: FailureStage::Sandbox, reason };
                }
                Ok((process, ready)) => {
                    self.listed(cause, known.as_deref(), &ready.tools);
                    self.remember(known.as_deref(), &ready.tools).await;
                    if served {
                        self.emit(cause, &ServerSignal::Reconnected);
                    }
                    (served, vain) = (true, 0);
                    let process = current.insert(process);
                    let ready = Arc::new(ready);
                    let mut last = Some(Arc::clone(&ready));
                    self.become_state(UpstreamState::Ready(Arc::clone(&ready)));
                    let end = self.serve(process, &mut last, cause).await;
                    self.emit(cause, &ServerSignal::Disconnected(end.parting()));
                    *known = last.map(|last| Arc::clone(&last.tools));
                    since = Instant::now();
                    if since - ready.since >= self.policy.stable_after {
                        attempts = 0;
                    }
                    let hangs = matches!(end, End::Hangs(_));
                    let reason = match end {
                        End::Lost(reason) | End::Hangs(reason) => reason,
                        End::Asked => {
                            attempts = 0;
                            "it was asked to restart".to_owned()
                        }
                        End::Unused => {
                            if let Some(process) = current.take() {
                                self.end(process, false, cause).await;
                            }
                            if let Some(listing) = known {
                                self.sleep(listing).await;
                            }
                            (since, attempts, served) = (Instant::now(), 0, false);
                            continue;
                        }
                    };
                    // Marked as down before its process is ended, so that no call starts on a link that is about to
                    // end.
                    self.down(since, attempts, (&reason, false), known.as_ref());
                    if let Some(process) = current.take() {
                        self.end(process, hangs, cause).await;
                    }
                    (reason, false)
                }
                Err(refusal) => {
                    denied = refusal.denied;
                    (refusal.reason, refusal.lasting)
                }
            };
            let stage = if served { FailureStage::Crashed } else { FailureStage::Init };
            // A server that never accepted the configured credentials does not accept them the next time either.
            let hopeless = denied && !served && self.surroundings.credentials.is_none();
            if !self.server.restart
                || self.policy.gives_up(vain)
                || (hopeless && self.policy.attempts.is_none())
            {
                self.emit(cause, &ServerSignal::GivenUp);
                return Failure { stage, reason };
            }
            let delay = self.policy.delay(attempts, random());
            attempts += 1;
            vain += 1;
            restarts += 1;
            self.emit(cause, &ServerSignal::Restart { attempt: attempts, delay, reason: &reason });
            self.down(since, attempts, (&reason, lasting), known.as_ref());
            let waiting = async {
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = self.core.orders.restart.notified() => {}
                }
            };
            self.unlisting(listed_until.max(since + LISTED_FOR), waiting).await;
        }
    }

    /// What the server listed in an earlier run, if that is saved. It is offered from now on and until the server itself has
    /// answered; a lazy server sleeps on it until it is used.
    async fn recall(&self) -> Option<Arc<Listing>> {
        let folder = self.core.shelf.as_deref().filter(|_| unusable(&self.server).is_none())?;
        let saved = Arc::new(cache::read(folder, &self.saved_as(), &self.server.name).await?);
        if self.core.lazy {
            self.become_state(UpstreamState::Asleep(Arc::clone(&saved)));
            self.sleep(&saved).await;
        } else {
            self.become_state(UpstreamState::starting(Some(Arc::clone(&saved))));
        }
        Some(saved)
    }

    /// Saves the current listing for later runs, unless it is the same as before. A server that changes its lists all the time
    /// does not make the disk busy.
    async fn remember(&self, before: Option<&Listing>, now: &Arc<Listing>) {
        let Some(folder) = &self.core.shelf else { return };
        if !before.is_some_and(|before| before.offers_the_same(now)) && self.saves.lock().may_save() {
            cache::write(folder, &self.saved_as(), &self.server.name, now).await;
        }
    }

    fn saved_as(&self) -> Identity {
        Identity::of_saved(&self.server.launch, &self.surroundings)
    }

    /// Notes that the server has answered for the first time since its start.
    fn answered(&self) {
        let heard = match &*self.state.borrow() {
            UpstreamState::Starting { since, known, answered: None } => UpstreamState::Starting {
                since: *since,
                known: known.clone(),
                answered: Some(Instant::now()),
            },
            _ => return,
        };
        self.become_state(heard);
    }

    /// Waits for the first use or a restart. Its state is `Asleep` already.
    async fn sleep(&self, listing: &Arc<Listing>) {
        while self.core.usage.lock().holds == 0 {
            tokio::select! {
                () = self.core.orders.usage.notified() => {}
                () = self.core.orders.restart.notified() => break,
            }
        }
        self.become_state(UpstreamState::starting(Some(Arc::clone(listing))));
    }

    /// Resolves after putting the server to sleep, once it was unused for long enough; a later hold finds it
    /// asleep. A lazy server that was never used was started only to list its tools.
    async fn unused(&self, listing: Option<&Arc<Listing>>) {
        let Some(listing) = listing.filter(|_| self.core.sleeps) else { return std::future::pending().await };
        loop {
            let until = {
                let usage = self.core.usage.lock();
                let idle = match self.core.lazy && !usage.ever {
                    true => Some(Duration::ZERO),
                    false => self.server.idle_timeout,
                };
                let until = idle.filter(|_| usage.holds == 0).map(|idle| usage.since + idle);
                if until.is_some_and(|until| Instant::now() >= until) {
                    return self.become_state(UpstreamState::Asleep(Arc::clone(listing)));
                }
                until
            };
            tokio::select! {
                () = self.core.orders.usage.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    /// Runs `work`, and takes the tools of a server that is down out of the lists when `listed_until` passes.
    async fn unlisting<T>(&self, listed_until: Instant, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = tokio::time::sleep_until(listed_until) => {}
        }
        let outage = match &*self.state.borrow() {
            UpstreamState::Restarting(outage) if outage.listed => {
                Some(Outage { listed: false, ..Outage::clone(outage) })
            }
            _ => None,
        };
        if let Some(outage) = outage {
            self.become_state(UpstreamState::Restarting(Arc::new(outage)));
        }
        work.await
    }

    /// Marks the server as down, for a reason that may be a lasting one.
    fn down(
        &self,
        since: Instant,
        attempts: u32,
        (reason, lasting): (&str, bool),
        last: Option<&Arc<Listing>>,
    ) {
        let listed = since.elapsed() < LISTED_FOR;
        let outage =
            Outage { since, attempts, reason: reason.to_owned(), last: last.cloned(), listed, lasting };
        self.become_state(UpstreamState::Restarting(Arc::new(outage)));
    }

    /// One attempt, after `attempt` failed ones; its beginning and end are reported.
    async fn come_up(
        &self,
        restarts: u32,
        attempt: u32,
        cause: CorrelationId,
    ) -> Result<(Connection, Ready), Refusal> {
        let began = Instant::now();
        self.emit(cause, &ServerSignal::StartBegan);
        let outcome = self.attempt(restarts, cause).await.map_err(|refusal| self.with_missed(refusal));
        let took = began.elapsed();
        match &outcome {
            Ok((_, ready)) => {
                let Ready { transport, pid, restarts, .. } = *ready;
                let (revision, one_shot) = (ready.peer.revision, self.core.one_shot);
                let tools = &names(&ready.tools);
                let serves =
                    ServerSignal::Serves { transport, pid, revision, tools, restarts, took, one_shot };
                self.emit(cause, &serves);
            }
            Err(Refusal { reason, sandbox, .. }) => {
                self.emit(cause, &ServerSignal::StartFailed { attempt, reason, sandbox: *sandbox, took });
            }
        }
        outcome
    }

    /// Adds to the reason which of the gateway's variables a failed program may have missed, and what its
    /// confinement may have denied.
    fn with_missed(&self, mut refusal: Refusal) -> Refusal {
        if let (Some(asked), true) = (&self.server.confinement, refusal.walls) {
            let words = format!("{}\n{}", self.record.last_words().join("\n"), refusal.reason);
            let denied = match refusal.sandbox {
                true => format!("the configured confinement is {}", denied::describe(asked)),
                false => self.redactor.text(&denied::by_confinement(asked, &words)).into_owned(),
            };
            refusal.reason = format!("{}; {denied}", refusal.reason);
        }
        if let (Launch::Stdio(stdio), true) = (&self.server.launch, refusal.ran) {
            let words = format!("{}\n{}", refusal.reason, self.record.last_words().join("\n"));
            if let Some(missed) = given::missed(stdio, &self.surroundings.environment, &words) {
                refusal.reason = format!("{}; {missed}", refusal.reason);
            }
        }
        refusal
    }

    /// One attempt: process, protocol, tools, probe.
    async fn attempt(&self, restarts: u32, cause: CorrelationId) -> Result<(Connection, Ready), Refusal> {
        let Surroundings { environment, limit, warm_up, credentials, .. } = &self.surroundings;
        let (source, offer) = (credentials.as_ref(), self.core.scope.offer());
        let starting = async {
            let (mut process, peer) =
                connect(&self.server, environment, *limit, source, &self.record, offer, warm_up)
                    .await
                    .map_err(|error| Refusal::from(&error))?;
            self.answered();
            let link = process.link.clone();
            let core = Arc::downgrade(&self.core);
            link.on_notice(move |notice| {
                if let Some(core) = core.upgrade() {
                    core.told(notice);
                }
            });
            let checked = {
                let checking = async {
                    let listing = self.list(&link, &peer, Lists::ALL, &Listing::default()).await?;
                    self.look(&link, &peer, cause).await?;
                    Ok::<_, String>(listing)
                };
                tokio::pin!(checking);
                tokio::select! {
                    checked = &mut checking => checked,
                    () = process.ended() => checking.await,
                }
            };
            match checked {
                Ok(tools) => Ok((process, peer, tools)),
                Err(reason) => {
                    process.stop().await;
                    Err(Refusal::from(reason))
                }
            }
        };
        let patience = self.server.start_timeout;
        let started = tokio::time::timeout(patience, starting).await.unwrap_or_else(|_| {
            let late = format!("the server gave no usable answer within {patience:?} (`start_timeout_ms`)");
            Err(Refusal::from(match self.record.noise() {
                Some(noise) => {
                    format!("{late}, but wrote something on standard output that is not a message: `{noise}`")
                }
                None => late,
            }))
        });
        let (process, peer, tools) = started?;
        process.link.begin_to_serve();
        let tools = Arc::new(tools);
        let pid = process.pid();
        let transport = process.kind().as_str();
        if self.core.one_shot {
            process.link.be_strict();
        }
        let ready = Ready {
            link: process.link.clone(),
            peer,
            tools,
            transport,
            pid,
            restarts,
            since: Instant::now(),
        };
        Ok((process, ready))
    }

    /// Serves until the server is lost or a restart is requested. Probes it from time to time, and reads its lists
    /// again whenever it says that they changed.
    async fn serve(
        &self,
        process: &mut Connection,
        last: &mut Option<Arc<Ready>>,
        cause: CorrelationId,
    ) -> End {
        let link = process.link.clone();
        let mut listening = last.as_ref().map(|last| Listening::new(&last.peer));
        let mut next_probe = Instant::now() + self.server.probe_interval;
        loop {
            tokio::select! {
                biased;
                () = process.ended() => {
                    return End::Lost(match link.ended() {
                        Some(error @ (LinkError::Closed(_) | LinkError::Crashed(_))) => error.to_string(),
                        _ => "the connection ended".to_owned(),
                    });
                }
                () = self.core.orders.restart.notified() => return End::Asked,
                () = self.unused(last.as_ref().map(|last| &last.tools)) => return End::Unused,
                changed = link.lists_changed() => {
                    let reading = async {
                        tokio::time::sleep(CHANGE_DEBOUNCE).await;
                        // Covers changes announced meanwhile, so they are not read again.
                        let more = link.lists_changed().now_or_never().unwrap_or(Lists::NONE);
                        self.refresh(&link, last, changed | more, cause).await;
                    };
                    tokio::select! {
                        // A server that no longer answers is probed like any other that hangs.
                        read = tokio::time::timeout(INIT_TIMEOUT, reading) => if read.is_err() {
                            self.core.orders.suspect.notify_one();
                        },
                        // Nothing else notices the end, and nothing is answered after it; the top of the loop
                        // handles it.
                        () = process.ended() => {}
                    }
                }
                () = async {
                    match &mut listening {
                        Some(listening) => listening.go_on(&link, &self.core).await,
                        None => std::future::pending().await,
                    }
                } => {}
                () = async {
                    tokio::select! {
                        () = tokio::time::sleep_until(next_probe) => {}
                        () = self.core.orders.suspect.notified() => {}
                    }
                } => {
                    next_probe = Instant::now() + self.server.probe_interval;
                    let Some(ready) = last.clone() else { continue };
                    let looked = tokio::select! {
                        looked = self.look(&link, &ready.peer, cause) => looked,
                        // The top of the loop handles the end.
                        () = process.ended() => continue,
                    };
                    if let Err(reason) = looked {
                        process.hangs();
                        return End::Hangs(reason);
                    }
                    self.core.probed.send_modify(|probes| *probes += 1);
                }
            }
        }
    }

    /// Probes the health. Fails with the reason as text.
    async fn look(&self, link: &Link, peer: &Peer, cause: CorrelationId) -> Result<(), String> {
        let began = Instant::now();
        let probed = probe(link, peer, self.server.health_probe).await;
        let looked = probed.outcome.map_err(|reason| format!("its health probe failed: {reason}"));
        let error = looked.as_ref().err().map(String::as_str);
        self.emit(cause, &ServerSignal::Probe { kind: probed.kind, took: began.elapsed(), error });
        looked
    }

    /// Ends a process, and reports how it ended. One that hangs is killed: it would not use the time to end in.
    async fn end(&self, process: Connection, hangs: bool, cause: CorrelationId) {
        let (pid, link) = (process.pid(), process.link.clone());
        let exit = if hangs { process.kill().await } else { process.stop().await };
        let Some((pid, exit)) = pid.zip(exit) else { return };
        let reason = &link.ended().map(|end| end.to_string()).unwrap_or_default();
        self.emit(cause, &ServerSignal::ProcessExited { pid, status: &exit, reason });
    }

    /// Reports the current tools, and the earlier ones.
    fn listed(&self, cause: CorrelationId, before: Option<&Listing>, now: &Listing) {
        let before = before.map(names);
        self.emit(cause, &ServerSignal::Listed { before: before.as_deref(), now: &names(now) });
    }

    /// The one place that reports what happens to the server.
    fn emit(&self, cause: CorrelationId, signal: &ServerSignal<'_>) {
        self.core.emit(self.server.name.as_ref(), cause, signal);
    }

    /// Reads the lists in `wanted` and takes the rest from `before`. Problems of single tools are logged and
    /// recorded.
    async fn list(
        &self,
        link: &Link,
        peer: &Peer,
        wanted: Lists,
        before: &Listing,
    ) -> Result<Listing, String> {
        let declared = Features::declared(&peer.capabilities);
        // Tasks of the legacy era are different, and not relayed.
        let tasks = declared.tasks && peer.revision.era() == Era::Modern;
        let features = Features { tasks, ..declared };
        let experimental = Object::parse(&peer.capabilities).ok().and_then(|all| all.get("experimental"));
        let mut listing = Listing {
            features,
            experimental: experimental.filter(Raw::is_object).map(|raw| raw.detached()),
            instructions: peer.instructions.clone(),
            cached: false,
            ..before.clone()
        };
        if wanted.has(Lists::TOOLS) {
            let (tools, findings) = list_tools(link, peer).await.map_err(|error| error.to_string())?;
            for finding in &findings {
                warn!(server = %self.label(), "{finding}");
            }
            self.record.found(findings);
            listing.tools = tools;
        }
        if wanted.has(Lists::PROMPTS) && features.prompts {
            self.replace(&mut listing.prompts, list_items(link, peer, ItemList::Prompts)).await?;
        }
        if wanted.has(Lists::RESOURCES) && features.resources {
            let templates = list_items(link, peer, ItemList::Templates);
            self.replace(&mut listing.resources, list_items(link, peer, ItemList::Resources)).await?;
            self.replace(&mut listing.templates, templates).await?;
        }
        Ok(listing)
    }

    /// Replaces a list of items. If it cannot be read, the old list stays: the tools matter most.
    async fn replace(
        &self,
        items: &mut Items,
        read: impl Future<Output = Result<Items, ListError>>,
    ) -> Result<(), String> {
        match tokio::time::timeout(ITEMS_TIMEOUT, read).await {
            Ok(Ok(read)) => *items = read,
            Ok(Err(ListError::Link(lost))) => return Err(lost.to_string()),
            Ok(Err(error)) => warn!(server = %self.label(), %error, "a list could not be read"),
            Err(_) => {
                warn!(server = %self.label(), "a list of prompts or resources did not arrive in time");
            }
        }
        Ok(())
    }

    async fn refresh(
        &self,
        link: &Link,
        last: &mut Option<Arc<Ready>>,
        changed: Lists,
        cause: CorrelationId,
    ) {
        let Some(now) = last.clone() else { return };
        match self.list(link, &now.peer, changed, &now.tools).await {
            Ok(listing) => {
                let tools = Arc::new(listing);
                if changed.has(Lists::TOOLS) {
                    self.listed(cause, Some(&now.tools), &tools);
                }
                self.remember(Some(&now.tools), &tools).await;
                let ready = Arc::new(Ready {
                    link: link.clone(),
                    peer: now.peer.clone(),
                    tools,
                    transport: now.transport,
                    pid: now.pid,
                    restarts: now.restarts,
                    since: now.since,
                });
                *last = Some(Arc::clone(&ready));
                self.become_state(UpstreamState::Ready(ready));
            }
            Err(error) => {
                warn!(server = %self.label(), %error, "a changed list could not be read; the old one stays");
            }
        }
    }

    fn become_state(&self, state: UpstreamState) {
        let change = change(&self.state.borrow(), &state, self.core.one_shot);
        if let Some(change) = change {
            // No event reports this change, so it needs no shared id.
            self.emit(CorrelationId::mint(), &ServerSignal::State(change));
        }
        self.state.send_replace(state);
        self.core.changed();
    }

    fn label(&self) -> String {
        format!("mcp:{}", self.server.name)
    }
}

/// What changed when a server went from the state `before` to the state `now`.
fn change<'a>(before: &UpstreamState, now: &'a UpstreamState, one_shot: bool) -> Option<StateChange<'a>> {
    Some(match (before, now) {
        (UpstreamState::Asleep(_), UpstreamState::Starting { .. }) => StateChange::Woken,
        (UpstreamState::Failed(_), UpstreamState::Starting { .. }) => StateChange::StartedAnew,
        (UpstreamState::Restarting(before), UpstreamState::Restarting(now)) => {
            return (before.listed && !now.listed).then_some(StateChange::Unlisted);
        }
        (_, UpstreamState::Restarting(_)) => StateChange::Down,
        (_, UpstreamState::Failed(failure)) if one_shot => StateChange::Spent(&failure.reason),
        (_, UpstreamState::Failed(failure)) => StateChange::Failed(&failure.reason),
        (UpstreamState::Ready(_), UpstreamState::Ready(_)) | (_, UpstreamState::Starting { .. }) => {
            return None;
        }
        (_, UpstreamState::Ready(_)) => StateChange::Ready,
        (_, UpstreamState::Asleep(_)) => StateChange::Asleep,
        (_, UpstreamState::Stopped) => StateChange::Stopped,
    })
}

fn names(listing: &Listing) -> Vec<&str> {
    listing.iter().map(|tool| tool.name.as_str()).collect()
}

/// Why the server is not even tried, if so.
fn unusable(server: &ServerConfig) -> Option<Failure> {
    if let Launch::Unusable { reason } = &server.launch {
        return Some(Failure { stage: FailureStage::Init, reason: reason.clone() });
    }
    unenforceable(server).map(|reason| Failure { stage: FailureStage::Sandbox, reason })
}

/// A requirement on limits that can never be met: the limit is not set, or the process runs elsewhere. Whether the
/// other requirements are met is known only once a process was started.
fn unenforceable(server: &ServerConfig) -> Option<String> {
    server.require.iter().find_map(|required| {
        let (set, key) = match required {
            Requirement::MemoryHard => (server.limits.memory.is_some(), "max_memory_mb"),
            Requirement::ProcessesHard => (server.limits.processes.is_some(), "max_processes"),
            Requirement::Signals => {
                let unconfined = server.confinement.is_none().then_some(
                    "`require` names `signals`, but the server is not confined; write `files` or `network = \"none\"`, \
                     or take it out of `require`",
                );
                return unconfined.map(str::to_owned);
            }
        };
        let required = required.as_str();
        if !matches!(server.launch, Launch::Stdio(_)) {
            Some(format!(
                "`require` names `{required}`, but the server runs elsewhere, where nothing can be limited; take it out of \
                 `require`, or write `isolation = \"call\"` to limit the process that reaches it"
            ))
        } else if !set {
            Some(format!(
                "`require` names `{required}`, but no such limit is set; write `{key}` into its `limits`, or take it out of \
                 `require`"
            ))
        } else {
            None
        }
    })
}

/// Waits until `time`; forever, if there is none.
pub(crate) async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A random number in 0..1, to spread restarts.
fn random() -> f64 {
    f64::from(u32::from_ne_bytes(*uuid::Uuid::new_v4().as_bytes().first_chunk().unwrap_or(&[0; 4])))
        / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
