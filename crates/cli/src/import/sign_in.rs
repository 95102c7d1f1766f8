//! Which imported servers will want a sign-in, which their clients do by themselves and the gateway does not.
//!
//! Nothing is asked over the network: what counts is what the entry has. A remote server with a token needs none; one that its
//! client signs in to needs one; any other may.

use bridgehead::config::Url;

use crate::servers_file::{EntryLaunch, ServerEntry, has_secret};

/// Whether a server wants somebody to sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignIn {
    /// Its client signs in to it.
    Needed,
    /// Its entry has no token, and it is elsewhere.
    Possible,
}

impl SignIn {
    /// Judges a server; `by_client` says whether its client signs in to it.
    pub(super) fn of(entry: &ServerEntry, by_client: bool) -> Option<Self> {
        let EntryLaunch::Remote { url, .. } = &entry.launch else { return None };
        let has_token = entry.headers.iter().any(|(name, _)| is_credential(name)) || has_secret(url);
        match (by_client, url.parse::<Url>()) {
            _ if has_token => None,
            (true, _) => Some(Self::Needed),
            (false, Ok(url)) if !is_here(url.host()) => Some(Self::Possible),
            // An address with references may hold a token in one of them.
            (false, _) => None,
        }
    }

    /// Its word for programs.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Needed => "needed",
            Self::Possible => "possible",
        }
    }
}

/// Whether a header shows who asks.
fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "token", "key", "cookie", "secret"].iter().any(|word| name.contains(word))
}

/// Whether a host is this machine.
fn is_here(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use bridgehead::config::Secret;

    use super::*;

    /// JOIN-1: a remote server without a token may want a sign-in, and does if its client signs in to it; a program or a server of this
    /// machine does not.
    #[test]
    fn who_wants_a_sign_in() {
        #[track_caller]
        fn check(url: &str, header: Option<&str>, by_client: bool, expected: Option<SignIn>) {
            let mut entry = ServerEntry::new(EntryLaunch::Remote { url: url.to_owned(), transport: None });
            entry.headers = header.map(|name| (name.to_owned(), Secret::new("x"))).into_iter().collect();
            assert_eq!(SignIn::of(&entry, by_client), expected, "{url} {header:?}");
        }
        let far = "https://h.example.com/mcp";
        check(far, None, false, Some(SignIn::Possible));
        check(far, Some("X-Trace"), false, Some(SignIn::Possible));
        check(far, None, true, Some(SignIn::Needed));
        for header in ["Authorization", "X-Api-Key", "cookie", "PRIVATE-TOKEN"] {
            check(far, Some(header), false, None);
            check(far, Some(header), true, None);
        }
        check("https://h.example.com/mcp?api_key=abcdefgh12345678", None, false, None);
        check("https://h.example.com/${TOKEN}", None, false, Some(SignIn::Possible));
        for here in ["http://localhost:3000/mcp", "http://127.0.0.1/mcp", "http://[::1]:1/"] {
            check(here, None, false, None);
        }
        check("${URL}", None, false, None);
        let program = EntryLaunch::Program { command: "c".to_owned(), args: Vec::new(), cwd: None };
        assert_eq!(SignIn::of(&ServerEntry::new(program), true), None);
    }
}
