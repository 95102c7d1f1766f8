//! What tools are built from, and their start.

use std::collections::{BTreeMap, HashSet};
#[cfg(feature = "config-files")]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{AuditSink, Clock};
#[cfg(feature = "config-files")]
use bridgehead_config::{Config, ConfigError, Environment, LimitRule, PolicyRule, load};
use bridgehead_config::{GatewaySettings, Prefix, ServerConfig, ServerName};
use bridgehead_gateway::{
    Authorizer, Gateway, Limiter, LineSink, NativeTool, Options, Principal, RegisterError, Registry,
};
use bridgehead_upstream::credentials::CredentialSource;
use futures_util::future::BoxFuture;
use tracing::Dispatch;

use super::Tools;
#[cfg(feature = "access")]
use crate::access::{Access, AccessError};
#[cfg(all(feature = "access", feature = "config-files"))]
use crate::access::{AccessSettings, Costs, LimitError};

/// What [`Tools`] are built from. Everything has a default.
///
/// The name of a tool begins with that of its server, `{server}__{tool}`, also if there is only one server. The settings may
/// forbid that ([`Prefix::Never`]), and those of a configuration file decide it.
#[derive(Debug)]
#[must_use]
pub struct ToolsOptions {
    gateway: Options,
    principal: Principal,
    warm_up: Option<Duration>,
    /// The rules of a configuration, which the start applies unless the program decides itself.
    #[cfg(feature = "config-files")]
    rules: (Vec<PolicyRule>, Vec<LimitRule>),
}

impl Default for ToolsOptions {
    fn default() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let options = Self {
            gateway: Options { version, ..Options::default() },
            principal: Principal::local(),
            warm_up: None,
            #[cfg(feature = "config-files")]
            rules: Default::default(),
        };
        options.settings(GatewaySettings::default())
    }
}

/// Why tools did not start. A server that does not start is no reason: [`Tools::health`] tells about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartToolsError {
    /// A Rust tool cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// There is no Tokio runtime to start on.
    #[error(
        "tools start on a Tokio runtime, and there is none here; await the start within one, such as in `#[tokio::main]`"
    )]
    NoRuntime,
    /// Two servers have the same name.
    #[error("there are two servers named `{0}`; give each server its own name")]
    DuplicateServer(ServerName),
    /// A rule or a limit of the configuration cannot be used.
    #[cfg(feature = "access")]
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A limit is a budget, and nothing here counts it.
    #[error(
        "the limit rule in line {line} has `budget_per_day`, which is counted from a record, and tools open none themselves; make \
         `Access` with a `BudgetRecord` and pass it with `ToolsOptions::access`, or remove the budget"
    )]
    BudgetWithoutRecord {
        /// The line of the rule.
        line: usize,
    },
    /// The configuration has rules or limits, and nothing here would apply them.
    #[error(
        "the configuration has `{0}`, which would have no effect; build this program with the feature `access`, or pass an \
         authorizer and a limiter"
    )]
    RulesWithoutEffect(&'static str),
}

impl ToolsOptions {
    /// Adds a server.
    pub fn server(mut self, server: ServerConfig) -> Self {
        self.gateway.servers.push(server);
        self
    }

    /// Takes the settings of a configuration, and adds its servers, rules and limits. Rules and limits hold for the
    /// [principal](ToolsOptions::principal), unless an authorizer or a limiter replaces them; they need the feature `access`. Of
    /// several configurations, the last one's settings count, and the rules of all hold together. What `audit.redact` describes is
    /// hidden in the whole process. The parts `[http]` and `[auth]` and the rest of `[audit]` have no effect here: a record is
    /// passed with [`ToolsOptions::audit`].
    #[cfg(feature = "config-files")]
    pub fn configured(mut self, config: &Config) -> Self {
        self.gateway.settings = config.gateway.clone();
        self.gateway.servers.extend_from_slice(&config.servers);
        self.rules.0.extend_from_slice(&config.policy);
        self.rules.1.extend_from_slice(&config.limits);
        crate::hide(config);
        for warning in &config.warnings {
            tracing::warn!(%warning, "configuration");
        }
        self
    }

    /// Takes the settings of a configuration file and adds its servers, as [`ToolsOptions::configured`] does: a
    /// `bridgehead.toml`, or the JSON file of a client with its `mcpServers`. The file may refer to variables; they are looked up
    /// in the [environment](ToolsOptions::environment) if it was given before, else in the process's own.
    ///
    /// ```no_run
    /// # use bridgehead::tools::Tools;
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// let tools = Tools::builder().file("claude_desktop_config.json")?.start().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the file cannot be read or used.
    #[cfg(feature = "config-files")]
    pub fn file(self, path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let own = || {
            let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            };
            std::env::vars_os().filter_map(text).collect()
        };
        let variables = self.gateway.environment.clone().unwrap_or_else(own);
        let environment = Environment::read(variables.clone())?.running(crate::secret_commands(variables));
        let folder = std::env::current_dir().unwrap_or_default();
        let config = load(Some(path.as_ref()), &environment, &folder)?;
        Ok(self.configured(&config))
    }

    /// Takes settings of the gateway: what is offered, how tools are named, how long calls may take. Its times are those of every
    /// server that has none of its own, whether it was added before or after. [`Prefix::Auto`] means [`Prefix::Always`] here, so
    /// that a second server does not rename the tools of the first.
    pub fn settings(mut self, settings: GatewaySettings) -> Self {
        self.gateway.settings = settings;
        if self.gateway.settings.prefix == Prefix::Auto {
            self.gateway.settings.prefix = Prefix::Always;
        }
        self
    }

    /// On whose behalf calls are made: in the record, for the authorizer and for the limiter. `local` by default.
    pub fn principal(mut self, principal: Principal) -> Self {
        self.principal = principal;
        self
    }

    /// Adds a Rust tool, which is called like the tools of servers. Its handler runs on the runtime's threads: hand work that
    /// blocks to [`tokio::task::spawn_blocking`], or it holds up other calls and cannot be timed out.
    pub fn register(mut self, tool: NativeTool) -> Self {
        self.gateway.tools.push(tool);
        self
    }

    /// Where calls are recorded; nowhere by default.
    pub fn audit(mut self, sink: Arc<dyn AuditSink>) -> Self {
        self.gateway.audit = sink;
        self
    }

    /// Decides which principal may use what; by default all may use everything.
    pub fn authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.gateway.authorizer = Some(authorizer);
        self
    }

    /// Limits how much the principal may do; by default only the servers' own limits apply.
    pub fn limiter(mut self, limiter: Arc<dyn Limiter>) -> Self {
        self.gateway.limiter = Some(limiter);
        self
    }

    /// Decides what the principal may use and how much. It replaces the authorizer and the limiter, and with them the rules of a
    /// configuration. Needed for rules with `budget_per_day`, which are counted from a record.
    #[cfg(feature = "access")]
    pub fn access(self, access: &Access) -> Self {
        self.authorizer(access.authorizer()).limiter(access.limiter())
    }

    /// Chooses the credentials for remote servers; by default their configured headers.
    pub fn credentials(mut self, source: CredentialSource) -> Self {
        self.gateway.credentials = Some(source);
        self
    }

    /// The registry that shares running servers. By default everything in this process shares one: equal servers of several
    /// [`Tools`] on one runtime are one process.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.gateway.registry = registry;
        self
    }

    /// The environment from which servers get the few variables that every program needs. By default the start reads those
    /// variables, and those that the servers' `inherit_env` name, from the process's own environment.
    pub fn environment(mut self, variables: BTreeMap<String, String>) -> Self {
        self.gateway.environment = Some(variables);
        self
    }

    /// Receives the log lines about failures of the audit sink and about panics, instead of the subscriber of the calling code.
    pub fn logger(mut self, logger: Dispatch) -> Self {
        self.gateway.logger = Some(logger);
        self
    }

    /// Passes every line that a server writes to stderr, and every line about it, to `sink`.
    pub fn log_lines(mut self, sink: LineSink) -> Self {
        self.gateway.log_lines = Some(sink);
        self
    }

    /// The clock of the record and the events; the machine's by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.gateway.clock = clock;
        self
    }

    /// How long the start waits for servers; by default `list_wait` of the settings, which is 5 s. A server that is not ready
    /// by then continues to start: its tools join the list, and a call of one of them waits for it.
    pub fn warm_up(mut self, limit: Duration) -> Self {
        self.warm_up = Some(limit);
        self
    }

    /// Starts the servers, on the current runtime. Returns when each of them serves or has failed for the first time, or when
    /// the [warm-up](ToolsOptions::warm_up) is over. The servers end with the tools, or with the runtime.
    ///
    /// # Errors
    /// If there is no runtime, if a Rust tool cannot be registered, if two servers have the same name, or if a rule or a limit of the configuration cannot
    /// be applied.
    pub fn start(self) -> BoxFuture<'static, Result<Tools, StartToolsError>> {
        Box::pin(self.start_here())
    }

    async fn start_here(mut self) -> Result<Tools, StartToolsError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(StartToolsError::NoRuntime);
        }
        let mut names = HashSet::new();
        if let Some(twice) = self.gateway.servers.iter().find(|server| !names.insert(&server.name)) {
            return Err(StartToolsError::DuplicateServer(twice.name.clone()));
        }
        #[cfg(feature = "config-files")]
        self.apply_rules()?;
        // The built-in tools are for clients; a program has `health`.
        self.gateway.settings.builtin = false;
        let limit = self.warm_up.unwrap_or(self.gateway.settings.list_wait);
        // From here on a dropped start ends the servers.
        let tools = Tools::new(Gateway::new(self.gateway)?, self.principal);
        tools.gateway().start();
        // Whoever is late goes on in the background.
        let _ = tokio::time::timeout(limit, tools.gateway().settled()).await;
        Ok(tools)
    }

    /// Makes the authorizer and the limiter from the rules of the configuration, where the program passed none.
    #[cfg(all(feature = "access", feature = "config-files"))]
    fn apply_rules(&mut self) -> Result<(), StartToolsError> {
        let (policy, limits) = std::mem::take(&mut self.rules);
        let policy = if self.gateway.authorizer.is_none() { policy } else { Vec::new() };
        let limits = if self.gateway.limiter.is_none() { limits } else { Vec::new() };
        let (decides, counts) = (!policy.is_empty(), !limits.is_empty());
        if !decides && !counts {
            return Ok(());
        }
        let costs = Costs::of(&self.gateway.servers);
        let settings = AccessSettings { policy, limits, costs, ..AccessSettings::default() };
        let access =
            Access::new(settings, Arc::clone(&self.gateway.clock), None).map_err(|error| match error {
                AccessError::Limit(LimitError::NoRecord { line }) => {
                    StartToolsError::BudgetWithoutRecord { line }
                }
                other => StartToolsError::Access(other),
            })?;
        if decides {
            self.gateway.authorizer = Some(access.authorizer());
        }
        if counts {
            self.gateway.limiter = Some(access.limiter());
        }
        Ok(())
    }

    /// Refuses rules that nothing would apply: a program must not believe in rules that are not there.
    #[cfg(all(not(feature = "access"), feature = "config-files"))]
    fn apply_rules(&mut self) -> Result<(), StartToolsError> {
        let (policy, limits) = &self.rules;
        if !policy.is_empty() && self.gateway.authorizer.is_none() {
            return Err(StartToolsError::RulesWithoutEffect("[[policy]]"));
        }
        if !limits.is_empty() && self.gateway.limiter.is_none() {
            return Err(StartToolsError::RulesWithoutEffect("[[limits.rules]]"));
        }
        Ok(())
    }
}
