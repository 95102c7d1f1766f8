//! Reads the servers of one client's file: finds the map in it and hands each entry to [`entry`](super::entry).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::dialect;
use super::entry::{Read, Reader};
use super::tree::{self, Broken, Member, Node, Place};
use super::variables::{Input, Translator};
use crate::clients::{CLIENTS, Candidate, Client, Form, Keys, Root, Scope, Surroundings};

/// The largest file that is read. Claude Code keeps more than servers in its file.
const LARGEST: u64 = 256 * 1024 * 1024;

/// A file to read.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) client: &'static Client,
    pub(crate) file: Candidate,
}

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) servers: Vec<Found>,
    /// How many servers Claude Code keeps for other folders.
    pub(super) elsewhere: usize,
}

/// An entry of a client.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) client: &'static Client,
    pub(super) file: PathBuf,
    pub(super) at: Place,
    pub(super) scope: EntryScope,
    /// Its name in the file.
    pub(super) name: String,
    pub(super) read: Read,
}

/// For whom a client uses an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryScope {
    User,
    /// For the user, in one folder.
    Local,
    Project,
}

impl EntryScope {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Local => "local",
            Self::Project => "project",
        }
    }
}

/// The existing files of these clients.
pub(super) fn sources(
    clients: &[&'static Client],
    scope: Scope,
    surroundings: Surroundings<'_>,
) -> Vec<Source> {
    let files = |client: &'static Client| {
        let files = match scope {
            Scope::User => client.user_files(surroundings),
            Scope::Project => client.project_files(surroundings),
        };
        files.into_iter().map(move |file| Source { client, file })
    };
    clients
        .iter()
        .flat_map(|client| files(client))
        .filter(|source| fs::symlink_metadata(&source.file.path).is_ok())
        .collect()
}

/// The source that a named file is: by its path, by its name, or by what is in it.
pub(super) fn source_of(
    path: &Path,
    from: Option<&'static Client>,
    surroundings: Surroundings<'_>,
) -> Source {
    let path = surroundings.folder.join(path);
    let clients: Vec<&'static Client> = from.map_or_else(|| CLIENTS.iter().collect(), |client| vec![client]);
    let known =
        [Scope::User, Scope::Project].into_iter().flat_map(|scope| sources(&clients, scope, surroundings));
    let same = |source: &Source| source.file.path.canonicalize().ok() == path.canonicalize().ok();
    if let Some(source) = known.into_iter().find(|source| path.exists() && same(source)) {
        return source;
    }
    if let Some(source) = by_name(&path, &clients) {
        return source;
    }
    let client = from.unwrap_or_else(|| by_content(&path));
    let candidate = |keys| Candidate { path: path.clone(), scope: Scope::User, project: None, keys };
    Source { client, file: candidate(client.keys) }
}

/// The client whose file ends like this path, such as `.cursor/mcp.json`.
fn by_name(path: &Path, clients: &[&'static Client]) -> Option<Source> {
    clients.iter().find_map(|client| {
        client.user.iter().chain(client.project).find_map(|file| {
            let ending = match file.root {
                Root::Folder(_, in_home) => Path::new(in_home).join(file.path),
                _ => PathBuf::from(file.path),
            };
            // A bare `config.toml` could be anybody's.
            let telling = !file.path.is_empty() && !file.path.contains('*') && path.ends_with(&ending);
            let project = matches!(file.root, Root::Project | Root::Upward)
                .then(|| path.ancestors().nth(ending.components().count()).map(Path::to_owned))
                .flatten();
            let scope = if project.is_some() { Scope::Project } else { Scope::User };
            let keys = file.keys.unwrap_or(client.keys);
            telling
                .then(|| Source { client, file: Candidate { path: path.to_owned(), scope, project, keys } })
        })
    })
}

/// The client that writes its servers like this file. The last resort is the form that most of them share.
fn by_content(path: &Path) -> &'static Client {
    let root = fs::read(path).ok().and_then(|content| tree::parse(&content, Form::of(path)).ok());
    let has = |key: &str| root.as_ref().is_some_and(|root| root.get(key).is_some());
    let id = match Form::of(path) {
        Form::Toml => "codex",
        Form::Yaml if has("extensions") => "goose",
        Form::Yaml => "continue",
        Form::Json | Form::Jsonc => match () {
            () if has("mcpServers") => "claude-code",
            () if has("context_servers") => "zed",
            () if has("amp.mcpServers") => "amp",
            () if has("servers") => "vscode",
            () if has("mcp") => "opencode",
            // It takes a map without a key around it.
            () => "warp",
        },
    };
    CLIENTS.iter().find(|client| client.id == id).unwrap_or(&CLIENTS[0])
}

/// Why a file gives no servers.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// The system says why.
    Io(io::Error),
    /// It has a fault.
    Broken(Broken),
}

/// Reads a file.
pub(super) fn read(source: &Source, surroundings: Surroundings<'_>) -> Result<Content, Unreadable> {
    let content = content(&source.file.path).map_err(Unreadable::Io)?;
    read_text(source, &content, surroundings)
}

/// Reads the content of a file.
pub(super) fn read_text(
    source: &Source,
    content: &[u8],
    surroundings: Surroundings<'_>,
) -> Result<Content, Unreadable> {
    let path = &source.file.path;
    let root = tree::parse(content, Form::of(path)).map_err(Unreadable::Broken)?;
    if root.map().is_none() && !root.is_null() {
        let message = format!("it must hold a map, found {}", root.describe());
        return Err(Unreadable::Broken(Broken { at: root.at, message }));
    }
    source.file.keys.iter().try_for_each(|keys| once(&root, keys))?;
    let home = surroundings.variables.get("HOME").map(Path::new).filter(|home| home.is_absolute());
    let inputs = inputs(&root);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let dialect = dialect::of(source.client);
    let (syntax, project) = (dialect.syntax, source.file.project.as_deref());
    let translator = Translator { syntax, project, folder, inputs: &inputs, set: surroundings.variables };
    let reader = Reader { title: source.client.title, dialect, translator, home };
    let mut all = Content::default();
    if source.client.id == "claude-code" && source.file.scope == Scope::User {
        local(&root, source, surroundings.folder, reader, &mut all)?;
    }
    let scope = match source.file.scope {
        Scope::User => EntryScope::User,
        Scope::Project => EntryScope::Project,
    };
    let hidden: Vec<String> = all.servers.iter().map(|found| found.name.clone()).collect();
    if let Some(map) = servers_of(&root, source.file.keys) {
        entries(map, source, scope, reader, &mut all.servers)?;
    }
    for found in all.servers.iter_mut().filter(|found| found.scope == EntryScope::User) {
        if hidden.contains(&found.name) {
            found.read = Read::Skipped("the one for this folder is used instead".to_owned());
        }
    }
    if source.client.id == "gemini" {
        turned_off_by_gemini(&root, &mut all.servers);
    }
    Ok(all)
}

fn content(path: &Path) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    // Opening a pipe would wait for its writer.
    if !about.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if about.len() > LARGEST {
        return Err(io::Error::other("it is too large for a configuration"));
    }
    fs::read(path)
}

/// Checks that each of these keys is written once. Which one counts if a key is there twice depends on the client.
fn once(root: &Node, keys: &[&str]) -> Result<(), Unreadable> {
    let mut node = root;
    for key in keys {
        let mut members = node.map().unwrap_or_default().iter().filter(|member| member.key == *key);
        let Some(first) = members.next() else { return Ok(()) };
        if let Some(Member { at, .. }) = members.next() {
            let message = format!("`{key}` is written twice, first in line {}; keep one", first.at.line);
            return Err(Unreadable::Broken(Broken { at: *at, message }));
        }
        node = &first.node;
    }
    Ok(())
}

/// The map of servers, at the first of these places that holds something.
fn servers_of(root: &Node, keys: Keys) -> Option<&Node> {
    let is_server = |member: &Member| {
        ["command", "url", "serverUrl", "httpUrl"].iter().any(|key| member.node.get(key).is_some())
    };
    let at = |path: &&'static [&'static str]| match path.is_empty() {
        true => root.map().is_some_and(|members| members.iter().any(is_server)).then_some(root),
        false => root.find(path).filter(|node| !node.is_null()),
    };
    let found = keys.iter().find_map(at)?;
    // OpenCode is about to move its servers one level deeper. A server may have this name, too.
    let deeper = found.get("servers").filter(|deeper| {
        keys.contains(&["mcp"].as_slice())
            && deeper.map().is_some()
            && !["type", "command", "url", "enabled"]
                .iter()
                .any(|key| deeper.get(key).is_some_and(|one| one.map().is_none()))
    });
    Some(deeper.unwrap_or(found))
}

/// Reads all entries of a map, or of a list whose items have a `name`.
fn entries(
    map: &Node,
    source: &Source,
    scope: EntryScope,
    reader: Reader<'_>,
    all: &mut Vec<Found>,
) -> Result<(), Unreadable> {
    let mut add = |name: &str, at: Place, read: Read| {
        let file = source.file.path.clone();
        all.push(Found { client: source.client, file, at, scope, name: name.to_owned(), read });
    };
    if let (Some(items), "continue") = (map.list(), source.client.id) {
        for item in items {
            let named = item.get("name").and_then(Node::text);
            let name = named.or_else(|| item.get("uses")?.text()).unwrap_or("unnamed");
            add(name, item.at, reader.read(item));
        }
        return Ok(());
    }
    let Some(members) = map.map() else {
        let message = format!("its servers must be a map, found {}", map.describe());
        return Err(Unreadable::Broken(Broken { at: map.at, message }));
    };
    for (index, member) in members.iter().enumerate() {
        let again = members[index + 1..].iter().rev().find(|later| later.key == member.key);
        let read = match again {
            Some(later) => Read::Skipped(format!(
                "it is written again in line {}, and the last one counts",
                later.at.line
            )),
            None => reader.read(&member.node),
        };
        add(&member.key, member.at, read);
    }
    Ok(())
}

/// Claude Code's servers for one folder: those for the current one, or for a folder above it.
fn local(
    root: &Node,
    source: &Source,
    current: &Path,
    reader: Reader<'_>,
    all: &mut Content,
) -> Result<(), Unreadable> {
    once(root, &["projects"])?;
    let projects = root.get("projects").and_then(Node::map).unwrap_or_default();
    let mut here = Vec::new();
    for project in projects {
        let Some(map) = project.node.get("mcpServers").filter(|map| !map.is_null()) else {
            continue;
        };
        let folder = PathBuf::from(&project.key);
        match folder.is_absolute() && current.starts_with(&folder) {
            true => {
                once(&project.node, &["mcpServers"])?;
                here.push((folder, map));
            }
            false => all.elsewhere += map.map().map_or(0, <[Member]>::len),
        }
    }
    // The nearest folder wins.
    here.sort_by_key(|(folder, _)| std::cmp::Reverse(folder.components().count()));
    for (folder, map) in here {
        let mut found = Vec::new();
        let translator = Translator { project: Some(&folder), ..reader.translator };
        entries(map, source, EntryScope::Local, Reader { translator, ..reader }, &mut found)?;
        found.retain(|one| !all.servers.iter().any(|known| known.name == one.name));
        all.servers.extend(found);
    }
    Ok(())
}

/// Gemini CLI turns servers off in a list beside them.
fn turned_off_by_gemini(root: &Node, servers: &mut [Found]) {
    let names = |key: &str| -> Option<Vec<&str>> {
        Some(root.find(&["mcp", key])?.list()?.iter().filter_map(Node::text).collect())
    };
    let (allowed, excluded) = (names("allowed"), names("excluded").unwrap_or_default());
    for found in servers {
        let name = found.name.as_str();
        let off =
            excluded.contains(&name) || allowed.as_ref().is_some_and(|allowed| !allowed.contains(&name));
        if let (true, Read::Server(server)) = (off, &mut found.read) {
            server.entry.disabled.get_or_insert_with(|| "turned off in Gemini CLI".to_owned());
        }
    }
}

/// The questions that values refer to.
fn inputs(root: &Node) -> BTreeMap<String, Input> {
    let lists = [root.get("inputs"), root.find(&["mcp", "inputs"])];
    let items = lists.into_iter().flatten().filter_map(Node::list).flatten();
    items
        .filter_map(|item| {
            let text = |key: &str| item.get(key).and_then(Node::scalar);
            let secret = item.get("password").and_then(Node::flag) == Some(true);
            let default = text("default").filter(|_| !secret);
            Some((text("id")?, Input { description: text("description"), default }))
        })
        .collect()
}
