//! `bridgehead explain SERVER/TOOL` and `bridgehead explain EXPOSED_NAME`: which rule decides whether somebody may call a tool.
//!
//! The rules come from the configuration file and its keys file alone, or, if that file cannot be used, from the gateway that runs
//! with what it was before, and no server is started for a name that says its
//! server. Any other name is looked up among all tools of the running gateway, whoever may use them, or of servers that are
//! started for this.

use bridgehead::access::{Explanation, Policy};
use bridgehead::config::{Config, OWN_SERVER, Source};
use bridgehead::control::Instance;
use bridgehead::{Action, Principal, Thing};
use bridgehead_access::policy::Verdict;
use bridgehead_gateway::{PrincipalKind, may_offer};
use serde_json::{Value, json};

use super::super::exit::Exit;
use super::super::instance::{Refused, get};
use super::super::meant::meant;
use super::super::output;
use super::super::reply;
use super::super::request::Listed;
use super::super::salvage::show_mistakes;
use super::super::servers::takeover::serving;
use super::super::target::{Need, Target, Where, run_once};
use super::super::world::World;
use super::{Explain, in_effect};

/// A tool by the names that rules use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    server: String,
    tool: String,
    /// Whether it says that it changes nothing, if that is known.
    read_only: Option<bool>,
}

/// What a name may stand for.
enum Found {
    Tool(Named),
    /// Several tools.
    Several(Vec<Named>),
    /// No tool that is known.
    Nothing,
}

/// Explains the rules on a tool; `None` if the topic names none, so that it may be a page.
pub(super) fn run(explain: &Explain, topic: &str) -> Option<Exit> {
    let world = match World::read(false) {
        Ok(world) => world,
        Err(error) => {
            show_mistakes(&error);
            match World::to_read() {
                Ok(world) => world,
                Err(error) => return Some(output::configuration_error(&error, explain.json)),
            }
        }
    };
    let (config, running) = match world.without_secrets(explain.place.chosen.config.as_deref()) {
        Ok(config) => (config, None),
        Err(error) => match by_gateway(explain, &world) {
            Some((config, running)) => {
                show_mistakes(&error);
                output::talk(&format!(
                    "note: the configuration cannot be used, so this is what the running gateway applies (pid {})",
                    running.instance.pid
                ));
                (config, Some(running))
            }
            None => {
                let exit = output::configuration_error(&error, explain.json);
                output::talk("note: no gateway runs with this configuration, so no rules are in effect");
                return Some(exit);
            }
        },
    };
    let servers = match &running {
        Some(running) => running.servers.clone(),
        None => config.servers.iter().map(|server| server.name.to_string()).collect(),
    };
    let found = match by_name(&servers, topic) {
        Ok(Found::Nothing) => {
            let by_catalog = match &running {
                Some(running) => by_running(&running.instance, topic, explain.json),
                None => by_catalog(&explain.place, &world, &config, topic, explain.json),
            };
            match by_catalog {
                Ok(found) => found,
                Err(exit) => return Some(exit),
            }
        }
        Ok(found) => found,
        Err(refused) => {
            output::talk(&format!("error: {refused}"));
            return Some(Exit::Usage);
        }
    };
    match found {
        Found::Tool(tool) => Some(tell(explain, &config, &tool)),
        Found::Nothing => None,
        Found::Several(tools) => {
            let names: Vec<String> =
                tools.iter().map(|one| format!("`{}/{}`", one.server, one.tool)).collect();
            output::talk(&format!(
                "error: `{}` may be {}; name one of them",
                output::one_line(topic, 100),
                names.join(" or ")
            ));
            Some(Exit::Usage)
        }
    }
}

/// A gateway that goes on with the rules of a file that cannot be used any more.
struct InEffect {
    instance: Instance,
    servers: Vec<String>,
}

/// The rules that the running gateway of the file applies, if there is one.
fn by_gateway(explain: &Explain, world: &World) -> Option<(Config, InEffect)> {
    let file = world.candidate(explain.place.chosen.config.as_deref())?;
    let instance = serving(&file, world)?;
    let mut told = None;
    run_once(async {
        told = get(&instance, "rules").await.ok();
        Exit::Success
    });
    let rules = &told?["rules"];
    let config = in_effect::heard(rules)?;
    Some((config, InEffect { servers: in_effect::servers(rules), instance }))
}

/// What a running gateway offers under a name.
fn by_running(instance: &Instance, topic: &str, as_json: bool) -> Result<Found, Exit> {
    let mut tools = Vec::new();
    let exit = run_once(async {
        match offered(instance, topic).await {
            Ok(found) => tools = found,
            Err(refused) => return refused.tell(as_json),
        }
        Exit::Success
    });
    if exit == Exit::Success { Ok(one_of(tools)) } else { Err(exit) }
}

/// The tools that a running gateway offers under a name, whoever may use them.
async fn offered(instance: &Instance, topic: &str) -> Result<Vec<Named>, Refused> {
    let told = get(instance, "tools").await?;
    let tools = told["tools"].as_array().into_iter().flatten();
    let named = |tool: &Value| Named {
        server: tool["server"].as_str().unwrap_or(OWN_SERVER).to_owned(),
        tool: tool["ownName"].as_str().unwrap_or(topic).to_owned(),
        read_only: tool["readOnly"].as_bool(),
    };
    Ok(tools.filter(|tool| tool["name"] == topic).map(named).collect())
}

/// What the names of the servers alone can tell: `SERVER/TOOL`, or a name that begins with a server's.
fn by_name(servers: &[String], topic: &str) -> Result<Found, String> {
    let names: Vec<&str> = servers.iter().map(String::as_str).collect();
    if let Some((server, tool)) = topic.split_once('/') {
        let known =
            names.iter().copied().chain([OWN_SERVER]).find(|known| known.eq_ignore_ascii_case(server));
        let Some(known) = known else {
            let meant = meant(server, names, "`bridgehead check` lists all servers");
            return Err(format!("there is no server `{}`; {meant}", output::one_line(server, 100)));
        };
        return Ok(Found::Tool(Named { server: known.to_owned(), tool: tool.to_owned(), read_only: None }));
    }
    let under = names.iter().filter_map(|server| {
        let tool = topic.strip_prefix(server)?.strip_prefix("__").filter(|tool| !tool.is_empty())?;
        Some(Named { server: (*server).to_owned(), tool: tool.to_owned(), read_only: None })
    });
    Ok(one_of(under.collect()))
}

fn one_of(mut tools: Vec<Named>) -> Found {
    match tools.len() {
        0 => Found::Nothing,
        1 => tools.pop().map_or(Found::Nothing, Found::Tool),
        _ => Found::Several(tools),
    }
}

/// What the running gateway offers under a name, or servers that are started for this command.
fn by_catalog(
    place: &Where,
    world: &World,
    config: &Config,
    topic: &str,
    as_json: bool,
) -> Result<Found, Exit> {
    if config.gateway.builtin && matches!(topic, "server_ping" | "server_health") {
        let tool = topic.to_owned();
        return Ok(Found::Tool(Named { server: OWN_SERVER.to_owned(), tool, read_only: Some(true) }));
    }
    let candidates = may_offer(&config.gateway, &config.servers, topic);
    if candidates.is_empty() {
        return Ok(Found::Nothing);
    }
    let mut found = Ok(Found::Nothing);
    let exit = run_once(async {
        let target = match Target::open(place, world, Need::Tool(topic), as_json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let tools: Vec<Named> = match &target {
            Target::Here(gateway) => gateway
                .list_tools()
                .into_iter()
                .filter(|tool| *tool.name == *topic)
                .map(|tool| Named {
                    server: tool.server.as_deref().unwrap_or(OWN_SERVER).to_owned(),
                    read_only: Some(reads_only(&tool.definition.decode().unwrap_or_default())),
                    tool: tool.own_name,
                })
                .collect(),
            // The rules may hide the tool from this user.
            Target::Running(_, instance) => match offered(instance, topic).await {
                Ok(tools) => tools,
                Err(refused) => return refused.tell(as_json),
            },
            Target::There(_) => {
                let listed = target.list(Listed::Tools).await.unwrap_or_default();
                let mut tools = listed.iter().filter_map(|tool| tool.decode::<Value>().ok());
                let definition = tools.find(|tool| tool["name"] == topic);
                let named = |definition: &Value| -> Vec<Named> {
                    let of = |server: &bridgehead::config::ServerConfig| Named {
                        server: server.name.to_string(),
                        tool: topic.to_owned(),
                        read_only: Some(reads_only(definition)),
                    };
                    candidates.iter().map(of).collect()
                };
                definition.as_ref().map(named).unwrap_or_default()
            }
        };
        // A server that does not serve may have it.
        if tools.is_empty() {
            reply::warn(&target.failures().await.0);
        }
        target.close().await;
        found = Ok(one_of(tools));
        Exit::Success
    });
    if exit == Exit::Success { found } else { Err(exit) }
}

fn reads_only(definition: &Value) -> bool {
    definition["annotations"]["readOnlyHint"] == true
}

/// Prints what the rules say of a tool.
fn tell(explain: &Explain, config: &Config, tool: &Named) -> Exit {
    let policy = match Policy::new(config.policy.clone()) {
        Ok(policy) => policy,
        Err(error) => {
            output::talk(&format!("error: {error}"));
            return Exit::Configuration;
        }
    };
    let principals = match principals(explain.who.as_deref(), &explain.group, config) {
        Ok(principals) => principals,
        Err(reason) => return output::wrong(&reason),
    };
    let file = match &config.source {
        Source::Toml(path) | Source::ClientJson(path) => Some(path.display().to_string()),
        Source::Demo => None,
    };
    let told = |principal: Principal| {
        let server = Some(tool.server.as_str()).filter(|server| *server != OWN_SERVER);
        let thing = Thing { server, name: &tool.tool, read_only: tool.read_only.unwrap_or(false) };
        let explanation = policy.explain(&principal, Action::Call, thing);
        // Without the server, only the rules know whether it matters that the tool says so.
        let depends = tool.read_only.is_none() && matches!(explanation.verdict, Verdict::NotReadOnly(_));
        let name = format!("{}/{}", tool.server, tool.tool);
        Told { name, principal, explanation, depends, file: file.clone() }
    };
    let told = principals.into_iter().map(told);
    match explain.json {
        true => {
            let each: Vec<String> = told.map(|told| format!("{:#}", told.json())).collect();
            output::raw_data(&each.join("\n"), Exit::Success)
        }
        false => {
            let each: Vec<String> = told.map(|told| told.text()).collect();
            output::data(&each.join("\n\n"), Exit::Success)
        }
    }
}

/// What is printed.
struct Told {
    name: String,
    principal: Principal,
    explanation: Explanation,
    /// Whether it is allowed if, and only if, the tool says that it changes nothing.
    depends: bool,
    file: Option<String>,
}

impl Told {
    fn text(&self) -> String {
        let groups: Vec<&str> = self.principal.groups().collect();
        let groups = if groups.is_empty() { String::new() } else { format!(" in {}", groups.join(", ")) };
        let allowed = match (self.depends, self.explanation.is_allowed()) {
            (true, _) => "allowed if the tool says that it only reads",
            (false, true) => "allowed",
            (false, false) => "denied",
        };
        let mut lines = vec![format!("{} for {}{groups}: {allowed}", self.name, self.principal)];
        match self.explanation.rule() {
            Some(rule) => {
                let file = self.file.as_deref().unwrap_or("the configuration");
                lines.push(format!(
                    "rule: {file}:{} {} = \"{}\" for {}",
                    rule.line, rule.key, rule.pattern, rule.who
                ));
            }
            None => lines.push(format!("rule: none; {}", self.explanation)),
        }
        if !self.explanation.scopes.is_empty() {
            lines.push(format!("scopes: {}", self.explanation.scopes.join(" ")));
        }
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let rule = self.explanation.rule().map(|rule| {
            json!({
                "file": self.file,
                "line": rule.line,
                "key": rule.key,
                "pattern": rule.pattern.to_string(),
                "who": rule.who.to_string(),
            })
        });
        json!({
            "tool": self.name,
            "as": self.principal.as_str(),
            "groups": self.principal.groups().collect::<Vec<_>>(),
            "allowed": (!self.depends).then(|| self.explanation.is_allowed()),
            "ifReadOnly": self.depends,
            "reason": self.explanation.to_string(),
            "rule": rule,
            "scopes": self.explanation.scopes,
        })
    }
}

/// Whom `--as` means; this user if it is absent. Keys of one name that are in different groups are different principals.
fn principals(who: Option<&str>, more: &[String], config: &Config) -> Result<Vec<Principal>, String> {
    let mut groups = vec![Vec::new()];
    let principal = match who {
        None | Some("local") => Principal::local(),
        Some("token") => Principal::new("token", PrincipalKind::Token),
        Some(who) => match (who.split_once(':'), who.split_once('/')) {
            (Some(("key", name)), _) => {
                groups = groups_of_key(name, config)?;
                Principal::new(who, PrincipalKind::Key)
            }
            (Some(("proxy", _)), _) => Principal::new(who, PrincipalKind::Proxy),
            (Some(("local", user)), _) if user.parse::<u32>().is_ok() => {
                Principal::new(who, PrincipalKind::Local)
            }
            (_, Some((issuer, subject))) if !issuer.is_empty() && !subject.is_empty() => {
                let known = || config.auth.issuers.iter().map(|issuer| issuer.name.as_str());
                if !known().any(|known| known == issuer) {
                    let otherwise = "`[auth.issuers]` in the configuration has all of them";
                    let meant = meant(issuer, known(), otherwise);
                    return Err(format!("there is no issuer `{}`; {meant}", output::one_line(issuer, 100)));
                }
                Principal::new(who, PrincipalKind::Issuer)
            }
            _ => {
                let forms = "`local`, `local:UID`, `token`, `key:NAME`, `proxy:NAME` or `ISSUER/SUBJECT`";
                return Err(format!("`--as` takes {forms}, not `{}`", output::one_line(who, 100)));
            }
        },
    };
    for groups in &mut groups {
        groups.extend_from_slice(more);
        groups.sort();
        groups.dedup();
    }
    groups.sort();
    groups.dedup();
    Ok(groups.iter().map(|groups| principal.clone().in_groups(groups.iter().map(String::as_str))).collect())
}

/// The groups of each key of a name, in the configuration and in the keys file.
fn groups_of_key(name: &str, config: &Config) -> Result<Vec<Vec<String>>, String> {
    let keys = || config.auth.keys.iter().chain(&config.auth.keys_in_file);
    let groups: Vec<_> = keys().filter(|key| key.name == name).map(|key| key.groups.clone()).collect();
    if !groups.is_empty() {
        return Ok(groups);
    }
    if let Some(revoked) = config.auth.revoked_keys.iter().find(|key| key.name == name) {
        return Err(format!("the key `{name}` was revoked at {}, so nobody is `key:{name}`", revoked.at));
    }
    let meant = meant(name, keys().map(|key| key.name.as_str()), "`bridgehead key list` lists all keys");
    Err(format!("there is no key `{}`; {meant}", output::one_line(name, 100)))
}

#[cfg(test)]
mod tests {
    use bridgehead::config::{ApiKey, GatewaySettings, Issuer, Launch, RevokedKey, ServerConfig};
    use bridgehead_access::keys::{KeyRing, Lookup};

    use super::*;

    fn config(servers: &[&str]) -> Config {
        let server = |name: &&str| {
            let launch = Launch::Unusable { reason: "not for real".to_owned() };
            ServerConfig::new(name.parse().unwrap(), launch, &GatewaySettings::default())
        };
        Config { servers: servers.iter().map(server).collect(), ..Config::demo() }
    }

    /// ACC-4: a name is a server and a tool if it says so; a name that may be two tools is refused.
    #[test]
    fn what_a_name_says_by_itself() {
        #[track_caller]
        fn check(topic: &str, expected: &str) {
            let servers = ["git", "git__hub"].map(str::to_owned);
            let found = match by_name(&servers, topic) {
                Ok(Found::Tool(tool)) => format!("{} {}", tool.server, tool.tool),
                Ok(Found::Several(tools)) => format!("{}", tools.len()),
                Ok(Found::Nothing) => "nothing".to_owned(),
                Err(error) => error,
            };
            assert_eq!(found, expected, "{topic}");
        }
        check("git/push", "git push");
        check("GIT/a/b", "git a/b");
        check("bridgehead/server_ping", "bridgehead server_ping");
        check("gti/push", "there is no server `gti`; did you mean `git`?");
        check("git__push", "git push");
        check("git__hub__x", "2");
        check("git__", "nothing");
        check("push", "nothing");
    }

    fn key(name: &str, digest: u8, groups: &[&str]) -> ApiKey {
        ApiKey {
            name: name.to_owned(),
            sha256: [digest; 32],
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            scopes: Vec::new(),
            expires: None,
        }
    }

    /// A configuration with keys, a keys file and an issuer.
    fn with_keys() -> Config {
        let mut config = config(&[]);
        config.auth.keys = vec![key("ci", 1, &["ops", "build"]), key("both", 2, &["a"])];
        config.auth.keys_in_file = vec![
            key("alice", 3, &["people"]),
            key("both", 4, &["b"]),
            key("both", 5, &["a"]),
            key("bare", 6, &[]),
        ];
        let at = "2026-11-17T12:00:00Z".parse().unwrap();
        config.auth.revoked_keys = vec![RevokedKey { name: "gone".to_owned(), groups: Vec::new(), at }];
        config.auth.issuers = vec![Issuer::new("corp", "https://id.example.com")];
        config
    }

    /// ACC-4: whom `--as` means. A key or an issuer that does not exist is refused with the nearest names.
    #[test]
    fn whom_as_means() {
        #[track_caller]
        fn check(who: Option<&str>, group: &[&str], expected: &str) {
            let group: Vec<String> = group.iter().map(|group| (*group).to_owned()).collect();
            let one = |principal: &Principal| {
                let groups = principal.groups().collect::<Vec<_>>().join(",");
                format!("{:?} {principal} {groups}", principal.kind())
            };
            let told = match principals(who, &group, &with_keys()) {
                Ok(principals) => principals.iter().map(one).collect::<Vec<_>>().join("; "),
                Err(error) => error,
            };
            assert_eq!(told, expected);
        }
        check(None, &[], &format!("Local {} ", Principal::local()));
        check(Some("local"), &["a"], &format!("Local {} a", Principal::local()));
        check(Some("local:7"), &[], "Local local:7 ");
        check(Some("token"), &[], "Token token ");
        check(Some("key:ci"), &["ops", "x"], "Key key:ci build,ops,x");
        check(Some("key:alice"), &[], "Key key:alice people");
        check(Some("key:bare"), &[], "Key key:bare ");
        check(Some("key:both"), &["x"], "Key key:both a,x; Key key:both b,x");
        check(Some("key:both"), &["a", "b"], "Key key:both a,b");
        check(Some("key:alcie"), &[], "there is no key `alcie`; did you mean `alice`?");
        check(Some("key:nobody"), &[], "there is no key `nobody`; `bridgehead key list` lists all keys");
        check(
            Some("key:gone"),
            &[],
            "the key `gone` was revoked at 2026-11-17T12:00:00Z, so nobody is `key:gone`",
        );
        check(Some("proxy:ada"), &[], "Proxy proxy:ada ");
        check(Some("corp/ada"), &["build"], "Issuer corp/ada build");
        check(Some("crop/ada"), &[], "there is no issuer `crop`; did you mean `corp`?");
        check(
            Some("elsewhere/ada"),
            &[],
            "there is no issuer `elsewhere`; `[auth.issuers]` in the configuration has all of them",
        );
        for bad in ["ada", "local:x", "/x", "x/", "group:a"] {
            let forms = "`local`, `local:UID`, `token`, `key:NAME`, `proxy:NAME` or `ISSUER/SUBJECT`";
            check(Some(bad), &[], &format!("`--as` takes {forms}, not `{bad}`"));
        }
    }

    /// ACC-4 (case 24): `explain` speaks of exactly the holders whom the keys admit, so that what it says of them, which is what the
    /// rules decide, is what is enforced.
    #[test]
    fn explained_holders_are_those_who_are_admitted() {
        let config = with_keys();
        let now = jiff::Timestamp::now();
        let ring = KeyRing::new(config.auth.keys.clone(), now);
        ring.set_from_file(config.auth.keys_in_file.clone(), true, now);
        let described = |principal: &Principal| {
            let mut groups: Vec<String> = principal.groups().map(str::to_owned).collect();
            groups.sort();
            (principal.to_string(), principal.kind(), groups)
        };
        let all = || config.auth.keys.iter().chain(&config.auth.keys_in_file);
        let mut admitted: Vec<_> = all()
            .map(|key| match ring.find(&key.sha256, now) {
                Lookup::Valid(principal) => described(&principal),
                other => panic!("{}: {other:?}", key.name),
            })
            .collect();
        let mut explained: Vec<_> = all()
            .flat_map(|key| principals(Some(&format!("key:{}", key.name)), &[], &config).unwrap())
            .map(|principal| described(&principal))
            .collect();
        for list in [&mut admitted, &mut explained] {
            list.sort_by(|one, other| (&one.0, &one.2).cmp(&(&other.0, &other.2)));
            list.dedup();
        }
        assert_eq!(explained, admitted);
        assert_eq!(explained.len(), 5, "{explained:?}");
    }
}
