//! Who may call, what each may use, and how much: the checked form of `[auth]`, `[[policy]]` and `[[limits.rules]]`.
//!
//! Names of servers, issuers and keys in rules are known to exist, and patterns are known to compile. Who a rule speaks of is
//! a [`Who`]; it is written as the id of a principal or a group.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::secret::Secret;
use crate::url::Url;

/// `[auth]`: who is admitted, and as whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthSettings {
    /// The address that clients type, without a slash at the end: the base of metadata and challenges, and the audience of
    /// tokens.
    pub public_url: Option<String>,
    /// Whether a connection over loopback without credentials is its local user, although other credentials are configured.
    pub local: bool,
    /// The issuers of tokens, in the order of the file.
    pub issuers: Vec<Issuer>,
    /// The keys of the configuration file, by name. One name may have several, which are valid side by side.
    pub keys: Vec<ApiKey>,
    /// The keys that `keys_file` had when the configuration was read. Whoever watches the file replaces them.
    pub keys_in_file: Vec<ApiKey>,
    /// The names of revoked keys, which rules may still have. They admit nobody.
    pub revoked_keys: Vec<RevokedKey>,
    /// The file to which `key new` adds keys, and which the gateway watches. It need not exist.
    pub keys_file: Option<PathBuf>,
    /// Whether the group of the keys file may read it (`secrets.allow_group_read`).
    pub allow_group_read: bool,
    /// The proxy that names its clients, or only their addresses.
    pub proxy: Option<TrustedProxy>,
    /// Who may use the operators' API.
    pub operators: Vec<Who>,
    /// Who may use the part of the operators' API that changes nothing.
    pub operators_read: Vec<Who>,
    /// How a missing scope is answered.
    pub step_up: StepUp,
    /// Whether the metadata of the first issuer is served at the old place, for clients of 2025-03-26.
    pub legacy_discovery: bool,
}

impl AuthSettings {
    /// Whether a caller without credentials is refused at every listener that is not open.
    pub fn refuses_strangers(&self) -> bool {
        self.asks_for_credentials() && !self.local
    }

    /// Whether `[auth]` names credentials or an address, so that a caller without credentials is refused. When the last key is
    /// revoked, nobody is admitted who was not before.
    pub fn asks_for_credentials(&self) -> bool {
        self.public_url.is_some() || self.has_credentials() || !self.revoked_keys.is_empty()
    }

    /// Whether a caller could show something that is configured: a key, a token of an issuer, the header of a proxy.
    pub fn has_credentials(&self) -> bool {
        let keys = !(self.keys.is_empty() && self.keys_in_file.is_empty());
        let named = self.proxy.as_ref().is_some_and(|proxy| proxy.user_header.is_some());
        keys || !self.issuers.is_empty() || named
    }
}

/// One API key: a digest, never the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The name, which makes the principal `key:NAME`.
    pub name: String,
    /// The SHA-256 of the whole key.
    pub sha256: [u8; 32],
    /// The groups of its holder.
    pub groups: Vec<String>,
    /// The scopes of its holder.
    pub scopes: Vec<String>,
    /// When it stops working.
    pub expires: Option<Timestamp>,
}

/// What is left of a revoked key: a name and groups that rules may still have. It has no digest, so it admits nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokedKey {
    /// The name that the key had.
    pub name: String,
    /// The groups that its holder was in.
    pub groups: Vec<String>,
    /// When it was revoked.
    pub at: Timestamp,
}

/// The rows of a keys file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRows {
    /// The keys that it holds.
    pub keys: Vec<ApiKey>,
    /// The names of keys that it held.
    pub revoked: Vec<RevokedKey>,
}

/// `[auth.issuers.NAME]`: an authorization server whose tokens are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issuer {
    /// The name in the file; the principals of this issuer are `NAME/SUB`.
    pub name: String,
    /// The issuer's identifier, compared byte for byte with `iss`.
    pub issuer: String,
    /// Which audiences are accepted besides `public_url`.
    pub audiences: Vec<String>,
    /// Which signature algorithms are accepted.
    pub algorithms: Vec<Algorithm>,
    /// Where its keys are; found through its metadata if absent.
    pub jwks: Option<Url>,
    /// How opaque tokens are checked; if present, tokens of this issuer are introspected and never parsed.
    pub introspection: Option<Introspection>,
    /// The claim that lists groups.
    pub groups_claim: Option<String>,
    /// Scopes that every request needs.
    pub required_scopes: Vec<String>,
    /// Which scopes include others: a token with the first has all of the second.
    pub scope_includes: Vec<(String, Vec<String>)>,
}

impl Issuer {
    /// An issuer with the defaults of every key.
    pub fn new(name: impl Into<String>, issuer: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            issuer: issuer.into(),
            audiences: Vec::new(),
            algorithms: Algorithm::ALL.to_vec(),
            jwks: None,
            introspection: None,
            groups_claim: None,
            required_scopes: Vec::new(),
            scope_includes: Vec::new(),
        }
    }
}

/// A signature algorithm of tokens. Symmetric ones are left out on purpose: the keys of an issuer are public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of RFC 7518 and RFC 8037")]
pub enum Algorithm {
    RS256,
    PS256,
    ES256,
    EdDSA,
}

impl Algorithm {
    /// All of them, in the order of preference.
    pub const ALL: [Self; 4] = [Self::RS256, Self::PS256, Self::ES256, Self::EdDSA];

    /// The name in a token's header.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RS256 => "RS256",
            Self::PS256 => "PS256",
            Self::ES256 => "ES256",
            Self::EdDSA => "EdDSA",
        }
    }
}

/// `[auth.issuers.NAME.introspection]`: the issuer is asked about each token (RFC 7662).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introspection {
    /// Its address; found through the issuer's metadata if absent.
    pub url: Option<Url>,
    /// The gateway's own client id there.
    pub client_id: String,
    /// The gateway's own secret there.
    pub client_secret: Secret,
}

/// `[auth.proxy]`: a proxy that says whose requests it forwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxy {
    /// The peers that are believed: never empty. A Unix socket listener is believed without being listed.
    pub proxies: Vec<PeerNetwork>,
    /// The header that names the principal; `None` if the proxy authenticates nobody, so that only the address of its client is
    /// believed.
    pub user_header: Option<String>,
    /// The header that lists groups, separated by commas.
    pub groups_header: Option<String>,
}

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerNetwork {
    /// Its first address.
    pub address: IpAddr,
    /// How many leading bits count.
    pub prefix: u8,
}

impl PeerNetwork {
    /// Whether an address is in this range. An IPv4 address that is written as IPv6 counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let ((own, width), (other, other_width)) = (bits(self.address), bits(address.to_canonical()));
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(width))).unwrap_or_default();
        width == other_width && own & mask == other & mask
    }
}

/// How a call whose scope is missing is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepUp {
    /// As the protocol says: status 403 with a challenge that names the scopes.
    #[default]
    Http,
    /// As a JSON-RPC error that names the scopes.
    InBand,
}

/// Whom a rule speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Who {
    /// `*`: everybody who is admitted.
    Everyone,
    /// `local`: the gateway's own user on this machine.
    Local,
    /// `local:UID`: a user of this machine.
    LocalUser(u32),
    /// `token`: the holder of the endpoint's bearer token.
    Token,
    /// `key:NAME`
    Key(String),
    /// `group:NAME`
    Group(String),
    /// `ISSUER/SUB`; a `*` as the subject stands for everybody of that issuer.
    Subject {
        /// The issuer's name in the file.
        issuer: String,
        /// The subject, or `*`.
        subject: String,
    },
    /// `proxy:NAME`
    Proxy(String),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("*"),
            Self::Local => f.write_str("local"),
            Self::LocalUser(user) => write!(f, "local:{user}"),
            Self::Token => f.write_str("token"),
            Self::Key(name) => write!(f, "key:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Subject { issuer, subject } => write!(f, "{issuer}/{subject}"),
            Self::Proxy(name) => write!(f, "proxy:{name}"),
        }
    }
}

/// One `[[policy]]`: what some principals may use, and what they may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Whom it speaks of; never empty.
    pub who: Vec<Who>,
    /// The tools that they may call.
    pub tools: Vec<ThingPattern>,
    /// The prompts that they may get.
    pub prompts: Vec<ThingPattern>,
    /// The resources that they may read.
    pub resources: Vec<ThingPattern>,
    /// The tools that they may not call, whatever other rules allow.
    pub deny_tools: Vec<ThingPattern>,
    /// The prompts that they may not get.
    pub deny_prompts: Vec<ThingPattern>,
    /// The resources that they may not read.
    pub deny_resources: Vec<ThingPattern>,
    /// Scopes that a call of these tools needs besides the rule.
    pub scopes: Vec<(ThingPattern, Vec<String>)>,
    /// Whether it admits, of the tools it names, only those that say that they change nothing.
    pub read_only: bool,
    /// Its line in the file, from 1.
    pub line: usize,
}

impl PolicyRule {
    /// Whether it allows something. Once one rule does, what no rule allows is denied.
    pub fn allows(&self) -> bool {
        !(self.tools.is_empty() && self.prompts.is_empty() && self.resources.is_empty())
    }
}

/// `SERVER/NAME`, where both may be patterns, and the name is the one that the server knows. The gateway's own things belong
/// to the server `bridgehead`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThingPattern {
    /// The server's name, or a pattern.
    pub server: String,
    /// The name or URI at the server, or a pattern.
    pub name: String,
}

impl fmt::Display for ThingPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.name)
    }
}

#[cfg(feature = "globs")]
impl ThingPattern {
    /// Whether it is about things of this server. Compiles the pattern, so it is not for every call.
    pub fn matches_server(&self, server: &str) -> bool {
        glob(&self.server).is_ok_and(|pattern| pattern.is_match(server))
    }

    /// Whether it is about this thing of this server. Compiles the pattern, so it is not for every call.
    pub fn matches(&self, server: &str, name: &str) -> bool {
        self.matches_server(server) && glob(&self.name).is_ok_and(|pattern| pattern.is_match(name))
    }
}

/// Compiles a pattern, or says why that is not possible.
#[cfg(feature = "globs")]
pub(crate) fn glob(pattern: &str) -> Result<globset::GlobMatcher, String> {
    let glob = globset::GlobBuilder::new(pattern).case_insensitive(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
}

/// The server name under which rules address the gateway's own tools, prompts and resources.
pub const OWN_SERVER: &str = "bridgehead";

/// One `[[limits.rules]]`: how much each of some principals may do.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitRule {
    /// Whom it limits, each on its own; never empty.
    pub who: Vec<Who>,
    /// The tools that it counts; all requests if empty.
    pub tools: Vec<ThingPattern>,
    /// How many requests per time.
    pub rate: Option<Rate>,
    /// How many requests may run at once.
    pub concurrent: Option<NonZeroU32>,
    /// How much may be spent each day (UTC). A call costs what its tool says, by default 1.
    pub budget_per_day: Option<u64>,
    /// Its line in the file, from 1.
    pub line: usize,
}

/// A rate such as `60/min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many requests.
    pub count: NonZeroU32,
    /// In how much time.
    pub per: Duration,
    /// How many may come at once; `count` unless the file says otherwise.
    pub burst: NonZeroU32,
}

/// `[http.listeners.NAME]`: one more address at which clients are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its name in the file.
    pub name: String,
    /// Where it listens.
    pub listen: ListenAddress,
    /// Whether it asks for credentials; what `[auth]` says, if absent.
    pub auth: Option<ListenerAuth>,
    /// Certificate and key, for TLS.
    pub tls: Option<TlsFiles>,
}

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// An address and a port.
    Tcp(std::net::SocketAddr),
    /// `unix:PATH`
    Unix(PathBuf),
}

/// Whether a listener asks for credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerAuth {
    /// It admits the local user without credentials.
    Open,
    /// It asks for credentials.
    Required,
}

/// `tls.cert_file` and `tls.key_file`, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain of certificates.
    pub cert_file: PathBuf,
    /// The private key.
    pub key_file: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-3: a pattern is about a thing if it matches its server and its name, in any letter case.
    #[cfg(feature = "globs")]
    #[test]
    fn patterns_of_things() {
        #[track_caller]
        fn check(pattern: (&str, &str), server: &str, name: &str, expected: bool) {
            let pattern = ThingPattern { server: pattern.0.to_owned(), name: pattern.1.to_owned() };
            assert_eq!(pattern.matches(server, name), expected, "{pattern} {server} {name}");
        }
        check(("files", "read_*"), "Files", "READ_file", true);
        check(("files", "read_*"), "files", "write_file", false);
        check(("files", "*"), "other", "read", false);
        check(("*", "*"), "any", "file:///a/b", true);
        check(("{a,b}", "x?"), "b", "xy", true);
    }

    #[test]
    fn an_address_is_in_its_network() {
        #[track_caller]
        fn check(network: (&str, u8), address: &str, expected: bool) {
            let network = PeerNetwork { address: network.0.parse().unwrap(), prefix: network.1 };
            assert_eq!(network.contains(address.parse().unwrap()), expected, "{network:?} {address}");
        }
        check(("10.0.0.0", 8), "10.255.0.1", true);
        check(("10.0.0.0", 8), "11.0.0.1", false);
        check(("10.0.0.0", 8), "::ffff:10.1.2.3", true);
        check(("10.1.2.3", 32), "10.1.2.4", false);
        check(("0.0.0.0", 0), "9.9.9.9", true);
        check(("0.0.0.0", 0), "2001:db8::1", false);
        check(("2001:db8::", 32), "2001:db8:1::1", true);
        check(("2001:db8::", 32), "2001:db9::1", false);
        check(("::", 0), "::1", true);
    }
}
