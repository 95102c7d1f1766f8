//! The checked form: what a configuration means. Nothing downstream validates it again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::diagnostic::Diagnostic;
use crate::filter::ToolFilter;
use crate::secret::Secret;
use crate::url::Url;
use bridgehead_wire::Rules;

/// A whole configuration, ready to be used.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it came from.
    pub source: Source,
    /// How calls are run.
    pub gateway: GatewaySettings,
    /// How clients reach the gateway over HTTP.
    pub http: HttpSettings,
    /// Where the record of calls is kept.
    pub audit: AuditSettings,
    /// The servers in the order of the file, without the disabled ones.
    pub servers: Vec<Server>,
    /// The servers that the file switches off.
    pub disabled: Vec<ServerName>,
    /// The names of all variables that the file interpolates.
    pub interpolated: BTreeSet<String>,
    /// What is worth knowing, but stops nothing.
    pub warnings: Vec<Diagnostic>,
}

/// Where a configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Our own format.
    Toml(PathBuf),
    /// The `mcpServers` file of a client.
    ClientJson(PathBuf),
    /// No file: the demo.
    Demo,
}

/// What the gateway offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Everything.
    #[default]
    Full,
    /// Only tools that are annotated read-only.
    Readonly,
    /// Only built-in tools; no server is started.
    Minimal,
    /// Everything, with debug details in errors and no persistent state.
    Test,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the levels")]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// A word that is none of those allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not a {what}; allowed are {allowed}")]
pub struct UnknownWord {
    what: &'static str,
    value: String,
    allowed: &'static str,
}

/// When tool names carry the name of their server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefix {
    /// Unless exactly one server is configured.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How resources of several servers are addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResourceUris {
    /// As their servers do; the first of two has what both list.
    #[default]
    Keep,
    /// By server and URI.
    Rewrite,
}

/// `[gateway]`
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// What is offered.
    pub mode: Mode,
    /// When tool names carry the name of their server.
    pub prefix: Prefix,
    /// The longest tool name shown to clients.
    pub max_name_length: usize,
    /// How resources are addressed.
    pub resource_uris: ResourceUris,
    /// How long a call may stay silent.
    pub request_timeout: Duration,
    /// How long a call may take altogether.
    pub max_total: Duration,
    /// How long the gateway itself may take to start.
    pub startup_timeout: Duration,
    /// How many servers are started at the same time.
    pub init_concurrency: usize,
    /// How long the first list of tools waits for servers that are still starting.
    pub list_wait: Duration,
    /// How long a client has to answer what a server asks it.
    pub question_timeout: Duration,
    /// Number of threads that serve HTTP clients, if it is not one per core.
    pub threads: Option<NonZeroUsize>,
    /// Whether errors carry backtraces.
    pub debug_errors: bool,
    /// The largest single message from a server.
    pub max_message_bytes: usize,
}

/// `[http]`
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// Address and port.
    pub listen: SocketAddr,
    /// Accepted `Host` values besides those of loopback.
    pub allowed_hosts: Vec<String>,
    /// Accepted `Origin` values besides those of loopback.
    pub allowed_origins: Vec<String>,
    /// Where the bearer token comes from.
    pub token: TokenSource,
    /// How many sessions may be open at once.
    pub max_sessions: usize,
    /// How long a session without a request is kept.
    pub session_idle: Duration,
    /// The largest request body.
    pub max_body_bytes: usize,
    /// How often a comment is sent on a silent event stream.
    pub keep_alive: Duration,
    /// After how much silence a legacy client is sent away from the stream of its call, to come back for the rest.
    pub poll_after: Option<Duration>,
}

/// Where the bearer token of the HTTP front comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TokenSource {
    /// No token is configured.
    #[default]
    None,
    /// The file that holds it; reading it is left to the front.
    File(PathBuf),
    /// A variable.
    Env {
        /// The variable's name.
        name: String,
        /// The token.
        value: Secret,
    },
}

/// `[audit]`
#[derive(Debug, Clone)]
pub struct AuditSettings {
    /// Where the record of calls is kept.
    pub store: AuditStore,
    /// Its folder, where one is written.
    pub folder: Option<PathBuf>,
    /// What is kept of arguments and results.
    pub payloads: AuditPayloads,
    /// Whether a call that cannot be recorded is made all the same.
    pub continue_on_failure: bool,
    /// What is hidden besides the built-in list.
    pub rules: Arc<Rules>,
    /// The file that checkpoints are appended to, where one is written.
    pub checkpoint_file: Option<PathBuf>,
    /// The file with the key that signs checkpoints.
    pub signing_key_file: Option<PathBuf>,
    /// At which size a file of the record is sealed.
    pub segment_bytes: u64,
    /// How long sealed files are kept.
    pub keep_for: Duration,
    /// How much all files may take.
    pub keep_bytes: u64,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self {
            store: AuditStore::default(),
            folder: None,
            payloads: AuditPayloads::default(),
            continue_on_failure: false,
            rules: Arc::default(),
            checkpoint_file: None,
            signing_key_file: None,
            segment_bytes: 64 << 20,
            keep_for: Duration::from_secs(90 * 24 * 60 * 60),
            keep_bytes: 1024 << 20,
        }
    }
}

/// Where the record of calls is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuditStore {
    /// In SQLite files.
    #[default]
    Sqlite,
    /// Nowhere.
    None,
}

/// What is kept of arguments and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuditPayloads {
    /// Their text without its secrets, and a digest.
    #[default]
    Redacted,
    /// A digest.
    Digest,
    /// Nothing but their size.
    None,
}

/// The name of a server: 1 to 64 characters of `A-Z a-z 0-9 _ . -`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerName(Arc<str>);

/// A name that cannot be a server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a server name")]
pub struct InvalidServerName(String);

/// One server behind the gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Its name, which is also the namespace of its tools.
    pub name: ServerName,
    /// How it is reached.
    pub launch: Launch,
    /// Whether its tools carry its name, if it differs from the gateway's rule.
    pub prefix: Option<bool>,
    /// How long a call may stay silent.
    pub request_timeout: Duration,
    /// How long a call may take altogether.
    pub max_total: Duration,
    /// Settings of single tools by their name at the server.
    pub tools: BTreeMap<String, ToolOverride>,
    /// Which of its tools are offered.
    pub filter: ToolFilter,
    /// Whether it is started again when it ends.
    pub restart: bool,
    /// Whether restarts are spread over time.
    pub jitter: bool,
    /// How long it must have served for the restart delays to begin anew.
    pub stable_after: Duration,
    /// How often its health is probed.
    pub probe_interval: Duration,
    /// Whether a call whose server was lost is tried again.
    pub retry: Retry,
    /// What is done with results that do not keep what their tool promises.
    pub output: Output,
    /// What bounds its calls.
    pub queue: Queue,
    /// Who shares one process of it.
    pub isolation: Isolation,
    /// How long it keeps running when nobody uses it; for ever, if absent.
    pub idle_timeout: Option<Duration>,
    /// Whether it is started on first use only.
    pub lazy: bool,
    /// Which protocol era is spoken with it.
    pub era: EraChoice,
    /// Whether calls during which it may ask its user have a process or a session for themselves.
    pub interactive: Interactive,
    /// How many processes or sessions there are at most for such calls.
    pub max_leases: usize,
    /// How long a client has to answer what it asks.
    pub question_timeout: Duration,
    /// What its processes and calls may use.
    pub limits: Limits,
    /// Limits that must be kept by the system itself.
    pub require: Vec<Requirement>,
}

/// What the processes and calls of a server may use; what is absent is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Memory of the whole tree, in bytes.
    pub memory: Option<u64>,
    /// How long one call may run.
    pub execution: Option<Duration>,
    /// Processes in the tree.
    pub processes: Option<u32>,
    /// Open files of each process.
    pub open_files: Option<u32>,
    /// Largest file a process may write, in bytes.
    pub file_size: Option<u64>,
    /// Largest answer to one call, in bytes.
    pub output: Option<usize>,
    /// How much of the end of its error output is kept, in bytes.
    pub log: Option<usize>,
}

impl Limits {
    /// What holds for a server whose calls have processes of their own, where nothing else is said.
    pub const OF_A_CALL: Self = Self {
        memory: Some(256 << 20),
        execution: Some(Duration::from_secs(30)),
        processes: Some(64),
        open_files: Some(256),
        file_size: Some(64 << 20),
        output: Some(16 << 20),
        log: Some(64 << 10),
    };

    /// These, and those of `others` where these say nothing.
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

/// A limit that must be kept by the system itself, never by looking now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// That of memory.
    MemoryHard,
    /// That of processes.
    ProcessesHard,
}

impl Requirement {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::MemoryHard, Self::ProcessesHard];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryHard => "memory:hard",
            Self::ProcessesHard => "processes:hard",
        }
    }
}

/// Whether calls of clients that can be asked something have a process or a session for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interactive {
    /// Once a question came that could have been for more than one call.
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
    /// Everybody.
    #[default]
    Shared,
    /// Nobody but one client session.
    Session,
    /// Nobody: each call has a process of its own.
    Call,
}

/// Which protocol era is spoken with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EraChoice {
    /// Whichever it turns out to speak.
    #[default]
    Auto,
    /// The stateless one.
    Modern,
    /// The one with a handshake.
    Legacy,
}

/// Whether a call whose server was lost is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retry {
    /// In any case; the tool may run twice.
    Always,
    /// Only where it provably did not run, or the tool says that running it twice does no harm.
    #[default]
    Safe,
    /// Never.
    Never,
}

/// What is done with results that do not keep what their tool promises of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Nobody looks.
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
    /// A server somewhere else.
    Remote(Remote),
    /// Not at all: only this server fails, and says why.
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
    /// The folder it runs in, if it is not the gateway's.
    pub cwd: Option<PathBuf>,
}

/// A server that is reached over the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Where it is.
    pub url: Url,
    /// What is spoken there.
    pub transport: Transport,
    /// Sent with every request, in the order of their names.
    pub headers: BTreeMap<String, Secret>,
}

/// How messages travel to a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Streamable HTTP or, where that is refused, HTTP+SSE: the server is asked.
    Probe,
    /// Streamable HTTP, of either era.
    Http,
    /// Legacy HTTP+SSE.
    Sse,
    /// WebSocket, a message per text frame.
    WebSocket,
}

/// Settings of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolOverride {
    /// Whether calls run one at a time.
    pub lock: Option<bool>,
    /// What bounds its calls, if not what bounds its server's.
    pub queue: Option<Queue>,
}

/// How many calls run at once, and how many may wait for their turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Those who name the same queue share it; a server that names none has one of its own.
    pub name: Option<Arc<str>>,
    /// How many calls run at once.
    pub concurrency: usize,
    /// How many calls may wait; one more is refused.
    pub max_waiting: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self { name: None, concurrency: 64, max_waiting: 1024 }
    }
}

impl Config {
    /// A configuration without a file: all defaults and no server.
    pub fn demo() -> Self {
        Self {
            source: Source::Demo,
            gateway: GatewaySettings::default(),
            http: HttpSettings::default(),
            audit: AuditSettings::default(),
            servers: Vec::new(),
            disabled: Vec::new(),
            interpolated: BTreeSet::new(),
            warnings: Vec::new(),
        }
    }
}

impl Mode {
    /// The mode as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Full => "full",
            Mode::Readonly => "readonly",
            Mode::Minimal => "minimal",
            Mode::Test => "test",
        }
    }
}

impl FromStr for Mode {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        [Mode::Full, Mode::Readonly, Mode::Minimal, Mode::Test]
            .into_iter()
            .find(|mode| mode.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownWord {
                what: "mode",
                value: text.to_owned(),
                allowed: "`full`, `readonly`, `minimal` and `test`",
            })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl LogLevel {
    /// The level as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Off => "off",
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

impl FromStr for LogLevel {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        use LogLevel::{Debug, Error, Info, Off, Trace, Warn};
        [Off, Error, Warn, Info, Debug, Trace]
            .into_iter()
            .find(|level| level.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownWord {
                what: "log level",
                value: text.to_owned(),
                allowed: "`off`, `error`, `warn`, `info`, `debug` and `trace`",
            })
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

const MEGABYTE: usize = 1024 * 1024;

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            mode: Mode::Full,
            prefix: Prefix::Auto,
            max_name_length: 64,
            resource_uris: ResourceUris::Keep,
            request_timeout: Duration::from_millis(300_000),
            max_total: Duration::from_millis(3_600_000),
            startup_timeout: Duration::from_millis(30_000),
            init_concurrency: 8,
            list_wait: Duration::from_millis(5_000),
            question_timeout: Duration::from_millis(600_000),
            threads: None,
            debug_errors: false,
            max_message_bytes: 16 * MEGABYTE,
        }
    }
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4848)),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            token: TokenSource::None,
            max_sessions: 1024,
            session_idle: Duration::from_millis(1_800_000),
            max_body_bytes: 16 * MEGABYTE,
            keep_alive: Duration::from_millis(15_000),
            poll_after: None,
        }
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

    /// The nearest valid name: other characters become `_`, what is too long is cut.
    pub fn adapt(text: &str) -> Self {
        let adapted: String = text
            .chars()
            .map(|character| if Self::allows(character) { character } else { '_' })
            .take(Self::LONGEST)
            .collect();
        Self(if adapted.is_empty() { Arc::from("_") } else { Arc::from(adapted) })
    }

    /// The name with a number at its end, for one that is taken.
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
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Server {
    /// A server with the defaults of the gateway, for embedders and the demo.
    pub fn new(name: ServerName, launch: Launch, gateway: &GatewaySettings) -> Self {
        Self {
            name,
            launch,
            prefix: None,
            request_timeout: gateway.request_timeout,
            max_total: gateway.max_total,
            tools: BTreeMap::new(),
            filter: ToolFilter::default(),
            restart: true,
            jitter: true,
            stable_after: Duration::from_secs(60),
            probe_interval: Duration::from_secs(30),
            retry: Retry::Safe,
            output: Output::Off,
            queue: Queue::default(),
            isolation: Isolation::Shared,
            idle_timeout: None,
            lazy: false,
            era: EraChoice::Auto,
            interactive: Interactive::Auto,
            max_leases: 8,
            question_timeout: gateway.question_timeout,
            limits: Limits::default(),
            require: Vec::new(),
        }
    }
}

impl Remote {
    /// A server at `url` that is asked what it speaks, without headers of ours.
    pub fn new(url: Url) -> Self {
        let transport = if url.is_web_socket() { Transport::WebSocket } else { Transport::Probe };
        Self { url, transport, headers: BTreeMap::new() }
    }
}

impl Stdio {
    /// A program with arguments, no variables and the gateway's folder.
    pub fn new(command: impl Into<String>, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
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
            .field("cwd", &self.cwd)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SRV-5: modes in any case, and an error that names the value and what is allowed.
    #[test]
    fn modes_parse_in_any_case() {
        for (text, mode) in [
            ("full", Mode::Full),
            ("READONLY", Mode::Readonly),
            ("Minimal", Mode::Minimal),
            ("tEsT", Mode::Test),
        ] {
            assert_eq!(text.parse(), Ok(mode));
            assert_eq!(mode.to_string(), text.to_lowercase());
        }
        assert_eq!(
            "fast".parse::<Mode>().unwrap_err().to_string(),
            "`fast` is not a mode; allowed are `full`, `readonly`, `minimal` and `test`"
        );
        assert!("".parse::<Mode>().is_err());
        assert_eq!(Mode::default(), Mode::Full);
    }

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

    /// PIPE-9: the time-outs of a call that nobody configured.
    #[test]
    fn defaults_of_a_call() {
        let gateway = Config::demo().gateway;
        assert_eq!(gateway.request_timeout, Duration::from_secs(300));
        assert_eq!(gateway.max_total, Duration::from_secs(3600));
        assert_eq!(gateway.startup_timeout, Duration::from_secs(30));
    }

    #[test]
    fn a_process_never_prints_its_secrets() {
        let mut stdio = Stdio::new("x", ["--token=hunter2"]);
        stdio.env.insert("KEY".to_owned(), Secret::new("hunter2"));
        let shown = format!("{stdio:?}");
        assert!(!shown.contains("hunter2") && shown.contains("KEY"), "{shown}");
    }
}
