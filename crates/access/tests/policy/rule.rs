//! Rules as the configuration has them.

use bridgehead_config::{PolicyRule, ThingPattern, Who};
use bridgehead_gateway::{Principal, PrincipalKind, Thing};

/// A rule that says nothing yet.
pub(crate) fn rule(who: &[&str]) -> PolicyRule {
    PolicyRule {
        who: who.iter().map(|who| meant(who)).collect(),
        tools: Vec::new(),
        prompts: Vec::new(),
        resources: Vec::new(),
        deny_tools: Vec::new(),
        deny_prompts: Vec::new(),
        deny_resources: Vec::new(),
        scopes: Vec::new(),
        read_only: false,
        line: 1,
    }
}

fn meant(who: &str) -> Who {
    match who.split_once(':') {
        Some(("key", name)) => Who::Key(name.to_owned()),
        Some(("group", name)) => Who::Group(name.to_owned()),
        Some(("proxy", name)) => Who::Proxy(name.to_owned()),
        _ => match who.split_once('/') {
            Some((issuer, subject)) => {
                Who::Subject { issuer: issuer.to_owned(), subject: subject.to_owned() }
            }
            None if who == "local" => Who::Local,
            None => Who::Everyone,
        },
    }
}

pub(crate) fn patterns(written: &[&str]) -> Vec<ThingPattern> {
    written.iter().map(|written| pattern(written)).collect()
}

pub(crate) fn pattern(written: &str) -> ThingPattern {
    let (server, name) = written.split_once('/').unwrap();
    ThingPattern { server: server.to_owned(), name: name.to_owned() }
}

pub(crate) fn user(subject: &str) -> Principal {
    Principal::new(&format!("corp/{subject}"), PrincipalKind::Issuer)
}

/// `SERVER/NAME` as a thing; the server `bridgehead` is the gateway.
pub(crate) fn thing(written: &str) -> Thing<'_> {
    let (server, name) = written.split_once('/').unwrap();
    Thing { server: Some(server).filter(|server| *server != "bridgehead"), name, read_only: false }
}
