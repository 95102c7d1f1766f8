//! `bridgehead explain SERVER/TOOL` and `bridgehead explain EXPOSED_NAME`: which rule decides whether somebody may call a tool.
//!
//! The rules come from the configuration file alone, and no server is started for a name that says its server. Any other
//! name is looked up where `bridgehead tools` looks.

use bridgehead::access::{Explanation, Policy};
use bridgehead::config::{Config, OWN_SERVER, Source};
use bridgehead::{Action, Principal, Thing};
use bridgehead_access::policy::Verdict;
use bridgehead_gateway::{PrincipalKind, may_offer};
use serde_json::{Value, json};

use super::super::exit::Exit;
use super::super::meant::meant;
use super::super::output;
use super::super::request::Listed;
use super::super::target::{Need, Target, Where, run_once};
use super::super::world::World;
use super::Explain;

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
        Err(error) => return Some(output::configuration_error(&error, explain.json)),
    };
    let config = match world.without_secrets(explain.place.chosen.config.as_deref()) {
        Ok(config) => config,
        Err(error) => return Some(output::configuration_error(&error, explain.json)),
    };
    let found = match by_configuration(&config, topic) {
        Ok(Found::Nothing) => match by_catalog(&explain.place, &world, &config, topic, explain.json) {
            Ok(found) => found,
            Err(exit) => return Some(exit),
        },
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

/// What the configuration alone can tell: `SERVER/TOOL`, or a name that begins with a server's.
fn by_configuration(config: &Config, topic: &str) -> Result<Found, String> {
    let names: Vec<&str> = config.servers.iter().map(|server| server.name.as_str()).collect();
    if let Some((server, tool)) = topic.split_once('/') {
        let known =
            names.iter().copied().chain([OWN_SERVER]).find(|known| known.eq_ignore_ascii_case(server));
        let Some(known) = known else {
            let meant = meant(server, names, "`bridgehead check` lists all servers");
            return Err(format!("there is no server `{}`; {meant}", output::one_line(server, 100)));
        };
        return Ok(Found::Tool(Named { server: known.to_owned(), tool: tool.to_owned(), read_only: None }));
    }
    let under = config.servers.iter().filter_map(|server| {
        let tool =
            topic.strip_prefix(server.name.as_str())?.strip_prefix("__").filter(|tool| !tool.is_empty())?;
        Some(Named { server: server.name.to_string(), tool: tool.to_owned(), read_only: None })
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
    if candidates.is_empty() || super::text(topic).is_some() {
        return Ok(Found::Nothing);
    }
    let mut found = Ok(Found::Nothing);
    let exit = run_once(async {
        let target = match Target::open(place, world, Need::Tool(topic), as_json).await {
            Ok(target) => target,
            Err(exit) => return exit,
        };
        let tools = match &target {
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
            Target::There(_) | Target::Running(..) => {
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
    let principal = match principal(explain.who.as_deref(), explain.group.clone(), config) {
        Ok(principal) => principal,
        Err(reason) => {
            output::talk(&format!("error: {reason}"));
            return Exit::Usage;
        }
    };
    let ask = |read_only| {
        let server = Some(tool.server.as_str()).filter(|server| *server != OWN_SERVER);
        policy.explain(&principal, Action::Call, Thing { server, name: &tool.tool, read_only })
    };
    let explanation = ask(tool.read_only.unwrap_or(false));
    // Without the server, only the rules know whether it matters that the tool says so.
    let depends = tool.read_only.is_none() && matches!(explanation.verdict, Verdict::NotReadOnly(_));
    let file = match &config.source {
        Source::Toml(path) | Source::ClientJson(path) => Some(path.display().to_string()),
        Source::Demo => None,
    };
    let told = Told { name: format!("{}/{}", tool.server, tool.tool), principal, explanation, depends, file };
    match explain.json {
        true => output::json_data(&told.json(), Exit::Success),
        false => output::data(&told.text(), Exit::Success),
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

/// Whom `--as` means; this user if it is absent. A key has the groups that the configuration gives it.
fn principal(who: Option<&str>, mut groups: Vec<String>, config: &Config) -> Result<Principal, String> {
    let principal = match who {
        None | Some("local") => Principal::local(),
        Some("token") => Principal::new("token", PrincipalKind::Token),
        Some(who) => match (who.split_once(':'), who.split_once('/')) {
            (Some(("key", name)), _) => {
                let keys = config.auth.keys.iter().filter(|key| key.name == name);
                groups.extend(keys.flat_map(|key| key.groups.iter().cloned()));
                Principal::new(who, PrincipalKind::Key)
            }
            (Some(("proxy", _)), _) => Principal::new(who, PrincipalKind::Proxy),
            (Some(("local", user)), _) if user.parse::<u32>().is_ok() => {
                Principal::new(who, PrincipalKind::Local)
            }
            (_, Some((issuer, subject))) if !issuer.is_empty() && !subject.is_empty() => {
                Principal::new(who, PrincipalKind::Issuer)
            }
            _ => {
                let forms = "`local`, `local:UID`, `token`, `key:NAME`, `proxy:NAME` or `ISSUER/SUBJECT`";
                return Err(format!("`--as` takes {forms}, not `{}`", output::one_line(who, 100)));
            }
        },
    };
    groups.sort();
    groups.dedup();
    Ok(principal.in_groups(groups.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use bridgehead::config::{GatewaySettings, Launch, ServerConfig};

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
            let config = config(&["git", "git__hub"]);
            let found = match by_configuration(&config, topic) {
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

    /// ACC-4: whom `--as` means.
    #[test]
    fn whom_as_means() {
        #[track_caller]
        fn check(who: Option<&str>, group: &[&str], expected: &str) {
            let mut config = config(&[]);
            config.auth.keys.push(bridgehead::config::ApiKey {
                name: "ci".to_owned(),
                sha256: [0; 32],
                groups: vec!["build".to_owned(), "ops".to_owned()],
                scopes: Vec::new(),
                expires: None,
            });
            let group = group.iter().map(|group| (*group).to_owned()).collect();
            let told = match principal(who, group, &config) {
                Ok(principal) => {
                    format!(
                        "{:?} {principal} {}",
                        principal.kind(),
                        principal.groups().collect::<Vec<_>>().join(",")
                    )
                }
                Err(error) => error,
            };
            assert!(told.starts_with(expected), "{told}");
        }
        check(None, &[], &format!("Local {}", Principal::local()));
        check(Some("local"), &["a"], &format!("Local {} a", Principal::local()));
        check(Some("local:7"), &[], "Local local:7 ");
        check(Some("token"), &[], "Token token");
        check(Some("key:ci"), &["ops", "x"], "Key key:ci build,ops,x");
        check(Some("key:other"), &[], "Key key:other ");
        check(Some("proxy:ada"), &[], "Proxy proxy:ada");
        check(Some("corp/ada"), &["build"], "Issuer corp/ada build");
        for bad in ["ada", "local:x", "/x", "x/", "group:a"] {
            check(Some(bad), &[], "`--as` takes `local`");
        }
    }
}
