//! The checked configuration as a whole. Nothing downstream validates it again.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::access::{AuthSettings, LimitRule, PolicyRule};
use crate::diagnostic::Diagnostic;
use crate::server::{ServerConfig, ServerName};
use crate::settings::{AuditSettings, GatewaySettings, HttpSettings, SecretSettings};

/// A whole configuration, ready to be used.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it came from.
    pub source: Source,
    /// How the gateway runs calls.
    pub gateway: GatewaySettings,
    /// How clients reach the gateway over HTTP.
    pub http: HttpSettings,
    /// What the audit record holds, and where it is kept.
    pub audit: AuditSettings,
    /// Who is admitted, and as whom.
    pub auth: AuthSettings,
    /// Who may use what. Empty if everybody who is admitted may use everything.
    pub policy: Vec<PolicyRule>,
    /// How much each principal may do.
    pub limits: Vec<LimitRule>,
    /// Where secrets come from.
    pub secrets: SecretSettings,
    /// The servers in the order of the file, without the disabled ones.
    pub servers: Vec<ServerConfig>,
    /// The servers that the file turns off.
    pub disabled: Vec<ServerName>,
    /// The names of all variables that the file interpolates.
    pub interpolated: BTreeSet<String>,
    /// Findings that do not prevent the use of the configuration.
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

impl Config {
    /// A configuration without a file: all defaults and no server.
    pub fn demo() -> Self {
        Self {
            source: Source::Demo,
            gateway: GatewaySettings::default(),
            http: HttpSettings::default(),
            audit: AuditSettings::default(),
            auth: AuthSettings::default(),
            policy: Vec::new(),
            limits: Vec::new(),
            secrets: SecretSettings::default(),
            servers: Vec::new(),
            disabled: Vec::new(),
            interpolated: BTreeSet::new(),
            warnings: Vec::new(),
        }
    }
}
