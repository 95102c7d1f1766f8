//! What Bridgehead has written for this user, found by name in the folders where it writes.
//!
//! What must stay true: no link is followed, no folder is removed with what it holds, and a file whose name is not one of ours is
//! left alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bridgehead::config::{Config, TokenSource, load, user_file};
use bridgehead::{Control, control};

use super::Also;
use crate::audit;
use crate::world::World;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// What a gateway or a verb keeps, and makes again when it needs it.
    State,
    /// What only lasts while a gateway runs.
    Run,
    /// The record of calls.
    Record,
    /// API keys, and the token of the endpoint.
    Keys,
    /// The configuration, and the secrets beside it.
    Configuration,
}

impl What {
    /// Its word, which is that of `--also` where it stays otherwise.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Run => "run",
            Self::Record => "record",
            Self::Keys => "keys",
            Self::Configuration => "configuration",
        }
    }

    /// Whether it goes.
    pub(super) fn goes(self, also: &[Also]) -> bool {
        match self {
            Self::State | Self::Run => true,
            Self::Record => also.contains(&Also::Record),
            Self::Keys => also.contains(&Also::Keys),
            Self::Configuration => also.contains(&Also::Configuration),
        }
    }
}

/// All that was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The files, by what they are.
    pub(super) files: Vec<(What, PathBuf)>,
    /// Our folders, the inner ones first. Each goes if nothing is left in it.
    pub(super) folders: Vec<PathBuf>,
}

impl Found {
    /// Looks for everything.
    pub(super) fn of(world: &World) -> Self {
        let mut found = Self::default();
        let own = user_file(&world.environment);
        let config = configuration(own.as_deref(), world);
        found.configuration(own.as_deref(), &config);
        let record = audit::folder(&config.audit, world);
        found.folder(record.as_deref(), |name| is_of_record(name).then_some(What::Record));
        if config.audit.folder.is_none() {
            found.folders.extend(record);
        }
        if let Some(state) = world.state() {
            found.folder(Some(&state.join("catalog")), |name| name.ends_with(".json").then_some(What::State));
            found.folder(Some(&state), |name| is_of_state(name).then_some(What::State));
            found.folders.extend([state.join("catalog"), state.join("run"), state]);
        }
        if let Some(run) = Control::directory(&world.variables) {
            found.folder(Some(&run), |name| is_of_run(name).then_some(What::Run));
            found.folders.insert(0, run);
        }
        found.files.sort();
        found.files.dedup_by(|one, other| one.1 == other.1);
        found.folders.retain(|folder| is_folder(folder));
        found
    }

    fn configuration(&mut self, own: Option<&Path>, config: &Config) {
        let token = match &config.http.token {
            TokenSource::File(file) => Some(file.as_path()),
            TokenSource::None | TokenSource::Env { .. } => None,
        };
        let keys = config.auth.keys_file.as_deref();
        let lock = keys.map(|keys| crate::replace::beside(keys, "lock"));
        for path in [keys, lock.as_deref(), token].into_iter().flatten() {
            self.file(What::Keys, path);
        }
        let Some((own, folder)) = own.and_then(|own| Some((own, own.parent()?))) else { return };
        self.file(What::Configuration, own);
        self.folder(Some(folder), |name| match name {
            "bridgehead.env" | "service.env" => Some(What::Configuration),
            "keys.toml" | ".keys.toml.lock" => Some(What::Keys),
            name => is_draft(name).then_some(What::State),
        });
        self.folders.push(folder.to_owned());
    }

    /// The files of a folder that are ours.
    fn folder(&mut self, folder: Option<&Path>, what: impl Fn(&str) -> Option<What>) {
        let Some(folder) = folder.filter(|folder| is_folder(folder)) else { return };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if let Some(what) = entry.file_name().to_str().and_then(&what) {
                self.file(what, &entry.path());
            }
        }
    }

    /// A file, a socket or a link, but no folder.
    fn file(&mut self, what: What, path: &Path) {
        if fs::symlink_metadata(path).is_ok_and(|about| !about.is_dir()) {
            self.files.push((what, path.to_owned()));
        }
    }

    /// What stays in our folders although it is not ours.
    pub(super) fn others(&self) -> Vec<PathBuf> {
        let inside =
            self.folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
        let is_known =
            |path: &PathBuf| self.folders.contains(path) || self.files.iter().any(|(_, known)| known == path);
        let mut others: Vec<PathBuf> =
            inside.map(|entry| entry.path()).filter(|path| !is_known(path)).collect();
        others.sort();
        others.dedup();
        others
    }
}

/// The user's own configuration, or the defaults if there is none that can be read.
fn configuration(own: Option<&Path>, world: &World) -> Config {
    let environment = world.environment.clone().without_secrets();
    let file = own.filter(|file| file.exists());
    load(file, &environment, world.folder()).unwrap_or_else(|_| Config::demo())
}

/// The gateways that run.
pub(super) fn gateways(world: &World) -> Vec<u32> {
    let running = Control::directory(&world.variables).map(|folder| control::running(&folder));
    running.unwrap_or_default().iter().map(|instance| instance.pid).collect()
}

/// Removes a file.
pub(super) fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("`{}` cannot be removed: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())
}

fn is_of_state(name: &str) -> bool {
    let known = [
        "trust.json",
        ".trust.json.lock",
        "connected.json",
        ".connected.json.lock",
        "gateway.log",
        "gateway.log.1",
    ];
    known.contains(&name) || is_draft(name)
}

fn is_of_run(name: &str) -> bool {
    let start = name.strip_prefix("start-").is_some_and(|rest| rest.ends_with(".lock"));
    start || [".sock", ".json", ".draft"].iter().any(|ending| name.ends_with(ending))
}

/// Segments with what SQLite puts beside them, journals, locks, checkpoints and counts of budgets.
fn is_of_record(name: &str) -> bool {
    let endings = [".sqlite", ".sqlite-wal", ".sqlite-shm", ".sqlite-journal", ".rows", ".rows.new", ".lock"];
    name == "checkpoints.jsonl"
        || name.starts_with("budgets-")
        || endings.iter().any(|ending| name.ends_with(ending))
}

/// `.FILE.draft-NUMBER`: what an edit that was killed has left.
fn is_draft(name: &str) -> bool {
    let number =
        name.strip_prefix('.').and_then(|name| name.rsplit_once(".draft-")).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn world(home: &Path) -> World {
        World::of(BTreeMap::from([("HOME".to_owned(), home.display().to_string())]), home.to_owned()).unwrap()
    }

    fn write(home: &Path, names: &[&str]) {
        for name in names {
            let path = home.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    /// HOUR-12: files of ours are known by their names, whatever else lies beside them; links are not followed.
    #[test]
    fn what_is_ours() {
        let home = tempfile::tempdir().unwrap();
        let (config, state) = (".config/bridgehead", ".local/state/bridgehead");
        let ours = [
            (What::Configuration, "bridgehead.toml"),
            (What::Configuration, "bridgehead.env"),
            (What::Keys, "keys.toml"),
            (What::Keys, ".keys.toml.lock"),
            (What::State, ".bridgehead.toml.draft-17"),
        ];
        let kept = [
            (What::State, "trust.json"),
            (What::State, "gateway.log.1"),
            (What::State, "catalog/0a.json"),
            (What::Run, "run/0a.json"),
            (What::Run, "run/start-x.lock"),
            (What::Record, "audit/a.0001.sqlite"),
            (What::Record, "audit/a.0001.sqlite-wal"),
            (What::Record, "audit/checkpoints.jsonl"),
        ];
        let all = ours.map(|(what, name)| (what, format!("{config}/{name}")));
        let mut all: Vec<_> =
            all.into_iter().chain(kept.map(|(what, name)| (what, format!("{state}/{name}")))).collect();
        write(home.path(), &all.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>());
        let foreign = [format!("{config}/notes.txt"), format!("{state}/audit/photo.png")];
        write(home.path(), &[&foreign[0], &foreign[1], "elsewhere/x.json"]);
        std::os::unix::fs::symlink(home.path().join("elsewhere"), home.path().join(state).join("link.json"))
            .unwrap();
        let found = Found::of(&world(home.path()));
        let mut named: Vec<_> = found
            .files
            .iter()
            .map(|(what, path)| (*what, path.strip_prefix(home.path()).unwrap().display().to_string()))
            .collect();
        named.sort();
        all.sort();
        assert_eq!(named, all);
        let mut left = foreign.map(|name| home.path().join(name)).to_vec();
        left.push(home.path().join(state).join("link.json"));
        left.sort();
        assert_eq!(found.others(), left);
    }

    /// HOUR-12: a linked folder is not looked into, and the record is where the configuration puts it.
    #[test]
    fn other_folders() {
        let home = tempfile::tempdir().unwrap();
        write(
            home.path(),
            &["far/a.0001.sqlite", "far/readme", "precious/0a.json", ".local/state/bridgehead/trust.json"],
        );
        std::os::unix::fs::symlink(
            home.path().join("precious"),
            home.path().join(".local/state/bridgehead/catalog"),
        )
        .unwrap();
        write(home.path(), &[".config/bridgehead/bridgehead.toml"]);
        let text = format!("[audit]\nfolder = \"{}/far\"\n", home.path().display());
        fs::write(home.path().join(".config/bridgehead/bridgehead.toml"), text).unwrap();
        let found = Found::of(&world(home.path()));
        let has = |name: &str| found.files.iter().any(|(_, path)| path.ends_with(name));
        assert!(has("far/a.0001.sqlite") && has("trust.json"), "{found:?}");
        assert!(!has("precious/0a.json") && !has("0a.json") && !has("readme"), "{found:?}");
        assert!(!found.folders.iter().any(|folder| folder.ends_with("far")), "{found:?}");
    }
}
