//! Turns configuration files into a checked configuration.
//!
//! Either format is parsed into the same tree (`tree`), compared with the one table of keys ([`keys`], `section`), and
//! interpreted (`check`). The result, [`Config`], cannot express a mistake, so nothing downstream validates it again.
//! Mistakes are reported all at once, as [`Diagnostic`]s with file, line, caret and cure. They never show a secret.
//!
//! The only I/O is reading the named files; the process environment comes in as a map, and so does the function that runs the
//! commands of `[secrets]`.
//!
//! Without the feature `files`, only the checked settings are here, for programs that make them in code. Without the feature
//! `globs`, no [`ToolFilter`] has patterns.
//!
#![cfg_attr(feature = "files", doc = "```")]
#![cfg_attr(not(feature = "files"), doc = "```ignore")]
//! use std::collections::BTreeMap;
//! use std::path::Path;
//!
//! use bridgehead_config::{Environment, Source, load, locate};
//!
//! # fn main() -> Result<(), bridgehead_config::ConfigError> {
//! let environment = Environment::read(BTreeMap::new())?;
//! let folder = Path::new("a/folder/without/a/configuration");
//! let found = locate(None, &environment, folder)?;
//! let file = found.first().map(|found| found.path.as_path());
//! let config = load(file, &environment, folder)?;
//! assert_eq!(config.source, Source::Demo);
//! # Ok(())
//! # }
//! ```

mod access;
#[cfg(feature = "files")]
mod check;
#[cfg(feature = "files")]
mod configuration;
#[cfg(feature = "files")]
mod diagnostic;
#[cfg(feature = "files")]
mod env_file;
#[cfg(feature = "files")]
pub mod environment;
#[cfg(feature = "globs")]
mod filter;
#[cfg(not(feature = "globs"))]
#[path = "no_filter.rs"]
mod filter;
#[cfg(feature = "files")]
mod interpolate;
#[cfg(feature = "files")]
pub mod keys;
#[cfg(feature = "files")]
mod keys_file;
#[cfg(feature = "files")]
mod load;
#[cfg(feature = "files")]
mod mask;
mod proxy;
#[cfg(feature = "files")]
mod reference;
mod roots;
#[cfg(feature = "files")]
mod schema;
mod secret;
mod secret_file;
#[cfg(feature = "files")]
mod secrets;
#[cfg(feature = "files")]
mod section;
mod server;
mod settings;
#[cfg(feature = "files")]
mod trail;
#[cfg(feature = "files")]
mod tree;
mod url;

pub use access::{
    Algorithm, ApiKey, AuthSettings, Introspection, Issuer, KeyRows, LimitRule, ListenAddress, Listener,
    ListenerAuth, OWN_SERVER, PeerNetwork, PolicyRule, Rate, RevokedKey, StepUp, ThingPattern, TlsFiles,
    TrustedProxy, Who,
};
#[cfg(feature = "files")]
pub use configuration::{Config, Source};
#[cfg(feature = "files")]
pub use diagnostic::{ConfigError, Diagnostic, Severity};
#[cfg(feature = "files")]
pub use env_file::{BadLine, parse as parse_env_file};
#[cfg(feature = "files")]
pub use environment::Environment;
#[cfg(feature = "globs")]
pub use filter::InvalidPattern;
pub use filter::ToolFilter;
#[cfg(feature = "files")]
pub use keys_file::read_keys;
#[cfg(feature = "files")]
pub use load::{Found, Origin, load, load_text, locate, read_text, user_file};
pub use proxy::{InvalidProxy, Proxy};
#[cfg(feature = "files")]
pub use reference::reference;
pub use roots::Roots;
#[cfg(feature = "files")]
pub use schema::json_schema;
pub use secret::Secret;
pub use secret_file::{SecretFileError, check_secret_file, read_file, read_secret_file};
#[cfg(feature = "files")]
pub use secrets::{RunCommand, SecretCommand};
pub use server::{
    Clocks, Confinement, EraChoice, FileAccess, HealthProbe, Interactive, InvalidServer, InvalidServerName,
    Isolation, Launch, Limits, Network, OnMissing, Output, Profile, Queue, Remote, RemoteTransport,
    Requirement, Retry, ServerConfig, ServerName, Stdio, ToolOverride,
};
pub use settings::{
    AuditPayloads, AuditSettings, AuditStore, GatewaySettings, HttpSettings, LocalUsers, LogLevel, Mode,
    Prefix, ResourceUris, SecretSettings, TokenSource, UnknownWord,
};
pub use url::{InvalidUrl, Url};

// Types of fields and errors of this crate.
pub use bridgehead_wire::{RuleError, Rules};
