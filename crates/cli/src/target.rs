//! The gateway that `tools` and `call` use: the running one with the same configuration, one at a given address, or a
//! temporary one with only the servers they need.

use std::time::Duration;

use bridgehead::config::{ConfigError, Diagnostic, Secret};
use bridgehead::control::Instance;
use bridgehead::{Config, Gateway, Principal, Signal};
use bridgehead_gateway::{
    Caller, ClientRequest, ClientTransport, Options, ProgressSink, Session, may_offer, similar,
};
use bridgehead_upstream::UpstreamState;
use bridgehead_wire::{Method, Object, Raw, RequestMeta, Revision, RpcError, code, key};
use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tracing::debug;

use super::exit::Exit;
use super::instance::{get, serving};
use super::remote::Remote;
use super::starting::{self, Form, Shower, Then};
use super::world::{World, note_demo};
use super::{Chosen, output};

/// How many progress notifications may wait to be shown.
const PROGRESS_CAPACITY: usize = 64;
/// How long servers may take to start before the others are used without them.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many pages of tools are read at most.
const MAX_PAGES: usize = 1000;

/// Chooses the gateway to use.
#[derive(Debug, Args)]
pub(crate) struct Where {
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    /// Use the running gateway at this address
    #[arg(long, global = true, value_name = "URL", conflicts_with = "config")]
    pub(crate) url: Option<String>,
    /// Start the servers for this command only, even if a gateway runs with this configuration
    #[arg(long, global = true, conflicts_with = "url")]
    pub(crate) fresh: bool,
    /// The bearer token for --url [env: BRIDGEHEAD_HTTP_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN", requires = "url", allow_hyphen_values = true)]
    pub(crate) token: Option<String>,
}

/// The gateway to use.
#[derive(Debug)]
pub(crate) enum Target {
    /// A temporary gateway in this process.
    Here(Gateway),
    /// A gateway named by its address.
    There(Remote),
    /// A running gateway of this user with the same configuration.
    Running(Remote, Box<Instance>),
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The gateway did not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The answer is an error.
    #[error("{}", .0.message())]
    Answered(RpcError),
}

impl Target {
    /// Finds the gateway to use. If none runs, starts the servers that may offer `tool`, or all servers if `tool` is
    /// `None`. Returns when the tool is known, or when all of these servers have started or failed.
    pub(crate) async fn open(
        place: &Where,
        world: &World,
        tool: Option<&str>,
        as_json: bool,
    ) -> Result<Self, Exit> {
        if let Some(url) = &place.url {
            let token = place.token.clone().map(Secret::new).or_else(|| world.environment.http_token.clone());
            return Remote::new(url, token).map(Self::There).map_err(|reason| {
                output::talk(&format!("error: {reason}"));
                Exit::Usage
            });
        }
        // Secrets are read only if servers start here.
        let explicit = place.chosen.config.as_deref();
        let refused = |error: ConfigError| output::configuration_error(&error, as_json);
        let mut config = world.without_secrets(explicit).map_err(refused)?;
        output::show(&config.warnings);
        if !place.fresh
            && let Some(instance) = serving(&config, world).await
        {
            debug!(instance = instance.instance, pid = instance.pid, "using the running gateway");
            return Ok(Self::Running(Remote::at_socket(&instance), Box::new(instance)));
        }
        if config.secrets.used {
            let complete = world.with_secrets(explicit, &config).map_err(refused)?;
            let told =
                |warning: &Diagnostic| config.warnings.iter().any(|told| told.message == warning.message);
            let more: Vec<_> = complete.warnings.iter().filter(|warning| !told(warning)).cloned().collect();
            output::show(&more);
            config = complete;
        }
        note_demo(&config);
        if let Some(tool) = tool {
            let needed = may_offer(&config.gateway, &config.servers, tool);
            if needed.is_empty() {
                tell_servers(tool, &config);
            }
            config.servers = needed;
        }
        let gateway = start(config, world)?;
        let waiting = async {
            match tool {
                Some(tool) => drop(gateway.knows(tool).await),
                None => gateway.settled().await,
            }
        };
        let waiting = tokio::time::timeout(PATIENCE, waiting);
        let waited = starting::watch(&gateway, Form::of(Shower::Aside), Then::Clear, waiting).await;
        if waited.is_err() {
            output::talk("warning: some servers are still starting; going on without them");
        }
        Ok(Self::Here(gateway))
    }

    /// Servers that do not serve, each with the reason, and whether any server does.
    pub(crate) async fn failures(&self) -> (Vec<(String, String)>, bool) {
        let (failures, servers) = match self {
            Self::Here(gateway) => (failures(gateway), gateway.upstreams().len()),
            Self::There(_) => return (Vec::new(), true),
            Self::Running(_, instance) => {
                let status = get(instance, "status").await.unwrap_or_default();
                let servers = status["upstreams"].as_array().map(Vec::as_slice).unwrap_or_default();
                let failed = |server: &Value| {
                    let reason = match (server["state"].as_str()?, server["reason"].as_str()) {
                        ("ready" | "asleep" | "stopped", _) => return None,
                        ("starting", None) => "it is still starting",
                        (_, reason) => reason.unwrap_or("no reason is known"),
                    };
                    Some((server["name"].as_str()?.to_owned(), reason.to_owned()))
                };
                (servers.iter().filter_map(failed).collect(), servers.len())
            }
        };
        let serves = servers == 0 || failures.len() < servers;
        (failures, serves)
    }

    /// All tools, each unchanged.
    pub(crate) async fn tools(&self) -> Result<Vec<Raw>, AskError> {
        let mut tools = Vec::new();
        let mut cursor: Option<Raw> = None;
        for _ in 0..MAX_PAGES {
            let params = match &cursor {
                Some(cursor) => format!(r#"{{"cursor":{},"_meta":{}}}"#, cursor.as_str(), meta(false)),
                None => format!(r#"{{"_meta":{}}}"#, meta(false)),
            };
            let result = self.ask(Method::ToolsList, params, &[], |_| {}).await?;
            let page = Object::parse(&result).map_err(|_| not_understood("tools/list"))?;
            let listed = page.get("tools").ok_or_else(|| not_understood("tools/list"))?;
            let listed: Vec<Box<serde_json::value::RawValue>> =
                listed.decode().map_err(|_| not_understood("tools/list"))?;
            tools.extend(listed.iter().filter_map(|tool| Raw::parse(tool.get().to_owned()).ok()));
            cursor = page.get("nextCursor").filter(|cursor| !cursor.is_null());
            if cursor.is_none() {
                break;
            }
        }
        Ok(tools)
    }

    /// The instructions of servers and tools for the model, as one text; `None` if there are none.
    pub(crate) async fn instructions(&self) -> Result<Option<String>, AskError> {
        let params = format!(r#"{{"_meta":{}}}"#, meta(false));
        let result = self.ask(Method::Discover, params, &[], |_| {}).await?;
        let result = Object::parse(&result).map_err(|_| not_understood("server/discover"))?;
        Ok(result.get("instructions").and_then(|text| text.to_text()))
    }

    /// Calls a tool; `on_progress` gets the parameters of each progress notification.
    pub(crate) async fn call(
        &self,
        name: &str,
        arguments: &Raw,
        mut on_progress: impl FnMut(&Value),
    ) -> Result<Raw, AskError> {
        let named = Raw::string(name);
        let params = format!(
            r#"{{"name":{},"arguments":{},"_meta":{}}}"#,
            named.as_str(),
            arguments.as_str(),
            meta(true)
        );
        let first = self.ask(Method::ToolsCall, params.clone(), &[], &mut on_progress).await;
        match first {
            // The tool's schema may require some arguments as headers too.
            Err(AskError::Answered(error)) if error.code() == code::HEADER_MISMATCH => {
                let headers = self.parameter_headers(name, arguments).await?;
                self.ask(Method::ToolsCall, params, &headers, on_progress).await
            }
            other => other,
        }
    }

    async fn parameter_headers(
        &self,
        name: &str,
        arguments: &Raw,
    ) -> Result<Vec<(String, String)>, AskError> {
        let tools = self.tools().await?;
        let schema = tools
            .iter()
            .filter_map(|tool| tool.decode::<Value>().ok())
            .find(|tool| tool["name"] == name)
            .map(|tool| tool["inputSchema"].clone())
            .unwrap_or_default();
        let arguments: Value = arguments.decode().unwrap_or_default();
        let parameters = bridgehead_schema::header_parameters(&schema).unwrap_or_default();
        let value = |path: &[String]| {
            let value = path.iter().fold(&arguments, |value, name| &value[name.as_str()]);
            match value {
                Value::String(text) => Some(text.clone()),
                Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
                Value::Null | Value::Array(_) | Value::Object(_) => None,
            }
        };
        Ok(parameters
            .iter()
            .filter_map(|parameter| {
                let value = value(&parameter.path)?;
                Some((format!("mcp-param-{}", parameter.header.to_ascii_lowercase()), value))
            })
            .collect())
    }

    /// Sends a request in the modern era, in which requests are stateless.
    async fn ask(
        &self,
        method: Method,
        params: String,
        headers: &[(String, String)],
        mut on_progress: impl FnMut(&Value),
    ) -> Result<Raw, AskError> {
        match self {
            Self::Here(gateway) => ask_here(gateway, method, params, on_progress).await,
            Self::There(remote) | Self::Running(remote, _) => {
                remote.ask(&method, &params, headers, &mut on_progress).await
            }
        }
    }

    /// Stops a temporary gateway.
    pub(crate) async fn close(self) {
        if let Self::Here(gateway) = self {
            gateway.stop().await;
        }
    }
}

/// Suggests similar server names if the tool name's prefix names no server.
fn tell_servers(tool: &str, config: &Config) {
    let Some((server, _)) = tool.split_once("__") else { return };
    let near = similar(server, config.servers.iter().map(|server| server.name.as_str()));
    if !near.is_empty() {
        let near = near.join("` or `");
        output::talk(&format!("note: no server is called `{server}`; did you mean `{near}`?"));
    }
}

/// Starts a gateway without a front.
pub(crate) fn start(config: Config, world: &World) -> Result<Gateway, Exit> {
    let environment = world.for_servers(&config).map_err(|error| {
        output::talk(&format!("error: {error}"));
        Exit::Configuration
    })?;
    let gateway = Gateway::new(Options {
        settings: config.gateway,
        servers: config.servers,
        environment: Some(environment),
        ..Options::default()
    });
    match gateway {
        Ok(gateway) => {
            gateway.start();
            Ok(gateway)
        }
        Err(error) => {
            output::talk(&format!("error: {error}"));
            Err(Exit::Failure)
        }
    }
}

fn failures(gateway: &Gateway) -> Vec<(String, String)> {
    let failed = |state| match state {
        UpstreamState::Failed(failure) => Some(failure.reason.clone()),
        UpstreamState::Restarting(outage) => Some(outage.reason.clone()),
        UpstreamState::Starting { .. } => Some("it is still starting".to_owned()),
        UpstreamState::Ready(_) | UpstreamState::Asleep(_) | UpstreamState::Stopped => None,
    };
    let upstreams = gateway.upstreams();
    upstreams.iter().filter_map(|one| Some((one.name().to_string(), failed(one.state())?))).collect()
}

async fn ask_here(
    gateway: &Gateway,
    method: Method,
    params: String,
    mut on_progress: impl FnMut(&Value),
) -> Result<Raw, AskError> {
    let unusable =
        || AskError::Answered(RpcError::new(code::INVALID_PARAMS, "the request could not be built"));
    let raw = Raw::parse(params).map_err(|_| unusable())?;
    let params = Object::parse(&raw).map_err(|_| unusable())?;
    let meta = RequestMeta::read(Some(&params)).map_err(|_| unusable())?;
    let caller = Caller {
        principal: Principal::local(),
        revision: Revision::MODERN,
        transport: ClientTransport::Memory,
        session: Session::new(),
        questioner: None,
    };
    let (sink, mut progress) = ProgressSink::channel(PROGRESS_CAPACITY);
    let asked = ClientRequest { method, params, meta, id: None };
    let mut answering = bridgehead_front::answer(gateway, &caller, &asked, Some(sink));
    let mut show = |notification: bytes::Bytes| {
        if let Ok(notification) = serde_json::from_slice::<Value>(&notification) {
            on_progress(&notification["params"]);
        }
    };
    let outcome = loop {
        tokio::select! {
            biased;
            Some(notification) = progress.recv() => show(notification),
            outcome = &mut answering => break outcome,
        }
    };
    while let Ok(notification) = progress.try_recv() {
        show(notification);
    }
    outcome.map(|result| result.to_raw()).map_err(AskError::Answered)
}

/// The `_meta` of a modern request.
fn meta(with_progress: bool) -> Value {
    let mut meta = json!({
        key::PROTOCOL_VERSION: Revision::MODERN.as_str(),
        key::CLIENT_CAPABILITIES: {},
        key::CLIENT_INFO: {"name": "bridgehead", "version": env!("CARGO_PKG_VERSION")},
    });
    if with_progress {
        meta[key::PROGRESS_TOKEN] = json!(1);
    }
    meta
}

fn not_understood(method: &str) -> AskError {
    AskError::Unreachable(format!("the answer to `{method}` is malformed"))
}

/// Runs a verb that ends by itself. A signal ends it immediately, together with the servers it started.
pub(crate) fn run_once(work: impl Future<Output = Exit>) -> Exit {
    run(work, Exit::Forced)
}

/// Runs a verb that runs until a signal; the signal counts as success.
pub(crate) fn run_until_signal(work: impl Future<Output = Exit>) -> Exit {
    run(work, |_| Exit::Success)
}

fn run(work: impl Future<Output = Exit>, on_signal: impl Fn(Signal) -> Exit) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::talk(&format!("error: cannot start: {error}"));
            return Exit::Failure;
        }
    };
    runtime.block_on(async {
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return work.await;
        };
        tokio::select! {
            exit = work => exit,
            Some(()) = interrupt.recv() => on_signal(Signal::Interrupt),
            Some(()) = terminate.recv() => on_signal(Signal::Terminate),
        }
    })
}
