//! `bridgehead connect` and `bridgehead disconnect`: put the gateway into a client's file, and take it out again.
//!
//! The files belong to the clients and their users. So one entry is added to the text and nothing else changes; the old file is
//! kept beside it; and disconnecting gives it back byte for byte, unless somebody has changed it since. Where a client has a
//! command for this, that command is used.

mod diff;
mod entry;
mod file;
mod launch;
mod list;
mod moved;
mod one;
mod outcome;
mod own_command;
#[cfg(test)]
mod pages_tests;
mod place;
mod record;
mod served;
mod undo;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use bridgehead::Config;
use bridgehead::config::{ConfigError, Origin, TokenSource, locate, read_text};
use bridgehead_gateway::Principal;
use clap::Args;
use serde_json::json;

use self::launch::Launch;
use self::one::Job;
use self::outcome::{Outcome, State};
use self::record::Records;
use self::served::Served;
use self::undo::Undo;
pub(crate) use self::undo::{connected, undo_all};
use crate::clients::{By, CLIENTS, Client, Scope};
use crate::exit::Exit;
use crate::meant::meant;
use crate::servers_file::{for_nobody, listed, not_for, told_for_nobody};
use crate::world::World;
use crate::{Chosen, Run, output, service};

/// The name of our entry.
const NAME: &str = "bridgehead";
/// The variable of the client that holds a key, unless another is named. Not one of ours, which a gateway would read.
const KEY_VARIABLE: &str = "MCP_BRIDGEHEAD_KEY";

/// Connect MCP clients to the gateway; without a client, show which are connected
#[derive(Debug, Args)]
#[command(
    after_help = "One entry is added to the client's file, and nothing else in it changes. The client then starts the
gateway by itself. The file from before is kept beside it, and `bridgehead disconnect`
takes the entry out again. For clients whose files Bridgehead does not change, it prints
what to add.

Exit codes: 0 done, 1 a client could not be connected, 2 no such client.

Examples:
  bridgehead connect                       which clients are here, and which are connected
  bridgehead connect claude-code cursor
  bridgehead connect vscode --dry-run      what would change
  bridgehead connect cursor --move         and turn its own copies of the gateway's servers off
  bridgehead connect zed --print           the entry, to add it yourself
  bridgehead connect codex --http          the address of a gateway that runs already"
)]
pub(crate) struct Connect {
    /// The clients, such as claude-desktop, claude-code, cursor, vscode, windsurf, zed, codex, gemini or copilot
    #[arg(value_name = "CLIENT")]
    clients: Vec<String>,
    #[command(flatten)]
    chosen: Chosen,
    /// Connect all clients that are found here and whose files Bridgehead changes
    #[arg(long, conflicts_with = "clients")]
    all: bool,
    #[command(flatten)]
    which: Which,
    /// Let the client send requests to the running gateway, at its own or another address
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    http: Option<String>,
    /// With --http, the variable of the client that holds its key [default: MCP_BRIDGEHEAD_KEY if one is needed]
    #[arg(long, value_name = "VARIABLE", requires = "http")]
    key_variable: Option<String>,
    /// Turn off the client's own servers that the gateway has too; `disconnect` turns them on again
    #[arg(long = "move")]
    move_servers: bool,
    /// Print the entry and where it belongs; change nothing
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Show what would change; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Disconnect MCP clients from the gateway
#[derive(Debug, Args)]
#[command(
    after_help = "A file that nobody has changed since it was connected gets back every byte it had before. From any
other, only the entry is taken out.

Exit codes: 0 done, 1 a client could not be disconnected, 2 no such client.

Examples:
  bridgehead disconnect claude-code
  bridgehead disconnect --all
  bridgehead disconnect cursor --project --dry-run"
)]
pub(crate) struct Disconnect {
    /// The clients
    #[arg(value_name = "CLIENT", required_unless_present = "all")]
    clients: Vec<String>,
    /// Take back everything that `connect` has done
    #[arg(long, conflicts_with_all = ["clients", "project", "name"])]
    all: bool,
    #[command(flatten)]
    which: Which,
    /// Show what would change; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which entry.
#[derive(Debug, Args)]
struct Which {
    /// Use the file of the project in the current folder instead of your own
    #[arg(long)]
    project: bool,
    /// The name of the entry
    #[arg(long, value_name = "NAME", default_value = NAME, value_parser = entry_name)]
    name: String,
    /// Edit the file even if the client has a command for this
    #[arg(long)]
    no_command: bool,
}

impl Which {
    const fn scope(&self) -> Scope {
        match self.project {
            true => Scope::Project,
            false => Scope::User,
        }
    }
}

/// A name that every client accepts.
fn entry_name(name: &str) -> Result<String, String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    match !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        true => Ok(name.to_owned()),
        false => Err("a name has up to 64 letters, digits, `-` and `_`".to_owned()),
    }
}

impl Run for Connect {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        run(self, world)
    }
}

impl Run for Disconnect {
    fn json(&self) -> bool {
        self.json
    }

    fn run(&self, world: &World) -> Exit {
        disconnect(self, world)
    }
}

fn run(connect: &Connect, world: &World) -> Exit {
    let clients = match named(&connect.clients, connect.json) {
        Ok(clients) => clients,
        Err(exit) => return exit,
    };
    let config = match configuration(world, connect.chosen.config.as_deref()) {
        Ok(config) => config,
        Err(error) => return output::configuration_error(&error, connect.json),
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            let reason = format!("the path of this program cannot be found: {error}");
            return output::failed(&reason, Exit::Failure, connect.json);
        }
    };
    let start = launch::start(&program, &world.variables);
    let stdio = start.launch(config.file.as_deref());
    let wanted = match http(connect, world) {
        Ok(address) => address.unwrap_or_else(|| stdio.clone()),
        Err(exit) => return exit,
    };
    let read = config.file.clone().or_else(|| world.own_file()).filter(|file| file.is_file());
    let known = match read.map(|file| loaded(&file, world)).transpose() {
        Ok(known) => known,
        Err(error) if connect.move_servers => return output::configuration_error(&error, connect.json),
        Err(_) => None,
    };
    let served = known.as_ref().and_then(|known| Served::of(known, world));
    let records = Records::of(&world.variables);
    let job = Job {
        world,
        records: &records,
        scope: connect.which.scope(),
        name: &connect.which.name,
        wanted: &wanted,
        otherwise: &stdio,
        is_service: service::installed(world).is_some(),
        config: config.file.as_deref(),
        served: served.as_ref(),
        move_servers: connect.move_servers,
        print: connect.print,
        dry_run: connect.dry_run,
        edits_only: connect.which.no_command,
    };
    let clients = match (clients.is_empty(), connect.all) {
        (true, false) => return list::run(&job, connect.json),
        (true, true) => list::found(world).filter(|client| can_change(client)).collect(),
        (false, _) => clients,
    };
    if clients.is_empty() {
        let reason = "no client is found here; name one, for example `bridgehead connect claude-code`";
        return output::failed(reason, Exit::Failure, connect.json);
    }
    let outcomes: Vec<Outcome> = clients.into_iter().map(|client| job.connect(client)).collect();
    let starts_program = matches!(wanted, Launch::Stdio { .. });
    let mut notes: Vec<String> = start.remark.into_iter().filter(|_| starts_program).collect();
    notes.extend(config.remark);
    if let Some(known) = &known {
        notes.extend(left_out(known, starts_program));
    }
    report(&outcomes, &notes, connect.json)
}

fn disconnect(disconnect: &Disconnect, world: &World) -> Exit {
    let clients = match named(&disconnect.clients, disconnect.json) {
        Ok(clients) => clients,
        Err(exit) => return exit,
    };
    let records = Records::of(&world.variables);
    let undo = Undo {
        world,
        records: &records,
        scope: disconnect.which.scope(),
        name: &disconnect.which.name,
        url: None,
        dry_run: disconnect.dry_run,
        edits_only: disconnect.which.no_command,
    };
    let outcomes: Vec<Outcome> = match disconnect.all {
        true => undo.all(),
        false => clients.into_iter().map(|client| undo.disconnect(client)).collect(),
    };
    if outcomes.is_empty() {
        output::talk("no client was connected by `bridgehead connect`");
    }
    report(&outcomes, &[], disconnect.json)
}

/// Whether Bridgehead changes the files of a client.
pub(crate) fn can_change(client: &Client) -> bool {
    matches!(client.connect.by, By::Command(_) | By::Edit)
}

/// The clients of these names, each once.
fn named(names: &[String], as_json: bool) -> Result<Vec<&'static Client>, Exit> {
    let mut found: Vec<&'static Client> = Vec::new();
    for name in names {
        let Some(client) = Client::named(name) else {
            let known: Vec<&str> = CLIENTS.iter().map(|client| client.id).collect();
            let all = format!("the clients are {}", known.join(", "));
            let hint = meant(name, known, &all);
            let reason = format!("there is no client `{name}`; {hint}");
            return Err(output::failed(&reason, Exit::Usage, as_json));
        };
        if !found.contains(&client) {
            found.push(client);
        }
    }
    Ok(found)
}

/// The configuration that a client's entry must name.
struct Named {
    /// `None` if a gateway finds it by itself.
    file: Option<PathBuf>,
    remark: Option<String>,
}

/// What a file says, without its secrets.
fn loaded(file: &Path, world: &World) -> Result<Config, ConfigError> {
    let environment = world.environment.clone().without_secrets();
    world.load_text(file, read_text(file, world.folder())?, &environment)
}

/// Connects these clients to the gateway with this configuration, and turns off what they start themselves.
pub(crate) fn hand_over(clients: &[&'static Client], config: Option<PathBuf>, world: &World) -> Exit {
    let connect = Connect {
        clients: clients.iter().map(|client| client.id.to_owned()).collect(),
        chosen: Chosen { config },
        all: false,
        which: Which { project: false, name: NAME.to_owned(), no_command: false },
        http: None,
        key_variable: None,
        move_servers: true,
        print: false,
        dry_run: false,
        json: false,
    };
    run(&connect, world)
}

/// Says which servers the rules keep from clients, although they are connected.
fn left_out(config: &Config, starts_program: bool) -> Vec<String> {
    let for_nobody = for_nobody(config);
    let mut notes = Vec::new();
    if starts_program {
        // A client that starts the program acts for this user.
        let mut not_for = not_for(&Principal::local(), config);
        not_for.retain(|server| !for_nobody.contains(server));
        if !not_for.is_empty() {
            notes.push(format!(
                "the rules of the configuration let you, who are `local`, use nothing of {}, so these clients do not see it \
                 (`bridgehead explain access`)",
                listed(&not_for, "")
            ));
        }
    }
    if !for_nobody.is_empty() {
        notes.push(told_for_nobody(&for_nobody));
    }
    notes
}

/// A client starts the gateway in a folder of its own choice. So the entry names a configuration that is not the user's own.
fn configuration(world: &World, explicit: Option<&Path>) -> Result<Named, ConfigError> {
    for found in locate(explicit, &world.environment, world.folder())? {
        let file = world.folder().join(&found.path);
        let named = Some(file.canonicalize().unwrap_or_else(|_| file.clone()));
        match found.origin {
            Origin::Named => return Ok(Named { file: named, remark: None }),
            Origin::User => return Ok(Named { file: None, remark: None }),
            Origin::Folder => {
                let text = read_text(&found.path, world.folder())?;
                if world.trust().answer(&found.path, &text) == Some(true) {
                    let remark = format!(
                        "the entry names `{}`, which the gateway will use whatever it says then",
                        file.display()
                    );
                    return Ok(Named { file: named, remark: Some(remark) });
                }
            }
        }
    }
    let remark = "there is no configuration yet, so clients get the demo server; `bridgehead import` takes over the servers \
        of your clients";
    Ok(Named { file: None, remark: Some(remark.to_owned()) })
}

/// The address to connect to, if it is to be one: with `--http`, or where the gateway is installed as a service.
fn http(connect: &Connect, world: &World) -> Result<Option<Launch>, Exit> {
    let service = service::installed(world).map(|service| service.url());
    let known = match (connect.http.as_deref(), service) {
        (None, None) => return Ok(None),
        (None | Some(""), service) => service,
        (Some(url), _) if url.starts_with("http://") || url.starts_with("https://") => {
            return Ok(Some(Launch::Http { url: url.to_owned(), token: connect.key_variable.clone() }));
        }
        (Some(url), _) => {
            let reason = format!("`{url}` is not an address; write http:// or https:// before it");
            return Err(output::failed(&reason, Exit::Usage, connect.json));
        }
    };
    let config = world
        .without_secrets(connect.chosen.config.as_deref())
        .map_err(|error| output::configuration_error(&error, connect.json))?;
    let Some(url) = config.auth.public_url.clone().or(known).or_else(|| address(config.http.listen)) else {
        let reason =
            "the gateway chooses its port at each start; set `listen` under [http], or use --http=URL";
        return Err(output::failed(reason, Exit::Configuration, connect.json));
    };
    let has_keys = !config.auth.keys.is_empty() || !config.auth.keys_in_file.is_empty();
    let token = match &config.http.token {
        TokenSource::None if has_keys && !config.auth.local => Some(KEY_VARIABLE.to_owned()),
        TokenSource::None => None,
        TokenSource::Env { name, .. } => Some(name.clone()),
        TokenSource::File(_) => Some(KEY_VARIABLE.to_owned()),
    };
    Ok(Some(Launch::Http { url, token: connect.key_variable.clone().or(token) }))
}

/// Where clients on this machine reach a listener; `None` if it has another port at each start.
fn address(listen: SocketAddr) -> Option<String> {
    let ip = match listen.ip() {
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    };
    (listen.port() != 0).then(|| format!("http://{}/mcp", SocketAddr::new(ip, listen.port())))
}

/// Tells what was done, and returns the exit code.
fn report(outcomes: &[Outcome], notes: &[String], as_json: bool) -> Exit {
    let ok = outcomes.iter().all(|outcome| outcome.state != State::Failed);
    let exit = if ok { Exit::Success } else { Exit::Failure };
    if as_json {
        let clients: Vec<_> = outcomes.iter().map(Outcome::json).collect();
        return output::json_data(&json!({"ok": ok, "clients": clients, "notes": notes}), exit);
    }
    let mut text = String::new();
    for outcome in outcomes {
        for warning in &outcome.warnings {
            output::talk(&format!("warning: {}: {warning}", outcome.client.title));
        }
        match (&outcome.text, outcome.state) {
            (_, State::Failed) => output::talk(&format!("error: {}", outcome.words())),
            // The text is data; what is around it is for people.
            (Some(shown), _) => {
                output::talk(&outcome.words());
                text.push_str(shown);
            }
            (None, _) => output::talk(&outcome.words()),
        }
    }
    for note in notes {
        output::talk(&format!("note: {note}"));
    }
    match text.is_empty() {
        true => exit,
        false => output::data(&text, exit),
    }
}
