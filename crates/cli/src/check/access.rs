//! What `bridgehead check` says about access: where clients are served, who is admitted, how many rules there are, and which
//! patterns of rules match nothing that is offered.

use bridgehead::Config;
use bridgehead::config::{HttpSettings, ListenAddress, ListenerAuth, OWN_SERVER, ThingPattern, TokenSource};
use bridgehead_gateway::{OfferedTool, similar};
use serde_json::{Value, json};

use crate::output;

/// What the configuration says about access.
pub(super) struct Access {
    listeners: Vec<String>,
    admits: Vec<String>,
    policy: usize,
    limits: usize,
    patterns: Vec<Written>,
    /// Whether anything of this is configured.
    is_configured: bool,
}

/// A pattern of tools in a rule.
struct Written {
    line: usize,
    key: &'static str,
    pattern: ThingPattern,
}

impl Access {
    pub(super) fn of(config: &Config) -> Self {
        let mut patterns = Vec::new();
        for rule in &config.policy {
            let scopes: Vec<ThingPattern> = rule.scopes.iter().map(|(pattern, _)| pattern.clone()).collect();
            for (key, listed) in
                [("tools", &rule.tools), ("deny_tools", &rule.deny_tools), ("scopes", &scopes)]
            {
                let written =
                    |pattern: &ThingPattern| Written { line: rule.line, key, pattern: pattern.clone() };
                patterns.extend(listed.iter().map(written));
            }
        }
        for rule in &config.limits {
            let written =
                |pattern: &ThingPattern| Written { line: rule.line, key: "tools", pattern: pattern.clone() };
            patterns.extend(rule.tools.iter().map(written));
        }
        let (policy, limits) = (config.policy.len(), config.limits.len());
        let credentials = config.auth.asks_for_credentials() || config.http.token != TokenSource::None;
        Self {
            listeners: listeners(&config.http),
            admits: admitted(config),
            policy,
            limits,
            patterns,
            is_configured: credentials || policy + limits > 0 || !config.http.listeners.is_empty(),
        }
    }

    /// Patterns that match no offered tool, although all servers that they are about have started.
    pub(super) fn findings(&self, tools: &[OfferedTool], started: &[(&str, bool)]) -> Vec<String> {
        let without_match = |written: &&Written| {
            let mut about =
                started.iter().filter(|(server, _)| written.pattern.matches_server(server)).peekable();
            let own = written.pattern.matches_server(OWN_SERVER);
            let complete = (own || about.peek().is_some()) && about.all(|(_, started)| *started);
            complete && !tools.iter().any(|tool| written.pattern.matches(server_of(tool), &tool.own_name))
        };
        let tell = |Written { line, key, pattern }: &Written| {
            let own = tools.iter().filter(|tool| pattern.matches_server(server_of(tool)));
            let plain = pattern.name.replace(['*', '?'], "");
            let near = similar(&plain, own.map(|tool| tool.own_name.as_str()));
            let meant = match near.first() {
                Some(near) => format!("; did you mean `{}/{near}`?", pattern.server),
                None => String::new(),
            };
            format!("the rule in line {line}: `{key}`: `{pattern}` matches no tool that is offered{meant}")
        };
        self.patterns.iter().filter(without_match).map(tell).collect()
    }

    pub(super) fn json(&self, findings: &[String]) -> Value {
        json!({
            "listeners": self.listeners,
            "admits": self.admits,
            "policyRules": self.policy,
            "limitRules": self.limits,
            "findings": findings,
        })
    }

    /// Nothing, if the configuration says nothing about access.
    pub(super) fn text(&self, findings: &[String]) -> String {
        if !self.is_configured {
            return String::new();
        }
        let mut text = String::new();
        for listener in &self.listeners {
            text.push_str(&format!("listens: {listener}\n"));
        }
        for admitted in &self.admits {
            text.push_str(&format!("admits: {admitted}\n"));
        }
        let count = |count: usize, what: &str| output::counted(count as u64, what);
        text.push_str(&format!("rules: {}, {}\n", count(self.policy, "rule"), count(self.limits, "limit")));
        for finding in findings {
            text.push_str(&format!("finding: {}\n", output::one_line(finding, 1000)));
        }
        text
    }
}

fn server_of(tool: &OfferedTool) -> &str {
    tool.server.as_deref().unwrap_or(OWN_SERVER)
}

fn listeners(http: &HttpSettings) -> Vec<String> {
    let mut all = vec![http.listen.to_string()];
    for listener in &http.listeners {
        let place = match &listener.listen {
            ListenAddress::Tcp(address) => address.to_string(),
            ListenAddress::Unix(path) => format!("unix:{}", path.display()),
        };
        let tls = if listener.tls.is_some() { " with TLS" } else { "" };
        let auth = match listener.auth {
            Some(ListenerAuth::Open) => ", open",
            Some(ListenerAuth::Required) => ", credentials required",
            None => "",
        };
        all.push(format!("{place}{tls} (`{}`{auth})", listener.name));
    }
    all
}

/// Who is admitted, one entry for each kind of credential.
fn admitted(config: &Config) -> Vec<String> {
    let auth = &config.auth;
    let mut all = Vec::new();
    let mut names: Vec<&str> =
        auth.keys.iter().chain(&auth.keys_in_file).map(|key| key.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        let shown: Vec<String> = names.iter().take(20).map(|name| format!("`{name}`")).collect();
        let more = if names.len() > 20 { format!(" and {} more", names.len() - 20) } else { String::new() };
        all.push(format!("holders of the keys {}{more}", shown.join(", ")));
    }
    for issuer in &auth.issuers {
        let how = if issuer.introspection.is_some() { "introspected" } else { "verified" };
        all.push(format!("holders of tokens of `{}`, {how}", issuer.name));
    }
    if let Some(header) = auth.proxy.as_ref().and_then(|proxy| proxy.user_header.as_ref()) {
        all.push(format!("whom a proxy names in `{header}`"));
    }
    let token = config.http.token != TokenSource::None;
    if token {
        all.push("holders of the bearer token".to_owned());
    }
    if auth.local || !(token || auth.asks_for_credentials()) {
        all.push("local users, without credentials".to_owned());
    }
    all
}
