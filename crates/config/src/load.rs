//! Finds the configuration file to use, and reads it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::check::{self, SERVER_MAPS, World};
use crate::configuration::Config;
use crate::diagnostic::{ConfigError, Diagnostic, Severity, SourceText};
use crate::environment::{self, Environment};
use crate::mask::Mask;
use crate::secret_file::bounded;
use crate::section::Findings;
use crate::settings::TokenSource;
use crate::tree::{self, Node, SyntaxError};

/// A configuration that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// How it was found.
    pub origin: Origin,
}

/// How a configuration was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `--config` or `BRIDGEHEAD_CONFIG` names it.
    Named,
    /// It lies in the current folder, so anybody may have put it there. The caller must ask the user before using it.
    Folder,
    /// It is the user's own file, in the configuration folder.
    User,
}

/// The files that may be used, the preferred one first. If `explicit` (the `--config` option) or `BRIDGEHEAD_CONFIG` names
/// a file, that file alone. Otherwise those that exist of `bridgehead.toml` and `.mcp.json` in `cwd`, and
/// `bridgehead/bridgehead.toml` in the user's configuration folder. A named file that does not exist is an error.
pub fn locate(
    explicit: Option<&Path>,
    environment: &Environment,
    cwd: &Path,
) -> Result<Vec<Found>, ConfigError> {
    let named = match (explicit, &environment.config) {
        (Some(path), _) => Some((path, "--config")),
        (None, Some(path)) => Some((path.as_path(), environment::CONFIG)),
        (None, None) => None,
    };
    if let Some((path, by)) = named {
        if cwd.join(path).is_file() {
            return Ok(vec![Found { path: path.to_owned(), origin: Origin::Named }]);
        }
        let message = format!("{by} names `{}`, which does not exist", path.display());
        return Err(Diagnostic::error(message).help(format!("correct {by}, or leave it out")).into());
    }
    let user = user_file(environment);
    // In the configuration folder itself, the file found is the user's own.
    let own = user.as_ref().and_then(|path| path.canonicalize().ok());
    let in_folder = [cwd.join("bridgehead.toml"), cwd.join(".mcp.json")].into_iter().map(|path| {
        let is_own = own.is_some() && path.canonicalize().ok() == own;
        Found { path, origin: if is_own { Origin::User } else { Origin::Folder } }
    });
    let all = in_folder.chain(user.map(|path| Found { path, origin: Origin::User }));
    Ok(all.filter(|found| found.path.is_file()).collect())
}

/// The user's own file, which need not exist: `bridgehead/bridgehead.toml` in the user's configuration folder. `None` if there is
/// no such folder.
pub fn user_file(environment: &Environment) -> Option<PathBuf> {
    environment
        .variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .or_else(|| environment.variable("HOME").map(|home| Path::new(home).join(".config")))
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("bridgehead").join("bridgehead.toml"))
}

/// A longer configuration is refused.
const LARGEST: u64 = 64 * 1024 * 1024;

/// Reads the bytes of a file. Relative paths start from `cwd`.
pub fn read_text(path: &Path, cwd: &Path) -> Result<Vec<u8>, ConfigError> {
    // A person may name a pipe; nobody writes this much.
    let read = File::open(cwd.join(path)).and_then(|file| bounded(file, LARGEST));
    read.map_err(|error| {
        Diagnostic::error(format!("cannot read the configuration: {error}")).in_file(path).into()
    })
}

/// Reads and checks a file, or returns the defaults if there is none. Relative paths start from `cwd`.
pub fn load(path: Option<&Path>, environment: &Environment, cwd: &Path) -> Result<Config, ConfigError> {
    match path {
        Some(path) => load_text(path, read_text(path, cwd)?, environment, cwd),
        None => {
            let mut config = Config::demo();
            if let Some(value) = &environment.http_token {
                config.http.token =
                    TokenSource::Env { name: environment::HTTP_TOKEN.to_owned(), value: value.clone() };
            }
            Ok(with_environment(config, environment))
        }
    }
}

/// Checks the text of a file that the caller has read, so that the text the user agreed to is the text that is used.
pub fn load_text(
    path: &Path,
    text: Vec<u8>,
    environment: &Environment,
    cwd: &Path,
) -> Result<Config, ConfigError> {
    let full = cwd.join(path);
    let text = String::from_utf8(text).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n');
        Diagnostic::error(format!("line {} is not UTF-8 text", line.count() + 1)).in_file(path)
    })?;
    let base = full.parent().unwrap_or(cwd);
    Ok(with_environment(parse(path, text, World { environment, base, cwd, secrets: None })?, environment))
}

fn with_environment(mut config: Config, environment: &Environment) -> Config {
    config.http.sudo_uid = environment.variable("SUDO_UID").and_then(|uid| uid.parse().ok());
    config.gateway.mode = environment.mode.unwrap_or(config.gateway.mode);
    config.gateway.startup_timeout = environment.startup_timeout.unwrap_or(config.gateway.startup_timeout);
    config
}

fn is_json(path: &Path, text: &str) -> bool {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json" | "jsonc") => true,
        Some("toml") => false,
        // A JSON file of a client begins with a brace or a comment, a TOML file with neither.
        _ => text.trim_start().starts_with(['{', '/']),
    }
}

fn parse(path: &Path, mut text: String, world: World<'_>) -> Result<Config, ConfigError> {
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    let json = is_json(path, &text);
    let tree =
        if json { tree::read_json(&text).map_err(|error| vec![error]) } else { tree::read_toml(&text) };
    let mask = tree.as_ref().ok().map(|root| match json {
        true => Mask::client(root, &text, &SERVER_MAPS),
        false => Mask::native(root, &text),
    });
    let source = |mask| Arc::new(SourceText { path: path.to_owned(), text, mask });
    let root = match tree {
        Ok(root) => root,
        Err(errors) => {
            return Err(syntax(&source(Mask::AllValues), errors, if json { "JSON" } else { "TOML" }));
        }
    };
    checked(&root, json, source(mask.unwrap_or(Mask::AllValues)), world)
}

pub(crate) fn syntax(source: &Arc<SourceText>, errors: Vec<SyntaxError>, format: &str) -> ConfigError {
    let tell = |error: SyntaxError| {
        let diagnostic =
            Diagnostic::error(format!("not valid {format}: {}", error.message)).at(source, &error.span);
        // The parsers guess what a bare word means (`n…` a `nan`, `t…` a `true`); it is nearly always unquoted text.
        let bare_word = source.text.get(error.span).is_some_and(|text| text.starts_with(char::is_alphabetic));
        if bare_word { diagnostic.help("write text in quotes") } else { diagnostic }
    };
    ConfigError(errors.into_iter().map(tell).collect())
}

fn checked(
    root: &Node,
    json: bool,
    source: Arc<SourceText>,
    world: World<'_>,
) -> Result<Config, ConfigError> {
    let mut findings = Findings::new(source, !json);
    let mut config = if json {
        check::client(root, world, &mut findings)
    } else {
        check::native(root, world, &mut findings)
    };
    findings.diagnostics.sort_by_key(Diagnostic::position);
    if findings.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error) {
        return Err(ConfigError(findings.diagnostics));
    }
    config.warnings = findings.diagnostics;
    Ok(config)
}
