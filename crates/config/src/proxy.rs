//! The proxy for a remote server, parsed once.
//!
//! A name and a password in its address go to the proxy alone, and are never shown.

use std::fmt;
use std::str::FromStr;

use crate::secret::Secret;
use crate::url::{InvalidUrl, Url};

/// An `http` proxy. `Display` and `Debug` show its address, not its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    url: Url,
    credentials: Option<Secret>,
}

/// Why a text is not the address of a proxy. Holds no part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProxy {
    /// It does not begin with `http://`.
    #[error("it does not begin with `http://`")]
    Scheme,
    /// There is more after the port.
    #[error("it has more text after the port; in a name or a password write `/`, `?` and `#` as `%..`")]
    Path,
    /// The name or the password is malformed.
    #[error("its credentials are not `NAME:PASSWORD`; write `:`, `@`, `/` and `%` in them as `%..`")]
    Credentials,
    /// The rest of it is wrong.
    #[error(transparent)]
    Address(InvalidUrl),
}

impl Proxy {
    /// The name or the address of its host, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        self.url.host()
    }

    /// Its port; 80 where none is written.
    pub fn port(&self) -> u16 {
        self.url.port()
    }

    /// `name:password`, for the proxy only.
    pub fn credentials(&self) -> Option<&Secret> {
        self.credentials.as_ref()
    }

    /// The whole address, in a form that parses again. Contains the credentials.
    pub fn expose(&self) -> String {
        let credentials = self.credentials.as_ref().map_or_else(String::new, |credentials| {
            let (name, password) = credentials.expose().split_once(':').unwrap_or_default();
            format!("{}:{}@", encoded(name), encoded(password))
        });
        format!("http://{credentials}{}", self.url.authority())
    }
}

impl FromStr for Proxy {
    type Err = InvalidProxy;

    fn from_str(text: &str) -> Result<Self, InvalidProxy> {
        let (scheme, rest) = text.split_once("://").ok_or(InvalidProxy::Scheme)?;
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(InvalidProxy::Scheme);
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(InvalidProxy::Path);
        }
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((written, host)) => (Some(credentials(written).ok_or(InvalidProxy::Credentials)?), host),
            None => (None, authority),
        };
        let url = format!("http://{host}").parse().map_err(InvalidProxy::Address)?;
        Ok(Self { url, credentials })
    }
}

/// Reads the part before the `@`. A name must not contain a colon, not even an encoded one: the proxy would take it for
/// the end of the name.
fn credentials(written: &str) -> Option<Secret> {
    let (name, password) = written.split_once(':').unwrap_or((written, ""));
    let (name, password) = (decoded(name)?, decoded(password)?);
    (!name.contains(':')).then(|| Secret::new(format!("{name}:{password}")))
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'@' | b':' => return None,
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

impl fmt::Display for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.url)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<(&str, u16, Option<&str>), InvalidProxy>) {
        let proxy = text.parse::<Proxy>();
        let found = proxy.as_ref().map_err(|error| *error).map(|proxy| {
            let credentials = proxy.credentials().map(Secret::expose);
            assert_eq!(proxy.expose().parse::<Proxy>().as_ref(), Ok(proxy), "it parses again");
            (proxy.host(), proxy.port(), credentials)
        });
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn addresses() {
        check("http://proxy:3128", Ok(("proxy", 3128, None)));
        check("HTTP://proxy/", Ok(("proxy", 80, None)));
        check("http://[::1]:8", Ok(("::1", 8, None)));
        check("http://me:hunter2@proxy:3128", Ok(("proxy", 3128, Some("me:hunter2"))));
        check("http://me@proxy", Ok(("proxy", 80, Some("me:"))));
        check("http://m%65:a%2Fb%40%25%3A@proxy", Ok(("proxy", 80, Some("me:a/b@%:"))));
        check("proxy:3128", Err(InvalidProxy::Scheme));
        check("https://proxy", Err(InvalidProxy::Scheme));
        check("socks5://proxy", Err(InvalidProxy::Scheme));
        check("http://proxy/mcp", Err(InvalidProxy::Path));
        check("http://me:a/b@proxy", Err(InvalidProxy::Path));
        check("http://me:a@b@proxy", Err(InvalidProxy::Credentials));
        check("http://me:%4@proxy", Err(InvalidProxy::Credentials));
        check("http://m%3Ae:x@proxy", Err(InvalidProxy::Credentials));
        check("http://me:%FF@proxy", Err(InvalidProxy::Credentials));
        check("http://me:x@", Err(InvalidProxy::Address(InvalidUrl::Host)));
        check("http://proxy:x", Err(InvalidProxy::Address(InvalidUrl::Port)));
    }

    /// LINK-2: the credentials of a proxy are never shown.
    #[test]
    fn what_is_shown() {
        let proxy: Proxy = "http://me:hunter2@proxy:3128".parse().unwrap();
        assert_eq!(format!("{proxy} {proxy:?}"), "http://proxy:3128/ http://proxy:3128/");
    }
}
