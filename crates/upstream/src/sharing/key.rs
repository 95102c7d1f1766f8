//! The identity of a server: servers with equal keys may share a process, servers with different keys never do.
//!
//! The server's name is not part of it. The code destructures every field of the configuration, so that a new field
//! cannot be forgotten.

use std::collections::BTreeMap;
use std::fmt;

use bridgehead_config::{Launch, Proxy, Remote, ServerConfig, Stdio};
use bridgehead_wire::Abilities;
use sha2::{Digest, Sha256};
use tokio::runtime::{Handle, Id};

use crate::link::negotiate::Offer;
use crate::server::Surroundings;
use crate::server::given;
use crate::transport::credentials::CredentialSource;

/// The clients that a process runs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    /// All with the same configuration.
    Shared,
    /// One client session, by its number.
    Session(u64),
    /// One call, by a unique number.
    Call(u64),
    /// One call at a time, of clients that declared these abilities, by a unique number.
    Lease(u64, Abilities),
    /// All clients that declared these abilities.
    Class(Abilities),
}

impl Scope {
    /// What a legacy server is told that it may ask for.
    pub(crate) const fn offer(self) -> Offer {
        match self {
            Self::Shared | Self::Call(_) => Offer::Questions,
            Self::Session(_) => Offer::Session,
            Self::Lease(_, abilities) | Self::Class(abilities) => Offer::Only(abilities),
        }
    }
}

/// The sharing key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    identity: Identity,
    kept: [u8; 32],
    scope: Scope,
    /// The source of a remote server's credentials, by its number: under another source the same headers may stand
    /// for another principal.
    credentials: Option<usize>,
    /// A process is driven by tasks, which end with their runtime.
    runtime: Id,
}

/// What is run and with which inputs. It is a digest because it covers secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity([u8; 32]);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({self})")
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Key {
    pub(crate) fn of(
        server: &ServerConfig,
        surroundings: &Surroundings,
        scope: Scope,
        runtime: &Handle,
    ) -> Self {
        let ServerConfig {
            launch,
            restart,
            jitter,
            start_timeout,
            stable_after,
            probe_interval,
            health_probe,
            isolation: _, // is the scope
            idle_timeout,
            lazy,
            era,
            limits,
            require,
            confinement,
            // How calls are handled is up to each gateway.
            name: _,
            prefix: _,
            request_timeout: _,
            max_total: _,
            tools: _,
            filter: _,
            retry: _,
            output: _,
            queue: _,
            interactive: _,
            max_leases: _,
            max_session_processes: _,
            question_timeout: _,
            cancel_grace: _,
            roots,
        } = server;
        let mut kept = Fields::default();
        for flag in [*restart, *jitter, *lazy] {
            kept.add(&[u8::from(flag)]);
        }
        for time in [*start_timeout, *stable_after, *probe_interval, idle_timeout.unwrap_or_default()] {
            kept.add(&time.as_nanos().to_le_bytes());
        }
        kept.add(format!("{era:?}").as_bytes());
        kept.add(format!("{health_probe:?}").as_bytes());
        kept.add(roots.as_ref().map_or(&b""[..], |roots| roots.as_str().as_bytes()));
        // The gateway enforces how long a call may run, but servers that differ only in that are rare.
        kept.add(format!("{limits:?}{require:?}{confinement:?}").as_bytes());
        kept.add(format!("{:?}", surroundings.policy).as_bytes());
        let identity = Identity::of(launch, surroundings);
        let credentials = match launch {
            Launch::Remote(_) => surroundings.credentials.as_ref().map(CredentialSource::number),
            Launch::Stdio(_) | Launch::Unusable { .. } => None,
        };
        Self { identity, kept: kept.finish(), scope, credentials, runtime: runtime.id() }
    }

    /// Whether a source chooses the credentials that the server sees.
    pub(crate) const fn has_credential_source(&self) -> bool {
        self.credentials.is_some()
    }
}

impl Identity {
    fn of(launch: &Launch, surroundings: &Surroundings) -> Self {
        let given = |stdio: &Stdio| given::environment(stdio, &surroundings.environment);
        Self::with(launch, &surroundings.limit.to_le_bytes(), given)
    }

    /// The identity of a server's saved list: its configuration with every value that it names, and its user. What else the
    /// gateway was started with differs from client to client, and a list that is outdated by that is corrected anyway.
    pub(crate) fn of_saved(launch: &Launch, surroundings: &Surroundings) -> Self {
        Self::with(launch, b"saved", |stdio| given::configured(stdio, &surroundings.environment))
    }

    fn with(launch: &Launch, kind: &[u8], given: impl Fn(&Stdio) -> BTreeMap<String, String>) -> Self {
        let mut fields = Fields::default();
        fields.add(kind);
        match launch {
            Launch::Stdio(stdio @ Stdio { command, args, env: _, inherit_env: _, cwd }) => {
                fields.add(b"stdio");
                fields.add(command.as_bytes());
                fields.list(args.iter().map(String::as_bytes));
                fields.add(cwd.as_ref().map_or(&b""[..], |cwd| cwd.as_os_str().as_encoded_bytes()));
                let given = given(stdio);
                fields.list(given.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]));
            }
            Launch::Remote(Remote { url, transport, headers, proxy, follow_redirects }) => {
                fields.add(b"remote");
                fields.add(url.expose().as_bytes());
                fields.add(format!("{transport:?}").as_bytes());
                fields.list(
                    headers.iter().flat_map(|(name, value)| [name.as_bytes(), value.expose().as_bytes()]),
                );
                fields.add(proxy.as_ref().map(Proxy::expose).unwrap_or_default().as_bytes());
                fields.add(&[u8::from(*follow_redirects)]);
            }
            Launch::Unusable { reason } => {
                fields.add(b"unusable");
                fields.add(reason.as_bytes());
            }
        }
        Self(fields.finish())
    }
}

/// A digest of fields, each with its length, so that no two different lists of fields give the same bytes.
#[derive(Default)]
struct Fields(Sha256);

impl Fields {
    fn add(&mut self, field: &[u8]) {
        self.0.update(field.len().to_le_bytes());
        self.0.update(field);
    }

    fn list<'a>(&mut self, items: impl Iterator<Item = &'a [u8]>) {
        let items: Vec<_> = items.collect();
        self.0.update(items.len().to_le_bytes());
        items.into_iter().for_each(|item| self.add(item));
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}
