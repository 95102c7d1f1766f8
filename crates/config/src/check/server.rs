//! Reads one server, from either format.
//!
//! A problem outside the file (an unset variable, a missing `env_file`) disables only this server.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use bridgehead_wire::{Redactor, is_secret_name};

use super::client::translate;
use super::{World, count, duration, sandbox, timeouts};
use crate::env_file;
use crate::filter::{InvalidPattern, ToolFilter};
use crate::interpolate::{self, Referred, Refusal};
use crate::keys::KeyTable;
use crate::proxy::Proxy;
use crate::roots::{Roots, file_uri};
use crate::secret::Secret;
use crate::secret_file::read_file;
use crate::section::{Findings, Section};
use crate::server::{
    EraChoice, HealthProbe, Interactive, Isolation, Launch, Limits, Output, Queue, Remote, RemoteTransport,
    Retry, ServerConfig, ServerName, Stdio, ToolOverride,
};
use crate::settings::GatewaySettings;
use crate::tree::{Entry, Span, Value};
use crate::url::Url;

/// A longer `env_file` is refused.
const LARGEST_ENV_FILE: u64 = 1024 * 1024;

/// A server as it was read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) server: ServerConfig,
    pub(super) disabled: bool,
    /// The file that its variables come from, whether it exists or not.
    pub(super) env_file: Option<PathBuf>,
}

/// Reads the table of one server. Its mistakes go to `findings`.
pub(super) fn read(
    name: ServerName,
    entry: &Entry,
    gateway: &GatewaySettings,
    queues: &[Queue],
    world: World<'_>,
    interpolated: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> Read {
    let told_before = findings.diagnostics.len();
    findings.enter_server(name.as_str());
    let mut server = ServerConfig::new(name, Launch::Unusable { reason: String::new() }, gateway);
    let mut launch = None;
    let (mut disabled, mut env_file) = (false, None);
    let translated = match &entry.node.value {
        Value::Table(entries) if !findings.strict => translate(entries),
        Value::Table(entries) => entries.clone(),
        _ => Vec::new(),
    };
    if let Value::Table(_) = &entry.node.value {
        let section = Section::read(KeyTable::Server, &translated, findings);
        disabled = is_disabled(&section, findings);
        let (silent, total) = timeouts(&section, gateway.request_timeout, gateway.max_total, findings);
        (server.request_timeout, server.max_total) = (Some(silent), Some(total));
        server.prefix = section.flag("prefix");
        server.queue = queue(&section, queues, findings).unwrap_or_default();
        server.filter = filter(&section, findings);
        server.restart = section.flag("restart").unwrap_or(server.restart);
        server.jitter = section.flag("jitter").unwrap_or(server.jitter);
        server.start_timeout = duration(&section, "start_timeout_ms", server.start_timeout);
        server.stable_after = duration(&section, "stable_after_ms", server.stable_after);
        server.probe_interval = duration(&section, "probe_interval_ms", server.probe_interval);
        server.health_probe = match section.word("health_probe") {
            Some(("list_tools", _)) => HealthProbe::ListTools,
            _ => HealthProbe::Ping,
        };
        server.retry = match section.word("retry") {
            Some(("always", _)) => Retry::Always,
            Some(("never", _)) => Retry::Never,
            _ => Retry::Safe,
        };
        server.output = match section.word("output") {
            Some(("report", _)) => Output::Report,
            Some(("enforce", _)) => Output::Enforce,
            _ => Output::Off,
        };
        server.isolation = isolation(&section, findings);
        server.idle_timeout =
            Some(duration(&section, "idle_timeout_ms", Duration::ZERO)).filter(|idle| !idle.is_zero());
        server.lazy = section.flag("lazy").unwrap_or(server.lazy);
        server.era = match section.word("era") {
            Some(("modern", _)) => EraChoice::Modern,
            Some(("legacy", _)) => EraChoice::Legacy,
            _ => EraChoice::Auto,
        };
        server.interactive = match section.word("interactive") {
            Some(("exclusive", _)) => Interactive::Exclusive,
            Some(("shared", _)) => Interactive::Shared,
            _ => Interactive::Auto,
        };
        server.max_leases = count(&section, "max_leases", server.max_leases);
        server.max_session_processes = count(&section, "max_session_processes", server.max_session_processes);
        server.question_timeout = Some(duration(&section, "question_timeout_ms", gateway.question_timeout));
        server.cancel_grace = Some(duration(&section, "cancel_grace_ms", gateway.cancel_grace));
        server.tools = tools(&section, server.isolation, queues, findings);
        server.limits = sandbox::limits(&section, server.isolation, findings);
        if server.isolation == Isolation::Call {
            server.limits = server.limits.or(Limits::OF_A_CALL);
        }
        server.require = sandbox::require(&section, findings);
        if !disabled {
            let mut reader = Reader { world, interpolated, findings, env_file: None };
            launch = reader.launch(&section, entry);
            server.roots = reader.roots(&section);
            server.confinement = reader.confinement(&section, launch.as_ref());
            env_file = reader.env_file;
        }
    } else {
        let message = format!("a server must be a table, found {}", entry.node.value.describe());
        findings.mistake(findings.diagnostic(message, &entry.node.span));
    }
    let reason = findings.leave_server();
    if disabled && !findings.strict {
        // A server that its owner has turned off causes no warnings.
        findings.diagnostics.truncate(told_before);
    }
    server.launch = match (reason, launch) {
        (None, Some(launch)) => launch,
        (reason, _) => {
            Launch::Unusable { reason: reason.unwrap_or_else(|| "its configuration is invalid".to_owned()) }
        }
    };
    Read { server, disabled, env_file }
}

/// Reads `disabled` and its other form, `enabled = false`. Refuses a contradiction.
fn is_disabled(section: &Section<'_>, findings: &mut Findings) -> bool {
    let (disabled, enabled) = (section.flag("disabled"), section.flag("enabled"));
    if let (Some(disabled), Some(enabled), Some(entry)) = (disabled, enabled, section.entry("enabled"))
        && disabled == enabled
    {
        let diagnostic = findings
            .diagnostic("`enabled` contradicts `disabled`", &entry.node.span)
            .help("keep one of them; `enabled = false` means `disabled = true`");
        findings.mistake(diagnostic);
    }
    disabled.unwrap_or(false) || enabled == Some(false)
}

fn filter(section: &Section<'_>, findings: &mut Findings) -> ToolFilter {
    let patterns = |name| section.list(name).into_iter().map(|(text, _)| text);
    let allowed: Vec<&str> =
        if section.mentions("tools_allowed") { patterns("tools_allowed").collect() } else { vec!["*"] };
    match ToolFilter::new(allowed, patterns("tools_denied")) {
        Ok(filter) => filter,
        Err(InvalidPattern { pattern, reason }) => {
            let written = section.list("tools_allowed").into_iter().chain(section.list("tools_denied"));
            let span = written.into_iter().find(|(text, _)| *text == pattern).map(|(_, span)| span);
            if let Some(span) = span {
                let message = format!("`{pattern}` is not a pattern: {reason}");
                findings.mistake(findings.diagnostic(message, span));
            }
            ToolFilter::default()
        }
    }
}

/// Reads `isolation` and its other form, `shared = false`. Refuses a contradiction.
fn isolation(section: &Section<'_>, findings: &mut Findings) -> Isolation {
    let by_word = section.word("isolation").map(|(word, _)| match word {
        "session" => Isolation::Session,
        "call" => Isolation::Call,
        _ => Isolation::Shared,
    });
    let by_flag = section.flag("shared").map(|shared| match shared {
        true => Isolation::Shared,
        false => Isolation::Session,
    });
    if let (Some(word), Some(flag), Some(entry)) = (by_word, by_flag, section.entry("shared"))
        && word != flag
    {
        let diagnostic = findings
            .diagnostic("`shared` contradicts `isolation`", &entry.node.span)
            .help("keep one of them; `shared = false` means `isolation = \"session\"`");
        findings.mistake(diagnostic);
    }
    by_word.or(by_flag).unwrap_or_default()
}

fn tools(
    section: &Section<'_>,
    isolation: Isolation,
    queues: &[Queue],
    findings: &mut Findings,
) -> BTreeMap<String, ToolOverride> {
    let mut tools = BTreeMap::new();
    for entry in section.table("tools") {
        if let Value::Table(entries) = &entry.node.value {
            let section = Section::read(KeyTable::Tool, entries, findings);
            tools.insert(
                entry.key.clone(),
                ToolOverride {
                    lock: section.flag("lock"),
                    queue: queue(&section, queues, findings),
                    limits: sandbox::tool_limits(&section, isolation, findings),
                    cost: section.integer("cost").and_then(|cost| u32::try_from(cost).ok()),
                },
            );
        }
    }
    tools
}

/// The queue that a server or a tool names.
fn queue(section: &Section<'_>, queues: &[Queue], findings: &mut Findings) -> Option<Queue> {
    let (name, span) = section.text("queue")?;
    let named = queues.iter().find(|queue| queue.name.as_deref() == Some(name));
    if named.is_none() {
        let names = || queues.iter().filter_map(|queue| queue.name.as_deref());
        let near = names().find(|known| strsim::damerau_levenshtein(known, name) <= 2);
        let diagnostic = findings.diagnostic(format!("there is no queue `{name}`"), span);
        findings.surplus(match near {
            Some(near) => diagnostic.label(format!("did you mean `{near}`?")),
            None => diagnostic.help(format!("write `[queues.{name}]` with its `concurrency`")),
        });
    }
    named.cloned()
}

pub(super) struct Reader<'r> {
    world: World<'r>,
    interpolated: &'r mut BTreeSet<String>,
    pub(super) findings: &'r mut Findings,
    env_file: Option<PathBuf>,
}

impl Reader<'_> {
    fn launch(&mut self, section: &Section<'_>, entry: &Entry) -> Option<Launch> {
        let transport = section.word("type").map(|(name, span)| (transport(name), span));
        match (section.mentions("command"), section.mentions("url")) {
            (true, true) => {
                self.mistake(
                    "both `command` and `url` are written",
                    &entry.key_span,
                    "keep one: `command` runs a server here, `url` reaches a remote one",
                );
            }
            (false, false) => {
                self.mistake(
                    "neither `command` nor `url` is written",
                    &entry.key_span,
                    "name the program to run (`command`), or the address of the server (`url`)",
                );
            }
            _ => {}
        }
        match transport {
            Some((Some(_), span)) if section.mentions("command") => {
                self.mistake(
                    "this `type` does not go with `command`",
                    span,
                    "write `type = \"stdio\"`, or give a `url`",
                );
                None
            }
            Some((None, span)) if section.mentions("url") => {
                self.mistake(
                    "`type = \"stdio\"` does not go with `url`",
                    span,
                    "leave `type` out, or give a `command`",
                );
                None
            }
            other if section.mentions("url") => {
                self.remote(section, other.and_then(|(transport, _)| transport)).map(Launch::Remote)
            }
            _ => self.stdio(section).map(Launch::Stdio),
        }
    }

    fn remote(&mut self, section: &Section<'_>, transport: Option<RemoteTransport>) -> Option<Remote> {
        let (headers, proxy) = (self.headers(section), self.proxy(section));
        let (text, span) = section.text("url")?;
        let text = self.fill("url", text, span)?;
        let url: Url = match text.trim().parse() {
            Ok(url) => url,
            Err(error) => {
                self.mistake(
                    &format!("`url` is not the address of a server: {error}"),
                    span,
                    "write it like `https://host/mcp`",
                );
                return None;
            }
        };
        let Remote { transport: by_scheme, .. } = Remote::new(url.clone());
        let transport = transport.unwrap_or(by_scheme);
        if (transport == RemoteTransport::WebSocket) != url.is_web_socket() {
            self.mistake(
                "`type` and `url` do not match",
                span,
                "a WebSocket address begins with `ws://` or `wss://`, any other with `http://` or `https://`",
            );
            return None;
        }
        if let (RemoteTransport::Sse, Some(("modern", span))) = (transport, section.word("era")) {
            self.mistake(
                "`era = \"modern\"` cannot be spoken over HTTP+SSE",
                span,
                "use `type = \"http\"`, or leave `era` out",
            );
            return None;
        }
        let follow_redirects = section.flag("follow_redirects").unwrap_or(false);
        Some(Remote { url, transport, headers: headers?, proxy: proxy?, follow_redirects })
    }

    /// The proxy: `Some(None)` if none is configured, `None` if it cannot be used.
    fn proxy(&mut self, section: &Section<'_>) -> Option<Option<Proxy>> {
        let Some((text, span)) = section.text("proxy") else {
            return (!section.mentions("proxy")).then_some(None);
        };
        match self.fill("proxy", text, span)?.trim().parse() {
            Ok(proxy) => Some(Some(proxy)),
            Err(error) => {
                self.mistake(
                    &format!("`proxy` is not the address of a proxy: {error}"),
                    span,
                    "write it like `http://host:3128` or `http://NAME:PASSWORD@host:3128`",
                );
                None
            }
        }
    }

    fn headers(&mut self, section: &Section<'_>) -> Option<BTreeMap<String, Secret>> {
        let mut headers = BTreeMap::new();
        let mut complete = true;
        for entry in section.table("headers") {
            if let Some(help) = header_fault(&entry.key) {
                self.mistake("a name in `headers` cannot be used", &entry.key_span, help);
                complete = false;
            }
            let Some(text) = entry.node.value.scalar_text() else { continue };
            match self.fill(&format!("headers.{}", entry.key), &text, &entry.node.span) {
                Some(value) if value.bytes().all(|byte| matches!(byte, b'\t' | 0x20..=0x7e)) => {
                    headers.insert(entry.key.clone(), Secret::new(value.trim()));
                }
                Some(_) => {
                    self.mistake(
                        &format!("the value of `headers.{}` cannot be sent", entry.key),
                        &entry.node.span,
                        "a header value has visible ASCII characters and spaces only; look for a line break at its end",
                    );
                    complete = false;
                }
                None => complete = false,
            }
        }
        complete.then_some(headers)
    }

    fn stdio(&mut self, section: &Section<'_>) -> Option<Stdio> {
        // Reads everything before giving up, so that all mistakes are reported at once.
        let command = section.text("command").and_then(|(text, span)| {
            let command = self.fill("command", text, span)?;
            if command.trim().is_empty() {
                self.mistake("`command` is empty", span, "name the program to run");
                return None;
            }
            if let Some(program) = self.program_before_arguments(&command) {
                // The message does not repeat the arguments: one of them may be a secret.
                let message =
                    format!("`command` holds arguments; keep `{program}` and move the rest to `args`");
                let help = "`args` is a list with one entry for each argument";
                self.findings.failure(self.findings.diagnostic(message, span).help(help));
                return None;
            }
            Some(command)
        });
        let args: Vec<_> =
            section.list("args").into_iter().map(|(text, span)| self.fill("args", text, span)).collect();
        let env = self.env(section);
        let inherit_env = self.inherit_env(section);
        let cwd = section.text("cwd").map(|(text, span)| self.path("cwd", text, span));
        Some(Stdio {
            command: command?,
            args: args.into_iter().collect::<Option<_>>()?,
            env: env?,
            inherit_env,
            cwd: match cwd {
                Some(cwd) => Some(cwd?),
                None => None,
            },
        })
    }

    /// The program in a command that was written like a shell line. `None` for a path that contains a space.
    fn program_before_arguments<'c>(&self, command: &'c str) -> Option<&'c str> {
        let (program, _) = command.trim().split_once(char::is_whitespace)?;
        let World { environment, base, cwd, .. } = self.world;
        let is_file = |path: &str| base.join(path).is_file() || cwd.join(path).is_file();
        let on_path = || {
            let folders = environment.variable("PATH").unwrap_or_default();
            std::env::split_paths(folders).any(|folder| folder.join(command).is_file())
        };
        let whole = if command.contains('/') { is_file(command) } else { on_path() };
        (!whole && (!program.contains('/') || is_file(program))).then_some(program)
    }

    fn env(&mut self, section: &Section<'_>) -> Option<BTreeMap<String, Secret>> {
        let mut env = BTreeMap::new();
        let mut complete = true;
        if let Some((text, span)) = section.text("env_file") {
            match self.read_env_file(text, span) {
                Some(entries) => {
                    env.extend(entries.into_iter().map(|(name, value)| (name, Secret::new(value))));
                }
                None => complete = false,
            }
        }
        for entry in section.table("env") {
            if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
                self.mistake(
                    "a name in `env` is not the name of a variable",
                    &entry.key_span,
                    "leave out `=`",
                );
                complete = false;
            }
            let Some(text) = entry.node.value.scalar_text() else { continue };
            match self.fill(&format!("env.{}", entry.key), &text, &entry.node.span) {
                Some(value) => drop(env.insert(entry.key.clone(), Secret::new(value))),
                None => complete = false,
            }
        }
        complete.then_some(env)
    }

    /// The answer when the server asks for roots: folders by path, or anything by URI.
    fn roots(&mut self, section: &Section<'_>) -> Option<Roots> {
        if !section.mentions("roots") {
            return None;
        }
        let mut uris = Vec::new();
        for (text, span) in section.list("roots") {
            uris.push(match text.contains("://") {
                true => self.fill("roots", text, span)?,
                false => file_uri(&self.path("roots", text, span)?),
            });
        }
        Some(Roots::of(uris))
    }

    /// Names of variables to pass on. A client's file is ignored here: it may come with somebody else's project, and must
    /// not decide which of the user's variables a program gets.
    fn inherit_env(&mut self, section: &Section<'_>) -> Vec<String> {
        let names = section.list("inherit_env");
        if let (false, Some(entry)) = (self.findings.strict, section.entry("inherit_env")) {
            let message = "`inherit_env` is ignored in a client's file";
            let help = "write the server into a `bridgehead.toml`, or name the variables under `env`";
            self.findings.warning(self.findings.diagnostic(message, &entry.key_span).help(help));
            return Vec::new();
        }
        for (name, span) in &names {
            if name.is_empty() || name.contains(['=', '\0', '*', '$']) {
                self.mistake(
                    "an entry of `inherit_env` is not the name of a variable",
                    span,
                    "write exact names, such as `inherit_env = [\"HTTPS_PROXY\"]`",
                );
            }
        }
        names.into_iter().map(|(name, _)| name.to_owned()).collect()
    }

    fn read_env_file(&mut self, text: &str, span: &Span) -> Option<Vec<(String, String)>> {
        let path = self.path("env_file", text, span)?;
        self.env_file = Some(path.clone());
        let problem = match read_file(&path, LARGEST_ENV_FILE).map(String::from_utf8) {
            Ok(Err(_)) => "`env_file` does not hold text in UTF-8".to_owned(),
            Ok(Ok(text)) => match env_file::parse(&text) {
                Ok(entries) => return Some(entries),
                Err(line) => format!("`env_file`: line {} is not `NAME=value`", line.0),
            },
            Err(error) => format!("`env_file` cannot be read: {error}"),
        };
        let mut diagnostic = self.findings.diagnostic(problem, span);
        // A path with a variable is not shown: it may contain the variable's value.
        if !text.contains("${") {
            diagnostic = diagnostic.help(format!("the file is {}", path.display()));
        }
        self.findings.failure(diagnostic);
        None
    }

    pub(super) fn path(&mut self, key: &str, text: &str, span: &Span) -> Option<PathBuf> {
        let path = self.fill(key, text, span)?;
        if path.is_empty() {
            self.mistake(&format!("`{key}` is empty"), span, "name a path, or remove the key");
            return None;
        }
        Some(self.world.environment.resolve(&path, self.world.base))
    }

    fn fill(&mut self, key: &str, text: &str, span: &Span) -> Option<String> {
        if self.findings.strict && self.refuse_secrets(key, text, span) {
            return None;
        }
        match self.world.fill(text, self.interpolated) {
            Ok(filled) if filled.contains('\0') => {
                self.mistake(
                    &format!("`{key}` holds a NUL character"),
                    span,
                    "remove it; no program accepts one",
                );
                None
            }
            Ok(filled) => Some(filled),
            Err(refusal) => {
                let diagnostic =
                    self.findings.diagnostic(format!("`{key}`: {refusal}"), span).help(refusal.cure());
                match refusal {
                    Refusal::Malformed | Refusal::UnknownCommand { .. } | Refusal::OnlyInOurs(_) => {
                        self.findings.mistake(diagnostic);
                    }
                    Refusal::Unset(_) | Refusal::EditorInput(_) | Refusal::Secret { .. } => {
                        self.findings.failure(diagnostic);
                    }
                }
                None
            }
        }
    }

    /// Refuses a reference to a secret where others would see it: every user of the machine can read the arguments of a
    /// process. Returns whether there was one.
    fn refuse_secrets(&mut self, key: &str, text: &str, span: &Span) -> bool {
        let private =
            key.starts_with("env.") || key.starts_with("headers.") || ["url", "proxy"].contains(&key);
        if private {
            return false;
        }
        let variables = self.world.environment.variables();
        let is_secret = |referred: &Referred| match referred {
            Referred::Secret(_) => true,
            Referred::Variable(name) => {
                let looks_secret = |value: &String| matches!(Redactor::default().text(value), Cow::Owned(_));
                let own = self.world.secrets.is_some_and(|secrets| secrets.has(name));
                key == "args"
                    && (own || is_secret_name(name) || variables.get(name).is_some_and(looks_secret))
            }
        };
        let Some(found) = interpolate::referred(text).into_iter().find(is_secret) else { return false };
        let reference = match found {
            Referred::Secret(secret) => format!("${{{}:…}}", secret.kind()),
            Referred::Variable(name) => format!("${{{name}}}"),
        };
        let (message, help) = match key {
            "args" => (
                format!(
                    "`args`: `{reference}` is a secret, and every user of this machine can see arguments"
                ),
                format!("pass it in `env`, such as `env = {{ NAME = \"{reference}\" }}`"),
            ),
            _ => (
                format!("`{key}`: `{reference}` is a secret, which does not belong here"),
                "use it in `env`, `headers`, `url` or `proxy`".to_owned(),
            ),
        };
        self.mistake(&message, span, &help);
        true
    }

    pub(super) fn mistake(&mut self, message: &str, span: &Span, help: &str) {
        self.findings.mistake(self.findings.diagnostic(message, span).help(help));
    }
}

/// The transport that `type` names; `None` for stdio.
fn transport(name: &str) -> Option<RemoteTransport> {
    match name {
        "stdio" => None,
        "sse" => Some(RemoteTransport::Sse),
        "websocket" | "ws" => Some(RemoteTransport::WebSocket),
        _ => Some(RemoteTransport::Http),
    }
}

/// Headers that Bridgehead sets itself on every request.
const OURS: [&str; 10] = [
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

/// Why a header name cannot be used.
fn header_fault(name: &str) -> Option<&'static str> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let lower = name.to_ascii_lowercase();
    if name.is_empty() || !name.bytes().all(token) {
        Some("a header name has only letters, digits and `-`")
    } else if OURS.contains(&lower.as_str())
        || lower.starts_with("mcp-")
        || lower.starts_with("sec-websocket-")
    {
        Some("Bridgehead sets this header itself; remove it")
    } else {
        None
    }
}
