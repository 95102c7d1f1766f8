//! What the program reads of the world around it, once: variables, folder, configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bridgehead::Config;
use bridgehead::config::{ConfigError, Environment, Launch, Server, Source, Stdio, load, locate};

use sha2::{Digest, Sha256};

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

    /// An id of a configuration that was just read: two that are the same file with the same text, mode and variables
    /// have the same one. It covers secrets, so it is shown to nobody but the user's own programs.
    pub(crate) fn id(&self, config: &Config) -> String {
        let mut digest = Sha256::new();
        let mut add = |field: &[u8]| {
            digest.update((field.len() as u64).to_le_bytes());
            digest.update(field);
        };
        add(config.gateway.mode.as_str().as_bytes());
        if let Some(file) = self.file(config) {
            add(file.as_os_str().as_encoded_bytes());
            add(&std::fs::read(&file).unwrap_or_default());
        }
        for name in &config.interpolated {
            add(name.as_bytes());
            add(self.environment.variable(name).unwrap_or_default().as_bytes());
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The file that a configuration was read from, by the one path that it has for everybody.
    pub(crate) fn file(&self, config: &Config) -> Option<PathBuf> {
        match &config.source {
            Source::Toml(path) | Source::ClientJson(path) => {
                let path = self.folder.join(path);
                Some(path.canonicalize().unwrap_or(path))
            }
            Source::Demo => None,
        }
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
