//! Whose an offered tool is: a server's, or the gateway's own.

use std::collections::HashMap;

use bridgehead::config::OWN_SERVER;
use serde_json::Value;

use crate::instance::get;
use crate::target::Target;

/// What the gateway's own tools are listed under.
const OWN: &str = "(gateway)";

/// Knows the server of each offered tool, as far as the gateway that offers it says.
#[derive(Debug)]
pub(super) enum Owners {
    /// By the names of all tools: the gateway is in this process.
    Known(HashMap<String, String>),
    /// By the prefix of the name, which is that of one of these servers.
    Among(Vec<String>),
    /// By the prefix of the name.
    Prefix,
}

impl Owners {
    /// Asks the gateway.
    pub(super) async fn of(target: &Target) -> Self {
        match target {
            Target::Here(gateway) => {
                let tools = gateway.list_tools();
                let known = tools
                    .iter()
                    .filter_map(|tool| Some((tool.name.to_string(), tool.server.as_ref()?.to_string())));
                Self::Known(known.collect())
            }
            Target::There(_) => Self::Prefix,
            Target::Running(_, instance) => match get(instance, "tools").await {
                Ok(told) => {
                    Self::Known(told["tools"].as_array().into_iter().flatten().filter_map(named).collect())
                }
                // A gateway that does not list its tools to operators.
                Err(_) => Self::Among(target.servers().await),
            },
        }
    }

    /// The server of a tool, by its offered name.
    pub(super) fn owner(&self, tool: &str) -> String {
        let prefix = || tool.split_once("__").map(|(prefix, _)| prefix.to_owned());
        let known = match self {
            Self::Known(known) => known.get(tool).cloned(),
            Self::Prefix => prefix(),
            Self::Among(servers) => {
                let is_prefix = |server: &&String| {
                    tool.strip_prefix(server.as_str()).is_some_and(|rest| rest.starts_with("__"))
                };
                match (servers.iter().filter(is_prefix).max_by_key(|server| server.len()), servers.as_slice())
                {
                    (Some(server), _) => Some(server.clone()),
                    (None, [only]) if !tool.starts_with("server_") => Some(only.clone()),
                    (None, _) => None,
                }
            }
        };
        known.unwrap_or_else(|| OWN.to_owned())
    }

    /// Whether a tool is one of this server; the gateway itself counts as one.
    pub(super) fn is_of(&self, tool: &str, server: &str) -> bool {
        self.owner(tool) == if server == OWN_SERVER { OWN } else { server }
    }
}

/// A tool of the operators' API and its server.
fn named(tool: &Value) -> Option<(String, String)> {
    Some((tool["name"].as_str()?.to_owned(), tool["server"].as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JOIN-8: a tool belongs to the server of its longest prefix, or to the only one; what nobody is known to have is the gateway's.
    #[test]
    fn whose_a_tool_is() {
        let among = |names: &[&str]| Owners::Among(names.iter().map(ToString::to_string).collect());
        for (tool, owners, expected) in [
            ("a__b__c", among(&["a", "a__b"]), "a__b"),
            ("read", among(&["a"]), "a"),
            ("server_ping", among(&["a"]), OWN),
            ("read", among(&["a", "b"]), OWN),
            ("a__b", Owners::Prefix, "a"),
            ("read", Owners::Prefix, OWN),
            ("read", Owners::Known(HashMap::from([("read".to_owned(), "z".to_owned())])), "z"),
            ("other", Owners::Known(HashMap::new()), OWN),
        ] {
            assert_eq!(owners.owner(tool), expected, "{tool}");
        }
        assert!(Owners::Prefix.is_of("server_ping", OWN_SERVER) && !Owners::Prefix.is_of("a__b", OWN_SERVER));
        assert!(Owners::Prefix.is_of("a__b", "a"));
    }
}
