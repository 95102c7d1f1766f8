//! Reads `[[policy]]` and `[[limits.rules]]`: whom a rule speaks of, and of what.
//!
//! A rule that names something unknown is refused: a misspelt name in a denial would deny nothing.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{is_id, near, scopes, shown};
use crate::access::{AuthSettings, LimitRule, OWN_SERVER, PolicyRule, Rate, ThingPattern, Who, glob};
use crate::environment::Environment;
use crate::keys::KeyTable;
use crate::section::{Findings, Section};
use crate::settings::AuditStore;
use crate::tree::Span;

/// What rules may name.
pub(super) struct Known<'k> {
    servers: Vec<&'k str>,
    issuers: Vec<&'k str>,
    keys: BTreeSet<&'k str>,
    /// Whether further keys may exist: the file is read by the command that makes them.
    more_keys: bool,
    /// The groups of keys; `None` if an issuer or a proxy names groups, because then any group may exist.
    groups: Option<BTreeSet<&'k str>>,
    proxy: bool,
}

impl<'k> Known<'k> {
    pub(super) fn new(
        auth: &'k AuthSettings,
        servers: impl Iterator<Item = &'k str>,
        environment: &Environment,
    ) -> Self {
        let keys = || auth.keys.iter().chain(&auth.keys_in_file);
        let named_elsewhere = auth.issuers.iter().any(|issuer| issuer.groups_claim.is_some())
            || auth.proxy.as_ref().is_some_and(|proxy| proxy.groups_header.is_some());
        // Nothing that was once known becomes a mistake when its key is revoked.
        let revoked = || auth.revoked_keys.iter();
        let once = || revoked().flat_map(|key| &key.groups);
        let groups = || keys().flat_map(|key| &key.groups).chain(once()).map(String::as_str).collect();
        let names = keys().map(|key| &key.name).chain(revoked().map(|key| &key.name));
        Self {
            servers: servers.chain([OWN_SERVER]).collect(),
            issuers: auth.issuers.iter().map(|issuer| issuer.name.as_str()).collect(),
            keys: names.map(String::as_str).collect(),
            more_keys: environment.makes_keys,
            groups: (!named_elsewhere && !environment.makes_keys).then(groups),
            proxy: auth.proxy.as_ref().is_some_and(|proxy| proxy.user_header.is_some()),
        }
    }
}

/// Reads the rules of `[[policy]]`.
pub(super) fn policy(root: &Section<'_>, known: &Known<'_>, findings: &mut Findings) -> Vec<PolicyRule> {
    let mut rules = Vec::new();
    for (entries, heading) in root.rows("policy") {
        let section = Section::read(KeyTable::Policy, entries, findings);
        let mut things = |key| patterns(key, section.list(key), known, findings);
        let mut rule = PolicyRule {
            who: Vec::new(),
            tools: things("tools"),
            prompts: things("prompts"),
            resources: things("resources"),
            deny_tools: things("deny_tools"),
            deny_prompts: things("deny_prompts"),
            deny_resources: things("deny_resources"),
            scopes: Vec::new(),
            read_only: section.flag("read_only").unwrap_or(false),
            line: findings.line(heading),
        };
        rule.who = who(&section, heading, known, findings);
        for (entry, listed) in section.lists("scopes") {
            let tools = patterns("scopes", vec![(&entry.key, &entry.key_span)], known, findings);
            if listed.is_empty() {
                let message = format!("`scopes`: `{}` asks for no scope", entry.key);
                findings
                    .mistake(findings.diagnostic(message, &entry.node.span).help("name one, or remove it"));
            }
            let needed = scopes("scopes", listed, findings);
            rule.scopes.extend(tools.into_iter().map(|tools| (tools, needed.clone())));
        }
        if let (true, false, Some(entry)) =
            (rule.read_only, section.mentions("tools"), section.entry("read_only"))
        {
            let help =
                "name `tools`, of which it then admits those that change nothing; `[\"*/*\"]` is all of them";
            findings.mistake(
                findings.diagnostic("`read_only` without `tools` admits nothing", &entry.key_span).help(help),
            );
        }
        let says =
            ["tools", "prompts", "resources", "deny_tools", "deny_prompts", "deny_resources", "scopes"];
        if !says.iter().any(|key| section.mentions(key)) && !rule.read_only {
            let message = "a `[[policy]]` rule allows nothing and denies nothing";
            let help = "write what they may use, such as `tools = [\"files/*\"]`";
            findings.mistake(findings.diagnostic(message, heading).help(help));
        }
        rules.push(rule);
    }
    rules
}

/// Reads the rules of `[[limits.rules]]`.
pub(super) fn limits(
    bounds: &Section<'_>,
    store: AuditStore,
    known: &Known<'_>,
    findings: &mut Findings,
) -> Vec<LimitRule> {
    let mut rules = Vec::new();
    for (entries, heading) in bounds.rows("rules") {
        let section = Section::read(KeyTable::LimitRule, entries, findings);
        let number =
            |key| section.integer(key).and_then(|number| NonZeroU32::new(u32::try_from(number).ok()?));
        let rule = LimitRule {
            who: who(&section, heading, known, findings),
            tools: patterns("tools", section.list("tools"), known, findings),
            rate: rate(&section, number("burst"), findings),
            concurrent: number("concurrent"),
            budget_per_day: section.integer("budget_per_day"),
            line: findings.line(heading),
        };
        if let (false, Some(entry)) = (section.mentions("rate"), section.entry("burst")) {
            let message = "`burst` without `rate` limits nothing";
            let help = "write a `rate`, such as `rate = \"60/min\"`, or limit with `concurrent`";
            findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
        } else if !["rate", "concurrent", "budget_per_day"].iter().any(|key| section.mentions(key)) {
            let message = "a `[[limits.rules]]` rule limits nothing";
            let help = "write a `rate`, such as `\"60/min\"`, `concurrent` or `budget_per_day`";
            findings.mistake(findings.diagnostic(message, heading).help(help));
        }
        if let (Some(entry), AuditStore::None) = (section.entry("budget_per_day"), store) {
            let message =
                "`budget_per_day` needs the record of calls, which `[audit] store = \"none\"` turns off";
            let help = "a budget is counted again from the record at every start: set `store = \"sqlite\"`";
            findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
        }
        rules.push(rule);
    }
    rules
}

fn rate(section: &Section<'_>, burst: Option<NonZeroU32>, findings: &mut Findings) -> Option<Rate> {
    let (text, span) = section.text("rate")?;
    let parsed = parse_rate(text);
    if parsed.is_none() {
        let help =
            "write a count and a time, such as `60/min`; the times are `s`, `sec`, `min`, `h`, `hour`, `day`";
        findings.mistake(
            findings.diagnostic(format!("`rate`: `{}` is not a rate", shown(text)), span).help(help),
        );
    }
    let (count, per) = parsed?;
    Some(Rate { count, per, burst: burst.unwrap_or(count) })
}

fn parse_rate(text: &str) -> Option<(NonZeroU32, Duration)> {
    let (count, unit) = text.split_once('/')?;
    let seconds = match unit.trim() {
        "s" | "sec" => 1,
        "min" => 60,
        "h" | "hour" => 60 * 60,
        "day" => 24 * 60 * 60,
        _ => return None,
    };
    Some((count.trim().parse().ok()?, Duration::from_secs(seconds)))
}

/// The `who` of a rule, which must name somebody.
fn who(section: &Section<'_>, heading: &Span, known: &Known<'_>, findings: &mut Findings) -> Vec<Who> {
    let listed = section.list("who");
    let written = section.entry("who");
    if listed.is_empty() && (written.is_some() || !section.mentions("who")) {
        let (message, span) = match written {
            Some(entry) => ("`who` is empty, so the rule speaks of nobody", &entry.node.span),
            None => ("a rule needs `who`, or it speaks of nobody", heading),
        };
        findings.mistake(findings.diagnostic(message, span).help(format!("write {FORMS}")));
    }
    everybody("who", listed, known, findings)
}

const FORMS: &str =
    "`*`, `local`, `token`, `key:NAME`, `group:NAME`, `proxy:NAME`, `ISSUER/SUBJECT` or `ISSUER/*`";

/// Reads a list of principals and groups. Refuses those that cannot exist.
pub(super) fn everybody(
    key: &str,
    listed: Vec<(&str, &Span)>,
    known: &Known<'_>,
    findings: &mut Findings,
) -> Vec<Who> {
    let mut everybody = Vec::new();
    for (text, span) in listed {
        match one(text, known) {
            Ok(who) => everybody.push(who),
            Err(Unknown { what, label, help }) => {
                let diagnostic = findings.diagnostic(format!("`{key}`: {what}"), span).help(help);
                findings.mistake(match label {
                    Some(meant) => diagnostic.label(format!("did you mean `{meant}`?")),
                    None => diagnostic,
                });
            }
        }
    }
    everybody
}

/// Why a text names nobody, what may have been meant, and the cure.
struct Unknown {
    what: String,
    label: Option<String>,
    help: String,
}

fn one(text: &str, known: &Known<'_>) -> Result<Who, Unknown> {
    let unknown = |what: String, label: Option<String>, help: String| Unknown { what, label, help };
    let nobody = |text: &str| format!("`{}` names nobody", shown(text));
    match text {
        "*" => return Ok(Who::Everyone),
        "local" => return Ok(Who::Local),
        "token" => return Ok(Who::Token),
        _ => {}
    }
    if let Some((kind, name)) = text.split_once(':')
        && !kind.contains('/')
    {
        return match (kind, name) {
            ("local", user) => user.parse().map(Who::LocalUser).map_err(|_| {
                let help = "write the user's number, which `id -u NAME` prints: `local:1000`";
                unknown(nobody(text), None, help.to_owned())
            }),
            ("key", name) if known.keys.contains(name) || known.more_keys && is_id(name) => {
                Ok(Who::Key(name.to_owned()))
            }
            ("key", name) => {
                let near = near(name, known.keys.iter().copied()).map(|near| format!("key:{near}"));
                let help = match shown(name) {
                    "…" | "" => "a rule has the name of a key, never the key itself".to_owned(),
                    name => format!("make it with `bridgehead key new {name}`, or correct the name"),
                };
                Err(unknown(format!("there is no key `{}`", shown(name)), near, help))
            }
            ("group", name)
                if !name.is_empty() && known.groups.as_ref().is_none_or(|all| all.contains(name)) =>
            {
                Ok(Who::Group(name.to_owned()))
            }
            ("group", name) => {
                let groups = known.groups.iter().flatten().copied();
                let near = near(name, groups).map(|near| format!("group:{near}"));
                let help = "give it to a key (`groups`), or let an issuer (`groups_claim`) or a proxy (`groups_header`) name groups";
                Err(unknown(format!("nobody is in a group `{}`", shown(name)), near, help.to_owned()))
            }
            ("proxy", name) if known.proxy && !name.is_empty() => Ok(Who::Proxy(name.to_owned())),
            ("proxy", name) if !known.proxy => {
                let help = "write `[auth.proxy]` with its `user_header`, or remove it from the rule";
                Err(unknown(format!("no proxy could name `{}`", shown(name)), None, help.to_owned()))
            }
            _ => {
                let meant = near(kind, ["local", "key", "group", "proxy"].into_iter());
                let meant = meant.map(|meant| format!("{meant}:{}", shown(name)));
                Err(unknown(nobody(text), meant, format!("write {FORMS}")))
            }
        };
    }
    let Some((issuer, subject)) = text.split_once('/') else {
        let meant = match () {
            () if known.keys.contains(text) => Some(format!("key:{text}")),
            () if known.groups.as_ref().is_some_and(|groups| groups.contains(text)) => {
                Some(format!("group:{text}"))
            }
            () if known.issuers.contains(&text) => Some(format!("{text}/*")),
            () => near(text, ["local", "token"].into_iter()).map(str::to_owned),
        };
        return Err(unknown(nobody(text), meant, format!("write {FORMS}")));
    };
    if !known.issuers.contains(&issuer) {
        let near = near(issuer, known.issuers.iter().copied());
        let near = near.map(|near| format!("{near}/{}", shown(subject)));
        let help = format!("name it under `[auth.issuers.{}]`, or correct the rule", shown(issuer));
        return Err(unknown(format!("there is no issuer `{}`", shown(issuer)), near, help));
    }
    if subject.is_empty() {
        let help = format!("write the subject, or `{issuer}/*` for everybody of that issuer");
        return Err(unknown(nobody(text), Some(format!("{issuer}/*")), help));
    }
    Ok(Who::Subject { issuer: issuer.to_owned(), subject: subject.to_owned() })
}

/// Reads patterns of things. Refuses those that cannot match anything.
fn patterns(
    key: &str,
    listed: Vec<(&str, &Span)>,
    known: &Known<'_>,
    findings: &mut Findings,
) -> Vec<ThingPattern> {
    let mut patterns = Vec::new();
    for (text, span) in listed {
        let Some((server, name)) =
            text.split_once('/').filter(|(server, name)| !server.is_empty() && !name.is_empty())
        else {
            let diagnostic = findings
                .diagnostic(format!("`{key}`: `{}` is not `SERVER/NAME`", shown(text)), span)
                .help("both may be patterns: `files/read_*`, `files/*`, `*/*`");
            let server = text.trim_matches('/');
            findings.mistake(match known.servers.contains(&server) || server == "*" {
                true => diagnostic.label(format!("did you mean `{server}/*`?")),
                false => diagnostic,
            });
            continue;
        };
        let compiled = glob(server).and_then(|compiled| glob(name).map(|_| compiled));
        match compiled {
            Err(reason) => {
                let message = format!("`{key}`: `{}` is not a pattern: {reason}", shown(text));
                let help =
                    "`*` stands for any text, `?` for one character, `[ab]` and `{a,b}` for one of several";
                findings.mistake(findings.diagnostic(message, span).help(help));
            }
            Ok(compiled) if !known.servers.iter().any(|known| compiled.is_match(known)) => {
                let diagnostic = findings
                    .diagnostic(format!("`{key}`: there is no server `{}`", shown(server)), span)
                    .help(format!("the servers are {}", listing(&known.servers)));
                findings.mistake(match near(server, known.servers.iter().copied()) {
                    Some(near) => diagnostic.label(format!("did you mean `{near}/{}`?", shown(name))),
                    None => diagnostic,
                });
            }
            Ok(_) => patterns.push(ThingPattern { server: server.to_owned(), name: name.to_owned() }),
        }
    }
    patterns
}

fn listing(names: &[&str]) -> String {
    const MOST: usize = 12;
    let mut listed: Vec<String> = names.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    if names.len() > MOST {
        listed.push(format!("and {} more", names.len() - MOST));
    }
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-5: what a rate is.
    #[test]
    fn rates() {
        #[track_caller]
        fn check(text: &str, expected: Option<(u32, u64)>) {
            let found = parse_rate(text).map(|(count, per)| (count.get(), per.as_secs()));
            assert_eq!(found, expected, "{text}");
        }
        check("60/min", Some((60, 60)));
        check("1/s", Some((1, 1)));
        check("5 / sec", Some((5, 1)));
        check("7/h", Some((7, 3600)));
        check("7/hour", Some((7, 3600)));
        check("9/day", Some((9, 86_400)));
        for text in
            ["60", "0/min", "-1/min", "1.5/s", "60/minute", "60/", "/min", "min/60", "99999999999/s", ""]
        {
            check(text, None);
        }
    }
}
