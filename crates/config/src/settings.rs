//! The checked settings of a gateway. Nothing downstream validates them again.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::access::Listener;
use crate::secret::Secret;
use bridgehead_wire::Rules;

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

/// A word that is not one of the allowed words.
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
    /// By the servers' own URIs; a URI that two servers list belongs to the first.
    #[default]
    Keep,
    /// By server and URI.
    Rewrite,
}

/// `[gateway]`
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// How long a call may take in total.
    pub max_total: Duration,
    /// How long the gateway itself may take to start.
    pub startup_timeout: Duration,
    /// How many server processes are launched at the same time.
    pub init_concurrency: usize,
    /// How long the first list of tools waits for a silent server that is still starting and has no saved list; five times as
    /// long for a process that has not answered yet.
    pub list_wait: Duration,
    /// How long a gateway that its clients share stays after the last of them has left.
    pub linger: Duration,
    /// How long a client has to answer a question of a server.
    pub question_timeout: Duration,
    /// How long a cancelled call keeps its lock and its places, unless its server answers it or ends first.
    pub cancel_grace: Duration,
    /// Number of threads that serve HTTP clients; one per core, if absent.
    pub threads: Option<NonZeroUsize>,
    /// Whether errors carry backtraces.
    pub debug_errors: bool,
    /// The largest single message from a server.
    pub max_message_bytes: usize,
    /// How much the gateway holds in memory for all clients and servers together (`limits.held_mb`).
    pub held_bytes: usize,
    /// How much of that one session, connection or server may take (`limits.held_per_peer_mb`).
    pub held_per_peer_bytes: usize,
    /// How much the prepared lists of all views may take together (`limits.views_mb`).
    pub views_bytes: usize,
    /// Whether the gateway offers its built-in tools. No configuration key turns them off; a relay does.
    pub builtin: bool,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// Address and port.
    pub listen: SocketAddr,
    /// More addresses, each with its own rules.
    pub listeners: Vec<Listener>,
    /// Accepted `Host` values besides those of loopback.
    pub allowed_hosts: Vec<String>,
    /// Accepted `Origin` values besides those of loopback.
    pub allowed_origins: Vec<String>,
    /// Who on this machine may connect when no token is required.
    pub local_users: LocalUsers,
    /// The user who started the gateway with `sudo`. Counts as the gateway's own user if that is root.
    pub sudo_uid: Option<u32>,
    /// Where the bearer token comes from.
    pub token: TokenSource,
    /// Whether the group of a token file or a TLS key may read it (`secrets.allow_group_read`).
    pub allow_group_read: bool,
    /// How many sessions may be open at once.
    pub max_sessions: usize,
    /// How long a session stays open without a request.
    pub session_idle: Duration,
    /// The largest request body.
    pub max_body_bytes: usize,
    /// How long the whole head of a request may take (`limits.head_ms`).
    pub head_within: Duration,
    /// How long the whole body of a request may take (`limits.body_ms`).
    pub body_within: Duration,
    /// How often a comment is sent on a silent event stream.
    pub keep_alive: Duration,
    /// After how much silence the gateway closes the stream of a legacy client's call; the client polls for the rest.
    pub poll_after: Option<Duration>,
}

/// Who on this machine may connect over loopback when no token is required.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalUsers {
    /// The gateway's own user.
    #[default]
    Same,
    /// Every user.
    Any,
    /// Only the users with these numbers.
    These(Vec<u32>),
}

/// Where the bearer token of the HTTP front comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TokenSource {
    /// No token is configured.
    #[default]
    None,
    /// The file that holds it; the front reads it.
    File(PathBuf),
    /// A variable.
    Env {
        /// The variable's name.
        name: String,
        /// The token.
        value: Secret,
    },
}

/// `[secrets]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SecretSettings {
    /// The commands that print a secret, by name: each is a program and its arguments.
    pub commands: BTreeMap<String, Vec<String>>,
    /// Whether the group of a file that holds a secret may read it.
    pub allow_group_read: bool,
    /// The file whose variables values may refer to.
    pub env_file: Option<PathBuf>,
    /// Whether a value refers to a secret file, to a variable of the file above or to a command.
    pub used: bool,
}

/// `[audit]`
#[derive(Debug, Clone, PartialEq)]
pub struct AuditSettings {
    /// Where the record of calls is kept.
    pub store: AuditStore,
    /// Its folder, if configured.
    pub folder: Option<PathBuf>,
    /// The methods to record besides those that are always recorded.
    pub methods: Vec<&'static str>,
    /// What the record keeps of arguments and results.
    pub payloads: AuditPayloads,
    /// Whether a call that cannot be recorded still runs.
    pub continue_on_failure: bool,
    /// What is redacted, in addition to the built-in list.
    pub rules: Arc<Rules>,
    /// The file to which checkpoints are appended, if configured.
    pub checkpoint_file: Option<PathBuf>,
    /// The file with the key that signs checkpoints.
    pub signing_key_file: Option<PathBuf>,
    /// The size at which a file of the record is sealed.
    pub segment_bytes: u64,
    /// How long sealed files are kept.
    pub keep_for: Duration,
    /// How much space all files may take.
    pub keep_bytes: u64,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self {
            store: AuditStore::default(),
            folder: None,
            methods: Vec::new(),
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

/// What the record keeps of arguments and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuditPayloads {
    /// Their redacted text and a digest.
    #[default]
    Redacted,
    /// Only a digest.
    Digest,
    /// Only their size.
    None,
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

impl GatewaySettings {
    pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_millis(300_000);
    pub(crate) const MAX_TOTAL: Duration = Duration::from_millis(3_600_000);
    pub(crate) const QUESTION_TIMEOUT: Duration = Duration::from_millis(600_000);
    pub(crate) const CANCEL_GRACE: Duration = Duration::from_millis(5_000);
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            mode: Mode::Full,
            prefix: Prefix::Auto,
            max_name_length: 64,
            resource_uris: ResourceUris::Keep,
            request_timeout: Self::REQUEST_TIMEOUT,
            max_total: Self::MAX_TOTAL,
            startup_timeout: Duration::from_millis(30_000),
            init_concurrency: 8,
            list_wait: Duration::from_millis(5_000),
            linger: Duration::from_millis(30_000),
            question_timeout: Self::QUESTION_TIMEOUT,
            cancel_grace: Self::CANCEL_GRACE,
            threads: None,
            debug_errors: false,
            max_message_bytes: 16 * MEGABYTE,
            held_bytes: 512 * MEGABYTE,
            held_per_peer_bytes: 64 * MEGABYTE,
            views_bytes: 64 * MEGABYTE,
            builtin: true,
        }
    }
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4848)),
            listeners: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            local_users: LocalUsers::Same,
            sudo_uid: None,
            token: TokenSource::None,
            allow_group_read: false,
            max_sessions: 1024,
            session_idle: Duration::from_millis(1_800_000),
            max_body_bytes: 16 * MEGABYTE,
            head_within: Duration::from_millis(10_000),
            body_within: Duration::from_millis(60_000),
            keep_alive: Duration::from_millis(15_000),
            poll_after: None,
        }
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

    /// PIPE-9: the default timeouts of a call.
    #[test]
    fn defaults_of_a_call() {
        let gateway = GatewaySettings::default();
        assert_eq!(gateway.request_timeout, Duration::from_secs(300));
        assert_eq!(gateway.max_total, Duration::from_secs(3600));
        assert_eq!(gateway.startup_timeout, Duration::from_secs(30));
    }
}
