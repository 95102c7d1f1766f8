//! One server as it is written into `bridgehead.toml`: neutral, and not checked yet.

use std::fmt;
use std::time::Duration;

use bridgehead::config::Secret;
use toml_edit::{Array, InlineTable, Item, Table, TableLike, Value};

/// A line of a table that is not longer than this holds a whole map.
const LINE: usize = 100;

/// A server to write, or as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerEntry {
    /// How it is reached.
    pub(crate) launch: EntryLaunch,
    /// Variables of a program, in order.
    pub(crate) env: Vec<(String, Secret)>,
    /// Names of further variables that a program inherits from the gateway.
    pub(crate) inherit_env: Vec<String>,
    /// Headers of a remote server, in order.
    pub(crate) headers: Vec<(String, Secret)>,
    /// A file with further variables.
    pub(crate) env_file: Option<String>,
    /// Why it is turned off; may be empty. `None` if it is on.
    pub(crate) disabled: Option<String>,
    /// Patterns of the only tools that are offered.
    pub(crate) tools_allowed: Option<Vec<String>>,
    /// Patterns of tools that are not offered.
    pub(crate) tools_denied: Vec<String>,
    /// Whether its tools' names carry its name.
    pub(crate) prefix: Option<bool>,
    /// How long a call may stay silent.
    pub(crate) timeout: Option<Duration>,
    /// What the lines above the server say, without `#`.
    pub(crate) comment: Option<String>,
}

/// How a server is reached.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum EntryLaunch {
    /// A program to run.
    Program { command: String, args: Vec<String>, cwd: Option<String> },
    /// An address; without a transport, the gateway finds out which one the server speaks.
    Remote { url: String, transport: Option<EntryTransport> },
}

/// The transport of a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryTransport {
    Http,
    Sse,
    WebSocket,
}

impl EntryTransport {
    /// The value of `type`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Sse => "sse",
            Self::WebSocket => "websocket",
        }
    }

    /// What a value of `type` means, in every spelling that clients use.
    pub(crate) fn read(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "http" | "streamable-http" | "streamablehttp" | "streamable_http" => Some(Self::Http),
            "sse" => Some(Self::Sse),
            "ws" | "websocket" => Some(Self::WebSocket),
            _ => None,
        }
    }
}

impl ServerEntry {
    /// An entry with nothing but the way it is reached.
    pub(crate) const fn new(launch: EntryLaunch) -> Self {
        Self {
            launch,
            env: Vec::new(),
            inherit_env: Vec::new(),
            headers: Vec::new(),
            env_file: None,
            disabled: None,
            tools_allowed: None,
            tools_denied: Vec::new(),
            prefix: None,
            timeout: None,
            comment: None,
        }
    }

    /// The entry that a table of `bridgehead.toml` stands for. Keys that an entry does not have are left out.
    pub(super) fn read(table: &dyn TableLike) -> Option<Self> {
        let text = |key: &str| find(table, key)?.as_str().map(str::to_owned);
        let list = |key: &str| find(table, key).and_then(Item::as_array).map(texts);
        let map = |key: &str| {
            let entries = find(table, key).and_then(Item::as_table_like);
            let pairs = entries.into_iter().flat_map(|entries| entries.iter());
            pairs.map(|(name, item)| (name.to_owned(), Secret::new(scalar(item)))).collect()
        };
        let launch = match (text("command"), text("url")) {
            (Some(command), _) => {
                EntryLaunch::Program { command, args: list("args").unwrap_or_default(), cwd: text("cwd") }
            }
            (None, Some(url)) => EntryLaunch::Remote {
                url,
                transport: text("type").and_then(|word| EntryTransport::read(&word)),
            },
            (None, None) => return None,
        };
        let flag = |key: &str| find(table, key).and_then(Item::as_bool);
        let is_off = flag("disabled") == Some(true) || flag("enabled") == Some(false);
        let reason = || {
            let decor = find(table, "disabled")?.as_value()?.decor().suffix()?.as_str()?;
            decor.trim().strip_prefix('#').map(|reason| reason.trim().to_owned())
        };
        let timeout = find(table, "request_timeout_ms").and_then(Item::as_integer);
        Some(Self {
            env: map("env"),
            inherit_env: list("inherit_env").unwrap_or_default(),
            headers: map("headers"),
            env_file: text("env_file"),
            disabled: is_off.then(|| reason().unwrap_or_default()),
            tools_allowed: list("tools_allowed"),
            tools_denied: list("tools_denied").unwrap_or_default(),
            prefix: flag("prefix"),
            timeout: timeout.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis),
            ..Self::new(launch)
        })
    }

    /// Its table, without the comment.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        match &self.launch {
            EntryLaunch::Program { command, args, cwd } => {
                put(&mut table, "command", command.as_str());
                if !args.is_empty() {
                    put(&mut table, "args", args.iter().collect::<Array>());
                }
                if let Some(cwd) = cwd {
                    put(&mut table, "cwd", cwd.as_str());
                }
            }
            EntryLaunch::Remote { url, transport } => {
                if let Some(transport) = transport {
                    put(&mut table, "type", transport.as_str());
                }
                put(&mut table, "url", url.as_str());
            }
        }
        if let Some(file) = &self.env_file {
            put(&mut table, "env_file", file.as_str());
        }
        if !self.inherit_env.is_empty() {
            put(&mut table, "inherit_env", self.inherit_env.iter().collect::<Array>());
        }
        if let Some(reason) = &self.disabled {
            let mut off = Value::from(true);
            if !reason.trim().is_empty() {
                off.decor_mut().set_suffix(format!(" # {}", one_line(reason)));
            }
            table.insert("disabled", Item::Value(off));
        }
        if let Some(prefix) = self.prefix {
            put(&mut table, "prefix", prefix);
        }
        if let Some(timeout) = self.timeout {
            put(&mut table, "request_timeout_ms", i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
        }
        if let Some(allowed) = &self.tools_allowed {
            put(&mut table, "tools_allowed", allowed.iter().collect::<Array>());
        }
        if !self.tools_denied.is_empty() {
            put(&mut table, "tools_denied", self.tools_denied.iter().collect::<Array>());
        }
        // A table of its own ends the values of the server, so those come last.
        let maps = [("env", &self.env), ("headers", &self.headers)];
        let (long, short): (Vec<_>, Vec<_>) = maps
            .into_iter()
            .filter(|(_, pairs)| !pairs.is_empty())
            .partition(|(key, pairs)| key.len() + inline(pairs).to_string().len() > LINE);
        for (key, pairs) in short {
            put(&mut table, key, inline(pairs));
        }
        for (key, pairs) in long {
            table.insert(key, Item::Table(inline(pairs).into_table()));
        }
        table
    }

    /// The lines of its comment, each with `#`.
    pub(super) fn comment_lines(&self) -> String {
        let lines = self.comment.as_deref().unwrap_or_default().lines();
        lines.map(|line| format!("# {}", one_line(line)).trim_end().to_owned() + "\n").collect()
    }
}

impl fmt::Debug for EntryLaunch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments and addresses may hold secrets.
        match self {
            Self::Program { command, args, cwd } => {
                let args = format_args!("[{} of them]", args.len());
                formatter
                    .debug_struct("Program")
                    .field("command", command)
                    .field("args", &args)
                    .field("cwd", cwd)
                    .finish()
            }
            Self::Remote { transport, .. } => {
                formatter.debug_struct("Remote").field("transport", transport).finish_non_exhaustive()
            }
        }
    }
}

/// A key in either of its spellings, snake_case and camelCase.
pub(super) fn find<'t>(table: &'t dyn TableLike, key: &str) -> Option<&'t Item> {
    table.get(key).or_else(|| table.get(&camel(key)))
}

/// A key in camelCase.
pub(super) fn camel(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let mut letters = word.chars();
        let head = letters.next().map(|head| head.to_ascii_uppercase());
        name + &head.into_iter().chain(letters).collect::<String>()
    })
}

fn put(table: &mut Table, key: &str, value: impl Into<Value>) {
    table.insert(key, Item::Value(value.into()));
}

fn inline(pairs: &[(String, Secret)]) -> InlineTable {
    pairs.iter().map(|(name, value)| (name.as_str(), value.expose())).collect()
}

fn texts(array: &Array) -> Vec<String> {
    array.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

/// The text of a value; a number or a flag as it is written.
fn scalar(item: &Item) -> String {
    match item.as_str() {
        Some(text) => text.to_owned(),
        None => item.to_string().trim().to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split(char::is_control).collect::<Vec<_>>().join(" ").trim().to_owned()
}
