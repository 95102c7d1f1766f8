//! What the program reads of the world around it, once: variables, folder, configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bridgehead::Config;
use bridgehead::config::{ConfigError, Environment, Launch, Server, Source, Stdio, load, locate};

use super::exit::Exit;
use super::output;

/// The name of the bundled server.
const DEMO: &str = "demo";

/// Why the demo runs, and where a configuration was looked for.
const DEMO_NOTE: &str = "no configuration found, so the bundled demo server runs; looked for ./bridgehead.toml, \
    ./.mcp.json and $XDG_CONFIG_HOME/bridgehead/bridgehead.toml (or name one with --config)";

/// The process's surroundings.
#[derive(Debug, Clone)]
pub(crate) struct World {
    /// The variables, checked.
    pub(crate) environment: Environment,
    /// The same as they are, for the servers.
    pub(crate) variables: BTreeMap<String, String>,
    folder: PathBuf,
}

impl World {
    /// Reads it. A variable that is not text is none of ours.
    pub(crate) fn read() -> Result<Self, ConfigError> {
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Ok(Self {
            environment: Environment::read(variables.clone())?,
            variables,
            folder: std::env::current_dir().unwrap_or_default(),
        })
    }

    /// The configuration, with the demo in place of one that is not there; its warnings are not shown yet.
    pub(crate) fn configuration(&self, explicit: Option<&Path>) -> Result<Config, ConfigError> {
        let file = locate(explicit, &self.environment, &self.folder)?;
        let mut config = load(file.as_deref(), &self.environment, &self.folder)?;
        if config.source == Source::Demo
            && let (Ok(program), Ok(name)) = (std::env::current_exe(), DEMO.parse())
        {
            let launch = Launch::Stdio(Stdio::new(program.to_string_lossy(), ["demo-server"]));
            config.servers.push(Server::new(name, launch, &config.gateway));
        }
        Ok(config)
    }

    /// The same for verbs that only use it: what is wrong or worth knowing is told on the way.
    pub(crate) fn configured(&self, explicit: Option<&Path>, as_json: bool) -> Result<Config, Exit> {
        let config =
            self.configuration(explicit).map_err(|error| output::configuration_error(&error, as_json))?;
        output::show(&config.warnings);
        if config.source == Source::Demo {
            output::talk(DEMO_NOTE);
        }
        Ok(config)
    }
}
