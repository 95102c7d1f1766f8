//! The relay: a separate process that reaches a remote server.
//!
//! The relay is this program under another verb, with the server's address and headers in its environment. It
//! speaks to the process that started it over stdio, like any server. So a call to a remote server can run in a
//! process tree with limits, and data from an untrusted peer is parsed there and not in the gateway. A relay has
//! only the configured headers: credentials that change stay in the gateway.
//!
//! The gateway supervises what is behind the relay, not the relay. So the relay answers nothing by itself
//! ([`carry`]): probes reach the server, results arrive byte for byte, and when the server is lost the relay ends and
//! says why. What has no form in JSON-RPC, such as a request that the server turned away, travels as an error that
//! only the link to a relay understands (`loss`).

#[cfg(feature = "http")]
pub mod carry;
pub(crate) mod loss;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use bridgehead_config::{
    EraChoice, GatewaySettings, Isolation, Launch, Proxy, Remote, RemoteTransport, Roots, Secret,
    ServerConfig, Stdio,
};
use serde::{Deserialize, Serialize};

use super::credentials::CredentialSource;

/// The verb that makes the program a relay.
pub const VERB: &str = "relay";
/// The variable that tells a relay which server to reach.
pub const VARIABLE: &str = "RELAYED_SERVER";

/// Why a relay ends that cannot reach its server, or has lost it. The last line on its stderr says it in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossKind {
    /// The next attempt may succeed.
    Passing,
    /// The next attempt will fail the same way.
    Lasting,
    /// The server wants other credentials.
    Denied,
}

impl LossKind {
    const ALL: [Self; 3] = [Self::Passing, Self::Lasting, Self::Denied];

    /// The status that such a relay exits with.
    pub const fn status(self) -> i32 {
        match self {
            Self::Passing => 75,
            Self::Denied => 77,
            Self::Lasting => 78,
        }
    }

    /// The reason of a relay that exited with this status.
    pub(crate) fn of(status: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.status() == status)
    }
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that relays, under the verb [`VERB`]. Only the first call counts.
pub fn use_relay(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// What a relay is told.
#[derive(Serialize, Deserialize)]
struct Told {
    name: String,
    url: String,
    transport: u8,
    headers: BTreeMap<String, String>,
    proxy: Option<String>,
    follow_redirects: bool,
    era: u8,
    /// The answer to questions for roots.
    roots: Option<String>,
    /// The largest accepted message, in bytes.
    limit: usize,
}

/// What a relay does.
#[derive(Debug, PartialEq)]
pub struct Task {
    /// The server to reach.
    server: ServerConfig,
    /// The largest accepted message, in bytes.
    limit: usize,
}

const TRANSPORTS: [RemoteTransport; 4] =
    [RemoteTransport::Probe, RemoteTransport::Http, RemoteTransport::Sse, RemoteTransport::WebSocket];
const ERAS: [EraChoice; 3] = [EraChoice::Auto, EraChoice::Modern, EraChoice::Legacy];

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).and_then(|at| u8::try_from(at).ok()).unwrap_or_default()
}

/// Whether this program is a relay.
pub(crate) fn is_relay(stdio: &Stdio) -> bool {
    stdio.args == [VERB] && stdio.env.contains_key(VARIABLE)
}

/// The server as it is run: a remote server with a process per call goes through a relay. `limit` is the largest
/// accepted message.
pub(crate) fn relayed(
    mut server: ServerConfig,
    source: Option<&CredentialSource>,
    limit: usize,
) -> ServerConfig {
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
        name: server.name.to_string(),
        url: remote.url.expose(),
        transport: place(&TRANSPORTS, &remote.transport),
        headers: headers.collect(),
        proxy: remote.proxy.as_ref().map(Proxy::expose),
        follow_redirects: remote.follow_redirects,
        era: place(&ERAS, &server.era),
        roots: server.roots.as_ref().map(|roots| roots.as_str().to_owned()),
        limit,
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

/// What a relay does, from the text of its variable.
pub fn told(text: &str) -> Option<Task> {
    let Told { name, url, transport, headers, proxy, follow_redirects, era, roots, limit } =
        serde_json::from_str(text).ok()?;
    let headers = headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    let transport = *TRANSPORTS.get(usize::from(transport))?;
    let proxy = match proxy {
        Some(proxy) => Some(proxy.parse().ok()?),
        None => None,
    };
    let remote = Remote { url: url.parse().ok()?, transport, headers, proxy, follow_redirects };
    let mut server =
        ServerConfig::new(name.parse().ok()?, Launch::Remote(remote), &GatewaySettings::default());
    server.era = *ERAS.get(usize::from(era))?;
    server.roots = roots.as_deref().and_then(Roots::answered);
    Some(Task { server, limit })
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
        assert_eq!(relayed(server.clone(), None, 9), server, "a shared server needs no relay");

        (server.isolation, server.era) = (Isolation::Call, EraChoice::Legacy);
        server.roots = Some(Roots::of(["file:///a".to_owned()]));
        assert!(
            matches!(relayed(server.clone(), None, 9).launch, Launch::Unusable { .. }),
            "no relay program is set"
        );
        use_relay("/bin/relay".into());
        let through = relayed(server.clone(), None, 9);
        let Launch::Stdio(stdio) = &through.launch else { panic!("{through:?}") };
        assert_eq!((stdio.command.as_str(), stdio.args.as_slice()), ("/bin/relay", &[VERB.to_owned()][..]));
        assert!(!format!("{through:?}").contains("hunter2"));
        assert!(is_relay(stdio) && !is_relay(&Stdio::new("/bin/relay", [VERB])));
        let text = stdio.env[VARIABLE].expose();
        let task = told(text).unwrap();
        assert_eq!(task.server.launch, Launch::Remote(remote));
        assert_eq!((&task.server.name, task.server.era), (&server.name, EraChoice::Legacy));
        assert_eq!((task.server.roots, task.limit), (server.roots.clone(), 9));
        assert_eq!(told("{}"), None);
        assert_eq!(told(&text.replace(r#""transport":1"#, r#""transport":9"#)), None);

        let none = CredentialSource::new(|_| None);
        assert_eq!(relayed(server.clone(), Some(&none), 9).launch, through.launch);
        let others = CredentialSource::new(|remote| Some(Arc::new(ConfiguredHeaders::of(remote))));
        let Launch::Unusable { reason } = relayed(server, Some(&others), 9).launch else { panic!("a relay") };
        assert!(reason.contains("no other credentials: choose the isolation `shared`"), "{reason}");
    }
}
