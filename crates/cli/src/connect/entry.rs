//! The entry that each client wants, and how our own is recognised.

use serde_json::Value;

use super::launch::Launch;
use crate::clients::edit::{Format, Place, Shape};
use crate::clients::{Client, Form, Http};

/// The keys that connecting decides for a client. Whatever else is in an entry belongs to the user and stays when it is connected
/// again.
pub(crate) fn own_keys(client: &Client) -> Vec<&'static str> {
    let mut keys = vec!["type", "command", "args", "url", "serverUrl", "httpUrl"];
    match client.connect.http {
        Http::Header(_) => keys.push("headers"),
        Http::TokenVariable(key) => keys.push(key),
        Http::WithoutToken | Http::No => {}
    }
    if client.id == "copilot" {
        keys.push("tools");
    }
    keys
}

/// The keys of the user that cannot stay beside these members: Codex refuses its whole file if an entry with a command has a key
/// for HTTP, or the other way round.
pub(crate) fn refused_keys(client: &Client, members: &[(String, Shape)]) -> &'static [&'static str] {
    match client.id {
        "codex" if members.iter().any(|(key, _)| key == "url") => &["env", "env_vars", "cwd"],
        "codex" => &[
            "http_headers",
            "env_http_headers",
            "http_headers_helper",
            "bearer_token",
            "oauth",
            "oauth_resource",
        ],
        _ => &[],
    }
}

/// How files of this form are edited; `None` if they are not.
pub(crate) const fn format(form: Form) -> Option<Format> {
    match form {
        Form::Json | Form::Jsonc => Some(Format::Json),
        Form::Toml => Some(Format::Toml),
        Form::Yaml => None,
    }
}

/// Whether the client can reach this: over HTTP not all can, and not all with a token.
pub(crate) const fn can(client: &Client, launch: &Launch) -> bool {
    match (launch, client.connect.http) {
        (Launch::Stdio { .. }, _) | (Launch::Http { .. }, Http::Header(_) | Http::TokenVariable(_)) => true,
        (Launch::Http { token, .. }, Http::WithoutToken) => token.is_none(),
        (Launch::Http { .. }, Http::No) => false,
    }
}

/// The entry for a client.
pub(crate) fn entry(client: &Client, launch: &Launch) -> Shape {
    let text = |key: &str, value: &str| (key.to_owned(), Shape::Text(value.to_owned()));
    let all_tools = ("tools".to_owned(), Shape::List(vec!["*".to_owned()]));
    let members = match launch {
        Launch::Stdio { command, args } => {
            let words = vec![text("command", command), ("args".to_owned(), Shape::List(args.clone()))];
            match client.id {
                "claude-code" | "vscode" => [vec![text("type", "stdio")], words].concat(),
                "copilot" => [vec![text("type", "local")], words, vec![all_tools]].concat(),
                "opencode" => {
                    let all = std::iter::once(command).chain(args).cloned().collect();
                    vec![
                        text("type", "local"),
                        ("command".to_owned(), Shape::List(all)),
                        ("enabled".to_owned(), Shape::Flag(true)),
                    ]
                }
                "goose" => vec![
                    text("name", "Bridgehead"),
                    text("type", "stdio"),
                    text("cmd", command),
                    ("args".to_owned(), Shape::List(args.clone())),
                    ("enabled".to_owned(), Shape::Flag(true)),
                ],
                _ => words,
            }
        }
        Launch::Http { url, token } => {
            let (kind, address) = match client.id {
                "claude-code" | "vscode" | "copilot" | "gemini" => (Some("http"), "url"),
                "opencode" => (Some("remote"), "url"),
                "goose" => (Some("streamable_http"), "uri"),
                "cline" => (Some("streamableHttp"), "url"),
                "continue" => (Some("streamable-http"), "url"),
                "windsurf" => (None, "serverUrl"),
                _ => (None, "url"),
            };
            let mut members: Vec<(String, Shape)> = kind.map(|kind| text("type", kind)).into_iter().collect();
            members.push(text(address, url));
            match (client.connect.http, token) {
                (Http::Header(form), Some(token)) => {
                    let value = format!("Bearer {}", form.replace('X', token));
                    let headers = Shape::Table(vec![text("Authorization", &value)]);
                    members.push(match client.id {
                        "continue" => {
                            ("requestOptions".to_owned(), Shape::Table(vec![("headers".to_owned(), headers)]))
                        }
                        _ => ("headers".to_owned(), headers),
                    });
                }
                (Http::TokenVariable(key), Some(token)) => members.push(text(key, token)),
                _ => {}
            }
            match client.id {
                "copilot" => members.push(all_tools),
                "goose" => members.insert(0, text("name", "Bridgehead")),
                _ => {}
            }
            members
        }
    };
    Shape::Table(members)
}

/// The entry as text to paste into the client's file.
pub(crate) fn snippet(client: &Client, name: &str, launch: &Launch) -> String {
    let shape = entry(client, launch);
    let path = client.keys.first().copied().unwrap_or_default();
    match format(client.form) {
        Some(format) => shape.snippet(format, Place { path, name }),
        None => {
            let key = path.first().copied().unwrap_or_default();
            let (first, indent) = match client.id {
                // A list, whose entries have their names inside.
                "continue" => (format!("  - name: {}\n", Value::from(name)), "    "),
                _ => (format!("  {name}:\n"), "    "),
            };
            format!("{key}:\n{first}{}", yaml(&shape, indent))
        }
    }
}

/// Members of a table as YAML. Strings are written as in JSON, which YAML reads.
fn yaml(shape: &Shape, indent: &str) -> String {
    let Shape::Table(members) = shape else { return String::new() };
    let member = |(key, value): &(String, Shape)| match value {
        Shape::Table(_) => format!("{indent}{key}:\n{}", yaml(value, &format!("{indent}  "))),
        other => format!("{indent}{key}: {}\n", other.tree()),
    };
    members.iter().map(member).collect()
}

/// Whether an entry of a client starts this program, or reaches `url`.
pub(crate) fn is_ours(entry: &Value, url: Option<&str>) -> bool {
    let words: Vec<&str> = [&entry["command"], &entry["cmd"], &entry["args"]]
        .into_iter()
        .flat_map(|value| match value {
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
            other => other.as_str().into_iter().collect::<Vec<_>>(),
        })
        .collect();
    let names_us = |word: &&str| {
        let name = word.rsplit(['/', '\\']).next().unwrap_or_default();
        let name = name.split('@').next().unwrap_or_default();
        name == "bridgehead" || name == "bridgehead.exe"
    };
    let starts_us = match words.split_first() {
        Some((first, rest)) => {
            let by_package = ["npx", "uvx"].iter().any(|tool| first.rsplit('/').next() == Some(tool));
            (names_us(first) || (by_package && rest.iter().any(names_us))) && rest.contains(&"serve")
        }
        None => false,
    };
    let address = ["url", "serverUrl", "httpUrl", "uri"].iter().find_map(|key| entry[*key].as_str());
    starts_us || (url.is_some() && address == url)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clients::CLIENTS;
    use crate::clients::edit::find;

    fn stdio() -> Launch {
        Launch::Stdio {
            command: "/bin/bridgehead".to_owned(),
            args: vec!["serve".to_owned(), "--stdio".to_owned()],
        }
    }

    fn http(token: Option<&str>) -> Launch {
        Launch::Http { url: "http://127.0.0.1:4848/mcp".to_owned(), token: token.map(str::to_owned) }
    }

    #[track_caller]
    fn check(client: &str, launch: &Launch, expected: &Value) {
        let client = Client::named(client).unwrap();
        assert_eq!(entry(client, launch).tree(), *expected, "{}", client.id);
        assert!(is_ours(expected, Some("http://127.0.0.1:4848/mcp")), "{expected}");
    }

    /// JOIN-2: each client gets the members that it wants, with a token in its own form of a variable.
    #[test]
    fn entries() {
        let (command, args) = ("/bin/bridgehead", ["serve", "--stdio"]);
        let url = "http://127.0.0.1:4848/mcp";
        let plain = json!({"command": command, "args": args});
        for client in [
            "claude-desktop",
            "cursor",
            "windsurf",
            "zed",
            "codex",
            "gemini",
            "lmstudio",
            "junie",
            "cline",
            "amp",
            "warp",
        ] {
            check(client, &stdio(), &plain);
        }
        let typed = json!({"type": "stdio", "command": command, "args": args});
        check("claude-code", &stdio(), &typed);
        check("vscode", &stdio(), &typed);
        check(
            "copilot",
            &stdio(),
            &json!({"type": "local", "command": command, "args": args, "tools": ["*"]}),
        );
        check(
            "opencode",
            &stdio(),
            &json!({"type": "local", "command": [command, "serve", "--stdio"], "enabled": true}),
        );
        check(
            "goose",
            &stdio(),
            &json!({"name": "Bridgehead", "type": "stdio", "cmd": command, "args": args, "enabled": true}),
        );

        let headers = |value: &str| json!({"Authorization": format!("Bearer {value}")});
        check(
            "claude-code",
            &http(Some("K")),
            &json!({"type": "http", "url": url, "headers": headers("${K}")}),
        );
        check(
            "vscode",
            &http(Some("K")),
            &json!({"type": "http", "url": url, "headers": headers("${env:K}")}),
        );
        check("cursor", &http(Some("K")), &json!({"url": url, "headers": headers("${env:K}")}));
        check("windsurf", &http(Some("K")), &json!({"serverUrl": url, "headers": headers("${env:K}")}));
        check("codex", &http(Some("K")), &json!({"url": url, "bearer_token_env_var": "K"}));
        check("gemini", &http(None), &json!({"type": "http", "url": url}));
        check("copilot", &http(None), &json!({"type": "http", "url": url, "tools": ["*"]}));
        check(
            "opencode",
            &http(Some("K")),
            &json!({"type": "remote", "url": url, "headers": headers("{env:K}")}),
        );
        check("cline", &http(None), &json!({"type": "streamableHttp", "url": url}));
        check("goose", &http(None), &json!({"name": "Bridgehead", "type": "streamable_http", "uri": url}));
        check("zed", &http(None), &json!({"url": url}));
        check(
            "continue",
            &http(Some("K")),
            &json!({"type": "streamable-http", "url": url, "requestOptions": {"headers": headers("${{ secrets.K }}")}}),
        );
    }

    #[test]
    fn who_can_use_http() {
        let can = |client: &str, launch: &Launch| can(Client::named(client).unwrap(), launch);
        assert!(can("claude-desktop", &stdio()) && !can("claude-desktop", &http(None)));
        assert!(can("zed", &http(None)) && !can("zed", &http(Some("K"))));
        assert!(can("codex", &http(Some("K"))) && can("cursor", &http(Some("K"))));
    }

    #[test]
    fn snippets() {
        for client in &CLIENTS {
            for launch in [stdio(), http(None)] {
                let text = snippet(client, "gate", &launch);
                assert!(text.contains("gate") && text.ends_with('\n'), "{text}");
                if let Some(format) = format(client.form) {
                    let place = Place { path: client.keys[0], name: "gate" };
                    assert_eq!(
                        find(format, &text, place).unwrap(),
                        Some(entry(client, &launch).tree()),
                        "{text}"
                    );
                }
            }
        }
        let goose = snippet(Client::named("goose").unwrap(), "gate", &stdio());
        assert_eq!(
            goose,
            "extensions:\n  gate:\n    name: \"Bridgehead\"\n    type: \"stdio\"\n    cmd: \"/bin/bridgehead\"\n    args: [\"serve\",\"--stdio\"]\n    enabled: true\n"
        );
        let next = snippet(Client::named("continue").unwrap(), "gate", &http(Some("K")));
        assert_eq!(
            next,
            "mcpServers:\n  - name: \"gate\"\n    type: \"streamable-http\"\n    url: \"http://127.0.0.1:4848/mcp\"\n    requestOptions:\n      headers:\n        Authorization: \"Bearer ${{ secrets.K }}\"\n"
        );
    }

    /// JOIN-2: all that an entry has is decided by connecting, and a key that another client's entry has is its user's.
    #[test]
    fn keys_of_each_client() {
        for client in CLIENTS.iter().filter(|client| super::super::can_change(client)) {
            for launch in [stdio(), http(None), http(Some("K"))] {
                if can(client, &launch) {
                    let entry = entry(client, &launch).tree();
                    let keys = entry.as_object().unwrap().keys();
                    let others: Vec<&String> =
                        keys.filter(|key| !own_keys(client).contains(&key.as_str())).collect();
                    assert!(others.is_empty(), "{}: {others:?}", client.id);
                }
            }
        }
        let has = |client: &str, key: &str| own_keys(Client::named(client).unwrap()).contains(&key);
        assert!(has("copilot", "tools") && !has("codex", "tools") && !has("cursor", "tools"));
        assert!(has("cursor", "headers") && !has("zed", "headers") && !has("codex", "headers"));
        assert!(has("codex", "bearer_token_env_var") && !has("cursor", "bearer_token_env_var"));
    }

    /// JOIN-2: an entry of the same name that is not ours is recognised.
    #[test]
    fn ours_and_others() {
        let ours = |entry: Value| is_ours(&entry, Some("http://127.0.0.1:4848/mcp"));
        assert!(ours(json!({"command": "/old/bridgehead", "args": ["serve", "--stdio"], "disabled": true})));
        assert!(ours(json!({"command": "npx", "args": ["-y", "bridgehead@0.1.0", "serve", "--stdio"]})));
        assert!(ours(json!({"command": "/usr/bin/uvx", "args": ["bridgehead", "serve", "--stdio"]})));
        assert!(!ours(json!({"command": "npx", "args": ["-y", "other", "serve"]})));
        assert!(!ours(json!({"command": "bridgehead", "args": ["demo-server"]})));
        assert!(!ours(json!({"command": "sh", "args": ["bridgehead", "serve"]})));
        assert!(!ours(json!({"url": "http://127.0.0.1:9/mcp"})));
        assert!(!ours(json!({})));
        assert!(!is_ours(&json!({"url": null}), None));
    }
}
