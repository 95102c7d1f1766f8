//! Reads the JSON file of an MCP client, unmodified.
//!
//! The file belongs to another program. So an unknown key is only a warning, a mistake disables only the server it
//! concerns, and invalid server names are adapted.

use std::collections::{BTreeMap, BTreeSet};

use super::covered::Besides;
use super::reach::{self, Placed};
use super::{World, http, server};
use crate::access::AuthSettings;
use crate::configuration::{Config, Source};
use crate::keys::KeyTable;
use crate::section::{Findings, Section};
use crate::server::ServerName;
use crate::settings::{AuditSettings, GatewaySettings, SecretSettings};
use crate::tree::{Entry, Node, Value};

/// The keys under which clients keep their servers.
pub(crate) const SERVER_MAPS: [&str; 3] = ["mcpServers", "servers", "context_servers"];

/// Keys beside the servers that cause no warning.
const EXPECTED_BESIDES: [&str; 2] = ["$schema", "inputs"];

/// Checks a client's file. An error among the findings means that it is not a client's file.
pub(crate) fn client(root: &Node, world: World<'_>, findings: &mut Findings) -> Config {
    let looked_for = "a client's file has its servers under `mcpServers`, `servers` or `context_servers`";
    let entries: &[Entry] = match &root.value {
        Value::Table(entries) => entries,
        _ => &[],
    };
    let (maps, besides): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| SERVER_MAPS.contains(&entry.key.as_str()));
    if maps.is_empty() {
        findings.mistake(
            findings
                .diagnostic(format!("`{}` has no map of servers", findings.source.path.display()), &root.span)
                .help(looked_for),
        );
    }
    tell_besides(&besides, findings);

    let gateway = GatewaySettings::default();
    let http = http(&Section::read(KeyTable::Http, &[], findings), world, findings);
    let mut config = Config {
        source: Source::ClientJson(findings.source.path.clone()),
        gateway: gateway.clone(),
        http,
        audit: AuditSettings::default(),
        auth: AuthSettings::default(),
        policy: Vec::new(),
        limits: Vec::new(),
        secrets: SecretSettings::default(),
        servers: Vec::new(),
        disabled: Vec::new(),
        interpolated: BTreeSet::new(),
        warnings: Vec::new(),
    };
    let (mut taken, mut placed) = (BTreeSet::new(), Vec::new());
    for map in maps {
        let Value::Table(servers) = &map.node.value else {
            let message =
                format!("`{}` must be a table of servers, found {}", map.key, map.node.value.describe());
            findings.mistake(findings.diagnostic(message, &map.node.span).help(looked_for));
            continue;
        };
        for (index, entry) in servers.iter().enumerate() {
            if servers[index + 1..].iter().any(|later| later.key == entry.key) {
                let message = format!("server `{}` is written twice", entry.key);
                findings.warning(findings.diagnostic(message, &entry.key_span).help("the last one is used"));
                continue;
            }
            let name = name(entry, &mut taken, findings);
            let read = server::read(name, entry, &gateway, &[], world, &mut config.interpolated, findings);
            match read.disabled {
                true => config.disabled.push(read.server.name),
                false => {
                    let server::Read { server, env_file, .. } = read;
                    placed.push(Placed { server, span: &entry.key_span, env_file });
                }
            }
        }
    }
    let besides = Besides {
        http: &config.http,
        audit: &config.audit,
        keys_file: None,
        secret_files: &[],
        secret_commands: &BTreeMap::new(),
    };
    reach::settle(&mut placed, besides, world, findings);
    config.servers = placed.into_iter().map(|one| one.server).collect();
    config
}

/// Other clients' names for our tool filters. Ignoring them would offer tools that the user has disabled.
const FILTERS: [(&str, &str); 10] = [
    ("disabledTools", "tools_denied"),
    ("disabled_tools", "tools_denied"),
    ("excludeTools", "tools_denied"),
    ("exclude_tools", "tools_denied"),
    ("enabledTools", "tools_allowed"),
    ("enabled_tools", "tools_allowed"),
    ("includeTools", "tools_allowed"),
    ("include_tools", "tools_allowed"),
    ("allowedTools", "tools_allowed"),
    ("allowed_tools", "tools_allowed"),
];

/// Translates a server's entries to our keys: other clients' tool filters, a list under `tools`, and Zed's older
/// `command`, a table of `path`, `args` and `env`.
pub(super) fn translate(entries: &[Entry]) -> Vec<Entry> {
    let mut translated = Vec::with_capacity(entries.len());
    for entry in entries {
        let renamed = |key: &str, entry: &Entry| Entry { key: key.to_owned(), ..entry.clone() };
        let filter = FILTERS.iter().find(|(theirs, _)| *theirs == entry.key).map(|(_, ours)| *ours);
        match (entry.key.as_str(), &entry.node.value) {
            ("command", Value::Table(nested)) => translated.extend(nested.iter().map(|inner| {
                let key = if inner.key == "path" { "command" } else { inner.key.as_str() };
                renamed(key, inner)
            })),
            ("tools", Value::List(_)) => translated.push(renamed("tools_allowed", entry)),
            _ => translated.push(renamed(filter.unwrap_or(&entry.key), entry)),
        }
    }
    translated
}

/// Gives one warning for all unknown keys: some clients keep all their settings in this file.
fn tell_besides(besides: &[&Entry], findings: &mut Findings) {
    let surplus: Vec<_> =
        besides.iter().filter(|entry| !EXPECTED_BESIDES.contains(&entry.key.as_str())).collect();
    let Some(first) = surplus.first() else { return };
    let message = match surplus.len() {
        1 => format!("unknown key `{}`", first.key),
        count => format!("unknown key `{}` and {} more", first.key, count - 1),
    };
    let nearest = surplus.iter().find_map(|entry| {
        let close = |map: &&&str| strsim::damerau_levenshtein(map, &entry.key) <= 3;
        SERVER_MAPS.iter().find(close).map(|map| format!("did you mean `{map}` instead of `{}`?", entry.key))
    });
    let help = nearest.unwrap_or_else(|| "only the servers of a client's file are used".to_owned());
    findings.warning(findings.diagnostic(message, &first.key_span).help(help));
}

fn name(entry: &Entry, taken: &mut BTreeSet<ServerName>, findings: &mut Findings) -> ServerName {
    let adapted = ServerName::adapt(&entry.key);
    let mut name = adapted.clone();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = adapted.numbered(number);
        number += 1;
    }
    if name.as_str() != entry.key {
        let message = format!("server `{}` is called `{name}` here", entry.key);
        findings.warning(
            findings
                .diagnostic(message, &entry.key_span)
                .help("names are 1 to 64 letters, digits, `_`, `.` and `-`, each used once"),
        );
    }
    name
}
