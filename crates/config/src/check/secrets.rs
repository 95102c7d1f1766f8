//! Reads `[secrets]`, and refuses secrets that others can read.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{World, path, shown};
use crate::interpolate::is_name;
use crate::keys::KeyTable;
use crate::secret_file::check_secret_file;
use crate::secrets::Secrets;
use crate::section::{Findings, Section};
use crate::settings::SecretSettings;
use crate::tree::Span;

pub(super) fn read(
    root: &Section<'_>,
    world: World<'_>,
    findings: &mut Findings,
) -> (SecretSettings, Secrets) {
    let section = Section::read(KeyTable::Secrets, root.table("secrets"), findings);
    let mut commands = BTreeMap::new();
    for (entry, words) in section.lists("commands") {
        if !is_name(&entry.key) {
            let message = format!("`{}` cannot be the name of a command", shown(&entry.key));
            let help = "use letters, digits, `_` and `-`, and begin with a letter or `_`";
            findings.mistake(findings.diagnostic(message, &entry.key_span).help(help));
        }
        if words.first().is_none_or(|(program, _)| program.is_empty()) {
            let message = format!("the command `{}` has no program", shown(&entry.key));
            let help = "write a list of the program and its arguments: `[\"pass\", \"show\", \"tracker\"]`";
            findings.mistake(findings.diagnostic(message, &entry.node.span).help(help));
        }
        commands.insert(entry.key.clone(), words.into_iter().map(|(word, _)| word.to_owned()).collect());
    }
    let allow_group_read = section.flag("allow_group_read").unwrap_or(false);
    let env_file = path(&section, "env_file", world, findings);
    let secrets = Secrets::new(commands.clone(), allow_group_read, env_file.as_deref());
    (SecretSettings { commands, allow_group_read, env_file, used: false }, secrets)
}

/// Refuses a file that others can read. A file that does not exist is left to whoever reads it.
pub(super) fn refuse_exposed(key: &str, file: &Path, span: &Span, world: World<'_>, findings: &mut Findings) {
    let Ok(metadata) = std::fs::metadata(file) else { return };
    let allowed = world.secrets.is_some_and(|secrets| secrets.allow_group_read);
    if let Err(error) = check_secret_file(file, metadata.mode(), allowed) {
        let message = format!("`{key}`: {}", error.fault());
        findings.mistake(findings.diagnostic(message, span).help(error.cure()));
    }
}
