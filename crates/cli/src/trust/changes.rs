//! What a configuration runs, and what another text of it would change: names, commands and addresses, without secrets.

use bridgehead::Config;
use bridgehead::config::{Launch, ServerConfig};
use bridgehead_wire::Redactor;

use crate::output::one_line;

/// How long a line about one server may be.
const LONGEST: usize = 400;

/// What a configuration would run, one line each.
pub(crate) fn what_runs(config: &Config) -> Vec<String> {
    let commands = config.secrets.commands.iter().map(|(name, words)| command(name, words));
    commands.chain(config.servers.iter().map(shown)).collect()
}

/// What becomes different, one line each: `+` comes, `-` goes, `~` changes.
pub(crate) fn changes(before: &Config, after: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, words) in &after.secrets.commands {
        if before.secrets.commands.get(name) != Some(words) {
            lines.push(format!("+ {}", command(name, words)));
        }
    }
    let of = |config: &'_ Config, name: &ServerConfig| {
        config.servers.iter().position(|server| server.name == name.name)
    };
    for server in &after.servers {
        let old = of(before, server).and_then(|at| before.servers.get(at));
        match old {
            None => lines.push(format!("+ {}", shown(server))),
            Some(old) if shown(old) != shown(server) => lines.push(format!("~ {}", shown(server))),
            Some(old) if old != server => lines.push(format!("~ {}: its settings", server.name)),
            Some(_) => {}
        }
    }
    let gone = before.servers.iter().filter(|server| of(after, server).is_none());
    lines.extend(gone.map(|server| format!("- {}", server.name)));
    if lines.is_empty() {
        lines.push("its servers stay the same".to_owned());
    }
    lines
}

fn command(name: &str, words: &[String]) -> String {
    let what = Redactor::default().text(&words.join(" ")).into_owned();
    one_line(&format!("{name}, for a secret: {what}"), LONGEST)
}

/// A server and the command or address it stands for.
fn shown(server: &ServerConfig) -> String {
    let what = match &server.launch {
        Launch::Stdio(stdio) => {
            let words: Vec<&str> =
                std::iter::once(&stdio.command).chain(&stdio.args).map(String::as_str).collect();
            words.join(" ")
        }
        Launch::Remote(remote) => remote.url.to_string(),
        Launch::Unusable { reason } => format!("nothing: {reason}"),
    };
    let what = Redactor::default().text(&what).into_owned();
    one_line(&format!("{}: {what}", server.name), LONGEST)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use bridgehead::config::{Environment, load_text};

    use super::*;

    #[track_caller]
    fn check(before: &str, after: &str, expected: &[&str]) {
        let environment = Environment::read(BTreeMap::new()).unwrap().without_secrets();
        let read = |text: &str| {
            load_text(Path::new("a.toml"), text.as_bytes().to_vec(), &environment, Path::new("/")).unwrap()
        };
        assert_eq!(changes(&read(before), &read(after)), expected);
    }

    /// JOIN-6: what changes is told by server and command, without secrets.
    #[test]
    fn what_becomes_different() {
        let one = "[servers.a]\ncommand = 'x'\nargs = ['1']\n";
        check(one, &format!("# c\n{one}"), &["its servers stay the same"]);
        check(one, &one.replace("'1'", "'2'"), &["~ a: x 2"]);
        check(one, &format!("{one}env = {{ A = 'hunter2' }}\n"), &["~ a: its settings"]);
        check(
            one,
            "[servers.b]\ncommand = 'sh'\nargs = ['--token=hunter2']\n",
            &["+ b: sh --token=[redacted]", "- a"],
        );
        check(one, &format!("{one}disabled = true\n"), &["- a"]);
        check(
            one,
            &format!("{one}[secrets]\ncommands = {{ v = ['pass', 'x'] }}\n"),
            &["+ v, for a secret: pass x"],
        );
    }
}
