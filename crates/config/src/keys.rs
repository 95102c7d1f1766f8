//! Every key of the configuration, once.
//!
//! The reader, the suggestions for typos, the masks of snippets, the reference page and the JSON Schema all use [`KEYS`].
//! A key that is not in this table does not exist. `check` decides what a value *means*.

mod all;

pub use all::KEYS;

/// A table of the configuration that holds keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyTable {
    /// The top of the file.
    Root,
    /// `[gateway]`
    Gateway,
    /// `[http]`
    Http,
    /// `[limits]`
    Bounds,
    /// `[audit]`
    Audit,
    /// `[queues.NAME]`
    Queue,
    /// `[servers.NAME]`
    Server,
    /// `[servers.NAME.limits]`
    Limits,
    /// `[servers.NAME.files]`
    Files,
    /// `[servers.NAME.tools.TOOL]`
    Tool,
    /// `[http.listeners.NAME]`
    Listener,
    /// `[http.listeners.NAME.tls]`
    Tls,
    /// `[auth]`
    Auth,
    /// `[auth.issuers.NAME]`
    Issuer,
    /// `[auth.issuers.NAME.introspection]`
    Introspection,
    /// `[[auth.keys.NAME]]`
    ApiKey,
    /// `[auth.proxy]`
    TrustedProxy,
    /// `[[policy]]`
    Policy,
    /// `[[limits.rules]]`
    LimitRule,
    /// `[secrets]`
    Secrets,
}

impl KeyTable {
    /// All tables, in the order of the reference page.
    pub const ALL: [KeyTable; 20] = [
        KeyTable::Root,
        KeyTable::Gateway,
        KeyTable::Http,
        KeyTable::Bounds,
        KeyTable::Audit,
        KeyTable::Server,
        KeyTable::Tool,
        KeyTable::Limits,
        KeyTable::Files,
        KeyTable::Queue,
        KeyTable::Listener,
        KeyTable::Tls,
        KeyTable::Auth,
        KeyTable::ApiKey,
        KeyTable::Issuer,
        KeyTable::Introspection,
        KeyTable::TrustedProxy,
        KeyTable::Policy,
        KeyTable::LimitRule,
        KeyTable::Secrets,
    ];

    /// The table's heading, as the file writes it.
    pub fn heading(self) -> &'static str {
        match self {
            KeyTable::Root => "the top of the file",
            KeyTable::Gateway => "[gateway]",
            KeyTable::Http => "[http]",
            KeyTable::Bounds => "[limits]",
            KeyTable::Audit => "[audit]",
            KeyTable::Queue => "[queues.NAME]",
            KeyTable::Server => "[servers.NAME]",
            KeyTable::Limits => "[servers.NAME.limits]",
            KeyTable::Files => "[servers.NAME.files]",
            KeyTable::Tool => "[servers.NAME.tools.TOOL]",
            KeyTable::Listener => "[http.listeners.NAME]",
            KeyTable::Tls => "[http.listeners.NAME.tls]",
            KeyTable::Auth => "[auth]",
            KeyTable::Issuer => "[auth.issuers.NAME]",
            KeyTable::Introspection => "[auth.issuers.NAME.introspection]",
            KeyTable::ApiKey => "[[auth.keys.NAME]]",
            KeyTable::TrustedProxy => "[auth.proxy]",
            KeyTable::Policy => "[[policy]]",
            KeyTable::LimitRule => "[[limits.rules]]",
            KeyTable::Secrets => "[secrets]",
        }
    }
}

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// `true` or `false`.
    Flag,
    /// A whole number within bounds, both included.
    Integer {
        /// The smallest allowed value.
        least: u64,
        /// The largest allowed value.
        most: u64,
    },
    /// A string.
    Text,
    /// One of these words, in any case.
    Choice(&'static [&'static str]),
    /// `true`, `false`, or one of these words.
    FlagOr(&'static [&'static str]),
    /// A list of strings.
    List,
    /// One of these words, in any case, or a list of strings and whole numbers.
    ChoiceOrList(&'static [&'static str]),
    /// A time or a date, as a string or as TOML writes it.
    Time,
    /// A table with any keys, whose values are strings.
    Map,
    /// A table with any keys, whose values are lists of strings.
    ListMap,
    /// A table with the keys of this [`KeyTable`].
    Table(KeyTable),
    /// A table of named tables, each with the keys of this [`KeyTable`].
    Tables(KeyTable),
    /// A list of tables, each with the keys of this [`KeyTable`].
    Rows(KeyTable),
    /// A table of named lists of tables, each with the keys of this [`KeyTable`].
    NamedRows(KeyTable),
}

impl ValueKind {
    /// The kind in words: "must be …".
    pub fn describe(self) -> String {
        match self {
            ValueKind::Flag => "`true` or `false`".to_owned(),
            ValueKind::Integer { least, most } => format!("a whole number from {least} to {most}"),
            ValueKind::Text => "a string".to_owned(),
            ValueKind::Choice(words) => format!("one of {}", quoted(words)),
            ValueKind::FlagOr(words) => format!("`true`, `false` or {}", quoted(words)),
            ValueKind::List => "a list of strings".to_owned(),
            ValueKind::ChoiceOrList(words) => format!("one of {} or a list", quoted(words)),
            ValueKind::Time => "a time or a date".to_owned(),
            ValueKind::Map => "a table of strings".to_owned(),
            ValueKind::ListMap => "a table of lists of strings".to_owned(),
            ValueKind::Table(_) => "a table".to_owned(),
            ValueKind::Tables(_) => "a table of tables".to_owned(),
            ValueKind::Rows(place) => format!("a list of tables, each under `{}`", place.heading()),
            ValueKind::NamedRows(place) => {
                format!("a table of lists of tables, each under `{}`", place.heading())
            }
        }
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
}

/// Whether a key works yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The key works.
    Supported,
    /// The key is reserved and not supported yet.
    Later {
        /// Values that are accepted because they ask for today's behaviour.
        accepts: &'static [&'static str],
        /// Whether running a server without it would break what the file asks for (a limit, a filter, another
        /// transport). Such a server is not started, even where other unknown keys only cause a warning.
        binding: bool,
    },
}

/// One key of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The table that holds it.
    pub place: KeyTable,
    /// Its name in snake_case; the camelCase form is accepted too.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: ValueKind,
    /// What it does, in one or two sentences.
    pub doc: &'static str,
    /// Its default as shown in the reference, empty if it has none.
    pub default: &'static str,
    /// Whether it works yet.
    pub status: Status,
}

impl Key {
    /// Its `doc` as part of a message: lower-case start, no full stop.
    pub(crate) fn gist(&self) -> String {
        let mut characters = self.doc.strip_suffix('.').unwrap_or(self.doc).chars();
        characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
    }

    /// The key's name in camelCase.
    pub fn camel_case(&self) -> String {
        let mut camel = String::with_capacity(self.name.len());
        let mut raise = false;
        for character in self.name.chars() {
            match character {
                '_' => raise = true,
                _ if raise => {
                    camel.push(character.to_ascii_uppercase());
                    raise = false;
                }
                _ => camel.push(character),
            }
        }
        camel
    }
}

/// All keys of a table, in the order of the reference.
pub fn of(place: KeyTable) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.place == place)
}

/// The key of a table with this name, in snake_case or camelCase.
pub fn find(place: KeyTable, written: &str) -> Option<&'static Key> {
    of(place).find(|key| key.name == written || key.camel_case() == written)
}

/// Key names of other tools.
const SYNONYMS: &[(KeyTable, &str, &str)] = &[
    (KeyTable::Root, "mcp_servers", "servers"),
    (KeyTable::Root, "context_servers", "servers"),
    (KeyTable::Server, "cmd", "command"),
    (KeyTable::Server, "arguments", "args"),
    (KeyTable::Server, "environment", "env"),
    (KeyTable::Server, "dotenv", "env_file"),
    (KeyTable::Server, "working_directory", "cwd"),
    (KeyTable::Server, "workdir", "cwd"),
    (KeyTable::Server, "transport", "type"),
    (KeyTable::Server, "timeout", "request_timeout_ms"),
    (KeyTable::Server, "timeout_ms", "request_timeout_ms"),
    (KeyTable::Gateway, "timeout_ms", "request_timeout_ms"),
    (KeyTable::Http, "bind", "listen"),
    (KeyTable::Http, "address", "listen"),
    (KeyTable::Listener, "bind", "listen"),
    (KeyTable::Listener, "address", "listen"),
    (KeyTable::Root, "policies", "policy"),
    (KeyTable::Root, "rules", "policy"),
    (KeyTable::Auth, "url", "public_url"),
    (KeyTable::Auth, "admins", "operators"),
    (KeyTable::Issuer, "url", "issuer"),
    (KeyTable::Issuer, "audience", "audiences"),
    (KeyTable::Issuer, "jwks_uri", "jwks"),
    (KeyTable::Issuer, "jwks_url", "jwks"),
    (KeyTable::ApiKey, "digest", "sha256"),
    (KeyTable::ApiKey, "hash", "sha256"),
    (KeyTable::ApiKey, "sha", "sha256"),
    (KeyTable::TrustedProxy, "networks", "proxies"),
    (KeyTable::TrustedProxy, "header", "user_header"),
    (KeyTable::Policy, "allow", "tools"),
    (KeyTable::Policy, "allow_tools", "tools"),
    (KeyTable::Policy, "deny", "deny_tools"),
    (KeyTable::LimitRule, "budget", "budget_per_day"),
];

/// The key of a table that an unknown name most likely means.
pub fn nearest(place: KeyTable, written: &str) -> Option<&'static Key> {
    let written = snake_case(written);
    let tolerance = (written.chars().count() / 3).clamp(1, 3);
    let synonyms = SYNONYMS.iter().filter(|(at, ..)| *at == place);
    of(place)
        .map(|key| (key.name, key))
        .chain(synonyms.filter_map(|(_, other, meant)| find(place, meant).map(|key| (*other, key))))
        .map(|(name, key)| (strsim::damerau_levenshtein(&written, name), key))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, key)| key)
}

/// Another table that has a key with this name.
pub fn elsewhere(place: KeyTable, written: &str) -> Option<KeyTable> {
    KeyTable::ALL.into_iter().find(|other| *other != place && find(*other, written).is_some())
}

fn snake_case(written: &str) -> String {
    let mut snake = String::with_capacity(written.len() + 4);
    for character in written.chars() {
        if character.is_uppercase() && !snake.is_empty() && !snake.ends_with('_') {
            snake.push('_');
        }
        match character {
            '-' | ' ' => snake.push('_'),
            _ => snake.extend(character.to_lowercase()),
        }
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_find_a_key_and_no_other_does() {
        for key in KEYS {
            assert_eq!(find(key.place, key.name).map(|found| found.name), Some(key.name));
            assert_eq!(find(key.place, &key.camel_case()).map(|found| found.name), Some(key.name));
        }
        assert!(find(KeyTable::Server, "request-timeout-ms").is_none());
        assert!(find(KeyTable::Server, "RequestTimeoutMs").is_none());
    }

    #[test]
    fn no_key_is_listed_twice_and_each_has_a_sentence() {
        for (index, key) in KEYS.iter().enumerate() {
            let twin = KEYS[..index].iter().any(|other| other.place == key.place && other.name == key.name);
            assert!(!twin, "{} is listed twice", key.name);
            assert!(key.doc.ends_with('.'), "{}: {}", key.name, key.doc);
        }
    }

    #[track_caller]
    fn check(place: KeyTable, written: &str, expected: Option<&str>) {
        assert_eq!(nearest(place, written).map(|key| key.name), expected, "{written}");
    }

    #[test]
    fn words_are_parted_by_one_underscore() {
        for (written, expected) in [
            ("Mode", "mode"),
            ("maxTotalMs", "max_total_ms"),
            ("max-total ms", "max_total_ms"),
            ("a_B", "a_b"),
        ] {
            assert_eq!(snake_case(written), expected);
        }
    }

    #[test]
    fn the_nearest_key_is_what_was_meant() {
        check(KeyTable::Server, "comand", Some("command"));
        check(KeyTable::Server, "commnad", Some("command"));
        check(KeyTable::Server, "arg", Some("args"));
        check(KeyTable::Server, "request-timeout-ms", Some("request_timeout_ms"));
        check(KeyTable::Server, "RequestTimeoutMs", Some("request_timeout_ms"));
        check(KeyTable::Server, "environment", Some("env"));
        check(KeyTable::Server, "enviromnent", Some("env"));
        check(KeyTable::Server, "alwaysAllow", None);
        check(KeyTable::Root, "mcpServers", Some("servers"));
        check(KeyTable::Root, "server", Some("servers"));
        check(KeyTable::Gateway, "Mode", Some("mode"));
        assert_eq!(elsewhere(KeyTable::Gateway, "listen"), Some(KeyTable::Http));
    }
}
