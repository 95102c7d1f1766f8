//! The gateway itself: built without side effects, then started, asked and stopped.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use bridgehead_call::{AuditSink, Clock, CorrelationId, NoopSink, SystemClock};
use bridgehead_config::{GatewaySettings, Mode, ServerConfig};
use bridgehead_events::{Bus, Signals};
use bridgehead_schema::HeaderParameter;
use bridgehead_upstream::credentials::CredentialSource;
use bridgehead_upstream::{
    FailureStage, Features, INIT_TIMEOUT, LineSink, Lists, Registry, ServerRecords, Upstream, UpstreamState,
};
use bridgehead_wire::{
    Abilities, Ambiguous, ClientMethod, Code, Era, Method, Object, Raw, Revision, RpcError, Spliced, code,
    key,
};
use parking_lot::{Mutex, MutexGuard, RwLock};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Dispatch;

use crate::access::views::{Views, resource};
use crate::access::{Action, Authorizer, Decision, Limited, Limiter, Principal, Thing};
use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::builtin::{server_health, server_ping};
use crate::catalog::names::is_under;
use crate::catalog::native::{NativePrompt, NativeResource, NativeTool, Natives, RegisterError};
use crate::catalog::offers::{Offers, is_prefixed};
use crate::catalog::view::Condition;
use crate::catalog::{Catalog, ResourceOwner, Shape};
use crate::dialogue::park::{Park, ParkWay, Parks};
use crate::dialogue::questioner::Questioner;
use crate::dialogue::seal::{Seal, SealedFor};
use crate::error::GatewayError;
use crate::feeds::{Feeds, SeenBefore};
use crate::gate::{Call, Cancels, Gate, Limits, Subject, places};
use crate::life::joined::JoinedClients;
use crate::life::status::About;
use crate::life::{GoneTool, Run, behind};
use crate::relay::queue::Queues;
use crate::relay::request::sandbox_setup;
use crate::surface::refused::RefusedRequest;
use crate::surface::tools::has_scopes;
use crate::surface::{capabilities, is_served, not_offered, rpc_code};

/// Every feature of a server that a legacy client can use, and a modern one besides the extensions.
const EVERYTHING: Features = Features {
    prompts: true,
    resources: true,
    subscribe: true,
    completions: true,
    logging: true,
    tasks: false,
    ui: false,
    changes: Lists::ALL,
};

/// What a gateway is built from. Everything has a default; building reads and starts nothing.
pub struct Options {
    /// The `[gateway]` settings.
    pub settings: GatewaySettings,
    /// The servers, in the order their tools are listed.
    pub servers: Vec<ServerConfig>,
    /// The environment from which servers get the few variables that every program needs. If `None`, the start reads
    /// those variables, and those that the servers' `inherit_env` name, from the process's own environment.
    pub environment: Option<BTreeMap<String, String>>,
    /// Where calls are recorded.
    pub audit: Arc<dyn AuditSink>,
    /// The methods that are recorded besides those that always are.
    pub also_recorded: Vec<&'static str>,
    /// Decides who may use what; by default every principal may use everything.
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// Decides how much a principal may do; by default as much as the servers can take.
    pub limiter: Option<Arc<dyn Limiter>>,
    /// Chooses the credentials for remote servers; by default their configured headers.
    pub credentials: Option<CredentialSource>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// When this process started, as a reading of the monotonic clock; now if `None`.
    pub boot: Option<Duration>,
    /// The version to show.
    pub version: String,
    /// Rust tools besides the built-in ones.
    pub tools: Vec<NativeTool>,
    /// Rust prompts.
    pub prompts: Vec<NativePrompt>,
    /// Rust resources and resource templates.
    pub resources: Vec<NativeResource>,
    /// Receives the lines that servers write to standard error, and the gateway's lines about them.
    pub log_lines: Option<LineSink>,
    /// The registry in which running servers are shared; by default with every gateway of this process.
    pub registry: Registry,
    /// Where the gateway logs its own failures (a call that could not be recorded, a panic), instead of the
    /// subscriber of the calling code.
    pub logger: Option<Dispatch>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settings: GatewaySettings::default(),
            servers: Vec::new(),
            environment: None,
            audit: Arc::new(NoopSink),
            also_recorded: Vec::new(),
            authorizer: None,
            limiter: None,
            credentials: None,
            clock: Arc::new(SystemClock::default()),
            boot: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tools: Vec::new(),
            prompts: Vec::new(),
            resources: Vec::new(),
            log_lines: None,
            registry: Registry::of_this_process(),
            logger: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("version", &self.version)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

/// One offered tool.
#[derive(Debug, Clone)]
pub struct OfferedTool {
    /// The name to call it by.
    pub name: Arc<str>,
    /// The name that its server gives it.
    pub own_name: String,
    /// The server it belongs to; `None` for the gateway's own.
    pub server: Option<Arc<str>>,
    /// Its entry in `tools/list`: the server's definition under the offered name.
    pub definition: Raw,
}

impl OfferedTool {
    /// What it does, for the model.
    pub fn description(&self) -> Option<String> {
        self.member("description")?.to_text()
    }

    /// The schema of its arguments.
    pub fn input_schema(&self) -> Option<Raw> {
        self.member("inputSchema")
    }

    fn member(&self, name: &str) -> Option<Raw> {
        Object::parse(&self.definition).ok()?.get(name)
    }
}

/// The gateway. Clones share it.
#[derive(Debug, Clone)]
pub struct Gateway(Arc<Inner>);

/// The state that clones share, and that the built-in tools read.
pub(crate) struct Inner {
    pub(crate) settings: GatewaySettings,
    pub(crate) version: String,
    boot: Duration,
    /// The servers of the current configuration.
    pub(crate) servers: Mutex<Vec<ServerConfig>>,
    /// The environment that was given; the process's own, if `None`.
    pub(crate) environment: Option<Arc<BTreeMap<String, String>>>,
    pub(crate) credentials: Option<CredentialSource>,
    pub(crate) registry: Registry,
    /// Set between start and stop.
    pub(crate) run: Mutex<Option<Run>>,
    /// Held during a change of the set of servers: one at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Held during a merge: one at a time, so that an older one never finishes last.
    pub(crate) merging: Mutex<()>,
    /// Tools of removed servers, by the name that they were offered under.
    pub(crate) gone: Mutex<HashMap<Arc<str>, GoneTool>>,
    pub(crate) gate: Gate,
    /// What is written in Rust; changed only while `merging` is held.
    pub(crate) natives: Mutex<Natives>,
    pub(crate) upstreams: RwLock<Vec<Upstream>>,
    /// The servers that a reload is starting and has not put into effect yet.
    pub(crate) arriving: Mutex<Vec<Upstream>>,
    pub(crate) queues: Queues,
    pub(crate) parks: Arc<Parks>,
    pub(crate) catalog: ArcSwap<Catalog>,
    /// The part of the catalog that each class of principals sees.
    pub(crate) views: Views,
    /// What clients are told unprompted.
    pub(crate) feeds: Feeds,
    /// Incremented when a list that clients see has changed.
    changes: watch::Sender<u64>,
    /// How many servers are still starting, according to the catalog.
    pub(crate) starting: watch::Sender<usize>,
    /// Whether a modern client was told that everything is served, because servers were still starting.
    declared_everything: AtomicBool,
    /// Since when lists wait for starting servers; set by the first list.
    pub(crate) lists_wait_since: Mutex<Option<Instant>>,
    pub(crate) upstream_changed: Arc<Notify>,
    pub(crate) records: ServerRecords,
    pub(crate) about: About,
    pub(crate) joined: Arc<JoinedClients>,
    /// Cancelled when a panic occurred while a client was served.
    pub(crate) panicked: CancellationToken,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Builds a gateway; refuses a Rust tool, prompt or resource that cannot be registered.
    pub fn new(options: Options) -> Result<Self, RegisterError> {
        let Options {
            settings,
            servers,
            environment,
            audit,
            also_recorded,
            authorizer,
            limiter,
            credentials,
            clock,
            boot,
            version,
            tools,
            prompts,
            resources,
            log_lines,
            registry,
            logger,
        } = options;
        let servers = behind(servers, &settings);
        let about = About::new(audit.instance());
        let server_info = Raw::encode(&json!({"name": "bridgehead", "version": version}));
        let gate = Gate {
            authorizer: authorizer.clone(),
            limiter,
            audit,
            also_recorded,
            server_info,
            uris: settings.resource_uris,
            limits: Limits { silent: settings.request_timeout, total: settings.max_total },
            question_timeout: settings.question_timeout,
            apart: places(),
            debug_errors: settings.debug_errors || settings.mode == Mode::Test,
            cancels: Cancels::default(),
            signals: Signals::new(Bus::new(Arc::clone(&clock)), logger),
            clock: Arc::clone(&clock),
        };
        let boot = boot.unwrap_or_else(|| clock.monotonic());
        let mut refused = None;
        let inner = Arc::new_cyclic(|gateway| {
            let builtin = match settings.builtin {
                true => vec![server_ping(gateway.clone()), server_health(gateway.clone())],
                false => Vec::new(),
            };
            let mut natives = Natives::default();
            let mut tools = builtin.into_iter().chain(tools);
            refused = tools
                .try_for_each(|tool| natives.add_tool(tool, settings.mode))
                .and_then(|()| prompts.into_iter().try_for_each(|prompt| natives.add_prompt(prompt)))
                .and_then(|()| resources.into_iter().try_for_each(|resource| natives.add_resource(resource)))
                .err();
            let catalog =
                Catalog::merge(shape(&settings), &natives, &Offers::default(), &gate.server_info, None);
            Inner {
                boot,
                version,
                environment: environment.map(Arc::new),
                credentials,
                natives: Mutex::new(natives),
                upstreams: RwLock::default(),
                arriving: Mutex::default(),
                queues: Queues::default(),
                parks: Arc::default(),
                catalog: ArcSwap::from_pointee(catalog),
                views: Views::new(authorizer.clone(), settings.views_bytes),
                feeds: Feeds::default(),
                changes: watch::Sender::new(0),
                starting: watch::Sender::new(0),
                declared_everything: AtomicBool::new(false),
                lists_wait_since: Mutex::default(),
                upstream_changed: Arc::new(Notify::new()),
                records: ServerRecords::new(clock, log_lines),
                about,
                joined: Arc::default(),
                panicked: CancellationToken::new(),
                settings,
                servers: Mutex::new(servers),
                registry,
                run: Mutex::default(),
                changing: tokio::sync::Mutex::default(),
                merging: Mutex::default(),
                gone: Mutex::default(),
                gate,
            }
        });
        match refused {
            Some(error) => Err(error),
            None => Ok(Self(inner)),
        }
    }

    /// The state that clones share.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// Answers one request of either era, even if answering it panics. Dropping the future cancels the
    /// request.
    #[doc(hidden)]
    pub async fn answer(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        self.guarded(request, pin!(self.answer_any(caller, request, progress))).await
    }

    async fn answer_any(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        if let Some(why) = request.params.ambiguous(request.method.params()) {
            return Err(Box::pin(self.refuse_ambiguous(caller, request, why)).await);
        }
        if let Some(abilities) = request.parkable(caller.era()) {
            return Box::pin(self.answer_parkable(caller, request, progress, abilities)).await;
        }
        self.answer_here(caller, request, progress).await
    }

    /// Refuses a request whose params another parser could read differently. The refusal is recorded like any
    /// other.
    async fn refuse_ambiguous(&self, caller: &Caller, request: &ClientRequest, why: Ambiguous) -> RpcError {
        let error =
            GatewayError::new(Code::InvalidParams, format!("`params` of `{}`: {why}", request.method));
        let call = Call::new(caller, request, None);
        let refused = RefusedRequest::new(request, error.clone());
        self.0.gate.pass(&call, &refused).await;
        if request.method == Method::ToolsCall {
            return error.to_rpc(code::INVALID_PARAMS, None, ("tool", refused.name()), call.correlation);
        }
        RpcError::new(code::INVALID_PARAMS, &error.message)
    }

    /// Refuses a method that is not served to the principal. If something that others have is behind it, that is recorded.
    async fn refuse_method(&self, caller: &Caller, request: &ClientRequest) -> RpcError {
        let error = not_offered(&request.method);
        if let Some(why) = self.0.why_not_served(caller, request) {
            let call = Call::new(caller, request, None);
            let failed = GatewayError::new(Code::ProviderToolUnknown, error.message());
            self.0.gate.pass(&call, &RefusedRequest::denied(request, failed, why)).await;
        }
        error
    }

    /// Answers a request whose client may be asked something, or that resumes a parked call.
    async fn answer_parkable(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
        abilities: Abilities,
    ) -> Result<Spliced, RpcError> {
        let Inner { parks, gate, .. } = &*self.0;
        let subject = || SealedFor::of(caller.principal.as_str(), request.method.as_str(), &request.params);
        let token = || request.meta.progress_token.clone();
        let way = progress.clone().map(|sink| ParkWay { sink, token: token() });
        let state = request.params.get("requestState").and_then(|state| state.to_text());
        if let Some(state) = state.filter(|state| Seal::is_marked(state)) {
            if !self.0.still_admits(caller, request) {
                // Answered like any other request for something that the principal may not use.
                parks.abandon(&state, &subject());
                return self.answer_here(caller, request, progress).await;
            }
            let responses = request.params.get("inputResponses");
            let whose = (&caller.principal, &subject());
            let resumed = parks.resume(&state, whose, responses, way.clone(), &gate.server_info).await;
            if let Some(outcome) = resumed {
                return outcome;
            }
        }
        if !abilities.answers_any() {
            return self.answer_here(caller, request, progress).await;
        }
        let correlation = request.correlation();
        let park = Arc::new(Park::new(abilities, correlation, &caller.principal, way));
        let caller_here =
            Caller { questioner: Some(Questioner::parked(Arc::clone(&park))), ..caller.clone() };
        let mut ask_here = request.clone();
        ask_here.meta.correlation_id = Some(correlation.to_string());
        let progress = progress.map(|_| ProgressSink::parked(Arc::clone(&park)));
        let this = self.clone();
        let work = Box::pin(async move {
            let answering = pin!(this.answer_here(&caller_here, &ask_here, progress));
            this.guarded(&ask_here, answering).await
        });
        parks.begin(park, work, subject, &gate.server_info).await
    }

    /// Answers one request, from its beginning to its end.
    async fn answer_here(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> Result<Spliced, RpcError> {
        let (method, era) = (&request.method, caller.era());
        if !method.eras().has(era) || !self.serves(&caller.principal, era, method) {
            return Err(Box::pin(self.refuse_method(caller, request)).await);
        }
        match method.of_client() {
            Some(ClientMethod::ToolsCall) => self.call_tool(caller, request, progress).await,
            Some(ClientMethod::Discover) => {
                self.admit(&caller.principal, method)?;
                self.wait_for_instructions().await;
                Ok(self.0.discover(&caller.principal))
            }
            Some(ClientMethod::PromptsGet) => Box::pin(self.get_prompt(caller, request, progress)).await,
            Some(ClientMethod::ResourcesRead) => {
                Box::pin(self.read_resource(caller, request, progress)).await
            }
            Some(ClientMethod::Complete) => Box::pin(self.complete(caller, request, progress)).await,
            Some(ClientMethod::TasksGet | ClientMethod::TasksUpdate | ClientMethod::TasksCancel) => {
                Box::pin(self.ask_task(caller, request, progress)).await
            }
            Some(
                ClientMethod::ToolsList
                | ClientMethod::PromptsList
                | ClientMethod::ResourcesList
                | ClientMethod::TemplatesList
                | ClientMethod::SetLevel
                | ClientMethod::Subscribe
                | ClientMethod::Unsubscribe
                | ClientMethod::Listen,
            ) => Box::pin(self.answer_itself(caller, request, progress)).await,
            // The front answers these two.
            Some(ClientMethod::Initialize | ClientMethod::Ping) | None => Err(not_offered(method)),
        }
    }

    /// Whether a method is served to a principal's clients of an era: what is declared is served, and nothing
    /// else. Legacy clients were told once, perhaps while servers were still starting, so they are served
    /// everything possible; so are modern clients once one of them asked that early.
    #[doc(hidden)]
    pub fn serves(&self, principal: &Principal, era: Era, method: &Method) -> bool {
        // These are always served: skip the lookup.
        if matches!(method, Method::ToolsCall | Method::ToolsList) {
            return true;
        }
        let features = match era {
            Era::Legacy => EVERYTHING,
            Era::Modern => match self.0.declared_everything.load(Ordering::Acquire) {
                true => EVERYTHING.or(self.0.view(principal).features),
                false => self.0.view(principal).features,
            },
        };
        is_served(method, features)
    }

    /// Counts a request that no other request of its client precedes, and that passes no stage of the gate: `initialize` and
    /// `server/discover`.
    ///
    /// # Errors
    /// If the principal has made too many requests.
    #[doc(hidden)]
    pub fn admit(&self, principal: &Principal, method: &Method) -> Result<(), RpcError> {
        let Some(limiter) = &self.0.gate.limiter else { return Ok(()) };
        let refused = match limiter.admit(principal, Limited::new(method, None, "")) {
            Ok(allowance) => {
                drop(allowance);
                return Ok(());
            }
            Err(refused) => refused,
        };
        let subject = ("method", method.as_str());
        Err(refused.to_rpc(rpc_code(&refused), None, subject, CorrelationId::mint()))
    }

    /// The result of a legacy `initialize` that negotiated `revision`. The instructions are those of the
    /// servers that are ready. While servers are starting, all possible capabilities are declared.
    #[doc(hidden)]
    pub fn initialize(&self, principal: &Principal, revision: Revision) -> Raw {
        let catalog = self.0.view(principal);
        let features = if catalog.starting == 0 { catalog.features } else { EVERYTHING };
        let result = json!({
            "protocolVersion": revision.as_str(),
            "capabilities": capabilities(features, catalog.experimental.as_ref(), Era::Legacy),
            "serverInfo": {"name": "bridgehead", "version": self.0.version},
        });
        with_instructions(&catalog, &result).to_raw()
    }

    /// The instructions of the listed servers and their tools for the model, as one text in the order of the
    /// configuration. `None` if there are none.
    pub fn instructions(&self) -> Option<String> {
        self.0.catalog.load().instructions().and_then(Raw::to_text)
    }

    /// The instructions of the servers and tools that a principal may use.
    pub fn instructions_for(&self, principal: &Principal) -> Option<String> {
        self.0.view(principal).instructions().and_then(Raw::to_text)
    }

    /// The tools that clients see now, in list order. Answered from memory, without asking a server.
    pub fn list_tools(&self) -> Vec<OfferedTool> {
        offered(&self.0.catalog.load())
    }

    /// The tools that a principal may use now, in list order. Answered from memory, without asking a server.
    pub fn list_tools_for(&self, principal: &Principal) -> Vec<OfferedTool> {
        offered(&self.0.view(principal))
    }

    /// The input schema of a tool, by its offered name; `None` for a tool that is unknown or hidden by the
    /// mode. Answered from memory, without asking a server.
    pub fn tool_schema(&self, name: &str) -> Option<Raw> {
        let catalog = self.0.catalog.load();
        let route = catalog.route(name).filter(|route| route.excluded_by.is_none())?;
        Object::parse(&route.definition).ok()?.get("inputSchema")
    }

    /// The arguments of a tool that are also sent as `Mcp-Param-*` headers; empty for an unknown tool.
    #[inline]
    #[doc(hidden)]
    pub fn header_parameters(&self, principal: &Principal, tool: &str) -> Arc<[HeaderParameter]> {
        static NONE: LazyLock<Arc<[HeaderParameter]>> = LazyLock::new(|| Arc::new([]));
        self.0.view(principal).route(tool).and_then(|route| route.headers()).unwrap_or(&NONE).clone()
    }

    /// Has the authorizer asked again about everything, because its decisions have changed. All views are replaced in one
    /// step; clients are told of the lists that changed for them; subscriptions to what was lost end.
    pub fn policy_changed(&self) {
        let inner = &self.0;
        let _alone = inner.merging.lock();
        let before = inner.feeds.seen(|principal| inner.views.last(principal));
        inner.views.renew();
        inner.tell_changes(&before, Lists::ALL);
        inner.changes.send_modify(|generation| *generation += 1);
        inner.feeds.review(
            |principal, uri| !inner.resource_owner(principal, uri).is_nobody(),
            |principal, server, tool| inner.why_no_task(principal, server, tool).is_none(),
        );
    }

    /// Changes whenever one of the lists has changed.
    pub fn catalog_changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Waits until no server is starting any more, even if it is listed already because its list is saved.
    pub async fn settled(&self) {
        self.learns(|_| false).await;
    }

    /// Waits until a tool of that name is known, or no server is starting any more. Returns whether the tool
    /// is known.
    pub async fn knows(&self, tool: &str) -> bool {
        self.learns(|catalog| catalog.route(tool).is_some()).await
    }

    /// Waits in the same way for a prompt of that name.
    pub async fn knows_prompt(&self, prompt: &str) -> bool {
        self.learns(|catalog| catalog.prompts.get(prompt).is_some()).await
    }

    /// Waits in the same way for a resource that a server lists, or a template that the URI matches.
    pub async fn knows_resource(&self, uri: &str) -> bool {
        self.learns(|catalog| catalog.known_owner(uri).is_some()).await
    }

    async fn learns(&self, is_known: impl Fn(&Catalog) -> bool) -> bool {
        let mut starting = self.0.starting.subscribe();
        let known = || is_known(&self.0.catalog.load());
        let settled = || self.0.catalog.load().provisional == 0;
        // Sent with every merge, even if the number is the same.
        let _ = starting.wait_for(|starting| *starting == 0 && settled() || known()).await;
        known()
    }

    /// The servers, in the order of the configuration.
    #[doc(hidden)]
    pub fn upstreams(&self) -> Vec<Upstream> {
        self.0.upstreams.read().clone()
    }

    /// Tools whose offered name is a short form: server, tool, name.
    pub fn renamed(&self) -> Vec<(String, String, String)> {
        self.0.catalog.load().renamed()
    }

    /// How many parked calls wait for their clients to come back.
    pub fn parked(&self) -> usize {
        self.0.parks.count()
    }

    /// The event bus.
    pub fn events(&self) -> &Bus {
        self.signals().bus()
    }

    /// Where everything that happens is logged, counted and published; also gives access to the counters.
    pub fn signals(&self) -> &Signals {
        &self.0.gate.signals
    }
}

impl Inner {
    /// The view of a principal.
    pub(crate) fn view(&self, principal: &Principal) -> Guard<Arc<Catalog>> {
        self.views.of(principal, self.catalog.load())
    }

    /// Who has a resource, as far as a principal may use it.
    pub(crate) fn resource_owner(&self, principal: &Principal, uri: &str) -> ResourceOwner {
        self.readable(principal, uri, self.view(principal).resource_owner(uri))
    }

    /// Those of a resource's possible owners from which a principal may read it.
    pub(crate) fn readable(&self, principal: &Principal, uri: &str, owner: ResourceOwner) -> ResourceOwner {
        let Some(authorizer) = self.views.authorizer() else { return owner };
        let may_read = |server: Option<&str>, name: &str| {
            authorizer.decide(principal, Action::Read, resource(server, name)) != Decision::Deny
        };
        match owner {
            ResourceOwner::Native(native) if may_read(None, uri) => ResourceOwner::Native(native),
            ResourceOwner::Native(_) => ResourceOwner::NOBODY,
            ResourceOwner::Servers(mut servers) => {
                let catalog = self.catalog.load();
                let own = catalog.own_uri(uri);
                servers.retain(|owner| may_read(Some(&owner.server), own));
                ResourceOwner::Servers(servers)
            }
        }
    }

    /// Why something does not exist for a principal, if it exists. Asked only after it was not found.
    pub(crate) fn why_denied(
        &self,
        principal: &Principal,
        action: Action,
        find: impl for<'c> FnOnce(&'c Catalog) -> Option<Thing<'c>>,
    ) -> Option<String> {
        let authorizer = self.views.authorizer()?;
        let whole = self.catalog.load();
        Some(authorizer.why_denied(principal, action, find(&whole)?))
    }

    /// The same for a resource: why it may not be read from the first server that may have it.
    pub(crate) fn why_unreadable(&self, principal: &Principal, uri: &str) -> Option<String> {
        let authorizer = self.views.authorizer()?;
        let whole = self.catalog.load();
        let owner = whole.resource_owner(uri);
        let server = match &owner {
            ResourceOwner::Native(_) => None,
            ResourceOwner::Servers(servers) => Some(&*servers.first()?.server),
        };
        Some(authorizer.why_denied(principal, Action::Read, resource(server, whole.own_uri(uri))))
    }

    /// Why what a request names does not exist for a principal, if it has nothing of that kind.
    fn why_not_served(&self, caller: &Caller, request: &ClientRequest) -> Option<String> {
        let named = |member| request.params.get(member).and_then(|name| name.to_text());
        match request.method.of_client()? {
            ClientMethod::PromptsGet => {
                let name = named("name")?;
                self.why_denied(&caller.principal, Action::Get, |whole| {
                    whole.prompts.get(&name).map(|entry| entry.thing())
                })
            }
            ClientMethod::ResourcesRead => self.why_unreadable(&caller.principal, &named("uri")?),
            _ => None,
        }
    }

    /// Whether a principal may still use what its parked call is about, with the credential that it shows now.
    fn still_admits(&self, caller: &Caller, request: &ClientRequest) -> bool {
        if self.views.authorizer().is_none() {
            return true;
        }
        let (principal, view) = (&caller.principal, self.view(&caller.principal));
        let named = |member| request.params.get(member).and_then(|name| name.to_text()).unwrap_or_default();
        match request.method.of_client() {
            Some(ClientMethod::ToolsCall) => {
                let name = named("name");
                let lacks = |condition: &Condition| matches!(condition, Condition::Scopes(scopes) if has_scopes(principal, scopes, &name).is_err());
                view.route(&name).is_some() && !view.condition(&name).is_some_and(lacks)
            }
            Some(ClientMethod::PromptsGet) => view.prompts.get(&named("name")).is_some(),
            Some(ClientMethod::ResourcesRead) => !self.resource_owner(principal, &named("uri")).is_nobody(),
            _ => true,
        }
    }

    /// Since the start, by the monotonic clock.
    pub(crate) fn uptime(&self) -> Duration {
        self.gate.clock.monotonic().saturating_sub(self.boot)
    }

    fn discover(&self, principal: &Principal) -> Spliced {
        let catalog = self.view(principal);
        let mut features = catalog.features;
        if catalog.starting > 0 {
            self.declared_everything.store(true, Ordering::Release);
            features = EVERYTHING.or(features);
        }
        with_instructions(
            &catalog,
            &json!({
                "supportedVersions": [Revision::MODERN.as_str()],
                "capabilities": capabilities(features, catalog.experimental.as_ref(), Era::Modern),
                "ttlMs": 0,
                "cacheScope": "private",
                "resultType": "complete",
                "_meta": {key::SERVER_INFO: {"name": "bridgehead", "version": self.version}},
            }),
        )
    }

    /// Why no tool or prompt of that name is offered. If its server is down, the client has to act
    /// differently than for a misspelled name.
    pub(crate) fn why_unknown(&self, principal: &Principal, kind: &str, name: &str) -> GatewayError {
        let decide = |thing| self.views.authorizer().map(|it| it.decide(principal, Action::Call, thing));
        if let Some(tool) =
            self.gone.lock().get(name).filter(|tool| decide(tool.thing()) != Some(Decision::Deny))
        {
            let server = &tool.server;
            let message =
                format!("{kind} `{name}` is gone: server `{server}` was removed from the configuration");
            return GatewayError::new(Code::RestartFailed, message).of_server(server);
        }
        let upstreams = self.upstreams.read();
        let owner = match upstreams.as_slice() {
            [only] if !is_prefixed(self.settings.prefix, only.config().prefix, 1) => Some(only),
            all => all.iter().find(|upstream| is_under(name, upstream.name().as_ref())),
        };
        let owner = owner.filter(|owner| !self.views.hides(principal, owner.name().as_ref()));
        let why = owner.and_then(|owner| {
            let server = owner.name();
            let (code, words) = match owner.state() {
                UpstreamState::Restarting(outage) if outage.lasting && outage.last.is_none() => {
                    let words = format!("is not known: server `{server}` is down: {}", outage.reason);
                    (Code::ProviderInitFailed, words)
                }
                UpstreamState::Restarting(outage) => {
                    let age = outage.since.elapsed();
                    let code = match outage.may_bring() && age < INIT_TIMEOUT {
                        true => Code::RestartInProgress,
                        false => Code::ProviderUnavailable,
                    };
                    let words = format!(
                        "is not known now: server `{server}` has been down for {} s and is being restarted; call \
                         again later: {}",
                        age.as_secs(),
                        outage.reason
                    );
                    (code, words)
                }
                UpstreamState::Failed(failure) => {
                    let code = match failure.stage {
                        FailureStage::Sandbox => Code::SandboxUnavailable,
                        FailureStage::Init | FailureStage::Crashed => Code::ProviderInitFailed,
                    };
                    (code, format!("is not known: server `{server}` does not serve: {}", failure.reason))
                }
                UpstreamState::Starting { since, .. } => {
                    let age = since.elapsed().as_secs();
                    let words = format!("is not known yet: server `{server}` is still starting after {age} s");
                    (Code::ProviderUnavailable, words)
                }
                _ => return None,
            };
            let error = GatewayError::new(code, format!("{kind} `{name}` {words}")).of_server(server.as_ref());
            Some(match code {
                Code::SandboxUnavailable => error.with_details(&sandbox_setup()),
                _ => error,
            })
        });
        why.unwrap_or_else(|| {
            let near = self.similar_names(principal, kind, name);
            let meant = match near.is_empty() {
                true => String::new(),
                false => format!("; did you mean `{}`?", near.join("` or `")),
            };
            GatewayError::new(Code::ProviderToolUnknown, format!("no server offers {kind} `{name}`{meant}"))
        })
    }

    /// Rebuilds the catalog from the upstreams in their current state.
    pub(crate) fn merge(&self) {
        self.merge_now(&self.merging.lock());
    }

    pub(crate) fn merge_now(&self, _alone: &MutexGuard<'_, ()>) {
        let upstreams = self.upstreams.read().clone();
        let natives = self.natives.lock().clone();
        let before = self.catalog.load_full();
        let info = &self.gate.server_info;
        let after =
            Arc::new(Catalog::of(shape(&self.settings), &natives, &upstreams, &self.queues, info, &before));
        let changed = after.changed(&before);
        let starting = after.starting;
        let seen = match self.views.authorizer() {
            Some(_) if !changed.is_empty() => self.feeds.seen(|principal| self.views.last(principal)),
            _ => SeenBefore::default(),
        };
        self.catalog.store(after);
        self.starting.send_replace(starting);
        if !changed.is_empty() {
            self.changes.send_modify(|generation| *generation += 1);
            match self.views.authorizer() {
                Some(_) => self.tell_changes(&seen, changed),
                None => self.feeds.changed(changed),
            }
        }
        self.feeds.watch_again(
            |principal, uri| self.watch_again(principal, uri),
            |place| self.watch_task_again(place),
        );
    }

    /// Tells each client of the lists that differ from what it saw before; of `all`, if that is not known.
    fn tell_changes(&self, before: &SeenBefore, all: Lists) {
        self.feeds.changed_for(before, |principal, before| match before {
            Some(before) => self.view(principal).changed(before),
            None => all,
        });
    }
}

/// The tools that a catalog lists.
fn offered(catalog: &Catalog) -> Vec<OfferedTool> {
    let offered = catalog.listed().map(|route| OfferedTool {
        name: Arc::clone(&route.name),
        own_name: route.thing().name.to_owned(),
        server: route.server.clone(),
        definition: route.definition.clone(),
    });
    offered.collect()
}

/// Splices the instructions in as they are: they are long and already encoded.
fn with_instructions(catalog: &Catalog, result: &Value) -> Spliced {
    let result = Raw::encode(result);
    match (catalog.instructions(), Object::parse(&result)) {
        (Some(instructions), Ok(object)) => {
            let mut edit = object.edit();
            edit.set("instructions", instructions.clone());
            edit.finish()
        }
        _ => result.into(),
    }
}

fn shape(settings: &GatewaySettings) -> Shape {
    Shape {
        mode: settings.mode,
        prefix: settings.prefix,
        name_limit: settings.max_name_length,
        uris: settings.resource_uris,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The debug output of the options shows no secrets: neither the environment nor the servers.
    #[test]
    fn options_hide_what_may_be_secret() {
        let environment = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]);
        let environment = Some(environment);
        let options = Options { environment, version: "1.2.3".to_owned(), ..Options::default() };
        assert_eq!(format!("{options:?}"), r#"Options { version: "1.2.3", tools: [], .. }"#);
        let gateway = Gateway::new(options).unwrap();
        assert_eq!(format!("{gateway:?}"), r#"Gateway(Gateway { version: "1.2.3", .. })"#);
    }
}
