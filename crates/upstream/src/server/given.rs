//! Which variables of the gateway's environment a server's process gets, and a hint about the others if it does not
//! start.
//!
//! A program that misses a variable seldom names it clearly. The hint shows names, never values.

use std::collections::BTreeMap;

use bridgehead_config::{Launch, ServerConfig, Stdio};

/// The most names in a hint.
const MOST_NAMES: usize = 6;

/// What of this process's own environment these servers may get: the variables that every program needs, and those that
/// the servers' `inherit_env` name.
pub fn own_environment<'s>(servers: impl IntoIterator<Item = &'s ServerConfig>) -> BTreeMap<String, String> {
    let named = servers.into_iter().flat_map(|server| match &server.launch {
        Launch::Stdio(stdio) => stdio.inherit_env.as_slice(),
        Launch::Remote(_) | Launch::Unusable { .. } => &[],
    });
    bridgehead_process::own_environment(named.map(String::as_str))
}

/// The whole environment of a server's process.
pub(crate) fn environment(stdio: &Stdio, gateway: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut given = bridgehead_process::base_environment(gateway);
    add_configured(&mut given, stdio, gateway);
    given
}

/// The part of it that the server's configuration names, and whose process it is.
pub(crate) fn configured(stdio: &Stdio, gateway: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let user = ["HOME", "USER"].into_iter().filter_map(|name| gateway.get_key_value(name));
    let mut given = user.map(|(name, value)| (name.clone(), value.clone())).collect();
    add_configured(&mut given, stdio, gateway);
    given
}

fn add_configured(given: &mut BTreeMap<String, String>, stdio: &Stdio, gateway: &BTreeMap<String, String>) {
    let added = stdio.inherit_env.iter().filter_map(|name| gateway.get_key_value(name));
    given.extend(added.map(|(name, value)| (name.clone(), value.clone())));
    given.extend(stdio.env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())));
}

/// Which variables a server that did not start may have missed: standard variables that were held back because they
/// hold credentials, and variables that its output names. `None` if there are none.
pub(crate) fn missed(stdio: &Stdio, gateway: &BTreeMap<String, String>, words: &str) -> Option<String> {
    let given = environment(stdio, gateway);
    let mut told: Vec<String> = Vec::new();
    for name in bridgehead_process::held_back(gateway) {
        if !given.contains_key(name) {
            told.push(format!("`{name}` (its value holds credentials)"));
        }
    }
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    for name in words.split(|letter: char| !is_part(letter)).filter(|name| looks_like_variable(name)) {
        let held = gateway.contains_key(name) && !given.contains_key(name);
        if held && !told.iter().any(|known| known[1..].starts_with(&format!("{name}`"))) {
            told.push(format!("`{name}`"));
        }
    }
    told.truncate(MOST_NAMES);
    (!told.is_empty()).then(|| {
        format!(
            "it did not get {} from the gateway's environment; list what it needs in `inherit_env`",
            told.join(", ")
        )
    })
}

/// Whether a word looks like the name of a variable, so that ordinary words do not count.
fn looks_like_variable(word: &str) -> bool {
    word.contains('_') && word.chars().all(|letter| matches!(letter, 'A'..='Z' | '0'..='9' | '_'))
}

#[cfg(test)]
mod tests {
    use bridgehead_config::Secret;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// HOUR-5: `inherit_env` adds exactly what it names, `env` wins, and held-back variables that a failed start
    /// may have missed are named.
    #[test]
    fn what_is_given_and_what_is_told() {
        let gateway = map(&[
            ("PATH", "/bin"),
            ("HTTPS_PROXY", "http://me:hunter2@proxy:3128"),
            ("GITHUB_TOKEN", "hunter2"),
            ("OTHER_TOKEN", "hunter2"),
            ("SHLVL", "2"),
        ]);
        let mut stdio = Stdio::new("server", Vec::<String>::new());
        assert_eq!(environment(&stdio, &gateway), map(&[("PATH", "/bin")]));
        let words = "error: GITHUB_TOKEN is not set (SHLVL 2, NO_SUCH_NAME)";
        assert_eq!(
            missed(&stdio, &gateway, words).unwrap(),
            "it did not get `HTTPS_PROXY` (its value holds credentials), \
             `GITHUB_TOKEN` from the gateway's environment; list what it needs in `inherit_env`"
        );
        stdio.inherit_env = vec!["GITHUB_TOKEN".to_owned(), "NO_SUCH_NAME".to_owned()];
        stdio.env.insert("HTTPS_PROXY".to_owned(), Secret::new("http://proxy"));
        assert_eq!(missed(&stdio, &gateway, words), None);
        let given = map(&[("PATH", "/bin"), ("GITHUB_TOKEN", "hunter2"), ("HTTPS_PROXY", "http://proxy")]);
        assert_eq!(environment(&stdio, &gateway), given);
    }
}
