//! One server in its checked form: how it is reached, who shares it, and what it may use.

mod built;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::filter::ToolFilter;
use crate::proxy::Proxy;
use crate::roots::Roots;
use crate::secret::Secret;
use crate::settings::GatewaySettings;
use crate::url::{InvalidUrl, Url};

/// The name of a server: 1 to 64 characters of `A-Z a-z 0-9 _ . -`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerName(Arc<str>);

/// A text that is not a valid server name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a server name")]
pub struct InvalidServerName(String);

/// A name or an address that no server can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServer {
    /// The name.
    #[error("{0}: use 1 to 64 of the characters A-Z a-z 0-9 _ . -")]
    Name(#[from] InvalidServerName),
    /// The address.
    #[error("the address is not valid: {0}")]
    Url(#[from] InvalidUrl),
}

/// One server behind the gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// Its name, which is also the namespace of its tools.
    pub name: ServerName,
    /// How it is reached.
    pub launch: Launch,
    /// Whether its tool names carry its name; the gateway's rule applies, if absent.
    pub prefix: Option<bool>,
    /// How long a call may stay silent; as long as its gateway's settings say, if absent.
    pub request_timeout: Option<Duration>,
    /// How long a call may take in total; as long as its gateway's settings say, if absent.
    pub max_total: Option<Duration>,
    /// Settings of individual tools, by the server's own tool names.
    pub tools: BTreeMap<String, ToolOverride>,
    /// Which of its tools are offered.
    pub filter: ToolFilter,
    /// Whether it is started again when it ends.
    pub restart: bool,
    /// Whether restarts are spread over time.
    pub jitter: bool,
    /// How long one attempt to start it may take.
    pub start_timeout: Duration,
    /// How long it must stay healthy before its restart delays are reset.
    pub stable_after: Duration,
    /// How often its health is probed.
    pub probe_interval: Duration,
    /// Which request probes its health.
    pub health_probe: HealthProbe,
    /// Whether a call whose server was lost is repeated.
    pub retry: Retry,
    /// What happens to results that do not match their tool's output schema.
    pub output: Output,
    /// The queue that limits its calls.
    pub queue: Queue,
    /// Who shares one process of it.
    pub isolation: Isolation,
    /// How long it keeps running unused; forever, if absent.
    pub idle_timeout: Option<Duration>,
    /// Whether it starts only on first use.
    pub lazy: bool,
    /// Which protocol era is spoken with it.
    pub era: EraChoice,
    /// Whether calls of clients that can answer questions get their own process or session.
    pub interactive: Interactive,
    /// How many such processes or sessions may exist at once.
    pub max_leases: usize,
    /// How many processes or sessions may exist at once with [`Isolation::Session`].
    pub max_session_processes: usize,
    /// How long a client has to answer one of its questions; as long as its gateway's settings say, if absent.
    pub question_timeout: Option<Duration>,
    /// How long a cancelled call keeps its lock and its places, unless the server answers it or ends first; as long as its
    /// gateway's settings say, if absent.
    pub cancel_grace: Option<Duration>,
    /// The answer when it asks for roots; the gateway asks the client, if absent.
    pub roots: Option<Roots>,
    /// What its processes and calls may use.
    pub limits: Limits,
    /// What the system itself must enforce.
    pub require: Vec<Requirement>,
    /// What its processes may reach; everything, if absent.
    pub confinement: Option<Confinement>,
}

/// How long the calls of a server and its questions may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// How long a call may stay silent.
    pub silent: Duration,
    /// How long a call may take in total.
    pub total: Duration,
    /// How long a client has to answer a question.
    pub question: Duration,
    /// How long a cancelled call keeps its lock and its places.
    pub cancel: Duration,
}

/// What the processes of a server may reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confinement {
    /// The files that they may use, besides those that every program needs; all, if absent.
    pub files: Option<FileAccess>,
    /// Whether they may use the network.
    pub network: Network,
    /// What happens to a server that cannot be confined like this.
    pub on_missing: OnMissing,
    /// The profile it came from, if any; the other fields already contain the profile's settings.
    pub profile: Option<Profile>,
}

/// Files, and folders with everything in them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileAccess {
    /// What may be read and executed.
    pub read: Vec<PathBuf>,
    /// What may also be changed.
    pub write: Vec<PathBuf>,
}

/// Whether the network may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// All of it.
    #[default]
    Full,
    /// None of it.
    None,
}

/// What happens to a server that cannot be confined as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMissing {
    /// It is not started.
    #[default]
    Refuse,
    /// It runs with what can be enforced, with a warning.
    Degrade,
}

/// A predefined confinement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// No network, and nothing can be changed; the server's folder can be read.
    OfflineReadonly,
    /// No network; only the server's folder can be changed.
    OfflineWorkspace,
    /// Everything can be read, nothing changed.
    Readonly,
    /// Only the server's folder can be read and changed.
    Workspace,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::OfflineReadonly, Self::OfflineWorkspace, Self::Readonly, Self::Workspace];

    /// Its name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OfflineReadonly => "offline-readonly",
            Self::OfflineWorkspace => "offline-workspace",
            Self::Readonly => "readonly",
            Self::Workspace => "workspace",
        }
    }
}

#[cfg(feature = "files")]
impl Profile {
    /// Whether it has no effect without a working folder.
    pub(crate) const fn needs_folder(self) -> bool {
        matches!(self, Self::OfflineWorkspace | Self::Workspace)
    }

    pub(crate) const fn network(self) -> Network {
        match self {
            Self::OfflineReadonly | Self::OfflineWorkspace => Network::None,
            Self::Readonly | Self::Workspace => Network::Full,
        }
    }

    /// The files of a server that works in `folder`.
    pub(crate) fn files(self, folder: Option<&PathBuf>) -> FileAccess {
        let folder = || folder.into_iter().cloned().collect();
        match self {
            Self::OfflineReadonly => FileAccess { read: folder(), write: Vec::new() },
            Self::OfflineWorkspace | Self::Workspace => FileAccess { read: Vec::new(), write: folder() },
            Self::Readonly => FileAccess { read: vec![PathBuf::from("/")], write: Vec::new() },
        }
    }
}

/// Limits on what the processes and calls of a server may use; an absent limit does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Memory of the whole process tree, in bytes.
    pub memory: Option<u64>,
    /// How long one call may run.
    pub execution: Option<Duration>,
    /// Number of processes in the tree.
    pub processes: Option<u32>,
    /// Open files per process.
    pub open_files: Option<u32>,
    /// Largest file a process may write, in bytes.
    pub file_size: Option<u64>,
    /// Largest answer to one call, in bytes.
    pub output: Option<usize>,
    /// How much of the end of its stderr is kept, in bytes.
    pub log: Option<usize>,
}

impl Limits {
    /// The defaults for a server with `isolation = "call"`.
    pub const OF_A_CALL: Self = Self {
        memory: Some(256 << 20),
        execution: Some(Duration::from_secs(30)),
        processes: Some(64),
        open_files: Some(256),
        file_size: Some(64 << 20),
        output: Some(16 << 20),
        log: Some(64 << 10),
    };

    /// These limits, with absent ones filled in from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory: self.memory.or(others.memory),
            execution: self.execution.or(others.execution),
            processes: self.processes.or(others.processes),
            open_files: self.open_files.or(others.open_files),
            file_size: self.file_size.or(others.file_size),
            output: self.output.or(others.output),
            log: self.log.or(others.log),
        }
    }
}

/// Something that the system itself must enforce. Sampling or best-effort enforcement is not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// The memory limit.
    MemoryHard,
    /// The limit on processes.
    ProcessesHard,
    /// That the server cannot send signals outside of its process tree. Every confinement includes this if the system
    /// supports it.
    Signals,
}

impl Requirement {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MemoryHard, Self::ProcessesHard, Self::Signals];

    /// Its name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryHard => "memory:hard",
            Self::ProcessesHard => "processes:hard",
            Self::Signals => "signals",
        }
    }
}

/// Whether calls of clients that can answer questions get their own process or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interactive {
    /// After a question came that could belong to more than one call.
    #[default]
    Auto,
    /// Always.
    Exclusive,
    /// Never.
    Shared,
}

/// Who shares one process of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// All clients.
    #[default]
    Shared,
    /// One client session.
    Session,
    /// Nobody: each call has its own process.
    Call,
}

/// Which protocol era is spoken with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EraChoice {
    /// The era that the gateway detects.
    #[default]
    Auto,
    /// The stateless one.
    Modern,
    /// The one with a handshake.
    Legacy,
}

/// Which request probes a server's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HealthProbe {
    /// `ping`, or `server/discover` for a modern server; the tool list if that is refused or not answered.
    #[default]
    Ping,
    /// The tool list only.
    ListTools,
}

/// Whether a call whose server was lost is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retry {
    /// Always; the tool may run twice.
    Always,
    /// Only if the call provably did not run, or the tool says that running it twice does no harm.
    #[default]
    Safe,
    /// Never.
    Never,
}

impl Retry {
    /// Whether a lost call may be repeated. `harmless` means that running its tool twice does no harm.
    #[must_use]
    pub const fn permits(self, may_have_run: bool, harmless: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Safe => !may_have_run || harmless,
            Self::Never => false,
        }
    }
}

/// What happens to results that do not match their tool's output schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// They are not checked.
    #[default]
    Off,
    /// They pass, and are logged and counted.
    Report,
    /// They are an error.
    Enforce,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum Launch {
    /// A child process.
    Stdio(Stdio),
    /// A remote server.
    Remote(Remote),
    /// It cannot be reached; only this server fails.
    Unusable {
        /// What is wrong, without secrets.
        reason: String,
    },
}

/// A child process to run. Its `Debug` form shows neither arguments nor values of variables.
#[derive(Clone, PartialEq, Eq)]
pub struct Stdio {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its variables, from `env_file` and `env`.
    pub env: BTreeMap<String, Secret>,
    /// Variables that it inherits from the gateway, besides those that every server gets.
    pub inherit_env: Vec<String>,
    /// The folder it runs in; the gateway's, if absent.
    pub cwd: Option<PathBuf>,
}

/// A server that is reached over the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Its address.
    pub url: Url,
    /// The transport that it speaks.
    pub transport: RemoteTransport,
    /// Headers sent with every request, sorted by name.
    pub headers: BTreeMap<String, Secret>,
    /// The proxy to reach it through; a direct connection, if absent.
    pub proxy: Option<Proxy>,
    /// Whether redirects to the same scheme, host and port are followed.
    pub follow_redirects: bool,
}

/// How messages travel to a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteTransport {
    /// Streamable HTTP, or HTTP+SSE if the server refuses it.
    Probe,
    /// Streamable HTTP, of either era.
    Http,
    /// Legacy HTTP+SSE.
    Sse,
    /// WebSocket, one message per text frame.
    WebSocket,
}

/// Settings of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolOverride {
    /// Whether calls run one at a time.
    pub lock: Option<bool>,
    /// The queue that limits its calls; the server's queue, if absent.
    pub queue: Option<Queue>,
    /// Limits of its calls; the server's limits fill in absent ones.
    pub limits: Limits,
    /// What one call takes from a daily budget; 1, if absent.
    pub cost: Option<u32>,
}

/// How many calls run at once, and how many may wait for their turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Servers and tools that name the same queue share it; a server that names none has its own.
    pub name: Option<Arc<str>>,
    /// How many calls run at once.
    pub concurrency: usize,
    /// How many calls may wait; further calls are refused.
    pub max_waiting: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self { name: None, concurrency: 64, max_waiting: 1024 }
    }
}

impl ServerName {
    const LONGEST: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn allows(character: char) -> bool {
        character.is_ascii_alphanumeric() || "_.-".contains(character)
    }

    /// The nearest valid name: invalid characters become `_`, and a name that is too long is cut.
    pub fn adapt(text: &str) -> Self {
        let adapted: String = text
            .chars()
            .map(|character| if Self::allows(character) { character } else { '_' })
            .take(Self::LONGEST)
            .collect();
        Self(if adapted.is_empty() { Arc::from("_") } else { Arc::from(adapted) })
    }

    /// The name with a number at its end, for a name that is already taken.
    #[cfg(feature = "files")]
    pub(crate) fn numbered(&self, number: usize) -> Self {
        let end = format!("_{number}");
        let kept = self.0.len().min(Self::LONGEST - end.len());
        Self(Arc::from(format!("{}{end}", &self.0[..kept])))
    }
}

impl FromStr for ServerName {
    type Err = InvalidServerName;

    fn from_str(text: &str) -> Result<Self, InvalidServerName> {
        let fits = (1..=Self::LONGEST).contains(&text.len()) && text.chars().all(Self::allows);
        if fits { Ok(Self(Arc::from(text))) } else { Err(InvalidServerName(text.to_owned())) }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl AsRef<str> for ServerName {
    #[inline]
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl ServerConfig {
    /// The limits of a call of this tool: the tool's own, or else its server's.
    #[must_use]
    #[inline]
    pub fn limits_of(&self, tool: &str) -> Limits {
        self.tools.get(tool).map_or(self.limits, |own| own.limits.or(self.limits))
    }

    /// How long its calls and questions may take. An absent time is that of a gateway with all defaults; a gateway has filled
    /// in its own before.
    #[must_use]
    #[inline]
    pub fn clocks(&self) -> Clocks {
        Clocks {
            silent: self.request_timeout.unwrap_or(GatewaySettings::REQUEST_TIMEOUT),
            total: self.max_total.unwrap_or(GatewaySettings::MAX_TOTAL),
            question: self.question_timeout.unwrap_or(GatewaySettings::QUESTION_TIMEOUT),
            cancel: self.cancel_grace.unwrap_or(GatewaySettings::CANCEL_GRACE),
        }
    }

    /// The server behind a gateway with these settings: times that it does not have itself are the gateway's.
    #[must_use]
    pub fn behind(self, gateway: &GatewaySettings) -> Self {
        Self {
            request_timeout: self.request_timeout.or(Some(gateway.request_timeout)),
            max_total: self.max_total.or(Some(gateway.max_total)),
            question_timeout: self.question_timeout.or(Some(gateway.question_timeout)),
            cancel_grace: self.cancel_grace.or(Some(gateway.cancel_grace)),
            ..self
        }
    }

    /// A program to run, with all defaults. The times of its calls are those of the gateway that it is given to.
    ///
    /// # Errors
    /// If the name is not valid.
    pub fn program(
        name: &str,
        command: impl Into<String>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, InvalidServer> {
        Ok(Self::of_any_gateway(name.parse()?, Launch::Stdio(Stdio::new(command, args))))
    }

    /// A server at an address, with all defaults. Its transport is detected. The times of its calls are those of the gateway
    /// that it is given to.
    ///
    /// # Errors
    /// If the name or the address is not valid.
    pub fn remote(name: &str, url: &str) -> Result<Self, InvalidServer> {
        Ok(Self::of_any_gateway(name.parse()?, Launch::Remote(Remote::new(url.parse()?))))
    }

    fn of_any_gateway(name: ServerName, launch: Launch) -> Self {
        let defaults = Self::new(name, launch, &GatewaySettings::default());
        Self {
            request_timeout: None,
            max_total: None,
            question_timeout: None,
            cancel_grace: None,
            ..defaults
        }
    }

    /// A server with the times of this gateway, and all other defaults.
    pub fn new(name: ServerName, launch: Launch, gateway: &GatewaySettings) -> Self {
        Self {
            name,
            launch,
            prefix: None,
            request_timeout: Some(gateway.request_timeout),
            max_total: Some(gateway.max_total),
            tools: BTreeMap::new(),
            filter: ToolFilter::default(),
            restart: true,
            jitter: true,
            start_timeout: Duration::from_secs(180),
            stable_after: Duration::from_secs(60),
            probe_interval: Duration::from_secs(30),
            health_probe: HealthProbe::Ping,
            retry: Retry::Safe,
            output: Output::Off,
            queue: Queue::default(),
            isolation: Isolation::Shared,
            idle_timeout: None,
            lazy: false,
            era: EraChoice::Auto,
            interactive: Interactive::Auto,
            max_leases: 8,
            max_session_processes: 32,
            question_timeout: Some(gateway.question_timeout),
            cancel_grace: Some(gateway.cancel_grace),
            roots: None,
            limits: Limits::default(),
            require: Vec::new(),
            confinement: None,
        }
    }
}

impl Remote {
    /// A server at `url` whose transport is detected: no extra headers, no proxy, redirects not followed.
    pub fn new(url: Url) -> Self {
        let transport = if url.is_web_socket() { RemoteTransport::WebSocket } else { RemoteTransport::Probe };
        Self { url, transport, headers: BTreeMap::new(), proxy: None, follow_redirects: false }
    }
}

impl Stdio {
    /// A program with arguments, no variables and the gateway's folder.
    pub fn new(command: impl Into<String>, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            inherit_env: Vec::new(),
            cwd: None,
        }
    }
}

impl fmt::Debug for Stdio {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Stdio")
            .field("command", &self.command)
            .field("args", &format_args!("[{} of them]", self.args.len()))
            .field("env", &self.env)
            .field("inherit_env", &self.inherit_env)
            .field("cwd", &self.cwd)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_are_checked_once() {
        for good in ["a", "git-hub_2.x", &"x".repeat(64)] {
            assert_eq!(good.parse::<ServerName>().map(|name| name.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "a b", "a/b", "é", &"x".repeat(65)] {
            assert!(bad.parse::<ServerName>().is_err(), "{bad}");
        }
        for (text, adapted) in [("My Server", "My_Server"), ("", "_"), ("@a/b", "_a_b"), ("é", "_")] {
            assert_eq!(ServerName::adapt(text).as_str(), adapted);
        }
        let long = ServerName::adapt(&"x".repeat(80));
        assert_eq!(long.as_str().len(), 64);
        assert_eq!(long.numbered(12).as_str().len(), 64);
    }

    #[test]
    fn a_process_never_prints_its_secrets() {
        let mut stdio = Stdio::new("x", ["--token=hunter2"]);
        stdio.env.insert("KEY".to_owned(), Secret::new("hunter2"));
        let shown = format!("{stdio:?}");
        assert!(!shown.contains("hunter2") && shown.contains("KEY"), "{shown}");
    }
}
