//! One server, from either format.
//!
//! What the file does not decide (an unset variable, a missing `env_file`) costs this server only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{World, duration, timeouts};
use crate::env_file;
use crate::filter::ToolFilter;
use crate::interpolate::{self, Refusal};
use crate::keys::Place;
use crate::secret::Secret;
use crate::section::{Findings, Section};
use crate::settings::{GatewaySettings, Launch, Retry, Server, ServerName, Stdio, ToolOverride};
use crate::tree::{Entry, Span, Value};

/// A server as it was read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) server: Server,
    pub(super) disabled: bool,
}

/// Reads the table of one server. Its mistakes go to `findings`.
pub(super) fn read(
    name: ServerName,
    entry: &Entry,
    gateway: &GatewaySettings,
    world: World<'_>,
    interpolated: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> Read {
    let told_before = findings.diagnostics.len();
    findings.enter_server(name.as_str());
    let mut server = Server::new(name, Launch::Unusable { reason: String::new() }, gateway);
    let mut stdio = None;
    let mut disabled = false;
    if let Value::Table(entries) = &entry.node.value {
        let section = Section::read(Place::Server, entries, findings);
        disabled = section.flag("disabled").unwrap_or(false);
        (server.request_timeout, server.max_total) =
            timeouts(&section, gateway.request_timeout, gateway.max_total, findings);
        server.prefix = section.flag("prefix");
        server.tools = tools(&section, findings);
        server.filter = filter(&section, findings);
        server.restart = section.flag("restart").unwrap_or(server.restart);
        server.jitter = section.flag("jitter").unwrap_or(server.jitter);
        server.stable_after = duration(&section, "stable_after_ms", server.stable_after);
        server.probe_interval = duration(&section, "probe_interval_ms", server.probe_interval);
        server.retry = match section.text("retry") {
            Some(("always", _)) => Retry::Always,
            Some(("never", _)) => Retry::Never,
            _ => Retry::Safe,
        };
        if !disabled {
            stdio = Reader { world, interpolated, findings }.stdio(&section, entry);
        }
    } else {
        let message = format!("a server must be a table, found {}", entry.node.value.describe());
        findings.mistake(findings.diagnostic(message, &entry.node.span));
    }
    let reason = findings.leave_server();
    if disabled && !findings.strict {
        // Nobody needs to hear about a server that its owner switched off.
        findings.diagnostics.truncate(told_before);
    }
    server.launch = match (reason, stdio) {
        (None, Some(stdio)) => Launch::Stdio(stdio),
        (reason, _) => {
            Launch::Unusable { reason: reason.unwrap_or_else(|| "its configuration is invalid".to_owned()) }
        }
    };
    Read { server, disabled }
}

fn filter(section: &Section<'_>, findings: &mut Findings) -> ToolFilter {
    let patterns = |name| section.list(name).into_iter().map(|(text, _)| text);
    let allowed: Vec<&str> =
        if section.mentions("tools_allowed") { patterns("tools_allowed").collect() } else { vec!["*"] };
    match ToolFilter::new(allowed, patterns("tools_denied")) {
        Ok(filter) => filter,
        Err((pattern, reason)) => {
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

fn tools(section: &Section<'_>, findings: &mut Findings) -> BTreeMap<String, ToolOverride> {
    let mut tools = BTreeMap::new();
    for entry in section.table("tools") {
        if let Value::Table(entries) = &entry.node.value {
            let section = Section::read(Place::Tool, entries, findings);
            tools.insert(entry.key.clone(), ToolOverride { lock: section.flag("lock") });
        }
    }
    tools
}

struct Reader<'r> {
    world: World<'r>,
    interpolated: &'r mut BTreeSet<String>,
    findings: &'r mut Findings,
}

impl Reader<'_> {
    fn stdio(&mut self, section: &Section<'_>, entry: &Entry) -> Option<Stdio> {
        match (section.mentions("command"), section.mentions("url")) {
            (true, true) => {
                self.mistake(
                    "both `command` and `url` are written",
                    &entry.key_span,
                    "keep one: a server is either run or reached",
                );
            }
            (false, false) => {
                self.mistake(
                    "neither `command` nor `url` is written",
                    &entry.key_span,
                    "name the program to run: `command`",
                );
            }
            _ => {}
        }
        // Everything is read before anything is given up, so that all mistakes are told at once.
        let command = section.text("command").and_then(|(text, span)| {
            let command = self.fill("command", text, span)?;
            if command.trim().is_empty() {
                self.mistake("`command` is empty", span, "name the program to run");
                return None;
            }
            Some(command)
        });
        let args: Vec<_> =
            section.list("args").into_iter().map(|(text, span)| self.fill("args", text, span)).collect();
        let env = self.env(section);
        let cwd = section.text("cwd").map(|(text, span)| self.path("cwd", text, span));
        Some(Stdio {
            command: command?,
            args: args.into_iter().collect::<Option<_>>()?,
            env: env?,
            cwd: match cwd {
                Some(cwd) => Some(cwd?),
                None => None,
            },
        })
    }

    fn env(&mut self, section: &Section<'_>) -> Option<BTreeMap<String, Secret>> {
        let mut env = BTreeMap::new();
        let mut complete = true;
        if let Some((text, span)) = section.text("env_file") {
            match self.env_file(text, span) {
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

    fn env_file(&mut self, text: &str, span: &Span) -> Option<Vec<(String, String)>> {
        let path = self.path("env_file", text, span)?;
        let problem = match std::fs::read_to_string(&path) {
            Ok(text) => match env_file::parse(&text) {
                Ok(entries) => return Some(entries),
                Err(line) => format!("`env_file`: line {} is not `NAME=value`", line.0),
            },
            Err(error) => format!("`env_file` cannot be read: {error}"),
        };
        let mut diagnostic = self.findings.diagnostic(problem, span);
        // The path may hold the value of a variable, which is not ours to show.
        if !text.contains("${") {
            diagnostic = diagnostic.help(format!("the file is {}", path.display()));
        }
        self.findings.failure(diagnostic);
        None
    }

    fn path(&mut self, key: &str, text: &str, span: &Span) -> Option<PathBuf> {
        let path = self.fill(key, text, span)?;
        if path.is_empty() {
            self.mistake(&format!("`{key}` is empty"), span, "name a path, or remove the key");
            return None;
        }
        Some(self.world.environment.resolve(&path, self.world.base))
    }

    fn fill(&mut self, key: &str, text: &str, span: &Span) -> Option<String> {
        match interpolate::fill(text, self.world.environment.variables(), self.interpolated) {
            Ok(filled) if filled.contains('\0') => {
                self.mistake(&format!("`{key}` holds a NUL character"), span, "no program can be given one");
                None
            }
            Ok(filled) => Some(filled),
            Err(refusal) => {
                let diagnostic =
                    self.findings.diagnostic(format!("`{key}`: {refusal}"), span).help(refusal.cure());
                match refusal {
                    Refusal::Malformed => self.findings.mistake(diagnostic),
                    Refusal::Unset(_) | Refusal::EditorInput(_) => self.findings.failure(diagnostic),
                }
                None
            }
        }
    }

    fn mistake(&mut self, message: &str, span: &Span, help: &str) {
        self.findings.mistake(self.findings.diagnostic(message, span).help(help));
    }
}
