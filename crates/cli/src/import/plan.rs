//! Decides what becomes of every entry that was found: a name, an addition, or nothing. It writes nothing.
//!
//! The same name with the same launch is one server, whoever has it. Another launch gets the name of its client. So a second
//! import of the same files changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bridgehead::config::{OWN_SERVER, Secret, ServerName};

use super::SecretsChoice;
use super::entry::{Read, Server};
use super::own;
use super::read::{EntryScope, Found};
use super::sign_in::SignIn;
use crate::clients::Client;
use crate::servers_file::{
    EntryLaunch, EntryTransport, Placed, ServerEntry, ServersFile, ServersFileError, has_secret,
    looks_secret, refusal, secret_part, variable_name,
};
use crate::world::{World, short};

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// One row for each entry, in the order in which they were found.
    pub(super) rows: Vec<Row>,
    additions: Vec<Addition>,
}

/// A server to add.
#[derive(Debug)]
struct Addition {
    name: String,
    entry: ServerEntry,
    /// As its client has it, to compare others with it.
    found: ServerEntry,
    row: usize,
}

/// What becomes of one entry.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) client: &'static Client,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    pub(super) scope: EntryScope,
    /// Its name in the client's file.
    pub(super) name: String,
    /// Its name in our file.
    pub(super) server: Option<String>,
    pub(super) transport: Option<&'static str>,
    pub(super) outcome: Outcome,
    /// Whether its client has turned it off.
    pub(super) is_off: bool,
    /// Why it is added turned off.
    pub(super) disabled: Option<String>,
    pub(super) remarks: Vec<String>,
    /// The variables that it needs and that are not set, and what is known about them.
    pub(super) needs: BTreeMap<String, Option<String>>,
    pub(super) sign_in: Option<SignIn>,
}

/// What is done with an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is added.
    Added,
    /// Our file has it already.
    Kept,
    /// Another client has the same, which is added.
    Merged(&'static str),
    /// It is left out; why.
    Skipped(String),
}

impl Outcome {
    /// Its word for programs.
    pub(super) const fn as_str(&self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Kept => "kept",
            Self::Merged(_) => "merged",
            Self::Skipped(_) => "skipped",
        }
    }
}

/// What was put into the file.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The servers that have values in the file of variables.
    pub(super) placed: Vec<(String, Vec<Placed>)>,
    /// The servers with values that look like secrets and stay in the configuration.
    pub(super) exposed: Vec<(String, Vec<String>)>,
}

/// What a plan depends on.
#[derive(Clone, Copy)]
pub(super) struct Planner<'p> {
    pub(super) world: &'p World,
    pub(super) secrets: SecretsChoice,
    /// The ports of our own gateway.
    pub(super) ports: &'p [u16],
}

impl Planner<'_> {
    /// Decides what becomes of these entries in this file.
    pub(super) fn plan(&self, found: &[Found], file: &ServersFile) -> Plan {
        let mut plan = Plan::default();
        for one in found {
            let mut row = Row {
                client: one.client,
                file: one.file.clone(),
                line: one.at.line,
                scope: one.scope,
                name: one.name.clone(),
                server: None,
                transport: None,
                outcome: Outcome::Added,
                is_off: false,
                disabled: None,
                remarks: Vec::new(),
                needs: BTreeMap::new(),
                sign_in: None,
            };
            match &one.read {
                Read::Skipped(reason) => row.outcome = Outcome::Skipped(reason.clone()),
                Read::Server(server) => {
                    row.transport = Some(transport(&server.entry.launch));
                    row.sign_in = SignIn::of(&server.entry, server.signs_in);
                    row.is_off = server.entry.disabled.is_some();
                    match own::is_own(&server.entry.launch, self.ports) {
                        true => row.outcome = Outcome::Skipped("it is Bridgehead itself".to_owned()),
                        false => self.place(one, server, file, &mut plan, &mut row),
                    }
                }
            }
            plan.rows.push(row);
        }
        plan
    }

    /// Finds a name for a server and adds it, unless it is there.
    fn place(&self, found: &Found, server: &Server, file: &ServersFile, plan: &mut Plan, row: &mut Row) {
        let mut entry = server.entry.clone();
        if let (EntryLaunch::Program { cwd: cwd @ None, .. }, Some(folder)) =
            (&mut entry.launch, &server.folder)
        {
            *cwd = Some(folder_from(folder, file.path()));
        }
        for name in names(&found.name, found.client) {
            if let Some(known) = plan.additions.iter_mut().find(|known| known.name == name) {
                if same(&known.found, &server.entry, Compare::Everything) {
                    let first = &mut plan.rows[known.row];
                    row.outcome = Outcome::Merged(first.client.title);
                    // One client that uses it is enough.
                    if server.entry.disabled.is_none() && known.found.disabled.is_some() {
                        known.found.disabled = None;
                        known.entry.disabled = None;
                        known.entry.disabled = refusal(&name, &known.entry, file.path(), self.world);
                        first.disabled.clone_from(&known.entry.disabled);
                    }
                    let filters =
                        |entry: &ServerEntry| (entry.tools_allowed.clone(), entry.tools_denied.clone());
                    if filters(&known.found) != filters(&server.entry) {
                        row.remarks.push(format!("its tools are filtered as in {}", first.client.title));
                    }
                    row.server = Some(name);
                    return;
                }
                continue;
            }
            if file.contains(&name) {
                let is_same = |known: ServerEntry| same(&known, &entry, Compare::WithoutSecrets);
                if file.get(&name).is_some_and(is_same) {
                    row.outcome = Outcome::Kept;
                    row.server = Some(name);
                    return;
                }
                continue;
            }
            self.add(found, server, name, entry, file, plan, row);
            return;
        }
    }

    /// The file of a client as a comment names it: a configuration that is shared with others names no home.
    fn origin(&self, file: &Path, target: &Path) -> String {
        let beside = target.parent().and_then(|folder| file.strip_prefix(folder).ok());
        let home = self.world.variables.get("HOME").map(Path::new);
        beside.map_or_else(|| short(file, home), |path| path.display().to_string())
    }

    #[expect(clippy::too_many_arguments, reason = "the end of `place`, which has all of them at hand")]
    fn add(
        &self,
        found: &Found,
        server: &Server,
        name: String,
        mut entry: ServerEntry,
        file: &ServersFile,
        plan: &mut Plan,
        row: &mut Row,
    ) {
        row.remarks.clone_from(&server.remarks);
        if name != found.name {
            let why = match ServerName::adapt(&found.name).as_str() == found.name {
                true => format!("called `{name}`, because another server is called `{}`", found.name),
                false => {
                    format!("called `{name}`, because names have only letters, digits, `_`, `.` and `-`")
                }
            };
            row.remarks.insert(0, why);
        }
        row.needs.clone_from(&server.needs);
        if self.secrets == SecretsChoice::Variables {
            leave_to_variables(&name, &mut entry, &mut row.needs);
        }
        row.needs.retain(|name, _| !self.world.variables.contains_key(name));
        entry.comment =
            Some(format!("From {}: {}", found.client.title, self.origin(&found.file, file.path())));
        if entry.disabled.is_none() {
            entry.disabled = refusal(&name, &entry, file.path(), self.world);
        }
        row.disabled.clone_from(&entry.disabled);
        if entry.disabled.is_some()
            && let Some(reason) = refusal(&name, &entry, file.path(), self.world)
        {
            row.disabled = None;
            row.outcome = Outcome::Skipped(reason);
            return;
        }
        row.server = Some(name.clone());
        plan.additions.push(Addition { name, entry, found: server.entry.clone(), row: plan.rows.len() });
    }
}

impl Plan {
    /// Whether there is anything to write.
    pub(super) fn is_empty(&self) -> bool {
        self.additions.is_empty()
    }

    /// Puts all additions into the file, which is not saved by this.
    pub(super) fn apply(&self, file: &mut ServersFile) -> Result<Applied, ServersFileError> {
        let mut applied = Applied::default();
        for Addition { name, entry, .. } in &self.additions {
            let put = file.put(name, entry)?;
            if !put.placed.is_empty() {
                applied.placed.push((name.clone(), put.placed));
            }
            if !put.exposed.is_empty() {
                applied.exposed.push((name.clone(), put.exposed));
            }
        }
        Ok(applied)
    }

    /// The variables that all additions need and that are not set.
    pub(super) fn needs(&self) -> BTreeMap<&str, Option<&str>> {
        let mut all: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        let added = self.rows.iter().filter(|row| row.outcome == Outcome::Added);
        for (name, about) in added.flat_map(|row| &row.needs) {
            let known = all.entry(name).or_default();
            *known = known.or(about.as_deref());
        }
        all
    }

    /// The rows with this outcome.
    pub(super) fn with(&self, outcome: &Outcome) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.outcome == *outcome)
    }
}

/// The names that a server may get, the best first. There is no end of them.
fn names(name: &str, client: &Client) -> impl Iterator<Item = String> {
    /// How long a name may be.
    const LONGEST: usize = 64;
    let (adapted, id) = (ServerName::adapt(name), client.id);
    // The gateway's own tools have this name.
    let first = usize::from(adapted.as_str().eq_ignore_ascii_case(OWN_SERVER));
    (first..).map(move |number| {
        let ending = match number {
            0 => String::new(),
            1 => format!("-{id}"),
            _ => format!("-{id}-{number}"),
        };
        let kept = adapted.as_str().len().min(LONGEST.saturating_sub(ending.len()));
        format!("{}{ending}", &adapted.as_str()[..kept])
    })
}

/// The transport of a server, for people and programs.
pub(super) const fn transport(launch: &EntryLaunch) -> &'static str {
    match launch {
        EntryLaunch::Program { .. } => "stdio",
        EntryLaunch::Remote { transport: Some(transport), .. } => transport.as_str(),
        EntryLaunch::Remote { transport: None, .. } => EntryTransport::Http.as_str(),
    }
}

/// A folder as a configuration in another folder names it.
fn folder_from(folder: &Path, configuration: &Path) -> String {
    match configuration.parent() == Some(folder) {
        true => ".".to_owned(),
        false => folder.display().to_string(),
    }
}

/// What counts when two entries are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compare {
    /// Two entries of clients: every value.
    Everything,
    /// An entry of our file: its secrets may be elsewhere, and its folder may be written otherwise.
    WithoutSecrets,
}

/// Whether two entries launch the same server.
fn same(known: &ServerEntry, new: &ServerEntry, compare: Compare) -> bool {
    let moved = |known: &str, new: &str, secret: bool| {
        known == new || (compare == Compare::WithoutSecrets && secret && known.contains("${"))
    };
    let launch = match (&known.launch, &new.launch) {
        (
            EntryLaunch::Program { command, args, cwd },
            EntryLaunch::Program { command: new_command, args: new_args, cwd: new_cwd },
        ) => {
            command == new_command
                && args == new_args
                && (cwd == new_cwd || cwd.is_none() || new_cwd.is_none())
        }
        (EntryLaunch::Remote { url, .. }, EntryLaunch::Remote { url: new_url, .. }) => {
            let host = url.split("${").next().unwrap_or_default();
            transport(&known.launch) == transport(&new.launch)
                && (url == new_url || (moved(url, new_url, has_secret(new_url)) && new_url.starts_with(host)))
        }
        _ => false,
    };
    let pairs = |known: &[(String, Secret)], new: &[(String, Secret)]| {
        let keys = |pairs: &[(String, Secret)]| -> BTreeSet<String> {
            pairs.iter().map(|(key, _)| key.clone()).collect()
        };
        let value = |key: &str| known.iter().find(|(other, _)| other == key).map(|(_, value)| value.expose());
        keys(known) == keys(new)
            && new.iter().all(|(key, new)| {
                value(key).is_some_and(|known| moved(known, new.expose(), looks_secret(key, new.expose())))
            })
    };
    launch
        && known.env_file == new.env_file
        && known.inherit_env == new.inherit_env
        && pairs(&known.env, &new.env)
        && pairs(&known.headers, &new.headers)
}

/// Puts references in the place of values that look like secrets. The user sets the variables.
fn leave_to_variables(server: &str, entry: &mut ServerEntry, needs: &mut BTreeMap<String, Option<String>>) {
    let is_env = |map: &str| map == "env";
    for (map, pairs) in [("env", &mut entry.env), ("headers", &mut entry.headers)] {
        for (key, value) in pairs.iter_mut() {
            if !looks_secret(key, value.expose()) || value.expose().contains("${") {
                continue;
            }
            let name = match is_env(map) && super::variables::is_name(key) {
                true => key.clone(),
                false => variable_name(server, key),
            };
            *value = Secret::new(format!("${{{name}}}"));
            needs.insert(name, Some(format!("`{map}.{key}` of `{server}`")));
        }
    }
    if let EntryLaunch::Remote { url, .. } = &mut entry.launch
        && let Some((host, _)) = secret_part(url)
    {
        let name = variable_name(server, "url");
        *url = format!("{host}${{{name}}}");
        needs.insert(name, Some(format!("the address of `{server}` after its host")));
    }
}
