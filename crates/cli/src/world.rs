//! Reads the program's surroundings, once: variables, folder, configuration.
//!
//! Anybody may have put a configuration into the current folder, and it runs programs. It is used only if the user agreed
//! to its text ([`Trust`]). On a terminal, the program asks the user; otherwise it skips the file.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bridgehead::config::environment::{CONFIG, PARENTS};
use bridgehead::config::{
    ConfigError, Diagnostic, Environment, Found, Launch, Origin, ServerConfig, Source, Stdio, load,
    load_text, locate, read_text, user_file,
};
use bridgehead::{Config, secret_commands};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::exit::Exit;
use super::output;
use super::salvage::{Salvaged, show_mistakes};
use super::trust::{self, Trust, what_runs};

/// The name of the bundled server.
const DEMO: &str = "demo";
/// The command of a server that means this program, wherever it was started from.
pub(crate) const THIS_PROGRAM: &str = "bridgehead";

/// What the names of our own variables begin with.
const OURS: &str = "BRIDGEHEAD_";

/// Said instead of the file in use.
const NONE_FOUND: &str = "configuration: none found";

/// The process's surroundings.
#[derive(Debug, Clone)]
pub(crate) struct World {
    /// The variables, checked.
    pub(crate) environment: Environment,
    /// The variables, unchecked.
    pub(crate) variables: BTreeMap<String, String>,
    folder: PathBuf,
    /// The path of this program, as it was when it started: an update may replace the file meanwhile.
    program: Option<PathBuf>,
    /// Whether the user was told which configuration is used.
    told: Arc<AtomicBool>,
    /// Whether there is a user at a terminal to ask.
    asks: bool,
    trust: Trust,
}

/// Why a running gateway does not reload its configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReloaded {
    /// The gateway was started without a file, and there is still none.
    #[error("there is no configuration file; `bridgehead add` and `bridgehead init` make one")]
    NoFile,
    /// The file no longer exists.
    #[error("`{}` is gone; the running configuration stays in effect", .0.display())]
    Gone(PathBuf),
    /// The user has not agreed to its new content.
    #[error(
        "`{}` has changed, and nobody agreed to its new content ({}); the running configuration stays in effect; agree with \
         `bridgehead trust {}`", path.display(), changes.join("; "), path.display()
    )]
    NotAgreed { path: PathBuf, changes: Vec<String> },
    /// It is invalid.
    #[error("{}", words(.0))]
    Wrong(ConfigError),
}

impl World {
    /// The home of the user.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.variables.get("HOME").map(Path::new).filter(|home| home.is_absolute())
    }

    /// The folder of what gateways and verbs keep for this user.
    pub(crate) fn state(&self) -> Option<PathBuf> {
        let folder = |name: &str| self.variables.get(name).map(Path::new).filter(|path| path.is_absolute());
        let state = folder("XDG_STATE_HOME").map(Path::to_owned);
        let state = state.or_else(|| Some(folder("HOME")?.join(".local/state")))?;
        Some(state.join("bridgehead"))
    }

    /// Tells the user that the servers about to start are the demo, if they are, and where a configuration was looked for.
    pub(crate) fn note_demo(&self, config: &Config) {
        if config.source == Source::Demo {
            let own = user_file(&self.environment).map(|file| format!(", {}", short(&file, self.home())));
            output::talk(&format!(
                "the bundled demo server runs; looked for ./bridgehead.toml, ./.mcp.json{} (or name one with --config)",
                own.unwrap_or_default()
            ));
        }
    }

    /// Reads the surroundings. Skips variables that are not UTF-8. With `speaks_mcp`, stdin carries the protocol, so the
    /// user is never asked.
    pub(crate) fn read(speaks_mcp: bool) -> Result<Self, ConfigError> {
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let asks = !speaks_mcp && io::stdin().is_terminal() && io::stderr().is_terminal();
        Ok(Self { asks, ..Self::of(variables, std::env::current_dir().unwrap_or_default())? })
    }

    /// The surroundings for a verb that only reads, without our own variables, one of which is wrong. Only the one that names the
    /// configuration counts.
    pub(crate) fn to_read() -> Result<Self, ConfigError> {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name == CONFIG || !name.starts_with(OURS));
        Self::of(variables.collect(), std::env::current_dir().unwrap_or_default())
    }

    /// The surroundings of a process with these variables in this folder, without a user to ask.
    pub(crate) fn of(variables: BTreeMap<String, String>, folder: PathBuf) -> Result<Self, ConfigError> {
        Ok(Self {
            environment: Environment::read(variables.clone())?.running(secret_commands(variables.clone())),
            trust: Trust::of(&variables),
            variables,
            folder,
            program: std::env::current_exe().ok(),
            told: Arc::default(),
            asks: false,
        })
    }

    /// The current folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether there is a user at a terminal to ask.
    pub(crate) const fn asks(&self) -> bool {
        self.asks
    }

    /// What the user agreed to.
    pub(crate) const fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The configuration, or the demo if there is none, for verbs that start its servers. Says which file is used. Its warnings are
    /// not shown yet. Reads secret files and runs the commands of `[secrets]`.
    pub(crate) fn configuration(&self, explicit: Option<&Path>) -> Result<Config, ConfigError> {
        let config = self.read_configuration(explicit, &self.environment)?;
        self.tell_source(&config);
        Ok(config)
    }

    /// Says which configuration is used, once.
    pub(crate) fn tell_source(&self, config: &Config) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        match &config.source {
            Source::Toml(path) | Source::ClientJson(path) => {
                output::talk(&format!("configuration: {}", self.folder.join(path).display()));
            }
            Source::Demo => output::talk(NONE_FOUND),
        }
    }

    /// The configuration with its secrets left out, for verbs that start no server of it. Says which file is used only if it is
    /// one that the user may not expect.
    pub(crate) fn without_secrets(&self, explicit: Option<&Path>) -> Result<Config, ConfigError> {
        self.read_configuration(explicit, &self.environment.clone().without_secrets())
    }

    /// Like `without_secrets`, for verbs that only read and need these sections: a mistake is told, and what is left of the file
    /// is used.
    ///
    /// # Errors
    /// If the file that is named does not exist.
    pub(crate) fn to_look_up(
        &self,
        explicit: Option<&Path>,
        sections: &[&str],
    ) -> Result<Salvaged, ConfigError> {
        let environment = self.environment.clone().without_secrets().making_keys();
        let error = match self.read_configuration(explicit, &environment) {
            Ok(config) => return Ok(Salvaged::whole(config)),
            Err(error) => error,
        };
        let Some(file) = self.candidate(explicit) else { return Err(error) };
        show_mistakes(&error);
        let text = read_text(&file, &self.folder).unwrap_or_default();
        let salvaged = Salvaged::of(&file, &text, sections, &environment, &self.folder);
        salvaged.tell(sections);
        Ok(salvaged)
    }

    /// The file that would be the configuration, whether it can be used or not.
    pub(crate) fn candidate(&self, explicit: Option<&Path>) -> Option<PathBuf> {
        let found = locate(explicit, &self.environment, &self.folder).ok()?;
        let agreed = |found: &Found| {
            let text = || std::fs::read(&found.path).unwrap_or_default();
            found.origin != Origin::Folder || self.trust.answer(&found.path, &text()) == Some(true)
        };
        found.into_iter().find(agreed).map(|found| self.folder.join(found.path))
    }

    /// What is wrong with the file of a running gateway now, if it cannot be used as it is.
    pub(crate) fn mistake_in(&self, file: &Path) -> Option<String> {
        let environment = self.environment.clone().without_secrets().making_keys();
        let read =
            read_text(file, &self.folder).and_then(|text| load_text(file, text, &environment, &self.folder));
        read.err().map(|error| words(&error))
    }

    /// The configuration for verbs that make and revoke keys: its secrets are left out, and its rules may name keys that do not
    /// exist. Also shows errors and warnings.
    pub(crate) fn for_keys(&self, explicit: Option<&Path>, as_json: bool) -> Result<Config, Exit> {
        let environment = self.environment.clone().without_secrets().making_keys();
        let config = self
            .read_configuration(explicit, &environment)
            .map_err(|error| output::configuration_error(&error, as_json))?;
        output::show(&config.warnings);
        Ok(config)
    }

    /// Reads the file of `config`, which was read without its secrets, again with them.
    pub(crate) fn with_secrets(
        &self,
        explicit: Option<&Path>,
        config: &Config,
    ) -> Result<Config, ConfigError> {
        self.again(explicit, config, None).map_err(|error| match error {
            NotReloaded::Wrong(error) => error,
            other => Diagnostic::error(other.to_string()).into(),
        })
    }

    fn read_configuration(
        &self,
        explicit: Option<&Path>,
        environment: &Environment,
    ) -> Result<Config, ConfigError> {
        let candidates = locate(explicit, environment, &self.folder)?;
        for found in candidates {
            let text = read_text(&found.path, &self.folder)?;
            if found.origin != Origin::Folder || self.agreed(&found, &text)? {
                let config = self.load_text(&found.path, text, environment)?;
                let by_variable = found.origin == Origin::Named && explicit.is_none();
                if found.origin == Origin::Folder || by_variable {
                    self.tell_source(&config);
                }
                return Ok(config);
            }
        }
        let mut config = load(None, environment, &self.folder)?;
        if let Ok(name) = DEMO.parse() {
            let launch = Launch::Stdio(Stdio::new(THIS_PROGRAM, ["demo-server"]));
            config.servers.push(ServerConfig::new(name, launch, &config.gateway));
        }
        Ok(self.starting_itself(config))
    }

    /// Checks the text of a file whose servers may be started.
    pub(crate) fn load_text(
        &self,
        path: &Path,
        text: Vec<u8>,
        environment: &Environment,
    ) -> Result<Config, ConfigError> {
        load_text(path, text, environment, &self.folder).map(|config| self.starting_itself(config))
    }

    /// The command `bridgehead` means this program, which need not be in the PATH, and must not be another version of it.
    fn starting_itself(&self, mut config: Config) -> Config {
        for server in &mut config.servers {
            if let (Launch::Stdio(stdio), Some(program)) = (&mut server.launch, &self.program)
                && stdio.command == THIS_PROGRAM
            {
                stdio.command = program.to_string_lossy().into_owned();
            }
        }
        config
    }

    /// Loads the current content of the file of `config`, which is running. The demo gives way to the user's own file.
    /// `before` is the text that is in effect, to say what would change.
    pub(crate) fn again(
        &self,
        explicit: Option<&Path>,
        config: &Config,
        before: Option<&[u8]>,
    ) -> Result<Config, NotReloaded> {
        let path = match &config.source {
            Source::Toml(path) | Source::ClientJson(path) => path,
            Source::Demo => &self.own_file().filter(|file| file.exists()).ok_or(NotReloaded::NoFile)?,
        };
        if !self.folder.join(path).exists() {
            return Err(NotReloaded::Gone(path.clone()));
        }
        let text = read_text(path, &self.folder).map_err(NotReloaded::Wrong)?;
        let needed = self.needs_agreement(explicit, path).map_err(NotReloaded::Wrong)?;
        if needed && self.trust.answer(&self.folder.join(path), &text) != Some(true) {
            let changes = self.changes(path, before.unwrap_or_default(), &text);
            return Err(NotReloaded::NotAgreed { path: path.clone(), changes });
        }
        self.load_text(path, text, &self.environment).map_err(NotReloaded::Wrong)
    }

    /// The user's own file, which need not exist; `None` if there is no folder for it.
    pub(crate) fn own_file(&self) -> Option<PathBuf> {
        user_file(&self.environment)
    }

    /// Whether the user must agree to the file of a configuration: it was found in the current folder.
    pub(crate) fn needs_agreement(&self, explicit: Option<&Path>, path: &Path) -> Result<bool, ConfigError> {
        let candidates = locate(explicit, &self.environment, &self.folder)?;
        Ok(!candidates.iter().any(|one| one.path == *path && one.origin != Origin::Folder))
    }

    /// Whether a file that the user did not name may run what it says.
    pub(crate) fn may_run(&self, path: &Path) -> bool {
        let agreed = || std::fs::read(path).is_ok_and(|text| self.trust.answer(path, &text) == Some(true));
        self.needs_agreement(None, path).is_ok_and(|needed| !needed) || agreed()
    }

    /// What another text of a file would change. It runs nothing and reads no secrets.
    fn changes(&self, path: &Path, before: &[u8], after: &[u8]) -> Vec<String> {
        let environment = self.environment.clone().without_secrets();
        match load_text(path, after.to_vec(), &environment, &self.folder) {
            Ok(config) => trust::changes(before, after, &config.source),
            Err(error) => vec![format!("it cannot be used: {}", words(&error))],
        }
    }

    /// Whether the user agreed to a file of the current folder, now or before.
    fn agreed(&self, found: &Found, text: &[u8]) -> Result<bool, ConfigError> {
        let file = found.path.display();
        let before = self.trust.answer(&found.path, text);
        let agreed = match before {
            Some(agreed) => Some(agreed),
            None if self.asks => self.ask(found, text)?,
            None => None,
        };
        if agreed != Some(true) {
            let why = match agreed {
                Some(_) => "you refused it",
                None => "nobody agreed to run what it says",
            };
            output::talk(&format!(
                "warning: skipping `{file}`: {why}; to use it, run `bridgehead trust {file}`"
            ));
        }
        Ok(agreed == Some(true))
    }

    /// Shows what would run and asks the user; `None` if there was no answer.
    fn ask(&self, found: &Found, text: &[u8]) -> Result<Option<bool>, ConfigError> {
        // Nobody has agreed to it yet, so it runs nothing.
        let environment = self.environment.clone().without_secrets();
        let config = load_text(&found.path, text.to_vec(), &environment, &self.folder)?;
        output::talk(&format!("`{}` lies in the current folder. It would run:", found.path.display()));
        what_runs(text, &config.source).iter().for_each(|line| output::talk(&format!("  {line}")));
        let Some(agreed) =
            self.agree("Use it? The answer is kept for as long as the file does not change. [y/N]")
        else {
            return Ok(None);
        };
        if let Err(error) = self.trust.keep(&found.path, text, agreed) {
            output::talk(&format!("warning: the answer cannot be kept: {error}"));
        }
        Ok(Some(agreed))
    }

    /// Asks the user at the terminal; `None` if there is none, or no answer.
    pub(crate) fn agree(&self, question: &str) -> Option<bool> {
        if !self.asks {
            return None;
        }
        output::talk(question);
        let mut answer = String::new();
        match io::stdin().lock().read_line(&mut answer) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())),
        }
    }

    /// The variables for the servers of `config`. They include the configurations of all gateways above these servers.
    ///
    /// # Errors
    /// A message, if this configuration is already among them: a gateway that one of its own servers starts would start
    /// that server again, without end.
    pub(crate) fn for_servers(&self, config: &Config) -> Result<BTreeMap<String, String>, String> {
        let mut variables = self.variables.clone();
        // The demo gives way to the user's own file, while it runs.
        let Some(file) = self.file(config).or_else(|| self.own_file()) else { return Ok(variables) };
        let parents = variables.get(PARENTS).map(String::as_str).unwrap_or_default();
        let mut id = trust::digest(file.as_os_str().as_encoded_bytes());
        id.truncate(16);
        let mut all: Vec<&str> = parents.split(',').filter(|one| !one.is_empty()).collect();
        if all.contains(&id.as_str()) {
            return Err(format!(
                "this runs under a gateway that serves the same configuration, `{}`, and would start that gateway again \
                 without end; remove Bridgehead from the servers in that file, name another file with --config, or \
                 unset {PARENTS} if this is intended",
                file.display()
            ));
        }
        all.push(&id);
        let all = all.join(",");
        variables.insert(PARENTS.to_owned(), all);
        Ok(variables)
    }

    /// An id of a configuration that was just read: the same file with the same text, mode and variables has the same id.
    /// It is computed from secrets, so only the user's own programs may see it.
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
        if let Some(file) = &config.secrets.env_file {
            add(&std::fs::read(file).unwrap_or_default());
        }
        for name in &config.interpolated {
            add(name.as_bytes());
            add(self.environment.variable(name).unwrap_or_default().as_bytes());
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What must be equal for a client to join a gateway: the version, the file, its text with the mode and with its file of
    /// variables, every variable that the file names or passes on, those that say whose a process is and what it can reach, and
    /// the programs that the servers' commands stand for. Everything else, such as the language, is of the gateway's start: SDKs
    /// start their servers with environments that differ in it. Values of variables are digests, but they are made from secrets
    /// too, so only the user's own programs may see them.
    pub(crate) fn identity(&self, config: &Config) -> Value {
        let file = self.file(config);
        let mut text = config.gateway.mode.as_str().as_bytes().to_vec();
        text.push(0);
        let files = [file.as_deref(), config.secrets.env_file.as_deref()];
        for file in files.into_iter().flatten() {
            text.extend(std::fs::read(file).unwrap_or_default());
            text.push(0);
        }
        let inherited = config.servers.iter().filter_map(|server| match &server.launch {
            Launch::Stdio(stdio) => Some(&stdio.inherit_env),
            Launch::Remote(_) | Launch::Unusable { .. } => None,
        });
        let named = inherited.flatten().chain(&config.interpolated);
        let mut variables: BTreeMap<String, String> = named
            .filter_map(|name| Some((name.clone(), self.environment.variable(name)?.to_owned())))
            .chain(bridgehead_process::personal_environment(&self.variables))
            .collect();
        for (name, value) in &mut variables {
            let whole = format!("{}\0{name}\0{value}", file.as_deref().unwrap_or(Path::new("")).display());
            *value = trust::digest(whole.as_bytes())[..16].to_owned();
        }
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "file": file.map(|file| file.display().to_string()),
            "text": trust::digest(&text),
            "variables": variables,
            "programs": self.programs(config),
        })
    }

    /// The programs of the servers whose commands are searched for in the `PATH` of this process, by the names of the servers.
    fn programs(&self, config: &Config) -> BTreeMap<String, PathBuf> {
        let Some(search) = self.variables.get("PATH") else { return BTreeMap::new() };
        let program = |server: &ServerConfig| match &server.launch {
            Launch::Stdio(stdio) if !stdio.env.contains_key("PATH") => {
                bridgehead_process::find_program(&stdio.command, search)
            }
            Launch::Stdio(_) | Launch::Remote(_) | Launch::Unusable { .. } => None,
        };
        let found = |server: &ServerConfig| Some((server.name.to_string(), program(server)?));
        config.servers.iter().filter_map(found).collect()
    }

    /// The folder in which a gateway of several clients runs, and the file that it has to be told. A file that was found in the
    /// current folder is found there again, and needs the user's agreement there again when it changes.
    pub(crate) fn where_to_serve(
        &self,
        explicit: Option<&Path>,
        config: &Config,
    ) -> (PathBuf, Option<PathBuf>) {
        let (Source::Toml(path) | Source::ClientJson(path)) = &config.source else {
            return (PathBuf::from("/"), None);
        };
        let candidates = locate(explicit, &self.environment, &self.folder).unwrap_or_default();
        if candidates.iter().any(|one| one.path == *path && one.origin == Origin::Folder) {
            return (self.folder.clone(), None);
        }
        let file = self.file(config).unwrap_or_else(|| path.clone());
        (file.parent().unwrap_or(&self.folder).to_owned(), Some(file))
    }

    /// The canonical path of the file that a configuration was read from.
    pub(crate) fn file(&self, config: &Config) -> Option<PathBuf> {
        match &config.source {
            Source::Toml(path) | Source::ClientJson(path) => {
                let path = self.folder.join(path);
                Some(path.canonicalize().unwrap_or(path))
            }
            Source::Demo => None,
        }
    }

    /// Like `configuration`, but also shows errors and warnings.
    pub(crate) fn configured(&self, explicit: Option<&Path>, as_json: bool) -> Result<Config, Exit> {
        let config =
            self.configuration(explicit).map_err(|error| output::configuration_error(&error, as_json))?;
        output::show(&config.warnings);
        Ok(config)
    }
}

/// A path for people, with `~` for the home.
pub(crate) fn short(path: &Path, home: Option<&Path>) -> String {
    let in_home = home.and_then(|home| path.strip_prefix(home).ok());
    in_home.map_or_else(|| path.display().to_string(), |rest| format!("~/{}", rest.display()))
}

/// All errors, on one line.
fn words(error: &ConfigError) -> String {
    let one = |diagnostic: &Diagnostic| {
        let place = match (diagnostic.file(), diagnostic.position()) {
            (Some(file), Some((line, column))) => format!("{}:{line}:{column}: ", file.display()),
            (Some(file), None) => format!("{}: ", file.display()),
            (None, _) => String::new(),
        };
        format!("{place}{}", diagnostic.message)
    };
    error.0.iter().map(one).collect::<Vec<_>>().join("; ")
}
