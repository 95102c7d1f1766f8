//! Which of a client's files is the one to change, and where in it.

use std::path::{Path, PathBuf};

use crate::clients::edit::{EditError, Format, servers};
use crate::clients::{Candidate, Client, Keys, Platform, Scope, Surroundings};
use crate::world::World;

/// A file to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) file: PathBuf,
    pub(crate) keys: Keys,
}

/// The surroundings that decide where files are.
pub(crate) fn surroundings(world: &World) -> Surroundings<'_> {
    Surroundings { variables: &world.variables, folder: world.folder(), platform: Platform::here() }
}

/// The client's file: the first that exists, or whose folder exists, or the first one. Files that only older versions of the
/// client read, with their servers under other keys, are not written.
pub(crate) fn target(client: &Client, scope: Scope, surroundings: Surroundings<'_>) -> Option<Target> {
    let candidates = match scope {
        Scope::User => client.user_files(surroundings),
        Scope::Project => client.project_files(surroundings),
    };
    let first = candidates.first()?.clone();
    let current: Vec<Candidate> =
        candidates.into_iter().filter(|candidate| candidate.keys.first() == first.keys.first()).collect();
    let in_folder = |candidate: &&Candidate| candidate.path.parent().is_some_and(Path::is_dir);
    let found =
        current.iter().find(|candidate| candidate.path.exists()).or_else(|| current.iter().find(in_folder));
    let found = found.unwrap_or(&first);
    Some(Target { file: found.path.clone(), keys: found.keys })
}

/// Why a client has no such file.
pub(crate) const fn missing(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "its file cannot be found, because HOME is not set",
        Scope::Project => "it has no file for a project; leave --project out",
    }
}

/// The keys that lead to the servers in this text: those that it has, else the whole file if it may be the map and has members,
/// else the usual ones.
pub(crate) fn path(format: Format, text: &str, keys: Keys) -> Result<&'static [&'static str], EditError> {
    let usual = keys.first().copied().unwrap_or_default();
    for path in keys.iter().filter(|path| !path.is_empty()) {
        if servers(format, text, path)?.is_some() {
            return Ok(path);
        }
    }
    let bare = keys.iter().any(|path| path.is_empty());
    // An object with one member has it.
    let has_members = bare && {
        let wrapped = format!("{{\"all\":{}}}", text.trim_start_matches('\u{feff}'));
        servers(format, &wrapped, &["all"])
            .ok()
            .flatten()
            .is_some_and(|all| all.as_object().is_some_and(|all| !all.is_empty()))
    };
    Ok(if has_members { &[] } else { usual })
}

/// Files of an administrator that win over the user's. They are named, and never changed.
pub(crate) fn managed(client: &Client, surroundings: Surroundings<'_>) -> Vec<PathBuf> {
    let mac = surroundings.platform == Platform::MacOs;
    let files: Vec<PathBuf> = match client.id {
        "claude-code" if mac => vec!["/Library/Application Support/ClaudeCode/managed-mcp.json".into()],
        "claude-code" => vec!["/etc/claude-code/managed-mcp.json".into()],
        "gemini" => {
            let named = surroundings.variables.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH").map(PathBuf::from);
            let usual = match mac {
                true => "/Library/Application Support/GeminiCli/settings.json",
                false => "/etc/gemini-cli/settings.json",
            };
            vec![named.unwrap_or_else(|| usual.into())]
        }
        "codex" => vec!["/etc/codex/managed_config.toml".into()],
        _ => Vec::new(),
    };
    files.into_iter().filter(|file| file.exists()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// JOIN-2: the file that the client reads is the one that is written, and not one that only its older versions read.
    #[test]
    fn the_file_to_change() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        let variables = BTreeMap::from([("HOME".to_owned(), home.to_str().unwrap().to_owned())]);
        let project = home.join("project");
        let around = Surroundings { variables: &variables, folder: &project, platform: Platform::Linux };
        let file = |client: &str, scope| {
            let found = target(Client::named(client).unwrap(), scope, around).unwrap();
            found.file.strip_prefix(home).unwrap().display().to_string()
        };
        let user = Scope::User;
        assert_eq!(file("vscode", user), ".config/Code/User/mcp.json");
        let insiders = home.join(".config/Code - Insiders/User");
        fs::create_dir_all(&insiders).unwrap();
        assert_eq!(file("vscode", user), ".config/Code - Insiders/User/mcp.json");
        fs::create_dir_all(home.join(".config/Code/User")).unwrap();
        fs::write(home.join(".config/Code/User/settings.json"), "{}").unwrap();
        assert_eq!(file("vscode", user), ".config/Code/User/mcp.json");
        fs::write(insiders.join("mcp.json"), "{}").unwrap();
        assert_eq!(file("vscode", user), ".config/Code - Insiders/User/mcp.json");
        assert_eq!(file("vscode", Scope::Project), "project/.vscode/mcp.json");
        assert_eq!(file("claude-desktop", user), ".config/Claude/claude_desktop_config.json");
        fs::create_dir_all(home.join(".config/claude")).unwrap();
        assert_eq!(file("claude-desktop", user), ".config/claude/claude_desktop_config.json");
        assert_eq!(target(Client::named("claude-desktop").unwrap(), Scope::Project, around), None);
        assert_eq!(
            target(
                Client::named("cursor").unwrap(),
                user,
                Surroundings { variables: &BTreeMap::new(), ..around }
            ),
            None
        );
    }

    #[test]
    fn the_keys_to_use() {
        let bare: Keys = &[&["mcpServers"], &[]];
        let keys = |text: &str| path(Format::Json, text, bare).unwrap();
        assert_eq!(keys(""), ["mcpServers"]);
        assert_eq!(keys("{}"), ["mcpServers"]);
        assert_eq!(keys("{\"mcpServers\": {}, \"x\": {}}"), ["mcpServers"]);
        assert_eq!(keys("\u{feff}{\"x\": {\"command\": \"y\"}}"), [""; 0]);
        assert!(path(Format::Json, "{", bare).is_err());
        let several: Keys = &[&["mcpServers"], &["servers"]];
        assert_eq!(path(Format::Json, "{\"servers\": {}}", several).unwrap(), ["servers"]);
    }

    #[test]
    fn files_of_an_administrator() {
        let folder = tempfile::tempdir().unwrap();
        let system = folder.path().join("settings.json");
        let name = "GEMINI_CLI_SYSTEM_SETTINGS_PATH".to_owned();
        let variables = BTreeMap::from([(name, system.to_str().unwrap().to_owned())]);
        let around = Surroundings { variables: &variables, folder: folder.path(), platform: Platform::Linux };
        let gemini = Client::named("gemini").unwrap();
        assert!(managed(gemini, around).is_empty());
        fs::write(&system, "{}").unwrap();
        assert_eq!(managed(gemini, around), [system]);
        assert!(managed(Client::named("cursor").unwrap(), around).is_empty());
    }
}
