//! Reads `[auth]`: issuers, keys, the trusted proxy, operators.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::rules::{self, Known};
use super::{World, api_keys, is_id, near, path, refuse_name, scopes};
use crate::access::{
    Algorithm, AuthSettings, Introspection, Issuer, KeyRows, PeerNetwork, StepUp, TrustedProxy,
};
use crate::diagnostic::Diagnostic;
use crate::keys::KeyTable;
use crate::keys_file::read_keys;
use crate::secret::Secret;
use crate::section::{Findings, Section};
use crate::tree::{Entry, Span, Value};
use crate::url::{InvalidUrl, Url};

/// The keys file, if the configuration names no other.
const KEYS_FILE: &str = "keys.toml";

/// Reads `[auth]`, whose entry is `None` if it is not written: the keys file counts in any case.
pub(super) fn read(
    written: Option<&Entry>,
    world: World<'_>,
    interpolated: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> AuthSettings {
    let entries: &[Entry] = match written.map(|entry| &entry.node.value) {
        Some(Value::Table(entries)) => entries,
        _ => &[],
    };
    let section = Section::read(KeyTable::Auth, entries, findings);
    let keys_file =
        path(&section, "keys_file", world, findings).unwrap_or_else(|| world.base.join(KEYS_FILE));
    let written = api_keys::read(section.table("keys"), findings);
    let in_file = keys_in_file(&keys_file, &section, findings);
    let mut auth = AuthSettings {
        public_url: public_url(&section, findings),
        local: section.flag("local").unwrap_or(false),
        keys: written.keys,
        keys_in_file: in_file.keys,
        revoked_keys: [written.revoked, in_file.revoked].concat(),
        keys_file: Some(keys_file),
        proxy: proxy(&section, findings),
        step_up: match section.word("step_up") {
            Some(("in-band", _)) => StepUp::InBand,
            _ => StepUp::Http,
        },
        legacy_discovery: section.flag("legacy_discovery").unwrap_or(false),
        ..AuthSettings::default()
    };
    auth.issuers = issuers(&section, auth.public_url.is_some(), world, interpolated, findings);
    if let (true, [], Some(entry)) =
        (auth.legacy_discovery, auth.issuers.as_slice(), section.entry("legacy_discovery"))
    {
        let message = "`legacy_discovery` has no issuer whose metadata it could serve";
        let help = "name one under `[auth.issuers.NAME]`, or remove the key";
        findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
    }
    let known = Known::new(&auth, [].into_iter(), world.environment);
    let operators = rules::everybody("operators", section.list("operators"), &known, findings);
    let readers = rules::everybody("operators_read", section.list("operators_read"), &known, findings);
    (auth.operators, auth.operators_read) = (operators, readers);
    auth
}

/// The rows of the keys file, which need not exist.
fn keys_in_file(file: &PathBuf, section: &Section<'_>, findings: &mut Findings) -> KeyRows {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return KeyRows::default(),
        Err(error) => {
            let message = format!("the keys file `{}` cannot be read: {error}", file.display());
            let diagnostic = match section.text("keys_file") {
                Some((_, span)) => findings.diagnostic(message, span),
                None => Diagnostic::error(message).in_file(file),
            };
            findings.mistake(diagnostic.help("make it readable for the gateway, or name another file"));
            return KeyRows::default();
        }
    };
    read_keys(&text, file).unwrap_or_else(|error| {
        error.0.into_iter().for_each(|diagnostic| findings.mistake(diagnostic));
        KeyRows::default()
    })
}

fn public_url(section: &Section<'_>, findings: &mut Findings) -> Option<String> {
    let (text, span) = section.text("public_url")?;
    let help = match address(text) {
        Err(fault) => Some(format!("{fault}; write it like `https://mcp.example.com/mcp`")),
        Ok(_) if text.ends_with('/') => {
            Some(format!("write `{}`, without the slash at its end", text.trim_end_matches('/')))
        }
        Ok(_) if text.contains(['?', '#']) => Some("leave out what begins with `?` or `#`".to_owned()),
        Ok(_) => None,
    };
    if let Some(help) = help {
        findings.mistake(findings.diagnostic("`public_url` cannot be used", span).help(help));
        return None;
    }
    Some(text.to_owned())
}

/// An address over which credentials or keys travel: with TLS, unless it is on this machine.
fn address(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error: InvalidUrl| error.to_string())?;
    let here = url.host().eq_ignore_ascii_case("localhost")
        || url.host().parse().is_ok_and(|host: std::net::IpAddr| host.is_loopback());
    match () {
        () if url.is_web_socket() => Err("it does not begin with `https://`".to_owned()),
        () if !url.is_secure() && !here => {
            Err("only an address of this machine may do without `https`".to_owned())
        }
        () => Ok(url),
    }
}

fn url(key: &str, section: &Section<'_>, findings: &mut Findings) -> Option<Url> {
    let (text, span) = section.text(key)?;
    let parsed = address(text);
    if let Err(fault) = &parsed {
        let message = format!("`{key}` cannot be used: {fault}");
        findings.mistake(findings.diagnostic(message, span).help("write it like `https://id.example.com/…`"));
    }
    parsed.ok()
}

fn issuers(
    section: &Section<'_>,
    public: bool,
    world: World<'_>,
    interpolated: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> Vec<Issuer> {
    let mut issuers: Vec<Issuer> = Vec::new();
    for entry in section.table("issuers") {
        let Value::Table(entries) = &entry.node.value else { continue };
        if !is_id(&entry.key) {
            refuse_name("an issuer", &entry.key, &entry.key_span, findings);
        }
        let section = Section::read(KeyTable::Issuer, entries, findings);
        let Some((identifier, span)) = required(&section, "issuer", &entry.key_span, findings) else {
            continue;
        };
        let fault = match address(identifier) {
            Err(fault) => Some(fault),
            Ok(_) if identifier.contains(['?', '#']) => Some("it has a query or a fragment".to_owned()),
            Ok(_) => None,
        };
        if let Some(fault) = fault {
            let message = format!("`issuer` is not the identifier of an issuer: {fault}");
            let help =
                "write it exactly as tokens have it in `iss`, such as `https://id.example.com/realms/corp`";
            findings.mistake(findings.diagnostic(message, span).help(help));
        }
        if let Some(twin) = issuers.iter().find(|other| other.issuer == identifier) {
            let message = format!("issuers `{}` and `{}` have the same identifier", twin.name, entry.key);
            let help = "keep one: a token could belong to either, and its principal has one name";
            findings.mistake(findings.diagnostic(message, span).help(help));
        }
        let mut issuer = Issuer::new(&entry.key, identifier);
        issuer.audiences = texts(&section, "audiences", findings);
        issuer.algorithms = algorithms(&section, findings);
        issuer.jwks = url("jwks", &section, findings);
        issuer.introspection = introspection(&section, world, interpolated, findings);
        issuer.groups_claim = filled(&section, "groups_claim", findings);
        issuer.required_scopes = scopes("required_scopes", section.list("required_scopes"), findings);
        for (scope, includes) in section.lists("scope_includes") {
            let whole = scopes("scope_includes", vec![(&scope.key, &scope.key_span)], findings);
            let parts = scopes("scope_includes", includes, findings);
            issuer.scope_includes.extend(whole.into_iter().map(|whole| (whole, parts.clone())));
        }
        if !public && !section.mentions("audiences") {
            let message =
                format!("issuer `{}` has no audience, so no token of it could be accepted", entry.key);
            let help = "set `public_url` in `[auth]`, or list the `audiences` that its tokens have";
            findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
        }
        issuers.push(issuer);
    }
    issuers
}

/// The text of a key that must be written and not be empty.
fn required<'t>(
    section: &Section<'t>,
    key: &str,
    heading: &Span,
    findings: &mut Findings,
) -> Option<(&'t str, &'t Span)> {
    let found = section.text(key);
    match found {
        Some(("", span)) => {
            findings.mistake(findings.diagnostic(format!("`{key}` is empty"), span).help("write its value"));
            return None;
        }
        None if !section.mentions(key) => {
            let message = format!("`{key}` is missing");
            findings.mistake(findings.diagnostic(message, heading).help(format!("write `{key}` here")));
        }
        _ => {}
    }
    found
}

/// The text of a key that may be left out, but not be empty.
fn filled(section: &Section<'_>, key: &str, findings: &mut Findings) -> Option<String> {
    let (text, span) = section.text(key)?;
    if text.is_empty() {
        let diagnostic = findings.diagnostic(format!("`{key}` is empty"), span);
        findings.mistake(diagnostic.help("write its value, or remove the key"));
        return None;
    }
    Some(text.to_owned())
}

/// A list of texts that may be left out, but neither be empty nor have an empty entry.
fn texts(section: &Section<'_>, key: &str, findings: &mut Findings) -> Vec<String> {
    let listed = section.list(key);
    let empty = listed.iter().find(|(text, _)| text.is_empty()).map(|(_, span)| *span);
    let fault = match section.entry(key) {
        Some(entry) if listed.is_empty() => Some((format!("`{key}` is empty"), &entry.node.span)),
        _ => empty.map(|span| (format!("an entry of `{key}` is empty"), span)),
    };
    if let Some((message, span)) = fault {
        findings.mistake(findings.diagnostic(message, span).help("write a value, or remove the key"));
    }
    listed.into_iter().map(|(text, _)| text.to_owned()).collect()
}

fn algorithms(section: &Section<'_>, findings: &mut Findings) -> Vec<Algorithm> {
    if !section.mentions("algorithms") {
        return Algorithm::ALL.to_vec();
    }
    let all = || Algorithm::ALL.into_iter().map(Algorithm::as_str);
    let mut algorithms = Vec::new();
    for text in texts(section, "algorithms", findings) {
        match Algorithm::ALL.into_iter().find(|known| known.as_str() == text) {
            Some(algorithm) => algorithms.push(algorithm),
            None => {
                let Some((_, span)) = section.list("algorithms").into_iter().find(|(one, _)| *one == text)
                else {
                    continue;
                };
                if text.is_empty() {
                    continue;
                }
                let diagnostic = findings
                    .diagnostic(format!("`algorithms`: `{text}` is not accepted"), span)
                    .help(format!("use {}", quoted(all())));
                findings.mistake(match near(&text, all()) {
                    Some(meant) => diagnostic.label(format!("did you mean `{meant}`?")),
                    None => diagnostic,
                });
            }
        }
    }
    algorithms
}

fn quoted<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn introspection(
    section: &Section<'_>,
    world: World<'_>,
    interpolated: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> Option<Introspection> {
    let entry = section.entry("introspection")?;
    let section = Section::read(KeyTable::Introspection, section.table("introspection"), findings);
    let url = url("url", &section, findings);
    let client_id = required(&section, "client_id", &entry.key_span, findings);
    let client_secret = required(&section, "client_secret", &entry.key_span, findings);
    let client_secret = client_secret.and_then(|(text, span)| {
        world
            .fill(text, interpolated)
            .map_err(|refusal| {
                let message = format!("`client_secret`: {refusal}");
                findings.mistake(findings.diagnostic(message, span).help(refusal.cure()));
            })
            .ok()
    });
    Some(Introspection {
        url,
        client_id: client_id?.0.to_owned(),
        client_secret: Secret::new(client_secret?),
    })
}

/// Headers that cannot name a principal: clients set them themselves, or they describe the connection.
const NEVER_OF_A_PROXY: [&str; 7] =
    ["authorization", "connection", "content-length", "cookie", "host", "origin", "proxy-authorization"];

fn proxy(section: &Section<'_>, findings: &mut Findings) -> Option<TrustedProxy> {
    let entry = section.entry("proxy")?;
    let section = Section::read(KeyTable::TrustedProxy, section.table("proxy"), findings);
    let networks: Vec<_> = section.list("proxies");
    if networks.is_empty() && section.entry("proxies").is_some() | !section.mentions("proxies") {
        let span = section.entry("proxies").map_or(&entry.key_span, |entry| &entry.node.span);
        let message = "`proxies` names no proxy, so everybody or nobody would be believed";
        let help = "list the addresses of the proxy, such as `proxies = [\"10.0.0.7\"]`";
        findings.mistake(findings.diagnostic(message, span).help(help));
    }
    let mut proxies = Vec::new();
    for (text, span) in networks {
        match network(text) {
            Some(network) => {
                if network.prefix == 0 {
                    let message = format!("`{text}` in `proxies` is every address");
                    let help = "everybody who reaches the gateway can then claim to be anybody; list the proxy alone";
                    findings.mistake(findings.diagnostic(message, span).help(help));
                }
                proxies.push(network);
            }
            None => {
                let message = "an entry of `proxies` is not an address or a network";
                let help = "write it like `10.0.0.7`, `10.0.0.0/8` or `fd00::/8`";
                findings.mistake(findings.diagnostic(message, span).help(help));
            }
        }
    }
    // Without it the proxy names nobody: only the address of its client is believed.
    let user_header = section.text("user_header");
    let groups_header = section.text("groups_header");
    if let (false, Some((_, span))) = (section.mentions("user_header"), groups_header) {
        let message = "`groups_header` has no effect without `user_header`";
        let help = "name the header with the user as `user_header`, or remove `groups_header`";
        findings.mistake(findings.diagnostic(message, span).help(help));
    }
    for (key, header) in [("user_header", user_header), ("groups_header", groups_header)] {
        let Some((name, span)) = header else { continue };
        if NEVER_OF_A_PROXY.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            let message = format!("`{key}` cannot be `{name}`, which clients set themselves");
            let help = "use a header of the proxy's own, such as `X-Forwarded-User`";
            findings.mistake(findings.diagnostic(message, span).help(help));
        } else if !is_header(name) {
            let message = format!("`{key}` is not the name of a header");
            findings.mistake(findings.diagnostic(message, span).help("use letters, digits and `-`"));
        }
    }
    if let (Some((user, _)), Some((groups, span))) = (user_header, groups_header)
        && user.eq_ignore_ascii_case(groups)
    {
        let message = "`user_header` and `groups_header` are the same header";
        findings.mistake(findings.diagnostic(message, span).help("use one header for each"));
    }
    Some(TrustedProxy {
        proxies,
        user_header: user_header.map(|(name, _)| name.to_owned()),
        groups_header: groups_header.map(|(name, _)| name.to_owned()),
    })
}

fn is_header(name: &str) -> bool {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(token)
}

fn network(text: &str) -> Option<PeerNetwork> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: std::net::IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => width,
        Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= width)?,
    };
    Some(PeerNetwork { address, prefix })
}
