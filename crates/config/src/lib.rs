//! Turns configuration files into a checked configuration.
//!
//! Either format is parsed into the same tree (`tree`), compared with the one table of keys ([`keys`], `section`), and
//! interpreted (`check`). The result, [`Config`], cannot express a mistake, so nothing downstream validates it again.
//! Mistakes are reported all at once, as [`Diagnostic`]s with file, line, caret and cure. They never show a secret.
//!
//! The only I/O is reading the named files; the process environment comes in as a map.
//!
//! ```
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

mod check;
mod diagnostic;
mod env_file;
pub mod environment;
mod filter;
mod interpolate;
pub mod keys;
mod load;
mod mask;
mod proxy;
mod reference;
mod roots;
mod schema;
mod secret;
mod section;
mod server;
mod settings;
mod trail;
mod tree;
mod url;

pub use diagnostic::{ConfigError, Diagnostic, Severity};
pub use environment::Environment;
pub use filter::ToolFilter;
pub use load::{Found, Origin, load, load_text, locate, read_text};
pub use proxy::{InvalidProxy, Proxy};
pub use reference::reference;
pub use roots::Roots;
pub use schema::json_schema;
pub use secret::Secret;
pub use server::{
    Confinement, EraChoice, FileAccess, HealthProbe, Interactive, InvalidServerName, Isolation, Launch,
    Limits, Network, OnMissing, Output, Profile, Queue, Remote, Requirement, Retry, Server, ServerName,
    Stdio, ToolOverride, Transport,
};
pub use settings::{
    AuditPayloads, AuditSettings, AuditStore, Config, GatewaySettings, HttpSettings, LocalUsers, LogLevel,
    Mode, Prefix, ResourceUris, Source, TokenSource, UnknownWord,
};
pub use url::{InvalidUrl, Url};
