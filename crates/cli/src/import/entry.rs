//! Reads one server of a client's file into our neutral form.
//!
//! The keys of all clients are read here, because none has two meanings. What has no equal turns the server off, with the
//! reason; what merely does not matter to a gateway (icons, approvals) is left out in silence; anything else is left out and
//! named. Values are translated, never resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridgehead::config::Secret;

use super::dialect::{Dialect, Skips, Within};
use super::tree::{Member, Node};
use super::variables::{NoEqual, Syntax, Translator, is_name};
use crate::servers_file::{EntryLaunch, EntryTransport, ServerEntry};

/// What an entry of a client is for us.
#[derive(Debug)]
pub(super) enum Read {
    /// A server.
    Server(Box<Server>),
    /// No server, or one that cannot be imported; why.
    Skipped(String),
}

/// A server as it was read.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) entry: ServerEntry,
    /// What the user should know.
    pub(super) remarks: Vec<String>,
    /// The variables that it refers to, and what is known about them.
    pub(super) needs: BTreeMap<String, Option<String>>,
    /// The folder that its client runs it in, if its own entry names none.
    pub(super) folder: Option<PathBuf>,
    /// Whether its client signs in to it by itself.
    pub(super) signs_in: bool,
}

/// What the reading of a server depends on.
#[derive(Clone, Copy)]
pub(super) struct Reader<'r> {
    /// The client, for people.
    pub(super) title: &'static str,
    pub(super) dialect: Dialect,
    pub(super) translator: Translator<'r>,
    /// The home of the user.
    pub(super) home: Option<&'r Path>,
}

/// Keys that a gateway has no use for, and nobody misses.
const HARMLESS: [&str; 33] = [
    "$schema",
    "alwaysAllow",
    "alwaysLoad",
    "autoApprove",
    "auto_approve",
    "autoStart",
    "bundled",
    "connectionTimeout",
    "deferTools",
    "description",
    "dev",
    "disabledAutoApprove",
    "displayName",
    "display_name",
    "extensionName",
    "from",
    "gallery",
    "icon",
    "id",
    "isActive",
    "metadata",
    "name",
    "registryUrl",
    "remote",
    "scope",
    "settings",
    "source",
    "start_on_launch",
    "startup_timeout_ms",
    "startup_timeout_sec",
    "title",
    "trust",
    "version",
];

/// Keys of credentials that a client gets by itself.
const SIGN_IN: [&str; 5] = ["auth", "authProviderType", "oauth", "oauth_resource", "targetAudience"];

/// Headers that the gateway sets itself.
const SET_BY_GATEWAY: [&str; 10] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The longest time limit of a call that fits every gateway: its own default for a whole call.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// The kind of a server.
enum Kind {
    Program,
    Remote(Option<EntryTransport>),
    Unknown,
}

/// One server while it is read.
struct Draft<'d> {
    reader: Reader<'d>,
    members: Vec<&'d Member>,
    used: BTreeSet<&'static str>,
    remarks: Vec<String>,
    needs: BTreeMap<String, Option<String>>,
    /// Why it is turned off.
    off: Option<String>,
    signs_in: bool,
    /// The names of the entry's own variables.
    own: BTreeSet<&'d str>,
}

impl Reader<'_> {
    /// Reads a server.
    pub(super) fn read(&self, node: &Node) -> Read {
        let Some(members) = node.map() else {
            return Read::Skipped(format!("an entry must be a map, found {}", node.describe()));
        };
        if let Some(reason) = self.no_server(node) {
            return Read::Skipped(reason);
        }
        // Cline writes what belongs to the transport one level deeper, Zed once did so with the command.
        let nested = ["transport", "command"].into_iter().filter_map(|key| node.get(key)?.map()).flatten();
        let nested: Vec<&Member> = nested.collect();
        let draft = Draft {
            reader: *self,
            members: members.iter().chain(nested).collect(),
            used: BTreeSet::new(),
            remarks: Vec::new(),
            needs: BTreeMap::new(),
            off: None,
            signs_in: false,
            own: BTreeSet::new(),
        };
        draft.read()
    }

    /// Why an entry is no server.
    fn no_server(&self, node: &Node) -> Option<String> {
        let text = |key: &str| node.get(key).and_then(Node::text);
        let has = |keys: &[&str]| keys.iter().any(|key| node.get(key).is_some());
        match self.dialect.skips {
            Skips::Extensions if text("source") == Some("extension") || !has(&["command", "url"]) => {
                Some(format!("it is an extension of {}", self.title))
            }
            Skips::Builtins => {
                let word = text("type").unwrap_or_default();
                let built_in = ["builtin", "platform", "frontend", "inline_python"].contains(&word)
                    || node.get("bundled").and_then(Node::flag) == Some(true);
                built_in.then(|| format!("it is built into {}", self.title))
            }
            Skips::Toggles if !has(&["command", "url"]) && has(&["enabled", "disabled"]) => {
                Some("it only turns a server of another file on or off".to_owned())
            }
            Skips::Packages if has(&["uses"]) && !has(&["command", "url"]) => {
                Some(format!("it names a package that only {} can fetch", self.title))
            }
            _ => None,
        }
    }
}

impl<'d> Draft<'d> {
    fn read(mut self) -> Read {
        let env_maps = ["env", "environment", "envs"];
        self.own = env_maps
            .iter()
            .filter_map(|key| self.look(key)?.map())
            .flatten()
            .map(|one| one.key.as_str())
            .collect();
        let kind = self.kind();
        let launch = match kind {
            Kind::Program => self.program(),
            Kind::Remote(transport) => self.remote(transport),
            Kind::Unknown => Err("it has neither a command nor an address".to_owned()),
        };
        let launch = match launch {
            Ok(launch) => launch,
            Err(reason) => return Read::Skipped(reason),
        };
        let is_program = matches!(launch, EntryLaunch::Program { .. });
        let mut entry = ServerEntry::new(launch);
        match is_program {
            true => {
                entry.env = self.env();
                // Codex passes them on if they are set, and so does the gateway.
                entry.inherit_env = self.names("env_vars");
                entry.env_file = self.path(&["envFile", "env_file"]);
            }
            false => entry.headers = self.headers(),
        }
        self.limits(&mut entry);
        self.tools(&mut entry);
        self.left_out(is_program);
        if self.flag("disabled") == Some(true) || self.flag("enabled") == Some(false) {
            self.off = Some(format!("turned off in {}", self.reader.title));
        }
        entry.disabled = self.off;
        let has_folder = !matches!(entry.launch, EntryLaunch::Program { cwd: None, .. });
        let project = self.reader.translator.project;
        let folder = project.filter(|_| !has_folder).map(Path::to_owned);
        let Self { remarks, needs, signs_in, .. } = self;
        Read::Server(Box::new(Server { entry, remarks, needs, folder, signs_in }))
    }

    /// The value under a key, which stays unread. `null` counts as nothing.
    fn look(&self, key: &str) -> Option<&'d Node> {
        let found = self.members.iter().rev().find(|member| member.key == key).map(|member| &member.node);
        found.filter(|node| !node.is_null())
    }

    /// The value under the first of these keys that is there.
    fn take(&mut self, keys: &[&'static str]) -> Option<&'d Node> {
        self.used.extend(keys);
        keys.iter().find_map(|key| self.look(key))
    }

    fn flag(&mut self, key: &'static str) -> Option<bool> {
        self.take(&[key]).and_then(Node::flag)
    }

    fn kind(&mut self) -> Kind {
        let has = |keys: &[&str]| keys.iter().any(|key| self.look(key).is_some());
        let (command, url) = (has(&["command", "cmd"]), has(&["url", "serverUrl", "httpUrl", "uri"]));
        let http_url = has(&["httpUrl"]);
        let word = ["type", "transport", "transportType"].iter().find_map(|key| self.look(key)?.text());
        self.used.extend(["type", "transport", "transportType"]);
        let word = word.unwrap_or_default();
        match (EntryTransport::read(word), word) {
            (Some(transport), _) if url => Kind::Remote(Some(transport)),
            (None, "stdio" | "local") if command => Kind::Program,
            (None, "remote") if url => Kind::Remote(None),
            _ if command => Kind::Program,
            _ if url => {
                if !["", "remote", "stdio", "local"].contains(&word) {
                    self.remarks.push(format!(
                        "its kind `{word}` is unknown, so the gateway finds out the transport"
                    ));
                }
                Kind::Remote(if http_url { Some(EntryTransport::Http) } else { self.reader.dialect.untyped })
            }
            _ => Kind::Unknown,
        }
    }

    fn program(&mut self) -> Result<EntryLaunch, String> {
        let command = self.take(&["command", "cmd", "path"]);
        // Zed's older form.
        let command = command.filter(|node| node.map().is_none()).or_else(|| self.look("path"));
        let mut words: Vec<&Node> = match command {
            Some(node) => node.list().map_or_else(|| vec![node], |items| items.iter().collect()),
            None => Vec::new(),
        };
        match self.take(&["args", "arguments"]) {
            Some(node) if node.list().is_none() => {
                self.turn_off(&format!("its arguments must be a list, found {}", node.describe()));
                words.push(node);
            }
            list => words.extend(list.and_then(Node::list).unwrap_or_default()),
        }
        let words: Option<Vec<String>> = words.into_iter().map(Node::scalar).collect();
        let Some(words) = words else { return Err("its command and arguments must be texts".to_owned()) };
        let mut words = words.into_iter();
        let command = words.next().filter(|command| !command.trim().is_empty());
        let Some(command) = command else { return Err("its command is empty".to_owned()) };
        let args: Vec<String> = words.collect();
        let command = self.value("command", &command, Within::All);
        let args = args.iter().map(|arg| self.value("args", arg, Within::All)).collect();
        let cwd = self.path(&["cwd", "working_directory", "workingDirectory"]);
        Ok(EntryLaunch::Program { command, args, cwd })
    }

    fn remote(&mut self, transport: Option<EntryTransport>) -> Result<EntryLaunch, String> {
        let url = self.take(&["httpUrl", "url", "serverUrl", "uri"]).and_then(Node::scalar);
        let url =
            url.filter(|url| !url.trim().is_empty()).ok_or_else(|| "its address is empty".to_owned())?;
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).unwrap_or_default();
        match scheme.as_str() {
            "unix" => self.turn_off("its address is a Unix socket, which the gateway cannot reach"),
            "pipe" => self.turn_off("its address is a named pipe of Windows"),
            _ => {}
        }
        let transport = match scheme.as_str() {
            "ws" | "wss" => Some(EntryTransport::WebSocket),
            _ => transport,
        };
        let url = self.value("url", &url, Within::Remote);
        Ok(EntryLaunch::Remote { url, transport })
    }

    fn env(&mut self) -> Vec<(String, Secret)> {
        let mut env = Vec::new();
        for key in ["env", "environment", "envs"] {
            let Some(members) = self.take(&[key]).and_then(Node::map) else { continue };
            for member in members {
                let Some(value) = member.node.scalar() else {
                    // `null` takes a variable away from what a client passes on; a gateway passes little on.
                    if !member.node.is_null() {
                        self.remarks.push(format!(
                            "left out: `{key}.{}`, which is {}",
                            member.key,
                            member.node.describe()
                        ));
                    }
                    continue;
                };
                let value = self.value(&format!("env.{}", member.key), &value, Within::Env);
                put(&mut env, &member.key, value);
            }
        }
        for name in self.names("env_keys") {
            if !env.iter().any(|(known, _)| *known == name) {
                put(&mut env, &name, format!("${{{name}}}"));
                self.needs.insert(name, Some(format!("kept in the keyring of {}", self.reader.title)));
            }
        }
        env
    }

    /// Names of variables in a list, as texts or as maps with a `name`.
    fn names(&mut self, key: &'static str) -> Vec<String> {
        let by_name = |node: &Node| node.text().or_else(|| node.get("name")?.text()).map(str::to_owned);
        let items = self.take(&[key]).and_then(Node::list).unwrap_or_default();
        items.iter().filter_map(by_name).filter(|name| is_name(name)).collect()
    }

    fn headers(&mut self) -> Vec<(String, Secret)> {
        let mut headers = Vec::new();
        let request = self.take(&["requestOptions"]).and_then(|options| options.get("headers"));
        let maps = [self.take(&["headers"]), self.take(&["http_headers"]), request];
        for member in maps.into_iter().flatten().filter_map(Node::map).flatten() {
            let Some(value) = member.node.scalar() else { continue };
            let value = self.value(&format!("headers.{}", member.key), &value, Within::Remote);
            self.header(&mut headers, &member.key, value);
        }
        for member in self.take(&["env_http_headers"]).and_then(Node::map).unwrap_or_default() {
            if let Some(name) = member.node.text().filter(|name| is_name(name)) {
                self.needs.insert(name.to_owned(), None);
                self.header(&mut headers, &member.key, format!("${{{name}}}"));
            }
        }
        let token = self.take(&["bearer_token_env_var"]).and_then(Node::text);
        if let Some(name) = token.filter(|name| is_name(name)) {
            self.needs.insert(name.to_owned(), Some("a token".to_owned()));
            self.header(&mut headers, "Authorization", format!("Bearer ${{{name}}}"));
        }
        if let Some(key) = self.take(&["apiKey"]).and_then(Node::scalar) {
            let key = self.value("apiKey", &key, Within::Remote);
            self.header(&mut headers, "Authorization", format!("Bearer {key}"));
        }
        headers
    }

    /// Adds a header, unless the gateway sets it.
    fn header(&mut self, headers: &mut Vec<(String, Secret)>, name: &str, value: String) {
        let lower = name.to_ascii_lowercase();
        let by_gateway = SET_BY_GATEWAY.contains(&lower.as_str())
            || lower.starts_with("mcp-")
            || lower.starts_with("sec-websocket-");
        match by_gateway {
            true => {
                self.remarks.push(format!("left out: the header `{name}`, which the gateway sets itself"));
            }
            false => put(headers, name, value),
        }
    }

    fn limits(&mut self, entry: &mut ServerEntry) {
        let seconds = self.take(&["tool_timeout_sec"]).and_then(|node| number(node, 1000));
        let unit = self.reader.dialect.timeout;
        let plain = self.take(&["timeout"]).and_then(|node| number(node, unit?));
        let Some(limit) = seconds.or(plain) else { return };
        if limit > LONGEST {
            self.remarks.push("its time limit is shortened to one hour".to_owned());
        }
        entry.timeout = Some(limit.min(LONGEST));
    }

    fn tools(&mut self, entry: &mut ServerEntry) {
        // Gemini lets arguments follow the name.
        let names = |node: &Node| -> Option<Vec<String>> {
            let items = node.list()?.iter().filter_map(Node::text);
            Some(items.map(|name| name.split('(').next().unwrap_or(name).trim().to_owned()).collect())
        };
        let mut allowed = Vec::new();
        for key in [
            "includeTools",
            "include_tools",
            "enabledTools",
            "enabled_tools",
            "allowedTools",
            "available_tools",
            "tools",
        ] {
            let Some(found) = self.take(&[key]).and_then(names) else { continue };
            let is_all = found.iter().any(|name| name == "*")
                || (found.is_empty() && !["tools", "enabled_tools", "enabledTools"].contains(&key));
            if !is_all {
                allowed.push(found);
            }
        }
        entry.tools_allowed = allowed.into_iter().next();
        for key in ["excludeTools", "exclude_tools", "disabledTools", "disabled_tools"] {
            entry.tools_denied.extend(self.take(&[key]).and_then(names).unwrap_or_default());
        }
    }

    /// Looks at the keys that nobody has read.
    fn left_out(&mut self, is_program: bool) {
        self.used.extend(["enabled", "disabled"]);
        let helper =
            ["headersHelper", "http_headers_helper"].into_iter().find(|key| self.look(key).is_some());
        if let Some(key) = helper {
            self.turn_off(&format!("`{key}` runs a program for its headers, which has no equal"));
        }
        let signs_in =
            SIGN_IN.iter().any(|key| self.look(key).is_some_and(|node| node.flag() != Some(false)));
        if signs_in && !is_program {
            let title = self.reader.title;
            self.remarks.push(format!("{title} signs in to it; the gateway needs a token under `headers`"));
            self.signs_in = true;
        }
        let known = |key: &str| {
            self.used.contains(key)
                || HARMLESS.contains(&key)
                || SIGN_IN.contains(&key)
                || helper == Some(key)
                // What belongs to the other kind of server has no meaning here.
                || ["headers", "args", "env", "environment", "envs", "cwd", "path"].contains(&key)
        };
        let says_something = |node: &Node| !node.is_null() && node.text() != Some("");
        let members = self.members.iter().filter(|member| says_something(&member.node));
        let mut unknown: Vec<&str> =
            members.map(|member| member.key.as_str()).filter(|key| !known(key)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if !unknown.is_empty() {
            let named: Vec<String> = unknown.iter().map(|key| format!("`{key}`")).collect();
            self.remarks.push(format!("left out: {}", named.join(", ")));
        }
    }

    /// A path. A relative one begins at the project, or at home.
    fn path(&mut self, keys: &[&'static str]) -> Option<String> {
        let path = self.take(keys).and_then(Node::text).filter(|path| !path.trim().is_empty())?.to_owned();
        let path = self.value(keys.first().unwrap_or(&""), &path, Within::All);
        if path.starts_with(['/', '~']) || path.starts_with("${") {
            return Some(path);
        }
        let base = self.reader.translator.project.or(self.reader.home);
        Some(base.map_or(path.clone(), |base| base.join(path.trim_start_matches("./")).display().to_string()))
    }

    /// A translated value. One without an equal stays as a text, and turns the server off.
    fn value(&mut self, key: &str, text: &str, field: Within) -> String {
        let replaces = match self.reader.dialect.within {
            Within::All => true,
            within => within == field,
        };
        let mut translator = self.reader.translator;
        translator.syntax = if replaces { self.reader.dialect.syntax } else { Syntax::NONE };
        // A program that gets a variable of this name replaces the reference itself, as `mcp-remote` does.
        let shadowed = |name: &str| key == "args" && self.own.contains(name);
        match translator.translate(text) {
            Ok(found) if found.needs.keys().any(|name| shadowed(name)) => text.replace("${", "$${"),
            Ok(found) => {
                self.needs.extend(found.needs);
                found.text
            }
            Err(NoEqual(reason)) => {
                self.turn_off(&format!("`{key}`: {reason}"));
                text.replace("${", "$${")
            }
        }
    }

    /// Turns the server off; the first reason counts.
    fn turn_off(&mut self, reason: &str) {
        self.off.get_or_insert_with(|| reason.to_owned());
    }
}

/// Sets a value; the last one of a name counts.
fn put(pairs: &mut Vec<(String, Secret)>, name: &str, value: String) {
    pairs.retain(|(known, _)| known != name);
    pairs.push((name.to_owned(), Secret::new(value)));
}

/// A time limit; `None` if it is no positive number.
fn number(node: &Node, unit: u32) -> Option<Duration> {
    let count: f64 = node.scalar()?.trim().parse().ok()?;
    let limit = Duration::try_from_secs_f64(count * f64::from(unit) / 1000.0).ok()?;
    (limit >= Duration::from_millis(1))
        .then(|| Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)))
}
