//! Where `${file:PATH}`, `${cmd:NAME}` and, with an `env_file`, `${NAME}` take their text from.
//!
//! A file is read once for each configuration that is loaded, and a command runs once, when the first value refers to it. So a
//! reload (SIGHUP) reads all of them again. This crate starts no program: its caller passes a function that does.
//!
//! What must stay true: no message contains what was read, and the text of an untrusted file runs nothing and fills in nothing.
//! Of the `env_file` that it names, only the names are used.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::env_file;
use crate::environment::Environment;
use crate::interpolate::{Reference, Refusal};
use crate::secret_file::read_secret_file;

/// How long a command may run.
const WITHIN: Duration = Duration::from_secs(10);
/// The longest secret, in bytes.
const LONGEST: usize = 64 * 1024;
/// The largest file of variables, in bytes.
const LARGEST: u64 = 1024 * 1024;

/// A command of `[secrets] commands` that is to run now.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SecretCommand<'c> {
    /// The program: a name to look up in `PATH`, or a path.
    pub program: &'c str,
    /// Its arguments.
    pub args: &'c [String],
    /// The folder to run it in: that of the configuration.
    pub folder: &'c Path,
    /// How long it may take, its start included. What still runs then is killed.
    pub within: Duration,
    /// How many bytes it may print.
    pub most: usize,
}

/// Runs a command and returns what it printed on standard output. The error says why there is nothing to return, without a
/// word of what the command printed.
pub type RunCommand = dyn Fn(SecretCommand<'_>) -> Result<Vec<u8>, String> + Send + Sync;

/// What becomes of references to secrets.
#[derive(Clone, Default)]
pub(crate) enum SecretSource {
    /// Files are read, and no command can run.
    #[default]
    Files,
    /// Files are read, and commands run.
    FilesAndCommands(Arc<RunCommand>),
    /// Nothing is read: references stay as they are written.
    Nothing,
}

/// The secrets of one configuration.
pub(crate) struct Secrets {
    pub(crate) commands: BTreeMap<String, Vec<String>>,
    pub(crate) allow_group_read: bool,
    /// What each reference stands for.
    known: RefCell<BTreeMap<Reference, Result<String, Refusal>>>,
    /// The files that were read, or should have been.
    files: RefCell<BTreeSet<PathBuf>>,
    /// The variables of `env_file`, or why it cannot be used.
    variables: Result<BTreeMap<String, String>, Refusal>,
    /// Whether a value referred to one of them.
    used: Cell<bool>,
}

impl Secrets {
    pub(crate) fn new(
        commands: BTreeMap<String, Vec<String>>,
        allow_group_read: bool,
        env_file: Option<&Path>,
    ) -> Self {
        Self {
            commands,
            allow_group_read,
            known: RefCell::default(),
            files: RefCell::new(env_file.into_iter().map(Path::to_owned).collect()),
            variables: env_file.map_or_else(|| Ok(BTreeMap::new()), |file| variables(file, allow_group_read)),
            used: Cell::new(false),
        }
    }

    /// What a variable of `env_file` stands for; `None` if it is not there.
    pub(crate) fn variable(&self, name: &str, environment: &Environment) -> Option<String> {
        let value = self.variables.as_ref().ok()?.get(name)?;
        self.used.set(true);
        Some(match environment.secrets {
            SecretSource::Nothing => format!("${{{name}}}"),
            SecretSource::Files | SecretSource::FilesAndCommands(_) => value.clone(),
        })
    }

    /// Whether `env_file` has this variable.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.variables.as_ref().is_ok_and(|variables| variables.contains_key(name))
    }

    /// Why `env_file` cannot be used.
    pub(crate) fn fault(&self) -> Option<Refusal> {
        self.variables.as_ref().err().cloned()
    }

    /// Whether a value referred to a secret so far.
    pub(crate) fn is_used(&self) -> bool {
        self.used.get() || !self.known.borrow().is_empty()
    }

    /// All files that references named so far.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().iter().cloned().collect()
    }

    /// What a reference stands for.
    pub(crate) fn get(
        &self,
        reference: &Reference,
        environment: &Environment,
        base: &Path,
    ) -> Result<String, Refusal> {
        if let Some(known) = self.known.borrow().get(reference) {
            return known.clone();
        }
        let found = match reference {
            Reference::File(path) => self.file(path, environment, base),
            Reference::Command(name) => self.command(name, environment, base),
        };
        self.known.borrow_mut().insert(reference.clone(), found.clone());
        found
    }

    fn file(&self, path: &str, environment: &Environment, base: &Path) -> Result<String, Refusal> {
        let path = environment.resolve(path, base);
        self.files.borrow_mut().insert(path.clone());
        if let SecretSource::Nothing = environment.secrets {
            return Ok(Reference::File(path.display().to_string()).to_string());
        }
        let content = read_secret_file(&path, self.allow_group_read, LONGEST as u64)
            .map_err(|error| Refusal::Secret { fault: error.fault(), cure: error.cure() })?;
        text(content).ok_or_else(|| Refusal::Secret {
            fault: format!("`{}` does not hold text in UTF-8", path.display()),
            cure: "name a file that holds the secret alone".to_owned(),
        })
    }

    fn command(&self, name: &str, environment: &Environment, base: &Path) -> Result<String, Refusal> {
        let Some([program, args @ ..]) = self.commands.get(name).map(Vec::as_slice) else {
            let near = crate::check::near(name, self.commands.keys().map(String::as_str));
            return Err(Refusal::UnknownCommand { name: name.to_owned(), near: near.map(str::to_owned) });
        };
        let run = match &environment.secrets {
            SecretSource::Nothing => return Ok(Reference::Command(name.to_owned()).to_string()),
            SecretSource::FilesAndCommands(run) => run,
            SecretSource::Files => {
                return Err(Refusal::Secret {
                    fault: format!("the command `{name}` cannot run here"),
                    cure: "use `${file:PATH}` or a variable; this program starts no commands for secrets"
                        .to_owned(),
                });
            }
        };
        let command = SecretCommand { program, args, folder: base, within: WITHIN, most: LONGEST };
        let failed = |reason: String| Refusal::Secret {
            fault: format!("the command `{name}` of `[secrets]` gave no secret: {reason}"),
            cure: "run it in a shell to see what it says".to_owned(),
        };
        let printed = run(command).map_err(failed)?;
        if printed.len() > LONGEST {
            return Err(failed(format!("it printed more than {LONGEST} bytes")));
        }
        text(printed).ok_or_else(|| failed("it did not print text in UTF-8".to_owned()))
    }
}

/// The variables of an `env_file`.
fn variables(file: &Path, allow_group_read: bool) -> Result<BTreeMap<String, String>, Refusal> {
    let refused = |fault: &str, cure: String| Refusal::Secret { fault: format!("`env_file`: {fault}"), cure };
    let content = read_secret_file(file, allow_group_read, LARGEST)
        .map_err(|error| refused(&error.fault(), error.cure()))?;
    let cure = || format!("correct `{}`", file.display());
    let text = String::from_utf8(content).map_err(|_| refused("it does not hold text in UTF-8", cure()))?;
    let entries = env_file::parse(&text)
        .map_err(|line| refused(&format!("line {} is not `NAME=value`", line.0), cure()))?;
    Ok(entries.into_iter().collect())
}

/// The secret: everything but one line break at the end.
fn text(content: Vec<u8>) -> Option<String> {
    let mut text = String::from_utf8(content).ok()?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Some(text)
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Secrets").field("commands", &self.commands.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-8: exactly one line break at the end does not belong to the secret.
    #[test]
    fn the_line_break_at_the_end() {
        for (content, expected) in [
            ("a", "a"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            (" a \r", " a \r"),
            ("", ""),
            ("\n", ""),
        ] {
            assert_eq!(text(content.into()).as_deref(), Some(expected), "{content:?}");
        }
        assert_eq!(text(vec![0xff]), None);
    }
}
