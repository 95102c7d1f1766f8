//! Turns the rows of the table into paths.

use std::path::{Path, PathBuf};

use super::{Candidate, Client, File, Platform, Root, Scope, Surroundings};

/// The paths of these files; each once, in the order of the rows.
pub(super) fn candidates(
    client: &Client,
    files: &[File],
    scope: Scope,
    surroundings: Surroundings<'_>,
) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    for file in files {
        for root in roots(file.root, surroundings) {
            for path in expand(&root, file.path) {
                if !all.iter().any(|other| other.path == path) {
                    let project = (scope == Scope::Project).then(|| root.clone());
                    all.push(Candidate { path, scope, project, keys: file.keys.unwrap_or(client.keys) });
                }
            }
        }
    }
    all
}

/// The folders that a root stands for, or the file that a variable names.
fn roots(root: Root, surroundings: Surroundings<'_>) -> Vec<PathBuf> {
    let Surroundings { variables, folder, platform } = surroundings;
    // An empty variable counts as unset, and a relative path would mean another file in each folder.
    let variable = |name: &str| variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || variable("HOME");
    let config = || variable("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")));
    let one = match root {
        Root::Home => home(),
        Root::Config => config(),
        Root::App if platform == Platform::MacOs => {
            home().map(|home| home.join("Library/Application Support"))
        }
        Root::App => config(),
        Root::Folder(name, in_home) => variable(name).or_else(|| Some(home()?.join(in_home))),
        Root::Variable(name) => variable(name),
        Root::Project => Some(folder.to_owned()),
        Root::Upward => return upward(folder),
    };
    one.into_iter().collect()
}

/// The folder and those above it, up to the root of its repository; the folder alone, if it is in none.
fn upward(folder: &Path) -> Vec<PathBuf> {
    let above: Vec<PathBuf> = folder.ancestors().map(Path::to_owned).collect();
    // A worktree has a file of this name, not a folder.
    match above.iter().position(|folder| folder.join(".git").exists()) {
        Some(root) => above[..=root].to_vec(),
        None => vec![folder.to_owned()],
    }
}

/// The path below the root. If it has a `*`, the paths that exist, sorted.
fn expand(root: &Path, path: &str) -> Vec<PathBuf> {
    if path.is_empty() {
        return vec![root.to_owned()];
    }
    let Some((before, after)) = path.split_once('*') else { return vec![root.join(path)] };
    let (suffix, rest) = after.split_once('/').unwrap_or((after, ""));
    let Ok(entries) = std::fs::read_dir(root.join(before)) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<PathBuf> = names
        .filter(|name| name.ends_with(suffix) && !name.starts_with('.'))
        .map(|name| root.join(before).join(name))
        .map(|path| if rest.is_empty() { path } else { path.join(rest) })
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use super::super::{By, CLIENTS, Form, Http};
    use super::*;

    fn variables(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[track_caller]
    fn check(client: &str, platform: Platform, set: &[(&str, &str)], expected: &[&str]) {
        let variables = variables(&[&[("HOME", "/home/ada")], set].concat());
        let surroundings =
            Surroundings { variables: &variables, folder: Path::new("/nowhere/at/all"), platform };
        let client = Client::named(client).unwrap();
        let found: Vec<String> =
            client.user_files(surroundings).iter().map(|one| one.path.display().to_string()).collect();
        assert_eq!(found, expected);
    }

    /// JOIN-1: the files of every client are looked for where the client keeps them, on Linux and on macOS.
    #[test]
    fn user_files() {
        use Platform::{Linux, MacOs};
        let desktop = "claude_desktop_config.json";
        check(
            "claude-desktop",
            Linux,
            &[],
            &[&format!("/home/ada/.config/Claude/{desktop}"), &format!("/home/ada/.config/claude/{desktop}")],
        );
        check(
            "claude-desktop",
            Linux,
            &[("XDG_CONFIG_HOME", "/etc/ada")],
            &[&format!("/etc/ada/Claude/{desktop}"), &format!("/etc/ada/claude/{desktop}")],
        );
        check(
            "claude-desktop",
            MacOs,
            &[("XDG_CONFIG_HOME", "/etc/ada")],
            &[
                &format!("/home/ada/Library/Application Support/Claude/{desktop}"),
                &format!("/home/ada/Library/Application Support/claude/{desktop}"),
            ],
        );
        check("claude-code", Linux, &[], &["/home/ada/.claude.json"]);
        check("claude-code", MacOs, &[("CLAUDE_CONFIG_DIR", "/c")], &["/c/.claude.json"]);
        check("claude-code", Linux, &[("CLAUDE_CONFIG_DIR", "")], &["/home/ada/.claude.json"]);
        check("cursor", MacOs, &[], &["/home/ada/.cursor/mcp.json"]);
        check(
            "vscode",
            MacOs,
            &[],
            &[
                "/home/ada/Library/Application Support/Code/User/mcp.json",
                "/home/ada/Library/Application Support/Code - Insiders/User/mcp.json",
                "/home/ada/.vscode-server/data/User/mcp.json",
                "/home/ada/Library/Application Support/Code/User/settings.json",
            ],
        );
        check(
            "windsurf",
            Linux,
            &[],
            &[
                "/home/ada/.codeium/windsurf/mcp_config.json",
                "/home/ada/.codeium/mcp_config.json",
                "/home/ada/.config/devin/mcp_config.json",
            ],
        );
        check("zed", Linux, &[], &["/home/ada/.config/zed/settings.json"]);
        check(
            "zed",
            MacOs,
            &[("XDG_CONFIG_HOME", "/x")],
            &["/x/zed/settings.json", "/home/ada/.config/zed/settings.json"],
        );
        check("codex", Linux, &[], &["/home/ada/.codex/config.toml"]);
        check("codex", Linux, &[("CODEX_HOME", "/codex")], &["/codex/config.toml"]);
        check("codex", Linux, &[("CODEX_HOME", "relative")], &["/home/ada/.codex/config.toml"]);
        check("goose", MacOs, &[], &["/home/ada/.config/goose/config.yaml"]);
        let folder = "/home/ada/.config/opencode";
        let usual = ["opencode.json", "opencode.jsonc", "config.json"].map(|name| format!("{folder}/{name}"));
        let usual: Vec<&str> = usual.iter().map(String::as_str).collect();
        check("opencode", Linux, &[], &usual);
        check("opencode", Linux, &[("OPENCODE_CONFIG", "/my.json")], &[&["/my.json"], &usual[..]].concat());
        check("gemini", Linux, &[], &["/home/ada/.gemini/settings.json"]);
        check(
            "lmstudio",
            Linux,
            &[],
            &["/home/ada/.lmstudio/mcp.json", "/home/ada/.cache/lm-studio/mcp.json"],
        );
        check("junie", Linux, &[], &["/home/ada/.junie/mcp/mcp.json"]);
        check("ai-assistant", Linux, &[], &["/home/ada/.ai/mcp/mcp.json"]);
        check(
            "cline",
            Linux,
            &[("CLINE_MCP_SETTINGS_PATH", "/cline.json")],
            &[
                "/cline.json",
                "/home/ada/.cline/data/settings/cline_mcp_settings.json",
                "/home/ada/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
            ],
        );
        check(
            "roo",
            Linux,
            &[],
            &[
                "/home/ada/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
            ],
        );
        check("continue", Linux, &[], &["/home/ada/.continue/config.yaml"]);
        check(
            "amp",
            Linux,
            &[],
            &["/home/ada/.config/amp/settings.json", "/home/ada/.config/amp/settings.jsonc"],
        );
        check("warp", Linux, &[], &["/home/ada/.warp/.mcp.json"]);
        check("copilot", Linux, &[], &["/home/ada/.copilot/mcp-config.json"]);
        check("copilot", Linux, &[("COPILOT_HOME", "/co")], &["/co/mcp-config.json"]);
    }

    #[test]
    fn without_a_home_there_are_no_user_files() {
        let none = BTreeMap::new();
        let surroundings =
            Surroundings { variables: &none, folder: Path::new("/nowhere"), platform: Platform::Linux };
        for client in &CLIENTS {
            assert_eq!(client.user_files(surroundings), [], "{}", client.id);
        }
    }

    /// JOIN-1: a project's files are those of the current folder; some clients also look in the folders above it, up to the
    /// root of the repository.
    #[test]
    fn project_files() {
        let place = tempfile::TempDir::new().unwrap();
        let top = place.path();
        let inner = top.join("repository/inner");
        fs::create_dir_all(inner.join(".continue/mcpServers")).unwrap();
        fs::create_dir_all(top.join("repository/.git")).unwrap();
        for name in ["b.yaml", "a.yaml", "c.json", "notes.txt", ".hidden.yaml"] {
            fs::write(inner.join(".continue/mcpServers").join(name), "").unwrap();
        }
        let none = BTreeMap::new();
        let found = |client: &str, folder: &Path| -> Vec<String> {
            let surroundings = Surroundings { variables: &none, folder, platform: Platform::Linux };
            let files = Client::named(client).unwrap().project_files(surroundings);
            assert!(files.iter().all(|file| file.scope == Scope::Project));
            let inside = |file: &Candidate| file.path.starts_with(file.project.as_ref().unwrap());
            assert!(files.iter().all(inside), "{files:?}");
            files.iter().map(|file| file.path.strip_prefix(top).unwrap().display().to_string()).collect()
        };
        assert_eq!(found("claude-code", &inner), ["repository/inner/.mcp.json"]);
        assert_eq!(found("claude-desktop", &inner), [""; 0]);
        assert_eq!(
            found("copilot", &inner),
            [
                "repository/inner/.mcp.json",
                "repository/.mcp.json",
                "repository/inner/.github/mcp.json",
                "repository/.github/mcp.json"
            ]
        );
        assert_eq!(
            found("copilot", top),
            [".mcp.json", ".github/mcp.json"],
            "no repository: this folder only"
        );
        assert_eq!(
            found("continue", &inner),
            ["a.yaml", "b.yaml", "c.json"]
                .map(|name| format!("repository/inner/.continue/mcpServers/{name}"))
        );
    }

    #[test]
    fn profiles_of_an_editor() {
        let place = tempfile::TempDir::new().unwrap();
        let user = place.path().join(".config/Code/User");
        for profile in ["profiles/-5a1b", "profiles/77", "profiles/empty"] {
            fs::create_dir_all(user.join(profile)).unwrap();
        }
        fs::write(user.join("profiles/-5a1b/mcp.json"), "{}").unwrap();
        fs::write(user.join("profiles/77/mcp.json"), "{}").unwrap();
        let variables = variables(&[("HOME", place.path().to_str().unwrap())]);
        let surroundings =
            Surroundings { variables: &variables, folder: Path::new("/nowhere"), platform: Platform::Linux };
        let files = Client::named("vscode").unwrap().user_files(surroundings);
        let profiles: Vec<&Candidate> =
            files.iter().filter(|file| file.path.starts_with(user.join("profiles"))).collect();
        let found: Vec<&Path> = profiles.iter().map(|file| file.path.as_path()).collect();
        assert_eq!(found, [user.join("profiles/-5a1b/mcp.json"), user.join("profiles/77/mcp.json")]);
        assert_eq!(profiles[0].keys, [["servers"]]);
        let old = files.iter().find(|file| file.path == user.join("settings.json")).unwrap();
        assert_eq!(old.keys, [["mcp", "servers"]], "it has its servers elsewhere");
    }

    #[test]
    fn names_are_unique_and_every_one_is_found() {
        let mut names = BTreeSet::new();
        for client in &CLIENTS {
            for name in std::iter::once(&client.id).chain(client.aliases) {
                assert!(names.insert(*name), "{name} is written twice");
                assert_eq!(Client::named(name), Some(client));
            }
            assert!(!client.keys.is_empty() && !client.user.is_empty(), "{}", client.id);
            let plain = client.user.iter().find(|file| !file.path.is_empty()).unwrap();
            let by_name = Form::of(Path::new(plain.path));
            let json = [Form::Json, Form::Jsonc];
            assert!(
                by_name == client.form || (json.contains(&by_name) && json.contains(&client.form)),
                "{}",
                client.id
            );
        }
        assert_eq!(Client::named(" Claude Code ").map(|client| client.id), Some("claude-code"));
        assert_eq!(Client::named("VS_Code").map(|client| client.id), Some("vscode"));
        assert_eq!(Client::named("notepad"), None);
    }

    #[test]
    fn the_platform_of_this_program() {
        assert_eq!(Platform::here() == Platform::MacOs, cfg!(target_os = "macos"));
    }

    #[test]
    fn forms_by_name() {
        for (name, form) in [
            ("a.json", Form::Json),
            ("a.jsonc", Form::Jsonc),
            ("a.toml", Form::Toml),
            ("a.yaml", Form::Yaml),
            ("a.yml", Form::Yaml),
            ("a", Form::Json),
        ] {
            assert_eq!(Form::of(Path::new(name)), form, "{name}");
        }
    }

    /// The clients that `connect` changes itself, and those whose tokens come from a variable.
    #[test]
    fn what_connecting_needs() {
        let changed = |client: &&Client| matches!(client.connect.by, By::Command(_) | By::Edit);
        let ids: Vec<&str> = CLIENTS.iter().filter(changed).map(|client| client.id).collect();
        assert_eq!(
            ids,
            [
                "claude-desktop",
                "claude-code",
                "cursor",
                "vscode",
                "windsurf",
                "zed",
                "codex",
                "gemini",
                "copilot"
            ]
        );
        let restarted: Vec<&str> =
            CLIENTS.iter().filter(|client| client.connect.restart).map(|client| client.id).collect();
        assert_eq!(restarted, ["claude-desktop"]);
        for client in &CLIENTS {
            if let Http::Header(form) = client.connect.http {
                assert_eq!(form.matches('X').count(), 1, "{}", client.id);
            }
            assert!(client.connect.trust.is_none_or(|said| said.starts_with(client.title)), "{}", client.id);
        }
    }
}
