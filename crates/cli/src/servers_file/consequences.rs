//! What an edit changes besides the servers it names: other servers' tools may get other names, and rules may admit nobody to a
//! new server. Whoever edits a file hears of both, whatever the verb.

use bridgehead::Config;
use bridgehead::config::{PolicyRule, Prefix, ServerName};
use bridgehead_gateway::{Principal, named};
use serde_json::{Value, json};

use crate::output;

/// What the user should know about an edit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Consequences {
    /// Servers that were there before and whose tools have other names now.
    renamed: Vec<Renamed>,
    /// The only server, whose tools a second one will rename.
    alone: Option<ServerName>,
    /// New servers that no rule lets anybody use.
    for_nobody: Vec<ServerName>,
}

/// A server whose tools have other names now.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Renamed {
    server: ServerName,
    /// Whether their names begin with the server's now.
    prefixed: bool,
}

impl Consequences {
    /// What `after` changes besides.
    pub(super) fn of(before: &Config, after: &Config) -> Self {
        let prefixes = |config: &Config| -> Vec<(ServerName, bool)> {
            let all = named(&config.gateway, &config.servers);
            all.map(|server| (server.name, server.prefix == Some(true))).collect()
        };
        let (old, new) = (prefixes(before), prefixes(after));
        let was = |name: &ServerName| old.iter().find(|(old, _)| old == name).map(|(_, prefixed)| *prefixed);
        let renamed = new
            .iter()
            .filter(|(name, prefixed)| was(name).is_some_and(|was| was != *prefixed))
            .map(|(name, prefixed)| Renamed { server: name.clone(), prefixed: *prefixed });
        let alone = match after.servers.as_slice() {
            [only] if only.prefix.is_none() && after.gateway.prefix == Prefix::Auto && old.is_empty() => {
                Some(only.name.clone())
            }
            _ => None,
        };
        let for_nobody = for_nobody(after).into_iter().filter(|name| was(name).is_none());
        Self { renamed: renamed.collect(), alone, for_nobody: for_nobody.collect() }
    }

    /// Tells the user.
    pub(super) fn tell(&self) {
        for Renamed { server, prefixed } in &self.renamed {
            output::talk(&match prefixed {
                true => format!(
                    "note: there are several servers now, so the tools of `{server}` have new names: `TOOL` is `{server}__TOOL`; \
                     `prefix = false` under [servers.{server}] keeps the old ones"
                ),
                false => format!(
                    "note: `{server}` is the only server now, so its tools have new names: `{server}__TOOL` is `TOOL`; \
                     `prefix = true` under [servers.{server}] keeps the old ones"
                ),
            });
        }
        if let Some(server) = &self.alone {
            output::talk(&format!(
                "note: the tools of `{server}` keep their names while it is the only server; a second one puts `{server}__` before them, \
                 unless `prefix` under [servers.{server}] decides that now"
            ));
        }
        if !self.for_nobody.is_empty() {
            output::talk(&format!("warning: {}", told_for_nobody(&self.for_nobody)));
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let renamed: Vec<Value> = self
            .renamed
            .iter()
            .map(|one| json!({"server": one.server.as_str(), "prefixed": one.prefixed}))
            .collect();
        let for_nobody: Vec<&str> = self.for_nobody.iter().map(ServerName::as_str).collect();
        json!({"renamed": renamed, "nobodyMayUse": for_nobody})
    }
}

/// The servers of a configuration that its rules let nobody use.
pub(crate) fn for_nobody(config: &Config) -> Vec<ServerName> {
    without_access(config, |_| true)
}

/// The servers of a configuration of which its rules let this principal use nothing.
pub(crate) fn not_for(principal: &Principal, config: &Config) -> Vec<ServerName> {
    without_access(config, |rule| rule.who.iter().any(|who| principal.is(who)))
}

/// The servers about which none of these rules allows anything, although some rule allows something.
fn without_access(config: &Config, counts: impl Fn(&PolicyRule) -> bool) -> Vec<ServerName> {
    if !config.policy.iter().any(PolicyRule::allows) {
        return Vec::new();
    }
    let is_left_out = |server: &&ServerName| {
        let mut rules = config.policy.iter().filter(|rule| counts(rule));
        !rules.any(|rule| {
            let mut patterns = rule.tools.iter().chain(&rule.prompts).chain(&rule.resources);
            patterns.any(|pattern| pattern.matches_server(server.as_str()))
        })
    };
    config.servers.iter().map(|server| &server.name).filter(is_left_out).cloned().collect()
}

/// Says that nobody may use these servers, and what to do.
pub(crate) fn told_for_nobody(servers: &[ServerName]) -> String {
    format!(
        "nobody may use {} yet, because the rules of the configuration allow nothing of {}; add {} to the `tools` of a \
         rule under [[policy]] (`bridgehead explain access`)",
        listed(servers, ""),
        if servers.len() == 1 { "it" } else { "them" },
        listed(servers, "/*"),
    )
}

/// Names in a sentence, each with this ending.
pub(crate) fn listed(servers: &[ServerName], ending: &str) -> String {
    servers.iter().map(|server| format!("`{server}{ending}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bridgehead::config::{Environment, load_text};

    use super::*;

    fn config(text: &str) -> Config {
        let text = text.replace("|", "\n");
        load_text(Path::new("a.toml"), text.into_bytes(), &Environment::default(), Path::new("/")).unwrap()
    }

    /// JOIN-3: whoever adds or removes a server hears which other tools get new names, whatever decides about the prefix.
    #[test]
    fn new_names_are_told() {
        #[track_caller]
        fn check(before: &str, after: &str, expected: &[(&str, bool)], alone: Option<&str>) {
            let told = Consequences::of(&config(before), &config(after));
            let renamed: Vec<(&str, bool)> =
                told.renamed.iter().map(|one| (one.server.as_str(), one.prefixed)).collect();
            assert_eq!((renamed.as_slice(), told.alone.as_ref().map(ServerName::as_str)), (expected, alone));
        }
        let (one, two) = ("[servers.one]|command='x'|", "[servers.two]|command='x'|");
        let both = format!("{one}{two}");
        check(one, &both, &[("one", true)], None);
        check(&both, one, &[("one", false)], None);
        check("", one, &[], Some("one"));
        check("", &both, &[], None);
        check("", &format!("{one}prefix=true"), &[], None);
        check(one, one, &[], None);
        for decided in ["prefix=true|", "prefix=false|"] {
            let fixed = format!("{one}{decided}");
            check(&fixed, &format!("{fixed}{two}"), &[], None);
            let gateway = format!("[gateway]|{decided}");
            check(&gateway, &format!("{gateway}{one}"), &[], None);
            check(&format!("{gateway}{one}"), &format!("{gateway}{both}"), &[], None);
        }
    }

    /// JOIN-3, ACC-4: a server about which no rule allows anything is for nobody, and another may be for others only.
    #[test]
    fn whom_the_rules_leave_out() {
        let servers = "[servers.a]|command='x'|[servers.b]|command='x'|";
        let names = |servers: Vec<ServerName>| servers.iter().map(ToString::to_string).collect::<Vec<_>>();
        let nobody = |rules: &str| names(for_nobody(&config(&format!("{servers}{rules}"))));
        assert!(nobody("").is_empty());
        assert!(nobody("[[policy]]|who=['local']|deny_tools=['a/x']").is_empty());
        assert_eq!(nobody("[[policy]]|who=['local']|tools=['a/x']"), ["b"]);
        assert_eq!(nobody("[[policy]]|who=['local']|prompts=['B/*']"), ["a"]);
        assert!(nobody("[[policy]]|who=['local']|tools=['*/*']").is_empty());
        let rules = "[[policy]]|who=['local']|tools=['a/*']|[[policy]]|who=['token']|tools=['b/*']";
        let both = config(&format!("{servers}{rules}"));
        assert!(for_nobody(&both).is_empty());
        assert_eq!(names(not_for(&Principal::local(), &both)), ["b"]);
        let only_a = "[[policy]]|who=['local']|tools=['a/*']";
        let before = config(&format!("[servers.a]|command='x'|{only_a}"));
        let after = config(&format!("{servers}{only_a}"));
        assert_eq!(names(Consequences::of(&before, &after).for_nobody), ["b"]);
        assert!(Consequences::of(&after, &after).for_nobody.is_empty(), "they were there before");
    }
}
