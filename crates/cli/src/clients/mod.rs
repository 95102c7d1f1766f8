//! The MCP clients that Bridgehead knows: where they keep their servers, and what a connection to the gateway needs.
//!
//! [`CLIENTS`] is the one table of them. Whatever imports, connects or documents a client reads its row. This module finds
//! files and opens none of them. Variables, folder and platform come in as values, so that every path can be tested on any
//! machine.

pub(crate) mod edit;
mod places;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) use self::table::CLIENTS;

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its name on the command line.
    pub(crate) id: &'static str,
    /// Its name for people.
    pub(crate) title: &'static str,
    /// Further names on the command line.
    pub(crate) aliases: &'static [&'static str],
    /// How its main file is written.
    pub(crate) form: Form,
    /// Where the servers stand in its files, unless a file says otherwise. The first one is the place to write to.
    pub(crate) keys: Keys,
    /// The files of the user, the preferred one first. The first that exists is the one to connect; all of them are imported.
    pub(crate) user: &'static [File],
    /// The files of a project, relative to its folder.
    pub(crate) project: &'static [File],
    /// What a connection to the gateway needs.
    pub(crate) connect: Connect,
}

/// Places of the map of servers in a file: each is a path of keys. An empty path means that the file itself is the map.
pub(crate) type Keys = &'static [&'static [&'static str]];

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Strict JSON. It is read like the next one, because people write comments anyway.
    Json,
    /// JSON with comments and trailing commas.
    Jsonc,
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

/// A file that a client reads.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) root: Root,
    /// Below the root. One `*` stands for a folder's entries, as in `profiles/*/mcp.json` and `mcpServers/*.yaml`.
    pub(crate) path: &'static str,
    /// Where the servers stand, if not where the client's other files have them.
    pub(crate) keys: Option<Keys>,
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// The user's home.
    Home,
    /// `$XDG_CONFIG_HOME`, or `~/.config`.
    Config,
    /// The folder for data of applications: `~/Library/Application Support` on macOS, else like [`Root::Config`].
    App,
    /// The folder that this variable names, or this folder of the home.
    Folder(&'static str, &'static str),
    /// The variable names the file itself. Without it there is no such file.
    Variable(&'static str),
    /// The current folder.
    Project,
    /// The current folder and those above it, up to the root of the repository.
    Upward,
}

/// What a connection to the gateway needs.
#[derive(Debug)]
pub(crate) struct Connect {
    /// How its file is changed.
    pub(crate) by: By,
    /// Whether it reaches a server over HTTP, and how it takes a token then.
    pub(crate) http: Http,
    /// Whether it must be restarted to see a change.
    pub(crate) restart: bool,
    /// What it asks the user before it uses a new server, as a sentence.
    pub(crate) trust: Option<&'static str>,
}

/// How a client's file is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By this program of the client if it is installed, else by an edit of the file.
    Command(&'static str),
    /// By an edit of the file.
    Edit,
    /// By the user: the entry is printed.
    Snippet,
    /// Not at all: the product has ended. Its servers can still be imported.
    Never,
}

/// Whether a client reaches a server over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Http {
    /// No, or nobody knows: it starts a program.
    No,
    /// Yes. A header takes a variable in this form, where `X` stands for its name.
    Header(&'static str),
    /// Yes. The name of the variable that holds the token stands under this key.
    TokenVariable(&'static str),
    /// Yes, but a header takes no variable: with a token, it starts a program instead.
    WithoutToken,
}

/// The operating system, whose folders differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platform {
    Linux,
    MacOs,
}

/// Whose a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// The user's own, for all projects.
    User,
    /// A project's. Anybody may have written it.
    Project,
}

/// What decides where files are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) variables: &'a BTreeMap<String, String>,
    /// The current folder.
    pub(crate) folder: &'a Path,
    pub(crate) platform: Platform,
}

/// A file where a client may keep servers. It need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    pub(crate) scope: Scope,
    /// The folder of the project, for a project's file.
    pub(crate) project: Option<PathBuf>,
    pub(crate) keys: Keys,
}

impl Client {
    /// The client with this name on the command line. Letter case, spaces and underscores do not matter.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        let name = name.trim().to_ascii_lowercase().replace([' ', '_'], "-");
        CLIENTS.iter().find(|client| client.id == name || client.aliases.contains(&name.as_str()))
    }

    /// The files of the user, existing or not, the preferred one first; each path once.
    pub(crate) fn user_files(&self, surroundings: Surroundings<'_>) -> Vec<Candidate> {
        places::candidates(self, self.user, Scope::User, surroundings)
    }

    /// The files of the project in the current folder, existing or not, the nearest one first; each path once.
    pub(crate) fn project_files(&self, surroundings: Surroundings<'_>) -> Vec<Candidate> {
        places::candidates(self, self.project, Scope::Project, surroundings)
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Form {
    /// The form of a file, by its name.
    pub(crate) fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Self::Toml,
            Some("yaml" | "yml") => Self::Yaml,
            Some("jsonc") => Self::Jsonc,
            _ => Self::Json,
        }
    }
}

impl Platform {
    /// That of this program.
    pub(crate) const fn here() -> Self {
        if cfg!(target_os = "macos") { Self::MacOs } else { Self::Linux }
    }
}
