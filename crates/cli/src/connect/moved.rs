//! Turns off the servers of a client that the gateway serves now, so that they do not run twice. None is deleted.
//!
//! Only some clients can turn a server off in their file. For the others, the user is told which servers the gateway has.

use bridgehead::config::{Launch, ServerConfig};
use serde_json::Value;

use crate::clients::Client;
use crate::clients::edit::{self, EditError, Format, Place, Shape};

/// The member that turns a server off, and its value then.
pub(crate) fn switch(client: &Client) -> Option<(&'static str, bool)> {
    match client.id {
        "windsurf" => Some(("disabled", true)),
        "zed" | "codex" => Some(("enabled", false)),
        _ => None,
    }
}

/// The servers in a client's file that the gateway has under the same name, and that are on.
pub(crate) fn served(client: &Client, servers: &Value, own: &str, config: &[ServerConfig]) -> Vec<String> {
    let Some(servers) = servers.as_object() else { return Vec::new() };
    let is_served = |(name, entry): &(&String, &Value)| {
        let elsewhere = format!("{name}-{}", client.id);
        let is_off = entry["disabled"] == true || entry["enabled"] == false;
        name.as_str() != own
            && !is_off
            && config.iter().any(|server| {
                let known = server.name.as_str();
                (known == name.as_str() || known == elsewhere) && is_same(entry, &server.launch)
            })
    };
    servers.iter().filter(is_served).map(|(name, _)| name.clone()).collect()
}

/// Whether both start the same program, or both have an address. Arguments and addresses may differ in how variables are written.
fn is_same(entry: &Value, launch: &Launch) -> bool {
    match launch {
        Launch::Stdio(stdio) => entry["command"].as_str() == Some(stdio.command.as_str()),
        Launch::Remote(_) => ["url", "serverUrl", "httpUrl"].iter().any(|key| entry[*key].is_string()),
        Launch::Unusable { .. } => false,
    }
}

/// The text with these servers turned off, or on again as they were.
pub(crate) fn switched(
    format: Format,
    text: &str,
    path: &[&str],
    names: &[String],
    (member, value): (&str, bool),
    off: bool,
) -> Result<String, EditError> {
    let mut text = text.to_owned();
    for name in names {
        let path: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
        let place = Place { path: &path, name: member };
        let there = edit::find(format, &text, place)?;
        text = match (off, there) {
            (true, None) => edit::insert(format, &text, place, &Shape::Flag(value))?.0,
            (true, Some(_)) => edit::replace(format, &text, place, &Shape::Flag(value))?,
            (false, Some(there)) if there == value => edit::remove(format, &text, place, None)?,
            (false, _) => text,
        };
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use bridgehead::config::Environment;
    use serde_json::json;

    use super::*;

    /// JOIN-2: servers that the gateway has are turned off in the client's own way, and on again.
    #[test]
    fn servers_are_turned_off_and_on() {
        let names = ["a".to_owned(), "b".to_owned()];
        let json = "{\n  \"s\": {\n    \"a\": {\n      \"command\": \"x\"\n    },\n    \"b\": {\"disabled\": false}\n  }\n}\n";
        let off = switched(Format::Json, json, &["s"], &names, ("disabled", true), true).unwrap();
        assert_eq!(
            off,
            "{\n  \"s\": {\n    \"a\": {\n      \"command\": \"x\",\n      \"disabled\": true\n    },\n    \"b\": {\"disabled\": true}\n  }\n}\n"
        );
        let on = switched(Format::Json, &off, &["s"], &names, ("disabled", true), false).unwrap();
        assert_eq!(on, json.replace("{\"disabled\": false}", "{}"));
        let toml = "[s.a]\ncommand = 'x'\n\n[s.b]\nenabled = true\n";
        let off = switched(Format::Toml, toml, &["s"], &names, ("enabled", false), true).unwrap();
        assert_eq!(off, "[s.a]\ncommand = 'x'\nenabled = false\n\n[s.b]\nenabled = false\n");
    }

    #[test]
    fn only_what_the_gateway_has_is_turned_off() {
        let text = "[servers.a]\ncommand = 'x'\n[servers.b-zed]\nurl = 'https://b.example/mcp'\n[servers.c]\ncommand = 'z'\n[servers.e]\ncommand = 'x'\n";
        let environment = Environment::read(std::collections::BTreeMap::<String, String>::new()).unwrap();
        let folder = std::path::Path::new("/");
        let config = bridgehead::config::load_text(
            folder.join("c.toml").as_path(),
            text.as_bytes().to_vec(),
            &environment,
            folder,
        );
        let config = config.unwrap().servers;
        let zed = Client::named("zed").unwrap();
        let servers = json!({
            "a": {"command": "x"},
            "b": {"url": "https://b.example/mcp"},
            "c": {"command": "other"},
            "d": {"command": "x"},
            "e": {"command": "x", "enabled": false},
            "bridgehead": {"command": "x"},
        });
        assert_eq!(served(zed, &servers, "bridgehead", &config), ["a", "b"]);
        assert_eq!(served(zed, &json!({"a": {"command": "x"}}), "a", &config), [""; 0]);
        assert_eq!(served(zed, &json!(1), "bridgehead", &config), [""; 0]);
        let switches = ["windsurf", "zed", "codex", "cursor"].map(|id| switch(Client::named(id).unwrap()));
        assert_eq!(
            switches,
            [Some(("disabled", true)), Some(("enabled", false)), Some(("enabled", false)), None]
        );
    }
}
