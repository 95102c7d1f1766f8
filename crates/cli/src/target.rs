//! The gateway that `tools`, `call`, `prompts` and `resources` use: the running one with the same configuration, one at a given address, or a
//! temporary one with only the servers they need.

use std::time::Duration;

use bridgehead::config::{ConfigError, Diagnostic, OWN_SERVER, Secret, ServerConfig};
use bridgehead::control::Instance;
use bridgehead::{Config, Gateway, StopSignal};
use bridgehead_gateway::{Options, ServerStatus, may_have, may_offer, only, similar};
use bridgehead_upstream::UpstreamState;
use clap::Args;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tracing::debug;

use super::exit::Exit;
use super::instance::{get, serving};
use super::meant::meant;
use super::remote::Remote;
use super::starting::{self, Form, Shower, Then};
use super::world::World;
use super::{Chosen, output};

/// How long servers may take to start before the others are used without them.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// What a verb needs, so that only the servers that may have it are started.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need<'a> {
    /// What all servers offer.
    Everything,
    /// What one server offers.
    Server(&'a str),
    /// One tool.
    Tool(&'a str),
    /// One prompt.
    Prompt(&'a str),
    /// One resource.
    Resource(&'a str),
}

impl Need<'_> {
    /// The servers that may have it.
    fn of(self, config: &Config) -> Vec<ServerConfig> {
        match self {
            Self::Everything => config.servers.clone(),
            Self::Server(name) => only(&config.gateway, &config.servers, name),
            Self::Tool(name) | Self::Prompt(name) => may_offer(&config.gateway, &config.servers, name),
            Self::Resource(uri) => may_have(&config.gateway, &config.servers, uri),
        }
    }

    /// Waits until it is known, or until no server is starting any more.
    async fn wait(self, gateway: &Gateway) {
        match self {
            Self::Everything | Self::Server(_) => gateway.settled().await,
            Self::Tool(name) => drop(gateway.knows(name).await),
            Self::Prompt(name) => drop(gateway.knows_prompt(name).await),
            Self::Resource(uri) => drop(gateway.knows_resource(uri).await),
        }
    }
}

impl Target {
    /// Finds the gateway to use. If none runs, starts the servers that may have what is needed. Returns when it is known, or
    /// when all of these servers have started or failed.
    pub(crate) async fn open(
        place: &Where,
        world: &World,
        need: Need<'_>,
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
        if let Need::Server(name) = need {
            known_server(name, &config)?;
        }
        if !place.fresh
            && let Some(instance) = serving(&config, world).await
        {
            debug!(instance = instance.instance, pid = instance.pid, "using the running gateway");
            // Its own start told its warnings, and `status` and `check` tell them again.
            return Ok(Self::Running(Remote::at_socket(&instance), Box::new(instance)));
        }
        world.tell_source(&config);
        if config.secrets.used {
            config = world.with_secrets(explicit, &config).map_err(refused)?;
        }
        world.note_demo(&config);
        let needed = need.of(&config);
        // What is wrong with another server does not matter to this answer.
        let matters = |warning: &&Diagnostic| {
            warning.server().is_none_or(|about| needed.iter().any(|server| server.name.as_str() == about))
        };
        let warnings: Vec<Diagnostic> = config.warnings.iter().filter(matters).cloned().collect();
        output::show(&warnings);
        if let (true, Need::Tool(name) | Need::Prompt(name)) = (needed.is_empty(), need) {
            tell_servers(name, &config);
        }
        config.servers = needed;
        let gateway = start(config, world)?;
        let waiting = tokio::time::timeout(PATIENCE, need.wait(&gateway));
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

    /// The names of a running gateway's servers.
    pub(crate) async fn servers(&self) -> Vec<String> {
        let Self::Running(_, instance) = self else { return Vec::new() };
        let status = get(instance, "status").await.unwrap_or_default();
        let servers = status["upstreams"].as_array().into_iter().flatten();
        servers.filter_map(|server| server["name"].as_str().map(str::to_owned)).collect()
    }

    /// Stops a temporary gateway.
    pub(crate) async fn close(self) {
        if let Self::Here(gateway) = self {
            gateway.stop().await;
        }
    }
}

/// Refuses a name that no server of the configuration has. The gateway itself counts as one.
fn known_server(name: &str, config: &Config) -> Result<(), Exit> {
    let mut names = config.servers.iter().map(|server| server.name.as_str()).chain([OWN_SERVER]);
    if names.clone().any(|known| known == name) {
        return Ok(());
    }
    let all = format!("its servers are `{}`", names.clone().collect::<Vec<_>>().join("`, `"));
    let meant = meant(name, &mut names, &all);
    Err(output::wrong(&format!("the configuration has no server `{}`; {meant}", output::one_line(name, 64))))
}

/// Suggests similar server names if the prefix of a name is that of no server.
fn tell_servers(name: &str, config: &Config) {
    let Some((server, _)) = name.split_once("__") else {
        // Whoever knows the name from the time when there was one server gets the new one.
        let names: Vec<String> =
            config.servers.iter().take(3).map(|server| format!("`{}__{name}`", server.name)).collect();
        if names.len() > 1 {
            let names = names.join(" or ");
            output::talk(&format!(
                "note: there are several servers, so the names of their tools carry the server's; did you mean {names}?"
            ));
        }
        return;
    };
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

/// The cure for a server of a temporary gateway: its lines are gone with the gateway, so `bridgehead logs` cannot show them.
pub(crate) fn next_step(status: &ServerStatus) -> Option<String> {
    let next = status.next_step.as_ref()?;
    let by_hand = || format!("run the command of `{}` by hand to see all that it writes", status.name);
    Some(match next.split_once("`bridgehead logs") {
        Some((wait, _)) if wait.ends_with("; ") => wait.trim_end_matches("; ").to_owned(),
        Some(_) => by_hand(),
        None => next.clone(),
    })
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

/// Runs a verb that ends by itself. A signal ends it immediately, together with the servers it started.
pub(crate) fn run_once(work: impl Future<Output = Exit>) -> Exit {
    run(work, Exit::Forced)
}

/// Runs a verb that runs until a signal; the signal counts as success.
pub(crate) fn run_until_signal(work: impl Future<Output = Exit>) -> Exit {
    run(work, |_| Exit::Success)
}

fn run(work: impl Future<Output = Exit>, on_signal: impl Fn(StopSignal) -> Exit) -> Exit {
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
            Some(()) = interrupt.recv() => on_signal(StopSignal::Interrupt),
            Some(()) = terminate.recv() => on_signal(StopSignal::Terminate),
        }
    })
}
