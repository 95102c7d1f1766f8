//! The status of the gateway and its servers, as one value that tools, the API and the command line show.
//!
//! Built from memory and from the system's data about the servers' processes, without asking a server. Holds
//! no secrets: reasons and lines were redacted when they were stored.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{
    Confinement, Isolation, Launch, Limits, Network, RemoteTransport, Requirement, ServerConfig,
};
use bridgehead_events::Counter;
use bridgehead_upstream::{
    Containment, Enforced, FailureStage, Initialisation, Listing, ProcessView, ServerRecord, Upstream,
    UpstreamState,
};
use bridgehead_wire::Era;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use crate::access::Principal;
use crate::catalog::offers::without_effect;
use crate::catalog::similar::similar;
use crate::gateway::{Gateway, Inner};
use crate::life::joined::{JoinedClient, RefusedClient};
use crate::relay::queue::Queues;

/// The number of failed attempts in a row from which a server counts as crash-looping.
const LOOPS_FROM: u32 = 3;

/// A start that takes longer gets a reason and a next step in the status.
const SLOW_START: Duration = Duration::from_secs(3);

/// The status of the gateway.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The reported version.
    pub version: String,
    /// The mode, which decides what is offered.
    pub mode: String,
    /// The id of this run.
    pub instance: String,
    /// The id of its process.
    pub pid: u32,
    /// For how long it has been running, in milliseconds.
    pub uptime_ms: u64,
    /// The addresses where clients reach it; empty if only over stdio.
    pub addresses: Vec<String>,
    /// The result of the last configuration reload, if there was one.
    pub reload: Option<Reload>,
    /// The clients that have joined over the control socket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<JoinedClient>,
    /// Clients of the same configuration that were not let in, and what differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedClient>,
    /// Its servers, in the order of the configuration.
    pub upstreams: Vec<ServerStatus>,
    /// Servers of a new configuration that are being started and will take effect together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arriving: Vec<ServerStatus>,
    /// The named queues, with their numbers of running and waiting calls.
    pub queues: Vec<Value>,
    /// The counters since the start.
    pub counters: Value,
    /// The capabilities that are offered to clients.
    pub capabilities: Value,
}

/// The result of a configuration reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reload {
    /// The time, in UTC.
    pub time: String,
    /// Whether the new configuration is in effect.
    pub ok: bool,
    /// What changed, or why the old configuration stays in effect.
    pub message: String,
    /// Settings that changed and take a restart of the gateway to become effective.
    pub needs_restart: Vec<String>,
}

/// Where a server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ServerState {
    /// Being started for the first time.
    Starting,
    /// Serving.
    Ready,
    /// Down, and being restarted.
    Restarting,
    /// Down, and several restarts in a row have failed.
    CrashLooping,
    /// Not running because no call needs it; the next call starts it.
    Asleep,
    /// Down for good.
    Failed,
    /// Stopped by the gateway.
    Stopped,
}

impl ServerState {
    /// The name for people and programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Restarting => "restarting",
            Self::CrashLooping => "crash-looping",
            Self::Asleep => "asleep",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// The status of one server. Members that do not apply to its state are left out.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: ServerState,
    /// How it is reached.
    pub transport: &'static str,
    /// Why it does not serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
    /// How many restarts have failed since it went down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Whether another attempt is expected to fail the same way, until something is changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lasting: bool,
    /// For how long it has been down, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_ms: Option<u64>,
    /// For how long it has served, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// The revision it speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The era of that revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub era: Option<&'static str>,
    /// How many tools it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<usize>,
    /// Where the tools are from: `live`, or `cached` if the server has not been asked since the gateway's
    /// start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalog: Option<&'static str>,
    /// The id of its process; of the shared one, if sessions have their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The ids of all its processes, including those of sessions and all descendants.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
    /// The memory of all of them, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Which of its processes end with it: the whole `tree`, or its process `group` (best effort).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub containment: Option<&'static str>,
    /// Its limits: the values, and once it runs how each is enforced (`hard` or `sampled`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Value>,
    /// What a process of it is shared by: `shared`, `session` or `call`.
    pub isolation: &'static str,
    /// Processes or sessions that clients have beside the shared one: how many, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Value>,
    /// What its processes may reach, if that is restricted, and once it runs whether that is enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Value>,
    /// Whether it was not started because the requested limits or confinement are unavailable.
    #[serde(skip)]
    pub sandbox_unavailable: bool,
    /// For a process per call: how many processes are idle, and how many calls found none idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Value>,
    /// Its queue, with the numbers of running and waiting calls.
    pub queue: Value,
    /// How many requests it has not answered yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<usize>,
    /// How often it was restarted.
    pub restarts: u32,
    /// The result of the last start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_init: Option<Value>,
    /// How its process ended last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<Value>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<Value>,
    /// The end of its standard error, where it does not serve yet or any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    /// Problems with its tools that do not keep it from serving.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
}

impl ServerStatus {
    /// Removes what tells of other principals, or may name things that they alone may use.
    fn conceal(&mut self) {
        self.reason = self.reason.take().map(|_| "ask an operator of the gateway".to_owned());
        self.next_step = None;
        (self.pid, self.pids, self.memory_bytes, self.in_flight) = (None, Vec::new(), None, None);
        (self.beside, self.pool, self.queue) = (Vec::new(), None, Value::Null);
        (self.last_init, self.last_exit, self.last_error) = (None, None, None);
        (self.stderr, self.findings) = (Vec::new(), Vec::new());
        (self.limits, self.confinement) = (None, None);
    }

    fn offers(&mut self, server: &ServerConfig, listing: Option<&Listing>) {
        if let Some(listing) = listing {
            self.findings.extend(without_effect(server, listing));
        }
        self.tools = listing.map(|listing| listing.len());
        self.catalog = listing.map(|listing| if listing.cached { "cached" } else { "live" });
    }
}

/// What other parts of the program report about the gateway.
pub(crate) struct About {
    instance: String,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    addresses: Vec<String>,
    reload: Option<Reload>,
    configuration: Option<String>,
    rules: Option<Arc<Value>>,
}

impl About {
    /// The instance id is the end of `recorded`, the id of the audit record, or random without a record. Both
    /// are random from the first character on, so a few characters identify the gateway.
    pub(crate) fn new(recorded: Option<&str>) -> Self {
        let end = |id: &str| id.get(id.len().checked_sub(12)?..).map(str::to_owned);
        let instance = recorded
            .and_then(end)
            .unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string()[..12].to_owned());
        Self { instance, told: Mutex::default() }
    }
}

impl Gateway {
    /// The status of the gateway and its servers.
    pub fn status(&self) -> Status {
        self.inner().status()
    }

    /// The answer of `server_health` to someone who may use everything.
    pub fn health(&self) -> Value {
        json!(self.status())
    }

    /// The id of this run: twelve hexadecimal digits.
    pub fn instance(&self) -> &str {
        &self.inner().about.instance
    }

    /// Sets the addresses where clients reach it.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        self.inner().about.told.lock().addresses = addresses;
    }

    /// Sets the result of a configuration reload.
    pub fn set_reload(&self, reload: Reload) {
        self.inner().about.told.lock().reload = Some(reload);
    }

    /// Sets the id of the configuration in effect; equal configurations have equal ids. `None` if the
    /// configuration in effect is no longer the one that was read.
    pub fn set_configuration_id(&self, id: Option<String>) {
        self.inner().about.told.lock().configuration = id;
    }

    /// The id of the configuration in effect, if set. It is derived from secrets too, so it is for operators
    /// only.
    pub fn configuration_id(&self) -> Option<String> {
        self.inner().about.told.lock().configuration.clone()
    }

    /// Sets what operators are told about the rules in effect, which whoever made the authorizer knows.
    pub fn set_rules(&self, rules: Value) {
        self.inner().about.told.lock().rules = Some(Arc::new(rules));
    }

    /// What operators are told about the rules in effect, if set.
    pub fn rules(&self) -> Option<Arc<Value>> {
        self.inner().about.told.lock().rules.clone()
    }

    /// The lines and facts that are kept about a server; `None` for a name that is not configured.
    pub fn record(&self, server: &str) -> Option<ServerRecord> {
        self.named(server).map(|upstream| upstream.record().clone())
    }

    /// Restarts a server. Returns whether there is one of that name.
    pub fn restart(&self, server: &str) -> bool {
        let found = self.named(server);
        if let Some(upstream) = &found {
            upstream.restart();
        }
        found.is_some()
    }

    /// Names of servers that `name` may be a misspelling of, the nearest first.
    pub fn similar_servers(&self, name: &str) -> Vec<String> {
        let upstreams = self.inner().upstreams.read();
        let names = upstreams.iter().map(|upstream| upstream.name().as_ref());
        similar(name, names).into_iter().map(str::to_owned).collect()
    }

    fn named(&self, server: &str) -> Option<Upstream> {
        let named = |all: &[Upstream]| all.iter().find(|one| one.name().as_ref() == server).cloned();
        let found = named(&self.inner().upstreams.read());
        found.or_else(|| named(&self.inner().arriving.lock()))
    }
}

impl Inner {
    /// The status as a principal may see it. One that may not use everything sees the servers that it may use, and of these
    /// no more than whether they serve: what others do, and the words of servers, may tell of what it may not use.
    pub(crate) fn status_for(&self, principal: &Principal) -> Status {
        let view = self.view(principal);
        let mut status = self.status();
        if view.is_whole {
            return status;
        }
        status.upstreams.retain(|server| !self.views.hides(principal, &server.name));
        status.arriving = Vec::new();
        for server in &mut status.upstreams {
            server.tools = server.tools.map(|_| view.shown_of(&server.name));
            server.conceal();
        }
        status.reload = None;
        (status.clients, status.refused) = (Vec::new(), Vec::new());
        status.queues = Vec::new();
        status.counters = json!({"toolsHiddenByMode": view.hidden});
        status
    }

    pub(crate) fn status(&self) -> Status {
        let upstreams = self.upstreams.read().clone();
        let arriving = self.arriving.lock().clone();
        let (addresses, reload) = {
            let told = self.about.told.lock();
            (told.addresses.clone(), told.reload.clone())
        };
        let metrics = self.gate.signals.metrics();
        Status {
            version: self.version.clone(),
            mode: self.settings.mode.to_string(),
            instance: self.about.instance.clone(),
            pid: std::process::id(),
            uptime_ms: milliseconds(self.uptime()),
            addresses,
            reload,
            clients: self.joined.describe(),
            refused: self.joined.describe_refused(),
            upstreams: upstreams.iter().map(|upstream| describe(upstream, &self.queues)).collect(),
            arriving: arriving.iter().map(|upstream| describe(upstream, &self.queues)).collect(),
            queues: self.queues.named().iter().map(|queue| queue.describe()).collect(),
            counters: json!({
                "calls": metrics.count(Counter::Calls),
                "failed": metrics.count(Counter::Failed),
                "cancelled": metrics.count(Counter::Cancelled),
                "auditExitFailures": metrics.count(Counter::AuditExitFailures),
                "invalidOutputs": metrics.count(Counter::InvalidOutputs),
                "toolsHiddenByMode": self.catalog.load().hidden,
            }),
            capabilities: json!({"tools": {"listChanged": true}}),
        }
    }
}

fn describe(upstream: &Upstream, queues: &Queues) -> ServerStatus {
    let record = upstream.record();
    let facts = record.facts();
    let processes = record.processes();
    let pids: Vec<u32> = processes.iter().flat_map(|process| process.tree()).collect();
    let transport = match &upstream.config().launch {
        Launch::Stdio(_) => "stdio",
        // The transport that is actually spoken is known once the server is ready.
        Launch::Remote(remote) => match remote.transport {
            RemoteTransport::Probe | RemoteTransport::Http => "http",
            RemoteTransport::Sse => "sse",
            RemoteTransport::WebSocket => "websocket",
        },
        Launch::Unusable { .. } => "none",
    };
    let when = |(time, words): &(jiff::Timestamp, String), key: &str| json!({"time": format!("{time:.3}"), key: words});
    let mut status = ServerStatus {
        name: upstream.name().to_string(),
        state: ServerState::Stopped,
        transport,
        reason: None,
        next_step: None,
        attempts: None,
        lasting: false,
        down_ms: None,
        uptime_ms: None,
        revision: None,
        era: None,
        tools: None,
        catalog: None,
        pid: processes.first().map(ProcessView::pid),
        memory_bytes: processes.iter().filter_map(ProcessView::memory_bytes).reduce(|sum, bytes| sum + bytes),
        containment: processes.first().map(|process| match process.containment() {
            Containment::Tree => "tree",
            Containment::Group => "group",
        }),
        limits: limits(&upstream.config().limits, processes.first()),
        isolation: match upstream.config().isolation {
            Isolation::Shared => "shared",
            Isolation::Session => "session",
            Isolation::Call => "call",
        },
        beside: upstream
            .reasons_beside()
            .into_iter()
            .map(|(reason, count)| json!({"count": count, "reason": reason.as_str()}))
            .collect(),
        confinement: upstream
            .config()
            .confinement
            .as_ref()
            .map(|asked| confinement(asked, &upstream.config().require, processes.first())),
        sandbox_unavailable: false,
        pool: (upstream.config().isolation == Isolation::Call).then(|| {
            let (idle, misses) = upstream.pool();
            json!({"idle": idle, "misses": misses})
        }),
        pids,
        queue: queues.of(upstream.name(), &upstream.config().queue).describe(),
        in_flight: None,
        restarts: facts.restarts,
        last_init: facts.last_init.as_ref().map(initialisation),
        last_exit: facts.last_exit.as_ref().map(|exit| when(exit, "status")),
        last_error: facts.last_error.as_ref().map(|error| when(error, "message")),
        stderr: Vec::new(),
        findings: facts.findings,
    };
    match upstream.state() {
        UpstreamState::Starting { since, known, .. } => {
            status.state = ServerState::Starting;
            if since.elapsed() >= SLOW_START {
                let seconds = since.elapsed().as_secs();
                status.reason = Some(format!("it has given no usable answer for {seconds} s"));
            }
            status.offers(upstream.config(), known.as_deref());
        }
        UpstreamState::Asleep(listing) => {
            status.state = ServerState::Asleep;
            status.offers(upstream.config(), Some(&listing));
        }
        UpstreamState::Stopped => {}
        UpstreamState::Restarting(outage) => {
            status.state = match outage.attempts {
                LOOPS_FROM.. => ServerState::CrashLooping,
                _ => ServerState::Restarting,
            };
            status.reason = Some(outage.reason.clone());
            status.attempts = Some(outage.attempts);
            status.lasting = outage.lasting;
            status.down_ms = Some(milliseconds(outage.since.elapsed()));
        }
        UpstreamState::Failed(failure) => {
            status.state = ServerState::Failed;
            status.sandbox_unavailable = failure.stage == FailureStage::Sandbox;
            status.reason = Some(failure.reason.clone());
        }
        UpstreamState::Ready(ready) => {
            status.state = ServerState::Ready;
            status.transport = ready.transport;
            status.uptime_ms = Some(milliseconds(ready.since.elapsed()));
            status.revision = Some(ready.peer.revision.to_string());
            status.era = Some(match ready.peer.revision.era() {
                Era::Modern => "modern",
                Era::Legacy => "legacy",
            });
            status.offers(upstream.config(), Some(&ready.tools));
            status.pid = ready.pid;
            status.in_flight = Some(upstream.in_flight());
        }
    }
    if status.reason.is_some() || status.state == ServerState::Starting {
        status.stderr = record.last_words();
    }
    if status.reason.is_some() {
        status.next_step = Some(next_step(&status, record, upstream.config().start_timeout));
    }
    status
}

fn initialisation(init: &Initialisation) -> Value {
    json!({
        "time": format!("{:.3}", init.time),
        "outcome": init.outcome.as_str(),
        "tools": init.tools,
        "durationMs": init.duration_ms,
        "error": init.error,
    })
}

/// What the operator may do about a server that does not serve. `patience` is how long a start of it may take.
fn next_step(status: &ServerStatus, record: &ServerRecord, patience: Duration) -> String {
    let name = &status.name;
    if status.transport == "none" {
        return format!("correct `{name}` in the configuration; `bridgehead check` shows where");
    }
    if status.sandbox_unavailable {
        return format!("see what works here with `bridgehead doctor`, and change what `{name}` asks for");
    }
    if status.state == ServerState::Starting && record.noise().is_none() {
        return format!(
            "wait: a start may take {} s (`start_timeout_ms`), for example the first one of a program that is downloaded; \
             `bridgehead logs {name}` shows what it says meanwhile",
            patience.as_secs()
        );
    }
    if status.transport != "stdio" {
        return format!(
            "the reason names the cure; check `url`, `type` and `headers` of `{name}` in the configuration"
        );
    }
    if !record.facts().ran {
        return format!("check `command`, `cwd` and `env` of `{name}` in the configuration");
    }
    if let Some(noise) = record.noise() {
        let shown: String = noise.chars().take(60).collect();
        return format!(
            "its standard output must carry MCP messages only, but begins `{shown}`: check that `command` starts an \
             MCP server that speaks over stdio, and that it logs to standard error"
        );
    }
    // It speaks MCP, but what it says cannot be used.
    let protocol = ["`tools/list`", "`initialize`", "protocol revision"];
    if status.reason.as_ref().is_some_and(|reason| protocol.iter().any(|words| reason.contains(words))) {
        return format!(
            "this is a bug in the server: report it to its author, or remove `{name}` from the configuration"
        );
    }
    if status.stderr.is_empty() {
        return format!(
            "run the command of `{name}` by hand: it must wait for MCP messages on standard input"
        );
    }
    format!("read what it wrote with `bridgehead logs {name}`")
}

/// The limits of a server, if it has any, and how each is enforced for the running process.
fn limits(limits: &Limits, process: Option<&ProcessView>) -> Option<Value> {
    let effective = process.map(ProcessView::effective).unwrap_or_default();
    let kept = |name: &str, most: Option<u64>, enforced: Option<Enforced>| {
        let how = enforced.map(|enforced| enforced.to_string());
        most.map(|most| (name.to_owned(), json!({"most": most, "enforced": how})))
    };
    let of_a_call = |name: &str, most: Option<u64>| most.map(|most| (name.to_owned(), json!({"most": most})));
    let each = [
        kept("memoryBytes", limits.memory, effective.memory),
        kept("processes", limits.processes.map(u64::from), effective.processes),
        kept("openFiles", limits.open_files.map(u64::from), effective.open_files),
        kept("fileBytes", limits.file_size, effective.file_size),
        of_a_call("executionMs", limits.execution.map(milliseconds)),
        of_a_call("outputBytes", limits.output.map(|bytes| bytes as u64)),
        of_a_call("logBytes", limits.log.map(|bytes| bytes as u64)),
    ];
    let set: serde_json::Map<String, Value> = each.into_iter().flatten().collect();
    (!set.is_empty()).then_some(Value::Object(set))
}

/// What a server may reach, and whether that is enforced for the running process; `null` while none runs.
fn confinement(asked: &Confinement, require: &[Requirement], process: Option<&ProcessView>) -> Value {
    let kept = process.map(|process| process.effective().confined.unwrap_or_default());
    let (mut missing, mut gaps) = (Vec::new(), Vec::new());
    if let Some(kept) = &kept {
        let wanted = bridgehead_upstream::AskedConfinement {
            files: asked.files.as_ref().map(|_| Default::default()),
            network: asked.network == Network::Full,
            signals: require.contains(&Requirement::Signals),
            degrade: false,
        };
        (missing, gaps) = (kept.missing(&wanted), kept.gaps(&wanted));
    }
    let files = asked.files.as_ref().map(|files| {
        let (read, write) = (&files.read, &files.write);
        json!({"read": read, "write": write, "enforced": kept.map(|kept| kept.files)})
    });
    let (allowed, shut) = match asked.network {
        Network::Full => ("full", None),
        Network::None => ("none", kept.map(|kept| kept.network)),
    };
    json!({
        "profile": asked.profile.map(bridgehead_config::Profile::as_str),
        "files": files,
        "network": {"allowed": allowed, "enforced": shut},
        "signals": kept.map(|kept| kept.signals),
        "landlock": kept.map(|kept| kept.landlock),
        "missing": missing,
        "gaps": gaps,
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
