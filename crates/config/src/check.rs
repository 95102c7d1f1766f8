//! Turns the parsed file into the checked configuration: what its keys mean together.
//!
//! [`crate::section`] has already checked kinds and ranges. Nothing after this module validates again.

mod api_keys;
mod audit;
mod auth;
mod client;
mod covered;
mod listeners;
mod reach;
mod rules;
mod sandbox;
mod secrets;
mod server;

pub(crate) use client::{SERVER_MAPS, client};

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::covered::Besides;
use self::reach::Placed;
use self::rules::Known;
use crate::access::{KeyRows, OWN_SERVER};
use crate::configuration::{Config, Source};
use crate::environment::{Environment, is_bearer_token};
use crate::interpolate::{self, Reference, Refusal};
use crate::keys::KeyTable;
use crate::mask::{has_random, is_variable_name};
use crate::secret::Secret;
use crate::secrets::Secrets;
use crate::section::{Findings, Section};
use crate::server::{Queue, ServerName};
use crate::settings::{
    GatewaySettings, HttpSettings, LocalUsers, Prefix, ResourceUris, SecretSettings, TokenSource,
};
use crate::tree::{Entry, Node, Span, Value};

/// The file's surroundings: environment and folders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World<'w> {
    pub(crate) environment: &'w Environment,
    /// The file's own folder, from which its relative paths start.
    pub(crate) base: &'w Path,
    /// The folder in which servers without a `cwd` run.
    pub(crate) cwd: &'w Path,
    /// The secrets that its values may refer to; `None` for a client's file, whose values refer to none.
    pub(crate) secrets: Option<&'w Secrets>,
}

impl World<'_> {
    /// What a reference to a secret stands for.
    fn secret(self, reference: &Reference) -> Result<String, Refusal> {
        let Some(secrets) = self.secrets else { return Err(Refusal::OnlyInOurs(reference.kind())) };
        secrets.get(reference, self.environment, self.base)
    }

    /// Fills in the variables and secrets of a value, and adds the names of variables of the environment to `interpolated`.
    fn fill(self, text: &str, interpolated: &mut BTreeSet<String>) -> Result<String, Refusal> {
        let own = |name: &str| self.secrets?.variable(name, self.environment);
        let secret = |reference: &Reference| self.secret(reference);
        let filled = interpolate::fill(text, own, self.environment.variables(), secret, interpolated);
        filled.map_err(|refusal| match (refusal, self.secrets.and_then(Secrets::fault)) {
            (Refusal::Unset(_), Some(fault)) => fault,
            (refusal, _) => refusal,
        })
    }
}

/// Checks a native file.
pub(crate) fn native(root: &Node, world: World<'_>, findings: &mut Findings) -> Config {
    let Value::Table(entries) = &root.value else { return Config::demo() };
    let root = Section::read(KeyTable::Root, entries, findings);
    let (settings, secrets) = secrets::read(&root, world, findings);
    let world = World { secrets: Some(&secrets), ..world };
    let mut gateway = gateway(&Section::read(KeyTable::Gateway, root.table("gateway"), findings), findings);
    let door = Section::read(KeyTable::Http, root.table("http"), findings);
    let mut http = http(&door, world, findings);
    http.allow_group_read = settings.allow_group_read;
    let bounds = Section::read(KeyTable::Bounds, root.table("limits"), findings);
    http.head_within = duration(&bounds, "head_ms", http.head_within);
    gateway.held_bytes = bytes(&bounds, "held_mb", gateway.held_bytes);
    gateway.held_per_peer_bytes = bytes(&bounds, "held_per_peer_mb", gateway.held_per_peer_bytes);
    gateway.views_bytes = bytes(&bounds, "views_mb", gateway.views_bytes);
    http.body_within = duration(&bounds, "body_ms", http.body_within);
    let audit = audit::read(&Section::read(KeyTable::Audit, root.table("audit"), findings), world, findings);

    let queues = queues(&root, findings);
    let mut placed = Vec::new();
    let mut disabled = Vec::new();
    let mut interpolated = BTreeSet::new();
    let mut auth = auth::read(root.entry("auth"), world, &mut interpolated, findings);
    auth.allow_group_read = settings.allow_group_read;
    http.listeners = listeners::read(&door, &http, &auth, world, findings);
    listeners::any_origin(&door, &http, &auth, findings);
    listeners::nobody(&root, &http, &auth, world, findings);
    for entry in root.table("servers") {
        let name = entry.key.parse().unwrap_or_else(|error| {
            findings.mistake(
                findings
                    .diagnostic(format!("{error}"), &entry.key_span)
                    .help("use 1 to 64 letters, digits, `_`, `.` and `-`"),
            );
            ServerName::adapt(&entry.key)
        });
        let read = server::read(name, entry, &gateway, &queues, world, &mut interpolated, findings);
        match read.disabled {
            true => disabled.push(read.server.name),
            false => {
                let server::Read { server, env_file, .. } = read;
                placed.push(Placed { server, span: &entry.key_span, env_file });
            }
        }
    }
    let names = root.table("servers").iter().map(|entry| entry.key.as_str());
    let known = Known::new(&auth, names, world.environment);
    let policy = rules::policy(&root, &known, findings);
    let limits = rules::limits(&bounds, audit.store, &known, findings);
    if root.mentions("policy") || bounds.mentions("rules") {
        reserve_own_name(root.table("servers"), findings);
    }
    let besides = Besides {
        http: &http,
        audit: &audit,
        keys_file: auth.keys_file.as_deref(),
        secret_files: &secrets.files(),
        secret_commands: &settings.commands,
    };
    reach::settle(&mut placed, besides, world, findings);
    let servers = placed.into_iter().map(|one| one.server).collect();
    let source = Source::Toml(findings.source.path.clone());
    Config {
        source,
        gateway,
        http,
        audit,
        auth,
        policy,
        limits,
        secrets: SecretSettings { used: secrets.is_used(), ..settings },
        servers,
        disabled,
        interpolated,
        warnings: Vec::new(),
    }
}

/// Checks the keys of a keys file.
pub(crate) fn keys_of_a_file(root: &Node, findings: &mut Findings) -> KeyRows {
    let Value::Table(entries) = &root.value else { return KeyRows::default() };
    for entry in entries {
        let rows = match &entry.node.value {
            Value::List(items) => items.iter().all(|item| matches!(item.value, Value::Table(_))),
            _ => false,
        };
        if !rows {
            let name = shown(&entry.key);
            let message =
                format!("key `{name}` must be a list of tables, found {}", entry.node.value.describe());
            let help = format!("write each key of that name under `[[{name}]]`");
            findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
        }
    }
    api_keys::read(entries, findings)
}

/// Refuses a server with the name under which rules address the gateway's own things.
fn reserve_own_name(servers: &[Entry], findings: &mut Findings) {
    if let Some(entry) = servers.iter().find(|entry| entry.key.eq_ignore_ascii_case(OWN_SERVER)) {
        let message = format!("no server may be called `{}`, because there are rules", entry.key);
        let help = format!("rename it: in rules, `{OWN_SERVER}/…` are the gateway's own tools");
        findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
    }
}

/// Whether the text can name a key, an issuer or a listener: such names are parts of ids.
fn is_id(text: &str) -> bool {
    text.parse::<ServerName>().is_ok()
}

fn refuse_name(what: &str, name: &str, span: &Span, findings: &mut Findings) {
    let message = format!("`{}` cannot be the name of {what}", shown(name));
    let help = "use 1 to 64 letters, digits, `_`, `.` and `-`";
    findings.mistake(findings.diagnostic(message, span).help(help));
}

/// A name as a message may show it: a text that looks like a key is left out.
fn shown(name: &str) -> &str {
    if has_random(name) { "…" } else { name }
}

/// The one of `known` that an unknown name most likely means.
pub(crate) fn near<'k>(written: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let tolerance = (written.chars().count() / 3).clamp(1, 3);
    let distance = |known: &str| strsim::damerau_levenshtein(&written.to_lowercase(), &known.to_lowercase());
    let near = known.map(|known| (distance(known), known)).filter(|(distance, _)| *distance <= tolerance);
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Checks a list of scopes, which travel in headers, separated by spaces (RFC 6749, section 3.3).
fn scopes(key: &str, listed: Vec<(&str, &Span)>, findings: &mut Findings) -> Vec<String> {
    let mut scopes = Vec::new();
    for (scope, span) in listed {
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        if scope.is_empty() || !scope.bytes().all(fits) {
            let message = format!("an entry of `{key}` is not a scope");
            let help = "a scope has visible ASCII characters, without spaces, `\"` and `\\`; write several as several entries";
            findings.mistake(findings.diagnostic(message, span).help(help));
        } else {
            scopes.push(scope.to_owned());
        }
    }
    scopes
}

/// The path that a key names, relative to the folder of the file.
fn path(section: &Section<'_>, key: &str, world: World<'_>, findings: &mut Findings) -> Option<PathBuf> {
    let (text, span) = section.text(key)?;
    if text.is_empty() {
        let diagnostic = findings.diagnostic(format!("`{key}` is empty"), span);
        findings.mistake(diagnostic.help("name a path, or remove the key"));
        return None;
    }
    Some(world.environment.resolve(text, world.base))
}

fn gateway(section: &Section<'_>, findings: &mut Findings) -> GatewaySettings {
    let default = GatewaySettings::default();
    let (request_timeout, max_total) =
        timeouts(section, default.request_timeout, default.max_total, findings);
    GatewaySettings {
        mode: section.word("mode").and_then(|(mode, _)| mode.parse().ok()).unwrap_or(default.mode),
        prefix: match section.flag("prefix") {
            Some(true) => Prefix::Always,
            Some(false) => Prefix::Never,
            None => Prefix::Auto,
        },
        resource_uris: match section.word("resource_uris") {
            Some(("rewrite", _)) => ResourceUris::Rewrite,
            _ => ResourceUris::Keep,
        },
        max_name_length: count(section, "max_name_length", default.max_name_length),
        request_timeout,
        max_total,
        startup_timeout: duration(section, "startup_timeout_ms", default.startup_timeout),
        init_concurrency: section
            .integer("init_concurrency")
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(default.init_concurrency),
        list_wait: duration(section, "list_wait_ms", default.list_wait),
        linger: duration(section, "linger_ms", default.linger),
        question_timeout: duration(section, "question_timeout_ms", default.question_timeout),
        cancel_grace: duration(section, "cancel_grace_ms", default.cancel_grace),
        threads: section
            .integer("threads")
            .and_then(|threads| NonZeroUsize::new(usize::try_from(threads).ok()?)),
        debug_errors: section.flag("debug_errors").unwrap_or(default.debug_errors),
        max_message_bytes: bytes(section, "max_message_mb", default.max_message_bytes),
        held_bytes: default.held_bytes,
        held_per_peer_bytes: default.held_per_peer_bytes,
        views_bytes: default.views_bytes,
        builtin: true,
    }
}

fn http(section: &Section<'_>, world: World<'_>, findings: &mut Findings) -> HttpSettings {
    let default = HttpSettings::default();
    let listen =
        match section.text("listen") {
            None => default.listen,
            Some((text, span)) => address(text).unwrap_or_else(|| {
                findings.mistake(findings.diagnostic("`listen` is not an address with a port", span).help(
                    "write an IP address and a port, such as `\"127.0.0.1:4848\"` or `\"[::1]:4848\"`",
                ));
                default.listen
            }),
        };
    HttpSettings {
        listen,
        allowed_hosts: names(
            section,
            "allowed_hosts",
            is_host,
            "a host, such as `\"gateway.example.com\"`",
            findings,
        ),
        allowed_origins: names(
            section,
            "allowed_origins",
            is_origin,
            "a scheme and a host, such as `\"https://app.example.com\"`",
            findings,
        ),
        local_users: local_users(section, findings),
        sudo_uid: None,
        token: token(section, world, findings),
        max_sessions: count(section, "max_sessions", default.max_sessions),
        session_idle: duration(section, "session_idle_ms", default.session_idle),
        max_body_bytes: bytes(section, "max_body_mb", default.max_body_bytes),
        keep_alive: duration(section, "keep_alive_ms", default.keep_alive),
        poll_after: section
            .integer("poll_after_ms")
            .map(|_| duration(section, "poll_after_ms", default.keep_alive)),
        ..default
    }
}

/// Reads `local_users` and turns names into numbers. It looks names up in `/etc/passwd` only; users from other sources
/// can be written by number.
fn local_users(section: &Section<'_>, findings: &mut Findings) -> LocalUsers {
    let Some(items) = section.items("local_users") else {
        return match section.word("local_users") {
            Some(("any", _)) => LocalUsers::Any,
            _ => LocalUsers::Same,
        };
    };
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut users = Vec::new();
    for (user, span) in items {
        match user.parse().ok().or_else(|| uid_in(&known, &user)) {
            Some(uid) => users.push(uid),
            None => findings.mistake(
                findings
                    .diagnostic(format!("`local_users`: there is no user `{user}` in /etc/passwd"), span)
                    .help("write the user's number, which `id -u NAME` prints"),
            ),
        }
    }
    LocalUsers::These(users)
}

fn uid_in(passwd: &str, name: &str) -> Option<u32> {
    let fields = passwd.lines().map(|line| line.split(':'));
    let mut found = fields.filter_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)));
    found.next().flatten()?.parse().ok()
}

fn queues(root: &Section<'_>, findings: &mut Findings) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    for entry in root.table("queues") {
        let Value::Table(entries) = &entry.node.value else { continue };
        let section = Section::read(KeyTable::Queue, entries, findings);
        let default = Queue::default();
        queues.push(Queue {
            name: Some(entry.key.as_str().into()),
            concurrency: count(&section, "concurrency", default.concurrency),
            max_waiting: count(&section, "max_waiting", default.max_waiting),
        });
    }
    queues
}

fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().ok()?))),
        None => text.parse().ok(),
    }
}

fn names(
    section: &Section<'_>,
    key: &str,
    fits: fn(&str) -> bool,
    expected: &str,
    findings: &mut Findings,
) -> Vec<String> {
    let mut names = Vec::new();
    for (text, span) in section.list(key) {
        if fits(text) {
            names.push(text.to_owned());
        } else {
            let message = format!("an entry of `{key}` cannot match anything");
            findings.mistake(findings.diagnostic(message, span).help(format!("write {expected}")));
        }
    }
    names
}

fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && !text.contains(['/', '@', '?', '#'])
}

fn is_origin(text: &str) -> bool {
    text == "*" || text.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && is_host(host))
}

fn token(section: &Section<'_>, world: World<'_>, findings: &mut Findings) -> TokenSource {
    match (section.text("token_file"), section.text("token_env")) {
        (Some(_), Some((_, span))) => {
            findings.mistake(
                findings
                    .diagnostic("both `token_file` and `token_env` are written", span)
                    .help("keep the one that holds the token"),
            );
            TokenSource::None
        }
        (Some((path, span)), None) => {
            if path.is_empty() {
                findings.mistake(findings.diagnostic("`token_file` is empty", span).help("name a file"));
            }
            let file = world.environment.resolve(path, world.base);
            secrets::refuse_exposed("token_file", &file, span, world, findings);
            TokenSource::File(file)
        }
        (None, Some((name, span))) => match world.environment.variable(name) {
            Some(value) if is_bearer_token(&Secret::new(value)) => {
                TokenSource::Env { name: name.to_owned(), value: Secret::new(value) }
            }
            found => {
                refuse_token(name, span, found.is_some(), findings);
                TokenSource::None
            }
        },
        (None, None) => match &world.environment.http_token {
            Some(value) => {
                TokenSource::Env { name: crate::environment::HTTP_TOKEN.to_owned(), value: value.clone() }
            }
            None => TokenSource::None,
        },
    }
}

fn refuse_token(name: &str, span: &Span, set: bool, findings: &mut Findings) {
    // A text that does not look like a variable name may be the token itself.
    let shown =
        if is_variable_name(name) { format!("the variable `{name}`") } else { "that variable".to_owned() };
    let diagnostic = if set {
        findings
            .diagnostic(format!("`token_env`: {shown} does not hold a bearer token"), span)
            .help("use one or more visible ASCII characters without spaces")
    } else {
        findings
            .diagnostic(format!("`token_env`: {shown} is not set"), span)
            .help("write the name of a variable that holds the token, not the token itself")
    };
    findings.mistake(diagnostic);
}

/// Reads `request_timeout_ms` and `max_total_ms`, which must fit together even if only one of them is written.
fn timeouts(
    section: &Section<'_>,
    request_default: Duration,
    total_default: Duration,
    findings: &mut Findings,
) -> (Duration, Duration) {
    let request = duration(section, "request_timeout_ms", request_default);
    let total = duration(section, "max_total_ms", total_default);
    if request > total
        && let Some(entry) = section.entry("request_timeout_ms").or(section.entry("max_total_ms"))
    {
        let message = "`request_timeout_ms` is longer than `max_total_ms`";
        findings.mistake(findings.diagnostic(message, &entry.node.span).help(format!(
            "a call ends after `max_total_ms` in any case: make it at least {}, or `request_timeout_ms` at most {}",
            request.as_millis(),
            total.as_millis()
        )));
    }
    (request, total)
}

pub(crate) fn duration(section: &Section<'_>, key: &str, default: Duration) -> Duration {
    section.integer(key).map_or(default, Duration::from_millis)
}

pub(crate) fn count(section: &Section<'_>, key: &str, default: usize) -> usize {
    section.integer(key).and_then(|number| usize::try_from(number).ok()).unwrap_or(default)
}

fn bytes(section: &Section<'_>, key: &str, default: usize) -> usize {
    section
        .integer(key)
        .and_then(|megabytes| usize::try_from(megabytes * 1024 * 1024).ok())
        .unwrap_or(default)
}
