//! The address of a remote server, parsed once.
//!
//! Paths and queries of such addresses are often credentials, so only the scheme, host and port are ever shown.

use std::fmt;
use std::str::FromStr;

/// An `http`, `https`, `ws` or `wss` address. `Display` and `Debug` show the host and hide the path and query.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    host: String,
    port: Option<u16>,
    target: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    Ws,
    Wss,
}

/// Why a text is not the address of a server. Holds no part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    /// It has no supported scheme.
    #[error("it does not begin with `http://`, `https://`, `ws://` or `wss://`")]
    Scheme,
    /// The host is missing or invalid.
    #[error("it names no host")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("its port is not a number from 1 to 65535")]
    Port,
    /// It contains a name or a password.
    #[error("it contains credentials; put them in `headers`")]
    Credentials,
    /// It has a character that must be percent-encoded.
    #[error("it has a space, a control character or a non-ASCII letter; write those as `%..`")]
    Character,
}

impl Url {
    /// Whether the connection is encrypted.
    pub const fn is_secure(&self) -> bool {
        matches!(self.scheme, Scheme::Https | Scheme::Wss)
    }

    /// Whether it is the address of a WebSocket.
    pub const fn is_web_socket(&self) -> bool {
        matches!(self.scheme, Scheme::Ws | Scheme::Wss)
    }

    /// The name or the address of the host, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The port; the scheme's default if none is written.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.is_secure() { 443 } else { 80 })
    }

    /// Host and port, as in a `Host` header.
    pub fn authority(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// Path and query: what the server is asked for. May be a credential.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The whole address. May hold a credential.
    pub fn expose(&self) -> String {
        format!("{}://{}{}", self.scheme.as_str(), self.authority(), self.target)
    }

    /// Resolves `reference` relative to this address.
    ///
    /// # Errors
    /// If the reference is malformed.
    pub fn join(&self, reference: &str) -> Result<Self, InvalidUrl> {
        if reference.contains("://") && !reference.starts_with(['/', '?']) {
            return reference.parse();
        }
        let path = self.target.split('?').next().unwrap_or_default();
        let target = if reference.starts_with("//") {
            return format!("{}:{reference}", self.scheme.as_str()).parse();
        } else if reference.starts_with('/') {
            reference.to_owned()
        } else if reference.starts_with('?') {
            format!("{path}{reference}")
        } else {
            format!("{}{reference}", &path[..path.rfind('/').map_or(0, |at| at + 1)])
        };
        Ok(Self { target: checked(&target)?, ..self.clone() })
    }

    /// Whether both are on the same server: same scheme, host and port.
    pub fn same_origin(&self, other: &Self) -> bool {
        self.scheme == other.scheme
            && self.host.eq_ignore_ascii_case(&other.host)
            && self.port() == other.port()
    }
}

impl Scheme {
    const ALL: [Self; 4] = [Self::Http, Self::Https, Self::Ws, Self::Wss];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }
}

fn checked(target: &str) -> Result<String, InvalidUrl> {
    let target = target.split('#').next().unwrap_or_default().to_owned();
    if target.bytes().any(|byte| !(0x21..=0x7e).contains(&byte)) {
        return Err(InvalidUrl::Character);
    }
    Ok(if target.starts_with('/') { target } else { format!("/{target}") })
}

impl FromStr for Url {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let (scheme, rest) = text.split_once("://").ok_or(InvalidUrl::Scheme)?;
        let scheme = Scheme::ALL
            .into_iter()
            .find(|known| known.as_str().eq_ignore_ascii_case(scheme))
            .ok_or(InvalidUrl::Scheme)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err(InvalidUrl::Credentials);
        }
        let (host, port) = match authority.rfind(':').filter(|at| !authority[*at..].contains(']')) {
            Some(at) => (&authority[..at], Some(&authority[at + 1..])),
            None => (authority, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let fits = match bare {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
            }
        };
        if !fits {
            return Err(InvalidUrl::Host);
        }
        let port = match port {
            None => None,
            Some(port) => Some(port.parse::<u16>().ok().filter(|port| *port > 0).ok_or(InvalidUrl::Port)?),
        };
        Ok(Self { scheme, host: host.to_owned(), port, target: checked(target)? })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = if self.target == "/" { "/" } else { "/…" };
        write!(formatter, "{}://{}{rest}", self.scheme.as_str(), self.authority())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<(&str, u16, &str), InvalidUrl>) {
        let url = text.parse::<Url>();
        let found = url.as_ref().map(|url| (url.host(), url.port(), url.target())).map_err(|error| *error);
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn addresses() {
        check("http://127.0.0.1:4848/mcp", Ok(("127.0.0.1", 4848, "/mcp")));
        check("HTTPS://example.com", Ok(("example.com", 443, "/")));
        check("ws://[::1]:9?x=1#y", Ok(("::1", 9, "/?x=1")));
        check("wss://h/a?b", Ok(("h", 443, "/a?b")));
        check("example.com/mcp", Err(InvalidUrl::Scheme));
        check("ftp://h/", Err(InvalidUrl::Scheme));
        check("http:///mcp", Err(InvalidUrl::Host));
        check("http://a b/", Err(InvalidUrl::Host));
        check("http://[::g]/", Err(InvalidUrl::Host));
        check("http://h:0/", Err(InvalidUrl::Port));
        check("http://h:x/", Err(InvalidUrl::Port));
        check("http://h/a b", Err(InvalidUrl::Character));
        check("http://me:hunter2@h/", Err(InvalidUrl::Credentials));
    }

    /// LINK-2: an address may be a credential, so only its scheme, host and port are shown.
    #[test]
    fn what_is_shown() {
        let url: Url = "https://h:8443/s/hunter2?key=hunter2".parse().unwrap();
        assert_eq!(format!("{url} {url:?}"), "https://h:8443/… https://h:8443/…");
        assert_eq!("http://h".parse::<Url>().unwrap().to_string(), "http://h/");
        assert_eq!(url.expose(), "https://h:8443/s/hunter2?key=hunter2");
    }

    /// LINK-3: where the `endpoint` event of HTTP+SSE leads.
    #[test]
    fn references_are_joined() {
        let base: Url = "http://h:1/a/sse?x".parse().unwrap();
        #[track_caller]
        fn check(base: &Url, reference: &str, expected: &str, same: bool) {
            let joined = base.join(reference).unwrap();
            assert_eq!((joined.expose().as_str(), joined.same_origin(base)), (expected, same));
        }
        check(&base, "/messages?s=1", "http://h:1/messages?s=1", true);
        check(&base, "messages", "http://h:1/a/messages", true);
        check(&base, "?s=1", "http://h:1/a/sse?s=1", true);
        check(&base, "/r?to=http://x/", "http://h:1/r?to=http://x/", true);
        check(&base, "http://H:1/m", "http://H:1/m", true);
        check(&base, "https://h:1/m", "https://h:1/m", false);
        check(&base, "//evil/m", "http://evil/m", false);
        assert_eq!(base.join("a b"), Err(InvalidUrl::Character));
    }
}
