//! What a command line that cannot be read probably meant.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{ArgAction, Command};

/// What to write instead, if that is known.
pub(crate) fn hint(error: &Error, program: &Command, arguments: &[String]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    (error.kind() == ErrorKind::UnknownArgument).then(|| command_of_add(program, arguments, unknown))?
}

/// `bridgehead add files npx -y …`: an option of the command stands where options of `add` stand.
fn command_of_add(program: &Command, arguments: &[String], unknown: &str) -> Option<String> {
    let at = arguments.iter().position(|word| word == "add")?;
    let add = program.find_subcommand("add")?;
    let takes_value = |option: &str| {
        let named = |arg: &&clap::Arg| {
            let short = option.strip_prefix('-').filter(|name| name.len() == 1);
            let long = option.strip_prefix("--");
            short.is_some_and(|name| arg.get_short().is_some_and(|known| name == known.to_string()))
                || long.is_some_and(|name| {
                    arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&name))
                })
        };
        let mut known = add.get_arguments().chain(program.get_arguments());
        known.find(named).is_some_and(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
    };
    let mut plain: Vec<&str> = Vec::new();
    let mut words = arguments[at + 1..].iter();
    while let Some(word) = words.next() {
        if word == unknown || word.split('=').next() == Some(unknown) {
            break;
        }
        match word.strip_prefix('-') {
            Some(_) if takes_value(word) => drop(words.next()),
            Some(_) => {}
            None => plain.push(word),
        }
    }
    // The words behind the command are not repeated: one of them may be a secret.
    let [name, command, ..] = plain.as_slice() else { return None };
    Some(format!("options of the command stand behind `--`: bridgehead add {name} -- {command} {unknown} …"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Cli;

    fn hinted(words: &[&str]) -> Option<String> {
        let arguments: Vec<String> = words.iter().map(ToString::to_string).collect();
        let error =
            Cli::try_parse_from(std::iter::once("bridgehead").chain(words.iter().copied())).unwrap_err();
        hint(&error, &<Cli as clap::CommandFactory>::command(), &arguments)
    }

    /// JOIN-3: options of a command that stand before `--` are told where they belong; other mistakes get no such hint.
    #[test]
    fn options_of_a_command() {
        let told =
            |text: &str| Some(format!("options of the command stand behind `--`: bridgehead add {text} …"));
        assert_eq!(hinted(&["add", "files", "npx", "-y", "server", "~"]), told("files -- npx -y"));
        assert_eq!(
            hinted(&[
                "--log-level",
                "info",
                "add",
                "-e",
                "A=b",
                "--env",
                "C=d",
                "db",
                "uvx",
                "db-mcp",
                "--ro=1"
            ]),
            told("db -- uvx --ro")
        );
        assert_eq!(hinted(&["add", "files", "--nope"]), None);
        assert_eq!(hinted(&["status", "a", "-y"]), None);
        assert_eq!(hinted(&["add"]), None);
    }
}
