//! Every environment variable that Bridgehead reads, and the checked form of them.
//!
//! The process environment comes in as a map and is read once. Outside of `BRIDGEHEAD_`, only standard variables and
//! those that a file names are read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::diagnostic::{ConfigError, Diagnostic};
use crate::secret::Secret;
use crate::secrets::{RunCommand, SecretSource};
use crate::settings::{LogLevel, Mode};

/// The configuration file to use.
pub const CONFIG: &str = "BRIDGEHEAD_CONFIG";
/// The mode, in place of `[gateway] mode`.
pub const MODE: &str = "BRIDGEHEAD_MODE";
/// Milliseconds the gateway may take to start, in place of `[gateway] startup_timeout_ms`.
pub const STARTUP_TIMEOUT_MS: &str = "BRIDGEHEAD_STARTUP_TIMEOUT_MS";
/// The bearer token of the HTTP front, if the file names none.
pub const HTTP_TOKEN: &str = "BRIDGEHEAD_HTTP_TOKEN";
/// How much is logged.
pub const LOG: &str = "BRIDGEHEAD_LOG";
/// Milliseconds for the handshake and each attempt of a call through the bridge library.
pub const MCP_TIMEOUT: &str = "BRIDGEHEAD_MCP_TIMEOUT";

/// The configurations of all gateways above a server. The gateway sets it for its servers; users do not set it.
pub const PARENTS: &str = "BRIDGEHEAD_PARENTS";

/// All variables of the `BRIDGEHEAD_` namespace, with their descriptions for the reference page.
pub const VARIABLES: &[(&str, &str)] = &[
    (CONFIG, "The configuration file to use; `--config` wins over it."),
    (MODE, "The mode (`full`, `readonly`, `minimal`, `test`), in place of `[gateway] mode`."),
    (
        STARTUP_TIMEOUT_MS,
        "Milliseconds the gateway may take to start, in place of `[gateway] startup_timeout_ms`.",
    ),
    (HTTP_TOKEN, "The bearer token clients must send, if neither `token_file` nor `token_env` is set."),
    (LOG, "How much is logged: `off`, `error`, `warn`, `info`, `debug` or `trace`."),
    (MCP_TIMEOUT, "Milliseconds for the handshake and each attempt of a call through the bridge library."),
    (
        PARENTS,
        "Set by the gateway for its servers: the configurations of all gateways above them. A gateway that finds its own \
         configuration there refuses to start, because it would start itself in an endless loop.",
    ),
];

const NAMESPACE: &str = "BRIDGEHEAD_";

/// The environment of the process, checked.
#[derive(Clone, Default)]
pub struct Environment {
    /// [`CONFIG`]
    pub config: Option<PathBuf>,
    /// [`MODE`]
    pub mode: Option<Mode>,
    /// [`STARTUP_TIMEOUT_MS`]
    pub startup_timeout: Option<Duration>,
    /// [`HTTP_TOKEN`]
    pub http_token: Option<Secret>,
    /// [`LOG`]
    pub log: Option<LogLevel>,
    /// [`MCP_TIMEOUT`]
    pub mcp_timeout: Option<Duration>,
    pub(crate) secrets: SecretSource,
    pub(crate) makes_keys: bool,
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Checks a map of variables and reports all mistakes at once.
    pub fn read(variables: BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let mut environment = Self::default();
        let mut mistakes = Vec::new();
        for (name, value) in variables.iter().filter(|(name, _)| name.starts_with(NAMESPACE)) {
            if let Err(mistake) = environment.take(name, value) {
                mistakes.push(mistake);
            }
        }
        environment.variables = variables;
        if mistakes.is_empty() { Ok(environment) } else { Err(ConfigError(mistakes)) }
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), Diagnostic> {
        match name {
            CONFIG if value.is_empty() => {
                return Err(Diagnostic::error(format!("{CONFIG} is empty")).help("name a file, or unset it"));
            }
            CONFIG => self.config = Some(PathBuf::from(value)),
            MODE => {
                self.mode =
                    Some(value.parse().map_err(|error| Diagnostic::error(format!("{MODE}: {error}")))?);
            }
            STARTUP_TIMEOUT_MS => self.startup_timeout = Some(milliseconds(name, value)?),
            HTTP_TOKEN => {
                let token = Secret::new(value);
                if !is_bearer_token(&token) {
                    return Err(Diagnostic::error(format!("{HTTP_TOKEN} is not a bearer token"))
                        .help("use one or more visible ASCII characters without spaces"));
                }
                self.http_token = Some(token);
            }
            LOG => {
                self.log = Some(value.parse().map_err(|error| Diagnostic::error(format!("{LOG}: {error}")))?);
            }
            MCP_TIMEOUT => self.mcp_timeout = Some(milliseconds(name, value)?),
            PARENTS => {}
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Lets configurations take secrets from the commands that they list under `[secrets]`: `run` runs one of them. Without
    /// this, a value that refers to a command cannot be used.
    #[must_use]
    pub fn running(self, run: Arc<RunCommand>) -> Self {
        Self { secrets: SecretSource::FilesAndCommands(run), ..self }
    }

    /// Leaves references to secrets as they are written: neither is a file read, nor does a command run. For a
    /// configuration that is only looked at, and for one that nobody has agreed to yet.
    #[must_use]
    pub fn without_secrets(self) -> Self {
        Self { secrets: SecretSource::Nothing, ..self }
    }

    /// Lets rules name keys, and groups of keys, that do not exist: for the command that makes them.
    #[must_use]
    pub fn making_keys(self) -> Self {
        Self { makes_keys: true, ..self }
    }

    /// A variable by name, inside or outside of the namespace.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    pub(crate) fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    /// `path` with a leading `~/` replaced by the home folder; otherwise relative to `base`.
    pub(crate) fn resolve(&self, path: &str, base: &Path) -> PathBuf {
        match (path.strip_prefix("~/"), self.variable("HOME")) {
            (Some(rest), Some(home)) => Path::new(home).join(rest),
            _ => base.join(path),
        }
    }
}

/// Whether the text fits into an `Authorization` header unchanged.
pub(crate) fn is_bearer_token(token: &Secret) -> bool {
    !token.expose().is_empty() && token.expose().bytes().all(|byte| byte.is_ascii_graphic())
}

fn milliseconds(name: &str, value: &str) -> Result<Duration, Diagnostic> {
    match value.parse() {
        Ok(milliseconds) if milliseconds > 0 => Ok(Duration::from_millis(milliseconds)),
        _ => Err(Diagnostic::error(format!(
            "{name}: `{value}` is not a positive whole number of milliseconds"
        ))),
    }
}

fn unknown(name: &str) -> Diagnostic {
    let nearest = VARIABLES
        .iter()
        .map(|(known, _)| (strsim::damerau_levenshtein(name, known), known))
        .filter(|(distance, _)| *distance <= 4)
        .min_by_key(|(distance, _)| *distance);
    let help = match nearest {
        Some((_, known)) => format!("did you mean {known}?"),
        None => {
            let known: Vec<_> = VARIABLES.iter().map(|(known, _)| *known).collect();
            format!("unset it; the variables are {}", known.join(", "))
        }
    };
    Diagnostic::error(format!("unknown environment variable {name}")).help(help)
}

impl fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Environment")
            .field("config", &self.config)
            .field("mode", &self.mode)
            .field("startup_timeout", &self.startup_timeout)
            .field("http_token", &self.http_token)
            .field("log", &self.log)
            .field("mcp_timeout", &self.mcp_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, ConfigError> {
        Environment::read(
            variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        )
    }

    /// SRV-5: the mode comes from the environment, in any case.
    #[test]
    fn known_variables_are_read() {
        let environment = read(&[
            (CONFIG, "a.toml"),
            (MODE, "ReadOnly"),
            (STARTUP_TIMEOUT_MS, "1500"),
            (HTTP_TOKEN, "hunter2"),
            (LOG, "debug"),
            (MCP_TIMEOUT, "7"),
            ("HOME", "/home/x"),
        ])
        .unwrap();
        assert_eq!(environment.config, Some("a.toml".into()));
        assert_eq!(environment.mode, Some(Mode::Readonly));
        assert_eq!(environment.startup_timeout, Some(Duration::from_millis(1500)));
        assert_eq!(environment.log, Some(LogLevel::Debug));
        assert_eq!(environment.mcp_timeout, Some(Duration::from_millis(7)));
        assert_eq!(environment.variable("HOME"), Some("/home/x"));
        assert!(!format!("{environment:?}").contains("hunter2"));
    }

    /// SRV-6: an unknown variable of the namespace is an error with a suggestion, and all mistakes come at once.
    #[test]
    fn mistakes_are_reported_in_one_go() {
        let error = read(&[
            ("BRIDGEHEAD_MODES", "full"),
            ("BRIDGEHEAD_COLOUR_OF_THE_SKY", "blue"),
            (MODE, "fast"),
            (STARTUP_TIMEOUT_MS, "-1"),
            (MCP_TIMEOUT, "0"),
            (HTTP_TOKEN, "two words"),
            (LOG, "loud"),
            (CONFIG, ""),
        ])
        .unwrap_err();
        assert_snapshot!(error, @r"
    error: unknown environment variable BRIDGEHEAD_COLOUR_OF_THE_SKY
     |
     = help: unset it; the variables are BRIDGEHEAD_CONFIG, BRIDGEHEAD_MODE, BRIDGEHEAD_STARTUP_TIMEOUT_MS, BRIDGEHEAD_HTTP_TOKEN, BRIDGEHEAD_LOG, BRIDGEHEAD_MCP_TIMEOUT, BRIDGEHEAD_PARENTS

    error: BRIDGEHEAD_CONFIG is empty
     |
     = help: name a file, or unset it

    error: BRIDGEHEAD_HTTP_TOKEN is not a bearer token
     |
     = help: use one or more visible ASCII characters without spaces

    error: BRIDGEHEAD_LOG: `loud` is not a log level; allowed are `off`, `error`, `warn`, `info`, `debug` and `trace`

    error: BRIDGEHEAD_MCP_TIMEOUT: `0` is not a positive whole number of milliseconds

    error: BRIDGEHEAD_MODE: `fast` is not a mode; allowed are `full`, `readonly`, `minimal` and `test`

    error: unknown environment variable BRIDGEHEAD_MODES
     |
     = help: did you mean BRIDGEHEAD_MODE?

    error: BRIDGEHEAD_STARTUP_TIMEOUT_MS: `-1` is not a positive whole number of milliseconds
    ");
    }
}
