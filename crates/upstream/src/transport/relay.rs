//! The relay: a separate process that reaches a remote server.
//!
//! The relay is this program under another verb, with the server's address and headers in its environment. It
//! speaks to the process that started it over stdio, like any server. So a call to a remote server can run in a
//! process tree with limits, and data from an untrusted peer is parsed there and not in the gateway. A relay has
//! only the configured headers: credentials that change stay in the gateway.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use bridgehead_config::{
    EraChoice, Isolation, Launch, Proxy, Remote, RemoteTransport, Secret, ServerConfig, Stdio,
};
use serde::{Deserialize, Serialize};

use super::credentials::CredentialSource;

/// The verb that makes the program a relay.
pub const VERB: &str = "relay";
/// The variable that tells a relay which server to reach.
pub const VARIABLE: &str = "RELAYED_SERVER";

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that relays, under the verb [`VERB`]. Only the first call counts.
pub fn use_relay(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// What a relay is told.
#[derive(Serialize, Deserialize)]
struct Told {
    url: String,
    transport: u8,
    headers: BTreeMap<String, String>,
    proxy: Option<String>,
    follow_redirects: bool,
    era: u8,
}

const TRANSPORTS: [RemoteTransport; 4] =
    [RemoteTransport::Probe, RemoteTransport::Http, RemoteTransport::Sse, RemoteTransport::WebSocket];
const ERAS: [EraChoice; 3] = [EraChoice::Auto, EraChoice::Modern, EraChoice::Legacy];

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).and_then(|at| u8::try_from(at).ok()).unwrap_or_default()
}

/// The server as it is run: a remote server with a process per call goes through a relay.
pub(crate) fn relayed(mut server: ServerConfig, source: Option<&CredentialSource>) -> ServerConfig {
    let Launch::Remote(remote) = &server.launch else { return server };
    // Without the feature `http`, the connection itself says what is missing.
    if server.isolation != Isolation::Call || !cfg!(feature = "http") {
        return server;
    }
    if source.is_some_and(|source| source.choose(remote).is_some()) {
        let reason = "with `isolation = \"call\"` a `url` is reached from another process, which has the configured \
                      `headers` and no other credentials: choose the isolation `shared` or `session`";
        server.launch = Launch::Unusable { reason: reason.to_owned() };
        return server;
    }
    let headers = remote.headers.iter().map(|(name, value)| (name.clone(), value.expose().to_owned()));
    let told = Told {
        url: remote.url.expose(),
        transport: place(&TRANSPORTS, &remote.transport),
        headers: headers.collect(),
        proxy: remote.proxy.as_ref().map(Proxy::expose),
        follow_redirects: remote.follow_redirects,
        era: place(&ERAS, &server.era),
    };
    server.launch = match (PROGRAM.get().and_then(|program| program.to_str()), serde_json::to_string(&told)) {
        (Some(program), Ok(told)) => {
            let mut stdio = Stdio::new(program, [VERB]);
            stdio.env.insert(VARIABLE.to_owned(), Secret::new(told));
            Launch::Stdio(stdio)
        }
        _ => Launch::Unusable {
            reason: "with `isolation = \"call\"` a `url` is reached from another process of this program, which is not \
                     set up for it: build it with the feature `server` and call `bridgehead::main_if_asked()` first in \
                     its `main`, or choose the isolation `shared` or `session`"
                .to_owned(),
        },
    };
    // The configured era is for the relay's own connection; the link to the relay negotiates.
    server.era = EraChoice::Auto;
    server
}

/// The server that a relay must reach, from the text of its variable.
pub fn told(text: &str) -> Option<(Remote, EraChoice)> {
    let Told { url, transport, headers, proxy, follow_redirects, era } = serde_json::from_str(text).ok()?;
    let headers = headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    let transport = *TRANSPORTS.get(usize::from(transport))?;
    let proxy = match proxy {
        Some(proxy) => Some(proxy.parse().ok()?),
        None => None,
    };
    let remote = Remote { url: url.parse().ok()?, transport, headers, proxy, follow_redirects };
    Some((remote, *ERAS.get(usize::from(era))?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bridgehead_config::GatewaySettings;

    use super::*;
    use crate::transport::credentials::ConfiguredHeaders;

    /// GATE-7: a relay gets the configured headers, and is not used with other credentials.
    #[test]
    fn a_relay_is_told_whom_to_reach() {
        let mut remote = Remote::new("https://example.com/mcp".parse().unwrap());
        remote.transport = RemoteTransport::Http;
        remote.headers.insert("Authorization".to_owned(), Secret::new("hunter2"));
        remote.proxy = Some("http://me:hunter2@proxy:3128".parse().unwrap());
        remote.follow_redirects = true;
        let name: bridgehead_config::ServerName = "far".parse().unwrap();
        let mut server = ServerConfig::new(name, Launch::Remote(remote.clone()), &GatewaySettings::default());
        assert_eq!(relayed(server.clone(), None), server, "a shared server needs no relay");

        (server.isolation, server.era) = (Isolation::Call, EraChoice::Legacy);
        assert!(
            matches!(relayed(server.clone(), None).launch, Launch::Unusable { .. }),
            "no relay program is set"
        );
        use_relay("/bin/relay".into());
        let through = relayed(server.clone(), None);
        let Launch::Stdio(stdio) = &through.launch else { panic!("{through:?}") };
        assert_eq!((stdio.command.as_str(), stdio.args.as_slice()), ("/bin/relay", &[VERB.to_owned()][..]));
        assert!(!format!("{through:?}").contains("hunter2"));
        assert_eq!(told(stdio.env[VARIABLE].expose()), Some((remote, EraChoice::Legacy)));
        assert_eq!(
            (
                told("{}"),
                told(r#"{"url":"https://a/","transport":9,"headers":{},"follow_redirects":false,"era":0}"#)
            ),
            (None, None)
        );

        let none = CredentialSource::new(|_| None);
        assert_eq!(relayed(server.clone(), Some(&none)).launch, through.launch);
        let others = CredentialSource::new(|remote| Some(Arc::new(ConfiguredHeaders::of(remote))));
        let Launch::Unusable { reason } = relayed(server, Some(&others)).launch else { panic!("a relay") };
        assert!(reason.contains("no other credentials: choose the isolation `shared`"), "{reason}");
    }
}
