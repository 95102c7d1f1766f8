//! What a configuration says, and what another text of it would change.
//!
//! Both are told from the written text: no variable is filled in, and nothing of the text is missing in [`what_runs`], which a
//! user reads before agreeing to it. [`changes`] goes to the log and to `status`, so it is short and holds no secrets.

use bridgehead::config::Source;
use bridgehead_wire::Redactor;

use crate::clients::Form;
use crate::import::tree::{self, Member, Node, Value};
use crate::output::one_line;

/// How long a line about one change may be.
const LONGEST: usize = 400;
/// The keys under which servers stand, in our own file and in those of clients.
const SERVERS: [&str; 3] = ["servers", "mcpServers", "context_servers"];

/// A server, a command for a secret, or a table of settings, as it is written.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    name: String,
    /// A command and its arguments, or an address.
    words: Vec<String>,
    /// Everything else: keys and values.
    more: Vec<(String, String)>,
}

/// Everything that the text of a configuration says, one line each; what belongs to the line before is indented.
pub(crate) fn what_runs(text: &[u8], source: &Source) -> Vec<String> {
    let lines = |part: Part| {
        let words: Vec<String> = part.words.iter().map(|one| word(one)).collect();
        let more = part.more.into_iter().map(|(key, value)| format!("  {key}: {value}"));
        std::iter::once(format!("{}: {}", part.name, words.join(" ")).trim_end().to_owned())
            .chain(more)
            .collect::<Vec<_>>()
    };
    parts(text, source).into_iter().flat_map(lines).collect()
}

/// What becomes different, one line each: `+` comes, `-` goes, `~` changes.
pub(crate) fn changes(before: &[u8], after: &[u8], source: &Source) -> Vec<String> {
    let (before, after) = (parts(before, source), parts(after, source));
    let mut lines = Vec::new();
    for part in after.iter().filter(|part| !before.contains(part)) {
        lines.push(match before.iter().find(|old| old.name == part.name) {
            None => format!("+ {}", part.short()),
            Some(old) if old.words != part.words => format!("~ {}", part.short()),
            Some(old) => {
                let in_one = |one: &Part, other: &Part| -> Vec<String> {
                    let alone = one.more.iter().filter(|pair| !other.more.contains(pair));
                    alone.map(|(key, _)| key.clone()).collect()
                };
                let mut keys = [in_one(old, part), in_one(part, old)].concat();
                keys.sort_unstable();
                keys.dedup();
                one_line(&format!("~ {}: {}", part.name, keys.join(", ")), LONGEST)
            }
        });
    }
    let gone = before.iter().filter(|old| !after.iter().any(|part| part.name == old.name));
    lines.extend(gone.map(|part| one_line(&format!("- {}", part.name), LONGEST)));
    if lines.is_empty() {
        lines.push("only comments, blanks or the order".to_owned());
    }
    lines
}

impl Part {
    /// It without secrets, cut if it is long.
    fn short(&self) -> String {
        let what = Redactor::default().text(&self.words.join(" ")).into_owned();
        one_line(format!("{}: {what}", self.name).trim_end_matches(": "), LONGEST)
    }
}

/// The parts of a text: what runs comes first. A text that cannot be read is one part.
fn parts(text: &[u8], source: &Source) -> Vec<Part> {
    let form = match source {
        Source::ClientJson(_) => Form::Jsonc,
        Source::Toml(_) | Source::Demo => Form::Toml,
    };
    let Ok(root) = tree::parse(text, form) else {
        let words = vec![String::from_utf8_lossy(text).into_owned()];
        return vec![Part { name: "its text".to_owned(), words, more: Vec::new() }];
    };
    let members = |node: &Node| node.map().unwrap_or_default().to_vec();
    let (servers, settings): (Vec<Member>, Vec<Member>) = members(&root)
        .into_iter()
        .partition(|member| SERVERS.contains(&member.key.as_str()) && member.node.map().is_some());
    let commands = root.find(&["secrets", "commands"]).map(members).unwrap_or_default();
    let commands = commands.iter().map(|member| Part {
        name: format!("{}, for a secret", word(&member.key)),
        words: words(&member.node).unwrap_or_default(),
        more: Vec::new(),
    });
    let servers = servers.iter().flat_map(|map| members(&map.node)).map(|member| server(&member));
    let settings = settings.iter().map(|member| Part {
        name: format!("[{}]", word(&member.key)),
        words: Vec::new(),
        more: rows(&member.node),
    });
    commands.chain(servers).chain(settings).collect()
}

fn server(member: &Member) -> Part {
    let mut part = Part { name: word(&member.key), words: Vec::new(), more: Vec::new() };
    let Some(members) = member.node.map() else {
        part.more = rows(&member.node);
        return part;
    };
    let is_launch = |key: &str| ["command", "args", "url"].contains(&key);
    // The command comes first, wherever it stands.
    let mut sorted: Vec<&Member> = members.iter().collect();
    sorted.sort_by_key(|member| member.key == "args");
    for member in sorted {
        match words(&member.node).filter(|_| is_launch(&member.key)) {
            Some(words) => part.words.extend(words),
            None => part.more.push((word(&member.key), written(&member.node))),
        }
    }
    part
}

/// The words of a command: one text, or a list of them.
fn words(node: &Node) -> Option<Vec<String>> {
    match node.list() {
        Some(items) => items.iter().map(Node::scalar).collect(),
        None => node.scalar().map(|text| vec![text]),
    }
}

/// The keys and values of a table, or the numbered items of a list.
fn rows(node: &Node) -> Vec<(String, String)> {
    match &node.value {
        Value::Map(members) => {
            members.iter().map(|member| (word(&member.key), written(&member.node))).collect()
        }
        Value::List(items) => items
            .iter()
            .zip(1..)
            .map(|(item, number): (_, usize)| (number.to_string(), written(item)))
            .collect(),
        _ => vec![("value".to_owned(), written(node))],
    }
}

/// A value on one line.
fn written(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::Flag(flag) => flag.to_string(),
        Value::Number(number) => number.clone(),
        Value::Text(text) => quoted(text),
        Value::List(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        Value::Map(_) => {
            let pairs: Vec<String> =
                rows(node).into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// A word, in quotes if it could be taken for something else.
fn word(text: &str) -> String {
    let plain = |next: char| next.is_ascii_alphanumeric() || "_-./:@%+=,~${}".contains(next);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// A text in quotes, without line breaks.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml() -> Source {
        Source::Toml("a.toml".into())
    }

    /// JOIN-6: what changes is told by server, command and table, without secrets.
    #[test]
    fn what_becomes_different() {
        #[track_caller]
        fn check(before: &str, after: &str, expected: &[&str]) {
            assert_eq!(changes(before.as_bytes(), after.as_bytes(), &toml()), expected);
        }
        let one = "[servers.a]\ncommand = 'x'\nargs = ['1']\n";
        check(one, &format!("# c\n{one}"), &["only comments, blanks or the order"]);
        check(one, &one.replace("'1'", "'2'"), &["~ a: x 2"]);
        check(one, &format!("{one}env = {{ A = 'hunter2' }}\n"), &["~ a: env"]);
        check(&format!("{one}cwd = 'a'\nenv = {{}}\n"), &format!("{one}cwd = 'b'\n"), &["~ a: cwd, env"]);
        check(
            one,
            "[servers.b]\ncommand = 'sh'\nargs = ['--token=hunter2', '${HOME}']\n",
            &["+ b: sh --token=[redacted] ${HOME}", "- a"],
        );
        check(one, &format!("{one}disabled = true\n"), &["~ a: disabled"]);
        check(
            one,
            &format!("{one}[secrets]\ncommands = {{ v = ['pass', 'x'] }}\n"),
            &["+ v, for a secret: pass x", "+ [secrets]"],
        );
        let http = format!("{one}[http]\nlisten = '127.0.0.1:1'\n");
        check(one, &http, &["+ [http]"]);
        check(&http, &format!("{http}token_file = 'x'\n"), &["~ [http]: token_file"]);
        let policy = "[[policy]]\nallow = ['a']\n";
        check(policy, &format!("{policy}{policy}"), &["~ [policy]: 2"]);
        let long = format!("[servers.a]\ncommand = '{}'\n", "x".repeat(500));
        assert_eq!(changes(b"", long.as_bytes(), &toml())[0].chars().count(), LONGEST + "+ ".len());
    }

    /// JOIN-6: before they agree, users see all of the text: no variable filled in, nothing redacted, nothing cut.
    #[test]
    fn everything_is_shown() {
        let client = Source::ClientJson(".mcp.json".into());
        #[track_caller]
        fn check(text: &str, source: &Source, expected: &[&str]) {
            assert_eq!(what_runs(text.as_bytes(), source), expected);
        }
        check(
            r##"{"mcpServers": {
                "var": {"args": ["-c", "touch p # ${UNSET}"], "command": "sh"},
                "quiet": {"command": "sh", "args": ["-c", "password=\"$(touch p)\""], "env": {"LD_PRELOAD": "./x.so"}, "cwd": "."},
                "far": {"url": "https://${HOST}/mcp", "headers": {"X-Key": "hunter2"}, "disabled": true},
                "far\nnear: ls": {"command": {"path": "x"}},
                "odd": 5
            }, "mcpServers": {"second": {"command": "y", "args": [1, null]}}, "inputs": [{"id": "a"}], "$schema": "s"}"##,
            &client,
            &[
                r#"var: sh -c "touch p # ${UNSET}""#,
                r#"quiet: sh -c "password=\"$(touch p)\"""#,
                r#"  env: {LD_PRELOAD: "./x.so"}"#,
                r#"  cwd: ".""#,
                "far: https://${HOST}/mcp",
                r#"  headers: {X-Key: "hunter2"}"#,
                "  disabled: true",
                r#""far\nnear: ls":"#,
                r#"  command: {path: "x"}"#,
                "odd:",
                "  value: 5",
                "second: y",
                "  args: [1, null]",
                "[inputs]:",
                r#"  1: {id: "a"}"#,
                "[$schema]:",
                r#"  value: "s""#,
            ],
        );
        check(
            "[secrets]\ncommands = { v = ['pass', 'my key'] }\n[servers.a]\ncommand = 'x'\n",
            &toml(),
            &[
                "v, for a secret: pass \"my key\"",
                "a: x",
                "[secrets]:",
                "  commands: {v: [\"pass\", \"my key\"]}",
            ],
        );
        let long = "x".repeat(1000);
        check(&format!("[servers.a]\ncommand = '{long}'\n"), &toml(), &[&format!("a: {long}")]);
        check("{\n", &client, &[r#"its text: "{\n""#]);
        check("", &toml(), &[]);
    }
}
