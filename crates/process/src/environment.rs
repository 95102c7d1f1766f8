//! Which variables of the gateway's own environment a child gets.
//!
//! The list is exact: what programs need to run, to reach the network and to find their caches. No variable on it is
//! meant for credentials, and a value that contains some anyway (`http://NAME:PASSWORD@proxy`) is not passed on.
//! `docs/environment.md` shows this table; a test compares the two.

use std::collections::BTreeMap;

const CERTIFICATES: &str = "certificates to trust";
const PROXIES: &str = "proxies";
const FOLDERS: &str = "folders of the user";
const PARENTS: &str = "gateways above";

/// Every variable that a child gets if the gateway has it, grouped by purpose.
pub const INHERITED: &[(&str, &[&str])] = &[
    ("to run at all", &["PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR"]),
    (
        CERTIFICATES,
        &[
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
            "NIX_SSL_CERT_FILE",
            "NODE_EXTRA_CA_CERTS",
            "NODE_USE_SYSTEM_CA",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "GIT_SSL_CAPATH",
            "AWS_CA_BUNDLE",
            "PIP_CERT",
            "UV_NATIVE_TLS",
            "UV_SYSTEM_CERTS",
            "DENO_CERT",
            "DENO_TLS_CA_STORE",
            "npm_config_cafile",
            "NPM_CONFIG_CAFILE",
        ],
    ),
    (
        PROXIES,
        &[
            "HTTP_PROXY",
            "http_proxy",
            "HTTPS_PROXY",
            "https_proxy",
            "NO_PROXY",
            "no_proxy",
            "ALL_PROXY",
            "all_proxy",
            "NODE_USE_ENV_PROXY",
            "PIP_PROXY",
            "npm_config_proxy",
            "NPM_CONFIG_PROXY",
            "npm_config_https_proxy",
            "NPM_CONFIG_HTTPS_PROXY",
            "npm_config_noproxy",
            "NPM_CONFIG_NOPROXY",
        ],
    ),
    (
        "time and language",
        &[
            "TZ",
            "LANGUAGE",
            "LC_ALL",
            "LC_ADDRESS",
            "LC_COLLATE",
            "LC_CTYPE",
            "LC_IDENTIFICATION",
            "LC_MEASUREMENT",
            "LC_MESSAGES",
            "LC_MONETARY",
            "LC_NAME",
            "LC_NUMERIC",
            "LC_PAPER",
            "LC_TELEPHONE",
            "LC_TIME",
        ],
    ),
    (
        FOLDERS,
        &[
            "XDG_BIN_HOME",
            "XDG_CACHE_HOME",
            "XDG_CONFIG_DIRS",
            "XDG_CONFIG_HOME",
            "XDG_DATA_DIRS",
            "XDG_DATA_HOME",
            "XDG_RUNTIME_DIR",
            "XDG_STATE_HOME",
        ],
    ),
    (
        "caches and package indexes",
        &[
            "npm_config_cache",
            "NPM_CONFIG_CACHE",
            "npm_config_registry",
            "NPM_CONFIG_REGISTRY",
            "PIP_CACHE_DIR",
            "PIP_INDEX_URL",
            "PIP_EXTRA_INDEX_URL",
            "UV_CACHE_DIR",
            "UV_INDEX",
            "UV_DEFAULT_INDEX",
            "UV_INDEX_URL",
            "UV_EXTRA_INDEX_URL",
            "UV_PYTHON_INSTALL_DIR",
            "UV_PYTHON_INSTALL_MIRROR",
            "UV_TOOL_DIR",
        ],
    ),
    (PARENTS, &["BRIDGEHEAD_PARENTS"]),
];

fn listed() -> impl Iterator<Item = &'static str> {
    INHERITED.iter().flat_map(|(_, names)| names.iter().copied())
}

/// Reads the listed variables of this process, and those that `more` names. Reads no other variable, and skips a value
/// that is not Unicode text.
#[must_use]
pub fn own_environment<'n>(more: impl IntoIterator<Item = &'n str>) -> BTreeMap<String, String> {
    let read = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    let listed = listed().map(|name| -> &'n str { name });
    listed.chain(more).filter_map(read).collect()
}

/// The part of the gateway's environment that every child gets. The caller adds the server's own variables.
#[must_use]
pub fn base_environment(parent: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let given = listed().filter_map(|name| parent.get_key_value(name));
    given
        .filter(|(name, value)| !holds_credentials(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The part of it that says whose a process is, and what it can reach: its user, the user's folders, proxies, certificates, and the
/// gateways above. A process that differs in one of these is another one for its user; one that differs in its language or its
/// caches is not.
#[must_use]
pub fn personal_environment(parent: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut given = base_environment(parent);
    given.retain(|name, _| is_personal(name));
    given
}

/// Whether a variable is one of these.
#[must_use]
pub fn is_personal(name: &str) -> bool {
    let groups =
        INHERITED.iter().filter(|(group, _)| [CERTIFICATES, PROXIES, FOLDERS, PARENTS].contains(group));
    ["HOME", "USER"]
        .into_iter()
        .chain(groups.flat_map(|(_, names)| names.iter().copied()))
        .any(|one| one == name)
}

/// The names of listed variables that no child gets, because their values contain credentials.
#[must_use]
pub fn held_back(parent: &BTreeMap<String, String>) -> Vec<&'static str> {
    listed().filter(|name| parent.get(*name).is_some_and(|value| holds_credentials(name, value))).collect()
}

/// Whether a URL in a value contains a user name or a password. A value may hold several URLs, and a proxy's URL may lack
/// its scheme.
fn holds_credentials(name: &str, value: &str) -> bool {
    let is_proxy = name.to_ascii_uppercase().ends_with("PROXY");
    let mut addresses = value.split("://");
    let first = addresses.next().unwrap_or_default();
    let has_user = |rest: &str| {
        let authority = rest.split(|letter: char| "/?#".contains(letter) || letter.is_whitespace());
        authority.into_iter().next().is_some_and(|authority| authority.contains('@'))
    };
    addresses.any(has_user) || (is_proxy && first.contains('@'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// JOIN-4: what makes a process another one for its user, and what does not.
    #[test]
    fn what_is_personal() {
        for name in ["HOME", "USER", "XDG_STATE_HOME", "https_proxy", "SSL_CERT_FILE", "BRIDGEHEAD_PARENTS"] {
            assert!(is_personal(name), "{name}");
        }
        for name in ["PATH", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ", "UV_CACHE_DIR", "KEY"] {
            assert!(!is_personal(name), "{name}");
        }
        let parent = map(&[("HOME", "/h"), ("LANG", "C"), ("HTTP_PROXY", "http://a:b@c"), ("NO_PROXY", "d")]);
        assert_eq!(personal_environment(&parent), map(&[("HOME", "/h"), ("NO_PROXY", "d")]));
    }

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// LINK-1: a child inherits an exact list of variables and nothing else. HOUR-5: the list has what a child needs to
    /// reach the network, in upper and lower case where programs read both. WALL-8: it has the variable that tells a
    /// gateway about the gateways above it.
    #[test]
    fn the_base_environment_is_an_allow_list() {
        let passed = [
            ("PATH", "/bin"),
            ("HOME", "/h"),
            ("USER", "u"),
            ("LANG", "C"),
            ("TERM", "dumb"),
            ("TMPDIR", "/t"),
            ("SSL_CERT_FILE", "/ca@home.pem"),
            ("NODE_EXTRA_CA_CERTS", "/ca.pem"),
            ("HTTPS_PROXY", "http://proxy:3128"),
            ("https_proxy", "http://proxy:3128/?a=b@c"),
            ("no_proxy", "localhost,.corp"),
            ("TZ", "Europe/Vienna"),
            ("LC_ALL", "C.UTF-8"),
            ("XDG_CACHE_HOME", "/h/.cache"),
            ("npm_config_registry", "https://npm.corp/"),
            ("PIP_INDEX_URL", "https://pypi.corp/simple"),
            ("UV_CACHE_DIR", "/h/.uv"),
            ("BRIDGEHEAD_PARENTS", "ab,cd"),
        ];
        let mut parent = map(&passed);
        parent.extend(map(&[
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("BRIDGEHEAD_HTTP_TOKEN", "s"),
            ("npm_config__auth", "s"),
            ("PATHS", "x"),
            ("LD_PRELOAD", "x"),
            ("NODE_OPTIONS", "x"),
            ("LC_TOKEN", "x"),
            ("Https_Proxy", "http://proxy"),
        ]));
        assert_eq!(base_environment(&parent), map(&passed));
        assert!(held_back(&parent).is_empty());
    }

    /// HOUR-5: no listed name is the name of a credential, and no value that contains one is passed on.
    #[test]
    fn no_credentials_are_passed_on() {
        let mut seen = BTreeSet::new();
        for name in listed() {
            let upper = name.to_ascii_uppercase();
            let bad =
                ["TOKEN", "AUTH", "PASSWORD", "SECRET", "KEY"].iter().find(|word| upper.contains(**word));
            assert_eq!(bad, None, "{name}");
            assert!(seen.insert(name), "{name} is listed twice");
        }
        let check = |name: &str, value: &str, passes: bool| {
            let parent = map(&[(name, value)]);
            assert_eq!(base_environment(&parent).len(), usize::from(passes), "{name}={value}");
            assert_eq!(held_back(&parent).len(), usize::from(!passes), "{name}={value}");
        };
        check("HTTPS_PROXY", "http://me:hunter2@proxy:3128", false);
        check("all_proxy", "socks5h://me@proxy", false);
        check("http_proxy", "me:hunter2@proxy:3128", false);
        check("PIP_EXTRA_INDEX_URL", "https://a.corp/ https://me:hunter2@b.corp/simple", false);
        check("UV_INDEX", "corp=https://me:hunter2@b.corp/simple", false);
        check("npm_config_registry", "https://b.corp/@scope/", true);
        check("HTTP_PROXY", "http://proxy:3128/a@b", true);
        check("XDG_CACHE_HOME", "/home/me@corp/.cache", true);
    }

    /// LIB-1: of this process's own environment only the listed variables and the named ones are read.
    #[test]
    fn only_named_variables_are_read() {
        let all: BTreeMap<String, String> = std::env::vars().collect();
        let unlisted = all.keys().find(|name| listed().all(|known| known != name.as_str()));
        let unlisted = unlisted.expect("a test runner sets variables of its own").as_str();
        let read = own_environment([]);
        assert!(read.contains_key("PATH") && !read.contains_key(unlisted), "{:?}", read.keys());
        assert!(read.iter().all(|(name, value)| all.get(name) == Some(value)));
        let read = own_environment([unlisted, "NO_SUCH_VARIABLE_AT_ALL"]);
        assert!(read.contains_key(unlisted) && !read.contains_key("NO_SUCH_VARIABLE_AT_ALL"));
    }

    /// HOUR-5: the documentation shows exactly this list.
    #[test]
    fn the_list_is_documented() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (purpose, names) in INHERITED {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            let row = format!("| {purpose} | {} |", names.join(", "));
            assert!(page.contains(&row), "docs/environment.md lacks the row\n{row}");
        }
        let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains('`')).count();
        assert_eq!(rows, INHERITED.len(), "docs/environment.md has rows that are not in the list");
    }
}
