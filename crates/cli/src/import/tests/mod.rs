//! Imports from files as each client writes them, on homes made for the test.

mod decisions;
mod entries;
mod files;
mod page;
mod property;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use clap::Parser;
use tempfile::TempDir;

use super::plan::{Outcome, Plan};
use super::*;

/// A home and a project, in a folder of the test's own.
struct Place {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

/// The command line of the verb.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    import: Import,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: TempDir::new().unwrap(), variables: Vec::new() };
        for folder in ["home", "project"] {
            fs::create_dir(place.folder.path().join(folder)).unwrap();
        }
        place
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn project(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    /// Writes a file. `/home/ada` and `/project` in its text mean the folders of this test.
    fn write(&self, path: &Path, text: &str) -> PathBuf {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = text
            .replace("/home/ada", self.home().to_str().unwrap())
            .replace("/project", self.project().to_str().unwrap());
        fs::write(&path, text).unwrap();
        path
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn world(&self) -> World {
        let mut variables: BTreeMap<String, String> = self.variables.iter().cloned().collect();
        variables.insert("HOME".to_owned(), self.home().display().to_string());
        World::of(variables, self.project()).unwrap()
    }

    fn own(&self) -> PathBuf {
        self.home().join(".config/bridgehead/bridgehead.toml")
    }

    /// Runs the verb with these words.
    fn import(&self, words: &[&str]) -> Exit {
        import(words).run(&self.world())
    }

    /// What the verb would decide.
    fn plan(&self, words: &[&str]) -> (Plan, Vec<BrokenFile>) {
        let (import, world) = (import(words), self.world());
        let target = import.target(&world).unwrap();
        let gathered = gather(&import.sources(surroundings(&world)), surroundings(&world));
        let file = ServersFile::read(&target, &world).unwrap();
        let secrets = import.secrets.unwrap_or(SecretsChoice::EnvFile);
        (Planner { world: &world, secrets, ports: &[] }.plan(&gathered.found, &file), gathered.broken)
    }

    /// The names that would be added, with a mark for those that are off.
    fn added(&self, words: &[&str]) -> Vec<String> {
        let (plan, _) = self.plan(words);
        let name = |row: &plan::Row| {
            format!("{}{}", if row.disabled.is_some() { "!" } else { "" }, row.server.as_ref().unwrap())
        };
        plan.with(&Outcome::Added).map(name).collect()
    }

    /// A text of this test as one of any test.
    fn plain(&self, text: &str) -> String {
        text.replace(self.home().to_str().unwrap(), "/home/ada")
            .replace(self.project().to_str().unwrap(), "/project")
    }

    fn text(&self, path: &Path) -> String {
        self.plain(&fs::read_to_string(path).unwrap_or_default())
    }
}

fn import(words: &[&str]) -> Import {
    Line::try_parse_from([&["import"], words].concat()).unwrap().import
}

fn surroundings(world: &World) -> Surroundings<'_> {
    Surroundings { variables: &world.variables, folder: world.folder(), platform: Platform::Linux }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

const CURSOR: &str = "home/.cursor/mcp.json";

const CLAUDE: &str = "home/.claude.json";

const WINDSURF: &str = "home/.codeium/windsurf/mcp_config.json";

fn server(name: &str, rest: &str) -> String {
    format!(r#"{{"mcpServers": {{"{name}": {{{rest}}}}}}}"#)
}
