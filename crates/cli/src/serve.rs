//! `bridgehead serve`: runs the gateway until a signal or the end of stdin.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bridgehead::access::{Access, AccessError, AccessSettings, BudgetRecord};
use bridgehead::audit::Archive;
use bridgehead::config::environment::PARENTS;
use bridgehead::config::{Diagnostic, Launch, LogLevel, Source, TokenSource};
use bridgehead::{Config, Control, Running, Server, StartError, SystemClock, Transport, control};
use bridgehead_front::ENDPOINT;
use bridgehead_process::passed_sockets;
use clap::Args;
use serde_json::json;
use tokio::runtime::Builder;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use super::address::{listen_address, listening, reachable, refuse_own, same_place};
use super::exit::Exit;
use super::join::detached::{self, LogFile};
use super::reload::{Content, Reloading};
use super::starting::{self, Form, Shower, Then};
use super::world::World;
use super::{Chosen, Run, audit, explain, join, log, output, service};

/// The start is over this long after the last server has settled.
const AFTER_START: Duration = Duration::from_millis(20);
/// How long the runtime's shutdown may take: a thread that reads stdin cannot be stopped.
pub(crate) const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Serve all configured servers at one endpoint
#[derive(Debug, Args)]
#[command(
    after_help = "Without flags it serves HTTP on 127.0.0.1:4848. --stdio alone serves no HTTP; --stdio --http serves both.

With --stdio alone, all clients of a user and a configuration share one gateway: the first one
starts it in the background, the others join it, and it ends soon after the last one has left
(gateway.linger_ms). --standalone, --http and --listen make this process serve its client itself.

Examples:
  bridgehead serve
  bridgehead serve --listen 4849
  bridgehead serve --config team.toml --listen 127.0.0.1:9000
  bridgehead serve --stdio                  for a client that starts it"
)]
pub(crate) struct Serve {
    #[command(flatten)]
    chosen: Chosen,
    /// Serve HTTP at this address and port, or at this port of 127.0.0.1, instead of the configured ones
    #[arg(long, visible_alias = "port", value_name = "ADDR", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Serve one client on stdin and stdout
    #[arg(long)]
    stdio: bool,
    /// Serve HTTP, also with --stdio
    #[arg(long)]
    http: bool,
    /// With --stdio, serve the client in this process instead of a shared gateway
    #[arg(long)]
    standalone: bool,
    /// Serve clients that join, in the background
    #[arg(long, hide = true, conflicts_with_all = ["stdio", "http", "listen", "standalone"])]
    detached: bool,
}

impl Serve {
    /// Whether its client is served by a gateway that is shared. Not under another gateway, which must keep all processes of
    /// its servers together.
    fn joins(&self, world: &World) -> bool {
        let apart = self.standalone || self.http || self.listen.is_some() || self.detached;
        let nested = world.variables.get(PARENTS).is_some_and(|parents| !parents.is_empty());
        self.stdio && !apart && !nested
    }

    /// The log of a gateway in the background. Without one its lines are lost, which must not keep it from serving.
    pub(crate) fn log_file(&self, world: &World) -> Option<LogFile> {
        let path = detached::log_file(&world.variables).filter(|_| self.detached)?;
        LogFile::open(&path).ok()
    }
}

impl Run for Serve {
    fn speaks_mcp(&self) -> bool {
        self.stdio
    }

    fn log_level(&self) -> LogLevel {
        LogLevel::Info
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

fn run(serve: &Serve, world: &World) -> Exit {
    // First, so that no program inherits it.
    let passed = match passed() {
        Ok(passed) => passed,
        Err(reason) => {
            output::talk(&format!("error: {reason}"));
            return Exit::Failure;
        }
    };
    if passed.is_none()
        && serve.joins(world)
        && let Some(exit) = join::run(world, serve.chosen.config.as_deref())
    {
        return exit;
    }
    if serve.detached {
        if let Some(file) = serve.log_file(world) {
            log::to_file(file);
        }
        if let Err(error) = bridgehead_process::leave_session() {
            debug!(%error, "the gateway stays in its session");
        }
    }
    let mut config = match world.configured(serve.chosen.config.as_deref(), false) {
        Ok(config) => config,
        Err(exit) => return exit,
    };
    world.note_demo(&config);
    if config.source == Source::Demo {
        // Beside the user's own file, to which the demo gives way.
        config.auth.keys_file = world.own_file().map(|file| file.with_file_name("keys.toml"));
    }
    if serve.detached {
        // Several gateways write to one log.
        let file = world.file(&config).map(|file| file.display().to_string());
        info!(pid = std::process::id(), config = file, "starting in the background");
    }
    let variables = match world.for_servers(&config) {
        Ok(variables) => variables,
        Err(error) => {
            output::talk(&format!("error: {error}"));
            return Exit::Configuration;
        }
    };
    let written = config.clone();
    config.http.listen = serve.listen.unwrap_or(config.http.listen);
    if let Some((_, address)) = &passed {
        config.http.listen = *address;
    }
    let http = serve.http || serve.listen.is_some() || passed.is_some() || !(serve.stdio || serve.detached);
    if http {
        refuse_own(&mut config.servers, &listening(&config.http));
    }
    if config.gateway.threads.is_none() {
        config.gateway.threads = std::thread::available_parallelism().ok();
    }
    // This thread serves the links and the first clients; later clients are shared with the front's workers.
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::talk(&format!("error: cannot start the runtime: {error}"));
            return Exit::Failure;
        }
    };
    let front = Front { http, passed: passed.map(|(socket, _)| socket) };
    let exit = runtime.block_on(serve_until_end(config, serve, front, (world, variables), written));
    runtime.shutdown_timeout(LAST_MOMENT);
    exit
}

/// Whether and where clients are served over HTTP.
struct Front {
    http: bool,
    /// A socket that listens already.
    passed: Option<TcpListener>,
}

/// The socket that a service manager passed, and its address; `None` if it passed none.
fn passed() -> Result<Option<(TcpListener, SocketAddr)>, String> {
    let mut all = passed_sockets().map_err(|error| {
        format!("the service manager promised a socket that cannot be used: {error}; check its socket unit")
    })?;
    let Some(socket) = all.pop() else { return Ok(None) };
    if !all.is_empty() {
        let count = all.len() + 1;
        return Err(format!(
            "the service manager passed {count} sockets; leave one `ListenStream` in its socket unit"
        ));
    }
    let socket = TcpListener::from(socket);
    match socket.local_addr() {
        Ok(address) => Ok(Some((socket, address))),
        Err(_) => Err(
            "the service manager passed a socket without an address and port; its `ListenStream` must be \
                       such as 127.0.0.1:4848"
                .to_owned(),
        ),
    }
}

async fn serve_until_end(
    config: Config,
    serve: &Serve,
    Front { http, passed }: Front,
    (world, variables): (&World, BTreeMap<String, String>),
    written: Config,
) -> Exit {
    // Before the first server is started. A gateway starts nothing but servers.
    #[cfg(target_os = "linux")]
    if let Err(error) = bridgehead_process::adopt_orphans() {
        debug!(%error, "what a server leaves behind by force is not ended");
    }
    // First, so that the nursery starts on another processor while the rest is prepared here.
    let _prepared = config
        .servers
        .iter()
        .any(|server| matches!(server.launch, Launch::Stdio(_)))
        .then(bridgehead_process::prepare);
    let mut options = Server::builder().configured(&config).environment(variables);
    match Control::directory(&world.variables) {
        Some(directory) => options = options.control(Control::new(directory).config(file(&config))),
        None => tracing::warn!("neither XDG_RUNTIME_DIR nor HOME is set, so there is no control socket"),
    }
    let record = match audit::open(&config, world) {
        Ok(record) => record,
        Err(error) => {
            output::talk(&format!("error: {error}"));
            return Exit::Failure;
        }
    };
    if let Some(record) = &record {
        options = options.audit(record.sink.clone()).also_recorded(config.audit.methods.clone());
    }
    let access = match access(&config, world, record.is_some()) {
        Ok(access) => access,
        Err(error) => {
            output::talk(&format!("error: {error}"));
            return Exit::Configuration;
        }
    };
    if let Some(access) = &access {
        options = options.access(access.clone());
    }
    if serve.stdio {
        options = options.transport(Transport::Stdio);
    }
    if http {
        options = options.transport(Transport::http(config.http.clone()));
    }
    if let Some(socket) = passed {
        options = options.listening(socket);
    }
    if serve.detached {
        options = options.transport(Transport::Joined { linger: config.gateway.linger });
    }
    let server = match options.build() {
        Ok(server) => server,
        Err(error) => {
            output::talk(&format!("error: {error}"));
            return Exit::Failure;
        }
    };
    server.gateway().set_rules(explain::in_effect::told(&written));
    let content = Content::of(world, serve.chosen.config.as_deref(), &written);
    server.gateway().set_configuration_id(Some(world.id(&written)));
    // A gateway that ends with its client is no gateway for others.
    let joinable = !serve.stdio;
    server.gateway().set_identity(joinable.then(|| world.identity(&written)));
    let mut running = match server.start().await {
        Ok(running) => running,
        Err(error) => {
            let beside = beside(&error, world);
            output::talk(&format!("error: {}", beside.unwrap_or_else(|| error.to_string())));
            return Exit::from(&error);
        }
    };
    if let Some(record) = &record {
        record.tell(server.gateway());
    }
    if serve.detached
        && let Err(error) =
            tell_starter(&mut running, server.gateway().instance(), world, &config.warnings).await
    {
        output::talk(&format!("error: no client can join: {error}"));
        running.stop().await;
        return Exit::Failure;
    }
    if let Some(address) = running.addresses().first() {
        output::talk(&banner(server.version(), reachable(*address), &config));
    }
    for listener in running.listeners().iter().skip(1) {
        output::talk(&format!("  also at {listener}"));
    }
    service::notify::ready(running.listeners().first().map_or("stdin", String::as_str));
    let started = server.gateway().clone();
    let form = Form::of(Shower::Gateway { stdio: serve.stdio });
    // Ends with this function, so that it leaves no live line behind.
    let _watching = AbortOnDropHandle::new(tokio::spawn(async move {
        starting::watch(&started, form, Then::Keep, started.settled()).await;
        // Answers that waited for the servers go first.
        tokio::time::sleep(AFTER_START).await;
        let bytes = bridgehead_process::release_code();
        debug!(bytes, "released the memory of startup code");
    }));
    let reloading = Reloading {
        world: world.clone(),
        explicit: serve.chosen.config.clone(),
        gateway: server.gateway().clone(),
        config: written,
        content,
        http,
        addresses: running.addresses().to_vec(),
        joinable,
        access,
    };
    let exit = tokio::select! {
        ended = running.wait() => Exit::from(&ended),
        () = reloading.run() => Exit::Failure,
    };
    if let Some(record) = record {
        record.sink.close();
    }
    exit
}

/// Why a gateway cannot start, if the user's own gateway listens where it would.
fn beside(error: &StartError, world: &World) -> Option<String> {
    let StartError::Listen { address, error } = error else { return None };
    if error.kind() != io::ErrorKind::AddrInUse {
        return None;
    }
    let running = control::running(&Control::directory(&world.variables)?);
    let (own, place) = running.iter().find_map(|one| {
        let place = one.addresses.iter().find(|place| same_place(**place, *address))?;
        one.is_own().then_some((one, reachable(*place)))
    })?;
    let config = own.config.as_ref().map(|file| format!(", configuration {}", file.display()));
    Some(format!(
        "your gateway serves http://{place}{ENDPOINT} already (pid {}{}); use that one, which follows its configuration by itself, \
         or choose another port with `--listen`",
        own.pid,
        config.unwrap_or_default()
    ))
}

/// Tells the process that started this gateway where to join it, and gives up the pipes to that process.
async fn tell_starter(
    running: &mut Running,
    instance: &str,
    world: &World,
    warnings: &[Diagnostic],
) -> io::Result<()> {
    running.control_opened().await?;
    let folder = Control::directory(&world.variables).ok_or(io::ErrorKind::NotFound)?;
    let log = detached::log_file(&world.variables);
    detached::ready(&control::socket(&folder, instance), log.as_deref(), warnings)
}

/// Who may call, what each may use and how much. Only our own format can say so; the demo may give way to a file in it.
fn access(config: &Config, world: &World, recorded: bool) -> Result<Option<Access>, AccessError> {
    let path = match &config.source {
        Source::Toml(path) => path,
        Source::Demo => &world.own_file().unwrap_or_default(),
        Source::ClientJson(_) => return Ok(None),
    };
    let folder = audit::folder(&config.audit, world).filter(|_| recorded);
    let record = folder.map(|folder| BudgetRecord {
        archive: Archive::in_folder(folder),
        configuration: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string(),
    });
    Access::new(AccessSettings::configured(config), Arc::new(SystemClock::default()), record).map(Some)
}

/// The absolute path of the configuration file.
fn file(config: &Config) -> Option<PathBuf> {
    match &config.source {
        Source::Toml(path) | Source::ClientJson(path) => std::path::absolute(path).ok(),
        Source::Demo => None,
    }
}

/// Three lines: the endpoint, what to paste into a client, where the logs are.
fn banner(version: &str, address: SocketAddr, config: &Config) -> String {
    let url = format!("http://{address}{ENDPOINT}");
    let mut entry = json!({"type": "http", "url": url});
    let bearer = match &config.http.token {
        // Where there is an issuer, a client signs in by itself.
        TokenSource::None
            if !(config.auth.keys.is_empty() && config.auth.keys_in_file.is_empty())
                && config.auth.issuers.is_empty() =>
        {
            Some("Bearer <a key, made with `bridgehead key new NAME`>".to_owned())
        }
        TokenSource::None => None,
        TokenSource::Env { name, .. } => Some(format!("Bearer ${{{name}}}")),
        TokenSource::File(path) => Some(format!("Bearer <the token in {}>", path.display())),
    };
    if let Some(bearer) = bearer {
        entry["headers"] = json!({"Authorization": bearer});
    }
    let client = json!({"mcpServers": {"bridgehead": entry}});
    format!(
        "Bridgehead {version} serves MCP at {url}\n  for a client: {client}\n  logs: here, on stderr; more with \
         --log-level debug"
    )
}

#[cfg(test)]
mod tests {
    use bridgehead::config::Secret;

    use super::*;

    #[test]
    fn the_banner_never_shows_the_token() {
        let show = |token| {
            let mut config = Config::demo();
            config.http.token = token;
            banner("1.2.3", config.http.listen, &config)
        };
        assert_eq!(
            show(TokenSource::None),
            "Bridgehead 1.2.3 serves MCP at http://127.0.0.1:4848/mcp\n  for a client: \
             {\"mcpServers\":{\"bridgehead\":{\"type\":\"http\",\"url\":\"http://127.0.0.1:4848/mcp\"}}}\n  \
             logs: here, on stderr; more with --log-level debug"
        );
        let by_file = show(TokenSource::File("secrets/token".into()));
        assert!(by_file.contains(r#""Authorization":"Bearer <the token in secrets/token>""#), "{by_file}");
        let by_variable = show(TokenSource::Env { name: "TOKEN".to_owned(), value: Secret::new("hunter2") });
        assert!(by_variable.contains(r#""Authorization":"Bearer ${TOKEN}""#), "{by_variable}");
        assert!(!by_variable.contains("hunter2"));
    }
}
