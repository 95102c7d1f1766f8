//! `bridgehead import`: takes the servers of other MCP clients over.
//!
//! Reading ([`read`], [`entry`]), deciding ([`plan`]) and telling ([`report`]) are apart from each other. What must stay true: no
//! client's file is changed, no value is resolved, a broken file stops no other, and a second import changes nothing.

mod dialect;
mod entry;
mod offer;
mod own;
mod plan;
mod read;
mod report;
mod sign_in;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
mod variables;

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use bridgehead::config::{ListenAddress, user_file};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use self::offer::Offer;
use self::plan::Planner;
use self::read::{Content, Source, Unreadable};
use self::report::{BrokenFile, Report};
use super::clients::{CLIENTS, Client, Platform, Scope, Surroundings};
use super::exit::Exit;
use super::servers_file::{self, ServersFile, ServersFileError};
use super::world::{World, short};
use super::{Run, output};

/// Take over the servers of other MCP clients
#[derive(Debug, Args)]
#[command(
    after_help = "Reads the files of Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Zed, Codex, Goose,
OpenCode, Gemini CLI, LM Studio, Junie, AI Assistant, Cline, Roo Code, Continue, Amp, Warp
and Copilot CLI, and changes none of them. The same server in several clients is added
once. What has no equal is added turned off, with the reason. Values that look like
secrets go to a file that only you can read.

Examples:
  bridgehead import --dry-run              what would be taken over, from all clients
  bridgehead import                        all servers, into your own configuration
  bridgehead import --from cursor          those of one client
  bridgehead import --scope project        those of this folder, into ./bridgehead.toml
  bridgehead import ~/old/mcp.json         those of one file"
)]
pub(crate) struct Import {
    /// Files to read, instead of the clients' own
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Client to import from; may be repeated
    #[arg(long, value_name = "CLIENT", value_parser = client_parser(), ignore_case = true, hide_possible_values = true)]
    from: Vec<&'static Client>,
    /// The configuration to add to, instead of your own
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Import your own servers, or those of the project in this folder
    #[arg(long, value_name = "SCOPE", default_value = "user")]
    scope: ScopeChoice,
    /// Where values that look like secrets go: a file that only you can read, or variables that you set
    #[arg(long, value_name = "WHERE")]
    secrets: Option<SecretsChoice>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Ask nothing
    #[arg(long, short)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Whose servers are imported, and where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScopeChoice {
    /// The user's, into the user's own configuration
    User,
    /// The project's, into ./bridgehead.toml
    Project,
}

/// Where values that look like secrets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SecretsChoice {
    /// A file of mode 0600
    EnvFile,
    /// Nowhere: the configuration names variables
    Variables,
}

/// Knows the names of all clients.
fn client_parser() -> impl TypedValueParser<Value = &'static Client> {
    let names = CLIENTS.iter().map(|client| PossibleValue::new(client.id).aliases(client.aliases));
    PossibleValuesParser::new(names)
        .try_map(|name| Client::named(&name).ok_or_else(|| format!("there is no client `{name}`")))
}

impl Run for Import {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        let asks = world.asks() && !self.yes && !self.json;
        let done = self.import(world, asks.then_some(&mut io::stdin().lock()));
        done.unwrap_or_else(|error| error.tell(self.json))
    }
}

/// What was read from all files.
#[derive(Default)]
struct Gathered {
    found: Vec<read::Found>,
    broken: Vec<BrokenFile>,
    /// How many files were there.
    files: usize,
    /// How many servers Claude Code keeps for other folders.
    elsewhere: usize,
}

impl Import {
    /// Imports. With `answers` the user is asked first.
    fn import(&self, world: &World, answers: Option<&mut dyn BufRead>) -> Result<Exit, ServersFileError> {
        if !self.files.is_empty() && self.from.len() > 1 {
            let message = "one --from says how to read the files; several are not clear".to_owned();
            return Err(ServersFileError::Stopped { message, exit: Exit::Usage });
        }
        let target = self.target(world)?;
        let surroundings =
            Surroundings { variables: &world.variables, folder: world.folder(), platform: Platform::here() };
        let gathered = gather(&self.sources(surroundings), surroundings);
        if gathered.found.is_empty() && gathered.broken.is_empty() {
            return Ok(self.nothing(&gathered, surroundings));
        }
        let mut preview = ServersFile::read(&target, world)?;
        let ports = ports(world, &target);
        let planner = |secrets| Planner { world, secrets, ports: &ports };
        let secrets = self.secrets.unwrap_or(SecretsChoice::EnvFile);
        let plan = planner(secrets).plan(&gathered.found, &preview);
        let applied = plan.apply(&mut preview)?;
        let mut report = Report {
            target: &target,
            secrets_file: preview.secrets_path().to_owned(),
            home: home(surroundings),
            plan,
            applied,
            broken: &gathered.broken,
            changed: false,
            saved: None,
        };
        if !self.json {
            report.show();
        }
        let exit = if gathered.broken.is_empty() { Exit::Success } else { Exit::Failure };
        self.hint(&gathered, surroundings);
        if self.dry_run || report.plan.is_empty() {
            report.tell_undone();
            if let Some(offer) =
                self.offer(&report.plan, &target, world).filter(|_| !self.dry_run && !self.json)
            {
                offer.make(None, world);
            }
            return Ok(if self.json { report.json(self.dry_run, exit) } else { exit });
        }
        let mut answers = answers;
        let answer = match &mut answers {
            Some(answers) => self.ask(&report, secrets, *answers),
            None => Some(secrets),
        };
        let Some(secrets) = answer else {
            output::talk("nothing was changed");
            return Ok(exit);
        };
        let ((plan, applied), saved) = servers_file::edit(&target, world, |file| {
            let plan = planner(secrets).plan(&gathered.found, file);
            let applied = plan.apply(file)?;
            // A project's file may be somebody else's, and so may any file that is not a client's own.
            if self.scope == ScopeChoice::Project || !self.files.is_empty() {
                file.written_by_others();
            }
            Ok((plan, applied))
        })?;
        report = Report { plan, applied, changed: true, saved: Some(saved), ..report };
        report.tell_done();
        if self.json {
            return Ok(report.json(false, exit));
        }
        let offered = self.offer(&report.plan, &target, world).map(|offer| offer.make(answers, world));
        Ok(offered.filter(|offered| *offered != Exit::Success).unwrap_or(exit))
    }

    /// What to do about servers that run twice now. Files that were named are not those that a client reads, and a project's
    /// belong to others, too.
    fn offer(&self, plan: &plan::Plan, target: &Path, world: &World) -> Option<Offer> {
        let own = self.files.is_empty() && self.scope == ScopeChoice::User;
        own.then(|| Offer::of(plan, target, world)).flatten()
    }

    /// The configuration to write.
    fn target(&self, world: &World) -> Result<PathBuf, ServersFileError> {
        let own = || match self.scope {
            ScopeChoice::User => user_file(&world.environment),
            ScopeChoice::Project => Some(world.folder().join("bridgehead.toml")),
        };
        self.into.as_ref().map(|path| world.folder().join(path)).or_else(own).ok_or_else(|| {
            ServersFileError::Stopped {
                message: "neither XDG_CONFIG_HOME nor HOME is set; name the configuration with --into"
                    .to_owned(),
                exit: Exit::Configuration,
            }
        })
    }

    /// The files to read.
    fn sources(&self, surroundings: Surroundings<'_>) -> Vec<Source> {
        if !self.files.is_empty() {
            let from = match self.from.as_slice() {
                [one] => Some(*one),
                _ => None,
            };
            return self.files.iter().map(|path| read::source_of(path, from, surroundings)).collect();
        }
        read::sources(&self.clients(), self.scope.into(), surroundings)
    }

    fn clients(&self) -> Vec<&'static Client> {
        match self.from.is_empty() {
            true => CLIENTS.iter().collect(),
            false => self.from.clone(),
        }
    }

    /// Says that there is nothing to import, and where it would have been.
    fn nothing(&self, gathered: &Gathered, surroundings: Surroundings<'_>) -> Exit {
        let exit = if self.from.is_empty() && self.files.is_empty() { Exit::Success } else { Exit::Failure };
        let place = match gathered.files {
            0 if !self.from.is_empty() => {
                let clients = self.clients();
                let files = clients.iter().flat_map(|client| match self.scope {
                    ScopeChoice::User => client.user_files(surroundings),
                    ScopeChoice::Project => client.project_files(surroundings),
                });
                let files: Vec<String> = files.map(|file| format!("\n{}", file.path.display())).collect();
                format!("; looked for{}", files.concat())
            }
            0 => " in the files of any known client".to_owned(),
            count => format!(" in {}", output::counted(count as u64, "file")),
        };
        output::talk(&format!("there are no servers to import{place}"));
        self.hint(gathered, surroundings);
        match self.json {
            true => output::json_data(&report::nothing(), exit),
            false => exit,
        }
    }

    /// Names servers that this import passes over.
    fn hint(&self, gathered: &Gathered, surroundings: Surroundings<'_>) {
        if gathered.elsewhere > 0 {
            let count = output::counted(gathered.elsewhere as u64, "server");
            output::talk(&format!(
                "note: Claude Code keeps {count} for other folders; run `bridgehead import` there to take them"
            ));
        }
        if self.scope == ScopeChoice::Project || !self.files.is_empty() {
            return;
        }
        // Anybody may have written a project's files, so they are imported only by request.
        let sources = read::sources(&self.clients(), Scope::Project, surroundings);
        // In the home, some of them are the user's own files.
        let own = read::sources(&self.clients(), Scope::User, surroundings);
        let is_own = |source: &Source| {
            let place = source.file.path.canonicalize().ok();
            own.iter().any(|own| own.file.path.canonicalize().ok() == place)
        };
        let mut files: Vec<String> = sources
            .iter()
            .filter(|source| !is_own(source))
            .filter(|source| {
                read::read(source, surroundings).is_ok_and(|content| !content.servers.is_empty())
            })
            .map(|source| format!("`{}`", short(&source.file.path, home(surroundings))))
            .collect();
        files.dedup();
        if let Some(first) = files.first() {
            let more = match files.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            output::talk(&format!(
                "note: this project has servers in {first}{more}; `bridgehead import --scope project` takes them into \
                 ./bridgehead.toml"
            ));
        }
    }

    /// Asks whether to go on, and where secrets go; `None` to stop.
    fn ask(
        &self,
        report: &Report<'_>,
        secrets: SecretsChoice,
        answers: &mut dyn BufRead,
    ) -> Option<SecretsChoice> {
        let mut secrets = secrets;
        let count: usize = report.applied.placed.iter().map(|(_, placed)| placed.len()).sum();
        if count > 0 && self.secrets.is_none() {
            output::talk(&format!(
                "{} like a secret. Keep {} in `{}`, which only you can read? Otherwise you set variables yourself. [Y/n]",
                if count == 1 { "1 value looks".to_owned() } else { format!("{count} values look") },
                if count == 1 { "it" } else { "them" },
                report.secrets_file.display()
            ));
            if !answer(answers)? {
                secrets = SecretsChoice::Variables;
            }
        }
        let added = report.plan.with(&plan::Outcome::Added).count();
        let what = output::counted(added as u64, "server");
        output::talk(&format!("Add {what} to `{}`? [Y/n]", report.target.display()));
        answer(answers)?.then_some(secrets)
    }
}

/// Yes, which is also the empty answer, or no; `None` if there is no answer.
fn answer(answers: &mut dyn BufRead) -> Option<bool> {
    let mut line = String::new();
    match answers.read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(["", "y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str())),
    }
}

impl From<ScopeChoice> for Scope {
    fn from(choice: ScopeChoice) -> Self {
        match choice {
            ScopeChoice::User => Self::User,
            ScopeChoice::Project => Self::Project,
        }
    }
}

fn home(surroundings: Surroundings<'_>) -> Option<&Path> {
    surroundings.variables.get("HOME").map(Path::new)
}

/// The servers of a text of a client that a configuration has already and that work there, each with its name there. Importing them would change
/// nothing.
pub(crate) fn kept(
    client: &'static Client,
    path: &Path,
    text: &str,
    file: &ServersFile,
    world: &World,
) -> Vec<(String, String)> {
    let surroundings =
        Surroundings { variables: &world.variables, folder: world.folder(), platform: Platform::here() };
    let source = read::source_of(path, Some(client), surroundings);
    let Ok(Content { mut servers, .. }) = read::read_text(&source, text.as_bytes(), surroundings) else {
        return Vec::new();
    };
    // Those of one folder are elsewhere in the file.
    servers.retain(|found| found.scope != read::EntryScope::Local);
    let plan = Planner { world, secrets: SecretsChoice::EnvFile, ports: &[] }.plan(&servers, file);
    // What its client signs in to would not work at the gateway, which does not.
    let works = |row: &plan::Row| row.sign_in != Some(sign_in::SignIn::Needed);
    let kept = plan.rows.into_iter().filter(|row| row.outcome == plan::Outcome::Kept && works(row));
    kept.filter_map(|row| Some((row.name, row.server?))).collect()
}

/// The file of a client as it would be imported; `None` if it cannot be read.
pub(crate) fn as_imported(path: &Path, world: &World) -> Option<ServersFile> {
    let surroundings =
        Surroundings { variables: &world.variables, folder: world.folder(), platform: Platform::here() };
    let source = read::source_of(path, None, surroundings);
    let content = read::read(&source, surroundings).ok()?;
    // It is never written.
    let mut file = ServersFile::read(&path.with_extension("imported.toml"), world).ok()?;
    let planner = Planner { world, secrets: SecretsChoice::EnvFile, ports: &[] };
    planner.plan(&content.servers, &file).apply(&mut file).ok()?;
    Some(file)
}

/// Reads all files. One that cannot be read stops no other.
fn gather(sources: &[Source], surroundings: Surroundings<'_>) -> Gathered {
    let mut all = Gathered::default();
    for source in sources {
        all.files += 1;
        match read::read(source, surroundings) {
            Ok(Content { servers, elsewhere }) => {
                all.found.extend(servers);
                all.elsewhere += elsewhere;
            }
            Err(error) => {
                let (at, message) = match error {
                    Unreadable::Io(error) => (None, format!("cannot be read: {error}")),
                    Unreadable::Broken(broken) => (Some(broken.at), broken.message),
                };
                all.broken.push(BrokenFile {
                    client: source.client,
                    file: source.file.path.clone(),
                    at,
                    message,
                });
            }
        }
    }
    all
}

/// The ports of the gateway that this configuration describes.
fn ports(world: &World, target: &Path) -> Vec<u16> {
    let environment = world.environment.clone().without_secrets();
    let config =
        bridgehead::config::load(Some(target).filter(|path| path.exists()), &environment, world.folder());
    let Ok(config) = config else { return Vec::new() };
    let others = config.http.listeners.iter().filter_map(|listener| match listener.listen {
        ListenAddress::Tcp(address) => Some(address.port()),
        ListenAddress::Unix(_) => None,
    });
    others.chain([config.http.listen.port()]).collect()
}
