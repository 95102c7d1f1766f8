//! The servers in a `bridgehead.toml`, as the verbs that write it see them.
//!
//! What must stay true: comments, order, blanks and line ends stay as they are ([`edits`]); a file that the gateway would refuse
//! is not written; a value that looks like a secret goes to a file of variables beside it, which only its owner may read, and the
//! configuration refers to it. Nothing is written before [`ServersFile::save`], so a dry run leaves that out.

mod consequences;
mod edits;
mod entry;
mod secrets;
mod variables;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use bridgehead::config::{Config, ConfigError, Secret, load_text, user_file};

pub(crate) use self::consequences::{Consequences, for_nobody, listed, not_for, told_for_nobody};
pub(crate) use self::entry::{EntryLaunch, EntryTransport, ServerEntry};
pub(crate) use self::secrets::{has_secret, has_secret_argument, looks_secret};
use self::variables::Variables;
use super::exit::Exit;
use super::output;
use super::replace::{self, ReplaceError, Replacement};
use super::world::World;

/// How often an edit starts again, if another program changes the file meanwhile.
const ATTEMPTS: usize = 10;
const BOM: char = '\u{feff}';

/// A `bridgehead.toml`, which need not exist, with edits that are not written yet.
#[derive(Debug)]
pub(crate) struct ServersFile {
    path: PathBuf,
    /// What the file holds; `None` if there is none.
    before: Option<Vec<u8>>,
    /// The new text, without a byte order mark.
    text: String,
    has_bom: bool,
    /// Whether a value that looks like a secret is written in the file itself.
    exposed: bool,
    /// Whether somebody else wrote what is put into it.
    by_others: bool,
    /// What the gateway makes of the text that the file holds.
    config: Box<Config>,
    secrets: SecretsFile,
    /// Locks the folder against other programs of ours.
    lock: Option<File>,
}

/// The file of variables that the configuration refers to.
#[derive(Debug)]
struct SecretsFile {
    path: PathBuf,
    /// Whether the configuration names it already.
    named: bool,
    before: Option<Vec<u8>>,
    variables: Variables,
    /// The names that the variables of removed servers would have.
    outdated: Vec<String>,
}

/// What became of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Put {
    /// Whether it took the place of another one.
    pub(crate) replaced: bool,
    /// The values that went to the file of variables.
    pub(crate) placed: Vec<Placed>,
    /// Where a value that looks like a secret stays in the configuration, as `args` or `env.NAME`.
    pub(crate) exposed: Vec<String>,
}

/// A value that went to the file of variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Where it was, as `env.NAME`, `headers.NAME` or `url`.
    pub(crate) key: String,
    /// The variable that holds it.
    pub(crate) variable: String,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Saved {
    /// Whether the configuration is a new file.
    pub(crate) is_new: bool,
    /// Whether others could read the configuration before, and cannot now.
    pub(crate) narrowed: bool,
    /// The file of variables, if it was changed.
    pub(crate) secrets: Option<PathBuf>,
    /// The variables that were removed from it.
    pub(crate) forgotten: Vec<String>,
    /// Why the agreement to the file could not be renewed.
    pub(crate) not_trusted: Option<String>,
    /// Whether the file is used only after the user has agreed to it.
    pub(crate) needs_agreement: bool,
    /// What it changed besides.
    pub(crate) consequences: Consequences,
}

/// Why a file cannot be read or edited. It stays as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServersFileError {
    /// The file cannot be used as it is.
    #[error("the configuration is wrong, so it is not edited")]
    Wrong(ConfigError),
    /// The edit would make it unusable.
    #[error("nothing was written, because the new configuration would be wrong")]
    Refused(ConfigError),
    /// It belongs to another program.
    #[error("`{}` is the file of an MCP client, which Bridgehead does not edit; {cure}", path.display())]
    OfAClient { path: PathBuf, cure: &'static str },
    /// An entry has a form that only a person can edit.
    #[error("`{}` writes the server `{name}` in a form that only a person can edit; edit it by hand", path.display())]
    ByHand { path: PathBuf, name: String },
    /// The file of variables cannot be used.
    #[error("the file of secrets `{}` cannot be used: {reason}; correct it first", path.display())]
    Secrets { path: PathBuf, reason: String },
    /// It would change a file elsewhere.
    #[error(
        "`{}` is kept outside of the folder of the configuration, in `{}`; a folder that you work in does not decide which \
         of your files is changed: edit that file itself, or keep the file in the folder",
        path.display(), target.display()
    )]
    Elsewhere { path: PathBuf, target: PathBuf },
    /// The system refused.
    #[error("`{}` cannot be {action}: {error}", path.display())]
    File { path: PathBuf, action: &'static str, error: io::Error },
    /// It was not replaced.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The caller gave up.
    #[error("{message}")]
    Stopped { message: String, exit: Exit },
}

impl ServersFileError {
    /// Reports it, and returns the exit code.
    pub(crate) fn tell(&self, as_json: bool) -> Exit {
        match self {
            Self::Wrong(error) | Self::Refused(error) => {
                output::talk(&format!("error: {self}"));
                output::configuration_error(error, as_json)
            }
            Self::Stopped { exit, .. } => self.tell_as(*exit, as_json),
            Self::OfAClient { .. } => self.tell_as(Exit::Usage, as_json),
            _ => self.tell_as(Exit::Failure, as_json),
        }
    }

    fn tell_as(&self, exit: Exit, as_json: bool) -> Exit {
        output::failed(&self.to_string(), exit, as_json)
    }
}

/// Opens a file for editing, edits it and saves it; starts again if another program changes the file meanwhile.
pub(crate) fn edit<T>(
    path: &Path,
    world: &World,
    mut change: impl FnMut(&mut ServersFile) -> Result<T, ServersFileError>,
) -> Result<(T, Saved), ServersFileError> {
    let mut changed = None;
    for _ in 0..ATTEMPTS {
        let mut file = ServersFile::open(path, world)?;
        let done = change(&mut file)?;
        match file.save(world) {
            Err(ServersFileError::Replace(error @ ReplaceError::Changed(_))) => changed = Some(error),
            saved => {
                return saved.map(|saved| {
                    saved.consequences.tell();
                    (done, saved)
                });
            }
        }
    }
    Err(changed.map_or_else(
        || ServersFileError::Stopped { message: "nothing was edited".to_owned(), exit: Exit::Failure },
        ServersFileError::Replace,
    ))
}

impl ServersFile {
    /// Reads a file, which need not exist, to look at it or for a dry run.
    pub(crate) fn read(path: &Path, world: &World) -> Result<Self, ServersFileError> {
        let path = world.folder().join(path);
        if path.extension().is_some_and(|extension| extension == "json" || extension == "jsonc") {
            let by_variable =
                world.environment.config.as_ref().is_some_and(|named| world.folder().join(named) == path);
            let cure = match by_variable {
                true => "let BRIDGEHEAD_CONFIG name a `bridgehead.toml`, or unset it",
                false => "name a `bridgehead.toml` instead",
            };
            return Err(ServersFileError::OfAClient { path, cure });
        }
        let failed = |error| ServersFileError::File { path: path.clone(), action: "read", error };
        // The user's own file may be a link: only the user made it.
        let folder = path.parent().filter(|_| user_file(&world.environment).is_none_or(|own| own != path));
        let folder = folder.map(Path::to_owned);
        stays_in(folder.as_deref(), &path)?;
        let before = replace::read(&path).map_err(failed)?;
        let config =
            check(&path, before.clone().unwrap_or_default(), world).map_err(ServersFileError::Wrong)?;
        let text = String::from_utf8(before.clone().unwrap_or_default()).unwrap_or_default();
        let (has_bom, text) = match text.strip_prefix(BOM) {
            Some(rest) => (true, rest.to_owned()),
            None => (false, text),
        };
        let secrets = SecretsFile::read(&path, config.secrets.env_file.clone(), folder.as_deref())?;
        let config = Box::new(config);
        Ok(Self {
            path,
            before,
            text,
            has_bom,
            exposed: false,
            by_others: false,
            config,
            secrets,
            lock: None,
        })
    }

    /// Reads a file to edit it. Holds a lock until it is dropped, so that two edits at once follow each other.
    pub(crate) fn open(path: &Path, world: &World) -> Result<Self, ServersFileError> {
        let path = world.folder().join(path);
        let lock = lock(&path)?;
        Ok(Self { lock: Some(lock), ..Self::read(&path, world)? })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file does not exist yet.
    pub(crate) const fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// The names of all servers, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        edits::names(&self.text)
    }

    /// Whether there is a server of this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names().iter().any(|known| known == name)
    }

    /// A server as it is written; `None` if there is none, or it has neither a command nor an address.
    pub(crate) fn get(&self, name: &str) -> Option<ServerEntry> {
        edits::get(&self.text, name)
    }

    /// The text that is written by [`ServersFile::save`].
    pub(crate) fn text(&self) -> String {
        let bom = self.has_bom.then_some(BOM);
        bom.into_iter().chain(self.text.chars()).collect()
    }

    /// Takes this text as the new content.
    pub(crate) fn set_text(&mut self, text: &str) {
        text.clone_into(&mut self.text);
    }

    /// The file of variables, where values that look like secrets go.
    pub(crate) fn secrets_path(&self) -> &Path {
        &self.secrets.path
    }

    /// Adds a server at the end, or replaces the one of this name.
    pub(crate) fn put(&mut self, name: &str, entry: &ServerEntry) -> Result<Put, ServersFileError> {
        self.outdate(name);
        let by_hand = || ServersFileError::ByHand { path: self.path.clone(), name: name.to_owned() };
        let replaced = self.contains(name);
        let others = match replaced {
            true => edits::remove(&self.text, name).map_err(|_| by_hand())?,
            false => self.text.clone(),
        };
        let mut entry = entry.clone();
        let mut put = Put { replaced, ..Put::default() };
        for (map, pairs) in [("env", &mut entry.env), ("headers", &mut entry.headers)] {
            for (key, value) in pairs.iter_mut().filter(|(key, value)| looks_secret(key, value.expose())) {
                let place = format!("{map}.{key}");
                // A variable of the file is not looked through for further ones.
                if value.expose().contains("${") {
                    put.exposed.push(place);
                    continue;
                }
                let variable = self.secrets.take(name, key, value.expose(), &others);
                *value = Secret::new(format!("${{{variable}}}"));
                put.placed.push(Placed { key: place, variable });
            }
        }
        match &mut entry.launch {
            EntryLaunch::Program { args, .. } if has_secret_argument(args) => {
                put.exposed.push("args".to_owned());
            }
            EntryLaunch::Remote { url, .. } if has_secret(url) => match secret_part(url) {
                Some((host, rest)) => {
                    let variable = self.secrets.take(name, "url", rest, &others);
                    *url = format!("{host}${{{variable}}}");
                    put.placed.push(Placed { key: "url".to_owned(), variable });
                }
                None => put.exposed.push("url".to_owned()),
            },
            EntryLaunch::Program { .. } | EntryLaunch::Remote { .. } => {}
        }
        self.exposed |= !put.exposed.is_empty();
        let mut text = self.text.clone();
        if !put.placed.is_empty() && !self.secrets.named {
            let file = self.secrets.path.file_name().unwrap_or_default().to_string_lossy();
            text = match self.before {
                Some(_) => edits::name_env_file(&text, &file),
                // In a file of our own it comes first.
                None => edits::name_env_file("", &file).map(|named| format!("{named}\n{text}")),
            }
            .map_err(|_| by_hand())?;
            self.secrets.named = true;
        }
        self.text = edits::put(&text, name, &entry)
            .map_err(|_| ServersFileError::ByHand { path: self.path.clone(), name: name.to_owned() })?;
        Ok(put)
    }

    /// Says that somebody else wrote what is put into the file, so writing it does not mean that the user agrees to it.
    pub(crate) const fn written_by_others(&mut self) {
        self.by_others = true;
    }

    /// Removes a server, which must exist, and the variables that were made for it and that nobody refers to any more.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), ServersFileError> {
        self.outdate(name);
        self.text = edits::remove(&self.text, name).map_err(|_| self.by_hand(name))?;
        Ok(())
    }

    /// Marks the variables that were made for a server.
    fn outdate(&mut self, name: &str) {
        let Some(entry) = self.get(name) else { return };
        let keys = entry.env.iter().chain(&entry.headers).map(|(key, _)| key.as_str()).chain(["url"]);
        self.secrets.outdated.extend(keys.map(|key| variable_name(name, key)));
    }

    /// Turns a server, which must exist, on or off. Returns whether that changed it.
    pub(crate) fn turn(&mut self, name: &str, on: bool) -> Result<bool, ServersFileError> {
        let is_on = self.get(name).is_some_and(|entry| entry.disabled.is_none());
        if is_on != on {
            self.text = edits::turn(&self.text, name, on).map_err(|_| self.by_hand(name))?;
        }
        Ok(is_on != on)
    }

    /// Writes the file of variables and the configuration. A configuration that the gateway would refuse is not written.
    pub(crate) fn save(&mut self, world: &World) -> Result<Saved, ServersFileError> {
        if self.lock.is_none() {
            self.lock = Some(lock(&self.path)?);
        }
        let text = self.text();
        let after = check(&self.path, text.clone().into_bytes(), world).map_err(ServersFileError::Refused)?;
        let old = self.before.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let own = user_file(&world.environment).is_some_and(|own| own == self.path);
        let mut saved = Saved {
            is_new: self.is_new(),
            narrowed: false,
            secrets: None,
            forgotten: Vec::new(),
            not_trusted: None,
            needs_agreement: false,
            consequences: Consequences::of(&self.config, &after),
        };
        let secrets_before = self.secrets.before.clone();
        if self.secrets.write()? {
            saved.secrets = Some(self.secrets.path.clone());
        }
        if self.before.as_deref() != Some(text.as_bytes()) {
            let mut replacement = Replacement::new(self.before.as_deref(), text.as_bytes());
            if self.exposed || (own && self.is_new()) {
                let mode = fs::metadata(&self.path).map_or(0, |about| about.mode());
                saved.narrowed = !self.is_new() && mode & 0o077 != 0;
                replacement = replacement.private();
            }
            if let Err(error) = replacement.write(&self.path) {
                self.secrets.restore(secrets_before);
                return Err(error.into());
            }
            if !own && !self.by_others {
                saved.not_trusted = renew_trust(&self.path, self.before.as_deref(), text.as_bytes(), world);
            }
            let agreed = world.trust().answer(&self.path, text.as_bytes()) == Some(true);
            saved.needs_agreement = !own && !agreed;
            self.before = Some(text.into_bytes());
        }
        *self.config = after;
        // Last, so that a failure above leaves no reference without its variable.
        saved.forgotten = self.secrets.forget(&old, &self.text, &self.path);
        if !saved.forgotten.is_empty() && self.secrets.write()? {
            saved.secrets = Some(self.secrets.path.clone());
        }
        Ok(saved)
    }

    fn by_hand(&self, name: &str) -> ServersFileError {
        ServersFileError::ByHand { path: self.path.clone(), name: name.to_owned() }
    }
}

impl SecretsFile {
    /// The file that the configuration names, or else a new one beside it. It must be in `folder`, if there is one.
    fn read(config: &Path, named: Option<PathBuf>, folder: Option<&Path>) -> Result<Self, ServersFileError> {
        let path = named.clone().unwrap_or_else(|| unused_name(config));
        stays_in(folder, &path)?;
        let Some(path) = named else {
            return Ok(Self {
                path,
                named: false,
                before: None,
                variables: Variables::default(),
                outdated: Vec::new(),
            });
        };
        let failed = |error| ServersFileError::File { path: path.clone(), action: "read", error };
        let before = replace::read(&path).map_err(failed)?;
        let wrong = |reason: String| ServersFileError::Secrets { path: path.clone(), reason };
        let text = String::from_utf8(before.clone().unwrap_or_default())
            .map_err(|_| wrong("it does not hold text in UTF-8".to_owned()))?;
        let variables = Variables::read(text).map_err(|line| wrong(line.to_string()))?;
        Ok(Self { path, named: true, before, variables, outdated: Vec::new() })
    }

    /// Takes a value of a server, and returns the variable that holds it. `others` is the configuration without that server,
    /// whose references must keep their meaning.
    fn take(&mut self, server: &str, key: &str, value: &str, others: &str) -> String {
        let name = variable_name(server, key);
        let fits = |name: &String| {
            self.variables.get(name).is_some_and(|known| known == value) || !refers(others, name)
        };
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let name = std::iter::once(name.clone()).chain(numbered).find(fits).unwrap_or(name);
        self.variables.set(&name, value);
        name
    }

    /// Removes the variables that were made for removed servers and that the old text of a configuration referred to, unless the
    /// new text or another configuration in its folder refers to them. Returns their names.
    fn forget(&mut self, old: &str, new: &str, config: &Path) -> Vec<String> {
        let is_made = |name: &str| self.outdated.iter().any(|made| is_numbered(name, made));
        let mut unused = self.variables.names();
        unused.retain(|name| is_made(name) && refers(old, name) && !refers(new, name));
        if !unused.is_empty() {
            let others = other_configurations(config);
            unused.retain(|name| !others.iter().any(|text| refers(text, name)));
        }
        unused.iter().for_each(|name| self.variables.remove(name));
        unused
    }

    /// Writes the file, for its owner only. Returns whether it changed.
    fn write(&mut self) -> Result<bool, ServersFileError> {
        let text = self.variables.text().as_bytes();
        if text == self.before.as_deref().unwrap_or_default() {
            return Ok(false);
        }
        Replacement::new(self.before.as_deref(), text).private().write(&self.path)?;
        self.before = Some(text.to_owned());
        Ok(true)
    }

    /// Puts back what was there, after the configuration could not be written.
    fn restore(&self, before: Option<Vec<u8>>) {
        match before {
            _ if self.before == before => {}
            Some(before) => {
                drop(Replacement::new(self.before.as_deref(), &before).private().write(&self.path));
            }
            None => drop(fs::remove_file(&self.path)),
        }
    }
}

/// What the gateway would make of this text. It reads no secrets and runs nothing.
fn check(path: &Path, text: Vec<u8>, world: &World) -> Result<Config, ConfigError> {
    load_text(path, text, &world.environment.clone().without_secrets(), world.folder())
}

/// Why the gateway would refuse a configuration at this path with this server alone.
pub(crate) fn refusal(name: &str, entry: &ServerEntry, path: &Path, world: &World) -> Option<String> {
    let Ok(text) = edits::put("", name, entry) else {
        return Some("it cannot be written".to_owned());
    };
    let first = |error: ConfigError| error.0.first().map(|diagnostic| diagnostic.message.clone());
    check(path, text.into_bytes(), world).err().map(|error| first(error).unwrap_or_default())
}

/// The address of a server's host and the rest, if the rest looks like a secret and can go elsewhere.
pub(crate) fn secret_part(url: &str) -> Option<(&str, &str)> {
    after_host(url).filter(|(_, rest)| has_secret(url) && !rest.contains("${"))
}

/// Keeps the user's agreement to a file that the user edits with a verb. Returns why that is not possible.
fn renew_trust(path: &Path, before: Option<&[u8]>, after: &[u8], world: &World) -> Option<String> {
    // Nobody but the user wrote a file that did not exist.
    let trusted = before.is_none_or(|before| world.trust().answer(path, before) == Some(true));
    trusted.then(|| world.trust().renew(path, before, after).err()).flatten().map(|error| error.to_string())
}

/// Locks the folder of a file, which is made if it is missing.
fn lock(path: &Path) -> Result<File, ServersFileError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| replace::lock(path)).map_err(|error| ServersFileError::File {
        path: path.to_owned(),
        action: "locked",
        error,
    })
}

/// A name beside the configuration that no file has: `bridgehead.env` for `bridgehead.toml`.
fn unused_name(config: &Path) -> PathBuf {
    let stem = config.file_stem().unwrap_or_default().to_string_lossy();
    let names =
        std::iter::once(format!("{stem}.env")).chain((2..).map(|number| format!("{stem}-{number}.env")));
    let mut paths = names.map(|name| config.with_file_name(name));
    paths.find(|path| !path.exists()).unwrap_or_else(|| config.with_extension("env"))
}

/// Refuses a file that is not in the folder after all links: a folder that somebody else made must not choose what is written.
fn stays_in(folder: Option<&Path>, path: &Path) -> Result<(), ServersFileError> {
    let Some(folder) = folder.and_then(|folder| folder.canonicalize().ok()) else { return Ok(()) };
    let failed = |error| ServersFileError::File { path: path.to_owned(), action: "found", error };
    let target = replace::target(path).map_err(failed)?;
    let parent = target.parent().and_then(|parent| parent.canonicalize().ok());
    match parent.is_some_and(|parent| parent.starts_with(&folder)) {
        true => Ok(()),
        false => Err(ServersFileError::Elsewhere { path: path.to_owned(), target }),
    }
}

/// The variable for a value of a server: `GITHUB_TOKEN` for `TOKEN`, and for `GITHUB_TOKEN`, of `github`.
pub(crate) fn variable_name(server: &str, key: &str) -> String {
    let upper = |text: &str| -> String {
        let letter = |next: char| if next.is_ascii_alphanumeric() { next.to_ascii_uppercase() } else { '_' };
        text.chars().map(letter).collect()
    };
    let (server, key) = (upper(server), upper(key));
    let name = if key.starts_with(&format!("{server}_")) { key } else { format!("{server}_{key}") };
    if name.starts_with(|first: char| first.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// Whether a name is this one, or this one with a number behind it.
fn is_numbered(name: &str, made: &str) -> bool {
    let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix(made).is_some_and(|rest| rest.is_empty() || rest.strip_prefix('_').is_some_and(number))
}

/// The texts of the other configurations in the folder of one.
fn other_configurations(config: &Path) -> Vec<String> {
    let folder = config.parent().and_then(|folder| fs::read_dir(folder).ok());
    let paths = folder.into_iter().flatten().flatten().map(|entry| entry.path());
    let others =
        paths.filter(|path| path != config && path.extension().is_some_and(|ending| ending == "toml"));
    others
        .filter_map(|path| fs::read(path).ok())
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .collect()
}

/// Whether a configuration refers to a variable.
fn refers(text: &str, name: &str) -> bool {
    [format!("${{{name}"), format!("${{env:{name}")].iter().any(|reference| {
        let mut ends = text.match_indices(reference.as_str()).map(|(at, _)| &text[at + reference.len()..]);
        ends.any(|rest| rest.starts_with(['}', ':']))
    })
}

/// The address of a server's host with its slash, and the rest.
fn after_host(url: &str) -> Option<(&str, &str)> {
    let host = url.find("://")? + "://".len();
    let slash = host + url[host..].find('/')?;
    (!has_secret(&url[..slash])).then(|| url.split_at(slash + 1))
}

#[cfg(test)]
mod tests;
