//! Reads `[http.listeners.NAME]`, and checks what all listeners mean together with `[auth]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::secrets::refuse_exposed;
use super::{World, address, is_id, path, refuse_name};
use crate::access::{AuthSettings, ListenAddress, Listener, ListenerAuth, TlsFiles};
use crate::keys::{self, KeyTable};
use crate::section::{Findings, Section};
use crate::settings::{HttpSettings, TokenSource};
use crate::tree::{Entry, Span, Value};

/// The longest path of a Unix socket that the system takes.
const LONGEST_SOCKET: usize = 107;

/// Whether something is configured that a client could show.
fn has_credentials(http: &HttpSettings, auth: &AuthSettings) -> bool {
    http.token != TokenSource::None || auth.has_credentials()
}

/// Warns of an address that clients type, if nobody could sign in there: everybody would be refused.
pub(super) fn nobody(
    root: &Section<'_>,
    http: &HttpSettings,
    auth: &AuthSettings,
    world: World<'_>,
    findings: &mut Findings,
) {
    let is_url =
        |entry: &&Entry| keys::find(KeyTable::Auth, &entry.key).is_some_and(|key| key.name == "public_url");
    let open = http.listeners.iter().any(|listener| listener.auth == Some(ListenerAuth::Open));
    let admits = has_credentials(http, auth) || auth.local || open || world.environment.makes_keys;
    if auth.public_url.is_none() || admits {
        return;
    }
    if let Some(entry) = root.table("auth").iter().find(is_url) {
        let message = "`public_url` makes the gateway ask for credentials, but nobody has any";
        let help = "name an issuer under `[auth.issuers.NAME]`, make a key with `bridgehead key new NAME`, name a proxy or a token, or remove it";
        findings.warning(findings.diagnostic(message, &entry.key_span).help(help));
    }
}

/// Reads the listeners. `http` has everything else.
pub(super) fn read(
    section: &Section<'_>,
    http: &HttpSettings,
    auth: &AuthSettings,
    world: World<'_>,
    findings: &mut Findings,
) -> Vec<Listener> {
    let mut listeners: Vec<Listener> = Vec::new();
    for entry in section.table("listeners") {
        let Value::Table(entries) = &entry.node.value else { continue };
        if !is_id(&entry.key) {
            refuse_name("a listener", &entry.key, &entry.key_span, findings);
        }
        let section = Section::read(KeyTable::Listener, entries, findings);
        let tls = tls(&section, world, findings);
        let Some((listen, span)) = listen(&section, entry, world, findings) else { continue };
        let auth_here = section.word("auth").map(|(word, span)| match word == "open" {
            true => (ListenerAuth::Open, span),
            false => (ListenerAuth::Required, span),
        });
        if let (ListenAddress::Unix(_), Some(tls)) = (&listen, section.entry("tls")) {
            let message = "`tls` on a Unix socket has no use";
            let help = "remove it: the socket never leaves this machine";
            findings.mistake(findings.diagnostic(message, &tls.key_span).help(help));
        }
        let twin = match &listen {
            ListenAddress::Tcp(address) if collide(*address, http.listen) => Some("http.listen".to_owned()),
            _ => listeners.iter().find(|other| same(&other.listen, &listen)).map(|other| other.name.clone()),
        };
        if let Some(twin) = twin {
            let message = format!("listener `{}` and `{twin}` have the same address", entry.key);
            let help = format!("give each its own; `http.listen` is `{}`", http.listen);
            findings.mistake(findings.diagnostic(message, span).help(help));
        }
        admission(&listen, auth_here, span, has_credentials(http, auth), findings);
        listeners.push(Listener {
            name: entry.key.clone(),
            listen,
            auth: auth_here.map(|(auth, _)| auth),
            tls,
        });
    }
    listeners
}

/// Refuses a listener that would admit strangers, or nobody.
fn admission(
    listen: &ListenAddress,
    auth: Option<(ListenerAuth, &Span)>,
    listen_span: &Span,
    credentials: bool,
    findings: &mut Findings,
) {
    const CURE: &str =
        "configure a key (`bridgehead key new NAME`), an issuer, a proxy, or `http.token_file`";
    let reachable =
        matches!(listen, ListenAddress::Tcp(address) if !address.ip().to_canonical().is_loopback());
    match auth {
        Some((ListenerAuth::Open, span)) if reachable => {
            let message = "`auth = \"open\"` on an address that other machines can reach";
            let help = "listen on `127.0.0.1` or on a Unix socket, or write `auth = \"required\"`";
            findings.mistake(findings.diagnostic(message, span).help(help));
        }
        Some((ListenerAuth::Required, span)) if !credentials => {
            let message = "`auth = \"required\"`, but nothing is configured that a client could show";
            findings.mistake(findings.diagnostic(message, span).help(CURE));
        }
        None if reachable && !credentials => {
            let message = "`listen` is an address that other machines can reach, and nothing is configured that a client could show";
            findings.mistake(findings.diagnostic(message, listen_span).help(CURE));
        }
        _ => {}
    }
}

/// Checks `allowed_origins = ["*"]`: with it, every page in a browser on this machine can reach the gateway, so nobody may be
/// admitted without credentials.
pub(super) fn any_origin(
    section: &Section<'_>,
    http: &HttpSettings,
    auth: &AuthSettings,
    findings: &mut Findings,
) {
    let Some((_, span)) = section.list("allowed_origins").into_iter().find(|(text, _)| *text == "*") else {
        return;
    };
    let open = |listener: &&Listener| {
        listener.auth == Some(ListenerAuth::Open) && matches!(listener.listen, ListenAddress::Tcp(_))
    };
    let (why, help) = if !has_credentials(http, auth) {
        let help = "list the origins, or configure a key, an issuer, a proxy or a token";
        ("no credentials are configured".to_owned(), help)
    } else if auth.local {
        (
            "`auth.local` admits the local user without credentials".to_owned(),
            "list the origins, or remove `local`",
        )
    } else if let Some(listener) = http.listeners.iter().find(open) {
        let help = "list the origins, or listen on a Unix socket there";
        (format!("listener `{}` is open", listener.name), help)
    } else {
        return;
    };
    let message = format!("`allowed_origins = [\"*\"]` lets every web page use the gateway: {why}");
    findings.mistake(findings.diagnostic(message, span).help(help));
}

fn listen<'t>(
    section: &Section<'t>,
    entry: &Entry,
    world: World<'_>,
    findings: &mut Findings,
) -> Option<(ListenAddress, &'t Span)> {
    let Some((text, span)) = section.text("listen") else {
        if !section.mentions("listen") {
            let message = format!("listener `{}` has no `listen`", entry.key);
            let help = "write an address and a port, or `unix:PATH`";
            findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
        }
        return None;
    };
    let found = match text.strip_prefix("unix:") {
        Some("") => None,
        Some(path) => Some(ListenAddress::Unix(world.environment.resolve(path, world.base))),
        None => address(text).map(ListenAddress::Tcp),
    };
    match &found {
        None => {
            let help =
                "write it like `\"127.0.0.1:4849\"`, `\"[::1]:4849\"` or `\"unix:/run/bridgehead.sock\"`";
            findings.mistake(findings.diagnostic("`listen` is not an address with a port", span).help(help));
        }
        Some(ListenAddress::Unix(path)) if path.as_os_str().len() > LONGEST_SOCKET => {
            let message = format!("`listen`: the path of a Unix socket has at most {LONGEST_SOCKET} bytes");
            findings
                .mistake(findings.diagnostic(message, span).help(format!("the path is {}", path.display())));
        }
        Some(_) => {}
    }
    found.map(|found| (found, span))
}

fn tls(section: &Section<'_>, world: World<'_>, findings: &mut Findings) -> Option<TlsFiles> {
    let entry = section.entry("tls")?;
    let section = Section::read(KeyTable::Tls, section.table("tls"), findings);
    let mut file = |key: &str| -> Option<PathBuf> {
        if !section.mentions(key) {
            let message = format!("`tls` has no `{key}`");
            let help = "name both: `cert_file` with the certificates, `key_file` with the private key";
            findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
        }
        path(&section, key, world, findings)
    };
    let (cert_file, key_file) = (file("cert_file"), file("key_file"));
    if let (Some(file), Some((_, span))) = (&key_file, section.text("key_file")) {
        refuse_exposed("key_file", file, span, world, findings);
    }
    Some(TlsFiles { cert_file: cert_file?, key_file: key_file? })
}

fn same(one: &ListenAddress, other: &ListenAddress) -> bool {
    match (one, other) {
        (ListenAddress::Tcp(one), ListenAddress::Tcp(other)) => collide(*one, *other),
        (ListenAddress::Unix(one), ListenAddress::Unix(other)) => one == other,
        _ => false,
    }
}

/// Whether the system would refuse the second of two listeners. Port 0 stands for a free port.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    let all = a.is_unspecified() || b.is_unspecified();
    one.port() == other.port() && one.port() != 0 && (a == b || all && a.is_ipv4() == b.is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-6: two listeners at one address are found before the system refuses the second.
    #[test]
    fn addresses_collide() {
        #[track_caller]
        fn check(one: &str, other: &str, expected: bool) {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(collide(one, other), expected, "{one} {other}");
            assert_eq!(collide(other, one), expected, "{other} {one}");
        }
        check("127.0.0.1:1", "127.0.0.1:1", true);
        check("127.0.0.1:1", "127.0.0.1:2", false);
        check("127.0.0.1:1", "127.0.0.2:1", false);
        check("0.0.0.0:1", "127.0.0.2:1", true);
        check("[::]:1", "[::1]:1", true);
        check("[::]:1", "127.0.0.1:1", false);
        check("[::ffff:127.0.0.1]:1", "127.0.0.1:1", true);
        check("127.0.0.1:0", "127.0.0.1:0", false);
    }
}
